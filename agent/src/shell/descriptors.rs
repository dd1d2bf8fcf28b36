//! Limits that tasks do not inherit from the agent: on descriptors, and on core files.
//!
//! The agent takes all descriptors that it may have; programs that close every possible one, or hold one byte
//! for each, suffer from a limit of a million, and those that use `select` break above 1,024. A core file holds
//! all that a task knows, and goes where the machine's pattern says: a task has one only if it asks.

use meseta_isolators::Rlimit;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// The value of `RLIMIT_NOFILE`.
const NOFILE: u32 = 7;
/// The value of `RLIMIT_CORE`.
const CORE: u32 = 4;
/// What a task begins with, and how far it may raise that, unless it asks.
const TASK_SOFT: u64 = 1_024;
const TASK_HARD: u64 = 65_536;

/// Connections at a time, however many descriptors there are.
const CONNECTIONS_MAX: u64 = 16_384;

/// How many descriptors may be held by what grows with the number of clients and of containers. An eighth each is
/// for control files that are kept open and for watching containers, half is for connections; the rest is left
/// for what must always go on: kills, ends, checkpoints, launches.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct DescriptorShares {
    /// Connections to the agent.
    pub(crate) connections: usize,
    /// Supervisors, and limits, that are watched; further ones are looked at now and then.
    pub(crate) watched: usize,
}

impl DescriptorShares {
    /// Of what this process may have.
    pub(crate) fn of_process() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn of(limit: u64) -> Self {
        let count = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            connections: count((limit / 2).min(CONNECTIONS_MAX)),
            watched: count(limit / 8),
        }
    }
}

/// What of so many descriptors may be kept open to be read again and again. `others_max` are more than anything
/// else ever takes.
pub(crate) fn kept_open(limit: u64, others_max: u64) -> usize {
    let kept = limit - others_max.min(limit - limit / 8);
    usize::try_from(kept).unwrap_or(usize::MAX)
}

/// Raises this process's soft limit to its hard one: control files of containers stay open.
pub(crate) fn take_all() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "the limit on descriptors stays low; sampling is dearer");
    }
}

/// The task's limits, with those on descriptors and core files that it did not ask for.
pub(super) fn with_usual_limits(rlimits: Vec<Rlimit>) -> Vec<Rlimit> {
    bounded(rlimits, getrlimit(Resource::Nofile).maximum)
}

fn bounded(mut rlimits: Vec<Rlimit>, own_hard: Option<u64>) -> Vec<Rlimit> {
    let asks = |resource| rlimits.iter().any(|limit| limit.resource == resource);
    let (asks_files, asks_core) = (asks(NOFILE), asks(CORE));
    if !asks_core {
        rlimits.push(Rlimit {
            resource: CORE,
            soft: 0,
            hard: 0,
        });
    }
    if !asks_files {
        let hard = TASK_HARD.min(own_hard.unwrap_or(u64::MAX));
        rlimits.push(Rlimit {
            resource: NOFILE,
            soft: TASK_SOFT.min(hard),
            hard,
        });
    }
    rlimits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_there_is_a_quarter_is_left_for_what_must_go_on() {
        for limit in [64, 256, 1_024, 4_096, 20_000, 1 << 20] {
            let DescriptorShares {
                connections,
                watched,
            } = DescriptorShares::of(limit);
            let held = connections + watched + kept_open(limit, 7_000);
            let limit = usize::try_from(limit).expect("few");
            assert!(held <= limit - limit / 4 || limit >= 20_000, "{limit}");
            assert!(connections >= 32 && watched >= 8);
        }
        assert_eq!(DescriptorShares::of(1 << 20).connections, 16_384);
        assert_eq!(kept_open(20_000, 7_000), 13_000);
    }

    #[test]
    fn a_task_gets_the_usual_limit_unless_it_asks() {
        let nofile = |soft, hard| Rlimit {
            resource: NOFILE,
            soft,
            hard,
        };
        let core = |soft, hard| Rlimit {
            resource: CORE,
            soft,
            hard,
        };
        let usual = [core(0, 0), nofile(1_024, 65_536)];
        assert_eq!(bounded(Vec::new(), Some(1 << 20)), usual);
        assert_eq!(bounded(Vec::new(), None), usual);
        let few = [core(0, 0), nofile(512, 512)];
        assert_eq!(bounded(Vec::new(), Some(512)), few);
        let asked = vec![nofile(9, 10), core(1 << 20, u64::MAX)];
        assert_eq!(bounded(asked.clone(), Some(1 << 20)), asked);
    }
}
