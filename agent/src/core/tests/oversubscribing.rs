//! Estimates sent to the master, and corrections of containers that may be touched.

use std::time::Duration;

use meseta_estimators::{Action, Assessment, Correction, Estimate, Explanation, Throttle, Unit};
use meseta_proto::convert;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskGone, TaskLost, TaskRunning};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources, Role};

use super::custom::{EXECUTOR, custom};
use super::simulation::{FRAMEWORK, Seen, Simulation, scalar, task};
use crate::core::{Exit, Input, Report};

const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(15);

fn revocable(text: &str) -> Resources {
    let star = Role::star();
    Resources::parse(text, &star)
        .expect("resources")
        .with_revocable(true)
}

pub(super) fn oversubscribed(id: &str, cpus: f64) -> pb::TaskInfo {
    let mut cpus = scalar("cpus", cpus);
    cpus.revocable = Some(pb::resource::RevocableInfo {});
    pb::TaskInfo {
        resources: vec![cpus, scalar("mem", 64.0)],
        ..task(id)
    }
}

fn why() -> Explanation {
    Explanation {
        detector: "load_5min",
        value: 7.2,
        threshold: 6.0,
        unit: Unit::Load,
        held: Duration::ZERO,
        gap: None,
        victim: None,
        words: None,
    }
}

pub(super) fn correction(action: Action, executor: &str) -> Correction {
    Correction {
        action,
        framework: FrameworkId::new(FRAMEWORK).expect("an id"),
        executor: ExecutorId::new(executor).expect("an id"),
        container: None,
        why: why(),
    }
}

impl Simulation {
    pub(super) fn report(&mut self, report: Report) {
        self.step(Input::Oversubscription(Box::new(report)));
    }

    pub(super) fn estimate(&mut self, allocated: &str, free: &str) {
        let of = |text: &str| {
            if text.is_empty() {
                Resources::new()
            } else {
                revocable(text)
            }
        };
        self.report(Report {
            allocated: of(allocated),
            estimate: Some(Estimate {
                oversubscribable: Some(of(free)),
                ..Estimate::default()
            }),
            assessment: None,
        });
    }

    pub(super) fn assessment(&mut self, assessment: Assessment) {
        self.report(Report {
            assessment: Some(assessment),
            ..Report::default()
        });
    }

    pub(super) fn correct(&mut self, correction: Correction) {
        self.assessment(Assessment {
            corrections: vec![correction],
            ..Assessment::default()
        });
    }

    /// The requested freezes and thaws, in order.
    fn freezes(&self) -> Vec<bool> {
        let freeze = |seen: &Seen| match seen {
            Seen::Freeze(_, frozen) => Some(*frozen),
            _ => None,
        };
        self.seen.iter().filter_map(freeze).collect()
    }

    /// Totals of cpus sent since the last call.
    fn told_totals(&mut self) -> Vec<f64> {
        let told = |frame| match frame {
            FromAgent::AgentUpdate(update) => update.oversubscribed,
            _ => None,
        };
        let frames = std::mem::take(&mut self.frames);
        let totals = frames.into_iter().filter_map(told).map(|total| {
            let resources = convert::resources(&total.resources).expect("resources");
            assert_eq!(resources, resources.revocable());
            resources.cpus().map_or(0.0, |cpus| cpus.to_f64())
        });
        totals.collect()
    }
}

#[test]
fn changed_estimate_sent_once_per_interval() {
    let mut simulation = Simulation::registered();
    simulation.estimate("", "cpus:14");
    assert_eq!(simulation.told_totals(), [14.0]);
    for _ in 0..14 {
        simulation.advance(SECOND);
        simulation.estimate("", "cpus:13");
    }
    assert!(
        simulation.told_totals().is_empty(),
        "the interval is not over"
    );
    simulation.advance(SECOND);
    simulation.estimate("", "cpus:12");
    assert_eq!(simulation.told_totals(), [12.0]);
    simulation.advance(INTERVAL);
    simulation.estimate("", "cpus:12");
    assert!(simulation.told_totals().is_empty(), "it is the same");
}

