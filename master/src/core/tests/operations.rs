//! RESERVE, UNRESERVE, CREATE, DESTROY, GROW_VOLUME, SHRINK_VOLUME by frameworks: what is offered
//! afterwards, what the agent is sent, who is told.

use meseta_proto::mesos::v1::agent_info::Capability as AgentCapability;
use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapabilityType;
use meseta_proto::mesos::v1::offer::{Operation as Message, operation};
use meseta_proto::mesos::v1::{OperationState, OperationStatus};
use meseta_resources::{
    Disk, Operation, Persistence, Reservation, Resource, ResourceParts, Scalar, Volume, VolumeMode,
};

use super::*;

pub(super) fn role(name: &str) -> Role {
    Role::new(name).unwrap()
}

/// The same, reserved one level further.
pub(super) fn reserved(resources: &Resources, to: &str, principal: Option<&str>) -> Resources {
    resources
        .push_reservation(&Reservation::dynamic(role(to), principal))
        .unwrap()
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

/// A volume on a disk, which must be one resource.
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

pub(super) fn create(volumes: &[Resource]) -> Message {
    convert::to_operation(&Operation::Create(volumes.to_vec()))
}

pub(super) fn destroy(volumes: &[Resource]) -> Message {
    convert::to_operation(&Operation::Destroy(volumes.to_vec()))
}

fn named(mut message: Message, id: &str) -> Message {
    message.id = Some(v1::OperationId {
        value: id.to_owned(),
    });
    message
}

pub(super) fn with_operations(
    offers: &[&v1::Offer],
    operations: Vec<Message>,
    refuse_seconds: f64,
) -> Action {
    Action::Accept(call::Accept {
        offer_ids: offers.iter().map(|offer| offer.id.clone()).collect(),
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
    pub(super) fn capable_agent(&mut self, port: i32, resources: &str) -> Node {
        let register = register_capable(port, resources);
        let connection = self.introduce(agent_frame::Message::Register(register.clone()));
        let id = self.registered(connection).agent_id.value;
        Node {
            connection,
            id,
            register,
        }
    }

    /// The operations that an agent was sent.
    pub(super) fn applies(&mut self, node: &Node) -> Vec<meseta::ApplyOperation> {
        self.take_frames(node.connection)
            .into_iter()
            .filter_map(|frame| match frame {
                master_frame::Message::ApplyOperation(apply) => Some(apply),
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
            agent_frame::Message::OperationUpdate(meseta::OperationUpdate {
                framework_id: apply.framework_id.clone(),
                status,
                operation_uuid: apply.operation_uuid.clone(),
            }),
        );
    }

    /// The agent does what it was sent; how many operations that were.
    pub(super) fn finish(&mut self, node: &Node) -> usize {
        let applies = self.applies(node);
        for apply in &applies {
            self.tell(node, apply, OperationState::OperationFinished, 7);
        }
        applies.len()
    }

    /// What is offered next, with its only offer.
    pub(super) fn next_offer(&mut self, scheduler: &Scheduler) -> v1::Offer {
        self.advance(SECOND);
        let offers = self.offers(scheduler);
        assert_eq!(offers.len(), 1, "one offer");
        offers.into_iter().next().unwrap()
    }

    pub(super) fn agent_total(&self, node: &Node) -> Resources {
        self.core.agents[node.id.as_str()].profile.total.clone()
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
    let mut world = World::new();
    let node = world.capable_agent(5051, resources);
    world.take_frames(node.connection);
    let scheduler = world.subscribe(info);
    let offer = world.offers(&scheduler).pop().unwrap();
    (world, node, scheduler, offer)
}

fn begin(resources: &str) -> (World, Node, Scheduler, v1::Offer) {
    begin_with(framework("f", &["dev"]), resources)
}

fn do_all(world: &mut World, scheduler: &Scheduler, offer: &v1::Offer, operations: Vec<Message>) {
    let action = with_operations(&[offer], operations, 0.0);
    assert_eq!(world.call(scheduler, action), Answer::Accepted);
}

#[test]
fn reserve_then_unreserve() {
    let (mut world, node, scheduler, offer) = begin("cpus:12;mem:6144");
    let mine = reserved(&parse("cpus:8;mem:4096"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![reserve(&mine)]);
    let sent = world.applies(&node);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].framework_id.as_ref().unwrap().value, scheduler.id);
    assert_eq!(world.agent_total(&node), parse("cpus:4;mem:2048") + &mine);
    let offer = world.next_offer(&scheduler);
    assert_eq!(
        total(std::slice::from_ref(&offer)),
        parse("cpus:4;mem:2048") + &mine
    );

    // A part first, then the rest.
    let part = reserved(&parse("cpus:3"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![unreserve(&part)]);
    let offer = world.next_offer(&scheduler);
    let rest = reserved(&parse("cpus:5;mem:4096"), "dev", None);
    assert_eq!(
        total(std::slice::from_ref(&offer)),
        parse("cpus:7;mem:2048") + &rest
    );
    do_all(&mut world, &scheduler, &offer, vec![unreserve(&rest)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:12;mem:6144"));
}

#[test]
fn two_reservations_of_a_tenth_are_exact() {
    let (mut world, _, scheduler, mut offer) = begin("cpus:1;mem:100");
    let tenth = reserved(&parse("cpus:0.1"), "dev", None);
    for _ in 0..2 {
        do_all(&mut world, &scheduler, &offer, vec![reserve(&tenth)]);
        offer = world.next_offer(&scheduler);
    }
    let fifth = reserved(&parse("cpus:0.2"), "dev", None);
    assert_eq!(
        total(std::slice::from_ref(&offer)),
        parse("cpus:0.8;mem:100") + &fifth
    );
    do_all(&mut world, &scheduler, &offer, vec![unreserve(&fifth)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:1;mem:100"));
}

#[test]
fn reserve_and_launch_in_one_accept_then_unreserve() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1;mem:64"), "dev", None);
    let mut info = task(&node, "t", "cpus:1");
    info.resources = to_wire(&mine, Format::PostRefinement);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![reserve(&mine), launch(vec![info])],
    );
    let frames = world.take_frames(node.connection);
    let order: Vec<bool> = frames
        .iter()
        .filter_map(|frame| match frame {
            master_frame::Message::ApplyOperation(_) => Some(false),
            master_frame::Message::RunTask(_) => Some(true),
            _ => None,
        })
        .collect();
    assert_eq!(order, [false, true], "the reservation goes before the task");
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(std::slice::from_ref(&offer)), parse("cpus:3;mem:960"));
    // In use: it cannot be named, so it cannot be unreserved.
    let before = world.agent_total(&node);
    do_all(&mut world, &scheduler, &offer, vec![unreserve(&mine)]);
    assert_eq!(world.agent_total(&node), before);
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.advance(SECOND);
    let offers = world.offers(&scheduler);
    assert_eq!(total(&offers), parse("cpus:3;mem:960") + &mine);
    let offers: Vec<&v1::Offer> = offers.iter().collect();
    let action = with_operations(&offers, vec![unreserve(&mine)], 0.0);
    world.call(&scheduler, action);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:4;mem:1024"));
}

#[test]
fn a_reservation_is_shared_within_its_role() {
    let (mut world, _, scheduler, offer) = begin("cpus:4;mem:1024");
    let all = reserved(&parse("cpus:4;mem:1024"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![reserve(&all)]);
    let offer = world.next_offer(&scheduler);
    let other = world.subscribe(framework("g", &["dev"]));
    let stranger = world.subscribe(framework("h", &["ops"]));
    world.call(&scheduler, decline(&[&offer], 60.0));
    world.advance(2 * SECOND);
    assert_eq!(total(&world.offers(&other)), all);
    assert!(world.offers(&stranger).is_empty());
}

#[test]
fn a_reservation_of_more_than_offered_is_dropped() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let more = reserved(&parse("cpus:5"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(reserve(&more), "r")],
    );
    assert!(world.applies(&node).is_empty(), "the agent hears nothing");
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(status.state(), OperationState::OperationError);
    assert!(
        status
            .message()
            .contains("does not contain cpus(allocated: dev):5"),
        "{}",
        status.message()
    );
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:4;mem:1024"));
}

#[test]
fn reservations_survive_a_master_failover() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(reserve(&mine), "r")],
    );
    let apply = world.applies(&node).pop().unwrap();
    let mut world = world.restart();
    // The agent has done it; nobody has acknowledged it.
    let mut report = report(&node, Vec::new(), Vec::new());
    report.register.checkpointed_resources = to_wire(&mine, Format::PostRefinement);
    let status = OperationStatus {
        operation_id: apply.operation.id.clone(),
        state: OperationState::OperationFinished.into(),
        uuid: Some(v1::Uuid { value: vec![3; 16] }),
        ..OperationStatus::default()
    };
    report.operations = vec![v1::Operation {
        framework_id: apply.framework_id.clone(),
        agent_id: None,
        info: apply.operation.clone(),
        latest_status: status.clone(),
        statuses: vec![status],
        uuid: apply.operation_uuid.clone(),
    }];
    let connection = world.introduce(agent_frame::Message::Reregister(report));
    let node = Node { connection, ..node };
    world.take_frames(connection);
    let info = World::with_id(framework("f", &["dev"]), &scheduler.id);
    // Until its framework is back, or for ten minutes, nobody acknowledges for it.
    world.tell(&node, &apply, OperationState::OperationFinished, 3);
    assert!(world.take_frames(connection).is_empty());
    let scheduler = world.subscribe(info);
    let offer = world.offers(&scheduler).pop().unwrap();
    assert_eq!(total(&[offer]), parse("cpus:3;mem:1024") + &mine);
    world.tell(&node, &apply, OperationState::OperationFinished, 3);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].operation_id.as_ref().unwrap().value, "r");
}

#[test]
fn a_framework_reserves_for_the_role_it_was_offered_only() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let other = |to: &str| named(reserve(&reserved(&parse("cpus:1"), to, None)), &to[..3]);
    let operations = vec![other("ops"), other("dev/sub")];
    do_all(&mut world, &scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 2);
    for status in told {
        let message = status.message();
        assert!(
            message.contains("but the resource was allocated to role 'dev'"),
            "{message}"
        );
    }
    assert!(world.applies(&node).is_empty());
}

