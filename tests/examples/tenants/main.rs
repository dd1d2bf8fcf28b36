//! A tenant uses all its rights to keep another tenant's job from starting; the example measures that job meanwhile.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example tenants -- [--minutes=30] [--limit=2]
//! [--only=NAME,...]`, as root. The scheduler of jobs has credentials and ACLs: `mallory` may use the role `mallory` and
//! all roles below it, `bob` the role `bob`, which is guaranteed one CPU. Each attack repeats on a thread of its own.
//! Meanwhile bob submits one small job after the other. Exits with 1 if a job of bob does not run within the limit in
//! seconds, a daemon ends, or the scheduler's memory goes beyond its bound. `--only=none` measures without attacks. The
//! tasks of both tenants share the processors of this machine: on a busy machine compare with that.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::Write as _;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use meseta_access::basic;
use meseta_tests::daemon::Daemon;
use meseta_tests::kernel::memory_kib;
use meseta_tests::priority::lower_priority;
use meseta_tests::{Cluster, Setup, http, secure};
use serde_json::{Value, json};

const MALLORY: &str = "mallory";
const BOB: &str = "bob";
const SECRET: &str = "secret";
/// The time after which a waiting job counts as starved.
const STARVED: Duration = Duration::from_secs(60);
/// The pause between two jobs of bob.
const PAUSE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(10);
/// The largest resident memory of the scheduler: the sum of its bounds in docs/jobs.md.
const SCHEDULER_KIB_MAX: u64 = 1 << 20;

