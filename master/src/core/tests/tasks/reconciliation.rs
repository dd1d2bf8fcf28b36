//! Reconciliation: every row of the table, for partition-aware and other frameworks.

use super::*;

fn one(
    world: &mut World,
    scheduler: &Scheduler,
    task: &str,
    agent: Option<&str>,
) -> Vec<TaskStatus> {
    world.take_events(scheduler.connection);
    world.call_accepted(scheduler, reconcile(&[(task, agent)]));
    let updates = world.updates(scheduler);
    for status in &updates {
        assert!(status.uuid.is_none(), "never acknowledged");
        assert_eq!(status.reason(), v1::task_status::Reason::Reconciliation);
        assert_eq!(status.source(), v1::task_status::Source::Master);
        assert!(
            status
                .message
                .as_ref()
                .unwrap()
                .starts_with("Reconciliation: ")
        );
    }
    updates
}

/// A restarted master with agents in every condition.
fn world() -> (World, Node, Scheduler, Scheduler) {
    let record = |id: &str| agent_record(id, 1);
    let recovered = Recovered {
        epoch: 2,
        agents: vec![record("recovered")],
        unreachable: vec![unreachable_record("unreachable", 1_799_000_000)],
        gone: vec![("gone".to_owned(), Duration::from_secs(1_799_000_000))],
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    let node = world.agent(5051, "cpus:4;mem:1024");
    let aware = world.subscribe(aware(framework("aware", &["dev"])));
    let plain = world.subscribe(framework("plain", &["dev"]));
    (world, node, aware, plain)
}

#[test]
fn every_row_of_the_table() {
    let (mut world, node, aware, plain) = world();
    let registered = node.id.clone();
    for (agent, expected) in [
        (registered.as_str(), TaskState::TaskGone),
        ("unreachable", TaskState::TaskUnreachable),
        ("gone", TaskState::TaskGoneByOperator),
        ("unknown", TaskState::TaskUnknown),
        ("../etc", TaskState::TaskUnknown),
    ] {
        let updates = one(&mut world, &aware, "t", Some(agent));
        assert_eq!(states(&updates), [expected], "{agent}");
        assert_eq!(updates[0].agent_id.as_ref().unwrap().value, agent);
        assert_eq!(
            states(&one(&mut world, &plain, "t", Some(agent))),
            [TaskState::TaskLost]
        );
        let since = updates[0].unreachable_time.map(|time| time.nanoseconds);
        let expected = (agent == "unreachable").then_some(1_799_000_000_000_000_000);
        assert_eq!(since, expected);
    }
    // Only an agent that is still expected could know.
    assert!(one(&mut world, &aware, "t", Some("recovered")).is_empty());
    assert!(one(&mut world, &aware, "t", None).is_empty());
}

#[test]
fn unknown_task_is_unknown_after_recovery() {
    let mut world = World::new();
    let aware = world.subscribe(aware(framework("aware", &["dev"])));
    let plain = world.subscribe(framework("plain", &["dev"]));
    assert_eq!(
        states(&one(&mut world, &aware, "t", None)),
        [TaskState::TaskUnknown]
    );
    assert_eq!(
        states(&one(&mut world, &plain, "t", None)),
        [TaskState::TaskLost]
    );
}

#[test]
fn implicit_reconciliation_reports_live_or_unacknowledged() {
    let (mut world, node, scheduler, offer) = World::with_offer(plain(), "cpus:4;mem:1024");
    let tasks = ["staging", "running", "failed", "done"];
    let infos = tasks
        .iter()
        .map(|id| task(&node, id, "cpus:0.5;mem:64"))
        .collect();
    world.call(&scheduler, accept(&[&offer], infos));
    world.update(&node, &scheduler, "running", TaskState::TaskRunning, 1);
    world.update(&node, &scheduler, "failed", TaskState::TaskFailed, 2);
    world.update(&node, &scheduler, "done", TaskState::TaskFinished, 3);
    world.acknowledge(&node, &scheduler, "done", 3);
    world.take_events(scheduler.connection);
    world.call(&scheduler, reconcile(&[]));
    let updates = world.updates(&scheduler);
    let told: BTreeMap<_, _> = updates
        .iter()
        .map(|status| (status.task_id.value.as_str(), status.state()))
        .collect();
    let expected = BTreeMap::from([
        ("failed", TaskState::TaskFailed),
        ("running", TaskState::TaskRunning),
        ("staging", TaskState::TaskStaging),
    ]);
    assert_eq!(told, expected);
    assert_eq!(updates.len(), 3);
    // An ended and acknowledged task no longer belongs to the agent.
    assert_eq!(
        states(&one(&mut world, &scheduler, "done", Some(&node.id))),
        [TaskState::TaskLost]
    );
}

/// Tasks launched meanwhile do not replace the answers for earlier tasks, and the answers come to an end.
#[test]
fn implicit_reconciliation_ignores_later_tasks() {
    let mut world = World::new();
    let nodes = [5051, 5052].map(|port| world.agent(port, "cpus:4;mem:1024"));
    let scheduler = world.subscribe(plain());
    let offers = world.offers(&scheduler);
    let launch_on = |world: &mut World, node: &Node, ids: &[String]| {
        let offer = offers.iter().find(|offer| offer.agent_id.value == node.id);
        let infos = ids.iter().map(|id| task(node, id, "cpus:0.01;mem:1"));
        let launched = world.call(&scheduler, accept(&[offer.unwrap()], infos.collect()));
        assert_eq!(launched, Answer::Accepted);
    };
    let there: Vec<String> = (0..300).map(|number| format!("t-{number}")).collect();
    launch_on(&mut world, &nodes[0], &there);
    world.take_events(scheduler.connection);
    world.call(&scheduler, reconcile(&[]));
    let mut told = world.updates(&scheduler);
    assert!(told.len() < there.len(), "not all in one step");
    let last = there.iter().max().unwrap();
    let mut later: Vec<String> = (0..20).map(|number| format!("t-8-{number}")).collect();
    later.extend((0..20).map(|number| format!("{last}-{number}")));
    launch_on(&mut world, &nodes[1], &later);
    while world.core.reconciliations.are_due() {
        world.advance(Duration::ZERO);
    }
    told.extend(world.updates(&scheduler));
    let told: BTreeSet<String> = told
        .into_iter()
        .map(|status| status.task_id.value)
        .collect();
    let untold: Vec<_> = there.iter().filter(|id| !told.contains(*id)).collect();
    assert!(untold.is_empty(), "{untold:?}");
    assert!(!told.iter().any(|id| id > last), "{told:?}");
}

#[test]
fn known_task_reconciles_with_its_details() {
    let (mut world, node, scheduler, offer) = World::with_offer(plain(), "cpus:4;mem:1024");
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    let container_status = Some(v1::ContainerStatus {
        container_id: Some(v1::ContainerId {
            value: "c".to_owned(),
            parent: None,
        }),
        ..v1::ContainerStatus::default()
    });
    world.tell_status(
        &node,
        &scheduler,
        TaskStatus {
            task_id: task_id("t"),
            state: TaskState::TaskRunning.into(),
            uuid: Some(vec![1; 16]),
            healthy: Some(true),
            data: Some(b"secret".to_vec()),
            container_status: container_status.clone(),
            ..TaskStatus::default()
        },
        None,
    );
    // With the right agent, another agent, or none: the task's own id finds it.
    for agent in [Some(node.id.as_str()), Some("other"), None] {
        let updates = one(&mut world, &scheduler, "t", agent);
        assert_eq!(states(&updates), [TaskState::TaskRunning]);
        assert_eq!(updates[0].healthy, Some(true));
        assert_eq!(updates[0].container_status, container_status);
        assert_eq!(updates[0].data, None);
        assert_eq!(updates[0].agent_id.as_ref().unwrap().value, node.id);
    }
}

/// A request for this many unknown tasks.
fn questions(tasks: usize) -> Action {
    let names: Vec<String> = (0..tasks).map(|number| format!("task-{number}")).collect();
    let questions: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
    reconcile(&questions)
}

/// Others wait at most for one step, in which a limited number of requests is answered.
#[test]
fn huge_reconciliation_does_not_block_others() {
    let mut world = World::new();
    let scheduler = world.subscribe(plain());
    let other = world.subscribe(framework("g", &["dev"]));
    const TASKS: usize = 500_000;
    let asked = world.call(&scheduler, questions(TASKS));
    assert_eq!(asked, Answer::Accepted);
    let unread = |world: &World| world.events.get(&scheduler.connection).map_or(0, Vec::len);
    let (mut told, mut steps) = (0, 0_usize);
    while world.core.reconciliations.are_due() {
        let before = unread(&world);
        world.carry_out(Input::Tick);
        let answers = unread(&world);
        assert!(answers - before <= 128, "{answers} in one step");
        world.events.remove(&scheduler.connection);
        told += answers;
        world.carry_out(Input::AnswersRead {
            connection: scheduler.connection,
            answers,
        });
        steps += 1;
        if steps.is_multiple_of(500) {
            let answered = one(&mut world, &other, "t", None);
            assert_eq!(states(&answered), [TaskState::TaskLost]);
        }
    }
    assert_eq!(told + unread(&world), TASKS);
}

#[test]
fn unread_reconciliation_delays_only_its_framework() {
    let mut world = World::new();
    let scheduler = world.subscribe(plain());
    const TASKS: usize = 10_000;
    world.call(&scheduler, questions(TASKS));
    world.advance(SECOND / 2);
    assert!(
        world.core.next_deadline() > world.now.moment,
        "it does not spin"
    );
    let unread = world.events[&scheduler.connection].len();
    assert!((2_048..2_100).contains(&unread), "{unread}");
    let other = world.subscribe(framework("g", &["dev"]));
    assert_eq!(one(&mut world, &other, "t", None).len(), 1);
    assert_eq!(world.core.counters.calls["reconcile"], 2);
    // Reading makes room for as many new answers.
    world.input(Input::AnswersRead {
        connection: scheduler.connection,
        answers: 512,
    });
    world.advance(SECOND / 2);
    let more = world.events[&scheduler.connection].len();
    assert!((512..520).contains(&(more - unread)), "{more}");
    // In the end each answer arrives exactly once.
    let mut told = 0;
    loop {
        let more = world.updates(&scheduler).len();
        if more == 0 {
            break;
        }
        told += more;
        world.advance(Duration::ZERO);
    }
    assert_eq!(told, TASKS);
    let id = FrameworkId::new(&scheduler.id).unwrap();
    assert!(world.core.reconciliations.forget(&id).is_empty());
}

#[test]
fn whoever_leaves_is_told_nothing_more() {
    let mut world = World::new();
    let scheduler = world.subscribe(plain());
    const TASKS: usize = 10_000;
    world.call(&scheduler, questions(TASKS));
    world.lose_stream(&scheduler);
    world.advance(Duration::ZERO);
    assert!(!world.core.reconciliations.are_due());
    assert!(world.updates(&scheduler).len() < TASKS);
}

#[test]
fn reconciliation_is_limited_in_bytes() {
    let mut world = World::with_config(|config| config.memory.questions_per_framework = 1_000_000);
    let silent = world.subscribe(plain());
    const TASKS: usize = 4_000;
    let answers: Vec<Answer> = (0..10)
        .map(|_| world.call(&silent, questions(TASKS)))
        .collect();
    assert!(matches!(answers[0], Answer::Accepted), "{answers:?}");
    let refused = answers.iter().find_map(|answer| match answer {
        Answer::BadRequest(why) => Some(why.as_str()),
        _ => None,
    });
    assert!(refused.is_some_and(|why| why.contains("read the answers")));
    // A reading framework is not delayed.
    let other = world.subscribe(framework("g", &["dev"]));
    let accepted = world.call(&other, questions(TASKS));
    assert!(matches!(accepted, Answer::Accepted), "{accepted:?}");
}
