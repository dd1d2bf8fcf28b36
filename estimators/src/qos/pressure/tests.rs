//! The pressure controller, driven second by second.

use super::*;
use crate::testing::{Node, revocable, revocable_cpus};
use crate::{ConfigError, HostMemory, Parameters, Pressure};

mod memory;

const SECOND: Duration = Duration::from_secs(1);

fn controller(pairs: &[(&str, &str)]) -> PressureController {
    let parameters = pairs.iter().copied().collect();
    PressureController::new(PressureConfig::read(&parameters).unwrap())
}

/// A node with ten processors, one regular container, and two revocable ones of three cpus each.
fn node() -> Node {
    let mut node = Node::new(10, &[9.0]);
    node.add("batch", "b0", &revocable_cpus("3"));
    node.add("other", "b1", &revocable_cpus("3"));
    node
}

/// Returns [`node`] after a few quiet seconds.
fn settled(controller: &mut PressureController) -> Node {
    let mut node = node();
    for _ in 0..3 {
        let assessment = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
        assert_eq!(
            (assessment.stop_offering, assessment.throttle),
            (None, None)
        );
    }
    node
}

fn done(assessment: &Assessment) -> Vec<(Action, &str)> {
    let each = assessment.corrections.iter();
    each.map(|correction| (correction.action, correction.executor.as_str()))
        .collect()
}

/// Runs so many seconds of the same use, and returns the seconds with corrections. Frozen containers stop, killed ones go.
fn watch(
    controller: &mut PressureController,
    node: &mut Node,
    seconds: u32,
    used: &[f64],
) -> Vec<(u32, Action, String)> {
    let mut log = Vec::new();
    for second in 1..=seconds {
        let assessment = controller.assess(&node.step(SECOND, used));
        for correction in &assessment.corrections {
            let executor = correction.executor.as_str();
            log.push((second, correction.action, executor.to_owned()));
            let containers = &mut node.sample.containers;
            let at = containers
                .iter()
                .position(|c| c.executor.as_str() == executor)
                .unwrap();
            match correction.action {
                Action::Kill => drop(containers.remove(at)),
                Action::Freeze => containers[at].frozen = true,
                Action::Thaw => containers[at].frozen = false,
            }
        }
    }
    log
}

fn memory(node: &mut Node, used_gb: u64) {
    let total = node.sample.host.memory.unwrap().total_bytes;
    node.sample.host.memory = Some(HostMemory {
        total_bytes: total,
        available_bytes: total - (used_gb << 28),
    });
}

#[test]
fn defaults() {
    let expected = PressureConfig {
        cpu_util_stop: 0.65,
        cpu_util_throttle: 0.70,
        cpu_util_kill: 0.85,
        cpu_util_clear: 0.05,
        cpu_util_hold: 5 * SECOND,
        psi_cpu_stop: 10.0,
        psi_cpu_throttle: 20.0,
        psi_cpu_kill: 40.0,
        psi_cpu_hold: 10 * SECOND,
        psi_cpu_host: false,
        psi_mem_some_stop: 5.0,
        psi_mem_some_kill: 20.0,
        psi_mem_full_stop: 1.0,
        psi_mem_full_kill: 5.0,
        psi_mem_hold: 5 * SECOND,
        mem_stop: 0.75,
        mem_throttle: 0.80,
        mem_kill: 0.85,
        mem_target: 0.80,
        mem_clear: 0.02,
        mem_hold: SECOND,
        satisfaction_lower: 0.40,
        satisfaction_upper: 0.60,
        satisfaction_use: 0.90,
        satisfaction_window: 60 * SECOND,
        throttle_share: 0.70,
        throttle_floor: 0.05,
        throttle_floor_cpus: 0.1,
        throttle_growth: 0.10,
        throttle_step: 0.01,
        freeze: true,
        freeze_max: 60 * SECOND,
        freeze_grace: 3 * SECOND,
        cpu_cool_down: 20 * SECOND,
        mem_cool_down: 4 * SECOND,
        stale_after: 60 * SECOND,
    };
    assert_eq!(PressureConfig::default(), expected);
    let read = PressureConfig::read(&Parameters::default()).unwrap();
    assert_eq!(read, expected);
}

