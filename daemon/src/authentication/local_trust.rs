//! The local clients that are trusted as the operator without credentials.
//!
//! On loopback a daemon trusts root and its own user outside containers, and no other client: tasks on the same machine
//! could otherwise launch anything as root. Invariants: a client whose user the kernel does not report is not trusted; the
//! query to the kernel concerns this one connection, so that neither other connections nor containers nor descriptors make
//! it more expensive.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use super::Realm;
use crate::background;
use crate::owner::SocketOwner;
use crate::server::Peer;
use crate::task_sockets;

/// The error for an untrusted local client where no credentials are configured.
pub(super) const UNTRUSTED_LOCAL_USER: &str = "Only root and the user of this daemon may call it without \
    authentication, and no task may: authenticate (the daemon needs --credentials, on an agent \
    --http_credentials), or admit all users of this machine with \
    --authenticate_http_readonly=false \
    and --authenticate_http_readwrite=false";

/// Threads that look up the clients of new connections: a burst of connections takes no more.
static LOOKUPS: Semaphore = Semaphore::const_new(8);

/// Recognizes the sockets that were opened in containers.
pub trait ContainerSockets: Send + Sync {
    /// Whether the socket was opened in a container. May block for some milliseconds.
    fn is_inside(&self, socket: &SocketOwner) -> bool;
}

#[derive(Default)]
pub(super) struct LocalTrust {
    enforced_in: Vec<Realm>,
    container_sockets: OnceLock<Arc<dyn ContainerSockets>>,
}

impl fmt::Debug for LocalTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTrust")
            .field("enforced_in", &self.enforced_in)
            .finish_non_exhaustive()
    }
}

impl LocalTrust {
    pub(super) fn enforced_in(realms: Vec<Realm>) -> Self {
        Self {
            enforced_in: realms,
            ..Self::default()
        }
    }

    pub(super) fn is_enforced_in(&self, realm: Realm) -> bool {
        self.enforced_in.contains(&realm)
    }

    pub(super) fn set_container_sockets(&self, container_sockets: Arc<dyn ContainerSockets>) {
        let _ = self.container_sockets.set(container_sockets);
    }

    pub(super) async fn trusts(&self, peer: &Peer) -> bool {
        let Some(owner) = peer.owner() else {
            return false;
        };
        let own = rustix::process::geteuid();
        if owner.uid != 0 && owner.uid != own.as_raw() {
            return false;
        }
        let Some(container_sockets) = self.container_sockets.get() else {
            return true;
        };
        // Tasks of an agent without root run as the agent's own user: nothing separates them from it.
        if !own.is_root() {
            return true;
        }
        let (peer, container_sockets) = (peer.clone(), container_sockets.clone());
        let Ok(permit) = LOOKUPS.acquire().await else {
            return false;
        };
        let checking = background::spawn(move || {
            let _permit = permit;
            peer.is_confined(|| {
                task_sockets::is_recorded(owner.inode)
                    || container_sockets.is_inside(&owner)
                    || !peer.is_open()
            })
        });
        checking.await.is_ok_and(|confined| !confined)
    }
}
