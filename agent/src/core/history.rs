//! Bounds the bytes of completed frameworks, executors and their tasks, and of ended tasks with an unacknowledged end.
//!
//! The latter are not forgotten: a framework with too many of them gets no new tasks. Pure. Invariant: a framework's
//! count is the size of its completed executors when they were added, plus its own size if it has no work.

use std::collections::BTreeMap;

use meseta_proto::schema;
use meseta_resources::FrameworkId;

use super::shares::Shares;
use super::{Executor, Framework, Task};

/// The bytes of each framework's completed executors, and of the framework itself once it is completed.
#[derive(Debug)]
pub(super) struct History {
    bytes_max: usize,
    bytes: usize,
    frameworks: BTreeMap<FrameworkId, usize>,
    /// The bytes of ended tasks with an unacknowledged end.
    ended: Shares,
}

impl History {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            frameworks: BTreeMap::new(),
            ended: Shares::new(bytes_max / 4 * 3, bytes_max / 2),
        }
    }

    /// The most bytes of completed tasks that a running executor may keep.
    pub(super) fn of_executor_max(&self) -> usize {
        self.bytes_max / 64
    }

    pub(super) fn add(&mut self, framework: &FrameworkId, executor: &Executor) {
        let bytes = executor_bytes(executor);
        self.bytes += bytes;
        *self.frameworks.entry(framework.clone()).or_default() += bytes;
    }

    pub(super) fn take_off(&mut self, framework: &FrameworkId, executor: &Executor) {
        self.take_off_bytes(framework, executor_bytes(executor));
    }

    fn take_off_bytes(&mut self, framework: &FrameworkId, bytes: usize) {
        if let Some(own) = self.frameworks.get_mut(framework) {
            let bytes = bytes.min(*own);
            *own -= bytes;
            self.bytes -= bytes;
            if *own == 0 {
                self.frameworks.remove(framework);
            }
        }
    }

    /// Adds a framework that has no work left and is still shown.
    pub(super) fn add_framework(&mut self, framework: &Framework) {
        let bytes = framework_bytes(framework);
        self.bytes += bytes;
        *self.frameworks.entry(framework.id.clone()).or_default() += bytes;
    }

    /// Removes a shown framework that has work again.
    pub(super) fn take_off_framework(&mut self, framework: &Framework) {
        self.take_off_bytes(&framework.id, framework_bytes(framework));
    }

    /// Adds the bytes of a task that has ended, or that was ended when the agent recovered it. They count until
    /// [`History::acknowledged`]. Returns the number of bytes.
    pub(super) fn ended(&mut self, task: &Task) -> usize {
        let bytes = size_of::<Executor>() + task_bytes(task);
        self.ended.add(&task.key.run.framework, bytes);
        bytes
    }

    /// Removes a task whose end was acknowledged, or never will be.
    pub(super) fn acknowledged(&mut self, task: &Task) {
        let framework = &task.key.run.framework;
        self.ended.take_off(framework, task.ended_bytes);
    }

    /// Whether a framework has acknowledged enough terminal updates to get more tasks.
    pub(super) fn takes_tasks_of(&self, framework: &FrameworkId) -> bool {
        self.ended.has_room(framework, 0)
    }

    /// The framework with the most bytes, if the total is too large.
    pub(super) fn too_much(&self) -> Option<FrameworkId> {
        if self.bytes.saturating_add(self.ended.all()) <= self.bytes_max {
            return None;
        }
        let most = self.frameworks.iter().max_by_key(|(_, bytes)| **bytes);
        most.map(|(framework, _)| framework.clone())
    }

    /// Forgets all completed executors of a framework.
    pub(super) fn forget(&mut self, framework: &FrameworkId) {
        self.bytes -= self.frameworks.remove(framework).unwrap_or_default();
    }
}

fn framework_bytes(framework: &Framework) -> usize {
    size_of::<Framework>() + schema::bytes_of(&*framework.info)
}

fn executor_bytes(executor: &Executor) -> usize {
    let info = executor.info.as_ref();
    let own = size_of::<Executor>() + info.map_or(0, |info| schema::bytes_of(&**info));
    executor
        .all_tasks()
        .map(|task| task_bytes(task))
        .sum::<usize>()
        + own
}

/// The approximate memory of an ended task.
pub(super) fn task_bytes(task: &Task) -> usize {
    let statuses = task.statuses.iter().map(schema::bytes_of).sum::<usize>();
    size_of::<Task>() + schema::bytes_of(&*task.info) + statuses
}
