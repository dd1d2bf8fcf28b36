//! Places beneath a sandbox: found, made, linked and removed while its owner may be changing it.
//!
//! Each part of a path is opened beneath the one before, and a link is never followed. Invariant: what
//! was there before keeps its owner and its mode.

use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// As the sandbox itself: its user's.
const FOLDER_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// What is mounted, and what it is mounted on.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Folder,
    File,
}

impl Kind {
    pub(super) fn of(meta: &Metadata) -> Self {
        if meta.is_dir() {
            Self::Folder
        } else {
            Self::File
        }
    }
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(root, flags, Mode::empty())?)
}

fn open_in(parent: &OwnedFd, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

fn give(fd: &OwnedFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    match owner {
        Some((uid, gid)) => std::os::unix::fs::fchown(fd, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

fn ids(owner: Option<&Credentials>) -> Option<(u32, u32)> {
    owner.map(|owner| (owner.uid, owner.gid))
}

/// Enters a folder, which is made if it is missing.
fn enter(parent: &OwnedFd, name: &Path, owner: Option<(u32, u32)>) -> io::Result<OwnedFd> {
    let is_new = match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(FOLDER_MODE)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    if is_new && owner.is_some() {
        let folder = open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        give(&folder, owner)?;
    }
    Ok(open_in(parent, name, OFlags::PATH | OFlags::DIRECTORY)?)
}

/// The folder that a path ends in, with those above it made, and its last part.
fn parent_of(
    root: &Path,
    path: &Path,
    owner: Option<(u32, u32)>,
) -> io::Result<(OwnedFd, PathBuf)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut at = open_root(root)?;
    for part in path.parent().unwrap_or(Path::new("")).components() {
        at = enter(&at, Path::new(part.as_os_str()), owner)?;
    }
    Ok((at, PathBuf::from(name)))
}

/// Makes something to mount on; what is there already must be of the kind.
pub(super) fn make(
    root: &Path,
    path: &Path,
    kind: Kind,
    owner: Option<&Credentials>,
) -> io::Result<()> {
    let (parent, name) = parent_of(root, path, ids(owner))?;
    if kind == Kind::Folder {
        return enter(&parent, &name, ids(owner)).map(drop);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(FILE_MODE)) {
        Ok(file) => give(&file, ids(owner)),
        Err(Errno::EXIST) => {
            let there = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(there.st_mode) {
                FileType::RegularFile => Ok(()),
                _ => Err(io::ErrorKind::AlreadyExists.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// What is at a place; a folder of the root's owner's is made where nothing is.
pub(super) fn find_or_make(root: &Path, path: &Path) -> io::Result<Kind> {
    let stat = rustix::fs::fstat(&open_root(root)?)?;
    let (parent, name) = parent_of(root, path, Some((stat.st_uid, stat.st_gid)))?;
    match rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => match FileType::from_raw_mode(there.st_mode) {
            FileType::Directory => Ok(Kind::Folder),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Ok(Kind::File),
        },
        Err(Errno::NOENT) => {
            enter(&parent, &name, Some((stat.st_uid, stat.st_gid)))?;
            Ok(Kind::Folder)
        }
        Err(error) => Err(error.into()),
    }
}

/// Links to a target; another link in its place goes, anything else stays and is an error.
pub(super) fn link(
    root: &Path,
    path: &Path,
    target: &Path,
    owner: Option<&Credentials>,
) -> io::Result<()> {
    let (parent, name) = parent_of(root, path, ids(owner))?;
    match rustix::fs::readlinkat(&parent, &name, Vec::new()) {
        Ok(there) if there.to_bytes() == target.as_os_str().as_bytes() => return Ok(()),
        Ok(_) => rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(Errno::INVAL) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::fs::symlinkat(target, &parent, &name)?)
}

/// Removes an empty folder on which something was mounted; whatever else is there stays.
pub(super) fn remove(root: &Path, path: &Path) {
    let removed = open_root(root).and_then(|root| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let parent = match above {
            Some(above) => open_in(&root, above, OFlags::PATH | OFlags::DIRECTORY)?,
            None => root,
        };
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    });
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "a place of a volume is left over");
    }
}
