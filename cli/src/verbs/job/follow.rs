//! The progress of a job from its submission until it is healthy or has ended: the messages on the way, and the exit code.
//!
//! [`Progress`] decides and is pure; [`follow`] queries the scheduler and prints.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use http::StatusCode;
use serde_json::Value;

use super::super::{items, server, text};
use super::api::{self, Scheduler};
use super::stderr;
use crate::terminal;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The absence after which a scheduler is given up: the next leader takes over sooner.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// The number of answers with an older state of a job, or without it, that may come from a scheduler which does not know
/// yet that it no longer leads.
const OLDER_MAX: u32 = 10;

/// The outcome of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Good,
    Bad,
}

/// The reported progress of a job.
#[derive(Debug)]
pub(super) struct Progress {
    version: u64,
    last: Option<String>,
    /// Whether an obstacle was printed in the present state: obstacles change with each offer.
    has_obstacle: bool,
    has_reverted: bool,
    /// The number of consecutive answers in which only an older version runs.
    older: u32,
    /// The number of consecutive answers without the job.
    missing: u32,
}

impl Progress {
    pub(super) const fn new(version: u64) -> Self {
        Self {
            version,
            last: None,
            has_obstacle: false,
            has_reverted: false,
            older: 0,
            missing: 0,
        }
    }

    /// Counts another answer without a job that was seen; returns the message once the job is gone for good.
    pub(super) fn gone(&mut self, name: &str) -> Option<String> {
        self.missing += 1;
        // The scheduler answers the same for an invisible role.
        (self.missing > OLDER_MAX).then(|| {
            format!(
                "job {name} no longer exists: it was purged, or you may no longer view its role"
            )
        })
    }

    /// Returns the new lines, and the ending once there is one.
    pub(super) fn observe(&mut self, job: &Value) -> (Vec<String>, Option<Ending>) {
        self.missing = 0;
        let state = text(job, "state");
        let version = job.get("version").and_then(Value::as_u64);
        self.has_reverted |= state == "reverting";
        let is_ours = version.is_none_or(|version| version == self.version);
        // Its instances may still have run, so that the rollback was over between two looks.
        let is_older = version.is_some_and(|version| version < self.version);
        self.older = match state.as_str() {
            "healthy" | "complete" if is_older => self.older + 1,
            _ => 0,
        };
        self.has_reverted |= self.older > OLDER_MAX;
        let line = describe(job, &state);
        let obstacle = obstacle_text(job);
        let is_same = self.last.as_ref() == Some(&line);
        let is_new = !is_same || (!self.has_obstacle && obstacle.is_some());
        self.has_obstacle = obstacle.is_some() || (is_same && self.has_obstacle);
        self.last = Some(line.clone());
        let ending = match state.as_str() {
            "healthy" | "complete" if self.has_reverted => Some(Ending::Bad),
            "healthy" | "complete" if is_ours => Some(Ending::Good),
            "failed" | "stopped" => Some(Ending::Bad),
            // Another client has submitted or reverted it meanwhile.
            _ if version.is_some_and(|version| version > self.version) => Some(Ending::Bad),
            _ => None,
        };
        let line = line + &obstacle.unwrap_or_default();
        let mut lines: Vec<String> = is_new.then_some(line).into_iter().collect();
        if ending == Some(Ending::Bad) && (!is_ours || self.has_reverted) {
            lines.push(self.why_other(job));
        }
        (lines, ending)
    }

    /// The reason why another version runs than the followed version.
    fn why_other(&self, job: &Value) -> String {
        let (wanted, version) = (self.version, text(job, "version"));
        let failed = job.get("failed_update");
        let failed = failed
            .filter(|failed| failed.get("version").and_then(Value::as_u64) == Some(self.version));
        match failed {
            Some(failed) => format!(
                "version {wanted} does not run: {}; the job is at version {version}",
                text(failed, "why")
            ),
            None => format!(
                "version {wanted} does not run: the job is at version {version}; `meseta job \
                 history {}` shows why",
                text(job, "name")
            ),
        }
    }
}

