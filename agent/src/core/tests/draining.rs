//! Draining: tasks and executors are ended, and nothing waits for an executor that ends slowly.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFinished, TaskKilled};
use meseta_proto::mesos::v1::executor::event::Type;
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::{kinds, status};
use super::simulation::{Simulation, states, task};
use crate::core::Exit;

const SECOND: Duration = Duration::from_secs(1);

impl Simulation {
    fn drain(&mut self) {
        let config = pb::DrainConfig::default();
        self.tell(ToAgent::Drain(wire::Drain { config }));
    }

    /// Checks that a reactivated agent runs a requested task.
    fn takes_tasks(&mut self) {
        self.seen.clear();
        let container = self.running(task("next"));
        self.end(&container, Exit::Code(0));
        assert_eq!(states(&self.acknowledge_all()), [TaskFinished]);
    }
}

#[test]
fn drain_shuts_down_idle_executor() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.tells(status("a", TaskFinished, 1));
    simulation.resize(None);
    simulation.acknowledge_all();
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged]);
    simulation.drain();
    assert_eq!(kinds(&simulation.told(1)), [Type::Shutdown]);
    // The agent may be reactivated while the executor shuts down.
    simulation.takes_tasks();
    simulation.advance(5 * SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    assert!(simulation.core.snapshot().frameworks.is_empty());
}

#[test]
fn drain_shuts_down_executor_after_kills() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.drain();
    assert_eq!(kinds(&simulation.told(1)), [Type::Kill]);
    simulation.tells(status("a", TaskKilled, 1));
    simulation.resize(None);
    let told = simulation.told(1);
    assert_eq!(kinds(&told), [Type::Acknowledged, Type::Shutdown]);
    // The drain ends once the end is acknowledged.
    simulation.run(task("early"));
    let told = simulation.acknowledge_all();
    let reasons: Vec<_> = told.iter().map(pb::TaskStatus::reason).collect();
    assert_eq!(reasons, [Reason::AgentDraining; 2], "{told:?}");
    simulation.takes_tasks();
}
