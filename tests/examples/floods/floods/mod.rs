//! The floods, each in a file of its own: what it sends, how much at most, and how often.

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

use meseta_tests::priority::lower_priority;

use crate::bench::{Bench, Tally};

#[derive(Debug)]
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    work: fn(&Bench, &Tally) -> anyhow::Result<()>,
}

pub(crate) const ALL: [Flood; 13] = [
    Flood {
        name: "large-launches",
        work: large_launches::run,
    },
    Flood {
        name: "unread-executors",
        work: unread_executors::run,
    },
    Flood {
        name: "executor-messages",
        work: executor_messages::run,
    },
    Flood {
        name: "subscriptions",
        work: subscriptions::run,
    },
    Flood {
        name: "large-statuses",
        work: large_statuses::run,
    },
    Flood {
        name: "unread-answers",
        work: unread_answers::run,
    },
    Flood {
        name: "unread-downloads",
        work: unread_downloads::run,
    },
    Flood {
        name: "silent-fetches",
        work: silent_fetches::run,
    },
    Flood {
        name: "hung-checks",
        work: hung_checks::run,
    },
    Flood {
        name: "silent-connections",
        work: silent_connections::run,
    },
    Flood {
        name: "guesses",
        work: guesses::run,
    },
    Flood {
        name: "slow-bodies",
        work: slow_bodies::run,
    },
    Flood {
        name: "versions",
        work: versions::run,
    },
];

impl Flood {
    /// Goes on until the time is over; an error means that a promise was broken.
    pub(crate) fn run(&self, bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
        lower_priority();
        (self.work)(bench, tally)
    }
}
