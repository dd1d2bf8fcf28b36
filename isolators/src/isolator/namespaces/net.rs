//! namespaces/net: its own network, with the loopback interface and nothing else; also its own abstract sockets.

use crate::containers::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::LaunchIsolation;

#[derive(Debug)]
pub(crate) struct Network;

impl Isolator for Network {
    fn name(&self) -> &'static str {
        "namespaces/net"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) {
        launch.network_namespace = true;
    }
}
