//! Kills among tasks of every kind. Each task writes its start and its own end to a separate file, and keeps that file
//! locked while it lives.
//!
//! Entered through [`run`], by a scenario with few kills and by the example `agent_kills` with many.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::audit::{self, Excuses, Kind, TaskRecord, is_terminal};
use crate::dice::Dice;
use crate::framework::task;
use crate::observed::Outcome;
use crate::{Cluster, Framework, Setup, kernel, wait};

/// Concurrent tasks of the run.
const AT_ONCE: usize = 48;
/// The longest silence while tasks are under way.
const PATIENCE: Duration = Duration::from_secs(180);
/// The time after the last task for leftovers to show.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// The time for ended tasks to go away.
const LEAVING: Duration = Duration::from_secs(30);
const SMALL: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0)];
/// The tasks of a group of three, with their executor.
const OF_A_LAUNCH_MAX: usize = 4;
/// More disk than all groups in progress need, in MB.
const DISK_MIN: f64 = 64.0;
/// The resources of a task in a group; a default executor needs some of each.
const OF_A_GROUP: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0), ("disk", 1.0)];

const ALONE: [Kind; 13] = [
    Kind::Exits(0),
    Kind::Killed,
    Kind::Exits(3),
    Kind::KilledEarly,
    Kind::Exits(0),
    Kind::KilledGently,
    Kind::Signals("KILL"),
    Kind::Killed,
    Kind::Overdue,
    Kind::Exits(0),
    Kind::Signals("TERM"),
    Kind::KilledEarly,
    Kind::Hungry,
];

/// Runs tasks under this many kills.
pub fn run(kills: usize, tasks: usize, mut dice: Dice) -> Outcome {
    let setup = Setup {
        agent_flags: vec!["--resources=cpus:64;mem:16384;disk:4096".to_owned()],
        ..Setup::default()
    };
    let mut cluster = Cluster::start(setup);
    let marks = cluster.dir.path().join("marks");
    std::fs::create_dir(&marks).expect("made");
    let over = Arc::new(AtomicUsize::new(0));
    let scheduler = Scheduler {
        framework: cluster.framework(),
        marks: marks.clone(),
        left: tasks,
        live: 0,
        number: 0,
        told: BTreeMap::new(),
        over: over.clone(),
        wrong: Vec::new(),
    };
    let scheduling = std::thread::spawn(move || scheduler.run());
    let mut absences = Vec::new();
    for kill in 0..kills {
        // The kills are spread over the work, at whatever speed.
        let due = tasks * kill / kills;
        while over.load(Ordering::Relaxed) + AT_ONCE / 2 < due && !scheduling.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(dice.roll(900)));
        let killed = Instant::now();
        cluster.restart_agent(0);
        absences.push((killed, Instant::now()));
    }
    let (told, mut wrong) = scheduling.join().expect("the scheduler ends");
    wrong.extend(left_over(&cluster));
    let excuses = Excuses {
        absences,
        ..Excuses::default()
    };
    wrong.extend(audit::wrongs(&told, &marks, &excuses));
    Outcome { told, wrong }
}

/// Returns the leftovers once all updates have come.
fn left_over(cluster: &Cluster) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_empty = || kernel::tasks_below(&cluster.cgroups_root).is_empty();
    if !wait::holds(LEAVING, is_empty) {
        let left = kernel::tasks_below(&cluster.cgroups_root);
        wrong.push(format!("processes are left in containers: {left:?}"));
    }
    for (who, daemon) in [("master", &cluster.master), ("agent", cluster.agent())] {
        let holds_none = || {
            let state = daemon.page("/state").json();
            let frameworks = state["frameworks"].as_array().cloned();
            frameworks.is_some_and(|all| all.iter().all(has_no_tasks))
        };
        if !wait::holds(LEAVING, holds_none) {
            wrong.push(format!("the {who} still has tasks"));
        }
    }
    wrong
}

/// Whether a framework in the `/state` of a master or an agent has neither running tasks nor unacknowledged updates.
fn has_no_tasks(framework: &Value) -> bool {
    let is_none = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    let executors = framework["executors"].as_array().cloned();
    is_none(&framework["tasks"])
        && executors.unwrap_or_default().iter().all(|executor| {
            ["tasks", "queued_tasks"]
                .iter()
                .all(|name| is_none(&executor[*name]))
        })
}

/// Returns how many tasks fit in an offer; 0 without disk, which a group needs.
fn capacity_of(offer: &Value) -> usize {
    let offered = |name: &str| {
        let all = offer["resources"].as_array().into_iter().flatten();
        let named = all.filter(|resource| resource["name"] == name);
        named
            .filter_map(|resource| resource["scalar"]["value"].as_f64())
            .sum::<f64>()
    };
    let fits = |(name, amount): &(&str, f64)| {
        (0..AT_ONCE * OF_A_LAUNCH_MAX).rev().find(|count| {
            let count = u32::try_from(*count).expect("few");
            f64::from(count) * amount <= offered(name)
        })
    };
    match offered("disk") >= DISK_MIN {
        true => SMALL.iter().filter_map(fits).min().unwrap_or_default(),
        false => 0,
    }
}

struct Scheduler {
    framework: Framework,
    marks: PathBuf,
    left: usize,
    live: usize,
    number: usize,
    told: BTreeMap<String, TaskRecord>,
    over: Arc<AtomicUsize>,
    /// The errors that concern no particular task.
    wrong: Vec<String>,
}

