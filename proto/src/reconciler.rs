//! The reference reconciler: keeps a framework's view of its tasks true.
//!
//! The algorithm of the Mesos documents as a state machine. After each subscription, and from time to time, it requests the
//! state of every task that is not known to have ended, until the state of each has arrived, with a pause that doubles up to
//! a limit. There is one reconciliation at a time; a new one replaces the previous one. No request is larger than a master
//! accepts. A few times after a subscription it requests all tasks that the master knows: a new leader learns only from its
//! agents of tasks that are unknown here. The caller sends the requests of [`Reconciler::poll`] and passes every update to
//! [`Reconciler::observe`]. Invariant: a task that has ended stays ended, regardless of late or repeated updates, unless it
//! was only presumed lost.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use meseta_resources::time::Moment;

use crate::mesos::v1::scheduler::{Call, call};
use crate::mesos::v1::{AgentId, TaskId, TaskState, TaskStatus, task_status::Reason};

/// The number of remembered ended tasks, so that a late update of such a task does not make it untracked.
pub const ENDED_MAX: usize = 10_000;
/// The maximum number of tasks in a request: some 2 MB, of the 32 MiB that a master accepts.
pub const ASKED_MAX: usize = 10_000;

/// The delays after a subscription at which the reconciler requests all tasks of the master: most agents reregister with a
/// new master within seconds, the last when its `--agent_reregister_timeout` is over. Three requests, since each costs an
/// answer for each task.
pub const ALL_ASKED_AFTER: [Duration; 3] = [
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
];

/// The intervals of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileIntervals {
    /// The pause between the first and the second request of a reconciliation; each later pause is twice as long.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// The time between the end of a reconciliation and the start of the next, which begins with an implicit one.
    pub period: Duration,
}

impl Default for ReconcileIntervals {
    /// The intervals: a second, a minute, and the fifteen minutes of the Mesos documents.
    fn default() -> Self {
        Self {
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            period: Duration::from_secs(15 * 60),
        }
    }
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The state of these tasks, with their agents as far as known.
    Explicit(Vec<call::reconcile::Task>),
    /// The states of all tasks that the master knows.
    Implicit,
}

impl Request {
    /// Converts to the call to send; the caller adds the framework's id.
    #[must_use]
    pub fn into_call(self) -> Call {
        let tasks = match self {
            Self::Explicit(tasks) => tasks,
            Self::Implicit => Vec::new(),
        };
        Call {
            r#type: Some(call::Type::Reconcile.into()),
            reconcile: Some(call::Reconcile { tasks }),
            ..Call::default()
        }
    }
}

/// The meaning of an update for the framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A tracked task is in this state now.
    State(TaskState),
    /// The state is already known.
    Known,
    /// A task that was presumed lost goes on.
    Recovered(TaskState),
    /// A tracked task has ended in this state.
    Ended(TaskState),
    /// The master does not know a tracked task: it never ran, or its agent was forgotten.
    Unknown,
    /// A live task that is not tracked: kill it, or adopt it with [`Reconciler::track`].
    Untracked,
}

#[derive(Clone, Debug)]
struct Tracked {
    agent: Option<String>,
    state: Option<TaskState>,
    /// The time of the last update.
    confirmed_at: Option<Moment>,
}

/// The state of a running reconciliation.
#[derive(Clone, Debug)]
struct Round {
    started: Moment,
    next: Moment,
    pause: Duration,
    /// Whether the implicit request is still to be sent.
    implicit_due: bool,
    /// The last requested task since the last pause, while more tasks follow it.
    asked_to: Option<String>,
}

/// The view of a framework on its tasks, and its next requests.
#[derive(Clone, Debug)]
pub struct Reconciler {
    intervals: ReconcileIntervals,
    tasks: BTreeMap<String, Tracked>,
    ended: BTreeMap<String, TaskState>,
    /// The ended tasks in order, the oldest first.
    ended_order: VecDeque<String>,
    round: Option<Round>,
    /// The start of the next periodic reconciliation; `None` while there is no stream.
    periodic: Option<Moment>,
    /// The times at which all tasks are requested again after the subscription, the next first.
    all_asked: VecDeque<Moment>,
}

