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

use super::consequence::Consequence;
use super::demand::{combined, demand};
use super::executor_link::ExecutorLink;
use super::fields::{role_of, unix_ns, user_of};
use super::model::{Container, Executor, ExecutorKind, Task};
use super::operations::Operations;
use super::registration::stream_key;
use super::rejection::{Rejection, check_container, check_launch_event};
use super::states::dropped_or_lost;
use super::tasks::Tasks;
use super::{Step, StreamKey, corrections, launch, lifetimes, reconcile, status_updates};
use crate::checkpoint::{ExecutorRecord, Lsn, RunKey, TaskKey, TaskRecord, Write};

const NOT_ACKNOWLEDGED: &str = "The framework has too many tasks on this agent that have ended and whose last status update \
     it has not acknowledged; its tasks are taken again when it has";
const ENDING: &str = "The agent is about to end, once its tasks have";

/// Tasks that the agent does not run.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) tasks: Vec<(StreamKey, pb::TaskId)>,
    pub(super) rejection: Rejection,
    /// The report of the executor that was to be launched for the tasks.
    pub(super) not_launched: Option<wire::ExecutorExited>,
}

/// A task that passed validation.
struct Checked {
    stream: StreamKey,
    info: pb::TaskInfo,
    resources: Resources,
    demand: Demand,
}

/// Runs a task, or returns its refusal.
#[must_use]
pub(super) fn run_task(
    tasks: &mut Tasks,
    operations: &Operations,
    step: &mut Step<'_>,
    is_ending: bool,
    run: wire::RunTask,
) -> Option<Consequence> {
    let stream = stream_key(run.framework.id.as_ref()?, &run.task.task_id)?;
    if is_here(tasks, &stream) {
        return None;
    }
    let executor = run.task.executor.as_deref();
    let taken = match (
        refused_for_now(tasks, step, is_ending, &run.framework),
        executor,
    ) {
        (Some(rejection), _) => Err(rejection),
        (None, None) => check_command_task(tasks, operations, step, &stream, &run)
            .map(|checked| take_command(tasks, step, &stream, &run, checked)),
        (None, Some(info)) => take_for_executor(tasks, operations, step, &run, info.clone()),
    };
    let rejection = taken.err()?;
    Some(Consequence::TasksRefused(Refusal {
        tasks: vec![(stream, run.task.task_id.clone())],
        not_launched: lifetimes::not_launched(
            &tasks.runs,
            &run.framework,
            executor,
            run.launch_executor,
        ),
        rejection,
    }))
}

/// The reason why the agent accepts no task at present.
fn refused_for_now(
    tasks: &Tasks,
    step: &Step<'_>,
    is_ending: bool,
    framework: &pb::FrameworkInfo,
) -> Option<Rejection> {
    let ending = is_ending.then_some((Reason::ContainerLaunchFailed, ENDING));
    let refusal = ending.or_else(|| tasks.drain.refusal());
    let refusal = refusal.or_else(|| {
        let message = step.disk().refusal()?;
        Some((Reason::ContainerLaunchFailed, message))
    });
    let (reason, message) =
        refusal.or_else(|| unacknowledged_refusal(tasks, framework.id.as_ref()?))?;
    Some(Rejection {
        state: dropped_or_lost(is_partition_aware(framework)),
        reason,
        message: message.to_owned(),
        gone_executor: None,
    })
}

/// The refusal for a framework with a large backlog: ended tasks use no resources, but take memory and disk until
/// their updates are acknowledged.
fn unacknowledged_refusal(
    tasks: &Tasks,
    framework: &pb::FrameworkId,
) -> Option<(Reason, &'static str)> {
    let id = FrameworkId::new(&framework.value).ok()?;
    let is_taken = tasks.runs.takes_tasks_of(&id);
    (!is_taken).then_some((Reason::ContainerLaunchFailed, NOT_ACKNOWLEDGED))
}

fn is_here(tasks: &Tasks, stream: &StreamKey) -> bool {
    let here = tasks.runs.find_task(stream).is_some();
    if here {
        // A refusal would end the running task.
        warn!(
            framework_id = %stream.framework, task_id = %stream.task,
            "dropped the order to run a task that is here already"
        );
    }
    here
}

/// Answers for refused tasks.
pub(super) fn refuse(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    refused: &[(StreamKey, pb::TaskId)],
    rejection: &Rejection,
) {
    for (stream, task) in refused {
        let status = status_updates::status(
            step,
            task.clone(),
            rejection.state,
            Source::Agent,
            Some(rejection.reason),
            Some(rejection.message()),
        );
        status_updates::answer_for_absent(tasks, step, stream, status, Default::default());
    }
}

