//! Limits for the messages of a gRPC stream: a minimum rate for each, and a shared semaphore for large ones.
//!
//! Invariant: time in which the reader requests nothing does not count against the sender. A large message is read only
//! when there is room for all of it, so that no holder of room waits for more.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use http_body::Body as _;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::body::{BodyError, MinRate, PolledBody, PolledFrame};
use crate::fair_semaphore::{FairSemaphore, Group, Permit, QueueFull};

/// Limits the body of a gRPC call: each message has to arrive in time once it has begun; the first, if `is_awaited`, from
/// now on.
pub fn messages(body: Body, is_awaited: bool) -> Body {
    Messages::new(is_awaited, None).wrap(body)
}

/// Limits the messages of a stream. A message of more than `small_bytes` takes room of the sender's group, from its
/// beginning until the reader requests the next one.
pub fn limited_messages(
    body: Body,
    semaphore: FairSemaphore,
    group: Group,
    small_bytes: u32,
) -> Body {
    let semaphore = LargeMessageLimit {
        semaphore,
        group,
        small_bytes,
        state: State::Free,
    };
    Messages::new(false, Some(semaphore)).wrap(body)
}

/// The prefix of each message of a gRPC body: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The semaphore for large messages, and the permit of the current one.
struct LargeMessageLimit {
    semaphore: FairSemaphore,
    group: Group,
    small_bytes: u32,
    state: State,
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, QueueFull>> + Send>>;

enum State {
    Free,
    /// Waiting for the permit of the message that has begun.
    Acquiring(Acquiring),
    Acquired(Permit, Pin<Box<WaitForCancellationFutureOwned>>),
}

impl LargeMessageLimit {
    /// Requests the permit of a message of this size.
    fn begin(&mut self, bytes: u32) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (semaphore, group) = (self.semaphore.clone(), self.group.clone());
        self.state = State::Acquiring(Box::pin(async move { semaphore.take(group, bytes).await }));
    }

    /// Waits until more data may be read.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let State::Acquiring(acquiring) = &mut self.state {
            let permit = ready!(acquiring.as_mut().poll(context));
            let permit =
                permit.map_err(|queue_full| Status::unavailable(queue_full.to_string()))?;
            let revoked = Box::pin(permit.revoked().clone().cancelled_owned());
            self.state = State::Acquired(permit, revoked);
        }
        if let State::Acquired(_, revoked) = &mut self.state
            && revoked.as_mut().poll(context).is_ready()
        {
            self.state = State::Free;
            let text = "The message made no progress, and others needed its memory";
            return Poll::Ready(Err(Status::unavailable(text)));
        }
        Poll::Ready(Ok(()))
    }
}

struct Messages {
    /// The received part of a message's prefix.
    prefix: Vec<u8>,
    /// The remaining bytes of a message.
    left: u32,
    /// The minimum rate of the awaited message.
    min_rate: Option<MinRate>,
    timer: Option<Pin<Box<Sleep>>>,
    semaphore: Option<LargeMessageLimit>,
}

impl Messages {
    fn new(is_awaited: bool, semaphore: Option<LargeMessageLimit>) -> Self {
        Self {
            prefix: Vec::with_capacity(PREFIX_BYTES),
            left: 0,
            min_rate: is_awaited.then(|| MinRate::new(Instant::now())),
            timer: None,
            semaphore,
        }
    }

    /// Tracks the beginnings and ends of messages.
    fn take(&mut self, mut data: &[u8], now: Instant) {
        let mut length = 0;
        while !data.is_empty() {
            let min_rate = self.min_rate.get_or_insert_with(|| MinRate::new(now));
            if self.left > 0 {
                let count = data
                    .len()
                    .min(usize::try_from(self.left).unwrap_or(usize::MAX));
                min_rate.add(count);
                self.left = self
                    .left
                    .saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
                data = data.get(count..).unwrap_or_default();
                if let Some(LargeMessageLimit {
                    state: State::Acquired(permit, _),
                    ..
                }) = &self.semaphore
                {
                    permit.record_units(count);
                }
            } else {
                let count = data.len().min(PREFIX_BYTES - self.prefix.len());
                let (begin, rest) = data.split_at(count);
                self.prefix.extend_from_slice(begin);
                data = rest;
                if let [_, bytes @ ..] = self.prefix.as_slice()
                    && let Ok(bytes) = bytes.try_into()
                {
                    length = u32::from_be_bytes(bytes);
                    self.left = length;
                    self.prefix.clear();
                }
            }
            if self.left == 0 && self.prefix.is_empty() {
                self.min_rate = None;
            }
        }
        // A message that has arrived completely takes no more room.
        if let Some(semaphore) = &mut self.semaphore
            && length > semaphore.small_bytes
            && self.left > 0
        {
            semaphore.begin(length);
        }
    }

