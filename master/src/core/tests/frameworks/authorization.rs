//! Rights of frameworks and agents by the ACLs.

use meseta_access::{Acls, Authorizer};
use meseta_proto::mesos::v1::task_status::Reason;

use super::*;
use crate::core::tests::operations::{list, reserved};
use crate::core::tests::tasks::groups::{accept_all, executor, group};

/// A caller with these ACLs and a proven principal.
pub(in crate::core::tests) fn caller(acls: &str, principal: Option<&str>) -> Caller {
    let authorizer = Authorizer::new(Acls::parse(acls).unwrap(), true);
    Caller {
        approver: authorizer.approver(principal.map(str::to_owned)),
        ..Caller::default()
    }
}

/// The error message of a refused subscription.
pub(in crate::core::tests) fn subscription_error(
    world: &mut World,
    connection: ConnectionId,
) -> String {
    let mut events = world.take_events(connection).into_iter();
    let error = events.find_map(|event| event.error);
    error.expect("an ERROR event").message
}

#[test]
fn subscription_requires_authorized_roles() {
    let mut world = World::new();
    let acls = r#"{"register_frameworks":[
        {"principals":{"values":["ada"]},"roles":{"values":["eng/%"]}},
        {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]}"#;
    world.caller = caller(acls, Some("ada"));
    let connection = world.try_subscribe(framework("f", &["eng/build", "ads"]));
    let message = subscription_error(&mut world, connection);
    assert_eq!(message, "Not authorized to use the roles { ads }");
    let good = world.subscribe(framework("f", &["eng/build"]));
    let update = |roles: &[&str]| {
        Action::UpdateFramework(Box::new(Subscribe {
            info: World::with_id(framework("f", roles), &good.id),
            suppressed_roles: Vec::new(),
            offer_constraints: None,
        }))
    };
    let answer = world.call(&good, update(&["eng/build", "ads"]));
    assert!(matches!(answer, Answer::Forbidden(_)), "{answer:?}");
    world.call_done(&good, update(&["eng/test"]));
    // The framework's principal is the proven one.
    let info = world.core.snapshot().frameworks[0].info.clone();
    assert_eq!(info.principal.as_deref(), Some("ada"));
}

#[test]
fn claimed_principal_counts_without_authentication() {
    let mut world = World::new();
    let acls = r#"{"register_frameworks":[
        {"principals":{"values":["ada"]},"roles":{"type":"ANY"}},
        {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]}"#;
    world.caller = caller(acls, None);
    let nameless = world.try_subscribe(framework("f", &["ads"]));
    subscription_error(&mut world, nameless);
    let mut info = framework("f", &["ads"]);
    info.principal = Some("ada".to_owned());
    world.subscribe(info);
}

#[test]
fn task_user_must_be_authorized() {
    let mut world = World::new();
    let acls = r#"{"run_tasks":[
        {"principals":{"values":["ada"]},"users":{"values":["alice","build"]}},
        {"principals":{"type":"ANY"},"users":{"type":"NONE"}}]}"#;
    let node = world.agent(5051, "cpus:4;mem:1024");
    world.caller = caller(acls, Some("ada"));
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let as_user = |id: &str, user: Option<&str>| {
        let mut task = task(&node, id, "cpus:1;mem:64");
        let command = task.command.get_or_insert_default();
        command.user = user.map(str::to_owned);
        task
    };
    let tasks = vec![
        as_user("own", None),
        as_user("named", Some("build")),
        as_user("root", Some("root")),
    ];
    world.call(&scheduler, accept(&[&offer], tasks));
    let updates = world.updates(&scheduler);
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].task_id.value, "root");
    assert_eq!(updates[0].state(), TaskState::TaskError);
    assert_eq!(updates[0].reason(), Reason::TaskUnauthorized);
    let message = updates[0].message();
    assert_eq!(message, "Not authorized to launch as user 'root'");
    assert_eq!(world.core.snapshot().agents[0].tasks.len(), 2);
    world.check();
}

/// The answer to an agent's first frame.
fn joins(world: &mut World, caller: Caller, first: AgentMessage) -> Result<(), meseta::Refused> {
    let connection = ConnectionId(world.number());
    world.core.agent_connected(connection, caller);
    world.say_on(connection, first);
    let answer = |frame| match frame {
        MasterMessage::Registered(_) => Some(Ok(())),
        MasterMessage::Refused(refused) => Some(Err(refused)),
        _ => None,
    };
    let mut answers = world.take_frames(connection).into_iter().filter_map(answer);
    answers.next().expect("admitted or refused")
}

#[test]
fn registration_requires_authorized_agent_and_reservations() {
    let mut world = World::new();
    let acls = r#"{
        "register_agents":[{"principals":{"values":["node"]},"agents":{"type":"ANY"}},
            {"principals":{"type":"ANY"},"agents":{"type":"NONE"}}],
        "reserve_resources":[{"principals":{"values":["node"]},"roles":{"values":["ads"]}},
            {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]}"#;
    for (principal, resources, may_join) in [
        (Some("node"), "cpus:1;mem:64", true),
        (Some("node"), "cpus(ads):1;mem:64", true),
        (Some("node"), "cpus(web):1;mem:64", false),
        (Some("thief"), "cpus:1;mem:64", false),
        (None, "cpus:1;mem:64", false),
    ] {
        let port = 6000 + i32::try_from(world.next).unwrap();
        let message = AgentMessage::Register(register(port, resources));
        let joined = joins(&mut world, caller(acls, principal), message);
        let refused = joined.err();
        assert_eq!(refused.is_none(), may_join, "{principal:?} {resources}");
        if let Some(refused) = refused {
            let start = "Not authorized to register an agent";
            assert!(refused.reason.starts_with(start), "{refused:?}");
            assert!(!refused.permanent, "the ACLs may be mended");
        }
    }
    assert_eq!(world.core.snapshot().agents.len(), 2);
}

