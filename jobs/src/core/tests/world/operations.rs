//! The effects of operations on the agents of the world, and their status updates.

use meseta_proto::mesos::v1::{
    AgentId, OperationId, OperationState, OperationStatus, TaskState, Uuid,
};
use meseta_resources::{Operation, Resources};

use super::super::super::{Input, NamedOperation};
use super::World;

impl World {
    /// Applies an operation to the rest of an offer and to its agent, and reports the outcome.
    pub(super) fn operate(
        &mut self,
        agent: &str,
        named: &NamedOperation,
        left: Option<&mut Resources>,
    ) {
        let NamedOperation { id, operation } = named;
        let volume = id.split(':').next().unwrap_or_default();
        let is_durable = self.disk.contains_key(&format!("volume/{volume}"));
        let is_leftover = matches!(operation, Operation::Unreserve(_));
        assert!(is_durable || is_leftover, "{id} before it was durable");
        let is_refused = self.fails_to_create && matches!(operation, Operation::Create(_));
        let done = left.filter(|_| !is_refused).and_then(|left| {
            *left = operation.apply(left).ok()?;
            let of_agent = self.agents.get_mut(agent)?;
            of_agent.total = operation.apply(&of_agent.total).ok()?;
            Some(())
        });
        if done.is_some() && matches!(operation, Operation::Destroy(_)) {
            self.destroyed.push(volume.to_owned());
        }
        let state = match done {
            Some(()) => OperationState::OperationFinished,
            None => OperationState::OperationError,
        };
        let mut status = operation_status(id, agent, state);
        if done.is_some() {
            status.uuid = Some(Uuid { value: vec![1; 16] });
            let unacknowledged = &mut self.unacknowledged_operations;
            unacknowledged.insert(id.clone(), status.clone());
        }
        self.inbox
            .push_back(Input::OperationUpdate(Box::new(status)));
    }

    pub(super) fn reconcile_operation(&mut self, id: &str, agent: &str) {
        let known = self.unacknowledged_operations.get(id).cloned();
        let mut status = known.unwrap_or_else(|| {
            let state = match () {
                () if self.gone_agents.contains(agent) => OperationState::OperationGoneByOperator,
                () if self.agents[agent].is_away => OperationState::OperationUnreachable,
                () => OperationState::OperationUnknown,
            };
            operation_status(id, agent, state)
        });
        status.uuid = None;
        self.inbox
            .push_back(Input::OperationUpdate(Box::new(status)));
    }

    /// Returns the reserved resources of all agents.
    pub(in crate::core::tests) fn reserved(&self) -> Vec<String> {
        let totals = self.agents.values().map(|agent| agent.total.reserved(None));
        let reserved = totals.filter(|reserved| !reserved.is_empty());
        reserved.map(|reserved| reserved.to_string()).collect()
    }

    pub(in crate::core::tests) fn reserved_of(&self, name: &str) -> f64 {
        let totals = self.agents.values().map(|agent| agent.total.reserved(None));
        let amounts = totals.filter_map(|reserved| reserved.scalar(name));
        amounts.map(|amount| amount.to_f64()).sum()
    }

    /// Returns the volumes that exist on agents.
    pub(in crate::core::tests) fn existing(&self) -> Vec<String> {
        let totals = self
            .agents
            .values()
            .map(|agent| agent.total.persistent_volumes());
        let volumes: Vec<Resources> = totals.collect();
        let volumes = volumes.iter().flat_map(Resources::iter);
        let persistence = volumes.filter_map(|volume| volume.disk()?.persistence.as_ref());
        persistence
            .map(|persistence| persistence.id.to_string())
            .collect()
    }

    /// Ends a task without any report.
    pub(in crate::core::tests) fn mark_lost(&mut self, id: &str) {
        let agent = self.agent_of(id).expect("a task that lives");
        let of_agent = self.agents.get_mut(&agent).expect("an agent");
        of_agent.tasks.remove(id);
    }

    /// Marks the agent of a task as gone; its tasks are gone with it.
    pub(in crate::core::tests) fn mark_gone(&mut self, id: &str) {
        let name = self.agent_of(id).expect("a task that lives");
        self.offers.retain(|_, (agent, _)| *agent != name);
        let agent = self.agents.get_mut(&name).expect("an agent");
        agent.is_away = true;
        agent.total = Resources::new();
        let tasks = std::mem::take(&mut agent.tasks);
        self.gone_agents.insert(name.clone());
        for id in tasks.keys() {
            self.tell_answer(id, &name, TaskState::TaskGoneByOperator);
        }
    }
}

fn operation_status(id: &str, agent: &str, state: OperationState) -> OperationStatus {
    OperationStatus {
        operation_id: Some(OperationId {
            value: id.to_owned(),
        }),
        agent_id: Some(AgentId {
            value: agent.to_owned(),
        }),
        state: state.into(),
        ..OperationStatus::default()
    }
}
