//! Takes snapshots for readers, and keeps them until the next step.

use std::sync::Arc;

use meseta_access::Approver;
use meseta_allocator::RoleGauges;

use super::master::MasterCore;
use super::state::agent::Agent;
use super::state::usage::Usage;
use super::views::snapshot::{AgentView, FrameworkView, RecoveryMode, Snapshot, view};

impl MasterCore {
    /// Whether [`Self::snapshot`] would return the snapshot of another reader.
    #[must_use]
    pub fn has_snapshot(&self) -> bool {
        self.readers.full().is_some()
    }

    /// The allocator's metrics of roles.
    #[must_use]
    pub fn role_gauges(&self) -> Vec<RoleGauges> {
        self.allocator.gauges()
    }

    /// The total usage of the containers of all connected agents that report it.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        let agents = self.agents.values();
        let connected = agents.filter(|agent| agent.connection.is_some());
        connected
            .filter_map(|agent| agent.usage)
            .for_each(|usage| sum.add(usage));
        sum
    }

    /// The number of allocation runs so far.
    #[must_use]
    pub fn allocation_runs(&self) -> u64 {
        self.counters.allocation_runs
    }

    /// The current state; the same object until the next step.
    pub fn snapshot(&mut self) -> Arc<Snapshot> {
        if let Some(snapshot) = self.readers.full() {
            return snapshot.clone();
        }
        let snapshot = self.take_snapshot();
        self.readers.keep_full(snapshot)
    }

    /// Quotas, weights, maintenance and the master itself; agents, frameworks and offers only if already available.
    /// The cost does not grow with those, and is zero until the next step.
    pub fn policies(&mut self) -> Arc<Snapshot> {
        if let Some(known) = self.readers.policies() {
            return known.clone();
        }
        let policies = self.take_policies();
        self.readers.keep_policies(policies)
    }

    /// Whether [`Self::policies`] would return the snapshot of another reader.
    #[must_use]
    pub fn has_policies(&self) -> bool {
        self.readers.policies().is_some()
    }

    fn take_snapshot(&mut self) -> Snapshot {
        let (offers, policies) = (&self.offers, &self.policies);
        let agents = self.agents.views(|agent| view(agent, offers, policies));
        let offers: Vec<_> = self.offers.values().cloned().collect();
        let inverse_offers = self.inverse_offers.view();
        let frameworks = self
            .frameworks
            .views(|framework| FrameworkView::from_framework(framework, false));
        Snapshot {
            agents,
            recovered_agents: self
                .absent_agents
                .expected()
                .map(|(id, agent)| (id.clone(), agent.info.clone()))
                .collect(),
            unreachable_agents: self
                .absent_agents
                .unreachable()
                .map(|(id, agent)| (id.clone(), agent.clone()))
                .collect(),
            gone_agents: self
                .absent_agents
                .gone()
                .map(|(id, since)| (id.clone(), since))
                .collect(),
            frameworks,
            completed_frameworks: self.histories.completed().cloned().collect(),
            derived: self
                .readers
                .derived(self.agents.views_version(), &offers, &inverse_offers),
            offers,
            inverse_offers,
            ..self.take_policies()
        }
    }

    fn take_policies(&self) -> Snapshot {
        Snapshot {
            viewer: Approver::default(),
            sequence: self.readers.sequence(),
            changed: self.readers.changed(),
            epoch: self.epochs.current(),
            identity: self.config.identity.clone(),
            started: self.started,
            taken: self.now.unix,
            agents: Arc::default(),
            recovered_agents: Vec::new(),
            unreachable_agents: Vec::new(),
            gone_agents: Vec::new(),
            frameworks: Arc::default(),
            completed_frameworks: Vec::new(),
            offers: Vec::new(),
            inverse_offers: Arc::default(),
            weights: self.policies.weights().clone(),
            quotas: self.policies.quotas().clone(),
            maintenance: self.policies.maintenance().maintenance().clone(),
            quota_semantics: self.config.quota_semantics,
            recovery_mode: self.allocator.recovery().map(|recovery| RecoveryMode {
                awaited: recovery.awaited().len(),
                missing: recovery.missing(),
            }),
            whitelisted_roles: self.config.roles.clone(),
            counters: self.counters.clone(),
            pending_mutations: self.effects.waiting_count(),
            derived: Arc::default(),
        }
    }

    pub(in crate::core) fn view(&self, agent: &Agent) -> AgentView {
        view(agent, &self.offers, &self.policies)
    }
}
