//! Failed launches, kills, and the reported ends of containers.

use std::time::Duration;

use meseta_isolators::Limit;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskError, TaskFailed, TaskFinished, TaskKilled, TaskKilling, TaskRunning,
};
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::{Reason, Source};

use super::custom::{EXECUTOR, status};
use super::simulation::{
    Seen, Simulation, duration, framework_id, registered, scalar, task, task_id,
};
use crate::core::{Exit, ExitReason, Input, State};

const SECOND: Duration = Duration::from_secs(1);

fn ended(exit: Exit) -> pb::TaskStatus {
    let (mut simulation, container) = Simulation::with_task();
    simulation.end(&container, exit);
    let mut told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    told.remove(0)
}

#[test]
fn command_exit_status_matches_mesos() {
    for (exit, state, message) in [
        (Exit::Code(0), TaskFinished, "Command exited with status 0"),
        (Exit::Code(3), TaskFailed, "Command exited with status 3"),
        (
            Exit::Signal(9),
            TaskFailed,
            "Command terminated with signal Killed",
        ),
        (
            Exit::Signal(11),
            TaskFailed,
            "Command terminated with signal Segmentation fault",
        ),
    ] {
        let status = ended(exit);
        assert_eq!(status.state(), state);
        assert_eq!(status.message.as_deref(), Some(message));
        assert_eq!(status.source(), Source::Executor);
        assert_eq!(status.reason, None);
    }
}

#[test]
fn unknown_exit_is_a_failure() {
    let status = ended(Exit::Unknown("no record".to_owned()));
    assert_eq!(status.state(), TaskFailed);
    assert_eq!(status.reason(), Reason::ExecutorTerminated);
    assert_eq!(status.source(), Source::Agent);
}

#[test]
fn memory_limit_outranks_kill() {
    for killed in [false, true] {
        let (mut simulation, container) = Simulation::with_task();
        if killed {
            simulation.kill("t", None);
        }
        simulation.out_of_memory(container, 64.0);
        let status = simulation.acknowledge_all().pop().expect("an update");
        assert_eq!(status.state(), TaskFailed);
        assert_eq!(status.reason(), Reason::ContainerLimitationMemory);
        let limited = status.limitation.expect("a limitation").resources;
        assert_eq!(limited[0].scalar.map(|scalar| scalar.value), Some(64.0));
    }
}

/// Regression: the kernel's counter of kills ends with the container, so that tasks ended by such a kill were not
/// counted.
#[test]
fn memory_kills_counted_after_container_end() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.out_of_memory(container, 64.0);
    simulation.acknowledge_all();
    let counts = simulation.core.snapshot().counters.tasks_out_of_memory;
    assert_eq!(counts.values().sum::<u64>(), 1, "{counts:?}");
}

#[test]
fn failed_launch_reports_only_its_cause() {
    let (mut simulation, container) = Simulation::launching();
    simulation.launch_fails(container, "no such user: \"x\"");
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), TaskFailed);
    assert_eq!(told[0].reason(), Reason::ContainerLaunchFailed);
    assert_eq!(told[0].source(), Source::Agent);
    let message = told[0].message.as_deref();
    assert_eq!(
        message,
        Some("Failed to launch container: no such user: \"x\"")
    );
    assert!(told[0].container_status.is_none());
}

#[test]
fn kill_grace_precedence_call_task_default() {
    for (of_kill, of_task, expected) in [
        (None, None, 3),
        (None, Some(7), 7),
        (Some(9), Some(7), 9),
        (Some(0), Some(7), 0),
    ] {
        let mut simulation = Simulation::registered();
        let mut info = task("t");
        info.kill_policy = of_task.map(|seconds: u32| pb::KillPolicy {
            grace_period: Some(duration(SECOND * seconds)),
        });
        simulation.running(info);
        simulation.kill("t", of_kill.map(|seconds: u32| SECOND * seconds));
        assert_eq!(simulation.kills(), [SECOND * expected]);
    }
}

