//! The roles of jobs at the master: which it has taken, and in which of these offers are wanted.
//!
//! A role that the master refuses keeps its own jobs waiting and no others: the framework subscribes with the roles that
//! were taken before, and asks for the rest in updates, whose refusal leaves everything else as it is. Where an update for
//! several roles is refused, they are asked for one at a time. Invariant: one update at a time is under way.
//!
//! Also whose gang keeps offers back next: of the roles that could and were refused it lately, the one that has waited the
//! longest. What is offered nothing that it could keep is waited for by none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::input::Effect;
use super::state::State;

/// Between two requests for offers of a role, which undo its filters.
const REVIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Before a refused role is asked for again; each time twice as long, up to the longest.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(600);
/// A role whose gang could keep offers back, and was refused that, is waited for as long by those that have waited less:
/// what it has declined comes again sooner.
const CLAIM: Duration = Duration::from_secs(15);
/// Between two looks for roles that no job has any more.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);

/// All roles that jobs have, or of which tasks are left.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    by_name: BTreeMap<String, Role>,
    /// Since when the gang that keeps offers back does so, or the last one did.
    collecting_since: Duration,
    /// When it is looked next which roles may be forgotten.
    forget_at: Duration,
    /// The roles that are asked for beside those taken, until the master has answered.
    asked: Option<BTreeSet<String>>,
    /// Several at once were refused, so that it is not known which.
    is_one_by_one: bool,
}

#[derive(Clone, Debug, Default)]
struct Role {
    standing: Standing,
    offers: Offers,
    /// When a gang of it has kept offers back last; before that, when it was first seen.
    collected: Duration,
    /// Until when those wait for it that have waited less.
    claims_until: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Unknown,
    Taken,
    Refused {
        why: String,
        /// When it is asked for again, and the pause before that.
        until: Duration,
        pause: Duration,
    },
}

/// Whether the master is to make offers to a role.
#[derive(Clone, Copy, Debug, Default)]
struct Offers {
    is_suppressed: bool,
    /// Something is to be launched that was not when offers were last asked for.
    is_revive_due: bool,
    revived: Duration,
    demand: Demand,
}

/// What waits for offers of a role.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Tasks to be launched, and volumes to be released.
    all: usize,
    /// Those of them that any agent may serve. While there are none, offers of most agents are declined for long.
    anywhere: usize,
}

/// What is asked of the master about the offers of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfferCall {
    Suppress,
    Revive,
}

impl Roles {
    /// Those that the framework subscribes with.
    pub(super) fn taken(&self) -> BTreeSet<String> {
        let taken = self.by_name.iter().filter(|(_, role)| role.is_taken());
        taken.map(|(name, _)| name.clone()).collect()
    }

    /// Why the master does not take a role, if it was refused.
    pub(super) fn refusal(&self, name: &str) -> Option<&str> {
        match &self.by_name.get(name)?.standing {
            Standing::Refused { why, .. } => Some(why),
            Standing::Unknown | Standing::Taken => None,
        }
    }

    /// Whether no offers come in a role.
    pub(super) fn is_suppressed(&self, name: &str) -> bool {
        let role = self.by_name.get(name);
        role.is_some_and(|role| role.offers.is_suppressed)
    }

