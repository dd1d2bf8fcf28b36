//! RESERVE, UNRESERVE, CREATE, DESTROY, GROW_VOLUME and SHRINK_VOLUME: in an ACCEPT, and by operators.
//!
//! The master applies an operation at once to the agent's total and in the allocator, and sends it to the agent,
//! which makes it durable; `feedback.rs` handles the agent's reports. Invariant: an operation applies completely here
//! and in the allocator, or not at all; quantities never change.

use std::borrow::Cow;
use std::sync::Arc;

use meseta_allocator::Outstanding;
use meseta_proto::convert;
use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::offer::Operation as Message;
use meseta_proto::mesos::v1::{self};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    AgentId, Change, Conversion, FrameworkId, OfferId, Operation, Resource, Resources,
};
use prost::Message as _;

use crate::core::answer::Answer;
use crate::core::authorization;
use crate::core::effect::Output;
use crate::core::ids::OperationUuid;
use crate::core::master::MasterCore;
use crate::core::offers::accept::AcceptedOffers;
use crate::core::state::agent::Agent;
use crate::core::state::offer::RefuseFilter;
use crate::core::state::operation::{
    OperationRecord, RESOURCES_PER_AGENT_MAX, RESOURCES_SCANNED_MAX,
};
use crate::core::state::resource_size;
use crate::core::validation::frame_size;
use crate::core::validation::operation::{Requester, validate};

/// The error of an operation whose agent is removed together with the offers.
const AGENT_GONE: &str = "The agent is gone";

impl MasterCore {
    /// Applies an operation of an ACCEPT to the remaining resources of its offers.
    pub(in crate::core) fn operate(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        message: &Message,
    ) {
        if let Err(reason) = self.try_operation(id, accepted_offers, message) {
            self.refuse_operation(id, message, reason.as_str());
        }
    }

    fn try_operation(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        message: &Message,
    ) -> Result<(), Invalid> {
        let operation = convert::operation(message).map_err(Invalid::within(
            "Operation attempted with invalid resources",
        ))?;
        if matches!(&operation, Operation::Reserve { source, .. } if !source.is_empty()) {
            return Err(invalid!(
                "Operation attempted with invalid resources: a reservation cannot be updated by \
                 the scheduler API: `source` must be empty"
            ));
        }
        self.check_feedback(id, accepted_offers, message)?;
        self.count_scanned(accepted_offers)?;
        let operation = operation.allocate(&accepted_offers.role);
        let (Some(framework), Some(agent)) = (
            self.frameworks.get(id),
            self.agents.get(&accepted_offers.agent),
        ) else {
            return Err(AGENT_GONE.into());
        };
        authorization::operation(&framework.approver, &operation)
            .map_err(Invalid::within(authorization::NOT_AUTHORIZED))?;
        let requester = Requester {
            principal: framework.terms.info.principal.as_deref(),
            framework: Some(framework),
        };
        validate(&operation, requester, agent).map_err(|text| {
            let pid = agent.profile.pid();
            format!(
                "{text}; on agent {} at {pid} ({})",
                agent.id(),
                agent.profile.info.hostname
            )
        })?;
        let sent = for_agent(&operation, message);
        frame_size::check_operation(agent, &sent)?;
        let conversions = operation.conversions().map_err(Invalid::from_error)?;
        let single = without_copies(&accepted_offers.remaining, &operation);
        Change::from_conversions(&conversions, &single).map_err(Invalid::from_error)?;
        let change = self.change_of_total(&accepted_offers.agent, &conversions)?;
        self.check_growth(&accepted_offers.agent, &operation, &change)?;
        // A refused operation rescinds nothing.
        self.rescind_destroyed(&accepted_offers.agent, &operation);
        self.return_copies(id, accepted_offers, &operation);
        let remaining = Change::from_conversions(&conversions, &accepted_offers.remaining)
            .map_err(Invalid::from_error)?;
        self.allocator
            .update_allocation(id, &accepted_offers.agent, &conversions)
            .map_err(|error| {
                self.counters.invariant_violations += 1;
                error.to_string()
            })?;
        match operation {
            // A later offer, and not this one, contains the resized volume.
            Operation::Grow { .. } | Operation::Shrink { .. } => {
                for conversion in &conversions {
                    accepted_offers.remaining -= conversion.consumed();
                    accepted_offers.for_later_offers += conversion.produced();
                }
            }
            _ => remaining.apply_to(&mut accepted_offers.remaining),
        }
        for conversion in &conversions {
            for volume in &conversion.consumed().shared() {
                accepted_offers.shared.remove(volume);
            }
            accepted_offers.shared += &conversion.produced().shared();
        }
        self.commit_operation(Some(id), &accepted_offers.agent, sent, &change);
        Ok(())
    }

