//! RESERVE and UNRESERVE: the offers afterwards, refinement, principals, labels, refusals.

use super::*;

#[test]
fn reserve_then_unreserve() {
    let (mut world, node, scheduler, offer) = begin("cpus:12;mem:6144");
    let mine = reserved(&parse("cpus:8;mem:4096"), "dev", None);
    world.do_all(&scheduler, &offer, vec![reserve(&mine)]);
    let sent = world.applies(&node);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].framework_id.as_ref().unwrap().value, scheduler.id);
    world.assert_total(&node, parse("cpus:4;mem:2048") + &mine);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:4;mem:2048") + &mine);

    // First a part, then the rest.
    let part = reserved(&parse("cpus:3"), "dev", None);
    world.do_all(&scheduler, &offer, vec![unreserve(&part)]);
    let offer = world.next_offer(&scheduler);
    let rest = reserved(&parse("cpus:5;mem:4096"), "dev", None);
    assert_eq!(total_of(&offer), parse("cpus:7;mem:2048") + &rest);
    world.do_all(&scheduler, &offer, vec![unreserve(&rest)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:12;mem:6144"));
}

#[test]
fn two_reservations_of_tenth_are_exact() {
    let (mut world, _, scheduler, mut offer) = begin("cpus:1;mem:100");
    let tenth = reserved(&parse("cpus:0.1"), "dev", None);
    for _ in 0..2 {
        world.do_all(&scheduler, &offer, vec![reserve(&tenth)]);
        offer = world.next_offer(&scheduler);
    }
    let fifth = reserved(&parse("cpus:0.2"), "dev", None);
    assert_eq!(total_of(&offer), parse("cpus:0.8;mem:100") + &fifth);
    world.do_all(&scheduler, &offer, vec![unreserve(&fifth)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:1;mem:100"));
}

#[test]
fn reserves_and_launches_in_one_accept() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1;mem:64"), "dev", None);
    let mut info = task(&node, "t", "cpus:1");
    info.resources = to_wire(&mine, Format::PostRefinement);
    world.do_all(&scheduler, &offer, vec![reserve(&mine), launch(vec![info])]);
    let frames = world.take_frames(node.connection);
    let order: Vec<bool> = frames
        .iter()
        .filter_map(|frame| match frame {
            MasterMessage::ApplyOperation(_) => Some(false),
            MasterMessage::RunTask(_) => Some(true),
            _ => None,
        })
        .collect();
    assert_eq!(order, [false, true], "the reservation goes before the task");
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:3;mem:960"));
    // A reservation in use is not part of the offer, so it cannot be unreserved.
    let before = world.agent_total(&node);
    world.do_all(&scheduler, &offer, vec![unreserve(&mine)]);
    world.assert_total(&node, &before);
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.advance(SECOND);
    let offers = world.offers(&scheduler);
    assert_eq!(total(&offers), parse("cpus:3;mem:960") + &mine);
    let action = with_operations(&offers, vec![unreserve(&mine)], 0.0);
    world.call(&scheduler, action);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:4;mem:1024"));
}

#[test]
fn reservation_is_shared_within_role() {
    let (mut world, _, scheduler, offer) = begin("cpus:4;mem:1024");
    let all = reserved(&parse("cpus:4;mem:1024"), "dev", None);
    world.do_all(&scheduler, &offer, vec![reserve(&all)]);
    let offer = world.next_offer(&scheduler);
    let other = world.subscribe(framework("g", &["dev"]));
    let stranger = world.subscribe(framework("h", &["ops"]));
    world.call(&scheduler, decline(&[&offer], 60.0));
    world.advance(2 * SECOND);
    assert_eq!(total(&world.offers(&other)), all);
    assert!(world.offers(&stranger).is_empty());
}

#[test]
fn reservation_beyond_offer_is_dropped() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let more = reserved(&parse("cpus:5"), "dev", None);
    world.do_all(&scheduler, &offer, vec![named(reserve(&more), "r")]);
    assert!(world.applies(&node).is_empty(), "the agent hears nothing");
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(status.state(), OperationState::OperationError);
    assert_says(status.message(), "does not contain cpus(allocated: dev):5");
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:4;mem:1024"));
}

#[test]
fn reservations_survive_a_master_failover() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![named(reserve(&mine), "r")]);
    let apply = world.applies(&node).pop().unwrap();
    let mut world = world.restart();
    // The agent has applied the operation, and nobody has acknowledged it.
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
    let connection = world.handshake(AgentMessage::Reregister(report));
    let node = Node { connection, ..node };
    world.take_frames(connection);
    let info = info_of(&scheduler);
    // Nobody acknowledges on behalf of the framework until it is back, or for ten minutes.
    world.tell(&node, &apply, OperationState::OperationFinished, 3);
    assert!(world.take_frames(connection).is_empty());
    let scheduler = world.subscribe(info);
    let offer = world.offers(&scheduler).pop().unwrap();
    assert_eq!(total_of(&offer), parse("cpus:3;mem:1024") + &mine);
    world.tell(&node, &apply, OperationState::OperationFinished, 3);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].operation_id.as_ref().unwrap().value, "r");
}

