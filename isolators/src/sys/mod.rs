//! System calls for the time around clone and exec, each behind a safe or sharply documented function: raw ones, and those of
//! nix and rustix.
//!
//! The only module of the crate with `unsafe` in it. Every function that may run between a clone and an exec is documented as
//! async-signal-safe: it allocates nothing and takes no lock.
#![expect(
    unsafe_code,
    reason = "this is where the crate meets the kernel without a wrapper crate"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

mod attributes;
mod bpf;
mod groups;
mod mounts;
mod signals;

pub(crate) use attributes::{reset_attributes, reset_scheduling};
pub(crate) use bpf::attach_device_program;
pub(crate) use groups::cgroup_path;
pub(crate) use mounts::{
    bind_mount_fd, loopback_up, mount_bind, mount_cgroup, mount_tmpfs, open_linkless, open_path,
    read_only, unmount_folder,
};

pub(crate) use signals::{
    KillPayload, SignalEvent, SignalQueue, block_all_signals, ignore_children, is_readable_by,
    reset_signals, send_kill_request, send_signal, wait_readable,
};

/// Converts the return value of a call that returns 0 or -1.
fn result(code: libc::c_long) -> io::Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The descriptor that a call has just returned.
fn made(code: libc::c_long) -> io::Result<OwnedFd> {
    result(code.min(0))?;
    let Ok(fd) = RawFd::try_from(code) else {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    };
    // SAFETY: just made by the kernel, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `CLONE_INTO_CGROUP`. libc's constant of that name overflows to 0 and would silently be ignored.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The namespaces for [`clone_process`], as clone flags.
pub(crate) mod namespaces {
    pub(crate) const MOUNT: u64 = 0x0002_0000;
    pub(crate) const UTS: u64 = 0x0400_0000;
    pub(crate) const IPC: u64 = 0x0800_0000;
    pub(crate) const PID: u64 = 0x2000_0000;
    pub(crate) const NETWORK: u64 = 0x4000_0000;
    pub(crate) const ALL: u64 = MOUNT | UTS | IPC | PID | NETWORK;
}

/// The kernel's `struct clone_args`, version 2 (Linux 5.7).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The side of a clone on which the code runs.
#[derive(Debug)]
pub(crate) enum Cloned {
    Child,
    /// The parent's side, with the new process's pid.
    Parent(i32),
}

/// Clones this process like `fork`, with namespaces and into a v2 group on request.
///
/// The calling process must have one thread only: the launcher and the supervisors do, and nobody else calls this. Then the
/// child may do everything that the parent could, allocation included.
pub(crate) fn clone_process(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut args = CloneArgs {
        flags: namespaces & namespaces::ALL,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        ..CloneArgs::default()
    };
    if let Some(group) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
    }
    // SAFETY: the arguments are a valid `struct clone_args` that lives over the call; without
    // CLONE_VM the child has its own copy of our memory and stack, so it may return from here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            std::mem::size_of::<CloneArgs>(),
        )
    };
    match result {
        0 => Ok(Cloned::Child),
        pid if pid > 0 => i32::try_from(pid)
            .map(Cloned::Parent)
            .map_err(io::Error::other),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The result of [`reap_any`].
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reaped {
    Exited {
        pid: i32,
        code: i32,
    },
    /// A signal ended a child; real-time ones too, which nix cannot name.
    Signaled {
        pid: i32,
        signal: i32,
    },
    Alive,
    NoChildren,
}

/// Reaps one child that has ended, without waiting.
pub(crate) fn reap_any() -> Reaped {
    let mut status = 0;
    loop {
        // SAFETY: the status lives over the call.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return Reaped::Alive,
            pid if pid > 0 && libc::WIFEXITED(status) => {
                return Reaped::Exited {
                    pid,
                    code: libc::WEXITSTATUS(status),
                };
            }
            pid if pid > 0 && libc::WIFSIGNALED(status) => {
                return Reaped::Signaled {
                    pid,
                    signal: libc::WTERMSIG(status),
                };
            }
            // A stopped or continued child has not ended.
            pid if pid > 0 => {}
            _ if last_errno() == libc::EINTR => {}
            _ => return Reaped::NoChildren,
        }
    }
}

