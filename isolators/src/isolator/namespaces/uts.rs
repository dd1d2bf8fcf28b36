//! namespaces/uts: its own host name.

use crate::containers::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(crate) struct Uts;

impl Isolator for Uts {
    fn name(&self) -> &'static str {
        "namespaces/uts"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.uts_namespace = true;
        launch.hostname.clone_from(&spec.hostname);
    }
}
