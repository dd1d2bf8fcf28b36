//! The `meseta task` verb: all facts about one task, and its last output.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::outcome::exit_code_in;
use super::sandbox::Tail;
use super::server::AgentAddress;
use super::tasks::{Standing, age, both, key, statuses};
use super::{MasterFlag, ids, items, server, text, top};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The task's id, or a unique part of the id (see `meseta tasks`).
    task: String,
    /// Number of lines of standard output and standard error to show.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    lines: u16,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: super::watch::WatchFlag,
}

/// The agent's data about a task.
#[derive(Default)]
struct OnAgent {
    use_now: Option<Value>,
    output: Vec<(&'static str, String)>,
    /// The reasons why its usage, and its output, are unknown.
    use_trouble: Option<String>,
    output_trouble: Option<String>,
}

impl OnAgent {
    /// Returns empty data with this reason.
    fn unknown(why: &str) -> Self {
        Self {
            use_trouble: Some(why.to_owned()),
            output_trouble: Some(why.to_owned()),
            ..Self::default()
        }
    }

    /// Returns the missing parts, each reason once.
    fn troubles(&self) -> Vec<String> {
        let line = |what, why: &String| format!("--- {what} cannot be read: {why}");
        match (&self.output_trouble, &self.use_trouble) {
            (Some(output), Some(used)) if output == used => {
                vec![line("its output and usage", used)]
            }
            (output, used) => {
                let output = output.iter().map(|why| line("its output", why));
                let used = used.iter().map(|why| line("its usage", why));
                output.chain(used).collect()
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    options.watch.run(|| show_once(options))
}

fn show_once(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    let task = find(master, &options.task)?;
    let standings = statuses(master)?.remove(&key(&task));
    let standings = standings.unwrap_or_default();
    let agents = server::get_json(master, "/slaves")?;
    let agent = items(&agents, "slaves")
        .iter()
        .find(|agent| text(agent, "id") == text(&task, "slave_id"));
    let on_agent = match agent.and_then(AgentAddress::from_agent) {
        None => OnAgent::unknown("its agent is not registered now"),
        Some(address) => ask_agent(&address, &task, options.lines),
    };
    if options.json {
        terminal::print_json(&as_json(&task, &standings, &on_agent))?;
    } else {
        for line in describe(&task, agent, &standings, &on_agent)? {
            terminal::say(&line);
        }
    }
    Ok(())
}

pub(super) fn find(master: &str, query: &str) -> anyhow::Result<Value> {
    let body = server::get_json(master, "/tasks?limit=-1")?;
    let tasks = items(&body, "tasks");
    let ids = tasks.iter().filter_map(|task| task.get("id")?.as_str());
    let Some(id) = ids::resolve(ids, query, "tasks")? else {
        bail!("task {query:?} does not exist; `meseta tasks` lists the tasks");
    };
    // Several tasks may have had this id: take the newest.
    let found = tasks.iter().find(|task| text(task, "id") == id);
    Ok(found.cloned().unwrap_or(Value::Null))
}

pub(super) fn executor_of(task: &Value) -> String {
    match text(task, "executor_id").as_str() {
        "-" => text(task, "id"),
        executor => executor.to_owned(),
    }
}

fn ask_agent(address: &AgentAddress, task: &Value, lines: u16) -> OnAgent {
    let (framework, executor) = (text(task, "framework_id"), executor_of(task));
    let mut found = OnAgent::default();
    match address.get_json("/monitor/statistics") {
        Err(error) => found.use_trouble = Some(format!("{error:#}")),
        Ok(all) => found.use_now = top::statistics(&all, &framework, &executor),
    }
    for file in ["stdout", "stderr"] {
        let mut tail = Tail::new(address, &framework, &executor, file);
        let read = server::runtime().and_then(|runtime| runtime.block_on(tail.last()));
        match read {
            Ok(Some(bytes)) => found.output.push((file, last_lines(&bytes, lines))),
            Ok(None) => {}
            Err(error) => found.output_trouble = Some(format!("{error:#}")),
        }
    }
    found
}

fn last_lines(bytes: &[u8], count: u16) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(usize::from(count));
    lines.get(from..).unwrap_or_default().join("\n")
}

/// Returns the exit code of an ended task, if the agent reported one.
fn exit_code(task: &Value, standings: &[Standing]) -> Option<u8> {
    match text(task, "state").as_str() {
        "TASK_FINISHED" => Some(0),
        "TASK_FAILED" | "TASK_KILLED" => exit_code_in(standings.last()?.message.as_deref()?),
        _ => None,
    }
}

fn describe(
    task: &Value,
    agent: Option<&Value>,
    standings: &[Standing],
    on_agent: &OnAgent,
) -> anyhow::Result<Vec<String>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut lines = Vec::new();
    let mut put = |name: &str, value: String| lines.push(format!("{name:<11}{value}"));
    put("id", text(task, "id"));
    put("name", text(task, "name"));
    put("state", text(task, "state"));
    if let Some(code) = exit_code(task, standings) {
        put("exit code", code.to_string());
    }
    put("framework", text(task, "framework_id"));
    let host = agent.map_or("not registered now".to_owned(), |agent| {
        text(agent, "hostname")
    });
    put("agent", format!("{} ({host})", text(task, "slave_id")));
    put(
        "allocated",
        format!(
            "{} cpus, {} MB of memory, {} MB of disk",
            both(task, "cpus"),
            both(task, "mem"),
            both(task, "disk")
        ),
    );
    if let Some(used) = &on_agent.use_now {
        let bytes = used.get("mem_rss_bytes").and_then(Value::as_f64);
        let seconds = |key: &str| used.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let cpu = seconds("cpus_user_time_secs") + seconds("cpus_system_time_secs");
        let mb = bytes.map_or("-".to_owned(), |bytes| {
            format!("{:.0}", bytes / 1_048_576.0)
        });
        put("used", format!("{cpu:.1} s of cpu, {mb} MB of memory now"));
    }
    for (index, status) in items(task, "statuses").iter().enumerate() {
        let standing = standings.get(index).cloned().unwrap_or_default();
        let when = status.get("timestamp").and_then(Value::as_f64);
        let when = when.map_or("-".to_owned(), |when| format!("{} ago", age(now, when)));
        let reason = standing.reason.map(|reason| format!(" {reason}"));
        let title = if index == 0 { "statuses" } else { "" };
        let state = text(status, "state");
        put(
            title,
            format!("{when:<9}{state}{}", reason.unwrap_or_default()),
        );
        for line in standing.message.iter().flat_map(|message| message.lines()) {
            put("", format!("         {line}"));
        }
    }
    for (file, text) in &on_agent.output {
        if !text.is_empty() {
            lines.push(format!("--- the last of {file}"));
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    lines.extend(on_agent.troubles());
    Ok(lines)
}

fn as_json(task: &Value, standings: &[Standing], on_agent: &OnAgent) -> Value {
    let mut body = task.clone();
    body["exit_code"] = json!(exit_code(task, standings));
    if let Some(statuses) = body.get_mut("statuses").and_then(Value::as_array_mut) {
        for (status, standing) in statuses.iter_mut().zip(standings) {
            status["reason"] = json!(standing.reason);
            status["message"] = json!(standing.message);
            status["source"] = json!(standing.source);
        }
    }
    body["statistics"] = json!(on_agent.use_now);
    for (file, text) in &on_agent.output {
        body[*file] = json!(text);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_the_last() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines(b"a\n", 10), "a");
        assert_eq!(last_lines(b"", 10), "");
        assert_eq!(last_lines(b"a\nb", 0), "");
    }

    #[test]
    fn only_ended_task_shows_exit_code() {
        let failed = Standing {
            message: Some("Command exited with status 3".to_owned()),
            ..Standing::default()
        };
        let task = |state: &str| json!({"state": state});
        let standings = [failed];
        assert_eq!(exit_code(&task("TASK_FAILED"), &standings), Some(3));
        assert_eq!(exit_code(&task("TASK_FINISHED"), &standings), Some(0));
        assert_eq!(exit_code(&task("TASK_RUNNING"), &standings), None);
        assert_eq!(exit_code(&task("TASK_FAILED"), &[]), None);
    }

    /// Regression: output shown right above was reported as unreadable, since the task's usage was unreadable.
    #[test]
    fn unreadable_values_are_distinguished() {
        let lines = |use_trouble: Option<&str>, output_trouble: Option<&str>| {
            let on_agent = OnAgent {
                use_trouble: use_trouble.map(str::to_owned),
                output_trouble: output_trouble.map(str::to_owned),
                ..OnAgent::default()
            };
            on_agent.troubles()
        };
        assert!(lines(None, None).is_empty());
        assert_eq!(
            lines(Some("403"), None),
            ["--- its usage cannot be read: 403"]
        );
        assert_eq!(
            lines(Some("403"), Some("404")),
            [
                "--- its output cannot be read: 404",
                "--- its usage cannot be read: 403"
            ]
        );
        assert_eq!(
            OnAgent::unknown("gone").troubles(),
            ["--- its output and usage cannot be read: gone"]
        );
    }

    #[test]
    fn revocable_cpus_count_as_allocated() {
        let task = json!({"resources": {"cpus": 0.0, "cpus_revocable": 3.0, "mem": 64.0}});
        let lines = describe(&task, None, &[], &OnAgent::default()).expect("lines");
        let allocated = lines.iter().find(|line| line.starts_with("allocated"));
        let allocated = allocated.expect("a line");
        assert!(
            allocated.contains("3 cpus, 64 MB of memory, 0 MB"),
            "{allocated}"
        );
    }

    #[test]
    fn task_shows_every_status() {
        let task = json!({
            "id": "t1", "name": "t", "state": "TASK_FAILED", "framework_id": "f", "slave_id": "S0",
            "resources": {"cpus": 0.5, "mem": 64.0, "disk": 0.0},
            "statuses": [{"state": "TASK_RUNNING", "timestamp": 1.0}, {"state": "TASK_FAILED", "timestamp": 2.0}],
        });
        let standings = [
            Standing::default(),
            Standing {
                reason: Some("REASON_COMMAND_EXECUTOR_FAILED"),
                message: Some("Command exited with status 3".to_owned()),
                source: None,
            },
        ];
        let on_agent = OnAgent {
            output: vec![("stdout", "one\ntwo".to_owned())],
            ..OnAgent::default()
        };
        let lines = describe(&task, None, &standings, &on_agent)
            .expect("lines")
            .join("\n");
        for expected in [
            "exit code  3",
            "TASK_RUNNING",
            "TASK_FAILED REASON_COMMAND_EXECUTOR_FAILED",
            "Command exited with status 3",
            "--- the last of stdout\none\ntwo",
        ] {
            assert!(lines.contains(expected), "{expected}: {lines}");
        }
    }
}
