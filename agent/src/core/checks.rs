//! Checks and health checks: schedules the probes of a task, and reports their results.
//!
//! The containerizer runs one probe at a time ([`Probe`]). The core keeps the clock, counts failures and sends updates
//! to the scheduler. A health check that fails too often in a row ends its task; a check never does. Invariants: no
//! probe runs before its delay or after a kill. A check reports only changes; a health check also reports every counted
//! failure. An update without room is replaced by that of the next probe. A failure of the agent to probe, or a frozen
//! task, is no failure of the task.

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::check_status_info as status_of;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::ContainerId;
use tracing::{info, warn};

use super::kill::grace_of_task;
use super::model::{Phase, TaskRef};
use super::probe::{CheckKind, CheckState, Probe, ProbeHost, ProbeId, ProbeMethod, ProbeResult};
use super::tasks::Tasks;
use super::update_streams::Pushed;
use super::{
    ContainerAction, Destination, LaunchPlan, Step, Subject, Timer, kill, launch, status_updates,
};
use crate::checkpoint::KillCause;

/// The shortest interval between two probes, even if a task requests a shorter one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest timeout, also used for an unset one: long enough for any check, but finite.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Converts seconds. Values beyond the range of durations, such as infinity, become a duration that never ends. A task
/// with a negative value has been refused.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

struct Times {
    delay: Duration,
    interval: Duration,
    timeout: Duration,
}

fn times(info: &pb::TaskInfo, check_kind: CheckKind) -> Option<Times> {
    let (delay, interval, timeout) = match check_kind {
        CheckKind::Health => {
            let check = info.health_check.as_ref()?;
            (
                check.delay_seconds(),
                check.interval_seconds(),
                check.timeout_seconds(),
            )
        }
        CheckKind::Check => {
            let check = info.check.as_ref()?;
            (
                check.delay_seconds(),
                check.interval_seconds(),
                check.timeout_seconds(),
            )
        }
    };
    let timeout = seconds(timeout);
    Some(Times {
        delay: seconds(delay),
        interval: seconds(interval).max(PAUSE_MIN),
        timeout: if timeout.is_zero() {
            TIMEOUT_MAX
        } else {
            timeout.min(TIMEOUT_MAX)
        },
    })
}

/// Schedules the probes of a running task.
pub(super) fn arm_checks(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    tasks.runs.change_task(&task_ref.task.key, |task| {
        let was_healthy = task.healthy == Some(true);
        task.check_state = CheckState::begin(step.now.moment, was_healthy);
    });
    for check_kind in [CheckKind::Health, CheckKind::Check] {
        if let Some(times) = times(&task_ref.task.info, check_kind) {
            let container = task_ref.container().id.clone();
            step.set_timer(
                step.now.moment + times.delay,
                Timer::Probe(container, check_kind),
            );
        }
    }
}

pub(super) fn probe_due(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    check_kind: CheckKind,
) {
    let Some(task_ref) = tasks.runs.task_of(container) else {
        return;
    };
    if task_ref.container().phase != Phase::Running || task_ref.container().kill.is_some() {
        return;
    }
    let Some(times) = times(&task_ref.task.info, check_kind) else {
        return;
    };
    if tasks
        .corrections
        .is_frozen(&task_ref.executor.key.container)
    {
        // A frozen task could not answer, which does not show that it is unhealthy.
        let next = Timer::Probe(container.clone(), check_kind);
        return step.set_timer(step.now.moment + times.interval, next);
    }
    let id = tasks.probes.next();
    let Some(method) = probe_method(&task_ref, check_kind, id) else {
        return;
    };
    tasks.runs.change_task(&task_ref.task.key, |task| {
        task.check_state.set_probe(check_kind, Some(id));
    });
    let probe = Probe {
        id,
        container: container.clone(),
        user: task_ref.task.user.clone(),
        method,
        timeout: times.timeout,
    };
    step.output_now(
        Destination::Container(container.clone()),
        ContainerAction::Probe(Box::new(probe)),
    );
}

fn probe_method(task_ref: &TaskRef, check_kind: CheckKind, id: ProbeId) -> Option<ProbeMethod> {
    let info = &*task_ref.task.info;
    if check_kind == CheckKind::Health {
        let check = info.health_check.as_ref()?;
        return match check.r#type() {
            pb::health_check::Type::Command => Some(command_probe(
                task_ref,
                check_kind,
                check.command.as_ref()?,
                id,
            )),
            pb::health_check::Type::Http => {
                let http = check.http.as_ref()?;
                Some(ProbeMethod::Http {
                    scheme: http.scheme.as_deref().unwrap_or("http").to_owned(),
                    host: host_of(http.protocol),
                    port: u16::try_from(http.port).ok()?,
                    path: http.path.clone().unwrap_or_default(),
                })
            }
            pb::health_check::Type::Tcp => {
                let tcp = check.tcp.as_ref()?;
                Some(ProbeMethod::Tcp {
                    host: host_of(tcp.protocol),
                    port: u16::try_from(tcp.port).ok()?,
                })
            }
            pb::health_check::Type::Unknown => None,
        };
    }
    let check = info.check.as_ref()?;
    match check.r#type() {
        pb::check_info::Type::Command => {
            let command = &check.command.as_ref()?.command;
            Some(command_probe(task_ref, check_kind, command, id))
        }
        pb::check_info::Type::Http => {
            let http = check.http.as_ref()?;
            Some(ProbeMethod::Http {
                scheme: "http".to_owned(),
                host: ProbeHost::Usual,
                port: u16::try_from(http.port).ok()?,
                path: http.path.clone().unwrap_or_default(),
            })
        }
        pb::check_info::Type::Tcp => Some(ProbeMethod::Tcp {
            host: ProbeHost::Usual,
            port: u16::try_from(check.tcp.as_ref()?.port).ok()?,
        }),
        pb::check_info::Type::Unknown => None,
    }
}

