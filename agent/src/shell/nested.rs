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
    ContainerName, ContainerSpec, Destination, DestroyOptions, ExitCause, Inside, KillOutcome,
    KillRequest, Launched, ProcessIdentity, TaskIsolation,
};
use meseta_resources::ContainerId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::containerizer::Containerizer;
use super::sandbox::NestedSandbox;
use super::spec::{Prepared, container_spec, spec_inside};
use super::supervision;
use super::terminal::{Terminal, WindowSize};
use super::turns::Turns;
use super::wishes::task_isolation;
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
    /// Nothing can be typed into it.
    #[error("its standard input is closed")]
    NoInput,
    /// Somebody else types into it.
    #[error("Multiple input connections are not allowed")]
    Taken,
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
    sandbox: Option<NestedSandbox>,
    input: tokio::sync::Mutex<Option<Input>>,
    /// Held by whoever is attached to the input.
    attached: Arc<tokio::sync::Mutex<()>>,
    output: Output,
    ended: watch::Receiver<Option<Ended>>,
}

/// Where what is typed goes.
#[derive(Debug)]
enum Input {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

/// Pieces of output, for whoever reads them.
pub(crate) type Pieces = mpsc::Receiver<(Stream, Bytes)>;

/// Whom pieces of output go to.
type Readers = Vec<mpsc::Sender<(Stream, Bytes)>>;

/// Everybody who is to get what a container prints; a reader that stops stops it.
#[derive(Clone, Debug, Default)]
struct Output {
    /// None for a container whose output is in its sandbox, or is over.
    readers: Arc<Mutex<Option<Readers>>>,
}

impl Output {
    fn readers(&self) -> MutexGuard<'_, Option<Readers>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open() -> Self {
        let output = Self::default();
        *output.readers() = Some(Vec::new());
        output
    }

    fn attach(&self) -> Option<Pieces> {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        self.readers().as_mut()?.push(sender);
        Some(pieces)
    }

    async fn print(&self, stream: Stream, bytes: Bytes) {
        let readers = self.readers().clone().unwrap_or_default();
        for reader in readers {
            let _ = reader.send((stream, bytes.clone())).await;
        }
        if let Some(readers) = self.readers().as_mut() {
            readers.retain(|reader| !reader.is_closed());
        }
    }

