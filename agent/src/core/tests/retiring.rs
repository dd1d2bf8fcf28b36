//! The records of completed tasks while their executor continues.

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFinished, TaskKilled, TaskRunning};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::{custom, status};
use super::simulation::{Simulation, framework_id, task};
use crate::core::Exit;

/// Two tasks with labels of this size exceed the limit of an executor's completed tasks.
const LABEL_BYTES: usize = 12 << 10;

fn large(id: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        labels: Some(label(LABEL_BYTES)),
        ..custom(id)
    }
}

fn label(bytes: usize) -> pb::Labels {
    pb::Labels {
        labels: vec![pb::Label {
            key: "x".repeat(bytes),
            value: None,
        }],
    }
}

impl Simulation {
    /// Runs a large task in the executor, and launches the executor if necessary.
    fn runs_large(&mut self, id: &str, uuid: u8) {
        if uuid == 1 {
            self.started_custom(large(id));
            self.subscribe(1, call::Subscribe::default());
        } else {
            self.run_in_executor(large(id), false);
            self.resize(None);
        }
        self.tells(status(id, TaskRunning, uuid));
        self.acknowledge(&status(id, TaskRunning, uuid));
    }

    /// Ends a large task and acknowledges its end.
    fn ends_large(&mut self, id: &str, uuid: u8) {
        self.tells(status(id, TaskFinished, uuid));
        self.resize(None);
        self.acknowledge(&status(id, TaskFinished, uuid));
    }

    /// The agent ends and starts again, and then its executor comes back.
    fn comes_back(&mut self) {
        self.crash(false);
        self.subscribe(2, call::Subscribe::default());
        self.register();
    }

    fn is_written(&self, id: &str) -> bool {
        let image = self.image();
        let mut runs = image.frameworks.iter().flat_map(|one| &one.runs);
        runs.any(|run| run.tasks.iter().any(|task| task.id.as_str() == id))
    }
}

#[test]
fn task_waits_for_late_acknowledgement() {
    let mut simulation = Simulation::registered();
    simulation.runs_large("a", 1);
    simulation.ends_large("a", 2);
    simulation.tells(status("a", TaskKilled, 3));
    simulation.runs_large("b", 4);
    simulation.ends_large("b", 5);
    simulation.runs_large("c", 6);
    // The oldest acknowledged task is retired instead.
    assert!(simulation.is_written("a") && !simulation.is_written("b"));
    simulation.ends_large("c", 7);
    assert!(simulation.is_written("a"));
    simulation.runs_large("d", 8);
    simulation.comes_back();
    let late = simulation.acknowledge_all();
    assert!(
        late.iter().any(|told| told.state() == TaskKilled),
        "{late:?}"
    );
}

#[test]
fn reused_id_keeps_later_records() {
    let mut simulation = Simulation::registered();
    simulation.runs_large("a", 1);
    simulation.ends_large("a", 2);
    simulation.runs_large("a", 3);
    simulation.runs_large("b", 4);
    simulation.ends_large("b", 5);
    // The earlier "a" is forgotten, and the later "a" continues, also after a restart of the agent.
    assert!(simulation.is_written("a") && simulation.is_written("b"));
    simulation.comes_back();
    let snapshot = simulation.core.snapshot();
    let executors = snapshot.executors();
    let tasks: Vec<_> = executors.flat_map(|one| one.tasks.clone()).collect();
    let running: Vec<_> = tasks
        .iter()
        .filter(|(_, task)| !task.is_terminal())
        .collect();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].0.as_str(), "a");
}

