//! Spread over the whole cluster: the agents that a spread job waits for, the time that it waits, and the balance of its
//! tasks.
//!
//! The offers of one step show a part of the cluster: a quota may be worth one agent, and other frameworks may hold the
//! rest. Placement knows the agents that the master lists, and leaves an offer whose values have more tasks than those of
//! an agent that is not offered. Invariant: a job waits [`AWAITED_FOR`] at most for the same values, and [`HELD_OUT_MAX`]
//! in all before it places the tasks that fit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::job::Job;
use super::jobs::Jobs;
use super::launch::placed_of;
use crate::placement::{self, Offer, Place, Placed, SpreadValues, Why};
use crate::spec::{JobSpec, Kind, Rule};

/// The time for which tasks wait for an agent with other values, while they would fit elsewhere. A master offers each
/// second. A framework that holds offers gives them back in some seconds, and may get the next offer of the agent as well.
const AWAITED_FOR: Duration = Duration::from_secs(20);
/// The time for which a job waits in all, since it began to wait or placed its last task.
const HELD_OUT_MAX: Duration = Duration::from_secs(60);
/// The filter of offers declined meanwhile, so that a quota worth one agent visits all other agents in turn. The core
/// revives all offers once a task was placed or the wait is over.
pub(super) const REFUSE_MEANWHILE: Duration = Duration::from_secs(22);
/// Agents that are known. A cluster has 10,000 of them.
const AGENTS_MAX: usize = 50_000;
/// Values for which a job remembers the start of its wait.
const VALUES_MAX: usize = 1_000;
/// Values that an obstacle names where tasks are spread unevenly.
const NAMED_MAX: usize = 10;

/// The agents of the cluster, and those that spread jobs wait for.
#[derive(Debug, Default)]
pub(super) struct Spreads {
    /// The agents as the master lists them, with their resources that are free for any role.
    agents: BTreeMap<String, Offer>,
    /// The waits by job.
    waits: BTreeMap<String, Waits>,
}

/// The agents that a spread job waits for.
#[derive(Debug, Default)]
struct Waits {
    /// The time when the wait began or the last task was placed.
    since: Duration,
    /// The start of the wait for each value.
    values: BTreeMap<SpreadValues, Duration>,
    /// The number of values waited for in vain when all offers were last revived.
    in_vain: usize,
}

impl Spreads {
    /// Replaces the list of agents.
    pub(super) fn replace_agents(&mut self, agents: Vec<Offer>) {
        let agents = agents.into_iter().take(AGENTS_MAX);
        self.agents = agents.map(|one| (one.agent_id.clone(), one)).collect();
    }

    pub(super) fn remove_agent(&mut self, agent_id: &str) {
        self.agents.remove(agent_id);
    }

    pub(super) fn agent_count(&self) -> usize {
        self.agents.len()
    }

    /// Returns the values of agents that are not among the offers and have room, and for which a job still waits.
    pub(super) fn unoffered(
        &mut self,
        at: Duration,
        (name, is_moving): (&str, bool),
        spec: &JobSpec,
        placed: &[Placed],
        offers: &[Offer],
    ) -> BTreeSet<SpreadValues> {
        if !spec.is_spread() {
            return BTreeSet::new();
        }
        // A quota leaves only a rest of some agents, such as ports, which holds no task.
        let fits = placement::fit_each(spec, placed, offers);
        let fitting = offers.iter().zip(fits).filter(|(_, fits)| fits.is_ok());
        let offered: BTreeMap<&str, &Offer> = fitting
            .map(|(offer, _)| (&*offer.agent_id, offer))
            .collect();
        if let Some(waits) = self.waits.get_mut(name) {
            if !is_moving && at >= waits.since.saturating_add(HELD_OUT_MAX) {
                return BTreeSet::new();
            }
            // Offered values start a new wait once they are no longer offered.
            for offer in offered.values() {
                waits.values.remove(&placement::spread_values(spec, offer));
            }
        }
        let waits = self.waits.get(name);
        let is_given_up = |values: &SpreadValues| {
            let since = waits.and_then(|waits| waits.values.get(values));
            !is_moving && since.is_some_and(|since| at >= since.saturating_add(AWAITED_FOR))
        };
        let agents = self.agents.values();
        let agents = agents.filter(|agent| !offered.contains_key(&*agent.agent_id));
        let agents: Vec<&Offer> = agents.collect();
        let fits = placement::fit_each(spec, placed, agents.iter().copied());
        let fitting = agents.iter().zip(fits).filter(|(_, fits)| fits.is_ok());
        let values = fitting.map(|(agent, _)| placement::spread_values(spec, agent));
        values.filter(|values| !is_given_up(values)).collect()
    }

