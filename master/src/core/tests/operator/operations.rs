//! Operations by operators: on free resources, and on offered ones.

use meseta_proto::mesos::v1::offer::Operation as Message;
use meseta_resources::Resource;

use super::*;
use crate::core::tests::agents::malicious::refused;
use crate::core::tests::operations::{
    create, destroy, labelled, register_capable, reserve, reserved, unreserve, volume,
    with_operations,
};

impl World {
    pub(in crate::core::tests) fn operate(&mut self, agent: &str, operation: Message) -> Answer {
        self.operate_as(agent, operation, None)
    }

    fn operate_as(&mut self, agent: &str, operation: Message, principal: Option<&str>) -> Answer {
        let answer = self.ask(Request::Operate {
            agent_id: agent.to_owned(),
            operation: Box::new(operation),
            principal: principal.map(str::to_owned),
        });
        match answer {
            Answer::Applied(uuid) => {
                self.applied = uuid;
                Answer::Accepted
            }
            other => other,
        }
    }

    pub(in crate::core::tests) fn operate_accepted(&mut self, node: &Node, operation: Message) {
        assert_eq!(self.operate(&node.id, operation), Answer::Accepted);
    }
}

fn text(answer: &Answer) -> &str {
    match answer {
        Answer::BadRequest(text) | Answer::Conflict(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operator_reserves_and_unreserves_free_resources() {
    let (mut world, node) = World::with_capable_agent("cpus:12;mem:6144");
    let ads = reserved(&parse("cpus:8;mem:4096"), "ads", Some("ops"));
    world.operate_accepted(&node, reserve(&ads));
    assert!(world.outcomes.is_empty(), "taken is not over");
    assert_eq!(world.finish(&node), 1);
    let (uuid, status) = world.outcomes.pop().unwrap();
    assert_eq!(uuid, world.applied);
    assert_eq!(status.state(), v1::OperationState::OperationFinished);
    let frames = world.take_frames(node.connection);
    assert!(matches!(frames[0], MasterMessage::AcknowledgeOperation(_)));
    world.assert_total(&node, parse("cpus:4;mem:2048") + &ads);
    let scheduler = world.subscribe(framework("f", &["ads"]));
    let offer = world.offers(&scheduler).pop().unwrap();
    assert_eq!(total_of(&offer), parse("cpus:4;mem:2048") + &ads);
    world.operate_accepted(&node, unreserve(&ads));
    assert_eq!(world.rescinded(&scheduler), 1);
    world.assert_total(&node, parse("cpus:12;mem:6144"));
}

#[test]
fn operator_reservation_rescinds_conflicting_offer() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    assert_eq!(world.offers(&scheduler).len(), 1);
    let all = reserved(&parse("cpus:4;mem:1024"), "ads", None);
    world.operate_accepted(&node, reserve(&all));
    assert_eq!(world.rescinded(&scheduler), 1);
    world.advance(10 * SECOND);
    assert!(world.offers(&scheduler).is_empty(), "all of it is for ads");
    let other = world.subscribe(framework("g", &["ads"]));
    assert_eq!(total(&world.offers(&other)), all);
    world.operate_accepted(&node, unreserve(&all));
    assert_eq!(world.rescinded(&other), 1);
}

#[test]
fn operator_reserves_partly_offered_resources() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    // A task takes half of the offer and ends; its resources and the rest are offered separately.
    world.launch(&scheduler, &offer, "t", "cpus:2;mem:512");
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.live(6 * SECOND, &[&node]);
    let ads = reserved(&parse("cpus:4;mem:1024"), "ads", None);
    world.operate_accepted(&node, reserve(&ads));
    world.assert_total(&node, &ads);
    world.operate_accepted(&node, unreserve(&ads));
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn labels_must_be_given_to_unreserve() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let labelled = |value: &str| labelled(&parse("cpus:1"), "ads", value);
    world.operate_accepted(&node, reserve(&labelled("v")));
    let bare = reserved(&parse("cpus:1"), "ads", None);
    for wrong in [bare, labelled("w")] {
        let answer = world.operate(&node.id, unreserve(&wrong));
        assert!(matches!(answer, Answer::Conflict(_)), "{answer:?}");
    }
    world.operate_accepted(&node, unreserve(&labelled("v")));
}

/// A cpu, reserved under a label of this size.
fn with_label(bytes: usize) -> Resources {
    labelled(&parse("cpus:1"), "ads", &"v".repeat(bytes))
}

#[test]
fn operator_reservation_survives_agent_return() {
    let (mut world, mut node) = World::with_capable_agent("cpus:4;mem:1024");
    let before = world.core.described_bytes();
    let long = with_label(4000);
    world.operate_accepted(&node, reserve(&long));
    assert!(world.core.described_bytes() > before + 4000);
    world.core.config.memory.agents = 1;
    let connection = node.connection;
    world.input(Input::AgentGone { connection });
    node.register.checkpointed_resources = to_wire(&long, Format::PostRefinement);
    let node = world.return_empty(&node);
    assert!(refused(&mut world, node.connection).is_none());
    world.operate_accepted(&node, unreserve(&long));
    assert_eq!(world.core.described_bytes(), before);
}

#[test]
fn operation_exceeding_agent_frame_is_refused() {
    let mut world = World::new();
    let mut said = register_capable(5051, "cpus:4;mem:1024");
    said.frame_bytes_max = Some(7_000);
    let node = world.agent_that_says(said);
    let answer = world.operate(&node.id, reserve(&with_label(4_000)));
    assert_says(text(&answer), "7000 bytes at most");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
    let short = reserve(&with_label(2_000));
    world.operate_accepted(&node, short);
}

#[test]
fn reservation_with_long_labels_is_refused() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let long = with_label(4 << 20);
    let answer = world.operate(&node.id, reserve(&long));
    assert_says(text(&answer), "labels");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn reserving_missing_resources_is_a_conflict() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let too_much = reserved(&parse("cpus:5"), "ads", None);
    let answer = world.operate(&node.id, reserve(&too_much));
    assert!(matches!(answer, Answer::Conflict(_)));
    assert!(
        text(&answer).ends_with("does not contain cpus:5"),
        "{answer:?}"
    );
    assert_eq!(
        world.rescinded(&scheduler),
        0,
        "no offer is taken back in vain"
    );
    world.launch(&scheduler, &offer, "t", "cpus:4;mem:64");
    let one = reserved(&parse("cpus:1"), "ads", None);
    let answer = world.operate(&node.id, reserve(&one));
    assert!(matches!(answer, Answer::Conflict(_)), "in use: {answer:?}");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
    let answer = world.operate("nosuch", reserve(&one));
    assert_eq!(text(&answer), "No agent found with specified ID");
}

