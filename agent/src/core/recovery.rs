//! Recovers the state after a restart, from the checkpoints and the containers on the machine.
//!
//! The checkpoints were read and each container was looked up; the core rebuilds frameworks, tasks and update streams
//! from them. Invariants: a running container continues untouched. A container that is gone leads to exactly one
//! terminal update, never to an unobserved success. Recovering twice gives the same result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{BootId, Demand, ProcessIdentity};
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, Now, Resources};
use tracing::{info, warn};

use super::demand::{combined, demand, kind_of_cpus};
use super::ending::NOT_LAUNCHED;
use super::executor_link::ExecutorLink;
use super::fields::{role_of, user_of};
use super::history::task_bytes;
use super::model::{
    Container, Executor, ExecutorKind, Framework, Kill, Phase, Task, TaskRef, TerminationReason,
};
use super::partial_groups::tasks_of_partial_groups;
use super::runs::Runs;
use super::states::is_terminal;
use super::tasks::Tasks;
use super::{
    BootClock, Ending, Exit, Found, Step, Timer, checks, corrections, ending, executors, kill,
    launch, lifetimes, reconcile, status_updates,
};
use crate::checkpoint::{
    FrameworkImage, KillCause, KillRequested, LogEntry, Lsn, RunImage, RunKey, Started, TaskImage,
    TaskKey, Write,
};

/// Containers found after a restart.
type FoundContainers = BTreeMap<ContainerId, Found>;

const REBOOTED: &str =
    "The machine was booted anew while the task was running; how it ended is unknown";
const GONE: &str = "The task was gone when the agent came back; how it ended is unknown";
const PARTIAL_GROUP: &str = "The agent was restarted before the whole group had reached it";

/// Rebuilds the frameworks with their executors and tasks, and settles each according to its container.
pub(super) fn recover(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    frameworks: Vec<FrameworkImage>,
    rebooted: bool,
    found_containers: &FoundContainers,
) {
    let mut half_groups = Vec::new();
    for image in frameworks {
        let mut framework = Framework::new(image.id, Arc::new(image.info));
        for run in image.runs {
            half_groups.extend(tasks_of_partial_groups(&run));
            let executor = recover_run(tasks, step, &framework, run, found_containers);
            if let Some(executor) = executor {
                framework
                    .executors
                    .insert(executor.key.executor.clone(), Arc::new(executor));
            }
        }
        tasks.runs.restore_framework(framework);
    }
    for key in half_groups {
        let Some(task_ref) = tasks.runs.task_at(&key) else {
            continue;
        };
        if task_ref.executor.kind == ExecutorKind::Custom {
            // The container is the executor's, which may continue with its other tasks.
            let (state, reason) = (pb::TaskState::TaskFailed, Reason::AgentRestarted);
            let message = PARTIAL_GROUP.to_owned();
            executors::finish_unlaunched(tasks, step, &task_ref, state, reason, message);
        } else {
            end_unseen(tasks, step, &task_ref, PARTIAL_GROUP);
        }
    }
    sync_recovered(tasks, step);
    settle_recovered(tasks, step, rebooted, found_containers);
    corrections::release_revocable(tasks, step);
}

/// Syncs recovered records before anything is sent from them: their writer may have been killed before its sync.
fn sync_recovered(tasks: &mut Tasks, step: &mut Step<'_>) {
    let Some(agent) = step.agent_id().cloned() else {
        return;
    };
    let executors: Vec<_> = tasks.runs.all_executors().collect();
    let recovered = executors
        .iter()
        .flat_map(|executor| executor.tasks.values());
    let untold = recovered.filter(|task| tasks.updates.has_unacknowledged(&task.stream()));
    let tasks = untold.map(|task| task.key.clone()).collect();
    step.persist(Write::SyncRecovered { agent, tasks });
}

