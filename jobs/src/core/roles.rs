//! The roles of jobs at the master: the roles that it has accepted, and those whose offers are wanted.
//!
//! A role that the master refuses delays its own jobs and no others: the framework subscribes with the roles that the
//! master accepted before, and requests the rest in updates. A refused update leaves everything else as it is. After a
//! refused update for several roles, the core requests them one at a time. After a refused update for one role, the core
//! first requests the accepted roles alone: the master may have withdrawn one of these. Invariants: one update at a time is
//! in flight; each call that replaces the master's roles carries all roles that the core believes in; the jobs of a role
//! see no reason that concerns another role.
//!
//! This module also selects the next gang that keeps offers back: of the roles that could and were lately refused, the one
//! that has waited longest. No role waits for a role that gets no usable offer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::input::Effect;
use super::jobs::Jobs;
use super::offer_demand::Demand;
use super::released_volumes::ReleasedVolumes;

/// The pause between two requests for offers of a role, which remove its filters.
const REVIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before the next request for a refused role. Each pause is twice as long as the one before, up to the longest.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(600);
/// The time for which other gangs wait for a role whose gang could keep offers but was refused, if they have waited less:
/// the offers that it has declined come again sooner.
const CLAIM: Duration = Duration::from_secs(15);
/// The time for which the framework requests the offers of a role for a plan, and the number of such roles at a time.
const LOOKED_FOR: Duration = Duration::from_secs(3);
const LOOKED_FOR_MAX: usize = 256;
/// The pause between two searches for roles without jobs.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);

/// All roles of jobs and of remaining tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    by_name: BTreeMap<String, Role>,
    /// The time when the present, or the last, collecting gang started to keep offers.
    collecting_since: Duration,
    /// The last time at which a gang of a role's tree kept offers back, by the tree's top role.
    collected: BTreeMap<String, Duration>,
    /// The next time to check which roles may be forgotten.
    forget_at: Duration,
    /// The update that is in progress.
    asked: Option<Asked>,
    /// The doubt after the master refused an update for one role.
    doubt: Option<Doubt>,
    /// The roles for which plans are made, and the time until which the framework requests their offers.
    looked_for: BTreeMap<String, Duration>,
    /// Whether roles are sent one by one: the master refused several at once, and the refused role is unknown.
    is_one_by_one: bool,
}

/// The roles of an update, and the suppressed ones among them: the whole view of the core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleSet {
    pub roles: BTreeSet<String>,
    pub suppressed: BTreeSet<String>,
}

/// An update that the master has not answered yet.
#[derive(Clone, Debug)]
struct Asked {
    question: Question,
    /// The suppressed roles: the scheduler wants no offers in them.
    suppressed: BTreeSet<String>,
}

/// The question that the answer to an update decides.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    /// Asks for these roles beside the accepted ones.
    More(BTreeSet<String>),
    /// Asks for the accepted roles alone.
    Present,
    /// Asks for the accepted roles without this one.
    Without(String),
}

/// A refused update for one role: the reason is this role, or one that was accepted before.
#[derive(Clone, Debug)]
struct Doubt {
    role: String,
    why: String,
    /// The accepted roles that may be the reason of the refusal, the last one first; unknown before the master has refused
    /// them alone.
    suspects: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default)]
struct Role {
    standing: Standing,
    offers: Offers,
    /// The last time that a gang of this role kept offers back; initially the time when the role was first seen.
    collected: Duration,
    /// The time until which roles that have waited less wait for this one.
    claims_until: Duration,
    /// No job waits for offers in this role.
    is_idle: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Unknown,
    Taken,
    Refused {
        why: String,
        /// The time of the next request, and the pause before it.
        until: Duration,
        pause: Duration,
    },
}

/// Whether the master is to make offers to a role.
#[derive(Clone, Copy, Debug, Default)]
struct Offers {
    is_suppressed: bool,
    /// Whether new work has come since offers were last requested.
    is_revive_due: bool,
    revived: Duration,
    demand: Demand,
}

/// A call to the master about the offers of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfferCall {
    Suppress,
    Revive,
}

