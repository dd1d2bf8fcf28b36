//! Adopts the frameworks, tasks and executors that an agent reports when it reregisters.
//!
//! Entered through [`MasterCore::adopt`] when an agent is back. Invariant: an adopted record is charged once, here
//! and in the allocator, and within the agent's total; the records are limited in bytes for all agents of a host; no
//! agent can report a task that this master launched on another agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    AgentId, ExecutorId, FrameworkId, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};
use prost::Message;

use super::reported_budget::{Fit, ReportedBudget};
use crate::core::config::FRAMEWORK_RETURN_TIME;
use crate::core::master::MasterCore;
use crate::core::state::agent::Agent;
use crate::core::state::framework::{Capabilities, Framework, Link, Terms, valid_roles};
use crate::core::state::task::{self, ExecutorRecord};
use crate::core::timers::Timer;
use crate::core::wire;

/// The number of unsubscribed frameworks that one agent may report: more than an agent has executors.
const FRAMEWORKS_PER_AGENT_MAX: usize = 2_048;

/// The number of frameworks that may be recovered from agents; the rest of the limit is for subscribing frameworks.
const RECOVERED_FRAMEWORKS_MAX: usize = crate::core::config::FRAMEWORKS_MAX / 10 * 9;

/// The master's former knowledge of an agent that reregisters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum ReregistrationKind {
    /// The registry contained the agent when this master started.
    Expected,
    /// The agent was lost, or was never expected.
    Unexpected,
    /// This master has a record of the agent, and of everything sent to it.
    Registered,
}

/// The total and charged resources of an agent, without revocable resources and shared volumes. An agent may have
/// very many resource names and report very many records, so each check reads only the names of one record.
pub(super) struct ChargedResources {
    used: BTreeMap<ResourceName, Scalar>,
    total: BTreeMap<ResourceName, Scalar>,
}

impl ChargedResources {
    fn from_agent(agent: &Agent) -> Self {
        let total = agent.profile.total.unrevocable().scalar_quantities();
        let total = total.iter().map(|(name, amount)| (name.clone(), amount));
        let mut charged = Self {
            used: BTreeMap::new(),
            total: total.collect(),
        };
        for used in agent.used.values() {
            charged.charge(&counted(used));
        }
        charged
    }

    fn charge(&mut self, more: &ResourceQuantities) {
        for (name, amount) in more.iter() {
            *self.used.entry(name.clone()).or_default() += amount;
        }
    }

    /// Whether the uncharged resources of the agent suffice.
    fn has(&self, more: &ResourceQuantities) -> bool {
        let of = |amounts: &BTreeMap<ResourceName, Scalar>, name: &ResourceName| {
            amounts.get(name).copied().unwrap_or_default()
        };
        more.iter().all(|(name, amount)| {
            let used = of(&self.used, name).saturating_add(amount);
            used <= of(&self.total, name)
        })
    }

    /// Charges these amounts if the agent has them.
    pub(super) fn take(&mut self, more: &ResourceQuantities) -> bool {
        let has = self.has(more);
        if has {
            self.charge(more);
        }
        has
    }

    /// Charges the resources and returns them, or returns nothing if the agent does not have them.
    fn within(&mut self, resources: Resources) -> Resources {
        if resources.is_empty() || self.take(&counted(&resources)) {
            resources
        } else {
            Resources::new()
        }
    }
}

/// The resources that count for [`ChargedResources`].
pub(super) fn counted(resources: &Resources) -> ResourceQuantities {
    resources.unrevocable().unshared().scalar_quantities()
}

/// The resources and bytes that may still be adopted from an agent.
pub(super) struct AdoptionBudget {
    pub(super) charged: ChargedResources,
    pub(super) reported: ReportedBudget,
}

/// The frameworks with tasks or executors on an agent.
struct RunningFrameworks<'a>(BTreeSet<&'a str>);

impl<'a> RunningFrameworks<'a> {
    fn from_report(report: &'a meseta::Reregister, tasks: &'a [meseta::ReportedTask]) -> Self {
        let tasks = tasks.iter();
        let tasks = tasks.map(|task| task.framework_id.value.as_str());
        let executors = report.executors.iter();
        let executors = executors.filter_map(|one| Some(one.framework_id.as_ref()?.value.as_str()));
        let operations = report.operations.iter();
        let operations =
            operations.filter_map(|one| Some(one.framework_id.as_ref()?.value.as_str()));
        Self(tasks.chain(executors).chain(operations).collect())
    }

