//! How soon, and how well, regular work is relieved of revocable tasks that use what it did not.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example relief -- [ROUNDS]` as
//! root, on a machine with nothing else to do; three rounds unless given, some four minutes. Starts a real
//! master and agent; regular tasks hold 2 cpus and use 0.3; what that leaves is oversubscribed to a framework that
//! keeps the processors busy with it; then the regular tasks wake up. Prints each figure with its bar, and
//! ends with 1 when one is missed. Throughput and lateness are compared with the same work beside neighbours
//! that are frozen; hogs with equal shares are the negative control, without which the figures would say nothing.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod kernel;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kernel::Revocable;
use meseta_tests::framework::task;
use meseta_tests::revocable::{
    amount, launch_and_decline_rest, revocable_framework, revocable_task,
};
use meseta_tests::{Cluster, Framework, Setup};
use serde_json::{Value, json};

const ROUNDS: usize = 3;
/// How often the agent tells the master what can be oversubscribed: its default.
const INTERVAL: Duration = Duration::from_secs(15);
/// Regular work is awake for so long.
const WINDOW: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// What regular work is promised: two workers and a sleeper.
const WORKERS: [&str; 2] = ["work-1", "work-2"];
const WORKER_CPUS: f64 = 0.95;
const SLEEPER: &str = "nap";
const SLEEPER_CPUS: f64 = 0.1;
const HOGS: [&str; 2] = ["hog-1", "hog-2"];
const HOG_CPUS: f64 = 0.05;
/// What all hogs together use where nobody minds.
const BUSY_CPUS: f64 = 1.0;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = match arguments.as_slice() {
        [] => ROUNDS,
        [rounds] => rounds.parse().context("a number of rounds")?,
        [role, dir, name] => {
            return work::run(role, Path::new(dir), name).map(|()| ExitCode::SUCCESS);
        }
        _ => bail!("relief [ROUNDS]"),
    };
    let mut criteria = Criteria::default();
    let frozen = oversubscribed_and_taken_back(rounds, &mut criteria)?;
    killed_and_not_helped(&frozen, &mut criteria)?;
    println!(
        "{}",
        if criteria.missed {
            "a bar was missed"
        } else {
            "all bars were met"
        }
    );
    Ok(if criteria.missed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Prints figures beside their bars.
#[derive(Debug, Default)]
struct Criteria {
    missed: bool,
}

impl Criteria {
    fn at_most(&mut self, what: &str, value: f64, bar: f64, unit: &str) {
        self.note(
            what,
            value,
            &format!("at most {bar}{unit}"),
            unit,
            value <= bar,
        );
    }

    fn at_least(&mut self, what: &str, value: f64, bar: f64, unit: &str) {
        self.note(
            what,
            value,
            &format!("at least {bar}{unit}"),
            unit,
            value >= bar,
        );
    }

    fn note(&mut self, what: &str, value: f64, bar: &str, unit: &str, is_met: bool) {
        self.missed |= !is_met;
        let met = if is_met { "met" } else { "MISSED" };
        println!("{what:58} {value:7.3}{unit:3} ({bar}: {met})");
    }
}

/// One cluster, its regular work, and the folder in which that speaks and listens.
struct Bench {
    cluster: Cluster,
    dir: PathBuf,
    _regular: Framework,
    revocable_framework: Framework,
}

/// What regular work got in one window.
#[derive(Clone, Copy, Debug)]
struct Course {
    throughput: f64,
    p99_ms: f64,
}

/// When what was done to revocable tasks, from the moment that regular work woke up.
#[derive(Clone, Copy, Debug, Default)]
struct Relief {
    throttled: Option<Duration>,
    frozen: Option<Duration>,
    killed: Option<Duration>,
}

fn command(role: &str, dir: &Path, name: &str) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("failed to find this program")?;
    Ok(format!(
        "exec {} {role} {} {name}",
        program.display(),
        dir.display()
    ))
}

impl Bench {
    fn start(agent_flags: Vec<String>) -> anyhow::Result<Self> {
        let cluster = Cluster::start(Setup {
            agent_flags,
            ..Setup::default()
        });
        let dir = cluster.dir.path().join("notes");
        std::fs::create_dir(&dir).context("failed to create a folder for notes")?;
        let mut regular = cluster.framework();
        let offer = regular.offer();
        let mut tasks = Vec::new();
        for name in WORKERS {
            let command = command("work", &dir, name)?;
            let promised = [("cpus", WORKER_CPUS), ("mem", 64.0)];
            tasks.push(task(&offer, name, &command, &promised));
        }
        let command = command("nap", &dir, SLEEPER)?;
        let promised = [("cpus", SLEEPER_CPUS), ("mem", 64.0)];
        tasks.push(task(&offer, SLEEPER, &command, &promised));
        launch_and_decline_rest(&regular, &offer, &tasks);
        for name in WORKERS.iter().chain([&SLEEPER]) {
            regular.until_state(name, "TASK_RUNNING");
        }
        let revocable_framework = revocable_framework(&cluster);
        Ok(Self {
            cluster,
            dir,
            _regular: regular,
            revocable_framework,
        })
    }

