//! The reasons that end a command before its task: its time limit, a signal, and agents and masters that are away for too
//! long.

use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::super::request::FAILOVER_SECONDS;
use super::super::scheduler::Refused;
use super::super::server;
use super::EXIT_TIMED_OUT;
use crate::terminal;

/// The exit codes that shells use for a command ended by SIGINT, and by SIGTERM.
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_TERMINATED: u8 = 143;

/// The time limits for waiting on absent or stalled parts of the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The time limit of a call that is repeated if it fails.
    pub(super) call: Duration,
    /// The pause before a kill that the master accepted is repeated: its agent may not have received it.
    pub(super) repeat: Duration,
    /// The wait for an absent agent, or for a master that accepts no kill, when the task must end: two kills are answered
    /// in this time.
    pub(super) away: Duration,
    /// The time limit for a leading master that refuses the framework to accept it.
    pub(super) refused: Duration,
    /// The time limit while no master leads: the next leader gives frameworks its `--agent_reregister_timeout`, which is
    /// this.
    pub(super) leaderless: Duration,
    /// The time limit for a leader once the command has to end.
    pub(super) ending: Duration,
    /// The time limit for the framework's end. Afterwards its master ends it once its failover timeout is over: 15 s, or a
    /// week for a detached task.
    pub(super) teardown: Duration,
    /// The time limit of a command that has to leave at once.
    pub(super) leaving: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            call: Duration::from_secs(5),
            repeat: Duration::from_secs(10),
            away: Duration::from_secs(25),
            refused: Duration::from_secs_f64(FAILOVER_SECONDS),
            leaderless: Duration::from_secs(10 * 60),
            ending: Duration::from_secs_f64(FAILOVER_SECONDS),
            teardown: Duration::from_secs(15),
            leaving: Duration::from_secs(2),
        }
    }
}

/// The request to end the command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) code: u8,
    /// The second request of the same kind: the command ends at once.
    pub(super) is_repeated: bool,
    is_signal: bool,
}

impl Told {
    /// Announces the reaction to a signal. A timeout has already been reported.
    pub(super) fn say(self, what: &str) {
        if self.is_signal {
            terminal::note!("{what}; again to leave at once");
        }
    }
}

/// The sources of a request to end the command.
#[derive(Debug)]
pub(super) struct Ends {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
    /// The exit code, once the command has to end.
    code: Option<u8>,
    /// Whether a signal has come twice.
    is_repeated: bool,
}

impl Ends {
    pub(super) fn watch(deadline: Option<Instant>) -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("failed to watch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("failed to watch SIGTERM")?,
            deadline,
            code: None,
            is_repeated: false,
        })
    }

    pub(super) const fn code(&self) -> Option<u8> {
        self.code
    }

    /// Ends the command with its own code, unless another reason came first.
    pub(super) fn end_with(&mut self, code: u8) {
        self.code.get_or_insert(code);
    }

    /// Waits for a request to end the command. Cancel safe.
    pub(super) async fn next(&mut self) -> Told {
        tokio::select! {
            () = until(self.deadline), if self.code.is_none() => {
                terminal::note!("timeout: ending the task");
                self.code = Some(EXIT_TIMED_OUT);
                Told { code: EXIT_TIMED_OUT, is_repeated: false, is_signal: false }
            }
            told = self.signal() => told,
        }
    }

    /// Waits for a signal. Cancel safe.
    async fn signal(&mut self) -> Told {
        let code = tokio::select! {
            _ = self.interrupt.recv() => EXIT_INTERRUPTED,
            _ = self.terminate.recv() => EXIT_TERMINATED,
        };
        let is_repeated = self.code.replace(code) == Some(code);
        self.is_repeated |= is_repeated;
        Told {
            code,
            is_repeated,
            is_signal: true,
        }
    }

    /// Returns the result of the work, or `None` once a signal has come.
    pub(super) async fn unless_signalled<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            _ = self.signal() => None,
            done = work => Some(done),
        }
    }

    /// Waits for the framework's end, no longer than the command has time for it. A signal does not end the wait at once
    /// but leaves the time of an immediate exit: it may have come before the teardown was requested.
    pub(super) async fn finish(&mut self, patience: Patience, teardown: impl Future) {
        let limit = match self.is_repeated {
            true => patience.leaving,
            false => patience.teardown,
        };
        let end = Instant::now() + limit;
        tokio::pin!(teardown);
        tokio::select! {
            _ = tokio::time::timeout_at(end, &mut teardown) => return,
            _ = self.signal() => {}
        }
        let end = end.min(Instant::now() + patience.leaving);
        let _ = tokio::time::timeout_at(end, teardown).await;
    }
}

