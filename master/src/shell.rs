//! The thin shell around the core: one task owns it, everyone else holds a [`Handle`].
//!
//! Commands come in on one bounded channel, the registry's progress on a watch, deadlines from the
//! core. Effects go out at once: mutations to the registry's writer, visible ones through the
//! outbox to the queues of streams and to waiting callers. Invariant: no queue grows without
//! bound; a reader who does not keep up loses its stream, and nobody waits for it.

mod operators;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meseta_allocator::Explanation;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::outbox::Outbox;
use meseta_proto::transport::door::Caller;
use meseta_resources::time::{Moment, Now};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::core::call::{Action, Subscribe};
use crate::core::{
    Answer, ConnectionId, Effect, Input, Lsn, MasterCore, Question, ReplyId, Request, Snapshot,
    Visible,
};
use crate::events::{Budget, EventSink, Overflow};
use crate::operator::stream;
use crate::registry::Registry;
use crate::watchers::{Numbered, Watchers};

/// Commands that wait for the core; above it callers wait.
const COMMANDS_MAX: usize = 4_096;

/// Commands taken in before offers are made again: some hundred microseconds' worth.
const BURST_MAX: usize = 64;

/// Frames that wait for one agent; an agent that far behind registers again.
pub(crate) const FRAMES_MAX: usize = 65_536;

/// The way in to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    connections: Arc<AtomicU64>,
    /// What all subscribers together have not read.
    pub(crate) unread: Budget,
}

/// The master is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the master is shutting down")]
pub(crate) struct Closed;

#[derive(Debug)]
enum Command {
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

    async fn send(&self, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)
    }
}

/// Where a visible effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Scheduler(ConnectionId),
    Agent(ConnectionId),
    Reply(ReplyId),
    Watchers,
}

impl Destination {
    fn of(visible: &Visible) -> Self {
        match visible {
            Visible::Event { to, .. } => Self::Scheduler(*to),
            Visible::CloseScheduler { connection, .. } => Self::Scheduler(*connection),
            Visible::Frame { to, .. } => Self::Agent(*to),
            Visible::CloseAgent { connection, .. } => Self::Agent(*connection),
            Visible::Reply { reply, .. } => Self::Reply(*reply),
            Visible::Note(_) => Self::Watchers,
        }
    }
}

/// The task that owns the core.
#[derive(Debug)]
pub(crate) struct Service {
    core: MasterCore,
    clock: Clock,
    registry: Box<dyn Registry>,
    persisted: watch::Receiver<Lsn>,
    commands: mpsc::Receiver<Command>,
    outbox: Outbox<Destination, Visible>,
    schedulers: HashMap<ConnectionId, EventSink>,
    agents: HashMap<ConnectionId, mpsc::Sender<Box<MasterFrame>>>,
    replies: HashMap<ReplyId, oneshot::Sender<Answer>>,
    watchers: Watchers,
    next_reply: u64,
    /// More commands wait, or the step that ends their burst.
    is_burst: bool,
    /// Connections given up in the current step, which the core is told of next.
    lost: VecDeque<Input>,
}

