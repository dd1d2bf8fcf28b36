//! The master's record of a framework.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_access::Approver;
use meseta_proto::Invalid;
use meseta_proto::convert;

pub use meseta_proto::convert::FrameworkCapabilities as Capabilities;
use meseta_proto::mesos::v1::{self, FrameworkInfo};
use meseta_resources::{AgentId, FrameworkId, OfferId, Role, TaskId};
use prost::Message as _;

use super::constraints::Constraints;
use super::framework_counters::FrameworkCounters;
use super::history::History;
use crate::core::ids::ConnectionId;
use crate::core::timers::TimerKey;

/// The connection state of a framework's scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// The event stream is open.
    Subscribed {
        connection: ConnectionId,
        stream_id: String,
    },
    /// The event stream has ended; the scheduler may return until the failover timeout.
    Disconnected,
    /// Agents reported the framework after a restart of the master, and its scheduler has not subscribed since.
    Recovered,
}

/// A framework's description of itself and its requests.
#[derive(Clone, Debug)]
pub(in crate::core) struct Terms {
    /// The framework's info, always with an id.
    pub info: Arc<v1::FrameworkInfo>,
    pub capabilities: Capabilities,
    pub roles: BTreeSet<Role>,
    pub suppressed: BTreeSet<Role>,
    pub offer_constraints: Option<Arc<Constraints>>,
}

impl Terms {
    /// The approximate memory taken by the terms.
    pub(in crate::core) fn bytes(&self) -> usize {
        let constraints = self.offer_constraints.as_ref();
        self.info.encoded_len() + constraints.map_or(0, |constraints| constraints.bytes())
    }
}

/// Records that contradict an agent's report of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct TaskConflict {
    /// Whether only other agents have the task, or had it when they were lost.
    pub(in crate::core) is_on_another_agent: bool,
    /// Whether this master launched the task on another agent, and not on this one.
    pub(in crate::core) is_launched: bool,
}

/// Whether a task is recorded as lost, and whether on the reporting agent.
#[derive(Clone, Copy, Default)]
struct LostTaskMatch {
    is_known: bool,
    is_this_agent: bool,
}

impl LostTaskMatch {
    fn note(&mut self, is_this_agent: bool) {
        self.is_known = true;
        self.is_this_agent |= is_this_agent;
    }

    fn is_elsewhere(self) -> bool {
        self.is_known && !self.is_this_agent
    }
}

#[derive(Debug)]
pub(in crate::core) struct Framework {
    pub id: FrameworkId,
    pub terms: Terms,
    pub link: Link,
    /// The user of this machine that the framework runs as, without a proven principal.
    pub(in crate::core) user: Option<u32>,
    /// The framework's rights, determined at each subscription.
    pub approver: Approver,
    /// A counter of subscriptions and disconnections, by which the handler recognises a stale failover timer.
    pub generation: u64,
    /// The agent that reported the framework, if the framework is known only from that report.
    pub(in crate::core) told_by: Option<AgentId>,
    /// The framework has not come back to this master for [`FRAMEWORK_RETURN_TIME`](crate::core::config::FRAMEWORK_RETURN_TIME).
    pub(in crate::core) is_overdue: bool,
    /// The timer that ends the framework while it is disconnected.
    pub(in crate::core) failover: Option<TimerKey>,
    /// The registration times since the Unix epoch.
    pub registered: Duration,
    pub reregistered: Option<Duration>,
    pub unregistered: Option<Duration>,
    /// The agents of live tasks, and of terminal ones with unacknowledged updates.
    pub tasks: BTreeMap<TaskId, AgentId>,
    /// The tasks that this master did not launch: an agent alone reports them.
    reported: BTreeSet<TaskId>,
    /// Further agents that report a task; this master launched the task on at most one of them.
    also: BTreeMap<TaskId, BTreeSet<AgentId>>,
    /// The number of the framework's tasks and executors on each agent that has any.
    agents: BTreeMap<AgentId, usize>,
    pub offers: BTreeSet<OfferId>,
    pub(in crate::core) completed: History,
    pub(in crate::core) unreachable: History,
    /// The counters, copied on the next write, so that readers share them.
    pub(in crate::core) counters: Arc<FrameworkCounters>,
}

impl Framework {
    /// A framework that nobody has connected to yet.
    pub(in crate::core) fn new(id: FrameworkId, terms: Terms, registered: Duration) -> Self {
        Self {
            id,
            terms,
            link: Link::Disconnected,
            user: None,
            approver: Approver::default(),
            generation: 0,
            told_by: None,
            is_overdue: false,
            failover: None,
            registered,
            reregistered: None,
            unregistered: None,
            tasks: BTreeMap::new(),
            reported: BTreeSet::new(),
            also: BTreeMap::new(),
            agents: BTreeMap::new(),
            offers: BTreeSet::new(),
            completed: History::default(),
            unreachable: History::default(),
            counters: Arc::default(),
        }
    }

    pub(in crate::core) fn counters(&mut self) -> &mut FrameworkCounters {
        Arc::make_mut(&mut self.counters)
    }

    #[must_use]
    pub(in crate::core) fn connection(&self) -> Option<ConnectionId> {
        match &self.link {
            Link::Subscribed { connection, .. } => Some(*connection),
            Link::Disconnected | Link::Recovered => None,
        }
    }

    /// Whether nobody acknowledges for it. A framework that a new master has just heard of may be on its way back.
    #[must_use]
    pub(in crate::core) fn is_away(&self) -> bool {
        match self.link {
            Link::Subscribed { .. } => false,
            Link::Disconnected => true,
            Link::Recovered => self.is_overdue,
        }
    }

