//! The scheduler's memory of offers and of the ports of agents.

use meseta_proto::mesos::v1::TaskState;
use meseta_resources::{Resources, Role};

use super::*;
use crate::placement::Offer;

fn offer_of(number: usize, role: &str, resources: &str) -> Offer {
    let offer = Offer {
        id: format!("x{number}"),
        agent_id: format!("b{number}"),
        hostname: format!("b{number}"),
        role: role.to_owned(),
        ..Offer::default()
    };
    offer.with_resources(Resources::parse(resources, &Role::star()).expect("resources"))
}

fn fits(world: &World, spec: &JobSpec) -> usize {
    plan_of(world, spec).fits
}

#[test]
fn plan_forgets_rescinded_and_lost() {
    let mut world = World::new(1, 0);
    submit(&mut world, batch("some", 1));
    // No instance with a volume fits, so that all offers stay as they are.
    let mut wide = batch("new", 4);
    wide.task.requests.insert("cpus".to_owned(), 2.0);
    let mut waiting = batch("waits", 1);
    waiting.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, waiting);
    for number in 0..3 {
        let offer = offer_of(number, "r", "cpus:3");
        world.step(Input::Offers(vec![offer]));
    }
    assert_eq!(fits(&world, &wide), 3);
    world.step(Input::Rescinded("x0".to_owned()));
    assert_eq!(fits(&world, &wide), 2);
    world.step(Input::AgentLost("b1".to_owned()));
    assert_eq!(fits(&world, &wide), 1);
    world.step(Input::AgentLost("b".to_owned()));
    assert_eq!(fits(&world, &wide), 1);
}

#[test]
fn plan_keeps_newest_agents_only() {
    let mut world = World::new(1, 0);
    submit(&mut world, batch("some", 0));
    for number in 0..10_100 {
        let offer = offer_of(number, "r", "cpus:1");
        world.step(Input::Offers(vec![offer]));
    }
    let mut wide = batch("wide", 1);
    wide.task.requests.insert("cpus".to_owned(), 8.0);
    assert_eq!(fits(&world, &wide), 0);
    world.step(Input::Offers(vec![offer_of(20_000, "r", "cpus:16")]));
    assert_eq!(fits(&world, &wide), 1);
    let other = JobSpec {
        role: "t".to_owned(),
        ..batch("other", 1)
    };
    world.step(Input::Offers(vec![offer_of(20_001, "t", "cpus:1")]));
    assert_eq!(fits(&world, &other), 1);
}

/// Regression: a freed address that other programs still knew was another task's a moment later.
#[test]
fn freed_port_waits_for_its_turn() {
    let mut world = World::new(1, 1);
    let ports = Resources::parse("ports:[31000-31005]", &Role::star()).expect("ports");
    world.add_resources("a0", &ports);
    let mut spec = service(1, 1, 0);
    spec.task.ports = vec!["http".to_owned()];
    submit(&mut world, spec);
    let mut used = Vec::new();
    for _ in 0..7 {
        world.calm(10, None);
        let tasks = world.state.job("web").expect("a job").tasks;
        let task = tasks.expect("tasks").pop().expect("one task");
        used.push(task.ports["http"]);
        updates::ended(&mut world, &task.task_id, TaskState::TaskLost);
        // A started scheduler continues at the same ports.
        if used.len() == 2 {
            world.calm(10, None);
            world.crash();
        }
    }
    let all: std::collections::BTreeSet<u16> = used.iter().copied().collect();
    assert!(
        used[..6].windows(2).all(|pair| pair[0] != pair[1]),
        "{used:?}"
    );
    assert_eq!(all.len(), 6, "{used:?}");
}

#[test]
fn plan_seeks_offers_for_empty_role() {
    let mut world = World::new(1, 2);
    submit(&mut world, batch("some", 1));
    world.success_in_ten = 10;
    world.calm(30, None);
    assert!(world.is_suppressed("r"));
    let look = |world: &mut World| {
        let role = "r".to_owned();
        let id = world.request(Request::LookForOffers { role });
        world.sync();
        world.answers[&id].clone().expect("an answer")
    };
    // Remembered offers may be gone.
    let last = look(&mut world);
    assert_eq!(fits(&world, &batch("new", 9)), 0);
    assert!(!world.is_suppressed("r"));
    assert_eq!(world.state.offers_since("r", last), Some(0));
    world.make_offers();
    while world.deliver() {}
    world.sync();
    assert_eq!(world.state.offers_since("r", last), Some(2));
    assert_eq!(fits(&world, &batch("new", 9)), 8);
    // Simultaneous plans forget nothing, and the request is over soon.
    look(&mut world);
    assert_eq!(fits(&world, &batch("new", 9)), 8);
    world.pass(Duration::from_secs(4));
    assert!(world.is_suppressed("r"));
    // There are no offers without a master.
    world.step(Input::Disconnected);
    look(&mut world);
    assert_eq!(world.state.offers_since("r", 0), None);
}
