//! Feedback of operations: reports of agents, events for frameworks, and acknowledgements.
//!
//! An agent repeats an update until the framework acknowledges it, or the master if the operation has no id.
//! Invariant: the master forgets an operation with an id only when its framework has acknowledged the final status,
//! or is itself gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::scheduler::{call, event};
use meseta_proto::mesos::v1::{self, OperationState, OperationStatus};
use meseta_resources::{AgentId, FrameworkId};

use crate::core::agents::reported_budget::{Fit, ReportedBudget};
use crate::core::answer::Answer;
use crate::core::effect::Output;
use crate::core::ids::{OperationUuid, UUID_BYTES};
use crate::core::master::MasterCore;
use crate::core::state::absent_agents::AgentLife;
use crate::core::state::operation::{OperationRecord, is_over};
use crate::core::state::reconciliations::Questions;
use crate::core::wire::{self, event_of};

/// The time after an agent's return at which the master ends its operations of unknown frameworks; the value of
/// Mesos.
const ORPHANS_WAIT: Duration = Duration::from_secs(600);

/// The operations that one agent reports count up to this part of the memory for operations, and those of all agents
/// up to a quarter: neither false agents nor the load of a former master must keep frameworks from new operations
/// elsewhere. Further reported operations are within the limit of reported tasks.
const ADOPTED_PART: usize = 64;

impl MasterCore {
    /// Handles an operation status from an agent.
    pub(in crate::core) fn operation_update(
        &mut self,
        agent_id: &AgentId,
        message: meseta::OperationUpdate,
    ) {
        self.counters.agent_frame("operation_update");
        let uuid: Result<OperationUuid, _> = message.operation_uuid.value.as_slice().try_into();
        let state = OperationState::try_from(message.status.state);
        let (Ok(uuid), Ok(state)) = (uuid, state) else {
            self.counters.invalid_operation_updates += 1;
            return;
        };
        let mut status = message.status;
        status.agent_id = Some(agent_id.into());
        let record = self
            .agents
            .get_mut(agent_id)
            .and_then(|agent| Arc::make_mut(&mut agent.operations).get_mut(&uuid));
        let Some(record) = record else {
            // The framework has acknowledged this before, or is gone: the agent need not repeat it.
            self.counters.invalid_operation_updates += 1;
            self.acknowledge_operation_to(agent_id, uuid, &status);
            return;
        };
        let record = Arc::make_mut(record);
        status.operation_id.clone_from(&record.info.id);
        let is_new = record.note(&status);
        let record = record.clone();
        self.counters.valid_operation_updates += 1;
        if is_new && is_over(state) {
            self.counters.operation_over(&record.info, state);
            self.check_outcome(agent_id, &record, state);
            self.tell_operator(&record, &status);
        }
        match &record.framework_id {
            Some(framework) if record.info.id.is_some() && self.will_hear(agent_id, framework) => {
                let framework = framework.clone();
                self.tell_operation(&framework, status);
            }
            _ => self.end_operation(agent_id, &record, &status),
        }
    }

    /// Reports the outcome of an operation to the operator that requested it.
    fn tell_operator(&mut self, record: &OperationRecord, status: &OperationStatus) {
        if record.framework_id.is_none() {
            self.effects.emit(Output::OperationFinished {
                uuid: record.uuid,
                operation: record.info.clone(),
                status: Box::new(status.clone()),
            });
        }
    }

    /// Requests the agent's resources, because the agent rejected an operation that this master applied.
    fn check_outcome(&mut self, agent: &AgentId, record: &OperationRecord, state: OperationState) {
        if state == OperationState::OperationFinished || record.is_lost {
            return;
        }
        tracing::error!(
            agent_id = %agent,
            uuid = %uuid::Uuid::from_bytes(record.uuid),
            state = state.as_str_name(),
            message = record.latest.message.as_deref().unwrap_or_default(),
            "the agent dropped an operation that was already applied here; asking it for its resources"
        );
        let sequence = self
            .agents
            .get(agent)
            .map_or(0, |agent| agent.ping_sequence);
        let ping = meseta::Ping {
            sequence,
            connected: false,
        };
        self.frame(agent, master_frame::Message::Ping(ping));
    }