#[test]
fn framework_reserves_only_for_offered_role() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let other = |to: &str| named(reserve(&reserved(&parse("cpus:1"), to, None)), &to[..3]);
    let operations = vec![other("ops"), other("dev/sub")];
    world.do_all(&scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 2);
    for status in told {
        let message = status.message();
        assert_says(message, "but the resource was allocated to role 'dev'");
    }
    assert!(world.applies(&node).is_empty());
}

#[test]
fn cannot_unreserve_foreign_reservation() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![reserve(&mine)]);
    let offer = world.next_offer(&scheduler);
    world.call(&scheduler, decline(&[&offer], 60.0));
    let other = world.subscribe(framework("g", &["ops"]));
    world.advance(2 * SECOND);
    let offer = world.offers(&other).pop().unwrap();
    assert_eq!(total_of(&offer), parse("cpus:3;mem:1024"));
    world.take_frames(node.connection);
    world.do_all(&other, &offer, vec![unreserve(&mine)]);
    assert!(world.applies(&node).is_empty());
    assert!(world.agent_total(&node).contains(&mine));
}

#[test]
fn reservation_principal_must_match_framework() {
    let mut info = plain();
    info.principal = Some("alice".to_owned());
    let (mut world, node, scheduler, offer) = begin_with(info, "cpus:4;mem:1024");
    let by = |principal| reserved(&parse("cpus:1"), "dev", principal);
    let operations = vec![
        named(reserve(&by(None)), "none"),
        named(reserve(&by(Some("bob"))), "bob"),
        named(reserve(&by(Some("alice"))), "alice"),
    ];
    world.do_all(&scheduler, &offer, operations);
    assert_eq!(world.applies(&node).len(), 1);
    let errors: Vec<String> = world
        .operation_events(&scheduler)
        .iter()
        .map(|status| status.message().to_owned())
        .collect();
    assert_says(&errors[0], "no principal set");
    assert_says(&errors[1], "with principal 'bob'");
    assert_eq!(errors.len(), 2);
}

#[test]
fn framework_without_principal_accepts_any() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let by = |principal| reserved(&parse("cpus:1"), "dev", principal);
    let operations = vec![reserve(&by(None)), reserve(&by(Some("bob")))];
    world.do_all(&scheduler, &offer, operations);
    assert_eq!(world.applies(&node).len(), 2);
    let offer = world.next_offer(&scheduler);
    let expected = parse("cpus:2;mem:1024") + &by(None) + &by(Some("bob"));
    assert_eq!(total_of(&offer), expected, "they stay apart");
}

#[test]
fn labels_keep_reservations_apart() {
    let (mut world, _, scheduler, offer) = begin("cpus:4;mem:1024");
    let [a, b] = ["a", "b"].map(|label| labelled(&parse("cpus:1"), "dev", label));
    world.do_all(&scheduler, &offer, vec![reserve(&a), reserve(&b)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(offer.resources.len(), 4, "two cpus apart, cpus and mem");
    // The reservation does not exist without its labels.
    let bare = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![unreserve(&bare), unreserve(&a)]);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:3;mem:1024") + &b);
}

#[test]
fn reservation_is_refined_and_unreserved() {
    let (mut world, node) = World::with_capable_agent("cpus:12;mem:6144");
    let parent = world.subscribe(framework("parent", &["engineering"]));
    let offer = world.offers(&parent).pop().unwrap();
    let all = reserved(&parse("cpus:12;mem:6144"), "engineering", Some("p"));
    world.do_all(&parent, &offer, vec![reserve(&all)]);
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
    world.do_all(&child, &offers[0], vec![reserve(&refined)]);
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
    // A framework without reservation refinement never gets it.
    let mut old = framework("old", &["engineering/backend"]);
    old.capabilities.truncate(1);
    let old = world.subscribe(old);
    world.call(&child, decline(&offers, 600.0));
    world.advance(2 * SECOND);
    let seen = world.offers(&old);
    assert_eq!(total(&seen), rest);
    assert!(
        seen.iter()
            .flat_map(|offer| &offer.resources)
            .all(|r| r.reservations.is_empty())
    );
    world.call(&old, decline(&seen, 600.0));
    world.call(&child, Action::Revive { roles: Vec::new() });
    world.advance(2 * SECOND);
    let offers = world.offers(&child);
    let action = with_operations(&offers, vec![unreserve(&refined)], 0.0);
    world.call(&child, action);
    // Only the refinement is undone; the reservation below stays.
    world.assert_total(&node, &all);
}

#[test]
fn refinement_requires_a_subrole() {
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
    world.do_all(&scheduler, &offer, wrong.to_vec());
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 4);
    assert!(
        told.iter()
            .all(|status| status.state() == OperationState::OperationError)
    );
    assert!(world.applies(&node).is_empty());
    world.assert_total(&node, parse("cpus(dev):4;mem:1024"));
}

#[test]
fn static_reservation_cannot_be_unreserved() {
    let (mut world, node, scheduler, offer) = begin("cpus(dev):4;mem(dev):1024");
    let fixed = parse("cpus(dev):4");
    world.do_all(&scheduler, &offer, vec![named(unreserve(&fixed), "u")]);
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_says(status.message(), "is not dynamically reserved");
    assert!(world.applies(&node).is_empty());
}
