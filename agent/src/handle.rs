//! The way in to the core, for everyone but the service that owns it.
//!
//! Invariant: bounded queues of inputs, of queries and of reports of oversubscription; callers wait when they are full, and
//! are told when the agent ends. However full the first is, the others are taken.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::core::{Input, Report, Snapshot};

/// Inputs that may wait for the core.
pub(crate) const INPUTS_MAX: usize = 4096;
/// Snapshots that may be waited for.
const QUERIES_MAX: usize = 256;
/// Reports of oversubscription that may wait: each is of its moment, and comes from one task.
const REPORTS_MAX: usize = 1;

/// The only way to the core.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
    queries: mpsc::Sender<oneshot::Sender<Arc<Snapshot>>>,
    reports: mpsc::Sender<Box<Report>>,
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

    /// Tells the core what an estimator or a controller has said: no executor keeps that from being taken.
    pub(crate) async fn report(&self, report: Report) {
        let _ = self.reports.send(Box::new(report)).await;
    }

    /// For those who tell it more than once.
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

/// What the service is to take next.
#[derive(Debug)]
pub(crate) enum Received {
    /// Inputs, which were put where the caller said.
    Inputs,
    Report(Box<Report>),
    Query(oneshot::Sender<Arc<Snapshot>>),
    /// Nobody is left who could tell anything.
    Closed,
}

impl Mailbox {
    /// Waits for what comes next: up to so many inputs, and reports once the core takes them.
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

/// A handle and what it leads to.
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
