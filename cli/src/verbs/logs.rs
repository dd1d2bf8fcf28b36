//! The `meseta logs` verb: the output of a task.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;

use super::output::write_all;
use super::sandbox::Tail;
use super::server::AgentAddress;
use super::task::executor_of;
use super::{MasterFlag, inline, items, server, text};
use crate::terminal;

/// The pause between two looks at a followed file.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The task's id, or a unique part of the id (see `meseta tasks`).
    task: String,
    /// The file in the task's sandbox.
    #[arg(long, default_value = "stdout")]
    file: String,
    /// Follow the file until the task has ended.
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    master: MasterFlag,
}

impl Options {
    /// Returns the options for a task with a known id.
    pub(super) fn from_task(task: &str, file: &str, follow: bool, master: &MasterFlag) -> Self {
        Self {
            task: task.to_owned(),
            file: file.to_owned(),
            follow,
            master: master.clone(),
        }
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    let path = format!("/tasks?task_id={}", server::encoded(&options.task));
    let find = || -> anyhow::Result<Value> {
        let body = server::get_json(master, &path)?;
        match items(&body, "tasks") {
            [] => bail!(
                "task {:?} does not exist; `meseta tasks` lists the tasks",
                options.task
            ),
            [task, ..] => Ok(task.clone()),
        }
    };
    let task = find()?;
    let agents = server::get_json(master, "/slaves")?;
    let agent = items(&agents, "slaves")
        .iter()
        .find(|agent| text(agent, "id") == text(&task, "slave_id"))
        .with_context(|| format!("the agent of task {:?} is not registered now", options.task))?;
    let address = AgentAddress::from_agent(agent).with_context(|| {
        format!(
            "the master's answer lacks the address of agent {}",
            text(agent, "id")
        )
    })?;
    let (framework, executor) = (text(&task, "framework_id"), executor_of(&task));
    let mut tail = Tail::new(&address, &framework, &executor, &options.file);
    let runtime = server::runtime()?;
    let mut is_away = false;
    loop {
        let has_ended = !options.follow || has_ended(&find()?);
        loop {
            let data = match runtime.block_on(tail.read()) {
                // The tasks of a restarting agent continue, and so does the file.
                Err(error) if !has_ended && server::may_pass(&error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        let host = inline(agent, "hostname");
                        terminal::note!("meseta: agent {host} does not answer; retrying");
                    }
                    break;
                }
                read => read?,
            };
            is_away = false;
            if data.is_empty() {
                break;
            }
            let is_read = write_all(std::io::stdout(), &data);
            if !is_read.context("failed to write to standard output")? {
                return Ok(());
            }
        }
        if has_ended {
            if !tail.was_found() {
                bail!(runtime.block_on(absent(options, &mut tail))?);
            }
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the message for a missing file.
async fn absent(options: &Options, tail: &mut Tail) -> anyhow::Result<String> {
    let (file, task) = (&options.file, &options.task);
    Ok(match tail.names().await? {
        Some(names) if !names.is_empty() => format!(
            "file {file:?} does not exist in the sandbox of task {task:?}; the files are: {}",
            names.join(", ")
        ),
        _ => format!(
            "task {task:?} has no sandbox: the agent has not made it yet, or removed it after \
             the end of the task"
        ),
    })
}

fn has_ended(task: &Value) -> bool {
    let live = [
        "TASK_STAGING",
        "TASK_STARTING",
        "TASK_RUNNING",
        "TASK_KILLING",
    ];
    !live.contains(&text(task, "state").as_str())
}
