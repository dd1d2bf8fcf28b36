//! The v0 endpoints: the formats of Mesos, key for key, over a snapshot.
//!
//! Views borrow; lists are built while they are written.

mod agent;
mod agent_selection;
mod fields;
mod framework;
mod maintenance;
mod roles;
mod task;

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_access::Approver;
use meseta_daemon::build_info::{BuildView, VersionView};
use meseta_daemon::query::Query;
use meseta_proto::mesos::v1::{DomainInfo, TaskState};
use meseta_proto::{Invalid, invalid};
use serde::Serialize;

pub(crate) use agent::slaves;
pub(crate) use agent_selection::AgentSelection;
pub(crate) use framework::frameworks;
pub(crate) use maintenance::{
    maintenance_schedule, maintenance_status, schedule_list, status_list,
};
#[cfg(test)]
pub(crate) use roles::quota;
pub(crate) use roles::{Tally, quota_status, quotas, roles, tallies, weight_list, weights};
pub(crate) use task::tasks;

use crate::chunked_response::{Document, Row, list, text};
use crate::core::{AgentView, FrameworkView, Identity, Snapshot};
use agent::{Agent, RecoveredAgent};
use framework::Frameworks;

const CAPABILITIES: [&str; 3] = ["AGENT_UPDATE", "AGENT_DRAINING", "QUOTA_V2"];

/// The approximate size of an agent in a list, in bytes.
const AGENT_BYTES: usize = 1_000;

/// Writes a value as JSON.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    if let Err(error) = serde_json::to_writer(out, value) {
        // All keys in the views are strings, so this cannot happen.
        tracing::error!(%error, "a view that cannot be written");
    }
}

/// Writes a text as JSON; most texts need no escapes.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    // Reads to the end without an early exit, so that the compiler can process many bytes at once.
    let is_plain = text.bytes().fold(true, |is_plain, byte| {
        is_plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\')
    });
    if !is_plain {
        return write(out, text);
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// An object up to a list that is its next member: `{"a":1,"list":[`.
fn before_list(fields: &impl Serialize, list: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, fields);
    out.pop();
    if out.len() > 1 {
        out.push(b',');
    }
    out.extend_from_slice(format!("\"{list}\":[").as_bytes());
    out
}

/// The end of a list, and the beginning of the next.
fn between_lists(next: &str) -> Row {
    text(format!("],\"{next}\":["))
}

/// The page of a list that a request selects.
#[derive(Clone, Debug)]
pub(crate) struct Paging {
    pub(super) offset: usize,
    /// The largest number of entries; `None` for all.
    pub(super) limit: Option<usize>,
    pub(super) ascending: bool,
}

impl Paging {
    pub(crate) fn from_query(query: &Query) -> Result<Self, Invalid> {
        const LIMIT_DEFAULT: i64 = 100;
        let number = |name: &str, default: i64| match query.get(name) {
            None => Ok(default),
            Some(text) => text
                .parse::<i64>()
                .map_err(|error| invalid!("Failed to parse '{name}' as a number: {error}")),
        };
        let limit = number("limit", LIMIT_DEFAULT)?;
        let ascending = match query.get("order") {
            None | Some("des" | "desc") => false,
            Some("asc") => true,
            Some(other) => {
                return Err(invalid!(
                    "Expecting 'order' to be 'asc' or 'desc', not '{other}'"
                ));
            }
        };
        Ok(Self {
            offset: usize::try_from(number("offset", 0)?).unwrap_or(0),
            // A negative number means everything.
            limit: usize::try_from(limit).ok(),
            ascending,
        })
    }
}

/// Answers requests for `/version`.
pub(crate) fn version(identity: &Identity) -> VersionView<'_> {
    identity.build.version_view(&identity.version)
}

/// The part of `/state` before its lists.
#[derive(Serialize)]
struct Head<'a> {
    version: &'a str,
    #[serde(flatten)]
    build: BuildView,
    start_time: f64,
    elected_time: f64,
    id: &'a str,
    pid: String,
    hostname: &'a str,
    capabilities: [&'static str; 3],
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    activated_slaves: f64,
    deactivated_slaves: f64,
    unreachable_slaves: f64,
    leader: String,
    leader_info: LeaderInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<&'a BTreeMap<String, String>>,
}

#[derive(Serialize)]
struct LeaderInfo<'a> {
    id: &'a str,
    pid: String,
    port: u16,
    hostname: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
}

/// Converts a number of agents to Mesos's format.
fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn head(snapshot: &Snapshot, flags: Option<&BTreeMap<String, String>>) -> Vec<u8> {
    let identity = &snapshot.identity;
    let agents = snapshot.agents.iter();
    let active = agents.filter(|agent| agent.is_active()).count();
    let head = Head {
        version: &identity.version,
        build: identity.build.view(),
        start_time: snapshot.started.as_secs_f64(),
        elected_time: snapshot.started.as_secs_f64(),
        id: &identity.id,
        pid: identity.pid(),
        hostname: &identity.hostname,
        capabilities: CAPABILITIES,
        domain: identity.domain.as_ref(),
        cluster: identity.cluster.as_deref(),
        activated_slaves: count(active),
        deactivated_slaves: count(snapshot.agents.len() - active),
        unreachable_slaves: count(snapshot.unreachable_agents.len()),
        leader: identity.pid(),
        leader_info: LeaderInfo {
            id: &identity.id,
            pid: identity.pid(),
            port: identity.port,
            hostname: &identity.hostname,
            domain: identity.domain.as_ref(),
        },
        flags,
    };
    before_list(&head, "slaves")
}