#[test]
fn total_is_allocated_plus_oversubscribable() {
    let mut simulation = Simulation::registered();
    simulation.estimate("", "cpus:2");
    simulation.advance(INTERVAL);
    simulation.estimate("cpus:1", "cpus:1");
    assert_eq!(
        simulation.told_totals(),
        [2.0],
        "constant while part of it is in use"
    );
}

#[test]
fn estimate_is_resent_after_registration() {
    let mut simulation = Simulation::new();
    simulation.estimate("", "cpus:2");
    assert!(simulation.told_totals().is_empty(), "there is no master");
    simulation.register();
    assert_eq!(simulation.told_totals(), [2.0]);
    simulation.link_down();
    simulation.advance(INTERVAL);
    // The next master gets an estimate made while no master was listening.
    simulation.estimate("", "cpus:3");
    simulation.register();
    assert_eq!(simulation.told_totals(), [3.0]);
    simulation.link_down();
    simulation.register();
    assert_eq!(simulation.told_totals(), [3.0], "though unchanged");
}

#[test]
fn stop_is_sent_at_once() {
    let mut simulation = Simulation::registered();
    simulation.estimate("cpus:1", "cpus:5");
    assert_eq!(simulation.told_totals(), [6.0]);
    let stop = Assessment {
        stop_offering: Some(why()),
        ..Assessment::default()
    };
    simulation.advance(SECOND);
    simulation.report(Report {
        allocated: revocable("cpus:1"),
        estimate: Some(Estimate {
            oversubscribable: Some(revocable("cpus:5")),
            ..Estimate::default()
        }),
        assessment: Some(stop),
    });
    assert_eq!(simulation.told_totals(), [0.0]);
    for _ in 0..3 {
        simulation.advance(INTERVAL);
        simulation.estimate("cpus:1", "cpus:5");
    }
    assert_eq!(simulation.told_totals(), Vec::<f64>::new());
    simulation.assessment(Assessment::default());
    simulation.advance(INTERVAL);
    simulation.estimate("cpus:1", "cpus:5");
    assert_eq!(simulation.told_totals(), [6.0]);
}

/// Regression: when the offers had to stop, the total of the resources in use was offered again, piece by piece, as
/// tasks ended or were evicted, on the machine that lacked them.
#[test]
fn evicted_resources_wait_for_controller() {
    let mut simulation = Simulation::registered();
    simulation.estimate("", "cpus:4");
    assert_eq!(simulation.told_totals(), [4.0]);
    let evicted = simulation.running(oversubscribed("evicted", 1.0));
    let ended = simulation.running(oversubscribed("ended", 1.0));
    let pressed = |allocated: &str, corrections| Report {
        allocated: revocable(allocated),
        estimate: Some(Estimate {
            oversubscribable: Some(Resources::new()),
            ..Estimate::default()
        }),
        assessment: Some(Assessment {
            stop_offering: Some(why()),
            corrections,
            ..Assessment::default()
        }),
    };
    simulation.advance(SECOND);
    simulation.report(pressed("cpus:2", vec![correction(Action::Kill, "evicted")]));
    simulation.end(&evicted, Exit::Signal(9));
    simulation.end(&ended, Exit::Code(0));
    for allocated in ["cpus:1", "cpus:0.5", "cpus:0.5"] {
        simulation.advance(INTERVAL);
        simulation.report(pressed(allocated, Vec::new()));
    }
    let told = simulation.told_totals();
    assert_eq!(told, [0.0], "none of it may be free at the master");
    simulation.assessment(Assessment::default());
    simulation.advance(INTERVAL);
    simulation.estimate("", "cpus:4");
    assert_eq!(simulation.told_totals(), [4.0]);
}

