//! Runs a daemon in this process: logging, runtime, signals. The daemon itself is a library.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use meseta_daemon::verbosity::Verbosity;
use meseta_resources::ByteSize;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::memory::Relief;
use crate::{flags, logging, memory, service_manager, terminal};

/// Runs the master until its shutdown.
pub(crate) fn master(
    flags: meseta_master::Flags,
    flags_view: BTreeMap<String, String>,
) -> anyhow::Result<ExitCode> {
    memory::large_pieces_go_back();
    // An invalid value is refused at the start.
    let budget = flags.memory_budget.parse().unwrap_or_default();
    let verbosity = prepare()?;
    run_to_end(async {
        outlive_signals(&MEANINGLESS)?;
        let shutdown = stop_requested()?;
        let env = meseta_master::RunEnv {
            build: flags::build(),
            flags_view,
            verbosity,
            ready: Some(tidy_when_started(trim_regularly(budget))),
            started: service_manager::notify_when_started(),
            shutdown: Box::pin(shutdown.cancelled_owned()),
        };
        meseta_master::run(flags, env).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs the agent until its shutdown; its tasks continue without it, unless SIGUSR1 makes it leave its cluster.
pub(crate) fn agent(
    flags: meseta_agent::Flags,
    flags_view: BTreeMap<String, String>,
) -> anyhow::Result<ExitCode> {
    if flags.check {
        return Ok(check(&flags));
    }
    memory::few_arenas();
    let verbosity = prepare()?;
    run_to_end(async {
        outlive_signals(MEANINGLESS_TO_AGENTS)?;
        let shutdown = stop_requested()?;
        let env = meseta_agent::RunEnv {
            build: flags::build(),
            flags_view,
            verbosity,
            ready: Some(tidy_when_started(release_memory_regularly(
                flags.memory_budget,
            ))),
            started: service_manager::notify_when_started(),
            shutdown,
            unregister: unregister_requested()?,
        };
        meseta_agent::run(flags, env).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs the scheduler of jobs until its shutdown; its tasks continue without it.
pub(crate) fn scheduler(flags: meseta_jobs::Flags) -> anyhow::Result<ExitCode> {
    memory::few_arenas();
    prepare()?;
    run_to_end(async {
        outlive_signals(&MEANINGLESS)?;
        let shutdown = stop_requested()?;
        let env = meseta_jobs::RunEnv {
            build: flags::build(),
            ready: None,
            started: service_manager::notify_when_started(),
            shutdown,
        };
        meseta_jobs::run(flags, env).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a sender for the address once the daemon listens; some time later the memory of the start is released. Then
/// `then` runs.
fn tidy_when_started<F>(then: F) -> tokio::sync::oneshot::Sender<std::net::SocketAddr>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, listening) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        if listening.await.is_ok() {
            tokio::time::sleep(memory::AFTER).await;
            let _ = tokio::task::spawn_blocking(memory::give_back).await;
            then.await;
        }
    });
    sender
}

/// Releases memory regularly. The agent's heap is small, and grows for a moment with each burst of launches and each large
/// answer, as do the mapped pages of the program. The master does not use this: its heap may be large, and it must not wait
/// for the release often.
async fn release_memory_regularly(budget: ByteSize) {
    let tidied = async {
        loop {
            let _ = tokio::task::spawn_blocking(memory::tidy).await;
            tokio::time::sleep(memory::TRIM_INTERVAL).await;
        }
    };
    let pressure = memory::Pressure::new(budget.as_bytes(), memory::tidy);
    tokio::join!(tidied, relieve_when_needed(pressure));
}

/// Trims the master's heap whenever much of it may be free, and before it nears its budget.
async fn trim_regularly(budget: ByteSize) {
    tokio::join!(
        relieve_when_needed(memory::Trims::new()),
        relieve_when_needed(memory::Pressure::new(budget.as_bytes(), memory::trim))
    );
}

async fn relieve_when_needed<R: Relief>(mut relief: R) {
    loop {
        tokio::time::sleep(R::INTERVAL).await;
        if !relief.is_needed() {
            continue;
        }
        let relieving = tokio::task::spawn_blocking(move || {
            relief.relieve();
            relief
        });
        let Ok(relieved) = relieving.await else {
            return;
        };
        relief = relieved;
    }
}

/// Runs `--check`: prints the findings.
fn check(flags: &meseta_agent::Flags) -> ExitCode {
    let findings = meseta_agent::check(flags);
    for one in &findings {
        terminal::say_lines(&one.to_string());
    }
    let is_problem = |one: &meseta_agent::Finding| one.severity == meseta_agent::Severity::Problem;
    if findings.iter().any(is_problem) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn prepare() -> anyhow::Result<Verbosity> {
    let verbosity = logging::start()?;
    write_no_core()?;
    write_large_files()?;
    end_with_parent()?;
    Ok(verbosity)
}

/// Forbids core dumps: secrets and keys in a daemon's memory are not for a file. Tasks may raise their own limit.
fn write_no_core() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit {
        current: Some(0),
        ..getrlimit(Resource::Core)
    };
    setrlimit(Resource::Core, limit).context("failed to forbid core dumps")
}

/// Raises the limit of file sizes to the maximum: a log or a checkpoint is no runaway program.
fn write_large_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Fsize);
    if let Some(bytes) = limit.maximum {
        warn!(
            bytes,
            "the limit on file sizes is low: writes beyond it fail with EFBIG"
        );
    }
    let limit = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Fsize, limit).context("failed to raise the limit on file sizes")
}

/// The time that an idle thread for blocking work waits for more. The threads of a burst of launches, each with a stack and
/// a heap cache of its own, end soon after it; a thread that works every second stays.
const BLOCKING_THREADS_IDLE: std::time::Duration = std::time::Duration::from_secs(3);

/// Threads that a daemon's start needs beside those of the runtime: for blocking work, and its own.
const THREADS_MORE: usize = 4;

/// The pause between two empty jobs for a thread for blocking work: shorter than its idle time, so that one thread stays.
const BLOCKING_THREAD_INTERVAL: std::time::Duration = std::time::Duration::from_secs(2);

/// The time that the end of a daemon waits for its threads.
const THREADS_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// Runs a daemon. A thread that sleeps in an unresponsive file system does not keep the process from its end.
fn run_to_end(daemon: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(daemon);
    runtime.shutdown_timeout(THREADS_WAIT);
    outcome
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // The runtime creates both for itself, and panics on failure.
    std::os::unix::net::UnixStream::pair().context("failed to make a pair of sockets")?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    try_threads(workers + THREADS_MORE).context("failed to start the runtime's threads")?;
    exit_on_panic(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_keep_alive(BLOCKING_THREADS_IDLE)
            .build()
            .context("failed to start the runtime's threads")?;
        drop(runtime.spawn_blocking(|| ()));
        runtime.spawn(keep_a_blocking_thread());
        Ok(runtime)
    })
}

/// A thread that could be created in the test may be refused at `start`: the runtime then panics, and its drop waits
/// forever for its other threads. Until `start` returns, a panic of any thread ends the process.
#[expect(
    clippy::exit,
    reason = "nothing that has begun can be ended in an orderly way"
)]
fn exit_on_panic<T>(start: impl FnOnce() -> T) -> T {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|panic| {
        let why = panic.payload_as_str().unwrap_or("unknown panic");
        // No panic is allowed here, even if standard error is closed.
        let told = format!("meseta: failed to start the runtime's threads: {why}\n");
        let _ = std::io::stderr().write_all(told.as_bytes());
        std::process::exit(1);
    }));
    let started = start();
    std::panic::set_hook(usual);
    started
}

