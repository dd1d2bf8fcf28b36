//! `meseta exec`: a command in the container of a running task, with its output and exit code here.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_proto::mesos::v1::agent::process_io::{self, data};
use meseta_proto::mesos::v1::agent::{Call, ProcessIo, Response, call};
use meseta_proto::mesos::v1::{CommandInfo, ContainerId};
use serde_json::Value;

use super::output::{EXIT_UNREAD, write_all};
use super::request::quoted;
use super::server::AgentAddress;
use super::{MasterFlag, inline, items, server, task, text};

/// The path of the agent's API.
const PATH: &str = "/api/v1";
/// The number that shells add to the signal that ended a command.
const EXIT_SIGNALLED: i32 = 128;

/// The error that ends a session when its output has no reader.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has left")]
struct Unread;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The task's id, or a unique part of the id (see `meseta tasks`).
    task: String,
    /// The command and its arguments, as in `meseta exec web -- ls -l /`. The command gets no input.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    arguments: Vec<String>,
    #[command(flatten)]
    master: MasterFlag,
}

impl Options {
    /// Returns the options for a task with a known id.
    pub(super) fn from_task(task: &str, arguments: &[String], master: &MasterFlag) -> Self {
        Self {
            task: task.to_owned(),
            arguments: arguments.to_vec(),
            master: master.clone(),
        }
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let master = &options.master.master;
    let found = task::find(master, &options.task)?;
    let (id, agent_id) = (text(&found, "id"), text(&found, "slave_id"));
    if text(&found, "state") != "TASK_RUNNING" {
        bail!("task {id} does not run: it is {}", inline(&found, "state"));
    }
    let parent =
        container(&found).with_context(|| format!("the container of task {id} is unknown"))?;
    let agents = server::get_json(master, "/slaves")?;
    let agent = items(&agents, "slaves")
        .iter()
        .find(|agent| text(agent, "id") == agent_id);
    let agent = agent.and_then(AgentAddress::from_agent);
    let agent = agent.with_context(|| format!("agent {agent_id} is not registered now"))?;
    let container_id = ContainerId {
        value: format!("exec-{}", uuid::Uuid::new_v4()),
        parent: Some(Box::new(parent)),
    };
    let command = CommandInfo {
        value: Some(without_input(&options.arguments)),
        shell: Some(true),
        ..CommandInfo::default()
    };
    let code = server::runtime()?.block_on(session(&agent, container_id, command))?;
    Ok(ExitCode::from(code))
}

/// Returns the shell line that runs these words without input: the input of a session stays open as long as the session.
fn without_input(words: &[String]) -> String {
    format!("{} </dev/null", quoted(words))
}

/// Returns the container in the task's last status that has one.
fn container(task: &Value) -> Option<ContainerId> {
    let statuses = items(task, "statuses").iter().rev();
    let mut ids = statuses.filter_map(|status| status.pointer("/container_status/container_id"));
    nested(ids.next()?)
}

fn nested(id: &Value) -> Option<ContainerId> {
    let parent = match id.get("parent") {
        Some(parent) => Some(Box::new(nested(parent)?)),
        None => None,
    };
    Some(ContainerId {
        value: id.get("value")?.as_str()?.to_owned(),
        parent,
    })
}

/// Runs the command, copies its output, and returns its exit code.
async fn session(
    agent: &AgentAddress,
    container_id: ContainerId,
    command: CommandInfo,
) -> anyhow::Result<u8> {
    let client = agent.client()?;
    let address = &agent.address;
    let launch = Call {
        r#type: Some(call::Type::LaunchNestedContainerSession.into()),
        launch_nested_container_session: Some(call::LaunchNestedContainerSession {
            container_id: container_id.clone(),
            command: Some(command),
            ..call::LaunchNestedContainerSession::default()
        }),
        ..Call::default()
    };
    let mut output = server::records::<_, ProcessIo>(&client, address, PATH, &launch).await?;
    let wait = Call {
        r#type: Some(call::Type::WaitNestedContainer.into()),
        wait_nested_container: Some(call::WaitNestedContainer { container_id }),
        ..Call::default()
    };
    // The question is sent while the session lives: the agent forgets the session with its reader.
    let ending = server::wait(&client, address, PATH, &wait);
    let copying = async {
        while let Some(chunk) = output.next().await? {
            copy(&chunk)?;
        }
        anyhow::Ok(())
    };
    let ended = match tokio::try_join!(copying, ending) {
        Ok(((), ended)) => ended,
        Err(error) if error.is::<Unread>() => return Ok(EXIT_UNREAD),
        Err(error) => return Err(error),
    };
    let ended: Option<Response> = ended.found()?;
    let ended = ended.and_then(|response| response.wait_nested_container);
    let status = ended.and_then(|ended| ended.exit_status);
    Ok(exit_code(status.context(
        "the agent's answer lacks the exit status of the command",
    )?))
}

/// Returns the exit code of a status of `wait`.
fn exit_code(status: i32) -> u8 {
    let code = match status & 0x7f {
        0 => status >> 8,
        signal => EXIT_SIGNALLED + signal,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn copy(chunk: &ProcessIo) -> anyhow::Result<()> {
    let Some(process_io::Data {
        r#type: kind,
        data: Some(bytes),
    }) = &chunk.data
    else {
        return Ok(());
    };
    let is_read = if *kind == Some(data::Type::Stderr.into()) {
        write_all(std::io::stderr(), bytes).context("failed to write to standard error")?
    } else {
        write_all(std::io::stdout(), bytes).context("failed to write to standard output")?
    };
    if is_read { Ok(()) } else { Err(Unread.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exit_codes_are_those_of_shells() {
        for (status, code) in [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(exit_code(status), code, "{status}");
        }
    }

    /// Regression: `meseta exec TASK -- cat` never returned.
    #[test]
    fn command_finds_end_of_its_input() {
        use std::process::{Command, Stdio};
        use std::sync::mpsc;
        use std::time::Duration;
        let mut shell = Command::new("sh")
            .args(["-c", &without_input(&["cat".to_owned()])])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        // A wait for a child closes its input.
        let input = shell.stdin.take();
        let (told, ended) = mpsc::channel();
        std::thread::spawn(move || told.send(shell.wait().is_ok_and(|status| status.success())));
        let is_well = ended.recv_timeout(Duration::from_secs(60));
        drop(input);
        assert_eq!(is_well, Ok(true));
    }

    #[test]
    fn the_newest_container_is_the_tasks() {
        let of = |value: &str| json!({"container_status": {"container_id": {"value": value, "parent": {"value": "p"}}}});
        let task = json!({"statuses": [{}, of("old"), of("new"), {}]});
        let id = container(&task).expect("one");
        assert_eq!(id.value, "new");
        assert_eq!(id.parent.expect("a parent").value, "p");
        assert_eq!(container(&json!({"statuses": []})), None);
    }
}
