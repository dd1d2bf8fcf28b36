//! The check of the tests: each deliberate bug of `tests/mutants/` is applied, and must be found.
//!
//! `cargo run -p meseta-tests --example mutants -- [--scratch=DIR] [--only=simulation|tests] [--steps=N] [--starts=N]
//! [--control=N] [NAME...]`
//!
//! Works in a clone of the last commit, in a folder that is kept (`meseta-mutants` among the temporary files by default, or
//! `--scratch`) with a target folder of its own, so that a second run builds less. The tree without mutants has to pass
//! everything first. Then each patch is applied, built, run, and reverted: with the simulation from several first seeds
//! (`--starts`), each until a promise is broken or its part of `--steps` is over, or with the test that its patch names.
//! `--control` is the number of seeds of each start for which the tree without mutants has to keep its promises. Prints a
//! table at the end, and fails if a mutant was not found, does not apply or does not build. NAME is the beginning of a
//! mutant's name.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod scratch;
mod simulation;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use meseta_tests::mutants::{self, Finder, Mutant};

use scratch::{Scratch, Tested};
use simulation::{Found, Hunt};

/// Steps with faults, for each seed.
const SEED_STEPS: u64 = 12_000;
/// Steps of a seed in runs of the job scheduler.
const SEED_STEPS_OF_JOBS: u64 = 3_000;

struct Options {
    scratch: PathBuf,
    /// The steps of all starts together after which the simulation has missed a mutant.
    steps: u64,
    /// The number of first seeds for the simulation.
    starts: u64,
    /// Seeds of each start that the unchanged tree must pass.
    control: u64,
    /// Whether to try the mutants for the simulation, and those for tests.
    kinds: [bool; 2],
    names: Vec<String>,
}

