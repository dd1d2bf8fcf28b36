//! The master's decisions: a state machine without clock, threads or I/O.
//!
//! Entered through [`MasterCore::step`]: an [`Input`] goes in, [`Effect`]s come out. Registry mutations change the
//! state only when [`Input::Persisted`] reports them as durable; messages to agents and schedulers follow from that.
//! Invariant: every unit of an agent's resources is either free, in one offer, or held by one task or executor, here
//! and in the allocator alike.
//!
//! The modules from the lowest to the highest; each uses only those above it in this list:
//!
//! - `ids`, `answer`, `config`, `timers`, `wire`: numbers, answers, settings, deadlines, and resources in messages
//! - `issued_ids`: the ids that this master assigns
//! - `state/`: the tables of the core
//! - `views/`: the state as readers see it
//! - `authorization`: rights in the cluster
//! - `validation/`: checks of calls, tasks, executors and operations
//! - `input`, `effect`: the inputs and the effects of the core, and the actions that wait for durable mutations
//! - `framework_deadlines`: the deadlines of disconnected frameworks
//! - `master`: the struct of the whole state; all further modules are an `impl MasterCore`
//! - `output`: messages to agents, schedulers and clients
//! - `paced`: messages to very many receivers, sent in portions
//! - `snapshots`: the current state, for readers
//! - `operator/`: requests of operators
//! - `tasks/`: statuses, reconciliation and history of tasks
//! - `agents/`: registration, reports, reregistration and loss of agents
//! - `frameworks/`: subscriptions, calls, ownership of ids, and the end of frameworks
//! - `offers/`: offers and inverse offers, made, accepted and rescinded
//! - `operations/`: reservations and volumes, and the outcome of operations
//! - `ticks`: actions at a deadline
//! - `start`, `step`: the start of a master, and one step of it

mod agents;
mod answer;
pub(crate) mod authorization;
mod config;
mod effect;
mod framework_deadlines;
mod frameworks;
mod ids;
mod input;
mod issued_ids;
mod master;
mod offers;
mod operations;
mod operator;
mod output;
mod paced;
mod snapshots;
mod start;
mod state;
mod step;
mod tasks;
mod ticks;
mod timers;
mod validation;
mod views;
mod wire;

pub use answer::Answer;
pub use config::{
    AllocatorConfig, Config, FRAMEWORKS_MAX, HEARTBEAT_INTERVAL, Identity, Memory,
    PENDING_MUTATIONS_MAX, QuotaSemantics,
};
pub use effect::{Effect, Output};
pub use ids::{ConnectionId, Lsn, OperationUuid, ReplyId};
pub use input::{Administration, Input, Request, SubscribeRequest};
pub use master::MasterCore;
pub use offers::explain::{Excluded, ExplainQuery, Visible};
pub(crate) use offers::inverse::to_wire as inverse_offer_to_wire;
pub use state::agent::{AgentProfile, RecoveredAgent, UnreachableAgent};
pub use state::constraints::Constraints;
pub use state::counters::Counters;
pub(crate) use state::counters::OTHER_ROLES;
pub use state::deactivation::{Deactivation, Drain};
pub use state::framework::{Capabilities, Link};
pub use state::framework_counters::FrameworkCounters;
pub use state::inverse_offers::{InverseOffer, Reply as InverseReply};
pub use state::maintenance::Maintenance;
pub(crate) use state::names::{operation_name, operation_state_name, state_name};
pub use state::offer::Offer;
pub(crate) use state::operation::roles_of;
pub use state::operation::{OperationRecord, OperationTable};
pub use state::persisted::{
    AgentRecord, DeadlineRecord, FrameworkRecord, Mutation, Recovered, RemovedRecord,
    UnreachableRecord,
};
pub use state::task::{ExecutorRecord, StatusRecord, TaskRecord, TaskTable, is_terminal};
pub use state::usage::Usage;
pub(crate) use tasks::reconciliation::{READ_AT_ONCE, is_answer};
pub use validation::call;
pub use views::by_framework::{ByFramework, FrameworkEntities, StateCounts, TaskStatesByFramework};
pub use views::digest::{AgentDigest, RoleAmounts};
pub use views::operator_event::{OperatorEvent, TaskUser};
pub use views::snapshot::{AgentView, FrameworkView, RecoveryMode, Snapshot};
pub use wire::{Format, to_wire};

#[cfg(test)]
mod tests;