    /// A new stream, which begins with these roles.
    pub(super) fn subscribed(&mut self, with: &BTreeSet<String>) {
        self.asked = None;
        for (name, role) in &mut self.by_name {
            role.offers = Offers::default();
            role.claims_until = Duration::ZERO;
            if with.contains(name) {
                role.standing = Standing::Taken;
            } else if role.is_taken() {
                role.standing = Standing::Unknown;
            }
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.asked = None;
    }

    /// A subscription with the roles that were taken was refused: one of them may no longer be.
    pub(super) fn doubted(&mut self) {
        self.is_one_by_one = true;
        for role in self.by_name.values_mut().filter(|role| role.is_taken()) {
            role.standing = Standing::Unknown;
        }
    }

    /// Whether a gang of a role that could begin to keep offers back may: not before one of a role that could as well and
    /// has waited for longer.
    pub(super) fn may_collect(&self, at: Duration, name: &str) -> bool {
        let Some(collected) = self.by_name.get(name).map(|role| role.collected) else {
            return true;
        };
        let claims = |role: &Role| role.is_taken() && role.claims_until > at;
        let mut others = self.by_name.iter().filter(|(_, role)| claims(role));
        !others.any(|(other, role)| (role.collected, &**other) < (collected, name))
    }

    /// A gang of a role could have begun to keep offers back, and was refused that.
    pub(super) fn refused_to_collect(&mut self, at: Duration, name: &str) {
        if let Some(role) = self.by_name.get_mut(name) {
            role.claims_until = at.saturating_add(CLAIM);
        }
    }

    /// A gang of a role has begun to keep offers back.
    pub(super) fn began_to_collect(&mut self, at: Duration, name: &str) {
        self.collecting_since = at;
        self.collected(at, name);
    }

    /// A gang of a role has what it needs, or keeps no more offers back.
    pub(super) fn collected(&mut self, at: Duration, name: &str) {
        if let Some(role) = self.by_name.get_mut(name) {
            role.collected = at;
            role.claims_until = Duration::ZERO;
        }
    }

    /// No gang keeps offers back any more: those that have waited meanwhile, while they may have been offered nothing, have
    /// the usual time.
    pub(super) fn ended_to_collect(&mut self, at: Duration) {
        let since = self.collecting_since;
        let waiting = self.by_name.values_mut();
        for role in waiting.filter(|role| role.claims_until > since) {
            role.claims_until = at.saturating_add(CLAIM);
        }
    }

    /// The roles for the next update, where one is due and none is under way.
    fn update(&mut self, at: Duration) -> Option<BTreeSet<String>> {
        if self.asked.is_some() {
            return None;
        }
        let named = |is: &dyn Fn(&Standing) -> bool| -> Vec<String> {
            let found = self.by_name.iter().filter(|(_, role)| is(&role.standing));
            found.map(|(name, _)| name.clone()).collect()
        };
        let mut wanted = named(&|standing| *standing == Standing::Unknown);
        if wanted.is_empty() {
            wanted = named(
                &|standing| matches!(standing, Standing::Refused { until, .. } if *until <= at),
            );
            wanted.truncate(1);
        } else if self.is_one_by_one {
            wanted.truncate(1);
        }
        if wanted.is_empty() {
            self.is_one_by_one = false;
            return None;
        }
        let asked: BTreeSet<String> = wanted.into_iter().collect();
        let mut roles = self.taken();
        roles.extend(asked.iter().cloned());
        self.asked = Some(asked);
        Some(roles)
    }

    /// The answer to an update, with the reason of a refusal. Gives the role that is refused and was not before.
    pub(super) fn answered(&mut self, at: Duration, refused: Option<String>) -> Option<String> {
        let asked = self.asked.take()?;
        let Some(why) = refused else {
            for name in &asked {
                if let Some(role) = self.by_name.get_mut(name) {
                    role.standing = Standing::Taken;
                }
            }
            return None;
        };
        if asked.len() > 1 {
            self.is_one_by_one = true;
            return None;
        }
        let name = asked.into_iter().next()?;
        let role = self.by_name.get_mut(&name)?;
        let last = match &role.standing {
            Standing::Refused { pause, .. } => Some(*pause),
            Standing::Unknown | Standing::Taken => None,
        };
        let pause = last.map_or(REFUSED_PAUSE, |last| (last * 2).min(REFUSED_PAUSE_MAX));
        role.standing = Standing::Refused {
            why,
            until: at.saturating_add(pause),
            pause,
        };
        last.is_none().then_some(name)
    }

    /// The roles in which offers are not wanted any more, and those in which they are wanted again.
    fn offer_calls(
        &mut self,
        at: Duration,
        demand: &BTreeMap<String, Demand>,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut suppress, mut revive) = (BTreeSet::new(), BTreeSet::new());
        for (name, role) in self.by_name.iter_mut().filter(|(_, role)| role.is_taken()) {
            let demand = demand.get(name).copied().unwrap_or_default();
            let into = match role.offers.call(at, demand) {
                Some(OfferCall::Suppress) => &mut suppress,
                Some(OfferCall::Revive) => &mut revive,
                None => continue,
            };
            into.insert(name.clone());
        }
        (suppress, revive)
    }
}

impl Role {
    fn is_taken(&self) -> bool {
        self.standing == Standing::Taken
    }
}

impl Offers {
    fn call(&mut self, at: Duration, demand: Demand) -> Option<OfferCall> {
        let before = std::mem::replace(&mut self.demand, demand);
        self.is_revive_due |= demand.all > before.all || demand.anywhere > before.anywhere;
        if demand.all == 0 {
            self.is_revive_due = false;
            let was_suppressed = std::mem::replace(&mut self.is_suppressed, true);
            return (!was_suppressed).then_some(OfferCall::Suppress);
        }
        let is_rested = at >= self.revived.saturating_add(REVIVE_INTERVAL);
        let is_due = self.is_suppressed || (self.is_revive_due && is_rested);
        if !is_due {
            return None;
        }
        *self = Self {
            revived: at,
            demand,
            ..Self::default()
        };
        Some(OfferCall::Revive)
    }
}

impl State {
    /// Asks the master for roles that jobs have and it has not taken; in those that it has, suppresses offers where nothing
    /// is wanted, and revives them where more is than before.
    pub(super) fn ask_for_offers(&mut self) {
        let at = self.clock.at;
        let mut demand: BTreeMap<String, Demand> = BTreeMap::new();
        for job in self.jobs.values() {
            for role in job.roles() {
                let of_role = demand.entry(role.to_owned()).or_default();
                of_role.all += job.demand_in(at, role);
                of_role.anywhere += job.demand_anywhere(at, role);
            }
        }
        for volume in self.releasing.values() {
            demand.entry(volume.record.role.clone()).or_default().all += 1;
        }
        for role in demand.keys() {
            if !self.roles.by_name.contains_key(role) {
                let new = Role {
                    collected: at,
                    ..Role::default()
                };
                self.roles.by_name.insert(role.clone(), new);
            }
        }
        self.forget_roles(&demand);
        if !self.is_connected {
            return;
        }
        if let Some(roles) = self.roles.update(at) {
            self.effects.push(Effect::Roles(roles));
        }
        let (suppress, revive) = self.roles.offer_calls(at, &demand);
        if !suppress.is_empty() {
            self.effects.push(Effect::Suppress(suppress));
        }
        if !revive.is_empty() {
            self.effects.push(Effect::Revive(revive));
        }
    }

