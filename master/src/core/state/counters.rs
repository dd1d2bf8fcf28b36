//! Counters of the core, for metrics. They only grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_proto::mesos::v1::{OperationState, TaskState, TaskStatus};

use super::names::{operation_name, operation_state_name, state_name};
use super::operation::is_over;
use super::task::{is_terminal, state_of};

/// Counters since the start of this master.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub dropped_messages: u64,
    pub rejected_calls: u64,
    /// The number of accepted calls, by lower-case name from a closed set.
    pub calls: BTreeMap<&'static str, u64>,
    /// The number of frames of agents, by lower-case name from a closed set.
    pub agent_frames: BTreeMap<&'static str, u64>,
    /// The number of terminal updates, by lower-case state (`task_finished`).
    pub terminal: BTreeMap<&'static str, u64>,
    /// The number of terminal statuses by state, source and reason. The product of the three enums limits the number
    /// of keys.
    pub terminal_causes: BTreeMap<(TaskState, Option<Source>, Option<Reason>), u64>,
    /// The number of failed tasks, by role and lower-case state; see [`Counters::count_failure`].
    pub role_failures: BTreeMap<(Arc<str>, &'static str), u64>,
    /// The number of explicit reconciliation requests for tasks of agents that are still coming back.
    pub reconciliations_unanswered: u64,
    pub agent_registrations: u64,
    pub agent_reregistrations: u64,
    pub agent_removals_unhealthy: u64,
    pub agent_removals_unregistered: u64,
    pub agent_removals_registered: u64,
    pub agent_unreachable_scheduled: u64,
    pub agent_unreachable_completed: u64,
    pub recovery_agent_removals: u64,
    pub valid_status_updates: u64,
    pub invalid_status_updates: u64,
    pub valid_acknowledgements: u64,
    pub invalid_acknowledgements: u64,
    pub valid_framework_messages: u64,
    pub invalid_framework_messages: u64,
    pub valid_executor_messages: u64,
    pub invalid_executor_messages: u64,
    pub offers_made: u64,
    pub offers_accepted: u64,
    pub offers_declined: u64,
    pub offers_rescinded: u64,
    pub allocation_runs: u64,
    pub tasks_launched: u64,
    /// The number of ended operations by kind and state, both as in metric names (`reserve`, `finished`).
    pub operations_over: BTreeMap<(&'static str, &'static str), u64>,
    pub valid_operation_updates: u64,
    pub invalid_operation_updates: u64,
    pub valid_operation_acknowledgements: u64,
    pub invalid_operation_acknowledgements: u64,
    /// The number of disagreements between master and allocator; each is a defect.
    pub invariant_violations: u64,
}

/// The number of pairs of role and state that count failures: tenants create any number of roles, and each pair is a
/// series in Prometheus.
const ROLE_FAILURES_MAX: usize = 1_000;
/// The name for all further roles.
pub(crate) const OTHER_ROLES: &str = "";

/// Whether a task in this state has failed: it ended without success and without a request to end.
pub(crate) fn is_failure(state: TaskState) -> bool {
    is_terminal(state) && !matches!(state, TaskState::TaskFinished | TaskState::TaskKilled)
}

impl Counters {
    /// Counts a task that ended by a failure under its role, or under [`OTHER_ROLES`] if too many roles are known.
    pub(in crate::core) fn count_failure(&mut self, role: &str, state: TaskState) {
        let Some(name) = state_name(state).filter(|_| is_failure(state)) else {
            return;
        };
        let key = (Arc::from(role), name);
        let has_room = self.role_failures.len() < ROLE_FAILURES_MAX;
        let key = match has_room || self.role_failures.contains_key(&key) {
            true => key,
            false => (Arc::from(OTHER_ROLES), name),
        };
        *self.role_failures.entry(key).or_default() += 1;
    }

    pub(in crate::core) fn call(&mut self, name: &'static str) {
        *self.calls.entry(name).or_default() += 1;
    }

    pub(in crate::core) fn agent_frame(&mut self, name: &'static str) {
        *self.agent_frames.entry(name).or_default() += 1;
    }

    pub(in crate::core) fn operation_over(&mut self, operation: &Operation, state: OperationState) {
        let names = (
            operation_name(operation.r#type()),
            operation_state_name(state),
        );
        if let (true, (Some(kind), Some(state))) = (is_over(state), names) {
            *self.operations_over.entry((kind, state)).or_default() += 1;
        }
    }

    /// Counts a terminal status sent to a framework, and returns its state. Gauges cover all other states.
    pub(in crate::core) fn count_status(&mut self, status: &TaskStatus) -> Option<TaskState> {
        let state = state_of(status)?;
        let reconciliation = status.reason == Some(Reason::Reconciliation.into());
        if !is_terminal(state) || reconciliation {
            return None;
        }
        let name = state_name(state)?;
        *self.terminal.entry(name).or_default() += 1;
        let source = status
            .source
            .and_then(|source| Source::try_from(source).ok());
        let reason = status
            .reason
            .and_then(|reason| Reason::try_from(reason).ok());
        *self
            .terminal_causes
            .entry((state, source, reason))
            .or_default() += 1;
        Some(state)
    }
}