#[test]
fn parameters_are_strict() {
    let error = |key: &str, value: &str| {
        PressureConfig::read(&[(key, value)].into_iter().collect()).unwrap_err()
    };
    let unknown = error("cpu_util_thotle", "0.7").to_string();
    assert!(
        unknown.contains("did you mean \"cpu_util_throttle\"?"),
        "{unknown}"
    );
    for (key, value) in [
        ("mem_kill", "-0.1"),
        ("mem_kill", "NaN"),
        ("psi_cpu_kill", "101"),
        ("cpu_cool_down", "0secs"),
        ("freeze", "1"),
        ("throttle_floor_cpus", "0"),
    ] {
        assert!(
            matches!(error(key, value), ConfigError::Value { .. }),
            "{key}={value}"
        );
    }
    for (key, value) in [
        ("cpu_util_stop", "0.71"),
        ("cpu_util_stop", "0"),
        ("mem_target", "0.86"),
        ("psi_mem_some_kill", "4"),
        ("satisfaction_lower", "0.61"),
    ] {
        assert!(
            matches!(error(key, value), ConfigError::Contradiction { .. }),
            "{key}={value}"
        );
    }
}

#[test]
fn first_high_sample_stops_and_throttles() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let stopped = controller.assess(&node.step(SECOND, &[6.6, 1.0, 1.0]));
    assert_eq!(stopped.stop_offering.unwrap().detector, "cpu-util");
    assert_eq!((stopped.throttle, stopped.corrections.len()), (None, 0));
    let throttled = controller.assess(&node.step(SECOND, &[7.5, 1.0, 1.0]));
    let throttle = throttled.throttle.unwrap();
    assert!(
        (throttle.cpus - 0.5).abs() < 1e-6,
        "not below the floor: {throttle:?}"
    );
    assert_eq!(throttle.why.to_string(), "cpu-util is 0.750, limit 0.700");
    assert_eq!(
        done(&controller.assess(&node.step(SECOND, &[7.5, 0.2, 0.2]))),
        []
    );
}

/// If the use rises halfway between two samples, the second sample shows half of the rise, and the next one all of it.
#[test]
fn relief_arrives_within_one_second() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let interval = controller.interval_max().unwrap();
    node.step(interval / 2, &[1.0, 1.0, 1.0]);
    let rise = node.sample.at;
    let half = controller.assess(&node.step(interval / 2, &[8.0, 1.0, 1.0]));
    assert_eq!(half.throttle, None);
    let whole = controller.assess(&node.step(interval, &[8.0, 1.0, 1.0]));
    assert!(whole.stop_offering.is_some() && whole.throttle.is_some());
    assert!(node.sample.at.saturating_since(rise) <= SECOND);
}

#[test]
fn throttle_follows_regular_use_lifts_slowly() {
    let mut controller = controller(&[("throttle_share", "0.9")]);
    let mut node = settled(&mut controller);
    let throttled = controller.assess(&node.step(SECOND, &[7.2, 1.0, 1.0]));
    assert!((throttled.throttle.unwrap().cpus - 1.8).abs() < 1e-6);
    // It clears 0.05 below its threshold, not before.
    let held = controller.assess(&node.step(SECOND, &[6.6, 0.9, 0.9]));
    assert!((held.throttle.unwrap().cpus - 2.4).abs() < 1e-6);
    let mut last = 2.4;
    for second in 0.. {
        let assessment = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
        let Some(throttle) = assessment.throttle else {
            assert_eq!(
                second, 7,
                "a tenth of the capacity each second, up to all of it"
            );
            break;
        };
        assert!(throttle.cpus <= last + 1.0 + 1e-6);
        last = throttle.cpus;
    }
}

#[test]
fn freezes_after_hold_then_kills() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    // The executors ignore the throttle; the frozen one stops, the new one beside it does not.
    let mut log = Vec::new();
    for second in 1..=30 {
        let assessment = controller.assess(&node.step(SECOND, &[8.6, 0.7, 0.7, 0.7]));
        for (action, executor) in done(&assessment) {
            log.push((second, action, executor.to_owned()));
            if action == Action::Freeze && executor == "b0" {
                node.sample.containers[1].frozen = true;
            }
        }
        if second == 6 {
            node.add("late", "b2", &revocable_cpus("3"));
        }
    }
    let kills: Vec<_> = log
        .iter()
        .filter(|(_, action, _)| *action == Action::Kill)
        .collect();
    assert_eq!(
        log[0].0, 6,
        "five seconds after the first second over: {log:?}"
    );
    assert_eq!((log[0].1, log[1].1), (Action::Freeze, Action::Freeze));
    assert_eq!(kills[0].0, 9, "three seconds later: {log:?}");
    assert!(
        kills
            .iter()
            .all(|(second, ..)| *second == 9 || *second == 29),
        "{log:?}"
    );
}

