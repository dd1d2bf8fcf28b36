//! kill -9 of a daemon while a task runs: the same process continues, each update comes once, in order.

use std::time::Duration;

use meseta_tests::daemon::{binary, refused};
use meseta_tests::framework::{framework_info, uuid_bytes};
use meseta_tests::{Cluster, Framework, kernel, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        agent_finds_same_process_again,
        master_recovers_agents_and_tasks,
        execute_outlives_the_master,
        end_while_agent_down_is_reported,
        framework_without_checkpoint_gets_warning,
        registry_tools_check_and_export;
}

/// The time for a process to begin or to end.
const LIMIT: Duration = Duration::from_secs(30);

/// A command that runs until its gate file exists.
struct Waiting {
    gate: std::path::PathBuf,
    shell: i32,
    /// The uuid of the update with TASK_RUNNING.
    running: Vec<u8>,
}

/// Launches a command that waits for a file and then exits with `code`.
fn launch(cluster: &Cluster, framework: &mut Framework, code: i32) -> Waiting {
    launch_ending(cluster, framework, &format!("exit {code}"))
}

/// Launches a command that waits for a file and then ends in this way.
fn launch_ending(cluster: &Cluster, framework: &mut Framework, end: &str) -> Waiting {
    let gate = cluster.dir.path().join("gate");
    let offer = framework.offer();
    let marker = format!("0.05{}", std::process::id());
    let command = format!(
        "echo started; while [ ! -e {} ]; do sleep {marker}; done; {end}",
        gate.display()
    );
    framework.launch_task(&offer, "t1", &command, &[("cpus", 0.1), ("mem", 32.0)]);
    let running = uuid_bytes(&framework.until_state("t1", "TASK_RUNNING"));
    let needle = format!("while [ ! -e {} ]", gate.display());
    let shell = wait::eventually("the command runs", LIMIT, || {
        // The supervisor is a clone of the launcher; the shell is the process with the name `sh`.
        kernel::processes_like(&needle).into_iter().find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.contains("sh"))
        })
    });
    Waiting {
        gate,
        shell,
        running,
    }
}

/// Returns all states of the task until its end, acknowledged, without repeats. TASK_RUNNING may come once more: the
/// acknowledgement may have died with the daemon.
fn updates_to_the_end(framework: &mut Framework, running: &[u8]) -> Vec<String> {
    let (mut states, mut seen) = (Vec::new(), Vec::new());
    loop {
        let status = framework.update("t1");
        if status.get("uuid").is_none() {
            continue;
        }
        let uuid = uuid_bytes(&status);
        assert!(
            !seen.contains(&uuid),
            "the same update twice although acknowledged: {status}"
        );
        framework.acknowledge(&status);
        let repeated = uuid == running;
        seen.push(uuid);
        if repeated {
            continue;
        }
        let state = status["state"].as_str().expect("a state").to_owned();
        let ended = state == "TASK_FINISHED" || state == "TASK_FAILED";
        states.push(state);
        if ended {
            return states;
        }
    }
}

fn framework_without_checkpoint_gets_warning() {
    let mut cluster = Cluster::default();
    let mut info = framework_info("dev");
    info["checkpoint"] = json!(false);
    let mut framework = cluster.subscribe(&info);
    let gate = cluster.dir.path().join("gate");
    let command = format!(
        "[ \"$MESOS_CHECKPOINT\" = 1 ] || exit 9; until [ -e {} ]; do sleep 0.05; done",
        gate.display()
    );
    let offer = framework.offer();
    framework.run_task(&offer, "t1", &command, &[("cpus", 0.1), ("mem", 32.0)]);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    std::fs::write(&gate, "").expect("written");
    framework.until_state("t1", "TASK_FINISHED");
}

fn agent_finds_same_process_again() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let Waiting {
        gate,
        shell,
        running,
    } = launch(&cluster, &mut framework, 0);
    let born = kernel::start_time(shell);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert_eq!(kernel::start_time(shell), born, "another process");
    std::fs::write(&gate, "").expect("written");
    assert_eq!(
        updates_to_the_end(&mut framework, &running),
        ["TASK_FINISHED"]
    );
}

