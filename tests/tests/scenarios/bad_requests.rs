//! First mistakes of clients: the right status, a clear message, and nothing lost or changed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::http::{self, Answer};
use meseta_tests::{Cluster, Encoding, Framework};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        bodies_that_are_broken_deep_or_huge,
        ids_that_would_be_paths,
        amounts_that_are_no_amounts,
        offers_that_are_not_there,
        a_task_that_asks_for_more_than_the_offer;
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// What must not change by a refused request: the counts in `/state` and the answer of `/health`.
fn facts(cluster: &Cluster) -> Value {
    let state = cluster.master.page("/state").json();
    let count = |key: &str| state[key].as_array().map_or(0, Vec::len);
    cluster.master.page("/health");
    cluster.agent().page("/health");
    json!({"frameworks": count("frameworks"), "completed": count("completed_frameworks"),
           "slaves": count("slaves"), "id": state["id"]})
}

fn refused(answer: &Answer, status: u16, words: &[&str]) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

fn bodies_that_are_broken_deep_or_huge() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    for url in [
        cluster.scheduler_url(),
        format!("{}/api/v1", cluster.master.url),
        format!("{}/api/v1", cluster.agent().url),
    ] {
        refused(
            &http::post(&url, &[JSON], br#"{"type": "SUBSCR"#),
            400,
            &["JSON"],
        );
        let deep = format!("{}{}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
        refused(&http::post(&url, &[JSON], deep.as_bytes()), 400, &[]);
        let lists = "[".repeat(10_000);
        refused(&http::post(&url, &[JSON], lists.as_bytes()), 400, &[]);
        refused(
            &http::post(&url, &[JSON], br#"{"type": "NO_SUCH_CALL"}"#),
            400,
            &["type"],
        );
        refused(&http::post(&url, &[JSON], b"[]"), 400, &[]);
        let binary = ("content-type", "application/x-protobuf");
        refused(
            &http::post(&url, &[binary], &[0xff; 64]),
            400,
            &["protobuf"],
        );
        refused(
            &http::post(&url, &[binary], &nested_protobuf(10_000)),
            400,
            &[],
        );
        huge(&url);
    }
    assert_eq!(facts(&cluster), before);
}

/// A message in a message in a message, each in field 1.
fn nested_protobuf(depth: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..depth {
        let mut outer = vec![0x0a];
        let mut length = bytes.len();
        while length >= 0x80 {
            outer.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        outer.push(u8::try_from(length).expect("seven bits"));
        outer.append(&mut bytes);
        bytes = outer;
    }
    bytes
}

/// 100 MB: refused with 413, if the sender listens; cut off, if it does not.
fn huge(url: &str) {
    let address = url
        .trim_start_matches("http://")
        .split('/')
        .next()
        .expect("an address");
    let path = &url[url.find("/api").expect("a path")..];
    let mut stream = TcpStream::connect(address).expect("connected");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the head is sent");
    let chunk = vec![b' '; 1 << 16];
    let sent = (0..100_000_000 / chunk.len())
        .take_while(|_| stream.write_all(&chunk).is_ok())
        .count();
    let mut answer = String::new();
    // A reset instead of an answer is fair to one who did not listen.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let _ = stream.read_to_string(&mut answer);
    let whole = sent == 100_000_000 / chunk.len();
    assert!(
        answer.starts_with("HTTP/1.1 413") || (!whole && answer.is_empty()),
        "{answer}"
    );
    let modest = http::try_post(
        url,
        &[JSON, ("expect", "100-continue")],
        &vec![b' '; 40 << 20],
    );
    if let Ok(answer) = modest {
        refused(&answer, 413, &["larger than"]);
    }
}

/// Launches one task that the master must refuse, and gives its last update.
fn refused_task(framework: &mut Framework, change: impl FnOnce(&mut Value)) -> Value {
    let offer = framework.offer();
    let mut info = task(&offer, "bad", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    change(&mut info);
    let id = info["task_id"]["value"].as_str().expect("an id").to_owned();
    framework.launch(&offer, &[info]);
    let status = framework.update(&id);
    assert_eq!(status["state"], "TASK_ERROR", "{status:#}");
    assert_eq!(status["reason"], "REASON_TASK_INVALID", "{status:#}");
    assert!(
        status["message"].as_str().is_some_and(|m| m.len() > 10),
        "{status:#}"
    );
    status
}

fn ids_that_would_be_paths() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let before = facts(&cluster);
    let long = "x".repeat(300);
    for id in [
        "a/b",
        "..",
        ".",
        "a\nb",
        "a\u{0}b",
        "",
        long.as_str(),
        "back\\slash",
    ] {
        let status = refused_task(&mut framework, |info| info["task_id"]["value"] = json!(id));
        assert!(status.get("uuid").is_none(), "{status}");
    }
    assert_eq!(facts(&cluster), before);
    assert_eq!(cluster.master.page("/tasks").json()["tasks"], json!([]));
}

fn amounts_that_are_no_amounts() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    for amount in [json!(-1.0), json!("Infinity"), json!(1e300), json!(0.0001)] {
        refused_task(&mut framework, |info| {
            info["resources"][0]["scalar"]["value"] = amount.clone();
        });
    }
    not_a_number(&cluster, &mut framework);
    let offer = framework.offer();
    framework.launch_task(&offer, "good", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    framework.until_state("good", "TASK_FINISHED");
}

/// JSON has no NaN, so the call is refused as a whole; in protobuf it gets as far as the task.
fn not_a_number(cluster: &Cluster, framework: &mut Framework) {
    const MARK: f64 = 12_345.678;
    let offer = framework.offer();
    let info = task(&offer, "nan", "true", &[("cpus", MARK), ("mem", 32.0)]);
    let call = json!({"type": "ACCEPT", "framework_id": {"value": framework.id}, "accept": {
        "offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": [info]}}]}});
    let stream = ("mesos-stream-id", framework.stream_id.as_str());
    let url = cluster.scheduler_url();
    let text = call.to_string().replace(&MARK.to_string(), "\"NaN\"");
    refused(
        &http::post(&url, &[JSON, stream], text.as_bytes()),
        400,
        &["NaN", "value"],
    );
    let mut bytes = Encoding::Protobuf.encode(&call);
    let at = bytes
        .windows(8)
        .position(|w| w == MARK.to_le_bytes())
        .expect("the mark");
    bytes[at..at + 8].copy_from_slice(&f64::NAN.to_le_bytes());
    let binary = ("content-type", "application/x-protobuf");
    let answer = http::post(&url, &[binary, stream], &bytes);
    assert_eq!(answer.status, 202, "{}", answer.text());
    let status = framework.update("nan");
    assert_eq!(status["state"], "TASK_ERROR", "{status:#}");
}

fn offers_that_are_not_there() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let mut offer = framework.offer();
    let real = offer["id"].clone();
    offer["id"] = json!({"value": "no-such-offer"});
    framework.launch_task(&offer, "t1", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    let status = framework.update("t1");
    assert_eq!(status["state"], "TASK_DROPPED");
    assert_eq!(status["reason"], "REASON_INVALID_OFFERS");
    assert!(
        status["message"]
            .as_str()
            .is_some_and(|m| m.contains("no-such-offer")),
        "{status}"
    );
    // The real one still stands.
    offer["id"] = real;
    framework.launch_task(&offer, "t2", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    framework.until_state("t2", "TASK_FINISHED");
}

fn a_task_that_asks_for_more_than_the_offer() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let status = refused_task(&mut framework, |info| {
        info["resources"][0]["scalar"]["value"] = json!(1000.0)
    });
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.contains("is more than available") && message.contains("1000"),
        "{message}"
    );
    // Nothing of the offer was lost by it.
    let offer = framework.offer();
    assert_eq!(
        offer["resources"].as_array().map(Vec::len),
        Some(4),
        "{offer}"
    );
}
