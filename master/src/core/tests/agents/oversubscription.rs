//! Oversubscription: the total of revocable resources by agent, their offers, and the limits of their use.

use super::*;

fn revocable_framework(name: &str) -> v1::FrameworkInfo {
    capable(
        framework(name, &["dev"]),
        CapabilityType::RevocableResources,
    )
}

fn revocable(cpus: f64) -> v1::Resource {
    let mut resource = wire("cpus:1").remove(0);
    resource.scalar = Some(v1::value::Scalar { value: cpus });
    resource.revocable = Some(v1::resource::RevocableInfo {});
    resource
}

fn estimate(cpus: f64) -> AgentMessage {
    estimate_of(vec![revocable(cpus)])
}

fn estimate_of(resources: Vec<v1::Resource>) -> AgentMessage {
    AgentMessage::AgentUpdate(meseta::AgentUpdate {
        oversubscribed: Some(meseta::OversubscribedTotal { resources }),
    })
}

/// The revocable cpus in these offers, in order.
fn allocated_revocable(offers: &[v1::Offer]) -> Vec<f64> {
    let of = |offer: &v1::Offer| -> f64 {
        let revocable = offer.resources.iter().filter(|one| one.revocable.is_some());
        revocable.filter_map(|one| Some(one.scalar?.value)).sum()
    };
    offers.iter().map(of).filter(|cpus| *cpus > 0.0).collect()
}

/// The test RescindRevocableOfferWithIncreasedRevocable of Mesos, and its decreased twin.
#[test]
fn new_estimate_rescinds_old_revocable_offers() {
    for (old, new) in [(1.0, 3.0), (2.0, 1.0)] {
        let (mut world, node, scheduler) =
            World::with_framework(revocable_framework("f"), "cpus:4;mem:1024");
        world.take_events(scheduler.connection);
        world.say(&node, estimate(old));
        assert_eq!(allocated_revocable(&world.offers(&scheduler)), [old]);
        world.say(&node, estimate(new));
        let mut events = world.take_events(scheduler.connection);
        // The regular offers stay.
        assert_eq!(kinds(&events), [event::Type::Rescind, event::Type::Offers]);
        let offers = events.pop().unwrap().offers.unwrap().offers;
        assert_eq!(allocated_revocable(&offers), [new]);
    }
}

/// The test UpdateAllocatorOnSchedulerFailover of Mesos.
#[test]
fn failover_with_capability_gets_revocable_offers() {
    let (mut world, node, first) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.say(&node, estimate(2.0));
    assert_eq!(
        allocated_revocable(&world.offers(&first)),
        Vec::<f64>::new()
    );
    let second = world.subscribe(World::with_id(revocable_framework("f"), &first.id));
    world.advance(SECOND);
    assert_eq!(allocated_revocable(&world.offers(&second)), [2.0]);
}

/// The test RemoveCapabilitiesOnSchedulerFailover of Mesos.
#[test]
fn failover_without_capability_gets_no_revocable() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    world.say(&node, estimate(2.0));
    let first = world.subscribe(revocable_framework("f"));
    assert_eq!(allocated_revocable(&world.offers(&first)), [2.0]);
    let second = world.subscribe(info_of(&first));
    world.advance(SECOND);
    let offers = world.offers(&second);
    assert!(!offers.is_empty(), "the regular ones still are");
    assert_eq!(allocated_revocable(&offers), Vec::<f64>::new());
}

/// An invalid estimate changes nothing, and resources that are not revocable add nothing to the total.
#[test]
fn invalid_estimate_keeps_agent_total() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    world.say(&node, estimate(2.0));
    let total = |world: &mut World| world.core.snapshot().agents[0].profile.total.clone();
    let before = total(&mut world);
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        world.say(&node, estimate(bad));
        assert_eq!(total(&mut world), before, "{bad}");
    }
    world.say(&node, estimate_of(wire("cpus:100")));
    assert_eq!(total(&mut world).unrevocable(), before.unrevocable());
}

/// A reduced total neither ends the tasks running on it nor is oversubscribed twice.
#[test]
fn shrunken_estimate_keeps_running_revocable_tasks() {
    let (mut world, node, scheduler) =
        World::with_framework(revocable_framework("f"), "cpus:4;mem:1024");
    world.say(&node, estimate(2.0));
    world.advance(SECOND);
    let offers = world.offers(&scheduler);
    let all: Vec<&v1::Offer> = offers.iter().collect();
    let mut borrowing = task(&node, "t", "mem:64");
    borrowing.resources.push(revocable(2.0));
    world.call_accepted(&scheduler, accept(&all, vec![borrowing]));
    let frames = world.take_frames(node.connection);
    let launched = |frame: &MasterMessage| {
        matches!(frame, MasterMessage::RunTask(run)
            if run.task.resources.iter().any(|one| one.revocable.is_some()))
    };
    assert!(frames.iter().any(launched), "marked as revocable still");
    world.input_unchecked_on(node.connection, estimate(1.0));
    assert_eq!(
        allocated_revocable(&world.offers(&scheduler)),
        Vec::<f64>::new()
    );
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
    world.say(&node, estimate(2.5));
    world.advance(SECOND);
    assert_eq!(allocated_revocable(&world.offers(&scheduler)), [0.5]);
}

/// An estimate with many resource names.
fn many(names: usize) -> AgentMessage {
    let named = |number: usize| v1::Resource {
        name: format!("name-{number:04}"),
        ..revocable(1.0)
    };
    estimate_of((0..names).map(named).collect())
}

#[test]
fn estimate_counts_against_agent_info_limits() {
    let mut world = World::with_config(|config| {
        config.memory.agent_info = 10_000;
        config.memory.agents = 150_000;
    });
    let node = world.agent(5051, "cpus:4;mem:1024");
    let before = world.core.described_bytes();
    world.say(&node, many(100));
    let with_some = world.core.described_bytes();
    assert!(with_some > before + 3_000, "{before}, then {with_some}");
    let total = |world: &mut World| world.core.snapshot().agents[0].profile.total.clone();
    let kept = total(&mut world);
    world.say(&node, many(1_000));
    assert_eq!(total(&mut world), kept, "too large for one");
    // The descriptions of all agents leave no room.
    let wordy = super::malicious::described(5052, 8_000);
    world.handshake(AgentMessage::Register(wordy));
    world.core.config.memory.agents = world.core.described_bytes();
    world.say(&node, many(200));
    assert_eq!(total(&mut world), kept, "too large for all");
    world.say(&node, many(50));
    assert_ne!(total(&mut world), kept);
    assert!(world.core.described_bytes() < world.core.config.memory.agents);
    // The estimate ends with its agent, and with its connection.
    let node = world.return_empty(&node);
    world.say(&node, many(60));
    world.unregister(&node);
}
