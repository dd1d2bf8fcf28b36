//! Shutdown of frameworks' executors: their grace periods, and their updates during that time.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::executor::event::Type;
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::{executor_id, kinds, status};
use super::simulation::{Simulation, framework_id};
use crate::core::Exit;

const SECOND: Duration = Duration::from_secs(1);

impl Simulation {
    fn shut_executor_down(&mut self) {
        self.tell(ToAgent::ShutdownExecutor(wire::ShutdownExecutor {
            framework_id: framework_id(),
            executor_id: executor_id(),
        }));
    }
}

#[test]
fn shutdown_is_enforced_after_grace() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.shut_executor_down();
    assert_eq!(kinds(&simulation.told(1)), [Type::Shutdown]);
    simulation.advance(4 * SECOND);
    assert!(simulation.kills().is_empty());
    simulation.advance(SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskFailed, Reason::ExecutorTerminated);
}

/// The executor ends its tasks and then itself, and its stream may have broken meanwhile.
#[test]
fn executor_returning_during_shutdown_is_heard() {
    for restarts in [false, true] {
        let (mut simulation, container) = Simulation::with_executor();
        simulation.shut_executor_down();
        assert_eq!(kinds(&simulation.told(1)), [Type::Shutdown]);
        if restarts {
            simulation.crash(false);
        }
        let subscribe = call::Subscribe {
            unacknowledged_updates: vec![call::Update {
                status: status("a", TaskFinished, 1),
            }],
            ..call::Subscribe::default()
        };
        simulation.subscribe(2, subscribe);
        let told = kinds(&simulation.told(2));
        assert_eq!(told, [Type::Acknowledged, Type::Shutdown]);
        if restarts {
            simulation.register();
        }
        simulation.end(&container, Exit::Code(0));
        assert_eq!(simulation.told_states(), [TaskFinished]);
    }
}

#[test]
fn shutdown_grace_survives_restart() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.shut_executor_down();
    simulation.advance(SECOND);
    simulation.crash(false);
    assert!(simulation.link.is_some(), "nobody is waited for");
    simulation.register();
    // The executor's grace period is 5 s; a reregistration timeout would end after 2 s.
    simulation.advance(3 * SECOND);
    assert!(simulation.kills().is_empty());
    simulation.advance(SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskFailed, Reason::ExecutorTerminated);
}
