//! A tenant uses all its rights to keep another tenant's job from starting; the example measures that job meanwhile.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example tenants -- [--minutes=30] [--each=60]
//! [--limit=2] [--only=NAME,...]`, as root. The scheduler of jobs has credentials and ACLs: `mallory` may use the role
//! `mallory` and all roles below it, `bob` the role `bob`, which is guaranteed one CPU and 512 MB. The first round has no
//! attack. Then each attack of `attacks.rs` runs alone for `--each` seconds, and all together run for `--minutes`. In each
//! round bob submits one small job after the other. The example prints for each round how long the jobs of bob took until
//! the scheduler accepted them, launched their task, and the task ran. Exits with 1 if a job of bob does not run within the
//! limit in seconds, a daemon ends, or the scheduler's memory goes beyond its bound. `--only=none` measures without attacks.
//! The tasks of both tenants share the processors of this machine: on a busy machine compare with the first round.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod attacks;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use meseta_access::basic;
use meseta_tests::daemon::Daemon;
use meseta_tests::kernel::memory_kib;
use meseta_tests::priority::lower_priority;
use meseta_tests::{Cluster, Setup, http, secure};
use serde_json::{Value, json};

use crate::attacks::{ATTACKS, Attack};

const MALLORY: &str = "mallory";
const BOB: &str = "bob";
const SECRET: &str = "secret";
/// The time after which a waiting job counts as starved.
const STARVED: Duration = Duration::from_secs(60);
/// The time in which all jobs of mallory end after a round.
const CLEARED: Duration = Duration::from_secs(120);
/// The pause between two jobs of bob.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(10);
/// The largest resident memory of the scheduler: the sum of its bounds in docs/jobs.md.
const SCHEDULER_KIB_MAX: u64 = 1 << 20;

struct Bench {
    scheduler: Daemon,
    cluster: Cluster,
    jobs_of_bob: AtomicU64,
}

/// The attacks that run at the same time, and for how long.
struct Round {
    name: &'static str,
    attacks: Vec<&'static Attack>,
    length: Duration,
}

/// The times of a job of bob since its submission.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    accepted: Duration,
    launched: Duration,
    running: Duration,
}

struct Options {
    length: Duration,
    each: Duration,
    limit: Duration,
    only: Option<Vec<String>>,
}

impl Options {
    fn from_arguments() -> anyhow::Result<Self> {
        let mut options = Self {
            length: Duration::from_secs(30 * 60),
            each: Duration::from_secs(60),
            limit: Duration::from_secs(2),
            only: None,
        };
        for argument in std::env::args().skip(1) {
            let seconds = |text: &str| anyhow::Ok(Duration::try_from_secs_f64(text.parse()?)?);
            match argument.split_once('=') {
                Some(("--minutes", text)) => options.length = seconds(text)? * 60,
                Some(("--each", text)) => options.each = seconds(text)?,
                Some(("--limit", text)) => options.limit = seconds(text)?,
                Some(("--only", text)) => {
                    options.only = Some(text.split(',').map(str::to_owned).collect());
                }
                _ => bail!(
                    "{argument} is not known: tenants [--minutes=30] [--each=60] [--limit=2] [--only=NAME,...]"
                ),
            }
        }
        Ok(options)
    }

