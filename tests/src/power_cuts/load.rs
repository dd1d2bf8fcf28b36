//! A framework that keeps a node busy over power cuts, and remembers its updates.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::facts::{self, Holding, Place, Reservation, Verb};
use super::memory::{Memory, Remembered};
use crate::audit::{self, Excuses, Kind, TaskRecord, is_terminal, observe};
use crate::dice::Dice;
use crate::framework::task;
use crate::{Framework, http};

/// Concurrent tasks, and concurrent reservations.
const TASKS_MAX: usize = 16;
const RESERVATIONS_MAX: usize = 6;
/// Tasks that write to a volume before its destruction.
const WRITERS: usize = 3;
/// The pause before an unanswered kill is repeated.
const KILL_AGAIN: Duration = Duration::from_secs(2);
const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
/// The resources of a task in a group; a default executor needs some disk too.
const OF_A_GROUP: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0), ("disk", 1.0)];
/// The free CPUs that the launches of one accept need.
const CPUS_MIN: f64 = 2.0;
const MEMORY_MIN: f64 = 320.0;
const DISK_MIN: f64 = 64.0;
/// Tasks launched with one offer.
const LAUNCHES_MAX: usize = 6;

const ALONE: [Kind; 8] = [
    Kind::Exits(0),
    Kind::Killed,
    Kind::Exits(3),
    Kind::KilledEarly,
    Kind::KilledGently,
    Kind::Exits(0),
    Kind::Signals("KILL"),
    Kind::Overdue,
];

/// The counts besides tasks.
#[derive(Copy, Clone, Debug, Default)]
pub struct Counts {
    pub updates: usize,
    pub operations: usize,
    /// The operations that were reported as not executed.
    pub dropped: usize,
}

/// The framework, and its knowledge.
#[derive(Debug)]
pub struct Load {
    framework: Framework,
    place: Place,
    dice: Dice,
    /// Whether new tasks and operations are started.
    pub is_open: bool,
    tasks: BTreeMap<String, TaskRecord>,
    groups: usize,
    reservations: BTreeMap<usize, Reservation>,
    operations: usize,
    /// Whether each operation was reported as executed.
    outcomes: BTreeMap<String, bool>,
    killed: BTreeMap<String, Instant>,
    pub excuses: Excuses,
    pub wrong: Vec<String>,
    pub counts: Counts,
    /// The place where it writes its knowledge first, if its own power may be cut.
    memory: Option<Memory>,
    agent_id: String,
    life: usize,
}

impl Load {
    pub fn new(framework: Framework, place: Place, seed: u64) -> Self {
        Self {
            framework,
            place,
            dice: Dice::new(seed),
            is_open: true,
            tasks: BTreeMap::new(),
            groups: 0,
            reservations: BTreeMap::new(),
            operations: 0,
            outcomes: BTreeMap::new(),
            killed: BTreeMap::new(),
            excuses: Excuses::default(),
            wrong: Vec::new(),
            counts: Counts::default(),
            memory: None,
            agent_id: String::new(),
            life: 0,
        }
    }

    /// Sets the memory for its knowledge, and continues with the knowledge from before a reboot: its tasks are over, and
    /// the present state shows the results of operations.
    pub fn remember_in(&mut self, memory: Memory, agent_id: &str, known: Option<&Remembered>) {
        self.memory = Some(memory);
        agent_id.clone_into(&mut self.agent_id);
        if let Some(known) = known {
            self.reservations = facts::settled(&self.place, &known.reservations);
            self.operations = known.operations;
            self.life = known.life + 1;
        }
        self.remember();
    }

