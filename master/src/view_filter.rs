//! The state filtered by a caller's permissions: hidden objects are left out of lists, not rejected.
//!
//! Entered through [`cluster`] and [`policies`], which turn a snapshot into a smaller one, and through
//! [`EventFilter`] for events; [`crate::view_cache`] caches the results. Invariant: a hidden framework hides its
//! tasks, executors, offers and operations.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use meseta_access::{Action, Approver};
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::master::Event;
use meseta_proto::mesos::v1::master::response::get_agents;
use meseta_resources::{FrameworkId, Resource, Resources, Role};

use crate::core::{
    AgentDigest, AgentView, ExecutorRecord, Format, FrameworkView, OperationRecord, Snapshot,
    TaskRecord, roles_of, to_wire,
};
use crate::stream_event::StreamEvent;

impl Snapshot {
    /// Whether the reader of this snapshot may see a role.
    #[must_use]
    pub(crate) fn viewer_may_view_role(&self, role: &Role) -> bool {
        may_view_role(&self.viewer, role)
    }
}

/// The resources whose reservations and allocation are all to visible roles, and unreserved ones: the rule for
/// showing single resources. Sums are shown in full, as in Mesos.
pub(crate) fn resources<'a>(all: &'a Resources, approver: &Approver) -> Cow<'a, Resources> {
    filtered(all, approver, |resource| {
        let reserved = resource.reservations().iter().map(|one| &one.role);
        reserved
            .chain(resource.allocation_role())
            .all(|role| may_view_role(approver, role))
    })
}

/// The resources reserved to roles that the caller may see.
pub(crate) fn reserved<'a>(all: &'a Resources, approver: &Approver) -> Cow<'a, Resources> {
    filtered(all, approver, |resource| {
        let role = resource.reservation_role();
        role.is_some_and(|role| may_view_role(approver, role))
    })
}

fn filtered<'a>(
    all: &'a Resources,
    approver: &Approver,
    keep: impl Fn(&Resource) -> bool,
) -> Cow<'a, Resources> {
    if approver.allows_all(Action::ViewRole) {
        Cow::Borrowed(all)
    } else {
        Cow::Owned(all.filtered(keep))
    }
}

fn may_view_role(approver: &Approver, role: &Role) -> bool {
    approver.allows(Action::ViewRole, Some(role.as_str()))
}

/// The whole cluster as a caller may see it.
#[cfg(test)]
pub(crate) fn filtered_snapshot(snapshot: &Snapshot, approver: &Approver) -> Snapshot {
    cluster(snapshot, approver, None, &mut FilterCost::default())
}

/// The cost of filtering a view: it grows with the changes, not with the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterCost {
    /// The number of agents and frameworks whose parts were filtered.
    pub(crate) entries: u64,
    /// The number of tasks and executors whose visibility was decided.
    pub(crate) records: u64,
}

/// An earlier view, with its source.
#[derive(Clone, Debug)]
pub(crate) struct PreviousView {
    pub(crate) source: Arc<Snapshot>,
    pub(crate) view: Arc<Snapshot>,
}

/// The visible settings of operators, without running objects; the cost depends on the settings alone.
pub(crate) fn policies(snapshot: &Snapshot, approver: &Approver) -> Snapshot {
    let mut maintenance = snapshot.maintenance.clone();
    if !approver.allows(Action::GetMaintenanceStatus, None)
        && !approver.allows(Action::GetMaintenanceSchedule, None)
    {
        maintenance = Arc::default();
    }
    let weights = snapshot.weights.iter();
    let quotas = snapshot.quotas.iter();
    let gets = |role: &Role| approver.allows(Action::GetQuota, Some(role.as_str()));
    let seen = match snapshot.quotas.keys().all(gets) {
        true => snapshot.quotas.clone(),
        false => Arc::new(
            quotas
                .filter(|(role, _)| gets(role))
                .map(|(role, quota)| (role.clone(), quota.clone()))
                .collect(),
        ),
    };
    Snapshot {
        viewer: approver.clone(),
        agents: Arc::default(),
        frameworks: Arc::default(),
        completed_frameworks: Vec::new(),
        offers: Vec::new(),
        inverse_offers: Arc::default(),
        weights: weights
            .filter(|(role, _)| may_view_role(approver, role))
            .map(|(role, weight)| (role.clone(), *weight))
            .collect(),
        quotas: seen,
        maintenance,
        recovered_agents: Vec::new(),
        unreachable_agents: Vec::new(),
        gone_agents: Vec::new(),
        whitelisted_roles: snapshot.whitelisted_roles.clone(),
        identity: snapshot.identity.clone(),
        counters: snapshot.counters.clone(),
        derived: Arc::default(),
        ..*snapshot
    }
}

