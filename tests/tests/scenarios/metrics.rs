//! What Prometheus scrapes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, Missing, Setup, unless_installed, unless_root, wait};

use crate::Scenario;

pub(crate) const ALL: &[Scenario] = &[
    ("promtool_accepts_both_pages", unless_promtool, promtool),
    (
        "a_container_appears_within_2_s_and_disappears_with_its_end",
        unless_root,
        series,
    ),
    ("every_metric_is_in_the_reference", unless_root, documented),
];

fn unless_promtool() -> Missing {
    unless_installed("promtool").or_else(unless_root)
}

/// A cluster with one task that runs.
fn with_task() -> (Cluster, Framework) {
    with_task_in(Cluster::default())
}

fn with_task_in(cluster: Cluster) -> (Cluster, Framework) {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    framework.launch(
        &offer,
        &[task(
            &offer,
            "t1",
            "sleep 600",
            &[("cpus", 0.5), ("mem", 64.0)],
        )],
    );
    framework.until_state("t1", "TASK_RUNNING");
    (cluster, framework)
}

fn containers(cluster: &Cluster) -> String {
    let text = cluster.agent().page("/metrics").text();
    text.lines()
        .filter(|l| l.contains("container_id="))
        .collect::<Vec<_>>()
        .join("\n")
}

fn promtool() {
    let (cluster, _framework) = with_task();
    wait::eventually("a sample", Duration::from_secs(5), || {
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

fn series() {
    let (cluster, mut framework) = with_task();
    let wanted = ["cpu", "memory", "limit"];
    wait::eventually(
        "cpu seconds, memory and limits",
        Duration::from_secs(2),
        || {
            let text = containers(&cluster);
            wanted.iter().all(|w| text.contains(w)).then_some(())
        },
    );
    framework.kill("t1");
    framework.until_state("t1", "TASK_KILLED");
    wait::eventually("the series are gone", Duration::from_secs(2), || {
        containers(&cluster).is_empty().then_some(())
    });
}

/// Names, types and help as scraped must stand in `docs/metrics.md`; rewritten when `MESETA_BLESS`
/// is set. The page may name more: not every kernel has every counter.
fn documented() {
    // With everything on that has figures of its own.
    let mut setup = Setup::default();
    setup.agent_flags.extend([
        "--resource_estimator=slack".to_owned(),
        "--qos_controller=pressure".to_owned(),
    ]);
    let (cluster, _framework) = with_task_in(Cluster::start(setup));
    wait::eventually("a sample", Duration::from_secs(5), || {
        (!containers(&cluster).is_empty()).then_some(())
    });
    wait::eventually("a forecast", Duration::from_secs(10), || {
        let text = cluster.agent().page("/metrics").text();
        text.contains("meseta_agent_oversubscribed_slack")
            .then_some(())
    });
    let mut page = String::from(
        "# Metrics\n\nWhat Prometheus scrapes at `/metrics` of each daemon. Series of a container end with \
         the container; nothing is\nread from the kernel for a scrape. `/metrics/snapshot` has the Mesos keys.\n",
    );
    let mut missing = BTreeSet::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let reference = std::fs::read_to_string(path).unwrap_or_default();
    for (name, daemon) in [("master", &cluster.master), ("agent", cluster.agent())] {
        page += &format!("\n## `meseta {name}`\n\n| metric | type | meaning |\n|---|---|---|\n");
        for row in rows(&daemon.page("/metrics").text()) {
            if !reference.contains(&row) {
                missing.insert(row.clone());
            }
            page += &row;
        }
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

/// One table row for each family, by name.
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
