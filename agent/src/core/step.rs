//! The step of the core: an input and the work that is due go to the owners of the state.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use meseta_resources::{Moment, Now};
use prost::Message as _;
use tracing::{error, info, warn};

use super::accept::Refusal;
use super::consequence::Consequence;
use super::disk::DiskChange;
use super::lifecycle::Lifecycle;
use super::operations::Operations;
use super::registration::{Registration, stream_key};
use super::runs::Runs;
use super::step_context::{Step, StepParts};
use super::tasks::Tasks;
use super::{
    Effect, ExitReason, Input, LinkId, Options, Oversubscription, Recovery, Report, Snapshot,
    State, StreamKey, Timer, accept, checks, corrections, delivery, drain, ending, executor_kills,
    executors, kill, launch, lifetimes, reconcile, recovery, status_updates,
};
use crate::checkpoint::{DiskCondition, KillCause, Lsn};

/// The time to read the messages that arrived during a pause.
pub(super) const CATCH_UP_TIME: Duration = Duration::from_secs(5);

/// The core of the agent.
#[derive(Debug)]
pub struct AgentCore {
    parts: StepParts,
    agent: Agent,
    /// The number of steps.
    sequence: u64,
}

/// The state of the agent, by owner.
#[derive(Debug)]
struct Agent {
    lifecycle: Lifecycle,
    registration: Registration,
    operations: Operations,
    oversubscription: Oversubscription,
    tasks: Tasks,
}

