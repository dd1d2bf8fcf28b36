//! Evictions of default and custom executors, and the limits of a controller's power over the core.

use std::time::Duration;

use meseta_estimators::{Action, Assessment, Correction};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskError, TaskFailed, TaskFinished, TaskGone, TaskKilled, TaskLost, TaskRunning,
};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::executor::event::Type;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::ContainerId;
use proptest::prelude::*;

use super::custom::{EXECUTOR, custom, executor_id, kinds, status};
use super::oversubscribing::{correction, oversubscribed};
use super::simulation::{Seen, Simulation, framework_id, scalar, task};
use crate::core::Exit;

/// A task of the custom executor with revocable cpus.
fn custom_revocable(id: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        resources: oversubscribed(id, 1.0).resources,
        ..custom(id)
    }
}

/// A task of the custom executor with revocable memory.
fn custom_revocable_memory(id: &str) -> pb::TaskInfo {
    let mut mem = scalar("mem", 64.0);
    mem.revocable = Some(pb::resource::RevocableInfo {});
    pb::TaskInfo {
        resources: vec![mem],
        ..custom(id)
    }
}

/// A custom executor with a regular task `a` and a revocable task `b`.
fn mixed() -> (Simulation, ContainerId) {
    let mut simulation = Simulation::registered();
    simulation.capabilities = vec![FrameworkCapability::PartitionAware];
    let container = simulation.started_custom(custom("a"));
    simulation.subscribe(1, call::Subscribe::default());
    simulation.run_in_executor(custom_revocable_memory("b"), false);
    simulation.resize(None);
    simulation.tells(status("a", TaskRunning, 1));
    simulation.tells(status("b", TaskRunning, 2));
    simulation.acknowledge_all();
    (simulation, container)
}

fn assert_evicted(told: &[pb::TaskStatus], tasks: &[&str], words: &str) {
    let mut named: Vec<_> = told.iter().map(|one| one.task_id.value.as_str()).collect();
    named.sort_unstable();
    assert_eq!(named, tasks);
    for status in told {
        assert_eq!(status.state(), TaskGone, "{status:?}");
        assert_eq!(status.reason(), Reason::ContainerPreempted);
        assert_eq!(status.source(), Source::Agent);
        assert!(status.message().contains(words), "{}", status.message());
    }
}

#[test]
fn mixed_custom_executor_is_evicted_whole() {
    let (mut simulation, container) = mixed();
    simulation.correct(correction(Action::Kill, EXECUTOR));
    assert_eq!(simulation.kills(), [Duration::ZERO], "without any grace");
    assert_eq!(simulation.killed, std::slice::from_ref(&container));
    simulation.end(&container, Exit::Signal(9));
    let told = simulation.acknowledge_all();
    assert_evicted(&told, &["a", "b"], "load_5min is 7.200, limit 6.000");
    let snapshot = simulation.core.snapshot();
    assert_eq!(snapshot.counters.executors_preempted, 1);
    assert!(snapshot.frameworks.is_empty());
}

/// The supervisor recorded the exit before any signal reached the task.
#[test]
fn exit_before_preemption_is_own_end() {
    for (exit, state) in [(Exit::Code(0), TaskFinished), (Exit::Code(3), TaskFailed)] {
        for (kill_requested, is_preempted) in
            [(Some(false), false), (Some(true), true), (None, true)]
        {
            let mut simulation = Simulation::registered();
            simulation.capabilities = vec![FrameworkCapability::PartitionAware];
            let container = simulation.running(oversubscribed("t", 1.0));
            simulation.correct(correction(Action::Kill, "t"));
            simulation.end_recorded(&container, exit.clone(), kill_requested);
            let told = simulation.acknowledge_all();
            let last = told.last().expect("an end");
            let expected = if is_preempted { TaskGone } else { state };
            assert_eq!(last.state(), expected, "{exit:?} {kill_requested:?}");
            let is_told = last.reason == Some(Reason::ContainerPreempted.into());
            assert_eq!(is_told, is_preempted, "{exit:?} {kill_requested:?}");
        }
    }
}

