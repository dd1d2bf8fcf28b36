//! The slack estimator, driven over simulated hours.

use super::*;
use crate::testing::{Node, resources, revocable_cpus};

const STEP: Duration = Duration::from_secs(5);

fn cpus(estimate: &Estimate) -> f64 {
    let offered = estimate.oversubscribable.clone().unwrap();
    assert_eq!(offered, offered.revocable());
    offered.cpus().map_or(0.0, meseta_resources::Scalar::to_f64)
}

fn run(node: &mut Node, slack: &mut Slack, seconds: u64, used: &[f64]) -> Estimate {
    let mut last = Estimate::default();
    for _ in 0..seconds.div_ceil(STEP.as_secs()) {
        last = slack.estimate(&node.step(STEP, used), Gate::Open);
    }
    last
}

fn slack(pairs: &[(&str, &str)]) -> Slack {
    Slack::new(SlackConfig::read(&pairs.iter().copied().collect()).unwrap())
}

#[track_caller]
fn near(found: f64, expected: f64, by: f64) {
    assert!((found - expected).abs() < by, "{found} is not {expected}");
}

#[test]
fn defaults() {
    let config = SlackConfig::read(&Parameters::default()).unwrap();
    assert_eq!(config, SlackConfig::default());
    assert!(!config.mem && !config.unused_reservations);
    assert_eq!((config.cpu_percentile, config.cpu_margin), (0.98, 1.0));
    assert_eq!(config.cpu_half_life, 12 * HOUR);
    assert_eq!((config.mem_percentile, config.mem_margin), (0.98, 1.10));
    assert_eq!(config.mem_half_life, 24 * HOUR);
    assert_eq!(
        (config.crowd, config.crowd_percentile, config.crowd_margin),
        (true, 0.995, 1.10)
    );
    assert_eq!(
        (config.crowd_half_life, config.crowd_min_age),
        (48 * HOUR, 24 * HOUR)
    );
    assert_eq!(config.floor_margin, 0.09);
    assert_eq!(config.rate_window, Duration::from_secs(10));
    assert_eq!(
        (config.fold, config.min_age, config.min_samples),
        (5 * MINUTE, 5 * MINUTE, 30)
    );
    assert_eq!(config.stale_after, Duration::from_secs(45));
    assert_eq!((config.reserved_cpus, config.reserved_mem), (0.0, 0.0));
    assert_eq!(
        (config.caps.utilization_cap, config.caps.offer_cap),
        (0.90, 0.80)
    );
    assert_eq!(config.caps.growth, 0.10);
    assert_eq!(config.caps.growth_interval, Duration::from_secs(15));
    assert_eq!(config.caps.reopen_after, Duration::from_secs(45));
}

#[test]
fn every_parameter_is_read() {
    let pairs = [
        ("mem", "true"),
        ("cpu_percentile", "0.9"),
        ("cpu_margin", "1.2"),
        ("cpu_half_life", "1hrs"),
        ("mem_percentile", "0.91"),
        ("mem_margin", "1.3"),
        ("mem_half_life", "2hrs"),
        ("crowd", "false"),
        ("crowd_percentile", "0.92"),
        ("crowd_margin", "1.4"),
        ("crowd_half_life", "3hrs"),
        ("crowd_min_age", "4hrs"),
        ("floor_margin", "0.2"),
        ("rate_window", "5secs"),
        ("fold", "1mins"),
        ("min_age", "0secs"),
        ("min_samples", "3"),
        ("stale_after", "9secs"),
        ("reserved_cpus", "0.5"),
        ("reserved_mem", "64"),
        ("unused_reservations", "true"),
        ("utilization_cap", "0.7"),
        ("offer_cap", "0.6"),
        ("growth", "0.5"),
        ("growth_interval", "10secs"),
        ("reopen_after", "1secs"),
    ];
    let second = Duration::from_secs(1);
    let expected = SlackConfig {
        mem: true,
        cpu_percentile: 0.9,
        cpu_margin: 1.2,
        cpu_half_life: HOUR,
        mem_percentile: 0.91,
        mem_margin: 1.3,
        mem_half_life: 2 * HOUR,
        crowd: false,
        crowd_percentile: 0.92,
        crowd_margin: 1.4,
        crowd_half_life: 3 * HOUR,
        crowd_min_age: 4 * HOUR,
        floor_margin: 0.2,
        rate_window: 5 * second,
        fold: MINUTE,
        min_age: Duration::ZERO,
        min_samples: 3,
        stale_after: 9 * second,
        reserved_cpus: 0.5,
        reserved_mem: 64.0,
        unused_reservations: true,
        caps: ShaperConfig {
            utilization_cap: 0.7,
            offer_cap: 0.6,
            growth: 0.5,
            growth_interval: 10 * second,
            reopen_after: second,
        },
    };
    assert_eq!(
        SlackConfig::read(&pairs.into_iter().collect()).unwrap(),
        expected
    );
}

