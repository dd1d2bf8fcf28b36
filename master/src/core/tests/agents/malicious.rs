//! Admitted agents that lie: about ids, about tasks of others, about frameworks, and about themselves.

use meseta_daemon::authentication::LocalUser;

use super::*;
use crate::core::tests::frameworks::authorization::subscription_error;

/// A framework with the task `t` on an honest agent, and another agent, which is malicious.
fn begin() -> (World, Node, Scheduler, Node) {
    let (mut world, honest, scheduler) = World::with_running_task(aware(plain()));
    let malicious_agent = world.agent(6000, "cpus:4;mem:1024");
    world.take_events(scheduler.connection);
    world.take_frames(malicious_agent.connection);
    (world, honest, scheduler, malicious_agent)
}

pub(in crate::core::tests) fn refused(
    world: &mut World,
    connection: ConnectionId,
) -> Option<meseta::Refused> {
    taken!(world, connection, Refused).pop()
}

#[test]
fn refuses_agent_ids_not_yet_assigned() {
    let (mut world, first) = World::with_agent("cpus:1;mem:64");
    assert_eq!(first.id, "m-S0");
    for id in ["m-S1", "m-S7", "m-S00000000000000000001", "m-S+1"] {
        let thief = Node {
            id: id.to_owned(),
            register: register(6000, "cpus:1;mem:64"),
            ..first.clone()
        };
        let whole = world.return_empty(&thief);
        let mut part = report(&thief, Vec::new(), Vec::new()).register;
        part.agent_info.id = Some(agent_id(id));
        let in_parts = world.handshake(AgentMessage::ReregisterPart(meseta::ReregisterPart {
            register: Some(part),
            ..meseta::ReregisterPart::default()
        }));
        for connection in [whole.connection, in_parts] {
            let refused = refused(&mut world, connection).expect(id);
            assert!(refused.permanent && refused.reason.contains("not been assigned"));
        }
    }
    assert_eq!(world.agent(5052, "cpus:1;mem:64").id, "m-S1");
    assert_eq!(world.registry.agents.len(), 2);
}

