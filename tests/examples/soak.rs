//! Chaos for a given time on `meseta local --masters=3 --agents=5`, and a check for leaks.
//!
//! `cargo build --profile quick` and `cargo run --profile quick -p meseta-tests --example soak -- [MINUTES] [SEED]`, as
//! root, with etcd installed; 60 minutes and seed 7 by default. In each round daemons are killed and stopped for a while
//! beside a service and a batch of jobs; then all has to come to rest, and the example counts resources. Exits with 1 if a
//! job does not come to rest, or if after the last round descriptors, groups, mounts or zombies exceed the counts after the
//! first by more than [`SLACK`]. Prints the slope of the memory.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use meseta_tests::dice::Dice;
use meseta_tests::jobs::{batch, service};
use meseta_tests::wait::{eventually, holds};
use meseta_tests::{http, kernel};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Faults of one round, and the longest pause between two.
const FAULTS: usize = 12;
const PAUSE_MS_MAX: u64 = 4_000;
/// The longest stop of a daemon: agents and masters wait longer for each other.
const STOPPED_MS_MAX: u64 = 6_000;
/// The time from the last fault of a round until all jobs have their intended state.
const REST_LIMIT: Duration = Duration::from_secs(300);
/// Looks after a round, of which the lowest counts: closed connections vanish meanwhile.
const LOOKS: usize = 6;
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// The permitted excess of a count over the first one; for descriptors, per process.
const SLACK: usize = 2;
const INSTANCES: usize = 20;
const TASKS: usize = 40;

/// A run of `meseta local`, which ends with this value.
struct Local {
    child: Child,
    dir: TempDir,
    cgroups: String,
    scheduler: String,
}

/// The resource counts at rest.
#[derive(Debug, Default)]
struct Counts {
    /// The mean per process of each kind of daemon.
    descriptors: BTreeMap<&'static str, usize>,
    /// Resident memory of all daemons, in KiB.
    memory_kib: BTreeMap<&'static str, u64>,
    groups: usize,
    mounts: usize,
    zombies: usize,
}

impl Counts {
    /// Returns the lower of each count.
    fn least(mut self, other: Self) -> Self {
        for (kind, count) in &mut self.descriptors {
            *count = (*count).min(other.descriptors[kind]);
        }
        for (kind, kib) in &mut self.memory_kib {
            *kib = (*kib).min(other.memory_kib[kind]);
        }
        self.groups = self.groups.min(other.groups);
        self.mounts = self.mounts.min(other.mounts);
        self.zombies = self.zombies.min(other.zombies);
        self
    }
}

impl Local {
    fn start() -> Self {
        let dir = TempDir::with_prefix("meseta-soak-").expect("a directory");
        let cgroups = format!("meseta-soak-{}", std::process::id());
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let child = Command::new(meseta_tests::daemon::binary())
            .args(["local", "--masters=3", "--agents=5"])
            .args(["--port=0", "--agent_port=0", "--scheduler_port=0"])
            .arg("--resources=cpus:4;mem:4096;disk:4096;ports:[31000-31999]")
            .arg(format!("--work_dir={}", dir.path().join("state").display()))
            .env("MESETA_CGROUPS_ROOT", &cgroups)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("meseta runs");
        let mut local = Self {
            child,
            dir,
            cgroups,
            scheduler: String::new(),
        };
        local.scheduler = eventually("meseta is up", Duration::from_secs(60), || {
            let log = std::fs::read_to_string(local.dir.path().join("log")).ok()?;
            let line = log
                .lines()
                .find_map(|line| line.trim().strip_prefix("jobs "))?;
            log.contains("Ctrl-C ends").then(|| line.trim().to_owned())
        });
        local
    }

    /// Returns the processes of one kind of daemon.
    fn daemons(&self, verb: &str) -> Vec<i32> {
        let state = self.dir.path().join("state");
        kernel::processes_like(&format!(" {verb} --work_dir={}/", state.display()))
    }

