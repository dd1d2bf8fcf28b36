//! The stream to the master, and the times at which it was opened and lost.

use std::time::Duration;

use crate::placement::Offer;

/// The present stream to the master, or the time at which the last stream was lost.
#[derive(Debug)]
pub(super) struct Connection {
    is_open: bool,
    /// The time when the present stream, or the last one, was opened.
    opened: Duration,
    /// The time since when no master has answered.
    away_since: Option<Duration>,
    /// The scheduler has sent no queries to a master since its start.
    is_fresh: bool,
    /// The region of the master. Tasks stay in it if their job names no region.
    region: Option<String>,
}

/// The facts about a stream that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// The time since when no master had answered.
    pub(super) away_since: Option<Duration>,
    /// Whether it is the first stream since the start of the scheduler.
    pub(super) is_first: bool,
}

impl Connection {
    /// Returns the state at a start: no master has answered yet.
    pub(super) fn lost_since(at: Duration) -> Self {
        Self {
            is_open: false,
            opened: at,
            away_since: Some(at),
            is_fresh: true,
            region: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the present stream was opened this long ago.
    pub(super) fn has_lasted(&self, at: Duration, time: Duration) -> bool {
        self.is_open && at >= self.opened.saturating_add(time)
    }

    pub(super) fn open(&mut self, at: Duration) -> Opened {
        self.is_open = true;
        self.opened = at;
        Opened {
            away_since: self.away_since.take(),
            is_first: std::mem::take(&mut self.is_fresh),
        }
    }

    pub(super) fn close(&mut self, at: Duration) {
        self.is_open = false;
        self.away_since.get_or_insert(at);
    }

    /// Excludes a time without input from the age of the stream.
    pub(super) fn exclude(&mut self, passed: Duration, at: Duration) {
        self.opened = self.opened.saturating_add(passed).min(at);
    }

    pub(super) fn set_region(&mut self, region: Option<String>) {
        self.region = region;
    }

    /// Whether an agent is in another region than the master.
    pub(super) fn is_remote(&self, offer: &Offer) -> bool {
        let theirs = offer.attributes.get("@region");
        let regions = theirs.zip(self.region.as_ref());
        regions.is_some_and(|(theirs, ours)| theirs != ours)
    }
}
