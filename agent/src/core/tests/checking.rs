//! Health checks and checks: the schedule of probes, and the reactions to their results.

use std::time::Duration;

use meseta_estimators::Action;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskError, TaskKilled, TaskKilling, TaskRunning};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, FrameworkId, TaskId};

use super::oversubscribing::{correction, oversubscribed};
use super::simulation::{FRAMEWORK, Seen, Simulation, task};
use crate::core::{Exit, Input, Probe, ProbeHost, ProbeMethod, ProbeResult, Pushed, StreamKey};

const SECOND: Duration = Duration::from_secs(1);

fn command() -> pb::CommandInfo {
    pb::CommandInfo {
        value: Some("check".to_owned()),
        ..pb::CommandInfo::default()
    }
}

fn health(consecutive_failures: u32, grace: f64) -> pb::HealthCheck {
    pb::HealthCheck {
        r#type: Some(pb::health_check::Type::Command.into()),
        command: Some(command()),
        delay_seconds: Some(3.0),
        interval_seconds: Some(10.0),
        timeout_seconds: Some(5.0),
        consecutive_failures: Some(consecutive_failures),
        grace_period_seconds: Some(grace),
        ..pb::HealthCheck::default()
    }
}

fn checked(change: impl FnOnce(&mut pb::TaskInfo)) -> (Simulation, ContainerId) {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    change(&mut info);
    let container = simulation.running(info);
    (simulation, container)
}

impl Simulation {
    fn probe(&mut self) -> Option<Probe> {
        let at = self
            .seen
            .iter()
            .position(|seen| matches!(seen, Seen::Probe(_)))?;
        match self.seen.remove(at) {
            Seen::Probe(probe) => Some(*probe),
            _ => None,
        }
    }

    fn sees(&mut self, probe: &Probe, result: ProbeResult) -> Vec<pb::TaskStatus> {
        self.step(Input::Probed {
            container: probe.container.clone(),
            id: probe.id,
            result,
        });
        self.acknowledge_all()
    }

    /// Advances the time to the next probe and answers it.
    fn next(&mut self, after: Duration, result: ProbeResult) -> Vec<pb::TaskStatus> {
        self.advance(after);
        let probe = self.probe().expect("a look is due");
        assert!(self.probe().is_none(), "one look at a time");
        self.sees(&probe, result)
    }
}

#[test]
fn check_waits_delay_then_interval() {
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(3, 0.0).into()));
    simulation.advance(3 * SECOND - Duration::from_millis(1));
    assert!(simulation.probe().is_none());
    simulation.advance(Duration::from_millis(1));
    let probe = simulation.probe().expect("due");
    assert_eq!(probe.timeout, 5 * SECOND);
    let ProbeMethod::Command(plan) = &probe.method else {
        panic!("{probe:?}");
    };
    assert!(
        plan.container
            .as_str()
            .starts_with(probe.container.as_str())
    );
    assert_eq!(
        plan.command().and_then(|one| one.value.clone()),
        command().value
    );
    // No other probe runs at the same time.
    simulation.advance(30 * SECOND);
    assert!(simulation.probe().is_none());
    simulation.sees(&probe, ProbeResult::ExitCode(0));
    simulation.advance(10 * SECOND - Duration::from_millis(1));
    assert!(simulation.probe().is_none());
    simulation.advance(Duration::from_millis(1));
    assert!(simulation.probe().is_some());
}

