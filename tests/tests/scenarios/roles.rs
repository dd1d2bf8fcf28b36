//! Tests of roles in `/roles`, and of volumes of roles with overlapping names.

use std::time::Duration;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Encoding, Framework, Setup, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::{dynamic, reserved_full, volume_of, with};

meseta_tests::scenarios! {
    anywhere:
        role_whitelist_admits_named_roles,
        roles_come_and_go_with_frameworks,
        volumes_of_overlapping_roles_are_apart;
}

const LIMIT: Duration = Duration::from_secs(20);

fn roles(cluster: &Cluster) -> Vec<Value> {
    let page = cluster.master.page("/roles").json();
    page["roles"].as_array().expect("roles").clone()
}

fn names(cluster: &Cluster) -> Vec<String> {
    let roles = roles(cluster);
    let names = roles
        .iter()
        .map(|role| role["name"].as_str().expect("a name").to_owned());
    names.collect()
}

fn role_whitelist_admits_named_roles() {
    let no_agents = || Setup {
        agents: 0,
        ..Setup::default()
    };
    let cluster = Cluster::start(no_agents());
    assert_eq!(cluster.master.page("/roles").json(), json!({"roles": []}));
    let cluster = Cluster::start(Setup {
        master_flags: vec!["--roles=role1,role2".into(), "--weights=role1=5".into()],
        ..no_agents()
    });
    let shown = roles(&cluster);
    let expected = [("role1", 5.0), ("role2", 1.0)].map(|(name, weight)| {
        json!({"name": name, "weight": weight, "frameworks": [], "resources": {}, "allocated": {},
               "offered": {}, "reserved": {},
               "quota": {"role": name, "guarantee": {}, "limit": {}, "consumed": {}}})
    });
    // `*` is always listed if a whitelist exists.
    let others: Vec<_> = shown
        .iter()
        .filter(|role| role["name"] != "*")
        .cloned()
        .collect();
    assert_eq!(others, expected);
}

fn roles_come_and_go_with_frameworks() {
    let cluster = Cluster::default();
    let mut info = framework_info("one");
    info["roles"] = json!(["eng/backend", "one"]);
    let framework = cluster.subscribe(&info);
    assert_eq!(names(&cluster), ["eng", "eng/backend", "one"]);
    let of = |name: &str| {
        let roles = roles(&cluster);
        let found = roles.into_iter().find(|role| role["name"] == name);
        found.expect("the role")["frameworks"].clone()
    };
    assert_eq!(
        of("eng"),
        json!([]),
        "nobody is subscribed to the one above"
    );
    assert_eq!(of("eng/backend"), json!([framework.id]));
    assert_eq!(of("one"), json!([framework.id]));
    info["roles"] = json!(["one", "two"]);
    info["id"] = json!({"value": framework.id});
    let update = json!({"type": "UPDATE_FRAMEWORK", "update_framework": {"framework_info": info}});
    let answer = framework.call(update);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(names(&cluster), ["one", "two"]);
    framework.teardown();
    wait::eventually("no role is left", LIMIT, || {
        names(&cluster).is_empty().then_some(())
    });
}

/// Role `a` has volume `b`, and role `a/b` has volume `c`: as paths one would be in the other.
fn volumes_of_overlapping_roles_are_apart() {
    let cluster = Cluster::default();
    let agent = cluster.agent_id();
    let disk = |role: &str| dynamic("disk", 64.0, role);
    let volume = |role: &str, id: &str| volume_of(disk(role), id);
    for (role, id) in [("a", "b"), ("a/b", "c")] {
        let of_agent =
            |name: &str, resource| json!({"agent_id": {"value": agent}, name: [resource]});
        for (kind, part) in [
            ("RESERVE_RESOURCES", of_agent("resources", disk(role))),
            ("CREATE_VOLUMES", of_agent("volumes", volume(role, id))),
        ] {
            let answer = cluster.operate(kind, &part);
            assert_eq!(answer.status, 202, "{kind}: {}", answer.text());
        }
        reserved_full(&cluster, role, 1);
    }
    for (role, id, command) in [
        ("a", "b", "touch data/mine && test \"$(ls data)\" = mine"),
        ("a/b", "c", "test -z \"$(ls data)\""),
    ] {
        let url = cluster.scheduler_url();
        let mut framework = Framework::subscribe(&url, Encoding::Json, &framework_info(role));
        let offer = framework.offer();
        let mut one = task(
            &offer,
            &format!("t-{id}"),
            command,
            &[("cpus", 0.1), ("mem", 32.0)],
        );
        let resources = one["resources"].as_array_mut().expect("resources");
        let allocated = json!({"role": role});
        resources.push(with(volume(role, id), "allocation_info", allocated));
        framework.launch(&offer, &[one]);
        framework.until_state(&format!("t-{id}"), "TASK_FINISHED");
        framework.teardown();
    }
}
