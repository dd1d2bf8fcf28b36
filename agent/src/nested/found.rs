//! One container as it was looked up: who may do something to it is decided of the one that it is done to, and of no other
//! that has its id by then.

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

/// A client whose input waits for longer than this gives way to another client.
const INPUT_STALL_MAX: Duration = Duration::from_secs(60);

/// The write to the standard input of a container that is under way.
#[derive(Debug, Default)]
pub(super) struct StalledWrite(Mutex<Option<(Instant, CancellationToken)>>);

/// Notes the write for as long as it lasts.
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

    /// Ends the write if it has lasted for too long. Returns whether it has, to the first caller alone.
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

/// Between a signal that is not SIGKILL and SIGKILL: for ever, as far as anybody waits.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The container that had an id when it was looked up.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(super) id: ContainerId,
    pub(super) nested: Arc<Nested>,
}

impl Found {
    /// Whom it runs as.
    pub(crate) fn user(&self) -> &str {
        &self.nested.user
    }

    /// What it prints from now on.
    pub(crate) fn attach_output(&self) -> Result<Option<OutputReceiver>, NestedError> {
        let attached = self.nested.output.attach();
        attached.map_err(|_| NestedError::Crowded)
    }

    /// Attaches to its standard input, to which one client alone can be attached.
    ///
    /// Takes the place of a client whose input the container has not read for [`INPUT_STALL_MAX`]: that client may be
    /// gone, which nobody sees while its input waits.
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
                // The client before lets go as soon as its task runs.
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

    /// Waits for its end.
    pub(crate) async fn wait(&self) -> Result<Ended, NestedError> {
        let mut ended = self.nested.ended.clone();
        let seen = ended.wait_for(Option::is_some).await;
        seen.map(|status| (*status).flatten())
            .map_err(|_| NestedError::Failed("its exit is not watched any more".to_owned()))
    }

    /// Sends it a signal; SIGKILL ends all of it.
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

/// Somebody at the standard input of a container.
#[derive(Debug)]
pub(crate) struct Attached {
    nested: Arc<Nested>,
    _lock: tokio::sync::OwnedMutexGuard<()>,
}

impl Attached {
    /// Writes; nothing at all ends a pipe, and is nothing at a terminal, which has a key for it.
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
            // Nobody reads any more.
            _ = ended.wait_for(Option::is_some) => Ok(()),
        }
    }

    /// Tells the command how large its terminal is.
    pub(crate) async fn resize(&self, size: WindowSize) -> std::io::Result<()> {
        match &*self.nested.input.lock().await {
            Some(Input::Terminal(terminal)) => terminal.resize(size),
            _ => Err(rustix::io::Errno::NOTTY.into()),
        }
    }

    /// Completes when the container has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.nested.ended.clone().wait_for(Option::is_some).await;
    }
}
