//! The owners of framework ids, across restarts of the master.

use meseta_access::{Acls, Authorizer};
use meseta_daemon::authentication::LocalUser;

use super::authorization::subscription_error;
use super::*;
use crate::core::state::ownership::Identity;

const NOT_ITS_PRINCIPAL: &str = "Changing framework's principal is not allowed.";

fn owned(principal: &str) -> v1::FrameworkInfo {
    v1::FrameworkInfo {
        principal: Some(principal.to_owned()),
        ..plain()
    }
}

/// A framework of `ada` with the task `t` on an agent.
fn begin() -> (World, Node, Scheduler) {
    let (mut world, node, scheduler, offer) = World::with_offer(owned("ada"), "cpus:4;mem:1024");
    world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
    (world, node, scheduler)
}

fn as_agents_know_it(scheduler: &Scheduler) -> v1::FrameworkInfo {
    World::with_id(owned("ada"), &scheduler.id)
}

/// Reregisters the agent with the task, and the framework as the agent knows it.
fn return_of(world: &mut World, node: &Node, scheduler: &Scheduler) -> Node {
    let tasks = vec![running(node, scheduler, "t", "cpus:1;mem:64", "dev")];
    world.reregister(node, tasks, vec![as_agents_know_it(scheduler)])
}

fn is_registered_to_ada(world: &World) -> bool {
    world.registry.frameworks[0].principal.as_deref() == Some("ada")
}

fn is_told_to_end(world: &mut World, node: &Node) -> bool {
    let frames = world.take_frames(node.connection);
    let ends = |frame: &MasterMessage| {
        matches!(
            frame,
            MasterMessage::ShutdownFramework(_) | MasterMessage::KillTask(_)
        )
    };
    frames.iter().any(ends)
}

fn tasks_on_agents(world: &mut World) -> usize {
    let snapshot = world.core.snapshot();
    snapshot.agents.iter().map(|agent| agent.tasks.len()).sum()
}

#[test]
fn restart_keeps_framework_id_owner() {
    let (world, node, scheduler) = begin();
    let mut world = world.restart();
    // Before the agents are back, and before the owner is.
    let stolen = World::with_id(owned("mallory"), &scheduler.id);
    let thief = world.try_subscribe(stolen.clone());
    assert_eq!(subscription_error(&mut world, thief), NOT_ITS_PRINCIPAL);
    let nameless = info_of(&scheduler);
    let thief = world.try_subscribe(nameless);
    assert_eq!(subscription_error(&mut world, thief), NOT_ITS_PRINCIPAL);
    let node = return_of(&mut world, &node, &scheduler);
    assert!(!is_told_to_end(&mut world, &node));
    let owner = world.subscribe(as_agents_know_it(&scheduler));
    assert_eq!(owner.id, scheduler.id);
    let thief = world.try_subscribe(stolen);
    assert_eq!(subscription_error(&mut world, thief), NOT_ITS_PRINCIPAL);
    assert_eq!(tasks_on_agents(&mut world), 1);
}

#[test]
fn removed_framework_stays_removed_after_restart() {
    let (mut world, node, scheduler) = begin();
    world.lose_agent(&node);
    world.call_accepted(&scheduler, Action::Teardown);
    let mut world = world.restart();
    for claimed in [owned("ada"), owned("mallory")] {
        let late = world.try_subscribe(World::with_id(claimed, &scheduler.id));
        assert_eq!(
            subscription_error(&mut world, late),
            "Framework has been removed"
        );
    }
    let node = return_of(&mut world, &node, &scheduler);
    assert!(is_told_to_end(&mut world, &node), "its task is left over");
    assert!(world.core.snapshot().frameworks.is_empty());
    assert_eq!(tasks_on_agents(&mut world), 0);
}

#[test]
fn subscription_is_answered_once_durable() {
    let mut world = World::new();
    world.writes_at_once = false;
    let connection = world.try_subscribe(owned("ada"));
    assert!(world.take_events(connection).is_empty());
    world.write();
    let told = kinds(&world.take_events(connection));
    assert_eq!(told[0], event::Type::Subscribed);
    assert!(is_registered_to_ada(&world));
    // A scheduler that leaves before the write leaves no record.
    let connection = world.try_subscribe(owned("bob"));
    world.input(Input::SchedulerGone { connection });
    world.write();
    world.write();
    assert!(world.take_events(connection).is_empty());
    assert_eq!(world.core.snapshot().frameworks.len(), 1);
    assert_eq!(world.registry.frameworks.len(), 1);
}

/// Restarts the master on a registry of an older version, without framework records.
fn upgraded(mut world: World) -> World {
    world.registry.frameworks.clear();
    world.registry.removed_frameworks.clear();
    world.restart()
}

