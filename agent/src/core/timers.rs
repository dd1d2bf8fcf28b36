//! Deadlines of the agent's core, in order.
//!
//! The timers of a container end with the container: [`Timers::remove_container`] is called at its end. A far deadline
//! (`max_completion_time` of a day) therefore takes no memory for a task that ran for a second. Other timers are due
//! within minutes, and their handlers recognise a stale timer. Invariant: the number of container timers is bounded by
//! the number of containers that have not ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::{ContainerId, Moment};

use super::LinkId;
use super::probe::CheckKind;
use crate::checkpoint::{Lsn, TaskKey};

/// An event that is due at a time.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum Timer {
    Connect(LinkId),
    RegistrationTimeout(LinkId),
    PingTimeout(LinkId),
    CompletionTime(ContainerId),
    KillOverdue(ContainerId),
    /// The record of the kill, at this position of the log, has waited for the disk.
    KillUnwritten(ContainerId, Lsn),
    /// The record of the kill of an executor's task, at this position of the log, has waited for the disk.
    KillUntold(Arc<TaskKey>, Lsn),
    /// The next batch of tasks for an executor is due.
    Deliveries(ContainerId),
    ExecutorRegistration(ContainerId),
    ExecutorShutdown(ContainerId),
    Probe(ContainerId, CheckKind),
    /// The executors recovered after a restart must have come back.
    ExecutorsBack,
    /// The acknowledgements that an unregistering agent waits for are missing.
    Unregister,
    /// The exit of the process has waited for the disk.
    ExitUnwritten,
    /// The disk has been silent for as long as the operator allows.
    DiskTimeout,
}

impl Timer {
    /// The container that the timer belongs to.
    fn container(&self) -> Option<&ContainerId> {
        match self {
            Self::CompletionTime(container)
            | Self::KillOverdue(container)
            | Self::KillUnwritten(container, _)
            | Self::Deliveries(container)
            | Self::ExecutorRegistration(container)
            | Self::ExecutorShutdown(container)
            | Self::Probe(container, _) => Some(container),
            Self::Connect(_)
            | Self::RegistrationTimeout(_)
            | Self::PingTimeout(_)
            | Self::KillUntold(..)
            | Self::ExecutorsBack
            | Self::ExitUnwritten
            | Self::DiskTimeout
            | Self::Unregister => None,
        }
    }

    /// Whether the deadline is that of a peer, which may have met it during a pause.
    pub(super) fn waits_for_others(&self) -> bool {
        match self {
            Self::RegistrationTimeout(_)
            | Self::PingTimeout(_)
            | Self::KillOverdue(_)
            | Self::ExecutorRegistration(_)
            | Self::ExecutorShutdown(_)
            | Self::ExecutorsBack
            | Self::Unregister => true,
            Self::Connect(_)
            | Self::ExitUnwritten
            | Self::DiskTimeout
            | Self::CompletionTime(_)
            | Self::KillUnwritten(..)
            | Self::KillUntold(..)
            | Self::Deliveries(_)
            | Self::Probe(..) => false,
        }
    }

    /// Whether the timer kills or destroys a container.
    pub(super) fn ends_a_container(&self) -> bool {
        matches!(self, Self::KillOverdue(_) | Self::ExecutorShutdown(_))
    }
}

/// Pending timers, the earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pending: BTreeSet<(Moment, Timer)>,
    of_containers: BTreeMap<ContainerId, BTreeSet<(Moment, Timer)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Moment, timer: Timer) {
        if let Some(container) = timer.container() {
            let own = self.of_containers.entry(container.clone()).or_default();
            own.insert((at, timer.clone()));
        }
        self.pending.insert((at, timer));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.pending.first().map(|(at, _)| *at)
    }

    /// Removes the next timer that is due.
    pub(super) fn pop(&mut self, now: Moment) -> Option<Timer> {
        let entry = self.pending.pop_first()?;
        if entry.0 > now {
            self.pending.insert(entry);
            return None;
        }
        if let Some(container) = entry.1.container()
            && let Some(own) = self.of_containers.get_mut(container)
        {
            own.remove(&entry);
            if own.is_empty() {
                self.of_containers.remove(container);
            }
        }
        Some(entry.1)
    }

    /// Removes the timers of a container that has ended.
    pub(super) fn remove_container(&mut self, container: &ContainerId) {
        for entry in self.of_containers.remove(container).unwrap_or_default() {
            self.pending.remove(&entry);
        }
    }

    /// Removes a timer that belongs to no container.
    pub(super) fn remove(&mut self, timer: &Timer) {
        self.pending.retain(|(_, pending)| pending != timer);
    }

    /// Extends the deadlines selected by `waits` after a pause, at least until `least`.
    pub(super) fn extend(
        &mut self,
        lasted: Duration,
        least: Moment,
        waits: impl Fn(&Timer) -> bool,
    ) {
        self.of_containers.clear();
        for (at, timer) in std::mem::take(&mut self.pending) {
            let at = match waits(&timer) {
                true => (at + lasted).max(least),
                false => at,
            };
            self.set(at, timer);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_timers_end_with_it() {
        let id = |name| ContainerId::new(name).expect("an id");
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let mut timers = Timers::default();
        timers.set(at(9), Timer::CompletionTime(id("a")));
        timers.set(at(1), Timer::KillOverdue(id("a")));
        timers.set(at(2), Timer::KillOverdue(id("b")));
        timers.set(at(3), Timer::Unregister);
        assert_eq!(timers.pop(at(0)), None);
        assert_eq!(timers.pop(at(1)), Some(Timer::KillOverdue(id("a"))));
        timers.extend(Duration::from_secs(4), at(5), Timer::waits_for_others);
        timers.remove_container(&id("a"));
        timers.remove_container(&id("a"));
        assert_eq!((timers.len(), timers.next()), (2, Some(at(6))));
        assert_eq!(timers.pop(at(9)), Some(Timer::KillOverdue(id("b"))));
        assert_eq!(timers.pop(at(9)), Some(Timer::Unregister));
        assert!(timers.of_containers.is_empty() && timers.pop(at(9)).is_none());
    }
}
