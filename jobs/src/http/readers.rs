//! Turns for the readers of the core, and places for large answers until their clients have received them.
//!
//! Entered through [`Readers::turn`]; then [`Turn::look`], as often as needed, and [`Turn::answer`]. The loop that decides
//! for all jobs also makes the answers, and an answer stays in memory until its client has received it. Invariants: few
//! answers are made at a time, also for clients that have left, and one at most per group; the bytes in memory are bounded;
//! a reader that receives nothing loses its place to another.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::fair_semaphore::{FairSemaphore, Group, Permit, QueueFull, Rules};
use meseta_daemon::server::Connection;
use serde::Serialize;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Reply;
use crate::core::State;
use crate::service::Handle;

/// Responses that are built at the same time.
const MAKING_MAX: usize = 2;
/// Bytes of large answers in memory at a time. A larger answer is in memory alone.
const HELD_BYTES_MAX: usize = 256 << 20;
/// The largest response that needs no place.
const SMALL_BYTES_MAX: usize = 128 << 10;
/// The approximate number of bytes given to the connection at once.
const PIECE_BYTES: usize = 128 << 10;
/// The time for which a reader may receive nothing while others wait for its place.
const STALL_MAX: Duration = Duration::from_secs(1);
/// The time for which an answer with a turn waits for its place. It is short, so that slow readers do not delay the answers
/// of others.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest time for which an answer stays in memory; enough for a slow line.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Waiting requests of one group and of all groups together.
const WAITING_OF_GROUP_MAX: usize = 256;
const WAITING_MAX: usize = 4_096;

/// The turns and places of readers, see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    making: FairSemaphore,
    held: FairSemaphore,
}

/// The turn of a reader while its answer is made.
#[derive(Debug)]
pub(super) struct Turn {
    making: Permit,
    held: FairSemaphore,
    place: Option<Permit>,
    group: Group,
    /// The connection of the answer, which is closed when the place of the answer goes to another.
    connection: Option<Connection>,
}

impl Readers {
    pub(crate) fn new() -> Self {
        let rules = |units_max: usize, stall_timeout: Option<Duration>| Rules {
            units_max,
            leaves_half: true,
            stall_timeout,
            newest_first: false,
            waiting_of_group_max: WAITING_OF_GROUP_MAX,
            waiting_max: WAITING_MAX,
        };
        Self {
            making: FairSemaphore::new(rules(MAKING_MAX, None)),
            held: FairSemaphore::new(rules(HELD_BYTES_MAX, Some(STALL_MAX))),
        }
    }

    /// Waits until a response for this caller may be built.
    pub(super) async fn turn(&self, caller: &Caller) -> Result<Turn, Reply> {
        let group: Group = caller.group().into();
        let making = self.making.take(group.clone(), 1).await.map_err(full)?;
        Ok(Turn {
            making,
            held: self.held.clone(),
            place: None,
            group,
            connection: caller.connection.clone(),
        })
    }

    /// Returns the number of answers being made, and the bytes in memory.
    #[cfg(test)]
    pub(super) fn used(&self) -> (usize, usize) {
        (self.making.used(), self.held.used())
    }
}

impl Turn {
    /// Reads the state between two steps. The turn stays with the read, which does not stop when its reader leaves.
    pub(super) async fn look<T: Send + 'static>(
        self,
        handle: &Handle,
        look: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<(T, Self), Reply> {
        Ok(handle.read(move |state| (look(state), self)).await?)
    }

