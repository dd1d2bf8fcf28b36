//! The order and the number of victims among the revocable containers.
//!
//! The order is: the lowest eviction priority; containers above their own allocation; a framework other than that of the last
//! victim, if another qualifies; the largest freed amount; the youngest. Invariant: only containers that hold revocable
//! resources are candidates, and without its last member a choice would not close the gap.

use std::cmp::Reverse;
use std::time::Duration;

use meseta_resources::{FrameworkId, Scalar};

use crate::numbers::{MEGABYTE, bytes};
use crate::rates::{Meter, Reading};
use crate::{ContainerUsage, UsageSample};

/// The smallest use, in processors, that is worth a victim.
const CPUS_MIN: f64 = 0.001;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) container: &'a ContainerUsage,
    /// The freed amount, in processors or bytes.
    pub(super) frees: f64,
    over_allocation: bool,
    pub(super) rule: &'static str,
}

impl<'a> Candidate<'a> {
    fn new(container: &'a ContainerUsage, frees: f64, allocated: Option<f64>) -> Self {
        let over_allocation = allocated.is_some_and(|allocated| frees > allocated);
        let rule = if over_allocation {
            "over its own allocation"
        } else {
            "the largest"
        };
        Self {
            container,
            frees,
            over_allocation,
            rule,
        }
    }
}

/// The candidates by processors in use; frozen containers use none.
pub(super) fn by_cpu<'a>(sample: &'a UsageSample, meter: &Meter) -> Vec<Candidate<'a>> {
    let candidate = |container: &'a ContainerUsage| match meter.container(&container.key()) {
        Reading::Fresh(used) if used > CPUS_MIN && !container.frozen => {
            let allocated = container.allocated.cpus().map_or(0.0, Scalar::to_f64);
            Some(Candidate::new(container, used, Some(allocated)))
        }
        _ => None,
    };
    sample.revocable().filter_map(candidate).collect()
}

/// Sorts containers by their resident memory.
pub(super) fn by_memory(sample: &UsageSample, stale_after: Duration) -> Vec<Candidate<'_>> {
    let candidate = |container| {
        let used = memory_of(container, sample, stale_after)?;
        let allocated = container.allocated.mem().map_or(0.0, Scalar::to_f64) * MEGABYTE;
        Some(Candidate::new(container, used, Some(allocated)))
    };
    sample.revocable().filter_map(candidate).collect()
}

fn memory_of(
    container: &ContainerUsage,
    sample: &UsageSample,
    stale_after: Duration,
) -> Option<f64> {
    let used = container.memory_bytes.filter(|used| *used > 0)?;
    container
        .is_fresh(sample.at, stale_after)
        .then(|| bytes(used))
}

/// The candidates by their allocated cpus.
pub(super) fn by_request(sample: &UsageSample) -> Vec<Candidate<'_>> {
    let candidate = |container: &'_ ContainerUsage| {
        container
            .allocated
            .revocable()
            .cpus()
            .map(Scalar::to_f64)
            .filter(|cpus| *cpus > 0.0)
    };
    let with_cpus = |container| Some(Candidate::new(container, candidate(container)?, None));
    sample.revocable().filter_map(with_cpus).collect()
}