    /// Whether a framework exists to acknowledge, or may still return for that.
    fn will_hear(&self, agent: &AgentId, framework: &FrameworkId) -> bool {
        if self.frameworks.contains_key(framework) {
            return true;
        }
        let is_completed = self.histories.has_completed(framework);
        let back = self
            .agents
            .get(agent)
            .map(|agent| agent.reregistered.unwrap_or(agent.registered));
        let waited = back.is_none_or(|back| self.now.unix.saturating_sub(back) >= ORPHANS_WAIT);
        !is_completed && !waited
    }

    /// Sends a framework the status of an operation, in the format that it understands.
    fn tell_operation(&mut self, id: &FrameworkId, mut status: OperationStatus) {
        let capabilities = self
            .frameworks
            .get(id)
            .map(|framework| framework.terms.capabilities);
        if let Some(capabilities) = capabilities
            && let Ok(converted) = wire::from_wire(&status.converted_resources)
        {
            let format = wire::format_of(capabilities);
            status.converted_resources = wire::to_wire(&converted, format);
        }
        let mut event = event_of(event::Type::UpdateOperationStatus);
        event.update_operation_status = Some(event::UpdateOperationStatus { status });
        self.event(id, event);
    }

    /// Acknowledges a status that nobody else will, and forgets the operation if it is over.
    fn end_operation(
        &mut self,
        agent: &AgentId,
        record: &OperationRecord,
        status: &OperationStatus,
    ) {
        self.acknowledge_operation_to(agent, record.uuid, status);
        if is_over(record.state()) {
            self.forget_operation(agent, record.uuid);
        }
    }

    fn acknowledge_operation_to(
        &mut self,
        agent: &AgentId,
        uuid: OperationUuid,
        status: &OperationStatus,
    ) {
        let Some(status_uuid) = &status.uuid else {
            return;
        };
        let message = meseta::AcknowledgeOperation {
            operation_uuid: v1::Uuid {
                value: uuid.to_vec(),
            },
            status_uuid: status_uuid.value.clone(),
        };
        self.frame(agent, master_frame::Message::AcknowledgeOperation(message));
    }

    fn forget_operation(&mut self, agent: &AgentId, uuid: OperationUuid) {
        let Some(agent) = self.agents.get_mut(agent) else {
            return;
        };
        let Some(removed) = Arc::make_mut(&mut agent.operations).remove(&uuid) else {
            return;
        };
        agent.operation_usage.remove(&removed);
        self.operations.remove(&removed);
    }