#[test]
fn killing_state_needs_framework_capability() {
    for capable in [false, true] {
        let mut simulation = Simulation::registered();
        if capable {
            simulation
                .capabilities
                .push(FrameworkCapability::TaskKillingState);
        }
        let container = simulation.running(task("t"));
        simulation.kill("t", None);
        simulation.end(&container, Exit::Signal(15));
        let told = simulation.acknowledge_all();
        let states: Vec<_> = told.iter().map(pb::TaskStatus::state).collect();
        if capable {
            assert_eq!(states, [TaskKilling, TaskKilled]);
        } else {
            assert_eq!(states, [TaskKilled]);
        }
        let last = told.last().expect("an update");
        assert_eq!(
            last.message.as_deref(),
            Some("Command terminated with signal Terminated")
        );
    }
}

#[test]
fn killed_wins_over_a_clean_exit() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.kill("t", None);
    simulation.end(&container, Exit::Code(0));
    assert_eq!(simulation.acknowledge_all()[0].state(), TaskKilled);
}

#[test]
fn second_kill_only_shortens_grace() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.kill("t", Some(SECOND * 10));
    simulation.kill("t", Some(SECOND * 20));
    assert_eq!(simulation.kills(), [SECOND * 10]);
    simulation.advance(SECOND * 4);
    simulation.kill("t", Some(SECOND * 8));
    assert_eq!(simulation.kills(), [SECOND * 10]);
    simulation.kill("t", Some(SECOND * 2));
    assert_eq!(simulation.kills(), [SECOND * 10, SECOND * 2]);
}

#[test]
fn container_outliving_kill_is_destroyed() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.kill("t", Some(SECOND * 5));
    simulation.advance(SECOND * 5);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Destroy(_))));
    simulation.advance(SECOND);
    assert!(
        matches!(simulation.seen.last(), Some(Seen::Destroy(destroyed)) if *destroyed == container)
    );
    assert!(
        simulation.take_updates().is_empty(),
        "it is not told killed before it is gone"
    );
}

#[test]
fn kill_before_launch_prevents_launch() {
    // The container was not begun, and never will be.
    let (mut simulation, container) = Simulation::launching();
    simulation.kill("t", None);
    simulation.launch_fails(container, "not wanted");
    simulation.assert_only_told(TaskKilled, Reason::TaskKilledDuringLaunch);
}

#[test]
fn kill_during_launch_ends_container() {
    let (mut simulation, container) = Simulation::launching();
    simulation.kill("t", None);
    simulation.start(&container);
    assert!(
        simulation.take_updates().is_empty(),
        "it is never told to have started"
    );
    assert_eq!(simulation.kills(), [SECOND * 3; 2]);
    simulation.advance(SECOND * 4);
    assert!(simulation.saw(|seen| matches!(seen, Seen::Destroy(_))));
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskKilled, Reason::TaskKilledDuringLaunch);
}

/// The task ended before the core learned of its start, and before the kill.
#[test]
fn own_exit_is_not_launch_kill() {
    for (kill_requested, state) in [
        (None, TaskKilled),
        (Some(true), TaskKilled),
        (Some(false), TaskFailed),
    ] {
        let (mut simulation, container) = Simulation::launching();
        simulation.kill("t", None);
        simulation.end_recorded(&container, Exit::Code(3), kill_requested);
        let told = simulation.acknowledge_all();
        let last = told.last().expect("an end");
        let message = "Command exited with status 3";
        assert_eq!((last.state(), last.message()), (state, message));
    }
}

/// An earlier agent sent the kill, and crashed before the kill was on its disk.
#[test]
fn supervisor_recorded_kill_is_task_killed() {
    for exit in [Exit::Signal(15), Exit::Code(3)] {
        for (kill_requested, state) in [(true, TaskKilled), (false, TaskFailed)] {
            let (mut simulation, container) = Simulation::with_task();
            simulation.end_recorded(&container, exit.clone(), Some(kill_requested));
            assert_eq!(simulation.told_states(), [state], "{exit:?}");
        }
    }
}

