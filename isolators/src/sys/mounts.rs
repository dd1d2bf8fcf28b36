//! Mounts and the loopback interface, for the time between a clone and an exec.
//!
//! Everything here is async-signal-safe: rustix makes the system calls itself and copies no path that is a C string.
//! `mount_setattr` (Linux 5.12) changes a whole tree in one call, where `mount` would need a call for every mount below.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::{made, result};

/// `AT_RECURSIVE`, unsigned as the call wants it.
const AT_RECURSIVE: libc::c_uint = 0x8000;

/// Makes a mount read-only, with all mounts below it if `recursive`. Async-signal-safe.
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

/// Mounts a file or folder over another. Async-signal-safe.
pub(crate) fn mount_bind(from: &CStr, onto: &CStr) -> io::Result<()> {
    Ok(rustix::mount::mount_bind_recursive(from, onto)?)
}

/// Opens a place only as a reference. Below `beneath`, if given, the lookup follows no link and never leaves that folder,
/// even if others change the folders in the meantime. Async-signal-safe.
pub(crate) fn open_path(beneath: Option<&CStr>, path: &CStr) -> io::Result<OwnedFd> {
    let Some(beneath) = beneath else {
        return open_place(CWD, path, ResolveFlags::empty());
    };
    let root = open_place(CWD, beneath, ResolveFlags::empty())?;
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_place(root.as_fd(), path, confined)
}

/// Opens a path from the root directory, with no link on the way. Async-signal-safe.
pub(crate) fn open_linkless(path: &CStr) -> io::Result<OwnedFd> {
    open_place(CWD, path, ResolveFlags::NO_SYMLINKS)
}

fn open_place(dir: BorrowedFd<'_>, path: &CStr, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(
        dir,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// Shows one place at another too, with the mounts below it. Files cover files and folders cover folders. Async-signal-safe.
pub(crate) fn bind_mount_fd(
    from: BorrowedFd<'_>,
    onto: BorrowedFd<'_>,
    writable: bool,
) -> io::Result<()> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(from, c"", clone)?;
    if !writable {
        let empty_path = libc::AT_EMPTY_PATH.unsigned_abs();
        set_read_only(tree.as_raw_fd(), c"", empty_path | AT_RECURSIVE)?;
    }
    let both_empty =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(
        &tree, c"", onto, c"", both_empty,
    )?)
}

/// Unmounts a folder lazily (MNT_DETACH). Changes the working directory. Async-signal-safe.
pub(crate) fn unmount_folder(place: BorrowedFd<'_>) -> io::Result<()> {
    // Uses the working directory, because a path could lead elsewhere by now.
    rustix::process::fchdir(place)?;
    Ok(rustix::mount::unmount(c".", UnmountFlags::DETACH)?)
}

/// Flags of every mount in a container: mounts give no rights.
const POWERLESS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Mounts a new tmpfs. Async-signal-safe.
pub(crate) fn mount_tmpfs(onto: &CStr, options: &CStr, writable: bool) -> io::Result<()> {
    let mut flags = POWERLESS;
    flags.set(MountFlags::RDONLY, !writable);
    Ok(rustix::mount::mount(
        c"tmpfs", onto, c"tmpfs", flags, options,
    )?)
}

/// Mounts a cgroup tree as this process's cgroup namespace shows it, read-only, in place of the existing mount: the v1
/// hierarchy of these controllers, or the v2 tree without controllers. Async-signal-safe.
pub(crate) fn mount_cgroup(onto: &CStr, controllers: &CStr) -> io::Result<()> {
    let (kind, options) = if controllers.is_empty() {
        (c"cgroup2", None)
    } else {
        (c"cgroup", Some(controllers))
    };
    // The kernel mounts no filesystem on itself, and several mounts may lie on top of each other, as a unit's protection of /sys
    // makes them. A place without a mount needs no unmount.
    for _ in 0..STACKED_MAX {
        if rustix::mount::unmount(onto, UnmountFlags::DETACH).is_err() {
            break;
        }
    }
    let flags = POWERLESS | MountFlags::RDONLY;
    Ok(rustix::mount::mount(kind, onto, kind, flags, options)?)
}

/// The maximum number of mounts of one tree on one folder: no known setup has more.
const STACKED_MAX: usize = 8;

/// Brings `lo` of this process's network namespace up. Async-signal-safe.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let socket = made(socket.into())?;
    // SAFETY: all-zero is a valid `ifreq`: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes_with_nul()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = UP_AND_RUNNING;
    // SAFETY: the request lives over the call and has the layout that this ioctl reads.
    result(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    }))
}

/// The value of `IFF_UP | IFF_RUNNING`.
const UP_AND_RUNNING: libc::c_short = 0x41;
