//! The directory that a task calls its own.
//!
//! Made before the launch, owned by the task's user, mode 0750; `runs/latest` points to the newest.
//! Everything above it stays the agent's.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;

use crate::checkpoint::{Layout, RunKey};

/// Folders above the sandbox can be walked through by the tasks' users.
const PARENT_MODE: u32 = 0o755;
const SANDBOX_MODE: u32 = 0o750;

/// A sandbox could not be made.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {path}")]
pub(crate) struct SandboxError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SandboxError {
    let path = path.to_owned();
    move |source| SandboxError {
        doing,
        path,
        source,
    }
}

/// Makes the sandbox of a run.
pub(crate) fn create(
    layout: &Layout,
    run: &RunKey,
    owner: Option<&Credentials>,
) -> Result<PathBuf, SandboxError> {
    let runs = layout.sandbox_runs(run);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(PARENT_MODE)
        .create(&runs)
        .map_err(failed("create", &runs))?;
    let sandbox = layout.sandbox(run);
    fs::DirBuilder::new()
        .mode(SANDBOX_MODE)
        .create(&sandbox)
        .map_err(failed("create", &sandbox))?;
    // Whatever the umask took away.
    fs::set_permissions(&sandbox, fs::Permissions::from_mode(SANDBOX_MODE))
        .map_err(failed("set the mode of", &sandbox))?;
    if let Some(owner) = owner {
        std::os::unix::fs::chown(&sandbox, Some(owner.uid), Some(owner.gid))
            .map_err(failed("give away", &sandbox))?;
    }
    point_latest(&runs, run)?;
    Ok(sandbox)
}

fn point_latest(runs: &Path, run: &RunKey) -> Result<(), SandboxError> {
    let latest = runs.join("latest");
    let fresh = runs.join(format!(".latest.{}", run.container));
    std::os::unix::fs::symlink(run.container.as_str(), &fresh).map_err(failed("link", &fresh))?;
    fs::rename(&fresh, &latest).map_err(failed("rename into place", &latest))
}