fn master_recovers_agents_and_tasks() {
    let mut cluster = Cluster::default();
    let info = framework_info("dev");
    let mut framework = cluster.subscribe(&info);
    let Waiting {
        gate,
        shell,
        running,
    } = launch(&cluster, &mut framework, 0);
    let born = kernel::start_time(shell);
    let agent_id = cluster.agent_id();
    cluster.restart_master();
    let mut again = info;
    again["id"] = json!({"value": framework.id});
    let mut framework = cluster.subscribe(&again);
    cluster.wait_for_agents(1);
    assert_eq!(agent_id, cluster.agent_id(), "the agent keeps its id");
    assert_eq!(kernel::start_time(shell), born, "another process");
    // The free resources beside the task are offered again.
    let offer = framework.offer();
    let resources = offer["resources"].as_array().expect("resources");
    let cpus = resources
        .iter()
        .find(|r| r["name"] == "cpus")
        .expect("cpus");
    assert_eq!(
        cpus["scalar"]["value"], 3.9,
        "the task's share is charged: {offer}"
    );
    std::fs::write(&gate, "").expect("written");
    assert_eq!(
        updates_to_the_end(&mut framework, &running),
        ["TASK_FINISHED"]
    );
}

/// Checks that `meseta execute`, which is a framework too, keeps its task over a restart of the master.
fn execute_outlives_the_master() {
    let mut cluster = Cluster::default();
    let gate = cluster.dir.path().join("gate");
    let command = format!(
        "--command=echo one; while [ ! -e {} ]; do sleep 0.05; done; echo two; exit 5",
        gate.display()
    );
    let verb = std::process::Command::new(meseta_tests::daemon::binary())
        .args(["execute", "--resources=cpus:0.1;mem:32", &command])
        .arg(format!("--master={}", cluster.master.address()))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("meseta runs");
    wait::eventually("the task runs", LIMIT, || {
        let tasks = cluster.master.page("/tasks").json();
        (tasks["tasks"][0]["state"] == "TASK_RUNNING").then_some(())
    });
    cluster.restart_master();
    cluster.wait_for_agents(1);
    std::fs::write(&gate, "").expect("written");
    let output = verb.wait_with_output().expect("meseta ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "one\ntwo\n",
        "{said}"
    );
}

fn end_while_agent_down_is_reported() {
    for (end, state, message) in [
        ("exit 0", "TASK_FINISHED", "Command exited with status 0"),
        ("exit 7", "TASK_FAILED", "Command exited with status 7"),
        (
            "kill -SEGV $$",
            "TASK_FAILED",
            "Command terminated with signal Segmentation fault",
        ),
    ] {
        let mut cluster = Cluster::default();
        let mut framework = cluster.framework();
        let Waiting { gate, shell, .. } = launch_ending(&cluster, &mut framework, end);
        cluster.agents[0].kill();
        std::fs::write(&gate, "").expect("written");
        wait::eventually("the task ended", LIMIT, || {
            kernel::start_time(shell).is_none().then_some(())
        });
        cluster.restart_agent(0);
        let status = framework.until_state("t1", state);
        assert_eq!(status["message"], message, "{status:#}");
    }
}

fn registry_tools_check_and_export() {
    let mut cluster = Cluster::default();
    let dir = cluster.dir.path().join("master");
    let run = |action: &str| {
        let mut command = std::process::Command::new(binary());
        command.args(["registry", action]);
        command.arg(format!("--work_dir={}", dir.display()));
        let output = command.output().expect("meseta runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (whole, _, why) = run("check");
    assert!(!whole && why.contains("in use"), "{why}");
    cluster.master.kill();
    let (whole, said, why) = run("check");
    assert!(whole, "{why}");
    assert!(
        said.contains("agents        1 (0 unreachable, 0 gone)"),
        "{said}"
    );
    let (whole, exported, why) = run("export");
    assert!(whole, "{why}");
    let exported: Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(exported["epoch"], 1);
    let agents = exported["agents"].as_array().expect("a list");
    assert_eq!(agents.len(), 1);
    assert_eq!(agents[0]["info"]["id"]["value"], agents[0]["id"]);

    let file = dir.join("registry.redb");
    let saved = std::fs::read(&file).expect("the registry");
    std::fs::write(&file, &saved[..saved.len() / 2]).expect("cut");
    for action in ["check", "export"] {
        let (whole, _, why) = run(action);
        assert!(
            !whole && why.contains("restore a copy of the file"),
            "{why}"
        );
        assert!(!why.contains("panicked"), "{why}");
    }
    let why = refused("master", &dir, &["--port=0"]);
    assert!(why.contains("restore a copy of the file"), "{why}");
    std::fs::remove_file(&file).expect("gone");
    let why = refused("master", &dir, &["--port=0"]);
    assert!(why.contains("move the marker away"), "{why}");
    // The suggested remedy works.
    std::fs::write(&file, &saved).expect("back");
    cluster.restart_master();
    cluster.wait_for_agents(1);
}
