//! Operations of frameworks: a cluster for them, and their messages.

use std::borrow::Borrow;

use meseta_proto::mesos::v1::agent_info::Capability as AgentCapability;
use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapabilityType;
use meseta_proto::mesos::v1::offer::{Operation as Message, operation};
use meseta_proto::mesos::v1::{OperationState, OperationStatus};
use meseta_resources::{
    Disk, Label, Operation, Persistence, Reservation, Resource, ResourceParts, Scalar, Volume,
    VolumeMode,
};

use super::*;

mod allowed;
mod feedback;
mod limits;
mod reserving;
mod volumes;

pub(super) fn role(name: &str) -> Role {
    Role::new(name).unwrap()
}

/// The resources, reserved one level deeper.
pub(super) fn reserved(resources: &Resources, to: &str, principal: Option<&str>) -> Resources {
    resources
        .push_reservation(&Reservation::dynamic(role(to), principal))
        .unwrap()
}

/// The resources, reserved under a label.
pub(super) fn labelled(resources: &Resources, to: &str, value: &str) -> Resources {
    let mut reservation = Reservation::dynamic(role(to), None);
    let (key, value) = ("k".to_owned(), Some(value.to_owned()));
    reservation.labels = std::iter::once(Label { key, value }).collect();
    resources.push_reservation(&reservation).unwrap()
}

pub(super) fn list(resources: &Resources) -> Vec<Resource> {
    resources.iter().cloned().collect()
}

pub(super) fn reserve(resources: &Resources) -> Message {
    convert::to_operation(&Operation::Reserve {
        source: Vec::new(),
        resources: list(resources),
    })
}

pub(super) fn unreserve(resources: &Resources) -> Message {
    convert::to_operation(&Operation::Unreserve(list(resources)))
}

/// A volume on a disk, which must be a single resource.
pub(super) fn volume(disk: &Resources, id: &str, shared: bool) -> Resource {
    let disk = disk.iter().next().unwrap();
    Resource::new(ResourceParts {
        name: disk.name().clone(),
        value: disk.value().clone(),
        allocation_role: None,
        reservations: disk.reservations().to_vec(),
        disk: Some(Disk {
            persistence: Some(Persistence {
                id: id.into(),
                principal: None,
            }),
            volume: Some(Volume {
                container_path: "data".to_owned(),
                host_path: None,
                mode: VolumeMode::ReadWrite,
            }),
            source: disk.disk().and_then(|disk| disk.source.clone()),
        }),
        revocable: disk.is_revocable(),
        shared,
        provider_id: None,
    })
    .unwrap()
}

pub(super) fn create(volumes: impl IntoIterator<Item: Borrow<Resource>>) -> Message {
    let volumes = volumes.into_iter().map(|one| one.borrow().clone());
    convert::to_operation(&Operation::Create(volumes.collect()))
}

pub(super) fn destroy(volumes: impl IntoIterator<Item: Borrow<Resource>>) -> Message {
    let volumes = volumes.into_iter().map(|one| one.borrow().clone());
    convert::to_operation(&Operation::Destroy(volumes.collect()))
}

fn shrink(volume: &Resource, units: u64) -> Message {
    convert::to_operation(&Operation::Shrink {
        volume: volume.clone(),
        subtract: Scalar::from_units(units),
    })
}

pub(super) fn named(mut message: Message, id: &str) -> Message {
    message.id = Some(v1::OperationId {
        value: id.to_owned(),
    });
    message
}

pub(super) fn with_operations<O: Borrow<v1::Offer>>(
    offers: &[O],
    operations: Vec<Message>,
    refuse_seconds: f64,
) -> Action {
    Action::Accept(call::Accept {
        offer_ids: ids_of(offers),
        operations,
        filters: Some(v1::Filters {
            refuse_seconds: Some(refuse_seconds),
        }),
    })
}

