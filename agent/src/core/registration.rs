//! Registration with the master: connecting, backoff, pings, epochs.
//!
//! The first attempt is made at once; failed attempts are followed by pauses with jitter. On a new link the agent sends
//! `register`, or `reregister` if it has an id. Invariants: a frame is obeyed only as `epochs.rs` decides, and a
//! changed epoch is durable before the frame takes effect; the loss of the master touches no task.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::convert::{self, Format};
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::ExecutorExited;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{AgentId, FrameworkId, Moment, TaskId};
use prost::Message as _;
use tracing::{error, info, warn};

use super::epochs::{Decision, MasterEpoch};
use super::reregistration::divide;
use super::states::dropped_or_lost;
use super::{
    Agent, Destination, ExitReason, LinkAction, LinkId, Lsn, State, Step, StreamKey, Timer,
};
use crate::checkpoint::{AgentRecord, Write};

/// The longest pause between attempts, so that a returning master is found soon.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// The longest pause after a refusal: Mesos's longest registration pause.
const REFUSED_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The time after which a master that accepts the connection and does not answer is tried again.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The ping timeout if the master's value is invalid: 5 pings of 15 s.
const PING_TIMEOUT_DEFAULT: Duration = Duration::from_secs(75);
/// The longest ping timeout that the agent accepts.
const PING_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The connection to the master.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) id: LinkId,
    phase: LinkPhase,
    /// Attempts since the last success.
    failures: u32,
    /// The cluster of the master, if it has named it.
    cluster_id: Option<String>,
    ping_timeout: Duration,
    /// The write that must be durable before the registration is sent.
    registration: Lsn,
    pub(super) last_ping: Moment,
    /// Executors that ended after a registration with their names was sent, and before its answer.
    exited: Vec<ExecutorExited>,
}

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
enum LinkPhase {
    #[default]
    Down,
    Connecting,
    Registering,
    Registered,
}

impl Agent {
    pub(super) fn connect_now(&mut self, step: &mut Step<'_>) {
        let next = self.next_link(step);
        self.connect_due(step, next);
    }

    fn next_link(&mut self, step: &mut Step<'_>) -> LinkId {
        self.link.id = LinkId(self.link.id.0.saturating_add(1));
        self.link.phase = LinkPhase::Down;
        self.link.cluster_id = None;
        step.use_link(self.link.id);
        self.link.id
    }

    pub(super) fn connect_due(&mut self, step: &mut Step<'_>, link: LinkId) {
        let is_expected = link == self.link.id && self.link.phase == LinkPhase::Down;
        if !is_expected || !self.needs_master() {
            return;
        }
        if self.is_given_up_for_disk() {
            return step.set_timer(step.now.moment + BACKOFF_MAX, Timer::Connect(link));
        }
        self.link.phase = LinkPhase::Connecting;
        step.output_now(Destination::Liveness, LinkAction::Connect { link });
    }

    pub(super) fn link_up(&mut self, step: &mut Step<'_>, link: LinkId, led: Option<LedEpoch>) {
        if link != self.link.id || self.link.phase != LinkPhase::Connecting {
            return;
        }
        self.link.phase = LinkPhase::Registering;
        if let Some(led) = led {
            self.led_by(step, led);
        }
        step.set_timer(
            step.now.moment + REGISTRATION_TIMEOUT,
            Timer::RegistrationTimeout(link),
        );
        let is_stuck = Self::is_epoch_stuck(step);
        self.link.registration = match is_stuck {
            true => Lsn::default(),
            false => step.lsn(),
        };
        let parts = match self.registration_message(step) {
            ToMaster::Reregister(whole) => divide(whole),
            registration_message => vec![registration_message],
        };
        for part in parts {
            match is_stuck {
                true => step.send_now(part),
                false => step.send(part),
            }
        }
    }

    /// Whether the disk has not taken a new epoch for so long that the registration does not wait for it: the master
    /// must not consider the agent lost because its disk hangs. In memory the epoch is obeyed, and nothing else waits
    /// to be written.
    fn is_epoch_stuck(step: &Step<'_>) -> bool {
        let since = step.epoch_waits_since();
        since.is_some_and(|since| step.now.moment.saturating_since(since) >= REGISTRATION_TIMEOUT)
    }