#[test]
fn the_words_are_those_of_mesos() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk:100");
    let place = format!(
        "on agent {} at slave(1)@10.0.0.1:5051 (node.example)",
        node.id
    );
    let answer = world.operate(&node.id, reserve(&parse("cpus:1")));
    assert_eq!(
        text(&answer),
        format!("Invalid RESERVE operation {place}: Resource cpus:1 is not dynamically reserved")
    );
    let disk = reserved(&parse("disk:64"), "dev", Some("ops"));
    let data = volume(&disk, "vol1", false);
    world.operate_accepted(&node, reserve(&disk));
    world.operate_accepted(&node, create([&data]));
    let answer = world.operate(&node.id, create([&data]));
    assert_eq!(
        text(&answer),
        format!("Invalid CREATE operation {place}: Persistence ID 'vol1' is not unique")
    );
    let answer = world.operate(&node.id, destroy([volume(&disk, "nosuch", false)]));
    assert_eq!(
        text(&answer),
        "Invalid DESTROY operation: Persistent volumes not found"
    );
    let answer = world.operate(&node.id, unreserve(&disk));
    assert!(
        text(&answer).ends_with("does not contain disk(reservations: [(DYNAMIC,dev,ops)]):64"),
        "{answer:?}"
    );
    world.operate_accepted(&node, destroy([data]));
    world.operate_accepted(&node, unreserve(&disk));
    world.assert_total(&node, parse("cpus:4;mem:1024;disk:100"));
}

#[test]
fn error_names_reservation_of_other_principal() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let reservation = |who| reserved(&parse("cpus:1"), "ads", who);
    let theirs = reservation(Some("ops"));
    world.operate_accepted(&node, reserve(&theirs));
    let answer = world.operate(&node.id, unreserve(&reservation(None)));
    assert!(
        text(&answer).ends_with(
            "does not contain cpus(reservations: [(DYNAMIC,ads)]):1; the role has \
             cpus(reservations: [(DYNAMIC,ads,ops)]):1 instead: a reservation is named whole, with its \
             principal and labels"
        ),
        "{answer:?}"
    );
    world.operate_accepted(&node, unreserve(&theirs));
}

