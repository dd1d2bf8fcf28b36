//! The way in to the core, for everyone but the service that owns it.
//!
//! Invariant: bounded queues of inputs and of queries; callers wait when they are full, and are told when the agent ends.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::core::{Input, Snapshot};

/// Inputs that may wait for the core.
pub(crate) const INPUTS_MAX: usize = 4096;
/// Snapshots that may be waited for.
const QUERIES_MAX: usize = 256;

/// The only way to the core.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
    queries: mpsc::Sender<oneshot::Sender<Arc<Snapshot>>>,
}

impl Handle {
    /// The core as it is now; `None` when the agent is ending.
    pub(crate) async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (answer, snapshot) = oneshot::channel();
        self.queries.send(answer).await.ok()?;
        snapshot.await.ok()
    }

    /// Tells the core something.
    pub(crate) async fn tell(&self, input: Input) {
        let _ = self.inputs.send(input).await;
    }

    /// For those who tell it more than once.
    pub(crate) fn inputs(&self) -> mpsc::Sender<Input> {
        self.inputs.clone()
    }
}

/// The core's ends of the channels.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) queries: mpsc::Receiver<oneshot::Sender<Arc<Snapshot>>>,
}

/// A handle and what it leads to.
pub(crate) fn mailbox() -> (Handle, Mailbox) {
    let (inputs, inputs_end) = mpsc::channel(INPUTS_MAX);
    let (queries, queries_end) = mpsc::channel(QUERIES_MAX);
    let handle = Handle { inputs, queries };
    let mailbox = Mailbox {
        inputs: inputs_end,
        queries: queries_end,
    };
    (handle, mailbox)
}
