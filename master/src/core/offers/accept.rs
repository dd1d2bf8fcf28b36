//! ACCEPT and DECLINE: from offers to tasks.
//!
//! The operations of an ACCEPT apply in order to the resources of its offers; each fails alone. The remaining
//! resources return with the call's filter. Invariant: a launched task uses only resources that were offered to this
//! framework in this call.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::offer::{Operation, operation};
use meseta_proto::mesos::v1::scheduler::{call, event};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{OperationState, TaskInfo, TaskState};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{AgentId, FrameworkId, OfferId, Resources, Role};

use crate::core::answer::Answer;
use crate::core::master::MasterCore;
use crate::core::state::offer::{Offer, RefuseFilter};
use crate::core::state::operation::{OPERATIONS_PER_ACCEPT_MAX, RESOURCES_PER_ACCEPT_MAX};
use crate::core::tasks::status::MasterTaskStatus;
use crate::core::wire::event_of;

/// The number of offers in one ACCEPT, all of one agent.
const OFFERS_PER_ACCEPT_MAX: usize = 4_096;
/// The number of offers in one DECLINE, or of inverse offers in one answer: several from every agent of a large
/// cluster.
pub(super) const OFFERS_PER_ANSWER_MAX: usize = 100_000;
/// The number of tasks in one ACCEPT: as many as a 32 MiB body reasonably holds.
const TASKS_PER_ACCEPT_MAX: usize = 10_000;

/// The longest rejection reason in bytes: a reason may repeat the framework's input, and goes out once per task or
/// operation.
const REASON_BYTES_MAX: usize = 1_024;

/// The filter's duration unless the framework gives one: the default of Mesos.
const REFUSE_DEFAULT: Duration = Duration::from_secs(5);
const REFUSE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The resources that an ACCEPT works on: the sum of its offers.
pub(in crate::core) struct AcceptedOffers {
    pub(in crate::core) agent: AgentId,
    pub(in crate::core) role: Role,
    /// The resources as offered.
    pub(in crate::core) offered: Resources,
    pub(in crate::core) remaining: Resources,
    /// Resources made by operations, for a later offer only.
    pub(in crate::core) for_later_offers: Resources,
    /// Shared volumes offered or made in this call: each task may hold a copy.
    pub(in crate::core) shared: Resources,
    /// The number of resources that the operations have scanned.
    pub(in crate::core) resources_scanned: usize,
    /// The size in bytes of the launches in the form sent to the agent.
    pub(in crate::core) launch_bytes: usize,
}

impl AcceptedOffers {
    /// The resources for the next task: the remaining ones, and a copy of each shared volume.
    pub(in crate::core) fn available(&self) -> Cow<'_, Resources> {
        let mut available = Cow::Borrowed(&self.remaining);
        for volume in &self.shared {
            if !available.contains_resource(volume) {
                available.to_mut().insert(volume.clone());
            }
        }
        available
    }
}

impl MasterCore {
    pub(in crate::core) fn accept(
        &mut self,
        framework: &FrameworkId,
        call: call::Accept,
    ) -> Answer {
        if let Err(invalid) = check_size(&call) {
            return invalid.into();
        }
        let offers = match self.valid_offers(framework, &call.offer_ids) {
            Ok(offers) => offers,
            Err(reason) => {
                self.refuse_accept(framework, &call, reason.as_str());
                return Answer::Accepted;
            }
        };
        let Some(mut accepted_offers) = self.take_offers(&offers) else {
            return Answer::Accepted;
        };
        let accepted = u64::try_from(offers.len()).unwrap_or(u64::MAX);
        self.counters.offers_accepted += accepted;
        if let Some(framework) = self.frameworks.get_mut(framework) {
            framework.counters().offers_accepted += accepted;
        }
        for operation in call.operations {
            self.apply(framework, &mut accepted_offers, operation);
        }
        let refuse_filter = refuse_filter(call.filters.as_ref());
        // Resources converted by operations are offered again at once.
        let converted = &accepted_offers.remaining - &accepted_offers.offered;
        let untouched = &accepted_offers.remaining - &converted;
        let converted = converted + &accepted_offers.for_later_offers;
        if !converted.is_empty() {
            self.allocate_due = true;
        }
        self.recover_resources(
            framework,
            &accepted_offers.agent,
            &converted,
            RefuseFilter::None,
        );
        self.recover_resources(framework, &accepted_offers.agent, &untouched, refuse_filter);
        Answer::Accepted
    }

