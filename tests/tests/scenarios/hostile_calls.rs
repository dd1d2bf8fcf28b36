//! Invalid ids and names, and calls in the name of others: refused or reported, and nothing of them reaches a path, a log
//! line or another framework's task.

use std::time::Duration;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Encoding, Framework, http};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    crate::anywhere:
        invalid_ids_reach_no_path,
        tenant_text_forges_no_log_line,
        foreign_calls_change_nothing;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];

/// Returns the invalid ids that a hostile framework may give a task.
fn bad_ids() -> Vec<String> {
    let mut all: Vec<String> = [
        "",
        "\t",
        ".",
        "..",
        "../../escaped",
        "a/../b",
        "/etc/passwd",
        "a/b",
        "nul\u{0}byte",
        "line\nINFO forged",
        "return\rforged",
        "bell\u{7}",
        "\u{1b}[31mred",
    ]
    .map(str::to_owned)
    .into();
    all.push("x".repeat(256));
    all
}

/// Ids that are odd, but valid.
const ODD_IDS: [&str; 5] = [
    "%2e%2e%2f",
    "rtl\u{202e}txt",
    "zwj\u{200d}x",
    "a:b@c+d=e",
    "ünï",
];

/// Returns the last update of each task of one ACCEPT, or the status of the refused call.
fn launched(framework: &mut Framework, ids: &[String]) -> Result<Vec<Value>, u16> {
    let offer = framework.offer();
    let infos: Vec<_> = ids
        .iter()
        .map(|id| task(&offer, id, "exit 0", SMALL))
        .collect();
    let answer = framework.call(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 0.0},
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": infos}}]}}));
    let bytes = answer.body.len();
    assert!(bytes < 4_096, "it repeats all: {bytes} bytes");
    if answer.status != 202 {
        framework.decline(&offer, 0.0);
        return Err(answer.status);
    }
    let mut ends = Vec::new();
    while ends.len() < ids.len() {
        let is_update = |event: &Value| event["type"] == "UPDATE";
        let event = framework.within(Duration::from_secs(30), &is_update);
        let status = event.expect("an update")["update"]["status"].clone();
        framework.acknowledge(&status);
        let state = status["state"].as_str().unwrap_or_default();
        if !["TASK_STAGING", "TASK_STARTING", "TASK_RUNNING"].contains(&state) {
            ends.push(status);
        }
    }
    Ok(ends)
}

/// Checks that an error names a task without repeating an invalid id.
fn check_error(status: &Value) {
    assert_eq!(status["state"], "TASK_ERROR", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.len() < 4_096, "{} bytes", message.len());
    let is_plain = !message.chars().any(char::is_control);
    assert!(is_plain, "it comes back as it was: {message:?}");
}

fn invalid_ids_reach_no_path() {
    let cluster = Cluster::default();
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let info = framework_info("dev");
        let mut framework = Framework::subscribe(&cluster.scheduler_url(), encoding, &info);
        let bad = launched(&mut framework, &bad_ids()).expect("taken");
        bad.iter().for_each(check_error);
        match launched(&mut framework, &["x".repeat(1 << 20)]) {
            Ok(all) => all.iter().for_each(check_error),
            Err(code) => assert_eq!(code, 400),
        }
        let odd = ODD_IDS.map(str::to_owned);
        for status in launched(&mut framework, &odd).expect("taken") {
            assert_eq!(status["state"], "TASK_FINISHED", "{status:#}");
            let id = status["task_id"]["value"].as_str().unwrap_or_default();
            assert!(ODD_IDS.contains(&id), "{id:?}");
        }
        framework.teardown();
    }
    for daemon in [&cluster.master, cluster.agent()] {
        let log = daemon.log_text();
        assert!(!log.lines().any(|line| line.starts_with("INFO forged")));
        assert!(!log.contains('\u{0}') && !log.contains('\u{7}'));
    }
    let is_escaped = crate::pauses::find(cluster.dir.path(), "escaped").is_some();
    assert!(!is_escaped, "a folder outside its place");
}