#[test]
fn executor_ended_before_eviction_not_evicted() {
    let (mut simulation, container) = mixed();
    simulation.correct(correction(Action::Kill, EXECUTOR));
    simulation.end_recorded(&container, Exit::Code(0), Some(false));
    for status in simulation.acknowledge_all() {
        assert_eq!(status.state(), TaskFailed, "{status:?}");
        assert_eq!(status.reason(), Reason::ExecutorTerminated);
    }
}

#[test]
fn executor_without_revocable_task_stays() {
    let (mut simulation, _) = mixed();
    simulation.tells(status("b", TaskFinished, 3));
    simulation.resize(None);
    simulation.acknowledge_all();
    simulation.correct(correction(Action::Kill, EXECUTOR));
    assert!(simulation.killed.is_empty(), "it holds nothing revocable");
    assert_eq!(
        simulation
            .core
            .snapshot()
            .oversubscription
            .corrections_refused(),
        1
    );
}

#[test]
fn eviction_before_subscription_is_reported() {
    let mut simulation = Simulation::registered();
    let container = simulation.started_custom(custom_revocable("b"));
    simulation.correct(correction(Action::Kill, EXECUTOR));
    simulation.end(&container, Exit::Signal(9));
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].state(), told[0].reason()),
        (TaskLost, Reason::ContainerPreempted)
    );
}

/// Regression: the kernel limited a regular task as if its cpus were revocable, for as long as the executor ran.
#[test]
fn cpus_kind_must_match_executor() {
    let without_cpus = |mut task: pb::TaskInfo| {
        if let Some(executor) = &mut task.executor {
            executor.resources = vec![scalar("mem", 32.0)];
        }
        task
    };
    let only_memory = |id: &str| pb::TaskInfo {
        resources: vec![scalar("mem", 16.0)],
        ..custom(id)
    };
    for (launched, other, words) in [
        (
            custom_revocable as fn(&str) -> _,
            custom as fn(&str) -> _,
            "not revocable",
        ),
        (custom, custom_revocable, "are revocable"),
    ] {
        let mut simulation = Simulation::registered();
        simulation.started_custom(without_cpus(launched("a")));
        simulation.subscribe(1, call::Subscribe::default());
        simulation.tells(status("a", TaskRunning, 1));
        simulation.acknowledge_all();
        for task in [only_memory("b"), launched("c")] {
            simulation.run_in_executor(without_cpus(task), false);
            simulation.resize(None);
        }
        // Also when none of the tasks that it was launched for is left.
        simulation.tells(status("a", TaskFinished, 2));
        simulation.resize(None);
        simulation.acknowledge_all();
        simulation.run_in_executor(without_cpus(other("d")), false);
        let told = simulation.acknowledge_all();
        let [refused] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert_eq!(refused.task_id.value, "d");
        assert_eq!(refused.state(), TaskError);
        assert!(refused.message().contains(words), "{}", refused.message());
    }
}

/// A group of a regular task `a` and a revocable task `b`.
fn group() -> (Simulation, ContainerId) {
    let mut simulation = Simulation::registered();
    simulation.capabilities = vec![FrameworkCapability::PartitionAware];
    simulation.run_group_of(vec![task("a"), oversubscribed("b", 1.0)], true);
    let outer = simulation.launches().remove(0);
    simulation.start(&outer);
    for container in simulation.launches() {
        simulation.start(&container);
    }
    simulation.resize(None);
    simulation.acknowledge_all();
    (simulation, outer)
}

#[test]
fn group_is_evicted_with_its_executor() {
    let (mut simulation, outer) = group();
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    simulation.correct(correction(Action::Kill, EXECUTOR));
    let thawed = |seen: &Seen| matches!(seen, Seen::Freeze(which, false) if *which == outer);
    assert!(simulation.seen.iter().any(thawed), "frozen, it cannot end");
    assert!(simulation.killed.contains(&outer));
    simulation.end(&outer, Exit::Signal(9));
    simulation.resize(None);
    let told = simulation.acknowledge_all();
    assert_evicted(&told, &["a", "b"], "load_5min is 7.200, limit 6.000");
}

