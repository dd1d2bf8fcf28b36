//! The properties of every estimator and controller, for any samples.

use std::time::Duration;

use proptest::prelude::*;

use crate::estimator::{NSigma, NSigmaConfig, Slack, SlackConfig};
use crate::testing::{Node, resources, revocable};
use crate::{
    Action, Assessment, Gate, HostMemory, LoadAverage, ModuleParameters, Pressure,
    ResourceEstimator, UsageSample,
};
use crate::{ControllerSpec, EstimatorSpec};

/// The changes between two samples.
#[derive(Clone, Debug)]
struct Step {
    seconds: u64,
    used: Vec<f64>,
    system: f64,
    memory_used: f64,
    container_memory: Vec<u64>,
    stall: f64,
    load: f64,
    gate: Gate,
    fault: Fault,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Fault {
    None,
    /// A single container cannot be read.
    Container(usize),
    /// The host cannot be read either.
    Host,
    /// A repetition of the previous sample.
    Repeated,
    /// Garbage in place of a number.
    Garbage(f64),
    /// A counter that goes backwards.
    Backwards(usize),
}

const CPUS: u32 = 10;
const REGULAR: usize = 2;
const CONTAINERS: usize = 6;

fn node() -> Node {
    let mut node = Node::new(CPUS, &[5.0, 4.0]);
    node.add("batch", "b0", &revocable("cpus:2;mem:100"));
    node.add("batch", "b1", &revocable("cpus:1"));
    node.add(
        "other",
        "b2",
        &(resources("cpus:0.5;mem:64") + revocable("cpus:1")),
    );
    node.add("other", "b3", &revocable("cpus:0.2"));
    node.sample.containers[3].eviction_priority = 1;
    node
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        8 => Just(Fault::None),
        1 => (0..CONTAINERS).prop_map(Fault::Container),
        1 => Just(Fault::Host),
        1 => Just(Fault::Repeated),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)].prop_map(Fault::Garbage),
        1 => (0..CONTAINERS).prop_map(Fault::Backwards),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let used = prop::collection::vec(0.0..5.0_f64, CONTAINERS);
    let memory = prop::collection::vec(0..2_u64 << 30, CONTAINERS);
    let machine = (0.0..3.0_f64, 0.5..1.0_f64, 0.0..60.0_f64, 0.0..20.0_f64);
    let gate = prop_oneof![9 => Just(Gate::Open), 1 => Just(Gate::Closed)];
    (1..20_u64, used, memory, machine, gate, fault()).prop_map(
        |(seconds, used, container_memory, machine, gate, fault)| {
            let (system, memory_used, stall, load) = machine;
            Step {
                seconds,
                used,
                system,
                memory_used,
                container_memory,
                stall,
                load,
                gate,
                fault,
            }
        },
    )
}

fn apply(node: &mut Node, step: &Step) -> UsageSample {
    if step.fault == Fault::Repeated {
        return node.sample.clone();
    }
    node.system = step.system;
    let mut sample = node.step(Duration::from_secs(step.seconds), &step.used);
    let total = 10_u64 << 30;
    let free = Duration::from_nanos(total)
        .mul_f64(1.0 - step.memory_used)
        .as_nanos();
    let available_bytes = u64::try_from(free).unwrap();
    sample.host.memory = Some(HostMemory {
        total_bytes: total,
        available_bytes,
    });
    let pressure = Pressure {
        some_avg10: step.stall,
        full_avg10: step.stall / 10.0,
    };
    sample.host.regular_cpu_pressure = Some(pressure);
    sample.host.memory_pressure = Some(pressure);
    sample.host.load = Some(LoadAverage {
        one: step.load,
        five: step.load,
        fifteen: step.load,
    });
    for (container, memory) in sample.containers.iter_mut().zip(&step.container_memory) {
        container.memory_bytes = Some(*memory);
    }
    match step.fault {
        Fault::None | Fault::Repeated => {}
        Fault::Host => sample.host = crate::HostUsage::default(),
        Fault::Container(index) => {
            let container = &mut sample.containers[index];
            (container.at, container.cpu_time, container.memory_bytes) = (None, None, None);
        }
        Fault::Garbage(garbage) => {
            let pressure = Pressure {
                some_avg10: garbage,
                full_avg10: garbage,
            };
            sample.host.regular_cpu_pressure = Some(pressure);
            sample.host.memory_pressure = Some(pressure);
            let load = LoadAverage {
                one: garbage,
                five: garbage,
                fifteen: garbage,
            };
            sample.host.load = Some(load);
            for container in &mut sample.containers {
                container.cpus_limit = Some(garbage);
            }
        }
        Fault::Backwards(index) => sample.containers[index].cpu_time = Some(Duration::ZERO),
    }
    sample
}

