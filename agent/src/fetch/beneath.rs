//! Files and folders beneath one folder, whoever else may be at work there.
//!
//! Every part of a path is resolved by the kernel beneath the folder and through no link (`openat2`).
//! Paths with `..`, or absolute ones, are refused before.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Step;

/// A folder that everything stays in.
#[derive(Debug)]
pub(super) struct Folder {
    root: OwnedFd,
}

/// Folders deeper than this are nobody's archive.
const DEPTH_MAX: usize = 100;

impl Folder {
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
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
            return Err(format!(
                "a hard link to {}, which is no file",
                old.display()
            ));
        }
        remove(&parent, &name)?;
        rustix::fs::linkat(&from, &old, &parent, &name, AtFlags::empty())
            .map_err(|error| failed("link", &name, error))
    }

    fn parent_of(&self, name: &str) -> Step<(OwnedFd, PathBuf)> {
        let path = checked(name)?;
        let last = path.file_name().ok_or("an empty path")?;
        let parent = self.enter(path.parent().unwrap_or(Path::new("")))?;
        Ok((parent, PathBuf::from(last)))
    }

    fn enter(&self, path: &Path) -> Step<OwnedFd> {
        let mut at =
            rustix::io::fcntl_dupfd_cloexec(&self.root, 0).map_err(|error| error.to_string())?;
        for part in path.components() {
            let part = Path::new(part.as_os_str());
            match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("create", part, error)),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            at = rustix::fs::openat2(&at, part, flags, Mode::empty(), resolve)
                .map_err(|error| failed("enter", part, error))?;
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
                return Err(format!("{name:?} leads out of the sandbox"));
            }
        }
    }
    if path.components().count() > DEPTH_MAX || name.contains('\0') {
        return Err(format!("{name:?} is no path to write to"));
    }
    Ok(path)
}

fn remove(parent: &OwnedFd, name: &Path) -> Step<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("replace", name, error)),
    }
}

fn failed(doing: &str, name: &Path, error: Errno) -> String {
    format!("failed to {doing} {}: {error}", name.display())
}
