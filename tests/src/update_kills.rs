//! kill -9 of a single master while very many tasks end: every end is reported, and each task's updates come in order.
//!
//! Entered through [`run`], by a scenario with few tasks and by an example with very many. The tasks belong to one executor
//! of a framework, and end all at once. Needs [`executor::run_if_requested`] in the program.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::framework::{framework_info, task};
use crate::wait::holds;
use crate::{Cluster, Framework, Setup, executor};

/// Tasks in one ACCEPT.
const TASKS_PER_ACCEPT: usize = 250;
/// The longest silence while updates are missing.
const SILENCE_MAX: Duration = Duration::from_secs(120);
const TINY: &[(&str, f64)] = &[("cpus", 0.001), ("mem", 1.0)];
const OF_EXECUTOR: &[(&str, f64)] = &[("cpus", 0.5), ("mem", 8192.0)];

/// The updates of all tasks.
#[derive(Debug)]
pub struct Report {
    pub updates: usize,
    /// The number of updates that were resent because their acknowledgement was lost with a master.
    pub repeated: usize,
    pub kills: usize,
    /// The time from when all tasks could end until the last end was reported.
    pub took: Duration,
}

/// The framework, and its updates.
struct Scheduler {
    framework: Framework,
    /// The states of each task in the order of their first arrival, with the updates that brought them.
    told: BTreeMap<String, Vec<(String, String)>>,
    repeated: usize,
}

/// Runs tasks, and kills the master while they end; returns the first error.
pub fn run(tasks: usize, kills: usize) -> Result<Report, String> {
    let mut cluster = Cluster::start(Setup {
        agent_flags: vec!["--resources=cpus:1000;mem:1000000;disk:4096".to_owned()],
        ..Setup::default()
    });
    let info = framework_info("dev");
    let mut scheduler = Scheduler {
        framework: cluster.subscribe(&info),
        told: BTreeMap::new(),
        repeated: 0,
    };
    let gate = cluster.dir.path().join("gate");
    let made = Command::new("mkfifo").arg(&gate).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    scheduler.launch(tasks, &gate)?;
    let began = Instant::now();
    // Each waiting task takes one line; a late one finds the pipe open.
    let mut open = File::options().write(true).open(&gate).expect("a pipe");
    open.write_all(&vec![b'\n'; tasks]).expect("written");
    for kill in 1..=kills {
        let due = tasks * kill / (kills + 1);
        scheduler.until(|all| all.ended() >= due)?;
        let mut again = info.clone();
        again["id"] = json!({"value": scheduler.framework.id});
        cluster.restart_master();
        let url = cluster.scheduler_url();
        let subscribed = holds(Duration::from_secs(30), || {
            let encoding = crate::Encoding::Json;
            match Framework::try_subscribe(&url, encoding, &again) {
                Ok(framework) => {
                    scheduler.framework = framework;
                    true
                }
                Err(_) => false,
            }
        });
        if !subscribed {
            return Err("the framework was not taken back".to_owned());
        }
    }
    scheduler.until(|all| all.ended() == tasks)?;
    drop(open);
    let report = Report {
        updates: scheduler.told.values().map(Vec::len).sum(),
        repeated: scheduler.repeated,
        kills,
        took: began.elapsed(),
    };
    scheduler.judge(tasks)?;
    Ok(report)
}

impl Scheduler {
    /// Launches all tasks, and waits until they run.
    fn launch(&mut self, tasks: usize, gate: &Path) -> Result<(), String> {
        let command = format!("read line < {}; exit 0", gate.display());
        let mut launched = 0;
        while launched < tasks {
            let offer = self.framework.offer();
            let of_executor = task(&offer, "x", "", OF_EXECUTOR)["resources"].clone();
            let executor = executor::info("e", &self.framework.id, &of_executor);
            let count = TASKS_PER_ACCEPT.min(tasks - launched);
            let infos: Vec<Value> = (launched..launched + count)
                .map(|number| {
                    let mut info = task(&offer, &format!("t{number:05}"), &command, TINY);
                    executor::assign(&mut info, &executor);
                    info
                })
                .collect();
            self.framework.launch(&offer, &infos);
            launched += count;
            self.until(|all| all.told.len() == launched)?;
        }
        Ok(())
    }

    fn ended(&self) -> usize {
        let last = self.told.values().filter_map(|states| states.last());
        last.filter(|(state, _)| state == "TASK_FINISHED").count()
    }

    /// Handles updates until this condition holds.
    fn until(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let is_update = |event: &Value| event["type"] == "UPDATE";
        while !holds(self) {
            let event = self.framework.within(SILENCE_MAX, &is_update);
            let event = event.map_err(|why| format!("{why}; {} have ended", self.ended()))?;
            self.updated(&event["update"]["status"]);
        }
        Ok(())
    }

    fn updated(&mut self, status: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // An acknowledgement that is lost with a master makes the update come again.
        let _ = self.framework.try_call(json!({"type": "ACKNOWLEDGE", "acknowledge": {
            "agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]}}));
        let states = self
            .told
            .entry(text(&status["task_id"]["value"]))
            .or_default();
        let one = (text(&status["state"]), text(&status["uuid"]));
        match states.contains(&one) {
            true => self.repeated += 1,
            false => states.push(one),
        }
    }

    fn judge(&self, tasks: usize) -> Result<(), String> {
        if self.told.len() != tasks {
            return Err(format!("{} of {tasks} tasks were told of", self.told.len()));
        }
        for (id, states) in &self.told {
            let states: Vec<_> = states.iter().map(|(state, _)| state.as_str()).collect();
            if !matches!(states[..], ["TASK_RUNNING", "TASK_FINISHED"]) {
                return Err(format!("{id} was told so: {states:?}"));
            }
        }
        Ok(())
    }
}
