//! `/metrics/snapshot`: the names of Mesos, as far as they mean something here.

use std::collections::BTreeMap;

use meseta_proto::mesos::v1::TaskState;

use super::{Sums, amount, live_tasks, to_f64};
use crate::core::{Counters, Snapshot, state_name};

pub(super) fn snapshot(snapshot: &Snapshot) -> BTreeMap<String, f64> {
    let mut out = Out(BTreeMap::new());
    master(&mut out, snapshot);
    resources(&mut out, snapshot);
    tasks(&mut out, snapshot);
    messages(&mut out, &snapshot.counters);
    out.0
}

struct Out(BTreeMap<String, f64>);

impl Out {
    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    fn count(&mut self, name: &str, value: usize) {
        self.put(name, to_f64(u64::try_from(value).unwrap_or(u64::MAX)));
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.put(name, to_f64(value));
    }
}

fn master(out: &mut Out, snapshot: &Snapshot) {
    let counters = &snapshot.counters;
    let uptime = snapshot.taken.saturating_sub(snapshot.started);
    out.put("master/elected", 1.0);
    out.put("master/uptime_secs", uptime.as_secs_f64());
    let connected = snapshot
        .agents
        .iter()
        .filter(|agent| agent.connected)
        .count();
    let disconnected = snapshot.agents.len() - connected;
    out.count("master/slaves_connected", connected);
    out.count("master/slaves_disconnected", disconnected);
    let active = snapshot.agents.iter().filter(|agent| agent.is_active());
    let active = active.count();
    out.count("master/slaves_active", active);
    out.count("master/slaves_inactive", snapshot.agents.len() - active);
    out.count(
        "master/slaves_unreachable",
        snapshot.unreachable_agents.len(),
    );
    let subscribed = snapshot
        .frameworks
        .iter()
        .filter(|framework| framework.connected)
        .count();
    let away = snapshot.frameworks.len() - subscribed;
    out.count("master/frameworks_connected", subscribed);
    out.count("master/frameworks_disconnected", away);
    out.count("master/frameworks_active", subscribed);
    out.count("master/frameworks_inactive", away);
    out.count("master/outstanding_offers", snapshot.offers.len());
    out.counter("master/slave_registrations", counters.agent_registrations);
    out.counter(
        "master/slave_reregistrations",
        counters.agent_reregistrations,
    );
    let removals = counters.agent_removals_unhealthy
        + counters.agent_removals_unregistered
        + counters.agent_removals_registered;
    out.counter("master/slave_removals", removals);
    out.counter(
        "master/slave_removals/reason_unhealthy",
        counters.agent_removals_unhealthy,
    );
    out.counter(
        "master/slave_removals/reason_unregistered",
        counters.agent_removals_unregistered,
    );
    out.counter(
        "master/slave_removals/reason_registered",
        counters.agent_removals_registered,
    );
    out.counter(
        "master/slave_unreachable_scheduled",
        counters.agent_unreachable_scheduled,
    );
    out.counter(
        "master/slave_unreachable_completed",
        counters.agent_unreachable_completed,
    );
    out.counter("master/slave_unreachable_canceled", 0);
    out.counter(
        "master/recovery_slave_removals",
        counters.recovery_agent_removals,
    );
    out.counter("allocator/mesos/allocation_runs", counters.allocation_runs);
    out.counter(
        "registrar/queued_operations",
        u64::try_from(snapshot.pending_mutations).unwrap_or(u64::MAX),
    );
    for queue in ["messages", "dispatches", "http_requests"] {
        out.put(format!("master/event_queue_{queue}"), 0.0);
    }
}

fn resources(out: &mut Out, snapshot: &Snapshot) {
    let sums = Sums::of(snapshot);
    for name in ["cpus", "gpus", "mem", "disk"] {
        for (infix, total, used) in [
            ("", sums.total.unrevocable(), sums.used.unrevocable()),
            ("_revocable", sums.total.revocable(), sums.used.revocable()),
        ] {
            let (total, used) = (amount(&total, name), amount(&used, name));
            let percent = if total > 0.0 { used / total } else { 0.0 };
            out.put(format!("master/{name}{infix}_total"), total);
            out.put(format!("master/{name}{infix}_used"), used);
            out.put(format!("master/{name}{infix}_percent"), percent);
        }
        if name != "gpus" {
            let held = amount(&sums.used, name) + amount(&sums.offered, name);
            out.put(
                format!("allocator/mesos/resources/{name}/total"),
                amount(&sums.total, name),
            );
            out.put(
                format!("allocator/mesos/resources/{name}/offered_or_allocated"),
                held,
            );
        }
    }
}

fn tasks(out: &mut Out, snapshot: &Snapshot) {
    for (state, count) in live_tasks(snapshot) {
        let state = state.trim_start_matches("task_");
        out.count(&format!("master/tasks_{state}"), count);
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
        // Mesos still says slave where the interface says agent.
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

fn messages(out: &mut Out, counters: &Counters) {
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
        ("operation_status_updates", 0, 0),
        ("operation_status_update_acknowledgements", 0, 0),
    ] {
        out.counter(&format!("master/valid_{key}"), valid);
        out.counter(&format!("master/invalid_{key}"), invalid);
    }
    out.counter("master/dropped_messages", counters.dropped_messages);
    out.counter("master/http_cache_hits", 0);
}
