//! A stopped or starved master: nobody loses anything through input that the master has not read.

use super::*;
use crate::core::tests::agents::registration::begin_running;

fn own_info(world: &mut World) -> v1::FrameworkInfo {
    (*world.core.snapshot().frameworks[0].info).clone()
}

fn is_lost(world: &mut World) -> bool {
    !world.core.snapshot().unreachable_agents.is_empty()
}

#[test]
fn repeated_master_pauses_lose_no_agent() {
    let (mut world, node, _) = begin_running();
    world.pong(&node);
    for _ in 0..10 {
        // The master stops for an hour at a time; the agent answers whatever reaches it.
        world.pause(3_600 * SECOND);
        assert_eq!(world.core.snapshot().agents.len(), 1);
    }
}

#[test]
fn unread_pong_is_not_missed_ping() {
    let (mut world, node, _) = begin_running();
    let timeout = world.core.config.agent_ping_timeout;
    let allowed = world.core.config.max_agent_ping_timeouts;
    // With one more missed ping, the agent is lost.
    world.advance(timeout * allowed - SECOND);
    assert!(!is_lost(&mut world));
    world.pause(3 * SECOND);
    assert!(!is_lost(&mut world), "its answer may wait to be read");
    world.pong(&node);
    world.live(60 * SECOND, &[&node]);
    assert!(!is_lost(&mut world));
    // An agent that stays silent is lost in the end.
    world.advance(timeout * (allowed + 1));
    assert!(is_lost(&mut world));
}

#[test]
fn pause_lets_delayed_agent_still_answer() {
    let mut world = World::with_config(|config| config.agent_removal_interval = 60 * SECOND);
    let nodes: Vec<Node> = (0..2)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    world.advance(80 * SECOND);
    assert_eq!(world.lost(), 1);
    world.pause(90 * SECOND);
    assert_eq!(world.lost(), 1, "its answer may wait to be read");
    let is_living = |node: &&Node| !world.closed.contains(&node.connection);
    let living: Vec<&Node> = nodes.iter().filter(is_living).collect();
    world.live(120 * SECOND, &living);
    assert_eq!(world.lost(), 1);
    // An agent that stays silent is lost in the end.
    world.advance(91 * SECOND);
    assert_eq!(world.lost(), 2);
}

#[test]
fn paused_master_keeps_expired_framework() {
    let (mut world, node, scheduler) = begin_running();
    let info = own_info(&mut world);
    world.lose_stream(&scheduler);
    world.live(40 * SECOND, &[&node]);
    world.pause(90 * SECOND);
    let again = world.subscribe(info.clone());
    assert_eq!(again.id, scheduler.id);
    let snapshot = world.core.snapshot();
    assert_eq!(snapshot.agents[0].tasks.len(), 1);
    assert!(snapshot.completed_frameworks.is_empty());
    world.live(60 * SECOND, &[&node]);
    // A framework that stays away keeps the rest of its time, once the master has read the input of the pause.
    world.lose_stream(&again);
    world.live(40 * SECOND, &[&node]);
    world.pause(10 * SECOND);
    world.live(29 * SECOND, &[&node]);
    assert_eq!(world.core.snapshot().frameworks.len(), 1);
    world.live(2 * SECOND, &[&node]);
    assert!(world.core.snapshot().frameworks.is_empty());
}

#[test]
fn framework_may_return_after_master_pause() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    let mut info = plain();
    info.failover_timeout = None;
    let scheduler = world.subscribe(info.clone());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.pause(90 * SECOND);
    // The scheduler got no heartbeat for so long that it reconnected; the master reads the end of the old stream
    // first.
    world.lose_stream(&scheduler);
    world.live(10 * SECOND, &[&node]);
    let again = world.subscribe(World::with_id(info, &scheduler.id));
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
    // A running master uses the framework's own timeout.
    world.live(60 * SECOND, &[&node]);
    world.lose_stream(&again);
    assert!(world.core.snapshot().frameworks.is_empty());
}

#[test]
fn new_master_pause_loses_no_agents() {
    let (world, node, scheduler) = begin_running();
    let mut world = world.restart();
    let again = world.subscribe(aware_info_of(&scheduler));
    world.advance(590 * SECOND);
    world.pause(90 * SECOND);
    assert!(!is_lost(&mut world));
    world.call(&again, reconcile(&[("t", Some(&node.id))]));
    let told = states(&world.updates(&again));
    assert!(told.is_empty(), "nobody knows yet: {told:?}");
    let info = own_info(&mut world);
    let node = world.return_running(&node, &again, vec![info]);
    world.call(&again, reconcile(&[("t", Some(&node.id))]));
    assert_eq!(
        states(&world.updates(&again)).last(),
        Some(&TaskState::TaskRunning)
    );
    world.live(700 * SECOND, &[&node]);
    assert!(!is_lost(&mut world));
    assert_eq!(world.core.counters.recovery_agent_removals, 0);
}

#[test]
fn master_pause_keeps_recovered_framework() {
    let (mut world, node, scheduler) = begin_running();
    let info = own_info(&mut world);
    let mut world = world.restart();
    let node = world.return_running(&node, &scheduler, vec![info.clone()]);
    world.live(590 * SECOND, &[&node]);
    world.pause(90 * SECOND);
    let again = world.subscribe(info);
    assert_eq!(again.id, scheduler.id);
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
}

#[test]
fn accept_read_after_pause_uses_offer() {
    let mut world = World::with_config(|config| config.offer_timeout = Some(10 * SECOND));
    let node = world.agent(5051, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    world.live(8 * SECOND, &[&node]);
    world.pause(20 * SECOND);
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
    assert!(world.updates(&scheduler).is_empty());
    // A running master loses such agents.
    world.live(60 * SECOND, &[&node]);
    let events = kinds(&world.take_events(scheduler.connection));
    assert!(events.contains(&event::Type::Rescind), "{events:?}");
}
