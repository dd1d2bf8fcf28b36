//! All containers with revocable CPUs as one: held back together, and each of them frozen.
//!
//! They share one parent group, which gets what regular containers leave: lowest weight, and idle
//! where the kernel can (since 5.15). A quota on it binds them all. Invariant: nothing here touches a
//! container outside that parent, except [`Containers::freeze`], which touches the one that is named.

use std::fs;

use super::recovery::names_in;
use super::{ContainerError, Containers};
use crate::cgroup::{
    Controller, GroupDir, Groups, KnobError, KnobWrite, Layout, Version, number, read_text,
    subgroups,
};
use crate::demand::Demand;
use crate::identity::ContainerName;
use crate::isolator::cpu::{
    PERIOD_US, QUOTA_MIN_US, SHARES_MAX, SHARES_MIN, SHARES_PER_CPU, WEIGHT_MAX, WEIGHT_MIN,
    WEIGHT_PER_CPU,
};

/// Rounds of lowering quotas below a new ceiling while containers come and go.
const LOWER_ATTEMPTS: u32 = 5;

/// Gives the parent of revocable containers its weight.
pub(super) fn prepare(layout: &Layout, low_priority: bool) -> Result<(), KnobError> {
    let groups = layout.revocable();
    let Some(group) = groups.of(Controller::Cpu) else {
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

/// The quota above a container's group on v1, which refuses a higher one below it.
pub(super) fn ceiling(groups: &Groups) -> Option<u64> {
    let group = groups.of(Controller::Cpu)?;
    if group.version != Version::V1 {
        return None;
    }
    number(group.dir.parent()?, "cpu.cfs_quota_us")
}

impl Containers {
    /// Holds all containers with revocable CPUs together to so many thousandths of a processor;
    /// `None` lifts that. What the containers are limited to themselves is lowered with it where the
    /// kernel demands that (v1), and comes back with [`Containers::update`]. False where there are no
    /// groups to do it with.
    pub fn throttle_revocable(&self, cpus_millis: Option<u64>) -> Result<bool, KnobError> {
        let groups = self.layout.revocable();
        let Some(group) = groups.of(Controller::Cpu) else {
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
                groups.write(&write("cpu.cfs_period_us", PERIOD_US.to_string()))?;
                let plan = write(
                    "cpu.cfs_quota_us",
                    new_quota.unwrap_or_else(|| "-1".to_owned()),
                );
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

    /// Asks the kernel to keep the memory of all containers with revocable CPUs below so many bytes
    /// by reclaiming, never by killing; `None` lifts that. False where it cannot be asked.
    pub fn limit_revocable_memory(&self, bytes: Option<u64>) -> Result<bool, KnobError> {
        let groups = self.layout.revocable();
        let Some(group) = groups.of(Controller::Memory) else {
            return Ok(false);
        };
        let (file, none) = match group.version {
            Version::V1 => ("memory.soft_limit_in_bytes", "-1"),
            Version::V2 => ("memory.high", "max"),
        };
        let value = bytes.map_or_else(|| none.to_owned(), |bytes| bytes.to_string());
        groups.write(&KnobWrite::new(Controller::Memory, file, value))?;
        Ok(true)
    }

    /// Stops all processes of a container where they are, or lets them go on. False where there is no
    /// group to do it with.
    pub fn freeze(&self, name: &ContainerName, frozen: bool) -> Result<bool, ContainerError> {
        let groups = self.groups(name);
        let Some(group) = groups.of(Controller::Freezer) else {
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
        let written = groups.write(&KnobWrite::new(Controller::Freezer, file, value));
        written.map_err(|source| ContainerError::Knob {
            name: name.clone(),
            source,
        })?;
        Ok(true)
    }

    /// Whether the freezer holds a container; `None` where that cannot be known.
    pub fn is_frozen(&self, name: &ContainerName) -> Option<bool> {
        let groups = self.groups(name);
        let group = groups.of(Controller::Freezer)?;
        match group.version {
            Version::V1 => Some(read_text(&group.dir, "freezer.state")?.trim() != "THAWED"),
            Version::V2 => Some(number(&group.dir, "cgroup.freeze")? == 1),
        }
    }

    /// Whether a container of this demand is one of those that are held back together.
    pub fn is_in_revocable_group(&self, demand: &Demand) -> bool {
        demand.cpus_revocable && !self.layout.revocable_dirs().is_empty()
    }
}

fn is_refused(outcome: &Result<(), KnobError>) -> bool {
    matches!(outcome, Err(KnobError::Write { source, .. }) if source.raw_os_error() == Some(libc::EINVAL))
}

/// Lowers the quota of every container below a parent that is to have this one (v1).
fn lower_below(parent: &GroupDir, quota: u64) -> Result<(), KnobError> {
    let containers = names_in(&parent.dir).unwrap_or_default();
    for name in containers {
        lower(&parent.dir.join(name.as_str()), quota)?;
    }
    Ok(())
}

fn lower(dir: &std::path::Path, quota: u64) -> Result<(), KnobError> {
    for child in subgroups(dir) {
        lower(&child.path(), quota)?;
    }
    let file = "cpu.cfs_quota_us";
    // -1, which is no number of this kind, is no quota, and inherits.
    let Some(own) = number(dir, file) else {
        return Ok(());
    };
    let period = number(dir, "cpu.cfs_period_us").unwrap_or(PERIOD_US);
    let new_quota = (quota * period / PERIOD_US).max(QUOTA_MIN_US);
    if own <= new_quota {
        return Ok(());
    }
    let path = dir.join(file);
    match fs::write(&path, new_quota.to_string()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|source| KnobError::Write {
            path,
            value: new_quota.to_string(),
            source,
        }),
    }
}