impl Reconciler {
    #[must_use]
    pub fn new(intervals: ReconcileIntervals) -> Self {
        Self {
            intervals,
            tasks: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            round: None,
            periodic: None,
            all_asked: VecDeque::new(),
        }
    }

    /// Tracks a task that is about to be launched, or one of a predecessor.
    pub fn track(&mut self, task: &str, agent: Option<&str>) {
        if self.ended.remove(task).is_some() {
            self.ended_order.retain(|ended| ended != task);
        }
        let tracked = self.tasks.entry(task.to_owned()).or_insert(Tracked {
            agent: None,
            state: None,
            confirmed_at: None,
        });
        if let Some(agent) = agent {
            tracked.agent = Some(agent.to_owned());
        }
    }

    /// The newest known state of a task.
    #[must_use]
    pub fn state(&self, task: &str) -> Option<TaskState> {
        match self.tasks.get(task) {
            Some(tracked) => tracked.state,
            None => self.ended.get(task).copied(),
        }
    }

    /// Tasks that are not known to have ended.
    pub fn live(&self) -> impl Iterator<Item = &str> {
        self.tasks.keys().map(String::as_str)
    }

    /// Starts a reconciliation, in place of a running one. To be called at each SUBSCRIBED.
    pub fn start(&mut self, now: Moment) {
        self.all_asked = ALL_ASKED_AFTER.map(|pause| now + pause).into();
        self.begin(now, false);
    }

    /// Records the end of the stream: no requests until the next [`Self::start`].
    pub fn disconnected(&mut self) {
        self.round = None;
        self.periodic = None;
        self.all_asked.clear();
    }