/// Regression: infinity counted as zero, with ten probes a second, and a task was killed in its endless grace period.
#[test]
fn infinite_check_delay_never_ends() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    for endless in [f64::INFINITY, f64::MAX] {
        let with = |change: fn(&mut pb::HealthCheck, f64)| {
            let mut health = health(1, 0.0);
            change(&mut health, endless);
            checked(|info| info.health_check = Some(health.into())).0
        };
        let mut simulation = with(|health, endless| health.delay_seconds = Some(endless));
        simulation.advance(YEAR);
        assert!(simulation.probe().is_none());
        let mut simulation = with(|health, endless| health.interval_seconds = Some(endless));
        simulation.next(3 * SECOND, ProbeResult::ExitCode(0));
        simulation.advance(YEAR);
        assert!(simulation.probe().is_none());
        let mut simulation = with(|health, endless| health.grace_period_seconds = Some(endless));
        let told = simulation.next(3 * SECOND, ProbeResult::ExitCode(1));
        assert!(told.is_empty() && simulation.killed.is_empty());
        assert!(simulation.next(YEAR, ProbeResult::ExitCode(1)).is_empty());
    }
}

/// Regression: a frozen task could not answer, and was killed.
#[test]
fn frozen_task_is_not_checked() {
    let mut info = oversubscribed("t", 1.0);
    info.health_check = Some(health(1, 0.0).into());
    let mut simulation = Simulation::registered();
    simulation.running(info);
    simulation.advance(3 * SECOND);
    let begun = simulation.probe().expect("due");
    simulation.correct(correction(Action::Freeze, "t"));
    let no_answer = || ProbeResult::NoAnswer("timeout".to_owned());
    assert!(simulation.sees(&begun, no_answer()).is_empty());
    simulation.advance(60 * SECOND);
    assert!(simulation.probe().is_none());
    simulation.correct(correction(Action::Thaw, "t"));
    let told = simulation.next(10 * SECOND, no_answer());
    assert_eq!(told[0].healthy, Some(false));
}

#[test]
fn health_changes_and_failures_are_sent() {
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(9, 0.0).into()));
    let told = simulation.next(3 * SECOND, ProbeResult::ExitCode(0));
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), TaskRunning);
    assert_eq!(told[0].reason(), Reason::TaskHealthCheckStatusUpdated);
    assert_eq!(told[0].healthy, Some(true));
    assert!(
        simulation
            .next(10 * SECOND, ProbeResult::ExitCode(0))
            .is_empty()
    );
    for _ in 0..2 {
        let told = simulation.next(10 * SECOND, ProbeResult::ExitCode(1));
        assert_eq!(told[0].healthy, Some(false));
    }
    let told = simulation.next(10 * SECOND, ProbeResult::ExitCode(0));
    assert_eq!(told[0].healthy, Some(true));
}

#[test]
fn unhealthy_end_outlives_unacknowledged_failures() {
    let (mut simulation, container) =
        checked(|info| info.health_check = Some(health(1_300, 0.0).into()));
    simulation.take_updates();
    simulation.advance(3 * SECOND);
    for _ in 0..1_300 {
        let probe = simulation.probe().expect("a look is due");
        simulation.step(Input::Probed {
            container: probe.container,
            id: probe.id,
            result: ProbeResult::ExitCode(1),
        });
        simulation.advance(10 * SECOND);
    }
    assert_eq!(simulation.kills(), [3 * SECOND]);
    simulation.end(&container, Exit::Signal(15));
    assert_eq!(
        simulation.core.snapshot().counters.invalid_status_updates,
        0
    );
    // A restarted agent reads the same from its log.
    simulation.crash(false);
    simulation.take_updates();
    simulation.register();
    let told = simulation.acknowledge_all();
    let ends = told.iter().filter(|one| one.state() == TaskKilled).count();
    assert_eq!(ends, 1, "{told:?}");
    assert!(told.len() <= 4, "the last failure stands for all: {told:?}");
    let failures = told.iter().filter(|one| {
        one.reason() == Reason::TaskHealthCheckStatusUpdated && one.healthy == Some(false)
    });
    assert!(failures.count() >= 1);
}

