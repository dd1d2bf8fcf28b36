//! posix/rlimits: limits per process, as the task asked.
//!
//! The limits of two kinds are rights: to run before all others, and to raise one's priority. They are given
//! to whom SYS_NICE would be.

use super::{Isolator, TaskIsolation};
use crate::containers::ContainerSpec;
use crate::launcher::{LaunchIsolation, Rlimit};

/// Real-time priorities begin above this.
const RTPRIO_NONE: u64 = 0;
/// `RLIMIT_NICE` counts from 20 downwards: this is as nice as everybody.
const NICE_USUAL: u64 = 20;

/// What a limit gives that only whoever has SYS_NICE may have.
fn priority(limit: &Rlimit) -> Option<&'static str> {
    let most = limit.soft.max(limit.hard);
    match limit.resource {
        libc::RLIMIT_RTPRIO if most > RTPRIO_NONE => Some("RLMT_RTPRIO"),
        libc::RLIMIT_NICE if most > NICE_USUAL => Some("RLMT_NICE"),
        _ => None,
    }
}

#[derive(Debug)]
pub(super) struct Rlimits;

impl Isolator for Rlimits {
    fn name(&self) -> &'static str {
        "posix/rlimits"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.rlimits.extend(&spec.rlimits);
    }

    fn launch_task(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
        launch: &mut LaunchIsolation,
    ) -> Result<(), String> {
        // Without a user of its own it is the agent's, who cannot give what it has not.
        let is_roots = spec.credentials.as_ref().is_none_or(|user| user.uid == 0);
        let may = is_roots || task.capabilities.granted.has("SYS_NICE");
        if let Some(name) = spec.rlimits.iter().find_map(priority).filter(|_| !may) {
            return Err(format!(
                "{name} lets processes run before those of other users, and this container is not \
                 root's: leave it out, or have the operator grant SYS_NICE to its user or role \
                 (--granted_capabilities)"
            ));
        }
        self.launch(spec, launch);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_priorities_are_told_from_others() {
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
