//! The frameworks, executors and tasks of the agent: lookups, changes, and the completed ones that are still shown.
//!
//! [`Runs`] is the only owner of this state. Readers share it by `Arc`. Invariants: each container that has not been
//! completed has an entry with its owner; the memory of completed executors and tasks is bounded ([`History`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources, TaskId};

use super::StreamKey;
use super::history::{History, task_bytes};
use super::model::{Container, Executor, ExecutorKind, Framework, Task, TaskRef};
use super::states::{dropped_or_lost, gone_or_lost};
use crate::checkpoint::{RunKey, TaskKey};

/// Completed frameworks that are still shown.
const COMPLETED_FRAMEWORKS_MAX: usize = 50;
/// Completed tasks of one executor that are still shown.
const COMPLETED_TASKS_PER_EXECUTOR_MAX: usize = 200;

/// The owner of a container.
#[derive(Clone, Debug)]
struct ContainerOwner {
    framework: FrameworkId,
    executor: ExecutorId,
    /// The task of the container's main process; `None` for an executor's own container.
    task: Option<TaskId>,
}

/// The frameworks with their executors and tasks.
#[derive(Debug)]
pub(super) struct Runs {
    frameworks: BTreeMap<FrameworkId, Arc<Framework>>,
    /// The frameworks without work, oldest first.
    completed: VecDeque<Arc<Framework>>,
    /// The memory of completed frameworks, and of completed executors of other frameworks.
    history: History,
    containers: BTreeMap<ContainerId, ContainerOwner>,
    /// The number of accepted tasks, used to deliver tasks in that order.
    accepted: u64,
}

impl Runs {
    /// Creates the state of an agent without work. `history_bytes_max` bounds the memory of completed work.
    pub(super) fn new(history_bytes_max: usize) -> Self {
        Self {
            frameworks: BTreeMap::new(),
            completed: VecDeque::new(),
            history: History::new(history_bytes_max),
            containers: BTreeMap::new(),
            accepted: 0,
        }
    }

    /// The frameworks with work here.
    pub(super) fn frameworks(&self) -> &BTreeMap<FrameworkId, Arc<Framework>> {
        &self.frameworks
    }

    /// The completed frameworks, oldest first.
    pub(super) fn completed_frameworks(&self) -> impl Iterator<Item = &Arc<Framework>> {
        self.completed.iter()
    }

    pub(super) fn framework(&self, id: &FrameworkId) -> Option<&Arc<Framework>> {
        self.frameworks.get(id)
    }

    /// All executors that are not completed, as they are now.
    pub(super) fn all_executors(&self) -> impl Iterator<Item = Arc<Executor>> + use<> {
        let frameworks = self.frameworks.values();
        let executors = frameworks.flat_map(|framework| framework.executors.values().cloned());
        executors.collect::<Vec<_>>().into_iter()
    }

    /// An executor that is not completed.
    pub(super) fn executor(&self, framework: &FrameworkId, id: &str) -> Option<Arc<Executor>> {
        let framework = self.frameworks.get(framework)?;
        framework.executors.get(id).cloned()
    }

    /// The live custom executor with this id.
    pub(super) fn custom(&self, framework: &FrameworkId, id: &str) -> Option<Arc<Executor>> {
        let executor = self.executor(framework, id)?;
        (executor.kind == ExecutorKind::Custom && executor.is_live()).then_some(executor)
    }

    /// The executor that owns a container, or its parent.
    pub(super) fn executor_of(&self, container: &ContainerId) -> Option<Arc<Executor>> {
        let owner = self.containers.get(container)?;
        self.executor(&owner.framework, owner.executor.as_str())
    }

    /// The task of a container's main process; `None` for an executor's own container.
    pub(super) fn task_of(&self, container: &ContainerId) -> Option<TaskRef> {
        let task = self.containers.get(container)?.task.clone()?;
        let executor = self.executor_of(container)?;
        let task = executor.tasks.get(&task)?.clone();
        Some(TaskRef { executor, task })
    }

    /// The executor of a run, unless another run has replaced it.
    pub(super) fn executor_at(&self, key: &RunKey) -> Option<Arc<Executor>> {
        let framework = self.frameworks.get(&key.framework)?;
        let executor = framework.executors.get(&key.executor)?;
        (executor.key.container == key.container).then(|| executor.clone())
    }

