//! System calls of an agent fail, or are its last: no task ends because of that, and nothing is left over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meseta_tests::faults::ledger::{Fault, Point};
use meseta_tests::faults::life::Stage;
use meseta_tests::{http, unless_root};
use nix::errno::Errno;

meseta_tests::scenarios! {
    unless_root:
        failed_system_call_ends_no_task,
        slow_syncs_delay_no_request;
}

const RUN: &str = "WORK/meta/slaves/ID-SN/frameworks/ID-N/executors/exits-N/runs/ID";
const RECORD: &str = "WORK/run/agent-N/containers/ID";

fn point(call: &str, file: &str) -> Point {
    Point::first(call, file).expect("a call that is looked at")
}

fn error(call: &str, file: &str, errno: Errno) -> (Point, Fault) {
    (point(call, file), Fault::Error { errno, times: 1 })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the fault of a thread creation at an agent's start, after a number of earlier threads: the test threads, one for
/// each processor and four more, and those of its runtime.
fn no_thread_after(of_the_runtime: usize) -> (Point, Fault) {
    let (first, fault) = error("clone3", "by meseta", Errno::EAGAIN);
    let ordinal = processors() + 4 + of_the_runtime + 1;
    (Point { ordinal, ..first }, fault)
}

/// A few of the points of the example `agent_faults`; a fault once hit each of them.
fn failed_system_call_ends_no_task() {
    let mut stage = Stage::open();
    let lives = [
        // No part of a run is durable yet except its folder; the next agent has disk errors at both files of the executors'
        // token key.
        vec![
            (point("mkdir", RUN), Fault::KillAfter),
            error("openat", "WORK/meta/executor_key", Errno::EIO),
            error("read", "WORK/meta/executor_key.copy", Errno::EIO),
        ],
        // The records of a running container, and of one that has ended.
        vec![
            error("read", &format!("{RECORD}/supervisor"), Errno::EIO),
            error("read", &format!("{RECORD}/status"), Errno::EIO),
            error("getdents64", "WORK/run/agent-N/containers", Errno::EIO),
            error("unlinkat", &format!("{RECORD}/status"), Errno::EIO),
        ],
        // The mounts of a container that gets other limits, and the remains of earlier agents.
        vec![
            error("openat", "/proc/N/mountinfo", Errno::EIO),
            error("getdents64", "WORK/slaves", Errno::ENOMEM),
        ],
        // The check cannot be performed.
        vec![
            error("socket", "by check", Errno::EMFILE),
            error("clone3", "by checkpoints", Errno::ENOMEM),
        ],
        // The failures hit the last thread of the runtime, and the first for blocking work.
        vec![no_thread_after(processors() - 1)],
        vec![no_thread_after(processors())],
    ];
    let key = stage.executor_key();
    for faults in lives {
        let outcome = stage.live(&faults);
        assert!(
            outcome.wrong.is_empty(),
            "{faults:?}: {:#?}\n{}",
            outcome.wrong,
            outcome.log
        );
        for (point, _) in &faults {
            let is_met = outcome.fired.iter().any(|(met, _)| met == point);
            assert!(is_met, "{point} was not made");
        }
        assert_eq!(stage.executor_key(), key, "{faults:?}: {}", outcome.log);
    }
}

/// The pause between two requests of the operator.
const LOOK: Duration = Duration::from_millis(50);
/// The limit of an answer: a longer one would have waited for several syncs in a row.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Measures the answers until `over` is set; an agent that does not listen yet does not count.
fn answer_times(url: &str, over: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        if http::try_get(&format!("{url}/metrics")).is_ok() {
            took.push(began.elapsed());
        }
        std::thread::sleep(LOOK);
    }
    took.sort_unstable();
    took
}

/// A paused machine delays answers in one life; an answer that waits for syncs is late in each.
const LIVES_MAX: usize = 3;

/// Simulates a disk that is busy for another user: durable writes wait, and nothing else.
fn slow_syncs_delay_no_request() {
    let mut stage = Stage::open();
    stage.slow_syncs(Duration::from_millis(500));
    let mut lives = (0..LIVES_MAX).map(|_| slowest_answer(&mut stage));
    let is_met = lives.any(|slowest| slowest < ANSWER_MAX);
    assert!(
        is_met,
        "an answer of each life took longer than {ANSWER_MAX:?}"
    );
}

/// Returns the slowest answer beside a life with slow syncs.
fn slowest_answer(stage: &mut Stage) -> Duration {
    let (over, url) = (AtomicBool::new(false), stage.agent_url().to_owned());
    let (outcome, took) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| answer_times(&url, &over));
        let outcome = stage.live(&[]);
        over.store(true, Ordering::Relaxed);
        (outcome, looking.join().expect("no panic"))
    });
    assert!(
        outcome.wrong.is_empty(),
        "{:#?}\n{}",
        outcome.wrong,
        outcome.log
    );
    assert_eq!(outcome.ends, 0, "{}", outcome.log);
    let syncs = outcome
        .seen
        .iter()
        .filter(|point| point.site.call.ends_with("sync"));
    let syncs = syncs.count();
    let [median, slowest] = [took.len() / 2, took.len() - 1].map(|at| took[at]);
    let asked = took.len();
    eprintln!(
        "{syncs} syncs in {:?}; of {asked} answers the median took {median:?}, the last {slowest:?}",
        outcome.took
    );
    assert!(syncs >= 10, "{syncs} syncs");
    slowest
}
