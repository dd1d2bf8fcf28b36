//! The joint use of executors, learned as one value: not all of them peak at the same time.
//!
//! Each generation is a histogram of the sum over a fixed set of executors. When others arrive, the next generation learns
//! beside the present one and replaces it once it has seen a day. Invariant: only executors in the generation are covered by
//! its bound, and executors that have gone still count in it, so that arrivals and departures never make the bound too low.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_resources::Moment;

use super::checkpoint::{Decoder, Encoder};
use super::forecaster::HISTORIES_MAX;
use crate::histogram::DecayingHistogram;
use crate::{CheckpointError, ExecutorKey};

/// The minimum share of the known use that a next generation must cover; below it the generation starts again.
const COVERAGE_MIN: f64 = 0.9;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CrowdConfig {
    pub(super) percentile: f64,
    pub(super) margin: f64,
    pub(super) half_life: Duration,
    pub(super) fold: Duration,
    /// The number of folds that a generation must have seen before it counts.
    pub(super) min_folds: u32,
}

/// An executor in the aggregate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) key: &'a ExecutorKey,
    pub(super) limit: f64,
    /// The present use; `None` if unreadable.
    pub(super) used: Option<f64>,
    /// The executor's own learned peak; `None` if too little is known of the executor.
    pub(super) learned_peak: Option<f64>,
}

impl Member<'_> {
    /// The maximum use of this executor alone.
    fn peak(&self) -> f64 {
        self.learned_peak.unwrap_or(self.limit)
    }
}

#[derive(Clone, Debug)]
struct Generation {
    members: BTreeSet<ExecutorKey>,
    /// The limits of all members together, the base of shares.
    scale: f64,
    histogram: DecayingHistogram,
    highest: f64,
    fold_since: Moment,
    folds: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Crowd {
    config: CrowdConfig,
    present: Option<Generation>,
    next: Option<Generation>,
}

impl Crowd {
    pub(super) const fn new(config: CrowdConfig) -> Self {
        Self {
            config,
            present: None,
            next: None,
        }
    }

