//! Repeated, cheap sampling of many containers.
//!
//! A [`Sampler`] belongs to the one thread that sweeps over the containers. It keeps their control files open, reads slow or
//! rarely changing ones once in [`SLOW_EVERY`] sweeps, a fifth of the containers at a time, and compares counters with the
//! reading before. Invariant: a figure that is unreadable now is absent now, and a failure of one container affects no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Containers;
use super::types::ContainerError;
use crate::cgroup::{Anchors, Budget, Files, Groups};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::UsageSource;
use crate::usage::ContainerUsage;

/// Sweeps from one full reading of a container to the next: `memory.stat`, pressure, block devices, limits and process counts
/// are at most this many sweeps old, and so are the summed figures of nested containers.
pub const SLOW_EVERY: u32 = 5;

/// Reads the usage of containers; see the module.
#[derive(Debug)]
pub struct Sampler {
    budget: Budget,
    /// This agent's folder in each tree.
    anchors: Option<Arc<Anchors>>,
    buffer: Vec<u8>,
    sweep: u32,
    containers: HashMap<ContainerName, Watched>,
}

#[derive(Debug)]
struct Watched {
    groups: Groups,
    files: Files,
    /// Whether the container has or had nested containers: a complete reading adds their local figures up.
    has_nested: bool,
    /// The sweep, modulo [`SLOW_EVERY`], of the complete reading.
    turn: u32,
    /// The last reading; `None` before the first reading and after a failure.
    last: Option<ContainerUsage>,
    seen: u32,
}

impl Sampler {
    /// Keeps at most this many descriptors open; further files are opened for each reading.
    pub fn new(descriptors_max: usize) -> Self {
        Self {
            budget: Budget::new(descriptors_max),
            anchors: None,
            buffer: Vec::new(),
            sweep: 0,
            containers: HashMap::new(),
        }
    }

    /// Begins a sweep. Forgets containers that the previous sweep did not sample, and closes their descriptors.
    pub fn begin_sweep(&mut self) {
        let before = self.sweep;
        self.containers.retain(|_, watched| watched.seen == before);
        self.containers.shrink_to(self.containers.len() * 2);
        let files = self.containers.values().map(|watched| &watched.files);
        self.budget.shift(files);
        self.sweep = self.sweep.wrapping_add(1);
    }

    /// Reads one container; `timestamp` is the caller's Unix time.
    pub fn sample(
        &mut self,
        containers: &Containers,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        timestamp: Duration,
    ) -> Result<ContainerUsage, ContainerError> {
        let turn = u32::try_from(self.containers.len()).unwrap_or(0) % SLOW_EVERY;
        let (budget, anchors) = (&self.budget, &mut self.anchors);
        let watched = self.containers.entry(name.clone()).or_insert_with(|| {
            let anchors = anchors
                .get_or_insert_with(|| Arc::new(Anchors::at(containers.layout.instance_dirs())));
            Watched {
                groups: containers.groups(name),
                files: Files::keeping(budget.clone(), anchors.clone()),
                has_nested: false,
                turn,
                last: None,
                seen: self.sweep,
            }
        });
        watched.seen = self.sweep;
        let before = watched.last.take();
        let all = before.is_none() || self.sweep % SLOW_EVERY == watched.turn;
        let kept = before.as_ref().filter(|_| !all);
        let mut usage = kept.cloned().unwrap_or_default();
        usage.timestamp = timestamp;
        let source = UsageSource {
            groups: &watched.groups,
            supervisor,
            proc: &containers.host.proc,
            files: &watched.files,
            all,
        };
        watched.files.begin(all, std::mem::take(&mut self.buffer));
        containers.read_usage(&source, &mut usage);
        match kept {
            Some(before) if watched.has_nested => usage.take_local(before),
            Some(_) => {}
            None => watched.has_nested = containers.add_nested(name, &source, &mut usage),
        }
        let (buffer, any) = watched.files.end();
        self.buffer = buffer;
        let is_there = any
            || watched.groups.exist()
            || supervisor.is_some_and(ProcessIdentity::is_known_to_live);
        if !is_there {
            return Err(ContainerError::Unknown(name.clone()));
        }
        let checked = match &before {
            Some(before) => usage.without_setbacks(before),
            None => usage.clone(),
        };
        watched.last = Some(usage);
        Ok(checked)
    }
}

impl Containers {
    /// Reads the usage of the container; `timestamp` is the caller's Unix time.
    pub fn usage(
        &self,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        timestamp: Duration,
    ) -> Result<ContainerUsage, ContainerError> {
        let (groups, files) = (self.groups(name), Files::passing());
        let source = self.source(&groups, supervisor, &files);
        let mut usage = self.group_usage(name, &source)?;
        usage.timestamp = timestamp;
        self.add_nested(name, &source, &mut usage);
        Ok(usage)
    }

    /// Reads the usage from the container's own groups alone, without nested containers.
    pub(super) fn group_usage(
        &self,
        name: &ContainerName,
        source: &UsageSource<'_>,
    ) -> Result<ContainerUsage, ContainerError> {
        let lives = |who: &ProcessIdentity| who.is_known_to_live();
        if !source.groups.exist() && !source.supervisor.is_some_and(lives) {
            return Err(ContainerError::Unknown(name.clone()));
        }
        let mut usage = ContainerUsage::default();
        self.read_usage(source, &mut usage);
        Ok(usage)
    }

    /// The source of a single complete reading.
    pub(super) fn source<'a>(
        &'a self,
        groups: &'a Groups,
        supervisor: Option<&'a ProcessIdentity>,
        files: &'a Files,
    ) -> UsageSource<'a> {
        UsageSource {
            groups,
            supervisor,
            proc: &self.host.proc,
            files,
            all: true,
        }
    }

    fn read_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        for isolator in &self.isolators {
            isolator.usage(source, usage);
        }
    }
}
