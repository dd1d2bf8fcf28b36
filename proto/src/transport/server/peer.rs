//! The other side of a connection: where it is, and what it has shown.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::admission::{Entry, InUse, Place};
use crate::transport::owner::SocketOwner;
use crate::transport::tls::PeerCertificate;

/// What is known of the other side; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// Where it reached us.
    local: Option<SocketAddr>,
    /// It speaks TLS.
    pub encrypted: bool,
    pub certificate: Option<Arc<PeerCertificate>>,
    place: Arc<Place>,
    /// What was found out of it, once for the connection.
    found: Arc<Found>,
}

#[derive(Debug, Default)]
struct Found {
    owner: OnceLock<Option<SocketOwner>>,
    /// Whether it is inside a container of this machine's agents.
    confined: OnceLock<bool>,
}

impl Peer {
    /// `owner` is who opened it, as far as that was found out already.
    pub(super) fn new(
        address: SocketAddr,
        local: Option<SocketAddr>,
        (place, owner): (Place, Option<SocketOwner>),
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
            place: Arc::new(place),
            found: Arc::new(found),
        }
    }

    /// One without a connection, for tests of routes.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        let place = Place::alone(address.ip(), Instant::now());
        Self::new(address, None, (place, None))
    }

    /// Whether it is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let ip = self.address.ip().to_canonical();
        let local = self.local.map(|local| local.ip().to_canonical());
        ip.is_loopback() || local == Some(ip)
    }

    /// Who opened the connection, where the kernel can tell: on this machine.
    #[must_use]
    pub fn owner(&self) -> Option<SocketOwner> {
        let find = || SocketOwner::find(self.address, self.local?);
        *self.found.owner.get_or_init(find)
    }

    /// Whether the owner still has the socket that it was found by: one that was closed before its owner was looked
    /// for is nobody's. Always so for one without a connection.
    pub(crate) fn is_open(&self) -> bool {
        let Some(local) = self.local else {
            return true;
        };
        let inode = |owner: SocketOwner| owner.inode;
        let now = SocketOwner::find(self.address, local).map(inode);
        now.is_some() && now == self.owner().map(inode)
    }

    /// Whether the owner is inside a container, which `look` finds out at the first call.
    pub fn is_confined(&self, look: impl FnOnce() -> bool) -> bool {
        *self.found.confined.get_or_init(look)
    }

    /// One that a test says was opened by this owner.
    #[must_use]
    pub fn owned(address: SocketAddr, owner: Option<SocketOwner>) -> Self {
        let peer = Self::at(address);
        let _ = peer.found.owner.set(owner);
        peer
    }

    /// Somebody who has said who he is no longer counts towards the limit of strangers.
    pub fn introduced(&self) {
        self.place.introduced();
    }

    /// What its requests come over.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection(self.place.entry.clone())
    }

    /// Whether it has not said who he is.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        self.place.is_stranger()
    }

    /// A request of it begins to come; see [`InUse::start`].
    pub(super) fn begin(&self) -> InUse {
        self.place.begin()
    }
}

/// A connection, for those who have to end it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Entry>);

impl Connection {
    /// Ends it at once, with whatever is under way on it.
    pub fn close(&self) {
        self.0.close();
    }

    /// It carries a stream that is meant to last: it is not ended because its answer takes long.
    pub fn lasts(&self) {
        self.0.lasts();
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Whether it has ended, or is about to.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// When it is to end at once.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}
