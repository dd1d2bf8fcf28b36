//! One framework asks for all its tasks in one RECONCILE, while another waits for offers.

use std::time::Instant;

use crate::framework::Framework;
use crate::{LATENCIES, number, report, start_agents, start_master, wait_for_agents};

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let (agents, tasks) = (number(arguments, 0, 100)?, number(arguments, 1, 500_000)?);
    let dir = tempfile::tempdir()?;
    let flags = ["--agent_ping_timeout=5mins"];
    let (master, address) = start_master(dir.path(), &flags).await?;
    let _agents = start_agents(address, agents)?;
    wait_for_agents(address, agents).await?;
    let mut owner = Framework::subscribe(address, "owner").await?;
    while owner.offers() < agents {
        owner.step().await?;
    }
    let began = Instant::now();
    owner.keep_tasks(tasks).await?;
    owner.suppress().await?;
    println!(
        "{tasks} tasks running after {:.1} s, {} MB resident",
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    let mut waiting = Framework::subscribe(address, "waiting").await?;
    let alone = waiting.offer_latencies(LATENCIES).await?;
    report("offer latency, alone", &alone);
    for (how, named) in [("without a name", None), ("by name", Some(tasks))] {
        let before = owner.updates;
        let start = Instant::now();
        let answers = tokio::spawn(async move {
            owner.reconcile_kept(named).await?;
            while owner.updates < before + tasks {
                owner.step().await?;
            }
            anyhow::Ok((owner, start.elapsed()))
        });
        let mut latencies = Vec::new();
        while !answers.is_finished() {
            latencies.extend(waiting.offer_latencies(1).await?);
        }
        let took;
        (owner, took) = answers.await??;
        println!(
            "{tasks} tasks reconciled {how} in {:.2} s, {} MB resident",
            took.as_secs_f64(),
            master.resident_mb()?
        );
        report("offer latency meanwhile", &latencies);
    }
    Ok(())
}
