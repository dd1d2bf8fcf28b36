//! Request bodies: read whole, up to a limit, from clients that keep sending, and fast enough; inflated if they are
//! compressed ([`Encoding`]).
//!
//! Invariant: no request waits for a body for ever, however its bytes are spread over time. Streams of messages may pause
//! without limit between two messages, but not within one: see [`super::messages`].

mod encoding;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use meseta_proto::body_reads::BodyRead;
use meseta_proto::budget::{Budget, Charge, Exhausted};

pub use encoding::Encoding;

/// The longest pause of a client in the middle of a body.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The time at the start of a body without a minimum rate.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// The minimum rate after that: the largest body then has a quarter of an hour, over the slowest line that carries such
/// bodies.
const BYTES_PER_SECOND_MIN: u64 = 32 * 1024;

/// The minimum rate of a body, or of a message in one. Only the time counts in which the reader waits for more, not the
/// time in which it leaves received bytes unread.
#[derive(Clone, Copy, Debug)]
pub struct MinRate {
    begun: Instant,
    bytes: u64,
    /// The time since when the reader does not wait for more.
    paused_since: Option<Instant>,
}

impl MinRate {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            begun: now,
            bytes: 0,
            paused_since: None,
        }
    }

    /// Notes that data has come and that the reader waits for no more until [`MinRate::resume`].
    pub fn rest(&mut self, now: Instant) {
        self.paused_since.get_or_insert(now);
    }

    /// Records that the reader waits for more.
    pub fn resume(&mut self, now: Instant) {
        if let Some(since) = self.paused_since.take() {
            self.begun += now.saturating_duration_since(since);
        }
    }

    /// Counts the received bytes.
    pub fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns the time by which more must arrive.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let earned = Duration::from_millis(self.bytes.saturating_mul(1000) / BYTES_PER_SECOND_MIN);
        self.begun + GRACE + earned
    }
}

/// The reason why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("The request body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("The request body inflates to more than {max} bytes")]
    InflatesTooLarge { max: usize },
    #[error("Expecting 'Content-Encoding' of gzip, or none")]
    Encoding,
    #[error(
        "The request body is not gzip from its beginning to its end, as its 'Content-Encoding' says"
    )]
    Undecodable,
    #[error("The request body was not complete after {} seconds of silence", IDLE_MAX.as_secs())]
    Idle,
    #[error("The request body came at less than {} KiB a second", BYTES_PER_SECOND_MIN / 1024)]
    Slow,
    #[error("The request body ended early")]
    Truncated,
    #[error("The request body made no progress, and others needed its memory")]
    GivenUp,
    #[error("Not enough memory for this request now: {0}")]
    Exhausted(Exhausted),
    #[error(
        "The request needs more memory than one request may use: {0}; divide it, or raise the \
         daemon's budget of memory"
    )]
    NeverFits(Exhausted),
}

impl From<Exhausted> for BodyError {
    /// Converts the exhaustion of a request's budget: a request beyond its share could never pass.
    fn from(exhausted: Exhausted) -> Self {
        match exhausted {
            Exhausted::Share { .. } => Self::NeverFits(exhausted),
            Exhausted::Total { .. } => Self::Exhausted(exhausted),
        }
    }
}

