//! Priorities of the threads that simulate other machines.

/// The nice value: a thread gets a ninth of the time of a thread at 0 beside it.
const NICE: i32 = 10;

/// Lowers the priority of the calling thread, and of its later threads: clients that run on other machines in the field
/// give way to the measured daemons.
pub fn lower_priority() {
    #[expect(unsafe_code, reason = "nix knows no priorities")]
    // SAFETY: takes numbers only; 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
