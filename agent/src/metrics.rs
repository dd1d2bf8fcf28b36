//! Every metric of the agent, defined once.
//!
//! [`FAMILIES`] is the list, with the help ([`families`]). [`text()`] fills it from the core's snapshot and the
//! monitor's last samples; the series of each container are in [`containers`]. A scrape reads no container values from
//! the kernel, and a container's series end with the container. The keys of Mesos's `/metrics/snapshot` are in
//! [`mesos`].

pub(crate) mod containers;
mod families;
mod mesos;
mod revocable;
mod text;

use std::collections::BTreeMap;

use meseta_access::{Action, Approver};
use meseta_daemon::authentication::Caller;
use meseta_daemon::descriptors;
use meseta_daemon::verbosity::log_lines_left_out;
use meseta_resources::{Resources, Role};

use crate::checkpoint::DiskCondition;
use crate::context::Context;
use crate::core::{Snapshot, State};
use crate::monitor::HostSample;
use crate::permission;

use families::FAMILIES;
pub(crate) use mesos::mesos_keys;

/// Metric families of all modules, with their help.
fn families() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = FAMILIES.lines().chain(revocable::FAMILIES.lines());
    lines.filter_map(|line| line.split_once(' '))
}

/// The metrics in the Prometheus text format, with those of each container that the caller may see.
pub(crate) async fn text(context: &Context, caller: &Caller) -> String {
    let mut builder = MetricsBuilder::default();
    agent_metrics(&mut builder, context);
    let snapshot = context.snapshot().await.ok();
    if let Some(snapshot) = &snapshot {
        core_metrics(&mut builder, snapshot, &caller.approver);
        revocable::write(&mut builder, context, snapshot);
    }
    let mut text = builder.into_text();
    if let Some(snapshot) = snapshot {
        let seen = permission::containers_of(snapshot, &caller.approver);
        containers::write(&mut text, context, &seen, &caller.approver);
    }
    text
}

/// A series under construction.
#[derive(Debug)]
struct Series {
    /// The values of the series' labels, by which the series of a family are sorted.
    values: Vec<String>,
    /// The labels of the series as text.
    labels: String,
    value: f64,
}

/// Series under construction, by family.
#[derive(Debug, Default)]
struct MetricsBuilder {
    series: BTreeMap<&'static str, Vec<Series>>,
}

impl MetricsBuilder {
    /// Adds the only series of its family.
    fn one(&mut self, name: &'static str, value: impl Into<Option<f64>>) {
        self.add(name, &[], value);
    }

    fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: impl Into<Option<f64>>) {
        let Some(value) = value.into() else {
            return;
        };
        self.series.entry(name).or_default().push(Series {
            values: labels
                .iter()
                .map(|(_, value)| (*value).to_owned())
                .collect(),
            labels: text::labels(labels),
            value,
        });
    }

    fn into_text(self) -> String {
        let mut out = String::new();
        for (family, mut all) in self.series {
            text::write_head(&mut out, family);
            all.sort_by(|a, b| a.values.cmp(&b.values));
            for Series { labels, value, .. } in &all {
                out.push_str(family);
                if !labels.is_empty() {
                    out.extend(["{", labels, "}"]);
                }
                out.push(' ');
                text::write_value(&mut out, *value);
                out.push('\n');
            }
        }
        out
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts and bytes beyond 2^53 lose their last digit"
)]
fn number(count: u64) -> f64 {
    count as f64
}

