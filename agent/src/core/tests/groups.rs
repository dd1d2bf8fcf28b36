//! Task groups: accepted as a whole or not at all, and the effects of one task's end on the others.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskError, TaskFailed, TaskFinished, TaskKilled, TaskKilling, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::executor::{call, event::Type};
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::ContainerId;

use super::custom::{executor_info, kinds, status};
use super::simulation::{Seen, Simulation, framework_id, identity, scalar, task};
use crate::checkpoint::Layout;
use crate::core::Exit;

impl Simulation {
    fn run_group(&mut self, ids: &[&str], launch_executor: bool) {
        self.run_group_of(ids.iter().map(|id| task(id)).collect(), launch_executor);
    }

    pub(super) fn run_group_of(&mut self, tasks: Vec<pb::TaskInfo>, launch_executor: bool) {
        let framework = self.framework();
        self.tell(ToAgent::RunTaskGroup(wire::RunTaskGroup {
            framework,
            executor: executor_info(pb::executor_info::Type::Default),
            task_group: pb::TaskGroupInfo { tasks },
            launch_executor,
            resource_version_uuid: None,
            accepted_time: None,
        }));
    }

    pub(super) fn launches(&mut self) -> Vec<ContainerId> {
        let seen = std::mem::take(&mut self.seen);
        let mut launches = Vec::new();
        for one in seen {
            match one {
                Seen::Launch(container) => launches.push(container),
                other => self.seen.push(other),
            }
        }
        launches
    }

    /// A running group of `a` and `b`: the outer container, and those of the tasks.
    fn with_group() -> (Self, ContainerId, [ContainerId; 2]) {
        let mut simulation = Self::registered();
        simulation.run_group(&["a", "b"], true);
        let outer = simulation.launches().remove(0);
        simulation.start(&outer);
        let nested = simulation.launches();
        for container in &nested {
            simulation.start(container);
        }
        let told = simulation.acknowledge_all();
        let states: Vec<_> = told.iter().map(pb::TaskStatus::state).collect();
        assert_eq!(
            states
                .iter()
                .filter(|state| **state == TaskStarting)
                .count(),
            2
        );
        assert_eq!(
            states.iter().filter(|state| **state == TaskRunning).count(),
            2
        );
        let [a, b] = nested.try_into().expect("two tasks");
        (simulation, outer, [a, b])
    }

    /// A framework's own executor that runs `a`. Of its new group of `b` and `c` only `b` is on the disk.
    fn with_half_group() -> (Self, ContainerId) {
        let (mut simulation, container) = Self::with_executor();
        simulation.tells(status("a", TaskRunning, 1));
        simulation.acknowledge_all();
        simulation.quick_disk = false;
        let framework = simulation.framework();
        simulation.tell(ToAgent::RunTaskGroup(wire::RunTaskGroup {
            framework,
            executor: executor_info(pb::executor_info::Type::Custom),
            task_group: pb::TaskGroupInfo {
                tasks: ["b", "c"].map(task).into(),
            },
            launch_executor: false,
            resource_version_uuid: None,
            accepted_time: None,
        }));
        simulation.flush(1);
        (simulation, container)
    }

    fn told_of(&mut self, id: &str) -> Vec<pb::TaskState> {
        self.resize(None);
        let told = self.acknowledge_all().into_iter();
        let told = told.filter(|status| status.task_id.value == id);
        told.map(|status| status.state()).collect()
    }

    fn told_ends(&mut self) -> Vec<(String, pb::TaskState)> {
        self.resize(None);
        let mut told: Vec<_> = self
            .acknowledge_all()
            .into_iter()
            .map(|status| (status.task_id.value.clone(), status.state()))
            .collect();
        told.sort_by(|one, other| one.0.cmp(&other.0));
        told
    }
}

/// Regression: a single group of six at its common limit raised the alert on a series of ending tasks.
#[test]
fn group_memory_kill_is_counted_once() {
    let (mut simulation, _, nested) = Simulation::with_group();
    for container in nested {
        simulation.out_of_memory(container, 64.0);
        simulation.resize(None);
        simulation.acknowledge_all();
    }
    let counts = simulation.core.snapshot().counters.tasks_out_of_memory;
    assert_eq!(counts.values().sum::<u64>(), 1, "{counts:?}");
}