#[test]
fn unauthorized_task_rejects_whole_group() {
    let mut world = World::new();
    let acls = r#"{"run_tasks":[
        {"principals":{"values":["ada"]},"users":{"values":["alice"]}},
        {"principals":{"type":"ANY"},"users":{"type":"NONE"}}]}"#;
    let node = world.agent(5051, "cpus:4;mem:1024;disk:1024");
    world.caller = caller(acls, Some("ada"));
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    let mut root = task(&node, "root", "cpus:1;mem:64");
    root.command.get_or_insert_default().user = Some("root".to_owned());
    let tasks = vec![task(&node, "own", "cpus:1;mem:64"), root];
    let launch = group(executor(&scheduler, "e"), tasks);
    world.call(&scheduler, accept_all(&offer, vec![launch]));
    let updates = world.updates(&scheduler);
    assert_eq!(updates.len(), 2);
    for update in updates {
        assert_eq!(update.state(), TaskState::TaskError);
        assert_eq!(update.reason(), Reason::TaskGroupUnauthorized);
    }
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
    world.check();
}

#[test]
fn reader_sees_only_authorized_users_tasks() {
    let (mut world, node, scheduler, offer) = World::with_offer(plain(), "cpus:4;mem:1024");
    let mut build = task(&node, "build", "cpus:1;mem:64");
    build.command.get_or_insert_default().user = Some("build".to_owned());
    let tasks = vec![task(&node, "own", "cpus:1;mem:64"), build];
    world.call(&scheduler, accept(&[&offer], tasks));
    let snapshot = world.core.snapshot();
    let seen = |acls: &str| -> Vec<String> {
        let approver = caller(acls, Some("ada")).approver;
        let seen = crate::view_filter::filtered_snapshot(&snapshot, &approver);
        assert_eq!(
            seen.agents[0].profile.total,
            snapshot.agents[0].profile.total
        );
        let tasks = seen.agents[0].tasks.values();
        tasks.map(|task| task.task_id.to_string()).collect()
    };
    let only = |list: &str, user: &str| {
        format!(
            r#"{{"{list}":[{{"principals":{{"type":"ANY"}},"users":{{"values":["{user}"]}}}},
                {{"principals":{{"type":"ANY"}},"users":{{"type":"NONE"}}}}]}}"#
        )
    };
    assert_eq!(seen("{}"), ["build", "own"]);
    assert_eq!(seen(&only("view_tasks", "alice")), ["own"]);
    assert_eq!(seen(&only("view_tasks", "build")), ["build"]);
    assert_eq!(seen(&only("view_frameworks", "alice")), ["build", "own"]);
    let none: Vec<String> = Vec::new();
    assert_eq!(seen(&only("view_frameworks", "build")), none);
}

#[test]
fn reregistration_requires_current_authorization() {
    let (mut world, node) = World::with_agent("cpus:1;mem:64");
    let nobody = r#"{"register_agents":[{"principals":{"type":"ANY"},"agents":{"type":"NONE"}}]}"#;
    let back = |world: &mut World, acls: &str| {
        let report = report(&node, Vec::new(), Vec::new());
        joins(
            world,
            caller(acls, Some("node")),
            AgentMessage::Reregister(report),
        )
        .is_ok()
    };
    assert!(!back(&mut world, nobody));
    assert!(back(&mut world, "{}"));
}

#[test]
fn every_reservation_move_step_is_authorized() {
    let acls = r#"{"permissive":false,
        "reserve_resources":[{"principals":{"values":["eve"]},"roles":{"values":["ads/x","evil"]}}],
        "unreserve_resources":[
            {"principals":{"values":["eve"]},"reserver_principals":{"values":["eve"]}}]}"#;
    let eve = Authorizer::new(Acls::parse(acls).unwrap(), false).approver(Some("eve".to_owned()));
    let plain = || parse("cpus:1");
    let ads = |by: &str| reserved(&plain(), "ads", Some(by));
    let refined = |by: &str| reserved(&ads("ops"), "ads/x", Some(by));
    let evil = || reserved(&plain(), "evil", Some("eve"));
    for (source, target, allowed) in [
        // All removed reservations of the source count, not only the top one.
        (ads("ops"), evil(), false),
        (refined("eve"), evil(), false),
        (reserved(&ads("eve"), "ads/x", Some("eve")), evil(), true),
        (refined("ops"), ads("ops"), false),
        // All added reservations of the target count.
        (plain(), reserved(&ads("eve"), "ads/x", Some("eve")), false),
        (plain(), evil(), true),
        // The common reservations stay.
        (ads("ops"), refined("eve"), true),
        (refined("eve"), refined("eve"), true),
        (ads("ops"), ads("ops"), false),
    ] {
        let operation = meseta_resources::Operation::Reserve {
            source: list(&source),
            resources: list(&target),
        };
        let decision = crate::core::authorization::operation(&eve, &operation);
        assert_eq!(decision.is_ok(), allowed, "{source} to {target}");
    }
}
