//! Runs of a schedule that may overlap.

use super::*;

#[test]
fn unplaceable_run_blocks_no_later_run() {
    for is_gang in [false, true] {
        let mut world = World::new(1, 2);
        world.success_in_ten = 10;
        let spec = |cpus: f64| {
            let mut spec = cron(Overlap::Allow);
            spec.task.requests.insert("cpus".to_owned(), cpus);
            if is_gang {
                spec.gang = gang("nightly", 1).gang;
            }
            spec
        };
        submit(&mut world, spec(64.0));
        world.calm(70, None);
        submit(&mut world, spec(1.0));
        world.calm(300, None);
        let runs: Vec<u64> = world.successes.keys().map(|(_, run, _)| *run).collect();
        assert!(runs.len() >= 4, "{runs:?}, gang: {is_gang}");
    }
}

/// A task of the run pauses after a failure, and the others do not fit.
#[test]
fn runs_of_one_version_start_sequentially() {
    let mut world = World::new(1, 1);
    world.success_in_ten = 10;
    let mut spec = cron(Overlap::Allow);
    spec.count = 6;
    submit(&mut world, spec);
    world.calm(200, None);
    let first: Vec<_> = (1..=2).collect();
    let mut runs: Vec<u64> = world.successes.keys().map(|(_, run, _)| *run).collect();
    runs.dedup();
    assert_eq!(runs[..2], first[..]);
}
