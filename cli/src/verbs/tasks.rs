//! The `meseta tasks` verb: running and ended tasks, newest first.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::master::call;
use serde_json::{Value, json};

use super::{MasterFlag, call_of, ids, items, list_all, number, server, text};

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    master: MasterFlag,
    /// Only tasks in this state, e.g. `running`.
    #[arg(long, value_parser = known_state)]
    state: Option<v1::TaskState>,
    /// Only tasks of this framework: its id, or a unique part of the id.
    #[arg(long, value_name = "ID")]
    framework: Option<String>,
    /// Only tasks on this agent: its id, or a unique part of the id.
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Print the master's JSON instead of a table, with the reason and message of each task's last status.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: super::watch::WatchFlag,
}

/// The common prefix of all states.
const STATES: &str = "TASK_";

/// The key of a task among all tasks: its framework and its own id.
type Key = (String, String);

/// The details of a task's state that `/tasks` does not show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) reason: Option<&'static str>,
    pub(super) message: Option<String>,
    pub(super) source: Option<&'static str>,
}

impl Standing {
    fn from_status(status: &v1::TaskStatus) -> Self {
        Self {
            reason: status.reason.map(|_| status.reason().as_str_name()),
            message: status.message.clone().filter(|text| !text.is_empty()),
            source: status.source.map(|_| status.source().as_str_name()),
        }
    }
}

/// Returns the statuses of every task that the master knows, oldest first.
pub(super) fn statuses(master: &str) -> anyhow::Result<HashMap<Key, Vec<Standing>>> {
    let answer = server::operate(master, &call_of(call::Type::GetTasks))?;
    let answer = answer.get_tasks.unwrap_or_default();
    let all = [
        answer.tasks,
        answer.unreachable_tasks,
        answer.completed_tasks,
    ];
    let tasks = all.into_iter().flatten();
    Ok(tasks
        .map(|task| {
            let key = (task.framework_id.value, task.task_id.value);
            (
                key,
                task.statuses.iter().map(Standing::from_status).collect(),
            )
        })
        .collect())
}

pub(super) fn key(task: &Value) -> Key {
    (text(task, "framework_id"), text(task, "id"))
}

/// The columns of the list.
pub(super) const HEADINGS: [&str; 10] = [
    "ID",
    "NAME",
    "STATE",
    "CPUS",
    "MEM MB",
    "AGE",
    "FRAMEWORK",
    "AGENT",
    "HEALTHY",
    "REASON",
];

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    options.watch.run(|| show_once(options))
}

