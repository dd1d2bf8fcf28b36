//! Limits that tasks do not inherit from the agent: on descriptors, and on core files.
//!
//! The agent takes all descriptors that it may have; programs that close every possible one, or hold one byte
//! for each, suffer from a limit of a million, and those that use `select` break above 1,024. A core file holds
//! all that a task knows, and goes where the machine's pattern says: a task has one only if it asks.

use meseta_isolators::Rlimit;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// `RLIMIT_NOFILE`.
const NOFILE: u32 = 7;
/// `RLIMIT_CORE`.
const CORE: u32 = 4;
/// What a task begins with, and how far it may raise that, unless it asks.
const TASK_SOFT: u64 = 1_024;
const TASK_HARD: u64 = 65_536;

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
