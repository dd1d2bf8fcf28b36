//! Distinguishes transient resource shortage of the agent (descriptors, memory, disk) from errors of the request.
//!
//! A call that fails because this process or this machine has run out of descriptors or memory says nothing of
//! the file, process or container that it was about: whoever asked waits and asks again.

use std::io;

/// Whether a call failed for want of something that may be there a moment later.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR
        )
    )
}

/// Whether a call failed because a file system is full, or its user's part of it.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_ours_is_told_from_words_about_others() {
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
