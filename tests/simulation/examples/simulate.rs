//! Runs seeds: `cargo run -p meseta-simulation --example simulate -- [SEED] [SEEDS] [STEPS] [WORD...]`.
//!
//! Runs this number of seeds from the first on, each for this number of steps with faults, and ends at the first broken
//! promise with the seed and a shorter run that breaks it, described in words.
//!
//! Words:
//! - `all`: continue with the next seed, and list the broken promises.
//! - `jobs`: runs about the job scheduler.
//! - `told`: describe the last steps of the run as it is; `about:TEXT`: the last steps that mention a text.
//! - `counts`: print how often each event happened.
//! - `unshrunk`: do not look for a shorter run.
//! - any other word: a feature to leave out, such as `Takeover`, or steps to leave out, such as `17..32`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::time::Instant;

use meseta_simulation::{Cluster, Counts, Plan, Violation, shrink};

fn number(text: Option<&String>, otherwise: u64) -> Result<u64, Box<dyn Error>> {
    Ok(text.map_or(Ok(otherwise), |text| text.parse())?)
}

/// The words that select the output.
const OUTPUT_WORDS: [&str; 3] = ["all", "counts", "unshrunk"];

/// Applies the words to a plan.
fn read(words: &[String], plan: &mut Plan) -> Result<(), Box<dyn Error>> {
    for word in words
        .iter()
        .filter(|word| !OUTPUT_WORDS.contains(&word.as_str()))
    {
        if word == "told" {
            plan.is_told = true;
        } else if word == "jobs" {
            plan.is_of_jobs = true;
        } else if let Some(about) = word.strip_prefix("about:") {
            (plan.is_told, plan.about) = (true, about.to_owned());
        } else if let Some((first, end)) = word.split_once("..") {
            plan.skipped.push(first.parse()?..end.parse()?);
        } else {
            plan.without.insert(word.parse()?);
        }
    }
    Ok(())
}

/// Returns the command that runs this plan again.
fn command(plan: &Plan) -> String {
    let (seed, steps) = (plan.seed, plan.steps);
    let mut words = format!("{seed} 1 {steps}");
    if plan.is_of_jobs {
        words += " jobs";
    }
    for feature in &plan.without {
        words += &format!(" {feature:?}");
    }
    for range in &plan.skipped {
        words += &format!(" {}..{}", range.start, range.end);
    }
    format!("cargo run -p meseta-simulation --example simulate -- {words}")
}

fn tell(plan: &Plan, violation: &Violation, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    writeln!(out, "{violation}\n\nmaking it shorter ...")?;
    if let Some((shorter, told)) = shrink(plan) {
        let left = shorter.steps
            - shorter
                .skipped
                .iter()
                .map(|r| r.end - r.start)
                .sum::<u64>()
                .min(shorter.steps);
        writeln!(
            out,
            "{left} steps are enough, with {:?}:\n{told}",
            shorter.features()
        )?;
        writeln!(out, "\n{}", command(&shorter))?;
    }
    Err("a promise was broken".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let first = number(arguments.first(), 1)?;
    let seeds = number(arguments.get(1), 1)?;
    let steps = number(arguments.get(2), 3_000)?;
    let words = arguments.get(3..).unwrap_or_default();
    let is_unshrunk = words.iter().any(|word| word == "unshrunk");
    let mut out = std::io::stdout();
    let begun = Instant::now();
    let goes_on = words.iter().any(|word| word == "all");
    let (mut all, mut broken, mut counts): (u64, u64, Counts) = (0, 0, BTreeMap::new());
    for seed in first..first.saturating_add(seeds) {
        let mut plan = Plan::new(seed, steps);
        read(words, &mut plan)?;
        let mut cluster = Cluster::new(plan.clone())?;
        match cluster.run() {
            Ok(outcome) => {
                all += outcome.steps;
                for (what, count) in outcome.counts {
                    *counts.entry(what).or_default() += count;
                }
                let (tasks, hash, steps) = (outcome.tasks, outcome.hash, outcome.steps);
                writeln!(
                    out,
                    "seed {seed}: {steps} steps, {tasks} tasks, hash {hash:016x}"
                )?;
            }
            Err(violation) if goes_on => {
                all += violation.step;
                broken += 1;
                writeln!(out, "{violation}")?;
            }
            Err(violation) if plan.is_told || is_unshrunk => {
                writeln!(out, "{violation}")?;
                return Err("a promise was broken".into());
            }
            Err(violation) => tell(&plan, &violation, &mut out)?,
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    writeln!(
        out,
        "{all} steps in {seconds:.1} s; {broken} of {seeds} runs broke a promise"
    )?;
    if words.iter().any(|word| word == "counts") {
        for ((class, name), count) in counts {
            writeln!(out, "{class}: {name}: {count}")?;
        }
    }
    match broken {
        0 => Ok(()),
        _ => Err("a promise was broken".into()),
    }
}
