//! Connections that cost a daemon resources without use: none of them excludes others.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_access::basic;
use meseta_tests::call_count::fewest_calls;
use meseta_tests::daemon::Daemon;
use meseta_tests::framework::task;
use meseta_tests::raw::Raw;
use meseta_tests::secure::credentials;
use meseta_tests::{Cluster, Missing, http, unless_installed, unless_root, wait};
use tempfile::TempDir;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        unread_downloads_delay_no_kill,
        trickling_bodies_are_closed,
        guesses_keep_nobody_else_out;
    unless_root:
        request_cost_ignores_other_connections;
    unless_network_namespace:
        silent_connections_block_no_client;
}

fn unless_network_namespace() -> Missing {
    unless_root().or_else(|| unless_installed("ip"))
}

fn status_of(pid: i32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = text.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// Regression: each new connection to an agent examined every descriptor of the agent, so a request took 27 ms with 300
/// containers.
fn request_cost_ignores_other_connections() {
    const CONNECTIONS: usize = 150;
    const TASKS: usize = 8;
    /// A few calls more or less depend on the thread.
    const SLACK: u64 = 12;
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let agent = cluster.agent();
    let master = &cluster.master;
    let pages = ["/health", "/version", "/metrics/snapshot"];
    let asked = [(agent, pages), (master, pages)];
    let count = |(daemon, pages): (&Daemon, [&'static str; 3])| {
        pages.map(|path| {
            let ask = || {
                assert_eq!(
                    http::get(&format!("http://{}{path}", daemon.address())).status,
                    200
                )
            };
            (path, fewest_calls(daemon.pid(), ask))
        })
    };
    let before = asked.map(count);
    let tasks: Vec<_> = (0..TASKS).map(|number| format!("t{number}")).collect();
    let small = [("cpus", 0.05), ("mem", 32.0)];
    let infos: Vec<_> = tasks
        .iter()
        .map(|id| task(&offer, id, "sleep 1000", &small))
        .collect();
    framework.launch(&offer, &infos);
    for id in &tasks {
        framework.until_state(id, "TASK_RUNNING");
    }
    let mut idle: Vec<Raw> = Vec::new();
    for daemon in [agent, master] {
        idle.extend((0..CONNECTIONS).map(|_| {
            let mut raw = Raw::connect(daemon.address());
            raw.request("GET /health", &[], "");
            raw.answer();
            raw
        }));
    }
    let after = asked.map(count);
    for ((path, before), (_, after)) in before
        .into_iter()
        .flatten()
        .zip(after.into_iter().flatten())
    {
        assert!(
            after <= before + SLACK,
            "{path}: {before} calls alone, {after} beside others"
        );
    }
    drop(idle);
}

/// Many readers request a large file and read nothing of it: tasks are launched and killed meanwhile, an active reader gets
/// its file, and the agent keeps little memory for each of the others.
fn unread_downloads_delay_no_kill() {
    const READERS: usize = 600;
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let small = [("cpus", 0.1), ("mem", 32.0)];
    let command = "truncate -s 256M large; printf whole > small; touch made; sleep 1000";
    framework.run_task(&offer, "t1", command, &small);
    let agent = cluster.agent();
    let state = agent.page("/state").json();
    let sandbox = state["frameworks"][0]["executors"][0]["directory"]
        .as_str()
        .expect("a sandbox")
        .to_owned();
    wait::eventually("the files are there", Duration::from_secs(10), || {
        Path::new(&sandbox).join("made").exists().then_some(())
    });
    let before_kib = status_of(agent.pid(), "VmRSS:");
    let stalled: Vec<Raw> = (0..READERS)
        .map(|_| {
            let mut raw = Raw::connect(agent.address());
            let line = format!("GET /files/download?path={sandbox}/large");
            raw.request(&line, &[], "");
            raw
        })
        .collect();
    let url = format!("{}/files/download?path={sandbox}/small", agent.url);
    wait::eventually("a reader who reads", Duration::from_secs(30), || {
        let answer = http::try_get(&url).ok()?;
        (answer.status == 200).then(|| assert_eq!(answer.text(), "whole"))
    });
    let offer = framework.offer();
    framework.run_task(&offer, "t2", "sleep 1000", &small);
    framework.kill("t2");
    framework.until_state("t2", "TASK_KILLED");
    let threads = status_of(agent.pid(), "Threads:");
    // Any thread can open a file quickly; sending to a client that does not read must occupy none.
    assert!(
        threads < READERS as u64 / 2,
        "{threads} threads for {READERS} readers"
    );
    let grown_kib = status_of(agent.pid(), "VmRSS:").saturating_sub(before_kib);
    assert!(
        grown_kib < 96 << 10,
        "{grown_kib} KiB for {READERS} readers"
    );
    drop(stalled);
}

/// An upload that continues after its early answer is cut off.
fn check_that_uploads_are_cut_off(address: &str) {
    let mut stream = TcpStream::connect(address).expect("connected");
    let head = "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 104857600\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 413");
    let chunk = vec![b' '; 65_536];
    let sent = (0..104_857_600 / chunk.len()).try_for_each(|_| stream.write_all(&chunk));
    assert!(sent.is_err(), "all of it was taken");
}

/// A body that never pauses and never ends.
fn trickling_bodies_are_closed() {
    let cluster = Cluster::default();
    check_that_uploads_are_cut_off(cluster.master.address());
    let mut slow: Vec<(String, TcpStream)> = Vec::new();
    for (daemon, paths) in [
        (
            &cluster.master,
            &["/api/v1/scheduler", "/api/v1", "/teardown", "/quota"][..],
        ),
        (cluster.agent(), &["/api/v1", "/api/v1/executor"]),
    ] {
        for path in paths {
            let mut stream = TcpStream::connect(daemon.address()).expect("connected");
            let pause = Some(Duration::from_millis(200));
            stream.set_read_timeout(pause).expect("a timeout");
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 100000\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).expect("sent");
            slow.push((format!("{} {path}", daemon.address()), stream));
        }
    }
    // The loop has no limit for slow machines: a download that takes for ever never ends.
    let began = Instant::now();
    while !slow.is_empty() {
        slow.retain_mut(|(name, stream)| {
            let mut answer = [0; 512];
            let _ = stream.write_all(b" ");
            match std::io::Read::read(stream, &mut answer) {
                Ok(count) => {
                    let text = String::from_utf8_lossy(answer.get(..count).unwrap_or_default());
                    assert!(text.starts_with("HTTP/1.1 408"), "{name}: {text}");
                    assert!(text.contains("KiB a second"), "{name}: {text}");
                    false
                }
                Err(_) => true,
            }
        });
        let took = began.elapsed();
        assert!(took < Duration::from_secs(600), "taken for ever: {slow:?}");
    }
}

