//! Damages the files of an agent with running tasks: the agent always starts, and loses one executor at most.
//!
//! `cargo build && cargo run -p meseta-tests --example agent_damage -- [DAMAGES] [SEED]` as root; 400 by default. Each time
//! the agent is killed, one file of its checkpoints or of its runtime folder is damaged, with each kind of file and damage
//! in turn, and the agent is started again. All other executors must continue as the same processes; that of the file
//! continues, or is gone and was reported so once. Prints, by kind of file and damage, how often the log named the file and
//! the losses; exits with 1 on any error.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod damage;
mod node;

use std::collections::BTreeMap;
use std::process::ExitCode;

use meseta_tests::dice::Dice;
use meseta_tests::executor;

use damage::Harm;
use node::Node;

/// The results of one kind of damage to one kind of file.
#[derive(Copy, Clone, Debug, Default)]
struct Count {
    tried: usize,
    named: usize,
    lost: usize,
}

fn main() -> ExitCode {
    if let Some(code) = executor::run_if_requested() {
        return code;
    }
    let mut given = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |usual: u64| given.next().and_then(Result::ok).unwrap_or(usual);
    let (damages, seed) = (number(400), number(18));
    let mut dice = Dice::new(seed);
    let mut node = Node::start();
    let mut counts: BTreeMap<(String, Harm), Count> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut done = 0;
    while done < damages {
        let files = node.files();
        let kinds: Vec<&String> = files.keys().collect();
        let Ok(kinds_count) = u64::try_from(kinds.len()) else {
            break;
        };
        let turn = |of: u64, count: u64| usize::try_from(of % count).expect("few");
        let kind = kinds[turn(done, kinds_count)].clone();
        let harms = u64::try_from(damage::ALL.len()).expect("few");
        let harm = damage::ALL[turn(done / kinds_count, harms)];
        let path = dice.pick(&files[&kind]).expect("one of its kind").clone();
        done += 1;
        let trial = node.damaged(&path, harm, &mut dice);
        let Some(trial) = trial else {
            continue;
        };
        println!("{done} {harm:?} of {kind}: {}", trial.summary());
        for one in &trial.wrong {
            wrong.push(format!("{done} {harm:?} of {}: {one}", path.display()));
        }
        let count = counts.entry((kind, harm)).or_default();
        count.tried += 1;
        count.named += usize::from(trial.is_named);
        count.lost += usize::from(!trial.lost.is_empty());
        if !trial.wrong.is_empty() {
            for one in &trial.wrong {
                println!("WRONG {one}");
            }
            println!("{}", trial.log);
            drop(node);
            node = Node::start();
        }
    }
    report(&counts, &wrong)
}

fn report(counts: &BTreeMap<(String, Harm), Count>, wrong: &[String]) -> ExitCode {
    for ((kind, harm), count) in counts {
        let Count { tried, named, lost } = count;
        println!(
            "{tried:4} tried, {named:4} named, {lost:4} cost their executor: {harm:?} of {kind}"
        );
    }
    let sum = |of: fn(&Count) -> usize| counts.values().map(of).sum::<usize>();
    println!(
        "{} damages; {} named in the log, {} cost an executor; {} wrong",
        sum(|count| count.tried),
        sum(|count| count.named),
        sum(|count| count.lost),
        wrong.len()
    );
    for one in wrong {
        println!("WRONG {one}");
    }
    match wrong.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
