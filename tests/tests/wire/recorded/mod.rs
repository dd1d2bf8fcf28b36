//! Exchanges with a genuine Mesos, sent again: the same codes, texts, headers and keys.
//!
//! This file has those of operators; `scheduler`, `executor`, `agent`, `inverse_offers` and `pages` have the others.

pub(crate) mod agent;
pub(crate) mod executor;
pub(crate) mod inverse_offers;
pub(crate) mod pages;
pub(crate) mod scheduler;

use std::path::Path;
use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::raw::{Head, Raw};
use meseta_tests::{Cluster, Encoding, Framework, Setup, http, recording, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        quota_is_answered_as_recorded = || operators("operator-quota.jsonl"),
        weights_are_answered_as_recorded = || operators("operator-weights.jsonl"),
        reservations_are_answered_as_recorded = || operators("operator-reserve.jsonl"),
        maintenance_is_answered_as_recorded = || operators("operator-maintenance.jsonl"),
        errors_are_answered_as_recorded = || operators("operator-errors.jsonl"),
        agent_errors_match_recording,
        files_are_answered_as_recorded,
        every_metric_recorded_is_there;
}

/// The time for an agent's work before an answer matches the recording.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts the recorded cluster.
pub(crate) fn cluster() -> Cluster {
    Cluster::start(Setup {
        master_flags: vec!["--quota_semantics=head".into()],
        agent_flags: vec![
            "--hostname=127.0.0.1".into(),
            "--resources=cpus:8;mem:8192;disk:10240;ports:[31000-32000]".into(),
        ],
        ..Setup::default()
    })
}

fn operators(file: &str) {
    replay(&cluster(), file, &[]);
}

/// Sends the recorded requests again, with our names in place of theirs.
pub(crate) fn replay(cluster: &Cluster, file: &str, names: &[(&str, &str)]) {
    let agent = cluster.agent_id();
    let ours = |text: &str| {
        let text = text
            .replace("<ADDRESS>", cluster.agent().address())
            .replace("<MASTER>", cluster.master.address())
            .replace("<AGENT>", &agent);
        names
            .iter()
            .fold(text, |text, (theirs, ours)| text.replace(theirs, ours))
    };
    for (number, line) in recording::text(file).lines().enumerate() {
        let exchange: Value = serde_json::from_str(&ours(line)).expect("JSON");
        let what = format!("{file}:{}: {exchange:#}", number + 1);
        let to = if exchange["to"] == "agent" {
            cluster.agent().address()
        } else {
            cluster.master.address()
        };
        let request = exchange["request"].as_str().expect("a request");
        if request.starts_with("HEAD ") {
            // Mesos refuses the request even if the endpoint can change state; see docs/departures.md.
            assert_eq!(send(to, &exchange).0.status, 200, "{what}");
        } else if request.starts_with("GET ") {
            let mut last = String::new();
            let agrees = wait::holds(LIMIT, || {
                let difference = difference(&exchange, &send(to, &exchange));
                last = difference.unwrap_or_default();
                last.is_empty()
            });
            assert!(agrees, "{last}\n{what}");
        } else if let Some(difference) = difference(&exchange, &send(to, &exchange)) {
            panic!("{difference}\n{what}");
        }
    }
}

/// Starts a cluster in which the recorded task runs.
fn with_task() -> (Cluster, Framework) {
    let cluster = cluster();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let command = "pwd; env > environment; exec sleep 600";
    let small = [("cpus", 0.5), ("mem", 64.0)];
    framework.run_task(&offer, "task-1", command, &small);
    (cluster, framework)
}

fn agent_errors_match_recording() {
    let (cluster, framework) = with_task();
    let names = [("<FRAMEWORK>", framework.id.as_str())];
    replay(&cluster, "agent-errors.jsonl", &names);
}

fn files_are_answered_as_recorded() {
    let (cluster, framework) = with_task();
    let names = [("<FRAMEWORK>", framework.id.as_str())];
    replay(&cluster, "agent-files.jsonl", &names);
    let shown = cluster.agent().page("/files/debug").json();
    let latest = format!("/frameworks/{}/executors/task-1/runs/latest", framework.id);
    let place = shown[latest].as_str();
    assert!(
        place.is_some_and(|place| Path::new(place).is_dir()),
        "{shown}"
    );
}

