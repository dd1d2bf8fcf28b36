//! Large answers that are made whole, because their length goes before them or they are one message, and the first
//! messages of event streams.
//!
//! Entered through [`Wholes::turn`] and [`Wholes::begin`]. Invariants: few are made at a time and not many held,
//! however many ask; callers of one group leave room to others; a reader that stands still makes room for another, and
//! no stream waits for readers of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use meseta_proto::background;
use meseta_proto::fair_room::{Crowded, FairRoom, Hold, Rules};
use meseta_proto::transport::body::Holding;
use meseta_proto::transport::door::Caller;
use meseta_proto::transport::server::Connection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::pieces::{ANSWER_MAX, Chunk, PIECE_BYTES, Streamed};
use crate::core::Snapshot;
use crate::events::STALL_MAX;
use crate::shell::Handle;
use crate::view_cache::Extent;
use crate::visible::Filter;

/// Made at a time: each may take several times what it is in the end.
const MAKING_MAX: usize = 2;
/// Held at a time, until their readers have them.
const HELD_MAX: usize = 16;
/// For so long a reader may take nothing while others wait for its place.
const STILL_MAX: Duration = Duration::from_secs(1);
/// Questions that wait, of one group and of all.
const WAITING_OF_GROUP_MAX: usize = 256;
const WAITING_MAX: usize = 4_096;
/// What the first message of a stream is taken for before one was made.
const FIRST_BEGINNING_BYTES: usize = 64 * 1024;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Wholes {
    making: FairRoom,
    held: FairRoom,
    /// The last first message of a stream, which the next is like.
    beginning_bytes: Arc<AtomicUsize>,
}

impl Default for Wholes {
    fn default() -> Self {
        let rules = |units_max, still: Option<Duration>| Rules {
            units_max,
            // Those that are made end soon.
            leaves_half: still.is_some(),
            still,
            newest_first: false,
            waiting_of_group_max: WAITING_OF_GROUP_MAX,
            waiting_max: WAITING_MAX,
        };
        Self {
            making: FairRoom::new(rules(MAKING_MAX, None)),
            held: FairRoom::new(rules(HELD_MAX, Some(STILL_MAX))),
            beginning_bytes: Arc::new(AtomicUsize::new(FIRST_BEGINNING_BYTES)),
        }
    }
}

/// The leave to make an answer, and a place for it until its reader has it.
#[derive(Debug)]
pub(crate) struct Turn {
    making: Hold,
    held: Hold,
    /// What the answer goes over, which is closed when its place goes to another.
    connection: Option<Connection>,
}

/// What a stream begins with.
#[derive(Debug)]
pub(crate) struct Beginning<T> {
    pub(crate) message: T,
    /// To be kept until it is sent.
    pub(crate) hold: Hold,
}

impl Wholes {
    /// Waits until an answer for this caller may be made.
    pub(crate) async fn turn(&self, caller: &Caller) -> Result<Turn, Crowded> {
        let held = self.held.take(caller.group().into(), 1).await?;
        // Its reader has nothing to take yet.
        held.rest();
        let making = self.making.take(caller.group().into(), 1).await?;
        Ok(Turn {
            making,
            held,
            connection: caller.connection.clone(),
        })
    }

    /// What an event stream begins with: everything, as far as the reader may see it, made into a message or a record
    /// of so many bytes. The stream's filter goes on from there. None if the master shuts down, or there was no room
    /// for too long.
    pub(crate) async fn begin<T: Send + 'static>(
        &self,
        handle: &Handle,
        snapshot: Arc<Snapshot>,
        caller: &Caller,
        filter: &mut Filter,
        make: impl FnOnce(&Snapshot) -> (T, usize) + Send + 'static,
    ) -> Option<Beginning<T>> {
        let expected = self.beginning_bytes.load(Ordering::Relaxed);
        let room = &handle.budgets.beginnings;
        let hold = room.take(caller.group().into(), expected);
        let hold = tokio::time::timeout(STALL_MAX, hold).await.ok()?.ok()?;
        hold.rest();
        let _making = self.making.take(caller.group().into(), 1).await.ok()?;
        let view = handle
            .views
            .view(snapshot, &caller.approver, Extent::Cluster);
        let snapshot = view.await.ok()?;
        filter.begin(&snapshot);
        let made = background::spawn(move || make(&snapshot));
        let (message, bytes) = made.await.ok()?;
        self.beginning_bytes.store(bytes, Ordering::Relaxed);
        hold.resize(bytes);
        hold.moved();
        Some(Beginning { message, hold })
    }
}

impl Turn {
    /// The answer as a body that has a length.
    pub(crate) fn body(self, bytes: Bytes) -> Body {
        drop(self.making);
        if bytes.len() <= PIECE_BYTES {
            return Body::from(bytes);
        }
        let (sender, parts) = mpsc::channel(1);
        let body = Streamed::of_length(parts, bytes.len());
        let (held, connection) = (self.held, self.connection);
        held.moved();
        tokio::spawn(async move {
            let sending = tokio::time::timeout(ANSWER_MAX, send(bytes, sender, &held));
            tokio::select! {
                sent = sending => if !matches!(sent, Ok(true)) {
                    tracing::debug!("a reader left before the end, or was too slow");
                },
                () = held.given_up().cancelled() => close(connection.as_ref()),
            }
        });
        body
    }

