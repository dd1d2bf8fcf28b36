//! `/metrics/snapshot`: the Mesos names that are meaningful here.

use std::time::Duration;

use std::collections::BTreeMap;

use meseta_proto::mesos::v1::offer::operation;
use meseta_proto::mesos::v1::{OperationState, TaskState};
use meseta_resources::{ResourceName, ResourceQuantities};

use super::resource_sums::Sums;
use super::{Measured, Metrics, live_tasks, to_f64};
use crate::core::{Counters, Snapshot, operation_name, operation_state_name, state_name};
use crate::measures::{Measures, Window};
use crate::views;

/// Passes all keys except those of frameworks and principals. Only roles visible to the reader are named.
pub(super) fn visit(metrics: &Metrics, measured: &Measured, visit: &mut dyn FnMut(&str, f64)) {
    let Measured {
        all: snapshot,
        measures,
        ..
    } = measured;
    let mut out = MetricWriter(visit);
    out.put("master/elected", f64::from(u8::from(metrics.is_elected())));
    master(&mut out, snapshot, measures);
    queues(&mut out, measures);
    resources(&mut out, snapshot);
    tasks(&mut out, snapshot);
    operations(&mut out, snapshot);
    messages(&mut out, &snapshot.counters);
    allocator(&mut out, measured);
    quotas(&mut out, measured);
    registrar(&mut out, metrics, snapshot, measures);
    system(&mut out);
}

pub(super) struct MetricWriter<'a>(pub(super) &'a mut dyn FnMut(&str, f64));

impl MetricWriter<'_> {
    pub(super) fn put(&mut self, name: &str, value: f64) {
        (self.0)(name, value);
    }

    pub(super) fn count(&mut self, name: &str, value: usize) {
        self.counter(name, u64::try_from(value).unwrap_or(u64::MAX));
    }

    pub(super) fn counter(&mut self, name: &str, value: u64) {
        self.put(name, to_f64(value));
    }

    fn times(&mut self, name: &str, window: &Window) {
        let Some(summary) = window.summary() else {
            return;
        };
        self.put(name, summary.last);
        self.count(&format!("{name}/count"), summary.count);
        self.put(&format!("{name}/min"), summary.min);
        self.put(&format!("{name}/max"), summary.max);
        for (part, value) in summary.percentiles {
            self.put(&format!("{name}/{part}"), value);
        }
    }
}

fn master(out: &mut MetricWriter<'_>, snapshot: &Snapshot, measures: &Measures) {
    let counters = &snapshot.counters;
    let uptime = measures.now.saturating_sub(snapshot.started);
    out.put("master/uptime_secs", uptime.as_secs_f64());
    let agents = snapshot.agents.len();
    let connected = snapshot.agents.iter().filter(|agent| agent.connected);
    let connected = connected.count();
    let active = snapshot.agents.iter().filter(|agent| agent.is_active());
    let active = active.count();
    let frameworks = snapshot.frameworks.iter();
    let subscribed = frameworks.filter(|framework| framework.connected).count();
    let away = snapshot.frameworks.len() - subscribed;
    for (key, value) in [
        ("slaves_connected", connected),
        ("slaves_disconnected", agents - connected),
        ("slaves_active", active),
        ("slaves_inactive", agents - active),
        ("slaves_unreachable", snapshot.unreachable_agents.len()),
        // Agents in the registry that are not back since this master leads. Mesos has no such key.
        ("slaves_recovered", snapshot.recovered_agents.len()),
        ("frameworks_connected", subscribed),
        ("frameworks_disconnected", away),
        ("frameworks_active", subscribed),
        ("frameworks_inactive", away),
        ("outstanding_offers", snapshot.offers.len()),
    ] {
        out.count(&format!("master/{key}"), value);
    }
    let unhealthy = counters.agent_removals_unhealthy;
    let unregistered = counters.agent_removals_unregistered;
    let registered = counters.agent_removals_registered;
    let (scheduled, completed) = (
        counters.agent_unreachable_scheduled,
        counters.agent_unreachable_completed,
    );
    for (key, value) in [
        ("slave_registrations", counters.agent_registrations),
        ("slave_reregistrations", counters.agent_reregistrations),
        ("slave_removals", unhealthy + unregistered + registered),
        ("slave_removals/reason_unhealthy", unhealthy),
        ("slave_removals/reason_unregistered", unregistered),
        ("slave_removals/reason_registered", registered),
        ("slave_unreachable_scheduled", scheduled),
        ("slave_unreachable_completed", completed),
        ("slave_unreachable_canceled", 0),
        ("recovery_slave_removals", counters.recovery_agent_removals),
        // The Mesos name from before unreachable agents.
        ("slave_shutdowns_scheduled", scheduled),
        ("slave_shutdowns_completed", completed),
        ("slave_shutdowns_canceled", 0),
    ] {
        out.counter(&format!("master/{key}"), value);
    }
}

