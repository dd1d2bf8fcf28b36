//! Two gangs of 8 on 12 slots, repeatedly, beside a greedy framework.
//!
//! `cargo build --release -p meseta` and `cargo run --release -p meseta-tests --example gangs -- [SECONDS] [weights]`, as
//! root; 120 seconds by default. The role of the gangs is guaranteed 8 slots. Fails if a gang has run in part, does not run
//! for too long, or holds offers longer than permitted. With `weights` the role has twice the weight of the other one
//! instead, which is not enough for that bound: an offer contains all memory and disk of its agent, so a holding gang gives
//! its role a large dominant share, and free slots go to the other role.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use meseta_tests::jobs::Scheduler;
use meseta_tests::{Cluster, Encoding, Framework, Setup, framework, http};
use serde_json::{Value, json};

const NAMES: [&str; 2] = ["one", "two"];
const GANG: u64 = 8;
const HOLD_SECONDS: u64 = 20;
/// The duration of a task of the greedy framework, in seconds.
const GREEDY_SECONDS: u64 = 2;
const GANG_SECONDS: u64 = 3;
const LOOK: Duration = Duration::from_millis(100);
/// The time for the slower work of the master and the agents.
const SLACK: Duration = Duration::from_secs(5);

/// The greedy framework, on a thread of its own.
struct Greedy {
    launched: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Greedy {
    fn start(cluster: &Cluster) -> Self {
        let info = framework::framework_info("greedy");
        let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
        let (launched, is_over) = (Arc::default(), Arc::<AtomicBool>::default());
        let (count, end) = (Arc::clone(&launched), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Ok(event) = framework.within(Duration::from_secs(1), &|_| true) {
                    take(&framework, &event, &count);
                }
            }
            framework.teardown();
        });
        Self {
            launched,
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn take(framework: &Framework, event: &Value, launched: &AtomicUsize) {
    if event["type"] == "UPDATE" {
        return framework.acknowledge(&event["update"]["status"]);
    }
    for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
        let slots = cpus(&offer["resources"]).floor();
        let mut tasks = Vec::new();
        while f64::from(u32::try_from(tasks.len()).unwrap_or(u32::MAX)) < slots {
            let id = format!("g{}", launched.fetch_add(1, Ordering::Relaxed));
            let command = format!("exec sleep {GREEDY_SECONDS}");
            let needs = [("cpus", 1.0), ("mem", 16.0)];
            tasks.push(framework::task(offer, &id, &command, &needs));
        }
        framework.launch(offer, &tasks);
    }
}

fn cpus(resources: &Value) -> f64 {
    let resources = resources.as_array().into_iter().flatten();
    let cpus = resources.filter(|one| one["name"] == "cpus");
    cpus.filter_map(|one| one["scalar"]["value"].as_f64()).sum()
}

/// The observations about a gang.
#[derive(Debug, Default)]
struct Seen {
    runs: u32,
    submitted: Option<Instant>,
    runs_since: Option<Instant>,
    /// The times from a submission until all tasks run.
    waits: Vec<Duration>,
}

impl Seen {
    /// Submits a finished gang again; returns the contradiction, if any.
    fn look(&mut self, scheduler: &Scheduler, name: &str) -> Result<(), String> {
        let job = scheduler.job(name);
        let state = job.as_ref().and_then(|job| job["state"].as_str());
        if matches!(state, None | Some("complete")) {
            self.runs += u32::from(state.is_some());
            scheduler.submit(&gang(name));
            (self.submitted, self.runs_since) = (Some(Instant::now()), None);
            return Ok(());
        }
        let Some(job) = job else { return Ok(()) };
        let running = job["running"].as_u64().unwrap_or_default();
        let succeeded = job["succeeded"].as_u64().unwrap_or_default();
        let live = job["tasks"].as_array().map_or(0, Vec::len) as u64;
        if live > 0 && live + succeeded != GANG {
            return Err(format!(
                "{live} tasks of {name} live, {succeeded} have ended"
            ));
        }
        if running + succeeded == GANG && self.runs_since.is_none() {
            self.runs_since = Some(Instant::now());
            self.waits
                .extend(self.submitted.map(|since| since.elapsed()));
        }
        let waits = self.submitted.filter(|_| self.runs_since.is_none());
        // The gang waits for the other gang's turn and its own, each with the time in which other jobs' slots become free.
        let bound = Duration::from_secs(2 * (HOLD_SECONDS + GREEDY_SECONDS) + GANG_SECONDS) + SLACK;
        match waits.map(|since| since.elapsed()) {
            Some(waited) if waited > bound => Err(format!("{name} has not run for {waited:?}")),
            _ => Ok(()),
        }
    }
}

fn gang(name: &str) -> Value {
    json!({
        "name": name,
        "kind": "batch",
        "role": "gangs",
        "count": GANG,
        "task": { "command": format!("exec sleep {GANG_SECONDS}") },
        "resources": { "cpus": 1, "mem": "16MB" },
        "gang": { "hold_at_most": format!("{HOLD_SECONDS}secs") },
    })
}

/// Offers that the scheduler holds without using them.
#[derive(Debug, Default)]
struct Held {
    slot_seconds: f64,
    since: Option<Instant>,
    longest: Duration,
}

impl Held {
    fn look(&mut self, cluster: &Cluster, passed: Duration) {
        let frameworks = http::get(&format!("{}/frameworks", cluster.master.url)).json();
        let all = frameworks["frameworks"].as_array().into_iter().flatten();
        let mut ours = all.filter(|one| one["name"] == "meseta scheduler");
        let offered = ours
            .next()
            .and_then(|one| one["offered_resources"]["cpus"].as_f64());
        let offered = offered.unwrap_or_default();
        self.slot_seconds += offered * passed.as_secs_f64();
        self.since = match offered > 0.0 {
            true => self.since.or_else(|| Some(Instant::now())),
            false => None,
        };
        let held = self.since.map(|since| since.elapsed());
        self.longest = self.longest.max(held.unwrap_or_default());
    }
}

/// Guarantees the role of the gangs the CPUs that one gang needs. It guarantees no memory: an offer contains all memory of
/// its agent.
fn guarantee(cluster: &Cluster) -> Result<(), String> {
    let guarantees = json!({ "cpus": { "value": GANG } });
    let call = json!({
        "type": "UPDATE_QUOTA",
        "update_quota": { "quota_configs": [{ "role": "gangs", "guarantees": guarantees }] },
    });
    let answer = http::post_json(&format!("{}/api/v1", cluster.master.url), &call);
    match answer.status {
        200 => Ok(()),
        status => Err(format!(
            "the quota is refused ({status}): {}",
            answer.text()
        )),
    }
}

fn run(seconds: u64) -> Result<(), String> {
    let cluster = Cluster::start(Setup {
        agents: 3,
        master_flags: vec!["--weights=gangs=2,greedy=1".to_owned()],
        ..Setup::default()
    });
    if !std::env::args().any(|argument| argument == "weights") {
        guarantee(&cluster)?;
    }
    let scheduler = Scheduler::start(&cluster);
    let greedy = Greedy::start(&cluster);
    let mut seen = NAMES.map(|_| Seen::default());
    let mut held = Held::default();
    let began = Instant::now();
    let mut last = began;
    while began.elapsed() < Duration::from_secs(seconds) {
        for (name, seen) in NAMES.into_iter().zip(&mut seen) {
            seen.look(&scheduler, name)?;
        }
        held.look(&cluster, last.elapsed());
        last = Instant::now();
        std::thread::sleep(LOOK);
    }
    for (name, seen) in NAMES.into_iter().zip(&seen) {
        let longest = seen.waits.iter().max().copied().unwrap_or_default();
        let runs = seen.runs;
        println!(
            "{name}: {runs} runs of {GANG} tasks, all running {longest:.1?} after submission at the latest"
        );
        if runs == 0 {
            return Err(format!("{name} has never run"));
        }
    }
    let launched = greedy.launched.load(Ordering::Relaxed);
    let share = 100.0 * held.slot_seconds / (12.0 * began.elapsed().as_secs_f64());
    println!(
        "the greedy framework ran {launched} tasks; offers were held for {:.1?} in one piece at most, {:.0} slot-seconds in \
         all, {share:.1} % of 12 slots",
        held.longest, held.slot_seconds
    );
    if held.longest > Duration::from_secs(HOLD_SECONDS) + SLACK {
        return Err("a gang has held offers for longer than it may".to_owned());
    }
    Ok(())
}

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    match run(seconds.unwrap_or(120)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}
