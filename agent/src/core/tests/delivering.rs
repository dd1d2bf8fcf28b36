//! Delivery of tasks to the executors of frameworks, with losses on the way.

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskKilled, TaskLost, TaskRunning};
use meseta_proto::mesos::v1::executor::{Event, call, event::Type};
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::{custom, kinds, status};
use super::simulation::{Simulation, scalar};

const SECOND: Duration = Duration::from_secs(1);

fn knowing(tasks: &[&str]) -> call::Subscribe {
    call::Subscribe {
        unacknowledged_tasks: tasks.iter().map(|id| custom(id)).collect(),
        ..call::Subscribe::default()
    }
}

fn launched(events: &[Event]) -> Vec<&str> {
    let launches = events.iter().filter_map(|event| event.launch.as_ref());
    launches
        .map(|launch| launch.task.task_id.value.as_str())
        .collect()
}

#[test]
fn unread_task_is_delivered_again() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.subscribe(2, knowing(&[]));
    let told = simulation.told(2);
    assert_eq!(kinds(&told), [Type::Subscribed, Type::Launch]);
    assert!(simulation.take_updates().is_empty(), "it is not lost");
    simulation.subscribe(3, knowing(&["a"]));
    assert_eq!(kinds(&simulation.told(3)), [Type::Subscribed]);
    simulation.tells(status("a", TaskRunning, 1));
    assert_eq!(simulation.told_states(), [TaskRunning]);
}

#[test]
fn undeliverable_task_is_dropped() {
    let (mut simulation, _) = Simulation::with_executor();
    for _ in 0..8 {
        simulation.subscribe(2, knowing(&[]));
        assert!(simulation.take_updates().is_empty());
    }
    simulation.subscribe(2, knowing(&[]));
    simulation.resize(None);
    simulation.assert_only_told(TaskLost, Reason::TaskUnknown);
}

#[test]
fn killed_task_is_not_redelivered() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.kill("a", None);
    simulation.subscribe(2, knowing(&[]));
    simulation.resize(None);
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed]);
    assert_eq!(simulation.told_states(), [TaskKilled]);
}

/// More tasks are launched during the start of an executor than its stream takes at once.
#[test]
fn tasks_are_delivered_in_ordered_batches() {
    let mut simulation = Simulation::registered();
    let names: Vec<_> = (0..25).map(|number| format!("t{number:02}")).collect();
    let large = |id: &String| pb::TaskInfo {
        data: Some(vec![0; 200 << 10]),
        resources: vec![scalar("mem", 1.0)],
        ..custom(id)
    };
    for id in &names {
        simulation.run_in_executor(large(id), *id == names[0]);
    }
    let container = simulation.launched();
    simulation.start(&container);
    simulation.subscribe(1, knowing(&[]));
    simulation.resize(None);
    let told = simulation.told(1);
    assert_eq!(launched(&told), ["t00", "t01"]);
    // Other tasks do not change that.
    simulation.run_in_executor(large(&"u".to_owned()), false);
    simulation.resize(None);
    assert!(simulation.told(1).is_empty());
    simulation.advance(2 * SECOND);
    let told = simulation.told(1);
    let rest: Vec<_> = names.iter().map(String::as_str).skip(2).collect();
    assert_eq!(launched(&told), [&rest[..], &["u"]].concat());
}