fn count(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

fn agent_metrics(builder: &mut MetricsBuilder, context: &Context) {
    let build = context.build;
    let revision = ("revision", build.commit.unwrap_or_default());
    let labels = [("version", build.version), revision];
    builder.add("meseta_agent_build_info", &labels, 1.0);
    let silent = context.disk_report.silence().as_secs_f64();
    builder.one("meseta_agent_disk_silent_seconds", silent);
    let left_out = number(log_lines_left_out());
    builder.one("meseta_agent_log_lines_left_out_total", left_out);
    let uptime = context.started.elapsed().as_secs_f64();
    builder.one("meseta_agent_uptime_seconds", uptime);
    let recovery = context.recovery.get().map(std::time::Duration::as_secs_f64);
    builder.one("meseta_agent_recovery_duration_seconds", recovery);
    let start = context.start_time.as_secs_f64();
    builder.one("process_start_time_seconds", start);
    let destroy_errors = context
        .containerizer
        .get()
        .map(|c| number(c.destroy_errors()));
    builder.one(
        "meseta_agent_container_destroy_errors_total",
        destroy_errors,
    );
    let containerizer = context.containerizer.get();
    let restored = containerizer.map(|c| number(c.limits_restored()));
    builder.one("meseta_agent_limits_restored_total", restored);
    let lost = containerizer.map(|c| number(c.limits_lost()));
    builder.one("meseta_agent_limits_lost_total", lost);
    let interference = containerizer.map(|c| c.interference());
    let stopped = interference.map(|found| number(found.supervisors_stopped()));
    builder.one("meseta_agent_supervisors_stopped_total", stopped);
    let moved = interference.map(|found| number(found.processes_moved()));
    builder.one("meseta_agent_processes_moved_total", moved);
    let repeated = number(meseta_isolators::repeated());
    builder.one("meseta_agent_looks_repeated_total", repeated);
    let dropped = "meseta_agent_framework_messages_dropped_total";
    let (streams, to_master) = (&context.streams, &context.dropped);
    for (to, count) in [("executor", streams.dropped()), ("master", to_master.get())] {
        builder.add(dropped, &[("to", to)], number(count));
    }
    let ended = number(streams.ended());
    builder.one("meseta_agent_executor_streams_ended_total", ended);
    let end = context.authentication.certificate_end();
    let end = end.map(|end| end.as_secs_f64());
    builder.one("meseta_agent_certificate_end_seconds", end);
    builder.one("process_max_fds", descriptors::limit().map(number));
    host_metrics(builder, &context.samples.host());
}

fn host_metrics(builder: &mut MetricsBuilder, host: &HostSample) {
    builder.one("meseta_agent_host_cpus", host.cpus.map(number));
    if let Some(load) = host.load {
        for (minutes, load) in ["1", "5", "15"].into_iter().zip(load) {
            builder.add("meseta_agent_host_load", &[("minutes", minutes)], load);
        }
    }
    let busy = "meseta_agent_host_cpu_busy_seconds_total";
    builder.one(busy, host.cpu_busy_secs);
    for (resource, pressure) in [
        ("cpu", host.cpu_pressure),
        ("memory", host.memory_pressure),
        ("io", host.io_pressure),
    ] {
        for (share, stall) in [("some", pressure.some), ("full", pressure.full)] {
            builder.add(
                "meseta_agent_host_pressure_seconds_total",
                &[("resource", resource), ("share", share)],
                stall.map(|stall| stall.total_secs),
            );
            builder.add(
                "meseta_agent_host_pressure_ratio",
                &[("resource", resource), ("share", share)],
                stall.map(|stall| stall.avg10 / 100.0),
            );
        }
    }
    let sweep = host.sweep.map(|sweep| sweep.as_secs_f64());
    builder.one("meseta_agent_monitor_sweep_seconds", sweep);
    for (kind, bytes) in [
        ("total", host.mem_total_bytes),
        ("free", host.mem_free_bytes),
        ("available", host.mem_available_bytes),
    ] {
        let bytes = bytes.map(number);
        builder.add("meseta_agent_host_memory_bytes", &[("kind", kind)], bytes);
    }
    builder.one("process_cpu_seconds_total", host.own_cpu_secs);
    builder.one(
        "process_resident_memory_bytes",
        host.own_rss_bytes.map(number),
    );
    builder.one("process_open_fds", host.own_fds.map(number));
}

fn core_metrics(builder: &mut MetricsBuilder, snapshot: &Snapshot, approver: &Approver) {
    let registered = f64::from(u8::from(snapshot.state == State::Running));
    builder.one("meseta_agent_registered", registered);
    let writable = f64::from(u8::from(snapshot.disk == DiskCondition::Writable));
    builder.one("meseta_agent_disk_writable", writable);
    let epoch = snapshot.master_epoch.map(number);
    builder.one("meseta_agent_master_epoch", epoch);
    let frameworks = count(snapshot.frameworks.len());
    builder.one("meseta_agent_frameworks", frameworks);
    for (state, tasks) in tasks_by_state(snapshot) {
        builder.add("meseta_agent_tasks", &[("state", state)], count(tasks));
        let state = format!("task_{state}");
        let labels = [("state", state.as_str())];
        builder.add("meseta_agent_live_tasks", &labels, count(tasks));
    }
    let counters = &snapshot.counters;
    for (state, tasks) in [
        ("finished", counters.tasks_finished),
        ("failed", counters.tasks_failed),
        ("killed", counters.tasks_killed),
        ("lost", counters.tasks_lost),
        ("gone", counters.tasks_gone),
    ] {
        let tasks = number(tasks);
        builder.add("meseta_agent_tasks_ended_total", &[("state", state)], tasks);
        let state = format!("task_{state}");
        let labels = [("state", state.as_str())];
        builder.add("meseta_agent_task_ends_total", &labels, tasks);
    }
    for (valid, updates) in [
        ("true", counters.valid_status_updates),
        ("false", counters.invalid_status_updates),
    ] {
        let updates = number(updates);
        builder.add(
            "meseta_agent_status_updates_total",
            &[("valid", valid)],
            updates,
        );
    }
    let roles = snapshot.executors().map(|executor| &executor.role);
    out_of_memory(builder, &counters.tasks_out_of_memory, roles, approver);
    let errors = number(counters.container_launch_errors);
    builder.one("meseta_agent_container_launch_errors_total", errors);
    let errors = count(counters.recovery_errors);
    builder.one("meseta_agent_recovery_errors_total", errors);
    resources(builder, &snapshot.resources, &snapshot.allocated());
}

/// The role as a label; empty if the role is unset or the reader may not view it.
fn role_label<'a>(role: Option<&'a Role>, approver: &Approver) -> &'a str {
    let name = role.map(Role::as_str);
    let seen = name.filter(|name| approver.allows(Action::ViewRole, Some(name)));
    seen.unwrap_or_default()
}

