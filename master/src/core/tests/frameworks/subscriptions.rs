//! Frameworks: streams, failover, roles, offers.

use super::*;

#[test]
fn subscription_sends_subscribed_heartbeat_offers() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    let connection = world.try_subscribe(plain());
    let events = world.take_events(connection);
    assert_eq!(
        kinds(&events),
        [
            event::Type::Subscribed,
            event::Type::Heartbeat,
            event::Type::Offers
        ]
    );
    let subscribed = events[0].subscribed.as_ref().unwrap();
    assert_eq!(subscribed.framework_id.value, "m-0000");
    assert_eq!(subscribed.heartbeat_interval_seconds, Some(15.0));
    let master = subscribed.master_info.as_ref().unwrap();
    assert_eq!((master.ip, master.port), (16_777_343, 5050));
    world.advance(Duration::from_secs(46));
    let beats = world.take_events(connection);
    assert_eq!(kinds(&beats), [event::Type::Heartbeat; 3]);
}

#[test]
fn offer_matches_mesos_format() {
    let (mut world, node, scheduler) =
        World::with_framework(plain(), "cpus:4;mem:1024;ports:[31000-32000]");
    let offers = world.offers(&scheduler);
    let offer = &offers[0];
    assert_eq!(offer.id.value, "m-O0");
    assert_eq!(offer.agent_id.value, node.id);
    assert_eq!(offer.hostname, "node.example");
    let url = offer.url.as_ref().unwrap();
    assert_eq!(url.address.ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(url.path.as_deref(), Some("/slave(1)"));
    assert_eq!(
        offer.allocation_info.as_ref().unwrap().role.as_deref(),
        Some("dev")
    );
    assert!(offer.resources.iter().all(|resource| {
        resource.allocation_info.as_ref().unwrap().role.as_deref() == Some("dev")
            && resource.role.is_none()
    }));
    assert_eq!(total(&offers), parse("cpus:4;mem:1024;ports:[31000-32000]"));
}

#[test]
fn single_role_framework_sees_no_allocation() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    let mut info = framework("old", &[]);
    info.capabilities.clear();
    let scheduler = world.subscribe(info);
    let offers = world.offers(&scheduler);
    assert!(offers[0].allocation_info.is_none());
    for resource in &offers[0].resources {
        assert!(resource.allocation_info.is_none());
        assert_eq!(resource.role.as_deref(), Some("*"));
    }
}

#[test]
fn incomplete_agent_gets_no_offers() {
    let mut world = World::new();
    for (port, resources) in [
        (1, "cpus:4"),
        (2, "mem:1024"),
        (3, "disk:1024"),
        (4, "ports:[1-9]"),
    ] {
        world.agent(port, resources);
    }
    let scheduler = world.subscribe(plain());
    world.advance(5 * SECOND);
    assert!(world.offers(&scheduler).is_empty());
}

