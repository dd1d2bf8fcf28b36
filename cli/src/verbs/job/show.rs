//! Tables of jobs, their tasks and their history.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meseta_daemon::calendar;
use serde_json::Value;

use super::super::tasks::age;
use super::super::{items, table, text};
use crate::terminal;

const JOBS: [&str; 8] = [
    "NAME", "KIND", "STATE", "RUNNING", "HEALTHY", "FAILED", "ROLE", "WHY",
];
const VOLUMES: [&str; 7] = ["JOB", "INDEX", "STATE", "SIZE", "PATH", "HOST", "VOLUME"];
const TASKS: [&str; 8] = [
    "TASK", "INDEX", "VERSION", "STATE", "HEALTHY", "HOST", "PORTS", "SINCE",
];

pub(super) fn jobs(body: &Value) {
    let rows = items(body, "jobs").iter().map(job_row).collect();
    table::print_wrapped(&JOBS, rows);
}

/// Returns the row of a job: a service counts its running tasks, a batch its successes.
fn job_row(job: &Value) -> Vec<String> {
    let of_count = |key: &str| format!("{}/{}", text(job, key), text(job, "count"));
    vec![
        text(job, "name"),
        text(job, "kind"),
        text(job, "state"),
        of_count("running"),
        match text(job, "kind").as_str() {
            "service" => of_count("healthy"),
            _ => format!("{} done", of_count("succeeded")),
        },
        text(job, "failed"),
        text(job, "role"),
        text(job, "why"),
    ]
}

pub(super) fn status(job: &Value) {
    for line in summary(job) {
        terminal::say(&line);
    }
    let tasks = items(job, "tasks");
    if !tasks.is_empty() {
        terminal::say("");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        table::print(
            &TASKS,
            tasks.iter().map(|task| task_row(task, now)).collect(),
        );
    }
    if !items(job, "volumes").is_empty() {
        terminal::say("");
        volumes(job);
    }
    let troubles = tasks.iter().filter(|task| is_trouble(task));
    for task in troubles {
        terminal::say(&format!(
            "{}: {}",
            text(task, "task_id"),
            first_line(&text(task, "message"))
        ));
    }
}

/// Whether a task's last message is worth a line: for a healthy task it only explains how the state became known.
pub(super) fn is_trouble(task: &Value) -> bool {
    let is_well = text(task, "state") == "TASK_RUNNING" && text(task, "healthy") == "yes";
    !is_well && text(task, "message") != "-"
}

pub(super) fn summary(job: &Value) -> Vec<String> {
    let mut lines = vec![
        format!(
            "job      {} ({}, version {})",
            text(job, "name"),
            text(job, "kind"),
            text(job, "version")
        ),
        format!("role     {}", text(job, "role")),
        format!("state    {}", text(job, "state")),
        format!(
            "tasks    {} wanted, {} running, {} healthy, {} pending, {} failed, {} succeeded",
            text(job, "count"),
            text(job, "running"),
            text(job, "healthy"),
            text(job, "pending"),
            text(job, "failed"),
            text(job, "succeeded")
        ),
    ];
    if let Some(update) = job.get("update").filter(|update| update.is_object()) {
        lines.push(format!(
            "update   from version {} to {}: {}",
            text(update, "from"),
            text(update, "to"),
            text(update, "state")
        ));
    }
    if let Some(next) = job.get("next_run").and_then(Value::as_f64) {
        lines.push(format!("next     {}", calendar::utc(next)));
    }
    lines.extend(failure_line(job));
    if text(job, "why") != "-" {
        lines.push(format!("why      {}", text(job, "why")));
    }
    let obstacles = items(job, "obstacles").iter().filter_map(Value::as_str);
    lines.extend(obstacles.map(|obstacle| format!("         {obstacle}")));
    lines
}

/// Returns a line about the last failed task: how it failed, the number of failures, and the time of the next attempt.
fn failure_line(job: &Value) -> Option<String> {
    let failure = job.get("last_failure").filter(|one| one.is_object())?;
    let count = failure.get("failures").and_then(Value::as_u64).unwrap_or(1);
    let failures = if count == 1 { "failure" } else { "failures" };
    let mut line = format!(
        "failed   {}: {}, {}; {count} {failures}",
        text(failure, "task_id"),
        text(failure, "text"),
        ago(failure)
    );
    if let Some(next) = failure.get("next_attempt").and_then(Value::as_f64) {
        line += &format!("; next attempt {}", calendar::utc(next));
    }
    Some(line)
}

