//! The capacity of the master: tasks per second, offers during reconciliation, idle and stalled frameworks.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example load -- [AGENTS] [TASKS]` starts a
//! master with its durable registry on loopback, simulated agents in a process of their own (this program again), and uses
//! gRPC with both. Prints one line for each figure.
//!
//! Other modes, as `... --example load -- MODE`:
//! - `state [AGENTS] [TASKS] [FRAMEWORKS]`: readers of a large cluster.
//! - `acls [AGENTS] [TASKS] [ROLES]`: readers with rules about their view.
//! - `watched [TASKS]`: the memory of the master while such readers follow the events.
//! - `reconcile [AGENTS] [TASKS]`: offers while one framework asks for all its tasks in one call.
//! - `stay [AGENTS] [TASKS] [FLAGS]`: tasks that stay until input ends, for readers outside (`tests/ui/scale.js`).
//! - `failover [AGENTS] [TASKS]`: the time from `kill -9` of the master until all agents and tasks are back at the next.
//! - `updates [AGENTS] [TASKS] [KILLS]`: whether updates are lost when the master is killed among very many.
#![expect(
    clippy::disallowed_macros,
    reason = "a program of its own, whose runtime is the usual one"
)]
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod acls;
mod failover;
mod framework;
mod reconcile;
mod returning;
mod state;
mod stay;
mod updates;

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use framework::Framework;
use meseta_tests::kernel::memory_kib;
use meseta_tests::simulated_agents;

const AGENTS: usize = 100;
const TASKS: usize = 50_000;
/// Tasks in the one RECONCILE.
const RECONCILED: usize = 100_000;
const IDLE: usize = 1_000;
const STALLED: usize = 10;
const LATENCIES: usize = 200;
/// The time for the master to answer clients that do not read.
const SETTLE: Duration = Duration::from_secs(3);

/// A child process that ends with this program.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Returns the resident memory in megabytes.
    fn resident_mb(&self) -> anyhow::Result<u64> {
        let kib = memory_kib(i32::try_from(self.0.id())?, "VmRSS");
        Ok(kib.context("VmRSS")? / 1024)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, master, count] = arguments.as_slice()
        && role == "agents"
    {
        return simulated_agents::run(master, count.parse()?, simulated_agents::PLENTY).await;
    }
    if let [role, master, first, count] = arguments.as_slice()
        && role == "returning"
    {
        return returning::run(master, first.parse()?, count.parse()?).await;
    }
    if let [role, url, who @ ..] = arguments.as_slice()
        && role == "read"
    {
        return state::read(url, who.first().map(String::as_str));
    }
    let rest = arguments.get(1..).unwrap_or_default();
    match arguments.first().map(String::as_str) {
        Some("state") => state::measure(rest).await,
        Some("acls") => acls::measure(rest).await,
        Some("watched") => acls::watch(rest).await,
        Some("failover") => failover::measure(rest).await,
        Some("stay") => stay::run(rest).await,
        Some("updates") => updates::measure(rest).await,
        Some("reconcile") => reconcile::measure(rest).await,
        _ => measure(&arguments).await,
    }
}

/// Returns the number at this place of the arguments.
fn number(arguments: &[String], index: usize, default: usize) -> anyhow::Result<usize> {
    match arguments.get(index) {
        Some(text) => text.parse().context("a number"),
        None => Ok(default),
    }
}

async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let (agents, tasks) = (number(arguments, 0, AGENTS)?, number(arguments, 1, TASKS)?);
    let dir = tempfile::tempdir()?;
    let (master, address) =
        start_master(dir.path(), &["--max_completed_tasks_per_framework=10"]).await?;
    let _agents = start_agents(address, agents)?;
    wait_for_agents(address, agents).await?;
    println!("{agents} agents, {} MB resident", master.resident_mb()?);
    throughput(address, tasks).await?;
    println!("after {tasks} tasks: {} MB resident", master.resident_mb()?);

    let mut framework = Framework::subscribe(address, "measured").await?;
    let alone = framework.offer_latencies(LATENCIES).await?;
    report("offer latency, alone", &alone);
    reconcile_unknown(address, &mut framework).await?;
    println!(
        "after the reconciliation: {} MB resident",
        master.resident_mb()?
    );
    idle(address, &mut framework).await?;
    println!("with them: {} MB resident", master.resident_mb()?);
    Ok(())
}

