//! Services of three instances with `spread`, one after the other, on three racks: each has to reach all three.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example spreads -- [SERVICES]`, as root; 20 by
//! default, in some minutes. The limit of the role is worth one machine, so that the master offers one at a time, and
//! another framework takes every offer that it gets and gives it back after some seconds. Exits with 1 if a service has two
//! instances on one rack, or is not healthy in time.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use meseta_tests::jobs::Scheduler;
use meseta_tests::wait::holds;
use meseta_tests::{Cluster, Encoding, Framework, Setup, framework, http};
use serde_json::{Value, json};

const RACKS: [&str; 3] = ["r1", "r2", "r3"];
const ROLE: &str = "ads";
/// The time for which the other framework keeps each offer.
const HELD_FOR: Duration = Duration::from_secs(4);
/// The time from a submission until all instances are healthy, and from a stop until all have ended.
const LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// A framework that holds offers for a while without using them, on a separate thread.
struct Holder {
    held: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Holder {
    fn start(cluster: &Cluster) -> Self {
        let info = framework::framework_info("holder");
        let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
        let (held, is_over) = (Arc::default(), Arc::<AtomicBool>::default());
        let (count, end) = (Arc::<AtomicUsize>::clone(&held), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut offers: Vec<(Instant, Value)> = Vec::new();
            while !end.load(Ordering::Relaxed) {
                if let Ok(event) = framework.within(LOOK, &|event| event["type"] == "OFFERS") {
                    for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
                        count.fetch_add(1, Ordering::Relaxed);
                        offers.push((Instant::now(), offer.clone()));
                    }
                }
                offers.retain(|(since, offer)| {
                    let is_kept = since.elapsed() < HELD_FOR;
                    if !is_kept {
                        framework.decline(offer, 0.0);
                    }
                    is_kept
                });
            }
            framework.teardown();
        });
        Self {
            held,
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let services = match std::env::args().nth(1) {
        Some(text) => text.parse().context("a number of services")?,
        None => 20,
    };
    let racks = RACKS.map(|rack| vec![format!("--attributes=rack:{rack}")]);
    let cluster = Cluster::start(Setup {
        agents: RACKS.len(),
        agent_flags: vec!["--resources=cpus:2;mem:1024;disk:1024".to_owned()],
        flags_of_each: racks.into(),
        ..Setup::default()
    });
    limit(&cluster)?;
    let scheduler = Scheduler::start(&cluster);
    let holder = Holder::start(&cluster);
    let began = Instant::now();
    let mut spread = 0;
    for number in 0..services {
        let (took, racks) = place(&scheduler, &format!("web-{number}"))?;
        let is_even = racks.iter().collect::<BTreeSet<_>>().len() == RACKS.len();
        spread += u64::from(is_even);
        let word = if is_even { "" } else { "BROKEN: " };
        println!("{word}web-{number}: {} after {took:.1?}", racks.join(" "));
    }
    println!(
        "{spread} of {services} services on three racks in {:.0?}; the other framework held {} offers meanwhile",
        began.elapsed(),
        holder.held.load(Ordering::Relaxed)
    );
    Ok(ExitCode::from(u8::from(spread < services)))
}

/// Limits the role to the resources of one machine.
fn limit(cluster: &Cluster) -> anyhow::Result<()> {
    let limits =
        json!({ "cpus": { "value": 2 }, "mem": { "value": 1024 }, "disk": { "value": 1024 } });
    let call = json!({
        "type": "UPDATE_QUOTA",
        "update_quota": { "quota_configs": [{ "role": ROLE, "limits": limits }] },
    });
    let answer = http::post_json(&format!("{}/api/v1", cluster.master.url), &call);
    ensure!(
        answer.status == 200,
        "the quota is refused ({}): {}",
        answer.status,
        answer.text()
    );
    Ok(())
}

/// Runs a service until it is healthy, purges it, and returns the time and the racks of its instances.
fn place(scheduler: &Scheduler, name: &str) -> anyhow::Result<(Duration, Vec<String>)> {
    let began = Instant::now();
    scheduler.submit(&json!({
        "name": name,
        "role": ROLE,
        "count": RACKS.len(),
        "task": { "command": "exec sleep infinity", "env": { "AGENT": "${hostname}" } },
        "resources": { "cpus": 0.5, "mem": "32MB" },
        "constraints": [{ "attribute": "rack", "spread": true }],
        "update": { "healthy_after": "500ms" },
    }));
    let mut last = Value::Null;
    let is_healthy = holds(LIMIT, || {
        std::thread::sleep(LOOK);
        last = scheduler.job(name).unwrap_or_default();
        last["state"] == "healthy"
    });
    let took = began.elapsed();
    ensure!(is_healthy, "{name} is not healthy: {last}");
    let agents = http::get(&format!("{}/v1/jobs/{name}", scheduler.daemon.url)).json();
    let tasks = agents["tasks"].as_array().context("tasks")?;
    let ids = tasks.iter().filter_map(|task| task["agent_id"].as_str());
    let ids: Vec<String> = ids.map(str::to_owned).collect();
    let racks = racks_of(scheduler, &ids)?;
    let url = format!("{}/v1/jobs/{name}/stop", scheduler.daemon.url);
    http::post_json(&url, &json!({ "purge": true }));
    let is_gone = holds(LIMIT, || {
        std::thread::sleep(LOOK);
        scheduler.job(name).is_none()
    });
    ensure!(is_gone, "{name} does not end");
    Ok((took, racks))
}

/// Returns the racks of these agents, as the master lists them.
fn racks_of(scheduler: &Scheduler, ids: &[String]) -> anyhow::Result<Vec<String>> {
    let subscription = http::get(&format!("{}/v1/subscription", scheduler.daemon.url)).json();
    let master = subscription["master"].as_str().context("a master")?;
    let agents = http::get(&format!("{master}/slaves")).json();
    let agents = agents["slaves"].as_array().context("agents")?;
    let rack = |id: &String| {
        let agent = agents.iter().find(|agent| agent["id"] == **id)?;
        Some(agent["attributes"]["rack"].as_str()?.to_owned())
    };
    ids.iter()
        .map(|id| rack(id).context("an agent with a rack"))
        .collect()
}
