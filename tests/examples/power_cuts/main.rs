//! Cuts the power of a busy node repeatedly, and compares the updates before with the state afterwards.
//!
//! `cargo build && cargo run -p meseta-tests --example power_cuts -- [CUTS] [SEED] [ext4|fast-commit|xfs]` as root: 200
//! cuts of an ext4 by default. Tasks of most kinds begin and end; volumes are made, written with syncs, and destroyed.
//! Prints each cut, the updates by kind of task, and all errors; exits with 1 on any error. SIGINT and SIGTERM end it after
//! the next cut. `tests/src/power_cuts` describes the method.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meseta_tests::interrupt::on_interrupt;
use meseta_tests::power_cuts::node::{Journal, in_own_mounts};
use meseta_tests::power_cuts::run::{self, Options, Report};
use meseta_tests::{unless_installed, unless_root};

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let missing = unless_root().or_else(|| unless_installed(options.journal.program()));
    if let Some(why) = missing {
        eprintln!("not run: {why}");
        return ExitCode::FAILURE;
    }
    let over = options.over.clone();
    if let Err(error) = on_interrupt(move || over.store(true, Ordering::Relaxed)) {
        eprintln!("failed to listen for signals: {error:#}");
    }
    let report = in_own_mounts(|| run::run(&options, |line| println!("{line}")));
    tell(&report)
}

fn tell(report: &Report) -> ExitCode {
    print!("{}", report.told);
    println!(
        "{} power cuts ({} of them while the agent started) under {} tasks, {} volumes, {} updates and {} operations, of which {} were dropped",
        report.cuts,
        report.early,
        report.tasks,
        report.volumes,
        report.updates,
        report.operations,
        report.dropped
    );
    let starts = &report.starts;
    if let (Some(median), Some(last)) = (starts.get(starts.len() / 2), starts.last()) {
        println!(
            "{} starts until registered: median {median:.1?}, longest {last:.1?}",
            starts.len()
        );
    }
    for wrong in &report.wrong {
        println!("WRONG {wrong}");
    }
    println!("{} wrong", report.wrong.len());
    if report.wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("checkpoints and log: {}", kept().display());
    ExitCode::FAILURE
}

fn kept() -> PathBuf {
    std::env::temp_dir().join(format!("power_cuts-{}", std::process::id()))
}

fn options(mut given: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut number = |name: &str, usual: u64| match given.next() {
        None => Ok(usual),
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| format!("{name} is a number; not `{text}`")),
    };
    let cuts = number("CUTS", 200)?;
    let seed = number("SEED", 7)?;
    let journal = match given.next().as_deref() {
        None | Some("ext4") => Journal::Ext4,
        Some("fast-commit") => Journal::Ext4FastCommit,
        Some("xfs") => Journal::Xfs,
        Some(other) => {
            return Err(format!(
                "the file system is ext4, fast-commit or xfs; not `{other}`"
            ));
        }
    };
    Ok(Options {
        cuts: usize::try_from(cuts).map_err(|_| "CUTS is too large".to_owned())?,
        seed,
        journal,
        keep: Some(kept()),
        over: Arc::new(AtomicBool::new(false)),
    })
}
