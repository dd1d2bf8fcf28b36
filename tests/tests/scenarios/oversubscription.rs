//! Oversubscription, live: what is lent, to whom, and how it is taken back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::lending::{
    amount, borrower, borrowing, is_revocable, launch_and_be_content, offer_to_borrow,
};
use std::process::{Child, Command, Stdio};

use meseta_tests::{Cluster, Framework, Missing, Setup, http, kernel};
use meseta_tests::{unless_installed, unless_root, wait};
use serde_json::{Value, json};

use crate::{Scenario, anywhere};

pub(crate) const ALL: &[Scenario] = &[
    (
        "a_fixed_14_cpus_are_offered_to_those_who_asked_for_revocable_ones",
        anywhere,
        fixed,
    ),
    (
        "the_load_controller_evicts_all_revocable_executors_and_nobody_else",
        unless_root,
        load,
    ),
    (
        "the_load_controller_reads_the_machines_own_load",
        unless_loaded,
        real_load,
    ),
    (
        "revocable_work_goes_on_over_restarts_of_agent_and_master",
        unless_root,
        restarts,
    ),
    ("slack_is_lent_within_two_intervals", unless_root, slack),
    (
        "a_plug_in_in_rust_lends_and_its_end_ends_lending",
        unless_rust,
        rust_plugin,
    ),
    (
        "a_plug_in_in_python_lends_and_evicts",
        unless_python,
        python_plugin,
    ),
    (
        "prometheus_scrapes_what_is_lent_and_alerts_fire",
        unless_prometheus,
        prometheus,
    ),
    (
        "pressure_on_memory_stops_offers_and_kills_the_largest_borrower",
        unless_root,
        memory,
    ),
];

/// As the document has them.
const FIXED: &str = r#"{
  "libraries": {
    "file": "/usr/local/lib64/libfixed_resource_estimator.so",
    "modules": {
      "name": "org_apache_mesos_FixedResourceEstimator",
      "parameters": {
        "key": "resources",
        "value": "cpus:14"
      }
    }
  }
}"#;
const LOAD: &str = r#"{
  "libraries": {
    "file": "/usr/local/lib64/libload_qos_controller.so",
    "modules": {
      "name": "org_apache_mesos_LoadQoSController",
      "parameters": [
        {
          "key": "load_threshold_5min",
          "value": "6"
        },
        {
	  "key": "load_threshold_15min",
	  "value": "4"
        }
      ]
    }
  }
}"#;

/// Long enough for any number of rounds, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn fixed_flags() -> Vec<String> {
    vec![
        "--resources=cpus:4;mem:4096;disk:4096;ports:[31000-31999]".to_owned(),
        "--resource_estimator=org_apache_mesos_FixedResourceEstimator".to_owned(),
        format!("--modules={FIXED}"),
        "--monitor_interval=200ms".to_owned(),
    ]
}

fn cluster(agent_flags: Vec<String>) -> Cluster {
    Cluster::start(Setup {
        agent_flags,
        ..Setup::default()
    })
}

