//! Tasks as `/state`, `/frameworks` and `/tasks` list them: live, lost and ended.

use std::collections::BTreeMap;

use meseta_proto::mesos::v1::value::Scalar;
use meseta_proto::mesos::v1::{
    self, ContainerInfo, ContainerStatus, DiscoveryInfo, HealthCheck, Label, Labels,
};
use meseta_proto::v0::Summary;
use prost::Message as _;
use serde::Serialize;

use super::super::output::List;
use super::Paging;
use crate::core::{Snapshot, TaskRecord};

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
        let task = Description::decode(record.description.clone()).unwrap_or_default();
        let statuses = record.statuses.iter();
        let statuses =
            statuses.filter_map(|status| KeptStatus::decode(status.encoded.clone()).ok());
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
pub(in super::super) fn tasks<'a>(
    snapshot: &'a Snapshot,
    query: &BTreeMap<String, String>,
    paging: &Paging,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(bound = "")]
    struct Tasks<'a, T: Serialize> {
        tasks: T,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        recovered_agents: Vec<&'a str>,
    }
    let framework = query.get("framework_id").map(String::as_str);
    let id = query.get("task_id").map(String::as_str);
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
    let mut found: Vec<(f64, &TaskRecord)> = live
        .chain(ended)
        .filter(|task| framework.is_none_or(|wanted| task.framework_id.as_str() == wanted))
        .filter(|task| id.is_none_or(|wanted| task.task_id.as_str() == wanted))
        .map(|task| (first_time(task), &**task))
        .collect();
    found.sort_by(|(a, task), (b, other)| {
        a.total_cmp(b)
            .then_with(|| task.task_id.cmp(&other.task_id))
    });
    if !paging.ascending {
        found.reverse();
    }
    let page: Vec<&TaskRecord> = found
        .into_iter()
        .skip(paging.offset)
        .take(paging.limit.unwrap_or(usize::MAX))
        .map(|(_, task)| task)
        .collect();
    Tasks {
        tasks: List(move || page.clone().into_iter().map(Task::of)),
        recovered_agents: snapshot
            .recovered_agents
            .iter()
            .map(|(id, _)| id.as_str())
            .collect(),
    }
}

fn first_time(task: &TaskRecord) -> f64 {
    let first = task.statuses.first();
    first
        .and_then(|status| KeptStatus::decode(status.encoded.clone()).ok())
        .and_then(|status| status.timestamp)
        .unwrap_or_default()
}
