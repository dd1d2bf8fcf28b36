//! Status updates: created, persisted, sent in order, acknowledged; completed runs are retired.
//!
//! An update is written before it is sent, and its acknowledgement is written before the next update is sent.
//! Invariant: a run is retired only after its container is gone and all its updates are acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::FrameworkId;
use tracing::{info, warn};

use super::history::task_bytes;
use super::model::{Executor, ExecutorKind, Task, TaskRef};
use super::registration::stream_key;
use super::states::{dropped_or_lost, is_terminal};
use super::update_streams::{Acknowledged, Pushed, StreamKey, UNACKNOWLEDGED_UPDATES_MAX};
use super::{Agent, Destination, Output, Step};
use crate::byte_semaphore::Permit;
use crate::checkpoint::{LogEntry, RunKey, TaskKey, Write};

/// Completed frameworks that are still shown.
const COMPLETED_FRAMEWORKS_MAX: usize = 50;
/// Completed tasks of one executor that are still shown.
const COMPLETED_TASKS_PER_EXECUTOR_MAX: usize = 200;
/// The time within which the tasks of a group that reached a common limit are all reported.
const GROUP_ENDS_WITHIN: Duration = Duration::from_secs(10);

impl Agent {
    /// Makes a status update of a task of this agent: durable, then sent in its turn.
    pub(super) fn update_task(
        &mut self,
        step: &mut Step<'_>,
        key: &TaskKey,
        status: pb::TaskStatus,
    ) -> Option<Pushed> {
        self.update_task_in(step, key, status, Arc::default())
    }

    /// Makes a status update that holds a permit until it is acknowledged.
    pub(super) fn update_task_in(
        &mut self,
        step: &mut Step<'_>,
        key: &TaskKey,
        mut status: pb::TaskStatus,
        permit: Arc<Permit>,
    ) -> Option<Pushed> {
        self.explain_draining(&key.run.framework, &mut status);
        let task_ref = self.task_at(key)?;
        if task_ref.executor.orphaned {
            // Nobody is left to acknowledge it.
            self.record(step, &task_ref, &status);
            if is_terminal(status.state) {
                self.task_over(step, &task_ref);
            }
            return None;
        }
        let stream = task_ref.task.stream();
        let pushed = match task_ref.executor.kind {
            ExecutorKind::Custom => {
                self.updates
                    .push(step.now.moment, &stream, status.clone(), permit)
            }
            ExecutorKind::Command | ExecutorKind::Default => {
                self.updates
                    .push_own(step.now.moment, &stream, status.clone())
            }
        };
        match pushed {
            Pushed::Send | Pushed::Waits => {}
            Pushed::Duplicate | Pushed::AfterTerminal | Pushed::Full | Pushed::Once => {
                step.counters.invalid_status_updates += 1;
                warn!(
                    framework_id = %stream.framework, task_id = %stream.task, ?pushed,
                    max = UNACKNOWLEDGED_UPDATES_MAX, "dropped a status update"
                );
                return Some(pushed);
            }
        }
        self.record(step, &task_ref, &status);
        if pushed == Pushed::Send {
            self.send_head(step, &stream);
        }
        Some(pushed)
    }

    /// Writes an update and counts it.
    fn record(&mut self, step: &mut Step<'_>, task_ref: &TaskRef, status: &pb::TaskStatus) {
        info!(
            framework_id = %task_ref.executor.key.framework,
            task_id = %task_ref.task.key.task,
            container_id = %task_ref.container().id,
            state = state_name(status.state),
            message = status.message.as_deref().unwrap_or_default(),
            "status update"
        );
        step.counters.valid_status_updates += 1;
        step.counters.count_terminal(status.state);
        step.persist(Write::Log {
            key: task_ref.task.key.clone(),
            entry: Box::new(LogEntry::Update(status.clone())),
        });
        let had_ended = task_ref.task.is_terminal();
        self.change_task(&task_ref.task.key, |task| task.record(status));
        if !had_ended && is_terminal(status.state) {
            if status.reason() == Reason::ContainerLimitationMemory {
                self.count_out_of_memory(step, &task_ref.executor);
            }
            self.count_ended(&task_ref.task.key);
        }
    }