#[test]
fn hold_kills_when_freezing_is_off() {
    let mut controller = controller(&[("freeze", "false")]);
    let mut node = settled(&mut controller);
    // 8.6 + 0.4 used, down to 8.0: all revocable executors, and no more is available.
    let log = watch(&mut controller, &mut node, 30, &[8.6, 0.1, 0.3]);
    let expected = [
        (6, Action::Kill, "b1".to_owned()),
        (6, Action::Kill, "b0".to_owned()),
    ];
    assert_eq!(log, expected);
}

#[test]
fn kills_no_more_than_the_gap() {
    let pairs = [("freeze", "false"), ("cpu_util_clear", "0.001")];
    let mut controller = controller(&pairs);
    let mut node = settled(&mut controller);
    // 8.5 + 0.6 used, down to 8.49: 0.61, which both together have; with 0.3 of the first left over a single one is enough.
    let log = watch(&mut controller, &mut node, 6, &[8.5, 0.3, 0.3]);
    assert_eq!(log.len(), 2);
    let mut controller = super::tests::controller(&[("freeze", "false"), ("cpu_util_clear", "0")]);
    let mut node = settled(&mut controller);
    let log = watch(&mut controller, &mut node, 6, &[8.5, 0.6, 0.3]);
    assert_eq!(log.len(), 2, "0.9 over 8.5");
    let mut controller = super::tests::controller(&[("freeze", "false"), ("cpu_util_clear", "0")]);
    let mut node = settled(&mut controller);
    node.sample.containers[1].allocated = revocable_cpus("0.1");
    // The executor over its own allocation goes first, though it uses less.
    let log = watch(&mut controller, &mut node, 6, &[8.5, 0.2, 0.3]);
    assert_eq!(log[0].2, "b0");
}

#[test]
fn frozen_executor_thaws_or_is_killed() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let log = watch(&mut controller, &mut node, 10, &[8.6, 0.2, 0.2]);
    assert!(
        log.iter().all(|(_, action, _)| *action == Action::Freeze),
        "{log:?}"
    );
    assert_eq!(log.len(), 2);
    let calm = watch(&mut controller, &mut node, 5, &[1.0, 0.2, 0.2]);
    let thaws: Vec<_> = calm
        .iter()
        .map(|(second, action, _)| (*second, *action))
        .collect();
    assert_eq!(
        thaws,
        [(1, Action::Thaw), (2, Action::Thaw)],
        "one each second"
    );

    let log = watch(&mut controller, &mut node, 100, &[8.6, 0.2, 0.2]);
    let kills: Vec<u32> = log
        .iter()
        .filter(|(_, action, _)| *action == Action::Kill)
        .map(|(second, ..)| *second)
        .collect();
    assert_eq!(
        kills,
        [66, 86],
        "a minute after the freeze, and a cool-down later: {log:?}"
    );
}

#[test]
fn cpu_stall_counts_only_regular_work() {
    let stalled = Some(Pressure {
        some_avg10: 50.0,
        full_avg10: 0.0,
    });
    let mut ours = controller(&[]);
    let mut node = settled(&mut ours);
    node.sample.host.cpu_pressure = stalled;
    let assessment = ours.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
    assert_eq!(assessment.stop_offering, None);
    node.sample.host.regular_cpu_pressure = stalled;
    let assessment = ours.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
    assert_eq!(assessment.stop_offering.unwrap().detector, "psi-cpu");
    assert!(assessment.throttle.is_some());
    let log = watch(&mut ours, &mut node, 13, &[1.0, 1.0, 1.0]);
    let first: Vec<_> = log
        .iter()
        .map(|(second, action, _)| (*second, *action))
        .collect();
    assert_eq!(
        first,
        [(10, Action::Freeze), (13, Action::Kill)],
        "one each: {log:?}"
    );

    let mut host = controller(&[("psi_cpu_host", "true")]);
    let mut node = settled(&mut host);
    node.sample.host.cpu_pressure = stalled;
    assert!(
        host.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]))
            .throttle
            .is_some()
    );
}