/// An attack: its name, and one round of it; the number distinguishes the rounds.
type Attack = (&'static str, fn(&Bench, u64));

const ATTACKS: [Attack; 9] = [
    ("roles", roles),
    ("patterns", patterns),
    ("gangs", gangs),
    ("arrays", arrays),
    ("crashes", crashes),
    ("updates", updates),
    ("bodies", bodies),
    ("reads", reads),
    ("streams", streams),
];

struct Bench {
    scheduler: Daemon,
    cluster: Cluster,
    /// The number of calls of each attack.
    counts: [AtomicU64; ATTACKS.len()],
    is_over: AtomicBool,
}

struct Options {
    length: Duration,
    limit: Duration,
    only: Option<Vec<String>>,
}

impl Options {
    fn from_arguments() -> anyhow::Result<Self> {
        let mut options = Self {
            length: Duration::from_secs(30 * 60),
            limit: Duration::from_secs(2),
            only: None,
        };
        for argument in std::env::args().skip(1) {
            let seconds = |text: &str| anyhow::Ok(Duration::try_from_secs_f64(text.parse()?)?);
            match argument.split_once('=') {
                Some(("--minutes", text)) => options.length = seconds(text)? * 60,
                Some(("--limit", text)) => options.limit = seconds(text)?,
                Some(("--only", text)) => {
                    options.only = Some(text.split(',').map(str::to_owned).collect());
                }
                _ => bail!(
                    "{argument} is not known: tenants [--minutes=30] [--limit=2] [--only=NAME,...]"
                ),
            }
        }
        Ok(options)
    }

    fn is_chosen(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| only.iter().any(|one| one == name))
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::from_arguments()?;
    let mut bench = Bench::start()?;
    let began = Instant::now();
    let (starts, broken) = std::thread::scope(|threads| {
        for (index, (name, attack)) in ATTACKS.into_iter().enumerate() {
            if options.is_chosen(name) {
                let bench = &bench;
                threads.spawn(move || bench.repeat(index, attack));
            }
        }
        let mut starts = Vec::new();
        let mut broken = Vec::new();
        while began.elapsed() < options.length && broken.is_empty() {
            match bench.start_of_bob(starts.len()) {
                Ok(took) => starts.push(took),
                Err(why) => broken.push(format!("a job of bob: {why:#}")),
            }
            std::thread::sleep(PAUSE);
        }
        bench.is_over.store(true, Ordering::Relaxed);
        (starts, broken)
    });
    let broken = bench.report(starts, broken, &options);
    for promise in &broken {
        println!("BROKEN: {promise}");
    }
    Ok(ExitCode::from(u8::from(!broken.is_empty())))
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
            "update_quota": { "quota_configs": [{ "role": BOB, "guarantees": { "cpus": { "value": 1 } } }] },
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
            counts: Default::default(),
            is_over: AtomicBool::new(false),
        })
    }

    fn repeat(&self, index: usize, attack: fn(&Self, u64)) {
        lower_priority();
        while !self.is_over.load(Ordering::Relaxed) {
            attack(self, self.counts[index].fetch_add(1, Ordering::Relaxed));
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.scheduler.url)
    }

    /// Sends a tenant's request, and returns the response if it was good.
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

    /// Returns the time from the submission of a job until its task runs, or has run.
    fn start_of_bob(&self, number: usize) -> anyhow::Result<Duration> {
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
        let mut last = Value::Null;
        while began.elapsed() < STARVED {
            let answer = self.get(BOB, &format!("/v1/jobs/{name}"));
            if let Some(answer) = answer.filter(|answer| answer.status == 200) {
                last = answer.json();
                if last["running"] == 1 || last["state"] == "complete" {
                    let took = began.elapsed();
                    self.post(
                        BOB,
                        &format!("/v1/jobs/{name}/stop"),
                        &json!({ "purge": true }),
                    );
                    return Ok(took);
                }
            }
            std::thread::sleep(LOOK);
        }
        bail!("{name} does not run after {STARVED:?}: {last}")
    }

    /// Prints the observations; returns the broken promises.
    fn report(
        &mut self,
        mut starts: Vec<Duration>,
        mut broken: Vec<String>,
        options: &Options,
    ) -> Vec<String> {
        for ((name, _), count) in ATTACKS.iter().zip(&self.counts) {
            println!("{name:10} {} times", count.load(Ordering::Relaxed));
        }
        starts.sort_unstable();
        let at = |percent: usize| {
            let index = (starts.len() * percent / 100).min(starts.len().saturating_sub(1));
            starts.get(index).copied().unwrap_or_default()
        };
        println!(
            "{} jobs of bob ran {:.2?} (p50), {:.2?} (p99), {:.2?} at the latest after their submission",
            starts.len(),
            at(50),
            at(99),
            at(100)
        );
        let late = starts.iter().filter(|took| **took > options.limit).count();
        if late > 0 {
            broken.push(format!(
                "{late} jobs of bob ran later than {:?}",
                options.limit
            ));
        }
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

/// Returns a small task in a role of mallory's.
fn job(name: &str, role: &str, kind: &str) -> Value {
    json!({
        "name": name, "kind": kind, "role": role,
        "task": { "command": "exec sleep 1" },
        "resources": { "cpus": 0.1, "mem": "32MB" },
    })
}

/// Creates new roles continually, which become idle at once.
fn roles(bench: &Bench, number: u64) {
    let (name, role) = (format!("m-role-{number}"), format!("mallory/r{number}"));
    bench.post(MALLORY, "/v1/jobs", &job(&name, &role, "batch"));
    if let Some(number) = number.checked_sub(50) {
        bench.purge(&format!("m-role-{number}"));
    }
}

/// Submits different patterns that are large when they are compiled.
fn patterns(bench: &Bench, number: u64) {
    let constraints: Vec<Value> = (0..63)
        .map(|index| json!({ "attribute": "rack", "matches": format!("(a|b|{number}-{index}){{1,200}}[a-z]{{1,50}}") }))
        .collect();
    let (name, role) = (
        format!("m-pattern-{}", number % 40),
        format!("mallory/p{}", number % 40),
    );
    let mut job = job(&name, &role, "batch");
    job["constraints"] = json!(constraints);
    bench.post(MALLORY, "/v1/jobs", &job);
    bench.post(MALLORY, "/v1/jobs/plan", &job);
}

/// Submits gangs that never fit, each in its own role, which hold offers.
fn gangs(bench: &Bench, number: u64) {
    let (name, role) = (
        format!("m-gang-{}", number % 400),
        format!("mallory/g{}", number % 400),
    );
    let mut job = job(&name, &role, "batch");
    job["count"] = json!(200);
    job["gang"] = json!({ "hold_at_most": "10mins" });
    bench.post(MALLORY, "/v1/jobs", &job);
}

/// Submits arrays of the longest allowed length, whose tasks end at once.
fn arrays(bench: &Bench, number: u64) {
    let name = format!("m-array-{number}");
    let mut job = job(&name, MALLORY, "batch");
    job["count"] = json!(100_000);
    job["task"] = json!({ "command": "true" });
    job["priority"] = json!(100);
    bench.post(MALLORY, "/v1/jobs", &job);
    std::thread::sleep(Duration::from_secs(5));
    bench.purge(&name);
}

/// Submits services whose tasks fail at once, with long output.
fn crashes(bench: &Bench, number: u64) {
    let name = format!("m-crash-{}", number % 100);
    let mut job = job(&name, MALLORY, "service");
    job["task"] = json!({ "command": format!("echo {number}; head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1") });
    job["restart"] = json!({ "first": "1ms", "longest": "1ms" });
    job["count"] = json!(20);
    bench.post(MALLORY, "/v1/jobs", &job);
    std::thread::sleep(Duration::from_millis(50));
}

/// Changes, scales and restarts a service continually.
fn updates(bench: &Bench, number: u64) {
    let mut job = job("m-update", MALLORY, "service");
    job["task"]["env"] = json!({ "N": number.to_string(), "LONG": "x".repeat(60_000) });
    job["count"] = json!(1 + number % 50_000);
    bench.post(MALLORY, "/v1/jobs", &job);
    bench.post(MALLORY, "/v1/jobs/m-update/restart", &json!({}));
    bench.post(
        MALLORY,
        "/v1/jobs/m-update/scale",
        &json!({ "count": 40_000 }),
    );
}

/// Sends endless bodies on a hundred connections.
fn bodies(bench: &Bench, _: u64) {
    let authorization = basic::header(MALLORY, SECRET.as_bytes());
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: {0}\r\nauthorization: {authorization}\r\ncontent-type: application/json\r\n\
         content-length: 1000000\r\n\r\n",
        bench.scheduler.address()
    );
    let open = |_| {
        let mut stream = TcpStream::connect(bench.scheduler.address()).ok()?;
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        let _ = stream.write_all(&[b' '; 900_000]);
        Some(stream)
    };
    let streams: Vec<_> = (0..100).map(open).collect();
    std::thread::sleep(Duration::from_secs(1));
    drop(streams);
}

/// Requests the most expensive responses.
fn reads(bench: &Bench, number: u64) {
    let paths = [
        "/v1/jobs",
        "/v1/jobs/m-update?limit=100000",
        "/v1/jobs/m-update/history",
        "/v1/volumes",
        "/v1/discovery/http_sd",
    ];
    let index = usize::try_from(number).unwrap_or_default() % paths.len();
    bench.get(MALLORY, paths[index]);
}

/// Opens streams of events without reading them.
fn streams(bench: &Bench, _: u64) {
    let authorization = basic::header(MALLORY, SECRET.as_bytes());
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: {authorization}\r\n\r\n",
        bench.scheduler.address()
    );
    let open = |_| {
        let mut stream = TcpStream::connect(bench.scheduler.address()).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        Some(stream)
    };
    let streams: Vec<_> = (0..50).map(open).collect();
    std::thread::sleep(Duration::from_secs(5));
    drop(streams);
}
