//! Tests of bad input on every endpoint of the agent's reference, as `every_endpoint` does for the master's.

use meseta_tests::raw::Raw;
use meseta_tests::{Cluster, Framework, http};
use serde_json::{Value, json};

use crate::anywhere;
use crate::every_endpoint::{chunked, nonsense, send_to};

meseta_tests::scenarios! {
    anywhere:
        wrong_method_names_allowed_methods,
        invalid_parameters_are_refused,
        invalid_bodies_are_refused,
        oversized_bodies_are_refused,
        refuse_calls_about_nobody;
}

/// Returns the paths to read, and those to post to, from `docs/endpoints.md`; a test of the agent compares that page with
/// the code.
fn endpoints() -> (Vec<&'static str>, Vec<&'static str>) {
    let page = include_str!("../../../docs/endpoints.md");
    let of_agent = page.split("## Agent").nth(1).expect("a part");
    let of_agent = of_agent.split("\n## ").next().expect("a part");
    let rows = of_agent
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let (read, posted): (Vec<_>, Vec<_>) = rows.partition(|(_, rest)| rest.starts_with("read"));
    let path = |(path, _): (&'static str, &str)| path;
    assert!(read.len() >= 10 && posted.len() >= 2, "{read:?} {posted:?}");
    (
        read.into_iter().map(path).collect(),
        posted.into_iter().map(path).collect(),
    )
}

/// Starts a cluster whose agent runs a task, so that there is something to change; the framework stays, as its tasks end
/// some time after it.
fn busy() -> (Cluster, Framework) {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    framework.run_task(&offer, "t1", "sleep 1000", &[("cpus", 0.1), ("mem", 32.0)]);
    (cluster, framework)
}

/// Returns the facts that a refused request must not change.
fn facts(cluster: &Cluster) -> Value {
    let state = cluster.agent().page("/state").json();
    assert_eq!(cluster.agent().page("/health").status, 200);
    json!({"resources": state["resources"], "frameworks": state["frameworks"], "id": state["id"],
           "flags": state["flags"]})
}

fn wrong_method_names_allowed_methods() {
    let (cluster, _framework) = busy();
    let before = facts(&cluster);
    let (read, posted) = endpoints();
    for (paths, taken) in [(read, &["GET", "HEAD", "POST"][..]), (posted, &["POST"])] {
        for path in paths {
            for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
                for path in [path.to_owned(), format!("/slave(1){path}/")] {
                    let (head, text) = send_to(cluster.agent(), method, &path, &[], b"");
                    if taken.contains(&method) {
                        assert_ne!(head.status, 405, "{method} {path}: {text}");
                        continue;
                    }
                    assert_eq!(head.status, 405, "{method} {path}: {text}");
                    let allow = head.header("allow").expect("what is allowed");
                    assert_eq!(allow, taken.join(", "), "{method} {path}");
                    assert!(text.contains("Expecting one of"), "{method} {path}: {text}");
                }
            }
        }
    }
    assert_eq!(facts(&cluster), before);
}

