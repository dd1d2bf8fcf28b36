//! Files and folders beneath one folder that other processes may change at the same time.
//!
//! Works with the rights of the task's user, on a thread with only those rights. [`meseta_isolators::beneath`] resolves
//! every path; paths with `..` and absolute paths are refused before.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path, PathBuf};

use meseta_isolators::beneath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::{Step, StepError};

/// A folder that confines all operations.
#[derive(Debug)]
pub(super) struct Folder {
    root: beneath::Folder,
}

/// The mode and the time of the last change that an archive gives an entry.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Attributes {
    pub(super) mode: Option<u32>,
    /// Seconds since 1970, and nanoseconds.
    pub(super) modified: Option<(i64, u32)>,
}

impl Attributes {
    fn times(self) -> Timestamps {
        let timespec = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let (last_access, omitted) = (timespec(0, UTIME_NOW), timespec(0, UTIME_OMIT));
        let last_modification = self.modified.map_or(omitted, |(seconds, nanoseconds)| {
            timespec(seconds, i64::from(nanoseconds))
        });
        Timestamps {
            last_access,
            last_modification,
        }
    }
}

/// The attributes of folders, applied after their contents are complete: an archive may make folders read-only, and
/// each new entry changes a folder's time.
#[derive(Debug, Default)]
pub(super) struct FolderAttributes(Vec<(PathBuf, Attributes)>);

impl FolderAttributes {
    pub(super) fn add(&mut self, name: &str, attributes: Attributes) -> Step<()> {
        let path = checked(name)?;
        // The agent itself sets the attributes of the sandbox.
        if !path.as_os_str().is_empty() {
            self.0.push((path, attributes));
        }
        Ok(())
    }

    /// Applies the attributes, innermost folder first: a folder that cannot be entered any more hides its contents.
    pub(super) fn apply(mut self, sandbox: &Folder) -> Step<()> {
        self.0
            .sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, attributes) in self.0 {
            // An entry of the archive may have replaced the folder.
            let Ok(folder) = sandbox.root.folder(&path) else {
                continue;
            };
            let failed = |error| failed("set the attributes of", &path, error);
            // Sets the time first, since the mode may close the folder. The mode of a path descriptor cannot be
            // changed, but that of its entry "." can.
            let times = attributes.times();
            rustix::fs::utimensat(&folder, ".", &times, AtFlags::empty()).map_err(failed)?;
            if let Some(mode) = attributes.mode {
                let mode = Mode::from_raw_mode(mode & MODE_BITS);
                rustix::fs::chmodat(&folder, ".", mode, AtFlags::empty()).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The mode of missing parent folders.
const FOLDER_MODE: u32 = 0o755;
/// Permissions, and the set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;
/// The deepest folder of an archive; a sound archive is not deeper.
const DEPTH_MAX: usize = 100;

impl Folder {
    /// Opens the folder `path` below the folder `outer`. Only the agent may be able to move `outer`.
    pub(super) fn open(outer: &Path, path: &Path) -> std::io::Result<Self> {
        let root = beneath::Folder::open(outer)?.folder(path)?;
        Ok(Self { root })
    }

    /// Creates a new, empty file, replaces any existing entry, and creates missing folders.
    pub(super) fn create(&self, name: &str, mode: u32) -> Step<File> {
        let (parent, name) = self.parent_of(name)?;
        remove(&parent, &name)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let file = rustix::fs::openat(&parent, &name, flags, mode)
            .map_err(|error| failed("create", &name, error))?;
        // Restores bits that the umask removed.
        rustix::fs::fchmod(&file, mode).map_err(|error| failed("set the mode of", &name, error))?;
        Ok(File::from(file))
    }

    /// Gives a file its attributes, once it is written: a write removes set-id bits, and changes the time.
    pub(super) fn finish(file: &File, attributes: Attributes) -> Step<()> {
        if let Some(mode) = attributes.mode {
            let mode = Mode::from_raw_mode(mode & MODE_BITS);
            rustix::fs::fchmod(file, mode)
                .map_err(|error| format!("failed to set the mode of a file: {error}"))?;
        }
        rustix::fs::futimens(file, &attributes.times())
            .map_err(|error| format!("failed to set the time of a file: {error}").into())
    }

    /// Creates a named pipe.
    pub(super) fn make_pipe(&self, name: &str, attributes: Attributes) -> Step<()> {
        let (parent, name) = self.parent_of(name)?;
        remove(&parent, &name)?;
        let mode = Mode::from_raw_mode(attributes.mode.unwrap_or(0o644) & MODE_BITS);
        rustix::fs::mknodat(&parent, &name, FileType::Fifo, mode, 0)
            .map_err(|error| failed("make the pipe", &name, error))?;
        // Not opened, since nobody reads it. An entry in its place by now is the task's own.
        let opened = rustix::fs::openat(
            &parent,
            &name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let opened = opened.map_err(|error| failed("find", &name, error))?;
        let itself = format!("/proc/self/fd/{}", opened.as_raw_fd());
        rustix::fs::chmod(&itself, mode)
            .map_err(|error| failed("set the mode of", &name, error))?;
        set_link_time(&parent, &name, attributes)
    }

    /// Creates a folder and its missing parents.
    pub(super) fn make_folder(&self, name: &str) -> Step<()> {
        let path = checked(name)?;
        self.enter(&path).map(drop)
    }

    /// Creates a link to any target: the task may follow it, but the agent does not.
    pub(super) fn symlink(&self, name: &str, target: &str, attributes: Attributes) -> Step<()> {
        let (parent, name) = self.parent_of(name)?;
        remove(&parent, &name)?;
        rustix::fs::symlinkat(target, &parent, &name)
            .map_err(|error| failed("link", &name, error))?;
        set_link_time(&parent, &name, attributes)
    }

    /// Creates another name for a file in this folder.
    pub(super) fn hard_link(&self, name: &str, target: &str) -> Step<()> {
        let (from, old) = self.parent_of(target)?;
        let (parent, name) = self.parent_of(name)?;
        let stat = rustix::fs::statat(&from, &old, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failed("find", &old, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("a hard link to {}, which is not a file", old.display()).into());
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
                // Restores bits that the umask removed. The thread has the user's own rights, for the user's own files
                // only.
                let mode = Mode::from_raw_mode(FOLDER_MODE);
                rustix::fs::chmodat(&at, ".", mode, AtFlags::empty())
                    .map_err(|error| failed("set the mode of", part, error))?;
            }
        }
        Ok(at)
    }
}

/// Checks a relative path without `..`; removes `./`.
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
        return Err(format!("{name:?} is not a writable path").into());
    }
    Ok(path)
}

/// Sets the time of the entry itself, also of a link.
fn set_link_time(parent: &beneath::Folder, name: &Path, attributes: Attributes) -> Step<()> {
    let times = attributes.times();
    rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| failed("set the time of", name, error))
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
