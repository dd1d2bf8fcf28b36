//! Limits on descriptors: the agent takes all that it may have, and its tasks do not inherit that.
//!
//! Programs that close every possible descriptor, or hold one byte for each, suffer from a limit of a
//! million; those that use `select` break above 1,024.

use meseta_isolators::Rlimit;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// `RLIMIT_NOFILE`.
const NOFILE: u32 = 7;
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

/// The task's limits, with those on descriptors that it did not ask for.
pub(super) fn with_task_limit(rlimits: Vec<Rlimit>) -> Vec<Rlimit> {
    bounded(rlimits, getrlimit(Resource::Nofile).maximum)
}

fn bounded(mut rlimits: Vec<Rlimit>, own_hard: Option<u64>) -> Vec<Rlimit> {
    if rlimits.iter().all(|limit| limit.resource != NOFILE) {
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
        assert_eq!(bounded(Vec::new(), Some(1 << 20)), [nofile(1_024, 65_536)]);
        assert_eq!(bounded(Vec::new(), None), [nofile(1_024, 65_536)]);
        assert_eq!(bounded(Vec::new(), Some(512)), [nofile(512, 512)]);
        let asked = vec![nofile(9, 10)];
        assert_eq!(bounded(asked.clone(), Some(1 << 20)), asked);
    }
}
