//! The cluster as one caller may see it: what he may not is left out of lists, not refused.
//!
//! Entered through [`to`], with a snapshot in and a smaller one out, and through [`Filter`] for events.
//! Invariant: a framework that is hidden hides its tasks, executors, offers and operations.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use meseta_access::{Action, Approver};
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::response::get_agents;
use meseta_proto::mesos::v1::master::{Event, event};
use meseta_proto::mesos::v1::{self, ExecutorInfo};
use meseta_resources::{FrameworkId, Resource, Resources, Role};
use prost::Message;

use crate::core::{
    AgentView, Format, FrameworkView, OperationRecord, Snapshot, TaskRecord, to_wire,
};
use crate::shell::Closed;

/// A snapshot without what somebody may not see; the same one if he may see everything.
pub(crate) async fn to(
    snapshot: Arc<Snapshot>,
    approver: &Approver,
) -> Result<Arc<Snapshot>, Closed> {
    if approver.allows_everything() {
        return Ok(snapshot);
    }
    let approver = approver.clone();
    let work = tokio::task::spawn_blocking(move || Arc::new(reduced(&snapshot, &approver)));
    work.await.map_err(|_| Closed)
}

impl Snapshot {
    /// Whether the reader of this snapshot may see a role.
    #[must_use]
    pub(crate) fn shows_role(&self, role: &Role) -> bool {
        sees_role(&self.viewer, role)
    }
}

/// What is reserved and allocated to roles that somebody may see all of, and what is nobody's: as the
/// resources themselves are shown. Sums are shown whole, as in Mesos.
pub(crate) fn resources<'a>(all: &'a Resources, approver: &Approver) -> Cow<'a, Resources> {
    filtered(all, approver, |resource| {
        let reserved = resource.reservations().iter().map(|one| &one.role);
        reserved
            .chain(resource.allocation_role())
            .all(|role| sees_role(approver, role))
    })
}

/// What is reserved to a role that somebody may see.
pub(crate) fn reserved<'a>(all: &'a Resources, approver: &Approver) -> Cow<'a, Resources> {
    filtered(all, approver, |resource| {
        let role = resource.reservation_role();
        role.is_some_and(|role| sees_role(approver, role))
    })
}

fn filtered<'a>(
    all: &'a Resources,
    approver: &Approver,
    keep: impl Fn(&Resource) -> bool,
) -> Cow<'a, Resources> {
    if approver.allows_everything() {
        Cow::Borrowed(all)
    } else {
        Cow::Owned(all.filtered(keep))
    }
}

fn sees_role(approver: &Approver, role: &Role) -> bool {
    approver.allows(Action::ViewRole, Some(role.as_str()))
}