    /// Handles the epoch with which a master leads. A higher epoch is obeyed now, since the master may read the agent's
    /// next message much later, and no lower epoch must be obeyed meanwhile. The agent also registers with a master
    /// that leads with a lower epoch: if its registry was restored from an older copy, the master raises its epoch.
    fn led_by(&mut self, step: &mut Step<'_>, led: LedEpoch) {
        self.link.cluster_id = led.cluster_id;
        let master = MasterEpoch {
            cluster_id: self.link.cluster_id.as_deref(),
            epoch: led.epoch,
            master_id: None,
        };
        if self.epochs.is_raised_by(master) {
            self.is_obeyed(step, led.epoch);
        }
    }

    /// Reports the end of an executor to the master. A master that does not know the agent yet learns of it from the
    /// registration, or, if that was sent already, right after its answer.
    pub(super) fn send_exited(&mut self, step: &mut Step<'_>, exited: ExecutorExited) {
        match (self.state, self.link.phase) {
            (State::Running, _) => step.send(ToMaster::ExecutorExited(exited)),
            (_, LinkPhase::Registering) => self.link.exited.push(exited),
            _ => {}
        }
    }

    fn registration_message(&mut self, step: &Step<'_>) -> ToMaster {
        self.link.exited.clear();
        let mut info = step.options.info.clone();
        info.id = step.agent_id_message();
        let known = info.id.is_some();
        let capability = |kind: &pb::agent_info::capability::Type| pb::agent_info::Capability {
            r#type: Some((*kind).into()),
        };
        let register = wire::Register {
            agent_info: info,
            version: step.options.version.clone(),
            checkpointed_resources: convert::to_resources(
                &self.total.to_checkpoint(),
                Format::PostRefinement,
            )
            .unwrap_or_default(),
            capabilities: step.options.capabilities.iter().map(capability).collect(),
            resource_version_uuid: None,
            address: Some(step.options.address.clone()),
            frame_bytes_max: Some(step.options.frame_bytes_max),
            obeyed: self.epochs.kept().cloned(),
        };
        if !known {
            return ToMaster::Register(register);
        }
        let executors: Vec<_> = self.all_executors().collect();
        let tasks = executors
            .iter()
            .flat_map(|executor| executor.tasks.values());
        let told = executors
            .iter()
            .filter(|executor| executor.info.is_some() && executor.is_live());
        let frameworks = self.frameworks.values();
        ToMaster::Reregister(wire::Reregister {
            register,
            tasks: tasks
                .map(|task| task.to_message().encode_to_vec())
                .collect(),
            executors: told.map(|executor| executor.describe()).collect(),
            frameworks: frameworks
                .map(|framework| (*framework.info).clone())
                .collect(),
            completed_frameworks: Vec::new(),
            operations: self.operations.all().map(|one| (**one).clone()).collect(),
        })
    }

    pub(super) fn link_down(&mut self, step: &mut Step<'_>, link: LinkId, reason: &str) {
        if link != self.link.id || self.link.phase == LinkPhase::Down {
            return;
        }
        let was_registered = self.link.phase == LinkPhase::Registered;
        self.lose_master();
        if !self.needs_master() {
            self.link.phase = LinkPhase::Down;
            return;
        }
        let next = self.next_link(step);
        if was_registered {
            warn!(reason, "lost the master; tasks go on, looking for it again");
            self.connect_due(step, next);
        } else {
            let pause = self.backoff(step, BACKOFF_MAX);
            warn!(
                reason,
                attempt = self.link.failures,
                retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "the master does not answer; trying again"
            );
            step.set_timer(step.now.moment + pause, Timer::Connect(next));
        }
    }

    /// Sends the updates that had no room on this connection.
    pub(super) fn link_writable(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
        unsent: BTreeSet<StreamKey>,
    ) {
        if link == self.link.id && self.updates.is_flowing() {
            for key in unsent {
                self.send_head(step, &key);
            }
        }
    }

    fn lose_master(&mut self) {
        self.updates.pause();
        self.operations.pause();
        if self.state == State::Running {
            self.state = State::Disconnected;
        }
    }

    /// The pause: between half and all of the unit doubled per failure, so that agents do not reconnect all at once.
    fn backoff(&mut self, step: &mut Step<'_>, max: Duration) -> Duration {
        self.link.failures = self.link.failures.saturating_add(1);
        let doublings = self.link.failures.saturating_sub(1).min(16);
        let unit = step.options.registration_backoff_factor;
        let ceiling = unit.saturating_mul(1 << doublings).min(max);
        ceiling.mul_f64(0.5 + 0.5 * step.draw())
    }

