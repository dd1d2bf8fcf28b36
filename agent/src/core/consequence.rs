//! The consequences of a change for the other owners of the agent's state.
//!
//! An owner returns them, and `step.rs` carries them out.

use std::sync::Arc;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as FromMaster;
use meseta_proto::mesos::v1 as pb;

use super::accept::Refusal;
use super::disk::DiskChange;
use super::{ExitReason, LinkId};
use crate::checkpoint::RunKey;

/// A change in one part of the agent that other parts must follow.
#[derive(Debug)]
pub(super) enum Consequence {
    /// The agent may connect to a master on this link.
    ConnectDue(LinkId),
    /// A connection is up, and the master waits for the registration.
    RegistrationBegun,
    /// The connection to the master is lost, or the agent has given it up.
    MasterLost {
        /// The next link, unless it follows after a pause.
        connect: Option<LinkId>,
    },
    /// The master of an obeyed epoch sent a message.
    Ordered {
        epoch: u64,
        message: Box<FromMaster>,
    },
    /// A master has registered the agent.
    Registered {
        /// Executors that ended during the registration.
        exited: Vec<wire::ExecutorExited>,
        /// Operations that the master has sent, and that may not have arrived.
        unknown_operations: Vec<pb::Uuid>,
        /// Tasks that the master has sent, and that may not have arrived.
        unknown_tasks: Vec<wire::TaskToReconcile>,
    },
    /// The process ends, without further steps.
    ProcessEnds(ExitReason),
    /// An executor has ended with its tasks.
    ExecutorEnded {
        key: Arc<RunKey>,
        /// The report for the master, unless the executor's framework is gone.
        exited: Option<wire::ExecutorExited>,
    },
    /// An executor has subscribed.
    ExecutorBack,
    /// The agent does not run tasks.
    TasksRefused(Refusal),
    /// The disk fell silent, or answers again.
    DiskChanged(DiskChange),
}
