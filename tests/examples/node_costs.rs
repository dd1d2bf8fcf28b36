//! The cost of the node: the time to start, memory without containers and with a thousand, CPU, scrapes.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example node_costs -- [CONTAINERS] [STARTS]`
//! as root; 1,000 and 20 by default. Starts a master and agents of the binary beside it, on loopback, with a work directory
//! and cgroups of their own, launches containers that sleep, through a framework, and prints one line for each figure.
//! Memory is VmRSS and its anonymous part (the rest is the binary's own pages, shared with the launcher and all
//! supervisors).

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Encoding, Framework, daemon, http, kernel};

const CONTAINERS: usize = 1_000;
const STARTS: usize = 20;
/// Tasks in one ACCEPT; the master accepts up to 1,000.
const TASKS_PER_ACCEPT: usize = 250;
/// The time after the start, or after the last launch, before memory is measured.
const SETTLE: Duration = Duration::from_secs(8);
/// The time for which the agent's CPU time is measured.
const WATCH: Duration = Duration::from_secs(30);
const SCRAPES: usize = 30;
/// The time limit for any expected event.
const PATIENCE: Duration = Duration::from_secs(120);
/// The ticks in a second of `/proc/PID/stat`, a constant of the kernel's interface.
const USER_HZ: f64 = 100.0;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |usual: usize| match arguments.next() {
        Some(text) => text.parse().context("a number"),
        None => Ok(usual),
    };
    let (containers, starts) = (next(CONTAINERS)?, next(STARTS)?);
    ensure!(
        nix::unistd::Uid::effective().is_root(),
        "needs root, for cgroups"
    );
    let dir = tempfile::tempdir()?;
    let bench = Bench {
        dir: dir.path(),
        root: format!("meseta-bench-{}", std::process::id()),
        master: free_port()?,
    };
    let master = bench.master()?;
    let measured = bench.measure(&master, containers, starts);
    drop(master);
    kernel::remove_groups(&bench.root);
    measured
}

struct Bench<'a> {
    dir: &'a Path,
    root: String,
    master: SocketAddr,
}