    /// Counts a task out of memory. The tasks of a group that reached their common limit count as one.
    fn count_out_of_memory(&mut self, step: &mut Step<'_>, executor: &Executor) {
        let last = executor.link.out_of_memory_at;
        if last.is_some_and(|last| step.now.moment.saturating_since(last) < GROUP_ENDS_WITHIN) {
            return;
        }
        step.counters.count_out_of_memory(executor.role.clone());
        self.change_executor(&executor.key, |executor| {
            executor.link.out_of_memory_at = Some(step.now.moment);
        });
    }

    fn count_ended(&mut self, key: &TaskKey) {
        if let Some(TaskRef { task, .. }) = self.task_at(key) {
            let bytes = self.history.ended(&task);
            self.change_task(key, |task| task.ended_bytes = bytes);
            self.shorten_history();
        }
    }

    /// Answers for a task that the agent does not have. The update is sent until acknowledged, but is lost at a
    /// restart, after which the master asks again. For a framework without acknowledgements the number of such updates
    /// is bounded: further ones are sent only once.
    pub(super) fn answer_for_absent(
        &mut self,
        step: &mut Step<'_>,
        stream: &StreamKey,
        status: pb::TaskStatus,
        permit: Arc<Permit>,
    ) {
        info!(
            framework_id = %stream.framework,
            task_id = %stream.task,
            state = state_name(status.state),
            message = status.message.as_deref().unwrap_or_default(),
            "status update for a task that does not run here"
        );
        step.counters.valid_status_updates += 1;
        step.counters.count_terminal(status.state);
        let sent = status.clone();
        match self
            .updates
            .push_absent(step.now.moment, stream, status, permit)
        {
            Pushed::Send => self.send_head(step, stream),
            Pushed::Once if self.updates.is_flowing() => {
                let latest_state = sent.state;
                self.send_update(step, stream, sent, latest_state);
            }
            _ => {}
        }
    }

    /// Answers for a task that the master assigned to this agent and that is unknown here: it never arrived.
    pub(super) fn answer_unknown_task(
        &mut self,
        step: &mut Step<'_>,
        task: &wire::TaskToReconcile,
    ) {
        let Some(stream) = stream_key(&task.framework_id, &task.task_id) else {
            return;
        };
        if self.find_task(&stream).is_some() || self.updates.has_unacknowledged(&stream) {
            return;
        }
        let status = self.status(
            step,
            task.task_id.clone(),
            dropped_or_lost(task.partition_aware),
            Source::Agent,
            Some(Reason::Reconciliation),
            Some("Reconciliation: the task is unknown to the agent".to_owned()),
        );
        self.answer_for_absent(step, &stream, status, Default::default());
    }

    pub(super) fn send_head(&mut self, step: &mut Step<'_>, stream: &StreamKey) {
        let Some(status) = self.updates.head(stream).cloned() else {
            return;
        };
        let task_ref = self.find_task(stream);
        let latest_state = task_ref
            .as_ref()
            .map_or(status.state, |task_ref| task_ref.task.state.into());
        if let Some(task_ref) = task_ref {
            let sent = (status.state, status.uuid.clone().unwrap_or_default());
            self.change_task(&task_ref.task.key, |task| task.sent = Some(sent));
        }
        self.updates.sent(stream, step.lsn().0);
        self.send_update(step, stream, status, latest_state);
    }

