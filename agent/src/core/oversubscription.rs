//! Oversubscription in the core: reports the total to the master and carries out QoS corrections.
//!
//! The service queries the estimator and the controller once for each sample, and passes their answers to the core as a
//! [`Report`]. The core sends the master a new total every `--oversubscribed_resources_interval`, and at once when the
//! offers must stop. It also carries out the corrections. Invariants: a container without revocable resources is never
//! touched, even if a controller names it; no container stays frozen that must learn of its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_estimators as estimators;
use meseta_estimators::{Assessment, Correction, DetectorReading, Estimate, Forecast, Throttle};
use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Moment, Now, Resources};
use tracing::{info, warn};

use super::model::{Executor, ExecutorKind, Phase, Task, TaskRef, TerminationReason};
use super::probe::ProbeId;
use super::{Agent, ContainerAction, Destination, State, Step};
use crate::checkpoint::KillCause;

const MILLIS_PER_CPU: f64 = 1000.0;
/// The longest time that an undelivered task protects a custom executor from being frozen, even if the executor never
/// takes the task.
const GIVEN_WITHIN: Duration = Duration::from_secs(30);
/// More than the processors of any machine, and exact in a double.
const THROTTLE_CPUS_MAX: f64 = 1e6;

/// The results of the estimator and the controller for one sample.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The resources of revocable tasks in that sample.
    pub allocated: Resources,
    /// The estimator's answer, unless it was not queried.
    pub estimate: Option<Estimate>,
    /// The controller's answer, unless it was not queried.
    pub assessment: Option<Assessment>,
}

/// The current state of the oversubscription.
#[derive(Clone, Debug, Default)]
pub struct Oversubscription {
    /// The newest estimated total: the allocated revocable resources plus those that could be added.
    pub estimated: Option<Resources>,
    /// The total for the master, sent now or at the next registration.
    pub total: Option<Resources>,
    /// The forecast for each measured resource, on which the estimate is based.
    pub forecasts: Vec<Forecast>,
    /// The reason why fewer resources are oversubscribed than possible.
    pub held_back: Option<String>,
    /// The reason why no resources are offered.
    pub stopped: Option<String>,
    /// The limits for all revocable work together.
    pub throttle: Option<Throttle>,
    /// The memory ceiling set in the kernel for that work.
    pub memory_ceiling_bytes: Option<u64>,
    /// The last reading of each detector.
    pub readings: Vec<DetectorReading>,
    /// Containers that are frozen.
    pub frozen: BTreeSet<ContainerId>,
    /// The last probe begun before each executor's container was last frozen or thawed.
    stood_still: BTreeMap<ContainerId, ProbeId>,
    /// The reasons of the evictions, for containers that are ending.
    pub preempted: BTreeMap<ContainerId, String>,
    /// Corrections carried out, by detector and action.
    pub corrections: BTreeMap<(&'static str, &'static str), u64>,
    /// Corrections that named no container that may be touched.
    pub corrections_refused: u64,
    /// The number of totals sent to the master.
    pub updates: u64,
    /// The last total sent on this connection.
    told: Option<Resources>,
    /// The time when the next total may be sent.
    due: Option<Moment>,
}

impl Agent {
    pub(super) fn oversubscribe(&mut self, step: &mut Step<'_>, report: Report) {
        if matches!(
            self.lifecycle.state(),
            State::Recovering | State::Terminating
        ) {
            return;
        }
        let was_open = self.oversubscription.stopped.is_none();
        if let Some(assessment) = report.assessment {
            self.apply_assessment(step, assessment);
        }
        if let Some(estimate) = report.estimate {
            self.estimated(&report.allocated, estimate);
        }
        self.thaw_exempt(step);
        let closes = was_open && self.oversubscription.stopped.is_some();
        if closes {
            // The estimate for this sample may ignore the stop.
            self.oversubscription.estimated = Some(Resources::new());
        }
        let due = self
            .oversubscription
            .due
            .is_none_or(|due| due <= step.now.moment);
        if self.oversubscription.estimated.is_some() && (due || closes) {
            self.oversubscription.due =
                Some(step.now.moment + step.options.oversubscribed_resources_interval);
            self.publish(step);
        }
    }

