//! Tests of bad input on every endpoint that the master describes: the documented status, a helpful message, and no change.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use meseta_proto::mesos::v1::{agent, master};
use meseta_tests::daemon::Daemon;
use meseta_tests::raw::{Head, Raw};
use meseta_tests::{Cluster, http};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        wrong_method_names_allowed_methods,
        invalid_bodies_are_refused,
        oversized_bodies_are_refused,
        invalid_parameters_are_refused,
        refuses_calls_without_their_parts;
}

/// A path and its description.
struct Described {
    path: String,
    operations: serde_json::Map<String, Value>,
}

impl Described {
    fn takes(&self, method: &str) -> bool {
        self.operations.contains_key(&method.to_lowercase())
    }
}

fn described(cluster: &Cluster) -> Vec<Described> {
    let page = cluster.master.page("/openapi.json").json();
    let paths = page["paths"].as_object().expect("paths").clone();
    assert!(paths.len() > 25, "all endpoints: {}", paths.len());
    let described = paths.into_iter().map(|(path, operations)| Described {
        path: path.replace("{role}", "nosuch"),
        operations: operations.as_object().expect("operations").clone(),
    });
    described.collect()
}

/// Returns the facts that a refused request must not change.
fn facts(cluster: &Cluster) -> Value {
    let page = |path: &str| cluster.master.page(path).json();
    let slaves = page("/slaves");
    let slave = &slaves["slaves"][0];
    json!({
        "quota": page("/quota"), "weights": page("/weights"), "schedule": page("/maintenance/schedule"),
        "status": page("/maintenance/status"), "resources": slave["unreserved_resources_full"],
        "reserved": slave["reserved_resources_full"], "deactivated": slave["deactivated"],
        "frameworks": page("/frameworks")["frameworks"].as_array().map(Vec::len),
    })
}

/// Sends one request to the master; see [`send_to`].
fn send(
    cluster: &Cluster,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (Head, String) {
    send_to(&cluster.master, method, path, headers, body)
}

/// Sends one request on its own connection; the body may be anything.
pub(crate) fn send_to(
    daemon: &Daemon,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (Head, String) {
    let mut raw = Raw::connect(daemon.address());
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for header in headers {
        head += header;
        head += "\r\n";
    }
    head += "\r\n";
    raw.send(&[head.as_bytes(), body].concat());
    let head = raw.head();
    if head.header("transfer-encoding").is_some() {
        return (head, String::new());
    }
    let length = head.header("content-length").unwrap_or("0");
    let mut text = vec![0; length.parse().expect("a length")];
    raw.read_exact(&mut text);
    (head, String::from_utf8_lossy(&text).into_owned())
}

fn wrong_method_names_allowed_methods() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    for described in described(&cluster) {
        let path = &described.path;
        // A read-only page answers GET, HEAD and POST alike.
        let only_reads = described.operations.keys().all(|method| method == "get");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let taken = described.takes(method) || (only_reads && method == "POST");
            // These are one endpoint, described as two paths; and Prometheus only sends GET.
            if taken || path.starts_with("/quota") || path == "/metrics" {
                continue;
            }
            let (head, text) = send(&cluster, method, path, &[], b"");
            assert_eq!(head.status, 405, "{method} {path}: {text}");
            let allow = head.header("allow").expect("what is allowed");
            assert!(!allow.contains(method), "{method} {path}: {allow}");
            assert!(text.contains("Expecting one of"), "{method} {path}: {text}");
        }
    }
    for path in ["/quota", "/master/quota/x", "/metrics"] {
        let (head, _) = send(&cluster, "PATCH", path, &[], b"");
        assert_eq!(head.status, 405, "{path}");
    }
    assert_eq!(facts(&cluster), before);
}

/// Returns invalid replacements for a list or an object.
pub(crate) fn nonsense() -> Vec<Vec<u8>> {
    let deep = |open: &str, close: &str| {
        format!("{}{}", open.repeat(20_000), close.repeat(20_000)).into_bytes()
    };
    let mut all: Vec<Vec<u8>> = [
        "",
        "{",
        "[",
        "x",
        "\"x\"",
        "1",
        "null",
        "true",
        "[1]",
        "[[]]",
        "[{}]",
        "{,}",
        "[{}",
        "{\"role\": }",
        "{} {}",
        "{\"a\": 1e999}",
        "=&=",
        "%%%",
        "\u{0}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    all.extend([
        deep("[", "]"),
        deep("{\"a\":", "}"),
        vec![0xff; 64],
        b"{\"role\": \"\xff\xfe\"}".to_vec(),
    ]);
    all
}

