//! Inverse offers: their receivers, their repetition, and the answers as operators see them.

use meseta_proto::mesos::v1::maintenance::Schedule;

use super::*;
use crate::core::tests::operator::maintenance::{down, node_machine, schedule, window};
use meseta_allocator::InverseAnswer;

/// An agent with planned maintenance, and a framework with a task there.
fn scheduled() -> (World, Node, Scheduler, v1::InverseOffer) {
    scheduled_with(config())
}

fn scheduled_with(config: Config) -> (World, Node, Scheduler, v1::InverseOffer) {
    let mut world = World::configured(config);
    let node = world.agent(5051, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.administer_done(plan());
    let mut asked = world.inverse_offers(&scheduler);
    assert_eq!(asked.len(), 1);
    let asked = asked.remove(0);
    (world, node, scheduler, asked)
}

fn plan() -> Administration {
    schedule(vec![window(vec![node_machine()])])
}

fn call_off() -> Administration {
    schedule(Vec::new())
}

fn answer(offers: &[&v1::InverseOffer], answer: InverseAnswer, seconds: f64) -> Action {
    Action::AnswerInverseOffers {
        answer,
        ids: offers.iter().map(|offer| offer.id.clone()).collect(),
        filters: Some(v1::Filters {
            refuse_seconds: Some(seconds),
        }),
    }
}

impl World {
    fn inverse_offers(&mut self, scheduler: &Scheduler) -> Vec<v1::InverseOffer> {
        let events = self.take_events(scheduler.connection);
        events
            .into_iter()
            .filter_map(|event| event.inverse_offers)
            .flat_map(|offers| offers.inverse_offers)
            .collect()
    }

    /// The ids of inverse offers that were withdrawn.
    fn withdrawn(&mut self, scheduler: &Scheduler) -> Vec<String> {
        let events = self.take_events(scheduler.connection);
        events
            .into_iter()
            .filter_map(|event| event.rescind_inverse_offer)
            .map(|rescind| rescind.inverse_offer_id.value)
            .collect()
    }

    /// The answers about an agent as operators see them.
    fn replies(&mut self, node: &Node) -> Vec<(String, bool, Duration)> {
        let snapshot = self.core.snapshot();
        let mut agents = snapshot.agents.iter();
        let agent = agents.find(|agent| agent.id().as_str() == node.id).unwrap();
        agent
            .inverse_replies
            .iter()
            .map(|(framework, reply)| (framework.to_string(), reply.accepted, reply.at))
            .collect()
    }
}

#[test]
fn inverse_offer_matches_mesos_format() {
    let (mut world, node, scheduler, asked) = scheduled();
    assert_eq!(asked.framework_id.value, scheduler.id);
    assert_eq!(asked.agent_id.as_ref().unwrap().value, node.id);
    assert!(asked.id.value.starts_with("m-O"));
    let url = asked.url.as_ref().unwrap();
    assert_eq!(url.path.as_deref(), Some("/slave(1)"));
    assert_eq!(url.address.ip.as_deref(), Some("10.0.0.1"));
    let planned = window(vec![node_machine()]).unavailability;
    assert_eq!(asked.unavailability, planned);
    assert!(asked.resources.is_empty());
    // Operators see the same inverse offer.
    let shown = crate::operator_messages::frameworks(&world.core.snapshot());
    assert_eq!(shown.frameworks[0].inverse_offers, [asked]);
    // An unanswered inverse offer is not repeated.
    world.live(Duration::from_secs(10), &[&node]);
    assert!(world.inverse_offers(&scheduler).is_empty());
    assert!(world.replies(&node).is_empty());
}

#[test]
fn offer_holders_get_inverse_offers() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    world.administer(plan());
    let holder = world.try_subscribe(framework("holder", &["a"]));
    let other = world.subscribe(framework("other", &["b"]));
    world.live(SECOND, &[&node]);
    let events = world.take_events(holder);
    let offered = events.iter().find_map(|event| event.offers.as_ref());
    assert!(offered.unwrap().offers[0].unavailability.is_some());
    assert!(events.iter().any(|event| event.inverse_offers.is_some()));
    assert!(world.inverse_offers(&other).is_empty());
    // Operators see the offer and the inverse offer, both of the holder only.
    let snapshot = world.core.snapshot();
    let shown = crate::operator_messages::frameworks(&snapshot).frameworks;
    assert_eq!(shown[0].offers, offered.unwrap().offers);
    assert_eq!(
        (shown[0].inverse_offers.len(), shown[1].inverse_offers.len()),
        (1, 0)
    );
}

