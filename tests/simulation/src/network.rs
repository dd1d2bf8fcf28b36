//! Connections between agents and masters.
//!
//! Each direction is first in, first out. A direction may stall alone; a breaking connection loses a part of the messages
//! on their way. Several connections of one agent may carry messages at once: the rest of an earlier one comes late, or
//! again.

use std::collections::{BTreeMap, VecDeque};

use meseta_agent::core::LinkId;
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};

/// The time that an agent waits for a master to accept its connection, as the daemon does.
const TAKEN_TIMEOUT_NANOS: u64 = 30_000_000_000;

/// A message to an agent on a connection.
#[derive(Debug)]
pub(crate) enum ToAgent {
    /// The master has accepted the connection, and leads with this epoch.
    Taken(LedEpoch),
    Frame(Box<MasterFrame>),
    /// The end of the connection, behind all messages.
    End,
}

/// A connection of an agent; `None` on the way to the master is its end, behind all earlier messages.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) agent: usize,
    pub(crate) link: LinkId,
    /// The master process at the other end.
    pub(crate) master: u64,
    pub(crate) to_master: VecDeque<Option<Box<agent_frame::Message>>>,
    pub(crate) to_agent: VecDeque<ToAgent>,
    /// The master has accepted the connection: before that it knows nothing of it.
    pub(crate) is_taken: bool,
    /// The time when it was opened, in true time.
    opened: u64,
    /// An end of the connection is gone: no more messages can be sent on it.
    pub(crate) is_broken: bool,
    /// No message arrives at the master, or at the agent, until the connection breaks or continues.
    pub(crate) is_stalled: [bool; 2],
}

impl Connection {
    pub(crate) fn new(agent: usize, link: LinkId, master: u64, time: u64) -> Self {
        Self {
            agent,
            link,
            master,
            to_master: VecDeque::new(),
            to_agent: VecDeque::new(),
            is_taken: false,
            opened: time,
            is_broken: false,
            is_stalled: [false; 2],
        }
    }

    /// Breaks the connection; some of the messages on their way are lost.
    pub(crate) fn cut(&mut self, rng: &mut fastrand::Rng) {
        if self.is_broken {
            return;
        }
        let kept = rng.usize(..=self.to_master.len());
        self.to_master.truncate(kept);
        let kept = rng.usize(..=self.to_agent.len());
        self.to_agent.truncate(kept);
        self.end();
    }

    /// Ends the connection: both ends learn of it behind all earlier messages; a master that has not accepted it does so
    /// later nevertheless.
    pub(crate) fn end(&mut self) {
        self.to_master.push_back(None);
        self.to_agent.push_back(ToAgent::End);
        self.is_stalled = [false; 2];
        self.is_broken = true;
    }

    /// Returns the time when the agent gives the connection up, unless a master accepts it before.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let waits = !self.is_taken && !self.is_broken;
        waits.then_some(self.opened + TAKEN_TIMEOUT_NANOS)
    }

    /// Ends the master's side, with its unread messages.
    pub(crate) fn lose_master(&mut self, rng: &mut fastrand::Rng) {
        self.cut(rng);
        self.to_master.clear();
    }

    /// Loses the agent's end of the connection.
    pub(crate) fn lose_agent(&mut self, rng: &mut fastrand::Rng) {
        self.cut(rng);
        self.to_agent.clear();
    }

    fn is_over(&self) -> bool {
        self.is_broken && self.to_master.is_empty() && self.to_agent.is_empty()
    }

    /// Whether data can arrive at the master, or at the agent.
    pub(crate) fn brings(&self, at_master: bool) -> bool {
        match at_master {
            true => {
                let is_new = !self.is_taken && !self.is_broken;
                !self.is_stalled[0] && (is_new || !self.to_master.is_empty())
            }
            false => !self.is_stalled[1] && !self.to_agent.is_empty(),
        }
    }
}

/// All connections, by number.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) connections: BTreeMap<u64, Connection>,
}

impl Network {
    /// Returns the connections on which data can arrive: their numbers, and whether at the master.
    pub(crate) fn ready(&mut self, hears: impl Fn(&Connection, bool) -> bool) -> Vec<(u64, bool)> {
        self.connections.retain(|_, one| !one.is_over());
        let mut ready = Vec::new();
        for (id, one) in &self.connections {
            for at_master in [true, false] {
                if one.brings(at_master) && hears(one, at_master) {
                    ready.push((*id, at_master));
                }
            }
        }
        ready
    }

    /// Returns the last connection of an agent with this link id.
    pub(crate) fn of_link(&mut self, agent: usize, link: LinkId) -> Option<&mut Connection> {
        let mut connections = self.connections.values_mut().rev();
        connections.find(|one| one.agent == agent && one.link == link)
    }

    /// Returns a random connection, if there is one.
    pub(crate) fn any(&self, rng: &mut fastrand::Rng) -> Option<u64> {
        let at = rng.usize(..self.connections.len().max(1));
        self.connections.keys().nth(at).copied()
    }
}