    /// The time for which the framework may be disconnected.
    #[must_use]
    pub(in crate::core) fn failover_timeout(&self) -> Duration {
        failover_timeout(&self.terms.info).unwrap_or_default()
    }

    /// The number of the framework's tasks and executors on each agent that has any.
    pub(in crate::core) fn agents(&self) -> &BTreeMap<AgentId, usize> {
        &self.agents
    }

    /// Counts one more task or executor on the agent.
    pub(in crate::core) fn add_on(&mut self, agent: &AgentId) {
        match self.agents.get_mut(agent) {
            Some(count) => *count += 1,
            None => drop(self.agents.insert(agent.clone(), 1)),
        }
    }

    /// Counts one task or executor less on the agent.
    pub(in crate::core) fn remove_on(&mut self, agent: &AgentId) {
        if let Some(count) = self.agents.get_mut(agent) {
            *count -= 1;
            if *count == 0 {
                self.agents.remove(agent);
            }
        }
    }

    /// Removes the counts of a removed agent.
    pub(in crate::core) fn forget_agent(&mut self, agent: &AgentId) {
        self.agents.remove(agent);
    }

    /// Records that this master has launched a task on an agent. Other agents may continue to report the task.
    pub(in crate::core) fn launched_on(&mut self, task: &TaskId, agent: &AgentId) {
        let before = self.tasks.insert(task.clone(), agent.clone());
        self.reported.remove(task);
        if let Some(before) = before.filter(|before| before != agent) {
            self.also.entry(task.clone()).or_default().insert(before);
        }
    }

    /// Records that an agent reports a task that this master did not launch there.
    pub(in crate::core) fn reported_by(&mut self, task: &TaskId, agent: &AgentId) {
        match self.tasks.entry(task.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(agent.clone());
                self.reported.insert(task.clone());
            }
            Entry::Occupied(holder) if holder.get() == agent => {}
            Entry::Occupied(_) => {
                let also = self.also.entry(task.clone()).or_default();
                also.insert(agent.clone());
            }
        }
    }

    /// Whether this master has launched a task with this id that is still recorded.
    pub(in crate::core) fn has_launched(&self, task: &TaskId) -> bool {
        self.tasks.contains_key(task) && !self.reported.contains(task)
    }

    /// Whether a task with this id may be launched on the agent: this master has no record of launching one, and the
    /// agent itself has not reported one. Reports of other agents do not prevent a launch.
    pub(in crate::core) fn may_launch(&self, task: &TaskId, agent: &AgentId) -> bool {
        let Some(first) = self.tasks.get(task) else {
            return true;
        };
        self.reported.contains(task)
            && first != agent
            && !self.holders(task).any(|holder| holder == agent)
    }

    /// All agents that have or report a task with this id; the one of the launch first.
    pub(in crate::core) fn holders(&self, task: &TaskId) -> impl Iterator<Item = &AgentId> {
        let also = self.also.get(task).into_iter().flatten();
        self.tasks.get(task).into_iter().chain(also)
    }

    /// Records of a task on agents other than the reporting one.
    pub(in crate::core) fn task_conflict(&self, agent: &AgentId, task: &TaskId) -> TaskConflict {
        let first = self.tasks.get(task);
        if first.is_none() && self.unreachable.tasks().is_empty() {
            return TaskConflict::default();
        }
        let has_launched = self.has_launched(task);
        let (mut lost, mut launched) = (LostTaskMatch::default(), LostTaskMatch::default());
        // For a live, launched task the live records alone decide.
        let records = self.unreachable.tasks().iter();
        for record in records.filter(|record| !has_launched && record.task_id == *task) {
            let is_this_agent = record.agent_id == *agent;
            lost.note(is_this_agent);
            if record.is_launched {
                launched.note(is_this_agent);
            }
        }
        TaskConflict {
            is_on_another_agent: match first {
                Some(_) => !self.holders(task).any(|holder| holder == agent),
                None => lost.is_elsewhere(),
            },
            is_launched: if has_launched {
                first != Some(agent)
            } else {
                launched.is_elsewhere()
            },
        }
    }

    /// Removes the record that a task is on an agent.
    pub(in crate::core) fn forget_task(&mut self, task: &TaskId, agent: &AgentId) {
        let mut also = self.also.remove(task).unwrap_or_default();
        if self.tasks.get(task) == Some(agent) {
            self.tasks.remove(task);
            self.reported.remove(task);
            if let Some(next) = also.pop_first() {
                self.reported_by(task, &next);
            }
        } else {
            also.remove(agent);
        }
        if !also.is_empty() {
            self.also.insert(task.clone(), also);
        }
    }
}

/// The time that a framework may be disconnected; `None` for an invalid duration.
pub(in crate::core) fn failover_timeout(info: &v1::FrameworkInfo) -> Option<Duration> {
    /// About 292 years: the range of 64 bits of nanoseconds, as in Mesos.
    const MAX_SECONDS: f64 = 9.0e9;
    let seconds = info.failover_timeout.unwrap_or(0.0);
    if !(-MAX_SECONDS..=MAX_SECONDS).contains(&seconds) {
        return None;
    }
    Some(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

impl Framework {
    /// Whether a launched task with this id was lost with its agent and may come back. A task that only a lost agent
    /// reported does not prevent a launch.
    pub(in crate::core) fn has_unreachable(&self, task: &str) -> bool {
        let mut lost = self.unreachable.tasks().iter();
        lost.any(|record| record.is_launched && record.task_id.as_str() == task)
    }
}

/// The roles of an info, from the fields that its capabilities require.
pub(in crate::core) fn valid_roles(info: &FrameworkInfo) -> Result<BTreeSet<Role>, Invalid> {
    let roles = convert::framework_roles(info).map_err(Invalid::from_error)?;
    Ok(roles.into_iter().collect())
}