#[test]
fn inverse_offer_repeats_after_filter() {
    for (answer_type, accepted) in [
        (InverseAnswer::Accept, true),
        (InverseAnswer::Decline, false),
    ] {
        let (mut world, node, scheduler, asked) = scheduled();
        let now = world.now.unix;
        let call = answer(&[&asked], answer_type, 30.0);
        world.call_accepted(&scheduler, call);
        let reply = (scheduler.id.clone(), accepted, now);
        assert_eq!(world.replies(&node), std::slice::from_ref(&reply));
        world.live(Duration::from_secs(29), &[&node]);
        assert!(world.inverse_offers(&scheduler).is_empty());
        world.live(Duration::from_secs(3), &[&node]);
        let again = world.inverse_offers(&scheduler);
        assert_eq!(again.len(), 1);
        assert_ne!(again[0].id, asked.id);
        assert_eq!(world.replies(&node), [reply], "the last answer stands");
    }
}

#[test]
fn a_revived_framework_is_asked_again() {
    let (mut world, node, scheduler, asked) = scheduled();
    world.call(&scheduler, answer(&[&asked], InverseAnswer::Decline, 1e6));
    world.live(Duration::from_secs(20), &[&node]);
    assert!(world.inverse_offers(&scheduler).is_empty());
    world.call(&scheduler, Action::Revive { roles: Vec::new() });
    assert_eq!(world.inverse_offers(&scheduler).len(), 1);
}

#[test]
fn answers_to_unknown_offers_are_ignored() {
    let (mut world, node, scheduler, asked) = scheduled();
    let other = world.subscribe(framework("other", &["dev"]));
    let mut unknown = asked.clone();
    unknown.id.value = "m-O99".to_owned();
    let mut broken = asked.clone();
    broken.id.value = "\u{0}/..".to_owned();
    for answer_type in [InverseAnswer::Accept, InverseAnswer::Decline] {
        let of_others = answer(&[&asked], answer_type, 0.0);
        world.call_accepted(&other, of_others);
        let of_nobody = answer(&[&unknown, &broken], answer_type, 0.0);
        world.call_accepted(&scheduler, of_nobody);
        let nothing = answer(&[], answer_type, 0.0);
        world.call_accepted(&scheduler, nothing);
    }
    assert!(world.replies(&node).is_empty());
    world.call(
        &scheduler,
        answer(&[&asked, &asked], InverseAnswer::Accept, 0.0),
    );
    assert_eq!(world.replies(&node).len(), 1);
}

#[test]
fn changed_schedule_withdraws_inverse_offers() {
    let (mut world, node, scheduler, asked) = scheduled();
    world.call(&scheduler, answer(&[&asked], InverseAnswer::Accept, 0.0));
    world.live(Duration::from_secs(2), &[&node]);
    let asked = world.inverse_offers(&scheduler).remove(0);
    let mut later = window(vec![node_machine()]);
    later.unavailability.start.nanoseconds += 1;
    let windows = vec![later.clone()];
    let moved = Administration::UpdateSchedule(Box::new(Schedule { windows }));
    world.administer_done(moved);
    let events = world.take_events(scheduler.connection);
    let withdrawn = events
        .iter()
        .position(|event| event.rescind_inverse_offer.is_some());
    let asked_again = events
        .iter()
        .position(|event| event.inverse_offers.is_some());
    assert!(withdrawn.unwrap() < asked_again.unwrap());
    let rescind = events[withdrawn.unwrap()].rescind_inverse_offer.as_ref();
    assert_eq!(rescind.unwrap().inverse_offer_id, asked.id);
    let offers = events[asked_again.unwrap()].inverse_offers.as_ref();
    let again = &offers.unwrap().inverse_offers[0];
    assert_eq!(again.unavailability, later.unavailability);
    assert!(world.replies(&node).is_empty());
    world.administer_done(call_off());
    assert_eq!(
        world.withdrawn(&scheduler),
        std::slice::from_ref(&again.id.value)
    );
    world.live(Duration::from_secs(3), &[&node]);
    assert!(world.inverse_offers(&scheduler).is_empty());
}

