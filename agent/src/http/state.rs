//! `/state`, `/flags` and `/version`, in the formats of Mesos.
//!
//! Views borrow from the snapshot and are written one after the other: an agent with a large state needs memory for the
//! text, but not for a tree of values.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_access::Action;
use meseta_daemon::build_info::{BuildView, VersionView};
use meseta_proto::INTERFACE_VERSION as VERSION;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::v0::{AttributesView, Full, Limit, Reserved, ReservedFull, Summary};
use meseta_resources::{Attributes, Resources};
use serde::{Serialize, Serializer};

use super::Reply;
use super::reply::List;
use super::routes::Permitted;
use crate::context::Context;
use crate::core::{Executor, ExecutorKind, Framework, Snapshot, Task};

/// The answer to `/version`.
pub(super) fn version(context: &Context) -> VersionView<'static> {
    context.build.version_view(VERSION)
}

/// The answer to `/flags`.
#[derive(Serialize)]
pub(super) struct Flags<'a> {
    flags: &'a BTreeMap<String, String>,
}

pub(super) fn flags(context: &Context) -> Flags<'_> {
    Flags {
        flags: &context.flags,
    }
}

/// The answer to `/state`.
#[derive(Serialize)]
struct State<'a, C, F, D> {
    #[serde(flatten)]
    build: BuildView,
    version: &'static str,
    start_time: f64,
    id: &'a str,
    pid: &'a str,
    hostname: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    master_hostname: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a pb::DomainInfo>,
    capabilities: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_config: Option<pb::DrainConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_drain_start_time_seconds: Option<f64>,
    resources: Summary<'a>,
    reserved_resources: Reserved<'a>,
    unreserved_resources: Summary<'a>,
    reserved_resources_full: ReservedFull<'a>,
    unreserved_resources_full: Full<'a>,
    reserved_resources_allocated: Reserved<'a>,
    unreserved_resources_allocated: Summary<'a>,
    resource_providers: [(); 0],
    oversubscribed_resources: Oversubscribed<'a>,
    oversubscription: OversubscriptionView<'a>,
    attributes: AttributesView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<&'a BTreeMap<String, String>>,
    frameworks: F,
    completed_frameworks: D,
}

/// Answers requests for `/state`.
pub(super) async fn page(permitted: Permitted) -> Result<Reply, Reply> {
    let snapshot = permitted.context.view(&permitted.caller).await?;
    let may_see_flags = permitted.caller.check(Action::ViewFlags, None).is_ok();
    Ok(state(&permitted.context, &snapshot, may_see_flags))
}

fn state(context: &Context, snapshot: &Snapshot, with_flags: bool) -> Reply {
    let allocated = snapshot.allocated();
    let unreserved = snapshot.resources.unreserved();
    let unreserved_allocated = allocated.unreserved();
    let attributes: Attributes = convert::attributes(&snapshot.info.attributes).unwrap_or_default();
    let capabilities = snapshot.capabilities.iter();
    let live = snapshot.frameworks.values();
    let completed = snapshot.completed_frameworks.iter();
    let agent_id = snapshot.agent_id.as_ref();
    let master = snapshot.master.as_ref();
    let draining = snapshot.draining;
    Reply::json(&State {
        build: context.build.view(),
        version: VERSION,
        start_time: context.start_time.as_secs_f64(),
        id: agent_id.map(|id| id.as_str()).unwrap_or_default(),
        pid: &context.pid,
        hostname: &snapshot.info.hostname,
        master_hostname: master.map(|master| master.hostname.as_deref()),
        domain: snapshot.info.domain.as_ref(),
        capabilities: List(capabilities.map(pb::agent_info::capability::Type::as_str_name)),
        drain_config: draining.map(|draining| draining.config),
        estimated_drain_start_time_seconds: draining.map(|draining| draining.since.as_secs_f64()),
        resources: Summary(&snapshot.resources),
        reserved_resources: Reserved(&snapshot.resources),
        unreserved_resources: Summary(&unreserved),
        reserved_resources_full: ReservedFull(&snapshot.resources),
        unreserved_resources_full: Full(&unreserved),
        reserved_resources_allocated: Reserved(&allocated),
        unreserved_resources_allocated: Summary(&unreserved_allocated),
        resource_providers: [],
        oversubscribed_resources: Oversubscribed(snapshot.oversubscription.total()),
        oversubscription: oversubscription(snapshot),
        attributes: AttributesView(&attributes),
        flags: with_flags.then_some(&context.flags),
        frameworks: List(live.map(|framework| FrameworkView { context, framework })),
        completed_frameworks: List(completed.map(|framework| FrameworkView { context, framework })),
    })
}

