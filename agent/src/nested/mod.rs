//! Containers requested through the agent's own API, inside those of executors and tasks.
//!
//! A session runs a command in a running container and streams its output; other nested containers have their own
//! sandbox. They are not checkpointed: a restarted agent destroys them. Invariant: no nested container outlives its
//! parent, and no session outlives the connection that requested it.
//!
//! ```text
//! table.rs            the containers by id, and their number per framework
//! pipes.rs            a session on pipes, and its output
//! terminal.rs         a session at a terminal
//! output.rs           the readers of a container's output
//! api_concurrency.rs  launches and removals at the same time
//! found.rs            actions on a container that was looked up
//! ```

mod api_concurrency;
mod found;
pub(crate) mod output;
mod pipes;
mod table;
pub(crate) mod terminal;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meseta_isolators::{ContainerName, Destination, ExitCause, Inside, Launched, ProcessIdentity};
use meseta_resources::{ContainerId, FrameworkId};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::containerizer::{Containerizer, supervision, volumes_of};
use crate::core::LaunchPlan;
use crate::failure::Failure;
use crate::spec::isolation::task_isolation;
use crate::spec::sandbox::NestedSandbox;
use crate::spec::{container_spec, isolated, spec_inside, volumes};
use api_concurrency::ApiConcurrency;
use found::StalledWrite;
pub(crate) use found::{Attached, Found};
use output::{Output, OutputReceiver, Stream};
use pipes::{PipeFolder, Pipes, Source, pump};
use table::NestedTable;
use terminal::{Terminal, WindowSize};

pub(crate) const SIGKILL: i32 = 9;

/// The reason why a request for a nested container failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NestedError {
    /// A container with that id is running.
    #[error("it is there already")]
    Exists,
    /// There is no container with that id.
    #[error("it cannot be found")]
    Unknown,
    /// The container is running.
    #[error("Nested container has not terminated yet")]
    Running,
    /// The container accepts no input.
    #[error("its standard input is closed")]
    NoInput,
    /// Another client is attached to its input.
    #[error("Multiple input connections are not allowed")]
    Taken,
    /// The output of the container already has the largest number of readers.
    #[error("Too many connections read its output already")]
    Crowded,
    /// The container could not be launched or reached.
    #[error("{0}")]
    Failed(String),
}

/// The exit status of a container, in the format of wait(2); `None` if nobody observed the end.
pub(crate) type Ended = Option<i32>;

#[derive(Debug)]
struct Nested {
    framework: FrameworkId,
    /// The user of the container's processes.
    user: String,
    supervisor: ProcessIdentity,
    /// The container's own sandbox, if it has one.
    sandbox: Option<NestedSandbox>,
    input: tokio::sync::Mutex<Option<Input>>,
    /// The terminal that `input` leads to, to be resized while a write holds the input.
    terminal: Weak<Terminal>,
    stalled_write: StalledWrite,
    /// Locked by the client attached to the input.
    attached: Arc<tokio::sync::Mutex<()>>,
    output: Output,
    ended: watch::Receiver<Option<Ended>>,
    /// Locked by a call that is about to remove the container.
    removing: Arc<tokio::sync::Mutex<()>>,
}

impl Nested {
    /// Whether the container may be forgotten to make room: while its sandbox is being removed its id is not free.
    fn is_over(&self) -> bool {
        self.ended.borrow().is_some() && self.removing.try_lock().is_ok()
    }
}

/// The destination of input.
#[derive(Debug)]
enum Input {
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
}

/// Returns the terminal that this input leads to, if it leads to one.
fn terminal_of(input: Option<&Input>) -> Weak<Terminal> {
    match input {
        Some(Input::Terminal(terminal)) => Arc::downgrade(terminal),
        Some(Input::Pipe(_)) | None => Weak::new(),
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct NestedContainers {
    table: Arc<Mutex<NestedTable<Arc<Nested>>>>,
    api_concurrency: ApiConcurrency,
}

/// An id reserved for a launch, until the container is added.
#[derive(Debug)]
struct Reserved {
    all: NestedContainers,
    id: Option<ContainerId>,
    framework: FrameworkId,
    user: String,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.all.table().remove(&id);
        }
    }
}

