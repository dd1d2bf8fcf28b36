//! The service task that owns the core; all others use a [`Handle`].
//!
//! [`Service::run`] takes one input at a time, hands writes to the writer thread and the other effects to their
//! components. Effects that wait for a write are released in order, per destination, when the write is durable.
//!
//! ```text
//! executor_streams.rs  the queues of events to executors
//! held_inputs.rs       inputs that wait for the disk, and inputs that do not
//! ```
//!
//! [`Handle`]: crate::handle::Handle

pub(crate) mod executor_streams;
mod held_inputs;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use meseta_daemon::outbox::{Limits, Outbox, QueuedSize};

use crate::budgets::Budgets;
use crate::checkpoint::pending_writes::PendingWrites;
use crate::checkpoint::writer::{Progress, Writer};
use crate::checkpoint::{DiskCondition, Layout};
use crate::clock::Clock;
use crate::containerizer::Containerizer;
use crate::core::{
    AgentCore, ContainerAction, Destination, Effect, ExitReason, Input, Output, Snapshot, State,
};
use crate::gc::Gc;
use crate::handle::{Mailbox, Received};
use crate::link::Links;
use crate::link::outgoing::Dropped;
use executor_streams::ExecutorStreams;
use held_inputs::HeldInputs;

/// Inputs taken between two looks at everything else.
const INPUTS_PER_TURN: usize = 64;

/// Interval between two looks at the timers while inputs wait for the disk.
const BEHIND_TICK: Duration = Duration::from_millis(500);

/// The limit of outputs that wait for the disk. At the limit, as with a full queue of writes, the core takes no new
/// inputs until some of them are durable. The outputs of a single input may exceed the limit, and so may those of
/// pings, kills and timers, which do not wait.
#[derive(Copy, Clone, Debug)]
struct Backlog {
    bytes: usize,
    outputs: usize,
}

/// Outputs that may wait for the disk.
const OUTPUTS_MAX: usize = 32_768;

impl Backlog {
    fn of_bytes(bytes: usize) -> Self {
        Self {
            bytes,
            outputs: OUTPUTS_MAX,
        }
    }

    fn is_reached<D: Ord + Clone, A: QueuedSize>(self, outbox: &Outbox<D, A>) -> bool {
        outbox.queued_bytes() >= self.bytes || outbox.len() >= self.outputs
    }
}

/// Messages between frameworks and their executors that may wait for the disk.
const MESSAGES_MAX: usize = OUTPUTS_MAX / 4;

/// Messages between frameworks and their executors that wait for the disk. They are bounded so that they alone never
/// reach the limit, since their delivery is not guaranteed.
#[derive(Debug)]
struct WaitingMessages {
    bytes: usize,
    count: usize,
    bytes_max: usize,
}

impl WaitingMessages {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes: 0,
            count: 0,
            bytes_max,
        }
    }

    /// Whether an output may wait: a message beyond the limit must be dropped.
    fn takes(&mut self, output: &Output) -> bool {
        if !output.is_message() {
            return true;
        }
        let bytes = self.bytes.saturating_add(output.bytes());
        if bytes > self.bytes_max || self.count >= MESSAGES_MAX {
            return false;
        }
        (self.bytes, self.count) = (bytes, self.count + 1);
        true
    }

    /// Removes an output that no longer waits.
    fn left(&mut self, output: &Output) {
        if output.is_message() {
            self.bytes = self.bytes.saturating_sub(output.bytes());
            self.count = self.count.saturating_sub(1);
        }
    }
}

const UNBOUNDED: Limits = Limits {
    per_destination: usize::MAX,
    total: usize::MAX,
    bytes_per_destination: usize::MAX,
    bytes_total: usize::MAX,
};

#[derive(Debug)]
pub(crate) struct Service {
    core: AgentCore,
    mailbox: Mailbox,
    writer: Writer,
    /// The writes that are not durable.
    pending_writes: PendingWrites,
    backlog: Backlog,
    links: Links,
    containerizer: Containerizer,
    streams: ExecutorStreams,
    gc: Gc,
    layout: Layout,
    /// The outputs that wait for their writes.
    outbox: Outbox<Destination, Output>,
    /// The time since when no new inputs are taken because of the disk, or of the last look at the timers meanwhile.
    behind_since: Option<Instant>,
    /// The condition of the disk last sent to the core.
    disk: DiskCondition,
    clock: Clock,
    /// The messages between frameworks and executors in the outbox.
    messages: WaitingMessages,
    dropped: Dropped,
    /// The last snapshot, shared by readers between two steps. Weak, since otherwise each changed part would exist
    /// twice.
    shared: Weak<Snapshot>,
}

