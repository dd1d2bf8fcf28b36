//! Agents: registration, pings, loss, return, and a restart of the master.

use super::*;
use crate::core::tests::agents::malicious::refused;

pub(in crate::core::tests) fn begin_running() -> (World, Node, Scheduler) {
    World::with_running_task(aware(plain()))
}

#[test]
fn registration_is_answered_once_durable() {
    let mut world = World::new();
    world.writes_at_once = false;
    let register = register(5051, "cpus:4;mem:1024");
    let connection = world.handshake(AgentMessage::Register(register.clone()));
    // An impatient agent registers again.
    world.say_on(connection, AgentMessage::Register(register));
    assert!(world.take_frames(connection).is_empty());
    assert!(world.core.snapshot().agents.is_empty());
    assert_eq!(world.unwritten.len(), 1);
    world.write();
    let registered = world.registered(connection);
    assert_eq!(registered.agent_id.value, "m-S0");
    assert_eq!(registered.total_ping_timeout_seconds, 75.0);
    assert_eq!(world.registry.agents.len(), 1);
}

#[test]
fn agent_leaving_before_admission_leaves_nothing() {
    let mut world = World::new();
    world.writes_at_once = false;
    let connection = world.handshake(AgentMessage::Register(register(1, "cpus:1;mem:64")));
    world.input(Input::AgentGone { connection });
    world.write();
    world.write();
    assert!(world.registry.agents.is_empty());
    assert!(world.core.snapshot().agents.is_empty());
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let mut world = World::new();
    let mut bad = register(1, "cpus:1");
    bad.agent_info.resources[0].scalar = Some(v1::value::Scalar { value: -1.0 });
    let mut nameless = register(1, "cpus:1");
    nameless.agent_info.hostname.clear();
    for message in [
        AgentMessage::Register(bad),
        AgentMessage::Register(nameless),
        AgentMessage::Pong(meseta::Pong {
            sequence: 1,
            ..meseta::Pong::default()
        }),
        AgentMessage::Reregister(meseta::Reregister::default()),
    ] {
        let connection = world.handshake(message);
        let frames = world.take_frames(connection);
        assert!(
            matches!(&frames[0], MasterMessage::Refused(r) if r.permanent && !r.reason.is_empty())
        );
        assert!(world.closed.contains(&connection));
    }
    assert!(world.registry.agents.is_empty());
}

#[test]
fn mismatched_domain_is_refused_with_reason() {
    for (is_required, domain, words) in [
        (
            false,
            Some(v1::DomainInfo::default()),
            "this master has none",
        ),
        (true, None, "give the agent a --domain"),
    ] {
        let mut world = World::with_config(|config| config.require_agent_domain = is_required);
        let mut register = register(1, "cpus:1;mem:64");
        register.agent_info.domain = domain;
        let connection = world.handshake(AgentMessage::Register(register));
        let refusal = refused(&mut world, connection).expect("a refusal");
        assert_says(&refusal.reason, words);
        assert!(world.registry.agents.is_empty());
    }
}

#[test]
fn silent_agent_becomes_unreachable_after_timeout() {
    let (mut world, node, scheduler) = begin_running();
    world.live(300 * SECOND, &[&node]);
    assert_eq!(world.core.snapshot().agents.len(), 1);
    world.take_events(scheduler.connection);
    world.advance(59 * SECOND);
    assert!(world.core.snapshot().unreachable_agents.is_empty());
    world.advance(31 * SECOND);
    let snapshot = world.core.snapshot();
    assert!(snapshot.agents.is_empty());
    assert_eq!(snapshot.unreachable_agents.len(), 1);
    assert_eq!(world.registry.unreachable.len(), 1);
    assert!(world.closed.contains(&node.connection));
    let events = world.take_events(scheduler.connection);
    let told: Vec<_> = kinds(&events)
        .into_iter()
        .filter(|kind| !matches!(kind, event::Type::Heartbeat | event::Type::Offers))
        .collect();
    assert_eq!(
        told,
        [
            event::Type::Update,
            event::Type::Rescind,
            event::Type::Failure
        ]
    );
    assert_eq!(snapshot.frameworks[0].unreachable.len(), 1);
}

