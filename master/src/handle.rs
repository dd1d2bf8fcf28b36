//! The way in to the shell's task, for everyone else.
//!
//! Invariant: a bounded queue of commands; callers wait when it is full, and are told when the master ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meseta_access::Approver;
use meseta_allocator::Explanation;
use meseta_daemon::authentication::Caller;
use meseta_proto::budget::Charge;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};
use meseta_proto::mesos::v1::offer::Operation;
use tokio::sync::{mpsc, oneshot};

use crate::budgets::{Budgets, Peer};
use crate::closed::Closed;
use crate::core::call::{Action, Subscribe};
use crate::core::{
    Answer, ConnectionId, Excluded, ExplainQuery, Input, OperationUuid, Request, Snapshot,
};
use crate::events::{EventSink, Sink};
use crate::measures::Measures;
use crate::operation_outcomes::OperationOutcome;
use crate::view_cache::{ViewCache, ViewScope};
use crate::watchers::WatchReceiver;

/// Commands that wait for the core; above it callers wait.
pub(crate) const COMMANDS_MAX: usize = 4_096;

/// Frames that wait for one agent; an agent that far behind registers again.
pub(crate) const FRAMES_MAX: usize = 65_536;

/// The way in to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) connections: Arc<AtomicU64>,
    /// What may wait, in bytes.
    pub(crate) budgets: Arc<Budgets>,
    /// What callers see, if that is not everything.
    pub(crate) views: Arc<ViewCache>,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// With what its message is charged until the core has taken it.
    Input(Input, Option<Charge>),
    Subscribe {
        connection: ConnectionId,
        stream_id: String,
        call: Box<Subscribe>,
        events: EventSink,
        caller: Caller,
        charge: Option<Charge>,
    },
    Call {
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
        /// What the call is charged until the core has taken it.
        charge: Option<Charge>,
        answer: oneshot::Sender<Answer>,
    },
    Teardown {
        framework_id: String,
        answer: oneshot::Sender<Answer>,
    },
    Operate {
        agent_id: String,
        operation: Box<Operation>,
        principal: Option<String>,
        answer: oneshot::Sender<Answer>,
    },
    Administer {
        request: Box<Request>,
        approver: Approver,
        answer: oneshot::Sender<Answer>,
    },
    AgentConnected {
        connection: ConnectionId,
        frames: Sink<MasterFrame>,
        caller: Caller,
    },
    Query(Query),
    Watch {
        peer: Peer,
        after: Option<u64>,
        watching: oneshot::Sender<WatchStart>,
    },
}

/// A question about how things are.
#[derive(Debug)]
pub(crate) enum Query {
    Snapshot(oneshot::Sender<Arc<Snapshot>>),
    /// Without agents and frameworks.
    Policies(oneshot::Sender<Arc<Snapshot>>),
    Measure(oneshot::Sender<(Arc<Snapshot>, Measures)>),
    Outcome {
        uuid: OperationUuid,
        outcome: oneshot::Sender<OperationOutcome>,
    },
    Principal {
        framework_id: String,
        answer: oneshot::Sender<Option<String>>,
    },
    Excluded(oneshot::Sender<Vec<Excluded>>),
    Explain {
        question: ExplainQuery,
        answer: oneshot::Sender<Result<Vec<Explanation>, String>>,
    },
}

/// A view on the cluster that goes on.
#[derive(Debug)]
pub(crate) struct WatchStart {
    /// Everything as it is; `None` if the events go on after the one that the watcher knows.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// The number of the newest event.
    pub(crate) last: u64,
    pub(crate) events: WatchReceiver,
}

