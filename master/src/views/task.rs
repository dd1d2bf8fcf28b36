//! Tasks as `/state`, `/frameworks` and `/tasks` list them: live, unreachable and completed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use meseta_daemon::query::Query;
use meseta_proto::mesos::v1::value::Scalar;
use meseta_proto::mesos::v1::{
    self, ContainerInfo, ContainerStatus, DiscoveryInfo, HealthCheck, Label, Labels,
};
use meseta_proto::v0::{Limit, Summary};
use meseta_resources::Resources;
use prost::Message as _;
use serde::Serialize;

use super::fields::{Field, Fields};
use super::{Paging, write, write_text};
use crate::chunked_response::{Document, list, text};
use crate::core::{Snapshot, TaskRecord};

/// The approximate size of a task in a list, in bytes.
pub(super) const TASK_BYTES: usize = 500;

/// Writes tasks. There may be hundreds of thousands, so common fields are written directly, and only rare ones are
/// converted to values first.
#[derive(Debug, Default)]
pub(super) struct Writer<'a> {
    /// The resources of the previous task and their position in the output: most tasks have equal resources.
    last: Option<(&'a Resources, Range<usize>)>,
    /// Whether each status includes its source and reason.
    has_reasons: bool,
}

impl<'a> Writer<'a> {
    fn with_reasons(has_reasons: bool) -> Self {
        Self {
            has_reasons,
            ..Self::default()
        }
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>, record: &'a TaskRecord) {
        let plain = plain_name(&record.description);
        let task = match plain {
            Some(_) => Description::default(),
            None => Description::decode(&*record.description).unwrap_or_default(),
        };
        let executor = record.executor_id.as_ref().map_or("", |id| id.as_str());
        put_text(out, "{\"id\":", record.task_id.as_str());
        put_text(out, ",\"name\":", plain.unwrap_or(&task.name));
        put_text(out, ",\"framework_id\":", record.framework_id.as_str());
        put_text(out, ",\"executor_id\":", executor);
        put_text(out, ",\"slave_id\":", record.agent_id.as_str());
        put_text(out, ",\"state\":", record.state.as_str_name());
        out.extend_from_slice(b",\"resources\":");
        self.put_resources(out, &record.resources);
        if !task.limits.is_empty() {
            let limits = task.limits.iter();
            let limits = limits.map(|(name, limit)| (name, Limit::from(limit.value)));
            let limits: BTreeMap<_, _> = limits.collect();
            put(out, ",\"limits\":", Some(limits));
        }
        put_text(out, ",\"role\":", record.role.as_str());
        out.extend_from_slice(b",\"statuses\":");
        match self.has_reasons {
            true => put_statuses_with_reasons(out, record),
            false => put_statuses(out, record),
        }
        if plain.is_none() {
            put(out, ",\"user\":", task.user);
            put(out, ",\"labels\":", task.labels.map(|labels| labels.labels));
            put(out, ",\"discovery\":", task.discovery);
            put(out, ",\"container\":", task.container);
            put(out, ",\"health_check\":", task.health_check);
        }
        out.push(b'}');
    }

    fn put_resources(&mut self, out: &mut Vec<u8>, resources: &'a Resources) {
        let begin = out.len();
        match &self.last {
            Some((last, position)) if *last == resources => {
                out.extend_from_within(position.clone())
            }
            _ => write(out, &Summary(resources)),
        }
        self.last = Some((resources, begin..out.len()));
    }
}

/// Writes a member of an object after `before`, if there is one.
fn put(out: &mut Vec<u8>, before: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        out.extend_from_slice(before.as_bytes());
        write(out, &value);
    }
}

fn put_text(out: &mut Vec<u8>, before: &str, text: &str) {
    out.extend_from_slice(before.as_bytes());
    write_text(out, text);
}

fn put_statuses(out: &mut Vec<u8>, record: &TaskRecord) {
    out.push(b'[');
    let begin = out.len();
    for status in &record.statuses {
        if out.len() > begin {
            out.push(b',');
        }
        if let Some(plain) = PlainStatus::from_encoded(&status.encoded) {
            put_text(out, "{\"state\":", plain.state);
            out.extend_from_slice(b",\"timestamp\":");
            write(out, &plain.timestamp);
            out.push(b'}');
        } else {
            // Stored statuses are always readable.
            let kept = KeptStatus::decode(&*status.encoded).unwrap_or_default();
            write(out, &Status::from_status(kept));
        }
    }
    out.push(b']');
}

