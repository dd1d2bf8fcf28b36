//! The scheduler's conversation, in both encodings, by the same script.

use std::process::Command;
use std::time::Instant;

use meseta_tests::framework::{framework_info, task, uuid_bytes};
use meseta_tests::{Cluster, Encoding, Framework, Missing, unless_installed};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        a_task_from_offer_to_finish_in_json,
        a_task_from_offer_to_finish_in_protobuf;
    unless_curl:
        a_task_from_offer_to_finish_by_curl;
    anywhere:
        an_update_that_is_not_acknowledged_comes_again,
        reconciliation_tells_what_is_and_what_is_not,
        a_subscriber_that_does_not_read_loses_its_offers_to_others,
        attributes_travel_with_offers,
        an_agent_without_cpus_is_not_offered;
}

fn unless_curl() -> Missing {
    unless_installed("curl")
}

fn a_task_from_offer_to_finish_in_json() {
    conversation(Encoding::Json);
}

fn a_task_from_offer_to_finish_in_protobuf() {
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
    // What the task held comes back, and what was left of the offer with it.
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

/// The README's four requests, typed as they stand there.
fn a_task_from_offer_to_finish_by_curl() {
    let cluster = Cluster::default();
    let url = cluster.scheduler_url();
    let headers = cluster.dir.path().join("headers");
    let body = json!({"type": "SUBSCRIBE", "subscribe": {"framework_info": {
        "user": "root", "name": "by hand", "roles": ["dev"], "capabilities": [{"type": "MULTI_ROLE"}]}}});
    let mut stream = Command::new("curl")
        .args(["-sN", "-D"])
        .arg(&headers)
        .args([
            "-H",
            "Content-Type: application/json",
            &url,
            "-d",
            &body.to_string(),
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("curl runs");
    let out = stream.stdout.take().expect("a pipe");
    let mut events = Events {
        reader: std::io::BufReader::new(out),
    };
    let subscribed = events.wait_for("SUBSCRIBED");
    let framework = subscribed["subscribed"]["framework_id"]["value"]
        .as_str()
        .expect("an id")
        .to_owned();
    let text = std::fs::read_to_string(&headers).expect("headers");
    let stream_line = text
        .lines()
        .find(|l| l.to_lowercase().starts_with("mesos-stream-id"))
        .expect("a stream id");
    let call = |mut call: Value| {
        call["framework_id"] = json!({"value": framework});
        let output = Command::new("curl")
            .args([
                "-s",
                "-o",
                "/dev/stderr",
                "-w",
                "%{http_code}",
                "-H",
                "Content-Type: application/json",
            ])
            .args(["-H", stream_line, &url, "-d", &call.to_string()])
            .output()
            .expect("curl runs");
        let code = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(code, "202", "{}", String::from_utf8_lossy(&output.stderr));
    };
    let offers = events.wait_for("OFFERS");
    let offer = &offers["offers"]["offers"][0];
    let info = task(offer, "one", "true", &[("cpus", 0.5), ("mem", 64.0)]);
    call(
        json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": [info]}}]}}),
    );
    loop {
        let status = events.wait_for("UPDATE")["update"]["status"].clone();
        call(json!({"type": "ACKNOWLEDGE", "acknowledge": {
            "agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]}}));
        if status["state"] == "TASK_FINISHED" {
            break;
        }
        assert!(
            ["TASK_STARTING", "TASK_RUNNING"]
                .iter()
                .any(|s| status["state"] == *s),
            "{status}"
        );
    }
    call(json!({"type": "TEARDOWN"}));
    assert!(
        stream.wait().expect("curl ends").success(),
        "the stream ends cleanly at TEARDOWN"
    );
}

/// Records as `curl -N` prints them.
struct Events<R> {
    reader: R,
}

impl<R: std::io::BufRead> Events<R> {
    fn wait_for(&mut self, kind: &str) -> Value {
        loop {
            let mut length = String::new();
            self.reader.read_line(&mut length).expect("a line");
            let length = length
                .trim_end()
                .parse()
                .unwrap_or_else(|_| panic!("no length: {length:?}"));
            let mut record = vec![0; length];
            self.reader.read_exact(&mut record).expect("a record");
            let event: Value = serde_json::from_slice(&record).expect("JSON");
            if event["type"] == kind {
                return event;
            }
        }
    }
}

fn an_update_that_is_not_acknowledged_comes_again() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    framework.launch_task(&offer, "t1", "sleep 600", &[("cpus", 0.1), ("mem", 32.0)]);
    let first = framework.update("t1");
    assert_eq!(first["state"], "TASK_STARTING");
    let start = Instant::now();
    let again = framework.update("t1");
    let took = start.elapsed().as_secs_f64();
    assert_eq!(
        again["uuid"], first["uuid"],
        "the same update, not the next one"
    );
    assert!(
        (9.0..14.0).contains(&took),
        "repeated after {took} s instead of 10"
    );
    framework.acknowledge(&again);
    assert_eq!(framework.update("t1")["state"], "TASK_RUNNING");
}

fn reconciliation_tells_what_is_and_what_is_not() {
    let cluster = Cluster::default();
    let mut framework = Framework::subscribe(
        &cluster.scheduler_url(),
        Encoding::Protobuf,
        &framework_info("dev"),
    );
    let offer = framework.offer();
    framework.run_task(&offer, "t1", "sleep 600", &[("cpus", 0.1), ("mem", 32.0)]);
    framework.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": [
        {"task_id": {"value": "t1"}}, {"task_id": {"value": "nobody"}}]}}));
    let known = framework.update("t1");
    assert_eq!(known["state"], "TASK_RUNNING");
    assert_eq!(known["reason"], "REASON_RECONCILIATION");
    assert!(
        known.get("uuid").is_none(),
        "wants no acknowledgement: {known}"
    );
    let unknown = framework.update("nobody");
    assert_eq!(
        unknown["state"], "TASK_UNKNOWN",
        "this framework is PARTITION_AWARE"
    );
    framework.accepted(json!({"type": "RECONCILE", "reconcile": {}}));
    assert_eq!(framework.update("t1")["reason"], "REASON_RECONCILIATION");
}

/// Events pile up for a subscriber that does not read; once it is given up, what it was offered goes
/// to others.
fn a_subscriber_that_does_not_read_loses_its_offers_to_others() {
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
    // The answer's head and first events; nothing is read after them.
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
    // Answers of reconciliation wait for their reader; the ends of tasks that could not be launched do not.
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
    // How many calls it takes is up to the machine, and to how much its sockets hold.
    let refused = (0..200).find_map(|_| {
        let answer = meseta_tests::http::post(&url, &headers, call.to_string().as_bytes());
        (answer.status != 202).then_some(answer.status)
    });
    assert_eq!(refused, Some(403), "it is not subscribed any more");
    let mut other = Framework::subscribe(&url, Encoding::Json, &framework_info("dev"));
    assert_eq!(amount(&other.offer(), "cpus"), 4.0);
    drop(stream);
}

fn attributes_travel_with_offers() {
    let mut setup = meseta_tests::Setup::default();
    setup
        .agent_flags
        .push("--attributes=rack:r1;zone:a:b;slots:[1-4]".to_owned());
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let names: Vec<_> = offer["attributes"]
        .as_array()
        .expect("attributes")
        .iter()
        .map(|a| &a["name"])
        .collect();
    assert_eq!(names, ["rack", "zone", "slots"]);
    assert_eq!(offer["attributes"][1]["text"]["value"], "a:b");
}

fn an_agent_without_cpus_is_not_offered() {
    let setup = meseta_tests::Setup {
        agents: 2,
        agent_flags: vec!["--resources=cpus:0;mem:1024;disk:10".to_owned()],
        ..meseta_tests::Setup::default()
    };
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    // The first heartbeat follows the subscription at once; three allocation intervals pass by the
    // master's own count before the absence of offers means something.
    framework.wait_for("HEARTBEAT");
    let metrics = || {
        let text = cluster.master.page("/metrics").text();
        let line = text
            .lines()
            .find(|l| l.starts_with("meseta_master_allocator_runs_total"));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .expect("a counter")
    };
    let before = metrics();
    meseta_tests::wait::eventually(
        "the allocator has run",
        std::time::Duration::from_secs(20),
        || (metrics() >= before + 3.0).then_some(()),
    );
    let offered = framework.within(std::time::Duration::ZERO, &|event: &Value| {
        event["type"] == "OFFERS"
    });
    assert!(offered.is_err(), "{offered:?}");
}
