//! Executors that send messages without pause, while the master is stopped, and to a framework that does not read.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use meseta_proto::mesos::v1::TaskState::TaskRunning;
use nix::sys::signal::Signal;

use crate::bench::{Bench, Tally};
use crate::scheduler::{Scheduler, Subscription, executor_task};

const NAME: &str = "executor-messages";
const EXECUTORS: usize = 2;
const LIMIT: Duration = Duration::from_secs(30);
const MASTER_STOPPED: Duration = Duration::from_secs(5);
/// The time for which the framework then does not read.
const UNREAD: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(10);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    super::repeat_slowly(bench, tally, PAUSE, || round(bench, tally));
    Ok(())
}

fn round(bench: &Bench, tally: &Tally) -> io::Result<()> {
    let subscription = Subscription::hostile(&[NAME]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let (_, offer) = scheduler.offer(NAME, LIMIT)?;
    let one = |number: usize| {
        let executor = format!("talker-{number}");
        executor_task(&offer, &executor, &executor, "talker")
    };
    let tasks = (0..EXECUTORS).map(one).collect::<io::Result<Vec<_>>>()?;
    tally.answer("ACCEPT", &scheduler.launch(&offer, tasks, 3600.0));
    for _ in 0..EXECUTORS {
        scheduler.update(LIMIT, |status| status.state() == TaskRunning)?;
        tally.count("executors");
    }
    stop_master(bench);
    scheduler.read_no_more();
    bench.time.pause(UNREAD);
    tally.count("rounds");
    // A framework that has not read for too long may be gone: 400.
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}

/// Stops the master outside of measurements.
fn stop_master(bench: &Bench) {
    let _stopped = bench
        .master_runs
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    bench.fleet.signal_master(Signal::SIGSTOP);
    bench.time.pause(MASTER_STOPPED);
    bench.fleet.signal_master(Signal::SIGCONT);
}
