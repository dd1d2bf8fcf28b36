//! Tasks beyond the limits of containers or executors are refused before anything is written.

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskError, TaskFinished, TaskRunning};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::TaskId;

use super::custom::{custom, executor_info, status};
use super::simulation::{Simulation, framework_id, task};
use crate::core::{StreamKey, VOLUMES_MAX, stream_key};

fn with_volumes(count: usize) -> pb::ContainerInfo {
    let volume = |number| pb::Volume {
        container_path: format!("v{number}"),
        ..pb::Volume::default()
    };
    pb::ContainerInfo {
        r#type: pb::container_info::Type::Mesos.into(),
        volumes: (0..count).map(volume).collect(),
        ..pb::ContainerInfo::default()
    }
}

/// Checks that the refusal precedes the folder of its framework.
fn assert_refused(simulation: &mut Simulation, why: &str) {
    let told = simulation.take_updates();
    let [told] = &told[..] else {
        panic!("{told:?}");
    };
    let status = &told.status;
    assert_eq!(
        (status.state(), status.reason()),
        (TaskError, Reason::TaskInvalid)
    );
    assert!(status.message().contains(why), "{}", status.message());
    assert!(simulation.image().frameworks.is_empty());
    simulation.acknowledge(status);
}

/// Regression: the launch of a task with too many volumes failed only after everything was written.
#[test]
fn too_many_volumes_are_refused() {
    let mut simulation = Simulation::registered();
    let of_task = |count| pb::TaskInfo {
        container: Some(Box::new(with_volumes(count))),
        ..task("t")
    };
    simulation.run(of_task(VOLUMES_MAX + 1));
    assert_refused(&mut simulation, "1025 volumes");
    let info = executor_info(pb::executor_info::Type::Custom);
    let of_executor = pb::TaskInfo {
        executor: Some(Box::new(pb::ExecutorInfo {
            container: Some(Box::new(with_volumes(VOLUMES_MAX + 1))),
            ..info
        })),
        ..custom("t")
    };
    simulation.run(of_executor);
    assert_refused(&mut simulation, "the executor has 1025 volumes");
    simulation.run(of_task(VOLUMES_MAX));
    simulation.launched();
}

/// Regression: the agent sent an oversized event to the executor eight times, and then reported the task as lost.
#[test]
fn oversized_launch_event_is_refused() {
    let mut simulation = Simulation::registered();
    let with_data = |bytes: usize| pb::TaskInfo {
        data: Some(vec![0; bytes]),
        ..custom("t")
    };
    simulation.run(with_data(1 << 20));
    assert_refused(&mut simulation, "can keep 1048576 bytes");
    let mut described = with_data(0);
    if let Some(executor) = described.executor.as_mut() {
        executor.labels = Some(pb::Labels {
            labels: vec![pb::Label {
                key: "k".repeat(600 << 10),
                value: None,
            }],
        });
    }
    // The task contains its executor once more.
    described.data = Some(vec![0; 512 << 10]);
    simulation.run(described);
    assert_refused(&mut simulation, "can keep 1048576 bytes");
    simulation.run(with_data(512 << 10));
    simulation.launched();
}

/// Regression: a late update left an acknowledgement in the log of its task, and for a time its identity in memory.
#[test]
fn update_for_ended_task_leaves_nothing() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.tells(status("a", TaskFinished, 1));
    simulation.resize(None);
    simulation.acknowledge_all();
    let entries = |simulation: &Simulation| {
        let image = simulation.image();
        image.frameworks[0].runs[0].tasks[0].log.len()
    };
    let before = entries(&simulation);
    simulation.tells(status("a", TaskRunning, 2));
    assert_eq!(simulation.acknowledge_all().len(), 1, "it is passed on");
    assert_eq!(entries(&simulation), before);
    let task_id = pb::TaskId {
        value: "a".to_owned(),
    };
    let stream: Option<StreamKey> = stream_key(&framework_id(), &task_id);
    let stream = stream.expect("a key");
    assert_eq!(stream.task, TaskId::new("a").expect("an id"));
    assert!(!simulation.core.updates().knows(&stream, &[2; 16]));
}
