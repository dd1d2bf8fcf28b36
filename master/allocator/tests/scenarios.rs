//! Scenarios: each file below `scenarios/` is a script with its expected transcript, and a separate test.
//! `REGENERATE_SCENARIOS=1` writes the actual transcripts, for review as a diff.
//!
//! `scenarios/allocator` and `scenarios/sorter` hold the scenarios of Mesos's own test suites under their Mesos
//! names; `allocator.names` and `sorter.names` list all of them, so that none goes missing.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/allocator-scenarios.md"
);

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(ROOT).join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort_unstable();
    files
}

fn name_of(file: &Path) -> String {
    file.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn run(file: &Path) -> Result<(), Failed> {
    let expected = std::fs::read_to_string(file)?;
    let got = support::script::run(&expected);
    if got == expected {
        return Ok(());
    }
    if std::env::var_os("REGENERATE_SCENARIOS").is_some() {
        std::fs::write(file, got)?;
        return Ok(());
    }
    let differing = got
        .lines()
        .zip(expected.lines())
        .position(|(got, expected)| got != expected);
    let line = differing.map_or(0, |line| line + 1);
    Err(format!("differs at line {line}; got:\n{got}").into())
}

/// Every scenario of Mesos has its file, or a line on the page of scenarios that cannot apply.
fn none_is_missing(folder: &'static str, total: usize) -> Result<(), Failed> {
    let expected = std::fs::read_to_string(Path::new(ROOT).join(folder).with_extension("names"))?;
    let expected: Vec<&str> = expected
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let have: BTreeSet<String> = files(folder).iter().map(|file| name_of(file)).collect();
    let page = std::fs::read_to_string(PAGE)?;
    let mut left_out = 0;
    for name in &expected {
        if !have.contains(*name) {
            left_out += 1;
            if !page.contains(&format!("| {name} |")) {
                return Err(
                    format!("{folder}/{name}.txt is missing, without a reason in {PAGE}").into(),
                );
            }
        }
    }
    if expected.len() != total || left_out * 10 > total {
        return Err(format!("{} of {total} named, {left_out} left out", expected.len()).into());
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for folder in ["allocator", "sorter", "seeds", "own"] {
        for file in files(folder) {
            let name = format!("{folder}::{}", name_of(&file));
            trials.push(Trial::test(name, move || run(&file)));
        }
    }
    trials.push(Trial::test("allocator_none_is_missing", || {
        none_is_missing("allocator", 90)
    }));
    trials.push(Trial::test("sorter_none_is_missing", || {
        none_is_missing("sorter", 34)
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}
