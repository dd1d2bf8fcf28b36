//! The plan of a submission: the changes to the job, the places of its tasks, and the obstacles of tasks that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_resources::ResourceQuantities;
use serde::Serialize;

use super::changes::concerns_no_task;
use super::job::{Job, Task};
use super::launch::placed_of;
use super::names::job_before;
use super::offer_pool::{STEP_WORK_MAX, Work};
use super::quotas::{Change, Limited, Quotas};
use super::state::State;
use super::volume::Volume;
use crate::placement::{self, Offer, Placed, Why};
use crate::spec::{JobSpec, Kind};

/// Obstacles that are named.
const OBSTACLES_MAX: usize = 20;
/// Names in `after` that are followed for each waiting job: up to 10,000 jobs may wait in one chain.
pub(super) const AFTER_LOOKED_MAX: usize = 256;

/// The path prefix of environment variables in a specification.
const ENVIRONMENT: &str = ".task.env.";

/// The answer to a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanView {
    pub changes: Vec<String>,
    /// The number of tasks that fit in the offers seen last; a minimum if the obstacles say so.
    pub fits: usize,
    /// The number of tasks to launch, without those that continue unchanged.
    pub wants: usize,
    /// The number of tasks that continue unchanged.
    pub runs: usize,
    /// The places of the tasks that fit.
    pub places: Vec<PlaceView>,
    pub obstacles: Vec<String>,
    /// Whether a quota may block tasks without room.
    #[serde(skip)]
    pub may_be_limited: bool,
}

/// An agent on which tasks would be launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceView {
    pub hostname: String,
    pub agent_id: String,
    pub tasks: usize,
}

impl State {
    /// Plans a job, by its key, with known quotas; changes nothing.
    #[must_use]
    pub fn plan(&self, name: &str, spec: &JobSpec, quotas: &Quotas) -> PlanView {
        match self.check_submission(name, spec) {
            Ok(()) => self.plan_taken(name, spec, quotas),
            Err(refusal) => PlanView {
                changes: self.changes(name, spec),
                fits: 0,
                wants: spec.count as usize,
                runs: 0,
                places: Vec::new(),
                obstacles: vec![format!("it is refused: {refusal}")],
                may_be_limited: false,
            },
        }
    }

    /// Plans a job that the scheduler would accept.
    fn plan_taken(&self, name: &str, spec: &JobSpec, quotas: &Quotas) -> PlanView {
        let mut offers = self.seen_in(&spec.role);
        let placed = self.staying(name, spec);
        let wants = (spec.count as usize).saturating_sub(placed.len());
        let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
        let mut fit = |hostname: &str, agent_id: &str| {
            let place = (hostname.to_owned(), agent_id.to_owned());
            *places.entry(place).or_default() += 1;
        };
        // Instances return to their volumes; other instances find room in the rest.
        let returning = self.returning(name, spec, &placed);
        for (job, volume) in &returning {
            if fits_on_volume(job, spec, volume, &mut offers) {
                fit(&volume.record.hostname, &volume.record.agent_id);
            }
        }
        if let Some(obstacle) = self.no_room_beside(name, spec, &offers) {
            let limited = quotas.in_the_way(spec, Change::default);
            let limited = limited.map(|limited| limited.text);
            return PlanView {
                changes: self.changes(name, spec),
                fits: 0,
                wants,
                runs: placed.len(),
                places: Vec::new(),
                obstacles: limited.into_iter().chain([obstacle]).collect(),
                may_be_limited: true,
            };
        }
        self.give_back(name, spec, &mut offers);
        let others = wants.saturating_sub(returning.len());
        let most = Work::new(STEP_WORK_MAX).tasks_max(spec, offers.len());
        let placements = placement::place(spec, &placed, &offers, others.min(most));
        let is_partial = placements.len() == most && most < others;
        // An instance with a volume already has its part of the quota.
        let more = placements.len();
        for placement in placements {
            let offer = &offers[placement.offer];
            fit(&offer.hostname, &offer.agent_id);
        }
        let fits = places.values().sum();
        let may_be_limited = self.connection.is_open() && fits < wants && !is_partial && others > 0;
        let mut obstacles = match fits < wants {
            true if is_partial => vec![format!("a plan places {most} tasks at most: more may fit")],
            true => {
                let change = || Change {
                    more,
                    freed: self.freed_of_quota(name, spec),
                };
                let limited = may_be_limited.then(|| quotas.in_the_way(spec, change));
                self.in_the_way(spec, &placed, &offers, limited.flatten())
            }
            false => Vec::new(),
        };
        let present = self.jobs.get(name);
        if present.is_none_or(Job::is_before_its_start) {
            obstacles.extend(self.waits_for(name, spec));
        }
        let places = places.into_iter();
        let places = places.map(|((hostname, agent_id), tasks)| PlaceView {
            hostname,
            agent_id,
            tasks,
        });
        PlanView {
            changes: self.changes(name, spec),
            fits,
            wants,
            runs: placed.len(),
            places: places.collect(),
            obstacles,
            may_be_limited,
        }
    }

