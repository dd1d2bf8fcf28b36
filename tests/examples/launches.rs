//! Launches through all parts: a framework, a master, an agent with isolators and durable checkpoints.
//!
//! `cargo build --release && cargo run --release -p meseta-tests --example launches -- [tasks] [one by one]` as root. First
//! `true` one by one: milliseconds from the ACCEPT to the RUNNING and the FINISHED update, as the framework sees them. Then
//! all tasks, a thousand per ACCEPT: the FINISHED updates per second. At the end the program counts leftovers of the tasks,
//! and exits with 1 if there are any.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::revocable::amount;
use meseta_tests::{Cluster, Framework, Setup, kernel, wait};
use serde_json::Value;

/// Tasks in one ACCEPT.
const AT_ONCE: usize = 1_000;
/// The time limit for ending tasks.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// Descriptors that may come with connections and their threads.
const DESCRIPTORS_MORE: usize = 20;
const THREADS_MORE: u64 = 20;
/// Other programs make groups too, and the kernel frees groups with a delay.
const DYING_MORE: u64 = 200;
const TINY: &[(&str, f64)] = &[("cpus", 0.01), ("mem", 32.0)];

fn main() -> ExitCode {
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
    let before = Left::count(&cluster);
    let began = Instant::now();
    let mut launched = 0;
    while launched < many {
        let count = AT_ONCE.min(many - launched);
        launch(&mut framework, launched..launched + count);
        launched += count;
    }
    let seconds = began.elapsed().as_secs_f64();
    let count = u32::try_from(many).map_or(0.0, f64::from);
    eprintln!(
        "{many} tasks in {seconds:.2} s: {:.0} launches per second",
        count / seconds
    );
    let settled = wait::holds(SETTLE_MAX, || Left::count(&cluster).is_within(&before));
    eprintln!("before {before:?}, after {:?}", Left::count(&cluster));
    if settled {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The resources that launches must release.
#[derive(Debug)]
struct Left {
    groups: usize,
    mounts: usize,
    descriptors: usize,
    threads: u64,
    /// Unreleased groups of the kernel, on the whole machine.
    dying: u64,
}

impl Left {
    fn count(cluster: &Cluster) -> Self {
        let pid = cluster.agent().pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let threads = status
            .lines()
            .find_map(|line| line.strip_prefix("Threads:"));
        Self {
            groups: kernel::groups_below(&cluster.cgroups_root).len(),
            mounts: kernel::mounts_like(&cluster.dir.path().to_string_lossy()).len(),
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count),
            threads: threads
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
            dying: dying(),
        }
    }

    /// Whether the counts are as low as before, apart from normal fluctuation.
    fn is_within(&self, before: &Self) -> bool {
        self.groups <= before.groups
            && self.mounts <= before.mounts
            && self.descriptors <= before.descriptors + DESCRIPTORS_MORE
            && self.threads <= before.threads + THREADS_MORE
            && self.dying <= before.dying + DYING_MORE
    }
}

/// Returns the memory groups that are gone but not freed: the kernel's count minus the existing ones.
fn dying() -> u64 {
    let text = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let memory = text.lines().find_map(|line| line.strip_prefix("memory\t"));
    let counted = memory.and_then(|line| line.split('\t').nth(1)?.parse().ok());
    let there = kernel::groups_of("memory");
    counted.map_or(0, |counted: u64| counted.saturating_sub(there))
}

/// Launches tasks of these numbers in one ACCEPT, and waits until all have ended.
fn launch(framework: &mut Framework, numbers: Range<usize>) {
    // The resources of the last task may be offered alone: not enough for all.
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    let needed = f64::from(count) * TINY[0].1;
    let offer = loop {
        let offer = framework.offer();
        if amount(&offer, "cpus", false) >= needed {
            break offer;
        }
        framework.decline(&offer, 0.0);
    };
    let left = numbers.len();
    let tasks: Vec<_> = numbers
        .map(|number| task(&offer, &format!("many-{number}"), "true", TINY))
        .collect();
    framework.launch(&offer, &tasks);
    for _ in 0..left {
        let ended = |event: &Value| event["update"]["status"]["state"] == "TASK_FINISHED";
        loop {
            let event = framework.wait_until("an update", |event| event["type"] == "UPDATE");
            framework.acknowledge(&event["update"]["status"]);
            if ended(&event) {
                break;
            }
        }
    }
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
