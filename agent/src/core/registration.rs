//! Registration with the master: connecting, backoff, pings, epochs.
//!
//! The first attempt is made at once; pauses with jitter come between attempts that failed. On a new link the agent
//! sends `register`, or `reregister` if it has an id. Invariants: frames of a lower epoch than the
//! highest heard of lately are dropped; losing the master touches no task.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{AgentId, FrameworkId, Now, TaskId};
use tracing::{error, info, warn};

use super::reregistration::divide;
use super::states::dropped_or_lost;
use super::{
    AgentCore, Destination, ExitReason, LinkAction, LinkId, Output, State, StreamKey, Timer,
};
use crate::checkpoint::{AgentRecord, Write};

/// Pauses between attempts do not grow beyond this, so that a master that comes back is found soon.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// A master that refuses is asked again less often: Mesos's longest registration pause.
const REFUSED_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A master that takes the connection and says nothing for this long is tried anew.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the master of the highest epoch may be silent before one of a lower epoch is taken for what
/// comes after a lost or restored registry, not for a master that has been succeeded: such a one ends
/// with its lease, long before.
const EPOCH_MEMORY: Duration = Duration::from_secs(75);
/// What the master is taken to mean when its ping timeout makes no sense: 5 pings of 15 s.
const PING_TIMEOUT_DEFAULT: Duration = Duration::from_secs(75);
/// Nor may it be longer than this.
const PING_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The connection to the master.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) id: LinkId,
    phase: LinkPhase,
    /// Attempts since the last success.
    failures: u32,
    ping_timeout: Duration,
    pub(super) last_ping: meseta_resources::Moment,
}

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
enum LinkPhase {
    #[default]
    Down,
    Connecting,
    Registering,
    Registered,
}

impl AgentCore {
    pub(super) fn connect_now(&mut self, now: Now) {
        let next = self.next_link();
        self.connect_due(now, next);
    }

    fn next_link(&mut self) -> LinkId {
        self.link.id = LinkId(self.link.id.0.saturating_add(1));
        self.link.phase = LinkPhase::Down;
        self.link.id
    }

    pub(super) fn connect_due(&mut self, _now: Now, link: LinkId) {
        let is_expected = link == self.link.id && self.link.phase == LinkPhase::Down;
        if !is_expected || self.state == State::Terminating {
            return;
        }
        self.link.phase = LinkPhase::Connecting;
        self.output_now(Destination::Liveness, LinkAction::Connect { link });
    }

    pub(super) fn link_up(&mut self, now: Now, link: LinkId) {
        if link != self.link.id || self.link.phase != LinkPhase::Connecting {
            return;
        }
        self.link.phase = LinkPhase::Registering;
        self.set_timer(
            now.moment + REGISTRATION_TIMEOUT,
            Timer::RegistrationTimeout(link),
        );
        match self.registration_message() {
            ToMaster::Reregister(whole) => {
                for part in divide(whole) {
                    self.send(part);
                }
            }
            registration_message => self.send(registration_message),
        }
    }

