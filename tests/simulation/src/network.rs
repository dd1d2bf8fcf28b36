//! Connections between agents and masters.
//!
//! First in, first out for each direction; a direction stalls alone, a connection breaks and loses a part of what is on
//! its way. Several connections of one agent may carry something at once: what an earlier one has still to bring comes
//! late, or again.

use std::collections::{BTreeMap, VecDeque};

use meseta_agent::core::LinkId;
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};

/// How long an agent waits until its connection is taken, as the daemon does.
const TAKEN_TIMEOUT_NANOS: u64 = 30_000_000_000;

/// What comes to an agent on a connection.
#[derive(Debug)]
pub(crate) enum ToAgent {
    /// The master has taken the connection, and leads with this.
    Taken(LedEpoch),
    Frame(Box<MasterFrame>),
    /// Behind what was sent before.
    End,
}

/// A connection of an agent; `None` on the way to the master is its end, behind what was sent before.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) agent: usize,
    pub(crate) link: LinkId,
    /// The process that it leads to.
    pub(crate) master: u64,
    pub(crate) to_master: VecDeque<Option<Box<agent_frame::Message>>>,
    pub(crate) to_agent: VecDeque<ToAgent>,
    /// The master has taken it: before that it knows nothing of it.
    pub(crate) is_taken: bool,
    /// When it was opened, in true time.
    opened: u64,
    /// One of its ends is gone: nothing more can be sent on it.
    pub(crate) is_broken: bool,
    /// Nothing arrives at the master, or at the agent, until it breaks or goes on.
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

    /// It breaks; some of what was on its way is lost.
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

    /// Both ends hear of it behind what was sent before; a master that has not taken it does so all the same, later.
    pub(crate) fn end(&mut self) {
        self.to_master.push_back(None);
        self.to_agent.push_back(ToAgent::End);
        self.is_stalled = [false; 2];
        self.is_broken = true;
    }

    /// When the agent gives it up, unless it is taken before.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let waits = !self.is_taken && !self.is_broken;
        waits.then_some(self.opened + TAKEN_TIMEOUT_NANOS)
    }

    /// The process at the master's end is gone, with what it has not read.
    pub(crate) fn lose_master(&mut self, rng: &mut fastrand::Rng) {
        self.cut(rng);
        self.to_master.clear();
    }

    /// The same of the agent's end.
    pub(crate) fn lose_agent(&mut self, rng: &mut fastrand::Rng) {
        self.cut(rng);
        self.to_agent.clear();
    }

    fn is_over(&self) -> bool {
        self.is_broken && self.to_master.is_empty() && self.to_agent.is_empty()
    }

    /// Whether something can arrive at the master, or at the agent.
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
    /// The connections on which something can arrive: their numbers, and whether at the master.
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

    /// The last connection of an agent by this name.
    pub(crate) fn of_link(&mut self, agent: usize, link: LinkId) -> Option<&mut Connection> {
        let mut connections = self.connections.values_mut().rev();
        connections.find(|one| one.agent == agent && one.link == link)
    }

    /// Any of the connections, if there is one.
    pub(crate) fn any(&self, rng: &mut fastrand::Rng) -> Option<u64> {
        let at = rng.usize(..self.connections.len().max(1));
        self.connections.keys().nth(at).copied()
    }
}