/// Passes the queue lengths. There is a single queue, of commands; requests and messages wait as commands.
fn queues(out: &mut MetricWriter<'_>, measures: &Measures) {
    out.count("master/event_queue_dispatches", measures.commands_waiting);
    out.count("master/event_queue_messages", 0);
    out.count("master/event_queue_http_requests", 0);
    out.count(
        "master/operator_event_stream_subscribers",
        measures.watchers,
    );
    out.counter("master/http_cache_hits", measures.shared_snapshots);
}

fn resources(out: &mut MetricWriter<'_>, snapshot: &Snapshot) {
    let sums = Sums::from_snapshot(snapshot);
    for name in ["cpus", "gpus", "mem", "disk"] {
        for (infix, revocable) in [("", false), ("_revocable", true)] {
            let total = sums.total.get(name, revocable);
            let used = sums.used.get(name, revocable);
            let percent = if total > 0.0 { used / total } else { 0.0 };
            out.put(&format!("master/{name}{infix}_total"), total);
            out.put(&format!("master/{name}{infix}_used"), used);
            // Mesos has only the sum of all kinds below, without gpus.
            let offered = sums.offered.get(name, revocable);
            out.put(&format!("master/{name}{infix}_offered"), offered);
            out.put(&format!("master/{name}{infix}_percent"), percent);
        }
        if name != "gpus" {
            let allocated_and_offered = sums.used.all(name) + sums.offered.all(name);
            out.put(
                &format!("allocator/mesos/resources/{name}/total"),
                sums.total.all(name).to_f64(),
            );
            out.put(
                &format!("allocator/mesos/resources/{name}/offered_or_allocated"),
                allocated_and_offered.to_f64(),
            );
        }
    }
}

fn tasks(out: &mut MetricWriter<'_>, snapshot: &Snapshot) {
    for (state, count) in live_tasks(snapshot) {
        let state = state.trim_start_matches("task_");
        out.counter(&format!("master/tasks_{state}"), count);
    }
    for state in [
        TaskState::TaskFinished,
        TaskState::TaskFailed,
        TaskState::TaskKilled,
        TaskState::TaskLost,
        TaskState::TaskError,
        TaskState::TaskDropped,
        TaskState::TaskGone,
        TaskState::TaskGoneByOperator,
    ] {
        let Some(name) = state_name(state) else {
            continue;
        };
        let count = snapshot
            .counters
            .terminal
            .get(name)
            .copied()
            .unwrap_or_default();
        out.counter(
            &format!("master/tasks_{}", name.trim_start_matches("task_")),
            count,
        );
    }
    for ((state, source, reason), count) in &snapshot.counters.terminal_causes {
        let (Some(state), Some(source), Some(reason)) = (state_name(*state), source, reason) else {
            continue;
        };
        // Mesos still writes slave where the interface has agent.
        let source = source
            .as_str_name()
            .to_lowercase()
            .replace("agent", "slave");
        let reason = reason
            .as_str_name()
            .to_lowercase()
            .replace("agent", "slave");
        out.counter(&format!("master/{state}/{source}/{reason}"), *count);
    }
}

