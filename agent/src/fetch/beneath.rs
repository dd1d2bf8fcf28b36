//! Files and folders beneath one folder, whoever else may be at work there.
//!
//! Works with the rights of the task's user, on a thread that has only those. Every path is resolved by
//! [`meseta_isolators::beneath`]; paths with `..`, or absolute ones, are refused before.

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use meseta_isolators::beneath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Step, StepError};

/// A folder that everything stays in.
#[derive(Debug)]
pub(super) struct Folder {
    root: beneath::Folder,
}

/// The mode of folders that are made on the way.
const FOLDER_MODE: u32 = 0o755;
/// Folders deeper than this are nobody's archive.
const DEPTH_MAX: usize = 100;

impl Folder {
    /// The folder at a path in another, which nobody but the agent can move.
    pub(super) fn open(outer: &Path, path: &Path) -> std::io::Result<Self> {
        let root = beneath::Folder::open(outer)?.folder(path)?;
        Ok(Self { root })
    }

    /// A new, empty file in the place of whatever was there; its folders are made.
    pub(super) fn create(&self, name: &str, mode: u32) -> Step<File> {
        let (parent, name) = self.parent_of(name)?;
        remove(&parent, &name)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let file = rustix::fs::openat(&parent, &name, flags, mode)
            .map_err(|error| failed("create", &name, error))?;
        // Whatever the umask took away.
        rustix::fs::fchmod(&file, mode).map_err(|error| failed("set the mode of", &name, error))?;
        Ok(File::from(file))
    }

    /// A folder and those above it.
    pub(super) fn make_folder(&self, name: &str) -> Step<()> {
        let path = checked(name)?;
        self.enter(&path).map(drop)
    }

    /// A link, to wherever it says: it is the task that may follow it, we do not.
    pub(super) fn symlink(&self, name: &str, target: &str) -> Step<()> {
        let (parent, name) = self.parent_of(name)?;
        remove(&parent, &name)?;
        rustix::fs::symlinkat(target, &parent, &name).map_err(|error| failed("link", &name, error))
    }

    /// Another name for a file that is in here.
    pub(super) fn hard_link(&self, name: &str, target: &str) -> Step<()> {
        let (from, old) = self.parent_of(target)?;
        let (parent, name) = self.parent_of(name)?;
        let stat = rustix::fs::statat(&from, &old, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failed("find", &old, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("a hard link to {}, which is no file", old.display()).into());
        }
        remove(&parent, &name)?;
        rustix::fs::linkat(&from, &old, &parent, &name, AtFlags::empty())
            .map_err(|error| failed("link", &name, error))
    }

    fn parent_of(&self, name: &str) -> Step<(beneath::Folder, PathBuf)> {
        let path = checked(name)?;
        let last = path.file_name().ok_or("an empty path")?;
        let parent = self.enter(path.parent().unwrap_or(Path::new("")))?;
        Ok((parent, PathBuf::from(last)))
    }

    fn enter(&self, path: &Path) -> Step<beneath::Folder> {
        let again = self.root.folder(Path::new(""));
        let mut at = again.map_err(|error| error.to_string())?;
        for part in path.components() {
            let part = Path::new(part.as_os_str());
            let made = match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(FOLDER_MODE)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(failed("create", part, error)),
            };
            let entered = at.folder(part);
            at = entered.map_err(|error| format!("failed to enter {}: {error}", part.display()))?;
            if made {
                // Whatever the umask took away. These are the user's own rights: of its own files only.
                let mode = Mode::from_raw_mode(FOLDER_MODE);
                rustix::fs::chmodat(&at, ".", mode, AtFlags::empty())
                    .map_err(|error| failed("set the mode of", part, error))?;
            }
        }
        Ok(at)
    }
}

/// A relative path without `..`; `./` is left out.
fn checked(name: &str) -> Step<PathBuf> {
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(format!("{name:?} leads out of the sandbox").into());
            }
        }
    }
    if path.components().count() > DEPTH_MAX || name.contains('\0') {
        return Err(format!("{name:?} is no path to write to").into());
    }
    Ok(path)
}

fn remove(parent: &beneath::Folder, name: &Path) -> Step<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("replace", name, error)),
    }
}

fn failed(doing: &str, name: &Path, error: Errno) -> StepError {
    format!("failed to {doing} {}: {error}", name.display()).into()
}
