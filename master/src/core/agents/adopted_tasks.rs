//! Adopts the tasks that a reregistering agent reports.
//!
//! Entered through [`MasterCore::adopt_tasks`]. After a failover all agents return at once with all their tasks, so
//! work common to many tasks happens once: the code looks up each table once per task, converts equal resources once
//! per agent, and informs the allocator once per framework.

use std::collections::{BTreeMap, BTreeSet};

use meseta_proto::meseta::v1::ReportedTask;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    AgentId, ExecutorId, FrameworkId, ID_BYTES_MAX, ResourceQuantities, Resources, Role, TaskId,
};
use prost::Message as _;

use super::adoption::{AdoptionBudget, ReregistrationKind, counted};
use super::reported_budget::{Fit, encoded};
use crate::core::ids::UUID_BYTES;
use crate::core::issued_ids::FrameworkPrefix;
use crate::core::master::MasterCore;
use crate::core::state::agent::Agent;
use crate::core::state::cached_view_map::CachedViewMap;
use crate::core::state::framework::Framework;
use crate::core::state::task::{self, TaskRecord, is_terminal};
use crate::core::validation::part::shares_groups;
use crate::core::views::snapshot::FrameworkView;
use crate::core::wire;

/// The number of cached conversions of resources: most tasks of an agent have equal resources.
const CONVERSIONS_MAX: usize = 8;

const NOT_LAUNCHED: &str = "it was not launched there, and is ended";

/// Reported resources of tasks, with the parsed form.
struct Conversion {
    /// The reported resources, each an encoded message.
    reported: Vec<Vec<u8>>,
    /// The role for unallocated resources.
    fallback: Role,
    role: Role,
    /// The parsed resources, allocated to the role.
    resources: Resources,
    /// The encoded size of the resources.
    bytes: usize,
    counted: ResourceQuantities,
}

impl Conversion {
    fn new(reported: Vec<Vec<u8>>, fallback: Role) -> Result<Self, Invalid> {
        let messages = reported.iter();
        let messages = messages.map(|encoded| v1::Resource::decode(encoded.as_slice()));
        let messages = messages
            .collect::<Result<Vec<_>, _>>()
            .map_err(Invalid::from_error)?;
        let resources = wire::from_wire(&messages)?;
        let allocated = resources
            .iter()
            .find_map(|resource| resource.allocation_role().cloned());
        let role = allocated.unwrap_or_else(|| fallback.clone());
        let mut resources = wire::allocate(&resources, &role);
        resources.shrink_to_fit();
        Ok(Self {
            bytes: encoded(&messages),
            counted: counted(&resources),
            reported,
            fallback,
            role,
            resources,
        })
    }
}

/// The cached conversions; the oldest makes room.
#[derive(Default)]
struct Conversions {
    kept: Vec<Conversion>,
    next: usize,
}

impl Conversions {
    fn convert(&mut self, reported: Vec<Vec<u8>>, fallback: &Role) -> Result<&Conversion, Invalid> {
        let known = self
            .kept
            .iter()
            .position(|one| one.fallback == *fallback && one.reported == reported);
        let index = match known {
            Some(index) => index,
            None => self.add(Conversion::new(reported, fallback.clone())?),
        };
        Ok(&self.kept[index])
    }

    fn add(&mut self, conversion: Conversion) -> usize {
        if self.kept.len() < CONVERSIONS_MAX {
            self.kept.push(conversion);
            return self.kept.len() - 1;
        }
        let index = self.next;
        self.kept[index] = conversion;
        self.next = (index + 1) % CONVERSIONS_MAX;
        index
    }
}

/// The effects of adopting tasks outside the agent and its frameworks.
#[derive(Default)]
struct AdoptedTasks {
    /// New tasks; recorded only once an operator has subscribed to events.
    added: Option<Vec<(FrameworkId, TaskId)>>,
    /// Known tasks that have ended according to the agent.
    ended: Vec<(FrameworkId, TaskId, TaskState)>,
    /// The resources of new tasks; recorded only if the allocator knows the agent.
    held: Option<BTreeMap<FrameworkId, Resources>>,
    /// Bytes of the history that became free, because unreachable tasks are back.
    history_bytes: usize,
}