fn recover_run(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    framework: &Framework,
    run: RunImage,
    found_containers: &FoundContainers,
) -> Option<Executor> {
    let key = Arc::new(run.key);
    let mut images = run.tasks;
    images.sort_by_key(|image| image.record.accepted_unix_ns);
    let info = run.executor.as_ref();
    let info = info.map(|executor| Arc::new(executor.record.info.clone()));
    let kind = match &info {
        None => ExecutorKind::Command,
        Some(info) if info.r#type() == pb::executor_info::Type::Default => ExecutorKind::Default,
        Some(_) => ExecutorKind::Custom,
    };
    let recovered: Vec<Task> = images
        .iter()
        .map(|image| recover_task(tasks, step, framework, kind, &key, image, found_containers))
        .collect();
    let first = recovered.first();
    if kind == ExecutorKind::Command && first.is_none() {
        return None;
    }
    let log = match (&run.executor, images.first()) {
        (Some(executor), _) => executor.log.as_slice(),
        (None, Some(image)) => image.log.as_slice(),
        (None, None) => &[],
    };
    let mut container = recover_container(step, &key.container, log, found_containers);
    if kind == ExecutorKind::Command && first.is_some_and(Task::is_terminal) {
        container.phase = Phase::Ended;
    } else if recovered.iter().any(was_told_by_executor) {
        // Also if its log has lost the start.
        container.phase = Phase::Running;
    }
    let resources = match &info {
        Some(info) => recover_resources(key.executor.as_str(), &info.resources),
        None => Resources::default(),
    };
    let own = demand(&resources, &BTreeMap::new(), step.options.enforceable);
    let own = info.as_ref().map(|_| own.unwrap_or_default());
    let live = recovered.iter().filter(|task| !task.is_terminal());
    let demands = own.into_iter().chain(live.map(|task| task.demand));
    container.demand = combined(demands.clone());
    container.launched_revocable = kind_of_cpus(demands);
    register_containers(&mut tasks.runs, kind, &key, &recovered);
    let mut executor = Executor {
        kind,
        user: match (&info, first) {
            (None, Some(task)) => task.user.clone(),
            (info, _) => user_of(
                info.as_ref().and_then(|info| info.command.as_ref()),
                &framework.info,
            ),
        },
        role: role_of(&resources).or_else(|| first.and_then(|task| task.role.clone())),
        resources,
        info,
        container,
        tasks: BTreeMap::new(),
        completed: VecDeque::new(),
        completed_bytes: 0,
        orphaned: false,
        link: ExecutorLink::recovered(recovered.iter().any(|task| task.delivered)),
        key,
    };
    for mut task in recovered {
        let over = task.is_terminal() && !tasks.updates.has_unacknowledged(&task.stream());
        if over && kind != ExecutorKind::Command {
            executor.completed_bytes += task_bytes(&task);
            executor.completed.push_back(Arc::new(task));
        } else {
            if task.is_terminal() {
                task.ended_bytes = tasks.runs.count_recovered_end(&task);
            }
            executor.tasks.insert(task.key.task.clone(), Arc::new(task));
        }
    }
    let updates = &tasks.updates;
    let forgotten = tasks
        .runs
        .shorten_recovered(&mut executor, |stream| updates.has_unacknowledged(stream));
    for key in forgotten {
        step.persist(Write::RetireTask { key });
    }
    Some(executor)
}

fn register_containers(runs: &mut Runs, kind: ExecutorKind, key: &RunKey, tasks: &[Task]) {
    let alone = tasks.first().filter(|_| kind == ExecutorKind::Command);
    let alone = alone.map(|task| &task.key.task);
    runs.register_container(&key.container, key, alone);
    for task in tasks {
        if let Some(nested) = &task.nested {
            runs.register_container(&nested.id, key, Some(&task.key.task));
        }
    }
}

fn recover_resources(whose: &str, messages: &[pb::Resource]) -> Resources {
    convert::resources(messages).unwrap_or_else(|error| {
        warn!(whose, %error, "recovered resources cannot be read");
        Resources::default()
    })
}

