//! The wall clock of an agent is set ahead, set back, or stands still: no task ends because of that, and graces and ages of
//! sandboxes stay as they would have been.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meseta_tests::daemon::free_port;
use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, Missing, Setup, kernel, unless_root, wait};
use serde_json::{Value, json};

use crate::enforcement::standing_offer;

meseta_tests::scenarios! {
    unless_faketime:
        clock_jump_ends_nothing_early;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(3);

/// Returns the library that intercepts an agent's calls for the time of day.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let libraries = folders.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    libraries.into_iter().find(|path| path.is_file())
}

fn unless_faketime() -> Missing {
    let missing = || Some("needs `faketime`, which is not installed".to_owned());
    unless_root().or_else(|| faketime().map_or_else(missing, |_| None))
}

/// Starts a cluster whose agent reads the time of day from this file: `+0`, `+3600`, or a fixed time.
fn cluster_with_clock(clock: &Path) -> Cluster {
    let variable = |name: &str, value: &str| format!("{name}={value}");
    let library = faketime().expect("it is installed").display().to_string();
    Cluster::start(Setup {
        agent_port: Some(free_port()),
        agent_flags: vec![
            "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
            // The delay is less than an hour and more than the test takes, at every fill level of the disk.
            "--gc_delay=30mins".to_owned(),
            "--gc_disk_headroom=0".to_owned(),
            "--disk_watch_interval=200ms".to_owned(),
        ],
        agent_prefix: vec![
            "env".to_owned(),
            variable("LD_PRELOAD", &library),
            variable("FAKETIME_TIMESTAMP_FILE", &clock.display().to_string()),
            variable("FAKETIME_NO_CACHE", "1"),
            variable("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ],
        ..Setup::default()
    })
}

/// Returns a task that is checked every half second and ignores SIGTERM.
fn checked(offer: &Value, id: &str) -> Value {
    let command = "trap '' TERM; while :; do sleep 0.1; done";
    let mut info = task(offer, id, command, SMALL);
    info["health_check"] = json!({"type": "COMMAND", "command": {"value": "true"},
        "delay_seconds": 0.0, "interval_seconds": 0.5, "timeout_seconds": 60.0,
        "grace_period_seconds": 0.0, "consecutive_failures": 1});
    let grace_ns = u64::try_from(GRACE.as_nanos()).expect("short");
    info["kill_policy"] = json!({"grace_period": {"nanoseconds": grace_ns}});
    info
}

fn launch(framework: &mut Framework, id: &str, limit: Option<Duration>) -> i32 {
    let offer = standing_offer(framework);
    let mut info = checked(&offer, id);
    if let Some(limit) = limit {
        let limit_ns = u64::try_from(limit.as_nanos()).expect("short");
        info["max_completion_time"] = json!({"nanoseconds": limit_ns});
    }
    framework.launch(&offer, &[info]);
    let status = framework.until_state(id, "TASK_RUNNING");
    let pid = status["container_status"]["executor_pid"].as_i64();
    i32::try_from(pid.expect("a pid")).expect("a pid")
}

fn clock_jump_ends_nothing_early() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = dir.path().join("clock");
    let set = |text: &str| std::fs::write(&clock, text).expect("written");
    set("+0");
    let mut cluster = cluster_with_clock(&clock);
    let mut framework = cluster.framework();
    let steady = launch(&mut framework, "steady", None);
    let born = kernel::start_time(steady);
    assert!(born.is_some(), "it lives");
    let offer = standing_offer(&mut framework);
    framework.launch_task(&offer, "ended", "true", SMALL);
    framework.until_state("ended", "TASK_FINISHED");
    for (number, time) in ["+3600", "-3600", "2026-01-01 00:00:00"].iter().enumerate() {
        let [limited, killed] = ["limited", "killed"].map(|name| format!("{name}-{number}"));
        launch(&mut framework, &limited, Some(GRACE));
        let began = Instant::now();
        launch(&mut framework, &killed, None);
        set(time);
        let status = framework.until_state(&limited, "TASK_FAILED");
        assert_eq!(
            status["reason"], "REASON_MAX_COMPLETION_TIME_REACHED",
            "{time}"
        );
        assert!(
            began.elapsed() + Duration::from_secs(1) >= GRACE,
            "{time}: early"
        );
        // The rest of a grace survives a restart, though the clock has changed in between.
        let asked = Instant::now();
        framework.kill(&killed);
        framework.until_state(&killed, "TASK_KILLING");
        cluster.agents[0].kill();
        set("+0");
        cluster.restart_agent(0);
        framework.until_state(&killed, "TASK_KILLED");
        let took = asked.elapsed();
        assert!(
            took + Duration::from_millis(200) >= GRACE,
            "{time}: after {took:?}"
        );
        assert!(took < 10 * GRACE, "{time}: after {took:?}");
        assert_eq!(kernel::start_time(steady), born, "{time}");
        let sandbox = cluster.agent_dir(0).join(format!(
            "slaves/{}/frameworks/{}/executors/ended/runs",
            cluster.agent_id(),
            framework.id
        ));
        assert!(sandbox.is_dir(), "{time}: collected before its time");
    }
    wait::eventually("the steady task is told healthy", PATIENCE, || {
        let state = cluster.agent().page("/state").json();
        // The last killed task may wait for its acknowledgement.
        let mut executors = state["frameworks"][0]["executors"].as_array()?.iter();
        let executor = executors.find(|executor| executor["id"] == "steady")?;
        let statuses = executor["tasks"][0]["statuses"].to_string();
        statuses.contains("\"healthy\":true").then_some(())
    });
    framework.kill("steady");
    framework.until_state("steady", "TASK_KILLED");
    wait::eventually("nothing is left", PATIENCE, || {
        kernel::tasks_below(&cluster.cgroups_root)
            .is_empty()
            .then_some(())
    });
}