fn metric(cluster: &Cluster, series: &str) -> Option<f64> {
    let text = cluster.agent().page("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

fn fixed() {
    let cluster = cluster(fixed_flags());
    let mut plain = cluster.framework();
    let offer = plain.offer();
    assert_eq!(amount(&offer, "cpus", false), 4.0, "{offer:#}");
    assert!(
        offer["resources"]
            .as_array()
            .expect("resources")
            .iter()
            .all(|r| !is_revocable(r)),
        "{offer:#}"
    );
    plain.teardown();

    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    let resources = offer["resources"].as_array().expect("resources");
    let lent: Vec<_> = resources.iter().filter(|r| is_revocable(r)).collect();
    assert_eq!(lent.len(), 1, "{offer:#}");
    assert_eq!(lent[0]["revocable"], json!({}));
    assert_eq!(lent[0]["scalar"]["value"], json!(14.0));
    assert_eq!(
        amount(&offer, "cpus", false),
        4.0,
        "beside the regular ones: {offer:#}"
    );

    let master = |path: &str| cluster.master.page(path).json();
    for agent in [
        &master("/slaves")["slaves"][0],
        &master("/state")["slaves"][0],
    ] {
        assert_eq!(
            agent["resources"]["cpus_revocable"],
            json!(14.0),
            "{agent:#}"
        );
        assert_eq!(agent["resources"]["cpus"], json!(4.0), "{agent:#}");
    }
    assert_eq!(
        master("/metrics/snapshot")["master/cpus_revocable_total"],
        json!(14.0)
    );
    let agent = cluster.agent().page("/metrics/snapshot").json();
    assert_eq!(agent["slave/cpus_revocable_total"], json!(14.0));
    assert_eq!(
        metric(&cluster, "meseta_agent_revocable_resources{name=\"cpus\"}"),
        Some(14.0)
    );

    // 10 of them are used, and the total stays what it is: nothing is told twice.
    let task = borrowing(&offer, "borrowed", "sleep 600", 10.0);
    borrower.launch(&offer, &[task]);
    borrower.until_state("borrowed", "TASK_RUNNING");
    let rest = offer_to_borrow(&mut borrower);
    assert_eq!(amount(&rest, "cpus", true), 4.0, "{rest:#}");
    assert_eq!(
        master("/metrics/snapshot")["master/cpus_revocable_used"],
        json!(10.0)
    );
    let role = master("/roles")["roles"]
        .as_array()
        .and_then(|all| all.iter().find(|role| role["name"] == "batch").cloned())
        .expect("the role");
    assert_eq!(role["allocated"]["cpus"], json!(10.0), "{role:#}");
    let charged = role["quota"]["consumed"]["cpus"].as_f64().unwrap_or(0.0);
    assert_eq!(
        charged, 0.0,
        "what is lent counts towards no quota: {role:#}"
    );
    assert_eq!(
        metric(&cluster, "meseta_agent_oversubscribed_updates_total"),
        Some(1.0)
    );

    // What is lent can neither be reserved nor mixed with what is not.
    let mut mixed = borrowing(&rest, "mixed", "true", 1.0);
    let plain = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.0},
                       "allocation_info": {"role": "batch"}});
    mixed["resources"]
        .as_array_mut()
        .expect("resources")
        .push(plain);
    borrower.launch(&rest, &[mixed]);
    let status = borrower.update("mixed");
    assert_eq!(status["state"], "TASK_ERROR", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Cannot use both revocable and non-revocable 'cpus'"),
        "{message}"
    );
    borrower.teardown();
}

/// A machine made of files.
fn machine(dir: &Path) -> PathBuf {
    let proc = dir.join("proc");
    std::fs::create_dir_all(&proc).expect("a folder");
    proc
}

fn set(proc: &Path, file: &str, text: &str) {
    // Replaced whole: the agent reads it all the time.
    let next = proc.join("next");
    std::fs::write(&next, text).expect("written");
    std::fs::rename(next, proc.join(file)).expect("renamed");
}

/// Two regular and two revocable tasks, each in a container of its own.
fn two_and_two(cluster: &Cluster) -> (Framework, Framework) {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let small = [("cpus", 0.1), ("mem", 32.0)];
    let tasks = ["r1", "r2"].map(|id| task(&offer, id, "exec sleep 600", &small));
    launch_and_be_content(&regular, &offer, &tasks);
    for id in ["r1", "r2"] {
        regular.until_state(id, "TASK_RUNNING");
    }
    let mut borrower = borrower(cluster);
    borrow_twice(&mut borrower);
    assert_eq!(kernel::tasks_below(&cluster.cgroups_root).len(), 4);
    (regular, borrower)
}

fn borrow_twice(borrower: &mut Framework) {
    let offer = offer_to_borrow(borrower);
    let tasks = ["b1", "b2"].map(|id| borrowing(&offer, id, "exec sleep 600", 2.0));
    borrower.launch(&offer, &tasks);
    for id in ["b1", "b2"] {
        borrower.until_state(id, "TASK_RUNNING");
    }
}

fn evicted(borrower: &mut Framework, detector: &str) {
    for id in ["b1", "b2"] {
        let of_it = |event: &Value| {
            event["type"] == "UPDATE" && event["update"]["status"]["task_id"]["value"] == id
        };
        let event = borrower
            .within(PATIENCE, &of_it)
            .expect("the end of its task");
        let status = event["update"]["status"].clone();
        borrower.acknowledge(&status);
        assert_eq!(status["state"], "TASK_GONE", "{status:#}");
        assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
        assert_eq!(status["source"], "SOURCE_AGENT", "{status:#}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with("Container preempted by QoS correction"),
            "{message}"
        );
        assert!(message.contains(detector), "{message}");
    }
}

