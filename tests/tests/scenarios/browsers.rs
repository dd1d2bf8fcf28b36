//! The effects of a page in an operator's browser on a daemon: none, unless it is the daemon's own page.
//!
//! Each request is sent byte by byte as a browser or a command-line client sends it, to both daemons.
//! `meseta_access::browser` decides which are rejected; its tests have the whole list.

use meseta_tests::daemon::Daemon;
use meseta_tests::raw::{Head, Raw};
use meseta_tests::{Cluster, Setup};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        foreign_names_are_misdirected,
        foreign_pages_change_nothing,
        browser_get_changes_nothing;
}

/// Sends one request with exactly these header lines.
fn ask(daemon: &Daemon, line: &str, headers: &[&str], body: &str) -> (Head, String) {
    let mut raw = Raw::connect(daemon.address());
    let mut text = format!("{line} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    for header in headers {
        text += header;
        text += "\r\n";
    }
    raw.send(format!("{text}\r\n{body}").as_bytes());
    let head = raw.head();
    if head.header("transfer-encoding").is_some() {
        return (head, String::new());
    }
    let length = head.header("content-length").unwrap_or("0");
    let mut body = vec![0; length.parse().expect("a length")];
    raw.read_exact(&mut body);
    (head, String::from_utf8_lossy(&body).into_owned())
}

/// Starts daemons behind a proxy of this name, which pages of this origin may use.
fn behind_a_proxy() -> Cluster {
    let flags = [
        "--allowed_hosts=proxy.example",
        "--allowed_origins=https://page.example",
    ]
    .map(str::to_owned);
    let mut setup = Setup::default();
    setup.master_flags.extend(flags.clone());
    setup.agent_flags.extend(flags);
    Cluster::start(setup)
}

/// A foreign page whose name is pointed here gets the answer for the wrong server.
fn foreign_names_are_misdirected() {
    let cluster = behind_a_proxy();
    let hostname = nix::unistd::gethostname().expect("a host name");
    let hostname = hostname.to_string_lossy().into_owned();
    for daemon in [&cluster.master, cluster.agent()] {
        let port = daemon.address().rsplit(':').next().expect("a port");
        for (host, status) in [
            (daemon.address().to_owned(), 200),
            (format!("{hostname}:{port}"), 200),
            ("proxy.example".to_owned(), 200),
            (format!("rebound.example:{port}"), 421),
        ] {
            for line in ["GET /state", "GET /health", "POST /api/v1"] {
                let (head, text) = ask(daemon, line, &[&format!("Host: {host}")], "");
                if status == 421 {
                    assert_eq!(head.status, 421, "{line} for {host}: {text}");
                    assert!(text.contains("--allowed_hosts"), "{text}");
                    assert!(!text.contains("frameworks"), "{text}");
                } else {
                    assert_ne!(head.status, 421, "{line} for {host}: {text}");
                    assert_ne!(head.status, 403, "{line} for {host}: {text}");
                }
            }
        }
        // The target of the request counts too, whichever of the two a reader would use.
        let target = format!("GET http://rebound.example:{port}/state");
        let (head, _) = ask(daemon, &target, &["Host: localhost"], "");
        assert_eq!(head.status, 421);
    }
}

const SCHEDULE: &str = r#"{"windows":[]}"#;
const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";
const TEXT: &str = "Content-Type: text/plain;charset=UTF-8";

/// Sends changes as another site's page does, and as a command-line client does.
fn foreign_pages_change_nothing() {
    let cluster = behind_a_proxy();
    let master = &cluster.master;
    let host = format!("Host: {}", master.address());
    let own = format!("Origin: http://{}", master.address());
    let plain: &[(&[&str], u16)] = &[
        // These are `curl -d`, `curl -H ... -d`, and a client without a body type.
        (&[FORM], 200),
        (&[JSON], 200),
        (&[], 200),
        // Only a form of a page sends this type.
        (&[TEXT], 415),
        // The pages are one of the master's own, an allowed one, and a foreign one.
        (&[JSON, &own], 200),
        (&[JSON, "Origin: https://page.example"], 200),
        (&[FORM, "Origin: http://evil.example"], 403),
        (&[JSON, "Sec-Fetch-Site: cross-site"], 403),
        (&[FORM, "Referer: http://evil.example/page"], 403),
    ];
    for (headers, status) in plain {
        let all: Vec<&str> = [host.as_str()].iter().chain(*headers).copied().collect();
        let (head, text) = ask(master, "POST /maintenance/schedule", &all, SCHEDULE);
        assert_eq!(head.status, *status, "{headers:?}: {text}");
        match status {
            403 => assert!(text.contains("--allowed_origins"), "{headers:?}: {text}"),
            415 => assert!(text.contains("application/json"), "{headers:?}: {text}"),
            _ => {}
        }
    }
    for line in [
        "POST /teardown",
        "POST /reserve",
        "POST /machine/down",
        "POST /quota",
        "DELETE /quota/x",
        "PUT /weights",
        "POST /api/v1",
        "POST /api/v1/scheduler",
        "POST /state",
        "POST /meseta.v1.Operator/Call",
    ] {
        let foreign = [host.as_str(), FORM, "Origin: http://evil.example"];
        let (head, text) = ask(master, line, &foreign, "a=b");
        if line.contains("meseta.v1") {
            assert_eq!(head.header("grpc-status"), Some("7"), "{line}: {head:?}");
        } else {
            assert_eq!(head.status, 403, "{line}: {text}");
        }
    }
    let agent = cluster.agent();
    let host = format!("Host: {}", agent.address());
    let health = r#"{"type":"GET_HEALTH"}"#;
    for (header, status) in [
        ("X-Nothing: x", 200),
        ("Origin: http://evil.example", 403),
        ("Sec-Fetch-Site: cross-site", 403),
    ] {
        let (head, text) = ask(agent, "POST /api/v1", &[&host, JSON, header], health);
        assert_eq!(head.status, status, "{header}: {text}");
    }
    let executor = [host.as_str(), JSON, "Origin: http://evil.example"];
    let (head, text) = ask(agent, "POST /api/v1/executor", &executor, "{}");
    assert_eq!(head.status, 403, "{text}");
}

/// `/logging/toggle` returns the level by GET, and changes it by POST alone.
fn browser_get_changes_nothing() {
    let cluster = Cluster::default();
    let master = &cluster.master;
    let host = format!("Host: {}", master.address());
    let own = format!("Origin: http://{}", master.address());
    let set = "/logging/toggle?level=1&duration=1secs";
    for (line, header, status) in [
        (format!("GET {set}"), "User-Agent: curl/8.5.0", 405),
        (format!("GET {set}"), "User-Agent: Mozilla/5.0 (X11)", 403),
        (format!("POST {set}"), own.as_str(), 200),
        (format!("POST {set}"), "Origin: http://evil.example", 403),
        (
            "GET /logging/toggle".to_owned(),
            "Sec-Fetch-Site: none",
            200,
        ),
    ] {
        let mut raw = Raw::connect(master.address());
        raw.send(format!("{line} HTTP/1.1\r\n{host}\r\n{header}\r\n\r\n").as_bytes());
        assert_eq!(raw.head().status, status, "{line} {header}");
    }
}
