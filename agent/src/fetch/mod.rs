//! Fetching what a command names by URI into its sandbox, before it is launched.
//!
//! [`fetch`] blocks; it does its work on a thread of its own that reads and writes files as the task's
//! user, so that nobody gets with it what that user could not get. Every path is resolved beneath the
//! sandbox, following no link. Invariant: a source or an archive, however hostile, costs at most
//! [`Limits`] and leaves nothing outside the sandbox.

mod beneath;
mod source;
#[cfg(test)]
mod tests;
mod unpack;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meseta_isolators::Credentials;
use meseta_proto::mesos::v1::command_info::Uri;

use beneath::Folder;

/// What one container's fetches may cost.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Bytes written, archives and what is in them together.
    pub(crate) bytes: u64,
    /// Files, folders and links out of archives.
    pub(crate) entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 16 << 30,
            entries: 1_000_000,
        }
    }
}

/// Why something was not fetched.
#[derive(Debug, thiserror::Error)]
#[error("Failed to fetch '{uri}': {why}")]
pub(crate) struct FetchError {
    uri: String,
    why: String,
}

/// A step that failed, in words.
pub(crate) type Step<T> = Result<T, String>;

/// What is left to be spent, and whether anybody still wants the result.
#[derive(Debug)]
struct Budget {
    limits: Limits,
    cancelled: Arc<AtomicBool>,
}

impl Budget {
    fn spend(&mut self, bytes: usize) -> Step<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err("the container is not wanted any more".to_owned());
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let left = self.limits.bytes.checked_sub(bytes);
        self.limits.bytes = left.ok_or("it is larger than a container may fetch")?;
        Ok(())
    }

    fn spend_entry(&mut self) -> Step<()> {
        let left = self.limits.entries.checked_sub(1);
        self.limits.entries = left.ok_or("the archive holds more entries than it may")?;
        self.spend(0)
    }
}

/// Fetches everything into a sandbox, as its owner. The sandbox is at `path` in that of its run, which nobody
/// but the agent can move.
pub(crate) fn fetch(
    uris: &[Uri],
    (outer, path): (&Path, &Path),
    owner: Option<&Credentials>,
    limits: Limits,
    cancelled: &Arc<AtomicBool>,
) -> Result<(), FetchError> {
    let (uris, owner, cancelled) = (uris.to_vec(), owner.cloned(), cancelled.clone());
    let (outer, path) = (outer.to_owned(), path.to_owned());
    let failed = |why: String| FetchError {
        uri: String::new(),
        why,
    };
    let working = std::thread::Builder::new()
        .name("fetcher".to_owned())
        .spawn(move || {
            let folder = Folder::open(&outer, &path).map_err(|error| failed(error.to_string()))?;
            become_user(owner.as_ref()).map_err(|error| failed(error.to_string()))?;
            let mut budget = Budget { limits, cancelled };
            for uri in &uris {
                fetch_one(uri, &folder, &mut budget).map_err(|why| FetchError {
                    uri: uri.value.clone(),
                    why,
                })?;
            }
            Ok(())
        });
    let working = working.map_err(|error| failed(error.to_string()))?;
    let panicked = |_| failed("the fetcher's thread panicked".to_owned());
    working.join().map_err(panicked)?
}

/// Gives this thread the user's rights on files, and only those: were it the user's in all respects,
/// the user could send signals to the agent through it.
fn become_user(owner: Option<&Credentials>) -> io::Result<()> {
    let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let groups: Vec<_> = owner
        .groups
        .iter()
        .map(|group| rustix::process::Gid::from_raw(*group))
        .collect();
    rustix::thread::set_thread_groups(&groups)?;
    // They answer with the identity before; asked for nobody's, they change nothing and tell it.
    nix::unistd::setfsgid(owner.gid.into());
    nix::unistd::setfsuid(owner.uid.into());
    let nobody = u32::MAX;
    let is = (
        nix::unistd::setfsuid(nobody.into()).as_raw(),
        nix::unistd::setfsgid(nobody.into()).as_raw(),
    );
    if is == (owner.uid, owner.gid) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn fetch_one(uri: &Uri, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    let name = output_name(uri)?;
    let mut file = sandbox.create(&name, 0o644)?;
    source::copy_to(&uri.value, &mut file, budget)?;
    // Mesos extracts nothing that is to be executed.
    if uri.executable.unwrap_or(false) {
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        return rustix::fs::fchmod(&file, mode).map_err(|error| error.to_string());
    }
    if uri.extract.unwrap_or(true) {
        unpack::unpack(&name, &file, sandbox, budget)?;
    }
    Ok(())
}

/// What the fetched file is called in the sandbox.
fn output_name(uri: &Uri) -> Step<String> {
    if let Some(wanted) = uri.output_file.as_deref().filter(|name| !name.is_empty()) {
        return Ok(wanted.to_owned());
    }
    let value = &uri.value;
    if value.contains(['\\', '\'', '\0']) {
        return Err("it holds a backslash, a quote or a NUL".to_owned());
    }
    let path = match value.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map(|(_, path)| path),
        None => Some(value.as_str()),
    };
    let name = path.and_then(|path| path.rsplit('/').next());
    name.filter(|name| !name.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| "it names no file".to_owned())
}