    fn send_update(
        &mut self,
        step: &mut Step<'_>,
        stream: &StreamKey,
        status: pb::TaskStatus,
        latest_state: i32,
    ) {
        step.send(ToMaster::StatusUpdate(wire::StatusUpdate {
            framework_id: pb::FrameworkId {
                value: stream.framework.to_string(),
            },
            status,
            latest_state: Some(latest_state),
        }));
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

    pub(super) fn acknowledged(&mut self, step: &mut Step<'_>, stream: &StreamKey, uuid: &[u8]) {
        let task_ref = self.find_task(stream);
        let outcome = self.updates.acknowledge(step.now.moment, stream, uuid);
        match outcome {
            Acknowledged::Next | Acknowledged::Closed => {}
            Acknowledged::Duplicate | Acknowledged::Unexpected | Acknowledged::Unknown => {
                warn!(
                    framework_id = %stream.framework, task_id = %stream.task, ?outcome,
                    "ignored an acknowledgement"
                );
                return;
            }
        }
        let log = match &task_ref {
            Some(task_ref) => Some(task_ref.task.key.clone()),
            // Of a completed task only a further terminal update was written.
            None if outcome == Acknowledged::Closed => self.log_of_completed(stream),
            None => None,
        };
        if let Some(key) = log {
            step.persist(Write::Log {
                key,
                entry: Box::new(LogEntry::Acknowledged(uuid.to_vec())),
            });
        }
        if outcome == Acknowledged::Next {
            self.send_head(step, stream);
        } else if let Some(task_ref) = task_ref {
            self.task_over(step, &task_ref);
        }
    }

    /// The log of a completed task whose executor lives.
    fn log_of_completed(&self, stream: &StreamKey) -> Option<Arc<TaskKey>> {
        let framework = self.frameworks.get(&stream.framework)?;
        let executors = framework.executors.values();
        let mut completed = executors.flat_map(|executor| &executor.completed);
        let task = completed.find(|task| task.key.task == stream.task)?;
        Some(task.key.clone())
    }

    /// Handles the end of a task whose updates are all acknowledged.
    pub(super) fn task_over(&mut self, step: &mut Step<'_>, task_ref: &TaskRef) {
        let task = &task_ref.task.key.task;
        let mut over = None;
        self.change_executor(&task_ref.executor.key, |executor| {
            if let Some(task) = executor.tasks.remove(task) {
                executor.completed_bytes += task_bytes(&task);
                executor.completed.push_back(task.clone());
                over = Some(task);
            }
        });
        if let Some(over) = over {
            self.history.acknowledged(&over);
        }
        self.retire_oldest_tasks(step, &task_ref.executor.key);
        if let Some(nested) = &task_ref.task.nested {
            self.containers.remove(&nested.id);
        }
        self.retire_if_over(step, &task_ref.executor.key);
    }

    fn retire_oldest_tasks(&mut self, step: &mut Step<'_>, key: &RunKey) {
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        let framework = Arc::make_mut(framework);
        if let Some(mut executor) = framework.executors.remove(&key.executor) {
            self.shorten_completed(step, Arc::make_mut(&mut executor));
            if let Some(framework) = self.frameworks.get_mut(&key.framework) {
                let framework = Arc::make_mut(framework);
                framework.executors.insert(key.executor.clone(), executor);
            }
        }
    }

    /// Forgets the oldest completed tasks of an executor while there are too many, and retires their records: an
    /// executor may run any number of tasks. The tasks of a group go together, since a start must find all tasks of a
    /// group or none, unless the group was begun.
    pub(super) fn shorten_completed(&mut self, step: &mut Step<'_>, executor: &mut Executor) {
        let bytes_max = self.history.of_executor_max();
        while (executor.completed.len() > COMPLETED_TASKS_PER_EXECUTOR_MAX
            || (executor.completed_bytes > bytes_max && executor.completed.len() > 1))
            && let Some(oldest) = self.oldest_dispensable(executor)
        {
            let goes =
                |task: &Arc<Task>| Arc::ptr_eq(task, &oldest) || task.is_of_group_of(&oldest);
            let completed = std::mem::take(&mut executor.completed);
            let (gone, kept) = completed.into_iter().partition::<VecDeque<_>, _>(goes);
            executor.completed = kept;
            for task in gone {
                let bytes = task_bytes(&task);
                executor.completed_bytes = executor.completed_bytes.saturating_sub(bytes);
                if executor.kind != ExecutorKind::Command && !executor.has_task(&task.key.task) {
                    let key = task.key.clone();
                    step.persist(Write::RetireTask { key });
                }
            }
        }
    }

    /// The oldest completed task whose group has neither a running task nor an unacknowledged update.
    fn oldest_dispensable(&self, executor: &Executor) -> Option<Arc<Task>> {
        let is_told = |task: &&Arc<Task>| {
            // The pending update may belong to a newer task with the same id.
            executor.tasks.contains_key(&task.key.task)
                || !self.updates.has_unacknowledged(&task.stream())
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

    /// Retires a run without unacknowledged updates.
    pub(super) fn retire_if_over(&mut self, step: &mut Step<'_>, key: &RunKey) {
        let Some(executor) = self.executor_at(key) else {
            return;
        };
        if executor.tasks.is_empty() && !executor.is_live() {
            self.retire(step, &executor.key);
            self.retire_framework_if_idle(step, &key.framework);
        }
    }

    /// Writes the retirement of a run and moves it to the completed runs.
    pub(super) fn retire(&mut self, step: &mut Step<'_>, key: &Arc<RunKey>) {
        step.persist(Write::Retire {
            key: (**key).clone(),
        });
        step.output(
            Destination::Container(key.container.clone()),
            Output::DiscardSandbox { run: key.clone() },
        );
        self.complete(step, key);
    }

    /// Moves an executor whose updates are all acknowledged to the completed ones.
    fn complete(&mut self, step: &Step<'_>, key: &Arc<RunKey>) {
        self.containers.remove(&key.container);
        let kept = step.options.max_completed_executors_per_framework;
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        let framework = Arc::make_mut(framework);
        if let Some(executor) = framework.executors.remove(&key.executor) {
            for nested in executor
                .tasks
                .values()
                .filter_map(|task| task.nested.as_ref())
            {
                self.containers.remove(&nested.id);
            }
            for task in executor.tasks.values() {
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

    /// Forgets completed executors of the framework with the most bytes, oldest first, while the total is too large.
    /// Then forgets the framework itself, if it is completed.
    fn shorten_history(&mut self) {
        while let Some(id) = self.history.too_much() {
            let framework = match self.frameworks.get_mut(&id) {
                Some(framework) => Some(framework),
                None => self
                    .completed_frameworks
                    .iter_mut()
                    .find(|one| one.id == id),
            };
            let oldest = framework.and_then(|one| Arc::make_mut(one).completed.pop_front());
            match oldest {
                Some(oldest) => self.history.take_off(&id, &oldest),
                None => {
                    self.completed_frameworks.retain(|one| one.id != id);
                    self.history.forget(&id);
                }
            }
        }
    }

    pub(super) fn retire_framework_if_idle(&mut self, step: &mut Step<'_>, id: &FrameworkId) {
        let idle = self
            .frameworks
            .get(id)
            .is_some_and(|framework| framework.executors.is_empty());
        let Some(agent) = step.agent_id().cloned().filter(|_| idle) else {
            return;
        };
        if let Some(framework) = self.frameworks.remove(id) {
            step.persist(Write::RetireFramework {
                agent,
                framework: id.clone(),
            });
            self.history.add_framework(&framework);
            self.completed_frameworks.push_back(framework);
            while self.completed_frameworks.len() > COMPLETED_FRAMEWORKS_MAX
                && let Some(oldest) = self.completed_frameworks.pop_front()
            {
                self.history.forget(&oldest.id);
            }
            self.shorten_history();
        }
    }

    /// A status of a task with the agent's own timestamp and source.
    pub(super) fn status(
        &mut self,
        step: &mut Step<'_>,
        task: pb::TaskId,
        state: pb::TaskState,
        source: Source,
        reason: Option<Reason>,
        message: Option<String>,
    ) -> pb::TaskStatus {
        pb::TaskStatus {
            task_id: task,
            state: state.into(),
            message,
            source: Some(source.into()),
            reason: reason.map(Into::into),
            agent_id: step.agent_id_message(),
            timestamp: Some(step.now.unix.as_secs_f64()),
            uuid: Some(step.new_uuid().into_bytes().to_vec()),
            ..pb::TaskStatus::default()
        }
    }
}

fn state_name(state: i32) -> &'static str {
    pb::TaskState::try_from(state).map_or("unknown", |state| state.as_str_name())
}
