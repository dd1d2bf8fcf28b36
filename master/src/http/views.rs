//! What the v0 endpoints show: the shapes of Mesos, key for key, over a snapshot.
//!
//! Views borrow; lists are made while they are written.

mod agent;
mod framework;
mod maintenance;
mod roles;
mod task;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use meseta_proto::mesos::v1::TaskState;
use meseta_resources::{AgentId, FrameworkId, Resources};
use serde::Serialize;

pub(super) use agent::slaves;
pub(super) use framework::frameworks;
pub(crate) use maintenance::{maintenance_schedule, maintenance_status};
pub(crate) use roles::{Tally, quota, quota_status, roles, tallies, weights};
pub(super) use task::tasks;

use super::output::List;
use crate::core::{AgentView, FrameworkView, Identity, Offer, Snapshot, TaskRecord};
use agent::{Agent, RecoveredAgent};
use framework::Framework;

const CAPABILITIES: [&str; 3] = ["AGENT_UPDATE", "AGENT_DRAINING", "QUOTA_V2"];

/// What belongs to a framework, found once for a whole answer.
#[derive(Debug, Default)]
pub(crate) struct OfFramework<'a> {
    pub(crate) agents: Vec<&'a AgentView>,
    pub(crate) offers: Vec<&'a Offer>,
    pub(crate) used: Resources,
    pub(crate) offered: Resources,
}

/// A snapshot by framework; made when it is first looked into, for large answers begin with what does not
/// need it.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    snapshot: &'a Snapshot,
    frameworks: OnceCell<BTreeMap<&'a FrameworkId, OfFramework<'a>>>,
}

impl<'a> Index<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            frameworks: OnceCell::new(),
        }
    }

    fn sort(snapshot: &'a Snapshot) -> BTreeMap<&'a FrameworkId, OfFramework<'a>> {
        let mut frameworks: BTreeMap<&FrameworkId, OfFramework<'_>> = BTreeMap::new();
        for agent in &snapshot.agents {
            let mut last = None;
            let owners = agent
                .tasks
                .keys()
                .map(|(framework, _)| framework)
                .chain(agent.executors.keys().map(|(framework, _)| framework));
            for framework in owners {
                let entry = frameworks.entry(framework).or_default();
                let is_listed = last == Some(framework)
                    || entry
                        .agents
                        .last()
                        .is_some_and(|listed| listed.id() == agent.id());
                if !is_listed {
                    entry.agents.push(agent);
                }
                last = Some(framework);
            }
            for (framework, used) in &agent.used {
                frameworks.entry(framework).or_default().used += used;
            }
        }
        for offer in &snapshot.offers {
            let entry = frameworks.entry(&offer.framework_id).or_default();
            entry.offers.push(offer);
            entry.offered += &offer.resources;
        }
        frameworks
    }

    pub(crate) fn get(&self, framework: &FrameworkId) -> Option<&OfFramework<'a>> {
        self.frameworks
            .get_or_init(|| Self::sort(self.snapshot))
            .get(framework)
    }
}

/// The tasks of one framework on one agent.
fn tasks_on<'a>(
    agent: &'a AgentView,
    framework: &'a FrameworkId,
) -> impl Iterator<Item = &'a TaskRecord> {
    agent
        .tasks
        .iter()
        .skip_while(move |((owner, _), _)| owner != framework)
        .take_while(move |((owner, _), _)| owner == framework)
        .map(|(_, task)| &**task)
}

/// The numbers that say which page of `/tasks` is meant.
#[derive(Clone, Debug)]
pub(super) struct Paging {
    pub(super) offset: usize,
    /// `None` for all.
    pub(super) limit: Option<usize>,
    pub(super) ascending: bool,
}

impl Paging {
    pub(super) fn of(query: &BTreeMap<String, String>) -> Result<Self, String> {
        const LIMIT_DEFAULT: i64 = 100;
        let number = |name: &str, default: i64| match query.get(name) {
            None => Ok(default),
            Some(text) => text
                .parse::<i64>()
                .map_err(|error| format!("Failed to parse '{name}' as a number: {error}")),
        };
        let limit = number("limit", LIMIT_DEFAULT)?;
        let ascending = match query.get("order").map(String::as_str) {
            None | Some("des" | "desc") => false,
            Some("asc") => true,
            Some(other) => {
                return Err(format!(
                    "Expecting 'order' to be 'asc' or 'desc', not '{other}'"
                ));
            }
        };
        Ok(Self {
            offset: usize::try_from(number("offset", 0)?).unwrap_or(0),
            // Negative means everything.
            limit: usize::try_from(limit).ok(),
            ascending,
        })
    }
}

/// `/version`.
pub(super) fn version(identity: &Identity) -> impl Serialize {
    #[derive(Serialize)]
    struct Version {
        build_date: &'static str,
        build_time: f64,
        build_user: &'static str,
        version: String,
    }
    Version {
        build_date: "unknown",
        build_time: 0.0,
        build_user: "meseta",
        version: identity.version.clone(),
    }
}

/// `/state`.
#[derive(Serialize)]
#[serde(bound = "")]
struct State<'a, A: Serialize, R: Serialize, F: Serialize, C: Serialize> {
    version: &'a str,
    build_date: &'static str,
    build_time: f64,
    build_user: &'static str,
    start_time: f64,
    elected_time: f64,
    id: &'a str,
    pid: String,
    hostname: &'a str,
    capabilities: [&'static str; 3],
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    activated_slaves: f64,
    deactivated_slaves: f64,
    unreachable_slaves: f64,
    leader: String,
    leader_info: LeaderInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<&'a BTreeMap<String, String>>,
    slaves: A,
    recovered_slaves: R,
    frameworks: F,
    completed_frameworks: C,
    orphan_tasks: [(); 0],
    unregistered_frameworks: [(); 0],
}

