//! Limits in force of running containers: drift, lowering memory limits, inspection.
//!
//! [`Containers::verify`] compares what the kernel holds with what the demand asks for and changes
//! nothing; [`Containers::shrink_memory`] lowers a hard limit, which an update never does, and only
//! where nobody dies of it.

use std::io;

use super::{ContainerError, Containers};
use crate::cgroup::{
    Controller, Drift, Groups, KnobError, KnobWrite, Version, control_text, drifts, flat_value,
    limit_files, number, read_text,
};
use crate::demand::{Demand, Limit};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::{DiskArea, Inspected, Inspection, Observed, PortRange};

/// v1's limit on memory and swap together.
const SWAP_FILE: &str = "memory.memsw.limit_in_bytes";

/// Result of lowering a memory limit.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Shrink {
    /// The new limit is in force, and nobody was killed for it.
    Done {
        /// The limit, rounded by the kernel to whole pages.
        limit_bytes: u64,
    },
    /// The container uses more than that, also after the kernel took back what it could; the old limit
    /// stays.
    InUse { usage_bytes: u64 },
    /// The limit in force is no higher than the requested one.
    NotLower,
}

impl Containers {
    /// Makes the groups, and the instance's too if somebody has removed them. Those of a nested container are
    /// missing because the container around it has ended.
    pub(super) fn make(&self, name: &ContainerName, groups: &Groups) -> Result<(), KnobError> {
        match groups.create() {
            Err(KnobError::Create { source, .. })
                if source.kind() == io::ErrorKind::NotFound && name.nesting().is_none() =>
            {
                self.layout.create_instance()?;
                // The next one has the new group of supervisors open.
                self.launcher.stop();
                groups.create()
            }
            made => made,
        }
    }

    /// Measures what the isolators measure themselves: folders (`disk/du`), ports (`network/ports`).
    /// Slow, for a period of 15 s and more. The name is the container's.
    pub fn inspect(
        &self,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        disk: &[DiskArea],
        ports: Option<&[PortRange]>,
    ) -> io::Result<Inspected> {
        let groups = self.groups(name);
        let inspection = Inspection {
            name,
            groups: &groups,
            supervisor,
            proc: &self.host.proc,
            disk,
            ports,
        };
        let mut found = Inspected::default();
        for isolator in &self.isolators {
            isolator.inspect(&inspection, &mut found)?;
        }
        Ok(found)
    }

    /// Where the limits in force differ from those that this demand asks for; empty when all is well.
    /// For the time after a recovery, and now and then; [`Containers::update`] with the same demand mends most of it.
    pub fn verify(
        &self,
        name: &ContainerName,
        demand: &Demand,
    ) -> Result<Vec<Drift>, ContainerError> {
        let groups = self.groups(name);
        if groups.dirs.is_empty() {
            return Ok(Vec::new());
        }
        if !groups.exist() {
            return Err(ContainerError::Unknown(name.clone()));
        }
        // All writes of a new group, and those that would take away what should not be there: a quota,
        // or idleness, whose group shows another weight than it was given.
        let mut observed = Observed {
            cpu_ceiling_us: super::revocable::ceiling(&groups),
            ..Observed::default()
        };
        for isolator in self.limiting(name) {
            isolator.observe(&groups, &mut observed);
        }
        observed.fresh = true;
        let plans = self
            .limiting(name)
            .map(|one| one.plan(demand, &groups, &observed));
        let requested: Vec<KnobWrite> = plans.flatten().collect();
        Ok(drifts(&requested, |write| {
            let group = groups.of(write.controller)?;
            read_text(&group.dir, write.file)
        }))
    }

    /// Lowers the hard memory limit to what the demand asks for, if the container fits in it.
    ///
    /// v1 refuses a limit that it cannot reclaim down to; on v2, which would rather kill, the kernel is
    /// asked to reclaim first (`memory.reclaim`, since 5.19), and the limit is written only if there is
    /// room under it. A container that grows in that moment may still be killed, as by any limit.
    pub fn shrink_memory(
        &self,
        name: &ContainerName,
        demand: &Demand,
    ) -> Result<Shrink, ContainerError> {
        let groups = self.groups(name);
        let Some(group) = groups.of(Controller::Memory) else {
            return Ok(Shrink::NotLower);
        };
        if !group.dir.exists() {
            return Err(ContainerError::Unknown(name.clone()));
        }
        let mut observed = Observed::default();
        for isolator in &self.isolators {
            isolator.observe(&groups, &mut observed);
        }
        let (limit_file, usage_file) = limit_files(group.version);
        let Some(requested) = self.hard_memory_limit(demand, &groups, limit_file) else {
            return Ok(Shrink::NotLower);
        };
        if matches!(observed.memory_limit, Some(Limit::At(limit)) if limit <= requested) {
            return Ok(Shrink::NotLower);
        }
        let usage = || number(&group.dir, usage_file).unwrap_or(0);
        let failed = |source| ContainerError::Knob {
            name: name.clone(),
            source,
        };
        if group.version == Version::V2 {
            let excess = usage().saturating_sub(requested);
            if excess > 0 {
                // It takes back less than asked with EAGAIN; what counts is what is left.
                let reclaim = KnobWrite::optional(Controller::Memory, "memory.reclaim", excess);
                let _ = groups.write(&reclaim);
            }
            if usage() > requested {
                return Ok(Shrink::InUse {
                    usage_bytes: usage(),
                });
            }
        }
        let write = KnobWrite::new(Controller::Memory, limit_file, requested);
        match groups.write(&write) {
            Ok(()) => {}
            Err(KnobError::Write { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                return Ok(Shrink::InUse {
                    usage_bytes: usage(),
                });
            }
            Err(source) => return Err(failed(source)),
        }
        // The kernel's word for it, not ours.
        let limit_bytes = number(&group.dir, limit_file).unwrap_or(u64::MAX);
        if limit_bytes > requested {
            let refused = KnobError::Write {
                path: group.dir.join(limit_file),
                value: requested.to_string(),
                source: io::Error::other(format!("{limit_bytes} is in force")),
            };
            return Err(failed(refused));
        }
        if group.version == Version::V1
            && self.hard_memory_limit(demand, &groups, SWAP_FILE).is_some()
        {
            // Memory and swap together; what is swapped out already may be in the way, and stays.
            let swap = KnobWrite::optional(Controller::Memory, SWAP_FILE, requested);
            let _ = groups.write(&swap);
        }
        Ok(Shrink::Done { limit_bytes })
    }

    /// The hard limit that a new container would get.
    fn hard_memory_limit(&self, demand: &Demand, groups: &Groups, file: &str) -> Option<u64> {
        let fresh = Observed {
            fresh: true,
            ..Observed::default()
        };
        let plans = self
            .isolators
            .iter()
            .map(|one| one.plan(demand, groups, &fresh));
        plans
            .flatten()
            .find(|write| write.file == file)
            .and_then(|write| write.value.parse().ok())
    }

    /// How often the kernel killed for want of memory in the container; `None` where it does not say.
    pub fn oom_kills(&self, name: &ContainerName) -> io::Result<Option<u64>> {
        let groups = self.groups(name);
        let Some(group) = groups.of(Controller::Memory) else {
            return Ok(None);
        };
        let file = match group.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = control_text(&group.dir, file)?;
        Ok(text.and_then(|text| flat_value(&text, "oom_kill")))
    }
}

/// Bytes in the largest unit that divides them, as Mesos prints them: `64MB`.
pub(super) fn bytes_text(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return "unknown".to_owned();
    };
    for (shift, unit) in [(40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}
