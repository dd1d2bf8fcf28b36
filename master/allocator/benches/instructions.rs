//! Each shape once, with its duration; under callgrind, the instructions of one operation.
//!
//! `cargo bench --bench instructions -- decline 10000 1000` prints durations. With valgrind:
//! `valgrind --tool=callgrind --toggle-collect='*measured_sweep*' <the binary> decline 1000 50 3`.
#![expect(clippy::disallowed_methods, reason = "a benchmark takes the time")]

mod shapes;

use std::time::Instant;

use meseta_resources::Resources;
use shapes::{Cluster, FOREVER, quota, resources, role};

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let number = |at: usize, default: usize| -> usize {
        arguments
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (agents, frameworks) = (number(1, 1000), number(2, 50));
    match arguments.first().map_or("decline", String::as_str) {
        "decline" => decline(agents, frameworks, number(3, 10), number(4, 1)),
        "declined" => declined(agents, frameworks, number(3, 1)),
        "add" => add(agents, frameworks),
        "event" => event(agents, frameworks),
        "quota" => large_and_small_quota(agents),
        "nonquota" => quota_versus_none(agents, frameworks, number(3, 1000)),
        "volumes" => volumes(agents, frameworks),
        "arithmetic" => arithmetic(),
        "memory" => memory(agents, frameworks),
        other => eprintln!("no shape is named {other}"),
    }
}

fn timed<T>(what: &str, of: usize, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    let elapsed = start.elapsed();
    eprintln!(
        "{what}: {:.3} ms ({} ns each of {of})",
        elapsed.as_secs_f64() * 1e3,
        elapsed.as_nanos() / of.max(1) as u128
    );
    result
}

/// Each round offers everything, and the frameworks decline everything permanently.
fn decline(agents: usize, frameworks: usize, rounds: usize, roles: usize) {
    let mut cluster = Cluster::new(agents, frameworks, roles);
    for round in 0..rounds {
        let offers = timed(&format!("round {round}: cycle"), agents, || {
            cluster.measured_sweep()
        });
        eprintln!("  {} offers", offers.len());
        timed("  decline", offers.len(), || {
            cluster.measured_decline(&offers, Some(FOREVER))
        });
        if offers.is_empty() {
            break;
        }
    }
}

/// A cycle after all frameworks have declined everything.
fn declined(agents: usize, frameworks: usize, roles: usize) {
    let mut cluster = Cluster::new(agents, frameworks, roles);
    let start = Instant::now();
    let mut rounds = 0;
    loop {
        let offers = cluster.allocator.sweep(cluster.now);
        if offers.is_empty() {
            break;
        }
        cluster.measured_decline(&offers, Some(FOREVER));
        rounds += 1;
    }
    eprintln!(
        "{rounds} rounds until all was declined, {:.1} s",
        start.elapsed().as_secs_f64()
    );
    for _ in 0..5 {
        let offers = timed("all declined: cycle", agents, || cluster.measured_sweep());
        assert!(offers.is_empty());
    }
}

fn add(agents: usize, frameworks: usize) {
    let mut cluster = timed("frameworks", frameworks, || {
        Cluster::without_agents(frameworks, 1)
    });
    measured_add_agents(&mut cluster, agents);
    timed("cycle", agents, || cluster.measured_sweep());
    measured_update_agents(&mut cluster);
    timed("cycle of revocable", agents, || cluster.measured_sweep());
}

#[inline(never)]
fn measured_add_agents(cluster: &mut Cluster, agents: usize) {
    let total = resources("cpus:2;mem:1024;disk:4096;ports:[31000-32000]");
    let used = resources("cpus:1;mem:128;disk:1024;ports:[31126-31510]").allocate(&role("role0"));
    let frameworks = cluster.frameworks.len();
    timed("add agents", agents, || {
        for index in 0..agents {
            cluster.add_agent(&total, Some((index % frameworks, used.clone())));
        }
    });
}

#[inline(never)]
fn measured_update_agents(cluster: &mut Cluster) {
    let revocable = resources("cpus:10");
    let revocable: Resources = revocable
        .iter()
        .map(|resource| resource.with_revocable(true))
        .collect();
    let total = |id| cluster.allocator.agent_total(id).expect("known");
    let ids = cluster.agents.iter();
    let totals: Vec<_> = ids
        .map(|id| (id.clone(), &total(id) + &revocable))
        .collect();
    timed("update agents", totals.len(), || {
        for (id, total) in &totals {
            let updated = cluster.allocator.update_agent(id, None, Some(total));
            updated.expect("known");
        }
    });
}

