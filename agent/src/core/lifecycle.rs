//! The phases of the agent's life: recovery, with or without a master, the exit.
//!
//! Pure but for the output of the exit. Invariant: a begun exit is never taken back, and an agent that leaves its
//! cluster still accepts a master.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use tracing::{error, warn};

use super::{Destination, ExitReason, Output, State, Step, Timer};

/// The longest time that the exit of the process waits for the last writes. An exit without them equals a kill of the
/// agent, which loses nothing either.
const EXIT_WAIT: Duration = Duration::from_secs(5);
/// The longest time that an unregistering agent waits for the acknowledgements of its terminal updates. The master
/// reports tasks without an acknowledged terminal update as lost.
const UNREGISTER_WAIT: Duration = Duration::from_secs(5);

/// The state of an unregistering agent's wait for acknowledged terminal updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnregisterWait {
    #[default]
    NotBegun,
    Lasts,
    Over,
}

/// The phase of the agent's life, and its exit.
#[derive(Debug)]
pub(super) struct Lifecycle {
    state: State,
    /// The begun exit, which waits for the end of the containers.
    exit: Option<ExitReason>,
    /// Set while the exit of the process waits for the last writes.
    leaving: Option<ExitReason>,
    unregister_wait: UnregisterWait,
}

impl Lifecycle {
    /// Creates the state before the recovery.
    pub(super) fn new() -> Self {
        Self {
            state: State::Recovering,
            exit: None,
            leaving: None,
            unregister_wait: UnregisterWait::default(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether a master has registered the agent, and no exit has begun.
    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Whether the agent ends once its containers have ended.
    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some()
    }

    /// Whether the agent needs a master. This includes an agent that will unregister after the end of its tasks, which
    /// may take long.
    pub(super) fn needs_master(&self) -> bool {
        self.state != State::Terminating || self.exit == Some(ExitReason::Unregistered)
    }

    /// Whether a request from the master is handled, or refused with a reason. An agent that waits for the end of its
    /// tasks before its exit, which may take long, refuses other tasks, and accepts kills.
    pub(super) fn accepts(&self, request: &FromMaster) -> bool {
        match request {
            FromMaster::RunTask(_) | FromMaster::RunTaskGroup(_) | FromMaster::KillTask(_) => {
                self.is_running() || self.is_ending()
            }
            _ => self.is_running(),
        }
    }

    /// Notes the end of the recovery.
    pub(super) fn finish_recovery(&mut self) {
        self.state = State::Disconnected;
    }

    /// Notes that a master has registered the agent.
    pub(super) fn find_master(&mut self) {
        self.state = match self.exit {
            Some(_) => State::Terminating,
            None => State::Running,
        };
    }

    /// Notes the loss of the master.
    pub(super) fn lose_master(&mut self) {
        if self.state == State::Running {
            self.state = State::Disconnected;
        }
    }

    /// Begins the exit. Leaving the cluster can turn into another exit reason, but a begun exit otherwise keeps its
    /// reason.
    pub(super) fn begin_exit(&mut self, reason: ExitReason) {
        let is_leaving = self.exit == Some(ExitReason::Unregistered);
        if self.state != State::Terminating || is_leaving && reason != ExitReason::Unregistered {
            self.state = State::Terminating;
            self.exit = Some(reason);
        }
    }

    /// Ends the process, without further steps.
    pub(super) fn end_process(&mut self, step: &mut Step<'_>, reason: ExitReason) {
        self.state = State::Terminating;
        self.exit = None;
        self.output_exit(step, reason);
    }

    /// Exits after the end of the last container, if an exit has begun. `awaits_acknowledgements` shows whether a
    /// connected master has updates to acknowledge, since the agent sends the updates of a task one after the other.
    pub(super) fn finish_exit(
        &mut self,
        step: &mut Step<'_>,
        awaits_acknowledgements: bool,
        is_registered: bool,
    ) {
        let unregisters = self.exit == Some(ExitReason::Unregistered);
        if unregisters && awaits_acknowledgements && self.wait(step) {
            return;
        }
        let Some(mut reason) = self.exit.take() else {
            return;
        };
        if unregisters && is_registered {
            let reason = "an operator asked the agent to".to_owned();
            step.send(ToMaster::Unregister(wire::Unregister { reason }));
        } else if unregisters {
            warn!("no master to unregister from: the master will mark the agent unreachable");
            reason = ExitReason::Stopped;
        }
        self.output_exit(step, reason);
    }

    /// Waits for acknowledgements. Returns whether the wait lasts.
    fn wait(&mut self, step: &mut Step<'_>) -> bool {
        if self.unregister_wait == UnregisterWait::NotBegun {
            self.unregister_wait = UnregisterWait::Lasts;
            step.set_timer(step.now.moment + UNREGISTER_WAIT, Timer::Unregister);
        }
        self.unregister_wait == UnregisterWait::Lasts
    }

    /// Ends the wait for acknowledgements.
    pub(super) fn end_wait(&mut self) {
        self.unregister_wait = UnregisterWait::Over;
    }

    /// Ends the process after the last write, or after [`EXIT_WAIT`] if the disk takes longer.
    fn output_exit(&mut self, step: &mut Step<'_>, reason: ExitReason) {
        self.leaving = Some(reason.clone());
        step.output(Destination::Agent, Output::Exit(reason));
        step.set_timer(step.now.moment + EXIT_WAIT, Timer::ExitUnwritten);
    }

    /// Ends the process before the last writes are durable.
    pub(super) fn exit_unwritten(&mut self, step: &mut Step<'_>) {
        if let Some(reason) = self.leaving.take() {
            error!("the disk takes too long; ending before the last writes are durable");
            // The exit that waits for the writes has another destination.
            step.output_now(Destination::Liveness, Output::Exit(reason));
        }
    }
}
