//! Adopts the frameworks, tasks and executors that an agent reports when it reregisters.
//!
//! Entered through [`MasterCore::adopt`] when an agent is back. Invariant: what is adopted is charged
//! once, here and in the allocator, and with no more than its agent has; it is bounded in bytes for all agents of a
//! host; no agent says anything of a task that another agent was given by this master.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    AgentId, ExecutorId, FrameworkId, ID_BYTES_MAX, ResourceName, ResourceQuantities, Resources,
    Role, Scalar, TaskId,
};
use prost::Message;

use super::reported_budget::{Fit, ReportedBudget};
use crate::core::ids::UUID_BYTES;
use crate::core::master::MasterCore;
use crate::core::state::agent::Agent;
use crate::core::state::framework::{Capabilities, Framework, Link, Terms, valid_roles};
use crate::core::state::task::{self, ExecutorRecord, TaskRecord, is_terminal};
use crate::core::timers::Timer;
use crate::core::validation::part::shares_groups;
use crate::core::wire;

/// Unsubscribed frameworks that one agent may report: more than it has executors.
const FRAMEWORKS_PER_AGENT_MAX: usize = 2_048;

/// Frameworks that may be recovered from agents; the rest of the limit is left for those that subscribe.
const RECOVERED_FRAMEWORKS_MAX: usize = crate::core::config::FRAMEWORKS_MAX / 10 * 9;

/// What the master knew of an agent that reregisters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum ReregistrationKind {
    /// It is one that the registry had when this master started.
    Expected,
    /// It was lost, or is one that nobody expected.
    Unexpected,
    /// This master has it on its books, and all that it gave it.
    Registered,
}

/// Total and charged resources of an agent, without revocable resources and shared volumes. An agent may have very
/// many names, and tell of very many records: of each record only its own names are looked at.
struct ChargedResources {
    used: BTreeMap<ResourceName, Scalar>,
    total: BTreeMap<ResourceName, Scalar>,
}

impl ChargedResources {
    fn of(agent: &Agent) -> Self {
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

    /// Whether the agent has so much beside what is charged.
    fn has(&self, more: &ResourceQuantities) -> bool {
        let of = |amounts: &BTreeMap<ResourceName, Scalar>, name: &ResourceName| {
            amounts.get(name).copied().unwrap_or_default()
        };
        more.iter().all(|(name, amount)| {
            let used = of(&self.used, name).saturating_add(amount);
            used <= of(&self.total, name)
        })
    }

    /// The resources, or nothing if the agent does not have so much.
    fn within(&mut self, resources: Resources) -> Resources {
        if resources.is_empty() {
            return resources;
        }
        let more = counted(&resources);
        if !self.has(&more) {
            return Resources::new();
        }
        self.charge(&more);
        resources
    }
}

/// What counts of resources, see [`ChargedResources`].
fn counted(resources: &Resources) -> ResourceQuantities {
    resources.unrevocable().unshared().scalar_quantities()
}

/// What may still be taken over of an agent, in resources and in bytes.
struct AdoptionBudget {
    charged: ChargedResources,
    reported: ReportedBudget,
}

/// What this master knows of a task that contradicts the reporting agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct TaskConflict {
    /// Other agents have it, or had it when they were lost, and this one has not.
    pub(in crate::core) is_on_another_agent: bool,
    /// This master gave it to another agent, and not to this one.
    pub(in crate::core) is_launched: bool,
}

/// The frameworks of which an agent runs something.
struct RunningFrameworks<'a>(BTreeSet<&'a str>);

