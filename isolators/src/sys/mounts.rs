//! Mounts and the loopback interface by raw calls, for the time between a clone and an exec.
//!
//! Everything here is async-signal-safe. `mount_setattr` (Linux 5.12) changes a whole tree in one
//! call, where `mount` would have to be told of every mount below.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// `AT_RECURSIVE`, unsigned as the call wants it.
const AT_RECURSIVE: libc::c_uint = 0x8000;

fn result(code: libc::c_long) -> io::Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A descriptor that a call has just made.
fn made(code: libc::c_long) -> io::Result<OwnedFd> {
    result(code.min(0))?;
    let Ok(fd) = RawFd::try_from(code) else {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    };
    // SAFETY: just made by the kernel, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a mount read-only, with all below it if asked. Async-signal-safe.
pub(crate) fn read_only(path: &CStr, recursive: bool) -> io::Result<()> {
    let flags = if recursive { AT_RECURSIVE } else { 0 };
    set_read_only(libc::AT_FDCWD, path, flags)
}

fn set_read_only(dir: RawFd, path: &CStr, flags: libc::c_uint) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is NUL-terminated and the structure lives over the call with its size.
    result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir,
            path.as_ptr(),
            flags,
            &raw const attributes,
            mem::size_of::<libc::mount_attr>(),
        )
    })
}

/// Mounts a file or folder over another one. Async-signal-safe.
pub(crate) fn mount_bind(from: &CStr, onto: &CStr) -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated; type and data may be null for a bind.
    result(libc::c_long::from(unsafe {
        libc::mount(
            from.as_ptr(),
            onto.as_ptr(),
            ptr::null(),
            libc::MS_BIND | libc::MS_REC,
            ptr::null(),
        )
    }))
}

/// Opens a place for nothing but to name it. Below `beneath`, if given, no link is followed and nothing
/// above it is reached, whatever others do to the folders meanwhile. Async-signal-safe.
pub(crate) fn open_path(beneath: Option<&CStr>, path: &CStr) -> io::Result<OwnedFd> {
    let Some(beneath) = beneath else {
        return open_how(libc::AT_FDCWD, path, 0);
    };
    let root = open_how(libc::AT_FDCWD, beneath, 0)?;
    let confined = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    open_how(root.as_raw_fd(), path, confined)
}

/// The same for a path from the root of all, with no link on the way. Async-signal-safe.
pub(crate) fn open_linkless(path: &CStr) -> io::Result<OwnedFd> {
    open_how(libc::AT_FDCWD, path, libc::RESOLVE_NO_SYMLINKS)
}

fn open_how(dir: RawFd, path: &CStr, resolve: u64) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { mem::zeroed() };
    how.flags = u64::from((libc::O_PATH | libc::O_CLOEXEC).unsigned_abs());
    how.resolve = resolve;
    // SAFETY: the path is NUL-terminated and the structure lives over the call with its size.
    made(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir,
            path.as_ptr(),
            &raw const how,
            mem::size_of::<libc::open_how>(),
        )
    })
}

/// Lets what is at one place be seen at another too, with what is mounted below it. Files go onto files
/// and folders onto folders. Async-signal-safe.
pub(crate) fn bind_mount_fd(
    from: BorrowedFd<'_>,
    onto: BorrowedFd<'_>,
    writable: bool,
) -> io::Result<()> {
    const EMPTY_PATH: libc::c_uint = libc::AT_EMPTY_PATH.unsigned_abs();
    /// The value of `MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH`.
    const BOTH_EMPTY: libc::c_uint = 0x4 | 0x40;
    /// The value of `OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC`.
    const CLONE: libc::c_uint = 0x1 | libc::O_CLOEXEC.unsigned_abs();
    // SAFETY: the descriptor is open and the path is NUL-terminated.
    let tree = made(unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            from.as_raw_fd(),
            c"".as_ptr(),
            CLONE | EMPTY_PATH | AT_RECURSIVE,
        )
    })?;
    if !writable {
        set_read_only(tree.as_raw_fd(), c"", EMPTY_PATH | AT_RECURSIVE)?;
    }
    // SAFETY: both descriptors are open and both paths are NUL-terminated.
    result(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            onto.as_raw_fd(),
            c"".as_ptr(),
            BOTH_EMPTY,
        )
    })
}

/// Takes away what is mounted at a folder, lazily (MNT_DETACH). Changes the working directory. Async-signal-safe.
pub(crate) fn unmount_folder(place: BorrowedFd<'_>) -> io::Result<()> {
    // By the working directory, because a path could lead elsewhere by now.
    // SAFETY: the descriptor is open; the second path is NUL-terminated.
    result(libc::c_long::from(unsafe {
        libc::fchdir(place.as_raw_fd())
    }))?;
    // SAFETY: the path is NUL-terminated.
    result(libc::c_long::from(unsafe {
        libc::umount2(c".".as_ptr(), libc::MNT_DETACH)
    }))
}

/// Mounts a new tmpfs. Async-signal-safe.
pub(crate) fn mount_tmpfs(onto: &CStr, options: &CStr, writable: bool) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let flags = if writable {
        flags
    } else {
        flags | libc::MS_RDONLY
    };
    // SAFETY: all strings are NUL-terminated.
    result(libc::c_long::from(unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            onto.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    }))
}

/// Mounts a cgroup tree as this process's cgroup namespace shows it, read-only, in the place of the one that is
/// there: the v1 hierarchy of these controllers, or the v2 tree if there are none. Async-signal-safe.
pub(crate) fn mount_cgroup(onto: &CStr, controllers: &CStr) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
    let (kind, options) = if controllers.is_empty() {
        (c"cgroup2", ptr::null())
    } else {
        (c"cgroup", controllers.as_ptr())
    };
    // The kernel mounts no filesystem on itself, and there may be several mounts on top of each other, as a unit's
    // protection of /sys makes them. What is not a mount is none to be rid of.
    for _ in 0..STACKED_MAX {
        // SAFETY: the path is NUL-terminated.
        if unsafe { libc::umount2(onto.as_ptr(), libc::MNT_DETACH) } != 0 {
            break;
        }
    }
    // SAFETY: all strings are NUL-terminated; the options may be null.
    result(libc::c_long::from(unsafe {
        libc::mount(
            kind.as_ptr(),
            onto.as_ptr(),
            kind.as_ptr(),
            flags,
            options.cast(),
        )
    }))
}

/// Mounts of one tree on one folder: more are nobody's.
const STACKED_MAX: usize = 8;

/// Brings `lo` of this process's network namespace up. Async-signal-safe.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else; it closes when this ends.
    let _owner = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all-zero is a valid `ifreq`: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes_with_nul()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = UP_AND_RUNNING;
    // SAFETY: the request lives over the call and has the layout that this ioctl reads.
    result(libc::c_long::from(unsafe {
        libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request)
    }))
}

/// The value of `IFF_UP | IFF_RUNNING`.
const UP_AND_RUNNING: libc::c_short = 0x41;