/// Also contains roles of executors whose tasks have not run out of memory: if a counter began with its first event,
/// nobody would see an increase.
fn out_of_memory<'a>(
    builder: &mut MetricsBuilder,
    counts: &BTreeMap<Option<Role>, u64>,
    roles: impl Iterator<Item = &'a Option<Role>>,
    approver: &Approver,
) {
    let mut all: BTreeMap<&str, u64> = roles
        .map(|role| (role_label(role.as_ref(), approver), 0))
        .collect();
    for (role, tasks) in counts {
        *all.entry(role_label(role.as_ref(), approver)).or_default() += tasks;
    }
    for (role, tasks) in all {
        builder.add(
            "meseta_agent_tasks_out_of_memory_total",
            &[("role", role)],
            number(tasks),
        );
    }
}

/// The agent's own resources, without oversubscribed ones, see [`revocable`].
fn resources(builder: &mut MetricsBuilder, total: &Resources, allocated: &Resources) {
    let (total, allocated) = (total.unrevocable(), allocated.unrevocable());
    amounts(builder, &total, &allocated, "false");
    for name in ["cpus", "mem", "disk", "gpus"] {
        let labels = [("name", name)];
        let (total, allocated) = (scalar(&total, name), scalar(&allocated, name));
        builder.add("meseta_agent_resources", &labels, total);
        builder.add("meseta_agent_resources_allocated", &labels, allocated);
    }
}

/// The resources of a kind, in the units and with the labels common to all daemons.
fn amounts(builder: &mut MetricsBuilder, total: &Resources, used: &Resources, revocable: &str) {
    for name in ["cpus", "mem", "disk", "gpus"] {
        let scale = unit(name);
        for (kind, resources) in [("total", total), ("used", used)] {
            let labels = [("resource", name), ("kind", kind), ("revocable", revocable)];
            let amount = scalar(resources, name) * scale;
            builder.add("meseta_agent_resource_amount", &labels, amount);
        }
    }
}

/// Returns the factor from the unit of a resource to the unit of metrics: from MB to bytes.
fn unit(resource: &str) -> f64 {
    match resource {
        "mem" | "disk" => 1_048_576.0,
        _ => 1.0,
    }
}

fn scalar(resources: &Resources, name: &str) -> f64 {
    resources.scalar(name).map_or(0.0, |scalar| scalar.to_f64())
}

