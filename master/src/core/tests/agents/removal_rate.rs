//! The rate at which silent agents are removed, and the cases in which none is.

use super::*;
use crate::core::timers::Timer;

#[test]
fn removal_rate_limits_lost_agents() {
    let mut world = World::with_config(|config| config.agent_removal_interval = 60 * SECOND);
    let nodes: Vec<Node> = (0..5)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    world.advance(80 * SECOND);
    assert_eq!(world.lost(), 1);
    world.advance(60 * SECOND);
    assert_eq!(world.lost(), 2);
    let living: Vec<&Node> = nodes
        .iter()
        .filter(|node| !world.closed.contains(&node.connection))
        .collect();
    world.live(600 * SECOND, &living);
    assert_eq!(world.lost(), 2, "the others answered");
}

#[test]
fn removal_rate_limits_recovered_agents() {
    let record = |number: u32| agent_record(&format!("a{number}"), 1);
    let mut config = config();
    config.agent_removal_interval = 60 * SECOND;
    let recovered = Recovered {
        epoch: 2,
        agents: (0..3).map(record).collect(),
        ..Recovered::default()
    };
    let mut world = World::with(config, recovered);
    for expected in [1, 2, 3] {
        let wait = if expected == 1 {
            601 * SECOND
        } else {
            60 * SECOND
        };
        world.advance(wait);
        assert_eq!(world.lost(), expected);
    }
}

#[test]
fn many_missing_agents_share_one_deadline() {
    let record = |number: usize| agent_record(&format!("a{number}"), 1);
    let mut config = config();
    config.agent_removal_percent = 100;
    let recovered = Recovered {
        epoch: 2,
        agents: (0..PENDING_MUTATIONS_MAX + 100).map(record).collect(),
        ..Recovered::default()
    };
    let mut world = World::with(config, recovered);
    world.advance(601 * SECOND);
    for _ in 0..60 {
        world.advance(SECOND);
        assert_eq!(world.core.timers.count(&Timer::Reregister), 1);
    }
    assert_eq!(world.lost(), 4);
}

#[test]
fn default_removal_interval_is_twenty_seconds() {
    let mut world = World::new();
    for port in 0..5 {
        world.agent(port, "cpus:1;mem:64");
    }
    world.advance(80 * SECOND);
    for expected in 1..=5 {
        assert_eq!(world.lost(), expected);
        world.advance(20 * SECOND);
    }
}

#[test]
fn master_suspects_itself_when_most_silent() {
    let mut world = World::new();
    let nodes: Vec<Node> = (0..20)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    let living: Vec<&Node> = nodes[..4].iter().collect();
    world.live(3_600 * SECOND, &living);
    assert_eq!(world.lost(), 0);
    // Agents that answer again stay; the others fail like any agent.
    let living: Vec<&Node> = nodes[..11].iter().collect();
    world.live(120 * SECOND, &living);
    assert!((1..9).contains(&world.lost()));
    world.live(600 * SECOND, &living);
    assert_eq!(world.lost(), 9);
}

/// A master without a rate limit, and twenty agents.
fn with_twenty() -> (World, Vec<Node>) {
    let mut world = World::with_config(|config| config.agent_removal_interval = Duration::ZERO);
    let nodes = (0..20)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    (world, nodes)
}

/// The cluster of [`with_twenty`] after a silence of all agents, and a minute in which the first twelve answered.
fn mended() -> (World, Vec<Node>) {
    let (mut world, nodes) = with_twenty();
    world.advance(600 * SECOND);
    let first: Vec<&Node> = nodes[..12].iter().collect();
    world.live(60 * SECOND, &first);
    (world, nodes)
}

/// Asserts that none of these agents is lost while all answer.
fn all_live_on(world: &mut World, nodes: &[Node]) {
    let all: Vec<&Node> = nodes.iter().collect();
    world.live(600 * SECOND, &all);
    assert_eq!(world.lost(), 0);
}

#[test]
fn mended_network_grants_all_agents_time() {
    // A minute is longer than any of the last agents waits for its next ping.
    let (mut world, nodes) = mended();
    assert_eq!(world.lost(), 0);
    for node in &nodes[12..] {
        world.pong(node);
    }
    all_live_on(&mut world, &nodes);
    // No extra time remains for an agent that falls silent later.
    let others: Vec<&Node> = nodes[1..].iter().collect();
    world.live(91 * SECOND, &others);
    assert_eq!(world.lost(), 1);
}

#[test]
fn master_pause_preserves_mended_agents_time() {
    let (mut world, nodes) = mended();
    world.pause(300 * SECOND);
    let first: Vec<&Node> = nodes[..12].iter().collect();
    world.live(60 * SECOND, &first);
    assert_eq!(world.lost(), 0);
    for node in &nodes[12..] {
        world.pong(node);
    }
    all_live_on(&mut world, &nodes);
}

