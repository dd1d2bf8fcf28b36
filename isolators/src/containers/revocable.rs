//! All containers with revocable CPUs as one: throttled together, and frozen one by one.
//!
//! They share one parent group, which gets the rest that regular containers leave: lowest weight, and idle where the kernel
//! can (since 5.15). A quota on it binds them all. Invariant: no function here touches a container outside that parent,
//! except [`Containers::freeze`], which touches the named container.

use std::fs;
use std::path::Path;

use super::recovery::names_in;
use super::{ContainerError, Containers};
use crate::cgroup::{
    Controller, GroupDir, Groups, KnobError, KnobWrite, Layout, Version, flat_values, number,
    read_text, subgroups,
};
use crate::demand::Demand;
use crate::identity::ContainerName;
use crate::isolator::cpu::{
    PERIOD_US, QUOTA_MIN_US, SHARES_MAX, SHARES_MIN, SHARES_PER_CPU, WEIGHT_MAX, WEIGHT_MIN,
    WEIGHT_PER_CPU,
};
use crate::shortage::again;

/// v1's quota in each period, and that period.
const QUOTA_FILE: &str = "cpu.cfs_quota_us";
const PERIOD_FILE: &str = "cpu.cfs_period_us";

/// A file in a container's runtime folder that records a freeze by the agent.
const FROZEN_FILE: &str = "frozen";

/// Rounds of lowering quotas below a new ceiling while containers come and go.
const LOWER_ATTEMPTS: u32 = 5;

/// Gives the parent of revocable containers its weight.
pub(super) fn prepare(layout: &Layout, low_priority: bool) -> Result<(), KnobError> {
    let groups = layout.revocable();
    let Some(group) = groups.get(Controller::Cpu) else {
        return Ok(());
    };
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let (file, weight) = match (group.version, low_priority) {
        (Version::V1, true) => ("cpu.shares", SHARES_MIN),
        (Version::V2, true) => ("cpu.weight", WEIGHT_MIN),
        (Version::V1, false) => ("cpu.shares", (SHARES_PER_CPU * processors).min(SHARES_MAX)),
        (Version::V2, false) => ("cpu.weight", (WEIGHT_PER_CPU * processors).min(WEIGHT_MAX)),
    };
    // An idle group refuses a weight.
    let is_idle = number(&group.dir, "cpu.idle") == Some(1);
    let idle = |value: u64| KnobWrite::optional(Controller::Cpu, "cpu.idle", value);
    if is_idle && !low_priority {
        groups.write(&idle(0))?;
    }
    if !(is_idle && low_priority) {
        groups.write(&KnobWrite::new(Controller::Cpu, file, weight))?;
    }
    if low_priority {
        groups.write(&idle(1))?;
    }
    Ok(())
}

/// The lowest quota above a container's group on v1, in our period: the kernel refuses a higher quota below it, even if
/// groups in between have none.
pub(super) fn ceiling(groups: &Groups) -> Option<u64> {
    let group = groups.get(Controller::Cpu)?;
    if group.version != Version::V1 {
        return None;
    }
    let above = group.dir.ancestors().skip(1);
    above
        .take_while(|dir| dir.join(QUOTA_FILE).exists())
        .filter_map(|dir| {
            let period = number(dir, PERIOD_FILE).filter(|period| *period > 0)?;
            number(dir, QUOTA_FILE)?
                .checked_mul(PERIOD_US)?
                .checked_div(period)
        })
        .min()
}

/// The memory of a group that the kernel cannot reclaim (v2): everything but files.
fn unreclaimable(dir: &Path) -> Option<u64> {
    let text = read_text(dir, "memory.stat")?;
    let [active, inactive] = flat_values(&text, ["active_file", "inactive_file"]);
    number(dir, "memory.current")?.checked_sub(active?.checked_add(inactive?)?)
}

/// The write that makes the kernel keep a group's memory below this limit. On v2, where a process above the limit sleeps at
/// every allocation, the limit is no less than the unreclaimable memory.
fn memory_ceiling(group: &GroupDir, bytes: Option<u64>) -> KnobWrite {
    let (file, none) = match group.version {
        Version::V1 => ("memory.soft_limit_in_bytes", "-1"),
        Version::V2 => ("memory.high", "max"),
    };
    let floor = match group.version {
        Version::V1 => 0,
        Version::V2 => unreclaimable(&group.dir).unwrap_or(0),
    };
    let value = bytes.map_or_else(|| none.to_owned(), |bytes| bytes.max(floor).to_string());
    KnobWrite::new(Controller::Memory, file, value)
}