#[test]
fn unreachable_task_id_cannot_be_reused() {
    let (mut world, _, scheduler) = begin_running();
    world.advance(100 * SECOND);
    world.agent(5052, "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    let status = world.updates(&scheduler).pop().unwrap();
    assert_eq!(
        status.message(),
        "Task reuses the ID of an unreachable task: t"
    );
}

#[test]
fn disconnected_agent_keeps_tasks_loses_offers() {
    let (mut world, node, scheduler) = begin_running();
    world.live(7 * SECOND, &[&node]);
    assert_eq!(world.offers(&scheduler).len(), 1);
    world.lose_agent(&node);
    let events = world.take_events(scheduler.connection);
    assert_eq!(kinds(&events), [event::Type::Rescind]);
    assert!(!world.core.snapshot().agents[0].connected);
    world.advance(20 * SECOND);
    assert!(world.offers(&scheduler).is_empty());
    let node = world.return_running(&node, &scheduler, Vec::new());
    assert!(world.registered(node.connection).unknown_tasks.is_empty());
    assert_eq!(world.offers(&scheduler).len(), 1, "offers are made anew");
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
}

#[test]
fn reconciles_tasks_unknown_to_agent() {
    let (mut world, node, scheduler) = begin_running();
    world.lose_agent(&node);
    let node = world.return_empty(&node);
    let unknown = world.registered(node.connection).unknown_tasks;
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].task_id.value, "t");
    assert!(unknown[0].partition_aware);
    world.update(&node, &scheduler, "t", TaskState::TaskDropped, 5);
    world.acknowledge(&node, &scheduler, "t", 5);
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}

#[test]
fn newer_connection_replaces_older_refuses_impostor() {
    let (mut world, node, scheduler) = begin_running();
    world.live(7 * SECOND, &[&node]);
    let tasks = || vec![running(&node, &scheduler, "t", "cpus:1;mem:64", "dev")];
    let newer = world.reregister(&node, tasks(), vec![]);
    assert!(world.closed.contains(&node.connection));
    world.registered(newer.connection);
    let events = world.take_events(scheduler.connection);
    let void: BTreeSet<_> = events
        .iter()
        .filter_map(|event| event.rescind.as_ref())
        .map(|rescind| rescind.offer_id.value.clone())
        .collect();
    let live = world.core.offers.keys().map(|id| id.to_string()).collect();
    assert_eq!(void.len(), 1, "the offer of the old connection");
    assert!(void.is_disjoint(&live));
    world.lose_agent(&node);
    assert!(
        world.core.snapshot().agents[0].connected,
        "the old stream's end means nothing"
    );
    let mut impostor = newer.clone();
    impostor.register.address.as_mut().unwrap().port = 6_000;
    let impostor = world.reregister(&impostor, tasks(), vec![]);
    let frames = world.take_frames(impostor.connection);
    assert!(matches!(&frames[0], MasterMessage::Refused(refused) if !refused.permanent));
    assert!(world.core.snapshot().agents[0].connected);
}

