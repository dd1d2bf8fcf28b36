//! The gang that keeps offers back until all of its tasks fit, and the gangs that pause after they kept offers in vain.
//!
//! Invariant: one gang at most keeps offers back, for a limited time; its pauses become longer while it gets nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::placement::Offer;

/// The longest time for which a gang keeps offers, whatever its file says.
const HOLD_MAX: Duration = Duration::from_secs(600);
/// The longest pause of a gang that repeatedly holds offers in vain.
const REST_MAX: Duration = Duration::from_secs(3600);

/// The collecting gang, and the resting gangs by job.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    collector: Option<Collector>,
    /// Gangs that held offers in vain, until they start or their jobs change.
    resting: BTreeMap<String, Rest>,
}

/// The gang that keeps offers back.
#[derive(Clone, Debug)]
struct Collector {
    job: String,
    /// The role of the offers.
    role: String,
    until: Duration,
    /// The last offers in which the gang did not fit.
    tried: Option<Tried>,
}

/// Offers that could not hold this gang.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) version: u64,
    pub(super) tasks: usize,
    pub(super) offers: BTreeSet<String>,
    /// The offers among them that are kept back.
    pub(super) kept: BTreeSet<String>,
}

/// The time until which a gang keeps no offers, and the length of this rest.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Duration,
    pause: Duration,
}

impl Gangs {
    /// Returns the job of the collecting gang, and the role of its offers.
    pub(super) fn collecting(&self) -> Option<(&str, &str)> {
        let collector = self.collector.as_ref();
        collector.map(|one| (&*one.job, &*one.role))
    }

    pub(super) fn is_collecting(&self, job: &str) -> bool {
        self.collector.as_ref().is_some_and(|one| one.job == job)
    }

    /// Whether the time of the collecting gang is over.
    pub(super) fn is_time_over(&self, at: Duration) -> bool {
        self.collector.as_ref().is_some_and(|one| at >= one.until)
    }

    /// Whether a gang has held offers in vain and still pauses.
    pub(super) fn rests(&self, job: &str, at: Duration) -> bool {
        self.resting.get(job).is_some_and(|rest| at < rest.until)
    }

    pub(super) fn begin_to_collect(
        &mut self,
        (job, role): (&str, &str),
        at: Duration,
        hold: Duration,
    ) {
        self.collector = Some(Collector {
            job: job.to_owned(),
            role: role.to_owned(),
            until: at.saturating_add(hold.min(HOLD_MAX)),
            tried: None,
        });
    }

    pub(super) fn stop_collecting(&mut self) {
        self.collector = None;
    }

    /// Notes the offers in which the collecting gang did not fit.
    pub(super) fn note_tried(&mut self, tried: Tried) {
        if let Some(collector) = &mut self.collector {
            collector.tried = Some(tried);
        }
    }

    /// Returns the offers that the collecting gang keeps, if these are the tasks and offers that did not fit before.
    pub(super) fn kept_as_before(
        &self,
        job: &str,
        (version, tasks): (u64, usize),
        open: &[Offer],
    ) -> Option<&BTreeSet<String>> {
        let collector = self.collector.as_ref().filter(|one| one.job == job)?;
        let tried = collector.tried.as_ref()?;
        let is_known = |offer: &Offer| tried.offers.contains(&offer.id);
        let is_same = (tried.version, tried.tasks) == (version, tasks);
        (is_same && open.iter().all(is_known)).then_some(&tried.kept)
    }

    /// Begins the pause of a gang that held offers in vain for `hold`; repeated pauses double.
    pub(super) fn rest(&mut self, job: &str, at: Duration, hold: Duration) {
        let before = self.resting.get(job);
        let pause = before.map_or(hold.min(HOLD_MAX), |rest| {
            rest.pause.saturating_mul(2).min(REST_MAX)
        });
        let until = at.saturating_add(pause);
        self.resting.insert(job.to_owned(), Rest { until, pause });
    }

    /// Ends the pauses of a gang that has started, has changed or is gone.
    pub(super) fn end_rest(&mut self, job: &str) {
        self.resting.remove(job);
    }
}
