//! The life of agents, and the table of those that are not registered.
//!
//! | from | to | cause |
//! |---|---|---|
//! | unknown | registered | the agent registers |
//! | registered | expected | the master restarts |
//! | registered, expected | unreachable | the agent does not answer, or does not come back |
//! | expected, unreachable, unknown | registered | the agent reregisters |
//! | unreachable | expected | the agent's connection ends while the registry stores its return |
//! | registered, expected | unknown | another agent takes its location, or its machine goes down |
//! | every state except unknown | gone | an operator marks the agent gone |
//! | unreachable, gone | unknown | the registry drops the agent for its age |
//!
//! Two marks announce changes that wait for the registry: an agent is *returning* while the registry stores its
//! reregistration, and *going* while the registry marks the agent gone. Invariants: an absent agent has one state; the
//! registry drops no agent that is returning or going.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::mesos::v1::AgentInfo;
use meseta_resources::AgentId;

use super::agent::{Agent, RecoveredAgent, UnreachableAgent};
use super::inverse_offers::forget;
use super::locations::{Endpoint, endpoint};

/// The state of an agent.
pub(crate) enum AgentLife<'a> {
    /// The agent is in the registry, and has not come back to this master.
    Expected(&'a RecoveredAgent),
    Registered(&'a Agent),
    Unreachable(&'a UnreachableAgent),
    Gone,
    Unknown,
}

/// The agents that are known, but not registered.
#[derive(Debug, Default)]
pub(crate) struct AbsentAgents {
    expected: BTreeMap<AgentId, RecoveredAgent>,
    /// The expected agents by endpoint.
    expected_at: BTreeMap<Endpoint, BTreeSet<AgentId>>,
    unreachable: BTreeMap<AgentId, UnreachableAgent>,
    /// The time since the Unix epoch at which each agent was marked gone.
    gone: BTreeMap<AgentId, Duration>,
    /// Agents whose reregistration waits for the registry.
    returning: BTreeSet<AgentId>,
    /// Agents that the registry is about to record as gone.
    going: BTreeSet<AgentId>,
}

/// The limits on lost agents in the registry.
#[derive(Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) agents_max: usize,
    pub(crate) age_max: Duration,
    /// The time since the Unix epoch.
    pub(crate) now: Duration,
}

impl AbsentAgents {
    /// The state of an agent, given its record if it is registered.
    pub(crate) fn life_of<'a>(&'a self, id: &str, registered: Option<&'a Agent>) -> AgentLife<'a> {
        if let Some(agent) = self.expected.get(id) {
            AgentLife::Expected(agent)
        } else if let Some(agent) = registered {
            AgentLife::Registered(agent)
        } else if let Some(agent) = self.unreachable.get(id) {
            AgentLife::Unreachable(agent)
        } else if self.gone.contains_key(id) {
            AgentLife::Gone
        } else {
            AgentLife::Unknown
        }
    }

    /// Adds an agent of the registry to the expected ones.
    pub(crate) fn expect(&mut self, id: AgentId, agent: RecoveredAgent) {
        let there = self.expected_at.entry(endpoint(&agent.info));
        there.or_default().insert(id.clone());
        self.expected.insert(id, agent);
    }

    /// Removes an agent from the expected ones.
    pub(crate) fn take_expected(&mut self, id: &AgentId) -> Option<RecoveredAgent> {
        let agent = self.expected.remove(id)?;
        forget(&mut self.expected_at, &endpoint(&agent.info), id);
        Some(agent)
    }

    /// The expected agents, ordered by id.
    pub(crate) fn expected(&self) -> impl ExactSizeIterator<Item = (&AgentId, &RecoveredAgent)> {
        self.expected.iter()
    }

    /// The record of an expected agent.
    pub(crate) fn find_expected(&self, id: &AgentId) -> Option<&RecoveredAgent> {
        self.expected.get(id)
    }

    /// Whether agents are expected that have not come back.
    pub(crate) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// The expected agents at the endpoint of this agent.
    pub(crate) fn expected_at(&self, info: &AgentInfo) -> impl Iterator<Item = &AgentId> {
        self.expected_at.get(&endpoint(info)).into_iter().flatten()
    }

    /// Whether an expected agent may be removed: no change of its state waits for the registry.
    pub(crate) fn is_removable(&self, id: &AgentId) -> bool {
        let expected = self.expected.get(id);
        expected.is_some_and(|agent| !agent.removal_pending) && !self.is_changing(id)
    }

    /// Begins the removal of an expected agent, if it may be removed.
    pub(crate) fn begin_removal(&mut self, id: &AgentId) -> Option<&RecoveredAgent> {
        if !self.is_removable(id) {
            return None;
        }
        let agent = self.expected.get_mut(id)?;
        agent.removal_pending = true;
        Some(agent)
    }

    pub(crate) fn mark_unreachable(&mut self, id: AgentId, agent: UnreachableAgent) {
        self.unreachable.insert(id, agent);
    }

    /// Removes an agent from the unreachable ones. Returns whether it was one of them.
    pub(crate) fn forget_unreachable(&mut self, id: &AgentId) -> bool {
        self.unreachable.remove(id).is_some()
    }

    /// The unreachable agents, ordered by id.
    pub(crate) fn unreachable(
        &self,
    ) -> impl ExactSizeIterator<Item = (&AgentId, &UnreachableAgent)> {
        self.unreachable.iter()
    }

    pub(crate) fn mark_gone(&mut self, id: AgentId, since: Duration) {
        self.gone.insert(id, since);
    }

    pub(crate) fn is_gone(&self, id: &AgentId) -> bool {
        self.gone.contains_key(id)
    }

    pub(crate) fn forget_gone(&mut self, agents: &[AgentId]) {
        for agent in agents {
            self.gone.remove(agent);
        }
    }

    /// The agents marked gone, with the times.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (&AgentId, Duration)> {
        self.gone.iter().map(|(id, since)| (id, *since))
    }

    pub(crate) fn begin_return(&mut self, id: AgentId) {
        self.returning.insert(id);
    }

    pub(crate) fn end_return(&mut self, id: &AgentId) {
        self.returning.remove(id);
    }

    pub(crate) fn is_returning(&self, id: &AgentId) -> bool {
        self.returning.contains(id)
    }

    /// Begins to mark an agent gone. Returns false if this is already under way.
    pub(crate) fn begin_going(&mut self, id: AgentId) -> bool {
        self.going.insert(id)
    }

    pub(crate) fn end_going(&mut self, id: &AgentId) {
        self.going.remove(id);
    }

    pub(crate) fn is_going(&self, id: &AgentId) -> bool {
        self.going.contains(id)
    }

    /// Whether the registry is about to record an agent as returned or gone.
    pub(crate) fn is_changing(&self, id: &AgentId) -> bool {
        self.is_returning(id) || self.is_going(id)
    }

    /// The ids of all absent agents.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &AgentId> {
        let lost = self.unreachable.keys().chain(self.gone.keys());
        self.expected.keys().chain(lost)
    }

    /// Finds an expected or unreachable agent on one of these hosts, which are named in lower case.
    pub(crate) fn find_on_hosts(
        &self,
        hosts: &BTreeSet<&str>,
        is_meant: impl Fn(&AgentId) -> bool,
    ) -> Option<&AgentId> {
        let expected = hosts.iter().flat_map(|host| {
            let (from, to) = ((*host).to_owned(), (*host).to_owned());
            let there = self.expected_at.range((from, i32::MIN)..=(to, i32::MAX));
            there.flat_map(|(_, ids)| ids)
        });
        let unreachable = self.unreachable.iter();
        let unreachable =
            unreachable.filter(|(_, agent)| hosts.contains(&*agent.hostname.to_lowercase()));
        let mut all = expected.chain(unreachable.map(|(id, _)| id));
        all.find(|id| is_meant(id))
    }

    /// Whether no agent is listed by endpoint.
    #[cfg(test)]
    pub(crate) fn has_no_endpoints(&self) -> bool {
        self.expected_at.is_empty()
    }

    /// Finds the unreachable agents that are too many or too old.
    pub(crate) fn find_old_unreachable(&self, retention: Retention) -> Vec<AgentId> {
        let unreachable = self.unreachable.iter();
        let mut old = retention.find_surplus(unreachable.map(|(id, agent)| (id, agent.since)));
        old.retain(|id| !self.is_changing(id));
        old
    }

    /// Finds the gone agents that are too many or too old.
    pub(crate) fn find_old_gone(&self, retention: Retention) -> Vec<AgentId> {
        retention.find_surplus(self.gone())
    }
}

impl Retention {
    /// Finds the entries of a list that are too many or too old.
    fn find_surplus<'a>(self, lost: impl Iterator<Item = (&'a AgentId, Duration)>) -> Vec<AgentId> {
        let mut listed: Vec<_> = lost.map(|(id, since)| (since, id.clone())).collect();
        listed.sort();
        let surplus = listed.len().saturating_sub(self.agents_max);
        listed
            .into_iter()
            .enumerate()
            .filter(|(index, (since, _))| {
                *index < surplus || self.now.saturating_sub(*since) > self.age_max
            })
            .map(|(_, (_, id))| id)
            .collect()
    }
}