fn show_once(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    let body = server::get_json(master, "/tasks?limit=-1")?;
    let mut known = statuses(master)?;
    let tasks: Vec<Value> = items(&body, "tasks")
        .iter()
        .filter(|task| options.is_meant(task))
        .map(|task| {
            let mut task = task.clone();
            let standing = known.remove(&key(&task)).and_then(|mut all| all.pop());
            let standing = standing.unwrap_or_default();
            task["reason"] = json!(standing.reason);
            task["message"] = json!(standing.message);
            task
        })
        .collect();
    if tasks.is_empty() {
        options.check_known(items(&body, "tasks"))?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    list_all(options.json, &HEADINGS, &tasks, |task| row(task, now))
}

/// Parses the name of a state, with or without the common prefix.
fn known_state(given: &str) -> Result<v1::TaskState, String> {
    let upper = given.to_ascii_uppercase();
    let whole = if upper.starts_with(STATES) {
        upper
    } else {
        format!("{STATES}{upper}")
    };
    v1::TaskState::from_str_name(&whole).ok_or_else(|| {
        let known = (0..).map_while(|number| v1::TaskState::try_from(number).ok());
        let names = known.map(|state| state.as_str_name().to_ascii_lowercase());
        let names = names.map(|name| name.replacen(&STATES.to_ascii_lowercase(), "", 1));
        let names: Vec<_> = names.collect();
        format!("the states are {}", names.join(", "))
    })
}

impl Options {
    /// Refuses a framework or an agent that neither a task nor the master knows.
    fn check_known(&self, tasks: &[Value]) -> anyhow::Result<()> {
        let master = &self.master.master;
        if let Some(requested) = &self.framework
            && !has_like(tasks, "framework_id", requested)
        {
            let body = server::get_json(master, "/frameworks")?;
            if !is_in(&body, &["frameworks", "completed_frameworks"], requested) {
                bail!(
                    "framework {requested:?} does not exist; `meseta frameworks` lists the frameworks"
                );
            }
        }
        if let Some(requested) = &self.agent
            && !has_like(tasks, "slave_id", requested)
        {
            const LISTS: [&str; 4] = [
                "slaves",
                "recovered_slaves",
                "unreachable_slaves",
                "gone_slaves",
            ];
            let body = server::get_json(master, "/slaves")?;
            if !is_in(&body, &LISTS, requested) {
                bail!("agent {requested:?} does not exist; `meseta agents` lists the agents by id");
            }
        }
        Ok(())
    }

    fn is_meant(&self, task: &Value) -> bool {
        let is_state = |requested: &v1::TaskState| text(task, "state") == requested.as_str_name();
        let is_id = |key: &str, requested: &String| ids::is_like(&text(task, key), requested);
        self.state.as_ref().is_none_or(is_state)
            && self
                .framework
                .as_ref()
                .is_none_or(|requested| is_id("framework_id", requested))
            && self
                .agent
                .as_ref()
                .is_none_or(|requested| is_id("slave_id", requested))
    }
}

/// Whether an object has a similar id under this key.
fn has_like(all: &[Value], key: &str, requested: &str) -> bool {
    all.iter()
        .any(|one| ids::is_like(&text(one, key), requested))
}

fn is_in(body: &Value, lists: &[&str], requested: &str) -> bool {
    let mut lists = lists.iter();
    lists.any(|list| has_like(items(body, list), "id", requested))
}

/// Returns a task's amount of a resource, regular and oversubscribed together.
pub(super) fn both(task: &Value, name: &str) -> String {
    let oversubscribed = number(task, "resources", &format!("{name}_revocable"));
    (number(task, "resources", name) + oversubscribed.max(0.0)).to_string()
}

fn row(task: &Value, now: Duration) -> Vec<String> {
    let last = items(task, "statuses").last();
    let healthy = last.map_or("-".to_owned(), |s| text(s, "healthy"));
    let since = last.and_then(|status| status.get("timestamp")?.as_f64());
    let reason = text(task, "reason");
    vec![
        text(task, "id"),
        text(task, "name"),
        text(task, "state"),
        both(task, "cpus"),
        both(task, "mem"),
        since.map_or("-".to_owned(), |since| age(now, since)),
        text(task, "framework_id"),
        text(task, "slave_id"),
        healthy,
        reason.strip_prefix("REASON_").unwrap_or(&reason).to_owned(),
    ]
}

/// Returns the time since `since`, a Unix time, in the largest unit that it fills.
pub(super) fn age(now: Duration, since: f64) -> String {
    let past = (now.as_secs_f64() - since).max(0.0);
    let (length, unit) = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "m")]
        .into_iter()
        .find(|(length, _)| past >= *length)
        .unwrap_or((1.0, "s"));
    format!("{:.0}{unit}", (past / length).floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_uses_its_largest_unit() {
        let now = Duration::from_secs(1_000_000);
        for (past, expected) in [
            (0.4, "0s"),
            (59.0, "59s"),
            (61.0, "1m"),
            (7_300.0, "2h"),
            (200_000.0, "2d"),
            (-5.0, "0s"),
        ] {
            assert_eq!(age(now, 1_000_000.0 - past), expected);
        }
    }

    #[test]
    fn state_is_recognised_by_name() {
        for given in ["running", "RUNNING", "TASK_RUNNING", "task_running"] {
            assert_eq!(known_state(given), Ok(v1::TaskState::TaskRunning));
        }
        let error = known_state("runing").expect_err("no state");
        for name in ["running", "finished", "gone_by_operator", "unknown"] {
            assert!(error.contains(name), "{error}");
        }
        assert!(!error.contains("task_"), "{error}");
    }

    /// Regression: the table was empty, as for a framework without tasks.
    #[test]
    fn missing_framework_or_agent_is_reported() {
        use super::super::canned;
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            options: Options,
        }
        let frameworks =
            json!({"frameworks": [{"id": "m-0001"}], "completed_frameworks": [{"id": "m-0002"}]});
        let slaves = json!({"slaves": [{"id": "m-S0"}], "gone_slaves": [{"id": "m-S1"}]});
        let (master, _asked) = canned::server_with(&[
            ("GET /frameworks", 200, frameworks),
            ("GET /slaves", 200, slaves),
        ]);
        let tasks = [json!({"framework_id": "m-0003", "slave_id": "m-S2"})];
        let told = |flag: &str| {
            let line = ["tasks", "--master", &master, flag];
            let options = Cli::try_parse_from(line).expect("flags").options;
            options
                .check_known(&tasks)
                .map_err(|error| error.to_string())
        };
        for known in ["0001", "0002", "0003", "m-"] {
            assert_eq!(told(&format!("--framework={known}")), Ok(()), "{known}");
        }
        for known in ["S0", "S1", "m-S2"] {
            assert_eq!(told(&format!("--agent={known}")), Ok(()), "{known}");
        }
        let error = told("--framework=zzz").expect_err("none");
        assert!(
            error.contains("framework \"zzz\" does not exist"),
            "{error}"
        );
        let error = told("--agent=S9").expect_err("none");
        assert!(error.contains("agent \"S9\" does not exist"), "{error}");
    }

    #[test]
    fn revocable_cpus_count() {
        let task = json!({"resources": {"cpus": 0.0, "cpus_revocable": 0.5, "mem": 64.0}});
        assert_eq!(
            (both(&task, "cpus").as_str(), both(&task, "mem").as_str()),
            ("0.5", "64")
        );
    }
}
