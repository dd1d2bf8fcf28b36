//! The options of the command line: the faults, their numbers, and the cluster.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use meseta_tests::dice::Dice;

use crate::fault::Fault;

const USAGE: &str = "failovers [--seed=7] [--members=1|3] [--agents=3] [--tasks=50] [--hold=20] [--stop=60] [--away=60] \
                     [--bar-ms=10000] [--keep] [FAULT:COUNT ...]; times in seconds";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The seed of the order and the times of the faults.
    pub(crate) seed: u64,
    /// The number of etcd members.
    pub(crate) members: u8,
    pub(crate) agents: u8,
    /// Tasks that run for the whole time.
    pub(crate) tasks: usize,
    /// The duration of a network cut.
    pub(crate) hold: Duration,
    /// The duration of a leader's stop.
    pub(crate) stop: Duration,
    /// The duration of the absence of the whole etcd.
    pub(crate) away: Duration,
    /// The longest time without a serving leader after most faults.
    pub(crate) bar: Duration,
    /// Whether the directory with all logs is kept.
    pub(crate) keep: bool,
    pub(crate) plan: Vec<(Fault, usize)>,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self {
            seed: 7,
            members: 3,
            agents: 3,
            tasks: 50,
            hold: Duration::from_secs(20),
            stop: Duration::from_secs(60),
            away: Duration::from_secs(60),
            bar: Duration::from_secs(10),
            keep: false,
            plan: Vec::new(),
        };
        for argument in arguments {
            if argument == "--keep" {
                options.keep = true;
            } else if let Some((name, value)) = argument.split_once('=') {
                options.take(name, value)?;
            } else {
                let (name, count) = argument.split_once(':').unwrap_or((&argument, "1"));
                let count = count
                    .parse()
                    .with_context(|| format!("{argument}: {USAGE}"))?;
                options.plan.push((Fault::named(name)?, count));
            }
        }
        ensure!(matches!(options.members, 1 | 3), "--members is 1 or 3");
        ensure!((1..=8).contains(&options.agents), "--agents is 1 to 8");
        if options.plan.is_empty() {
            options.plan = Fault::usual_plan();
        }
        Ok(options)
    }

    fn take(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let number: u64 = value.parse().with_context(|| format!("{name}: {USAGE}"))?;
        let seconds = Duration::from_secs(number);
        match name {
            "--seed" => self.seed = number,
            "--members" => self.members = u8::try_from(number)?,
            "--agents" => self.agents = u8::try_from(number)?,
            "--tasks" => self.tasks = usize::try_from(number)?,
            "--hold" => self.hold = seconds,
            "--stop" => self.stop = seconds,
            "--away" => self.away = seconds,
            "--bar-ms" => self.bar = Duration::from_millis(number),
            _ => bail!("{name} is not known: {USAGE}"),
        }
        Ok(())
    }

    /// Returns each fault as often as requested, shuffled by the seed. Faults that reset the registry to an earlier state
    /// come last.
    pub(crate) fn sequence(&self, dice: &mut Dice) -> Vec<Fault> {
        let of = |(fault, count): &(Fault, usize)| std::iter::repeat_n(*fault, *count);
        let mut all: Vec<Fault> = self.plan.iter().flat_map(of).collect();
        for last in (1..all.len()).rev() {
            let other = dice.roll(u64::try_from(last + 1).unwrap_or(1));
            all.swap(last, usize::try_from(other).unwrap_or_default());
        }
        all.sort_by_key(|fault| *fault == Fault::EtcdRestored);
        all
    }
}
