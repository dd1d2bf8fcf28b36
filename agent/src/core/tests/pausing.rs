//! The agent's process pauses for longer than any deadline: a peer that it could not hear misses no deadline.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished, TaskRunning};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::{custom, executor_id, status};
use super::simulation::{
    PING_TIMEOUT, Seen, Simulation, duration, framework_id, registered, states, task,
};
use crate::core::step::CATCH_UP_TIME;
use crate::core::{Exit, State};

const SECOND: Duration = Duration::from_secs(1);
const STOPPED: Duration = Duration::from_secs(90);

/// An executor that was launched a second ago and has not subscribed.
fn registering() -> Simulation {
    let mut simulation = Simulation::registered();
    simulation.started_custom(custom("t"));
    simulation.advance(59 * SECOND);
    simulation
}

#[test]
fn executor_registers_after_agent_pause() {
    let mut simulation = registering();
    simulation.stand_still(STOPPED);
    assert!(simulation.kills().is_empty());
    // The executor's call was waiting to be read.
    simulation.advance(CATCH_UP_TIME - SECOND);
    simulation.subscribe(1, call::Subscribe::default());
    simulation.advance(STOPPED);
    assert!(simulation.kills().is_empty());

    let mut simulation = registering();
    simulation.stand_still(STOPPED);
    simulation.advance(CATCH_UP_TIME);
    assert_eq!(simulation.kills(), [Duration::ZERO], "it never came");
}

#[test]
fn executors_return_after_agent_pause() {
    let mut simulation = Simulation::registered();
    simulation.started_custom(custom("t"));
    simulation.subscribe(1, call::Subscribe::default());
    simulation.resize(None);
    simulation.tells(status("t", TaskRunning, 1));
    simulation.acknowledge_all();
    simulation.crash(false);
    simulation.stand_still(STOPPED);
    assert!(simulation.kills().is_empty() && simulation.connects() == 1);
    simulation.subscribe(2, call::Subscribe::default());
    simulation.register();
    simulation.advance(STOPPED);
    assert!(simulation.kills().is_empty());
}

#[test]
fn shutdown_grace_survives_agent_pause() {
    let mut simulation = Simulation::registered();
    let container = simulation.started_custom(custom("t"));
    simulation.subscribe(1, call::Subscribe::default());
    simulation.resize(None);
    simulation.tell(ToAgent::ShutdownExecutor(wire::ShutdownExecutor {
        framework_id: framework_id(),
        executor_id: executor_id(),
    }));
    simulation.stand_still(STOPPED);
    assert!(simulation.kills().is_empty());
    // The executor's update from the time of the pause is accepted.
    simulation.tells(status("t", TaskFinished, 2));
    simulation.resize(None);
    assert_eq!(simulation.told_states(), [TaskFinished]);
    simulation.end(&container, Exit::Code(0));
    assert!(simulation.kills().is_empty());
}

#[test]
fn ping_during_pause_counts() {
    let mut simulation = Simulation::registered();
    let before = simulation.connects();
    simulation.stand_still(STOPPED);
    assert_eq!(simulation.connects(), before);
    assert_eq!(simulation.core.state(), State::Running);
    simulation.ping(1);
    simulation.advance(PING_TIMEOUT - SECOND);
    assert_eq!(simulation.core.state(), State::Running);
    // A silent executor is still noticed.
    simulation.advance(SECOND);
    assert_eq!(simulation.core.state(), State::Disconnected);
}

#[test]
fn registration_answer_survives_agent_pause() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    let before = simulation.connects();
    simulation.stand_still(STOPPED);
    assert_eq!(simulation.connects(), before);
    simulation.tell(registered());
    assert_eq!(simulation.core.state(), State::Running);
}

#[test]
fn pause_restores_no_superseded_master() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.tell_with_epoch(5, registered());
    simulation.stand_still(STOPPED);
    simulation.tell_with_epoch(
        4,
        ToAgent::Shutdown(wire::Shutdown {
            reason: String::new(),
        }),
    );
    assert_eq!(simulation.core.state(), State::Running);
}

#[test]
fn kill_during_pause_is_not_overdue() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.kill("t", Some(SECOND));
    simulation.stand_still(STOPPED);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Destroy(_))));
    simulation.end(&container, Exit::Signal(15));
    simulation.advance(STOPPED);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Destroy(_))));
}

/// A task's time limit by the wall clock ends when the wall clock shows that.
#[test]
fn completion_time_counts_agent_pause() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.max_completion_time = Some(duration(60 * SECOND));
    let container = simulation.running(info);
    simulation.stand_still(STOPPED);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    let told = simulation.acknowledge_all();
    assert_eq!(states(&told), [TaskFailed]);
    assert_eq!(told[0].reason(), Reason::MaxCompletionTimeReached);
}

/// Regression: ten tasks a second with a limit of a day took 100 MB.
#[test]
fn deadlines_go_with_their_tasks() {
    let mut simulation = Simulation::registered();
    let before = simulation.core.count_timers();
    for number in 0..20 {
        let mut info = task(&format!("t{number}"));
        info.max_completion_time = Some(duration(SECOND * 86_400));
        info.health_check = Some(Box::new(pb::HealthCheck {
            r#type: Some(pb::health_check::Type::Tcp.into()),
            tcp: Some(pb::health_check::TcpCheckInfo {
                port: 1,
                ..Default::default()
            }),
            grace_period_seconds: Some(3_600.0),
            delay_seconds: Some(3_600.0),
            ..Default::default()
        }));
        let container = simulation.running(info);
        match number % 3 {
            0 => simulation.end(&container, Exit::Code(0)),
            1 => {
                simulation.kill(&format!("t{number}"), None);
                simulation.end(&container, Exit::Signal(15));
            }
            _ => simulation.end(&container, Exit::LaunchFailed("no".to_owned())),
        }
        simulation.acknowledge_all();
    }
    let left = simulation.core.count_timers();
    assert!(left <= before + 1, "{left} timers are left of {before}");
}