    fn remember(&mut self) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let states = |told: &TaskRecord| {
            let states = told
                .statuses()
                .iter()
                .map(|status| status["state"].as_str());
            states.flatten().map(str::to_owned).collect()
        };
        let tasks = self.tasks.iter();
        let held = self.reservations.keys();
        memory.write(&Remembered {
            framework_id: self.framework.id.clone(),
            agent_id: self.agent_id.clone(),
            life: self.life,
            operations: self.operations,
            tasks: tasks.map(|(id, told)| (id.clone(), states(told))).collect(),
            reservations: self.reservations.clone(),
            synced: held
                .filter_map(|number| Some((*number, facts::synced(&self.place, *number)?)))
                .collect(),
        });
    }

    /// Handles the next event, with this time limit.
    pub fn step(&mut self, limit: Duration) {
        match self.framework.within(limit, &|_| true) {
            Ok(event) if event["type"] == "OFFERS" => {
                for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
                    self.offered(offer);
                }
            }
            Ok(event) if event["type"] == "UPDATE" => self.updated(&event["update"]["status"]),
            Ok(event) if event["type"] == "UPDATE_OPERATION_STATUS" => {
                self.operation_told(&event["update_operation_status"]["status"]);
            }
            Ok(_) | Err("time is up") => {}
            Err(why) => panic!("{why}"),
        }
        let due = self
            .killed
            .iter()
            .filter(|(_, asked)| asked.elapsed() >= KILL_AGAIN);
        let due: Vec<String> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.kill(&id);
        }
    }

    /// Whether all updates have come and nothing is reserved any more.
    pub fn is_over(&self) -> bool {
        self.tasks.values().all(TaskRecord::is_over)
            && self
                .reservations
                .values()
                .all(|one| one.in_flight.is_none() && one.told == Holding::Nothing)
    }

    /// Returns the tasks and reservations that still wait for an update.
    pub fn left(&self) -> String {
        let tasks = self.tasks.iter().filter(|(_, told)| !told.is_over());
        let tasks: Vec<&str> = tasks.map(|(id, _)| id.as_str()).collect();
        let held = self.reservations.iter();
        let held: Vec<_> = held
            .filter(|(_, one)| one.in_flight.is_some() || one.told != Holding::Nothing)
            .collect();
        format!("tasks {tasks:?}, reservations {held:?}")
    }

    /// Checks that all updates are true, once the agent is back.
    pub fn check(&mut self, agent_id: &str) {
        let wrong = facts::wrongs(&self.place, agent_id, &self.reservations);
        self.wrong.extend(wrong);
    }

    /// Returns the errors in the updates of tasks, and the remaining folders, at the end.
    pub fn wrongs_at_the_end(&self) -> Vec<String> {
        let mut wrong = audit::wrongs(&self.tasks, &self.place.marks, &self.excuses);
        wrong.extend(facts::left_over(&self.place, &self.reservations));
        wrong
    }

    /// Returns the number of tasks by kind and final update.
    pub fn told(&self) -> BTreeMap<(Kind, String), usize> {
        audit::counts(&self.tasks)
    }

    pub fn volumes(&self) -> usize {
        self.reservations
            .values()
            .filter(|one| one.writers > 0)
            .count()
    }

    fn offered(&mut self, offer: &Value) {
        let mut operations = Vec::new();
        let resources = offer["resources"].as_array().cloned().unwrap_or_default();
        for resource in &resources {
            if let Some((number, holding)) = facts::numbered(resource) {
                operations.extend(self.with_reserved(offer, resource, number, holding));
            }
        }
        let mut early = Vec::new();
        if self.is_open && is_enough(&resources) {
            operations.extend(self.reserve_more());
            self.launch(offer, &mut operations, &mut early);
        }
        let filters = json!({"refuse_seconds": if operations.is_empty() { 0.2 } else { 0.0 }});
        if !operations.is_empty() {
            self.remember();
        }
        self.framework.accepted(json!({"type": "ACCEPT", "accept": {
            "offer_ids": [offer["id"]], "operations": operations, "filters": filters}}));
        for id in early {
            self.kill(&id);
        }
    }

    /// Takes the next step with a reservation: a volume, a task on it, or its end.
    fn with_reserved(
        &mut self,
        offer: &Value,
        resource: &Value,
        number: usize,
        holding: Holding,
    ) -> Option<Value> {
        let is_open = self.is_open;
        let one = self.reservations.get(&number)?;
        // An offer from before the last operation says nothing.
        if one.in_flight.is_some() || one.writer.is_some() || holding != one.told {
            return None;
        }
        let verb = match holding {
            Holding::Nothing => return None,
            Holding::Reserved if is_open && one.writers == 0 => Verb::Create,
            Holding::Reserved => Verb::Unreserve,
            Holding::Volume if is_open && one.writers < WRITERS => {
                return Some(self.write_to(offer, resource, number));
            }
            Holding::Volume => Verb::Destroy,
        };
        Some(self.operate(number, verb, Some(resource)))
    }

    fn operate(&mut self, number: usize, verb: Verb, offered: Option<&Value>) -> Value {
        self.operations += 1;
        let id = format!("{verb}-{number}-{}", self.operations);
        let operation = verb.operation(&id, number, offered);
        let one = self.reservations.entry(number).or_default();
        one.in_flight = Some((id, verb));
        operation
    }

    fn reserve_more(&mut self) -> Option<Value> {
        let held = self.reservations.values();
        let held = held.filter(|one| one.in_flight.is_some() || one.told != Holding::Nothing);
        let number = self.reservations.len();
        (held.count() < RESERVATIONS_MAX).then(|| self.operate(number, Verb::Reserve, None))
    }

    fn write_to(&mut self, offer: &Value, resource: &Value, number: usize) -> Value {
        let times = 5 + usize::try_from(self.dice.roll(40)).unwrap_or_default();
        let script = facts::writing(&self.place, number, times);
        let mut info = self.make(offer, "writer", Kind::Exits(0), None, &script);
        let resources = info["resources"].as_array_mut().expect("resources");
        resources.push(resource.clone());
        let one = self.reservations.entry(number).or_default();
        one.writers += 1;
        one.writer = info["task_id"]["value"].as_str().map(str::to_owned);
        json!({"type": "LAUNCH", "launch": {"task_infos": [info]}})
    }

    fn launch(&mut self, offer: &Value, operations: &mut Vec<Value>, early: &mut Vec<String>) {
        let under_way = self.tasks.values().filter(|told| !told.is_over()).count();
        let room = TASKS_MAX.saturating_sub(under_way).min(LAUNCHES_MAX);
        for _ in 0..room {
            if self.dice.roll(8) == 0 {
                operations.push(self.group(offer));
                continue;
            }
            let kind = *self.dice.pick(&ALONE).expect("some");
            let nap = self.nap();
            let mut info = self.make(offer, "task", kind, None, &nap);
            if kind == Kind::Overdue {
                info["max_completion_time"] = json!({"nanoseconds": 700_000_000});
            }
            if kind == Kind::KilledEarly {
                early.extend(info["task_id"]["value"].as_str().map(str::to_owned));
            }
            operations.push(json!({"type": "LAUNCH", "launch": {"task_infos": [info]}}));
        }
    }

    fn group(&mut self, offer: &Value) -> Value {
        self.groups += 1;
        let group = Some(self.groups);
        let kinds = match self.groups % 2 {
            0 => [Kind::FailsItsGroup, Kind::TakenAlong],
            _ => [Kind::Grouped; 2],
        };
        let nap = self.nap();
        let tasks = kinds.map(|kind| self.make(offer, "member", kind, group, &nap));
        let id = format!("group-{}-{}", self.life, self.groups);
        let executor = json!({"type": "DEFAULT", "executor_id": {"value": id},
            "framework_id": {"value": self.framework.id},
            "resources": task(offer, "x", "", OF_A_GROUP)["resources"]});
        json!({"type": "LAUNCH_GROUP", "launch_group": {
            "executor": executor, "task_group": {"tasks": tasks}}})
    }

    fn nap(&mut self) -> String {
        format!("sleep {}.{}", self.dice.roll(3), 1 + self.dice.roll(9))
    }

    fn make(
        &mut self,
        offer: &Value,
        name: &str,
        kind: Kind,
        group: Option<usize>,
        nap: &str,
    ) -> Value {
        let id = format!("{name}-{}-{:05}", self.life, self.tasks.len());
        let script = kind.script(&self.place.marks.join(&id), nap);
        let info = task(offer, &id, &script, SMALL);
        self.tasks.insert(id, TaskRecord::launched(kind, group));
        info
    }

    fn updated(&mut self, status: &Value) {
        self.counts.updates += 1;
        let id = status["task_id"]["value"].as_str().unwrap_or_default();
        let told = self.tasks.get_mut(id);
        let kind = told.as_ref().map(|told| told.kind);
        let is_new = told.is_some_and(|told| told.record_update(status));
        if is_new && is_terminal(status) {
            self.ended(id);
        }
        if is_new {
            self.remember();
        }
        self.framework.acknowledge(status);
        let is_killed = matches!(kind, Some(Kind::Killed | Kind::KilledGently));
        if is_new && is_killed && status["state"] == "TASK_RUNNING" {
            self.kill(id);
        }
    }

    fn ended(&mut self, id: &str) {
        let end = observe(&self.place.marks.join(id));
        if let Some(told) = self.tasks.get_mut(id) {
            told.end.get_or_insert(end);
        }
        self.killed.remove(id);
        let writes = |one: &&mut Reservation| one.writer.as_deref() == Some(id);
        if let Some(one) = self.reservations.values_mut().find(writes) {
            one.writer = None;
        }
    }

    fn kill(&mut self, id: &str) {
        self.framework.kill(id);
        if let Some(told) = self.tasks.get_mut(id) {
            told.kill_asked = Some(Instant::now());
            self.killed.insert(id.to_owned(), Instant::now());
        }
    }

    fn operation_told(&mut self, status: &Value) {
        let id = status["operation_id"]["value"].as_str().unwrap_or_default();
        match status["state"].as_str().unwrap_or_default() {
            "OPERATION_FINISHED" => self.operation_is_over(id, true),
            "OPERATION_DROPPED" | "OPERATION_ERROR" | "OPERATION_FAILED" => {
                self.operation_is_over(id, false);
            }
            _ => {}
        }
        if status.get("uuid").is_some() {
            self.framework
                .accepted(json!({"type": "ACKNOWLEDGE_OPERATION_STATUS",
                    "acknowledge_operation_status": {"agent_id": status["agent_id"],
                        "operation_id": {"value": id}, "uuid": status["uuid"]["value"]}}));
        }
    }

    fn operation_is_over(&mut self, id: &str, is_done: bool) {
        if self.outcomes.insert(id.to_owned(), is_done) == Some(!is_done) {
            self.wrong
                .push(format!("{id} was told as done and as not done"));
        }
        let waits =
            |one: &&mut Reservation| matches!(&one.in_flight, Some((sent, _)) if sent == id);
        let Some(one) = self.reservations.values_mut().find(waits) else {
            return;
        };
        let sent = one.in_flight.take();
        self.counts.operations += 1;
        self.counts.dropped += usize::from(!is_done);
        if let (Some((_, verb)), true) = (sent, is_done) {
            one.told = verb.after();
        }
        self.remember();
    }
}

/// Returns the master's view of its agent, if that is registered.
pub fn active_agent(place: &Place) -> Option<Value> {
    let slaves = http::try_get(&format!("{}/slaves", place.master_url)).ok()?;
    let agent = slaves.json()["slaves"].get(0)?.clone();
    (agent["active"] == true).then_some(agent)
}

/// Returns the time when the master last learned of its agent's start, in seconds; `None` before the first restart.
pub fn registered(place: &Place) -> Option<f64> {
    active_agent(place)?["reregistered_time"].as_f64()
}

/// Whether an offer has room for some tasks and a reservation.
fn is_enough(resources: &[Value]) -> bool {
    let free = |name: &str| {
        let all = resources.iter();
        all.filter(|one| one["name"] == name && one.get("reservations").is_none())
            .filter_map(|one| one["scalar"]["value"].as_f64())
            .sum::<f64>()
    };
    free("cpus") >= CPUS_MIN && free("mem") >= MEMORY_MIN && free("disk") >= DISK_MIN
}