fn every_metric_recorded_is_there() {
    let cluster = Cluster::default();
    let mut info = framework_info("dev");
    info["name"] = "golden".into();
    let url = cluster.scheduler_url();
    let mut framework = Framework::subscribe(&url, Encoding::Json, &info);
    let offer = framework.offer();
    framework.run_task(&offer, "t1", "sleep 60", &[("cpus", 0.1), ("mem", 32.0)]);
    let text = recording::text("master-metrics.txt");
    let expected = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expected: Vec<String> = expected
        .map(|key| key.replace("<FRAMEWORK>", &framework.id))
        .collect();
    let shown = cluster.master.page("/metrics/snapshot").json();
    let missing: Vec<_> = expected
        .iter()
        .filter(|key| !shown[key.as_str()].is_number())
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let of_framework =
        |key: &str| shown[format!("master/frameworks/golden/{}/{key}", framework.id)].clone();
    assert_eq!(of_framework("subscribed"), 1.0);
    assert_eq!(of_framework("calls/accept"), 1.0);
    assert_eq!(of_framework("events/subscribed"), 1.0);
    assert_eq!(of_framework("operations/launch"), 1.0);
    assert_eq!(of_framework("tasks/active/task_running"), 1.0);
    assert_eq!(of_framework("offers/accepted"), 1.0);
    let v1 = cluster.operate("GET_METRICS", &json!({})).json();
    let named = v1["get_metrics"]["metrics"].as_array().expect("metrics");
    assert!(
        named.len() >= expected.len(),
        "{} of {}",
        named.len(),
        expected.len()
    );
    let bad = http::get(&format!(
        "{}/metrics/snapshot?timeout=soon",
        cluster.master.url
    ));
    assert_eq!(bad.status, 400, "{}", bad.text());
}

fn send(address: &str, exchange: &Value) -> (Head, String) {
    let mut raw = Raw::connect(address);
    let mut headers: Vec<String> = vec!["Connection: close".into()];
    if let Some(kind) = exchange["content_type"].as_str() {
        headers.push(format!("Content-Type: {kind}"));
    }
    let more = exchange["headers"].as_array().into_iter().flatten();
    headers.extend(more.map(|header| header.as_str().expect("a header").to_owned()));
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let request = exchange["request"].as_str().expect("a request");
    raw.request(
        request,
        &headers,
        exchange["body"].as_str().unwrap_or_default(),
    );
    if request.starts_with("HEAD ") {
        // Meseta sends no body, as HTTP specifies.
        return (raw.head(), String::new());
    }
    raw.answer()
}

/// Returns the relevant difference from the recording, if any.
fn difference(exchange: &Value, (head, body): &(Head, String)) -> Option<String> {
    let status = exchange["status"].as_str().expect("a status");
    if !status.starts_with(&head.status.to_string()) {
        return Some(format!("the code is {}: {body}", head.status));
    }
    for name in ["Allow", "Content-Type", "Content-Disposition", "Location"] {
        let theirs = exchange["response_headers"]
            .get(name)
            .and_then(Value::as_str);
        let found = head.header(&name.to_lowercase());
        if theirs.is_none() && exchange.get("departs").is_some() {
            // A departing answer may have a body where Mesos sends none.
            continue;
        }
        if found != theirs {
            return Some(format!("{name} is {found:?}"));
        }
    }
    let theirs = exchange["response"].as_str().expect("a response");
    let is_compared = exchange.get("departs").is_none()
        && theirs != "(cut)"
        && !exchange["request"]
            .as_str()
            .expect("a request")
            .starts_with("HEAD ");
    if !is_compared {
        return None;
    }
    if exchange["compare"] == "shape" {
        let theirs: Value = serde_json::from_str(theirs).expect("JSON");
        let ours: Value = serde_json::from_str(body).unwrap_or_default();
        return recording::difference(&theirs, &ours, &|_| false);
    }
    let same = match serde_json::from_str::<Value>(theirs) {
        Ok(theirs) if theirs.is_object() || theirs.is_array() => {
            let ours: Value = serde_json::from_str(body).unwrap_or_default();
            essence(ours) == essence(theirs)
        }
        // Our message also names the place.
        _ if theirs.contains("syntax error at line 1") => {
            theirs == body || (body.starts_with(theirs.trim_end()) && body.contains("column"))
        }
        _ if theirs.contains(" does not contain ") => pieces(theirs) == pieces(body),
        _ => theirs == body,
    };
    (!same).then(|| format!("the body is {body}"))
}

/// Removes times, ports and the capabilities of an agent, which are another cluster's; sorts lists, which come out of hash
/// maps.
fn essence(value: Value) -> Value {
    match value {
        Value::Object(all) => {
            let incidental = |key: &str| {
                [
                    "registered_time",
                    "reregistered_time",
                    "capabilities",
                    "version",
                    "agent_info",
                ]
                .contains(&key)
                    || key == "port"
                    || key.starts_with("estimated_drain_start_time")
            };
            let kept = all.into_iter().filter(|(key, _)| !incidental(key));
            Value::Object(kept.map(|(key, one)| (key, essence(one))).collect())
        }
        Value::Array(all) => {
            let mut all: Vec<Value> = all.into_iter().map(essence).collect();
            all.sort_by_key(ToString::to_string);
            Value::Array(all)
        }
        other => other,
    }
}

/// Parses a list of resources in a sentence, in any order.
fn pieces(text: &str) -> (Vec<&str>, &str) {
    let (available, expected) = text.split_once(" does not contain ").unwrap_or_default();
    let mut available: Vec<&str> = available.split("; ").collect();
    available.sort_unstable();
    (available, expected)
}