#[test]
fn group_tasks_nest_inside_executor() {
    let (simulation, outer, [a, b]) = Simulation::with_group();
    for nested in [&a, &b] {
        assert!(
            nested.as_str().starts_with(&format!("{outer}+")),
            "{nested}"
        );
    }
    let snapshot = simulation.core.snapshot();
    let executor = snapshot.executors().next().expect("an executor");
    let message = pb::ContainerId::from(&a);
    assert_eq!(message.parent.expect("a parent").value, outer.as_str());
    // 32 MB of its own and 64 MB for each task.
    assert_eq!(executor.container.demand.mem_bytes, Some(160 << 20));
    let tasks: Vec<_> = snapshot.tasks().map(|task| task.to_message()).collect();
    assert!(tasks.iter().all(|task| task.executor_id.is_some()));
}

#[test]
fn finished_group_ends_its_executor() {
    let (mut simulation, outer, [a, b]) = Simulation::with_group();
    simulation.end(&a, Exit::Code(0));
    assert_eq!(simulation.told_ends(), [("a".to_owned(), TaskFinished)]);
    assert!(simulation.kills().is_empty());
    simulation.end(&b, Exit::Code(0));
    assert_eq!(simulation.told_ends(), [("b".to_owned(), TaskFinished)]);
    // The container of the executor has no work left.
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&outer, Exit::Signal(9));
    let exited = |frame: &FromAgent| matches!(frame, FromAgent::ExecutorExited(_));
    assert!(simulation.frames.iter().any(exited));
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn failed_task_ends_its_group() {
    for killed in [false, true] {
        let (mut simulation, _, [a, b]) = Simulation::with_group();
        if killed {
            simulation.kill("a", None);
        }
        let before = simulation.kills().len();
        simulation.end(&a, Exit::Code(7));
        assert_eq!(simulation.kills().len(), before + 1);
        let state = if killed { TaskKilled } else { TaskFailed };
        assert_eq!(simulation.told_ends(), [("a".to_owned(), state)]);
        simulation.end(&b, Exit::Signal(15));
        assert_eq!(simulation.told_ends(), [("b".to_owned(), TaskKilled)]);
    }
}

#[test]
fn other_groups_of_executor_survive() {
    let (mut simulation, outer, [a, b]) = Simulation::with_group();
    simulation.run_group(&["c"], false);
    assert_eq!(simulation.resize(None), [224]);
    let c = simulation.launches().remove(0);
    assert!(c.as_str().starts_with(outer.as_str()));
    simulation.start(&c);
    simulation.acknowledge_all();
    simulation.end(&a, Exit::Code(1));
    simulation.end(&b, Exit::Signal(15));
    assert_eq!(simulation.told_ends().len(), 2);
    // A single kill, of `b`.
    assert_eq!(simulation.kills().len(), 1);
    simulation.end(&c, Exit::Code(0));
    assert_eq!(simulation.told_ends(), [("c".to_owned(), TaskFinished)]);
}

#[test]
fn kill_before_launch_kills_whole_group() {
    for begins in [false, true] {
        let mut simulation = Simulation::registered();
        simulation.run_group(&["a", "b"], true);
        let outer = simulation.launches().remove(0);
        simulation.kill("b", None);
        simulation.kill("a", None);
        // The container has their resources until it is gone.
        assert_eq!(simulation.kills(), [Duration::ZERO]);
        assert!(simulation.acknowledge_all().is_empty());
        if begins {
            simulation.start(&outer);
            assert!(simulation.launches().is_empty());
            assert!(simulation.acknowledge_all().is_empty());
            simulation.end(&outer, Exit::Signal(9));
        } else {
            simulation.launch_fails(outer, "killed");
        }
        let told = simulation.acknowledge_all();
        assert_eq!(told.len(), 2);
        for status in told {
            assert_eq!(status.state(), TaskKilled);
            assert_eq!(status.reason(), Reason::TaskKilledDuringLaunch);
        }
        assert!(simulation.image().frameworks.is_empty());
    }
}