    /// Counts the agent's resources as scanned by another operation. Fails above the limit.
    fn count_scanned(&self, accepted_offers: &mut AcceptedOffers) -> Result<(), Invalid> {
        let agent = self.agents.get(&accepted_offers.agent);
        let agent = agent.ok_or(AGENT_GONE)?;
        let resources = agent.profile.total.len();
        if accepted_offers.resources_scanned + resources > RESOURCES_SCANNED_MAX {
            return Err(invalid!(
                "Agent {} has {resources} different resources (by name, reservation and volume), \
                 and the operations of one ACCEPT go through {RESOURCES_SCANNED_MAX} at most; \
                 send the other operations with a later offer",
                agent.id()
            ));
        }
        accepted_offers.resources_scanned += resources;
        Ok(())
    }

    /// Checks that there is room for another operation of a framework, or of an operator, on its agent and in total.
    fn check_room(
        &self,
        agent: &Agent,
        framework: Option<&FrameworkId>,
        message: &Message,
    ) -> Result<(), Invalid> {
        let bytes = message.encoded_len();
        let usage = &agent.operation_usage;
        if let Some(many) = usage.refusal(agent.id(), framework, bytes) {
            return Err(Invalid::from_error(many));
        }
        let max = self.config.memory.operations;
        let checked = self.operations.check_room(framework, bytes, max);
        checked.map_err(Invalid::from_error)
    }

    /// Checks that an operation that requires feedback can have it.
    fn check_feedback(
        &self,
        id: &FrameworkId,
        accepted_offers: &AcceptedOffers,
        message: &Message,
    ) -> Result<(), Invalid> {
        let agent = self.agents.get(&accepted_offers.agent);
        let agent = agent.ok_or(AGENT_GONE)?;
        self.check_room(agent, Some(id), message)
            .map_err(|invalid| invalid!("{invalid}; acknowledge some first"))?;
        let Some(operation_id) = &message.id else {
            return Ok(());
        };
        if !agent.profile.has(Capability::ResourceProvider) {
            return Err(invalid!(
                "Operation requested feedback, but agent {} does not have the required \
                 RESOURCE_PROVIDER capability",
                agent.id()
            ));
        }
        if !agent.profile.has(Capability::AgentOperationFeedback) {
            return Err(invalid!(
                "Operation on agent default resources requested feedback, but agent {} does not \
                 have the required AGENT_OPERATION_FEEDBACK and RESOURCE_PROVIDER capabilities",
                agent.id()
            ));
        }
        if self.operations.find(id, &operation_id.value).is_some() {
            return Err(invalid!(
                "Operation ID '{}' is that of an earlier operation whose end is not acknowledged",
                operation_id.value.escape_debug()
            ));
        }
        Ok(())
    }

    /// Rescinds the offers of other frameworks with shared volumes that the operation destroys.
    fn rescind_destroyed(&mut self, agent: &AgentId, operation: &Operation) {
        let volumes: Vec<Resource> = operation
            .destroyed()
            .iter()
            .filter(|volume| volume.is_shared())
            .map(|volume| volume.clone().with_allocation(None))
            .collect();
        let Some(agent) = self.agents.get(agent).filter(|_| !volumes.is_empty()) else {
            return;
        };
        let holds = |resources: &Resources| {
            let resources = resources.unallocate();
            volumes
                .iter()
                .any(|volume| resources.contains_resource(volume))
        };
        let offers = agent.offers.iter().filter_map(|id| self.offers.get(id));
        let void: Vec<_> = offers
            .filter(|offer| holds(&offer.resources))
            .map(|offer| offer.id.clone())
            .collect();
        for offer in void {
            self.rescind(&offer);
        }
    }

