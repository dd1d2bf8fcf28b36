//! The attacks of mallory, each within its ACLs: one call of a function is one round of an attack.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use meseta_access::basic;
use serde_json::{Value, json};

use crate::{Bench, MALLORY, SECRET};

/// An attack that threads repeat.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// The number of threads that repeat the attack.
    pub(crate) threads: usize,
    /// A round of the attack; the number distinguishes the rounds.
    pub(crate) run: fn(&Bench, u64),
}

const fn attack(name: &'static str, threads: usize, run: fn(&Bench, u64)) -> Attack {
    Attack { name, threads, run }
}

pub(crate) const ATTACKS: [Attack; 10] = [
    attack("roles", 1, roles),
    attack("patterns", 1, patterns),
    attack("gangs", 1, gangs),
    attack("arrays", 1, arrays),
    attack("crashes", 1, crashes),
    attack("updates", 1, updates),
    attack("changes", 100, changes),
    attack("bodies", 1, bodies),
    attack("reads", 1, reads),
    attack("streams", 1, streams),
];

/// A small task in a role of mallory's.
fn job(name: &str, role: &str, kind: &str) -> Value {
    json!({
        "name": name, "kind": kind, "role": role,
        "task": { "command": "exec sleep 1" },
        "resources": { "cpus": 0.1, "mem": "32MB" },
    })
}

/// New roles without end, which become idle at once.
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

/// Gangs that never fit, each in a role of its own, which hold offers.
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

/// Arrays as long as they may be, of tasks that end at once.
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

/// A service that is changed, scaled and restarted without end.
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

/// Restarts a service of many instances, from many connections at the same time.
fn changes(bench: &Bench, number: u64) {
    let name = "m-change";
    if number.is_multiple_of(1_000) {
        let mut job = job(name, MALLORY, "service");
        job["count"] = json!(50_000);
        bench.post(MALLORY, "/v1/jobs", &job);
    }
    bench.post(MALLORY, &format!("/v1/jobs/{name}/restart"), &json!({}));
}

/// Bodies that never end, of a hundred connections.
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

/// The most expensive questions.
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

/// Streams of events without a reader.
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
