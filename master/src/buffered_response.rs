//! Large responses that are buffered, because their length comes first or they are one message, and the first
//! messages of event streams.
//!
//! Entered through [`BufferedResponses::acquire`] and [`BufferedResponses::initial_message`]. Invariants: few
//! responses are made at a time and not many are stored, however many callers request them, and whether or not the
//! callers still wait; callers of one group leave half of the places to others; a stalled reader loses its permit to
//! another, and no stream waits for readers of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::body::guarded;
use meseta_daemon::fair_semaphore::{FairSemaphore, Permit, QueueFull};
use meseta_daemon::server::Connection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::chunked_response::{ANSWER_MAX, CHUNK_BYTES, Chunk, StreamedBody, making, reading};
use crate::core::Snapshot;
use crate::events::STALL_MAX;
use crate::handle::Handle;
use crate::view_cache::ViewScope;
use crate::view_filter::EventFilter;

/// The number of responses made at a time: each may take several times its final size.
const ENCODING_MAX: usize = 2;
/// The number of responses stored at a time, until their readers have them.
const BUFFERED_MAX: usize = 16;
/// The assumed size of a stream's first message before one was made.
const INITIAL_MESSAGE_BYTES_DEFAULT: usize = 64 * 1024;

/// The number of moderately large answers under construction, independent of large ones.
const MODERATE_MAX: usize = 2;

/// The places for buffered responses; see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct BufferedResponses {
    encoding: FairSemaphore,
    moderate: FairSemaphore,
    buffered: FairSemaphore,
    /// The size of the last first message, as an estimate for the next.
    initial_message_bytes: Arc<AtomicUsize>,
}

impl Default for BufferedResponses {
    fn default() -> Self {
        Self {
            encoding: making(ENCODING_MAX),
            moderate: making(MODERATE_MAX),
            buffered: reading(BUFFERED_MAX),
            initial_message_bytes: Arc::new(AtomicUsize::new(INITIAL_MESSAGE_BYTES_DEFAULT)),
        }
    }
}

/// The permit to encode a response and to buffer it until its reader has it.
#[derive(Debug)]
pub(crate) struct ResponsePermit {
    encoding: Permit,
    buffered: Permit,
    /// The connection of the answer, closed when another answer gets its place.
    connection: Option<Connection>,
}

/// The first message of a stream.
#[derive(Debug)]
pub(crate) struct InitialMessage<T> {
    pub(crate) message: T,
    /// The permit to hold until the message is sent.
    pub(crate) hold: Permit,
}

impl BufferedResponses {
    /// The used places of buffered answers, and of answers under construction.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.buffered.used(), self.encoding.used())
    }

    /// Waits for a place to make an answer for this caller.
    pub(crate) async fn acquire(&self, caller: &Caller) -> Result<ResponsePermit, QueueFull> {
        let buffered = self.buffered.take(caller.group().into(), 1).await?;
        // The reader has nothing to read yet.
        buffered.pause_stall_check();
        let encoding = self.encoding.take(caller.group().into(), 1).await?;
        Ok(ResponsePermit {
            encoding,
            buffered,
            connection: caller.connection.clone(),
        })
    }

    /// Waits for a place to make an answer that costs work, but little memory once made: it does not wait for other
    /// readers.
    pub(crate) async fn acquire_moderate(&self, caller: &Caller) -> Result<Permit, QueueFull> {
        self.moderate.take(caller.group().into(), 1).await
    }

    /// Makes the first message of an event stream: the whole state visible to the reader, as a message or record of
    /// the returned size. The stream's filter continues from there. Returns `None` if the master shuts down, or if
    /// there was no room for too long.
    pub(crate) async fn initial_message<T: Send + 'static>(
        &self,
        handle: &Handle,
        snapshot: Arc<Snapshot>,
        caller: &Caller,
        filter: &mut EventFilter,
        make: impl FnOnce(&Snapshot) -> (T, usize) + Send + 'static,
    ) -> Option<InitialMessage<T>> {
        let expected = self.initial_message_bytes.load(Ordering::Relaxed);
        let budget = &handle.budgets.initial_messages;
        let hold = budget.take(caller.group().into(), expected);
        let hold = tokio::time::timeout(STALL_MAX, hold).await.ok()?.ok()?;
        hold.pause_stall_check();
        let encoding = self.encoding.take(caller.group().into(), 1).await.ok()?;
        let view = handle
            .views
            .view(snapshot, &caller.approver, ViewScope::Cluster);
        let snapshot = view.await.ok()?;
        filter.seed(&snapshot);
        // The permits move with the work, which continues when the reader leaves.
        let made = background::spawn(move || {
            let made = make(&snapshot);
            drop(encoding);
            (made, hold)
        });
        let ((message, bytes), hold) = made.await.ok()?;
        self.initial_message_bytes.store(bytes, Ordering::Relaxed);
        hold.resize(bytes);
        hold.record_progress();
        Some(InitialMessage { message, hold })
    }
}

