//! The flat keys of Mesos's `/metrics/snapshot`, as far as they apply here.

use serde_json::{Map, Value, json};

use super::{count, number, scalar, tasks_by_state};
use crate::context::Context;
use crate::core::{Snapshot, State};
use crate::monitor::HostSample;

/// Answers requests for `/metrics/snapshot`.
pub(crate) async fn mesos_keys(context: &Context) -> Value {
    let mut keys = Map::new();
    let mut put = |key: &str, value: f64| {
        keys.insert(key.to_owned(), json!(value));
    };
    put("slave/uptime_secs", context.started.elapsed().as_secs_f64());
    let recovery = context.recovery.get().map(std::time::Duration::as_secs_f64);
    put("slave/recovery_time_secs", recovery.unwrap_or_default());
    let destroy_errors = context
        .containerizer
        .get()
        .map(|c| number(c.destroy_errors()));
    put(
        "containerizer/mesos/container_destroy_errors",
        destroy_errors.unwrap_or_default(),
    );
    // This agent has no fetcher cache, no images and no resource providers to count.
    for key in [
        "containerizer/fetcher/cache_size_total_bytes",
        "containerizer/fetcher/cache_size_used_bytes",
        "containerizer/mesos/filesystem/containers_new_rootfs",
        "containerizer/mesos/provisioner/bind/remove_rootfs_errors",
        "containerizer/mesos/provisioner/remove_container_errors",
        "resource_provider_manager/events/disconnect",
        "resource_provider_manager/events/subscribe",
        "resource_provider_manager/subscribed",
    ] {
        put(key, 0.0);
    }
    let fetches = context.containerizer.get().map(|c| c.fetches());
    let (succeeded, failed) = fetches.unwrap_or_default();
    put(
        "containerizer/fetcher/task_fetches_succeeded",
        number(succeeded),
    );
    put("containerizer/fetcher/task_fetches_failed", number(failed));
    let collected = context.gc.counts();
    put("gc/path_removals_pending", count(collected.pending));
    put("gc/path_removals_succeeded", number(collected.removed));
    put("gc/path_removals_failed", number(collected.failed));
    put(
        "slave/executor_directory_max_allowed_age_secs",
        context.gc.age_allowed().as_secs_f64(),
    );
    host_keys(&mut put, &context.samples.host());
    if let Ok(snapshot) = context.snapshot().await {
        core_keys(&mut put, &snapshot);
    }
    Value::Object(keys)
}

fn host_keys(put: &mut impl FnMut(&str, f64), host: &HostSample) {
    let mut known = |key: &str, value: Option<f64>| {
        if let Some(value) = value {
            put(key, value);
        }
    };
    known("system/cpus_total", host.cpus.map(number));
    known("system/mem_total_bytes", host.mem_total_bytes.map(number));
    known("system/mem_free_bytes", host.mem_free_bytes.map(number));
    if let Some([one, five, fifteen]) = host.load {
        known("system/load_1min", Some(one));
        known("system/load_5min", Some(five));
        known("system/load_15min", Some(fifteen));
    }
}

fn core_keys(put: &mut impl FnMut(&str, f64), snapshot: &Snapshot) {
    let counters = &snapshot.counters;
    let registered = u8::from(snapshot.state == State::Running);
    put("slave/registered", f64::from(registered));
    put("slave/frameworks_active", count(snapshot.frameworks.len()));
    for (state, tasks) in tasks_by_state(snapshot) {
        put(&format!("slave/tasks_{state}"), count(tasks));
    }
    let live = snapshot.executors().filter(|executor| executor.is_live());
    let (ending, others): (Vec<_>, Vec<_>) =
        live.partition(|executor| executor.container.kill.is_some());
    let (registering, running): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|executor| executor.is_registering());
    put("slave/executors_registering", count(registering.len()));
    put("slave/executors_running", count(running.len()));
    put("slave/executors_terminating", count(ending.len()));
    for (key, value) in [
        ("slave/tasks_finished", counters.tasks_finished),
        ("slave/tasks_failed", counters.tasks_failed),
        ("slave/tasks_killed", counters.tasks_killed),
        ("slave/tasks_lost", counters.tasks_lost),
        ("slave/tasks_gone", counters.tasks_gone),
        ("slave/executors_terminated", counters.executors_terminated),
        ("slave/executors_preempted", counters.executors_preempted),
        (
            "slave/container_launch_errors",
            counters.container_launch_errors,
        ),
        ("slave/valid_status_updates", counters.valid_status_updates),
        (
            "slave/invalid_status_updates",
            counters.invalid_status_updates,
        ),
        (
            "slave/invalid_framework_messages",
            counters.invalid_framework_messages,
        ),
        (
            "slave/valid_framework_messages",
            counters.valid_framework_messages,
        ),
    ] {
        put(key, number(value));
    }
    put("slave/recovery_errors", count(counters.recovery_errors));
    let allocated = snapshot.allocated();
    for name in ["cpus", "gpus", "mem", "disk"] {
        let (total, used) = (&snapshot.resources.unrevocable(), &allocated.unrevocable());
        usage_keys(
            put,
            &format!("slave/{name}"),
            scalar(total, name),
            scalar(used, name),
        );
        let oversubscribed = snapshot.oversubscription.total().cloned();
        let (total, used) = (&oversubscribed.unwrap_or_default(), &allocated.revocable());
        let prefix = format!("slave/{name}_revocable");
        usage_keys(put, &prefix, scalar(total, name), scalar(used, name));
    }
}

fn usage_keys(put: &mut impl FnMut(&str, f64), prefix: &str, total: f64, used: f64) {
    put(&format!("{prefix}_total"), total);
    put(&format!("{prefix}_used"), used);
    let percent = if total > 0.0 { used / total } else { 0.0 };
    put(&format!("{prefix}_percent"), percent);
}
