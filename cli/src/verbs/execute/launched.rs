//! The launched task and its output, which is copied as it grows.

use std::io;

use anyhow::Context as _;
use meseta_proto::mesos::v1 as mesos;
use tokio::time::Interval;

use super::super::output::write_all;
use super::super::sandbox::Tail;
use super::super::server::AgentAddress;

#[derive(Debug)]
pub(super) struct LaunchedTask {
    pub(super) id: mesos::TaskId,
    pub(super) agent: mesos::AgentId,
    stdout: Tail,
    stderr: Tail,
    /// Whether a part of the output was read but could not be written, and will not be read again.
    is_cut: bool,
}

/// The result of a look at the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    Nothing,
    Some,
    /// The reader of our output has gone away.
    Unread,
}

/// Copies the new output at the next tick, as much as one read of each file gives. Cancel safe.
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
    pub(super) fn new(
        id: mesos::TaskId,
        agent: mesos::AgentId,
        framework: &str,
        address: &AgentAddress,
    ) -> Self {
        let tail = |file| Tail::new(address, framework, &id.value, file);
        Self {
            stdout: tail("stdout"),
            stderr: tail("stderr"),
            id,
            agent,
            is_cut: false,
        }
    }

    /// Whether both files existed, and all their content was written.
    pub(super) fn is_whole(&self) -> bool {
        self.stdout.was_found() && self.stderr.was_found() && !self.is_cut
    }

    /// Copies the new output of the task's stdout and stderr to ours, as much as one read of each gives. Cancel safe.
    pub(super) async fn copy_to_ours(&mut self) -> anyhow::Result<Copied> {
        self.copy_to(io::stdout(), io::stderr()).await
    }

    async fn copy_to(
        &mut self,
        stdout: impl io::Write,
        stderr: impl io::Write,
    ) -> anyhow::Result<Copied> {
        let out = self.stdout.read().await?;
        let out = self.write(&out, stdout, "standard output")?;
        if out == Copied::Unread {
            return Ok(out);
        }
        let err = self.stderr.read().await?;
        let err = self.write(&err, stderr, "standard error")?;
        Ok(if err == Copied::Nothing { out } else { err })
    }

    /// Writes the read bytes before any further wait: the next read continues behind them.
    fn write(&mut self, data: &[u8], output: impl io::Write, name: &str) -> anyhow::Result<Copied> {
        if data.is_empty() {
            return Ok(Copied::Nothing);
        }
        let written = write_all(output, data);
        self.is_cut |= written.is_err();
        Ok(
            match written.with_context(|| format!("failed to write to {name}"))? {
                true => Copied::Some,
                false => Copied::Unread,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::agent::call::ReadFile as ReadFileCall;
    use meseta_proto::mesos::v1::agent::response::ReadFile;

    use super::super::super::canned;
    use super::*;

    /// Returns a task at an agent that reads its files in this way.
    fn task_at(
        read: impl FnMut(&ReadFileCall) -> Result<ReadFile, u16> + Send + 'static,
    ) -> LaunchedTask {
        let agent = AgentAddress {
            address: canned::agent_of(read),
            hostname: "localhost".to_owned(),
        };
        LaunchedTask::new(
            mesos::TaskId::default(),
            mesos::AgentId::default(),
            "f",
            &agent,
        )
    }

    /// Returns the text behind the offset of a read in a file with this text.
    fn rest_of(text: &str, read: &ReadFileCall) -> ReadFile {
        let from = usize::try_from(read.offset).expect("small").min(text.len());
        ReadFile {
            size: text.len() as u64,
            data: text.as_bytes()[from..].to_vec(),
            ..ReadFile::default()
        }
    }

    /// Regression: bytes read from stdout were dropped if the agent did not answer for stderr.
    #[tokio::test]
    async fn no_output_is_lost_between_reads() {
        let mut is_away = true;
        let mut task = task_at(move |read| {
            if read.path.ends_with("/stderr") && std::mem::take(&mut is_away) {
                return Err(503);
            }
            match read.path.rsplit('/').next() {
                Some("stdout") => Ok(rest_of("all of it", read)),
                Some("stderr") => Ok(rest_of("a word", read)),
                _ => Err(404),
            }
        });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let first = task.copy_to(&mut stdout, &mut stderr).await;
        first.expect_err("the agent is away");
        while task.copy_to(&mut stdout, &mut stderr).await.expect("read") == Copied::Some {}
        assert_eq!((&*stdout, &*stderr), (&b"all of it"[..], &b"a word"[..]));
        assert!(task.is_whole());
    }

    /// Regression: with a full disk the command exited with 0, since the next look found nothing new and hid the error.
    #[tokio::test]
    async fn failed_write_makes_output_incomplete() {
        let mut task = task_at(|read| match read.path.rsplit('/').next() {
            Some("stdout" | "stderr") => Ok(rest_of("a word", read)),
            _ => Err(404),
        });
        let full = std::fs::File::create("/dev/full").expect("there");
        let first = task.copy_to(&full, Vec::new()).await;
        first.expect_err("the disk is full");
        while task.copy_to(&full, Vec::new()).await.expect("copied") == Copied::Some {}
        assert!(!task.is_whole());
    }
}
