//! Attributes of a process that survive clone and exec, each reset to the value of the kernel's first process.
//!
//! A task calls these functions between its clone and its exec, so that it does not depend on the start of the agent. Every
//! call is best effort: a kernel without the attribute has nothing to reset, and a user other than root may not leave a lower
//! priority. All are async-signal-safe.

use std::mem;
use std::ptr;

use super::write_file;

/// A mask of more processors than any kernel supports, in words; the kernel takes those of the cpuset.
const AFFINITY_WORDS: usize = 128;
/// The default slack of timers, in nanoseconds.
const TIMER_SLACK: libc::c_ulong = 50_000;
/// The default mappings of a core file.
const CORE_FILTER: &[u8] = b"0x33";
const IOPRIO_WHO_PROCESS: libc::c_long = 1;
const MPOL_DEFAULT: libc::c_long = 0;
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
/// The setting for merging of equal pages; newer than the libc crate's constants.
const PR_SET_MEMORY_MERGE: libc::c_int = 67;

/// Resets processors, scheduling class, niceness, disk priority, timer slack and memory placement.
pub(crate) fn reset_scheduling() {
    let every = [u64::MAX; AFFINITY_WORDS];
    super::normal_scheduling();
    // SAFETY: the mask lives over its call; the others take numbers and a null pointer.
    unsafe {
        let bytes = mem::size_of_val(&every);
        libc::syscall(libc::SYS_sched_setaffinity, 0, bytes, every.as_ptr());
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK, 0, 0, 0);
        let no_nodes = ptr::null::<libc::c_ulong>();
        libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, no_nodes, 0);
    }
}

/// Resets the execution domain, secure bits, kinds of memory pages, session keyring and content of core files. Called before
/// capabilities are given up.
pub(crate) fn reset_attributes() {
    // SAFETY: numbers and a null pointer only.
    unsafe {
        libc::personality(0);
        libc::prctl(libc::PR_SET_SECUREBITS, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0);
        libc::prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);
        // Joins a new anonymous keyring: the task must not have the keys of the user who started the agent.
        let no_name = ptr::null::<libc::c_char>();
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, no_name);
    }
    let _ = write_file(c"/proc/self/coredump_filter", CORE_FILTER);
}
