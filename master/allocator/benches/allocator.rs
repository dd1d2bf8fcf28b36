//! Criterion benchmarks with the shapes of Mesos's allocator benchmarks; `docs/performance.md` maps them.

mod shapes;

use std::collections::BTreeSet;
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use meseta_allocator::sorter::Sorter;
use shapes::{Cluster, FOREVER, quota, resources, role};

const SIZES: [(usize, usize); 4] = [(1000, 50), (1000, 1000), (5000, 200), (10_000, 1000)];

/// Measures one forced full cycle after `rounds` in which frameworks declined everything.
fn decline_offers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("DeclineOffers");
    group.sample_size(10);
    for (agents, frameworks) in SIZES {
        let id = BenchmarkId::from_parameter(format!("{agents}x{frameworks}"));
        group.bench_function(id, |bencher| {
            let mut cluster = Cluster::new(agents, frameworks, 1);
            for _ in 0..3 {
                let offers = cluster.measured_sweep();
                cluster.measured_decline(&offers, Some(FOREVER));
            }
            bencher.iter_batched_ref(
                || cluster.allocator.clone(),
                |allocator| allocator.sweep(cluster.now),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// A cycle that offers nothing, because all frameworks have declined everything.
fn all_declined(criterion: &mut Criterion) {
    let mut cluster = Cluster::new(1000, 50, 1);
    loop {
        let offers = cluster.measured_sweep();
        if offers.is_empty() {
            break;
        }
        cluster.measured_decline(&offers, Some(FOREVER));
    }
    criterion.bench_function("DeclineOffers/all declined 1000x50", |bencher| {
        bencher.iter(|| black_box(cluster.measured_sweep()));
    });
}

/// 99 % of the frameworks are suppressed.
fn suppress_offers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ExtremeSuppressOffers");
    group.sample_size(10);
    for (agents, frameworks) in [(1000, 200), (5000, 200)] {
        let id = BenchmarkId::from_parameter(format!("{agents}x{frameworks}"));
        group.bench_function(id, |bencher| {
            let mut cluster = Cluster::new(agents, frameworks, 1);
            for framework in &cluster.frameworks[frameworks / 100..] {
                cluster
                    .allocator
                    .suppress(framework, &BTreeSet::new())
                    .expect("known");
            }
            bencher.iter_batched_ref(
                || cluster.allocator.clone(),
                |allocator| allocator.sweep(cluster.now),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn add_agents(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("AddAndUpdateSlave");
    group.sample_size(10);
    let total = resources("cpus:2;mem:1024;disk:4096;ports:[31000-32000]");
    let used = resources("cpus:1;mem:128;disk:1024;ports:[31126-31510]").allocate(&role("role0"));
    for (agents, frameworks) in [(1000, 50), (5000, 200)] {
        let id = BenchmarkId::from_parameter(format!("{agents}x{frameworks}"));
        group.bench_function(id, |bencher| {
            bencher.iter_batched(
                || Cluster::without_agents(frameworks, 1),
                |mut cluster| {
                    for index in 0..agents {
                        cluster.add_agent(&total, Some((index % frameworks, used.clone())));
                    }
                    cluster
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// Agents with reserved resources and a volume each, shared or not.
fn persistent_volumes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("PersistentVolumes");
    group.sample_size(10);
    for shared in [false, true] {
        let name = if shared {
            "shared 1000x200"
        } else {
            "regular 1000x200"
        };
        group.bench_function(name, |bencher| {
            let mut cluster = Cluster::without_agents(200, 1);
            for index in 0..1000 {
                let total = shapes::with_volume(index, shared);
                cluster.add_agent(&total, None);
            }
            bencher.iter_batched_ref(
                || cluster.allocator.clone(),
                |allocator| allocator.sweep(cluster.now),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// Every role with a quota: as many agents as roles as frameworks.
fn quotas(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("LargeAndSmallQuota");
    group.sample_size(10);
    for count in [30, 300, 3000] {
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            let mut cluster = Cluster::without_agents(count, count);
            let total = resources("cpus:2;mem:2048;disk:2048");
            for _ in 0..count {
                cluster.add_agent(&total, None);
            }
            for index in 0..count {
                let quota = if index % 6 == 5 {
                    quota(4, 4096, 4096)
                } else {
                    quota(1, 1024, 1024)
                };
                cluster
                    .allocator
                    .update_quota(&role(&format!("role{index}")), &quota)
                    .expect("valid");
            }
            bencher.iter_batched_ref(
                || cluster.allocator.clone(),
                |allocator| allocator.sweep(cluster.now),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// Few agents, many frameworks with a role each.
fn multi_framework(criterion: &mut Criterion) {
    let cluster = Cluster::new(80, 554, 554);
    criterion.bench_function("MultiFrameworkAllocations/80x554", |bencher| {
        bencher.iter_batched_ref(
            || cluster.allocator.clone(),
            |allocator| allocator.sweep(cluster.now),
            BatchSize::LargeInput,
        );
    });
}

/// All shares change, then one.
fn sorter(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("FullSort");
    for clients in [200_u32, 1000] {
        let mut sorter = Sorter::new();
        sorter.add_total(0, 1_000_000_000);
        let root = sorter.root();
        let nodes: Vec<u32> = (0..clients)
            .map(|client| {
                let node = sorter.add(root, format!("client{client:05}").into(), client);
                sorter.activate(node);
                sorter.add_allocated(node, 0, i64::from(client * 7919 % clients) * 1000);
                node
            })
            .collect();
        sorter.settle();
        group.bench_function(BenchmarkId::new("all", clients), |bencher| {
            bencher.iter(|| {
                sorter.add_total(0, 1000);
                sorter.settle();
            });
        });
        group.bench_function(BenchmarkId::new("one", clients), |bencher| {
            let mut next = 0;
            bencher.iter(|| {
                next = (next + 1) % nodes.len();
                sorter.add_allocated(nodes[next], 0, 500_000);
                sorter.settle();
            });
        });
    }
    group.finish();
}

/// Arithmetic of `Resources` with four scalars, as the allocator's callers use it.
fn arithmetic(criterion: &mut Criterion) {
    let one = resources("cpus:1;gpus:1;mem:128;disk:256");
    let mut sum = one.clone();
    criterion.bench_function("Resources/+= of 4 scalars", |bencher| {
        bencher.iter(|| sum += black_box(&one));
    });
}

criterion_group!(
    benches,
    decline_offers,
    all_declined,
    suppress_offers,
    add_agents,
    persistent_volumes,
    quotas,
    multi_framework,
    sorter,
    arithmetic
);
criterion_main!(benches);
