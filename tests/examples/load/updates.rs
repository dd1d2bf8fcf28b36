//! `kill -9` of the master in the middle of very many terminal updates: none is lost, and those of a task come in order.
//!
//! Agents are simulated and repeat each update until it is acknowledged, as real ones do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use meseta_proto::mesos::v1::TaskState;

use crate::failover::{back, start_returning};
use crate::framework::{Framework, Identity};
use crate::{number, start_master, start_master_at};

/// The time limit for all updates, in any case.
const LIMIT: Duration = Duration::from_secs(240);
/// The pause between two attempts of a framework to subscribe again.
const PAUSE: Duration = Duration::from_millis(100);
const FLAGS: [&str; 1] = ["--max_completed_tasks_per_framework=10"];

/// The updates of each task in their order, with their uuids.
pub(crate) type Told = BTreeMap<String, Vec<(TaskState, Vec<u8>)>>;

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index, default| number(arguments, index, default);
    let (agents, tasks, kills) = (number(0, 100)?, number(1, 10_000)?, number(2, 5)?);
    let dir = tempfile::tempdir()?;
    let (mut master, address) = start_master(dir.path(), &FLAGS).await?;
    let _agents = start_returning(address, 0, agents)?;
    back(address, agents, 0).await?;
    let mut who = Identity {
        failover_timeout: Some(3_600.0),
        ..Identity::plain("owner")
    };
    let mut owner = Framework::subscribe_as(address, &who).await?;
    who.id = Some(owner.id());
    owner.told = Some(Told::new());
    while owner.offers() < agents {
        owner.step().await?;
    }
    owner.launch_all_of("ending", tasks).await?;
    owner.suppress().await?;
    let began = Instant::now();
    for kill in 1..=kills {
        until_finished(&mut owner, tasks * kill / (kills + 1), began).await?;
        drop(master);
        let told = owner.told.take();
        master = start_master_at(address, dir.path(), &FLAGS).await?;
        owner = loop {
            match Framework::subscribe_as(address, &who).await {
                Ok(owner) => break owner,
                Err(error) => ensure!(began.elapsed() < LIMIT, "no subscription: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        };
        owner.told = told;
        owner.suppress().await?;
    }
    until_finished(&mut owner, tasks, began).await?;
    let told = owner.told.take().unwrap_or_default();
    let updates: usize = told.values().map(Vec::len).sum();
    let repeated = check(&told, tasks)?;
    println!(
        "{kills} kills during {tasks} terminal updates in {:.1} s: none lost, all in order; {updates} updates, {repeated} of \
         them again",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn finished(told: Option<&Told>) -> usize {
    let is_finished = |updates: &&Vec<(TaskState, Vec<u8>)>| {
        let mut states = updates.iter().map(|(state, _)| *state);
        states.any(|state| state == TaskState::TaskFinished)
    };
    told.map_or(0, |told| told.values().filter(is_finished).count())
}

/// Reads events until this number of tasks have ended.
async fn until_finished(owner: &mut Framework, count: usize, began: Instant) -> anyhow::Result<()> {
    let mut left = count.saturating_sub(finished(owner.told.as_ref()));
    while left > 0 {
        // At least the missing updates must come.
        for _ in 0..left {
            let rest = LIMIT.saturating_sub(began.elapsed());
            let stepped = tokio::time::timeout(rest, owner.step());
            match stepped.await {
                Ok(stepped) => stepped?,
                Err(_) => bail!("{left} of {count} ends were not told in {LIMIT:?}"),
            }
        }
        left = count.saturating_sub(finished(owner.told.as_ref()));
    }
    Ok(())
}

/// Checks that each task runs and then ends, in this order; returns the number of repeated updates.
fn check(told: &Told, tasks: usize) -> anyhow::Result<usize> {
    ensure!(
        told.len() == tasks,
        "{} of {tasks} tasks were told of",
        told.len()
    );
    let mut repeated = 0;
    for (task, updates) in told {
        let mut different = updates.clone();
        different.dedup();
        repeated += updates.len() - different.len();
        let states: Vec<_> = different.iter().map(|(state, _)| *state).collect();
        let expected = [TaskState::TaskRunning, TaskState::TaskFinished];
        ensure!(states == expected, "{task} was told as {states:?}");
    }
    Ok(repeated)
}
