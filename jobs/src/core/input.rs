//! The inputs of the core, and the effects that it requests in return.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1::{OperationStatus, TaskStatus};
use meseta_proto::reconciler;
use meseta_resources::Operation;
use serde::Serialize;

use super::roles::RoleSet;
use super::view::Authorities;
use crate::placement::{Offer, Placement};
use crate::spec::JobSpec;

/// An event that the core receives.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request of an API client, answered by [`Effect::Answer`] with the same id.
    Request {
        id: u64,
        request: Request,
    },
    /// A new stream that was opened with these roles.
    Subscribed {
        framework_id: String,
        roles: RoleSet,
    },
    /// The id of the scheduler's cluster, before the first subscription to the cluster.
    Cluster(String),
    /// The region of the subscribed master, if it has one; comes before the master's first offers.
    MasterRegion(Option<String>),
    /// The master accepts no subscription with the requested roles.
    SubscriptionRefused,
    /// The master's response to [`Effect::Roles`], with the reason of a refusal.
    RolesAnswered {
        refused: Option<String>,
    },
    /// The end of the stream, and with it of all offers.
    Disconnected,
    /// The removal of the framework by the master: the framework's id is no longer accepted, and its tasks are gone.
    FrameworkRemoved,
    Offers(Vec<Offer>),
    /// The ids of offers that the scheduler could not decode.
    UnreadableOffers(Vec<String>),
    /// The id of an offer that is gone.
    Rescinded(String),
    /// The id of an agent that the master has removed.
    AgentLost(String),
    Update(Box<TaskStatus>),
    /// The master refused an ACCEPT as a whole: nothing in it was done.
    AcceptRefused(RefusedAccept),
    /// The outcome of an operation on a volume or on its reservation.
    OperationUpdate(Box<OperationStatus>),
    /// The agents of the cluster that the scheduler may see, with the free resources of each.
    Agents(Vec<Offer>),
    /// All writes up to this one are durable.
    Stored(u64),
    /// Time has passed: the core does everything that is due.
    Tick {
        /// The number of kills that wait for the master.
        kills_waiting: usize,
    },
}

/// The contents of an ACCEPT that the master refused as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedAccept {
    pub offers: Vec<String>,
    pub tasks: Vec<String>,
    pub operations: Vec<String>,
    pub why: String,
}

/// A change that a client requests. `name` is the key of a job: see [`State::key_for`](super::State::key_for).
#[derive(Clone, Debug)]
pub enum Request {
    /// Submits a job. Outside [`Self::Permitted`], the key of the job is its name; inside, [`Self::Permitted`] names the
    /// job.
    Submit(Box<JobSpec>),
    Scale {
        name: String,
        count: u32,
        /// Also destroys the volumes of the surplus instances.
        purge: bool,
    },
    /// Replaces all instances as an update would.
    Restart {
        name: String,
    },
    Stop {
        name: String,
        purge: bool,
    },
    /// Reverts to an earlier version; without a number to the last version that was healthy before.
    Revert {
        name: String,
        version: Option<u64>,
    },
    /// Permits an update to continue beyond its canaries.
    Promote {
        name: String,
    },
    /// Moves instances of a service that is spread from full values to emptier ones.
    Rebalance {
        name: String,
    },
    /// Destroys the volume of an instance, which restarts with an empty one.
    Release {
        name: String,
        index: u32,
        /// The volume that the client means; the request is refused if the instance has another one.
        volume_id: Option<String>,
    },
    /// Requests the offers of a role again for a moment, for a plan. The version of the answer is the number of the last
    /// earlier offer: see [`State::offers_since`](super::State::offers_since).
    LookForOffers {
        role: String,
    },
    /// A request that was permitted for these authorities of the job. The core refuses it if the job's authorities have
    /// changed.
    Permitted {
        name: String,
        /// `None` if the job did not exist.
        seen: Option<Authorities>,
        /// The principal of the client, if the client has a name: the submitter of a version that the request makes.
        principal: Option<String>,
        request: Box<Self>,
    },
}

/// A job after a client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accepted {
    pub name: String,
    /// The role in which the name is the job's.
    pub role: String,
    pub version: u64,
}

/// The reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no job {0:?}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
}

/// A durable change: a key and its new value, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    pub value: Option<Vec<u8>>,
}

/// A task that the core has decided to launch.
#[derive(Clone, Debug)]
pub struct Launch {
    pub task_id: String,
    pub spec: Arc<JobSpec>,
    pub version: u64,
    pub run: u64,
    pub index: u32,
    pub attempt: u32,
    /// The resources and ports of the launch, which follows the operations.
    pub placement: Placement,
    /// The addresses of the jobs that the task's job starts after, by environment variable.
    pub addresses: BTreeMap<String, String>,
    /// The operations before the launch, in order, for an instance with a volume.
    pub operations: Vec<NamedOperation>,
}

/// An operation on volumes and reservations, with the id that its status updates carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOperation {
    pub id: String,
    pub operation: Operation,
}

/// The tasks to launch on one offer, or the resources to release from it.
#[derive(Clone, Debug)]
pub struct Accept {
    pub offer: Offer,
    pub operations: Vec<NamedOperation>,
    pub tasks: Vec<Launch>,
}

/// An action that the core requests from the shell; the order counts.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Writes all of the records or none of them; [`Input::Stored`] confirms the write.
    Store {
        id: u64,
        records: Vec<Record>,
    },
    Accept(Accept),
    /// Declines offers for this time.
    Decline {
        offers: Vec<String>,
        refuse: Duration,
    },
    Kill {
        task_id: String,
        agent_id: Option<String>,
    },
    Acknowledge(Box<TaskStatus>),
    Reconcile(reconciler::Request),
    AcknowledgeOperation(Box<OperationStatus>),
    /// Queries the states of operations, by their ids and agents.
    ReconcileOperations(Vec<(String, String)>),
    Suppress(BTreeSet<String>),
    Revive(BTreeSet<String>),
    /// Sets the roles of the framework; [`Input::RolesAnswered`] returns the master's decision.
    Roles(RoleSet),
    Answer {
        id: u64,
        answer: Result<Accepted, Refusal>,
    },
    Event(Event),
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The time of the event, in seconds since the Unix epoch.
    pub time: u64,
    pub job: String,
    /// The job's role at that time, which decides who sees the event: another role may have the name later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The agent on which the task was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    pub text: String,
}
