//! What a page in an operator's browser may have a daemon do: nothing, unless it is the daemon's own.
//!
//! Each request is sent to the letter as a browser or a command-line client sends it, to both daemons.

use meseta_tests::Cluster;
use meseta_tests::daemon::Daemon;
use meseta_tests::raw::{Head, Raw};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        foreign_names_are_misdirected,
        foreign_pages_change_nothing,
        a_get_of_a_browser_changes_nothing,
        answers_are_not_for_other_pages,
        operators_name_hosts_and_origins;
}

/// One request with exactly these header lines.
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

/// A page elsewhere whose name is made to point here is told that it asks the wrong server.
fn foreign_names_are_misdirected() {
    let cluster = Cluster::default();
    let hostname = nix::unistd::gethostname().expect("a host name");
    let hostname = hostname.to_string_lossy().into_owned();
    for daemon in [&cluster.master, cluster.agent()] {
        let port = daemon.address().rsplit(':').next().expect("a port");
        for (host, status) in [
            (daemon.address().to_owned(), 200),
            (format!("localhost:{port}"), 200),
            ("LOCALHOST".to_owned(), 200),
            ("127.8.9.1:1".to_owned(), 200),
            ("[::1]:5050".to_owned(), 200),
            ("10.1.2.3".to_owned(), 200),
            (format!("{hostname}:{port}"), 200),
            (format!("rebound.example:{port}"), 421),
            ("localhost.rebound.example".to_owned(), 421),
            ("127.0.0.1.rebound.example".to_owned(), 421),
            ("rebound".to_owned(), 421),
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
        // The target of the request counts as well, whichever a reader would go by.
        let target = format!("GET http://rebound.example:{port}/state");
        let (head, _) = ask(daemon, &target, &["Host: localhost"], "");
        assert_eq!(head.status, 421);
    }
}

const SCHEDULE: &str = r#"{"windows":[]}"#;
const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";
const TEXT: &str = "Content-Type: text/plain;charset=UTF-8";

/// Changes as a page elsewhere sends them, and as a command-line client does.
fn foreign_pages_change_nothing() {
    let cluster = Cluster::default();
    let master = &cluster.master;
    let host = format!("Host: {}", master.address());
    let own = format!("Origin: http://{}", master.address());
    let plain: &[(&[&str], u16)] = &[
        // `curl -d`, `curl -H ... -d`, and a client that says nothing of the body.
        (&[FORM], 200),
        (&[JSON], 200),
        (&[], 200),
        // What only a form of a page sends.
        (&[TEXT], 415),
        (&["Content-Type: text/plain; application/json"], 415),
        (&["Content-Type: multipart/form-data; boundary=x"], 415),
        // A page of the master's own, and one of somebody else's.
        (&[JSON, &own], 200),
        (&[JSON, &own, "Sec-Fetch-Site: same-origin"], 200),
        (&[FORM, "Origin: http://evil.example"], 403),
        (&["Origin: http://evil.example"], 403),
        (&[JSON, "Origin: null"], 403),
        (&[JSON, "Origin: http://127.0.0.1:1"], 403),
        (&[JSON, "Sec-Fetch-Site: cross-site"], 403),
        (&[JSON, "Sec-Fetch-Site: same-site"], 403),
        (&[JSON, &own, "Sec-Fetch-Site: cross-site"], 403),
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

/// `/logging/toggle` tells the level by GET, and changes it by POST alone.
fn a_get_of_a_browser_changes_nothing() {
    let cluster = Cluster::default();
    let master = &cluster.master;
    let host = format!("Host: {}", master.address());
    let own = format!("Origin: http://{}", master.address());
    let set = "/logging/toggle?level=1&duration=1secs";
    for (line, header, status) in [
        (format!("GET {set}"), "User-Agent: curl/8.5.0", 405),
        (format!("GET {set}"), "User-Agent: Mozilla/5.0 (X11)", 403),
        (format!("GET {set}"), "Sec-Fetch-Site: same-origin", 403),
        (format!("GET {set}"), "Sec-Fetch-Site: none", 403),
        (format!("GET {set}"), "Referer: http://evil.example/", 403),
        (format!("HEAD {set}"), "User-Agent: Mozilla/5.0 (X11)", 403),
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

/// No other page reads an answer, no answer is taken for a page.
fn answers_are_not_for_other_pages() {
    let cluster = Cluster::default();
    for daemon in [&cluster.master, cluster.agent()] {
        let host = format!("Host: {}", daemon.address());
        for line in [
            "GET /state",
            "GET /state?jsonp=f",
            "GET /health",
            "GET /nowhere",
            "GET /files/read?path=x",
            "OPTIONS /state",
        ] {
            let origin = "Origin: http://evil.example";
            let (head, _) = ask(daemon, line, &[&host, origin], "");
            assert_eq!(head.header("x-content-type-options"), Some("nosniff"));
            let policy = head.header("cross-origin-resource-policy");
            assert_eq!(policy, Some("same-origin"), "{line}");
            assert_eq!(head.header("access-control-allow-origin"), None, "{line}");
        }
    }
}

/// What operators allow is allowed, and no more.
fn operators_name_hosts_and_origins() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let flags = [
        "--port=0".to_owned(),
        "--allowed_hosts=proxy.example,*.mesos".to_owned(),
        "--allowed_origins=https://page.example,http://proxy.example:8080".to_owned(),
    ];
    let master = Daemon::start("master", &dir.path().join("master"), &flags);
    for (host, status) in [
        ("proxy.example", 200),
        ("PROXY.example.:443", 200),
        ("leader.mesos:5050", 200),
        ("mesos", 421),
        ("other.proxy.example", 421),
        ("proxy.example.evil.example", 421),
    ] {
        let (head, _) = ask(&master, "GET /version", &[&format!("Host: {host}")], "");
        assert_eq!(head.status, status, "{host}");
    }
    let host = format!("Host: {}", master.address());
    for (origin, status) in [
        ("https://page.example", 200),
        ("http://page.example", 403),
        ("https://page.example:444", 403),
        ("http://proxy.example:8080", 200),
    ] {
        let headers = [
            host.as_str(),
            JSON,
            &format!("Origin: {origin}"),
            "Sec-Fetch-Site: cross-site",
        ];
        let (head, _) = ask(&master, "POST /maintenance/schedule", &headers, SCHEDULE);
        assert_eq!(head.status, status, "{origin}");
        let allowed = head.header("access-control-allow-origin");
        assert_eq!(allowed, None, "answers are not for pages elsewhere");
    }
    for flag in ["--allowed_hosts=http://x", "--allowed_origins=page.example"] {
        let work_dir = dir.path().join("refused");
        let said = meseta_tests::daemon::refused("master", &work_dir, &["--port=0", flag]);
        assert!(
            said.contains(flag.split('=').next().expect("a name")),
            "{said}"
        );
    }
}