impl AdoptedTasks {
    fn hold(&mut self, record: &TaskRecord) {
        let Some(held) = &mut self.held else { return };
        match held.get_mut(&record.framework_id) {
            Some(held) => *held += &record.resources,
            None => drop(held.insert(record.framework_id.clone(), record.resources.clone())),
        }
    }

    fn note_added(&mut self, record: &TaskRecord) {
        if let Some(added) = &mut self.added {
            added.push((record.framework_id.clone(), record.task_id.clone()));
        }
    }
}

/// The data that decide which of an agent's tasks are adopted.
struct TaskAdoption<'a> {
    frameworks: &'a mut CachedViewMap<FrameworkId, Framework, FrameworkView>,
    finished: &'a BTreeSet<FrameworkId>,
    back: ReregistrationKind,
    issued: FrameworkPrefix,
    books: Books<'a>,
}

/// The tables that record an adopted task.
struct Books<'a> {
    agent: &'a mut Agent,
    budget: &'a mut AdoptionBudget,
    conversions: Conversions,
    adopted: AdoptedTasks,
}

impl MasterCore {
    /// Parses the tasks that an agent reports; skips unreadable ones.
    pub(super) fn read_reported_tasks(
        &mut self,
        id: &AgentId,
        tasks: Vec<Vec<u8>>,
    ) -> Vec<ReportedTask> {
        let mut read = Vec::with_capacity(tasks.len());
        for task in tasks {
            match ReportedTask::decode(task.as_slice()) {
                Ok(task) => read.push(task),
                Err(reason) => {
                    self.counters.invalid_status_updates += 1;
                    tracing::warn!(agent_id = %id, %reason, "reported task left out: it cannot be read");
                }
            }
        }
        read
    }

    /// Adopts reported tasks, except those of frameworks that are `finished`.
    pub(super) fn adopt_tasks(
        &mut self,
        id: &AgentId,
        tasks: Vec<ReportedTask>,
        finished: &BTreeSet<FrameworkId>,
        back: ReregistrationKind,
        budget: &mut AdoptionBudget,
    ) {
        let issued = self.issued_ids.framework_prefix();
        let is_allocated = self.allocator.contains_agent(id);
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        let adopted = AdoptedTasks {
            added: self.readers.is_watching().then(Vec::new),
            held: is_allocated.then(BTreeMap::new),
            ..AdoptedTasks::default()
        };
        let mut adoption = TaskAdoption {
            frameworks: &mut self.frameworks,
            finished,
            back,
            issued,
            books: Books {
                agent,
                budget,
                conversions: Conversions::default(),
                adopted,
            },
        };
        for mut task in tasks {
            let task_id = std::mem::take(&mut task.task_id.value);
            if let Err(reason) = adoption.adopt(&task_id, task) {
                self.counters.invalid_status_updates += 1;
                let name: String = task_id.chars().take(ID_BYTES_MAX).collect();
                tracing::warn!(agent_id = %id, task_id = %name.escape_debug(), %reason, "reported task left out");
            }
        }
        let adopted = adoption.books.adopted;
        self.histories.free(adopted.history_bytes);
        for (framework, held) in adopted.held.iter().flatten() {
            self.charge_allocator(id, framework, held);
        }
        for (framework, task) in adopted.added.iter().flatten() {
            self.publish_task(id, framework, task);
        }
        for (framework, task, state) in &adopted.ended {
            self.task_ended(id, framework, task, *state);
        }
    }
}

impl TaskAdoption<'_> {
    fn adopt(&mut self, task_id: &str, task: ReportedTask) -> Result<(), Invalid> {
        let framework_id =
            FrameworkId::new(&task.framework_id.value).map_err(Invalid::from_error)?;
        if self.finished.contains(&framework_id) {
            return Ok(());
        }
        let state = TaskState::try_from(task.state).map_err(Invalid::from_error);
        let is_over = state.as_ref().is_ok_and(|state| is_terminal(*state));
        // An agent that was never away runs only tasks from this master. An ended task may be one whose
        // acknowledgement the agent did not get.
        let is_strange = |framework: &FrameworkId| {
            self.back == ReregistrationKind::Registered && !is_over && self.issued.is_of(framework)
        };
        let agent = &mut *self.books.agent;
        let Some(framework) = self.frameworks.get_mut(&framework_id) else {
            if let Ok(task_id) = TaskId::new(task_id)
                && is_strange(&framework_id)
            {
                agent.remember_kill(&framework_id, &task_id, None);
                return Err(Invalid::from_error(NOT_LAUNCHED));
            }
            return Err(invalid!("its framework is unknown"));
        };
        // A clone of the stored id, which very many tasks then share.
        let framework_id = framework.id.clone();
        let task_id = TaskId::new(task_id).map_err(Invalid::from_error)?;
        if agent.task(&framework_id, &task_id).is_some() {
            if is_over {
                let ended = (framework_id, task_id, state?);
                self.books.adopted.ended.push(ended);
            }
            return Ok(());
        }
        if framework.task_conflict(agent.id(), &task_id).is_launched {
            agent.remember_kill(&framework_id, &task_id, None);
            return Err(invalid!("it is another agent's, and is ended here"));
        }
        if is_strange(&framework_id) {
            agent.remember_kill(&framework_id, &task_id, None);
            return Err(Invalid::from_error(NOT_LAUNCHED));
        }
        self.books.add(framework, task_id, state?, task)
    }
}

