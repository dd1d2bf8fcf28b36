//! The differences between two specifications of a job, as far as they concern its running instances.

use super::job::Job;
use super::launch::placed_of;
use super::records::Size;
use crate::placement;
use crate::spec::{JobSpec, Kind, Update};

/// Whether two specifications differ in nothing that a running instance depends on.
pub(super) fn same_but_size(present: &JobSpec, spec: &JobSpec) -> bool {
    Size::from_spec(spec).applied(present) == *spec
}

pub(super) fn update_of(spec: &JobSpec) -> Option<Update> {
    match &spec.kind {
        Kind::Service(service) => Some(service.update),
        _ => None,
    }
}

/// Whether a new specification of a service leaves running instances as they are: it differs only in size, in update
/// and restart settings, and in constraints that the instances meet.
pub(super) fn concerns_no_task(job: &Job, spec: &JobSpec) -> bool {
    let Some(present) = job.spec() else {
        return false;
    };
    let (Kind::Service(_), Kind::Service(_)) = (&present.kind, &spec.kind) else {
        return false;
    };
    let as_present = JobSpec {
        kind: present.kind.clone(),
        constraints: present.constraints.clone(),
        ..spec.clone()
    };
    if !same_but_size(present, &as_present) {
        return false;
    }
    let tasks = job.tasks.values().filter(|task| task.killing.is_none());
    let placed: Vec<_> = tasks.map(placed_of).collect();
    present.constraints == spec.constraints || placement::are_met(spec, &placed)
}