#[test]
fn lost_agent_withdraws_its_inverse_offers() {
    let (mut world, node, scheduler, asked) = scheduled();
    let connection = node.connection;
    world.input(Input::AgentGone { connection });
    assert_eq!(world.withdrawn(&scheduler), [asked.id.value]);
    world.return_running(&node, &scheduler, Vec::new());
    let asked = world.inverse_offers(&scheduler).remove(0);
    world.administer(down(vec![node_machine()]));
    let events = world.take_events(scheduler.connection);
    let withdrawn = events
        .iter()
        .find_map(|event| event.rescind_inverse_offer.as_ref());
    assert_eq!(withdrawn.unwrap().inverse_offer_id, asked.id);
    assert!(world.core.inverse_offers_are_empty());
}

#[test]
fn a_new_stream_is_asked_anew() {
    let (mut world, node, scheduler, asked) = scheduled();
    let info = info_of(&scheduler);
    let connection = world.try_subscribe(info.clone());
    let events = world.take_events(connection);
    let again = first(&events, |event| event.inverse_offers.as_ref());
    assert_ne!(again.inverse_offers[0].id, asked.id);
    assert!(world.withdrawn(&scheduler).is_empty(), "nobody was told");
    world.input(Input::SchedulerGone { connection });
    assert!(world.core.inverse_offers_are_empty());
    let connection = world.try_subscribe(info);
    assert_eq!(
        world
            .take_events(connection)
            .iter()
            .filter(|event| event.inverse_offers.is_some())
            .count(),
        1
    );
    let stream = format!("stream-{connection}");
    world.call_as(&scheduler.id, Some(&stream), Action::Teardown);
    assert!(world.core.inverse_offers_are_empty());
    assert!(world.replies(&node).is_empty());
}

#[test]
fn inverse_offer_expires_like_an_offer() {
    let mut config = config();
    config.offer_timeout = Some(Duration::from_secs(7));
    let (mut world, node, scheduler, asked) = scheduled_with(config);
    world.live(Duration::from_secs(6), &[&node]);
    assert!(world.withdrawn(&scheduler).is_empty());
    world.advance(SECOND);
    let events = world.take_events(scheduler.connection);
    let asked_again = events
        .iter()
        .position(|event| event.inverse_offers.is_some());
    let withdrawn = events
        .iter()
        .position(|event| event.rescind_inverse_offer.is_some());
    assert!(withdrawn.unwrap() < asked_again.unwrap());
    let rescind = events[withdrawn.unwrap()].rescind_inverse_offer.as_ref();
    assert_eq!(rescind.unwrap().inverse_offer_id, asked.id);
}

#[test]
fn inverse_offers_per_tick_are_limited() {
    const AGENTS: usize = 12;
    let mut config = config();
    config.memory.inverse_offers_per_tick = 5;
    let mut world = World::configured(config);
    let scheduler = world.subscribe(plain());
    for (number, port) in (0..AGENTS).zip(5_000..) {
        world.agent(port, "cpus:4;mem:1024");
        world.launch_next(&scheduler, &format!("t{number}"), "cpus:4;mem:1024");
    }
    world.administer_done(plan());
    let mut asked = BTreeSet::new();
    for expected in [5, 10, AGENTS, AGENTS] {
        let now = world.inverse_offers(&scheduler);
        asked.extend(
            now.iter()
                .map(|offer| offer.agent_id.as_ref().unwrap().value.clone()),
        );
        assert_eq!(asked.len(), expected, "each once");
        if asked.len() < AGENTS {
            assert_eq!(now.len(), 5);
        }
        world.advance(SECOND);
    }
    assert_eq!(world.core.inverse_offers.iter().len(), AGENTS);
}