    /// Gives the current link up and tries again after a pause, or at once.
    fn reconnect(&mut self, step: &mut Step<'_>, pause: Option<Duration>) {
        let link = self.link.id;
        step.output_now(Destination::Liveness, LinkAction::Disconnect { link });
        self.lose_master();
        let next = self.next_link(step);
        match pause {
            Some(pause) => step.set_timer(step.now.moment + pause, Timer::Connect(next)),
            None => self.connect_due(step, next),
        }
    }

    pub(super) fn registration_overdue(&mut self, step: &mut Step<'_>, link: LinkId) {
        if link == self.link.id && self.link.phase == LinkPhase::Registering {
            match self.link.registration > step.durable() {
                true => {
                    warn!("the registration waits for the disk: its contents are not durable yet")
                }
                false => {
                    warn!("the master took the connection but did not answer the registration")
                }
            }
            let pause = self.backoff(step, BACKOFF_MAX);
            self.reconnect(step, Some(pause));
        }
    }

    pub(super) fn ping_overdue(&mut self, step: &mut Step<'_>, link: LinkId) {
        if link != self.link.id || self.link.phase != LinkPhase::Registered {
            return;
        }
        let due = self.link.last_ping + self.link.ping_timeout;
        if due > step.now.moment {
            step.set_timer(due, Timer::PingTimeout(link));
            return;
        }
        warn!(
            timeout_s = self.link.ping_timeout.as_secs(),
            "the master went silent; connecting anew"
        );
        self.reconnect(step, None);
    }

    pub(super) fn frame(&mut self, step: &mut Step<'_>, link: LinkId, frame: wire::MasterFrame) {
        if link != self.link.id || matches!(self.link.phase, LinkPhase::Down) {
            return;
        }
        if frame.cluster_id.is_some() {
            self.link.cluster_id = frame.cluster_id;
        }
        if !self.is_obeyed(step, frame.epoch) {
            if self.link.phase == LinkPhase::Registering {
                let pause = self.backoff(step, BACKOFF_MAX);
                self.reconnect(step, Some(pause));
            }
            return;
        }
        let Some(message) = frame.message else {
            return;
        };
        match message {
            FromMaster::Registered(registered) => self.registered(step, frame.epoch, registered),
            FromMaster::Ping(ping) => self.ping(step, ping),
            FromMaster::Refused(refused) => self.refused(step, &refused),
            FromMaster::Shutdown(shutdown) => self.shut_down(step, shutdown.reason),
            // Also during the shutdown: the updates of tasks that end with the agent are acknowledged.
            FromMaster::Acknowledge(acknowledge) => {
                let ids = stream_key(&acknowledge.framework_id, &acknowledge.task_id);
                if let Some(stream) = ids {
                    self.acknowledged(step, &stream, &acknowledge.uuid);
                }
            }
            message if self.is_answered(&message) => self.handle_request(step, message),
            _ => warn!("dropped an order that came before the registration or after the end"),
        }
    }

    /// Whether a frame of this epoch on the current connection is obeyed; logs a refusal.
    fn is_obeyed(&mut self, step: &mut Step<'_>, epoch: u64) -> bool {
        let master_info = self.master.as_ref();
        let is_registered = self.link.phase == LinkPhase::Registered;
        let master = MasterEpoch {
            cluster_id: self.link.cluster_id.as_deref(),
            epoch,
            master_id: master_info
                .filter(|_| is_registered)
                .map(|info| info.id.as_str()),
        };
        let highest = self.epochs.kept().map(|kept| kept.epoch);
        match self.epochs.decide(step.now.moment, master) {
            Decision::Obey {
                has_changed,
                is_lower,
            } => {
                if is_lower {
                    warn!(
                        epoch,
                        "taking a master whose registry is younger: the one before was not heard of for long"
                    );
                }
                if has_changed {
                    self.record_identity_anew(step);
                }
                true
            }
            Decision::Drop { for_ever, is_news } => {
                if is_news && for_ever {
                    error!(
                        epoch,
                        obeyed = highest,
                        cluster_id = self.link.cluster_id,
                        "dropped a frame of a master whose epoch is lower than one of the same cluster that was obeyed: \
                         it has been succeeded, or its registry was restored from an older copy; in the latter case it \
                         makes its epoch a higher one when agents register, and its log says why if it does not"
                    );
                } else if is_news {
                    let heard = self.epochs.heard();
                    warn!(
                        epoch,
                        heard, "dropped a frame of a master that has been succeeded"
                    );
                }
                false
            }
        }
    }

