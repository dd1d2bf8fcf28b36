//! What waits for an executor's container: its resizes, tasks to be handed over, terminal updates.
//!
//! [`AgentCore::attend`] looks at an executor with a life of its own and does what can be done now. A
//! container has the resources of a task before the task reaches it, and has given them back before
//! the task's end is told.

use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Event, event};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Now};
use tracing::{error, info};

use super::demand::{combined, demand};
use super::fields::{unix_ns, volumes_among};
use super::model::{Doom, Executor, ExecutorKind, Phase, Task, Unit};
use super::{Action, AgentCore, Destination};
use crate::checkpoint::{KillCause, LogEntry, RunKey, TaskKey, Write};
use crate::intake::Room;

impl AgentCore {
    /// Does what this executor's container allows to be done.
    pub(super) fn attend(&mut self, now: Now, key: &RunKey) {
        let Some(executor) = self.executor_at(key) else {
            return;
        };
        if executor.kind == ExecutorKind::Command {
            return;
        }
        match executor.container.phase {
            Phase::Launching => return,
            Phase::Ended => return self.release_held(now, &executor),
            Phase::Running => {}
        }
        if executor.link.resizes > 0 {
            return;
        }
        let is_ending = executor.container.kill.is_some() || executor.link.doom.is_some();
        let wanted = self.wanted(&executor);
        let volumes = match executor.kind {
            ExecutorKind::Custom => executor.volumes(|task| !executor.is_held(task)),
            // Each task has a container of its own for them.
            ExecutorKind::Default | ExecutorKind::Command => Vec::new(),
        };
        let has_others = executor.kind == ExecutorKind::Custom
            && executor.link.volumes.as_ref() != Some(&volumes);
        if (wanted != executor.container.demand || has_others) && !is_ending {
            return self.resize(&executor, wanted, volumes);
        }
        self.release_held(now, &executor);
        if is_ending {
            return;
        }
        match executor.kind {
            ExecutorKind::Custom => self.hand_over(now, &executor),
            _ => self.launch_nested(&executor),
        }
        self.end_if_idle(now, key);
    }

    /// What the container must have for its executor and the tasks that are not over.
    fn wanted(&self, executor: &Executor) -> Demand {
        let own = executor.own_demand(self.options.enforceable);
        let tasks = executor.tasks.values();
        let live = tasks.filter(|task| !task.is_terminal() && !executor.is_held(task));
        combined(std::iter::once(own).chain(live.map(|task| task.demand)))
    }

    fn resize(&mut self, executor: &Executor, wanted: Demand, volumes: Vec<pb::Resource>) {
        let container = executor.container.id.clone();
        self.change_executor(&executor.key, |executor| {
            executor.container.demand = wanted;
            executor.link.volumes = Some(volumes.clone());
            executor.link.resizes += 1;
        });
        self.show(
            Destination::Container(container.clone()),
            Action::Resize {
                container,
                demand: wanted,
                resources: executor.allocated(),
                volumes,
            },
        );
    }

    pub(super) fn resized(&mut self, now: Now, container: &ContainerId, failed: Option<String>) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        let key = executor.key.clone();
        self.change_executor(&key, |executor| {
            executor.link.resizes = executor.link.resizes.saturating_sub(1);
        });
        if let Some(cause) = failed.filter(|_| executor.is_live()) {
            error!(container_id = %container, cause, "a container could not be resized");
            let message = format!("Failed to update resources for container: {cause}");
            self.doom(
                now,
                &executor,
                self.gone_or_lost(&key),
                Reason::ContainerUpdateFailed,
                message,
            );
        }
        self.attend(now, &key);
    }

    /// Tells the ends that waited for the resources to be given back.
    fn release_held(&mut self, now: Now, executor: &Executor) {
        if executor.link.held.is_empty() {
            return;
        }
        self.change_executor(&executor.key, |executor| executor.link.held.clear());
        for (status, room) in executor.link.held.clone() {
            let task = executor.tasks.get(status.task_id.value.as_str());
            let Some(task) = task.cloned() else {
                continue;
            };
            self.tell_end(now, &task.key, status, room);
        }
    }

    /// The end of a task whose resources are given back.
    fn tell_end(&mut self, now: Now, key: &TaskKey, status: pb::TaskStatus, room: Arc<Room>) {
        let Some(unit) = self.unit_at(key) else {
            return;
        };
        let uuid = status.uuid.clone().unwrap_or_default();
        let told = self.update_task_in(now, key, status, room);
        match &unit.task.nested {
            Some(nested) => self.forget(&nested.id.clone()),
            None => self.acknowledge_to_executor(&unit, uuid, told),
        }
    }

    /// Holds the end of a task back until its executor's container is smaller.
    pub(super) fn tell_when_resized(
        &mut self,
        now: Now,
        unit: &Unit,
        status: pb::TaskStatus,
        room: Arc<Room>,
    ) {
        self.change_executor(&unit.executor.key, |executor| {
            executor.link.held.push((status, room));
        });
        self.attend(now, &unit.executor.key);
    }

    /// Gives a custom executor the tasks that it has not been given.
    fn hand_over(&mut self, now: Now, executor: &Arc<Executor>) {
        let Some(connection) = executor.link.connection else {
            return;
        };
        for batch in executor.batches() {
            for task in &batch {
                self.note_delivery(now, task);
            }
            self.tell_executor(executor, connection, launch_event(&batch));
        }
    }

    fn note_delivery(&mut self, now: Now, task: &Task) {
        self.persist(Write::Log {
            key: task.key.clone(),
            entry: Box::new(LogEntry::Delivered(unix_ns(now))),
        });
        self.change_task(&task.key, |task| task.delivered = true);
        self.change_executor(&task.key.run, |executor| executor.link.was_given = true);
    }

    /// Launches the tasks of a default executor that have not been launched.
    fn launch_nested(&mut self, executor: &Arc<Executor>) {
        for task in executor.undelivered() {
            info!(task_id = %task.key.task, "launching a task of a group");
            self.change_task(&task.key, |task| task.delivered = true);
            self.change_executor(&executor.key, |executor| executor.link.was_given = true);
            self.launch(&executor.key, Some(&task));
        }
    }

    /// An executor that has nothing to do, and never will, goes: the default one as soon as its tasks
    /// are over, a custom one only if all its first tasks were killed before it got them.
    pub(super) fn end_if_idle(&mut self, now: Now, key: &RunKey) {
        let Some(executor) = self.executor_at(key) else {
            return;
        };
        if executor.container.kill.is_some() || executor.container.phase != Phase::Running {
            return;
        }
        let mut tasks = executor.tasks.values();
        if tasks.any(|task| !task.is_terminal()) || !executor.link.held.is_empty() {
            return;
        }
        match executor.kind {
            ExecutorKind::Default => {
                self.mark_ending(now, &executor, KillCause::Shutdown, Duration::ZERO);
                self.send_kill(now, &executor.container.id, Duration::ZERO);
            }
            ExecutorKind::Custom if !executor.link.was_given => {
                self.shut_custom_down(now, &executor);
            }
            ExecutorKind::Custom | ExecutorKind::Command => {}
        }
    }
}