/// The agent abandoned the connection during its registration, returned on another, and ended its task.
#[test]
fn late_message_on_older_connection_ignored() {
    let (mut world, node, scheduler) = begin_running();
    let tasks = || vec![running(&node, &scheduler, "t", "cpus:1;mem:64", "dev")];
    let late = AgentMessage::Reregister(report(&node, tasks(), vec![]));
    let given_up = [(); 3].map(|()| ConnectionId(world.number()));
    let node = world.return_empty(&node);
    let connected = |world: &World| world.core.agents[&node.agent_id()].connection;
    world.say_on(given_up[0], late.clone());
    assert!(refused(&mut world, given_up[0]).is_some_and(|refused| !refused.permanent));
    assert!(world.closed.contains(&given_up[0]));
    assert_eq!(connected(&world), Some(node.connection));
    // The same holds after the end of the newer connection, and for an agent without an id.
    world.lose_agent(&node);
    world.say_on(given_up[1], late);
    let register = AgentMessage::Register(node.register.clone());
    world.say_on(given_up[2], register);
    for connection in &given_up[1..] {
        assert!(refused(&mut world, *connection).is_some());
    }
    assert_eq!(world.core.agents.len(), 1);
    assert_eq!(connected(&world), None);
    // A new process comes on a newer connection.
    let again = world.return_empty(&node);
    world.registered(again.connection);
    assert_eq!(connected(&world), Some(again.connection));
}

/// The first description waits for the registry, because it has changed; the last one does not.
#[test]
fn reregistration_on_newer_connection_wins() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    world.writes_at_once = false;
    let mut changed = node.clone();
    changed.register.agent_info.attributes = vec![v1::Attribute::default()];
    let first = world.return_empty(&changed);
    let last = world.return_empty(&node);
    world.write();
    assert!(refused(&mut world, first.connection).is_some());
    let agent = &world.core.agents[&node.agent_id()];
    assert_eq!(agent.connection, Some(last.connection));
    assert_eq!(agent.profile.info.attributes, []);
}

#[test]
fn unregistering_agent_takes_its_tasks() {
    let (mut world, node, scheduler) = begin_running();
    world.live(7 * SECOND, &[&node]);
    world.take_events(scheduler.connection);
    let reason = "bye".to_owned();
    world.say(
        &node,
        AgentMessage::Unregister(meseta::Unregister { reason }),
    );
    let events = world.take_events(scheduler.connection);
    assert_eq!(
        kinds(&events),
        [
            event::Type::Update,
            event::Type::Rescind,
            event::Type::Failure
        ]
    );
    let status = &events[0].update.as_ref().unwrap().status;
    assert_eq!(status.state(), TaskState::TaskLost);
    assert_eq!(
        status.message(),
        "Agent node.example removed: the agent unregistered"
    );
    assert!(world.registry.agents.is_empty());
    assert!(world.core.agents.is_empty());
}

#[test]
fn agent_without_id_replaces_its_predecessor() {
    let (mut world, node, scheduler) = begin_running();
    world.lose_agent(&node);
    world.take_events(scheduler.connection);
    let again = world.agent(5051, "cpus:4;mem:1024");
    assert_ne!(again.id, node.id);
    let status = world.updates(&scheduler).into_iter().next().unwrap();
    assert_eq!(status.state(), TaskState::TaskLost);
    let ids: Vec<_> = world
        .registry
        .agents
        .iter()
        .map(|agent| agent.agent_id.clone())
        .collect();
    assert_eq!(ids, [again.id]);
}

#[test]
fn sums_usage_of_connected_agents_only() {
    let mut world = World::new();
    let (one, other) = (world.agent(5051, "cpus:4"), world.agent(5052, "cpus:4"));
    let report = |world: &mut World, node: &Node, cpus: f64, mem_bytes| {
        let usage = meseta::UsageTotal {
            cpus: Some(cpus),
            mem_bytes: Some(mem_bytes),
        };
        let pong = meseta::Pong {
            sequence: 1,
            usage: Some(usage),
            ..meseta::Pong::default()
        };
        world.say(node, AgentMessage::Pong(pong));
    };
    report(&mut world, &one, 1.5, 100);
    report(&mut world, &other, 0.25, 50);
    let usage = |world: &World| (world.core.usage().cpus, world.core.usage().mem_bytes);
    assert_eq!(usage(&world), (1.75, 150));
    for nonsense in [f64::NAN, f64::INFINITY, -1.0, 1e9] {
        report(&mut world, &other, nonsense, 50);
        assert_eq!(usage(&world), (1.5, 100), "{nonsense}");
    }
    report(&mut world, &other, 1.0, u64::MAX);
    assert_eq!(usage(&world), (1.5, 100));
    world.input(Input::AgentGone {
        connection: one.connection,
    });
    assert_eq!(usage(&world), (0.0, 0));
}

