//! Offers that the collecting gang gives back, so that jobs of other tenants start meanwhile.
//!
//! Entered through [`Claims::due`], once in each step. A gang may keep whole agents back for minutes, and a job of
//! another tree of roles may need a small part of one agent. Invariants: a gang gives back one offer at a time, and only an
//! offer that a waiting task fits, for a tree with fewer resources than the tree of the gang. A tree whose claim starts no
//! task claims nothing for [`IN_VAIN`], so that a gang with a guarantee, which gets the same offer again, is hardly hindered.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::Job;
use super::jobs::Jobs;
use super::launch::placed_of;
use super::open_offers::OpenOffers;
use super::roles::top_of;
use crate::placement::{self, Offer};
use crate::spec::JobSpec;

/// The time that a job waits for an offer before a gang gives one back.
const PATIENCE: Duration = Duration::from_millis(300);
/// The time in which the master offers the resources to another role. The gang refuses them for as long.
pub(super) const OFFERED_WITHIN: Duration = Duration::from_secs(1);
/// The pause of a tree after a claim that started no task.
const IN_VAIN: Duration = Duration::from_secs(30);
/// The limits of one search for an offer: waiting jobs of a tree, and offers.
const JOBS_MAX: usize = 16;
const OFFERS_MAX: usize = 1_000;

/// The trees of roles that wait while a gang keeps offers back, by their top role.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Claim>);

/// The claim of a tree of roles.
#[derive(Debug)]
struct Claim {
    /// The time from which on the tree waits for an offer.
    since: Duration,
    /// The number of waiting tasks: a smaller number means that some have started.
    waiting: usize,
    /// The time at which the gang gave back an offer for the tree.
    given_back: Option<Duration>,
}

/// The resources of a tree of roles.
#[derive(Clone, Copy, Default)]
struct Share {
    cpus: f64,
    mem: f64,
}

impl Share {
    fn add(&mut self, other: Self) {
        self.cpus += other.cpus;
        self.mem += other.mem;
    }
}

impl Claims {
    /// Forgets all claims: no gang keeps offers back.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the trees for which the gang gives an offer back, given the number of waiting tasks of each waiting tree.
    pub(super) fn due(&mut self, at: Duration, waiting: &BTreeMap<String, usize>) -> Vec<String> {
        self.0.retain(|top, _| waiting.contains_key(top));
        let mut due = Vec::new();
        for (top, all) in waiting {
            let claim = self.0.entry(top.clone()).or_insert(Claim {
                since: at,
                waiting: *all,
                given_back: None,
            });
            if claim.is_due(at, *all) {
                due.push(top.clone());
            }
        }
        due
    }

    /// Notes that the gang has given an offer back for a tree.
    pub(super) fn note_given_back(&mut self, at: Duration, top: &str) {
        if let Some(claim) = self.0.get_mut(top) {
            claim.given_back = Some(at);
        }
    }
}

impl Claim {
    /// Whether the gang gives an offer back now. The next look comes after [`PATIENCE`].
    fn is_due(&mut self, at: Duration, waiting: usize) -> bool {
        if waiting < self.waiting {
            self.since = at;
            self.given_back = None;
        }
        self.waiting = waiting;
        if let Some(since) = self.given_back {
            if at >= since.saturating_add(OFFERED_WITHIN) {
                self.since = at.saturating_add(IN_VAIN);
                self.given_back = None;
            }
            return false;
        }
        if at < self.since.saturating_add(PATIENCE) {
            return false;
        }
        self.since = at;
        true
    }
}

/// Returns the offer that the gang of tree `own` gives back for the tree `top`, and the role of the waiting job. The demand
/// of all jobs was counted before.
pub(super) fn find_offer(
    jobs: &Jobs,
    open: &OpenOffers,
    (top, own): (&str, &str),
) -> Option<(String, String)> {
    let (mut theirs, mut ours) = (share_of(jobs, top), share_of(jobs, own));
    for offer in open.free() {
        let of = |name| offer.resources.scalar(name);
        let amount = |name| of(name).map_or(0.0, |scalar| scalar.to_f64());
        let share = Share {
            cpus: amount("cpus"),
            mem: amount("mem"),
        };
        match top_of(&offer.role) == top {
            true => theirs.add(share),
            false => ours.add(share),
        }
    }
    if theirs.cpus >= ours.cpus && theirs.mem >= ours.mem {
        return None;
    }
    let keys = jobs.demand().claiming_in(top).take(JOBS_MAX);
    let mut waiting = keys.filter_map(|key| jobs.get(key));
    waiting.find_map(|job| Some((kept_for(open, job)?, job.role().to_owned())))
}

/// Returns the smallest of the offers that are kept back and that a task of the job fits.
fn kept_for(open: &OpenOffers, job: &Job) -> Option<String> {
    let spec = job.spec()?;
    // The master can offer the same resources to the role of the job.
    let without_role = |offer: &Offer| Offer {
        role: String::new(),
        ..offer.clone()
    };
    let offers: Vec<Offer> = open.free().take(OFFERS_MAX).map(without_role).collect();
    let placed: Vec<_> = match spec.constraints.is_empty() {
        true => Vec::new(),
        false => job.tasks.values().map(placed_of).collect(),
    };
    let fits = placement::fit_each(spec, &placed, &offers);
    let fitting = offers.iter().zip(fits).filter(|(_, fits)| fits.is_ok());
    let smallest = fitting.min_by_key(|(offer, _)| offer.resources.scalar("cpus"));
    smallest.map(|(offer, _)| offer.id.clone())
}

/// Returns the resources of the tasks of a tree of roles.
fn share_of(jobs: &Jobs, top: &str) -> Share {
    let mut share = Share::default();
    for job in jobs.in_tree(top) {
        let Some(spec) = job.spec() else {
            continue;
        };
        #[expect(clippy::cast_precision_loss, reason = "tasks are 2,000,000 at most")]
        let tasks = job.tasks.len() as f64;
        share.add(Share {
            cpus: tasks * request(spec, "cpus"),
            mem: tasks * request(spec, "mem"),
        });
    }
    share
}

fn request(spec: &JobSpec, name: &str) -> f64 {
    spec.task.requests.get(name).copied().unwrap_or_default()
}