impl Books<'_> {
    fn add(
        &mut self,
        framework: &mut Framework,
        task_id: TaskId,
        state: TaskState,
        mut task: ReportedTask,
    ) -> Result<(), Invalid> {
        let (agent, adopted) = (&mut *self.agent, &mut self.adopted);
        let resources = std::mem::take(&mut task.resources);
        let fallback = framework.terms.roles.first().cloned();
        let resources = self
            .conversions
            .convert(resources, &fallback.unwrap_or_default())?;
        let ids = (framework.id.clone(), task_id);
        let mut record = record(agent.id(), ids, state, resources, task)?;
        let mut lost = framework.unreachable.tasks().iter();
        let lost = lost.find(|lost| {
            lost.is_launched && lost.agent_id == *agent.id() && lost.task_id == record.task_id
        });
        if let Some(lost) = lost {
            record.is_launched = true;
            // The description from the framework, not from the agent.
            record.description.clone_from(&lost.description);
        }
        if self.budget.reported.fit_task(&mut record, resources.bytes) == Fit::LeftOut {
            return Ok(());
        }
        if record.is_launched {
            framework.launched_on(&record.task_id, agent.id());
        } else {
            framework.reported_by(&record.task_id, agent.id());
        }
        framework.add_on(agent.id());
        let freed = framework
            .unreachable
            .take(|lost| lost.task_id == record.task_id && lost.agent_id == record.agent_id);
        adopted.history_bytes += freed.iter().map(|task| task.bytes()).sum::<usize>();
        if !is_terminal(state) {
            if !self.budget.charged.take(&resources.counted) {
                record.resources = Resources::new();
            }
            if record.resources.is_empty() {
                tracing::warn!(agent_id = %record.agent_id, framework_id = %record.framework_id, task_id = %record.task_id, "reported task is charged nothing: the agent has no more");
            }
            agent.charge(&record.framework_id, &record.resources);
            adopted.hold(&record);
        }
        adopted.note_added(&record);
        agent.insert_task(record);
        Ok(())
    }
}

/// Converts a reported task to a record.
fn record(
    agent_id: &AgentId,
    (framework_id, task_id): (FrameworkId, TaskId),
    state: TaskState,
    resources: &Conversion,
    mut task: ReportedTask,
) -> Result<TaskRecord, Invalid> {
    let executor_id = task.executor_id.take();
    let update_state = task.status_update_state.take();
    let update_uuid = task.status_update_uuid.take();
    let statuses = std::mem::take(&mut task.statuses);
    let container = task.container.as_deref().map(v1::ContainerInfo::decode);
    let container = container.transpose().map_err(Invalid::from_error)?;
    let mut record = TaskRecord {
        task_id,
        framework_id,
        agent_id: agent_id.clone(),
        is_launched: false,
        executor_id: executor_id.and_then(|id| ExecutorId::new(&id.value).ok()),
        role: resources.role.clone(),
        resources: resources.resources.clone(),
        state,
        update_state: update_state.and_then(|state| TaskState::try_from(state).ok()),
        update_uuid: update_uuid.filter(|uuid| uuid.len() == UUID_BYTES),
        statuses: Vec::new(),
        user: task.user.as_deref().map(Into::into),
        shares_groups: shares_groups(container.as_ref()),
        description: task::describe_reported(task),
        unreachable_since: None,
    };
    for status in statuses {
        record.push_reported_status(status);
    }
    Ok(record)
}