/// The processes of regular containers, by the kernel's count, and no other.
fn only_the_regular_are_left(cluster: &Cluster) {
    wait::eventually("the evicted are gone", PATIENCE, || {
        (kernel::tasks_below(&cluster.cgroups_root).len() == 2).then_some(())
    });
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let inside = |group: &&PathBuf| {
        group
            .parent()
            .is_some_and(|parent| parent.ends_with(".revocable"))
    };
    assert_eq!(
        groups.iter().filter(inside).collect::<Vec<_>>(),
        Vec::<&PathBuf>::new()
    );
}

fn load() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    let mut flags = fixed_flags();
    flags.extend([
        "--qos_controller=org_apache_mesos_LoadQoSController".to_owned(),
        "--qos_correction_interval_min=20secs".to_owned(),
        format!("--modules={LOAD}"),
        format!("--host_proc={}", proc.display()),
    ]);
    // At both thresholds is not above them, whatever the last minute was like.
    set(&proc, "loadavg", "99.00 6.00 4.00 1/80 4242\n");
    let cluster = cluster(flags);
    let (_regular, mut borrower) = two_and_two(&cluster);
    let seen = |detector: &str, value: f64| {
        let series = format!("meseta_agent_qos_detector_value{{detector=\"{detector}\"}}");
        wait::eventually("a round of the controller", PATIENCE, || {
            (metric(&cluster, &series) == Some(value)).then_some(())
        });
    };
    seen("load-5min", 6.0);
    set(&proc, "loadavg", "0.10 5.50 3.90 1/80 4242\n");
    seen("load-15min", 3.9);
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root).len(),
        4,
        "nobody was evicted"
    );
    set(&proc, "loadavg", "0.10 0.20 4.01 1/80 4242\n");
    let began = std::time::Instant::now();
    evicted(&mut borrower, "load-15min");
    assert!(
        began.elapsed() > Duration::from_secs(5),
        "a round came {:?} after the last one, not 20 s",
        began.elapsed()
    );
    only_the_regular_are_left(&cluster);
    // Whoever borrows anew goes by the other threshold.
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    borrow_twice(&mut borrower);
    set(&proc, "loadavg", "0.10 6.01 0.10 1/80 4242\n");
    evicted(&mut borrower, "load-5min");
    only_the_regular_are_left(&cluster);
    for detector in ["load-15min", "load-5min"] {
        let labels = format!("{{detector=\"{detector}\",action=\"kill\"}}");
        let series = format!("meseta_agent_qos_corrections_total{labels}");
        assert_eq!(metric(&cluster, &series), Some(2.0), "{detector}");
    }
    let keys = cluster.agent().page("/metrics/snapshot").json();
    assert_eq!(keys["slave/executors_preempted"], json!(4.0));
    assert_eq!(keys["slave/tasks_gone"], json!(4.0));
}

/// The load of 5 minutes is a figure that this test cannot make; above none it can be.
fn unless_loaded() -> Missing {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let five = load.and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
    let idle = five.is_none_or(|five| five < 0.02);
    unless_root().or_else(|| idle.then(|| format!("the load of 5 minutes is {five:?}")))
}

fn real_load() {
    let mut flags = fixed_flags();
    flags.extend([
        "--qos_controller=load".to_owned(),
        "--qos_correction_interval_min=5secs".to_owned(),
        r#"--modules={"libraries": {"modules": {"name": "load", "parameters":
            {"key": "load_threshold_5min", "value": "0"}}}}"#
            .to_owned(),
    ]);
    let cluster = cluster(flags);
    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    borrower.launch(&offer, &[borrowing(&offer, "b", "exec sleep 600", 2.0)]);
    let status = wait_end(&mut borrower, "b");
    assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
}

/// The update that ends a task, the others acknowledged.
fn wait_end(framework: &mut Framework, id: &str) -> Value {
    loop {
        let status = framework.update(id);
        framework.acknowledge(&status);
        let state = status["state"].as_str().unwrap_or_default();
        if !["TASK_STARTING", "TASK_RUNNING", "TASK_KILLING"].contains(&state) {
            return status;
        }
    }
}

fn restarts() {
    let mut cluster = cluster(fixed_flags());
    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    borrower.launch(&offer, &[borrowing(&offer, "b", "exec sleep 600", 10.0)]);
    borrower.until_state("b", "TASK_RUNNING");
    let before = kernel::tasks_below(&cluster.cgroups_root);
    assert_eq!(before.len(), 1);
    let total = |cluster: &Cluster| {
        wait::eventually("the total is told", PATIENCE, || {
            let agents = cluster.master.page("/slaves").json();
            let agent = &agents["slaves"][0];
            let told = agent["resources"]["cpus_revocable"] == json!(14.0)
                && agent["used_resources"]["cpus_revocable"] == json!(10.0);
            told.then_some(())
        });
    };
    total(&cluster);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    total(&cluster);
    cluster.restart_master();
    cluster.wait_for_agents(1);
    total(&cluster);
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root),
        before,
        "it goes on"
    );
}

