//! Events for operators that watch.

use super::*;

fn kinds_of(world: &mut World) -> Vec<String> {
    let notes = std::mem::take(&mut world.notes);
    let kind = |note: &OperatorEvent| match note {
        OperatorEvent::TaskAdded(record) => format!("task {} added", record.task_id),
        OperatorEvent::TaskUpdated { status, state, .. } => format!(
            "task {} {}{}",
            status.task_id.value,
            state.as_str_name(),
            match status.healthy {
                Some(true) => " healthy",
                Some(false) => " unhealthy",
                None => "",
            }
        ),
        OperatorEvent::AgentAdded(_) => "agent added".to_owned(),
        OperatorEvent::AgentRemoved(_) => "agent removed".to_owned(),
        OperatorEvent::FrameworkAdded(view) => format!("framework added active={}", view.active),
        OperatorEvent::FrameworkUpdated(view) => format!("framework connected={}", view.connected),
        OperatorEvent::FrameworkRemoved(_) => "framework removed".to_owned(),
    };
    notes.iter().map(kind).collect()
}

#[test]
fn nothing_is_noted_before_somebody_watches() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    world.subscribe(plain());
    assert!(world.notes.is_empty());
}

#[test]
fn operators_see_agents_added_and_removed() {
    let mut world = World::new();
    world.core.watch();
    let node = world.agent(1, "cpus:4;mem:1024");
    assert_eq!(kinds_of(&mut world), ["agent added"]);
    world.advance(120 * SECOND);
    assert_eq!(kinds_of(&mut world), ["agent removed"]);
    let node = world.return_empty(&node);
    assert_eq!(kinds_of(&mut world), ["agent added"]);
    let gone = Administration::MarkAgentGone { agent_id: node.id };
    world.administer_done(gone);
    assert_eq!(kinds_of(&mut world), ["agent removed"]);
}

#[test]
fn operators_see_every_task_status() {
    let mut world = World::new();
    world.core.watch();
    let node = world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    kinds_of(&mut world);
    let status = |state: TaskState, healthy: Option<bool>, uuid: u8| meseta::StatusUpdate {
        framework_id: framework_id(&scheduler.id),
        status: TaskStatus {
            task_id: task_id("t"),
            state: state.into(),
            healthy,
            uuid: Some(vec![uuid; 16]),
            ..TaskStatus::default()
        },
        latest_state: Some(state.into()),
    };
    for update in [
        status(TaskState::TaskRunning, None, 1),
        status(TaskState::TaskRunning, Some(true), 2),
        status(TaskState::TaskRunning, Some(false), 3),
        status(TaskState::TaskRunning, Some(false), 3),
        status(TaskState::TaskFinished, None, 4),
    ] {
        world.say(&node, AgentMessage::StatusUpdate(update));
    }
    assert_eq!(
        kinds_of(&mut world),
        [
            "task t TASK_RUNNING",
            "task t TASK_RUNNING healthy",
            "task t TASK_RUNNING unhealthy",
            "task t TASK_FINISHED"
        ]
    );
}

#[test]
fn lost_tasks_are_told_of() {
    let (mut world, node, scheduler) = World::with_framework(aware(plain()), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.core.watch();
    world.advance(120 * SECOND);
    let told = kinds_of(&mut world);
    assert!(
        told.contains(&"task t TASK_UNREACHABLE".to_owned()),
        "{told:?}"
    );
    let gone = Administration::MarkAgentGone { agent_id: node.id };
    world.administer_done(gone);
    assert_eq!(kinds_of(&mut world), ["task t TASK_GONE_BY_OPERATOR"]);
}

#[test]
fn operators_see_frameworks_added_and_removed() {
    let mut world = World::new();
    world.core.watch();
    let scheduler = world.subscribe(plain());
    assert_eq!(kinds_of(&mut world), ["framework added active=true"]);
    let update = Action::UpdateFramework(Box::new(Subscribe {
        info: World::with_id(framework("f", &["dev", "ops"]), &scheduler.id),
        suppressed_roles: Vec::new(),
        offer_constraints: None,
    }));
    world.call_done(&scheduler, update);
    assert_eq!(kinds_of(&mut world), ["framework connected=true"]);
    world.lose_stream(&scheduler);
    assert_eq!(kinds_of(&mut world), ["framework connected=false"]);
    world.advance(61 * SECOND);
    assert_eq!(kinds_of(&mut world), ["framework removed"]);
}

#[test]
fn explanation_names_the_blocker() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    let offers = world.offers(&scheduler);
    world.call(&scheduler, decline(&offers, 60.0));
    let ask = |world: &World, question: ExplainQuery| world.core.explain(world.now, &question);
    let of_framework = ExplainQuery {
        framework_id: Some(scheduler.id.clone()),
        agent_id: Some(node.id),
        ..ExplainQuery::default()
    };
    let answers = ask(&world, of_framework.clone()).unwrap();
    let reason = answers[0].blocker.as_ref().unwrap().to_string();
    assert_says(&reason, "the framework declined");
    let of_role = ExplainQuery {
        role: Some("dev".to_owned()),
        ..ExplainQuery::default()
    };
    assert_eq!(ask(&world, of_role.clone()).unwrap(), answers);
    // A reader with limited rights gets only the events of visible objects.
    let roles = |names: &[&str]| names.iter().map(|name| Role::new(name).unwrap()).collect();
    let (own, dev) = (
        [FrameworkId::new(&scheduler.id).unwrap()].into(),
        roles(&["dev", "x"]),
    );
    for (frameworks, roles, number) in [
        (own, dev, 1),
        (BTreeSet::new(), roles(&["dev"]), 0),
        (
            [FrameworkId::new(&scheduler.id).unwrap()].into(),
            roles(&["x"]),
            0,
        ),
    ] {
        for question in [of_framework.clone(), of_role.clone()] {
            let visible = Some(Visible {
                frameworks: frameworks.clone(),
                roles: BTreeSet::clone(&roles),
            });
            let seen = ask(
                &world,
                ExplainQuery {
                    visible,
                    ..question
                },
            );
            assert_eq!(seen.unwrap(), answers[..number]);
        }
    }
    assert!(ask(&world, ExplainQuery::default()).is_err());
}