fn authorized(raw: &mut Raw, who: (&str, &str)) {
    let header = basic::header(who.0, who.1.as_bytes());
    raw.request("GET /state", &[&format!("Authorization: {header}")], "");
}

/// Guesses come at once from one address: few are checked, and right credentials still pass, those accepted before and
/// those of others.
fn guesses_keep_nobody_else_out() {
    const GUESSES: usize = 250;
    let dir = TempDir::new().expect("a directory");
    let people = dir.path().join("people");
    credentials(&people, &[("ada", "wonder"), ("bob", "builder")]);
    let flags = [
        "--port=0".to_owned(),
        format!("--credentials={}", people.display()),
        "--authenticate_http_readonly".to_owned(),
    ];
    let master = Daemon::start("master", &dir.path().join("master"), &flags);
    let asked = |who: (&str, &str)| {
        let mut raw = Raw::connect(master.address());
        authorized(&mut raw, who);
        raw.head().status
    };
    assert_eq!(asked(("ada", "wonder")), 200);
    let began = Instant::now();
    let mut all: Vec<Raw> = (0..GUESSES)
        .map(|number| {
            let mut raw = Raw::connect(master.address());
            authorized(&mut raw, ("ada", &format!("guess-{number}")));
            raw
        })
        .collect();
    assert_eq!(asked(("ada", "wonder")), 200, "who was known before");
    assert_eq!(asked(("bob", "builder")), 200, "who was not guessed at");
    let statuses: Vec<u16> = all.iter_mut().map(|raw| raw.head().status).collect();
    let took = began.elapsed().as_secs_f64();
    let checked = statuses.iter().filter(|status| **status == 401).count();
    let limited = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!(checked + limited, GUESSES, "{statuses:?}");
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let checked = checked as f64;
    assert!(
        checked <= 20.0 + 10.0 * took,
        "{checked} checked in {took} s"
    );
    assert_eq!(asked(("ada", "wonder")), 200);
    assert_eq!(asked(("bob", "builder")), 200);
}

/// The test has a network of its own, since loopback has no such limit: more silent connections than one address may have,
/// and an agent of that address joins nevertheless.
fn silent_connections_block_no_client() {
    const SILENT: usize = 700;
    let network = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network");
        for args in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", "10.23.0.1/32", "dev", "lo"],
        ] {
            let done = Command::new("ip").args(args).status().expect("ip runs");
            assert!(done.success(), "ip {args:?}");
        }
        let dir = TempDir::new().expect("a directory");
        let flags = ["--port=0", "--ip=10.23.0.1", "--insecure"].map(str::to_owned);
        let master = Daemon::start("master", &dir.path().join("master"), &flags);
        let address: SocketAddr = master.address().parse().expect("an address");
        let mut silent: Vec<TcpStream> = Vec::new();
        for _ in 0..SILENT {
            silent.push(TcpStream::connect(address).expect("connected"));
        }
        let mut raw = Raw::connect(master.address());
        raw.request("GET /version", &[], "");
        assert_eq!(raw.head().status, 200, "one more of the address");
        assert_eq!(http::get(&format!("{}/health", master.url)).status, 200);
    });
    if let Err(panic) = network.join() {
        std::panic::resume_unwind(panic);
    }
}
