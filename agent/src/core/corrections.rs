//! Corrections of the QoS controller: frozen and evicted containers with revocable resources.
//!
//! Invariants: a container without revocable resources is never touched, even if a controller names it; no container
//! stays frozen that must learn of its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_estimators as estimators;
use meseta_estimators::Correction;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Now};
use tracing::{info, warn};

use super::model::{Executor, ExecutorKind, Phase, Task, TaskRef, TerminationReason};
use super::probe::ProbeId;
use super::tasks::Tasks;
use super::{ContainerAction, Destination, Step, kill, reconcile};
use crate::checkpoint::KillCause;

/// The longest time that an undelivered task protects a custom executor from being frozen, even if the executor never
/// takes the task.
const GIVEN_WITHIN: Duration = Duration::from_secs(30);

/// The containers that corrections have touched.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    frozen: BTreeSet<ContainerId>,
    /// The last probe begun before each executor's container was last frozen or thawed.
    stood_still: BTreeMap<ContainerId, ProbeId>,
    /// The reasons of the evictions, for containers that are ending.
    evicted: BTreeMap<ContainerId, String>,
}

/// The result of a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CorrectionResult {
    /// The executor has ended, or is in another container by now.
    Gone,
    /// The container may not be touched.
    Refused,
    Done,
}

impl Corrections {
    /// The containers that are frozen.
    pub(super) fn frozen(&self) -> &BTreeSet<ContainerId> {
        &self.frozen
    }

    pub(super) fn is_frozen(&self, container: &ContainerId) -> bool {
        self.frozen.contains(container)
    }

    /// Freezes or thaws a container. `last_probe` is the last begun probe.
    fn set_frozen(
        &mut self,
        step: &mut Step<'_>,
        container: &ContainerId,
        frozen: bool,
        last_probe: ProbeId,
    ) {
        if frozen {
            self.frozen.insert(container.clone());
        } else {
            self.frozen.remove(container);
        }
        self.stood_still.insert(container.clone(), last_probe);
        step.output_now(
            Destination::Container(container.clone()),
            ContainerAction::Freeze {
                container: container.clone(),
                frozen,
            },
        );
    }

    /// Whether the container was ever frozen or thawed.
    fn has_touched(&self, container: &ContainerId) -> bool {
        self.stood_still.contains_key(container)
    }

    /// Whether the container was frozen or thawed during a probe.
    pub(super) fn interrupted(&self, container: &ContainerId, probe: ProbeId) -> bool {
        let last = self.stood_still.get(container);
        last.is_some_and(|last| probe <= *last)
    }

    /// Notes the reason of an eviction. Returns whether the container was not evicted before.
    fn note_eviction(&mut self, container: ContainerId, why: &str) -> bool {
        self.evicted.insert(container, why.to_owned()).is_none()
    }

    /// Forgets a container that is gone.
    pub(super) fn forget(&mut self, container: &ContainerId) {
        self.frozen.remove(container);
        self.stood_still.remove(container);
        self.evicted.remove(container);
    }
}

/// Carries out one correction, if it names a container that may be touched.
pub(super) fn correct(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    correction: &Correction,
) -> CorrectionResult {
    let executor = tasks
        .runs
        .executor(&correction.framework, correction.executor.as_str())
        .filter(|executor| executor.is_live());
    let named = |executor: &Executor| match &correction.container {
        Some(container) => *container == executor.key.container,
        None => true,
    };
    let Some(executor) = executor.filter(|executor| named(executor)) else {
        info!(
            framework_id = %correction.framework, executor_id = %correction.executor,
            "ignored a correction of an executor that is gone"
        );
        return CorrectionResult::Gone;
    };
    if let Err(reason) = check_correction(tasks, step, &executor, correction.action) {
        warn!(
            framework_id = %correction.framework, executor_id = %correction.executor,
            action = correction.action.as_str(), why = %correction.why, reason,
            "refused a correction"
        );
        return CorrectionResult::Refused;
    }
    info!(
        framework_id = %correction.framework, executor_id = %correction.executor,
        container_id = %executor.key.container, action = correction.action.as_str(),
        why = %correction.why, "correction"
    );
    match correction.action {
        estimators::Action::Kill => preempt(tasks, step, &executor, &correction.why.to_string()),
        estimators::Action::Freeze if executor.container.phase == Phase::Running => {
            freeze(tasks, step, &executor.key.container, true);
        }
        estimators::Action::Freeze => {}
        estimators::Action::Thaw => freeze(tasks, step, &executor.key.container, false),
    }
    CorrectionResult::Done
}

fn check_correction(
    tasks: &Tasks,
    step: &Step<'_>,
    executor: &Executor,
    action: estimators::Action,
) -> Result<(), &'static str> {
    match action {
        // A thaw is always permitted, whatever resources the executor holds by now.
        estimators::Action::Thaw if tasks.corrections.is_frozen(&executor.key.container) => Ok(()),
        estimators::Action::Freeze => check_freezable(step.now, executor),
        estimators::Action::Thaw | estimators::Action::Kill => check_revocable(executor),
    }
}

/// Thaws containers that must not stay frozen: their last revocable task has ended, or they are to end.
pub(super) fn thaw_exempt(tasks: &mut Tasks, step: &mut Step<'_>) {
    let is_exempt = |container: &&ContainerId| {
        let executor = tasks.runs.executor_of(container);
        executor.is_none_or(|executor| check_freezable(step.now, &executor).is_err())
    };
    let frozen = tasks.corrections.frozen().iter();
    let exempt: Vec<ContainerId> = frozen.filter(is_exempt).cloned().collect();
    for container in exempt {
        freeze(tasks, step, &container, false);
    }
}

