//! The directory that a task calls its own.
//!
//! Made before the launch, owned by the task's user, mode 0750; `runs/latest` points to the newest. That
//! of a task in a group lies inside its executor's, with a link to it in `tasks/`.
//! Everything above it stays the agent's.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;
use meseta_isolators::beneath::{Folder, Owner};
use rustix::fs::AtFlags;
use tracing::warn;

use crate::checkpoint::{Layout, RunKey, inside};
use crate::core::{LaunchPlan, Subject};
use crate::folders::make_passage;
use crate::gc::LATEST_FRESH;

/// Folders inside a sandbox that hold those of others.
const INNER_MODE: u32 = 0o755;
/// A sandbox is its user's, and of the user's group to read.
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
        let made = make_passage(layout.work_dir(), &runs)
            .and_then(|()| Folder::open(&runs))
            .and_then(|runs| {
                let name = OsStr::new(run.container.as_str());
                runs.make_folder(name, SANDBOX_MODE, ids(owner))
            });
        match made {
            // The folders above may just have been removed with an old sandbox.
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {}
            made => {
                made.map_err(failed("create", &sandbox))?;
                break;
            }
        }
    }
    point_latest(&runs, run)?;
    Ok(sandbox)
}

/// The folder of a task inside its executor's sandbox. What is there belongs to a user who may have put
/// anything in our way: what exists is used only if it is what we would make.
fn create_nested(
    layout: &Layout,
    plan: &LaunchPlan,
    task: &str,
    owner: Option<&Credentials>,
) -> Result<PathBuf, SandboxError> {
    let outer = layout.sandbox(&plan.run);
    let sandbox = layout.sandbox_of(&plan.run, &plan.container);
    let path = inside(&plan.container);
    let made = || -> io::Result<()> {
        let root = Folder::open(&outer)?;
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let containers = root.enter_all(above, INNER_MODE, None)?;
        containers.own_folder(name, SANDBOX_MODE, ids(owner))?;
        let tasks = root.enter(OsStr::new(TASKS), INNER_MODE, None)?;
        let linked = link_newest(&tasks, task, name, &path);
        if linked.is_err() {
            // Only what is empty goes: what was there before is somebody's.
            let _ = rustix::fs::unlinkat(&containers, name, AtFlags::REMOVEDIR);
        }
        linked
    };
    made().map_err(failed("create", &sandbox))?;
    Ok(sandbox)
}

/// The folder in a sandbox with links to those of tasks in it.
const TASKS: &str = "tasks";

/// Points a task's link to its container. A task of the same id may have been there before: the link is the
/// newest's.
fn link_newest(tasks: &Folder, task: &str, container: &OsStr, path: &Path) -> io::Result<()> {
    let fresh = format!(".{}", container.to_string_lossy());
    match rustix::fs::unlinkat(tasks, &fresh, AtFlags::empty()) {
        Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
        _ => {}
    }
    rustix::fs::symlinkat(Path::new("..").join(path), tasks, &fresh)?;
    Ok(rustix::fs::renameat(tasks, &fresh, tasks, task)?)
}

/// A sandbox inside that of a run, whose owner may put anything in the way to it, and the link to it.
#[derive(Clone, Debug)]
pub(crate) struct NestedSandbox {
    outer: PathBuf,
    path: PathBuf,
    link: Option<PathBuf>,
    /// Whether it was there already: it may be that of a task, or hold what one of before has left.
    was_there: bool,
}

impl NestedSandbox {
    /// That of a plan's container; to be asked for before it is made. Blocking.
    pub(crate) fn of(layout: &Layout, plan: &LaunchPlan) -> Self {
        let (outer, path) = (layout.sandbox(&plan.run), inside(&plan.container));
        Self {
            was_there: outer.join(&path).symlink_metadata().is_ok(),
            outer,
            path,
            link: match &plan.subject {
                Subject::Nested(task) => Some(Path::new(TASKS).join(&task.task_id.value)),
                _ => None,
            },
        }
    }

    /// Removes it after a launch that came to nothing, if it was made for that. Blocking.
    pub(crate) fn undo(&self) {
        if self.was_there {
            return;
        }
        if let Err(error) = self.remove() {
            warn!(sandbox = %self.outer.join(&self.path).display(), %error, "a sandbox is left over");
        }
    }

    /// Removes it with all that it holds, and the link to it, so that its id may be used again. Blocking.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let outer = Folder::open(&self.outer)?;
        outer.remove(&self.path)?;
        self.link.as_ref().map_or(Ok(()), |link| outer.remove(link))
    }
}

fn ids(owner: Option<&Credentials>) -> Owner {
    owner.map(|owner| (owner.uid, owner.gid))
}

fn point_latest(runs: &Path, run: &RunKey) -> Result<(), SandboxError> {
    let latest = runs.join("latest");
    let fresh = runs.join(format!("{LATEST_FRESH}{}", run.container));
    std::os::unix::fs::symlink(run.container.as_str(), &fresh).map_err(failed("link", &fresh))?;
    std::fs::rename(&fresh, &latest).map_err(failed("rename into place", &latest))
}
