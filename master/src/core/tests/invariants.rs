//! Invariants after every input: master and allocator agree on all allocations.

use meseta_resources::OfferId;

use super::*;
use crate::core::state::deactivation::Deactivation;
use crate::core::state::pending::Pending;

impl World {
    /// The whole visible state except counters.
    pub(super) fn digest(&mut self) -> String {
        let snapshot = self.core.snapshot();
        // Counters may grow with refused calls.
        let uncounted = |views: &[Arc<FrameworkView>]| -> Vec<FrameworkView> {
            let views = views.iter().map(|view| FrameworkView {
                counters: Arc::default(),
                ..(**view).clone()
            });
            views.collect()
        };
        format!(
            "{:?}",
            (
                &snapshot.agents,
                &snapshot.recovered_agents,
                &snapshot.unreachable_agents,
                uncounted(&snapshot.frameworks),
                uncounted(&snapshot.completed_frameworks),
                &snapshot.offers,
                &snapshot.inverse_offers,
                &snapshot.weights,
                &snapshot.quotas,
                &snapshot.maintenance,
            )
        )
    }

    /// Checks that the records of master and allocator agree, and that nothing exceeds the total.
    pub(super) fn check(&mut self) {
        self.core.agents.check(|agent| self.core.view(agent));
        self.core
            .frameworks
            .check(|framework| FrameworkView::from_framework(framework, false));
        self.core.snapshot();
        self.core.check_history();
        self.core.check_descriptions();
        let core = &self.core;
        let agents = core.agents.values();
        let records = agents.flat_map(|agent| agent.operations.values());
        core.operations.check(records.map(|record| &**record));
        assert_eq!(core.counters.invariant_violations, 0);
        for agent in core.agents.values() {
            let mut held = (*agent.used).clone();
            let mut of_tasks: BTreeMap<FrameworkId, Resources> = BTreeMap::new();
            for task in agent.tasks.values() {
                if is_terminal(task.state) || task.resources.is_empty() {
                    continue;
                }
                *of_tasks.entry(task.framework_id.clone()).or_default() += &task.resources;
            }
            for executor in agent.executors.values() {
                if executor.resources.is_empty() {
                    continue;
                }
                *of_tasks.entry(executor.framework_id.clone()).or_default() += &executor.resources;
            }
            let mut in_executors: BTreeMap<_, usize> = BTreeMap::new();
            for executor in agent.tasks.values().filter_map(|task| task.executor()) {
                *in_executors.entry(executor).or_default() += 1;
            }
            assert_eq!(agent.in_executors, in_executors, "tasks are counted");
            assert_eq!(
                held, of_tasks,
                "what is used is what tasks and executors hold"
            );
            for id in &agent.offers {
                let offer = &core.offers[id];
                assert_eq!(offer.agent_id, *agent.id());
                assert!(core.frameworks[&offer.framework_id].offers.contains(id));
                *held.entry(offer.framework_id.clone()).or_default() += &offer.resources;
            }
            assert_eq!(core.allocator.held(agent.id()), held, "both books agree");
            let all: Resources = held
                .values()
                .map(Resources::unallocate)
                .fold(Resources::new(), |sum, r| sum + r);
            assert_eq!(
                core.allocator.available(agent.id()).unshared() + all.unshared(),
                agent.profile.total.unshared()
            );
            let known = agent.profile.total.shared();
            assert!(
                all.shared()
                    .iter()
                    .all(|volume| known.contains_resource(volume))
            );
            for ((framework, task), record) in agent.tasks.iter() {
                let mut holders = core.frameworks[framework].holders(task);
                assert!(holders.any(|holder| *holder == record.agent_id));
            }
        }
        for id in core.silent_agents.iter() {
            assert!(core.agents[id].missed_pings > 0);
        }
        core.check_inverse_offers();
        core.locations
            .check(core.agents.values().map(|agent| &*agent.profile));
        core.check_drained();
        let mut held: BTreeMap<FrameworkId, BTreeMap<AgentId, usize>> = BTreeMap::new();
        for agent in core.agents.values() {
            let of_tasks = agent.tasks.keys().map(|(framework, _)| framework);
            let of_executors = agent.executors.keys().map(|(framework, _)| framework);
            for framework in of_tasks.chain(of_executors) {
                let of_framework = held.entry(framework.clone()).or_default();
                *of_framework.entry(agent.id().clone()).or_default() += 1;
            }
        }
        for framework in core.frameworks.values() {
            let counted = held.remove(&framework.id).unwrap_or_default();
            assert_eq!(*framework.agents(), counted);
        }
        assert!(held.is_empty(), "{held:?}");
        let offers: usize = core.agents.values().map(|agent| agent.offers.len()).sum();
        assert_eq!(offers, core.offers.len());
        for framework in core.frameworks.values() {
            assert!(framework.connection().is_some() || framework.offers.is_empty());
            for (task, first) in &framework.tasks {
                for agent in framework.holders(task) {
                    let record = core.agents[agent].task(&framework.id, task).unwrap();
                    let is_first = agent == first && framework.has_launched(task);
                    assert_eq!(record.is_launched, is_first);
                }
            }
        }
    }
}

