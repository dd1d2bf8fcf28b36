//! Absence and return of agents and masters, and their reports about tasks.

use std::time::Duration;

use meseta_proto::mesos::v1::TaskState;
use meseta_proto::reconciler;

use super::super::super::Input;
use super::{Life, World};

impl World {
    /// Plays an outage of all masters; the tasks continue.
    pub(in crate::core::tests) fn outage(&mut self, seconds: u64) {
        self.step(Input::Disconnected);
        for _ in 0..seconds {
            self.pass(Duration::from_secs(1));
        }
        self.subscribe();
    }

    pub(in crate::core::tests) fn disconnect(&mut self) {
        self.step(Input::Disconnected);
        self.subscribe();
    }

    /// Lets an agent go away, or an absent one come back with its tasks.
    pub(in crate::core::tests) fn toggle_agent(&mut self) {
        let chosen = self.dice.below(self.agents.len() as u64);
        let name = format!("a{chosen}");
        let is_away = self.agents[&name].is_away;
        self.set_away(name, !is_away);
    }

    fn set_away(&mut self, name: String, is_away: bool) {
        let agent = self.agents.get_mut(&name).expect("an agent");
        agent.is_away = is_away;
        let tasks = agent.tasks.clone();
        self.offers.retain(|_, (agent, _)| *agent != name);
        for (id, life) in tasks {
            let state = match (is_away, life) {
                (true, _) => TaskState::TaskUnreachable,
                (false, Life::Staging) => TaskState::TaskStaging,
                (false, Life::Running) => TaskState::TaskRunning,
            };
            self.tell_answer(&id, &name, state);
        }
    }

    /// Takes the agent of a task away.
    pub(in crate::core::tests) fn lose_agent_of(&mut self, id: &str) {
        let name = self.agent_of(id).expect("a task that lives");
        self.set_away(name, true);
    }

    /// Returns all agents except the one of a task.
    pub(in crate::core::tests) fn return_others(&mut self, id: &str) {
        let stays = self.agent_of(id);
        let away = self.agents.iter().filter(|(_, agent)| agent.is_away);
        let names: Vec<_> = away.map(|(name, _)| name.clone()).collect();
        for name in names
            .into_iter()
            .filter(|name| Some(name) != stays.as_ref())
        {
            self.set_away(name, false);
        }
    }

    /// Returns all agents without any report to the scheduler.
    pub(in crate::core::tests) fn return_unnoticed(&mut self) {
        for agent in self.agents.values_mut() {
            agent.is_away = false;
        }
    }

    /// Reports all tasks to the scheduler, as after a query.
    pub(in crate::core::tests) fn tell_all(&mut self) {
        self.reconcile(reconciler::Request::Implicit);
    }

    pub(in crate::core::tests) fn lives(&self, id: &str) -> bool {
        self.agent_of(id).is_some()
    }

    /// Lets time pass while there is no process.
    pub(in crate::core::tests) fn sleep(&mut self, time: Duration) {
        self.since += time;
    }

    pub(in crate::core::tests) fn return_all(&mut self) {
        while self.agents.values().any(|agent| agent.is_away) {
            self.toggle_agent();
        }
    }
}
