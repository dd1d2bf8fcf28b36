//! Reservations of operators by the v1 API; the forms of the document are in `seed_reservations`.

use meseta_tests::wait;
use serde_json::{Value, json};

use super::{LIMIT, cluster, dynamic, is, reserved_full, sum, volume_of};

pub(super) fn operators_reserve_by_the_v1_api() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = json!({"value": cluster.agent_id()});
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
        let answer = cluster.operate(kind, &body);
        assert_eq!(answer.status, 202, "{kind}: {}", answer.text());
    }
    let full = reserved_full(&cluster, "dev", 2);
    assert!(
        is(sum(&full, "disk", |one| one.get("disk").is_some()), 80.0),
        "{full}"
    );
    let answer = cluster.operate(
        "DESTROY_VOLUMES",
        &json!({"agent_id": agent, "volumes": [volume_of(dynamic("disk", 80.0, "dev"), "v1")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let answer = cluster.operate(
        "UNRESERVE_RESOURCES",
        &json!({"agent_id": agent, "resources": [dynamic("disk", 96.0, "dev")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let missing = cluster.operate("GROW_VOLUME", &Value::Null);
    assert_eq!(missing.status, 400);
    assert!(
        missing
            .text()
            .contains("Expecting 'grow_volume' to be present")
    );
    wait::eventually("no operation is left", LIMIT, || {
        let answer = cluster.operate("GET_OPERATIONS", &Value::Null).json();
        let left = answer["get_operations"]["operations"]
            .as_array()
            .map_or(0, Vec::len);
        (left == 0).then_some(())
    });
}