#[test]
fn consecutive_failures_kill_the_task() {
    let (mut simulation, container) =
        checked(|info| info.health_check = Some(health(2, 0.0).into()));
    simulation.next(3 * SECOND, ProbeResult::ExitCode(1));
    simulation.next(10 * SECOND, ProbeResult::ExitCode(0));
    simulation.next(
        10 * SECOND,
        ProbeResult::NoAnswer("it took too long".to_owned()),
    );
    assert!(simulation.kills().is_empty());
    simulation.next(10 * SECOND, ProbeResult::ExitCode(7));
    assert_eq!(simulation.kills(), [3 * SECOND]);
    // Not longer than the ping timeout of the master.
    simulation.advance(20 * SECOND);
    assert!(simulation.probe().is_none());
    simulation.end(&container, Exit::Signal(15));
    let told = simulation.acknowledge_all();
    assert_eq!(told[0].state(), TaskKilled);
    assert_eq!(told[0].healthy, Some(false));
}

#[test]
fn grace_failures_are_ignored_until_success() {
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(1, 20.0).into()));
    assert!(
        simulation
            .next(3 * SECOND, ProbeResult::ExitCode(1))
            .is_empty()
    );
    assert!(
        simulation
            .next(10 * SECOND, ProbeResult::ExitCode(1))
            .is_empty()
    );
    assert!(simulation.kills().is_empty());
    // 23 s: the grace period is over.
    simulation.next(10 * SECOND, ProbeResult::ExitCode(1));
    assert_eq!(simulation.kills().len(), 1);

    let (mut simulation, _) = checked(|info| info.health_check = Some(health(1, 60.0).into()));
    simulation.next(3 * SECOND, ProbeResult::ExitCode(0));
    simulation.next(10 * SECOND, ProbeResult::ExitCode(1));
    assert_eq!(simulation.kills().len(), 1);
}

#[test]
fn http_and_tcp_success_criteria() {
    for (result, healthy) in [
        (ProbeResult::Status(200), true),
        (ProbeResult::Status(399), true),
        (ProbeResult::Status(400), false),
        (ProbeResult::Status(199), false),
        (ProbeResult::Connected(true), true),
        (ProbeResult::Connected(false), false),
    ] {
        let (mut simulation, _) = checked(|info| {
            info.health_check = Some(
                pb::HealthCheck {
                    r#type: Some(pb::health_check::Type::Http.into()),
                    http: Some(pb::health_check::HttpCheckInfo {
                        port: 80,
                        path: Some("/health".to_owned()),
                        ..Default::default()
                    }),
                    grace_period_seconds: Some(0.0),
                    ..pb::HealthCheck::default()
                }
                .into(),
            );
        });
        // The default delay.
        simulation.advance(15 * SECOND);
        let probe = simulation.probe().expect("due");
        assert_eq!(probe.timeout, 20 * SECOND);
        let ProbeMethod::Http {
            scheme,
            host,
            port,
            path,
        } = &probe.method
        else {
            panic!("{probe:?}");
        };
        assert_eq!(*host, ProbeHost::Usual);
        let url = ProbeHost::V4.url(scheme, *port, path);
        assert_eq!(url, "http://127.0.0.1:80/health");
        let url = ProbeHost::V6.url(scheme, *port, path);
        assert_eq!(url, "http://[::1]:80/health");
        let told = simulation.sees(&probe, result.clone());
        assert_eq!(told[0].healthy, Some(healthy), "{result:?}");
    }
}

#[test]
fn check_reports_changes_and_never_kills() {
    let (mut simulation, container) = checked(|info| {
        info.check = Some(
            pb::CheckInfo {
                r#type: Some(pb::check_info::Type::Command.into()),
                command: Some(pb::check_info::Command { command: command() }),
                delay_seconds: Some(0.0),
                interval_seconds: Some(1.0),
                ..pb::CheckInfo::default()
            }
            .into(),
        );
    });
    let code = |told: &[pb::TaskStatus]| {
        let status = told[0].check_status.as_ref().expect("a check status");
        status.command.as_ref().expect("of a command").exit_code
    };
    // The RUNNING update contained the type, but no result.
    let snapshot = simulation.core.snapshot();
    let running = snapshot.tasks().next().expect("a task").statuses.clone();
    assert_eq!(code(&running[1..]), None);
    let told = simulation.next(Duration::ZERO, ProbeResult::ExitCode(0));
    assert_eq!(told[0].reason(), Reason::TaskCheckStatusUpdated);
    assert_eq!(told[0].healthy, None);
    assert_eq!(code(&told), Some(0));
    assert!(simulation.next(SECOND, ProbeResult::ExitCode(0)).is_empty());
    assert_eq!(
        code(&simulation.next(SECOND, ProbeResult::ExitCode(1))),
        Some(1)
    );
    let told = simulation.next(SECOND, ProbeResult::NoAnswer("it took too long".to_owned()));
    assert_eq!(code(&told), None);
    assert!(simulation.kills().is_empty());
    // The terminal update carries the last result.
    simulation.next(SECOND, ProbeResult::ExitCode(5));
    simulation.end(&container, Exit::Code(0));
    assert_eq!(code(&simulation.acknowledge_all()), Some(5));
}