    pub(in crate::core) fn decline(
        &mut self,
        framework: &FrameworkId,
        call: &call::Decline,
    ) -> Answer {
        if call.offer_ids.len() > OFFERS_PER_ANSWER_MAX {
            return Answer::BadRequest(format!(
                "A DECLINE may name at most {OFFERS_PER_ANSWER_MAX} offers"
            ));
        }
        let refuse_filter = refuse_filter(call.filters.as_ref());
        for id in &call.offer_ids {
            let Ok(id) = OfferId::new(&id.value) else {
                continue;
            };
            if self
                .offers
                .get(&id)
                .is_some_and(|offer| offer.framework_id == *framework)
            {
                self.end_offer(&id, refuse_filter);
                self.counters.offers_declined += 1;
                if let Some(framework) = self.frameworks.get_mut(framework) {
                    framework.counters().offers_declined += 1;
                }
            }
        }
        Answer::Accepted
    }

    /// The offers of a call, if this framework can use all of them together.
    fn valid_offers(
        &self,
        framework: &FrameworkId,
        ids: &[v1::OfferId],
    ) -> Result<Vec<Arc<Offer>>, Invalid> {
        if ids.is_empty() {
            return Err(invalid!("No offers specified"));
        }
        let mut seen = BTreeSet::new();
        let mut offers: Vec<Arc<Offer>> = Vec::with_capacity(ids.len());
        for id in ids {
            if !seen.insert(id.value.as_str()) {
                return Err(invalid!(
                    "Duplicate offer {} in offer list",
                    id.value.escape_debug()
                ));
            }
        }
        for id in ids {
            let offer = self
                .offers
                .get(id.value.as_str())
                .ok_or_else(|| format!("Offer {} is no longer valid", id.value.escape_debug()))?;
            if offer.framework_id != *framework {
                return Err(invalid!(
                    "Offer {} has invalid framework {} while framework {framework} is expected",
                    offer.id,
                    offer.framework_id
                ));
            }
            if let Some(first) = offers.first() {
                if first.role != offer.role {
                    return Err(invalid!(
                        "Aggregated offers must be allocated to the same role. Offer {} uses role \
                         '{}' but another is using role '{}'",
                        offer.id,
                        offer.role,
                        first.role
                    ));
                }
                if first.agent_id != offer.agent_id {
                    return Err(invalid!(
                        "Aggregated offers must belong to one single agent. Offer {} uses agent \
                         {} and agent {}",
                        offer.id,
                        offer.agent_id,
                        first.agent_id
                    ));
                }
            }
            offers.push(offer.clone());
        }
        Ok(offers)
    }

    fn take_offers(&mut self, offers: &[Arc<Offer>]) -> Option<AcceptedOffers> {
        let first = offers.first()?;
        let mut accepted_offers = AcceptedOffers {
            agent: first.agent_id.clone(),
            role: first.role.clone(),
            offered: Resources::new(),
            remaining: Resources::new(),
            for_later_offers: Resources::new(),
            shared: Resources::new(),
            resources_scanned: 0,
            launch_bytes: 0,
        };
        for offer in offers {
            if let Some(offer) = self.take_offer(&offer.id) {
                accepted_offers.offered += &offer.resources;
            }
        }
        accepted_offers
            .remaining
            .clone_from(&accepted_offers.offered);
        accepted_offers.shared = accepted_offers.offered.shared();
        Some(accepted_offers)
    }

