//! The best possible results with knowledge of the future: bounds for comparison with predictors.
//!
//! They are fitted to the very machine on which they are rated. Invariant: these are not predictors, and no predictor can be
//! expected to do better.

use super::{HORIZONS, count};
use crate::numbers;

/// The allowed share of violations within an hour, for the recommended predictor.
const HOUR_VIOLATIONS_MAX: f64 = 0.005;
/// The allowed share of violations within ten minutes.
const SOON_VIOLATIONS_MAX: f64 = 0.001;
/// The number of bands of use; use within one band counts as one state of a machine.
const BANDS: usize = 20;

pub(super) const CONSTANT: &str = "best constant, known afterwards (0.5 % in 1 h)";
pub(super) const BY_USE: &str = "best margin by use, known afterwards (0.1 % in 10 min)";

/// The lowest constant peak that is exceeded within an hour no more often than allowed.
pub(super) fn constant(ahead: &[Vec<f64>; HORIZONS.len()], moments: usize) -> Vec<f64> {
    let mut hour = ahead.get(1).cloned().unwrap_or_default();
    hour.sort_by(f64::total_cmp);
    let rank = numbers::whole((1.0 - HOUR_VIOLATIONS_MAX) * count(hour.len()));
    let index = usize::try_from(rank).unwrap_or(usize::MAX);
    let peak = hour.get(index).or(hour.last()).copied();
    vec![peak.unwrap_or_default(); moments]
}

/// The lowest peaks, on average, that consist of the present use plus one margin for each band of use, and are exceeded
/// within ten minutes no more often than allowed. The allowed misses go to the bands where they save most.
pub(super) fn by_use(used: &[f64], ahead: &[Vec<f64>; HORIZONS.len()], capacity: f64) -> Vec<f64> {
    let soon = ahead.first().map(Vec::as_slice).unwrap_or_default();
    let misses = numbers::whole(SOON_VIOLATIONS_MAX * count(soon.len()));
    let misses = usize::try_from(misses).unwrap_or(usize::MAX);
    let mut rises: Vec<Vec<f64>> = vec![Vec::new(); BANDS];
    for (used, came) in used.iter().zip(soon) {
        if let Some(rises) = rises.get_mut(band(*used, capacity)) {
            rises.push(came - used);
        }
    }
    for rises in &mut rises {
        rises.sort_by(|one, other| other.total_cmp(one));
    }
    let margins = spend(&rises, misses);
    let peak = |used: &f64| {
        let margin = margins.get(band(*used, capacity)).copied();
        used + margin.unwrap_or(capacity)
    };
    used.iter().map(peak).collect()
}

fn band(used: f64, capacity: f64) -> usize {
    let share = (used / capacity * count(BANDS)).max(0.0);
    usize::try_from(numbers::whole(share)).map_or(BANDS - 1, |band| band.min(BANDS - 1))
}

/// Chooses a margin for each band from its rises, which are sorted from the highest: exactly the cheapest margins with so
/// many misses in all. `cheapest[n]` is the cost of the bands so far with n misses.
fn spend(bands: &[Vec<f64>], misses: usize) -> Vec<f64> {
    let mut cheapest = vec![0.0; misses + 1];
    let mut choices: Vec<Vec<usize>> = Vec::with_capacity(bands.len());
    for rises in bands {
        let cost = |missed: usize| match rises.get(missed) {
            Some(rise) => rise * count(rises.len()),
            // If all rises count as misses, the margin is zero.
            None => 0.0,
        };
        let (mut next, mut chosen) = (Vec::new(), Vec::new());
        for total in 0..=misses {
            let best = (0..=total.min(rises.len()))
                .map(|here| {
                    let before = cheapest.get(total - here).copied().unwrap_or(f64::INFINITY);
                    (before + cost(here), here)
                })
                .min_by(|one, other| one.0.total_cmp(&other.0));
            let (price, here) = best.unwrap_or((f64::INFINITY, 0));
            next.push(price);
            chosen.push(here);
        }
        cheapest = next;
        choices.push(chosen);
    }
    let mut left = misses;
    let mut margins = Vec::with_capacity(bands.len());
    for (rises, chosen) in bands.iter().zip(&choices).rev() {
        let here = chosen.get(left).copied().unwrap_or(0);
        left -= here;
        margins.push(rises.get(here).copied().unwrap_or(0.0));
    }
    margins.reverse();
    margins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_spent_where_they_save() {
        // Without misses 5 * 2 + 9 * 3; a single miss saves 12 in the second band, and 8 in the first.
        let bands = [vec![5.0, 1.0], vec![9.0, 5.0, 5.0]];
        assert_eq!(spend(&bands, 0), [5.0, 9.0]);
        assert_eq!(spend(&bands, 1), [5.0, 5.0]);
        assert_eq!(spend(&bands, 2), [1.0, 5.0]);
        assert_eq!(spend(&[Vec::new()], 3), [0.0]);
    }

    #[test]
    fn margins_follow_the_use() {
        // A rise of 1 follows low use, and no rise follows high use.
        let used: Vec<f64> = (0..1000)
            .map(|at| if at % 2 == 0 { 1.0 } else { 8.0 })
            .collect();
        let soon: Vec<f64> = used
            .iter()
            .map(|used| if *used < 5.0 { 2.0 } else { 8.0 })
            .collect();
        let ahead = [soon, Vec::new(), Vec::new()];
        let peaks = by_use(&used, &ahead, 10.0);
        assert!(
            peaks
                .iter()
                .zip(&used)
                .all(|(peak, used)| { (peak - if *used < 5.0 { 2.0 } else { 8.0 }).abs() < 1e-9 })
        );
    }
}
