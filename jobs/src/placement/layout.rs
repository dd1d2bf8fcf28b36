//! Which offer takes the next task: the tightest first, or even over the values of an attribute.

use std::collections::HashMap;

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
    /// For each grouping the index of the agent's value.
    values: Vec<usize>,
}

/// The tasks on each value of an attribute that tasks are laid out by.
#[derive(Debug)]
struct Grouping {
    /// At most so many on one value; none for a spread.
    most: Option<u32>,
    counts: Vec<u32>,
}

/// The offers that meet the rules of a job, and how many of its tasks are where.
#[derive(Debug)]
pub(super) struct Layout {
    /// Those with the least room first; those with GPUs last, if the job needs none.
    candidates: Vec<Candidate>,
    groupings: Vec<Grouping>,
    /// The candidate that [`Layout::next`] gave last.
    chosen: usize,
}

impl Layout {
    pub(super) fn new(
        spec: &JobSpec,
        placed: &[Placed],
        offers: &[Offer],
        demand: &Demand<'_>,
    ) -> Self {
        let rules = Rules::new(spec);
        let fitting = offers.iter().enumerate();
        let fitting = fitting.filter(|(_, offer)| rules.check(offer).is_ok());
        let mut fitting: Vec<(f64, usize, &Offer)> = fitting
            .map(|(index, offer)| (demand.room(&offer.resources), index, offer))
            .filter(|(room, ..)| *room >= 1.0)
            .collect();
        // Agents with GPUs are kept for jobs that need these.
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
        let laid_out = spec.constraints.iter();
        let groupings = laid_out
            .filter_map(|constraint| group(constraint, placed, offers, &mut candidates))
            .collect();
        Self {
            candidates,
            groupings,
            chosen: 0,
        }
    }

    /// The offer for the next task and what is left of it.
    pub(super) fn next(&mut self) -> Option<(usize, &Resources)> {
        let mut best: Option<usize> = None;
        for (index, candidate) in self.candidates.iter().enumerate() {
            if !self.is_allowed(candidate) {
                continue;
            }
            if best.is_none_or(|best| self.is_emptier(candidate, &self.candidates[best])) {
                best = Some(index);
            }
            // Without a spread the first is the best.
            if self
                .groupings
                .iter()
                .all(|grouping| grouping.most.is_some())
            {
                break;
            }
        }
        self.chosen = best?;
        let candidate = &self.candidates[self.chosen];
        Some((candidate.offer, &candidate.left))
    }

    /// Notes the task that the chosen offer has taken.
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

    /// Takes the chosen offer out: nothing more fits in it.
    pub(super) fn exhausted(&mut self) {
        if self.chosen < self.candidates.len() {
            self.candidates.remove(self.chosen);
        }
    }

    fn is_allowed(&self, candidate: &Candidate) -> bool {
        let mut each = self.groupings.iter().zip(&candidate.values);
        each.all(|(grouping, value)| {
            grouping
                .most
                .is_none_or(|most| grouping.counts[*value] < most)
        })
    }

    /// Whether fewer tasks are on the values of the one than of the other, by the first spread that tells.
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

/// Counts what is placed on each value, and notes the value of each candidate.
fn group(
    constraint: &Constraint,
    placed: &[Placed],
    offers: &[Offer],
    candidates: &mut [Candidate],
) -> Option<Grouping> {
    let most = match constraint.rule {
        Rule::Distinct(most) => Some(most),
        Rule::Spread => None,
        _ => return None,
    };
    // Agents without the attribute are on one value of its own.
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
    Some(Grouping { most, counts })
}

/// How many tasks are on each value of the attributes of which a value takes so many at most.
#[derive(Debug)]
pub(super) struct Counts<'a> {
    by_attribute: Vec<Count<'a>>,
}

#[derive(Debug)]
struct Count<'a> {
    attribute: &'a str,
    most: u32,
    /// Of each value; agents without one have one of their own.
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

    /// Whether a further task on the agent of the offer keeps each value at what is allowed.
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