impl Roles {
    /// Returns the roles that the framework subscribes with.
    pub(super) fn taken(&self) -> BTreeSet<String> {
        let taken = self.by_name.iter().filter(|(_, role)| role.is_taken());
        taken.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the suppressed roles among the accepted roles.
    pub(super) fn idle(&self) -> BTreeSet<String> {
        let taken = self.by_name.iter().filter(|(_, role)| role.is_taken());
        let idle = taken.filter(|(_, role)| role.is_idle);
        idle.map(|(name, _)| name.clone()).collect()
    }

    /// Returns why the master refused a role, if it did.
    pub(super) fn refusal(&self, name: &str) -> Option<&str> {
        match &self.by_name.get(name)?.standing {
            Standing::Refused { why, .. } => Some(why),
            Standing::Unknown | Standing::Taken => None,
        }
    }

    /// Requests all offers of a role again, including declined ones.
    pub(super) fn wants_all(&mut self, name: &str) {
        if let Some(role) = self.by_name.get_mut(name) {
            role.offers.is_revive_due = true;
        }
    }

    /// Whether a role receives no offers.
    pub(super) fn is_suppressed(&self, name: &str) -> bool {
        let role = self.by_name.get(name);
        role.is_some_and(|role| role.offers.is_suppressed)
    }

    /// Notes a new stream that begins with these roles.
    pub(super) fn subscribed(&mut self, with: &RoleSet) {
        self.disconnected();
        for (name, role) in &mut self.by_name {
            role.offers = Offers {
                is_suppressed: with.suppressed.contains(name),
                ..Offers::default()
            };
            role.claims_until = Duration::ZERO;
            if with.roles.contains(name) {
                role.standing = Standing::Taken;
            } else if role.is_taken() {
                role.standing = Standing::Unknown;
            }
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.asked = None;
        self.doubt = None;
    }

    /// Handles a refused subscription with the accepted roles: the master may have withdrawn one.
    pub(super) fn doubted(&mut self) {
        self.doubt = None;
        self.is_one_by_one = true;
        for role in self.by_name.values_mut().filter(|role| role.is_taken()) {
            role.standing = Standing::Unknown;
        }
    }

    /// Whether a gang of this role may start to keep offers back. The role whose last turn was the longest ago is
    /// first, among the roles whose gangs want to keep offers. For this order, all roles below the same top-level role
    /// count as one role. The roles of one top-level role are in order of their own last turns.
    pub(super) fn may_collect(&self, at: Duration, name: &str) -> bool {
        let Some(role) = self.by_name.get(name) else {
            return true;
        };
        let claims = |role: &Role| role.is_taken() && role.claims_until > at;
        let mut others = self.by_name.iter().filter(|(_, role)| claims(role));
        let own = self.order(name, role);
        !others.any(|(other, role)| self.order(other, role) < own)
    }

    /// Returns a role's rank among roles whose gangs keep offers back: its tree's last time, then its own, then its name.
    fn order<'a>(&self, name: &'a str, role: &Role) -> (Duration, Duration, &'a str) {
        let of_tree = self.collected.get(top_of(name)).copied();
        (of_tree.unwrap_or(role.collected), role.collected, name)
    }

    /// Notes that a gang of a role was refused to keep offers back.
    pub(super) fn refused_to_collect(&mut self, at: Duration, name: &str) {
        if let Some(role) = self.by_name.get_mut(name) {
            role.claims_until = at.saturating_add(CLAIM);
        }
    }

    /// Notes that a gang of a role has begun to keep offers back.
    pub(super) fn began_to_collect(&mut self, at: Duration, name: &str) {
        self.collecting_since = at;
        self.collected(at, name);
    }

    /// Records that a gang of this role got its resources, or stopped keeping offers.
    pub(super) fn collected(&mut self, at: Duration, name: &str) {
        if let Some(role) = self.by_name.get_mut(name) {
            role.collected = at;
            role.claims_until = Duration::ZERO;
        }
        self.collected.insert(top_of(name).to_owned(), at);
    }

    /// Records that no gang keeps offers any more. Roles that waited meanwhile, perhaps without offers, get the usual time
    /// again.
    pub(super) fn ended_to_collect(&mut self, at: Duration) {
        let since = self.collecting_since;
        let waiting = self.by_name.values_mut();
        for role in waiting.filter(|role| role.claims_until > since) {
            role.claims_until = at.saturating_add(CLAIM);
        }
    }

    /// Returns the next update, if one is due and none is in flight.
    fn update(&mut self, at: Duration) -> Option<RoleSet> {
        if self.asked.is_some() {
            return None;
        }
        let question = self.question(at)?;
        let mut roles = self.taken();
        match &question {
            Question::More(more) => roles.extend(more.iter().cloned()),
            Question::Present => {}
            Question::Without(name) => {
                roles.remove(name);
            }
        }
        let is_suppressed = |name: &&String| {
            let role = self.by_name.get(*name);
            role.is_some_and(|role| match role.is_taken() {
                true => role.offers.is_suppressed,
                false => role.is_idle,
            })
        };
        let suppressed: BTreeSet<String> = roles.iter().filter(is_suppressed).cloned().collect();
        self.asked = Some(Asked {
            question,
            suppressed: suppressed.clone(),
        });
        Some(RoleSet { roles, suppressed })
    }

    fn question(&mut self, at: Duration) -> Option<Question> {
        match &mut self.doubt {
            Some(Doubt { suspects: None, .. }) => return Some(Question::Present),
            Some(Doubt {
                suspects: Some(suspects),
                ..
            }) => match suspects.pop() {
                Some(suspect) => return Some(Question::Without(suspect)),
                // Several roles were withdrawn.
                None => self.doubted(),
            },
            None => {}
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
        Some(Question::More(wanted.into_iter().collect()))
    }

    /// Handles the master's response to an update, with the reason of a refusal. Returns a newly refused role.
    pub(super) fn answered(&mut self, at: Duration, refused: Option<String>) -> Option<String> {
        let Asked {
            question,
            suppressed,
        } = self.asked.take()?;
        match (question, refused) {
            (Question::More(names), None) => {
                for name in &names {
                    if let Some(role) = self.by_name.get_mut(name) {
                        role.standing = Standing::Taken;
                        role.offers = Offers {
                            is_suppressed: suppressed.contains(name),
                            ..Offers::default()
                        };
                    }
                }
                None
            }
            (Question::More(names), Some(_)) if names.len() > 1 => {
                self.is_one_by_one = true;
                None
            }
            (Question::More(names), Some(why)) => {
                let role = names.into_iter().next()?;
                if self.taken().is_empty() {
                    return self.refuse(at, &role, why);
                }
                self.doubt = Some(Doubt {
                    role,
                    why,
                    suspects: None,
                });
                None
            }
            (Question::Present, None) => {
                let Doubt { role, why, .. } = self.doubt.take()?;
                self.refuse(at, &role, why)
            }
            (Question::Present, Some(why)) => {
                let mut suspects: Vec<String> = self.taken().into_iter().collect();
                // The reason mostly names the role, so the named roles are requested first.
                suspects.sort_by_key(|name| why.contains(&**name));
                let doubt = self.doubt.as_mut()?;
                doubt.why = why;
                doubt.suspects = Some(suspects);
                None
            }
            (Question::Without(name), None) => {
                let Doubt { why, .. } = self.doubt.take()?;
                self.refuse(at, &name, why)
            }
            (Question::Without(_), Some(_)) => None,
        }
    }

    /// Notes that the master refuses a role. Returns the role unless the refusal was known.
    fn refuse(&mut self, at: Duration, name: &str, why: String) -> Option<String> {
        let role = self.by_name.get_mut(name)?;
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
        last.is_none().then(|| name.to_owned())
    }

    /// Adds the roles with jobs or possible tasks, and notes the roles in which nothing waits for offers.
    fn follow(&mut self, at: Duration, demand: &BTreeMap<&str, Demand>) {
        for role in demand.keys() {
            if !self.by_name.contains_key(*role) {
                let new = Role {
                    collected: at,
                    ..Role::default()
                };
                self.by_name.insert((*role).to_owned(), new);
            }
        }
        for (name, role) in &mut self.by_name {
            role.is_idle = demand.get(&**name).is_none_or(|demand| demand.all == 0);
        }
    }

    /// Forgets the roles without jobs or possible tasks: the framework gives them up with its next update of roles.
    fn forget(&mut self, at: Duration, demand: &BTreeMap<&str, Demand>, jobs: &Jobs) {
        if at < self.forget_at || self.by_name.len() == demand.len() {
            return;
        }
        self.forget_at = at.saturating_add(FORGET_INTERVAL);
        // Tasks of an earlier version may be in another role than their job.
        let with_tasks = jobs.values().filter(|job| !job.tasks.is_empty());
        let versions = with_tasks.flat_map(|job| job.record.versions.values());
        let of_tasks: BTreeSet<&str> = versions.map(|version| &*version.spec.role).collect();
        let is_needed = |name: &str| demand.contains_key(name) || of_tasks.contains(name);
        self.by_name.retain(|name, _| is_needed(name));
        let trees: BTreeSet<&str> = self.by_name.keys().map(|name| top_of(name)).collect();
        self.collected.retain(|top, _| trees.contains(&**top));
    }

    /// Follows the demand of all jobs, counted before, and the roles of volumes to be released. Returns the calls that
    /// request the roles of jobs that the master has not accepted, suppress unneeded offers in accepted roles, and revive
    /// them when the demand grows.
    pub(super) fn follow_demand(
        &mut self,
        at: Duration,
        jobs: &Jobs,
        releasing: &ReleasedVolumes,
        is_connected: bool,
    ) -> Vec<Effect> {
        let mut looked_for = std::mem::take(&mut self.looked_for);
        looked_for.retain(|_, until| at < *until);
        let mut demand: BTreeMap<&str, Demand> = jobs.demand().by_role().collect();
        for role in releasing.roles() {
            demand.entry(role).or_default().all += 1;
        }
        for role in looked_for.keys() {
            let of_role = demand.entry(role).or_default();
            of_role.all += 1;
            of_role.anywhere += 1;
        }
        self.follow(at, &demand);
        self.forget(at, &demand, jobs);
        let calls = match is_connected {
            true => self.calls(at, &demand),
            false => Vec::new(),
        };
        self.looked_for = looked_for;
        calls
    }

    fn calls(&mut self, at: Duration, demand: &BTreeMap<&str, Demand>) -> Vec<Effect> {
        let mut calls = Vec::new();
        calls.extend(self.update(at).map(Effect::Roles));
        let (suppress, revive) = self.offer_calls(at, demand);
        if !suppress.is_empty() {
            calls.push(Effect::Suppress(suppress));
        }
        if !revive.is_empty() {
            calls.push(Effect::Revive(revive));
        }
        calls
    }

    /// Requests the offers of a role for a moment, for a plan. Returns false if they are requested already, or for too many
    /// other roles.
    pub(super) fn look_for(&mut self, at: Duration, role: &str) -> bool {
        if self.looked_for.contains_key(role) || self.looked_for.len() >= LOOKED_FOR_MAX {
            return false;
        }
        let until = at.saturating_add(LOOKED_FOR);
        self.looked_for.insert(role.to_owned(), until);
        true
    }

    /// Returns the text about a refused role; `None` if the role is not refused.
    pub(super) fn refused_text(&self, role: &str) -> Option<String> {
        let why = self.refusal(role)?;
        Some(format!("the master refuses role {role:?}: {why}"))
    }

    /// Returns the roles in which offers are no longer wanted, and those in which they are wanted again.
    fn offer_calls(
        &mut self,
        at: Duration,
        demand: &BTreeMap<&str, Demand>,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut suppress, mut revive) = (BTreeSet::new(), BTreeSet::new());
        for (name, role) in self.by_name.iter_mut().filter(|(_, role)| role.is_taken()) {
            let demand = demand.get(&**name).copied().unwrap_or_default();
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

/// Returns the role at the top of a role's tree.
pub(super) fn top_of(role: &str) -> &str {
    role.split_once('/').map_or(role, |(top, _)| top)
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
            let found = refused.iter().find(|name| update.roles.contains(**name));
            roles.answered(now, found.map(|name| format!("no {name}")));
            asked.push(update.roles);
        }
        asked
    }

    fn with(names: &[&str]) -> RoleSet {
        RoleSet {
            roles: set(names),
            ..RoleSet::default()
        }
    }

    #[test]
    fn taken_roles_are_requested_immediately() {
        let mut roles = roles(&["a", "b"]);
        assert_eq!(settle(&mut roles, at(0), &[]), [set(&["a", "b"])]);
        assert_eq!(roles.taken(), set(&["a", "b"]));
        assert_eq!(roles.update(at(1000)), None);
    }

    #[test]
    fn refused_role_is_retried_more_rarely() {
        let mut roles = roles(&["a", "b", "c"]);
        let asked = settle(&mut roles, at(0), &["b"]);
        let expected = [
            set(&["a", "b", "c"]),
            set(&["a"]),
            set(&["a", "b"]),
            // The query asks whether the master still accepts the accepted roles.
            set(&["a"]),
            set(&["a", "c"]),
        ];
        assert_eq!(asked, expected);
        assert_eq!(roles.taken(), set(&["a", "c"]));
        assert_eq!(roles.refusal("b"), Some("no b"));
        let mut times = Vec::new();
        for second in 1..2_000 {
            if !settle(&mut roles, at(second), &["b"]).is_empty() {
                times.push(second);
            }
        }
        assert_eq!(times, [10, 30, 70, 150, 310, 630, 1230, 1830]);
        // The master accepts `b` at last.
        assert_eq!(settle(&mut roles, at(3_000), &[]), [set(&["a", "b", "c"])]);
        assert_eq!(roles.refusal("b"), None);
    }

    #[test]
    fn refused_subscription_restarts_without_roles() {
        let mut roles = roles(&["a", "b"]);
        settle(&mut roles, at(0), &[]);
        roles.disconnected();
        roles.doubted();
        assert_eq!(roles.taken(), set(&[]));
        roles.subscribed(&with(&[]));
        settle(&mut roles, at(1), &["a"]);
        assert_eq!(roles.taken(), set(&["b"]));
    }

    #[test]
    fn gangs_of_nested_roles_share_turns() {
        let mut roles = roles(&["a/x", "a/y", "b"]);
        settle(&mut roles, at(0), &[]);
        for (second, name) in [(1, "a/x"), (2, "b")] {
            roles.began_to_collect(at(second), name);
            roles.ended_to_collect(at(second));
            roles.collected(at(second), name);
        }
        for name in ["a/x", "a/y", "b"] {
            roles.refused_to_collect(at(3), name);
        }
        // In the tree that has waited longest, the role that has waited longest comes next.
        let next = |roles: &Roles| {
            let may = ["a/x", "a/y", "b"].into_iter();
            may.filter(|name| roles.may_collect(at(4), name))
                .collect::<Vec<_>>()
        };
        assert_eq!(next(&roles), ["a/y"]);
        roles.began_to_collect(at(4), "a/y");
        roles.collected(at(4), "a/y");
        for name in ["a/x", "b"] {
            roles.refused_to_collect(at(4), name);
        }
        // `a/x` has waited longer than `b`, but its tree has not.
        assert_eq!(next(&roles), ["b"]);
    }

    #[test]
    fn answer_of_earlier_stream_is_ignored() {
        let mut roles = roles(&["a"]);
        assert!(roles.update(at(0)).is_some());
        roles.subscribed(&with(&[]));
        assert_eq!(roles.answered(at(1), None), None);
        assert_eq!(roles.taken(), set(&[]));
    }

    #[test]
    fn withdrawn_role_delays_no_new_role() {
        for (withdrawn, is_named) in [("a", true), ("c", true), ("b", false)] {
            let mut roles = roles(&["a", "b", "c"]);
            settle(&mut roles, at(0), &[]);
            for name in ["x", "y"] {
                roles.by_name.insert(name.to_owned(), Role::default());
            }
            let mut told = Vec::new();
            let mut left_out = BTreeSet::new();
            while let Some(update) = roles.update(at(1)) {
                let is_refused = update.roles.contains(withdrawn);
                if !is_refused {
                    left_out.extend(set(&["a", "b", "c"]).difference(&update.roles).cloned());
                }
                let why = match is_named {
                    true => format!("no {withdrawn}"),
                    false => "no".to_owned(),
                };
                told.extend(roles.answered(at(1), is_refused.then_some(why)));
            }
            assert_eq!(told, [withdrawn]);
            let mut left = set(&["a", "b", "c", "x", "y"]);
            left.remove(withdrawn);
            assert_eq!(roles.taken(), left);
            assert_eq!(roles.refusal("x"), None);
            // No other role was given up meanwhile, with its offers.
            assert_eq!(left_out, set(&[withdrawn]));
        }
    }

    #[test]
    fn several_withdrawn_roles_delay_no_others() {
        let mut roles = roles(&["a", "b", "c", "d"]);
        settle(&mut roles, at(0), &[]);
        roles.by_name.insert("x".to_owned(), Role::default());
        settle(&mut roles, at(1), &["b", "c"]);
        assert_eq!(roles.taken(), set(&["a", "d", "x"]));
        for name in ["b", "c"] {
            assert_eq!(roles.refusal(name), Some(&*format!("no {name}")));
        }
        // The master accepts the refused roles again.
        settle(&mut roles, at(100), &[]);
        assert_eq!(roles.taken(), set(&["a", "b", "c", "d", "x"]));
    }

    #[test]
    fn update_carries_the_suppressed_roles() {
        let mut roles = roles(&["a", "b"]);
        for role in roles.by_name.values_mut() {
            role.is_idle = true;
        }
        let first = roles.update(at(0)).expect("an update");
        assert_eq!(first.suppressed, set(&["a", "b"]));
        roles.answered(at(0), None);
        assert!(roles.is_suppressed("a"));
        // One role wants offers, and another role is added.
        let demand = Demand {
            all: 1,
            anywhere: 1,
        };
        let (suppress, revive) = roles.offer_calls(at(1), &[("a", demand)].into());
        assert_eq!((suppress, revive), (set(&[]), set(&["a"])));
        roles.by_name.insert("c".to_owned(), Role::default());
        let next = roles.update(at(2)).expect("an update");
        assert_eq!(next.suppressed, set(&["b"]));
        roles.answered(at(2), None);
        assert!(!roles.is_suppressed("c") && roles.is_suppressed("b"));
    }
}
