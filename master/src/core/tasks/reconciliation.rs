//! Reconciliation: the current state of tasks, on request.
//!
//! The master answers from its tables, soon and without delaying others; if only an agent that is still coming back
//! could know, there is no answer, as in Mesos. Invariants: the master never reports a task state without evidence; a
//! framework with very many tasks gets its answers as fast as it reads them.

use std::ops::Bound;

use meseta_proto::mesos::v1::scheduler::{Event, call};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::{FrameworkId, TaskId};

use super::status::MasterTaskStatus;
use crate::core::answer::Answer;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::absent_agents::AgentLife;
use crate::core::state::reconciliations::{PendingReconcile, Questions};
use crate::core::state::task::TaskRecord;

/// The number of requests answered in one step: well below a millisecond of work, so that offers and calls of others
/// continue in between.
const ANSWERS_PER_STEP: usize = 128;

/// The number of answers read between two reports to the core.
pub(crate) const READ_AT_ONCE: usize = 512;

/// Whether an event answers a reconciliation request for a task or an operation. Other operation statuses have a
/// uuid, because the framework has to acknowledge them.
pub(crate) fn is_answer(event: &Event) -> bool {
    let update = event.update.as_ref();
    let of_task =
        update.is_some_and(|update| update.status.reason == Some(Reason::Reconciliation.into()));
    let update = event.update_operation_status.as_ref();
    of_task || update.is_some_and(|update| update.status.uuid.is_none())
}

/// The memory in bytes of the tasks named in a request.
fn memory_of(tasks: &[call::reconcile::Task]) -> usize {
    let of_task = |task: &call::reconcile::Task| {
        let agent = task.agent_id.as_ref().map_or(0, |id| id.value.len());
        size_of::<call::reconcile::Task>() + task.task_id.value.len() + agent
    };
    tasks.iter().map(of_task).sum()
}

impl MasterCore {
    /// Queues a reconciliation request; this step and the following ones answer it.
    pub(in crate::core) fn reconcile(
        &mut self,
        framework: &FrameworkId,
        request: call::Reconcile,
    ) -> Answer {
        let bytes = memory_of(&request.tasks);
        let questions = if request.tasks.is_empty() {
            let known = self.frameworks.get(framework);
            let last = known.and_then(|known| known.tasks.last_key_value());
            let Some((known, (last, _))) = known.zip(last) else {
                return Answer::Accepted;
            };
            Questions::Implicit {
                after: None,
                until: last.clone(),
                left: known.tasks.len(),
            }
        } else {
            Questions::Explicit(request.tasks.into_iter())
        };
        self.take_questions(framework, questions, bytes)
    }

    /// Queues a request with the memory that it takes until answered.
    pub(in crate::core) fn take_questions(
        &mut self,
        framework: &FrameworkId,
        questions: Questions,
        bytes: usize,
    ) -> Answer {
        let new = PendingReconcile {
            framework: framework.clone(),
            questions,
            bytes,
        };
        let bytes_max = self.config.memory.questions_per_framework;
        match self.reconciliations.add(new, bytes_max) {
            Ok(()) => Answer::Accepted,
            Err(text) => Answer::BadRequest(text.to_owned()),
        }
    }

    /// Answers a part of the requests, in turn for all frameworks.
    pub(in crate::core) fn answer_questions(&mut self) {
        for _ in 0..ANSWERS_PER_STEP {
            let Some(reconcile) = self.reconciliations.take_next() else {
                return;
            };
            let known = self.frameworks.get(&reconcile.framework);
            let hears = known.is_some_and(|framework| framework.connection().is_some());
            if !hears {
                continue;
            }
            let Some(mut reconcile) = self.reconciliations.set_aside_unread(reconcile) else {
                continue;
            };
            let before = self.effects.emitted().len();
            let goes_on = self.answer_next(&reconcile.framework, &mut reconcile.questions);
            let answers = self.effects.emitted().len() - before;
            self.reconciliations
                .count_answers(&reconcile.framework, answers);
            if goes_on {
                self.reconciliations.put_back(reconcile);
            }
        }
    }

    /// Records that a framework has read some answers, so that it may get more.
    pub(in crate::core) fn answers_read(&mut self, connection: ConnectionId, answers: usize) {
        if let Some(id) = self.schedulers.get(&connection) {
            self.reconciliations.note_read(id, answers);
        }
    }