/// The answer to `/state`, as a whole.
pub(crate) fn state(
    snapshot: &Arc<Snapshot>,
    flags: Option<&BTreeMap<String, String>>,
) -> Document {
    let first = vec![
        text(head(snapshot, flags)),
        agents(snapshot),
        between_lists("recovered_slaves"),
        recovered(snapshot),
        between_lists("frameworks"),
    ];
    let snapshot = snapshot.clone();
    let rest = move || {
        vec![
            Frameworks::row(&snapshot, snapshot.frameworks.to_vec(), true),
            between_lists("completed_frameworks"),
            Frameworks::row(&snapshot, snapshot.completed_frameworks.clone(), true),
            text("],\"orphan_tasks\":[],\"unregistered_frameworks\":[]}"),
        ]
    };
    Document {
        first,
        rest: Some(Box::new(rest)),
    }
}

fn agents(snapshot: &Snapshot) -> Row {
    let (agents, viewer) = (snapshot.agents.clone(), snapshot.viewer.clone());
    list(agents.len(), AGENT_BYTES, move |index, out| {
        let agent = agents.get(index);
        write(out, &agent.map(|agent| Agent::from_agent(agent, &viewer)));
    })
}

/// The agents that are still expected.
fn recovered(snapshot: &Arc<Snapshot>) -> Row {
    let (snapshot, len) = (snapshot.clone(), snapshot.recovered_agents.len());
    list(len, AGENT_BYTES, move |index, out| {
        let agent = snapshot.recovered_agents.get(index);
        write(out, &agent.map(RecoveredAgent::from_registry));
    })
}

/// The number of tasks in each state.
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
    fn add(&mut self, state: TaskState, number: u64) {
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
        *counter += number;
    }
}

/// Answers requests for `/state-summary`. With `has_agents` false their list is empty, and so is that of each
/// framework.
pub(crate) fn summary(snapshot: &Arc<Snapshot>, has_agents: bool) -> Document {
    #[derive(Serialize)]
    struct Summary<'a> {
        hostname: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<&'a str>,
    }
    let fields = Summary {
        hostname: &snapshot.identity.hostname,
        cluster: snapshot.identity.cluster.as_deref(),
    };
    let (agents, viewer) = (snapshot.agents.clone(), snapshot.viewer.clone());
    let shown = if has_agents { agents.len() } else { 0 };
    let first = vec![
        text(before_list(&fields, "slaves")),
        list(shown, AGENT_BYTES, move |index, out| {
            let agent = agents.get(index);
            write(out, &agent.map(|agent| agent_summary(agent, &viewer)));
        }),
        between_lists("frameworks"),
    ];
    let snapshot = snapshot.clone();
    let rest = move || {
        // Computed here, on a thread that may take its time.
        snapshot.by_framework();
        let frameworks = list(snapshot.frameworks.len(), AGENT_BYTES, move |index, out| {
            let framework = snapshot.frameworks.get(index);
            write(
                out,
                &framework.map(|framework| framework_summary(framework, &snapshot, has_agents)),
            );
        });
        vec![frameworks, text("]}")]
    };
    Document {
        first,
        rest: Some(Box::new(rest)),
    }
}

fn agent_summary<'a>(agent: &'a AgentView, viewer: &Approver) -> impl Serialize + use<'a> {
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
        counts.add(task.state, 1);
        if framework_ids.last() != Some(&framework.as_str()) {
            framework_ids.push(framework.as_str());
        }
    }
    AgentSummary {
        agent: Agent::from_agent(agent, viewer),
        counts,
        framework_ids,
    }
}

fn framework_summary<'a>(
    framework: &'a FrameworkView,
    snapshot: &'a Snapshot,
    has_agents: bool,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct FrameworkSummary<'a> {
        #[serde(flatten)]
        framework: framework::FrameworkSummaryFields<'a>,
        #[serde(flatten)]
        counts: TaskCounts,
        slave_ids: Vec<&'a str>,
    }
    let mut counts = TaskCounts::default();
    let has = snapshot.by_framework().get(&framework.id);
    for (state, number) in has.into_iter().flat_map(|has| has.states.iter()) {
        counts.add(state, number);
    }
    let ended = framework.unreachable.iter().chain(&*framework.completed);
    ended.for_each(|task| counts.add(task.state, 1));
    let agents = has.filter(|_| has_agents);
    let agents = agents.into_iter().flat_map(|has| &has.agents);
    FrameworkSummary {
        framework: framework::FrameworkSummaryFields::from_framework(framework, has),
        counts,
        slave_ids: agents.map(|id| id.as_str()).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
