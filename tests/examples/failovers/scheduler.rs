//! The framework: long tasks that have to outlive everything, short ones that come and go, and their updates.
//!
//! It leaves a stream when that ends or when another master is known to lead, as frameworks do that watch for the leader,
//! and continues to read the streams that it has left: no event may come on them any more.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Encoding, Framework};
use serde_json::{Value, json};

use crate::board::{Board, Term};
use crate::offers::Offers;

/// The time limit of a call.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two launches of short tasks.
const SHORT_INTERVAL: Duration = Duration::from_millis(500);
/// The time for which an offer is held, so that offers of several masters could meet.
const OFFER_HELD: Duration = Duration::from_secs(1);
/// The silence after which the framework asks about a task.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// The time by which events sent before the framework left a stream have arrived.
const FORMER_LATE: Duration = Duration::from_secs(1);
/// Former streams that are still read.
const FORMER_MAX: usize = 4;
const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
/// The largest number of concurrent short tasks.
const SHORT_MAX: usize = 8;

/// The updates of a task.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) is_long: bool,
    pub(crate) agent: String,
    pub(crate) states: Vec<String>,
    heard: Instant,
}

impl Told {
    pub(crate) fn state(&self) -> &str {
        self.states.last().map_or("TASK_STAGING", String::as_str)
    }

    pub(crate) fn has_ended(&self) -> bool {
        ![
            "TASK_STAGING",
            "TASK_STARTING",
            "TASK_RUNNING",
            "TASK_KILLING",
            "TASK_UNREACHABLE",
        ]
        .contains(&self.state())
    }
}

/// The framework's view for other threads.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    tasks: Mutex<BTreeMap<String, Told>>,
    served_by: Mutex<Option<Term>>,
    rests: std::sync::atomic::AtomicBool,
}