/// Returns the note that a task may still run, because this command cannot end its framework, and how to end it.
pub(super) fn left(id: &str, framework: &str, is_detached: bool) -> String {
    let rest = match is_detached {
        // The framework of a detached task is kept for a week.
        true => "",
        false => ", as does the next leader unless the framework reconnects",
    };
    format!("task {id} may run on: `meseta teardown {framework}` ends it{rest}")
}

/// The search for a master that takes the framework back.
#[derive(Debug)]
pub(super) struct Search {
    patience: Patience,
    begun: Instant,
    /// The time since when the command has to end.
    ending: Option<Instant>,
    /// The time since when every answer was a refusal.
    refused_since: Option<Instant>,
    /// The reason why the framework has no master.
    error: anyhow::Error,
    /// The long search has been reported.
    is_said: bool,
}

impl Search {
    pub(super) fn begin(patience: Patience, is_ending: bool, error: anyhow::Error) -> Self {
        let begun = Instant::now();
        Self {
            patience,
            begun,
            ending: is_ending.then_some(begun),
            refused_since: is_refusal(&error).then_some(begun),
            error,
            is_said: false,
        }
    }

    /// Notes that the command must end, which shortens the search.
    pub(super) fn note_ending(&mut self) {
        self.ending.get_or_insert_with(Instant::now);
    }

    pub(super) fn failed(&mut self, error: anyhow::Error) {
        self.refused_since =
            is_refusal(&error).then(|| self.refused_since.unwrap_or_else(Instant::now));
        self.error = error;
        let is_long = self.begun.elapsed() >= self.patience.refused;
        if is_long && Instant::now() < self.until() && !std::mem::replace(&mut self.is_said, true) {
            let minutes = self.patience.leaderless.as_secs() / 60;
            terminal::note!("{:#}; retrying for {minutes} minutes in total", self.error);
        }
    }

    /// Returns the end of the search.
    pub(super) fn until(&self) -> Instant {
        let end = self.begun + self.patience.leaderless;
        let end = match self.refused_since {
            Some(since) => end.min(since + self.patience.refused),
            None => end,
        };
        match self.ending {
            Some(ending) => end.min(ending + self.patience.ending),
            None => end,
        }
    }

    pub(super) fn error(self) -> anyhow::Error {
        self.error
    }
}