    /// Handles offers accepted together that each hold a copy of a shared volume to destroy: one copy is destroyed,
    /// the others return to the allocator.
    fn return_copies(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        operation: &Operation,
    ) {
        for volume in operation.destroyed().iter().filter(|one| one.is_shared()) {
            for _ in 1..accepted_offers.remaining.count(volume) {
                accepted_offers.remaining.remove(volume);
                accepted_offers.offered.remove(volume);
                let copy = volume.clone().into();
                self.recover_resources(id, &accepted_offers.agent, &copy, RefuseFilter::None);
            }
        }
    }

    /// The change of the agent's total by the conversions.
    fn change_of_total(
        &self,
        agent: &AgentId,
        conversions: &[Conversion],
    ) -> Result<Change, Invalid> {
        let agent = self.agents.get(agent);
        let agent = agent.ok_or(AGENT_GONE)?;
        let bare: Vec<Conversion> = conversions.iter().map(Conversion::unallocate).collect();
        Change::from_conversions(&bare, &agent.profile.total).map_err(Invalid::from_error)
    }

    /// Checks that an operation may change the agent's resources.
    fn check_growth(
        &self,
        agent: &AgentId,
        operation: &Operation,
        change: &Change,
    ) -> Result<(), Invalid> {
        let agent = self.agents.get(agent);
        let agent = agent.ok_or(AGENT_GONE)?;
        let profile = &agent.profile;
        let before = profile.total.len();
        if change.len_after(before) > before.max(RESOURCES_PER_AGENT_MAX) {
            return Err(invalid!(
                "Agent {} has {before} different resources (by name, reservation and volume), and \
                 operations make at most {RESOURCES_PER_AGENT_MAX}; unreserve or destroy some first",
                agent.id()
            ));
        }
        let after = profile.reserved_bytes_with(change);
        resource_size::check_growth(operation, profile.reserved_bytes, after)?;
        if resource_size::frees_resources(operation) {
            return Ok(());
        }
        self.check_description_with(agent, change)
    }