#[test]
fn registered_agents_overrule_unproven_owner() {
    let (world, node, scheduler) = begin();
    let mut world = upgraded(world);
    let other = world.agent(5052, "cpus:4;mem:1024");
    let thief = world.subscribe(World::with_id(owned("mallory"), &scheduler.id));
    assert_eq!(thief.id, scheduler.id);
    world.launch_next(&thief, "of the thief", "cpus:1;mem:64");
    assert!(world.registry.frameworks.is_empty(), "nothing is proven");
    world.take_frames(other.connection);
    let node = return_of(&mut world, &node, &scheduler);
    assert_eq!(
        subscription_error(&mut world, thief.connection),
        "The framework id is that of another principal"
    );
    assert!(is_told_to_end(&mut world, &other));
    assert!(!is_told_to_end(&mut world, &node));
    assert_eq!(tasks_on_agents(&mut world), 1, "the owner's");
    let owner = world.subscribe(as_agents_know_it(&scheduler));
    assert_eq!(owner.id, scheduler.id);
    assert!(is_registered_to_ada(&world));
    assert_eq!(world.core.snapshot().completed_frameworks.len(), 0);
}

#[test]
fn unregistered_owner_is_admitted_and_recorded() {
    let (world, node, scheduler) = begin();
    let mut world = upgraded(world);
    world.subscribe(as_agents_know_it(&scheduler));
    assert!(world.registry.frameworks.is_empty());
    return_of(&mut world, &node, &scheduler);
    assert!(is_registered_to_ada(&world));
    // The same holds when no agent is left that could object.
    let (world, _, scheduler) = begin();
    let mut world = upgraded(world);
    world.subscribe(as_agents_know_it(&scheduler));
    world.advance(700 * SECOND);
    assert!(is_registered_to_ada(&world));
}

#[test]
fn false_agent_takes_no_framework_id() {
    for is_upgraded in [false, true] {
        let (world, node, scheduler) = begin();
        let mut world = if is_upgraded {
            let mut world = upgraded(world);
            world.subscribe(as_agents_know_it(&scheduler));
            world
        } else {
            world.restart()
        };
        let mut malicious_agent = Node {
            id: "false-S7".to_owned(),
            register: register(6000, "cpus:1;mem:64"),
            ..node.clone()
        };
        let stolen = World::with_id(owned("mallory"), &scheduler.id);
        let fake = running(&malicious_agent, &scheduler, "fake", "cpus:1;mem:64", "dev");
        malicious_agent = world.reregister(&malicious_agent, vec![fake], vec![stolen]);
        assert!(is_told_to_end(&mut world, &malicious_agent));
        assert_eq!(tasks_on_agents(&mut world), 0);
        let node = return_of(&mut world, &node, &scheduler);
        assert!(!is_told_to_end(&mut world, &node));
        world.subscribe(as_agents_know_it(&scheduler));
        assert_eq!(tasks_on_agents(&mut world), 1);
        assert!(is_registered_to_ada(&world));
    }
}

fn local(user: u32) -> Caller {
    Caller {
        user: Some(LocalUser::Id(user)),
        ..Caller::default()
    }
}

#[test]
fn restart_keeps_local_user_of_framework() {
    for (principal, user) in [(None, 1_000), (Some("ada"), 1_000), (None, 65_534)] {
        let (mut world, node) = World::with_agent("cpus:4;mem:1024");
        let info = v1::FrameworkInfo {
            principal: principal.map(str::to_owned),
            ..plain()
        };
        world.caller = local(user);
        let scheduler = world.subscribe(info.clone());
        let claimed = World::with_id(info, &scheduler.id);
        let record = world.registry.frameworks[0].clone();
        assert_eq!(record.principal.as_deref(), principal);
        assert_eq!(record.user, Some(user));
        for is_told_of in [false, true] {
            world = world.restart();
            world.caller = local(1_001);
            if is_told_of {
                let tasks = vec![running(&node, &scheduler, "t", "cpus:1;mem:64", "dev")];
                let mut told = claimed.clone();
                // A false agent's report of the framework does not keep its owner out.
                if principal.is_none() {
                    told.principal = Some("mallory".to_owned());
                }
                world.reregister(&node, tasks, vec![told]);
            }
            let thief = world.try_subscribe(claimed.clone());
            assert!(subscription_error(&mut world, thief).contains("another user"));
            // Root may replace the scheduler, which gives the framework to nobody else.
            for caller in [0, user] {
                world.caller = local(caller);
                assert_eq!(world.subscribe(claimed.clone()).id, scheduler.id);
                assert_eq!(world.registry.frameworks, std::slice::from_ref(&record));
            }
        }
        world.caller = local(user);
        let again = world.subscribe(claimed.clone());
        world.call_accepted(&again, Action::Teardown);
        assert!(world.registry.frameworks.is_empty());
    }
}

