//! Records of completed or unreachable tasks, oldest first, limited in number and bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::task::TaskRecord;

/// Records of one kind, oldest first, shared with snapshots.
#[derive(Debug, Default)]
pub(in crate::core) struct History {
    tasks: Arc<VecDeque<Arc<TaskRecord>>>,
    bytes: usize,
}

impl History {
    /// The tasks in the form that snapshots share.
    pub(in crate::core) fn tasks(&self) -> &Arc<VecDeque<Arc<TaskRecord>>> {
        &self.tasks
    }

    pub(in crate::core) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(in crate::core) fn push(
        &mut self,
        task: Arc<TaskRecord>,
        tasks_max: usize,
        bytes_max: usize,
    ) {
        self.bytes += task.bytes();
        Arc::make_mut(&mut self.tasks).push_back(task);
        self.shrink(tasks_max, bytes_max);
    }

    /// Removes the oldest records until the limits hold.
    pub(in crate::core) fn shrink(&mut self, tasks_max: usize, bytes_max: usize) {
        if self.tasks.len() <= tasks_max && self.bytes <= bytes_max {
            return;
        }
        let tasks = Arc::make_mut(&mut self.tasks);
        while (tasks.len() > tasks_max || self.bytes > bytes_max)
            && let Some(oldest) = tasks.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// Removes and returns the records that match.
    pub(in crate::core) fn take(
        &mut self,
        is_meant: impl Fn(&TaskRecord) -> bool,
    ) -> Vec<Arc<TaskRecord>> {
        if !self.tasks.iter().any(|task| is_meant(task)) {
            return Vec::new();
        }
        let tasks = std::mem::take(Arc::make_mut(&mut self.tasks));
        let (taken, left): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| is_meant(task));
        self.tasks = Arc::new(left.into());
        self.bytes -= taken.iter().map(|task| task.bytes()).sum::<usize>();
        taken
    }
}