#[test]
fn reconciliation_includes_check_and_health() {
    let (mut simulation, _) = checked(|info| {
        info.health_check = Some(health(3, 0.0).into());
        info.check = Some(
            pb::CheckInfo {
                r#type: Some(pb::check_info::Type::Tcp.into()),
                tcp: Some(pb::check_info::Tcp { port: 80 }),
                delay_seconds: Some(1.0),
                interval_seconds: Some(100.0),
                ..pb::CheckInfo::default()
            }
            .into(),
        );
    });
    let told = simulation.next(SECOND, ProbeResult::Connected(true));
    assert_eq!(told[0].healthy, None);
    let told = simulation.next(2 * SECOND, ProbeResult::ExitCode(0));
    assert_eq!(told[0].healthy, Some(true));
    let tcp = told[0].check_status.and_then(|status| status.tcp);
    assert_eq!(tcp.and_then(|tcp| tcp.succeeded), Some(true));
    // The same holds after a restart of the agent.
    simulation.restart();
    let snapshot = simulation.core.snapshot();
    let task = snapshot.tasks().next().expect("the task");
    assert_eq!(task.healthy, Some(true));
    assert!(task.check_status.is_some());
    simulation.advance(3 * SECOND);
    assert!(simulation.probe().is_some());
}

#[test]
fn ending_task_is_not_checked() {
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(1, 0.0).into()));
    simulation.advance(3 * SECOND);
    let probe = simulation.probe().expect("due");
    simulation.kill("t", None);
    assert!(simulation.sees(&probe, ProbeResult::ExitCode(1)).is_empty());
    simulation.advance(60 * SECOND);
    assert!(simulation.probe().is_none());
}

