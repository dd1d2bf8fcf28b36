//! Agents that get no more work, and the progress of their draining.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_proto::mesos::v1::{self, DrainConfig, DrainInfo, DrainState};
use meseta_resources::AgentId;
use meseta_resources::work_counter::count_entries;

/// The reason why an agent gets no offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Deactivation {
    /// The begin of the deactivation since the Unix epoch.
    pub since: Duration,
    /// The drain, if the agent's tasks are ended as well.
    pub drain: Option<Drain>,
}

/// The parameters and progress of draining an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Drain {
    /// The longest time between the request to end a task and its end; if unset, the task's own grace period.
    pub max_grace: Option<Duration>,
    /// Whether the agent becomes permanently gone when it is drained.
    pub mark_gone: bool,
    pub drained: bool,
}

impl Drain {
    /// The drain state in the form for operators and agents.
    #[must_use]
    pub fn to_wire(&self) -> DrainInfo {
        let state = if self.drained {
            DrainState::Drained
        } else {
            DrainState::Draining
        };
        DrainInfo {
            state: state.into(),
            config: DrainConfig {
                max_grace_period: self.max_grace.map(|grace| v1::DurationInfo {
                    nanoseconds: i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX),
                }),
                mark_gone: Some(self.mark_gone),
            },
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Deactivations(BTreeMap<AgentId, Deactivation>);

impl Deactivation {
    /// Whether tasks are being ended.
    pub(in crate::core) fn is_draining(&self) -> bool {
        let drain = self.drain.as_ref();
        drain.is_some_and(|drain| !drain.drained)
    }
}

impl FromIterator<(AgentId, Deactivation)> for Deactivations {
    fn from_iter<I: IntoIterator<Item = (AgentId, Deactivation)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Deactivations {
    pub(crate) fn get(&self, agent: &AgentId) -> Option<&Deactivation> {
        self.0.get(agent)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The agents whose tasks are being ended.
    #[cfg(test)]
    pub(in crate::core) fn draining(&self) -> impl Iterator<Item = &AgentId> {
        let all = self.0.iter();
        all.filter(|(_, deactivation)| deactivation.is_draining())
            .map(|(id, _)| id)
    }

    /// Whether an agent's tasks are being ended.
    pub(in crate::core) fn is_draining(&self, agent: &AgentId) -> bool {
        count_entries(1);
        self.0.get(agent).is_some_and(Deactivation::is_draining)
    }

    pub(in crate::core) fn set(&mut self, agent: &AgentId, deactivation: Option<Deactivation>) {
        match deactivation {
            Some(deactivation) => self.0.insert(agent.clone(), deactivation),
            None => self.0.remove(agent),
        };
    }
}
