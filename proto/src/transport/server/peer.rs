//! The other side of a connection: where it is, and what it has shown.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;

use super::admission::{Entry, InUse, Place};
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
}

impl Peer {
    pub(super) fn new(address: SocketAddr, local: Option<SocketAddr>, place: Place) -> Self {
        Self {
            address,
            local,
            encrypted: false,
            certificate: None,
            place: Arc::new(place),
        }
    }

    /// One without a connection, for tests of routes.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self::new(address, None, Place::alone(address.ip(), Instant::now()))
    }

    /// Whether it is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let ip = self.address.ip().to_canonical();
        let local = self.local.map(|local| local.ip().to_canonical());
        ip.is_loopback() || local == Some(ip)
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

    /// A request of it is being answered until this is dropped.
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

    /// When it is to end at once.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}
