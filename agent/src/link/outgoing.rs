//! The queue of frames to the master, limited in bytes and in frames.
//!
//! When the queue is full, it drops messages of executors, because their delivery is not guaranteed. It rejects status
//! updates, which stay in their streams, and informs the core as soon as it has room again. All other frames are small
//! and always queued. Invariant: the core learns that a rejected update can be sent again, unless the connection ends.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use meseta_proto::meseta::v1 as protocol;
use meseta_proto::meseta::v1::agent_frame::Message;
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::core::{Input, LinkId, StreamKey, stream_key};

/// Frames that wait: at a registration, one for each task with an update to send.
const FRAMES_MAX: usize = 65_536;
/// Places reserved for frames that cannot be held back.
const FRAMES_RESERVED: usize = FRAMES_MAX / 4;

/// Messages of executors dropped because the master did not read, counted during the agent's life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dropped(Arc<AtomicU64>);

impl Dropped {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The core's end of a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    frames: mpsc::Sender<(protocol::AgentFrame, usize)>,
    load: Arc<Mutex<Load>>,
    /// Bytes of messages and updates that may wait; a single one may be larger.
    bytes_max: usize,
    dropped: Dropped,
}

/// The connection's end: a stream of frames.
#[derive(Debug)]
pub(super) struct Queue {
    frames: mpsc::Receiver<(protocol::AgentFrame, usize)>,
    load: Arc<Mutex<Load>>,
    /// The level below which the core sends updates again.
    bytes_low: usize,
    link: LinkId,
    inputs: mpsc::Sender<Input>,
}

#[derive(Debug, Default)]
struct Load {
    bytes: usize,
    /// Streams of updates whose head was rejected.
    unsent: BTreeSet<StreamKey>,
}

pub(super) fn outgoing(
    link: LinkId,
    inputs: mpsc::Sender<Input>,
    dropped: Dropped,
    bytes_max: usize,
) -> (Outgoing, Queue) {
    let (sender, frames) = mpsc::channel(FRAMES_MAX);
    let load: Arc<Mutex<Load>> = Arc::default();
    let queue = Queue {
        frames,
        load: load.clone(),
        bytes_low: bytes_max / 2,
        link,
        inputs,
    };
    let outgoing = Outgoing {
        frames: sender,
        load,
        bytes_max,
        dropped,
    };
    (outgoing, queue)
}

fn locked(load: &Mutex<Load>) -> MutexGuard<'_, Load> {
    load.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outgoing {
    /// Queues a frame, or drops or rejects it if allowed. `false` if the connection must be given up.
    pub(super) fn send(&self, message: Message) -> bool {
        let bytes = message.encoded_len();
        {
            let mut load = locked(&self.load);
            let is_full = (load.bytes > 0 && load.bytes.saturating_add(bytes) > self.bytes_max)
                || self.frames.capacity() <= FRAMES_RESERVED;
            match &message {
                Message::ExecutorMessage(_) if is_full => {
                    self.dropped.count();
                    return true;
                }
                Message::StatusUpdate(update) if is_full || !load.unsent.is_empty() => {
                    let key = stream_key(&update.framework_id, &update.status.task_id);
                    load.unsent.extend(key);
                    return true;
                }
                _ => {}
            }
            load.bytes = load.bytes.saturating_add(bytes);
        }
        let frame = protocol::AgentFrame {
            message: Some(message),
        };
        self.frames.try_send((frame, bytes)).is_ok()
    }
}

