//! Memory taken by agent infos, and the number of agents of one host.
//!
//! The master and the registry store an agent's description as long as the agent is known, and show it in full to
//! readers. An agent with a false description must not fill the memory. Invariants: the description of each agent
//! that is registered, expected or waiting for the registry counts once; nobody takes more than remains for all
//! others; an agent of the registry may return with its former description, and an agent with a short description is
//! always accepted from a proven host.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_daemon::authentication::Caller;
use meseta_proto::{Invalid, invalid};
use meseta_resources::AgentId;

use super::resource_size::RESERVED_BYTES_MAX;

/// The number of agents of a host with a certificate. An ordinary host has one agent, and a few more where versions
/// or settings are tried in parallel.
pub(in crate::core) const AGENTS_PER_HOST_MAX: usize = 32;

/// The limit in bytes of a small description: a hundred resources, where an ordinary agent has a dozen.
const SMALL_BYTES: usize = 64 * 1024;

/// The limit of memory, in bytes, for the decoded reservations and volumes that masters gave to one agent: very small
/// entries take about seven times their encoded size.
const RESERVED_MAX: usize = 8 * RESERVED_BYTES_MAX;

/// The hostname in the form for comparison.
pub(in crate::core) fn host_of(hostname: &str) -> String {
    let name = hostname.strip_suffix('.').unwrap_or(hostname);
    name.to_lowercase()
}

/// The host or peer whose agents share one part of the memory limit: a host with a certificate, or else a user of
/// this machine or a network; see [`Caller::host`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Origin {
    /// The hostname in lower case, also for an agent of the registry that is not back yet.
    Host(Arc<str>),
    Peer(Arc<str>),
}

impl Origin {
    /// Identifies the machine of a connection. A machine with a certificate is identified by the certificate's first
    /// name, whichever of its names the agent gives.
    pub(in crate::core) fn from_caller(caller: Option<&Caller>, hostname: &str) -> Self {
        let is_somewhere =
            |caller: &&Caller| caller.certificate.is_some() || caller.address.is_some();
        match caller.filter(is_somewhere) {
            Some(caller) if caller.certificate.is_some() => Self::host(&caller.host()),
            Some(caller) => Self::Peer(caller.host().into()),
            None => Self::host(hostname),
        }
    }

    pub(in crate::core) fn host(hostname: &str) -> Self {
        Self::Host(host_of(hostname).into())
    }
}

/// The agent whose info is checked.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct DescribedAgent<'a> {
    pub(in crate::core) id: &'a AgentId,
    pub(in crate::core) origin: &'a Origin,
    /// Whether the host is proven; a proven host has a limited number of agents.
    pub(in crate::core) is_proven: bool,
    /// Whether the registry knows the agent, and the agent is not back yet.
    pub(in crate::core) is_expected: bool,
}

/// The memory taken by agent descriptions.
#[derive(Debug, Default)]
pub(in crate::core) struct AgentInfoUsage {
    of_agents: BTreeMap<AgentId, (Origin, usize)>,
    by_origin: BTreeMap<Origin, usize>,
    all: usize,
}

impl AgentInfoUsage {
    /// Records the size of an agent's description, replacing the former size.
    pub(in crate::core) fn set(&mut self, id: &AgentId, origin: Origin, bytes: usize) {
        self.remove(id);
        self.all += bytes;
        *self.by_origin.entry(origin.clone()).or_default() += bytes;
        self.of_agents.insert(id.clone(), (origin, bytes));
    }

    /// Records a new size of the description of an agent with a known origin.
    pub(crate) fn resize(&mut self, id: &AgentId, bytes: usize) {
        if let Some(origin) = self.origin(id).cloned() {
            self.set(id, origin, bytes);
        }
    }

    /// The origin of an agent with a description.
    pub(crate) fn origin(&self, id: &AgentId) -> Option<&Origin> {
        self.of_agents.get(id).map(|(origin, _)| origin)
    }

    /// The memory of all agent descriptions.
    #[cfg(test)]
    pub(crate) fn sum(&self) -> usize {
        self.all
    }

    /// Compares the sums with the known sizes of all descriptions.
    #[cfg(test)]
    pub(crate) fn check_sums(&self, known: &BTreeMap<&AgentId, usize>) {
        let counted = self.of_agents.iter();
        let counted: BTreeMap<&AgentId, usize> =
            counted.map(|(id, (_, bytes))| (id, *bytes)).collect();
        assert_eq!(counted, *known);
        assert_eq!(self.all, known.values().sum::<usize>());
        assert_eq!(self.all, self.by_origin.values().sum::<usize>());
    }