    /// Records an operation that the allocator has applied, and sends it to the agent as `info`.
    fn commit_operation(
        &mut self,
        framework: Option<&FrameworkId>,
        agent_id: &AgentId,
        info: Message,
        change: &Change,
    ) -> OperationUuid {
        let uuid = self.issued_ids.assign_operation();
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return uuid;
        };
        Arc::make_mut(&mut agent.profile).change(change);
        let record = OperationRecord::new(uuid, framework.cloned(), agent_id.clone(), info.clone());
        agent.operation_usage.add(&record);
        self.operations.add(&record);
        Arc::make_mut(&mut agent.operations).insert(uuid, Arc::new(record));
        tracing::info!(
            %agent_id,
            framework_id = framework.map(|id| id.as_str()).unwrap_or_default(),
            operation = info.r#type().as_str_name(),
            uuid = %uuid::Uuid::from_bytes(uuid),
            "operation applied"
        );
        self.keep_changed_description(agent_id);
        let apply = meseta::ApplyOperation {
            framework_id: framework.map(Into::into),
            operation: info,
            operation_uuid: v1::Uuid {
                value: uuid.to_vec(),
            },
            resource_version_uuid: None,
        };
        self.frame(agent_id, master_frame::Message::ApplyOperation(apply));
        uuid
    }

    /// Applies an operator's operation to free resources, and first rescinds the offers in its way.
    pub(in crate::core) fn operator_operation(
        &mut self,
        agent_id: &str,
        message: &Message,
        principal: Option<&str>,
    ) -> Answer {
        let Some(agent) = self.agents.get(agent_id) else {
            return Answer::BadRequest("No agent found with specified ID".to_owned());
        };
        let operation = match convert::operation(message) {
            Ok(operation) => operation,
            Err(error) => return Answer::BadRequest(error.to_string()),
        };
        let requester = Requester {
            principal,
            framework: None,
        };
        if let Err(text) = validate(&operation, requester, agent) {
            let name = operation.name();
            let location = match operation {
                Operation::Unreserve(_) | Operation::Destroy(_) => String::new(),
                _ => format!(
                    " on agent {agent_id} at {} ({})",
                    agent.profile.pid(),
                    agent.profile.info.hostname
                ),
            };
            return Answer::BadRequest(format!("Invalid {name} operation{location}: {text}"));
        }
        if agent.connection.is_none() {
            return Answer::Conflict(format!(
                "Agent {agent_id} is disconnected; retry when it has reregistered"
            ));
        }
        if let Err(invalid) = self.check_room(agent, None, message) {
            return Answer::Conflict(format!("{invalid}; try again later"));
        }
        let id = agent.id().clone();
        let instead = reserved_otherwise(&agent.profile.total, &operation);
        match self.operate_on_free(&id, &operation, message) {
            Ok(uuid) => {
                self.effects.emit(Output::OperationTaken {
                    uuid,
                    principal: principal.map(str::to_owned),
                    operation: Arc::new(message.clone()),
                });
                Answer::Applied(uuid)
            }
            Err(invalid) => Answer::Conflict(format!("{invalid}{}", instead.unwrap_or_default())),
        }
    }

    /// The offers of an agent that must be rescinded to free these resources; `None` if even all offers do not
    /// suffice.
    fn offers_in_the_way(&self, agent: &AgentId, requested: &Resources) -> Option<Vec<OfferId>> {
        let offers: Vec<Outstanding> = self
            .agents
            .get(agent)
            .into_iter()
            .flat_map(|agent| &agent.offers)
            .filter_map(|id| self.offers.get(id))
            .map(|offer| (&**offer).into())
            .collect();
        self.allocator
            .rescind_for_operation(agent, requested, &offers)
    }

    fn operate_on_free(
        &mut self,
        agent: &AgentId,
        operation: &Operation,
        message: &Message,
    ) -> Result<OperationUuid, Invalid> {
        let operation = operation.unallocate();
        let sent = for_agent(&operation, message);
        if let Some(agent) = self.agents.get(agent) {
            frame_size::check_operation(agent, &sent)?;
        }
        let conversions = operation.conversions().map_err(Invalid::from_error)?;
        let change = self.change_of_total(agent, &conversions);
        if let Ok(change) = &change {
            self.check_growth(agent, &operation, change)?;
        }
        let requested: Resources = conversions.iter().map(Conversion::consumed).sum();
        if self.offers_in_the_way(agent, &requested).is_none() {
            let free = self.allocator.free(agent);
            Change::from_conversions(&conversions, &free).map_err(Invalid::from_error)?;
        }
        let change = change?;
        // A refused operation rescinds nothing.
        self.rescind_destroyed(agent, &operation);
        let offers = self.offers_in_the_way(agent, &requested);
        for offer in offers.into_iter().flatten() {
            // The operation takes its resources below, before the rest is offered again.
            self.rescind(&offer);
        }
        let free = self.allocator.free(agent);
        Change::from_conversions(&conversions, &free).map_err(Invalid::from_error)?;
        self.allocator
            .update_available(agent, &conversions)
            .map_err(Invalid::from_error)?;
        self.allocate_due = true;
        Ok(self.commit_operation(None, agent, sent, &change))
    }
}

/// The resources with one copy of each shared volume to destroy.
fn without_copies<'a>(resources: &'a Resources, operation: &Operation) -> Cow<'a, Resources> {
    let mut single = Cow::Borrowed(resources);
    for volume in operation.destroyed().iter().filter(|one| one.is_shared()) {
        for _ in 1..resources.count(volume) {
            single.to_mut().remove(volume);
        }
    }
    single
}

/// Converts an operation to the message for its agent, with the framework's id for it.
fn for_agent(operation: &Operation, message: &Message) -> Message {
    let mut sent = convert::to_operation(operation);
    sent.id.clone_from(&message.id);
    sent
}

/// Names the reservation with another principal or other labels that an UNRESERVE misses: Mesos leaves it to the
/// reader to find the difference.
fn reserved_otherwise(total: &Resources, operation: &Operation) -> Option<String> {
    let Operation::Unreserve(requested) = operation else {
        return None;
    };
    let is_meant = |existing: &Resource| {
        requested.iter().any(|requested| {
            existing.name() == requested.name()
                && existing.reservation_role() == requested.reservation_role()
                && existing.reservations() != requested.reservations()
        })
    };
    let existing = total
        .iter()
        .filter(|existing| !existing.is_persistent_volume());
    let existing: Resources = existing
        .filter(|existing| is_meant(existing))
        .cloned()
        .collect();
    (!existing.is_empty()).then(|| {
        format!(
            "; the role has {} instead: a reservation is named whole, with its principal and labels",
            existing.excerpt()
        )
    })
}
