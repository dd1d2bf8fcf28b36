//! Releases of a service of ten instances behind a proxy under load: good ones, and three kinds of bad ones.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example releases -- [RELEASES]`, as root; 20
//! by default, in about ten minutes. A quarter of the releases each is good, dies after 3 s, fails its check after 6 s, and
//! hangs; every third meets a cluster without room for another instance. Exits with 1 if a request fails, if a request had
//! to be repeated though every listed instance was healthy, if a bad release does not revert by itself, or if `meseta run`,
//! the state or the history of the job reports something else.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod instance;
mod load;
mod message;
mod proxy;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use meseta_tests::daemon::binary;
use meseta_tests::jobs::Scheduler;
use meseta_tests::wait::holds;
use meseta_tests::{Cluster, Setup, http};
use serde_json::{Value, json};

use instance::Behaviour;
use load::Load;
use proxy::Proxy;

const COUNT: u64 = 10;
const JOB: &str = "web";
/// The job that fills a cluster.
const FILLER: &str = "filler";
/// The resources of ten instances and the filler.
const RESOURCES: &str = "cpus:1.3;mem:4096;disk:4096;ports:[31000-31999]";
/// The time from the start of a release until it is good, or reverted.
const RELEASE_LIMIT: Duration = Duration::from_secs(180);
/// The pause between two looks at the job.
const LOOK: Duration = Duration::from_millis(100);

/// The running programs. The fields are dropped in this order.
struct Bench {
    load: Load,
    proxy: Proxy,
    scheduler: Scheduler,
    cluster: Cluster,
}

/// A release, with the room that the cluster has for it.
#[derive(Clone, Copy, Debug)]
struct Release {
    number: u64,
    behaviour: Behaviour,
    is_full: bool,
}

impl Release {
    fn new(number: u64) -> Self {
        let kinds = Behaviour::ALL.len() as u64;
        let kind = usize::try_from(number % kinds).unwrap_or_default();
        Self {
            number,
            behaviour: Behaviour::ALL[kind],
            is_full: number.is_multiple_of(3),
        }
    }

    fn is_good(self) -> bool {
        self.behaviour == Behaviour::Good
    }

    /// Returns the limit for a release: on a full cluster one instance has to end before another starts.
    fn max_unavailable(self) -> u64 {
        u64::from(self.is_full)
    }

    fn job(self) -> anyhow::Result<Value> {
        let program = std::env::current_exe()?;
        let program = program.to_str().context("a path that is no text")?;
        // A hanging instance runs into the deadline of its update, and not into its check.
        let grace = match self.behaviour {
            Behaviour::Hangs => "10mins",
            _ => "8secs",
        };
        let number = self.number.to_string();
        Ok(json!({
            "name": JOB,
            "count": COUNT,
            "ports": ["http"],
            "task": {
                "argv": [program, "serve", self.behaviour.name(), number],
                "kill_grace": "5secs",
            },
            "resources": { "cpus": 0.1, "mem": "64MB" },
            "check": {
                "http": { "port": "http", "path": "/health" },
                "interval": "500ms", "timeout": "4secs", "failures": 2, "grace": grace,
            },
            "restart": { "first": "500ms", "longest": "2secs" },
            "update": {
                "max_unavailable": self.max_unavailable(),
                "max_surge": if self.is_full { 1 } else { 3 },
                "healthy_after": "4secs",
                "progress_deadline": "20secs",
            },
        }))
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some("serve") = arguments.first().map(String::as_str) {
        let behaviour = arguments
            .get(1)
            .and_then(|name| Behaviour::from_name(name))
            .context("serve BEHAVIOUR")?;
        return instance::serve(behaviour).map(|()| ExitCode::SUCCESS);
    }
    let releases = match arguments.first() {
        Some(text) => text.parse().context("a number of releases")?,
        None => 20,
    };
    let bench = Bench::start()?;
    let began = Instant::now();
    let mut good = bench.job()?["version"].as_u64().context("a version")?;
    let mut broken = 0;
    for release in (1..=releases).map(Release::new) {
        match bench.release(release, &mut good) {
            Ok(line) => println!("{line}"),
            Err(why) => {
                println!("BROKEN: {release:?}: {why:#}");
                broken += 1;
                // The next release begins with a healthy service.
                bench.until_well()?;
            }
        }
    }
    let (answered, _) = bench.load.answered();
    println!(
        "{releases} releases in {:.0?}, {answered} requests answered, {broken} promises broken",
        began.elapsed()
    );
    Ok(ExitCode::from(u8::from(broken > 0)))
}

impl Bench {
    fn start() -> anyhow::Result<Self> {
        let cluster = Cluster::start(Setup {
            agent_flags: vec![
                format!("--resources={RESOURCES}"),
                "--hostname=127.0.0.1".to_owned(),
            ],
            ..Setup::default()
        });
        let scheduler = Scheduler::start(&cluster);
        let first = Release {
            number: 0,
            behaviour: Behaviour::Good,
            is_full: false,
        };
        let version = scheduler.submit(&first.job()?);
        scheduler.wait_for(JOB, "healthy", version, RELEASE_LIMIT);
        let proxy = Proxy::start(&scheduler.daemon.url, JOB)?;
        let all = usize::try_from(COUNT)?;
        ensure!(
            holds(RELEASE_LIMIT, || proxy.backends() == all),
            "the proxy knows {} instances",
            proxy.backends()
        );
        Ok(Self {
            load: Load::start(proxy.address),
            proxy,
            scheduler,
            cluster,
        })
    }

