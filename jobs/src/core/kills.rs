//! The order in which kills leave: as many as the queue to the master has room for, those of each role in turn.
//!
//! Invariant: calls of other kinds wait behind [`KILLS_MAX`] kills at most, however many tasks a job ends at once and
//! however many unknown tasks run. Neither the kills nor the launches of one job delay the kills of another job. A kill
//! leaves only after its reason is durable, so that the end of the task is no failure after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::input::{Effect, Record};
use super::job::{Job, KILL_PAUSE, Killing, Phase, Task};
use super::jobs::Jobs;
use super::outbox::Deferred;
use super::records::Key;
use super::roles::top_of;
use super::task_name::TaskName;

/// Kills that may wait for the master, beside other calls: it processes them one by one, in a millisecond or two each.
pub(super) const KILLS_MAX: usize = 500;
/// The longest pause before an unanswered kill is repeated.
const KILL_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Unknown tasks to be killed that the scheduler remembers. It asks the master for the others once these kills have left.
const STRAYS_MAX: usize = 100_000;

/// Running tasks of a job that is gone or given up: the scheduler does not know them and kills them.
#[derive(Debug, Default)]
struct Strays {
    /// The waiting kills by task id, with their agents.
    waiting: BTreeMap<String, Option<String>>,
    /// Whether there were more than the scheduler remembers.
    has_more: bool,
    /// The last time that kills of unknown tasks left.
    pressed: Duration,
}

impl Strays {
    fn add(&mut self, id: &str, agent_id: Option<String>) {
        if self.waiting.len() >= STRAYS_MAX && !self.waiting.contains_key(id) {
            self.has_more = true;
            return;
        }
        self.waiting.insert(id.to_owned(), agent_id);
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

/// The jobs with kills, the stray tasks, and the room for kills in the queue to the master.
#[derive(Debug)]
pub(super) struct KillQueue {
    /// The jobs that may have due kills.
    jobs: BTreeSet<String>,
    /// The number of kills that may be sent before time passes.
    left: usize,
    strays: Strays,
}

impl Default for KillQueue {
    fn default() -> Self {
        Self {
            jobs: BTreeSet::new(),
            left: KILLS_MAX,
            strays: Strays::default(),
        }
    }
}

impl KillQueue {
    /// Notes that a job may have due kills.
    pub(super) fn add_job(&mut self, key: String) {
        self.jobs.insert(key);
    }

    pub(super) fn add_jobs<'a>(&mut self, keys: impl Iterator<Item = &'a String>) {
        self.jobs.extend(keys.cloned());
    }

    pub(super) fn remove_job(&mut self, key: &str) {
        self.jobs.remove(key);
    }

    pub(super) fn add_stray(&mut self, id: &str, agent_id: Option<String>) {
        self.strays.add(id, agent_id);
    }

    /// Removes a stray task that has ended and needs no kill.
    pub(super) fn remove_stray(&mut self, id: &str) {
        self.strays.waiting.remove(id);
    }

    pub(super) fn forget_strays(&mut self) {
        self.strays = Strays::default();
    }

    /// Permits more kills: as many as there is room for beside the waiting ones.
    pub(super) fn allow(&mut self, waiting: usize) {
        self.left = KILLS_MAX.saturating_sub(waiting);
    }

    /// Returns due kills of the jobs that have new ones or whose pause is over. A kill that has not left can still be
    /// cancelled while its record is written; a kill without room becomes due again later.
    pub(super) fn press(
        &mut self,
        at: Duration,
        jobs: &mut Jobs,
        is_connected: bool,
    ) -> Vec<Press> {
        let pressing = std::mem::take(&mut self.jobs);
        if !is_connected || self.left == 0 {
            return Vec::new();
        }
        let due = pressing.into_iter().filter_map(|name| {
            let job = jobs.get(&name)?;
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
        let mut presses = Vec::new();
        for (name, kills) in in_turn(due, self.left) {
            self.left -= kills;
            match jobs.get_mut(&name) {
                Some(job) => presses.extend(press_job(job, at, kills)),
                None => presses.extend(self.strays.press(at, jobs, kills)),
            }
        }
        presses
    }
}

impl Strays {
    /// Returns the kills of at most `most` stray tasks.
    fn press(&mut self, at: Duration, jobs: &Jobs, most: usize) -> Vec<Press> {
        self.pressed = at;
        let mut presses = Vec::new();
        for _ in 0..most {
            let Some((task_id, agent_id)) = self.waiting.pop_first() else {
                break;
            };
            let name = task_id.parse::<TaskName>().ok();
            // A later job of the same name has nothing to do with the task.
            let is_its_own = |name: &TaskName| {
                let job = jobs.get(&name.job);
                job.is_none_or(|job| job.record.born <= name.generation)
            };
            presses.push(Press::Stray {
                job: name.filter(is_its_own).map(|name| name.job),
                task_id,
                agent_id,
            });
        }
        if self.waiting.is_empty() && std::mem::take(&mut self.has_more) {
            presses.push(Press::AskForAll);
        }
        presses
    }
}

/// The action for a kill that is due.
#[derive(Debug)]
pub(super) enum Press {
    Send(Effect),
    /// The write of the kill's reason, which comes before the kill.
    Write(Record, Deferred),
    /// The kill of a stray task, and the job to which the task belongs.
    Stray {
        job: Option<String>,
        task_id: String,
        agent_id: Option<String>,
    },
    /// The query for all tasks: there are more stray tasks than the scheduler remembers.
    AskForAll,
}

/// Returns at most `most` of a job's due kills.
fn press_job(job: &mut Job, at: Duration, most: usize) -> Vec<Press> {
    job.pressed = at;
    let due = job.tasks.iter().filter(|(_, task)| is_due(task, at));
    let due: Vec<String> = due.map(|(id, _)| id.clone()).take(most).collect();
    let pressed = due.into_iter().filter_map(|id| {
        let task = job.tasks.get_mut(&id)?;
        let killing = task.killing.as_ref()?;
        if killing.is_durable {
            return kill_task(job, &id, at).map(Press::Send);
        }
        task.record.killing = Some(killing.reason);
        let record = Key::Task(id.clone()).put(&task.record);
        Some(Press::Write(record, Deferred::Kill(id)))
    });
    pressed.collect()
}

/// Returns the kill of a task whose reason is durable.
pub(super) fn kill_task(job: &mut Job, id: &str, at: Duration) -> Option<Effect> {
    let task = job.tasks.get_mut(id)?;
    let killing = task.killing.as_mut()?;
    // A task that uses its whole grace period needs no second kill.
    let version = job.record.versions.get(&task.name.version);
    let version = version.or_else(|| job.record.versions.get(&job.record.target));
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
