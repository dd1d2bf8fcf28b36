//! Launches containers and reports their start.
//!
//! The intent is durable before a launch. When a task was executed, the core sends STARTING and RUNNING. The start of
//! an executor's own container is not reported to anybody; it only lets the waiting tasks continue.

use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::ProcessIdentity;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, FrameworkId, Now};
use tracing::{info, warn};

use super::consequence::Consequence;
use super::fields::{duration, unix_ns, volumes_among};
use super::model::{Executor, ExecutorKind, Phase, Task, TaskRef};
use super::parent_volumes::ParentVolumes;
use super::tasks::Tasks;
use super::{
    ContainerAction, Destination, LaunchPlan, Step, Subject, Timer, checks, ending, kill,
    lifetimes, reconcile, status_updates,
};
use crate::checkpoint::{FrameworkRecord, LogEntry, RunKey, Started, Write};

/// Launches an executor's container.
pub(super) fn launch(tasks: &mut Tasks, step: &mut Step<'_>, key: &Arc<RunKey>) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return debug_assert!(false, "a new executor is here");
    };
    let plan = LaunchPlan {
        run: key.clone(),
        container: executor.container.id.clone(),
        subject: subject_of(&executor),
        user: executor.user.clone(),
        role: executor.role.clone(),
        demand: executor.container.demand,
        resources: executor.allocated(),
        volumes: executor.volumes(|_| true),
        parent_volumes: Vec::new(),
    };
    let volumes = plan.volumes.clone();
    tasks
        .runs
        .change_executor(key, |executor| executor.link.note_volumes(volumes));
    launch_as(step, plan);
}

/// Launches the container of a task inside its executor's, with these volumes. The cost does not grow with the
/// number of other tasks: a group may have any number.
pub(super) fn launch_inside(
    step: &mut Step<'_>,
    key: &Arc<RunKey>,
    task: &Task,
    parent_volumes: &ParentVolumes<'_>,
) {
    let Some(nested) = &task.nested else {
        return;
    };
    launch_as(
        step,
        LaunchPlan {
            run: key.clone(),
            container: nested.id.clone(),
            subject: Subject::Nested(task.info.clone()),
            user: task.user.clone(),
            role: task.role.clone(),
            demand: nested.demand,
            resources: task.resources.clone(),
            volumes: volumes_among(&task.info.resources),
            parent_volumes: parent_volumes.seen_by(&task.info),
        },
    );
}

fn launch_as(step: &mut Step<'_>, plan: LaunchPlan) {
    step.output(
        Destination::Container(plan.container.clone()),
        ContainerAction::Launch(Box::new(plan)),
    );
}

/// Adds a framework, or updates its description.
pub(super) fn upsert_framework(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    id: &FrameworkId,
    info: pb::FrameworkInfo,
) {
    if tasks.runs.has_framework(id, &info) {
        return;
    }
    let Some(agent) = step.agent_id().cloned() else {
        return debug_assert!(false, "a registered agent has an id");
    };
    tasks.runs.set_framework(id, info.clone());
    step.persist(Write::Framework {
        agent,
        framework: id.clone(),
        record: Box::new(FrameworkRecord { info }),
    });
}

pub(super) fn update_framework(tasks: &mut Tasks, step: &mut Step<'_>, info: pb::FrameworkInfo) {
    let told = info.id.clone().unwrap_or_default().value;
    let Ok(id) = FrameworkId::new(&told) else {
        return;
    };
    if tasks.runs.framework(&id).is_none() {
        return;
    }
    info!(framework_id = %id, "framework updated");
    upsert_framework(tasks, step, &id, info);
    for key in tasks.updates.resend_of(step.now.moment, &id) {
        status_updates::send_head(tasks, step, &key);
    }
}

