//! A cluster whose tasks are compared with their marks, and its frameworks' events, in order of arrival.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::audit::{self, Excuses, Kind, TaskRecord, is_terminal};
use crate::framework::task;
use crate::{Cluster, Framework, Setup, kernel};

/// The pause between two looks at a stream of events.
const LOOK: Duration = Duration::from_millis(10);

/// The updates of all tasks, and their errors.
#[derive(Debug, Default)]
pub struct Outcome {
    pub told: BTreeMap<String, TaskRecord>,
    pub wrong: Vec<String>,
}

/// The cluster, and the updates of its tasks.
#[derive(Debug)]
pub struct Observed {
    pub cluster: Cluster,
    pub frameworks: Vec<Framework>,
    pub marks: PathBuf,
    pub told: BTreeMap<String, TaskRecord>,
    /// The containers of running tasks, as reported.
    pub containers: BTreeMap<String, Value>,
    pub wrong: Vec<String>,
    pub absences: Vec<(Instant, Instant)>,
    /// Offers of the first framework without a response, by their ids.
    pub offers: BTreeMap<String, Value>,
    /// The long tasks: their updates may only say that they run and are healthy.
    pub standing: BTreeMap<String, (i32, u64)>,
}

impl Observed {
    pub fn start(setup: Setup) -> Self {
        let cluster = Cluster::start(setup);
        let marks = cluster.dir.path().join("marks");
        std::fs::create_dir(&marks).expect("made");
        Self {
            frameworks: vec![cluster.framework()],
            cluster,
            marks,
            told: BTreeMap::new(),
            containers: BTreeMap::new(),
            wrong: Vec::new(),
            absences: Vec::new(),
            offers: BTreeMap::new(),
            standing: BTreeMap::new(),
        }
    }

    /// Returns a task with marks, which runs `rest` before it ends itself.
    pub fn make(
        &mut self,
        offer: &Value,
        id: &str,
        kind: Kind,
        group: Option<usize>,
        nap: &str,
        resources: &[(&str, f64)],
    ) -> Value {
        let command = kind.script(&self.marks.join(id), nap);
        let record = TaskRecord::launched(kind, group);
        self.told.insert(id.to_owned(), record);
        task(offer, id, &command, resources)
    }

    /// Returns the command with which a task waits without a process of its own, until [`Self::open_gate`].
    pub fn gate(&self, id: &str) -> String {
        let path = self.gate_path(id);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        format!("read go < {}", path.display())
    }

    fn gate_path(&self, id: &str) -> PathBuf {
        self.marks.join(format!("{id}.gate"))
    }

    pub fn open_gate(&self, id: &str) {
        std::fs::write(self.gate_path(id), "go\n").expect("somebody waits there");
    }

    /// Handles the events within this time.
    pub fn take_events(&mut self, lasting: Duration) {
        let end = Instant::now() + lasting;
        loop {
            for at in 0..self.frameworks.len() {
                while let Some(event) = self.next_event(at) {
                    self.happened(at, &event);
                }
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    fn next_event(&mut self, at: usize) -> Option<Value> {
        match self.frameworks[at].within(LOOK, &|_| true) {
            Ok(event) => Some(event),
            Err("time is up") => None,
            Err(why) => panic!("{why}"),
        }
    }

    fn happened(&mut self, at: usize, event: &Value) {
        match event["type"].as_str() {
            Some("OFFERS") => {
                for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
                    match at {
                        0 => drop(self.offers.insert(id_of(&offer["id"]), offer.clone())),
                        _ => self.frameworks[at].decline(offer, 3600.0),
                    }
                }
            }
            Some("RESCIND") => drop(self.offers.remove(&id_of(&event["rescind"]["offer_id"]))),
            Some("UPDATE") => self.updated(at, &event["update"]["status"]),
            _ => {}
        }
    }

    fn updated(&mut self, at: usize, status: &Value) {
        // Acknowledge before any other use: an acknowledgement may get lost with an agent.
        self.frameworks[at].acknowledge(status);
        let id = id_of(&status["task_id"]);
        let Some(told) = self.told.get_mut(&id) else {
            return;
        };
        if !told.record_update(status) {
            return;
        }
        // A repeated update, since its acknowledgement was lost or damaged, contains nothing new.
        if self.standing.contains_key(&id)
            && (!["TASK_STARTING", "TASK_RUNNING"]
                .contains(&status["state"].as_str().unwrap_or_default())
                || status["healthy"] == false)
        {
            self.wrong.push(format!("of {id}, which goes on: {status}"));
        }
        let container = &status["container_status"]["container_id"];
        if container.is_object() && status["state"] == "TASK_RUNNING" {
            self.containers.insert(id.clone(), container.clone());
        }
        if is_terminal(status) && told.end.is_none() {
            told.end = Some(audit::observe(&self.marks.join(&id)));
        }
    }

    /// Handles events until the condition holds; records an error if it does not in time.
    pub fn until(&mut self, what: &str, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + limit;
        while !holds(self) {
            self.take_events(LOOK);
            for id in audit::unanswered_kills(&self.told) {
                self.kill(&id);
            }
            if Instant::now() >= end {
                self.wrong.push(format!("not within {limit:?}: {what}"));
                return;
            }
        }
    }

    pub fn is_over(&self, id: &str) -> bool {
        self.told.get(id).is_none_or(TaskRecord::is_over)
    }

    pub fn kill(&mut self, id: &str) {
        self.frameworks[0].kill(id);
        if let Some(told) = self.told.get_mut(id) {
            told.kill_asked = Some(Instant::now());
        }
    }

    /// Kills an agent and starts it again. Its earlier offers are declined.
    pub fn restart_agent(&mut self, index: usize) {
        for offer in std::mem::take(&mut self.offers).values() {
            self.frameworks[0].decline(offer, 0.0);
        }
        let killed = Instant::now();
        self.cluster.restart_agent(index);
        self.absences.push((killed, Instant::now()));
    }

    /// Marks tasks as long ones: their processes are identified by their start times.
    pub fn stand(&mut self, ids: &[String]) {
        for id in ids {
            let pid = self.pid_of(id).expect("it holds its marks open");
            let born = kernel::start_time(pid).expect("it lives");
            self.standing.insert(id.clone(), (pid, born));
        }
    }

    /// Returns the first process of a task: the only one with its marks in its command line.
    fn pid_of(&self, id: &str) -> Option<i32> {
        let mark = format!("exec 9>> {};", self.marks.join(id).display());
        let pids = kernel::tasks_below(&self.cluster.cgroups_root);
        let has_mark = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark)
        };
        pids.into_iter().find(has_mark)
    }

