//! A container as it was looked up. The authorization is for the container that the action then changes, and never for
//! another one that has the same id by then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_daemon::server::CancellationToken;
use meseta_isolators::{KillOutcome, KillRequest};
use meseta_resources::ContainerId;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::output::OutputReceiver;
use super::terminal::WindowSize;
use super::{Ended, Input, Nested, NestedError, SIGKILL};
use crate::containerizer::Containerizer;

/// The longest wait of a client's input, after which another client may replace the client.
const INPUT_STALL_MAX: Duration = Duration::from_secs(60);

/// The write to the standard input of a container that is in progress.
#[derive(Debug, Default)]
pub(super) struct StalledWrite(Mutex<Option<(Instant, CancellationToken)>>);

/// Registers the write for its duration.
struct WriteUnderWay<'a> {
    write: &'a StalledWrite,
    token: CancellationToken,
}

impl StalledWrite {
    fn current(&self) -> MutexGuard<'_, Option<(Instant, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, now: Instant) -> WriteUnderWay<'_> {
        let token = CancellationToken::new();
        *self.current() = Some((now, token.clone()));
        WriteUnderWay { write: self, token }
    }

    /// Ends the write if it has lasted too long. Returns whether it has, but only to the first caller.
    fn revoke(&self, now: Instant) -> bool {
        let mut current = self.current();
        let stalled =
            current.take_if(|(since, _)| now.saturating_duration_since(*since) >= INPUT_STALL_MAX);
        stalled.map(|(_, token)| token.cancel()).is_some()
    }
}

impl WriteUnderWay<'_> {
    async fn revoked(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        *self.write.current() = None;
    }
}

/// The time between a signal other than SIGKILL and SIGKILL: practically for ever.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The container that had an id when it was looked up.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(super) id: ContainerId,
    pub(super) nested: Arc<Nested>,
}

impl Found {
    /// The user of the container's processes.
    pub(crate) fn user(&self) -> &str {
        &self.nested.user
    }

    /// Attaches a reader to the container's later output.
    pub(crate) fn attach_output(&self) -> Result<Option<OutputReceiver>, NestedError> {
        let attached = self.nested.output.attach();
        attached.map_err(|_| NestedError::Crowded)
    }

    /// Attaches to the container's standard input, which allows only one client.
    ///
    /// Replaces a client whose input the container has not read for [`INPUT_STALL_MAX`]: that client may be gone, which
    /// nobody notices while its input waits.
    pub(crate) async fn attach_input(&self) -> Result<Attached, NestedError> {
        let is_closed = |input: &Option<Input>| input.is_none();
        if self
            .nested
            .input
            .try_lock()
            .is_ok_and(|input| is_closed(&input))
        {
            return Err(NestedError::NoInput);
        }
        let lock = match self.nested.attached.clone().try_lock_owned() {
            Ok(lock) => lock,
            Err(_) if self.nested.stalled_write.revoke(Instant::now()) => {
                // The previous client releases the lock as soon as its task runs.
                self.nested.attached.clone().lock_owned().await
            }
            Err(_) => return Err(NestedError::Taken),
        };
        if is_closed(&*self.nested.input.lock().await) {
            return Err(NestedError::NoInput);
        }
        Ok(Attached {
            nested: self.nested.clone(),
            _lock: lock,
        })
    }

    /// Waits for the container's end.
    pub(crate) async fn wait(&self) -> Result<Ended, NestedError> {
        let mut ended = self.nested.ended.clone();
        let seen = ended.wait_for(Option::is_some).await;
        seen.map(|status| (*status).flatten())
            .map_err(|_| NestedError::Failed("its exit is not watched any more".to_owned()))
    }

    /// Sends the container a signal; SIGKILL ends the whole container.
    pub(crate) async fn kill(
        &self,
        containerizer: &Containerizer,
        signal: i32,
    ) -> Result<(), NestedError> {
        let supervisor = self.nested.supervisor.clone();
        let grace = if signal == SIGKILL {
            Duration::ZERO
        } else {
            NEVER
        };
        let shared = containerizer.clone();
        let killed = tokio::task::spawn_blocking(move || {
            let request = KillRequest { signal, grace };
            shared.containers().kill(&supervisor, request)
        });
        match killed.await {
            Ok(Ok(KillOutcome::Delivered | KillOutcome::AlreadyGone)) => Ok(()),
            Ok(Err(error)) => Err(NestedError::Failed(error.to_string())),
            Err(panic) => Err(NestedError::Failed(panic.to_string())),
        }
    }
}

/// A client attached to the standard input of a container.
#[derive(Debug)]
pub(crate) struct Attached {
    nested: Arc<Nested>,
    _lock: tokio::sync::OwnedMutexGuard<()>,
}

impl Attached {
    /// Writes input. Empty input closes a pipe, and has no effect at a terminal, which has a key for the end.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<(), NestedError> {
        let mut input = self.nested.input.lock().await;
        if bytes.is_empty() && matches!(*input, Some(Input::Pipe(_))) {
            input.take();
            return Ok(());
        }
        let mut ended = self.nested.ended.clone();
        let write = self.nested.stalled_write.begin(Instant::now());
        let writing = async {
            match input.as_mut() {
                Some(Input::Pipe(pipe)) => pipe.write_all(bytes).await,
                Some(Input::Terminal(terminal)) => terminal.write(bytes).await,
                None => Err(std::io::Error::other("its standard input is closed")),
            }
        };
        tokio::select! {
            written = writing => written.map_err(|error| NestedError::Failed(error.to_string())),
            () = write.revoked() => Err(NestedError::Taken),
            // Nobody reads the input any more.
            _ = ended.wait_for(Option::is_some) => Ok(()),
        }
    }

    /// Tells the command how large its terminal is, also while a write waits for room in the terminal.
    pub(crate) fn resize(&self, size: WindowSize) -> std::io::Result<()> {
        match self.nested.terminal.upgrade() {
            Some(terminal) => terminal.resize(size),
            None => Err(rustix::io::Errno::NOTTY.into()),
        }
    }

    /// Completes when the container has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.nested.ended.clone().wait_for(Option::is_some).await;
    }
}
