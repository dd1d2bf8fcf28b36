//! The step of the core: an input and the work that is due go to the owners of the state.

use meseta_resources::{Moment, Now};

use super::step_context::{Step, StepParts};
use super::{Agent, Effect, Input, Options, Snapshot, State, Timer, UnregisterWait};
use crate::checkpoint::Lsn;

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
        self.sequence += self.agent.durable_view.show_durable(lsn);
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
        self.agent.state
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
            state: agent.state,
            agent_id: self.parts.agent_id().cloned(),
            info: options.info.clone(),
            capabilities: options.capabilities.clone(),
            resources: agent.durable_view.resources.clone(),
            operations: agent.durable_view.operations.clone(),
            master: agent.master.clone(),
            master_epoch: Some(agent.epochs.heard()).filter(|epoch| *epoch > 0),
            frameworks: agent.frameworks.clone(),
            completed_frameworks: agent.completed_frameworks.iter().cloned().collect(),
            counters: self.parts.counters().clone(),
            draining: agent.draining,
            disk: agent.disk,
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
            Input::LinkUp { link, led } => self.link_up(step, link, led),
            Input::LinkDown { link, reason } => self.link_down(step, link, &reason),
            Input::LinkWritable { link, unsent } => self.link_writable(step, link, unsent),
            Input::Frame { link, frame, .. } => self.frame(step, link, *frame),
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
            Input::Disk(condition) => self.disk_changed(step, condition),
            Input::Paused { lasted } => self.paused(step, lasted),
            Input::HeldUp { lasted } => self.held_up(step, lasted),
            Input::Tick => {}
            Input::Stop { kill_tasks } => self.stop(step, kill_tasks),
            Input::Unregister => self.unregister(step),
        }
    }

    fn fire_timers(&mut self, step: &mut Step<'_>) {
        while let Some(timer) = step.pop_timer() {
            match timer {
                Timer::Connect(link) => self.connect_due(step, link),
                Timer::RegistrationTimeout(link) => self.registration_overdue(step, link),
                Timer::PingTimeout(link) => self.ping_overdue(step, link),
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
                Timer::Unregister => self.unregister_wait = UnregisterWait::Over,
                Timer::ExitUnwritten => self.exit_unwritten(step),
                Timer::DiskTimeout => self.disk_timed_out(),
            }
        }
        for key in self.updates.due(step.now.moment) {
            if self.updates.has_left(&key, step.durable().0) {
                self.send_head(step, &key);
            }
        }
        for uuid in self.operations.due(step.now.moment) {
            self.tell_operation(step, &uuid);
        }
    }
}