/// The check's command, as the task's user and with its environment, in its container.
fn command_probe(
    task_ref: &TaskRef,
    check_kind: CheckKind,
    command: &pb::CommandInfo,
    id: ProbeId,
) -> ProbeMethod {
    let info = probed_task(&task_ref.task.info, command);
    let inside = &task_ref.container().id;
    let kind = match check_kind {
        CheckKind::Health => "health-check",
        CheckKind::Check => "check",
    };
    let container = inside.child(&format!("{kind}-{}", id.0)).ok();
    ProbeMethod::Command(Box::new(LaunchPlan {
        run: task_ref.executor.key.clone(),
        container: container.unwrap_or_else(|| inside.clone()),
        subject: Subject::Task(info.into()),
        user: task_ref.task.user.clone(),
        role: task_ref.task.role.clone(),
        demand: task_ref.container().demand,
        resources: task_ref.task.resources.clone(),
        volumes: Vec::new(),
        parent_volumes: Vec::new(),
    }))
}

pub(super) fn probed(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    id: ProbeId,
    result: ProbeResult,
) {
    let Some(task_ref) = tasks.runs.task_of(container) else {
        return;
    };
    let Some(check_kind) = task_ref.task.check_state.kind_of(id) else {
        return;
    };
    tasks.runs.change_task(&task_ref.task.key, |task| {
        task.check_state.set_probe(check_kind, None);
    });
    if task_ref.container().phase != Phase::Running || task_ref.container().kill.is_some() {
        return;
    }
    if let Some(times) = times(&task_ref.task.info, check_kind) {
        let next = Timer::Probe(container.clone(), check_kind);
        step.set_timer(step.now.moment + times.interval, next);
    }
    let unsure = match &result {
        ProbeResult::NotRun(why) => Some(why.as_str()),
        ProbeResult::NoAnswer(_) | ProbeResult::Connected(false) if tasks.probes.was_paused(id) => {
            Some("the agent was paused meanwhile")
        }
        seen if !is_success(seen)
            && tasks
                .corrections
                .interrupted(&task_ref.executor.key.container, id) =>
        {
            Some("the task was frozen or thawed meanwhile")
        }
        _ => None,
    };
    if let Some(why) = unsure {
        warn!(task_id = %task_ref.task.key.task, why, "a check could not be run; trying again");
        return;
    }
    match check_kind {
        CheckKind::Health => apply_health_result(tasks, step, &task_ref, &result),
        CheckKind::Check => apply_check_result(tasks, step, &task_ref, &result),
    }
}

fn apply_health_result(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    result: &ProbeResult,
) {
    let Some(check) = task_ref.task.info.health_check.as_ref() else {
        return debug_assert!(false, "a probed task has the check");
    };
    let check_state = &task_ref.task.check_state;
    if is_success(result) {
        let is_news = check_state.is_success_news();
        tasks.runs.change_task(&task_ref.task.key, |task| {
            task.check_state.note_success();
            task.healthy = Some(true);
        });
        if is_news {
            tell_check(tasks, step, task_ref, CheckKind::Health);
        }
        return;
    }
    let grace = seconds(check.grace_period_seconds());
    if check_state.is_in_grace(step.now.moment, grace) {
        info!(task_id = %task_ref.task.key.task, ?result, "a failed health check does not count yet");
        return;
    }
    let failures = check_state.failures_with_next();
    warn!(task_id = %task_ref.task.key.task, failures, ?result, "a health check failed");
    tasks.runs.change_task(&task_ref.task.key, |task| {
        task.check_state.note_failure();
        task.healthy = Some(false);
    });
    tell_check(tasks, step, task_ref, CheckKind::Health);
    if failures >= check.consecutive_failures()
        && let Some(task_ref) = tasks.runs.task_at(&task_ref.task.key)
    {
        kill::kill(
            tasks,
            step,
            &task_ref,
            KillCause::Unhealthy,
            grace_of_task(&task_ref),
        );
    }
}

