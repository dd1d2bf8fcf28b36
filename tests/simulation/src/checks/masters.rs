//! The masters' views of agents, offers and quota, compared with each other and with the models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_master::core::{AgentView, Offer, Snapshot};
use meseta_resources::{AgentId, FrameworkId, OfferId, ResourceQuantities, TaskId};

use super::Broken;
use crate::agent::{RESOURCES, hostname, total};
use crate::cluster::Cluster;
use crate::models::{quota, reservation};

/// The observations of a master at its last step.
#[derive(Debug, Default)]
struct Seen {
    /// The initial state of the master: whether quota has existed ever since, and the expected agents.
    began: Option<(bool, BTreeSet<AgentId>)>,
    /// The agents that were present at one time.
    came: BTreeSet<AgentId>,
    agents: Vec<Arc<AgentView>>,
    /// The tasks of each agent that the agent will report as unknown, see [`Seen::note_unheard`].
    unheard: BTreeMap<AgentId, BTreeSet<(FrameworkId, TaskId)>>,
    offers: BTreeSet<OfferId>,
}

/// The observations of each master.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    seen: BTreeMap<u64, Seen>,
}

impl Cluster {
    /// Checks the masters that have made a step.
    pub(super) fn check_masters(&mut self) {
        // A succeeded master may live on, and its offers keep their age: its observations are forgotten with it, and not
        // before.
        if self.checks.seen.len() > self.masters.len() {
            let masters = &self.masters;
            let is_there = |number: u64| masters.iter().any(|master| master.number == number);
            self.checks.seen.retain(|number, _| is_there(*number));
        }
        for at in 0..self.masters.len() {
            let master = &mut self.masters[at];
            if !std::mem::take(&mut master.has_stepped) {
                continue;
            }
            let number = master.number;
            let snapshot = master.core.snapshot();
            let seen = self.checks.seen.entry(number).or_default();
            let found = seen.look(&snapshot);
            self.broken.extend(found);
            let silent = &self.masters[at].silent_disks;
            self.broken.extend(offer_of_silent(&snapshot, silent));
        }
    }
}

impl Seen {
    /// Returns the first error in the changed parts.
    fn look(&mut self, snapshot: &Snapshot) -> Option<Broken> {
        if snapshot.counters.invariant_violations > 0 {
            let what = "the master's core and its allocator disagree";
            return Some(Broken::new("I1", what));
        }
        let known = || snapshot.recovered_agents.iter();
        let expected = || known().map(|(id, _)| id.clone()).collect();
        let (has_quota, _) = self.began.get_or_insert_with(|| (true, expected()));
        *has_quota &= !snapshot.quotas.is_empty();
        self.came
            .extend(snapshot.agents.iter().map(|agent| agent.id().clone()));
        let before = std::mem::replace(&mut self.agents, snapshot.agents.to_vec());
        let mut before = before.iter().peekable();
        for agent in snapshot.agents.iter() {
            while before.next_if(|old| old.id() < agent.id()).is_some() {}
            let old = before.next_if(|old| old.id() == agent.id());
            if old.is_some_and(|old| Arc::ptr_eq(old, agent)) {
                continue;
            }
            self.note_unheard(old, agent);
            if let Some(broken) = check_agent(agent, self.unheard.get(agent.id())) {
                return Some(broken);
            }
        }
        let made: Vec<_> = snapshot
            .offers
            .iter()
            .filter(|offer| !self.offers.contains(&offer.id))
            .collect();
        let gone = self.offers.len() + made.len() > snapshot.offers.len();
        if made.is_empty() && !gone {
            return orphan(snapshot).or_else(|| returned_from_gone(snapshot));
        }
        self.offers = snapshot.offers.iter().map(|one| one.id.clone()).collect();
        orphan(snapshot)
            .or_else(|| returned_from_gone(snapshot))
            .or_else(|| self.hasty(snapshot, &made))
            .or_else(|| made.iter().find_map(|offer| check_offer(snapshot, offer)))
            .or_else(|| check_quota(snapshot, &made))
    }
}

