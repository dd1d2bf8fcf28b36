//! The readers of a container's output while it is printed.
//!
//! Invariant: only a few pieces for each of a few readers wait in memory; a reader that stops stops the container.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Pieces of output on their way to a reader.
const CHUNKS_MAX: usize = 4;
/// The most readers of one container.
const READERS_MAX: usize = 8;

/// The stream of a piece of output.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// The receiver of pieces of output.
pub(crate) type OutputReceiver = mpsc::Receiver<(Stream, Bytes)>;

/// The senders to the readers of the output.
type Readers = Vec<mpsc::Sender<(Stream, Bytes)>>;

/// The error for a container that already has the most readers.
#[derive(Debug)]
pub(super) struct TooManyReaders;

/// The readers of a container's output; a reader that stops stops the container.
#[derive(Clone, Debug, Default)]
pub(super) struct Output {
    /// `None` for a container whose output is in its sandbox, or has ended.
    readers: Arc<Mutex<Option<Readers>>>,
}

impl Output {
    fn readers(&self) -> MutexGuard<'_, Option<Readers>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open() -> Self {
        let output = Self::default();
        *output.readers() = Some(Vec::new());
        output
    }

    /// Attaches a reader to the later output; `None` if there is none, or if it is in the sandbox.
    pub(super) fn attach(&self) -> Result<Option<OutputReceiver>, TooManyReaders> {
        let mut readers = self.readers();
        let Some(readers) = readers.as_mut() else {
            return Ok(None);
        };
        readers.retain(|reader| !reader.is_closed());
        if readers.len() >= READERS_MAX {
            return Err(TooManyReaders);
        }
        let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
        readers.push(sender);
        Ok(Some(chunks))
    }

    pub(super) async fn print(&self, stream: Stream, bytes: Bytes) {
        let readers = self.readers().clone().unwrap_or_default();
        for reader in readers {
            let _ = reader.send((stream, bytes.clone())).await;
        }
        if let Some(readers) = self.readers().as_mut() {
            readers.retain(|reader| !reader.is_closed());
        }
    }

    pub(super) fn close(&self) {
        self.readers().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_readers_are_refused() {
        let output = Output::open();
        let attach = |_| output.attach().expect("not too many");
        let mut readers: Vec<_> = (0..READERS_MAX).map(attach).collect();
        assert!(output.attach().is_err());
        drop(readers.pop());
        assert!(matches!(output.attach(), Ok(Some(_))));
        assert!(matches!(Output::default().attach(), Ok(None)));
    }
}
