//! What a service lacks and has too much of: pure, from one job to tasks to kill and indexes to launch.
//!
//! Entered through [`plan`]. Invariants, for what is known: tasks never exceed `count + max_surge`, and no healthy task
//! is killed by an update while that would leave fewer than `count - max_unavailable` healthy ones. Of what has not been
//! heard of since the scheduler started, nothing is known: an update kills none of it.

use std::collections::HashSet;
use std::time::Duration;

use super::job::{Job, KillReason, Task, Wanted};
use crate::spec::{Kind, Update};

/// What is to be done for a service now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kills: Vec<(String, KillReason)>,
    pub(super) wanted: Vec<Wanted>,
    /// All instances are of the target and healthy.
    pub(super) is_done: bool,
    /// Healthy instances of the target.
    pub(super) new_healthy: usize,
    /// All canaries are healthy, and wait to be promoted.
    pub(super) awaits_promotion: bool,
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
    indexes: Vec<Index<'a>>,
    /// Tasks that may still be launched without exceeding the most that may exist.
    room: usize,
    /// New instances that may still be started by the update; none without one.
    allowed: usize,
    healthy: usize,
    plan: Plan,
}

/// Plans a service that is not being stopped.
pub(super) fn plan(job: &Job, at: Duration) -> Plan {
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
        indexes: Vec::new(),
        room: 0,
        allowed: usize::MAX,
        healthy: 0,
        plan: Plan::default(),
    };
    planner.sort();
    planner.limit();
    planner.fill();
    planner.replace();
    planner.plan
}

/// What is left of a gang of which a task has ended.
fn kills_of_gang(job: &Job) -> Vec<(String, KillReason)> {
    let left = job.tasks.iter().filter(|(_, task)| task.killing.is_none());
    left.map(|(id, _)| (id.clone(), KillReason::Gang)).collect()
}

impl<'a> Planner<'a> {
    fn is_healthy(&self, task: &Task) -> bool {
        let healthy_after = self.job.healthy_after(task.name.version);
        task.is_healthy(self.at, healthy_after)
    }

    /// Puts each task where it belongs; what is beyond the count goes, and what a stopped version has left, of which the
    /// kill was forgotten with a start of the scheduler.
    fn sort(&mut self) {
        let (target, is_updated) = (self.job.record.target, self.job.record.rollout.is_some());
        let mut indexes: Vec<Index<'a>> = Vec::new();
        indexes.resize_with(self.count, Index::default);
        for (id, task) in &self.job.tasks {
            let Some(index) = indexes.get_mut(task.name.index as usize) else {
                self.kill(id, task, KillReason::Scaled);
                continue;
            };
            if self.is_healthy(task) {
                self.healthy += 1;
            }
            if task.name.version != target && !is_updated {
                self.kill(id, task, KillReason::Updated);
            }
            if task.name.version == target && index.new.is_none() {
                index.new = Some(task);
            } else {
                index.old.push(task);
            }
        }
        let new = || indexes.iter().filter_map(|index| index.new);
        self.plan.new_healthy = new().filter(|task| self.is_healthy(task)).count();
        let is_old = indexes.iter().any(|index| !index.old.is_empty());
        self.plan.is_done = self.plan.new_healthy == self.count && !is_old;
        self.indexes = indexes;
    }

    fn limit(&mut self) {
        let surge = self.update.max_surge as usize;
        let Some(rollout) = &self.job.record.rollout else {
            self.room = self.count.saturating_sub(self.job.tasks.len());
            return;
        };
        self.room = (self.count + surge).saturating_sub(self.job.tasks.len());
        if rollout.reverting {
            return;
        }
        let new = self
            .indexes
            .iter()
            .filter(|index| index.new.is_some())
            .count();
        let old = self.indexes.iter().flat_map(|index| &index.old);
        let leaving = old.filter(|task| task.killing.is_some()).count();
        let budget = (surge + self.update.max_unavailable as usize).max(1);
        let in_flight = new - self.plan.new_healthy + leaving;
        self.allowed = budget.saturating_sub(in_flight);
        let canaries = self.update.canary as usize;
        if canaries > 0 && !rollout.promoted {
            self.allowed = self.allowed.min(canaries.saturating_sub(new + leaving));
            self.plan.awaits_promotion = self.plan.new_healthy >= canaries.min(self.count);
        }
        // A gang of which nothing runs starts in one version.
        if self.job.is_gang(self.job.record.target) && self.job.tasks.is_empty() {
            self.allowed = usize::MAX;
        }
        if rollout.halted.is_some() {
            self.allowed = 0;
        }
    }

    /// Launches where there is nothing, and beside what is old.
    fn fill(&mut self) {
        let from = self.job.record.rollout.as_ref().map(|rollout| rollout.from);
        for index in 0..self.count {
            let at = &self.indexes[index];
            if at.new.is_none() && at.old.is_empty() && self.room > 0 {
                // Outside of what the update may start, what was there before is kept up.
                let version = match from {
                    Some(from) if self.allowed == 0 => from,
                    _ => self.job.record.target,
                };
                self.launch(index, version);
            }
        }
        if self.update.max_surge == 0 || from.is_none() {
            return;
        }
        for index in 0..self.count {
            let at = &self.indexes[index];
            let is_old = at.new.is_none() && at.old.iter().any(|old| old.killing.is_none());
            if is_old && self.room > 0 && self.allowed > 0 {
                self.launch(index, self.job.record.target);
            }
        }
    }

    fn launch(&mut self, index: usize, version: u64) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.room -= 1;
        if version == self.job.record.target && self.allowed != usize::MAX {
            self.allowed -= 1;
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

    /// Kills what is old, as far as enough healthy ones are left.
    fn replace(&mut self) {
        let minimum = self
            .count
            .saturating_sub(self.update.max_unavailable as usize);
        let indexes = std::mem::take(&mut self.indexes);
        for index in &indexes {
            let is_replaced = index.new.is_some_and(|new| self.is_healthy(new));
            // One of several at an index is enough.
            let spare = index.old.iter().skip(usize::from(index.new.is_none()));
            let superfluous: Vec<_> = match is_replaced {
                true => index.old.iter().collect(),
                false => spare.collect(),
            };
            for old in superfluous {
                self.kill_old(old, minimum);
            }
        }
        let waiting = self.plan.wanted.iter().map(|wanted| wanted.index);
        let waiting: HashSet<u32> = waiting.collect();
        // Nothing is killed for a new one that may not be started.
        for index in &indexes {
            let [old] = index.old.as_slice() else {
                continue;
            };
            let is_waiting = waiting.contains(&old.name.index);
            if index.new.is_some() || is_waiting || old.killing.is_some() || self.allowed == 0 {
                continue;
            }
            if self.kill_old(old, minimum) && self.allowed != usize::MAX {
                self.allowed -= 1;
            }
        }
    }

    /// Kills one, unless it is healthy and needed, or may be; gives whether it is being killed.
    fn kill_old(&mut self, task: &Task, minimum: usize) -> bool {
        if task.killing.is_some() {
            return true;
        }
        if task.is_unheard {
            return false;
        }
        if self.is_healthy(task) {
            if self.healthy <= minimum {
                return false;
            }
            self.healthy -= 1;
        }
        self.kill(&task.name.to_string(), task, KillReason::Updated);
        true
    }

    fn kill(&mut self, id: &str, task: &Task, reason: KillReason) {
        if task.killing.is_none() {
            self.plan.kills.push((id.to_owned(), reason));
        }
    }
}