#[test]
fn silent_disk_stops_offers() {
    let (mut world, node, scheduler, offer) = World::with_offer(aware(plain()), "cpus:4;mem:1024");
    let pong = |world: &mut World, disk_silent| {
        let pong = meseta::Pong {
            sequence: 1,
            disk_silent,
            ..meseta::Pong::default()
        };
        world.say(&node, AgentMessage::Pong(pong));
    };
    pong(&mut world, Some(true));
    assert_eq!(world.rescinded(&scheduler), 1, "{offer:?}");
    world.advance(Duration::from_secs(30));
    assert!(world.offers(&scheduler).is_empty());
    // An agent with a working disk omits the field, like an older agent.
    pong(&mut world, None);
    world.advance(Duration::from_secs(5));
    assert_eq!(world.offers(&scheduler).len(), 1);
}

/// The agent was killed before it stored its new id.
#[test]
fn agent_without_saved_id_regains_it() {
    let (mut world, node, scheduler, offer) = World::with_offer(aware(plain()), "cpus:4;mem:1024");
    let call = accept(&[&offer], vec![task(&node, "t", "cpus:1;mem:64")]);
    world.call(&scheduler, call);
    world.say(
        &node,
        AgentMessage::Pong(meseta::Pong {
            sequence: 1,
            ..meseta::Pong::default()
        }),
    );
    for _ in 0..2 {
        world.input(Input::AgentGone {
            connection: world.core.agents[&node.agent_id()].connection.unwrap(),
        });
        let again = world.handshake(AgentMessage::Register(node.register.clone()));
        let registered = world.registered(again);
        assert_eq!(registered.agent_id.value, node.id);
        // The agent cannot have the task, so the master requests its state.
        let asked = registered.unknown_tasks.iter();
        let asked: Vec<_> = asked.map(|task| task.task_id.value.as_str()).collect();
        assert_eq!(asked, ["t"]);
    }
    assert_eq!(world.registry.agents.len(), 1);
    // An agent at another address is another agent.
    assert_ne!(world.agent(5052, "cpus:4;mem:1024").id, node.id);
}

/// The master was stopped while the agent tried again and again, gave it an id for each try, and was replaced before
/// it could remove them.
#[test]
fn ids_never_learned_are_removed() {
    for has_an_id in [false, true] {
        let mut world = World::new();
        let node = world.agent(5051, "cpus:4;mem:1024");
        let other = world.agent(5052, "cpus:4;mem:1024");
        for number in 0..12 {
            let mut unlearnt = world.registry.agents[0].clone();
            unlearnt.agent_id = format!("m-S-{number}");
            world.registry.agents.push(unlearnt);
        }
        if !has_an_id {
            world
                .registry
                .agents
                .retain(|agent| agent.agent_id != node.id);
        }
        let mut world = world.restart();
        let id = match has_an_id {
            true => {
                let back = world.return_empty(&node);
                world.registered(back.connection).agent_id.value
            }
            false => world.agent(5051, "cpus:4;mem:1024").id,
        };
        let agents = world.registry.agents.iter();
        let left: BTreeSet<_> = agents.map(|agent| agent.agent_id.clone()).collect();
        assert_eq!(left, BTreeSet::from([id, other.id.clone()]));
        let expected = world.core.snapshot().recovered_agents.clone();
        let expected: Vec<_> = expected.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(expected, [other.id.as_str()]);
        world.return_empty(&other);
        assert!(world.core.absent_agents.has_no_endpoints());
    }
}