/// Eight idle processors.
const IDLE: &str = "cpu  8 0 8 8000 0 0 0 0 0 0\ncpu0 1 0 1 1000 0 0 0 0 0 0\n\
    cpu1 1 0 1 1000 0 0 0 0 0 0\ncpu2 1 0 1 1000 0 0 0 0 0 0\ncpu3 1 0 1 1000 0 0 0 0 0 0\n\
    cpu4 1 0 1 1000 0 0 0 0 0 0\ncpu5 1 0 1 1000 0 0 0 0 0 0\ncpu6 1 0 1 1000 0 0 0 0 0 0\n\
    cpu7 1 0 1 1000 0 0 0 0 0 0\nctxt 1\nbtime 1\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n";

/// An agent that lends slack as soon as it can tell.
fn slack_flags(proc: &Path) -> Vec<String> {
    let modules = json!({"libraries": {"modules": {"name": "slack", "parameters": [
        {"key": "min_age", "value": "1secs"}, {"key": "min_samples", "value": "3"},
        {"key": "rate_window", "value": "1secs"}, {"key": "growth", "value": "1.0"},
        {"key": "fold", "value": "1secs"}, {"key": "reopen_after", "value": "1secs"}]}}});
    vec![
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=slack".to_owned(),
        format!("--host_proc={}", proc.display()),
        format!("--modules={modules}"),
        "--oversubscribed_resources_interval=2secs".to_owned(),
        "--monitor_interval=200ms".to_owned(),
    ]
}

/// A regular task that was promised 2 cpus and uses none: as good as asleep.
fn asleep(cluster: &Cluster) -> Framework {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let promised = [("cpus", 2.0), ("mem", 32.0)];
    let task = task(&offer, "r", "exec sleep 600", &promised);
    launch_and_be_content(&regular, &offer, &[task]);
    regular.until_state("r", "TASK_RUNNING");
    regular
}

fn slack() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    // What else runs here would be no slack.
    set(&proc, "stat", IDLE);
    let cluster = cluster(slack_flags(&proc));
    let _regular = asleep(&cluster);
    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    let lent = amount(&offer, "cpus", true);
    assert!(
        lent > 0.0 && lent <= 2.0,
        "no more than was promised and not used: {lent}"
    );
    let slack = metric(&cluster, "meseta_agent_oversubscribed_slack{name=\"cpus\"}");
    assert!(slack.is_some_and(|slack| slack > 1.0), "{slack:?}");
    let total = cluster.agent().page("/state").json();
    assert_eq!(
        total["oversubscribed_resources"]["cpus_revocable"],
        json!(lent),
        "{total:#}"
    );
}

/// What a machine of 1 GB has left.
fn meminfo(available_mb: u64) -> String {
    let zero = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "Mapped",
        "Slab",
        "Committed_AS",
        "VmallocTotal",
        "VmallocUsed",
        "VmallocChunk",
    ];
    let mut text = format!("MemTotal: {} kB\nMemFree: 0 kB\n", 1024 * 1024);
    text += &format!("MemAvailable: {} kB\n", available_mb * 1024);
    for name in zero {
        text += &format!("{name}: 0 kB\n");
    }
    text
}

