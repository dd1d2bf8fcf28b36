//! The speed and quality of the relief of regular work from revocable tasks that use its idle resources.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example relief -- [ROUNDS] [job]` as root, on
//! an idle machine; three rounds by default, some four minutes. Starts a real master and agent; regular tasks hold 2 cpus
//! and use 0.3; the rest is oversubscribed to a framework that keeps the processors busy with it; then the regular tasks
//! wake up. Prints each figure with its bar, and exits with 1 when one is missed. Throughput and lateness are compared with
//! the same work beside frozen neighbours; hogs with equal shares are the negative control, without which the figures would
//! say nothing.
//!
//! With `job` regular work is a service of `meseta scheduler`, and the hogs are its best-effort batch, which has to come
//! back after preemption.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod kernel;
mod tenants;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kernel::Revocable;
use meseta_tests::{Cluster, Setup};
use serde_json::json;
use tenants::Tenants;

const ROUNDS: usize = 3;
/// The pause between two reports of oversubscribable resources by the agent: its default.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time for which regular work is awake.
const WINDOW: Duration = Duration::from_secs(8);
/// The time in which borrowers return after regular work sleeps: an agent pauses after a preemption, and a new task needs a
/// moment.
const BACK_AFTER: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The tasks with the guaranteed resources: two workers, beside a sleeper.
const WORKERS: [&str; 2] = ["work-1", "work-2"];
const WORKER_CPUS: f64 = 0.95;
const SLEEPER: &str = "nap";
const SLEEPER_CPUS: f64 = 0.1;
const HOGS: [&str; 2] = ["hog-1", "hog-2"];
const HOG_CPUS: f64 = 0.05;
/// The CPUs that all hogs together use while regular work is idle.
const BUSY_CPUS: f64 = 1.0;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_job = arguments.last().is_some_and(|last| last == "job");
    arguments.truncate(arguments.len() - usize::from(is_job));
    let rounds = match arguments.as_slice() {
        [] => ROUNDS,
        [rounds] => rounds.parse().context("a number of rounds")?,
        [role, dir, name] => {
            return work::run(role, Path::new(dir), name).map(|()| ExitCode::SUCCESS);
        }
        _ => bail!("relief [ROUNDS] [job]"),
    };
    let mut criteria = Criteria::default();
    let frozen = oversubscribed_and_taken_back(is_job, rounds, &mut criteria)?;
    killed_and_not_helped(is_job, &frozen, &mut criteria)?;
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

/// Prints figures next to their limits.
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

/// A cluster, its regular work, and the folder for its messages. The fields are dropped in this order.
struct Bench {
    tenants: Tenants,
    cluster: Cluster,
    dir: PathBuf,
}

/// The work that regular tasks did in one window.
#[derive(Clone, Copy, Debug)]
struct Course {
    throughput: f64,
    p99_ms: f64,
}

/// The times of actions on revocable tasks, since regular work woke up.
#[derive(Clone, Copy, Debug, Default)]
struct Relief {
    throttled: Option<Duration>,
    frozen: Option<Duration>,
    killed: Option<Duration>,
}

impl Bench {
    fn start(is_job: bool, agent_flags: Vec<String>) -> anyhow::Result<Self> {
        let cluster = Cluster::start(Setup {
            agent_flags,
            ..Setup::default()
        });
        let dir = cluster.dir.path().join("notes");
        std::fs::create_dir(&dir).context("failed to create a folder for notes")?;
        let tenants = match is_job {
            true => Tenants::jobs(&cluster, &dir)?,
            false => Tenants::frameworks(&cluster, &dir)?,
        };
        Ok(Self {
            tenants,
            cluster,
            dir,
        })
    }

    /// Fills the offered resources with hogs of this number of cpus each; returns the time that it took.
    fn fill(&mut self, cpus: f64, is_revocable: bool) -> anyhow::Result<Duration> {
        self.tenants
            .fill(&self.cluster, &self.dir, (cpus, is_revocable))
    }

    fn revocable(&self) -> Revocable {
        Revocable::below(&self.cluster.cgroups_root)
    }

    /// Waits until the hogs run without limits.
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

    /// Wakes regular work for a while; returns its course and the relief meanwhile.
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

/// Returns the median of the values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn secs(time: Option<Duration>) -> f64 {
    time.map_or(f64::INFINITY, |time| time.as_secs_f64())
}

/// Checks that slack is oversubscribed, filled, and taken back as intended; returns the progress of regular work beside
/// frozen neighbours.
fn oversubscribed_and_taken_back(
    is_job: bool,
    rounds: usize,
    criteria: &mut Criteria,
) -> anyhow::Result<Course> {
    // The parameters are the defaults, except for the five minutes in which a new task counts at its limit.
    let modules = json!({"libraries": {"modules": {"name": "slack", "parameters": [
        {"key": "min_age", "value": "5secs"}, {"key": "min_samples", "value": "5"}]}}});
    let flags = [
        "--resources=cpus:2;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=slack".to_owned(),
        "--qos_controller=pressure".to_owned(),
        format!("--modules={modules}"),
    ];
    let mut bench = Bench::start(is_job, flags.to_vec())?;
    let after = bench.fill(HOG_CPUS, true)?;
    let bar = 2.0 * INTERVAL.as_secs_f64();
    criteria.at_most(
        "idle promises are offered as revocable (a job: used) after",
        after.as_secs_f64(),
        bar,
        " s",
    );
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

/// Runs without permission to freeze, where relief comes to kills. Then runs hogs with regular resources, which nothing
/// takes away.
fn killed_and_not_helped(
    is_job: bool,
    frozen: &Course,
    criteria: &mut Criteria,
) -> anyhow::Result<()> {
    let modules = json!({"libraries": {"modules": [
        {"name": "fixed", "parameters": {"key": "resources", "value": "cpus:2"}},
        {"name": "pressure", "parameters": {"key": "freeze", "value": "false"}}]}});
    let flags = [
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=fixed".to_owned(),
        "--qos_controller=pressure".to_owned(),
        format!("--modules={modules}"),
    ];
    let mut bench = Bench::start(is_job, flags.to_vec())?;
    bench.fill(1.0, true)?;
    bench.until_busy()?;
    let (course, relief) = bench.awake(WINDOW + Duration::from_secs(3))?;
    println!("without freezing: {course:.1?}, {relief:.3?}");
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
    if is_job {
        preempted_and_back(&bench, criteria)?;
    }
    drop(bench);

    let flags = ["--resources=cpus:4;mem:4096;disk:4096".to_owned()];
    let mut bench = Bench::start(is_job, flags.to_vec())?;
    bench.fill(WORKER_CPUS, false)?;
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

/// Checks that a job whose tasks were killed for regular work runs again once that sleeps.
fn preempted_and_back(bench: &Bench, criteria: &mut Criteria) -> anyhow::Result<()> {
    let began = Instant::now();
    let preemptions = bench.tenants.preemptions();
    println!("    {preemptions} tasks of the job were preempted");
    if preemptions == 0 {
        bail!("no task of the job was preempted");
    }
    bench.tenants.until_back();
    bench.until_busy()?;
    criteria.at_most(
        "preempted: the job is back, and busy, after",
        began.elapsed().as_secs_f64(),
        BACK_AFTER.as_secs_f64(),
        " s",
    );
    Ok(())
}