#[test]
fn requesting_principal_must_be_reserver() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let by = |principal| reserved(&parse("cpus:1"), "ads", principal);
    let answer = world.operate_as(&node.id, reserve(&by(Some("bob"))), Some("alice"));
    assert_says(text(&answer), "with principal 'bob'");
    let answer = world.operate_as(&node.id, reserve(&by(None)), Some("alice"));
    assert_says(text(&answer), "no principal set");
    let answer = world.operate_as(&node.id, reserve(&by(Some("alice"))), Some("alice"));
    assert_eq!(answer, Answer::Accepted);
    // Anyone may unreserve, unless a rule forbids it.
    let answer = world.operate_as(&node.id, unreserve(&by(Some("alice"))), Some("bob"));
    assert_eq!(answer, Answer::Accepted);
}

#[test]
fn source_moves_a_reservation() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let (a, b) = (
        reserved(&parse("cpus:1"), "a", None),
        reserved(&parse("cpus:1"), "b", None),
    );
    world.operate_accepted(&node, reserve(&a));
    let mut moved = reserve(&b);
    moved.reserve.as_mut().unwrap().source = to_wire(&a, Format::PostRefinement);
    world.operate_accepted(&node, moved);
    world.assert_total(&node, parse("cpus:3;mem:1024") + &b);
    let two = reserved(&parse("cpus:2"), "a", None);
    let mut grown = reserve(&two);
    grown.reserve.as_mut().unwrap().source = to_wire(&b, Format::PostRefinement);
    let answer = world.operate(&node.id, grown);
    assert_says(text(&answer), "identical resource quantities");
}

/// A RESERVE that converts `source` to `target`.
fn moved(source: &Resources, target: &Resources) -> Message {
    let mut message = reserve(target);
    message.reserve.as_mut().unwrap().source = to_wire(source, Format::PostRefinement);
    message
}

#[test]
fn static_reservation_cannot_be_moved() {
    let mut world = World::new();
    let configured = parse("cpus:4;mem:1024;cpus(ads):2");
    let node = world.capable_agent(5051, "cpus:4;mem:1024;cpus(ads):2");
    let (plain, fixed) = (parse("cpus:2"), parse("cpus(ads):2"));
    let evil = reserved(&plain, "evil", Some("eve"));
    let refined = reserved(&fixed, "ads/x", Some("eve"));
    for (source, target) in [(&fixed, &evil), (&plain, &refined), (&refined, &evil)] {
        let answer = world.operate_as(&node.id, moved(source, target), Some("eve"));
        let told = text(&answer);
        assert!(told.contains("static reservation"), "{source}: {told}");
        world.assert_total(&node, &configured);
    }
    // A refinement of the static reservation is allowed.
    let refine = moved(&fixed, &refined);
    let answer = world.operate_as(&node.id, refine, Some("eve"));
    assert_eq!(answer, Answer::Accepted);
    let undo = unreserve(&refined);
    world.operate_accepted(&node, undo);
    world.assert_total(&node, &configured);
}

#[test]
fn every_pushed_reservation_names_requester() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let plain = parse("cpus:2");
    let forged = reserved(&reserved(&plain, "ads", Some("ops")), "ads/x", Some("eve"));
    let answer = world.operate_as(&node.id, moved(&plain, &forged), Some("eve"));
    assert_says(text(&answer), "with principal 'ops'");
    let own = reserved(&reserved(&plain, "ads", Some("eve")), "ads/x", Some("eve"));
    let answer = world.operate_as(&node.id, moved(&plain, &own), Some("eve"));
    assert_eq!(answer, Answer::Accepted);
    // An unchanged reservation may belong to another principal.
    let by_ops = reserved(&parse("cpus:1"), "web", Some("ops"));
    world.operate_accepted(&node, reserve(&by_ops));
    let further = reserved(&by_ops, "web/x", Some("eve"));
    let answer = world.operate_as(&node.id, moved(&by_ops, &further), Some("eve"));
    assert_eq!(answer, Answer::Accepted);
}

#[test]
fn volume_role_cannot_be_changed() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk:100");
    let disk = |role: &str| reserved(&parse("disk:10"), role, None);
    let theirs = volume(&disk("a"), "v", false);
    world.operate_accepted(&node, reserve(&disk("a")));
    let made = create([&theirs]);
    world.operate_accepted(&node, made);
    let before = world.agent_total(&node);
    let theirs: Resources = theirs.into();
    let other: Resources = volume(&disk("b"), "v", false).into();
    let below = reserved(&theirs, "a/b", None);
    for message in [
        moved(&theirs, &other),
        moved(&theirs, &below),
        reserve(&below),
    ] {
        let answer = world.operate(&node.id, message);
        let told = text(&answer);
        assert_says(told, "destroy the volume first");
        world.assert_total(&node, &before);
    }
}

