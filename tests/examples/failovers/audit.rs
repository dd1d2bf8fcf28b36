//! The checks whether the cluster is whole, and whether all parties agree on the running tasks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meseta_tests::{http, kernel};
use serde_json::Value;

use crate::board::{Board, Term};
use crate::cluster::Cluster;
use crate::scheduler::{Desk, Told};

/// The time limit of a request for a page.
const LIMIT: Duration = Duration::from_secs(2);
/// The pause between two questions to agents about the master that they obey.
const EPOCH_INTERVAL: Duration = Duration::from_millis(500);
const EPOCH: &str = "meseta_agent_master_epoch ";

fn page(url: &str) -> Option<Value> {
    let answer = http::get_within(LIMIT, url).ok()?;
    (answer.status == 200).then(|| answer.json())
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// Follows the epoch that each agent obeys until the end of the run; an epoch must not decrease unless allowed.
pub(crate) fn follow_epochs(board: &Board, agents: &[String], may_fall: bool) {
    let mut highest = vec![0; agents.len()];
    while !board.is_over() {
        for (url, highest) in agents.iter().zip(&mut highest) {
            let Some(epoch) = epoch_of(url) else {
                continue;
            };
            if epoch < *highest && !may_fall {
                board.note(format!("{url} obeys epoch {epoch} after {highest}"));
            }
            *highest = epoch;
        }
        std::thread::sleep(EPOCH_INTERVAL);
    }
}

fn epoch_of(url: &str) -> Option<u64> {
    let answer = http::get_within(LIMIT, &format!("{url}/metrics")).ok()?;
    let text = answer.text();
    let line = text.lines().find_map(|line| line.strip_prefix(EPOCH))?;
    line.trim().parse().ok()
}

/// The times from a fault until each part of the cluster was restored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    /// The term that has to be over, if any.
    pub(crate) not: Option<Term>,
    /// The time until all agents were with the leading master.
    pub(crate) agents: Option<Duration>,
    /// The time until the framework was with the leading master.
    pub(crate) framework: Option<Duration>,
    /// The time until all long tasks ran, as the master sees them, and all masters answered.
    pub(crate) whole: Option<Duration>,
}

impl Recovery {
    /// Looks again; returns whether everything is restored, and otherwise the missing parts.
    pub(crate) fn look(
        &mut self,
        since: Instant,
        board: &Board,
        desk: &Desk,
        agents: usize,
        long: usize,
    ) -> Result<(), String> {
        let leader = board.leader().filter(|leader| Some(*leader) != self.not);
        let leader = leader.ok_or("no master leads")?;
        if desk.served_by() == Some(leader) {
            self.framework.get_or_insert(since.elapsed());
        }
        let active = active_agents(board, leader).unwrap_or_default();
        if active == agents {
            self.agents.get_or_insert(since.elapsed());
        } else {
            return Err(format!("{active} of {agents} agents are with {leader}"));
        }
        if self.framework.is_none() {
            return Err("the framework is not subscribed".to_owned());
        }
        let running = running_long(board, leader).unwrap_or_default();
        if running != long {
            return Err(format!(
                "{leader} knows of {running} of {long} long tasks that run"
            ));
        }
        for master in (0..board.urls.len()).filter(|master| *master != leader.master) {
            let role = board.role(master);
            if role != "following" {
                return Err(format!("master {master} is {role:?} and does not follow"));
            }
        }
        self.whole.get_or_insert(since.elapsed());
        Ok(())
    }
}

fn active_agents(board: &Board, leader: Term) -> Option<usize> {
    let slaves = page(&format!("{}/slaves", board.urls[leader.master]))?;
    let active = |agent: &&Value| agent["active"] == Value::Bool(true);
    Some(list(&slaves, "slaves").iter().filter(active).count())
}

fn running_long(board: &Board, leader: Term) -> Option<usize> {
    let tasks = page(&format!("{}/tasks?limit=10000", board.urls[leader.master]))?;
    let runs = |task: &&Value| {
        let id = task["id"].as_str().unwrap_or_default();
        id.starts_with("long-") && task["state"] == "TASK_RUNNING"
    };
    Some(list(&tasks, "tasks").iter().filter(runs).count())
}

/// Returns the long tasks that are no longer their original processes.
pub(crate) fn restarted(
    before: &BTreeMap<usize, (i32, u64)>,
    now: &BTreeMap<usize, (i32, u64)>,
) -> Vec<String> {
    let changed = before
        .iter()
        .filter(|(number, process)| now.get(number) != Some(process));
    changed
        .map(|(number, process)| {
            let found = now.get(number);
            format!("long-{number} was the process {process:?} and is {found:?}")
        })
        .collect()
}

/// Returns disagreements between framework, master, agents and kernel once only long tasks run.
pub(crate) fn disagreements(cluster: &Cluster, board: &Board, desk: &Desk) -> Result<(), String> {
    let leader = board.leader().ok_or("no master leads")?;
    let known = desk.tasks();
    let live = known.iter().filter(|(_, told)| !told.has_ended());
    let by_framework: Vec<String> = live.map(|(id, _)| id.clone()).collect();
    let tasks = page(&format!("{}/tasks?limit=10000", board.urls[leader.master]));
    let tasks = tasks.ok_or("the leader does not list its tasks")?;
    let runs = |task: &&Value| task["state"] == "TASK_RUNNING";
    let by_master = ids(list(&tasks, "tasks").iter().filter(runs));
    let mut by_agents = Vec::new();
    for agent in &cluster.agents {
        let state = page(&format!("{}/state", agent.url)).ok_or("an agent does not answer")?;
        for framework in list(&state, "frameworks") {
            for executor in list(framework, "executors") {
                by_agents.extend(ids(list(executor, "tasks").iter()));
            }
        }
    }
    by_agents.sort();
    let processes = cluster.long_processes();
    let mut by_kernel: Vec<_> = processes
        .keys()
        .map(|number| format!("long-{number}"))
        .collect();
    by_kernel.sort();
    for (who, found) in [
        ("master", &by_master),
        ("agents", &by_agents),
        ("kernel", &by_kernel),
    ] {
        if *found != by_framework {
            let known = differing(&by_framework, found);
            let only = differing(found, &by_framework);
            return Err(format!(
                "the framework knows {known:?}, which the {who} does not; the {who} has {only:?} more"
            ));
        }
    }
    let others = kernel::tasks_below(&cluster.cgroups_root).len();
    match others == processes.len() {
        true => Ok(()),
        false => Err(format!(
            "{others} processes are in containers of {} tasks",
            processes.len()
        )),
    }
}

fn ids<'a>(tasks: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let id = |task: &Value| task["id"].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = tasks.map(id).collect();
    all.sort();
    all
}

fn differing(these: &[String], those: &[String]) -> Vec<String> {
    these
        .iter()
        .filter(|one| !those.contains(one))
        .cloned()
        .collect()
}

/// Returns the contradiction between a short task's actions and its updates, if any.
pub(crate) fn wrong_short(id: &str, told: &Told, did: &str) -> Option<String> {
    let began = did.lines().filter(|line| *line == "began").count();
    let ended = did.lines().any(|line| line == "ended");
    let wrong = match told.state() {
        _ if began > 1 => "it was started more than once",
        _ if !told.has_ended() => "its end was never told",
        "TASK_FINISHED" if !ended => "it did not end by itself",
        "TASK_FINISHED" => return None,
        _ if began > 0 => "it ran",
        _ => return None,
    };
    Some(format!(
        "{id}: {wrong}; told {:?}, did {did:?}",
        told.states
    ))
}
