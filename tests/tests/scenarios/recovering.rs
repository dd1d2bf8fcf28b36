//! Recovery flags of an agent: `--recover=cleanup` and `--strict`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::daemon::{free_port, refused};
use meseta_tests::{Cluster, Framework, Setup, kernel, unless_root, wait};

use crate::enforcement::{is_container, standing_offer};

meseta_tests::scenarios! {
    unless_root:
        cleanup_agent_kills_tasks_and_ends,
        strict_agent_refuses_damaged_checkpoint,
        task_without_start_record_continues,
        agent_without_task_records_refuses_start;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);

fn cluster() -> Cluster {
    Cluster::start(Setup {
        agent_port: Some(free_port()),
        ..Setup::default()
    })
}

/// Runs a task, and returns its first process with the start time.
fn run(framework: &mut Framework, id: &str) -> (i32, Option<u64>) {
    let offer = standing_offer(framework);
    framework.launch_task(&offer, id, "exec sleep 6000", SMALL);
    let status = framework.until_state(id, "TASK_RUNNING");
    let pid = status["container_status"]["executor_pid"].as_i64();
    let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
    (pid, kernel::start_time(pid))
}

fn wait_until_ended(cluster: &mut Cluster) {
    wait::eventually("the agent ends", PATIENCE, || {
        cluster.agents[0].has_ended().then_some(())
    });
}

fn cleanup_agent_kills_tasks_and_ends() {
    let mut cluster = cluster();
    let mut framework = cluster.framework();
    run(&mut framework, "a");
    run(&mut framework, "b");
    let id = cluster.agent_id();
    cluster.set_agent_flags(&["--recover=cleanup"]);
    cluster.respawn_agent(0);
    wait_until_ended(&mut cluster);
    assert!(kernel::tasks_below(&cluster.cgroups_root).is_empty());
    let groups = kernel::groups_below(&cluster.cgroups_root);
    assert!(
        !groups.iter().any(|group| is_container(group)),
        "{groups:?}"
    );
    cluster.restart_agent_with(0, &["--recover=reconnect"]);
    cluster.wait_for_agents(1);
    for task in ["a", "b"] {
        framework.until_state(task, "TASK_KILLED");
    }
    assert_eq!(cluster.agent_id(), id);
    run(&mut framework, "later");
}

/// Returns the only file of this name below a folder.
fn find(folder: &Path, name: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(_) if entry.file_name() == name => found.push(path),
                _ => {}
            }
        }
    }
    let [only] = <[PathBuf; 1]>::try_from(found).expect("one");
    only
}

fn strict_agent_refuses_damaged_checkpoint() {
    let mut cluster = cluster();
    let mut framework = cluster.framework();
    let (pid, born) = run(&mut framework, "t");
    cluster.agents[0].kill();
    let record = find(&cluster.agent_dir(0).join("meta"), "task.info");
    let whole = std::fs::read(&record).expect("a record");
    std::fs::write(&record, &whole[..whole.len() / 2]).expect("the damage");
    cluster.set_agent_flags(&["--strict"]);
    cluster.respawn_agent(0);
    wait_until_ended(&mut cluster);
    let said = cluster.agent().log_text();
    assert!(said.contains("1 damaged checkpoint"), "{said}");
    assert!(said.contains("task.info"), "{said}");
    assert!(said.contains("--strict=false"), "{said}");
    assert_eq!(kernel::start_time(pid), born, "the task goes on");
    // The agent set nothing aside: the record may come from a backup.
    std::fs::write(&record, &whole).expect("put back");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert_eq!(kernel::start_time(pid), born);
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
}

/// The task's log is gone, and so are the notes of its supervisor: the kernel still knows the processes.
fn task_without_start_record_continues() {
    let mut cluster = cluster();
    let mut framework = cluster.framework();
    let (pid, born) = run(&mut framework, "a");
    for _ in 0..2 {
        cluster.agents[0].kill();
        let dir = cluster.agent_dir(0);
        for (below, name) in [("run", "supervisor"), ("meta/slaves", "task.updates")] {
            std::fs::remove_file(find(&dir.join(below), name)).expect("removed");
        }
        cluster.respawn_agent(0);
        cluster.wait_for_agents(1);
        framework.until_state("a", "TASK_RUNNING");
        assert_eq!(kernel::start_time(pid), born);
    }
    framework.kill("a");
    framework.until_state("a", "TASK_KILLED");
}

/// Regression: an empty work directory, as of an unmounted disk, ended every task of the node; another agent at the same
/// address left them running beside new ones.
fn agent_without_task_records_refuses_start() {
    let port = free_port();
    let mut cluster = Cluster::start(Setup {
        agent_port: Some(port),
        runtime_dir_apart: true,
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let (pid, began) = run(&mut framework, "t1");
    let work_dir = cluster.agent_dir(0);
    let runtime_dir = format!("--runtime_dir={}", cluster.runtime_dir_apart(0).display());
    let cgroups_root = format!("--cgroups_root={}", cluster.cgroups_root);
    let master = format!("--master={}", cluster.master.address());
    let refused_at = |dir: &Path, port: u16| {
        let port = format!("--port={port}");
        refused("agent", dir, &[&master, &runtime_dir, &cgroups_root, &port])
    };
    cluster.agents[0].kill();
    let said = refused_at(&cluster.dir.path().join("other"), port);
    assert!(said.contains(&format!("listened on port {port}")), "{said}");
    assert!(said.contains(work_dir.to_str().expect("text")), "{said}");
    let aside = cluster.dir.path().join("aside");
    std::fs::rename(&work_dir, &aside).expect("moved");
    let said = refused_at(&work_dir, port);
    assert!(said.contains("has no records of them"), "{said}");
    assert!(said.contains("--recover=cleanup"), "{said}");
    std::fs::remove_dir_all(&work_dir).expect("removed");
    std::fs::rename(&aside, &work_dir).expect("moved back");
    // A dangling link to the agent is recreated from the records.
    let latest = work_dir.join("meta/slaves/latest");
    std::fs::remove_file(&latest).expect("removed");
    std::os::unix::fs::symlink("nothing", &latest).expect("linked");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert_eq!(kernel::start_time(pid), began, "the task goes on");
    framework.kill("t1");
    framework.until_state("t1", "TASK_KILLED");
}
