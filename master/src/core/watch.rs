//! What operators who watch the cluster are told as it happens.
//!
//! Nothing is made while nobody has ever watched. Invariant: a note is made after the state has changed, so
//! a snapshot and the notes after it have no gap.

use std::sync::Arc;

use meseta_proto::budget::waiting_bytes;
use meseta_proto::mesos::v1::{FrameworkInfo, TaskState, TaskStatus};
use meseta_resources::{AgentId, FrameworkId, TaskId};
use prost::Message as _;

use super::MasterCore;
use super::io::Visible;
use super::snapshot::{AgentView, FrameworkView};
use super::task::TaskRecord;

/// The user that a task names, if it names one; `None` if the task is not on the books.
pub type TaskUser = Option<Option<Arc<str>>>;

/// One thing that has happened.
#[derive(Clone, Debug)]
pub enum Note {
    TaskAdded(Arc<TaskRecord>),
    TaskUpdated {
        framework_id: FrameworkId,
        status: Box<TaskStatus>,
        state: TaskState,
        task_user: TaskUser,
    },
    AgentAdded(Box<AgentView>),
    AgentRemoved(AgentId),
    FrameworkAdded(Arc<FrameworkView>),
    FrameworkUpdated(Arc<FrameworkView>),
    FrameworkRemoved(Arc<FrameworkInfo>),
}

impl Note {
    /// What it takes while it waits, more or less.
    pub(crate) fn bytes(&self) -> usize {
        const SMALL: usize = 1_024;
        let parts = match self {
            Self::TaskUpdated { status, .. } => waiting_bytes(&**status),
            Self::AgentAdded(view) => view.profile.info.encoded_len(),
            // Shared with the books.
            Self::TaskAdded(_)
            | Self::AgentRemoved(_)
            | Self::FrameworkAdded(_)
            | Self::FrameworkUpdated(_)
            | Self::FrameworkRemoved(_) => 0,
        };
        parts.saturating_add(SMALL)
    }
}

impl MasterCore {
    /// From now on somebody may watch.
    pub fn watch(&mut self) {
        self.watched = true;
    }

    pub(super) fn note(&mut self, note: impl FnOnce(&Self) -> Option<Note>) {
        if !self.watched {
            return;
        }
        if let Some(note) = note(self) {
            self.visible(Visible::Note(Box::new(note)));
        }
    }

    pub(super) fn note_task(&mut self, agent: &AgentId, framework: &FrameworkId, task: &TaskId) {
        self.note(|core| {
            let agent = core.agents.get(agent)?;
            Some(Note::TaskAdded(agent.task(framework, task)?.clone()))
        });
    }

    pub(super) fn note_status(
        &mut self,
        framework: &FrameworkId,
        status: &TaskStatus,
        state: TaskState,
        task_user: TaskUser,
    ) {
        self.note(|_| {
            Some(Note::TaskUpdated {
                framework_id: framework.clone(),
                status: Box::new(status.clone()),
                state,
                task_user,
            })
        });
    }

    pub(super) fn note_agent(&mut self, id: &AgentId) {
        self.note(|core| {
            let agent = core.agents.get(id)?;
            Some(Note::AgentAdded(Box::new(core.view(agent))))
        });
    }

    /// Tells of a framework; new ones and known ones are told apart by who calls.
    pub(super) fn note_framework(&mut self, id: &FrameworkId, is_new: bool) {
        self.note(|core| {
            let view = Arc::new(FrameworkView::of(core.frameworks.get(id)?, false));
            Some(if is_new {
                Note::FrameworkAdded(view)
            } else {
                Note::FrameworkUpdated(view)
            })
        });
    }
}
