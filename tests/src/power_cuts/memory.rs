//! A framework's knowledge, written where the power stays, and the permitted updates of known tasks after a reboot.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::facts::{Holding, Reservation, Verb};
use crate::Framework;
use crate::audit::is_terminal;

/// The time for the end of each task to be reported.
const TELLING: Duration = Duration::from_secs(180);
/// The time for updates that should not come.
const AFTERWARDS: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The knowledge when the power failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    pub framework_id: String,
    pub agent_id: String,
    /// The number of boots before this one.
    pub life: usize,
    /// The number of operations that were sent.
    pub operations: usize,
    /// The reported states of each task.
    pub tasks: BTreeMap<String, Vec<String>>,
    pub reservations: BTreeMap<usize, Reservation>,
    /// The last synced number of each volume.
    pub synced: BTreeMap<usize, u64>,
}

impl Remembered {
    fn to_json(&self) -> Value {
        let held = self.reservations.iter().map(|(number, one)| {
            let sent = one.in_flight.as_ref();
            let sent = sent.map(|(id, verb)| json!([id, verb.to_string()]));
            json!([number, one.told.name(), sent, one.writers])
        });
        json!({
            "framework_id": self.framework_id, "agent_id": self.agent_id, "life": self.life,
            "operations": self.operations, "tasks": self.tasks,
            "reservations": held.collect::<Vec<_>>(),
            "synced": self.synced.iter().collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let mut known = Self {
            framework_id: text("framework_id")?,
            agent_id: text("agent_id")?,
            life: number(&value["life"])?,
            operations: number(&value["operations"])?,
            ..Self::default()
        };
        for (id, states) in value["tasks"].as_object()? {
            let states = states.as_array()?.iter().filter_map(Value::as_str);
            let states = states.map(str::to_owned).collect();
            known.tasks.insert(id.clone(), states);
        }
        for held in value["reservations"].as_array()? {
            let verb = Verb::ALL.into_iter();
            let verb = verb.into_iter().find(|verb| held[2][1] == verb.to_string());
            let sent = held[2][0].as_str().map(str::to_owned);
            let one = Reservation {
                told: Holding::named(held[1].as_str()?)?,
                in_flight: sent.zip(verb),
                writer: None,
                writers: number(&held[3])?,
            };
            known.reservations.insert(number(&held[0])?, one);
        }
        for pair in value["synced"].as_array()? {
            known.synced.insert(number(&pair[0])?, pair[1].as_u64()?);
        }
        Some(known)
    }

    /// Returns the last complete line.
    pub fn last_of(lines: &str) -> Option<Self> {
        let whole = lines.rsplit_once('\n')?.0;
        Self::from_json(&serde_json::from_str(whole.lines().next_back()?).ok()?)
    }
}

/// A file, or a disk, that receives one line after the other.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.custom_flags(libc::O_DSYNC).open(path).map(Self)
    }

    /// Writes the state, which is durable when this returns.
    pub fn write(&mut self, known: &Remembered) {
        let line = format!("{}\n", known.to_json());
        self.0.write_all(line.as_bytes()).expect("it has room");
    }
}

/// Collects the updates of the tasks that were known before a reboot; returns the errors, and the number of tasks by
/// update.
pub fn tasks_after_a_reboot(
    framework: &mut Framework,
    known: &Remembered,
) -> (Vec<String>, BTreeMap<String, usize>) {
    let mut told: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let end = Instant::now() + TELLING;
    let mut asked = Instant::now();
    let mut quiet_since = Instant::now();
    while Instant::now() < end {
        let open: Vec<&String> = known
            .tasks
            .iter()
            .filter(|(id, states)| {
                !is_over(states) && !told.get(*id).is_some_and(|all| has_end(all))
            })
            .map(|(id, _)| id)
            .collect();
        if !open.is_empty() {
            quiet_since = Instant::now();
            if asked.elapsed() >= ASK_AGAIN {
                asked = Instant::now();
                let tasks = open.iter().map(|id| {
                    json!({"task_id": {"value": id},
                    "agent_id": {"value": known.agent_id}})
                });
                let tasks: Vec<Value> = tasks.collect();
                framework.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": tasks}}));
            }
        } else if quiet_since.elapsed() >= AFTERWARDS {
            break;
        }
        let update = framework.within(Duration::from_millis(100), &|event| {
            event["type"] == "UPDATE"
        });
        let Ok(event) = update else { continue };
        let status = &event["update"]["status"];
        framework.acknowledge(status);
        let id = status["task_id"]["value"].as_str().unwrap_or_default();
        let all = told.entry(id.to_owned()).or_default();
        if !all
            .iter()
            .any(|one| one["uuid"] == status["uuid"] && one["state"] == status["state"])
        {
            all.push(status.clone());
        }
    }
    judge(known, &told)
}