/// Whether a caller sees all running objects, by rules for all users and roles.
fn views_everything(approver: &Approver) -> bool {
    use Action::{ViewExecutor, ViewFramework, ViewRole, ViewTask};
    [ViewFramework, ViewTask, ViewExecutor, ViewRole]
        .iter()
        .all(|action| approver.allows_all(*action))
}

/// All running objects, shared with the snapshot, and the visible policies.
fn whole(snapshot: &Snapshot, approver: &Approver) -> Snapshot {
    Snapshot {
        agents: snapshot.agents.clone(),
        frameworks: snapshot.frameworks.clone(),
        completed_frameworks: snapshot.completed_frameworks.clone(),
        offers: snapshot.offers.clone(),
        inverse_offers: snapshot.inverse_offers.clone(),
        recovered_agents: snapshot.recovered_agents.clone(),
        unreachable_agents: snapshot.unreachable_agents.clone(),
        gone_agents: snapshot.gone_agents.clone(),
        derived: snapshot.derived.clone(),
        ..policies(snapshot, approver)
    }
}

/// The whole cluster as a caller may see it. Reuses unchanged parts of the previous view.
pub(crate) fn cluster(
    snapshot: &Snapshot,
    approver: &Approver,
    previous: Option<&PreviousView>,
    cost: &mut FilterCost,
) -> Snapshot {
    if views_everything(approver) {
        return whole(snapshot, approver);
    }
    let mut decisions = ViewDecisions::new(snapshot, approver);
    // The owner of a task decides about its visibility: other frameworks mean other decisions.
    let previous = previous
        .filter(|previous| ViewDecisions::new(&previous.source, approver).agrees(&decisions));
    let frameworks = frameworks(&snapshot.frameworks, previous, &mut decisions, cost);
    let completed_frameworks = ended(
        &snapshot.completed_frameworks,
        previous,
        &mut decisions,
        cost,
    );
    let agents = agents(&snapshot.agents, previous, &mut decisions, cost);
    let offers = snapshot.offers.iter();
    let offers = offers.filter(|offer| decisions.visible_frameworks.contains(&offer.framework_id));
    let inverse_offers = snapshot.inverse_offers.iter();
    let inverse_offers =
        inverse_offers.filter(|offer| decisions.visible_frameworks.contains(&offer.framework_id));
    Snapshot {
        agents: Arc::new(agents),
        frameworks: Arc::new(frameworks),
        completed_frameworks,
        offers: offers.cloned().collect(),
        inverse_offers: Arc::new(inverse_offers.cloned().collect()),
        recovered_agents: snapshot.recovered_agents.clone(),
        unreachable_agents: snapshot.unreachable_agents.clone(),
        gone_agents: snapshot.gone_agents.clone(),
        ..policies(snapshot, approver)
    }
}

fn frameworks(
    all: &[Arc<FrameworkView>],
    previous: Option<&PreviousView>,
    decisions: &mut ViewDecisions<'_>,
    cost: &mut FilterCost,
) -> Vec<Arc<FrameworkView>> {
    // Both are ordered by id.
    let mut sources = previous
        .map_or(&[][..], |previous| previous.source.frameworks.as_slice())
        .iter()
        .peekable();
    let mut views = previous
        .map_or(&[][..], |previous| previous.view.frameworks.as_slice())
        .iter()
        .peekable();
    let mut seen = Vec::new();
    for framework in all {
        if !decisions.visible_frameworks.contains(&framework.id) {
            continue;
        }
        while sources.next_if(|source| source.id < framework.id).is_some() {}
        while views.next_if(|view| view.id < framework.id).is_some() {}
        let known = sources.peek().zip(views.peek());
        let known =
            known.filter(|(source, view)| source.id == framework.id && view.id == source.id);
        seen.push(match known {
            Some((source, view)) if Arc::ptr_eq(source, framework) => (*view).clone(),
            known => filter_framework(
                framework,
                known.map(|(source, view)| (&***source, &***view)),
                decisions,
                cost,
            ),
        });
    }
    seen
}