#[test]
fn unknown_parameter_error_suggests_nearest_name() {
    let parameters = [("cpu_percentil", "0.9")].into_iter().collect();
    let error = SlackConfig::read(&parameters).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "slack: unknown parameter \"cpu_percentil\", did you mean \"cpu_percentile\"?"
        ),
        "{error}"
    );
    for (key, value) in [
        ("floor_margin", "-0.1"),
        ("floor_margin", "1.5"),
        ("cpu_percentile", "NaN"),
        ("cpu_half_life", "-1hrs"),
        ("cpu_margin", "NaN"),
        ("mem", "yes"),
        ("fold", "5"),
    ] {
        let error = SlackConfig::read(&[(key, value)].into_iter().collect()).unwrap_err();
        assert!(matches!(error, ConfigError::Value { .. }), "{error}");
    }
}

#[test]
fn new_executor_counts_at_its_limit() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[]);
    let young = run(&mut node, &mut slack, 290, &[0.5]);
    assert_eq!(cpus(&young), 0.0);
    assert_eq!(
        young.held_back.as_deref(),
        Some("executors with too few samples count at their limit: 1")
    );
    let estimate = run(&mut node, &mut slack, 600, &[0.5]);
    // 4 promised minus the greater of 0.5 by its profile (within one bucket) and 0.5 + 9 % of 8.
    near(estimate.forecasts[0].peak, 1.22, 1e-3);
    near(cpus(&estimate), 2.7, 1e-6);
    assert_eq!(estimate.held_back, None);
}

#[test]
fn first_period_profile_is_running_maximum() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[("min_age", "20secs"), ("min_samples", "4")]);
    run(&mut node, &mut slack, 40, &[2.0]);
    let estimate = run(&mut node, &mut slack, 40, &[0.5]);
    near(estimate.forecasts[0].peak, 2.0, 1e-6);
    assert_eq!(estimate.held_back, None);
}

#[test]
fn active_capacity_returns_before_idle_grows() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[("fold", "10secs"), ("cpu_half_life", "1mins")]);
    run(&mut node, &mut slack, 900, &[0.5]);
    let awake = run(&mut node, &mut slack, 10, &[4.0]);
    assert_eq!(cpus(&awake), 0.0);
    // Growth is still bounded long after the profile is forgotten.
    let asleep = run(&mut node, &mut slack, 5, &[0.5]);
    assert!(cpus(&asleep) <= 0.8, "{asleep:?}");
}

#[test]
fn the_caps_hold() {
    let mut node = Node::new(10, &[10.0]);
    let idle = run(&mut node, &mut slack(&[]), 3600, &[0.0]);
    near(cpus(&idle), 8.0, 1e-6);
    let mut node = Node::new(10, &[10.0]);
    node.system = 3.0;
    let loaded = run(&mut node, &mut slack(&[]), 3600, &[1.0]);
    // 90 % of 10, minus a peak of 1 + 0.9, minus the system's 3.
    near(cpus(&loaded), 4.1, 0.11);
}