/// A registry in which a malicious agent has stored ids that this master would assign next.
#[test]
fn new_ids_skip_ids_in_registry() {
    let lost = |id: &str| unreachable_record(id, 1_799_999_000);
    let owner = |id: &str| record_of_ada(id);
    let recovered = Recovered {
        epoch: 1,
        agents: vec![agent_record("m-S3", 1)],
        unreachable: vec![lost("m-S5"), lost("other-S90")],
        gone: vec![("m-S4".to_owned(), Duration::from_secs(1_799_999_000))],
        frameworks: vec![owner("m-0006"), owner("other-0090")],
        removed_frameworks: vec![RemovedRecord {
            framework_id: "m-0007".to_owned(),
            ..RemovedRecord::default()
        }],
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    assert_eq!(world.agent(5051, "cpus:1;mem:64").id, "m-S6");
    assert_eq!(world.subscribe(plain()).id, "m-0008");
}

#[test]
fn only_own_connection_speaks_for_agent() {
    let (mut world, honest, scheduler, _) = begin();
    let id = honest.agent_id();
    let stray = ConnectionId(world.number());
    world.core.agent_connections.assign(stray, id.clone());
    let impostor = Node {
        connection: stray,
        ..honest.clone()
    };
    world.update(&impostor, &scheduler, "t", TaskState::TaskFailed, 9);
    assert_eq!(states(&world.updates(&scheduler)), []);
    let profile = world.core.agents[&id].profile.clone();
    let admitted = world.core.insert_agent(stray, profile, Duration::ZERO);
    assert!(!admitted);
    assert_eq!(world.core.agents[&id].connection, Some(honest.connection));
    assert_eq!(world.core.agents[&id].tasks.len(), 1);
}

#[test]
fn updates_for_foreign_tasks_are_dropped() {
    let (mut world, honest, scheduler, malicious_agent) = begin();
    world.update(&malicious_agent, &scheduler, "t", TaskState::TaskFailed, 7);
    assert_eq!(states(&world.updates(&scheduler)), []);
    // The master acknowledges the update, so that the agent stops repeating it.
    let frames = world.take_frames(malicious_agent.connection);
    assert!(
        frames
            .iter()
            .any(|frame| matches!(frame, MasterMessage::Acknowledge(ack) if ack.uuid == [7; 16])),
        "{frames:?}"
    );
    world.update(&honest, &scheduler, "t", TaskState::TaskRunning, 8);
    assert_eq!(states(&world.updates(&scheduler)), [TaskState::TaskRunning]);
    // The same holds while the other agent is absent.
    world.live(100 * SECOND, &[&malicious_agent]);
    assert_eq!(world.lost(), 1);
    world.take_events(scheduler.connection);
    world.update(
        &malicious_agent,
        &scheduler,
        "t",
        TaskState::TaskFinished,
        9,
    );
    assert_eq!(states(&world.updates(&scheduler)), []);
    let info = aware_info_of(&scheduler);
    let stolen = vec![running(
        &malicious_agent,
        &scheduler,
        "t",
        "cpus:1;mem:64",
        "dev",
    )];
    world.lose_agent(&malicious_agent);
    let again = world.reregister(&malicious_agent, stolen, vec![info]);
    assert!(sent!(world, again.connection, KillTask));
    let snapshot = world.core.snapshot();
    assert_eq!(snapshot.frameworks[0].unreachable.len(), 1);
    assert!(snapshot.agents.iter().all(|agent| agent.tasks.is_empty()));
    // The agent's own tasks come back.
    let own = vec![running(&honest, &scheduler, "t", "cpus:1;mem:64", "dev")];
    world.reregister(&honest, own, Vec::new());
    assert_eq!(states(&world.updates(&scheduler)), [TaskState::TaskRunning]);
}

/// An agent repeats updates for tasks that it never got, also to a newly started master; but these tasks could be on
/// an agent that is not back yet.
#[test]
fn unknown_task_updates_wait_for_recovery() {
    let (world, honest, scheduler, malicious_agent) = begin();
    let mut world = world.restart();
    let info = aware_info_of(&scheduler);
    let again = world.subscribe(info.clone());
    let malicious_agent = world.return_empty(&malicious_agent);
    world.update(&malicious_agent, &again, "t", TaskState::TaskFinished, 7);
    assert_eq!(states(&world.updates(&again)), []);
    assert!(
        !sent!(world, malicious_agent.connection, Acknowledge),
        "it is to repeat it"
    );
    world.return_running(&honest, &again, vec![info]);
    world.update(&malicious_agent, &again, "t", TaskState::TaskFinished, 7);
    assert_eq!(states(&world.updates(&again)), []);
    world.update(&malicious_agent, &again, "never", TaskState::TaskDropped, 8);
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskDropped]);
}

#[test]
fn drops_messages_from_unknown_executors() {
    let (mut world, honest, scheduler, malicious_agent) = begin();
    let said = |executor: &str| {
        AgentMessage::ExecutorMessage(meseta::ExecutorMessage {
            framework_id: framework_id(&scheduler.id),
            executor_id: executor_id(executor),
            data: vec![1],
        })
    };
    let info = aware_info_of(&scheduler);
    let executor = v1::ExecutorInfo {
        executor_id: executor_id("e"),
        framework_id: info.id.clone(),
        resources: to_wire(
            &parse("cpus:0.1").allocate(&Role::new("dev").unwrap()),
            Format::PostRefinement,
        ),
        ..v1::ExecutorInfo::default()
    };
    world.lose_agent(&honest);
    let tasks = vec![running(&honest, &scheduler, "t", "cpus:1;mem:64", "dev")];
    let mut whole = report(&honest, tasks, vec![info]);
    whole.executors.push(executor);
    let connection = world.handshake(AgentMessage::Reregister(whole));
    let honest = Node {
        connection,
        ..honest
    };
    world.take_events(scheduler.connection);
    for (node, executor, is_heard) in [
        (&malicious_agent, "e", false),
        (&honest, "other", false),
        (&honest, "e", true),
    ] {
        world.say(node, said(executor));
        let events = world.take_events(scheduler.connection);
        let heard = events.iter().any(|event| event.message.is_some());
        assert_eq!(heard, is_heard, "{executor} of {}", node.id);
    }
}

