//! A step: an input is applied, timers fire, offers are made.
//!
//! Entered through [`MasterCore::step`].

use meseta_daemon::authentication::Caller;
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::{agent_frame, master_frame};
use meseta_proto::mesos::v1::scheduler::event;
use meseta_resources::time::{Moment, Now};

use super::answer::Answer;
use super::effect::{Effect, Output};
use super::ids::{ConnectionId, Lsn, ReplyId};
use super::input::{Input, Request};
use super::master::MasterCore;
use super::state::pending::Pending;
use super::validation::call::Action;

impl MasterCore {
    /// The time of the next step without an earlier input. A step long after this time follows a pause of the
    /// process.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.timers.due()
    }

    /// The number of steps; snapshots of the same number are equal.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.readers.sequence()
    }

    /// The registry's epoch that this master leads.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epochs.current()
    }

    /// Applies one input and all timers that are due, and returns the effects.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.answer_questions();
        self.fire_timers();
        self.check_drains();
        self.allocate_if_due();
        self.finish_step()
    }

    /// Applies one of several waiting inputs. Leaves the work that one cycle of offers can do for all of them to the
    /// [`MasterCore::step`] that must follow.
    pub fn step_in_burst(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.check_drains();
        self.finish_step()
    }

    /// Returns the effects of the step, and records whether readers may see a change.
    fn finish_step(&mut self) -> Vec<Effect> {
        let effects = self.effects.emitted();
        self.readers.end_step(|| !effects.iter().all(is_beat));
        self.expect_next_step();
        self.effects.take_emitted()
    }

    pub(super) fn expect_next_step(&mut self) {
        let at_once = self.allocate_due || self.reconciliations.are_due();
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
        self.readers.begin_step();
        if !is_routine(&input) {
            self.readers.mark_dirty();
        }
        self.fire_timers();
        self.dispatch(input);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Persisted { lsn } => self.persisted(lsn),
            Input::Subscribe(request) => self.subscribe(request),
            Input::Request { reply, request } => self.request(reply, request),
            Input::SchedulerGone { connection } => self.scheduler_gone(connection),
            Input::AnswersRead {
                connection,
                answers,
            } => self.answers_read(connection, answers),
            Input::AgentFrame {
                connection,
                message,
            } => self.agent_frame(connection, *message),
            Input::AgentGone { connection } => self.agent_gone(connection),
            Input::Whitelist { hosts } => self.update_whitelist(hosts.as_deref()),
        }
    }

    /// Carries out all actions that waited for this mutation or an earlier one. Agents and frameworks learn of a
    /// mutation only through these actions.
    fn persisted(&mut self, lsn: Lsn) {
        self.effects.confirm(lsn);
        while let Some(then) = self.effects.take_due() {
            self.take_effect(then);
        }
    }

    fn take_effect(&mut self, pending: Pending) {
        match pending {
            Pending::Nothing => {}
            Pending::Removals => self.removals_stored(),
            Pending::Admit {
                connection,
                profile,
            } => self.admit_agent(connection, profile),
            Pending::Readmit {
                connection,
                profile,
                report,
            } => self.readmit(connection, profile, *report),
            Pending::Refresh {
                connection,
                profile,
                report,
            } => {
                if self.agent_connections.end_handshake(connection) {
                    self.resume(connection, profile, *report);
                } else {
                    self.keep_former_description(&profile.id);
                }
            }
            Pending::RaiseEpoch {
                epoch,
                connection,
                report,
            } => self.epoch_raised(epoch, connection, *report),
            Pending::Unreachable { agent, since } => self.agent_unreachable(&agent, since),
            Pending::RecoveredUnreachable { agent, since } => {
                self.recovered_unreachable(agent, since);
            }
            Pending::Removed { agent, why } => self.agent_removed(&agent, why),
            Pending::AllRemoved { agents, why } => {
                for agent in &agents {
                    self.agent_removed(agent, why);
                }
            }
            Pending::PruneGone { agents } => self.absent_agents.forget_gone(&agents),
            Pending::Subscribe(subscription) => self.subscription_stored(*subscription),
            Pending::Operator(pending) => self.administered(pending),
            Pending::Prune { agents } => {
                for agent in &agents {
                    self.unreachable_pruned(agent);
                }
            }
        }
    }

    fn request(&mut self, reply: ReplyId, request: Request) {
        let answer = match request {
            Request::Call {
                framework_id,
                stream_id,
                action,
                caller,
            } => {
                let is_teardown = matches!(*action, Action::Teardown);
                let answer = self.call(&framework_id, stream_id.as_deref(), *action, &caller);
                if is_teardown && matches!(answer, Answer::Accepted) {
                    return self.reply_once_removed(reply, answer);
                }
                answer
            }
            Request::Administer {
                administration,
                approver,
            } => return self.administer(reply, *administration, &approver),
            Request::Teardown {
                framework_id,
                caller,
            } => return self.operator_teardown(reply, &framework_id, &caller),
            Request::Operate {
                agent_id,
                operation,
                principal,
            } => self.operator_operation(&agent_id, &operation, principal.as_deref()),
        };
        self.reply(reply, answer);
    }

    /// The principal of a framework, if both exist.
    #[must_use]
    pub fn principal_of(&self, framework: &str) -> Option<String> {
        let framework = self.frameworks.get(framework)?;
        framework.terms.info.principal.clone()
    }

    /// The id of the cluster, if it outlives this master.
    #[must_use]
    pub fn lasting_cluster(&self) -> Option<String> {
        self.epochs.lasting_cluster_id().cloned()
    }

    /// Records the caller of an agent's connection until the connection ends. Returns the epoch, which the agent gets
    /// before it sends anything.
    pub fn agent_connected(&mut self, connection: ConnectionId, caller: Caller) -> LedEpoch {
        self.agent_connections.open(connection, caller);
        self.epochs.led()
    }

    fn allocate_if_due(&mut self) {
        if self.allocate_due {
            self.allocate_due = false;
            self.allocate();
        }
    }
}

/// Whether an input alone changes nothing visible to readers.
fn is_routine(input: &Input) -> bool {
    match input {
        Input::Tick | Input::AnswersRead { .. } => true,
        Input::AgentFrame { message, .. } => matches!(**message, agent_frame::Message::Pong(_)),
        _ => false,
    }
}

/// Whether an effect is only a heartbeat.
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
