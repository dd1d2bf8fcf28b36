//! What ends a command before its task does: its time, a signal, and agents and masters that are away for too long.

use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::super::request::FAILOVER_SECONDS;
use super::super::scheduler::Refused;
use super::super::server;
use super::EXIT_TIMED_OUT;

/// What shells report for a command ended by SIGINT, and by SIGTERM.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

/// How long what is away is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The agent of a task that is to end: two kills are answered in this time.
    pub(super) away: Duration,
    /// A master that takes the framework back, while one that leads refuses it.
    pub(super) refused: Duration,
    /// The same while none leads: the next one gives frameworks its `--agent_reregister_timeout`, which is this.
    pub(super) leaderless: Duration,
    /// The same once the command is to end.
    pub(super) ending: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            away: Duration::from_secs(25),
            refused: Duration::from_secs_f64(FAILOVER_SECONDS),
            leaderless: Duration::from_secs(10 * 60),
            ending: Duration::from_secs_f64(FAILOVER_SECONDS),
        }
    }
}

/// That the command is to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) code: u8,
    /// It has been told the same before: it ends at once.
    pub(super) is_repeated: bool,
    is_signal: bool,
}

impl Told {
    /// What is done about it, which was said already of a time that is over.
    pub(super) fn say(self, what: &str) {
        if self.is_signal {
            eprintln!("{what}; again to leave at once");
        }
    }
}

/// What tells the command to end.
#[derive(Debug)]
pub(super) struct Ends {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
    /// What to exit with, once it is to end.
    code: Option<u8>,
}

impl Ends {
    pub(super) fn watch(deadline: Option<Instant>) -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("failed to watch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("failed to watch SIGTERM")?,
            deadline,
            code: None,
        })
    }

    pub(super) const fn code(&self) -> Option<u8> {
        self.code
    }

    /// Ends it for a reason of its own, unless there is another already.
    pub(super) fn end_with(&mut self, code: u8) {
        self.code.get_or_insert(code);
    }

    /// Waits until the command is told to end. Cancel safe.
    pub(super) async fn next(&mut self) -> Told {
        let code = tokio::select! {
            () = until(self.deadline), if self.code.is_none() => {
                eprintln!("timeout: ending the task");
                self.code = Some(EXIT_TIMED_OUT);
                return Told { code: EXIT_TIMED_OUT, is_repeated: false, is_signal: false };
            }
            _ = self.interrupt.recv() => EXIT_INTERRUPTED,
            _ = self.terminate.recv() => EXIT_TERMINATED,
        };
        let is_repeated = self.code.replace(code) == Some(code);
        Told {
            code,
            is_repeated,
            is_signal: true,
        }
    }
}

/// The search for a master that takes the framework back.
#[derive(Debug)]
pub(super) struct Search {
    patience: Patience,
    begun: Instant,
    /// Since when the command is to end.
    ending: Option<Instant>,
    /// Why the framework has no master.
    error: anyhow::Error,
    /// That it takes long has been said.
    is_said: bool,
}

impl Search {
    pub(super) fn begin(patience: Patience, is_ending: bool, error: anyhow::Error) -> Self {
        let begun = Instant::now();
        Self {
            patience,
            begun,
            ending: is_ending.then_some(begun),
            error,
            is_said: false,
        }
    }

    /// The command is to end, and looks no longer than it takes to tell.
    pub(super) fn is_ending(&mut self) {
        self.ending.get_or_insert_with(Instant::now);
    }

    pub(super) fn failed(&mut self, error: anyhow::Error) {
        self.error = error;
        let is_long = self.begun.elapsed() >= self.patience.refused;
        if is_long && Instant::now() < self.until() && !std::mem::replace(&mut self.is_said, true) {
            let minutes = self.patience.leaderless.as_secs() / 60;
            eprintln!("{:#}; looking for {minutes} minutes in all", self.error);
        }
    }

    /// Until when to look.
    pub(super) fn until(&self) -> Instant {
        let patience = match is_refusal(&self.error) {
            true => self.patience.refused,
            false => self.patience.leaderless,
        };
        let end = self.begun + patience;
        match self.ending {
            Some(ending) => end.min(ending + self.patience.ending),
            None => end,
        }
    }

    pub(super) fn error(self) -> anyhow::Error {
        self.error
    }
}

/// Whether a master that leads has answered, and will not answer otherwise a while later.
fn is_refusal(error: &anyhow::Error) -> bool {
    let status = server::refused_with(error);
    error.downcast_ref::<Refused>().is_some()
        || status.is_some_and(|status| status != StatusCode::SERVICE_UNAVAILABLE)
}

pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    /// It gave up after 15 seconds, and left its task to a master that would have kept both for ten minutes.
    #[test]
    fn a_leader_is_looked_for_as_long_as_the_next_one_keeps_the_framework() {
        let patience = Patience::default();
        let mut search = Search::begin(patience, false, anyhow!("the master ended the stream"));
        let begun = search.begun;
        let lasts = |search: &Search| search.until() - begun;
        assert_eq!(lasts(&search), patience.leaderless);
        search.failed(anyhow!("no leader was found within 15 s"));
        assert_eq!(lasts(&search), patience.leaderless);
        search.failed(server::refusal(
            "m:5050",
            StatusCode::SERVICE_UNAVAILABLE,
            "",
        ));
        assert_eq!(lasts(&search), patience.leaderless);
        // Of a master that leads the word counts.
        search.failed(server::refusal("m:5050", StatusCode::FORBIDDEN, "no"));
        assert_eq!(lasts(&search), patience.refused);
        search.failed(Refused("Framework has been removed".to_owned()).into());
        assert_eq!(lasts(&search), patience.refused);

        let gone = anyhow!("the master ended the stream");
        let ending = Search::begin(patience, true, gone);
        assert_eq!(ending.until() - ending.begun, patience.ending);
    }
}
