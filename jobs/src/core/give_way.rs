//! Offers that the collecting gang gives back, so that jobs of other tenants start meanwhile.
//!
//! Entered through [`State::give_way`], once in each step. A gang may keep whole agents back for minutes, and a job of
//! another tree of roles may need a small part of one agent. Invariants: a gang gives back one offer at a time, and only an
//! offer that a waiting task fits, for a tree with fewer resources than the tree of the gang. A tree whose claim starts no
//! task claims nothing for [`IN_VAIN`], so that a gang with a guarantee, which gets the same offer again, is hardly hindered.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::Job;
use super::launch::placed_of;
use super::roles::top_of;
use super::state::{HeldOffer, State};
use crate::placement::{self, Offer};
use crate::spec::JobSpec;

/// The time that a job waits for an offer before a gang gives one back.
const PATIENCE: Duration = Duration::from_millis(300);
/// The time in which the master offers the resources to another role. The gang refuses them for as long.
const OFFERED_WITHIN: Duration = Duration::from_secs(1);
/// The pause of a tree after a claim that started no task.
const IN_VAIN: Duration = Duration::from_secs(30);
/// The limits of one search for an offer: waiting jobs of a tree, and offers.
const JOBS_MAX: usize = 16;
const OFFERS_MAX: usize = 1_000;

/// The trees of roles that wait while a gang keeps offers back, by their top role.
pub(super) type Claims = BTreeMap<String, Claim>;

/// The claim of a tree of roles.
#[derive(Debug)]
pub(super) struct Claim {
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

impl State {
    /// Declines an offer of the collecting gang for a tree that waits.
    pub(super) fn give_way(&mut self) {
        let at = self.clock.at;
        let Some(collector) = &self.collector else {
            return self.claims.clear();
        };
        let own = top_of(&collector.role).to_owned();
        let claims = self.jobs.count_demand(at).claims();
        let claims = claims.filter(|(top, _)| *top != own);
        let waiting: BTreeMap<String, usize> =
            claims.map(|(top, all)| (top.to_owned(), all)).collect();
        self.claims.retain(|top, _| waiting.contains_key(top));
        for (top, all) in waiting {
            let claim = self.claims.entry(top.clone()).or_insert(Claim {
                since: at,
                waiting: all,
                given_back: None,
            });
            if all < claim.waiting {
                claim.since = at;
                claim.given_back = None;
            }
            claim.waiting = all;
            if let Some(since) = claim.given_back {
                if at >= since.saturating_add(OFFERED_WITHIN) {
                    claim.since = at.saturating_add(IN_VAIN);
                    claim.given_back = None;
                }
                continue;
            }
            if at < claim.since.saturating_add(PATIENCE) {
                continue;
            }
            // The next look comes after the same time.
            claim.since = at;
            self.give_back_for(&top, &own);
        }
    }

    fn give_back_for(&mut self, top: &str, own: &str) {
        let keys = self.jobs.count_demand(self.clock.at).claiming_in(top);
        let keys: Vec<String> = keys.take(JOBS_MAX).cloned().collect();
        let (mut theirs, mut ours) = (self.used_by(top), self.used_by(own));
        let kept = self.offers.values().filter(|held| !held.is_committed);
        for held in kept {
            let of = |name| held.offer.resources.scalar(name);
            let amount = |name| of(name).map_or(0.0, |scalar| scalar.to_f64());
            let share = Share {
                cpus: amount("cpus"),
                mem: amount("mem"),
            };
            match top_of(&held.offer.role) == top {
                true => theirs.add(share),
                false => ours.add(share),
            }
        }
        if theirs.cpus >= ours.cpus && theirs.mem >= ours.mem {
            return;
        }
        let mut jobs = keys.iter().filter_map(|key| self.jobs.get(key));
        let found = jobs.find_map(|job| Some((self.kept_for(job)?, job.role().to_owned())));
        let Some((offer, role)) = found else {
            return;
        };
        self.decline(vec![offer], OFFERED_WITHIN);
        // The role may have declined resources of the same agent before.
        self.roles.wants_all(&role);
        if let Some(claim) = self.claims.get_mut(top) {
            claim.given_back = Some(self.clock.at);
        }
    }

    /// The smallest of the offers that are kept back and that a task of the job fits.
    fn kept_for(&self, job: &Job) -> Option<String> {
        let spec = job.spec()?;
        let kept = self.offers.values().filter(|held| !held.is_committed);
        // The master can offer the same resources to the role of the job.
        let of_no_role = |held: &HeldOffer| Offer {
            role: String::new(),
            ..held.offer.clone()
        };
        let offers: Vec<Offer> = kept.take(OFFERS_MAX).map(of_no_role).collect();
        let placed: Vec<_> = match spec.constraints.is_empty() {
            true => Vec::new(),
            false => job.tasks.values().map(placed_of).collect(),
        };
        let fits = placement::fit_each(spec, &placed, &offers);
        let fitting = offers.iter().zip(fits).filter(|(_, fits)| fits.is_ok());
        let smallest = fitting.min_by_key(|(offer, _)| offer.resources.scalar("cpus"));
        smallest.map(|(offer, _)| offer.id.clone())
    }

    /// The resources of the tasks of a tree of roles.
    fn used_by(&self, top: &str) -> Share {
        let mut share = Share::default();
        for job in self.jobs.in_tree(top) {
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
}

fn request(spec: &JobSpec, name: &str) -> f64 {
    spec.task.requests.get(name).copied().unwrap_or_default()
}