impl BodyError {
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge { .. } | Self::InflatesTooLarge { .. } | Self::NeverFits(_) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Idle | Self::Slow | Self::GivenUp => StatusCode::REQUEST_TIMEOUT,
            Self::Truncated | Self::Undecodable => StatusCode::BAD_REQUEST,
            Self::Exhausted(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    #[must_use]
    pub fn response(self) -> Response {
        let mut response = (self.status(), self.to_string()).into_response();
        // The client may repeat the request, or send it in the supported encoding.
        let more = match self {
            Self::Exhausted(_) => Some((header::RETRY_AFTER, "1")),
            Self::Encoding => Some((header::ACCEPT_ENCODING, "gzip")),
            _ => None,
        };
        if let Some((name, value)) = more {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }

    /// Returns the status of the gRPC response.
    #[must_use]
    pub fn status_of_grpc(self) -> tonic::Status {
        let text = self.to_string();
        match self {
            Self::TooLarge { .. } | Self::InflatesTooLarge { .. } | Self::NeverFits(_) => {
                tonic::Status::resource_exhausted(text)
            }
            Self::Idle | Self::Slow | Self::GivenUp => tonic::Status::deadline_exceeded(text),
            Self::Truncated | Self::Undecodable => tonic::Status::invalid_argument(text),
            Self::Encoding => tonic::Status::unimplemented(text),
            Self::Exhausted(_) => tonic::Status::unavailable(text),
        }
    }
}

/// Returns the response to a request for which its budget has no room.
#[must_use]
pub fn no_memory(exhausted: Exhausted) -> Response {
    BodyError::from(exhausted).response()
}

/// Charges a body for its received bytes, until it is dropped. While the body arrives, the budget may revoke it for others.
pub fn charged(body: Body, budget: Budget) -> Body {
    let mut charged = Charged {
        budget,
        body_read: None,
        revoked: None,
        charge: None,
    };
    let poll = move |body: Pin<&mut Body>, context: &mut Context<'_>| charged.poll(body, context);
    Body::new(PolledBody::new(body, poll))
}

struct Charged {
    budget: Budget,
    body_read: Option<BodyRead>,
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The charge, once the whole body has arrived.
    charge: Option<Charge>,
}

impl Charged {
    fn count(&mut self, bytes: usize) -> Result<(), BodyError> {
        let body_read = match &mut self.body_read {
            Some(body_read) => body_read,
            none => {
                let body_read = self.budget.read()?;
                let revoked = body_read.revoked().clone().cancelled_owned();
                self.revoked = Some(Box::pin(revoked));
                none.insert(body_read)
            }
        };
        body_read.grow(bytes).map_err(|exhausted| {
            if body_read.revoked().is_cancelled() {
                return BodyError::GivenUp;
            }
            exhausted.into()
        })
    }

    fn poll(&mut self, body: Pin<&mut Body>, context: &mut Context<'_>) -> PolledFrame<Body> {
        let failed = |error: BodyError| {
            let status = error.status_of_grpc();
            Poll::Ready(Some(Err(axum::Error::new(status))))
        };
        if let Some(revoked) = &mut self.revoked
            && revoked.as_mut().poll(context).is_ready()
        {
            return failed(BodyError::GivenUp);
        }
        let frame = std::task::ready!(body.poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref()
                    && let Err(error) = self.count(data.len())
                {
                    return failed(error);
                }
            }
            Some(Err(_)) => {}
            None => {
                self.revoked = None;
                let complete = self.body_read.take().and_then(BodyRead::finish);
                self.charge = self.charge.take().or(complete);
            }
        }
        Poll::Ready(frame)
    }
}

/// The result of polling a body of this type.
pub(crate) type PolledFrame<B> = Poll<Option<Result<Frame<Bytes>, <B as http_body::Body>::Error>>>;

/// A body whose frames come from a function; it keeps its own end and length.
pub(crate) struct PolledBody<B, F> {
    body: B,
    poll: F,
}

impl<B, F> PolledBody<B, F>
where
    F: FnMut(Pin<&mut B>, &mut Context<'_>) -> PolledFrame<B>,
    B: http_body::Body<Data = Bytes>,
{
    pub(crate) fn new(body: B, poll: F) -> Self {
        Self { body, poll }
    }
}

impl<B, F> http_body::Body for PolledBody<B, F>
where
    F: FnMut(Pin<&mut B>, &mut Context<'_>) -> PolledFrame<B> + Unpin,
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame<B> {
        let this = &mut *self;
        (this.poll)(Pin::new(&mut this.body), context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body that keeps a guard until it is sent or dropped.
pub fn guarded<T: Unpin + Send + 'static>(
    body: Body,
    guard: T,
) -> impl http_body::Body<Data = Bytes, Error = axum::Error> {
    PolledBody::new(
        body,
        move |body: Pin<&mut Body>, context: &mut Context<'_>| {
            let _guard = &guard;
            body.poll_frame(context)
        },
    )
}

/// Reads a body, chunked or not, with the encoding of its headers.
///
/// # Errors
///
/// When the body is too large, incomplete or too slow; a body whose announced size is too large fails at once.
pub async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, BodyError> {
    // The budget covers the compressed body and the inflated one.
    let budget = Budget::new(max.saturating_mul(2));
    let read = read_charged(headers, body, max, &budget).await;
    read.map(|(whole, _charge)| whole)
}

/// Reads a body, and charges its received bytes and the bytes that they inflate to.
///
/// # Errors
///
/// As [`read`], when the budget has no room for more, and when the body stands still while others need its room.
pub async fn read_charged(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    budget: &Budget,
) -> Result<(Bytes, Charge), BodyError> {
    let body_read = budget.read()?;
    let whole = tokio::select! {
        biased;
        () = body_read.revoked().cancelled() => Err(BodyError::GivenUp),
        whole = read_into(headers, body, max, |bytes| body_read.grow(bytes)) => whole,
    };
    let whole = whole.map_err(|error| match error {
        BodyError::Exhausted(_) if body_read.revoked().is_cancelled() => BodyError::GivenUp,
        BodyError::Exhausted(exhausted) => exhausted.into(),
        other => other,
    })?;
    let mut charge = body_read.finish().ok_or(BodyError::GivenUp)?;
    charge.shrink_to(whole.len());
    Ok((whole, charge))
}

/// Reads a body, and reserves room for each received part and for the bytes that it inflates to.
///
/// # Errors
///
/// As [`read`], and when there is no room for more.
pub async fn read_into(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    mut charge: impl FnMut(usize) -> Result<(), Exhausted>,
) -> Result<Bytes, BodyError> {
    let encoding = Encoding::from_headers(headers)?;
    let whole = read_as_it_is(body, max, &mut charge).await?;
    match encoding {
        Encoding::Identity => Ok(whole),
        Encoding::Gzip => encoding::inflate(&whole, max, charge).await,
    }
}

async fn read_as_it_is(
    mut body: Body,
    max: usize,
    mut charge: impl FnMut(usize) -> Result<(), Exhausted>,
) -> Result<Bytes, BodyError> {
    let announced = http_body::Body::size_hint(&body).lower();
    if announced > u64::try_from(max).unwrap_or(u64::MAX) {
        return Err(BodyError::TooLarge { max });
    }
    let mut whole = BytesMut::new();
    let mut min_rate = MinRate::new(Instant::now());
    loop {
        let frame = next_frame(&mut body, &min_rate).await?;
        let Some(frame) = frame else {
            return Ok(whole.freeze());
        };
        let frame = frame.map_err(|_| BodyError::Truncated)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len().saturating_add(data.len()) > max {
            return Err(BodyError::TooLarge { max });
        }
        charge(data.len()).map_err(BodyError::Exhausted)?;
        min_rate.add(data.len());
        whole.extend_from_slice(&data);
    }
}

async fn next_frame(
    body: &mut Body,
    min_rate: &MinRate,
) -> Result<Option<Result<Frame<Bytes>, axum::Error>>, BodyError> {
    let silent = Instant::now() + IDLE_MAX;
    let deadline = min_rate.deadline();
    let frame = tokio::time::timeout_at(silent.min(deadline), body.frame()).await;
    frame.map_err(|_| {
        if silent <= deadline {
            BodyError::Idle
        } else {
            BodyError::Slow
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::tests::sent;
    use super::*;

    fn plain() -> HeaderMap {
        HeaderMap::new()
    }

    /// Sends pieces of one size in steps of a second until the receiver is gone.
    async fn trickle(sender: mpsc::Sender<Bytes>, chunk: &'static [u8]) {
        while sender.send(Bytes::from_static(chunk)).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trickling_body_is_given_up() {
        let (sender, body) = sent();
        let sending = tokio::spawn(trickle(sender, b"x"));
        let begun = Instant::now();
        assert_eq!(read(&plain(), body, 1 << 20).await, Err(BodyError::Slow));
        assert!(begun.elapsed() <= GRACE + Duration::from_secs(1));
        sending.await.unwrap();
        let (_sender, silent) = sent();
        assert_eq!(read(&plain(), silent, 1 << 20).await, Err(BodyError::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn progressing_large_body_is_read() {
        const CHUNK: &[u8] = &[b'x'; 40 * 1024];
        const LARGE: usize = 32 << 20;
        let (sender, body) = sent();
        let sending = tokio::spawn(async move {
            for _ in 0..LARGE / CHUNK.len() {
                sender.send(Bytes::from_static(CHUNK)).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        let whole = read(&plain(), body, LARGE).await.unwrap();
        assert_eq!(whole.len() / CHUNK.len(), LARGE / CHUNK.len());
        assert!(begun.elapsed() > Duration::from_secs(600));
        sending.await.unwrap();
        // The same body at less than the minimum rate.
        let (sender, body) = sent();
        let sending = tokio::spawn(trickle(sender, &CHUNK[..20 * 1024]));
        let begun = Instant::now();
        assert_eq!(read(&plain(), body, LARGE).await, Err(BodyError::Slow));
        assert!(begun.elapsed() < 3 * GRACE, "{:?}", begun.elapsed());
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn body_beyond_budget_releases_its_charge() {
        let budget = Budget::new(100);
        let others = budget.share(100, 0).charge(60).unwrap();
        let own = budget.share(100, 0);
        let body = || {
            Body::from_stream(tokio_stream::iter(
                [1, 2].map(|_| Ok::<_, BodyError>("x".repeat(30))),
            ))
        };
        let refused = read_charged(&plain(), body(), 1_000, &own)
            .await
            .unwrap_err();
        assert!(matches!(refused, BodyError::Exhausted(_)));
        assert_eq!(budget.used(), 60);
        let response = refused.response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        // A request that could never pass must not be tried again.
        let tiny = budget.share(50, 0);
        let refused = read_charged(&plain(), body(), 1_000, &tiny)
            .await
            .unwrap_err();
        assert!(matches!(refused, BodyError::NeverFits(_)));
        let response = refused.response();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
        drop(others);
        let (whole, charge) = read_charged(&plain(), body(), 1_000, &own).await.unwrap();
        assert_eq!((whole.len(), charge.bytes(), budget.used()), (60, 60, 60));
    }

    #[tokio::test]
    async fn charged_body_holds_bytes_until_dropped() {
        let budget = Budget::new(100);
        let (sender, body) = sent();
        let mut body = charged(body, budget.share(100, 0));
        for (bytes, used) in [(40, 40), (30, 70)] {
            sender.send(Bytes::from(vec![b'x'; bytes])).await.unwrap();
            body.frame().await.unwrap().unwrap();
            assert_eq!(budget.used(), used);
        }
        sender.send(Bytes::from(vec![b'x'; 40])).await.unwrap();
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("divide it"), "{error}");
        drop(body);
        assert_eq!(budget.used(), 0);
    }
}