    /// Refuses the whole call: returns its offers, and sends the reason for each of its tasks.
    fn refuse_accept(&mut self, framework: &FrameworkId, call: &call::Accept, reason: &str) {
        for id in &call.offer_ids {
            let Ok(id) = OfferId::new(&id.value) else {
                continue;
            };
            if self
                .offers
                .get(&id)
                .is_some_and(|offer| offer.framework_id == *framework)
            {
                self.end_offer(&id, RefuseFilter::None);
            }
        }
        let state = self.state_for(framework, TaskState::TaskDropped);
        let message = shortened(format!("Task launched with invalid offers: {reason}"));
        let refusal = shortened(format!("Operation attempted with invalid offers: {reason}"));
        for operation in &call.operations {
            for task in tasks_of(operation) {
                self.send_master_status(
                    framework,
                    MasterTaskStatus {
                        task_id: &task.task_id.value,
                        agent_id: Some(&task.agent_id.value),
                        state,
                        reason: Reason::InvalidOffers,
                        message: message.clone(),
                    },
                );
            }
            if tasks_of(operation).is_empty() {
                self.refuse_operation(framework, operation, &refusal);
            }
        }
    }

    fn apply(
        &mut self,
        framework: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        operation: Operation,
    ) {
        let kind = operation
            .r#type
            .and_then(|kind| operation::Type::try_from(kind).ok());
        if let (Some(kind), Some(framework)) = (kind, self.frameworks.get_mut(framework)) {
            framework.counters().operation(kind);
        }
        match kind {
            Some(operation::Type::Launch) if operation.id.is_none() => {
                let tasks = operation
                    .launch
                    .map(|launch| launch.task_infos)
                    .unwrap_or_default();
                for task in tasks {
                    self.launch(framework, accepted_offers, task);
                }
            }
            Some(operation::Type::Launch) => self.refuse_tasks(
                framework,
                &operation,
                Reason::TaskInvalid,
                "The `id` field cannot be set on LAUNCH operations",
            ),
            Some(operation::Type::LaunchGroup) if operation.id.is_none() => {
                if let Some(group) = operation.launch_group {
                    self.launch_group(framework, accepted_offers, group);
                }
            }
            Some(operation::Type::LaunchGroup) => self.refuse_tasks(
                framework,
                &operation,
                Reason::TaskGroupInvalid,
                "The `id` field cannot be set on LAUNCH_GROUP operations",
            ),
            Some(operation::Type::CreateDisk | operation::Type::DestroyDisk) => self
                .refuse_operation(
                    framework,
                    &operation,
                    "'source' is not managed by a resource provider",
                ),
            Some(
                operation::Type::Reserve
                | operation::Type::Unreserve
                | operation::Type::Create
                | operation::Type::Destroy
                | operation::Type::GrowVolume
                | operation::Type::ShrinkVolume,
            ) => self.operate(framework, accepted_offers, &operation),
            Some(operation::Type::Unknown) | None => {
                self.refuse_operation(framework, &operation, "Unknown operation type")
            }
        }
    }

    fn refuse_tasks(
        &mut self,
        framework: &FrameworkId,
        operation: &Operation,
        reason: Reason,
        message: &str,
    ) {
        for task in tasks_of(operation) {
            self.task_error(framework, task, reason, message);
        }
    }

    pub(in crate::core) fn task_error(
        &mut self,
        framework: &FrameworkId,
        task: &TaskInfo,
        reason: Reason,
        message: impl Into<String>,
    ) {
        self.send_master_status(
            framework,
            MasterTaskStatus {
                task_id: &task.task_id.value,
                agent_id: Some(&task.agent_id.value),
                state: TaskState::TaskError,
                reason,
                message: shortened(message.into()),
            },
        );
    }

    /// Sends an error for an operation with an id. An operation without an id gets no answer.
    pub(in crate::core) fn refuse_operation(
        &mut self,
        framework: &FrameworkId,
        operation: &Operation,
        message: &str,
    ) {
        let message = &shortened(message.to_owned());
        let kind = operation
            .r#type
            .and_then(|kind| operation::Type::try_from(kind).ok())
            .map_or("unknown", |kind| kind.as_str_name());
        // For an operation without an id, this line is the only trace.
        tracing::warn!(framework_id = %framework, operation = kind, reason = %message, "operation refused");
        let Some(id) = &operation.id else { return };
        let mut event = event_of(event::Type::UpdateOperationStatus);
        event.update_operation_status = Some(event::UpdateOperationStatus {
            status: v1::OperationStatus {
                operation_id: Some(id.clone()),
                state: OperationState::OperationError.into(),
                message: Some(message.to_owned()),
                ..v1::OperationStatus::default()
            },
        });
        self.event(framework, event);
    }
}

