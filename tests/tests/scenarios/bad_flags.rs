//! First mistakes on the command line: each message names the mistake, its place, and the remedy.

use std::process::Command;
use std::time::Duration;

use meseta_tests::daemon::{binary, refused};
use meseta_tests::{kernel, unless_root, wait};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        unknown_flag_suggests_similar_flag,
        parameters_of_modules,
        silent_master_is_reported;
    unless_root:
        cgroups_root_outside_is_refused;
}

fn agent(flags: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = vec!["--port=0", "--master=127.0.0.1:1"];
    all.extend(flags);
    refused("agent", dir.path(), &all)
}

fn unknown_flag_suggests_similar_flag() {
    let said = agent(&["--resorces=cpus:1"]);
    assert!(
        said.contains("--resorces") && said.contains("--resources"),
        "{said}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let said = refused("master", dir.path(), &["--alocation_interval=1secs"]);
    assert!(said.contains("--allocation_interval"), "{said}");
}

/// Estimators and controllers get their parameters from --modules; the estimators' crate decides which are refused.
fn parameters_of_modules() {
    for (flag, module, key, value) in [
        ("--resource_estimator=slack", "slack", "floor_margin", "1.5"),
        ("--qos_controller=load", "load", "load_threshold_5min", "-1"),
    ] {
        let parameter = serde_json::json!({"key": key, "value": value});
        let modules = serde_json::json!({"name": module, "parameters": parameter});
        let modules = serde_json::json!({"libraries": {"modules": modules}});
        let said = agent(&[flag, &format!("--modules={modules}")]);
        assert!(said.contains(key) && said.contains(value), "{said}");
    }
}

/// The agent does not give up: it reports the fault and serves its own pages; so does a verb, which ends.
fn silent_master_is_reported() {
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
    // The message comes after thirty seconds; the connection itself is no reason.
    wait::eventually(
        "the log names the master that does not answer",
        Duration::from_secs(90),
        || {
            let log = agent.log_text();
            let mut warnings = log.lines().filter(|line| line.contains(" WARN "));
            warnings.any(|line| line.contains(&address)).then_some(())
        },
    );
    agent.terminate(Duration::from_secs(10));
    wait::holds(Duration::from_secs(10), || {
        kernel::groups_below(&root).is_empty()
    });
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

/// An ordinary user has no cgroups, so the flag has no effect.
fn cgroups_root_outside_is_refused() {
    for path in ["../up", "/absolute", "a/../b"] {
        let said = agent(&[&format!("--cgroups_root={path}")]);
        assert!(
            said.contains("cgroups root") && said.contains(path),
            "{path}: {said}"
        );
    }
}