/// What tells a custom executor of new tasks: one of them, or a group.
fn launch_event(batch: &[Arc<Task>]) -> Event {
    let mut tasks = batch.iter().map(|task| (*task.info).clone());
    if batch.iter().any(|task| task.group.is_some()) {
        let tasks = tasks.collect();
        return Event {
            r#type: Some(event::Type::LaunchGroup.into()),
            launch_group: Some(event::LaunchGroup {
                task_group: pb::TaskGroupInfo { tasks },
            }),
            ..Event::default()
        };
    }
    Event {
        r#type: Some(event::Type::Launch.into()),
        launch: tasks.next().map(|task| event::Launch { task }),
        ..Event::default()
    }
}

impl Executor {
    /// Tasks that wait to reach it, in the order in which they came.
    pub(super) fn undelivered(&self) -> Vec<Arc<Task>> {
        let waiting = self
            .tasks
            .values()
            .filter(|task| !task.delivered && !task.is_terminal());
        let mut waiting: Vec<_> = waiting.cloned().collect();
        waiting.sort_by_key(|task| task.order);
        waiting
    }

    /// The same, the tasks of one group together.
    fn batches(&self) -> Vec<Vec<Arc<Task>>> {
        let mut batches: Vec<Vec<Arc<Task>>> = Vec::new();
        for task in self.undelivered() {
            let of_group = |batch: &&mut Vec<Arc<Task>>| {
                let first = batch.first();
                task.group.is_some() && first.is_some_and(|first| first.group == task.group)
            };
            match batches.iter_mut().find(of_group) {
                Some(batch) => batch.push(task),
                None => batches.push(vec![task]),
            }
        }
        batches
    }

    /// Whether the end of one of its tasks waits to be told.
    fn is_held(&self, task: &Task) -> bool {
        let mut held = self.link.held.iter();
        held.any(|(status, _)| status.task_id.value == task.key.task.as_str())
    }

    /// The persistent volumes of itself and of those of its tasks that are not over.
    pub(crate) fn volumes(&self, holds: impl Fn(&Task) -> bool) -> Vec<pb::Resource> {
        let own = self.info.iter().flat_map(|info| &info.resources);
        let live = self.tasks.values();
        let live = live.filter(|task| !task.is_terminal() && holds(task));
        let of_tasks = live.flat_map(|task| &task.info.resources);
        volumes_among(own.chain(of_tasks))
    }

    /// What it asked for beside its tasks.
    pub(super) fn own_demand(&self, enforceable: super::Enforceable) -> Demand {
        demand(&self.resources, &Default::default(), enforceable).unwrap_or_default()
    }
}

impl AgentCore {
    /// Takes an executor's container down for a reason that its tasks are told.
    pub(super) fn doom(
        &mut self,
        now: Now,
        executor: &Executor,
        state: pb::TaskState,
        reason: Reason,
        message: String,
    ) {
        let kill = executor.container.kill;
        let is_evicted = kill.is_some_and(|kill| kill.cause == KillCause::Preempted);
        if !executor.is_live() || executor.link.doom.is_some() || is_evicted {
            return;
        }
        info!(
            executor_id = %executor.key.executor, container_id = %executor.container.id, message,
            "taking an executor down"
        );
        self.change_executor(&executor.key, |executor| {
            executor.link.doom = Some(Doom {
                state,
                reason,
                message,
            });
        });
        // The cause alone outlives this agent.
        let cause = match reason {
            Reason::ContainerPreempted => KillCause::Preempted,
            _ => KillCause::Shutdown,
        };
        self.mark_ending(now, executor, cause, Duration::ZERO);
        self.send_kill(now, &executor.container.id, Duration::ZERO);
    }
}
