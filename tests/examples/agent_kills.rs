//! Kills the agent again and again under tasks of every kind, and holds what is told of each against what it did.
//!
//! `cargo build && cargo run -p meseta-tests --example agent_kills -- [KILLS] [TASKS] [SEED]` as root: 100 kills
//! under 1,300 tasks unless given. Each task leaves marks in a folder of its own: when it began, and how it
//! ended itself. Prints what was told, by kind of task, and every wrong word; ends with 1 if there was one.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, Setup};
use serde_json::{Value, json};

/// Tasks under way at a time.
const AT_ONCE: usize = 48;
/// Pause before a kill that was not answered is asked for again.
const KILL_AGAIN: Duration = Duration::from_secs(2);
/// How long the last tasks may take to be told.
const PATIENCE: Duration = Duration::from_secs(180);
const SMALL: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0)];

/// What a task does.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
enum Kind {
    /// Exits with this code, by itself.
    Exits(u8),
    /// Sends itself this signal.
    Signals(&'static str),
    /// Is killed once it runs.
    Killed,
    /// The same, and exits with 0 at the first signal.
    KilledGently,
    /// Is killed as soon as it was launched.
    KilledEarly,
    /// Runs longer than it may.
    Overdue,
    /// Takes more memory than it has.
    Hungry,
    /// One of a group whose tasks all exit with 0.
    Grouped,
    /// One of a group in which another fails.
    TakenAlong,
    /// The one that fails.
    FailsItsGroup,
}

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

#[derive(Debug)]
struct Told {
    kind: Kind,
    /// Uuids and states, in the order in which they came first.
    statuses: Vec<(String, Value)>,
    kill_asked: Option<Instant>,
    is_over: bool,
}

/// Chance, from one number.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        // Knuth's multiplier; the low bits are poor.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let mut number = |usual: u64| {
        given
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(usual)
    };
    let (kills, tasks, seed) = (number(100), number(1_300), number(7));
    let setup = Setup {
        agent_flags: vec!["--resources=cpus:64;mem:16384;disk:4096".to_owned()],
        ..Setup::default()
    };
    let mut cluster = Cluster::start(setup);
    let marks = cluster.dir.path().join("marks");
    std::fs::create_dir(&marks).expect("made");
    let tasks = usize::try_from(tasks).expect("few");
    let over = Arc::new(AtomicUsize::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let scheduler = Scheduler {
        framework: cluster.framework(),
        marks: marks.clone(),
        left: tasks,
        live: 0,
        number: 0,
        told: BTreeMap::new(),
        over: over.clone(),
        kills_are_over: is_done.clone(),
    };
    let scheduling = std::thread::spawn(move || scheduler.run());
    let mut chance = Chance(seed);
    for kill in 0..kills {
        // Spread over the work, however fast that goes.
        let due =
            tasks * usize::try_from(kill).expect("few") / usize::try_from(kills).expect("few");
        while over.load(Ordering::Relaxed) + AT_ONCE / 2 < due && !scheduling.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(chance.below(900)));
        cluster.restart_agent(0);
    }
    is_done.store(true, Ordering::Relaxed);
    let told = scheduling.join().expect("the scheduler ends");
    println!("{kills} kills of the agent under {} tasks", told.len());
    report(&told, &marks)
}

struct Scheduler {
    framework: Framework,
    marks: PathBuf,
    left: usize,
    live: usize,
    number: usize,
    told: BTreeMap<String, Told>,
    over: Arc<AtomicUsize>,
    kills_are_over: Arc<AtomicBool>,
}

impl Scheduler {
    fn run(mut self) -> BTreeMap<String, Told> {
        let mut last_word = Instant::now();
        while self.left > 0 || self.live > 0 {
            let event = self.framework.within(Duration::from_millis(100), &|_| true);
            match event {
                Ok(event) if event["type"] == "OFFERS" => self.offered(&event),
                Ok(event) if event["type"] == "UPDATE" => {
                    last_word = Instant::now();
                    self.updated(&event["update"]["status"]);
                }
                Ok(_) => {}
                Err("time is up") => {}
                Err(why) => panic!("{why}"),
            }
            self.kill_again();
            if self.kills_are_over.load(Ordering::Relaxed) && last_word.elapsed() > PATIENCE {
                return self.told;
            }
        }
        self.told
    }

