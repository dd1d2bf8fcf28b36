//! The resource limits of a task: the requested ones, and default limits on descriptors and core files.
//!
//! The agent uses all descriptors that it may have. Programs that close every possible descriptor, or hold a byte for
//! each, suffer from a limit of a million, and programs that use `select` break above 1,024. A core file contains all
//! data of a task, and its path follows the machine's pattern: a task gets one only if it requests that.

use meseta_isolators::Rlimit;
use meseta_proto::Invalid;
use meseta_proto::mesos::v1::r_limit_info::r_limit::Type;
use rustix::process::{Resource, getrlimit};

use crate::core::LaunchPlan;

/// The value of `RLIMIT_NOFILE`.
const NOFILE: u32 = 7;
/// The value of `RLIMIT_CORE`.
const CORE: u32 = 4;
/// The initial limit of a task that requests none, and the maximum to which it may raise that limit.
const TASK_SOFT: u64 = 1_024;
const TASK_HARD: u64 = 65_536;

/// The requested limits of a plan, or the reason why they are invalid.
pub(super) fn rlimits_of(plan: &LaunchPlan) -> Result<Vec<Rlimit>, Invalid> {
    let container = plan.container_info();
    let Some(info) = container.and_then(|container| container.rlimit_info.as_ref()) else {
        return Ok(Vec::new());
    };
    let mut rlimits = Vec::with_capacity(info.rlimits.len());
    for rlimit in &info.rlimits {
        let kind = rlimit.r#type.and_then(|kind| Type::try_from(kind).ok());
        let resource = kind.and_then(rlimit_number);
        let Some(resource) = resource else {
            return Err("a resource limit of an unknown type was requested".into());
        };
        let (soft, hard) = match (rlimit.soft, rlimit.hard) {
            (Some(soft), Some(hard)) => (soft, hard),
            (None, None) => (u64::MAX, u64::MAX),
            _ => return Err("a resource limit needs both its soft and its hard value".into()),
        };
        if soft > hard {
            let name = kind.map_or("a resource limit", |kind| kind.as_str_name());
            let why =
                format!("{name} has the soft limit {soft}, which exceeds the hard limit {hard}");
            return Err(why.into());
        }
        rlimits.push(Rlimit {
            resource,
            soft,
            hard,
        });
    }
    Ok(rlimits)
}

/// The kernel's numbers, which are the same on all supported architectures.
fn rlimit_number(kind: Type) -> Option<u32> {
    Some(match kind {
        Type::Unknown => return None,
        Type::RlmtCpu => 0,
        Type::RlmtFsize => 1,
        Type::RlmtData => 2,
        Type::RlmtStack => 3,
        Type::RlmtCore => 4,
        Type::RlmtRss => 5,
        Type::RlmtNproc => 6,
        Type::RlmtNofile => 7,
        Type::RlmtMemlock => 8,
        Type::RlmtAs => 9,
        Type::RlmtLocks => 10,
        Type::RlmtSigpending => 11,
        Type::RlmtMsgqueue => 12,
        Type::RlmtNice => 13,
        Type::RlmtRtprio => 14,
        Type::RlmtRttime => 15,
    })
}

/// Adds the default limits on descriptors and core files, unless the task requested them.
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
    fn task_gets_default_limit_unless_set() {
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