/// Rebuilds a task and its update stream.
fn recover_task(
    tasks: &mut Tasks,
    step: &Step<'_>,
    framework: &Framework,
    kind: ExecutorKind,
    run: &Arc<RunKey>,
    image: &TaskImage,
    found_containers: &FoundContainers,
) -> Task {
    let record = &image.record;
    let resources = recover_resources(image.id.as_str(), &record.info.resources);
    let demand = demand(&resources, &record.info.limits, step.options.enforceable);
    let demand = demand.unwrap_or_default();
    let nested = record.nested_container.as_deref();
    let nested = nested.and_then(|id| ContainerId::new(id).ok());
    let mut task = Task {
        key: Arc::new(TaskKey {
            run: (**run).clone(),
            task: image.id.clone(),
        }),
        order: tasks.runs.next_order(),
        user: user_of(record.info.command.as_ref(), &framework.info),
        role: role_of(&resources),
        resources,
        info: Arc::new(record.info.clone()),
        state: pb::TaskState::TaskStaging,
        statuses: Vec::new(),
        sent: None,
        nested: nested.map(|id| Container {
            demand,
            ..recover_container(step, &id, &image.log, found_containers)
        }),
        demand,
        group: record.group.as_deref().map(Arc::from),
        // The core does not launch its own containers twice.
        delivered: kind != ExecutorKind::Custom,
        delivered_after: Lsn::default(),
        may_run_unknown: image.is_log_short,
        check_state: super::CheckState::default(),
        healthy: None,
        check_status: None,
        kill_asked: None,
        ended_bytes: 0,
    };
    replay(tasks, step, kind, &mut task, &image.log);
    if let Some(nested) = &mut task.nested {
        if is_terminal(task.state.into()) {
            nested.phase = Phase::Ended;
        } else if !task.statuses.is_empty() {
            nested.phase = Phase::Running;
        }
    }
    task
}

fn replay(
    tasks: &mut Tasks,
    step: &Step<'_>,
    kind: ExecutorKind,
    task: &mut Task,
    log: &[LogEntry],
) {
    let stream = task.stream();
    for entry in log {
        match entry {
            // Earlier versions wrote updates of an executor after the end of its task.
            LogEntry::Update(status) if task.is_terminal() && !is_terminal(status.state) => {}
            LogEntry::Update(status) => {
                task.record(status);
                task.sent
                    .get_or_insert((status.state, status.uuid.clone().unwrap_or_default()));
                let is_executors = kind == ExecutorKind::Custom;
                tasks.updates.push_recovered(
                    step.now.moment,
                    &stream,
                    status.clone(),
                    is_executors,
                );
            }
            LogEntry::Acknowledged(uuid) => {
                tasks.updates.acknowledge(step.now.moment, &stream, uuid);
            }
            LogEntry::Delivered(_) => task.delivered = true,
            LogEntry::KillRequested(request) => {
                let grace = i64::try_from(request.grace_ns).ok().filter(|ns| *ns > 0);
                task.kill_asked = Some(grace.map(|nanoseconds| pb::KillPolicy {
                    grace_period: Some(pb::DurationInfo { nanoseconds }),
                }));
            }
            LogEntry::Started(_) => {}
        }
    }
    if let Some(head) = tasks.updates.head(&stream) {
        task.sent = Some((head.state, head.uuid.clone().unwrap_or_default()));
    } else if let Some(last) = task.statuses.last() {
        task.sent = Some((last.state, last.uuid.clone().unwrap_or_default()));
    }
}

/// Settles every recovered run according to the state of its container.
fn settle_recovered(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    rebooted: bool,
    found_containers: &FoundContainers,
) {
    let all: Vec<_> = tasks.runs.all_executors().collect();
    for executor in all {
        for task in executor.tasks.values().filter(|task| task.is_terminal()) {
            let nested = task.nested.as_ref();
            let own = &executor.container.id;
            let of_task = nested.map_or(own, |nested| &nested.id);
            if nested.is_some() || executor.kind == ExecutorKind::Command {
                ending::forget(tasks, step, &of_task.clone());
            }
        }
        match executor.kind {
            ExecutorKind::Command => {
                settle_command(tasks, step, &executor, rebooted, found_containers)
            }
            _ => settle_executor(tasks, step, &executor, rebooted, found_containers),
        }
    }
    let frameworks: Vec<_> = tasks.runs.frameworks().keys().cloned().collect();
    for id in frameworks {
        status_updates::retire_framework_if_idle(tasks, step, &id);
    }
}

fn settle_command(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    rebooted: bool,
    found_containers: &FoundContainers,
) {
    let Some(task) = executor.tasks.values().next().cloned() else {
        return;
    };
    if task.is_terminal() {
        if !tasks.updates.has_unacknowledged(&task.stream()) {
            status_updates::retire(tasks, step, &executor.key);
        }
        return;
    }
    let task_ref = TaskRef {
        executor: executor.clone(),
        task,
    };
    settle_task(tasks, step, &task_ref, rebooted, found_containers);
}