/// A daemon process that ends with this program.
struct Process {
    child: Child,
    at: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).unwrap_or(0);
        kernel::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Bench<'_> {
    fn start(
        &self,
        verb: &str,
        name: &str,
        at: SocketAddr,
        more: &[String],
    ) -> anyhow::Result<Process> {
        let log = std::fs::File::create(self.dir.join(format!("{name}.log")))?;
        let child = Command::new(daemon::binary())
            .arg(verb)
            .arg(format!("--port={}", at.port()))
            .arg(format!("--work_dir={}", self.dir.join(name).display()))
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Process { child, at })
    }

    fn master(&self) -> anyhow::Result<Process> {
        let mut master = self.start("master", "master", self.master, &[])?;
        master.until("the master answers", |at| ask(at, "/health").is_some())?;
        Ok(master)
    }

    fn agent(&self, name: &str) -> anyhow::Result<Process> {
        let flags = [
            format!("--master={}", self.master),
            format!(
                "--runtime_dir={}",
                self.dir.join(name).join("run").display()
            ),
            format!("--cgroups_root={}", self.root),
            "--resources=cpus:1000;mem:1000000;disk:1000000".to_owned(),
            "--shutdown_tasks_on_exit".to_owned(),
        ];
        self.start("agent", name, free_port()?, &flags)
    }

    fn measure(&self, master: &Process, containers: usize, starts: usize) -> anyhow::Result<()> {
        self.starts(starts)?;
        let mut agent = self.agent("agent")?;
        agent.until("the agent is registered", is_registered)?;
        std::thread::sleep(SETTLE);
        println!("master idle                 {}", master.memory()?);
        println!("agent idle                  {}", agent.memory()?);
        let idle = agent.cpu_over(WATCH / 3)?;
        println!(
            "agent idle, CPU             {:.2} % of a core",
            idle * 100.0
        );
        if containers == 0 {
            return Ok(());
        }
        let mut framework = Framework::subscribe(
            &format!("http://{}/api/v1/scheduler", self.master),
            Encoding::Json,
            &framework_info("bench"),
        );
        self.launch(&mut framework, containers)?;
        std::thread::sleep(SETTLE);
        println!("agent, {containers:5} containers     {}", agent.memory()?);
        println!("supervisors, each           {}", self.supervisors()?);
        let busy = agent.cpu_over(WATCH)?;
        println!(
            "agent, {containers:5} containers, all its CPU at one sweep a second  {:.2} % of a core",
            busy * 100.0
        );
        scrapes("/metrics", agent.at)?;
        scrapes("/metrics/snapshot", agent.at)?;
        scrapes("/monitor/statistics", agent.at)?;
        scrapes("/containers", agent.at)?;
        println!("agent, after the scrapes    {}", agent.memory()?);
        println!("master, {containers:5} tasks         {}", master.memory()?);
        framework.teardown();
        Ok(())
    }

    /// Measures the time from the start of the program to its first answer, and until it is registered.
    fn starts(&self, count: usize) -> anyhow::Result<()> {
        let (mut healthy, mut registered) = (Vec::new(), Vec::new());
        for number in 0..count {
            let began = Instant::now();
            let mut agent = self.agent(&format!("start-{number}"))?;
            agent.until("the agent answers", |at| ask(at, "/health").is_some())?;
            healthy.push(began.elapsed());
            agent.until("the agent is registered", is_registered)?;
            registered.push(began.elapsed());
        }
        println!("agent, exec to healthy      {}", spread(&mut healthy));
        println!("agent, exec to registered   {}", spread(&mut registered));
        Ok(())
    }

    fn launch(&self, framework: &mut Framework, containers: usize) -> anyhow::Result<()> {
        let numbers: Vec<_> = (0..containers).collect();
        let began = Instant::now();
        for part in numbers.chunks(TASKS_PER_ACCEPT) {
            let offer = framework.offer();
            let small = &[("cpus", 0.01), ("mem", 32.0)];
            let tasks: Vec<_> = part
                .iter()
                .map(|number| {
                    task(
                        &offer,
                        &format!("sleeper-{number}"),
                        "exec sleep 100000",
                        small,
                    )
                })
                .collect();
            framework.launch(&offer, &tasks);
            for number in part {
                framework.until_state(&format!("sleeper-{number}"), "TASK_RUNNING");
            }
        }
        println!(
            "{containers} containers running after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Returns the mean of each supervisor's private memory.
    fn supervisors(&self) -> anyhow::Result<String> {
        let groups = kernel::groups_below(&self.root);
        let group = groups.iter().find(|group| group.ends_with(".supervisors"));
        let group = group.context("no group of supervisors")?;
        let pids = std::fs::read_to_string(group.join("cgroup.procs"))?;
        let (mut private, mut count) = (0, 0);
        for pid in pids.lines() {
            let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            private += field(&rollup, "Private_Clean:")? + field(&rollup, "Private_Dirty:")?;
            count += 1;
        }
        Ok(format!(
            "{} KB private ({count} of them)",
            private / u64::max(count, 1)
        ))
    }
}

impl Process {
    fn until(&mut self, what: &str, probe: impl Fn(SocketAddr) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !probe(self.at) {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}) before {what}");
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn memory(&self) -> anyhow::Result<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let mb = |name: &str| {
            let kb = u32::try_from(field(&status, name)?)?;
            anyhow::Ok(f64::from(kb) / 1024.0)
        };
        Ok(format!(
            "VmRSS {:5.1} MB, anonymous {:5.1} MB, most ever {:5.1} MB, {} threads",
            mb("VmRSS:")?,
            mb("RssAnon:")?,
            mb("VmHWM:")?,
            field(&status, "Threads:")?
        ))
    }

    fn cpu_secs(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after = stat.rsplit(')').next().unwrap_or_default();
        let mut times = after.split_ascii_whitespace().skip(11);
        let mut ticks = || {
            times
                .next()
                .context("a time")?
                .parse::<f64>()
                .context("a number")
        };
        Ok((ticks()? + ticks()?) / USER_HZ)
    }

    /// Returns the share of a core that the whole process used.
    fn cpu_over(&self, time: Duration) -> anyhow::Result<f64> {
        let (before, began) = (self.cpu_secs()?, Instant::now());
        std::thread::sleep(time);
        Ok((self.cpu_secs()? - before) / began.elapsed().as_secs_f64())
    }
}

/// Returns a number from a file of `Name: number`.
fn field(text: &str, name: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_ascii_whitespace().next());
    word.context(name.to_owned())?.parse().context("a number")
}

fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Returns the body of a response 200. Other waits are short, so that the first response is noticed at once.
fn ask(at: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

fn is_registered(at: SocketAddr) -> bool {
    ask(at, "/metrics/snapshot").is_some_and(|text| {
        serde_json::from_str::<serde_json::Value>(&text)
            .is_ok_and(|keys| keys["slave/registered"] == 1.0)
    })
}

fn scrapes(path: &str, at: SocketAddr) -> anyhow::Result<()> {
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..SCRAPES {
        let began = Instant::now();
        let answer = http::get(&format!("http://{at}{path}"));
        times.push(began.elapsed());
        ensure!(answer.status == 200, "{path}: {}", answer.status);
        bytes = answer.body.len();
    }
    println!("{path:27} {}, {} KB", spread(&mut times), bytes / 1024);
    Ok(())
}

fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |percent: usize| {
        let found = times.get(times.len() * percent / 100).or(times.last());
        found.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    format!(
        "least {:.1}, median {:.1}, longest {:.1} ms",
        at(0),
        at(50),
        at(100)
    )
}
