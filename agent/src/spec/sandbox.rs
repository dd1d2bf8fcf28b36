//! The sandbox directory of a task.
//!
//! Made before the launch, owned by the task's user, mode 0750; `runs/latest` points to the newest. The sandbox of a
//! task in a group lies inside its executor's, with a link to it in `tasks/`. All parent folders belong to the agent.

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

/// The mode of folders inside a sandbox that contain other sandboxes.
const INNER_MODE: u32 = 0o755;
/// The mode of a sandbox: full access for its user, read access for the user's group.
const SANDBOX_MODE: u32 = 0o750;
const ATTEMPTS: u32 = 10;

/// The error for a sandbox that could not be made.
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
            // The parent folders may have just been removed with an old sandbox.
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

/// Makes the folder of a task inside its executor's sandbox. The owner of that sandbox may have put anything there: an
/// existing entry is used only if it is equal to the one to make.
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
            // Only an empty folder is removed: an older one may have contents.
            let _ = rustix::fs::unlinkat(&containers, name, AtFlags::REMOVEDIR);
        }
        linked
    };
    made().map_err(failed("create", &sandbox))?;
    Ok(sandbox)
}

/// The folder in a sandbox with links to the sandboxes of its tasks.
const TASKS: &str = "tasks";

/// Points a task's link to its container. A task with the same id may have existed before: the link leads to the
/// newest.
fn link_newest(tasks: &Folder, task: &str, container: &OsStr, path: &Path) -> io::Result<()> {
    let fresh = format!(".{}", container.to_string_lossy());
    match rustix::fs::unlinkat(tasks, &fresh, AtFlags::empty()) {
        Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
        _ => {}
    }
    rustix::fs::symlinkat(Path::new("..").join(path), tasks, &fresh)?;
    Ok(rustix::fs::renameat(tasks, &fresh, tasks, task)?)
}

/// A sandbox inside that of a run, whose owner may put anything on the path, and the link to it.
#[derive(Clone, Debug)]
pub(crate) struct NestedSandbox {
    outer: PathBuf,
    path: PathBuf,
    link: Option<PathBuf>,
    /// Whether the sandbox existed before: it may be that of a task, or contain files of an earlier container.
    was_there: bool,
}

impl NestedSandbox {
    /// The sandbox of a plan's container; called before it is made. Blocking.
    pub(crate) fn from_layout(layout: &Layout, plan: &LaunchPlan) -> Self {
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

    /// Removes the sandbox after a failed launch, if it was made for that launch. Blocking.
    pub(crate) fn undo(&self) {
        if self.was_there {
            return;
        }
        if let Err(error) = self.remove() {
            warn!(sandbox = %self.outer.join(&self.path).display(), %error, "failed to remove a sandbox");
        }
    }

    /// Removes the sandbox with its contents, and the link to it, so that its id may be used again. Blocking.
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
