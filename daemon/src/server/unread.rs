//! The rest of a request's body whose answer came before all of it was read.
//!
//! Entered through [`ReadOn`]. HTTP/2 resets the stream of a request whose body is dropped unread, and clients that are
//! still sending then throw the answer away, as curl before 8 does with a redirection or a 401. Invariant: late data is
//! dropped as it arrives, and after [`BYTES_MAX`] or [`TIME_MAX`] the wait for more ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;

/// More than most requests of operators, and no more than a connection may send unrequested.
const BYTES_MAX: usize = 256 * 1024;
/// The longest wait for the rest of such a body, which clients send at once.
const TIME_MAX: Duration = Duration::from_secs(1);

/// A body that, if requested, is read on for a while when it is dropped.
pub(super) struct ReadOn {
    /// The body, until its end or an error.
    body: Option<Incoming>,
    is_asked: bool,
}

impl ReadOn {
    pub(super) fn new(body: Incoming, is_asked: bool) -> Self {
        Self {
            body: Some(body),
            is_asked,
        }
    }
}

impl Body for ReadOn {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(Body::size_hint);
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

impl Drop for ReadOn {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        if let Some(rest) = rest.filter(|_| self.is_asked)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(read_on(rest));
        }
    }
}

async fn read_on<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let all = async {
        let mut left = BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ended = tokio::time::timeout(TIME_MAX, all).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::StreamBody;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_body_is_read_with_limit() {
        let read = Arc::new(AtomicUsize::new(0));
        let frames = |count: usize| {
            let read = read.clone();
            tokio_stream::iter((0..count).map(move |_| {
                read.fetch_add(1, Ordering::Relaxed);
                Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[0; 1024])))
            }))
        };
        let begun = Instant::now();
        for (sent, expected) in [(0, 0), (21, 21), (256, 256), (1_000, 257)] {
            read.store(0, Ordering::Relaxed);
            read_on(StreamBody::new(frames(sent))).await;
            assert_eq!(read.load(Ordering::Relaxed), expected);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let nothing = tokio_stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        read_on(StreamBody::new(nothing)).await;
        assert!(begun.elapsed() < TIME_MAX * 2, "{:?}", begun.elapsed());
    }
}
