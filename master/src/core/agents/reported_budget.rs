//! Memory limit for records that agents report and this master did not create.
//!
//! After a restart of the master, agents report the tasks, executors and operations. Entered where the core adopts
//! them. Invariant: the reported records of all agents of a proven host have one limit, and those of each agent of an
//! unproven host another. Above the limit a record loses the parts that only readers need; above a further limit the
//! whole record is skipped.

use std::sync::Arc;

use meseta_proto::mesos::v1;
use meseta_resources::{AgentId, Resource};
use prost::Message as _;

use crate::core::master::MasterCore;
use crate::core::state::agent::Agent;
use crate::core::state::operation::{
    DECODED_PER_ENCODED, ENTRY_BYTES, OPERATIONS_PER_AGENT_MAX, OperationRecord,
};
use crate::core::state::task::{ExecutorRecord, TaskRecord};
use crate::core::wire::{self, Format};

/// The outcome for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Fit {
    Complete,
    /// The record without the parts that only readers need.
    Reduced,
    LeftOut,
}

/// The memory budget for the records that one agent reports.
#[derive(Debug, Default)]
pub(in crate::core) struct ReportedBudget {
    used: usize,
    max: usize,
    operations: usize,
    reduced: usize,
    left_out: usize,
}

impl ReportedBudget {
    fn new(used: usize, operations: usize, max: usize) -> Self {
        Self {
            used,
            max,
            operations,
            reduced: 0,
            left_out: 0,
        }
    }

    fn take(&mut self, bytes: usize, max: usize) -> bool {
        let used = self.used.saturating_add(bytes);
        let fits = used <= max;
        if fits {
            self.used = used;
        }
        fits
    }

    /// Takes the record's size from the budget. Essential parts get a quarter more.
    fn fit<T>(
        &mut self,
        record: &mut T,
        bytes: impl Fn(&T) -> usize,
        reduce: impl Fn(&mut T),
    ) -> Fit {
        if self.take(bytes(record), self.max) {
            return Fit::Complete;
        }
        reduce(record);
        if self.take(bytes(record), self.max / 4 * 5) {
            self.reduced += 1;
            return Fit::Reduced;
        }
        self.left_out += 1;
        Fit::LeftOut
    }

    /// Fits a task. `resources` is the encoded size of its reported resources.
    pub(super) fn fit_task(&mut self, record: &mut TaskRecord, resources: usize) -> Fit {
        let bytes = |record: &TaskRecord| memory_of_task(record).saturating_add(resources);
        self.fit(record, bytes, |record| {
            record.description = bytes::Bytes::new();
            record.statuses = Vec::new();
        })
    }

    pub(super) fn fit_executor(
        &mut self,
        record: &mut ExecutorRecord,
        resources: &[v1::Resource],
    ) -> Fit {
        let resources = encoded(resources);
        let bytes = |record: &ExecutorRecord| memory_of_executor(record).saturating_add(resources);
        self.fit(record, bytes, |record| {
            let info = v1::ExecutorInfo {
                executor_id: (&record.executor_id).into(),
                framework_id: Some((&record.framework_id).into()),
                ..v1::ExecutorInfo::default()
            };
            record.info = info.encode_to_vec().into();
        })
    }

    pub(in crate::core) fn fit_operation(&mut self, record: &OperationRecord) -> Fit {
        self.operations += 1;
        let fits = self.operations <= OPERATIONS_PER_AGENT_MAX
            && self.take(memory_of_operation(record), self.max);
        if fits {
            return Fit::Complete;
        }
        self.left_out += 1;
        Fit::LeftOut
    }

    /// Logs that records were reduced or skipped.
    pub(in crate::core) fn log(&self, agent: &AgentId) {
        if self.reduced > 0 || self.left_out > 0 {
            tracing::warn!(agent_id = %agent, max = self.max, reduced = self.reduced, left_out = self.left_out, "the records reported by the agents of a host exceed the limit: of some records what only readers need is left away, others are left out; raise --memory_budget");
        }
    }
}

pub(super) fn encoded(resources: &[v1::Resource]) -> usize {
    resources.iter().map(v1::Resource::encoded_len).sum()
}

/// The memory of a task's record without the texts in its resources.
fn memory_of_task(record: &TaskRecord) -> usize {
    let user = record.user.as_deref().map_or(0, str::len);
    let resources = record.resources.iter().count() * size_of::<Resource>();
    ENTRY_BYTES + record.bytes() + user + resources
}

fn memory_of_executor(record: &ExecutorRecord) -> usize {
    let user = record.user.as_deref().map_or(0, str::len);
    let resources = record.resources.iter().count() * size_of::<Resource>();
    ENTRY_BYTES + record.info.len() + user + resources
}

fn memory_of_operation(record: &OperationRecord) -> usize {
    let statuses = record.statuses.iter().chain([&record.latest]);
    let statuses: usize = statuses.map(v1::OperationStatus::encoded_len).sum();
    ENTRY_BYTES + (record.info.encoded_len() + statuses) * DECODED_PER_ENCODED
}

impl Agent {
    /// The memory of the records that the agent alone reports.
    pub(in crate::core) fn reported_bytes(&self) -> usize {
        let text = |resources| encoded(&wire::to_wire(resources, Format::PostRefinement));
        let tasks = self.tasks.values().filter(|task| !task.is_launched);
        let tasks = tasks.map(|task| memory_of_task(task) + text(&task.resources));
        let executors = self.executors.values();
        let executors = executors.map(|one| memory_of_executor(one) + text(&one.resources));
        let operations = self.operations.values().map(Arc::as_ref);
        tasks
            .chain(executors)
            .chain(operations.map(memory_of_operation))
            .sum()
    }
}

impl MasterCore {
    /// The budget for the records of an agent. Without a certificate, an agent could otherwise use up the budget of
    /// another host.
    pub(in crate::core) fn reported_budget_of(&self, agent: &Agent) -> ReportedBudget {
        let is_proven = agent
            .connection
            .is_some_and(|on| self.is_of_proven_host(on));
        let used = if is_proven {
            let agents = self.registered_of_host(&agent.profile.info.hostname);
            let agents = agents.filter_map(|id| self.agents.get(id));
            agents.map(Agent::reported_bytes).sum()
        } else {
            agent.reported_bytes()
        };
        ReportedBudget::new(used, agent.operations.len(), self.config.memory.reported)
    }
}
