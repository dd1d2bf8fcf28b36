//! One step: an input is applied, timers fire, offers are made; and how effects are said.
//!
//! Entered through [`MasterCore::step`]. Invariant: an effect is marked with what has to be durable before it leaves.

use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame, master_frame};
use meseta_proto::mesos::v1::scheduler::{Event, event};
use meseta_resources::time::{Moment, Now};
use meseta_resources::{AgentId, FrameworkId};

use super::MasterCore;
use super::effect::{Answer, Effect, Output};
use super::ids::{ConnectionId, Lsn, ReplyId};
use super::input::Input;
use super::offers::allocator_adapter::AllocatorError;
use super::pending::Pending;
use super::state::persisted::Mutation;
use super::state::snapshot::CachedSnapshots;

impl MasterCore {
    /// When to step next if nothing happens before; what comes much later comes after a pause.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.timers.due()
    }

    /// Counts the steps; a snapshot of the same number is the same.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The epoch of the registry that this master leads with.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes one input, and all timers that are due, and tells what to do.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.answer_questions();
        self.fire_timers();
        self.check_drains();
        self.allocate_if_due();
        self.finish_step()
    }

    /// The same for one of several inputs that wait: what one cycle of offers can do for all of them is
    /// left to the [`MasterCore::step`] that has to follow.
    pub fn step_in_burst(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.check_drains();
        self.finish_step()
    }

    /// Returns the effects of the step, and records whether readers may see a change.
    fn finish_step(&mut self) -> Vec<Effect> {
        if std::mem::take(&mut self.dirty) || !self.effects.iter().all(is_beat) {
            self.changed = self.sequence;
        }
        self.expect_next_step();
        std::mem::take(&mut self.effects)
    }

    pub(super) fn expect_next_step(&mut self) {
        let at_once = self.allocate_due || !self.pending_reconciles.is_empty();
        self.timers.expect(self.now.moment, at_once);
    }

    fn apply_input(&mut self, now: Now, input: Input) {
        self.now = now;
        if let Some(pause) = self.timers.step(now.moment) {
            tracing::warn!(
                secs = pause.as_secs_f64(),
                "this master did not run; the deadlines of agents and frameworks are put off"
            );
        }
        self.sequence += 1;
        self.cached_snapshots = CachedSnapshots::default();
        self.dirty |= !is_routine(&input);
        self.fire_timers();
        self.dispatch(input);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Persisted { lsn } => self.persisted(lsn),
            Input::Subscribe {
                connection,
                stream_id,
                call,
                caller,
            } => self.subscribe(connection, stream_id, *call, &caller),
            Input::Call {
                reply,
                framework_id,
                stream_id,
                action,
                caller,
            } => {
                let answer = self.call(&framework_id, stream_id.as_deref(), *action, &caller);
                self.reply(reply, answer);
            }
            Input::SchedulerGone { connection } => self.scheduler_gone(connection),
            Input::AnswersRead {
                connection,
                answers,
            } => self.answers_read(connection, answers),
            Input::AgentFrame {
                connection,
                message,
            } => self.agent_frame(connection, *message),
            Input::AgentGone { connection } => {
                self.agent_callers.remove(&connection);
                self.agent_gone(connection);
            }
            Input::Administer {
                reply,
                request,
                approver,
            } => self.administer(reply, *request, &approver),
            Input::Whitelist { hosts } => self.update_whitelist(hosts.as_deref()),
            Input::Teardown {
                reply,
                framework_id,
            } => {
                let answer = self.operator_teardown(&framework_id);
                self.reply(reply, answer);
            }
            Input::Operate {
                reply,
                agent_id,
                operation,
                principal,
            } => {
                let answer = self.operator_operation(&agent_id, &operation, principal.as_deref());
                self.reply(reply, answer);
            }
        }
    }

    /// The principal that a framework goes by, if there is such a framework and it has one.
    #[must_use]
    pub fn principal_of(&self, framework: &str) -> Option<String> {
        let framework = self.frameworks.get(framework)?;
        framework.terms.info.principal.clone()
    }

    /// Remembers who opened a connection of an agent, until that is gone.
    pub fn agent_connected(&mut self, connection: ConnectionId, caller: Caller) {
        self.agent_callers.insert(connection, caller);
    }

    pub(super) fn persist(&mut self, mutation: Mutation, then: Pending) {
        let lsn = Lsn(self.last_lsn.0 + 1);
        self.last_lsn = lsn;
        self.pending.push_back((lsn, then));
        self.effects.push(Effect::Persist { lsn, mutation });
    }

    fn persisted(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        while let Some((first, _)) = self.pending.front() {
            if *first > lsn {
                break;
            }
            if let Some((_, then)) = self.pending.pop_front() {
                self.take_effect(then);
            }
        }
    }

    pub(super) fn output(&mut self, output: Output) {
        self.effects.push(Effect::Output {
            after: self.durable,
            output,
        });
    }

    pub(super) fn reply(&mut self, reply: ReplyId, answer: Answer) {
        if let Answer::BadRequest(_)
        | Answer::Forbidden(_)
        | Answer::NotFound(_)
        | Answer::Conflict(_) = &answer
        {
            self.counters.rejected_calls += 1;
        }
        self.output(Output::Reply { reply, answer });
    }

    /// Sends an event to a framework; drops it if the framework is not connected.
    pub(super) fn event(&mut self, framework: &FrameworkId, event: Event) {
        let framework = self.frameworks.get_mut(framework);
        let connected = framework.and_then(|framework| Some((framework.connection()?, framework)));
        let Some((to, framework)) = connected else {
            self.counters.dropped_messages += 1;
            return;
        };
        framework.counters().event(event.r#type());
        self.send_event(to, event);
    }

    pub(super) fn event_to(&mut self, to: ConnectionId, event: Event) {
        let framework = self.schedulers.get(&to);
        if let Some(framework) = framework.and_then(|id| self.frameworks.get_mut(id)) {
            framework.counters().event(event.r#type());
        }
        self.send_event(to, event);
    }

    pub(super) fn send_event(&mut self, to: ConnectionId, event: Event) {
        self.output(Output::Event {
            to,
            event: Box::new(event),
        });
    }

    /// Sends a frame to an agent; says whether there was a stream to send it on.
    pub(super) fn frame(&mut self, agent: &AgentId, message: master_frame::Message) -> bool {
        let Some(to) = self.agents.get(agent).and_then(|agent| agent.connection) else {
            self.counters.dropped_messages += 1;
            return false;
        };
        self.frame_to(to, message);
        true
    }

    pub(super) fn frame_to(&mut self, to: ConnectionId, message: master_frame::Message) {
        let frame = MasterFrame {
            epoch: self.epoch,
            message: Some(message),
        };
        self.output(Output::Frame {
            to,
            frame: Box::new(frame),
        });
    }

    /// Notes that the allocator refused what it should have taken: a defect, never an input.
    pub(super) fn agreed(&mut self, what: &'static str, result: Result<(), AllocatorError>) {
        if let Err(error) = result {
            self.counters.invariant_violations += 1;
            tracing::error!(%error, "the allocator disagrees: {what}");
        }
    }

    fn allocate_if_due(&mut self) {
        if self.allocate_due {
            self.allocate_due = false;
            self.allocate();
        }
    }
}

/// Whether an input alone changes nothing that readers see.
fn is_routine(input: &Input) -> bool {
    match input {
        Input::Tick | Input::AnswersRead { .. } => true,
        Input::AgentFrame { message, .. } => matches!(**message, agent_frame::Message::Pong(_)),
        _ => false,
    }
}

/// Whether an effect is only a sign of life.
fn is_beat(effect: &Effect) -> bool {
    match effect {
        Effect::Output {
            output: Output::Frame { frame, .. },
            ..
        } => matches!(frame.message, Some(master_frame::Message::Ping(_))),
        Effect::Output {
            output: Output::Event { event, .. },
            ..
        } => event.r#type() == event::Type::Heartbeat,
        Effect::Output { .. } | Effect::Persist { .. } => false,
    }
}
