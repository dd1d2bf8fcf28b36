//! Launching: makes groups, writes limits, calls the launcher; on failure nothing is left.

use std::fs;

use super::nested::join;
use super::{Containers, limits_nested, revocable};
use crate::cgroup::{DestroyOptions, Groups, remove_if_empty};
use crate::isolator::{ContainerSpec, Observed};
use crate::launcher::{LaunchError, LaunchIsolation, LaunchSpec, Launched};

impl Containers {
    /// Makes the groups, writes the limits, launches; on failure nothing is left. A request for isolation that the node does not
    /// allow fails with [`LaunchError::Invalid`].
    pub fn launch(&self, spec: &ContainerSpec) -> Result<Launched, LaunchError> {
        self.refuse_leftovers(spec, &self.groups(&spec.name))?;
        let groups = if spec.name.nesting().is_some() {
            self.groups_to_nest_in(spec)?
        } else if spec.demand.cpus_revocable {
            self.layout.revocable_container(&spec.name)
        } else {
            self.layout.container(&spec.name)
        };
        let status_dir = self.runtime_dir(&spec.name);
        fs::create_dir(&status_dir).map_err(|source| LaunchError::RuntimeDir {
            name: spec.name.clone(),
            path: status_dir.clone(),
            source,
        })?;
        let launched = self.prepare(spec, &groups).and_then(|isolation| {
            self.launcher.launch(&LaunchSpec {
                name: &spec.name,
                command: &spec.command,
                env: &spec.env,
                working_dir: &spec.working_dir,
                credentials: spec.credentials.as_ref(),
                stdout: &spec.stdout,
                stderr: &spec.stderr,
                status_dir,
                isolation,
            })
        });
        if launched.is_err() {
            // The supervisor may have progressed beyond its report.
            let supervisor = self.recorded_supervisor(&spec.name).ok().flatten();
            let _ = self.destroy(&spec.name, supervisor.as_ref(), DestroyOptions::default());
            let _ = self.forget(&spec.name);
        }
        launched
    }

    /// Removes empty groups of this name from before; a group that cannot be removed belongs to somebody else, and the launch
    /// fails.
    fn refuse_leftovers(&self, spec: &ContainerSpec, groups: &Groups) -> Result<(), LaunchError> {
        for group in &groups.dirs {
            if group.dir.exists() && !remove_if_empty(&group.dir) {
                return Err(LaunchError::Invalid {
                    name: spec.name.clone(),
                    reason: format!("the cgroup {} is in use already", group.dir.display()),
                });
            }
        }
        Ok(())
    }

    fn prepare(
        &self,
        spec: &ContainerSpec,
        groups: &Groups,
    ) -> Result<LaunchIsolation, LaunchError> {
        let task = &spec.isolation;
        let failed = |source| LaunchError::Groups {
            name: spec.name.clone(),
            source,
        };
        if !groups.exist() {
            // An agent that stopped in between may have left a note of a former container with this id: its counters would be
            // added to those of the new container.
            self.note_gone(&spec.name);
        }
        self.make(&spec.name, groups).map_err(failed)?;
        let is_nested = spec.name.nesting().is_some();
        if is_nested && task.own_limits {
            self.groups(&spec.name.outermost())
                .divide()
                .map_err(failed)?;
        }
        let observed = Observed {
            fresh: true,
            cpu_ceiling_us: revocable::ceiling(groups),
            ..Observed::default()
        };
        let mut launch = LaunchIsolation {
            v1_groups: groups.v1_dirs(),
            v2_group: groups.leaf(),
            // Not the agent's own score, which protects the agent.
            oom_score_adj: Some(0),
            stdout_log: task.stdout_log,
            stderr_log: task.stderr_log,
            ..LaunchIsolation::default()
        };
        for isolator in &self.isolators {
            if !is_nested || (task.own_limits && limits_nested(isolator.as_ref())) {
                let plan = isolator.plan(&spec.demand, groups, &observed);
                isolator.apply(groups, &plan).map_err(failed)?;
            }
            let launched = isolator.launch(spec, &mut launch);
            launched.map_err(|reason| LaunchError::Invalid {
                name: spec.name.clone(),
                reason,
            })?;
        }
        self.protection.note(&spec.name, groups);
        if let Some(inside) = &spec.inside {
            // Without the right to make namespaces, the container has none to enter.
            join(&mut launch, inside, self.host.privileged);
        }
        launch.mounts.extend_from_slice(&task.mounts);
        Ok(launch)
    }
}