#[test]
fn invalid_estimate_is_not_reported() {
    let mut simulation = Simulation::registered();
    let star = Role::star();
    let plain = Resources::parse("cpus:4", &star).expect("resources");
    simulation.report(Report {
        estimate: Some(Estimate {
            oversubscribable: Some(plain),
            ..Estimate::default()
        }),
        ..Report::default()
    });
    assert_eq!(simulation.told_totals(), [0.0]);
}

#[test]
fn preempted_task_state_and_reason() {
    for (aware, state, counted) in [(false, TaskLost, (1, 1, 0)), (true, TaskGone, (1, 0, 1))] {
        let mut simulation = Simulation::registered();
        if aware {
            simulation.capabilities = vec![FrameworkCapability::PartitionAware];
        }
        let container = simulation.running(oversubscribed("t", 1.0));
        simulation.correct(correction(Action::Kill, "t"));
        assert_eq!(simulation.kills(), [Duration::ZERO], "without any grace");
        simulation.end(&container, Exit::Signal(9));
        let told = simulation.acknowledge_all();
        let [status] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(status.state(), state);
        assert_eq!(status.source(), Source::Agent);
        assert_eq!(status.reason(), Reason::ContainerPreempted);
        let message = status.message();
        for part in [
            "Container preempted by QoS correction",
            "load_5min is 7.200, limit 6.000",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let all = simulation.core.snapshot().counters;
        let found = (all.executors_preempted, all.tasks_lost, all.tasks_gone);
        assert_eq!(found, counted);
    }
}

#[test]
fn eviction_is_reported_after_restart() {
    let mut simulation = Simulation::registered();
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.correct(correction(Action::Kill, "t"));
    simulation.restart();
    simulation.end(&container, Exit::Signal(9));
    let told = simulation.acknowledge_all();
    assert_eq!(told[0].reason(), Reason::ContainerPreempted);
    assert_eq!(told[0].message(), "Container preempted by QoS correction");
}

#[test]
fn launching_task_can_be_preempted() {
    let mut simulation = Simulation::registered();
    simulation.run(oversubscribed("t", 1.0));
    let container = simulation.launched();
    simulation.correct(correction(Action::Kill, "t"));
    simulation.launch_fails(container, "killed");
    let told = simulation.acknowledge_all();
    let last = told.last().expect("an update");
    assert_eq!(
        (last.state(), last.reason()),
        (TaskLost, Reason::ContainerPreempted)
    );
}

/// A controller's correction never touches containers without revocable resources, ended containers, or another
/// container than the one named.
#[test]
fn nobody_else_is_touched() {
    let mut simulation = Simulation::registered();
    simulation.running(task("regular"));
    simulation.running(oversubscribed("revocable", 1.0));
    for action in [Action::Kill, Action::Freeze, Action::Thaw] {
        simulation.correct(correction(action, "regular"));
        simulation.correct(correction(action, "unknown"));
        let other = Some(ContainerId::new("another").expect("an id"));
        simulation.correct(Correction {
            container: other,
            ..correction(action, "revocable")
        });
    }
    assert_eq!(simulation.kills(), Vec::<Duration>::new());
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Freeze(..))));
    let state = simulation.core.snapshot().oversubscription;
    assert_eq!(
        (state.corrections_refused(), state.corrections().len()),
        (3, 0)
    );
}

#[test]
fn frozen_container_is_thawed_to_end() {
    let mut simulation = Simulation::registered();
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.correct(correction(Action::Freeze, "t"));
    assert_eq!(simulation.freezes(), [true]);
    let frozen = |simulation: &Simulation| simulation.core.snapshot().frozen;
    assert!(frozen(&simulation).contains(&container));
    // The framework wants the task to end: its processes must be able to receive the signal.
    simulation.kill("t", Some(SECOND));
    assert_eq!(simulation.freezes(), [true, false]);
    simulation.end(&container, Exit::Signal(15));
    assert!(frozen(&simulation).is_empty());
}

