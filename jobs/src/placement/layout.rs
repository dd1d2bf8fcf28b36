//! The selection of the offer for the next task: the tightest first, or an even spread over the values of an attribute.

use std::collections::{BTreeSet, HashMap};

use meseta_resources::Resources;

use super::constraint::{Place, Rules};
use super::take::Demand;
use super::{Offer, Placed, Placement, Why};
use crate::spec::{Constraint, JobSpec, Rule};

const GPUS: &str = "gpus";

/// An offer that may take more tasks.
#[derive(Debug)]
struct Candidate {
    offer: usize,
    left: Resources,
    /// The index of the agent's value in each grouping.
    values: Vec<usize>,
}

/// The tasks on each value of a layout attribute.
#[derive(Debug)]
struct Grouping {
    /// The maximum number of tasks on one value; `None` for a spread.
    most: Option<u32>,
    counts: Vec<u32>,
}

/// The offers that meet the rules of a job, and the number of its tasks on each value.
#[derive(Debug)]
pub(super) struct Layout {
    /// The offers with the least room first; those with GPUs last, if the job needs none.
    candidates: Vec<Candidate>,
    groupings: Vec<Grouping>,
    /// Values of agents that may be offered soon, with the index of each value in its grouping.
    unoffered: Vec<(SpreadValues, Vec<usize>)>,
    /// The values for which a task waits, because they would spread the job better.
    awaited: BTreeSet<SpreadValues>,
    /// The candidate that [`Layout::next`] returned last.
    chosen: usize,
}

/// The values of an agent for each attribute over which a job is spread, in the order of its constraints.
pub type SpreadValues = Vec<Option<String>>;

/// Returns the values of an offer's agent.
#[must_use]
pub fn spread_values(spec: &JobSpec, offer: &Offer) -> SpreadValues {
    let spreads = spec.constraints.iter();
    let spreads = spreads.filter(|constraint| constraint.rule == Rule::Spread);
    let value = |attribute: &str| Place::from(offer).value(attribute).map(str::to_owned);
    spreads.map(|one| value(&one.attribute)).collect()
}

impl Layout {
    pub(super) fn new(
        spec: &JobSpec,
        placed: &[Placed],
        offers: &[Offer],
        (unoffered, demand): (&BTreeSet<SpreadValues>, &Demand<'_>),
    ) -> Self {
        let rules = Rules::new(spec);
        let fitting = offers.iter().enumerate();
        let fitting = fitting.filter(|(_, offer)| rules.check(offer).is_ok());
        let mut fitting: Vec<(f64, usize, &Offer)> = fitting
            .map(|(index, offer)| (demand.room(&offer.resources), index, offer))
            .filter(|(room, ..)| *room >= 1.0)
            .collect();
        // Agents with GPUs are kept for jobs that need GPUs.
        let needs_gpus = spec.task.requests.contains_key(GPUS);
        let is_kept = |offer: &Offer| !needs_gpus && offer.resources.scalar(GPUS).is_some();
        fitting.sort_by(|one, other| {
            let last = is_kept(one.2).cmp(&is_kept(other.2));
            last.then(one.0.total_cmp(&other.0))
        });
        let mut candidates: Vec<Candidate> = fitting
            .into_iter()
            .map(|(_, offer, of)| Candidate {
                offer,
                left: of.resources.clone(),
                values: Vec::new(),
            })
            .collect();
        let names: Vec<&SpreadValues> = unoffered.iter().collect();
        let mut indexes = vec![Vec::new(); names.len()];
        let laid_out = spec.constraints.iter();
        let groupings = laid_out
            .filter_map(|constraint| {
                let unoffered = (&*names, &mut *indexes);
                group(constraint, placed, (offers, &mut candidates), unoffered)
            })
            .collect();
        let unoffered = names.into_iter().cloned().zip(indexes).collect();
        Self {
            candidates,
            groupings,
            unoffered,
            awaited: BTreeSet::new(),
            chosen: 0,
        }
    }

    /// Returns the values for which a task waits that would fit in an offer.
    pub(super) fn into_awaited(self) -> BTreeSet<SpreadValues> {
        self.awaited
    }

    /// Returns the offer for the next task, and the rest of the offer.
    pub(super) fn next(&mut self) -> Option<(usize, &Resources)> {
        let mut best: Option<usize> = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            if !self.is_allowed(candidate) {
                continue;
            }
            if best.is_none_or(|best| self.is_emptier(candidate, &self.candidates[best])) {
                best = Some(index);
            }
            // Without a spread, the first offer is the best.
            if self
                .groupings
                .iter()
                .all(|grouping| grouping.most.is_some())
            {
                break;
            }
        }
        self.chosen = best?;
        if self.waits_instead_of(self.chosen) {
            return None;
        }
        let candidate = &self.candidates[self.chosen];
        Some((candidate.offer, &candidate.left))
    }

    /// Notes that the chosen offer has taken a task.
    pub(super) fn took(&mut self, placement: &Placement) {
        let Some(candidate) = self.candidates.get_mut(self.chosen) else {
            return;
        };
        candidate.left -= &placement.resources;
        candidate.left -= &placement.new_volume;
        for (grouping, value) in self.groupings.iter_mut().zip(&candidate.values) {
            grouping.counts[*value] += 1;
        }
    }

    /// Removes the chosen offer, in which no further task fits.
    pub(super) fn exhausted(&mut self) {
        if self.chosen < self.candidates.len() {
            self.candidates.remove(self.chosen);
        }
    }

