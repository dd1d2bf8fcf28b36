//! Unacknowledged statuses of 6 MiB, on a node that is killed and must register with them.

use std::io;
use std::time::{Duration, Instant};

use meseta_proto::mesos::v1::TaskState::TaskRunning;

use crate::bench::{Bench, Tally, lock};
use crate::scheduler::{Scheduler, Subscription, executor_task};

const NAME: &str = "large-statuses";
const TASKS: usize = 11;
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(10);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    while !bench.time.is_over() {
        {
            let _victim = lock(&bench.fleet.victim);
            let scheduler = unacknowledged(bench, tally);
            bench.restart_victim(tally)?;
            match scheduler {
                Ok(scheduler) => tally.answer("TEARDOWN", &scheduler.teardown()),
                Err(error) => tally.count(format!("rounds ended by {:?}", error.kind())),
            }
            tally.count("rounds");
        }
        bench.time.pause(PAUSE);
    }
    Ok(())
}

/// Makes an executor report its tasks, while the framework stays subscribed without acknowledging.
fn unacknowledged(bench: &Bench, tally: &Tally) -> io::Result<Scheduler> {
    let subscription = Subscription::hostile(&[NAME]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let (_, offer) = scheduler.offer(NAME, LIMIT)?;
    let one = |number: usize| executor_task(&offer, &format!("bulky-{number}"), "bulky", "bulky");
    let mut tasks = (0..TASKS).map(one).collect::<io::Result<Vec<_>>>()?;
    // One executor runs all of them: its command is the same for each.
    let first = tasks.first().and_then(|task| task.executor.clone());
    for task in &mut tasks {
        task.executor = first.clone();
    }
    tally.answer("ACCEPT", &scheduler.launch(&offer, tasks, 3600.0));
    let mut told = 0;
    let began = Instant::now();
    while told < TASKS && began.elapsed() < LIMIT && !bench.time.is_over() {
        let told_of = |event: &meseta_proto::mesos::v1::scheduler::Event| {
            let status = &event.update.as_ref()?.status;
            let large = status
                .data
                .as_ref()
                .is_some_and(|data| data.len() > 1 << 20);
            Some(status.state() == TaskRunning && large)
        };
        match scheduler.event(PAUSE, told_of) {
            Ok((_, true)) => told += 1,
            Ok((_, false)) => {}
            Err(_) => break,
        }
    }
    for _ in 0..told {
        tally.count("large updates told");
    }
    Ok(scheduler)
}
