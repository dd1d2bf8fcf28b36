//! Handles the request to run a task or a task group: validates it ([`checks`]), makes it durable and launches it.
//!
//! A task that cannot be run is answered with a terminal update and the reason. Only a repeated request for a running
//! task is dropped silently. Invariant: the agent accepts all tasks of a group, or none.

mod checks;

use std::collections::VecDeque;
use std::sync::Arc;

use meseta_isolators::Demand;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources};
use tracing::{info, warn};

use super::demand::{combined, demand};
use super::fields::{role_of, unix_ns, user_of};
use super::model::{Container, Executor, ExecutorKind, ExecutorLink, Task};
use super::registration::stream_key;
use super::rejection::{Rejection, check_container, check_launch_event};
use super::states::dropped_or_lost;
use super::{Agent, ContainerOwner, Step, StreamKey};
use crate::checkpoint::{ExecutorRecord, Lsn, RunKey, TaskKey, TaskRecord, Write};

const NOT_ACKNOWLEDGED: &str = "The framework has too many tasks on this agent that have ended and whose last status update \
     it has not acknowledged; its tasks are taken again when it has";
const ENDING: &str = "The agent is about to end, once its tasks have";

/// A task that passed validation.
struct Checked {
    stream: StreamKey,
    info: pb::TaskInfo,
    resources: Resources,
    demand: Demand,
}

impl Agent {
    pub(super) fn run_task(&mut self, step: &mut Step<'_>, run: wire::RunTask) {
        let Some(framework) = run.framework.id.clone() else {
            return;
        };
        let Some(stream) = stream_key(&framework, &run.task.task_id) else {
            return;
        };
        if self.is_here(&stream) {
            return;
        }
        let info = run.task.executor.as_deref().cloned();
        if let Some(rejection) = self.refused_for_now(step, &run.framework) {
            self.refuse(step, &stream, run.task.task_id, &rejection);
            self.tell_not_launched(step, &run.framework, info.as_ref(), run.launch_executor);
            return;
        }
        let executor = info.clone();
        let taken = match info {
            None => self
                .check_command_task(step, &stream, &run)
                .map(|checked| self.take_command(step, &stream, &run, checked)),
            Some(info) => self.take_for_executor(step, &run, info),
        };
        if let Err(rejection) = taken {
            self.refuse(step, &stream, run.task.task_id, &rejection);
            self.tell_not_launched(step, &run.framework, executor.as_ref(), run.launch_executor);
        }
    }

    /// The reason why the agent accepts no task at present.
    fn refused_for_now(&self, step: &Step<'_>, framework: &pb::FrameworkInfo) -> Option<Rejection> {
        let refusal = self.ending_refusal().or_else(|| self.drain_refusal());
        let refusal = refusal.or_else(|| {
            let message = step.disk().refusal()?;
            Some((Reason::ContainerLaunchFailed, message))
        });
        let (reason, message) =
            refusal.or_else(|| self.unacknowledged_refusal(framework.id.as_ref()?))?;
        Some(Rejection {
            state: dropped_or_lost(is_partition_aware(framework)),
            reason,
            message: message.to_owned(),
        })
    }

    fn ending_refusal(&self) -> Option<(Reason, &'static str)> {
        let is_ending = self.lifecycle.is_ending();
        is_ending.then_some((Reason::ContainerLaunchFailed, ENDING))
    }

    /// The refusal for a framework with a large backlog: ended tasks use no resources, but take memory and disk until
    /// their updates are acknowledged.
    fn unacknowledged_refusal(
        &self,
        framework: &pb::FrameworkId,
    ) -> Option<(Reason, &'static str)> {
        let id = FrameworkId::new(&framework.value).ok()?;
        let is_taken = self.history.takes_tasks_of(&id);
        (!is_taken).then_some((Reason::ContainerLaunchFailed, NOT_ACKNOWLEDGED))
    }

    fn is_here(&self, stream: &StreamKey) -> bool {
        let here = self.find_task(stream).is_some();
        if here {
            // A refusal would end the running task.
            warn!(
                framework_id = %stream.framework, task_id = %stream.task,
                "dropped the order to run a task that is here already"
            );
        }
        here
    }

    fn refuse(
        &mut self,
        step: &mut Step<'_>,
        stream: &StreamKey,
        task: pb::TaskId,
        rejection: &Rejection,
    ) {
        let status = self.status(
            step,
            task,
            rejection.state,
            Source::Agent,
            Some(rejection.reason),
            Some(rejection.message()),
        );
        self.answer_for_absent(step, stream, status, Default::default());
    }