impl Options {
    fn read(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self {
            scratch: std::env::temp_dir().join("meseta-mutants"),
            steps: 10_000_000,
            starts: 5,
            control: 10,
            kinds: [true; 2],
            names: Vec::new(),
        };
        for argument in arguments {
            match argument.split_once('=') {
                Some(("--scratch", path)) => options.scratch = path.into(),
                Some(("--steps", steps)) => options.steps = steps.parse().context("--steps")?,
                Some(("--starts", count)) => options.starts = count.parse().context("--starts")?,
                Some(("--control", seeds)) => {
                    options.control = seeds.parse().context("--control")?
                }
                Some(("--only", "simulation")) => options.kinds = [true, false],
                Some(("--only", "tests")) => options.kinds = [false, true],
                None if !argument.starts_with('-') => options.names.push(argument),
                _ => {
                    bail!("{argument:?} is no flag: see the head of tests/examples/mutants/main.rs")
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, mutant: &Mutant) -> bool {
        let is_simulated = !matches!(mutant.finder, Finder::Test(_));
        if !self.kinds[usize::from(!is_simulated)] {
            return false;
        }
        let mut names = self.names.iter();
        self.names.is_empty() || names.any(|name| mutant.name.starts_with(name.as_str()))
    }
}

/// The result of one mutant: a row of the table.
struct Row {
    name: String,
    is_found: bool,
    by: String,
    told: String,
    steps: String,
}

impl Row {
    fn shown(&self) -> String {
        let Self {
            name,
            by,
            told,
            steps,
            ..
        } = self;
        format!("| {name} | {by} | {told} | {steps} |")
    }

    fn of_error(mutant: &Mutant, error: &anyhow::Error) -> Self {
        Self {
            name: mutant.name.clone(),
            is_found: false,
            by: mutant.finder.text(),
            told: format!("**error**: {error:#}"),
            steps: String::new(),
        }
    }
}

/// Runs the finders on the tree without mutants; returns those that fail there, or find nothing to do.
fn control(
    scratch: &Scratch,
    chosen: &[Mutant],
    options: &Options,
) -> anyhow::Result<BTreeMap<Finder, String>> {
    let mut unfit = BTreeMap::new();
    let finders: BTreeSet<&Finder> = chosen.iter().map(|mutant| &mutant.finder).collect();
    for finder in finders {
        let began = Instant::now();
        let seen = match finder {
            Finder::Simulation => control_simulation(scratch, options, false)?,
            Finder::SimulationOfJobs => control_simulation(scratch, options, true)?,
            Finder::Test(words) => match scratch.test(words)? {
                Tested::Passed(tests) if tests > 0 => Ok(format!("{tests} tests")),
                Tested::Passed(_) => Err("no test has this name".to_owned()),
                Tested::Failed(names) => Err(format!("{names:?}")),
            },
        };
        let seconds = began.elapsed().as_secs();
        let text = finder.text();
        match seen {
            Ok(seen) => eprintln!("as it is: {text} passes, {seen}, {seconds} s"),
            Err(why) => {
                eprintln!("as it is: {text} FAILS: {why}");
                unfit.insert(finder.clone(), why);
            }
        }
    }
    Ok(unfit)
}

fn seed_steps(is_of_jobs: bool) -> u64 {
    match is_of_jobs {
        true => SEED_STEPS_OF_JOBS,
        false => SEED_STEPS,
    }
}

/// Runs the simulation without a mutant for a number of seeds.
fn control_simulation(
    scratch: &Scratch,
    options: &Options,
    is_of_jobs: bool,
) -> anyhow::Result<Result<String, String>> {
    let program = scratch.build_simulation()?;
    std::fs::copy(&program, scratch.simulation_as_it_is())?;
    let hunt = Hunt {
        program: &program,
        as_it_is: None,
        is_of_jobs,
        starts: options.starts,
        steps: options.control * seed_steps(is_of_jobs),
    };
    let found = hunt.run()?;
    if let Some(found) = found.iter().find(|found| found.rule.is_some()) {
        return Ok(Err(format!("{found:?}")));
    }
    let steps: u64 = found.iter().map(|found| found.steps).sum();
    Ok(Ok(format!("{steps} steps")))
}

/// Builds a tree with one mutant in it and runs its finder.
fn try_one(scratch: &Scratch, mutant: &Mutant, options: &Options) -> anyhow::Result<Row> {
    let row = |is_found, told, steps| Row {
        name: mutant.name.clone(),
        is_found,
        by: mutant.finder.text(),
        told,
        steps,
    };
    match &mutant.finder {
        Finder::Simulation | Finder::SimulationOfJobs => {
            let program = scratch.build_simulation().context("it does not build")?;
            let hunt = Hunt {
                program: &program,
                as_it_is: Some(&scratch.simulation_as_it_is()),
                is_of_jobs: mutant.finder == Finder::SimulationOfJobs,
                starts: options.starts,
                steps: options.steps / options.starts,
            };
            let found = hunt.run()?;
            let (told, steps) = (rules(&found), simulation::median(&found));
            let is_found = found.iter().any(|found| found.rule.is_some());
            Ok(row(is_found, told, steps))
        }
        Finder::Test(words) => Ok(match scratch.test(words)? {
            Tested::Failed(names) => row(true, shortened(&names), String::new()),
            Tested::Passed(tests) => row(
                false,
                format!("**not found**: {tests} passed"),
                String::new(),
            ),
        }),
    }
}

/// Returns the broken promises, with the number of starts that broke each.
fn rules(found: &[Found]) -> String {
    let broken = || found.iter().filter_map(|found| found.rule.as_deref());
    let kinds: BTreeSet<&str> = broken().collect();
    let count = broken().count();
    match (count, count == found.len()) {
        (0, _) => "**not found**".to_owned(),
        (_, true) => kinds.into_iter().collect::<Vec<_>>().join(", "),
        _ => {
            let kinds: Vec<_> = kinds.into_iter().collect();
            format!(
                "{} (from {count} of {} seeds)",
                kinds.join(", "),
                found.len()
            )
        }
    }
}

/// Returns the first few of the failed tests.
fn shortened(names: &[String]) -> String {
    const SHOWN_MAX: usize = 2;
    let shown: Vec<_> = names
        .iter()
        .take(SHOWN_MAX)
        .map(|name| format!("`{name}`"))
        .collect();
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::read(std::env::args().skip(1))?;
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let chosen = mutants::all(&checkout)?;
    let chosen: Vec<_> = chosen
        .into_iter()
        .filter(|one| options.wants(one))
        .collect();
    if chosen.is_empty() {
        bail!("no mutant is named like any of {:?}", options.names);
    }
    let scratch = Scratch::from_checkout(&checkout, &options.scratch)?;
    let unfit = control(&scratch, &chosen, &options)?;
    let mut rows = Vec::new();
    for mutant in &chosen {
        let began = Instant::now();
        let tried = match unfit.get(&mutant.finder) {
            Some(why) => Err(anyhow::anyhow!("the tree as it is fails too: {why}")),
            None => scratch
                .apply(&mutant.path)
                .and_then(|()| try_one(&scratch, mutant, &options)),
        };
        scratch.restore()?;
        let row = tried.unwrap_or_else(|error| Row::of_error(mutant, &error));
        eprintln!("{} {} s", row.shown(), began.elapsed().as_secs());
        rows.push(row);
    }
    println!("| mutant | run | found by | median steps |\n|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", row.shown()));
    let missed = rows.iter().filter(|row| !row.is_found).count();
    println!("\n{} of {} found", rows.len() - missed, rows.len());
    Ok(ExitCode::from(u8::from(missed > 0)))
}
