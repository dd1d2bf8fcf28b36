//! Compares the updates of a task with the actions of the task.
//!
//! A task writes `began` into its file, and `ended HOW` right before it ends itself; it keeps the file locked while
//! anything of it lives. Both are examined when its end is reported, and again at the end of the run.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::framework::patience;

/// Returns the time that a returning agent takes to register, during which orders for it are lost too: 5 s, and more in an
/// emulated machine.
fn coming_back() -> Duration {
    patience() / 4
}

/// The behaviour of a task.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Kind {
    /// A task that exits by itself with this code.
    Exits(u8),
    /// A task that sends itself this signal.
    Signals(&'static str),
    /// A task that is killed once it runs.
    Killed,
    /// A task that is killed once it runs, and exits with 0 at the first signal.
    KilledGently,
    /// A task that is killed right after its launch.
    KilledEarly,
    /// A task that exceeds its time.
    Overdue,
    /// A task that exceeds its memory.
    Hungry,
    /// A member of a group whose tasks all exit with 0.
    Grouped,
    /// A member of a group in which another fails.
    TakenAlong,
    /// A member of a group that fails.
    FailsItsGroup,
    /// A task that runs until its agent is drained.
    Drained,
}

impl Kind {
    /// Returns a shell command that records itself in this file, and waits for this time before it ends itself.
    pub fn script(self, mark: &Path, nap: &str) -> String {
        let mark = mark.display();
        // Its child processes inherit the descriptor, and with it the lock.
        let began =
            format!("exec 9>> {mark}; flock -n 9 || echo twice >> {mark}; echo began >> {mark}");
        let rest = match self {
            Self::Exits(code) => format!("{nap}; echo ended {code} >> {mark}; exit {code}"),
            Self::Grouped => format!("{nap}; echo ended 0 >> {mark}; exit 0"),
            Self::FailsItsGroup => format!("{nap}; echo ended 5 >> {mark}; exit 5"),
            Self::Signals(signal) => {
                format!("{nap}; echo ended {signal} >> {mark}; kill -{signal} $$")
            }
            Self::KilledGently => "trap 'exit 0' TERM; while :; do sleep 0.1; done".to_owned(),
            Self::Hungry => {
                "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}; sleep 600".to_owned()
            }
            Self::Killed | Self::KilledEarly | Self::Overdue | Self::TakenAlong | Self::Drained => {
                "exec sleep 600".to_owned()
            }
        };
        format!("{began}; {rest}")
    }
}

/// The actions of a task, and whether it lived.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Observed {
    pub did: String,
    pub lives: bool,
}

impl Observed {
    pub fn began(&self) -> usize {
        self.did.lines().filter(|line| *line == "began").count()
    }

    /// Returns the end that the task announced.
    fn own_end(&self) -> Option<&str> {
        self.did
            .lines()
            .find_map(|line| line.strip_prefix("ended "))
    }
}

pub fn observe(mark: &Path) -> Observed {
    let did = std::fs::read_to_string(mark).unwrap_or_default();
    let file = File::open(mark).ok();
    let lock = file.map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock));
    Observed {
        did,
        lives: lock.is_some_and(|lock| lock.is_err()),
    }
}

/// The updates of a task.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    pub kind: Kind,
    /// The number of the task's group.
    group: Option<usize>,
    launched: Instant,
    /// The time when its end was reported.
    told_at: Option<Instant>,
    pub kill_asked: Option<Instant>,
    /// Each status once, in the order of their first arrival.
    statuses: Vec<Value>,
    /// The number of repeated statuses that differed.
    changed: usize,
    /// The actions of the task when its end was reported.
    pub end: Option<Observed>,
}

/// The pause before an unanswered kill is repeated.
const KILL_AGAIN: Duration = Duration::from_secs(2);

/// Returns the tasks whose kill must be repeated: it may be lost with its agent.
pub fn unanswered_kills(told: &BTreeMap<String, TaskRecord>) -> Vec<String> {
    let is_due = |told: &TaskRecord| {
        told.end.is_none() && told.kill_asked.is_some_and(|at| at.elapsed() >= KILL_AGAIN)
    };
    let due = told.iter().filter(|(_, told)| is_due(told));
    due.map(|(id, _)| id.clone()).collect()
}

