//! posix/rlimits: limits per process, as requested by the task.
//!
//! Two kinds of limits are rights: scheduling before all others, and raising one's priority. A container gets them only if it
//! could have SYS_NICE, and hard limits above the agent's own only if it could have SYS_RESOURCE.

use super::{ContainerSpec, Isolator};
use crate::isolator::capabilities::CapabilitySet;
use crate::launcher::{LaunchIsolation, Rlimit};
use crate::sys;

/// The value above which real-time priorities begin.
const RTPRIO_NONE: u64 = 0;
/// The usual niceness: `RLIMIT_NICE` counts from 20 downwards.
const NICE_USUAL: u64 = 20;

/// The name of the limit, if its value is a right that requires SYS_NICE.
fn priority(limit: &Rlimit) -> Option<&'static str> {
    let most = limit.soft.max(limit.hard);
    match limit.resource {
        libc::RLIMIT_RTPRIO if most > RTPRIO_NONE => Some("RLMT_RTPRIO"),
        libc::RLIMIT_NICE if most > NICE_USUAL => Some("RLMT_NICE"),
        _ => None,
    }
}

/// The reason why a limit is higher than its container may request: a process with lower limits than the agent cannot raise
/// them without a capability.
fn excess(
    limit: &Rlimit,
    granted: CapabilitySet,
    own_hard: impl Fn(u32) -> Option<u64>,
) -> Option<String> {
    // The disk bounds the size of a task's core file.
    if limit.resource == libc::RLIMIT_CORE || granted.has("SYS_RESOURCE") {
        return None;
    }
    if limit.resource == libc::RLIMIT_MEMLOCK && granted.has("IPC_LOCK") {
        return None;
    }
    // The kernel refuses a resource without such a limit.
    let own = own_hard(limit.resource)?;
    (limit.hard > own).then(|| {
        format!(
            "the hard limit {} of resource {} is above the agent's own, {own}, and this container is not \
             root's: ask for no more, raise the agent's, or have the operator grant SYS_RESOURCE to its user \
             or role (--granted_capabilities)",
            limit.hard, limit.resource
        )
    })
}

#[derive(Debug)]
pub(super) struct Rlimits;

impl Isolator for Rlimits {
    fn name(&self) -> &'static str {
        "posix/rlimits"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        let granted = spec.isolation.capabilities.granted;
        // Without a user of its own the container runs as the agent's user, who cannot grant missing rights.
        let is_roots = spec.credentials.as_ref().is_none_or(|user| user.uid == 0);
        let may = is_roots || granted.has("SYS_NICE");
        if let Some(name) = spec.rlimits.iter().find_map(priority).filter(|_| !may) {
            return Err(format!(
                "{name} lets processes run before those of other users, and this container is not \
                 root's: leave it out, or have the operator grant SYS_NICE to its user or role \
                 (--granted_capabilities)"
            ));
        }
        if !is_roots {
            let mut limits = spec.rlimits.iter();
            if let Some(why) = limits.find_map(|limit| excess(limit, granted, sys::hard_limit)) {
                return Err(why);
            }
        }
        launch.rlimits.extend(&spec.rlimits);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_rlimit_is_capped_unless_granted() {
        let limit = |resource, hard| Rlimit {
            resource,
            soft: 1,
            hard,
        };
        let own = |resource| (resource != 999).then_some(1_000);
        let none = CapabilitySet::EMPTY;
        let set = |name| CapabilitySet::from_names([name]).expect("known");
        for (limit, granted, refused) in [
            (limit(libc::RLIMIT_NOFILE, 1_000), none, false),
            (limit(libc::RLIMIT_NOFILE, 1_001), none, true),
            (limit(libc::RLIMIT_MEMLOCK, u64::MAX), none, true),
            (
                limit(libc::RLIMIT_MEMLOCK, u64::MAX),
                set("IPC_LOCK"),
                false,
            ),
            (limit(libc::RLIMIT_NOFILE, u64::MAX), set("IPC_LOCK"), true),
            (
                limit(libc::RLIMIT_NOFILE, u64::MAX),
                set("SYS_RESOURCE"),
                false,
            ),
            (limit(libc::RLIMIT_CORE, u64::MAX), none, false),
            (limit(999, u64::MAX), none, false),
        ] {
            assert_eq!(excess(&limit, granted, own).is_some(), refused, "{limit:?}");
        }
        let files = sys::hard_limit(libc::RLIMIT_NOFILE).expect("there is one");
        assert!(files > 0 && sys::hard_limit(999).is_none());
    }

    #[test]
    fn priority_rlimits_are_recognized() {
        let limit = |resource, soft, hard| Rlimit {
            resource,
            soft,
            hard,
        };
        for (limit, expected) in [
            (limit(libc::RLIMIT_RTPRIO, 0, 0), None),
            (limit(libc::RLIMIT_RTPRIO, 0, 1), Some("RLMT_RTPRIO")),
            (
                limit(libc::RLIMIT_RTPRIO, u64::MAX, u64::MAX),
                Some("RLMT_RTPRIO"),
            ),
            (limit(libc::RLIMIT_NICE, 20, 20), None),
            (limit(libc::RLIMIT_NICE, 20, 21), Some("RLMT_NICE")),
            (limit(libc::RLIMIT_NOFILE, u64::MAX, u64::MAX), None),
        ] {
            assert_eq!(priority(&limit), expected, "{limit:?}");
        }
    }
}