    /// Handles a request from the master to a registered agent.
    fn handle_request(&mut self, step: &mut Step<'_>, message: FromMaster) {
        match message {
            FromMaster::RunTask(run) => self.run_task(step, run),
            FromMaster::RunTaskGroup(run) => self.run_task_group(step, run),
            FromMaster::KillTask(kill) => self.kill_task(step, &kill),
            FromMaster::ShutdownExecutor(shutdown) => self.shutdown_executor(step, &shutdown),
            FromMaster::ShutdownFramework(shutdown) => self.shutdown_framework(step, &shutdown),
            FromMaster::UpdateFramework(update) => self.update_framework(step, update.framework),
            FromMaster::ExecutorMessage(message) => self.message_for_executor(step, message),
            FromMaster::ApplyOperation(apply) => self.apply_operation(step, apply),
            FromMaster::AcknowledgeOperation(message) => {
                self.operation_acknowledged(step, &message)
            }
            FromMaster::Drain(drain) => self.drain(step, &drain),
            FromMaster::Registered(_)
            | FromMaster::Acknowledge(_)
            | FromMaster::Ping(_)
            | FromMaster::Refused(_)
            | FromMaster::Shutdown(_) => {}
        }
    }

    fn registered(&mut self, step: &mut Step<'_>, epoch: u64, registered: wire::Registered) {
        if self.link.phase != LinkPhase::Registering || !self.needs_master() {
            return;
        }
        let told = &registered.agent_id.value;
        let Ok(id) = AgentId::new(told) else {
            error!(agent_id = told, "the master sent an invalid agent id");
            let pause = self.backoff(step, REFUSED_BACKOFF_MAX);
            return self.reconnect(step, Some(pause));
        };
        match step.agent_id() {
            Some(known) if *known != id => {
                let reason = format!("the master takes this agent, {known}, for {id}");
                error!(%reason, "registration failed");
                return self.exit_process(step, ExitReason::Refused(reason));
            }
            Some(_) => info!(agent_id = %id, epoch, "re-registered"),
            None => info!(agent_id = %id, epoch, "registered"),
        }
        let master = MasterEpoch {
            cluster_id: self.link.cluster_id.as_deref(),
            epoch,
            master_id: registered.master_info.as_ref().map(|info| info.id.as_str()),
        };
        let has_epoch_changed = self.epochs.keep(master);
        let is_new = step.set_agent_id(id);
        let has_info_changed = self.take_up_info(step);
        match is_new {
            true => self.record_identity(step),
            false if has_info_changed || has_epoch_changed => self.record_identity_anew(step),
            false => {}
        }
        self.state = self.state_with_master();
        self.link.phase = LinkPhase::Registered;
        self.link.failures = 0;
        self.link.last_ping = step.now.moment;
        self.link.ping_timeout = ping_timeout(registered.total_ping_timeout_seconds);
        step.set_timer(
            step.now.moment + self.link.ping_timeout,
            Timer::PingTimeout(self.link.id),
        );
        self.master = registered.master_info.map(std::sync::Arc::new);
        self.tell_silent_disk(step);
        for key in self.updates.resume(step.now.moment) {
            self.send_head(step, &key);
        }
        for uuid in self.operations.resume(step.now.moment) {
            self.tell_operation(step, &uuid);
        }
        for uuid in registered.unknown_operations {
            self.answer_unknown_operation(step, uuid);
        }
        for exited in std::mem::take(&mut self.link.exited) {
            step.send(ToMaster::ExecutorExited(exited));
        }
        self.tell_total(step);
        for task in registered.unknown_tasks {
            self.answer_unknown(step, &task);
        }
    }

    /// Adopts the configured description after a master accepted it: from now on it may not shrink. Returns whether the
    /// recorded description has changed.
    fn take_up_info(&mut self, step: &Step<'_>) -> bool {
        let info = Self::configured_info(step);
        let is_other = self.recorded_info.as_deref() != Some(&info);
        self.recorded_info = Some(Box::new(info));
        is_other
    }