impl Containers {
    /// Throttles all containers with revocable CPUs together to so many thousandths of a processor; `None` lifts the throttle.
    /// The containers' own limits are lowered with it where the kernel demands that (v1), and come back with
    /// [`Containers::update`]. False without groups to throttle.
    pub fn throttle_revocable(&self, cpus_millis: Option<u64>) -> Result<bool, KnobError> {
        let groups = self.layout.revocable();
        let Some(group) = groups.get(Controller::Cpu) else {
            return Ok(false);
        };
        let quota = cpus_millis.map(|millis| (PERIOD_US * millis / 1000).max(QUOTA_MIN_US));
        let write = |file, value: String| KnobWrite::new(Controller::Cpu, file, value);
        let new_quota = quota.map(|quota| quota.to_string());
        match group.version {
            Version::V2 => {
                let quota = new_quota.unwrap_or_else(|| "max".to_owned());
                groups.write(&write("cpu.max", format!("{quota} {PERIOD_US}")))?;
            }
            Version::V1 => {
                groups.write(&write(PERIOD_FILE, PERIOD_US.to_string()))?;
                let plan = write(QUOTA_FILE, new_quota.unwrap_or_else(|| "-1".to_owned()));
                let mut outcome = groups.write(&plan);
                for _ in 0..LOWER_ATTEMPTS {
                    let Some(quota) = quota.filter(|_| is_refused(&outcome)) else {
                        break;
                    };
                    lower_below(group, quota)?;
                    outcome = groups.write(&plan);
                }
                outcome?;
            }
        }
        Ok(true)
    }

    /// Makes the kernel keep the memory of all containers with revocable CPUs below this limit by reclaiming, never by killing;
    /// `None` lifts the limit. The containers keep unreclaimable memory. False where the kernel does not support it.
    pub fn limit_revocable_memory(&self, bytes: Option<u64>) -> Result<bool, KnobError> {
        let groups = self.layout.revocable();
        let Some(group) = groups.get(Controller::Memory) else {
            return Ok(false);
        };
        groups.write(&memory_ceiling(group, bytes))?;
        Ok(true)
    }

    /// Freezes all processes of a container, or thaws a container that this method has frozen, in this life of the agent or
    /// before; a container that an operator has frozen stays frozen. False without a group to freeze.
    pub fn freeze(&self, name: &ContainerName, frozen: bool) -> Result<bool, ContainerError> {
        let groups = self.groups(name);
        let Some(group) = groups.get(Controller::Freezer) else {
            return Ok(false);
        };
        if !group.dir.exists() {
            return Err(ContainerError::Unknown(name.clone()));
        }
        let (file, value) = match (group.version, frozen) {
            (Version::V1, true) => ("freezer.state", "FROZEN"),
            (Version::V1, false) => ("freezer.state", "THAWED"),
            (Version::V2, true) => ("cgroup.freeze", "1"),
            (Version::V2, false) => ("cgroup.freeze", "0"),
        };
        let note = self.runtime_dir(name).join(FROZEN_FILE);
        if !frozen && matches!(again(|| note.try_exists()), Ok(false)) {
            return Ok(true);
        }
        let knob = |source| ContainerError::Knob {
            name: name.clone(),
            source,
        };
        if frozen {
            // Written before the freeze: nobody else would thaw the container if the agent crashed in between.
            again(|| fs::write(&note, "")).map_err(|source| {
                knob(KnobError::Write {
                    path: note.clone(),
                    value: String::new(),
                    source,
                })
            })?;
        }
        let written = groups.write(&KnobWrite::new(Controller::Freezer, file, value));
        written.map_err(knob)?;
        if !frozen {
            // A note that stays makes the next start thaw a thawed group, which is harmless.
            let _ = fs::remove_file(&note);
        }
        Ok(true)
    }

    /// Whether a container is frozen; `None` if that is unknown.
    pub fn is_frozen(&self, name: &ContainerName) -> Option<bool> {
        let groups = self.groups(name);
        let group = groups.get(Controller::Freezer)?;
        match group.version {
            Version::V1 => Some(read_text(&group.dir, "freezer.state")?.trim() != "THAWED"),
            Version::V2 => Some(number(&group.dir, "cgroup.freeze")? == 1),
        }
    }

