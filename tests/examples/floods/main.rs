//! All floods of hostile tenants at once, beside a well-behaved framework, and their effects on the framework and the
//! daemons.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example floods -- --minutes=30
//! --master_budget=512MB --agent_budget=128MB --scheduler_budget=256MB` as root. The example starts a master, a job
//! scheduler and three nodes in a network of their own, and repeats each flood of `floods/`. Meanwhile, it measures how long
//! another framework waits for offers, launches, checks and kills, and how long the jobs of a tenant wait until they run. The
//! example prints tables. It ends with 1 when a promise is broken: a daemon ended or did not come back, a framework got
//! nothing for half a minute, or memory exceeded its budget. Slowness is no error, because figures of a busy machine say
//! little, except jobs that run later than `--job_limit=SECONDS`. `--only=NAME,...` runs some of the floods.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod bench;
mod consumption;
mod executor;
mod fleet;
mod floods;
mod measured;
mod measured_jobs;
mod options;
mod report;
mod scheduler;
mod sockets;

use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use anyhow::ensure;
use meseta_tests::interrupt::on_interrupt;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use bench::{Bench, Tally, Time};
use fleet::Fleet;
use options::Options;

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, behaviour, task] = arguments.as_slice()
        && role == "executor"
    {
        return executor::run(behaviour, task).map(|()| ExitCode::SUCCESS);
    }
    let options = Options::parse(arguments.into_iter())?;
    ensure!(
        nix::unistd::Uid::effective().is_root(),
        "run this as root: nodes make cgroups, and all of it a network of its own"
    );
    fleet::leave_network()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let time = Arc::new(Time::new());
    let asked = time.clone();
    on_interrupt(move || asked.interrupt())?;
    measured::serve_files()?;
    let bench = Bench {
        fleet: Fleet::start(&options)?,
        time,
        master_runs: RwLock::new(()),
    };
    let broken = run(&bench, &options);
    if bench.time.was_interrupted() {
        println!("\ninterrupted");
        return Ok(ExitCode::FAILURE);
    }
    for promise in &broken {
        println!("BROKEN: {promise}");
    }
    if broken.is_empty() {
        println!("\nall promises were kept");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Runs the floods and prints the observations; returns the broken promises.
fn run(bench: &Bench, options: &Options) -> Vec<String> {
    let names: Vec<_> = options.floods.iter().map(|flood| flood.name).collect();
    println!(
        "{:.1} minutes of {}",
        options.length.as_secs_f64() / 60.0,
        names.join(", ")
    );
    let tallies: Vec<_> = options
        .floods
        .iter()
        .map(|flood| (*flood, Tally::default()))
        .collect();
    bench.time.begin(options.length);
    let mut broken = Vec::new();
    let (figures, mut courses) = std::thread::scope(|threads| {
        let memory = threads.spawn(|| consumption::follow(bench));
        let measured = threads.spawn(|| measured::run(bench));
        let jobs = threads.spawn(|| measured_jobs::run(bench));
        let floods: Vec<_> = tallies
            .iter()
            .map(|(flood, tally)| (flood, threads.spawn(move || flood.run(bench, tally))))
            .collect();
        while !bench.time.is_over() {
            bench.time.pause(std::time::Duration::from_secs(1));
            broken.extend(bench.fleet.ended());
            if !broken.is_empty() {
                bench.time.stop();
            }
        }
        for (flood, thread) in floods {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => broken.push(format!("{}: {error:#}", flood.name)),
                Err(_) => broken.push(format!("{}: it failed, see above", flood.name)),
            }
        }
        let mut measured = measured.join().unwrap_or_default();
        let jobs = jobs.join().unwrap_or_default();
        measured.job_running = jobs.times;
        measured.failures_count += jobs.failures.len();
        measured.failures.extend(jobs.failures);
        (measured, memory.join().unwrap_or_default())
    });
    if !bench.time.was_interrupted() && broken.is_empty() {
        consumption::settle(&bench.fleet, &mut courses, options.length);
        broken.extend(bench.fleet.ended());
    }
    report::floods(&tallies);
    report::figures(&figures);
    report::consumption(&courses);
    if figures.failures_count > 0 {
        let count = figures.failures_count;
        broken.push(format!("the measured framework failed {count} times"));
    }
    if figures.offer_after_revive.is_empty() {
        broken.push("the measured framework got no offer at all".to_owned());
    }
    if figures.job_running.is_empty() {
        broken.push("no job has run".to_owned());
    }
    let is_late =
        |took: &&std::time::Duration| options.job_limit.is_some_and(|limit| **took > limit);
    let late = figures.job_running.iter().filter(is_late).count();
    if late > 0 {
        broken.push(format!(
            "{late} of {} jobs ran later than --job_limit",
            figures.job_running.len()
        ));
    }
    broken.extend(report::over_budget(options, &courses));
    broken
}
