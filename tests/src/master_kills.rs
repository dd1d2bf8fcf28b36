//! kill -9 of a single master at random moments while an operator writes: acknowledged writes are there afterwards.
//!
//! Entered through [`run`], by a scenario with few writes and by an example with very many.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::acknowledged::{Outcome, Writes};
use crate::dice::Dice;
use crate::wait::eventually;
use crate::{Cluster, http, kernel};

/// The time for an agent to come back to a new master.
const RETURN_LIMIT: Duration = Duration::from_secs(60);
/// The spread of a kill after the begin of a write, in mean durations of a write.
const SPREAD: u32 = 3;

/// The observations of a run.
#[derive(Debug)]
pub struct Report {
    /// The number of writes by kind and outcome.
    pub counts: BTreeMap<(&'static str, &'static str), usize>,
    /// The times from exec until the new master answers with the registry's contents.
    pub serving: Vec<Duration>,
    /// The times from exec until the agent is registered again.
    pub agent_back: Vec<Duration>,
}

/// Makes at least this many writes and kills the master this many times; ends at the first contradiction.
pub fn run(writes: usize, kills: usize, seed: u64) -> Result<Report, String> {
    let mut cluster = Cluster::default();
    let agent = cluster.agent_id();
    let mut operator = Operator {
        model: Writes::new(seed).with_agent(&agent),
        count: 0,
        writing: Duration::ZERO,
    };
    let mut dice = Dice::new(seed ^ 0x5eed);
    let (mut serving, mut agent_back) = (Vec::new(), Vec::new());
    for kill in 1..=kills {
        while operator.count < writes * kill / kills {
            operator.write(&cluster);
        }
        kill_soon(&cluster, operator.mean() * SPREAD, &mut dice);
        while operator.write(&cluster) != Outcome::Unknown {}
        eventually("the killed master has ended", RETURN_LIMIT, || {
            cluster.master.has_ended().then_some(())
        });
        let began = Instant::now();
        cluster.restart_master();
        answers(&cluster);
        serving.push(began.elapsed());
        is_back(&cluster, &agent);
        agent_back.push(began.elapsed());
        let settled = operator.model.settle(&cluster.master.url);
        settled.map_err(|why| format!("{} writes, {kill} kills: {why}", operator.count))?;
    }
    while operator.count < writes {
        operator.write(&cluster);
    }
    operator.model.check(&cluster.master.url)?;
    Ok(Report {
        counts: operator.model.counts().clone(),
        serving,
        agent_back,
    })
}

/// The sender of the writes, one after the other.
struct Operator {
    model: Writes,
    count: usize,
    writing: Duration,
}

impl Operator {
    fn write(&mut self, cluster: &Cluster) -> Outcome {
        let write = self.model.next();
        let began = Instant::now();
        let outcome = write.send(&cluster.master.url);
        self.writing += began.elapsed();
        self.count += 1;
        self.model.record(&write, outcome);
        outcome
    }

    /// Returns the mean duration of a write so far.
    fn mean(&self) -> Duration {
        self.writing / u32::try_from(self.count).unwrap_or(u32::MAX).max(1)
    }
}

/// Ends the master at a random time within this limit, from a separate thread.
fn kill_soon(cluster: &Cluster, within: Duration, dice: &mut Dice) {
    let pid = cluster.master.pid();
    let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX).max(1);
    let delay = Duration::from_micros(dice.roll(micros));
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        kernel::kill(pid, Signal::SIGKILL);
    });
}

fn answers(cluster: &Cluster) {
    eventually("the master answers", RETURN_LIMIT, || {
        let answer = http::try_get(&format!("{}/quota", cluster.master.url)).ok()?;
        (answer.status == 200).then_some(())
    });
}

/// Waits until an agent is registered, deactivated or not.
fn is_back(cluster: &Cluster, agent: &str) {
    eventually("the agent is back", RETURN_LIMIT, || {
        let slaves = cluster.master.page("/slaves").json();
        let slaves = slaves["slaves"].as_array()?.clone();
        slaves.iter().any(|one| one["id"] == agent).then_some(())
    });
}
