//! `kill -9` of a master whose agents run very many tasks, and the time until the next one has everything back.
//!
//! Agents are simulated: each has a connection of its own and pauses between attempts as a real one does.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use meseta_tests::{http, kernel};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::framework::{Framework, Identity};
use crate::{Process, number, start_master, start_master_at};

/// The pause between two looks at the master.
const LOOK: Duration = Duration::from_millis(50);
/// The time limit for all to return; far above the target.
const LIMIT: Duration = Duration::from_secs(300);
/// The time for which nothing may be offered while too few agents are back.
const HELD_UP: Duration = Duration::from_secs(3);
const FLAGS: [&str; 1] = ["--max_completed_tasks_per_framework=10"];

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let (agents, tasks) = (
        number(arguments, 0, 10_000)?,
        number(arguments, 1, 100_000)?,
    );
    crate::returning::raise_descriptors()?;
    let dir = tempfile::tempdir()?;
    let (mut master, address) = start_master(dir.path(), &FLAGS).await?;
    let began = Instant::now();
    // The latter are too many to be missing when offers are made again.
    let most = agents * 7 / 10;
    let _most = start_returning(address, 0, most)?;
    let rest = start_returning(address, most, agents - most)?;
    back(address, agents, 0).await?;
    println!(
        "{agents} agents registered after {:.2} s",
        began.elapsed().as_secs_f64()
    );
    let began = Instant::now();
    let mut owner = Framework::subscribe_as(
        address,
        &Identity {
            failover_timeout: Some(3_600.0),
            ..Identity::plain("owner")
        },
    )
    .await?;
    while owner.offers() < agents {
        owner.step().await?;
    }
    owner.keep_tasks(tasks).await?;
    println!(
        "{tasks} tasks running after {:.2} s, {} MB resident",
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    drop(owner);
    for round in 1..=3 {
        master = replace(
            master,
            address,
            dir.path(),
            &format!("kill {round}"),
            agents,
            tasks,
        )
        .await?;
    }
    with_quota(master, address, dir.path(), &rest, (agents, most)).await
}

pub(crate) fn start_returning(
    master: SocketAddr,
    first: usize,
    count: usize,
) -> anyhow::Result<Process> {
    let child = Command::new(std::env::current_exe()?)
        .args(["returning", &master.to_string()])
        .args([first.to_string(), count.to_string()])
        .spawn()?;
    Ok(Process(child))
}

/// Kills the master and starts another; prints the time at which all state is back.
async fn replace(
    master: Process,
    address: SocketAddr,
    dir: &Path,
    what: &str,
    agents: usize,
    tasks: usize,
) -> anyhow::Result<Process> {
    drop(master);
    let began = Instant::now();
    let master = start_master_at(address, dir, &FLAGS).await?;
    let listening = began.elapsed();
    while !serves(address) {
        ensure!(began.elapsed() < LIMIT, "the master does not serve");
        tokio::time::sleep(LOOK / 10).await;
    }
    let serving = began.elapsed();
    back(address, agents, 0).await?;
    let registered = began.elapsed();
    back(address, agents, tasks).await?;
    println!(
        "{what}: from exec until it listens {:.2} s, serves {:.2} s, has all agents back {:.2} s, and all tasks {:.2} s; \
         {} MB resident",
        listening.as_secs_f64(),
        serving.as_secs_f64(),
        registered.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    Ok(master)
}

/// Whether a master leads and answers from the registry's contents.
fn serves(address: SocketAddr) -> bool {
    let page = |path: &str| http::try_get(&format!("http://{address}{path}")).ok();
    let leads = page("/leader").is_some_and(|page| page.json()["role"] == "leading");
    leads && page("/quota").is_some_and(|page| page.status == 200)
}

/// Waits until this many agents are active and this many tasks run.
pub(crate) async fn back(address: SocketAddr, agents: usize, tasks: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let (active, running) = seen(address)?;
        if active >= agents && running >= tasks {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            bail!("{active} agents and {running} tasks are back");
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn seen(address: SocketAddr) -> anyhow::Result<(usize, usize)> {
    let page = http::try_get(&format!("http://{address}/metrics/snapshot"))?;
    ensure!(page.status == 200, "{}: {}", page.status, page.text());
    let page: Value = page.json();
    let count = |name: &str| {
        let value = page[name].as_f64().unwrap_or_default();
        format!("{value:.0}").parse::<usize>()
    };
    Ok((
        count("master/slaves_active")?,
        count("master/tasks_running")?,
    ))
}

/// Checks that a master with quota makes no offers while a third of the agents are missing, and makes offers afterwards.
async fn with_quota(
    master: Process,
    address: SocketAddr,
    dir: &Path,
    rest: &Process,
    (agents, most): (usize, usize),
) -> anyhow::Result<()> {
    let config = json!({"role": "guaranteed", "guarantees": {"cpus": {"value": 1.0}}});
    let call = json!({"type": "UPDATE_QUOTA", "update_quota": {"quota_configs": [config]}});
    let answer = http::post_json(&format!("http://{address}/api/v1"), &call);
    ensure!(answer.status < 300, "{}: {}", answer.status, answer.text());
    let pid = i32::try_from(rest.0.id())?;
    kernel::kill(pid, Signal::SIGSTOP);
    drop(master);
    let _master = start_master_at(address, dir, &FLAGS).await?;
    let mut asking = Framework::subscribe(address, "asking").await?;
    back(address, most, 0).await?;
    let until = Instant::now() + HELD_UP;
    while let Ok(stepped) = tokio::time::timeout(
        until.saturating_duration_since(Instant::now()),
        asking.step(),
    )
    .await
    {
        stepped?;
    }
    ensure!(
        asking.offers() == 0,
        "offers were made with {most} of {agents} agents back"
    );
    kernel::kill(pid, Signal::SIGCONT);
    let began = Instant::now();
    while asking.offers() == 0 {
        asking.step().await?;
    }
    let (active, _) = seen(address)?;
    ensure!(
        active * 10 >= agents * 8,
        "offers were made with {active} agents"
    );
    println!(
        "with quota: no offer in {} s with {most} of {agents} agents back; {:.2} s after the rest went on, with {active} back",
        HELD_UP.as_secs(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