/// Refuses a call so large that it would delay all others.
fn check_size(call: &call::Accept) -> Result<(), Invalid> {
    let operations = &call.operations;
    let tasks: usize = operations.iter().map(|one| tasks_of(one).len()).sum();
    if call.offer_ids.len() > OFFERS_PER_ACCEPT_MAX || tasks > TASKS_PER_ACCEPT_MAX {
        return Err(invalid!(
            "An ACCEPT may name at most {OFFERS_PER_ACCEPT_MAX} offers and \
             {TASKS_PER_ACCEPT_MAX} tasks"
        ));
    }
    let changes = operations.iter().filter(|one| !is_launch(one)).count();
    let resources: usize = operations.iter().map(resources_of).sum();
    if changes > OPERATIONS_PER_ACCEPT_MAX || resources > RESOURCES_PER_ACCEPT_MAX {
        return Err(invalid!(
            "An ACCEPT may have at most {OPERATIONS_PER_ACCEPT_MAX} operations on reservations and \
             volumes, which may name at most {RESOURCES_PER_ACCEPT_MAX} resources"
        ));
    }
    Ok(())
}

fn is_launch(operation: &Operation) -> bool {
    matches!(
        operation.r#type(),
        operation::Type::Launch | operation::Type::LaunchGroup
    )
}

/// The number of resources that an operation lists.
fn resources_of(operation: &Operation) -> usize {
    let reserve = operation.reserve.as_ref();
    let reserve = reserve.map_or(0, |body| body.source.len() + body.resources.len());
    let unreserve = operation.unreserve.as_ref();
    let unreserve = unreserve.map_or(0, |body| body.resources.len());
    let create = operation.create.as_ref();
    let create = create.map_or(0, |body| body.volumes.len());
    let destroy = operation.destroy.as_ref();
    let destroy = destroy.map_or(0, |body| body.volumes.len());
    reserve + unreserve + create + destroy
}

/// The tasks that an operation would launch.
fn tasks_of(operation: &Operation) -> &[TaskInfo] {
    let (launch, group) = (operation.launch.as_ref(), operation.launch_group.as_ref());
    let tasks = match operation.r#type() {
        operation::Type::Launch => launch.map(|launch| &launch.task_infos),
        operation::Type::LaunchGroup => group.map(|group| &group.task_group.tasks),
        _ => None,
    };
    tasks.map_or(&[], Vec::as_slice)
}

/// The duration of a filter within the limits of Mesos: a too long one is a year, an invalid one is the default.
fn refuse_filter(filters: Option<&v1::Filters>) -> RefuseFilter {
    RefuseFilter::For(refuse_time(filters))
}

pub(super) fn refuse_time(filters: Option<&v1::Filters>) -> Duration {
    let Some(seconds) = filters.and_then(|filters| filters.refuse_seconds) else {
        return REFUSE_DEFAULT;
    };
    if seconds > REFUSE_MAX.as_secs_f64() {
        return REFUSE_MAX;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(REFUSE_DEFAULT)
}

/// Truncates a rejection reason: it may repeat the framework's input, and goes out once for each of thousands of
/// tasks.
pub(in crate::core) fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.push('…');
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_stay_in_bounds() {
        let seconds = |refuse_seconds| match refuse_filter(Some(&v1::Filters { refuse_seconds })) {
            RefuseFilter::None => 0.0,
            RefuseFilter::For(time) => time.as_secs_f64(),
        };
        assert!((seconds(None) - 5.0).abs() < 1e-9);
        assert!((seconds(Some(0.5)) - 0.5).abs() < 1e-9);
        assert!((seconds(Some(0.0))).abs() < 1e-9);
        for nonsense in [-1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!((seconds(Some(nonsense)) - 5.0).abs() < 1e-9, "{nonsense}");
        }
        for forever in [4_294_967_295.0, f64::INFINITY, 1e300] {
            assert!(
                (seconds(Some(forever)) - 31_536_000.0).abs() < 1e-9,
                "{forever}"
            );
        }
    }
}
