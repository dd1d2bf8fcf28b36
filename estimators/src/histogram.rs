//! A histogram whose old weights fade: the usual use of an executor, as a share of its limit.
//!
//! Buckets grow by 5 % from 1 % of the limit, so that an answer is at most 5 % too high and never too low. Invariant: its
//! size is constant, and its weights are finite and not negative.

use std::time::Duration;

use crate::numbers::{single, whole};

/// The number of buckets, which cover 1 % to 213 % of the limit.
pub(crate) const BUCKETS: usize = 110;
const LOWEST: f64 = 0.01;
const GROWTH: f64 = 1.05;

/// A decaying histogram of shares. Shares beyond the last bucket's edge are counted in it, and make an answer "beyond".
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecayingHistogram {
    weights: Box<[f32; BUCKETS]>,
}

impl Default for DecayingHistogram {
    fn default() -> Self {
        Self {
            weights: Box::new([0.0; BUCKETS]),
        }
    }
}

impl DecayingHistogram {
    /// Decays all weights by the passed time.
    pub(crate) fn decay(&mut self, elapsed: Duration, half_life: Duration) {
        let halvings = elapsed.as_secs_f64() / half_life.as_secs_f64().max(1.0);
        let factor = single((-halvings).exp2());
        for weight in self.weights.iter_mut() {
            *weight *= factor;
        }
    }

    /// Counts a share of the limit. A share that is not a number counts as beyond every bucket.
    pub(crate) fn add(&mut self, share: f64) {
        if let Some(weight) = self.weights.get_mut(bucket(share)) {
            *weight += 1.0;
        }
    }

    /// The upper edge of the bucket below which this part of the weight lies, as a share of the limit; `None` for an empty
    /// histogram, or an edge beyond the last bucket.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let total: f64 = self.weights.iter().copied().map(f64::from).sum();
        if total <= 0.0 {
            return None;
        }
        let mut below = 0.0;
        for (index, weight) in self.weights.iter().enumerate() {
            below += f64::from(*weight);
            // Rounding must not carry the full quantile past the last weight.
            if below >= part * total * (1.0 - 1e-12) {
                return (index + 1 < BUCKETS).then(|| edge(index));
            }
        }
        None
    }

    /// The non-empty buckets and their weights.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (u8, f32)> {
        let held = self
            .weights
            .iter()
            .enumerate()
            .filter(|(_, weight)| **weight > 0.0);
        held.filter_map(|(index, weight)| Some((u8::try_from(index).ok()?, *weight)))
    }

    /// Restores the weight of a bucket; false for an invalid index.
    pub(crate) fn set(&mut self, index: u8, weight: f32) -> bool {
        self.weights
            .get_mut(usize::from(index))
            .map(|slot| *slot = weight)
            .is_some()
    }
}

fn edge(index: usize) -> f64 {
    LOWEST * GROWTH.powi(i32::try_from(index).unwrap_or(i32::MAX))
}

/// The bucket with the lowest upper edge that is not below the share.
fn bucket(share: f64) -> usize {
    if share <= LOWEST {
        return 0;
    }
    let last = BUCKETS - 1;
    let steps = ((share / LOWEST).ln() / GROWTH.ln()).ceil();
    if !steps.is_finite() {
        return last;
    }
    let guess = usize::try_from(whole(steps)).map_or(last, |index| index.min(last));
    // Rounding of the logarithms may be off by one bucket, but never downwards.
    if edge(guess) >= share {
        guess
    } else {
        (guess + 1).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn quantile_error_is_within_one_bucket() {
        for step in 1..1900_u32 {
            let share = f64::from(step) / 1000.0;
            let mut histogram = DecayingHistogram::default();
            histogram.add(share);
            let answer = histogram.quantile(0.5).unwrap();
            assert!(answer >= share, "{share} answered as {answer}");
            assert!(
                answer <= (share * GROWTH + 1e-9).max(LOWEST),
                "{share} answered as {answer}"
            );
        }
    }

    #[test]
    fn quantiles_split_the_weight() {
        let mut histogram = DecayingHistogram::default();
        (0..95).for_each(|_| histogram.add(0.1));
        (0..5).for_each(|_| histogram.add(0.8));
        assert!(histogram.quantile(0.95).unwrap() < 0.106);
        assert!(histogram.quantile(0.96).unwrap() > 0.8);
        assert!(histogram.quantile(1.0).unwrap() > 0.8);
    }

    #[test]
    fn a_half_life_halves() {
        let mut histogram = DecayingHistogram::default();
        (0..2).for_each(|_| histogram.add(0.8));
        histogram.decay(12 * HOUR, 12 * HOUR);
        histogram.add(0.1);
        // The two weights are equal: the lower half is the new one.
        assert!(histogram.quantile(0.5).unwrap() < 0.106);
        histogram.decay(10_000 * HOUR, HOUR);
        assert_eq!(histogram.quantile(0.5), None, "everything fades in the end");
    }

    #[test]
    fn values_beyond_range_have_no_quantile() {
        let mut histogram = DecayingHistogram::default();
        histogram.add(5.0);
        histogram.add(f64::NAN);
        assert_eq!(histogram.quantile(0.98), None);
        assert_eq!(DecayingHistogram::default().quantile(0.98), None);
    }
}
