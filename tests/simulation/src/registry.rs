//! The registry of the masters: its durable contents, the permission to write, and its backups.
//!
//! A model of the state that a starting master finds. Invariant: only the process that took the lead last can write, so
//! that a succeeded process ends with its first write.

use std::collections::BTreeSet;

use meseta_allocator::Quota;
use meseta_master::core::{Mutation, Recovered};
use meseta_resources::Role;

/// Copies of the registry that an operator keeps.
const BACKUPS_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) content: Recovered,
    /// The process that may write.
    leader: u64,
    backups: Vec<Recovered>,
    /// Agents that were marked gone and whose mark was not pruned.
    pub(crate) gone: BTreeSet<String>,
    /// The number of resets to an older state.
    pub(crate) rollbacks: u64,
}

impl Registry {
    pub(crate) fn new() -> Self {
        let content = Recovered {
            epoch: 0,
            cluster_id: "cluster".to_owned(),
            ..Recovered::default()
        };
        Self {
            content,
            leader: 0,
            backups: Vec::new(),
            gone: BTreeSet::new(),
            rollbacks: 0,
        }
    }

    /// Makes a process the leader, with the next higher epoch; returns the contents.
    pub(crate) fn lead(&mut self, process: u64) -> Recovered {
        self.leader = process;
        self.content.epoch += 1;
        self.content.clone()
    }

    /// Whether this process may write.
    pub(crate) fn is_led_by(&self, process: u64) -> bool {
        self.leader == process
    }

    /// Makes mutations durable, unless another process leads.
    pub(crate) fn commit(&mut self, process: u64, mutations: Vec<Mutation>) -> bool {
        if self.leader != process {
            return false;
        }
        for mutation in mutations {
            match &mutation {
                Mutation::MarkGone { agent_id, .. } => {
                    self.gone.insert(agent_id.clone());
                }
                Mutation::PruneGone { agent_ids } => {
                    self.gone.retain(|id| !agent_ids.contains(id));
                }
                _ => {}
            }
            self.content.apply(mutation);
        }
        true
    }

    /// Saves an operator's copy of the registry.
    pub(crate) fn back_up(&mut self) {
        if self.backups.len() == BACKUPS_MAX {
            self.backups.remove(0);
        }
        self.backups.push(self.content.clone());
    }

    /// Restores a copy, including its epoch, as an operator does while no master runs. Returns false if there is none.
    pub(crate) fn restore(&mut self, choice: usize) -> bool {
        let Some(count) = (!self.backups.is_empty()).then_some(self.backups.len()) else {
            return false;
        };
        self.content = self.backups[choice % count].clone();
        self.gone = self.content.gone.iter().map(|(id, _)| id.clone()).collect();
        self.rollbacks += 1;
        true
    }

    pub(crate) fn has_agent(&self, id: &str) -> bool {
        let mut agents = self.content.agents.iter();
        agents.any(|agent| agent.agent_id == id)
    }

    pub(crate) fn quota(&self, role: &str) -> Option<&Quota> {
        let mut quotas = self.content.quotas.iter();
        quotas
            .find(|(known, _): &&(Role, Quota)| known.as_str() == role)
            .map(|(_, quota)| quota)
    }
}
