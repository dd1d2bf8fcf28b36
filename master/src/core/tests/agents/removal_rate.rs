//! How fast agents are given up, and when none is.

use super::*;

#[test]
fn agents_are_lost_no_faster_than_the_rate_allows_and_may_answer_until_their_turn() {
    let mut config = config();
    config.agent_removal_interval = 60 * SECOND;
    let mut world = World::with(
        config,
        Recovered {
            epoch: 1,
            ..Recovered::default()
        },
    );
    let nodes: Vec<Node> = (0..5)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    let lost = |world: &mut World| world.core.snapshot().unreachable_agents.len();
    world.advance(80 * SECOND);
    assert_eq!(lost(&mut world), 1);
    world.advance(60 * SECOND);
    assert_eq!(lost(&mut world), 2);
    let living: Vec<&Node> = nodes
        .iter()
        .filter(|node| !world.closed.contains(&node.connection))
        .collect();
    world.live(600 * SECOND, &living);
    assert_eq!(lost(&mut world), 2, "the others answered");
}

#[test]
fn recovered_agents_are_lost_no_faster_than_the_rate_allows() {
    let record = |number: u32| AgentRecord {
        agent_id: format!("a{number}"),
        info: prost::Message::encode_to_vec(&register(1, "cpus:1").agent_info).into(),
    };
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
        assert_eq!(world.core.snapshot().unreachable_agents.len(), expected);
    }
}

#[test]
fn by_default_an_agent_is_lost_in_twenty_seconds_and_no_more() {
    let mut world = World::new();
    for port in 0..5 {
        world.agent(port, "cpus:1;mem:64");
    }
    let lost = |world: &mut World| world.core.snapshot().unreachable_agents.len();
    world.advance(80 * SECOND);
    for expected in 1..=5 {
        assert_eq!(lost(&mut world), expected);
        world.advance(20 * SECOND);
    }
}

#[test]
fn a_master_that_almost_nobody_answers_suspects_itself() {
    let mut world = World::new();
    let nodes: Vec<Node> = (0..20)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    let lost = |world: &mut World| world.core.snapshot().unreachable_agents.len();
    let living: Vec<&Node> = nodes[..4].iter().collect();
    world.live(3_600 * SECOND, &living);
    assert_eq!(lost(&mut world), 0);
    // Those that answer again are none the worse; what is left is a failure like any other.
    let living: Vec<&Node> = nodes[..11].iter().collect();
    world.live(120 * SECOND, &living);
    assert!((1..9).contains(&lost(&mut world)));
    world.live(600 * SECOND, &living);
    assert_eq!(lost(&mut world), 9);
}

#[test]
fn a_new_master_that_almost_nobody_finds_suspects_itself() {
    let record = |number: i32| AgentRecord {
        agent_id: format!("a{number}"),
        info: prost::Message::encode_to_vec(&register(number, "cpus:1").agent_info).into(),
    };
    let recovered = Recovered {
        epoch: 2,
        agents: (0..30).map(record).collect(),
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    world.advance(7_200 * SECOND);
    assert_eq!(world.core.snapshot().recovered_agents.len(), 30);
    let mut back = Vec::new();
    for number in 0..16 {
        let node = Node {
            connection: ConnectionId(0),
            id: format!("a{number}"),
            register: register(number, "cpus:1"),
        };
        back.push(world.reregister(&node, Vec::new(), Vec::new()));
    }
    let living: Vec<&Node> = back.iter().collect();
    world.live(600 * SECOND, &living);
    assert_eq!(world.core.snapshot().agents.len(), 16);
    assert_eq!(world.core.snapshot().unreachable_agents.len(), 14);
}
