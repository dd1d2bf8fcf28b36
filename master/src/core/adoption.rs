//! What an agent brings along: frameworks, tasks and executors that the master takes onto its books.
//!
//! Entered through [`MasterCore::adopt`] when an agent is back. Invariant: what is adopted is charged
//! once, here and in the allocator, and with no more than its agent has; no agent says anything of a task that another
//! agent was given by this master.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_resources::{
    AgentId, ExecutorId, FrameworkId, ResourceQuantities, Resources, Role, TaskId,
};
use prost::Message;

use super::agent::Agent;
use super::framework::{Capabilities, Framework, Link, Terms};
use super::task::{self, ExecutorRecord, TaskRecord, is_terminal};
use super::task_validation::shares_groups;
use super::timers::Timer;
use super::{MasterCore, wire};

/// Frameworks that are not here and that one agent tells of: more than it has executors.
const FRAMEWORKS_PER_AGENT_MAX: usize = 2_048;

/// Frameworks, while agents tell of more: some places are left for those that subscribe.
const RECOVERED_FRAMEWORKS_MAX: usize = super::FRAMEWORKS_MAX / 10 * 9;

/// How an agent is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// It is one that the registry had when this master started.
    Expected,
    /// It was lost, or is one that nobody expected.
    Unexpected,
    /// This master has it on its books, and all that it gave it.
    Here,
}

/// What an agent has, and what is charged of it. What may be taken back, and volumes that several may use, are left
/// out.
struct Charged {
    used: ResourceQuantities,
    total: ResourceQuantities,
}

impl Charged {
    fn of(agent: &Agent) -> Self {
        let mut charged = Self {
            used: ResourceQuantities::default(),
            total: agent.profile.total.unrevocable().scalar_quantities(),
        };
        for used in agent.used.values() {
            charged.used = charged.with(used);
        }
        charged
    }

    fn with(&self, resources: &Resources) -> ResourceQuantities {
        let mut used = self.used.clone();
        let more = resources.unrevocable().unshared().scalar_quantities();
        for (name, amount) in more.iter() {
            used.increase(name, amount);
        }
        used
    }

    /// The resources, or nothing if the agent does not have so much.
    fn within(&mut self, resources: Resources) -> Resources {
        let used = self.with(&resources);
        if !self.total.contains(&used) {
            return Resources::new();
        }
        self.used = used;
        resources
    }
}

/// The frameworks of which an agent runs something.
struct Running<'a>(BTreeSet<&'a str>);

