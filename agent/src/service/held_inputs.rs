//! Inputs that wait while too much is to be written, and those that need not wait.
//!
//! A ping is answered and a kill is taken though the disk is behind: a master must not give an agent up, nor a task
//! live on, because of a full disk. Pure. Invariant: nothing overtakes what it may depend on: no frame a
//! change of the connection, no kill an order to run something.

use std::collections::VecDeque;

use meseta_proto::meseta::v1::master_frame::Message;

use crate::core::Input;

/// Inputs that may be held; further ones wait with whoever sends them.
const HELD_MAX: usize = 4096;
/// Kills that may overtake what is held until all of that is taken: each is one more write.
const KILLS_MAX: usize = 16_384;

/// What was received and is not taken yet, in order.
#[derive(Debug, Default)]
pub(super) struct HeldInputs {
    waiting: VecDeque<Input>,
    /// Whether what waits may change the connection to the master.
    changes_link: bool,
    /// Whether a task may be among what waits.
    launches: bool,
    /// Kills that have overtaken it.
    kills: usize,
}

impl HeldInputs {
    /// Whether no more is to be received.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= HELD_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps an input, or gives it back to be taken at once.
    pub(super) fn hold(&mut self, input: Input) -> Option<Input> {
        if self.may_overtake(&input) {
            return Some(input);
        }
        self.push(input);
        None
    }

    /// Keeps an input behind those that are kept.
    pub(super) fn push(&mut self, input: Input) {
        match &input {
            Input::Frame { frame, .. } => match frame.message {
                Some(Message::RunTask(_) | Message::RunTaskGroup(_)) => self.launches = true,
                Some(Message::Registered(_) | Message::Refused(_) | Message::Shutdown(_)) => {
                    self.changes_link = true;
                }
                _ => {}
            },
            Input::LinkUp { .. } | Input::LinkDown { .. } | Input::Recovered(_) => {
                self.changes_link = true;
            }
            _ => {}
        }
        self.waiting.push_back(input);
    }

    fn may_overtake(&mut self, input: &Input) -> bool {
        let Input::Frame { frame, .. } = input else {
            return false;
        };
        let is_free = !self.waiting.is_empty() && !self.changes_link;
        match frame.message {
            Some(Message::Ping(_)) => is_free,
            Some(Message::KillTask(_)) if is_free && !self.launches && self.kills < KILLS_MAX => {
                self.kills += 1;
                true
            }
            _ => false,
        }
    }

    /// The next one in order.
    pub(super) fn next(&mut self) -> Option<Input> {
        let next = self.waiting.pop_front();
        if self.waiting.is_empty() {
            (self.changes_link, self.launches, self.kills) = (false, false, 0);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::meseta::v1 as wire;

    use super::*;
    use crate::core::LinkId;

    fn frame(message: Message) -> Input {
        Input::Frame {
            link: LinkId(1),
            frame: Box::new(wire::MasterFrame {
                message: Some(message),
                ..wire::MasterFrame::default()
            }),
            charge: None,
        }
    }

    fn ping() -> Input {
        frame(Message::Ping(wire::Ping::default()))
    }

    fn kill() -> Input {
        frame(Message::KillTask(wire::KillTask::default()))
    }

    fn launch() -> Input {
        frame(Message::RunTask(wire::RunTask::default()))
    }

    #[test]
    fn pings_overtake_launches_and_kills_do_not() {
        let mut held = HeldInputs::default();
        assert!(held.hold(Input::Tick).is_none());
        assert!(held.hold(kill()).is_some() && held.hold(ping()).is_some());
        assert!(held.hold(launch()).is_none());
        assert!(held.hold(ping()).is_some());
        assert!(held.hold(kill()).is_none());
        let order = std::iter::from_fn(|| held.next());
        let kinds: Vec<_> = order
            .map(|input| match input {
                Input::Tick => "tick",
                Input::Frame { frame, .. } => match frame.message {
                    Some(Message::RunTask(_)) => "launch",
                    Some(Message::KillTask(_)) => "kill",
                    _ => "other",
                },
                _ => "other",
            })
            .collect();
        assert_eq!(kinds, ["tick", "launch", "kill"]);
    }

    #[test]
    fn nothing_overtakes_a_change_of_the_connection() {
        let mut held = HeldInputs::default();
        let link = LinkId(2);
        assert!(held.hold(Input::LinkUp { link }).is_none());
        assert!(held.hold(ping()).is_none() && held.hold(kill()).is_none());
        while held.next().is_some() {}
        assert!(held.hold(Input::Tick).is_none());
        assert!(held.hold(ping()).is_some());
    }

    #[test]
    fn what_is_held_and_what_overtakes_it_has_a_bound() {
        let mut held = HeldInputs::default();
        while !held.is_full() {
            assert!(held.hold(Input::Tick).is_none());
        }
        assert_eq!(held.waiting.len(), HELD_MAX);
        let overtaking = (0..=KILLS_MAX).filter(|_| held.hold(kill()).is_some());
        assert_eq!(overtaking.count(), KILLS_MAX);
        assert!(held.hold(ping()).is_some());
    }
}