/// Opens a pidfd; close-on-exec by the kernel's own rule.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Marks every descriptor from `first` on close-on-exec. Async-signal-safe.
pub(crate) fn cloexec_from(first: u32) -> io::Result<()> {
    close_range(first, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` on, regardless of its owner. Only for a process that has just been cloned and that
/// uses none of them again. Async-signal-safe.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    close_range(first, 0)
}

fn close_range(first: u32, flags: u32) -> io::Result<()> {
    // SAFETY: no memory is passed. Callers answer for descriptors they still own.
    result(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })
}

/// Makes descriptor number `to` a close-on-exec copy of `from`. Async-signal-safe.
pub(crate) fn duplicate_cloexec(from: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    if from.as_raw_fd() == to {
        return Ok(());
    }
    // SAFETY: no memory is passed; what `to` referred to is closed, as the caller intends.
    result(
        unsafe { libc::dup3(from.as_raw_fd(), to, libc::O_CLOEXEC) }
            .min(0)
            .into(),
    )
}

/// Makes descriptor number `to` (0, 1 or 2) an inheritable copy of `from`. Async-signal-safe.
pub(crate) fn duplicate_stdio(from: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed; what `to` referred to is closed, as the caller intends.
    result(unsafe { libc::dup2(from.as_raw_fd(), to) }.min(0).into())
}

/// Borrows a descriptor number that this process is known to hold open, such as 0.
pub(crate) fn borrow_number(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: used with 0-3 in processes whose descriptor table we laid out ourselves, or with
    // descriptors that stay open until exec; a wrong number gives EBADF, never memory unsafety.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A NULL-terminated array of C strings, for exec.
#[derive(Debug)]
pub(crate) struct ExecArray<'a> {
    pointers: Vec<*const libc::c_char>,
    _strings: PhantomData<&'a CStr>,
}

impl<'a> ExecArray<'a> {
    pub(crate) fn new(strings: &'a [CString]) -> Self {
        Self::from_iter(strings.iter().map(CString::as_c_str))
    }
}

impl<'a> FromIterator<&'a CStr> for ExecArray<'a> {
    fn from_iter<I: IntoIterator<Item = &'a CStr>>(strings: I) -> Self {
        let mut pointers: Vec<_> = strings.into_iter().map(CStr::as_ptr).collect();
        pointers.push(ptr::null());
        Self {
            pointers,
            _strings: PhantomData,
        }
    }
}

/// Replaces this process; returns the errno if that fails. Async-signal-safe.
pub(crate) fn execve(program: &CStr, args: &ExecArray<'_>, env: &ExecArray<'_>) -> i32 {
    // SAFETY: all three are NUL-terminated and the arrays NULL-terminated, and live over the call.
    unsafe {
        libc::execve(
            program.as_ptr(),
            args.pointers.as_ptr(),
            env.pointers.as_ptr(),
        )
    };
    last_errno()
}

pub(crate) fn last_errno() -> i32 {
    nix::errno::Errno::last_raw()
}

/// Ends this process at once, without exit handlers. Async-signal-safe.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: does not return and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Makes the terminal on standard input the controlling terminal of this session. Async-signal-safe.
pub(crate) fn take_terminal() -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(borrow_number(0))?)
}

/// Sets a resource limit. Async-signal-safe.
pub(crate) fn set_rlimit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the structure lives over the call; a null old-limit pointer is allowed.
    result(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            &raw const limit,
            ptr::null_mut::<libc::rlimit64>(),
        )
    })
}

/// The hard limit of this process; `None` if the kernel has no such limit.
pub(crate) fn hard_limit(resource: u32) -> Option<u64> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure lives over the call; a null new-limit pointer is allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            ptr::null::<libc::rlimit64>(),
            &raw mut limit,
        )
    };
    (result == 0).then_some(limit.rlim_max)
}

/// Sets the supplementary groups of this one-threaded process. Async-signal-safe.
pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: pointer and length describe the slice.
    result(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

/// Sets all three group ids of this one-threaded process. Async-signal-safe.
pub(crate) fn set_gid(gid: u32) -> io::Result<()> {
    // SAFETY: no memory is passed. The raw call changes this thread only, which is all there is.
    result(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })
}

/// Sets all three user ids of this one-threaded process. Async-signal-safe.
pub(crate) fn set_uid(uid: u32) -> io::Result<()> {
    // SAFETY: as for `set_gid`.
    result(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Sets the user for this thread's file accesses, and nothing else of its identity. Leaving root drops the capabilities on
/// files, and coming back restores them. Async-signal-safe.
pub(crate) fn set_file_user(uid: u32, gid: u32) -> io::Result<()> {
    // The calls return the previous identity and report no failure. With an unused id they change nothing and return the identity
    // in force.
    let nobody = u32::MAX;
    // SAFETY: no memory is passed. The raw calls change this thread only.
    let is = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (
            libc::syscall(libc::SYS_setfsuid, nobody),
            libc::syscall(libc::SYS_setfsgid, nobody),
        )
    };
    if is == (libc::c_long::from(uid), libc::c_long::from(gid)) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Two integers in a page that a child cloned later shares with us.
#[derive(Debug)]
pub(crate) struct SharedPair {
    page: *const [AtomicI32; 2],
}

impl SharedPair {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping overlaps nothing. It is never unmapped: a supervisor
        // makes one and keeps it for its life.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                std::mem::size_of::<[AtomicI32; 2]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { page: page.cast() })
    }

    fn cells(&self) -> &[AtomicI32; 2] {
        // SAFETY: the mapping is zeroed, page-aligned, large enough and never unmapped.
        unsafe { &*self.page }
    }

    /// Safe to call in a signal handler (async-signal-safe).
    pub(crate) fn store(&self, first: i32, second: i32) {
        self.cells()[1].store(second, Ordering::SeqCst);
        self.cells()[0].store(first, Ordering::SeqCst);
    }

    pub(crate) fn load(&self) -> (i32, i32) {
        (
            self.cells()[0].load(Ordering::SeqCst),
            self.cells()[1].load(Ordering::SeqCst),
        )
    }
}

/// Writes all of `bytes` in one call to a descriptor. Async-signal-safe.
pub(crate) fn write_once(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    rustix::io::write(fd, bytes)?;
    Ok(())
}

/// Opens an existing file for writing and writes `bytes` in one call. Async-signal-safe.
pub(crate) fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write_once(file.as_fd(), bytes)
}

/// Leaves a real-time scheduling class, if the process is in one.
pub(crate) fn normal_scheduling() {
    // SAFETY: the parameter lives over the call; 0 means this process.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            let parameter: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameter);
        }
    }
}

/// Changes the working directory. Async-signal-safe.
///
/// Never through a magic link: `/proc/self/fd/<n>` would lead to a folder of ours that is still open
/// before exec.
pub(crate) fn change_dir(path: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let dir = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    Ok(rustix::process::fchdir(&dir)?)
}

/// Whether two threads of this machine share one table of files; false if the kernel cannot compare them. Threads are given
/// by their numbers in this process's pid namespace. If a number is reused in the meantime, the next measurement corrects the
/// result.
pub(crate) fn share_files(one: i32, other: i32) -> bool {
    /// `KCMP_FILES`; the libc crate has no constant for it.
    const FILES: libc::c_long = 2;
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, FILES, 0, 0) == 0 }
}

/// Takes ownership of a descriptor that the kernel has just handed to this process.
pub(crate) fn own_received(fd: RawFd) -> OwnedFd {
    // SAFETY: called once per number, on descriptors received with SCM_RIGHTS or laid out by
    // `arrange_descriptors`, which nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
