//! namespaces/pid: its own process numbers; the supervisor is the first process, and its end is the end of all.

use crate::containers::ContainerSpec;
use crate::isolator::{Isolator, TaskIsolation};
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(crate) struct Pid;

impl Isolator for Pid {
    fn name(&self) -> &'static str {
        "namespaces/pid"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.pid_namespace = true;
    }

    fn launch_task(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
        launch: &mut LaunchIsolation,
    ) -> Result<(), String> {
        if !task.share_pid_namespace {
            self.launch(spec, launch);
        }
        Ok(())
    }
}
