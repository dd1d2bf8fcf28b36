//! The tasks of a job that wait to be launched: their roles, their versions, and the groups that start together.
//!
//! Invariants: each version is launched in its own role; a version that fits nowhere blocks no other version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::job::{Job, Wanted, WantedGroup};
use super::records::RunRecord;
use super::runs::is_gang_too_large;
use crate::spec::GANG_MAX;

impl Job {
    /// Returns the number of missing tasks that could start now. For a batch, all waiting tasks count as soon as one of
    /// them could start.
    pub(super) fn demand(&self, at: Duration) -> usize {
        self.demand_of(at, &|_| true)
    }

    /// Returns the number of waiting tasks that need offers of one role: two versions may have different roles.
    pub(super) fn demand_in(&self, at: Duration, role: &str) -> usize {
        self.demand_of(at, &|version| self.role_of(version) == role)
    }

    fn demand_of(&self, at: Duration, is_counted: &dyn Fn(u64) -> bool) -> usize {
        #[cfg(test)]
        super::job::COUNTED.set(super::job::COUNTED.get() + 1);
        if self.record.stop.is_some() {
            return 0;
        }
        if self.is_service() {
            let wanted = self.wanted_of(is_counted);
            return match wanted > 0 && self.has_gang_too_large() {
                true => 0,
                false => wanted,
            };
        }
        if self.is_held || self.is_clearing() {
            return 0;
        }
        let waiting = self.active_runs().filter_map(|(number, record)| {
            let run = self.runs.get(&number)?;
            let waiting = &run.waiting;
            let first = waiting.first()?;
            let cannot_start =
                self.is_gang(record.version) && (is_gang_too_large(run) || run.live > 0);
            let is_due = first <= at && !cannot_start && is_counted(record.version);
            is_due.then_some(waiting.len())
        });
        waiting.sum()
    }

    /// Returns the next time at which a waiting task of a run may start. Only the passing of time changes this demand.
    pub(super) fn next_due_task(&self, at: Duration) -> Option<Duration> {
        let runs = self.active_runs();
        let firsts = runs.filter_map(|(number, _)| self.runs.get(&number)?.waiting.first());
        firsts.filter(|first| *first > at).min()
    }

    /// Returns how many instances of these versions are to be launched.
    fn wanted_of(&self, is_counted: &dyn Fn(u64) -> bool) -> usize {
        let target = is_counted(self.record.target);
        let beyond = if target { self.wanted_beyond } else { 0 };
        // Without an update, all instances have one version, and no search is needed.
        let from = self.record.rollout.as_ref().map(|rollout| rollout.from);
        let listed = match (target, from.is_none_or(|from| is_counted(from) == target)) {
            (true, true) => self.wanted.len(),
            (false, true) => 0,
            (_, false) => {
                let wanted = self.wanted.iter();
                wanted.filter(|one| is_counted(one.version)).count()
            }
        };
        listed + beyond
    }

    /// The number of tasks that wait in a role and may start on any agent: the others return to their volumes.
    pub(super) fn demand_anywhere(&self, at: Duration, role: &str) -> usize {
        let wanted = self.wanted.iter();
        let bound = match self.volumes.is_empty() {
            true => 0,
            false => wanted
                .filter(|one| self.role_of(one.version) == role)
                .filter(|one| self.volume_of(one).is_some())
                .count(),
        };
        self.demand_in(at, role).saturating_sub(bound)
    }

    /// Returns the roles whose offers it may need: that of its version, of the version that an update keeps up, and of its
    /// runs.
    pub(super) fn roles(&self) -> BTreeSet<&str> {
        let from = self.record.rollout.as_ref().map(|rollout| rollout.from);
        let runs = self.active_runs().map(|(_, run)| run.version);
        let versions = [self.record.target].into_iter().chain(from).chain(runs);
        versions.map(|version| self.role_of(version)).collect()
    }

    fn role_of(&self, version: u64) -> &str {
        self.spec_of(version)
            .map(|spec| &*spec.role)
            .unwrap_or_default()
    }

    /// Returns the task groups that the job wants to launch in offers of a role, about `limit` tasks. Each group has one
    /// version: where one group does not fit, another may.
    pub(super) fn wants(&self, at: Duration, role: &str, limit: usize) -> Vec<WantedGroup> {
        if self.record.stop.is_some() {
            return Vec::new();
        }
        if !self.is_service() {
            return match self.is_held || self.is_clearing() {
                true => Vec::new(),
                false => self.wants_of_runs(at, role, limit),
            };
        }
        let is_gang = self.is_gang(self.record.target) && self.tasks.is_empty();
        let count = self.spec().map_or(0, |spec| spec.count as usize);
        // While the gang is incomplete, its other members pause after failures.
        if is_gang && (self.wanted.len() < count || self.has_gang_too_large()) {
            return Vec::new();
        }
        let most = if is_gang { GANG_MAX as usize } else { limit };
        let wanted = self.wanted.iter();
        let wanted = wanted.filter(|one| self.role_of(one.version) == role);
        let mut versions: BTreeMap<u64, Vec<Wanted>> = BTreeMap::new();
        for one in wanted.take(most) {
            versions.entry(one.version).or_default().push(*one);
        }
        let groups = versions.into_iter();
        groups
            .map(|(version, tasks)| WantedGroup {
                version,
                tasks,
                is_gang,
            })
            .collect()
    }

    fn wants_of_runs(&self, at: Duration, role: &str, limit: usize) -> Vec<WantedGroup> {
        let of_role = |(_, record): &(u64, &RunRecord)| self.role_of(record.version) == role;
        let runs: Vec<_> = self.active_runs().filter(of_role).collect();
        let versions: BTreeSet<u64> = runs.iter().map(|(_, record)| record.version).collect();
        // A version that fits nowhere leaves the other versions their part of the step's work.
        let most = limit.div_ceil(versions.len().max(1));
        let mut groups: Vec<WantedGroup> = Vec::new();
        for (number, record) in runs {
            let Some(run) = self.runs.get(&number) else {
                continue;
            };
            let version = record.version;
            let all = run.waiting.ready(at).map(|index| Wanted {
                run: number,
                index,
                version,
            });
            let is_gang = self.is_gang(version);
            if is_gang {
                let is_whole = run.live == 0
                    && !is_gang_too_large(run)
                    && run.waiting.last().is_none_or(|last| last <= at);
                let tasks: Vec<_> = all.filter(|_| is_whole).collect();
                groups.extend((!tasks.is_empty()).then_some(WantedGroup {
                    version,
                    tasks,
                    is_gang,
                }));
                continue;
            }
            let known = groups.iter().position(|group| group.version == version);
            let at = known.unwrap_or(groups.len());
            if known.is_none() {
                groups.push(WantedGroup {
                    version,
                    tasks: Vec::new(),
                    is_gang,
                });
            }
            let group = &mut groups[at].tasks;
            group.extend(all.take(most - group.len().min(most)));
        }
        groups.retain(|group| !group.tasks.is_empty());
        groups
    }
}
