//! namespaces/mnt: its own mounts, that the host never sees and that die with it; with a pid namespace its own `/proc`.

use crate::containers::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(crate) struct Mount;

impl Isolator for Mount {
    fn name(&self) -> &'static str {
        "namespaces/mnt"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.mount_namespace = true;
    }
}