/// A session for the caller that requested it.
#[derive(Debug)]
pub(crate) struct Session {
    /// The output of the session's command.
    pub(crate) chunks: OutputReceiver,
    /// The guard that kills the session's container when dropped.
    pub(crate) reader: Reader,
}

/// The caller of a session: without a caller its container is killed.
#[derive(Debug)]
pub(crate) struct Reader {
    containerizer: Containerizer,
    /// The container of the session, and no other with the same id.
    found: Option<Found>,
}

impl Reader {
    /// Notes that all output was read: the container ends by itself.
    pub(crate) fn has_read_all(mut self) {
        self.found.take();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        let (Some(found), Ok(runtime)) = (self.found.take(), runtime) else {
            return;
        };
        let containerizer = self.containerizer.clone();
        runtime.spawn(async move {
            // Nobody is left to read its output.
            let _ = found.kill(&containerizer, SIGKILL).await;
        });
    }
}

impl NestedContainers {
    fn table(&self) -> MutexGuard<'_, NestedTable<Arc<Nested>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The container that has an id now.
    pub(crate) fn look_up(&self, id: &ContainerId) -> Result<Found, NestedError> {
        let nested = self.table().get(id).cloned();
        let nested = nested.ok_or(NestedError::Unknown)?;
        Ok(Found {
            id: id.clone(),
            nested,
        })
    }

    /// Reserves the id, so that nobody else launches under it.
    fn reserve(
        &self,
        containerizer: &Containerizer,
        plan: &LaunchPlan,
    ) -> Result<Reserved, NestedError> {
        let is_there = |container: &ContainerId| containerizer.has(container);
        let is_over = |one: &Arc<Nested>| one.is_over();
        self.table()
            .reserve(&plan.container, &plan.run, is_over, is_there)?;
        Ok(Reserved {
            all: self.clone(),
            id: Some(plan.container.clone()),
            framework: plan.run.framework.clone(),
            user: plan.user.clone(),
        })
    }

    /// Runs a container with its own sandbox inside another. With its permit the launch runs to its end, even if the
    /// caller is gone.
    pub(crate) async fn launch(
        &self,
        containerizer: &Containerizer,
        plan: LaunchPlan,
    ) -> Result<(), NestedError> {
        // Waits before taking a permit, since other launches wait for permits.
        let (settings, wanted) = (containerizer.settings(), volumes_of(&plan));
        let emptied = volumes::emptied(&settings.places, &settings.layout, &wanted).await;
        emptied.map_err(|error| NestedError::Failed(Failure::from(error).into()))?;
        let permit = self.api_concurrency.launch(&plan.run.framework).await;
        let (this, containerizer) = (self.clone(), containerizer.clone());
        to_its_end(async move {
            let _permit = permit;
            let reserved = this.reserve(&containerizer, &plan)?;
            let shared = containerizer.clone();
            let launched = tokio::task::spawn_blocking(move || {
                shared.restore_runtime_folder()?;
                let settings = shared.settings();
                let sandbox = NestedSandbox::from_layout(&settings.layout, &plan);
                let rights = &settings.rights;
                let isolation = task_isolation(rights, &plan)?;
                let spec = isolated(container_spec(settings, &plan)?, isolation);
                let _inside = shared.launch_inside(&plan);
                let launched = shared.containers().launch(&spec);
                let launched = launched.inspect_err(|_| sandbox.undo())?;
                Ok((sandbox, launched))
            });
            let (sandbox, launched) = flatten(launched.await)?;
            let ends = NestedIo {
                sandbox: Some(sandbox),
                ..NestedIo::default()
            };
            this.keep(&containerizer, reserved, launched, ends);
            Ok(())
        })
        .await
    }

