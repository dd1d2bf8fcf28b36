//! The master's record of an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::{self};
use meseta_proto::schema::{self, WireMessage as _};
use meseta_resources::work_counter::count_entries;
use meseta_resources::{
    AgentId, Change, ExecutorId, FrameworkId, HostPort, OfferId, Resources, Scalar, TaskId,
};

use super::inverse_offers;
use super::operation::{OperationRecord, OperationTable, is_over};
use super::operation_usage::OperationUsage;
use super::resource_size::{decoded_bytes, reserved_bytes};
use super::task::{ExecutorRecord, TaskRecord, TaskTable, is_terminal};
use super::unknown_task_updates::UnknownTaskUpdates;
use super::usage::Usage;
use crate::core::ids::ConnectionId;

/// Kills stored per agent to be sent again when the agent reregisters. Kills beyond this number are not stored: the
/// framework's next reconciliation finds the task alive.
const KILLS_MAX: usize = 10_000;

/// An agent's description of itself; never changed in place.
#[derive(Clone, Debug)]
pub struct AgentProfile {
    pub id: AgentId,
    pub info: v1::AgentInfo,
    pub version: String,
    pub capabilities: Vec<Capability>,
    /// The address of the agent's own API.
    pub address: v1::Address,
    /// All resources of the agent, including reservations and volumes.
    pub total: Resources,
    /// The longest frame in bytes that the agent accepts.
    pub frame_bytes_max: usize,
    /// The encoded size of the agent's info.
    pub info_bytes: usize,
    /// The approximate memory taken by the agent's description.
    pub bytes: usize,
    /// The upper limit of the encoded size of the agent's reservations and volumes.
    pub reserved_bytes: usize,
}

/// A size in bytes after a change; `count` computes the size of each part.
fn with_change(bytes: usize, change: &Change, count: fn(&Resources) -> usize) -> usize {
    (bytes + count(change.after())).saturating_sub(count(change.before()))
}

impl AgentProfile {
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// The approximate memory taken by the description after a change of reservations and volumes.
    #[must_use]
    pub(in crate::core) fn bytes_with(&self, change: &Change) -> usize {
        with_change(self.bytes, change, decoded_bytes)
    }

    /// The encoded size of the agent's reservations and volumes after a change.
    #[must_use]
    pub(in crate::core) fn reserved_bytes_with(&self, change: &Change) -> usize {
        with_change(self.reserved_bytes, change, reserved_bytes)
    }

    /// Applies the change that an operation made to the agent's resources.
    pub(in crate::core) fn change(&mut self, change: &Change) {
        self.bytes = self.bytes_with(change);
        self.reserved_bytes = self.reserved_bytes_with(change);
        change.apply_to(&mut self.total);
    }

    /// Replaces the total with the one that the agent reports.
    pub(in crate::core) fn set_total(&mut self, total: Resources) {
        self.reserved_bytes = reserved_bytes(&total);
        self.total = total;
    }

    /// The address in Mesos's form of a process id.
    #[must_use]
    pub fn pid(&self) -> String {
        let address = HostPort::of_message(self.ip(), self.address.port);
        format!("slave(1)@{address}")
    }

    /// Whether the agent can run tasks: an agent without cpus or memory is never offered.
    #[must_use]
    pub fn is_offerable(&self) -> bool {
        let some = |amount: Option<Scalar>| amount.is_some_and(Scalar::is_positive);
        some(self.total.cpus()) && some(self.total.mem())
    }

    /// The URL of the agent's own API, as in offers.
    #[must_use]
    pub(crate) fn url(&self) -> v1::Url {
        v1::Url {
            scheme: "http".to_owned(),
            address: v1::Address {
                hostname: Some(self.info.hostname.clone()),
                ip: Some(self.ip().to_owned()),
                port: self.address.port,
            },
            path: Some("/slave(1)".to_owned()),
            query: Vec::new(),
            fragment: None,
        }
    }

    /// The literal IP address, or else the hostname.
    #[must_use]
    pub fn ip(&self) -> &str {
        self.address.ip.as_deref().unwrap_or(&self.info.hostname)
    }
}

