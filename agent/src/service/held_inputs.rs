//! Inputs that wait while too many writes are pending, and inputs that need not wait.
//!
//! A slow disk does not delay the answer to a ping or a kill: a full disk must not make the master give up the agent,
//! nor let a task live on. Messages between frameworks and their executors are dropped, since their delivery is not
//! guaranteed. Inputs from the master have their own room, so that executors cannot block them. Corrections of a QoS
//! controller never come here ([`Received::Report`]). Pure. Invariant: no input overtakes another that it may depend
//! on. No frame overtakes a change of the connection. No kill overtakes a request to run the same task, nor a request
//! that needs an executor of its framework, which might end with the task.
//!
//! [`Received::Report`]: crate::handle::Received::Report

use std::collections::{BTreeMap, VecDeque};

use meseta_proto::meseta::v1::master_frame::Message;

use crate::core::Input;
use crate::link::outgoing::Dropped;

/// Inputs that may be held; further ones wait at their senders.
const HELD_MAX: usize = 4096;
/// Inputs of the link to the master that may be held, in addition to the others.
const OF_LINK_MAX: usize = 16_384;
/// Kills that may overtake the held inputs until all of them are taken: each is a further write.
const KILLS_MAX: usize = 16_384;

/// The part of a launch that a kill may depend on: the task, or the life of an executor of the framework.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
struct Launched {
    framework: String,
    /// The task; `None` for a launch on an existing executor.
    task: Option<String>,
}

impl Launched {
    fn by(input: &Input) -> Vec<Self> {
        let Input::Frame { frame, .. } = input else {
            return Vec::new();
        };
        let (framework, tasks, is_first) = match &frame.message {
            Some(Message::RunTask(run)) => (
                &run.framework,
                std::slice::from_ref(&run.task),
                run.launch_executor,
            ),
            Some(Message::RunTaskGroup(run)) => (
                &run.framework,
                run.task_group.tasks.as_slice(),
                run.launch_executor,
            ),
            _ => return Vec::new(),
        };
        let framework = framework.id.as_ref().map(|id| id.value.as_str());
        let of = |task| Self {
            framework: framework.unwrap_or_default().to_owned(),
            task,
        };
        let tasks = tasks.iter().map(|task| Some(task.task_id.value.clone()));
        tasks.chain((!is_first).then_some(None)).map(of).collect()
    }
}

/// Received inputs that are not taken yet, in order.
#[derive(Debug, Default)]
pub(super) struct HeldInputs {
    waiting: VecDeque<Input>,
    /// The number of waiting inputs of the link to the master.
    of_link: usize,
    /// Counts the messages that were dropped.
    dropped: Dropped,
    /// Whether a waiting input may change the connection to the master.
    changes_link: bool,
    /// The waiting launches, with their numbers.
    launches: BTreeMap<Launched, usize>,
    /// Kills that have overtaken the waiting inputs.
    kills: usize,
}

impl HeldInputs {
    pub(super) fn new(dropped: Dropped) -> Self {
        Self {
            dropped,
            ..Self::default()
        }
    }

