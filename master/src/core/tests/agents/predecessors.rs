//! Agents at the location of others: the records that the registry drops, and those that it keeps.

use super::*;

/// The number of pending removals of the agent from the registry.
fn removals(world: &World, id: &str) -> usize {
    let is_removal = |mutation: &Mutation| match mutation {
        Mutation::RemoveAgent { agent_id } => agent_id == id,
        _ => false,
    };
    let mutations = world.unwritten.iter();
    mutations
        .filter(|(_, mutation)| is_removal(mutation))
        .count()
}

/// A restarted master that knows the agent, before the agent's return.
fn expecting() -> (World, Node) {
    let mut world = World::new();
    let node = world.agent(5051, "cpus:4;mem:1024");
    let mut world = world.restart();
    world.writes_at_once = false;
    (world, node)
}

#[test]
fn reregistering_agent_is_not_a_predecessor() {
    let (mut world, node) = expecting();
    let mut changed = node.clone();
    // A changed description, so that the return has to be written.
    let resources = register(5051, "cpus:8;mem:2048").agent_info.resources;
    changed.register.agent_info.resources = resources;
    let back = world.return_empty(&changed);
    assert_eq!(world.unwritten.len(), 1);
    let other = world.handshake(AgentMessage::Register(node.register.clone()));
    assert_eq!(removals(&world, &node.id), 0);
    while !world.unwritten.is_empty() {
        world.write();
    }
    assert_eq!(world.registered(back.connection).agent_id.value, node.id);
    assert_ne!(world.registered(other).agent_id.value, node.id);
    let mut known = world.registry.agents.iter();
    assert!(known.any(|agent| agent.agent_id == node.id));
}

/// The agent tries again and again while the registry's disk hangs.
#[test]
fn predecessor_is_removed_once_despite_retries() {
    let (mut world, node) = expecting();
    for _ in 0..3 {
        let connection = world.handshake(AgentMessage::Register(node.register.clone()));
        assert_eq!(removals(&world, &node.id), 1);
        world.input(Input::AgentGone { connection });
    }
    while !world.unwritten.is_empty() {
        world.write();
    }
    assert!(world.registry.agents.is_empty());
    assert!(world.core.snapshot().recovered_agents.is_empty());
}