    pub(in crate::core) fn remove(&mut self, id: &AgentId) {
        let Some((origin, bytes)) = self.of_agents.remove(id) else {
            return;
        };
        self.all = self.all.saturating_sub(bytes);
        if let Some(own) = self.by_origin.get_mut(&origin) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_origin.remove(&origin);
            }
        }
    }

    pub(in crate::core) fn for_agent(&self, id: &AgentId) -> usize {
        self.of_agents.get(id).map_or(0, |(_, bytes)| *bytes)
    }

    /// Checks that an agent's description may have this size, in place of the current one.
    pub(in crate::core) fn check(
        &self,
        described: DescribedAgent<'_>,
        bytes: usize,
        max: usize,
    ) -> Result<(), Invalid> {
        let before = self.for_agent(described.id);
        // The registry's record lacks the data that the agent sends with each connection.
        let known = before.saturating_add(if described.is_expected {
            SMALL_BYTES
        } else {
            0
        });
        let is_small = bytes <= SMALL_BYTES;
        if bytes <= known || (is_small && described.is_proven) {
            return Ok(());
        }
        let all = (self.all + bytes).saturating_sub(before);
        if is_small && all <= max {
            return Ok(());
        }
        // The registry's record also lacks the reservations and volumes that an earlier master gave the agent.
        if described.is_expected && bytes <= known.saturating_add(RESERVED_MAX) && all <= max {
            return Ok(());
        }
        let of_others = max / 4;
        let left = (max - of_others).saturating_sub(all);
        let own = self.by_origin.get(described.origin).map_or(0, |own| *own);
        let is_own = |(origin, _): &&(Origin, usize)| origin == described.origin;
        let own_before = self.of_agents.get(described.id).filter(is_own);
        let own = (own + bytes).saturating_sub(own_before.map_or(0, |(_, bytes)| *bytes));
        if own <= left {
            return Ok(());
        }
        Err(invalid!(
            "the descriptions of the agents of one host or address would take {own} bytes, those of \
             all {all} of at most {max}: no one has more than it leaves to others, and a quarter is for \
             descriptions of up to {SMALL_BYTES} bytes; give the agent fewer --attributes, shorter \
             --resources or fewer reservations and volumes, or raise the master's --memory_budget"
        ))
    }

    /// Checks that an operation may extend an agent's description to this size. Reservations of tenants leave room
    /// for new agents: a quarter for small descriptions, a half for others.
    pub(in crate::core) fn check_growth(
        &self,
        id: &AgentId,
        bytes: usize,
        max: usize,
    ) -> Result<(), Invalid> {
        let before = self.for_agent(id);
        let all = (self.all + bytes).saturating_sub(before);
        let bound = if bytes <= SMALL_BYTES {
            max - max / 4
        } else {
            max / 2
        };
        if bytes <= before || all <= bound {
            return Ok(());
        }
        Err(invalid!(
            "the descriptions of all agents, with their reservations and volumes, would take {all} bytes, \
             of at most {bound} for an operation: unreserve or destroy some, or raise the master's \
             --memory_budget"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16 << 20;

    fn id(number: usize) -> AgentId {
        AgentId::new(&format!("a-{number}")).unwrap()
    }

    fn say(
        kept: &mut AgentInfoUsage,
        (number, host): (usize, &str),
        bytes: usize,
        is_proven: bool,
    ) -> bool {
        let (id, origin) = (id(number), Origin::host(host));
        let described = DescribedAgent {
            id: &id,
            origin: &origin,
            is_proven,
            is_expected: false,
        };
        let fits = kept.check(described, bytes, MAX).is_ok();
        if fits {
            kept.set(&id, origin, bytes);
        }
        fits
    }

    #[test]
    fn host_leaves_memory_for_other_hosts() {
        let mut kept = AgentInfoUsage::default();
        let mut number = 0;
        let mut fill = |kept: &mut AgentInfoUsage, host: &str| {
            let mut count = 0;
            while say(kept, (number, host), 1 << 20, true) {
                number += 1;
                count += 1;
            }
            count
        };
        let had = ["false", "as-false", "honest"].map(|host| fill(&mut kept, host));
        assert_eq!(had, [6, 3, 1]);
        for honest in 100..400 {
            let host = honest.to_string();
            assert!(say(&mut kept, (honest, &host), SMALL_BYTES, true));
        }
        assert!(kept.all > MAX);
        assert!(!say(&mut kept, (900, "unproven"), SMALL_BYTES, false));
        // An existing description may stay unchanged or shrink.
        assert!(say(&mut kept, (0, "false"), 1 << 20, true));
        assert!(say(&mut kept, (0, "false"), 1 << 19, true));
        assert!(!say(&mut kept, (0, "false"), 1 << 20, true));
    }

    #[test]
    fn operations_leave_memory_for_reregistration() {
        let mut kept = AgentInfoUsage::default();
        let origin = Origin::host("a");
        let mut number = 0;
        while kept.check_growth(&id(number), 1 << 20, MAX).is_ok() {
            kept.set(&id(number), origin.clone(), 1 << 20);
            number += 1;
        }
        assert_eq!(kept.all, MAX / 2);
        assert_eq!(kept.check_growth(&id(0), 1 << 20, MAX), Ok(()));
        assert_eq!(kept.check_growth(&id(900), SMALL_BYTES, MAX), Ok(()));
        // An agent returns with its reservations, to this master and after a restart.
        kept.set(&id(0), origin.clone(), 1000);
        let agent = id(0);
        let described = |is_expected| DescribedAgent {
            id: &agent,
            origin: &origin,
            is_proven: false,
            is_expected,
        };
        assert!(kept.check(described(false), 2 << 20, MAX).is_err());
        assert_eq!(kept.check(described(true), 2 << 20, MAX), Ok(()));
        assert!(kept.check(described(true), 9 << 20, MAX).is_err());
    }

    #[test]
    fn uncertified_address_counts_as_one_origin() {
        let at = |text: &str| Caller {
            address: Some(text.parse().unwrap()),
            ..Caller::default()
        };
        let of = |caller: &Caller, host: &str| Origin::from_caller(Some(caller), host);
        let (one, same) = (at("10.0.0.1:7"), at("[::ffff:10.0.0.1]:9"));
        assert_eq!(of(&one, "a.example"), of(&same, "b.example"));
        assert_ne!(of(&one, "a.example"), of(&at("10.0.0.2:7"), "a.example"));
        let near = [at("[fd00::1]:1"), at("[fd00::2]:1")];
        assert_eq!(of(&near[0], "a"), of(&near[1], "b"));
        assert_eq!(
            Origin::from_caller(None, "A.Example."),
            Origin::host("a.example")
        );
    }
}
