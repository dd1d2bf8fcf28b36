//! `/state`, `/flags` and `/version`, in the shapes of Mesos.

use std::sync::Arc;

use meseta_proto::INTERFACE_VERSION as VERSION;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::v0::{AttributesView, Full, Reserved, ReservedFull, Summary};
use meseta_resources::Resources;
use serde_json::{Map, Value, json};

use super::Surface;
use super::statistics::value;
use crate::core::{Executor, ExecutorKind, Framework, Snapshot, Task};

/// `/version`.
pub(super) fn version() -> Value {
    json!({
        "version": VERSION,
        "build_date": "",
        "build_time": 0.0,
        "build_user": "",
    })
}

/// `/flags`.
pub(super) fn flags(surface: &Surface) -> Value {
    json!({ "flags": surface.flags })
}

/// `/state`.
pub(super) fn state(surface: &Surface, snapshot: &Snapshot) -> Value {
    let total = &snapshot.resources;
    let allocated = snapshot.allocated();
    let capabilities: Vec<_> = snapshot
        .capabilities
        .iter()
        .map(pb::agent_info::capability::Type::as_str_name)
        .collect();
    let mut state = json!({
        "version": VERSION,
        "build_date": "",
        "build_time": 0.0,
        "build_user": "",
        "start_time": surface.start_time.as_secs_f64(),
        "id": snapshot.agent_id.as_ref().map(|id| id.as_str()).unwrap_or_default(),
        "pid": surface.pid,
        "hostname": snapshot.info.hostname,
        "capabilities": capabilities,
        "resources": resources(total),
        "reserved_resources": shown(Reserved(total)),
        "unreserved_resources": resources(&total.unreserved()),
        "reserved_resources_full": shown(ReservedFull(total)),
        "unreserved_resources_full": shown(Full(&total.unreserved())),
        "reserved_resources_allocated": shown(Reserved(&allocated)),
        "unreserved_resources_allocated": resources(&allocated.unreserved()),
        "resource_providers": [],
        "oversubscribed_resources": oversubscribed(snapshot),
        "oversubscription": oversubscription(snapshot),
        "attributes": attributes(&snapshot.info),
        "flags": surface.flags,
        "frameworks": frameworks(surface, snapshot.frameworks.values().map(|f| &**f)),
        "completed_frameworks":
            frameworks(surface, snapshot.completed_frameworks.iter().map(|f| &**f)),
    });
    if let (Some(master), Some(state)) = (&snapshot.master, state.as_object_mut()) {
        let hostname = master.hostname.clone();
        state.insert("master_hostname".to_owned(), json!(hostname));
    }
    if let (Some(domain), Some(state)) = (&snapshot.info.domain, state.as_object_mut()) {
        state.insert("domain".to_owned(), shown(domain));
    }
    state
}

/// What is lent and what more can be.
fn oversubscribed(snapshot: &Snapshot) -> Value {
    let total = snapshot.oversubscription.total.as_ref();
    total.map_or_else(|| json!({}), resources)
}

/// How that came about, and what is done about those who borrowed; not in Mesos.
fn oversubscription(snapshot: &Snapshot) -> Value {
    let state = &snapshot.oversubscription;
    let forecasts = state.forecasts.iter().map(|forecast| {
        json!({
            "name": forecast.resource,
            "capacity": forecast.capacity,
            "promised": forecast.promised,
            "used": forecast.used,
            "peak": forecast.peak,
            "total": forecast.total,
        })
    });
    let throttle = state.throttle.as_ref();
    json!({
        "forecasts": forecasts.collect::<Vec<_>>(),
        "held_back": state.held_back,
        "stopped": state.stopped,
        "throttle_cpus": throttle.map(|throttle| throttle.cpus),
        "throttled_because": throttle.map(|throttle| throttle.why.to_string()),
        "memory_ceiling_bytes": state.memory_ceiling_bytes,
        "frozen": state.frozen.iter().map(|container| container.as_str()).collect::<Vec<_>>(),
    })
}

fn shown<T: serde::Serialize>(view: T) -> Value {
    serde_json::to_value(view).unwrap_or(Value::Null)
}

fn resources(resources: &Resources) -> Value {
    shown(Summary(resources))
}

fn attributes(info: &pb::AgentInfo) -> Value {
    let attributes = convert::attributes(&info.attributes).unwrap_or_default();
    shown(AttributesView(&attributes))
}

fn frameworks<'a>(surface: &Surface, frameworks: impl Iterator<Item = &'a Framework>) -> Value {
    Value::Array(frameworks.map(|one| framework(surface, one)).collect())
}

