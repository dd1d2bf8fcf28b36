//! Distinguishes transient resource shortage of the agent (descriptors, memory, disk) from errors of the request.
//!
//! If a call fails because this process or this machine has run out of descriptors or memory, the state of its file, process
//! or container stays unknown: the caller waits and repeats the call. The same holds when the device below failed, which may
//! answer a moment later. But a dead device must not block everything, so [`again`] repeats a few times.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The total number of reads on a failing device, and the pause between them.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

static REPEATED: AtomicU64 = AtomicU64::new(0);

/// Whether a call failed for a shortage that may be over a moment later.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR
        )
    )
}

/// Whether a call failed because a file system, or its user's quota, is full.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Whether the device below failed: the error leaves the state of the file unknown.
pub fn is_device_failure(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT))
}

/// The result of `look`. Repeats it while the device below fails, six times in all within half a second. Blocking. Returns
/// the last error of a device that failed each time.
pub fn again<T>(look: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    again_after(|| std::thread::sleep(PAUSE), look)
}

fn again_after<T>(
    mut pause: impl FnMut(),
    mut look: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match look() {
            Err(error) if is_device_failure(&error) => {
                note_repeated();
                pause();
            }
            looked => return looked,
        }
    }
    look()
}

/// Counts a read that is repeated because of the agent's shortage or a failed device.
pub fn note_repeated() {
    REPEATED.fetch_add(1, Ordering::Relaxed);
}

/// The number of repeated reads in this process, after a shortage or a failed device.
pub fn repeated() -> u64 {
    REPEATED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a read that fails this many times with this error; returns its result and the number of reads.
    fn looked(failures: u32, errno: i32) -> (Option<u32>, u32) {
        let mut looks = 0;
        let outcome = again_after(
            || {},
            || {
                looks += 1;
                match looks <= failures {
                    true => Err(io::Error::from_raw_os_error(errno)),
                    false => Ok(looks),
                }
            },
        );
        (outcome.ok(), looks)
    }

    #[test]
    fn transient_io_error_retries_persistent_fails() {
        let before = repeated();
        assert_eq!(looked(2, libc::EIO), (Some(3), 3));
        assert!(repeated() >= before + 2);
        assert_eq!(looked(u32::MAX, libc::EIO), (None, ATTEMPTS));
        assert_eq!(looked(1, libc::ENOENT), (None, 1), "a word about the file");
        assert_eq!(
            looked(1, libc::EMFILE),
            (None, 1),
            "for the caller to wait out"
        );
    }

    #[test]
    fn shortage_is_distinct_from_other_errors() {
        let of = io::Error::from_raw_os_error;
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(is_shortage(&of(errno)) && !is_disk_full(&of(errno)));
        }
        for errno in [libc::ENOENT, libc::ESRCH, libc::EIO, libc::ENOTDIR] {
            assert!(!is_shortage(&of(errno)) && !is_disk_full(&of(errno)));
        }
        assert!(is_disk_full(&of(libc::ENOSPC)) && is_disk_full(&of(libc::EDQUOT)));
        assert!(!is_shortage(&io::Error::other("something else")));
    }
}
