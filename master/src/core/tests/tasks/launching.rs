//! Tasks: launches, updates, kills, resources.

use meseta_resources::work_counter::entries_counted;

use super::groups::executor;
use super::*;

/// A framework, an agent, and an offer of the whole agent.
pub(in crate::core::tests) fn begin() -> (World, Node, Scheduler, v1::Offer) {
    let resources = "cpus:4;mem:1024;ports:[31000-31009]";
    World::with_offer(plain(), resources)
}

#[test]
fn task_runs_from_accept_to_acknowledgement() {
    let (mut world, node, scheduler, offer) = begin();
    world.take_frames(node.connection);
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64;ports:[31000-31001]");
    let run = taken!(world, node.connection, RunTask).pop().unwrap();
    assert_eq!(run.framework.id.unwrap().value, scheduler.id);
    assert!(run.launch_executor);
    let role = |resource: &v1::Resource| resource.allocation_info.as_ref()?.role.clone();
    assert!(
        run.task
            .resources
            .iter()
            .all(|resource| role(resource).as_deref() == Some("dev"))
    );

    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    let status = world.updates(&scheduler).pop().unwrap();
    assert_eq!(status.state(), TaskState::TaskRunning);
    assert_eq!(status.agent_id.unwrap().value, node.id);
    assert_eq!(status.uuid, Some(vec![1; 16]));
    world.take_frames(node.connection);
    world.acknowledge(&node, &scheduler, "t", 1);
    let frames = world.take_frames(node.connection);
    assert!(matches!(&frames[0], MasterMessage::Acknowledge(ack) if ack.uuid == [1; 16]));

    // The rest of the offer, after its filter has expired.
    world.live(7 * SECOND, &[&node]);
    let offers = world.offers(&scheduler);
    assert_eq!(total(&offers), parse("cpus:3;mem:960;ports:[31002-31009]"));

    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 2);
    let events = world.take_events(scheduler.connection);
    assert_eq!(
        kinds(&events),
        [event::Type::Update, event::Type::Offers],
        "offered on at once"
    );
    assert_eq!(
        world.core.snapshot().agents[0].tasks.len(),
        1,
        "unacknowledged"
    );
    world.acknowledge(&node, &scheduler, "t", 9);
    assert_eq!(
        world.core.snapshot().agents[0].tasks.len(),
        1,
        "another uuid"
    );
    world.acknowledge(&node, &scheduler, "t", 2);
    let snapshot = world.core.snapshot();
    assert!(snapshot.agents[0].tasks.is_empty());
    assert_eq!(
        snapshot.frameworks[0].completed[0].state,
        TaskState::TaskFinished
    );
}

#[test]
fn repeated_update_is_forwarded_counted_once() {
    let (mut world, node, scheduler, offer) = begin();
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    for _ in 0..3 {
        world.update(&node, &scheduler, "t", TaskState::TaskFailed, 7);
    }
    assert_eq!(
        states(&world.updates(&scheduler)),
        [TaskState::TaskFailed; 3]
    );
    let snapshot = world.core.snapshot();
    assert_eq!(snapshot.counters.terminal["task_failed"], 1);
    let task = snapshot.agents[0].tasks.values().next().unwrap();
    assert_eq!(task.statuses.len(), 1);
}

#[test]
fn latest_state_frees_resources_before_update() {
    let (mut world, node, scheduler, offer) = begin();
    world.launch(
        &scheduler,
        &offer,
        "t",
        "cpus:4;mem:1024;ports:[31000-31009]",
    );
    world.take_events(scheduler.connection);
    world.tell_status(
        &node,
        &scheduler,
        TaskStatus {
            task_id: task_id("t"),
            state: TaskState::TaskRunning.into(),
            uuid: Some(vec![1; 16]),
            ..TaskStatus::default()
        },
        Some(TaskState::TaskFinished.into()),
    );
    let events = world.take_events(scheduler.connection);
    assert_eq!(kinds(&events), [event::Type::Update, event::Type::Offers]);
    assert_eq!(
        events[0].update.as_ref().unwrap().status.state(),
        TaskState::TaskRunning
    );
    // Reconciliation reports the last forwarded state.
    world.call(&scheduler, reconcile(&[("t", None)]));
    assert_eq!(states(&world.updates(&scheduler)), [TaskState::TaskRunning]);
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 3);
    let task = world.core.snapshot().agents[0]
        .tasks
        .values()
        .next()
        .unwrap()
        .clone();
    assert_eq!(
        task.state,
        TaskState::TaskFinished,
        "an end is never undone"
    );
}

