//! The plan of a service: a pure function from one job to the tasks to kill and the indexes to launch.
//!
//! Entered through [`plan`]. Invariants, for known states: tasks never exceed `count + max_surge`, and no update kills a
//! healthy task while that would leave fewer than `count - max_unavailable` healthy ones. A rollback that finds no room
//! beside its tasks takes one less, so that it ends in one version. The state of a task is unknown until its first report
//! after a start: an update kills no such task. The cost of a plan grows with the existing tasks and volumes, and not with
//! the number of wanted tasks beyond those of one step.

use std::collections::HashSet;
use std::time::Duration;

use super::job::{Job, KillReason, Task, Wanted};
use super::offer_pool::PLACED_MAX;
use crate::spec::{Kind, Update};

/// The time after which a rollback without room for its new instances replaces them one at a time, whatever
/// `max_unavailable` says.
pub(super) const ROLLBACK_PATIENCE: Duration = Duration::from_secs(15);

/// Wanted instances that a plan lists: one step launches no more of a job.
pub(super) const WANTED_MAX: usize = PLACED_MAX;

#[cfg(test)]
thread_local! {
    /// Counts the instances to launch that were looked at.
    pub(super) static LOOKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The next actions for a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kills: Vec<(String, KillReason)>,
    pub(super) wanted: Vec<Wanted>,
    /// Further wanted instances, including those that pause after a failure.
    pub(super) wanted_beyond: usize,
    /// Whether all instances run the target and are healthy.
    pub(super) is_done: bool,
    /// Whether they have been healthy long enough for the target to count as good.
    pub(super) is_good: bool,
    /// Healthy instances of the target.
    pub(super) new_healthy: usize,
    /// Whether all canaries are healthy, and wait for a promotion.
    pub(super) awaits_promotion: bool,
    /// Only the absent agent of a volume stops the update.
    pub(super) waits_for_agent: bool,
}

/// The tasks of one index.
#[derive(Default)]
struct Index<'a> {
    new: Option<&'a Task>,
    old: Vec<&'a Task>,
}

struct Planner<'a> {
    job: &'a Job,
    at: Duration,
    update: Update,
    count: usize,
    /// The number of wanted instances without a volume that the plan lists.
    most: usize,
    /// The indexes with tasks, in order.
    indexes: Vec<(u32, Index<'a>)>,
    /// The number of tasks that may be launched before the limit on existing tasks is reached.
    room: usize,
    /// The number of new instances that the update may still start; 0 without an update.
    allowed: usize,
    healthy: usize,
    plan: Plan,
}

/// Plans a service that is not being stopped.
pub(super) fn plan(job: &Job, at: Duration) -> Plan {
    plan_within(job, at, WANTED_MAX)
}

/// Plans a service and lists about `most` wanted instances.
pub(super) fn plan_within(job: &Job, at: Duration, most: usize) -> Plan {
    let Some(spec) = job.spec() else {
        return Plan::default();
    };
    let Kind::Service(service) = &spec.kind else {
        return Plan::default();
    };
    if job.record.broken && !job.tasks.is_empty() {
        return Plan {
            kills: kills_of_gang(job),
            ..Plan::default()
        };
    }
    let mut planner = Planner {
        job,
        at,
        update: service.update,
        count: spec.count as usize,
        most,
        indexes: Vec::new(),
        room: 0,
        allowed: usize::MAX,
        healthy: 0,
        plan: Plan::default(),
    };
    planner.sort();
    planner.limit();
    planner.fill();
    let beside = planner.fill_beside();
    planner.replace(&beside);
    planner.note_away();
    planner.plan
}

/// Returns kills for the rest of a gang that lost a task.
fn kills_of_gang(job: &Job) -> Vec<(String, KillReason)> {
    let left = job.tasks.iter().filter(|(_, task)| task.killing.is_none());
    left.map(|(id, _)| (id.clone(), KillReason::Gang)).collect()
}

impl<'a> Planner<'a> {
    fn is_healthy(&self, task: &Task) -> bool {
        let healthy_after = self.job.healthy_after(task.name.version);
        task.is_healthy(self.at, healthy_after)
    }

    /// Whether a task waits for its agent, which has its volume. The task is not part of an update before its agent is
    /// back.
    fn is_away(&self, task: &Task) -> bool {
        task.record.unreachable.is_some() && self.job.is_bound(task)
    }

    /// Whether an instance without a task has a volume whose agent is not offered.
    fn is_volume_away(&self, wanted: &Wanted) -> bool {
        let volume = self.job.volume_of(wanted);
        volume.is_some_and(|volume| volume.obstacle.is_none() && !volume.record.is_unsettled())
    }

    /// Whether a replacement on another agent is to come for a task of the target.
    fn moves(&self, task: &Task) -> bool {
        let moving = &self.job.record.moving;
        !moving.is_empty() && moving.contains(&task.name.to_string())
    }