fn apply_check_result(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    result: &ProbeResult,
) {
    let Some(mut status) = empty_status(&task_ref.task.info) else {
        return debug_assert!(false, "a probed task has the check");
    };
    match result {
        ProbeResult::ExitCode(code) => {
            status.command = Some(status_of::Command {
                exit_code: Some(*code),
            });
        }
        ProbeResult::Status(code) => {
            status.http = Some(status_of::Http {
                status_code: Some(*code),
            });
        }
        ProbeResult::Connected(succeeded) => {
            status.tcp = Some(status_of::Tcp {
                succeeded: Some(*succeeded),
            });
        }
        ProbeResult::NoAnswer(why) | ProbeResult::NotRun(why) => {
            info!(task_id = %task_ref.task.key.task, why, "a check got no answer");
        }
    }
    if task_ref.task.check_status.as_ref() == Some(&status)
        && !task_ref.task.check_state.is_untold(CheckKind::Check)
    {
        return;
    }
    tasks
        .runs
        .change_task(&task_ref.task.key, |task| task.check_status = Some(status));
    tell_check(tasks, step, task_ref, CheckKind::Check);
}

/// Sends the result of a probe. Without room for the update, notes that the next probe must send its result.
fn tell_check(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef, check_kind: CheckKind) {
    let Some(task_ref) = tasks.runs.task_at(&task_ref.task.key) else {
        return debug_assert!(false, "a probed task is here");
    };
    let running = pb::TaskState::TaskRunning;
    let mut status = launch::executor_status(step, &task_ref, running, task_ref.container().pid);
    let reason = match check_kind {
        CheckKind::Health => Reason::TaskHealthCheckStatusUpdated,
        CheckKind::Check => Reason::TaskCheckStatusUpdated,
    };
    status.reason = Some(reason.into());
    let told = status_updates::update_task(tasks, step, &task_ref.task.key, status);
    tasks.runs.change_task(&task_ref.task.key, |task| {
        let is_untold = told == Some(Pushed::Full);
        task.check_state.note_told(check_kind, !is_untold);
    });
}

/// The parts of a task that the check's command needs: its environment, unless the check overrides it. Called for each
/// probe in the step of the core, so that it copies only these parts of a possibly large task.
fn probed_task(task: &pb::TaskInfo, command: &pb::CommandInfo) -> pb::TaskInfo {
    let own = task.command.as_ref();
    let own = own.and_then(|command| command.environment.as_ref());
    let mut variables = own.map_or_else(Vec::new, |own| own.variables.clone());
    let mut command = command.clone();
    variables.extend(command.environment.take().unwrap_or_default().variables);
    command.environment = Some(pb::Environment { variables });
    pb::TaskInfo {
        task_id: task.task_id.clone(),
        command: Some(command),
        ..pb::TaskInfo::default()
    }
}

fn is_success(result: &ProbeResult) -> bool {
    match result {
        ProbeResult::ExitCode(code) => *code == 0,
        ProbeResult::Status(status) => (200..400).contains(status),
        ProbeResult::Connected(connected) => *connected,
        ProbeResult::NoAnswer(_) | ProbeResult::NotRun(_) => false,
    }
}

/// The status of a check before its first result: only its type.
pub(super) fn empty_status(info: &pb::TaskInfo) -> Option<pb::CheckStatusInfo> {
    let kind = info.check.as_ref()?.r#type();
    Some(pb::CheckStatusInfo {
        r#type: Some(kind.into()),
        command: (kind == pb::check_info::Type::Command).then(Default::default),
        http: (kind == pb::check_info::Type::Http).then(Default::default),
        tcp: (kind == pb::check_info::Type::Tcp).then(Default::default),
    })
}

/// The address for the `protocol` of a health check.
fn host_of(protocol: Option<i32>) -> ProbeHost {
    use pb::network_info::Protocol;
    match protocol.map(Protocol::try_from) {
        Some(Ok(Protocol::IPv4)) => ProbeHost::V4,
        Some(Ok(Protocol::IPv6)) => ProbeHost::V6,
        None | Some(Err(_)) => ProbeHost::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(value: &str, variables: &[(&str, &str)]) -> pb::CommandInfo {
        let variable = |(name, value): &(&str, &str)| pb::environment::Variable {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            ..pb::environment::Variable::default()
        };
        pb::CommandInfo {
            value: Some(value.to_owned()),
            environment: Some(pb::Environment {
                variables: variables.iter().map(variable).collect(),
            }),
            ..pb::CommandInfo::default()
        }
    }

    /// Regression: the core copied megabytes of labels ten times a second.
    #[test]
    fn check_copies_only_needed_task_parts() {
        let label = pb::Label {
            key: "k".to_owned(),
            value: None,
        };
        let task_id = pb::TaskId {
            value: "t".to_owned(),
        };
        let task = pb::TaskInfo {
            task_id: task_id.clone(),
            command: Some(command("serve", &[("A", "1"), ("B", "2")])),
            container: Some(Box::default()),
            labels: Some(pb::Labels {
                labels: vec![label],
            }),
            ..pb::TaskInfo::default()
        };
        let probed = probed_task(&task, &command("look", &[("B", "3")]));
        let expected = pb::TaskInfo {
            task_id,
            command: Some(command("look", &[("A", "1"), ("B", "2"), ("B", "3")])),
            ..pb::TaskInfo::default()
        };
        assert_eq!(probed, expected);
    }
}
