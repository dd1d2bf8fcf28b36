//! The placement of a job's tasks: the offers that fit, the resources taken from them, and the reasons why others do not
//! fit.
//!
//! Entered through [`place`] and [`place_within`] for many tasks, [`place_on_volume`] for an instance that returns to its
//! volume, and [`obstacles`] for the reasons. Pure.
//!
//! - `offer.rs`: the offers; `constraint.rs`: the rules; `held.rs`: resources held for one instance.
//! - `take.rs`: the resources of a task; `layout.rs`: the selection of the next offer; `why.rs`: the obstacles in words.
//!
//! Invariants: the placements in an offer never take more than it has, revocable resources go to best-effort jobs alone,
//! and a constraint that the file states as a rule is never broken.

mod constraint;
mod held;
mod layout;
mod offer;
mod take;
#[cfg(test)]
mod tests;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use meseta_resources::{Resource, ResourceQuantities, Resources};
use serde::{Deserialize, Serialize};

pub use constraint::Place;
pub use held::{VOLUME_LABEL, reserved_for, volume_in};
pub use layout::{SpreadValues, spread_values};
pub use offer::{Offer, OfferError};
pub use why::Why;

use crate::spec::JobSpec;
use constraint::Rules;
use layout::{Counts, Layout};
use take::Demand;
#[cfg(test)]
pub(crate) use take::{ROOMS, TAKEN};

/// A task of the job that runs or is about to run, with its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub agent_id: String,
    pub hostname: String,
    /// The agent's attributes, in the form of [`Offer::attributes`].
    pub attributes: BTreeMap<String, String>,
}

/// The offer of one task and the resources that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The index of the offer among the given ones.
    pub offer: usize,
    /// The resources that the task takes from those for any task, without an allocation.
    pub resources: Resources,
    /// A port for each of the job's port names.
    pub ports: BTreeMap<String, u16>,
    /// The disk for the volume of a new instance: it is reserved if necessary, and created.
    pub new_volume: Resources,
    /// The held resources of an instance that returns to its volume.
    pub returned: Option<Returned>,
}

/// The resources that were held for an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Returned {
    /// The id of the instance's volume.
    pub id: String,
    pub volume: Resource,
    /// The other held resources that the task uses.
    pub used: Resources,
    /// The held resources that the task no longer needs.
    pub surplus: Resources,
}

/// Places up to `want` tasks, several in one offer where they fit. The tightest offers are filled first, except for a
/// spread job.
#[must_use]
pub fn place(spec: &JobSpec, placed: &[Placed], offers: &[Offer], want: usize) -> Vec<Placement> {
    place_within(spec, placed, offers, want, &|_| usize::MAX)
}

/// Places tasks, with a maximum of tasks in each offer.
#[must_use]
pub fn place_within(
    spec: &JobSpec,
    placed: &[Placed],
    offers: &[Offer],
    want: usize,
    most: &dyn Fn(usize) -> usize,
) -> Vec<Placement> {
    place_beside(spec, placed, (offers, &BTreeSet::new()), want, most).placements
}

/// The placed tasks, and the agents' values for which the next task waits.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    pub placements: Vec<Placement>,
    /// The awaited values. Empty unless a further task fits in an offer.
    pub awaited: BTreeSet<SpreadValues>,
}

/// Places tasks of a spread job, also considering the values of agents that are not offered yet: if such values have fewer
/// tasks than those of any offer, the next task waits.
#[must_use]
pub fn place_beside(
    spec: &JobSpec,
    placed: &[Placed],
    (offers, unoffered): (&[Offer], &BTreeSet<SpreadValues>),
    want: usize,
    most: &dyn Fn(usize) -> usize,
) -> Spread {
    let demand = Demand::new(spec);
    let mut layout = Layout::new(spec, placed, offers, (unoffered, &demand));
    let mut counts = vec![0; offers.len()];
    let mut placements = Vec::new();
    while placements.len() < want {
        let Some((offer, left)) = layout.next() else {
            break;
        };
        if counts[offer] >= most(offer) {
            layout.exhausted();
            continue;
        }
        match demand.take((offer, offers[offer].ports_from), left) {
            Ok(placement) => {
                layout.took(&placement);
                counts[offer] += 1;
                placements.push(placement);
            }
            Err(_) => layout.exhausted(),
        }
    }
    Spread {
        placements,
        awaited: layout.into_awaited(),
    }
}