#[test]
fn restarted_master_recovers_agents_and_frameworks() {
    let (world, node, scheduler) = begin_running();
    let info = (*world.core.snapshot_of_first_framework()).clone();
    let mut world = world.restart();
    assert_eq!(world.core.epoch(), 2);
    assert_eq!(world.core.snapshot().recovered_agents.len(), 1);
    let node = world.return_running(&node, &scheduler, vec![info]);
    assert_eq!(
        world.registered(node.connection).agent_id.value,
        node.id,
        "the same id"
    );
    let snapshot = world.core.snapshot();
    assert!(snapshot.recovered_agents.is_empty());
    assert!(snapshot.frameworks[0].recovered);
    assert_eq!(snapshot.agents[0].tasks.len(), 1);

    // The agent keeps updates of an absent framework.
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    let info = aware_info_of(&scheduler);
    let again = world.subscribe(info);
    assert_eq!(again.id, scheduler.id);
    assert_eq!(total(&world.offers(&again)), parse("cpus:3;mem:960"));
    world.update(&node, &again, "t", TaskState::TaskFinished, 2);
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskFinished]);
    world.acknowledge(&node, &again, "t", 2);
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}

/// The number of pending writes of known agents, and of unreachable agents.
fn agents_being_written(world: &World) -> (usize, usize) {
    let count = |is: fn(&Mutation) -> bool| {
        let mutations = world.unwritten.iter();
        mutations.filter(|(_, mutation)| is(mutation)).count()
    };
    (
        count(|mutation| matches!(mutation, Mutation::PutAgent(_))),
        count(|mutation| matches!(mutation, Mutation::MarkUnreachable(_))),
    )
}

#[test]
fn unchanged_agents_cost_no_registry_write() {
    let mut world = World::new();
    let nodes: Vec<_> = (5051..5061)
        .map(|port| world.agent(port, "cpus:4;mem:1024"))
        .collect();
    let mut world = world.restart();
    world.writes_at_once = false;
    let mut returned = Vec::new();
    for node in &nodes[..8] {
        let back = world.return_empty(node);
        assert_eq!(world.registered(back.connection).agent_id.value, node.id);
        returned.push(back);
    }
    assert_eq!(agents_being_written(&world), (0, 0));
    assert_eq!(world.registry.agents.len(), 10);
    // A changed agent is written again.
    let mut changed = nodes[8].clone();
    changed.register.agent_info.hostname = "moved.example".to_owned();
    let back = world.return_empty(&changed);
    assert_eq!(agents_being_written(&world), (1, 0));
    assert!(world.take_frames(back.connection).is_empty());
    world.write();
    assert_eq!(world.registered(back.connection).agent_id.value, changed.id);
    // So is an agent whose unreachable record is pending.
    returned.push(back);
    let returned: Vec<_> = returned.iter().collect();
    world.live(601 * SECOND, &returned);
    assert_eq!(agents_being_written(&world), (0, 1));
    let late = world.return_empty(&nodes[9]);
    assert_eq!(agents_being_written(&world), (1, 1));
    world.write();
    assert_eq!(world.registered(late.connection).agent_id.value, late.id);
    assert_eq!(world.registry.agents.len(), 10);
    assert!(world.registry.unreachable.is_empty());
}

#[test]
fn missing_agents_are_unreachable_after_failover() {
    let (world, node, scheduler) = begin_running();
    let mut world = world.restart();
    let again = world.subscribe(aware_info_of(&scheduler));
    world.advance(599 * SECOND);
    assert_eq!(world.core.snapshot().recovered_agents.len(), 1);
    world.take_events(again.connection);
    world.advance(2 * SECOND);
    let events = world.take_events(again.connection);
    let failure = first(&events, |event| event.failure.as_ref());
    assert_eq!(failure.agent_id.as_ref().unwrap().value, node.id);
    assert_eq!(world.registry.unreachable.len(), 1);
    // The agent may still come back later.
    let tasks = vec![running(&node, &again, "t", "cpus:1;mem:64", "dev")];
    let info = world.core.snapshot_of_first_framework();
    let node = world.reregister(&node, tasks, vec![(*info).clone()]);
    world.registered(node.connection);
    assert!(world.registry.unreachable.is_empty());
}