#[test]
fn task_ends_at_max_completion_time() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.max_completion_time = Some(duration(SECOND * 60));
    let container = simulation.running(info);
    simulation.advance(SECOND * 59);
    assert!(simulation.kills().is_empty());
    simulation.advance(SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskFailed, Reason::MaxCompletionTimeReached);
}

#[test]
fn kill_of_unknown_task_is_ignored() {
    let mut simulation = Simulation::registered();
    simulation.kill("nobody", None);
    simulation.kill("", None);
    simulation.kill("a/b", None);
    assert!(simulation.take_updates().is_empty());
}

#[test]
fn duplicate_task_id_is_refused() {
    let (mut simulation, _) = Simulation::with_task();
    let launches = simulation.seen.len();
    simulation.run(task("t"));
    assert_eq!(simulation.seen.len(), launches);
    assert!(simulation.take_updates().is_empty());
}

/// The executor that the agent makes for a command task has the task's id.
#[test]
fn command_task_with_executor_id_refused() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.run(task(EXECUTOR));
    let told = simulation.acknowledge_all();
    let [refused] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(refused.state(), TaskError);
    assert_eq!(refused.reason(), Reason::TaskInvalid);
    assert!(refused.message().contains("of an executor"), "{refused:?}");
    assert_eq!(
        simulation.launched(),
        container,
        "nothing else was launched"
    );
    // The executor continues, and its updates are accepted.
    simulation.tells(status("a", TaskRunning, 1));
    assert_eq!(simulation.told_states(), [TaskRunning]);
    simulation.end(&container, Exit::Code(0));
    // The executor's unacknowledged updates keep the id in use as well.
    simulation.run(task(EXECUTOR));
    let told = simulation.told_states();
    assert_eq!(told, [TaskFailed, TaskError]);
    // After that the id is free.
    let command = simulation.running(task(EXECUTOR));
    assert_ne!(command, container);
}

#[test]
fn task_id_reusable_after_final_acknowledgement() {
    let mut simulation = Simulation::registered();
    let first = simulation.running(task("t"));
    simulation.end(&first, Exit::Code(0));
    simulation.acknowledge_all();
    let second = simulation.running(task("t"));
    assert_ne!(first, second);
    simulation.end(&second, Exit::Code(1));
    assert_eq!(simulation.acknowledge_all()[0].state(), TaskFailed);
}

fn refused(change: impl FnOnce(&mut pb::TaskInfo)) -> pb::TaskStatus {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    change(&mut info);
    simulation.run(info);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Launch(_))));
    let mut told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    told.remove(0)
}

#[test]
fn invalid_task_is_refused_with_reason() {
    let limit = |name: &str, value: f64| (name.to_owned(), pb::value::Scalar { value });
    type Change = Box<dyn FnOnce(&mut pb::TaskInfo)>;
    let cases: Vec<(Change, &str)> = vec![
        (
            Box::new(|t| t.agent_id.value = "S9".to_owned()),
            "is for agent 'S9'",
        ),
        (
            Box::new(|t| t.command = None),
            "neither a command nor an executor",
        ),
        (Box::new(|t| t.executor = Some(Box::default())), "not both"),
        (
            Box::new(|t| t.resources = vec![scalar("cpus", -1.0)]),
            "resources are invalid",
        ),
        (
            Box::new(|t| t.resources = vec![scalar("cpus", f64::NAN)]),
            "resources are invalid",
        ),
        (
            Box::new(move |t| t.limits.extend([limit("disk", 1.0)])),
            "no limit can be set on 'disk'",
        ),
        (
            Box::new(move |t| t.limits.extend([limit("cpus", 0.5)])),
            "is below the request",
        ),
        (
            Box::new(move |t| t.limits.extend([limit("cpus", f64::NAN)])),
            "the limit on 'cpus' is NaN",
        ),
        (
            Box::new(|t| t.health_check = Some(Box::default())),
            "HealthCheck must specify 'type'",
        ),
    ];
    for (change, complaint) in cases {
        let status = refused(change);
        assert_eq!(status.state(), TaskError);
        assert_eq!(status.reason(), Reason::TaskInvalid);
        let message = status.message.unwrap_or_default();
        assert!(
            message.contains(complaint),
            "{message:?} lacks {complaint:?}"
        );
    }
}

