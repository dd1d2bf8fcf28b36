//! kill -9 of scheduler, master and agents at random moments while a service and a batch run, and agents that are cut off
//! and return.
//!
//! `cargo build --release` and `cargo run --release -p meseta-tests --example scheduler_kills -- [TASKS] [KILLS] [SEED]
//! [etcd]`, as root; 200 tasks, 100 kills and seed 7 by default. With `etcd`, three schedulers share their jobs there, and
//! the kills hit the leader.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;

use meseta_tests::scheduler_kills;

fn main() -> ExitCode {
    let on_etcd = std::env::args().any(|argument| argument == "etcd");
    let mut given = std::env::args().skip(1);
    let mut number = |usual: usize| {
        let number = given.next().and_then(|text| text.parse().ok());
        number.unwrap_or(usual)
    };
    let (tasks, kills, seed) = (number(200), number(100), number(7));
    match scheduler_kills::run(tasks, kills, seed as u64, on_etcd) {
        Ok(report) => {
            println!(
                "{} kills of the scheduler, {} of the master, {} of agents, {} cut off and returned; at most {} tasks of a service of {} in {} \
                 looks; each of {} batch tasks succeeded once; settled {:.1?} after the last kill",
                report.kills_of_scheduler,
                report.kills_of_master,
                report.kills_of_agents,
                report.cuts,
                report.most,
                tasks / 2,
                report.looks,
                tasks / 2,
                report.settled_after,
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("seed {seed}: {why}");
            ExitCode::FAILURE
        }
    }
}
