//! The cost of a restart of an agent with thousands of executors: seconds, memory and descriptors.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example recovery -- [EXECUTORS] [LIVE]
//! [DESCRIPTORS]` as root; 10,000, 1,000 and no limit by default. LIVE sleeping tasks run; the agent is killed, the
//! checkpoint of one of them is copied under other ids until there are EXECUTORS, all of which name the same supervisor,
//! and the agent is started again, three times. Exits with an error if a task was lost or a process restarted.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use meseta_tests::daemon::Daemon;
use meseta_tests::framework::{framework_info, task};
use meseta_tests::wait::holds;
use meseta_tests::{Encoding, Framework, http, kernel};

const EXECUTORS: usize = 10_000;
const LIVE: usize = 1_000;
const STARTS: usize = 3;
/// Tasks in one ACCEPT.
const TASKS_PER_ACCEPT: usize = 100;
const PATIENCE: Duration = Duration::from_secs(300);
/// The time after the registration before memory and descriptors are measured.
const SETTLE: Duration = Duration::from_secs(5);
/// The ticks in a second of `/proc/PID/stat`, a constant of the kernel's interface.
const USER_HZ: f64 = 100.0;
const LOG_LEVEL: &str = "error";
/// Bytes before the body of a record in a file, and in a log; a log's own first bytes.
const FILE_HEADER_BYTES: usize = 16;
const RECORD_HEADER_BYTES: usize = 8;
const LOG_HEADER_BYTES: usize = 8;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().context("a number"))
        .collect::<Result<_, _>>()?;
    let argument = |at: usize| arguments.get(at).copied();
    let (executors, live) = (
        argument(0).unwrap_or(EXECUTORS),
        argument(1).unwrap_or(LIVE).max(1),
    );
    ensure!(
        nix::unistd::Uid::effective().is_root(),
        "needs root, for cgroups"
    );
    let dir = tempfile::tempdir()?;
    let root = format!("meseta-bench-{}", std::process::id());
    let measured = Bench::start(dir.path(), &root, argument(2))
        .and_then(|bench| bench.measure(executors, live));
    kernel::remove_groups(&root);
    measured
}

struct Bench {
    dir: PathBuf,
    flags: Vec<String>,
    prefix: Vec<String>,
    master: Daemon,
}

impl Bench {
    fn start(dir: &Path, root: &str, descriptors: Option<usize>) -> anyhow::Result<Self> {
        let flags = ["--port=0".to_owned()];
        let master = Daemon::start_logging("master", &dir.join("master"), &flags, LOG_LEVEL);
        let limit = descriptors.map(|count| format!("--nofile={count}:{count}"));
        let prefix = limit.map(|limit| vec!["prlimit".to_owned(), limit]);
        Ok(Self {
            dir: dir.to_owned(),
            flags: vec![
                "--port=0".to_owned(),
                format!("--master={}", master.address()),
                format!("--runtime_dir={}", dir.join("run").display()),
                format!("--cgroups_root={root}"),
                "--resources=cpus:1000;mem:1000000;disk:1000000".to_owned(),
                "--shutdown_tasks_on_exit".to_owned(),
            ],
            prefix: prefix.unwrap_or_default(),
            master,
        })
    }

    fn restart_master(&mut self) {
        let port = self.master.address().rsplit(':').next().map(str::to_owned);
        self.master.kill();
        let flags = [format!("--port={}", port.unwrap_or_default())];
        let dir = self.dir.join("master");
        self.master = Daemon::start_logging("master", &dir, &flags, LOG_LEVEL);
    }

    fn work_dir(&self) -> PathBuf {
        self.dir.join("agent")
    }

    fn agent(&self) -> Daemon {
        let dir = self.work_dir();
        Daemon::start_under_logging(&self.prefix, "agent", &dir, &self.flags, LOG_LEVEL)
    }

