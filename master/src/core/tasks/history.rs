//! The history of ended and lost tasks, and its limits.
//!
//! The history of each framework is limited in records and in bytes, and so is that of all together; the infos of
//! ended frameworks count too. Invariant: the oldest record goes first, and a framework with a short history loses
//! nothing to one with a long history.

use std::sync::Arc;

use meseta_resources::{AgentId, FrameworkId};

use crate::core::master::MasterCore;
use crate::core::state::history::History;
use crate::core::state::task::TaskRecord;
use crate::core::views::snapshot::FrameworkView;

impl MasterCore {
    /// Stores the record of a completed task.
    pub(in crate::core) fn keep_completed(&mut self, id: &FrameworkId, task: Arc<TaskRecord>) {
        let tasks_max = self.config.max_completed_tasks_per_framework;
        self.keep(id, task, tasks_max, |framework| &mut framework.completed);
    }

    /// Stores the record of a task on an unreachable agent.
    pub(in crate::core) fn keep_unreachable(&mut self, id: &FrameworkId, task: Arc<TaskRecord>) {
        let tasks_max = self.config.max_unreachable_tasks_per_framework;
        self.keep(id, task, tasks_max, |framework| &mut framework.unreachable);
    }

    fn keep(
        &mut self,
        id: &FrameworkId,
        task: Arc<TaskRecord>,
        tasks_max: usize,
        history: impl Fn(&mut crate::core::state::framework::Framework) -> &mut History,
    ) {
        let bytes_max = self.config.memory.history_per_framework;
        let Some(framework) = self.frameworks.get_mut(id) else {
            return;
        };
        let history = history(framework);
        let before = history.bytes();
        history.push(task, tasks_max, bytes_max);
        self.histories.resize(before, history.bytes());
        self.bound_history();
    }

    /// Removes and returns the records of a framework's tasks that were lost with an agent.
    pub(in crate::core) fn take_unreachable_on(
        &mut self,
        id: &FrameworkId,
        agent: &AgentId,
    ) -> Vec<Arc<TaskRecord>> {
        self.take_unreachable(id, |task| task.agent_id == *agent)
    }

    fn take_unreachable(
        &mut self,
        id: &FrameworkId,
        is_meant: impl Fn(&TaskRecord) -> bool,
    ) -> Vec<Arc<TaskRecord>> {
        let Some(framework) = self.frameworks.get_mut(id) else {
            return Vec::new();
        };
        let taken = framework.unreachable.take(is_meant);
        let bytes: usize = taken.iter().map(|task| task.bytes()).sum();
        self.histories.free(bytes);
        taken
    }

    /// Stores the view of an ended framework.
    pub(in crate::core) fn keep_framework(&mut self, framework: FrameworkView) {
        self.histories
            .push(framework, self.config.max_completed_frameworks);
        self.bound_history();
    }

    /// Removes ended frameworks, and then half of the longest history of a framework: so much at a time that the
    /// search is rare.
    fn bound_history(&mut self) {
        while self.histories.bytes() > self.config.memory.history {
            if self.histories.forget_oldest() {
                continue;
            }
            let by_bytes = self
                .frameworks
                .iter()
                .map(|(id, one)| (one.completed.bytes() + one.unreachable.bytes(), id));
            let Some((bytes, id)) = by_bytes.max().map(|(bytes, id)| (bytes, id.clone())) else {
                return;
            };
            let Some(framework) = self.frameworks.get_mut(&id).filter(|_| bytes > 0) else {
                return;
            };
            for history in [&mut framework.completed, &mut framework.unreachable] {
                let half = history.bytes() / 2;
                history.shrink(usize::MAX, half);
            }
            let left = framework.completed.bytes() + framework.unreachable.bytes();
            self.histories.resize(bytes, left);
        }
    }
}