impl Stream for Queue {
    type Item = protocol::AgentFrame;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<protocol::AgentFrame>> {
        let taken = std::task::ready!(self.frames.poll_recv(context));
        let Some((frame, bytes)) = taken else {
            return Poll::Ready(None);
        };
        let mut load = locked(&self.load);
        load.bytes = load.bytes.saturating_sub(bytes);
        let is_low = load.bytes <= self.bytes_low && self.frames.len() <= FRAMES_MAX / 2;
        if is_low && !load.unsent.is_empty() {
            let unsent = std::mem::take(&mut load.unsent);
            drop(load);
            let (link, inputs) = (self.link, self.inputs.clone());
            tokio::spawn(async move {
                let _ = inputs.send(Input::LinkWritable { link, unsent }).await;
            });
        }
        Poll::Ready(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1 as pb;
    use tokio_stream::StreamExt as _;

    use super::*;

    const MIB: usize = 1024 * 1024;
    const BYTES_MAX: usize = 16 * MIB;

    fn message(bytes: usize) -> Message {
        Message::ExecutorMessage(protocol::ExecutorMessage {
            data: vec![0; bytes],
            ..protocol::ExecutorMessage::default()
        })
    }

    fn update(task: &str, bytes: usize) -> Message {
        let mut update = protocol::StatusUpdate::default();
        update.framework_id.value = "f".to_owned();
        update.status.task_id.value = task.to_owned();
        update.status.data = Some(vec![0; bytes]);
        update.status.state = pb::TaskState::TaskRunning.into();
        Message::StatusUpdate(update)
    }

    fn both() -> (Outgoing, Queue, mpsc::Receiver<Input>, Dropped) {
        let (inputs, told) = mpsc::channel(16);
        let dropped = Dropped::default();
        let (outgoing, queue) = outgoing(LinkId(1), inputs, dropped.clone(), BYTES_MAX);
        (outgoing, queue, told, dropped)
    }

    #[tokio::test]
    async fn unread_messages_to_master_are_dropped() {
        let (outgoing, mut queue, _told, dropped) = both();
        for _ in 0..100 {
            assert!(outgoing.send(message(MIB)));
        }
        assert!(locked(&outgoing.load).bytes <= BYTES_MAX);
        let pong = Message::Pong(protocol::Pong {
            sequence: 1,
            ..protocol::Pong::default()
        });
        assert!(outgoing.send(pong), "small words go");
        let mut read = 0;
        loop {
            let frame = queue.next().await.expect("a frame");
            match frame.message.expect("a message") {
                Message::ExecutorMessage(_) => read += 1,
                _ => break,
            }
        }
        assert_eq!(dropped.get() + read, 100);
        assert_eq!(locked(&outgoing.load).bytes, 0);
    }

    #[tokio::test]
    async fn unsent_updates_are_named_later() {
        let (outgoing, mut queue, mut told, _) = both();
        for number in 0..30 {
            assert!(outgoing.send(update(&format!("t{number:02}"), MIB)));
        }
        assert!(locked(&outgoing.load).bytes <= BYTES_MAX);
        let mut sent = 0;
        let unsent = loop {
            tokio::select! {
                biased;
                Some(Input::LinkWritable { link, unsent }) = told.recv() => {
                    assert_eq!(link, LinkId(1));
                    break unsent;
                }
                Some(_) = queue.next() => sent += 1,
            }
        };
        assert!(locked(&outgoing.load).bytes <= BYTES_MAX / 2);
        // Streams with a queued update are not reported.
        drop(outgoing);
        while queue.next().await.is_some() {
            sent += 1;
        }
        assert_eq!(unsent.len() + sent, 30);
        assert!(unsent.iter().all(|key| key.task.as_str() >= "t15"));
    }

    /// As many streams wait when a framework has acknowledged nothing for long.
    #[tokio::test]
    async fn short_updates_leave_reserved_places() {
        let (outgoing, mut queue, mut told, _) = both();
        const UPDATES: usize = FRAMES_MAX + 5000;
        for number in 0..UPDATES {
            assert!(outgoing.send(update(&format!("t{number:05}"), 100)));
        }
        assert!(locked(&outgoing.load).bytes < BYTES_MAX, "they are short");
        let pong = || Message::Pong(protocol::Pong::default());
        assert!((0..FRAMES_RESERVED).all(|_| outgoing.send(pong())));
        assert!(!outgoing.send(pong()));
        let mut sent = 0;
        while told.is_empty() {
            let frame = queue.next().await.expect("a frame");
            sent += usize::from(matches!(frame.message, Some(Message::StatusUpdate(_))));
            tokio::task::yield_now().await;
        }
        let Some(Input::LinkWritable { unsent, .. }) = told.recv().await else {
            panic!("they are named");
        };
        assert!(queue.frames.len() <= FRAMES_MAX / 2);
        drop(outgoing);
        while let Some(frame) = queue.next().await {
            sent += usize::from(matches!(frame.message, Some(Message::StatusUpdate(_))));
        }
        assert_eq!(unsent.len() + sent, UPDATES);
    }
}
