//! The agent's directories: made, locked, named, and left as they were found.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::checkpoint::Layout;
use crate::flags::Flags;

/// Everything of ours that is gone after a boot.
const RUNTIME_ROOT: &str = "/run/meseta";

/// Why a directory of the agent's cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be made or written.
    #[error("failed to {doing} {path}: give a directory that this user can write (--{flag})")]
    Unusable {
        /// What was tried.
        doing: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The flag that names it.
        flag: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Two agents, one work directory.
    #[error("{path} is in use by another agent: give each its own --work_dir")]
    InUse {
        /// The lock.
        path: PathBuf,
    },
}

pub(crate) fn prepare_work_dir(work_dir: &Path) -> Result<Layout, DirectoryError> {
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| DirectoryError::Unusable {
            doing,
            path,
            flag: "work_dir",
            source,
        }
    };
    std::fs::create_dir_all(work_dir).map_err(failed("create", work_dir))?;
    let work_dir = std::fs::canonicalize(work_dir).map_err(failed("find", work_dir))?;
    let layout = Layout::new(&work_dir);
    let meta = layout.meta();
    // Owner only: checkpoints hold what frameworks gave their tasks.
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .recursive(true)
        .create(&meta)
        .map_err(failed("create", &meta))?;
    let probe = meta.join(".writable");
    std::fs::write(&probe, b"").map_err(failed("write", &probe))?;
    let _ = std::fs::remove_file(&probe);
    Ok(layout)
}

/// Held for as long as the agent lives; the kernel lets go of it whatever happens.
pub(crate) fn lock(layout: &Layout) -> Result<std::fs::File, DirectoryError> {
    let path = layout.meta().join("lock");
    let failed = |source: std::io::Error| DirectoryError::Unusable {
        doing: "lock",
        path: path.clone(),
        flag: "work_dir",
        source,
    };
    let file = std::fs::File::create(&path).map_err(failed)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::InUse { path }),
        Err(errno) => Err(failed(errno.into())),
    }
}

pub(crate) fn endpoint_path(work_dir: &Path) -> PathBuf {
    work_dir.join("endpoint")
}

/// Where others find the port, whole or not at all.
pub(crate) fn write_endpoint(
    work_dir: &Path,
    scheme: &str,
    address: SocketAddr,
) -> Result<(), DirectoryError> {
    let path = endpoint_path(work_dir);
    let fresh = path.with_extension("new");
    let written = std::fs::File::create(&fresh)
        .and_then(|mut file| writeln!(file, "{scheme}://{address}"))
        .and_then(|()| std::fs::rename(&fresh, &path));
    written.map_err(|source| DirectoryError::Unusable {
        doing: "write",
        path,
        flag: "work_dir",
        source,
    })
}

/// Removes our folder and those above it that were made for such folders, as far as they are empty.
pub(crate) fn remove_empty(runtime_dir: &Path) {
    let ours = |folder: &&Path| *folder == runtime_dir || folder.starts_with(RUNTIME_ROOT);
    for folder in runtime_dir.ancestors().take_while(ours) {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

pub(crate) fn runtime_dir(flags: &Flags, layout: &Layout, privileged: bool) -> PathBuf {
    match &flags.runtime_dir {
        Some(given) => given.clone(),
        None if privileged => Path::new(RUNTIME_ROOT).join("agent"),
        None => layout.work_dir().join("run"),
    }
}

/// Makes it.
pub(crate) fn create_runtime_dir(runtime_dir: &Path) -> Result<(), DirectoryError> {
    std::fs::create_dir_all(runtime_dir).map_err(|source| DirectoryError::Unusable {
        doing: "create",
        path: runtime_dir.to_owned(),
        flag: "runtime_dir",
        source,
    })
}

/// The name of our cgroup folder: of this work directory, on any boot.
pub(crate) fn instance_of(work_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let sum = crc32fast::hash(work_dir.as_os_str().as_bytes());
    format!("agent-{sum:08x}")
}
