//! The service task that owns the core; all others use a [`Handle`].
//!
//! Commands arrive on one bounded channel, the registry's progress on a watch, deadlines from the core. Effects leave
//! at once: mutations to the registry's writer, visible ones through the outbox to the queues of streams and to
//! waiting callers. Invariant: no queue grows without bound; a slow reader loses its stream and never blocks others.

mod operators;

use std::collections::{HashMap, VecDeque};

use meseta_daemon::outbox::{Outbox, QueuedSize};
use meseta_proto::budget::{Exhausted, waiting_bytes};
use meseta_proto::meseta::v1::{MasterFrame, master_frame};
use meseta_resources::time::Moment;
use prost::Message;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::budgets::Peer;
use crate::core::{Answer, ConnectionId, Effect, Input, Lsn, MasterCore, Output, ReplyId};
use crate::events::{EventSink, Overflow, Sink, slowest};
use crate::handle::{Command, Handle, Inbox, Query, WatchStart};
use crate::measures::Measures;
use crate::operation_outcomes::OperationOutcomes;
use crate::operator_messages::stream;
use crate::registry::{QUEUE_MAX, Registry};
use crate::watchers::Watchers;
use meseta_daemon::clock::Clock;

/// The number of commands processed before offers are made again: some hundred microseconds of work.
const BURST_MAX: usize = 64;

/// The receiver of a visible effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Scheduler(ConnectionId),
    Agent(ConnectionId),
    Reply(ReplyId),
    Outcomes,
    Watchers,
}

impl Destination {
    fn from_output(output: &Output) -> Self {
        match output {
            Output::Event { to, .. } => Self::Scheduler(*to),
            Output::CloseScheduler { connection, .. } => Self::Scheduler(*connection),
            Output::Frame { to, .. } => Self::Agent(*to),
            Output::CloseAgent { connection, .. } => Self::Agent(*connection),
            Output::Reply { reply, .. } => Self::Reply(*reply),
            Output::OperationTaken { .. } | Output::OperationFinished { .. } => Self::Outcomes,
            Output::OperatorEvent(_) => Self::Watchers,
        }
    }
}