/// Settles a task whose process is the main process of a container.
fn settle_task(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    rebooted: bool,
    found_containers: &FoundContainers,
) {
    let container = task_ref.container();
    match found_containers.get(&container.id) {
        _ if rebooted => end_unseen(tasks, step, task_ref, REBOOTED),
        Some(Found::Alive(_)) => resume_running(tasks, step, task_ref),
        // The containerizer destroys it and then reports its ending.
        Some(Found::Ending) => {}
        None if container.phase == Phase::Launching => {
            end_unseen(tasks, step, task_ref, NOT_LAUNCHED);
        }
        None => end_unseen(tasks, step, task_ref, GONE),
    }
}

fn settle_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    rebooted: bool,
    found_containers: &FoundContainers,
) {
    let fate = found_containers
        .get(&executor.container.id)
        .filter(|_| !rebooted);
    match fate {
        Some(Found::Alive(_)) => resume_executor(tasks, step, executor, found_containers),
        Some(Found::Ending) => {}
        None => {
            let why = if rebooted {
                REBOOTED
            } else if executor.container.phase == Phase::Launching {
                NOT_LAUNCHED
            } else {
                GONE
            };
            tasks.runs.change_executor(&executor.key, |executor| {
                executor.link.terminate(TerminationReason {
                    state: pb::TaskState::TaskFailed,
                    reason: Reason::AgentRestarted,
                    message: why.to_owned(),
                });
            });
            let ending = Ending {
                exit: Exit::Unknown(why.to_owned()),
                limitation: None,
                kill_requested: None,
            };
            // The registration that follows names only the live executors.
            if lifetimes::end_executor(tasks, step, executor, &ending).is_some() {
                lifetimes::forget_executor(tasks, step, &executor.key);
            }
        }
    }
}

fn resume_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    found_containers: &FoundContainers,
) {
    info!(
        framework_id = %executor.key.framework, executor_id = %executor.key.executor,
        container_id = %executor.key.container, "the executor goes on"
    );
    launch::restore_start(step, executor, None);
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.container.phase = Phase::Running;
    });
    if executor.kind == ExecutorKind::Default {
        for task in executor.tasks.values().filter(|task| !task.is_terminal()) {
            if let Some(task_ref) = tasks.runs.task_at(&task.key) {
                settle_task(tasks, step, &task_ref, false, found_containers);
            }
        }
    }
    for task in executor.undelivered() {
        if task.kill_asked.is_some()
            && let Some(task_ref) = tasks.runs.task_at(&task.key)
        {
            kill::kill_undelivered(tasks, step, &task_ref);
        }
    }
    match (executor.kind, executor.container.kill) {
        (ExecutorKind::Custom, Some(kill)) => step.set_timer(
            step.now.moment + kill.grace,
            Timer::ExecutorShutdown(executor.container.id.clone()),
        ),
        (_, Some(_)) => kill::send_kill(tasks, step, &executor.container.id, Duration::ZERO),
        (_, None) => reconcile::reconcile_executor(tasks, step, &executor.key),
    }
}

fn end_unseen(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef, message: &str) {
    ending::finish_task(
        tasks,
        step,
        task_ref,
        pb::TaskState::TaskFailed,
        Source::Agent,
        Some(Reason::AgentRestarted),
        Some(message.to_owned()),
        None,
    );
}

fn resume_running(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    let container = task_ref.container();
    info!(
        framework_id = %task_ref.executor.key.framework,
        task_id = %task_ref.task.key.task,
        container_id = %container.id,
        "the task goes on"
    );
    launch::restore_start(step, &task_ref.executor, Some(task_ref));
    if container.kill.is_none() {
        // The task ran, but the agent may have crashed before it sent that update.
        launch::tell_running(tasks, step, task_ref);
    }
    if let Some(kill) = container.kill {
        kill::send_kill(tasks, step, &container.id, kill.grace);
    } else {
        launch::arm_completion_time(tasks, step, task_ref);
        checks::arm_checks(tasks, step, task_ref);
    }
}