#[test]
fn executor_eviction_survives_restart() {
    let (mut simulation, container) = mixed();
    simulation.correct(correction(Action::Kill, EXECUTOR));
    simulation.killed.clear();
    simulation.crash(false);
    // The executor will not come back, and the reported reason stays the same.
    simulation.advance(Duration::from_secs(3));
    assert!(simulation.killed.contains(&container), "killed again");
    simulation.end(&container, Exit::Signal(9));
    simulation.register();
    let told = simulation.acknowledge_all();
    assert_evicted(&told, &["a", "b"], "Container preempted by QoS correction");
}

/// The freezes and thaws since the last call, in order.
fn freezes(simulation: &mut Simulation, container: &ContainerId) -> Vec<bool> {
    let mut freezes = Vec::new();
    simulation.seen.retain(|seen| match seen {
        Seen::Freeze(which, frozen) if which == container => {
            freezes.push(*frozen);
            false
        }
        _ => true,
    });
    freezes
}

/// Regression: an executor that was frozen while its last revocable task ended stayed frozen for ever with all its
/// regular tasks.
#[test]
fn container_thaws_without_revocable_tasks() {
    for crashes in [false, true] {
        let (mut simulation, container) = mixed();
        simulation.tells(status("b", TaskFinished, 3));
        // The terminal update waits for the resize of the container: the task still counts.
        simulation.correct(correction(Action::Freeze, EXECUTOR));
        assert_eq!(freezes(&mut simulation, &container), [true]);
        simulation.resize(None);
        if crashes {
            simulation.crash(false);
        } else {
            simulation.assessment(Assessment::default());
        }
        assert_eq!(freezes(&mut simulation, &container), [false]);
    }
}

/// Regression: an executor that never sent an update of a task could not be frozen.
#[test]
fn freeze_ignores_missing_task_updates() {
    let (mut simulation, container) = mixed();
    simulation.run_in_executor(custom_revocable_memory("c"), false);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert!(
        freezes(&mut simulation, &container).is_empty(),
        "it is resized for the task"
    );
    simulation.resize(None);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &container), [true]);
}

#[test]
fn controller_thaws_container_without_revocable_tasks() {
    let (mut simulation, container) = mixed();
    simulation.tells(status("b", TaskFinished, 3));
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    simulation.resize(None);
    simulation.acknowledge_all();
    freezes(&mut simulation, &container);
    simulation.correct(correction(Action::Thaw, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &container), [false]);
    let snapshot = simulation.core.snapshot();
    assert_eq!(
        (
            snapshot.oversubscription.corrections_refused(),
            snapshot.frozen.len()
        ),
        (0, 0)
    );
}

/// Regression: a frozen executor received neither event, and was killed after a grace period that it could not use.
#[test]
fn frozen_executor_gets_kills_and_shutdown() {
    let (mut simulation, container) = mixed();
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &container), [true]);
    simulation.told(1);
    simulation.kill("b", Some(Duration::from_secs(30)));
    assert_eq!(freezes(&mut simulation, &container), [false]);
    assert_eq!(kinds(&simulation.told(1)), [Type::Kill]);

    let (mut simulation, container) = mixed();
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    freezes(&mut simulation, &container);
    simulation.told(1);
    simulation.tell(ToAgent::ShutdownExecutor(wire::ShutdownExecutor {
        framework_id: framework_id(),
        executor_id: executor_id(),
    }));
    assert_eq!(freezes(&mut simulation, &container), [false]);
    assert_eq!(kinds(&simulation.told(1)), [Type::Shutdown]);
}

/// Regression: an executor that saved its state in its grace period was the largest consumer, was frozen until the
/// period ended, and was killed.
#[test]
fn ending_container_is_not_frozen() {
    let grace = Some(Duration::from_secs(30));
    let mut simulation = Simulation::registered();
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.kill("t", grace);
    simulation.correct(correction(Action::Freeze, "t"));
    assert_eq!(freezes(&mut simulation, &container), Vec::<bool>::new());
    let state = simulation.core.snapshot().oversubscription;
    assert_eq!(
        (state.corrections_refused(), state.corrections().len()),
        (1, 0)
    );

    let (mut simulation, container) = mixed();
    simulation.kill("a", grace);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &container), Vec::<bool>::new());
    simulation.tells(status("a", TaskKilled, 3));
    simulation.resize(None);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &container), [true], "it is over");

    let (mut simulation, outer) = group();
    simulation.kill("b", grace);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(freezes(&mut simulation, &outer), Vec::<bool>::new());
}

