//! The task once it has been sent off, and its output, copied to ours as it grows.

use std::io;

use anyhow::Context as _;
use meseta_proto::mesos::v1 as mesos;
use tokio::time::Interval;

use super::super::output::write_all;
use super::super::sandbox::Tail;

#[derive(Debug)]
pub(super) struct LaunchedTask {
    pub(super) id: mesos::TaskId,
    pub(super) agent: mesos::AgentId,
    pub(super) stdout: Tail,
    pub(super) stderr: Tail,
}

/// What a look at the output has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    Nothing,
    Some,
    /// Who read ours has gone away.
    Unread,
}

/// Copies at the next tick what is new by then, as much as one read of each file gives. Cancel safe.
pub(super) async fn copy_next(
    poll: &mut Interval,
    task: &mut Option<LaunchedTask>,
) -> anyhow::Result<Copied> {
    poll.tick().await;
    match task {
        Some(task) => task.copy_to_ours().await,
        None => Ok(Copied::Nothing),
    }
}

impl LaunchedTask {
    /// Copies what is new in the task's stdout and stderr to ours, as much as one read of each gives. Cancel safe.
    pub(super) async fn copy_to_ours(&mut self) -> anyhow::Result<Copied> {
        self.copy_to(io::stdout(), io::stderr()).await
    }

    async fn copy_to(
        &mut self,
        stdout: impl io::Write,
        stderr: impl io::Write,
    ) -> anyhow::Result<Copied> {
        let out = copy(&mut self.stdout, stdout, "standard output").await?;
        if out == Copied::Unread {
            return Ok(out);
        }
        let err = copy(&mut self.stderr, stderr, "standard error").await?;
        Ok(if err == Copied::Nothing { out } else { err })
    }
}

/// Writes what is read before anything else is waited for: the next read goes on behind it.
async fn copy(tail: &mut Tail, output: impl io::Write, name: &str) -> anyhow::Result<Copied> {
    let data = tail.read().await?;
    if data.is_empty() {
        return Ok(Copied::Nothing);
    }
    let is_read = write_all(output, &data).with_context(|| format!("failed to write to {name}"))?;
    Ok(match is_read {
        true => Copied::Some,
        false => Copied::Unread,
    })
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::agent::response::ReadFile;

    use super::super::super::canned;
    use super::super::super::server::AgentAddress;
    use super::*;

    /// What was read of stdout was dropped where the agent did not answer for stderr.
    #[tokio::test]
    async fn no_output_is_lost_where_the_agent_goes_between_two_reads() {
        let mut is_away = true;
        let address = canned::agent_of(move |read| {
            if read.path.ends_with("/stderr") && std::mem::take(&mut is_away) {
                return Err(503);
            }
            let text = match read.path.rsplit('/').next() {
                Some("stdout") => "all of it",
                Some("stderr") => "a word",
                _ => return Err(404),
            };
            let from = usize::try_from(read.offset).expect("small").min(text.len());
            Ok(ReadFile {
                size: text.len() as u64,
                data: text.as_bytes()[from..].to_vec(),
                ..ReadFile::default()
            })
        });
        let agent = AgentAddress {
            address,
            hostname: "localhost".to_owned(),
        };
        let tail = |file| Tail::new(&agent, "f", "t", file);
        let mut task = LaunchedTask {
            id: mesos::TaskId::default(),
            agent: mesos::AgentId::default(),
            stdout: tail("stdout"),
            stderr: tail("stderr"),
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let first = task.copy_to(&mut stdout, &mut stderr).await;
        first.expect_err("the agent is away");
        while task.copy_to(&mut stdout, &mut stderr).await.expect("read") == Copied::Some {}
        assert_eq!((&*stdout, &*stderr), (&b"all of it"[..], &b"a word"[..]));
    }
}