#[test]
fn agent_ends_tasks_of_ended_frameworks() {
    let (mut world, node, scheduler) = begin_running();
    let info = (*world.core.snapshot_of_first_framework()).clone();
    world.lose_agent(&node);
    world.call(&scheduler, Action::Teardown);
    let node = world.return_running(&node, &scheduler, vec![info]);
    assert!(sent!(world, node.connection, ShutdownFramework));
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}

#[test]
fn lost_agents_are_pruned_by_count() {
    let mut config = config();
    config.registry_max_agent_count = 1;
    let lost = |id: &str, since: u64| unreachable_record(id, since);
    let recovered = Recovered {
        epoch: 1,
        unreachable: vec![lost("a", 1_799_999_000), lost("b", 1_799_999_001)],
        ..Recovered::default()
    };
    let mut world = World::with(config, recovered);
    world.advance(901 * SECOND);
    let left: Vec<_> = world
        .registry
        .unreachable
        .iter()
        .map(|agent| agent.agent_id.as_str())
        .collect();
    assert_eq!(left, ["b"]);
    world.advance(Duration::from_secs(15 * 24 * 3600));
    assert!(world.registry.unreachable.is_empty());
}

impl MasterCore {
    fn snapshot_of_first_framework(&self) -> Arc<v1::FrameworkInfo> {
        self.frameworks.values().next().unwrap().terms.info.clone()
    }
}

#[test]
fn recovered_framework_ends_after_timeout() {
    let (world, node, scheduler) = begin_running();
    let info = (*world.core.snapshot_of_first_framework()).clone();
    let mut world = world.restart();
    let node = world.return_running(&node, &scheduler, vec![info]);
    world.live(599 * SECOND, &[&node]);
    assert!(world.core.snapshot().frameworks[0].recovered);
    world.advance(2 * SECOND);
    assert!(world.core.snapshot().frameworks.is_empty());
    assert!(sent!(world, node.connection, ShutdownFramework));
}

#[test]
fn duplicate_task_stays_with_first_agent() {
    let (mut world, _, scheduler) = begin_running();
    let info = (*world.core.snapshot_of_first_framework()).clone();
    let mut other = world.agent(5052, "cpus:4;mem:1024");
    world.lose_agent(&other);
    let tasks = vec![running(&other, &scheduler, "t", "cpus:1;mem:64", "dev")];
    other = world.reregister(&other, tasks, vec![info]);
    assert!(sent!(world, other.connection, KillTask));
    world.unregister(&other);
    assert_eq!(world.core.agents.len(), 1);
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 1);
    world.call(&scheduler, Action::Teardown);
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}

#[test]
fn unacknowledged_end_returns_without_resources() {
    let (world, node, scheduler) = begin_running();
    let info = (*world.core.snapshot_of_first_framework()).clone();
    let mut world = world.restart();
    let mut ended = running(&node, &scheduler, "t", "cpus:1;mem:64", "dev");
    ended.state = TaskState::TaskFinished.into();
    ended.status_update_state = Some(TaskState::TaskFinished.into());
    ended.status_update_uuid = Some(vec![2; 16]);
    let node = world.reregister(&node, vec![ended], vec![info]);
    assert!(world.core.snapshot().agents[0].used.is_empty());
    let again = world.subscribe(aware_info_of(&scheduler));
    assert_eq!(total(&world.offers(&again)), parse("cpus:4;mem:1024"));
    world.call(&again, reconcile(&[]));
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskFinished]);
    world.update(&node, &again, "t", TaskState::TaskFinished, 2);
    world.acknowledge(&node, &again, "t", 2);
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}
