//! An executor of a framework, for tests: runs each task as a shell command and reports its end.
//!
//! [`run_if_requested`] is the program that a framework names as its executor, with [`ARGUMENT`]. The command is the task's
//! `data`. Unacknowledged updates are repeated: with the next subscription, and each second until then. The executor ends
//! with its agent, when that is gone for good.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::framework::next_record;
use crate::{http, kernel};

/// The first argument of a program that acts as an executor.
pub const ARGUMENT: &str = "--as-an-executor";
/// The command of a task that reports RUNNING in ever new updates, as fast as it can.
pub const FLOOD: &str = "flood";
/// The number of parallel senders of these updates.
const FLOODERS: usize = 4;
/// The pause before the next request to the agent.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before an unacknowledged update is sent again.
const RESEND: Duration = Duration::from_secs(1);
/// The time without an agent after which the executor ends.
const ALONE_MAX: Duration = Duration::from_secs(120);

/// Returns the resources and the command of an executor that is this program.
pub fn info(id: &str, framework: &str, resources: &Value) -> Value {
    let this = std::env::current_exe().expect("this program has a file");
    json!({"type": "CUSTOM", "executor_id": {"value": id}, "framework_id": {"value": framework},
        "command": {"value": format!("exec {} {ARGUMENT}", this.display()), "shell": true},
        "resources": resources})
}

/// Gives a command task to an executor: it runs the command.
pub fn assign(task: &mut Value, executor: &Value) {
    let command = task["command"]["value"].as_str().unwrap_or_default();
    task["data"] = json!(BASE64.encode(command));
    task["executor"] = executor.clone();
    if let Some(fields) = task.as_object_mut() {
        fields.remove("command");
    }
}

