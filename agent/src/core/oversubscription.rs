//! Oversubscription in the core: the total of revocable resources, and the limits of all revocable work.
//!
//! The service queries the estimator and the controller once for each sample, and passes their answers to the core as a
//! [`Report`]. The core sends the master a new total every `--oversubscribed_resources_interval`, and at once when the
//! offers must stop. The corrections of single containers are carried out by `corrections.rs`. Invariant: no total
//! includes resources that may not be oversubscribed.

use std::collections::BTreeMap;

use meseta_estimators::{Assessment, Correction, DetectorReading, Estimate, Forecast, Throttle};
use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_resources::{Moment, Resources};
use tracing::{info, warn};

use super::corrections::CorrectionResult;
use super::{ContainerAction, Destination, Step};

const MILLIS_PER_CPU: f64 = 1000.0;
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
    estimated: Option<Resources>,
    total: Option<Resources>,
    forecasts: Vec<Forecast>,
    held_back: Option<String>,
    stopped: Option<String>,
    throttle: Option<Throttle>,
    memory_ceiling_bytes: Option<u64>,
    readings: Vec<DetectorReading>,
    corrections: BTreeMap<(&'static str, &'static str), u64>,
    corrections_refused: u64,
    updates: u64,
    /// The last total sent on this connection.
    told: Option<Resources>,
    /// The time when the next total may be sent.
    due: Option<Moment>,
}

impl Oversubscription {
    /// The total for the master, sent now or at the next registration.
    pub fn total(&self) -> Option<&Resources> {
        self.total.as_ref()
    }

    /// The forecast for each measured resource, on which the estimate is based.
    pub fn forecasts(&self) -> &[Forecast] {
        &self.forecasts
    }

    /// The reason why fewer resources are oversubscribed than possible.
    pub fn held_back(&self) -> Option<&str> {
        self.held_back.as_deref()
    }

    /// The reason why no resources are offered.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// The limits for all revocable work together.
    pub fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    /// The memory ceiling set in the kernel for that work.
    pub fn memory_ceiling_bytes(&self) -> Option<u64> {
        self.memory_ceiling_bytes
    }

    /// The last reading of each detector.
    pub fn readings(&self) -> &[DetectorReading] {
        &self.readings
    }

    /// Corrections carried out, by detector and action.
    pub fn corrections(&self) -> &BTreeMap<(&'static str, &'static str), u64> {
        &self.corrections
    }

    /// Corrections that named no container that may be touched.
    pub fn corrections_refused(&self) -> u64 {
        self.corrections_refused
    }

    /// The number of totals sent to the master.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Whether revocable resources may be offered.
    pub(super) fn is_open(&self) -> bool {
        self.stopped.is_none()
    }

    /// Applies the controller's assessment. Returns its corrections.
    #[must_use]
    pub(super) fn assess(
        &mut self,
        step: &mut Step<'_>,
        assessment: Assessment,
    ) -> Vec<Correction> {
        let stopped = assessment.stop_offering.as_ref().map(ToString::to_string);
        match (&self.stopped, &stopped) {
            (None, Some(why)) => info!(why, "no more revocable resources are offered"),
            (Some(_), None) => info!("revocable resources may be offered again"),
            _ => {}
        }
        self.stopped = stopped;
        self.readings = assessment.readings;
        self.throttle_revocable(step, assessment.throttle, assessment.memory_ceiling_bytes);
        assessment.corrections
    }

    fn throttle_revocable(
        &mut self,
        step: &mut Step<'_>,
        throttle: Option<Throttle>,
        memory_ceiling_bytes: Option<u64>,
    ) {
        let before = self.throttle.as_ref().map(|throttle| throttle.cpus);
        match (before, &throttle) {
            (None, Some(throttle)) => {
                info!(cpus = throttle.cpus, why = %throttle.why, "revocable work is throttled");
                let key = (throttle.why.detector, "throttle");
                *self.corrections.entry(key).or_default() += 1;
            }
            (Some(_), None) => info!("revocable work is throttled no more"),
            _ => {}
        }
        let after = throttle.as_ref().map(|throttle| throttle.cpus);
        let same = before == after && self.memory_ceiling_bytes == memory_ceiling_bytes;
        self.throttle = throttle;
        self.memory_ceiling_bytes = memory_ceiling_bytes;
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

    /// Counts a correction.
    pub(super) fn count_correction(&mut self, correction: &Correction, result: CorrectionResult) {
        match result {
            CorrectionResult::Gone => {}
            CorrectionResult::Refused => self.corrections_refused += 1,
            CorrectionResult::Done => {
                let key = (correction.why.detector, correction.action.as_str());
                *self.corrections.entry(key).or_default() += 1;
            }
        }
    }

    /// Takes the estimator's answer for a sample with these allocated resources.
    pub(super) fn note_estimate(&mut self, allocated: &Resources, estimate: Estimate) {
        self.forecasts = estimate.forecasts;
        self.held_back = estimate.held_back;
        let Some(free) = estimate.oversubscribable else {
            return;
        };
        if !self.is_open() {
            // Ignores the estimate. If the total included the resources in use, they would be offered again as soon as
            // their tasks end or are evicted. Running tasks keep their resources under any total.
            self.estimated = Some(Resources::new());
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
        self.estimated = Some(total);
    }

    /// Makes the newest estimate the total once it is due, or at once if the offers have stopped. `was_open` shows whether
    /// resources were offered before this sample.
    pub(super) fn publish(&mut self, step: &mut Step<'_>, was_open: bool, is_running: bool) {
        let closes = was_open && !self.is_open();
        if closes {
            // The estimate for this sample may ignore the stop.
            self.estimated = Some(Resources::new());
        }
        let due = self.due.is_none_or(|due| due <= step.now.moment);
        if self.estimated.is_none() || !(due || closes) {
            return;
        }
        self.due = Some(step.now.moment + step.options.oversubscribed_resources_interval);
        if self.total != self.estimated {
            self.total = self.estimated.clone();
        }
        if is_running && self.told != self.total {
            self.send_total(step);
        }
    }

    /// Sends the total to the master. Called after every registration: the master may have another total, or none.
    pub(super) fn send_total(&mut self, step: &mut Step<'_>) {
        let Some(total) = self.total.clone() else {
            return;
        };
        let resources = match convert::to_resources(&total, Format::PostRefinement) {
            Ok(resources) => resources,
            Err(error) => return warn!(%error, "the estimate cannot be told"),
        };
        info!(%total, "reporting revocable resources to the master");
        self.told = Some(total);
        self.updates += 1;
        step.send(ToMaster::AgentUpdate(wire::AgentUpdate {
            oversubscribed: Some(wire::OversubscribedTotal { resources }),
        }));
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