fn messages(out: &mut MetricWriter<'_>, counters: &Counters) {
    let call = |name: &str| counters.calls.get(name).copied().unwrap_or_default();
    let frame = |name: &str| counters.agent_frames.get(name).copied().unwrap_or_default();
    for (key, value) in [
        ("authenticate", 0),
        ("deactivate_framework", 0),
        ("decline_offers", call("decline")),
        ("executor_to_framework", frame("executor_message")),
        ("exited_executor", frame("executor_exited")),
        ("framework_to_executor", call("message")),
        ("kill_task", call("kill")),
        ("launch_tasks", call("accept")),
        ("operation_status_update", frame("operation_update")),
        (
            "operation_status_update_acknowledgement",
            call("acknowledge_operation_status"),
        ),
        ("reconcile_operations", call("reconcile_operations")),
        ("reconcile_tasks", call("reconcile")),
        ("register_framework", call("subscribe")),
        ("register_slave", frame("register")),
        ("reregister_framework", 0),
        ("reregister_slave", frame("reregister")),
        ("resource_request", call("request")),
        ("revive_offers", call("revive")),
        ("status_update", frame("status_update")),
        ("status_update_acknowledgement", call("acknowledge")),
        ("suppress_offers", call("suppress")),
        ("unregister_framework", call("teardown")),
        ("unregister_slave", frame("unregister")),
        ("update_slave", frame("agent_update")),
    ] {
        out.counter(&format!("master/messages_{key}"), value);
    }
    for (key, valid, invalid) in [
        (
            "status_updates",
            counters.valid_status_updates,
            counters.invalid_status_updates,
        ),
        (
            "status_update_acknowledgements",
            counters.valid_acknowledgements,
            counters.invalid_acknowledgements,
        ),
        (
            "framework_to_executor_messages",
            counters.valid_framework_messages,
            counters.invalid_framework_messages,
        ),
        (
            "executor_to_framework_messages",
            counters.valid_executor_messages,
            counters.invalid_executor_messages,
        ),
        (
            "operation_status_updates",
            counters.valid_operation_updates,
            counters.invalid_operation_updates,
        ),
        (
            "operation_status_update_acknowledgements",
            counters.valid_operation_acknowledgements,
            counters.invalid_operation_acknowledgements,
        ),
    ] {
        out.counter(&format!("master/valid_{key}"), valid);
        out.counter(&format!("master/invalid_{key}"), invalid);
    }
    out.counter("master/dropped_messages", counters.dropped_messages);
}