/// A forged log line of a tenant.
const FORGED: &str = "x\n2026-11-28T00:00:00.000000Z AUDIT audit: change principal=\"admin\" call=\"FORGED\"\u{9b}2K\u{202e}";
/// The lines of three failed launches and a subscription, without their inputs.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Regression: a message with line feeds made a line of the audit log, and a URI of 1 MB was written in full repeatedly.
fn tenant_text_forges_no_log_line() {
    let cluster = Cluster::default();
    let mut info = framework_info("dev");
    info["name"] = json!(format!("{FORGED}{}", "n".repeat(1 << 19)));
    let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let before: usize = [&cluster.master, cluster.agent()]
        .map(|daemon| daemon.log_text().len())
        .iter()
        .sum();
    let long = format!("http://127.0.0.1:1/{}", "u".repeat(1 << 20));
    for (index, uri) in [long.as_str(), FORGED, &format!("{FORGED}{long}")]
        .iter()
        .enumerate()
    {
        let offer = framework.offer();
        let mut task = task(&offer, &format!("t{index}"), "exit 0", SMALL);
        task["command"]["uris"] = json!([{"value": uri}]);
        task["name"] = json!(FORGED);
        framework.call(json!({"type": "ACCEPT", "accept": {
            "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 0.0},
            "operations": [{"type": "LAUNCH", "launch": {"task_infos": [task]}}],
        }}));
        let ended = framework.within(Duration::from_secs(30), &|event| {
            let state = event["update"]["status"]["state"]
                .as_str()
                .unwrap_or_default();
            ["TASK_FAILED", "TASK_ERROR"].contains(&state)
        });
        let status = ended.expect("it fails")["update"]["status"].clone();
        framework.acknowledge(&status);
    }
    framework.teardown();
    let mut bytes = 0;
    for daemon in [&cluster.master, cluster.agent()] {
        let log = daemon.log_text();
        bytes += log.len();
        for line in log.lines() {
            assert!(line.len() < 4_096, "{} bytes: {}", line.len(), &line[..200]);
            let is_plain = !line
                .chars()
                .any(|letter| letter.is_control() || letter == '\u{202e}');
            assert!(is_plain, "{line:?}");
            let is_audit = line.split(' ').nth(1) == Some("AUDIT");
            assert!(!(is_audit && line.contains("call=\"FORGED\"")), "{line}");
        }
    }
    assert!(
        before < LOG_BYTES_MAX && bytes < LOG_BYTES_MAX,
        "{before}, {bytes} bytes"
    );
    let log = cluster.master.log_text();
    let audited =
        |line: &str| line.split(' ').nth(1) == Some("AUDIT") && line.contains("call=\"SUBSCRIBE\"");
    assert!(log.lines().any(audited), "{log}");
}

/// Returns the calls of a framework about a task and an agent, in any name.
fn calls(agent: &str, executor: &str, uuid: &str) -> Vec<Value> {
    let (task, agent) = (json!({"value": "t"}), json!({"value": agent}));
    let executor = json!({"value": executor});
    vec![
        json!({"type": "KILL", "kill": {"task_id": task, "agent_id": agent}}),
        json!({"type": "SHUTDOWN", "shutdown": {"executor_id": executor, "agent_id": agent}}),
        json!({"type": "ACKNOWLEDGE", "acknowledge": {"task_id": task, "agent_id": agent, "uuid": uuid}}),
        json!({"type": "MESSAGE", "message": {"executor_id": executor, "agent_id": agent, "data": "eA=="}}),
        json!({"type": "TEARDOWN"}),
    ]
}

fn foreign_calls_change_nothing() {
    let cluster = Cluster::default();
    let mut owner = cluster.framework();
    let offer = owner.offer();
    let running = owner.run_task(&offer, "t", "exec sleep 600", SMALL);
    let agent = offer["agent_id"]["value"].as_str().expect("an id");
    let uuid = running["uuid"].as_str().expect("a uuid").to_owned();
    let stranger = cluster.subscribe(&framework_info("dev"));
    let state = || {
        let tasks = cluster.master.page("/tasks").json();
        let task = &tasks["tasks"][0];
        (task["id"].clone(), task["state"].clone())
    };
    let before = state();
    // The framework uses its own name for objects of the other; the last call ends the framework itself.
    let mut of_others = calls(agent, "t", &uuid);
    of_others.pop();
    for call in of_others {
        let answer = stranger.call(call.clone());
        assert!(
            [202, 400, 403].contains(&answer.status),
            "{call}: {}",
            answer.text()
        );
        assert_eq!(state(), before, "{call}");
    }
    let url = cluster.scheduler_url();
    let in_name_of_owner = |mut call: Value, stream: &str| {
        call["framework_id"] = json!({"value": owner.id});
        let headers = [
            ("content-type", "application/json"),
            ("mesos-stream-id", stream),
        ];
        http::post(&url, &headers, call.to_string().as_bytes())
    };
    for call in calls(agent, "t", &uuid) {
        for stream in [
            &stranger.stream_id,
            "",
            "00000000-0000-0000-0000-000000000000",
        ] {
            let answer = in_name_of_owner(call.clone(), stream);
            assert!(
                (400..500).contains(&answer.status),
                "{call}: {}",
                answer.text()
            );
        }
    }
    // Invalid uuids, and unknown agents; on the owner's own stream.
    let long = "A".repeat(2 << 20);
    for uuid in ["", "AA==", "!!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &long] {
        let call = json!({"type": "ACKNOWLEDGE", "acknowledge": {
            "task_id": {"value": "t"}, "agent_id": {"value": agent}, "uuid": uuid}});
        let answer = owner.call(call);
        let shown: String = uuid.chars().take(40).collect();
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        assert!(answer.body.len() < 4_096);
    }
    for call in calls("nobody-S7", "nobody", "AAAAAAAAAAAAAAAAAAAAAA==")
        .iter()
        .take(4)
    {
        let mut call = call.clone();
        if call["type"] == "KILL" {
            call["kill"]["task_id"] = json!({"value": "nobody"});
        }
        let answer = owner.call(call.clone());
        assert!(
            [202, 400].contains(&answer.status),
            "{call}: {}",
            answer.text()
        );
    }
    assert_eq!(state(), before);
    owner.kill("t");
    owner.until_state("t", "TASK_KILLED");
}
