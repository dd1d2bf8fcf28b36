//! The pages that Prometheus scrapes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use meseta_tests::{Cluster, Framework, Missing, Setup, unless_installed, unless_root, wait};
use serde_json::Value;

meseta_tests::scenarios! {
    unless_promtool:
        promtool_accepts_both_pages;
    unless_root:
        container_metrics_appear_and_disappear,
        every_metric_is_in_the_reference,
        mesoss_keys_are_in_the_snapshot,
        statistics_have_every_kernel_field;
}

/// The time for values that a page shows only after an unspecified while.
const LIMIT: Duration = Duration::from_secs(30);

fn unless_promtool() -> Missing {
    unless_installed("promtool").or_else(unless_root)
}

/// Starts a cluster with one running task.
fn with_task() -> (Cluster, Framework) {
    with_task_in(Cluster::default())
}

fn with_task_in(cluster: Cluster) -> (Cluster, Framework) {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    framework.run_task(&offer, "t1", "sleep 600", &[("cpus", 0.5), ("mem", 64.0)]);
    (cluster, framework)
}

fn containers(cluster: &Cluster) -> String {
    let text = cluster.agent().page("/metrics").text();
    text.lines()
        .filter(|l| l.contains("container_id="))
        .collect::<Vec<_>>()
        .join("\n")
}

fn promtool_accepts_both_pages() {
    let (cluster, _framework) = with_task();
    wait::eventually("a sample", LIMIT, || {
        (!containers(&cluster).is_empty()).then_some(())
    });
    for daemon in [&cluster.master, cluster.agent()] {
        let page = daemon.page("/metrics");
        assert!(
            page.header("content-type")
                .is_some_and(|t| t.starts_with("text/plain")),
            "{page:?}"
        );
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool runs");
        promtool
            .stdin
            .take()
            .expect("a pipe")
            .write_all(&page.body)
            .expect("written");
        let output = promtool.wait_with_output().expect("promtool ends");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success() && said.is_empty(),
            "{}: {said}",
            daemon.url
        );
    }
}

fn container_metrics_appear_and_disappear() {
    let (cluster, mut framework) = with_task();
    let expected = ["cpu", "memory", "limit"];
    wait::eventually(
        "cpu seconds, memory and limits",
        Duration::from_secs(2),
        || {
            let text = containers(&cluster);
            expected.iter().all(|w| text.contains(w)).then_some(())
        },
    );
    framework.kill("t1");
    framework.until_state("t1", "TASK_KILLED");
    wait::eventually("the series are gone", Duration::from_secs(2), || {
        containers(&cluster).is_empty().then_some(())
    });
}

/// The keys of a Mesos agent, except those of Docker images, project quotas and groups of volumes, which only agents with
/// these features have.
const AGENT_KEYS: &str = "
    slave/uptime_secs slave/registered slave/recovery_errors slave/recovery_time_secs slave/frameworks_active
    slave/tasks_staging slave/tasks_starting slave/tasks_running slave/tasks_killing
    slave/tasks_finished slave/tasks_failed slave/tasks_killed slave/tasks_lost slave/tasks_gone
    slave/executors_registering slave/executors_running slave/executors_terminating
    slave/executors_terminated slave/executors_preempted
    slave/valid_status_updates slave/invalid_status_updates
    slave/valid_framework_messages slave/invalid_framework_messages
    slave/container_launch_errors slave/executor_directory_max_allowed_age_secs
    slave/cpus_total slave/cpus_used slave/cpus_percent slave/gpus_total slave/gpus_used slave/gpus_percent
    slave/mem_total slave/mem_used slave/mem_percent slave/disk_total slave/disk_used slave/disk_percent
    slave/cpus_revocable_total slave/cpus_revocable_used slave/cpus_revocable_percent
    slave/gpus_revocable_total slave/gpus_revocable_used slave/gpus_revocable_percent
    slave/mem_revocable_total slave/mem_revocable_used slave/mem_revocable_percent
    slave/disk_revocable_total slave/disk_revocable_used slave/disk_revocable_percent
    gc/path_removals_pending gc/path_removals_succeeded gc/path_removals_failed
    containerizer/mesos/container_destroy_errors containerizer/mesos/filesystem/containers_new_rootfs
    containerizer/mesos/provisioner/remove_container_errors
    containerizer/mesos/provisioner/bind/remove_rootfs_errors
    containerizer/fetcher/task_fetches_succeeded containerizer/fetcher/task_fetches_failed
    containerizer/fetcher/cache_size_total_bytes containerizer/fetcher/cache_size_used_bytes
    resource_provider_manager/subscribed resource_provider_manager/events/subscribe
    resource_provider_manager/events/disconnect
    system/cpus_total system/load_1min system/load_5min system/load_15min system/mem_free_bytes
    system/mem_total_bytes";

fn mesoss_keys_are_in_the_snapshot() {
    let (cluster, _framework) = with_task();
    let (mut keys, mut missing) = (Value::Null, Vec::new());
    // Some keys appear only after a measurement of the machine.
    let are_there = wait::holds(LIMIT, || {
        keys = cluster.agent().page("/metrics/snapshot").json();
        let all = AGENT_KEYS.split_ascii_whitespace();
        missing = all.filter(|key| !keys[key].is_number()).collect();
        missing.is_empty()
    });
    assert!(are_there, "{missing:?} of {keys:#}");
    assert_eq!(keys["slave/registered"], 1.0);
    assert_eq!(keys["slave/tasks_running"], 1.0);
    assert_eq!(keys["slave/cpus_used"], 0.5);
    assert_eq!(keys["slave/cpus_percent"], 0.125);
}