    /// Answers one part of a request, if any is left.
    fn answer_next(&mut self, framework: &FrameworkId, questions: &mut Questions) -> bool {
        match questions {
            Questions::Explicit(tasks) => {
                let Some(task) = tasks.next() else {
                    return false;
                };
                let agent = task.agent_id.as_ref().map(|id| id.value.as_str());
                self.reconcile_task(framework, &task.task_id.value, agent);
            }
            Questions::Operations(operations) => {
                let Some(operation) = operations.next() else {
                    return false;
                };
                self.reconcile_operation(framework, &operation);
            }
            Questions::AllOperations { after, left } => {
                *left = left.saturating_sub(1);
                *after = self.tell_operation_after(framework, after.as_deref());
                return after.is_some();
            }
            Questions::Implicit { after, until, left } => {
                let known = self.frameworks.get(framework);
                let bound = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut rest = known
                    .into_iter()
                    .flat_map(|known| known.tasks.range::<TaskId, _>((bound, Bound::Unbounded)));
                let Some((task, _)) = rest.next().filter(|(task, _)| **task <= *until) else {
                    return false;
                };
                let task = task.clone();
                let holders = known.into_iter().flat_map(|known| known.holders(&task));
                let agents = holders.filter_map(|holder| self.agents.get(holder));
                let records = agents.filter_map(|agent| agent.task(framework, &task));
                let statuses: Vec<_> = records.map(|record| self.known_status(record)).collect();
                for status in statuses {
                    self.send_status(framework, status);
                }
                *left = left.saturating_sub(1);
                let goes_on = task < *until;
                *after = Some(task);
                return goes_on;
            }
        }
        questions.len() > 0
    }

    /// Sends the status by the decision table of Mesos: the first row that matches.
    pub(in crate::core) fn reconcile_task(
        &mut self,
        framework: &FrameworkId,
        task_id: &str,
        agent_id: Option<&str>,
    ) {
        if let Some(task) = self.known_task(framework, task_id, agent_id) {
            let status = self.known_status(task);
            self.send_status(framework, status);
            return;
        }
        let mut unreachable_since = None;
        let (state, message) = match agent_id.map(|id| self.life_of(id)) {
            None if self.absent_agents.expects_any() => {
                self.counters.reconciliations_unanswered += 1;
                return;
            }
            Some(AgentLife::Expected(_)) => {
                self.counters.reconciliations_unanswered += 1;
                return;
            }
            Some(AgentLife::Registered(_)) => (TaskState::TaskGone, "Task is unknown to the agent"),
            Some(AgentLife::Unreachable(agent)) => {
                unreachable_since = Some(agent.since);
                (TaskState::TaskUnreachable, "Task is unreachable")
            }
            Some(AgentLife::Gone) => (TaskState::TaskGoneByOperator, "Task is gone"),
            Some(AgentLife::Unknown) | None => (TaskState::TaskUnknown, "Task is unknown"),
        };
        let mut status = self.status(MasterTaskStatus {
            task_id,
            agent_id,
            state: self.state_for(framework, state),
            reason: Reason::Reconciliation,
            message: format!("Reconciliation: {message}"),
        });
        status.unreachable_time = unreachable_since.map(|since| v1::TimeInfo {
            nanoseconds: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        });
        self.send_status(framework, status);
    }

    /// The task on the given agent, or else on its agent.
    fn known_task(
        &self,
        framework: &FrameworkId,
        task: &str,
        agent_id: Option<&str>,
    ) -> Option<&TaskRecord> {
        let task = TaskId::new(task).ok()?;
        let holders = || {
            self.frameworks
                .get(framework)
                .map(|found| found.holders(&task))
        };
        let named = holders()?.find(|holder| agent_id == Some(holder.as_str()));
        let agent = named.or_else(|| holders()?.next())?;
        self.agents
            .get(agent)?
            .task(framework, &task)
            .map(|task| &**task)
    }

    /// The last forwarded status of a task, with its health and container status.
    fn known_status(&self, task: &TaskRecord) -> TaskStatus {
        let latest = task.latest_status().unwrap_or_default();
        TaskStatus {
            task_id: (&task.task_id).into(),
            state: task.reported_state().into(),
            message: Some("Reconciliation: Latest task state".to_owned()),
            source: Some(Source::Master.into()),
            reason: Some(Reason::Reconciliation.into()),
            agent_id: Some((&task.agent_id).into()),
            executor_id: task.executor_id.as_ref().map(|id| id.into()),
            timestamp: Some(self.now.unix.as_secs_f64()),
            healthy: latest.healthy,
            check_status: latest.check_status,
            labels: latest.labels,
            container_status: latest.container_status,
            ..TaskStatus::default()
        }
    }
}