    pub(super) fn task_at(&self, key: &TaskKey) -> Option<TaskRef> {
        let executor = self.executor_at(&key.run)?;
        let task = executor.tasks.get(&key.task)?.clone();
        Some(TaskRef { executor, task })
    }

    /// A task that is live here, or has unacknowledged updates.
    pub(super) fn find_task(&self, stream: &StreamKey) -> Option<TaskRef> {
        let framework = self.frameworks.get(&stream.framework)?;
        // The executor of a command task is named after the task.
        let named = framework.executors.get(stream.task.as_str());
        let executor = named
            .filter(|executor| executor.tasks.contains_key(&stream.task))
            .or_else(|| {
                let mut executors = framework.executors.values();
                executors.find(|executor| executor.tasks.contains_key(&stream.task))
            })?;
        Some(TaskRef {
            executor: executor.clone(),
            task: executor.tasks.get(&stream.task)?.clone(),
        })
    }

    /// The log of a completed task whose executor lives.
    pub(super) fn log_of_completed(&self, stream: &StreamKey) -> Option<Arc<TaskKey>> {
        let framework = self.frameworks.get(&stream.framework)?;
        let executors = framework.executors.values();
        let mut completed = executors.flat_map(|executor| &executor.completed);
        let task = completed.find(|task| task.key.task == stream.task)?;
        Some(task.key.clone())
    }

    /// Whether a framework with work here has the PARTITION_AWARE capability.
    pub(super) fn is_partition_aware(&self, framework: &FrameworkId) -> bool {
        let framework = self.frameworks.get(framework);
        framework.is_some_and(|framework| framework.is_partition_aware())
    }

    /// The lost state of a task of this run that ran.
    pub(super) fn gone_or_lost(&self, key: &RunKey) -> pb::TaskState {
        gone_or_lost(self.is_partition_aware(&key.framework))
    }

    /// The lost state of a task of this run that never ran.
    pub(super) fn dropped_or_lost(&self, key: &RunKey) -> pb::TaskState {
        dropped_or_lost(self.is_partition_aware(&key.framework))
    }

    /// The resources allocated to the live executors.
    pub(super) fn allocated(&self) -> Resources {
        let mut sum = Resources::default();
        for executor in self.all_executors() {
            for resource in executor.allocated().iter() {
                sum.insert(resource.clone());
            }
        }
        sum
    }

    /// Whether a framework has acknowledged enough terminal updates to get more tasks.
    pub(super) fn takes_tasks_of(&self, framework: &FrameworkId) -> bool {
        self.history.takes_tasks_of(framework)
    }

    /// Changes an executor. Without effect if another run has replaced the executor.
    pub(super) fn change_executor(&mut self, key: &RunKey, change: impl FnOnce(&mut Executor)) {
        if let Some(framework) = self.frameworks.get_mut(&key.framework)
            && let Some(executor) = Arc::make_mut(framework).executors.get_mut(&key.executor)
        {
            change(Arc::make_mut(executor));
        }
    }

    /// Changes a task. Without effect after its end was acknowledged.
    pub(super) fn change_task(&mut self, key: &TaskKey, change: impl FnOnce(&mut Task)) {
        self.change_executor(&key.run, |executor| {
            if let Some(task) = executor.tasks.get_mut(&key.task) {
                change(Arc::make_mut(task));
            }
        });
    }

    /// Changes a container of an executor or a task. Without effect after the end of its executor was acknowledged.
    pub(super) fn change_container(
        &mut self,
        id: &ContainerId,
        change: impl FnOnce(&mut Container),
    ) {
        if let Some(owner) = self.containers.get(id)
            && let Some(framework) = self.frameworks.get_mut(&owner.framework)
            && let Some(executor) = Arc::make_mut(framework).executors.get_mut(&owner.executor)
        {
            let executor = Arc::make_mut(executor);
            if executor.container.id == *id {
                return change(&mut executor.container);
            }
            let task = owner.task.as_ref();
            let task = task.and_then(|task| executor.tasks.get_mut(task));
            if let Some(nested) = task.and_then(|task| Arc::make_mut(task).nested.as_mut()) {
                change(nested);
            }
        }
    }

    /// The position of a newly accepted task.
    pub(super) fn next_order(&mut self) -> u64 {
        self.accepted += 1;
        self.accepted
    }

    /// Whether the framework is here with this description.
    pub(super) fn has_framework(&self, id: &FrameworkId, info: &pb::FrameworkInfo) -> bool {
        let known = self.frameworks.get(id);
        known.is_some_and(|framework| *framework.info == *info)
    }

