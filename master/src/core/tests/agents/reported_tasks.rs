//! Tasks that agents claim to run, and their updates for unknown tasks.

use super::*;

fn reported_task(node: &Node, scheduler: &Scheduler, id: &str) -> v1::Task {
    running(node, scheduler, id, "cpus:1;mem:64", "dev")
}

fn killed(world: &mut World, node: &Node) -> Vec<String> {
    let kills = taken!(world, node.connection, KillTask).into_iter();
    kills.map(|kill| kill.task_id.value).collect()
}

#[test]
fn unreadable_reported_task_is_skipped() {
    let (world, node, _, scheduler) = begin();
    let mut world = world.restart();
    let whole = [1, 2, 3].map(|number| reported_task(&node, &scheduler, &format!("t{number}")));
    let mut returning = report(&node, whole.to_vec(), vec![aware_info_of(&scheduler)]);
    returning.tasks[0].truncate(7);
    let resource = v1::Resource::default();
    let unnamed = v1::Task {
        resources: vec![resource],
        ..whole[1].clone()
    };
    returning.tasks[1] = prost::Message::encode_to_vec(&unnamed);
    let before = world.core.counters.invalid_status_updates;
    world.handshake(AgentMessage::Reregister(returning));
    let snapshot = world.core.snapshot();
    let agents = snapshot.agents.iter();
    let ids = agents.flat_map(|agent| agent.tasks.values().map(|task| task.task_id.to_string()));
    assert_eq!(ids.collect::<Vec<_>>(), ["t3"]);
    assert_eq!(world.core.counters.invalid_status_updates, before + 2);
}

/// Two agents and a framework of this master.
fn begin() -> (World, Node, Node, Scheduler) {
    let (mut world, honest) = World::with_agent("cpus:4;mem:1024");
    let malicious_agent = world.agent(6000, "cpus:4;mem:1024");
    let scheduler = world.subscribe(aware(plain()));
    (world, honest, malicious_agent, scheduler)
}

#[test]
fn task_reported_twice_is_not_killed() {
    let (world, honest, malicious_agent, scheduler) = begin();
    let mut world = world.restart();
    let info = aware_info_of(&scheduler);
    let tasks = vec![reported_task(&malicious_agent, &scheduler, "t")];
    let malicious_agent = world.reregister(&malicious_agent, tasks, vec![info.clone()]);
    let again = world.subscribe(info.clone());
    let tasks = vec![reported_task(&honest, &scheduler, "t")];
    let honest = world.reregister(&honest, tasks, vec![info]);
    for node in [&honest, &malicious_agent] {
        assert_eq!(killed(&mut world, node), [""; 0]);
    }
    for (node, number) in [(&honest, 1), (&malicious_agent, 2)] {
        world.update(node, &again, "t", TaskState::TaskRunning, number);
        let updates = world.updates(&again);
        assert_eq!(updates[0].agent_id.as_ref().unwrap().value, node.id);
        let asked = (("t", Some(node.id.as_str())), &node.id);
        world.call(&again, reconcile(&[asked.0]));
        let answer = world.updates(&again).pop().unwrap();
        assert_eq!(answer.agent_id.unwrap().value, *asked.1);
    }
    world.call(&again, reconcile(&[]));
    assert_eq!(world.updates(&again).len(), 2);
    world.call(&again, kill("t"));
    for node in [&honest, &malicious_agent] {
        assert_eq!(killed(&mut world, node), ["t"]);
    }
    // The end on one agent is not the end on the other.
    world.update(&malicious_agent, &again, "t", TaskState::TaskFinished, 3);
    world.acknowledge(&malicious_agent, &again, "t", 3);
    world.take_events(again.connection);
    world.update(&honest, &again, "t", TaskState::TaskRunning, 4);
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskRunning]);
    world.call(&again, kill("t"));
    assert_eq!(killed(&mut world, &honest), ["t"]);
    assert_eq!(killed(&mut world, &malicious_agent), [""; 0]);
    // Nor is the loss of that agent.
    world.advance(100 * SECOND);
    assert!(
        world
            .core
            .agents
            .values()
            .all(|agent| agent.tasks.is_empty())
    );
}

