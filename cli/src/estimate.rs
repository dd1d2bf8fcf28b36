//! The `meseta estimate replay` verb: the amounts that each estimator would have oversubscribed on recorded usage, and its
//! error rate.
//!
//! Uses no daemon: the estimators are the agent's own, and get the samples that the agent would have made.

mod picture;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use meseta_estimators::replay::{Score, Trace, course, evaluate, lineup, machines, mean, table};

use crate::terminal;

/// Bytes of one file of a trace.
const FILE_BYTES_MAX: u64 = 1 << 30;
const MACHINES_MAX: usize = 1000;
const SEEDS_MAX: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Distribute the tasks of traces over machines and let every estimator watch them.
    Replay(Replay),
}

#[derive(Debug, Args)]
struct Replay {
    /// CSV files of usage with a line of limits, or folders with `cpu_mhz_5min.csv` and `vms.csv`.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Number of machines for the tasks of a trace.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    machines: u16,
    /// Number of tasks on each machine.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    size: u16,
    /// Random seeds of the distribution, one run for each seed.
    #[arg(long, default_value = "1,2,3", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Also judge the tasks with even and with odd numbers separately.
    #[arg(long)]
    halves: bool,
    /// Draw the first machine of the first seed to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let What::Replay(options) = &options.what;
    anyhow::ensure!(
        usize::from(options.machines) <= MACHINES_MAX && options.seeds.len() <= SEEDS_MAX,
        "too many machines or seeds: give at most {MACHINES_MAX} machines and {SEEDS_MAX} seeds"
    );
    for path in &options.traces {
        let trace = load(path)?;
        let (tasks, steps) = (trace.tasks(), trace.len());
        terminal::say_lines(&format!(
            "# {}: {tasks} tasks, {steps} steps\n",
            path.display()
        ));
        let all: Vec<usize> = (0..trace.tasks()).collect();
        score_pool(options, &trace, "all tasks", &all);
        if options.halves {
            let half = |rest| {
                all.iter()
                    .copied()
                    .filter(|task| task % 2 == rest)
                    .collect::<Vec<_>>()
            };
            score_pool(options, &trace, "tasks of even number", &half(0));
            score_pool(options, &trace, "tasks of odd number", &half(1));
        }
    }
    if let (Some(file), Some(path)) = (&options.picture, options.traces.first()) {
        draw(options, &load(path)?, file)?;
    }
    Ok(())
}

fn score_pool(options: &Replay, trace: &Trace, name: &str, pool: &[usize]) {
    let (count, size) = (usize::from(options.machines), usize::from(options.size));
    let scores = |seed: &u64| evaluate(trace, &machines(pool, count, size, *seed), lineup);
    let each: Vec<Vec<Score>> = options.seeds.iter().map(scores).collect();
    terminal::say_lines(&format!(
        "## {name}: {count} machines of {size}, seeds {:?}\n",
        options.seeds
    ));
    terminal::say_lines(&table(&mean(&each)));
    let by_seed = options.seeds.iter().zip(&each).flat_map(|(seed, scores)| {
        let ours = scores
            .iter()
            .filter(|score| score.name.contains("**slack**"));
        ours.map(move |score| Score {
            name: format!("{}, seed {seed}", score.name),
            ..score.clone()
        })
    });
    terminal::say_lines(&table(&by_seed.collect::<Vec<_>>()));
}

fn draw(options: &Replay, trace: &Trace, file: &Path) -> anyhow::Result<()> {
    let all: Vec<usize> = (0..trace.tasks()).collect();
    let seed = options.seeds.first().copied().unwrap_or(1);
    let machines = machines(&all, 1, usize::from(options.size), seed);
    let tasks = machines.first().context("no machine to draw")?;
    let course = course(trace, tasks, lineup);
    let picture = picture::svg(&course, trace.step());
    std::fs::write(file, picture).with_context(|| format!("failed to write {}", file.display()))?;
    terminal::say_lines(&format!("drawn: {}", file.display()));
    Ok(())
}

fn load(path: &Path) -> anyhow::Result<Trace> {
    let parsed = if path.is_dir() {
        let usage = read(&path.join("cpu_mhz_5min.csv"))?;
        let limits = read(&path.join("vms.csv"))?;
        Trace::parse(&usage, Some(&limits))
    } else {
        Trace::parse(&read(path)?, None)
    };
    parsed.with_context(|| format!("{} is not a trace", path.display()))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("failed to read {}", path.display());
    let size = std::fs::metadata(path).with_context(failed)?.len();
    anyhow::ensure!(
        size <= FILE_BYTES_MAX,
        "{} is larger than 1 GiB",
        path.display()
    );
    std::fs::read_to_string(path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_trace_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("empty.csv");
        let told = || format!("{:#}", load(&file).expect_err("no trace"));
        let read = format!("failed to read {}", file.display());
        assert!(told().starts_with(&read), "{}", told());
        std::fs::write(&file, "").expect("written");
        let empty = format!("{} is not a trace: the trace is empty", file.display());
        assert_eq!(told(), empty);
    }
}
