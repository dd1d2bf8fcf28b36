//! Detects interference with the processes of a container: a stopped supervisor, or a task moved out of its groups.
//!
//! Runs at each comparison of limits. Blocking. Invariant: each interference is logged when it begins, and again only
//! after it has ended; nothing is changed.

use std::sync::atomic::{AtomicU64, Ordering};

use meseta_isolators::{ContainerName, Interference};
use meseta_resources::ContainerId;
use tracing::{info, warn};

use super::{Containerizer, LiveContainer};

/// The number of interferences found.
#[derive(Debug, Default)]
pub(crate) struct InterferenceCounters {
    supervisors_stopped: AtomicU64,
    processes_moved: AtomicU64,
}

/// Inspects the processes of a running container, unless a change of the container is in progress.
pub(super) fn look(containerizer: &Containerizer, live: &LiveContainer) {
    let Ok(mut applied) = live.change_lock.try_lock() else {
        return;
    };
    let Ok(name) = ContainerName::new(live.container.as_str()) else {
        return;
    };
    let containers = containerizer.containers();
    let found = containers.interference(&name, &live.supervisor);
    let counters = &containerizer.inner.interference;
    counters.note(&live.container, &applied.interference, &found);
    applied.interference = found;
}

impl InterferenceCounters {
    /// The number of times that a supervisor was found stopped.
    pub(crate) fn supervisors_stopped(&self) -> u64 {
        self.supervisors_stopped.load(Ordering::Relaxed)
    }

    /// The number of times that a process was found outside its container's groups.
    pub(crate) fn processes_moved(&self) -> u64 {
        self.processes_moved.load(Ordering::Relaxed)
    }

    fn note(&self, container: &ContainerId, known: &Interference, found: &Interference) {
        match (known.supervisor_stopped, found.supervisor_stopped) {
            (false, true) => {
                warn!(
                    container_id = %container,
                    "the supervisor of a container is stopped (SIGSTOP): the agent does not \
                     notice the end of the task before the supervisor gets SIGCONT"
                );
                self.supervisors_stopped.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => info!(container_id = %container, "the supervisor runs again"),
            _ => {}
        }
        if let (None, Some(outside)) = (&known.outside, &found.outside) {
            warn!(
                container_id = %container, pid = outside.pid, group = outside.group,
                "a process of a container was moved out of the container's groups: their limits \
                 and counters do not include the process"
            );
            self.processes_moved.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use meseta_isolators::Outside;

    use super::*;

    #[test]
    fn interference_is_logged_once_per_change() {
        let counters = InterferenceCounters::default();
        let container = ContainerId::new("c").expect("an id");
        let moved = |pid| Outside {
            pid,
            group: "memory:/".to_owned(),
        };
        let mut known = Interference::default();
        for (supervisor_stopped, outside, expected) in [
            (false, None, (0, 0)),
            (true, None, (1, 0)),
            (true, Some(moved(1)), (1, 1)),
            (false, Some(moved(2)), (1, 1)),
            (true, None, (2, 1)),
            (false, Some(moved(1)), (2, 2)),
        ] {
            let found = Interference {
                supervisor_stopped,
                outside,
            };
            counters.note(&container, &known, &found);
            known = found;
            let counted = (counters.supervisors_stopped(), counters.processes_moved());
            assert_eq!(counted, expected);
        }
    }
}
