//! Quota: requests of operators, their immediate effects, and their survival of a restart.

use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};
use meseta_proto::mesos::v1::value;
use serde_json::json;

use super::*;

fn scalar(name: &str, amount: f64) -> v1::Resource {
    v1::Resource {
        name: name.to_owned(),
        r#type: value::Type::Scalar.into(),
        scalar: Some(value::Scalar { value: amount }),
        ..v1::Resource::default()
    }
}

fn request(role: &str, guarantee: &[(&str, f64)], force: bool) -> QuotaRequest {
    QuotaRequest {
        force: Some(force),
        role: Some(role.to_owned()),
        guarantee: guarantee.iter().map(|(n, a)| scalar(n, *a)).collect(),
    }
}

fn set(role: &str, guarantee: &[(&str, f64)]) -> Administration {
    Administration::SetQuota(Box::new(request(role, guarantee, false)))
}

fn force(role: &str, guarantee: &[(&str, f64)]) -> Administration {
    Administration::SetQuota(Box::new(request(role, guarantee, true)))
}

fn remove(role: &str) -> Administration {
    Administration::RemoveQuota {
        role: role.to_owned(),
    }
}

fn quota_config(role: &str, guarantees: &[(&str, f64)], limits: &[(&str, f64)]) -> QuotaConfig {
    let amounts = |amounts: &[(&str, f64)]| {
        amounts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value::Scalar { value: *value }))
            .collect()
    };
    QuotaConfig {
        role: role.to_owned(),
        guarantees: amounts(guarantees),
        limits: amounts(limits),
    }
}

fn update(configs: Vec<QuotaConfig>, force: bool) -> Administration {
    Administration::UpdateQuota { force, configs }
}

/// A master with the quota semantics of Mesos 1.12.
fn head() -> World {
    let config = Config {
        quota_semantics: QuotaSemantics::Head,
        ..config()
    };
    World::configured(config)
}

/// The warning for a quota that the master sets nevertheless.
fn warning(answer: Answer) -> String {
    match answer {
        Answer::Warned(message) => message,
        other => panic!("{other:?}"),
    }
}

fn roles_with_quota(world: &mut World) -> Vec<String> {
    let snapshot = world.core.snapshot();
    snapshot.quotas.keys().map(ToString::to_string).collect()
}

#[test]
fn quota_requires_whitelisted_role() {
    let config = Config {
        roles: Some(["*", "known"].map(|r| Role::new(r).unwrap()).into()),
        ..config()
    };
    let mut world = World::configured(config);
    world.agent(1, "cpus:4;mem:1024");
    let message = rejection(world.administer(set("other", &[("cpus", 1.0)])));
    assert!(message.ends_with("Unknown role 'other'"), "{message}");
    let message = rejection(world.administer(update(
        vec![quota_config("other", &[], &[("cpus", 1.0)])],
        false,
    )));
    assert_says(&message, "Unknown role 'other'");
    world.administer_done(set("known", &[("cpus", 1.0)]));
}

#[test]
fn invalid_quota_request_is_refused() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    let mut invalid = |change: &dyn Fn(&mut QuotaRequest)| {
        let mut request = request("r", &[("cpus", 1.0), ("mem", 64.0)], false);
        change(&mut request);
        let message = rejection(world.administer(Administration::SetQuota(Box::new(request))));
        let prefix = "Failed to validate set quota request: ";
        message.strip_prefix(prefix).unwrap().to_owned()
    };
    type Change = fn(&mut QuotaRequest);
    let rows: [(Change, &str); 8] = [
        (
            |r| r.role = None,
            "with invalid role: Role names cannot be the empty string",
        ),
        (|r| r.guarantee.clear(), "with empty 'guarantee'"),
        (
            |r| r.guarantee[0] = wire("ports:[1-2]").remove(0),
            "must not include non-scalar resources",
        ),
        (
            |r| r.guarantee[0].role = Some("dev".to_owned()),
            "must not contain any ReservationInfo",
        ),
        (
            |r| r.guarantee[0].reservation = Some(Default::default()),
            "must not contain any ReservationInfo",
        ),
        (
            |r| r.guarantee[1] = scalar("cpus", 2.0),
            "contains duplicate resource name 'cpus'",
        ),
        (
            |r| r.guarantee[1].disk = Some(Box::default()),
            "must not contain DiskInfo",
        ),
        (
            |r| r.guarantee[1].revocable = Some(Default::default()),
            "must not contain RevocableInfo",
        ),
    ];
    for (change, expected) in rows {
        assert_eq!(invalid(&change), format!("QuotaInfo {expected}"));
    }
    for amount in [-1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE / 2.0] {
        let text = invalid(&|r| r.guarantee[0] = scalar("cpus", amount));
        assert_says(&text, "must be a number of 0 or more");
    }
    let text = invalid(&|r| r.guarantee[0] = scalar("cpus", 1e13));
    assert_says(&text, "greater than 1 trillion");
    assert!(roles_with_quota(&mut world).is_empty());
    assert!(world.unwritten.is_empty(), "nothing was stored");
}

