//! Agents cut off from the master: the events meanwhile, and the state after their return.

use super::*;

fn partition_aware() -> v1::FrameworkInfo {
    aware(plain())
}

fn own_info(world: &mut World) -> v1::FrameworkInfo {
    (*world.core.snapshot().frameworks[0].info).clone()
}

fn reported(node: &Node, scheduler: &Scheduler, state: TaskState) -> v1::Task {
    let mut task = running(node, scheduler, "t", "cpus:1;mem:64", "dev");
    task.state = state.into();
    task.status_update_state = Some(state.into());
    task
}

fn updates_of(events: &[Event]) -> Vec<&TaskStatus> {
    events
        .iter()
        .filter_map(|event| event.update.as_ref().map(|update| &update.status))
        .collect()
}

#[test]
fn task_recovers_when_agent_returns() {
    for (info, lost) in [
        (partition_aware(), TaskState::TaskUnreachable),
        (plain(), TaskState::TaskLost),
    ] {
        let (mut world, node, scheduler) = World::with_running_task(info);
        world.advance(100 * SECOND);
        let events = world.take_events(scheduler.connection);
        let status = updates_of(&events)[0].clone();
        assert_eq!(status.state(), lost);
        assert_eq!(status.reason(), v1::task_status::Reason::AgentRemoved);
        assert!(status.unreachable_time.is_some() && status.uuid.is_none());
        assert!(events.iter().any(|event| event.failure.is_some()));
        let info = own_info(&mut world);
        let back = world.return_running(&node, &scheduler, vec![info]);
        assert_eq!(world.registered(back.connection).agent_id.value, node.id);
        let events = world.take_events(scheduler.connection);
        let told = updates_of(&events);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].state(), TaskState::TaskRunning);
        assert_eq!(told[0].reason(), v1::task_status::Reason::AgentReregistered);
        let snapshot = world.core.snapshot();
        assert!(snapshot.frameworks[0].unreachable.is_empty());
        assert!(snapshot.unreachable_agents.is_empty() && world.registry.unreachable.is_empty());
        let offer = world.core.offers.values().next().unwrap();
        assert_eq!(offer.resources.unallocate(), parse("cpus:3;mem:960"));
        // Reconciliation reports the same state.
        world.call(&scheduler, reconcile(&[("t", Some(&node.id))]));
        assert_eq!(states(&world.updates(&scheduler)), [TaskState::TaskRunning]);
    }
}