#[test]
fn registered_agent_cannot_add_unknown_tasks() {
    let (mut world, honest, malicious_agent, scheduler) = begin();
    world.lose_agent(&malicious_agent);
    let tasks = vec![reported_task(&malicious_agent, &scheduler, "next")];
    let malicious_agent =
        world.reregister(&malicious_agent, tasks, vec![aware_info_of(&scheduler)]);
    assert_eq!(killed(&mut world, &malicious_agent), ["next"]);
    let id = malicious_agent.agent_id();
    assert!(world.core.agents[&id].tasks.is_empty());
    assert!(world.core.agents[&id].used.is_empty());
    let offers = world.offers(&scheduler);
    let offer = offers
        .iter()
        .find(|offer| offer.agent_id.value == honest.id);
    let tasks = vec![task(&honest, "next", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[offer.unwrap()], tasks));
    assert_eq!(states(&world.updates(&scheduler)), []);
}

#[test]
fn unverified_task_report_blocks_no_launch() {
    let (world, honest, malicious_agent, scheduler) = begin();
    let mut world = world.restart();
    let info = aware_info_of(&scheduler);
    let tasks = vec![reported_task(&malicious_agent, &scheduler, "next")];
    let malicious_agent = world.reregister(&malicious_agent, tasks, vec![info.clone()]);
    let honest = world.return_empty(&honest);
    let again = world.subscribe(info);
    let offers = world.offers(&again);
    for (node, is_refused) in [(&malicious_agent, true), (&honest, false)] {
        let offer = offers.iter().find(|offer| offer.agent_id.value == node.id);
        let tasks = vec![task(node, "next", "cpus:1;mem:64")];
        world.call(&again, accept(&[offer.unwrap()], tasks));
        let error = states(&world.updates(&again)).contains(&TaskState::TaskError);
        assert_eq!(error, is_refused, "{}", node.id);
    }
    // From now on the launched task is the one that no other agent may claim.
    let framework = FrameworkId::new(&again.id).unwrap();
    let next = TaskId::new("next").unwrap();
    let holders = world.core.frameworks[&framework].holders(&next);
    let holders: Vec<&str> = holders.map(AgentId::as_str).collect();
    assert_eq!(holders, [&honest.id, &malicious_agent.id]);
    assert!(world.core.frameworks[&framework].has_launched(&next));
}

#[test]
fn reported_tasks_are_charged_within_total() {
    let (world, _, malicious_agent, scheduler) = begin();
    let mut world = world.restart();
    let tasks =
        ["a", "b", "c"].map(|id| running(&malicious_agent, &scheduler, id, "cpus:3", "dev"));
    let malicious_agent = world.reregister(
        &malicious_agent,
        tasks.to_vec(),
        vec![aware_info_of(&scheduler)],
    );
    let id = malicious_agent.agent_id();
    let agent = &world.core.agents[&id];
    assert_eq!(agent.tasks.len(), 3);
    let used = agent.used.values().map(Resources::unallocate);
    let used = used.fold(Resources::new(), |sum, one| sum + one);
    assert_eq!(used, parse("cpus:3"));
}

