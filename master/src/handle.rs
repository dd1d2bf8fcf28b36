//! The handle to the service task that owns the core.
//!
//! Invariant: the queue of commands is bounded; callers wait while it is full, and get an error when the master ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use meseta_access::Approver;
use meseta_allocator::Explanation;
use meseta_daemon::authentication::Caller;
use meseta_etcd::leadership::{Fence, Role, Standing};
use meseta_proto::Invalid;
use meseta_proto::budget::Charge;
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};
use tokio::sync::{mpsc, oneshot};

use crate::budgets::{Budgets, Peer};
use crate::closed::Closed;
use crate::core::{
    Answer, ConnectionId, Excluded, ExplainQuery, Input, OperationUuid, Request, Snapshot,
    SubscribeRequest,
};
use crate::events::{EventSink, Sink};
use crate::measures::Measures;
use crate::metrics::Measured;
use crate::operation_outcomes::OperationOutcome;
use crate::view_cache::{ViewCache, ViewScope};
use crate::watchers::WatchReceiver;

/// The number of commands that wait for the core; above it callers wait.
pub(crate) const COMMANDS_MAX: usize = 4_096;

/// The number of frames that wait for one agent; an agent that far behind registers again.
pub(crate) const FRAMES_MAX: usize = 65_536;

/// The handle to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    queries: mpsc::Sender<Query>,
    /// The role of this master, which decides whether the core accepts changes, and the fence until which it may show
    /// anything.
    pub(crate) standing: Standing,
    pub(crate) connections: Arc<AtomicU64>,
    /// The limits of queued bytes.
    pub(crate) budgets: Arc<Budgets>,
    /// The filtered views of callers that may not see everything.
    pub(crate) views: Arc<ViewCache>,
    /// The id of the cluster, once the core has told it: it does not change.
    cluster: Arc<OnceLock<String>>,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// An input, with the charge of its message until the core has processed it.
    Input(Input, Option<Charge>),
    /// A scheduler's stream with its event queue.
    Subscribe(SubscribeRequest, EventSink, Charge),
    Request {
        request: Request,
        /// The charge of the request until the core has processed it.
        charge: Option<Charge>,
        answer: oneshot::Sender<Answer>,
    },
    AgentConnected {
        connection: ConnectionId,
        frames: Sink<MasterFrame>,
        caller: Caller,
        /// The epoch that the core leads.
        answer: oneshot::Sender<LedEpoch>,
    },
}

/// The receiving end of [`Handle`].
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::Receiver<Command>,
    /// A separate queue, because queries are answered even while nothing else is.
    pub(crate) queries: mpsc::Receiver<Query>,
    /// The fence until which the master may show anything.
    pub(crate) fence: Fence,
}

/// A query of the current state, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum Query {
    Snapshot(oneshot::Sender<Arc<Snapshot>>),
    /// The state without agents and frameworks.
    Policies(oneshot::Sender<Arc<Snapshot>>),
    Measure(oneshot::Sender<(Arc<Snapshot>, Measures)>),
    /// The outcome of an operator's operation, as far as this caller may see it.
    Outcome {
        uuid: OperationUuid,
        approver: Approver,
        answer: oneshot::Sender<OperationOutcome>,
    },
    /// The principal of a framework.
    Principal(String, oneshot::Sender<Option<String>>),
    /// The id of the cluster, if it outlives this master.
    Cluster(oneshot::Sender<Option<String>>),
    /// The agents that the frameworks' offer constraints exclude.
    Excluded(oneshot::Sender<Vec<Excluded>>),
    Explain(
        ExplainQuery,
        oneshot::Sender<Result<Vec<Explanation>, Invalid>>,
    ),
    /// The events from now on, or from the event numbered `after` if it is still stored.
    Watch {
        peer: Peer,
        after: Option<u64>,
        answer: oneshot::Sender<WatchStart>,
    },
}

