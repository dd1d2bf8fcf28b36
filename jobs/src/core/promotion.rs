//! Canaries, and the promotion of an update beyond them.

use std::time::Duration;

use super::input::Refusal;
use super::job::Job;
use super::names::plain;
use super::service;
use crate::spec::Kind;

/// # Errors
/// The update of a job has no canaries that could be promoted, or some are not healthy yet.
pub(super) fn check_canaries(job: &Job, at: Duration) -> Result<(), Refusal> {
    let (name, rollout) = (plain(&job.name), job.record.rollout.as_ref());
    let refused = |text: String| Err(Refusal::Conflict(text));
    let Some(rollout) = rollout else {
        return refused(format!("{name:?} is not being updated"));
    };
    if let Some(why) = &rollout.halted {
        return refused(format!("the update of {name:?} was given up: {why}"));
    }
    let Some((Kind::Service(service), count)) = job.spec().map(|spec| (&spec.kind, spec.count))
    else {
        return refused(format!("{name:?} is not a service"));
    };
    let canaries = service.update.canary.min(count);
    if rollout.reverting || canaries == 0 {
        return refused(format!("the update of {name:?} has no canaries"));
    }
    let plan = service::plan(job, at);
    if rollout.promoted || plan.awaits_promotion {
        return Ok(());
    }
    let healthy = plan.new_healthy;
    refused(format!(
        "{healthy} of {canaries} canaries of {name:?} are healthy: promote it once all are"
    ))
}
