//! Counts the system calls of a running daemon: the cost of a request, without a clock.
//!
//! Entered through [`fewest_calls`]. A thread attaches to all threads of the process and lets each run from call to call;
//! at the end it detaches from them. Invariant: the process is not killed, and runs on when the counter is dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The number of repetitions of the work; the daemon's own activity falls into few of them.
const ROUNDS: usize = 15;

/// Returns the smallest number of system calls that a process makes during `work`.
pub fn fewest_calls(pid: i32, mut work: impl FnMut()) -> u64 {
    let counter = Counter::attach(pid);
    // Threads and connections that the first round needs stay.
    work();
    let counts = (0..ROUNDS).map(|_| {
        let before = counter.calls.load(Ordering::SeqCst);
        work();
        counter.calls.load(Ordering::SeqCst) - before
    });
    counts.min().unwrap_or_default()
}

struct Counter {
    calls: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    tracing: Option<JoinHandle<()>>,
}

impl Counter {
    fn attach(pid: i32) -> Self {
        let (calls, is_over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counted, over) = (calls.clone(), is_over.clone());
        let (attached, is_attached) = std::sync::mpsc::channel();
        let tracing = std::thread::spawn(move || {
            let threads = seize(pid);
            attached.send(()).expect("awaited");
            trace(threads, &counted, &over);
        });
        is_attached.recv().expect("attached");
        Self {
            calls,
            is_over,
            tracing: Some(tracing),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(tracing) = self.tracing.take() {
            let _ = tracing.join();
        }
    }
}

/// Attaches to every thread of a process, including new ones, and stops each.
fn seize(pid: i32) -> BTreeSet<Pid> {
    let mut threads = BTreeSet::new();
    loop {
        let before = threads.len();
        let entries = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        for entry in entries.flatten() {
            let name = entry.file_name();
            let thread = name.to_str().and_then(|name| name.parse().ok());
            let thread = Pid::from_raw(thread.expect("a number"));
            let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
            if !threads.contains(&thread) && ptrace::seize(thread, options).is_ok() {
                ptrace::interrupt(thread).expect("stopped");
                threads.insert(thread);
            }
        }
        if threads.len() == before {
            return threads;
        }
    }
}

/// Runs each thread from stop to stop. A call stops a thread twice.
fn trace(mut threads: BTreeSet<Pid>, calls: &AtomicU64, is_over: &AtomicBool) {
    let mut stops = 0_u64;
    // The wait is only for this thread's tracees: the daemons are children of the process.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
    while !threads.is_empty() {
        if is_over.load(Ordering::SeqCst) {
            for thread in &threads {
                let _ = ptrace::interrupt(*thread);
            }
            return detach(threads);
        }
        let waited = waitpid(None, Some(flags));
        let (thread, signal) = match waited {
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                stops += 1;
                calls.store(stops / 2, Ordering::SeqCst);
                (thread, None)
            }
            Ok(WaitStatus::PtraceEvent(thread, ..)) => (thread, None),
            Ok(WaitStatus::Stopped(thread, signal)) => (
                thread,
                Some(signal).filter(|signal| *signal != Signal::SIGTRAP),
            ),
            Ok(WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..)) => {
                threads.remove(&thread);
                continue;
            }
            Ok(_) => {
                std::thread::yield_now();
                continue;
            }
            Err(Errno::ECHILD) => return,
            Err(error) => panic!("failed to wait for its threads: {error}"),
        };
        threads.insert(thread);
        let _ = ptrace::syscall(thread, signal);
    }
}

fn detach(mut threads: BTreeSet<Pid>) {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    while !threads.is_empty() {
        let Ok(status) = waitpid(None, Some(flags)) else {
            return;
        };
        let Some(thread) = status.pid() else {
            continue;
        };
        threads.remove(&thread);
        let signal = match status {
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => Some(signal),
            _ => None,
        };
        let _ = ptrace::detach(thread, signal);
    }
}
