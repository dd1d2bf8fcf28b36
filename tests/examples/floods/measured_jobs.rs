//! The jobs of a tenant that behaves: how long each waits until its task runs, while the floods go on.

use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::fleet::{JOBS, MEASURED, authorization};
use crate::sockets::{Client, Reply};

/// A job that does not run by then never does.
const STARVED: Duration = Duration::from_secs(30);
/// Between two looks, and between two jobs.
const LOOK: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(500);

/// From the submission of each job until its task ran, and what went wrong.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    pub(crate) times: Vec<Duration>,
    pub(crate) failures: Vec<String>,
}

/// Submits one job after the other until the time is over.
pub(crate) fn run(bench: &Bench) -> Starts {
    let mut starts = Starts::default();
    let mut client = Client::new(bench.fleet.scheduler_address(), None);
    let mut number = 0;
    while !bench.time.is_over() {
        {
            let _runs = bench
                .master_runs
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            number += 1;
            match start(&mut client, number) {
                Ok(took) => starts.times.push(took),
                Err(error) => starts.failures.push(format!("job {number}: {error}")),
            }
        }
        bench.time.pause(PAUSE);
    }
    starts
}

fn start(client: &mut Client, number: u64) -> io::Result<Duration> {
    let name = format!("job-{number}");
    let job = json!({
        "name": name, "kind": "batch", "role": JOBS,
        "task": { "command": "exec sleep 0.2" },
        "resources": { "cpus": 0.1, "mem": "32MB" },
    });
    let began = Instant::now();
    let reply = send(client, "POST /v1/jobs", &job)?;
    if reply.status != 200 {
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        return Err(io::Error::other(format!("{}: {text}", reply.status)));
    }
    while began.elapsed() < STARVED {
        let reply = send(client, &format!("GET /v1/jobs/{name}"), &Value::Null)?;
        let job: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        if job["running"] == 1 || job["state"] == "complete" {
            let took = began.elapsed();
            let stop = format!("POST /v1/jobs/{name}/stop");
            send(client, &stop, &json!({ "purge": true }))?;
            return Ok(took);
        }
        std::thread::sleep(LOOK);
    }
    Err(io::Error::other("it does not run"))
}

fn send(client: &mut Client, line: &str, body: &Value) -> io::Result<Reply> {
    let authorization = authorization(MEASURED);
    let headers = [
        ("Content-Type", "application/json"),
        ("Authorization", authorization.as_str()),
    ];
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    client.send(line, &headers, body.as_bytes())
}