#[test]
fn first_answer_keeps_suspicion_of_silence() {
    let (mut world, nodes) = with_twenty();
    let living: Vec<&Node> = nodes[..9].iter().collect();
    // One of the other eleven answers just before the check of all.
    world.live(74 * SECOND, &living);
    world.pong(&nodes[9]);
    world.live(5 * SECOND, &living);
    assert_eq!(world.lost(), 0);
    all_live_on(&mut world, &nodes);
}

#[test]
fn agents_marked_gone_clear_suspicion() {
    let (mut world, nodes) = with_twenty();
    let living: Vec<&Node> = nodes[12..].iter().collect();
    world.live(600 * SECOND, &living);
    for node in &nodes[..12] {
        let agent_id = node.id.clone();
        world.administer_done(Administration::MarkAgentGone { agent_id });
    }
    world.live(300 * SECOND, &living);
    assert_eq!(world.lost(), 0);
    world.live(91 * SECOND, &living[1..]);
    assert_eq!(world.lost(), 1);
}

/// A new master without a rate limit that expects this many agents.
fn expecting(agents: i32) -> World {
    let record = |number: i32| agent_record(&format!("a{number}"), number);
    let mut config = config();
    config.agent_removal_interval = Duration::ZERO;
    let recovered = Recovered {
        epoch: 2,
        agents: (0..agents).map(record).collect(),
        ..Recovered::default()
    };
    World::with(config, recovered)
}

/// Returns the agents with these numbers.
fn come_back(world: &mut World, numbers: std::ops::Range<i32>) -> Vec<Node> {
    let back = |number: i32| {
        world.return_empty(&Node {
            connection: ConnectionId(0),
            id: format!("a{number}"),
            register: register(number, "cpus:1"),
        })
    };
    numbers.map(back).collect()
}

#[test]
fn found_master_grants_all_agents_time() {
    // Before the first check, and after it.
    for found_after in [590, 7_200] {
        let mut world = expecting(30);
        world.advance(found_after * SECOND);
        let mut back = come_back(&mut world, 0..16);
        let living: Vec<&Node> = back.iter().collect();
        world.live(60 * SECOND, &living);
        assert_eq!(world.lost(), 0, "found after {found_after} s");
        back.extend(come_back(&mut world, 16..25));
        let living: Vec<&Node> = back.iter().collect();
        world.live(300 * SECOND, &living);
        assert_eq!(world.lost(), 5, "found after {found_after} s");
    }
}

#[test]
fn first_returning_agent_extends_wait_once() {
    let mut world = expecting(10);
    world.advance(590 * SECOND);
    let first = come_back(&mut world, 0..1);
    world.live(60 * SECOND, &[&first[0]]);
    assert_eq!(world.lost(), 0);
    world.live(60 * SECOND, &[&first[0]]);
    assert_eq!(world.lost(), 9);
}

#[test]
fn reisolated_new_master_waits_for_all() {
    let mut world = expecting(30);
    let mut back = come_back(&mut world, 0..16);
    world.advance(589 * SECOND);
    let all: Vec<&Node> = back.iter().collect();
    world.live(12 * SECOND, &all);
    assert_eq!(world.lost(), 0);
    back.extend(come_back(&mut world, 16..30));
    all_live_on(&mut world, &back);
}

#[test]
fn new_agents_count_in_total_immediately() {
    let mut world = expecting(30);
    let mut living = come_back(&mut world, 0..12);
    living.extend((50..56).map(|port| world.agent(port, "cpus:1")));
    let living: Vec<&Node> = living.iter().collect();
    world.live(601 * SECOND, &living);
    assert_eq!(world.lost(), 18);
}

#[test]
fn master_found_in_time_stops_waiting() {
    let mut world = expecting(30);
    world.advance(60 * SECOND);
    // Exactly the required number.
    let back = come_back(&mut world, 0..15);
    let living: Vec<&Node> = back.iter().collect();
    world.live(538 * SECOND, &living);
    assert_eq!(world.lost(), 0);
    world.live(3 * SECOND, &living);
    assert_eq!(world.lost(), 15);
}

#[test]
fn master_suspects_itself_until_most_return() {
    let mut world = expecting(30);
    world.advance(7_200 * SECOND);
    assert_eq!(world.core.snapshot().recovered_agents.len(), 30);
    let back = come_back(&mut world, 0..16);
    let living: Vec<&Node> = back.iter().collect();
    world.live(600 * SECOND, &living);
    assert_eq!(world.core.snapshot().agents.len(), 16);
    assert_eq!(world.lost(), 14);
}
