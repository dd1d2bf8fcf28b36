//! Detects the machine's resources that `--resources` does not name.
//!
//! The formulas are pure and Mesos's; the code that reads the machine is a few lines below them. A value that cannot be
//! read is replaced by the documented fallback, with a warning. Invariant: detected resources have the default role,
//! like resources in `--resources` without a role.

use std::path::Path;

use meseta_resources::{
    Range, Ranges, Reservation, Resource, ResourceName, Resources, Role, Scalar, Value,
};
use tracing::warn;

use crate::failure::Failure;

const MEGABYTE: u64 = 1024 * 1024;
/// Memory reserved for the machine itself if it has at least twice as much, in MB.
const MEM_RESERVE_MB: u64 = 1024;
/// The assumed memory of a machine whose memory cannot be read, in MB.
const MEM_FALLBACK_MB: u64 = 1024;
/// Disk space reserved for the machine itself if it has at least twice as much, in MB.
const DISK_RESERVE_MB: u64 = 5 * 1024;
const DISK_FALLBACK_MB: u64 = 10 * 1024;
/// Ports offered if none are named.
const PORTS: (u64, u64) = (31000, 32000);

/// The values read from a machine; `None` where they cannot be read.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Machine {
    /// The number of processors that are online.
    pub(crate) cpus: Option<u64>,
    /// The machine's memory, in bytes.
    pub(crate) mem_bytes: Option<u64>,
    /// Size of the work directory's file system in bytes.
    pub(crate) disk_bytes: Option<u64>,
}

impl Machine {
    /// Reads the values of this machine.
    pub(crate) fn read(work_dir: &Path) -> Self {
        Self {
            cpus: noted("the processors online", online_cpus()),
            mem_bytes: noted("the memory", total_memory()),
            disk_bytes: noted("the size of the work directory's disk", disk_size(work_dir)),
        }
    }
}

fn noted(what: &str, figure: Result<u64, Failure>) -> Option<u64> {
    figure
        .map_err(String::from)
        .inspect_err(|error| warn!(what, error, "detection failed, assuming a small machine"))
        .ok()
}

fn online_cpus() -> Result<u64, Failure> {
    let path = "/sys/devices/system/cpu/online";
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::new(format!("{path}: {error}")))?;
    let count = count_cpu_list(&text);
    count.ok_or_else(|| Failure::new(format!("{path}: {text:?} is not a list of processors")))
}

/// Counts a kernel list of processors: `0-3,5`.
fn count_cpu_list(text: &str) -> Option<u64> {
    let mut count = 0_u64;
    for part in text.trim().split(',') {
        let (begin, end) = part.split_once('-').unwrap_or((part, part));
        let (begin, end): (u64, u64) = (begin.parse().ok()?, end.parse().ok()?);
        count = count.checked_add(end.checked_sub(begin)?.checked_add(1)?)?;
    }
    Some(count)
}

fn total_memory() -> Result<u64, Failure> {
    use procfs::Current as _;
    let info = procfs::Meminfo::current().map_err(|error| Failure::new(error.to_string()))?;
    Ok(info.mem_total)
}

