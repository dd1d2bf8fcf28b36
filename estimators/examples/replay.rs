//! Judges every estimator on recorded traces: `replay [--machines=N] [--size=N] [--seeds=A,B,C]
//! TRACE...`, where a trace is a CSV file of usage with a line of limits, or a directory with
//! `cpu_mhz_5min.csv` and `vms.csv`.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use meseta_estimators::replay::{Score, Trace, judge, lineup, machines, mean, table};

struct Options {
    machines: usize,
    size: usize,
    seeds: Vec<u64>,
    traces: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        machines: 12,
        size: 10,
        seeds: vec![1, 2, 3],
        traces: Vec::new(),
    };
    for argument in std::env::args().skip(1) {
        let wrong = |_| format!("{argument}: not a number");
        match argument.split_once('=') {
            Some(("--machines", value)) => options.machines = value.parse().map_err(wrong)?,
            Some(("--size", value)) => options.size = value.parse().map_err(wrong)?,
            Some(("--seeds", value)) => {
                let seeds = value.split(',').map(str::parse);
                options.seeds = seeds.collect::<Result<_, _>>().map_err(wrong)?;
            }
            _ => options.traces.push(argument),
        }
    }
    if options.traces.is_empty() {
        return Err("usage: replay [--machines=N] [--size=N] [--seeds=A,B,C] TRACE...".into());
    }
    Ok(options)
}

fn load(path: &Path) -> Result<Trace, String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let parsed = if path.is_dir() {
        let (usage, limits) = (
            read(&path.join("cpu_mhz_5min.csv"))?,
            read(&path.join("vms.csv"))?,
        );
        Trace::parse(&usage, Some(&limits))
    } else {
        Trace::parse(&read(path)?, None)
    };
    parsed.map_err(|error| format!("{}: {error}", path.display()))
}

fn is_ours(score: &Score) -> bool {
    score.name.contains("**slack**")
}

fn run() -> Result<(), String> {
    let options = options()?;
    for path in &options.traces {
        let trace = load(Path::new(path))?;
        println!("# {path}: {} tasks, {} steps\n", trace.tasks(), trace.len());
        let all: Vec<usize> = (0..trace.tasks()).collect();
        let pools = [
            ("all tasks", all.clone()),
            (
                "tasks of even number",
                all.iter().copied().filter(|task| task % 2 == 0).collect(),
            ),
            (
                "tasks of odd number",
                all.iter().copied().filter(|task| task % 2 == 1).collect(),
            ),
        ];
        for (name, pool) in pools {
            let deal = |seed: &u64| machines(&pool, options.machines, options.size, *seed);
            let each: Vec<Vec<Score>> = options
                .seeds
                .iter()
                .map(|seed| judge(&trace, &deal(seed), lineup))
                .collect();
            let (machines, size) = (options.machines, options.size);
            println!(
                "## {name}: {machines} machines of {size}, seeds {:?}\n",
                options.seeds
            );
            println!("{}", table(&mean(&each)));
            let ours = options.seeds.iter().zip(&each).flat_map(|(seed, scores)| {
                let mut ours: Vec<Score> = scores.iter().filter(|s| is_ours(s)).cloned().collect();
                ours.iter_mut()
                    .for_each(|score| score.name += &format!(", seed {seed}"));
                ours
            });
            println!("{}", table(&ours.collect::<Vec<_>>()));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}