#[test]
fn what_others_reserved_cannot_be_unreserved() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![reserve(&mine)]);
    let offer = world.next_offer(&scheduler);
    world.call(&scheduler, decline(&[&offer], 60.0));
    let other = world.subscribe(framework("g", &["ops"]));
    world.advance(2 * SECOND);
    let offer = world.offers(&other).pop().unwrap();
    assert_eq!(
        total(std::slice::from_ref(&offer)),
        parse("cpus:3;mem:1024")
    );
    world.take_frames(node.connection);
    do_all(&mut world, &other, &offer, vec![unreserve(&mine)]);
    assert!(world.applies(&node).is_empty());
    assert!(world.agent_total(&node).contains(&mine));
}

#[test]
fn principals_must_match_if_the_framework_has_one() {
    let mut info = framework("f", &["dev"]);
    info.principal = Some("alice".to_owned());
    let (mut world, node, scheduler, offer) = begin_with(info, "cpus:4;mem:1024");
    let by = |principal| reserved(&parse("cpus:1"), "dev", principal);
    let operations = vec![
        named(reserve(&by(None)), "none"),
        named(reserve(&by(Some("bob"))), "bob"),
        named(reserve(&by(Some("alice"))), "alice"),
    ];
    do_all(&mut world, &scheduler, &offer, operations);
    assert_eq!(world.applies(&node).len(), 1);
    let errors: Vec<String> = world
        .operation_events(&scheduler)
        .iter()
        .map(|status| status.message().to_owned())
        .collect();
    assert!(errors[0].contains("no principal set"), "{errors:?}");
    assert!(errors[1].contains("with principal 'bob'"), "{errors:?}");
    assert_eq!(errors.len(), 2);
}

