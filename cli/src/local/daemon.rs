//! A process of `meseta local`: start, wait, restart and end.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::state_dir::make_dir;
use crate::daemon::PARENT_VARIABLE;
use crate::terminal;

/// The time from the start of a daemon until its port must answer.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The time that an agent has to end its tasks and remove their cgroups; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// The pause between two checks for a daemon's endpoint file.
const ENDPOINT_POLL: Duration = Duration::from_millis(10);
/// The pause before a daemon is restarted after a permitted end.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// The consequence of a daemon's end for the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtItsEnd {
    /// The cluster ends: there is no other daemon of this kind.
    Fail,
    /// The agent is started again after success: its master told it to end, until it may stay.
    AgainAfterSuccess,
    /// The daemon is started again after any end: others continue meanwhile.
    Again,
}

/// A running daemon of the cluster.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) name: String,
    /// The daemon's address after `http://`.
    pub(super) url: String,
    at_its_end: AtItsEnd,
    /// The verb, with its flags.
    arguments: Vec<String>,
    child: Child,
    /// The time of the next start of an ended daemon.
    again_at: Option<Instant>,
}

/// The state of a daemon at a look.
#[derive(Debug)]
pub(super) enum Found {
    Running,
    /// An agent ended on its master's order; a later look starts it again.
    ToldToEnd,
    /// The daemon has ended; a later look starts it again.
    Ended(ExitStatus),
    /// The daemon has ended for good.
    Failed(ExitStatus),
}

impl Daemon {
    /// Starts a master or an agent in its own directory, and waits until it listens.
    pub(super) async fn start(
        name: &str,
        verb: &str,
        dir: &Path,
        flags: Vec<String>,
        at_its_end: AtItsEnd,
    ) -> anyhow::Result<Self> {
        let endpoint = clean_endpoint(dir)?;
        let mut arguments = vec![verb.to_owned(), format!("--work_dir={}", dir.display())];
        arguments.extend(flags);
        let mut daemon = Self::spawn(name, arguments, at_its_end)?;
        daemon.url = daemon.until_it_listens(|| endpoint_of(&endpoint)).await?;
        Ok(daemon)
    }

    /// Starts a verb of this binary, without any wait.
    pub(super) fn spawn(
        name: &str,
        arguments: Vec<String>,
        at_its_end: AtItsEnd,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            url: String::new(),
            at_its_end,
            child: spawn(name, &arguments)?,
            arguments,
            again_at: None,
        })
    }

    /// Fixes the present port, also for later starts.
    pub(super) fn keep_port(&mut self) {
        let Some((_, port)) = self.url.rsplit_once(':') else {
            return;
        };
        self.arguments
            .retain(|argument| !argument.starts_with("--port="));
        self.arguments.push(format!("--port={port}"));
    }

    /// Returns the address without `http://`.
    pub(super) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Checks whether the daemon has ended, and restarts it when due.
    pub(super) fn look(&mut self) -> anyhow::Result<Found> {
        if self.again_at.is_some_and(|again| Instant::now() < again) {
            return Ok(Found::Running);
        }
        if self.again_at.take().is_some() {
            self.child = spawn(&self.name, &self.arguments)?;
        }
        let Ok(Some(status)) = self.child.try_wait() else {
            return Ok(Found::Running);
        };
        let found = match self.at_its_end {
            AtItsEnd::AgainAfterSuccess if status.success() => Found::ToldToEnd,
            AtItsEnd::Again => Found::Ended(status),
            AtItsEnd::AgainAfterSuccess | AtItsEnd::Fail => return Ok(Found::Failed(status)),
        };
        self.again_at = Some(Instant::now() + RESTART_PAUSE);
        Ok(found)
    }

    /// Polls `listening` until it returns the address; an earlier end is an error.
    pub(super) async fn until_it_listens(
        &mut self,
        listening: impl Fn() -> Option<String>,
    ) -> anyhow::Result<String> {
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if let Some(url) = listening() {
                return Ok(url);
            }
            if let Some(status) = self.child.try_wait().context("failed to watch a daemon")? {
                bail!(
                    "the {} did not start ({status}); its output is above",
                    self.name
                );
            }
            tokio::time::sleep(ENDPOINT_POLL).await;
        }
        self.terminate();
        bail!(
            "the {} did not listen within {} s",
            self.name,
            START_LIMIT.as_secs()
        )
    }

    /// Sends the daemon the signal to end.
    pub(super) fn terminate(&self) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // A process that is already gone is fine.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Waits for the end of a daemon after the request to end, and kills it if it takes too long.
    pub(super) async fn wait(&mut self) {
        if tokio::time::timeout(STOP_LIMIT, self.child.wait())
            .await
            .is_err()
        {
            terminal::note!(
                "meseta: the {} did not end within {} s: killed",
                self.name,
                STOP_LIMIT.as_secs()
            );
            if let Err(error) = self.child.kill().await {
                terminal::note!("meseta: failed to kill the {}: {error}", self.name);
            }
        }
    }
}

/// Creates the directory, and removes an earlier run's endpoint from it.
fn clean_endpoint(dir: &Path) -> anyhow::Result<PathBuf> {
    make_dir(dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let endpoint = dir.join("endpoint");
    match std::fs::remove_file(&endpoint) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", endpoint.display()))
        }
        _ => Ok(endpoint),
    }
}

/// Reads the URL that a daemon writes once its port listens.
fn endpoint_of(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn spawn(name: &str, arguments: &[String]) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("failed to find this program's own file")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env(PARENT_VARIABLE, std::process::id().to_string())
        .stdin(Stdio::null())
        .process_group(0);
    if crate::flags::environment("MESETA_LOG").is_none() {
        command.env("MESETA_LOG", "warn");
    }
    command
        .spawn()
        .with_context(|| format!("failed to start the {name}"))
}
