//! Seeds that are run every time: a million steps, on as many threads as cores.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use meseta_simulation::{Cluster, Counts, Outcome, Plan};

/// Steps with faults; the steps to rest are several times as many.
const STEPS: u64 = 3_000;
const STEPS_IN_ALL: u64 = 1_000_000;

/// Runs of the job scheduler, with the steps with faults of each.
const RUNS_OF_JOBS: u64 = 6;
const STEPS_OF_JOBS: u64 = 3_000;

fn run(seed: u64) -> Outcome {
    run_plan(Plan::new(seed, STEPS))
}

fn run_plan(plan: Plan) -> Outcome {
    let mut cluster = Cluster::new(plan).expect("room for directories");
    let outcome = cluster.run();
    outcome.unwrap_or_else(|violation| panic!("{violation}"))
}

/// The sums of some runs.
#[derive(Default)]
struct Sum {
    steps: u64,
    tasks: usize,
    counts: Counts,
}

impl Sum {
    fn add(&mut self, outcome: Outcome) {
        self.steps += outcome.steps;
        self.tasks += outcome.tasks;
        for (what, count) in outcome.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }
}

#[test]
fn promises_hold_for_a_million_steps() {
    let (next, sum) = (AtomicU64::new(1), Mutex::new(Sum::default()));
    let work = || {
        loop {
            let outcome = run(next.fetch_add(1, Ordering::Relaxed));
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.add(outcome);
            if sum.steps >= STEPS_IN_ALL {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            assert!(worker.join().is_ok(), "a promise was broken, see above");
        }
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (steps, tasks) = (sum.steps, sum.tasks);
    assert!(
        tasks > 1_000,
        "only {tasks} tasks were launched in {steps} steps"
    );
    // The runs must reach these events, or they prove nothing about them.
    for what in [
        ("call", "ACCEPT"),
        ("call", "ACKNOWLEDGE_OPERATION_STATUS"),
        ("container", "Probe"),
        ("fault", "agent crash"),
        ("fault", "master crash"),
        ("fault", "silent disk"),
        ("frame arrives", "ShutdownExecutor"),
        ("mutation", "MarkUnreachable"),
        ("network", "given up"),
        ("network", "taken late"),
        ("operation of an operator", "OPERATION_FINISHED"),
    ] {
        assert!(sum.counts.contains_key(&what), "{what:?} never happened");
    }
}

#[test]
fn scheduler_keeps_its_promises_through_faults() {
    let mut sum = Sum::default();
    for seed in 1..=RUNS_OF_JOBS {
        sum.add(run_plan(Plan::of_jobs(seed, STEPS_OF_JOBS)));
    }
    for what in [
        ("call", "UPDATE_FRAMEWORK"),
        ("fault", "copied scheduler ends"),
        ("fault", "permission changed"),
        ("fault", "scheduler copied"),
        ("fault", "scheduler's clock set"),
        ("fault", "scheduler's store put back"),
    ] {
        assert!(sum.counts.contains_key(&what), "{what:?} never happened");
    }
}

#[test]
fn same_seed_repeats_the_run() {
    assert_eq!(run(7).hash, run(7).hash);
    assert_ne!(run(7).hash, run(8).hash);
}
