//! Reconciliation: the truth about tasks, on demand.
//!
//! Every answer is made from the master's tables, soon and without holding up others; where only an agent that is still coming
//! back could know, there is none, as in Mesos. Invariant: the master never tells of a task in a
//! state that it cannot vouch for.

use std::ops::Bound;

use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::{FrameworkId, TaskId};

use super::MasterCore;
use super::io::Answer;
use super::status::Verdict;
use super::task::TaskRecord;

/// Questions answered in one step: well below a millisecond's worth, so that offers and calls of others
/// go on in between.
const ANSWERS_PER_STEP: usize = 128;

/// Questions that may wait to be answered: those of some dozens of frameworks with all their tasks.
const QUESTIONS_MAX: usize = 4_000_000;

/// What one framework asked and has not been told yet.
#[derive(Debug)]
pub(super) struct Inquiry {
    framework: FrameworkId,
    questions: Questions,
}

#[derive(Debug)]
enum Questions {
    /// Tasks as the framework names them, and where it thinks that they are.
    Named(std::vec::IntoIter<call::reconcile::Task>),
    /// All tasks that the master has on its books, after this one; and at most so many.
    Listed { after: Option<TaskId>, left: usize },
}

impl Questions {
    fn len(&self) -> usize {
        match self {
            Self::Named(tasks) => tasks.len(),
            Self::Listed { left, .. } => *left,
        }
    }
}

impl MasterCore {
    /// Takes questions; they are answered in this step and in those that follow.
    pub(super) fn reconcile(
        &mut self,
        framework: &FrameworkId,
        request: call::Reconcile,
    ) -> Answer {
        let questions = if request.tasks.is_empty() {
            let known = self.frameworks.get(framework);
            Questions::Listed {
                after: None,
                left: known.map_or(0, |framework| framework.tasks.len()),
            }
        } else {
            Questions::Named(request.tasks.into_iter())
        };
        let asked = self.inquiries.iter().map(|inquiry| &inquiry.questions);
        let waiting: usize = asked.map(Questions::len).sum();
        if waiting.saturating_add(questions.len()) > QUESTIONS_MAX {
            return Answer::BadRequest(format!(
                "{waiting} tasks wait to be reconciled already: ask again later"
            ));
        }
        self.inquiries.push_back(Inquiry {
            framework: framework.clone(),
            questions,
        });
        Answer::Accepted
    }

    /// Answers some of what was asked, everyone who asked in turn.
    pub(super) fn answer_questions(&mut self) {
        for _ in 0..ANSWERS_PER_STEP {
            let Some(mut inquiry) = self.inquiries.pop_front() else {
                return;
            };
            let known = self.frameworks.get(&inquiry.framework);
            let hears = known.is_some_and(|framework| framework.connection().is_some());
            if hears && self.answer_next(&inquiry.framework, &mut inquiry.questions) {
                self.inquiries.push_back(inquiry);
            }
        }
    }

    /// Answers one question, if there is one left.
    fn answer_next(&mut self, framework: &FrameworkId, questions: &mut Questions) -> bool {
        match questions {
            Questions::Named(tasks) => {
                let Some(task) = tasks.next() else {
                    return false;
                };
                let agent = task.agent_id.as_ref().map(|id| id.value.as_str());
                self.reconcile_task(framework, &task.task_id.value, agent);
            }
            Questions::Listed { after, left } => {
                let known = self.frameworks.get(framework);
                let bound = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut rest = known
                    .into_iter()
                    .flat_map(|known| known.tasks.range::<TaskId, _>((bound, Bound::Unbounded)));
                let Some((task, _)) = rest.next().filter(|_| *left > 0) else {
                    return false;
                };
                let task = task.clone();
                if let Some(record) = self.known_task(framework, task.as_str()) {
                    let status = self.known_status(record);
                    self.tell_status(framework, status);
                }
                *left -= 1;
                *after = Some(task);
            }
        }
        questions.len() > 0
    }

    /// One row of the decision table, the first that fits.
    pub(super) fn reconcile_task(
        &mut self,
        framework: &FrameworkId,
        task_id: &str,
        agent_id: Option<&str>,
    ) {
        if let Some(task) = self.known_task(framework, task_id) {
            let status = self.known_status(task);
            self.tell_status(framework, status);
            return;
        }
        let verdict = |state, message: &str| Verdict {
            task_id,
            agent_id,
            state,
            reason: Reason::Reconciliation,
            message: message.to_owned(),
        };
        let unknown_yet = match agent_id {
            Some(id) => self.recovered_agents.contains_key(id),
            None => !self.recovered_agents.is_empty(),
        };
        if unknown_yet {
            self.counters.reconciliations_unanswered += 1;
            return;
        }
        let Some(id) = agent_id else {
            let state = self.state_for(framework, TaskState::TaskUnknown);
            self.tell(framework, verdict(state, "Reconciliation: Task is unknown"));
            return;
        };
        if self.agents.contains_key(id) {
            let state = self.state_for(framework, TaskState::TaskGone);
            self.tell(
                framework,
                verdict(state, "Reconciliation: Task is unknown to the agent"),
            );
        } else if let Some(agent) = self.unreachable_agents.get(id) {
            let nanoseconds = i64::try_from(agent.since.as_nanos()).unwrap_or(i64::MAX);
            let state = self.state_for(framework, TaskState::TaskUnreachable);
            let mut status = self.status(verdict(state, "Reconciliation: Task is unreachable"));
            status.unreachable_time = Some(v1::TimeInfo { nanoseconds });
            self.tell_status(framework, status);
        } else if self.gone_agents.contains_key(id) {
            let state = self.state_for(framework, TaskState::TaskGoneByOperator);
            self.tell(framework, verdict(state, "Reconciliation: Task is gone"));
        } else {
            let state = self.state_for(framework, TaskState::TaskUnknown);
            self.tell(framework, verdict(state, "Reconciliation: Task is unknown"));
        }
    }

    fn known_task(&self, framework: &FrameworkId, task: &str) -> Option<&TaskRecord> {
        let task = TaskId::new(task).ok()?;
        let agent = self.agent_of(framework, &task)?;
        self.agents
            .get(agent)?
            .task(framework, &task)
            .map(|task| &**task)
    }

    /// What was last forwarded about a task, with what it said of health and container.
    fn known_status(&self, task: &TaskRecord) -> TaskStatus {
        let latest = task.latest_status().unwrap_or_default();
        TaskStatus {
            task_id: v1::TaskId {
                value: task.task_id.to_string(),
            },
            state: task.reported_state().into(),
            message: Some("Reconciliation: Latest task state".to_owned()),
            source: Some(Source::Master.into()),
            reason: Some(Reason::Reconciliation.into()),
            agent_id: Some(v1::AgentId {
                value: task.agent_id.to_string(),
            }),
            executor_id: task.executor_id.as_ref().map(|id| v1::ExecutorId {
                value: id.to_string(),
            }),
            timestamp: Some(self.now.unix.as_secs_f64()),
            healthy: latest.healthy,
            check_status: latest.check_status,
            labels: latest.labels,
            container_status: latest.container_status,
            ..TaskStatus::default()
        }
    }
}
