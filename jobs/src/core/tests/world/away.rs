//! Agents that go away and come back, and what is told of their tasks.

use meseta_proto::mesos::v1::TaskState;

use super::{Life, World};

impl World {
    /// An agent goes away, or one that is away comes back with its tasks.
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

    /// All agents come back but the one of a task.
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

    pub(in crate::core::tests) fn return_all(&mut self) {
        while self.agents.values().any(|agent| agent.is_away) {
            self.toggle_agent();
        }
    }
}
