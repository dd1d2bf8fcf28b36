//! Limits of one ACCEPT and one operation, and of the number of resources of an agent.

use super::*;
use crate::core::state::operation::{
    OPERATION_BYTES_PER_AGENT_MAX, OPERATIONS_PER_ACCEPT_MAX, RESOURCES_PER_AGENT_MAX,
    RESOURCES_PER_OPERATION_MAX, RESOURCES_SCANNED_MAX,
};
use crate::core::state::operation_usage::OperationUsage;

/// A RESERVE of `count` thousandths of a cpu, each listed separately.
fn reserve_pieces(count: usize) -> Message {
    let piece = list(&reserved(&parse("cpus:0.001"), "dev", None));
    convert::to_operation(&Operation::Reserve {
        source: Vec::new(),
        resources: piece.into_iter().cycle().take(count).collect(),
    })
}

/// A thousandth of a cpu, reserved to a role under a label of its own.
fn numbered(to: &str, number: usize) -> Resources {
    labelled(&parse("cpus:0.001"), to, &number.to_string())
}

/// Divides an agent with cpus and mem into `count` resources.
fn divide(world: &mut World, node: &Node, count: usize) {
    // Together with the rest of cpus, and mem, these make `count`.
    let numbers: Vec<usize> = (2..count).collect();
    for numbers in numbers.chunks(RESOURCES_PER_OPERATION_MAX) {
        let pieces = numbers.iter().map(|number| numbered("ads", *number));
        let pieces = pieces.fold(Resources::new(), |sum, piece| sum + piece);
        world.operate_accepted(node, reserve(&pieces));
    }
    assert_eq!(world.agent_total(node).len(), count);
}

#[test]
fn operations_per_accept_are_limited() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let all = |count: usize| with_operations(&[&offer], vec![reserve_pieces(1); count], 0.0);
    let answer = world.call(&scheduler, all(OPERATIONS_PER_ACCEPT_MAX + 1));
    assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
    // The offer still exists.
    world.call_accepted(&scheduler, all(OPERATIONS_PER_ACCEPT_MAX));
    assert_eq!(world.applies(&node).len(), OPERATIONS_PER_ACCEPT_MAX);
    // The limit of tasks covers launches.
    let offer = world.next_offer(&scheduler);
    let launches = vec![launch(Vec::new()); OPERATIONS_PER_ACCEPT_MAX + 1];
    world.call_accepted(&scheduler, with_operations(&[&offer], launches, 0.0));
}

#[test]
fn resources_per_operation_are_limited() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let most = reserve_pieces(RESOURCES_PER_OPERATION_MAX);
    let answer = world.call(&scheduler, with_operations(&[&offer], vec![most; 3], 0.0));
    assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
    let too_many = reserve_pieces(RESOURCES_PER_OPERATION_MAX + 1);
    let operations = vec![named(too_many.clone(), "large"), reserve_pieces(511)];
    world.do_all(&scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), OperationState::OperationError);
    assert_says(told[0].message(), "at most 512");
    assert_eq!(world.applies(&node).len(), 1, "the other one is done");
    let mine = reserved(&parse("cpus:0.511"), "dev", None);
    world.assert_total(&node, parse("cpus:3.489;mem:1024") + &mine);
    let answer = world.operate(&node.id, too_many);
    assert_says(rejection(answer), "at most 512");
}

#[test]
fn resources_per_agent_are_limited() {
    let (mut world, node) = World::with_capable_agent("cpus:8;mem:1024");
    divide(&mut world, &node, RESOURCES_PER_AGENT_MAX);
    let one_more = numbered("ads", 0);
    let answer = world.operate(&node.id, reserve(&one_more));
    assert_says(conflict(answer), "at most 4096");

    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let operation = named(reserve(&numbered("dev", 0)), "r");
    world.do_all(&scheduler, &offer, vec![operation]);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert_says(told[0].message(), "at most 4096");
    assert_eq!(world.agent_total(&node).len(), RESOURCES_PER_AGENT_MAX);

    // An existing reservation may grow, and an undone one makes room.
    let known = numbered("ads", 2);
    world.operate_accepted(&node, reserve(&known));
    let undone = unreserve(&numbered("ads", 3));
    world.operate_accepted(&node, undone);
    world.operate_accepted(&node, reserve(&one_more));
}