#[test]
fn killed_group_ends_after_executor_shrinks() {
    let mut simulation = Simulation::registered();
    simulation.run_group(&["a", "b"], true);
    let outer = simulation.launches().remove(0);
    simulation.run_group(&["c"], false);
    simulation.kill("b", None);
    assert!(simulation.acknowledge_all().is_empty());
    assert!(simulation.kills().is_empty());
    simulation.start(&outer);
    assert!(simulation.launches().is_empty());
    assert!(simulation.acknowledge_all().is_empty());
    // 32 MB of its own and 64 MB for `c`.
    assert_eq!(simulation.resize(None), [96]);
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|status| status.state() == TaskKilled));
    assert_eq!(simulation.launches().len(), 1);
}

#[test]
fn group_with_invalid_task_runs_nothing() {
    let mut simulation = Simulation::registered();
    let mut bad = task("bad");
    bad.command = None;
    simulation.run_group_of(vec![task("good"), bad], true);
    assert!(simulation.launches().is_empty());
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 2);
    for status in told {
        assert_eq!(status.state(), TaskError);
        assert_eq!(status.reason(), Reason::TaskGroupInvalid);
    }
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn memory_limit_ends_the_group() {
    let (mut simulation, outer, _) = Simulation::with_group();
    simulation.out_of_memory(outer, 160.0);
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 2);
    for status in told {
        assert_eq!(status.state(), TaskFailed);
        assert_eq!(status.reason(), Reason::ContainerLimitationMemory);
    }
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn group_survives_restart() {
    let (mut simulation, outer, [a, b]) = Simulation::with_group();
    simulation.restart();
    assert!(simulation.acknowledge_all().is_empty());
    assert!(simulation.launches().is_empty());
    simulation.end(&a, Exit::Code(0));
    simulation.end(&b, Exit::Code(0));
    assert_eq!(simulation.told_ends().len(), 2);
    simulation.end(&outer, Exit::Signal(9));
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn partially_written_group_is_not_launched() {
    let mut simulation = Simulation::registered();
    simulation.quick_disk = false;
    simulation.run_group(&["a", "b"], true);
    // Flushes the framework, the executor, and one of the two tasks.
    simulation.flush(3);
    simulation.crash(false);
    simulation.flush(usize::MAX);
    simulation.quick_disk = true;
    simulation.advance(Duration::from_secs(3));
    simulation.register();
    assert!(simulation.launches().is_empty());
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), TaskFailed);
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn partial_group_for_executor_is_reported() {
    let (mut simulation, outer, [a, b]) = Simulation::with_group();
    simulation.quick_disk = false;
    simulation.run_group(&["c", "d"], false);
    simulation.flush(1);
    simulation.crash(false);
    simulation.quick_disk = true;
    simulation.flush(usize::MAX);
    simulation.register();
    simulation.resize(None);
    assert!(simulation.launches().is_empty());
    let told = simulation.acknowledge_all();
    let [status] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(
        (status.task_id.value.as_str(), status.state()),
        ("c", TaskFailed)
    );
    let message = status.message();
    assert!(message.contains("before the whole group"), "{message}");
    // The running group continues, and ends undisturbed.
    assert!(simulation.killed.is_empty());
    simulation.end(&a, Exit::Code(0));
    simulation.end(&b, Exit::Code(0));
    let ends = [("a", TaskFinished), ("b", TaskFinished)];
    assert_eq!(
        simulation.told_ends(),
        ends.map(|(id, end)| (id.to_owned(), end))
    );
    simulation.end(&outer, Exit::Signal(9));
    assert!(simulation.image().frameworks.is_empty());
}

/// The executor gets all tasks of a group or none: it would run a part as if it were the whole.
#[test]
fn executor_gets_nothing_of_partial_group() {
    let (mut simulation, container) = Simulation::with_half_group();
    simulation.crash(false);
    simulation.quick_disk = true;
    simulation.flush(usize::MAX);
    simulation.subscribe(2, call::Subscribe::default());
    simulation.register();
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed]);
    assert_eq!(simulation.told_ends(), [("b".to_owned(), TaskFailed)]);
    // The executor's container with task `a` continues, and its updates are accepted.
    assert!(
        simulation.machine.contains_key(&container),
        "it is forgotten"
    );
    simulation.end(&container, Exit::Code(3));
    assert_eq!(simulation.told_ends(), [("a".to_owned(), TaskFailed)]);
}