/// Whether a leading master has responded, and will not change its response soon. Proxies respond 502 and 504 while no
/// master does; 408 and 429 come from a busy master.
fn is_refusal(error: &anyhow::Error) -> bool {
    let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    let status = server::refused_with(error);
    error.downcast_ref::<Refused>().is_some()
        || status.is_some_and(|status| status.is_client_error() && !passes.contains(&status))
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
    use rustix::process::Signal;

    use super::*;

    /// Regression: the command gave up after 15 seconds, and left its task to a master that would have kept both for ten
    /// minutes.
    #[test]
    fn leader_search_lasts_for_failover_timeout() {
        let patience = Patience::default();
        let mut search = Search::begin(patience, false, anyhow!("the master ended the stream"));
        let begun = search.begun;
        let lasts = |search: &Search| search.until() - begun;
        assert_eq!(lasts(&search), patience.leaderless);
        search.failed(anyhow!("no leader was found within 15 s"));
        assert_eq!(lasts(&search), patience.leaderless);
        for passes in [503, 502, 504, 500, 429, 408] {
            let status = StatusCode::from_u16(passes).expect("a status");
            search.failed(server::refusal("m:5050", status, ""));
            assert_eq!(lasts(&search), patience.leaderless, "{status}");
        }
        // The refusal of a leading master counts, however long there was no leader before.
        search.begun = begun.checked_sub(Duration::from_secs(60)).expect("up");
        search.failed(server::refusal("m:5050", StatusCode::FORBIDDEN, "no"));
        let since = search.refused_since.expect("refused");
        assert!(since >= begun);
        assert_eq!(search.until(), since + patience.refused);
        search.failed(Refused("Framework has been removed".to_owned()).into());
        assert_eq!(search.until(), since + patience.refused, "in a row");
        search.failed(anyhow!("no leader was found within 15 s"));
        assert_eq!(search.until(), search.begun + patience.leaderless);
        // The total is no longer than the wait for a leader either.
        search.begun = begun
            .checked_sub(patience.leaderless - Duration::from_secs(1))
            .expect("up");
        search.failed(server::refusal("m:5050", StatusCode::FORBIDDEN, "no"));
        assert_eq!(search.until(), search.begun + patience.leaderless);

        let gone = anyhow!("the master ended the stream");
        let ending = Search::begin(patience, true, gone);
        assert_eq!(ending.until() - ending.begun, patience.ending);
    }

    /// Regression: the text said that the next master ends a task whose framework is kept for a week.
    #[test]
    fn detached_task_is_not_announced_ended() {
        assert_eq!(
            left("t", "f", true),
            "task t may run on: `meseta teardown f` ends it"
        );
        assert_eq!(
            left("t", "f", false),
            "task t may run on: `meseta teardown f` ends it, as does the next leader unless the \
             framework reconnects"
        );
    }

    /// Regression: leaving "at once" took 15 seconds if the master was suspended.
    #[tokio::test]
    async fn immediate_exit_skips_the_teardown() {
        let patience = Patience {
            teardown: Duration::from_secs(3600),
            leaving: Duration::from_millis(50),
            ..Patience::default()
        };
        let mut ends = Ends::watch(None).expect("signals");
        ends.is_repeated = true;
        let finished = ends.finish(patience, std::future::pending::<()>());
        let finished = tokio::time::timeout(Duration::from_secs(30), finished).await;
        assert!(finished.is_ok());
    }

    /// Returns the ends after a signal that no other test receives.
    async fn signalled(kind: SignalKind, sent: Signal) -> Ends {
        use rustix::process::{getpid, kill_process};
        let mut ends = Ends::watch(None).expect("signals");
        ends.interrupt = signal(kind).expect("a signal");
        let mut seen = signal(kind).expect("a signal");
        kill_process(getpid(), sent).expect("sent");
        seen.recv().await;
        ends
    }

    /// Regression: the rest of a task's gigabytes of output was copied to its end, despite all interrupts.
    #[tokio::test]
    async fn signal_is_handled_during_output_copy() {
        let mut ends = signalled(SignalKind::user_defined1(), Signal::USR1).await;
        let mut reads = 0;
        while ends.unless_signalled(async { reads += 1 }).await.is_some() {}
        assert_eq!((reads, ends.code()), (0, Some(EXIT_INTERRUPTED)));
        let read = ends.unless_signalled(async { "more" }).await;
        assert_eq!(read, Some("more"), "it was one signal");
    }

    /// Regression: after a signal during the last copy of the output, the framework was not ended at all.
    #[tokio::test]
    async fn earlier_signal_still_allows_teardown() {
        let mut ends = signalled(SignalKind::user_defined2(), Signal::USR2).await;
        let mut is_ended = false;
        let teardown = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            is_ended = true;
        };
        ends.finish(Patience::default(), teardown).await;
        assert!(is_ended);
    }
}
