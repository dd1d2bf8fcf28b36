//! Finds the container that opened a caller's connection.

use meseta_daemon::authentication::ContainerSockets;
use meseta_daemon::owner::SocketOwner;
use meseta_isolators::{ContainerName, Socket};
use meseta_resources::ContainerId;

use super::{Containerizer, blocking};

impl Containerizer {
    /// Returns the one of these containers that opened the connection itself, not through a nested container.
    pub(crate) async fn opened_in(
        &self,
        containers: Vec<ContainerId>,
        owner: SocketOwner,
    ) -> Option<ContainerId> {
        let candidate = |container: ContainerId| {
            let name = ContainerName::new(container.as_str()).ok()?;
            Some((name, self.supervisor_of(&container)))
        };
        let candidates: Vec<_> = containers.into_iter().filter_map(candidate).collect();
        let inner = self.inner.clone();
        let search = blocking(move || {
            let found = inner.containers.find_opened(candidates, socket_of(&owner));
            found.and_then(|name| ContainerId::new(name.as_str()).ok())
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