    /// Adds a framework, or updates its description. A completed framework has work again.
    pub(super) fn set_framework(&mut self, id: &FrameworkId, info: pb::FrameworkInfo) {
        let info = Arc::new(info);
        match self.frameworks.get_mut(id) {
            Some(framework) => Arc::make_mut(framework).info = info,
            None => {
                let framework = match self.take_completed_framework(id) {
                    Some(mut framework) => {
                        Arc::make_mut(&mut framework).info = info;
                        framework
                    }
                    None => Arc::new(Framework::new(id.clone(), info)),
                };
                self.frameworks.insert(id.clone(), framework);
            }
        }
    }

    fn take_completed_framework(&mut self, id: &FrameworkId) -> Option<Arc<Framework>> {
        let at = self.completed.iter().position(|one| one.id == *id)?;
        let framework = self.completed.remove(at)?;
        self.history.take_off_framework(&framework);
        Some(framework)
    }

    /// Adds a recovered framework with its executors.
    pub(super) fn restore_framework(&mut self, framework: Framework) {
        self.frameworks
            .insert(framework.id.clone(), Arc::new(framework));
    }

    /// Adds a new executor. A command executor is made for the task.
    pub(super) fn insert_executor(&mut self, executor: Executor, task: Option<&TaskId>) {
        let key = executor.key.clone();
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return debug_assert!(false, "the framework precedes its executors");
        };
        Arc::make_mut(framework)
            .executors
            .insert(key.executor.clone(), Arc::new(executor));
        self.register_container(&key.container, &key, task);
    }

    /// Adds a new task to its executor.
    pub(super) fn insert_task(&mut self, task: Task) {
        let key = task.key.clone();
        if let Some(nested) = &task.nested {
            let id = nested.id.clone();
            self.register_container(&id, &key.run, Some(&key.task));
        }
        self.change_executor(&key.run, |executor| {
            executor.tasks.insert(key.task.clone(), Arc::new(task));
        });
    }

    /// Notes the owner of a container.
    pub(super) fn register_container(
        &mut self,
        container: &ContainerId,
        run: &RunKey,
        task: Option<&TaskId>,
    ) {
        let owner = ContainerOwner {
            framework: run.framework.clone(),
            executor: run.executor.clone(),
            task: task.cloned(),
        };
        self.containers.insert(container.clone(), owner);
    }

    /// Counts a recovered task that has ended. Returns its size.
    pub(super) fn count_recovered_end(&mut self, task: &Task) -> usize {
        self.history.ended(task)
    }

    /// Counts a task that has just ended, until [`Runs::complete_task`].
    pub(super) fn count_end(&mut self, key: &TaskKey) {
        if let Some(TaskRef { task, .. }) = self.task_at(key) {
            let bytes = self.history.ended(&task);
            self.change_task(key, |task| task.ended_bytes = bytes);
            self.shorten_history();
        }
    }

    /// Moves a task whose updates are all acknowledged to the completed ones. Returns the tasks that are forgotten for
    /// it.
    pub(super) fn complete_task(
        &mut self,
        task_ref: &TaskRef,
        has_unacknowledged: impl Fn(&StreamKey) -> bool,
    ) -> Vec<Arc<TaskKey>> {
        let task = &task_ref.task.key.task;
        let bytes_max = self.history.of_executor_max();
        let (mut over, mut forgotten) = (None, Vec::new());
        self.change_executor(&task_ref.executor.key, |executor| {
            if let Some(task) = executor.tasks.remove(task) {
                executor.completed_bytes += task_bytes(&task);
                executor.completed.push_back(task.clone());
                over = Some(task);
            }
            forgotten = shorten_completed(executor, bytes_max, has_unacknowledged);
        });
        if let Some(over) = over {
            self.history.acknowledged(&over);
        }
        if let Some(nested) = &task_ref.task.nested {
            self.containers.remove(&nested.id);
        }
        forgotten
    }

    /// Forgets the oldest completed tasks of a recovered executor. Returns the forgotten tasks.
    pub(super) fn shorten_recovered(
        &self,
        executor: &mut Executor,
        has_unacknowledged: impl Fn(&StreamKey) -> bool,
    ) -> Vec<Arc<TaskKey>> {
        shorten_completed(executor, self.history.of_executor_max(), has_unacknowledged)
    }

    /// Moves an executor whose updates are all acknowledged to the completed ones, of which `kept` are shown.
    pub(super) fn complete_executor(&mut self, key: &RunKey, kept: usize) {
        self.containers.remove(&key.container);
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return debug_assert!(false, "the framework outlives its executors");
        };
        let framework = Arc::make_mut(framework);
        if let Some(executor) = framework.executors.remove(&key.executor) {
            for task in executor.tasks.values() {
                if let Some(nested) = &task.nested {
                    self.containers.remove(&nested.id);
                }
                self.history.acknowledged(task);
            }
            self.history.add(&key.framework, &executor);
            framework.completed.push_back(executor);
            while framework.completed.len() > kept
                && let Some(oldest) = framework.completed.pop_front()
            {
                self.history.take_off(&key.framework, &oldest);
            }
        }
        self.shorten_history();
    }

    /// Whether a framework is here without executors.
    pub(super) fn is_idle(&self, framework: &FrameworkId) -> bool {
        let framework = self.frameworks.get(framework);
        framework.is_some_and(|framework| framework.executors.is_empty())
    }

    /// Moves a framework to the completed ones.
    pub(super) fn complete_framework(&mut self, id: &FrameworkId) {
        let Some(framework) = self.frameworks.remove(id) else {
            return debug_assert!(false, "only a known framework is completed");
        };
        self.history.add_framework(&framework);
        self.completed.push_back(framework);
        while self.completed.len() > COMPLETED_FRAMEWORKS_MAX
            && let Some(oldest) = self.completed.pop_front()
        {
            self.history.forget(&oldest.id);
        }
        self.shorten_history();
    }

    /// Forgets completed executors of the framework with the most bytes, oldest first, while the total is too large.
    /// Then forgets the framework itself, if it is completed.
    fn shorten_history(&mut self) {
        while let Some(id) = self.history.too_much() {
            let framework = match self.frameworks.get_mut(&id) {
                Some(framework) => Some(framework),
                None => self.completed.iter_mut().find(|one| one.id == id),
            };
            let oldest = framework.and_then(|one| Arc::make_mut(one).completed.pop_front());
            match oldest {
                Some(oldest) => self.history.take_off(&id, &oldest),
                None => {
                    self.completed.retain(|one| one.id != id);
                    self.history.forget(&id);
                }
            }
        }
    }
}