    /// Whether the next task waits for an agent that is not offered yet: fewer tasks are on its values than on those of the
    /// best candidate. Notes these values.
    fn waits_instead_of(&mut self, best: usize) -> bool {
        let spreads = || {
            let spreads = self.groupings.iter().enumerate();
            spreads.filter(|(_, grouping)| grouping.most.is_none())
        };
        let best = &self.candidates[best];
        let of_best = spreads().map(|(at, grouping)| grouping.counts[best.values[at]]);
        let of_best: Vec<u32> = of_best.collect();
        let is_emptier = |(_, values): &&(SpreadValues, Vec<usize>)| {
            let counts = spreads().zip(values);
            let counts = counts.map(|((_, grouping), value)| grouping.counts[*value]);
            counts.lt(of_best.iter().copied())
        };
        let emptier = self.unoffered.iter().filter(is_emptier);
        let awaited: Vec<_> = emptier.map(|(values, _)| values.clone()).collect();
        let is_waiting = !awaited.is_empty();
        self.awaited.extend(awaited);
        is_waiting
    }

    fn is_allowed(&self, candidate: &Candidate) -> bool {
        let mut each = self.groupings.iter().zip(&candidate.values);
        each.all(|(grouping, value)| {
            grouping
                .most
                .is_none_or(|most| grouping.counts[*value] < most)
        })
    }

    /// Whether the values of `one` have fewer tasks than those of `other`, by the first spread with a difference.
    fn is_emptier(&self, one: &Candidate, other: &Candidate) -> bool {
        let spreads = self.groupings.iter().enumerate();
        let counts =
            spreads
                .filter(|(_, grouping)| grouping.most.is_none())
                .map(|(at, grouping)| {
                    let count = |of: &Candidate| grouping.counts[of.values[at]];
                    (count(one), count(other))
                });
        counts
            .into_iter()
            .find(|(one, other)| one != other)
            .is_some_and(|(one, other)| one < other)
    }
}

/// Counts the placed tasks on each value, and notes the value of each candidate and of each agent that is not offered.
fn group(
    constraint: &Constraint,
    placed: &[Placed],
    (offers, candidates): (&[Offer], &mut [Candidate]),
    (names, unoffered): (&[&SpreadValues], &mut [Vec<usize>]),
) -> Option<Grouping> {
    let most = match constraint.rule {
        Rule::Distinct(most) => Some(most),
        Rule::Spread => None,
        _ => return None,
    };
    // Agents without the attribute share one extra value.
    let mut indices: HashMap<Option<&str>, usize> = HashMap::new();
    let mut counts: Vec<u32> = Vec::new();
    let places = placed.iter().map(Place::from);
    for value in places.map(|place| place.value(&constraint.attribute)) {
        let index = *indices.entry(value).or_insert(counts.len());
        match counts.get_mut(index) {
            Some(count) => *count += 1,
            None => counts.push(1),
        }
    }
    for candidate in candidates {
        let value = Place::from(&offers[candidate.offer]).value(&constraint.attribute);
        let index = *indices.entry(value).or_insert(counts.len());
        if index == counts.len() {
            counts.push(0);
        }
        candidate.values.push(index);
    }
    // Each spread takes its value in turn.
    for (values, known) in names.iter().zip(unoffered).filter(|_| most.is_none()) {
        let value = values.get(known.len()).and_then(|value| value.as_deref());
        let index = *indices.entry(value).or_insert(counts.len());
        if index == counts.len() {
            counts.push(0);
        }
        known.push(index);
    }
    Some(Grouping { most, counts })
}

/// The number of tasks on each value of the attributes with a maximum per value.
#[derive(Debug)]
pub(super) struct Counts<'a> {
    by_attribute: Vec<Count<'a>>,
}

#[derive(Debug)]
struct Count<'a> {
    attribute: &'a str,
    most: u32,
    /// The number of tasks on each value; agents without a value have an entry of their own.
    by_value: HashMap<Option<&'a str>, usize>,
}

impl<'a> Counts<'a> {
    pub(super) fn new(spec: &'a JobSpec, placed: &'a [Placed]) -> Self {
        let distinct = spec.constraints.iter().filter_map(|constraint| {
            let Rule::Distinct(most) = constraint.rule else {
                return None;
            };
            let attribute = constraint.attribute.as_str();
            let mut by_value: HashMap<Option<&str>, usize> = HashMap::new();
            for one in placed {
                let value = Place::from(one).value(attribute);
                *by_value.entry(value).or_default() += 1;
            }
            Some(Count {
                attribute,
                most,
                by_value,
            })
        });
        Self {
            by_attribute: distinct.collect(),
        }
    }

    /// Whether each value has at most the allowed tasks. The evenness of the spread is left to later tasks.
    pub(super) fn are_kept(&self) -> bool {
        self.by_attribute.iter().all(|count| {
            let most = usize::try_from(count.most).unwrap_or(usize::MAX);
            count.by_value.values().all(|present| *present <= most)
        })
    }

    /// Checks that a further task on the offer's agent keeps each value within its maximum.
    pub(super) fn check(&self, offer: &Offer) -> Result<(), Why> {
        for count in &self.by_attribute {
            let here = Place::from(offer).value(count.attribute);
            let present = count.by_value.get(&here).copied().unwrap_or_default();
            if present >= usize::try_from(count.most).unwrap_or(usize::MAX) {
                return Err(Why::Full {
                    attribute: count.attribute.to_owned(),
                    value: here.unwrap_or_default().to_owned(),
                    most: count.most,
                });
            }
        }
        Ok(())
    }
}