    /// Whether no more inputs may be received, except those of the link.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() - self.of_link >= HELD_MAX
    }

    /// Whether no more inputs of the link may be received.
    pub(super) fn is_full_of_link(&self) -> bool {
        self.of_link >= OF_LINK_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Holds an input, or returns it to be handled at once. A message is dropped.
    pub(super) fn hold(&mut self, input: Input) -> Option<Input> {
        if is_message(&input) {
            self.dropped.count();
            return None;
        }
        if self.may_overtake(&input) {
            return Some(input);
        }
        self.push(input);
        None
    }

    /// Queues an input behind the held inputs.
    pub(super) fn push(&mut self, input: Input) {
        for launched in Launched::by(&input) {
            *self.launches.entry(launched).or_default() += 1;
        }
        match &input {
            Input::Frame { frame, .. } => {
                if let Some(Message::Registered(_) | Message::Refused(_) | Message::Shutdown(_)) =
                    frame.message
                {
                    self.changes_link = true;
                }
            }
            Input::LinkUp { .. } | Input::LinkDown { .. } | Input::Recovered(_) => {
                self.changes_link = true;
            }
            _ => {}
        }
        self.of_link += usize::from(is_of_link(&input));
        self.waiting.push_back(input);
    }

    fn may_overtake(&mut self, input: &Input) -> bool {
        let Input::Frame { frame, .. } = input else {
            return false;
        };
        if self.changes_link {
            return false;
        }
        match &frame.message {
            Some(Message::Ping(_)) => true,
            Some(Message::KillTask(kill)) => {
                let of = |task| Launched {
                    framework: kill.framework_id.value.clone(),
                    task,
                };
                let is_free = self.kills < KILLS_MAX
                    && !self.launches.contains_key(&of(None))
                    && !self
                        .launches
                        .contains_key(&of(Some(kill.task_id.value.clone())));
                self.kills += usize::from(is_free);
                is_free
            }
            _ => false,
        }
    }

    /// The next held input in order.
    pub(super) fn next(&mut self) -> Option<Input> {
        let next = self.waiting.pop_front();
        self.of_link -= usize::from(next.as_ref().is_some_and(is_of_link));
        for launched in next.iter().flat_map(Launched::by) {
            if let Some(count) = self.launches.get_mut(&launched) {
                *count -= 1;
                if *count == 0 {
                    self.launches.remove(&launched);
                }
            }
        }
        if self.waiting.is_empty() {
            (self.changes_link, self.kills) = (false, 0);
        }
        next
    }
}

/// Whether the input comes from the link to the master.
fn is_of_link(input: &Input) -> bool {
    matches!(
        input,
        Input::Frame { .. } | Input::LinkUp { .. } | Input::LinkDown { .. }
    )
}