/// The events between a controller and the core.
#[derive(Clone, Debug)]
enum Step {
    /// A correction that names an executor and optionally a container of any executor.
    Correct(usize, usize, Option<usize>),
    /// A container ends by itself.
    End(usize),
    /// An estimate that is unaware of the earlier events.
    Estimate(u32),
    /// Advances the clock by seconds.
    Advance(u64),
    /// The agent crashes and starts again.
    Crash,
}

/// The executors: two regular, two revocable, and one that never existed.
const NAMES: [&str; 5] = [
    "regular-0",
    "regular-1",
    "revocable-0",
    "revocable-1",
    "nobody",
];
const REGULAR: usize = 2;
const ACTIONS: [Action; 3] = [Action::Kill, Action::Freeze, Action::Thaw];

fn step() -> impl Strategy<Value = Step> {
    let container = proptest::option::of(0..NAMES.len() - 1);
    prop_oneof![
        6 => (0..ACTIONS.len(), 0..NAMES.len(), container)
            .prop_map(|(action, name, container)| Step::Correct(action, name, container)),
        2 => (0..NAMES.len() - 1).prop_map(Step::End),
        1 => (0..9_u32).prop_map(Step::Estimate),
        1 => (1..20_u64).prop_map(Step::Advance),
        1 => Just(Step::Crash),
    ]
}

/// Carries out the steps. Returns the containers that a valid correction named for a kill.
fn play(
    simulation: &mut Simulation,
    containers: &[ContainerId],
    steps: &[Step],
) -> Vec<ContainerId> {
    let mut meant = Vec::new();
    for step in steps {
        match step {
            Step::Correct(action, name, container) => {
                let action = ACTIONS[*action];
                let named = container.map(|index| containers[index].clone());
                let own = containers.get(*name);
                if action == Action::Kill && (named.is_none() || named.as_ref() == own) {
                    meant.extend(own.cloned());
                }
                simulation.correct(Correction {
                    container: named,
                    ..correction(action, NAMES[*name])
                });
            }
            Step::End(index) => {
                let container = containers[*index].clone();
                if simulation.machine.contains_key(&container) {
                    simulation.end(&container, Exit::Code(0));
                }
            }
            Step::Estimate(cpus) => simulation.estimate("cpus:2", &format!("cpus:{cpus}")),
            Step::Advance(seconds) => simulation.advance(Duration::from_secs(*seconds)),
            Step::Crash => {
                simulation.restart();
            }
        }
    }
    meant
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// For any corrections, ends and restarts: no regular container is killed or frozen, no other container than the
    /// named one is touched, and no regular task is reported as evicted.
    #[test]
    fn corrections_never_touch_regular_containers(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let mut simulation = Simulation::registered();
        let mut containers = Vec::new();
        for name in &NAMES[..REGULAR] {
            containers.push(simulation.running(task(name)));
        }
        for name in &NAMES[REGULAR..NAMES.len() - 1] {
            containers.push(simulation.running(oversubscribed(name, 1.0)));
        }
        let meant = play(&mut simulation, &containers, &steps);
        let (regular, borrowed) = containers.split_at(REGULAR);
        for killed in &simulation.killed {
            prop_assert!(!regular.contains(killed), "a regular container was killed");
            prop_assert!(meant.contains(killed), "another than the one that was named");
        }
        for seen in &simulation.seen {
            if let Seen::Freeze(container, true) = seen {
                prop_assert!(borrowed.contains(container), "a regular container was frozen");
            }
        }
        for container in &containers {
            if simulation.machine.contains_key(container) {
                simulation.end(container, Exit::Signal(9));
            }
        }
        for status in simulation.acknowledge_all() {
            let is_regular = NAMES[..REGULAR].contains(&status.task_id.value.as_str());
            prop_assert!(!is_regular || status.reason() != Reason::ContainerPreempted);
        }
    }
}