fn named(number: usize) -> v1::FrameworkInfo {
    World::with_id(plain(), &format!("old-{number:06}"))
}

fn task_of(node: &Node, framework: &v1::FrameworkInfo) -> v1::Task {
    let scheduler = framework_of_before(&framework.id.as_ref().unwrap().value);
    running(node, &scheduler, "t", "cpus:0.001", "dev")
}

#[test]
fn reregistration_adds_only_running_frameworks() {
    let (mut world, node) = World::with_agent("cpus:400;mem:1024");
    world.lose_agent(&node);
    let frameworks: Vec<_> = (0..3_000).map(named).collect();
    let node = world.reregister(&node, Vec::new(), frameworks.clone());
    assert!(world.core.frameworks.is_empty(), "it runs nothing of them");
    for _ in 0..2 {
        world.lose_agent(&node);
        let tasks = frameworks.iter().map(|info| task_of(&node, info)).collect();
        world.reregister(&node, tasks, frameworks.clone());
        assert_eq!(world.core.frameworks.len(), 2_048);
    }
}

#[test]
fn reported_frameworks_obey_info_limit() {
    let mut world = World::with_config(|config| {
        config.memory.info = 2_000;
        config.memory.terms = 10_000;
    });
    let node = world.agent(5051, "cpus:4;mem:1024");
    world.lose_agent(&node);
    let wordy = |number: usize, bytes: usize| v1::FrameworkInfo {
        webui_url: Some("x".repeat(bytes)),
        ..named(number)
    };
    let mut frameworks = vec![wordy(0, 2_000)];
    frameworks.extend((1..20).map(|number| wordy(number, 1_000)));
    let tasks = frameworks.iter().map(|info| task_of(&node, info)).collect();
    world.reregister(&node, tasks, frameworks);
    assert!(!world.core.frameworks.contains_key("old-000000"));
    let kept = world.core.frameworks.len();
    assert!((4..8).contains(&kept), "{kept}");
    // There is room for frameworks that subscribe.
    world.subscribe(framework("g", &["dev"]));
}

#[test]
fn refuses_framework_ids_not_yet_assigned() {
    let mut world = World::new();
    let first = world.subscribe(plain());
    assert_eq!(first.id, "m-0000");
    for id in ["m-0001", "m-0400"] {
        let info = World::with_id(plain(), id);
        let thief = world.try_subscribe(info.clone());
        assert!(subscription_error(&mut world, thief).contains("has not been given"));
        let node = node_of_before("old-S7", 6000);
        let fake = task_of(&node, &info);
        let node = world.reregister(&node, vec![fake], vec![info]);
        assert!(sent!(world, node.connection, ShutdownFramework));
        world.lose_agent(&node);
    }
    assert_eq!(world.core.frameworks.len(), 1);
    assert_eq!(world.subscribe(plain()).id, "m-0001");
    // Ids of earlier masters, and ids chosen by frameworks, are accepted as before.
    for id in ["m0-0400", "mine"] {
        let info = World::with_id(plain(), id);
        assert_eq!(world.subscribe(info).id, id);
    }
}

pub(in crate::core::tests) fn described(port: i32, bytes: usize) -> meseta::Register {
    let mut register = register(port, "cpus:1;mem:64");
    register.agent_info.attributes.push(v1::Attribute {
        name: "x".to_owned(),
        r#type: v1::value::Type::Text.into(),
        text: Some(v1::value::Text {
            value: "x".repeat(bytes),
        }),
        ..v1::Attribute::default()
    });
    register
}

