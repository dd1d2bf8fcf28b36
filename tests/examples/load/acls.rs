//! Readers of a large cluster with rules: an administrator, and a reader who may see one of very many roles.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use meseta_access::basic;
use meseta_tests::{http, secure};
use serde_json::json;

use crate::framework::Framework;
use crate::{Process, number, report, start_agents, start_master, state, wait_for_agents};

const PRINCIPALS: [(&str, &str); 2] = [
    ("admin", "an admin's secret"),
    ("reader", "a reader's secret"),
];
/// GET requests of each reader.
const READS: usize = 200;
/// Roles that get a quota in one call.
const ROLES_A_CALL: usize = 500;
const WATCHED_AGENTS: usize = 100;
/// Tasks between two checks of the master's memory.
const TASKS_A_LOOK: usize = 100_000;

fn authorization((name, secret): (&str, &str)) -> String {
    basic::header(name, secret.as_bytes())
}

/// Starts a master on which everybody may do everything, but the reader sees only one role and one user.
async fn start(dir: &Path, more: &[&str]) -> anyhow::Result<(Process, SocketAddr)> {
    let credentials_file = dir.join("people");
    secure::credentials(&credentials_file, &PRINCIPALS);
    let seen = |objects: &str, value: &str| {
        json!([{"principals": {"values": ["admin"]}, objects: {"type": "ANY"}},
               {"principals": {"values": ["reader"]}, objects: {"values": [value]}},
               {"principals": {"values": ["reader"]}, objects: {"type": "NONE"}}])
    };
    let acls = json!({
        "permissive": true,
        "view_frameworks": seen("users", "user-7"), "view_tasks": seen("users", "user-7"),
        "view_executors": seen("users", "user-7"),
        "view_roles": seen("roles", "role-7"), "get_quotas": seen("roles", "role-7"),
    });
    let rules = dir.join("acls.json");
    std::fs::write(&rules, acls.to_string())?;
    let given = [
        format!("--credentials=file://{}", credentials_file.display()),
        format!("--acls=file://{}", rules.display()),
        "--agent_ping_timeout=5mins".to_owned(),
        // Otherwise local root clients need no credentials.
        "--authenticate_http_readonly".to_owned(),
        "--authenticate_http_readwrite".to_owned(),
    ];
    let flags: Vec<&str> = given
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    start_master(dir, &flags).await
}

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index, default| number(arguments, index, default);
    let (agents, tasks, roles) = (number(0, 10_000)?, number(1, 100_000)?, number(2, 1_000)?);
    let dir = tempfile::tempdir()?;
    let history = ["--max_completed_tasks_per_framework=1000000"];
    let (master, address) = start(dir.path(), &history).await?;
    let _agents = start_agents(address, agents)?;
    wait_for_agents(address, agents).await?;
    state::fill(address, agents, tasks).await?;
    set_quotas(address, roles)?;
    println!(
        "{agents} agents, {tasks} tasks ended and {tasks} running, {roles} roles with quota, {} MB resident",
        master.resident_mb()?
    );
    let mut asking = Framework::subscribe_suppressed(address, "asking").await?;
    for person in PRINCIPALS {
        println!("--- {}", person.0);
        let who = authorization(person);
        state::read_beside_declines(address, &master, &mut asking, "/state", Some(&who)).await?;
    }
    for (how, busy) in [("alone", false), ("while tasks come and go", true)] {
        let churning = match busy {
            true => Some(churn(address).await?),
            false => None,
        };
        for person in PRINCIPALS {
            println!("--- {} {how}", person.0);
            for path in ["/quota", "/version"] {
                get(address, path, person)?;
            }
        }
        if let Some(churning) = churning {
            ensure!(
                !churning.is_finished(),
                "the tasks have ended before the reads"
            );
            churning.abort();
        }
    }
    println!("then: {} MB resident", master.resident_mb()?);
    Ok(())
}

