//! posix/rlimits: limits per process, as the task asked.

use super::Isolator;
use crate::containers::ContainerSpec;
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(super) struct Rlimits;

impl Isolator for Rlimits {
    fn name(&self) -> &'static str {
        "posix/rlimits"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.rlimits.extend(&spec.rlimits);
    }
}
