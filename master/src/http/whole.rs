//! Large answers that are made whole, because their length goes before them or they are one message.
//!
//! Entered through [`Wholes::turn`]. Invariant: few are made at a time and not many held, however many ask; who
//! does not take his is given up.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use meseta_access::Approver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

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

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Wholes {
    making: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

impl Default for Wholes {
    fn default() -> Self {
        Self {
            making: Arc::new(Semaphore::new(MAKING_MAX)),
            held: Arc::new(Semaphore::new(HELD_MAX)),
        }
    }
}

/// The leave to make an answer. Whoever only makes a message drops it then.
#[derive(Debug)]
pub(crate) struct Turn {
    making: Option<OwnedSemaphorePermit>,
    held: Option<OwnedSemaphorePermit>,
}

impl Wholes {
    /// Waits until an answer may be made.
    pub(crate) async fn turn(&self) -> Turn {
        // Neither is ever closed.
        let held = self.held.clone().acquire_owned().await.ok();
        let making = self.making.clone().acquire_owned().await.ok();
        Turn { making, held }
    }

    /// What an event stream begins with: everything, as far as the reader may see it, made into a message or a record.
    /// The stream's filter goes on from there. None if the master shuts down.
    pub(crate) async fn begin<T: Send + 'static>(
        &self,
        handle: &Handle,
        snapshot: Arc<Snapshot>,
        approver: &Approver,
        filter: &mut Filter,
        make: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.turn().await;
        let view = handle.views.view(snapshot, approver, Extent::Cluster);
        let snapshot = view.await.ok()?;
        filter.begin(&snapshot);
        let made = tokio::task::spawn_blocking(move || make(&snapshot));
        made.await.ok()
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
        let held = self.held;
        tokio::spawn(async move {
            let sent = tokio::time::timeout(ANSWER_MAX, send(bytes, sender)).await;
            if !matches!(sent, Ok(true)) {
                tracing::debug!("a reader left before the end, or was too slow");
            }
            drop(held);
        });
        body
    }
}

/// False if the reader has left or stalls.
async fn send(mut bytes: Bytes, parts: mpsc::Sender<Chunk>) -> bool {
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
    }
    true
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn few_are_held_and_who_does_not_take_his_makes_room() {
        let wholes = Wholes::default();
        let large = Bytes::from(vec![b'x'; 10 * PIECE_BYTES + 1]);
        let mut bodies = Vec::new();
        for _ in 0..HELD_MAX {
            let body = wholes.turn().await.body(large.clone());
            assert_eq!(body.size_hint().exact(), Some(10 * PIECE_BYTES as u64 + 1));
            bodies.push(body);
        }
        let waiting = tokio::time::timeout(STALL_MAX / 2, wholes.turn());
        assert!(waiting.await.is_err(), "one more than may be held");
        let read = bodies.pop().unwrap().collect().await.unwrap().to_bytes();
        assert!(read == large);
        let small = wholes.turn().await.body(Bytes::from_static(b"{}"));
        assert_eq!(small.size_hint().exact(), Some(2));
        // The others have taken nothing for long.
        tokio::time::sleep(STALL_MAX).await;
        assert_eq!(wholes.held.available_permits(), HELD_MAX);
        assert_eq!(wholes.making.available_permits(), MAKING_MAX);
        let cut = bodies.pop().unwrap().collect().await;
        assert!(cut.is_err(), "a part was taken for the whole");
    }
}
