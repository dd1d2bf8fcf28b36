//! Fetches the URIs of a command into its sandbox, before the launch.
//!
//! [`fetch`] blocks; it works on its own thread that reads and writes files as the task's user, so that a fetch gives
//! nobody more than that user's rights. Every path is resolved beneath the sandbox, without following links. Invariant:
//! a hostile source or archive costs at most [`Limits`] and leaves nothing outside the sandbox. A silent source ends
//! the fetch, and so does [`Cancel`], in any state. A thread that sleeps in a file system that does not answer is
//! abandoned (`abandonment.rs`).

mod abandonment;
mod beneath;
mod metered;
mod pax;
mod proxy;
mod source;
mod tar_entries;
#[cfg(test)]
mod tests;
mod unpack;
mod web;
mod zip_directory;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use meseta_isolators::Credentials;
use meseta_proto::mesos::v1::command_info::Uri;

use crate::file_user::become_user;
use crate::host_paths::HostPaths;
use crate::task_connection::TaskLife;
use abandonment::{Abandonable, Watch};
use beneath::Folder;
pub(crate) use proxy::Proxies;
use source::Source;

/// The files to fetch, their owner and their target.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The files to fetch, in order.
    pub(crate) uris: Vec<Uri>,
    /// The sandbox of its run, which only the agent can move.
    pub(crate) outer: PathBuf,
    /// The target sandbox, relative to `outer`.
    pub(crate) sandbox: PathBuf,
    /// The credentials for access to files; `None` means the agent's.
    pub(crate) owner: Option<Credentials>,
    /// The limits of the fetch.
    pub(crate) limits: Limits,
    /// The paths of the host that must not be fetched.
    pub(crate) host_paths: Arc<HostPaths>,
    pub(crate) proxies: Proxies,
    pub(crate) cancel: Arc<Cancel>,
}

/// Cancels a fetch in any state.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    is_cancelled_flag: AtomicBool,
    /// The end of the pipe that the connections of the fetch watch: they end when it is closed.
    ends: Mutex<Option<io::PipeWriter>>,
    /// A counter of reads, used while a local file is copied.
    progress: AtomicU64,
    /// Whether a local file is being copied.
    is_local_flag: AtomicBool,
}

impl Cancel {
    /// Ends the fetch soon.
    pub(crate) fn cancel(&self) {
        self.is_cancelled_flag.store(true, Ordering::SeqCst);
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled_flag.load(Ordering::SeqCst)
    }

    /// Notes the start or end of the copy of a local file, whose file system may never answer.
    fn set_local(&self, is_local: bool) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        self.is_local_flag.store(is_local, Ordering::SeqCst);
    }

    /// The progress of the copy of a local file; `None` without such a copy.
    fn local_progress(&self) -> Option<u64> {
        let is_local = self.is_local_flag.load(Ordering::SeqCst);
        is_local.then(|| self.progress.load(Ordering::SeqCst))
    }

    fn check(&self) -> Step<()> {
        match self.is_cancelled() {
            true => Err("the container is no longer needed".into()),
            false => Ok(()),
        }
    }

    /// The pipe that ends the connections of the fetch. Each fetch has at most one.
    fn life(&self) -> Step<TaskLife> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        // Checked under the lock: a later cancel closes the pipe.
        self.check()?;
        let pipe = io::pipe().map_err(|error| format!("failed to open a pipe: {error}"))?;
        let (ended, end) = pipe;
        *ends = Some(end);
        Ok(TaskLife::from_supervisor(ended.into()))
    }
}

/// The limits for the fetches of one container.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Bytes of fetched files and of archive contents, including skipped contents.
    pub(crate) bytes: u64,
    /// Bytes written to the sandbox, where the disk limit of a container is enforced; a file that replaces another
    /// counts as well.
    pub(crate) disk: Option<u64>,
    /// Files, folders and links from archives.
    pub(crate) entries: u64,
    /// The longest time that a source may send nothing.
    pub(crate) stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 16 << 30,
            disk: None,
            entries: 1_000_000,
            stall: Duration::from_mins(1),
        }
    }
}

/// The reason for a failed fetch.
#[derive(Debug, thiserror::Error)]
#[error("Failed to fetch '{uri}': {why}")]
pub(crate) struct FetchError {
    uri: String,
    why: StepError,
}

/// The message of a failed step, shown to the framework.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StepError(String);

