//! Rules of the wire beyond the scheduler API, on which command lines, web pages and operators' clients rely.
//!
//! As in `scheduler`, each is checked to the byte over a plain socket.

use meseta_tests::Cluster;
use meseta_tests::raw::{Head, Raw};
use serde_json::{Value, json};

use crate::anywhere;
use crate::requests::{JSON, exchange, send_in_chunks};

meseta_tests::scenarios! {
    anywhere:
        single_answers_say_their_length,
        operators_may_send_chunks_too,
        every_page_comes_as_jsonp,
        streaming_headers_belong_to_streams;
}

/// Returns the requests for the master, and then those for the agent.
fn on_both<'a>(
    cluster: &'a Cluster,
    of_master: &'a str,
    of_agent: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let ask = |address, asked: &'a str| asked.split_whitespace().map(move |one| (address, one));
    ask(cluster.master.address(), of_master).chain(ask(cluster.agent().address(), of_agent))
}

fn single_answers_say_their_length() {
    let cluster = Cluster::default();
    let of_master = "GET_HEALTH GET_FLAGS GET_VERSION GET_STATE GET_AGENTS GET_FRAMEWORKS GET_EXECUTORS \
        GET_OPERATIONS GET_TASKS GET_ROLES GET_WEIGHTS GET_MASTER GET_MAINTENANCE_STATUS \
        GET_MAINTENANCE_SCHEDULE GET_QUOTA";
    let of_agent = "GET_HEALTH GET_FLAGS GET_VERSION GET_STATE GET_CONTAINERS GET_FRAMEWORKS \
        GET_EXECUTORS GET_TASKS GET_AGENT";
    for (address, kind) in on_both(&cluster, of_master, of_agent) {
        for media in ["application/json", "application/x-protobuf"] {
            let mut raw = Raw::connect(address);
            let accept = format!("Accept: {media}");
            let call = json!({"type": kind}).to_string();
            raw.request("POST /api/v1", &[JSON, &accept], &call);
            let head = raw.head();
            assert_eq!(head.status, 200, "{kind}");
            assert_eq!(head.header("content-type"), Some(media), "{kind}");
            let length = head.header("content-length");
            assert!(
                length.is_some_and(|length| length != "0"),
                "{kind}: {head:?}"
            );
        }
    }
}

/// Sends a request whose body comes in small chunks.
fn in_chunks(address: &str, line: &str, body: &str) -> (Head, String) {
    let mut raw = Raw::connect(address);
    send_in_chunks(&mut raw, line, body, 5);
    raw.answer()
}

fn operators_may_send_chunks_too() {
    let cluster = Cluster::default();
    let health = r#"{"type": "GET_HEALTH"}"#;
    for address in [cluster.master.address(), cluster.agent().address()] {
        let (head, text) = in_chunks(address, "POST /api/v1", health);
        assert_eq!((head.status, text.contains("true")), (200, true), "{text}");
    }
    let weights = r#"[{"role": "wire", "weight": 3.5}]"#;
    let (head, text) = in_chunks(cluster.master.address(), "PUT /weights", weights);
    assert_eq!((head.status, text.as_str()), (200, ""));
    assert_eq!(head.header("content-type"), None);
    assert_eq!(head.header("content-length"), Some("0"));
    let weights = cluster.master.page("/weights").json();
    assert_eq!(weights[0]["weight"], 3.5, "{weights}");
}

fn every_page_comes_as_jsonp() {
    let cluster = Cluster::default();
    let of_master = "/state /state-summary /slaves /frameworks /tasks /roles /version /flags /quota \
        /weights /maintenance/schedule /maintenance/status /metrics/snapshot /master/state";
    let of_agent = "/state /slave(1)/state /slave(1)/monitor/statistics /monitor/statistics \
        /metrics/snapshot /version";
    for (address, path) in on_both(&cluster, of_master, of_agent) {
        let mut raw = Raw::connect(address);
        let line = format!("GET {path}?jsonp=a.back");
        raw.request(&line, &["Connection: close"], "");
        let head = raw.head();
        assert_eq!(head.status, 200, "{path}");
        assert_eq!(
            head.header("content-type"),
            Some("text/javascript"),
            "{path}"
        );
        let mut text = String::new();
        match head.header("content-length") {
            Some(_) => text = raw.rest(),
            None => {
                while let Some(chunk) = raw.chunk() {
                    text += &String::from_utf8_lossy(&chunk);
                }
            }
        }
        let inner = text
            .strip_prefix("a.back(")
            .and_then(|text| text.strip_suffix(')'));
        let inner = inner.unwrap_or_else(|| panic!("{path}: {text}"));
        assert!(
            serde_json::from_str::<Value>(inner).is_ok(),
            "{path}: {inner}"
        );
    }
}

fn streaming_headers_belong_to_streams() {
    let cluster = Cluster::default();
    let health = r#"{"type": "GET_HEALTH"}"#;
    let sent: [(&[&str], u16); 5] = [
        (&[JSON, "Message-Accept: application/json"], 406),
        (&[JSON, "Message-Content-Type: application/json"], 415),
        (&["Content-Type: application/recordio"], 400),
        (&[JSON, "Accept: text/html"], 406),
        (&["Content-Type: text/plain"], 415),
    ];
    for (headers, status) in sent {
        let (head, text) = exchange(cluster.agent().address(), "POST /api/v1", headers, health);
        assert_eq!(head.status, status, "{headers:?}: {text}");
    }
}