impl QueuedSize for Output {
    fn bytes(&self) -> usize {
        /// The approximate size of all other messages.
        const SMALL: usize = 1_024;
        match self {
            Self::Event { event, .. } => waiting_bytes(&**event),
            Self::Frame { frame, .. } => waiting_bytes(&**frame),
            // The agent's budget already covers the operation.
            Self::OperationFinished { status, .. } => waiting_bytes(&**status),
            Self::OperatorEvent(note) => note.bytes(),
            Self::OperationTaken { operation, .. } => waiting_bytes(&**operation),
            Self::CloseScheduler { .. } | Self::CloseAgent { .. } | Self::Reply { .. } => SMALL,
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
    inbox: Inbox,
    /// The output of the step during which the fence closed, in order.
    fenced: VecDeque<Output>,
    outbox: Outbox<Destination, Output>,
    schedulers: HashMap<ConnectionId, EventSink>,
    agents: HashMap<ConnectionId, Sink<MasterFrame>>,
    replies: HashMap<ReplyId, oneshot::Sender<Answer>>,
    watchers: Watchers,
    next_reply: u64,
    /// Whether more commands wait, or the step that ends their burst.
    is_burst: bool,
    measures: Measures,
    outcomes: OperationOutcomes,
    /// Mutations that are not durable yet, with their start times.
    storing: VecDeque<(Lsn, Moment)>,
    /// Connections dropped in the current step; the core learns of them next.
    lost: VecDeque<Input>,
}

impl Service {
    pub(crate) fn new(
        core: MasterCore,
        clock: Clock,
        registry: Box<dyn Registry>,
        persisted: watch::Receiver<Lsn>,
        handle: &Handle,
        inbox: Inbox,
        watchers_max: usize,
    ) -> Self {
        let budgets = &handle.budgets;
        Self {
            core,
            clock,
            registry,
            persisted,
            inbox,
            fenced: VecDeque::new(),
            outbox: Outbox::new(budgets.outbox()),
            schedulers: HashMap::new(),
            agents: HashMap::new(),
            replies: HashMap::new(),
            watchers: Watchers::new(budgets.watched_bytes(), watchers_max),
            next_reply: 0,
            is_burst: false,
            measures: Measures::default(),
            outcomes: OperationOutcomes::default(),
            storing: VecDeque::new(),
            lost: VecDeque::new(),
        }
    }

    /// Runs until `shutdown`. When it returns, all mutations handed to the registry are durable.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut waiting = Vec::with_capacity(BURST_MAX);
        // Queries and commands take turns while both wait.
        let mut has_answered = false;
        loop {
            if !self.inbox.fence.is_open() {
                if !self.wait_until_open(&shutdown).await {
                    break;
                }
                continue;
            }
            // A slow disk delays callers, not this task.
            let takes_commands = self.storing.len() < QUEUE_MAX;
            let is_command_next = takes_commands && has_answered && !self.inbox.commands.is_empty();
            // A timer that is due waits for no query, however many come.
            if self.clock.now().moment >= self.core.next_deadline() {
                self.step(Input::Tick);
            }
            let sleep = tokio::time::sleep_until(self.clock.instant(self.core.next_deadline()));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                changed = self.persisted.changed() => {
                    if changed.is_err() { break }
                    let lsn = *self.persisted.borrow_and_update();
                    self.step(Input::Persisted { lsn });
                }
                query = self.inbox.queries.recv(), if !is_command_next => {
                    let Some(query) = query else { break };
                    self.answer(query);
                    has_answered = true;
                }
                count = self.inbox.commands.recv_many(&mut waiting, BURST_MAX),
                    if takes_commands =>
                {
                    if count == 0 { break }
                    self.burst(&mut waiting);
                    has_answered = false;
                }
                () = sleep => self.step(Input::Tick),
            }
            // The tasks woken on this thread run in between, however many steps follow.
            tokio::task::yield_now().await;
        }
        self.schedulers.clear();
        self.agents.clear();
        self.replies.clear();
        drop(self.watchers);
        let registry = self.registry;
        if tokio::task::spawn_blocking(move || registry.close())
            .await
            .is_err()
        {
            tracing::error!("failed to close the registry");
        }
    }

