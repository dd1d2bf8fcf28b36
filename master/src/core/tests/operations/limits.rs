//! How much one ACCEPT and one operation may ask for, and into how many resources an agent's are divided.

use meseta_resources::Label;

use super::*;
use crate::core::state::operation::{
    OPERATION_BYTES_PER_AGENT_MAX, OPERATIONS_PER_ACCEPT_MAX, RESOURCES_PER_AGENT_MAX,
    RESOURCES_PER_OPERATION_MAX, RESOURCES_SCANNED_MAX,
};

/// RESERVE of so many thousandths of a cpu, each named apart.
fn reserve_pieces(count: usize) -> Message {
    let piece = list(&reserved(&parse("cpus:0.001"), "dev", None));
    convert::to_operation(&Operation::Reserve {
        source: Vec::new(),
        resources: piece.into_iter().cycle().take(count).collect(),
    })
}

/// A thousandth of a cpu, reserved for a role under a label of its own.
fn labelled(to: &str, number: usize) -> Resources {
    let mut reservation = Reservation::dynamic(role(to), None);
    let label = Label {
        key: "k".to_owned(),
        value: Some(number.to_string()),
    };
    reservation.labels = std::iter::once(label).collect();
    parse("cpus:0.001").push_reservation(&reservation).unwrap()
}

/// Divides an agent that has cpus and mem into so many resources.
fn divide(world: &mut World, node: &Node, count: usize) {
    // With what is left of cpus, and mem, these are all.
    let numbers: Vec<usize> = (2..count).collect();
    for numbers in numbers.chunks(RESOURCES_PER_OPERATION_MAX) {
        let pieces = numbers.iter().map(|number| labelled("ads", *number));
        let pieces = pieces.fold(Resources::new(), |sum, piece| sum + piece);
        assert_eq!(world.operate(&node.id, reserve(&pieces)), Answer::Accepted);
    }
    assert_eq!(world.agent_total(node).len(), count);
}

#[test]
fn an_accept_has_so_many_operations_at_most() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let all = |count: usize| with_operations(&[&offer], vec![reserve_pieces(1); count], 0.0);
    let answer = world.call(&scheduler, all(OPERATIONS_PER_ACCEPT_MAX + 1));
    assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
    assert_eq!(world.agent_total(&node), parse("cpus:4;mem:1024"));
    // The offer is there still.
    let answer = world.call(&scheduler, all(OPERATIONS_PER_ACCEPT_MAX));
    assert_eq!(answer, Answer::Accepted);
    assert_eq!(world.applies(&node).len(), OPERATIONS_PER_ACCEPT_MAX);
    // Launches are counted by their tasks.
    let offer = world.next_offer(&scheduler);
    let launches = vec![launch(Vec::new()); OPERATIONS_PER_ACCEPT_MAX + 1];
    let answer = world.call(&scheduler, with_operations(&[&offer], launches, 0.0));
    assert_eq!(answer, Answer::Accepted);
}

#[test]
fn an_operation_names_so_many_resources_at_most() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024");
    let most = reserve_pieces(RESOURCES_PER_OPERATION_MAX);
    let answer = world.call(&scheduler, with_operations(&[&offer], vec![most; 3], 0.0));
    assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
    let too_many = reserve_pieces(RESOURCES_PER_OPERATION_MAX + 1);
    let operations = vec![named(too_many.clone(), "large"), reserve_pieces(511)];
    do_all(&mut world, &scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), OperationState::OperationError);
    assert!(told[0].message().contains("at most 512"), "{told:?}");
    assert_eq!(world.applies(&node).len(), 1, "the other one is done");
    let mine = reserved(&parse("cpus:0.511"), "dev", None);
    assert_eq!(
        world.agent_total(&node),
        parse("cpus:3.489;mem:1024") + &mine
    );
    let answer = world.operate(&node.id, too_many);
    let Answer::BadRequest(text) = &answer else {
        panic!("{answer:?}");
    };
    assert!(text.contains("at most 512"), "{text}");
}

#[test]
fn operations_divide_what_an_agent_has_into_so_many_resources_at_most() {
    let mut world = World::new();
    let node = world.capable_agent(5051, "cpus:8;mem:1024");
    divide(&mut world, &node, RESOURCES_PER_AGENT_MAX);
    let one_more = labelled("ads", 0);
    let answer = world.operate(&node.id, reserve(&one_more));
    let Answer::Conflict(text) = &answer else {
        panic!("{answer:?}");
    };
    assert!(text.contains("at most 4096"), "{text}");

    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offer = world.offers(&scheduler).pop().unwrap();
    let operation = named(reserve(&labelled("dev", 0)), "r");
    do_all(&mut world, &scheduler, &offer, vec![operation]);
    let told = world.operation_events(&scheduler);
    assert_eq!(told.len(), 1);
    assert!(told[0].message().contains("at most 4096"), "{told:?}");
    assert_eq!(world.agent_total(&node).len(), RESOURCES_PER_AGENT_MAX);

    // What is there may have more, and what is undone makes room.
    let known = labelled("ads", 2);
    assert_eq!(world.operate(&node.id, reserve(&known)), Answer::Accepted);
    let undone = unreserve(&labelled("ads", 3));
    assert_eq!(world.operate(&node.id, undone), Answer::Accepted);
    assert_eq!(
        world.operate(&node.id, reserve(&one_more)),
        Answer::Accepted
    );
}

#[test]
fn the_operations_of_an_accept_go_through_so_many_resources_at_most() {
    const RESOURCES: usize = 2_048;
    let mut world = World::new();
    let node = world.capable_agent(5051, "cpus:8;mem:1024");
    divide(&mut world, &node, RESOURCES);
    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offer = world.offers(&scheduler).pop().unwrap();
    let most = RESOURCES_SCANNED_MAX / RESOURCES;
    let none = unreserve(&labelled("dev", 0));
    let named = |number: usize| named(none.clone(), &number.to_string());
    let operations = (0..=most).map(named).collect();
    do_all(&mut world, &scheduler, &offer, operations);
    let told = world.operation_events(&scheduler);
    let (last, others) = told.split_last().unwrap();
    assert_eq!(others.len(), most);
    let lacks = |status: &OperationStatus| status.message().contains("does not contain");
    assert!(others.iter().all(lacks), "{:?}", others.last());
    assert!(last.message().contains("with a later offer"), "{last:?}");
    // Each is told an excerpt.
    assert!(others.iter().all(|status| status.message().len() < 4_096));
}

#[test]
fn operations_whose_end_nobody_acknowledges_take_so_many_bytes_at_most() {
    const LABEL_BYTES: usize = 3_000;
    let mut world = World::new();
    let node = world.capable_agent(5051, "cpus:4;mem:1024");
    let mut reservation = Reservation::dynamic(role("dev"), None);
    let label = Label {
        key: "k".to_owned(),
        value: Some("v".repeat(LABEL_BYTES)),
    };
    reservation.labels = std::iter::once(label).collect();
    let piece = parse("cpus:1").push_reservation(&reservation).unwrap();
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
    let Answer::Conflict(text) = &refused else {
        panic!("{refused:?}");
    };
    assert!(text.contains("is not acknowledged"), "{text}");
    let most = OPERATION_BYTES_PER_AGENT_MAX / LABEL_BYTES;
    assert!((most / 2..=most).contains(&taken), "{taken} of {most}");
    assert_eq!(world.finish(&node), taken);
    assert_eq!(world.core.agents[node.id.as_str()].operation_bytes, 0);
    let small = reserved(&parse("mem:1"), "dev", None);
    assert_eq!(world.operate(&node.id, reserve(&small)), Answer::Accepted);
}