fn memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    set(&proc, "meminfo", &meminfo(900));
    let mut flags = fixed_flags();
    flags.extend([
        "--qos_controller=pressure".to_owned(),
        format!("--host_proc={}", proc.display()),
    ]);
    let cluster = cluster(flags);
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let hold = |mb: u32| format!("head -c {mb}m /dev/zero | tail -c {mb}m | sleep 600");
    let tasks = [task(
        &offer,
        "r",
        &hold(40),
        &[("cpus", 0.1), ("mem", 128.0)],
    )];
    launch_and_be_content(&regular, &offer, &tasks);
    regular.until_state("r", "TASK_RUNNING");
    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    let mut tasks =
        [("small", 4), ("large", 30)].map(|(id, mb)| borrowing(&offer, id, &hold(mb), 2.0));
    for task in &mut tasks {
        task["resources"][1]["scalar"]["value"] = json!(128.0);
    }
    borrower.launch(&offer, &tasks);
    for id in ["small", "large"] {
        borrower.until_state(id, "TASK_RUNNING");
    }
    let rest = offer_to_borrow(&mut borrower);
    wait::eventually("the large one has touched its memory", PATIENCE, || {
        let answer = cluster.agent().page("/monitor/statistics").json();
        let all = answer.as_array()?.clone();
        let large = all.iter().find(|one| one["executor_id"] == "large")?;
        let bytes = large["statistics"]["mem_rss_bytes"].as_u64()?;
        (bytes >= 29 << 20).then_some(())
    });
    // 84 of 100 are used: nothing more is lent, what was offered is taken back, nobody dies.
    set(&proc, "meminfo", &meminfo(1024 * 16 / 100));
    borrower.wait_until("the offer is rescinded", |event| {
        event["type"] == "RESCIND" && event["rescind"]["offer_id"] == rest["id"]
    });
    wait::eventually("the stop shows", PATIENCE, || {
        (metric(&cluster, "meseta_agent_oversubscribed_stopped") == Some(1.0)).then_some(())
    });
    assert_eq!(
        metric(&cluster, "meseta_agent_executors_preempted_total"),
        Some(0.0)
    );
    // 88 of 100: about 80 MB are too much. The largest of those who borrowed goes first.
    set(&proc, "meminfo", &meminfo(1024 * 12 / 100));
    let status = wait_end(&mut borrower, "large");
    assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("mem-watermark"), "{message}");
    // Calm again: it may be lent again, and the regular task never noticed.
    set(&proc, "meminfo", &meminfo(900));
    wait::eventually("it is over", PATIENCE, || {
        (metric(&cluster, "meseta_agent_oversubscribed_stopped") == Some(0.0)).then_some(())
    });
    let state = cluster.agent().page("/state").json();
    let frameworks = state["frameworks"].as_array().expect("frameworks");
    let runs = frameworks
        .iter()
        .flat_map(|f| f["executors"].as_array().cloned().unwrap_or_default());
    assert!(
        runs.into_iter().any(|executor| executor["id"] == "r"),
        "{state:#}"
    );
}