    /// Waits while this master may not act: answers queries from the known state, stops the core's time, and shows
    /// nothing. Afterwards sends the output held back. Returns whether the fence opened.
    async fn wait_until_open(&mut self, shutdown: &CancellationToken) -> bool {
        let fence = self.inbox.fence.clone();
        while !fence.is_open() {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return false,
                query = self.inbox.queries.recv() => match query {
                    Some(query) => self.answer(query),
                    None => return false,
                },
                () = fence.opened() => {}
            }
        }
        for output in std::mem::take(&mut self.fenced) {
            self.show(output);
        }
        true
    }

    /// Processes waiting commands together, with a single cycle of offers.
    fn burst(&mut self, waiting: &mut Vec<Command>) {
        self.is_burst = waiting.len() > 1;
        for command in waiting.drain(..) {
            self.command(command);
        }
        if std::mem::take(&mut self.is_burst) {
            self.step(Input::Tick);
        }
    }

    /// Drops queued output for a stream that has ended.
    fn drop_queued(&mut self, input: &Input) {
        match input {
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
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Input(input, _charge) => {
                self.drop_queued(&input);
                self.step(input);
            }
            Command::Subscribe(request, events, _charge) => {
                self.schedulers.insert(request.connection, events);
                self.step(Input::Subscribe(request));
            }
            Command::Request {
                request,
                charge: _charge,
                answer,
            } => {
                let reply = self.await_reply(answer);
                self.step(Input::Request { reply, request });
            }
            Command::AgentConnected {
                connection,
                frames,
                caller,
                answer,
            } => {
                self.agents.insert(connection, frames);
                send(answer, self.core.agent_connected(connection, caller));
            }
        }
    }

    fn answer(&mut self, question: Query) {
        match question {
            Query::Excluded(answer) => send(answer, self.core.excluded()),
            Query::Explain(question, answer) => {
                send(answer, self.core.explain(self.clock.now(), &question));
            }
            Query::Cluster(answer) => send(answer, self.core.lasting_cluster()),
            Query::Principal(framework_id, answer) => {
                send(answer, self.core.principal_of(&framework_id));
            }
            Query::Snapshot(answer) => {
                self.measures.shared_snapshots += u64::from(self.core.has_snapshot());
                send(answer, self.core.snapshot());
            }
            Query::Policies(answer) => {
                self.measures.shared_snapshots += u64::from(self.core.has_policies());
                send(answer, self.core.policies());
            }
            Query::Outcome {
                uuid,
                approver,
                answer,
            } => send(answer, self.outcomes.outcome_for(uuid, &approver)),
            Query::Measure(answer) => {
                let measures = self.measure();
                send(answer, (self.core.snapshot(), measures));
            }
            Query::Watch {
                peer,
                after,
                answer,
            } => send(answer, self.watch(peer, after)),
        }
    }

    fn measure(&self) -> Measures {
        Measures {
            commands_waiting: self.inbox.commands.len(),
            watchers: self.watchers.len(),
            roles: self.core.role_gauges(),
            usage: self.core.usage(),
            now: self.clock.now().unix,
            ..self.measures.clone()
        }
    }

    /// Records the duration of the writes up to this one.
    fn stored(&mut self, durable: Lsn, now: Moment) {
        while let Some((lsn, since)) = self.storing.front()
            && *lsn <= durable
        {
            self.measures.stores.add(now.saturating_since(*since));
            self.storing.pop_front();
        }
    }

    fn watch(&mut self, peer: Peer, after: Option<u64>) -> WatchStart {
        self.core.watch();
        let (events, goes_on) = self.watchers.add(peer, after);
        WatchStart {
            snapshot: (!goes_on).then(|| self.core.snapshot()),
            last: self.watchers.last(),
            events,
        }
    }

    fn await_reply(&mut self, answer: oneshot::Sender<Answer>) -> ReplyId {
        let reply = ReplyId(self.next_reply);
        self.next_reply += 1;
        self.replies.insert(reply, answer);
        reply
    }

    /// Processes one input, and the loss of connections that do not keep up: for the core they are gone at once,
    /// whatever their readers still do, so that the core holds nothing for them.
    fn step(&mut self, input: Input) {
        self.step_once(input);
        while let Some(input) = self.lost.pop_front() {
            self.step_once(input);
        }
    }

    fn step_once(&mut self, input: Input) {
        let now = self.clock.now();
        if let Input::Persisted { lsn } = &input {
            self.stored(*lsn, now.moment);
            for (_, output) in self.outbox.durable(lsn.0) {
                self.show(output);
            }
        }
        let runs = self.core.allocation_runs();
        let effects = if self.is_burst {
            self.core.step_in_burst(now, input)
        } else {
            self.core.step(now, input)
        };
        if self.core.allocation_runs() > runs {
            let took = self.clock.now().moment.saturating_since(now.moment);
            self.measures.allocations.add(took);
            self.measures.allocation_times.add(took);
        }
        for effect in effects {
            match effect {
                Effect::Persist { lsn, mutation } => {
                    self.storing.push_back((lsn, now.moment));
                    self.registry.persist(lsn, mutation);
                }
                Effect::Output { after, output } => {
                    let destination = Destination::from_output(&output);
                    if is_message(&output)
                        && !self.outbox.leaves_half(&destination, after.0, &output)
                    {
                        self.core.count_dropped_message();
                        continue;
                    }
                    match self.outbox.pass(destination, after.0, output) {
                        Ok(Some(output)) => self.show(output),
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(?destination, %error, "destination closed: its outbox is full");
                            self.give_up(destination);
                        }
                    }
                }
            }
        }
    }

    fn show(&mut self, output: Output) {
        if !self.fenced.is_empty() || !self.inbox.fence.is_open() {
            self.fenced.push_back(output);
            return;
        }
        match output {
            Output::Event { to, event } => {
                if event.subscribed.is_some()
                    && let Some(sink) = self.schedulers.get(&to)
                {
                    sink.set_long_lived();
                }
                let mut event = Some(event);
                while let Some((slow, reason)) = queued(&self.schedulers, to, &mut event) {
                    if reason == Overflow::Gone {
                        tracing::debug!(connection = %slow, %reason, "subscriber closed");
                    } else {
                        tracing::warn!(connection = %slow, %reason, "subscriber closed");
                    }
                    self.give_up(Destination::Scheduler(slow));
                }
            }
            Output::CloseScheduler { connection, reason } => {
                tracing::debug!(%connection, reason, "scheduler stream ends");
                self.schedulers.remove(&connection);
            }
            Output::Frame { to, frame } if is_message_frame(&frame) => {
                let sink = self.agents.get(&to);
                if sink.is_some_and(|sink| !sink.push_if_half_free(frame)) {
                    self.core.count_dropped_message();
                }
            }
            Output::Frame { to, frame } => {
                if is_registration(&frame)
                    && let Some(sink) = self.agents.get(&to)
                {
                    sink.set_long_lived();
                }
                let mut frame = Some(frame);
                while let Some((slow, reason)) = queued(&self.agents, to, &mut frame) {
                    tracing::warn!(connection = %slow, %reason, "agent does not keep up with its \
                        frames; ending its stream");
                    self.give_up(Destination::Agent(slow));
                }
            }
            Output::CloseAgent { connection, reason } => {
                tracing::debug!(%connection, reason, "agent stream ends");
                self.agents.remove(&connection);
            }
            Output::OperationTaken {
                uuid,
                principal,
                operation,
            } => self.outcomes.begin(uuid, principal, &operation),
            Output::OperationFinished {
                uuid,
                operation,
                status,
            } => self.outcomes.end(uuid, &operation, *status),
            Output::OperatorEvent(note) => self.watchers.push(stream::event(*note)),
            Output::Reply { reply, answer } => {
                if let Some(sender) = self.replies.remove(&reply) {
                    send(sender, answer);
                }
            }
        }
    }

    fn give_up(&mut self, destination: Destination) {
        self.outbox.drop_destination(&destination);
        match destination {
            Destination::Scheduler(connection) => {
                if let Some(sink) = self.schedulers.remove(&connection) {
                    sink.abandon();
                }
                self.lost.push_back(Input::SchedulerGone { connection });
            }
            Destination::Agent(connection) => {
                if let Some(sink) = self.agents.remove(&connection) {
                    sink.abandon();
                }
                self.lost.push_back(Input::AgentGone { connection });
            }
            Destination::Reply(reply) => drop(self.replies.remove(&reply)),
            Destination::Outcomes => self.outcomes = OperationOutcomes::default(),
            // The watchers start with the whole state again.
            Destination::Watchers => self.watchers.begin_anew(),
        }
    }
}

