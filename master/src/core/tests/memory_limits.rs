//! Memory limits for one agent or framework: descriptions, reregistrations, records, events, frames.

use super::*;
use crate::core::tests::agents::malicious::{described, part, refused};

fn world_with(change: impl FnOnce(&mut Memory)) -> World {
    let mut config = config();
    change(&mut config.memory);
    World::configured(config)
}

/// Sends the first frame of an agent from an address, without a certificate.
fn from(world: &mut World, address: &str, message: AgentMessage) -> ConnectionId {
    let connection = ConnectionId(world.number());
    let caller = Caller {
        address: Some(address.parse().unwrap()),
        ..Caller::default()
    };
    world.core.agent_connected(connection, caller);
    world.say_on(connection, message);
    connection
}

#[test]
fn agents_leave_info_memory_for_others() {
    let mut world = world_with(|memory| {
        memory.agents = 16 << 20;
        memory.agent_info = 2 << 20;
    });
    let mut register_from = |address: &str, port: i32, bytes: usize| {
        let message = AgentMessage::Register(described(port, bytes));
        let connection = from(&mut world, address, message);
        refused(&mut world, connection).is_none()
    };
    assert!(register_from("10.0.0.1:1", 1, 1_500_000));
    for bytes in [1_500_000, 400_000] {
        while register_from("10.0.0.66:1", 6_000, bytes) {}
    }
    assert!(register_from("10.0.0.2:1", 2, 1_500_000));
    assert!(register_from("10.0.0.3:1", 3, 60_000));
    // After a restart there is room for the agents in the registry, whatever others send.
    let mut config = config();
    config.memory.agents = 1;
    config.memory.agent_info = 1;
    let mut recovered = world.registry.clone();
    recovered.agents.truncate(1);
    let id = recovered.agents[0].agent_id.clone();
    let mut world = World::at(world.now, config, recovered);
    let known = Node {
        id,
        register: described(1, 1_500_000),
        ..node_of_before("", 5051)
    };
    let message = |node: &Node| AgentMessage::Reregister(report(node, Vec::new(), Vec::new()));
    let wordy = Node {
        register: described(1, 1_510_000),
        ..known.clone()
    };
    let connection = from(&mut world, "10.0.0.1:1", message(&wordy));
    assert!(
        refused(&mut world, connection).is_some(),
        "more than it had"
    );
    let connection = from(&mut world, "10.0.0.1:1", message(&known));
    assert!(refused(&mut world, connection).is_none());
}

#[test]
fn agent_has_one_pending_reregistration() {
    let mut world = world_with(|_| {});
    let node = node_of_before("old-S1", 5051);
    let first = from(&mut world, "10.0.0.1:1", part(&node, true, 100_000));
    let other = from(&mut world, "10.0.0.66:1", part(&node, true, 100_000));
    assert!(world.closed.contains(&other), "an address is no proof");
    assert!(!world.closed.contains(&first));
    let second = from(&mut world, "10.0.0.1:2", part(&node, true, 50_000));
    assert!(world.closed.contains(&first) && !world.closed.contains(&second));
    assert!(world.core.partial_reregistrations.bytes() < 100_000);
}

/// The waiting events with offers for a scheduler: the size of each, and its number of offers.
fn offered(world: &mut World, scheduler: &Scheduler) -> Vec<(usize, usize)> {
    let events = world.take_events(scheduler.connection).into_iter();
    let offers = events.filter_map(|event| event.offers);
    let sized = offers.map(|offers| (prost::Message::encoded_len(&offers), offers.offers.len()));
    sized.collect()
}

#[test]
fn offers_per_cycle_are_byte_limited() {
    for (max, cycles) in [
        (16 << 20, vec![vec![4, 4, 2]]),
        (2 << 20, vec![vec![2]; 5]),
        (500_000, vec![vec![]; 3]),
    ] {
        let mut world = world_with(|memory| memory.offers = max);
        for port in 1..=10 {
            world.handshake(AgentMessage::Register(described(port, 900_000)));
        }
        let scheduler = world.subscribe(plain());
        let mut seen = Vec::new();
        for _ in &cycles {
            let events = offered(&mut world, &scheduler);
            assert!(events.iter().all(|(bytes, _)| *bytes <= (4 << 20) + 64));
            seen.push(
                events
                    .into_iter()
                    .map(|(_, offers)| offers)
                    .collect::<Vec<_>>(),
            );
            world.advance(SECOND);
        }
        assert_eq!(seen, cycles, "at most {max} bytes");
        assert_eq!(offered(&mut world, &scheduler), [], "that was all");
    }
}

#[test]
fn invalid_executor_id_is_not_sent() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:1;mem:64");
    for (id, is_sent) in [("e".to_owned(), true), ("x".repeat(1 << 20), false)] {
        world.take_frames(node.connection);
        let executor_id = v1::ExecutorId { value: id };
        let agent_id = agent_id(&node.id);
        let shutdown = Action::Shutdown(call::Shutdown {
            executor_id: executor_id.clone(),
            agent_id: agent_id.clone(),
        });
        let message = Action::Message(call::Message {
            agent_id,
            executor_id,
            data: Vec::new(),
        });
        for action in [shutdown, message] {
            world.call_accepted(&scheduler, action);
        }
        let sent = world.take_frames(node.connection);
        assert_eq!(sent.len(), if is_sent { 2 } else { 0 });
    }
}