/// Keeps one thread for blocking work alive. If none is left and none can be created, every request for one panics; if
/// there is one, the work is queued until a thread is free. That thread may be busy for good, as with the core of a
/// scheduler: each request tries to create another, so this function does not wait for the result. Each request is a task
/// of its own, which a panic ends.
async fn keep_a_blocking_thread() {
    loop {
        tokio::time::sleep(BLOCKING_THREAD_INTERVAL).await;
        tokio::spawn(async { drop(tokio::task::spawn_blocking(|| ())) });
    }
}

/// Starts this number of threads at once, and ends them.
fn try_threads(count: usize) -> std::io::Result<()> {
    let gate = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = gate.lock();
        for _ in 0..count {
            std::thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

/// The variable with the process of `meseta local`, for the daemons that it starts.
pub(crate) const PARENT_VARIABLE: &str = "MESETA_LOCAL_PARENT";

/// Makes a daemon of `meseta local` end with its parent, even if the parent was killed and could not notify it.
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    let Some(parent) = flags::environment(PARENT_VARIABLE) else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("failed to ask for a signal at the end of `meseta local`")?;
    // The parent may have ended before the request took effect.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(
        parent == *now.to_string(),
        "`meseta local` has ended already"
    );
    Ok(())
}

/// Returns a token that is cancelled at the first SIGUSR1, the signal for agents of Mesos to leave their cluster.
fn unregister_requested() -> anyhow::Result<CancellationToken> {
    let mut requested = signal(SignalKind::user_defined1()).context("failed to watch SIGUSR1")?;
    let token = CancellationToken::new();
    let told = token.clone();
    tokio::spawn(async move {
        requested.recv().await;
        // systemd gets no message: the tasks that end first may take longer than it lets a service stop.
        told.cancel();
    });
    Ok(token)
}

/// Signals that end a process by default, and that mean nothing to a daemon. Operators and tools send them to make a
/// program read or open files again.
const MEANINGLESS: [SignalKind; 3] = [
    SignalKind::hangup(),
    SignalKind::user_defined2(),
    SignalKind::user_defined1(),
];
/// Signals without meaning to an agent, which leaves its cluster at SIGUSR1.
const MEANINGLESS_TO_AGENTS: &[SignalKind] = &[MEANINGLESS[0], MEANINGLESS[1]];

/// Handles signals that would end the daemon silently. A write beyond the limit on file sizes then fails with EFBIG, which
/// names the failed operation.
fn outlive_signals(meaningless: &[SignalKind]) -> anyhow::Result<()> {
    for kind in meaningless.iter().copied() {
        let number = kind.as_raw_value();
        let mut received =
            signal(kind).with_context(|| format!("failed to watch signal {number}"))?;
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                info!(
                    signal = number,
                    "signal received: the daemon rereads credentials, certificates and rules by \
                    itself, and flags at the next start"
                );
            }
        });
    }
    // The handler stays installed after the drop.
    drop(signal(SignalKind::from_raw(libc::SIGXFSZ)).context("failed to watch SIGXFSZ")?);
    Ok(())
}

/// Returns a token that is cancelled at the first SIGTERM or SIGINT.
fn stop_requested() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to watch SIGINT")?;
    let token = CancellationToken::new();
    let told = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
        service_manager::stopping();
    });
    Ok(token)
}