/// Sends an answer to a receiver that may have left.
fn send<T>(answer: oneshot::Sender<T>, value: T) {
    let _unsent = answer.send(value);
}

/// Whether the frame registers an agent.
fn is_registration(frame: &MasterFrame) -> bool {
    matches!(frame.message, Some(master_frame::Message::Registered(_)))
}

/// Whether the output is a scheduler's message to an executor, whose delivery is not guaranteed.
fn is_message(output: &Output) -> bool {
    matches!(output, Output::Frame { frame, .. } if is_message_frame(frame))
}

fn is_message_frame(frame: &MasterFrame) -> bool {
    matches!(
        frame.message,
        Some(master_frame::Message::ExecutorMessage(_))
    )
}

/// Puts a message in its reader's queue, or returns the reader to drop first, and the reason.
fn queued<M: Message>(
    sinks: &HashMap<ConnectionId, Sink<M>>,
    to: ConnectionId,
    message: &mut Option<Box<M>>,
) -> Option<(ConnectionId, Overflow)> {
    let sink = sinks.get(&to)?;
    match sink.charge(message.as_deref()?) {
        Ok(charge) => {
            let pushed = sink.push(charge, message.take()?);
            pushed.err().map(|reason| (to, reason))
        }
        Err(reason @ Overflow::Bytes(Exhausted::Total { bytes, .. })) => {
            Some((slowest(sinks, to, bytes), reason))
        }
        Err(reason) => Some((to, reason)),
    }
}