#[test]
fn without_a_principal_any_or_none_is_taken() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let by = |principal| reserved(&parse("cpus:1"), "dev", principal);
    let operations = vec![reserve(&by(None)), reserve(&by(Some("bob")))];
    do_all(&mut world, &scheduler, &offer, operations);
    assert_eq!(world.applies(&node).len(), 2);
    let offer = world.next_offer(&scheduler);
    let expected = parse("cpus:2;mem:1024") + &by(None) + &by(Some("bob"));
    assert_eq!(total(&[offer]), expected, "they stay apart");
}

#[test]
fn labels_keep_reservations_apart() {
    let (mut world, _, scheduler, offer) = begin("cpus:4;mem:1024");
    let labelled = |label: &str| {
        let mut reservation = Reservation::dynamic(role("dev"), None);
        reservation.labels = std::iter::once(meseta_resources::Label {
            key: "for".to_owned(),
            value: Some(label.to_owned()),
        })
        .collect();
        parse("cpus:1").push_reservation(&reservation).unwrap()
    };
    let (a, b) = (labelled("a"), labelled("b"));
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![reserve(&a), reserve(&b)],
    );
    let offer = world.next_offer(&scheduler);
    assert_eq!(offer.resources.len(), 4, "two cpus apart, cpus and mem");
    // Without the right labels there is no such reservation.
    let bare = reserved(&parse("cpus:1"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![unreserve(&bare), unreserve(&a)],
    );
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:3;mem:1024") + &b);
}