/// Restores a container from its log and its state on the machine.
fn recover_container(
    step: &Step<'_>,
    id: &ContainerId,
    log: &[LogEntry],
    found_containers: &FoundContainers,
) -> Container {
    let boot_clock = &step.options.boot_clock;
    let started = log.iter().rev().find_map(|entry| match entry {
        LogEntry::Started(started) => Some(started),
        _ => None,
    });
    let kill = log.iter().rev().find_map(|entry| match entry {
        LogEntry::KillRequested(request) => Some(remaining_kill(boot_clock, step.now, request)),
        _ => None,
    });
    let supervisor = match found_containers.get(id) {
        Some(Found::Alive(identity)) => Some(identity.clone()),
        _ => None,
    };
    let phase = if started.is_some() || supervisor.is_some() {
        Phase::Running
    } else {
        Phase::Launching
    };
    Container {
        phase,
        supervisor,
        pid: started
            .map(|started| started.task_pid)
            .filter(|pid| *pid > 0),
        ran_before: started.and_then(|started| time_since_start(boot_clock, step.now, started)),
        kill,
        ..Container::new(id.clone(), Demand::default())
    }
}

/// Whether the task has a status that only its executor could send.
fn was_told_by_executor(task: &Task) -> bool {
    let mut told = task.statuses.iter();
    told.any(|status| status.source() == Source::Executor)
}

/// The rest of a kill that was requested before the restart.
fn remaining_kill(boot_clock: &BootClock, now: Now, request: &KillRequested) -> Kill {
    let boot = request.boot_id.as_deref().map(BootId::from_text);
    let uptime = boot.zip(request.uptime_ns);
    let by_uptime = uptime.and_then(|(boot, uptime_ns)| boot_clock.since(now, &boot, uptime_ns));
    // Records of earlier versions contain only the time of the wall clock.
    let at_unix = Duration::from_nanos(request.at_unix_ns);
    let elapsed = by_uptime.unwrap_or_else(|| now.unix.saturating_sub(at_unix));
    Kill {
        cause: KillCause::try_from(request.cause).unwrap_or(KillCause::Unknown),
        during_launch: false,
        deadline: None,
        grace: Duration::from_nanos(request.grace_ns).saturating_sub(elapsed),
    }
}

/// The time since the start of a container; `None` if it started in another boot, or its record lacks the time.
fn time_since_start(boot_clock: &BootClock, now: Now, started: &Started) -> Option<Duration> {
    let supervisor = ProcessIdentity::from_text(&started.supervisor)?;
    boot_clock.since(now, &supervisor.boot_id, started.uptime_ns?)
}

#[cfg(test)]
mod tests {
    use meseta_resources::Moment;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Now = Now {
        moment: Moment::ORIGIN,
        unix: Duration::from_secs(1_800_000_000),
    };

    /// Earlier versions recorded only the wall clock, and uptimes of different boots are never compared.
    #[test]
    fn record_without_uptime_uses_wall_clock() {
        let boot_clock = BootClock::new(BootId::from_text("b"), 100 * SECOND);
        let asked = KillRequested {
            grace_ns: 10_000_000_000,
            at_unix_ns: u64::try_from((NOW.unix - 4 * SECOND).as_nanos()).expect("a time"),
            ..KillRequested::default()
        };
        let grace = |boot_id: Option<&str>| {
            let request = KillRequested {
                uptime_ns: Some(97_000_000_000),
                boot_id: boot_id.map(str::to_owned),
                ..asked.clone()
            };
            remaining_kill(&boot_clock, NOW, &request).grace
        };
        assert_eq!(remaining_kill(&boot_clock, NOW, &asked).grace, 6 * SECOND);
        assert_eq!([None, Some("a")].map(grace), [6 * SECOND; 2]);
        assert_eq!(grace(Some("b")), 7 * SECOND);

        let ran = |supervisor: &str, uptime_ns| {
            let started = Started {
                supervisor: supervisor.to_owned(),
                uptime_ns,
                ..Started::default()
            };
            time_since_start(&boot_clock, NOW, &started)
        };
        let uptime_ns = Some(60_000_000_000);
        assert_eq!(ran("7 5 b", uptime_ns), Some(40 * SECOND));
        assert_eq!(ran("7 5 a", uptime_ns), None);
        assert_eq!(ran("7 5 b", None), None);
    }
}
