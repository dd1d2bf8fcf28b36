//! A sample as plug-ins see it. Pure.

use std::collections::BTreeMap;

use meseta_estimators::UsageSample;
use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources};

use crate::clock::unix_now;
use crate::core::{Executor, Snapshot};
use crate::monitor::Sample;
use crate::monitor::statistics::resource_statistics;

/// What Mesos's modules are given, with the machine beside it.
pub(super) fn message(
    sample: &UsageSample,
    snapshot: &Snapshot,
    readings: &BTreeMap<ContainerId, Sample>,
    enable_cfs: bool,
) -> wire::Usage {
    let live = snapshot.executors().filter(|executor| executor.is_live());
    let executors = live.map(|executor| {
        let reading = readings.get(&executor.key.container);
        described(executor, reading, enable_cfs)
    });
    wire::Usage {
        timestamp: unix_now().as_secs_f64(),
        resources: pb::ResourceUsage {
            executors: executors.collect(),
            total: resources(&snapshot.resources),
        },
        host: Some(host(&sample.host)),
    }
}

fn described(
    executor: &Executor,
    reading: Option<&Sample>,
    enable_cfs: bool,
) -> pb::resource_usage::Executor {
    let tasks = executor.tasks.values().filter(|task| !task.is_terminal());
    let tasks = tasks.map(|task| pb::resource_usage::executor::Task {
        name: task.info.name.clone(),
        id: task.info.task_id.clone(),
        resources: task.info.resources.clone(),
        labels: task.info.labels.clone(),
    });
    pb::resource_usage::Executor {
        executor_info: executor.describe(),
        allocated: resources(&executor.allocated()),
        statistics: reading.map(|reading| resource_statistics(reading, enable_cfs)),
        container_id: pb::ContainerId {
            value: executor.key.container.to_string(),
            parent: None,
        },
        tasks: tasks.collect(),
    }
}

fn resources(resources: &Resources) -> Vec<pb::Resource> {
    convert::to_resources(resources, Format::PostRefinement).unwrap_or_default()
}

fn host(host: &meseta_estimators::HostUsage) -> wire::HostUsage {
    let load = host.load;
    let cpu = host.regular_cpu_pressure.or(host.cpu_pressure);
    let memory = host.regular_memory_pressure.or(host.memory_pressure);
    wire::HostUsage {
        cpus: host.cpus,
        cpu_time_secs: host.cpu_time.map(|time| time.as_secs_f64()),
        load_1min: load.map(|load| load.one),
        load_5min: load.map(|load| load.five),
        load_15min: load.map(|load| load.fifteen),
        mem_total_bytes: host.memory.map(|memory| memory.total_bytes),
        mem_available_bytes: host.memory.map(|memory| memory.available_bytes),
        cpu_pressure_some_avg10: cpu.map(|pressure| pressure.some_avg10),
        memory_pressure_some_avg10: memory.map(|pressure| pressure.some_avg10),
        memory_pressure_full_avg10: memory.map(|pressure| pressure.full_avg10),
    }
}
