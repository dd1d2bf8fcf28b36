//! The command line of a new user: similar names, short units, parts of ids, narrow terminals.

use std::process::{Command, Output};
use std::time::Duration;

use meseta_tests::daemon::binary;
use meseta_tests::framework::{framework_info, task};
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Setup, unless_root};
use serde_json::Value;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        execute_accepts_common_spellings,
        a_task_is_told_whole;
    anywhere:
        drain_names_remaining_tasks,
        limit_applies_after_decline;
    unless_root:
        detached_task_is_found_and_killed;
    anywhere:
        terminated_execute_ends_its_task;
    unless_root:
        host_volume_is_visible_to_task;
    anywhere:
        lost_agents_are_listed_with_time;
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn execute_accepts_common_spellings() {
    let cluster = Cluster::default();
    let small = "--resources=cpus:0.1;mem:32M";
    let words = ["-q", small, "--timeout=60s", "--", "echo", "a  b", "$HOME"];
    let output = cluster.meseta("execute", &words);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "a  b $HOME\n");
    assert_eq!(err(&output), "", "quiet");
    let output = cluster.meseta("execute", &["--command=true", "--resources=cpu:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("write \"cpus"), "{}", err(&output));
    // The port is the agent's own.
    let output = Command::new(binary())
        .args(["agents", &format!("--master={}", cluster.agent().address())])
        .output()
        .expect("meseta runs");
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
}

fn a_task_is_told_whole() {
    let cluster = Cluster::default();
    let small = "--resources=cpus:0.1;mem:32";
    let output = cluster.meseta(
        "execute",
        &["--name=fails", "--command=echo said; exit 3", small],
    );
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    // The complete output comes before the message about the end.
    assert_eq!(out(&output), "said\n");
    let json = cluster.meseta("tasks", &["--json", "--state=failed"]);
    let json: Value = serde_json::from_str(&out(&json)).expect("JSON");
    let message = json[0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("exited with status 3"), "{json:#}");
    assert!(json[0].get("reason").is_some(), "{json:#}");
    let described = out(&cluster.meseta("task", &["fails"]));
    for expected in [
        "exit code  3",
        "TASK_FAILED\n",
        "--- the last of stdout\nsaid",
    ] {
        assert!(described.contains(expected), "{expected}: {described}");
    }
    let none = cluster.meseta("task", &["nosuch"]);
    assert_eq!(none.status.code(), Some(1));
    for width in [80, 200] {
        for verb in ["tasks", "agents", "frameworks", "roles"] {
            let output = Command::new(binary())
                .args([verb, &format!("--master={}", cluster.master.address())])
                .env("COLUMNS", width.to_string())
                .output()
                .expect("meseta runs");
            let text = out(&output);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(
                widest.is_some_and(|widest| widest <= width),
                "{width}: {text}"
            );
        }
    }
    // An agent is named by the unique part of its id.
    let output = cluster.meseta("deactivate", &["S0"]);
    assert!(output.status.success(), "{}", err(&output));
}

fn drain_names_remaining_tasks() {
    let cluster = Cluster::default();
    let mut framework = cluster.subscribe(&framework_info("eng"));
    let offer = framework.offer();
    framework.run_task(&offer, "t1", "sleep 1000", &[("cpus", 0.5), ("mem", 32.0)]);
    let output = cluster.meseta("drain", &["S0"]);
    assert!(output.status.success(), "{}", err(&output));
    let killing = framework.update("t1");
    assert_eq!(killing["state"], "TASK_KILLING");
    framework.acknowledge(&killing);
    assert_eq!(framework.update("t1")["state"], "TASK_KILLED");
    let output = cluster.meseta("drain", &["S0", "--wait", "--timeout=3s"]);
    let said = out(&output);
    assert_eq!(output.status.code(), Some(124), "{said}{}", err(&output));
    let named = format!(
        "framework {} (test) has not acknowledged the end of t1",
        framework.id
    );
    assert!(said.contains(&named), "{said}");
    assert!(
        said.contains(&format!("meseta teardown {}", framework.id)),
        "{said}"
    );
    // The suggested remedy works.
    let output = cluster.meseta("teardown", &[&framework.id]);
    assert!(output.status.success(), "{}", err(&output));
    eventually("the agent is drained", Duration::from_secs(30), || {
        let agents = out(&cluster.meseta("agents", &[]));
        agents.contains("drained").then_some(())
    });
}

fn limit_applies_after_decline() {
    let cluster = Cluster::default();
    let output = cluster.meseta("quota", &["set", "eng", "--limit=cpus:1"]);
    assert!(output.status.success(), "{}", err(&output));
    let mut framework = cluster.subscribe(&framework_info("eng"));
    let offer = framework.offer();
    framework.decline(&offer, 3_600.0);
    eventually("the limit is named", Duration::from_secs(20), || {
        let said = out(&cluster.meseta("explain", &["--framework", &framework.id]));
        (said.contains("cpus of its limit of 1") && !said.contains("declined")).then_some(())
    });
}

