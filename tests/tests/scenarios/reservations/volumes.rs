//! Tests of volumes: written, kept over the daemons' ends, resized, destroyed.

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Framework, wait};
use serde_json::{Value, json};

use super::{
    LIMIT, cluster, dynamic, is, offer_where, operate, reserved_full, sum, volume_dir, volume_of,
};

/// Runs a command with the volume until it has finished. An offer may have been rescinded meanwhile: then tries another
/// one.
fn run_with(framework: &mut Framework, mut offer: Value, id: &str, command: &str, volume: &Value) {
    for attempt in 0..10 {
        let id = format!("{id}{attempt}");
        let mut info = task(&offer, &id, command, &[("cpus", 0.1), ("mem", 32.0)]);
        let resources = info["resources"].as_array_mut().expect("resources");
        resources.push(volume.clone());
        framework.launch(&offer, &[info]);
        loop {
            let status = framework.update(&id);
            framework.acknowledge(&status);
            match status["state"].as_str().unwrap_or_default() {
                "TASK_FINISHED" => return,
                "TASK_STARTING" | "TASK_RUNNING" => {}
                "TASK_DROPPED" => break,
                other => panic!("{id} is {other}: {status:#}"),
            }
        }
        offer = offer_with_volume(framework);
    }
    panic!("{id} is dropped again and again");
}

/// Starts a framework with a volume `v` of 64 MB, and returns it with an offer that contains the volume.
fn with_volume(cluster: &Cluster) -> (Framework, Value, Value) {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v");
    let operations = json!([
        {"type": "RESERVE", "reserve": {"resources": [disk]}},
        {"type": "CREATE", "create": {"volumes": [data]}},
    ]);
    operate(&framework, &offer, operations);
    let offer = offer_with_volume(&mut framework);
    (framework, offer, data)
}

/// Returns an offer of all resources, including the volume.
fn offer_with_volume(framework: &mut Framework) -> Value {
    offer_where(framework, "the volume and cpus", |offer| {
        let is_volume = |one: &Value| one["disk"]["persistence"]["id"] == "v";
        sum(&offer["resources"], "disk", is_volume) > 1.0
            && sum(&offer["resources"], "cpus", |_| true) > 1.0
    })
}

pub(super) fn volume_survives_tasks_and_daemons() {
    let mut cluster = cluster("cpus:4;mem:1024;disk:1024");
    let (mut framework, offer, data) = with_volume(&cluster);
    let write = "echo treasure > data/file && test -s data/file";
    run_with(&mut framework, offer, "writes", write, &data);
    let dir = volume_dir(&cluster, "dev", "v");
    let on_disk = || std::fs::read_to_string(dir.join("file")).unwrap_or_default();
    assert_eq!(on_disk(), "treasure\n");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let offer = offer_with_volume(&mut framework);
    let read = "test \"$(cat data/file)\" = treasure && echo more >> data/file";
    run_with(&mut framework, offer, "reads", read, &data);
    cluster.restart_master();
    cluster.wait_for_agents(1);
    let mut info = framework_info("dev");
    info["id"] = json!({"value": framework.id});
    let mut framework = cluster.subscribe(&info);
    let offer = offer_with_volume(&mut framework);
    assert_eq!(on_disk(), "treasure\nmore\n");
    let operations = json!([{"type": "DESTROY", "destroy": {"volumes": [data]}}]);
    operate(&framework, &offer, operations);
    wait::eventually("the data is gone", LIMIT, || (!dir.exists()).then_some(()));
    let full = reserved_full(&cluster, "dev", 1);
    assert!(
        full[0].get("disk").is_none(),
        "only the reservation is left: {full}"
    );
}

pub(super) fn resized_volume_keeps_its_data() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let (mut framework, offer, data) = with_volume(&cluster);
    run_with(
        &mut framework,
        offer,
        "writes",
        "echo kept > data/file",
        &data,
    );
    let offer = offer_with_volume(&mut framework);
    let more = dynamic("disk", 32.0, "dev");
    let operations = json!([
        {"type": "RESERVE", "reserve": {"resources": [more]}},
        {"type": "GROW_VOLUME", "grow_volume": {"volume": data, "addition": more}},
    ]);
    operate(&framework, &offer, operations);
    let big = |one: &Value| one["disk"]["persistence"]["id"] == "v";
    let offer = offer_where(&mut framework, "a volume of 96 MB", |offer| {
        is(sum(&offer["resources"], "disk", big), 96.0)
    });
    let grown = volume_of(dynamic("disk", 96.0, "dev"), "v");
    let operations = json!([{"type": "SHRINK_VOLUME",
        "shrink_volume": {"volume": grown, "subtract": {"value": 80.0}}}]);
    operate(&framework, &offer, operations);
    offer_where(&mut framework, "a volume of 16 MB", |offer| {
        is(sum(&offer["resources"], "disk", big), 16.0)
    });
    reserved_full(&cluster, "dev", 2);
    let kept = std::fs::read_to_string(volume_dir(&cluster, "dev", "v").join("file"));
    assert_eq!(kept.unwrap_or_default(), "kept\n");
}