/// Returns the first line of a message: the kernel's memory statistics have many.
fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

fn task_row(task: &Value, now: Duration) -> Vec<String> {
    let ports = task.get("ports").and_then(Value::as_object);
    let ports: Vec<String> = ports
        .into_iter()
        .flatten()
        .map(|(name, number)| format!("{name}:{number}"))
        .collect();
    let since = task.get("since").and_then(Value::as_f64);
    vec![
        text(task, "task_id"),
        text(task, "index"),
        text(task, "version"),
        text(task, "state"),
        text(task, "healthy"),
        text(task, "hostname"),
        if ports.is_empty() {
            "-".to_owned()
        } else {
            ports.join(",")
        },
        since.map_or_else(|| "-".to_owned(), |since| age(now, since)),
    ]
}

pub(super) fn volumes(body: &Value) {
    let row = |volume: &Value| {
        let [job, index, state] = ["job", "index", "state"].map(|key| text(volume, key));
        let size = format!("{} MB", text(volume, "size_mb"));
        let [path, host, id] = ["path", "hostname", "volume_id"].map(|key| text(volume, key));
        vec![job, index, state, size, path, host, id]
    };
    table::print(&VOLUMES, items(body, "volumes").iter().map(row).collect());
}

/// Prints the versions and the events of a job.
pub(super) fn history(body: &Value) {
    let versions = items(body, "versions").iter();
    let is = |one: &Value, key: &str| one.get(key).and_then(Value::as_bool) == Some(true);
    let standing = |one: &Value| match (is(one, "current"), is(one, "stable")) {
        (true, true) => "current, was healthy",
        (true, false) => "current",
        (false, true) => "was healthy",
        (false, false) => "",
    };
    let row = |one: &Value| {
        let (version, count) = (text(one, "version"), text(one, "count"));
        vec![version, count, standing(one).to_owned(), ago(one)]
    };
    table::print(
        &["VERSION", "COUNT", "STATE", "AT"],
        versions.map(row).collect(),
    );
    let events = items(body, "events");
    if events.is_empty() {
        return;
    }
    terminal::say("");
    let row = |one: &Value| vec![ago(one), text(one, "task_id"), text(one, "text")];
    table::print_wrapped(&["AT", "TASK", "EVENT"], events.iter().map(row).collect());
}

/// Returns the age of an object, by its `time` in seconds since the Unix epoch.
fn ago(one: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = one.get("time").and_then(Value::as_f64);
    time.map_or_else(String::new, |time| {
        format!("{} ago", age(now.unwrap_or_default(), time))
    })
}

/// Returns the changes of a file, the places of its tasks, and the obstacles.
pub(super) fn plan(name: &str, plan: &Value) -> Vec<String> {
    let changes = items(plan, "changes");
    let mut lines = match changes {
        [] => vec![format!("job {name}: nothing would change")],
        changes => std::iter::once(format!("job {name} would change:"))
            .chain(
                changes
                    .iter()
                    .map(|change| format!("  {}", change_line(change))),
            )
            .collect(),
    };
    lines.push(format!(
        "{} of {} tasks would fit now",
        text(plan, "fits"),
        text(plan, "wants")
    ));
    let places = items(plan, "places").iter();
    lines.extend(
        places.map(|place| format!("  {} on {}", text(place, "tasks"), text(place, "hostname"))),
    );
    if plan
        .get("runs")
        .and_then(Value::as_u64)
        .is_some_and(|runs| runs > 0)
    {
        lines.push(format!("{} continue unchanged", text(plan, "runs")));
    }
    let obstacles = items(plan, "obstacles").iter().filter_map(Value::as_str);
    lines.extend(obstacles.map(|obstacle| format!("  in the way: {obstacle}")));
    lines
}

/// Returns a text unchanged, or a field with its old and new values.
pub(super) fn change_line(change: &Value) -> String {
    if let Some(text) = change.as_str() {
        return text.to_owned();
    }
    let value = |key: &str| match change.get(key) {
        None | Some(Value::Null) => "absent".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    format!("{}: {} -> {}", value("field"), value("from"), value("to"))
}