    /// Notes the values for which a job waits from now on, and whether the job has placed tasks. Returns whether the core
    /// revives all offers of the job's role.
    pub(super) fn note(
        &mut self,
        at: Duration,
        name: &str,
        has_placed: bool,
        awaited: BTreeSet<SpreadValues>,
    ) -> bool {
        if awaited.is_empty() && !self.waits.contains_key(name) {
            return false;
        }
        let waits = self.waits.entry(name.to_owned());
        let waits = waits.or_insert_with(|| Waits {
            since: at,
            ..Waits::default()
        });
        if has_placed {
            waits.since = at;
        }
        // Those beyond are waited for until the job has waited in all.
        for values in awaited.into_iter().take(VALUES_MAX) {
            if waits.values.len() >= VALUES_MAX && !waits.values.contains_key(&values) {
                continue;
            }
            waits.values.entry(values).or_insert(at);
        }
        has_placed
    }

    /// Forgets the waits of jobs that lack nothing, and ends waits in vain. Returns the roles in which the core revives the
    /// offers declined meanwhile.
    pub(super) fn end_waits(&mut self, at: Duration, jobs: &Jobs) -> Vec<String> {
        let mut roles = Vec::new();
        self.waits
            .retain(|name, _| jobs.get(name).is_some_and(|job| job.demand(at) > 0));
        for (name, waits) in &mut self.waits {
            let since = waits.values.values();
            let in_vain = since.filter(|since| at >= since.saturating_add(AWAITED_FOR));
            let before = std::mem::replace(&mut waits.in_vain, in_vain.count());
            if waits.in_vain > before
                && let Some(job) = jobs.get(name)
            {
                roles.push(job.role().to_owned());
            }
        }
        roles
    }

    /// Returns the imbalance of a job over its spread attribute, and the reason why other values are unused: "3 of 3 on
    /// rack r1: r2, r3 not offered".
    pub(super) fn uneven(&self, job: &Job) -> Option<String> {
        let spec = job.spec()?;
        let spread = spec
            .constraints
            .iter()
            .find(|one| one.rule == Rule::Spread)?;
        let attribute = spread.attribute.as_str();
        let placed: Vec<_> = job.tasks.values().map(placed_of).collect();
        // Each value has its tasks, and whether another would fit there.
        let mut values: BTreeMap<String, (usize, bool)> = BTreeMap::new();
        for task in &placed {
            let value = Place::from(task).value(attribute).unwrap_or("(none)");
            values.entry(value.to_owned()).or_default().0 += 1;
        }
        let fits = placement::fit_each(spec, &placed, self.agents.values());
        for (agent, fits) in self.agents.values().zip(fits) {
            let why = fits.err();
            let may_run = matches!(why, None | Some(Why::Short { .. }));
            let value = Place::from(agent).value(attribute);
            if let Some(value) = value.filter(|_| may_run) {
                values.entry(value.to_owned()).or_default().1 |= why.is_none();
            }
        }
        let (fullest, (most, _)) = values.iter().max_by_key(|(_, (count, _))| *count)?;
        let sparse = values.iter().filter(|(_, (count, _))| count + 1 < *most);
        let (free, full): (Vec<_>, Vec<_>) = sparse.partition(|(_, (_, has_room))| *has_room);
        let named = |values: &[(&String, &(usize, bool))]| {
            let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
            let beyond = names.len().saturating_sub(NAMED_MAX);
            let list = names[..names.len() - beyond].join(", ");
            match beyond {
                0 => list,
                _ => format!("{list} and {beyond} more"),
            }
        };
        let reasons: Vec<String> = [(free, "not offered"), (full, "full")]
            .into_iter()
            .filter(|(values, _)| !values.is_empty())
            .map(|(values, why)| format!("{} {why}", named(&values)))
            .collect();
        if reasons.is_empty() {
            return None;
        }
        let total = placed.len();
        let reasons = reasons.join("; ");
        Some(format!(
            "{most} of {total} on {attribute} {fullest}: {reasons}"
        ))
    }