#[test]
fn a_reservation_is_refined_and_given_back() {
    let mut world = World::new();
    let node = world.capable_agent(5051, "cpus:12;mem:6144");
    let parent = world.subscribe(framework("parent", &["engineering"]));
    let offer = world.offers(&parent).pop().unwrap();
    let all = reserved(&parse("cpus:12;mem:6144"), "engineering", Some("p"));
    do_all(&mut world, &parent, &offer, vec![reserve(&all)]);
    let offer = world.next_offer(&parent);
    let child = world.subscribe(framework("child", &["engineering/backend"]));
    world.call(&parent, decline(&[&offer], 600.0));
    world.advance(2 * SECOND);
    let offers = world.offers(&child);
    assert_eq!(
        total(&offers),
        all,
        "a parent's reservation is offered below it"
    );
    let eight = reserved(&parse("cpus:8;mem:4096"), "engineering", Some("p"));
    let refined = reserved(&eight, "engineering/backend", None);
    do_all(&mut world, &child, &offers[0], vec![reserve(&refined)]);
    world.advance(2 * SECOND);
    let offers = world.offers(&child);
    let rest = reserved(&parse("cpus:4;mem:2048"), "engineering", Some("p"));
    assert_eq!(total(&offers), &rest + &refined);
    assert_eq!(
        offers[0]
            .resources
            .iter()
            .map(|r| r.reservations.len())
            .max(),
        Some(2)
    );
    // One that does not know refinement never sees it.
    let mut old = framework("old", &["engineering/backend"]);
    old.capabilities.truncate(1);
    let old = world.subscribe(old);
    world.call(&child, decline(&offers.iter().collect::<Vec<_>>(), 600.0));
    world.advance(2 * SECOND);
    let seen = world.offers(&old);
    assert_eq!(total(&seen), rest);
    assert!(
        seen.iter()
            .flat_map(|offer| &offer.resources)
            .all(|r| r.reservations.is_empty())
    );
    world.call(&old, decline(&seen.iter().collect::<Vec<_>>(), 600.0));
    world.call(&child, Action::Revive { roles: Vec::new() });
    world.advance(2 * SECOND);
    let offers = world.offers(&child);
    let offers: Vec<&v1::Offer> = offers.iter().collect();
    let action = with_operations(&offers, vec![unreserve(&refined)], 0.0);
    world.call(&child, action);
    assert_eq!(world.agent_total(&node), all, "popped, not freed");
}

#[test]
fn a_role_that_is_no_sub_role_is_no_refinement() {
    let (mut world, node, scheduler, offer) = begin("cpus(dev):4;mem:1024");
    let mut message = reserve(&parse("cpus:1"));
    let stack =
        |kind: v1::resource::reservation_info::Type, role: &str| v1::resource::ReservationInfo {
            r#type: Some(kind.into()),
            role: Some(role.to_owned()),
            ..v1::resource::ReservationInfo::default()
        };
    use v1::resource::reservation_info::Type;
    let wrong = ["ops/x", "dev", "developers", "*"].map(|top| {
        message.reserve.as_mut().unwrap().resources[0].reservations =
            vec![stack(Type::Static, "dev"), stack(Type::Dynamic, top)];
        named(message.clone(), &top.replace('/', "-"))
    });
    do_all(&mut world, &scheduler, &offer, wrong.to_vec());
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 4);
    assert!(
        told.iter()
            .all(|status| status.state() == OperationState::OperationError)
    );
    assert!(world.applies(&node).is_empty());
    assert_eq!(world.agent_total(&node), parse("cpus(dev):4;mem:1024"));
}

#[test]
fn what_is_static_stays_reserved() {
    let (mut world, node, scheduler, offer) = begin("cpus(dev):4;mem(dev):1024");
    let fixed = parse("cpus(dev):4");
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(unreserve(&fixed), "u")],
    );
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert!(
        status.message().contains("is not dynamically reserved"),
        "{}",
        status.message()
    );
    assert!(world.applies(&node).is_empty());
}