/// What [`to`] makes.
pub(crate) fn reduced(snapshot: &Snapshot, approver: &Approver) -> Snapshot {
    let sees = |framework: &&Arc<FrameworkView>| {
        approver.allows(Action::ViewFramework, Some(&framework.info.user))
    };
    let all = || {
        snapshot
            .frameworks
            .iter()
            .chain(&snapshot.completed_frameworks)
    };
    let shown: HashSet<&FrameworkId> = all().filter(sees).map(|framework| &framework.id).collect();
    let users: Users<'_> = Users(all().map(|one| (&one.id, one.info.user.as_str())).collect());
    let view = |framework: &Arc<FrameworkView>| {
        let keep = |tasks: &std::collections::VecDeque<Arc<TaskRecord>>| {
            let kept = tasks
                .iter()
                .filter(|task| users.task_is_seen(approver, task));
            Arc::new(kept.cloned().collect())
        };
        Arc::new(FrameworkView {
            completed: keep(&framework.completed),
            unreachable: keep(&framework.unreachable),
            ..(**framework).clone()
        })
    };
    let mut maintenance = (*snapshot.maintenance).clone();
    if !approver.allows(Action::GetMaintenanceStatus, None)
        && !approver.allows(Action::GetMaintenanceSchedule, None)
    {
        maintenance = crate::core::Maintenance::default();
    }
    let agents = snapshot
        .agents
        .iter()
        .map(|agent| Arc::new(reduced_agent(agent, &shown, &users, approver)));
    let frameworks = snapshot.frameworks.iter().filter(sees).map(view);
    Snapshot {
        viewer: approver.clone(),
        agents: Arc::new(agents.collect()),
        frameworks: Arc::new(frameworks.collect()),
        completed_frameworks: snapshot
            .completed_frameworks
            .iter()
            .filter(sees)
            .map(view)
            .collect(),
        offers: snapshot
            .offers
            .iter()
            .filter(|offer| shown.contains(&offer.framework_id))
            .cloned()
            .collect(),
        weights: snapshot
            .weights
            .iter()
            .filter(|(role, _)| sees_role(approver, role))
            .map(|(role, weight)| (role.clone(), *weight))
            .collect(),
        quotas: Arc::new(
            snapshot
                .quotas
                .iter()
                .filter(|(role, _)| approver.allows(Action::GetQuota, Some(role.as_str())))
                .map(|(role, quota)| (role.clone(), quota.clone()))
                .collect(),
        ),
        maintenance: Arc::new(maintenance),
        recovered_agents: snapshot.recovered_agents.clone(),
        unreachable_agents: snapshot.unreachable_agents.clone(),
        whitelisted_roles: snapshot.whitelisted_roles.clone(),
        identity: snapshot.identity.clone(),
        counters: snapshot.counters.clone(),
        sorted: OnceLock::new(),
        counted: OnceLock::new(),
        ..*snapshot
    }
}

fn reduced_agent(
    agent: &AgentView,
    shown: &HashSet<&FrameworkId>,
    users: &Users<'_>,
    approver: &Approver,
) -> AgentView {
    let tasks = agent.tasks.iter().filter(|((framework, _), task)| {
        shown.contains(framework) && users.task_is_seen(approver, task)
    });
    let executors = agent.executors.iter().filter(|((framework, _), executor)| {
        let info = ExecutorInfo::decode(executor.info.clone()).unwrap_or_default();
        let own = info.command.and_then(|command| command.user);
        let user = own.as_deref().unwrap_or_else(|| users.of(framework));
        shown.contains(framework) && approver.allows(Action::ViewExecutor, Some(user))
    });
    let operations = agent.operations.iter().filter(|(_, operation)| {
        let owner = operation.framework_id.as_ref();
        owner.is_none_or(|owner| shown.contains(owner)) && operation_is_seen(approver, operation)
    });
    AgentView {
        tasks: Arc::new(
            tasks
                .map(|(key, task)| (key.clone(), task.clone()))
                .collect(),
        ),
        executors: Arc::new(
            executors
                .map(|(key, executor)| (key.clone(), executor.clone()))
                .collect(),
        ),
        operations: Arc::new(
            operations
                .map(|(key, operation)| (*key, operation.clone()))
                .collect(),
        ),
        digested: OnceLock::new(),
        ..agent.clone()
    }
}

/// Whether somebody may see all roles that an operation takes something of or gives something to.
fn operation_is_seen(approver: &Approver, operation: &OperationRecord) -> bool {
    let steps = convert::operation(&operation.info).map(|operation| operation.conversions());
    let Ok(Ok(steps)) = steps else {
        return false;
    };
    let mut changed = steps
        .iter()
        .flat_map(|step| [step.consumed(), step.produced()]);
    changed.all(|part| resources(part, approver).len() == part.len())
}

/// The users of frameworks, as which their tasks run that name none.
struct Users<'a>(std::collections::HashMap<&'a FrameworkId, &'a str>);