#[test]
fn quota_is_set_and_removed_once() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    let message = rejection(world.administer(remove("r")));
    assert_eq!(message, "Role 'r' has no quota set");
    world.administer_done(set("r", &[("cpus", 1.0)]));
    let message = rejection(world.administer(set("r", &[("cpus", 1.0)])));
    assert!(message.ends_with("Cannot set quota for role 'r' which already has quota"));
    world.administer_done(remove("r"));
    assert!(roles_with_quota(&mut world).is_empty());
    assert!(world.registry.quotas.is_empty());
}

#[test]
fn second_racing_quota_removal_is_refused() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    world.administer(set("r", &[("cpus", 1.0)]));
    world.writes_at_once = false;
    let [first, second] = [ReplyId(1_000), ReplyId(1_001)];
    for reply in [first, second] {
        world.administer_as(reply, remove("r"));
    }
    assert_eq!(world.answers.get(&first), None, "not durable yet");
    assert_eq!(
        world.answers[&second],
        Answer::BadRequest("Role 'r' has no quota set".to_owned())
    );
    world.write();
    assert_eq!(world.answers[&first], Answer::Done);
}

#[test]
fn default_role_quota_requires_newer_semantics() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    let message = rejection(world.administer(set("*", &[("cpus", 1.0)])));
    assert_says(&message, "default role '*'");
    let mut world = head();
    world.agent(1, "cpus:4;mem:1024");
    world.administer_done(set("*", &[("cpus", 1.0)]));
}

/// Disconnected agents count, and so do amounts spread over several agents.
#[test]
fn force_overrides_quota_capacity_check() {
    let (mut world, node) = World::with_agent("cpus:4;mem:1024");
    assert_eq!(
        conflict(world.administer(set("r", &[("cpus", 5.0)]))),
        "Quota guarantees overcommit the cluster (use 'force' to bypass this check): Total quota \
         guarantees 'cpus:5' exceed cluster capacity 'cpus:4; mem:1024'"
    );
    assert!(roles_with_quota(&mut world).is_empty());
    let warned = warning(world.administer(force("r", &[("cpus", 5.0)])));
    assert_says(&warned, "cpus:5' exceed cluster capacity");
    world.administer_done(remove("r"));
    world.lose_agent(&node);
    world.administer_done(set("r", &[("cpus", 4.0), ("mem", 1024.0)]));
    for port in 2..=3 {
        world.agent(port, "cpus:4;mem:1024");
    }
    world.administer_done(set("s", &[("cpus", 7.0)]));
    conflict(world.administer(set("t", &[("cpus", 1.5)])));
    warning(world.administer(force("t", &[("cpus", 1.5)])));
}

#[test]
fn static_reservations_count_in_newer_semantics() {
    let mut world = head();
    world.agent(1, "cpus(ads):3;cpus:1;mem:1024");
    world.administer_done(set("r", &[("cpus", 4.0)]));
    let (mut world, _) = World::with_agent("cpus(ads):3;cpus:1;mem:1024");
    conflict(world.administer(set("r", &[("cpus", 2.0)])));
    world.administer_done(set("r", &[("cpus", 1.0)]));
}