/// Each task used to get the full reason: with ten thousand tasks and an offer id of 16 MB this took 160 GB.
#[test]
fn long_rejection_reason_is_truncated() {
    let (mut world, node, scheduler, mut offer) = begin();
    let tasks: Vec<_> = (0..50)
        .map(|number| task(&node, &format!("t{number}"), "cpus:0.01;mem:1"))
        .collect();
    world.take_events(scheduler.connection);
    offer.id.value = "é".repeat(1 << 20);
    world.call(&scheduler, accept(&[&offer], tasks));
    let told = world.updates(&scheduler);
    assert_eq!(told.len(), 50);
    for status in told {
        assert_says(
            status.message(),
            "Task launched with invalid offers: Offer é",
        );
        assert!(status.message().len() < 1_100);
        assert!(status.message().ends_with('…'));
    }
}

#[test]
fn available_resources_in_reason_are_truncated() {
    let names: Vec<String> = (0..500).map(|number| format!("r{number}:1")).collect();
    let resources = format!("cpus:4;mem:1024;{}", names.join(";"));
    let (mut world, node, scheduler, offer) = World::with_offer(plain(), &resources);
    let tasks: Vec<_> = (0..1_000)
        .map(|number| task(&node, &format!("t{number}"), "r0:2"))
        .collect();
    let before = entries_counted();
    world.call(&scheduler, accept(&[&offer], tasks));
    let looked_at = entries_counted() - before;
    assert!(looked_at < 300_000, "{looked_at}, of 500 for each of 1,000");
    let told = world.updates(&scheduler);
    assert_eq!(told.len(), 1_000);
    assert!(told.iter().all(|status| status.message().len() < 1_100));
}

#[test]
fn executor_comparison_skips_different_lengths() {
    let (mut world, node, scheduler, offer) = begin();
    let with = |id: &str, executor: &v1::ExecutorInfo| v1::TaskInfo {
        command: None,
        executor: Some(Box::new(executor.clone())),
        ..task(&node, id, "cpus:0.001;mem:1")
    };
    let custom = v1::ExecutorInfo {
        r#type: Some(v1::executor_info::Type::Custom.into()),
        command: Some(v1::CommandInfo {
            value: Some("true".to_owned()),
            ..v1::CommandInfo::default()
        }),
        resources: wire("cpus:0.1;mem:32"),
        ..executor(&scheduler, "e")
    };
    let long = v1::ExecutorInfo {
        data: Some(vec![7; 1 << 20]),
        ..custom.clone()
    };
    let mut tasks = vec![with("first", &long), with("again", &long)];
    tasks.extend((0..300).map(|number| with(&format!("t{number}"), &custom)));
    let before = entries_counted();
    world.call(&scheduler, accept(&[&offer], tasks));
    let looked_at = entries_counted() - before;
    assert!(looked_at < 100_000, "{looked_at}");
    let told = world.updates(&scheduler);
    assert_eq!(told.len(), 300, "{:?}", told.first());
    for status in told {
        assert_says(
            status.message(),
            "not compatible with existing ExecutorInfo",
        );
    }
}

#[test]
fn offer_is_used_once_by_owner() {
    let (mut world, node, scheduler, offer) = begin();
    let other = world.subscribe(framework("g", &["dev"]));
    let stolen = accept(&[&offer], vec![task(&node, "stolen", "cpus:1;mem:64")]);
    world.call(&other, stolen);
    let status = world.updates(&other).pop().unwrap();
    assert_eq!(status.state(), TaskState::TaskLost);
    assert_eq!(status.reason(), v1::task_status::Reason::InvalidOffers);
    assert_says(status.message(), "has invalid framework");
    assert_eq!(world.core.offers.len(), 1, "the owner keeps it");

    world.launch(&scheduler, &offer, "a", "cpus:1;mem:64");
    world.take_events(scheduler.connection);
    world.launch(&scheduler, &offer, "b", "cpus:1;mem:64");
    let status = world.updates(&scheduler).pop().unwrap();
    let text = format!(
        "Task launched with invalid offers: Offer {} is no longer valid",
        offer.id.value
    );
    assert_eq!(status.message.as_deref(), Some(text.as_str()));

    world.call(
        &scheduler,
        accept::<v1::Offer>(&[], vec![task(&node, "c", "cpus:1;mem:64")]),
    );
    let status = world.updates(&scheduler).pop().unwrap();
    assert_eq!(
        status.message(),
        "Task launched with invalid offers: No offers specified"
    );
    let doubled = world.core.offers.len();
    world.call(&scheduler, accept(&[&offer, &offer], vec![]));
    assert_eq!(world.core.offers.len(), doubled);
}

