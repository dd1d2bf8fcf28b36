//! Signals with a payload, signal masks that include the real-time ones, and their queue.
//!
//! nix's `Signal` ends at 31. The kill request is a real-time signal: these queue and carry a value, so that one call
//! instructs a supervisor without a file or a socket in between.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::result;

/// The real-time signal that carries a kill request. 32 and 33 belong to the C library.
const KILL_REQUEST_SIGNAL: i32 = 40;

/// Highest signal number of Linux.
const SIGNAL_MAX: i32 = 64;

/// Plain real-time signals that transmit a kill request bit by bit, lowest bit first: a full signal queue refuses signals
/// with a value, but never these. The kernel delivers the lowest number first, so that the last one completes the request.
const BIT_SIGNALS: [i32; 29] = [
    34, 35, 36, 37, 38, 39, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58,
    59, 60, 61, 62, 63,
];
const BITS_COMPLETE_SIGNAL: i32 = 64;

/// Number of bits of the signal in a bitwise request; higher bits encode the grace period.
const SIGNAL_BITS: u32 = 6;
/// The unit of grace there.
const GRACE_UNIT: Duration = Duration::from_millis(100);

/// The longest grace period of a kill request, about 8,900 years.
const GRACE_MILLIS_MAX: u64 = (1 << 48) - 1;

/// The contents of a kill request, packed into a signal's 64-bit value.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct KillPayload {
    /// The signal that is sent first.
    pub(crate) signal: u8,
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl KillPayload {
    fn pack(self) -> u64 {
        let millis = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        (millis.min(GRACE_MILLIS_MAX) << 8) | u64::from(self.signal)
    }

    fn unpack(value: u64) -> Self {
        let signal = u8::try_from(value & 0xff).unwrap_or(0);
        Self {
            signal,
            grace: Duration::from_millis(value >> 8),
        }
    }
}

impl KillPayload {
    /// Encodes the request in as many bits as there are plain signals: grace is rounded up, and ten days at most. The few signals
    /// without a code there become SIGTERM.
    fn to_bits(self) -> u32 {
        let grace_bits = u32::try_from(BIT_SIGNALS.len()).unwrap_or(0) - SIGNAL_BITS;
        let units = self.grace.as_millis().div_ceil(GRACE_UNIT.as_millis());
        let units_max = (1_u32 << grace_bits) - 1;
        let units = u32::try_from(units).unwrap_or(units_max).min(units_max);
        let signal = u32::from(self.signal);
        let signal = match signal >> SIGNAL_BITS {
            0 => signal,
            _ => libc::SIGTERM.unsigned_abs(),
        };
        (units << SIGNAL_BITS) | signal
    }

    fn from_bits(bits: u32) -> Self {
        let signal = bits & ((1 << SIGNAL_BITS) - 1);
        Self {
            signal: u8::try_from(signal).unwrap_or(0),
            grace: GRACE_UNIT.saturating_mul(bits >> SIGNAL_BITS),
        }
    }
}

/// An event from a [`SignalQueue`].
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum SignalEvent {
    Child,
    KillRequest(KillPayload),
    /// Any other signal, which has no effect.
    Other,
}

/// Blocks every signal that can be blocked.
pub(crate) fn block_all_signals() {
    let _ = SigSet::all().thread_set_mask();
}

/// Makes the kernel reap children by itself.
pub(crate) fn ignore_children() {
    set_disposition(libc::SIGCHLD, libc::SIG_IGN);
}

fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: all-zero plus a handler constant is a valid sigaction; no handler function is set.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// Resets all signals to their default dispositions and unblocks them. Async-signal-safe.
///
/// Makes the raw call: the C library reserves 32 and 33 for itself, and an agent may have been started with these ignored.
pub(crate) fn reset_signals() {
    /// Bytes of the kernel's signal set.
    const SET_BYTES: usize = 8;
    // Handler (SIG_DFL is 0), flags, restorer, mask.
    let default = [0_u64; 4];
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: the kernel's `struct sigaction` has four words, and all-zero is the default one.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null_mut::<u64>(),
                SET_BYTES,
            )
        };
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Sends a plain signal through a pidfd.
pub(crate) fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed.
    result(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
}

/// The head of the kernel's `siginfo_t` for a queued signal (64-bit layout), padded to its 128 bytes.
#[repr(C)]
struct QueuedInfo {
    signo: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(mem::size_of::<QueuedInfo>() == 128);

/// Sends a kill request to a supervisor through its pidfd, also while the signal queue of its user is full.
pub(crate) fn send_kill_request(pidfd: BorrowedFd<'_>, payload: KillPayload) -> io::Result<()> {
    match queue_kill_request(pidfd, payload) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => send_bits(pidfd, payload),
        sent => sent,
    }
}