fn invalid_parameters_are_refused() {
    let (cluster, _framework) = busy();
    let before = facts(&cluster);
    let agent = cluster.agent();
    let get = |path: &str| {
        let (head, text) = send_to(agent, "GET", path, &[], b"");
        (head.status, text)
    };
    let sandbox = before["frameworks"][0]["executors"][0]["directory"]
        .as_str()
        .expect("a sandbox");
    let missing = "Expecting 'path=value' in query.\n";
    for path in ["browse", "read", "download"] {
        for query in ["", "?path=", "?offset=1", "?PATH=x"] {
            let asked = get(&format!("/files/{path}{query}"));
            assert_eq!(asked, (400, missing.to_owned()), "{path}{query}");
        }
        for nowhere in ["nosuch", "/etc/passwd", "../../etc", "%00", "%ff%fe"] {
            let asked = get(&format!("/files/{path}?path={nowhere}"));
            assert_eq!(asked.0, 404, "{path} {nowhere}: {}", asked.1);
        }
    }
    let directory = get(&format!("/files/read?path={sandbox}"));
    assert_eq!(directory, (400, "Cannot read a directory.\n".to_owned()));
    let file = get(&format!("/files/browse?path={sandbox}/stdout"));
    assert_eq!(file.0, 400, "{}", file.1);
    for (query, word) in [
        ("offset=x", "offset"),
        ("offset=-2", "-2"),
        ("offset=1.5", "1.5"),
        ("offset=99999999999999999999", "offset"),
        ("offset=0&length=x", "length"),
        ("offset=0&length=-7", "-7"),
    ] {
        let (status, text) = get(&format!("/files/read?path={sandbox}/stdout&{query}"));
        assert_eq!(status, 400, "{query}: {text}");
        assert!(text.contains(word), "{query}: {text}");
    }
    // The first value of a repeated parameter counts, as everywhere.
    let twice = get(&format!("/files/browse?path={sandbox}&path=nosuch"));
    assert_eq!(twice.0, 200, "{}", twice.1);
    assert_eq!(
        get("/containers?container_id=nosuch"),
        (200, "[]".to_owned())
    );
    let (status, text) = get("/metrics/snapshot?timeout=soon");
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("'soon'"), "{text}");
    let (status, text) = get(&format!("/state?jsonp={}", "x".repeat(300)));
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("256 bytes"), "{text}");
    let (status, text) = get(&format!("/state?jsonp={}", "x".repeat(9_000)));
    assert_eq!(status, 414, "{text}");
    assert!(text.contains("8192 bytes"), "{text}");
    assert_eq!(facts(&cluster), before);
}

fn invalid_bodies_are_refused() {
    let (cluster, _framework) = busy();
    let before = facts(&cluster);
    let (_, posted) = endpoints();
    for path in posted {
        for body in nonsense() {
            let shown: String = String::from_utf8_lossy(&body).chars().take(40).collect();
            for (kind, status) in [
                ("application/json", 400),
                ("application/x-protobuf", 400),
                ("application/x-www-form-urlencoded", 415),
                ("text/html", 415),
            ] {
                let header = format!("Content-Type: {kind}");
                let (head, text) = send_to(cluster.agent(), "POST", path, &[&header], &body);
                let what = format!("{path} {kind} {shown:?}: {} {text:?}", head.status);
                assert_eq!(head.status, status, "{what}");
                assert!(text.len() > 20, "it says why: {what}");
                assert!(text.len() < 10_000, "it does not repeat everything: {what}");
            }
            let (head, text) = send_to(cluster.agent(), "POST", path, &[], &body);
            assert_eq!(head.status, 400, "{path} without a type: {text}");
            assert!(text.contains("Content-Type"), "{path}: {text}");
        }
    }
    assert_eq!(facts(&cluster), before);
}

/// Sends 100 MB, announced or in chunks.
fn oversized_bodies_are_refused() {
    let (cluster, _framework) = busy();
    let before = facts(&cluster);
    let (_, posted) = endpoints();
    for path in posted {
        let mut raw = Raw::connect(cluster.agent().address());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: \
             100000000\r\n\r\n["
        );
        raw.send(head.as_bytes());
        assert_eq!(raw.head().status, 413, "{path}");
        assert!(chunked(cluster.agent(), "POST", path), "{path} in chunks");
    }
    assert_eq!(facts(&cluster), before);
}

/// Calls about unknown objects: the part, the code, and words of the answer. The recordings contain those of the master's
/// API, and the verbs of `command_line` make them.
const ABOUT_NOBODY: &str = r#"
LIST_FILES | {"path": "/nosuch"} | 404 | ''
READ_FILE | {"path": "/nosuch", "offset": 0} | 404 | ''
WAIT_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
KILL_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
REMOVE_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
WAIT_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
KILL_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
REMOVE_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
LAUNCH_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | nosuch"#;

fn refuse_calls_about_nobody() {
    let cluster = Cluster::default();
    let url = format!("{}/api/v1", cluster.agent().url);
    for row in ABOUT_NOBODY.trim().lines() {
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        let [name, part, status, words] = cells[..] else {
            panic!("four cells: {row}");
        };
        let part: Value = serde_json::from_str(part).expect("JSON");
        let body = json!({"type": name, name.to_lowercase().as_str(): part});
        let answer = http::post_json(&url, &body);
        let text = answer.text();
        assert_eq!(answer.status.to_string(), status, "{body}: {text}");
        assert!(text.contains(words.trim_matches('\'')), "{body}: {text}");
    }
}
