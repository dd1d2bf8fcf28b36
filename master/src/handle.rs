//! The way in to the shell's task, for everyone else.
//!
//! Invariant: a bounded queue of commands; callers wait when it is full, and are told when the master ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meseta_allocator::Explanation;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::transport::door::Caller;
use tokio::sync::{mpsc, oneshot};

use crate::core::call::{Action, Subscribe};
use crate::core::{Answer, ConnectionId, Input, OperationUuid, Question, Request, Snapshot};
use crate::events::{Budget, EventSink};
use crate::measures::Measures;
use crate::outcomes::Outcome;
use crate::visible;
use crate::watchers::Numbered;

/// Commands that wait for the core; above it callers wait.
pub(crate) const COMMANDS_MAX: usize = 4_096;

/// Frames that wait for one agent; an agent that far behind registers again.
pub(crate) const FRAMES_MAX: usize = 65_536;

/// The way in to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) connections: Arc<AtomicU64>,
    /// What all subscribers together have not read.
    pub(crate) unread: Budget,
}

/// The master is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the master is shutting down")]
pub(crate) struct Closed;

#[derive(Debug)]
pub(crate) enum Command {
    Input(Input),
    Subscribe {
        connection: ConnectionId,
        stream_id: String,
        call: Box<Subscribe>,
        events: EventSink,
        caller: Caller,
    },
    Call {
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
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
        answer: oneshot::Sender<Answer>,
    },
    AgentConnected {
        connection: ConnectionId,
        frames: mpsc::Sender<Box<MasterFrame>>,
        caller: Caller,
    },
    Snapshot(oneshot::Sender<Arc<Snapshot>>),
    Measure(oneshot::Sender<(Arc<Snapshot>, Measures)>),
    Outcome {
        uuid: OperationUuid,
        outcome: oneshot::Sender<Outcome>,
    },
    Principal {
        framework_id: String,
        answer: oneshot::Sender<Option<String>>,
    },
    Explain {
        question: Question,
        answer: oneshot::Sender<Result<Vec<Explanation>, String>>,
    },
    Watch {
        after: Option<u64>,
        watching: oneshot::Sender<Watching>,
    },
}

/// A view on the cluster that goes on.
#[derive(Debug)]
pub(crate) struct Watching {
    /// What has happened since the event that the watcher knows, or everything as it is.
    pub(crate) begin: Result<Vec<Numbered>, Arc<Snapshot>>,
    /// The number of the last event that is part of the beginning.
    pub(crate) last: u64,
    pub(crate) events: mpsc::Receiver<Numbered>,
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
    ) -> Result<(), Closed> {
        self.send(Command::Subscribe {
            connection,
            stream_id,
            call,
            events,
            caller,
        })
        .await
    }

    pub(crate) async fn call(
        &self,
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
    ) -> Result<Answer, Closed> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Call {
            framework_id,
            stream_id,
            action,
            caller,
            answer,
        })
        .await?;
        answered.await.map_err(|_| Closed)
    }

    pub(crate) async fn scheduler_gone(&self, connection: ConnectionId) -> Result<(), Closed> {
        self.send(Command::Input(Input::SchedulerGone { connection }))
            .await
    }

    pub(crate) async fn agent_connected(
        &self,
        connection: ConnectionId,
        frames: mpsc::Sender<Box<MasterFrame>>,
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
        let message = Box::new(message);
        self.send(Command::Input(Input::AgentFrame {
            connection,
            message,
        }))
        .await
    }

    pub(crate) async fn agent_gone(&self, connection: ConnectionId) -> Result<(), Closed> {
        self.send(Command::Input(Input::AgentGone { connection }))
            .await
    }

    /// What happens from now on, or from the event numbered `after` if that is still known.
    pub(crate) async fn watch(&self, after: Option<u64>) -> Result<Watching, Closed> {
        let (watching, answered) = oneshot::channel();
        self.send(Command::Watch { after, watching }).await?;
        answered.await.map_err(|_| Closed)
    }

    /// The whole state, for the master's own use.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Snapshot(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// The state as far as the caller may see it, and what was measured around it.
    pub(crate) async fn measures(
        &self,
        caller: &Caller,
    ) -> Result<(Arc<Snapshot>, Measures), Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Measure(sender)).await?;
        let (snapshot, measures) = receiver.await.map_err(|_| Closed)?;
        let snapshot = visible::to(snapshot, &caller.approver).await?;
        Ok((snapshot, measures))
    }

    /// What came of an operator's operation.
    pub(crate) async fn outcome(&self, uuid: OperationUuid) -> Result<Outcome, Closed> {
        let (outcome, answered) = oneshot::channel();
        self.send(Command::Outcome { uuid, outcome }).await?;
        answered.await.map_err(|_| Closed)
    }

    pub(crate) async fn send(&self, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)
    }
}
