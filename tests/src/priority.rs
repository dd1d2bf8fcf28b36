//! Priorities of the threads that stand for other machines.

/// At this one a thread gets a ninth of what one at 0 gets beside it.
const NICE: i32 = 10;

/// Lowers the priority of the calling thread, and of those that it starts from now on: clients that run on other
/// machines in the field give way to the daemons that are measured.
pub fn lower_priority() {
    #[expect(unsafe_code, reason = "nix knows no priorities")]
    // SAFETY: takes numbers only; 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