/// The oversubscribed and oversubscribable resources; an empty object before the first estimate.
struct Oversubscribed<'a>(Option<&'a Resources>);

impl Serialize for Oversubscribed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(total) => Summary(total).serialize(serializer),
            None => serializer.collect_map(std::iter::empty::<((), ())>()),
        }
    }
}

/// The details of the estimate, and the treatment of revocable tasks; not in Mesos.
#[derive(Serialize)]
struct OversubscriptionView<'a> {
    forecasts: Vec<ForecastView>,
    held_back: Option<&'a str>,
    stopped: Option<&'a str>,
    throttle_cpus: Option<f64>,
    throttled_because: Option<String>,
    memory_ceiling_bytes: Option<u64>,
    frozen: Vec<&'a str>,
}

#[derive(Serialize)]
struct ForecastView {
    name: &'static str,
    capacity: f64,
    promised: f64,
    used: f64,
    peak: f64,
    total: f64,
}

fn oversubscription(snapshot: &Snapshot) -> OversubscriptionView<'_> {
    let state = &snapshot.oversubscription;
    let forecasts = state.forecasts().iter().map(|forecast| ForecastView {
        name: forecast.resource,
        capacity: forecast.capacity,
        promised: forecast.promised,
        used: forecast.used,
        peak: forecast.peak,
        total: forecast.total,
    });
    let throttle = state.throttle();
    let frozen = snapshot.frozen.iter();
    OversubscriptionView {
        forecasts: forecasts.collect(),
        held_back: state.held_back(),
        stopped: state.stopped(),
        throttle_cpus: throttle.map(|throttle| throttle.cpus),
        throttled_because: throttle.map(|throttle| throttle.why.to_string()),
        memory_ceiling_bytes: state.memory_ceiling_bytes(),
        frozen: frozen.map(|container| container.as_str()).collect(),
    }
}

struct FrameworkView<'a> {
    context: &'a Context,
    framework: &'a Framework,
}

impl<'a> Serialize for FrameworkView<'a> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, L, C> {
            id: &'a str,
            name: &'a str,
            user: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            principal: Option<&'a str>,
            /// Absent for a framework with the multi-role capability, which has `roles`.
            #[serde(skip_serializing_if = "Option::is_none")]
            role: Option<&'a str>,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            roles: &'a [String],
            failover_timeout: f64,
            checkpoint: bool,
            hostname: &'a str,
            executors: L,
            completed_executors: C,
        }
        let Self { context, framework } = *self;
        let info = &*framework.info;
        let role = || info.role.as_deref().unwrap_or("*");
        let view = |executor: &'a Arc<Executor>| ExecutorView { context, executor };
        Fields {
            id: framework.id.as_str(),
            name: &info.name,
            user: &info.user,
            principal: info.principal.as_deref(),
            role: info.roles.is_empty().then(role),
            roles: &info.roles,
            failover_timeout: info.failover_timeout.unwrap_or_default(),
            checkpoint: info.checkpoint.unwrap_or_default(),
            hostname: info.hostname.as_deref().unwrap_or_default(),
            executors: List(framework.executors.values().map(view)),
            completed_executors: List(framework.completed.iter().map(view)),
        }
        .serialize(serializer)
    }
}

struct ExecutorView<'a> {
    context: &'a Context,
    executor: &'a Executor,
}

