//! Containers that are asked for over the agent's own API, inside those of executors and tasks.
//!
//! A session runs a command in a container that lives and streams what it prints; others have a sandbox
//! of their own. They belong to nobody's checkpoint: whoever asked waits for them, and an agent that is
//! started again takes them apart. Invariant: none outlives the container around it, nor a session the
//! connection that asked for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use meseta_isolators::{
    ContainerName, ContainerSpec, DestroyOptions, ExitCause, Inside, KillOutcome, KillRequest,
    Launched, ProcessIdentity, TaskIsolation,
};
use meseta_resources::ContainerId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::containerizer::Containerizer;
use super::events::readable;
use super::spec::{container_spec, spec_inside};
use super::writer::chain;
use crate::core::LaunchPlan;

/// Containers that are remembered for whoever waits for them.
const REMEMBERED_MAX: usize = 1024;
/// Pieces of output on their way; a reader that stops stops the command.
const PIECES_MAX: usize = 16;
const PIECE_BYTES: usize = 16 * 1024;
/// Between a signal that is not SIGKILL and SIGKILL: for ever, as far as anybody waits.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);
const SIGKILL: i32 = 9;

/// Where a piece of output came from.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// Why a nested container cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NestedError {
    /// One of that id runs.
    #[error("it is there already")]
    Exists,
    /// There is none of that id.
    #[error("it cannot be found")]
    Unknown,
    /// It runs.
    #[error("Nested container has not terminated yet")]
    Running,
    /// It could not be launched, or reached.
    #[error("{0}")]
    Failed(String),
}

/// How one ended, as wait(2) tells it; unknown if nobody saw it.
pub(crate) type Ended = Option<i32>;

#[derive(Debug)]
struct Nested {
    supervisor: ProcessIdentity,
    /// Its own sandbox, if it has one.
    sandbox: Option<PathBuf>,
    input: tokio::sync::Mutex<Option<pipe::Sender>>,
    ended: watch::Receiver<Option<Ended>>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NestedContainers {
    table: Arc<Mutex<BTreeMap<ContainerId, Option<Arc<Nested>>>>>,
}

impl NestedContainers {
    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Option<Arc<Nested>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &ContainerId) -> Result<Arc<Nested>, NestedError> {
        let found = self.table().get(id).cloned().flatten();
        found.ok_or(NestedError::Unknown)
    }