/// A continuing view of the cluster.
#[derive(Debug)]
pub(crate) struct WatchStart {
    /// The whole state; `None` if the events continue after the last one that the watcher knows.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// The number of the newest event.
    pub(crate) last: u64,
    pub(crate) events: WatchReceiver,
}

impl Handle {
    /// A handle to a core that starts later, or at once.
    pub(crate) fn new(budgets: Budgets, standing: Standing) -> (Self, Inbox) {
        let (commands, incoming) = mpsc::channel(COMMANDS_MAX);
        let (queries, questions) = mpsc::channel(COMMANDS_MAX);
        let handle = Self {
            commands,
            queries,
            standing: standing.clone(),
            connections: Arc::new(AtomicU64::new(1)),
            budgets: Arc::new(budgets),
            views: Arc::default(),
            cluster: Arc::default(),
        };
        let inbox = Inbox {
            commands: incoming,
            queries: questions,
            fence: standing.fence,
        };
        (handle, inbox)
    }

    /// The id of the cluster, where it outlives this master.
    pub(crate) async fn cluster(&self) -> Result<Option<String>, Closed> {
        if let Some(known) = self.cluster.get() {
            return Ok(Some(known.clone()));
        }
        let told = self.query(Query::Cluster).await?;
        Ok(told.map(|told| self.cluster.get_or_init(|| told).clone()))
    }

    /// Returns the number of a new connection.
    pub(crate) fn new_connection(&self) -> ConnectionId {
        ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends an input to the core.
    pub(crate) async fn tell(&self, input: Input) -> Result<(), Closed> {
        self.send(Command::Input(input, None)).await
    }

    /// Sends a request to the core, and waits for its answer. A master that may not act now returns an error, also to
    /// callers that already wait.
    pub(crate) async fn ask(
        &self,
        request: Request,
        charge: Option<Charge>,
    ) -> Result<Answer, Closed> {
        if let Some(reason) = self.standing.suspended() {
            return Ok(Answer::Unavailable(format!(
                "This master takes no changes at the moment: {reason}"
            )));
        }
        let (answer, answered) = oneshot::channel();
        self.send(Command::Request {
            request,
            charge,
            answer,
        })
        .await?;
        let mut role = self.standing.role.clone();
        let until_suspended = role.wait_for(|role| matches!(role, Role::Suspended { .. }));
        tokio::select! {
            biased;
            answer = answered => answer.map_err(|_| Closed),
            Ok(_) = until_suspended => Ok(Answer::Unavailable(
                "This master cannot act at the moment; whether the change is made is not known yet".to_owned(),
            )),
        }
    }

    /// Queries the current state.
    pub(crate) async fn query<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Query,
    ) -> Result<T, Closed> {
        let (answer, answered) = oneshot::channel();
        let sent = self.queries.send(question(answer)).await;
        sent.map_err(|_| Closed)?;
        answered.await.map_err(|_| Closed)
    }

    pub(crate) async fn agent_frame(
        &self,
        connection: ConnectionId,
        message: agent_frame::Message,
    ) -> Result<(), Closed> {
        // An agent whose frame finds no room waits, and reads no other frame: its connection fills up, not the
        // memory.
        let bytes = message.encoded_len().saturating_mul(2);
        let charge = self.budgets.incoming_frames.charge_when_free(bytes).await;
        let message = Box::new(message);
        let input = Input::AgentFrame {
            connection,
            message,
        };
        self.send(Command::Input(input, Some(charge))).await
    }

    /// The data for a caller's metrics.
    pub(crate) async fn measured(&self, caller: &Caller) -> Result<Measured, Closed> {
        let (all, measures) = self.query(Query::Measure).await?;
        let (views, approver) = (&self.views, &caller.approver);
        let seen = views.view(all.clone(), approver, ViewScope::Cluster);
        Ok(Measured {
            seen: seen.await?,
            all,
            measures,
        })
    }

    pub(crate) async fn send(&self, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)
    }
}
