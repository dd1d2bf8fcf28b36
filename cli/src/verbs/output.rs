//! The output of tasks, copied to this process's output.

use std::io;

/// The exit code that shells use for a command whose output has no reader left, as behind `| head`.
pub(super) const EXIT_UNREAD: u8 = 141;

/// Writes the bytes; returns whether a reader may still read them.
pub(super) fn write_all(mut output: impl io::Write, bytes: &[u8]) -> io::Result<bool> {
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a reader that had left, as `head` does, was reported as an unreadable agent.
    #[test]
    fn closed_reader_differs_from_write_error() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        assert!(write_all(&writer, b"one").expect("written"));
        drop(reader);
        assert!(!write_all(&writer, b"two").expect("known"));
        let full = std::fs::File::create("/dev/full").expect("there");
        assert!(write_all(&full, b"three").is_err());
    }
}
