//! The thread that carries a task's output into its files, so that the supervisor itself never waits for a disk.
//!
//! The supervisor uses [`OutputWriter`] and polls the pipes until the first byte arrives; from then on the thread does. A
//! task that prints nothing has no such thread. Invariant: the supervisor's own thread writes to no file of output, and waits
//! for the thread at most [`FINISH_MAX`], after the task has ended.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::output::Output;
use super::supervisor::monotonic;
use crate::sys;

/// The stack size of the thread: it keeps its buffers on the heap.
const STACK_BYTES: usize = 128 << 10;

/// The pause before another attempt to start the thread. The output waits in its pipe in the meantime.
const START_RETRY: Duration = Duration::from_millis(100);

/// The longest wait for the last output, after the task's end. A slower disk loses the rest in the pipe, at most 64 KB for
/// each stream, instead of keeping the supervisor from its own end.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// A task's output, which a thread carries once there is any.
#[derive(Debug)]
pub(super) struct OutputWriter {
    state: State,
    /// The earliest time of the next attempt to start a thread: the last attempt failed.
    retry_at: Duration,
}

#[derive(Debug)]
enum State {
    /// The task has printed nothing so far.
    Idle(Output),
    Started(Arc<Shared>),
}

/// The part that the thread and the supervisor share.
#[derive(Debug)]
struct Shared {
    /// Signal of the supervisor to the thread: no more output will come.
    wake: OwnedFd,
    finishing: AtomicBool,
    /// Signal of the thread to the supervisor: all output is written.
    done: OwnedFd,
    /// Whether a pipe is still open.
    open: AtomicBool,
}

impl OutputWriter {
    pub(super) fn new(output: Output) -> Self {
        Self {
            state: State::Idle(output),
            retry_at: Duration::ZERO,
        }
    }

    /// Whether a writer is left.
    pub(super) fn is_open(&self) -> bool {
        match &self.state {
            State::Idle(output) => output.is_open(),
            State::Started(shared) => shared.open.load(Ordering::Acquire),
        }
    }

    /// The pipes for the supervisor to poll, and the time of the next call in any case.
    pub(super) fn waiting(&self, now: Duration) -> (Vec<BorrowedFd<'_>>, Option<Duration>) {
        match &self.state {
            State::Idle(output) if now < self.retry_at && output.is_open() => {
                (Vec::new(), Some(self.retry_at))
            }
            State::Idle(output) => (output.pipes(), None),
            State::Started(_) => (Vec::new(), None),
        }
    }

    /// Starts the thread if there is output; closes pipes without writers.
    pub(super) fn look(&mut self, now: Duration) {
        let State::Idle(output) = &mut self.state else {
            return;
        };
        output.close_ended();
        if now < self.retry_at || !output.has_data() {
            return;
        }
        match Shared::new().map(Arc::new) {
            Ok(shared) => {
                // A failed thread start would not return its output: it is handed over once the thread runs.
                let (hand_over, handed_over) = std::sync::mpsc::sync_channel::<Output>(1);
                let of_thread = shared.clone();
                let started =
                    std::thread::Builder::new()
                        .stack_size(STACK_BYTES)
                        .spawn(move || {
                            if let Ok(output) = handed_over.recv() {
                                carry(output, &of_thread);
                            }
                        });
                match started {
                    Ok(_) => {
                        let _ = hand_over.send(std::mem::take(output));
                        self.state = State::Started(shared);
                    }
                    Err(_) => self.retry_at = now.saturating_add(START_RETRY),
                }
            }
            Err(_) => self.retry_at = now.saturating_add(START_RETRY),
        }
    }

    /// Writes the rest of the pipes, after the last writer's end.
    pub(super) fn finish(&mut self) {
        let until = monotonic().saturating_add(FINISH_MAX);
        loop {
            let now = monotonic();
            self.look(now);
            match &self.state {
                State::Idle(output) if output.has_data() && now < until => {
                    std::thread::sleep(START_RETRY);
                }
                State::Idle(_) => return,
                State::Started(shared) => {
                    shared.finishing.store(true, Ordering::Release);
                    tell(&shared.wake);
                    return shared.wait_until_done(until);
                }
            }
        }
    }
}

impl Shared {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            wake: eventfd(0, flags)?,
            finishing: AtomicBool::new(false),
            done: eventfd(0, flags)?,
            open: AtomicBool::new(true),
        })
    }

    fn wait_until_done(&self, until: Duration) {
        while self.open.load(Ordering::Acquire) {
            let left = until.saturating_sub(monotonic());
            if left.is_zero() {
                return;
            }
            let _ = sys::wait_readable(&[self.done.as_fd()], Some(left));
        }
    }
}

fn tell(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Carries output until all writers are gone, or the supervisor ends.
fn carry(mut output: Output, shared: &Shared) {
    while output.is_open() && !shared.finishing.load(Ordering::Acquire) {
        let now = monotonic();
        let (pipes, again) = output.waiting(now);
        let mut waited = vec![shared.wake.as_fd()];
        waited.extend(pipes);
        let pace = again.map(|again| again.saturating_sub(now));
        let _ = sys::wait_readable(&waited, pace);
        output.pump(monotonic());
    }
    output.finish();
    shared.open.store(false, Ordering::Release);
    tell(&shared.done);
}
