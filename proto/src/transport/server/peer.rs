//! The other side of a connection: where it is, what it has shown, and its place in the count.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

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
        let addresses = Addresses::new(usize::MAX);
        let place = Place {
            address: None,
            addresses,
        };
        Self::new(address, None, place)
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
        self.place.give_back();
    }
}

/// Connections by address.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    max: usize,
}

/// One connection in the count.
#[derive(Debug)]
pub(super) struct Place {
    address: Option<Mutex<Option<IpAddr>>>,
    addresses: Addresses,
}

impl Addresses {
    pub(super) fn new(max: usize) -> Self {
        Self {
            counts: Arc::default(),
            max,
        }
    }

    /// Counts a connection; none if there are too many.
    pub(super) fn take(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Some(Place {
                address: None,
                addresses: self.clone(),
            });
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Place {
            address: Some(Mutex::new(Some(address))),
            addresses: self.clone(),
        })
    }
}

impl Place {
    fn give_back(&self) {
        let Some(address) = &self.address else { return };
        let mut address = address.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(address) = address.take() else {
            return;
        };
        let counts = &self.addresses.counts;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_one_address_are_counted_until_they_leave_or_are_known() {
        let addresses = Addresses::new(2);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let first = addresses.take(address).unwrap();
        let second = addresses.take(address).unwrap();
        assert!(addresses.take(address).is_none());
        assert!(addresses.take("10.0.0.2".parse().unwrap()).is_some());
        drop(first);
        let third = addresses.take(address).unwrap();
        assert!(addresses.take(address).is_none());
        second.give_back();
        second.give_back();
        let fourth = addresses.take(address).unwrap();
        assert!(addresses.take(address).is_none(), "given back once only");
        drop((second, third, fourth));
        assert!(addresses.counts.lock().unwrap().is_empty());
        for _ in 0..10 {
            let loopback = addresses.take("::ffff:127.0.0.1".parse().unwrap());
            assert!(loopback.is_some());
        }
    }
}