    /// Returns ready when more may be read, and frees the permit of a complete message that was taken.
    fn poll_permit(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let is_between = self.left == 0;
        let Some(semaphore) = &mut self.semaphore else {
            return Poll::Ready(Ok(()));
        };
        if is_between {
            semaphore.state = State::Free;
        }
        semaphore.poll(context)
    }

    fn wrap(mut self, body: Body) -> Body {
        let poll = move |body: Pin<&mut Body>, context: &mut Context<'_>| self.poll(body, context);
        Body::new(PolledBody::new(body, poll))
    }

    fn poll(&mut self, body: Pin<&mut Body>, context: &mut Context<'_>) -> PolledFrame<Body> {
        if let Err(status) = ready!(self.poll_permit(context)) {
            return Poll::Ready(Some(Err(axum::Error::new(status))));
        }
        if let Some(min_rate) = &mut self.min_rate {
            min_rate.resume(Instant::now());
        }
        match body.poll_frame(context) {
            Poll::Ready(frame) => {
                let now = Instant::now();
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    self.take(data, now);
                }
                // Until the reader requests more, the sender may be unable to send.
                if let Some(min_rate) = &mut self.min_rate {
                    min_rate.rest(now);
                }
                Poll::Ready(frame)
            }
            Poll::Pending => {
                let Some(min_rate) = self.min_rate else {
                    self.timer = None;
                    return Poll::Pending;
                };
                let deadline = min_rate.deadline();
                let new = || Box::pin(tokio::time::sleep_until(deadline));
                let timer = self.timer.get_or_insert_with(new);
                if timer.deadline() != deadline {
                    timer.as_mut().reset(deadline);
                }
                timer.as_mut().poll(context).map(|()| {
                    let status = BodyError::Slow.status_of_grpc();
                    Some(Err(axum::Error::new(status)))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;

    use super::super::body::GRACE;
    use super::super::tests::sent;
    use super::*;
    use crate::fair_semaphore::tests::semaphore_of;

    fn message(length: u8) -> Bytes {
        let mut bytes = vec![0, 0, 0, 0, length];
        bytes.resize(PREFIX_BYTES + usize::from(length), b'x');
        bytes.into()
    }

    #[tokio::test(start_paused = true)]
    async fn pause_is_allowed_only_between_messages() {
        let (sender, body) = sent();
        let mut body = messages(body, false);
        let rest = Duration::from_secs(3600);
        // The stream has a message, an empty one, and one in pieces with the beginning of the next: four bytes of its
        // prefix.
        let bytes = [message(3), message(0), message(200), message(1)].concat();
        let cuts = [0, 8, 13, 30, bytes.len() - 2];
        for (index, cut) in cuts.windows(2).enumerate() {
            if index < 3 {
                let resting = tokio::time::timeout(rest, body.frame()).await;
                assert!(resting.is_err(), "between two messages");
            }
            let piece = Bytes::copy_from_slice(&bytes[cut[0]..cut[1]]);
            sender.send(piece).await.unwrap();
            body.frame().await.unwrap().unwrap();
        }
        let begun = Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("KiB a second"), "{error}");
        assert!(begun.elapsed() <= GRACE, "the last prefix had begun");
    }

    #[tokio::test(start_paused = true)]
    async fn unread_data_is_not_senders_fault() {
        let (sender, body) = sent();
        let mut body = messages(body, false);
        let whole = message(200);
        sender.send(whole.slice(..100)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        // The handler reads no more for an hour; meanwhile the sender had no window to send.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let asking = tokio::time::timeout(GRACE / 2, body.frame()).await;
        assert!(asking.is_err(), "the rest is waited for");
        sender.send(whole.slice(100..)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        // The time before and after the pause does count.
        let (sender, body) = sent();
        let mut body = messages(body, false);
        sender.send(whole.slice(..100)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let begun = Instant::now();
        assert!(body.frame().await.unwrap().is_err(), "it never comes");
        assert!(begun.elapsed() <= GRACE + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn only_message_of_call_must_arrive() {
        let (_sender, body) = sent();
        let mut body = messages(body, true);
        assert!(body.frame().await.unwrap().is_err());
        let (sender, body) = sent();
        let mut body = messages(body, true);
        sender.send(message(9)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        let rest = Duration::from_secs(3600);
        let resting = tokio::time::timeout(rest, body.frame()).await;
        assert!(resting.is_err(), "it has come");
    }

    const KIB: usize = 1024;

    /// Returns the prefix of a large message, and some of its bytes.
    fn begun(length: usize, bytes: usize) -> Bytes {
        let mut begun = vec![0];
        begun.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        begun.resize(PREFIX_BYTES + bytes, b'x');
        begun.into()
    }

    /// Returns a body whose first large message has begun.
    async fn begun_body(
        semaphore: &FairSemaphore,
        group: &str,
        length: usize,
    ) -> (mpsc::Sender<Bytes>, Body) {
        let (sender, body) = sent();
        let mut body = limited_messages(body, semaphore.clone(), Group::from(group), 64);
        sender.send(begun(length, 10)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        (sender, body)
    }

    async fn is_waiting(body: &mut Body) -> bool {
        let waiting = tokio::time::timeout(Duration::from_millis(1), body.frame());
        waiting.await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn large_message_keeps_permit_until_read() {
        let semaphore = semaphore_of(1_000 * KIB);
        let (sender, mut body) = begun_body(&semaphore, "a", 100 * KIB).await;
        assert_eq!(semaphore.used(), 0, "nobody asks for more");
        assert!(is_waiting(&mut body).await);
        assert_eq!(semaphore.used(), 100 * KIB, "all of it, from its beginning");
        let rest = Bytes::from(vec![b'x'; 100 * KIB - 10]);
        sender.send(rest).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(semaphore.used(), 100 * KIB, "it is still being read");
        assert!(is_waiting(&mut body).await);
        assert_eq!(semaphore.used(), 0);
        // A small message takes no room.
        sender.send(message(60).slice(..20)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(is_waiting(&mut body).await);
        assert_eq!(semaphore.used(), 0);
        drop(body);
        let (_sender, mut body) = begun_body(&semaphore, "a", 100 * KIB).await;
        assert!(is_waiting(&mut body).await);
        drop(body);
        assert_eq!(semaphore.used(), 0, "whoever leaves gives it back");
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_messages_exclude_no_other_group() {
        let semaphore = semaphore_of(400 * KIB);
        let mut unfinished = Vec::new();
        for _ in 0..14 {
            let (sender, mut body) = begun_body(&semaphore, "false", 100 * KIB).await;
            assert!(is_waiting(&mut body).await);
            unfinished.push((sender, body));
        }
        assert_eq!(semaphore.used(), 200 * KIB, "half of all room");
        // A message larger than all room waits until it is alone; the unfinished messages are revoked for it.
        let (sender, mut body) = begun_body(&semaphore, "honest", 1_000 * KIB).await;
        let begun = Instant::now();
        sender
            .send(Bytes::from(vec![b'x'; 1_000 * KIB - 10]))
            .await
            .unwrap();
        let reading = tokio::spawn(async move {
            body.frame().await.unwrap().unwrap();
            body
        });
        // Reads on the given-up connections return the error.
        let mut failed = 0;
        while !reading.is_finished() {
            for (_, body) in &mut unfinished {
                let frame = tokio::time::timeout(Duration::from_millis(1), body.frame()).await;
                failed += usize::from(matches!(frame, Ok(Some(Err(_)))));
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(4));
        assert!(failed <= 2, "{failed}");
        assert!(semaphore.used() >= 1_000 * KIB);
        drop(reading.await.unwrap());
    }
}
