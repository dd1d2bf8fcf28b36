//! Containers inside containers: in the groups of the one around them, and if wished in its namespaces.
//!
//! A nested container has folders of its own in each cgroup tree, by which it is found and ended alone,
//! but no limits: it shares those of the container around it, whose end is its end. Named
//! `outer+inner`.

use std::path::PathBuf;

use super::{ContainerSpec, Containers};
use crate::cgroup::Groups;
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::TaskIsolation;
use crate::launcher::{LaunchError, LaunchIsolation, Launched};

/// A process to be put into a container that runs: what `exec` does.
#[derive(Clone, Debug)]
pub struct Inside {
    /// The supervisor of that container, whose namespaces are entered.
    pub supervisor: ProcessIdentity,
    /// Where standard input is read from; `None` gives it none. A pipe's writer must be open already.
    pub stdin: Option<PathBuf>,
    /// Whether standard input is a terminal that is to rule the process.
    pub terminal: bool,
}

impl Containers {
    /// Launches a nested container in the namespaces of one that runs.
    pub fn launch_inside(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
        inside: &Inside,
    ) -> Result<Launched, LaunchError> {
        // Without the right to make namespaces there are none to enter.
        let enter = self.host.privileged;
        self.launch_amended(spec, task, |isolation| join(isolation, inside, enter))
    }

    /// A folder for the pipes of a process that is put into a container; made and removed by the caller.
    pub fn sessions_dir(&self, name: &ContainerName) -> PathBuf {
        self.runtime_dir.join("sessions").join(name.as_str())
    }

    pub(super) fn groups_to_nest_in(&self, spec: &ContainerSpec) -> Result<Groups, LaunchError> {
        let groups = self.groups(&spec.name);
        let outer = spec.name.nesting().map(|(outer, _)| self.groups(&outer));
        if outer.is_some_and(|outer| !outer.dirs.is_empty() && !outer.exist()) {
            return Err(LaunchError::Invalid {
                name: spec.name.clone(),
                reason: "the container around it is not there".to_owned(),
            });
        }
        Ok(groups)
    }
}

/// The namespaces are there, and their mounts made.
fn join(isolation: &mut LaunchIsolation, inside: &Inside, enter: bool) {
    isolation.pid_namespace = false;
    isolation.mount_namespace = false;
    isolation.ipc_namespace = false;
    isolation.uts_namespace = false;
    isolation.network_namespace = false;
    isolation.hostname = None;
    isolation.mounts.clear();
    isolation.join = enter.then(|| inside.supervisor.clone());
    isolation.stdin = inside.stdin.clone();
    isolation.terminal = inside.terminal;
    // What it writes goes to whoever asked for it.
    isolation.stdout_log = None;
    isolation.stderr_log = None;
}
