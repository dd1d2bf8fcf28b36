//! The floods, each in a file of its own: its messages, their maximum number, and their frequency.

mod executor_messages;
mod guesses;
mod hung_checks;
mod large_launches;
mod large_statuses;
mod silent_connections;
mod silent_fetches;
mod slow_bodies;
mod subscriptions;
mod unread_answers;
mod unread_downloads;
mod unread_executors;
mod versions;

use std::io;
use std::time::Duration;

use meseta_tests::priority::lower_priority;

use crate::bench::{Bench, Tally};

#[derive(Debug)]
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    work: fn(&Bench, &Tally) -> anyhow::Result<()>,
}

const fn flood(name: &'static str, work: fn(&Bench, &Tally) -> anyhow::Result<()>) -> Flood {
    Flood { name, work }
}

pub(crate) const ALL: [Flood; 13] = [
    flood("large-launches", large_launches::run),
    flood("unread-executors", unread_executors::run),
    flood("executor-messages", executor_messages::run),
    flood("subscriptions", subscriptions::run),
    flood("large-statuses", large_statuses::run),
    flood("unread-answers", unread_answers::run),
    flood("unread-downloads", unread_downloads::run),
    flood("silent-fetches", silent_fetches::run),
    flood("hung-checks", hung_checks::run),
    flood("silent-connections", silent_connections::run),
    flood("guesses", guesses::run),
    flood("slow-bodies", slow_bodies::run),
    flood("versions", versions::run),
];

impl Flood {
    /// Runs until the time is over; an error means that a promise was broken.
    pub(crate) fn run(&self, bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
        lower_priority();
        (self.work)(bench, tally)
    }
}

/// Repeats rounds until the time is over, with a pause after failed ones.
fn repeat(bench: &Bench, tally: &Tally, pause: Duration, round: impl Fn() -> io::Result<()>) {
    while !bench.time.is_over() {
        if !has_succeeded(tally, &round) {
            bench.time.pause(pause);
        }
    }
}

/// Repeats rounds until the time is over, with a pause after each.
fn repeat_slowly(
    bench: &Bench,
    tally: &Tally,
    pause: Duration,
    round: impl Fn() -> io::Result<()>,
) {
    while !bench.time.is_over() {
        has_succeeded(tally, &round);
        bench.time.pause(pause);
    }
}

fn has_succeeded(tally: &Tally, round: impl Fn() -> io::Result<()>) -> bool {
    let result = round();
    if let Err(error) = &result {
        tally.count(format!("rounds ended by {:?}", error.kind()));
    }
    result.is_ok()
}
