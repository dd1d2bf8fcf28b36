//! The kept output of a task: all of it up to a size, in files that a writer cannot outgrow.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Setup, unless_root, wait};
use serde_json::json;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        nothing_is_lost_between_two_files;
    unless_root:
        full_speed_writer_stays_within_files;
    anywhere:
        execute_follows_renamed_file,
        task_sets_its_log_limits;
    unless_root:
        files_belong_to_the_tasks_user;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.5), ("mem", 64.0)];
const PATIENCE: Duration = Duration::from_secs(60);
/// The time for which the agent's CPU usage is measured.
const MEASURED: Duration = Duration::from_secs(2);

fn bounded(size: &str, files: u32) -> Setup {
    let mut setup = Setup::default();
    setup.agent_flags.extend([
        format!("--max_stdout_size={size}"),
        format!("--logrotate_stdout_options=rotate {files}"),
    ]);
    setup
}

/// Returns the sandbox of a task on disk.
fn sandbox(cluster: &Cluster, task: &str) -> PathBuf {
    let mut folders = vec![cluster.dir.path().join("agent-0/slaves")];
    while let Some(folder) = folders.pop() {
        if folder.ends_with(format!("executors/{task}/runs")) {
            return std::fs::canonicalize(folder.join("latest")).expect("a sandbox");
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        folders.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.is_dir()),
        );
    }
    panic!("no sandbox of {task}")
}

/// Returns the files of standard output, the oldest first.
fn files(sandbox: &Path) -> Vec<PathBuf> {
    let older = (1..1000).map(|number| sandbox.join(format!("stdout.{number}")));
    let mut files: Vec<_> = older.take_while(|path| path.exists()).collect();
    files.reverse();
    files.push(sandbox.join("stdout"));
    files
}

fn sizes(sandbox: &Path) -> Vec<u64> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
    files(sandbox).iter().map(size).collect()
}

fn nothing_is_lost_between_two_files() {
    let cluster = Cluster::start(bounded("64KB", 20));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let command = "seq 1 100000; echo done >&2";
    framework.launch_task(&offer, "t", command, SMALL);
    framework.until_state("t", "TASK_FINISHED");
    let sandbox = sandbox(&cluster, "t");
    let parts = files(&sandbox);
    let text: String = parts
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(parts.len(), 9, "{:?}", sizes(&sandbox));
    assert!(
        text == expected,
        "{} bytes of {}",
        text.len(),
        expected.len()
    );
    let errors = std::fs::read_to_string(sandbox.join("stderr")).expect("text");
    assert_eq!(errors, "done\n");
}

