//! The directory that a task calls its own.
//!
//! Made before the launch, owned by the task's user, mode 0750; `runs/latest` points to the newest. That
//! of a task in a group lies inside its executor's, with a link to it in `tasks/`.
//! Everything above it stays the agent's.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;
use rustix::fs::{Mode, OFlags};

use crate::checkpoint::{Layout, RunKey, nested_names};
use crate::core::{LaunchPlan, Subject};

/// Folders above the sandbox can be walked through by the tasks' users.
const PARENT_MODE: u32 = 0o755;
const SANDBOX_MODE: u32 = 0o750;
const ATTEMPTS: u32 = 10;

/// A sandbox could not be made.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {path}")]
pub(crate) struct SandboxError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl SandboxError {
    fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SandboxError {
    let path = path.to_owned();
    move |source| SandboxError {
        doing,
        path,
        source,
    }
}

/// Makes the sandbox of a container.
pub(crate) fn create(
    layout: &Layout,
    plan: &LaunchPlan,
    owner: Option<&Credentials>,
) -> Result<PathBuf, SandboxError> {
    let run = &*plan.run;
    if let Subject::Nested(task) = &plan.subject {
        return create_nested(layout, plan, &task.task_id.value, owner);
    }
    let runs = layout.sandbox_runs(run);
    let sandbox = layout.sandbox(run);
    for attempt in 1.. {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(PARENT_MODE)
            .create(&runs)
            .map_err(failed("create", &runs))?;
        match make(&sandbox, owner) {
            // The folders above may just have been removed with an old sandbox.
            Err(error) if error.is_not_found() && attempt < ATTEMPTS => {}
            made => {
                made?;
                break;
            }
        }
    }
    point_latest(&runs, run)?;
    Ok(sandbox)
}

/// The folder of a task inside its executor's sandbox. What is there belongs to a user who may have put
/// links in our way, so that each part is made and opened beneath the one before.
fn create_nested(
    layout: &Layout,
    plan: &LaunchPlan,
    task: &str,
    owner: Option<&Credentials>,
) -> Result<PathBuf, SandboxError> {
    let outer = layout.sandbox(&plan.run);
    let sandbox = layout.sandbox_of(&plan.run, plan.container());
    let child: String = nested_names(plan.container()).collect();
    let made = || -> io::Result<()> {
        let root = rustix::fs::open(&outer, FOLDER, Mode::empty())?;
        let containers = enter(&root, "containers", PARENT_MODE, None)?;
        enter(&containers, &child, SANDBOX_MODE, owner)?;
        let tasks = enter(&root, "tasks", PARENT_MODE, None)?;
        let target = format!("../containers/{child}");
        rustix::fs::symlinkat(target, &tasks, task)?;
        Ok(())
    };
    made().map_err(failed("create", &sandbox))?;
    Ok(sandbox)
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Makes a folder if it is missing and opens it; a link in its place is refused.
fn enter(
    parent: &OwnedFd,
    name: &str,
    mode: u32,
    owner: Option<&Credentials>,
) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = rustix::fs::openat(parent, name, FOLDER, Mode::empty())?;
    rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))?;
    if let Some(owner) = owner {
        std::os::unix::fs::fchown(&folder, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(folder)
}

fn make(sandbox: &Path, owner: Option<&Credentials>) -> Result<(), SandboxError> {
    fs::DirBuilder::new()
        .mode(SANDBOX_MODE)
        .create(sandbox)
        .map_err(failed("create", sandbox))?;
    // Whatever the umask took away.
    fs::set_permissions(sandbox, fs::Permissions::from_mode(SANDBOX_MODE))
        .map_err(failed("set the mode of", sandbox))?;
    if let Some(owner) = owner {
        std::os::unix::fs::chown(sandbox, Some(owner.uid), Some(owner.gid))
            .map_err(failed("give away", sandbox))?;
    }
    Ok(())
}

fn point_latest(runs: &Path, run: &RunKey) -> Result<(), SandboxError> {
    let latest = runs.join("latest");
    let fresh = runs.join(format!(".latest.{}", run.container));
    std::os::unix::fs::symlink(run.container.as_str(), &fresh).map_err(failed("link", &fresh))?;
    fs::rename(&fresh, &latest).map_err(failed("rename into place", &latest))
}
