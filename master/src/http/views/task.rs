//! Tasks as `/state`, `/frameworks` and `/tasks` list them: live, lost and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_proto::mesos::v1::value::Scalar;
use meseta_proto::mesos::v1::{
    self, ContainerInfo, ContainerStatus, DiscoveryInfo, HealthCheck, Label, Labels,
};
use meseta_proto::v0::Summary;
use prost::Message as _;
use serde::Serialize;

use super::super::pieces::{Document, list, text};
use super::{Paging, write};
use crate::core::{Snapshot, TaskRecord};

/// What a task takes in a list, more or less.
pub(super) const TASK_BYTES: usize = 500;

/// One task.
#[derive(Debug, Serialize)]
pub(super) struct Task<'a> {
    id: &'a str,
    name: String,
    framework_id: &'a str,
    /// Empty for command tasks.
    executor_id: &'a str,
    slave_id: &'a str,
    state: &'static str,
    resources: Summary<'a>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, f64>,
    role: &'a str,
    statuses: Vec<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<Label>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    discovery: Option<DiscoveryInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<Box<ContainerInfo>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health_check: Option<Box<HealthCheck>>,
}

#[derive(Debug, Serialize)]
struct Status {
    state: &'static str,
    timestamp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<Label>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_status: Option<ContainerStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthy: Option<bool>,
}

/// What of a kept status is shown; the rest is not even decoded, for there may be a hundred thousand tasks.
#[derive(Clone, PartialEq, prost::Message)]
struct KeptStatus {
    #[prost(int32, optional, tag = "2")]
    state: Option<i32>,
    #[prost(double, optional, tag = "6")]
    timestamp: Option<f64>,
    #[prost(bool, optional, tag = "8")]
    healthy: Option<bool>,
    #[prost(message, optional, tag = "12")]
    labels: Option<Labels>,
    #[prost(message, optional, tag = "13")]
    container_status: Option<ContainerStatus>,
}

/// What of a task's kept description is shown.
#[derive(Clone, PartialEq, prost::Message)]
struct Description {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "11")]
    labels: Option<Labels>,
    #[prost(message, optional, tag = "12")]
    discovery: Option<DiscoveryInfo>,
    #[prost(message, optional, boxed, tag = "13")]
    container: Option<Box<ContainerInfo>>,
    #[prost(string, optional, tag = "14")]
    user: Option<String>,
    #[prost(message, optional, boxed, tag = "15")]
    health_check: Option<Box<HealthCheck>>,
    #[prost(btree_map = "string, message", tag = "17")]
    limits: BTreeMap<String, Scalar>,
}

impl Status {
    fn of(status: KeptStatus) -> Self {
        let container_status = status.container_status.map(|mut container| {
            container.executor_pid = None;
            container
        });
        Self {
            state: v1::TaskState::try_from(status.state.unwrap_or_default())
                .unwrap_or(v1::TaskState::TaskUnknown)
                .as_str_name(),
            timestamp: status.timestamp.unwrap_or_default(),
            labels: status.labels.map(|labels| labels.labels),
            container_status,
            healthy: status.healthy,
        }
    }
}

impl<'a> Task<'a> {
    pub(super) fn of(record: &'a TaskRecord) -> Self {
        let task = Description::decode(&*record.description).unwrap_or_default();
        let statuses = record.statuses.iter();
        let statuses = statuses.filter_map(|status| KeptStatus::decode(&*status.encoded).ok());
        Self {
            id: record.task_id.as_str(),
            name: task.name,
            framework_id: record.framework_id.as_str(),
            executor_id: record.executor_id.as_ref().map_or("", |id| id.as_str()),
            slave_id: record.agent_id.as_str(),
            state: record.state.as_str_name(),
            resources: Summary(&record.resources),
            limits: task
                .limits
                .into_iter()
                .map(|(name, limit)| (name, limit.value))
                .collect(),
            role: record.role.as_str(),
            statuses: statuses.map(Status::of).collect(),
            user: task.user,
            labels: task.labels.map(|labels| labels.labels),
            discovery: task.discovery,
            container: task.container,
            health_check: task.health_check,
        }
    }
}

/// `/tasks`: live, lost and ended ones, by the time of their first status. Beside them the agents of
/// the previous master that are not back yet, if there are any: a task that is not listed may be there.
pub(in super::super) fn tasks(
    snapshot: &Arc<Snapshot>,
    query: &BTreeMap<String, String>,
    paging: &Paging,
) -> Document {
    let wanted = |name: &str| query.get(name).cloned();
    let (framework, id) = (wanted("framework_id"), wanted("task_id"));
    let (snapshot, paging) = (snapshot.clone(), paging.clone());
    let rest = move || {
        let page = page(&snapshot, framework.as_deref(), id.as_deref(), &paging);
        let tasks = list(page.len(), TASK_BYTES, move |index, out| {
            write(out, &page.get(index).map(|task| Task::of(task)));
        });
        let recovered = snapshot.recovered_agents.iter();
        let recovered: Vec<&str> = recovered.map(|(id, _)| id.as_str()).collect();
        let mut end = b"]".to_vec();
        if !recovered.is_empty() {
            end.extend_from_slice(b",\"recovered_agents\":");
            write(&mut end, &recovered);
        }
        end.push(b'}');
        vec![tasks, text(end)]
    };
    Document {
        first: vec![text("{\"tasks\":[")],
        rest: Box::new(rest),
    }
}

/// The tasks that are asked for. Takes a while.
fn page(
    snapshot: &Snapshot,
    framework: Option<&str>,
    id: Option<&str>,
    paging: &Paging,
) -> Vec<Arc<TaskRecord>> {
    let live = snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.tasks.values());
    let frameworks = snapshot
        .frameworks
        .iter()
        .chain(&snapshot.completed_frameworks);
    let ended = frameworks.flat_map(|framework| {
        framework
            .unreachable
            .iter()
            .chain(framework.completed.iter())
    });
    let mut found: Vec<(f64, &Arc<TaskRecord>)> = live
        .chain(ended)
        .filter(|task| framework.is_none_or(|wanted| task.framework_id.as_str() == wanted))
        .filter(|task| id.is_none_or(|wanted| task.task_id.as_str() == wanted))
        .map(|task| (first_time(task), task))
        .collect();
    found.sort_by(|(a, task), (b, other)| {
        a.total_cmp(b)
            .then_with(|| task.task_id.cmp(&other.task_id))
    });
    if !paging.ascending {
        found.reverse();
    }
    found
        .into_iter()
        .skip(paging.offset)
        .take(paging.limit.unwrap_or(usize::MAX))
        .map(|(_, task)| task.clone())
        .collect()
}

fn first_time(task: &TaskRecord) -> f64 {
    let first = task.statuses.first();
    first
        .and_then(|status| KeptStatus::decode(&*status.encoded).ok())
        .and_then(|status| status.timestamp)
        .unwrap_or_default()
}