impl Users<'_> {
    fn of(&self, framework: &FrameworkId) -> &str {
        self.0.get(framework).copied().unwrap_or_default()
    }

    fn task_is_seen(&self, approver: &Approver, task: &TaskRecord) -> bool {
        let described = v1::Task::decode(task.description.clone()).unwrap_or_default();
        let user = described.user.as_deref();
        let user = user.unwrap_or_else(|| self.of(&task.framework_id));
        approver.allows(Action::ViewTask, Some(user))
    }
}

/// Events as one subscriber may hear them.
#[derive(Debug)]
pub(crate) struct Filter {
    approver: Approver,
    /// The frameworks that he may see, with their users.
    frameworks: std::collections::HashMap<String, String>,
    /// The tasks that he may see, as framework and task id.
    tasks: HashSet<(String, String)>,
}

impl Filter {
    pub(crate) fn new(approver: Approver) -> Self {
        Self {
            approver,
            frameworks: std::collections::HashMap::new(),
            tasks: HashSet::new(),
        }
    }

    /// Learns from what he was shown at first.
    pub(crate) fn begin(&mut self, seen: &Snapshot) {
        if self.approver.allows_everything() {
            return;
        }
        for framework in seen.frameworks.iter() {
            let user = framework.info.user.clone();
            self.frameworks.insert(framework.id.to_string(), user);
        }
        let tasks = seen.agents.iter().flat_map(|agent| agent.tasks.keys());
        self.tasks
            .extend(tasks.map(|(framework, task)| (framework.to_string(), task.to_string())));
    }

    /// The event as the subscriber may hear of it; `None` if it may not.
    pub(crate) fn seen(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        if self.approver.allows_everything() {
            return Some(event);
        }
        if !self.passes(&event) {
            return None;
        }
        if event.agent_added.is_none() {
            return Some(event);
        }
        let mut reduced = Arc::unwrap_or_clone(event);
        if let Some(added) = &mut reduced.agent_added {
            self.reduce_agent(&mut added.agent);
        }
        Some(Arc::new(reduced))
    }

    /// Takes the resources of hidden roles away, as `GET_AGENTS` does.
    fn reduce_agent(&self, agent: &mut get_agents::Agent) {
        let reduce = |list: &mut Vec<v1::Resource>, format| {
            let all = convert::resources(list).unwrap_or_default();
            *list = to_wire(&resources(&all, &self.approver), format);
        };
        reduce(&mut agent.agent_info.resources, Format::PostRefinement);
        reduce(&mut agent.total_resources, Format::Endpoint);
        reduce(&mut agent.allocated_resources, Format::Endpoint);
        reduce(&mut agent.offered_resources, Format::Endpoint);
    }

    fn passes(&mut self, event: &Event) -> bool {
        if let Some(added) = &event.framework_added {
            return self.add_framework(&added.framework.framework_info);
        }
        if let Some(updated) = &event.framework_updated {
            return self.add_framework(&updated.framework.framework_info);
        }
        if let Some(removed) = &event.framework_removed {
            let id = removed.framework_info.id.as_ref();
            let id = id.map_or("", |id| id.value.as_str());
            self.tasks.retain(|(framework, _)| framework != id);
            return self.frameworks.remove(id).is_some();
        }
        if let Some(added) = &event.task_added {
            return self.add_task(added);
        }
        if let Some(updated) = &event.task_updated {
            let key = (
                updated.framework_id.value.clone(),
                updated.status.task_id.value.clone(),
            );
            return self.tasks.contains(&key);
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

    fn add_task(&mut self, added: &event::TaskAdded) -> bool {
        let task = &added.task;
        let Some(user) = self.frameworks.get(&task.framework_id.value) else {
            return false;
        };
        let user = task.user.as_deref().unwrap_or(user);
        let seen = self.approver.allows(Action::ViewTask, Some(user));
        if seen {
            let framework = task.framework_id.value.clone();
            self.tasks.insert((framework, task.task_id.value.clone()));
        }
        seen
    }
}