impl Serialize for ExecutorView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, T, Q, C> {
            id: &'a str,
            name: String,
            source: &'a str,
            container: &'a str,
            directory: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            role: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            labels: Option<Vec<pb::Label>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            r#type: Option<&'static str>,
            resources: Summary<'a>,
            tasks: T,
            queued_tasks: Q,
            completed_tasks: C,
        }
        let Self { context, executor } = *self;
        let waits = |task: &&Arc<Task>| executor.kind == ExecutorKind::Custom && !task.delivered;
        let directory = context.layout.sandbox(&executor.key);
        let info = executor.describe();
        let over = executor.all_tasks().filter(|task| task.is_terminal());
        let live = executor.all_tasks().filter(|task| !task.is_terminal());
        let queued = live.clone().filter(waits);
        let live = live.filter(|task| !waits(task));
        Fields {
            id: executor.key.executor.as_str(),
            name: executor.name(),
            source: executor.source(),
            container: executor.key.container.as_str(),
            directory: directory.display().to_string(),
            role: executor.role.as_ref().map(|role| role.as_str()),
            r#type: info.r#type.map(|_| info.r#type().as_str_name()),
            labels: info.labels.map(|labels| labels.labels),
            resources: Summary(&executor.allocated()),
            tasks: List(live.map(|task| TaskView(task))),
            queued_tasks: List(queued.map(|task| TaskView(task))),
            completed_tasks: List(over.map(|task| TaskView(task))),
        }
        .serialize(serializer)
    }
}

struct TaskView<'a>(&'a Task);

impl Serialize for TaskView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, L> {
            id: &'a str,
            name: &'a str,
            framework_id: &'a str,
            executor_id: String,
            slave_id: &'a str,
            state: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            role: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            user: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            labels: Option<&'a [pb::Label]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            discovery: Option<&'a pb::DiscoveryInfo>,
            #[serde(skip_serializing_if = "Option::is_none")]
            container: Option<&'a pb::ContainerInfo>,
            #[serde(skip_serializing_if = "Option::is_none")]
            health_check: Option<&'a pb::HealthCheck>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            limits: BTreeMap<&'a str, Limit>,
            resources: Summary<'a>,
            statuses: L,
        }
        let task = self.0;
        let info = &*task.info;
        let limits = info.limits.iter();
        Fields {
            id: task.key.task.as_str(),
            name: &info.name,
            framework_id: task.key.run.framework.as_str(),
            executor_id: task.executor_id().unwrap_or_default().value,
            slave_id: task.key.run.agent.as_str(),
            state: task.state.as_str_name(),
            role: task.role.as_ref().map(|role| role.as_str()),
            user: task.explicit_user(),
            labels: info.labels.as_ref().map(|labels| &*labels.labels),
            discovery: info.discovery.as_ref(),
            container: info.container.as_deref(),
            health_check: info.health_check.as_deref(),
            limits: limits
                .map(|(name, limit)| (name.as_str(), Limit::from(limit.value)))
                .collect(),
            resources: Summary(&task.resources),
            statuses: List(task.statuses.iter().map(StatusView)),
        }
        .serialize(serializer)
    }
}

struct StatusView<'a>(&'a pb::TaskStatus);

impl Serialize for StatusView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            state: &'static str,
            timestamp: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            labels: Option<&'a [pb::Label]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            container_status: Option<pb::ContainerStatus>,
            #[serde(skip_serializing_if = "Option::is_none")]
            healthy: Option<bool>,
        }
        let status = self.0;
        let state = pb::TaskState::try_from(status.state);
        let container_status = status.container_status.clone().map(|mut container| {
            container.executor_pid = None;
            container
        });
        Fields {
            state: state.map_or("TASK_UNKNOWN", |state| state.as_str_name()),
            timestamp: status.timestamp.unwrap_or_default(),
            labels: status.labels.as_ref().map(|labels| &*labels.labels),
            container_status,
            healthy: status.healthy,
        }
        .serialize(serializer)
    }
}