#[test]
fn launches_of_one_call_are_limited() {
    let mut world = world_with(|memory| memory.launches_per_accept = 50_000);
    let node = world.agent(5051, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let large = |id: &str, bytes: usize| v1::TaskInfo {
        data: Some(vec![1; bytes]),
        ..task(&node, id, "cpus:0.1;mem:1")
    };
    let tasks = vec![
        large("first", 60_000),
        large("second", 10),
        large("third", 60_000),
    ];
    world.call(&scheduler, accept(&[&offer], tasks));
    let launched = taken!(world, node.connection, RunTask);
    let launched: Vec<_> = launched.iter().map(|run| run.task.name.as_str()).collect();
    assert_eq!(launched.len(), 1, "one always is: {launched:?}");
    let told = world.updates(&scheduler);
    assert_eq!(told.len(), 2);
    for status in told {
        assert_eq!(status.state(), TaskState::TaskLost);
        assert_eq!(status.reason(), v1::task_status::Reason::InvalidOffers);
        assert_says(status.message(), "may take 50000 bytes");
    }
    world.advance(SECOND * 6);
    let left = world.offers(&scheduler).pop().unwrap();
    let tasks = (0..4).map(|number| large(&format!("t{number}"), 15_000));
    world.call(&scheduler, accept(&[&left], tasks.collect()));
    assert_eq!(taken!(world, node.connection, RunTask).len(), 3);
    assert_eq!(world.updates(&scheduler).len(), 1);
}

#[test]
fn long_framework_info_sent_in_portions() {
    let mut world = world_with(|memory| memory.infos_per_tick = 100_000);
    let nodes: Vec<_> = (1..=20)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    let scheduler = world.subscribe(plain());
    for node in &nodes {
        let offers = world.offers(&scheduler);
        for offer in &offers {
            world.launch(&scheduler, offer, &offer.agent_id.value, "cpus:1;mem:64");
        }
        world.take_frames(node.connection);
    }
    let long = v1::FrameworkInfo {
        webui_url: Some("x".repeat(19_000)),
        ..World::with_id(plain(), &scheduler.id)
    };
    let update_of = |info: v1::FrameworkInfo| {
        Action::UpdateFramework(Box::new(Subscribe {
            info,
            suppressed_roles: Vec::new(),
            offer_constraints: None,
        }))
    };
    world.call_done(&scheduler, update_of(long));
    let told = |world: &mut World| {
        let frames = nodes
            .iter()
            .flat_map(|node| world.take_frames(node.connection));
        frames
            .filter(|frame| matches!(frame, MasterMessage::UpdateFramework(_)))
            .count()
    };
    let mut portions = vec![told(&mut world)];
    for _ in 0..4 {
        world.advance(SECOND);
        portions.push(told(&mut world));
    }
    assert_eq!(portions, [5, 5, 5, 5, 0]);
    // A framework that changes its info each time still reaches all agents, and delays no other.
    let mut reached = BTreeSet::new();
    for change in 0..4 {
        let long = v1::FrameworkInfo {
            webui_url: Some(format!("{change}{}", "x".repeat(19_000))),
            ..World::with_id(plain(), &scheduler.id)
        };
        world.call_done(&scheduler, update_of(long));
        for node in &nodes {
            let frames = world.take_frames(node.connection).into_iter();
            let told = frames.filter(|frame| matches!(frame, MasterMessage::UpdateFramework(_)));
            reached.extend(told.map(|_| node.id.clone()));
        }
        world.advance(SECOND);
    }
    assert_eq!(reached.len(), 20);
}

#[test]
fn mass_agent_loss_reported_in_portions() {
    let mut world = world_with(|memory| memory.failures_per_tick = 10);
    let schedulers: Vec<_> = (0..4).map(|_| world.subscribe(plain())).collect();
    let nodes: Vec<_> = (1..=6)
        .map(|port| world.agent(port, "cpus:1;mem:64"))
        .collect();
    for node in &nodes {
        world.unregister(node);
    }
    let told = |world: &mut World| {
        let events = schedulers
            .iter()
            .flat_map(|scheduler| world.take_events(scheduler.connection));
        events.filter(|event| event.failure.is_some()).count()
    };
    let mut portions = vec![told(&mut world)];
    for _ in 0..3 {
        world.advance(SECOND);
        portions.push(told(&mut world));
    }
    assert_eq!(portions, [8, 8, 8, 0]);
}

#[test]
fn frameworks_per_principal_are_limited() {
    let mut world = World::new();
    let of = |principal: &str| v1::FrameworkInfo {
        principal: Some(principal.to_owned()),
        ..plain()
    };
    let [a, b] = ["a", "b"].map(|principal| world.subscribe(of(principal)).id);
    for _ in 0..2 {
        world.subscribe(of("a"));
    }
    let check = |id: &str, max: usize| {
        let terms = &world.core.frameworks[id].terms;
        let usage = &world.core.framework_info_usage;
        usage.check_number(terms, world.core.frameworks.len(), max)
    };
    assert!(check(&a, 9).is_ok());
    let refused = check(&a, 8).unwrap_err();
    assert_says(refused.as_str(), "would have 4 frameworks, which leaves 3");
    assert!(check(&b, 8).is_ok());
    assert!(check(&b, 4).is_err(), "there is no place");
}

#[test]
fn reported_tasks_are_limited_in_bytes() {
    let mut world = world_with(|memory| memory.reported = 200_000);
    let info = World::with_id(plain(), "old-f");
    let scheduler = framework_of_before("old-f");
    let large = |node: &Node, number: usize| v1::Task {
        name: "x".repeat(9_000),
        ..running(
            node,
            &scheduler,
            &format!("{}-{number}", node.id),
            "cpus:0.001",
            "dev",
        )
    };
    let node = node_of_before("old-S1", 5051);
    let tasks = (0..300).map(|number| large(&node, number)).collect();
    let mut whole = report(&node, tasks, vec![info]);
    let executor = |number: usize| v1::ExecutorInfo {
        executor_id: executor_id(&format!("e-{number}")),
        framework_id: Some(framework_id("old-f")),
        data: Some(vec![1; 50_000]),
        ..v1::ExecutorInfo::default()
    };
    whole.executors = (0..10).map(executor).collect();
    world.handshake(AgentMessage::Reregister(whole));
    let id = node.agent_id();
    let agent = &world.core.agents[&id];
    let described = |task: &&Arc<TaskRecord>| task.description.len() > 9_000;
    let kept = agent.tasks.values().filter(described).count();
    assert!((15..=20).contains(&kept), "{kept}");
    let all = agent.tasks.len();
    assert!(all > kept + 20 && all < 300, "{all}");
    assert!(agent.reported_bytes() <= 250_000);
    assert!(agent.executors.values().all(|one| one.info.len() < 1_000));
    // Another host has room of its own, and an end makes room.
    let other = node_of_before("old-S2", 5051);
    let tasks = vec![large(&other, 1)];
    world.reregister(&other, tasks, Vec::new());
    let id = other.agent_id();
    let mut tasks = world.core.agents[&id].tasks.values();
    assert!(tasks.all(|task| task.description.len() > 9_000));
}

#[test]
fn very_large_status_is_reduced() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    let status = |bytes: usize, uuid: usize| TaskStatus {
        task_id: task_id("t"),
        state: TaskState::TaskRunning.into(),
        message: Some("x".repeat(bytes)),
        uuid: Some(vec![1; uuid]),
        ..TaskStatus::default()
    };
    for (bytes, uuid, is_heard) in [(100_000, 16, true), (1, 100_000, false)] {
        let update = meseta::StatusUpdate {
            framework_id: framework_id(&scheduler.id),
            status: status(bytes, uuid),
            latest_state: None,
        };
        world.say(&node, AgentMessage::StatusUpdate(update));
        let heard = world.updates(&scheduler);
        assert_eq!(heard.len(), usize::from(is_heard));
        assert!(heard.iter().all(|status| status.message().len() == bytes));
        let record = world.core.snapshot().agents[0]
            .tasks
            .values()
            .next()
            .cloned();
        let kept = record.unwrap().latest_status().unwrap();
        assert_eq!(kept.state(), TaskState::TaskRunning);
        assert!(kept.message.is_none() && kept.uuid.is_some());
    }
}