impl Seen {
    /// Notes the tasks that an agent will not know. An agent that never got an operation comes back without its result, and
    /// without the tasks that were launched on the result, for one connection lost both. They stay on the books until the
    /// agent has answered for them. The earlier resources may be given out beside them: the tasks cannot run.
    fn note_unheard(&mut self, old: Option<&Arc<AgentView>>, agent: &AgentView) {
        let is_back = |old: &&Arc<AgentView>| old.reregistered != agent.reregistered;
        let Some(old) = old.filter(is_back) else {
            return;
        };
        if old.profile.total.unrevocable() == agent.profile.total.unrevocable() {
            return;
        }
        let all = agent.tasks.iter();
        let unheard = all.filter(|(_, task)| task.statuses.is_empty());
        let unheard = unheard.map(|(key, _)| key.clone());
        self.unheard
            .entry(agent.id().clone())
            .or_default()
            .extend(unheard);
    }

    /// Checks that a master with quota makes no offers until most of the earlier agents are back.
    fn hasty(&self, snapshot: &Snapshot, made: &[&Arc<Offer>]) -> Option<Broken> {
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(590);
        let (has_quota, expected) = self.began.as_ref()?;
        // No master waits for an agent that was removed or marked gone.
        let is_left = |id: &&AgentId| {
            snapshot.agents.iter().any(|agent| agent.id() == *id)
                || snapshot.recovered_agents.iter().any(|one| one.0 == **id)
                || snapshot.unreachable_agents.iter().any(|one| one.0 == **id)
        };
        let left: Vec<&AgentId> = expected.iter().filter(is_left).collect();
        let (known, came) = (
            left.len(),
            left.iter().filter(|id| self.came.contains(**id)),
        );
        let came = came.count();
        let early = snapshot.taken.saturating_sub(snapshot.started) < PATIENCE;
        let few = came * 100 < known * 80;
        let still = snapshot.taken >= snapshot.started;
        (*has_quota && early && still && few && !made.is_empty()).then(|| {
            let what = format!("offers with {came} of {known} known agents back");
            Broken::new("I15", what)
        })
    }
}

/// An offer of an agent that has said that its disk does not answer.
fn offer_of_silent(snapshot: &Snapshot, silent: &BTreeSet<String>) -> Option<Broken> {
    if silent.is_empty() {
        return None;
    }
    let mut offers = snapshot.offers.iter();
    let offer = offers.find(|offer| silent.contains(offer.agent_id.as_str()))?;
    let what = format!("offer {} of an agent whose disk does not answer", offer.id);
    Some(Broken::new("I17", what))
}

/// Returns an error about an offer whose framework is not there to answer it.
fn orphan(snapshot: &Snapshot) -> Option<Broken> {
    for offer in &snapshot.offers {
        let mut frameworks = snapshot.frameworks.iter();
        let framework = frameworks.find(|one| one.id == offer.framework_id);
        if !framework.is_some_and(|framework| framework.connected) {
            let what = format!("offer {} of a framework that is away", offer.id);
            return Some(Broken::new("I4", what));
        }
    }
    None
}

/// Returns an agent that is back although it was marked gone.
fn returned_from_gone(snapshot: &Snapshot) -> Option<Broken> {
    let mut gone = snapshot.gone_agents.iter().map(|(id, _)| id);
    let is_here = |id: &&AgentId| snapshot.agents.iter().any(|agent| agent.id() == *id);
    let id = gone.find(is_here)?;
    let what = format!("agent {id} is registered and was marked gone");
    Some(Broken::new("I40", what))
}