#[test]
fn revocable_allocations_are_not_offered_twice() {
    let mut node = Node::new(10, &[10.0]);
    node.add("batch", "b", &revocable_cpus("3"));
    let estimate = run(&mut node, &mut slack(&[]), 3600, &[1.0, 3.0]);
    near(estimate.forecasts[0].total, 7.1, 0.11);
    near(cpus(&estimate), estimate.forecasts[0].total - 3.0, 1e-6);
}

#[test]
fn regular_part_of_revocable_stays_free() {
    let mut node = Node::new(10, &[4.0]);
    node.add("batch", "b", &(resources("cpus:6") + revocable_cpus("1")));
    let estimate = run(&mut node, &mut slack(&[]), 3600, &[0.0, 0.0]);
    // 0.9 * 10 minus a peak of 0.9, minus the 6 of the mixed container.
    near(estimate.forecasts[0].total, 2.1, 1e-6);
    assert_eq!(estimate.forecasts[0].promised, 4.0);
}

#[test]
fn gate_closes_at_once_opens_slowly() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[]);
    let before = cpus(&run(&mut node, &mut slack, 900, &[0.5]));
    let closed = slack.estimate(&node.step(STEP, &[0.5]), Gate::Closed);
    assert_eq!(cpus(&closed), 0.0);
    assert_eq!(cpus(&run(&mut node, &mut slack, 40, &[0.5])), 0.0);
    let reopened = cpus(&run(&mut node, &mut slack, 20, &[0.5]));
    assert!(reopened > 0.0 && reopened < 1.1, "{reopened}");
    assert_eq!(cpus(&run(&mut node, &mut slack, 300, &[0.5])), before);
}

/// The capacity of a killed executor is not offered again at once, so that killing and launching do not alternate.
#[test]
fn the_controller_closes_the_gate() {
    use crate::ControllerSpec;
    let spec = ControllerSpec::parse("pressure").unwrap();
    let mut pressure = spec.build(&crate::ModuleParameters::new()).unwrap();
    let mut node = Node::new(10, &[8.0]);
    let mut slack = slack(&[]);
    let mut second = |used: f64| {
        let sample = node.step(Duration::from_secs(1), &[used]);
        let gate = pressure.assess(&sample).gate();
        cpus(&slack.estimate(&sample, gate))
    };
    let mut last = 0.0;
    (0..900).for_each(|_| last = second(1.0));
    assert!(last > 5.0, "{last}");
    assert_eq!(second(7.0), 0.0, "in the same second");
    assert!((0..44).all(|_| second(1.0) == 0.0));
    let reopened = (0..10).map(|_| second(1.0)).fold(0.0, f64::max);
    assert!(reopened > 0.0 && reopened < 1.0, "{reopened}");
}

#[test]
fn a_repeated_sample_changes_nothing() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[]);
    let before = run(&mut node, &mut slack, 900, &[0.5]);
    let repeated = slack.estimate(&node.sample, Gate::Open);
    assert_eq!(repeated.oversubscribable, before.oversubscribable);
    assert!(repeated.held_back.is_some());
}

#[test]
fn long_unreadable_executor_counts_at_limit() {
    let mut node = Node::new(8, &[4.0]);
    let mut slack = slack(&[]);
    let before = cpus(&run(&mut node, &mut slack, 900, &[0.5]));
    node.sample.containers[0].cpu_time = None;
    let held = run(&mut node, &mut slack, 45, &[0.5]);
    assert_eq!(cpus(&held), before);
    assert_eq!(
        held.held_back.as_deref(),
        Some("failed to read the usage of a container")
    );
    assert_eq!(cpus(&run(&mut node, &mut slack, 10, &[0.5])), 0.0);
}

