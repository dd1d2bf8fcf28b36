//! The examples in `docs/examples/jobs`, each run as its first lines describe, and the effect that each shows.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_tests::jobs::Scheduler;
use meseta_tests::network::loopback_url;
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Missing, Setup, http, unless_installed, unless_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::clients::{installed_python, unless_imports};

meseta_tests::scenarios! {
    unless_root:
        the_smallest_service_says_hello,
        array_gang_starts_whole,
        nightly_job_runs_on_time,
        filler_runs_on_revocable_resources_alone;
    unless_python:
        database_keeps_volume_until_purge,
        rolling_web_service_fails_no_request;
    unless_dask:
        a_dask_cluster_adds_numbers;
}

/// The time for an example to reach its shown state on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

fn unless_python() -> Missing {
    unless_root().or_else(|| unless_installed("python3"))
}

fn unless_dask() -> Missing {
    unless_root().or_else(|| unless_imports("distributed"))
}

/// Returns the text of an example.
fn example(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/jobs");
    std::fs::read_to_string(format!("{folder}/{name}.toml")).expect("an example")
}

/// Runs a file with `meseta run`, which ends when its jobs are healthy or complete.
fn run(cluster: &Cluster, scheduler: &Scheduler, text: &str) {
    let file: PathBuf = cluster.dir.path().join("job.toml");
    std::fs::write(&file, text).expect("a file");
    verb(scheduler, &["run", &file.display().to_string()]);
}

/// Runs a verb of jobs and returns its output.
fn verb(scheduler: &Scheduler, arguments: &[&str]) -> String {
    verb_ending_with(0, scheduler, arguments)
}

/// Runs a verb of jobs that ends with this exit code, and returns its output.
fn verb_ending_with(code: i32, scheduler: &Scheduler, arguments: &[&str]) -> String {
    let output = Command::new(meseta_tests::daemon::binary())
        .args(arguments)
        .arg(format!("--scheduler={}", scheduler.daemon.address()))
        .output()
        .expect("meseta runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {printed}{told}"
    );
    printed
}

fn task(scheduler: &Scheduler, job: &str) -> Option<Value> {
    let job = scheduler.job(job)?;
    let running = job["tasks"].as_array()?.iter();
    let mut running = running.filter(|task| task["state"] == "TASK_RUNNING");
    running.next().cloned()
}

/// Returns the URL of a port of a job's first running task.
fn url_of(scheduler: &Scheduler, job: &str, port: &str) -> String {
    let task = task(scheduler, job).expect("a task that runs");
    format!("{}/", loopback_url(number(&task["ports"][port])))
}

fn number(port: &Value) -> u16 {
    let number = port.as_u64().and_then(|port| port.try_into().ok());
    number.expect("a port")
}

pub(super) fn the_smallest_service_says_hello() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    run(&cluster, &scheduler, &example("hello"));
    let master = format!("--master={}", cluster.master.address());
    eventually("it says hello", LIMIT, || {
        let logs = verb(&scheduler, &["job", "logs", "hello", &master]);
        logs.starts_with("hello from ").then_some(())
    });
}

pub(super) fn array_gang_starts_whole() {
    // There is room for three of four tasks: none may start.
    let mut cluster = Cluster::with_resources("cpus:0.3;mem:1024");
    let scheduler = Scheduler::start(&cluster);
    let file = cluster.dir.path().join("gang.toml");
    std::fs::write(&file, example("array-gang")).expect("a file");
    let file = file.display().to_string();
    let plan = verb_ending_with(255, &scheduler, &["plan", &file]);
    assert!(plan.contains("of 4 tasks would fit now"), "{plan}");
    verb(&scheduler, &["run", "--detach", &file]);
    eventually("it holds an offer", LIMIT, || {
        let metrics = cluster.master.page("/metrics").text();
        metrics
            .contains("meseta_master_outstanding_offers 1")
            .then_some(())
    });
    let job = scheduler.job("array-gang").expect("the job");
    assert_eq!((&job["running"], &job["pending"]), (&json!(0), &json!(4)));
    cluster.restart_agent_with(0, &["--resources=cpus:4;mem:1024"]);
    cluster.wait_for_agents(1);
    let job = scheduler.wait_for("array-gang", "complete", 1, LIMIT);
    assert_eq!(job["succeeded"], 4);
}

fn nightly_job_runs_on_time() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    run(&cluster, &scheduler, &example("nightly"));
    let job = scheduler.job("nightly").expect("the job");
    assert_eq!(
        (&job["state"], &job["pending"]),
        (&json!("pending"), &json!(0))
    );
    // The schedule runs each minute instead of each night.
    let each_minute = example("nightly").replace("30 2 * * *", "* * * * *");
    run(&cluster, &scheduler, &each_minute);
    let job = scheduler.wait_for("nightly", "complete", 2, LIMIT);
    assert_eq!(job["succeeded"], 1);
}

fn filler_runs_on_revocable_resources_alone() {
    let estimator = "--resource_estimator=org_apache_mesos_FixedResourceEstimator";
    let modules = r#"--modules={"libraries": {"file": "libfixed_resource_estimator.so", "modules": {
        "name": "org_apache_mesos_FixedResourceEstimator", "parameters": {"key": "resources", "value": "cpus:2"}}}}"#;
    let resources = "--resources=cpus:0.1;mem:4096";
    let cluster = Cluster::start(Setup {
        agent_flags: [
            resources,
            estimator,
            modules,
            "--oversubscribed_resources_interval=1secs",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Setup::default()
    });
    let scheduler = Scheduler::start(&cluster);
    // The intervals are the shortest that a test may have.
    let filler = example("filler").replace("1000000", "1000");
    run(&cluster, &scheduler, &filler);
    let job = scheduler.job("filler").expect("the job");
    assert_eq!(
        (&job["state"], &job["succeeded"]),
        (&json!("complete"), &json!(20))
    );
}