#[test]
fn a_volume_lives_and_dies() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let data = volume(&disk, "v", false);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![reserve(&disk), create(std::slice::from_ref(&data))],
    );
    assert_eq!(world.finish(&node), 2);
    let offer = world.next_offer(&scheduler);
    let with = parse("cpus:4;mem:1024;disk:900") + &Resources::from(data.clone());
    assert_eq!(total(std::slice::from_ref(&offer)), with);
    // Not while the volume is on it, nor a second of the same name.
    let operations = vec![
        named(unreserve(&disk), "u"),
        named(unreserve(&data.clone().into()), "w"),
        reserve(&disk),
        named(create(std::slice::from_ref(&data)), "again"),
    ];
    do_all(&mut world, &scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    let text = |n: usize| errors[n].message().to_owned();
    assert!(text(0).contains("does not contain"), "{}", text(0));
    assert!(
        text(1).contains("destroy the persistent volume first"),
        "{}",
        text(1)
    );
    assert!(
        text(2).contains("Persistence ID 'v' is not unique"),
        "{}",
        text(2)
    );
    world.applies(&node);
    let offer = world.next_offer(&scheduler);
    let both = reserved(&parse("disk:200"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![
            destroy(std::slice::from_ref(&data)),
            named(destroy(&[data]), "twice"),
            unreserve(&both),
        ],
    );
    let error = world.operation_events(&scheduler).pop().unwrap();
    assert!(
        error.message().contains("Persistent volumes not found"),
        "{}",
        error.message()
    );
    assert_eq!(world.agent_total(&node), parse("cpus:4;mem:1024;disk:1000"));
}

#[test]
fn volumes_only_on_what_is_reserved_and_kept() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let mut read_only = create(&[volume(&disk, "ro", false)]);
    read_only.create.as_mut().unwrap().volumes[0]
        .disk
        .as_mut()
        .unwrap()
        .volume
        .as_mut()
        .unwrap()
        .mode = v1::volume::Mode::Ro.into();
    let mut bad_id = create(&[volume(&disk, "x", false)]);
    bad_id.create.as_mut().unwrap().volumes[0]
        .disk
        .as_mut()
        .unwrap()
        .persistence
        .as_mut()
        .unwrap()
        .id = "../x".to_owned();
    let revocable = volume(&disk.with_revocable(true), "rev", false);
    let operations = vec![
        named(create(&[volume(&parse("disk:100"), "free", false)]), "1"),
        named(create(&[revocable]), "2"),
        named(read_only, "3"),
        named(bad_id, "4"),
        named(create(&[volume(&disk, "shared", true)]), "5"),
        named(create(&list(&disk)), "6"),
        named(reserve(&disk.with_revocable(true)), "7"),
        named(create(&[]), "8"),
    ];
    do_all(&mut world, &scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    for (n, text) in [
        "cannot be created from unreserved resources",
        "cannot be created from revocable resources",
        "Read-only persistent volume not supported",
        "Persistence ID",
        "no SHARED_RESOURCES capability",
        "does not have DiskInfo",
        "cannot be created from revocable resources",
        "No resources are named",
    ]
    .into_iter()
    .enumerate()
    {
        let message = errors[n].message();
        assert!(message.contains(text), "{n}: {message}");
        assert_eq!(errors[n].state(), OperationState::OperationError);
    }
    assert!(world.applies(&node).is_empty());
    assert_eq!(world.agent_total(&node), parse("cpus:4;mem:1024;disk:1000"));
}

#[test]
fn a_grown_or_shrunk_volume_is_for_a_later_offer() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let more = reserved(&parse("disk:50"), "dev", None);
    let data = volume(&disk, "v", false);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![
            reserve(&(&disk + &more)),
            create(std::slice::from_ref(&data)),
        ],
    );
    let offer = world.next_offer(&scheduler);
    world.applies(&node);
    let grown = volume(&reserved(&parse("disk:150"), "dev", None), "v", false);
    let mut on_grown = task(&node, "t", "cpus:1");
    let needs = parse("cpus:1;mem:32") + &Resources::from(grown.clone());
    on_grown.resources = to_wire(&needs, Format::PostRefinement);
    let grow = convert::to_operation(&Operation::Grow {
        volume: data.clone(),
        addition: list(&more).pop().unwrap(),
    });
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![grow, launch(vec![on_grown])],
    );
    let (told, rest): (Vec<Event>, Vec<Event>) = world
        .take_events(scheduler.connection)
        .into_iter()
        .partition(|event| event.update.is_some());
    world.events.insert(scheduler.connection, rest);
    let told = told[0].update.as_ref().unwrap();
    assert_eq!(
        told.status.state(),
        TaskState::TaskError,
        "not in the same call"
    );
    let offer = world.next_offer(&scheduler);
    assert!(total(std::slice::from_ref(&offer)).contains_resource(&grown));
    let shrink = |subtract: u64| {
        convert::to_operation(&Operation::Shrink {
            volume: grown.clone(),
            subtract: Scalar::from_units(subtract),
        })
    };
    let operations = vec![
        named(shrink(150), "all"),
        named(shrink(0), "none"),
        shrink(50),
    ];
    do_all(&mut world, &scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    assert!(
        errors[0]
            .message()
            .contains("must be smaller than the size")
    );
    assert!(errors[1].message().contains("must be greater than zero"));
    let offer = world.next_offer(&scheduler);
    let expected = parse("cpus:4;mem:1024;disk:850") + &more + &Resources::from(data);
    assert_eq!(total(&[offer]), expected);
}