    /// The answer is made, and encoded by those who send it: its place goes with it.
    pub(crate) fn kept(self) -> Kept {
        self.held.moved();
        Kept {
            held: Arc::new(self.held),
            connection: self.connection,
        }
    }
}

/// What its reader has of an answer is on its way in the connection's buffers.
fn close(connection: Option<&Connection>) {
    tracing::debug!("a reader that took nothing of its answer made room for another");
    if let Some(connection) = connection {
        connection.close();
    }
}

/// False if the reader has left or stalls.
async fn send(mut bytes: Bytes, parts: mpsc::Sender<Chunk>, held: &Hold) -> bool {
    while !bytes.is_empty() {
        let part = bytes.split_to(PIECE_BYTES.min(bytes.len()));
        let is_last = bytes.is_empty();
        let chunk = Chunk {
            bytes: part,
            is_last,
        };
        let sent = tokio::time::timeout(STALL_MAX, parts.send(chunk)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return false;
        }
        held.moved();
    }
    true
}

/// The place of an answer that is sent in one message; an extension of its response.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    held: Arc<Hold>,
    connection: Option<Connection>,
}

impl Kept {
    /// The body of the response, which has the place until it is sent.
    pub(crate) fn until_sent(self, body: Body) -> Body {
        let sent = CancellationToken::new();
        let guard = sent.clone().drop_guard();
        tokio::spawn(async move {
            tokio::select! {
                () = sent.cancelled() => {}
                () = self.held.given_up().cancelled() => close(self.connection.as_ref()),
                () = tokio::time::sleep(ANSWER_MAX) => close(self.connection.as_ref()),
            }
        });
        Body::new(Holding::new(body, guard))
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use meseta_access::{Acls, Authorizer};
    use meseta_proto::transport::server::Peer;

    use super::*;

    fn caller(principal: &str) -> Caller {
        let authorizer = Authorizer::new(Acls::default(), true);
        Caller {
            approver: authorizer.approver(Some(principal.to_owned())),
            ..Caller::default()
        }
    }

    fn large() -> Bytes {
        Bytes::from(vec![b'x'; 10 * PIECE_BYTES + 1])
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_held_and_who_does_not_take_his_makes_room() {
        let wholes = Wholes::default();
        let (admin, peer) = (caller("admin"), Peer::at("10.0.0.1:9".parse().unwrap()));
        let mallory = Caller {
            connection: Some(peer.connection()),
            ..caller("mallory")
        };
        let mut unread = Vec::new();
        for _ in 0..HELD_MAX / 2 {
            let body = wholes.turn(&mallory).await.unwrap().body(large());
            assert_eq!(body.size_hint().exact(), Some(10 * PIECE_BYTES as u64 + 1));
            unread.push(body);
        }
        let waiting = tokio::time::timeout(STILL_MAX / 2, wholes.turn(&mallory));
        assert!(waiting.await.is_err(), "it leaves half to others");
        assert!(!peer.connection().is_closed(), "nobody needs its places");
        // Whoever reads is not held up by those who do not.
        let begun = tokio::time::Instant::now();
        let body = wholes.turn(&admin).await.unwrap().body(large());
        assert!(body.collect().await.unwrap().to_bytes() == large());
        assert!(begun.elapsed() < Duration::from_millis(1));
        let small = wholes.turn(&admin).await.unwrap();
        let small = small.body(Bytes::from_static(b"{}"));
        assert_eq!(small.size_hint().exact(), Some(2));
        // Its own next goes in the place of the one that has stood still the longest.
        wholes.turn(&mallory).await.unwrap();
        let cut = unread.remove(0).collect().await;
        assert!(cut.is_err(), "a part was taken for the whole");
        assert!(peer.connection().is_closed());
        tokio::time::sleep(STALL_MAX).await;
        assert_eq!((wholes.held.used(), wholes.making.used()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn many_groups_that_take_nothing_make_room_within_a_second() {
        let wholes = Wholes::default();
        let mut unread = Vec::new();
        while wholes.held.used() < HELD_MAX {
            let one = caller(&format!("mallory-{}", unread.len()));
            unread.push(wholes.turn(&one).await.unwrap().body(large()));
        }
        let begun = tokio::time::Instant::now();
        let body = wholes.turn(&caller("admin")).await.unwrap().body(large());
        assert!(begun.elapsed() < 2 * STILL_MAX);
        assert!(body.collect().await.unwrap().to_bytes() == large());
    }

    /// However long others make theirs.
    #[tokio::test(start_paused = true)]
    async fn what_is_being_made_makes_no_room() {
        let wholes = Wholes::default();
        let callers = [caller("a"), caller("b")];
        let mut made = Vec::new();
        for caller in &callers {
            made.push(wholes.turn(caller).await.unwrap());
        }
        tokio::time::sleep(10 * STILL_MAX).await;
        let third = tokio::time::timeout(10 * STILL_MAX, wholes.turn(&callers[0]));
        assert!(third.await.is_err(), "two are made at a time");
        assert!(made.iter().all(|turn| !turn.held.given_up().is_cancelled()));
        let kept = made.remove(0).kept();
        let body = kept.until_sent(Body::from(large()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((wholes.held.used(), wholes.making.used()), (2, 1));
        drop(body);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(wholes.held.used(), 1);
    }
}
