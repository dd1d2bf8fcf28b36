//! Kills of scheduler, master and agents at random times while jobs run, and agents that are cut off and return: no service
//! has too many tasks, no task is lost, and each task of a batch succeeds once.
//!
//! Entered through [`run`], by a scenario with a few kills and by an example with very many.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::dice::Dice;
use crate::jobs::{Scheduler, Schedulers, batch, service};
use crate::wait::eventually;
use crate::{Cluster, Setup, http};

/// The time from the last kill until all has its intended state.
const SETTLE_LIMIT: Duration = Duration::from_secs(180);
/// The longest pause between two kills, in ms.
const PAUSE_MS_MAX: u64 = 1_500;
/// Flags by which a silent agent is unreachable after two seconds.
const MASTER_FLAGS: [&str; 4] = [
    "--agent_ping_timeout=1secs",
    "--max_agent_ping_timeouts=2",
    "--agent_removal_rate_limit=none",
    "--recovery_agent_removal_limit=100%",
];
/// The time for which an agent stays cut off after it is unreachable.
const CUT: Duration = Duration::from_secs(1);
const CUT_LIMIT: Duration = Duration::from_secs(30);
/// Instances that the service may have above its count.
const SURGE: usize = 1;

/// The observations of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub kills_of_scheduler: usize,
    pub kills_of_master: usize,
    pub kills_of_agents: usize,
    /// The number of agents that were unreachable for a while.
    pub cuts: usize,
    /// The largest number of live tasks of the service.
    pub most: usize,
    /// The number of checks of live tasks.
    pub looks: usize,
    pub settled_after: Duration,
}

/// The killed scheduler: a single one with a file, or the leader of three on etcd.
enum Killed {
    One(Scheduler),
    Three(Schedulers),
}

impl Killed {
    fn submit(&self, job: &Value) {
        match self {
            Self::One(scheduler) => scheduler.submit(job),
            Self::Three(schedulers) => schedulers.submit(job),
        };
    }

    fn job(&self, name: &str) -> Option<Value> {
        match self {
            Self::One(scheduler) => scheduler.job(name),
            Self::Three(schedulers) => schedulers.job(name),
        }
    }

    fn kill(&mut self, cluster: &Cluster) {
        match self {
            Self::One(scheduler) => scheduler.restart(cluster),
            Self::Three(schedulers) => {
                let leader = schedulers.leader();
                schedulers.restart(leader);
            }
        }
    }
}

/// Runs tasks, half of a service and half of a batch, through this many kills; ends at the first contradiction. With
/// `on_etcd` there are three schedulers, and the kills hit the leader.
pub fn run(tasks: usize, kills: usize, seed: u64, on_etcd: bool) -> Result<Report, String> {
    let mut cluster = Cluster::start(Setup {
        agents: 2,
        master_flags: MASTER_FLAGS.map(str::to_owned).to_vec(),
        agent_flags: vec!["--resources=cpus:8;mem:16384;disk:4096;ports:[31000-31999]".into()],
        ..Setup::default()
    });
    let done =
        tempfile::TempDir::with_prefix("meseta-test-done-").map_err(|error| error.to_string())?;
    let mut scheduler = match on_etcd {
        false => Killed::One(Scheduler::start(&cluster)),
        true => Killed::Three(Schedulers::start(&cluster, 3)),
    };
    let count = tasks / 2;
    scheduler.submit(&service("web", count, "exec sleep 100000"));
    let command = format!("sleep 1; echo done >> {}/$INDEX", done.path().display());
    scheduler.submit(&batch("array", count, &command));
    let mut report = Report::default();
    let mut dice = Dice::new(seed);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(dice.roll(PAUSE_MS_MAX)));
        match dice.roll(8) {
            0..4 => {
                scheduler.kill(&cluster);
                report.kills_of_scheduler += 1;
            }
            4 | 5 => {
                cluster.restart_master();
                report.kills_of_master += 1;
            }
            6 => {
                let agent = usize::try_from(dice.roll(2)).unwrap_or_default();
                cut(&cluster, &cluster.agents[agent]);
                report.cuts += 1;
            }
            _ => {
                let agent = usize::try_from(dice.roll(2)).unwrap_or_default();
                cluster.restart_agent(agent);
                report.kills_of_agents += 1;
            }
        }
        look(&cluster, count + SURGE, &mut report)?;
    }
    let began = Instant::now();
    settle(&cluster, &scheduler, count, &mut report)?;
    report.settled_after = began.elapsed();
    once_each(done.path(), count)?;
    Ok(report)
}

