//! A stream whose other side must keep reading: after a minute in which it took nothing, a write fails.
//!
//! Covers every answer over HTTP/1, and HTTP/2 where the whole connection stands still. Invariant: a write never fails for
//! a reader that keeps reading, however slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

#[derive(Debug)]
pub(super) struct StallTimeout<S> {
    stream: S,
    allowed: Duration,
    /// The timer, set while data waits to be taken.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimeout<S> {
    pub(super) fn new(stream: S, allowed: Duration) -> Self {
        Self {
            stream,
            allowed,
            timer: None,
        }
    }

    fn check_timeout<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let allowed = self.allowed;
        let new = || Box::pin(tokio::time::sleep(allowed));
        let timer = self.timer.get_or_insert_with(new);
        timer.as_mut().poll(context).map(|()| {
            let text = "the peer read nothing for too long";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_timeout(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.check_timeout(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_timeout(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_timeout(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const ALLOWED: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn only_stalled_reader_times_out() {
        let (here, mut there) = tokio::io::duplex(16);
        let mut stall = StallTimeout::new(here, ALLOWED);
        let taking = tokio::spawn(async move {
            let mut taken = 0;
            for _ in 0..10 {
                tokio::time::sleep(ALLOWED - Duration::from_secs(1)).await;
                taken += there.read(&mut [0; 4]).await.unwrap();
            }
            (there, taken)
        });
        let begun = tokio::time::Instant::now();
        let error = stall.write_all(&[0; 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let (_there, taken) = taking.await.unwrap();
        assert_eq!(taken, 40, "all that was asked for");
        let took = begun.elapsed();
        assert!(took >= 10 * ALLOWED && took <= 11 * ALLOWED, "{took:?}");
    }
}