    fn registration_message(&mut self) -> ToMaster {
        let mut info = self.options.info.clone();
        info.id = self.agent_id.as_ref().map(|id| pb::AgentId {
            value: id.to_string(),
        });
        let known = info.id.is_some();
        let capability = |kind: &pb::agent_info::capability::Type| pb::agent_info::Capability {
            r#type: Some((*kind).into()),
        };
        let register = wire::Register {
            agent_info: info,
            version: self.options.version.clone(),
            checkpointed_resources: convert::to_resources(
                &self.total.to_checkpoint(),
                Format::PostRefinement,
            )
            .unwrap_or_default(),
            capabilities: self.options.capabilities.iter().map(capability).collect(),
            resource_version_uuid: None,
            address: Some(self.options.address.clone()),
            frame_bytes_max: Some(self.options.frame_bytes_max),
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
            tasks: tasks.map(|task| task.to_message()).collect(),
            executors: told.map(|executor| executor.describe()).collect(),
            frameworks: frameworks
                .map(|framework| (*framework.info).clone())
                .collect(),
            completed_frameworks: Vec::new(),
            operations: self.operations.all().map(|one| (**one).clone()).collect(),
        })
    }

    pub(super) fn link_down(&mut self, now: Now, link: LinkId, reason: &str) {
        if link != self.link.id || self.link.phase == LinkPhase::Down {
            return;
        }
        let was_registered = self.link.phase == LinkPhase::Registered;
        self.lose_master();
        if self.state == State::Terminating {
            return;
        }
        let next = self.next_link();
        if was_registered {
            warn!(reason, "lost the master; tasks go on, looking for it again");
            self.connect_due(now, next);
        } else {
            let pause = self.backoff(BACKOFF_MAX);
            warn!(
                reason,
                attempt = self.link.failures,
                retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "the master does not answer; trying again"
            );
            self.set_timer(now.moment + pause, Timer::Connect(next));
        }
    }

    /// Sends the updates that found no room on this connection.
    pub(super) fn link_writable(&mut self, link: LinkId, unsent: BTreeSet<StreamKey>) {
        if link == self.link.id && self.updates.is_flowing() {
            for key in unsent {
                self.send_head(&key);
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

    /// Between half and all of the unit doubled per failure: jitter, but never a stampede.
    fn backoff(&mut self, max: Duration) -> Duration {
        self.link.failures = self.link.failures.saturating_add(1);
        let doublings = self.link.failures.saturating_sub(1).min(16);
        let unit = self.options.registration_backoff_factor;
        let ceiling = unit.saturating_mul(1 << doublings).min(max);
        ceiling.mul_f64(0.5 + 0.5 * self.rng.f64())
    }

    /// Gives the present link up and tries again after a pause, or at once.
    fn reconnect(&mut self, now: Now, pause: Option<Duration>) {
        let link = self.link.id;
        self.output_now(Destination::Liveness, LinkAction::Disconnect { link });
        self.lose_master();
        let next = self.next_link();
        match pause {
            Some(pause) => self.set_timer(now.moment + pause, Timer::Connect(next)),
            None => self.connect_due(now, next),
        }
    }

    pub(super) fn registration_overdue(&mut self, now: Now, link: LinkId) {
        if link == self.link.id && self.link.phase == LinkPhase::Registering {
            warn!("the master took the connection but did not answer the registration");
            let pause = self.backoff(BACKOFF_MAX);
            self.reconnect(now, Some(pause));
        }
    }

    pub(super) fn ping_overdue(&mut self, now: Now, link: LinkId) {
        if link != self.link.id || self.link.phase != LinkPhase::Registered {
            return;
        }
        let due = self.link.last_ping + self.link.ping_timeout;
        if due > now.moment {
            self.set_timer(due, Timer::PingTimeout(link));
            return;
        }
        warn!(
            timeout_s = self.link.ping_timeout.as_secs(),
            "the master went silent; connecting anew"
        );
        self.reconnect(now, None);
    }

    pub(super) fn frame(&mut self, now: Now, link: LinkId, frame: wire::MasterFrame) {
        if link != self.link.id || matches!(self.link.phase, LinkPhase::Down) {
            return;
        }
        let heard = now.moment.saturating_since(self.epoch_heard);
        if frame.epoch < self.epoch && heard > EPOCH_MEMORY {
            warn!(
                epoch = frame.epoch,
                highest = self.epoch,
                "taking a master whose registry is younger: the one before was not heard of for long"
            );
        } else if frame.epoch < self.epoch {
            warn!(
                epoch = frame.epoch,
                highest = self.epoch,
                "dropped a frame of a master that has been succeeded"
            );
            if self.link.phase == LinkPhase::Registering {
                let pause = self.backoff(BACKOFF_MAX);
                self.reconnect(now, Some(pause));
            }
            return;
        }
        self.epoch = frame.epoch;
        self.epoch_heard = now.moment;
        let Some(message) = frame.message else {
            return;
        };
        match message {
            FromMaster::Registered(registered) => self.registered(now, registered),
            FromMaster::Ping(ping) => self.ping(now, ping),
            FromMaster::Refused(refused) => self.refused(now, &refused),
            FromMaster::Shutdown(shutdown) => self.shut_down(now, shutdown.reason),
            // Also on the way out: what is told of tasks that end with the agent is acknowledged.
            FromMaster::Acknowledge(acknowledge) => {
                let ids = stream_key(&acknowledge.framework_id, &acknowledge.task_id);
                if let Some(stream) = ids {
                    self.acknowledged(now, &stream, &acknowledge.uuid);
                }
            }
            message if self.state == State::Running => self.handle_request(now, message),
            _ => warn!("dropped an order that came before the registration or after the end"),
        }
    }

    /// What a master may ask of a registered agent.
    fn handle_request(&mut self, now: Now, message: FromMaster) {
        match message {
            FromMaster::RunTask(run) => self.run_task(now, run),
            FromMaster::RunTaskGroup(run) => self.run_task_group(now, run),
            FromMaster::KillTask(kill) => self.kill_task(now, &kill),
            FromMaster::ShutdownExecutor(shutdown) => self.shutdown_executor(now, &shutdown),
            FromMaster::ShutdownFramework(shutdown) => self.shutdown_framework(now, &shutdown),
            FromMaster::UpdateFramework(update) => self.update_framework(now, update.framework),
            FromMaster::ExecutorMessage(message) => self.message_for_executor(message),
            FromMaster::ApplyOperation(apply) => self.apply_operation(now, apply),
            FromMaster::AcknowledgeOperation(message) => self.operation_acknowledged(&message),
            FromMaster::Drain(drain) => self.drain(now, &drain),
            FromMaster::Registered(_)
            | FromMaster::Acknowledge(_)
            | FromMaster::Ping(_)
            | FromMaster::Refused(_)
            | FromMaster::Shutdown(_) => {}
        }
    }

    fn registered(&mut self, now: Now, registered: wire::Registered) {
        if self.link.phase != LinkPhase::Registering || self.state == State::Terminating {
            return;
        }
        let told = &registered.agent_id.value;
        let Ok(id) = AgentId::new(told) else {
            error!(agent_id = told, "the master gave an id that is none");
            let pause = self.backoff(REFUSED_BACKOFF_MAX);
            return self.reconnect(now, Some(pause));
        };
        match &self.agent_id {
            Some(known) if *known != id => {
                let reason = format!("the master takes this agent, {known}, for {id}");
                error!(%reason, "registration failed");
                return self.exit_process(ExitReason::Refused(reason));
            }
            Some(_) => info!(agent_id = %id, epoch = self.epoch, "re-registered"),
            None => {
                info!(agent_id = %id, epoch = self.epoch, "registered");
                self.remember_identity(id);
            }
        }
        self.state = State::Running;
        self.link.phase = LinkPhase::Registered;
        self.link.failures = 0;
        self.link.last_ping = now.moment;
        self.link.ping_timeout = ping_timeout(registered.total_ping_timeout_seconds);
        self.set_timer(
            now.moment + self.link.ping_timeout,
            Timer::PingTimeout(self.link.id),
        );
        self.master = registered.master_info.map(std::sync::Arc::new);
        for key in self.updates.resume(now.moment) {
            self.send_head(&key);
        }
        for uuid in self.operations.resume(now.moment) {
            self.tell_operation(&uuid);
        }
        for uuid in registered.unknown_operations {
            self.answer_unknown_operation(now, uuid);
        }
        self.tell_total();
        for task in registered.unknown_tasks {
            self.answer_unknown(now, &task);
        }
    }

    fn remember_identity(&mut self, id: AgentId) {
        let mut info = self.options.info.clone();
        info.id = Some(pb::AgentId {
            value: id.to_string(),
        });
        self.agent_id = Some(id.clone());
        self.persist(Write::Agent {
            agent: id,
            record: Box::new(AgentRecord { info }),
        });
    }

    /// The master holds a task for us that we do not have: it never arrived.
    fn answer_unknown(&mut self, now: Now, task: &wire::TaskToReconcile) {
        let Some(stream) = stream_key(&task.framework_id, &task.task_id) else {
            return;
        };
        if self.find_task(&stream).is_some() || self.updates.has_unacknowledged(&stream) {
            return;
        }
        let status = self.status(
            now,
            task.task_id.clone(),
            dropped_or_lost(task.partition_aware),
            Source::Agent,
            Some(Reason::Reconciliation),
            Some("Reconciliation: the task is unknown to the agent".to_owned()),
        );
        self.answer_for_absent(now, &stream, status, Default::default());
    }

    fn ping(&mut self, now: Now, ping: wire::Ping) {
        self.link.last_ping = now.moment;
        let message = Box::new(ToMaster::Pong(wire::Pong {
            sequence: ping.sequence,
        }));
        let link = self.link.id;
        self.output_now(Destination::Liveness, LinkAction::Send { link, message });
        if !ping.connected && self.link.phase == LinkPhase::Registered {
            warn!("the master holds this agent for disconnected; registering anew");
            self.reconnect(now, None);
        }
    }

    fn refused(&mut self, now: Now, refused: &wire::Refused) {
        error!(
            reason = refused.reason,
            permanent = refused.permanent,
            "the master refused this agent"
        );
        if refused.permanent {
            self.exit_process(ExitReason::Refused(refused.reason.clone()));
        } else {
            let pause = self.backoff(REFUSED_BACKOFF_MAX);
            self.reconnect(now, Some(pause));
        }
    }

    /// Ends the process, and nothing else.
    pub(super) fn exit_process(&mut self, reason: ExitReason) {
        self.lose_master();
        self.state = State::Terminating;
        self.exit = None;
        self.output(Destination::Agent, Output::Exit(reason));
    }
}

fn ping_timeout(seconds: f64) -> Duration {
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if timeout.is_zero() => PING_TIMEOUT_DEFAULT,
        Ok(timeout) => timeout.min(PING_TIMEOUT_MAX),
        Err(_) => PING_TIMEOUT_DEFAULT,
    }
}

/// The stream of a task named on the wire; a name that is no id is nobody's.
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
