//! What the Mesos command line does for `task exec` and `task attach`, request by request.

use base64::Engine as _;
use meseta_tests::{Cluster, http, unless_root};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_root:
        task_exec_and_attach_as_the_mesos_cli;
}

/// The records of an answer, as their lengths say.
fn records(mut body: &[u8]) -> Vec<Value> {
    let mut records = Vec::new();
    while let Some(end) = body.iter().position(|byte| *byte == b'\n') {
        let length = std::str::from_utf8(&body[..end]).expect("a length");
        let length: usize = length.parse().expect("a length");
        let record = &body[end + 1..end + 1 + length];
        records.push(serde_json::from_slice(record).expect("JSON"));
        body = &body[end + 1 + length..];
    }
    records
}

/// What was printed to a stream, or shown.
fn printed(records: &[Value], kind: &str) -> String {
    let mut all = Vec::new();
    for record in records {
        assert_eq!(record["type"], "DATA", "{record}");
        if record["data"]["type"] == kind {
            let data = record["data"]["data"].as_str().unwrap_or_default();
            let data = base64::engine::general_purpose::STANDARD.decode(data);
            all.extend(data.expect("base64"));
        }
    }
    String::from_utf8(all).expect("text")
}

fn task_exec_and_attach_as_the_mesos_cli() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let command = "echo made > marker; exec sleep 1000";
    framework.run_task(&offer, "t", command, &[("cpus", 0.1), ("mem", 32.0)]);

    let tasks = cluster.master.page("/tasks?task_id=t").json();
    let found = &tasks["tasks"][0];
    assert_eq!(found["state"], "TASK_RUNNING");
    let parent = found["statuses"][0]["container_status"]["container_id"].clone();
    let slaves = cluster.master.page("/slaves").json();
    let slaves = slaves["slaves"].as_array().expect("agents");
    let agent = slaves.iter().find(|one| one["id"] == found["slave_id"]);
    let pid = agent.expect("its agent")["pid"].as_str().expect("a pid");
    let (_, address) = pid.split_once('@').expect("an address");
    let url = format!("http://{address}/api/v1");

    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/recordio"),
        ("message-accept", "application/json"),
    ];
    let launch = |name: &str, command: Value, container: Value| {
        let mut launch = json!({
            "container_id": {"value": name, "parent": parent},
            "command": command,
        });
        if !container.is_null() {
            launch["container"] = container;
        }
        let body = json!({"type": "LAUNCH_NESTED_CONTAINER_SESSION",
            "launch_nested_container_session": launch});
        let answer = http::post(&url, &headers, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/recordio"));
        assert_eq!(
            answer.header("message-content-type"),
            Some("application/json")
        );
        records(&answer.body)
    };
    let argv = json!({"value": "sh", "shell": false,
        "arguments": ["sh", "-c", "until test -s marker; do sleep 0.05; done; cat marker; echo wrong >&2; exit 3"]});
    let seen = launch("plain", argv, Value::Null);
    assert_eq!(printed(&seen, "STDOUT"), "made\n");
    assert_eq!(printed(&seen, "STDERR"), "wrong\n");
    let wait = |name: &str| {
        let body = json!({"type": "WAIT_CONTAINER", "wait_container": {
            "container_id": {"value": name, "parent": parent}}});
        http::post_json(&url, &body).json()["wait_container"]["exit_status"].clone()
    };
    assert_eq!(wait("plain"), 3 << 8);
    // With -t: both streams are one, and lines end as terminals end them.
    let argv = json!({"value": "sh", "shell": false,
        "arguments": ["sh", "-c", "stty size; echo wrong >&2"]});
    let terminal = json!({"type": "MESOS",
        "tty_info": {"window_size": {"rows": 40, "columns": 120}}});
    let seen = launch("terminal", argv, terminal);
    assert_eq!(printed(&seen, "STDOUT"), "40 120\r\nwrong\r\n");
    assert_eq!(printed(&seen, "STDERR"), "");
    assert_eq!(wait("terminal"), 0);

    let attach = json!({"type": "ATTACH_CONTAINER_OUTPUT",
        "attach_container_output": {"container_id": parent}});
    let answer = http::post(&url, &headers, attach.to_string().as_bytes());
    assert_eq!(answer.status, 500);
    assert_eq!(
        answer.text(),
        "I/O switchboard server was disabled for this container"
    );
}
