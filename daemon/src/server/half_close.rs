//! Clients of HTTP/1 that close their sending half behind a request, as `nc -N` and `socat` do, and wait for its answer.
//!
//! Entered through [`HalfClose`] and the [`Exchange`] of each request. The end of a client's data looks the same whether
//! the client still reads or has gone, and hyper drops the request at that end; so [`HalfClose`] hides the end from hyper
//! while a complete request is being answered. Invariants: an answer that is a stream of events ends as soon as its
//! client's data ends; an answer that has not begun is awaited for [`ANSWER_MAX`] at most after that.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The time that a client which has stopped sending, and may be gone, gets for its answer. A call that takes longer waits
/// for an event, and no client may be left to receive it. The time is short, since clients that lost patience look the
/// same, and a busy daemon should not work for them.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The stage of the only request of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// No request is being read or answered.
    Idle,
    /// The body is arriving. `lacks` is set once all bytes before the end are read and the handler waits for more.
    Reading { lacks: bool },
    /// The body is complete, or the handler reads no more of it.
    Awaited,
    /// A response with an end is being sent.
    Answering,
    /// An answer is being sent that ends with the client's data.
    Streaming,
    /// The answer has ended, and its last bytes may wait to be written: hyper takes an end in the middle of that for a
    /// failure.
    Flushing,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Whether the client has closed its sending half.
    has_ended: bool,
    /// The waker of the connection's reader, while the end is hidden from it.
    reader: Option<Waker>,
    /// The waker of the reader that waits for more of the body.
    body: Option<Waker>,
}

