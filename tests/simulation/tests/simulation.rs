//! Seeds that are run every time.

use meseta_simulation::Cluster;

const STEPS: u64 = 3_000;

fn run(seed: u64) -> (u64, usize) {
    let mut cluster = Cluster::new(seed).expect("room for directories");
    let hash = cluster.run(STEPS).unwrap_or_else(|story| panic!("{story}"));
    (hash, cluster.tasks())
}

#[test]
fn promises_hold_whatever_breaks() {
    let tasks: usize = (1..=4).map(|seed| run(seed).1).sum();
    assert!(tasks > 40, "only {tasks} tasks were launched");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}