fn send_bits(pidfd: BorrowedFd<'_>, payload: KillPayload) -> io::Result<()> {
    let bits = payload.to_bits();
    for (bit, signal) in BIT_SIGNALS.into_iter().enumerate() {
        if bits >> bit & 1 == 1 {
            send_signal(pidfd, signal)?;
        }
    }
    send_signal(pidfd, BITS_COMPLETE_SIGNAL)
}

fn queue_kill_request(pidfd: BorrowedFd<'_>, payload: KillPayload) -> io::Result<()> {
    let info = QueuedInfo {
        signo: KILL_REQUEST_SIGNAL,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        // SAFETY: geteuid cannot fail and touches no memory.
        uid: unsafe { libc::geteuid() },
        value: payload.pack(),
        rest: [0; 12],
    };
    // SAFETY: the structure has the size and layout of siginfo_t and lives over the call.
    result(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            KILL_REQUEST_SIGNAL,
            &raw const info,
            0,
        )
    })
}

/// Waits until one of these is readable or has ended, at most for `timeout` (`None`: for ever).
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let limit = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    rustix::event::poll(&mut polled, limit.as_ref())?;
    Ok(())
}

/// Waits until the descriptor is readable or has ended; returns whether that came before the deadline.
pub(crate) fn is_readable_by(fd: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut polled = [nix::poll::PollFd::new(
            fd.as_fd(),
            nix::poll::PollFlags::POLLIN,
        )];
        match nix::poll::poll(&mut polled, left) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// All signals of this process as a descriptor. They must be blocked.
#[derive(Debug)]
pub(crate) struct SignalQueue {
    fd: SignalFd,
    /// The received part of a bitwise kill request.
    bits: Cell<u32>,
}

impl SignalQueue {
    pub(crate) fn new() -> io::Result<Self> {
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&SigSet::all(), flags)?;
        Ok(Self {
            fd,
            bits: Cell::new(0),
        })
    }

    /// The descriptor, for polling together with others.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Waits for a signal, at most for `timeout` (`None`: for ever).
    pub(crate) fn next(&self, timeout: Option<Duration>) -> io::Result<Option<SignalEvent>> {
        if let Some(event) = self.read()? {
            return Ok(Some(event));
        }
        wait_readable(&[self.fd.as_fd()], timeout)?;
        self.read()
    }

    fn read(&self) -> io::Result<Option<SignalEvent>> {
        let info = match self.fd.read_signal() {
            Ok(Some(info)) => info,
            Ok(None) | Err(Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
        Ok(Some(match signal {
            libc::SIGCHLD => SignalEvent::Child,
            KILL_REQUEST_SIGNAL if info.ssi_code == libc::SI_QUEUE => {
                SignalEvent::KillRequest(KillPayload::unpack(info.ssi_ptr))
            }
            BITS_COMPLETE_SIGNAL => {
                SignalEvent::KillRequest(KillPayload::from_bits(self.bits.take()))
            }
            other => {
                let bit = BIT_SIGNALS.iter().position(|signal| *signal == other);
                let bit = bit.map_or(0, |bit| 1 << bit);
                self.bits.set(self.bits.get() | bit);
                SignalEvent::Other
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_payload_survives_plain_signals() {
        let as_bits = |signal, grace| {
            let bits = KillPayload { signal, grace }.to_bits();
            assert!(bits >> BIT_SIGNALS.len() == 0, "{bits:b}");
            let KillPayload { signal, grace } = KillPayload::from_bits(bits);
            (signal, grace)
        };
        let millis = Duration::from_millis;
        for (grace, expected) in [
            (Duration::ZERO, Duration::ZERO),
            (millis(1), millis(100)),
            (millis(700), millis(700)),
            (millis(30_050), millis(30_100)),
            (Duration::MAX, millis(((1 << 23) - 1) * 100)),
        ] {
            assert_eq!(as_bits(15, grace), (15, expected));
        }
        assert_eq!(as_bits(9, Duration::ZERO).0, 9);
        assert_eq!(as_bits(64, Duration::ZERO).0, 15);
    }

    #[test]
    fn kill_payload_survives_packing() {
        for grace in [
            Duration::ZERO,
            Duration::from_millis(1),
            Duration::from_secs(86_400 * 365),
        ] {
            let payload = KillPayload { signal: 15, grace };
            assert_eq!(KillPayload::unpack(payload.pack()), payload);
        }
        let endless = KillPayload {
            signal: 2,
            grace: Duration::MAX,
        };
        let unpacked = KillPayload::unpack(endless.pack());
        assert_eq!(unpacked.signal, 2);
        assert_eq!(unpacked.grace, Duration::from_millis(GRACE_MILLIS_MAX));
    }
}