    /// Handles a framework's acknowledgement of an operation status.
    pub(in crate::core) fn acknowledge_operation(
        &mut self,
        id: &FrameworkId,
        agent_id: &str,
        operation_id: &str,
        status_uuid: &[u8; UUID_BYTES],
    ) -> Answer {
        let found = self.operations.find(id, operation_id).cloned();
        let found = found.filter(|(agent, _)| agent.as_str() == agent_id);
        let record = found.as_ref().and_then(|(agent, uuid)| {
            let agent = self.agents.get(agent)?;
            agent.connection?;
            agent.operations.get(uuid).cloned()
        });
        let told = record.as_ref().and_then(|record| {
            let is_meant = |status: &&OperationStatus| {
                status
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| uuid.value == status_uuid)
            };
            record.statuses.iter().find(is_meant).cloned()
        });
        let (Some((agent, _)), Some(record), Some(status)) = (found, record, told) else {
            self.counters.invalid_operation_acknowledgements += 1;
            tracing::info!(
                framework_id = %id,
                operation_id = %operation_id.escape_debug(),
                "acknowledgement of an operation's status that is not waited for"
            );
            return Answer::Accepted;
        };
        self.counters.valid_operation_acknowledgements += 1;
        self.acknowledge_operation_to(&agent, record.uuid, &status);
        let is_last = OperationState::try_from(status.state).is_ok_and(is_over);
        if is_last {
            self.forget_operation(&agent, record.uuid);
        }
        Answer::Accepted
    }

    /// Queues a reconciliation request for the operations that a framework names, or for all its operations with an
    /// id.
    pub(in crate::core) fn reconcile_operations(
        &mut self,
        id: &FrameworkId,
        call: call::ReconcileOperations,
    ) -> Answer {
        let bytes = memory_of(&call.operations);
        let questions = if call.operations.is_empty() {
            let left = self.operations.named_after(id, None).count();
            Questions::AllOperations { after: None, left }
        } else {
            Questions::Operations(call.operations.into_iter())
        };
        self.take_questions(id, questions, bytes)
    }

    /// Sends the status of the next operation with an id. Returns its id, or `None` at the end.
    pub(in crate::core) fn tell_operation_after(
        &mut self,
        id: &FrameworkId,
        after: Option<&str>,
    ) -> Option<String> {
        let (name, (agent, uuid)) = self.operations.named_after(id, after).next()?;
        let (name, status) = (name.clone(), self.operation(agent, uuid).map(unreliable));
        if let Some(status) = status {
            self.tell_operation(id, status);
        }
        Some(name)
    }

    /// Sends the status of an operation that a framework names.
    pub(in crate::core) fn reconcile_operation(
        &mut self,
        id: &FrameworkId,
        operation: &call::reconcile_operations::Operation,
    ) {
        let status = self.reconciled(id, operation);
        self.tell_operation(id, status);
    }

    fn operation(&self, agent: &AgentId, uuid: &OperationUuid) -> Option<&Arc<OperationRecord>> {
        self.agents.get(agent)?.operations.get(uuid)
    }

    /// The status by the decision table of Mesos: the first row that matches.
    fn reconciled(
        &self,
        id: &FrameworkId,
        operation: &call::reconcile_operations::Operation,
    ) -> OperationStatus {
        let known = self.operations.find(id, &operation.operation_id.value);
        if let Some(record) = known.and_then(|(agent, uuid)| self.operation(agent, uuid)) {
            return unreliable(record);
        }
        let agent = operation
            .agent_id
            .as_ref()
            .map(|agent| agent.value.as_str());
        let (state, message) = match agent.map(|agent| self.life_of(agent)) {
            Some(AgentLife::Expected(_)) => (
                OperationState::OperationRecovering,
                "Reconciliation: Agent is recovered but has not re-registered",
            ),
            Some(AgentLife::Registered(_)) => (
                OperationState::OperationUnknown,
                "Reconciliation: Operation is unknown",
            ),
            Some(AgentLife::Unreachable(_)) => (
                OperationState::OperationUnreachable,
                "Reconciliation: Agent is unreachable",
            ),
            Some(AgentLife::Gone) => (
                OperationState::OperationGoneByOperator,
                "Reconciliation: Agent marked gone by operator",
            ),
            Some(AgentLife::Unknown) => (
                OperationState::OperationUnknown,
                "Reconciliation: Both operation and agent are unknown",
            ),
            None => (
                OperationState::OperationUnknown,
                "Reconciliation: Operation is unknown and no 'agent_id' was provided",
            ),
        };
        OperationStatus {
            operation_id: Some(operation.operation_id.clone()),
            state: state.into(),
            message: Some(message.to_owned()),
            agent_id: operation.agent_id.clone(),
            resource_provider_id: operation.resource_provider_id.clone(),
            ..OperationStatus::default()
        }
    }

    /// Takes over the operations that a reregistering agent reports. Returns the uuids of operations that the agent
    /// lacks.
    pub(in crate::core) fn adopt_operations(
        &mut self,
        id: &AgentId,
        report: &meseta::Reregister,
    ) -> Vec<v1::Uuid> {
        let here = self.agents.get(id);
        let budget = here.map(|agent| match report.operations.as_slice() {
            [] => ReportedBudget::default(),
            _ => self.reported_budget_of(agent),
        });
        let Some((agent, mut budget)) = self.agents.get_mut(id).zip(budget) else {
            return Vec::new();
        };
        let table = Arc::make_mut(&mut agent.operations);
        let memory = self.config.memory.operations;
        let mut memory_left = memory / ADOPTED_PART;
        if !report.operations.is_empty() {
            let adopted = table.values().filter(|record| record.is_adopted);
            let counted: usize = adopted.map(|record| record.memory).sum();
            memory_left = memory_left.saturating_sub(counted);
            memory_left = memory_left.min(self.operations.left_for_adopted(memory));
        }
        let mut named = BTreeSet::new();
        for message in &report.operations {
            let Some(mut record) = OperationRecord::reported(id, message) else {
                tracing::warn!(agent_id = %id, "a reported operation makes no sense and is left out");
                continue;
            };
            named.insert(record.uuid);
            if table.contains_key(&record.uuid) {
                continue;
            }
            let holder = self.operations.find_namesake(&record);
            if holder.is_some_and(|(holder, _)| holder != id) {
                tracing::warn!(agent_id = %id, "a reported operation is another agent's and is left out");
                continue;
            }
            // The framework acknowledged the end of the former operation and reused its id; only the agent does not
            // know the acknowledgement.
            if let Some((_, former)) = holder.cloned() {
                let is_over_before = table
                    .get(&former)
                    .is_none_or(|former| is_over(former.state()));
                if !is_over_before || is_over(record.state()) {
                    tracing::warn!(agent_id = %id, "a reported operation has the name of another one and is left out");
                    continue;
                }
                if let Some(former) = table.remove(&former) {
                    agent.operation_usage.remove(&former);
                    self.operations.remove(&former);
                }
            }
            if budget.fit_operation(&record) == Fit::LeftOut {
                continue;
            }
            if record.memory > memory_left {
                record.memory = 0;
            }
            memory_left -= record.memory;
            agent.operation_usage.add(&record);
            self.operations.add(&record);
            table.insert(record.uuid, Arc::new(record));
        }
        budget.log(id);
        let mut unknown = Vec::new();
        for (uuid, record) in table.iter_mut().filter(|(uuid, _)| !named.contains(*uuid)) {
            Arc::make_mut(record).is_lost = true;
            unknown.push(v1::Uuid {
                value: uuid.to_vec(),
            });
        }
        unknown
    }

    /// Acknowledges the final statuses of a removed framework's operations.
    pub(in crate::core) fn end_operations_of(&mut self, framework: &FrameworkId) {
        // Operations without an id wait for nobody once they are over.
        let named = self.operations.named_after(framework, None);
        let ended: Vec<(AgentId, Arc<OperationRecord>)> = named
            .filter_map(|(_, (id, uuid))| {
                let record = self.agents.get(id)?.operations.get(uuid)?;
                is_over(record.state()).then(|| (id.clone(), record.clone()))
            })
            .collect();
        for (agent, record) in ended {
            let status = record.latest.clone();
            self.end_operation(&agent, &record, &status);
        }
    }

    /// Removes the operations of a lost agent, and informs the frameworks that gave an id.
    pub(in crate::core) fn lose_operations(
        &mut self,
        operations: &crate::core::state::operation::OperationTable,
        state: OperationState,
        message: &str,
    ) {
        for record in operations.values() {
            self.operations.remove(record);
            if is_over(record.state()) {
                continue;
            }
            let status = OperationStatus {
                state: state.into(),
                message: Some(message.to_owned()),
                uuid: None,
                ..record.latest.clone()
            };
            match record.named() {
                Some((framework, _)) => self.tell_operation(&framework, status),
                None => self.tell_operator(record, &status),
            }
        }
    }
}

/// The latest status, without a uuid, so that the framework need not acknowledge it.
fn unreliable(record: &Arc<OperationRecord>) -> OperationStatus {
    OperationStatus {
        uuid: None,
        ..record.latest.clone()
    }
}

/// The memory in bytes of the operations named in a request.
fn memory_of(operations: &[call::reconcile_operations::Operation]) -> usize {
    let of_operation = |operation: &call::reconcile_operations::Operation| {
        let agent = operation.agent_id.as_ref().map_or(0, |id| id.value.len());
        let provider = operation.resource_provider_id.as_ref();
        size_of::<call::reconcile_operations::Operation>()
            + operation.operation_id.value.len()
            + agent
            + provider.map_or(0, |id| id.value.len())
    };
    operations.iter().map(of_operation).sum()
}
