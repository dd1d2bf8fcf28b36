//! The capacity of the job scheduler: a service of very many tasks until all run, and a long array until all have ended.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example jobs_load -- [AGENTS] [TASKS] [ARRAY]`
//! starts a master with its durable registry and a scheduler on loopback, with simulated agents in a process of their own
//! (this program again) over gRPC; 1,000 agents, a service of 10,000 tasks and an array of 100,000 by default. Prints the
//! times, the CPU usage meanwhile, and the memory of the scheduler.
#![expect(
    clippy::disallowed_macros,
    reason = "a program of its own, whose runtime is the usual one"
)]
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use meseta_tests::daemon::Daemon;
use meseta_tests::kernel::memory_kib;
use meseta_tests::{http, simulated_agents};
use serde_json::{Value, json};

/// The resources of each agent: room for some thirty tasks.
const RESOURCES: &str = "cpus:32;mem:65536;disk:65536";
const LOG_LEVEL: &str = "warn";
/// The time limit for all tasks of the service to run, and then for the array to end.
const SERVICE_LIMIT: Duration = Duration::from_secs(300);
const ARRAY_LIMIT: Duration = Duration::from_secs(1_800);
/// The pause between two looks at a job.
const LOOK: Duration = Duration::from_millis(50);
/// The clock ticks of a second in `/proc` (`getconf CLK_TCK`).
const TICKS: f64 = 100.0;

/// A child process that ends with this program.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes of the measurement.
struct Cluster {
    scheduler: Daemon,
    agents: Process,
    master: Daemon,
    _dir: tempfile::TempDir,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, master, count] = arguments.as_slice()
        && role == "agents"
    {
        return simulate(master, count.parse()?);
    }
    let number = |index: usize, usual: usize| match arguments.get(index) {
        Some(text) => text.parse().context("a number"),
        None => Ok(usual),
    };
    let (agents, tasks, array) = (number(0, 1_000)?, number(1, 10_000)?, number(2, 100_000)?);
    let cluster = Cluster::start(agents)?;
    println!("{agents} agents; idle scheduler: {}", cluster.memory()?);
    cluster.service(tasks)?;
    cluster.array(array)
}

#[tokio::main]
async fn simulate(master: &str, count: usize) -> anyhow::Result<()> {
    simulated_agents::run(master, count, RESOURCES).await
}

impl Cluster {
    fn start(agents: usize) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let start = |verb: &str, flags: &[String]| {
            Daemon::start_logging(verb, &dir.path().join(verb), flags, LOG_LEVEL)
        };
        let kept = "--max_completed_tasks_per_framework=10".to_owned();
        let master = start("master", &["--port=0".to_owned(), kept]);
        let child = Command::new(std::env::current_exe()?)
            .args(["agents", master.address(), &agents.to_string()])
            .stdout(Stdio::null())
            .spawn()?;
        let process = Process(child);
        until(
            "all agents are registered",
            Duration::from_secs(120),
            || {
                let metrics = http::get(&format!("{}/metrics/snapshot", master.url)).json();
                Ok(metrics["master/slaves_active"].as_f64()
                    >= Some(f64::from(u32::try_from(agents)?)))
            },
        )?;
        let of_master = format!("--master={}", master.address());
        let scheduler = start("scheduler", &["--port=0".to_owned(), of_master]);
        Ok(Self {
            scheduler,
            agents: process,
            master,
            _dir: dir,
        })
    }

    fn submit(&self, job: &Value) -> anyhow::Result<()> {
        let answer = http::post_json(&format!("{}/v1/jobs", self.scheduler.url), job);
        if answer.status != 200 {
            bail!("{}", answer.text());
        }
        Ok(())
    }

    /// Returns a job without its tasks, which is cheap.
    fn job(&self, name: &str) -> Value {
        let url = format!("{}/v1/jobs/{name}?tasks=false", self.scheduler.url);
        http::get(&url).json()
    }

    fn service(&self, tasks: usize) -> anyhow::Result<()> {
        let before = self.processors()?;
        let began = Instant::now();
        self.submit(&json!({
            "name": simulated_agents::KEPT,
            "count": tasks,
            "task": { "command": "sleep 1000" },
            "resources": { "cpus": 1, "mem": "32MB" },
        }))?;
        until("all tasks of the service run", SERVICE_LIMIT, || {
            Ok(self.job(simulated_agents::KEPT)["running"] == json!(tasks))
        })?;
        let took = began.elapsed();
        println!(
            "{tasks} tasks RUNNING {:.2} s after they were submitted{}; scheduler: {}",
            took.as_secs_f64(),
            used(&before, &self.processors()?),
            self.memory()?
        );
        Ok(())
    }

    fn array(&self, tasks: usize) -> anyhow::Result<()> {
        let before = self.processors()?;
        let began = Instant::now();
        self.submit(&json!({
            "name": "array",
            "kind": "batch",
            "count": tasks,
            "task": { "command": "true" },
            "resources": { "cpus": 1, "mem": "32MB" },
        }))?;
        let mut most = 0;
        until("the array has ended", ARRAY_LIMIT, || {
            let job = self.job("array");
            most = most.max(job["running"].as_u64().unwrap_or_default());
            Ok(job["state"] == "complete")
        })?;
        let took = began.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = tasks as f64 / took;
        println!(
            "an array of {tasks} tasks ended after {took:.1} s, {rate:.0} a second, {most} at once at most{}; scheduler: {}",
            used(&before, &self.processors()?),
            self.memory()?
        );
        let succeeded = &self.job("array")["succeeded"];
        if *succeeded != json!(tasks) {
            bail!("{succeeded} of {tasks} tasks have succeeded");
        }
        Ok(())
    }

    /// Returns the present and the highest resident memory.
    fn memory(&self) -> anyhow::Result<String> {
        let of = |key| {
            let kib = memory_kib(self.scheduler.pid(), key).context("memory")?;
            anyhow::Ok(kib / 1_024)
        };
        Ok(format!(
            "{} MB resident, {} MB at most",
            of("VmRSS")?,
            of("VmHWM")?
        ))
    }

    /// Returns the processor seconds of scheduler, master and agents.
    fn processors(&self) -> anyhow::Result<[f64; 3]> {
        let agents = i32::try_from(self.agents.0.id())?;
        let of = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (_, rest) = stat.rsplit_once(')').context("a name")?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
            let both = ticks(11).zip(ticks(12)).context("times")?;
            anyhow::Ok((both.0 + both.1) / TICKS)
        };
        Ok([
            of(self.scheduler.pid())?,
            of(self.master.pid())?,
            of(agents)?,
        ])
    }
}

fn used(before: &[f64; 3], after: &[f64; 3]) -> String {
    let [scheduler, master, agents] = [0, 1, 2].map(|at| after[at] - before[at]);
    format!(
        " (CPU: scheduler {scheduler:.1} s, master {master:.1} s, all simulated agents {agents:.1} s)"
    )
}

fn until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