    /// The first offer of at least so many cpus of a kind, and how long it took to come.
    fn offered(&mut self, cpus: f64, revocable: bool) -> anyhow::Result<(Value, Duration)> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let is_offers = |event: &Value| event["type"] == "OFFERS";
            let event = self.revocable_framework.within(PATIENCE, &is_offers);
            let event = event.map_err(|why| anyhow::anyhow!("nothing was offered: {why}"))?;
            let offers = event["offers"]["offers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            for offer in offers {
                if amount(&offer, "cpus", revocable) + 1e-9 >= cpus
                    && amount(&offer, "mem", false) >= 256.0
                {
                    return Ok((offer, began.elapsed()));
                }
                self.revocable_framework.decline(&offer, 0.0);
            }
        }
        let state = self.cluster.agent().page("/state").json();
        bail!(
            "no {cpus} cpus were offered within {PATIENCE:?}: {:#}",
            state["oversubscription"]
        )
    }

    /// Hogs on what was offered; `cpus` for each.
    fn fill(&mut self, offer: &Value, cpus: f64, revocable: bool) -> anyhow::Result<()> {
        let mut tasks = Vec::new();
        for name in HOGS {
            let mut hog = revocable_task(offer, name, &command("hog", &self.dir, name)?, cpus);
            if !revocable && let Some(resource) = hog["resources"][0].as_object_mut() {
                resource.remove("revocable");
            }
            tasks.push(hog);
        }
        launch_and_decline_rest(&self.revocable_framework, offer, &tasks);
        for name in HOGS {
            self.revocable_framework.until_state(name, "TASK_RUNNING");
        }
        Ok(())
    }

    fn revocable(&self) -> Revocable {
        Revocable::below(&self.cluster.cgroups_root)
    }

    /// Waits until hogs run freely.
    fn until_busy(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let groups = self.revocable();
        let mut last = (Instant::now(), groups.cpu_secs());
        while began.elapsed() < PATIENCE {
            sleep(Duration::from_secs(1));
            let now = (Instant::now(), groups.cpu_secs());
            let (Some(before), Some(after)) = (last.1, now.1) else {
                bail!("the processor time of revocable containers cannot be read");
            };
            let used = (after - before) / (now.0 - last.0).as_secs_f64();
            if used >= BUSY_CPUS && !groups.is_throttled() && groups.frozen() == 0 {
                return Ok(());
            }
            last = now;
        }
        bail!(
            "the hogs do not run freely: {}",
            self.cluster.agent().log_text()
        )
    }

    /// Regular work wakes up for a while: what it gets, and what is done for it meanwhile.
    fn awake(&self, window: Duration) -> anyhow::Result<(Course, Relief)> {
        for name in WORKERS {
            work::until_told(&self.dir.join(name), 1)?;
        }
        let groups = self.revocable();
        let processes = groups.processes();
        let mut relief = Relief::default();
        let (began, from_us) = (Instant::now(), work::now_us());
        work::wake(&self.dir, true)?;
        while began.elapsed() < window {
            let now = began.elapsed();
            if relief.throttled.is_none() && groups.is_throttled() {
                relief.throttled = Some(now);
            }
            if relief.frozen.is_none() && groups.frozen() > 0 {
                relief.frozen = Some(now);
            }
            if relief.killed.is_none() && groups.processes() < processes {
                relief.killed = Some(now);
            }
            sleep(POLL_INTERVAL);
        }
        let to_us = work::now_us();
        for name in WORKERS.into_iter().chain([SLEEPER]) {
            work::until_told(&self.dir.join(name), to_us)?;
        }
        work::wake(&self.dir, false)?;
        Ok((self.course(from_us, to_us)?, relief))
    }

    fn course(&self, from_us: u64, to_us: u64) -> anyhow::Result<Course> {
        let mut throughput = 0.0;
        for name in WORKERS {
            throughput += work::throughput(&self.dir.join(name), from_us, to_us)?;
        }
        let p99_ms = work::lateness_p99_ms(&self.dir.join(SLEEPER), from_us, to_us)?;
        Ok(Course { throughput, p99_ms })
    }
}