/// The containerizer thaws a container for launches in it, however long the fetch of their files took.
#[test]
fn group_can_be_frozen_during_launch() {
    let mut simulation = Simulation::registered();
    simulation.run_group_of(vec![oversubscribed("a", 1.0)], true);
    let outer = simulation.launches().remove(0);
    simulation.start(&outer);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(simulation.freezes(), [true]);
    let first = simulation.launches().remove(0);
    simulation.start(&first);
    simulation.run_group_of(vec![oversubscribed("b", 1.0)], false);
    simulation.resize(None);
    assert_eq!(simulation.launches().len(), 1);
    assert_eq!(simulation.freezes(), [true]);
}

/// The executor must receive the task, but a task that it does not take must not protect it for ever.
#[test]
fn frozen_executor_thaws_for_new_task() {
    let given = |id: &str| pb::TaskInfo {
        resources: oversubscribed(id, 1.0).resources,
        ..custom(id)
    };
    let mut simulation = Simulation::registered();
    simulation.started_custom(given("a"));
    simulation.subscribe(1, call::Subscribe::default());
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(simulation.freezes(), [true]);
    simulation.run_in_executor(given("b"), false);
    assert_eq!(simulation.freezes(), [true, false]);
    // The task is delivered once the container has room for it.
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(simulation.freezes(), [true, false]);
    simulation.advance(30 * SECOND);
    simulation.correct(correction(Action::Freeze, EXECUTOR));
    assert_eq!(simulation.freezes(), [true, false, true]);
}

#[test]
fn failed_freeze_is_not_frozen() {
    let mut simulation = Simulation::registered();
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.correct(correction(Action::Freeze, "t"));
    simulation.step(Input::FreezeFailed { container });
    let snapshot = simulation.core.snapshot();
    assert!(snapshot.frozen.is_empty());
    assert_eq!(simulation.freezes(), [true, false]);
}

#[test]
fn stopping_agent_thaws_everything() {
    let mut simulation = Simulation::registered();
    simulation.running(oversubscribed("t", 1.0));
    simulation.correct(correction(Action::Freeze, "t"));
    simulation.step(Input::Stop { kill_tasks: false });
    assert_eq!(simulation.freezes(), [true, false]);
}

#[test]
fn throttle_changes_apply_restart_lifts_them() {
    let mut simulation = Simulation::registered();
    let throttled = |simulation: &Simulation| -> Vec<Option<u64>> {
        let throttle = |seen: &Seen| match seen {
            Seen::ThrottleRevocable(cpus) => Some(*cpus),
            _ => None,
        };
        simulation.seen.iter().filter_map(throttle).collect()
    };
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.seen.clear();
    let throttle = |cpus| Assessment {
        throttle: Some(Throttle { cpus, why: why() }),
        ..Assessment::default()
    };
    for cpus in [0.5, 0.5, 0.75] {
        simulation.assessment(throttle(cpus));
    }
    assert_eq!(throttled(&simulation), [Some(500), Some(750)]);
    simulation.assessment(Assessment::default());
    assert_eq!(throttled(&simulation), [Some(500), Some(750), None]);
    simulation.assessment(throttle(0.5));
    simulation.correct(correction(Action::Freeze, "t"));
    simulation.seen.clear();
    simulation.crash(false);
    assert_eq!(throttled(&simulation), [None]);
    let thawed = |seen: &Seen| matches!(seen, Seen::Freeze(which, false) if *which == container);
    assert!(simulation.seen.iter().any(thawed));
}

#[test]
fn own_end_is_not_eviction() {
    let mut simulation = Simulation::registered();
    let container = simulation.running(oversubscribed("t", 1.0));
    simulation.end(&container, Exit::Code(3));
    let told = simulation.acknowledge_all();
    assert_eq!(told.last().expect("an update").state(), TaskFailed);
    assert!(told.iter().all(|status| status.state() != TaskRunning));
}