impl MasterCore {
    /// Compares the sums of descriptions with a recount.
    pub(super) fn check_descriptions(&self) {
        let expected = self.absent_agents.expected();
        let mut known: BTreeMap<&AgentId, usize> =
            expected.map(|(id, agent)| (id, agent.bytes())).collect();
        let here = self.agents.iter();
        known
            .extend(here.map(|(id, agent)| (id, agent.profile.bytes + agent.oversubscribed_bytes)));
        for pending in self.effects.waiting() {
            match pending {
                Pending::Admit { profile, .. } | Pending::Readmit { profile, .. } => {
                    known.insert(&profile.id, profile.bytes);
                }
                Pending::Refresh { profile, .. } => {
                    if let Some(known) = known.get_mut(&profile.id) {
                        *known = profile.bytes.max(*known);
                    }
                }
                _ => {}
            }
        }
        self.agent_info_usage.check_sums(&known);
    }

    /// Compares the sum of the history with a recount.
    pub(super) fn check_history(&self) {
        let live: usize = self
            .frameworks
            .values()
            .map(|one| {
                let records = one
                    .completed
                    .tasks()
                    .iter()
                    .chain(&**one.unreachable.tasks());
                records.map(|task| task.bytes()).sum::<usize>()
            })
            .sum();
        self.histories.check(live);
        let terms: usize = self.frameworks.values().map(|one| one.terms.bytes()).sum();
        assert_eq!(self.framework_info_usage.all(), terms);
        assert_eq!(self.framework_info_usage.of_parts(), terms);
        assert!(self.histories.bytes() <= self.config.memory.history);
    }

    /// Checks that every draining agent has something to drain.
    pub(super) fn check_drained(&self) {
        for id in self.policies.draining() {
            let requested = self.policies.requested_deactivation(id);
            let is_noted = !requested.is_some_and(Deactivation::is_draining);
            let agent = self.agents.get(id);
            let is_idle = agent.is_some_and(|agent| !agent.removal_pending) && self.is_idle(id);
            assert!(
                !is_idle || is_noted,
                "agent {id} is drained but not marked DRAINED"
            );
        }
    }

    pub(super) fn inverse_offers_are_empty(&self) -> bool {
        self.inverse_offers.iter().len() == 0
    }

    /// Checks that the tables of inverse offers agree, and that each outstanding one is with a connected framework.
    fn check_inverse_offers(&self) {
        let kept = &self.inverse_offers;
        let mut answered: BTreeMap<FrameworkId, BTreeSet<AgentId>> = BTreeMap::new();
        for (id, agent) in self.agents.iter() {
            for framework in agent.inverse_replies.keys() {
                let of_framework = answered.entry(framework.clone()).or_default();
                of_framework.insert(id.clone());
            }
        }
        assert_eq!(kept.answered, answered);
        for offer in kept.iter() {
            let id = &offer.id;
            assert!(kept.of_framework[&offer.framework_id].contains(id));
            assert!(kept.of_agent[&offer.agent_id].contains(id));
            let framework = &self.frameworks[&offer.framework_id];
            assert!(framework.connection().is_some());
            let agent = &self.agents[&offer.agent_id];
            let planned = self.policies.maintenance().of_agent(&agent.profile);
            assert_eq!(planned, Some(&offer.unavailability));
        }
        let count = |ids: &BTreeSet<OfferId>| ids.len();
        assert_eq!(
            kept.of_framework.values().map(count).sum::<usize>(),
            kept.iter().len()
        );
        assert_eq!(
            kept.of_agent.values().map(count).sum::<usize>(),
            kept.iter().len()
        );
    }
}