fn freeze(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId, frozen: bool) {
    let last_probe = tasks.probes.last();
    tasks
        .corrections
        .set_frozen(step, container, frozen, last_probe);
}

/// Thaws a container that is to be killed, or whose executor must receive a kill, a shutdown or a task: a frozen
/// container cannot receive anything.
pub(super) fn thaw(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    if tasks.corrections.frozen().is_empty() {
        return;
    }
    let outer = tasks
        .runs
        .executor_of(container)
        .map(|executor| executor.key.container.clone());
    for container in outer.iter().chain([container]) {
        if tasks.corrections.is_frozen(container) {
            freeze(tasks, step, container, false);
        }
    }
}

/// Thaws a container whose kill overtakes the outputs that wait for the disk, since its thaw may be among these
/// outputs.
pub(super) fn thaw_overdue(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    let executor = tasks.runs.executor_of(container);
    let outer = executor.map(|executor| executor.key.container.clone());
    let outer = outer.filter(|outer| outer != container);
    for frozen in outer.iter().chain([container]) {
        if tasks.corrections.has_touched(frozen) {
            step.output_now(
                Destination::Overdue(container.clone()),
                ContainerAction::Freeze {
                    container: frozen.clone(),
                    frozen: false,
                },
            );
        }
    }
}

fn preempt(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Arc<Executor>, why: &str) {
    let container = executor.key.container.clone();
    if tasks.corrections.note_eviction(container, why) {
        step.counters.executors_preempted += 1;
    }
    if let Some(task) = executor.command_task().cloned() {
        let executor = executor.clone();
        let task_ref = TaskRef { executor, task };
        return kill::kill(tasks, step, &task_ref, KillCause::Preempted, Duration::ZERO);
    }
    thaw(tasks, step, &executor.key.container);
    let (state, message) = (tasks.runs.gone_or_lost(&executor.key), preempted(Some(why)));
    reconcile::terminate_executor(
        tasks,
        step,
        executor,
        state,
        Reason::ContainerPreempted,
        message,
    );
}

/// The state and reason for the tasks of an executor that was evicted; `None` if it was not.
pub(super) fn preemption_of(tasks: &Tasks, executor: &Executor) -> Option<TerminationReason> {
    let termination_reason = executor.link.termination_reason();
    if let Some(termination_reason) = termination_reason
        .filter(|termination_reason| termination_reason.reason == Reason::ContainerPreempted)
    {
        return Some(termination_reason.clone());
    }
    let kill = executor.container.kill;
    kill.filter(|kill| kill.cause == KillCause::Preempted)?;
    // The kill survives a restart, but not its reason.
    let why = tasks.corrections.evicted.get(&executor.key.container);
    Some(TerminationReason {
        state: tasks.runs.gone_or_lost(&executor.key),
        reason: Reason::ContainerPreempted,
        message: preempted(why.map(String::as_str)),
    })
}

/// Handles a failed freeze, for lack of a freezer or after an error: thaws the container in case another freeze
/// succeeded meanwhile.
pub(super) fn freeze_failed(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    if tasks.corrections.is_frozen(container) {
        freeze(tasks, step, container, false);
    }
}

/// Thaws all containers, since no controller would thaw them while the agent is away.
pub(super) fn thaw_all(tasks: &mut Tasks, step: &mut Step<'_>) {
    for container in tasks.corrections.frozen().clone() {
        freeze(tasks, step, &container, false);
    }
}

/// Lifts all throttles after a restart; the controller decides again.
pub(super) fn release_revocable(tasks: &mut Tasks, step: &mut Step<'_>) {
    let throttle_revocable = ContainerAction::ThrottleRevocable {
        cpus_millis: None,
        memory_ceiling_bytes: None,
    };
    step.output_now(Destination::Revocable, throttle_revocable);
    // Also containers without revocable resources: they may have been frozen while they had some.
    let held: Vec<_> = tasks
        .runs
        .all_executors()
        .filter(|executor| executor.is_live())
        .map(|executor| executor.key.container.clone())
        .collect();
    for container in held {
        freeze(tasks, step, &container, false);
    }
}

fn check_revocable(executor: &Executor) -> Result<(), &'static str> {
    if executor.allocated().revocable().is_empty() {
        return Err("it has no revocable resources");
    }
    Ok(())
}

/// Checks that a container may be frozen. An ending container, or one with an ending task, must receive the kill and
/// use its grace period. A container with a task in delivery must receive that task. Launches by the agent inside the
/// container need no exception: the containerizer thaws the container meanwhile.
fn check_freezable(now: Now, executor: &Executor) -> Result<(), &'static str> {
    check_revocable(executor)?;
    let live = || executor.tasks.values().filter(|task| !task.is_terminal());
    let is_ending = |task: &Task| {
        let nested = task.nested.as_ref();
        task.kill_asked.is_some() || nested.is_some_and(|nested| nested.kill.is_some())
    };
    if executor.container.kill.is_some() || live().any(|task| is_ending(task)) {
        return Err("the container, or one of its tasks, is ending");
    }
    let is_given = executor.link.has_accepted_within(now.moment, GIVEN_WITHIN);
    let awaits_task = executor.kind == ExecutorKind::Custom && live().any(|task| !task.delivered);
    if is_given && awaits_task {
        return Err("it is being given a task");
    }
    Ok(())
}

fn preempted(why: Option<&str>) -> String {
    match why {
        Some(why) => format!("Container preempted by QoS correction: {why}"),
        None => "Container preempted by QoS correction".to_owned(),
    }
}
