//! Connections authenticated as an executor's: exempt from the limits on anonymous connections.
//!
//! Invariant: their number is bounded for each container and in total, including ended containers. An executor
//! therefore cannot fill a daemon with exempt connections, even by handing them to other processes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use meseta_daemon::server::{Connection, Peer};
use meseta_resources::ContainerId;

/// Connections of one container: its stream of events, parallel calls, and connections left by an earlier process.
const OF_CONTAINER_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct ExecutorConnections {
    connections_max: usize,
    known: Mutex<BTreeMap<ContainerId, Vec<Connection>>>,
}

impl ExecutorConnections {
    /// Creates the table of a daemon with this connection limit: half of the connections are left to others.
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            connections_max: connections_max / 2,
            known: Mutex::default(),
        }
    }

    /// Marks a connection as that of the container's executor, up to a limit. Closes the connections of ended
    /// containers.
    pub(crate) fn register(
        &self,
        container: &ContainerId,
        peer: &Peer,
        is_there: impl Fn(&ContainerId) -> bool,
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|container, connections| {
            let is_there = is_there(container);
            connections.retain(|one| !one.is_over());
            if !is_there {
                connections.iter().for_each(Connection::close);
            }
            is_there && !connections.is_empty()
        });
        let count: usize = known.values().map(Vec::len).sum();
        if count >= self.connections_max || !is_there(container) {
            return;
        }
        let connections = known.entry(container.clone()).or_default();
        if connections.len() < OF_CONTAINER_MAX {
            connections.push(peer.connection());
            peer.set_authenticated();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::at(([127, 0, 0, 1], 1).into())
    }

    #[test]
    fn connections_per_executor_are_bounded() {
        let executor_connections = ExecutorConnections::new(1_024);
        let register =
            |id: &ContainerId, peer: &Peer| executor_connections.register(id, peer, |_| true);
        let [one, other] = ["one", "other"].map(|id| ContainerId::new(id).expect("valid"));
        let mut open = Vec::new();
        for _ in 0..OF_CONTAINER_MAX {
            let peer = peer();
            register(&one, &peer);
            assert!(!peer.is_unauthenticated());
            open.push(peer);
        }
        let further = peer();
        register(&one, &further);
        assert!(further.is_unauthenticated());
        let of_other = peer();
        register(&other, &of_other);
        assert!(!of_other.is_unauthenticated());
        open.pop();
        register(&one, &further);
        assert!(!further.is_unauthenticated(), "an earlier one has ended");
    }

    #[test]
    fn abandoned_connections_are_closed() {
        let executor_connections = ExecutorConnections::new(4);
        let mut left = Vec::new();
        for life in 0..10 {
            let id = ContainerId::new(&format!("life-{life}")).expect("valid");
            let peers = [peer(), peer()];
            for peer in &peers {
                executor_connections.register(&id, peer, |one| *one == id);
                assert!(!peer.is_unauthenticated());
            }
            left.extend(peers);
        }
        let closed = left.iter().filter(|peer| peer.connection().is_closed());
        assert_eq!(closed.count(), 18);
        let id = ContainerId::new("one-more").expect("valid");
        let further = peer();
        executor_connections.register(&id, &further, |_| true);
        assert!(further.is_unauthenticated(), "half are for others");
    }
}