/// Plays the executor, if the command line requests it.
pub fn run_if_requested() -> Option<ExitCode> {
    if std::env::args().nth(1)? != ARGUMENT {
        return None;
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let executor = Executor {
        url: format!(
            "http://{}/api/v1/executor",
            variable("MESOS_AGENT_ENDPOINT")
        ),
        id: variable("MESOS_EXECUTOR_ID"),
        framework: variable("MESOS_FRAMEWORK_ID"),
        known: Arc::default(),
    };
    executor.run();
    Some(ExitCode::SUCCESS)
}

#[derive(Clone, Debug)]
struct Executor {
    url: String,
    id: String,
    framework: String,
    known: Arc<Mutex<Known>>,
}

/// The updates that the agent may not know yet, and the processes of tasks.
#[derive(Debug, Default)]
struct Known {
    tasks: BTreeMap<String, Value>,
    /// Each status, and the time when it was last sent.
    updates: Vec<(Value, Instant)>,
    pids: BTreeMap<String, i32>,
    /// The tasks to be killed.
    killed: Vec<String>,
    sent: u64,
}

impl Executor {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self) {
        let resending = self.clone();
        std::thread::spawn(move || resending.resend());
        let mut last = Instant::now();
        while last.elapsed() < ALONE_MAX {
            let body = self.call("SUBSCRIBE", "subscribe", &self.subscribe());
            if let Ok(mut stream) = http::try_stream(&self.url, &body) {
                while let Some(record) = next_record(&mut stream) {
                    let event = serde_json::from_slice::<Value>(&record).unwrap_or_default();
                    if event["type"] == "SHUTDOWN" {
                        return;
                    }
                    self.happened(&event);
                }
                last = Instant::now();
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn subscribe(&self) -> Value {
        let known = self.known();
        let updates = known.updates.iter();
        let updates: Vec<_> = updates
            .map(|(status, _)| json!({"status": status}))
            .collect();
        let tasks: Vec<_> = known.tasks.values().collect();
        json!({"unacknowledged_tasks": tasks, "unacknowledged_updates": updates})
    }

    fn call(&self, kind: &str, name: &str, part: &Value) -> Value {
        json!({"type": kind, "executor_id": {"value": self.id},
            "framework_id": {"value": self.framework}, name: part})
    }

    fn happened(&self, event: &Value) {
        let group = event["launch_group"]["task_group"]["tasks"].as_array();
        let tasks = group
            .into_iter()
            .flatten()
            .chain(event["launch"].get("task"));
        for task in tasks {
            self.launch(task);
        }
        if let Some(id) = event["kill"]["task_id"]["value"].as_str() {
            let mut known = self.known();
            known.killed.push(id.to_owned());
            if let Some(pid) = known.pids.get(id) {
                kernel::kill(*pid, Signal::SIGKILL);
            }
        }
        if let Some(uuid) = event["acknowledged"]["uuid"].as_str() {
            let mut known = self.known();
            known.updates.retain(|(status, _)| status["uuid"] != uuid);
            if let Some(id) = event["acknowledged"]["task_id"]["value"].as_str() {
                known.tasks.remove(id);
            }
        }
    }

    fn launch(&self, task: &Value) {
        let id = task["task_id"]["value"].as_str().unwrap_or_default();
        let command = BASE64.decode(task["data"].as_str().unwrap_or_default());
        let command = String::from_utf8(command.unwrap_or_default()).unwrap_or_default();
        if command == FLOOD {
            return self.flood(id);
        }
        self.known().tasks.insert(id.to_owned(), task.clone());
        let child = Command::new("/bin/sh").arg("-c").arg(command).spawn();
        match child {
            Ok(child) => self.started(id, child),
            Err(error) => self.tell(id, "TASK_FAILED", &error.to_string()),
        }
    }

    fn started(&self, id: &str, mut child: Child) {
        let pid = i32::try_from(child.id()).unwrap_or_default();
        self.known().pids.insert(id.to_owned(), pid);
        self.tell(id, "TASK_RUNNING", "");
        let (this, id) = (self.clone(), id.to_owned());
        std::thread::spawn(move || {
            let status = child.wait().unwrap_or_default();
            let is_killed = this.known().killed.contains(&id);
            let (state, message) = ending(status, is_killed);
            this.tell(&id, state, &message);
        });
    }

    fn flood(&self, id: &str) {
        for _ in 0..FLOODERS {
            let (this, id) = (self.clone(), id.to_owned());
            std::thread::spawn(move || {
                loop {
                    let status = status(&mut this.known(), &id, "TASK_RUNNING", "");
                    this.send(&status);
                }
            });
        }
    }

    fn tell(&self, id: &str, state: &str, message: &str) {
        let mut known = self.known();
        let status = status(&mut known, id, state, message);
        known.updates.push((status.clone(), Instant::now()));
        drop(known);
        self.send(&status);
    }

    fn send(&self, status: &Value) {
        let body = self.call("UPDATE", "update", &json!({"status": status}));
        let headers = [("content-type", "application/json")];
        // The report is repeated if the agent does not accept it.
        let _ = http::try_post(&self.url, &headers, body.to_string().as_bytes());
    }

    fn resend(&self) {
        loop {
            std::thread::sleep(RESEND);
            let mut due = Vec::new();
            for (status, sent) in &mut self.known().updates {
                if sent.elapsed() >= RESEND {
                    *sent = Instant::now();
                    due.push(status.clone());
                }
            }
            due.iter().for_each(|status| self.send(status));
        }
    }
}

/// Creates an update that was never sent before.
fn status(known: &mut Known, id: &str, state: &str, message: &str) -> Value {
    known.sent += 1;
    let mut uuid = [0; 16];
    uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
    uuid[8..].copy_from_slice(&known.sent.to_le_bytes());
    json!({"task_id": {"value": id}, "state": state, "message": message,
        "source": "SOURCE_EXECUTOR", "uuid": BASE64.encode(uuid)})
}

/// Returns the state and message of an end, as for a command task.
fn ending(status: ExitStatus, is_killed: bool) -> (&'static str, String) {
    match (status.code(), status.signal()) {
        _ if is_killed => ("TASK_KILLED", "killed".to_owned()),
        (Some(0), _) => ("TASK_FINISHED", "Command exited with status 0".to_owned()),
        (Some(code), _) => ("TASK_FAILED", format!("Command exited with status {code}")),
        (None, signal) => ("TASK_FAILED", format!("Command ended by signal {signal:?}")),
    }
}
