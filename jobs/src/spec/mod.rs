//! A checked job: the core's input and the store's contents.
//!
//! Durations are written as in the flags of the daemons (`10secs`, `5mins`) and kept as [`Duration`]. Every field has been
//! checked and every default filled in: the core trusts these values. [`schedule`] computes the times of a cron job,
//! [`template`] replaces `${...}` in a value, [`pattern`] matches regular expressions.

mod limits;
pub mod pattern;
pub mod schedule;
pub mod template;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use pattern::Pattern;

/// Tasks of one job: a larger array should be several jobs.
pub const COUNT_MAX: u32 = 1_000_000;
/// The largest number of tasks of a gang: all are placed at once.
pub const GANG_MAX: u32 = 20_000;
/// The highest priority within a role.
pub const PRIORITY_MAX: u8 = 100;
/// The largest number of characters of a job's name; ids of tasks hold the name and more.
pub const NAME_CHARS_MAX: usize = 100;

/// The names that a constraint may use besides an agent's attributes.
pub const BUILT_IN_ATTRIBUTES: [&str; 4] = ["@hostname", "@agent_id", "@region", "@zone"];

/// Whether a text is a valid name of a job; see [`JobSpec::name`].
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.starts_with(is_plain)
        && text.chars().all(|c| is_plain(c) || matches!(c, '-' | '.'))
}

/// Returns the name that a file gives to a job, without the role before it; `None` for an invalid name.
#[must_use]
pub fn name_in(text: &str) -> Option<&str> {
    let (role, name) = match text.rsplit_once('/') {
        Some((role, name)) => (Some(role), name),
        None => (None, text),
    };
    let is_role = role.is_none_or(|role| meseta_resources::Role::new(role).is_ok());
    Some(name).filter(|name| is_role && is_name(name))
}

/// The specification of a job: its program, count and place, and its behaviour at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The name, unique in the job's role: 1 to 100 of `a-z`, `0-9`, `-`, `.`, beginning with a letter or digit. In a
    /// submitted file that moves a job from another role, that role and a slash precede the name; the stored name has
    /// neither.
    pub name: String,
    pub kind: Kind,
    /// The role that the tasks' resources are charged to.
    pub role: String,
    /// The number of instances of a service, or of tasks of a batch or cron run (the length of an array): 1 to 1,000,000.
    pub count: u32,
    /// The priority within the role, 0 to 100, higher first; 50 by default.
    pub priority: u8,
    pub task: TaskTemplate,
    pub constraints: Vec<Constraint>,
    /// Jobs of this scheduler that must be healthy (service) or have succeeded (batch) before this one starts: of its own
    /// role, or of the role before the name.
    pub after: Vec<String>,
    /// The gang rule: all tasks start together or not at all.
    pub gang: Option<Gang>,
    /// Whether the job runs on revocable resources, and elsewhere after a preemption.
    pub best_effort: bool,
    /// The volume that each instance reserves and creates, and to which it returns.
    pub volume: Option<Volume>,
    pub labels: BTreeMap<String, String>,
}

impl JobSpec {
    /// Returns the largest number of bytes that the compiled patterns of the job's constraints take in memory.
    pub(crate) fn pattern_bytes(&self) -> usize {
        let bytes = self.constraints.iter().map(|one| match &one.rule {
            Rule::Matches(pattern) => pattern.compiled_bytes(),
            _ => 0,
        });
        bytes.sum()
    }

    /// Returns the number of bytes of the stored specification.
    pub(crate) fn stored_bytes(&self) -> usize {
        struct Count(usize);
        impl io::Write for Count {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len();
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut count = Count(0);
        // A plain struct with text keys can always be encoded.
        let _ = serde_json::to_writer(&mut count, self);
        count.0
    }

    /// Whether tasks are spread evenly over the values of an attribute.
    pub(crate) fn is_spread(&self) -> bool {
        self.constraints.iter().any(|one| one.rule == Rule::Spread)
    }

    /// Whether the place of each task depends on the places of the others.
    pub(crate) fn is_laid_out(&self) -> bool {
        let is_layout = |one: &Constraint| matches!(one.rule, Rule::Distinct(_) | Rule::Spread);
        self.constraints.iter().any(is_layout)
    }
}

/// The kind of a job, which decides when it ends and restarts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A job that runs until it is stopped.
    Service(Service),
    /// A batch whose tasks each run until they have succeeded once.
    Batch(Batch),
    /// A job that runs a batch at each time of a schedule.
    Cron(Cron),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub restart: Backoff,
    pub update: Update,
}