#[test]
fn requests_and_limits_become_kernel_units() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.resources = vec![scalar("cpus", 0.5), scalar("mem", 32.5)];
    let unlimited = pb::value::Scalar {
        value: f64::INFINITY,
    };
    info.limits.insert("mem".to_owned(), unlimited);
    info.limits
        .insert("cpus".to_owned(), pb::value::Scalar { value: 1.25 });
    simulation.running(info);
    let snapshot = simulation.core.snapshot();
    let demand = snapshot
        .executors()
        .next()
        .expect("an executor")
        .container
        .demand;
    assert_eq!(demand.cpus_millis, 500);
    assert_eq!(demand.cpus_limit, Some(Limit::At(1250)));
    assert_eq!(demand.mem_bytes, Some(32 * 1024 * 1024 + 512 * 1024));
    assert_eq!(demand.mem_limit, Some(Limit::Unlimited));
}

#[test]
fn group_without_executor_id_is_refused() {
    let mut simulation = Simulation::registered();
    let framework = simulation.framework();
    simulation.tell(ToAgent::RunTaskGroup(wire::RunTaskGroup {
        framework,
        executor: pb::ExecutorInfo::default(),
        task_group: pb::TaskGroupInfo {
            tasks: vec![task("a"), task("b")],
        },
        launch_executor: true,
        resource_version_uuid: None,
        accepted_time: None,
    }));
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 2);
    assert!(
        told.iter().all(
            |status| status.state() == TaskError && status.reason() == Reason::TaskGroupInvalid
        )
    );
}

#[test]
fn framework_shutdown_ends_tasks_without_acknowledgements() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.tell(ToAgent::ShutdownFramework(wire::ShutdownFramework {
        framework_id: framework_id(),
    }));
    assert_eq!(simulation.kills().len(), 1);
    simulation.end(&container, Exit::Signal(15));
    assert!(simulation.core.snapshot().frameworks.is_empty());
    assert!(simulation.image().frameworks.is_empty());
    simulation.take_updates();
    simulation.advance(Duration::from_secs(20));
    assert!(simulation.take_updates().is_empty());
}

#[test]
fn refusals_end_with_their_framework() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.agent_id.value = "another".to_owned();
    simulation.run(info);
    assert_eq!(simulation.take_updates().len(), 1);
    simulation.tell(ToAgent::ShutdownFramework(wire::ShutdownFramework {
        framework_id: framework_id(),
    }));
    for sequence in 0..30 {
        simulation.ping(sequence);
        simulation.advance(SECOND * 30);
    }
    assert_eq!(simulation.take_updates(), []);
}

#[test]
fn stop_leaves_tasks_unless_asked() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.step(Input::Stop { kill_tasks: false });
    assert!(matches!(
        simulation.seen.last(),
        Some(Seen::Exit(ExitReason::Stopped))
    ));
    assert!(simulation.kills().is_empty());

    let mut simulation_with = Simulation::registered();
    let container_with = simulation_with.running(task("t"));
    simulation_with.step(Input::Stop { kill_tasks: true });
    assert_eq!(simulation_with.kills().len(), 1);
    assert!(!simulation_with.saw(|seen| matches!(seen, Seen::Exit(_))));
    simulation_with.end(&container_with, Exit::Signal(15));
    assert!(matches!(
        simulation_with.seen.last(),
        Some(Seen::Exit(ExitReason::Stopped))
    ));
    assert_eq!(simulation_with.core.state(), State::Terminating);
}

