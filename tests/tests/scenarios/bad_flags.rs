//! First mistakes on the command line: each says what was wrong, where, and what would be right.

use std::process::Command;
use std::time::Duration;

use meseta_tests::daemon::{binary, refused};
use meseta_tests::{kernel, unless_root, wait};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        ten_kinds_of_malformed_resources,
        an_unknown_flag_suggests_the_near_one,
        a_port_in_use,
        a_work_dir_that_cannot_be_written,
        a_master_that_answers_nothing,
        an_address_beyond_loopback_needs_a_word,
        values_out_of_range;
    unless_root:
        a_cgroups_root_that_leads_out;
    anywhere:
        estimators_and_controllers;
}

fn agent(flags: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = vec!["--port=0", "--master=127.0.0.1:1"];
    all.extend(flags);
    refused("agent", dir.path(), &all)
}

fn ten_kinds_of_malformed_resources() {
    for (text, word) in [
        ("cpus", "cpus"),
        ("cpus:", "cpus"),
        (":4", ":"),
        ("cpus:4;mem:1:2", "mem"),
        ("cpus(ads:4", "("),
        ("cpus:-1", "cpus"),
        ("cpus:NaN", "cpus"),
        ("ports:[5-1]", "5-1"),
        ("ports:[1-2", "["),
        ("cpus:1;cpus:[1-2]", "cpus"),
        ("cpus(*/..):1", "Role"),
        ("zones:{a,a}", "a"),
        ("gpus:0.5", "gpus"),
        ("[{\"name\":\"cpus\"}]", "type"),
        ("[{\"name\":\"cpus\",", "JSON"),
        ("cpus:1e999", "cpus"),
        // Each with the cure.
        ("{\"name\":\"cpus\"}", "write a list of resources, [{...}]"),
        ("ports:5", "ports:[31000-32000]"),
        ("cpus:{a}", "cpus:4"),
        ("mem:[1-2]", "mem:4"),
        ("disk:{a}", "disk:4"),
        ("my bugs:{a}", "letters, digits"),
        ("b\u{fc}gs:{a}", "letters, digits"),
    ] {
        let said = agent(&[&format!("--resources={text}")]);
        assert!(
            said.contains("resources") && said.contains(word),
            "{text}: {said}"
        );
    }
}

fn an_unknown_flag_suggests_the_near_one() {
    let said = agent(&["--resorces=cpus:1"]);
    assert!(
        said.contains("--resorces") && said.contains("--resources"),
        "{said}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let said = refused("master", dir.path(), &["--alocation_interval=1secs"]);
    assert!(said.contains("--allocation_interval"), "{said}");
}

fn a_port_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let flag = format!("--port={port}");
    for (verb, flags) in [
        ("master", vec![flag.as_str()]),
        ("agent", vec![flag.as_str(), "--master=127.0.0.1:1"]),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let said = refused(verb, dir.path(), &flags);
        assert!(
            said.contains(&port.to_string()) && said.contains("in use"),
            "{verb}: {said}"
        );
    }
}

fn a_work_dir_that_cannot_be_written() {
    // A file where the directory should be: not writable for root either.
    let file = tempfile::NamedTempFile::new().expect("a file");
    let dir = file.path().join("state");
    for (verb, flags) in [
        ("master", vec!["--port=0"]),
        ("agent", vec!["--port=0", "--master=127.0.0.1:1"]),
    ] {
        let said = refused(verb, &dir, &flags);
        assert!(
            said.contains("work_dir") || said.contains(&dir.display().to_string()),
            "{verb}: {said}"
        );
    }
}

/// The agent does not give up: it says so and serves its own pages; so does a verb, which ends.
fn a_master_that_answers_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let root = format!("meseta-test-silent-{}", std::process::id());
    let address = silent.local_addr().expect("an address").to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let flags = [
        "--port=0".to_owned(),
        format!("--master={address}"),
        "--resources=cpus:1;mem:64".to_owned(),
        format!("--runtime_dir={}", dir.path().join("run").display()),
        format!("--cgroups_root={root}"),
    ];
    let mut agent = meseta_tests::daemon::Daemon::start("agent", &dir.path().join("agent"), &flags);
    agent.page("/health");
    wait::eventually(
        "the log names the master that does not answer",
        Duration::from_secs(30),
        || agent.log_text().contains(&address).then_some(()),
    );
    agent.terminate(Duration::from_secs(10));
    let left = kernel::groups_below(&root);
    kernel::remove_groups(&root);
    let runtime: Vec<_> = std::fs::read_dir(dir.path().join("run"))
        .map(|entries| entries.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    assert_eq!(
        runtime,
        Vec::<std::path::PathBuf>::new(),
        "nor runtime files"
    );
    assert_eq!(
        left,
        Vec::<std::path::PathBuf>::new(),
        "an agent without tasks leaves no groups"
    );
    drop(silent);
    let output = Command::new(binary())
        .args(["agents", &format!("--master={address}")])
        .output()
        .expect("meseta runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains(&address),
        "{said}"
    );
}