impl AgentCore {
    /// Creates the initial state; `seed` is the source of all its uuids and jitter.
    pub fn new(options: Options, seed: u64) -> Self {
        Self {
            agent: Agent {
                lifecycle: Lifecycle::new(),
                registration: Registration::default(),
                operations: Operations::new(&options.resources),
                oversubscription: Oversubscription::default(),
                tasks: Tasks::new(&options),
            },
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
        self.agent.end_drain(&mut step);
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
            self.agent.tasks.updates.next_due(),
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
            frameworks: agent.tasks.runs.frameworks().clone(),
            completed_frameworks: agent.tasks.runs.completed_frameworks().cloned().collect(),
            counters: self.parts.counters().clone(),
            draining: agent.tasks.drain.current(),
            disk: self.parts.disk().condition(),
            oversubscription: agent.oversubscription.clone(),
            frozen: agent.tasks.corrections.frozen().clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn count_timers(&self) -> usize {
        self.parts.count_timers()
    }

    #[cfg(test)]
    pub(super) fn updates(&mut self) -> &mut super::StatusUpdates {
        &mut self.agent.tasks.updates
    }
}

impl Agent {
    fn take_input(&mut self, step: &mut Step<'_>, input: Input) {
        let tasks = &mut self.tasks;
        match input {
            Input::Recovered(recovery) => self.recover(step, *recovery),
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
            } => launch::started(tasks, step, &container, supervisor, task_pid),
            Input::LaunchFailed { container, cause } => {
                let ended = launch::launch_failed(tasks, step, &container, &cause);
                self.carry_out(step, ended);
            }
            Input::ContainerEnded { container, ending } => {
                let ended = ending::ended(tasks, step, &container, ending);
                self.carry_out(step, ended);
            }
            Input::ExecutorSubscribed {
                connection,
                framework,
                executor,
                subscribe,
                permit: _,
                permits,
            } => {
                let back = executors::executor_subscribed(
                    tasks, step, connection, &framework, &executor, *subscribe, permits,
                );
                self.carry_out(step, back);
            }
            Input::ExecutorGone { connection } => executors::executor_gone(tasks, connection),
            Input::ExecutorUpdate {
                framework,
                executor,
                status,
                permit,
            } => executors::executor_update(
                tasks,
                step,
                &framework,
                &executor,
                *status,
                Some(permit),
            ),
            Input::ExecutorMessage {
                framework,
                executor,
                data,
                permit: _,
            } => {
                let is_running = self.lifecycle.is_running();
                executors::executor_message(step, is_running, &framework, &executor, data);
            }
            Input::Resized { container, failed } => {
                reconcile::resized(tasks, step, &container, failed)
            }
            Input::FreezeFailed { container } => {
                corrections::freeze_failed(tasks, step, &container)
            }
            Input::Probed {
                container,
                id,
                result,
            } => checks::probed(tasks, step, &container, id, result),
            Input::Oversubscription(report) => self.oversubscribe(step, *report),
            Input::Disk(condition) => self.note_disk(step, condition),
            Input::Paused { lasted } => self.note_pause(step, lasted),
            Input::HeldUp { lasted } => self.note_hold_up(step, lasted),
            Input::Tick => {}
            Input::Stop { kill_tasks: true } => {
                self.end_with_tasks(step, KillCause::AgentExit, ExitReason::Stopped);
            }
            Input::Stop { kill_tasks: false } => {
                corrections::thaw_all(tasks, step);
                self.carry_out(step, Some(Consequence::ProcessEnds(ExitReason::Stopped)));
            }
            Input::Unregister => {
                info!("asked to unregister: tasks end, and the agent after them");
                self.end_with_tasks(step, KillCause::AgentExit, ExitReason::Unregistered);
            }
        }
    }

    fn fire_timers(&mut self, step: &mut Step<'_>) {
        while let Some(timer) = step.pop_timer() {
            let tasks = &mut self.tasks;
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
                Timer::CompletionTime(container) => {
                    kill::completion_time_over(tasks, step, &container)
                }
                Timer::KillOverdue(container) => kill::kill_overdue(tasks, step, &container),
                Timer::KillUnwritten(container, lsn) => {
                    kill::kill_unwritten(tasks, step, &container, lsn)
                }
                Timer::KillUntold(task, lsn) => {
                    executor_kills::kill_untold(tasks, step, &task, lsn)
                }
                Timer::Deliveries(container) => delivery::deliver_next(tasks, step, &container),
                Timer::ExecutorRegistration(container) => {
                    lifetimes::registration_timed_out(tasks, step, &container);
                }
                Timer::ExecutorShutdown(container) => {
                    lifetimes::shutdown_overdue(tasks, step, &container)
                }
                Timer::Probe(container, check_kind) => {
                    checks::probe_due(tasks, step, &container, check_kind)
                }
                Timer::ExecutorsBack => {
                    if self.registration.awaits_executors() {
                        lifetimes::terminate_missing(tasks, step);
                        self.connect_now(step);
                    }
                }
                Timer::Unregister => self.lifecycle.end_wait(),
                Timer::ExitUnwritten => self.lifecycle.exit_unwritten(step),
                Timer::DiskTimeout => step.give_up_disk(),
            }
        }
        for key in self.tasks.updates.due(step.now.moment) {
            if self.tasks.updates.has_left(&key, step.durable().0) {
                status_updates::send_head(&mut self.tasks, step, &key);
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
                let (runs, operations) = (&self.tasks.runs, &self.operations);
                let describe = |register| describe(register, runs, operations);
                let checkpointed = operations.to_checkpoint();
                self.registration.register(step, &checkpointed, describe);
            }
            Consequence::MasterLost { connect } => {
                self.tasks.updates.pause();
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
                for key in self.tasks.updates.resume(step.now.moment) {
                    status_updates::send_head(&mut self.tasks, step, &key);
                }
                self.operations.resume(step, unknown_operations);
                for exited in exited {
                    step.send(ToMaster::ExecutorExited(exited));
                }
                self.oversubscription.send_total(step);
                for task in unknown_tasks {
                    status_updates::answer_unknown_task(&mut self.tasks, step, &task);
                }
            }
            Consequence::ExecutorEnded { key, exited } => {
                if let Some(exited) = exited {
                    self.report_exit(step, exited);
                }
                lifetimes::forget_executor(&mut self.tasks, step, &key);
                // The executor may be the last one that the registration waits for.
                self.carry_out(step, Some(Consequence::ExecutorBack));
            }
            Consequence::ExecutorBack => {
                let awaits = self.registration.awaits_executors();
                if awaits && lifetimes::missing_executors(&self.tasks.runs).is_empty() {
                    self.connect_now(step);
                }
            }
            Consequence::TasksRefused(refusal) => {
                let Refusal {
                    tasks,
                    mut rejection,
                    not_launched,
                } = refusal;
                if let Some(gone) = rejection.gone_executor.take() {
                    self.report_exit(step, gone);
                }
                accept::refuse(&mut self.tasks, step, &tasks, &rejection);
                if let Some(not_launched) = not_launched {
                    self.report_exit(step, not_launched);
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
        let tasks = &mut self.tasks;
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
                self.end_with_tasks(step, KillCause::Shutdown, ExitReason::Shutdown(reason));
            }
            // Also during the shutdown: the updates of tasks that end with the agent are acknowledged.
            FromMaster::Acknowledge(acknowledge) => {
                let ids = stream_key(&acknowledge.framework_id, &acknowledge.task_id);
                if let Some(stream) = ids {
                    status_updates::acknowledged(tasks, step, &stream, &acknowledge.uuid);
                }
            }
            message if !self.lifecycle.accepts(&message) => {
                warn!("dropped an order that came before the registration or after the end");
            }
            FromMaster::RunTask(run) => {
                let is_ending = self.lifecycle.is_ending();
                let refused = accept::run_task(tasks, &self.operations, step, is_ending, run);
                self.carry_out(step, refused);
            }
            FromMaster::RunTaskGroup(run) => {
                let is_ending = self.lifecycle.is_ending();
                let refused = accept::run_task_group(tasks, &self.operations, step, is_ending, run);
                self.carry_out(step, refused);
            }
            FromMaster::KillTask(kill) => kill::kill_task(tasks, step, &kill),
            FromMaster::ShutdownExecutor(shutdown) => {
                kill::shutdown_executor(tasks, step, &shutdown)
            }
            FromMaster::ShutdownFramework(shutdown) => {
                kill::shutdown_framework(tasks, step, &shutdown)
            }
            FromMaster::UpdateFramework(update) => {
                launch::update_framework(tasks, step, update.framework)
            }
            FromMaster::ExecutorMessage(message) => {
                executors::message_for_executor(tasks, step, message)
            }
            FromMaster::ApplyOperation(apply) => {
                let runs = &self.tasks.runs;
                self.operations.apply(step, apply, || runs.allocated());
            }
            FromMaster::AcknowledgeOperation(message) => {
                self.operations.acknowledge(step, &message);
            }
            FromMaster::Drain(drain) => drain::drain(tasks, step, &drain),
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

    /// Restores the state from the checkpoints and the containers on the machine.
    fn recover(&mut self, step: &mut Step<'_>, recovery: Recovery) {
        let image = recovery.image;
        step.counters.recovery_errors += image.damages.len();
        if let Some(agent) = image.agent {
            info!(agent_id = %agent.id, "recovered the agent's identity");
            self.tasks.drain.recover(step.now, agent.drain);
            step.set_agent_id(agent.id);
            if let Some(record) = agent.record {
                self.registration.recover(record);
            }
        }
        if let Some(record) = image.holdings {
            self.operations.recover(step, record);
        }
        recovery::recover(
            &mut self.tasks,
            step,
            image.frameworks,
            recovery.rebooted,
            &recovery.containers,
        );
        self.lifecycle.finish_recovery();
        self.registration.await_executors(step);
        self.carry_out(step, Some(Consequence::ExecutorBack));
    }

    /// Takes a report of the estimator and the controller.
    fn oversubscribe(&mut self, step: &mut Step<'_>, report: Report) {
        let state = self.lifecycle.state();
        if matches!(state, State::Recovering | State::Terminating) {
            return;
        }
        let was_open = self.oversubscription.is_open();
        if let Some(assessment) = report.assessment {
            for correction in self.oversubscription.assess(step, assessment) {
                let result = corrections::correct(&mut self.tasks, step, &correction);
                self.oversubscription.count_correction(&correction, result);
            }
        }
        if let Some(estimate) = report.estimate {
            self.oversubscription
                .note_estimate(&report.allocated, estimate);
        }
        corrections::thaw_exempt(&mut self.tasks, step);
        let is_running = self.lifecycle.is_running();
        self.oversubscription.publish(step, was_open, is_running);
    }

    /// Notes the condition of the disk.
    fn note_disk(&mut self, step: &mut Step<'_>, condition: DiskCondition) {
        let change = step.note_disk(condition).map(Consequence::DiskChanged);
        self.carry_out(step, change);
    }

    /// Ends all tasks, and the process after them. Each terminal update is sent while the master still knows the agent.
    fn end_with_tasks(&mut self, step: &mut Step<'_>, cause: KillCause, reason: ExitReason) {
        kill::kill_everything(&mut self.tasks, step, cause);
        self.lifecycle.begin_exit(reason);
    }

    /// Extends deadlines after a pause of the agent's process.
    fn note_pause(&mut self, step: &mut Step<'_>, lasted: Duration) {
        warn!(
            lasted_s = lasted.as_secs_f64(),
            "the agent's process was paused; deadlines of others are extended"
        );
        self.extend_deadlines(step, lasted, Timer::waits_for_others);
    }

    /// Extends deadlines after a time without inputs, because too many writes were waiting for the disk. Peers that the
    /// agent did not hear get more time; kills do not wait for the disk and get none.
    fn note_hold_up(&mut self, step: &mut Step<'_>, lasted: Duration) {
        let waits = |timer: &Timer| timer.waits_for_others() && !timer.ends_a_container();
        self.extend_deadlines(step, lasted, waits);
    }

    /// Extends deadlines after a time without input for the agent: its process was stopped by a signal, frozen with
    /// its machine, or without CPU time. Messages sent by others meanwhile wait unread in sockets and pipes, so that no
    /// peer may miss a deadline that passed then. Every peer keeps the rest of its time, and at least
    /// [`CATCH_UP_TIME`]; only deadlines that tasks set by the wall clock continue unchanged.
    fn extend_deadlines(
        &mut self,
        step: &mut Step<'_>,
        lasted: Duration,
        waits: impl Fn(&Timer) -> bool,
    ) {
        step.extend_timers(lasted, step.now.moment + CATCH_UP_TIME, waits);
        self.registration.extend_deadlines(step.now.moment, lasted);
        self.tasks.probes.note_pause();
    }

    /// Reports the end of an executor to the master.
    fn report_exit(&mut self, step: &mut Step<'_>, exited: wire::ExecutorExited) {
        let is_running = self.lifecycle.is_running();
        self.registration.report_exit(step, is_running, exited);
    }

    fn end_drain(&mut self, step: &mut Step<'_>) {
        let Tasks { runs, drain, .. } = &mut self.tasks;
        let has_tasks = || runs.all_executors().any(|one| !one.tasks.is_empty());
        drain.end_if_done(step, has_tasks);
    }

    /// Connects to a master without a pause.
    pub(super) fn connect_now(&mut self, step: &mut Step<'_>) {
        let connect = self.registration.connect_now(step);
        self.carry_out(step, Some(connect));
    }

    /// Sends the heads of the streams that a full connection did not take.
    fn link_writable(&mut self, step: &mut Step<'_>, link: LinkId, unsent: BTreeSet<StreamKey>) {
        if self.registration.is_current(link) && self.tasks.updates.is_flowing() {
            for key in unsent {
                status_updates::send_head(&mut self.tasks, step, &key);
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
        if !is_ending
            || self
                .tasks
                .runs
                .all_executors()
                .any(|executor| executor.is_live())
        {
            return;
        }
        let awaits = self.tasks.updates.is_flowing() && self.tasks.updates.awaits_any();
        let is_registered = self.registration.is_registered();
        self.lifecycle.finish_exit(step, awaits, is_registered);
    }
}

/// The registration of a known agent, with its state.
fn describe(register: wire::Register, runs: &Runs, operations: &Operations) -> wire::Reregister {
    let frameworks = runs.frameworks();
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
