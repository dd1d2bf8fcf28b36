//! The scheduler's conversation, in both encodings, by one script.

use meseta_tests::framework::{framework_info, uuid_bytes};
use meseta_tests::{Cluster, Encoding, Framework};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        json_task_runs_to_finish,
        protobuf_task_runs_to_finish,
        unread_subscriber_loses_its_offers;
}

fn json_task_runs_to_finish() {
    conversation(Encoding::Json);
}

fn protobuf_task_runs_to_finish() {
    conversation(Encoding::Protobuf);
}

fn conversation(encoding: Encoding) {
    let cluster = Cluster::default();
    let mut framework =
        Framework::subscribe(&cluster.scheduler_url(), encoding, &framework_info("dev"));
    assert_eq!(
        framework.subscribed["subscribed"]["heartbeat_interval_seconds"],
        15.0
    );
    framework.wait_for("HEARTBEAT");
    let offer = framework.offer();
    assert_eq!(offer["allocation_info"]["role"], "dev");
    assert_eq!(amount(&offer, "cpus"), 4.0);
    framework.launch_task(&offer, "t1", "exit 0", &[("cpus", 1.5), ("mem", 100.0)]);
    let mut states = Vec::new();
    let mut uuids = Vec::new();
    while states.last().is_none_or(|s| s != "TASK_FINISHED") {
        let status = framework.update("t1");
        assert_eq!(status["agent_id"], offer["agent_id"]);
        assert_eq!(status["executor_id"]["value"], "t1");
        let network = &status["container_status"]["network_infos"][0];
        assert!(
            network["ip_addresses"][0]["ip_address"].is_string(),
            "{status}"
        );
        assert!(
            status["timestamp"].as_f64().is_some_and(|t| t > 1.7e9),
            "{status}"
        );
        uuids.push(uuid_bytes(&status));
        states.push(status["state"].as_str().expect("a state").to_owned());
        framework.acknowledge(&status);
    }
    assert_eq!(states, ["TASK_STARTING", "TASK_RUNNING", "TASK_FINISHED"]);
    uuids.dedup();
    assert!(
        uuids.len() == 3 && uuids.iter().all(|u| u.len() == 16),
        "{uuids:?}"
    );
    // The task's resources come back, and the rest of the offer with them.
    let mut whole = framework.offer();
    while amount(&whole, "cpus") != 4.0 {
        framework.decline(&whole, 0.0);
        whole = framework.offer();
    }
    framework.decline(&whole, 0.0);
    framework.teardown();
}

fn amount(offer: &Value, name: &str) -> f64 {
    let resources = offer["resources"].as_array().expect("resources");
    let of_name = resources.iter().filter(|r| r["name"] == name);
    of_name
        .map(|r| r["scalar"]["value"].as_f64().expect("a number"))
        .sum()
}

/// Events accumulate for a subscriber that does not read; once it is given up, its offers go to others.
fn unread_subscriber_loses_its_offers() {
    use std::io::{Read as _, Write as _};
    let cluster = Cluster::default();
    let url = cluster.scheduler_url();
    let mut info = framework_info("dev");
    info["failover_timeout"] = json!(600.0);
    let body = json!({"type": "SUBSCRIBE", "subscribe": {"framework_info": info}}).to_string();
    let mut stream = std::net::TcpStream::connect(cluster.master.address()).expect("connected");
    let head = format!(
        "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    // The response's head and first events are read, and no later data.
    let mut first = String::new();
    while !first.contains("OFFERS") {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("an answer");
        assert!(count > 0, "closed: {first}");
        first += &String::from_utf8_lossy(&bytes[..count]);
    }
    let after = |text: &str, mark: &str, end: &str| {
        let rest = text.split(mark).nth(1).expect("the mark");
        rest.split(end).next().expect("the end").to_owned()
    };
    let stream_id = after(&first.to_lowercase(), "mesos-stream-id: ", "\r\n");
    let id = after(&first, "\"framework_id\":{\"value\":\"", "\"");
    // Responses of reconciliation wait for their reader; the ends of tasks that could not be launched do not.
    let tasks: Vec<_> = (0..10_000)
        .map(|n| {
            json!({"name": "none", "task_id": {"value": format!("task-{n}")},
            "agent_id": {"value": "no-such-agent"}})
        })
        .collect();
    let call = json!({"type": "ACCEPT", "framework_id": {"value": id}, "accept": {
        "offer_ids": [{"value": "no-such-offer"}],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": tasks}}]}});
    let headers = [
        ("content-type", "application/json"),
        ("mesos-stream-id", stream_id.as_str()),
    ];
    // The number of calls depends on the machine, and on the capacity of its sockets.
    let refused = (0..200).find_map(|_| {
        let answer = meseta_tests::http::post(&url, &headers, call.to_string().as_bytes());
        (answer.status != 202).then_some(answer.status)
    });
    assert_eq!(refused, Some(403), "it is not subscribed any more");
    let mut other = Framework::subscribe(&url, Encoding::Json, &framework_info("dev"));
    assert_eq!(amount(&other.offer(), "cpus"), 4.0);
    drop(stream);
}