#[test]
fn few_unknown_task_updates_are_forwarded() {
    let (mut world, _, malicious_agent, scheduler) = begin();
    world.take_events(scheduler.connection);
    let tell = |world: &mut World, number: u8| {
        let status = TaskStatus {
            task_id: task_id(&format!("ghost-{number}")),
            state: TaskState::TaskRunning.into(),
            uuid: Some(vec![number; 16]),
            data: Some(vec![0; 1 << 20]),
            message: Some("x".repeat(1 << 20)),
            ..TaskStatus::default()
        };
        let update = meseta::StatusUpdate {
            framework_id: framework_id(&scheduler.id),
            status,
            latest_state: None,
        };
        world.say(&malicious_agent, AgentMessage::StatusUpdate(update));
        world.updates(&scheduler)
    };
    let mut forwarded = Vec::new();
    for number in 0..70 {
        forwarded.extend(tell(&mut world, number));
    }
    assert_eq!(forwarded.len(), 64);
    for status in &forwarded {
        assert!(prost::Message::encoded_len(status) < 200, "{status:?}");
    }
    assert!(tell(&mut world, 69).is_empty());
    assert!(tell(&mut world, 0).is_empty(), "so soon again");
    world.acknowledge(&malicious_agent, &scheduler, "ghost-0", 0);
    assert_eq!(tell(&mut world, 69).len(), 1);
    world.live(2 * SECOND, &[&malicious_agent]);
    assert_eq!(tell(&mut world, 69).len(), 1, "it is repeated");
    assert!(world.core.counters.invalid_status_updates > 0);
}

#[test]
fn framework_overrides_agents_report_of_it() {
    let (world, _, malicious_agent, scheduler) = begin();
    let mut world = world.restart();
    let info = aware_info_of(&scheduler);
    let forged = v1::FrameworkInfo {
        user: "root".to_owned(),
        checkpoint: Some(true),
        ..info.clone()
    };
    let tasks = vec![reported_task(&malicious_agent, &scheduler, "t")];
    world.reregister(&malicious_agent, tasks, vec![forged]);
    let id = FrameworkId::new(&scheduler.id).unwrap();
    assert_eq!(world.core.frameworks[&id].terms.info.user, "root");
    world.subscribe(info.clone());
    let known = &world.core.frameworks[&id].terms.info;
    assert_eq!(
        (&known.user, known.checkpoint),
        (&info.user, info.checkpoint)
    );
}

#[test]
fn exit_of_unknown_executor_is_dropped() {
    let (mut world, _, malicious_agent, scheduler) = begin();
    world.take_events(scheduler.connection);
    let exited = meseta::ExecutorExited {
        framework_id: framework_id(&scheduler.id),
        executor_id: executor_id("e"),
        status: Some(0),
    };
    world.say(&malicious_agent, AgentMessage::ExecutorExited(exited));
    let events = world.take_events(scheduler.connection);
    assert!(events.iter().all(|event| event.failure.is_none()));
}

#[test]
fn pending_agents_count_under_normalized_hostname() {
    let mut world = World::new();
    world.writes_at_once = false;
    for (port, hostname) in (1..).zip(["n.example", "N.Example", "n.example."]) {
        let mut said = register(port, "cpus:1;mem:64");
        said.agent_info.hostname = hostname.to_owned();
        world.handshake(AgentMessage::Register(said));
    }
    let count = |world: &World| world.core.agents_of_host("N.EXAMPLE.");
    assert_eq!((world.core.agents.len(), count(&world)), (0, 3));
    world.write();
    assert_eq!((world.core.agents.len(), count(&world)), (3, 3));
    let world = world.restart();
    assert_eq!((world.core.agents.len(), count(&world)), (0, 3));
}

#[test]
fn unverified_report_is_dropped_with_agent() {
    let (world, honest, malicious_agent, scheduler) = begin();
    let mut world = world.restart();
    let info = aware_info_of(&scheduler);
    let honest = world.return_empty(&honest);
    let tasks = vec![reported_task(&malicious_agent, &scheduler, "next")];
    world.reregister(&malicious_agent, tasks, vec![info.clone()]);
    world.live(100 * SECOND, &[&honest]);
    assert_eq!(world.lost(), 1);
    let again = world.subscribe(info);
    world.launch_next(&again, "next", "cpus:1;mem:64");
    assert_eq!(states(&world.updates(&again)), []);
    assert!(world.core.frameworks[again.id.as_str()].has_launched(&TaskId::new("next").unwrap()));
}
