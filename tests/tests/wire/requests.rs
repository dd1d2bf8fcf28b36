//! Requests over a plain socket, as each API's tests send them.

use meseta_tests::Cluster;
use meseta_tests::raw::{Head, Raw};
use serde_json::{Value, json};

pub(crate) const JSON: &str = "Content-Type: application/json";
pub(crate) const API: &str = "POST /api/v1/scheduler";

pub(crate) fn exchange(address: &str, line: &str, headers: &[&str], body: &str) -> (Head, String) {
    let mut raw = Raw::connect(address);
    raw.request(line, headers, body);
    raw.answer()
}

/// Returns a SUBSCRIBE of this framework, with its id if it has one.
pub(crate) fn subscribe_call(info: &Value) -> String {
    let mut call = json!({"type": "SUBSCRIBE", "subscribe": {"framework_info": info}});
    if let Some(id) = info.get("id") {
        call["framework_id"] = id.clone();
    }
    call.to_string()
}

/// Opens a stream with these headers, and reads its head.
pub(crate) fn stream(cluster: &Cluster, headers: &[&str], call: &str) -> (Raw, Head) {
    let mut raw = Raw::connect(cluster.master.address());
    raw.request(API, headers, call);
    let head = raw.head();
    assert_eq!(head.status, 200, "{call}");
    (raw, head)
}

/// Sends a request whose body comes in chunks of this size.
pub(crate) fn send_in_chunks(raw: &mut Raw, line: &str, body: &str, bytes: usize) {
    let mut text = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for part in body.as_bytes().chunks(bytes) {
        text += &format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part));
    }
    raw.send((text + "0\r\n\r\n").as_bytes());
}