    /// Runs a command in a running container, at a terminal of that size or on pipes. If the caller has gone meanwhile,
    /// the container ends too.
    pub(crate) async fn session(
        &self,
        containerizer: &Containerizer,
        plan: LaunchPlan,
        parent: &ContainerId,
        terminal: Option<Option<WindowSize>>,
    ) -> Result<Session, NestedError> {
        let supervisor = containerizer
            .supervisor_of(parent)
            .ok_or(NestedError::Unknown)?;
        let permit = self.api_concurrency.launch(&plan.run.framework).await;
        let (this, containerizer) = (self.clone(), containerizer.clone());
        let parent = parent.clone();
        to_its_end(async move {
            let _permit = permit;
            let reserved = this.reserve(&containerizer, &plan)?;
            let shared = containerizer.clone();
            let launched = tokio::task::spawn_blocking(move || {
                let _inside = shared.launch_inside(&plan);
                shared.restore_runtime_folder()?;
                match terminal {
                    Some(size) => at_terminal(&shared, &plan, &parent, supervisor, size),
                    None => on_pipes(&shared, &plan, &parent, supervisor),
                }
            });
            let (ends, launched) = flatten(launched.await)?;
            let chunks = ends.output.attach();
            let reader = Reader {
                found: this.keep(&containerizer, reserved, launched, ends),
                containerizer,
            };
            let chunks = chunks.ok().flatten().ok_or(NestedError::Unknown)?;
            Ok(Session { chunks, reader })
        })
        .await
    }

    /// Adds a running container, and watches for its end.
    fn keep(
        &self,
        containerizer: &Containerizer,
        mut reserved: Reserved,
        launched: Launched,
        ends: NestedIo,
    ) -> Option<Found> {
        let id = reserved.id.take()?;
        let (told, ended) = watch::channel(None);
        let nested = Arc::new(Nested {
            framework: reserved.framework.clone(),
            user: reserved.user.clone(),
            supervisor: launched.supervisor.clone(),
            sandbox: ends.sandbox,
            terminal: terminal_of(ends.input.as_ref()),
            input: tokio::sync::Mutex::new(ends.input),
            stalled_write: StalledWrite::default(),
            attached: Arc::default(),
            output: ends.output.clone(),
            ended,
            removing: Arc::default(),
        });
        info!(container_id = %id, "a nested container runs");
        self.table().keep(&id, nested.clone());
        let kept = Found {
            id: id.clone(),
            nested: nested.clone(),
        };
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
            // First, because a client that waits for room in its input holds the input until then.
            let _ = told.send(Some(status));
            nested.input.lock().await.take();
            let _ = tokio::task::spawn_blocking(move || drop(ends.pipes)).await;
        });
        tokio::spawn(async move {
            for pump in pumps {
                let _ = pump.await;
            }
            output.close();
        });
        Some(kept)
    }

    /// The containers that are running.
    pub(crate) fn running(&self) -> Vec<ContainerId> {
        let table = self.table();
        let running = table.iter().filter(|(_, one)| one.ended.borrow().is_none());
        running.map(|(id, _)| id.clone()).collect()
    }

    /// Forgets an ended container, with its sandbox. With its permit the removal runs to its end, and its id stays
    /// reserved until then.
    pub(crate) async fn remove(&self, found: Found) -> Result<(), NestedError> {
        let Found { id, nested } = found;
        if nested.ended.borrow().is_none() {
            return Err(NestedError::Running);
        }
        let removing = nested.removing.clone().lock_owned().await;
        let permit = self.api_concurrency.remove(&nested.framework).await;
        let this = self.clone();
        to_its_end(async move {
            let _held = (removing, permit);
            // Another call may have removed it meanwhile, and a new container may have its id.
            if !this.is_known(&id, &nested) {
                return Err(NestedError::Unknown);
            }
            if let Some(sandbox) = nested.sandbox.clone() {
                let removed = tokio::task::spawn_blocking(move || sandbox.remove());
                if let Ok(Err(error)) = removed.await {
                    warn!(container_id = %id, %error, "failed to remove a sandbox");
                }
            }
            this.table().remove(&id);
            Ok(())
        })
        .await
    }

    /// Whether the id still belongs to this container.
    fn is_known(&self, id: &ContainerId, nested: &Arc<Nested>) -> bool {
        self.table()
            .get(id)
            .is_some_and(|one| Arc::ptr_eq(one, nested))
    }
}

/// Runs a future to its end, even if nobody waits for it any more; then its result is dropped.
async fn to_its_end<T: Send + 'static>(
    doing: impl Future<Output = Result<T, NestedError>> + Send + 'static,
) -> Result<T, NestedError> {
    let done = tokio::spawn(doing).await;
    done.unwrap_or_else(|panic| Err(NestedError::Failed(panic.to_string())))
}