#[test]
fn declined_resources_return_after_filter() {
    let (mut world, _, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    let offers = world.offers(&scheduler);
    world.call_accepted(&scheduler, decline(&[&offers[0]], 10.0));
    assert!(
        world.offers(&scheduler).is_empty(),
        "a decline makes no offer"
    );
    world.advance(9 * SECOND);
    assert!(world.offers(&scheduler).is_empty());
    world.advance(4 * SECOND);
    assert_eq!(world.offers(&scheduler).len(), 1);
}

#[test]
fn revive_clears_filters_and_suppression() {
    let (mut world, _, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    let offers = world.offers(&scheduler);
    world.call(&scheduler, decline(&[&offers[0]], 1e6));
    world.call(&scheduler, Action::Suppress { roles: Vec::new() });
    world.advance(10 * SECOND);
    assert!(world.offers(&scheduler).is_empty());
    world.call(
        &scheduler,
        Action::Revive {
            roles: vec!["other".to_owned()],
        },
    );
    assert!(
        world.offers(&scheduler).is_empty(),
        "a foreign role drops the whole call"
    );
    world.call(&scheduler, Action::Revive { roles: Vec::new() });
    assert_eq!(world.offers(&scheduler).len(), 1);
}

#[test]
fn unused_offer_is_rescinded_after_timeout() {
    let mut world = World::with_config(|config| config.offer_timeout = Some(30 * SECOND));
    let node = world.agent(5051, "cpus:4;mem:1024");
    let scheduler = world.subscribe(plain());
    let offers = world.offers(&scheduler);
    world.live(29 * SECOND, &[&node]);
    assert!(
        world
            .take_events(scheduler.connection)
            .iter()
            .all(|event| event.rescind.is_none())
    );
    world.live(2 * SECOND, &[&node]);
    let events = world.take_events(scheduler.connection);
    let rescinded = first(&events, |event| event.rescind.as_ref());
    assert_eq!(rescinded.offer_id, offers[0].id);
    assert!(
        events.iter().any(|event| event.offers.is_some()),
        "and made anew"
    );
}

#[test]
fn second_subscription_replaces_first() {
    let (mut world, _, first) = World::with_framework(plain(), "cpus:4;mem:1024");
    let old = world.offers(&first);
    let second = world.subscribe(info_of(&first));
    assert_eq!(second.id, first.id);
    let last = world.take_events(first.connection).pop().unwrap();
    assert_eq!(last.error.unwrap().message, "Framework failed over");
    assert!(world.closed.contains(&first.connection));
    let new = world.offers(&second);
    assert_ne!(old[0].id, new[0].id, "offers are made anew");
    assert!(matches!(
        world.call(&first, Action::Revive { roles: Vec::new() }),
        Answer::BadRequest(_)
    ));
    // The end of the old stream does not affect the new one.
    world.lose_stream(&first);
    world.call_accepted(&second, Action::Revive { roles: Vec::new() });
}

#[test]
fn framework_may_return_within_failover_timeout() {
    let (mut world, node, first) = World::with_framework(plain(), "cpus:4;mem:1024");
    assert_eq!(world.core.offers.len(), 1);
    world.lose_stream(&first);
    assert!(
        world.core.offers.is_empty(),
        "offers are void on disconnection"
    );
    let answer = world.call(&first, Action::Revive { roles: Vec::new() });
    assert_eq!(
        answer,
        Answer::Forbidden("Framework is not subscribed".to_owned())
    );
    world.live(59 * SECOND, &[&node]);
    let second = world.subscribe(info_of(&first));
    world.lose_stream(&second);
    world.live(61 * SECOND, &[&node]);
    let third = world.try_subscribe(info_of(&first));
    let events = world.take_events(third);
    assert_eq!(kinds(&events), [event::Type::Error]);
    assert_eq!(
        events[0].error.as_ref().unwrap().message,
        "Framework has been removed"
    );
    assert!(world.closed.contains(&third));
}

/// An unacknowledged update waits up to ten minutes between two repetitions; an agent that learns of the framework
/// repeats it at once.
#[test]
fn resubscription_informs_agents_with_tasks() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    let idle = world.agent(5052, "cpus:1;mem:1024");
    let info = plain();
    let first = world.subscribe(info.clone());
    let offers = world.offers(&first);
    let offer = offers.iter().find(|o| o.agent_id.value == node.id).unwrap();
    world.launch(&first, offer, "t", "cpus:1;mem:64");
    world.take_frames(node.connection);
    world.take_frames(idle.connection);
    world.lose_stream(&first);
    world.subscribe(World::with_id(info, &first.id));
    let told = |frames: &[MasterMessage]| {
        let updates = frames.iter().filter(|frame| {
            matches!(frame, MasterMessage::UpdateFramework(update)
                if update.framework.id.as_ref().is_some_and(|id| id.value == first.id))
        });
        updates.count()
    };
    assert_eq!(told(&world.take_frames(node.connection)), 1);
    assert_eq!(told(&world.take_frames(idle.connection)), 0);
}

#[test]
fn zero_failover_timeout_removes_framework() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    let mut info = plain();
    info.failover_timeout = None;
    let scheduler = world.subscribe(info);
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.take_frames(node.connection);
    world.lose_stream(&scheduler);
    let frames = world.take_frames(node.connection);
    assert!(
        matches!(&frames[0], MasterMessage::ShutdownFramework(message)
        if message.framework_id.value == scheduler.id)
    );
    let snapshot = world.core.snapshot();
    assert!(snapshot.frameworks.is_empty());
    let completed = &snapshot.completed_frameworks[0];
    assert_eq!(completed.completed[0].state, TaskState::TaskKilled);
    assert!(completed.unregistered.is_some());
}