#[test]
fn resource_sum_over_reservations_is_limited() {
    let mut world = World::new();
    let with = |cpus: &str| register(1, &format!("cpus(r0):1000000000000;{cpus};mem:64"));
    let much = world.handshake(AgentMessage::Register(with("cpus(r1):1000000000000")));
    let refused_for = refused(&mut world, much).unwrap();
    assert!(refused_for.permanent);
    assert_says(&refused_for.reason, "of 'cpus', over all reservations");
    let enough = world.handshake(AgentMessage::Register(with("cpus(r1):100000000000")));
    assert_eq!(refused(&mut world, enough), None);
}

#[test]
fn agent_info_memory_is_limited() {
    let mut world = World::with_config(|config| {
        config.memory.agent_info = 10_000;
        config.memory.agents = 50_000;
    });
    let wordy = world.handshake(AgentMessage::Register(described(1, 10_000)));
    let reason = refused(&mut world, wordy).unwrap().reason;
    assert_says(&reason, "--memory_budget");
    let mut admitted = Vec::new();
    let reason = loop {
        let port = i32::try_from(admitted.len()).unwrap() + 1;
        let said = described(port, 9_000);
        let connection = world.handshake(AgentMessage::Register(said.clone()));
        match refused(&mut world, connection) {
            Some(refused) => break refused.reason,
            None => admitted.push((connection, said)),
        }
    };
    assert!((3..6).contains(&admitted.len()), "{}", admitted.len());
    assert_says(&reason, "those of all");
    // Registered agents may come back, and a removed one makes room.
    let (connection, said) = admitted.pop().unwrap();
    let id = world
        .core
        .agent_connections
        .agent(connection)
        .unwrap()
        .to_string();
    let node = Node {
        connection,
        id,
        register: said.clone(),
    };
    world.input(Input::AgentGone { connection });
    let node = world.return_empty(&node);
    assert!(refused(&mut world, node.connection).is_none());
    world.unregister(&node);
    let another = world.handshake(AgentMessage::Register(described(99, 9_000)));
    assert!(refused(&mut world, another).is_none());
    // All of it counts in the next master as well.
    let mut world = world.restart();
    assert!(world.core.described_bytes() > 27_000);
    world.check();
}

pub(in crate::core::tests) fn part(node: &Node, is_first: bool, bytes: usize) -> AgentMessage {
    let register = report(node, Vec::new(), Vec::new()).register;
    let task = v1::Task {
        name: "x".repeat(bytes),
        ..v1::Task::default()
    };
    AgentMessage::ReregisterPart(meseta::ReregisterPart {
        register: is_first.then_some(register),
        tasks: vec![prost::Message::encode_to_vec(&task)],
        ..meseta::ReregisterPart::default()
    })
}

#[test]
fn stalled_reregistration_is_dropped_for_others() {
    let mut world = World::with_config(|config| config.memory.partial_reregistrations = 2 << 20);
    let nodes = ["old-S1", "old-S2", "old-S3"].map(|id| {
        let mut register = register(5051, "cpus:1;mem:64");
        register.agent_info.hostname = format!("{id}.example");
        let connection = ConnectionId(0);
        Node {
            connection,
            id: id.to_owned(),
            register,
        }
    });
    let still = world.handshake(part(&nodes[0], true, 1_000_000));
    let first = world.handshake(part(&nodes[1], true, 700_000));
    assert!(world.closed.is_empty());
    // A moment later there is room for another agent, because the first has sent nothing since.
    world.advance(3 * SECOND);
    world.say_on(first, part(&nodes[1], false, 100_000));
    let second = world.handshake(part(&nodes[2], true, 600_000));
    assert!(world.closed.contains(&still));
    assert!(!refused(&mut world, still).unwrap().permanent);
    assert!(!world.closed.contains(&first) && !world.closed.contains(&second));
    // Small parts count as no progress.
    for _ in 0..10 {
        world.advance(3 * SECOND);
        world.say_on(first, part(&nodes[1], false, 10));
        world.say_on(second, part(&nodes[2], false, 0));
    }
    world.advance(SECOND);
    assert!(world.closed.contains(&first) && world.closed.contains(&second));
    assert_eq!(world.core.partial_reregistrations.bytes(), 0);
    let last = world.handshake(part(&nodes[0], true, 700_000));
    assert!(!world.closed.contains(&last));
}