    fn close(&self) {
        self.readers().take();
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NestedContainers {
    table: Arc<Mutex<BTreeMap<ContainerId, Option<Arc<Nested>>>>>,
    turns: Turns,
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
        let _turn = self.turns.launch(&plan.run.framework).await;
        self.reserve(&id)?;
        let shared = containerizer.clone();
        let launched = tokio::task::spawn_blocking(move || {
            let options = shared.options();
            let sandbox = NestedSandbox::of(&options.layout, &plan);
            let rights = &options.rights;
            let wishes = task_isolation(rights, &plan)?;
            let Prepared { spec, mounts } = container_spec(options, &plan)?;
            let wishes = TaskIsolation { mounts, ..wishes };
            let launched = shared.containers().launch_with(&spec, &wishes);
            let launched = launched.map_err(|error| {
                sandbox.undo();
                chain(&error)
            })?;
            Ok((sandbox, launched))
        });
        let launched = flatten(launched.await);
        let (sandbox, launched) = launched.inspect_err(|_| drop(self.table().remove(&id)))?;
        let ends = Ends {
            sandbox: Some(sandbox),
            ..Ends::default()
        };
        self.keep(containerizer, id, launched, ends);
        Ok(())
    }

    /// Runs a command in a container that lives, at a terminal of that size or on pipes; what it prints
    /// comes over the channel.
    pub(crate) async fn session(
        &self,
        containerizer: &Containerizer,
        plan: LaunchPlan,
        parent: &ContainerId,
        terminal: Option<Option<WindowSize>>,
    ) -> Result<Pieces, NestedError> {
        let id = plan.container().clone();
        let supervisor = containerizer
            .supervisor_of(parent)
            .ok_or(NestedError::Unknown)?;
        let _turn = self.turns.launch(&plan.run.framework).await;
        self.reserve(&id)?;
        let shared = containerizer.clone();
        let parent = parent.clone();
        let launched = tokio::task::spawn_blocking(move || match terminal {
            Some(size) => at_terminal(&shared, &plan, &parent, supervisor, size),
            None => on_pipes(&shared, &plan, &parent, supervisor),
        });
        let launched = flatten(launched.await);
        let (ends, launched) = launched.inspect_err(|_| drop(self.table().remove(&id)))?;
        let pieces = ends.output.attach();
        self.keep(containerizer, id, launched, ends);
        pieces.ok_or(NestedError::Unknown)
    }

    /// What it prints from now on.
    pub(crate) fn attach_output(&self, id: &ContainerId) -> Result<Option<Pieces>, NestedError> {
        Ok(self.find(id)?.output.attach())
    }

    /// Remembers one that runs, and watches for its end.
    fn keep(&self, containerizer: &Containerizer, id: ContainerId, launched: Launched, ends: Ends) {
        let (told, ended) = watch::channel(None);
        let nested = Arc::new(Nested {
            supervisor: launched.supervisor.clone(),
            sandbox: ends.sandbox,
            input: tokio::sync::Mutex::new(ends.input),
            attached: Arc::default(),
            output: ends.output.clone(),
            ended,
        });
        info!(container_id = %id, "a nested container runs");
        self.table().insert(id.clone(), Some(nested.clone()));
        let output = ends.output;
        let pumps: Vec<_> = ends
            .sources
            .into_iter()
            .map(|source| tokio::spawn(pump(source, output.clone())))
            .collect();
        let containerizer = containerizer.clone();
        tokio::spawn(async move {
            let status = await_end(&containerizer, &id, launched.supervisor).await;
            info!(container_id = %id, ?status, "a nested container ended");
            // First, because whoever waits for room in its input holds that until then.
            let _ = told.send(Some(status));
            nested.input.lock().await.take();
            if let Some(pipes) = ends.pipes {
                let _ = tokio::task::spawn_blocking(move || remove_pipes(&pipes)).await;
            }
        });
        tokio::spawn(async move {
            for pump in pumps {
                let _ = pump.await;
            }
            output.close();
        });
    }

    /// Those that run.
    pub(crate) fn running(&self) -> Vec<ContainerId> {
        let table = self.table();
        let running = table
            .iter()
            .filter(|(_, one)| one.as_ref().is_some_and(|one| one.ended.borrow().is_none()));
        running.map(|(id, _)| id.clone()).collect()
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
        let _turn = self.turns.remove().await;
        self.table().remove(id);
        if let Some(sandbox) = nested.sandbox.clone() {
            let removed = tokio::task::spawn_blocking(move || sandbox.remove());
            if let Ok(Err(error)) = removed.await {
                warn!(container_id = %id, %error, "a sandbox is left over");
            }
        }
        Ok(())
    }

    /// Attaches to its standard input, which one alone can be.
    pub(crate) async fn attach_input(&self, id: &ContainerId) -> Result<Attached, NestedError> {
        let nested = self.find(id)?;
        if nested.input.lock().await.is_none() {
            return Err(NestedError::NoInput);
        }
        let held = nested.attached.clone().try_lock_owned();
        let held = held.map_err(|_| NestedError::Taken)?;
        Ok(Attached {
            nested,
            _held: held,
        })
    }
}

/// Somebody at the standard input of a container.
#[derive(Debug)]
pub(crate) struct Attached {
    nested: Arc<Nested>,
    _held: tokio::sync::OwnedMutexGuard<()>,
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
        let writing = async {
            match input.as_mut() {
                Some(Input::Pipe(pipe)) => pipe.write_all(bytes).await,
                Some(Input::Terminal(terminal)) => terminal.write(bytes).await,
                None => Err(std::io::Error::other("its standard input is closed")),
            }
        };
        tokio::select! {
            written = writing => written.map_err(|error| NestedError::Failed(error.to_string())),
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

fn flatten<T>(done: Result<Result<T, String>, tokio::task::JoinError>) -> Result<T, NestedError> {
    done.unwrap_or_else(|panic| Err(panic.to_string()))
        .map_err(NestedError::Failed)
}

/// What goes in and out of a container, and where it is kept meanwhile.
#[derive(Debug, Default)]
struct Ends {
    sandbox: Option<NestedSandbox>,
    input: Option<Input>,
    output: Output,
    sources: Vec<Source>,
    /// The folder of its pipes.
    pipes: Option<PathBuf>,
}

/// Runs a command inside, with pipes for what it reads and prints.
fn on_pipes(
    containerizer: &Containerizer,
    plan: &LaunchPlan,
    parent: &ContainerId,
    supervisor: ProcessIdentity,
) -> Result<(Ends, Launched), String> {
    let name = ContainerName::new(plan.container().as_str()).map_err(|error| chain(&error))?;
    let pipes = Pipes::make(&containerizer.containers().sessions_dir(&name))
        .map_err(|error| format!("failed to make pipes: {error}"))?;
    let mut spec = spec_inside(containerizer.options(), plan, parent)?;
    spec.stdout = Destination::Endpoint(pipes.path("out"));
    spec.stderr = Destination::Endpoint(pipes.path("err"));
    let inside = Inside {
        supervisor,
        stdin: Some(pipes.path("in")),
        terminal: false,
    };
    let launched = launch_inside(containerizer, &spec, &inside)?;
    let ends = Ends {
        input: Some(Input::Pipe(pipes.input)),
        output: Output::open(),
        sources: vec![
            Source::Pipe(pipes.output, Stream::Output),
            Source::Pipe(pipes.errors, Stream::Error),
        ],
        pipes: Some(pipes.folder),
        sandbox: None,
    };
    Ok((ends, launched))
}

/// Runs a command inside, at a terminal of its own.
fn at_terminal(
    containerizer: &Containerizer,
    plan: &LaunchPlan,
    parent: &ContainerId,
    supervisor: ProcessIdentity,
    size: Option<WindowSize>,
) -> Result<(Ends, Launched), String> {
    let opened = Terminal::open(size);
    let (terminal, path) = opened.map_err(|error| format!("failed to open a terminal: {error}"))?;
    let mut spec = spec_inside(containerizer.options(), plan, parent)?;
    spec.stdout = Destination::Endpoint(path.clone());
    spec.stderr.clone_from(&spec.stdout);
    let inside = Inside {
        supervisor,
        stdin: Some(path),
        terminal: true,
    };
    let launched = launch_inside(containerizer, &spec, &inside)?;
    let terminal = Arc::new(terminal);
    let ends = Ends {
        input: Some(Input::Terminal(terminal.clone())),
        output: Output::open(),
        sources: vec![Source::Terminal(terminal)],
        ..Ends::default()
    };
    Ok((ends, launched))
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
    supervision::ended(containerizer, id, &supervisor).await;
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

/// Where output is read.
#[derive(Debug)]
enum Source {
    Pipe(pipe::Receiver, Stream),
    Terminal(Arc<Terminal>),
}

impl Source {
    async fn read(&mut self, piece: &mut [u8]) -> std::io::Result<(Stream, usize)> {
        match self {
            Self::Pipe(pipe, stream) => Ok((*stream, pipe.read(piece).await?)),
            Self::Terminal(terminal) => Ok((Stream::Output, terminal.read(piece).await?)),
        }
    }
}

/// Reads to the end, which comes when the last process that can print is gone.
async fn pump(mut from: Source, to: Output) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok((stream, count)) = from.read(&mut piece).await {
        let filled = piece.get(..count).unwrap_or_default();
        if filled.is_empty() {
            return;
        }
        to.print(stream, Bytes::copy_from_slice(filled)).await;
    }
}