    /// The volumes to which instances would return.
    fn returning(&self, name: &str, spec: &JobSpec, staying: &[Placed]) -> Vec<(&Job, &Volume)> {
        let job = self.jobs.get(name);
        let job = job.filter(|_| spec.volume.is_some() && staying.is_empty());
        let volumes = job.into_iter().flat_map(|job| {
            let volumes = job.volumes.range(..spec.count);
            volumes.map(move |(_, volume)| (job, volume))
        });
        volumes.collect()
    }

    /// Returns why a running service cannot be replaced although each of its instances would find room: no instance may end
    /// before its replacement runs, and no offer has room for both.
    fn no_room_beside(&self, name: &str, spec: &JobSpec, offers: &[Offer]) -> Option<String> {
        let Kind::Service(service) = &spec.kind else {
            return None;
        };
        let job = self.jobs.get(name).filter(|_| self.connection.is_open())?;
        let is_replaced = self.given_back(name, spec).next().is_some();
        let runs = job.healthy(self.clock.at()) > 0 && job.record.stop.is_none();
        if !is_replaced || !runs || service.update.max_unavailable > 0 || offers.is_empty() {
            return None;
        }
        let has_room = !placement::place(spec, &[], offers, 1).is_empty();
        let text = "no offer has room for an instance beside those that run, and as max_unavailable is 0 none of these ends \
            before: make room, or set update.max_unavailable to 1";
        (!has_room).then(|| text.to_owned())
    }

    /// Adds the resources of the tasks that a submission replaces to the offers: the new tasks can use them, if not at
    /// once.
    fn give_back(&self, name: &str, spec: &JobSpec, offers: &mut [Offer]) {
        for (agent_id, of_task) in self.given_back(name, spec) {
            let mut offers = offers.iter_mut();
            if let Some(offer) = offers.find(|offer| offer.agent_id == agent_id) {
                offer.resources += &placement::requested(of_task);
            }
        }
    }

    /// Returns the resources of the replaced tasks that count in the quota of the new tasks' role.
    fn freed_of_quota(&self, name: &str, spec: &JobSpec) -> ResourceQuantities {
        let mut freed = ResourceQuantities::default();
        if self.role_of(name) == Some(&spec.role) {
            for (_, of_task) in self.given_back(name, spec) {
                freed += &placement::counted_by_quota(of_task);
            }
        }
        freed
    }

