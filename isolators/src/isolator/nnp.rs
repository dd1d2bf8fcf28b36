//! linux/nnp: no program of the container gains privileges by exec (set-user-id, file capabilities).

use super::Isolator;
use crate::isolator::ContainerSpec;
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(super) struct NoNewPrivs;

impl Isolator for NoNewPrivs {
    fn name(&self) -> &'static str {
        "linux/nnp"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        launch.no_new_privs = true;
        Ok(())
    }
}