/// Forgets the oldest completed tasks of an executor while there are too many: an executor may run any number of tasks.
/// The tasks of a group go together, since a start must find all tasks of a group or none, unless the group was begun.
/// Returns the forgotten tasks whose records must go too.
fn shorten_completed(
    executor: &mut Executor,
    bytes_max: usize,
    has_unacknowledged: impl Fn(&StreamKey) -> bool,
) -> Vec<Arc<TaskKey>> {
    let mut forgotten = Vec::new();
    while (executor.completed.len() > COMPLETED_TASKS_PER_EXECUTOR_MAX
        || (executor.completed_bytes > bytes_max && executor.completed.len() > 1))
        && let Some(oldest) = oldest_dispensable(executor, &has_unacknowledged)
    {
        let goes = |task: &Arc<Task>| Arc::ptr_eq(task, &oldest) || task.is_of_group_of(&oldest);
        let completed = std::mem::take(&mut executor.completed);
        let (gone, kept) = completed.into_iter().partition::<VecDeque<_>, _>(goes);
        executor.completed = kept;
        for task in gone {
            let bytes = task_bytes(&task);
            executor.completed_bytes = executor.completed_bytes.saturating_sub(bytes);
            if executor.kind != ExecutorKind::Command && !executor.has_task(&task.key.task) {
                forgotten.push(task.key.clone());
            }
        }
    }
    forgotten
}

/// The oldest completed task whose group has neither a running task nor an unacknowledged update.
fn oldest_dispensable(
    executor: &Executor,
    has_unacknowledged: impl Fn(&StreamKey) -> bool,
) -> Option<Arc<Task>> {
    let is_told = |task: &&Arc<Task>| {
        // The pending update may belong to a newer task with the same id.
        executor.tasks.contains_key(&task.key.task) || !has_unacknowledged(&task.stream())
    };
    let is_dispensable = |task: &&Arc<Task>| {
        let of_group = |other: &&Arc<Task>| other.is_of_group_of(task);
        is_told(task)
            && !executor.tasks.values().any(|other| of_group(&other))
            && executor
                .completed
                .iter()
                .filter(of_group)
                .all(|other| is_told(&other))
    };
    executor.completed.iter().find(is_dispensable).cloned()
}
