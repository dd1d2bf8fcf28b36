//! The resource limits at the start of a task, independent of those of the agent.
//!
//! The task applies [`clean_limits`] before the limits that it requested. Pure. Soft limits are the kernel's initial ones;
//! hard limits are the agent's own, by which an operator bounds all tasks. Two kinds are rights, which no task inherits; core
//! files are the agent's matter.

/// The kernel's initial soft limit on stacks.
const STACK_BYTES: u64 = 8 << 20;
/// The kernel's initial limit on locked memory, since Linux 5.16.
const LOCKED_BYTES: u64 = 8 << 20;
/// The number of descriptors that every program supports: the limit of `select`.
const FILES: u64 = 1_024;
/// The limit on queued signals. The kernel counts them for all processes of a user together, so that a task with the agent's
/// own limit could fill the queue of root's supervisors.
const SIGNALS_MAX: u64 = 4_096;

enum Clean {
    /// The soft limit equals the hard one.
    Hard,
    /// This soft limit, or the hard one if that is lower.
    Soft(u64),
    /// The task gets no right at all.
    None,
    /// Half of the agent's limit.
    Queue,
}

const CLEAN: [(u32, Clean); 15] = [
    (libc::RLIMIT_CPU, Clean::Hard),
    (libc::RLIMIT_FSIZE, Clean::Hard),
    (libc::RLIMIT_DATA, Clean::Hard),
    (libc::RLIMIT_STACK, Clean::Soft(STACK_BYTES)),
    (libc::RLIMIT_RSS, Clean::Hard),
    (libc::RLIMIT_NPROC, Clean::Hard),
    (libc::RLIMIT_NOFILE, Clean::Soft(FILES)),
    (libc::RLIMIT_MEMLOCK, Clean::Soft(LOCKED_BYTES)),
    (libc::RLIMIT_AS, Clean::Hard),
    (libc::RLIMIT_LOCKS, Clean::Hard),
    (libc::RLIMIT_SIGPENDING, Clean::Queue),
    (libc::RLIMIT_MSGQUEUE, Clean::Hard),
    (libc::RLIMIT_NICE, Clean::None),
    (libc::RLIMIT_RTPRIO, Clean::None),
    (libc::RLIMIT_RTTIME, Clean::Hard),
];

/// The resource, soft and hard limit of each kind, from this process's hard limit.
pub(super) fn clean_limits(
    hard_limit: impl Fn(u32) -> Option<u64>,
) -> impl Iterator<Item = [u64; 3]> {
    CLEAN.iter().filter_map(move |(resource, clean)| {
        let hard = hard_limit(*resource)?;
        let (soft, hard) = match clean {
            Clean::Hard => (hard, hard),
            Clean::Soft(soft) => ((*soft).min(hard), hard),
            Clean::None => (0, 0),
            Clean::Queue => {
                let half = SIGNALS_MAX.min(hard / 2);
                (half, half)
            }
        };
        Some([u64::from(*resource), soft, hard])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_stay_within_hard_limits() {
        let at = |hard: u64, resource: u32| {
            let mut limits = clean_limits(|_| Some(hard));
            let found = limits.find(|[one, ..]| *one == u64::from(resource));
            found.map(|[_, soft, hard]| (soft, hard))
        };
        let endless = u64::MAX;
        for (resource, hard, expected) in [
            (libc::RLIMIT_STACK, endless, Some((8 << 20, endless))),
            (libc::RLIMIT_STACK, 4096, Some((4096, 4096))),
            (libc::RLIMIT_NPROC, 500, Some((500, 500))),
            (libc::RLIMIT_MEMLOCK, 65_536, Some((65_536, 65_536))),
            (libc::RLIMIT_NOFILE, 1 << 20, Some((1_024, 1 << 20))),
            (libc::RLIMIT_FSIZE, endless, Some((endless, endless))),
            (libc::RLIMIT_SIGPENDING, 94_000, Some((4_096, 4_096))),
            (libc::RLIMIT_SIGPENDING, 41, Some((20, 20))),
            (libc::RLIMIT_RTPRIO, 99, Some((0, 0))),
            (libc::RLIMIT_NICE, 40, Some((0, 0))),
            (libc::RLIMIT_CORE, endless, None),
        ] {
            assert_eq!(at(hard, resource), expected, "{resource} of {hard}");
        }
        assert_eq!(clean_limits(|_| None).count(), 0);
    }
}