/// An unreachable agent that came back, and lost its connections before its return was durable.
fn lost_while_it_came_back(losses: usize) -> (World, Node, Scheduler, v1::FrameworkInfo) {
    let (mut world, mut node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    world.take_events(scheduler.connection);
    let info = own_info(&mut world);
    world.writes_at_once = false;
    for _ in 0..losses {
        // A changed description, so that the return waits for the registry each time.
        let attributes = &mut node.register.agent_info.attributes;
        attributes.push(v1::Attribute::default());
        node = world.return_running(&node, &scheduler, vec![info.clone()]);
        world.lose_agent(&node);
        world.write();
    }
    world.writes_at_once = true;
    assert_eq!(world.core.absent_agents.expected().len(), 1);
    (world, node, scheduler, info)
}

#[test]
fn task_recovers_after_interrupted_reregistration() {
    for losses in [1, 2] {
        let (mut world, node, scheduler, info) = lost_while_it_came_back(losses);
        world.return_running(&node, &scheduler, vec![info]);
        let events = world.take_events(scheduler.connection);
        let told = updates_of(&events);
        assert_eq!(told.len(), 1, "{losses}");
        assert_eq!(told[0].state(), TaskState::TaskRunning);
        assert_eq!(told[0].reason(), v1::task_status::Reason::AgentReregistered);
    }
}

#[test]
fn task_is_gone_after_interrupted_reregistration() {
    let (mut world, node, scheduler, _) = lost_while_it_came_back(1);
    let agent_id = node.id.clone();
    world.administer_done(Administration::MarkAgentGone { agent_id });
    let told = states(&world.updates(&scheduler));
    assert_eq!(told, [TaskState::TaskGoneByOperator]);
}

#[test]
fn reregistration_reports_task_health() {
    for healthy in [Some(true), Some(false), None] {
        let (mut world, node, scheduler) = World::with_running_task(partition_aware());
        world.advance(100 * SECOND);
        world.take_events(scheduler.connection);
        let container_status = v1::ContainerStatus {
            executor_pid: Some(7),
            ..v1::ContainerStatus::default()
        };
        let mut task = reported(&node, &scheduler, TaskState::TaskRunning);
        task.statuses = vec![TaskStatus {
            task_id: task.task_id.clone(),
            state: TaskState::TaskRunning.into(),
            healthy,
            container_status: Some(container_status.clone()),
            ..TaskStatus::default()
        }];
        let info = own_info(&mut world);
        world.reregister(&node, vec![task], vec![info]);
        let told = world.updates(&scheduler);
        assert_eq!(states(&told), [TaskState::TaskRunning]);
        assert_eq!(told[0].healthy, healthy);
        assert_eq!(told[0].container_status, Some(container_status));
    }
}

#[test]
fn task_survives_partition_and_master_failover() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    world.take_events(scheduler.connection);
    let ask = |world: &mut World, scheduler: &Scheduler| {
        world.call(scheduler, reconcile(&[("t", Some(&node.id))]));
        world.updates(scheduler).pop().unwrap()
    };
    let before = ask(&mut world, &scheduler);
    assert_eq!(before.state(), TaskState::TaskUnreachable);
    let info = own_info(&mut world);

    let mut world = world.restart();
    let again = world.subscribe(info.clone());
    let after = ask(&mut world, &again);
    assert_eq!(after.state(), TaskState::TaskUnreachable);
    assert_eq!(after.unreachable_time, before.unreachable_time);

    world.return_running(&node, &again, vec![info]);
    world.take_events(again.connection);
    assert_eq!(ask(&mut world, &again).state(), TaskState::TaskRunning);
}

#[test]
fn resubscribed_framework_regains_orphaned_task() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    let info = own_info(&mut world);
    let mut world = world.restart();
    // The agent is back before its framework.
    world.return_running(&node, &scheduler, vec![info.clone()]);
    let snapshot = world.core.snapshot();
    assert!(snapshot.frameworks[0].recovered);
    assert_eq!(snapshot.agents[0].tasks.len(), 1);
    let again = world.subscribe(info);
    assert!(!world.core.snapshot().frameworks[0].recovered);
    world.call(&again, reconcile(&[]));
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskRunning]);
}

#[test]
fn absent_framework_learns_state_by_reconciliation() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    let info = own_info(&mut world);
    world.live(50 * SECOND, &[&node]);
    world.lose_stream(&scheduler);
    // The timeout of 60 s has not expired when the agent becomes unreachable.
    world.advance(50 * SECOND);
    let again = world.subscribe(info.clone());
    world.advance(40 * SECOND);
    assert_eq!(world.lost(), 1);
    world.take_events(again.connection);
    world.call(&again, reconcile(&[("t", Some(&node.id))]));
    assert_eq!(states(&world.updates(&again)), [TaskState::TaskUnreachable]);
    world.return_running(&node, &again, vec![info]);
    world.call(&again, reconcile(&[]));
    assert!(states(&world.updates(&again)).contains(&TaskState::TaskRunning));
}

#[test]
fn brief_disconnect_sends_no_updates() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    let info = own_info(&mut world);
    let node = world.return_running(&node, &scheduler, vec![info]);
    assert!(world.registered(node.connection).unknown_tasks.is_empty());
    let events = world.take_events(scheduler.connection);
    assert!(updates_of(&events).is_empty());
    let used = world.core.snapshot().agents[0].used_total().unallocate();
    assert_eq!(used, parse("cpus:1;mem:64"));
}

#[test]
fn ignores_messages_on_removed_agents_stream() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    assert!(world.closed.contains(&node.connection));
    world.take_events(scheduler.connection);
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 2);
    world.executor_exits(&node, &scheduler, 0);
    assert!(world.take_events(scheduler.connection).is_empty());
    world.call(&scheduler, reconcile(&[("t", Some(&node.id))]));
    assert_eq!(
        states(&world.updates(&scheduler)),
        [TaskState::TaskUnreachable]
    );
}

