//! The start of a master from the content of the registry.

use std::collections::BTreeMap;

use meseta_resources::AgentId;
use meseta_resources::time::Now;

use super::agents::profile::recovered_agent;
use super::config::Config;
use super::effect::Effects;
use super::framework_deadlines::FrameworkDeadlines;
use super::issued_ids::IssuedIds;
use super::master::MasterCore;
use super::state::absent_agents::AbsentAgents;
use super::state::agent::UnreachableAgent;
use super::state::agent_connections::AgentConnections;
use super::state::agent_info_usage::AgentInfoUsage;
use super::state::allocator_adapter::AllocatorAdapter;
use super::state::cached_view_map::CachedViewMap;
use super::state::counters::Counters;
use super::state::epochs::Epochs;
use super::state::framework_info_usage::FrameworkInfoUsage;
use super::state::inverse_offers::InverseOffers;
use super::state::locations::Locations;
use super::state::operations::Operations;
use super::state::ownership::Ownership;
use super::state::paced_messages::PacedMessages;
use super::state::partial_reregistrations::PartialReregistrations;
use super::state::persisted::Recovered;
use super::state::policies::{Policies, stored_role};
use super::state::reconciliations::Reconciliations;
use super::state::silent_agents::SilentAgents;
use super::timers::{Timer, Timers};
use super::views::histories::Histories;
use super::views::readers::Readers;

impl MasterCore {
    /// A master with the state from the registry.
    #[must_use]
    pub fn new(config: Config, recovered: Recovered, now: Now) -> Self {
        let mut weights = config.weights.clone();
        if let Some(stored) = &recovered.weights {
            weights = stored
                .iter()
                .filter_map(|(role, weight)| Some((stored_role(role)?, *weight)))
                .collect();
        }
        let allocator = AllocatorAdapter::new(&config, &weights);
        let policies = Policies::recovered(&recovered, weights);
        let mut core = Self {
            epochs: Epochs::recovered(&recovered),
            issued_ids: IssuedIds::new(config.identity.id.clone()),
            started: now.unix,
            now,
            allocator,
            allocate_due: false,
            policies,
            agents: CachedViewMap::default(),
            locations: Locations::default(),
            agent_connections: AgentConnections::default(),
            partial_reregistrations: PartialReregistrations::new(
                config.memory.partial_reregistrations,
            ),
            absent_agents: AbsentAgents::default(),
            agent_info_usage: AgentInfoUsage::default(),
            silent_agents: SilentAgents::new(),
            frameworks: CachedViewMap::default(),
            schedulers: BTreeMap::new(),
            ownership: Ownership::recovered(&recovered),
            histories: Histories::default(),
            framework_deadlines: FrameworkDeadlines::recovered(&recovered.deadlines),
            framework_info_usage: FrameworkInfoUsage::default(),
            offers: BTreeMap::new(),
            inverse_offers: InverseOffers::default(),
            operations: Operations::default(),
            paced_messages: PacedMessages::new(&config.memory),
            reconciliations: Reconciliations::default(),
            timers: Timers::new(now.moment),
            counters: Counters::default(),
            effects: Effects::default(),
            readers: Readers::default(),
            config,
        };
        core.recover(recovered);
        core.timers.set(
            now.moment + core.config.allocation_interval,
            Timer::Allocation,
        );
        core.timers.set(
            now.moment + core.config.registry_gc_interval,
            Timer::RegistryGc,
        );
        if core.absent_agents.expects_any() {
            let until = now.moment + core.config.agent_reregister_timeout;
            core.expect_returns_until(until);
        }
        core.expect_next_step();
        core
    }

    fn recover(&mut self, recovered: Recovered) {
        for record in recovered.agents {
            match recovered_agent(&record) {
                Ok((id, agent)) => self.expect_agent(id, agent),
                Err(reason) => tracing::error!(
                    agent_id = %record.agent_id.escape_debug(),
                    %reason,
                    "agent in the registry cannot be read and is left out"
                ),
            }
        }
        for record in recovered.unreachable {
            if let Ok(id) = AgentId::new(&record.agent_id) {
                let agent = UnreachableAgent {
                    since: record.since,
                    hostname: record.hostname,
                };
                self.absent_agents.mark_unreachable(id, agent);
            }
        }
        for (id, since) in &recovered.gone {
            if let Ok(id) = AgentId::new(id) {
                self.absent_agents.mark_gone(id, *since);
            }
        }
        for (role, quota) in self.policies.quotas().clone().iter() {
            let updated = self.allocator.update_quota(role, quota);
            self.agreed("recovering a quota", updated);
        }
        let frameworks = self.ownership.known();
        let frameworks = frameworks.chain(self.framework_deadlines.frameworks());
        self.issued_ids
            .skip_known(self.absent_agents.ids(), frameworks);
        self.begin_recovery_mode();
    }
}
