//! Seeds that are run every time.

use std::collections::BTreeMap;

use meseta_simulation::{Cluster, Counts, Outcome, Plan};

const STEPS: u64 = 3_000;

fn run(seed: u64) -> Outcome {
    let mut cluster = Cluster::new(Plan::new(seed, STEPS)).expect("room for directories");
    let outcome = cluster.run();
    outcome.unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn promises_hold_whatever_breaks() {
    let mut counts: Counts = BTreeMap::new();
    let (mut tasks, mut steps) = (0, 0);
    for seed in 1..=20 {
        let outcome = run(seed);
        tasks += outcome.tasks;
        steps += outcome.steps;
        for (what, count) in outcome.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    assert!(
        tasks > 60,
        "only {tasks} tasks were launched in {steps} steps"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7).hash, run(7).hash);
    assert_ne!(run(7).hash, run(8).hash);
}