    /// Forgets the roles that no job has and of which no task can be left: the framework gives them up with the next roles
    /// that it asks for.
    fn forget_roles(&mut self, demand: &BTreeMap<String, Demand>) {
        let at = self.clock.at;
        if at < self.roles.forget_at || self.roles.by_name.len() == demand.len() {
            return;
        }
        self.roles.forget_at = at.saturating_add(FORGET_INTERVAL);
        // Tasks of an earlier version may be in another role than the job is in.
        let with_tasks = self.jobs.values().filter(|job| !job.tasks.is_empty());
        let versions = with_tasks.flat_map(|job| job.record.versions.values());
        let of_tasks: BTreeSet<&str> = versions.map(|version| &*version.spec.role).collect();
        let is_needed = |name: &str| demand.contains_key(name) || of_tasks.contains(name);
        self.roles.by_name.retain(|name, _| is_needed(name));
    }

    /// The master has answered an update of the roles.
    pub(super) fn roles_answered(&mut self, refused: Option<String>) {
        let Some(role) = self.roles.answered(self.clock.at, refused) else {
            return;
        };
        let text = self.refused_text(&role).unwrap_or_default();
        let in_role = |name: &&String| self.role_of(name) == Some(&*role);
        let names: Vec<String> = self.jobs.keys().filter(in_role).cloned().collect();
        for name in names {
            self.event(&name, None, text.clone());
        }
    }

    /// That the master does not take a role, and why; nothing where it does.
    pub(super) fn refused_text(&self, role: &str) -> Option<String> {
        let why = self.roles.refusal(role)?;
        Some(format!("the master refuses role {role:?}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn roles(names: &[&str]) -> Roles {
        Roles {
            by_name: names
                .iter()
                .map(|name| ((*name).to_owned(), Role::default()))
                .collect(),
            ..Roles::default()
        }
    }

    /// Answers each update as a master that refuses these, until none is due.
    fn settle(roles: &mut Roles, now: Duration, refused: &[&str]) -> Vec<BTreeSet<String>> {
        let mut asked = Vec::new();
        while let Some(update) = roles.update(now) {
            let is_refused = refused.iter().any(|name| update.contains(*name));
            roles.answered(now, is_refused.then(|| "no".to_owned()));
            asked.push(update);
        }
        asked
    }

    #[test]
    fn roles_that_are_taken_are_asked_for_at_once() {
        let mut roles = roles(&["a", "b"]);
        assert_eq!(settle(&mut roles, at(0), &[]), [set(&["a", "b"])]);
        assert_eq!(roles.taken(), set(&["a", "b"]));
        assert_eq!(roles.update(at(1000)), None);
    }

    #[test]
    fn a_refused_role_keeps_no_other_one_out_and_is_asked_for_ever_more_rarely() {
        let mut roles = roles(&["a", "b", "c"]);
        let asked = settle(&mut roles, at(0), &["b"]);
        let expected = [
            set(&["a", "b", "c"]),
            set(&["a"]),
            set(&["a", "b"]),
            set(&["a", "c"]),
        ];
        assert_eq!(asked, expected);
        assert_eq!(roles.taken(), set(&["a", "c"]));
        assert_eq!(roles.refusal("b"), Some("no"));
        let mut times = Vec::new();
        for second in 1..2_000 {
            if !settle(&mut roles, at(second), &["b"]).is_empty() {
                times.push(second);
            }
        }
        assert_eq!(times, [10, 30, 70, 150, 310, 630, 1230, 1830]);
        // It is taken at last.
        assert_eq!(settle(&mut roles, at(3_000), &[]), [set(&["a", "b", "c"])]);
        assert_eq!(roles.refusal("b"), None);
    }

    #[test]
    fn a_subscription_that_is_refused_begins_again_without_roles() {
        let mut roles = roles(&["a", "b"]);
        settle(&mut roles, at(0), &[]);
        roles.disconnected();
        roles.doubted();
        assert_eq!(roles.taken(), set(&[]));
        roles.subscribed(&set(&[]));
        settle(&mut roles, at(1), &["a"]);
        assert_eq!(roles.taken(), set(&["b"]));
    }

    #[test]
    fn an_answer_of_an_earlier_stream_says_nothing() {
        let mut roles = roles(&["a"]);
        assert!(roles.update(at(0)).is_some());
        roles.subscribed(&set(&[]));
        assert_eq!(roles.answered(at(1), None), None);
        assert_eq!(roles.taken(), set(&[]));
    }
}