impl<T: Into<String>> From<T> for StepError {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

pub(crate) type Step<T> = Result<T, StepError>;

/// The remaining limits, and the cancellation.
#[derive(Debug)]
struct Budget {
    limits: Limits,
    /// The initial limit of the disk.
    disk: Option<u64>,
    cancel: Arc<Cancel>,
}

impl Budget {
    fn spend(&mut self, bytes: usize) -> Step<()> {
        self.cancel.check()?;
        self.cancel.progress.fetch_add(1, Ordering::SeqCst);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let left = self.limits.bytes.checked_sub(bytes);
        self.limits.bytes = left.ok_or("it exceeds the fetch limit of a container")?;
        Ok(())
    }

    /// Called before this number of bytes is written.
    fn spend_disk(&mut self, bytes: usize) -> Step<()> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let (Some(left), Some(all)) = (self.limits.disk, self.disk) else {
            return Ok(());
        };
        let left = left.checked_sub(bytes);
        let why = || {
            format!(
                "the fetched files exceed the disk of their container, {all} bytes \
                 (--enforce_container_disk_quota)"
            )
        };
        self.limits.disk = Some(left.ok_or_else(why)?);
        Ok(())
    }

    /// Called before this number of bytes is written unchanged, as they were read.
    fn spend_copied(&mut self, bytes: usize) -> Step<()> {
        self.spend(bytes)?;
        self.spend_disk(bytes)
    }

    fn spend_entry(&mut self) -> Step<()> {
        let left = self.limits.entries.checked_sub(1);
        self.limits.entries = left.ok_or("the archive has too many entries")?;
        self.spend(0)
    }
}

/// Fetches all URIs into a sandbox, as its owner.
pub(crate) fn fetch(request: Request) -> Result<(), FetchError> {
    let failed = |why: String| FetchError {
        uri: String::new(),
        why: StepError(why),
    };
    let watch = Watch {
        cancel: request.cancel.clone(),
        stall: request.limits.stall,
    };
    let uri_under_way = Arc::new(Mutex::new(String::new()));
    let noted = uri_under_way.clone();
    let working = Abandonable::start("fetcher", move || {
        let folder = Folder::open(&request.outer, &request.sandbox);
        let folder = folder.map_err(|error| failed(error.to_string()))?;
        become_user(request.owner.as_ref()).map_err(|error| failed(error.to_string()))?;
        let mut budget = Budget {
            limits: request.limits,
            disk: request.limits.disk,
            cancel: request.cancel.clone(),
        };
        let source = Source::new(&request);
        for uri in &request.uris {
            noted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(&uri.value);
            let fetched = fetch_one(uri, &source, &folder, &mut budget);
            // A cancellation explains any error of the interrupted fetch.
            let fetched = budget.cancel.check().and(fetched);
            fetched.map_err(|why| FetchError {
                uri: uri.value.clone(),
                why,
            })?;
        }
        Ok(())
    });
    let working = working.map_err(|error| failed(error.to_string()))?;
    working.wait(&watch).unwrap_or_else(|why| {
        let uri = uri_under_way.lock().unwrap_or_else(PoisonError::into_inner);
        Err(FetchError {
            uri: uri.clone(),
            why: StepError(why),
        })
    })
}

fn fetch_one(uri: &Uri, source: &Source, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    let name = output_name(uri)?;
    let mut file = sandbox.create(&name, 0o644)?;
    source.copy_to(&uri.value, &mut file, budget)?;
    // As in Mesos, an executable is not extracted.
    if uri.executable.unwrap_or(false) {
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        return rustix::fs::fchmod(&file, mode).map_err(|error| error.to_string().into());
    }
    if uri.extract.unwrap_or(true) {
        unpack::unpack(&name, &file, sandbox, budget)?;
    }
    Ok(())
}

/// The name of the fetched file in the sandbox.
fn output_name(uri: &Uri) -> Step<String> {
    if let Some(wanted) = uri.output_file.as_deref().filter(|name| !name.is_empty()) {
        return Ok(wanted.to_owned());
    }
    let value = &uri.value;
    if value.contains(['\\', '\'', '\0']) {
        return Err("it holds a backslash, a quote or a NUL".into());
    }
    let path = match value.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map(|(_, path)| path),
        None => Some(value.as_str()),
    };
    let name = path.and_then(|path| path.rsplit('/').next());
    name.filter(|name| !name.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| "it names no file".into())
}