/// Regression: while the agent fetched files for one executor, nothing more was oversubscribed, though the executor counts at
/// its limit.
#[test]
fn unstarted_executor_counts_at_limit_only() {
    let mut node = Node::new(12, &[4.0]);
    let mut slack = slack(&[]);
    run(&mut node, &mut slack, 300, &[0.5]);
    node.add("regular", "late", &resources("cpus:4;mem:1024"));
    let mut estimate = Estimate::default();
    for _ in 0..600 {
        node.step(Duration::from_secs(1), &[0.5]);
        let late = &mut node.sample.containers[1];
        (late.at, late.cpu_time, late.memory_bytes) = (None, None, None);
        estimate = slack.estimate(&node.sample, Gate::Open);
    }
    // 4.5 of the promised 8 count as used, and 9 % of 12 is kept free.
    near(estimate.forecasts[0].used, 4.5, 1e-6);
    near(cpus(&estimate), 2.4, 1e-6);
}

#[test]
fn unreadable_executor_raises_current_use() {
    let mut node = Node::new(12, &[4.0, 4.0]);
    let mut slack = slack(&[]);
    run(&mut node, &mut slack, 900, &[0.5, 0.5]);
    node.sample.containers[1].cpu_time = None;
    let blind = run(&mut node, &mut slack, 60, &[0.5, 0.5]);
    // 0.5 and 4 are used, and 9 % of 12 are kept free above that.
    near(blind.forecasts[0].used, 4.5, 1e-6);
    near(blind.forecasts[0].peak, 5.58, 1e-6);
    near(cpus(&blind), 2.4, 1e-6);
}

#[test]
fn unknown_host_usage_stops_growth() {
    let mut node = Node::new(8, &[4.0]);
    node.sample.host.cpu_time = None;
    let blind = run(&mut node, &mut slack(&[]), 1800, &[0.5]);
    assert_eq!(cpus(&blind), 0.0);
    assert_eq!(
        blind.held_back.as_deref(),
        Some("failed to read the usage of the host")
    );
}

#[test]
fn memory_is_oversubscribed_only_on_request() {
    let mut node = Node::new(8, &[4.0]);
    node.sample.total = resources("cpus:8;mem:10240");
    node.sample.containers[0].allocated = resources("cpus:4;mem:8192");
    node.sample.containers[0].memory_bytes = Some(1 << 30);
    node.sample.host.memory = Some(crate::HostMemory {
        total_bytes: 10 << 30,
        available_bytes: 9 << 30,
    });
    let without = run(&mut node.clone(), &mut slack(&[]), 3600, &[0.5]);
    assert_eq!(without.oversubscribable.unwrap().mem(), None);
    let with = run(&mut node, &mut slack(&[("mem", "true")]), 3600, &[0.5]);
    // 8192 promised minus 1024 + 9 % of 10240, in steps of 32, without a last move below 1 %.
    let mem = with.oversubscribable.unwrap().mem().unwrap().to_f64();
    assert_eq!(mem, 6144.0);
}

#[test]
fn reservations_are_oversubscribed_only_on_request() {
    let mut node = Node::new(10, &[2.0]);
    node.sample.total = resources("cpus:6;cpus(ads):4;mem:1024");
    let without = cpus(&run(&mut node.clone(), &mut slack(&[]), 1800, &[1.0]));
    let with_reserved = &mut slack(&[("unused_reservations", "true")]);
    let with = cpus(&run(&mut node, with_reserved, 1800, &[1.0]));
    near(with - without, 4.0, 0.11);
}

#[test]
fn new_executor_counts_at_raised_limit() {
    let mut node = Node::new(10, &[2.0, 4.0]);
    node.sample.containers[0].cpus_limit = Some(f64::INFINITY);
    let mut slack = slack(&[]);
    let estimate = run(&mut node, &mut slack, 60, &[0.0, 0.0]);
    assert_eq!(estimate.forecasts[0].peak, 14.0);
}

