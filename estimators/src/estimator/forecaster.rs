//! The expected peak of each executor, learned from its past use: a decaying histogram each.
//!
//! [`Forecaster::observe`] takes the readings, and [`Forecaster::learned_peak`] returns the peak. Invariant: a new or little
//! known executor has no peak; memory is bounded by [`HISTORIES_MAX`], whatever executors come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::Moment;

use super::checkpoint::{Decoder, Encoder};
use crate::histogram::DecayingHistogram;
use crate::{CheckpointError, ExecutorKey};

/// The maximum number of remembered executors for one resource: some 600 bytes each. Further ones count at their limit until
/// others are forgotten.
pub(super) const HISTORIES_MAX: usize = 4096;
/// The time that the history of a removed executor is kept: it may restart under the same name.
const RETENTION: Duration = Duration::from_secs(3600);
/// The ratio of a limit's change above which the learned shares become meaningless.
const RESCALE_MAX: f64 = 2.0;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ForecasterConfig {
    pub(super) percentile: f64,
    pub(super) margin: f64,
    pub(super) half_life: Duration,
    pub(super) fold: Duration,
    pub(super) min_age: Duration,
    pub(super) min_samples: u32,
}

#[derive(Clone, Debug)]
struct History {
    histogram: DecayingHistogram,
    /// The limit, the base of shares.
    scale: f64,
    /// The highest share since the fold began, which is counted at its end.
    highest: f64,
    fold_since: Moment,
    samples: u32,
    since: Moment,
    seen: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct Forecaster {
    config: ForecasterConfig,
    histories: BTreeMap<ExecutorKey, History>,
}

impl Forecaster {
    pub(super) const fn new(config: ForecasterConfig) -> Self {
        Self {
            config,
            histories: BTreeMap::new(),
        }
    }

    /// Learns the present use of an executor.
    pub(super) fn observe(&mut self, now: Moment, key: &ExecutorKey, limit: f64, used: f64) {
        if limit <= 0.0 {
            return;
        }
        let rescaled = |history: &History| {
            limit > RESCALE_MAX * history.scale || history.scale > RESCALE_MAX * limit
        };
        if self.histories.get(key).is_none_or(rescaled) && !self.begin(now, key, limit) {
            return;
        }
        let Some(history) = self.histories.get_mut(key) else {
            return;
        };
        history.seen = now;
        history.samples = history.samples.saturating_add(1);
        history.highest = history.highest.max(used / history.scale);
        let elapsed = now.saturating_since(history.fold_since);
        if elapsed >= self.config.fold {
            history.histogram.decay(elapsed, self.config.half_life);
            history.histogram.add(history.highest);
            history.highest = 0.0;
            history.fold_since = now;
        }
    }

    /// Begins a history; false if there is no room for another.
    fn begin(&mut self, now: Moment, key: &ExecutorKey, limit: f64) -> bool {
        if !self.histories.contains_key(key) && self.histories.len() >= HISTORIES_MAX {
            let oldest = self
                .histories
                .iter()
                .min_by_key(|(_, history)| history.seen);
            match oldest.map(|(key, history)| (key.clone(), history.seen)) {
                Some((forgotten, seen)) if seen < now => self.histories.remove(&forgotten),
                _ => return false,
            };
        }
        let history = History {
            histogram: DecayingHistogram::default(),
            scale: limit,
            highest: 0.0,
            fold_since: now,
            samples: 0,
            since: now,
            seen: now,
        };
        self.histories.insert(key.clone(), history);
        true
    }

    /// The use that an executor seldom exceeds; `None` if too little is known of the executor.
    pub(super) fn learned_peak(
        &self,
        now: Moment,
        key: &ExecutorKey,
        limit: f64,
        started: Option<Moment>,
    ) -> Option<f64> {
        let history = self.histories.get(key)?;
        let age = now.saturating_since(started.unwrap_or(history.since));
        if age < self.config.min_age || history.samples < self.config.min_samples {
            return None;
        }
        // In the first period, the highest share so far is the only available value.
        let share = history.histogram.quantile(self.config.percentile);
        let share = share.unwrap_or(history.highest);
        Some(limit.min(self.config.margin * share * history.scale))
    }

    /// Forgets executors that have been gone for long.
    pub(super) fn forget(&mut self, now: Moment) {
        self.histories
            .retain(|_, history| now.saturating_since(history.seen) <= RETENTION);
    }

    pub(super) fn encode(&self, now: Moment, bytes: &mut Encoder) {
        bytes.count(self.histories.len());
        for (key, history) in &self.histories {
            bytes.key(key);
            bytes.f64(history.scale);
            bytes.f64(history.highest);
            bytes.u32(history.samples);
            bytes.duration(now.saturating_since(history.since));
            bytes.duration(now.saturating_since(history.seen));
            bytes.histogram(&history.histogram);
        }
    }

    /// Decodes histories; their ages count from `now`. The use of executors in between is unknown.
    pub(super) fn decode(
        &self,
        now: Moment,
        bytes: &mut Decoder<'_>,
    ) -> Result<Self, CheckpointError> {
        let mut restored = Self::new(self.config.clone());
        for _ in 0..bytes.count("executors", HISTORIES_MAX)? {
            let key = bytes.key()?;
            restored.histories.insert(key, History::decode(now, bytes)?);
        }
        Ok(restored)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.histories.len()
    }
}

impl History {
    fn decode(now: Moment, bytes: &mut Decoder<'_>) -> Result<Self, CheckpointError> {
        let scale = bytes.f64("limit")?;
        let highest = bytes.f64("share")?;
        let samples = bytes.u32()?;
        let (since, seen) = (bytes.duration()?, bytes.duration()?);
        let histogram = bytes.histogram()?;
        if scale <= 0.0 {
            return Err(CheckpointError::Invalid("limit"));
        }
        let (since, seen) = (before(now, since), before(now, seen));
        Ok(Self {
            histogram,
            scale,
            highest,
            fold_since: now,
            samples,
            since,
            seen,
        })
    }
}

fn before(now: Moment, age: Duration) -> Moment {
    let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(now.as_nanos().saturating_sub(age))
}
