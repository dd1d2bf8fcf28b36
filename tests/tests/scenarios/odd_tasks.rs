//! Tasks that behave oddly: they hang in the kernel, leave children that nobody waits for, close their output, fill a
//! sandbox with files that are hard to remove, or lose their supervisor. The agent continues, and each update is correct.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::small_disk::SmallDisk;
use meseta_tests::{
    Cluster, Framework, Missing, Setup, executor, http, kernel, unless_installed, unless_root, wait,
};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::enforcement::{is_container, standing_offer};

meseta_tests::scenarios! {
    unless_freezable:
        unkillable_task_stays_killing;
    unless_root:
        unreaped_children_end_with_task,
        closed_outputs_delay_nobody,
        killed_supervisor_ends_its_task,
        killed_executor_ends_its_tasks,
        huge_sandbox_is_collected;
}

fn unless_freezable() -> Missing {
    let programs = ["fsfreeze", "mkfs.ext4"].into_iter();
    unless_root().or_else(|| programs.filter_map(unless_installed).next())
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);

/// Launches a task with a grace of one second.
fn launch(framework: &mut Framework, id: &str, command: &str, resources: &[(&str, f64)]) {
    let offer = standing_offer(framework);
    let mut info = task(&offer, id, command, resources);
    info["kill_policy"] = json!({"grace_period": {"nanoseconds": 1_000_000_000}});
    framework.launch(&offer, &[info]);
}

fn pid_of(status: &Value) -> i32 {
    let pid = status["container_status"]["executor_pid"].as_i64();
    i32::try_from(pid.expect("a pid")).expect("a pid")
}

/// Returns the letter of a process's state, and its parent.
fn stat(pid: i32) -> Option<(String, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit(") ").next()?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.to_owned();
    Some((state, fields.next()?.parse().ok()?))
}

/// Returns the children of a process's first thread that have ended without a wait.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.collect()
}

fn nothing_is_left(cluster: &Cluster) {
    wait::eventually("nothing is left", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let has_processes = !kernel::tasks_below(&cluster.cgroups_root).is_empty();
        (!has_processes && !groups.iter().any(|group| is_container(group))).then_some(())
    });
}

/// A frozen file system whose writers wait, uninterruptibly, until this is dropped.
struct Frozen {
    path: PathBuf,
    is_frozen: bool,
    _dir: TempDir,
}

impl Frozen {
    fn make() -> Self {
        let dir = TempDir::with_prefix("meseta-test-").expect("a directory");
        let path = dir.path().join("disk");
        let disk = SmallDisk::Ext4 {
            mib: 16,
            inodes: 128,
        };
        disk.mount_at(&path);
        Self {
            path,
            is_frozen: false,
            _dir: dir,
        }
    }

