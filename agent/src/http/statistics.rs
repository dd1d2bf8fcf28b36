//! `/monitor/statistics` and `/containers`: the usage and the status of containers.

use meseta_proto::mesos::v1 as pb;
use serde::Serialize;

use crate::context::Context;
use crate::core::{Executor, Snapshot};
use crate::monitor::Sample;
use crate::monitor::statistics::resource_statistics;
use meseta_daemon::query::Query;

/// The status of an executor's container.
pub(super) fn container_status(executor: &Executor) -> pb::ContainerStatus {
    pb::ContainerStatus {
        container_id: Some(pb::ContainerId {
            value: executor.key.container.to_string(),
            parent: None,
        }),
        executor_pid: executor
            .container
            .pid
            .and_then(|pid| u32::try_from(pid).ok()),
        ..pb::ContainerStatus::default()
    }
}

/// Live executors with their last samples, by framework and executor.
pub(super) fn sampled<'a>(
    context: &Context,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = (&'a Executor, Option<Sample>)> + Clone + use<'a> {
    let samples = context.samples.last();
    let live = snapshot.executors().filter(|executor| executor.is_live());
    live.map(move |executor| (&**executor, samples.get(&executor.key.container).cloned()))
}

/// An entry of `/monitor/statistics`, or with a status of `/containers`.
#[derive(Serialize)]
pub(super) struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<&'a str>,
    executor_id: &'a str,
    executor_name: String,
    framework_id: &'a str,
    source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<pb::ContainerStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statistics: Option<pb::ResourceStatistics>,
}

impl<'a> Entry<'a> {
    fn new(context: &Context, executor: &'a Executor, sample: Option<&Sample>) -> Self {
        Self {
            container_id: None,
            executor_id: executor.key.executor.as_str(),
            executor_name: executor.name(),
            framework_id: executor.key.framework.as_str(),
            source: executor.source(),
            status: None,
            statistics: sample.map(|sample| resource_statistics(sample, context.enable_cfs)),
        }
    }
}

/// Answers requests for `/monitor/statistics`.
pub(super) fn statistics<'a>(
    context: &'a Context,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = Entry<'a>> + Clone {
    let entries = sampled(context, snapshot);
    entries.filter_map(|(executor, sample)| Some(Entry::new(context, executor, Some(&sample?))))
}

/// `/containers`, filtered by `container_id`, or `framework_id` and `executor_id`.
pub(super) fn containers<'a>(
    context: &'a Context,
    snapshot: &'a Snapshot,
    query: &'a Query,
) -> impl Iterator<Item = Entry<'a>> + Clone {
    let is_asked_for = |executor: &Executor| {
        let is = |name: &str, id: &str| query.get(name).is_none_or(|given| given == id);
        is("container_id", executor.key.container.as_str())
            && is("framework_id", executor.key.framework.as_str())
            && is("executor_id", executor.key.executor.as_str())
    };
    let entries = sampled(context, snapshot);
    let entries = entries.filter(move |(executor, _)| is_asked_for(executor));
    entries.map(|(executor, sample)| Entry {
        container_id: Some(executor.key.container.as_str()),
        status: Some(container_status(executor)),
        ..Entry::new(context, executor, sample.as_ref())
    })
}
