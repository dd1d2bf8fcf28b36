//! Recovery after a crash, from the real checkpoint store.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::convert;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskFailed, TaskFinished, TaskKilled, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{Resources, Role, TaskId};

use super::custom::status;
use super::simulation::{Seen, Simulation, duration, identity, registered, states, task};
use crate::checkpoint::{LogEntry, TaskKey, Write};
use crate::core::{Exit, Input};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn running_task_survives_restart() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.restart();
    assert!(simulation.take_updates().is_empty());
    simulation.end(&container, Exit::Code(0));
    assert_eq!(simulation.told_states(), [TaskFinished]);
}

#[test]
fn restart_before_containerizer_launch() {
    let mut simulation = Simulation::registered();
    simulation.run(task("t"));
    simulation.restart();
    let told = simulation.acknowledge_all();
    assert_eq!(states(&told), [TaskFailed]);
    assert_eq!(told[0].reason(), Reason::AgentRestarted);
    simulation.restart();
    assert!(simulation.acknowledge_all().is_empty());
    assert!(simulation.core.snapshot().frameworks.is_empty());
}

/// The folders of the launch were made, but nothing was begun.
#[test]
fn prepared_launch_is_reported_as_unbegun() {
    let (mut simulation, container) = Simulation::launching();
    simulation.end(&container, Exit::NeverBegun);
    let told = simulation.acknowledge_all();
    assert_eq!(states(&told), [TaskFailed]);
    assert_eq!(told[0].reason(), Reason::AgentRestarted);
    assert!(told[0].container_status.is_none(), "{told:?}");
}

#[test]
fn unreported_start_becomes_running() {
    let (mut simulation, container) = Simulation::launching();
    // The task was executed, and the agent crashed before it learned of that.
    simulation.machine.insert(container.clone(), identity(1));
    simulation.restart();
    assert_eq!(simulation.told_states(), [TaskStarting, TaskRunning]);
    simulation.end(&container, Exit::Code(0));
    assert_eq!(simulation.told_states(), [TaskFinished]);
}

/// The task was executed and has ended before the agent came back and learned of either.
#[test]
fn unreported_start_precedes_the_end() {
    let (mut simulation, container) = Simulation::launching();
    simulation.end(&container, Exit::Code(3));
    assert_eq!(
        simulation.told_states(),
        [TaskStarting, TaskRunning, TaskFailed]
    );
}

#[test]
fn a_reboot_ends_every_task() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.crash(true);
    simulation.register();
    let told = simulation.acknowledge_all();
    assert_eq!(states(&told), [TaskFailed]);
    assert!(
        told[0]
            .message
            .as_deref()
            .unwrap_or_default()
            .contains("booted")
    );
}

#[test]
fn only_unacknowledged_updates_are_resent() {
    let (mut simulation, container) = Simulation::launching();
    simulation.start(&container);
    let starting = simulation.take_updates().remove(0).status;
    simulation.acknowledge(&starting);
    let running = simulation.take_updates().remove(0).status;
    simulation.restart();
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].uuid, running.uuid);
}

#[test]
fn terminal_update_survives_until_acknowledged() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.end(&container, Exit::Code(0));
    simulation.take_updates();
    simulation.crash(false);
    simulation.restart();
    assert_eq!(simulation.told_states(), [TaskFinished]);
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn kill_resumes_with_remaining_grace() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.kill("t", Some(Duration::from_secs(10)));
    simulation.advance(Duration::from_secs(4));
    simulation.crash(false);
    assert_eq!(simulation.kills().last(), Some(&Duration::from_secs(6)));
    simulation.register();
    simulation.end(&container, Exit::Signal(15));
    assert_eq!(simulation.told_states(), [TaskKilled]);
}

#[test]
fn the_completion_time_counts_over_crashes() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.max_completion_time = Some(duration(Duration::from_secs(60)));
    simulation.running(info);
    simulation.advance(Duration::from_secs(50));
    simulation.crash(false);
    simulation.advance(Duration::from_secs(9));
    assert!(simulation.kills().is_empty());
    simulation.advance(Duration::from_secs(2));
    assert_eq!(simulation.kills(), [Duration::ZERO]);
}

/// Changes of the wall clock while the agent is down: ahead, or back.
const CLOCK_CHANGES: [fn(Duration) -> Duration; 2] = [|unix| unix + HOUR, |unix| unix - HOUR];

#[test]
fn clock_change_keeps_kill_grace() {
    for change in CLOCK_CHANGES {
        let (mut simulation, _) = Simulation::with_task();
        simulation.kill("t", Some(Duration::from_secs(10)));
        simulation.advance(Duration::from_secs(4));
        simulation.now.unix = change(simulation.now.unix);
        simulation.crash(false);
        assert_eq!(simulation.kills(), [10 * SECOND, 6 * SECOND]);
    }
}