    /// Returns a round without attacks, one for each chosen attack alone, and one for all together.
    fn rounds(&self) -> Vec<Round> {
        let is_chosen = |name: &str| {
            let only = self.only.as_ref();
            only.is_none_or(|only| only.iter().any(|one| one == name))
        };
        let chosen = ATTACKS.iter().filter(|attack| is_chosen(attack.name));
        let chosen: Vec<&Attack> = chosen.collect();
        let round = |name, attacks, length| Round {
            name,
            attacks,
            length,
        };
        let mut rounds = vec![round("none", Vec::new(), self.each)];
        let alone = chosen.iter();
        rounds.extend(alone.map(|attack| round(attack.name, vec![*attack], self.each)));
        rounds.push(round("together", chosen, self.length));
        rounds.retain(|round| !round.length.is_zero());
        rounds
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::from_arguments()?;
    let mut bench = Bench::start()?;
    let mut broken = Vec::new();
    println!(
        "{:9} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7}   the latest: accepted, launched, running",
        "round", "calls", "jobs", "p50", "p90", "p99", "max"
    );
    for round in options.rounds() {
        broken.extend(round.run(&bench, options.limit));
        if let Err(why) = bench.clear() {
            broken.push(format!("after {}: {why:#}", round.name));
        }
    }
    broken.extend(bench.health());
    for promise in &broken {
        println!("BROKEN: {promise}");
    }
    Ok(ExitCode::from(u8::from(!broken.is_empty())))
}

impl Round {
    /// Runs the attacks while bob submits jobs, and prints the times of these jobs; returns the broken promises.
    fn run(&self, bench: &Bench, limit: Duration) -> Vec<String> {
        let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        let mut starts = Vec::new();
        let mut broken = Vec::new();
        std::thread::scope(|threads| {
            let (is_over, calls) = (&is_over, &calls);
            for attack in &self.attacks {
                let numbers = Arc::new(AtomicU64::new(0));
                for _ in 0..attack.threads {
                    let numbers = Arc::clone(&numbers);
                    threads.spawn(move || {
                        lower_priority();
                        while !is_over.load(Ordering::Relaxed) {
                            (attack.run)(bench, numbers.fetch_add(1, Ordering::Relaxed));
                            calls.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            }
            while began.elapsed() < self.length && broken.is_empty() {
                match bench.start_of_bob() {
                    Ok(start) => starts.push(start),
                    Err(why) => broken.push(format!("{}: a job of bob: {why:#}", self.name)),
                }
                std::thread::sleep(PAUSE);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        starts.sort_unstable_by_key(|start| start.running);
        let at = |percent: usize| {
            let index = (starts.len() * percent / 100).min(starts.len().saturating_sub(1));
            starts.get(index).copied().unwrap_or_default()
        };
        let seconds = |time: Duration| format!("{:.2}", time.as_secs_f64());
        let [p50, p90, p99, latest] = [50, 90, 99, 100].map(at);
        println!(
            "{:9} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7}   {}, {}, {}",
            self.name,
            calls.load(Ordering::Relaxed),
            starts.len(),
            seconds(p50.running),
            seconds(p90.running),
            seconds(p99.running),
            seconds(latest.running),
            seconds(latest.accepted),
            seconds(latest.launched),
            seconds(latest.running),
        );
        let late = starts.iter().filter(|start| start.running > limit).count();
        if late > 0 {
            broken.push(format!(
                "{}: {late} of {} jobs of bob ran later than {limit:?}",
                self.name,
                starts.len()
            ));
        }
        broken
    }
}

impl Bench {
    fn start() -> anyhow::Result<Self> {
        let cluster = Cluster::start(Setup {
            agents: 2,
            agent_flags: vec!["--resources=cpus:2;mem:2048;disk:2048;ports:[31000-31999]".into()],
            ..Setup::default()
        });
        let quota = json!({
            "type": "UPDATE_QUOTA",
            "update_quota": { "quota_configs": [{ "role": BOB, "guarantees": { "cpus": { "value": 1 }, "mem": { "value": 512 } } }] },
        });
        let answer = http::post_json(&format!("{}/api/v1", cluster.master.url), &quota);
        ensure!(answer.status == 200, "the quota: {}", answer.text());
        let credentials = cluster.dir.path().join("credentials");
        secure::credentials(&credentials, &[(MALLORY, SECRET), (BOB, SECRET)]);
        let roles = |principal: &str, roles: &[&str]| json!({ "principals": { "values": [principal] }, "roles": { "values": roles } });
        let of_roles = [
            roles(MALLORY, &["mallory", "mallory/%"]),
            roles(BOB, &["bob"]),
        ];
        let all_users =
            json!([{ "principals": { "values": [MALLORY, BOB] }, "users": { "type": "ANY" } }]);
        let acls = json!({
            "permissive": false,
            "register_frameworks": of_roles,
            "view_roles": of_roles,
            "run_tasks": all_users,
        });
        let flags = [
            "--port=0".to_owned(),
            format!("--master={}", cluster.master.address()),
            format!("--http_credentials={}", credentials.display()),
            "--authenticate_http_readonly".to_owned(),
            "--authenticate_http_readwrite".to_owned(),
            format!("--acls={acls}"),
        ];
        let dir = cluster.dir.path().join("scheduler");
        let scheduler = Daemon::start_logging("scheduler", &dir, &flags, "warn");
        Ok(Self {
            scheduler,
            cluster,
            jobs_of_bob: AtomicU64::new(0),
        })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.scheduler.url)
    }

    /// A request of a tenant; whether the answer was good.
    fn post(&self, who: &str, path: &str, body: &Value) -> Option<http::Answer> {
        let authorization = basic::header(who, SECRET.as_bytes());
        let headers = [
            ("authorization", &*authorization),
            ("content-type", "application/json"),
        ];
        http::try_post(&self.url(path), &headers, body.to_string().as_bytes()).ok()
    }

    fn get(&self, who: &str, path: &str) -> Option<http::Answer> {
        let authorization = basic::header(who, SECRET.as_bytes());
        http::Reader::new(&authorization).get(&self.url(path)).ok()
    }

    fn purge(&self, name: &str) {
        self.post(
            MALLORY,
            &format!("/v1/jobs/{name}/stop"),
            &json!({ "purge": true }),
        );
    }

    /// Ends all jobs of mallory.
    fn clear(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let answer = self.get(MALLORY, "/v1/jobs?limit=1000");
            let answer = answer.context("the scheduler does not answer")?.json();
            let jobs = answer["jobs"].as_array().context("jobs")?;
            if jobs.is_empty() {
                return Ok(());
            }
            ensure!(
                began.elapsed() < CLEARED,
                "{} jobs of mallory do not end",
                jobs.len()
            );
            for name in jobs.iter().filter_map(|job| job["name"].as_str()) {
                self.purge(name);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Submits a job and returns the times until its task runs, or has run.
    fn start_of_bob(&self) -> anyhow::Result<Start> {
        let number = self.jobs_of_bob.fetch_add(1, Ordering::Relaxed);
        let name = format!("bob-{number}");
        let began = Instant::now();
        let submitted = self.post(
            BOB,
            "/v1/jobs",
            &json!({
                "name": name, "kind": "batch", "role": BOB,
                "task": { "command": "exec sleep 0.2" },
                "resources": { "cpus": 0.1, "mem": "32MB" },
            }),
        );
        let submitted = submitted.context("the scheduler does not answer")?;
        ensure!(
            submitted.status == 200,
            "refused with {}: {}",
            submitted.status,
            submitted.text()
        );
        let mut start = Start {
            accepted: began.elapsed(),
            ..Start::default()
        };
        let mut last = Value::Null;
        while began.elapsed() < STARVED {
            let answer = self.get(BOB, &format!("/v1/jobs/{name}"));
            if let Some(answer) = answer.filter(|answer| answer.status == 200) {
                last = answer.json();
                let now = began.elapsed();
                let has_ended = last["state"] == "complete";
                let has_task = last["tasks"].as_array().is_some_and(|all| !all.is_empty());
                if start.launched.is_zero() && (has_task || has_ended) {
                    start.launched = now;
                }
                if last["running"] == 1 || has_ended {
                    start.running = now;
                    self.post(
                        BOB,
                        &format!("/v1/jobs/{name}/stop"),
                        &json!({ "purge": true }),
                    );
                    return Ok(start);
                }
            }
            std::thread::sleep(LOOK);
        }
        bail!("{name} does not run after {STARVED:?}: {last}")
    }

    /// Prints the memory of the daemons; returns the broken promises.
    fn health(&mut self) -> Vec<String> {
        let mut broken = Vec::new();
        let daemons = [
            ("master", &mut self.cluster.master),
            ("scheduler", &mut self.scheduler),
        ];
        for (name, daemon) in daemons {
            if daemon.has_ended() {
                broken.push(format!("the {name} has ended: {}", daemon.log_text()));
            }
            let highest = memory_kib(daemon.pid(), "VmHWM").unwrap_or_default();
            println!("{name}: {} MiB resident at most", highest >> 10);
            if name == "scheduler" && highest > SCHEDULER_KIB_MAX {
                broken.push(format!("the scheduler had {} MiB", highest >> 10));
            }
        }
        broken
    }
}