#[test]
fn checkpoint_moves_histories_to_another_clock() {
    let mut node = Node::new(8, &[4.0]);
    let mut before = slack(&[]);
    let learned = run(&mut node, &mut before, 3600, &[2.0]);
    let bytes = before.checkpoint(node.sample.at);
    assert!(bytes.len() < 200, "{}", bytes.len());

    let mut after = slack(&[]);
    // The node restarted its clock, and the task continued.
    after.restore(Moment::ORIGIN + 2 * HOUR, &bytes).unwrap();
    node.sample.at = Moment::ORIGIN + 2 * HOUR;
    let remembered = run(&mut node, &mut after, 60, &[2.0]);
    assert_eq!(remembered.forecasts[0].peak, learned.forecasts[0].peak);

    let untouched = after.checkpoint(node.sample.at);
    for broken in [
        &bytes[..bytes.len() - 1],
        &[bytes.as_slice(), &[0]].concat(),
        &[9],
        &[1, 255],
    ] {
        after.restore(node.sample.at, broken).unwrap_err();
        assert_eq!(after.checkpoint(node.sample.at), untouched);
    }
}

/// A crowd of ten that burst one after the other, never two at a time.
fn bursts(step: u64) -> [f64; 10] {
    std::array::from_fn(|index| {
        if usize::try_from(step % 10) == Ok(index) {
            0.9
        } else {
            0.05
        }
    })
}

fn quick_crowd(pairs: &[(&str, &str)]) -> Slack {
    let quick = [
        ("fold", "10secs"),
        ("crowd_min_age", "10mins"),
        ("floor_margin", "0"),
    ];
    slack(&[quick.as_slice(), pairs].concat())
}

fn run_bursts(node: &mut Node, slack: &mut Slack, steps: u64) -> Forecast {
    let mut last = None;
    for step in 0..steps {
        let used = bursts(step);
        let sample = node.step(Duration::from_secs(10), &used);
        last = slack.estimate(&sample, Gate::Open).forecasts.pop();
    }
    last.unwrap()
}

#[test]
fn joint_usage_bounds_the_individual_sum() {
    let mut node = Node::new(20, &[1.0; 10]);
    let alone = run_bursts(
        &mut node.clone(),
        &mut quick_crowd(&[("crowd", "false")]),
        200,
    );
    assert!(alone.peak > 9.0, "every one of them bursts: {alone:?}");
    let mut slack = quick_crowd(&[]);
    let early = run_bursts(&mut node.clone(), &mut slack.clone(), 60);
    assert!(early.peak > 9.0, "not before enough is known: {early:?}");
    let together = run_bursts(&mut node, &mut slack, 200);
    // 1.35 at a time, plus 10 % and a bucket.
    assert!(together.peak > 1.35 && together.peak < 1.6, "{together:?}");

    // A newcomer counts for itself until the next crowd is known.
    node.add("regular", "late", &resources("cpus:1"));
    let joined = run_bursts(&mut node, &mut slack, 1);
    near(joined.peak - together.peak, 1.0, 0.1);
    // An executor that leaves keeps its part in the sum: too much is better than too little.
    node.sample.containers.truncate(5);
    let left = run_bursts(&mut node, &mut slack, 1);
    assert!(left.peak >= together.peak * 0.95, "{left:?}");

    let bytes = slack.checkpoint(node.sample.at);
    let mut restored = quick_crowd(&[]);
    restored.restore(node.sample.at, &bytes).unwrap();
    assert_eq!(restored.checkpoint(node.sample.at), bytes);
}

#[test]
fn history_count_is_bounded() {
    use crate::estimator::forecaster::HISTORIES_MAX;
    let mut node = Node::new(8, &[]);
    let mut slack = slack(&[]);
    for round in 0..3 {
        node.sample.containers.clear();
        for index in 0..2000 {
            node.add("f", &format!("e{round}-{index}"), &resources("cpus:0.001"));
        }
        run(&mut node, &mut slack, 15, &[0.0; 2000]);
    }
    assert!(slack.models[0].forecaster.len() <= HISTORIES_MAX);
    assert!(slack.checkpoint(node.sample.at).len() < 4 << 20);
    // After an hour only the last executors are known.
    run(&mut node, &mut slack, 15, &[0.0; 2000]);
    node.sample.at += 2 * HOUR;
    node.sample.containers.clear();
    run(&mut node, &mut slack, 5, &[]);
    assert_eq!(slack.models[0].forecaster.len(), 0);
}