/// Whether the input is a message between a framework and its executor.
fn is_message(input: &Input) -> bool {
    match input {
        Input::ExecutorMessage { .. } => true,
        Input::Frame { frame, .. } => {
            matches!(frame.message, Some(Message::ExecutorMessage(_)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meseta_proto::meseta::v1 as wire;
    use meseta_proto::mesos::v1 as pb;
    use meseta_resources::{ExecutorId, FrameworkId};
    use tokio::time::timeout;

    use super::*;
    use crate::byte_semaphore::Permit;
    use crate::core::{LinkId, Report};
    use crate::handle::{INPUTS_MAX, Received, mailbox};

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

    fn task_id(id: &str) -> pb::TaskId {
        pb::TaskId {
            value: id.to_owned(),
        }
    }

    fn kill_of(task: &str) -> Input {
        frame(Message::KillTask(wire::KillTask {
            task_id: task_id(task),
            ..wire::KillTask::default()
        }))
    }

    fn kill() -> Input {
        kill_of("t")
    }

    fn launch_of(task: &str, launch_executor: bool) -> Input {
        frame(Message::RunTask(wire::RunTask {
            task: pb::TaskInfo {
                task_id: task_id(task),
                ..pb::TaskInfo::default()
            },
            launch_executor,
            ..wire::RunTask::default()
        }))
    }

    fn launch() -> Input {
        launch_of("t", true)
    }

    #[test]
    fn pings_overtake_launches_kills_do_not() {
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
    fn kill_and_ping_pass_when_empty() {
        let mut held = HeldInputs::default();
        assert!(held.hold(kill()).is_some() && held.hold(ping()).is_some());
        assert!(held.is_empty());
    }

    #[test]
    fn kill_overtakes_unrelated_launches() {
        let mut held = HeldInputs::default();
        assert!(held.hold(launch_of("a", true)).is_none());
        assert!(held.hold(launch_of("a", true)).is_none());
        assert!(held.hold(kill_of("a")).is_none() && held.hold(kill_of("b")).is_some());
        // The executor of "b" might end before "c" is delivered to it.
        assert!(held.hold(launch_of("c", false)).is_none());
        assert!(held.hold(kill_of("b")).is_none());
        // Held until the last launch of the task is taken.
        held.next();
        assert!(held.hold(kill_of("a")).is_none());
        while held.next().is_some() {}
        assert!(held.launches.is_empty());
        assert!(held.hold(kill_of("a")).is_some());
    }

    #[test]
    fn nothing_overtakes_connection_changes() {
        let mut held = HeldInputs::default();
        let link = LinkId(2);
        assert!(held.hold(Input::LinkUp { link, led: None }).is_none());
        assert!(held.hold(ping()).is_none() && held.hold(kill()).is_none());
        while held.next().is_some() {}
        assert!(held.hold(Input::Tick).is_none());
        assert!(held.hold(ping()).is_some());
    }

    /// Regression: nothing was throttled or evicted while the disk was behind, and all old requests were carried out
    /// later. The same happened once executors' updates had filled the room for held inputs.
    #[tokio::test(start_paused = true)]
    async fn corrections_happen_at_once_or_never() {
        let (handle, mut mailbox) = mailbox();
        let mut held = HeldInputs::default();
        while !held.is_full() {
            assert!(held.hold(Input::Tick).is_none());
        }
        for _ in 0..INPUTS_MAX {
            handle.tell(Input::Tick).await;
        }
        for _ in 0..10 {
            let told = timeout(Duration::from_secs(1), handle.report(Report::default()));
            let mut taken = Vec::new();
            let received = mailbox.receive(&mut taken, usize::from(!held.is_full()), true);
            let (told, received) = tokio::join!(told, timeout(Duration::from_secs(1), received));
            told.expect("told at once");
            assert!(matches!(received, Ok(Received::Report(_))) && taken.is_empty());
        }
        handle.report(Report::default()).await;
        let mut taken = Vec::new();
        let early = mailbox.receive(&mut taken, 0, false);
        let early = timeout(Duration::from_secs(1), early).await;
        early.expect_err("the core does not know the containers yet");
    }

    #[test]
    fn held_and_overtaking_inputs_are_bounded() {
        let mut held = HeldInputs::default();
        while !held.is_full() {
            assert!(held.hold(Input::Tick).is_none());
        }
        assert_eq!(held.waiting.len(), HELD_MAX);
        assert!(!held.is_full_of_link(), "the master is heard");
        let overtaking = (0..=KILLS_MAX).filter(|_| held.hold(kill()).is_some());
        assert_eq!(overtaking.count(), KILLS_MAX);
        assert!(held.hold(ping()).is_some());
    }

    #[test]
    fn master_inputs_have_own_room() {
        let mut held = HeldInputs::default();
        while !held.is_full_of_link() {
            assert!(held.hold(launch_of("a", true)).is_none());
        }
        assert_eq!(held.waiting.len(), OF_LINK_MAX);
        assert!(!held.is_full());
        assert!(held.hold(Input::Tick).is_none());
        while held.next().is_some() {}
        assert!(!held.is_full_of_link());
    }

    #[test]
    fn held_messages_are_dropped() {
        let dropped = Dropped::default();
        let mut held = HeldInputs::new(dropped.clone());
        assert!(held.hold(Input::Tick).is_none());
        let from_executor = || Input::ExecutorMessage {
            framework: FrameworkId::new("f").expect("an id"),
            executor: ExecutorId::new("e").expect("an id"),
            data: vec![0],
            permit: Permit::default(),
        };
        let for_executor = || {
            let message = wire::ExecutorMessage::default();
            frame(Message::ExecutorMessage(message))
        };
        for _ in 0..HELD_MAX {
            assert!(held.hold(from_executor()).is_none() && held.hold(for_executor()).is_none());
        }
        assert_eq!(dropped.get(), 2 * HELD_MAX as u64);
        assert!(!held.is_full() && held.hold(ping()).is_some());
        assert!(matches!(held.next(), Some(Input::Tick)) && held.next().is_none());
    }
}