fn framework(surface: &Surface, framework: &Framework) -> Value {
    let info = &*framework.info;
    let live = framework.executors.values();
    let completed = framework.completed.iter();
    let mut shown = json!({
        "id": framework.id.as_str(),
        "name": info.name,
        "user": info.user,
        "failover_timeout": info.failover_timeout.unwrap_or_default(),
        "checkpoint": info.checkpoint.unwrap_or_default(),
        "hostname": info.hostname.clone().unwrap_or_default(),
        "executors": live.map(|one| executor(surface, one)).collect::<Vec<_>>(),
        "completed_executors": completed.map(|one| executor(surface, one)).collect::<Vec<_>>(),
    });
    if let Some(shown) = shown.as_object_mut() {
        if let Some(principal) = &info.principal {
            shown.insert("principal".to_owned(), json!(principal));
        }
        if info.roles.is_empty() {
            let role = info.role.clone().unwrap_or_else(|| "*".to_owned());
            shown.insert("role".to_owned(), json!(role));
        } else {
            shown.insert("roles".to_owned(), json!(info.roles));
        }
    }
    shown
}

fn executor(surface: &Surface, executor: &Executor) -> Value {
    let directory = surface.layout.sandbox(&executor.key);
    let waits = |task: &&Arc<Task>| executor.kind == ExecutorKind::Custom && !task.delivered;
    let (over, live): (Vec<_>, Vec<_>) = executor.all_tasks().partition(|task| task.is_terminal());
    let (queued, live): (Vec<_>, Vec<_>) = live.into_iter().partition(waits);
    let shown = |tasks: Vec<&Arc<Task>>| -> Vec<Value> {
        tasks.into_iter().map(|task| task_value(task)).collect()
    };
    let mut entry = json!({
        "id": executor.key.executor.as_str(),
        "name": executor.name(),
        "source": executor.source(),
        "container": executor.key.container.as_str(),
        "directory": directory.display().to_string(),
        "resources": resources(&executor.allocated()),
        "tasks": shown(live),
        "queued_tasks": shown(queued),
        "completed_tasks": shown(over),
    });
    if let Some(entry) = entry.as_object_mut() {
        if let Some(role) = &executor.role {
            entry.insert("role".to_owned(), json!(role.as_str()));
        }
        if let Some(labels) = executor.describe().labels {
            entry.insert("labels".to_owned(), labels_value(&labels));
        }
    }
    entry
}

fn task_value(task: &Task) -> Value {
    let mut entry = json!({
        "id": task.key.task.as_str(),
        "name": task.info.name,
        "framework_id": task.key.run.framework.as_str(),
        "executor_id": task.executor_id().unwrap_or_default().value,
        "slave_id": task.key.run.agent.as_str(),
        "state": task.state.as_str_name(),
        "resources": resources(&task.resources),
        "statuses": task.statuses.iter().map(status).collect::<Vec<_>>(),
    });
    if let Some(entry) = entry.as_object_mut() {
        if let Some(role) = &task.role {
            entry.insert("role".to_owned(), json!(role.as_str()));
        }
        if let Some(user) = task.told_user() {
            entry.insert("user".to_owned(), json!(user));
        }
        if let Some(labels) = &task.info.labels {
            entry.insert("labels".to_owned(), labels_value(labels));
        }
        if let Some(discovery) = &task.info.discovery {
            entry.insert("discovery".to_owned(), value(discovery));
        }
        if let Some(container) = &task.info.container {
            entry.insert("container".to_owned(), value(&**container));
        }
        if !task.info.limits.is_empty() {
            let limits = task.info.limits.iter();
            let limits: Map<_, _> = limits
                .map(|(name, limit)| (name.clone(), limit_value(limit.value)))
                .collect();
            entry.insert("limits".to_owned(), Value::Object(limits));
        }
    }
    entry
}

/// JSON has no infinity; Mesos writes it as a text.
fn limit_value(limit: f64) -> Value {
    if limit.is_finite() {
        json!(limit)
    } else {
        json!("Infinity")
    }
}

fn labels_value(labels: &pb::Labels) -> Value {
    Value::Array(labels.labels.iter().map(value).collect())
}

fn status(status: &pb::TaskStatus) -> Value {
    let state = pb::TaskState::try_from(status.state);
    let mut entry = json!({
        "state": state.map_or("TASK_UNKNOWN", |state| state.as_str_name()),
        "timestamp": status.timestamp.unwrap_or_default(),
    });
    if let Some(entry) = entry.as_object_mut() {
        if let Some(container) = &status.container_status {
            let mut container = container.clone();
            container.executor_pid = None;
            entry.insert("container_status".to_owned(), value(&container));
        }
        if let Some(healthy) = status.healthy {
            entry.insert("healthy".to_owned(), json!(healthy));
        }
    }
    entry
}