    fn has(&self, framework: &FrameworkId) -> bool {
        self.0.contains(framework.as_str())
    }
}

impl MasterCore {
    /// Adopts the tasks and the rest of an agent's report. Returns the frameworks whose tasks the agent has to kill.
    pub(super) fn adopt(
        &mut self,
        id: &AgentId,
        report: &meseta::Reregister,
        tasks: Vec<meseta::ReportedTask>,
        back: ReregistrationKind,
    ) -> BTreeSet<FrameworkId> {
        let is_expected = back == ReregistrationKind::Expected;
        let mut finished = BTreeSet::new();
        let running = RunningFrameworks::from_report(report, &tasks);
        let mut framework_slots = None;
        for info in &report.frameworks {
            let framework = info
                .id
                .as_ref()
                .and_then(|id| FrameworkId::new(&id.value).ok());
            let Some(framework) = framework else { continue };
            let principal = info.principal.as_deref();
            if self.ownership.is_removed(&framework) {
                finished.insert(framework);
            } else if self.issued_ids.is_future_framework(&framework) {
                tracing::warn!(agent_id = %id, framework_id = %framework, "agent reports a framework id that this master never assigned; its tasks are killed");
                finished.insert(framework);
            } else if !self.is_its_owners(&framework, principal, is_expected) {
                tracing::warn!(agent_id = %id, framework_id = %framework, "agent runs tasks of another principal under the framework's id; they are ended");
                finished.insert(framework);
            } else if running.has(&framework) && !self.frameworks.contains_key(&framework) {
                let recovered =
                    self.recover_framework(id, &framework, info, is_expected, &mut framework_slots);
                if let Err(reason) = recovered {
                    tracing::warn!(agent_id = %id, framework_id = %framework, %reason, "framework that an agent tells of left out, with its tasks");
                }
            }
        }
        let Some(agent) = self.agents.get(id) else {
            return finished;
        };
        let mut budget = AdoptionBudget {
            charged: ChargedResources::from_agent(agent),
            reported: self.reported_budget_of(agent),
        };
        self.adopt_tasks(id, tasks, &finished, back, &mut budget);
        for info in &report.executors {
            self.adopt_executor(id, info, &finished, &mut budget);
        }
        budget.reported.log(id);
        finished
    }

    /// The number of frameworks that the agent may still add by a report: an agent with false reports must not fill
    /// the table.
    fn framework_slots_left(&self, id: &AgentId) -> usize {
        let told = self.frameworks.values().filter(|framework| {
            framework.link == Link::Recovered && framework.told_by.as_ref() == Some(id)
        });
        FRAMEWORKS_PER_AGENT_MAX.saturating_sub(told.count())
    }

    /// Adds a framework that agents know and this master does not: its scheduler may subscribe again.
    fn recover_framework(
        &mut self,
        agent: &AgentId,
        id: &FrameworkId,
        info: &v1::FrameworkInfo,
        is_expected: bool,
        framework_slots: &mut Option<usize>,
    ) -> Result<(), Invalid> {
        // Counted once per agent, and only for an agent that reports a new framework.
        let slots_left = framework_slots.unwrap_or_else(|| self.framework_slots_left(agent));
        *framework_slots = Some(slots_left);
        if slots_left == 0 {
            return Err(invalid!(
                "the agent has reported {FRAMEWORKS_PER_AGENT_MAX} frameworks that are not subscribed"
            ));
        }
        if self.frameworks.len() >= RECOVERED_FRAMEWORKS_MAX {
            return Err(invalid!(
                "there are {RECOVERED_FRAMEWORKS_MAX} frameworks, and the rest of the limit is reserved for \
                 those that subscribe"
            ));
        }
        let memory = &self.config.memory;
        let bytes = info.encoded_len();
        let terms_max = memory.terms / 4 * 3;
        if bytes > memory.info || self.framework_info_usage.all().saturating_add(bytes) > terms_max
        {
            return Err(invalid!(
                "its info takes {bytes} bytes; the limits are {} for one framework and {terms_max} for all \
                 that agents tell of: raise the master's --memory_budget",
                memory.info
            ));
        }
        let roles = valid_roles(info).unwrap_or_else(|_| BTreeSet::from([Role::star()]));
        let mut info = info.clone();
        if let Some(owner) = self.ownership.owner_of(id) {
            info.principal.clone_from(&owner.principal);
        }
        let terms = Terms {
            capabilities: Capabilities::from_framework(&info),
            info: Arc::new(info),
            roles,
            suppressed: BTreeSet::new(),
            offer_constraints: None,
        };
        self.allocator.add_framework(id, &terms)?;
        *framework_slots = Some(slots_left - 1);
        let mut framework = Framework::new(id.clone(), terms, self.now.unix);
        framework.link = Link::Recovered;
        framework.told_by = Some(agent.clone());
        self.framework_info_usage.add(&framework);
        tracing::info!(framework_id = %id, "framework recovered from an agent");
        // The rest of the framework's own time, but at least the reregistration timeout of agents.
        let left = self.framework_deadlines.time_left(id, self.now.unix);
        let timeout = left.unwrap_or_else(|| framework.failover_timeout());
        let timeout = timeout.max(self.config.agent_reregister_timeout);
        framework.failover = Some(self.timers.set(
            self.now.moment + timeout,
            Timer::Failover {
                framework: id.clone(),
                generation: framework.generation,
            },
        ));
        self.timers.set(
            self.now.moment + FRAMEWORK_RETURN_TIME,
            Timer::Overdue {
                framework: id.clone(),
                generation: framework.generation,
            },
        );
        self.frameworks.insert(id.clone(), framework);
        self.note_reported(id, is_expected);
        self.publish_framework(id, true);
        let deadline = self.now.unix.saturating_add(timeout);
        self.framework_deadlines
            .note(id, deadline, &mut self.effects);
        Ok(())
    }