impl Service {
    pub(crate) fn new(
        core: MasterCore,
        clock: Clock,
        registry: Box<dyn Registry>,
        persisted: watch::Receiver<Lsn>,
    ) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let service = Self {
            core,
            clock,
            registry,
            persisted,
            commands,
            outbox: Outbox::default(),
            schedulers: HashMap::new(),
            agents: HashMap::new(),
            replies: HashMap::new(),
            watchers: Watchers::default(),
            next_reply: 0,
            is_burst: false,
            lost: VecDeque::new(),
        };
        let handle = Handle {
            commands: sender,
            connections: Arc::new(AtomicU64::new(1)),
            unread: Budget::default(),
        };
        (service, handle)
    }

    /// Runs until `shutdown`; what was handed to the registry is durable when it returns.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut waiting = Vec::with_capacity(BURST_MAX);
        loop {
            let deadline = self.core.next_deadline().map(|at| self.clock.instant(at));
            let sleep = tokio::time::sleep_until(deadline.unwrap_or_else(far_future));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                changed = self.persisted.changed() => {
                    if changed.is_err() { break }
                    let lsn = *self.persisted.borrow_and_update();
                    self.step(Input::Persisted { lsn });
                }
                count = self.commands.recv_many(&mut waiting, BURST_MAX) => {
                    if count == 0 { break }
                    self.burst(&mut waiting);
                }
                () = sleep => self.step(Input::Tick),
            }
            // However many steps follow at once, what they wake on this thread runs in between.
            tokio::task::yield_now().await;
        }
        self.schedulers.clear();
        self.agents.clear();
        self.replies.clear();
        self.watchers = Watchers::default();
        let registry = self.registry;
        if tokio::task::spawn_blocking(move || registry.close())
            .await
            .is_err()
        {
            tracing::error!("closing the registry failed");
        }
    }

    /// Commands that waited together share one cycle of offers.
    fn burst(&mut self, waiting: &mut Vec<Command>) {
        self.is_burst = waiting.len() > 1;
        for command in waiting.drain(..) {
            self.command(command);
        }
        if std::mem::take(&mut self.is_burst) {
            self.step(Input::Tick);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Input(input) => {
                match &input {
                    Input::SchedulerGone { connection } => {
                        self.schedulers.remove(connection);
                        self.outbox
                            .drop_destination(&Destination::Scheduler(*connection));
                    }
                    Input::AgentGone { connection } => {
                        self.agents.remove(connection);
                        self.outbox
                            .drop_destination(&Destination::Agent(*connection));
                    }
                    _ => {}
                }
                self.step(input);
            }
            Command::Subscribe {
                connection,
                stream_id,
                call,
                events,
                caller,
            } => {
                self.schedulers.insert(connection, events);
                self.step(Input::Subscribe {
                    connection,
                    stream_id,
                    call,
                    caller,
                });
            }
            Command::Call {
                framework_id,
                stream_id,
                action,
                caller,
                answer,
            } => {
                let reply = self.await_reply(answer);
                self.step(Input::Call {
                    reply,
                    framework_id,
                    stream_id,
                    action,
                    caller,
                });
            }
            Command::Teardown {
                framework_id,
                answer,
            } => {
                let reply = self.await_reply(answer);
                self.step(Input::Teardown {
                    reply,
                    framework_id,
                });
            }
            Command::Operate {
                agent_id,
                operation,
                principal,
                answer,
            } => {
                let reply = self.await_reply(answer);
                self.step(Input::Operate {
                    reply,
                    agent_id,
                    operation,
                    principal,
                });
            }
            Command::Administer { request, answer } => {
                let reply = self.await_reply(answer);
                self.step(Input::Administer { reply, request });
            }
            Command::AgentConnected {
                connection,
                frames,
                caller,
            } => {
                self.core.agent_connected(connection, caller);
                self.agents.insert(connection, frames);
            }
            Command::Explain { question, answer } => {
                // The asker may have left.
                let _unsent = answer.send(self.core.explain(self.clock.now(), &question));
            }
            Command::Watch { after, watching } => self.watch(after, watching),
            Command::Principal {
                framework_id,
                answer,
            } => {
                // The asker may have left.
                let _unsent = answer.send(self.core.principal_of(&framework_id));
            }
            Command::Snapshot(sender) => {
                // The asker may have left.
                let _unsent = sender.send(self.core.snapshot());
            }
        }
    }

    fn watch(&mut self, after: Option<u64>, watching: oneshot::Sender<Watching>) {
        self.core.watch();
        let (events, missed) = self.watchers.add(after);
        let begin = missed.ok_or_else(|| self.core.snapshot());
        let last = self.watchers.last();
        // The asker may have left.
        let _unsent = watching.send(Watching {
            begin,
            last,
            events,
        });
    }

    fn await_reply(&mut self, answer: oneshot::Sender<Answer>) -> ReplyId {
        let reply = ReplyId(self.next_reply);
        self.next_reply += 1;
        self.replies.insert(reply, answer);
        reply
    }

    /// One input, and what it made of connections that do not keep up: those are gone for the core at
    /// once, whatever their readers still do, so that nothing is held for them.
    fn step(&mut self, input: Input) {
        self.step_once(input);
        while let Some(input) = self.lost.pop_front() {
            self.step_once(input);
        }
    }

    fn step_once(&mut self, input: Input) {
        let now = self.clock.now();
        if let Input::Persisted { lsn } = &input {
            for (_, visible) in self.outbox.durable(lsn.0) {
                self.show(visible);
            }
        }
        let effects = if self.is_burst {
            self.core.step_in_burst(now, input)
        } else {
            self.core.step(now, input)
        };
        for effect in effects {
            match effect {
                Effect::Persist { lsn, mutation } => self.registry.persist(lsn, mutation),
                Effect::Visible { after, visible } => {
                    let destination = Destination::of(&visible);
                    match self.outbox.pass(destination, after.0, visible) {
                        Ok(Some(visible)) => self.show(visible),
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(?destination, %error, "destination given up");
                            self.give_up(destination);
                        }
                    }
                }
            }
        }
    }

    fn show(&mut self, visible: Visible) {
        match visible {
            Visible::Event { to, event } => {
                let Some(sink) = self.schedulers.get_mut(&to) else {
                    return;
                };
                if let Err(reason) = sink.push(event) {
                    if reason == Overflow::Gone {
                        tracing::debug!(connection = %to, %reason, "subscriber closed");
                    } else {
                        tracing::warn!(connection = %to, %reason, "subscriber closed");
                    }
                    self.give_up(Destination::Scheduler(to));
                }
            }
            Visible::CloseScheduler { connection, reason } => {
                tracing::debug!(%connection, reason, "scheduler stream ends");
                self.schedulers.remove(&connection);
            }
            Visible::Frame { to, frame } => {
                let Some(frames) = self.agents.get(&to) else {
                    return;
                };
                if frames.try_send(frame).is_err() {
                    tracing::warn!(connection = %to, "agent does not keep up with its frames; its stream ends");
                    self.give_up(Destination::Agent(to));
                }
            }
            Visible::CloseAgent { connection, reason } => {
                tracing::debug!(%connection, reason, "agent stream ends");
                self.agents.remove(&connection);
            }
            Visible::Note(note) => self.watchers.push(&stream::event(*note)),
            Visible::Reply { reply, answer } => {
                if let Some(sender) = self.replies.remove(&reply) {
                    // The caller may have left.
                    let _unsent = sender.send(answer);
                }
            }
        }
    }

    fn give_up(&mut self, destination: Destination) {
        self.outbox.drop_destination(&destination);
        match destination {
            Destination::Scheduler(connection) => {
                self.schedulers.remove(&connection);
                self.lost.push_back(Input::SchedulerGone { connection });
            }
            Destination::Agent(connection) => {
                self.agents.remove(&connection);
                self.lost.push_back(Input::AgentGone { connection });
            }
            Destination::Reply(reply) => drop(self.replies.remove(&reply)),
            // They begin anew.
            Destination::Watchers => self.watchers = Watchers::default(),
        }
    }
}

/// Both clocks. The monotonic one is the runtime's, so that tests may turn it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        let elapsed = self.origin.elapsed();
        Now {
            moment: Moment::ORIGIN + elapsed,
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    fn instant(&self, at: Moment) -> Instant {
        let since = at.saturating_since(Moment::ORIGIN);
        self.origin.checked_add(since).unwrap_or_else(far_future)
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