impl TaskRecord {
    pub fn launched(kind: Kind, group: Option<usize>) -> Self {
        Self {
            kind,
            group,
            launched: Instant::now(),
            told_at: None,
            kill_asked: None,
            statuses: Vec::new(),
            changed: 0,
            end: None,
        }
    }

    /// Records a status; returns whether it is new. A status with a uuid comes again unchanged until it is acknowledged.
    pub fn record_update(&mut self, status: &Value) -> bool {
        // A kill of a task whose launch was refused gets this answer.
        if status["state"] == "TASK_UNKNOWN" && self.kill_asked.is_some() {
            return false;
        }
        let words =
            |status: &Value| ["state", "reason", "message"].map(|name| status[name].clone());
        let is_same = |known: &Value| {
            known["uuid"] == status["uuid"]
                && (status["uuid"].is_string() || words(known) == words(status))
        };
        let Some(known) = self.statuses.iter().find(|known| is_same(known)) else {
            self.statuses.push(status.clone());
            if is_terminal(status) {
                self.told_at.get_or_insert_with(Instant::now);
            }
            return true;
        };
        self.changed += usize::from(words(known) != words(status));
        false
    }

    /// Returns its updates, each status once.
    pub fn statuses(&self) -> &[Value] {
        &self.statuses
    }

    /// Whether its end was reported.
    pub fn is_over(&self) -> bool {
        self.told_at.is_some()
    }

    fn was_told(&self, state: &str) -> bool {
        self.statuses.iter().any(|status| status["state"] == state)
    }
}

pub fn is_terminal(status: &Value) -> bool {
    let state = status["state"].as_str().unwrap_or_default();
    ![
        "TASK_STAGING",
        "TASK_STARTING",
        "TASK_RUNNING",
        "TASK_KILLING",
    ]
    .contains(&state)
}

/// The events that may have kept a task from beginning.
#[derive(Clone, Debug, Default)]
pub struct Excuses {
    /// The times when an agent was killed, and when it was back.
    pub absences: Vec<(Instant, Instant)>,
    /// The times of power cuts, which end all tasks.
    pub cuts: Vec<Instant>,
    /// Whether a refusal of launches is allowed.
    pub launches_may_fail: bool,
}

/// Further facts about a task.
#[derive(Clone, Debug, Default)]
struct RunRecord {
    /// The actions of the task, and whether it lives, at the end of the run.
    after: Observed,
    /// Whether another task of its group never started.
    mate_never_began: bool,
    /// Whether another task of its group ended by itself.
    mate_ended: bool,
    /// Whether its launch may have been lost with an agent.
    may_be_lost: bool,
    /// Whether the power was cut between its launch and the report of its end.
    was_cut_off: bool,
    /// Whether its launch may have been refused.
    may_be_refused: bool,
}

/// Returns the errors in the updates of these tasks, whose marks are in this folder.
pub fn wrongs(told: &BTreeMap<String, TaskRecord>, marks: &Path, excuses: &Excuses) -> Vec<String> {
    let after: BTreeMap<&String, Observed> = told
        .keys()
        .map(|id| (id, observe(&marks.join(id))))
        .collect();
    let mut all = Vec::new();
    for (id, one) in told {
        let around = circumstances(told, &after, id, excuses);
        let wrong = violations(one, &around);
        if !wrong.is_empty() {
            let said: Vec<String> = one.statuses.iter().map(in_words).collect();
            let did = around.after.did.trim().replace('\n', ", ");
            all.push(format!(
                "{id} {:?}: {}\n    {}\n    did: {did}",
                one.kind,
                wrong.join("; "),
                said.join("\n    ")
            ));
        }
    }
    all
}

/// Returns the number of tasks by kind and final update.
pub fn counts(told: &BTreeMap<String, TaskRecord>) -> BTreeMap<(Kind, String), usize> {
    let mut counts: BTreeMap<(Kind, String), usize> = BTreeMap::new();
    for one in told.values() {
        let last = one.statuses.last();
        let what = last.map_or_else(|| "nothing".to_owned(), in_words);
        *counts.entry((one.kind, what)).or_default() += 1;
    }
    counts
}

