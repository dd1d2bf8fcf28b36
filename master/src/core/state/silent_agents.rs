//! Agents about to be marked unreachable, and the pace at which the master marks them.
//!
//! A master that is itself cut off must not blame the agents: while most agents are missing, and for a while
//! afterwards, [`SilentAgents`] holds back all removals. Invariant: every change of the missing agents, or of all
//! agents, is counted before and after.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_resources::AgentId;
use meseta_resources::time::Moment;

use super::suspicion::{Missing, Suspicion};
use crate::core::timers::{Timer, TimerKey, Timers};

/// The agents that the master knows at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Census {
    pub(crate) registered: usize,
    pub(crate) expected: usize,
    /// The tolerated percentage of missing agents.
    pub(crate) percent_max: u32,
    /// The time that an agent takes to be heard.
    pub(crate) patience: Duration,
    /// The time of the clock that stops while the master does not run.
    pub(crate) clock: Moment,
}

/// The silent agents, and the limits on their removal.
#[derive(Debug)]
pub(crate) struct SilentAgents {
    /// Registered agents about to be marked unreachable.
    silent: BTreeSet<AgentId>,
    /// Whether so many agents are silent, or were recently, that this master may itself be cut off.
    silence: Suspicion,
    /// The suspicion that also counts agents that have not come back.
    absence: Suspicion,
    /// The time from which the next agent may be marked unreachable.
    next_removal: Moment,
    /// The time of the next check for agents that have not come back.
    return_timer: Option<(Moment, TimerKey)>,
}

impl SilentAgents {
    pub(crate) fn new() -> Self {
        Self {
            silent: BTreeSet::new(),
            silence: Suspicion::default(),
            absence: Suspicion::default(),
            next_removal: Moment::ORIGIN,
            return_timer: None,
        }
    }

    /// Adds an agent about to be marked unreachable.
    pub(crate) fn add(&mut self, id: AgentId) {
        self.silent.insert(id);
    }

    /// Updates the number of missing agents; called before and after the missing agents become fewer, or all agents
    /// become more.
    pub(crate) fn count(&mut self, census: Census) {
        self.count_silent(census);
        self.count_absent(census);
    }

    fn count_silent(&mut self, census: Census) {
        let missing = self.missing(census, 0);
        self.silence.update(missing, census.clock, census.patience);
    }

    fn count_absent(&mut self, census: Census) {
        let missing = self.missing(census, census.expected);
        self.absence.update(missing, census.clock, census.patience);
    }

    /// The number of missing agents among all, with `absent` agents that have not come back.
    fn missing(&self, census: Census, absent: usize) -> Missing {
        Missing {
            missing: self.silent.len() + absent,
            all: census.registered + absent,
            percent_max: census.percent_max,
        }
    }

    /// Handles the answer or return of an agent that may have been about to be marked unreachable.
    pub(crate) fn hear(&mut self, id: &AgentId, census: Census) {
        if self.silent.contains(id) {
            // The number may not have been checked while all were silent.
            self.count(census);
            self.silent.remove(id);
            self.count(census);
        }
    }

    /// Forgets an agent that the census no longer includes.
    pub(crate) fn forget(&mut self, id: &AgentId, census: Census) {
        if self.silent.remove(id) {
            self.count(census);
        }
    }

    /// Whether so many agents are silent, or were recently, that this master may itself be cut off: then it marks no
    /// agent as unreachable.
    pub(crate) fn suspect_silence(&mut self, census: Census) -> bool {
        self.count_silent(census);
        self.silence.holds_back(census.clock)
    }

    /// Whether so many agents are silent or have not come back to this master that it may itself be cut off.
    pub(crate) fn suspect_absence(&mut self, census: Census) -> bool {
        self.count_absent(census);
        self.absence.holds_back(census.clock)
    }

    /// Takes the turn to mark an agent unreachable, if the interval has passed: a network failure must not cost all
    /// agents at once.
    pub(crate) fn take_turn(&mut self, now: Moment, interval: Duration) -> bool {
        if now < self.next_removal {
            return false;
        }
        self.next_removal = now + interval;
        true
    }

    /// The time from which the next agent may be marked unreachable.
    pub(crate) const fn next_removal(&self) -> Moment {
        self.next_removal
    }

    /// Schedules the check for agents that have not come back, keeping the earlier deadline. There is a single such
    /// timer, because each check sets the next.
    pub(crate) fn expect_returns_until(&mut self, at: Moment, timers: &mut Timers) {
        if let Some((_, key)) = self.return_timer.take_if(|(set, _)| *set > at) {
            timers.cancel(key);
        }
        self.return_timer
            .get_or_insert_with(|| (at, timers.set(at, Timer::Reregister)));
    }

    /// Forgets the timer of the check, because it has fired.
    pub(crate) fn begin_return_check(&mut self) {
        self.return_timer = None;
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AgentId> {
        self.silent.iter()
    }
}