/// The visible completed frameworks: few, and never changed.
fn ended(
    all: &[Arc<FrameworkView>],
    previous: Option<&PreviousView>,
    decisions: &mut ViewDecisions<'_>,
    cost: &mut FilterCost,
) -> Vec<Arc<FrameworkView>> {
    let known: Vec<_> = previous
        .into_iter()
        .flat_map(|previous| {
            let views = &previous.view.completed_frameworks;
            let is_seen = move |id: &FrameworkId| views.iter().any(|view| view.id == *id);
            let sources = previous.source.completed_frameworks.iter();
            sources.filter(move |source| is_seen(&source.id)).zip(views)
        })
        .collect();
    let mut seen = Vec::new();
    for framework in all {
        if !decisions.visible_frameworks.contains(&framework.id) {
            continue;
        }
        let view = known
            .iter()
            .find(|(source, _)| Arc::ptr_eq(source, framework));
        seen.push(match view {
            Some((_, view)) => (*view).clone(),
            None => filter_framework(framework, None, decisions, cost),
        });
    }
    seen
}

/// A framework with its visible completed tasks.
fn filter_framework(
    framework: &Arc<FrameworkView>,
    previous: Option<(&FrameworkView, &FrameworkView)>,
    decisions: &mut ViewDecisions<'_>,
    cost: &mut FilterCost,
) -> Arc<FrameworkView> {
    cost.entries += 1;
    let mut keep = |of: fn(&FrameworkView) -> &Records| {
        let records = of(framework);
        if let Some((source, view)) = previous
            && Arc::ptr_eq(of(source), records)
        {
            return of(view).clone();
        }
        let kept: VecDeque<_> = records
            .iter()
            .filter(|task| decisions.may_view_task(task, cost))
            .cloned()
            .collect();
        if kept.len() == records.len() {
            return records.clone();
        }
        Arc::new(kept)
    };
    let completed = keep(|framework| &framework.completed);
    let unreachable = keep(|framework| &framework.unreachable);
    if Arc::ptr_eq(&completed, &framework.completed)
        && Arc::ptr_eq(&unreachable, &framework.unreachable)
    {
        return framework.clone();
    }
    Arc::new(FrameworkView {
        completed,
        unreachable,
        ..(**framework).clone()
    })
}

type Records = Arc<VecDeque<Arc<TaskRecord>>>;

fn agents(
    all: &[Arc<AgentView>],
    previous: Option<&PreviousView>,
    decisions: &mut ViewDecisions<'_>,
    cost: &mut FilterCost,
) -> Vec<Arc<AgentView>> {
    // Every agent is in its view, and both are ordered by id.
    let previous = previous.map(|previous| (&previous.source.agents, &previous.view.agents));
    let mut known = previous
        .into_iter()
        .flat_map(|(sources, views)| sources.iter().zip(views.iter()))
        .peekable();
    let seen = all.iter().map(|agent| {
        while known
            .next_if(|(source, _)| source.id() < agent.id())
            .is_some()
        {}
        match known.peek() {
            Some((source, view)) if Arc::ptr_eq(source, agent) => (*view).clone(),
            _ => filter_agent(agent, decisions, cost),
        }
    });
    seen.collect()
}