#[test]
fn feedback_reaches_the_framework_until_it_acknowledges() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(reserve(&mine), "r")],
    );
    let apply = world.applies(&node).pop().unwrap();
    let ask = |id: &str, agent: &str| {
        Action::ReconcileOperations(call::ReconcileOperations {
            operations: vec![call::reconcile_operations::Operation {
                operation_id: v1::OperationId {
                    value: id.to_owned(),
                },
                agent_id: Some(v1::AgentId {
                    value: agent.to_owned(),
                }),
                resource_provider_id: None,
            }],
        })
    };
    world.call(&scheduler, ask("r", &node.id));
    let pending = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(pending.state(), OperationState::OperationPending);
    for _ in 0..2 {
        // Repeated until acknowledged, and forwarded each time.
        world.tell(&node, &apply, OperationState::OperationFinished, 9);
        let status = world.operation_events(&scheduler).pop().unwrap();
        assert_eq!(status.state(), OperationState::OperationFinished);
        assert_eq!(status.operation_id.unwrap().value, "r");
        assert_eq!(status.agent_id.unwrap().value, node.id);
        assert_eq!(status.uuid.unwrap().value, [9; 16]);
    }
    assert!(world.take_frames(node.connection).is_empty());
    let acknowledge = |uuid: u8, id: &str| Action::AcknowledgeOperationStatus {
        agent_id: node.id.clone(),
        operation_id: id.to_owned(),
        uuid: [uuid; 16],
    };
    world.call(&scheduler, acknowledge(8, "r"));
    world.call(&scheduler, acknowledge(9, "other"));
    assert!(world.take_frames(node.connection).is_empty(), "not these");
    world.call(&scheduler, ask("r", &node.id));
    let known = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(
        (known.state(), known.uuid),
        (OperationState::OperationFinished, None)
    );
    world.call(&scheduler, acknowledge(9, "r"));
    let frames = world.take_frames(node.connection);
    assert!(matches!(
        &frames[0],
        master_frame::Message::AcknowledgeOperation(ack)
            if ack.operation_uuid == apply.operation_uuid && ack.status_uuid == [9; 16]
    ));
    world.call(&scheduler, ask("r", &node.id));
    let gone = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(gone.state(), OperationState::OperationUnknown);
    // A late repetition is acknowledged here, and told to nobody.
    world.tell(&node, &apply, OperationState::OperationFinished, 9);
    assert!(world.operation_events(&scheduler).is_empty());
    assert_eq!(world.take_frames(node.connection).len(), 1);
}

#[test]
fn what_nobody_named_is_acknowledged_by_the_master() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![reserve(&mine)]);
    assert_eq!(world.finish(&node), 1);
    let frames = world.take_frames(node.connection);
    assert!(matches!(
        frames[0],
        master_frame::Message::AcknowledgeOperation(_)
    ));
    assert!(world.core.agents[node.id.as_str()].operations.is_empty());
    assert!(world.operation_events(&scheduler).is_empty());
}

#[test]
fn an_operation_lost_on_the_way_is_dropped_and_undone() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(reserve(&mine), "r")],
    );
    let apply = world.applies(&node).pop().unwrap();
    world.input(Input::AgentGone {
        connection: node.connection,
    });
    // The agent never got it.
    let connection = world.introduce(agent_frame::Message::Reregister(report(
        &node,
        vec![],
        vec![],
    )));
    let node = Node { connection, ..node };
    let registered = world.registered(connection);
    assert_eq!(
        registered.unknown_operations,
        std::slice::from_ref(&apply.operation_uuid)
    );
    assert_eq!(
        world.agent_total(&node),
        parse("cpus:4;mem:1024"),
        "the agent's word counts"
    );
    world.take_events(scheduler.connection);
    world.tell(&node, &apply, OperationState::OperationDropped, 4);
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(status.state(), OperationState::OperationDropped);
    let frames = world.take_frames(connection);
    assert!(
        frames
            .iter()
            .all(|frame| !matches!(frame, master_frame::Message::Ping(_)))
    );
}