    fn set(&mut self, frozen: bool) {
        let how = if frozen { "--freeze" } else { "--unfreeze" };
        let status = Command::new("fsfreeze").arg(how).arg(&self.path).status();
        assert!(status.is_ok_and(|status| status.success()), "{how}");
        self.is_frozen = frozen;
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.is_frozen {
            let mut thaw = Command::new("fsfreeze");
            let _ = thaw.arg("--unfreeze").arg(&self.path).status();
        }
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Returns the sum of a counter on the agent's page.
fn counter(cluster: &Cluster, name: &str) -> f64 {
    let text = cluster.agent().page("/metrics").text();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let numbers = lines.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
    numbers.sum()
}

fn unkillable_task_stays_killing() {
    let mut setup = Setup::default();
    setup
        .agent_flags
        .push("--cgroups_destroy_timeout=1secs".to_owned());
    let mut cluster = Cluster::start(setup);
    let mut frozen = Frozen::make();
    frozen.set(true);
    let mut framework = cluster.framework();
    let command = format!("echo hangs > {}/file", frozen.path.display());
    launch(&mut framework, "hangs", &command, SMALL);
    let pid = pid_of(&framework.until_state("hangs", "TASK_RUNNING"));
    wait::eventually("it hangs", PATIENCE, || (stat(pid)?.0 == "D").then_some(()));
    framework.kill("hangs");
    framework.until_state("hangs", "TASK_KILLING");
    let errors = "meseta_agent_container_destroy_errors_total";
    wait::eventually("the agent says so", PATIENCE, || {
        (counter(&cluster, errors) > 0.0).then_some(())
    });
    // Others are launched and killed meanwhile, and a returning agent finds it unchanged.
    for restart in [false, true] {
        if restart {
            cluster.restart_agent(0);
            cluster.wait_for_agents(1);
        }
        let id = format!("other-{restart}");
        launch(&mut framework, &id, "exec sleep 600", SMALL);
        framework.until_state(&id, "TASK_RUNNING");
        let began = Instant::now();
        framework.kill(&id);
        framework.until_state(&id, "TASK_KILLED");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    let is_end = |event: &Value| {
        let status = &event["update"]["status"];
        status["task_id"]["value"] == "hangs" && status["state"] == "TASK_KILLED"
    };
    let early = framework.within(Duration::from_millis(100), &is_end);
    assert!(
        early.is_err(),
        "told to have ended while it lives: {early:?}"
    );
    assert_eq!(stat(pid).map(|(state, _)| state).as_deref(), Some("D"));
    frozen.set(false);
    framework.until_state("hangs", "TASK_KILLED");
    assert_eq!(stat(pid), None);
    nothing_is_left(&cluster);
}

fn unreaped_children_end_with_task() {
    const CHILDREN: usize = 2_000;
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let gate = cluster.dir.path().join("gate");
    let made = Command::new("mkfifo").arg(&gate).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    // The parent shell becomes a program that does not know its children.
    let command = format!(
        "i=0; while [ $i -lt {CHILDREN} ]; do read line < {} & i=$((i+1)); done; \
         (setsid sleep 600 &); exec sleep 600",
        gate.display()
    );
    let resources = [("cpus", 2.0), ("mem", 1024.0)];
    launch(&mut framework, "breeds", &command, &resources);
    let pid = pid_of(&framework.until_state("breeds", "TASK_RUNNING"));
    let zombies = || {
        let of_it = children(pid).into_iter();
        of_it
            .filter(|one| stat(*one).is_some_and(|(state, _)| state == "Z"))
            .count()
    };
    wait::eventually("it has become another program", PATIENCE, || {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        line.starts_with(b"sleep").then_some(())
    });
    let mut open = File::options().write(true).open(&gate).expect("opened");
    open.write_all(&vec![b'\n'; CHILDREN]).expect("written");
    wait::eventually("they have ended", PATIENCE, || {
        (zombies() == CHILDREN).then_some(())
    });
    let agent = cluster.agent().pid();
    launch(&mut framework, "other", "true", SMALL);
    framework.until_state("other", "TASK_FINISHED");
    let began = Instant::now();
    framework.kill("breeds");
    framework.until_state("breeds", "TASK_KILLED");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    nothing_is_left(&cluster);
    wait::eventually("the agent has waited for its own", PATIENCE, || {
        let mut pids = children(agent).into_iter();
        let has_zombie = pids.any(|pid| stat(pid).is_some_and(|(state, _)| state == "Z"));
        (!has_zombie).then_some(())
    });
}

fn closed_outputs_delay_nobody() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    // Tasks without input, without output, with a reader that leaves, and with a pipe that is never emptied.
    for (id, command) in [
        ("reads", "read line && exit 4; exit 0"),
        ("closes", "exec 0<&- 1>&- 2>&-; echo lost; exec sleep 0.1"),
        ("leaves", "yes | head -n 1"),
    ] {
        launch(&mut framework, id, command, SMALL);
        framework.until_state(id, "TASK_FINISHED");
    }
    launch(&mut framework, "fills", "yes | sleep 600", SMALL);
    framework.until_state("fills", "TASK_RUNNING");
    launch(
        &mut framework,
        "broken",
        "trap '' PIPE; yes 2>/dev/null | true; exit 5",
        SMALL,
    );
    let status = framework.until_state("broken", "TASK_FAILED");
    assert_eq!(status["message"], "Command exited with status 5");
    framework.kill("fills");
    framework.until_state("fills", "TASK_KILLED");
    nothing_is_left(&cluster);
}

fn killed_supervisor_ends_its_task() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    launch(&mut framework, "other", "exec sleep 6010", SMALL);
    let other = pid_of(&framework.until_state("other", "TASK_RUNNING"));
    let born = kernel::start_time(other);
    let command = "sleep 6011 & (setsid sleep 6012 &); wait";
    launch(&mut framework, "hit", command, SMALL);
    let hit = pid_of(&framework.until_state("hit", "TASK_RUNNING"));
    wait::eventually("all of it runs", PATIENCE, || {
        (kernel::tasks_below(&cluster.cgroups_root).len() >= 4).then_some(())
    });
    let (_, supervisor) = stat(hit).expect("it lives");
    let killed = Instant::now();
    kernel::kill(supervisor, Signal::SIGKILL);
    let status = framework.until_state("hit", "TASK_FAILED");
    let took = killed.elapsed();
    eprintln!(
        "told after {took:?}: {} {}",
        status["reason"], status["message"]
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(status["reason"], "REASON_EXECUTOR_TERMINATED", "{status:#}");
    let left = kernel::tasks_below(&cluster.cgroups_root);
    assert_eq!(left, [other]);
    assert_eq!(kernel::start_time(other), born);
    framework.kill("other");
    framework.until_state("other", "TASK_KILLED");
    nothing_is_left(&cluster);
}

fn killed_executor_ends_its_tasks() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let offer = standing_offer(&mut framework);
    let resources = task(&offer, "x", "", SMALL)["resources"].clone();
    let tasks: Vec<_> = ["hit", "other"]
        .into_iter()
        .flat_map(|id| {
            let info = executor::info(id, &framework.id, &resources);
            let of_executor = ["a", "b"].map(|part| {
                let id = format!("{id}-{part}");
                let mut task = task(&offer, &id, "exec sleep 600", SMALL);
                executor::assign(&mut task, &info);
                task
            });
            of_executor.into_iter()
        })
        .collect();
    framework.launch(&offer, &tasks);
    let mut executors = Vec::new();
    for id in ["hit-a", "hit-b", "other-a", "other-b"] {
        let status = framework.until_state(id, "TASK_RUNNING");
        executors.push(pid_of(&status));
    }
    assert_eq!(executors[0], executors[1]);
    let killed = Instant::now();
    kernel::kill(executors[0], Signal::SIGKILL);
    for id in ["hit-a", "hit-b"] {
        let status = framework.until_state(id, "TASK_FAILED");
        assert_eq!(status["reason"], "REASON_EXECUTOR_TERMINATED", "{status:#}");
    }
    let took = killed.elapsed();
    eprintln!("told after {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    for id in ["other-a", "other-b"] {
        framework.kill(id);
        framework.until_state(id, "TASK_KILLED");
    }
    framework.teardown();
    nothing_is_left(&cluster);
}

/// Returns the sandbox of a task's only run.
fn sandbox(cluster: &Cluster, framework: &Framework, id: &str) -> PathBuf {
    let state = cluster.agent().page("/state").json();
    let frameworks = state["frameworks"].as_array().cloned().unwrap_or_default();
    let own = frameworks
        .iter()
        .find(|one| one["id"] == framework.id.as_str());
    let executors = own
        .and_then(|one| one["executors"].as_array())
        .expect("executors");
    let executor = executors.iter().find(|one| one["id"] == id);
    let directory = executor.and_then(|one| one["directory"].as_str());
    PathBuf::from(directory.expect("a folder"))
}

/// Returns the longest response time of an agent until this condition holds.
fn slowest_answer(cluster: &Cluster, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let mut slowest = Duration::ZERO;
    wait::eventually(what, Duration::from_secs(120), || {
        let asked = Instant::now();
        assert_eq!(
            http::get(&format!("{}/health", cluster.agent().url)).status,
            200
        );
        slowest = slowest.max(asked.elapsed());
        holds().then_some(())
    });
    slowest
}

fn huge_sandbox_is_collected() {
    const FILES: usize = 20_000;
    let mut setup = Setup::default();
    let flags = ["--gc_delay=2secs", "--disk_watch_interval=1secs"];
    setup.agent_flags.extend(flags.map(str::to_owned));
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let outside = cluster.dir.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    let kept = outside.join("kept");
    std::fs::write(&kept, "kept").expect("written");
    let go = cluster.dir.path().join("go");
    let command = format!(
        "mkfifo pipe; ln -s {0} link; ln {0}/kept name; \
         d=.; i=0; while [ $i -lt 100 ]; do d=$d/deep; mkdir $d; i=$((i+1)); done; \
         mkdir many; cd many; seq {FILES} | xargs touch; cd ..; touch made; \
         until [ -e {1} ]; do sleep 0.05; done",
        outside.display(),
        go.display()
    );
    launch(
        &mut framework,
        "t",
        &command,
        &[("cpus", 1.0), ("mem", 64.0)],
    );
    framework.until_state("t", "TASK_RUNNING");
    let sandbox = sandbox(&cluster, &framework, "t");
    wait::eventually("its files", PATIENCE, || {
        sandbox.join("made").exists().then_some(())
    });
    let null = makedev(1, 3);
    mknod(&sandbox.join("device"), SFlag::S_IFCHR, Mode::S_IRUSR, null).expect("a device");
    let names_of_kept = || std::fs::metadata(&kept).expect("there").nlink();
    assert_eq!(names_of_kept(), 2);
    std::fs::write(&go, "").expect("written");
    framework.until_state("t", "TASK_FINISHED");
    let collected = || !sandbox.exists();
    let slowest = slowest_answer(&cluster, "the sandbox is collected", collected);
    eprintln!("the slowest answer meanwhile took {slowest:?}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    assert_eq!(std::fs::read_to_string(&kept).expect("kept"), "kept");
    assert_eq!(names_of_kept(), 1);
    assert!(Path::new("/dev/null").exists());
    launch(&mut framework, "after", "true", SMALL);
    framework.until_state("after", "TASK_FINISHED");
}