#[test]
fn reregistration_removes_unlisted_executors() {
    let mut world = World::new();
    let node = node_of_before("old-S1", 5051);
    let executor = |framework: &str, id: &str| v1::ExecutorInfo {
        executor_id: executor_id(id),
        framework_id: Some(framework_id(framework)),
        ..v1::ExecutorInfo::default()
    };
    let info = |id: &str| World::with_id(plain(), id);
    let back_with = |executors: Vec<v1::ExecutorInfo>| {
        let infos = vec![info("old-f"), info("old-g")];
        let mut whole = report(&node, Vec::new(), infos);
        whole.executors = executors;
        AgentMessage::Reregister(whole)
    };
    let held = |world: &World| -> Vec<(String, String)> {
        let keys = world.core.agents[node.id.as_str()].executors.keys();
        keys.map(|(framework, executor)| (framework.to_string(), executor.to_string()))
            .collect()
    };
    let pair = |framework: &str, id: &str| (framework.to_owned(), id.to_owned());
    world.handshake(back_with(vec![
        executor("old-f", "a"),
        executor("old-f", "b"),
        executor("old-g", "a"),
    ]));
    let all = [pair("old-f", "a"), pair("old-f", "b"), pair("old-g", "a")];
    assert_eq!(held(&world), all);
    // An executor with the same id in another framework is a different one, and an executor without a framework is
    // invalid.
    let nameless = v1::ExecutorInfo {
        framework_id: None,
        ..executor("old-f", "a")
    };
    world.handshake(back_with(vec![
        nameless,
        executor("old-f", "b"),
        executor("old-g", "a"),
    ]));
    assert_eq!(held(&world), all[1..]);
}
