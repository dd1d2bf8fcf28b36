//! Feedback of operations, including lost and invalid ones.

use super::*;

#[test]
fn operation_feedback_repeats_until_acknowledged() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![named(reserve(&mine), "r")]);
    let apply = world.applies(&node).pop().unwrap();
    let ask = |id: &str, agent: &str| {
        Action::ReconcileOperations(call::ReconcileOperations {
            operations: vec![call::reconcile_operations::Operation {
                operation_id: v1::OperationId {
                    value: id.to_owned(),
                },
                agent_id: Some(agent_id(agent)),
                resource_provider_id: None,
            }],
        })
    };
    world.call(&scheduler, ask("r", &node.id));
    let pending = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(pending.state(), OperationState::OperationPending);
    for _ in 0..2 {
        // The agent repeats the status until it is acknowledged; the master forwards it each time.
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
        MasterMessage::AcknowledgeOperation(ack)
            if ack.operation_uuid == apply.operation_uuid && ack.status_uuid == [9; 16]
    ));
    world.call(&scheduler, ask("r", &node.id));
    let gone = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(gone.state(), OperationState::OperationUnknown);
    // The master acknowledges a late repetition, and forwards it to nobody.
    world.tell(&node, &apply, OperationState::OperationFinished, 9);
    assert!(world.operation_events(&scheduler).is_empty());
    assert_eq!(world.take_frames(node.connection).len(), 1);
}

#[test]
fn master_acknowledges_operations_without_id() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![reserve(&mine)]);
    assert_eq!(world.finish(&node), 1);
    let frames = world.take_frames(node.connection);
    assert!(matches!(frames[0], MasterMessage::AcknowledgeOperation(_)));
    assert!(world.core.agents[node.id.as_str()].operations.is_empty());
    assert!(world.operation_events(&scheduler).is_empty());
}

#[test]
fn lost_operation_is_dropped_and_undone() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![named(reserve(&mine), "r")]);
    let apply = world.applies(&node).pop().unwrap();
    world.lose_agent(&node);
    // The agent never got the operation.
    let connection = world.handshake(AgentMessage::Reregister(report(&node, vec![], vec![])));
    let node = Node { connection, ..node };
    let registered = world.registered(connection);
    assert_eq!(
        registered.unknown_operations,
        std::slice::from_ref(&apply.operation_uuid)
    );
    // The agent's own total counts.
    world.assert_total(&node, parse("cpus:4;mem:1024"));
    world.take_events(scheduler.connection);
    world.tell(&node, &apply, OperationState::OperationDropped, 4);
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(status.state(), OperationState::OperationDropped);
    let frames = world.take_frames(connection);
    assert!(
        frames
            .iter()
            .all(|frame| !matches!(frame, MasterMessage::Ping(_)))
    );
}

#[test]
fn agent_dropping_operation_is_reconciled() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![reserve(&mine)]);
    let apply = world.applies(&node).pop().unwrap();
    world.tell(&node, &apply, OperationState::OperationDropped, 4);
    let frames = world.take_frames(node.connection);
    assert!(
        frames
            .iter()
            .any(|frame| { matches!(frame, MasterMessage::Ping(ping) if !ping.connected) })
    );
    let node = world.return_empty(&node);
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn reports_operations_of_lost_agent() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let mine = reserved(&parse("cpus:1"), "dev", None);
    world.do_all(&scheduler, &offer, vec![named(reserve(&mine), "r")]);
    world.take_frames(node.connection);
    world.advance(200 * SECOND);
    let told = world.operation_events(&scheduler);
    let states: Vec<_> = told.iter().map(OperationStatus::state).collect();
    assert_eq!(states, [OperationState::OperationUnreachable]);
    assert!(world.core.operations.has_no_names());
}

#[test]
fn a_thousand_operations_in_one_accept() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let crumb = reserved(&parse("cpus:0.001"), "dev", None);
    let too_much = reserved(&parse("cpus:5"), "dev", None);
    let operations = (0..1000)
        .map(|n| reserve(if n % 2 == 0 { &crumb } else { &too_much }))
        .collect();
    world.do_all(&scheduler, &offer, operations);
    assert_eq!(world.finish(&node), 500);
    let offer = world.next_offer(&scheduler);
    let half = reserved(&parse("cpus:0.5"), "dev", None);
    assert_eq!(total_of(&offer), parse("cpus:3.5;mem:1024") + &half);
    assert!(world.core.agents[node.id.as_str()].operations.is_empty());
}