#[test]
fn invalid_checks_get_mesos_errors() {
    type Change = Box<dyn FnOnce(&mut pb::HealthCheck)>;
    let cases: Vec<(Change, &str)> = vec![
        (Box::new(|one| one.r#type = None), "must specify 'type'"),
        (
            Box::new(|one| one.command = None),
            "Expecting 'command' to be set for COMMAND health check",
        ),
        (
            Box::new(|one| one.command = Some(pb::CommandInfo::default())),
            "Command health check must contain 'shell command'",
        ),
        (
            Box::new(|one| one.r#type = Some(pb::health_check::Type::Http.into())),
            "Expecting 'http' to be set",
        ),
        (
            Box::new(|one| one.r#type = Some(pb::health_check::Type::Tcp.into())),
            "Expecting 'tcp' to be set",
        ),
        (
            Box::new(|one| one.timeout_seconds = Some(-1.0)),
            "Expecting 'timeout_seconds' to be non-negative",
        ),
    ];
    for (spoil, message) in cases {
        let mut simulation = Simulation::registered();
        let mut info = task("t");
        let mut check = health(1, 0.0);
        spoil(&mut check);
        info.health_check = Some(check.into());
        simulation.run(info);
        let told = simulation.acknowledge_all();
        assert_eq!(told[0].state(), TaskError);
        let text = told[0].message.clone().unwrap_or_default();
        assert!(text.contains(message), "{text} lacks {message}");
    }
}

/// Regression: a timeout of 10^19 seconds was added to the clock, after the check's command had been begun.
#[test]
fn check_timeout_is_at_most_hour() {
    for seconds in [0.0, 3_601.0, 1e19, f64::MAX, f64::INFINITY] {
        let (mut simulation, _) = checked(|info| {
            let mut check = health(1, 0.0);
            check.timeout_seconds = Some(seconds);
            info.health_check = Some(check.into());
        });
        simulation.advance(3 * SECOND);
        let probe = simulation.probe().expect("due");
        assert_eq!(probe.timeout, Duration::from_secs(3_600), "{seconds}");
    }
}

#[test]
fn failed_probe_leaves_task_state() {
    let not_taken = || ProbeResult::NotRun("too many open files".to_owned());
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(1, 0.0).into()));
    assert!(simulation.next(3 * SECOND, not_taken()).is_empty());
    for _ in 0..5 {
        assert!(simulation.next(10 * SECOND, not_taken()).is_empty());
    }
    assert!(simulation.kills().is_empty());
    simulation.next(10 * SECOND, ProbeResult::ExitCode(1));
    assert_eq!(simulation.kills(), [3 * SECOND]);
}

#[test]
fn check_failure_during_pause_is_ignored() {
    let late = || ProbeResult::NoAnswer("it took too long".to_owned());
    let (mut simulation, _) = checked(|info| info.health_check = Some(health(1, 0.0).into()));
    simulation.advance(3 * SECOND);
    let probe = simulation.probe().expect("due");
    simulation.stand_still(90 * SECOND);
    assert!(simulation.sees(&probe, late()).is_empty());
    assert!(simulation.kills().is_empty());
    simulation.next(10 * SECOND, late());
    assert_eq!(simulation.kills(), [3 * SECOND]);
}

/// Unacknowledged updates have taken all the room for updates from checks.
#[test]
fn next_check_retries_dropped_result() {
    for is_health in [true, false] {
        let (mut simulation, _) = checked(|info| match is_health {
            true => {
                info.health_check = Some(Box::new(pb::HealthCheck {
                    interval_seconds: Some(1.0),
                    ..health(9, 0.0)
                }))
            }
            false => {
                info.check = Some(Box::new(pb::CheckInfo {
                    r#type: Some(pb::check_info::Type::Command.into()),
                    command: Some(pb::check_info::Command { command: command() }),
                    delay_seconds: Some(3.0),
                    interval_seconds: Some(1.0),
                    ..pb::CheckInfo::default()
                }));
            }
        });
        let now = simulation.now.moment;
        let key = StreamKey {
            framework: FrameworkId::new(FRAMEWORK).expect("an id"),
            task: TaskId::new("another").expect("an id"),
        };
        let fill = |bytes: usize, uuid: u16| pb::TaskStatus {
            state: if uuid.is_multiple_of(2) {
                TaskRunning
            } else {
                TaskKilling
            }
            .into(),
            reason: Some(Reason::TaskCheckStatusUpdated.into()),
            message: Some("x".repeat(bytes)),
            uuid: Some(uuid.to_be_bytes().to_vec()),
            ..pb::TaskStatus::default()
        };
        let mut uuid = 0;
        for bytes in [64 << 10, 1 << 10, 10] {
            let updates = simulation.core.updates();
            while updates.push_own(now, &key, fill(bytes, uuid)) != Pushed::Full {
                uuid += 1;
            }
        }
        let first = 3 * SECOND;
        assert!(simulation.next(first, ProbeResult::ExitCode(0)).is_empty());
        assert!(simulation.next(SECOND, ProbeResult::ExitCode(0)).is_empty());
        simulation.core.updates().remove(&key);
        let told = simulation.next(SECOND, ProbeResult::ExitCode(0));
        assert_eq!(told.len(), 1, "{is_health}");
        assert!(simulation.next(SECOND, ProbeResult::ExitCode(0)).is_empty());
    }
}
