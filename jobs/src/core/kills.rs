//! The order in which kills leave: as many as the queue to the master has room for, those of each role in turn.
//!
//! Invariant: calls of other kinds wait behind [`KILLS_MAX`] kills at most, however many tasks a job ends at once and
//! however many unknown tasks run. Neither the kills nor the launches of one job delay the kills of another job. A kill
//! leaves only after its reason is durable, so that the end of the task is no failure after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::reconciler;

use super::input::{Effect, Record};
use super::job::{Job, KILL_PAUSE, KillReason, Killing, Phase, Task};
use super::outbox::Deferred;
use super::records::Key;
use super::roles::top_of;
use super::state::State;
use super::task_name::TaskName;

/// Kills that may wait for the master, beside other calls: it processes them one by one, in a millisecond or two each.
pub(super) const KILLS_MAX: usize = 500;
/// The longest pause before an unanswered kill is repeated.
const KILL_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Unknown tasks to be killed that the scheduler remembers. It asks the master for the others once these kills have left.
const STRAYS_MAX: usize = 100_000;

/// Running tasks of a job that is gone or given up: the scheduler does not know them and kills them.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// The waiting kills by task id, with their agents.
    waiting: BTreeMap<String, Option<String>>,
    /// Whether there were more than the scheduler remembers.
    has_more: bool,
    /// The last time that kills of unknown tasks left.
    pressed: Duration,
}

impl Strays {
    pub(super) fn add(&mut self, id: &str, agent_id: Option<String>) {
        if self.waiting.len() >= STRAYS_MAX && !self.waiting.contains_key(id) {
            self.has_more = true;
            return;
        }
        self.waiting.insert(id.to_owned(), agent_id);
    }

    /// Removes a task that has ended and needs no kill.
    pub(super) fn remove(&mut self, id: &str) {
        self.waiting.remove(id);
    }
}

/// A job with kills that are due.
#[derive(Clone, Debug)]
struct Due {
    /// The role at the top of its tree. `None` for stray tasks, which have a share as a role has.
    role: Option<String>,
    job: String,
    kills: usize,
    /// The last time that kills of this job left.
    pressed: Duration,
}

impl State {
    /// Begins to kill a task, unless that has begun; the kill is sent at the end of a step.
    pub(super) fn ask_kill(&mut self, id: &str, reason: KillReason) {
        let at = self.clock.at;
        let Some(task) = self.task_mut(id) else {
            return;
        };
        if task.killing.is_some() {
            return;
        }
        task.killing = Some(Killing::begun(reason, at));
        let job = task.name.job.clone();
        self.pressing.insert(job.clone());
        self.dirty.insert(job);
    }

    /// Permits more kills: as many as there is room for beside the waiting ones.
    pub(super) fn allow_kills(&mut self, waiting: usize) {
        self.kills_left = KILLS_MAX.saturating_sub(waiting);
    }

    /// Sends due kills of the jobs that have new ones or whose pause is over. A kill that has not left can still be
    /// cancelled while its record is written; a kill without room becomes due again later.
    pub(super) fn press_kills(&mut self) {
        let pressing = std::mem::take(&mut self.pressing);
        if !self.is_connected || self.kills_left == 0 {
            return;
        }
        let at = self.clock.at;
        let due = pressing.into_iter().filter_map(|name| {
            let job = self.jobs.get(&name)?;
            let kills = job.tasks.values().filter(|task| is_due(task, at)).count();
            (kills > 0).then(|| Due {
                role: Some(top_of(job.role()).to_owned()),
                job: name,
                kills,
                pressed: job.pressed,
            })
        });
        let mut due: Vec<_> = due.collect();
        let strays = self.strays.waiting.len();
        due.extend((strays > 0).then(|| Due {
            role: None,
            job: String::new(),
            kills: strays,
            pressed: self.strays.pressed,
        }));
        for (name, kills) in in_turn(due, self.kills_left) {
            self.kills_left -= kills;
            let Some(job) = self.jobs.get_mut(&name) else {
                self.kill_strays(kills);
                continue;
            };
            for press in job.press(at, kills) {
                match press {
                    Press::Send(kill) => self.effects.push(kill),
                    Press::Write(record, kill) => {
                        self.outbox.write(record);
                        self.outbox.defer(kill);
                    }
                }
            }
        }
    }

    /// Sends a kill whose reason is durable.
    pub(super) fn release_kill(&mut self, id: &str) {
        let at = self.clock.at;
        let job = id.parse::<TaskName>().ok().map(|name| name.job);
        let job = job.and_then(|job| self.jobs.get_mut(&job));
        let kill = job.and_then(|job| job.kill(id, at));
        self.effects.extend(kill.filter(|_| self.is_connected));
    }

    fn kill_strays(&mut self, most: usize) {
        self.strays.pressed = self.clock.at;
        for _ in 0..most {
            let Some((task_id, agent_id)) = self.strays.waiting.pop_first() else {
                break;
            };
            let name = task_id.parse::<TaskName>().ok();
            // A later job of the same name has nothing to do with the task.
            let is_its_own = |name: &TaskName| {
                let job = self.jobs.get(&name.job);
                job.is_none_or(|job| job.record.born <= name.generation)
            };
            if let Some(name) = name.filter(is_its_own) {
                let text = "killed: it was replaced, or its job is gone";
                self.event(&name.job, Some(&task_id), text);
            }
            self.totals.strays_killed += 1;
            self.effects.push(Effect::Kill { task_id, agent_id });
        }
        if self.strays.waiting.is_empty() && std::mem::take(&mut self.strays.has_more) {
            let all = Effect::Reconcile(reconciler::Request::Implicit);
            self.effects.push(all);
        }
    }
}

