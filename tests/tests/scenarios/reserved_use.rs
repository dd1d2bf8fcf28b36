//! Reservations that may not go: of other labels, in use, with a volume; by frameworks and operators.

use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Framework, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::{
    agent_id, cluster, dynamic, is, offer_where, operate, post_form, reserved_full, sum, volume_of,
};

meseta_tests::scenarios! {
    anywhere:
        labels_keep_reservations_apart,
        what_is_in_use_stays_reserved,
        what_holds_a_volume_stays_reserved;
}

const LIMIT: Duration = Duration::from_secs(30);

/// Cpus of the role, with a label that says what they are for.
fn labelled(value: f64, purpose: &str) -> Value {
    let mut resource = dynamic("cpus", value, "dev");
    resource["reservations"][0]["labels"] = json!({"labels": [{"key": "for", "value": purpose}]});
    resource
}

fn reserve(resources: &[&Value]) -> Value {
    json!([{"type": "RESERVE", "reserve": {"resources": resources}}])
}

fn unreserve(id: &str, resource: &Value) -> Value {
    json!([{"type": "UNRESERVE", "id": {"value": id}, "unreserve": {"resources": [resource]}}])
}

/// What a framework is told of an operation that it named.
fn outcome(framework: &mut Framework, id: &str) -> Value {
    let event = framework.wait_until(id, |event| {
        event["type"] == "UPDATE_OPERATION_STATUS"
            && event["update_operation_status"]["status"]["operation_id"]["value"] == id
    });
    event["update_operation_status"]["status"].clone()
}

/// Tries to unreserve on an offer that fits and is refused for what it asks. An offer may be one that
/// was taken back meanwhile: then another is tried.
fn refused(framework: &mut Framework, resource: &Value, fits: impl Fn(&Value) -> bool) {
    for attempt in 0..10 {
        let offer = offer_where(framework, "an offer to try it on", &fits);
        let id = format!("refused-{attempt}");
        operate(framework, &offer, unreserve(&id, resource));
        let status = outcome(framework, &id);
        assert_eq!(status["state"], "OPERATION_ERROR", "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        if !message.contains("invalid offers") {
            return assert!(!message.is_empty(), "{status}");
        }
    }
    panic!("every offer is taken back");
}

/// The same where nothing stands in the way.
fn unreserved(framework: &mut Framework, resource: &Value, fits: impl Fn(&Value) -> bool) {
    for attempt in 0..10 {
        let offer = offer_where(framework, "an offer to do it on", &fits);
        let id = format!("done-{attempt}");
        operate(framework, &offer, unreserve(&id, resource));
        let status = outcome(framework, &id);
        if status["state"] == "OPERATION_FINISHED" {
            return;
        }
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains("invalid offers"), "{status}");
    }
    panic!("every offer is taken back");
}

fn labels_keep_reservations_apart() {
    let cluster = cluster("cpus:12;mem:1024");
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let (database, web) = (labelled(2.0, "database"), labelled(3.0, "web"));
    operate(&framework, &offer, reserve(&[&database, &web]));
    let of =
        |resource: &Value, expected: &Value| resource["reservations"] == expected["reservations"];
    let both = |offer: &Value| {
        is(
            sum(&offer["resources"], "cpus", |one| of(one, &database)),
            2.0,
        ) && is(sum(&offer["resources"], "cpus", |one| of(one, &web)), 3.0)
    };
    let offer = offer_where(&mut framework, "both reservations", both);
    reserved_full(&cluster, "dev", 2);
    framework.decline(&offer, 0.0);
    // Without its label it is another one, which is not there.
    refused(&mut framework, &dynamic("cpus", 2.0, "dev"), both);
    unreserved(&mut framework, &database, both);
    let full = reserved_full(&cluster, "dev", 1);
    assert!(of(&full[0], &web), "{full}");
}

fn what_is_in_use_stays_reserved() {
    let cluster = cluster("cpus:4;mem:1024");
    let agent = agent_id(&cluster);
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let mine = dynamic("cpus", 1.0, "dev");
    operate(&framework, &offer, reserve(&[&mine]));
    let is_mine = |one: &Value| one["reservations"][0]["role"] == "dev";
    let mut launched = 0;
    // An offer may be one that was taken back meanwhile: then another is tried.
    let id = loop {
        let offer = offer_where(&mut framework, "the reservation", |offer| {
            is(sum(&offer["resources"], "cpus", is_mine), 1.0)
        });
        let id = format!("holds-{launched}");
        let mut info = task(&offer, &id, "exec sleep 1000", &[("mem", 32.0)]);
        let resources = info["resources"].as_array_mut().expect("resources");
        resources.push(mine.clone());
        framework.launch(&offer, &[info]);
        let mut state = Value::Null;
        while !["TASK_RUNNING", "TASK_DROPPED"]
            .iter()
            .any(|end| state == *end)
        {
            let status = framework.update(&id);
            framework.acknowledge(&status);
            state = status["state"].clone();
        }
        if state == "TASK_RUNNING" {
            break id;
        }
        launched += 1;
        assert!(launched < 10, "{id} is dropped again and again");
    };
    let value = json!([mine]).to_string();
    let answer = post_form(&cluster, "/unreserve", &agent, "resources", &value);
    assert_eq!(answer.status, 409, "{}", answer.text());
    let has_cpus = |offer: &Value| sum(&offer["resources"], "cpus", |_| true) > 1.0;
    refused(&mut framework, &mine, has_cpus);
    reserved_full(&cluster, "dev", 1);
    framework.kill(&id);
    framework.until_state(&id, "TASK_KILLED");
    wait::eventually("it can be unreserved", LIMIT, || {
        let answer = post_form(&cluster, "/unreserve", &agent, "resources", &value);
        (answer.status == 202).then_some(())
    });
}

fn what_holds_a_volume_stays_reserved() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = agent_id(&cluster);
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v");
    let operations = json!([
        {"type": "RESERVE", "reserve": {"resources": [disk]}},
        {"type": "CREATE", "create": {"volumes": [data]}},
    ]);
    operate(&framework, &offer, operations);
    let is_volume = |one: &Value| one["disk"]["persistence"]["id"] == "v";
    let has_volume = |offer: &Value| is(sum(&offer["resources"], "disk", is_volume), 64.0);
    let offer = offer_where(&mut framework, "the volume", has_volume);
    framework.decline(&offer, 0.0);
    for (number, resource) in [&disk, &data].into_iter().enumerate() {
        let value = json!([resource]).to_string();
        let answer = post_form(&cluster, "/unreserve", &agent, "resources", &value);
        assert!(
            [400, 409].contains(&answer.status),
            "{number}: {}",
            answer.text()
        );
    }
    refused(&mut framework, &disk, has_volume);
    let offer = offer_where(&mut framework, "the volume still", has_volume);
    let operations = json!([
        {"type": "DESTROY", "destroy": {"volumes": [data]}},
        {"type": "UNRESERVE", "unreserve": {"resources": [disk]}},
    ]);
    operate(&framework, &offer, operations);
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == json!({})).then_some(())
    });
}
