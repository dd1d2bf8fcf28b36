//! The master's record of an operation on reservations or volumes until its final status is acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::convert;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::{self, OperationState, OperationStatus};
use meseta_resources::{AgentId, FrameworkId, Role};
use prost::Message as _;

use crate::core::ids::OperationUuid;

/// The operations of one agent; copied on the next write, so that readers share the table.
pub type OperationTable = Arc<BTreeMap<OperationUuid, Arc<OperationRecord>>>;

/// The number of unfinished or unacknowledged operations of one agent; further ones are refused.
pub(in crate::core) const OPERATIONS_PER_AGENT_MAX: usize = 20_000;

/// The limit of encoded bytes for the unacknowledged operations of one agent, all together; decoded, they take
/// several times as much. Further operations are refused. Operations that agents report do not count.
pub(in crate::core) const OPERATION_BYTES_PER_AGENT_MAX: usize = 8 << 20;

// Limits of operations. Each operation scans its agent's resources, and the core does nothing else meanwhile.

/// The number of operations on reservations and volumes in one ACCEPT; the limit of tasks covers launches.
pub(in crate::core) const OPERATIONS_PER_ACCEPT_MAX: usize = 1_024;

/// The number of resources that the operations of one ACCEPT scan in total: each operation scans those of its agent.
/// For an agent with at most 1,024 resources this adds no restriction. Three times as many took 0.2 to 0.35 s
/// (`core_throughput operations`).
pub(in crate::core) const RESOURCES_SCANNED_MAX: usize = 1 << 20;

/// The number of resources that the operations of one ACCEPT name in total.
pub(in crate::core) const RESOURCES_PER_ACCEPT_MAX: usize = 1_024;

/// The number of resources that one operation of a framework or an operator may name: each may need a step of its
/// own.
pub(in crate::core) const RESOURCES_PER_OPERATION_MAX: usize = 512;

/// The number of different resources (by name, reservation with its labels, volume) up to which operations may divide
/// an agent: the cost of each further operation, offer and task there grows with it.
pub(in crate::core) const RESOURCES_PER_AGENT_MAX: usize = 4_096;

/// The size of a table entry besides its record, in bytes: ids, and index entries.
pub(in crate::core) const ENTRY_BYTES: usize = 512;

/// The factor from encoded to decoded size of messages.
pub(in crate::core) const DECODED_PER_ENCODED: usize = 4;

/// The memory in bytes that an operation of this encoded size takes until its final status is acknowledged: the
/// operation, and the converted resources in two statuses.
pub(in crate::core) const fn memory_of_operation(encoded_bytes: usize) -> usize {
    ENTRY_BYTES + 3 * encoded_bytes * DECODED_PER_ENCODED
}

/// The number of stored statuses of one operation; an operation of a Meseta agent has two.
const STATUSES_MAX: usize = 10;

/// The roles whose resources an operation consumes or produces; `None` for an invalid operation.
#[must_use]
pub(crate) fn roles_of(operation: &Operation) -> Option<BTreeSet<Role>> {
    let steps = convert::operation(operation).ok()?.conversions().ok()?;
    let changed = steps
        .iter()
        .flat_map(|step| [step.consumed(), step.produced()]);
    let roles = changed.flatten().flat_map(|resource| {
        let reserved = resource.reservations().iter().map(|one| &one.role);
        reserved.chain(resource.allocation_role())
    });
    Some(roles.cloned().collect())
}

#[derive(Clone, Debug)]
pub struct OperationRecord {
    pub uuid: OperationUuid,
    /// The framework, or `None` for an operator's operation.
    pub framework_id: Option<FrameworkId>,
    pub agent_id: AgentId,
    /// The operation as sent to the agent.
    pub info: Arc<Operation>,
    /// The newest known status.
    pub latest: OperationStatus,
    /// The statuses from the agent, oldest first.
    pub statuses: Vec<OperationStatus>,
    /// Whether the agent reregistered without the operation. The master has since taken the agent's own total.
    pub(in crate::core) is_lost: bool,
    /// Whether the operation is known only from an agent's report: this master did not apply it.
    pub(in crate::core) is_adopted: bool,
    /// The bytes that the operation takes of the memory for operations on all agents.
    pub(in crate::core) memory: usize,
}