    /// Validates a task without an executor. The executor made for it must not have the id of another executor, not
    /// even of an ended executor with unacknowledged updates.
    fn check_command_task(
        &self,
        step: &Step<'_>,
        stream: &StreamKey,
        run: &wire::RunTask,
    ) -> Result<(Resources, Demand), Rejection> {
        let framework = self.frameworks.get(&stream.framework);
        let executors = framework.map(|framework| &framework.executors);
        if executors.is_some_and(|executors| executors.contains_key(stream.task.as_str())) {
            return Err(Rejection::invalid(format!(
                "the task's id '{}' is that of an executor of the framework which is on this agent: give the task \
                 another one",
                stream.task
            )));
        }
        self.check(step, &run.task, true, &run.framework)
    }

    /// Accepts a task without an executor: the agent makes an executor named after the task.
    fn take_command(
        &mut self,
        step: &mut Step<'_>,
        stream: &StreamKey,
        run: &wire::RunTask,
        (resources, demand): (Resources, Demand),
    ) {
        let Ok(id) = ExecutorId::new(stream.task.as_str()) else {
            return;
        };
        let Some(key) = self.new_run(step, &run.framework, id) else {
            return;
        };
        self.upsert_framework(step, &stream.framework, run.framework.clone());
        let executor = Executor {
            kind: ExecutorKind::Command,
            info: None,
            user: user_of(run.task.command.as_ref(), &run.framework),
            resources: Resources::default(),
            role: role_of(&resources),
            container: Container::new(key.container.clone(), demand),
            tasks: std::collections::BTreeMap::new(),
            completed: VecDeque::new(),
            completed_bytes: 0,
            orphaned: false,
            link: ExecutorLink::default(),
            key: key.clone(),
        };
        self.insert_executor(executor, Some(stream));
        let checked = Checked {
            stream: stream.clone(),
            info: run.task.clone(),
            resources,
            demand,
        };
        self.take_task(step, &key, &run.framework, checked, None);
        self.launch(step, &key);
    }