    /// Takes the id, so that nobody else launches under it.
    fn reserve(&self, id: &ContainerId) -> Result<(), NestedError> {
        let mut table = self.table();
        if table.contains_key(id) {
            return Err(NestedError::Exists);
        }
        if table.len() >= REMEMBERED_MAX {
            let over = |one: &Option<Arc<Nested>>| {
                one.as_ref().is_some_and(|one| one.ended.borrow().is_some())
            };
            let oldest = table.iter().find(|(_, one)| over(one));
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
                let text = "too many nested containers run".to_owned();
                return Err(NestedError::Failed(text));
            };
            table.remove(&oldest);
        }
        table.insert(id.clone(), None);
        Ok(())
    }

    /// Runs a container with a sandbox of its own inside another.
    pub(crate) async fn launch(
        &self,
        containerizer: &Containerizer,
        plan: LaunchPlan,
    ) -> Result<(), NestedError> {
        let id = plan.container().clone();
        self.reserve(&id)?;
        let shared = containerizer.clone();
        let launched = tokio::task::spawn_blocking(move || {
            let spec = container_spec(shared.options(), &plan)?;
            let launched = shared
                .containers()
                .launch_with(&spec, &TaskIsolation::default())
                .map_err(|error| chain(&error))?;
            Ok((spec.working_dir, launched))
        });
        let launched = flatten(launched.await);
        let (sandbox, launched) = launched.inspect_err(|_| drop(self.table().remove(&id)))?;
        self.keep(containerizer, id, launched, Some(sandbox), None, None);
        Ok(())
    }

    /// Runs a command in a container that lives; what it prints comes over the channel.
    pub(crate) async fn session(
        &self,
        containerizer: &Containerizer,
        plan: LaunchPlan,
        parent: &ContainerId,
    ) -> Result<mpsc::Receiver<(Stream, Bytes)>, NestedError> {
        let id = plan.container().clone();
        let supervisor = containerizer
            .supervisor_of(parent)
            .ok_or(NestedError::Unknown)?;
        self.reserve(&id)?;
        let shared = containerizer.clone();
        let parent = parent.clone();
        let launched = tokio::task::spawn_blocking(move || {
            let name = ContainerName::new(plan.container().as_str());
            let name = name.map_err(|error| chain(&error))?;
            let pipes = Pipes::make(&shared.containers().sessions_dir(&name))
                .map_err(|error| format!("failed to make pipes: {error}"))?;
            let mut spec = spec_inside(shared.options(), &plan, &parent)?;
            spec.stdout = pipes.path("out");
            spec.stderr = pipes.path("err");
            let inside = Inside {
                supervisor,
                stdin: Some(pipes.path("in")),
                terminal: false,
            };
            launch_inside(&shared, &spec, &inside).map(|launched| (pipes, launched))
        });
        let launched = flatten(launched.await);
        let (pipes, launched) = launched.inspect_err(|_| drop(self.table().remove(&id)))?;
        let (pieces_in, pieces) = mpsc::channel(PIECES_MAX);
        let Pipes {
            folder,
            input,
            output,
            errors,
        } = pipes;
        tokio::spawn(pump(output, Stream::Output, pieces_in.clone()));
        tokio::spawn(pump(errors, Stream::Error, pieces_in));
        self.keep(containerizer, id, launched, None, Some(input), Some(folder));
        Ok(pieces)
    }

    /// Remembers one that runs, and watches for its end.
    fn keep(
        &self,
        containerizer: &Containerizer,
        id: ContainerId,
        launched: Launched,
        sandbox: Option<PathBuf>,
        input: Option<pipe::Sender>,
        pipes: Option<PathBuf>,
    ) {
        let (told, ended) = watch::channel(None);
        let nested = Arc::new(Nested {
            supervisor: launched.supervisor.clone(),
            sandbox,
            input: tokio::sync::Mutex::new(input),
            ended,
        });
        info!(container_id = %id, "a nested container runs");
        self.table().insert(id.clone(), Some(nested.clone()));
        let containerizer = containerizer.clone();
        tokio::spawn(async move {
            let status = await_end(&containerizer, &id, launched.supervisor).await;
            nested.input.lock().await.take();
            if let Some(pipes) = pipes {
                let _ = tokio::task::spawn_blocking(move || remove_pipes(&pipes)).await;
            }
            info!(container_id = %id, ?status, "a nested container ended");
            let _ = told.send(Some(status));
        });
    }

    /// Waits for its end.
    pub(crate) async fn wait(&self, id: &ContainerId) -> Result<Ended, NestedError> {
        let mut ended = self.find(id)?.ended.clone();
        let seen = ended.wait_for(Option::is_some).await;
        seen.map(|status| (*status).flatten())
            .map_err(|_| NestedError::Failed("nobody watches it any more".to_owned()))
    }

    /// Sends it a signal; SIGKILL ends all of it.
    pub(crate) async fn kill(
        &self,
        containerizer: &Containerizer,
        id: &ContainerId,
        signal: i32,
    ) -> Result<(), NestedError> {
        let supervisor = self.find(id)?.supervisor.clone();
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

    /// Forgets one that ended, with its sandbox.
    pub(crate) async fn remove(&self, id: &ContainerId) -> Result<(), NestedError> {
        let nested = self.find(id)?;
        if nested.ended.borrow().is_none() {
            return Err(NestedError::Running);
        }
        self.table().remove(id);
        if let Some(sandbox) = nested.sandbox.clone() {
            let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(sandbox));
            if let Ok(Err(error)) = removed.await {
                warn!(container_id = %id, %error, "a sandbox is left over");
            }
        }
        Ok(())
    }

    /// Writes to its standard input; nothing at all ends that.
    pub(crate) async fn write(&self, id: &ContainerId, bytes: &[u8]) -> Result<(), NestedError> {
        let nested = self.find(id)?;
        let mut input = nested.input.lock().await;
        if bytes.is_empty() {
            input.take();
            return Ok(());
        }
        let Some(pipe) = input.as_mut() else {
            let text = "its standard input is closed".to_owned();
            return Err(NestedError::Failed(text));
        };
        let mut ended = nested.ended.clone();
        tokio::select! {
            written = pipe.write_all(bytes) => {
                written.map_err(|error| NestedError::Failed(error.to_string()))
            }
            // Nobody reads any more.
            _ = ended.wait_for(Option::is_some) => Ok(()),
        }
    }

    /// Whether there is one of that id with an input.
    pub(crate) async fn has_input(&self, id: &ContainerId) -> Result<bool, NestedError> {
        Ok(self.find(id)?.input.lock().await.is_some())
    }
}