/// Stops an agent until the master has declared it unreachable, and a moment longer. Others may be unreachable as well: an
/// agent that came back as another, or that stood still by itself.
fn cut(cluster: &Cluster, agent: &Daemon) {
    cluster.wait_for_agents(2);
    eventually("the agent is listed", CUT_LIMIT, || {
        is_listed(cluster, agent).then_some(())
    });
    let pid = Pid::from_raw(agent.pid());
    kill(pid, Signal::SIGSTOP).expect("the agent runs");
    eventually("the agent is unreachable", CUT_LIMIT, || {
        (!is_listed(cluster, agent)).then_some(())
    });
    std::thread::sleep(CUT);
    kill(pid, Signal::SIGCONT).expect("the agent is there");
}

/// Whether the master lists the agent at this address, connected or not.
fn is_listed(cluster: &Cluster, agent: &Daemon) -> bool {
    let page = cluster.master.page("/slaves").json();
    let all = page["slaves"].as_array().into_iter().flatten();
    let mut pids = all.filter_map(|one| one["pid"].as_str());
    pids.any(|pid| pid.ends_with(agent.address()))
}

/// Returns the number of live tasks of the service, as far as the master knows.
fn alive(cluster: &Cluster) -> Option<usize> {
    let url = format!("{}/tasks?limit=100000", cluster.master.url);
    let answer = http::try_get(&url).ok()?;
    if answer.status != 200 {
        return None;
    }
    let page = answer.json();
    let of_web = page["tasks"].as_array()?.iter().filter(|task| {
        let is_web = task["id"].as_str().is_some_and(|id| id.starts_with("web."));
        is_web && is_live(&task["state"])
    });
    Some(of_web.count())
}

fn is_live(state: &Value) -> bool {
    [
        "TASK_STAGING",
        "TASK_STARTING",
        "TASK_RUNNING",
        "TASK_KILLING",
    ]
    .contains(&state.as_str().unwrap_or_default())
}

fn look(cluster: &Cluster, most: usize, report: &mut Report) -> Result<(), String> {
    let Some(alive) = alive(cluster) else {
        return Ok(());
    };
    report.looks += 1;
    report.most = report.most.max(alive);
    match alive <= most {
        true => Ok(()),
        false => Err(format!(
            "{alive} tasks of the service live, of {most} at most"
        )),
    }
}

fn settle(
    cluster: &Cluster,
    scheduler: &Killed,
    count: usize,
    report: &mut Report,
) -> Result<(), String> {
    let mut contradiction = None;
    eventually("both jobs are as they are to be", SETTLE_LIMIT, || {
        if let Err(why) = look(cluster, count + SURGE, report) {
            contradiction = Some(why);
            return Some(());
        }
        let (web, array) = (scheduler.job("web")?, scheduler.job("array")?);
        std::thread::sleep(Duration::from_millis(100));
        let is_settled = web["state"] == "healthy" && array["state"] == "complete";
        (is_settled && alive(cluster) == Some(count)).then_some(())
    });
    contradiction.map_or(Ok(()), Err)
}

/// Checks that each index has written its line once.
fn once_each(done: &Path, count: usize) -> Result<(), String> {
    for index in 0..count {
        let text = std::fs::read_to_string(done.join(index.to_string()));
        let lines = text.unwrap_or_default().lines().count();
        if lines != 1 {
            return Err(format!("task {index} of the batch succeeded {lines} times"));
        }
    }
    Ok(())
}