fn check_agent(
    agent: &AgentView,
    unheard: Option<&BTreeSet<(FrameworkId, TaskId)>>,
) -> Option<Broken> {
    let id = agent.id();
    let mut held = agent.offered.unallocate();
    for used in agent.used.values() {
        held += used.unallocate();
    }
    for task in unheard.into_iter().flatten() {
        if let Some(task) = agent.tasks.get(task) {
            held -= &task.resources.unallocate();
        }
    }
    if !agent.is_active() && !agent.offered.is_empty() {
        let what = format!("agent {id} is not active, and {} is offered", agent.offered);
        return Some(Broken::new("I17", what));
    }
    let all = agent.profile.total.unrevocable();
    let held = held.unrevocable();
    if !all.contains(&held) {
        let what = format!("agent {id} has {all}, of which {held} is given out");
        return Some(Broken::new("I1", what));
    }
    let number = (0..RESOURCES.len()).find(|at| agent.profile.info.hostname == hostname(*at));
    let amount = reservation::amount(&all);
    if number.is_some_and(|number| reservation::amount(&total(number)) != amount) {
        let what = format!("agent {id} has become one with {amount}");
        return Some(Broken::new("I9", what));
    }
    for used in agent.used.values() {
        for (role, of_role) in used.allocations() {
            if let Some(foreign) = reservation::foreign(&of_role, &role) {
                let what = format!("role {role} uses {foreign} of agent {id}");
                return Some(Broken::new("I8", what));
            }
        }
    }
    None
}

fn check_offer(snapshot: &Snapshot, offer: &Offer) -> Option<Broken> {
    let (id, role) = (&offer.id, &offer.role);
    if let Some(foreign) = reservation::foreign(&offer.resources, role) {
        let what = format!("offer {id} to role {role} has {foreign}");
        return Some(Broken::new("I8", what));
    }
    let mut agents = snapshot.agents.iter();
    let agent = agents.find(|agent| *agent.id() == offer.agent_id);
    if !agent.is_some_and(|agent| agent.is_active()) {
        let what = format!(
            "offer {id} of agent {}, which is not active",
            offer.agent_id
        );
        return Some(Broken::new("I17", what));
    }
    let mut frameworks = snapshot.frameworks.iter();
    let framework = frameworks.find(|one| one.id == offer.framework_id)?;
    if framework.suppressed.contains(role) || !framework.roles.contains(role) {
        let what = format!("offer {id} to role {role}, which its framework does not want");
        return Some(Broken::new("I17", what));
    }
    let revocable = offer.resources.revocable();
    if !revocable.is_empty() && !framework.capabilities.revocable_resources {
        let what = format!("offer {id} has {revocable}, and its framework does not take it");
        return Some(Broken::new("I13", what));
    }
    None
}

/// Checks that new offers stay within limits, and leave enough for the guarantees.
fn check_quota(snapshot: &Snapshot, made: &[&Arc<Offer>]) -> Option<Broken> {
    if snapshot.quotas.is_empty() || made.is_empty() {
        return None;
    }
    let mut held = quota::Held::default();
    let mut free = ResourceQuantities::new();
    for agent in snapshot.agents.iter() {
        let all = &agent.profile.total;
        held.reserved(all);
        held.allocated(&agent.offered);
        let mut given = agent.offered.clone();
        for used in agent.used.values() {
            held.allocated(used);
            given += used;
        }
        if agent.is_active() {
            let left = all.unreserved().unrevocable().scalar_quantities();
            free += &(&left - &given.unreserved().unrevocable().scalar_quantities());
        }
    }
    let unmet = held.unmet(&snapshot.quotas);
    for offer in made {
        if let Some(what) = held.exceeded(&snapshot.quotas, &offer.role, &offer.resources) {
            return Some(Broken::new("I12", what));
        }
        let mut top = offer.role.clone();
        while let Some(parent) = top.parent() {
            top = parent;
        }
        let quota = snapshot.quotas.get(&top);
        if quota.is_some_and(|quota| !quota.guarantees.is_empty()) {
            continue;
        }
        let offered = offer
            .resources
            .unreserved()
            .unrevocable()
            .scalar_quantities();
        for (name, needed) in unmet.iter() {
            let name = name.as_str();
            if offered.get(name).is_positive() && free.get(name) < needed {
                let role = &offer.role;
                let what =
                    format!("role {role} is offered {offered}, {free} is left, guaranteed {unmet}");
                return Some(Broken::new("I11", what));
            }
        }
    }
    None
}
