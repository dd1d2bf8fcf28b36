//! The connections of agents, from the accept to the end.
//!
//! A connection opens with its caller, waits in a handshake while the registration is not durable, and then belongs
//! to one agent. Invariant: a closed connection is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use meseta_daemon::authentication::Caller;
use meseta_resources::AgentId;

use crate::core::ids::ConnectionId;

/// The open connections of agents.
#[derive(Debug, Default)]
pub(crate) struct AgentConnections {
    /// The callers that opened the connections.
    callers: BTreeMap<ConnectionId, Caller>,
    /// Connections of agents whose registration waits for the registry.
    handshakes: BTreeSet<ConnectionId>,
    agents: BTreeMap<ConnectionId, AgentId>,
}

impl AgentConnections {
    /// Opens a connection.
    pub(crate) fn open(&mut self, connection: ConnectionId, caller: Caller) {
        self.callers.insert(connection, caller);
    }

    /// Closes a connection, and returns its agent.
    pub(crate) fn close(&mut self, connection: ConnectionId) -> Option<AgentId> {
        self.callers.remove(&connection);
        self.handshakes.remove(&connection);
        self.agents.remove(&connection)
    }

    /// The caller of an open connection.
    pub(crate) fn caller(&self, connection: ConnectionId) -> Option<&Caller> {
        self.callers.get(&connection)
    }

    pub(crate) fn begin_handshake(&mut self, connection: ConnectionId) {
        self.handshakes.insert(connection);
    }

    pub(crate) fn is_in_handshake(&self, connection: ConnectionId) -> bool {
        self.handshakes.contains(&connection)
    }

    /// Ends a handshake. Returns false if the connection has closed meanwhile.
    pub(crate) fn end_handshake(&mut self, connection: ConnectionId) -> bool {
        self.handshakes.remove(&connection)
    }

    /// Assigns a connection to an agent.
    pub(crate) fn assign(&mut self, connection: ConnectionId, agent: AgentId) {
        self.agents.insert(connection, agent);
    }

    /// Ignores further messages on a connection, because the agent has another one or is removed.
    pub(crate) fn release(&mut self, connection: ConnectionId) {
        self.agents.remove(&connection);
    }

    /// The agent that registered on a connection.
    pub(crate) fn agent(&self, connection: ConnectionId) -> Option<&AgentId> {
        self.agents.get(&connection)
    }
}
