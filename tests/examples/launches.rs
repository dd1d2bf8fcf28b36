//! Launches through the whole: a framework, a master, an agent with isolators and durable checkpoints.
//!
//! `cargo build --release && cargo run --release -p meseta-tests --example launches -- [tasks] [one by one]` as
//! root. First `true` one by one: milliseconds from the ACCEPT to the RUNNING and the FINISHED update, as
//! the framework sees them. Then all tasks in one ACCEPT: how many are FINISHED per second.

use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::revocable::amount;
use meseta_tests::{Cluster, Setup};
use serde_json::Value;

const TINY: &[(&str, f64)] = &[("cpus", 0.01), ("mem", 32.0)];

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let mut next = |usual| match args.next() {
        Some(number) => number.expect("a number of tasks"),
        None => usual,
    };
    let (many, single) = (next(500), next(50));
    let setup = Setup {
        agent_flags: vec!["--resources=cpus:1000;mem:1000000;disk:1000".to_owned()],
        ..Setup::default()
    };
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let (mut running, mut finished) = (Vec::new(), Vec::new());
    for number in 0..single {
        let offer = framework.offer();
        let id = format!("one-{number}");
        let began = Instant::now();
        framework.run_task(&offer, &id, "true", TINY);
        running.push(began.elapsed());
        framework.until_state(&id, "TASK_FINISHED");
        finished.push(began.elapsed());
    }
    report("ACCEPT to RUNNING", running);
    report("ACCEPT to FINISHED", finished);
    // What the last task gave back may be offered by itself: not enough for all.
    let needed = f64::from(u32::try_from(many).unwrap_or(u32::MAX)) * TINY[0].1;
    let offer = loop {
        let offer = framework.offer();
        if amount(&offer, "cpus", false) >= needed {
            break offer;
        }
    };
    let tasks: Vec<_> = (0..many)
        .map(|number| task(&offer, &format!("many-{number}"), "true", TINY))
        .collect();
    let began = Instant::now();
    framework.launch(&offer, &tasks);
    for _ in 0..many {
        let ended = |event: &Value| event["update"]["status"]["state"] == "TASK_FINISHED";
        loop {
            let event = framework.wait_until("an update", |event| event["type"] == "UPDATE");
            framework.acknowledge(&event["update"]["status"]);
            if ended(&event) {
                break;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let count = u32::try_from(many).map_or(0.0, f64::from);
    eprintln!(
        "{many} tasks in {seconds:.2} s: {:.0} launches per second",
        count / seconds
    );
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        let found = times.get(times.len() * percent / 100);
        found.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    eprintln!(
        "{name:18} min {:6.1}  p50 {:6.1}  p90 {:6.1} ms",
        at(0),
        at(50),
        at(90)
    );
}