    fn estimated(&mut self, allocated: &Resources, estimate: Estimate) {
        let state = &mut self.oversubscription;
        state.forecasts = estimate.forecasts;
        state.held_back = estimate.held_back;
        let Some(free) = estimate.oversubscribable else {
            return;
        };
        if state.stopped.is_some() {
            // Ignores the estimate. If the total included the resources in use, they would be offered again as soon as
            // their tasks end or are evicted. Running tasks keep their resources under any total.
            state.estimated = Some(Resources::new());
            return;
        }
        let mut total = allocated.clone();
        for resource in free.iter() {
            let oversubscribed = resource.is_revocable()
                && !resource.is_reserved()
                && !resource.is_persistent_volume();
            if oversubscribed {
                total.insert(resource.clone());
            } else {
                warn!(%resource, "an estimator offered a resource that cannot be oversubscribed");
            }
        }
        state.estimated = Some(total);
    }

    /// Makes the newest estimate the total, and sends it to the master if it has changed.
    fn publish(&mut self, step: &mut Step<'_>) {
        let state = &mut self.oversubscription;
        if state.total != state.estimated {
            state.total = state.estimated.clone();
        }
        if self.lifecycle.is_running() && self.oversubscription.told != self.oversubscription.total
        {
            self.tell_total(step);
        }
    }

    /// Called after every registration: the master may have another total, or none.
    pub(super) fn tell_total(&mut self, step: &mut Step<'_>) {
        let Some(total) = self.oversubscription.total.clone() else {
            return;
        };
        let resources = match convert::to_resources(&total, Format::PostRefinement) {
            Ok(resources) => resources,
            Err(error) => return warn!(%error, "the estimate cannot be told"),
        };
        info!(%total, "reporting revocable resources to the master");
        self.oversubscription.told = Some(total);
        self.oversubscription.updates += 1;
        step.send(ToMaster::AgentUpdate(wire::AgentUpdate {
            oversubscribed: Some(wire::OversubscribedTotal { resources }),
        }));
    }

    /// Applies the controller's assessment.
    fn apply_assessment(&mut self, step: &mut Step<'_>, assessment: Assessment) {
        let state = &mut self.oversubscription;
        let stopped = assessment.stop_offering.as_ref().map(ToString::to_string);
        match (&state.stopped, &stopped) {
            (None, Some(why)) => info!(why, "no more revocable resources are offered"),
            (Some(_), None) => info!("revocable resources may be offered again"),
            _ => {}
        }
        state.stopped = stopped;
        state.readings = assessment.readings;
        self.throttle_revocable(step, assessment.throttle, assessment.memory_ceiling_bytes);
        for correction in assessment.corrections {
            self.correct(step, &correction);
        }
    }

    fn throttle_revocable(
        &mut self,
        step: &mut Step<'_>,
        throttle: Option<Throttle>,
        memory_ceiling_bytes: Option<u64>,
    ) {
        let state = &mut self.oversubscription;
        let before = state.throttle.as_ref().map(|throttle| throttle.cpus);
        match (before, &throttle) {
            (None, Some(throttle)) => {
                info!(cpus = throttle.cpus, why = %throttle.why, "revocable work is throttled");
                let key = (throttle.why.detector, "throttle");
                *state.corrections.entry(key).or_default() += 1;
            }
            (Some(_), None) => info!("revocable work is throttled no more"),
            _ => {}
        }
        let after = throttle.as_ref().map(|throttle| throttle.cpus);
        let same = before == after && state.memory_ceiling_bytes == memory_ceiling_bytes;
        state.throttle = throttle;
        state.memory_ceiling_bytes = memory_ceiling_bytes;
        if !same {
            let cpus_millis = after.map(millis);
            step.output_now(
                Destination::Revocable,
                ContainerAction::ThrottleRevocable {
                    cpus_millis,
                    memory_ceiling_bytes,
                },
            );
        }
    }