/// Each field with its control file; if a group has the file, the field is there.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "cpuacct.stat",
        &["cpus_user_time_secs", "cpus_system_time_secs"],
    ),
    (
        "cpu.cfs_quota_us",
        &[
            "cpus_nr_periods",
            "cpus_nr_throttled",
            "cpus_throttled_time_secs",
        ],
    ),
    (
        "cpu.max",
        &[
            "cpus_user_time_secs",
            "cpus_system_time_secs",
            "cpus_nr_periods",
            "cpus_nr_throttled",
            "cpus_throttled_time_secs",
        ],
    ),
    ("pids.current", &["processes", "threads"]),
    (
        "memory.stat",
        &[
            "mem_total_bytes",
            "mem_rss_bytes",
            "mem_anon_bytes",
            "mem_cache_bytes",
            "mem_file_bytes",
            "mem_mapped_file_bytes",
            "mem_unevictable_bytes",
        ],
    ),
    ("memory.memsw.usage_in_bytes", &["mem_total_memsw_bytes"]),
    (
        "memory.swap.current",
        &["mem_swap_bytes", "mem_total_memsw_bytes"],
    ),
    ("memory.kmem.usage_in_bytes", &["mem_kmem_usage_bytes"]),
    (
        "memory.kmem.tcp.usage_in_bytes",
        &["mem_kmem_tcp_usage_bytes"],
    ),
    (
        "memory.pressure_level",
        &[
            "mem_low_pressure_counter",
            "mem_medium_pressure_counter",
            "mem_critical_pressure_counter",
        ],
    ),
];

fn statistics_have_every_kernel_field() {
    let (cluster, _framework) = with_task();
    let told = wait::eventually("a sample", LIMIT, || {
        let all = cluster.agent().page("/monitor/statistics").json();
        let told = &all.as_array()?.first()?["statistics"];
        told["timestamp"].is_number().then(|| told.clone())
    });
    // The requested limits, whatever the kernel has.
    assert!(told["timestamp"].as_f64() > Some(1e9), "{told:#}");
    assert_eq!(told["cpus_soft_limit"], 0.5);
    assert_eq!(told["mem_limit_bytes"], 64 << 20);
    assert_eq!(told["mem_soft_limit_bytes"], 64 << 20);
    let groups = meseta_tests::kernel::groups_below(&cluster.cgroups_root);
    for (file, fields) in FIELDS {
        if !groups.iter().any(|group| group.join(file).exists()) {
            continue;
        }
        for field in *fields {
            assert!(told[field].is_number(), "{field}, by {file}: {told:#}");
        }
    }
}

/// Checks that the names, types and help of scraped metrics are in `docs/metrics.md`, which `MESETA_BLESS` rewrites. The
/// page may name more, because not every kernel has every counter.
fn every_metric_is_in_the_reference() {
    // Every option with its own metrics is on.
    let mut setup = Setup::default();
    setup.agent_flags.extend([
        "--resource_estimator=slack".to_owned(),
        "--qos_controller=pressure".to_owned(),
    ]);
    let (cluster, _framework) = with_task_in(Cluster::start(setup));
    wait::eventually("a sample", LIMIT, || {
        (!containers(&cluster).is_empty()).then_some(())
    });
    wait::eventually("a forecast", LIMIT, || {
        let text = cluster.agent().page("/metrics").text();
        text.contains("meseta_agent_oversubscribed_slack")
            .then_some(())
    });
    let mut missing = BTreeSet::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let reference = std::fs::read_to_string(path).unwrap_or_default();
    let introduction = reference.split("\n## ").next().unwrap_or_default();
    let mut page = introduction.to_owned();
    for (name, daemon) in [("master", &cluster.master), ("agent", cluster.agent())] {
        page += &format!("\n## `meseta {name}`\n\n| metric | type | meaning |\n|---|---|---|\n");
        let scraped = rows(&daemon.page("/metrics").text());
        missing.extend(
            scraped
                .iter()
                .filter(|row| !reference.contains(*row))
                .cloned(),
        );
        // Families without figures on this machine stay unchanged.
        let section = reference.split(&format!("## `meseta {name}`")).nth(1);
        let section = section.and_then(|rest| rest.split("\n## ").next());
        let named = |row: &String| row.split('`').nth(1).map(str::to_owned);
        let seen: BTreeSet<_> = scraped.iter().filter_map(named).collect();
        let known = section
            .unwrap_or_default()
            .lines()
            .map(|line| format!("{line}\n"));
        let mut all: BTreeSet<String> = known
            .filter(|row| {
                row.starts_with("| `") && named(row).is_some_and(|name| !seen.contains(&name))
            })
            .collect();
        all.extend(scraped);
        page.extend(all);
    }
    // A separate test compares the scheduler's metrics with the page.
    if let Some(at) = reference.find("\n## `meseta scheduler`") {
        page += &reference[at..];
    }
    if std::env::var_os("MESETA_BLESS").is_some() {
        std::fs::write(path, page).expect("written");
        return;
    }
    assert!(
        missing.is_empty(),
        "not in docs/metrics.md (MESETA_BLESS=1 rewrites it): {missing:#?}"
    );
}

/// Returns one table row for each family, by name.
fn rows(text: &str) -> BTreeSet<String> {
    let words = |prefix: &str| -> Vec<(String, String)> {
        let lines = text
            .lines()
            .filter_map(|l| l.strip_prefix(prefix)?.split_once(' '));
        lines
            .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            .collect()
    };
    let types = words("# TYPE ");
    words("# HELP ")
        .into_iter()
        .map(|(name, help)| {
            let kind = types
                .iter()
                .find(|(n, _)| *n == name)
                .map_or("", |(_, kind)| kind.as_str());
            format!("| `{name}` | {kind} | {help} |\n")
        })
        .collect()
}