    /// Runs a long computation outside the runtime, within the turn.
    pub(super) async fn make<T: Send + 'static>(
        self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Self), Reply> {
        let made = background::spawn(move || (make(), self));
        made.await.map_err(|_| {
            let text = "failed to create the answer because of a defect: please report it";
            Reply::error(http::StatusCode::INTERNAL_SERVER_ERROR, text)
        })
    }

    /// Waits for the place of an answer of about this size.
    pub(super) async fn reserve(&mut self, bytes: usize) -> Result<(), Reply> {
        if self.place.is_none() && bytes > SMALL_BYTES_MAX {
            let taking = self.held.take(self.group.clone(), bytes);
            let place = tokio::time::timeout(PLACE_WAIT_MAX, taking).await;
            let place = place.unwrap_or(Err(QueueFull)).map_err(full)?;
            // The reader has no data to take yet.
            place.pause_stall_check();
            self.place = Some(place);
        }
        Ok(())
    }

    /// Serializes a value and answers with it.
    pub(super) async fn answer_with<T: Serialize + Send + 'static>(
        self,
        value: T,
    ) -> Result<Reply, Reply> {
        let made = self.make(move || serde_json::to_vec(&value));
        let (json, turn) = made.await?;
        turn.answer(json.map_err(Reply::defect)?).await
    }

    /// Returns the response, whose place is held until the reader has received it.
    pub(super) async fn answer(mut self, json: Vec<u8>) -> Result<Reply, Reply> {
        let bytes = Bytes::from(json);
        self.reserve(bytes.len()).await?;
        drop(self.making);
        let Some(place) = self.place.filter(|_| bytes.len() > SMALL_BYTES_MAX) else {
            return Ok(Reply::json_body(Body::from(bytes)));
        };
        place.resize(bytes.len());
        place.record_progress();
        let sent = CancellationToken::new();
        let connection = self.connection;
        let (ended, revoked) = (sent.clone(), place.revoked().clone());
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => return,
                () = revoked.cancelled() => {}
                () = tokio::time::sleep(ANSWER_MAX) => {}
            }
            tracing::debug!("abandoned an answer: its reader reads nothing");
            if let Some(connection) = connection {
                connection.close();
            }
        });
        Ok(Reply::json_body(Body::new(HeldBody {
            bytes,
            place,
            _sent: sent.drop_guard(),
        })))
    }
}

fn full(_: QueueFull) -> Reply {
    Reply::later("too many answers are waiting; try again later")
}

/// A response body with its place, sent in pieces so that progress is visible.
struct HeldBody {
    bytes: Bytes,
    place: Permit,
    _sent: DropGuard,
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        if self.place.revoked().is_cancelled() {
            let text = "the answer was abandoned: other readers need its place";
            let error = io::Error::new(io::ErrorKind::TimedOut, text);
            return Poll::Ready(Some(Err(error)));
        }
        self.place.record_progress();
        let most = PIECE_BYTES.min(self.bytes.len());
        let piece = self.bytes.split_to(most);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::time::Instant;

    use super::super::file_reader::tests::caller;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unplaced_answer_delays_others_only_briefly() {
        let readers = Readers::new();
        let slow = readers.held.take("slow".into(), HELD_BYTES_MAX).await;
        let slow = slow.expect("there is room");
        slow.pause_stall_check();
        let mut turn = readers.turn(&caller("ann")).await.expect("a turn");
        let before = Instant::now();
        let refused = turn
            .reserve(2 * SMALL_BYTES_MAX)
            .await
            .expect_err("no room");
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(before.elapsed(), PLACE_WAIT_MAX);
        // A small answer needs no place.
        let answered = turn.answer(vec![b'x'; SMALL_BYTES_MAX]).await;
        assert!(answered.is_ok());
        assert_eq!(readers.used(), (0, HELD_BYTES_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_reader_yields_its_place() {
        let readers = Readers::new();
        let answer = async |principal: &str| {
            let turn = readers.turn(&caller(principal)).await?;
            turn.answer(vec![b'x'; HELD_BYTES_MAX / 2 + 1]).await
        };
        let stalled = answer("ann").await.expect("the first").response();
        let second = answer("bob").await.expect("the second").response();
        let whole = axum::body::to_bytes(second.into_body(), HELD_BYTES_MAX).await;
        assert_eq!(whole.expect("all of it").len(), HELD_BYTES_MAX / 2 + 1);
        let cut = axum::body::to_bytes(stalled.into_body(), HELD_BYTES_MAX).await;
        assert!(cut.is_err(), "a part is not taken for the whole");
        assert_eq!(readers.used(), (0, 0));
    }
}