    fn job(&self) -> anyhow::Result<Value> {
        self.scheduler.job(JOB).context("the job is not there")
    }

    /// Fills the room beside the ten instances, or frees it.
    fn fill(&self, is_full: bool) -> anyhow::Result<()> {
        let filler = json!({
            "name": FILLER, "count": 3, "task": { "command": "exec sleep infinity" },
            "resources": { "cpus": 0.1, "mem": "32MB" },
            "update": { "healthy_after": "1secs" },
        });
        let runs = |count: u64| {
            let job = self.scheduler.job(FILLER);
            let running = job.map_or(0, |job| job["running"].as_u64().unwrap_or_default());
            running == count
        };
        match is_full {
            true => {
                self.scheduler.submit(&filler);
                ensure!(holds(RELEASE_LIMIT, || runs(3)), "the filler does not run");
            }
            false => {
                let url = format!("{}/v1/jobs/{FILLER}/stop", self.scheduler.daemon.url);
                http::post_json(&url, &json!({ "purge": true }));
                ensure!(holds(RELEASE_LIMIT, || runs(0)), "the filler does not end");
            }
        }
        Ok(())
    }

    /// Submits a release by `meseta run` and compares the observed end with the expected end.
    fn release(&self, release: Release, good: &mut u64) -> anyhow::Result<String> {
        self.fill(release.is_full)?;
        self.load.answered();
        self.proxy.take_retries();
        let began = Instant::now();
        let run = self.run(release)?;
        let minimum = self.watch(run, release)?;
        let (took, output, is_success) = minimum.ended;
        let job = self.until_well()?;
        let back = began.elapsed();
        let (_, longest) = self.load.answered();
        let (failures, retries) = (self.load.take_failures(), self.proxy.take_retries());
        ensure!(
            failures.is_empty(),
            "{} requests failed, the first: {}; {} retries, such as {:?}",
            failures.len(),
            failures[0],
            retries.len(),
            retries.iter().take(3).collect::<Vec<_>>()
        );
        ensure!(
            retries.is_empty() || release.behaviour == Behaviour::FailsLate,
            "{} requests were repeated, such as {:?}",
            retries.len(),
            retries.iter().take(3).collect::<Vec<_>>()
        );
        ensure!(
            is_success == release.is_good(),
            "`meseta run` ended with success: {is_success}, and said {output}"
        );
        named(release, &output)?;
        let version = job["version"].as_u64().context("a version")?;
        match release.is_good() {
            true => ensure!(version > *good, "version {version} after {good}"),
            false => ensure!(version == *good, "version {version} in place of {good}"),
        }
        *good = version;
        self.history(release, version)?;
        Ok(format!(
            "{:>2} {:<10} {}: {} in {took:.1?}, well again after {back:.1?}; {} healthy at least, longest request \
             {longest:.2?}, {} retries",
            release.number,
            release.behaviour.name(),
            if release.is_full { "full" } else { "room" },
            if is_success { "done" } else { "taken back" },
            minimum.healthy,
            retries.len()
        ))
    }