#[test]
fn gone_executor_ends_partial_group() {
    for rebooted in [true, false] {
        let (mut simulation, container) = Simulation::with_half_group();
        simulation.machine.remove(&container);
        simulation.crash(rebooted);
        simulation.quick_disk = true;
        simulation.flush(usize::MAX);
        simulation.register();
        let ends = ["a", "b"].map(|id| (id.to_owned(), TaskFailed));
        assert_eq!(simulation.told_ends(), ends);
        assert!(simulation.image().frameworks.is_empty());
    }
}

/// The new task's record replaces that of the earlier task, so that only a part of the earlier group is on the disk.
#[test]
fn reused_id_spares_later_task() {
    let (mut simulation, _, [a, b]) = Simulation::with_group();
    simulation.end(&a, Exit::Code(0));
    assert_eq!(simulation.told_ends(), [("a".to_owned(), TaskFinished)]);
    simulation.run_group(&["a"], false);
    simulation.resize(None);
    let again = simulation.launches().remove(0);
    simulation.start(&again);
    simulation.acknowledge_all();
    simulation.restart();
    assert_eq!(simulation.told_ends(), []);
    assert!(simulation.killed.is_empty());
    simulation.end(&b, Exit::Code(0));
    assert_eq!(simulation.told_ends(), [("b".to_owned(), TaskFinished)]);
}

#[test]
fn framework_shutdown_ends_its_groups() {
    let (mut simulation, outer, [a, b]) = Simulation::with_group();
    simulation.tell(ToAgent::ShutdownFramework(wire::ShutdownFramework {
        framework_id: framework_id(),
    }));
    assert_eq!(simulation.kills().len(), 2);
    simulation.end(&a, Exit::Signal(15));
    simulation.end(&b, Exit::Signal(15));
    simulation.resize(None);
    simulation.end(&outer, Exit::Signal(9));
    assert!(simulation.core.snapshot().frameworks.is_empty());
    assert!(simulation.image().frameworks.is_empty());
}

/// The agent crashed while the group was launched: one task never began, and another ran without a report.
#[test]
fn running_precedes_end_of_group() {
    let mut simulation = Simulation::registered();
    simulation
        .capabilities
        .push(FrameworkCapability::TaskKillingState);
    simulation.run_group(&["a", "b"], true);
    let outer = simulation.launches().remove(0);
    simulation.start(&outer);
    let nested = simulation.launches();
    simulation.machine.insert(nested[1].clone(), identity(7));
    simulation.restart();
    simulation.end_recorded(&nested[1], Exit::Code(0), Some(false));
    assert_eq!(
        simulation.told_of("b"),
        [TaskStarting, TaskRunning, TaskKilling, TaskFinished]
    );
}

/// A framework's description may be a thousand times as large as each of its tasks.
#[test]
fn group_notifies_framework_once() {
    let mut simulation = Simulation::registered();
    simulation.framework_name = "x".repeat(1 << 20);
    simulation.quick_disk = false;
    let small = |number: usize| pb::TaskInfo {
        resources: vec![scalar("mem", 0.001)],
        ..task(&format!("t{number:04}"))
    };
    simulation.run_group_of((0..1000).map(small).collect(), true);
    let bytes = simulation.pending_bytes();
    assert!(bytes < 8 << 20, "{bytes}");
    // An agent that lost the framework's own record reads this.
    simulation.flush(usize::MAX);
    let image = simulation.image();
    let framework = &image.frameworks[0];
    let path = Layout::new(simulation.work_dir())
        .framework_info(&framework.runs[0].key.agent, &framework.id);
    std::fs::remove_file(path).expect("removed");
    let image = simulation.image();
    assert_eq!(image.frameworks[0].info.name.len(), 1 << 20);
    assert_eq!(image.frameworks[0].runs[0].tasks.len(), 1000);
}