/// Validates a task without an executor. The executor made for it must not have the id of another executor, not
/// even of an ended executor with unacknowledged updates.
fn check_command_task(
    tasks: &Tasks,
    operations: &Operations,
    step: &Step<'_>,
    stream: &StreamKey,
    run: &wire::RunTask,
) -> Result<(Resources, Demand), Rejection> {
    let named = tasks.runs.executor(&stream.framework, stream.task.as_str());
    if named.is_some() {
        return Err(Rejection::invalid(format!(
            "the task's id '{}' is that of an executor of the framework which is on this agent: give the task \
             another one",
            stream.task
        )));
    }
    checks::check(operations, step, &run.task, true, &run.framework)
}

/// Accepts a task without an executor: the agent makes an executor named after the task.
fn take_command(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    stream: &StreamKey,
    run: &wire::RunTask,
    (resources, demand): (Resources, Demand),
) {
    let Ok(id) = ExecutorId::new(stream.task.as_str()) else {
        return;
    };
    let Some(key) = new_run(step, &run.framework, id) else {
        return debug_assert!(false, "a checked task has valid ids");
    };
    launch::upsert_framework(tasks, step, &stream.framework, run.framework.clone());
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
    tasks.runs.insert_executor(executor, Some(&stream.task));
    let checked = Checked {
        stream: stream.clone(),
        info: run.task.clone(),
        resources,
        demand,
    };
    take_task(tasks, step, &key, &run.framework, checked, None);
    launch::launch(tasks, step, &key);
}

/// Accepts a task of an executor from the framework.
fn take_for_executor(
    tasks: &mut Tasks,
    operations: &Operations,
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
    let infos = std::slice::from_ref(&run.task);
    let key = take_all(
        tasks,
        operations,
        step,
        &run.framework,
        info,
        infos,
        run.launch_executor,
    )?;
    reconcile::reconcile_executor(tasks, step, &key);
    Ok(())
}

/// Runs all tasks of a group, or returns their refusal.
#[must_use]
pub(super) fn run_task_group(
    tasks: &mut Tasks,
    operations: &Operations,
    step: &mut Step<'_>,
    is_ending: bool,
    run: wire::RunTaskGroup,
) -> Option<Consequence> {
    let framework = run.framework.id.as_ref()?;
    let infos = &run.task_group.tasks;
    let group: Vec<_> = infos
        .iter()
        .map(|task| Some((stream_key(framework, &task.task_id)?, task.task_id.clone())))
        .collect::<Option<_>>()?;
    if group.iter().any(|(stream, _)| is_here(tasks, stream)) {
        return None;
    }
    let taken = match refused_for_now(tasks, step, is_ending, &run.framework) {
        Some(rejection) => Err(rejection),
        None => take_all(
            tasks,
            operations,
            step,
            &run.framework,
            run.executor.clone(),
            infos,
            run.launch_executor,
        )
        .map_err(Rejection::invalid_group),
    };
    let rejection = match taken {
        Ok(key) => {
            reconcile::reconcile_executor(tasks, step, &key);
            return None;
        }
        Err(rejection) => rejection,
    };
    let not_launched = lifetimes::not_launched(
        &tasks.runs,
        &run.framework,
        Some(&run.executor),
        run.launch_executor,
    );
    Some(Consequence::TasksRefused(Refusal {
        tasks: group,
        rejection,
        not_launched,
    }))
}