fn circumstances(
    told: &BTreeMap<String, TaskRecord>,
    after: &BTreeMap<&String, Observed>,
    id: &String,
    excuses: &Excuses,
) -> RunRecord {
    let one = &told[id];
    let mates: Vec<&Observed> = told
        .iter()
        .filter(|(other, mate)| *other != id && mate.group.is_some() && mate.group == one.group)
        .map(|(other, _)| &after[other])
        .collect();
    // There was an absence between the order and the report that it was lost.
    let is_around = |(killed, back): &(Instant, Instant)| {
        one.told_at.is_some_and(|told| *killed <= told) && one.launched <= *back + coming_back()
    };
    let is_between =
        |cut: &Instant| one.launched <= *cut && one.told_at.is_none_or(|told| *cut <= told);
    RunRecord {
        after: after[id].clone(),
        mate_never_began: mates.iter().any(|mate| mate.began() == 0),
        mate_ended: mates.iter().any(|mate| mate.own_end().is_some()),
        may_be_lost: excuses.absences.iter().any(is_around),
        was_cut_off: excuses.cuts.iter().any(is_between),
        may_be_refused: excuses.launches_may_fail,
    }
}

fn in_words(status: &Value) -> String {
    let text = |name: &str| {
        let text = status[name].as_str().unwrap_or("-");
        text.lines().next().unwrap_or("-").to_owned()
    };
    let message = text("message");
    let message = message.split(" Maximum").next().unwrap_or_default();
    format!("{} {} {message}", text("state"), text("reason"))
}

/// Returns the errors in the updates of a task with these actions.
fn violations(told: &TaskRecord, around: &RunRecord) -> Vec<String> {
    let mut wrong = of_its_course(told, around);
    let Some(last) = told.statuses.last() else {
        return wrong;
    };
    let is_right = match around.after.began() {
        _ if is_of_the_cut(around, last) => true,
        0 => may_never_have_begun(told, around, last),
        _ => ended_so(told, around, last),
    };
    if !is_right {
        wrong.push("its end is not what was told".to_owned());
    }
    wrong
}

/// Whether the update reports the end by a power cut.
fn is_of_the_cut(around: &RunRecord, last: &Value) -> bool {
    around.was_cut_off
        && last["state"] == "TASK_FAILED"
        && last["reason"] == "REASON_AGENT_RESTARTED"
}

/// Checks that the task ran once, and that its updates came once, in order, and not before its end.
fn of_its_course(told: &TaskRecord, around: &RunRecord) -> Vec<String> {
    let mut wrong = Vec::new();
    let began = around.after.began();
    if began > 1 || around.after.did.contains("twice") {
        wrong.push("it was started twice".to_owned());
    }
    let ends = told.statuses.iter().filter(|one| is_terminal(one)).count();
    if ends != 1 {
        wrong.push(format!("{ends} ends were told"));
    }
    if told.changed > 0 {
        wrong.push("a status came again and said something else".to_owned());
    }
    let order = ["TASK_STARTING", "TASK_RUNNING", "TASK_KILLING"];
    let places: Vec<usize> = told
        .statuses
        .iter()
        .map(|status| order.iter().position(|one| status["state"] == *one))
        .map(|place| place.unwrap_or(order.len()))
        .collect();
    if !places.is_sorted() {
        wrong.push("out of order".to_owned());
    }
    match &told.end {
        Some(end) if end.lives => wrong.push("it lived when its end was told".to_owned()),
        Some(end) if end.did != around.after.did => {
            wrong.push("it went on after its end was told".to_owned());
        }
        _ => {}
    }
    if around.after.lives {
        wrong.push("it lives when all is over".to_owned());
    }
    let ends_itself = !matches!(
        told.kind,
        Kind::KilledEarly | Kind::TakenAlong | Kind::Overdue
    );
    let ran = ends_itself && (around.after.own_end().is_some() || told.kind == Kind::Hungry);
    let last = told.statuses.last();
    // A state that was not yet durable when the power failed is never reported.
    let is_cut = last.is_some_and(|last| is_of_the_cut(around, last));
    if began > 0 && ran && !is_cut && !told.was_told("TASK_RUNNING") {
        wrong.push("it ran, and that was not told".to_owned());
    }
    wrong
}

