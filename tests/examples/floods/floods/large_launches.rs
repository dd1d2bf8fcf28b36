//! Launches of 23 MiB each to a node whose agent is stopped, and their arrival when it continues.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::bench::{Bench, Tally, lock};
use crate::scheduler::{Scheduler, Subscription, task};

const NAME: &str = "large-launches";
const LAUNCHES: usize = 40;
const DATA_BYTES: usize = 23 << 20;
/// The time for the rest of an offer to come back.
const OFFER_LIMIT: Duration = Duration::from_secs(3);
/// The time limit for ends: the agent is stopped for less than its pings may stay unanswered.
const ENDS_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(10);

/// Continues the agent in any case.
struct Stopped<'a>(&'a Bench);

impl<'a> Stopped<'a> {
    fn new(bench: &'a Bench) -> Self {
        bench.fleet.signal_victim(Signal::SIGSTOP);
        Self(bench)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.fleet.signal_victim(Signal::SIGCONT);
    }
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    super::repeat_slowly(bench, tally, PAUSE, || {
        let _victim = lock(&bench.fleet.victim);
        round(bench, tally)
    });
    Ok(())
}

fn round(bench: &Bench, tally: &Tally) -> io::Result<()> {
    let subscription = Subscription::hostile(&[NAME]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let mut launched = 0;
    let stopped = Stopped::new(bench);
    for number in 0..LAUNCHES {
        let Ok((_, offer)) = scheduler.offer(NAME, OFFER_LIMIT) else {
            tally.count("offers not made");
            break;
        };
        let mut large = task(&offer, &format!("large-{number}"), "true");
        large.data = Some(vec![b'x'; DATA_BYTES]);
        let answer = scheduler.launch(&offer, vec![large], 0.0);
        tally.answer("ACCEPT", &answer);
        launched += usize::from(matches!(answer, Ok(202)));
        if bench.time.is_over() {
            break;
        }
    }
    drop(stopped);
    let mut ended = 0;
    bench.time.wait_for(ENDS_LIMIT, || {
        ended += scheduler.acknowledge_all().unwrap_or_default();
        ended >= launched
    });
    for _ in 0..ended {
        tally.count("tasks ended");
    }
    tally.count("rounds");
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}