    fn run(&self, release: Release) -> anyhow::Result<Child> {
        let file: PathBuf = self.cluster.dir.path().join("release.json");
        std::fs::write(&file, release.job()?.to_string())?;
        let child = Command::new(binary())
            .arg("run")
            .arg(&file)
            .args(["--scheduler", self.scheduler.daemon.address()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.context("failed to start `meseta run`")
    }

    /// Watches the job until `meseta run` has ended.
    fn watch(&self, mut run: Child, release: Release) -> anyhow::Result<Watched> {
        let began = Instant::now();
        let mut healthy = COUNT;
        let least = COUNT - release.max_unavailable();
        while run.try_wait()?.is_none() {
            if began.elapsed() > RELEASE_LIMIT {
                run.kill()?;
                bail!("`meseta run` does not end: {}", self.job()?);
            }
            let job = self.job()?;
            let now = job["healthy"].as_u64().unwrap_or_default();
            healthy = healthy.min(now);
            // An instance that fails after it was healthy may have replaced another one before.
            let is_enough = now >= least || release.behaviour == Behaviour::FailsLate;
            if !is_enough {
                run.kill()?;
                bail!("{now} instances are healthy of {least} at least: {job}");
            }
            std::thread::sleep(LOOK);
        }
        let took = began.elapsed();
        let output = run.wait_with_output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Watched {
            healthy,
            ended: (took, text, output.status.success()),
        })
    }

    /// Waits until all instances have one version and are healthy, without surplus.
    fn until_well(&self) -> anyhow::Result<Value> {
        let mut last = Value::Null;
        let is_well = holds(RELEASE_LIMIT, || {
            std::thread::sleep(LOOK);
            last = self.scheduler.job(JOB).unwrap_or_default();
            let tasks = last["tasks"].as_array().cloned().unwrap_or_default();
            let is_of_version = tasks.iter().all(|task| task["version"] == last["version"]);
            last["state"] == "healthy" && tasks.len() as u64 == COUNT && is_of_version
        });
        ensure!(is_well, "the service does not become well: {last}");
        Ok(last)
    }

    /// Checks the history: the present version is the good version, and a bad release is listed with the reason of its end.
    fn history(&self, release: Release, version: u64) -> anyhow::Result<()> {
        let url = format!("{}/v1/jobs/{JOB}/history", self.scheduler.daemon.url);
        let history = http::get(&url).json();
        let versions = history["versions"].as_array().context("versions")?;
        for one in versions {
            let is_it = one["version"] == version;
            ensure!(
                one["current"] == is_it && one["stable"] == is_it,
                "version {version} is to be the present and the good one alone: {versions:?}"
            );
        }
        let events = history["events"].as_array().context("events")?;
        let returns = format!("goes back to version {version}");
        let of_job = events.iter().filter(|one| one["task_id"].is_null());
        let texts: Vec<&str> = of_job.filter_map(|one| one["text"].as_str()).collect();
        let has_returned = texts.iter().rev().take(4).any(|one| one.contains(&returns));
        ensure!(
            has_returned != release.is_good(),
            "{returns:?} in the history: {has_returned}; {texts:?}"
        );
        Ok(())
    }
}

/// Observations of a release.
struct Watched {
    /// The smallest number of instances that were healthy at once.
    healthy: u64,
    /// The duration of `meseta run`, its output, and true if it succeeded.
    ended: (Duration, String, bool),
}

/// Checks that `meseta run` names the failure of a bad release.
fn named(release: Release, output: &str) -> anyhow::Result<()> {
    let reasons = match release.behaviour {
        Behaviour::Good => return Ok(()),
        Behaviour::Dies => ["its instances have ended 3 times", "exited with status 1"],
        Behaviour::FailsLate => [
            "its instances have ended 3 times",
            "its health checks failed",
        ],
        Behaviour::Hangs => ["no instance has become healthy for 20s", "does not run"],
    };
    for reason in reasons {
        ensure!(
            output.contains(reason),
            "`meseta run` does not say {reason:?}: {output}"
        );
    }
    Ok(())
}