/// Runs a framework whose tasks come and go, until it is aborted.
async fn churn(address: SocketAddr) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut framework = Framework::subscribe(address, "churning").await?;
    while framework.offers() == 0 {
        framework.step().await?;
    }
    Ok(tokio::spawn(async move {
        while framework.run_tasks(1_000).await.is_ok() {}
    }))
}

fn set_quotas(address: SocketAddr, roles: usize) -> anyhow::Result<()> {
    let all: Vec<_> = (0..roles)
        .map(|index| json!({"role": format!("role-{index}"), "limits": {"cpus": {"value": 10_000_000.0}}}))
        .collect();
    for some in all.chunks(ROLES_A_CALL) {
        let call = json!({"type": "UPDATE_QUOTA", "update_quota": {"quota_configs": some}});
        let who = authorization(PRINCIPALS[0]);
        let headers = [
            ("content-type", "application/json"),
            ("authorization", &who),
        ];
        let url = format!("http://{address}/api/v1");
        let answer = http::post(&url, &headers, call.to_string().as_bytes());
        ensure!(answer.status < 300, "{}: {}", answer.status, answer.text());
    }
    Ok(())
}

/// Sends GETs over one connection, and measures them.
fn get(address: SocketAddr, path: &str, person: (&str, &str)) -> anyhow::Result<()> {
    let client = http::Reader::new(&authorization(person));
    let url = format!("http://{address}{path}");
    let mut latencies = Vec::with_capacity(READS);
    let mut bytes = 0;
    for _ in 0..READS {
        let start = Instant::now();
        let answer = client.get(&url)?;
        latencies.push(start.elapsed());
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        bytes = answer.body.len();
    }
    report(&format!("GET {path}, {bytes} bytes"), &latencies);
    Ok(())
}

/// Watches the master's memory while both readers follow its events and tasks begin and end.
pub(crate) async fn watch(arguments: &[String]) -> anyhow::Result<()> {
    let tasks = number(arguments, 0, 1_000_000)?;
    let dir = tempfile::tempdir()?;
    let history = ["--max_completed_tasks_per_framework=10"];
    let (master, address) = start(dir.path(), &history).await?;
    let _agents = start_agents(address, WATCHED_AGENTS)?;
    wait_for_agents(address, WATCHED_AGENTS).await?;
    let events = PRINCIPALS.map(|person| follow(address, person));
    let who = crate::framework::Identity {
        role: "role-7".to_owned(),
        user: "user-7".to_owned(),
        ..crate::framework::Identity::plain("busy")
    };
    let mut done = 0;
    while done < tasks {
        let some = TASKS_A_LOOK.min(tasks - done);
        // The frameworks start one after the other, and each begins with whole agents.
        let mut framework = Framework::subscribe_as(address, &who).await?;
        while framework.offers() < WATCHED_AGENTS {
            framework.step().await?;
        }
        framework.run_tasks(some).await?;
        framework.teardown().await?;
        done += some;
        println!("after {done} tasks: {} MB resident", master.resident_mb()?);
    }
    for (person, read) in PRINCIPALS.iter().zip(events) {
        let bytes = read.load(std::sync::atomic::Ordering::Relaxed);
        ensure!(bytes > tasks as u64, "{} was told {bytes} bytes", person.0);
        println!("{} was told {} MB", person.0, bytes / 1_000_000);
    }
    Ok(())
}

/// Reads the events of an operator's stream, and counts their bytes.
fn follow(
    address: SocketAddr,
    person: (&'static str, &'static str),
) -> std::sync::Arc<std::sync::atomic::AtomicU64> {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let told = count.clone();
    std::thread::spawn(move || {
        let client = http::Reader::new(&authorization(person));
        let url = format!("http://{address}/api/v1");
        let mut events = client.stream(&url, &json!({"type": "SUBSCRIBE"}));
        let mut buffer = vec![0; 1 << 20];
        while let Ok(read) = std::io::Read::read(&mut events, &mut buffer) {
            if read == 0 {
                break;
            }
            told.fetch_add(read as u64, std::sync::atomic::Ordering::Relaxed);
        }
    });
    count
}
