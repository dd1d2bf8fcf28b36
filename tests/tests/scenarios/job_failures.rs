//! Jobs that fail or wait on a real cluster: `meseta run`, `meseta job status` and the fields that the page shows name each cause.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use meseta_tests::daemon::binary;
use meseta_tests::jobs::Scheduler;
use meseta_tests::{Cluster, Setup, http, unless_root};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_root:
        run_status_and_page_name_failures;
}

/// For so long a job that waits is followed.
const TIMEOUT: &str = "--timeout=10secs";

/// A job of one task that is tried once, with these fields of its own.
fn job(name: &str, own: &Value) -> Value {
    let mut job = json!({
        "name": name,
        "kind": "batch",
        "task": { "command": "true" },
        "resources": { "cpus": 0.1, "mem": "32MB" },
        "batch": { "retries": 0 },
    });
    for (key, value) in own.as_object().into_iter().flatten() {
        job[key] = value.clone();
    }
    job
}

/// Each job, and the text that names its failure; several texts are divided by `|`.
fn failures(dir: &Path) -> Vec<(Value, &'static str)> {
    let command = |command: &str| json!({ "task": { "command": command } });
    let uri = |uri: String| json!({ "task": { "command": "true", "uris": [uri] } });
    let needs = |name: &str, amount: Value| {
        let mut resources = json!({ "cpus": 0.1, "mem": "32MB" });
        resources[name] = amount;
        json!({ "resources": resources })
    };
    let on_rack = json!({ "constraints": [{ "attribute": "rack", "equals": "r9" }] });
    let limited = json!({ "role": "limited", "resources": { "cpus": 1, "mem": "32MB" } });
    let timed = json!({
        "task": { "command": "exec sleep 100" }, "batch": { "retries": 0, "timeout": "1secs" },
    });
    let checked = json!({
        "kind": "service", "batch": null, "task": { "command": "exec sleep 100" },
        "check": { "command": "exit 1", "interval": "200ms", "failures": 1, "grace": "0secs" },
    });
    let archive = dir.join("broken.tar.gz");
    std::fs::write(&archive, "no archive").expect("written");
    let archive = archive.display().to_string();
    let all = [
        ("exit", command("exit 3"), "Command exited with status 3"),
        ("signal", command("kill -SEGV $$"), "Segmentation fault"),
        ("memory", command("exec tail /dev/zero"), "out of memory"),
        ("missing", command("exec /nowhere/program"), "status 127"),
        (
            "user",
            json!({ "task": { "command": "true", "user": "nobody-of-this-name" } }),
            "nobody-of-this-name",
        ),
        (
            "file",
            uri("file:///nowhere/file".to_owned()),
            "/nowhere/file",
        ),
        (
            "host",
            uri("http://127.0.0.1:1/x".to_owned()),
            "127.0.0.1:1",
        ),
        ("archive", uri(archive), "broken.tar.gz"),
        // The agent ends the task in time, or the scheduler where the agent is late.
        (
            "timed",
            timed,
            "maximum completion time|its run took too long",
        ),
        ("checked", checked, "its health checks failed"),
        (
            "cpus",
            needs("cpus", json!(64)),
            "it needs 64 cpus, and the largest agent has 2",
        ),
        ("mem", needs("mem", json!("1TB")), "it needs 1048576 mem"),
        (
            "gpus",
            needs("gpus", json!(1)),
            "it needs 1 gpus, and no agent has any",
        ),
        ("rack", on_rack, "rack"),
        ("limited", limited, "role 'limited' has"),
        (
            "unlisted",
            json!({ "role": "unlisted" }),
            "the master refuses role",
        ),
        (
            "early",
            json!({ "after": ["nothing"] }),
            "nothing, which does not exist yet",
        ),
        ("late", json!({ "after": ["exit"] }), "it starts after exit"),
    ];
    let all = all.into_iter();
    all.map(|(name, own, text)| (job(name, &own), text))
        .collect()
}

fn run(scheduler: &Scheduler, dir: &Path, job: &Value) -> Child {
    let file = dir.join(format!("{}.json", job["name"].as_str().expect("a name")));
    let mut job = job.clone();
    if job["batch"].is_null() {
        job.as_object_mut().expect("an object").remove("batch");
    }
    std::fs::write(&file, job.to_string()).expect("written");
    Command::new(binary())
        .arg("run")
        .arg(&file)
        .args([TIMEOUT, "--scheduler", scheduler.daemon.address()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("meseta runs")
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

fn run_status_and_page_name_failures() {
    let cluster = Cluster::start(Setup {
        master_flags: vec!["--roles=limited".to_owned()],
        agent_flags: vec!["--resources=cpus:2;mem:2048;disk:2048".to_owned()],
        ..Setup::default()
    });
    let limits = json!({ "cpus": { "value": 0.5 } });
    let quota = json!({ "quota_configs": [{ "role": "limited", "limits": limits }] });
    let answer = cluster.operate("UPDATE_QUOTA", &quota);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let scheduler = Scheduler::start(&cluster);
    let failures = failures(cluster.dir.path());
    let runs = failures.iter();
    let runs: Vec<Child> = runs
        .map(|(job, _)| run(&scheduler, cluster.dir.path(), job))
        .collect();
    let mut wrong = Vec::new();
    for ((job, text), run) in failures.iter().zip(runs) {
        let name = job["name"].as_str().expect("a name");
        let run = run.wait_with_output().expect("it ends");
        let status = Command::new(binary())
            .args([
                "job",
                "--scheduler",
                scheduler.daemon.address(),
                "status",
                name,
            ])
            .output()
            .expect("meseta runs");
        // The page shows these three fields.
        let shown = http::get(&format!("{}/v1/jobs/{name}", scheduler.daemon.url)).json();
        let page = format!(
            "{} {} {}",
            shown["why"], shown["last_failure"]["text"], shown["obstacles"]
        );
        let seen = [
            ("run", text_of(&run)),
            ("status", text_of(&status)),
            ("page", page),
        ];
        for (place, seen) in seen {
            let is_named = |line: &str| text.split('|').any(|text| line.contains(text));
            if !seen.lines().any(is_named) {
                wrong.push(format!("{place} of {name} does not say {text:?}: {seen}"));
            }
        }
        if run.status.code() != Some(1) {
            wrong.push(format!("run of {name} ended with {}", run.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