impl Scheduler {
    fn run(mut self) -> (BTreeMap<String, TaskRecord>, Vec<String>) {
        let mut last_word = Instant::now();
        while self.left > 0 || self.live > 0 {
            match self.framework.within(Duration::from_millis(100), &|_| true) {
                Ok(event) if event["type"] == "OFFERS" => self.offered(&event),
                Ok(event) if event["type"] == "UPDATE" => {
                    last_word = Instant::now();
                    self.updated(&event["update"]["status"]);
                }
                Ok(_) | Err("time is up") => {}
                Err(why) => panic!("{why}"),
            }
            for id in audit::unanswered_kills(&self.told) {
                self.kill(&id);
            }
            if last_word.elapsed() > PATIENCE {
                let wrong = format!("{} tasks were never launched", self.left);
                self.wrong.push(wrong);
                return (self.told, self.wrong);
            }
        }
        self.ask_for_the_rest();
        (self.told, self.wrong)
    }

    /// Checks that ended tasks get no more updates, and do not appear in answers.
    fn ask_for_the_rest(&mut self) {
        self.framework
            .accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": []}}));
        let end = Instant::now() + AFTERWARDS;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match self.framework.within(left, &|_| true) {
                Ok(event) if event["type"] == "UPDATE" => {
                    let status = &event["update"]["status"];
                    if status["reason"] == "REASON_RECONCILIATION" {
                        let what = format!("{} is there when all have ended", status["task_id"]);
                        self.wrong.push(what);
                    }
                    self.updated(status);
                }
                Ok(_) | Err("time is up") => {}
                Err(why) => panic!("{why}"),
            }
        }
    }

    fn offered(&mut self, event: &Value) {
        let offers = event["offers"]["offers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for offer in offers {
            let mut operations = Vec::new();
            let mut early = Vec::new();
            let mut capacity = capacity_of(&offer);
            while self.left > 0 && self.live < AT_ONCE && capacity >= OF_A_LAUNCH_MAX {
                capacity -= OF_A_LAUNCH_MAX;
                operations.push(self.next(&offer, &mut early));
            }
            self.framework.accepted(json!({"type": "ACCEPT", "accept": {
                "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 0.3}}}));
            for id in early {
                self.kill(&id);
            }
        }
    }

    fn next(&mut self, offer: &Value, early: &mut Vec<String>) -> Value {
        self.number += 1;
        // Every tenth launch is a group.
        if self.number.is_multiple_of(10) && self.left >= 3 {
            let fails = self.number.is_multiple_of(20);
            let kinds = match fails {
                true => [Kind::FailsItsGroup, Kind::TakenAlong, Kind::TakenAlong],
                false => [Kind::Grouped; 3],
            };
            let group = Some(self.number);
            let made = kinds.iter().map(|kind| self.make(offer, *kind, group));
            let tasks: Vec<Value> = made.collect();
            let executor = json!({
                "type": "DEFAULT", "executor_id": {"value": format!("e{}", self.number)},
                "framework_id": {"value": self.framework.id},
                "resources": task(offer, "x", "", OF_A_GROUP)["resources"]});
            return json!({"type": "LAUNCH_GROUP", "launch_group": {
                "executor": executor, "task_group": {"tasks": tasks}}});
        }
        let kind = ALONE[self.number % ALONE.len()];
        let task = self.make(offer, kind, None);
        if kind == Kind::KilledEarly {
            early.push(task["task_id"]["value"].as_str().expect("an id").to_owned());
        }
        json!({"type": "LAUNCH", "launch": {"task_infos": [task]}})
    }

    fn make(&mut self, offer: &Value, kind: Kind, group: Option<usize>) -> Value {
        let id = format!("t{:05}", self.told.len());
        let nap = format!("sleep 0.{}", 1 + self.told.len() % 9);
        let script = kind.script(&self.marks.join(&id), &nap);
        let mut info = task(offer, &id, &script, SMALL);
        if kind == Kind::Overdue {
            info["max_completion_time"] = json!({"nanoseconds": 700_000_000});
        }
        self.left -= 1;
        self.live += 1;
        let told = TaskRecord::launched(kind, group);
        self.told.insert(id, told);
        info
    }

    fn updated(&mut self, status: &Value) {
        let id = status["task_id"]["value"]
            .as_str()
            .expect("an id")
            .to_owned();
        // Acknowledge before any other use: an acknowledgement may get lost with an agent.
        self.framework.acknowledge(status);
        let Some(told) = self.told.get_mut(&id) else {
            return;
        };
        if !told.record_update(status) {
            return;
        }
        let is_killed = matches!(told.kind, Kind::Killed | Kind::KilledGently);
        if is_killed && status["state"] == "TASK_RUNNING" {
            self.kill(&id);
        } else if is_terminal(status) && told.end.is_none() {
            let end = audit::observe(&self.marks.join(&id));
            self.live -= 1;
            match end.began() > 0 || told.kill_asked.is_some() {
                true => drop(self.over.fetch_add(1, Ordering::Relaxed)),
                // The task's launch was lost with an agent: another task replaces it.
                false => self.left += 1,
            }
            told.end = Some(end);
        }
    }

    fn kill(&mut self, id: &str) {
        self.framework.kill(id);
        if let Some(told) = self.told.get_mut(id) {
            told.kill_asked = Some(Instant::now());
        }
    }
}