    /// Returns the replaced tasks: their agents and specifications.
    fn given_back<'a>(
        &'a self,
        name: &str,
        spec: &'a JobSpec,
    ) -> impl Iterator<Item = (&'a str, &'a JobSpec)> {
        let job = self.jobs.get(name).filter(|_| spec.volume.is_none());
        job.into_iter().flat_map(|job| {
            let kept = concerns_no_task(job, spec).then_some(job.record.target);
            let tasks = job.tasks.values();
            let replaced = tasks.filter(move |task| kept != Some(task.name.version));
            replaced.filter_map(|task| {
                let of_task = job.spec_of(task.name.version)?;
                Some((&*task.record.agent_id, &**of_task))
            })
        })
    }

    /// Returns the obstacles of the wanted tasks in the offers seen last; empty where another task would fit.
    pub(super) fn obstacles(&self, job: &Job, quotas: &Quotas) -> Vec<String> {
        match job.spec() {
            Some(spec) if job.demand(self.clock.at()) > 0 => {
                let placed: Vec<_> = job.tasks.values().map(placed_of).collect();
                let limited = self.limited(job, quotas);
                self.in_the_way(spec, &placed, &self.seen_in(&spec.role), limited)
            }
            _ => Vec::new(),
        }
    }

    /// Returns the quota that blocks a job's tasks; instances returning to volumes already have their part.
    pub(super) fn limited(&self, job: &Job, quotas: &Quotas) -> Option<Limited> {
        let spec = job.spec()?;
        // A gang starts as a whole.
        let others = || job.demand(self.clock.at()).saturating_sub(1);
        let change = || Change {
            more: spec.gang.map_or(0, |_| others()),
            ..Change::default()
        };
        let limited = quotas.in_the_way(spec, change);
        limited.filter(|_| job.demand_anywhere(self.clock.at(), &spec.role) > 0)
    }

    /// Returns the jobs that a job waits for before its start, if any.
    pub(super) fn waits_for(&self, key: &str, spec: &JobSpec) -> Option<String> {
        let is_satisfied = |job: &&Job| job.is_satisfied(self.clock.at());
        let before = spec.after.iter();
        let before = before.map(|name| (name, job_before(&self.jobs, spec, name)));
        let missing = before.filter(|(_, job)| job.filter(is_satisfied).is_none());
        let mut left = AFTER_LOOKED_MAX;
        let missing = missing.map(|(name, job)| match job {
            None => format!("{name}, which does not exist yet"),
            Some(job) if self.state_of(job) == "failed" => format!("{name}, which has failed"),
            Some(job) if job.record.stop.is_some() => format!("{name}, which is stopped"),
            Some(job) if self.is_after(job, key, &mut left) => {
                format!("{name}, which itself starts after {}", spec.name)
            }
            Some(_) => name.clone(),
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| format!("it starts after {}", missing.join(", ")))
    }

    /// Whether a job starts after another one, directly or indirectly, within a limited number of looks.
    fn is_after(&self, job: &Job, other: &str, left: &mut usize) -> bool {
        // The nearest come first: circles are mostly short.
        let (mut found, mut open) = (BTreeSet::new(), VecDeque::from([job]));
        while let Some(job) = open.pop_front() {
            if job.name == other {
                return true;
            }
            let Some(spec) = job.spec() else {
                continue;
            };
            for name in &spec.after {
                if *left == 0 {
                    return false;
                }
                *left -= 1;
                if let Some(before) = job_before(&self.jobs, spec, name)
                    && found.insert(&before.name)
                {
                    open.push_back(before);
                }
            }
        }
        false
    }

    fn seen_in(&self, role: &str) -> Vec<Offer> {
        self.seen.in_role(role).cloned().collect()
    }

    /// Returns the places of the tasks that a submission does not change: those of the target version, if the submission
    /// concerns no task.
    fn staying(&self, name: &str, spec: &JobSpec) -> Vec<Placed> {
        let job = self.jobs.get(name);
        let job = job.filter(|job| concerns_no_task(job, spec));
        let tasks = job.into_iter().flat_map(|job| {
            let of_target = |task: &&Task| task.name.version == job.record.target;
            job.tasks.values().filter(of_target)
        });
        let going_on = tasks.filter(|task| task.killing.is_none());
        going_on.map(placed_of).collect()
    }

    fn in_the_way(
        &self,
        spec: &JobSpec,
        placed: &[Placed],
        offers: &[Offer],
        limited: Option<Limited>,
    ) -> Vec<String> {
        if !self.connection.is_open() {
            return vec!["no master answers".to_owned()];
        }
        if let Some(refused) = self.roles.refused_text(&spec.role) {
            return vec![refused];
        }
        if offers.is_empty() && limited.is_none() {
            return vec![format!("no offers were seen in role {:?} yet", spec.role)];
        }
        let found = placement::obstacles(spec, placed, offers).into_iter();
        let of_limit = |why: &Why| {
            limited
                .as_ref()
                .is_some_and(|limited| limited.explains(why))
        };
        let found = found.filter(|(_, why)| !of_limit(why));
        let told = found.map(|(index, why)| format!("{}: {why}", offers[index].hostname));
        let limit = limited.iter().map(|limited| limited.text.clone());
        limit.chain(told).take(OBSTACLES_MAX).collect()
    }

    fn changes(&self, name: &str, spec: &JobSpec) -> Vec<String> {
        let Some(present) = self.jobs.get(name).and_then(|job| job.spec()) else {
            return vec![format!("job {:?} is new", spec.name)];
        };
        let (Ok(before), Ok(after)) =
            (serde_json::to_value(&**present), serde_json::to_value(spec))
        else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        compare("", &before, &after, &mut changes);
        changes
    }
}