    /// Accepts a task of an executor from the framework.
    fn take_for_executor(
        &mut self,
        step: &mut Step<'_>,
        run: &wire::RunTask,
        info: pb::ExecutorInfo,
    ) -> Result<(), Rejection> {
        if run.task.command.is_some() {
            return Err(Rejection::invalid(
                "Task should have at least one (but not both) of CommandInfo or ExecutorInfo present",
            ));
        }
        if info.r#type() == pb::executor_info::Type::Default {
            return Err(Rejection::invalid(
                "the default executor runs groups of tasks (LAUNCH_GROUP) only",
            ));
        }
        let tasks = std::slice::from_ref(&run.task);
        let key = self.take_all(step, &run.framework, info, tasks, run.launch_executor)?;
        self.reconcile_executor(step, &key);
        Ok(())
    }

    pub(super) fn run_task_group(&mut self, step: &mut Step<'_>, run: wire::RunTaskGroup) {
        let Some(framework) = run.framework.id.clone() else {
            return;
        };
        let streams: Option<Vec<StreamKey>> = run
            .task_group
            .tasks
            .iter()
            .map(|task| stream_key(&framework, &task.task_id))
            .collect();
        let Some(streams) = streams else {
            return;
        };
        if streams.iter().any(|stream| self.is_here(stream)) {
            return;
        }
        let tasks = &run.task_group.tasks;
        if let Some(rejection) = self.refused_for_now(step, &run.framework) {
            for (stream, task) in streams.iter().zip(tasks) {
                self.refuse(step, stream, task.task_id.clone(), &rejection);
            }
            self.tell_not_launched(
                step,
                &run.framework,
                Some(&run.executor),
                run.launch_executor,
            );
            return;
        }
        let taken = self.take_all(
            step,
            &run.framework,
            run.executor.clone(),
            tasks,
            run.launch_executor,
        );
        match taken {
            Ok(key) => self.reconcile_executor(step, &key),
            Err(rejection) => {
                let rejection = rejection.invalid_group();
                for (stream, task) in streams.iter().zip(tasks) {
                    self.refuse(step, stream, task.task_id.clone(), &rejection);
                }
                self.tell_not_launched(
                    step,
                    &run.framework,
                    Some(&run.executor),
                    run.launch_executor,
                );
            }
        }
    }

    /// Accepts tasks for one executor, and launches a new executor.
    fn take_all(
        &mut self,
        step: &mut Step<'_>,
        framework: &pb::FrameworkInfo,
        info: pb::ExecutorInfo,
        tasks: &[pb::TaskInfo],
        launch_executor: bool,
    ) -> Result<Arc<RunKey>, Rejection> {
        let invalid = |error: &dyn std::fmt::Display| Rejection::invalid(error.to_string());
        let id = ExecutorId::new(&info.executor_id.value).map_err(|error| invalid(&error))?;
        let kind = match info.r#type() {
            pb::executor_info::Type::Default => ExecutorKind::Default,
            _ => ExecutorKind::Custom,
        };
        if kind == ExecutorKind::Custom {
            check_launch_event(tasks, step.options.executor_event_bytes_max)?;
        }
        let mut checked = Vec::with_capacity(tasks.len());
        for task in tasks {
            let id = framework.id.clone().unwrap_or_default();
            let stream = stream_key(&id, &task.task_id)
                .ok_or_else(|| Rejection::invalid("the task's id is invalid"))?;
            let (resources, demand) =
                self.check(step, task, kind == ExecutorKind::Default, framework)?;
            checked.push(Checked {
                stream,
                info: task.clone(),
                resources,
                demand,
            });
        }
        let known = checked
            .first()
            .and_then(|first| self.frameworks.get(&first.stream.framework))
            .and_then(|framework| framework.executors.get(&id))
            .cloned();
        let key = match (known, launch_executor) {
            (Some(executor), false) if executor.takes_tasks(kind) => {
                let placed = checked
                    .iter()
                    .try_for_each(|one| executor.container.check_cpus(&one.demand));
                placed.map_err(Rejection::invalid)?;
                if kind == ExecutorKind::Custom {
                    // A frozen executor must receive the task. For launches by the agent itself the containerizer thaws
                    // the container.
                    self.thaw(step, &executor.key.container);
                }
                executor.key.clone()
            }
            (None, true) => self.take_executor(step, framework, kind, id, info, &checked)?,
            (known, _) => {
                return Err(self.no_executor(step, framework, &id, known.is_some()));
            }
        };
        let group = (kind == ExecutorKind::Default || tasks.len() > 1)
            .then(|| (Arc::<str>::from(step.new_uuid().to_string()), checked.len()));
        let is_new = self.executor_at(&key).is_some_and(|executor| {
            executor.tasks.is_empty() && executor.completed.is_empty() && launch_executor
        });
        for one in checked {
            self.take_task(step, &key, framework, one, group.clone());
        }
        self.change_executor(&key, |executor| {
            executor.link.given_at = Some(step.now.moment)
        });
        if is_new {
            if kind == ExecutorKind::Custom {
                self.await_registration(step, &key);
            }
            self.launch(step, &key);
        }
        Ok(key)
    }

    /// The master and the agent disagree about the executor.
    fn no_executor(
        &mut self,
        step: &mut Step<'_>,
        framework: &pb::FrameworkInfo,
        id: &ExecutorId,
        is_here: bool,
    ) -> Rejection {
        let message = if is_here {
            "the executor is there already, or on its way out"
        } else {
            self.tell_exited(step, framework.id.clone().unwrap_or_default(), id, None);
            "the executor is not there any more"
        };
        Rejection {
            state: dropped_or_lost(is_partition_aware(framework)),
            reason: Reason::ExecutorTerminated,
            message: message.to_owned(),
        }
    }

    fn take_executor(
        &mut self,
        step: &mut Step<'_>,
        framework: &pb::FrameworkInfo,
        kind: ExecutorKind,
        id: ExecutorId,
        info: pb::ExecutorInfo,
        tasks: &[Checked],
    ) -> Result<Arc<RunKey>, Rejection> {
        if let Some(container) = &info.container {
            check_container(container)?;
        }
        let resources = self.read_resources(&info.resources, "executor", framework)?;
        if kind == ExecutorKind::Custom {
            self.check_custom(step, framework, &info, &resources, tasks)?;
        }
        let own = demand(&resources, &Default::default(), step.options.enforceable)
            .map_err(Rejection::invalid)?;
        let demands = std::iter::once(own).chain(tasks.iter().map(|task| task.demand));
        let demand = combined(demands);
        let unknown = || Rejection::invalid("the framework's id is invalid");
        let framework_id = tasks
            .first()
            .map(|task| task.stream.framework.clone())
            .ok_or_else(|| Rejection::invalid("a group without tasks"))?;
        let key = self.new_run(step, framework, id).ok_or_else(unknown)?;
        self.upsert_framework(step, &framework_id, framework.clone());
        step.persist(Write::Executor {
            key: key.clone(),
            record: Box::new(ExecutorRecord {
                info: info.clone(),
                framework: framework.clone(),
            }),
        });
        let role = role_of(&resources).or_else(|| {
            let mut roles = tasks.iter().map(|task| role_of(&task.resources));
            roles.next().flatten()
        });
        let executor = Executor {
            kind,
            user: user_of(info.command.as_ref(), framework),
            info: Some(Arc::new(info)),
            resources,
            role,
            container: Container::new(key.container.clone(), demand),
            tasks: std::collections::BTreeMap::new(),
            completed: VecDeque::new(),
            completed_bytes: 0,
            orphaned: false,
            link: ExecutorLink::default(),
            key: key.clone(),
        };
        self.insert_executor(executor, None);
        Ok(key)
    }

    fn new_run(
        &mut self,
        step: &mut Step<'_>,
        framework: &pb::FrameworkInfo,
        executor: ExecutorId,
    ) -> Option<Arc<RunKey>> {
        let framework = framework.id.clone().unwrap_or_default().value;
        Some(Arc::new(RunKey {
            agent: step.agent_id().cloned()?,
            framework: FrameworkId::new(&framework).ok()?,
            executor,
            container: ContainerId::new(&step.new_uuid().to_string()).ok()?,
        }))
    }

    fn insert_executor(&mut self, executor: Executor, task: Option<&StreamKey>) {
        let key = executor.key.clone();
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        let owner = ContainerOwner {
            framework: key.framework.clone(),
            executor: key.executor.clone(),
            task: task.map(|stream| stream.task.clone()),
        };
        Arc::make_mut(framework)
            .executors
            .insert(key.executor.clone(), Arc::new(executor));
        self.containers.insert(key.container.clone(), owner);
    }

    /// Writes the intent and adds the task to its executor.
    fn take_task(
        &mut self,
        step: &mut Step<'_>,
        key: &Arc<RunKey>,
        framework: &pb::FrameworkInfo,
        checked: Checked,
        group: Option<(Arc<str>, usize)>,
    ) {
        let Checked {
            stream,
            info,
            resources,
            demand,
        } = checked;
        // The reference is not kept: adding a task to a shared executor copies it with all its tasks.
        let Some((kind, user, had_one)) = self.executor_at(key).map(|executor| {
            let had_one = executor.has_task(&stream.task);
            (executor.kind, executor.user.clone(), had_one)
        }) else {
            return;
        };
        let nested = (kind == ExecutorKind::Default)
            .then(|| key.container.child(&step.new_uuid().to_string()).ok())
            .flatten();
        info!(
            framework_id = %stream.framework, task_id = %stream.task, executor_id = %key.executor,
            container_id = %nested.as_ref().unwrap_or(&key.container), resources = %resources,
            "task accepted"
        );
        let task_key = Arc::new(TaskKey {
            run: (**key).clone(),
            task: stream.task.clone(),
        });
        let record = TaskRecord {
            info,
            framework: match kind {
                ExecutorKind::Command => framework.clone(),
                // Saved once in the executor's record, for all its tasks.
                ExecutorKind::Default | ExecutorKind::Custom => pb::FrameworkInfo::default(),
            },
            accepted_unix_ns: unix_ns(step.now),
            nested_container: nested.as_ref().map(ToString::to_string),
            group: group.as_ref().map(|(name, _)| name.to_string()),
            group_size: group
                .as_ref()
                .map_or(0, |(_, size)| u32::try_from(*size).unwrap_or(u32::MAX)),
        };
        self.accepted += 1;
        let task = Task {
            key: task_key.clone(),
            order: self.accepted,
            user: match kind {
                ExecutorKind::Custom => user,
                _ => user_of(record.info.command.as_ref(), framework),
            },
            role: role_of(&resources),
            resources,
            info: Arc::new(record.info.clone()),
            state: pb::TaskState::TaskStaging,
            statuses: Vec::new(),
            sent: None,
            nested: nested.clone().map(|id| Container::new(id, demand)),
            demand,
            group: group.map(|(name, _)| name),
            delivered: false,
            delivered_after: Lsn::default(),
            may_run_unknown: false,
            check_state: super::CheckState::default(),
            healthy: None,
            check_status: None,
            kill_asked: None,
            ended_bytes: 0,
        };
        if had_one {
            // The log of an earlier task with this id shows a terminal state.
            let key = task_key.clone();
            step.persist(Write::RetireTask { key });
        }
        step.persist(Write::Task {
            key: task_key,
            record: Box::new(record),
        });
        if let Some(id) = nested {
            let owner = ContainerOwner {
                framework: key.framework.clone(),
                executor: key.executor.clone(),
                task: Some(stream.task.clone()),
            };
            self.containers.insert(id, owner);
        }
        self.change_executor(key, |executor| {
            executor.tasks.insert(stream.task, Arc::new(task));
        });
    }
}

fn is_partition_aware(framework: &pb::FrameworkInfo) -> bool {
    let capability = pb::framework_info::capability::Type::PartitionAware;
    super::states::has_capability(framework, capability)
}

impl Executor {
    /// Whether the executor accepts tasks.
    fn takes_tasks(&self, kind: ExecutorKind) -> bool {
        self.kind == kind
            && self.is_live()
            && self.container.kill.is_none()
            && self.link.termination_reason.is_none()
    }
}