#[test]
fn an_agent_that_refuses_is_asked_for_the_truth() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(&mut world, &scheduler, &offer, vec![reserve(&mine)]);
    let apply = world.applies(&node).pop().unwrap();
    world.tell(&node, &apply, OperationState::OperationDropped, 4);
    let frames = world.take_frames(node.connection);
    assert!(
        frames
            .iter()
            .any(|frame| { matches!(frame, master_frame::Message::Ping(ping) if !ping.connected) })
    );
    let node = world.reregister(&node, vec![], vec![]);
    assert_eq!(world.agent_total(&node), parse("cpus:4;mem:1024"));
}

#[test]
fn operations_of_a_lost_agent_are_told_of() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![named(reserve(&mine), "r")],
    );
    world.take_frames(node.connection);
    world.advance(200 * SECOND);
    let told = world.operation_events(&scheduler);
    let states: Vec<_> = told.iter().map(OperationStatus::state).collect();
    assert_eq!(states, [OperationState::OperationUnreachable]);
    assert!(world.core.named_operations.is_empty());
}

#[test]
fn a_thousand_operations_in_one_accept() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let crumb = reserved(&parse("cpus:0.001"), "dev", None);
    let too_much = reserved(&parse("cpus:5"), "dev", None);
    let operations = (0..1000)
        .map(|n| reserve(if n % 2 == 0 { &crumb } else { &too_much }))
        .collect();
    do_all(&mut world, &scheduler, &offer, operations);
    assert_eq!(world.finish(&node), 500);
    let offer = world.next_offer(&scheduler);
    let half = reserved(&parse("cpus:0.5"), "dev", None);
    assert_eq!(total(&[offer]), parse("cpus:3.5;mem:1024") + &half);
    assert!(world.core.agents[node.id.as_str()].operations.is_empty());
}

#[test]
fn what_is_no_operation_changes_nothing() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let bare = |kind: operation::Type| Message {
        r#type: Some(kind.into()),
        ..Message::default()
    };
    let mut sourced = reserve(&reserved(&parse("cpus:1"), "dev", None));
    sourced.reserve.as_mut().unwrap().source = wire("cpus:1");
    let operations = vec![
        named(bare(operation::Type::Reserve), "1"),
        named(bare(operation::Type::CreateDisk), "2"),
        named(Message::default(), "3"),
        named(sourced, "4"),
        named(reserve(&Resources::new()), "5"),
        named(reserve(&parse("cpus:1")), "6"),
    ];
    do_all(&mut world, &scheduler, &offer, operations);
    let events = world.operation_events(&scheduler);
    assert_eq!(events.len(), 6);
    assert!(
        events
            .iter()
            .all(|status| status.state() == OperationState::OperationError)
    );
    assert!(events[5].message().contains("is not dynamically reserved"));
    assert!(world.applies(&node).is_empty());
    let offer = world.next_offer(&scheduler);
    assert_eq!(total(&[offer]), parse("cpus:4;mem:1024"));
}

fn sharing(name: &str) -> v1::FrameworkInfo {
    let mut info = framework(name, &["dev"]);
    info.capabilities.push(Capability {
        r#type: Some(CapabilityType::SharedResources.into()),
    });
    info
}

fn on_volume(node: &Node, id: &str, volume: &Resource) -> v1::TaskInfo {
    let mut info = task(node, id, "cpus:1");
    let needs = parse("cpus:1;mem:32") + &Resources::from(volume.clone());
    info.resources = to_wire(&needs, Format::PostRefinement);
    info
}

/// A framework, and a shared volume of 100 MB on an agent of 4 cpus.
fn begin_shared() -> (World, Node, Scheduler, Resource) {
    let (mut world, node, scheduler, offer) =
        begin_with(sharing("f"), "cpus:4;mem:1024;disk(dev):100");
    let data = volume(&parse("disk(dev):100"), "s", true);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![create(std::slice::from_ref(&data))],
    );
    world.finish(&node);
    (world, node, scheduler, data)
}

impl World {
    /// Everything that a framework is offered by now, some of it in several offers.
    fn all_offers(&mut self, scheduler: &Scheduler) -> Vec<v1::Offer> {
        self.advance(2 * SECOND);
        self.take_events(scheduler.connection);
        let id = FrameworkId::new(&scheduler.id).unwrap();
        let held = self.core.frameworks[&id].offers.clone();
        held.iter()
            .map(|id| {
                let offer = &self.core.offers[id];
                let framework = &self.core.frameworks[&offer.framework_id];
                let agent = &self.core.agents[&offer.agent_id];
                super::super::offers::to_wire(offer, framework, agent)
            })
            .collect()
    }