fn put_statuses_with_reasons(out: &mut Vec<u8>, record: &TaskRecord) {
    let statuses = record.statuses.iter().map(|status| {
        let kept = KeptStatus::decode(&*status.encoded).unwrap_or_default();
        let whole = v1::TaskStatus::decode(&*status.encoded).unwrap_or_default();
        StatusWithReason {
            source: whole.source.map(|_| whole.source().as_str_name()),
            reason: whole.reason.map(|_| whole.reason().as_str_name()),
            message: whole.message,
            status: Status::from_status(kept),
        }
    });
    write(out, &statuses.collect::<Vec<_>>());
}

#[derive(Debug, Serialize)]
struct StatusWithReason {
    #[serde(flatten)]
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
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

/// A status with no other fields to show.
#[derive(Debug, PartialEq)]
struct PlainStatus {
    state: &'static str,
    timestamp: f64,
}

impl PlainStatus {
    /// Decodes a plain status; `None` if there are more fields to show.
    fn from_encoded(encoded: &[u8]) -> Option<Self> {
        let mut plain = Self {
            state: name_of(0),
            timestamp: 0.0,
        };
        let mut fields = Fields(encoded);
        while let Some(field) = fields.take_field()? {
            match field {
                (2, Field::Varint(state)) => plain.state = name_of(i32::try_from(state).ok()?),
                (6, Field::Fixed64(bits)) => plain.timestamp = f64::from_le_bytes(bits),
                (2 | 6 | 8 | 12 | 13, _) => return None,
                _ => {}
            }
        }
        Some(plain)
    }
}

fn name_of(state: i32) -> &'static str {
    v1::TaskState::try_from(state)
        .unwrap_or(v1::TaskState::TaskUnknown)
        .as_str_name()
}

/// Returns the name from an encoded description if the name is its only field that readers see, and otherwise `None`.
fn plain_name(encoded: &[u8]) -> Option<&str> {
    let mut name = "";
    let mut fields = Fields(encoded);
    while let Some(field) = fields.take_field()? {
        match field {
            (1, Field::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
            (1 | 11..=15 | 17, _) => return None,
            _ => {}
        }
    }
    Some(name)
}

/// The shown fields of a stored status; the others are not even decoded, because there may be a hundred thousand
/// tasks.
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

/// The shown fields of a task's stored description.
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
    fn from_status(status: KeptStatus) -> Self {
        let container_status = status.container_status.map(|mut container| {
            container.executor_pid = None;
            container
        });
        Self {
            state: name_of(status.state.unwrap_or_default()),
            timestamp: status.timestamp.unwrap_or_default(),
            labels: status.labels.map(|labels| labels.labels),
            container_status,
            healthy: status.healthy,
        }
    }
}