/// Returns the number of tasks that the offers can hold together, without constraints: an upper bound.
#[must_use]
pub fn room(spec: &JobSpec, offers: &[Offer]) -> usize {
    let demand = Demand::new(spec);
    let rooms = offers.iter().map(|offer| demand.room(&offer.resources));
    let sum: f64 = rooms.map(f64::floor).sum();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is no less than 0, and what is beyond the largest number becomes it"
    )]
    let sum = sum as usize;
    sum
}

/// Places an instance on the agent that has its volume, if no value then exceeds its maximum beside the placed tasks.
///
/// # Errors
///
/// Why none of the offers fits; [`Why::NoVolume`] when none has the volume.
pub fn place_on_volume(
    spec: &JobSpec,
    placed: &[Placed],
    offers: &[Offer],
    persistence_id: &str,
) -> Result<Placement, Why> {
    let (rules, demand) = (Rules::new(spec), Demand::new(spec));
    let counts = Counts::new(spec, placed);
    let mut why = Why::NoVolume {
        id: persistence_id.to_owned(),
    };
    for (index, offer) in offers.iter().enumerate() {
        let held = offer.held.get(persistence_id);
        let volume = held.and_then(|held| volume_in(held, persistence_id));
        let Some((held, volume)) = held.zip(volume) else {
            continue;
        };
        let taken = demand.take_on_volume((index, offer), held, (persistence_id, volume));
        match rules.check(offer).and(counts.check(offer)).and(taken) {
            Ok(placement) => return Ok(placement),
            Err(obstacle) => why = obstacle,
        }
    }
    Err(why)
}

/// Returns the unreserved resources of each task of a job without ports: enough to plan with a task that goes.
#[must_use]
pub fn requested(spec: &JobSpec) -> Resources {
    Demand::new(spec).requested()
}

/// Returns the amounts that each new task of a job takes from the quota of its role: revocable resources do not count.
#[must_use]
pub fn counted_by_quota(spec: &JobSpec) -> ResourceQuantities {
    Demand::new(spec).guaranteed()
}

/// Returns the placement of one more task in an offer, beside the tasks that are placed already.
///
/// # Errors
///
/// The first obstacle, in the order role, constraints, resources.
pub fn fits(spec: &JobSpec, placed: &[Placed], offer: &Offer) -> Result<Placement, Why> {
    let counts = Counts::new(spec, placed);
    fits_by(&Rules::new(spec), &Demand::new(spec), &counts, (0, offer))
}

/// Checks many offers, each only with the placed tasks.
#[must_use]
pub fn fit_each<'a>(
    spec: &JobSpec,
    placed: &[Placed],
    offers: impl IntoIterator<Item = &'a Offer>,
) -> Vec<Result<(), Why>> {
    let (rules, demand) = (Rules::new(spec), Demand::new(spec));
    let counts = Counts::new(spec, placed);
    let fits = |offer| fits_by(&rules, &demand, &counts, (0, offer)).map(|_| ());
    offers.into_iter().map(fits).collect()
}

/// Whether the constraints of a job hold for tasks in these places, each alone and all together.
#[must_use]
pub fn are_met(spec: &JobSpec, placed: &[Placed]) -> bool {
    let (rules, counts) = (Rules::new(spec), Counts::new(spec, placed));
    let meets = |placed: &Placed| {
        let offer = Offer {
            agent_id: placed.agent_id.clone(),
            hostname: placed.hostname.clone(),
            role: spec.role.clone(),
            attributes: placed.attributes.clone(),
            ..Offer::default()
        };
        rules.check(&offer).is_ok()
    };
    placed.iter().all(meets) && counts.are_kept()
}

fn fits_by(
    rules: &Rules<'_>,
    demand: &Demand<'_>,
    counts: &Counts<'_>,
    (index, offer): (usize, &Offer),
) -> Result<Placement, Why> {
    rules.check(offer)?;
    counts.check(offer)?;
    demand.take((index, offer.ports_from), &offer.resources)
}

/// Returns the obstacle of each offer in which no further task fits, with the offer's index.
#[must_use]
pub fn obstacles(spec: &JobSpec, placed: &[Placed], offers: &[Offer]) -> Vec<(usize, Why)> {
    let (rules, demand) = (Rules::new(spec), Demand::new(spec));
    let counts = Counts::new(spec, placed);
    let why = |one: (usize, &Offer)| {
        let obstacle = fits_by(&rules, &demand, &counts, one).err()?;
        Some((one.0, obstacle))
    };
    offers.iter().enumerate().filter_map(why).collect()
}
