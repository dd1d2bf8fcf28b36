//! Registration with the master: connecting, backoff, pings, epochs.
//!
//! The first attempt is made at once; failed attempts are followed by pauses with jitter. On a new link the agent sends
//! `register`, or `reregister` if it has an id. Invariants: a frame is obeyed only as `epochs.rs` decides, and a
//! changed epoch is durable before the frame takes effect; the loss of the master touches no task.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::convert::{self, Format};
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::ExecutorExited;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{AgentId, FrameworkId, Moment, Resources, TaskId};
use tracing::{error, info, warn};

use super::consequence::Consequence;
use super::epochs::{Decision, Epochs, MasterEpoch};
use super::reregistration::divide;
use super::{Destination, ExitReason, LinkAction, LinkId, Lsn, Step, StreamKey, Timer};
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
struct Link {
    id: LinkId,
    phase: LinkPhase,
    /// Attempts since the last success.
    failures: u32,
    /// The cluster of the master, if it has named it.
    cluster_id: Option<String>,
    ping_timeout: Duration,
    /// The write that must be durable before the registration is sent.
    registration: Lsn,
    last_ping: Moment,
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

/// The connection to the master, and the identity and the epochs that the agent registers with.
#[derive(Debug, Default)]
pub(super) struct Registration {
    link: Link,
    /// The master of the current or the last registration.
    master: Option<Arc<pb::MasterInfo>>,
    epochs: Epochs,
    /// The recorded identity of the agent; without an id before the first registration.
    recorded_info: Option<Box<pb::AgentInfo>>,
    /// Whether the registration waits for the return of recovered executors.
    awaits_executors: bool,
}

impl Registration {
    /// Restores the recorded identity.
    pub(super) fn recover(&mut self, record: AgentRecord) {
        self.recorded_info = Some(Box::new(record.info));
        self.epochs = Epochs::recovered(record.obeyed);
    }

    /// The master of the current or the last registration.
    pub(super) fn master(&self) -> Option<&Arc<pb::MasterInfo>> {
        self.master.as_ref()
    }

    /// The epoch of the last obeyed frame; `None` before the first.
    pub(super) fn heard_epoch(&self) -> Option<u64> {
        Some(self.epochs.heard()).filter(|epoch| *epoch > 0)
    }

    pub(super) fn is_registered(&self) -> bool {
        self.link.phase == LinkPhase::Registered
    }

    /// Whether this is the current connection.
    pub(super) fn is_current(&self, link: LinkId) -> bool {
        link == self.link.id
    }

    /// Lets the registration wait for the return of recovered executors.
    pub(super) fn await_executors(&mut self, step: &mut Step<'_>) {
        self.awaits_executors = true;
        let at = step.now.moment + step.options.executor_reregistration_timeout;
        step.set_timer(at, Timer::ExecutorsBack);
    }

    /// Whether the registration waits for the return of recovered executors.
    pub(super) fn awaits_executors(&self) -> bool {
        self.awaits_executors
    }

    /// Connects for the first time.
    #[must_use]
    pub(super) fn connect_now(&mut self, step: &mut Step<'_>) -> Consequence {
        self.awaits_executors = false;
        Consequence::ConnectDue(self.next_link(step))
    }

    /// Connects again on the same link.
    #[must_use]
    pub(super) fn connect_again(&self) -> Consequence {
        Consequence::ConnectDue(self.link.id)
    }

    fn next_link(&mut self, step: &mut Step<'_>) -> LinkId {
        self.link.id = LinkId(self.link.id.0.saturating_add(1));
        self.link.phase = LinkPhase::Down;
        self.link.cluster_id = None;
        step.use_link(self.link.id);
        self.link.id
    }

    /// Connects, unless the connection is outdated. An agent that has given up because of its disk tries again later.
    pub(super) fn connect(&mut self, step: &mut Step<'_>, link: LinkId, has_given_up: bool) {
        if !self.is_current(link) || self.link.phase != LinkPhase::Down {
            return;
        }
        if has_given_up {
            return step.set_timer(step.now.moment + BACKOFF_MAX, Timer::Connect(link));
        }
        self.link.phase = LinkPhase::Connecting;
        step.output_now(Destination::Liveness, LinkAction::Connect { link });
    }

    /// Begins the registration on a new connection.
    #[must_use]
    pub(super) fn link_up(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
        led: Option<LedEpoch>,
    ) -> Option<Consequence> {
        if !self.is_current(link) || self.link.phase != LinkPhase::Connecting {
            return None;
        }
        self.link.phase = LinkPhase::Registering;
        if let Some(led) = led {
            self.led_by(step, led);
        }
        step.set_timer(
            step.now.moment + REGISTRATION_TIMEOUT,
            Timer::RegistrationTimeout(link),
        );
        Some(Consequence::RegistrationBegun)
    }