    /// Learns the present use of all executors.
    pub(super) fn observe(&mut self, now: Moment, crowd: &[Member<'_>]) {
        self.renew(now, crowd);
        for generation in [&mut self.present, &mut self.next].into_iter().flatten() {
            generation.observe(now, crowd, &self.config);
        }
        let ripe = |next: &Generation| next.folds >= self.config.min_folds;
        if self.next.as_ref().is_some_and(ripe) {
            self.present = self.next.take();
        }
    }

    /// Begins a next generation if the present one does not cover all known executors.
    fn renew(&mut self, now: Moment, crowd: &[Member<'_>]) {
        let known = || crowd.iter().filter(|member| member.learned_peak.is_some());
        let covered = |generation: &Generation| {
            let members = known().filter(|member| generation.members.contains(member.key));
            members.map(|member| member.limit).sum::<f64>()
        };
        let all: f64 = known().map(|member| member.limit).sum();
        if all <= 0.0 {
            return;
        }
        let begin = match (&self.present, &self.next) {
            (_, Some(next)) => covered(next) < COVERAGE_MIN * all,
            (Some(present), None) => covered(present) < all,
            (None, None) => true,
        };
        if begin {
            self.next = Some(Generation {
                members: known()
                    .take(HISTORIES_MAX)
                    .map(|member| member.key.clone())
                    .collect(),
                scale: all,
                histogram: DecayingHistogram::default(),
                highest: 0.0,
                fold_since: now,
                folds: 0,
            });
        }
    }

    /// The maximum use of all executors soon: by the learned peaks of each alone, or of all together.
    pub(super) fn peak(&self, crowd: &[Member<'_>]) -> f64 {
        let alone: f64 = crowd.iter().map(Member::peak).sum();
        let together = self.present.as_ref().and_then(|present| {
            let share = present.histogram.quantile(self.config.percentile)?;
            let covered = |member: &&Member<'_>| {
                member.learned_peak.is_some() && present.members.contains(member.key)
            };
            let rest = crowd
                .iter()
                .filter(|member| !covered(member))
                .map(Member::peak);
            Some(self.config.margin * share * present.scale + rest.sum::<f64>())
        });
        together.map_or(alone, |together| together.min(alone))
    }

    pub(super) fn encode(&self, bytes: &mut Encoder) {
        for generation in [&self.present, &self.next] {
            bytes.u8(u8::from(generation.is_some()));
            if let Some(generation) = generation {
                generation.encode(bytes);
            }
        }
    }

    pub(super) fn decode(
        &self,
        now: Moment,
        bytes: &mut Decoder<'_>,
    ) -> Result<Self, CheckpointError> {
        let mut generation = || match bytes.u8()? {
            0 => Ok(None),
            1 => Generation::decode(now, bytes).map(Some),
            _ => Err(CheckpointError::Invalid("generation")),
        };
        let (present, next) = (generation()?, generation()?);
        Ok(Self {
            config: self.config.clone(),
            present,
            next,
        })
    }
}

impl Generation {
    fn observe(&mut self, now: Moment, crowd: &[Member<'_>], config: &CrowdConfig) {
        let mut used = 0.0;
        for member in crowd
            .iter()
            .filter(|member| self.members.contains(member.key))
        {
            match member.used {
                Some(mine) => used += mine,
                // A sum with a missing part has no meaning.
                None => return,
            }
        }
        self.highest = self.highest.max(used / self.scale);
        let elapsed = now.saturating_since(self.fold_since);
        if elapsed >= config.fold {
            self.histogram.decay(elapsed, config.half_life);
            self.histogram.add(self.highest);
            self.highest = 0.0;
            self.fold_since = now;
            self.folds = self.folds.saturating_add(1);
        }
    }

    fn encode(&self, bytes: &mut Encoder) {
        bytes.f64(self.scale);
        bytes.f64(self.highest);
        bytes.u32(self.folds);
        bytes.histogram(&self.histogram);
        bytes.count(self.members.len());
        for key in &self.members {
            bytes.key(key);
        }
    }

    fn decode(now: Moment, bytes: &mut Decoder<'_>) -> Result<Self, CheckpointError> {
        let (scale, highest) = (bytes.f64("limit")?, bytes.f64("share")?);
        let folds = bytes.u32()?;
        let histogram = bytes.histogram()?;
        if scale <= 0.0 {
            return Err(CheckpointError::Invalid("limit"));
        }
        let mut members = BTreeSet::new();
        for _ in 0..bytes.count("executors", HISTORIES_MAX)? {
            members.insert(bytes.key()?);
        }
        Ok(Self {
            members,
            scale,
            histogram,
            highest,
            fold_since: now,
            folds,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::testing::{container, resources};

    /// The peak of all after these seconds, in which one executor at a time used 0.9 of its one cpu. Each executor alone has the
    /// same learned peak.
    fn learned(crowd: &mut Crowd, executors: usize, seconds: Range<u64>) -> f64 {
        let keys: Vec<ExecutorKey> = (0..executors)
            .map(|index| container("f", &format!("e{index}"), &resources("cpus:1")).key())
            .collect();
        let turns = u64::try_from(executors).unwrap();
        let mut peak = 0.0;
        for second in seconds {
            let members: Vec<Member<'_>> = (0..)
                .zip(&keys)
                .map(|(index, key)| Member {
                    key,
                    limit: 1.0,
                    used: Some(if second % turns == index { 0.9 } else { 0.0 }),
                    learned_peak: Some(0.9),
                })
                .collect();
            crowd.observe(Moment::ORIGIN + Duration::from_secs(second), &members);
            peak = crowd.peak(&members);
        }
        peak
    }

    #[test]
    fn newcomers_count_alone_until_learned() {
        let mut crowd = Crowd::new(CrowdConfig {
            percentile: 1.0,
            margin: 1.0,
            half_life: Duration::from_secs(86_400),
            fold: Duration::from_secs(10),
            min_folds: 3,
        });
        // The joint use, and a bucket more at most.
        let together = 0.9..0.95;
        assert_eq!(learned(&mut crowd, 2, 0..30), 1.8, "too little is known");
        let two = learned(&mut crowd, 2, 30..41);
        assert!(together.contains(&two), "{two}");
        let joined = learned(&mut crowd, 3, 41..71);
        assert_eq!(joined, two + 0.9);
        let three = learned(&mut crowd, 3, 71..76);
        assert!(together.contains(&three), "{three}");
    }
}