impl Service {
    #[expect(
        clippy::too_many_arguments,
        reason = "its parts, each made elsewhere and named once"
    )]
    pub(crate) fn new(
        core: AgentCore,
        mailbox: Mailbox,
        writer: Writer,
        links: Links,
        containerizer: Containerizer,
        streams: ExecutorStreams,
        gc: Gc,
        layout: Layout,
        dropped: Dropped,
        budgets: Budgets,
        clock: Clock,
    ) -> Self {
        Self {
            core,
            mailbox,
            writer,
            pending_writes: PendingWrites::new(budgets.writes()),
            backlog: Backlog::of_bytes(budgets.outbox()),
            links,
            containerizer,
            streams,
            gc,
            layout,
            outbox: Outbox::new(UNBOUNDED),
            behind_since: None,
            disk: DiskCondition::default(),
            messages: WaitingMessages::new(budgets.messages()),
            dropped,
            clock,
            shared: Weak::new(),
        }
    }

    /// Runs until the core exits.
    pub(crate) async fn run(self) -> ExitReason {
        let beating = tokio::spawn(self.clock.clone().run_heartbeat());
        let reason = self.run_loop().await;
        beating.abort();
        reason
    }

    async fn run_loop(mut self) -> ExitReason {
        let (mut taken, mut heard) = (Vec::new(), Vec::new());
        let mut inputs = HeldInputs::new(self.dropped.clone());
        loop {
            while !self.is_behind()
                && let Some(input) = inputs.next()
            {
                self.step(input);
            }
            if let Some(reason) = self.release() {
                if reason == ExitReason::Unregistered {
                    self.links.ended_by_master().await;
                }
                return reason;
            }
            let is_behind = self.is_behind();
            self.note_behind(is_behind);
            if !is_behind && !inputs.is_empty() {
                continue;
            }
            let deadline = self.clock.instant(self.core.next_deadline());
            let behind_tick = self.behind_since.map(|since| since + BEHIND_TICK);
            let inputs_max = if inputs.is_full() { 0 } else { INPUTS_PER_TURN };
            let takes_reports = self.core.state() != State::Recovering;
            let receiving = self.mailbox.receive(&mut taken, inputs_max, takes_reports);
            tokio::select! {
                received = receiving => match received {
                    Received::Inputs => self.sort(&mut taken, &mut inputs, is_behind),
                    // A report does not wait for the disk: it describes the present moment, and executors that the core
                    // already knows.
                    Received::Report(report) => self.step(Input::Oversubscription(report)),
                    Received::Query(query) => {
                        let snapshot = self.snapshot();
                        let _ = query.send(snapshot);
                    }
                    Received::Closed => return ExitReason::Stopped,
                },
                () = self.links.hear(&mut heard, INPUTS_PER_TURN), if !inputs.is_full_of_link() => {
                    self.sort(&mut heard, &mut inputs, is_behind);
                }
                () = self.writer.progress() => {}
                () = sleep_until(deadline), if !is_behind => self.step(Input::Tick),
                () = sleep_until(behind_tick), if is_behind => self.tick_behind(),
            }
        }
    }

    /// Queues the received inputs behind the waiting ones, or handles urgent inputs at once.
    fn sort(&mut self, received: &mut Vec<Input>, inputs: &mut HeldInputs, is_behind: bool) {
        for input in received.drain(..) {
            if !is_behind {
                inputs.push(input);
            } else if let Some(urgent) = inputs.hold(input) {
                self.step(urgent);
            }
        }
    }

    /// Whether so many writes wait for the disk that no new inputs are taken.
    fn is_behind(&self) -> bool {
        self.pending_writes.is_full() || self.backlog.is_reached(&self.outbox)
    }

    /// Tracks the time without inputs, which is a pause for the core.
    fn note_behind(&mut self, is_behind: bool) {
        match self.behind_since {
            None if is_behind => {
                tracing::error!(
                    "too many writes are pending; input is paused until the disk catches up"
                );
                self.behind_since = Some(Instant::now());
            }
            Some(since) if !is_behind => {
                self.behind_since = None;
                self.clock.stood_still(since.elapsed());
            }
            _ => {}
        }
    }

    /// Handles due timers while inputs wait, and extends the deadlines of peers that the agent does not hear.
    fn tick_behind(&mut self) {
        let since = self.behind_since.replace(Instant::now());
        let lasted = since.map(|since| since.elapsed()).unwrap_or_default();
        self.step(Input::HeldUp { lasted });
        self.step(Input::Tick);
    }

    fn step(&mut self, input: Input) {
        let (now, paused) = self.clock.now();
        if let Some(lasted) = paused {
            let effects = self.core.step(now, Input::Paused { lasted });
            self.take(effects);
        }
        let effects = self.core.step(now, input);
        self.take(effects);
    }

    fn snapshot(&mut self) -> Arc<Snapshot> {
        let shared = self.shared.upgrade();
        let fresh = shared.filter(|shared| shared.sequence == self.core.sequence());
        fresh.unwrap_or_else(|| {
            let snapshot = Arc::new(self.core.snapshot());
            self.shared = Arc::downgrade(&snapshot);
            snapshot
        })
    }

    /// Hands writes to the writer and queues the outputs that follow them.
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist { lsn, write } => {
                    self.pending_writes.add(lsn, write.bytes());
                    self.writer.write(lsn, write);
                }
                Effect::Output { after, to, output } => {
                    if !self.messages.takes(&output) {
                        self.dropped.count();
                        continue;
                    }
                    // The outbox has no limit of its own: see [`Backlog`].
                    if let Err(overflow) = self.outbox.push(to, after.0, output) {
                        tracing::error!(%overflow, "an action was lost");
                    }
                }
            }
        }
    }

    /// Carries out the outputs that need not wait any longer.
    fn release(&mut self) -> Option<ExitReason> {
        let Progress { durable, disk } = self.writer.now();
        if std::mem::replace(&mut self.disk, disk) != disk {
            if disk == DiskCondition::Full {
                // Old sandboxes may fill the disk.
                self.gc.wake();
            }
            self.step(Input::Disk(disk));
        }
        self.pending_writes.durable(durable);
        self.core.durable(durable);
        for (to, output) in self.outbox.durable(durable.0) {
            if let Some(reason) = self.carry_out(&to, output) {
                return Some(reason);
            }
        }
        None
    }

    /// Dispatches an output to its component; the only such place.
    fn carry_out(&mut self, to: &Destination, output: Output) -> Option<ExitReason> {
        self.messages.left(&output);
        match output {
            Output::Link(action) => self.links.carry_out(action),
            Output::Executor(action) => self.streams.carry_out(action),
            Output::Container(action) => {
                let of_containers = matches!(
                    to,
                    Destination::Container(_) | Destination::Overdue(_) | Destination::Revocable
                );
                debug_assert!(of_containers, "{to:?}");
                if let ContainerAction::Launch(plan) = &action {
                    // Before the sandbox is made, so that no walk considers it old.
                    self.gc.keep(self.layout.sandbox(&plan.run));
                }
                self.containerizer.carry_out(action);
            }
            Output::DiscardSandbox { run } => self.gc.discard(self.layout.sandbox(&run)),
            Output::Exit(reason) => return Some(reason),
        }
        None
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::meseta::v1 as protocol;
    use meseta_proto::meseta::v1::agent_frame;

    use super::*;
    use crate::core::{LinkAction, LinkId};

    fn message(bytes: usize) -> Output {
        let message = protocol::ExecutorMessage {
            data: vec![0; bytes],
            ..protocol::ExecutorMessage::default()
        };
        Output::Link(LinkAction::Send {
            link: LinkId(1),
            message: Box::new(agent_frame::Message::ExecutorMessage(message)),
        })
    }

    #[test]
    fn backlog_of_disk_stops_intake() {
        const MIB: usize = 1 << 20;
        let backlog = Backlog::of_bytes(32 * MIB);
        let mut outbox: Outbox<Destination, Output> = Outbox::new(UNBOUNDED);
        for lsn in 1..=32 {
            assert!(!backlog.is_reached(&outbox), "{lsn}");
            outbox
                .push(Destination::Master, lsn, message(MIB))
                .expect("it has no limit of its own");
        }
        assert!(backlog.is_reached(&outbox));
        // The outputs of one input may exceed the limit, and are not lost.
        outbox
            .push(Destination::Master, 33, message(8 * MIB))
            .expect("it has no limit of its own");
        // The disk catches up: durable writes leave room again.
        assert_eq!(outbox.durable(20).len(), 20);
        assert!(!backlog.is_reached(&outbox));
        assert_eq!(outbox.durable(33).len(), 13);
        assert_eq!(outbox.queued_bytes(), 0);
        let few = Backlog {
            outputs: 3,
            ..Backlog::of_bytes(usize::MAX)
        };
        for lsn in 34..37 {
            assert!(!few.is_reached(&outbox));
            outbox
                .push(Destination::Master, lsn, message(0))
                .expect("it has no limit of its own");
        }
        assert!(few.is_reached(&outbox), "many small ones");
    }

    /// Messages of any size, and budgets of any size.
    #[test]
    fn messages_never_stop_intake() {
        const MIB: usize = 1 << 20;
        for budgets in
            [128, 1024, 65_536].map(|mebibytes| Budgets::from_total_bytes(mebibytes * MIB))
        {
            let backlog = Backlog::of_bytes(budgets.outbox());
            let mut messages = WaitingMessages::new(budgets.messages());
            for bytes in [1, MIB] {
                let mut outbox: Outbox<Destination, Output> = Outbox::new(UNBOUNDED);
                let dropped = (0..40_000).filter(|_| {
                    let message = message(bytes);
                    if !messages.takes(&message) {
                        return true;
                    }
                    let pushed = outbox.push(Destination::Master, 1, message);
                    pushed.expect("it has no limit of its own");
                    false
                });
                assert!(dropped.count() > 0);
                assert!(!backlog.is_reached(&outbox) && !outbox.is_empty());
                for (_, message) in outbox.durable(1) {
                    messages.left(&message);
                }
                assert_eq!((messages.bytes, messages.count), (0, 0));
            }
        }
    }
}