    /// Carries out one correction, if it names a container that may be touched.
    fn correct(&mut self, step: &mut Step<'_>, correction: &Correction) {
        let executor = self
            .frameworks
            .get(&correction.framework)
            .and_then(|framework| framework.executors.get(&correction.executor))
            .filter(|executor| executor.is_live())
            .cloned();
        let named = |executor: &Executor| match &correction.container {
            Some(container) => *container == executor.key.container,
            None => true,
        };
        let Some(executor) = executor.filter(|executor| named(executor)) else {
            // The executor has ended, or is in another container by now.
            info!(
                framework_id = %correction.framework, executor_id = %correction.executor,
                "ignored a correction of an executor that is gone"
            );
            return;
        };
        if let Err(reason) = self.check_correction(step, &executor, correction.action) {
            self.oversubscription.corrections_refused += 1;
            warn!(
                framework_id = %correction.framework, executor_id = %correction.executor,
                action = correction.action.as_str(), why = %correction.why, reason,
                "refused a correction"
            );
            return;
        }
        info!(
            framework_id = %correction.framework, executor_id = %correction.executor,
            container_id = %executor.key.container, action = correction.action.as_str(),
            why = %correction.why, "correction"
        );
        let key = (correction.why.detector, correction.action.as_str());
        *self.oversubscription.corrections.entry(key).or_default() += 1;
        match correction.action {
            estimators::Action::Kill => self.preempt(step, &executor, &correction.why.to_string()),
            estimators::Action::Freeze if executor.container.phase == Phase::Running => {
                self.freeze(step, &executor.key.container, true);
            }
            estimators::Action::Freeze => {}
            estimators::Action::Thaw => self.freeze(step, &executor.key.container, false),
        }
    }