#[test]
fn resources_scanned_per_accept_are_limited() {
    const RESOURCES: usize = 2_048;
    let (mut world, node) = World::with_capable_agent("cpus:8;mem:1024");
    divide(&mut world, &node, RESOURCES);
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let most = RESOURCES_SCANNED_MAX / RESOURCES;
    let none = unreserve(&numbered("dev", 0));
    let named = |number: usize| named(none.clone(), &number.to_string());
    let operations = (0..=most).map(named).collect();
    world.do_all(&scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    let (last, others) = told.split_last().unwrap();
    assert_eq!(others.len(), most);
    let lacks = |status: &OperationStatus| status.message().contains("does not contain");
    assert!(others.iter().all(lacks), "{:?}", others.last());
    assert_says(last.message(), "with a later offer");
    // Each reason is truncated.
    assert!(others.iter().all(|status| status.message().len() < 4_096));
}

#[test]
fn unacknowledged_operations_are_limited_in_bytes() {
    const LABEL_BYTES: usize = 3_000;
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let piece = labelled(&parse("cpus:1"), "dev", &"v".repeat(LABEL_BYTES));
    let mut taken = 0;
    let refused = loop {
        let operation = match taken % 2 {
            0 => reserve(&piece),
            _ => unreserve(&piece),
        };
        match world.operate(&node.id, operation) {
            Answer::Accepted => taken += 1,
            refused => break refused,
        }
    };
    assert_says(conflict(refused), "is not acknowledged");
    let most = OPERATION_BYTES_PER_AGENT_MAX / LABEL_BYTES;
    assert!((most / 2..=most).contains(&taken), "{taken} of {most}");
    assert_eq!(world.finish(&node), taken);
    let usage = &world.core.agents[node.id.as_str()].operation_usage;
    assert_eq!(*usage, OperationUsage::default());
    let small = reserved(&parse("mem:1"), "dev", None);
    world.operate_accepted(&node, reserve(&small));
}

/// A master with this memory for operations; a framework with offers of two agents, and another with an offer of a
/// third. Neither gets more unless it revives.
fn with_memory_for_operations(bytes: usize) -> (World, [Node; 3], [Scheduler; 2]) {
    let mut config = config();
    config.memory.operations = bytes;
    let mut world = World::configured(config);
    let node = |port, world: &mut World| world.capable_agent(port, "cpus:4;mem:1024");
    let [first, second] = [5051, 5052].map(|port| node(port, &mut world));
    let suppress = || Action::Suppress { roles: Vec::new() };
    let dev = world.subscribe(framework("dev", &["dev"]));
    world.call_accepted(&dev, suppress());
    let third = node(5053, &mut world);
    let ops = world.subscribe(framework("ops", &["ops"]));
    world.call_accepted(&ops, suppress());
    (world, [first, second, third], [dev, ops])
}

/// Reserves and unreserves `count` times on a framework's offer of an agent. Returns the statuses that the framework
/// got.
fn reserve_again_and_again(
    world: &mut World,
    scheduler: &Scheduler,
    (node, to): (&Node, &str),
    count: usize,
) -> Vec<OperationStatus> {
    let mut offers = world.core.offers.values();
    let offer = offers.find(|offer| offer.agent_id.as_str() == node.id);
    let offer = v1::Offer {
        id: (&offer.expect("an offer of the agent").id).into(),
        ..v1::Offer::default()
    };
    let mine = reserved(&parse("cpus:0.01"), to, None);
    let operations = (0..count).map(|number| {
        let operation = match number % 2 {
            0 => reserve(&mine),
            _ => unreserve(&mine),
        };
        named(operation, &format!("{}-{number}", node.id))
    });
    let operations = operations.collect();
    world.do_all(scheduler, &offer, operations);
    world.operation_events(scheduler)
}

#[test]
fn unacknowledged_operations_of_framework_are_limited() {
    let (mut world, nodes, [dev, ops]) = with_memory_for_operations(40_000);
    let [first, second, third] = &nodes;
    let told = reserve_again_and_again(&mut world, &dev, (first, "dev"), 8);
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(world.finish(first), 8);
    world.operation_events(&dev);
    let told = reserve_again_and_again(&mut world, &dev, (second, "dev"), 8);
    let (last, taken) = (told.last().expect("one too many"), 8 - told.len());
    assert!((1..8).contains(&taken), "{taken}");
    assert_eq!(last.state(), OperationState::OperationError);
    assert_says(last.message(), "acknowledge some first");
    // Another framework has room, and so has an operator.
    let told = reserve_again_and_again(&mut world, &ops, (third, "ops"), 2);
    assert!(told.is_empty(), "{told:?}");
    let small = reserved(&parse("mem:1"), "dev", None);
    world.operate_accepted(second, reserve(&small));
    // Acknowledged operations make room.
    for number in 0..8 {
        let acknowledge = Action::AcknowledgeOperationStatus {
            agent_id: first.id.clone(),
            operation_id: format!("{}-{number}", first.id),
            uuid: [7; 16],
        };
        world.call_accepted(&dev, acknowledge);
    }
    world.call_accepted(&dev, Action::Revive { roles: Vec::new() });
    world.advance(SECOND);
    let told = reserve_again_and_again(&mut world, &dev, (first, "dev"), 2);
    assert!(told.is_empty(), "{told:?}");
    // The operations of a lost agent no longer count.
    world.advance(200 * SECOND);
    assert!(world.core.agents.is_empty());
    world.core.operations.check(std::iter::empty());
}

/// An agent's report of these operations of a framework.
fn told_of(node: &Node, framework: &Scheduler, numbers: std::ops::Range<u8>) -> AgentMessage {
    let mine = reserved(&parse("cpus:0.01"), "dev", None);
    let told = |number: u8| {
        let info = named(reserve(&mine), &format!("{}-told-{number}", node.id));
        let latest_status = OperationStatus {
            operation_id: info.id.clone(),
            state: OperationState::OperationPending.into(),
            ..OperationStatus::default()
        };
        v1::Operation {
            framework_id: Some(v1::FrameworkId {
                value: framework.id.clone(),
            }),
            agent_id: None,
            info,
            latest_status,
            statuses: Vec::new(),
            uuid: v1::Uuid {
                value: vec![number; 16],
            },
        }
    };
    let mut report = report(node, vec![], vec![]);
    report.operations = numbers.map(told).collect();
    AgentMessage::Reregister(report)
}

#[test]
fn false_agent_cannot_exhaust_operation_memory() {
    let (mut world, [first, second, _], [dev, _]) = with_memory_for_operations(64_000);
    let mut false_agent = second;
    for numbers in [0..20, 20..40_u8] {
        world.lose_agent(&false_agent);
        let message = told_of(&false_agent, &dev, numbers);
        false_agent.connection = world.handshake(message);
    }
    let known = &world.core.agents[false_agent.id.as_str()].operations;
    assert_eq!(known.len(), 40);
    let told = reserve_again_and_again(&mut world, &dev, (&first, "dev"), 8);
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn reported_operations_leave_memory_for_everyone() {
    const PART: usize = 20_000;
    let (mut world, [first, _, third], [dev, ops]) = with_memory_for_operations(64 * PART);
    for port in 6000..6064 {
        let mut node = world.capable_agent(port, "cpus:4;mem:1024");
        world.lose_agent(&node);
        let message = told_of(&node, &dev, 0..20);
        node.connection = world.handshake(message);
        let known = &world.core.agents[node.id.as_str()].operations;
        let memory: usize = known.values().map(|record| record.memory).sum();
        assert_eq!(known.len(), 20);
        assert!(port > 6000 || memory > PART / 10 * 9, "{memory}");
    }
    for (scheduler, node, role) in [(&dev, &first, "dev"), (&ops, &third, "ops")] {
        let told = reserve_again_and_again(&mut world, scheduler, (node, role), 8);
        assert!(told.is_empty(), "{told:?}");
    }
    let small = reserved(&parse("mem:1"), "dev", None);
    world.operate_accepted(&first, reserve(&small));
}