#[test]
fn clock_change_keeps_completion_time() {
    for change in CLOCK_CHANGES {
        let mut simulation = Simulation::registered();
        let mut info = task("t");
        info.max_completion_time = Some(duration(60 * SECOND));
        simulation.running(info);
        simulation.advance(50 * SECOND);
        simulation.now.unix = change(simulation.now.unix);
        simulation.crash(false);
        simulation.advance(9 * SECOND);
        assert!(simulation.kills().is_empty());
        simulation.advance(2 * SECOND);
        assert_eq!(simulation.kills(), [Duration::ZERO]);
    }
}

#[test]
fn an_agent_id_is_kept() {
    let mut simulation = Simulation::registered();
    simulation.crash(false);
    simulation.link_up();
    assert!(matches!(
        simulation.frames.last(),
        Some(FromAgent::Reregister(_))
    ));
}

#[test]
fn recovering_twice_gives_the_same() {
    let mut simulation = Simulation::registered();
    simulation.running(task("lives"));
    simulation.run(task("never-launched"));
    let ended = simulation.running(task("ended"));
    simulation.end(&ended, Exit::Code(0));
    let told = |simulation: &mut Simulation| {
        simulation.crash(false);
        let snapshot = simulation.core.snapshot();
        let tasks = snapshot.executors();
        tasks
            .map(|executor| {
                let task = executor.command_task().expect("a command");
                (executor.key.clone(), task.state, executor.container.phase)
            })
            .collect::<Vec<_>>()
    };
    let first = told(&mut simulation);
    assert_eq!(first.len(), 3);
    assert_eq!(first, told(&mut simulation));
    assert_eq!(first, told(&mut simulation));
}

#[test]
fn lost_writes_had_no_effect() {
    let mut simulation = Simulation::registered();
    simulation.quick_disk = false;
    simulation.run(task("t"));
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Launch(_))));
    simulation.crash(false);
    simulation.flush(usize::MAX);
    simulation.quick_disk = true;
    simulation.register();
    // The master reconciles a task that it believes to run here; the agent does not know the task.
    assert!(simulation.core.snapshot().frameworks.is_empty());
    simulation.step(Input::Tick);
}

/// The signal had reached the task, but its record had not reached the disk: the supervisor's record shows it.
#[test]
fn supervisor_recorded_kill_survives_restart() {
    for (exit, kill_requested, state) in [
        (Exit::Signal(15), Some(true), TaskKilled),
        (Exit::Signal(9), Some(true), TaskKilled),
        (Exit::Code(0), Some(true), TaskKilled),
        (Exit::Signal(15), Some(false), TaskFailed),
        (Exit::Signal(15), None, TaskFailed),
    ] {
        let (mut simulation, container) = Simulation::with_task();
        simulation.quick_disk = false;
        simulation.kill("t", None);
        simulation.machine.remove(&container);
        simulation.unheard.push(container.clone());
        simulation.crash(false);
        simulation.quick_disk = true;
        simulation.register();
        simulation.end_recorded(&container, exit.clone(), kill_requested);
        let told = simulation.acknowledge_all();
        assert_eq!(states(&told), [state], "{exit:?} {kill_requested:?}");
    }
}

/// Regression: the agent was compared with its first registration, and could come back with less than its tasks used.
#[test]
fn reconfiguration_compares_with_last_registration() {
    const GROWN: &str = "cpus:8;mem:1024;disk:100";
    let recorded = |simulation: &Simulation| {
        let record = simulation.image().agent.and_then(|agent| agent.record);
        let info = record.expect("a record").info;
        let resources: Resources = convert::resources(&info.resources).expect("resources");
        resources.to_string()
    };
    let mut simulation = Simulation::registered();
    let before = recorded(&simulation);
    simulation.configured = GROWN;
    simulation.crash(false);
    simulation.link_up();
    // A master that refuses the description changes nothing.
    assert_eq!(recorded(&simulation), before);
    simulation.tell(registered());
    let grown = Resources::parse(GROWN, &Role::star()).expect("resources");
    assert_eq!(recorded(&simulation), grown.to_string());
}

/// The kill was written, no signal was sent, and the task ended by itself before the agent came back.
#[test]
fn unsent_kill_leaves_own_exit() {
    for (exit, state) in [(Exit::Code(0), TaskFinished), (Exit::Code(3), TaskFailed)] {
        let (mut simulation, container) = Simulation::with_task();
        simulation.kill("t", None);
        simulation.machine.remove(&container);
        simulation.unheard.push(container.clone());
        simulation.restart();
        simulation.end_recorded(&container, exit, Some(false));
        assert_eq!(simulation.told_states(), [state]);
    }
}