    /// Records the long tasks that have vanished.
    pub fn check_standing(&mut self, when: &str) {
        for (id, (pid, born)) in &self.standing {
            if kernel::start_time(*pid) != Some(*born) {
                self.wrong
                    .push(format!("{id} is another process, or none, {when}"));
            }
        }
    }

    /// Combines all offers of an agent that hold at least this: their resources, and their ids.
    pub fn offer_of(&mut self, agent: &str, least: &[(&str, f64)]) -> Option<(Value, Value)> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let of_agent = self.offers.values();
            let of_agent: Vec<_> = of_agent
                .filter(|offer| offer["agent_id"]["value"] == agent)
                .cloned()
                .collect();
            let amount = |name: &str| {
                of_agent
                    .iter()
                    .map(|offer| amount_of(offer, name))
                    .sum::<f64>()
            };
            if let Some(first) = of_agent.first()
                && least.iter().all(|(name, enough)| amount(name) >= *enough)
            {
                let ids: Vec<_> = of_agent.iter().map(|offer| offer["id"].clone()).collect();
                for id in &ids {
                    self.offers.remove(&id_of(id));
                }
                return Some((first.clone(), json!(ids)));
            }
            self.take_events(LOOK);
        }
        self.wrong.push(format!("no offer of {agent} came"));
        None
    }

    pub fn accept(&self, offers: &Value, operations: &Value) {
        self.frameworks[0].accepted(json!({"type": "ACCEPT", "accept": {
            "offer_ids": offers, "operations": operations, "filters": {"refuse_seconds": 0.1}}}));
    }

    pub fn group(&self, offer: &Value, id: &str, tasks: &[Value]) -> Value {
        let small = &[("cpus", 0.05), ("mem", 32.0), ("disk", 1.0)];
        let executor = json!({"type": "DEFAULT", "executor_id": {"value": id},
            "framework_id": {"value": self.frameworks[0].id},
            "resources": task(offer, "x", "", small)["resources"]});
        json!({"type": "LAUNCH_GROUP", "launch_group": {
            "executor": executor, "task_group": {"tasks": tasks}}})
    }

    /// Judges all updates, and returns the outcome.
    pub fn judge(mut self) -> Outcome {
        let excuses = Excuses {
            absences: std::mem::take(&mut self.absences),
            ..Excuses::default()
        };
        let mut wrong = std::mem::take(&mut self.wrong);
        wrong.extend(audit::wrongs(&self.told, &self.marks, &excuses));
        Outcome {
            told: std::mem::take(&mut self.told),
            wrong,
        }
    }
}

fn id_of(value: &Value) -> String {
    value["value"].as_str().unwrap_or_default().to_owned()
}

/// Returns the unreserved regular amount of an offer.
fn amount_of(offer: &Value, name: &str) -> f64 {
    let all = offer["resources"].as_array().into_iter().flatten();
    all.filter(|one| {
        one["name"] == name && one.get("reservations").is_none() && one.get("revocable").is_none()
    })
    .filter_map(|one| one["scalar"]["value"].as_f64())
    .sum()
}
