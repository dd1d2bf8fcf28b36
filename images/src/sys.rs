//! System calls without a safe wrapper in rustix: landlock, and the closing of inherited descriptors.
//!
//! The only module of the crate with `unsafe` in it.
#![expect(
    unsafe_code,
    reason = "the kernel's landlock interface has no wrapper in our dependencies"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The first version that can permit links between folders (kernel 5.19). Earlier ones refuse every such link.
const VERSION_MIN: u32 = 2;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

// Access rights, from linux/landlock.h.
const EXECUTE: u64 = 1;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_BLOCK: u64 = 1 << 11;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// All rights of version 1: the bits 0 to 12.
const VERSION_1: u64 = (1 << 13) - 1;
/// To bind and to connect TCP sockets, since version 4.
const NETWORK: u64 = 0b11;
/// Abstract sockets and signals to other processes, since version 6.
const SCOPES: u64 = 0b11;

#[repr(C)]
#[derive(Default)]
struct RulesetAttributes {
    access_fs: u64,
    access_net: u64,
    scoped: u64,
}

/// The kernel's structure has no padding behind the descriptor.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Restricts this thread and its later children to files below a folder, without execution, sockets and block devices. Returns the
/// version of landlock; 0 without landlock, and then restricts nothing.
pub(crate) fn restrict_to_folder(folder: BorrowedFd<'_>) -> io::Result<u32> {
    let version = version();
    if version < VERSION_MIN {
        return Ok(0);
    }
    let mut handled = VERSION_1 | REFER;
    if version >= 3 {
        handled |= TRUNCATE;
    }
    if version >= 5 {
        handled |= IOCTL_DEV;
    }
    let attributes = RulesetAttributes {
        access_fs: handled,
        access_net: if version >= 4 { NETWORK } else { 0 },
        scoped: if version >= 6 { SCOPES } else { 0 },
    };
    let size = size_of::<RulesetAttributes>();
    // SAFETY: the kernel reads `size` bytes of a structure that lives during the call. Fields that an older kernel does not know
    // are 0, which it accepts.
    let ruleset = unsafe {
        let attributes = &raw const attributes;
        libc::syscall(libc::SYS_landlock_create_ruleset, attributes, size, 0_u32)
    };
    let ruleset = take_fd(ruleset)?;
    let rule = PathBeneath {
        allowed_access: handled & !(EXECUTE | MAKE_SOCK | MAKE_BLOCK | IOCTL_DEV),
        parent_fd: folder.as_raw_fd(),
    };
    // SAFETY: the kernel reads a structure that lives during the call.
    let added = unsafe {
        let (rule, kind) = (&raw const rule, RULE_PATH_BENEATH);
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            kind,
            rule,
            0_u32,
        )
    };
    check(added)?;
    // SAFETY: the call has no pointers.
    let restricted =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    check(restricted)?;
    Ok(version)
}

fn version() -> u32 {
    let none = std::ptr::null::<RulesetAttributes>();
    // SAFETY: with this flag the kernel reads no structure.
    let version = unsafe {
        let flags = CREATE_RULESET_VERSION;
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, flags)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Gives this process, which must have one thread, a network namespace of its own, in which not even loopback is up.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: a new network namespace does not change the memory or the descriptors of this process.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    check(unshared.into())
}

/// Closes all descriptors from this number on. Nothing in this process may own one of them.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller owns no descriptor in this range, so no owner finds its descriptor closed.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) };
    check(closed)
}

fn check(code: libc::c_long) -> io::Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn take_fd(code: libc::c_long) -> io::Result<OwnedFd> {
    check(code.min(0))?;
    let fd = RawFd::try_from(code).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: just made by the kernel, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
