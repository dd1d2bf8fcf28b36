//! A watch on one key, from a revision on.

use std::time::Duration;

use prost::bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tonic::Streaming;

use crate::api::event::EventType;
use crate::api::{WatchRequest, WatchResponse};
use crate::error::Error;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put {
        value: Bytes,
        created: i64,
        revision: i64,
    },
    Deleted {
        revision: i64,
    },
}

/// A stream of changes. It ends with an error, after which the caller begins a new one.
#[derive(Debug)]
pub struct Watch {
    /// The stream ends when its requests do.
    pub(crate) _requests: Sender<WatchRequest>,
    pub(crate) responses: Streaming<WatchResponse>,
    pub(crate) waiting: Vec<Change>,
}

impl Watch {
    /// The next change; waits without a limit.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.waiting.pop() {
                return Ok(change);
            }
            let response = self.responses.message().await?;
            let Some(response) = response else {
                return Err(Error::Unavailable("the watch has ended".to_owned()));
            };
            if response.compact_revision > 0 {
                return Err(Error::Compacted);
            }
            if response.canceled {
                return Err(Error::Unavailable(response.cancel_reason));
            }
            self.waiting = changes(response);
        }
    }

    /// The next change, or `None` if there is no change within this time.
    pub async fn next_within(&mut self, time: Duration) -> Result<Option<Change>, Error> {
        match tokio::time::timeout(time, self.next()).await {
            Ok(change) => change.map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// The changes of a response, the last one first.
fn changes(response: WatchResponse) -> Vec<Change> {
    let events = response.events.into_iter().rev();
    let change = events.filter_map(|event| {
        let kind = event.r#type();
        let kv = event.kv?;
        Some(match kind {
            EventType::Put => Change::Put {
                value: kv.value,
                created: kv.create_revision,
                revision: kv.mod_revision,
            },
            EventType::Delete => Change::Deleted {
                revision: kv.mod_revision,
            },
        })
    });
    change.collect()
}