/// Returns the states of all tasks from `/tasks`.
fn states(cluster: &Cluster) -> Vec<String> {
    let page = cluster.master.page("/tasks").json();
    let tasks = page["tasks"].as_array().expect("a list").iter();
    tasks
        .map(|task| task["state"].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn detached_task_is_found_and_killed() {
    let cluster = Cluster::default();
    let small = "--resources=cpus:0.1;mem:32";
    let output = cluster.meseta(
        "execute",
        &["-d", "--name=web", "--command=echo told; sleep 1000", small],
    );
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let id = out(&output).trim().to_owned();
    assert!(id.starts_with("web-"), "the id, for programs: {id}");
    assert_eq!(states(&cluster), ["TASK_RUNNING"]);
    let names = out(&cluster.meseta("names", &["tasks"]));
    assert_eq!(names, format!("{id}\n"), "for completions");
    let inside = cluster.meseta(
        "exec",
        &["web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    assert_eq!(
        (out(&inside), err(&inside)),
        ("out\n".to_owned(), "err\n".to_owned())
    );
    assert_eq!(inside.status.code(), Some(7));
    let mut unread = Command::new(binary())
        .args(["exec", "--master", cluster.master.address(), "web"])
        .args(["--", "yes"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("meseta runs");
    drop(unread.stdout.take());
    let status = unread.wait().expect("it ends");
    assert_eq!(status.code(), Some(141), "as shells report SIGPIPE");
    let killed = cluster.meseta("kill", &["web"]);
    assert_eq!(killed.status.code(), Some(0), "{}", err(&killed));
    eventually("the task is killed", Duration::from_secs(20), || {
        (states(&cluster) == ["TASK_KILLED"]).then_some(())
    });
    let again = cluster.meseta("kill", &["web"]);
    assert!(err(&again).contains("has ended"), "{}", err(&again));
    // A foreign task can only be ended by its framework.
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let other = task(
        &offer,
        "other",
        "sleep 1000",
        &[("cpus", 0.1), ("mem", 32.0)],
    );
    framework.launch(&offer, &[other]);
    framework.until_state("other", "TASK_RUNNING");
    let refused = cluster.meseta("kill", &["other"]);
    assert_eq!(refused.status.code(), Some(1));
    let cure = format!("`meseta teardown {}` ends the framework", framework.id);
    assert!(err(&refused).contains(&cure), "{}", err(&refused));
}

fn terminated_execute_ends_its_task() {
    let cluster = Cluster::default();
    let mut execute = Command::new(binary())
        .args([
            "execute",
            &format!("--master={}", cluster.master.address()),
            "--resources=cpus:0.1;mem:32",
            "--command=sleep 1000",
        ])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("meseta runs");
    eventually("the task runs", Duration::from_secs(20), || {
        (states(&cluster) == ["TASK_RUNNING"]).then_some(())
    });
    let pid = i32::try_from(execute.id()).expect("a pid");
    meseta_tests::kernel::kill(pid, nix::sys::signal::Signal::SIGTERM);
    let status = execute.wait().expect("it ends");
    assert_eq!(status.code(), Some(143), "as shells report SIGTERM");
    // The state is already final: the command waits for its task's end.
    assert_eq!(states(&cluster), ["TASK_KILLED"]);
}

fn host_volume_is_visible_to_task() {
    let cluster = Cluster::default();
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("note"), "from outside\n").expect("written");
    let volume = format!("--volume={}:data:ro", dir.path().display());
    let small = "--resources=cpus:0.1;mem:32";
    let command = "--command=cat data/note; ! touch data/more 2>/dev/null";
    let output = cluster.meseta("execute", &["-q", small, &volume, command]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "from outside\n");
    let output = cluster.meseta("execute", &[small, "--volume=data", "--command=true"]);
    assert!(
        err(&output).contains("--volume=data: write /path"),
        "{}",
        err(&output)
    );
}

fn lost_agents_are_listed_with_time() {
    let mut cluster = Cluster::start(Setup {
        master_flags: vec![
            "--agent_ping_timeout=1secs".to_owned(),
            "--max_agent_ping_timeouts=1".to_owned(),
        ],
        ..Setup::default()
    });
    let id = cluster.agent_id();
    cluster.agents[0].kill();
    let list = || out(&cluster.meseta("agents", &[]));
    eventually("the agent is lost", Duration::from_secs(30), || {
        list().contains("unreachable since 20").then_some(())
    });
    assert!(list().contains(&id), "{}", list());
    let drained = cluster.meseta("drain", &["S0"]);
    assert!(drained.status.success(), "{}", err(&drained));
    let expected = format!("agent {id} is unreachable since 20");
    assert!(out(&drained).contains(&expected), "{}", out(&drained));
    let waited = cluster.meseta("drain", &["S0", "--wait"]);
    assert_eq!(waited.status.code(), Some(1), "{}", out(&waited));
    assert!(err(&waited).contains(&expected), "{}", err(&waited));
    let gone = cluster.meseta("mark-gone", &["S0"]);
    assert!(gone.status.success(), "{}", err(&gone));
    assert!(list().contains("gone since 20"), "{}", list());
    let refused = cluster.meseta("drain", &["S0"]);
    assert!(
        err(&refused).contains("was marked gone"),
        "{}",
        err(&refused)
    );
}