fn flatten<T>(done: Result<Result<T, Failure>, tokio::task::JoinError>) -> Result<T, NestedError> {
    done.unwrap_or_else(|panic| Err(panic.into()))
        .map_err(|failure| NestedError::Failed(failure.into()))
}

/// The input and output of a container, and its sandbox.
#[derive(Debug, Default)]
struct NestedIo {
    sandbox: Option<NestedSandbox>,
    input: Option<Input>,
    output: Output,
    sources: Vec<Source>,
    pipes: Option<PipeFolder>,
}

/// Runs a command inside, with pipes for its input and output.
fn on_pipes(
    containerizer: &Containerizer,
    plan: &LaunchPlan,
    parent: &ContainerId,
    supervisor: ProcessIdentity,
) -> Result<(NestedIo, Launched), Failure> {
    let name = ContainerName::new(plan.container.as_str())?;
    let pipes = Pipes::make(&containerizer.containers().sessions_dir(&name))
        .map_err(|error| Failure::new(format!("failed to make pipes: {error}")))?;
    let inside = Inside {
        supervisor,
        stdin: Some(pipes.path("in")),
        terminal: false,
    };
    let mut spec = spec_inside(containerizer.settings(), plan, parent, inside)?;
    spec.stdout = Destination::Endpoint(pipes.path("out"));
    spec.stderr = Destination::Endpoint(pipes.path("err"));
    let launched = containerizer.containers().launch(&spec)?;
    let ends = NestedIo {
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

/// Runs a command inside, at its own terminal.
fn at_terminal(
    containerizer: &Containerizer,
    plan: &LaunchPlan,
    parent: &ContainerId,
    supervisor: ProcessIdentity,
    size: Option<WindowSize>,
) -> Result<(NestedIo, Launched), Failure> {
    let opened = Terminal::open(size);
    let (terminal, path) =
        opened.map_err(|error| Failure::new(format!("failed to open a terminal: {error}")))?;
    let inside = Inside {
        supervisor,
        stdin: Some(path.clone()),
        terminal: true,
    };
    let mut spec = spec_inside(containerizer.settings(), plan, parent, inside)?;
    spec.stdout = Destination::Endpoint(path);
    spec.stderr.clone_from(&spec.stdout);
    let launched = containerizer.containers().launch(&spec)?;
    let terminal = Arc::new(terminal);
    let ends = NestedIo {
        input: Some(Input::Terminal(terminal.clone())),
        output: Output::open(),
        sources: vec![Source::Terminal(terminal)],
        ..NestedIo::default()
    };
    Ok((ends, launched))
}

/// Waits for the supervisor's end and removes the container.
async fn await_end(
    containerizer: &Containerizer,
    id: &ContainerId,
    supervisor: ProcessIdentity,
) -> Ended {
    let name = ContainerName::new(id.as_str()).ok()?;
    supervision::ended(containerizer, id, &supervisor).await;
    let (shared, read) = (containerizer.clone(), name.clone());
    let record = tokio::task::spawn_blocking(move || shared.containers().exit_record(&read));
    let record = record.await.ok().and_then(Result::ok).flatten();
    containerizer
        .destroy_until_gone(&name, Some(supervisor))
        .await;
    let shared = containerizer.clone();
    let forgotten = tokio::task::spawn_blocking(move || shared.containers().forget(&name));
    let _ = forgotten.await;
    match record?.cause {
        ExitCause::Exited(code) => Some((code & 0xff) << 8),
        ExitCause::Signaled(signal) => Some(signal),
        ExitCause::LaunchFailed { .. } => None,
    }
}

#[cfg(test)]
impl NestedContainers {
    /// Adds a running container with this user, whose input goes to a pipe. It ends when the sender sends an end, or is
    /// dropped.
    pub(crate) fn insert_running(
        &self,
        (id, run): (&ContainerId, &crate::checkpoint::RunKey),
        user: &str,
        input: pipe::Sender,
    ) -> watch::Sender<Option<Ended>> {
        let ends = NestedIo {
            input: Some(Input::Pipe(input)),
            ..NestedIo::default()
        };
        self.insert((id, run), user, ends)
    }

    /// Has one that runs at a terminal, whose other end this returns with the sender of its end.
    pub(crate) fn insert_at_terminal(
        &self,
        of_new: (&ContainerId, &crate::checkpoint::RunKey),
    ) -> (watch::Sender<Option<Ended>>, std::fs::File) {
        let (terminal, path) = Terminal::open(None).expect("a terminal");
        let ends = NestedIo {
            input: Some(Input::Terminal(Arc::new(terminal))),
            ..NestedIo::default()
        };
        let mut other_end = std::fs::OpenOptions::new();
        let other_end = other_end.read(true).write(true).open(path);
        let running = self.insert(of_new, "nobody", ends);
        (running, other_end.expect("its other end"))
    }

    fn insert(
        &self,
        (id, run): (&ContainerId, &crate::checkpoint::RunKey),
        user: &str,
        ends: NestedIo,
    ) -> watch::Sender<Option<Ended>> {
        let (told, ended) = watch::channel(None);
        let nested = Nested {
            framework: run.framework.clone(),
            user: user.to_owned(),
            supervisor: ProcessIdentity::from_text("1 1 boot").expect("an identity"),
            sandbox: ends.sandbox,
            terminal: terminal_of(ends.input.as_ref()),
            input: tokio::sync::Mutex::new(ends.input),
            stalled_write: StalledWrite::default(),
            attached: Arc::default(),
            output: ends.output,
            ended,
            removing: Arc::default(),
        };
        let mut table = self.table();
        let reserved = table.reserve(id, run, |_| false, |one| *one == run.container);
        reserved.expect("a free id");
        table.keep(id, Arc::new(nested));
        told
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::pin::Pin;
    use std::task::Poll;

    use meseta_isolators::Demand;
    use meseta_proto::mesos::v1 as pb;
    use meseta_resources::{AgentId, ExecutorId, Resources};
    use tokio::sync::oneshot;

    use super::*;
    use crate::checkpoint::{Layout, inside};
    use crate::core::Subject;

    /// Polls once. Returns whether the future is pending.
    async fn is_pending<F: Future>(mut doing: Pin<&mut F>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(doing.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn begun_work_ends_without_its_caller() {
        let (go, going) = oneshot::channel::<()>();
        let (told, done) = oneshot::channel();
        let mut doing = Box::pin(to_its_end(async move {
            let _ = going.await;
            let _ = told.send(());
            Ok(())
        }));
        assert!(is_pending(doing.as_mut()).await);
        drop(doing);
        go.send(()).expect("it goes on");
        done.await.expect("it went to its end");
    }

    /// Containers with the same id, one after the other.
    struct Removals {
        dir: tempfile::TempDir,
        all: NestedContainers,
        plan: LaunchPlan,
    }

    impl Removals {
        fn new() -> Self {
            let run = crate::checkpoint::RunKey {
                agent: AgentId::new("a").expect("an id"),
                framework: FrameworkId::new("f").expect("an id"),
                executor: ExecutorId::new("e").expect("an id"),
                container: ContainerId::new("outer").expect("an id"),
            };
            let container = run.container.child("inner").expect("an id");
            let plan = LaunchPlan {
                run: Arc::new(run),
                container,
                subject: Subject::Task(Arc::new(pb::TaskInfo::default())),
                user: "nobody".to_owned(),
                role: None,
                demand: Demand::default(),
                resources: Resources::default(),
                volumes: Vec::new(),
                parent_volumes: Vec::new(),
            };
            Self {
                dir: tempfile::tempdir().expect("a directory"),
                all: NestedContainers::default(),
                plan,
            }
        }

        fn layout(&self) -> Layout {
            Layout::new(self.dir.path())
        }

        fn sandbox(&self) -> PathBuf {
            let outer = self.layout().sandbox(&self.plan.run);
            outer.join(inside(&self.plan.container))
        }

        /// Launches a container, as far as the table is concerned.
        fn launch(&self) -> watch::Sender<Option<Ended>> {
            std::fs::create_dir_all(self.sandbox()).expect("a sandbox");
            let ends = NestedIo {
                sandbox: Some(NestedSandbox::from_layout(&self.layout(), &self.plan)),
                ..NestedIo::default()
            };
            self.all
                .insert((&self.plan.container, &self.plan.run), "nobody", ends)
        }

        fn found(&self) -> Found {
            let found = self.all.look_up(&self.plan.container);
            found.expect("one of that id")
        }

        fn launch_ended(&self) {
            self.launch().send(Some(Some(0))).expect("it is kept");
        }

        async fn take_permit(&self) -> impl Sized {
            let permit = self.all.api_concurrency.remove(&self.plan.run.framework);
            permit.await.expect("a permit")
        }
    }

    #[test]
    fn abandoned_removal_keeps_permit_and_id() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let removals = Removals::new();
            removals.launch_ended();
            let (go, going) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || going.recv());
            let mut removal = Box::pin(removals.all.remove(removals.found()));
            assert!(is_pending(removal.as_mut()).await);
            drop(removal);
            // A framework has two permits.
            let _other = removals.take_permit().await;
            let mut next = Box::pin(removals.take_permit());
            assert!(is_pending(next.as_mut()).await, "its permit was given away");
            assert!(!removals.found().nested.is_over(), "its id is taken");
            go.send(()).expect("it is waited for");
            busy.await.expect("no panic").expect("told");
            next.await;
            assert!(!removals.sandbox().exists());
            let gone = removals.all.look_up(&removals.plan.container);
            assert!(matches!(gone, Err(NestedError::Unknown)));
        });
    }

    #[tokio::test]
    async fn waiting_removal_spares_new_container() {
        let removals = Removals::new();
        removals.launch_ended();
        let permits = (removals.take_permit().await, removals.take_permit().await);
        let mut first = Box::pin(removals.all.remove(removals.found()));
        assert!(is_pending(first.as_mut()).await);
        let mut second = Box::pin(removals.all.remove(removals.found()));
        assert!(is_pending(second.as_mut()).await);
        drop(permits);
        first.await.expect("removed");
        assert!(!removals.sandbox().exists());
        let _running = removals.launch();
        assert!(matches!(second.await, Err(NestedError::Unknown)));
        assert!(!removals.found().nested.is_over(), "it runs");
        assert!(removals.sandbox().exists());
    }

    /// Regression: between the authorization of a call and its action the id was looked up once more.
    #[tokio::test]
    async fn found_container_differs_from_successor() {
        let removals = Removals::new();
        removals.launch_ended();
        let found = removals.found();
        removals
            .all
            .remove(removals.found())
            .await
            .expect("removed");
        let (input, _read) = pipe::pipe().expect("a pipe");
        let of_new = (&removals.plan.container, &*removals.plan.run);
        let _running = removals.all.insert_running(of_new, "root", input);
        assert_eq!((found.user(), removals.found().user()), ("nobody", "root"));
        let attached = found.attach_input().await;
        assert!(
            matches!(attached, Err(NestedError::NoInput)),
            "{attached:?}"
        );
        assert!(removals.found().attach_input().await.is_ok());
        assert_eq!(found.wait().await.expect("it ended"), Some(0));
    }

    /// Regression: a client that was gone blocked the input of a container that does not read it, until the container
    /// ended.
    #[tokio::test(start_paused = true)]
    async fn second_client_takes_over_stalled_input() {
        let removals = Removals::new();
        let (input, _read) = pipe::pipe().expect("a pipe");
        let of_new = (&removals.plan.container, &*removals.plan.run);
        let _running = removals.all.insert_running(of_new, "root", input);
        let first = removals.found().attach_input().await.expect("attached");
        let stalled = tokio::spawn(async move { first.write(&vec![b'x'; 1 << 20]).await });
        while removals.found().nested.input.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let early = removals.found().attach_input().await;
        assert!(matches!(early, Err(NestedError::Taken)), "{early:?}");
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        let second = removals.found().attach_input().await;
        assert!(second.is_ok(), "{second:?}");
        let written = stalled.await.expect("no panic");
        assert!(matches!(written, Err(NestedError::Taken)), "{written:?}");
        drop(second);
        assert!(removals.found().attach_input().await.is_ok());
    }

    /// A launch under the id of a task's container fails, and the sandbox belongs to the task.
    #[test]
    fn undo_keeps_an_existing_sandbox() {
        let removals = Removals::new();
        let sandbox = || NestedSandbox::from_layout(&removals.layout(), &removals.plan);
        let fresh = sandbox();
        std::fs::create_dir_all(removals.sandbox()).expect("a sandbox");
        let again = sandbox();
        again.undo();
        assert!(removals.sandbox().exists());
        fresh.undo();
        assert!(!removals.sandbox().exists());
    }
}