#[test]
fn invalid_offer_voids_the_accept() {
    let (mut world, one) = World::with_agent("cpus:1;mem:64");
    world.agent(2, "cpus:1;mem:64");
    let scheduler = world.subscribe(aware(plain()));
    let offers = world.offers(&scheduler);
    assert_eq!(offers.len(), 2);
    let call = accept(
        &[&offers[0], &offers[1]],
        vec![task(&one, "t", "cpus:1;mem:64")],
    );
    world.call(&scheduler, call);
    let events = world.take_events(scheduler.connection);
    let status = &events[0].update.as_ref().unwrap().status;
    assert_eq!(
        status.state(),
        TaskState::TaskDropped,
        "it knows of partitions"
    );
    assert_says(status.message(), "must belong to one single agent");
    world.advance(2 * SECOND);
    let offered: Vec<_> = events
        .into_iter()
        .filter_map(|event| event.offers)
        .collect();
    let again = offered.len() + world.offers(&scheduler).len();
    assert!(again > 0, "both agents are offered again");
    assert_eq!(world.core.offers.len(), 2);
}

#[test]
fn tasks_in_accept_fail_individually() {
    let (mut world, node, scheduler, offer) = begin();
    let call = accept(
        &[&offer],
        vec![
            task(&node, "a", "cpus:3;mem:64"),
            task(&node, "b", "cpus:3;mem:64"),
            task(&node, "a", "cpus:0.5;mem:64"),
            task(&node, "c", "cpus:1;mem:64"),
        ],
    );
    world.call(&scheduler, call);
    let launched: Vec<String> = taken!(world, node.connection, RunTask)
        .into_iter()
        .map(|run| run.task.task_id.value)
        .collect();
    assert_eq!(launched, ["a", "c"]);
    let updates = world.updates(&scheduler);
    let messages: Vec<_> = updates.iter().map(|status| status.message()).collect();
    assert!(messages[0].starts_with("Total resources"), "{messages:?}");
    assert_eq!(messages[1], "Task has duplicate ID: a");
}

#[test]
fn executor_is_charged_once_until_exit() {
    let (mut world, node, scheduler, offer) = begin();
    let executor = v1::ExecutorInfo {
        executor_id: executor_id("e"),
        command: Some(v1::CommandInfo::default()),
        resources: wire("cpus:0.5;mem:32"),
        ..v1::ExecutorInfo::default()
    };
    let with_executor = |id: &str| {
        let mut task = task(&node, id, "cpus:1;mem:64");
        task.command = None;
        task.executor = Some(Box::new(executor.clone()));
        task
    };
    world.take_frames(node.connection);
    world.call(
        &scheduler,
        accept(&[&offer], vec![with_executor("a"), with_executor("b")]),
    );
    let runs = taken!(world, node.connection, RunTask);
    let new: Vec<bool> = runs.iter().map(|run| run.launch_executor).collect();
    assert_eq!(new, [true, false]);
    let used = world.core.snapshot().agents[0].used_total().unallocate();
    assert_eq!(used, parse("cpus:2.5;mem:160"));
    world.live(7 * SECOND, &[&node]);
    let offers = world.offers(&scheduler);
    assert_eq!(offers[0].executor_ids[0].value, "e");
    world.call(&scheduler, decline(&offers, 600.0));
    let other = world.subscribe(framework("g", &["dev"]));
    assert!(world.offers(&other)[0].executor_ids.is_empty(), "another's");

    world.update(&node, &scheduler, "a", TaskState::TaskFailed, 1);
    world.update(&node, &scheduler, "b", TaskState::TaskFailed, 2);
    world.take_events(scheduler.connection);
    world.executor_exits(&node, &scheduler, 256);
    let events = world.take_events(scheduler.connection);
    let failure = first(&events, |event| event.failure.as_ref());
    assert_eq!(failure.executor_id.as_ref().unwrap().value, "e");
    assert_eq!(failure.status, Some(256));
    assert!(world.core.snapshot().agents[0].used.is_empty());
}