/// Whether an instance fits beside its volume, which is offered or used by the replaced task. Takes its resources off the
/// offers.
fn fits_on_volume(job: &Job, spec: &JobSpec, volume: &Volume, offers: &mut [Offer]) -> bool {
    if let Ok(placement) = placement::place_on_volume(spec, &[], offers, &volume.id) {
        return offers[placement.offer].take(&placement).is_ok();
    }
    let mut tasks = job.tasks.values();
    let on_it = tasks.find(|task| task.record.volume.as_ref() == Some(&volume.id));
    let before = on_it.filter(|task| task.record.unreachable.is_none());
    let Some(before) = before.and_then(|task| job.spec_of(task.name.version)) else {
        return false;
    };
    let mut more = placement::requested(spec);
    more -= &placement::requested(before);
    if more.is_empty() {
        return true;
    }
    let mut offers = offers.iter_mut();
    let offer = offers.find(|offer| offer.agent_id == volume.record.agent_id);
    let part = offer.and_then(|offer| Some((offer.resources.cover(&more)?, offer)));
    part.is_some_and(|(part, offer)| offer.resources.try_sub_assign(&part).is_ok())
}

/// Appends each field that differs, by its path.
fn compare(
    path: &str,
    before: &serde_json::Value,
    after: &serde_json::Value,
    changes: &mut Vec<String>,
) {
    use serde_json::Value;
    if before == after {
        return;
    }
    if let Some(variable) = path.strip_prefix(ENVIRONMENT) {
        // The variable's value may be a secret.
        let change = match (before, after) {
            (Value::Null, _) => "is added",
            (_, Value::Null) => "is removed",
            _ => "has another value",
        };
        changes.push(format!("task.env.{variable}: {change}"));
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        changes.push(format!(
            "{}: {before} becomes {after}",
            path.trim_start_matches('.')
        ));
        return;
    };
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let of =
            |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
        compare(&format!("{path}.{key}"), &of(old), &of(new), changes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn variable_values_are_hidden() {
        let before =
            json!({ "count": 1, "task": { "env": { "A": "hidden", "B": "hidden", "C": "x" } } });
        let after =
            json!({ "count": 2, "task": { "env": { "A": "other", "C": "x", "D": "hidden" } } });
        let mut changes = Vec::new();
        super::compare("", &before, &after, &mut changes);
        let expected = [
            "count: 1 becomes 2",
            "task.env.A: has another value",
            "task.env.B: is removed",
            "task.env.D: is added",
        ];
        assert_eq!(changes, expected);
    }
}
