//! The offers of the world, and its master's list of agents.

use std::collections::BTreeMap;

use meseta_resources::{Resources, Role};

use super::super::super::Input;
use super::{SLOTS, World, slots_of};
use crate::placement::Offer;

impl World {
    pub(in crate::core::tests) fn make_offers(&mut self) {
        let mut offered = Vec::new();
        for (name, agent) in &self.agents {
            let out = self.offers.values().any(|(agent, _)| agent == name);
            let free = agent.free();
            let has_cpus = free.scalar("cpus").is_some_and(|cpus| cpus.to_f64() >= 1.0);
            if out || agent.is_away || !has_cpus || !self.may_offer(name) {
                continue;
            }
            offered.push((name.clone(), free));
        }
        let offered: Vec<_> = offered
            .into_iter()
            .map(|(agent, free)| self.new_offer(&agent, free))
            .collect();
        if !offered.is_empty() {
            self.inbox.push_back(Input::Offers(offered));
        }
    }

    fn new_offer(&mut self, agent: &str, resources: Resources) -> Offer {
        self.next_offer += 1;
        let id = format!("o{}", self.next_offer);
        let out = (agent.to_owned(), resources.clone());
        self.offers.insert(id.clone(), out);
        let offer = Offer {
            id,
            agent_id: agent.to_owned(),
            hostname: agent.to_owned(),
            role: "r".to_owned(),
            attributes: self.attributes_of(agent),
            ..Offer::default()
        };
        offer.with_resources(resources)
    }

    fn attributes_of(&self, agent: &str) -> BTreeMap<String, String> {
        let rack = self.racks.get(agent).cloned();
        rack.map(|rack| ("rack".to_owned(), rack))
            .into_iter()
            .collect()
    }

    /// Sends the master's list of present agents, on which other frameworks use some slots.
    pub(in crate::core::tests) fn tell_agents(&mut self, taken: &BTreeMap<String, u32>) {
        let present = self.agents.iter().filter(|(_, agent)| !agent.is_away);
        let agents = present.map(|(name, agent)| {
            let own = u32::try_from(agent.tasks.len()).unwrap();
            let taken = taken.get(name).copied().unwrap_or_default();
            let free = format!("cpus:{}", SLOTS.saturating_sub(own + taken));
            let offer = Offer {
                agent_id: name.clone(),
                hostname: name.clone(),
                attributes: self.attributes_of(name),
                ..Offer::default()
            };
            offer.with_resources(Resources::parse(&free, &Role::star()).expect("cpus"))
        });
        let agents = agents.collect();
        self.inbox.push_back(Input::Agents(agents));
    }

    /// Offers this number of slots of one agent.
    pub(in crate::core::tests) fn offer(&mut self, agent: &str, slots: u32) {
        self.offer_together(&[(agent, slots)]);
    }

    /// Offers this number of slots of each agent in one message.
    pub(in crate::core::tests) fn offer_together(&mut self, agents: &[(&str, u32)]) {
        let offers = agents.iter().map(|(agent, slots)| {
            let slots = Resources::parse(&format!("cpus:{slots}"), &Role::star()).expect("cpus");
            self.new_offer(agent, slots)
        });
        let offers = offers.collect();
        self.inbox.push_back(Input::Offers(offers));
    }

    /// Offers an agent to a role, unless resources of the agent are on offer already.
    pub(in crate::core::tests) fn offer_in(&mut self, role: &str, agent: &str, slots: u32) {
        if self.offers.values().any(|(out, _)| out == agent) {
            return;
        }
        let slots = Resources::parse(&format!("cpus:{slots}"), &Role::star()).expect("cpus");
        let role = role.to_owned();
        let offer = self.new_offer(agent, slots);
        self.inbox
            .push_back(Input::Offers(vec![Offer { role, ..offer }]));
    }

    /// Whether the scheduler accepts offers of an agent's free resources.
    pub(in crate::core::tests) fn may_offer(&self, agent: &str) -> bool {
        let filter = self.filters.get(agent);
        let is_filtered = filter.is_some_and(|until| self.since < *until);
        !self.is_suppressed("r") && self.roles.contains("r") && !is_filtered
    }

    /// Whether the master makes no offers in a role.
    pub(in crate::core::tests) fn is_suppressed(&self, role: &str) -> bool {
        self.suppressed.contains(role)
    }

    /// Returns the number of slots on offer to the scheduler.
    pub(in crate::core::tests) fn offered(&self) -> u32 {
        self.offers
            .values()
            .map(|(_, offered)| slots_of(offered))
            .sum()
    }

    pub(in crate::core::tests) fn rescind(&mut self) {
        let Some(offer) = self.offers.keys().next().cloned() else {
            return;
        };
        self.offers.remove(&offer);
        self.inbox.push_back(Input::Rescinded(offer));
    }
}
