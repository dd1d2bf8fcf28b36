//! The handle to the service task that owns the core.
//!
//! Invariant: the queue of commands is bounded; callers wait while it is full, and get an error when the master ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meseta_access::Approver;
use meseta_allocator::Explanation;
use meseta_daemon::authentication::Caller;
use meseta_daemon::disk_pulse::DiskSilence;
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

/// The time that a call has which comes while the disk of the registry does not answer: most calls need no write.
const SILENT_CALL_WAIT: Duration = Duration::from_secs(5);

/// The handle to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    queries: mpsc::Sender<Query>,
    /// The role of this master, which decides whether the core accepts changes, and the fence until which it may show
    /// anything.
    pub(crate) standing: Standing,
    /// How long the disk of the registry has not answered.
    pub(crate) disk_silence: DiskSilence,
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
            disk_silence: DiskSilence::default(),
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

    /// Asks the core for something, and waits for its answer. A master that may not act at the moment, or whose registry does not
    /// answer, says so, also to those who wait already.
    pub(crate) async fn ask(
        &self,
        request: Request,
        charge: Option<Charge>,
    ) -> Result<Answer, Closed> {
        if let Some(reason) = self.standing.suspended() {
            return Ok(Answer::Unavailable(format!(
                "This master accepts no changes at the moment: {reason}"
            )));
        }
        if let Some(silence) = self.disk_silence.reported()
            && !matches!(request, Request::Call { .. })
        {
            return Ok(Answer::Unavailable(format!(
                "This master accepts no changes at the moment: the disk of the registry has not \
                 answered for {} seconds",
                silence.as_secs()
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
        let until_silent = async {
            self.disk_silence.until_reported().await;
            tokio::time::sleep(SILENT_CALL_WAIT).await;
        };
        tokio::select! {
            biased;
            answer = answered => answer.map_err(|_| Closed),
            () = until_silent => Ok(Answer::Unavailable(
                "The disk of the registry does not answer; the result of the change is not known \
                 yet".to_owned(),
            )),
            Ok(_) = until_suspended => Ok(Answer::Unavailable(
                "This master cannot act at the moment; the result of the change is not known \
                 yet".to_owned(),
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

#[cfg(test)]
mod tests {
    use meseta_daemon::disk_pulse::SILENT_AFTER;
    use meseta_etcd::leadership::ProvenLeader;
    use tokio::sync::watch;

    use super::*;
    use crate::core::Administration;

    fn handle() -> (Handle, Inbox, watch::Sender<Role>) {
        let (role, told) = watch::channel(Role::Leading);
        let standing = Standing {
            role: told,
            fence: Fence::never(),
            proven: ProvenLeader::any(),
        };
        let (handle, inbox) = Handle::new(Budgets::from_total_bytes(1 << 30), standing);
        (handle, inbox, role)
    }

    fn change() -> Request {
        Request::Administer {
            administration: Box::new(Administration::UpdateWeights(Vec::new())),
            approver: meseta_access::Authorizer::everything().approver(None),
        }
    }

    fn is_unavailable(answer: &Result<Answer, Closed>, words: &str) -> bool {
        matches!(answer, Ok(Answer::Unavailable(text)) if text.contains(words))
    }

    /// A change waited for as long as the disk of the registry did not answer.
    #[tokio::test(start_paused = true)]
    async fn silent_disk_ends_changes_with_error() {
        let (handle, mut inbox, _role) = handle();
        let silence = handle.disk_silence.clone();
        let waiting = tokio::spawn({
            let handle = handle.clone();
            async move { handle.ask(change(), None).await }
        });
        let taken = inbox.commands.recv().await.expect("the command");
        silence.set(SILENT_AFTER);
        let answer = waiting.await.expect("no panic");
        assert!(is_unavailable(&answer, "not known yet"), "{answer:?}");
        // The next change is refused before the core knows of it.
        let answer = handle.ask(change(), None).await;
        assert!(is_unavailable(&answer, "for 30 seconds"), "{answer:?}");
        assert!(inbox.commands.try_recv().is_err());
        drop(taken);
        silence.set(Duration::ZERO);
        let asking = handle.ask(change(), None);
        let answering = async {
            let Some(Command::Request { answer, .. }) = inbox.commands.recv().await else {
                panic!("no request");
            };
            answer.send(Answer::Done).expect("it is waited for");
        };
        let (answer, ()) = tokio::join!(asking, answering);
        assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
    }
}