#[test]
fn end_during_partition_is_reported() {
    for info in [partition_aware(), plain()] {
        let (mut world, node, scheduler) = World::with_running_task(info);
        world.advance(100 * SECOND);
        world.take_events(scheduler.connection);
        let info = own_info(&mut world);
        let mut task = reported(&node, &scheduler, TaskState::TaskFinished);
        task.status_update_uuid = Some(vec![2; 16]);
        let node = world.reregister(&node, vec![task], vec![info]);
        world.update(&node, &scheduler, "t", TaskState::TaskFinished, 2);
        let told = states(&world.updates(&scheduler));
        assert!(told.iter().all(|state| *state == TaskState::TaskFinished));
        world.acknowledge(&node, &scheduler, "t", 2);
        let snapshot = world.core.snapshot();
        assert!(snapshot.agents[0].tasks.is_empty() && snapshot.agents[0].used.is_empty());
    }
}

#[test]
fn known_end_stays_after_agent_loss() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 2);
    world.take_events(scheduler.connection);
    // The update is not acknowledged, and then the agent is cut off.
    world.advance(100 * SECOND);
    let events = world.take_events(scheduler.connection);
    assert!(updates_of(&events).is_empty(), "the end has been told");
    let snapshot = world.core.snapshot();
    let completed = &snapshot.frameworks[0].completed;
    assert_eq!(completed[0].state, TaskState::TaskFinished);
    assert!(snapshot.frameworks[0].unreachable.is_empty());
}

#[test]
fn reregistration_during_marking_is_retried() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.writes_at_once = false;
    world.advance(100 * SECOND);
    assert_eq!(
        world.unwritten.len(),
        1,
        "marked once, however often it is late"
    );
    let info = own_info(&mut world);
    let tasks = vec![reported(&node, &scheduler, TaskState::TaskRunning)];
    let early = world.reregister(&node, tasks.clone(), vec![info.clone()]);
    let frames = world.take_frames(early.connection);
    assert!(matches!(
        &frames[0],
        MasterMessage::Refused(refused) if !refused.permanent
    ));
    // Until the write, the agent counts as registered.
    world.call(&scheduler, reconcile(&[("nosuch", Some(&node.id))]));
    let told = states(&world.updates(&scheduler));
    assert_eq!(told.last(), Some(&TaskState::TaskGone));
    world.writes_at_once = true;
    world.write();
    assert_eq!(world.lost(), 1);
    world.reregister(&node, tasks, vec![info]);
    assert!(world.core.snapshot().unreachable_agents.is_empty());
}

#[test]
fn agent_pruned_during_reregistration_returns() {
    let mut world = World::with_config(|config| config.registry_max_agent_count = 0);
    let node = world.agent(5051, "cpus:4;mem:1024");
    world.advance(100 * SECOND);
    assert_eq!(world.lost(), 1);
    world.writes_at_once = false;
    let back = world.return_empty(&node);
    world.advance(900 * SECOND);
    world.writes_at_once = true;
    world.write();
    assert_eq!(world.registered(back.connection).agent_id.value, node.id);
    assert!(world.core.snapshot().unreachable_agents.is_empty());
    assert!(world.registry.unreachable.is_empty());
    assert_eq!(world.registry.agents.len(), 1);
}

#[test]
fn recovered_agent_waits_for_registry_write() {
    let (mut world, mut node, scheduler) = World::with_running_task(partition_aware());
    let info = own_info(&mut world);
    let mut world = world.restart();
    // An unchanged agent needs no write.
    node.register.agent_info.hostname = "moved.example".to_owned();
    let again = world.subscribe(info.clone());
    // The registry's record of the agent has to be replaced.
    node.register.agent_info.port = Some(6_000);
    let ask = |world: &mut World, agent: Option<&str>| {
        world.take_events(again.connection);
        world.call(&again, reconcile(&[("t", agent)]));
        states(&world.updates(&again))
    };
    assert!(ask(&mut world, Some(&node.id)).is_empty());
    world.writes_at_once = false;
    world.return_running(&node, &scheduler, vec![info]);
    assert!(ask(&mut world, Some(&node.id)).is_empty(), "in progress");
    assert!(ask(&mut world, None).is_empty());
    assert_eq!(world.core.snapshot().counters.reconciliations_unanswered, 3);
    world.writes_at_once = true;
    world.write();
    assert_eq!(ask(&mut world, None), [TaskState::TaskRunning]);
}

