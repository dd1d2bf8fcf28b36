//! The cost of one sample of a node with a thousand containers, for an estimator and a controller.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use meseta_estimators::{
    ContainerUsage, ControllerSpec, EstimatorSpec, Gate, HostMemory, ModuleParameters, UsageSample,
};
use meseta_resources::{ExecutorId, FrameworkId, Moment, Resource, Resources, Scalar};

const CONTAINERS: u64 = 1000;

/// A node with a thousand containers, every tenth of them revocable.
fn node() -> UsageSample {
    let mut sample = UsageSample {
        at: Moment::from_nanos(1),
        ..UsageSample::default()
    };
    sample.total = Resources::from(Resource::cpus(Scalar::from_units(CONTAINERS)));
    sample.host.cpus = u32::try_from(CONTAINERS).ok();
    sample.host.cpu_time = Some(Duration::ZERO);
    sample.host.memory = Some(HostMemory {
        total_bytes: 1 << 40,
        available_bytes: 1 << 39,
    });
    for index in 0..CONTAINERS {
        let cpus = Resource::cpus(Scalar::from_units(1));
        let mem = Resource::mem(Scalar::from_units(512));
        let revocable = |resource: Resource| {
            let mut parts = resource.into_parts();
            parts.revocable = index % 10 == 0;
            Resource::new(parts).expect("a plain resource may be revocable")
        };
        let allocated = [cpus, mem].into_iter().map(revocable).collect();
        let framework = FrameworkId::new(&format!("framework-{}", index % 7)).expect("valid");
        let executor = ExecutorId::new(&format!("executor-{index}")).expect("valid");
        let mut container = ContainerUsage::new(framework, executor, allocated);
        container.cpu_time = Some(Duration::ZERO);
        container.memory_bytes = Some(100 << 20);
        sample.containers.push(container);
    }
    sample
}

fn second(sample: &mut UsageSample) {
    sample.at += Duration::from_secs(1);
    let mut total = Duration::ZERO;
    for (index, container) in (0..).zip(&mut sample.containers) {
        let used = Duration::from_millis(sample.at.as_nanos() % 97 + index % 300);
        container.at = Some(sample.at);
        container.cpu_time = container.cpu_time.map(|spent| spent + used);
        total += used;
    }
    sample.host.cpu_time = sample.host.cpu_time.map(|spent| spent + total);
}

fn bench(criterion: &mut Criterion) {
    let none = ModuleParameters::new();
    let mut slack = EstimatorSpec::parse("slack")
        .and_then(|spec| spec.build(&none))
        .expect("valid");
    let mut sample = node();
    for _ in 0..1000 {
        second(&mut sample);
        slack.estimate(&sample, Gate::Open);
    }
    criterion.bench_function("slack, a sample of 1,000 containers", |bencher| {
        bencher.iter(|| {
            second(&mut sample);
            black_box(slack.estimate(&sample, Gate::Open))
        });
    });
    let spec = ControllerSpec::parse("pressure").and_then(|spec| spec.build(&none));
    let mut pressure = spec.expect("valid");
    let mut sample = node();
    criterion.bench_function("pressure, a sample of 1,000 containers", |bencher| {
        bencher.iter(|| {
            second(&mut sample);
            black_box(pressure.assess(&sample))
        });
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
