//! Executors that never read their stream, under a continuous flow of messages.

use std::io;
use std::time::Duration;

use meseta_proto::mesos::v1::TaskState::TaskRunning;

use crate::bench::{Bench, Tally};
use crate::scheduler::{Scheduler, Subscription, executor_task};

const NAME: &str = "unread-executors";
const EXECUTORS: usize = 4;
const MESSAGES: usize = 600;
const MESSAGE_BYTES: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);
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
        let executor = format!("deaf-{number}");
        executor_task(&offer, &executor, &executor, "deaf")
    };
    let tasks = (0..EXECUTORS).map(one).collect::<io::Result<Vec<_>>>()?;
    tally.answer("ACCEPT", &scheduler.launch(&offer, tasks, 3600.0));
    for _ in 0..EXECUTORS {
        scheduler.update(LIMIT, |status| status.state() == TaskRunning)?;
        tally.count("executors");
    }
    for number in 0..MESSAGES {
        if bench.time.is_over() {
            break;
        }
        let executor = format!("deaf-{}", number % EXECUTORS);
        let data = vec![b'm'; MESSAGE_BYTES];
        let answer = scheduler.message(&offer.agent_id, &executor, data);
        tally.answer("MESSAGE", &answer);
    }
    bench.time.pause(PAUSE);
    tally.count("rounds");
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}