#[test]
fn kill_of_unknown_task_is_reconciled() {
    for (info, expected) in [
        (partition_aware(), TaskState::TaskUnknown),
        (plain(), TaskState::TaskLost),
    ] {
        let (mut world, _, scheduler) = World::with_running_task(info);
        world.call_accepted(&scheduler, kill("nosuch"));
        let update = world.updates(&scheduler).pop().unwrap();
        assert_eq!(update.state(), expected);
        assert_eq!(update.reason(), v1::task_status::Reason::Reconciliation);
    }
}

#[test]
fn master_failover_extends_no_framework_deadline() {
    let mut info = partition_aware();
    info.failover_timeout = Some(7200.0);
    let (mut world, node, scheduler) = World::with_running_task(info);
    let info = own_info(&mut world);
    world.lose_stream(&scheduler);
    assert_eq!(world.registry.deadlines.len(), 1);
    world.live(3600 * SECOND, &[&node]);
    let mut world = world.restart();
    let node = world.return_running(&node, &scheduler, vec![info]);
    world.live(3500 * SECOND, &[&node]);
    assert_eq!(world.core.snapshot().frameworks.len(), 1);
    world.live(200 * SECOND, &[&node]);
    assert!(world.core.snapshot().frameworks.is_empty());
    assert!(world.registry.deadlines.is_empty());
}

#[test]
fn resubscription_resets_failover_deadline() {
    let (mut world, _, scheduler) = World::with_running_task(partition_aware());
    let info = own_info(&mut world);
    world.lose_stream(&scheduler);
    let again = world.subscribe(info);
    assert!(world.registry.deadlines.is_empty());
    world.lose_stream(&again);
    let deadline = world.registry.deadlines[0].deadline;
    assert_eq!(deadline, world.now.unix + 60 * SECOND);
    world.advance(61 * SECOND);
    assert!(world.registry.deadlines.is_empty(), "it has ended");
}

fn part(
    node: &Node,
    is_first: bool,
    tasks: Vec<v1::Task>,
    frameworks: Vec<v1::FrameworkInfo>,
) -> AgentMessage {
    let register = report(node, Vec::new(), Vec::new()).register;
    AgentMessage::ReregisterPart(meseta::ReregisterPart {
        register: is_first.then_some(register),
        tasks: tasks.iter().map(prost::Message::encode_to_vec).collect(),
        frameworks,
        ..meseta::ReregisterPart::default()
    })
}

#[test]
fn partial_messages_form_one_reregistration() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    world.take_events(scheduler.connection);
    let info = own_info(&mut world);
    let connection = world.handshake(part(&node, true, Vec::new(), vec![info]));
    let tasks = vec![reported(&node, &scheduler, TaskState::TaskRunning)];
    world.say_on(connection, part(&node, false, tasks, Vec::new()));
    assert!(
        world.take_frames(connection).is_empty(),
        "it is not complete"
    );
    let last = AgentMessage::Reregister(report(&node, Vec::new(), Vec::new()));
    world.say_on(connection, last);
    assert_eq!(world.registered(connection).agent_id.value, node.id);
    assert_eq!(states(&world.updates(&scheduler)), [TaskState::TaskRunning]);
}

#[test]
fn stray_reregistration_parts_are_refused() {
    let (mut world, node, scheduler) = World::with_running_task(partition_aware());
    world.advance(100 * SECOND);
    world.take_events(scheduler.connection);
    let stray = world.handshake(part(&node, false, Vec::new(), Vec::new()));
    let frames = world.take_frames(stray);
    assert!(
        matches!(&frames[..], [MasterMessage::Refused(refused)] if refused.permanent),
        "{frames:?}"
    );
    let tasks = vec![reported(&node, &scheduler, TaskState::TaskRunning)];
    let lost = world.handshake(part(&node, true, tasks, Vec::new()));
    world.input(Input::AgentGone { connection: lost });
    let info = own_info(&mut world);
    world.reregister(&node, Vec::new(), vec![info]);
    assert_eq!(
        states(&world.updates(&scheduler)),
        [],
        "it has no such task"
    );
}