/// Answers requests for `/tasks`: live, unreachable and completed tasks, by the time of their first status. The
/// answer also lists agents of the previous master that are not back yet, because a missing task may be there. A
/// single task requested by its id includes the reasons of its statuses; a whole list would be twice as long with
/// them.
pub(crate) fn tasks(snapshot: &Arc<Snapshot>, query: &Query, paging: &Paging) -> Document {
    let requested = |name: &str| query.get(name).map(str::to_owned);
    let (framework, id) = (requested("framework_id"), requested("task_id"));
    let (snapshot, paging) = (snapshot.clone(), paging.clone());
    let has_reasons = id.is_some();
    let rest = move || {
        let page = page(&snapshot, framework.as_deref(), id.as_deref(), &paging);
        let tasks = list(page.len(), TASK_BYTES, move |index, out| {
            if let Some(task) = page.get(index) {
                Writer::with_reasons(has_reasons).write(out, task);
            }
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
        rest: Some(Box::new(rest)),
    }
}

/// The requested tasks. Slow in a large cluster.
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
        .filter(|task| framework.is_none_or(|requested| task.framework_id.as_str() == requested))
        .filter(|task| id.is_none_or(|requested| task.task_id.as_str() == requested))
        .map(|task| (first_time(task), task))
        .collect();
    let by_time = |(a, task): &(f64, &Arc<TaskRecord>), (b, other): &(f64, &Arc<TaskRecord>)| {
        let order = a
            .total_cmp(b)
            .then_with(|| task.task_id.cmp(&other.task_id))
            .then_with(|| task.framework_id.cmp(&other.framework_id))
            // Two agents may report the same task: pages must always divide them in the same way.
            .then_with(|| task.agent_id.cmp(&other.agent_id));
        if paging.ascending {
            order
        } else {
            order.reverse()
        }
    };
    let end = paging
        .offset
        .saturating_add(paging.limit.unwrap_or(usize::MAX));
    if end < found.len() {
        // Only the first ones of many are sorted.
        found.select_nth_unstable_by(end, by_time);
        found.truncate(end);
    }
    found.sort_unstable_by(by_time);
    found
        .into_iter()
        .skip(paging.offset)
        .map(|(_, task)| task.clone())
        .collect()
}

fn first_time(task: &TaskRecord) -> f64 {
    let first = task.statuses.first();
    first
        .and_then(|status| timestamp(&status.encoded))
        .unwrap_or_default()
}

/// The time of a status; decodes no other field.
fn timestamp(encoded: &[u8]) -> Option<f64> {
    let mut found = None;
    let mut fields = Fields(encoded);
    while let Some(field) = fields.take_field()? {
        if let (6, Field::Fixed64(bits)) = field {
            found = Some(f64::from_le_bytes(bits));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_task_shows_status_reasons() {
        let status = v1::TaskStatus {
            state: v1::TaskState::TaskFailed.into(),
            message: Some("exited with status 3".to_owned()),
            source: Some(v1::task_status::Source::Executor.into()),
            reason: Some(v1::task_status::Reason::CommandExecutorFailed.into()),
            timestamp: Some(1.5),
            ..v1::TaskStatus::default()
        };
        let mut record = (*super::super::tests::task(0, 0, "t", v1::TaskState::TaskFailed)).clone();
        record.statuses[0].encoded = status.encode_to_vec().into();
        assert!((first_time(&record) - 1.5).abs() < f64::EPSILON);
        let shown = |has_reasons| {
            let mut out = Vec::new();
            Writer::with_reasons(has_reasons).write(&mut out, &record);
            let mut task: serde_json::Value = serde_json::from_slice(&out).unwrap();
            task["statuses"][0].take()
        };
        let mut expected = serde_json::json!({"state": "TASK_FAILED", "timestamp": 1.5});
        assert_eq!(shown(false), expected);
        expected["source"] = "SOURCE_EXECUTOR".into();
        expected["reason"] = "REASON_COMMAND_EXECUTOR_FAILED".into();
        expected["message"] = "exited with status 3".into();
        assert_eq!(shown(true), expected);
    }

    #[test]
    fn plain_status_decodes_like_full_status() {
        let plain = v1::TaskStatus {
            state: v1::TaskState::TaskFailed.into(),
            message: Some("m".repeat(300)),
            timestamp: Some(1.5),
            uuid: Some(vec![7; 16]),
            ..v1::TaskStatus::default()
        };
        let read = PlainStatus::from_encoded(&plain.encode_to_vec());
        let requested = PlainStatus {
            state: "TASK_FAILED",
            timestamp: 1.5,
        };
        assert_eq!(read, Some(requested));
        let healthy = v1::TaskStatus {
            healthy: Some(true),
            ..plain.clone()
        };
        assert_eq!(PlainStatus::from_encoded(&healthy.encode_to_vec()), None);
        let labelled = v1::TaskStatus {
            labels: Some(Labels::default()),
            ..plain.clone()
        };
        assert_eq!(PlainStatus::from_encoded(&labelled.encode_to_vec()), None);
        let cut = plain.encode_to_vec();
        assert_eq!(PlainStatus::from_encoded(&cut[..cut.len() - 1]), None);
        let task = v1::Task {
            name: "a name".to_owned(),
            ..v1::Task::default()
        };
        assert_eq!(plain_name(&task.encode_to_vec()), Some("a name"));
        let task = v1::Task {
            user: Some("root".to_owned()),
            ..task
        };
        assert_eq!(plain_name(&task.encode_to_vec()), None);
    }
}