fn disk_size(work_dir: &Path) -> Result<u64, Failure> {
    let stat = rustix::fs::statvfs(work_dir).map_err(|error| Failure::new(error.to_string()))?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Adds the resources that are not named to `given`, reserved to the default role unless that is `*`. An explicit zero
/// counts as named.
pub(crate) fn complete(
    mut given: Resources,
    named: &[String],
    machine: Machine,
    role: &Role,
) -> Resources {
    let missing = |name: &str| !named.iter().any(|given| given == name);
    let detected = [
        ("cpus", machine.cpus.unwrap_or(1)),
        ("mem", mem_mb(machine.mem_bytes)),
        ("disk", disk_mb(machine.disk_bytes)),
    ];
    for (name, amount) in detected {
        if missing(name) && amount > 0 {
            let millis = i64::try_from(amount)
                .unwrap_or(i64::MAX)
                .saturating_mul(1000);
            let amount = Value::Scalar(Scalar::from_millis(millis));
            given.extend(resource(name, amount, role));
        }
    }
    if missing("ports")
        && let Ok(range) = Range::new(PORTS.0, PORTS.1)
    {
        let ranges = Ranges::new(vec![range]);
        given.extend(resource("ports", Value::Ranges(ranges), role));
    }
    given
}

/// Keeps an earlier detected amount where less is detected now, as long as the difference is at most half of the
/// machine's own reserve. Another kernel takes a little more for itself, and the running tasks were promised the rest.
pub(crate) fn keep_detected(
    mut detected: Resources,
    named: &[String],
    before: &Resources,
    role: &Role,
) -> Resources {
    for (name, reserve_mb) in [("mem", MEM_RESERVE_MB), ("disk", DISK_RESERVE_MB)] {
        let millis = |resources: &Resources| resources.scalar(name).map_or(0, Scalar::millis);
        let (old, new) = (millis(before), millis(&detected));
        let lost = old.saturating_sub(new);
        let most = i64::try_from(reserve_mb * 1000 / 2)
            .unwrap_or(0)
            .min(old / 4);
        if lost > 0 && lost <= most && !named.iter().any(|given| given == name) {
            warn!(
                name,
                lost_mb = lost / 1000,
                "the machine has slightly fewer resources than before; keeping the promised \
                 resources"
            );
            let lost = Value::Scalar(Scalar::from_millis(lost));
            detected.extend(resource(name, lost, role));
        }
    }
    detected
}

fn resource(name: &str, value: Value, role: &Role) -> Option<Resource> {
    let name = match name {
        "cpus" => ResourceName::cpus(),
        "mem" => ResourceName::mem(),
        "disk" => ResourceName::disk(),
        _ => ResourceName::ports(),
    };
    let resource = Resource::plain(name, value);
    if role.is_star() {
        return Some(resource);
    }
    // Only an inner reservation could prevent a static one, and a new resource has none.
    let reservation = Reservation::fixed(role.clone());
    resource.push_reservation(reservation).ok()
}

fn mem_mb(bytes: Option<u64>) -> u64 {
    let Some(total) = bytes.map(|bytes| bytes / MEGABYTE) else {
        return MEM_FALLBACK_MB;
    };
    if total >= 2 * MEM_RESERVE_MB {
        total - MEM_RESERVE_MB
    } else {
        total / 2
    }
}

fn disk_mb(bytes: Option<u64>) -> u64 {
    let Some(total) = bytes.map(|bytes| bytes / MEGABYTE) else {
        return DISK_FALLBACK_MB;
    };
    if total >= 2 * DISK_RESERVE_MB {
        total - DISK_RESERVE_MB
    } else {
        total / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1024 * MEGABYTE;

    #[test]
    fn smaller_detected_memory_allows_restart() {
        let of = |mem_bytes, named: &[String]| {
            let machine = Machine {
                cpus: Some(2),
                mem_bytes: Some(mem_bytes),
                disk_bytes: Some(40 * GB),
            };
            complete(Resources::new(), named, machine, &Role::star())
        };
        let keep_detected = |detected, named: &[String], before: &Resources| {
            keep_detected(detected, named, before, &Role::star())
        };
        let before = of(16 * GB, &[]);
        let after = |lost_mb| of(16 * GB - lost_mb * MEGABYTE, &[]);
        assert_eq!(keep_detected(after(60), &[], &before), before);
        assert_eq!(keep_detected(after(512), &[], &before), before);
        // With a missing memory module it is another machine, and more than before is simply more.
        assert_eq!(keep_detected(after(513), &[], &before), after(513));
        let more = of(17 * GB, &[]);
        assert_eq!(keep_detected(more.clone(), &[], &before), more);
        // An amount named by the operator is final.
        let named = ["mem".to_owned()];
        assert_eq!(keep_detected(after(60), &named, &before), after(60));
        assert_eq!(keep_detected(after(60), &[], &Resources::new()), after(60));
    }

    #[test]
    fn memory_leaves_a_gigabyte_or_half() {
        assert_eq!(mem_mb(Some(8 * GB)), 7 * 1024);
        assert_eq!(mem_mb(Some(2 * GB)), 1024);
        assert_eq!(mem_mb(Some(2 * GB - 1)), 2047 / 2);
        assert_eq!(mem_mb(Some(GB + 3 * MEGABYTE)), 1027 / 2);
        assert_eq!(mem_mb(None), 1024);
    }

    #[test]
    fn disk_leaves_five_gigabytes_or_half() {
        assert_eq!(disk_mb(Some(100 * GB)), 95 * 1024);
        assert_eq!(disk_mb(Some(10 * GB)), 5 * 1024);
        assert_eq!(disk_mb(Some(10 * GB - 1)), 10239 / 2);
        assert_eq!(disk_mb(None), 10 * 1024);
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpu_list("0-1\n"), Some(2));
        assert_eq!(count_cpu_list("0-3,5,8-9\n"), Some(7));
        assert_eq!(count_cpu_list("0\n"), Some(1));
        for bad in ["", "x", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count_cpu_list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn named_resources_are_not_detected() {
        let machine = Machine {
            cpus: Some(4),
            mem_bytes: Some(8 * GB),
            disk_bytes: Some(100 * GB),
        };
        let all = complete(Resources::default(), &[], machine, &Role::star());
        assert_eq!(all.cpus(), Some(Scalar::from_millis(4000)));
        assert_eq!(all.mem(), Some(Scalar::from_millis(7_168_000)));
        assert_eq!(all.disk(), Some(Scalar::from_millis(97_280_000)));
        assert!(all.ports().is_some());
        let named = ["cpus".to_owned(), "ports".to_owned()];
        let some = complete(Resources::default(), &named, machine, &Role::star());
        assert_eq!(some.cpus(), None);
        assert!(some.ports().is_none());
        assert!(some.mem().is_some());
    }
    /// Regression: on a machine for one role, everything that `--resources` did not name was offered to everybody.
    #[test]
    fn detected_resources_get_default_role() {
        let ads = Role::new("ads").unwrap();
        let machine = |mem_bytes| Machine {
            cpus: Some(4),
            mem_bytes: Some(mem_bytes),
            disk_bytes: Some(100 * GB),
        };
        let before = complete(Resources::new(), &[], machine(16 * GB), &ads);
        assert_eq!(before.iter().count(), 4);
        assert_eq!(before.reserved(Some(&ads)), before);
        // Also the memory that a newer kernel takes for itself.
        let after = complete(
            Resources::new(),
            &[],
            machine(16 * GB - 60 * MEGABYTE),
            &ads,
        );
        assert_ne!(after, before);
        assert_eq!(keep_detected(after, &[], &before, &ads), before);
        let named = ["cpus".to_owned()];
        let given = Resources::parse("cpus:4", &Role::star()).unwrap();
        let all = complete(given.clone(), &named, machine(16 * GB), &ads);
        assert_eq!(all.unreserved(), given, "what is given says whose it is");
    }
}