impl<'a> RunningFrameworks<'a> {
    fn of(report: &'a meseta::Reregister) -> Self {
        let tasks = report.tasks.iter();
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

/// Whether a task is recorded as lost, and whether with the reporting agent.
#[derive(Clone, Copy, Default)]
struct LostTaskMatch {
    is_known: bool,
    is_this_agent: bool,
}

impl LostTaskMatch {
    fn note(&mut self, is_this_agent: bool) {
        self.is_known = true;
        self.is_this_agent |= is_this_agent;
    }

    fn is_elsewhere(self) -> bool {
        self.is_known && !self.is_this_agent
    }
}

impl MasterCore {
    /// Adopts what an agent runs. Returns the frameworks whose tasks the agent has to kill.
    pub(super) fn adopt(
        &mut self,
        id: &AgentId,
        report: &meseta::Reregister,
        back: ReregistrationKind,
    ) -> BTreeSet<FrameworkId> {
        let is_expected = back == ReregistrationKind::Expected;
        let mut finished = BTreeSet::new();
        let running = RunningFrameworks::of(report);
        let mut framework_slots = self.framework_slots_left(id);
        for info in &report.frameworks {
            let framework = info
                .id
                .as_ref()
                .and_then(|id| FrameworkId::new(&id.value).ok());
            let Some(framework) = framework else { continue };
            let principal = info.principal.as_deref();
            if self.ownership.is_removed(&framework) {
                finished.insert(framework);
            } else if self.is_future_framework(&framework) {
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
            charged: ChargedResources::of(agent),
            reported: self.reported_budget_of(agent),
        };
        for task in &report.tasks {
            if let Err(reason) = self.adopt_task(id, task, &finished, back, &mut budget) {
                self.counters.invalid_status_updates += 1;
                let name: String = task.task_id.value.chars().take(ID_BYTES_MAX).collect();
                tracing::warn!(agent_id = %id, task_id = %name.escape_debug(), %reason, "reported task left out");
            }
        }
        for info in &report.executors {
            self.adopt_executor(id, info, &finished, &mut budget);
        }
        budget.reported.log(id);
        finished
    }

    /// How many frameworks may still come to be on an agent's word: one that lies must not fill the table.
    fn framework_slots_left(&self, id: &AgentId) -> usize {
        let told = self.frameworks.values().filter(|framework| {
            framework.link == Link::Recovered && framework.told_by.as_ref() == Some(id)
        });
        FRAMEWORKS_PER_AGENT_MAX.saturating_sub(told.count())
    }

    /// A framework that agents know and this master does not: it may subscribe again.
    fn recover_framework(
        &mut self,
        agent: &AgentId,
        id: &FrameworkId,
        info: &v1::FrameworkInfo,
        is_expected: bool,
        framework_slots: &mut usize,
    ) -> Result<(), Invalid> {
        if *framework_slots == 0 {
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
            capabilities: Capabilities::of(&info),
            info: Arc::new(info),
            roles,
            suppressed: BTreeSet::new(),
            offer_constraints: None,
        };
        self.allocator.add_framework(id, &terms)?;
        *framework_slots -= 1;
        let mut framework = Framework::new(id.clone(), terms, self.now.unix);
        framework.link = Link::Recovered;
        framework.told_by = Some(agent.clone());
        self.framework_info_usage.add(&framework);
        tracing::info!(framework_id = %id, "framework recovered from an agent");
        let timeout = self.time_to_return(id, framework.failover_timeout());
        framework.failover = Some(self.timers.set(
            self.now.moment + timeout,
            Timer::Failover {
                framework: id.clone(),
                generation: framework.generation,
            },
        ));
        self.frameworks.insert(id.clone(), framework);
        self.note_reported(id, is_expected);
        self.publish_framework(id, true);
        self.note_deadline(id, timeout);
        Ok(())
    }

    /// What is known of a task on other agents than the one that speaks of it.
    pub(super) fn task_conflict(
        &self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
    ) -> TaskConflict {
        let Some(framework) = self.frameworks.get(framework) else {
            return TaskConflict::default();
        };
        let has_launched = framework.has_launched(task);
        let mut holders = framework.holders(task).peekable();
        let held = holders.peek().is_some();
        let is_held_here = holders.any(|holder| holder == agent);
        let (mut lost, mut launched) = (LostTaskMatch::default(), LostTaskMatch::default());
        // What is live and launched is told by the live tasks alone.
        let records = framework.unreachable.tasks().iter();
        for record in records.filter(|record| !has_launched && record.task_id == *task) {
            let is_this_agent = record.agent_id == *agent;
            lost.note(is_this_agent);
            if record.is_launched {
                launched.note(is_this_agent);
            }
        }
        TaskConflict {
            is_on_another_agent: if held {
                !is_held_here
            } else {
                lost.is_elsewhere()
            },
            is_launched: if has_launched {
                framework.tasks.get(task) != Some(agent)
            } else {
                launched.is_elsewhere()
            },
        }
    }

    fn adopt_task(
        &mut self,
        agent_id: &AgentId,
        task: &v1::Task,
        finished: &BTreeSet<FrameworkId>,
        back: ReregistrationKind,
        budget: &mut AdoptionBudget,
    ) -> Result<(), Invalid> {
        let framework_id = FrameworkId::new(&task.framework_id.value).map_err(Invalid::of)?;
        if finished.contains(&framework_id) {
            return Ok(());
        }
        if let Some(reason) = self.may_not_run(agent_id, &framework_id, task, back) {
            let task_id = TaskId::new(&task.task_id.value).ok();
            if let (Some(task_id), Some(agent)) = (task_id, self.agents.get_mut(agent_id)) {
                agent.kill_when_back(&framework_id, &task_id);
            }
            return Err(reason.into());
        }
        let (Some(framework), Some(agent)) = (
            self.frameworks.get_mut(&framework_id),
            self.agents.get_mut(agent_id),
        ) else {
            return Err(invalid!("its framework is unknown"));
        };
        // The very id that is kept, which very many tasks share.
        let framework_id = framework.id.clone();
        let fallback = framework
            .terms
            .roles
            .iter()
            .next()
            .cloned()
            .unwrap_or_default();
        let mut record = record(agent_id, framework_id, task, &fallback)?;
        let (framework_id, task_id) = (record.framework_id.clone(), record.task_id.clone());
        if agent.task(&framework_id, &task_id).is_some() {
            if is_terminal(record.state) {
                self.task_ended(agent_id, &framework_id, &task_id, record.state);
            }
            return Ok(());
        }
        let mut lost = framework.unreachable.tasks().iter();
        let lost = lost
            .find(|lost| lost.is_launched && lost.agent_id == *agent_id && lost.task_id == task_id);
        if let Some(lost) = lost {
            record.is_launched = true;
            // What the framework said of it, and not the agent.
            record.description.clone_from(&lost.description);
        }
        if budget.reported.fit_task(&mut record, &task.resources) == Fit::LeftOut {
            return Ok(());
        }
        if record.is_launched {
            framework.launched_on(&task_id, agent_id);
        } else {
            framework.reported_by(&task_id, agent_id);
        }
        if !is_terminal(record.state) {
            record.resources = budget.charged.within(record.resources);
            if record.resources.is_empty() {
                tracing::warn!(agent_id = %agent_id, framework_id = %framework_id, task_id = %task_id, "reported task is charged nothing: the agent has no more");
            }
        }
        let held = (!is_terminal(record.state)).then(|| record.resources.clone());
        framework.add_on(agent_id);
        agent.insert_task(record);
        if let Some(held) = held {
            agent.charge(&framework_id, &held);
            self.charge_allocator(agent_id, &framework_id, &held);
        }
        self.forget_unreachable(&framework_id, &task_id, agent_id);
        self.publish_task(agent_id, &framework_id, &task_id);
        Ok(())
    }

    /// Why a task that an agent says it runs is to be ended there.
    fn may_not_run(
        &self,
        agent_id: &AgentId,
        framework: &FrameworkId,
        task: &v1::Task,
        back: ReregistrationKind,
    ) -> Option<&'static str> {
        let task_id = TaskId::new(&task.task_id.value).ok()?;
        let agent = self.agents.get(agent_id)?;
        if agent.task(framework, &task_id).is_some() {
            return None;
        }
        if self
            .task_conflict(agent_id, framework, &task_id)
            .is_launched
        {
            return Some("it is another agent's, and is ended here");
        }
        // An end may be one whose acknowledgement the agent did not get.
        let is_over = TaskState::try_from(task.state).is_ok_and(is_terminal);
        let is_strange =
            back == ReregistrationKind::Registered && !is_over && self.is_own_framework(framework);
        is_strange.then_some("it was not launched there, and is ended")
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

    /// Tells the allocator of what is held on an agent that it knows already; of one that it does
    /// not know yet it is told all at once.
    fn charge_allocator(
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

/// A reported task as a record.
fn record(
    agent_id: &AgentId,
    framework_id: FrameworkId,
    task: &v1::Task,
    fallback: &Role,
) -> Result<TaskRecord, Invalid> {
    let task_id = TaskId::new(&task.task_id.value).map_err(Invalid::of)?;
    let state = TaskState::try_from(task.state).map_err(Invalid::of)?;
    let resources = wire::from_wire(&task.resources)?;
    let role = resources
        .iter()
        .find_map(|resource| resource.allocation_role().cloned())
        .unwrap_or_else(|| fallback.clone());
    let mut resources = wire::allocate(&resources, &role);
    resources.shrink_to_fit();
    let executor_id = task
        .executor_id
        .as_ref()
        .and_then(|id| ExecutorId::new(&id.value).ok());
    let update_state = task
        .status_update_state
        .and_then(|state| TaskState::try_from(state).ok());
    let mut record = TaskRecord {
        task_id,
        framework_id,
        agent_id: agent_id.clone(),
        is_launched: false,
        executor_id,
        role,
        resources,
        state,
        update_state,
        update_uuid: task
            .status_update_uuid
            .clone()
            .filter(|uuid| uuid.len() == UUID_BYTES),
        statuses: Vec::new(),
        user: task.user.as_deref().map(Into::into),
        shares_groups: shares_groups(task.container.as_deref()),
        description: task::describe_reported(task),
        unreachable_since: None,
    };
    for status in &task.statuses {
        record.push_status(status);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).unwrap()
    }

    #[test]
    fn what_is_charged_is_within_what_there_is_of_each_name() {
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
        // Of what there is less than is charged, others' names say nothing.
        charged.total.remove("cpus");
        assert_eq!(charged.within(all("mem:50")), all("mem:50"));
        assert_eq!(charged.within(all("mem:1")), nothing);
    }
}