impl Desk {
    fn tasks_mut(&self) -> MutexGuard<'_, BTreeMap<String, Told>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tasks(&self) -> BTreeMap<String, Told> {
        self.tasks_mut().clone()
    }

    /// Returns the term whose stream the framework reads.
    pub(crate) fn served_by(&self) -> Option<Term> {
        *self
            .served_by
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn set_served_by(&self, term: Option<Term>) {
        *self
            .served_by
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// Makes the framework launch no further tasks.
    pub(crate) fn rest(&self) {
        self.rests.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn rests(&self) -> bool {
        self.rests.load(std::sync::atomic::Ordering::Relaxed)
    }
}

struct Stream {
    term: Term,
    framework: Framework,
    offers: Offers,
}

/// A stream that the scheduler has left.
struct Former {
    term: Term,
    framework: Framework,
    left: Instant,
}

pub(crate) struct Scheduler<'a> {
    pub(crate) board: &'a Board,
    pub(crate) desk: &'a Desk,
    /// The intended number of long tasks.
    pub(crate) long: usize,
    pub(crate) agents: usize,
    /// The folder with one file per short task, with a line for its beginning and one for its end.
    pub(crate) marks: PathBuf,
    pub(crate) id: Option<String>,
    former: Vec<Former>,
    short: usize,
    last_short: Instant,
}

impl<'a> Scheduler<'a> {
    pub(crate) fn new(board: &'a Board, desk: &'a Desk, marks: PathBuf) -> Self {
        Self {
            board,
            desk,
            long: 0,
            agents: 1,
            marks,
            id: None,
            former: Vec::new(),
            short: 0,
            last_short: Instant::now(),
        }
    }

    /// Schedules until the end of the run.
    pub(crate) fn run(mut self) {
        let mut stream: Option<Stream> = None;
        while !self.board.is_over() {
            self.listen_to_former();
            let Some(current) = &mut stream else {
                stream = self.subscribe();
                if stream.is_none() {
                    std::thread::sleep(Duration::from_millis(100));
                }
                continue;
            };
            let leader = self.board.leader();
            let is_replaced = leader.is_some_and(|leader| leader != current.term);
            if is_replaced || !self.attend(current) {
                self.desk.set_served_by(None);
                if let Some(left) = stream.take() {
                    self.leave(left);
                }
            }
        }
    }

    fn subscribe(&mut self) -> Option<Stream> {
        let term = self.board.leader()?;
        let url = format!("{}/api/v1/scheduler", self.board.urls[term.master]);
        let mut info = framework_info("web");
        info["failover_timeout"] = json!(3600.0);
        if let Some(id) = &self.id {
            info["id"] = json!({"value": id});
        }
        let mut framework = Framework::try_subscribe(&url, Encoding::Json, &info).ok()?;
        framework.call_limit = CALL_LIMIT;
        self.id = Some(framework.id.clone());
        self.desk.set_served_by(Some(term));
        // The question covers every task that the master knows, once its agents are back.
        let all = json!({"type": "RECONCILE", "reconcile": {"tasks": []}});
        let _sent = framework.try_call(all);
        Some(Stream {
            term,
            framework,
            offers: Offers::default(),
        })
    }

    fn leave(&mut self, stream: Stream) {
        self.former.push(Former {
            term: stream.term,
            framework: stream.framework,
            left: Instant::now(),
        });
        if self.former.len() > FORMER_MAX {
            self.former.remove(0);
        }
    }

    /// Reads events that came on a stream before it was left; any other event while another master leads is an error.
    fn listen_to_former(&mut self) {
        for former in &mut self.former {
            while let Ok(event) = former.framework.within(Duration::ZERO, &|_| true) {
                let after = former.left.elapsed();
                let is_late = after > FORMER_LATE && !self.board.was_cut_off(former.term);
                if is_late && self.desk.served_by().is_some() {
                    let wrong = format!(
                        "{} sent {} {after:?} after the framework had gone on to another master",
                        former.term, event["type"]
                    );
                    self.board.note(wrong);
                }
            }
        }
    }

    /// Handles the next event, if one comes soon; returns whether the stream continues.
    fn attend(&mut self, stream: &mut Stream) -> bool {
        match stream
            .framework
            .within(Duration::from_millis(50), &|_| true)
        {
            Ok(event) if event["type"] == "OFFERS" => {
                let offers = event["offers"]["offers"].as_array().cloned();
                for offer in offers.unwrap_or_default() {
                    self.offered(stream, offer);
                }
            }
            Ok(event) if event["type"] == "RESCIND" => {
                let id = event["rescind"]["offer_id"]["value"].as_str();
                stream.offers.remove(id.unwrap_or_default());
            }
            Ok(event) if event["type"] == "UPDATE" => {
                self.updated(stream, &event["update"]["status"]);
            }
            Ok(event) if event["type"] == "ERROR" => {
                self.board.note(format!("the framework was told: {event}"));
                return false;
            }
            Ok(_) | Err("time is up") => {}
            Err(_) => return false,
        }
        self.use_offers(stream);
        self.ask(stream);
        true
    }

    fn offered(&self, stream: &mut Stream, offer: Value) {
        let agent = text(&offer["agent_id"]["value"]);
        let tasks = self.desk.tasks_mut();
        let running = tasks
            .values()
            .filter(|told| told.is_long && told.agent == agent && told.state() == "TASK_RUNNING");
        let used = f64::from(u32::try_from(running.count()).unwrap_or(u32::MAX)) * SMALL[0].1;
        drop(tasks);
        if let Err(wrong) = stream.offers.add(offer, used) {
            self.board.note(format!("{}: {wrong}", stream.term));
        }
    }

    fn use_offers(&mut self, stream: &mut Stream) {
        while let Some(offer) = stream.offers.take_older_than(OFFER_HELD) {
            let mut tasks = Vec::new();
            if !self.desk.rests() {
                tasks.extend(self.long_tasks(&offer));
                tasks.extend(self.short_task(&offer));
            }
            let operations: Vec<Value> = match tasks.is_empty() {
                true => Vec::new(),
                false => vec![json!({"type": "LAUNCH", "launch": {"task_infos": tasks}})],
            };
            let call = json!({"type": "ACCEPT", "accept": {
                "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 0.5}}});
            let _sent = stream.framework.try_call(call);
        }
    }

    /// Returns the long tasks still to be launched, of this agent's share.
    fn long_tasks(&self, offer: &Value) -> Vec<Value> {
        let agent = text(&offer["agent_id"]["value"]);
        let mut known = self.desk.tasks_mut();
        let share = self.long.div_ceil(self.agents);
        let is_here = |told: &&Told| told.is_long && told.agent == agent && !told.has_ended();
        let here = known.values().filter(is_here).count();
        let there_are = known.values().filter(|told| told.is_long).count();
        let missing = (self.long - there_are.min(self.long)).min(share - here.min(share));
        let ids = (there_are..there_are + missing).map(|number| (number, format!("long-{number}")));
        let mut tasks = Vec::new();
        for (number, id) in ids {
            // The process of a task is found by its number.
            let command = format!("exec sleep {}", long_sleep(number));
            tasks.push(task(offer, &id, &command, SMALL));
            known.insert(id, launched(true, &agent));
        }
        tasks
    }

    fn short_task(&mut self, offer: &Value) -> Option<Value> {
        let mut known = self.desk.tasks_mut();
        let live = known
            .values()
            .filter(|told| !told.is_long && !told.has_ended());
        if self.last_short.elapsed() < SHORT_INTERVAL || live.count() >= SHORT_MAX {
            return None;
        }
        self.last_short = Instant::now();
        self.short += 1;
        let id = format!("short-{}", self.short);
        let mark = self.marks.join(&id);
        let mark = mark.display();
        let command = format!("echo began >> {mark}; sleep 0.3; echo ended >> {mark}");
        let agent = text(&offer["agent_id"]["value"]);
        known.insert(id.clone(), launched(false, &agent));
        Some(task(offer, &id, &command, SMALL))
    }

    fn updated(&self, stream: &Stream, status: &Value) {
        if status["uuid"].is_string() {
            let call = json!({"type": "ACKNOWLEDGE", "acknowledge": {
                "agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]}});
            let _sent = stream.framework.try_call(call);
        }
        let (id, state) = (text(&status["task_id"]["value"]), text(&status["state"]));
        let mut tasks = self.desk.tasks_mut();
        let Some(told) = tasks.get_mut(&id) else {
            return self
                .board
                .note(format!("{}: {id} was never launched", stream.term));
        };
        told.heard = Instant::now();
        if told.state() == state {
            return;
        }
        if told.has_ended() && status["reason"] != "REASON_RECONCILIATION" {
            let before = told.state();
            self.board.note(format!(
                "{id} had ended with {before} and is told to be {state}"
            ));
        }
        told.states.push(state);
        if told.is_long && told.has_ended() {
            self.board.note(format!("{id} has ended: {status}"));
        }
    }

    /// Requests the state of tasks that should have ended.
    fn ask(&self, stream: &Stream) {
        let mut tasks = self.desk.tasks_mut();
        let is_due = |told: &Told| {
            !told.has_ended()
                && told.heard.elapsed() > ASK_AFTER
                && !(told.is_long && told.state() == "TASK_RUNNING")
        };
        let due = tasks.iter_mut().filter(|(_, told)| is_due(told));
        let asked: Vec<_> = due
            .map(|(id, told)| {
                told.heard = Instant::now();
                json!({"task_id": {"value": id}, "agent_id": {"value": told.agent}})
            })
            .collect();
        drop(tasks);
        if !asked.is_empty() {
            let call = json!({"type": "RECONCILE", "reconcile": {"tasks": asked}});
            let _sent = stream.framework.try_call(call);
        }
    }
}

/// Returns the seconds that a long task sleeps, by its number, which no other process uses.
pub(crate) fn long_sleep(number: usize) -> usize {
    86_400_000 + number
}

fn launched(is_long: bool, agent: &str) -> Told {
    Told {
        is_long,
        agent: agent.to_owned(),
        states: Vec::new(),
        heard: Instant::now(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