fn an_address_beyond_loopback_needs_a_word() {
    let dir = tempfile::tempdir().expect("a directory");
    for (verb, flags) in [
        ("master", vec!["--port=0", "--ip=0.0.0.0"]),
        (
            "agent",
            vec!["--port=0", "--ip=0.0.0.0", "--master=127.0.0.1:1"],
        ),
    ] {
        let said = refused(verb, dir.path(), &flags);
        assert!(said.contains("--insecure"), "{verb}: {said}");
    }
}

fn values_out_of_range() {
    let dir = tempfile::tempdir().expect("a directory");
    for (flag, word) in [
        ("--allocation_interval=soon", "soon"),
        ("--allocation_interval=-1secs", "-1"),
        ("--weights=ads", "ads"),
        ("--weights=ads=0", "ads"),
        ("--weights=ads=NaN", "ads"),
        ("--port=70000", "70000"),
        ("--registry=papyrus", "papyrus"),
        ("--agent_ping_timeout=0secs", "agent_ping_timeout"),
    ] {
        let said = refused("master", dir.path(), &[flag]);
        assert!(said.contains(word), "{flag}: {said}");
    }
    for (flag, word) in [
        ("--attributes=rack", "rack"),
        ("--attributes=rack:{a,b}", "rack"),
        ("--isolation=cgroups/teleport", "teleport"),
        ("--isolation=cgroups/cpu,cgroups/cpu", "cgroups/cpu"),
        ("--master=nonsense:port:here", "master"),
    ] {
        let said = agent(&[flag]);
        assert!(said.contains(word), "{flag}: {said}");
    }
}

/// As an ordinary user there are no cgroups, and the flag means nothing.
fn a_cgroups_root_that_leads_out() {
    for path in ["../up", "/absolute", "a/../b"] {
        let said = agent(&[&format!("--cgroups_root={path}")]);
        assert!(
            said.contains("cgroups root") && said.contains(path),
            "{path}: {said}"
        );
    }
}

/// Estimators and controllers: unknown names, and parameters that make no sense.
fn estimators_and_controllers() {
    for (flag, words) in [
        ("--resource_estimator=slak", ["slak", "slack"]),
        (
            "--resource_estimator=max(slack,tresholds)",
            ["tresholds", "threshold"],
        ),
        (
            "--resource_estimator=max(slack",
            ["max(slack", "resource_estimator"],
        ),
        (
            "--resource_estimator=org_example_Mine",
            ["org_example_Mine", "unix:///"],
        ),
        (
            "--resource_estimator=unix://e.sock",
            ["e.sock", "unix:///path.sock"],
        ),
        (
            "--resource_estimator=https://host:1",
            ["https://host:1", "http://host:port"],
        ),
        ("--qos_controller=lode", ["lode", "load"]),
        ("--resource_estimator=fixed", ["fixed", "resources"]),
        (
            "--qos_controller=load",
            ["load_threshold_5min", "load_threshold_15min"],
        ),
        ("--modules={", ["--modules", "JSON"]),
        (
            "--modules_dir=/nonexistent",
            ["--modules_dir", "/nonexistent"],
        ),
        (
            "--qos_correction_interval_min=-1secs",
            ["-1secs", "qos_correction_interval_min"],
        ),
        (
            "--oversubscribed_resources_interval=soon",
            ["soon", "oversubscribed_resources_interval"],
        ),
    ] {
        let said = agent(&[flag]);
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{flag}: {said}"
        );
    }
    for (module, key, value, word) in [
        ("load", "load_threshold_5min", "-1", "-1"),
        ("load", "load_threshold_5min", "NaN", "NaN"),
        ("load", "load_threshold_15min", "inf", "inf"),
        ("load", "load_threshold_5min", "six", "six"),
        ("load", "load_treshold_5min", "6", "load_threshold_5min"),
        ("load", "load_threshold_1min", "6", "load_threshold_1min"),
        ("pressure", "cpu_util_kill", "0.1", "cpu_util"),
        ("pressure", "mem_target", "NaN", "mem_target"),
        ("pressure", "psi_cpu_hold", "-5secs", "psi_cpu_hold"),
    ] {
        let flag = modules(module, key, value);
        let said = agent(&[&format!("--qos_controller={module}"), &flag]);
        assert!(said.contains(word), "{flag}: {said}");
    }
    for (module, key, value, word) in [
        ("fixed", "resources", "cpus:-1", "cpus"),
        ("fixed", "resources", "cpus", "cpus"),
        ("fixed", "resource", "cpus:1", "resources"),
        ("slack", "floor_margin", "1.5", "floor_margin"),
        ("slack", "cpu_percentile", "NaN", "cpu_percentile"),
        ("slack", "cpu_half_life", "-1hrs", "cpu_half_life"),
        ("nsigma", "n", "-3", "n"),
        ("threshold", "mem_threshold", "-1", "mem_threshold"),
    ] {
        let flag = modules(module, key, value);
        let said = agent(&[&format!("--resource_estimator={module}"), &flag]);
        assert!(said.contains(word), "{flag}: {said}");
    }
}

fn modules(module: &str, key: &str, value: &str) -> String {
    let parameter = serde_json::json!({"key": key, "value": value});
    let modules = serde_json::json!({"name": module, "parameters": parameter});
    format!(
        "--modules={}",
        serde_json::json!({"libraries": {"modules": modules}})
    )
}
