//! The metrics of oversubscription for Prometheus, and the example alerts.

use std::path::Path;
use std::process::{Command, Stdio};

use meseta_tests::daemon::free_port;
use meseta_tests::revocable::{revocable_framework, revocable_task, wait_for_revocable_offer};
use meseta_tests::{Cluster, Missing, http, unless_installed, wait};
use serde_json::Value;

use super::evicting::LOAD;
use super::{IDLE, PATIENCE, Running, asleep, cluster, machine, set, slack_flags};

pub(super) fn unless_prometheus() -> Missing {
    unless_installed("prometheus").or_else(|| unless_installed("promtool"))
}

fn promtool(arguments: &[&str]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/alerts");
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("promtool runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "promtool {arguments:?}: {said}{complained}"
    );
}

/// A Prometheus that scrapes master and agent each second, and evaluates the example rules as often.
struct Prometheus {
    _running: Running,
    address: String,
}

impl Prometheus {
    fn start(cluster: &Cluster, dir: &Path) -> Self {
        let rules = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/alerts/oversubscription.rules.yml"
        );
        let (master, agent) = (cluster.master.address(), cluster.agent().address());
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{rules}']\n\
             scrape_configs:\n- job_name: meseta\n  static_configs:\n  \
             - targets: ['{master}', '{agent}']\n"
        );
        let config = dir.join("prometheus.yml");
        std::fs::write(&config, text).expect("written");
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus runs");
        Self {
            _running: Running(child),
            address,
        }
    }

    fn page(&self, path: &str) -> Option<Value> {
        let answer = http::try_get(&format!("http://{}{path}", self.address)).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Returns the single value of a query, once it matches.
    fn until(&self, what: &str, query: &str, matches: impl Fn(f64) -> bool) -> f64 {
        let encode = |one: char| match one {
            '{' | '}' | '"' | '=' | ' ' | '+' => format!("%{:02X}", u32::from(one)),
            _ => one.to_string(),
        };
        let query: String = query.chars().map(encode).collect();
        wait::eventually(what, PATIENCE, || {
            let answer = self.page(&format!("/api/v1/query?query={query}"))?;
            let value = answer["data"]["result"][0]["value"][1].as_str()?;
            value.parse().ok().filter(|value| matches(*value))
        })
    }

    fn until_firing(&self, alert: &str) -> Value {
        wait::eventually(alert, PATIENCE, || {
            let answer = self.page("/api/v1/alerts")?;
            let all = answer["data"]["alerts"].as_array()?.clone();
            all.into_iter()
                .find(|one| one["labels"]["alertname"] == alert && one["state"] == "firing")
        })
    }
}

/// The number of evictions that trigger an alert.
const EVICTED: usize = 12;

pub(super) fn prometheus_scrapes_oversubscription_and_alerts_fire() {
    promtool(&["check", "rules", "oversubscription.rules.yml"]);
    promtool(&["test", "rules", "oversubscription.test.yml"]);
    promtool(&["check", "rules", "cluster.rules.yml"]);
    promtool(&["test", "rules", "cluster.test.yml"]);
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    set(&proc, "stat", IDLE);
    set(&proc, "loadavg", "9.00 0.10 0.10 1/80 4242\n");
    let mut flags = slack_flags(&proc);
    flags.extend([
        "--qos_controller=org_apache_mesos_LoadQoSController".to_owned(),
        format!("--modules={LOAD}"),
    ]);
    let cluster = cluster(flags);
    let prometheus = Prometheus::start(&cluster, dir.path());
    let _regular = asleep(&cluster);
    // Two CPUs are promised, and 9 % of 4 stay free. Until then each step rescinds the offers of the previous step.
    let all = |value: f64| (value - 1.6).abs() < 1e-6;
    let total = "meseta_agent_revocable_resources{name=\"cpus\"}";
    prometheus.until("the total is scraped", total, all);
    let told = "meseta_master_resources_total_cpus{revocable=\"true\"}";
    prometheus.until("the master's total is scraped", told, all);
    let slack = "meseta_agent_oversubscribed_slack{name=\"cpus\"}";
    prometheus.until("the slack is scraped", slack, |value| value > 1.0);
    let kills = "sum(meseta_agent_qos_corrections_total{action=\"kill\"})";
    prometheus.until("corrections are scraped", kills, |value| value == 0.0);

    let mut revocable_framework = revocable_framework(&cluster);
    let offer = wait_for_revocable_offer(&mut revocable_framework);
    let name = |number: usize| format!("b{number}");
    let task = |number| revocable_task(&offer, &name(number), "exec sleep 600", 0.01);
    let tasks: Vec<_> = (0..EVICTED).map(task).collect();
    revocable_framework.launch(&offer, &tasks);
    for number in 0..EVICTED {
        revocable_framework.until_state(&name(number), "TASK_RUNNING");
    }
    let query = "meseta_agent_revocable_allocated{name=\"cpus\"}";
    prometheus.until("what is borrowed is scraped", query, |value| value > 0.1);
    set(&proc, "loadavg", "0.10 6.01 0.10 1/80 4242\n");
    for number in 0..EVICTED {
        let status = revocable_framework.until_end(&name(number), PATIENCE);
        assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    }
    let all = |value: f64| (value - 12.0).abs() < 1e-6;
    prometheus.until("all evictions are scraped", kills, all);
    let alert = prometheus.until_firing("MesetaRevocableEvictedOften");
    assert_eq!(alert["labels"]["detector"], "load-5min", "{alert:#}");
}
