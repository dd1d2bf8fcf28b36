//! The peer of a connection: its address, certificate and local user.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::admission::{ConnectionSlot, Entry, InUse};
use crate::owner::SocketOwner;
use crate::tls::PeerCertificate;

/// The facts about the other side of a connection; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The local address of the connection.
    local: Option<SocketAddr>,
    /// Whether the connection uses TLS.
    pub encrypted: bool,
    pub certificate: Option<Arc<PeerCertificate>>,
    slot: Arc<ConnectionSlot>,
    /// The results of lookups, once for the connection.
    found: Arc<Found>,
}

#[derive(Debug, Default)]
struct Found {
    owner: OnceLock<Option<SocketOwner>>,
    /// Whether the peer is inside a container of this machine's agents.
    confined: OnceLock<bool>,
}

impl Peer {
    /// Creates a peer. `owner` is the user who opened the connection, as far as already known.
    pub(super) fn new(
        address: SocketAddr,
        local: Option<SocketAddr>,
        (slot, owner): (ConnectionSlot, Option<SocketOwner>),
    ) -> Self {
        let found = Found::default();
        if owner.is_some() {
            let _ = found.owner.set(owner);
        }
        Self {
            address,
            local,
            encrypted: false,
            certificate: None,
            slot: Arc::new(slot),
            found: Arc::new(found),
        }
    }

    /// Returns a peer without a connection, for tests of routes.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        let slot = ConnectionSlot::alone(address.ip(), Instant::now());
        Self::new(address, None, (slot, None))
    }

    /// Whether the peer is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let ip = self.address.ip().to_canonical();
        let local = self.local.map(|local| local.ip().to_canonical());
        ip.is_loopback() || local == Some(ip)
    }

    /// Returns the owner of the connection, if it is local and the kernel knows it.
    #[must_use]
    pub fn owner(&self) -> Option<SocketOwner> {
        let find = || SocketOwner::find(self.address, self.local?);
        *self.found.owner.get_or_init(find)
    }

    /// Whether the owner still has the socket that identified it: a socket closed before the lookup belongs to no one. True
    /// for a peer without a connection.
    pub(crate) fn is_open(&self) -> bool {
        let Some(local) = self.local else {
            return true;
        };
        let inode = |owner: SocketOwner| owner.inode;
        let now = SocketOwner::find(self.address, local).map(inode);
        now.is_some() && now == self.owner().map(inode)
    }

    /// Whether the owner is inside a container, determined by `check` at the first call.
    pub fn is_confined(&self, check: impl FnOnce() -> bool) -> bool {
        *self.found.confined.get_or_init(check)
    }

    /// Returns a peer with this owner, for tests.
    #[must_use]
    pub fn owned(address: SocketAddr, owner: Option<SocketOwner>) -> Self {
        let peer = Self::at(address);
        let _ = peer.found.owner.set(owner);
        peer
    }

    /// Marks the connection as authenticated by this principal: it no longer counts towards the limit of unauthenticated
    /// connections, and is evicted only if the principal has more than half of all.
    pub fn set_principal(&self, name: &str) {
        self.slot.set_principal(name);
    }

    /// Marks the connection as authenticated, so that it no longer counts towards the limit of unauthenticated ones. The
    /// caller bounds such connections itself.
    pub fn set_authenticated(&self) {
        self.slot.set_authenticated();
    }

    /// Returns the connection of its requests.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection(self.slot.entry.clone())
    }

    /// Whether no request of this peer was authenticated.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.slot.is_unauthenticated()
    }

    /// Records that a request begins to arrive; see [`InUse::start`].
    pub(super) fn begin(&self) -> InUse {
        self.slot.begin()
    }
}

/// A connection, for code that has to end it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Entry>);

impl Connection {
    /// Ends the connection at once, including requests in progress.
    pub fn close(&self) {
        self.0.close();
    }

    /// Marks the connection as carrying a long-lived stream, which is not evicted for the age of its response.
    pub fn set_long_lived(&self) {
        self.0.set_long_lived();
    }

    /// Whether the connection must end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Whether the connection has ended or is about to end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Waits until the connection has to end at once.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}