/// A registered agent with its tasks, executors, operations and offers.
#[derive(Debug)]
pub(in crate::core) struct Agent {
    pub profile: Arc<AgentProfile>,
    /// The memory taken by the agent's estimate of revocable resources, on top of its description.
    pub oversubscribed_bytes: usize,
    pub connection: Option<ConnectionId>,
    /// The last connection on which the agent was admitted, even if it has ended. A message on an earlier connection
    /// is outdated.
    pub newest_connection: ConnectionId,
    /// A counter of connections, by which the handler recognises a stale ping timer.
    pub generation: u64,
    /// The registration times since the Unix epoch.
    pub registered: Duration,
    pub reregistered: Option<Duration>,
    pub tasks: TaskTable,
    /// The number of tasks with cgroups of their own, by executor.
    pub apart: BTreeMap<(FrameworkId, ExecutorId), usize>,
    /// The number of tasks, by executor.
    pub in_executors: BTreeMap<(FrameworkId, ExecutorId), usize>,
    pub executors: Arc<BTreeMap<(FrameworkId, ExecutorId), Arc<ExecutorRecord>>>,
    pub operations: OperationTable,
    pub(in crate::core) operation_usage: OperationUsage,
    pub offers: BTreeSet<OfferId>,
    /// The answers of frameworks to the agent's planned maintenance.
    pub inverse_replies: BTreeMap<FrameworkId, inverse_offers::Reply>,
    /// The resources of tasks and executors, by framework, without offers.
    pub used: Arc<BTreeMap<FrameworkId, Resources>>,
    /// Tasks to kill, with their kill policies. The master sends these kills again when the agent reregisters, since
    /// the first ones may be lost.
    pub kills: BTreeMap<(FrameworkId, TaskId), Option<v1::KillPolicy>>,
    /// Updates from this agent for tasks that the master does not know.
    pub unknown_task_updates: UnknownTaskUpdates,
    pub ping_sequence: u64,
    pub pong_sequence: u64,
    pub missed_pings: u32,
    /// The last reported resource usage of the agent's containers.
    pub usage: Option<Usage>,
    /// Whether the agent last reported a disk that does not respond. Such an agent gets no offers.
    pub disk_silent: bool,
    /// Whether the registry is about to record the agent as unreachable.
    pub removal_pending: bool,
    /// Whether the agent has shown that it keeps its id: it reregistered with the id, or sent messages other than
    /// pongs.
    pub keeps_id: bool,
}

/// The table for a change of one entry: copied if a snapshot shares it, but only if it contains the entry.
fn own_if_contained<'a>(
    tasks: &'a mut TaskTable,
    key: &(FrameworkId, TaskId),
) -> Option<&'a mut BTreeMap<(FrameworkId, TaskId), Arc<TaskRecord>>> {
    let is_shared = Arc::get_mut(tasks).is_none();
    if is_shared && !tasks.contains_key(key) {
        return None;
    }
    Some(Arc::make_mut(tasks))
}

impl Agent {
    #[must_use]
    pub(in crate::core) fn id(&self) -> &AgentId {
        &self.profile.id
    }

    /// Whether the agent has come on a later connection than this one.
    #[must_use]
    pub(in crate::core) fn is_newer_than(&self, connection: ConnectionId) -> bool {
        connection < self.newest_connection
    }

    #[must_use]
    pub(in crate::core) fn task(
        &self,
        framework: &FrameworkId,
        task: &TaskId,
    ) -> Option<&Arc<TaskRecord>> {
        self.tasks.get(&(framework.clone(), task.clone()))
    }

    pub(in crate::core) fn task_mut(
        &mut self,
        framework: &FrameworkId,
        task: &TaskId,
    ) -> Option<&mut TaskRecord> {
        let key = (framework.clone(), task.clone());
        let tasks = own_if_contained(&mut self.tasks, &key)?;
        tasks.get_mut(&key).map(Arc::make_mut)
    }

    /// Adds a new task to the record.
    pub(in crate::core) fn insert_task(&mut self, record: TaskRecord) {
        if let Some(executor) = record.apart_of() {
            *self.apart.entry(executor).or_default() += 1;
        }
        if let Some(executor) = record.executor() {
            *self.in_executors.entry(executor).or_default() += 1;
        }
        let key = (record.framework_id.clone(), record.task_id.clone());
        Arc::make_mut(&mut self.tasks).insert(key, Arc::new(record));
    }

    /// Records that a task must be killed until it has ended.
    pub(in crate::core) fn remember_kill(
        &mut self,
        framework: &FrameworkId,
        task: &TaskId,
        policy: Option<v1::KillPolicy>,
    ) {
        let key = (framework.clone(), task.clone());
        if self.kills.len() < KILLS_MAX || self.kills.contains_key(&key) {
            self.kills.insert(key, policy);
        }
    }

    /// Removes a task from the record.
    pub(in crate::core) fn remove_task(
        &mut self,
        key: &(FrameworkId, TaskId),
    ) -> Option<Arc<TaskRecord>> {
        let record = own_if_contained(&mut self.tasks, key)?.remove(key)?;
        self.kills.remove(key);
        if let Some(executor) = record.apart_of() {
            count_down(&mut self.apart, &executor);
        }
        if let Some(executor) = record.executor() {
            count_down(&mut self.in_executors, &executor);
        }
        Some(record)
    }

