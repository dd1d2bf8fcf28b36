//! The inputs of the core.
//!
//! The shell turns requests, frames and results into [`Input`]s. The shell decides nothing: the core determines the
//! consequences of an input.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_access::Approver;
use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::agent_frame;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};

use super::ids::{ConnectionId, Lsn, ReplyId};
use super::validation::call::{Action, Subscribe};

/// An event outside the core.
#[derive(Debug)]
pub enum Input {
    /// A deadline of [`super::MasterCore::next_deadline`] has passed, or a step without any input.
    Tick,
    /// All mutations up to this one are durable.
    Persisted { lsn: Lsn },
    /// A scheduler opened a stream.
    Subscribe(SubscribeRequest),
    /// A request that gets an answer.
    Request { reply: ReplyId, request: Request },
    /// A scheduler's stream has ended, from either side.
    SchedulerGone { connection: ConnectionId },
    /// A scheduler has read this many answers to its reconciliation requests.
    AnswersRead {
        connection: ConnectionId,
        answers: usize,
    },
    /// A frame of an agent; the first frame on a connection identifies the agent.
    AgentFrame {
        connection: ConnectionId,
        message: Box<agent_frame::Message>,
    },
    /// An agent's stream has ended, from either side.
    AgentGone { connection: ConnectionId },
    /// Only agents on these hosts may be offered.
    Whitelist {
        hosts: Option<Arc<BTreeSet<Arc<str>>>>,
    },
}

/// A scheduler's subscription request.
#[derive(Debug)]
pub struct SubscribeRequest {
    /// The connection for the scheduler's events.
    pub connection: ConnectionId,
    pub stream_id: String,
    pub call: Box<Subscribe>,
    pub caller: Caller,
}

/// A request that gets an answer, at once or when its effect is durable.
#[derive(Debug)]
pub enum Request {
    /// Any scheduler call except SUBSCRIBE, already validated by itself ([`super::validation::call`]).
    Call {
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
    },
    /// An operator's change of quota, weights, maintenance or an agent's state.
    Administer {
        administration: Box<Administration>,
        /// The operator's rights, for checks that need the parsed request.
        approver: Approver,
    },
    /// An operator removes a framework.
    Teardown {
        framework_id: String,
        caller: Caller,
    },
    /// An operator reserves, unreserves, or creates, destroys or resizes volumes.
    Operate {
        agent_id: String,
        operation: Box<Operation>,
        /// The requesting principal, if known.
        principal: Option<String>,
    },
}

/// A change of quota, weights, maintenance or an agent's state.
#[derive(Clone, Debug)]
pub enum Administration {
    /// Sets the quota of a role that has none.
    SetQuota(Box<QuotaRequest>),
    /// Replaces the quotas of roles, all or none; an empty quota removes the role's quota.
    UpdateQuota {
        force: bool,
        configs: Vec<QuotaConfig>,
    },
    /// Removes the quota of a role.
    RemoveQuota { role: String },
    /// Sets the weights of these roles; other roles keep theirs.
    UpdateWeights(Vec<(String, f64)>),
    /// Replaces the maintenance schedule.
    UpdateSchedule(Box<Schedule>),
    /// Adds a window to the current maintenance schedule.
    AddWindow(Box<Window>),
    /// Takes machines of the schedule down.
    StartMaintenance(Vec<MachineId>),
    /// Brings machines that are down back to work.
    StopMaintenance(Vec<MachineId>),
    /// Ends an agent's tasks and gives the agent no more.
    DrainAgent {
        agent_id: String,
        max_grace: Option<Duration>,
        mark_gone: bool,
    },
    /// Gives an agent no more work.
    DeactivateAgent { agent_id: String },
    /// Gives a deactivated agent work again.
    ReactivateAgent { agent_id: String },
    /// Marks an agent as permanently gone.
    MarkAgentGone { agent_id: String },
}