/// Accepts tasks for one executor, and launches a new executor.
fn take_all(
    tasks: &mut Tasks,
    operations: &Operations,
    step: &mut Step<'_>,
    framework: &pb::FrameworkInfo,
    info: pb::ExecutorInfo,
    infos: &[pb::TaskInfo],
    launch_executor: bool,
) -> Result<Arc<RunKey>, Rejection> {
    let invalid = |error: &dyn std::fmt::Display| Rejection::invalid(error.to_string());
    let id = ExecutorId::new(&info.executor_id.value).map_err(|error| invalid(&error))?;
    let kind = kind_of(&info);
    if kind == ExecutorKind::Custom {
        check_launch_event(infos, step.options.executor_event_bytes_max)?;
    }
    let mut checked = Vec::with_capacity(infos.len());
    for task in infos {
        let id = framework.id.clone().unwrap_or_default();
        let stream = stream_key(&id, &task.task_id)
            .ok_or_else(|| Rejection::invalid("the task's id is invalid"))?;
        let (resources, demand) = checks::check(
            operations,
            step,
            task,
            kind == ExecutorKind::Default,
            framework,
        )?;
        checked.push(Checked {
            stream,
            info: task.clone(),
            resources,
            demand,
        });
    }
    let known = checked
        .first()
        .and_then(|first| tasks.runs.executor(&first.stream.framework, id.as_str()));
    let key = match (known, launch_executor) {
        (Some(executor), false) if executor.takes_tasks(kind) => {
            let placed = checked
                .iter()
                .try_for_each(|one| executor.container.check_cpus(&one.demand));
            placed.map_err(Rejection::invalid)?;
            if kind == ExecutorKind::Custom {
                // A frozen executor must receive the task. For launches by the agent itself the containerizer thaws
                // the container.
                corrections::thaw(tasks, step, &executor.key.container);
            }
            executor.key.clone()
        }
        (None, true) => take_executor(tasks, operations, step, framework, id, info, &checked)?,
        (known, _) => {
            return Err(no_executor(framework, &id, known.is_some()));
        }
    };
    let group = (kind == ExecutorKind::Default || infos.len() > 1)
        .then(|| (Arc::<str>::from(step.new_uuid().to_string()), checked.len()));
    let is_new = tasks.runs.executor_at(&key).is_some_and(|executor| {
        executor.tasks.is_empty() && executor.completed.is_empty() && launch_executor
    });
    for one in checked {
        take_task(tasks, step, &key, framework, one, group.clone());
    }
    tasks.runs.change_executor(&key, |executor| {
        executor.link.note_accepted(step.now.moment)
    });
    if is_new {
        if kind == ExecutorKind::Custom {
            lifetimes::await_registration(step, &key);
        }
        launch::launch(tasks, step, &key);
    }
    Ok(key)
}

/// The master and the agent disagree about the executor.
fn no_executor(framework: &pb::FrameworkInfo, id: &ExecutorId, is_here: bool) -> Rejection {
    let (message, gone_executor) = if is_here {
        ("the executor is there already, or on its way out", None)
    } else {
        let framework = framework.id.clone().unwrap_or_default();
        (
            "the executor is not there any more",
            Some(lifetimes::exited(framework, id, None)),
        )
    };
    Rejection {
        state: dropped_or_lost(is_partition_aware(framework)),
        reason: Reason::ExecutorTerminated,
        message: message.to_owned(),
        gone_executor,
    }
}

fn take_executor(
    tasks: &mut Tasks,
    operations: &Operations,
    step: &mut Step<'_>,
    framework: &pb::FrameworkInfo,
    id: ExecutorId,
    info: pb::ExecutorInfo,
    checked: &[Checked],
) -> Result<Arc<RunKey>, Rejection> {
    let kind = kind_of(&info);
    if let Some(container) = &info.container {
        check_container(container)?;
    }
    let resources = checks::read_resources(operations, &info.resources, "executor", framework)?;
    if kind == ExecutorKind::Custom {
        checks::check_custom(step, framework, &info, &resources, checked)?;
    }
    let own = demand(&resources, &Default::default(), step.options.enforceable)
        .map_err(Rejection::invalid)?;
    let demands = std::iter::once(own).chain(checked.iter().map(|task| task.demand));
    let demand = combined(demands);
    let unknown = || Rejection::invalid("the framework's id is invalid");
    let framework_id = checked
        .first()
        .map(|task| task.stream.framework.clone())
        .ok_or_else(|| Rejection::invalid("a group without tasks"))?;
    let key = new_run(step, framework, id).ok_or_else(unknown)?;
    launch::upsert_framework(tasks, step, &framework_id, framework.clone());
    step.persist(Write::Executor {
        key: key.clone(),
        record: Box::new(ExecutorRecord {
            info: info.clone(),
            framework: framework.clone(),
        }),
    });
    let role = role_of(&resources).or_else(|| {
        let mut roles = checked.iter().map(|task| role_of(&task.resources));
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
    tasks.runs.insert_executor(executor, None);
    Ok(key)
}

fn new_run(
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

/// Writes the intent and adds the task to its executor.
fn take_task(
    tasks: &mut Tasks,
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
    let Some((kind, user, had_one)) = tasks.runs.executor_at(key).map(|executor| {
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
    let task = Task {
        key: task_key.clone(),
        order: tasks.runs.next_order(),
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
    tasks.runs.insert_task(task);
}

/// The kind of a framework's executor.
fn kind_of(info: &pb::ExecutorInfo) -> ExecutorKind {
    match info.r#type() {
        pb::executor_info::Type::Default => ExecutorKind::Default,
        _ => ExecutorKind::Custom,
    }
}

fn is_partition_aware(framework: &pb::FrameworkInfo) -> bool {
    let capability = pb::framework_info::capability::Type::PartitionAware;
    super::states::has_capability(framework, capability)
}