    fn configured_info(step: &Step<'_>) -> pb::AgentInfo {
        pb::AgentInfo {
            id: step.agent_id_message(),
            ..step.options.info.clone()
        }
    }

    /// The write of the agent's identity and the epoch that it obeys; `None` for an agent without an id.
    fn identity(&self, step: &Step<'_>) -> Option<Write> {
        let recorded = self.recorded_info.as_deref().cloned();
        let record = AgentRecord {
            info: recorded.unwrap_or_else(|| Self::configured_info(step)),
            obeyed: self.epochs.kept().cloned(),
        };
        Some(Write::Agent {
            agent: step.agent_id()?.clone(),
            record: Box::new(record),
        })
    }

    /// Records the identity of a new agent; later effects wait for the write.
    fn record_identity(&mut self, step: &mut Step<'_>) {
        if let Some(identity) = self.identity(step) {
            step.persist(identity);
        }
    }

    /// Records the identity of a known agent again. A hung disk does not prevent its next registration.
    fn record_identity_anew(&mut self, step: &mut Step<'_>) {
        if let Some(identity) = self.identity(step) {
            step.persist_epoch(identity);
        }
    }

    /// Answers for a task that the master assigned to this agent and that is unknown here: it never arrived.
    fn answer_unknown(&mut self, step: &mut Step<'_>, task: &wire::TaskToReconcile) {
        let Some(stream) = stream_key(&task.framework_id, &task.task_id) else {
            return;
        };
        if self.find_task(&stream).is_some() || self.updates.has_unacknowledged(&stream) {
            return;
        }
        let status = self.status(
            step,
            task.task_id.clone(),
            dropped_or_lost(task.partition_aware),
            Source::Agent,
            Some(Reason::Reconciliation),
            Some("Reconciliation: the task is unknown to the agent".to_owned()),
        );
        self.answer_for_absent(step, &stream, status, Default::default());
    }

    fn ping(&mut self, step: &mut Step<'_>, ping: wire::Ping) {
        self.link.last_ping = step.now.moment;
        if let Some(pong) = self.pong(ping.sequence) {
            step.send_now(ToMaster::Pong(pong));
        }
        if !ping.connected && self.link.phase == LinkPhase::Registered {
            warn!("the master holds this agent for disconnected; registering anew");
            self.reconnect(step, None);
        }
    }

    fn refused(&mut self, step: &mut Step<'_>, refused: &wire::Refused) {
        error!(
            reason = refused.reason,
            permanent = refused.permanent,
            "the master refused this agent"
        );
        if self.state == State::Terminating {
            // A master refuses an agent just after its shutdown request: the running tasks must end first.
        } else if refused.permanent {
            self.exit_process(step, ExitReason::Refused(refused.reason.clone()));
        } else {
            let pause = self.backoff(step, REFUSED_BACKOFF_MAX);
            self.reconnect(step, Some(pause));
        }
    }

    /// Sends the last message to a master. Returns whether the agent is registered with one.
    pub(super) fn send_unregister(&mut self, step: &mut Step<'_>) -> bool {
        let is_registered = self.link.phase == LinkPhase::Registered;
        if is_registered {
            let reason = "an operator asked the agent to".to_owned();
            step.send(ToMaster::Unregister(wire::Unregister { reason }));
        }
        is_registered
    }

    /// Ends the process, without further steps.
    pub(super) fn exit_process(&mut self, step: &mut Step<'_>, reason: ExitReason) {
        self.lose_master();
        self.state = State::Terminating;
        self.exit = None;
        self.output_exit(step, reason);
    }
}

fn ping_timeout(seconds: f64) -> Duration {
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if timeout.is_zero() => PING_TIMEOUT_DEFAULT,
        Ok(timeout) => timeout.min(PING_TIMEOUT_MAX),
        Err(_) => PING_TIMEOUT_DEFAULT,
    }
}

/// The stream of a task named on the wire; `None` for an invalid id.
pub(crate) fn stream_key(framework: &pb::FrameworkId, task: &pb::TaskId) -> Option<StreamKey> {
    let ids = FrameworkId::new(&framework.value)
        .ok()
        .zip(TaskId::new(&task.value).ok());
    if ids.is_none() {
        warn!(
            framework_id = framework.value,
            task_id = task.value,
            "dropped a frame with an invalid id"
        );
    }
    ids.map(|(framework, task)| StreamKey { framework, task })
}