#[test]
fn missing_user_in_record_is_added() {
    let recovered = Recovered {
        epoch: 1,
        frameworks: vec![record_of_ada("f")],
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    world.caller = local(1_000);
    let claimed = World::with_id(owned("ada"), "f");
    // A scheduler that leaves before the write takes nothing from the owner.
    world.writes_at_once = false;
    let connection = world.try_subscribe(claimed.clone());
    world.input(Input::SchedulerGone { connection });
    world.write();
    world.writes_at_once = true;
    assert_eq!(world.registry.frameworks[0].user, Some(1_000));
    world.subscribe(claimed.clone());
    world.caller = local(65_534);
    let thief = world.try_subscribe(claimed);
    assert!(subscription_error(&mut world, thief).contains("another user"));
}

#[test]
fn many_frameworks_keep_others_removed() {
    let mut world = World::new();
    let gone = ["ada", "mallory"].map(|owner| {
        let scheduler = world.subscribe(owned(owner));
        let framework_id = scheduler.id.clone();
        world.ask(Request::Teardown {
            framework_id,
            caller: Caller::default(),
        });
        (owner, scheduler.id)
    });
    // More removals than are stored, half of them before a restart.
    for part in 0..2 {
        for number in 0..6_000 {
            let id = FrameworkId::new(&format!("f{part}-{number}")).unwrap();
            let mallory = Identity {
                principal: Some("mallory".to_owned()),
                user: None,
            };
            world.core.note_removal(&id, mallory, false);
        }
        world.input(Input::Tick);
        assert!(world.registry.removed_frameworks.len() <= 10_000);
        world = world.restart();
        for (owner, id) in &gone {
            let back = world.try_subscribe(World::with_id(owned(owner), id));
            assert!(subscription_error(&mut world, back).contains("removed"));
        }
    }
}

/// An owner may have the right to call as an operator, and would then push other operators' teardowns of its
/// frameworks out of the list.
#[test]
fn operator_teardown_counts_as_owners_own() {
    let named = |principal: &str| Caller {
        approver: Authorizer::new(Acls::default(), true).approver(Some(principal.to_owned())),
        ..Caller::default()
    };
    let local = |user: u32| Caller {
        user: Some(LocalUser::Id(user)),
        uid: Some(user),
        ..Caller::default()
    };
    let nobody = Caller::default;
    for (principal, scheduler, operator, by_operator) in [
        (Some("mallory"), named("mallory"), named("mallory"), false),
        (Some("mallory"), named("mallory"), named("ops"), true),
        (Some("mallory"), named("mallory"), nobody(), true),
        (None, nobody(), nobody(), true),
        (None, local(1_000), local(1_000), false),
        (None, local(1_000), local(0), true),
        // The principal is only claimed.
        (Some("ops"), local(1_000), named("ops"), true),
        (Some("ops"), local(1_000), local(1_000), false),
    ] {
        let mut world = World::new();
        world.caller = scheduler;
        let info = v1::FrameworkInfo {
            principal: principal.map(str::to_owned),
            ..plain()
        };
        let framework_id = world.subscribe(info).id;
        let teardown = Request::Teardown {
            framework_id,
            caller: operator.clone(),
        };
        assert_eq!(world.ask(teardown), Answer::Done);
        let removed = &world.registry.removed_frameworks[0];
        assert_eq!(
            removed.by_operator, by_operator,
            "{principal:?} {operator:?}"
        );
    }
}

#[test]
fn removal_without_proven_owner_is_unowned() {
    for is_known in [false, true] {
        let (world, node, scheduler) = begin();
        let mut world = if is_known {
            world.restart()
        } else {
            upgraded(world)
        };
        return_of(&mut world, &node, &scheduler);
        world.advance(700 * SECOND);
        let removed = &world.registry.removed_frameworks[0];
        assert_eq!(removed.framework_id, scheduler.id);
        let owner = is_known.then_some("ada");
        assert_eq!(removed.principal.as_deref(), owner);
    }
}

#[test]
fn long_principal_is_remembered_by_prefix() {
    let mut world = World::new();
    // The two-byte character crosses the length limit.
    let scheduler = world.subscribe(owned(&format!("{}\u{e4}...", "x".repeat(254))));
    world.call_accepted(&scheduler, Action::Teardown);
    let removed = &world.registry.removed_frameworks[0];
    assert_eq!(removed.principal, Some("x".repeat(254)));
    let back = World::with_id(owned("x"), &scheduler.id);
    let back = world.try_subscribe(back);
    assert!(subscription_error(&mut world, back).contains("removed"));
}

#[test]
fn removal_repeated_in_one_write_persists() {
    let mut world = World::new();
    for number in (0..=10_000).chain([0]) {
        let id = FrameworkId::new(&format!("f{number}")).unwrap();
        world.core.note_removal(&id, Identity::default(), false);
    }
    world.input(Input::Tick);
    let removed = &world.registry.removed_frameworks;
    let is_known = |id: &str| removed.iter().any(|record| record.framework_id == id);
    assert!(is_known("f0") && !is_known("f1"));
}

#[test]
fn return_before_removal_write_keeps_owner() {
    let mut world = World::new();
    // The first removal is pending; the second and its displacement wait for it.
    for number in 0..=10_001 {
        let id = FrameworkId::new(&format!("f{number}")).unwrap();
        world.core.note_removal(&id, Identity::default(), false);
    }
    let back = World::with_id(owned("ada"), "f1");
    assert_eq!(world.subscribe(back.clone()).id, "f1");
    world.input(Input::Tick);
    assert!(is_registered_to_ada(&world));
    let removed = &world.registry.removed_frameworks;
    let is_known = |id: &str| removed.iter().any(|record| record.framework_id == id);
    assert!(!is_known("f0") && !is_known("f1") && is_known("f2"));
    assert_eq!(removed.len(), 10_000);
    let mut world = world.restart();
    let thief = world.try_subscribe(World::with_id(owned("mallory"), "f1"));
    assert_eq!(subscription_error(&mut world, thief), NOT_ITS_PRINCIPAL);
    assert_eq!(world.subscribe(back).id, "f1");
}

/// A master may end between the two writes.
#[test]
fn returned_framework_leaves_removed_list() {
    let removal = Mutation::EndFrameworks {
        removed: vec![RemovedRecord {
            framework_id: "f".to_owned(),
            ..RemovedRecord::default()
        }],
        forgotten: Vec::new(),
    };
    let put = Mutation::PutFramework(record_of_ada("f"));
    let mut played = Recovered::default();
    for mutation in [&removal, &removal, &put] {
        played.apply(mutation.clone());
    }
    let stored = crate::registry::read_back(&[removal, put]);
    for recovered in [&played, &stored] {
        assert_eq!(recovered.removed_frameworks, []);
        assert_eq!(recovered.frameworks, [record_of_ada("f")]);
    }
    // An earlier master left both records.
    let left = Recovered {
        removed_frameworks: vec![RemovedRecord {
            framework_id: "f".to_owned(),
            ..RemovedRecord::default()
        }],
        ..stored
    };
    let mut world = World::with(config(), left);
    let back = World::with_id(owned("ada"), "f");
    assert_eq!(world.subscribe(back).id, "f");
}

#[test]
fn framework_records_are_limited() {
    let mut world = World::new();
    for number in 0..10_005 {
        let id = FrameworkId::new(&format!("f{number}")).unwrap();
        world.core.note_removal(&id, Identity::default(), false);
    }
    world.input(Input::Tick);
    let removed = &world.registry.removed_frameworks;
    assert_eq!(removed.len(), 10_000);
    let is_known = |id: &str| removed.iter().any(|record| record.framework_id == id);
    assert!(
        !is_known("f4") && is_known("f5"),
        "the oldest are forgotten"
    );
    // An owner without contact for a long time.
    let mut config = config();
    config.registry_gc_interval = 10 * SECOND;
    config.registry_max_agent_age = 60 * SECOND;
    let frameworks = vec![record_of_ada("f")];
    let recovered = Recovered {
        epoch: 1,
        frameworks,
        ..Recovered::default()
    };
    let mut world = World::with(config, recovered);
    world.advance(15 * SECOND);
    let since = world.registry.frameworks[0].absent;
    assert!(since.is_some());
    world.advance(40 * SECOND);
    assert_eq!(world.registry.frameworks[0].absent, since);
    world.advance(40 * SECOND);
    assert!(world.registry.frameworks.is_empty());
}

#[test]
fn unreachable_agent_keeps_its_host() {
    let (mut world, node) = World::with_agent("cpus:1;mem:64");
    let id = node.agent_id();
    world.advance(100 * SECOND);
    assert_eq!(world.lost(), 1);
    assert_eq!(world.core.host_of(&id), Some("node.example"));
    let mut world = world.restart();
    assert_eq!(world.core.host_of(&id), Some("node.example"));
    // An expected agent that never came.
    let expected = world.agent(5052, "cpus:1;mem:64");
    let id = expected.agent_id();
    let mut world = world.restart();
    world.advance(700 * SECOND);
    assert_eq!(world.lost(), 2);
    assert_eq!(world.core.host_of(&id), Some("node.example"));
}
