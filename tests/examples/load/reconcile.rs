//! The latency of offers while another framework asks for all its tasks in one RECONCILE.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use meseta_tests::priority::lower_priority;
use tokio::sync::mpsc;

use crate::framework::Framework;
use crate::{LATENCIES, number, report, start_agents, start_master, wait_for_agents};

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let (agents, tasks) = (number(arguments, 0, 100)?, number(arguments, 1, 500_000)?);
    let dir = tempfile::tempdir()?;
    let flags = ["--agent_ping_timeout=5mins"];
    let (master, address) = start_master(dir.path(), &flags).await?;
    let _agents = start_agents(address, agents)?;
    wait_for_agents(address, agents).await?;
    let mut owner = Owner::start(address, agents, tasks);
    let took = owner.took().await?;
    println!(
        "{tasks} tasks running after {:.1} s, {} MB resident",
        took.as_secs_f64(),
        master.resident_mb()?
    );
    let mut waiting = Framework::subscribe(address, "waiting").await?;
    let alone = waiting.offer_latencies(LATENCIES).await?;
    report("offer latency, alone", &alone);
    for (how, named) in [("without a name", None), ("by name", Some(tasks))] {
        owner.ask.send(named).await?;
        let mut latencies = Vec::new();
        while owner.answered.is_empty() && !owner.answered.is_closed() {
            latencies.extend(waiting.offer_latencies(1).await?);
        }
        let took = owner.took().await?;
        println!(
            "{tasks} tasks reconciled {how} in {:.2} s, {} MB resident",
            took.as_secs_f64(),
            master.resident_mb()?
        );
        report("offer latency meanwhile", &latencies);
    }
    Ok(())
}

/// The framework that reconciles, on a separate thread of low priority, as if on another machine.
struct Owner {
    /// Sends the number of tasks to name in a RECONCILE, or `None` for all tasks without names.
    ask: mpsc::Sender<Option<usize>>,
    /// Receives the time until its tasks ran, and then the time of each answer.
    answered: mpsc::Receiver<anyhow::Result<Duration>>,
}

impl Owner {
    fn start(address: SocketAddr, agents: usize, tasks: usize) -> Self {
        let (ask, asked) = mpsc::channel(1);
        let (say, answered) = mpsc::channel(1);
        std::thread::spawn(move || {
            lower_priority();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let end = match runtime {
                Ok(runtime) => runtime.block_on(own(address, agents, tasks, asked, say.clone())),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = end {
                let _ = say.blocking_send(Err(error));
            }
        });
        Self { ask, answered }
    }

    async fn took(&mut self) -> anyhow::Result<Duration> {
        self.answered.recv().await.context("the owner has ended")?
    }
}

async fn own(
    address: SocketAddr,
    agents: usize,
    tasks: usize,
    mut asked: mpsc::Receiver<Option<usize>>,
    say: mpsc::Sender<anyhow::Result<Duration>>,
) -> anyhow::Result<()> {
    let mut owner = Framework::subscribe(address, "owner").await?;
    while owner.offers() < agents {
        owner.step().await?;
    }
    let began = Instant::now();
    owner.keep_tasks(tasks).await?;
    owner.suppress().await?;
    say.send(Ok(began.elapsed())).await?;
    while let Some(named) = asked.recv().await {
        let (before, began) = (owner.updates, Instant::now());
        owner.reconcile_kept(named).await?;
        while owner.updates < before + tasks {
            owner.step().await?;
        }
        say.send(Ok(began.elapsed())).await?;
    }
    Ok(())
}
