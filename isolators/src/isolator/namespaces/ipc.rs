//! namespaces/ipc: its own System V objects and POSIX message queues.

use crate::containers::ContainerSpec;
use crate::isolator::{Isolator, TaskIsolation};
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(crate) struct Ipc;

impl Isolator for Ipc {
    fn name(&self) -> &'static str {
        "namespaces/ipc"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.ipc_namespace = true;
    }

    fn launch_task(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
        launch: &mut LaunchIsolation,
    ) -> Result<(), String> {
        if !task.share_ipc_namespace {
            self.launch(spec, launch);
        }
        Ok(())
    }
}
