//! A cluster for as long as needed: simulated agents, and frameworks with running tasks.

use std::time::Instant;

use crate::failover::start_returning;
use crate::state::owners;
use crate::{number, start_master, wait_for_agents};

/// Prints the master's address and process id, and ends with its input.
pub(crate) async fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (agents, tasks) = (
        number(arguments, 0, 10_000)?,
        number(arguments, 1, 200_000)?,
    );
    crate::returning::raise_descriptors()?;
    let dir = tempfile::tempdir()?;
    let mut flags = vec!["--agent_ping_timeout=5mins"];
    flags.extend(arguments.iter().skip(2).map(String::as_str));
    let (master, address) = start_master(dir.path(), &flags).await?;
    let began = Instant::now();
    let _agents = start_returning(address, 0, agents)?;
    wait_for_agents(address, agents).await?;
    for owner in owners(address) {
        let mut owner = owner.await?;
        while owner.offers() < agents {
            owner.step().await?;
        }
        owner.keep_tasks(tasks / crate::state::OWNERS).await?;
        owner.suppress().await?;
        owner.read_in_background();
    }
    println!(
        "{address} {} {agents} agents and {tasks} tasks after {:.0} s, {} MB resident",
        master.0.id(),
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    let end = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    tokio::task::spawn_blocking(end).await??;
    Ok(())
}