pub(super) fn started(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    supervisor: ProcessIdentity,
    task_pid: i32,
) {
    let Some(executor) = tasks.runs.executor_of(container) else {
        // The container is unknown and must not live on.
        warn!(container_id = %container, "a container started that is not known");
        return step.output(
            Destination::Container(container.clone()),
            ContainerAction::Destroy {
                container: container.clone(),
            },
        );
    };
    let task_ref = tasks.runs.task_of(container);
    let entry = start_entry(step, Duration::ZERO, &supervisor, task_pid);
    log_start(step, &executor, task_ref.as_ref(), entry);
    tasks.runs.change_container(container, |container| {
        container.phase = Phase::Running;
        container.supervisor = Some(supervisor);
        container.pid = Some(task_pid);
    });
    let kill = match &task_ref {
        // The rest of its grace period after an earlier signal, if the task ran before the core learned of it.
        Some(task_ref) => task_ref
            .container()
            .kill
            .map(|kill| kill.left(step.now.moment)),
        None => executor.container.kill.map(|_| Duration::ZERO),
    };
    if let Some(grace) = kill {
        return kill::send_kill(tasks, step, container, grace);
    }
    match task_ref {
        Some(task_ref) => {
            tell_running(tasks, step, &task_ref);
            arm_completion_time(tasks, step, &task_ref);
            checks::arm_checks(tasks, step, &task_ref);
        }
        None => reconcile::reconcile_executor(tasks, step, &executor.key),
    }
}

fn log_start(step: &mut Step<'_>, executor: &Executor, task: Option<&TaskRef>, entry: LogEntry) {
    let entry = Box::new(entry);
    step.persist(match task {
        Some(task_ref) => Write::Log {
            key: task_ref.task.key.clone(),
            entry,
        },
        None => Write::ExecutorLog {
            key: executor.key.clone(),
            entry,
        },
    });
}

/// Writes the supervisor of a running container again if its log lacks the entry: the agent crashed before writing
/// it, or the log was damaged since. If one of two records is lost, the agent must not depend on the other.
pub(super) fn restore_start(step: &mut Step<'_>, executor: &Executor, task: Option<&TaskRef>) {
    let container = task.map_or(&executor.container, TaskRef::container);
    let Some(supervisor) = container.supervisor.as_ref() else {
        return;
    };
    if container.ran_before.is_some() {
        return;
    }
    let ran = task.map_or(Duration::ZERO, |task_ref| {
        told_to_run_since(step.now, &task_ref.task)
    });
    let pid = container.pid.unwrap_or_default();
    let entry = start_entry(step, ran, supervisor, pid);
    log_start(step, executor, task, entry);
}

/// A log entry for a container that was started this long ago.
fn start_entry(
    step: &Step<'_>,
    ran: Duration,
    supervisor: &ProcessIdentity,
    task_pid: i32,
) -> LogEntry {
    let ran_ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
    let uptime_ns = step.options.boot_clock.uptime_ns(step.now);
    LogEntry::Started(Started {
        supervisor: supervisor.to_text(),
        task_pid,
        at_unix_ns: unix_ns(step.now).saturating_sub(ran_ns),
        uptime_ns: Some(uptime_ns.saturating_sub(ran_ns)),
    })
}

/// Sends STARTING and RUNNING, unless they were sent. STARTING is never sent after another state: with a damaged
/// log the master may already know the task as running.
pub(super) fn tell_running(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    for state in [pb::TaskState::TaskStarting, pb::TaskState::TaskRunning] {
        let Some(task_ref) = tasks.runs.task_at(&task_ref.task.key) else {
            return debug_assert!(false, "a running task is here");
        };
        let task = &task_ref.task;
        let was_told = task.statuses.iter().any(|status| status.state() == state);
        let may_set_back = !task.statuses.is_empty() || task.may_run_unknown;
        if was_told || (state == pb::TaskState::TaskStarting && may_set_back) {
            continue;
        }
        if task_ref.task.check_status.is_none() {
            let empty = super::checks::empty_status(&task_ref.task.info);
            tasks
                .runs
                .change_task(&task_ref.task.key, |task| task.check_status = empty);
        }
        let Some(task_ref) = tasks.runs.task_at(&task_ref.task.key) else {
            return debug_assert!(false, "a running task is here");
        };
        let status = executor_status(step, &task_ref, state, task_ref.container().pid);
        status_updates::update_task(tasks, step, &task_ref.task.key, status);
    }
}

