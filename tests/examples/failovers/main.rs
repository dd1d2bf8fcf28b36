//! Several masters, etcd and agents on hosts of their own, faults of every kind, and one auditor of the consequences.
//!
//! `cargo build --release -p meseta && cargo run --release -p meseta-tests --example failovers -- [--seed=7]
//! [--members=1|3] [FAULT:COUNT ...]` as root, with `etcd`, `etcdctl` and iproute2. Hosts are network namespaces behind a
//! private bridge (`tests/src/network.rs`). A framework runs long tasks and a stream of short ones, and an operator writes
//! all the time. After each fault the audit checks how long no master served, that no long task was started again, that no
//! two masters led or made the same offer at once, that no agent obeyed a lower epoch, and that all acknowledged writes are
//! there; at the end, that framework, master, agents and kernel know the same tasks. Prints a line for each fault and a
//! table; exits with 1 on any error.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod audit;
mod board;
mod cluster;
mod etcd;
mod fault;
mod ledger;
mod offers;
mod options;
mod pulse;
mod report;
mod run;
mod scheduler;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{bail, ensure};
use meseta_tests::dice::Dice;
use meseta_tests::interrupt::on_interrupt;
use meseta_tests::network;

use board::Board;
use cluster::Cluster;
use fault::Fault;
use ledger::Ledger;
use options::Options;
use pulse::Pulse;
use run::Run;
use scheduler::{Desk, Scheduler};

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse(std::env::args().skip(1))?;
    let for_root = meseta_tests::unless_root();
    for missing in [for_root, meseta_tests::unless_installed("etcdctl")] {
        ensure!(missing.is_none(), "{}", missing.unwrap_or_default());
    }
    network::leave()?;
    network::make_bridge()?;
    let board = Arc::new(Board::new(cluster::master_urls()));
    let asked = board.clone();
    on_interrupt(move || asked.end())?;
    let mut cluster = Cluster::start(&options)?;
    let result = audited(&options, &board, &mut cluster);
    board.end();
    if options.keep || !matches!(result, Ok(ExitCode::SUCCESS)) {
        println!("logs are below {}", cluster.keep().display());
    }
    result
}

/// Runs the plan, in parallel to all watchers and workers.
fn audited(options: &Options, board: &Board, cluster: &mut Cluster) -> anyhow::Result<ExitCode> {
    let (pulse, desk) = (Pulse::default(), Desk::default());
    let ledger = Ledger::new(options.seed);
    let (pulse, desk, ledger) = (&pulse, &desk, &ledger);
    let agents: Vec<_> = cluster
        .agents
        .iter()
        .map(|agent| agent.url.clone())
        .collect();
    let is_restored = options
        .plan
        .iter()
        .any(|(fault, _)| *fault == Fault::EtcdRestored);
    let mut scheduler = Scheduler::new(board, desk, cluster.marks());
    (scheduler.long, scheduler.agents) = (options.tasks, agents.len());
    std::thread::scope(|threads| {
        for master in 0..board.urls.len() {
            threads.spawn(move || board.watch(master));
        }
        threads.spawn(move || audit::follow_epochs(board, &agents, is_restored));
        threads.spawn(move || pulse.run(board));
        threads.spawn(move || ledger.run(board));
        threads.spawn(move || scheduler.run());
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run {
                cluster,
                board,
                pulse,
                desk,
                options,
                ledger,
                dice: Dice::new(options.seed),
                processes: BTreeMap::new(),
            };
            plan(&mut run)
        }));
        board.end();
        ended.unwrap_or_else(|_| bail!("the run was given up, see above"))
    })
}

/// Runs every fault of the plan; returns success if there was no error.
fn plan(run: &mut Run<'_>) -> anyhow::Result<ExitCode> {
    let (seed, begun) = (run.options.seed, Instant::now());
    let faults = run.options.sequence(&mut run.dice);
    let (members, agents) = (run.cluster.etcd.count(), run.cluster.agents.len());
    println!(
        "seed {seed}: {} faults; 3 masters, {members} members of etcd, {agents} agents, {} long tasks",
        faults.len(),
        run.options.tasks
    );
    run.settle()?;
    let mut outcomes = Vec::new();
    for (number, fault) in faults.into_iter().enumerate() {
        let outcome = run.one(fault)?;
        report::line(number + 1, &outcome);
        outcomes.push(outcome);
    }
    let wrong = run.finish()?;
    for wrong in &wrong {
        println!("     WRONG at the end: {wrong}");
    }
    report::table(&outcomes);
    let (acknowledged, refused) = run.pulse.counts();
    let of_all_kinds = run.ledger.acknowledged();
    let short = run
        .desk
        .tasks()
        .values()
        .filter(|told| !told.is_long)
        .count();
    println!(
        "{acknowledged} and {of_all_kinds} writes were acknowledged and {refused} refused with 503; {short} short tasks; {} terms; {:.0} minutes",
        run.board.terms_count(),
        begun.elapsed().as_secs_f64() / 60.0
    );
    let all = wrong.len() + outcomes.iter().map(|one| one.wrong.len()).sum::<usize>();
    println!("{all} wrong; seed {seed}");
    Ok(if all == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