#[test]
fn invalid_subscription_gets_one_error_event() {
    let mut world = World::with_config(|config| {
        config.root_submissions = false;
        config.roles = Some(BTreeSet::from([Role::star(), Role::new("dev").unwrap()]));
    });
    let mut both = plain();
    both.role = Some("dev".to_owned());
    let mut one_role = plain();
    one_role.capabilities.clear();
    let mut timeout = plain();
    timeout.failover_timeout = Some(f64::NAN);
    let mut root = plain();
    root.user = "root".to_owned();
    for (info, text) in [
        (
            both,
            "'FrameworkInfo.role' must not be set when the framework is MULTI_ROLE capable",
        ),
        (
            one_role,
            "'FrameworkInfo.roles' must not be set when the framework is not MULTI_ROLE capable",
        ),
        (
            framework("f", &["dev", "dev"]),
            "'FrameworkInfo.roles' contains duplicate items: { dev }",
        ),
        (
            framework("f", &["/dev"]),
            "'FrameworkInfo.roles' contains invalid role: Role '/dev' cannot start with a slash",
        ),
        (
            framework("f", &["ops"]),
            "Roles { ops } are not present in the master's --roles",
        ),
        (timeout, "The framework failover_timeout (NaN) is invalid"),
        (
            root,
            "User 'root' is not allowed to run frameworks without --root_submissions set",
        ),
        (
            World::with_id(plain(), "a/b"),
            "FrameworkID \"a/b\" contains invalid characters",
        ),
    ] {
        let connection = world.try_subscribe(info);
        let events = world.take_events(connection);
        assert_eq!(kinds(&events), [event::Type::Error], "{text}");
        let message = &events[0].error.as_ref().unwrap().message;
        let same = message == text
            || text.split('"').next().is_some_and(|start| {
                message.contains("contains invalid characters") && text.contains(start)
            });
        assert!(same, "{message:?} is not {text:?}");
        assert!(world.closed.contains(&connection));
    }
    assert!(world.core.frameworks.is_empty());
}

/// Every offer is compared with all named resources.
#[test]
fn refuses_excess_minimum_resources() {
    use v1::offer_filters::{MinAllocatableResources, ResourceQuantities};
    let requiring = |alternatives: usize, names: usize| {
        let least = (0..names).map(|name| (format!("x{name}"), v1::value::Scalar { value: 1.0 }));
        let least = ResourceQuantities {
            quantities: least.collect(),
        };
        let filters = v1::OfferFilters {
            min_allocatable_resources: Some(MinAllocatableResources {
                quantities: vec![least; alternatives],
            }),
        };
        let mut info = plain();
        info.offer_filters = BTreeMap::from([("dev".to_owned(), filters)]);
        info
    };
    for (alternatives, names, number) in [(1, 65, 65), (13, 5, 65), (20_000, 1, 20_000)] {
        let mut world = World::new();
        let connection = world.try_subscribe(requiring(alternatives, names));
        let events = world.take_events(connection);
        let message = &events[0].error.as_ref().unwrap().message;
        assert_says(message, &format!("has {number} quantities"));
        let scheduler = world.subscribe(requiring(32, 2));
        let update = Action::UpdateFramework(Box::new(Subscribe {
            info: World::with_id(requiring(alternatives, names), &scheduler.id),
            suppressed_roles: Vec::new(),
            offer_constraints: None,
        }));
        let answer = world.call(&scheduler, update);
        assert!(matches!(answer, Answer::BadRequest(_)), "{answer:?}");
    }
}

#[test]
fn user_checkpoint_and_principal_are_immutable() {
    let mut world = World::new();
    let first = world.subscribe(plain());
    let mut changed = World::with_id(framework("renamed", &["dev", "ops"]), &first.id);
    changed.user = "bob".to_owned();
    changed.checkpoint = Some(true);
    let second = world.subscribe(changed);
    let info = &world.core.snapshot().frameworks[0].info.clone();
    assert_eq!(
        (info.user.as_str(), info.name.as_str()),
        ("alice", "renamed")
    );
    assert!(!info.checkpoint.unwrap_or_default());
    assert_eq!(info.roles, ["dev", "ops"]);
    let mut other = info_of(&second);
    other.principal = Some("mallory".to_owned());
    let connection = world.try_subscribe(other);
    let events = world.take_events(connection);
    assert_eq!(
        events[0].error.as_ref().unwrap().message,
        "Changing framework's principal is not allowed."
    );
    world.call_accepted(&second, Action::Revive { roles: Vec::new() });
}