/// Filters an agent to the visible objects. A fully visible agent is shared.
fn filter_agent(
    agent: &Arc<AgentView>,
    decisions: &mut ViewDecisions<'_>,
    cost: &mut FilterCost,
) -> Arc<AgentView> {
    cost.entries += 1;
    let tasks: BTreeMap<_, _> = agent
        .tasks
        .iter()
        .filter(|((framework, _), task)| {
            decisions.visible_frameworks.contains(framework) && decisions.may_view_task(task, cost)
        })
        .map(|(key, task)| (key.clone(), task.clone()))
        .collect();
    let executors: BTreeMap<_, _> = agent
        .executors
        .iter()
        .filter(|((framework, _), executor)| {
            decisions.visible_frameworks.contains(framework)
                && decisions.may_view_executor(executor, cost)
        })
        .map(|(key, executor)| (key.clone(), executor.clone()))
        .collect();
    let is_seen = |one: &OperationRecord| {
        let owner = one.framework_id.as_ref();
        owner.is_none_or(|owner| decisions.visible_frameworks.contains(owner))
            && may_view_operation(decisions.approver, one)
    };
    let hides_operations = agent.operations.values().any(|one| !is_seen(one));
    let frameworks = &decisions.visible_frameworks;
    let mut inverse_replies = agent.inverse_replies.clone();
    inverse_replies.retain(|framework, _| frameworks.contains(framework));
    if tasks.len() == agent.tasks.len()
        && executors.len() == agent.executors.len()
        && inverse_replies.len() == agent.inverse_replies.len()
        && !hides_operations
    {
        return agent.clone();
    }
    let operations = agent.operations.iter();
    let operations = operations.filter(|(_, one)| is_seen(one));
    Arc::new(AgentView {
        operations: Arc::new(operations.map(|(key, one)| (*key, one.clone())).collect()),
        tasks: Arc::new(tasks),
        executors: Arc::new(executors),
        inverse_replies,
        digest: AgentDigest::default(),
        ..(**agent).clone()
    })
}

/// Decides about visibility; evaluates the ACLs once per user.
struct ViewDecisions<'a> {
    approver: &'a Approver,
    visible_frameworks: HashSet<&'a FrameworkId>,
    /// The users of frameworks, as which tasks without a user of their own run.
    users: HashMap<&'a FrameworkId, &'a str>,
    tasks: HashMap<String, bool>,
    executors: HashMap<String, bool>,
}

/// The number of cached decisions: frameworks choose the names of users.
const USERS_MAX: usize = 4_096;

impl<'a> ViewDecisions<'a> {
    fn new(snapshot: &'a Snapshot, approver: &'a Approver) -> Self {
        let all = || {
            snapshot
                .frameworks
                .iter()
                .chain(&snapshot.completed_frameworks)
        };
        let mut by_user: HashMap<&str, bool> = HashMap::new();
        let mut may_view = |user: &'a str| {
            let ask = || approver.allows(Action::ViewFramework, Some(user));
            *by_user.entry(user).or_insert_with(ask)
        };
        Self {
            approver,
            visible_frameworks: all()
                .filter(|one| may_view(&one.info.user))
                .map(|one| &one.id)
                .collect(),
            users: all().map(|one| (&one.id, one.info.user.as_str())).collect(),
            tasks: HashMap::new(),
            executors: HashMap::new(),
        }
    }

    /// Whether both make the same decisions about frameworks known to both. An unchanged agent or framework contains
    /// nothing of a framework known to only one.
    fn agrees(&self, other: &Self) -> bool {
        let known = |(id, user): (&&FrameworkId, &&str)| {
            other.users.get(*id).is_none_or(|other| other == user)
        };
        self.users.iter().all(known)
    }

    fn may_view_task(&mut self, task: &TaskRecord, cost: &mut FilterCost) -> bool {
        cost.records += 1;
        let of_framework = || {
            self.users
                .get(&task.framework_id)
                .copied()
                .unwrap_or_default()
        };
        let user = task.user.as_deref().unwrap_or_else(of_framework);
        decided(&mut self.tasks, self.approver, Action::ViewTask, user)
    }

    fn may_view_executor(&mut self, executor: &ExecutorRecord, cost: &mut FilterCost) -> bool {
        cost.records += 1;
        let of_framework = || {
            self.users
                .get(&executor.framework_id)
                .copied()
                .unwrap_or_default()
        };
        let user = executor.user.as_deref().unwrap_or_else(of_framework);
        decided(
            &mut self.executors,
            self.approver,
            Action::ViewExecutor,
            user,
        )
    }
}

/// Whether the caller may see all roles whose resources an operation consumes or produces.
fn may_view_operation(approver: &Approver, operation: &OperationRecord) -> bool {
    roles_of(&operation.info).is_some_and(|roles| may_view_roles(approver, &roles))
}

pub(crate) fn may_view_roles(approver: &Approver, roles: &BTreeSet<Role>) -> bool {
    roles.iter().all(|role| may_view_role(approver, role))
}

