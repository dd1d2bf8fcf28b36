//! Containers inside containers: in the groups of the outer container, and optionally in its namespaces.
//!
//! A nested container has folders of its own in each cgroup tree, which identify it and allow to end it alone. It shares the
//! limits of the outer container, and ends with it. Optionally it has limits of processor and memory of its own within those.
//! Named `outer+inner`.

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use meseta_resources::NESTING;

use super::ended::Ended;
use super::{Containers, SESSIONS_DIR};
use crate::cgroup::{
    Controller, DestroyOptions, Files, GroupDir, Groups, Version, control_text, flat_value,
    limit_in_force,
};
use crate::demand::{Demand, Limit};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::{ContainerSpec, Inside, TaskIsolation, UsageSource};
use crate::launcher::{Command, Destination, LaunchError, LaunchIsolation, MountStep};
use crate::shortage::{again, is_shortage};
use crate::sys;
use crate::usage::ContainerUsage;

/// The name of the process that changes a container's mounts; no container's name begins with a dot.
const MOUNTER: &str = ".mounts";
/// The number of attempts to write a note, and the pause between them, while the agent is short of descriptors or memory. The
/// end of a nested container may wait this long.
const NOTE_ATTEMPTS: u32 = 10;
const NOTE_PAUSE: Duration = Duration::from_millis(100);
/// The longest time that the mounter may take to end after its work.
const MOUNTER_TIMEOUT: Duration = Duration::from_secs(10);

impl Containers {
    /// Changes the mounts of a running container through a process that enters it. `Ok` means that all steps are done; after an
    /// error the steps before the failed one are done. One call at a time for each container; blocks until the process is gone.
    pub fn change_mounts(
        &self,
        outer: &ContainerName,
        supervisor: &ProcessIdentity,
        steps: Vec<MountStep>,
    ) -> Result<(), LaunchError> {
        let refused = |reason: &str| LaunchError::Invalid {
            name: outer.clone(),
            reason: reason.to_owned(),
        };
        if !self.host.privileged {
            return Err(refused("without root it has no mounts of its own"));
        }
        let name = ContainerName::new(&format!("{outer}{NESTING}{MOUNTER}"));
        let name = name.map_err(|error| refused(&error.to_string()))?;
        let spec = ContainerSpec {
            name: name.clone(),
            // No program: it would run as root, and the container's volumes may cover every path.
            command: Command::Nothing,
            env: Vec::new(),
            working_dir: "/".into(),
            credentials: None,
            stdout: Destination::Null,
            stderr: Destination::Null,
            hostname: None,
            rlimits: Vec::new(),
            demand: Demand::default(),
            isolation: TaskIsolation {
                mounts: steps,
                ..TaskIsolation::default()
            },
            inside: Some(Inside {
                supervisor: supervisor.clone(),
                stdin: None,
                terminal: false,
            }),
        };
        let launched = self.launch(&spec)?;
        if let Ok(Some(ended)) = self.watch(&launched.supervisor) {
            let _ = sys::wait_readable(&[ended.as_fd()], Some(MOUNTER_TIMEOUT));
        }
        let options = DestroyOptions::default();
        if self
            .destroy(&name, Some(&launched.supervisor), options)
            .is_ok()
        {
            let _ = self.forget(&name);
        }
        Ok(())
    }

    /// The folder for the pipes of a process that enters a container; made and removed by the caller. The next agent that opens
    /// the instance removes leftovers of a killed agent.
    pub fn sessions_dir(&self, name: &ContainerName) -> PathBuf {
        self.runtime_dir.join(SESSIONS_DIR).join(name.as_str())
    }

    /// Whether a container has a memory ceiling other than that of its outer container. An error means that the limit could not
    /// be read.
    pub fn has_own_memory_limit(&self, name: &ContainerName) -> io::Result<bool> {
        let groups = self.groups(name);
        match groups.get(Controller::Memory) {
            _ if name.nesting().is_none() => Ok(true),
            Some(group) => Ok(matches!(limit_in_force(group)?, Some(Limit::At(_)))),
            None => Ok(false),
        }
    }

    /// The container whose memory limit binds this one.
    pub(super) fn limited_with(&self, name: &ContainerName) -> io::Result<ContainerName> {
        Ok(match self.has_own_memory_limit(name)? {
            true => name.clone(),
            false => name.outermost(),
        })
    }

    /// Whether an out-of-memory kill may concern only a part of the container: v2 counts a kill in the outer groups too, and
    /// nested groups may have limits of their own.
    pub(super) fn is_partial_oom(&self, name: &ContainerName) -> io::Result<bool> {
        let groups = self.groups(name);
        let group = groups.get(Controller::Memory);
        let Some(group) = group.filter(|group| group.version == Version::V2) else {
            return Ok(false);
        };
        let text = |file| control_text(&group.dir, file).map(Option::unwrap_or_default);
        let has_limits_within = text("cgroup.subtree_control")?
            .split_ascii_whitespace()
            .any(|one| one == Controller::Memory.v2_name());
        Ok(has_limits_within && flat_value(&text("memory.events.local")?, "oom") == Some(0))
    }

    /// Adds the figures of present and past nested containers to those figures of this container that the kernel counts for each
    /// group alone. Returns whether there is or was any. `source` is the source of the container's own figures.
    pub(super) fn add_nested(
        &self,
        name: &ContainerName,
        source: &UsageSource<'_>,
        usage: &mut ContainerUsage,
    ) -> bool {
        let _noted = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        match self.nested_usage(name, source.groups) {
            Ok(None) => return false,
            // A sum does not show that a part of it is missing.
            Ok(Some(nested)) if source.files.take_shortage().is_none() => usage.add_local(&nested),
            // The missing part is unknown.
            Ok(Some(_)) | Err(_) => {
                usage.clear_local();
                // Otherwise the outer groups count them too.
                if source.groups.get(Controller::Pids).is_none() {
                    usage.pids.threads = None;
                }
            }
        }
        true
    }

