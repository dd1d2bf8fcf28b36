//! Absent agents: one for some time, all of them at once, or most after a failover.

use meseta_allocator::Quota;

use super::*;

/// The task states that a framework has got since the last call.
fn told(world: &mut World, scheduler: &Scheduler) -> Vec<TaskState> {
    states(&world.updates(scheduler))
}

fn own_info(world: &mut World) -> v1::FrameworkInfo {
    (*world.core.snapshot().frameworks[0].info).clone()
}

#[test]
fn brief_absence_costs_task_nothing() {
    let (mut world, node, scheduler) = World::with_running_task(aware(plain()));
    let info = own_info(&mut world);
    world.lose_agent(&node);
    world.advance(30 * SECOND);
    let node = world.return_running(&node, &scheduler, vec![info.clone()]);
    world.live(60 * SECOND, &[&node]);
    assert_eq!(told(&mut world, &scheduler), []);
    assert_eq!(world.core.counters.agent_unreachable_scheduled, 0);

    world.lose_agent(&node);
    world.advance(90 * SECOND);
    assert_eq!(told(&mut world, &scheduler), [TaskState::TaskUnreachable]);
    assert_eq!(world.lost(), 1);
    let node = world.return_running(&node, &scheduler, vec![info]);
    assert_eq!(told(&mut world, &scheduler), [TaskState::TaskRunning]);
    world.live(60 * SECOND, &[&node]);
    assert_eq!(world.lost(), 0);
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);

    // A permanent absence: the agent becomes unreachable once, with one update.
    world.lose_agent(&node);
    world.advance(900 * SECOND);
    assert_eq!(told(&mut world, &scheduler), [TaskState::TaskUnreachable]);
    assert_eq!(world.lost(), 1);
    assert!(world.registry.agents.is_empty());
    assert!(world.core.snapshot().agents.is_empty());
}

#[test]
fn tolerates_five_minutes_of_total_silence() {
    let (mut world, first, scheduler) = World::with_running_task(aware(plain()));
    let info = own_info(&mut world);
    let mut nodes: Vec<Node> = (0..20)
        .map(|number| world.agent(6_000 + number, "cpus:1;mem:64"))
        .collect();
    let all: Vec<&Node> = std::iter::once(&first).chain(&nodes).collect();
    world.live(60 * SECOND, &all);
    // Some agents lose their stream, others stay silent on theirs.
    for node in &nodes[..10] {
        world.lose_agent(node);
    }
    world.lose_agent(&first);
    world.advance(300 * SECOND);
    let first = world.return_running(&first, &scheduler, vec![info]);
    for node in &mut nodes[..10] {
        *node = world.return_empty(node);
    }
    let all: Vec<&Node> = std::iter::once(&first).chain(&nodes).collect();
    world.live(90 * SECOND, &all);
    assert_eq!(told(&mut world, &scheduler), []);
    assert_eq!(world.core.snapshot().agents.len(), 21);
    assert_eq!(world.core.counters.agent_unreachable_scheduled, 0);
}

/// A new master that knows ten agents and a quota, and a framework of another role that waits for offers.
fn after_failover(quota: &[(Role, Quota)]) -> (World, Scheduler) {
    let recovered = Recovered {
        epoch: 2,
        agents: (0..10)
            .map(|number| agent_record(&format!("a{number}"), number))
            .collect(),
        quotas: quota.to_vec(),
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    let scheduler = world.subscribe(plain());
    (world, scheduler)
}

fn return_agents(world: &mut World, numbers: std::ops::Range<i32>) -> Vec<Node> {
    let node = |number: i32| Node {
        connection: ConnectionId(0),
        id: format!("a{number}"),
        register: register(number, "cpus:1;mem:64"),
    };
    numbers
        .map(|number| world.return_empty(&node(number)))
        .collect()
}

#[test]
fn quota_delays_offers_until_agents_return() {
    let role = Role::new("guaranteed").unwrap();
    let guarantees = parse("cpus:1").scalar_quantities();
    let quota = Quota {
        guarantees,
        ..Quota::default()
    };
    let quota = [(role, quota)];
    let (mut world, scheduler) = after_failover(&quota);
    let back = return_agents(&mut world, 0..7);
    world.live(60 * SECOND, &back.iter().collect::<Vec<_>>());
    assert!(world.offers(&scheduler).is_empty());
    return_agents(&mut world, 7..8);
    assert!(!world.offers(&scheduler).is_empty());

    let (mut world, scheduler) = after_failover(&quota);
    let back = return_agents(&mut world, 0..2);
    let back: Vec<&Node> = back.iter().collect();
    world.live(595 * SECOND, &back);
    assert!(world.offers(&scheduler).is_empty());
    world.live(10 * SECOND, &back);
    assert!(!world.offers(&scheduler).is_empty());

    // Without quota, offers do not wait.
    let (mut world, scheduler) = after_failover(&[]);
    return_agents(&mut world, 0..1);
    assert!(!world.offers(&scheduler).is_empty());
}

#[test]
fn unchanged_reregistration_writes_no_registry_record() {
    let (mut world, node, scheduler) = World::with_running_task(aware(plain()));
    let info = own_info(&mut world);
    let mut world = world.restart();
    let again = world.subscribe(info.clone());
    world.writes_at_once = false;
    let node = world.return_running(&node, &scheduler, vec![info.clone()]);
    assert_eq!(world.unwritten, []);
    assert_eq!(world.registered(node.connection).agent_id.value, node.id);
    world.call(&again, reconcile(&[("t", Some(&node.id))]));
    assert_eq!(told(&mut world, &again), [TaskState::TaskRunning]);

    let mut world = world.restart();
    world.writes_at_once = false;
    let mut moved = node.clone();
    moved.register.agent_info.port = Some(6_000);
    let moved = world.return_empty(&moved);
    assert_eq!(world.unwritten.len(), 1);
    assert_eq!(world.take_frames(moved.connection), []);
    world.write();
    assert_eq!(world.registered(moved.connection).agent_id.value, node.id);

    // An agent that is just being marked becomes unreachable first, and then returns.
    let mut world = world.restart();
    world.writes_at_once = false;
    world.advance(601 * SECOND);
    assert_eq!(world.unwritten.len(), 1);
    let late = world.return_empty(&moved);
    assert_eq!(world.unwritten.len(), 2);
    world.write();
    assert_eq!(world.registered(late.connection).agent_id.value, node.id);
    assert_eq!((world.lost(), world.registry.unreachable.len()), (0, 0));
    assert_eq!(world.registry.agents.len(), 1);
}