impl Handle {
    /// A number for a new connection.
    pub(crate) fn new_connection(&self) -> ConnectionId {
        ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn subscribe(
        &self,
        connection: ConnectionId,
        stream_id: String,
        call: Box<Subscribe>,
        events: EventSink,
        caller: Caller,
        charge: Option<Charge>,
    ) -> Result<(), Closed> {
        self.send(Command::Subscribe {
            connection,
            stream_id,
            call,
            events,
            caller,
            charge,
        })
        .await
    }

    pub(crate) async fn call(
        &self,
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
        charge: Option<Charge>,
    ) -> Result<Answer, Closed> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Call {
            framework_id,
            stream_id,
            action,
            caller,
            charge,
            answer,
        })
        .await?;
        answered.await.map_err(|_| Closed)
    }

    pub(crate) async fn scheduler_gone(&self, connection: ConnectionId) -> Result<(), Closed> {
        self.send(Command::Input(Input::SchedulerGone { connection }, None))
            .await
    }

    /// A scheduler has read so many answers to its questions about tasks.
    pub(crate) async fn answers_read(
        &self,
        connection: ConnectionId,
        answers: usize,
    ) -> Result<(), Closed> {
        let read = Input::AnswersRead {
            connection,
            answers,
        };
        self.send(Command::Input(read, None)).await
    }

    pub(crate) async fn agent_connected(
        &self,
        connection: ConnectionId,
        frames: Sink<MasterFrame>,
        caller: Caller,
    ) -> Result<(), Closed> {
        self.send(Command::AgentConnected {
            connection,
            frames,
            caller,
        })
        .await
    }

    pub(crate) async fn agent_frame(
        &self,
        connection: ConnectionId,
        message: agent_frame::Message,
    ) -> Result<(), Closed> {
        // An agent whose frame has no room waits, and reads no other: its connection fills up, not the memory.
        let bytes = message.encoded_len().saturating_mul(2);
        let charge = self.budgets.incoming_frames.charge_when_free(bytes).await;
        let message = Box::new(message);
        let input = Input::AgentFrame {
            connection,
            message,
        };
        self.send(Command::Input(input, Some(charge))).await
    }

    pub(crate) async fn agent_gone(&self, connection: ConnectionId) -> Result<(), Closed> {
        self.send(Command::Input(Input::AgentGone { connection }, None))
            .await
    }

    /// Only agents on these hosts are offered from now on.
    pub(crate) async fn whitelist(&self, hosts: Arc<BTreeSet<Arc<str>>>) -> Result<(), Closed> {
        let input = Input::Whitelist { hosts: Some(hosts) };
        self.send(Command::Input(input, None)).await
    }

    /// Which agents the frameworks' offer constraints rule out.
    pub(crate) async fn excluded(&self) -> Result<Vec<Excluded>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Query(Query::Excluded(sender))).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// What happens from now on, or from the event numbered `after` if that is still known.
    pub(crate) async fn watch(&self, peer: Peer, after: Option<u64>) -> Result<WatchStart, Closed> {
        let (watching, answered) = oneshot::channel();
        let watch = Command::Watch {
            peer,
            after,
            watching,
        };
        self.send(watch).await?;
        answered.await.map_err(|_| Closed)
    }

    /// The whole state, for the master's own use.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Query(Query::Snapshot(sender))).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// Quotas, weights, maintenance and the master itself, for the master's own use.
    pub(crate) async fn policies(&self) -> Result<Arc<Snapshot>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Query(Query::Policies(sender))).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// The state as far as the caller may see it, and what was measured around it.
    pub(crate) async fn measures(
        &self,
        caller: &Caller,
    ) -> Result<(Arc<Snapshot>, Measures), Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Query(Query::Measure(sender))).await?;
        let (snapshot, measures) = receiver.await.map_err(|_| Closed)?;
        let views = &self.views;
        let snapshot = views.view(snapshot, &caller.approver, ViewScope::Cluster);
        Ok((snapshot.await?, measures))
    }

    /// What came of an operator's operation.
    pub(crate) async fn outcome(&self, uuid: OperationUuid) -> Result<OperationOutcome, Closed> {
        let (outcome, answered) = oneshot::channel();
        self.send(Command::Query(Query::Outcome { uuid, outcome }))
            .await?;
        answered.await.map_err(|_| Closed)
    }

    pub(crate) async fn send(&self, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)
    }
}