impl<'a> Running<'a> {
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

impl MasterCore {
    /// Takes what an agent runs onto the books. Tells of which frameworks it should run nothing.
    pub(super) fn adopt(
        &mut self,
        id: &AgentId,
        report: &meseta::Reregister,
        back: Back,
    ) -> BTreeSet<FrameworkId> {
        let is_expected = back == Back::Expected;
        let mut finished = BTreeSet::new();
        let running = Running::of(report);
        let mut room = self.room_for_frameworks_of(id);
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
                tracing::warn!(agent_id = %id, framework_id = %framework, "agent tells of a framework id that nobody was given; its tasks are ended");
                finished.insert(framework);
            } else if !self.is_its_owners(&framework, principal, is_expected) {
                tracing::warn!(agent_id = %id, framework_id = %framework, "agent runs tasks of another principal under the framework's id; they are ended");
                finished.insert(framework);
            } else if running.has(&framework) && !self.frameworks.contains_key(&framework) {
                let recovered =
                    self.recover_framework(id, &framework, info, is_expected, &mut room);
                if let Err(reason) = recovered {
                    tracing::warn!(agent_id = %id, framework_id = %framework, %reason, "framework that an agent tells of left out, with its tasks");
                }
            }
        }
        let Some(mut charged) = self.agents.get(id).map(Charged::of) else {
            return finished;
        };
        for task in &report.tasks {
            if let Err(reason) = self.adopt_task(id, task, &finished, back, &mut charged) {
                self.counters.invalid_status_updates += 1;
                tracing::warn!(agent_id = %id, task_id = %task.task_id.value.escape_debug(), %reason, "reported task left out");
            }
        }
        for info in &report.executors {
            self.adopt_executor(id, info, &finished, &mut charged);
        }
        finished
    }

    /// How many frameworks may still come to be on an agent's word: one that lies must not fill the table.
    fn room_for_frameworks_of(&self, id: &AgentId) -> usize {
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
        room: &mut usize,
    ) -> Result<(), String> {
        if *room == 0 {
            return Err(format!(
                "the agent has told of {FRAMEWORKS_PER_AGENT_MAX} frameworks that are not here"
            ));
        }
        if self.frameworks.len() >= RECOVERED_FRAMEWORKS_MAX {
            return Err(format!(
                "there are {RECOVERED_FRAMEWORKS_MAX} frameworks, and the other places are for \
                 those that subscribe"
            ));
        }
        let memory = &self.config.memory;
        let bytes = info.encoded_len();
        let terms_max = memory.terms / 4 * 3;
        if bytes > memory.info || self.said.all().saturating_add(bytes) > terms_max {
            return Err(format!(
                "it says {bytes} bytes of itself; at most {} are kept of one, and {terms_max} of all \
                 that agents tell of: raise the master's --memory_budget",
                memory.info
            ));
        }
        let roles =
            super::subscribe::valid_roles(info).unwrap_or_else(|_| BTreeSet::from([Role::star()]));
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
        *room -= 1;
        let mut framework = Framework::new(id.clone(), terms, self.now.unix);
        framework.link = Link::Recovered;
        framework.told_by = Some(agent.clone());
        self.said.add(&framework);
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
        self.note_framework(id, true);
        self.note_deadline(id, timeout);
        Ok(())
    }

    /// Whether a task was given to another agent by this master than to the one that speaks of it.
    pub(super) fn is_launched_on_another(
        &self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
    ) -> bool {
        let Some(framework) = self.frameworks.get(framework) else {
            return false;
        };
        if framework.has_launched(task) {
            return framework.tasks.get(task) != Some(agent);
        }
        let lost = framework.unreachable.tasks().iter();
        let launched = lost.filter(|lost| lost.task_id == *task && lost.is_launched);
        let mut holders = launched.peekable();
        holders.peek().is_some() && holders.all(|lost| lost.agent_id != *agent)
    }

    /// Whether a task is known to be another agent's than the one that speaks of it.
    pub(super) fn is_task_of_another(
        &self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
    ) -> bool {
        let Some(framework) = self.frameworks.get(framework) else {
            return false;
        };
        let mut holders = framework.holders(task).peekable();
        if holders.peek().is_some() {
            return holders.all(|holder| holder != agent);
        }
        let lost = framework.unreachable.tasks().iter();
        let mut holders = lost.filter(|lost| lost.task_id == *task).peekable();
        holders.peek().is_some() && holders.all(|lost| lost.agent_id != *agent)
    }

    fn adopt_task(
        &mut self,
        agent_id: &AgentId,
        task: &v1::Task,
        finished: &BTreeSet<FrameworkId>,
        back: Back,
        charged: &mut Charged,
    ) -> Result<(), String> {
        let framework_id =
            FrameworkId::new(&task.framework_id.value).map_err(|error| error.to_string())?;
        if finished.contains(&framework_id) {
            return Ok(());
        }
        if let Some(reason) = self.may_not_run(agent_id, &framework_id, task, back) {
            let task_id = TaskId::new(&task.task_id.value).ok();
            if let (Some(task_id), Some(agent)) = (task_id, self.agents.get_mut(agent_id)) {
                agent.kill_when_back(&framework_id, &task_id);
            }
            return Err(reason.to_owned());
        }
        let (Some(framework), Some(agent)) = (
            self.frameworks.get_mut(&framework_id),
            self.agents.get_mut(agent_id),
        ) else {
            return Err("its framework is unknown".to_owned());
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
        record.is_launched = lost
            .any(|lost| lost.is_launched && lost.agent_id == *agent_id && lost.task_id == task_id);
        if record.is_launched {
            framework.launched_on(&task_id, agent_id);
        } else {
            framework.reported_by(&task_id, agent_id);
        }
        if !is_terminal(record.state) {
            record.resources = charged.within(record.resources);
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
        self.note_task(agent_id, &framework_id, &task_id);
        Ok(())
    }

    /// Why a task that an agent says it runs is to be ended there.
    fn may_not_run(
        &self,
        agent_id: &AgentId,
        framework: &FrameworkId,
        task: &v1::Task,
        back: Back,
    ) -> Option<&'static str> {
        let task_id = TaskId::new(&task.task_id.value).ok()?;
        let agent = self.agents.get(agent_id)?;
        if agent.task(framework, &task_id).is_some() {
            return None;
        }
        if self.is_launched_on_another(agent_id, framework, &task_id) {
            return Some("it is another agent's, and is ended here");
        }
        // An end may be one whose acknowledgement the agent did not get.
        let is_over = TaskState::try_from(task.state).is_ok_and(is_terminal);
        let is_strange = back == Back::Here && !is_over && self.is_own_framework(framework);
        is_strange.then_some("it was not launched there, and is ended")
    }

    fn adopt_executor(
        &mut self,
        agent_id: &AgentId,
        info: &v1::ExecutorInfo,
        finished: &BTreeSet<FrameworkId>,
        charged: &mut Charged,
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
        framework.add_on(agent_id);
        let resources = charged.within(resources);
        agent.charge(&framework_id, &resources);
        let record = ExecutorRecord {
            executor_id,
            framework_id: framework_id.clone(),
            agent_id: agent_id.clone(),
            resources: resources.clone(),
            user: task::user_of_executor(info),
            info: info.encode_to_vec().into(),
        };
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
) -> Result<TaskRecord, String> {
    let task_id = TaskId::new(&task.task_id.value).map_err(|error| error.to_string())?;
    let state = TaskState::try_from(task.state).map_err(|error| error.to_string())?;
    let resources = wire::from_wire(&task.resources)?;
    let role = resources
        .iter()
        .find_map(|resource| resource.allocation_role().cloned())
        .unwrap_or_else(|| fallback.clone());
    let mut resources: Resources = resources
        .iter()
        .map(|resource| match resource.allocation_role() {
            Some(_) => resource.clone(),
            None => resource.clone().with_allocation(Some(role.clone())),
        })
        .collect();
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
        update_uuid: task.status_update_uuid.clone(),
        statuses: Vec::new(),
        user: task.user.as_deref().map(Into::into),
        shares_groups: shares_groups(task.container.as_deref()),
        description: task::describe_reported(task.clone()),
        unreachable_since: None,
    };
    for status in &task.statuses {
        record.push_status(status);
    }
    Ok(record)
}