/// A task ends on one agent: measures the time from its end to the new offer.
fn event(agents: usize, frameworks: usize) {
    let mut cluster = Cluster::new(agents, frameworks, 1);
    let offers = cluster.allocator.sweep(cluster.now);
    let mut times = Vec::new();
    for offer in offers.iter().take(1000) {
        let start = Instant::now();
        let made = measured_event(&mut cluster, offer);
        times.push(start.elapsed());
        assert_eq!(made, 1);
    }
    times.sort_unstable();
    eprintln!(
        "event to offer: median {:?}, worst {:?} of {}",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

#[inline(never)]
fn measured_event(cluster: &mut Cluster, offer: &meseta_allocator::Allocation) -> usize {
    let now = cluster.now;
    let allocator = &mut cluster.allocator;
    allocator
        .recover_resources(now, &offer.framework, &offer.agent, &offer.resources, None)
        .expect("held");
    allocator.allocate(now).len()
}

/// Equal numbers of agents, roles and frameworks: five roles in six have a quota of half an agent, one in six has a
/// quota of two agents.
fn large_and_small_quota(count: usize) {
    let mut cluster = timed("set up", count, || measured_quota_setup(count));
    let offers = timed("quota cycle", count, || cluster.measured_sweep());
    eprintln!("  {} offers", offers.len());
    timed("empty cycle", count, || cluster.measured_sweep());
}

#[inline(never)]
fn measured_quota_setup(count: usize) -> Cluster {
    let mut cluster = Cluster::without_agents(count, count);
    let total = resources("cpus:2;mem:2048;disk:2048");
    for _ in 0..count {
        cluster.add_agent(&total, None);
    }
    let (small, large) = (quota(1, 1024, 1024), quota(4, 4096, 4096));
    for index in 0..count {
        let quota = if index % 6 == 5 { &large } else { &small };
        cluster
            .allocator
            .update_quota(&role(&format!("role{index}")), quota)
            .expect("valid");
    }
    cluster
}

/// Two frameworks per role, with quota on every role or on none.
fn quota_versus_none(agents: usize, frameworks: usize, roles: usize) {
    for with_quota in [false, true] {
        let mut cluster = Cluster::new(agents, frameworks, roles);
        if with_quota {
            for index in 0..roles {
                cluster
                    .allocator
                    .update_quota(&role(&format!("role{index}")), &quota(48, 8192, 8192))
                    .expect("valid");
            }
        }
        eprintln!("quota: {with_quota}");
        let offers = timed("cycle", agents, || cluster.measured_sweep());
        eprintln!("  {} offers", offers.len());
        timed("empty cycle", agents, || cluster.measured_sweep());
    }
}

fn memory(agents: usize, frameworks: usize) {
    let mut cluster = Cluster::new(agents, frameworks, 1);
    let offers = cluster.allocator.sweep(cluster.now);
    eprintln!(
        "{} bytes per agent, one framework on it and one offer",
        cluster.allocator.agent_bytes() / agents
    );
    cluster.measured_decline(&offers, Some(FOREVER));
    eprintln!(
        "{} bytes per agent after a decline",
        cluster.allocator.agent_bytes() / agents
    );
}

/// Agents that are fully reserved, with one volume each.
fn volumes(agents: usize, frameworks: usize) {
    for shared in [false, true] {
        let mut cluster = Cluster::without_agents(frameworks, 1);
        timed("add agents", agents, || {
            for index in 0..agents {
                cluster.add_agent(&shapes::with_volume(index, shared), None);
            }
        });
        let offers = timed(&format!("cycle, shared: {shared}"), agents, || {
            cluster.measured_sweep()
        });
        eprintln!("  {} offers", offers.len());
    }
}

fn arithmetic() {
    let one = resources("cpus:1;gpus:1;mem:128;disk:256");
    let mut sum = one.clone();
    timed("50,000 additions of 4 scalars", 50_000, || {
        for _ in 0..50_000 {
            measured_addition(&mut sum, &one);
        }
    });
}

#[inline(never)]
fn measured_addition(sum: &mut meseta_resources::Resources, one: &meseta_resources::Resources) {
    *sum += one;
}