/// Regression: an executor frozen for regular work that had ended was killed on an idle machine.
#[test]
fn stall_ends_with_last_regular_container() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    node.sample.host.regular_cpu_pressure = Some(Pressure {
        some_avg10: 50.0,
        full_avg10: 0.0,
    });
    let log = watch(&mut controller, &mut node, 11, &[1.0, 1.0, 1.0]);
    assert_eq!(log, [(11, Action::Freeze, "b0".to_owned())]);
    node.sample.host.regular_cpu_pressure = None;
    // While the container exists but is unreadable, everything stays unchanged.
    let log = watch(&mut controller, &mut node, 3, &[1.0, 1.0, 1.0]);
    assert_eq!(log, []);
    node.sample.containers.remove(0);
    let log = watch(&mut controller, &mut node, 90, &[1.0, 1.0]);
    assert_eq!(log, [(1, Action::Thaw, "b0".to_owned())]);
    let assessment = controller.assess(&node.step(SECOND, &[1.0, 1.0]));
    assert_eq!(
        (assessment.stop_offering, assessment.throttle),
        (None, None)
    );
}

#[test]
fn starved_executors_are_reduced_to_share() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    node.sample.containers[2].allocated = revocable_cpus("1");
    // 0.5 of 4 cpus: killing the one of 3 leaves 0.5 of 1, and the gap was 4 * (0.6 - 0.125).
    let log = watch(&mut controller, &mut node, 120, &[7.5, 0.3, 0.2]);
    assert_eq!(log, [(62, Action::Kill, "b0".to_owned())]);
}

#[test]
fn repeated_sample_changes_nothing() {
    let mut controller = controller(&[("freeze", "false"), ("cpu_util_hold", "0secs")]);
    let mut node = settled(&mut controller);
    let sample = node.step(SECOND, &[9.0, 0.3, 0.3]);
    let first = controller.assess(&sample);
    assert!(!first.corrections.is_empty());
    let repeated = controller.assess(&sample);
    assert_eq!(
        repeated,
        Assessment {
            corrections: Vec::new(),
            ..first
        }
    );
}

#[test]
fn unreadable_sample_holds_state_without_kills() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let throttled = controller.assess(&node.step(SECOND, &[8.6, 0.3, 0.3]));
    let host = node.sample.host.cpu_time.take();
    for _ in 0..20 {
        let assessment = controller.assess(&node.step(SECOND, &[8.6, 0.3, 0.3]));
        assert_eq!(done(&assessment), []);
        assert!(assessment.stop_offering.is_some());
        assert_eq!(assessment.throttle, throttled.throttle);
        assert_eq!(assessment.readings[3].value, None);
    }
    node.sample.host.cpu_time = host;
    node.sample.containers[1].cpu_time = None;
    for _ in 0..20 {
        assert_eq!(
            done(&controller.assess(&node.step(SECOND, &[8.6, 0.3, 0.3]))),
            []
        );
    }
}

/// The host shows that regular work waits; the use of one revocable container is unknown.
#[test]
fn stall_needs_complete_usage_to_correct() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    node.sample.host.regular_cpu_pressure = Some(Pressure {
        some_avg10: 50.0,
        full_avg10: 0.0,
    });
    let spent = node.sample.containers[1].cpu_time.take();
    let log = watch(&mut controller, &mut node, 20, &[1.0, 1.0, 1.0]);
    assert_eq!(log, []);
    node.sample.containers[1].cpu_time = spent;
    let log = watch(&mut controller, &mut node, 1, &[1.0, 1.0, 1.0]);
    assert_eq!(log, [(1, Action::Freeze, "b1".to_owned())]);
}

#[test]
fn unreadable_executor_does_not_stop_throttling() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    node.sample.containers[1].cpu_time = None;
    for second in 0..60 {
        let assessment = controller.assess(&node.step(SECOND, &[8.6, 0.3, 0.3]));
        assert_eq!(done(&assessment), []);
        assert!(
            assessment.stop_offering.is_some() && assessment.throttle.is_some(),
            "{second}"
        );
    }
}