/// An agent of Mesos unregisters on SIGUSR1. Regression: the signal ended the process and left the tasks running.
#[test]
fn agent_unregisters_after_tasks_end() {
    let unregistered = |simulation: &Simulation| {
        let sent = simulation.frames.iter();
        sent.filter(|frame| matches!(frame, FromAgent::Unregister(_)))
            .count()
    };
    let exited = |simulation: &Simulation| match simulation.seen.last() {
        Some(Seen::Exit(reason)) => Some(reason.clone()),
        _ => None,
    };
    let mut simulation = Simulation::registered();
    let container = simulation.running(task("t"));
    simulation.step(Input::Unregister);
    assert_eq!(simulation.kills().len(), 1);
    assert_eq!(unregistered(&simulation), 0);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Exit(_))));
    simulation.end(&container, Exit::Signal(15));
    // The master accepts the terminal update only from a registered agent, so that update comes first.
    assert_eq!(unregistered(&simulation), 0);
    assert_eq!(simulation.told_states(), [TaskKilled]);
    assert_eq!(exited(&simulation), Some(ExitReason::Unregistered));

    // No acknowledgement arrives.
    let (mut unheard, container) = Simulation::with_task();
    unheard.step(Input::Unregister);
    unheard.end(&container, Exit::Signal(15));
    unheard.advance(4 * SECOND);
    assert_eq!(unregistered(&unheard), 0);
    unheard.advance(2 * SECOND);
    assert_eq!(unregistered(&unheard), 1);

    // Acknowledgements that arrived during a pause of the process are read first.
    let (mut paused, container) = Simulation::with_task();
    paused.step(Input::Unregister);
    paused.end(&container, Exit::Signal(15));
    paused.advance(4 * SECOND);
    paused.stand_still(60 * SECOND);
    assert!(!paused.saw(|seen| matches!(seen, Seen::Exit(_))));
    paused.acknowledge_all();
    assert_eq!(exited(&paused), Some(ExitReason::Unregistered));

    // Without tasks and without a master the agent ends as well.
    for is_connected in [true, false] {
        let mut idle = Simulation::registered();
        if !is_connected {
            idle.link_down();
        }
        idle.step(Input::Unregister);
        assert_eq!(unregistered(&idle), usize::from(is_connected));
        let expected = match is_connected {
            true => ExitReason::Unregistered,
            // No answer is expected from anybody.
            false => ExitReason::Stopped,
        };
        assert_eq!(exited(&idle), Some(expected));
    }

    // The connection breaks while tasks end.
    let (mut cut, container) = Simulation::with_task();
    cut.step(Input::Unregister);
    cut.link_down();
    cut.end(&container, Exit::Signal(15));
    assert_eq!(unregistered(&cut), 0);
    assert_eq!(exited(&cut), Some(ExitReason::Stopped));

    // The master is back, or another one leads, before the tasks have ended.
    let (mut found, container) = Simulation::with_task();
    found.step(Input::Unregister);
    found.link_down();
    found.link_up();
    found.tell(registered());
    assert_eq!(found.core.state(), State::Terminating);
    found.end(&container, Exit::Signal(15));
    assert_eq!(found.told_states(), [TaskKilled]);
    assert_eq!(exited(&found), Some(ExitReason::Unregistered));

    // An operator that cannot wait ends the agent.
    let (mut impatient, _) = Simulation::with_task();
    impatient.step(Input::Unregister);
    impatient.step(Input::Stop { kill_tasks: false });
    assert_eq!(exited(&impatient), Some(ExitReason::Stopped));
    assert_eq!(unregistered(&impatient), 0);

    // An operator may also have the tasks end, but skip the unregistration.
    let (mut stopped, container) = Simulation::with_task();
    stopped.step(Input::Unregister);
    stopped.step(Input::Stop { kill_tasks: true });
    stopped.end(&container, Exit::Signal(15));
    assert_eq!(exited(&stopped), Some(ExitReason::Stopped));
    assert_eq!(unregistered(&stopped), 0);
}