impl State {
    fn set(&mut self, stage: Stage) {
        self.stage = stage;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// The state of a connection's request. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Exchanges(Arc<Mutex<State>>);

impl Exchanges {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            stage: Stage::Idle,
            has_ended: false,
            reader: None,
            body: None,
        })))
    }

    /// Notes that a request has begun to arrive.
    pub(super) fn begin(&self) -> Exchange {
        self.state().set(Stage::Reading { lacks: false });
        Exchange(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of a connection, until its response has ended or is given up.
#[derive(Debug)]
pub(super) struct Exchange(Exchanges);

impl Exchange {
    /// Returns the handle that reports the progress of the body.
    pub(super) fn body(&self) -> RequestBody {
        RequestBody(self.0.clone())
    }

    /// Records the start of the answer, which has an end of its own or lasts until its client leaves.
    pub(super) fn answer(&self, has_end: bool) {
        let mut state = self.0.state();
        // An answer that begins while the body is still read may depend on the body.
        let is_whole = state.stage == Stage::Awaited;
        state.set(if has_end && is_whole {
            Stage::Answering
        } else {
            Stage::Streaming
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.state().set(Stage::Flushing);
    }
}

/// The body of a request, until it is complete or the handler reads no more of it: then this is dropped.
#[derive(Debug)]
pub(super) struct RequestBody(Exchanges);

impl RequestBody {
    /// Records that the handler waits for more of the body.
    pub(super) fn wait(&self, waker: &Waker) {
        let mut state = self.0.state();
        if matches!(state.stage, Stage::Reading { .. }) {
            if state.has_ended {
                state.set(Stage::Reading { lacks: true });
            }
            state.body = Some(waker.clone());
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.body = None;
        if matches!(state.stage, Stage::Reading { .. }) {
            state.set(Stage::Awaited);
        }
    }
}

/// A connection that delays its end-of-file until no answer depends on it.
#[derive(Debug)]
pub(super) struct HalfClose<S> {
    stream: S,
    exchanges: Exchanges,
    has_ended: bool,
    /// The time until which the answer must have begun.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> HalfClose<S> {
    pub(super) fn new(stream: S, exchanges: Exchanges) -> Self {
        Self {
            stream,
            exchanges,
            has_ended: false,
            timer: None,
        }
    }

    /// Returns ready when the connection may report the end.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.exchanges.state();
        state.has_ended = true;
        match state.stage {
            Stage::Idle | Stage::Streaming | Stage::Reading { lacks: true } => {
                return Poll::Ready(Ok(()));
            }
            Stage::Answering | Stage::Flushing => {
                state.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            Stage::Reading { lacks: false } | Stage::Awaited => {
                state.reader = Some(context.waker().clone());
            }
        }
        // A further read of the body shows whether it lacks anything.
        let body = state.body.take();
        drop(state);
        if let Some(body) = body {
            body.wake();
        }
        let new = || Box::pin(tokio::time::sleep(ANSWER_MAX));
        let timer = self.timer.get_or_insert_with(new);
        timer.as_mut().poll(context).map(Ok)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClose<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_ended {
            let (before, room) = (buffer.filled().len(), buffer.remaining());
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            if buffer.filled().len() > before || room == 0 {
                return Poll::Ready(Ok(()));
            }
            self.has_ended = true;
        }
        self.poll_end(context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfClose<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called by hyper once it has written all its data.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        let mut state = self.exchanges.state();
        if state.stage == Stage::Flushing {
            state.set(Stage::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    fn connection() -> (DuplexStream, HalfClose<DuplexStream>, Exchanges) {
        let (there, here) = tokio::io::duplex(64);
        let exchanges = Exchanges::new();
        let here = HalfClose::new(here, exchanges.clone());
        (there, here, exchanges)
    }

    /// Whether the connection reports the end at once.
    async fn is_told(here: &mut HalfClose<DuplexStream>) -> bool {
        let mut bytes = [0; 8];
        let read = here.read(&mut bytes);
        let told = tokio::time::timeout(Duration::from_millis(1), read).await;
        told.is_ok_and(|count| count.unwrap() == 0)
    }

    #[tokio::test(start_paused = true)]
    async fn client_end_awaits_a_finite_answer() {
        let (mut there, mut here, exchanges) = connection();
        there.write_all(b"GET").await.unwrap();
        there.shutdown().await.unwrap();
        let mut came = [0; 3];
        here.read_exact(&mut came).await.unwrap();
        let exchange = exchanges.begin();
        drop(exchange.body());
        assert!(!is_told(&mut here).await, "it is awaited");
        exchange.answer(true);
        tokio::time::sleep(2 * ANSWER_MAX).await;
        assert!(!is_told(&mut here).await, "it is being sent");
        drop(exchange);
        assert!(!is_told(&mut here).await, "the last of it is being written");
        let (mut read, mut write) = tokio::io::split(here);
        let read = tokio::spawn(async move { read.read(&mut [0; 8]).await });
        tokio::task::yield_now().await;
        write.flush().await.unwrap();
        assert_eq!(read.await.unwrap().unwrap(), 0, "it is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_when_client_stops_sending() {
        let (there, mut here, exchanges) = connection();
        let exchange = exchanges.begin();
        drop(exchange.body());
        drop(there);
        assert!(!is_told(&mut here).await);
        exchange.answer(false);
        assert!(is_told(&mut here).await);
    }

    #[tokio::test(start_paused = true)]
    async fn call_of_vanished_client_is_abandoned() {
        let (there, mut here, exchanges) = connection();
        let exchange = exchanges.begin();
        drop(exchange.body());
        drop(there);
        let begun = Instant::now();
        assert_eq!(here.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(begun.elapsed().as_secs(), ANSWER_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn truncated_body_is_reported_after_reading() {
        let (there, mut here, exchanges) = connection();
        let exchange = exchanges.begin();
        let body = exchange.body();
        let waker = Waker::noop();
        // The handler waited before the rest of the body arrived, so nothing is known about the rest yet.
        body.wait(waker);
        drop(there);
        assert!(!is_told(&mut here).await);
        body.wait(waker);
        assert!(is_told(&mut here).await);
        // A response that begins meanwhile delays nothing.
        exchange.answer(true);
        assert!(is_told(&mut here).await);
    }
}