    fn accept_all(&mut self, scheduler: &Scheduler, operations: Vec<Message>) {
        let offers = self.all_offers(scheduler);
        let offers: Vec<&v1::Offer> = offers.iter().collect();
        let answer = self.call(scheduler, with_operations(&offers, operations, 0.0));
        assert_eq!(answer, Answer::Accepted);
    }
}

#[test]
fn several_tasks_share_a_volume() {
    let (mut world, node, scheduler, data) = begin_shared();
    let tasks = ["a", "b"].map(|id| on_volume(&node, id, &data)).to_vec();
    world.accept_all(&scheduler, vec![launch(tasks)]);
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 2);
    // It is offered all the same, and goes on to a third.
    let third = launch(vec![on_volume(&node, "c", &data)]);
    world.accept_all(&scheduler, vec![third]);
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 3);
    // In use: it stays.
    world.accept_all(
        &scheduler,
        vec![named(destroy(std::slice::from_ref(&data)), "d")],
    );
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert!(
        status.message().contains("Persistent volumes in use"),
        "{}",
        status.message()
    );
    for (number, id) in [(1, "a"), (2, "b"), (3, "c")] {
        world.update(&node, &scheduler, id, TaskState::TaskFinished, number);
    }
    world.accept_all(&scheduler, vec![destroy(&[data])]);
    assert_eq!(
        world.agent_total(&node),
        parse("cpus:4;mem:1024;disk(dev):100")
    );
}

#[test]
fn a_destroyed_shared_volume_takes_other_offers_along() {
    let (mut world, node, scheduler, data) = begin_shared();
    let task = launch(vec![on_volume(&node, "t", &data)]);
    world.accept_all(&scheduler, vec![task]);
    let mine = world.all_offers(&scheduler);
    let mine: Vec<&v1::Offer> = mine.iter().collect();
    world.call(&scheduler, decline(&mine, 600.0));
    let other = world.subscribe(sharing("g"));
    let theirs = world.all_offers(&other);
    assert!(total(&theirs).contains_resource(&data), "both may use it");
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.call(&scheduler, Action::Revive { roles: Vec::new() });
    let mine = world.all_offers(&scheduler);
    assert!(
        total(&mine).contains_resource(&data),
        "offered to both at once"
    );
    world.accept_all(&scheduler, vec![destroy(&[data])]);
    let told = world.take_events(other.connection);
    assert!(told.iter().any(|event| event.rescind.is_some()));
    assert_eq!(
        world.agent_total(&node),
        parse("cpus:4;mem:1024;disk(dev):100")
    );
}

#[test]
fn frameworks_that_cannot_share_are_not_offered_shared_volumes() {
    let (mut world, _, scheduler, data) = begin_shared();
    let offers = world.all_offers(&scheduler);
    let offers: Vec<&v1::Offer> = offers.iter().collect();
    world.call(&scheduler, decline(&offers, 600.0));
    let plain = world.subscribe(framework("g", &["dev"]));
    let offers = world.all_offers(&plain);
    assert!(!total(&offers).contains_resource(&data));
}

#[test]
fn a_shrunk_volume_is_for_a_later_offer() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk(dev):100");
    let data = volume(&parse("disk(dev):100"), "v", false);
    do_all(
        &mut world,
        &scheduler,
        &offer,
        vec![create(std::slice::from_ref(&data))],
    );
    let small = volume(&parse("disk(dev):60"), "v", false);
    let shrink = convert::to_operation(&Operation::Shrink {
        volume: data.clone(),
        subtract: Scalar::from_units(40),
    });
    let tasks = [("old", &data), ("new", &small)].map(|(id, on)| on_volume(&node, id, on));
    let offers = world.all_offers(&scheduler);
    let offers: Vec<&v1::Offer> = offers.iter().collect();
    let operations = vec![shrink, launch(tasks.to_vec())];
    world.call(&scheduler, with_operations(&offers, operations, 0.0));
    let told = states(&world.updates(&scheduler));
    assert_eq!(
        told,
        [TaskState::TaskError; 2],
        "neither as it was nor as it is"
    );
    assert!(world.agent_total(&node).contains_resource(&small));
    world.accept_all(
        &scheduler,
        vec![launch(vec![on_volume(&node, "t", &small)])],
    );
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 1);
}