/// Returns the CPU seconds that a process has used.
fn cpu_seconds(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

fn full_speed_writer_stays_within_files() {
    const FILE: u64 = 256 << 10;
    let mut cluster = Cluster::start(bounded("256KB", 2));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    framework.run_task(&offer, "t", "exec yes", SMALL);
    let sandbox = sandbox(&cluster, "t");
    let modified = |name: &str| {
        let found = std::fs::metadata(sandbox.join(name)).ok()?;
        found.modified().ok()
    };
    wait::eventually("the files are full", PATIENCE, || {
        (files(&sandbox).len() == 3).then_some(())
    });
    let (began, used) = (Instant::now(), cpu_seconds(cluster.agent().pid()));
    // The time is long enough for a share: the agent's work after a launch is soon over.
    let mut renamed = 0;
    while renamed < 20 || began.elapsed() < MEASURED {
        let oldest = modified("stdout.2");
        wait::eventually("the oldest goes", PATIENCE, || {
            let sizes = sizes(&sandbox);
            assert!(
                sizes.len() <= 3 && sizes.iter().all(|size| *size <= FILE),
                "{sizes:?}"
            );
            (modified("stdout.2") != oldest).then_some(())
        });
        renamed += 1;
    }
    let used = cpu_seconds(cluster.agent().pid()) - used;
    let share = used / began.elapsed().as_secs_f64();
    eprintln!(
        "agent CPU beside a full-speed writer: {:.1} %",
        share * 100.0
    );
    assert!(share < 0.5, "the agent carries the output itself: {share}");
    // The rotation continues while no agent runs, and after the next one's start.
    cluster.agents[0].kill();
    for _ in 0..2 {
        let newest = modified("stdout.1");
        wait::eventually("files are still renamed", PATIENCE, || {
            (modified("stdout.1") != newest).then_some(())
        });
        if cluster.agents[0].has_ended() {
            cluster.restart_agent(0);
            cluster.wait_for_agents(1);
        }
    }
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
    assert!(sizes(&sandbox).iter().all(|size| *size <= FILE));
}

fn execute_follows_renamed_file() {
    use std::io::Read as _;
    let cluster = Cluster::start(bounded("64KB", 9));
    let gate = cluster.dir.path().join("gate");
    // The output is some 39 KB, and ten times as much once they were read: the file is renamed several times on the way,
    // between two looks or during one.
    let command = format!(
        "seq 10001 16500; while [ ! -e {} ]; do sleep 0.05; done; seq 20001 85000",
        gate.display()
    );
    let mut execute = std::process::Command::new(meseta_tests::daemon::binary())
        .arg("execute")
        .arg(format!("--master={}", cluster.master.address()))
        .arg(format!("--command={command}"))
        .arg("--resources=cpus:0.5;mem:64")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("execute runs");
    let mut stdout = execute.stdout.take().expect("a pipe");
    let numbers = |from: u32, count: u32| {
        (from..from + count)
            .map(|number| format!("{number}\n"))
            .collect::<String>()
    };
    let mut text = vec![0; numbers(10_001, 6500).len()];
    stdout.read_exact(&mut text).expect("the first part");
    std::fs::write(&gate, "").expect("written");
    stdout.read_to_end(&mut text).expect("the rest");
    assert!(execute.wait().expect("ended").success());
    let expected = numbers(10_001, 6500) + &numbers(20_001, 65_000);
    assert!(
        text == expected.as_bytes(),
        "{} bytes of {}",
        text.len(),
        expected.len()
    );
}

fn files_belong_to_the_tasks_user() {
    use std::os::unix::fs::MetadataExt as _;
    let cluster = Cluster::start(bounded("8KB", 3));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    // The task can open its own output again, as root can.
    let mut info = task(&offer, "t", "seq 1 3000; echo again > /dev/stdout", SMALL);
    info["command"]["user"] = json!("nobody");
    framework.launch(&offer, &[info]);
    framework.until_state("t", "TASK_FINISHED");
    let sandbox = sandbox(&cluster, "t");
    let owners: Vec<_> = files(&sandbox)
        .iter()
        .map(|path| std::fs::metadata(path).expect("a file").uid())
        .collect();
    assert_eq!(owners, [65534, 65534], "{:?}", sizes(&sandbox));
    let text = std::fs::read_to_string(sandbox.join("stdout")).expect("text");
    assert!(text.ends_with("3000\nagain\n"), "{text}");
}

fn task_sets_its_log_limits() {
    let cluster = Cluster::start(bounded("10MB", 9));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let mut info = task(&offer, "t", "seq 1 20000", SMALL);
    info["command"]["environment"] = json!({"variables": [
        {"name": "CONTAINER_LOGGER_MAX_STDOUT_SIZE", "value": "8KB"},
        {"name": "CONTAINER_LOGGER_LOGROTATE_STDOUT_OPTIONS", "value": "rotate 3"},
    ]});
    let mut bad = task(&offer, "bad", "true", SMALL);
    bad["command"]["environment"] = json!({"variables": [
        {"name": "CONTAINER_LOGGER_MAX_STDOUT_SIZE", "value": "1B"},
    ]});
    framework.launch(&offer, &[info, bad]);
    framework.until_state("t", "TASK_FINISHED");
    let sizes = sizes(&sandbox(&cluster, "t"));
    assert_eq!(sizes.len(), 4, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 8 << 10), "{sizes:?}");
    let status = framework.until_state("bad", "TASK_FAILED");
    let message = status["message"].as_str().expect("a message");
    assert!(message.contains("too small"), "{message}");
}