/// The pause before a failed task starts again: `first`, doubled up to `longest`. The pauses start over after `reset_after`
/// of good health.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
    pub reset_after: Duration,
}

/// The rules by which a changed service replaces its instances.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The number of instances by which an update may fall below `count`.
    pub max_unavailable: u32,
    /// Instances that may exist above `count` during an update. One of the two limits is at least 1.
    pub max_surge: u32,
    /// New instances that run alone until a client promotes them; 0 for none.
    pub canary: u32,
    /// The time of RUNNING without a failed check after which an instance counts as healthy.
    pub healthy_after: Duration,
    /// The pause between a new instance that becomes healthy and the start of the next one.
    #[serde(default)]
    pub pause: Duration,
    /// The time without progress after which an update has failed.
    pub progress_deadline: Duration,
    /// Whether a failed update goes back to the last healthy version.
    pub auto_revert: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The repetitions of one task when it fails.
    pub retries: u32,
    pub backoff: Backoff,
    /// The time limit for one run of one task, after which the task is killed and counts as failed.
    pub timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cron {
    pub batch: Batch,
    /// Five fields as in crontab(5), or `@hourly` and similar names.
    pub schedule: String,
    /// A name of the IANA database; `UTC` by default.
    pub time_zone: String,
    pub overlap: Overlap,
    /// The time after its scheduled time within which a run must start; a later run is skipped, such as after an absence of
    /// the scheduler.
    pub start_within: Duration,
}

/// The reaction to a run that is due while the previous run has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    Skip,
    /// The previous run is killed first.
    Replace,
    Allow,
}

/// The gang: all tasks of the job start together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gang {
    /// The longest time for which offers are held while the rest is collected, at most 10mins. Then all are declined, and
    /// the pause before the next try doubles each time, up to an hour.
    pub hold_at_most: Duration,
}

/// The program and environment of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskTemplate {
    pub command: Command,
    pub user: Option<String>,
    /// The environment. Values may contain `${index}` (0-based), `${attempt}`, `${port.NAME}`, `${hostname}`.
    pub env: BTreeMap<String, String>,
    pub uris: Vec<Uri>,
    /// Scalars `cpus`, `mem` (MB), `disk` (MB), `gpus` and any custom one.
    pub requests: BTreeMap<String, f64>,
    /// The limits of `cpus` and `mem`, at least the requests; `f64::INFINITY` for no limit.
    #[serde(with = "limits")]
    pub limits: BTreeMap<String, f64>,
    /// Names of ports to take from the offer, one number each.
    pub ports: Vec<String>,
    pub check: Option<HealthCheck>,
    /// The time from SIGTERM to SIGKILL.
    pub kill_grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A text for `/bin/sh -c`.
    Shell(String),
    /// The program and its arguments, without a shell.
    Argv(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uri {
    pub uri: String,
    pub extract: bool,
    pub executable: bool,
    pub cache: bool,
    pub output_file: Option<String>,
}

/// A Mesos health check: after `failures` in a row the agent kills the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthCheck {
    pub probe: Probe,
    pub delay: Duration,
    pub interval: Duration,
    pub timeout: Duration,
    pub failures: u32,
    pub grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A shell command that exits with 0.
    Command(String),
    /// A GET request on a named port, which succeeds with 200 to 399.
    Http {
        port: String,
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<CheckAddress>,
    },
    /// A connection to a named port.
    Tcp {
        port: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<CheckAddress>,
    },
}

/// The loopback address that a check connects to. Unset: IPv4, or IPv6 on a machine without IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckAddress {
    #[serde(rename = "127.0.0.1")]
    V4,
    #[serde(rename = "::1")]
    V6,
}

impl CheckAddress {
    /// Returns the text of a job file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "127.0.0.1",
            Self::V6 => "::1",
        }
    }
}

/// A rule about where tasks may run, or their layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// The name of an attribute, or `@hostname`, `@agent_id`, `@region`, `@zone`.
    pub attribute: String,
    pub rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    Equals(String),
    NotEquals(String),
    In(Vec<String>),
    /// A regular expression that must match the whole value.
    Matches(Pattern),
    Exists,
    NotExists,
    /// A maximum number of tasks of the job on one value.
    Distinct(u32),
    /// An even number of tasks on each value: any two values differ by one at most, as far as offers allow.
    Spread,
}

/// A persistent volume for each instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    pub size_mb: f64,
    /// The path, relative to the sandbox.
    pub path: String,
}
