//! The isolators: one file per kind of isolation, all behind one trait.
//!
//! [`Isolation`] is the operator's choice (`--isolation`); [`Isolation::isolators`] turns it into the list that
//! [`crate::Containers`] walks. A new isolator needs a file with a type that implements [`Isolator`], its name in [`NAMES`],
//! and its line in `choice.rs`. Invariant: `plan` and `launch` are pure, so the limits of a container are a function of its
//! demand and of the kernel's present values, and nothing else.
//!
//! `settings` and `container_spec` depend on `capabilities` and `seccomp`, and these on them: the operator's settings and a
//! container's spec contain a set of capabilities and a filter, which the two isolators read from there.

mod blkio;
mod capabilities;
mod choice;
mod container_spec;
pub(crate) mod cpu;
mod cpuset;
mod devices;
mod disk;
mod filesystem;
#[cfg(test)]
mod hostile;
mod hugetlb;
mod inspection;
mod listeners;
mod mem;
mod namespaces;
mod nnp;
mod perf_event;
mod pids;
mod ports;
mod posix;
mod rlimits;
mod seccomp;
mod settings;
#[cfg(test)]
mod testing;
mod unlinked;

use std::fmt;
use std::io;
use std::path::Path;

use crate::cgroup::{Controller, Files, GroupDir, Groups, KnobError, KnobWrite};
use crate::demand::{Demand, Limit};
use crate::identity::ProcessIdentity;
use crate::launcher::LaunchIsolation;
use crate::limit_event::LimitEvent;
use crate::usage::ContainerUsage;

pub use crate::device_rule::{DeviceKind, DeviceRule, DeviceRuleError};
pub use capabilities::{
    CAPABILITIES, CapabilityEntry, CapabilityRequest, CapabilitySet, Reach, UnknownCapability,
};
pub use choice::{Isolation, IsolationError, NAMES};
pub use container_spec::{ContainerSpec, Inside, TaskIsolation};
pub use inspection::{
    Breach, DiskArea, DiskUsage, Inspected, Inspection, PortInspection, PortRange,
};
pub use listeners::Listeners;
pub use seccomp::{
    CapabilityCondition, SeccompAction, SeccompArgument, SeccompChoice, SeccompComparison,
    SeccompError, SeccompProfile, syscall_number,
};
pub use settings::{IsolatorOptions, NodeOptions};

/// The facts about the container that an isolator needs besides the demand when it plans.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Observed {
    /// Whether the groups are new, so that a lower limit cannot harm a task.
    pub fresh: bool,
    pub memory_limit: Option<Limit>,
    pub cpu_quota: bool,
    /// Whether the group runs only when nothing else needs the processor.
    pub cpu_idle: bool,
    /// The quota in force above the group where quotas below may not be higher (v1), in microseconds per period.
    pub cpu_ceiling_us: Option<u64>,
}

/// Source of usage figures: cgroups, supervisor, control files.
#[derive(Debug)]
pub struct UsageSource<'a> {
    pub groups: &'a Groups,
    /// The container's supervisor, if known and alive.
    pub supervisor: Option<&'a ProcessIdentity>,
    pub proc: &'a Path,
    /// The reader of control files, which keeps them open between samples.
    pub files: &'a Files,
    /// Whether a complete reading is requested. If not, the isolator fills in only figures that change all the time and are quick
    /// to read; the usage keeps the other figures of the last complete reading.
    pub all: bool,
}

impl UsageSource<'_> {
    /// The result of `parse` on a control file of a group; `None` if the file is missing or malformed.
    pub fn read<T>(
        &self,
        group: &GroupDir,
        file: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.files.read(&group.dir, file, parse)
    }

    /// The number in a control file; `None` for `max` and for everything that is not a number.
    pub fn number(&self, group: &GroupDir, file: &'static str) -> Option<u64> {
        self.files.number(&group.dir, file)
    }
}

/// A kind of isolation.
///
/// All methods may be called from several threads at once for different containers.
pub trait Isolator: fmt::Debug + Send + Sync {
    /// The name of the isolator in `--isolation`.
    fn name(&self) -> &'static str;

    /// The controllers in which the isolator needs groups.
    fn controllers(&self) -> &'static [Controller] {
        &[]
    }

    /// Records the kernel's present values; called before the plan of an update.
    fn observe(&self, _groups: &Groups, _observed: &mut Observed) {}

    /// The writes that bring the groups from the observed to the demanded state, in order. Pure.
    fn plan(&self, _demand: &Demand, _groups: &Groups, _observed: &Observed) -> Vec<KnobWrite> {
        Vec::new()
    }

    /// Carries a plan out.
    fn apply(&self, groups: &Groups, plan: &[KnobWrite]) -> Result<(), KnobError> {
        plan.iter().try_for_each(|write| groups.write(write))
    }

    /// Adds the isolator's part to the launch itself; an error refuses the launch, in the isolator's own words. Pure.
    fn launch(&self, _spec: &ContainerSpec, _launch: &mut LaunchIsolation) -> Result<(), String> {
        Ok(())
    }

    /// Measures things that the kernel does not count: a walk of a folder, a scan of sockets. Slow; called on a period of the
    /// agent's choosing. Writes the measurements, and the broken limits.
    fn inspect(&self, _inspection: &Inspection<'_>, _found: &mut Inspected) -> io::Result<()> {
        Ok(())
    }

    /// Fills in the isolator's own figures; a missing figure becomes `None`.
    fn usage(&self, _source: &UsageSource<'_>, _usage: &mut ContainerUsage) {}

    /// Fills in, for a nested container, those figures that the kernel leaves out of the outer groups: they are added to the
    /// outer container's figures. Empty by default. The reading is always complete, see [`UsageSource::all`].
    fn local_usage(&self, _source: &UsageSource<'_>, _usage: &mut ContainerUsage) {}

    /// Returns the event that signals a possible limit of this isolator. Must be armed again for a container of an earlier agent.
    fn watch(&self, _groups: &Groups) -> io::Result<Option<LimitEvent>> {
        Ok(None)
    }

    /// Takes over a container of an earlier agent. State in the kernel needs no work.
    fn recover(&self, _groups: &Groups) {}

    /// Cleans up after the container and its groups are gone. Must be safe without a launch before it, and twice.
    fn cleanup(&self, _groups: &Groups) {}
}