fn has_end(statuses: &[Value]) -> bool {
    statuses.iter().any(is_terminal)
}

fn is_over(states: &[String]) -> bool {
    states
        .iter()
        .any(|state| is_terminal(&json!({"state": state})))
}

fn judge(
    known: &Remembered,
    told: &BTreeMap<String, Vec<Value>>,
) -> (Vec<String>, BTreeMap<String, usize>) {
    let mut wrong = Vec::new();
    let mut counts = BTreeMap::new();
    for (id, states) in &known.tasks {
        let none = Vec::new();
        let ends = told
            .get(id)
            .unwrap_or(&none)
            .iter()
            .filter(|one| is_terminal(one));
        let mut ends: Vec<&Value> = ends.collect();
        // The answer to a question repeats an earlier update, or reports an unknown task.
        if ends.iter().any(|one| one["uuid"].is_string()) {
            ends.retain(|one| one["uuid"].is_string());
        }
        let ends: Vec<String> = ends
            .iter()
            .map(|one| format!("{} {}", one["state"], one["reason"]).replace('"', ""))
            .collect();
        let before = states.last().map_or("nothing", String::as_str);
        let now = ends.join(", ");
        let is_right = match (is_over(states), ends.as_slice()) {
            (true, ends) => ends.iter().all(|end| end.starts_with(before)),
            // The agent knows its running tasks, whatever happens to the machine.
            (false, [end]) if !states.is_empty() => {
                let of_agent = ["TASK_FAILED", "TASK_FINISHED", "TASK_KILLED"];
                of_agent.iter().any(|state| end.starts_with(state))
            }
            (false, ends) => ends.len() == 1,
        };
        if !is_right {
            wrong.push(format!(
                "{id} was told as {states:?} before, and now as {now:?}"
            ));
        }
        *counts.entry(format!("{before} -> {now}")).or_default() += 1;
    }
    (wrong, counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Remembered {
        let reservation = Reservation {
            told: Holding::Reserved,
            in_flight: Some(("create-3-9".to_owned(), Verb::Create)),
            writer: None,
            writers: 2,
        };
        let states = |states: &[&str]| states.iter().map(|one| (*one).to_owned()).collect();
        Remembered {
            framework_id: "f".to_owned(),
            agent_id: "a".to_owned(),
            life: 1,
            operations: 9,
            tasks: [
                ("runs".to_owned(), states(&["TASK_RUNNING"])),
                ("sent".to_owned(), states(&[])),
                (
                    "over".to_owned(),
                    states(&["TASK_RUNNING", "TASK_FINISHED"]),
                ),
            ]
            .into(),
            reservations: [(3, reservation)].into(),
            synced: [(3, 17)].into(),
        }
    }

    #[test]
    fn known_facts_survive_a_truncated_line() {
        let lines = format!("{}\n{{\"framework_id\": \"f", known().to_json());
        assert_eq!(Remembered::last_of(&lines), Some(known()));
        assert_eq!(Remembered::last_of("{}"), None);
    }

    #[test]
    fn task_seen_running_is_never_unknown() {
        let status = |state: &str| json!({"state": state, "reason": "R"});
        let mut told = BTreeMap::from([
            ("runs".to_owned(), vec![status("TASK_FAILED")]),
            ("sent".to_owned(), vec![status("TASK_LOST")]),
        ]);
        assert_eq!(judge(&known(), &told).0, Vec::<String>::new());
        let mut by_agent = status("TASK_FAILED");
        by_agent["uuid"] = json!("u");
        told.insert("runs".to_owned(), vec![by_agent, status("TASK_FAILED")]);
        assert_eq!(judge(&known(), &told).0, Vec::<String>::new());
        told.insert("runs".to_owned(), vec![status("TASK_LOST")]);
        told.insert("over".to_owned(), vec![status("TASK_FAILED")]);
        told.remove("sent");
        assert_eq!(judge(&known(), &told).0.len(), 3);
    }
}