/// The task was launched, but the agent crashed before it learned of that. The task was to be killed, and ran to its
/// end instead.
#[test]
fn running_task_not_killed_during_launch() {
    let (mut simulation, container) = Simulation::launching();
    simulation.kill("t", None);
    simulation.unheard.push(container.clone());
    simulation.restart();
    simulation.end_recorded(&container, Exit::Code(0), Some(false));
    assert_eq!(
        simulation.told_states(),
        [TaskStarting, TaskRunning, TaskFinished]
    );
}

#[test]
fn drain_resumes_after_crash() {
    use meseta_proto::meseta::v1 as wire;
    use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
    use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
    let mut simulation = Simulation::registered();
    simulation
        .capabilities
        .push(FrameworkCapability::PartitionAware);
    let container = simulation.running(task("t"));
    let config = pb::DrainConfig {
        max_grace_period: Some(duration(SECOND)),
        mark_gone: Some(true),
    };
    simulation.tell(ToAgent::Drain(wire::Drain { config }));
    assert_eq!(simulation.kills(), [SECOND]);
    simulation.restart();
    // Before the master has repeated the drain.
    simulation.run(task("late"));
    let late = simulation.acknowledge_all();
    assert_eq!(states(&late), [pb::TaskState::TaskDropped]);
    assert_eq!(late[0].reason(), Reason::AgentDraining);
    simulation.end(&container, Exit::Signal(15));
    let told = simulation.acknowledge_all();
    assert_eq!(states(&told), [pb::TaskState::TaskGoneByOperator]);
    assert_eq!(told[0].reason(), Reason::AgentDraining);
    // The drain ends with the last task, also after a restart.
    simulation.restart();
    simulation.running(task("next"));
}

#[test]
fn full_disk_refuses_tasks_sends_updates() {
    use crate::checkpoint::DiskCondition;
    let mut simulation = Simulation::registered();
    let container = simulation.running(task("t"));
    for condition in [DiskCondition::Full, DiskCondition::Failing] {
        simulation.step(Input::Disk(condition));
        simulation.run(task("late"));
        simulation.assert_only_told(pb::TaskState::TaskLost, Reason::ContainerLaunchFailed);
    }
    simulation.end(&container, Exit::Code(0));
    assert_eq!(simulation.told_states(), [TaskFinished]);
    simulation.step(Input::Disk(DiskCondition::Writable));
    simulation.running(task("late"));
}

/// An agent with `--recover=cleanup` is killed, and then an agent recovers its tasks: the tasks with a begun kill end
/// as killed, and the agent continues.
#[test]
fn interrupted_cleanup_reports_finished_kills() {
    let mut simulation = Simulation::registered();
    let [first, second] = ["first", "second"].map(|id| simulation.running(task(id)));
    simulation.step(Input::Stop { kill_tasks: true });
    assert_eq!(simulation.kills().len(), 2);
    simulation.end(&first, Exit::Signal(15));
    simulation.take_updates();
    simulation.crash(false);
    assert_eq!(
        simulation.kills().len(),
        3,
        "the kill of the second goes on"
    );
    simulation.register();
    simulation.end(&second, Exit::Signal(15));
    assert_eq!(simulation.told_states(), [TaskKilled, TaskKilled]);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Exit(_))));
    simulation.running(task("third"));
}

/// From an executor whose stream broke before the acknowledgement, or from a malicious executor.
#[test]
fn ended_task_ignores_later_executor_updates() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.tells(status("a", TaskFinished, 1));
    simulation.resize(None);
    simulation.acknowledge_all();
    for uuid in [3, 3, 4] {
        simulation.tells(status("a", TaskRunning, uuid));
    }
    assert_eq!(simulation.told_states(), [TaskRunning, TaskRunning]);
    // The log entries of an earlier version.
    let key = simulation.image().frameworks[0].runs[0].key.clone();
    let key = TaskKey {
        run: key,
        task: TaskId::new("a").expect("an id"),
    };
    simulation.write(Write::Log {
        key: Arc::new(key),
        entry: Box::new(LogEntry::Update(status("a", TaskRunning, 5))),
    });
    simulation.crash(false);
    simulation.subscribe(2, call::Subscribe::default());
    // Only the executor's own memory.
    assert_eq!(simulation.resize(None), [32]);
    simulation.link_up();
    let FromAgent::Reregister(return_of) = simulation.frames.last().expect("a return") else {
        panic!("no return: {:?}", simulation.frames.last());
    };
    assert!(return_of.tasks.is_empty(), "{return_of:?}");
    let snapshot = simulation.core.snapshot();
    let executors: Vec<_> = snapshot.executors().collect();
    assert!(executors[0].tasks.is_empty() && executors[0].completed[0].is_terminal());
}