#[test]
fn reregistration_counts_decoded_bytes() {
    let mut world = World::with_config(|config| config.memory.partial_reregistrations = 1 << 20);
    let node = node_of_before("old-S1", 5051);
    // A small message: each framework takes a few bytes encoded, and some hundred in memory.
    let frameworks = vec![v1::FrameworkInfo::default(); 20_000];
    let small = meseta::ReregisterPart {
        register: Some(report(&node, Vec::new(), Vec::new()).register),
        frameworks,
        ..meseta::ReregisterPart::default()
    };
    assert!(prost::Message::encoded_len(&small) < 1 << 20);
    let connection = world.handshake(AgentMessage::ReregisterPart(small));
    let reason = refused(&mut world, connection).unwrap().reason;
    assert_says(&reason, "--memory_budget");
}

#[test]
fn principal_leaves_info_memory_for_others() {
    let mut world = World::with_config(|config| {
        config.memory.info = 2_000;
        config.memory.terms = 20_000;
    });
    let wordy = |principal: &str| v1::FrameworkInfo {
        principal: Some(principal.to_owned()),
        webui_url: Some("x".repeat(900)),
        ..plain()
    };
    let mut had = Vec::new();
    let mut last = String::new();
    for principal in ["mallory", "eve", "ada"] {
        let mut count = 0;
        last.clear();
        let reason = loop {
            let connection = world.try_subscribe(wordy(principal));
            let events = world.take_events(connection);
            if let Some(error) = events.iter().find_map(|event| event.error.as_ref()) {
                break error.message.clone();
            }
            let mut subscribed = events.iter().filter_map(|event| event.subscribed.as_ref());
            last.clone_from(&subscribed.next().unwrap().framework_id.value);
            count += 1;
        };
        assert_says(&reason, "of the principal");
        had.push(count);
    }
    assert!(had[0] <= 11 && had[1] >= 3 && had[2] >= 1, "{had:?}");
    // A framework's new info replaces its former one.
    let kept = world.core.framework_info_usage.all();
    world.subscribe(World::with_id(wordy("ada"), &last));
    assert_eq!(world.core.framework_info_usage.all(), kept);
}

#[test]
fn unauthenticated_framework_belongs_to_local_user() {
    let mut world = World::new();
    let at = |user: Option<LocalUser>| Caller {
        user,
        ..Caller::default()
    };
    let (alice, nobody) = (LocalUser::Id(1_000), LocalUser::Id(65_534));
    world.caller = at(Some(alice));
    for principal in [None, Some("ada")] {
        let info = v1::FrameworkInfo {
            principal: principal.map(str::to_owned),
            ..plain()
        };
        world.caller = at(Some(alice));
        let scheduler = world.subscribe(info.clone());
        let claimed = World::with_id(info, &scheduler.id);
        for thief in [nobody, LocalUser::Unknown] {
            world.caller = at(Some(thief));
            let refused = world.try_subscribe(claimed.clone());
            assert!(subscription_error(&mut world, refused).contains("another user"));
        }
        assert!(!world.closed.contains(&scheduler.connection));
        // Root may, and so may a scheduler on another machine, which only its principal identifies.
        for other in [Some(LocalUser::Id(0)), None, Some(alice)] {
            world.caller = at(other);
            assert_eq!(world.subscribe(claimed.clone()).id, scheduler.id);
        }
        world.caller = at(Some(nobody));
        let refused = world.try_subscribe(claimed);
        subscription_error(&mut world, refused);
    }
}