#[test]
fn messages_pass_both_ways() {
    let (mut world, node, scheduler, offer) = begin();
    let executor_id = executor_id("e");
    let executor = v1::ExecutorInfo {
        executor_id: executor_id.clone(),
        command: Some(v1::CommandInfo::default()),
        ..v1::ExecutorInfo::default()
    };
    let mut with_executor = task(&node, "t", "cpus:1;mem:64");
    with_executor.command = None;
    with_executor.executor = Some(Box::new(executor));
    world.call(&scheduler, accept(&[&offer], vec![with_executor]));
    world.take_frames(node.connection);
    world.take_events(scheduler.connection);
    world.call(
        &scheduler,
        Action::Message(call::Message {
            agent_id: agent_id(&node.id),
            executor_id: executor_id.clone(),
            data: vec![1, 2],
        }),
    );
    let frames = world.take_frames(node.connection);
    assert!(matches!(&frames[0], MasterMessage::ExecutorMessage(m) if m.data == [1, 2]));
    world.say(
        &node,
        AgentMessage::ExecutorMessage(meseta::ExecutorMessage {
            framework_id: framework_id(&scheduler.id),
            executor_id,
            data: vec![3],
        }),
    );
    let events = world.take_events(scheduler.connection);
    assert_eq!(events[0].message.as_ref().unwrap().data, [3]);
}

#[test]
fn lost_kill_is_resent_after_reregistration() {
    let (mut world, node, scheduler, offer) = begin();
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    world.acknowledge(&node, &scheduler, "t", 1);
    let kill_policy = Some(v1::KillPolicy {
        grace_period: Some(v1::DurationInfo {
            nanoseconds: 7_000_000_000,
        }),
    });
    let kill = Action::Kill(call::Kill {
        task_id: task_id("t"),
        agent_id: None,
        kill_policy,
    });
    world.call(&scheduler, kill);
    // The kill sent on this connection has not arrived.
    let report = |node: &Node| vec![running(node, &scheduler, "t", "cpus:1;mem:64", "dev")];
    for _ in 0..2 {
        let back = world.reregister(&node, report(&node), Vec::new());
        let kills = taken!(world, back.connection, KillTask);
        let policies: Vec<_> = kills.iter().map(|kill| kill.kill_policy).collect();
        assert_eq!(policies, [kill_policy]);
    }
    let back = world.reregister(&node, report(&node), Vec::new());
    world.update(&back, &scheduler, "t", TaskState::TaskKilled, 2);
    let back = world.reregister(&back, Vec::new(), Vec::new());
    assert!(taken!(world, back.connection, KillTask).is_empty());
}

#[test]
fn every_kill_request_reaches_agent() {
    let (mut world, node, scheduler, offer) = begin();
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    let kill = |task: &str, agent: Option<&str>| {
        Action::Kill(call::Kill {
            task_id: task_id(task),
            agent_id: agent.map(agent_id),
            kill_policy: None,
        })
    };
    let kills = |world: &mut World, node: &Node| {
        let frames = world.take_frames(node.connection);
        frames
            .iter()
            .filter(|frame| matches!(frame, MasterMessage::KillTask(_)))
            .count()
    };
    world.call(&scheduler, kill("t", None));
    world.call(&scheduler, kill("t", Some(&node.id)));
    assert_eq!(kills(&mut world, &node), 2);
    world.call(&scheduler, kill("t", Some("elsewhere")));
    assert_eq!(kills(&mut world, &node), 0);
    // A disconnected agent gets the kill when it is back.
    world.lose_agent(&node);
    world.call(&scheduler, kill("t", None));
    let node = world.return_running(&node, &scheduler, Vec::new());
    assert_eq!(kills(&mut world, &node), 1);
}