fn invalid_bodies_are_refused() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    for described in described(&cluster) {
        let path = &described.path;
        let with_body = described
            .operations
            .iter()
            .filter(|(_, one)| one.get("requestBody").is_some());
        for (method, _) in with_body {
            let method = method.to_uppercase();
            for kind in [
                "application/json",
                "application/x-www-form-urlencoded",
                "text/html",
                "",
            ] {
                let header = format!("Content-Type: {kind}");
                let headers: Vec<&str> = [header.as_str()]
                    .into_iter()
                    .filter(|_| !kind.is_empty())
                    .collect();
                for body in nonsense() {
                    let (head, text) = send(&cluster, &method, path, &headers, &body);
                    let shown: String = String::from_utf8_lossy(&body).chars().take(40).collect();
                    let what = format!("{method} {path} {shown:?}: {} {text:?}", head.status);
                    assert_eq!(head.status, 400, "{what}");
                    assert!(text.len() > 20, "it says why: {what}");
                    assert!(text.len() < 10_000, "it does not repeat everything: {what}");
                }
            }
        }
    }
    assert_eq!(facts(&cluster), before);
}

/// Sends 100 MB, announced or in chunks.
fn oversized_bodies_are_refused() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    for described in described(&cluster) {
        for (method, one) in &described.operations {
            if one.get("requestBody").is_none() {
                continue;
            }
            let (method, path) = (method.to_uppercase(), &described.path);
            let mut raw = Raw::connect(cluster.master.address());
            raw.send(
                format!(
                    "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n["
                )
                .as_bytes(),
            );
            let head = raw.head();
            assert_eq!(head.status, 413, "{method} {path}");
            assert!(
                chunked(&cluster.master, &method, path),
                "{method} {path} in chunks"
            );
        }
    }
    assert_eq!(facts(&cluster), before);
}

/// Sends chunks until it is refused; returns whether it was.
pub(crate) fn chunked(daemon: &Daemon, method: &str, path: &str) -> bool {
    let mut stream = TcpStream::connect(daemon.address()).expect("connected");
    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the head is sent");
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
    let refused_at = (0..1_600).position(|_| stream.write_all(&chunk).is_err());
    let mut answer = String::new();
    // A reset instead of an answer is fair to a client that does not read.
    let _ = stream.read_to_string(&mut answer);
    answer.starts_with("HTTP/1.1 413") || (answer.is_empty() && refused_at.is_some())
}

fn invalid_parameters_are_refused() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    let long = "x".repeat(7_000);
    let texts = [
        "",
        "x",
        "-5",
        "99999999999999999999",
        "1.5",
        "%00",
        "%zz",
        "%ff%fe",
        "../..",
        "a&a=b",
        &long,
    ];
    for described in described(&cluster) {
        let Some(get) = described.operations.get("get") else {
            continue;
        };
        for parameter in get["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] != "query" {
                continue;
            }
            let name = parameter["name"].as_str().expect("a name");
            for text in texts {
                let path = format!("{}?{name}={text}", described.path);
                let (head, answer) = send(&cluster, "GET", &path, &[], b"");
                let is_number = parameter["schema"]["type"] == "integer";
                let allowed: &[u16] = match (is_number, text) {
                    (true, "x" | "" | "1.5" | "99999999999999999999" | "%zz") => &[400],
                    _ => &[200, 400, 404],
                };
                let shown: String = path.chars().take(80).collect();
                assert!(
                    allowed.contains(&head.status),
                    "{shown}: {} {answer}",
                    head.status
                );
            }
        }
    }
    assert_eq!(facts(&cluster), before);
}

/// Every call of both operator APIs comes without its required part, with an empty one, and with one of another type.
fn refuses_calls_without_their_parts() {
    let cluster = Cluster::default();
    let before = facts(&cluster);
    let of_master =
        (1..64).filter_map(|kind| Some(master::call::Type::try_from(kind).ok()?.as_str_name()));
    let of_agent =
        (1..64).filter_map(|kind| Some(agent::call::Type::try_from(kind).ok()?.as_str_name()));
    for (url, names) in [
        (&cluster.master.url, of_master.collect::<Vec<_>>()),
        (&cluster.agent().url, of_agent.collect()),
    ] {
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            let field = name.to_lowercase();
            // A stream has no end; questions need no part, and have a response.
            if name == "SUBSCRIBE" {
                continue;
            }
            let asks = name.starts_with("GET_");
            for part in [
                Value::Null,
                json!("x"),
                json!([]),
                json!([1]),
                json!({}),
                json!({"agent_id": 5}),
            ] {
                if asks && !part.is_string() {
                    continue;
                }
                let body = json!({"type": name, field.as_str(): part});
                let answer = http::post_json(&format!("{url}/api/v1"), &body);
                let what = format!("{body}: {} {}", answer.status, answer.text());
                // Lists may be empty, and an agent names the operations that it does not support.
                let allowed: &[u16] = match (name, part.is_object()) {
                    ("UPDATE_QUOTA" | "UPDATE_WEIGHTS", true) => &[200, 400],
                    // These are the codes of Mesos.
                    ("ATTACH_CONTAINER_OUTPUT", _) => &[400, 500],
                    ("PRUNE_IMAGES" | "MARK_RESOURCE_PROVIDER_GONE", _) => &[200, 400, 501],
                    (_, _) if name.ends_with("RESOURCE_PROVIDER_CONFIG") => &[400, 501],
                    _ if asks => &[200, 400],
                    _ => &[400, 404, 415, 501],
                };
                assert!(allowed.contains(&answer.status), "{what}");
            }
        }
    }
    assert_eq!(facts(&cluster), before);
}