    /// Sorts the tasks by index. Kills tasks beyond the count, and tasks of a stopped version whose kill was forgotten at a
    /// start of the scheduler.
    fn sort(&mut self) {
        let (target, is_updated) = (self.job.record.target, self.job.record.rollout.is_some());
        let mut tasks: Vec<&'a Task> = Vec::new();
        for (id, task) in &self.job.tasks {
            if task.name.index as usize >= self.count {
                self.kill(id, task, KillReason::Scaled);
                continue;
            }
            if self.is_healthy(task) {
                self.healthy += 1;
            }
            if task.name.version != target && !is_updated {
                self.kill(id, task, KillReason::Updated);
            }
            tasks.push(task);
        }
        tasks.sort_by_key(|task| task.name.index);
        let mut indexes: Vec<(u32, Index<'a>)> = Vec::new();
        for of_index in tasks.chunk_by(|one, next| one.name.index == next.name.index) {
            let mut index = Index::default();
            for task in of_index {
                if task.name.version == target && index.new.is_none() && !self.moves(task) {
                    index.new = Some(task);
                } else {
                    index.old.push(task);
                }
            }
            let number = of_index.first().map(|task| task.name.index);
            indexes.extend(number.map(|number| (number, index)));
        }
        let new = || indexes.iter().filter_map(|(_, index)| index.new);
        self.plan.new_healthy = new().filter(|task| self.is_healthy(task)).count();
        let is_old = indexes.iter().any(|(_, index)| !index.old.is_empty());
        self.plan.is_done = self.plan.new_healthy == self.count && !is_old;
        let (at, pause) = (self.at, self.update.pause);
        self.plan.is_good = self.plan.is_done && new().all(|task| task.is_healthy(at, pause));
        self.indexes = indexes;
    }

    fn limit(&mut self) {
        let surge = self.update.max_surge as usize;
        let rollout = self.job.record.rollout.as_ref();
        let is_changed = rollout.is_some() || !self.job.record.moving.is_empty();
        let most = self.count + if is_changed { surge } else { 0 };
        self.room = most.saturating_sub(self.job.tasks.len());
        if !is_changed {
            return;
        }
        // A rollback to the last good version respects no limit but the minimum: the other version is known to be worse.
        let is_known_good = self.job.record.stable == Some(self.job.record.target);
        if is_known_good && rollout.is_some_and(|rollout| rollout.reverting) {
            return;
        }
        let new = self.indexes.iter().filter_map(|(_, index)| index.new);
        let new = new.filter(|task| !self.is_away(task)).count();
        let old = self.indexes.iter().flat_map(|(_, index)| &index.old);
        let leaving = old.filter(|task| task.killing.is_some() && !self.is_away(task));
        let leaving = leaving.count();
        let budget = (surge + self.update.max_unavailable as usize).max(1);
        let in_flight = new - self.plan.new_healthy + leaving;
        self.allowed = budget.saturating_sub(in_flight);
        let Some(rollout) = rollout else {
            return;
        };
        let canaries = self.update.canary as usize;
        if canaries > 0 && !rollout.promoted && !rollout.reverting {
            self.allowed = self.allowed.min(canaries.saturating_sub(new + leaving));
            self.plan.awaits_promotion = self.plan.new_healthy >= canaries.min(self.count);
        }
        // An empty gang starts in one version.
        if self.job.is_gang(self.job.record.target) && self.job.tasks.is_empty() {
            self.allowed = usize::MAX;
        }
        // The first instance does not wait.
        let pauses_until = self.job.progress.at.saturating_add(self.update.pause);
        let is_pausing = self.plan.new_healthy > 0 && self.at < pauses_until;
        if rollout.halted.is_some() || is_pausing {
            self.allowed = 0;
        }
    }

    /// Launches instances at empty indexes: lists as many as permitted, then those with volumes, and counts the others.
    fn fill(&mut self) {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        let taken: Vec<u32> = self.indexes.iter().map(|(index, _)| *index).collect();
        let is_free = |index: &u32| taken.binary_search(index).is_err();
        let (mut looked, mut from) = (0, 0);
        for index in (0..count).filter(is_free) {
            if self.room == 0 {
                return;
            }
            if self.plan.wanted.len() >= self.most {
                break;
            }
            self.fill_one(index);
            (looked, from) = (looked + 1, index + 1);
        }
        let volumes = self.job.volumes.range(from..);
        let volumes = volumes.map(|(index, _)| *index);
        for index in volumes.filter(|index| *index < count && is_free(index)) {
            if self.room == 0 {
                return;
            }
            self.fill_one(index);
            looked += 1;
        }
        let more = (self.count - taken.len() - looked).min(self.room);
        self.plan.wanted_beyond = more;
        self.room -= more;
        if self.allowed != usize::MAX {
            self.allowed = self.allowed.saturating_sub(more);
        }
    }

    fn fill_one(&mut self, index: u32) {
        // Indexes that the update may not start yet keep their earlier version.
        let version = match &self.job.record.rollout {
            Some(rollout) if self.allowed == 0 => rollout.from,
            _ => self.job.record.target,
        };
        self.launch(index, version);
    }

    /// Launches instances beside old ones, and returns their indexes.
    fn fill_beside(&mut self) -> HashSet<u32> {
        let is_changed = self.job.record.rollout.is_some() || !self.job.record.moving.is_empty();
        if self.update.max_surge == 0 || !is_changed {
            return HashSet::new();
        }
        let is_old =
            |at: &Index<'_>| at.new.is_none() && at.old.iter().any(|old| old.killing.is_none());
        let old = self.indexes.iter().filter(|(_, at)| is_old(at));
        let old: Vec<u32> = old.map(|(index, _)| *index).collect();
        let before = self.plan.wanted.len();
        for index in old {
            if self.room > 0 && self.allowed > 0 {
                self.launch(index, self.job.record.target);
            }
        }
        let beside = self.plan.wanted.iter().skip(before);
        beside.map(|wanted| wanted.index).collect()
    }

    fn launch(&mut self, index: u32, version: u64) {
        #[cfg(test)]
        LOOKED.set(LOOKED.get() + 1);
        self.room -= 1;
        if version == self.job.record.target && self.allowed != usize::MAX {
            self.allowed = self.allowed.saturating_sub(1);
        }
        let run = self.job.runs.get(&0);
        let not_before = run.map(|run| run.slot(index).not_before);
        if not_before.is_none_or(|not_before| not_before <= self.at) {
            self.plan.wanted.push(Wanted {
                run: 0,
                index,
                version,
            });
        }
    }

    /// Returns how many instances may be away during their replacement; some of the replacements wait for room beside them.
    fn max_unavailable(&self, waiting: &HashSet<u32>) -> usize {
        let most = self.update.max_unavailable as usize;
        let rollout = self.job.record.rollout.as_ref();
        let is_reverting = rollout.is_some_and(|rollout| rollout.reverting);
        let mut new = self.indexes.iter().filter_map(|(_, index)| index.new);
        let is_under_way = new.any(|task| !self.is_healthy(task));
        let waited = self.at.saturating_sub(self.job.progress.at);
        let is_stuck = !waiting.is_empty() && !is_under_way && waited > ROLLBACK_PATIENCE;
        match is_reverting && is_stuck {
            true => most.max(1),
            false => most,
        }
    }

    /// Kills old tasks while enough healthy ones remain; beside some of them new tasks wait for their launch.
    fn replace(&mut self, waiting: &HashSet<u32>) {
        let minimum = self.count.saturating_sub(self.max_unavailable(waiting));
        let indexes = std::mem::take(&mut self.indexes);
        for (_, index) in &indexes {
            let is_replaced = index.new.is_some_and(|new| self.is_healthy(new));
            // One of several tasks at an index is enough.
            let spare = index.old.iter().skip(usize::from(index.new.is_none()));
            let superfluous: Vec<_> = match is_replaced {
                true => index.old.iter().collect(),
                false => spare.collect(),
            };
            for old in superfluous {
                self.kill_old(old, minimum);
            }
        }
        // No task is killed for a new one that may not start. Tasks beside which a new one waits for its launch come last:
        // if there is no room for it, they make the room.
        for is_beside in [false, true] {
            for (_, index) in &indexes {
                let [old] = index.old.as_slice() else {
                    continue;
                };
                let is_of_turn = waiting.contains(&old.name.index) == is_beside;
                if index.new.is_some() || !is_of_turn || old.killing.is_some() {
                    continue;
                }
                if is_beside {
                    // The waiting instance beside it has been counted.
                    self.kill_old(old, minimum);
                } else if self.allowed > 0
                    && self.kill_old(old, minimum)
                    && self.allowed != usize::MAX
                {
                    self.allowed -= 1;
                }
            }
        }
        self.indexes = indexes;
    }

    /// Notes that only an absent agent stops the update.
    fn note_away(&mut self) {
        let is_in_flight = |index: &Index<'_>| {
            let mut new = index.new.into_iter();
            let is_coming = new.any(|task| !self.is_healthy(task) && !self.is_away(task));
            let mut old = index.old.iter();
            is_coming || old.any(|task| task.killing.is_some() && !self.is_away(task))
        };
        let wanted = &self.plan.wanted;
        let is_still =
            self.plan.kills.is_empty() && wanted.iter().all(|one| self.is_volume_away(one));
        let mut tasks = self.job.tasks.values();
        self.plan.waits_for_agent = is_still
            && (!wanted.is_empty() || tasks.any(|task| self.is_away(task)))
            && !self.indexes.iter().any(|(_, index)| is_in_flight(index));
    }

    /// Kills a task, unless it is healthy and needed, or may be; returns whether the task is being killed.
    fn kill_old(&mut self, task: &Task, minimum: usize) -> bool {
        if task.killing.is_some() {
            return true;
        }
        if task.is_unheard || self.is_away(task) {
            return false;
        }
        if self.is_healthy(task) {
            if self.healthy <= minimum {
                return false;
            }
            self.healthy -= 1;
        }
        let reason = match self.moves(task) {
            true => KillReason::Moved,
            false => KillReason::Updated,
        };
        self.kill(&task.name.to_string(), task, reason);
        true
    }

    fn kill(&mut self, id: &str, task: &Task, reason: KillReason) {
        if task.killing.is_none() {
            self.plan.kills.push((id.to_owned(), reason));
        }
    }
}