    fn adopt_executor(
        &mut self,
        agent_id: &AgentId,
        info: &v1::ExecutorInfo,
        finished: &BTreeSet<FrameworkId>,
        budget: &mut AdoptionBudget,
    ) {
        let framework = info
            .framework_id
            .as_ref()
            .and_then(|id| FrameworkId::new(&id.value).ok());
        let executor = ExecutorId::new(&info.executor_id.value).ok();
        let (Some(framework_id), Some(executor_id)) = (framework, executor) else {
            return;
        };
        let (Ok(resources), Some(agent)) = (
            wire::from_wire(&info.resources),
            self.agents.get_mut(agent_id),
        ) else {
            return;
        };
        let key = (framework_id.clone(), executor_id.clone());
        if finished.contains(&framework_id) || agent.executors.contains_key(&key) {
            return;
        }
        let Some(framework) = self.frameworks.get_mut(&framework_id) else {
            return;
        };
        let mut record = ExecutorRecord {
            executor_id,
            framework_id: framework_id.clone(),
            agent_id: agent_id.clone(),
            resources,
            user: task::user_of_executor(info),
            compared_bytes: task::bytes_without_resources(info),
            info: info.encode_to_vec().into(),
        };
        if budget.reported.fit_executor(&mut record, &info.resources) == Fit::LeftOut {
            return;
        }
        let resources = budget.charged.within(record.resources);
        record.resources = resources.clone();
        framework.add_on(agent_id);
        agent.charge(&framework_id, &resources);
        Arc::make_mut(&mut agent.executors).insert(key, Arc::new(record));
        self.charge_allocator(agent_id, &framework_id, &resources);
    }

    /// Charges resources held on an agent in the allocator, if the allocator already knows the agent. Otherwise they
    /// are charged when the agent is added.
    pub(super) fn charge_allocator(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        resources: &Resources,
    ) {
        if !resources.is_empty() && self.allocator.contains_agent(agent) {
            let charged = self.allocator.charge(agent, framework, resources);
            self.agreed("charging what an agent reported", charged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).unwrap()
    }

    #[test]
    fn charges_stay_within_agent_total() {
        let total = all("cpus:4;mem:100").scalar_quantities();
        let total = total.iter().map(|(name, amount)| (name.clone(), amount));
        let mut charged = ChargedResources {
            used: BTreeMap::new(),
            total: total.collect(),
        };
        let nothing = Resources::new();
        assert_eq!(charged.within(nothing.clone()), nothing);
        let much = all("cpus:3;mem:50");
        assert_eq!(charged.within(much.clone()), much);
        assert_eq!(charged.within(all("cpus:2")), nothing);
        assert_eq!(charged.within(all("cpus:1;disk:1")), nothing, "no disk");
        let rest = all("cpus:1;ports:[1-5]");
        assert_eq!(charged.within(rest.clone()), rest, "nothing was taken");
        assert_eq!(charged.within(all("cpus:0.001")), nothing);
        // A name that is overcharged does not affect the others.
        charged.total.remove("cpus");
        assert_eq!(charged.within(all("mem:50")), all("mem:50"));
        assert_eq!(charged.within(all("mem:1")), nothing);
    }
}
