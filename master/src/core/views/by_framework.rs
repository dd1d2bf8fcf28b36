//! A snapshot by framework: the objects of each, computed once for all readers of the snapshot.
//!
//! Entered through [`Snapshot::by_framework`]. Shares the records of the snapshot and copies none.

use std::collections::HashMap;
use std::sync::Arc;

use meseta_proto::mesos::v1::TaskState;
use meseta_resources::{AgentId, FrameworkId, Resources};

use super::snapshot::{AgentView, Snapshot};
use crate::core::state::inverse_offers::InverseOffer;
use crate::core::state::offer::Offer;
use crate::core::state::task::{ExecutorRecord, TaskRecord};

/// The number of tasks in each state.
#[derive(Clone, Debug, Default)]
pub struct StateCounts(Vec<(TaskState, u64)>);

impl StateCounts {
    pub fn add(&mut self, state: TaskState, number: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += number,
            None => self.0.push((state, number)),
        }
    }

    /// The counts, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (TaskState, u64)> {
        self.0.iter().copied()
    }
}

impl StateCounts {
    fn add_all(&mut self, other: &Self) {
        other
            .iter()
            .for_each(|(state, number)| self.add(state, number));
    }
}

/// The number of tasks on agents in each state, by framework.
#[derive(Debug, Default)]
pub struct TaskStatesByFramework(HashMap<FrameworkId, StateCounts>);

impl TaskStatesByFramework {
    pub(in crate::core) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut all: HashMap<FrameworkId, StateCounts> = HashMap::new();
        for (framework, counts) in snapshot.agents.iter().flat_map(|agent| agent.task_states()) {
            match all.get_mut(framework) {
                Some(known) => known.add_all(counts),
                None => drop(all.insert(framework.clone(), counts.clone())),
            }
        }
        Self(all)
    }

    /// The counts of one framework; `None` means no tasks.
    #[must_use]
    pub fn get(&self, framework: &FrameworkId) -> Option<&StateCounts> {
        self.0.get(framework)
    }

    /// The counts of all frameworks together.
    #[must_use]
    pub fn total(&self) -> StateCounts {
        let mut total = StateCounts::default();
        self.0.values().for_each(|counts| total.add_all(counts));
        total
    }
}

/// The objects that belong to a framework.
#[derive(Debug, Default)]
pub struct FrameworkEntities {
    /// The agents with tasks or executors of the framework, ordered by id.
    pub agents: Vec<AgentId>,
    /// Live tasks, and terminal ones without acknowledgement, agent by agent.
    pub tasks: Vec<Arc<TaskRecord>>,
    /// The states of these tasks.
    pub states: StateCounts,
    pub executors: Vec<Arc<ExecutorRecord>>,
    pub offers: Vec<Arc<Offer>>,
    pub inverse_offers: Vec<Arc<InverseOffer>>,
    pub used: Resources,
    pub offered: Resources,
}

impl FrameworkEntities {
    fn note_agent(&mut self, agent: &AgentId) {
        if self.agents.last() != Some(agent) {
            self.agents.push(agent.clone());
        }
    }
}

#[derive(Debug, Default)]
pub struct ByFramework(HashMap<FrameworkId, FrameworkEntities>);

impl ByFramework {
    pub(in crate::core) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut all = Self::default();
        for agent in snapshot.agents.iter() {
            all.add_agent(agent);
        }
        for offer in &snapshot.offers {
            let entry = all.entry(&offer.framework_id);
            entry.offered += &offer.resources;
            entry.offers.push(offer.clone());
        }
        for offer in snapshot.inverse_offers.iter() {
            let entry = all.entry(&offer.framework_id);
            entry.inverse_offers.push(offer.clone());
        }
        all
    }

    /// The objects of a framework; `None` means no objects.
    #[must_use]
    pub fn get(&self, framework: &FrameworkId) -> Option<&FrameworkEntities> {
        self.0.get(framework)
    }

    fn add_agent(&mut self, agent: &AgentView) {
        // Tasks come in the order of frameworks, so each framework is looked up once.
        let mut tasks = agent.tasks.iter().peekable();
        while let Some(((framework, _), _)) = tasks.peek().copied() {
            let entry = self.entry(framework);
            entry.note_agent(agent.id());
            while let Some((_, task)) = tasks.next_if(|((owner, _), _)| owner == framework) {
                entry.states.add(task.state, 1);
                entry.tasks.push(task.clone());
            }
        }
        for ((framework, _), executor) in agent.executors.iter() {
            let entry = self.entry(framework);
            entry.note_agent(agent.id());
            entry.executors.push(executor.clone());
        }
        for (framework, used) in agent.used.iter() {
            self.entry(framework).used += used;
        }
    }

    fn entry(&mut self, framework: &FrameworkId) -> &mut FrameworkEntities {
        self.0.entry(framework.clone()).or_default()
    }
}
