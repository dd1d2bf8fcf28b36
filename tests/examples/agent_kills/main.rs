//! Kills the agent repeatedly under tasks of every kind, and compares the updates of each task with its actions.
//!
//! `cargo build && cargo run -p meseta-tests --example agent_kills -- [MODE] [KILLS] [SEED] [TASKS]` as root. `MODE` is
//! `ends` (tasks begin and end all the time: 1,300 by default, and one more for each launch that was lost with an agent),
//! `standing` (50 tasks continue through all kills) or `changes` (kills while tasks are launched, fetched, resized, drained
//! and collected); 100 kills by default. Prints the updates by kind of task, and all errors that `tests/src/audit.rs`
//! finds; exits with 1 on any error.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod changes;
mod slow_source;
mod standing;

use std::process::ExitCode;

use meseta_tests::agent_kills;
use meseta_tests::audit;
use meseta_tests::dice::Dice;
use meseta_tests::executor;
use meseta_tests::observed::Outcome;

fn main() -> ExitCode {
    if let Some(code) = executor::run_if_requested() {
        return code;
    }
    let mut given = std::env::args().skip(1).peekable();
    let is_number = |text: &String| text.parse::<u64>().is_ok();
    let mode = given.next_if(|text| !is_number(text));
    let mut number = |usual: u64| {
        given
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(usual)
    };
    let (kills, seed, tasks) = (number(100), number(7), number(1_300));
    let [kills, tasks] = [kills, tasks].map(|number| usize::try_from(number).expect("few"));
    let dice = Dice::new(seed);
    let outcome = match mode.as_deref() {
        None | Some("ends") => agent_kills::run(kills, tasks, dice),
        Some("standing") => standing::run(kills, dice),
        Some("changes") => changes::run(kills, dice),
        Some(other) => {
            eprintln!("there is no mode {other}: ends, standing or changes");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "{kills} kills of the agent under {} tasks",
        outcome.told.len()
    );
    report(&outcome)
}

/// Prints all updates, and their errors.
fn report(outcome: &Outcome) -> ExitCode {
    for one in &outcome.wrong {
        println!("WRONG {one}");
    }
    for ((kind, what), count) in audit::counts(&outcome.told) {
        println!("{count:6} {kind:?}: {what}");
    }
    println!("{} wrong", outcome.wrong.len());
    match outcome.wrong.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
