//! Deletion of what the store has moved to its trash, a bounded number of files at a time.
//!
//! Deleting tens of thousands of files at once makes ext4 slow for the next pull. Invariant: a deletion continues where an
//! earlier one stopped, also one of an earlier process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::StoreError;
use super::layout::{Layout, names_in};

/// Deletes files of the trash, and returns whether the trash is empty.
pub(super) fn sweep(layout: &Layout, files_max: u64) -> Result<bool, StoreError> {
    let path = layout.trash();
    let failed = |errno: Errno| StoreError::new("empty", &path, errno.into());
    let trash =
        open_folder(rustix::fs::CWD, path.as_os_str().as_encoded_bytes()).map_err(failed)?;
    let mut budget = files_max;
    for name in names_in(&path)? {
        if !remove_some(trash.as_fd(), name.as_bytes(), &mut budget).map_err(failed)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes files of a tree until the budget is used up. Returns whether the tree is gone.
fn remove_some(parent: BorrowedFd<'_>, name: &[u8], budget: &mut u64) -> rustix::io::Result<bool> {
    if *budget == 0 {
        return Ok(false);
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {
            *budget -= 1;
            return Ok(true);
        }
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let folder = open_folder(parent, name)?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !remove_some(folder.as_fd(), name, budget)? {
            return Ok(false);
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    *budget = budget.saturating_sub(1);
    Ok(true)
}

fn open_folder(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}
