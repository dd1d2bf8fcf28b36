//! The step of the core: an input and the work that is due go to the owners of the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use meseta_resources::{FrameworkId, Moment, Now};
use prost::Message as _;
use tracing::{error, info, warn};

use super::consequence::Consequence;
use super::disk::DiskChange;
use super::operations::Operations;
use super::registration::stream_key;
use super::step_context::{Step, StepParts};
use super::{
    Agent, Effect, ExitReason, Framework, Input, LinkId, Options, Snapshot, State, StreamKey,
    Timer, allocated,
};
use crate::checkpoint::{KillCause, Lsn};

/// The core of the agent.
#[derive(Debug)]
pub struct AgentCore {
    parts: StepParts,
    agent: Agent,
    /// The number of steps.
    sequence: u64,
}

impl AgentCore {
    /// Creates the initial state; `seed` is the source of all its uuids and jitter.
    pub fn new(options: Options, seed: u64) -> Self {
        Self {
            agent: Agent::new(&options),
            parts: StepParts::new(options, seed),
            sequence: 0,
        }
    }

    /// Takes one input, then does the work that is due by `now`.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.sequence += 1;
        let mut step = self.parts.begin(now);
        self.agent.take_input(&mut step, input);
        self.agent.fire_timers(&mut step);
        self.agent.end_draining(&mut step);
        self.agent.exit_if_idle(&mut step);
        step.take_effects()
    }

    /// Notes that all writes up to `lsn` are durable, so that readers may see their state.
    pub fn durable(&mut self, lsn: Lsn) {
        self.parts.note_durable(lsn);
        self.sequence += self.agent.operations.show_durable(lsn);
    }

    /// The latest time for the next call of [`AgentCore::step`] with [`Input::Tick`].
    pub fn next_deadline(&self) -> Option<Moment> {
        [
            self.parts.next_timer(),
            self.agent.updates.next_due(),
            self.agent.operations.next_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The current phase of the agent's life.
    pub fn state(&self) -> State {
        self.agent.lifecycle.state()
    }

    /// The number of steps: two snapshots with the same number are equal.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes a snapshot of the current state.
    pub fn snapshot(&self) -> Snapshot {
        let agent = &self.agent;
        let options = self.parts.options();
        Snapshot {
            sequence: self.sequence,
            state: agent.lifecycle.state(),
            agent_id: self.parts.agent_id().cloned(),
            info: options.info.clone(),
            capabilities: options.capabilities.clone(),
            resources: agent.operations.durable_total().clone(),
            operations: agent.operations.durable_results().to_vec(),
            master: agent.registration.master().cloned(),
            master_epoch: agent.registration.heard_epoch(),
            frameworks: agent.frameworks.clone(),
            completed_frameworks: agent.completed_frameworks.iter().cloned().collect(),
            counters: self.parts.counters().clone(),
            draining: agent.draining,
            disk: self.parts.disk().condition(),
            oversubscription: agent.oversubscription.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn count_timers(&self) -> usize {
        self.parts.count_timers()
    }

    #[cfg(test)]
    pub(super) fn updates(&mut self) -> &mut super::StatusUpdates {
        &mut self.agent.updates
    }
}

impl Agent {
    fn take_input(&mut self, step: &mut Step<'_>, input: Input) {
        match input {
            Input::Recovered(recovery) => self.recovered(step, *recovery),
            Input::LinkUp { link, led } => {
                let begun = self.registration.link_up(step, link, led);
                self.carry_out(step, begun);
            }
            Input::LinkDown { link, reason } => {
                let needs_master = self.lifecycle.needs_master();
                let lost = self
                    .registration
                    .link_down(step, link, &reason, needs_master);
                self.carry_out(step, lost);
            }
            Input::LinkWritable { link, unsent } => self.link_writable(step, link, unsent),
            Input::Frame { link, frame, .. } => {
                let ordered = self.registration.take_frame(step, link, *frame);
                self.carry_out(step, ordered);
            }
            Input::ContainerStarted {
                container,
                supervisor,
                task_pid,
            } => self.started(step, &container, supervisor, task_pid),
            Input::LaunchFailed { container, cause } => {
                self.launch_failed(step, &container, cause);
            }
            Input::ContainerEnded { container, ending } => self.ended(step, &container, ending),
            Input::ExecutorSubscribed {
                connection,
                framework,
                executor,
                subscribe,
                permit: _,
                permits,
            } => self
                .executor_subscribed(step, connection, &framework, &executor, *subscribe, permits),
            Input::ExecutorGone { connection } => self.executor_gone(connection),
            Input::ExecutorUpdate {
                framework,
                executor,
                status,
                permit,
            } => self.executor_update(step, &framework, &executor, *status, Some(permit)),
            Input::ExecutorMessage {
                framework,
                executor,
                data,
                permit: _,
            } => self.executor_message(step, &framework, &executor, data),
            Input::Resized { container, failed } => self.resized(step, &container, failed),
            Input::FreezeFailed { container } => self.freeze_failed(step, &container),
            Input::Probed {
                container,
                id,
                result,
            } => self.probed(step, &container, id, result),
            Input::Oversubscription(report) => self.oversubscribe(step, *report),
            Input::Disk(condition) => {
                let change = step.note_disk(condition).map(Consequence::DiskChanged);
                self.carry_out(step, change);
            }
            Input::Paused { lasted } => self.paused(step, lasted),
            Input::HeldUp { lasted } => self.held_up(step, lasted),
            Input::Tick => {}
            Input::Stop { kill_tasks: true } => {
                self.kill_everything(step, KillCause::AgentExit);
                self.lifecycle.begin_exit(ExitReason::Stopped);
            }
            Input::Stop { kill_tasks: false } => {
                self.thaw_all(step);
                self.carry_out(step, Some(Consequence::ProcessEnds(ExitReason::Stopped)));
            }
            Input::Unregister => {
                // The running tasks end first, so that each terminal update is sent while the master still knows the
                // agent.
                info!("asked to unregister: tasks end, and the agent after them");
                self.kill_everything(step, KillCause::AgentExit);
                self.lifecycle.begin_exit(ExitReason::Unregistered);
            }
        }
    }

    fn fire_timers(&mut self, step: &mut Step<'_>) {
        while let Some(timer) = step.pop_timer() {
            match timer {
                Timer::Connect(link) => {
                    self.carry_out(step, Some(Consequence::ConnectDue(link)));
                }
                Timer::RegistrationTimeout(link) => {
                    let lost = self.registration.registration_overdue(step, link);
                    self.carry_out(step, lost);
                }
                Timer::PingTimeout(link) => {
                    let lost = self.registration.ping_overdue(step, link);
                    self.carry_out(step, lost);
                }
                Timer::CompletionTime(container) => self.completion_time_over(step, &container),
                Timer::KillOverdue(container) => self.kill_overdue(step, &container),
                Timer::KillUnwritten(container, lsn) => self.kill_unwritten(step, &container, lsn),
                Timer::KillUntold(task, lsn) => self.kill_untold(step, &task, lsn),
                Timer::Deliveries(container) => self.deliver_next(step, &container),
                Timer::ExecutorRegistration(container) => {
                    self.registration_timed_out(step, &container);
                }
                Timer::ExecutorShutdown(container) => self.shutdown_overdue(step, &container),
                Timer::Probe(container, check_kind) => self.probe_due(step, &container, check_kind),
                Timer::ExecutorsBack => self.executors_overdue(step),
                Timer::Unregister => self.lifecycle.end_wait(),
                Timer::ExitUnwritten => self.lifecycle.exit_unwritten(step),
                Timer::DiskTimeout => step.give_up_disk(),
            }
        }
        for key in self.updates.due(step.now.moment) {
            if self.updates.has_left(&key, step.durable().0) {
                self.send_head(step, &key);
            }
        }
        self.operations.repeat_due(step);
    }

    /// Carries out a consequence. The order within each case is the order in which others see the effects.
    fn carry_out(&mut self, step: &mut Step<'_>, consequence: Option<Consequence>) {
        let Some(consequence) = consequence else {
            return;
        };
        match consequence {
            Consequence::ConnectDue(link) => {
                if self.lifecycle.needs_master() {
                    let has_given_up = step.disk().has_given_up();
                    self.registration.connect(step, link, has_given_up);
                }
            }
            Consequence::RegistrationBegun => {
                let (frameworks, operations) = (&self.frameworks, &self.operations);
                let describe = |register| describe(register, frameworks, operations);
                let checkpointed = operations.to_checkpoint();
                self.registration.register(step, &checkpointed, describe);
            }
            Consequence::MasterLost { connect } => {
                self.updates.pause();
                self.operations.pause();
                self.lifecycle.lose_master();
                self.carry_out(step, connect.map(Consequence::ConnectDue));
            }
            Consequence::Ordered { epoch, message } => self.obey(step, epoch, *message),
            Consequence::Registered {
                exited,
                unknown_operations,
                unknown_tasks,
            } => {
                self.lifecycle.find_master();
                if step.disk().is_silent() {
                    self.tell_disk(step);
                }
                for key in self.updates.resume(step.now.moment) {
                    self.send_head(step, &key);
                }
                self.operations.resume(step, unknown_operations);
                for exited in exited {
                    step.send(ToMaster::ExecutorExited(exited));
                }
                self.tell_total(step);
                for task in unknown_tasks {
                    self.answer_unknown_task(step, &task);
                }
            }
            Consequence::ProcessEnds(reason) => {
                self.carry_out(step, Some(Consequence::MasterLost { connect: None }));
                self.lifecycle.end_process(step, reason);
            }
            Consequence::DiskChanged(DiskChange::FellSilent) => {
                if let Some(timeout) = step.options.disk_timeout {
                    step.set_timer(step.now.moment + timeout, Timer::DiskTimeout);
                }
                self.tell_disk(step);
            }
            Consequence::DiskChanged(DiskChange::Answers { had_given_up }) => {
                step.remove_timer(&Timer::DiskTimeout);
                if had_given_up {
                    self.carry_out(step, Some(self.registration.connect_again()));
                }
                self.tell_disk(step);
            }
        }
    }

    /// Handles a message from the master of an obeyed epoch.
    fn obey(&mut self, step: &mut Step<'_>, epoch: u64, message: FromMaster) {
        match message {
            FromMaster::Registered(registered) => {
                if self.lifecycle.needs_master() {
                    let registered = self.registration.registered(step, epoch, registered);
                    self.carry_out(step, registered);
                }
            }
            FromMaster::Ping(ping) => {
                self.registration.note_ping(step);
                if let Some(pong) = step.disk().pong(ping.sequence) {
                    step.send_now(ToMaster::Pong(pong));
                }
                if !ping.connected {
                    let lost = self.registration.register_anew(step);
                    self.carry_out(step, lost);
                }
            }
            FromMaster::Refused(refused) => self.refused(step, &refused),
            FromMaster::Shutdown(shutdown) => {
                let reason = shutdown.reason;
                info!(reason, "the master asked for a shutdown");
                self.kill_everything(step, KillCause::Shutdown);
                self.lifecycle.begin_exit(ExitReason::Shutdown(reason));
            }
            // Also during the shutdown: the updates of tasks that end with the agent are acknowledged.
            FromMaster::Acknowledge(acknowledge) => {
                let ids = stream_key(&acknowledge.framework_id, &acknowledge.task_id);
                if let Some(stream) = ids {
                    self.acknowledged(step, &stream, &acknowledge.uuid);
                }
            }
            message if !self.lifecycle.accepts(&message) => {
                warn!("dropped an order that came before the registration or after the end");
            }
            FromMaster::RunTask(run) => self.run_task(step, run),
            FromMaster::RunTaskGroup(run) => self.run_task_group(step, run),
            FromMaster::KillTask(kill) => self.kill_task(step, &kill),
            FromMaster::ShutdownExecutor(shutdown) => self.shutdown_executor(step, &shutdown),
            FromMaster::ShutdownFramework(shutdown) => self.shutdown_framework(step, &shutdown),
            FromMaster::UpdateFramework(update) => self.update_framework(step, update.framework),
            FromMaster::ExecutorMessage(message) => self.message_for_executor(step, message),
            FromMaster::ApplyOperation(apply) => {
                let frameworks = &self.frameworks;
                self.operations.apply(step, apply, || allocated(frameworks));
            }
            FromMaster::AcknowledgeOperation(message) => {
                self.operations.acknowledge(step, &message);
            }
            FromMaster::Drain(drain) => self.drain(step, &drain),
        }
    }

    fn refused(&mut self, step: &mut Step<'_>, refused: &wire::Refused) {
        error!(
            reason = refused.reason,
            permanent = refused.permanent,
            "the master refused this agent"
        );
        let follows = if self.lifecycle.state() == State::Terminating {
            // A master refuses an agent just after its shutdown request: the running tasks must end first.
            return;
        } else if refused.permanent {
            Consequence::ProcessEnds(ExitReason::Refused(refused.reason.clone()))
        } else {
            self.registration.retry_after_refusal(step)
        };
        self.carry_out(step, Some(follows));
    }

    /// Connects to a master without a pause.
    pub(super) fn connect_now(&mut self, step: &mut Step<'_>) {
        let connect = self.registration.connect_now(step);
        self.carry_out(step, Some(connect));
    }

    /// Sends the heads of the streams that a full connection did not take.
    fn link_writable(&mut self, step: &mut Step<'_>, link: LinkId, unsent: BTreeSet<StreamKey>) {
        if self.registration.is_current(link) && self.updates.is_flowing() {
            for key in unsent {
                self.send_head(step, &key);
            }
        }
    }

    /// Tells the master how the disk is before its next ping, in an answer to no ping.
    fn tell_disk(&self, step: &mut Step<'_>) {
        if self.lifecycle.is_running()
            && let Some(pong) = step.disk().pong(0)
        {
            step.send_now(ToMaster::Pong(pong));
        }
    }

    /// Exits once no container is left that had to end with the agent.
    fn exit_if_idle(&mut self, step: &mut Step<'_>) {
        let is_ending = self.lifecycle.is_ending();
        if !is_ending || self.all_executors().any(|executor| executor.is_live()) {
            return;
        }
        let awaits = self.updates.is_flowing() && self.updates.awaits_any();
        let is_registered = self.registration.is_registered();
        self.lifecycle.finish_exit(step, awaits, is_registered);
    }
}

/// The registration of a known agent, with its state.
fn describe(
    register: wire::Register,
    frameworks: &BTreeMap<FrameworkId, Arc<Framework>>,
    operations: &Operations,
) -> wire::Reregister {
    let executors = || frameworks.values().flat_map(|one| one.executors.values());
    let tasks = executors().flat_map(|executor| executor.tasks.values());
    let told = executors().filter(|executor| executor.info.is_some() && executor.is_live());
    wire::Reregister {
        register,
        tasks: tasks
            .map(|task| task.to_message().encode_to_vec())
            .collect(),
        executors: told.map(|executor| executor.describe()).collect(),
        frameworks: frameworks
            .values()
            .map(|framework| (*framework.info).clone())
            .collect(),
        completed_frameworks: Vec::new(),
        operations: operations.results().map(|one| (**one).clone()).collect(),
    }
}