    /// The local figures of all present and past nested containers; `None` if there are none. The caller holds `ended`.
    fn nested_usage(
        &self,
        name: &ContainerName,
        groups: &Groups,
    ) -> io::Result<Option<ContainerUsage>> {
        let mut ended = Ended::read(&self.runtime_dir(name))?;
        let within = groups.within()?;
        if within.is_empty() && ended.is_empty() {
            return Ok(None);
        }
        let mut sum = ended.gone;
        for (inner, groups) in within {
            let Ok(nested) = ContainerName::new(&format!("{name}{NESTING}{inner}")) else {
                continue;
            };
            let mut usage = self.local_usage(&nested, &groups)?;
            if let Some(noted) = ended.ending.remove(&inner) {
                usage.raise_local(&noted);
            }
            sum.add_local(&usage);
        }
        for noted in ended.ending.values() {
            sum.add_local(noted);
        }
        Ok(Some(sum))
    }

    /// The local figures of a nested container and of all inside it. The caller holds `ended`.
    fn local_usage(&self, name: &ContainerName, groups: &Groups) -> io::Result<ContainerUsage> {
        let mut usage = ContainerUsage::default();
        // No file stays open: most nested containers end soon.
        let files = Files::passing();
        let source = self.source(groups, None, &files);
        for isolator in &self.isolators {
            isolator.local_usage(&source, &mut usage);
        }
        if let Some(error) = files.take_shortage() {
            return Err(error);
        }
        if let Some(within) = self.nested_usage(name, groups)? {
            usage.add_local(&within);
        }
        Ok(usage)
    }

    /// Notes the counters of a nested container: nothing runs in its groups any more, and they are about to be removed.
    pub(super) fn note_ending(&self, name: &ContainerName, groups: &Groups) {
        let Some((outer, inner)) = name.nesting().filter(|_| groups.exist()) else {
            return;
        };
        let dir = self.runtime_dir(&outer);
        let note = || {
            // The lock is released in the pauses: otherwise all others would wait too.
            let _alone = self.ended.write().unwrap_or_else(PoisonError::into_inner);
            let usage = self.local_usage(name, groups)?;
            if !usage.has_local() {
                return Ok(());
            }
            let mut ended = Ended::read(&dir)?;
            ended.note(inner, &usage);
            ended.write(&dir)
        };
        // Without a folder the outer container is gone, and nobody needs the counters. Otherwise the counters are lost.
        for _ in 0..NOTE_ATTEMPTS {
            match again(note) {
                Err(error) if is_shortage(&error) => std::thread::sleep(NOTE_PAUSE),
                _ => return,
            }
        }
    }

    /// Adds the noted counters of a nested container to the removed ones, as its groups are gone.
    pub(super) fn note_gone(&self, name: &ContainerName) {
        let Some((outer, inner)) = name.nesting() else {
            return;
        };
        let _alone = self.ended.write().unwrap_or_else(PoisonError::into_inner);
        let dir = self.runtime_dir(&outer);
        // A note that stays counts as well.
        let _ = Ended::read(&dir).and_then(|mut ended| match ended.settle(inner) {
            true => ended.write(&dir),
            false => Ok(()),
        });
    }

    /// The groups of a container to launch. A nested container uses only the trees in which its outer container has a group: the
    /// outer container may have started before an isolator that needs another tree was in use.
    pub(super) fn groups_to_nest_in(&self, spec: &ContainerSpec) -> Result<Groups, LaunchError> {
        let mut groups = self.groups(&spec.name);
        let Some((name, _)) = spec.name.nesting() else {
            return Ok(groups);
        };
        let outer = self.groups(&name);
        if !outer.dirs.is_empty() && !outer.exist() {
            return Err(LaunchError::Invalid {
                name: spec.name.clone(),
                reason: "its parent container does not exist".to_owned(),
            });
        }
        let around: Vec<_> = outer.dirs.iter().map(|group| group.dir.exists()).collect();
        // Checked after the read: the groups of an ending container are removed once its supervisor is gone, and nothing may
        // start in the remaining ones.
        if around.contains(&false) && self.is_kept(&name) {
            // The container is not launched without its own limits where it should have them.
            let limits = |one: &Controller| matches!(one, Controller::Cpu | Controller::Memory);
            let is_limited = |group: &GroupDir| {
                spec.isolation.own_limits && group.controllers.iter().any(limits)
            };
            let mut around = around.into_iter();
            let has_group = |group: &GroupDir| around.next() == Some(true) || is_limited(group);
            groups.dirs.retain(has_group);
        }
        Ok(groups)
    }

    /// Whether the supervisor in a container's folder lives.
    fn is_kept(&self, name: &ContainerName) -> bool {
        let supervisor = self.recorded_supervisor(name).ok().flatten();
        supervisor.is_some_and(|supervisor| supervisor.is_known_to_live())
    }
}

/// Makes the launch enter existing namespaces, whose mounts are ready.
pub(super) fn join(isolation: &mut LaunchIsolation, inside: &Inside, enter: bool) {
    isolation.pid_namespace = false;
    isolation.mount_namespace = false;
    // If the container has a cgroup namespace and no process is left to enter it, a new one begins at its groups.
    isolation.cgroup_namespace &= enter;
    isolation.ipc_namespace = false;
    isolation.uts_namespace = false;
    isolation.network_namespace = false;
    isolation.hostname = None;
    isolation.mounts.clear();
    isolation.join = enter.then(|| inside.supervisor.clone());
    isolation.stdin = inside.stdin.clone();
    isolation.terminal = inside.terminal;
}
