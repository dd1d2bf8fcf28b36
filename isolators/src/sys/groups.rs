//! Finding a group of the version 2 tree by its number, without a walk over the tree.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// The kernel's `struct file_handle` with a handle of kernfs in it.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    number: u64,
}

/// `FILEID_KERNFS`: the handle is the node's number (Linux 5.5).
const KERNFS: i32 = 0xfe;
const NUMBER_BYTES: u32 = 8;

/// The path below `mount` of the group with this number; `None` if the group is gone. Needs CAP_DAC_READ_SEARCH.
pub(crate) fn cgroup_path(mount: &Path, number: u64) -> io::Result<Option<PathBuf>> {
    let mount = File::open(mount)?;
    let mut handle = FileHandle {
        bytes: NUMBER_BYTES,
        kind: KERNFS,
        number,
    };
    // SAFETY: the handle lives over the call and is as long as it says.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    let Ok(opened) = i32::try_from(opened) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if opened < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ESTALE | libc::ENOENT) => Ok(None),
            _ => Err(error),
        };
    }
    // SAFETY: the kernel has just given it to us alone.
    let group = unsafe { OwnedFd::from_raw_fd(opened) };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd()))?;
    // The kernel marks a folder this way if it was removed while open.
    let is_gone = path.to_string_lossy().ends_with(" (deleted)");
    Ok((!is_gone).then_some(path))
}