/// All states, including those without tasks.
fn tasks_by_state(snapshot: &Snapshot) -> [(&'static str, usize); 4] {
    use meseta_proto::mesos::v1::TaskState;
    let of = |state: TaskState| {
        let tasks = snapshot.tasks();
        tasks.filter(|task| task.state == state).count()
    };
    [
        ("staging", of(TaskState::TaskStaging)),
        ("starting", of(TaskState::TaskStarting)),
        ("running", of(TaskState::TaskRunning)),
        ("killing", of(TaskState::TaskKilling)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_name_and_help() {
        let mut names = std::collections::BTreeSet::new();
        for (name, help) in families() {
            assert!(names.insert(name), "{name}");
            assert!(help.ends_with('.'), "{name}");
            let prefix = ["meseta_agent_", "process_"];
            assert!(
                prefix.iter().any(|prefix| name.starts_with(prefix)),
                "{name}"
            );
        }
        let lines = FAMILIES.lines().chain(revocable::FAMILIES.lines());
        assert_eq!(names.len(), lines.count());
    }

    #[test]
    fn only_known_values_have_series() {
        let mut builder = MetricsBuilder::default();
        builder.add("meseta_agent_frameworks", &[], None);
        builder.add("meseta_agent_tasks", &[("state", "running")], 3.0);
        let text = builder.into_text();
        assert_eq!(text.matches("# TYPE").count(), 1, "{text}");
        assert!(
            text.contains("meseta_agent_tasks{state=\"running\"} 3\n"),
            "{text}"
        );
    }

    fn lines(builder: MetricsBuilder) -> Vec<String> {
        let text = builder.into_text();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    /// Regression: an agent with four CPUs reported seven as allocated.
    #[test]
    fn oversubscribed_resources_are_not_allocated() {
        let parse = |text| Resources::parse(text, &Role::star()).expect("resources");
        let mut allocated = parse("cpus:4;mem:64");
        for resource in parse("cpus:3").with_revocable(true).iter() {
            allocated.insert(resource.clone());
        }
        let mut builder = MetricsBuilder::default();
        resources(&mut builder, &parse("cpus:4;mem:512"), &allocated);
        let lines = lines(builder);
        for line in [
            "meseta_agent_resources{name=\"cpus\"} 4",
            "meseta_agent_resources_allocated{name=\"cpus\"} 4",
            "meseta_agent_resources_allocated{name=\"mem\"} 64",
        ] {
            assert!(lines.iter().any(|one| one == line), "{line}: {lines:?}");
        }
    }

    /// Regression: the first task of a role that ran out of memory caused no increase.
    #[test]
    fn memory_kills_are_counted_from_zero() {
        let role = |name: &str| Some(Role::new(name).expect("a role"));
        let counts = BTreeMap::from([(role("gone"), 2), (role("eng"), 1)]);
        let roles = [role("eng"), role("ads"), None, role("ads")];
        let mut builder = MetricsBuilder::default();
        let approver = |rules: &str| {
            let acls = meseta_access::Acls::parse(rules).expect("rules");
            meseta_access::Authorizer::new(acls, false).approver(Some("ada".to_owned()))
        };
        let everything = approver(r#"{"permissive": true}"#);
        out_of_memory(&mut builder, &counts, roles.iter(), &everything);
        let series = |of: &[(&str, u64)]| -> Vec<String> {
            let name = "meseta_agent_tasks_out_of_memory_total";
            let of = of.iter();
            of.map(|(role, tasks)| format!("{name}{{role=\"{role}\"}} {tasks}"))
                .collect()
        };
        let expected = series(&[("", 0), ("ads", 0), ("eng", 1), ("gone", 2)]);
        assert_eq!(lines(builder), expected);
        // Roles that the reader may not view share one series: their sum.
        let some = approver(
            r#"{"permissive": false, "view_roles": [
                {"principals": {"values": ["ada"]}, "roles": {"values": ["ads"]}}]}"#,
        );
        let mut builder = MetricsBuilder::default();
        out_of_memory(&mut builder, &counts, roles.iter(), &some);
        assert_eq!(lines(builder), series(&[("", 3), ("ads", 0)]));
    }
}
