//! The parts of a start that use the disk of the work directory, which may be full or not answer.
//!
//! Entered through [`make_work_dir`] and [`publish`]. Invariant: none of them ends the scheduler because its disk is full, and
//! none keeps it from its end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meseta_daemon::server::CancellationToken;
use meseta_daemon::work_dir;
use tokio::sync::oneshot;
use tracing::info;

use super::RunError;
use crate::health::Health;
use crate::store;
use crate::store::disk_report::DiskReport;

/// Makes the work directory for its owner only: job files may hold secrets in their environment. Waits for room on a full
/// disk.
pub(super) async fn make_work_dir(path: &Path, report: &DiskReport) -> Result<(), RunError> {
    loop {
        let prepared = path.to_owned();
        let prepare = move || work_dir::prepare(&prepared, &store::embedded::FILES);
        let prepared = report.watch_work(path, "prepare the work directory", prepare);
        match prepared.await {
            Err(error) if store::is_full(&error) => {
                if report.set_waiting(store::full_text(path)) {
                    tracing::error!(%error, path = %path.display(), "the disk of the work \
                        directory is full; waiting for free space");
                }
                tokio::time::sleep(store::ROOM_POLL).await;
            }
            prepared => return prepared.map_err(|source| failed("prepare", path, source)),
        }
    }
}

/// Tells the process around the scheduler that it has started: once its store is read, or once it reports why it waits for
/// its store. A service manager would end a start that takes as long as a full disk.
pub(super) async fn tell_started(
    started: Option<oneshot::Sender<Health>>,
    health: Health,
    stop: CancellationToken,
) {
    let report = health.report.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = report.start_reported() => {
            // The process may be ending.
            let _unsent = started.map(|started| started.send(health));
        }
    }
}

/// Returns what the work of the start gives, or `None` if the scheduler is told to end before.
pub(super) async fn unless_ended<T>(
    shutdown: &CancellationToken,
    opening: impl Future<Output = Result<T, RunError>>,
) -> Result<Option<T>, RunError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(None),
        opened = opening => opened.map(Some),
    }
}

/// The scheme and the address that the file in the work directory names.
type Endpoint = (&'static str, SocketAddr);

/// Writes the file with the address. On a full disk it is written once there is room: until then only callers on this machine
/// that name no address miss it.
pub(super) async fn publish(
    work_dir: &Path,
    endpoint: Endpoint,
    report: &DiskReport,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let writing = report.watch_work(
        work_dir,
        "write the endpoint file",
        write_endpoint(work_dir, endpoint),
    );
    match writing.await {
        Err(error) if store::is_full(&error) => {
            tracing::error!(%error, work_dir = %work_dir.display(), "the disk is full; waiting \
                for free space to write the endpoint file");
            tokio::spawn(publish_later(work_dir.to_owned(), endpoint, stop.clone()));
            Ok(())
        }
        written => written.map_err(|source| failed("write the endpoint in", work_dir, source)),
    }
}

/// Tries to write the file with the address until it is written or the scheduler ends.
async fn publish_later(work_dir: PathBuf, endpoint: Endpoint, stop: CancellationToken) {
    let writing = async {
        loop {
            tokio::time::sleep(store::ROOM_POLL).await;
            let write = write_endpoint(&work_dir, endpoint);
            match tokio::task::spawn_blocking(write).await {
                Ok(Err(error)) if store::is_full(&error) => {}
                written => return written,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        written = writing => match written {
            Ok(Ok(())) => info!("the endpoint file is written"),
            Ok(Err(error)) => tracing::error!(%error, "failed to write the endpoint file"),
            Err(error) => tracing::error!(%error, "the write of the endpoint file panicked"),
        },
    }
}

fn write_endpoint(
    work_dir: &Path,
    (scheme, address): Endpoint,
) -> impl FnOnce() -> io::Result<()> + Send + use<> {
    let work_dir = work_dir.to_owned();
    move || work_dir::write_endpoint(&work_dir, scheme, address)
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> RunError {
    RunError::Directory {
        doing,
        path: path.to_owned(),
        source,
    }
}