    /// Returns the tasks whose move spreads a job more evenly.
    pub(super) fn to_move(&self, job: &Job, spec: &JobSpec) -> BTreeSet<String> {
        let attributes = spec.constraints.iter();
        let mut attributes = attributes.filter(|one| one.rule == Rule::Spread);
        let Some(attribute) = attributes.next().map(|one| one.attribute.as_str()) else {
            return BTreeSet::new();
        };
        let mut tasks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (id, task) in job.tasks.iter().filter(|(_, task)| task.killing.is_none()) {
            let value = match attribute {
                "@hostname" => Some(&*task.record.hostname),
                "@agent_id" => Some(&*task.record.agent_id),
                name => task.record.attributes.get(name).map(String::as_str),
            };
            tasks
                .entry(value.unwrap_or_default())
                .or_default()
                .push(id.clone());
        }
        let mut room: BTreeMap<&str, usize> = BTreeMap::new();
        // Placed tasks do not count here: a moved task leaves its place.
        let fits = placement::fit_each(spec, &[], self.agents.values());
        for (agent, fits) in self.agents.values().zip(fits) {
            if fits.is_ok() {
                let value = Place::from(agent).value(attribute).unwrap_or_default();
                let free = placement::room(spec, std::slice::from_ref(agent));
                *room.entry(value).or_default() += free;
            }
        }
        let mut counts: BTreeMap<&str, usize> = room.keys().map(|value| (*value, 0)).collect();
        counts.extend(tasks.iter().map(|(value, tasks)| (*value, tasks.len())));
        let mut moving = BTreeSet::new();
        loop {
            let fullest = counts.iter().max_by_key(|(_, count)| **count);
            let free = counts
                .iter()
                .filter(|(value, _)| room.get(*value).is_some_and(|room| *room > 0));
            let emptiest = free.min_by_key(|(_, count)| **count);
            let (Some((from, most)), Some((to, least))) = (fullest, emptiest) else {
                return moving;
            };
            if *most < least + 2 {
                return moving;
            }
            let (from, to) = (*from, *to);
            let Some(id) = tasks.get_mut(from).and_then(Vec::pop) else {
                return moving;
            };
            moving.insert(id);
            *counts.entry(from).or_default() -= 1;
            *counts.entry(to).or_default() += 1;
            *room.entry(to).or_default() -= 1;
        }
    }
}

/// Returns why `rebalance` never moves instances of such a job, behind its name.
pub(super) fn never_moves(spec: &JobSpec) -> Option<&'static str> {
    if !matches!(spec.kind, Kind::Service(_)) {
        return Some("is not a service: only instances of services can be rebalanced");
    }
    if spec.volume.is_some() {
        return Some("has volumes, which stay on their agents: its instances cannot be rebalanced");
    }
    if spec.gang.is_some() {
        return Some(
            "is a gang, whose instances start together: none of them can be rebalanced alone; restart the job to place all of them anew",
        );
    }
    if !spec.is_spread() {
        return Some("has no constraint with `spread`: there is nothing to rebalance");
    }
    None
}
