//! Sweeps an agent with faults at its system calls: kills it at every call that changes something, or fails each call that
//! can fail.
//!
//! `cargo build && cargo run -p meseta-tests --example agent_faults -- MODE [FLAG=VALUE]...` as root. `MODE` is `count`,
//! `kill-before`, `kill-after` or `errors`. Flags:
//! - `--from=M` and `--points=N`: a part of the sweep
//! - `--share=I/N`: the Ith part of N, counted from 0, for programs that run side by side
//! - `--ordinals=K`: the first K calls of each site
//! - `--together=K`: K faults in one life (those of a life with errors, or not reached, are tried again one by one)
//! - `--times=T`: T calls of a site that fail in a row
//! - `--only=TEXT`: points whose names contain a text; `--listed=FILE`: those whose names are lines of a file
//! - `--logs=DIR`: the folder for the agents' logs of lives with errors
//!
//! SIGINT and SIGTERM end it after the present life. Exits with 1 on any error. `tests/src/faults` describes the method.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use meseta_tests::faults::filter;
use meseta_tests::faults::sweep::{self, Mode, Options};
use meseta_tests::interrupt::on_interrupt;

fn main() -> ExitCode {
    if let Some(code) = filter::run_if_requested() {
        return code;
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let over = options.over.clone();
    if let Err(error) = on_interrupt(move || over.store(true, Ordering::Relaxed)) {
        eprintln!("failed to listen for signals: {error:#}");
    }
    let report = sweep::run(&options, |line| println!("{line}"));
    println!(
        "{} points of {} sites; {} had their fault and {} were not reached in {} lives; the agent ended {} times; {} lives went wrong",
        report.points,
        report.sites,
        report.met.len(),
        report.not_reached,
        report.lives,
        report.ends,
        report.wrong.len()
    );
    for wrong in &report.wrong {
        println!("{wrong}");
    }
    match report.wrong.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn options(mut given: impl Iterator<Item = String>) -> Result<Options, String> {
    let mode = match given.next().as_deref() {
        Some("count") => Mode::Count,
        Some("kill-before") => Mode::KillBefore,
        Some("kill-after") => Mode::KillAfter,
        Some("errors") => Mode::Errors,
        _ => {
            return Err(
                "the first argument is count, kill-before, kill-after or errors".to_owned(),
            );
        }
    };
    let mut options = Options {
        mode,
        ..Options::default()
    };
    for flag in given {
        let (name, value) = flag.split_once('=').unwrap_or((&flag, ""));
        let number = || {
            let number = value.parse::<usize>();
            number.map_err(|_| format!("{name} takes a number, as {name}=10; not `{value}`"))
        };
        match name {
            "--from" => options.from = number()?,
            "--points" => options.points = number()?,
            "--together" => options.together = number()?,
            "--ordinals" => options.ordinals = number()?,
            "--share" => options.share = share(value)?,
            "--times" => options.times = number()?,
            "--only" => options.only = Some(value.to_owned()),
            "--listed" => options.listed = Some(listed(value)?),
            "--logs" => options.logs = Some(value.into()),
            _ => return Err(format!("there is no flag {name}")),
        }
    }
    Ok(options)
}

/// Reads names of points, one on each line: `mkdir WORK/run #1`.
fn listed(file: &str) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("--listed={file} cannot be read: {error}"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Parses a share such as `1/4`: the second of four parts.
fn share(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/');
    let numbers = parts.and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    let is_part = |(part, parts): &(u64, u64)| part < parts;
    numbers
        .filter(is_part)
        .ok_or_else(|| format!("--share takes a part of so many, as --share=0/2; not `{text}`"))
}
