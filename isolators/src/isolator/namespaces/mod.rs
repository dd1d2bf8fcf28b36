//! namespaces/*: what a container does not share with the host. `cgroup` is a file of its own.

mod cgroup;

use super::{ContainerSpec, Isolator};
use crate::launcher::LaunchIsolation;

pub(super) use cgroup::Cgroup;

/// The namespaces that are asked of the launch and need nothing else.
#[derive(Debug)]
pub(super) enum Namespace {
    /// Its own System V objects and POSIX message queues.
    Ipc,
    /// Its own mounts, that the host never sees and that die with it; with a pid namespace its own `/proc`.
    Mount,
    /// Its own network, with the loopback interface and nothing else; also its own abstract sockets.
    Network,
    /// Its own process numbers; the supervisor is the first process, and its end is the end of all.
    Pid,
    /// Its own host name.
    Uts,
}

impl Isolator for Namespace {
    fn name(&self) -> &'static str {
        match self {
            Self::Ipc => "namespaces/ipc",
            Self::Mount => "namespaces/mnt",
            Self::Network => "namespaces/net",
            Self::Pid => "namespaces/pid",
            Self::Uts => "namespaces/uts",
        }
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        match self {
            Self::Ipc => launch.ipc_namespace |= !spec.isolation.share_ipc_namespace,
            Self::Mount => launch.mount_namespace = true,
            Self::Network => launch.network_namespace = true,
            Self::Pid => launch.pid_namespace |= !spec.isolation.share_pid_namespace,
            Self::Uts => {
                launch.uts_namespace = true;
                launch.hostname.clone_from(&spec.hostname);
            }
        }
        Ok(())
    }
}