    fn job(&self, name: &str) -> Option<Value> {
        let answer = http::try_get(&format!("{}/v1/jobs/{name}", self.scheduler)).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Whether a job reaches this state.
    fn comes_to(&self, name: &str, state: &str) -> bool {
        holds(REST_LIMIT, || {
            std::thread::sleep(Duration::from_millis(200));
            self.job(name).is_some_and(|job| job["state"] == state)
        })
    }

    fn submit(&self, job: &Value) {
        eventually("a job is taken", REST_LIMIT, || {
            let body = job.to_string();
            let headers = [("Content-Type", "application/json")];
            let url = format!("{}/v1/jobs", self.scheduler);
            let answer = http::try_post(&url, &headers, body.as_bytes()).ok()?;
            (answer.status == 200).then_some(())
        });
    }

    fn purge(&self, name: &str) {
        eventually("a job is forgotten", REST_LIMIT, || {
            let url = format!("{}/v1/jobs/{name}/stop", self.scheduler);
            let headers = [("Content-Type", "application/json")];
            http::try_post(&url, &headers, br#"{"purge": true}"#).ok()?;
            self.job(name).is_none().then_some(())
        });
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for verb in KINDS {
            let pids = self.daemons(verb);
            let open =
                |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            let descriptors: usize = pids.iter().map(open).sum();
            let resident = pids
                .iter()
                .filter_map(|pid| kernel::memory_kib(*pid, "VmRSS"));
            counts
                .descriptors
                .insert(verb, descriptors / pids.len().max(1));
            counts.memory_kib.insert(verb, resident.sum());
        }
        counts.groups = kernel::groups_below(&self.cgroups).len();
        counts.mounts = kernel::mounts_like(&self.dir.path().display().to_string()).len();
        counts.zombies = self.zombies();
        counts
    }

    /// Counts ended processes for which no daemon and no supervisor of the cluster waits.
    fn zombies(&self) -> usize {
        let mut ours = vec![i32::try_from(self.child.id()).expect("a pid")];
        KINDS
            .iter()
            .for_each(|verb| ours.extend(self.daemons(verb)));
        ours.extend(kernel::processes_below(&self.cgroups));
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        all.filter(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            let (state, parent) = (fields.next(), fields.next());
            let parent = parent.and_then(|text| text.parse().ok());
            state == Some("Z") && parent.is_some_and(|parent| ours.contains(&parent))
        })
        .count()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        kernel::kill(
            i32::try_from(self.child.id()).expect("a pid"),
            Signal::SIGTERM,
        );
        if !holds(Duration::from_secs(60), || {
            matches!(self.child.try_wait(), Ok(Some(_)))
        }) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        kernel::remove_groups(&self.cgroups);
    }
}

const KINDS: [&str; 3] = ["master", "agent", "scheduler"];

/// Kills a daemon, or stops it for a while.
fn harm(local: &Local, dice: &mut Dice) -> Option<String> {
    let kind = *dice.pick(&["master", "agent", "agent", "scheduler"])?;
    let pid = *dice.pick(&local.daemons(kind))?;
    if dice.roll(3) > 0 {
        kernel::kill(pid, Signal::SIGKILL);
        return Some(format!("{kind} killed"));
    }
    let ms = dice.roll(STOPPED_MS_MAX);
    kernel::kill(pid, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(ms));
    kernel::kill(pid, Signal::SIGCONT);
    Some(format!("{kind} stopped for {ms} ms"))
}

/// Plays one round of faults and rest; returns the counts afterwards, and the faults.
fn round(local: &Local, number: usize, dice: &mut Dice) -> Result<(Counts, Vec<String>), String> {
    let name = format!("round-{number}");
    local.submit(&batch(&name, TASKS, "sleep 1"));
    let mut faults = Vec::new();
    for _ in 0..FAULTS {
        std::thread::sleep(Duration::from_millis(dice.roll(PAUSE_MS_MAX)));
        faults.extend(harm(local, dice));
    }
    for (job, state) in [("web", "healthy"), (name.as_str(), "complete")] {
        if !local.comes_to(job, state) {
            return Err(format!(
                "{job} does not come to be {state}: {:?}",
                local.job(job)
            ));
        }
    }
    local.purge(&name);
    let looks = (0..LOOKS).map(|_| {
        std::thread::sleep(BETWEEN_LOOKS);
        local.counts()
    });
    let counts = looks.reduce(Counts::least).unwrap_or_default();
    Ok((counts, faults))
}

/// Returns the counts that exceed the first counts by too much.
fn leaks(first: &Counts, last: &Counts) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, first: usize, last: usize| {
        if last > first + SLACK {
            found.push(format!("{what}: {first} after the first round, {last} now"));
        }
    };
    for (kind, count) in &first.descriptors {
        compare(
            &format!("descriptors of each {kind}"),
            *count,
            last.descriptors[kind],
        );
    }
    compare("groups", first.groups, last.groups);
    compare("mounts", first.mounts, last.mounts);
    compare("zombies", first.zombies, last.zombies);
    found
}

/// Returns the MiB for each hour, by least squares; points are hours and MiB.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = f64::from(u32::try_from(points.len()).unwrap_or(u32::MAX));
    let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (hours, mib) = (sum(|one| one.0), sum(|one| one.1));
    let (products, squares) = (sum(|one| one.0 * one.1), sum(|one| one.0 * one.0));
    (count * products - hours * mib) / (count * squares - hours * hours)
}

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let mut number = |usual: u64| {
        let number = given.next().and_then(|text| text.parse().ok());
        number.unwrap_or(usual)
    };
    let (minutes, seed) = (number(60), number(7));
    let began = Instant::now();
    let local = Local::start();
    local.submit(&service("web", INSTANCES, "exec sleep 100000"));
    let mut dice = Dice::new(seed);
    let mut first: Option<Counts> = None;
    let mut memory: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let mut outcome = Vec::new();
    let mut rounds = 0;
    let mut harmed = 0;
    let mut last = None;
    while began.elapsed() < Duration::from_secs(60 * minutes) && outcome.is_empty() {
        rounds += 1;
        match round(&local, rounds, &mut dice) {
            Ok((counts, faults)) => {
                harmed += faults.len();
                println!(
                    "{:>6.1} min, round {rounds}: {counts:?}",
                    began.elapsed().as_secs_f64() / 60.0
                );
                for (kind, kib) in &counts.memory_kib {
                    let mib = f64::from(u32::try_from(*kib).unwrap_or(u32::MAX)) / 1024.0;
                    let point = (began.elapsed().as_secs_f64() / 3600.0, mib);
                    memory.entry(kind).or_default().push(point);
                }
                match &first {
                    None => first = Some(counts),
                    Some(_) => last = Some(counts),
                }
            }
            Err(why) => outcome.push(why),
        }
    }
    if let (Some(first), Some(last)) = (&first, &last) {
        outcome.extend(leaks(first, last));
    }
    println!("{rounds} rounds, {harmed} faults, seed {seed}");
    for (kind, points) in &memory {
        println!("memory of all of {kind}: {:+.1} MiB an hour", slope(points));
    }
    for what in &outcome {
        println!("WRONG: {what}");
    }
    ExitCode::from(u8::from(!outcome.is_empty()))
}
