//! The descriptors of the agent, and their division.
//!
//! The agent uses its full hard limit. Invariant: descriptors whose number grows with clients and containers leave a
//! part to work that must always continue.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// The most connections at a time, for any number of descriptors.
const CONNECTIONS_MAX: u64 = 16_384;

/// The limits for descriptors whose number grows with clients and containers. An eighth each is for open control files
/// and for watching containers, half is for connections. The rest is left for work that must always continue: kills,
/// ends of containers, checkpoints, launches.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct DescriptorShares {
    /// Connections to the agent.
    pub(crate) connections: usize,
    /// Watched supervisors and limits; further ones are polled.
    pub(crate) watched: usize,
}

impl DescriptorShares {
    /// Divides the descriptors of this process.
    pub(crate) fn of_process() -> Self {
        Self::from_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn from_limit(limit: u64) -> Self {
        let count = |share: u64| usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            connections: count((limit / 2).min(CONNECTIONS_MAX)),
            watched: count(limit / 8),
        }
    }
}

/// The number of descriptors for files that stay open for repeated reads. `others_max` is more than all other
/// descriptors.
pub(crate) fn kept_open(limit: u64, others_max: u64) -> usize {
    let kept = limit - others_max.min(limit - limit / 8);
    usize::try_from(kept).unwrap_or(usize::MAX)
}

/// Raises this process's soft limit to its hard limit: control files of containers stay open.
pub(crate) fn take_all() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "failed to raise the limit on descriptors; sampling costs more CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_shares_leave_a_quarter() {
        for limit in [64, 256, 1_024, 4_096, 20_000, 1 << 20] {
            let DescriptorShares {
                connections,
                watched,
            } = DescriptorShares::from_limit(limit);
            let held = connections + watched + kept_open(limit, 7_000);
            let limit = usize::try_from(limit).expect("few");
            assert!(held <= limit - limit / 4 || limit >= 20_000, "{limit}");
            assert!(connections >= 32 && watched >= 8);
        }
        assert_eq!(DescriptorShares::from_limit(1 << 20).connections, 16_384);
        assert_eq!(kept_open(20_000, 7_000), 13_000);
    }
}