    /// Sends the registration. `describe` adds the state of the agent to the message of a known agent.
    pub(super) fn register(
        &mut self,
        step: &mut Step<'_>,
        checkpointed: &Resources,
        describe: impl FnOnce(wire::Register) -> wire::Reregister,
    ) {
        let is_stuck = is_epoch_stuck(step);
        self.link.registration = match is_stuck {
            true => Lsn::default(),
            false => step.lsn(),
        };
        self.link.exited.clear();
        let register = self.registration_message(step, checkpointed);
        let parts = match register.agent_info.id {
            Some(_) => divide(describe(register)),
            None => vec![ToMaster::Register(register)],
        };
        for part in parts {
            match is_stuck {
                true => step.send_now(part),
                false => step.send(part),
            }
        }
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
    pub(super) fn report_exit(
        &mut self,
        step: &mut Step<'_>,
        is_running: bool,
        exited: ExecutorExited,
    ) {
        if is_running {
            step.send(ToMaster::ExecutorExited(exited));
        } else if self.link.phase == LinkPhase::Registering {
            self.link.exited.push(exited);
        }
    }

    fn registration_message(&self, step: &Step<'_>, checkpointed: &Resources) -> wire::Register {
        let capability = |kind: &pb::agent_info::capability::Type| pb::agent_info::Capability {
            r#type: Some((*kind).into()),
        };
        wire::Register {
            agent_info: configured_info(step),
            version: step.options.version.clone(),
            checkpointed_resources: convert::to_resources(checkpointed, Format::PostRefinement)
                .unwrap_or_default(),
            capabilities: step.options.capabilities.iter().map(capability).collect(),
            resource_version_uuid: None,
            address: Some(step.options.address.clone()),
            frame_bytes_max: Some(step.options.frame_bytes_max),
            obeyed: self.epochs.kept().cloned(),
        }
    }

    /// Handles the end of a connection.
    #[must_use]
    pub(super) fn link_down(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
        reason: &str,
        needs_master: bool,
    ) -> Option<Consequence> {
        if !self.is_current(link) || self.link.phase == LinkPhase::Down {
            return None;
        }
        let was_registered = self.is_registered();
        if !needs_master {
            self.link.phase = LinkPhase::Down;
            return Some(Consequence::MasterLost { connect: None });
        }
        let next = self.next_link(step);
        if was_registered {
            warn!(reason, "lost the master; tasks go on, looking for it again");
            return Some(Consequence::MasterLost {
                connect: Some(next),
            });
        }
        let pause = self.backoff(step, BACKOFF_MAX);
        warn!(
            reason,
            attempt = self.link.failures,
            retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "the master does not answer; trying again"
        );
        step.set_timer(step.now.moment + pause, Timer::Connect(next));
        Some(Consequence::MasterLost { connect: None })
    }

    /// The pause: between half and all of the unit doubled per failure, so that agents do not reconnect all at once.
    fn backoff(&mut self, step: &mut Step<'_>, max: Duration) -> Duration {
        self.link.failures = self.link.failures.saturating_add(1);
        let doublings = self.link.failures.saturating_sub(1).min(16);
        let unit = step.options.registration_backoff_factor;
        let ceiling = unit.saturating_mul(1 << doublings).min(max);
        ceiling.mul_f64(0.5 + 0.5 * step.draw())
    }

    /// Gives the current link up and tries again at once.
    fn reconnect(&mut self, step: &mut Step<'_>) -> Consequence {
        let link = self.link.id;
        step.output_now(Destination::Liveness, LinkAction::Disconnect { link });
        Consequence::MasterLost {
            connect: Some(self.next_link(step)),
        }
    }

    /// Gives the current link up and tries again after a pause.
    fn reconnect_later(&mut self, step: &mut Step<'_>, pause_max: Duration) -> Consequence {
        let pause = self.backoff(step, pause_max);
        let link = self.link.id;
        step.output_now(Destination::Liveness, LinkAction::Disconnect { link });
        let next = self.next_link(step);
        step.set_timer(step.now.moment + pause, Timer::Connect(next));
        Consequence::MasterLost { connect: None }
    }

    /// Handles the missing answer to a registration.
    #[must_use]
    pub(super) fn registration_overdue(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
    ) -> Option<Consequence> {
        if !self.is_current(link) || self.link.phase != LinkPhase::Registering {
            return None;
        }
        match self.link.registration > step.durable() {
            true => {
                warn!("the registration waits for the disk: its contents are not durable yet");
            }
            false => {
                warn!("the master took the connection but did not answer the registration");
            }
        }
        Some(self.reconnect_later(step, BACKOFF_MAX))
    }

    /// Handles a missing ping.
    #[must_use]
    pub(super) fn ping_overdue(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
    ) -> Option<Consequence> {
        if !self.is_current(link) || !self.is_registered() {
            return None;
        }
        let due = self.link.last_ping + self.link.ping_timeout;
        if due > step.now.moment {
            step.set_timer(due, Timer::PingTimeout(link));
            return None;
        }
        warn!(
            timeout_s = self.link.ping_timeout.as_secs(),
            "the master went silent; connecting anew"
        );
        Some(self.reconnect(step))
    }

    /// Extends the deadlines of the master after a pause of the agent.
    pub(super) fn extend_deadlines(&mut self, now: Moment, lasted: Duration) {
        self.link.last_ping = (self.link.last_ping + lasted).min(now);
        self.epochs.paused(now, lasted);
    }

    /// Decides whether a frame of the master is obeyed.
    #[must_use]
    pub(super) fn take_frame(
        &mut self,
        step: &mut Step<'_>,
        link: LinkId,
        frame: wire::MasterFrame,
    ) -> Option<Consequence> {
        if !self.is_current(link) || self.link.phase == LinkPhase::Down {
            return None;
        }
        if frame.cluster_id.is_some() {
            self.link.cluster_id = frame.cluster_id;
        }
        if !self.is_obeyed(step, frame.epoch) {
            let is_registering = self.link.phase == LinkPhase::Registering;
            return is_registering.then(|| self.reconnect_later(step, BACKOFF_MAX));
        }
        let (epoch, message) = (frame.epoch, Box::new(frame.message?));
        Some(Consequence::Ordered { epoch, message })
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

    /// Handles the answer to a registration.
    #[must_use]
    pub(super) fn registered(
        &mut self,
        step: &mut Step<'_>,
        epoch: u64,
        registered: wire::Registered,
    ) -> Option<Consequence> {
        if self.link.phase != LinkPhase::Registering {
            return None;
        }
        let told = &registered.agent_id.value;
        let Ok(id) = AgentId::new(told) else {
            error!(agent_id = told, "the master sent an invalid agent id");
            return Some(self.reconnect_later(step, REFUSED_BACKOFF_MAX));
        };
        match step.agent_id() {
            Some(known) if *known != id => {
                let reason = format!("the master takes this agent, {known}, for {id}");
                error!(%reason, "registration failed");
                return Some(Consequence::ProcessEnds(ExitReason::Refused(reason)));
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
        self.link.phase = LinkPhase::Registered;
        self.link.failures = 0;
        self.link.last_ping = step.now.moment;
        self.link.ping_timeout = ping_timeout(registered.total_ping_timeout_seconds);
        step.set_timer(
            step.now.moment + self.link.ping_timeout,
            Timer::PingTimeout(self.link.id),
        );
        self.master = registered.master_info.map(Arc::new);
        Some(Consequence::Registered {
            exited: std::mem::take(&mut self.link.exited),
            unknown_operations: registered.unknown_operations,
            unknown_tasks: registered.unknown_tasks,
        })
    }

    /// Adopts the configured description after a master accepted it: from now on it may not shrink. Returns whether the
    /// recorded description has changed.
    fn take_up_info(&mut self, step: &Step<'_>) -> bool {
        let info = configured_info(step);
        let is_other = self.recorded_info.as_deref() != Some(&info);
        self.recorded_info = Some(Box::new(info));
        is_other
    }

    /// The write of the agent's identity and the epoch that it obeys; `None` for an agent without an id.
    fn identity(&self, step: &Step<'_>) -> Option<Write> {
        let recorded = self.recorded_info.as_deref().cloned();
        let record = AgentRecord {
            info: recorded.unwrap_or_else(|| configured_info(step)),
            obeyed: self.epochs.kept().cloned(),
        };
        Some(Write::Agent {
            agent: step.agent_id()?.clone(),
            record: Box::new(record),
        })
    }

    /// Records the identity of a new agent; later effects wait for the write.
    fn record_identity(&self, step: &mut Step<'_>) {
        if let Some(identity) = self.identity(step) {
            step.persist(identity);
        }
    }

    /// Records the identity of a known agent again. A hung disk does not prevent its next registration.
    fn record_identity_anew(&self, step: &mut Step<'_>) {
        if let Some(identity) = self.identity(step) {
            step.persist_epoch(identity);
        }
    }

    /// Notes a ping.
    pub(super) fn note_ping(&mut self, step: &Step<'_>) {
        self.link.last_ping = step.now.moment;
    }

    /// Registers anew with a master that considers this agent disconnected.
    #[must_use]
    pub(super) fn register_anew(&mut self, step: &mut Step<'_>) -> Option<Consequence> {
        self.is_registered().then(|| {
            warn!("the master holds this agent for disconnected; registering anew");
            self.reconnect(step)
        })
    }

    /// Tries again later after a temporary refusal.
    #[must_use]
    pub(super) fn retry_after_refusal(&mut self, step: &mut Step<'_>) -> Consequence {
        self.reconnect_later(step, REFUSED_BACKOFF_MAX)
    }
}

/// Whether the disk has not taken a new epoch for so long that the registration does not wait for it: the master must
/// not consider the agent lost because its disk hangs. In memory the epoch is obeyed, and nothing else waits to be
/// written.
fn is_epoch_stuck(step: &Step<'_>) -> bool {
    let since = step.epoch_waits_since();
    since.is_some_and(|since| step.now.moment.saturating_since(since) >= REGISTRATION_TIMEOUT)
}

fn configured_info(step: &Step<'_>) -> pb::AgentInfo {
    pb::AgentInfo {
        id: step.agent_id_message(),
        ..step.options.info.clone()
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