async fn start_master(
    dir: &std::path::Path,
    flags: &[&str],
) -> anyhow::Result<(Process, SocketAddr)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok((start_master_at(address, dir, flags).await?, address))
}

/// Starts a master at the address of an earlier one.
async fn start_master_at(
    address: SocketAddr,
    dir: &std::path::Path,
    flags: &[&str],
) -> anyhow::Result<Process> {
    let program = std::env::current_exe()?;
    let target = program
        .parent()
        .and_then(|dir| dir.parent())
        .context("a target directory")?;
    let child = Command::new(target.join("meseta"))
        .arg("master")
        .args(flags)
        .arg(format!("--port={}", address.port()))
        .arg(format!("--work_dir={}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("build it first: cargo build --release -p meseta")?;
    let master = Process(child);
    let start = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        if start.elapsed() > Duration::from_secs(30) {
            bail!("the master does not listen");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(master)
}

fn start_agents(master: SocketAddr, count: usize) -> anyhow::Result<Process> {
    let child = Command::new(std::env::current_exe()?)
        .args(["agents", &master.to_string(), &count.to_string()])
        .spawn()?;
    Ok(Process(child))
}

/// Waits until each agent is on offer.
async fn wait_for_agents(master: SocketAddr, count: usize) -> anyhow::Result<()> {
    let mut framework = Framework::subscribe(master, "waiting").await?;
    while framework.offers() < count {
        framework.step().await?;
    }
    framework.teardown().await
}

async fn throughput(master: SocketAddr, tasks: usize) -> anyhow::Result<()> {
    let mut framework = Framework::subscribe(master, "throughput").await?;
    while framework.offers() == 0 {
        framework.step().await?;
    }
    let start = Instant::now();
    framework.run_tasks(tasks).await?;
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = tasks as f64 / seconds;
    println!(
        "{tasks} tasks launched, run, finished and acknowledged in {seconds:.2} s: {rate:.0} a second"
    );
    framework.teardown().await
}

/// Sends one RECONCILE with very many tasks, while another framework requests offers.
async fn reconcile_unknown(master: SocketAddr, framework: &mut Framework) -> anyhow::Result<()> {
    let mut asking = Framework::subscribe_suppressed(master, "asking").await?;
    let start = Instant::now();
    let answers = tokio::spawn(async move {
        asking.reconcile_unknown(RECONCILED).await?;
        while asking.updates < RECONCILED {
            asking.step().await?;
        }
        let took = start.elapsed();
        asking.teardown().await?;
        anyhow::Ok(took)
    });
    let mut latencies = Vec::new();
    while !answers.is_finished() {
        latencies.extend(framework.offer_latencies(1).await?);
    }
    let took = answers.await??;
    println!(
        "{RECONCILED} tasks reconciled in {:.2} s",
        took.as_secs_f64()
    );
    report("offer latency meanwhile", &latencies);
    Ok(())
}

/// Runs many frameworks without any demand, and some that do not even read their answers.
async fn idle(master: SocketAddr, framework: &mut Framework) -> anyhow::Result<()> {
    let mut others = Vec::new();
    for index in 0..IDLE {
        let idle = Framework::subscribe_suppressed(master, &format!("idle-{index}")).await?;
        others.push(idle.read_in_background());
    }
    let mut stalled = Vec::new();
    for index in 0..STALLED {
        let mut one = Framework::subscribe_suppressed(master, &format!("stalled-{index}")).await?;
        one.reconcile_unknown(20_000).await?;
        stalled.push(one);
    }
    // Wait until their answers lie unread in the queues.
    tokio::time::sleep(SETTLE).await;
    let latencies = framework.offer_latencies(LATENCIES).await?;
    report(
        &format!("offer latency beside {IDLE} idle and {STALLED} stalled frameworks"),
        &latencies,
    );
    for other in others {
        other.abort();
    }
    Ok(())
}

fn report(what: &str, latencies: &[Duration]) {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| {
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted
            .get(index)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    println!(
        "{what}: p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms ({} times)",
        at(50),
        at(99),
        at(100),
        sorted.len()
    );
}