fn unless_prometheus() -> Missing {
    unless_installed("prometheus").or_else(|| unless_installed("promtool"))
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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

/// A Prometheus that scrapes master and agent each second and judges the example rules as often.
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
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let address = format!("127.0.0.1:{}", port.expect("a port").port());
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

    /// The one value that a query has, once it is what is wanted.
    fn until(&self, what: &str, query: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let encode = |one: char| match one {
            '{' | '}' | '"' | '=' | ' ' | '+' => format!("%{:02X}", u32::from(one)),
            _ => one.to_string(),
        };
        let query: String = query.chars().map(encode).collect();
        wait::eventually(what, PATIENCE, || {
            let answer = self.page(&format!("/api/v1/query?query={query}"))?;
            let value = answer["data"]["result"][0]["value"][1].as_str()?;
            value.parse().ok().filter(|value| wanted(*value))
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

/// Evictions enough for an alert.
const EVICTED: usize = 12;

fn prometheus() {
    promtool(&["check", "rules", "oversubscription.rules.yml"]);
    promtool(&["test", "rules", "oversubscription.test.yml"]);
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
    // 2 are promised, and 9 % of 4 stay free. Until then each step rescinds the offers of the last.
    let all = |value: f64| (value - 1.6).abs() < 1e-6;
    let total = "meseta_agent_revocable_resources{name=\"cpus\"}";
    prometheus.until("the total is scraped", total, all);
    let told = "meseta_master_resources_total_cpus{revocable=\"true\"}";
    prometheus.until("the master's total is scraped", told, all);
    let slack = "meseta_agent_oversubscribed_slack{name=\"cpus\"}";
    prometheus.until("the slack is scraped", slack, |value| value > 1.0);
    let kills = "sum(meseta_agent_qos_corrections_total{action=\"kill\"})";
    prometheus.until("corrections are scraped", kills, |value| value == 0.0);

    let mut borrower = borrower(&cluster);
    let offer = offer_to_borrow(&mut borrower);
    let name = |number: usize| format!("b{number}");
    let task = |number| borrowing(&offer, &name(number), "exec sleep 600", 0.01);
    let tasks: Vec<_> = (0..EVICTED).map(task).collect();
    borrower.launch(&offer, &tasks);
    for number in 0..EVICTED {
        borrower.until_state(&name(number), "TASK_RUNNING");
    }
    let held = "meseta_agent_revocable_allocated{name=\"cpus\"}";
    prometheus.until("what is borrowed is scraped", held, |value| value > 0.1);
    set(&proc, "loadavg", "0.10 6.01 0.10 1/80 4242\n");
    for number in 0..EVICTED {
        let status = wait_end(&mut borrower, &name(number));
        assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    }
    let all = |value: f64| (value - 12.0).abs() < 1e-6;
    prometheus.until("all evictions are scraped", kills, all);
    let alert = prometheus.until_firing("MesetaBorrowersEvictedOften");
    assert_eq!(alert["labels"]["detector"], "load-5min", "{alert:#}");
}

/// Beside the binary under test, where examples are built.
fn rust_example() -> PathBuf {
    let binary = meseta_tests::daemon::binary();
    binary.with_file_name("examples").join("plugin")
}

fn unless_rust() -> Missing {
    let built = rust_example().is_file();
    let how = "needs `cargo build -p meseta-tests --example plugin`".to_owned();
    unless_root().or_else(|| (!built).then_some(how))
}

fn unless_python() -> Missing {
    unless_root().or_else(|| crate::clients::unless_imports("grpc_tools"))
}

fn plugin(mut command: Command, socket: &Path) -> Running {
    let child = command
        .arg(format!("--socket={}", socket.display()))
        .args(["--share=0.5", "--load=6"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the plug-in runs");
    let running = Running(child);
    wait::eventually("the plug-in serves", PATIENCE, || {
        socket.exists().then_some(())
    });
    running
}

/// A cluster whose agent asks a plug-in about everything.
fn with_plugin(proc: &Path, socket: &Path) -> Cluster {
    cluster(vec![
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        format!("--resource_estimator=unix://{}", socket.display()),
        format!("--qos_controller=unix://{}", socket.display()),
        format!("--host_proc={}", proc.display()),
        "--oversubscribed_resources_interval=500ms".to_owned(),
        "--monitor_interval=200ms".to_owned(),
    ])
}

/// Half of what a regular task of 2 cpus was promised is lent, and taken back when the load is high.
fn lends_and_evicts(cluster: &Cluster, proc: &Path) {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let resting = task(
        &offer,
        "r",
        "exec sleep 600",
        &[("cpus", 2.0), ("mem", 32.0)],
    );
    launch_and_be_content(&regular, &offer, &[resting]);
    regular.until_state("r", "TASK_RUNNING");
    let mut borrower = borrower(cluster);
    let offer = offer_to_borrow(&mut borrower);
    assert_eq!(amount(&offer, "cpus", true), 1.0, "{offer:#}");
    borrower.launch(&offer, &[borrowing(&offer, "b", "exec sleep 600", 0.5)]);
    borrower.until_state("b", "TASK_RUNNING");
    set(proc, "loadavg", "9.00 7.50 1.00 1/80 4242\n");
    let status = wait_end(&mut borrower, "b");
    assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("the load of 5 minutes is 7.5"),
        "in its own words: {message}"
    );
    set(proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
}

fn rust_plugin() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proc, socket) = (machine(dir.path()), dir.path().join("plugin.sock"));
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    let serving = plugin(Command::new(rust_example()), &socket);
    let cluster = with_plugin(&proc, &socket);
    lends_and_evicts(&cluster, &proc);
    // It dies: nothing is lent any more, and everything else goes on.
    drop(serving);
    wait::eventually("nothing is lent", PATIENCE, || {
        let agents = cluster.master.page("/slaves").json();
        let lent = agents["slaves"][0]["resources"]["cpus_revocable"].as_f64();
        (lent.unwrap_or(0.0) == 0.0).then_some(())
    });
    let failures =
        "meseta_agent_plugin_failures_total{plugin=\"resource_estimator\",kind=\"unreachable\"}";
    wait::eventually("the failures are counted", PATIENCE, || {
        (metric(&cluster, failures)? > 0.0).then_some(())
    });
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root).len(),
        1,
        "the regular task"
    );
}

fn python_plugin() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proc, socket) = (machine(dir.path()), dir.path().join("plugin.sock"));
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(crate::clients::installed_python());
    command
        .arg(repository.join("docs/examples/plugin.py"))
        .arg(format!(
            "--proto={}",
            repository.join("proto/proto").display()
        ));
    let _serving = plugin(command, &socket);
    let cluster = with_plugin(&proc, &socket);
    lends_and_evicts(&cluster, &proc);
}
