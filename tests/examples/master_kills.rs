//! Random writes of operators, and kill -9 of the master at random moments: acknowledged writes are there afterwards.
//!
//! `cargo build --release` and `cargo run --release -p meseta-tests --example master_kills -- [WRITES] [KILLS] [SEED]`;
//! 1,000 writes, 100 kills and seed 7 by default. One agent is real, and so is the registry on disk.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;
use std::time::Duration;

use meseta_tests::master_kills;

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let mut number = |usual: usize| {
        let number = given.next().and_then(|text| text.parse().ok());
        number.unwrap_or(usual)
    };
    let (writes, kills, seed) = (number(1_000), number(100), number(7));
    let report = match master_kills::run(writes, kills, seed as u64) {
        Ok(report) => report,
        Err(why) => {
            println!("seed {seed}: {why}");
            return ExitCode::FAILURE;
        }
    };
    let total = |wanted: &str| -> usize {
        let counts = report.counts.iter();
        counts
            .filter(|((_, how), _)| *how == wanted)
            .map(|(_, count)| count)
            .sum()
    };
    println!(
        "{} kills of the master; {} writes acknowledged, {} refused, {} without an answer; none lost",
        report.serving.len(),
        total("acknowledged"),
        total("refused"),
        total("unknown"),
    );
    for ((kind, how), count) in &report.counts {
        println!("  {kind}, {how}: {count}");
    }
    times(
        "from exec until the registry's values are served",
        report.serving,
    );
    times("from exec until the agent is back", report.agent_back);
    ExitCode::SUCCESS
}

fn times(what: &str, mut all: Vec<Duration>) {
    all.sort_unstable();
    let (Some(least), Some(longest)) = (all.first(), all.last()) else {
        return;
    };
    let median = all[all.len() / 2];
    println!("{what}: least {least:.1?}, median {median:.1?}, longest {longest:.1?}");
}
