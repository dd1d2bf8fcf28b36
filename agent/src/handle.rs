//! The handle to the core, for everyone except the service that owns the core.
//!
//! Invariant: the queues of inputs, of queries and of oversubscription reports are bounded. Callers wait while a queue
//! is full, and get an error or `None` when the agent ends. A full queue of inputs does not block the other queues.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::core::{Input, Report, Snapshot};

/// Inputs that may wait for the core.
pub(crate) const INPUTS_MAX: usize = 4096;
/// Snapshot requests that may wait for the core.
const QUERIES_MAX: usize = 256;
/// Reports of oversubscription that may wait: each describes one moment, and all come from one task.
const REPORTS_MAX: usize = 1;

/// The only way to the core.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
    queries: mpsc::Sender<oneshot::Sender<Arc<Snapshot>>>,
    reports: mpsc::Sender<Box<Report>>,
}

impl Handle {
    /// Returns the current state of the core; `None` when the agent is ending.
    pub(crate) async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (answer, snapshot) = oneshot::channel();
        self.queries.send(answer).await.ok()?;
        snapshot.await.ok()
    }

    /// Sends an input to the core.
    pub(crate) async fn tell(&self, input: Input) {
        let _ = self.inputs.send(input).await;
    }

    /// Sends a report of an estimator or a controller to the core. Executors' inputs cannot delay it.
    pub(crate) async fn report(&self, report: Report) {
        let _ = self.reports.send(Box::new(report)).await;
    }

    /// The sender of the inputs, for callers that send more than one.
    pub(crate) fn inputs(&self) -> mpsc::Sender<Input> {
        self.inputs.clone()
    }
}

/// The core's ends of the channels.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inputs: mpsc::Receiver<Input>,
    pub(crate) queries: mpsc::Receiver<oneshot::Sender<Arc<Snapshot>>>,
    reports: mpsc::Receiver<Box<Report>>,
}

/// The next message for the service.
#[derive(Debug)]
pub(crate) enum Received {
    /// Inputs, which were put into the caller's buffer.
    Inputs,
    Report(Box<Report>),
    Query(oneshot::Sender<Arc<Snapshot>>),
    /// All senders are gone.
    Closed,
}

impl Mailbox {
    /// Waits for the next message: up to `inputs_max` inputs, and reports only if the core takes them now.
    pub(crate) async fn receive(
        &mut self,
        inputs: &mut Vec<Input>,
        inputs_max: usize,
        takes_reports: bool,
    ) -> Received {
        tokio::select! {
            count = self.inputs.recv_many(inputs, inputs_max), if inputs_max > 0 => match count {
                0 => Received::Closed,
                _ => Received::Inputs,
            },
            Some(report) = self.reports.recv(), if takes_reports => Received::Report(report),
            Some(query) = self.queries.recv() => Received::Query(query),
            else => std::future::pending().await,
        }
    }
}

/// Creates a handle and its mailbox.
pub(crate) fn mailbox() -> (Handle, Mailbox) {
    let (inputs, inputs_end) = mpsc::channel(INPUTS_MAX);
    let (queries, queries_end) = mpsc::channel(QUERIES_MAX);
    let (reports, reports_end) = mpsc::channel(REPORTS_MAX);
    let handle = Handle {
        inputs,
        queries,
        reports,
    };
    let mailbox = Mailbox {
        inputs: inputs_end,
        queries: queries_end,
        reports: reports_end,
    };
    (handle, mailbox)
}