#[derive(Serialize)]
struct LeaderInfo<'a> {
    id: &'a str,
    pid: String,
    port: u16,
    hostname: &'a str,
}

/// How many agents are in which condition, as Mesos counts them.
fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// `/state`, whole.
pub(super) fn state<'a>(
    snapshot: &'a Snapshot,
    index: &'a Index<'a>,
    flags: Option<&'a BTreeMap<String, String>>,
) -> impl Serialize + 'a {
    let identity = &snapshot.identity;
    let connected = snapshot
        .agents
        .iter()
        .filter(|agent| agent.is_active())
        .count();
    State {
        version: &identity.version,
        build_date: "unknown",
        build_time: 0.0,
        build_user: "meseta",
        start_time: snapshot.started.as_secs_f64(),
        elected_time: snapshot.started.as_secs_f64(),
        id: &identity.id,
        pid: identity.pid(),
        hostname: &identity.hostname,
        capabilities: CAPABILITIES,
        cluster: identity.cluster.as_deref(),
        activated_slaves: count(connected),
        deactivated_slaves: count(snapshot.agents.len() - connected),
        unreachable_slaves: count(snapshot.unreachable_agents.len()),
        leader: identity.pid(),
        leader_info: LeaderInfo {
            id: &identity.id,
            pid: identity.pid(),
            port: identity.port,
            hostname: &identity.hostname,
        },
        flags,
        slaves: List(move || snapshot.agents.iter().map(Agent::of)),
        recovered_slaves: recovered(snapshot),
        frameworks: List(move || {
            snapshot
                .frameworks
                .iter()
                .map(|framework| Framework::of(framework, index))
        }),
        completed_frameworks: List(move || {
            snapshot
                .completed_frameworks
                .iter()
                .map(|framework| Framework::of(framework, index))
        }),
        orphan_tasks: [],
        unregistered_frameworks: [],
    }
}

/// The agents that are still expected.
fn recovered(snapshot: &Snapshot) -> impl Serialize + '_ {
    List(move || snapshot.recovered_agents.iter().map(RecoveredAgent::of))
}

/// How many tasks are in which state.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
struct TaskCounts {
    task_staging: u64,
    task_starting: u64,
    task_running: u64,
    task_killing: u64,
    task_finished: u64,
    task_killed: u64,
    task_failed: u64,
    task_lost: u64,
    task_error: u64,
    task_unreachable: u64,
}

impl TaskCounts {
    fn add(&mut self, state: TaskState) {
        let counter = match state {
            TaskState::TaskStaging => &mut self.task_staging,
            TaskState::TaskStarting => &mut self.task_starting,
            TaskState::TaskRunning => &mut self.task_running,
            TaskState::TaskKilling => &mut self.task_killing,
            TaskState::TaskFinished => &mut self.task_finished,
            TaskState::TaskKilled => &mut self.task_killed,
            TaskState::TaskFailed => &mut self.task_failed,
            TaskState::TaskLost => &mut self.task_lost,
            TaskState::TaskError => &mut self.task_error,
            TaskState::TaskUnreachable => &mut self.task_unreachable,
            TaskState::TaskDropped
            | TaskState::TaskGone
            | TaskState::TaskGoneByOperator
            | TaskState::TaskUnknown => return,
        };
        *counter += 1;
    }
}

/// `/state-summary`.
pub(super) fn summary<'a>(snapshot: &'a Snapshot, index: &'a Index<'a>) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(bound = "")]
    struct Summary<'a, A: Serialize, F: Serialize> {
        hostname: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<&'a str>,
        slaves: A,
        frameworks: F,
    }
    Summary {
        hostname: &snapshot.identity.hostname,
        cluster: snapshot.identity.cluster.as_deref(),
        slaves: List(move || snapshot.agents.iter().map(agent_summary)),
        frameworks: List(move || {
            snapshot
                .frameworks
                .iter()
                .map(|framework| framework_summary(framework, index))
        }),
    }
}

fn agent_summary(agent: &AgentView) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct AgentSummary<'a> {
        #[serde(flatten)]
        agent: Agent<'a>,
        #[serde(flatten)]
        counts: TaskCounts,
        framework_ids: Vec<&'a str>,
    }
    let mut counts = TaskCounts::default();
    let mut framework_ids: Vec<&str> = Vec::new();
    for ((framework, _), task) in agent.tasks.iter() {
        counts.add(task.state);
        if framework_ids.last() != Some(&framework.as_str()) {
            framework_ids.push(framework.as_str());
        }
    }
    AgentSummary {
        agent: Agent::of(agent),
        counts,
        framework_ids,
    }
}

fn framework_summary<'a>(
    framework: &'a FrameworkView,
    index: &'a Index<'a>,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct FrameworkSummary<'a> {
        #[serde(flatten)]
        framework: framework::Short<'a>,
        #[serde(flatten)]
        counts: TaskCounts,
        slave_ids: Vec<&'a str>,
    }
    let mut counts = TaskCounts::default();
    let mut slave_ids = Vec::new();
    for agent in index
        .get(&framework.id)
        .map_or(&[][..], |entry| &entry.agents)
    {
        slave_ids.push(AgentId::as_str(agent.id()));
        tasks_on(agent, &framework.id).for_each(|task| counts.add(task.state));
    }
    for task in framework
        .unreachable
        .iter()
        .chain(framework.completed.iter())
    {
        counts.add(task.state);
    }
    FrameworkSummary {
        framework: framework::Short::of(framework, index),
        counts,
        slave_ids,
    }
}
