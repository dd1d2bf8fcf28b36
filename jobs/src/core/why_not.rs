//! The reason why a job makes no progress, in the words of an operator: its obstacle, and its last failure.

use meseta_daemon::calendar::utc;

use super::job::Job;
use super::quotas::Quotas;
use super::records::FailedUpdate;
use super::state::State;
use super::view::FailureView;
use crate::spec::{GANG_MAX, Kind};

impl State {
    /// Returns the obstacles, in an operator's words.
    pub(super) fn why(&self, job: &Job, quotas: &Quotas) -> String {
        if let Some(why) = job
            .record
            .rollout
            .as_ref()
            .and_then(|rollout| rollout.halted.as_ref())
        {
            return format!("the update was given up: {why}{}", last_text(job));
        }
        let waits = self.why_waiting(job, quotas);
        match &job.record.failed {
            Some(why) if self.state_of(job) == "failed" => {
                let version = job.record.target;
                let rest = if waits.is_empty() { "" } else { "; " };
                let last = match waits.contains(LAST) {
                    true => String::new(),
                    false => last_text(job),
                };
                format!("version {version} has failed: {why}{rest}{waits}{last}")
            }
            _ if self.state_of(job) == "failed" => {
                let failed = job.record.over.last().map_or(0, |run| run.failed);
                let tasks = if failed == 1 {
                    "task has"
                } else {
                    "tasks have"
                };
                format!("{failed} {tasks} failed for good{}", last_text(job))
            }
            _ => match failed_update_text(job) {
                Some(text) if waits.is_empty() => text,
                Some(text) => format!("{text}; {waits}"),
                None => waits,
            },
        }
    }

    /// Returns the obstacles in addition to a failure.
    fn why_waiting(&self, job: &Job, quotas: &Quotas) -> String {
        let at = self.clock.at();
        let spec = job.spec().filter(|_| job.is_before_its_start());
        if let Some(waits) = spec.and_then(|spec| self.waits_for(&job.name, spec)) {
            return waits;
        }
        let is_broken = job.record.broken || job.broken_runs().next().is_some();
        if is_broken && job.record.stop.is_none() {
            return "a task of its gang has ended: the others end before all start anew".to_owned();
        }
        if job.is_clearing() {
            return "it waits for the tasks of a run that was cancelled to end".to_owned();
        }
        if let Some(time) = job.put_off_time(self.clock.unix()) {
            let time = utc(time.as_secs_f64());
            return format!(
                "its run of {time} is put off: it is not known yet whether the one before has ended"
            );
        }
        if job.has_gang_too_large() {
            return format!(
                "a gang has {GANG_MAX} tasks at most: submit it anew with a lower count"
            );
        }
        if let Some(why) = self
            .waits_for_volume(job)
            .filter(|_| self.connection.is_open())
        {
            return why;
        }
        let demand = job.demand(at);
        if demand > 0 {
            let role = job.role();
            if let Some(refused) = self
                .roles
                .refused_text(role)
                .filter(|_| self.connection.is_open())
            {
                return refused;
            }
            if !self.connection.is_open() {
                return "no master answers".to_owned();
            }
            let beside = beside_text(job);
            return match self.limited(job, quotas) {
                Some(limited) if demand == 1 => format!("a task waits: {}{beside}", limited.text),
                Some(limited) => format!("{demand} tasks wait: {}{beside}", limited.text),
                None if demand == 1 => format!("a task waits for an offer that it fits{beside}"),
                None => format!("{demand} tasks wait for offers that they fit{beside}"),
            };
        }
        let waits = |slot: &&super::records::Slot| slot.not_before > at;
        let slots = job.runs.values().flat_map(|run| &run.slots);
        match slots.filter(waits).count() {
            0 => String::new(),
            1 => format!(
                "a task has failed and waits to start again{}",
                last_text(job)
            ),
            count => format!(
                "{count} tasks have failed and wait to start again{}",
                last_text(job)
            ),
        }
    }

    pub(super) fn failure_view(&self, job: &Job) -> Option<FailureView> {
        let failure = job.record.failure.as_ref()?;
        let at = self.clock.at();
        let slots = job.runs.values().flat_map(|run| &run.slots);
        let waiting = slots.filter(|slot| slot.failures > 0 && slot.not_before > at);
        let next = waiting.map(|slot| slot.not_before).min();
        let left = next.map(|next| next.saturating_sub(at));
        Some(FailureView {
            task_id: failure.task_id.clone(),
            agent_id: failure.agent_id.clone(),
            time: failure.time.as_secs(),
            text: failure.text.clone(),
            failures: failure.count,
            next_attempt: left.map(|left| (self.clock.unix() + left).as_secs()),
        })
    }
}

/// Returns the text for an update whose instances need room beside the running ones, since none of these may end first.
fn beside_text(job: &Job) -> &'static str {
    let rollout = job.record.rollout.as_ref();
    let is_updated = rollout.is_some_and(|rollout| !rollout.reverting);
    let update = job.spec().and_then(|spec| match &spec.kind {
        Kind::Service(service) => Some(service.update),
        _ => None,
    });
    let is_beside = is_updated && update.is_some_and(|update| update.max_unavailable == 0);
    match is_beside && !job.tasks.is_empty() {
        true => {
            "; as max_unavailable is 0, the update needs room beside the instances that run: make some, or set it to 1"
        }
        false => "",
    }
}

/// Returns the text about the version from which a service went back by itself.
fn failed_update_text(job: &Job) -> Option<String> {
    let failed = job.record.failed_update.as_ref()?;
    let FailedUpdate { version, why } = failed;
    let is_shown = job.record.stop.is_none();
    is_shown.then(|| format!("version {version} was taken back: {why}"))
}

/// The text before the last failure, in the reason why a job makes no progress.
const LAST: &str = "; the last: ";

/// Returns the last failure as a suffix of the reason.
pub(super) fn last_text(job: &Job) -> String {
    let failure = job.record.failure.as_ref();
    failure.map_or_else(String::new, |failure| {
        format!("{LAST}{} {}", failure.task_id, failure.text)
    })
}
