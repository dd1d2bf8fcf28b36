//! The file system of the work directory, or of the runtime directory, is full: running tasks continue with correct
//! updates, new ones are refused with the reason, and all continues once there is room.

use std::time::Duration;

use meseta_tests::small_disk::{Filler, SmallDisk};
use meseta_tests::{
    Cluster, Framework, Missing, Setup, http, kernel, unless_installed, unless_root, wait,
};
use serde_json::Value;

use crate::enforcement::standing_offer;

meseta_tests::scenarios! {
    unless_ext4:
        full_ext4_refuses_tasks_reports_ends,
        inode_shortage_refuses_tasks_reports_ends;
    unless_root:
        full_runtime_directory_keeps_every_end;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
/// The time from when there is room until tasks are accepted.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

fn unless_ext4() -> Missing {
    unless_root().or_else(|| unless_installed("mkfs.ext4"))
}

/// Runs a task that exits with this code once its file exists.
fn run_waiting(cluster: &Cluster, framework: &mut Framework, id: &str, code: u8) -> (i32, u64) {
    let go = cluster.dir.path().join(id);
    let command = format!(
        "until [ -e {} ]; do sleep 0.2; done; exit {code}",
        go.display()
    );
    run(framework, id, &command)
}

fn run(framework: &mut Framework, id: &str, command: &str) -> (i32, u64) {
    let offer = standing_offer(framework);
    let status = framework.run_task(&offer, id, command, SMALL);
    let pid = status["container_status"]["executor_pid"].as_i64();
    let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
    (pid, kernel::start_time(pid).expect("it lives"))
}

fn may_end(cluster: &Cluster, id: &str) {
    std::fs::write(cluster.dir.path().join(id), "").expect("written");
}

fn expect_exit(framework: &mut Framework, id: &str, code: u8) {
    let status = framework.until_state(id, "TASK_FAILED");
    let expected = format!("Command exited with status {code}");
    assert_eq!(status["message"], Value::from(expected), "{status:#}");
}

/// Returns the agent's metric about its disk.
fn is_writable(cluster: &Cluster) -> Option<bool> {
    let page = http::try_get(&format!("{}/metrics", cluster.agent().url)).ok()?;
    let text = page.text();
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix("meseta_agent_disk_writable ")? == "1"))
}

fn until_writable(cluster: &Cluster, expected: bool, limit: Duration) {
    wait::eventually("the agent tells of its disk", limit, || {
        (is_writable(cluster)? == expected).then_some(())
    });
}

/// Tasks that may come just after the agent removed unneeded files.
const TASKS_MAX: usize = 20;

/// Checks that a task is refused while the disk is full.
fn expect_refusal(cluster: &Cluster, framework: &mut Framework, mut fill: impl FnMut(), id: &str) {
    for number in 0..TASKS_MAX {
        fill();
        until_writable(cluster, false, PATIENCE);
        let offer = standing_offer(framework);
        let id = format!("{id}-{number}");
        framework.launch_task(&offer, &id, "true", SMALL);
        let status = framework.until_end(&id, PATIENCE);
        // There was room again when it came, maybe not enough.
        let is_taken = status["state"] == "TASK_FINISHED" || status["state"] == "TASK_FAILED";
        if !is_taken {
            assert_eq!(status["state"], "TASK_DROPPED", "{status:#}");
            assert_eq!(
                status["reason"], "REASON_CONTAINER_LAUNCH_FAILED",
                "{status:#}"
            );
            let message = status["message"].as_str().unwrap_or_default();
            assert!(message.contains("disk"), "{message}");
            return;
        }
    }
    panic!("tasks are taken again and again on a full disk");
}

type Fill = fn(&mut Filler);

fn goes_through(disk: SmallDisk, fill: Fill) {
    let mut cluster = Cluster::start(Setup {
        agent_disk: Some(disk),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    run_waiting(&cluster, &mut framework, "before", 3);
    run_waiting(&cluster, &mut framework, "down", 4);
    run_waiting(&cluster, &mut framework, "after", 5);
    let steady = run(&mut framework, "steady", "exec sleep 600");
    run(&mut framework, "target", "exec sleep 600");
    run(&mut framework, "second", "exec sleep 600");
    let is_steady = || kernel::start_time(steady.0) == Some(steady.1);

    let mut filler = Filler::new(&cluster.agent_dir(0));
    let again = || fill(&mut filler);
    expect_refusal(&cluster, &mut framework, again, "late");
    // Ends are reported while there is no room, including those of kills.
    may_end(&cluster, "before");
    expect_exit(&mut framework, "before", 3);
    framework.kill("target");
    framework.until_state("target", "TASK_KILLED");
    assert_eq!(
        http::get(&format!("{}/health", cluster.agent().url)).status,
        200
    );

    cluster.agents[0].kill();
    may_end(&cluster, "down");
    fill(&mut filler);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert!(is_steady(), "another process, or none");
    until_writable(&cluster, false, PATIENCE);
    expect_exit(&mut framework, "down", 4);
    let again = || fill(&mut filler);
    expect_refusal(&cluster, &mut framework, again, "later");
    framework.kill("second");
    framework.until_state("second", "TASK_KILLED");

    filler.remove();
    until_writable(&cluster, true, RECOVERY_MAX);
    let offer = standing_offer(&mut framework);
    framework.launch_task(&offer, "new", "true", SMALL);
    framework.until_state("new", "TASK_FINISHED");
    may_end(&cluster, "after");
    expect_exit(&mut framework, "after", 5);
    assert!(is_steady(), "another process, or none");
    framework.kill("steady");
    framework.until_state("steady", "TASK_KILLED");
}

fn full_ext4_refuses_tasks_reports_ends() {
    let disk = SmallDisk::Ext4 {
        mib: 64,
        inodes: 4096,
    };
    goes_through(disk, Filler::fill_bytes);
}

fn inode_shortage_refuses_tasks_reports_ends() {
    let disk = SmallDisk::Ext4 {
        mib: 64,
        inodes: 512,
    };
    goes_through(disk, Filler::fill_inodes);
}

fn full_runtime_directory_keeps_every_end() {
    let mut cluster = Cluster::start(Setup {
        runtime_disk: Some(SmallDisk::Tmpfs("size=4m,nr_inodes=400")),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    for (number, fill) in [Filler::fill_bytes as Fill, Filler::fill_inodes]
        .into_iter()
        .enumerate()
    {
        let [before, down, after] = ["before", "down", "after"].map(|id| format!("{id}-{number}"));
        run_waiting(&cluster, &mut framework, &before, 3);
        run_waiting(&cluster, &mut framework, &down, 4);
        run_waiting(&cluster, &mut framework, &after, 5);
        let mut filler = Filler::new(&cluster.runtime_dir_apart(0));
        fill(&mut filler);
        let late = format!("late-{number}");
        let offer = framework.offer();
        framework.launch_task(&offer, &late, "true", SMALL);
        let status = framework.until_state(&late, "TASK_FAILED");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains("No space left on device"), "{message}");
        may_end(&cluster, &before);
        expect_exit(&mut framework, &before, 3);
        cluster.agents[0].kill();
        may_end(&cluster, &down);
        fill(&mut filler);
        cluster.restart_agent(0);
        cluster.wait_for_agents(1);
        expect_exit(&mut framework, &down, 4);
        filler.remove();
        may_end(&cluster, &after);
        expect_exit(&mut framework, &after, 5);
        let offer = standing_offer(&mut framework);
        let new = format!("new-{number}");
        framework.launch_task(&offer, &new, "true", SMALL);
        framework.until_state(&new, "TASK_FINISHED");
    }
}