fn flatten<T>(done: Result<Result<T, String>, tokio::task::JoinError>) -> Result<T, NestedError> {
    done.unwrap_or_else(|panic| Err(panic.to_string()))
        .map_err(NestedError::Failed)
}

fn launch_inside(
    containerizer: &Containerizer,
    spec: &ContainerSpec,
    inside: &Inside,
) -> Result<Launched, String> {
    containerizer
        .containers()
        .launch_inside(spec, &TaskIsolation::default(), inside)
        .map_err(|error| chain(&error))
}

/// Waits for the supervisor's end and leaves nothing of the container.
async fn await_end(
    containerizer: &Containerizer,
    id: &ContainerId,
    supervisor: ProcessIdentity,
) -> Ended {
    let name = ContainerName::new(id.as_str()).ok()?;
    let (shared, watched) = (containerizer.clone(), supervisor.clone());
    let pidfd = tokio::task::spawn_blocking(move || shared.containers().watch(&watched)).await;
    if let Ok(Ok(Some(pidfd))) = pidfd {
        let _ = readable(pidfd).await;
    }
    let shared = containerizer.clone();
    let ended = tokio::task::spawn_blocking(move || {
        let containers = shared.containers();
        let record = containers.exit_record(&name).ok().flatten();
        let options = DestroyOptions::default();
        if let Err(error) = containers.destroy(&name, Some(&supervisor), options) {
            warn!(error = %chain(&error), "a nested container is not gone");
        }
        let _ = containers.forget(&name);
        record.and_then(|record| match record.cause {
            ExitCause::Exited(code) => Some((code & 0xff) << 8),
            ExitCause::Signaled(signal) => Some(signal),
            ExitCause::LaunchFailed { .. } => None,
        })
    });
    ended.await.unwrap_or_default()
}

/// The three pipes of a session, by name, in a folder of their own.
struct Pipes {
    folder: PathBuf,
    input: pipe::Sender,
    output: pipe::Receiver,
    errors: pipe::Receiver,
}

impl Pipes {
    fn make(folder: &Path) -> std::io::Result<Self> {
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(folder)?;
        let make = |name: &str| -> std::io::Result<PathBuf> {
            let path = folder.join(name);
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
            nix::unistd::mkfifo(&path, mode)?;
            Ok(path)
        };
        let (input, output, errors) = (make("in")?, make("out")?, make("err")?);
        Ok(Self {
            folder: folder.to_owned(),
            // Open for reading too, so that whoever opens it to read need not wait for us.
            input: pipe::OpenOptions::new()
                .read_write(true)
                .open_sender(input)?,
            output: pipe::OpenOptions::new().open_receiver(output)?,
            errors: pipe::OpenOptions::new().open_receiver(errors)?,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn remove_pipes(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    if let Some(sessions) = folder.parent() {
        // Fails while others are there.
        let _ = std::fs::remove_dir(sessions);
    }
}

/// Reads to the end, which comes when the last process that can print is gone.
async fn pump(mut from: pipe::Receiver, stream: Stream, to: mpsc::Sender<(Stream, Bytes)>) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count) = from.read(&mut piece).await {
        let filled = piece.get(..count).unwrap_or_default();
        if count == 0
            || to
                .send((stream, Bytes::copy_from_slice(filled)))
                .await
                .is_err()
        {
            return;
        }
    }
}