/// Whether the fault hides a value that the controller's cpu and memory detectors need.
fn is_blind(fault: Fault) -> bool {
    matches!(fault, Fault::Host | Fault::Repeated)
}

fn is_revocable(sample: &UsageSample, executor: &str) -> bool {
    let mut named = sample
        .containers
        .iter()
        .filter(|c| c.executor.as_str() == executor);
    named.all(crate::ContainerUsage::is_revocable)
}

fn slack() -> Slack {
    let quick = [
        ("mem", "true"),
        ("min_age", "0secs"),
        ("min_samples", "2"),
        ("fold", "10secs"),
        ("stale_after", "60secs"),
        ("unused_reservations", "true"),
    ];
    Slack::new(SlackConfig::read(&quick.into_iter().collect()).unwrap())
}

fn nsigma() -> NSigma {
    let quick = [
        ("warm_up", "2"),
        ("min_age", "0secs"),
        ("fold", "10secs"),
        ("n", "1"),
    ];
    NSigma::new(NSigmaConfig::read(&quick.into_iter().collect()).unwrap())
}

fn check_estimator(
    mut estimator: impl ResourceEstimator,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut node = node();
    let mut before: Vec<(&'static str, f64)> = Vec::new();
    for step in steps {
        let sample = apply(&mut node, step);
        let estimate = estimator.estimate(&sample, step.gate);
        let offered = estimate.oversubscribable.unwrap();
        prop_assert_eq!(&offered, &offered.revocable());
        let oversubscribed = sample.allocated_revocable();
        for forecast in &estimate.forecasts {
            let name = forecast.resource;
            let amount = |resources: &meseta_resources::Resources| {
                resources
                    .scalar(name)
                    .map_or(0.0, meseta_resources::Scalar::to_f64)
            };
            for number in [
                forecast.peak,
                forecast.total,
                forecast.used,
                forecast.promised,
            ] {
                prop_assert!(number.is_finite() && number >= 0.0, "{:?}", forecast);
            }
            // The offer is at most the rest of the estimate, and the estimate is at most the promised resources.
            let free = (forecast.total - amount(&oversubscribed)).max(0.0);
            prop_assert!(
                amount(&offered) <= free + 1e-3,
                "{:?} {}",
                forecast,
                offered
            );
            prop_assert!(forecast.total <= 0.8 * forecast.capacity + 1e-9);
            prop_assert!(forecast.total <= (forecast.promised - forecast.peak).max(0.0) + 1e-9);
            if step.gate == Gate::Closed {
                prop_assert_eq!(forecast.total, 0.0);
            }
            let known = before.iter_mut().find(|(known, _)| *known == name);
            if let Some((_, total)) = known {
                // A sample with an unreadable part adds nothing.
                let blind = match step.fault {
                    Fault::Host => true,
                    Fault::Container(index) => index < REGULAR,
                    _ => false,
                };
                if blind {
                    prop_assert!(forecast.total <= *total, "{:?} after {}", forecast, total);
                }
                *total = forecast.total;
            } else {
                before.push((name, forecast.total));
            }
        }
        if step.fault == Fault::Repeated {
            for (name, total) in &before {
                let free = offered
                    .scalar(name)
                    .map_or(0.0, meseta_resources::Scalar::to_f64);
                let held = oversubscribed
                    .scalar(name)
                    .map_or(0.0, meseta_resources::Scalar::to_f64);
                prop_assert!(free <= (total - held).max(0.0) + 1e-3);
            }
        }
    }
    Ok(())
}

fn check_kills(
    assessment: &Assessment,
    sample: &UsageSample,
    last_kill: &mut Option<meseta_resources::Moment>,
) -> Result<(), TestCaseError> {
    let kills = assessment
        .corrections
        .iter()
        .filter(|c| c.action == Action::Kill);
    let kills: Vec<_> = kills.collect();
    let Some(first) = kills.first() else {
        return Ok(());
    };
    let memory = first.why.detector.contains("mem");
    let cool_down = Duration::from_secs(if memory { 4 } else { 20 });
    if let Some(last) = last_kill {
        prop_assert!(
            sample.at.saturating_since(*last) >= cool_down,
            "{:?}",
            kills
        );
    }
    *last_kill = Some(sample.at);
    let frees = |kill: &&&crate::Correction| kill.why.victim.map_or(0.0, |choice| choice.frees);
    let all_but_last: f64 = kills
        .iter()
        .take(kills.len() - 1)
        .map(|kill| frees(&kill))
        .sum();
    match first.why.gap {
        Some((gap, _)) => prop_assert!(all_but_last < gap, "{:?}", kills),
        None => prop_assert_eq!(kills.len(), 1),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn slack_never_promises_unseen_resources(steps in prop::collection::vec(step(), 1..60)) {
        check_estimator(slack(), &steps)?;
    }

    #[test]
    fn nsigma_never_promises_unseen_resources(steps in prop::collection::vec(step(), 1..60)) {
        check_estimator(nsigma(), &steps)?;
    }

    /// An unreadable container never increases the estimate of a readable one.
    #[test]
    fn an_unreadable_container_adds_nothing(
        steps in prop::collection::vec(step(), 5..40),
        index in 0..REGULAR,
    ) {
        let (mut node, mut seeing) = (node(), slack());
        for step in &steps {
            let calm = Step { fault: Fault::None, gate: Gate::Open, ..step.clone() };
            seeing.estimate(&apply(&mut node, &calm), Gate::Open);
        }
        let before = seeing.estimate(&node.step(Duration::from_secs(1), &[1.0; 6]), Gate::Open);
        let mut sample = node.step(Duration::from_secs(1), &[1.0; 6]);
        sample.containers[index].at = None;
        sample.containers[index].cpu_time = None;
        sample.containers[index].memory_bytes = None;
        let blind = seeing.estimate(&sample, Gate::Open);
        for (before, after) in before.forecasts.iter().zip(&blind.forecasts) {
            prop_assert!(after.total <= before.total, "{:?} {:?}", before, after);
        }
    }

    #[test]
    fn pressure_corrects_only_necessary_revocable_executors(
        steps in prop::collection::vec(step(), 1..120),
        freeze in any::<bool>(),
        hold in 0..3_u64,
    ) {
        let parameters = [
            ("freeze", freeze.to_string()),
            ("cpu_util_hold", format!("{hold}secs")),
            ("psi_cpu_hold", format!("{hold}secs")),
        ];
        let modules = [("pressure".to_owned(), parameters.into_iter().collect())];
        let modules: ModuleParameters = modules.into_iter().collect();
        let mut controller = ControllerSpec::parse("pressure").unwrap().build(&modules).unwrap();
        let (mut node, mut last_kill, mut stopped) = (node(), None, false);
        for step in &steps {
            let sample = apply(&mut node, step);
            let assessment = controller.assess(&sample);
            for correction in &assessment.corrections {
                prop_assert!(is_revocable(&sample, correction.executor.as_str()));
                let container =
                    node.sample.containers.iter_mut().find(|c| c.executor == correction.executor);
                container.unwrap().frozen = correction.action == Action::Freeze;
            }
            if is_blind(step.fault) {
                prop_assert!(assessment.corrections.is_empty(), "{:?}", assessment.corrections);
                // Resources that were held back do not become free either.
                prop_assert!(assessment.stop_offering.is_some() || !stopped);
            }
            stopped = assessment.stop_offering.is_some();
            if let Some(throttle) = &assessment.throttle {
                prop_assert!(throttle.cpus >= 0.5 - 1e-9 && throttle.cpus <= 10.0);
            }
            check_kills(&assessment, &sample, &mut last_kill)?;
        }
    }

    #[test]
    fn load_kills_all_revocable_or_none(steps in prop::collection::vec(step(), 1..20)) {
        let parameters = [("load_threshold_5min", "6")].into_iter().collect();
        let modules = [("load".to_owned(), parameters)].into_iter().collect();
        let mut controller = ControllerSpec::parse("load").unwrap().build(&modules).unwrap();
        let mut node = node();
        for step in &steps {
            let sample = apply(&mut node, step);
            let over = sample.host.load.is_some_and(|load| load.five > 6.0);
            let killed = controller.assess(&sample).corrections;
            prop_assert_eq!(killed.len(), if over { CONTAINERS - REGULAR } else { 0 });
            for correction in &killed {
                prop_assert!(is_revocable(&sample, correction.executor.as_str()));
            }
        }
    }

    #[test]
    fn any_spec_text_parses_or_fails(text in "[a-z(), ]{0,40}", bytes in any::<Vec<u8>>()) {
        let _ = EstimatorSpec::parse(&text);
        let _ = ControllerSpec::parse(&text);
        let _ = slack().restore(meseta_resources::Moment::ORIGIN, &bytes);
        let _ = nsigma().restore(meseta_resources::Moment::ORIGIN, &bytes);
        let _ = crate::replay::Trace::parse(&String::from_utf8_lossy(&bytes), None);
    }
}
