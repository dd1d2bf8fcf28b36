//! What operators reserve: the document's requests, what is refused, and the same by the v1 API.

use meseta_tests::{Cluster, http, wait};
use serde_json::{Value, json};

use super::{
    LIMIT, agent_id, cluster, dynamic, is, post_form, reserved_full, scalar, sum, volume_of,
};

/// The operators' part of the document, its placeholders filled and its commas corrected.
pub(super) fn operators_reserve_as_documented() {
    let cluster = cluster("cpus:12;mem:6144;disk:1024");
    let agent = agent_id(&cluster);
    let document = |cpus: f64, mem: f64, comma: &str| {
        format!(
            r#"[
              {{
                "name": "cpus", "type": "SCALAR", "scalar": {{ "value": {cpus} }},
                "reservations": [
                  {{ "type": "DYNAMIC", "role": "ads", "principal": "ops"{comma} }}
                ]
              }},
              {{
                "name": "mem", "type": "SCALAR", "scalar": {{ "value": {mem} }},
                "reservations": [
                  {{ "type": "DYNAMIC", "role": "ads", "principal": "ops"{comma} }}
                ]
              }}
            ]"#
        )
    };
    let post = |path: &str, name: &str, value: &str| post_form(&cluster, path, &agent, name, value);
    let raw = post("/master/reserve", "resources", &document(8.0, 4096.0, ","));
    assert_eq!(raw.status, 400, "as printed it has a comma too many");
    assert!(raw.text().contains("line 5"), "{}", raw.text());
    let answer = post("/master/reserve", "resources", &document(8.0, 4096.0, ""));
    assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    let full = reserved_full(&cluster, "ads", 2);
    assert!(is(sum(&full, "cpus", |_| true), 8.0), "{full}");
    assert_eq!(full[0]["reservation"]["principal"], "ops");
    let roles = cluster.master.page("/roles").json();
    let ads = roles["roles"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|role| role["name"] == "ads");
    assert_eq!(
        ads.map(|role| role["reserved"].clone()),
        Some(json!({"cpus": 8.0, "mem": 4096.0}))
    );
    // A part, too much, the rest.
    assert_eq!(
        post("/unreserve", "resources", &document(3.0, 96.0, "")).status,
        202
    );
    let full = reserved_full(&cluster, "ads", 2);
    assert!(is(sum(&full, "cpus", |_| true), 5.0), "{full}");
    let answer = post("/unreserve", "resources", &document(6.0, 4000.0, ""));
    assert_eq!(answer.status, 409);
    assert!(
        answer
            .text()
            .ends_with("does not contain cpus(reservations: [(DYNAMIC,ads,ops)]):6"),
        "{}",
        answer.text()
    );
    assert_eq!(
        post("/unreserve", "resources", &document(5.0, 4000.0, "")).status,
        202
    );
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == json!({})).then_some(())
    });
    refusals(&cluster, &agent);
}

/// What is refused, with which code, and that nothing changes by it.
fn refusals(cluster: &Cluster, agent: &str) {
    let before = cluster.agent().page("/state").json()["resources"].clone();
    let one = json!([dynamic("cpus", 1.0, "ads")]).to_string();
    let plain = json!([scalar("cpus", 1.0)]).to_string();
    let star = json!([dynamic("cpus", 1.0, "*")]).to_string();
    let much = json!([dynamic("cpus", 13.0, "ads")]).to_string();
    let free = json!([volume_of(scalar("disk", 64.0), "v")]).to_string();
    for (path, id, name, value, status, text) in [
        (
            "/reserve",
            "nosuch",
            "resources",
            &*one,
            400,
            "No agent found with specified ID",
        ),
        (
            "/reserve",
            agent,
            "nothing",
            &*one,
            400,
            "Missing 'resources' query parameter",
        ),
        (
            "/reserve",
            agent,
            "resources",
            "x",
            400,
            "Error parsing 'resources'",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*plain,
            400,
            "is not dynamically reserved",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*star,
            400,
            "role \"*\" cannot be reserved",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*much,
            409,
            "does not contain cpus:13",
        ),
        (
            "/reserve",
            agent,
            "resources",
            "[]",
            400,
            "Invalid resources",
        ),
        (
            "/unreserve",
            agent,
            "resources",
            &*plain,
            400,
            "is not dynamically reserved",
        ),
        (
            "/unreserve",
            agent,
            "resources",
            &*one,
            409,
            "does not contain",
        ),
        (
            "/create-volumes",
            agent,
            "volumes",
            &*free,
            400,
            "unreserved resources",
        ),
        (
            "/create-volumes",
            agent,
            "resources",
            &*free,
            400,
            "Missing 'volumes'",
        ),
        (
            "/destroy-volumes",
            agent,
            "volumes",
            &*free,
            400,
            "unreserved resources",
        ),
    ] {
        let answer = post_form(cluster, path, id, name, value);
        assert_eq!(answer.status, status, "{path} {value}: {}", answer.text());
        assert!(
            answer.text().contains(text),
            "{path} {value}: {}",
            answer.text()
        );
    }
    let answer = http::get(&format!("{}/reserve", cluster.master.url));
    assert_eq!(answer.status, 405);
    assert_eq!(cluster.agent().page("/state").json()["resources"], before);
}

pub(super) fn operators_reserve_by_the_v1_api() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = json!({"value": agent_id(&cluster)});
    let url = format!("{}/api/v1", cluster.master.url);
    let call = |kind: &str, body: Value| {
        let mut call = json!({"type": kind});
        call[kind.to_lowercase()] = body;
        http::post_json(&url, &call)
    };
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v1");
    let grown = volume_of(dynamic("disk", 96.0, "dev"), "v1");
    for (kind, body) in [
        (
            "RESERVE_RESOURCES",
            json!({"agent_id": agent, "resources": [disk, dynamic("disk", 32.0, "dev")]}),
        ),
        (
            "CREATE_VOLUMES",
            json!({"agent_id": agent, "volumes": [data]}),
        ),
        (
            "GROW_VOLUME",
            json!({"agent_id": agent, "volume": data, "addition": dynamic("disk", 32.0, "dev")}),
        ),
        (
            "SHRINK_VOLUME",
            json!({"agent_id": agent, "volume": grown, "subtract": {"value": 16.0}}),
        ),
    ] {
        let answer = call(kind, body);
        assert_eq!(answer.status, 202, "{kind}: {}", answer.text());
    }
    let full = reserved_full(&cluster, "dev", 2);
    assert!(
        is(sum(&full, "disk", |one| one.get("disk").is_some()), 80.0),
        "{full}"
    );
    let answer = call(
        "DESTROY_VOLUMES",
        json!({"agent_id": agent, "volumes": [volume_of(dynamic("disk", 80.0, "dev"), "v1")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let answer = call(
        "UNRESERVE_RESOURCES",
        json!({"agent_id": agent, "resources": [dynamic("disk", 96.0, "dev")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let missing = http::post_json(&url, &json!({"type": "GROW_VOLUME"}));
    assert_eq!(missing.status, 400);
    assert!(
        missing
            .text()
            .contains("Expecting 'grow_volume' to be present")
    );
    wait::eventually("no operation is left", LIMIT, || {
        let answer = http::post_json(&url, &json!({"type": "GET_OPERATIONS"})).json();
        let left = answer["get_operations"]["operations"]
            .as_array()
            .map_or(0, Vec::len);
        (left == 0).then_some(())
    });
}