#[test]
fn invalid_operation_changes_nothing() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let bare = |kind: operation::Type| Message {
        r#type: Some(kind.into()),
        ..Message::default()
    };
    let mut sourced = reserve(&reserved(&parse("cpus:1"), "dev", None));
    sourced.reserve.as_mut().unwrap().source = wire("cpus:1");
    let mut shared = reserve(&reserved(&parse("cpus:1"), "dev", None));
    shared.reserve.as_mut().unwrap().resources[0].shared = Some(v1::resource::SharedInfo {});
    let operations = vec![
        named(shared, "0"),
        named(bare(operation::Type::Reserve), "1"),
        named(bare(operation::Type::CreateDisk), "2"),
        named(Message::default(), "3"),
        named(sourced, "4"),
        named(reserve(&Resources::new()), "5"),
        named(reserve(&parse("cpus:1")), "6"),
    ];
    world.do_all(&scheduler, &offer, operations);
    let events = world.operation_events(&scheduler);
    assert_eq!(events.len(), 7);
    assert!(
        events
            .iter()
            .all(|status| status.state() == OperationState::OperationError)
    );
    assert_says(events[6].message(), "is not dynamically reserved");
    assert!(world.applies(&node).is_empty());
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:4;mem:1024"));
}

#[test]
fn operation_updates_follow_reading_pace() {
    let mut world = World::new();
    let scheduler = world.subscribe(plain());
    const OPERATIONS: usize = 5_000;
    let named = |number: usize| call::reconcile_operations::Operation {
        operation_id: v1::OperationId {
            value: format!("o{number}"),
        },
        agent_id: None,
        resource_provider_id: None,
    };
    let ask = Action::ReconcileOperations(call::ReconcileOperations {
        operations: (0..OPERATIONS).map(named).collect(),
    });
    assert_eq!(world.call(&scheduler, ask), Answer::Accepted);
    world.advance(SECOND / 2);
    let unread = world.events[&scheduler.connection].len();
    assert!((2_048..2_100).contains(&unread), "{unread}");
    let mut told = 0;
    loop {
        let events = world.take_events(scheduler.connection);
        let more = events
            .iter()
            .filter(|event| event.update_operation_status.is_some());
        let more = more.count();
        if more == 0 {
            break;
        }
        told += more;
        world.advance(Duration::ZERO);
    }
    assert_eq!(told, OPERATIONS);
}

/// A framework acknowledged the end of one operation and reused its id for another; the agent still reports both.
#[test]
fn reported_operations_sharing_id_stay_separate() {
    for old_first in [true, false] {
        let (mut world, node, scheduler, _) = begin("cpus:4;mem:1024");
        let mine = reserved(&parse("cpus:1"), "dev", None);
        let told = |number: u8, state: OperationState| {
            let info = named(reserve(&mine), "r");
            let latest_status = OperationStatus {
                operation_id: info.id.clone(),
                state: state.into(),
                ..OperationStatus::default()
            };
            v1::Operation {
                framework_id: Some(framework_id(&scheduler.id)),
                agent_id: None,
                info,
                latest_status,
                statuses: Vec::new(),
                uuid: v1::Uuid {
                    value: vec![number; 16],
                },
            }
        };
        let old = told(1, OperationState::OperationFinished);
        let new = told(2, OperationState::OperationPending);
        let mut report = report(&node, vec![], vec![]);
        report.operations = if old_first {
            vec![old, new]
        } else {
            vec![new, old]
        };
        world.lose_agent(&node);
        world.handshake(AgentMessage::Reregister(report));
        let framework = FrameworkId::new(&scheduler.id).unwrap();
        let expected = (node.agent_id(), [2; 16]);
        assert_eq!(world.core.operations.find(&framework, "r"), Some(&expected));
        let known = &world.core.agents[node.id.as_str()].operations;
        assert!(known.contains_key(&[2; 16]) && !known.contains_key(&[1; 16]));
    }
}