#[test]
fn quota_rescinds_requested_amount_from_agents() {
    let mut world = World::new();
    let greedy = world.subscribe(framework("greedy", &["greedy"]));
    for port in 1..=3 {
        world.agent(port, "cpus:2;mem:1024");
    }
    assert_eq!(world.offers(&greedy).len(), 3);
    let first = world.subscribe(framework("first", &["r"]));
    let second = world.subscribe(framework("second", &["r"]));
    // One agent has the amount; the master rescinds offers of two agents for two frameworks.
    world.administer_done(set("r", &[("cpus", 1.0), ("mem", 512.0)]));
    assert_eq!(world.rescinded(&greedy), 2);
    let offered: Vec<_> = [&first, &second]
        .into_iter()
        .flat_map(|scheduler| world.offers(scheduler))
        .collect();
    assert!(total(&offered).cpus().unwrap().to_f64() >= 1.0);
}

#[test]
fn seed_semantics_limit_role_to_quota() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024;ports:[1-10]");
    world.administer(set("r", &[("cpus", 1.0), ("mem", 256.0)]));
    let scheduler = world.subscribe(framework("f", &["r"]));
    let offers = world.offers(&scheduler);
    let got = total(&offers);
    assert_eq!(got.cpus().unwrap().to_f64(), 1.0);
    assert_eq!(got.mem().unwrap().to_f64(), 256.0);
    // A declined offer comes again unchanged.
    world.call(&scheduler, decline(&offers, 0.0));
    world.advance(2 * SECOND);
    assert_eq!(
        total(&world.offers(&scheduler)).cpus().unwrap().to_f64(),
        1.0
    );
}

#[test]
fn several_quotas_are_updated_or_none() {
    let (mut world, _) = World::with_agent("cpus:4;mem:4096");
    let both = vec![
        quota_config("*", &[("cpus", 1.0)], &[("cpus", 2.0)]),
        quota_config("r", &[("mem", 64.0)], &[]),
    ];
    world.administer_done(update(both, false));
    assert_eq!(roles_with_quota(&mut world), ["*", "r"]);
    let mixed = vec![
        quota_config("s", &[("cpus", 1.0)], &[]),
        quota_config("t", &[("cpus", 3.0)], &[("cpus", 2.0)]),
    ];
    let message = rejection(world.administer(update(mixed, false)));
    assert_eq!(
        message,
        "Invalid QuotaConfig: 'QuotaConfig.guarantees' { cpus: 3 } is not contained within the \
         'QuotaConfig.limits' { cpus: 2 }"
    );
    assert_eq!(roles_with_quota(&mut world), ["*", "r"]);
    // An empty quota removes the role's quota.
    let none = vec![quota_config("r", &[], &[])];
    world.administer_done(update(none, false));
    assert_eq!(roles_with_quota(&mut world), ["*"]);
}