pub(super) fn register_capable(port: i32, resources: &str) -> meseta::Register {
    let kinds = [
        AgentCapabilityType::MultiRole,
        AgentCapabilityType::HierarchicalRole,
        AgentCapabilityType::ReservationRefinement,
        AgentCapabilityType::ResourceProvider,
        AgentCapabilityType::ResizeVolume,
        AgentCapabilityType::AgentOperationFeedback,
    ];
    meseta::Register {
        capabilities: kinds
            .map(|kind| AgentCapability {
                r#type: Some(kind.into()),
            })
            .to_vec(),
        ..register(port, resources)
    }
}

impl World {
    /// A new master, and an agent with all capabilities.
    pub(super) fn with_capable_agent(resources: &str) -> (Self, Node) {
        let mut world = Self::new();
        let node = world.capable_agent(5051, resources);
        (world, node)
    }

    pub(super) fn capable_agent(&mut self, port: i32, resources: &str) -> Node {
        self.agent_that_says(register_capable(port, resources))
    }

    pub(super) fn do_all(
        &mut self,
        scheduler: &Scheduler,
        offer: &v1::Offer,
        operations: Vec<Message>,
    ) {
        self.call_accepted(scheduler, with_operations(&[offer], operations, 0.0));
    }

    /// The operations sent to an agent.
    pub(super) fn applies(&mut self, node: &Node) -> Vec<meseta::ApplyOperation> {
        self.take_frames(node.connection)
            .into_iter()
            .filter_map(|frame| match frame {
                MasterMessage::ApplyOperation(apply) => Some(apply),
                _ => None,
            })
            .collect()
    }

    fn tell(&mut self, node: &Node, apply: &meseta::ApplyOperation, state: OperationState, n: u8) {
        let status = OperationStatus {
            operation_id: apply.operation.id.clone(),
            state: state.into(),
            uuid: Some(v1::Uuid { value: vec![n; 16] }),
            ..OperationStatus::default()
        };
        self.say(
            node,
            AgentMessage::OperationUpdate(meseta::OperationUpdate {
                framework_id: apply.framework_id.clone(),
                status,
                operation_uuid: apply.operation_uuid.clone(),
            }),
        );
    }

    /// Lets the agent finish its operations; returns their number.
    pub(super) fn finish(&mut self, node: &Node) -> usize {
        let applies = self.applies(node);
        for apply in &applies {
            self.tell(node, apply, OperationState::OperationFinished, 7);
        }
        applies.len()
    }

    /// The framework's only offer in the next cycle.
    pub(super) fn next_offer(&mut self, scheduler: &Scheduler) -> v1::Offer {
        self.advance(SECOND);
        let offers = self.offers(scheduler);
        assert_eq!(offers.len(), 1, "one offer");
        offers.into_iter().next().unwrap()
    }

    pub(super) fn agent_total(&self, node: &Node) -> Resources {
        self.core.agents[node.id.as_str()].profile.total.clone()
    }

    #[track_caller]
    pub(super) fn assert_total(&self, node: &Node, expected: impl Borrow<Resources>) {
        assert_eq!(self.agent_total(node), *expected.borrow());
    }

    fn operation_events(&mut self, scheduler: &Scheduler) -> Vec<OperationStatus> {
        let (told, rest): (Vec<Event>, Vec<Event>) = self
            .take_events(scheduler.connection)
            .into_iter()
            .partition(|event| event.update_operation_status.is_some());
        self.events.insert(scheduler.connection, rest);
        told.into_iter()
            .filter_map(|event| event.update_operation_status)
            .map(|update| update.status)
            .collect()
    }
}

fn begin_with(info: v1::FrameworkInfo, resources: &str) -> (World, Node, Scheduler, v1::Offer) {
    let (mut world, node) = World::with_capable_agent(resources);
    world.take_frames(node.connection);
    let scheduler = world.subscribe(info);
    let offer = world.offers(&scheduler).pop().unwrap();
    (world, node, scheduler, offer)
}

fn begin(resources: &str) -> (World, Node, Scheduler, v1::Offer) {
    begin_with(plain(), resources)
}