impl OperationRecord {
    pub(in crate::core) fn new(
        uuid: OperationUuid,
        framework_id: Option<FrameworkId>,
        agent_id: AgentId,
        info: Operation,
    ) -> Self {
        let latest = OperationStatus {
            operation_id: info.id.clone(),
            state: OperationState::OperationPending.into(),
            agent_id: Some((&agent_id).into()),
            ..OperationStatus::default()
        };
        Self {
            uuid,
            framework_id,
            agent_id,
            memory: memory_of_operation(info.encoded_len()),
            info: Arc::new(info),
            latest,
            statuses: Vec::new(),
            is_lost: false,
            is_adopted: false,
        }
    }

    /// Converts an operation reported by an agent; `None` if the report is invalid.
    pub(in crate::core) fn reported(agent_id: &AgentId, message: &v1::Operation) -> Option<Self> {
        let uuid = message.uuid.value.as_slice().try_into().ok()?;
        let framework_id = match &message.framework_id {
            Some(id) => Some(FrameworkId::new(&id.value).ok()?),
            None => None,
        };
        let mut record = Self::new(uuid, framework_id, agent_id.clone(), message.info.clone());
        record.is_adopted = true;
        record.latest = message.latest_status.clone();
        record.statuses = message
            .statuses
            .iter()
            .take(STATUSES_MAX)
            .cloned()
            .collect();
        Some(record)
    }

    /// The bytes that the operation takes of [`OPERATION_BYTES_PER_AGENT_MAX`].
    pub(in crate::core) fn bytes(&self) -> usize {
        self.info.encoded_len()
    }

    /// The framework's id for the operation.
    #[must_use]
    pub fn operation_id(&self) -> Option<&str> {
        self.info.id.as_ref().map(|id| id.value.as_str())
    }

    /// The key by which the framework finds the operation.
    pub(in crate::core) fn named(&self) -> Option<(FrameworkId, String)> {
        let framework = self.framework_id.clone()?;
        Some((framework, self.operation_id()?.to_owned()))
    }

    #[must_use]
    pub fn state(&self) -> OperationState {
        OperationState::try_from(self.latest.state).unwrap_or(OperationState::OperationUnsupported)
    }

    /// Records a status from the agent. Returns false if the status is already known.
    pub(in crate::core) fn note(&mut self, status: &OperationStatus) -> bool {
        let told = |old: &OperationStatus| old.uuid.is_some() && old.uuid == status.uuid;
        if self.statuses.iter().any(told) {
            return false;
        }
        if self.statuses.len() >= STATUSES_MAX {
            self.statuses.remove(0);
        }
        self.statuses.push(status.clone());
        self.latest = status.clone();
        true
    }

    /// The operation in the form for operators.
    #[must_use]
    pub fn to_wire(&self) -> v1::Operation {
        v1::Operation {
            framework_id: self.framework_id.as_ref().map(Into::into),
            agent_id: Some((&self.agent_id).into()),
            info: (*self.info).clone(),
            latest_status: self.latest.clone(),
            statuses: self.statuses.clone(),
            uuid: v1::Uuid {
                value: self.uuid.to_vec(),
            },
        }
    }
}

/// Whether this state of an operation is final.
#[must_use]
pub(in crate::core) fn is_over(state: OperationState) -> bool {
    match state {
        OperationState::OperationFinished
        | OperationState::OperationFailed
        | OperationState::OperationError
        | OperationState::OperationDropped
        | OperationState::OperationGoneByOperator => true,
        OperationState::OperationUnsupported
        | OperationState::OperationPending
        | OperationState::OperationUnreachable
        | OperationState::OperationRecovering
        | OperationState::OperationUnknown => false,
    }
}