/// Whether this update may end a task that did not reach its first line.
fn may_never_have_begun(told: &TaskRecord, around: &RunRecord, last: &Value) -> bool {
    let was_ended = told.kill_asked.is_some() || told.group.is_some();
    if around.may_be_refused && !told.was_told("TASK_RUNNING") {
        return is_terminal(last) && last["state"] != "TASK_FINISHED";
    }
    match last["state"].as_str().unwrap_or_default() {
        "TASK_LOST" | "TASK_DROPPED" => around.may_be_lost && !told.was_told("TASK_RUNNING"),
        "TASK_KILLED" if last["reason"] == "REASON_AGENT_DRAINING" => told.kind == Kind::Drained,
        "TASK_KILLED" => was_ended,
        "TASK_FAILED" if last["reason"] == "REASON_AGENT_RESTARTED" => around.may_be_lost,
        "TASK_FAILED" => is_overdue(told, last),
        _ => false,
    }
}

fn is_overdue(told: &TaskRecord, last: &Value) -> bool {
    told.kind == Kind::Overdue && last["reason"] == "REASON_MAX_COMPLETION_TIME_REACHED"
}

/// Whether a started task may have ended in this way.
fn ended_so(told: &TaskRecord, around: &RunRecord, last: &Value) -> bool {
    let message = last["message"].as_str().unwrap_or_default();
    let killed = last["state"] == "TASK_KILLED";
    let failed = last["state"] == "TASK_FAILED";
    let by_signal = |name: &str| message == format!("Command terminated with signal {name}");
    match (told.kind, around.after.own_end()) {
        (Kind::Exits(0) | Kind::Grouped, Some(_)) => last["state"] == "TASK_FINISHED",
        (Kind::Exits(_) | Kind::FailsItsGroup, Some(code)) => {
            failed && message == format!("Command exited with status {code}")
        }
        (Kind::Signals("KILL"), Some(_)) => failed && by_signal("Killed"),
        (Kind::Signals(_), Some(_)) => failed && by_signal("Terminated"),
        (Kind::Killed | Kind::KilledGently | Kind::KilledEarly, _) => {
            killed && told.kill_asked.is_some()
        }
        (Kind::TakenAlong, _) => killed && (around.mate_ended || around.mate_never_began),
        (Kind::Overdue, _) => failed && is_overdue(told, last),
        (Kind::Drained, _) => killed && last["reason"] == "REASON_AGENT_DRAINING",
        (Kind::Hungry, _) => failed && last["reason"] == "REASON_CONTAINER_LIMITATION_MEMORY",
        // Another task of the group was not launched, which ends all of them.
        (Kind::Grouped | Kind::FailsItsGroup, None) => killed && around.mate_never_began,
        // The task should have ended by itself.
        (Kind::Exits(_) | Kind::Signals(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(uuid: &str, state: &str, message: &str) -> Value {
        json!({"uuid": uuid, "state": state, "message": message})
    }

    fn saw(did: &str) -> Observed {
        Observed {
            did: did.to_owned(),
            lives: false,
        }
    }

    /// Returns a task with updates for its start, its run and this end, and with these actions.
    fn story(kind: Kind, end: &Value, did: &str) -> (TaskRecord, RunRecord) {
        let mut told = TaskRecord::launched(kind, None);
        told.record_update(&status("1", "TASK_STARTING", ""));
        told.record_update(&status("2", "TASK_RUNNING", ""));
        told.record_update(end);
        told.end = Some(saw(did));
        let around = RunRecord {
            after: saw(did),
            ..RunRecord::default()
        };
        (told, around)
    }

    fn finished() -> Value {
        status("3", "TASK_FINISHED", "Command exited with status 0")
    }

    const DID: &str = "began\nended 0\n";

    #[test]
    fn correct_story_has_no_violations() {
        let (told, around) = story(Kind::Exits(0), &finished(), DID);
        assert_eq!(violations(&told, &around), Vec::<String>::new());
        let end = status("3", "TASK_FAILED", "Command exited with status 3");
        let (told, around) = story(Kind::Exits(3), &end, "began\nended 3\n");
        assert_eq!(violations(&told, &around), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_end_is_seen() {
        let lost = status("3", "TASK_LOST", "");
        let by_signal = status("3", "TASK_FAILED", "Command terminated with signal Killed");
        let killed = status("3", "TASK_KILLED", "");
        for end in [&lost, &by_signal, &killed] {
            let (told, around) = story(Kind::Exits(0), end, DID);
            assert_eq!(violations(&told, &around).len(), 1, "{end}");
        }
        // One task was killed without a request; another ended, but not by itself.
        let (told, around) = story(Kind::Killed, &killed, "began\n");
        assert_eq!(violations(&told, &around).len(), 1);
        let (told, around) = story(Kind::Exits(0), &finished(), "began\n");
        assert_eq!(violations(&told, &around).len(), 1);
    }

    #[test]
    fn drained_task_has_kill_reason() {
        let mut end = status("3", "TASK_KILLED", "");
        let (told, around) = story(Kind::Drained, &end, "began\n");
        assert_eq!(violations(&told, &around).len(), 1);
        end["reason"] = json!("REASON_AGENT_DRAINING");
        let (told, around) = story(Kind::Drained, &end, "began\n");
        assert_eq!(violations(&told, &around), Vec::<String>::new());
        // The task ended before the first line of its shell command.
        let (told, around) = story(Kind::Drained, &end, "");
        assert_eq!(violations(&told, &around), Vec::<String>::new());
        let (told, around) = story(Kind::Exits(0), &end, "");
        assert_eq!(violations(&told, &around).len(), 1);
    }

    #[test]
    fn a_second_start_is_seen() {
        let (told, around) = story(Kind::Exits(0), &finished(), "began\nbegan\nended 0\n");
        assert_eq!(violations(&told, &around), ["it was started twice"]);
    }

    #[test]
    fn changed_update_is_detected() {
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        told.statuses.remove(1);
        assert_eq!(
            violations(&told, &around),
            ["it ran, and that was not told"]
        );
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        told.record_update(&status("4", "TASK_FINISHED", ""));
        assert_eq!(violations(&told, &around), ["2 ends were told"]);
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        assert!(!told.record_update(&status("2", "TASK_KILLING", "")));
        assert_eq!(violations(&told, &around).len(), 1);
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        told.statuses.clear();
        assert_eq!(violations(&told, &around).len(), 2);
    }

    #[test]
    fn wrong_update_order_is_detected() {
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        told.statuses.swap(0, 1);
        assert_eq!(violations(&told, &around), ["out of order"]);
    }

    #[test]
    fn premature_end_is_detected() {
        let (mut told, around) = story(Kind::Exits(0), &finished(), DID);
        told.end = Some(saw("began\n"));
        let wrong = violations(&told, &around);
        assert_eq!(wrong, ["it went on after its end was told"]);
        told.end = Some(Observed {
            lives: true,
            ..saw(DID)
        });
        let wrong = violations(&told, &around);
        assert_eq!(wrong, ["it lived when its end was told"]);
    }

    #[test]
    fn launched_task_dies_with_agent_only() {
        let mut told = TaskRecord::launched(Kind::Exits(0), None);
        told.record_update(&status("1", "TASK_DROPPED", ""));
        let mut around = RunRecord::default();
        assert_eq!(violations(&told, &around).len(), 1);
        around.may_be_lost = true;
        assert_eq!(violations(&told, &around), Vec::<String>::new());
    }

    #[test]
    fn only_power_cut_explains_agent_restart() {
        let mut cut_off = status("3", "TASK_FAILED", "The machine was booted anew");
        cut_off["reason"] = json!("REASON_AGENT_RESTARTED");
        let (told, mut around) = story(Kind::Exits(0), &cut_off, "began\n");
        assert_eq!(violations(&told, &around), ["its end is not what was told"]);
        around.was_cut_off = true;
        assert_eq!(violations(&told, &around), Vec::<String>::new());
        let lost = status("3", "TASK_LOST", "");
        let (told, mut around) = story(Kind::Exits(0), &lost, "began\n");
        around.was_cut_off = true;
        assert_eq!(violations(&told, &around), ["its end is not what was told"]);
    }
}