/// Decides about a user's objects, and caches the decision.
fn decided(
    known: &mut HashMap<String, bool>,
    approver: &Approver,
    action: Action,
    user: &str,
) -> bool {
    if let Some(decision) = known.get(user) {
        return *decision;
    }
    if known.len() >= USERS_MAX {
        known.clear();
    }
    let decision = approver.allows(action, Some(user));
    known.insert(user.to_owned(), decision);
    decision
}

/// Filters operator events by a subscriber's permissions. Its state grows with the number of frameworks, not with
/// that of tasks.
#[derive(Debug)]
pub(crate) struct EventFilter {
    approver: Approver,
    /// The visible frameworks, with their users.
    frameworks: HashMap<String, String>,
    /// Whether the tasks of each user are visible.
    tasks: HashMap<String, bool>,
}

impl EventFilter {
    pub(crate) fn new(approver: Approver) -> Self {
        Self {
            approver,
            frameworks: HashMap::new(),
            tasks: HashMap::new(),
        }
    }

    /// Records the objects of the first message.
    pub(crate) fn seed(&mut self, seen: &Snapshot) {
        if self.approver.allows_everything() {
            return;
        }
        for framework in seen.frameworks.iter() {
            let user = framework.info.user.clone();
            self.frameworks.insert(framework.id.to_string(), user);
        }
    }

    /// Returns the event as the subscriber may see it; `None` if the event is hidden.
    pub(crate) fn apply<'a>(&mut self, stream_event: &'a StreamEvent) -> Option<Cow<'a, Event>> {
        if self.approver.allows_everything() {
            return Some(Cow::Borrowed(&stream_event.event));
        }
        if !self.passes(stream_event) {
            return None;
        }
        if stream_event.event.agent_added.is_none() {
            return Some(Cow::Borrowed(&stream_event.event));
        }
        let mut reduced = stream_event.event.clone();
        if let Some(added) = &mut reduced.agent_added {
            self.filter_agent_resources(&mut added.agent);
        }
        Some(Cow::Owned(reduced))
    }

    /// Removes the resources of hidden roles, as `GET_AGENTS` does.
    fn filter_agent_resources(&self, agent: &mut get_agents::Agent) {
        let reduce = |list: &mut Vec<v1::Resource>, format| {
            let all = convert::resources(list).unwrap_or_default();
            *list = to_wire(&resources(&all, &self.approver), format);
        };
        reduce(&mut agent.agent_info.resources, Format::PostRefinement);
        reduce(&mut agent.total_resources, Format::Endpoint);
        reduce(&mut agent.allocated_resources, Format::Endpoint);
        reduce(&mut agent.offered_resources, Format::Endpoint);
    }

    fn passes(&mut self, stream_event: &StreamEvent) -> bool {
        let event = &stream_event.event;
        if let Some(added) = &event.framework_added {
            return self.add_framework(&added.framework.framework_info);
        }
        if let Some(updated) = &event.framework_updated {
            return self.add_framework(&updated.framework.framework_info);
        }
        if let Some(removed) = &event.framework_removed {
            let id = removed.framework_info.id.as_ref();
            let id = id.map_or("", |id| id.value.as_str());
            return self.frameworks.remove(id).is_some();
        }
        if let Some(added) = &event.task_added {
            let task = &added.task;
            return self.passes_task(&task.framework_id.value, task.user.as_deref());
        }
        if let Some(updated) = &event.task_updated {
            // The user of an unknown task is unknown.
            let user = stream_event.task_user.as_ref();
            return user.is_some_and(|user| {
                self.passes_task(&updated.framework_id.value, user.as_deref())
            });
        }
        true
    }

    fn add_framework(&mut self, info: &v1::FrameworkInfo) -> bool {
        let id = info
            .id
            .as_ref()
            .map(|id| id.value.clone())
            .unwrap_or_default();
        let seen = self
            .approver
            .allows(Action::ViewFramework, Some(&info.user));
        if seen {
            self.frameworks.insert(id, info.user.clone());
        } else {
            self.frameworks.remove(&id);
        }
        seen
    }

    /// Whether a task is visible, by its framework and its user.
    fn passes_task(&mut self, framework: &str, user: Option<&str>) -> bool {
        let Some(of_framework) = self.frameworks.get(framework) else {
            return false;
        };
        let user = user.unwrap_or(of_framework);
        decided(&mut self.tasks, &self.approver, Action::ViewTask, user)
    }
}

#[cfg(test)]
mod tests;