/// Chooses enough candidates to close the gap, or a single one if the gap is unknown.
pub(super) fn choose<'a>(
    mut candidates: Vec<Candidate<'a>>,
    gap: Option<f64>,
    last_victim: Option<&FrameworkId>,
) -> Vec<Candidate<'a>> {
    candidates.sort_by(|one, other| {
        let rank = |candidate: &Candidate<'_>| {
            let again = last_victim == Some(&candidate.container.framework);
            (
                candidate.container.eviction_priority,
                !candidate.over_allocation,
                again,
            )
        };
        let youngest = |candidate: &Candidate<'_>| Reverse(candidate.container.started);
        rank(one)
            .cmp(&rank(other))
            .then_with(|| other.frees.total_cmp(&one.frees))
            .then_with(|| youngest(one).cmp(&youngest(other)))
            .then_with(|| one.container.key().cmp(&other.container.key()))
    });
    let Some(gap) = gap else {
        candidates.truncate(1);
        return candidates;
    };
    let mut left = gap;
    candidates
        .into_iter()
        .take_while(|candidate| {
            let needed = left > 0.0;
            left -= candidate.frees;
            needed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Node, container, revocable_cpus};
    use meseta_resources::Moment;

    fn named(framework: &str, executor: &str) -> ContainerUsage {
        container(framework, executor, &revocable_cpus("1"))
    }

    fn chosen(candidates: Vec<Candidate<'_>>, gap: Option<f64>, last: Option<&str>) -> Vec<String> {
        let last = last.map(|id| FrameworkId::new(id).unwrap());
        let chosen = choose(candidates, gap, last.as_ref());
        chosen
            .iter()
            .map(|candidate| candidate.container.executor.to_string())
            .collect()
    }

    fn candidate(container: &ContainerUsage, frees: f64) -> Candidate<'_> {
        Candidate::new(container, frees, Some(1.0))
    }

    #[test]
    fn victims_are_ordered_by_five_keys() {
        let mut important = named("f", "important");
        important.eviction_priority = 1;
        let (small, large, greedy) = (
            named("f", "small"),
            named("f", "large"),
            named("f", "greedy"),
        );
        let all = vec![
            candidate(&important, 9.0),
            candidate(&small, 0.1),
            candidate(&large, 0.9),
            candidate(&greedy, 1.1),
        ];
        assert_eq!(
            chosen(all, Some(99.0), None),
            ["greedy", "large", "small", "important"]
        );

        let (young, old) = (named("f", "young"), named("f", "old"));
        let (mut young, mut old) = (young, old);
        young.started = Some(Moment::from_nanos(2));
        old.started = Some(Moment::from_nanos(1));
        let both = vec![candidate(&old, 0.5), candidate(&young, 0.5)];
        assert_eq!(chosen(both, None, None), ["young"]);

        let (again, other) = (named("f", "again"), named("g", "other"));
        let both = || vec![candidate(&again, 0.9), candidate(&other, 0.5)];
        assert_eq!(chosen(both(), None, Some("f")), ["other"]);
        assert_eq!(chosen(both(), None, Some("g")), ["again"]);
        assert_eq!(
            chosen(vec![candidate(&again, 0.9)], None, Some("f")),
            ["again"]
        );
    }

    #[test]
    fn stops_when_the_gap_is_closed() {
        let (a, b, c) = (named("f", "a"), named("f", "b"), named("f", "c"));
        let all = || vec![candidate(&a, 0.9), candidate(&b, 0.8), candidate(&c, 0.7)];
        assert_eq!(chosen(all(), Some(0.9), None), ["a"]);
        assert_eq!(chosen(all(), Some(0.91), None), ["a", "b"]);
        assert!(chosen(all(), Some(0.0), None).is_empty());
        assert!(chosen(all(), Some(-1.0), None).is_empty());
        assert_eq!(chosen(all(), None, None), ["a"]);
    }

    /// The container ran for a part of the time since the previous sample, and killing it frees nothing.
    #[test]
    fn frozen_victim_frees_no_cpus() {
        let second = Duration::from_secs(1);
        let mut node = Node::new(4, &[]);
        node.add("f", "running", &revocable_cpus("1"));
        node.add("f", "frozen", &revocable_cpus("1"));
        let mut meter = Meter::new(Duration::ZERO, 60 * second);
        meter.observe(&node.step(second, &[0.5, 0.9]));
        let mut sample = node.step(second, &[0.5, 0.9]);
        sample.containers[1].frozen = true;
        meter.observe(&sample);
        let candidates = by_cpu(&sample, &meter);
        assert_eq!(chosen(candidates, Some(9.0), None), ["running"]);
    }
}