/// Describes a job, as in `web: updating, 2 of 3 running, 1 healthy: short of cpus:1`.
fn describe(job: &Value, state: &str) -> String {
    let number = |key: &str| job.get(key).and_then(Value::as_u64).unwrap_or_default();
    let mut line = format!("{}: {state}, ", text(job, "name"));
    if text(job, "kind") == "service" {
        line += &format!(
            "{} of {} running, {} healthy",
            number("running"),
            number("count"),
            number("healthy")
        );
    } else {
        line += &format!(
            "{} of {} succeeded, {} running, {} pending",
            number("succeeded"),
            number("count"),
            number("running"),
            number("pending")
        );
    }
    if number("failed") > 0 {
        line += &format!(", {} failed", number("failed"));
    }
    let update = job.pointer("/update/state").and_then(Value::as_str);
    if update == Some("canary") {
        let name = text(job, "name");
        line +=
            &format!("; once its canaries are healthy it waits for `meseta job promote {name}`");
    }
    let why = text(job, "why");
    if why != "-" {
        line += &format!(": {why}");
    }
    let failure = job.get("last_failure").filter(|one| one.is_object());
    if let Some(failure) = failure.filter(|one| !line.contains(&text(one, "text"))) {
        let [task, how, count] = ["task_id", "text", "failures"].map(|key| text(failure, key));
        line += &format!("; {count} failed so far, the last: {task} {how}");
    }
    line
}

/// Returns the first obstacle of tasks in the offers seen last, and the number of the others.
fn obstacle_text(job: &Value) -> Option<String> {
    let obstacles = items(job, "obstacles");
    let first = obstacles.first()?.as_str()?;
    let more = obstacles.len() - 1;
    Some(match more {
        0 => format!("; {first}"),
        _ => format!("; {first}, and {more} more"),
    })
}

/// Prints the last failure of this version, and the last output of its task. Without a history it prints nothing, and the
/// command ends as usual.
fn say_why(scheduler: &Scheduler, (name, version): (&str, u64), job: &Value) {
    stderr::say_last(scheduler, job);
    let history = api::path(name).and_then(|path| scheduler.get(&format!("{path}/history")));
    let failure = history.ok();
    let failure = failure.and_then(|history| last_failure(&history, version));
    failure.iter().for_each(|line| terminal::say(line));
}

/// The prefixes of events of failed tasks.
const FAILURES: [&str; 2] = ["failed", "killed: its run took too long"];

/// Returns the last failed task of this version in its job's history, with the reason.
pub(super) fn last_failure(history: &Value, version: u64) -> Option<String> {
    let version = version.to_string();
    let mut events = items(history, "events").iter().rev();
    let failure = events.find(|event| {
        let what = text(event, "text");
        // The task id has the form `JOB.VERSION.RUN.INDEX.ATTEMPT`.
        text(event, "task_id").rsplit('.').nth(3) == Some(&*version)
            && FAILURES.iter().any(|begin| what.starts_with(begin))
    })?;
    Some(format!(
        "task {} {}",
        text(failure, "task_id"),
        text(failure, "text")
    ))
}

fn is_missing(error: &anyhow::Error) -> bool {
    server::refused_with(error) == Some(StatusCode::NOT_FOUND)
}

/// Follows a version of a job for a limited time; the exit code says whether it reached the requested state.
pub(super) fn follow(
    scheduler: &Scheduler,
    (name, version): (&str, u64),
    timeout: Option<(Instant, Duration)>,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new(version);
    let mut away_since: Option<Instant> = None;
    let is_over = |(since, timeout): &(Instant, Duration)| since.elapsed() >= *timeout;
    let mut path = api::path(name)?;
    let shown = name.strip_prefix("*/").unwrap_or(name);
    if !is_json {
        // The messages need no list of tasks, of which there may be very many.
        path += "?tasks=false";
    }
    loop {
        match scheduler.get(&path) {
            Ok(job) => {
                away_since = None;
                let (lines, ending) = progress.observe(&job);
                match is_json {
                    true if lines.is_empty() => {}
                    true => terminal::print_json_line(&job),
                    false => lines.iter().for_each(|line| terminal::say(line)),
                }
                match ending {
                    Some(Ending::Good) => return Ok(ExitCode::SUCCESS),
                    Some(Ending::Bad) => {
                        if !is_json {
                            say_why(scheduler, (name, version), &job);
                        }
                        return Ok(ExitCode::FAILURE);
                    }
                    None => {}
                }
                if let Some((_, timeout)) = timeout.filter(is_over) {
                    if !is_json {
                        terminal::say(&format!(
                            "{shown} has not finished after {timeout:?} and continues: {}",
                            progress.last.as_deref().unwrap_or_default()
                        ));
                        say_why(scheduler, (name, version), &job);
                    }
                    return Ok(ExitCode::FAILURE);
                }
            }
            Err(error) if progress.last.is_some() && is_missing(&error) => {
                if let Some(gone) = progress.gone(shown) {
                    bail!(gone);
                }
            }
            Err(error) => {
                let since = *away_since.get_or_insert_with(|| {
                    terminal::note!("{error:#}; retrying");
                    Instant::now()
                });
                if since.elapsed() > AWAY_MAX || timeout.as_ref().is_some_and(is_over) {
                    return Err(error.context(format!(
                        "the job is submitted as version {version}, but could not be followed"
                    )));
                }
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