/// The action for a kill that is due.
#[derive(Debug)]
enum Press {
    Send(Effect),
    /// The write of the kill's reason, which comes before the kill.
    Write(Record, Deferred),
}

impl Job {
    /// Returns at most `most` of the job's due kills.
    fn press(&mut self, at: Duration, most: usize) -> Vec<Press> {
        self.pressed = at;
        let due = self.tasks.iter().filter(|(_, task)| is_due(task, at));
        let due: Vec<String> = due.map(|(id, _)| id.clone()).take(most).collect();
        let pressed = due.into_iter().filter_map(|id| {
            let task = self.tasks.get_mut(&id)?;
            let killing = task.killing.as_ref()?;
            if killing.is_durable {
                return self.kill(&id, at).map(Press::Send);
            }
            task.record.killing = Some(killing.reason);
            let record = Key::Task(id.clone()).put(&task.record);
            Some(Press::Write(record, Deferred::Kill(id)))
        });
        pressed.collect()
    }

    /// Returns the kill of a task whose reason is durable.
    pub(super) fn kill(&mut self, id: &str, at: Duration) -> Option<Effect> {
        let task = self.tasks.get_mut(id)?;
        let killing = task.killing.as_mut()?;
        // A task that uses its whole grace period needs no second kill.
        let version = self.record.versions.get(&task.name.version);
        let version = version.or_else(|| self.record.versions.get(&self.record.target));
        let grace = version.map(|version| version.spec.task.kill_grace);
        let patience = grace.unwrap_or_default().saturating_add(KILL_PAUSE);
        let pause = killing.pause.max(patience.min(KILL_PAUSE_MAX));
        killing.is_durable = true;
        killing.next = at.saturating_add(pause);
        killing.pause = (pause * 2).min(KILL_PAUSE_MAX);
        Some(Effect::Kill {
            task_id: id.to_owned(),
            agent_id: Some(task.record.agent_id.clone()),
        })
    }
}

fn is_due(task: &Task, at: Duration) -> bool {
    let is_written = task.record.killing.is_some();
    let is_due = |killing: Killing| killing.next <= at && killing.is_durable == is_written;
    task.phase != Phase::Intended && task.killing.is_some_and(is_due)
}

/// Distributes `left` kills among jobs: each role gets its share before others use the rest, and within a role the job that
/// has waited longest goes first.
fn in_turn(mut due: Vec<Due>, mut left: usize) -> Vec<(String, usize)> {
    due.sort_by(|one, other| (one.pressed, &one.job).cmp(&(other.pressed, &other.job)));
    let roles: BTreeSet<&Option<String>> = due.iter().map(|one| &one.role).collect();
    let share = (left / roles.len().max(1)).max(1);
    let mut of_roles: BTreeMap<&Option<String>, usize> = BTreeMap::new();
    let mut given = vec![0; due.len()];
    for most in [share, usize::MAX] {
        for (one, given) in due.iter().zip(&mut given) {
            let of_role = of_roles.entry(&one.role).or_default();
            let more = (one.kills - *given)
                .min(left)
                .min(most.saturating_sub(*of_role));
            *given += more;
            *of_role += more;
            left -= more;
        }
    }
    let given: Vec<_> = due.iter().zip(given).collect();
    given
        .into_iter()
        .filter(|(_, kills)| *kills > 0)
        .map(|(one, kills)| (one.job.clone(), kills))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_kill_delays_no_other_job() {
        let due = |role: &str, job: &str, kills, pressed| Due {
            role: Some(role.to_owned()),
            job: job.to_owned(),
            kills,
            pressed: Duration::from_secs(pressed),
        };
        let given = |due: &[Due]| {
            let given = in_turn(due.to_vec(), 500);
            given.into_iter().collect::<BTreeMap<_, _>>()
        };
        let all = |expected: &[(&str, usize)]| {
            let expected = expected
                .iter()
                .map(|(job, kills)| ((*job).to_owned(), *kills));
            expected.collect::<BTreeMap<_, _>>()
        };
        let large = due("a", "a1", 100_000, 0);
        let small = due("z", "z1", 3, 9);
        assert_eq!(
            given(&[large.clone(), small.clone()]),
            all(&[("a1", 497), ("z1", 3)])
        );
        let both = [large.clone(), due("z", "z1", 9_000, 9)];
        assert_eq!(given(&both), all(&[("a1", 250), ("z1", 250)]));
        // Within one role, the longer wait goes first.
        let pressed = Due {
            pressed: Duration::from_secs(9),
            ..large
        };
        assert_eq!(
            given(&[pressed, due("a", "a2", 4, 8)]),
            all(&[("a1", 496), ("a2", 4)])
        );
        let many: Vec<_> = (0..800)
            .map(|index| due(&format!("r{index}"), &format!("j{index}"), 2, index))
            .collect();
        assert_eq!(given(&many).len(), 500);
        assert!(given(&many).contains_key("j0"));
    }
}