impl ResponsePermit {
    /// The answer as a body with a length.
    pub(crate) fn body(self, bytes: Bytes) -> Body {
        drop(self.encoding);
        if bytes.len() <= CHUNK_BYTES {
            return Body::from(bytes);
        }
        let (sender, parts) = mpsc::channel(1);
        let body = StreamedBody::of_length(parts, bytes.len());
        let (buffered, connection) = (self.buffered, self.connection);
        buffered.record_progress();
        tokio::spawn(async move {
            let sending = tokio::time::timeout(ANSWER_MAX, send(bytes, sender, &buffered));
            tokio::select! {
                sent = sending => if !matches!(sent, Ok(true)) {
                    tracing::debug!("response aborted: the reader left, or was too slow");
                },
                () = buffered.revoked().cancelled() => close(connection.as_ref()),
            }
        });
        body
    }

    /// Converts the permit for a response that its sender encodes.
    pub(crate) fn into_send_permit(self) -> SendPermit {
        self.buffered.record_progress();
        SendPermit {
            buffered: Arc::new(self.buffered),
            connection: self.connection,
        }
    }
}

/// Closes the connection, because its buffers hold the part of the answer that the reader already has.
fn close(connection: Option<&Connection>) {
    tracing::debug!("closed a stalled reader: another reader needed its permit");
    if let Some(connection) = connection {
        connection.close();
    }
}

/// Returns false if the reader has left or stalls.
async fn send(mut bytes: Bytes, parts: mpsc::Sender<Chunk>, buffered: &Permit) -> bool {
    while !bytes.is_empty() {
        let part = bytes.split_to(CHUNK_BYTES.min(bytes.len()));
        let is_last = bytes.is_empty();
        let chunk = Chunk {
            bytes: part,
            is_last,
        };
        let sent = tokio::time::timeout(STALL_MAX, parts.send(chunk)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return false;
        }
        buffered.record_progress();
    }
    true
}

/// The permit of a response that is sent as one message; an extension of that response.
#[derive(Clone, Debug)]
pub(crate) struct SendPermit {
    buffered: Arc<Permit>,
    connection: Option<Connection>,
}