fn rows(scheduler: &Scheduler) -> Option<Value> {
    let task = task(scheduler, "database").filter(|task| task["healthy"] == true)?;
    let url = format!("{}/", loopback_url(number(&task["ports"]["http"])));
    let answer = http::try_get(&url).ok()?;
    (answer.status == 200).then(|| answer.json())
}

/// Returns the processes of a task, by a variable that each of them has.
fn processes(task_id: &str) -> Vec<i32> {
    let variable = format!("MESETA_TASK_ID={task_id}\0");
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&variable)
    })
    .collect()
}

pub(super) fn database_keeps_volume_until_purge() {
    let mut cluster = Cluster::default();
    let mut scheduler = Scheduler::start(&cluster);
    run(&cluster, &scheduler, &example("database"));
    let url = url_of(&scheduler, "database", "http");
    assert_eq!(http::post(&url, &[], b"first").status, 200);
    let has = |scheduler: &Scheduler, what: &str, expected: &Value| {
        eventually(what, LIMIT, || {
            rows(scheduler).filter(|rows| rows == expected).map(|_| ())
        });
    };
    let first = json!(["first"]);
    has(&scheduler, "the row is there", &first);

    let before = task(&scheduler, "database").expect("a task");
    let id = before["task_id"].as_str().expect("an id").to_owned();
    let killed = processes(&id);
    assert!(!killed.is_empty(), "no process of {id}");
    for pid in killed {
        // A parent may have ended the process first.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    eventually("another task runs", LIMIT, || {
        let now = task(&scheduler, "database")?;
        (now["task_id"] != before["task_id"]).then_some(())
    });
    has(&scheduler, "the row outlives a kill", &first);

    // Agent and scheduler end and start: the task continues. Then another version replaces it.
    cluster.restart_agent(0);
    scheduler.restart(&cluster);
    cluster.wait_for_agents(1);
    has(&scheduler, "the row outlives the daemons", &first);
    let changed = example("database").replace("[task]", "[labels]\nchanged = \"yes\"\n[task]");
    run(&cluster, &scheduler, &changed);
    has(&scheduler, "the row outlives an update", &first);

    // A stopped job keeps its volume.
    verb(&scheduler, &["job", "stop", "database"]);
    scheduler.wait_for("database", "stopped", 2, LIMIT);
    let reserved = || {
        let slaves = cluster.master.page("/slaves").json();
        slaves["slaves"][0]["reserved_resources_full"]["data"].clone()
    };
    let labels = reserved().to_string();
    assert!(
        labels.contains("meseta.volume") && labels.contains("database"),
        "{labels}"
    );
    run(&cluster, &scheduler, &changed);
    has(&scheduler, "the row outlives a stop", &first);

    verb(&scheduler, &["job", "stop", "database", "--purge"]);
    eventually("nothing is reserved", LIMIT, || {
        let volumes = http::get(&format!("{}/v1/volumes", scheduler.daemon.url)).json();
        let is_done = reserved().is_null() && volumes == json!({ "volumes": [] });
        is_done.then_some(())
    });
    eventually("the job is forgotten", LIMIT, || {
        scheduler.job("database").is_none().then_some(())
    });
    let folder = cluster.dir.path().join("agent-0/volumes/roles/data");
    eventually("the data is gone", LIMIT, || {
        let left = std::fs::read_dir(&folder).map_or(0, Iterator::count);
        (left == 0).then_some(())
    });
}

pub(super) fn rolling_web_service_fails_no_request() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    run(&cluster, &scheduler, &example("web"));
    let url = url_of(&scheduler, "web-proxy", "http");
    let answer = || http::try_get(&url).map(|answer| (answer.status, answer.text()));
    assert_eq!(
        answer().expect("an answer"),
        (200, "version 1\n".to_owned())
    );
    let changed = example("web").replace("version 1", "version 2");
    let file = cluster.dir.path().join("job.toml");
    std::fs::write(&file, changed).expect("a file");
    verb(
        &scheduler,
        &["run", "--detach", &file.display().to_string()],
    );
    let end = Instant::now() + LIMIT;
    let mut in_a_row = 0;
    // Wait until the new version has answered often enough that no old instance can be left.
    while in_a_row < 50 {
        let (status, text) = answer().expect("an answer");
        assert_eq!(status, 200, "{text}");
        in_a_row = if text == "version 2\n" {
            in_a_row + 1
        } else {
            0
        };
        assert!(Instant::now() < end, "still {text}");
    }
    scheduler.wait_for("web", "healthy", 2, LIMIT);
}

fn a_dask_cluster_adds_numbers() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    let python = installed_python().display().to_string();
    let text = example("dask").replace("python3 -m", &format!("{python} -m"));
    run(&cluster, &scheduler, &text);
    let task = task(&scheduler, "dask-scheduler").expect("the scheduler");
    let script = format!(
        "from distributed import Client\n\
         client = Client('127.0.0.1:{}')\n\
         client.wait_for_workers(2, timeout=60)\n\
         print(sum(client.gather(client.map(lambda x: x * x, range(10)))))",
        task["ports"]["scheduler"]
    );
    let output = Command::new(&python).args(["-c", &script]).output();
    let output = output.expect("python runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "285\n", "{told}");
}