/// The middle of what was measured.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn secs(time: Option<Duration>) -> f64 {
    time.map_or(f64::INFINITY, |time| time.as_secs_f64())
}

/// Slack is oversubscribed, filled, and taken back, as it is meant to be; gives what regular work does beside
/// frozen neighbours.
fn oversubscribed_and_taken_back(rounds: usize, criteria: &mut Criteria) -> anyhow::Result<Course> {
    // Defaults, but for how long a new task counts at its limit: five minutes.
    let modules = json!({"libraries": {"modules": {"name": "slack", "parameters": [
        {"key": "min_age", "value": "5secs"}, {"key": "min_samples", "value": "5"}]}}});
    let mut bench = Bench::start(vec![
        "--resources=cpus:2;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=slack".to_owned(),
        "--qos_controller=pressure".to_owned(),
        format!("--modules={modules}"),
    ])?;
    let (offer, after) = bench.offered(2.0 * HOG_CPUS, true)?;
    let bar = 2.0 * INTERVAL.as_secs_f64();
    criteria.at_most(
        "idle promises are offered as revocable after",
        after.as_secs_f64(),
        bar,
        " s",
    );
    println!(
        "    {} revocable cpus in the first offer",
        amount(&offer, "cpus", true)
    );
    bench.fill(&offer, HOG_CPUS, true)?;
    let (mut acted, mut still, mut reliefs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.until_busy()?;
        let (course, relief) = bench.awake(WINDOW)?;
        println!("round {round}: {course:.1?}, {relief:.3?}");
        acted.push(course);
        reliefs.push(relief);
        bench.until_busy()?;
        bench.revocable().freeze_all(true)?;
        let outcome = bench.awake(WINDOW);
        bench.revocable().freeze_all(false)?;
        let (course, _) = outcome?;
        println!("    beside frozen neighbours: {course:.1?}");
        still.push(course);
    }
    let of = |all: &[Course]| Course {
        throughput: median(all.iter().map(|one| one.throughput)),
        p99_ms: median(all.iter().map(|one| one.p99_ms)),
    };
    let (acted, frozen) = (of(&acted), of(&still));
    let slowest = reliefs
        .iter()
        .map(|relief| secs(relief.throttled))
        .fold(0.0, f64::max);
    criteria.at_most(
        "woken: first relief, the slowest, after",
        slowest,
        1.5,
        " s",
    );
    let ratio = acted.throughput / frozen.throughput;
    criteria.at_least(
        "woken: throughput, of that beside frozen neighbours",
        ratio,
        0.95,
        "",
    );
    let ratio = acted.p99_ms / frozen.p99_ms;
    criteria.at_most(
        "woken: p99 lateness, of that beside frozen neighbours",
        ratio,
        2.0,
        "",
    );
    Ok(frozen)
}

/// Where nothing may be frozen, it comes to kills. Then hogs that are not revocable at all, which nobody
/// takes anything from.
fn killed_and_not_helped(frozen: &Course, criteria: &mut Criteria) -> anyhow::Result<()> {
    let modules = json!({"libraries": {"modules": [
        {"name": "fixed", "parameters": {"key": "resources", "value": "cpus:2"}},
        {"name": "pressure", "parameters": {"key": "freeze", "value": "false"}}]}});
    let mut bench = Bench::start(vec![
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=fixed".to_owned(),
        "--qos_controller=pressure".to_owned(),
        format!("--modules={modules}"),
    ])?;
    let (offer, _) = bench.offered(2.0, true)?;
    bench.fill(&offer, 1.0, true)?;
    bench.until_busy()?;
    let (_, relief) = bench.awake(WINDOW + Duration::from_secs(3))?;
    println!("without freezing: {relief:.3?}");
    criteria.at_most(
        "without freezing: first relief after",
        secs(relief.throttled),
        1.5,
        " s",
    );
    criteria.at_most(
        "without freezing: first kill after",
        secs(relief.killed),
        10.0,
        " s",
    );
    drop(bench);

    let mut bench = Bench::start(vec!["--resources=cpus:4;mem:4096;disk:4096".to_owned()])?;
    let (offer, _) = bench.offered(2.0 * WORKER_CPUS, false)?;
    bench.fill(&offer, WORKER_CPUS, false)?;
    let (course, _) = bench.awake(WINDOW)?;
    println!("negative control, hogs of equal shares: {course:.1?}");
    let ratio = course.throughput / frozen.throughput;
    criteria.at_most(
        "negative control: throughput at equal shares",
        ratio,
        0.65,
        "",
    );
    Ok(())
}
