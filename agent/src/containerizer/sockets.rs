//! In which container a caller's connection was opened.

use meseta_daemon::authentication::ContainerSockets;
use meseta_daemon::owner::SocketOwner;
use meseta_isolators::{ContainerName, ProcessIdentity, Socket};
use meseta_resources::ContainerId;

use super::{Containerizer, blocking};

impl Containerizer {
    /// The one of these containers that it was opened inside, not in one that is nested in that.
    pub(crate) async fn opened_in(
        &self,
        containers: Vec<ContainerId>,
        owner: SocketOwner,
    ) -> Option<ContainerId> {
        let with_supervisor = |container: ContainerId| {
            let supervisor = self.supervisor_of(&container);
            (container, supervisor)
        };
        let containers: Vec<(_, Option<ProcessIdentity>)> =
            containers.into_iter().map(with_supervisor).collect();
        let inner = self.inner.clone();
        let search = blocking(move || {
            let mut containers = containers.into_iter();
            let found = containers.find(|(container, supervisor)| {
                ContainerName::new(container.as_str()).is_ok_and(|name| {
                    let supervisor = supervisor.as_ref();
                    inner
                        .containers
                        .opened(&name, supervisor, socket_of(&owner))
                })
            });
            found.map(|(container, _)| container)
        });
        search.await.ok().flatten()
    }
}

impl ContainerSockets for Containerizer {
    fn is_inside(&self, owner: &SocketOwner) -> bool {
        self.inner.containers.opened_by_any(socket_of(owner))
    }
}

fn socket_of(owner: &SocketOwner) -> Socket {
    Socket {
        inode: owner.inode,
        cgroup: owner.cgroup,
    }
}
