//! Mount points beneath a sandbox: found, made, linked and removed while its owner may change it.
//!
//! Invariant: existing entries keep their owner and their mode, and no link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use meseta_isolators::Credentials;
use meseta_isolators::beneath::{Folder, Owner};
use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

/// The mode of a new folder, as of the sandbox itself.
const FOLDER_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// The kind of a mounted source, and of its mount point.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Folder,
    File,
}

impl Kind {
    pub(super) fn from_meta(meta: &Metadata) -> Self {
        if meta.is_dir() {
            Self::Folder
        } else {
            Self::File
        }
    }
}

fn ids(owner: Option<&Credentials>) -> Owner {
    owner.map(|owner| (owner.uid, owner.gid))
}

/// Opens the parent folder of a path, and makes missing folders. Returns the folder and the last component.
fn parent_of(root: &Folder, path: &Path, owner: Owner) -> io::Result<(Folder, OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let above = path.parent().unwrap_or(Path::new(""));
    Ok((root.enter_all(above, FOLDER_MODE, owner)?, name.to_owned()))
}

/// Makes a mount point; an existing entry must be of this kind.
pub(super) fn make(
    root: &Path,
    path: &Path,
    kind: Kind,
    owner: Option<&Credentials>,
) -> io::Result<()> {
    let owner = ids(owner);
    let (parent, name) = parent_of(&Folder::open(root)?, path, owner)?;
    if kind == Kind::Folder {
        return parent.enter(&name, FOLDER_MODE, owner).map(drop);
    }
    match parent.create(&name, FILE_MODE, owner, OFlag::empty()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match kind_of(&parent, &name)? {
                FileType::RegularFile => Ok(()),
                _ => Err(io::ErrorKind::AlreadyExists.into()),
            }
        }
        made => made.map(drop),
    }
}

fn kind_of(parent: &Folder, name: &OsStr) -> rustix::io::Result<FileType> {
    let there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(there.st_mode))
}

/// Finds the kind of an entry; makes a missing folder, owned by the root's owner.
pub(super) fn find_or_make(root: &Path, path: &Path) -> io::Result<Kind> {
    let root = Folder::open(root)?;
    let stat = rustix::fs::fstat(&root)?;
    let owner = Some((stat.st_uid, stat.st_gid));
    let (parent, name) = parent_of(&root, path, owner)?;
    match kind_of(&parent, &name) {
        Ok(FileType::Directory) => Ok(Kind::Folder),
        Ok(FileType::Symlink) => Err(Errno::LOOP.into()),
        Ok(_) => Ok(Kind::File),
        Err(Errno::NOENT) => {
            parent.enter(&name, FOLDER_MODE, owner)?;
            Ok(Kind::Folder)
        }
        Err(error) => Err(error.into()),
    }
}

/// Links to a target; replaces another link. Any other entry stays and is an error.
pub(super) fn link(
    root: &Path,
    path: &Path,
    target: &Path,
    owner: Option<&Credentials>,
) -> io::Result<()> {
    let (parent, name) = parent_of(&Folder::open(root)?, path, ids(owner))?;
    match rustix::fs::readlinkat(&parent, &name, Vec::new()) {
        Ok(there) if there.to_bytes() == target.as_os_str().as_bytes() => return Ok(()),
        Ok(_) => rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(Errno::INVAL) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::fs::symlinkat(target, &parent, &name)?)
}

/// Removes an empty folder that was a mount point; any other entry stays.
pub(super) fn remove(root: &Path, path: &Path) {
    let removed = || -> io::Result<()> {
        let parent = Folder::open(root)?.folder(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    };
    if let Err(error) = removed() {
        tracing::debug!(path = %path.display(), %error, "failed to remove a mount point of a \
            volume");
    }
}