    fn measure(mut self, executors: usize, live: usize) -> anyhow::Result<()> {
        let mut agent = self.agent();
        until_registered(&agent)?;
        let mut framework = Framework::subscribe(
            &format!("{}/api/v1/scheduler", self.master.url),
            Encoding::Json,
            &framework_info("bench"),
        );
        let processes = launch(&mut framework, live)?;
        agent.kill();
        // A master that has run them would kill unknown tasks; a restarted one asks the agents.
        self.restart_master();
        let pattern = run_of(&self.work_dir().join("meta/slaves"), &name_of(0))
            .context("the checkpoint of the first task")?;
        for number in live..executors {
            copy_run(&pattern, number)?;
        }
        for _ in 0..STARTS {
            let began = Instant::now();
            agent = self.agent();
            until_registered(&agent)?;
            let registered = began.elapsed();
            std::thread::sleep(SETTLE);
            let metrics = metrics_of(&agent);
            let metric = |name: &str| metrics.get(name).copied().unwrap_or_default();
            let memory = |name: &str| kernel::memory_kib(agent.pid(), name).unwrap_or_default();
            println!(
                "{} tasks: recovered after {:.2} s, registered after {:.2} s, {:.2} s of CPU; {} MiB now, {} MiB at most; {} descriptors",
                metric("meseta_agent_tasks{state=\"running\"}"),
                metric("meseta_agent_recovery_duration_seconds"),
                registered.as_secs_f64(),
                cpu_secs(&agent)?,
                memory("VmRSS") / 1024,
                memory("VmHWM") / 1024,
                descriptors_of(&agent),
            );
            let running = metric("meseta_agent_tasks{state=\"running\"}");
            let all = u32::try_from(executors.max(live))?;
            ensure!(
                (running - f64::from(all)).abs() < 0.5,
                "{running} tasks of {all} are running"
            );
            let same = processes
                .iter()
                .filter(|(pid, born)| kernel::start_time(*pid) == Some(*born));
            ensure!(same.count() == processes.len(), "processes were lost");
            agent.kill();
        }
        agent = self.agent();
        until_registered(&agent)?;
        let began = Instant::now();
        agent.terminate(PATIENCE);
        let left = processes
            .iter()
            .filter(|(pid, born)| kernel::start_time(*pid) == Some(*born));
        ensure!(left.count() == 0, "processes are left over");
        println!("all ended after {:.2} s", began.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Returns a name; all have the same length, so that a copy differs in nothing else.
fn name_of(number: usize) -> String {
    format!("sleeper-{number:08}")
}

/// Runs tasks that sleep, and returns their processes with the start times.
fn launch(framework: &mut Framework, count: usize) -> anyhow::Result<Vec<(i32, u64)>> {
    let mut processes = Vec::new();
    let numbers: Vec<_> = (0..count).collect();
    for part in numbers.chunks(TASKS_PER_ACCEPT) {
        let offer = framework.offer();
        let small = &[("cpus", 0.01), ("mem", 32.0)];
        let tasks = part
            .iter()
            .map(|number| task(&offer, &name_of(*number), "exec sleep 100000", small));
        framework.launch(&offer, &tasks.collect::<Vec<_>>());
        for number in part {
            let status = framework.until_state(&name_of(*number), "TASK_RUNNING");
            let pid = status["container_status"]["executor_pid"].as_i64();
            let pid = i32::try_from(pid.context("a pid")?)?;
            processes.push((pid, kernel::start_time(pid).context("a start")?));
        }
    }
    Ok(processes)
}

fn until_registered(agent: &Daemon) -> anyhow::Result<()> {
    let is_registered = || metrics_of(agent).get("meseta_agent_registered") == Some(&1.0);
    ensure!(holds(PATIENCE, is_registered), "not registered");
    Ok(())
}

fn metrics_of(agent: &Daemon) -> BTreeMap<String, f64> {
    let Ok(page) = http::try_get(&format!("{}/metrics", agent.url)) else {
        return BTreeMap::new();
    };
    let text = page.text();
    let values = text.lines().filter_map(|line| line.rsplit_once(' '));
    values
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn descriptors_of(agent: &Daemon) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid()));
    open.map_or(0, Iterator::count)
}

/// Returns the CPU time of the process since its start, which hardly depends on other load.
fn cpu_secs(agent: &Daemon) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid()))?;
    let times = stat.rsplit(')').next().unwrap_or_default();
    let mut times = times.split_ascii_whitespace().skip(11);
    let mut ticks = || -> anyhow::Result<f64> { Ok(times.next().context("a time")?.parse()?) };
    Ok((ticks()? + ticks()?) / USER_HZ)
}

/// Returns the folder of a run, found by its task.
fn run_of(agents: &Path, task: &str) -> Option<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let agents = inside(agents).into_iter();
    let frameworks = agents.flat_map(|agent| inside(&agent.join("frameworks")));
    let runs = frameworks.flat_map(|one| inside(&one.join("executors").join(task).join("runs")));
    runs.into_iter().find(|run| run.join("tasks").is_dir())
}

/// Copies a run for another task, in another container.
fn copy_run(run: &Path, number: usize) -> anyhow::Result<()> {
    let (first, name) = (name_of(0), name_of(number));
    let executors = run.ancestors().nth(3).context("the folder of executors")?;
    let old = run.file_name().and_then(|name| name.to_str());
    let old = old.context("a container's name")?;
    let tail = format!("{number:012}");
    let kept = old.get(..old.len().saturating_sub(tail.len()));
    let container = format!("{}{tail}", kept.context("a longer name")?);
    let copy = executors.join(&name).join("runs").join(&container);
    let task = copy.join("tasks").join(&name);
    fs::create_dir_all(&task)?;
    for file in ["task.info", "task.updates"] {
        let mut bytes = fs::read(run.join("tasks").join(&first).join(file))?;
        replace(&mut bytes, first.as_bytes(), name.as_bytes());
        replace(&mut bytes, old.as_bytes(), container.as_bytes());
        match file {
            "task.info" => seal(&mut bytes, 8, FILE_HEADER_BYTES)?,
            _ => {
                let mut at = LOG_HEADER_BYTES;
                while at < bytes.len() {
                    let record = bytes.get_mut(at..).context("a record")?;
                    at += RECORD_HEADER_BYTES + length_at(record, 0)?;
                    seal(record, 0, RECORD_HEADER_BYTES)?;
                }
            }
        }
        fs::write(task.join(file), bytes)?;
    }
    Ok(())
}

fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    let mut at = 0_usize;
    while let Some(window) = bytes.get_mut(at..at.saturating_add(old.len())) {
        if window == old {
            window.copy_from_slice(new);
        }
        at += 1;
    }
}

fn length_at(bytes: &[u8], at: usize) -> anyhow::Result<usize> {
    let field = bytes.get(at..at + 4).context("a length")?;
    Ok(usize::try_from(u32::from_le_bytes(field.try_into()?))?)
}

/// Recomputes the checksum of a record: it follows the length, and covers the length and the body.
fn seal(record: &mut [u8], length_at_byte: usize, body_at: usize) -> anyhow::Result<()> {
    let length = length_at(record, length_at_byte)?;
    let mut sum = crc32fast::Hasher::new();
    sum.update(
        record
            .get(length_at_byte..length_at_byte + 4)
            .context("a length")?,
    );
    sum.update(record.get(body_at..body_at + length).context("a body")?);
    let place = record.get_mut(length_at_byte + 4..length_at_byte + 8);
    place
        .context("a checksum")?
        .copy_from_slice(&sum.finalize().to_le_bytes());
    Ok(())
}