    /// The time of the next action of [`Self::poll`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let own = match &self.round {
            Some(round) => Some(round.next),
            None => self.periodic,
        };
        own.into_iter().chain(self.all_asked.front().copied()).min()
    }

    /// Whether an update of every task has arrived since the reconciliation started.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match &self.round {
            Some(round) => {
                !round.implicit_due && self.unconfirmed(round.started, None).next().is_none()
            }
            None => true,
        }
    }

    /// The request to send now, if any.
    pub fn poll(&mut self, now: Moment) -> Option<Request> {
        let due = self.all_asked.iter().take_while(|at| **at <= now).count();
        if due > 0 {
            // A single request, even after a long time without a poll.
            self.all_asked.drain(..due);
            return Some(Request::Implicit);
        }
        if self.round.is_none() && self.periodic.is_some_and(|due| due <= now) {
            self.begin(now, true);
        }
        let mut round = self.round.take()?;
        if round.next > now {
            self.round = Some(round);
            return None;
        }
        if std::mem::take(&mut round.implicit_due) {
            // The explicit requests follow at the next poll, without a pause.
            self.round = Some(round);
            return Some(Request::Implicit);
        }
        let from = round.asked_to.take();
        let (tasks, has_more) = self.questions(round.started, from.as_deref());
        if tasks.is_empty() && from.is_none() {
            self.periodic = Some(now + self.intervals.period);
            return None;
        }
        if let Some(last) = tasks.last().filter(|_| has_more) {
            // The remaining tasks follow at the next poll, without a pause.
            round.asked_to = Some(last.task_id.value.clone());
        } else {
            round.next = now + round.pause;
            round.pause = (round.pause * 2).min(self.intervals.longest_pause);
        }
        self.round = Some(round);
        (!tasks.is_empty()).then_some(Request::Explicit(tasks))
    }

    /// Takes in an update from any source; acknowledging it is up to the caller.
    pub fn observe(&mut self, now: Moment, status: &TaskStatus) -> Observation {
        let task = status.task_id.value.as_str();
        let Ok(state) = TaskState::try_from(status.state) else {
            return Observation::Known;
        };
        if let Some(ended) = self.ended.get(task).copied() {
            if ended != TaskState::TaskLost || is_end(state) || state == TaskState::TaskUnknown {
                return Observation::Known;
            }
            self.track(task, None);
            self.note(now, status, state);
            return Observation::Recovered(state);
        }
        if !self.tasks.contains_key(task) {
            let is_live = !is_end(state) && state != TaskState::TaskUnknown;
            return if is_live {
                Observation::Untracked
            } else {
                Observation::Known
            };
        }
        if is_end(state) {
            self.tasks.remove(task);
            self.remember(task, state);
            return Observation::Ended(state);
        }
        let before = self.note(now, status, state);
        match state {
            TaskState::TaskUnknown => Observation::Unknown,
            _ if before == Some(state) => Observation::Known,
            _ if before == Some(TaskState::TaskUnreachable) => Observation::Recovered(state),
            _ => Observation::State(state),
        }
    }

    fn begin(&mut self, now: Moment, implicit_due: bool) {
        self.periodic = None;
        self.round = Some(Round {
            started: now,
            next: now,
            pause: self.intervals.first_pause,
            implicit_due,
            asked_to: None,
        });
    }

    /// The tasks after `behind` without an update since then, and whether there are more of them.
    fn questions(&self, since: Moment, behind: Option<&str>) -> (Vec<call::reconcile::Task>, bool) {
        let mut unconfirmed = self.unconfirmed(since, behind);
        let tasks =
            unconfirmed
                .by_ref()
                .take(ASKED_MAX)
                .map(|(task, tracked)| call::reconcile::Task {
                    task_id: TaskId {
                        value: task.clone(),
                    },
                    agent_id: tracked.agent.clone().map(|value| AgentId { value }),
                });
        (tasks.collect(), unconfirmed.next().is_some())
    }

    fn unconfirmed<'a>(
        &'a self,
        since: Moment,
        behind: Option<&str>,
    ) -> impl Iterator<Item = (&'a String, &'a Tracked)> + use<'a> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let tasks = self.tasks.range::<str, _>((from, Bound::Unbounded));
        tasks.filter(move |(_, tracked)| {
            tracked
                .confirmed_at
                .is_none_or(|confirmed_at| confirmed_at < since)
        })
    }

    /// Records a state of a live task; returns the previous one. A repeat of an earlier state does not go back: an agent's report
    /// about the start comes before its later ones.
    fn note(&mut self, now: Moment, status: &TaskStatus, state: TaskState) -> Option<TaskState> {
        let tracked = self.tasks.get_mut(&status.task_id.value)?;
        let before = tracked.state;
        tracked.confirmed_at = Some(now);
        if let Some(agent) = &status.agent_id {
            tracked.agent = Some(agent.value.clone());
        }
        let is_answer = status.reason.is_some_and(|reason| {
            [Reason::Reconciliation, Reason::AgentReregistered]
                .map(i32::from)
                .contains(&reason)
        });
        let is_older = before.is_some_and(|before| order(state) < order(before));
        if is_answer || !is_older {
            tracked.state = Some(state);
        }
        before
    }

    fn remember(&mut self, task: &str, state: TaskState) {
        self.ended.insert(task.to_owned(), state);
        self.ended_order.push_back(task.to_owned());
        while self.ended_order.len() > ENDED_MAX {
            if let Some(oldest) = self.ended_order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}

/// Whether no further state can follow this one.
fn is_end(state: TaskState) -> bool {
    match state {
        TaskState::TaskFinished
        | TaskState::TaskFailed
        | TaskState::TaskKilled
        | TaskState::TaskError
        | TaskState::TaskLost
        | TaskState::TaskDropped
        | TaskState::TaskGone
        | TaskState::TaskGoneByOperator => true,
        TaskState::TaskStaging
        | TaskState::TaskStarting
        | TaskState::TaskRunning
        | TaskState::TaskKilling
        | TaskState::TaskUnreachable
        | TaskState::TaskUnknown => false,
    }
}

/// The position of a live state in a task's life.
fn order(state: TaskState) -> u8 {
    match state {
        TaskState::TaskUnknown | TaskState::TaskStaging => 0,
        TaskState::TaskStarting => 1,
        TaskState::TaskRunning => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests;