#[test]
fn group_tasks_retire_together() {
    let mut simulation = Simulation::registered();
    let mut nested = Vec::new();
    for [one, two] in [["a", "b"], ["c", "d"]] {
        let tasks = [one, two].map(|id| pb::TaskInfo {
            labels: Some(label(LABEL_BYTES)),
            ..task(id)
        });
        let is_first = nested.is_empty();
        simulation.run_group_of(tasks.into(), is_first);
        simulation.resize(None);
        if is_first {
            let outer = simulation.launches().remove(0);
            simulation.start(&outer);
        }
        let launches = simulation.launches();
        launches.iter().for_each(|one| simulation.start(one));
        nested.extend(launches);
        simulation.acknowledge_all();
    }
    let [a, b, c, _] = <[_; 4]>::try_from(nested).expect("four tasks");
    for ended in [a, c] {
        simulation.end(&ended, Exit::Code(0));
        simulation.resize(None);
        simulation.acknowledge_all();
    }
    assert!(
        ["a", "b", "c", "d"]
            .iter()
            .all(|id| simulation.is_written(id))
    );
    simulation.end(&b, Exit::Code(0));
    simulation.resize(None);
    simulation.acknowledge_all();
    assert!(["a", "b"].iter().all(|id| !simulation.is_written(id)));
    assert!(["c", "d"].iter().all(|id| simulation.is_written(id)));
}

/// The description of a framework may take a large part of the limit for shown state.
#[test]
fn large_idle_frameworks_are_forgotten() {
    let mut simulation = Simulation::registered();
    let shown = |simulation: &Simulation| simulation.core.snapshot().completed_frameworks.len();
    simulation.framework_name = "x".repeat(512 << 10);
    let container = simulation.running(task("t"));
    simulation.end(&container, Exit::Code(0));
    simulation.acknowledge_all();
    assert_eq!(shown(&simulation), 1, "it fits");
    // A framework with new work does not count, and later counts once.
    let container = simulation.running(task("t"));
    assert_eq!(shown(&simulation), 0);
    simulation.end(&container, Exit::Code(0));
    simulation.acknowledge_all();
    assert_eq!(shown(&simulation), 1);
    simulation.framework_name = "x".repeat(2 << 20);
    let container = simulation.running(task("t"));
    simulation.end(&container, Exit::Code(0));
    simulation.acknowledge_all();
    assert_eq!(shown(&simulation), 0);
}

/// The tasks end at once and return their resources, and the framework acknowledges none of their ends.
#[test]
fn unacknowledging_framework_gets_no_tasks() {
    let mut simulation = Simulation::registered();
    let sized = |id: String| pb::TaskInfo {
        labels: Some(label(100 << 10)),
        data: Some(vec![0; 1 << 20]),
        ..task(&id)
    };
    let mut taken = 0;
    let refused = loop {
        simulation.run(sized(format!("t{taken}")));
        let told = simulation.take_updates();
        if let Some(refused) = told.into_iter().next() {
            break refused.status;
        }
        let container = simulation.launched();
        simulation.launch_fails(container, "it cannot be");
        simulation.take_updates();
        taken += 1;
    };
    // Half of the limit for completed tasks, without their data.
    assert_eq!(taken, 5);
    assert_eq!(refused.state(), pb::TaskState::TaskLost);
    assert_eq!(refused.reason(), Reason::ContainerLaunchFailed);
    assert!(refused.message().contains("acknowledged"), "{refused:?}");
    simulation.acknowledge(&refused);
    simulation.restart();
    let told = simulation.take_updates();
    assert_eq!(told.len(), taken);
    simulation.run(sized("again".to_owned()));
    let refused = simulation.take_updates().remove(0).status;
    assert_eq!(refused.task_id.value, "again");
    simulation.acknowledge(&refused);
    // An acknowledged task makes room for another.
    simulation.acknowledge(&told[0].status);
    simulation.running(sized("again".to_owned()));
}

#[test]
fn gone_frameworks_backlog_is_freed() {
    let mut simulation = Simulation::registered();
    for _ in 0..20 {
        let info = pb::TaskInfo {
            labels: Some(label(100 << 10)),
            ..task("t")
        };
        simulation.run(info);
        let container = simulation.launched();
        simulation.launch_fails(container, "it cannot be");
        assert!(!simulation.take_updates().is_empty());
        simulation.tell(ToAgent::ShutdownFramework(wire::ShutdownFramework {
            framework_id: framework_id(),
        }));
    }
}
