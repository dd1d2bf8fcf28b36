//! Terminals for interactive commands: the agent writes the input here and reads the output.
//!
//! The kernel's line discipline does the rest: echo, lines, the keys that interrupt. Invariant: only the command holds
//! the other end, and its close is the end of the output.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::containerizer::readiness::register_for;

/// A terminal's rows and columns.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct WindowSize {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// The agent's end of a terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    ours: AsyncFd<OwnedFd>,
}

impl Terminal {
    /// Opens a terminal, and returns the path of its other end. Must be called in the runtime.
    pub(super) fn open(size: Option<WindowSize>) -> io::Result<(Self, PathBuf)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        let path = rustix::pty::ptsname(&ours, Vec::new())?;
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        rustix::io::ioctl_fionbio(&ours, true)?;
        let terminal = Self {
            ours: register_for(ours, Interest::READABLE | Interest::WRITABLE)?,
        };
        if let Some(size) = size {
            terminal.resize(size)?;
        }
        Ok((terminal, path))
    }

    /// Sets the size of the command's terminal.
    pub(super) fn resize(&self, size: WindowSize) -> io::Result<()> {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(&self.ours, size)?)
    }

    /// Reads output; returns zero once nobody holds the other end any more.
    pub(super) async fn read(&self, chunk: &mut [u8]) -> io::Result<usize> {
        let read = self.ours.async_io(Interest::READABLE, |ours| {
            Ok(rustix::io::read(ours, &mut *chunk)?)
        });
        match read.await {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Ok(0)
            }
            other => other,
        }
    }

    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.ours.async_io(Interest::WRITABLE, |ours| {
                Ok(rustix::io::write(ours, bytes)?)
            });
            bytes = bytes.get(written.await?..).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn terminal_echoes_input_and_reports_size() {
        let size = WindowSize {
            rows: 24,
            columns: 80,
        };
        let (terminal, path) = Terminal::open(Some(size)).expect("a terminal");
        let theirs = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path);
        let theirs = theirs.expect("its other end");
        let told = rustix::termios::tcgetwinsize(&theirs).expect("a size");
        assert_eq!((told.ws_row, told.ws_col), (24, 80));
        terminal.write(b"hello\n").await.expect("typed");
        let mut chunk = [0; 64];
        let count = terminal.read(&mut chunk).await.expect("an echo");
        assert_eq!(&chunk[..count], b"hello\r\n");
        drop(theirs);
        assert_eq!(terminal.read(&mut chunk).await.expect("its end"), 0);
    }
}