/// A status that the executor of a task would send.
pub(super) fn executor_status(
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    state: pb::TaskState,
    pid: Option<i32>,
) -> pb::TaskStatus {
    let task = task_ref.task.info.task_id.clone();
    let mut status = status_updates::status(step, task, state, Source::Executor, None, None);
    status.executor_id = Some(pb::ExecutorId {
        value: task_ref.executor.key.executor.to_string(),
    });
    status.container_status = Some(container_status(step, &task_ref.container().id, pid));
    if task_ref.executor.kind != ExecutorKind::Custom {
        status.healthy = task_ref.task.healthy;
        status.check_status.clone_from(&task_ref.task.check_status);
    }
    status
}

pub(super) fn container_status(
    step: &Step<'_>,
    container: &ContainerId,
    pid: Option<i32>,
) -> pb::ContainerStatus {
    let address = pb::network_info::IpAddress {
        protocol: Some(pb::network_info::Protocol::IPv4.into()),
        ip_address: Some(step.options.container_ip.clone()),
    };
    pb::ContainerStatus {
        container_id: Some(container.into()),
        network_infos: vec![pb::NetworkInfo {
            ip_addresses: vec![address],
            ..pb::NetworkInfo::default()
        }],
        cgroup_info: None,
        executor_pid: pid.and_then(|pid| u32::try_from(pid).ok()),
    }
}

/// Sets the timer for the completion time of a task, counted from its start, also over restarts of the agent.
pub(super) fn arm_completion_time(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    let Some(task_ref) = tasks.runs.task_at(&task_ref.task.key) else {
        return;
    };
    let Some(longest) = &task_ref.task.info.max_completion_time else {
        return;
    };
    let ran = task_ref.container().ran_before;
    let ran = ran.unwrap_or_else(|| told_to_run_since(step.now, &task_ref.task));
    let left = duration(longest).saturating_sub(ran);
    let container = task_ref.container().id.clone();
    step.set_timer(step.now.moment + left, Timer::CompletionTime(container));
}

/// Handles a container that could not be launched.
#[must_use]
pub(super) fn launch_failed(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    cause: &str,
) -> Option<Consequence> {
    let executor = tasks.runs.executor_of(container)?;
    let message = format!("Failed to launch container: {cause}");
    let Some(task_ref) = tasks.runs.task_of(container) else {
        return lifetimes::executor_not_launched(tasks, step, &executor, message);
    };
    if task_ref.container().kill.is_some() {
        kill::finish_killed_during_launch(tasks, step, &task_ref);
        return None;
    }
    step.counters.container_launch_errors += 1;
    ending::finish_task(
        tasks,
        step,
        &task_ref,
        pb::TaskState::TaskFailed,
        Source::Agent,
        Some(Reason::ContainerLaunchFailed),
        Some(message),
        None,
    );
    None
}

/// The time since the RUNNING update of a task, by the wall clock: the records of earlier versions contain no better
/// time.
fn told_to_run_since(now: Now, task: &Task) -> Duration {
    let running = i32::from(pb::TaskState::TaskRunning);
    let mut told = task.statuses.iter();
    let since = told
        .find(|status| status.state == running)
        .and_then(|status| status.timestamp)
        .and_then(|timestamp| Duration::try_from_secs_f64(timestamp).ok());
    since.map_or(Duration::ZERO, |since| now.unix.saturating_sub(since))
}

fn subject_of(executor: &Executor) -> Subject {
    let info = || executor.info.clone().unwrap_or_default();
    match (executor.kind, executor.command_task()) {
        (ExecutorKind::Command, Some(task)) => Subject::Task(task.info.clone()),
        (ExecutorKind::Default, _) => Subject::Group(info()),
        _ => Subject::Executor(info()),
    }
}
