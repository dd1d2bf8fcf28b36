//! Mounts and the loopback interface by raw calls, for the time between a clone and an exec.
//!
//! Everything here is async-signal-safe. `mount_setattr` (Linux 5.12) changes a whole tree in one
//! call, where `mount` would have to be told of every mount below.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};
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

/// Makes a mount read-only, with all below it if asked. Async-signal-safe.
pub(crate) fn read_only(path: &CStr, recursive: bool) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is NUL-terminated and the structure lives over the call with its size.
    result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
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

/// `IFF_UP | IFF_RUNNING`.
const UP_AND_RUNNING: libc::c_short = 0x41;