#[test]
fn amounts_beyond_reason_are_refused() {
    let (mut world, _) = World::with_agent("cpus:4;mem:4096");
    let trillion = "values greater than 1 trillion (1000000000000) are not supported";
    let exabyte = "values greater than 1 exabyte (1099511627776)";
    for (name, amount, text) in [
        ("cpus", 1_000_000_000_001.0, trillion),
        ("mem", 1_099_511_627_777.0, exabyte),
        ("disk", 1_099_511_627_777.0, exabyte),
    ] {
        let limits = vec![quota_config("r", &[], &[(name, amount)])];
        let message = rejection(world.administer(update(limits, true)));
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn limit_below_usage_requires_force() {
    let (mut world, _, scheduler) =
        World::with_framework(framework("f", &["r"]), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:2;mem:64");
    let limit = |cpus: f64| vec![quota_config("r", &[], &[("cpus", cpus)])];
    let message = rejection(world.administer(update(limit(1.0), false)));
    assert_says(&message, "is already consuming");
    assert!(message.contains("(use 'force' flag to bypass this check)"));
    world.administer_done(update(limit(2.0), false));
    world.administer_done(update(limit(1.0), true));
}

#[test]
fn a_guarantee_takes_offers_from_others() {
    let mut world = World::new();
    let greedy = world.subscribe(framework("greedy", &["greedy"]));
    world.agent(1, "cpus:2;mem:1024");
    assert_eq!(world.offers(&greedy).len(), 1);
    let guarantee = vec![quota_config("r", &[("cpus", 1.0), ("mem", 512.0)], &[])];
    world.administer_done(update(guarantee, false));
    assert!(world.rescinded(&greedy) > 0);
    // The excess is offered again; the guarantee stays for a framework that joins the role.
    let owed = world.subscribe(framework("owed", &["r"]));
    assert!(total(&world.offers(&owed)).cpus().unwrap().to_f64() >= 1.0);
}

#[test]
fn free_resources_count_for_one_guarantee() {
    let mut world = World::new();
    let greedy = world.subscribe(framework("greedy", &["greedy"]));
    world.agent(1, "cpus:2;mem:1024");
    assert_eq!(world.offers(&greedy).len(), 1);
    world.call_accepted(&greedy, Action::Suppress { roles: Vec::new() });
    world.agent(2, "cpus:2;mem:1024");
    let all_of_one = |role| quota_config(role, &[("cpus", 2.0), ("mem", 1024.0)], &[]);
    world.administer_done(update(vec![all_of_one("a")], false));
    assert_eq!(
        world.rescinded(&greedy),
        0,
        "what is free is enough for one"
    );
    world.administer_done(update(vec![all_of_one("b")], false));
    assert_eq!(world.rescinded(&greedy), 1);
    for role in ["a", "b"] {
        let owed = world.subscribe(framework(role, &[role]));
        assert_eq!(total(&world.offers(&owed)).cpus().unwrap().to_f64(), 2.0);
    }
}

#[test]
fn limit_rescinds_only_the_excess() {
    let mut world = World::new();
    let parent = world.subscribe(framework("parent", &["r"]));
    world.agent(1, "cpus:1;mem:1024");
    let child = world.subscribe(framework("child", &["r/child"]));
    world.agent(2, "cpus:1;mem:1024");
    let offered = |world: &mut World| {
        [&parent, &child].map(|scheduler| {
            let events = world.take_events(scheduler.connection);
            let rescinded = events.iter().filter(|event| event.rescind.is_some());
            rescinded.count()
        })
    };
    offered(&mut world);
    let limit = |cpus, mem| vec![quota_config("r", &[], &[("cpus", cpus), ("mem", mem)])];
    world.administer_done(update(limit(2.0, 2048.0), false));
    assert_eq!(
        offered(&mut world),
        [0, 0],
        "all that is offered is allowed"
    );
    world.administer_done(update(limit(0.5, 512.0), false));
    assert_eq!(offered(&mut world).iter().sum::<usize>(), 2);
}

#[test]
fn restarted_master_without_agents_offers_immediately() {
    let mut world = World::new();
    world.administer(force("r", &[("cpus", 1.0)]));
    let mut world = world.restart();
    assert_eq!(roles_with_quota(&mut world), ["r"]);
    let scheduler = world.subscribe(framework("f", &["r"]));
    world.agent(1, "cpus:4;mem:1024");
    assert_eq!(
        total(&world.offers(&scheduler)).cpus().unwrap().to_f64(),
        1.0
    );
}

/// A new master with a quota, the five agents of the former one, and a framework.
fn restarted_with_quota() -> (World, Vec<Node>, Scheduler) {
    let mut world = World::new();
    let agents = (1..=5).map(|port| world.agent(port, "cpus:4;mem:1024"));
    let nodes = agents.collect();
    world.administer_done(set("r", &[("cpus", 1.0), ("mem", 64.0)]));
    let mut world = world.restart();
    let scheduler = world.subscribe(framework("f", &["other"]));
    (world, nodes, scheduler)
}

#[test]
fn recovery_mode_ends_when_agents_return() {
    let (mut world, nodes, scheduler) = restarted_with_quota();
    for node in &nodes[..3] {
        world.return_empty(node);
    }
    world.advance(5 * SECOND);
    assert!(
        world.offers(&scheduler).is_empty(),
        "three of five are too few"
    );
    world.reregister(&nodes[3], Vec::new(), Vec::new());
    world.advance(2 * SECOND);
    assert!(!world.offers(&scheduler).is_empty());
}

#[test]
fn recovery_mode_ends_after_ten_minutes() {
    let (mut world, nodes, scheduler) = restarted_with_quota();
    let node = world.reregister(&nodes[0], Vec::new(), Vec::new());
    world.live(590 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    world.live(15 * SECOND, &[&node]);
    assert!(!world.offers(&scheduler).is_empty());
}

#[test]
fn recovery_mode_rounds_up_known_agents() {
    let mut world = World::new();
    let nodes = [1, 2].map(|port| world.agent(port, "cpus:4;mem:1024"));
    world.administer_done(set("r", &[("cpus", 1.0), ("mem", 64.0)]));
    let mut world = world.restart();
    let scheduler = world.subscribe(framework("f", &["other"]));
    let mode = |awaited, missing| Some(RecoveryMode { awaited, missing });
    assert_eq!(world.core.snapshot().recovery_mode, mode(2, 2));
    world.return_empty(&nodes[0]);
    world.agent(3, "cpus:4;mem:1024");
    world.advance(5 * SECOND);
    assert!(world.offers(&scheduler).is_empty());
    assert_eq!(world.core.snapshot().recovery_mode, mode(1, 1));
    world.return_empty(&nodes[1]);
    world.advance(2 * SECOND);
    assert!(!world.offers(&scheduler).is_empty());
    assert_eq!(world.core.snapshot().recovery_mode, None);
}

#[test]
fn recovery_mode_ignores_removed_agent() {
    let mut world = World::new();
    let nodes = [1, 2].map(|port| world.agent(port, "cpus:4;mem:1024"));
    world.administer_done(set("r", &[("cpus", 1.0), ("mem", 64.0)]));
    let mut world = world.restart();
    let scheduler = world.subscribe(framework("f", &["other"]));
    world.return_empty(&nodes[0]);
    let agent_id = nodes[1].id.clone();
    world.administer_done(Administration::MarkAgentGone { agent_id });
    world.advance(2 * SECOND);
    assert!(!world.offers(&scheduler).is_empty());
}

/// A role's guarantee covers those below it together; the refusal names the missing amount.
#[test]
fn subrole_shares_quota_of_parent() {
    let (mut world, _) = World::with_agent("cpus:8;mem:8192");
    let message = rejection(world.administer(set("eng/backend", &[("cpus", 1.0)])));
    assert_says(&message, "hierarchy");
    assert_says(
        &message,
        "guarantee 'eng' at least 1 cpus, before those below it",
    );
    world.administer_done(set("eng", &[("cpus", 4.0)]));
    rejection(world.administer(set("eng/backend", &[("cpus", 5.0)])));
    world.administer_done(set("eng/backend", &[("cpus", 3.0)]));
    rejection(world.administer(set("eng/frontend", &[("cpus", 2.0)])));
    world.administer_done(set("eng/frontend", &[("cpus", 1.0)]));
    let roles = ["eng", "eng/backend", "eng/frontend"];
    assert_says(rejection(world.administer(remove("eng"))), "hierarchy");
    assert_eq!(roles_with_quota(&mut world), roles);
    for role in roles.into_iter().rev() {
        world.administer_done(remove(role));
    }
}

#[test]
fn nested_guarantee_counts_once_against_capacity() {
    let (mut world, _) = World::with_agent("cpus:4;mem:8192");
    world.administer_done(set("eng", &[("cpus", 4.0)]));
    world.administer_done(set("eng/backend", &[("cpus", 4.0)]));
    conflict(world.administer(set("ops", &[("cpus", 0.5)])));
}

/// The order in the quota document: an invalid request is refused first, whatever its sender; a valid one is then
/// authorized, before the check of the capacity.
#[test]
fn request_is_validated_before_authorization() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    world.administer(set("taken", &[("cpus", 1.0)]));
    let acls = r#"{"update_quotas":[{"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]}"#;
    world.caller = crate::core::tests::frameworks::authorization::caller(acls, Some("eve"));
    let mut ports = request("r", &[], false);
    ports.guarantee.push(v1::Resource {
        name: "ports".to_owned(),
        r#type: value::Type::Ranges.into(),
        ranges: Some(value::Ranges::default()),
        ..v1::Resource::default()
    });
    for (invalid, part) in [
        (set("*", &[("cpus", 1.0)]), "default role '*'"),
        (Administration::SetQuota(Box::new(ports)), "non-scalar"),
        (set("r", &[]), "empty 'guarantee'"),
        (set("taken", &[("cpus", 1.0)]), "already has quota"),
        (set("a/b", &[("cpus", 1.0)]), "hierarchy would not be sound"),
        (remove("r"), "has no quota set"),
    ] {
        let message = rejection(world.administer(invalid));
        assert!(message.contains(part), "{message}");
    }
    for valid in [
        set("r", &[("cpus", 1.0)]),
        set("r", &[("cpus", 1_000.0)]),
        remove("taken"),
    ] {
        let answer = world.administer(valid);
        let Answer::Forbidden(message) = answer else {
            panic!("{answer:?}");
        };
        assert_says(&message, "'eve' is not authorized");
    }
    assert_eq!(roles_with_quota(&mut world), ["taken"]);
}

#[test]
fn semantics_of_each_quota_are_shown() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    world.administer_done(set("r", &[("cpus", 1.0)]));
    world.administer_done(update(
        vec![quota_config("s", &[("cpus", 1.0)], &[])],
        false,
    ));
    let semantics = |world: &mut World, role: &str| {
        let snapshot = world.core.snapshot();
        let written = crate::chunked_response::rendered_bytes(crate::views::roles(&snapshot));
        let roles: serde_json::Value = serde_json::from_slice(&written).unwrap();
        let mut roles = roles["roles"].as_array().unwrap().iter();
        let role = roles.find(|one| one["name"] == role).unwrap();
        role["quota"]["semantics"].clone()
    };
    assert_eq!(semantics(&mut world, "r"), "seed");
    assert_eq!(semantics(&mut world, "s"), json!(null), "as in Mesos");
    let shown = crate::views::quota(&world.core.snapshot());
    let both = [("r", "seed"), ("s", "head")];
    let both = both.map(|(role, semantics)| json!({"role": role, "semantics": semantics}));
    assert_eq!(shown["semantics"], json!(both));
    let called = |world: &mut World| {
        let status = crate::views::quota_status(&world.core.snapshot());
        serde_json::to_value(status).unwrap()["semantics"].clone()
    };
    assert_eq!(called(&mut world), json!(both), "GET_QUOTA");
    world.administer_done(update(
        vec![quota_config("r", &[("cpus", 1.0)], &[])],
        false,
    ));
    assert_eq!(semantics(&mut world, "r"), json!(null), "as in Mesos");
    let shown = crate::views::quota(&world.core.snapshot());
    assert_eq!(shown.get("semantics"), None, "as in Mesos");
    assert_eq!(called(&mut world), json!(null), "GET_QUOTA as in Mesos");
}

#[test]
fn failures_are_counted_by_role() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.update(&node, &scheduler, "t", TaskState::TaskFailed, 1);
    let counters = world.core.snapshot().counters.clone();
    let failures: Vec<_> = counters.role_failures.iter().collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0].0.1, "task_failed");
    assert!(!failures[0].0.0.is_empty());
}

/// A quota of 0 is a limit, and is shown unchanged.
#[test]
fn zero_quota_is_shown_unchanged() {
    let (mut world, _) = World::with_agent("cpus:4;mem:1024");
    world.administer_done(set("r", &[("cpus", 0.0)]));
    let snapshot = world.core.snapshot();
    let shown = crate::views::quota(&snapshot);
    let shown = serde_json::to_value(shown).unwrap();
    let amount = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.0}, "role": "*"});
    assert_eq!(shown["infos"][0]["guarantee"], json!([amount]));
}