#[test]
fn a_disconnected_agent_cannot_be_told() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    world.lose_agent(&node);
    let one = reserved(&parse("cpus:1"), "ads", None);
    let answer = world.operate(&node.id, reserve(&one));
    assert!(matches!(answer, Answer::Conflict(_)), "{answer:?}");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn operator_destroys_framework_created_volume() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk(dev):100");
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let data = volume(&parse("disk(dev):100"), "v", false);
    let action = with_operations(&[&offer], vec![create([&data])], 0.0);
    world.call(&scheduler, action);
    world.advance(SECOND);
    world.operate_accepted(&node, destroy([&data]));
    world.take_events(scheduler.connection);
    world.operate_accepted(&node, create([&data]));
    // The rescinded rest is offered again at once.
    let offers = world.offers(&scheduler);
    world.call(
        &scheduler,
        with_operations(&offers, vec![destroy([data])], 0.0),
    );
    let total = parse("cpus:4;mem:1024;disk(dev):100");
    world.assert_total(&node, &total);
}

/// The right to destroy depends on the creator, so a false creator would allow destroying everything.
#[test]
fn volume_principal_must_be_its_creator() {
    let by = |creator: &str| {
        let volume = volume(&parse("disk(dev):100"), "v", false);
        let mut parts = volume.into_parts();
        let disk = parts.disk.as_mut().expect("a volume");
        let persistence = disk.persistence.as_mut().expect("one that persists");
        persistence.principal = Some(creator.into());
        Resource::new(parts).expect("a volume")
    };
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk(dev):100");
    world.operate_accepted(&node, create([by("owner")]));
    let before = world.agent_total(&node);
    let answer = world.operate(&node.id, destroy([by("thief")]));
    let refused = "Invalid DESTROY operation: Persistent volumes not found";
    assert_eq!(answer, Answer::BadRequest(refused.to_owned()));
    world.assert_total(&node, &before);
    world.operate_accepted(&node, destroy([by("owner")]));
}

#[test]
fn a_volume_fits_its_reservation() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk:1000");
    let mine = reserved(&parse("disk:64"), "dev", None);
    world.operate_accepted(&node, reserve(&mine));
    let larger = volume(&reserved(&parse("disk:65"), "dev", None), "v", false);
    let foreign = volume(&reserved(&parse("disk:64"), "ops", None), "v", false);
    for wrong in [larger, foreign] {
        let answer = world.operate(&node.id, create([wrong]));
        assert!(matches!(answer, Answer::Conflict(_)), "{answer:?}");
    }
    world.assert_total(&node, parse("cpus:4;mem:1024;disk:936") + &mine);
}

#[test]
fn removed_agent_takes_its_reservations() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let all = reserved(&parse("cpus:4"), "ads", None);
    world.operate_accepted(&node, reserve(&all));
    let leave = meseta::Unregister {
        reason: "the end".to_owned(),
    };
    world.say(&node, AgentMessage::Unregister(leave));
    assert!(world.core.agents.is_empty());
    let answer = world.operate(&node.id, unreserve(&all));
    assert_eq!(text(&answer), "No agent found with specified ID");
    let fresh = world.capable_agent(5052, "cpus:4;mem:1024");
    world.assert_total(&fresh, parse("cpus:4;mem:1024"));
}

/// The rest of the agent is offered again at once, to the same framework too.
#[test]
fn unreserved_rest_is_offered_again_immediately() {
    let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    assert_eq!(world.offers(&scheduler).len(), 1);
    let ads = reserved(&parse("cpus:1"), "ads", None);
    world.operate_accepted(&node, reserve(&ads));
    let events = world.take_events(scheduler.connection);
    let offered: Vec<_> = events
        .iter()
        .filter_map(|event| event.offers.as_ref())
        .flat_map(|offers| &offers.offers)
        .collect();
    let [offer] = offered.as_slice() else {
        panic!("one offer: {events:?}");
    };
    let resources = convert::resources(&offer.resources).unwrap();
    assert_eq!(resources.unallocate(), parse("cpus:3;mem:1024"));
}