/// Regression: a task that arrived meanwhile got no answer, and a task with a long grace period could not be killed
/// sooner.
#[test]
fn unregistering_agent_takes_kills_not_tasks() {
    let mut simulation = Simulation::registered();
    let mut slow = task("slow");
    slow.kill_policy = Some(pb::KillPolicy {
        grace_period: Some(duration(3600 * SECOND)),
    });
    let container = simulation.running(slow);
    simulation.step(Input::Unregister);
    simulation.frames.clear();
    simulation.run(task("late"));
    let refused = simulation.frames.iter().find_map(|frame| match frame {
        FromAgent::StatusUpdate(update) => Some(&update.status),
        _ => None,
    });
    let refused = refused.expect("it is told");
    assert_eq!(refused.task_id.value, "late");
    assert_eq!(
        refused.message(),
        "The agent is about to end, once its tasks have"
    );
    simulation.tell(ToAgent::KillTask(wire::KillTask {
        framework_id: framework_id(),
        task_id: task_id("slow"),
        kill_policy: Some(pb::KillPolicy {
            grace_period: Some(duration(SECOND)),
        }),
    }));
    assert_eq!(simulation.kills(), [3600 * SECOND, SECOND]);
    simulation.end(&container, Exit::Signal(15));
    simulation.acknowledge_all();
    assert!(simulation.saw(|seen| matches!(seen, Seen::Exit(ExitReason::Unregistered))));
}

#[test]
fn completed_executors_are_bounded_in_bytes() {
    let mut simulation = Simulation::registered();
    for number in 0..3 {
        let mut task = task(&format!("large-{number}"));
        task.name = "x".repeat(400 << 10);
        let container = simulation.running(task);
        simulation.end(&container, Exit::Code(0));
        simulation.acknowledge_all();
    }
    let snapshot = simulation.core.snapshot();
    let frameworks = snapshot
        .frameworks
        .values()
        .chain(&snapshot.completed_frameworks);
    let kept = frameworks.flat_map(|framework| &framework.completed);
    let kept: Vec<_> = kept
        .map(|executor| executor.key.executor.as_str())
        .collect();
    assert_eq!(kept, ["large-1", "large-2"]);
}

#[test]
fn completed_executors_are_bounded_in_number() {
    let mut simulation = Simulation::registered();
    simulation.running(task("stays"));
    for number in 0..6 {
        let container = simulation.running(task(&format!("t{number}")));
        simulation.end(&container, Exit::Code(0));
        simulation.acknowledge_all();
    }
    let snapshot = simulation.core.snapshot();
    let framework = snapshot.frameworks.values().next().expect("a framework");
    let ids: Vec<_> = framework
        .completed
        .iter()
        .map(|e| e.key.executor.to_string())
        .collect();
    assert_eq!(ids, ["t3", "t4", "t5"]);
}

#[test]
fn kill_is_written_before_its_signal() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.quick_disk = false;
    simulation.kill("t", None);
    assert!(simulation.kills().is_empty(), "it is not written yet");
    simulation.flush(usize::MAX);
    assert_eq!(simulation.kills(), [SECOND * 3]);
    simulation.advance(SECOND * 2);
    assert_eq!(simulation.kills(), [SECOND * 3], "it was sent once");

    let (mut simulation, _) = Simulation::with_task();
    simulation.quick_disk = false;
    simulation.kill("t", None);
    simulation.advance(SECOND);
    assert_eq!(
        simulation.kills(),
        [SECOND * 2],
        "what is left of its grace"
    );
}

/// A slow disk delays the report of a start, but no kill.
#[test]
fn kill_before_start_keeps_its_grace() {
    let (mut simulation, container) = Simulation::launching();
    simulation.quick_disk = false;
    simulation.kill("t", Some(SECOND * 60));
    simulation.advance(SECOND);
    assert_eq!(simulation.kills(), [SECOND * 59]);
    simulation.advance(SECOND * 9);
    simulation.quick_disk = true;
    simulation.start(&container);
    assert_eq!(simulation.kills().last(), Some(&(SECOND * 50)));
}
