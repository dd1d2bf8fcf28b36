//! kill -9 of the master while very many tasks end: the framework gets all ends, in order.
//!
//! `cargo build --release` and `cargo run --release -p meseta-tests --example update_kills -- [TASKS] [KILLS]` as root;
//! 10,000 tasks and 10 kills by default. Each task is a process of its own. Exits with 1 if an update is missing.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;

use meseta_tests::{executor, update_kills};

fn main() -> ExitCode {
    if let Some(code) = executor::run_if_requested() {
        return code;
    }
    let mut given = std::env::args().skip(1);
    let mut number = |usual: usize| {
        let number = given.next().and_then(|text| text.parse().ok());
        number.unwrap_or(usual)
    };
    let (tasks, kills) = (number(10_000), number(10));
    match update_kills::run(tasks, kills) {
        Ok(report) => {
            println!(
                "{tasks} tasks, {} kills of the master: {} updates, {} of them again, {:.1?} from the first end on; none lost",
                report.kills, report.updates, report.repeated, report.took
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("WRONG: {why}");
            ExitCode::FAILURE
        }
    }
}
