//! Maintenance: agents that will be away, and inverse offers for their frameworks.
//!
//! A framework with resources on such an agent gets an inverse offer, one at a time, unless the framework has
//! filtered them.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::{AgentId, FrameworkId, Moment};

use crate::Allocator;
use crate::agents::{Agent, AgentKey};
use crate::error::Error;
use crate::spec::Unavailability;

/// A request to a framework to return its resources on an agent before the agent goes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InverseOffer {
    pub framework: FrameworkId,
    pub agent: AgentId,
    pub unavailability: Unavailability,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InverseAnswer {
    Accept,
    Decline,
}

#[derive(Clone, Debug)]
pub(crate) struct Maintenance {
    pub(crate) unavailability: Unavailability,
    frameworks: BTreeMap<FrameworkId, Status>,
}

#[derive(Clone, Debug, Default)]
struct Status {
    outstanding: bool,
    answer: Option<InverseAnswer>,
    filtered_until: Option<Moment>,
}

impl Maintenance {
    pub(crate) const fn new(unavailability: Unavailability) -> Self {
        Self {
            unavailability,
            frameworks: BTreeMap::new(),
        }
    }

    pub(crate) fn forget(&mut self, framework: &FrameworkId) {
        self.frameworks.remove(framework);
    }

    pub(crate) fn clear_filter(&mut self, framework: &FrameworkId) {
        if let Some(status) = self.frameworks.get_mut(framework) {
            status.filtered_until = None;
        }
    }
}

impl Allocator {
    /// Plans, changes or, with `None`, cancels an agent's maintenance; outstanding inverse offers become void.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn update_unavailability(
        &mut self,
        agent: &AgentId,
        unavailability: Option<Unavailability>,
    ) -> Result<(), Error> {
        let key = self.agent_key(agent)?;
        if unavailability.is_some() {
            self.maintained.insert(key);
        } else {
            self.maintained.remove(key);
        }
        self.inverse_due.remove(key);
        self.agents[key].maintenance =
            unavailability.map(|unavailability| Box::new(Maintenance::new(unavailability)));
        self.mark_dirty(key);
        Ok(())
    }

    /// Returns the inverse offers that are due for the agents visited by the last cycles: call it after
    /// [`Allocator::allocate`] and similar calls. Each inverse offer is outstanding until it is answered or
    /// withdrawn. The scan stops after `max` inverse offers; the next call continues there.
    pub fn inverse_offers(&mut self, now: Moment, max: usize) -> Vec<InverseOffer> {
        if self.is_paused(now) || max == 0 {
            return Vec::new();
        }
        let mut offers = Vec::new();
        let mut due: Vec<AgentKey> = self.inverse_due.iter().collect();
        let first = due.partition_point(|key| *key < self.inverse_next);
        due.rotate_left(first);
        self.inverse_next = 0;
        for key in due {
            if offers.len() >= max {
                self.inverse_next = key;
                break;
            }
            self.inverse_due.remove(key);
            let offerable = |agent: &Agent| agent.is_offerable();
            if !self.agents.try_get(key).is_some_and(offerable) {
                continue;
            }
            let holders = self.holders(key);
            let agent = &mut self.agents[key];
            let Some(maintenance) = &mut agent.maintenance else {
                continue;
            };
            for framework in holders {
                if let Some(known) = self.framework_keys.get(&framework) {
                    self.frameworks[*known].asked.insert(key);
                }
                let status = maintenance.frameworks.entry(framework.clone()).or_default();
                if status.filtered_until.is_some_and(|until| until < now) {
                    status.filtered_until = None;
                }
                if !status.outstanding && status.filtered_until.is_none() {
                    status.outstanding = true;
                    let (agent, unavailability) = (agent.id.clone(), maintenance.unavailability);
                    offers.push(InverseOffer {
                        framework,
                        agent,
                        unavailability,
                    });
                }
            }
        }
        offers
    }

    /// Records the answer to an inverse offer or, with `None`, its expiry or withdrawal. With a filter the framework
    /// gets no inverse offer of the agent for that time.
    ///
    /// # Errors
    /// For an unknown agent or framework, or without planned maintenance.
    pub fn update_inverse_offer(
        &mut self,
        now: Moment,
        agent: &AgentId,
        framework: &FrameworkId,
        answer: Option<InverseAnswer>,
        refuse: Option<Duration>,
    ) -> Result<(), Error> {
        let key = self.agent_key(agent)?;
        let framework_key = self.framework_key(framework)?;
        let expiry = refuse
            .filter(|refuse| !refuse.is_zero())
            .map(|refuse| self.filter_end(now, refuse));
        let maintenance = self.agents[key].maintenance.as_mut();
        let maintenance = maintenance.ok_or_else(|| Error::NoMaintenance(agent.clone()))?;
        let status = maintenance.frameworks.entry(framework.clone()).or_default();
        self.frameworks[framework_key].asked.insert(key);
        status.outstanding = false;
        if answer.is_some() {
            status.answer = answer;
        }
        if expiry.is_some() {
            status.filtered_until = expiry;
        }
        Ok(())
    }

    /// The last answers of frameworks about an agent.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn inverse_offer_answers(
        &self,
        agent: &AgentId,
    ) -> Result<BTreeMap<FrameworkId, InverseAnswer>, Error> {
        let key = self.agent_key(agent)?;
        let maintenance = self.agents[key].maintenance.as_ref();
        let statuses = maintenance
            .into_iter()
            .flat_map(|maintenance| &maintenance.frameworks);
        Ok(statuses
            .filter_map(|(id, status)| Some((id.clone(), status.answer?)))
            .collect())
    }

    /// The maintenance of the agent with this key, if both still exist.
    pub(crate) fn maintenance_of(&mut self, agent: AgentKey) -> Option<&mut Maintenance> {
        if !self.agents.contains(agent) {
            return None;
        }
        self.agents[agent].maintenance.as_deref_mut()
    }

    /// The active frameworks with resources on an agent.
    fn holders(&self, agent: AgentKey) -> Vec<FrameworkId> {
        let mut holders: Vec<FrameworkId> = self.agents[agent]
            .holdings
            .iter()
            .map(|holding| &self.frameworks[self.slots[holding.slot].framework])
            .filter(|framework| framework.active)
            .map(|framework| framework.id.clone())
            .collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}