    /// The tasks of a framework on this agent.
    pub(in crate::core) fn tasks_of(
        &self,
        framework: &FrameworkId,
    ) -> impl Iterator<Item = &Arc<TaskRecord>> {
        let all = self.tasks.values().inspect(|_| count_entries(1));
        all.filter(move |task| task.framework_id == *framework)
    }

    /// Whether sharing cgroups, or not, agrees with the other tasks of the executor: all of them must do the same.
    pub(in crate::core) fn agrees_on_groups(
        &self,
        framework: &FrameworkId,
        executor: &ExecutorId,
        shares: bool,
    ) -> bool {
        let key = (framework.clone(), executor.clone());
        if self.apart.contains_key(&key) {
            return !shares;
        }
        shares || !self.in_executors.contains_key(&key)
    }

    /// Whether the agent has the executor, or a task in it.
    pub(in crate::core) fn has_executor(
        &self,
        framework: &FrameworkId,
        executor: &ExecutorId,
    ) -> bool {
        let key = (framework.clone(), executor.clone());
        self.executors.contains_key(&key) || self.in_executors.contains_key(&key)
    }

    pub(in crate::core) fn charge(&mut self, framework: &FrameworkId, resources: &Resources) {
        if resources.is_empty() {
            return;
        }
        let used = Arc::make_mut(&mut self.used);
        let used = used.entry(framework.clone()).or_default();
        *used += resources;
    }

    pub(in crate::core) fn discharge(&mut self, framework: &FrameworkId, resources: &Resources) {
        let all = Arc::make_mut(&mut self.used);
        if let Some(used) = all.get_mut(framework) {
            match used.checked_sub(resources) {
                Ok(left) if left.is_empty() => {
                    all.remove(framework);
                }
                Ok(left) => *used = left,
                Err(_) => tracing::error!(
                    agent_id = %self.profile.id,
                    framework_id = %framework,
                    "more was given back than was in use"
                ),
            }
        }
    }

    /// Returns true if no task runs here, no operation is under way, and no connected framework has a final status to
    /// acknowledge: a disconnected framework acknowledges nothing. An executor without tasks may stay as long as its framework
    /// likes.
    #[must_use]
    pub(in crate::core) fn is_idle(&self, is_away: impl Fn(&FrameworkId) -> bool) -> bool {
        let mut tasks = self.tasks.values();
        let mut operations = self.operations.values();
        // The master acknowledges those of nobody.
        let is_unread = |operation: &OperationRecord| {
            let owner = operation.framework_id.as_ref();
            is_over(operation.state()) && owner.is_some_and(&is_away)
        };
        operations.all(|operation| is_unread(operation))
            && tasks.all(|task| is_terminal(task.state) && is_away(&task.framework_id))
    }

    /// The executors of a framework on this agent.
    pub(in crate::core) fn executors_of(
        &self,
        framework: &FrameworkId,
    ) -> impl Iterator<Item = &Arc<ExecutorRecord>> {
        self.executors
            .iter()
            .filter(move |((owner, _), _)| owner == framework)
            .map(|(_, executor)| executor)
    }
}

/// Decrements an executor's count and removes the count at zero.
fn count_down(
    counts: &mut BTreeMap<(FrameworkId, ExecutorId), usize>,
    executor: &(FrameworkId, ExecutorId),
) {
    if let Some(count) = counts.get_mut(executor) {
        *count -= 1;
        if *count == 0 {
            counts.remove(executor);
        }
    }
}

/// An agent that stopped answering.
#[derive(Clone, Debug)]
pub struct UnreachableAgent {
    /// The time since the Unix epoch.
    pub since: Duration,
    /// The host from which the agent was admitted; empty in a record of an older master.
    pub hostname: String,
}

/// An agent of the registry that has not come back since this master started, or that left during its admission.
#[derive(Clone, Debug)]
pub struct RecoveredAgent {
    pub info: Arc<v1::AgentInfo>,
    pub encoded: Bytes,
    /// Whether the registry is about to record the agent as unreachable or removed.
    pub removal_pending: bool,
    /// Whether frameworks know the agent as unreachable and do not know yet that it is back.
    pub was_unreachable: bool,
}

impl RecoveredAgent {
    /// The approximate size of the agent's info, encoded and decoded.
    #[must_use]
    pub(in crate::core) fn bytes(&self) -> usize {
        let decoded = schema::decoded_bytes(v1::AgentInfo::SCHEMA, &self.encoded);
        decoded.saturating_add(self.encoded.len())
    }
}