    fn check_correction(
        &self,
        step: &Step<'_>,
        executor: &Executor,
        action: estimators::Action,
    ) -> Result<(), &'static str> {
        match action {
            // A thaw is always permitted, whatever resources the executor holds by now.
            estimators::Action::Thaw if self.is_frozen(executor) => Ok(()),
            estimators::Action::Freeze => check_freezable(step.now, executor),
            estimators::Action::Thaw | estimators::Action::Kill => check_revocable(executor),
        }
    }

    /// Thaws containers that must not stay frozen: their last revocable task has ended, or they are to end.
    fn thaw_exempt(&mut self, step: &mut Step<'_>) {
        let is_exempt = |container: &&ContainerId| {
            let executor = self.executor_of(container);
            executor.is_none_or(|executor| check_freezable(step.now, &executor).is_err())
        };
        let frozen = self.oversubscription.frozen.iter();
        let exempt: Vec<ContainerId> = frozen.filter(is_exempt).cloned().collect();
        for container in exempt {
            self.freeze(step, &container, false);
        }
    }

    fn freeze(&mut self, step: &mut Step<'_>, container: &ContainerId, frozen: bool) {
        if frozen {
            self.oversubscription.frozen.insert(container.clone());
        } else {
            self.oversubscription.frozen.remove(container);
        }
        let last = ProbeId(self.probes);
        self.oversubscription
            .stood_still
            .insert(container.clone(), last);
        step.output_now(
            Destination::Container(container.clone()),
            ContainerAction::Freeze {
                container: container.clone(),
                frozen,
            },
        );
    }

    /// Thaws a container that is to be killed, or whose executor must receive a kill, a shutdown or a task: a frozen
    /// container cannot receive anything.
    pub(super) fn thaw(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        if self.oversubscription.frozen.is_empty() {
            return;
        }
        let outer = self
            .executor_of(container)
            .map(|executor| executor.key.container.clone());
        for container in outer.iter().chain([container]) {
            if self.oversubscription.frozen.contains(container) {
                self.freeze(step, container, false);
            }
        }
    }

    /// Thaws a container whose kill overtakes the outputs that wait for the disk, since its thaw may be among these
    /// outputs.
    pub(super) fn thaw_overdue(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        let executor = self.executor_of(container);
        let outer = executor.map(|executor| executor.key.container.clone());
        let outer = outer.filter(|outer| outer != container);
        for frozen in outer.iter().chain([container]) {
            if self.oversubscription.stood_still.contains_key(frozen) {
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

    fn preempt(&mut self, step: &mut Step<'_>, executor: &std::sync::Arc<Executor>, why: &str) {
        let container = executor.key.container.clone();
        let reasons = &mut self.oversubscription.preempted;
        if reasons.insert(container, why.to_owned()).is_none() {
            step.counters.executors_preempted += 1;
        }
        if let Some(task) = executor.command_task().cloned() {
            let executor = executor.clone();
            let task_ref = TaskRef { executor, task };
            return self.kill(
                step,
                &task_ref,
                KillCause::Preempted,
                std::time::Duration::ZERO,
            );
        }
        self.thaw(step, &executor.key.container);
        let (state, message) = (self.gone_or_lost(&executor.key), preempted(Some(why)));
        self.terminate_executor(step, executor, state, Reason::ContainerPreempted, message);
    }

    /// The state and reason for the tasks of an executor that was evicted; `None` if it was not.
    pub(super) fn preemption_of(&self, executor: &Executor) -> Option<TerminationReason> {
        let termination_reason = executor.link.termination_reason.as_ref();
        if let Some(termination_reason) = termination_reason
            .filter(|termination_reason| termination_reason.reason == Reason::ContainerPreempted)
        {
            return Some(termination_reason.clone());
        }
        let kill = executor.container.kill;
        kill.filter(|kill| kill.cause == KillCause::Preempted)?;
        // The kill survives a restart, but not its reason.
        let why = self.oversubscription.preempted.get(&executor.key.container);
        Some(TerminationReason {
            state: self.gone_or_lost(&executor.key),
            reason: Reason::ContainerPreempted,
            message: preempted(why.map(String::as_str)),
        })
    }

    /// Handles a failed freeze, for lack of a freezer or after an error: thaws the container in case another freeze
    /// succeeded meanwhile.
    pub(super) fn freeze_failed(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        if self.oversubscription.frozen.contains(container) {
            self.freeze(step, container, false);
        }
    }

    /// Whether the tasks of an executor are frozen now.
    pub(super) fn is_frozen(&self, executor: &Executor) -> bool {
        let frozen = &self.oversubscription.frozen;
        frozen.contains(&executor.key.container)
    }

    /// Whether a task was frozen during a probe.
    pub(super) fn stood_still(&self, executor: &Executor, probe: ProbeId) -> bool {
        let last = self
            .oversubscription
            .stood_still
            .get(&executor.key.container);
        last.is_some_and(|last| probe <= *last)
    }

    /// Thaws all containers, since no controller would thaw them while the agent is away.
    pub(super) fn thaw_all(&mut self, step: &mut Step<'_>) {
        for container in self.oversubscription.frozen.clone() {
            self.freeze(step, &container, false);
        }
    }

    /// Forgets the state of a container that is gone.
    pub(super) fn forget_revocable(&mut self, container: &ContainerId) {
        self.oversubscription.frozen.remove(container);
        self.oversubscription.stood_still.remove(container);
        self.oversubscription.preempted.remove(container);
    }

    /// Lifts all throttles after a restart; the controller decides again.
    pub(super) fn release_revocable(&mut self, step: &mut Step<'_>) {
        let throttle_revocable = ContainerAction::ThrottleRevocable {
            cpus_millis: None,
            memory_ceiling_bytes: None,
        };
        step.output_now(Destination::Revocable, throttle_revocable);
        // Also containers without revocable resources: they may have been frozen while they had some.
        let held: Vec<_> = self
            .all_executors()
            .filter(|executor| executor.is_live())
            .map(|executor| executor.key.container.clone())
            .collect();
        for container in held {
            self.freeze(step, &container, false);
        }
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
    let given_at = executor.link.given_at;
    let is_given = given_at.is_some_and(|at| now.moment.saturating_since(at) < GIVEN_WITHIN);
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

fn millis(cpus: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "finite, positive and bounded after the clamp"
    )]
    let millis = (cpus.clamp(0.0, THROTTLE_CPUS_MAX) * MILLIS_PER_CPU) as u64;
    millis
}