#[test]
fn calls_require_matching_framework_and_stream() {
    let mut world = World::new();
    let scheduler = world.subscribe(plain());
    let revive = || Action::Revive { roles: Vec::new() };
    for (id, stream, text) in [
        ("nosuch", Some("x"), "Framework cannot be found"),
        ("a/b", Some("x"), "Framework cannot be found"),
        (
            "m-0000",
            None,
            "All non-subscribe calls should include the 'Mesos-Stream-Id' header",
        ),
        (
            "m-0000",
            Some("x"),
            "The stream ID 'x' included in this request didn't match the stream ID currently \
             associated with framework ID m-0000",
        ),
    ] {
        assert_eq!(
            world.call_as(id, stream, revive()),
            Answer::BadRequest(text.to_owned())
        );
    }
    world.call_accepted(&scheduler, revive());
}

#[test]
fn teardown_ends_tasks_and_closes_stream() {
    let (mut world, _, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    let other = world.subscribe(framework("g", &["dev"]));
    world.launch_next(&scheduler, "t", "cpus:4;mem:1024");
    world.call_accepted(&scheduler, Action::Teardown);
    assert!(world.closed.contains(&scheduler.connection));
    assert_eq!(
        total(&world.offers(&other)),
        parse("cpus:4;mem:1024"),
        "offered on at once"
    );
    assert_eq!(
        world.ask(Request::Teardown {
            framework_id: "nosuch".to_owned(),
            caller: Caller::default(),
        }),
        Answer::BadRequest("No framework found with specified ID".to_owned())
    );
}

#[test]
fn teardown_is_answered_once_durable() {
    let mut world = World::new();
    let all = [(); 3].map(|()| world.subscribe(plain()));
    world.writes_at_once = false;
    let replies = [ReplyId(1_000), ReplyId(1_001), ReplyId(1_002)];
    for (reply, scheduler) in replies.into_iter().zip(&all) {
        let request = if reply == replies[1] {
            Request::Call {
                framework_id: scheduler.id.clone(),
                stream_id: Some(scheduler.stream.clone()),
                action: Box::new(Action::Teardown),
                caller: Caller::default(),
            }
        } else {
            Request::Teardown {
                framework_id: scheduler.id.clone(),
                caller: Caller::default(),
            }
        };
        world.input(Input::Request { reply, request });
    }
    let answers = |world: &World| replies.map(|reply| world.answers.get(&reply).cloned());
    assert_eq!(answers(&world), [None, None, None]);
    world.write();
    assert_eq!(answers(&world), [Some(Answer::Done), None, None]);
    // The removals made meanwhile are one mutation.
    world.write();
    assert_eq!(
        answers(&world),
        [Answer::Done, Answer::Accepted, Answer::Done].map(Some)
    );
    assert_eq!(world.registry.removed_frameworks.len(), 3);
}

#[test]
fn completed_frameworks_are_limited() {
    let mut world = World::new();
    for _ in 0..60 {
        let scheduler = world.subscribe(plain());
        world.call(&scheduler, Action::Teardown);
    }
    assert_eq!(world.core.snapshot().completed_frameworks.len(), 50);
}

#[test]
fn weights_divide_contended_resources() {
    let mut world = World::with_config(|config| {
        config.weights = BTreeMap::from([(Role::new("b").unwrap(), 3.0)])
    });
    let a = world.subscribe(framework("a", &["a"]));
    let b = world.subscribe(framework("b", &["b"]));
    for port in 0..40 {
        world.agent(port, "cpus:1;mem:64");
    }
    let count = |offers: Vec<v1::Offer>| offers.len();
    assert_eq!((count(world.offers(&a)), count(world.offers(&b))), (10, 30));
}