#[test]
fn frozen_executor_is_remembered_after_restart() {
    let mut controller = controller(&[]);
    let mut node = node();
    node.sample.containers[1].frozen = true;
    node.step(SECOND, &[1.0, 0.0, 1.0]);
    let log = watch(&mut controller, &mut node, 5, &[1.0, 0.0, 1.0]);
    assert_eq!(log, [(2, Action::Thaw, "b0".to_owned())]);
}

/// Regression: while the agent fetched files for one executor, or destroyed it, no executor was frozen, killed, or reported
/// as frozen for too long.
#[test]
fn unstarted_executor_does_not_block_corrections() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    node.add("late", "b2", &revocable_cpus("3"));
    let unread = |node: &mut Node| {
        let late = node.sample.containers.last_mut().unwrap();
        assert_eq!(late.executor.as_str(), "b2");
        (late.at, late.cpu_time, late.memory_bytes) = (None, None, None);
        node.sample.clone()
    };
    let mut log = Vec::new();
    for second in 1..=100 {
        node.step(SECOND, &[8.6, 0.2, 0.2]);
        let assessment = controller.assess(&unread(&mut node));
        for (action, executor) in done(&assessment) {
            log.push((second, action));
            let containers = &mut node.sample.containers;
            let named = |one: &ContainerUsage| one.executor.as_str() == executor;
            let index = containers.iter().position(named).unwrap();
            if action == Action::Kill {
                containers.remove(index);
            } else {
                containers[index].frozen = true;
            }
        }
    }
    let (freeze, kill) = (Action::Freeze, Action::Kill);
    assert_eq!(log, [(6, freeze), (6, freeze), (66, kill), (86, kill)]);
}

/// Regression: an executor that the agent thawed so that it could end was killed as if it had been frozen for a minute.
#[test]
fn executor_thawed_by_agent_survives() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let log = watch(&mut controller, &mut node, 6, &[8.6, 0.2, 0.2]);
    assert!(log.iter().all(|(_, action, _)| *action == Action::Freeze) && log.len() == 2);
    for container in &mut node.sample.containers {
        container.frozen = false;
    }
    // The controller still throttles, but has no reason to kill.
    let log = watch(&mut controller, &mut node, 90, &[7.2, 0.2, 0.2]);
    assert_eq!(log, []);
}

#[test]
fn executor_resisting_freeze_is_eventually_killed() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    let mut asked = Vec::new();
    for _ in 0..60 {
        let assessment = controller.assess(&node.step(SECOND, &[8.8, 0.4, 0.3]));
        asked.extend(done(&assessment).into_iter().map(|(action, _)| action));
        for container in &mut node.sample.containers {
            container.frozen = false;
        }
    }
    assert!(asked.contains(&Action::Kill), "{asked:?}");
}

#[test]
fn regular_work_alone_is_never_corrected() {
    let mut controller = controller(&[]);
    let mut node = Node::new(10, &[5.0, 5.0]);
    memory(&mut node, 40);
    let pressure = Some(Pressure {
        some_avg10: 90.0,
        full_avg10: 90.0,
    });
    node.sample.host.memory_pressure = pressure;
    node.sample.host.regular_cpu_pressure = pressure;
    for _ in 0..120 {
        let assessment = controller.assess(&node.step(SECOND, &[5.0, 5.0]));
        assert_eq!(done(&assessment), []);
    }
}

#[test]
fn every_correction_explains_itself() {
    let mut controller = controller(&[("freeze", "false"), ("cpu_util_hold", "0secs")]);
    let mut node = settled(&mut controller);
    node.sample.containers[1].allocated = revocable("cpus:0.1;mem:10");
    let assessment = controller.assess(&node.step(SECOND, &[8.8, 0.4, 0.3]));
    assert_eq!(
        assessment.corrections[0].why.to_string(),
        "cpu-util is 0.880, limit 0.850; to free: 0.700 cpus; this frees 0.400 cpus; \
         chosen as over its own allocation"
    );
    assert_eq!(
        assessment.corrections[0]
            .container
            .as_ref()
            .unwrap()
            .as_str(),
        "c-b0"
    );
}