/// Passes the operations that master and agents carry out, by kind and state.
fn operations(out: &mut MetricWriter<'_>, snapshot: &Snapshot) {
    const KINDS: [operation::Type; 8] = [
        operation::Type::Reserve,
        operation::Type::Unreserve,
        operation::Type::Create,
        operation::Type::Destroy,
        operation::Type::GrowVolume,
        operation::Type::ShrinkVolume,
        operation::Type::CreateDisk,
        operation::Type::DestroyDisk,
    ];
    const STATES: [&str; 8] = [
        "pending",
        "recovering",
        "unreachable",
        "finished",
        "failed",
        "error",
        "dropped",
        "gone_by_operator",
    ];
    let mut counts = snapshot.counters.operations_over.clone();
    let under_way = snapshot.agents.iter().flat_map(|a| a.operations.values());
    for operation in under_way {
        let state = OperationState::try_from(operation.latest.state);
        let kind = operation_name(operation.info.r#type());
        let state = state.ok().and_then(operation_state_name);
        // The other states are final, and have counters.
        let is_gauge = |state: &&str| matches!(*state, "pending" | "recovering" | "unreachable");
        if let (Some(kind), Some(state)) = (kind, state.filter(is_gauge)) {
            *counts.entry((kind, state)).or_default() += 1;
        }
    }
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for kind in KINDS.into_iter().filter_map(operation_name) {
        let mut total = 0;
        for state in STATES {
            let count = counts.get(&(kind, state)).copied().unwrap_or_default();
            out.counter(&format!("master/operations/{kind}/{state}"), count);
            *all.entry(state).or_default() += count;
            total += count;
        }
        out.counter(&format!("master/operations/{kind}/total"), total);
    }
    for (state, count) in &all {
        out.counter(&format!("master/operations/{state}"), *count);
    }
    out.counter("master/operations/total", all.values().sum());
}

fn allocator(out: &mut MetricWriter<'_>, measured: &Measured) {
    let Measured {
        all,
        seen,
        measures,
    } = measured;
    let runs = all.counters.allocation_runs;
    out.counter("allocator/mesos/allocation_runs", runs);
    // The allocator has no queue of its own: the step that makes a run due ends with it.
    for key in [
        "allocator/event_queue_dispatches",
        "allocator/mesos/event_queue_dispatches",
    ] {
        out.count(key, 0);
    }
    out.times("allocator/mesos/allocation_run_ms", &measures.allocations);
    out.times(
        "allocator/mesos/allocation_run_latency_ms",
        &measures.allocations.of_nothing(),
    );
    let gauges = measures.roles.iter();
    for gauges in gauges.filter(|gauges| seen.viewer_may_view_role(&gauges.role)) {
        let role = &gauges.role;
        out.put(
            &format!("allocator/mesos/roles/{role}/shares/dominant"),
            gauges.share,
        );
        out.count(
            &format!("allocator/mesos/offer_filters/roles/{role}/active"),
            gauges.filters,
        );
    }
}

fn quotas(out: &mut MetricWriter<'_>, measured: &Measured) {
    let snapshot = &measured.all;
    // The sum of all roles, as that of their unnamed parent.
    let mut root = ResourceQuantities::new();
    for (role, tally) in views::tallies(snapshot) {
        if role.parent().is_none() {
            root += &tally.consumed;
        }
        if !measured.seen.viewer_may_view_role(&role) {
            continue;
        }
        let mut put = |what: &str, name: &ResourceName, value: f64| {
            out.put(
                &format!("allocator/mesos/quota/roles/{role}/resources/{name}/{what}"),
                value,
            );
        };
        for (name, value) in tally.consumed.iter() {
            put("consumed", name, value.to_f64());
        }
        let Some(quota) = snapshot.quotas.get(&role) else {
            continue;
        };
        for (name, value) in quota.guarantees.iter() {
            put("guarantee", name, value.to_f64());
        }
        for (name, value) in quota.limits.iter() {
            put("limit", name, value.to_f64());
        }
        let allocated_and_offered = &tally.allocated + &tally.offered;
        for (name, value) in allocated_and_offered.iter() {
            put("offered_or_allocated", name, value.to_f64());
        }
    }
    for (name, value) in root.iter() {
        out.put(
            &format!("allocator/mesos/quota/roles//resources/{name}/consumed"),
            value.to_f64(),
        );
    }
}

fn registrar(
    out: &mut MetricWriter<'_>,
    metrics: &Metrics,
    snapshot: &Snapshot,
    measures: &Measures,
) {
    out.count("registrar/queued_operations", snapshot.pending_mutations);
    let file = metrics.registry.as_ref();
    let size = file.and_then(|path| std::fs::metadata(path).ok());
    out.counter(
        "registrar/registry_size_bytes",
        size.map_or(0, |metadata| metadata.len()),
    );
    let read = metrics
        .registry_read
        .get()
        .map_or(0.0, Duration::as_secs_f64)
        * 1e3;
    out.put("registrar/state_fetch_ms", read);
    out.times("registrar/state_store_ms", &measures.stores);
    // The registry was read before the master served anything, and only this master writes it.
    out.count("registrar/log/recovered", 1);
    out.count("registrar/log/ensemble_size", 1);
}

fn system(out: &mut MetricWriter<'_>) {
    if let Ok(cpus) = std::thread::available_parallelism() {
        out.count("system/cpus_total", cpus.get());
    }
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit);
    let bytes = |units: u64| units.saturating_mul(unit);
    out.counter("system/mem_total_bytes", bytes(info.totalram));
    out.counter("system/mem_free_bytes", bytes(info.freeram));
    for (minutes, load) in [1, 5, 15].into_iter().zip(info.loads) {
        /// The divisor of the kernel's load figures.
        const PARTS: f64 = 65_536.0;
        let load = to_f64(load) / PARTS;
        out.put(&format!("system/load_{minutes}min"), load);
    }
}