#[test]
fn unsupported_operations_are_answered() {
    let (mut world, node, scheduler, offer) = begin();
    let reserve = v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::Reserve.into()),
        id: Some(v1::OperationId {
            value: "op".to_owned(),
        }),
        ..v1::offer::Operation::default()
    };
    let group = v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::LaunchGroup.into()),
        launch_group: Some(v1::offer::operation::LaunchGroup {
            task_group: v1::TaskGroupInfo {
                tasks: vec![task(&node, "pod", "cpus:1;mem:64")],
            },
            ..v1::offer::operation::LaunchGroup::default()
        }),
        ..v1::offer::Operation::default()
    };
    world.call(
        &scheduler,
        Action::Accept(call::Accept {
            offer_ids: vec![offer.id.clone()],
            operations: vec![
                reserve,
                group,
                launch(vec![task(&node, "t", "cpus:1;mem:64")]),
            ],
            filters: None,
        }),
    );
    let events = world.take_events(scheduler.connection);
    let answer = &events[0].update_operation_status.as_ref().unwrap().status;
    assert_eq!(answer.state(), v1::OperationState::OperationError);
    assert_says(answer.message(), "Expecting 'reserve' to be present");
    let status = &events[1].update.as_ref().unwrap().status;
    assert_eq!(status.reason(), v1::task_status::Reason::TaskGroupInvalid);
    assert_eq!(
        taken!(world, node.connection, RunTask).len(),
        1,
        "the launch went on"
    );
}

#[test]
fn completed_tasks_are_limited() {
    let mut world = World::with_config(|config| config.max_completed_tasks_per_framework = 3);
    let node = world.agent(5051, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    for number in 0..6_u8 {
        let offers = world.offers(&scheduler);
        let id = format!("t{number}");
        world.launch(&scheduler, &offers[0], &id, "cpus:4;mem:1024");
        world.take_events(scheduler.connection);
        world.update(&node, &scheduler, &id, TaskState::TaskFinished, number);
        world.acknowledge(&node, &scheduler, &id, number);
    }
    let snapshot = world.core.snapshot();
    let kept: Vec<_> = snapshot.frameworks[0]
        .completed
        .iter()
        .map(|task| task.task_id.as_str())
        .collect();
    assert_eq!(kept, ["t3", "t4", "t5"]);
}

#[test]
fn snapshot_is_immutable_after_later_steps() {
    let (mut world, node, scheduler, offer) = begin();
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    let before = world.core.snapshot();
    assert!(
        Arc::ptr_eq(&before, &world.core.snapshot()),
        "shared until the next step"
    );
    world.input(Input::Tick);
    let after = world.core.snapshot();
    assert!(!Arc::ptr_eq(&before, &after));
    let tasks = |snapshot: &Snapshot| std::ptr::from_ref(snapshot.by_framework());
    assert_eq!(tasks(&before), tasks(&after), "found once");
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    assert_ne!(tasks(&before), tasks(&world.core.snapshot()));
    let state = |snapshot: &Snapshot| snapshot.agents[0].tasks.values().next().unwrap().state;
    assert_eq!(state(&before), TaskState::TaskStaging);
    assert_eq!(state(&world.core.snapshot()), TaskState::TaskRunning);
}

#[test]
fn completed_tasks_are_limited_in_bytes() {
    let mut world = World::with_config(|config| {
        config.memory.history_per_framework = 40_000;
        config.memory.history = 60_000;
    });
    let node = world.agent(5051, "cpus:4;mem:1024");
    let end = |world: &mut World, scheduler: &Scheduler, number: u8, bytes: usize| {
        let offer = world.offers(scheduler).pop().unwrap();
        let id = format!("t{number}");
        let mut large = task(&node, &id, "cpus:4;mem:1024");
        large.name = "x".repeat(bytes);
        world.call(scheduler, accept(&[&offer], vec![large]));
        world.take_events(scheduler.connection);
        world.update(&node, scheduler, &id, TaskState::TaskFinished, number);
        world.acknowledge(&node, scheduler, &id, number);
        world.check();
    };
    let modest = world.subscribe(framework("modest", &["dev"]));
    end(&mut world, &modest, 0, 100);
    world.call(&modest, Action::Suppress { roles: Vec::new() });
    for offer in world.offers(&modest) {
        world.call(&modest, decline(&[&offer], 600.0));
    }
    let greedy = world.subscribe(framework("greedy", &["dev"]));
    for number in 0..20 {
        end(&mut world, &greedy, number, 5_000);
    }
    let snapshot = world.core.snapshot();
    let kept = |id: &str| {
        let framework = snapshot.frameworks.iter().find(|one| one.id.as_str() == id);
        framework.unwrap().completed.len()
    };
    assert_eq!(kept(&modest.id), 1);
    let greedy_kept = kept(&greedy.id);
    assert!((5..8).contains(&greedy_kept), "{greedy_kept}");
}
