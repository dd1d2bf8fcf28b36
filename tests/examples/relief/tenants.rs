//! The owners of regular work and hogs: two frameworks of the test, or a service and a best-effort batch of the job
//! scheduler.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use meseta_tests::framework::task;
use meseta_tests::jobs::{self, Scheduler};
use meseta_tests::revocable::{
    amount, launch_and_decline_rest, revocable_framework, revocable_task,
};
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Framework};
use serde_json::{Value, json};

use crate::{HOGS, PATIENCE, SLEEPER, SLEEPER_CPUS, WORKER_CPUS, WORKERS};

/// The memory of each hog in MB, beside its cpus.
const HOG_MEM: u64 = 64;
/// The job that runs the hogs.
const FILLER: &str = "filler";

#[derive(Debug)]
pub(crate) enum Tenants {
    Frameworks {
        _regular: Box<Framework>,
        revocable: Box<Framework>,
    },
    Jobs(Scheduler),
}

/// Returns the shell line of a task, with a name that the test recognizes.
fn command(role: &str, dir: &Path, name: &str) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let (program, dir) = (program.display(), dir.display());
    Ok(format!("exec {program} {role} {dir} {name}"))
}

impl Tenants {
    /// Starts regular work, run by the test's own frameworks.
    pub(crate) fn frameworks(cluster: &Cluster, dir: &Path) -> anyhow::Result<Self> {
        let mut regular = cluster.framework();
        let offer = regular.offer();
        let mut tasks = Vec::new();
        for name in WORKERS {
            let command = command("work", dir, name)?;
            let promised = [("cpus", WORKER_CPUS), ("mem", 64.0)];
            tasks.push(task(&offer, name, &command, &promised));
        }
        let nap = command("nap", dir, SLEEPER)?;
        let promised = [("cpus", SLEEPER_CPUS), ("mem", 64.0)];
        tasks.push(task(&offer, SLEEPER, &nap, &promised));
        launch_and_decline_rest(&regular, &offer, &tasks);
        for name in WORKERS.iter().chain([&SLEEPER]) {
            regular.until_state(name, "TASK_RUNNING");
        }
        Ok(Self::Frameworks {
            _regular: Box::new(regular),
            revocable: Box::new(revocable_framework(cluster)),
        })
    }

    /// Starts regular work as services.
    pub(crate) fn jobs(cluster: &Cluster, dir: &Path) -> anyhow::Result<Self> {
        let scheduler = Scheduler::start(cluster);
        for name in WORKERS {
            scheduler.submit(&service(name, &command("work", dir, name)?, WORKER_CPUS));
        }
        scheduler.submit(&service(
            SLEEPER,
            &command("nap", dir, SLEEPER)?,
            SLEEPER_CPUS,
        ));
        for name in WORKERS.iter().chain([&SLEEPER]) {
            scheduler.wait_for(name, "healthy", 1, PATIENCE);
        }
        Ok(Self::Jobs(scheduler))
    }

    /// Launches hogs of this number of cpus each; returns the time until those were offered, or until the job ran.
    pub(crate) fn fill(
        &mut self,
        cluster: &Cluster,
        dir: &Path,
        (cpus, is_revocable): (f64, bool),
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        match self {
            Self::Frameworks { revocable, .. } => {
                let total = cpus * HOGS.len() as f64;
                let offer = offered(revocable, cluster, total, is_revocable)?;
                let waited = began.elapsed();
                let mut tasks = Vec::new();
                for name in HOGS {
                    let mut hog = revocable_task(&offer, name, &command("hog", dir, name)?, cpus);
                    if !is_revocable && let Some(resource) = hog["resources"][0].as_object_mut() {
                        resource.remove("revocable");
                    }
                    tasks.push(hog);
                }
                launch_and_decline_rest(revocable, &offer, &tasks);
                for name in HOGS {
                    revocable.until_state(name, "TASK_RUNNING");
                }
                Ok(waited)
            }
            Self::Jobs(scheduler) => {
                let name = "hog-$((MESETA_INDEX+1))";
                let job = json!({
                    "name": FILLER,
                    "kind": "batch",
                    "count": HOGS.len(),
                    "best_effort": is_revocable,
                    "task": { "command": command("hog", dir, name)? },
                    "resources": { "cpus": cpus, "mem": format!("{HOG_MEM}MB") },
                });
                scheduler.submit(&job);
                until_filled(scheduler);
                Ok(began.elapsed())
            }
        }
    }

    /// Waits until all hogs of a job run again; frameworks of the test do not repeat preempted tasks.
    pub(crate) fn until_back(&self) {
        if let Self::Jobs(scheduler) = self {
            until_filled(scheduler);
        }
    }

    /// Returns the number of preempted hogs of the job, from its history.
    pub(crate) fn preemptions(&self) -> usize {
        let Self::Jobs(scheduler) = self else {
            return 0;
        };
        let events = jobs::events(&scheduler.daemon.url, FILLER);
        let texts = events.iter().filter_map(|event| event["text"].as_str());
        texts
            .filter(|text| text.contains("container_preempted"))
            .count()
    }
}

/// Returns a service of one instance that uses a whole processor if possible, as its command does.
fn service(name: &str, command: &str, cpus: f64) -> Value {
    json!({
        "name": name,
        "kind": "service",
        "task": { "command": command },
        "resources": { "cpus": cpus, "mem": "64MB" },
    })
}

fn until_filled(scheduler: &Scheduler) {
    eventually("all hogs of the job run", PATIENCE, || {
        let job = scheduler.job(FILLER)?;
        (job["running"] == HOGS.len()).then_some(())
    });
}

/// Waits for an offer of at least this many cpus of a kind.
fn offered(
    framework: &mut Framework,
    cluster: &Cluster,
    cpus: f64,
    is_revocable: bool,
) -> anyhow::Result<Value> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let is_offers = |event: &Value| event["type"] == "OFFERS";
        let event = framework.within(PATIENCE, &is_offers);
        let event = event.map_err(|why| anyhow::anyhow!("nothing was offered: {why}"))?;
        let offers = event["offers"]["offers"].as_array().cloned();
        for offer in offers.unwrap_or_default() {
            let is_enough = amount(&offer, "cpus", is_revocable) + 1e-9 >= cpus;
            if is_enough && amount(&offer, "mem", false) >= 256.0 {
                return Ok(offer);
            }
            framework.decline(&offer, 0.0);
        }
    }
    let state = cluster.agent().page("/state").json();
    bail!(
        "no {cpus} cpus were offered within {PATIENCE:?}: {:#}",
        state["oversubscription"]
    )
}