impl SendPermit {
    /// The body of the response, which holds the place until it is sent.
    pub(crate) fn until_sent(self, body: Body) -> Body {
        let sent = CancellationToken::new();
        let guard = sent.clone().drop_guard();
        tokio::spawn(async move {
            tokio::select! {
                () = sent.cancelled() => {}
                () = self.buffered.revoked().cancelled() => close(self.connection.as_ref()),
                () = tokio::time::sleep(ANSWER_MAX) => close(self.connection.as_ref()),
            }
        });
        Body::new(guarded(body, guard))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use meseta_access::{Acls, Authorizer};
    use meseta_daemon::server::Peer;

    use super::*;
    use crate::chunked_response::READER_STALL_MAX;

    fn caller(principal: &str) -> Caller {
        let authorizer = Authorizer::new(Acls::default(), true);
        Caller {
            approver: authorizer.approver(Some(principal.to_owned())),
            ..Caller::default()
        }
    }

    fn large() -> Bytes {
        Bytes::from(vec![b'x'; 10 * CHUNK_BYTES + 1])
    }

    async fn large_body(responses: &BufferedResponses, to: &Caller) -> Body {
        responses.acquire(to).await.unwrap().body(large())
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_reader_releases_its_buffered_response() {
        let buffered_responses = BufferedResponses::default();
        let (admin, peer) = (caller("admin"), Peer::at("10.0.0.1:9".parse().unwrap()));
        let mallory = Caller {
            connection: Some(peer.connection()),
            ..caller("mallory")
        };
        let mut unread = Vec::new();
        for _ in 0..BUFFERED_MAX / 2 {
            let body = large_body(&buffered_responses, &mallory).await;
            assert_eq!(body.size_hint().exact(), Some(10 * CHUNK_BYTES as u64 + 1));
            unread.push(body);
        }
        let waiting =
            tokio::time::timeout(READER_STALL_MAX / 2, buffered_responses.acquire(&mallory));
        assert!(waiting.await.is_err(), "it leaves half to others");
        assert!(!peer.connection().is_closed(), "nobody needs its places");
        // Stalled readers do not delay reading ones.
        let begun = tokio::time::Instant::now();
        let body = large_body(&buffered_responses, &admin).await;
        assert!(body.collect().await.unwrap().to_bytes() == large());
        assert!(begun.elapsed() < Duration::from_millis(1));
        let small = buffered_responses.acquire(&admin).await.unwrap();
        let small = small.body(Bytes::from_static(b"{}"));
        assert_eq!(small.size_hint().exact(), Some(2));
        // The group's next answer replaces the one that has stalled longest.
        buffered_responses.acquire(&mallory).await.unwrap();
        let cut = unread.remove(0).collect().await;
        assert!(cut.is_err(), "a part was taken for the whole");
        assert!(peer.connection().is_closed());
        tokio::time::sleep(STALL_MAX).await;
        assert_eq!(buffered_responses.used(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn many_stalled_groups_release_within_second() {
        let buffered_responses = BufferedResponses::default();
        let mut unread = Vec::new();
        while buffered_responses.buffered.used() < BUFFERED_MAX {
            let one = caller(&format!("mallory-{}", unread.len()));
            unread.push(large_body(&buffered_responses, &one).await);
        }
        let begun = tokio::time::Instant::now();
        let body = large_body(&buffered_responses, &caller("admin")).await;
        assert!(begun.elapsed() < 2 * READER_STALL_MAX);
        assert!(body.collect().await.unwrap().to_bytes() == large());
    }

    /// Responses under construction stay, however long they take.
    #[tokio::test(start_paused = true)]
    async fn responses_being_rendered_are_not_revoked() {
        let buffered_responses = BufferedResponses::default();
        let callers = [caller("a"), caller("b")];
        let mut made = Vec::new();
        for caller in &callers {
            made.push(buffered_responses.acquire(caller).await.unwrap());
        }
        tokio::time::sleep(10 * READER_STALL_MAX).await;
        let third = tokio::time::timeout(
            10 * READER_STALL_MAX,
            buffered_responses.acquire(&callers[0]),
        );
        assert!(third.await.is_err(), "two are made at a time");
        assert!(
            made.iter()
                .all(|permit| !permit.buffered.revoked().is_cancelled())
        );
        let send_permit = made.remove(0).into_send_permit();
        let body = send_permit.until_sent(Body::from(large()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(buffered_responses.used(), (2, 1));
        drop(body);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(buffered_responses.buffered.used(), 1);
    }
}