    /// Whether a container of this demand is in the group of revocable containers.
    pub fn is_in_revocable_group(&self, demand: &Demand) -> bool {
        demand.cpus_revocable && !self.layout.revocable_dirs().is_empty()
    }
}

fn is_refused(outcome: &Result<(), KnobError>) -> bool {
    matches!(outcome, Err(KnobError::Write { source, .. }) if source.raw_os_error() == Some(libc::EINVAL))
}

/// Lowers the quota of every container below a parent that gets this quota (v1).
fn lower_below(parent: &GroupDir, quota: u64) -> Result<(), KnobError> {
    let containers = names_in(&parent.dir).unwrap_or_default();
    for name in containers {
        lower(&parent.dir.join(name.as_str()), quota)?;
    }
    Ok(())
}

fn lower(dir: &Path, quota: u64) -> Result<(), KnobError> {
    for child in subgroups(dir) {
        lower(&child.path(), quota)?;
    }
    // -1, which does not parse as such a number, means no quota, and inherits.
    let Some(own) = number(dir, QUOTA_FILE) else {
        return Ok(());
    };
    let period = number(dir, PERIOD_FILE).unwrap_or(PERIOD_US);
    let new_quota = (quota * period / PERIOD_US).max(QUOTA_MIN_US);
    if own <= new_quota {
        return Ok(());
    }
    let path = dir.join(QUOTA_FILE);
    match fs::write(&path, new_quota.to_string()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|source| KnobError::Write {
            path,
            value: new_quota.to_string(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: Version, dir: &Path, controller: Controller) -> GroupDir {
        GroupDir {
            version,
            dir: dir.into(),
            controllers: [controller].into(),
        }
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).expect("made");
        for (file, text) in files {
            fs::write(dir.join(file), text).expect("written");
        }
    }

    /// Regression: a nested container with a limit of its own could not start below a throttle.
    #[test]
    fn quota_ceiling_is_lowest_ancestor_quota() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let quota = |quota, period| [(QUOTA_FILE, quota), (PERIOD_FILE, period)];
        let revocable = root.path().join("meseta/i/.revocable");
        let outer = revocable.join("outer");
        // This quota is above the tree and binds no container.
        write(root.path(), &[(PERIOD_FILE, "100000")]);
        write(&root.path().join("meseta"), &quota("-1", "100000"));
        write(&root.path().join("meseta/i"), &quota("400000", "200000"));
        write(&revocable, &quota("50000", "100000"));
        write(&outer, &quota("-1", "100000"));
        let of = |version, dir: &Path| {
            ceiling(&Groups {
                dirs: vec![group(version, dir, Controller::Cpu)],
            })
        };
        let inner = outer.join("+inner");
        assert_eq!(of(Version::V1, &inner), Some(50_000));
        assert_eq!(of(Version::V1, &outer), Some(50_000));
        assert_eq!(of(Version::V2, &inner), None);
        // Lifted: the remaining quota is that of the instance, converted to our period.
        write(&revocable, &quota("-1", "100000"));
        assert_eq!(of(Version::V1, &inner), Some(200_000));
        write(&root.path().join("meseta/i"), &quota("-1", "100000"));
        assert_eq!(of(Version::V1, &inner), None);
    }

    /// Regression: with files in tmpfs and without swap, revocable work slept at every allocation.
    #[test]
    fn memory_ceiling_covers_unreclaimable_memory() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let ceiling = |version, bytes| {
            let group = group(version, dir.path(), Controller::Memory);
            let write = memory_ceiling(&group, bytes);
            format!("{}={}", write.file, write.value)
        };
        // Unreadable figures raise no ceiling.
        assert_eq!(ceiling(Version::V2, Some(60)), "memory.high=60");
        // 30 of the charge are files, and 50 are in tmpfs.
        let stat = "anon 60\nfile 80\nshmem 50\ninactive_file 20\nactive_file 10\n";
        write(
            dir.path(),
            &[("memory.current", "150\n"), ("memory.stat", stat)],
        );
        assert_eq!(ceiling(Version::V2, Some(60)), "memory.high=120");
        assert_eq!(ceiling(Version::V2, Some(130)), "memory.high=130");
        assert_eq!(ceiling(Version::V2, None), "memory.high=max");
        let soft = "memory.soft_limit_in_bytes";
        assert_eq!(ceiling(Version::V1, Some(60)), format!("{soft}=60"));
        assert_eq!(ceiling(Version::V1, None), format!("{soft}=-1"));
    }
}