    fn offered(&mut self, event: &Value) {
        let offers = event["offers"]["offers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for offer in offers {
            let mut operations = Vec::new();
            let mut early = Vec::new();
            while self.left > 0 && self.live < AT_ONCE {
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
            let tasks: Vec<Value> = kinds.iter().map(|kind| self.make(offer, *kind)).collect();
            let executor = json!({
                "type": "DEFAULT", "executor_id": {"value": format!("e{}", self.number)},
                "framework_id": {"value": self.framework.id},
                "resources": task(offer, "x", "", SMALL)["resources"]});
            return json!({"type": "LAUNCH_GROUP", "launch_group": {
                "executor": executor, "task_group": {"tasks": tasks}}});
        }
        let kind = ALONE[self.number % ALONE.len()];
        let task = self.make(offer, kind);
        if kind == Kind::KilledEarly {
            early.push(task["task_id"]["value"].as_str().expect("an id").to_owned());
        }
        json!({"type": "LAUNCH", "launch": {"task_infos": [task]}})
    }

    fn make(&mut self, offer: &Value, kind: Kind) -> Value {
        let id = format!("t{:05}", self.told.len());
        let mark = self.marks.join(&id);
        let mark = mark.display();
        let began = format!("echo began >> {mark}");
        let nap = format!("sleep 0.{}", 1 + self.told.len() % 9);
        let rest = match kind {
            Kind::Exits(code) => format!("{nap}; echo ended {code} >> {mark}; exit {code}"),
            Kind::Grouped => format!("{nap}; echo ended 0 >> {mark}; exit 0"),
            Kind::FailsItsGroup => format!("{nap}; echo ended 5 >> {mark}; exit 5"),
            Kind::Signals(signal) => {
                format!("{nap}; echo ended {signal} >> {mark}; kill -{signal} $$")
            }
            Kind::KilledGently => "trap 'exit 0' TERM; while :; do sleep 0.1; done".to_owned(),
            Kind::Hungry => {
                "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}; sleep 600".to_owned()
            }
            Kind::Killed | Kind::KilledEarly | Kind::Overdue | Kind::TakenAlong => {
                "exec sleep 600".to_owned()
            }
        };
        let mut info = task(offer, &id, &format!("{began}; {rest}"), SMALL);
        if kind == Kind::Overdue {
            info["max_completion_time"] = json!({"nanoseconds": 700_000_000});
        }
        self.left -= 1;
        self.live += 1;
        let told = Told {
            kind,
            statuses: Vec::new(),
            kill_asked: None,
            is_over: false,
        };
        self.told.insert(id, told);
        info
    }

    fn updated(&mut self, status: &Value) {
        let id = status["task_id"]["value"]
            .as_str()
            .expect("an id")
            .to_owned();
        // Before anybody else hears of it: an acknowledgement may get lost with an agent.
        self.framework.acknowledge(status);
        let Some(told) = self.told.get_mut(&id) else {
            return;
        };
        let uuid = status["uuid"].as_str().unwrap_or_default().to_owned();
        if told.statuses.iter().any(|(known, _)| *known == uuid) {
            return;
        }
        told.statuses.push((uuid, status.clone()));
        let is_killed = matches!(told.kind, Kind::Killed | Kind::KilledGently);
        if is_killed && status["state"] == "TASK_RUNNING" {
            self.kill(&id);
        } else if is_terminal(status) && !told.is_over {
            told.is_over = true;
            self.live -= 1;
            self.over.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn kill(&mut self, id: &str) {
        self.framework.kill(id);
        if let Some(told) = self.told.get_mut(id) {
            told.kill_asked = Some(Instant::now());
        }
    }

    /// A kill is lost with the agent that had it.
    fn kill_again(&mut self) {
        let is_due = |told: &Told| {
            !told.is_over && told.kill_asked.is_some_and(|at| at.elapsed() >= KILL_AGAIN)
        };
        let due = self.told.iter().filter(|(_, told)| is_due(told));
        let due: Vec<String> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.kill(&id);
        }
    }
}

fn is_terminal(status: &Value) -> bool {
    let state = status["state"].as_str().unwrap_or_default();
    ![
        "TASK_STAGING",
        "TASK_STARTING",
        "TASK_RUNNING",
        "TASK_KILLING",
    ]
    .contains(&state)
}

fn report(told: &BTreeMap<String, Told>, marks: &Path) -> ExitCode {
    let mut counts: BTreeMap<(Kind, String), usize> = BTreeMap::new();
    let mut wrong = 0;
    for (id, told) in told {
        let text = std::fs::read_to_string(marks.join(id)).unwrap_or_default();
        let last = told.statuses.last().map(|(_, status)| status);
        let what = last.map_or_else(|| "nothing".to_owned(), in_words);
        *counts.entry((told.kind, what)).or_default() += 1;
        for why in complaints(told, &text) {
            wrong += 1;
            println!("WRONG {id} {:?}: {why}", told.kind);
            for (_, status) in &told.statuses {
                println!("    {}", in_words(status));
            }
            println!("    did: {}", text.trim().replace('\n', ", "));
        }
    }
    for ((kind, what), count) in counts {
        println!("{count:6} {kind:?}: {what}");
    }
    println!("{wrong} wrong");
    match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn in_words(status: &Value) -> String {
    let text = |name: &str| {
        status[name]
            .as_str()
            .unwrap_or("-")
            .lines()
            .next()
            .unwrap_or("-")
            .to_owned()
    };
    let message = text("message");
    let message = message.split(" Maximum").next().unwrap_or_default();
    format!("{} {} {message}", text("state"), text("reason"))
}

/// What is wrong with what was told of a task that did this.
fn complaints(told: &Told, did: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let began = did.lines().filter(|line| *line == "began").count();
    let own_end = did.lines().find_map(|line| line.strip_prefix("ended "));
    if began > 1 {
        wrong.push("it was started twice".to_owned());
    }
    let states: Vec<&str> = told
        .statuses
        .iter()
        .filter_map(|(_, status)| status["state"].as_str())
        .collect();
    let ends = told
        .statuses
        .iter()
        .filter(|(_, status)| is_terminal(status))
        .count();
    if ends != 1 {
        wrong.push(format!("{ends} ends were told"));
    }
    let order = ["TASK_STARTING", "TASK_RUNNING", "TASK_KILLING"];
    let places: Vec<usize> = states
        .iter()
        .map(|state| order.iter().position(|one| one == state).unwrap_or(3))
        .collect();
    if !places.is_sorted() {
        wrong.push("out of order".to_owned());
    }
    let Some((_, last)) = told.statuses.last() else {
        return wrong;
    };
    let state = last["state"].as_str().unwrap_or_default();
    let message = last["message"].as_str().unwrap_or_default();
    if began == 0 {
        // Never launched, and told so: the agent, or the order, was lost on its way.
        if state == "TASK_FINISHED" || states.contains(&"TASK_RUNNING") {
            // It may have been killed before its first line.
            if told.kill_asked.is_none()
                && told.kind != Kind::TakenAlong
                && told.kind != Kind::Overdue
            {
                wrong.push("told to have run, and did not".to_owned());
            }
        }
        return wrong;
    }
    let by_signal = |name: &str| message == format!("Command terminated with signal {name}");
    let killed = state == "TASK_KILLED";
    let right = match (told.kind, own_end) {
        (Kind::Exits(0) | Kind::Grouped, Some(_)) => state == "TASK_FINISHED",
        (Kind::Exits(_) | Kind::FailsItsGroup, Some(code)) => {
            state == "TASK_FAILED" && message == format!("Command exited with status {code}")
        }
        (Kind::Signals("KILL"), Some(_)) => state == "TASK_FAILED" && by_signal("Killed"),
        (Kind::Signals(_), Some(_)) => state == "TASK_FAILED" && by_signal("Terminated"),
        (Kind::Killed | Kind::KilledGently | Kind::KilledEarly | Kind::TakenAlong, _) => killed,
        (Kind::Overdue, _) => {
            state == "TASK_FAILED" && last["reason"] == "REASON_MAX_COMPLETION_TIME_REACHED"
        }
        (Kind::Hungry, _) => {
            state == "TASK_FAILED" && last["reason"] == "REASON_CONTAINER_LIMITATION_MEMORY"
        }
        // Another of its group may not have been launched, which ends them all.
        (Kind::Grouped, None) => killed,
        // It ends itself, and did not.
        (Kind::Exits(_) | Kind::FailsItsGroup | Kind::Signals(_), None) => false,
    };
    if !right {
        wrong.push("told what it was not".to_owned());
    }
    wrong
}
