//! namespaces/*: separation of the container from the host. `cgroup` is a file of its own.

mod cgroup;

use super::{ContainerSpec, Isolator};
use crate::launcher::LaunchIsolation;

pub(super) use cgroup::Cgroup;

/// The kernel's limit on a host name, in bytes.
const HOSTNAME_BYTES_MAX: usize = 64;

/// The namespaces that a launch creates on request and that need nothing else.
#[derive(Debug)]
pub(super) enum Namespace {
    /// A private set of System V objects and POSIX message queues.
    Ipc,
    /// Private mounts, invisible to the host, that end with the namespace; with a pid namespace also a private `/proc`.
    Mount,
    /// A private network with only the loopback interface; also private abstract sockets.
    Network,
    /// Private process numbers; the supervisor is the first process, and its end kills all others.
    Pid,
    /// A private host name.
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
                // A process inside another container has the host name of that container.
                if let Some(name) = spec.hostname.as_ref().filter(|_| spec.inside.is_none()) {
                    check_hostname(name)?;
                }
                launch.uts_namespace = true;
                launch.hostname.clone_from(&spec.hostname);
            }
        }
        Ok(())
    }
}

fn check_hostname(name: &str) -> Result<(), String> {
    let length = name.len();
    match length > HOSTNAME_BYTES_MAX {
        true => Err(format!(
            "its host name has {length} bytes, more than {HOSTNAME_BYTES_MAX}"
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::Demand;
    use crate::identity::{BootId, ContainerName, ProcessIdentity};
    use crate::isolator::{Inside, TaskIsolation};
    use crate::launcher::{Command, Destination};

    /// Regression: a host name that was not even applied failed the launch, and the checks of running containers.
    #[test]
    fn host_name_length_checked_when_applied() {
        let supervisor = ProcessIdentity {
            pid: 1,
            start_ticks: 1,
            boot_id: BootId::from_text("b"),
        };
        let inside = Inside {
            supervisor,
            stdin: None,
            terminal: false,
        };
        let spec = |length: usize, inside: Option<Inside>| ContainerSpec {
            name: ContainerName::new("c").expect("a name"),
            command: Command::Nothing,
            env: Vec::new(),
            working_dir: "/".into(),
            credentials: None,
            stdout: Destination::Null,
            stderr: Destination::Null,
            hostname: Some("n".repeat(length)),
            rlimits: Vec::new(),
            demand: Demand::default(),
            isolation: TaskIsolation::default(),
            inside,
        };
        let launched = |namespace: Namespace, spec| {
            let mut launch = LaunchIsolation::default();
            namespace.launch(&spec, &mut launch)
        };
        assert_eq!(launched(Namespace::Uts, spec(64, None)), Ok(()));
        let refused = launched(Namespace::Uts, spec(65, None));
        let expected = "its host name has 65 bytes, more than 64";
        assert_eq!(refused, Err(expected.to_owned()));
        assert_eq!(launched(Namespace::Uts, spec(65, Some(inside))), Ok(()));
        assert_eq!(launched(Namespace::Pid, spec(65, None)), Ok(()));
    }
}
