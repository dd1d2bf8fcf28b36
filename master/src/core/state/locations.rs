//! The locations of registered agents: by host, and by listening address.
//!
//! Invariant: exactly the registered agents are listed, each under the location in its current profile.

use std::collections::{BTreeMap, BTreeSet};

use meseta_proto::mesos::v1::AgentInfo;
use meseta_resources::AgentId;
use meseta_resources::work_counter::count_entries;

use super::agent::AgentProfile;
use super::inverse_offers::forget;
use super::maintenance::Machine;

#[derive(Debug, Default)]
pub(in crate::core) struct Locations {
    /// Agents by hostname in lower case.
    hosts: BTreeMap<String, BTreeSet<AgentId>>,
    /// Agents by address and port.
    addresses: BTreeMap<(String, i32), BTreeSet<AgentId>>,
}

/// An agent's endpoint in the registry: its hostname in lower case, and its port.
pub(in crate::core) type Endpoint = (String, i32);

pub(in crate::core) fn endpoint(info: &AgentInfo) -> Endpoint {
    (info.hostname.to_lowercase(), info.port())
}

fn location_of(agent: &AgentProfile) -> (String, (String, i32)) {
    let address = (agent.ip().to_owned(), agent.address.port);
    (agent.info.hostname.to_lowercase(), address)
}

impl Locations {
    pub(in crate::core) fn add(&mut self, agent: &AgentProfile) {
        let (host, address) = location_of(agent);
        self.hosts.entry(host).or_default().insert(agent.id.clone());
        let there = self.addresses.entry(address).or_default();
        there.insert(agent.id.clone());
    }

    pub(in crate::core) fn remove(&mut self, agent: &AgentProfile) {
        let (host, address) = location_of(agent);
        forget(&mut self.hosts, &host, &agent.id);
        forget(&mut self.addresses, &address, &agent.id);
    }

    /// The agents on a machine, ordered by id if only its host is given.
    pub(in crate::core) fn on(&self, machine: &Machine) -> impl Iterator<Item = &AgentId> {
        let by_host = self.hosts.get(&machine.hostname).into_iter().flatten();
        let from = (machine.ip.clone(), i32::MIN);
        let to = (machine.ip.clone(), i32::MAX);
        let by_address = self.addresses.range(from..=to).flat_map(|(_, ids)| ids);
        let (by_host, by_address) = match (machine.hostname.is_empty(), machine.ip.is_empty()) {
            (true, _) => (None, Some(by_address)),
            (false, _) => (Some(by_host), None),
        };
        let all = by_host.into_iter().flatten();
        all.chain(by_address.into_iter().flatten())
            .inspect(|_| count_entries(1))
    }

    /// The agents that listen at the same address.
    pub(in crate::core) fn at(&self, agent: &AgentProfile) -> impl Iterator<Item = &AgentId> {
        let (_, address) = location_of(agent);
        let there = self.addresses.get(&address).into_iter().flatten();
        there.inspect(|_| count_entries(1))
    }
}

#[cfg(test)]
impl Locations {
    /// Asserts that exactly these agents are listed, at their locations.
    pub(in crate::core) fn check<'a>(&self, agents: impl Iterator<Item = &'a AgentProfile>) {
        let mut anew = Self::default();
        agents.for_each(|agent| anew.add(agent));
        assert_eq!(self.hosts, anew.hosts);
        assert_eq!(self.addresses, anew.addresses);
    }
}
