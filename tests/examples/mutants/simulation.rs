//! Runs of the simulation until a violation.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;

use crate::seed_steps;

/// The distance between the seeds of two starts.
const APART: u64 = 100_000;
/// The time after which a simulation counts as endless; its memory is limited too.
const SECONDS_MAX: &str = "3600";
const MEMORY_MAX: &str = "--as=6000000000";

/// The result of one start.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The broken promise, if any.
    pub(crate) rule: Option<String>,
    /// The steps of all seeds until the violation.
    pub(crate) steps: u64,
    /// The seed of the broken promise.
    pub(crate) seed: Option<u64>,
}

/// A search for a program's violation.
pub(crate) struct Hunt<'a> {
    pub(crate) program: &'a Path,
    /// The program without the mutant: its errors are not the mutant's.
    pub(crate) as_it_is: Option<&'a Path>,
    /// Whether the runs are of the job scheduler.
    pub(crate) is_of_jobs: bool,
    /// The number of first seeds.
    pub(crate) starts: u64,
    /// The largest number of steps of each start.
    pub(crate) steps: u64,
}

impl Hunt<'_> {
    /// Runs from each first seed, some in parallel, until a violation or the last step.
    pub(crate) fn run(&self) -> anyhow::Result<Vec<Found>> {
        let next = AtomicU64::new(0);
        let found = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let start = next.fetch_add(1, Ordering::Relaxed);
                        if start >= self.starts {
                            return;
                        }
                        let one = self.start(start * APART + 1);
                        if let Ok(mut found) = found.lock() {
                            found.push(one);
                        }
                    }
                });
            }
        });
        let found = found.into_inner().unwrap_or_default();
        found.into_iter().collect()
    }

    fn run_seeds(&self, program: &Path, seed: u64, seeds: u64) -> anyhow::Result<Found> {
        run(program, self.is_of_jobs, seed, seeds)
    }

    fn start(&self, first: u64) -> anyhow::Result<Found> {
        let (mut seed, mut steps) = (first, 0);
        loop {
            let seeds = (self.steps.saturating_sub(steps) / seed_steps(self.is_of_jobs)).max(1);
            let found = self.run_seeds(self.program, seed, seeds)?;
            steps += found.steps;
            let found = Found { steps, ..found };
            let (Some(broken_in), Some(as_it_is)) = (found.seed, self.as_it_is) else {
                return Ok(found);
            };
            let before = self.run_seeds(as_it_is, broken_in, 1)?;
            if before.rule.is_none() || steps >= self.steps {
                return Ok(found);
            }
            eprintln!(
                "seed {broken_in} breaks {:?} without a mutant too",
                before.rule
            );
            seed = broken_in + 1;
        }
    }
}

fn run(program: &Path, is_of_jobs: bool, seed: u64, seeds: u64) -> anyhow::Result<Found> {
    let numbers = [seed, seeds, seed_steps(is_of_jobs)].map(|number| number.to_string());
    let mut limited = Command::new("prlimit");
    limited
        .args([MEMORY_MAX, "timeout", SECONDS_MAX])
        .arg(program);
    let words = is_of_jobs.then_some("jobs");
    let output = limited.args(numbers).arg("unshrunk").args(words).output();
    let output = output.with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let made = |line: &str| -> Option<u64> {
        let (_, rest) = line.strip_prefix("seed ")?.split_once(": ")?;
        rest.split_once(" steps")?.0.parse().ok()
    };
    let before: u64 = text.lines().filter_map(made).sum();
    let ended = |rule: Option<&str>| Found {
        rule: rule.map(str::to_owned),
        steps: before,
        seed: None,
    };
    match output.status.code() {
        Some(0) => return Ok(ended(None)),
        Some(124) => return Ok(ended(Some("does not end"))),
        _ => {}
    }
    // The output has `I1: the error`, and below it `seed 7, step 11`.
    let mut last = text.lines().rev();
    let place = last.next().and_then(|line| {
        let (seed, step) = line.strip_prefix("seed ")?.split_once(", step ")?;
        Some((seed.parse().ok()?, step.parse::<u64>().ok()?))
    });
    let rule = last.next().and_then(|line| Some(line.split_once(':')?.0));
    Ok(match (place, rule) {
        (Some((seed, step)), Some(rule)) => Found {
            steps: before + step,
            seed: Some(seed),
            ..ended(Some(rule))
        },
        _ => ended(Some("crash")),
    })
}

/// Returns the median of the steps, in which a start without a violation counts as the highest.
pub(crate) fn median(found: &[Found]) -> String {
    let mut steps: Vec<_> = found
        .iter()
        .map(|found| (found.rule.is_none(), found.steps))
        .collect();
    steps.sort_unstable();
    match steps.get(steps.len() / 2) {
        Some((false, steps)) => grouped(*steps),
        Some((true, steps)) => format!("> {}", grouped(*steps)),
        None => String::new(),
    }
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
