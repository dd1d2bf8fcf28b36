//! Checks, health checks and fetched files on the real kernel.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFinished, TaskKilled};
use meseta_proto::mesos::v1::task_status::Reason;

use crate::Test;
use crate::harness::{
    Link, World, command, command_of, patience, shell, variable, wait_for, with_uri,
};

pub(crate) const TESTS: &[Test] = tests![
    root(command_check_runs_in_tasks_environment),
    root(unhealthy_task_is_killed_as_unhealthy),
    root(timed_out_check_reports_empty_status),
    network_checks_run_in_tasks_network,
    network_check_needs_no_runtime_directory,
    files_are_fetched_from_trusted_servers,
    root(check_runs_program_with_arguments),
    root(check_output_is_bounded_and_separate),
    root(group_tasks_have_separate_checks),
];

fn health(text: &str) -> pb::HealthCheck {
    pb::HealthCheck {
        r#type: Some(pb::health_check::Type::Command.into()),
        command: Some(command(text)),
        delay_seconds: Some(0.0),
        interval_seconds: Some(0.1),
        timeout_seconds: Some(20.0),
        consecutive_failures: Some(2),
        grace_period_seconds: Some(0.0),
        ..pb::HealthCheck::default()
    }
}

/// The next update from a health check.
fn health_told(world: &World, link: &mut Link) -> pb::TaskStatus {
    checked(world, link, Reason::TaskHealthCheckStatusUpdated)
}

/// The next update from a check.
fn checked(world: &World, link: &mut Link, reason: Reason) -> pb::TaskStatus {
    loop {
        let status = world.update(link);
        assert!(!meseta_agent::core::is_terminal(status.state), "{status:?}");
        if status.reason.is_some() && status.reason() == reason {
            return status;
        }
    }
}

/// A check without a delay and with this interval.
fn check(kind: pb::check_info::Type, interval_seconds: f64) -> pb::CheckInfo {
    pb::CheckInfo {
        r#type: Some(kind.into()),
        delay_seconds: Some(0.0),
        interval_seconds: Some(interval_seconds),
        ..pb::CheckInfo::default()
    }
}

fn command_check(text: &str, interval_seconds: f64) -> pb::CheckInfo {
    pb::CheckInfo {
        command: Some(pb::check_info::Command {
            command: command(text),
        }),
        ..check(pb::check_info::Type::Command, interval_seconds)
    }
}

fn command_check_runs_in_tasks_environment() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "echo made > marker; sleep 1000");
    command_of(&mut task).environment = Some(variable("OF_TASK", "yes"));
    // The check sees its task's folder, variables and processes (the first of which is the container's init).
    let look = "test \"$(cat marker)\" = made && test \"$OF_TASK\" = yes \
                && test \"$(cat /proc/1/comm)\" = meseta-init";
    let patient = pb::HealthCheck {
        consecutive_failures: Some(1000),
        ..health(look)
    };
    task.health_check = Some(patient.into());
    world.run(&link, task);
    let mut status = health_told(&world, &mut link);
    while status.healthy == Some(false) {
        // The file may not have existed yet.
        status = health_told(&world, &mut link);
    }
    assert_eq!(status.healthy, Some(true));
    assert_eq!(world.end(&mut link, "t").healthy, Some(true));
}

fn unhealthy_task_is_killed_as_unhealthy() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "exec sleep 1000");
    task.health_check = Some(health("exit 3").into());
    let last = world.run_to(&mut link, task, TaskKilled);
    assert_eq!(last.healthy, Some(false));
}

fn timed_out_check_reports_empty_status() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "exec sleep 1000");
    // Fast until the file exists.
    let look = "if test -e slow; then exec sleep 1000; fi; exit 7";
    let check = pb::CheckInfo {
        // A second, but longer with more patience.
        timeout_seconds: Some(patience().as_secs_f64() / 30.0),
        ..command_check(look, 0.1)
    };
    task.check = Some(check.into());
    world.run(&link, task);
    let code = |status: pb::TaskStatus| {
        let status = status.check_status.expect("a check status");
        status.command.expect("of a command").exit_code
    };
    let mut next = || code(checked(&world, &mut link, Reason::TaskCheckStatusUpdated));
    // A fast check also times out if the machine pauses.
    while next() != Some(7) {}
    let sandbox = world.sandbox_of("t").expect("a sandbox");
    std::fs::write(sandbox.join("slow"), "").expect("written");
    while next().is_some() {}
    world.end(&mut link, "t");
}

/// Answers every connection with this text, for as long as the test runs.
fn serve(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

fn network_checks_run_in_tasks_network() {
    let (world, mut link) = World::registered(&[]);
    let port = serve("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let mut task = shell("http", "exec sleep 1000");
    let looks_there = pb::HealthCheck {
        r#type: Some(pb::health_check::Type::Http.into()),
        command: None,
        http: Some(pb::health_check::HttpCheckInfo {
            port: port.into(),
            path: Some("/health".to_owned()),
            ..Default::default()
        }),
        ..health("")
    };
    task.health_check = Some(looks_there.into());
    let connects = pb::CheckInfo {
        tcp: Some(pb::check_info::Tcp { port: port.into() }),
        ..check(pb::check_info::Type::Tcp, 1000.0)
    };
    task.check = Some(connects.into());
    world.run(&link, task);
    let (mut healthy, mut connected) = (None, None);
    while healthy.is_none() || connected.is_none() {
        let status = world.update(&mut link);
        healthy = healthy.or(status.healthy);
        let tcp = status.check_status.and_then(|status| status.tcp);
        connected = connected.or(tcp.and_then(|tcp| tcp.succeeded));
    }
    assert_eq!((healthy, connected), (Some(true), Some(true)));
    world.end(&mut link, "http");
}

/// Regression: without a runtime directory no check ran, so that a task that had stopped listening counted as healthy.
fn network_check_needs_no_runtime_directory() {
    let (world, mut link) = World::registered(&[]);
    // The kernel accepts the connections.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let connects = pb::CheckInfo {
        tcp: Some(pb::check_info::Tcp { port: port.into() }),
        ..check(pb::check_info::Type::Tcp, 0.2)
    };
    let mut task = shell("t", "exec sleep 1000");
    task.check = Some(connects.into());
    world.run(&link, task);
    let connected = |link: &mut Link| {
        let status = checked(&world, link, Reason::TaskCheckStatusUpdated);
        status.check_status.and_then(|status| status.tcp?.succeeded)
    };
    assert_eq!(connected(&mut link), Some(true));
    let run = world.dir.path().join("run");
    std::fs::remove_dir_all(&run).expect("it is removed");
    std::fs::write(&run, "").expect("something else is there");
    drop(listener);
    assert_eq!(connected(&mut link), Some(false));
    std::fs::remove_file(&run).expect("it is removed");
    world.end(&mut link, "t");
}

/// Serves one answer over TLS with its own certificate. Returns its port and the certificate's authority.
fn serve_over_tls(answer: &'static str) -> (u16, String) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("sound");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("signed").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("sound");
    let signed = params.signed_by(&key, &issuer).expect("signed");
    let secret = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![signed.der().clone()], secret)
        .expect("a certificate and its key");
    let config = std::sync::Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(config.clone()).expect("sound");
            let mut connection = connection;
            let mut stream = rustls::Stream::new(&mut connection, &mut stream);
            let mut request = [0; 4096];
            // A client that does not trust the certificate closes the connection.
            if stream.read(&mut request).is_ok() {
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    (port, authority)
}

fn files_are_fetched_from_trusted_servers() {
    const PROGRAM: &str = "HTTP/1.1 200 OK\r\nContent-Length: 26\r\nConnection: close\r\n\r\n\
        #!/bin/sh\necho was fetched";
    let plain = format!("http://127.0.0.1:{}/bin/run.sh", serve(PROGRAM));
    let (port, authority) = serve_over_tls(PROGRAM);
    let url = format!("https://localhost:{port}/bin/run.sh");
    let mut world = World::new(&[]);
    let trusted = world.dir.path().join("authority.pem");
    std::fs::write(&trusted, authority).expect("written");
    world.trusted = Some(trusted);
    world.start_agent();
    let mut link = world.admit();
    let task = |url: &str| with_uri(shell("t", "./run.sh"), url.to_owned(), true);
    for url in [&plain, &url] {
        world.run_to(&mut link, task(url), TaskFinished);
        let stdout = world.sandbox_of("t").expect("a sandbox").join("stdout");
        let printed = std::fs::read_to_string(stdout).expect("its output");
        assert_eq!(printed, "was fetched\n", "{url}");
    }
    drop((link, world));
    // An agent that does not trust this authority fetches nothing from it.
    let (world, mut link) = World::registered(&[]);
    let message = world.run_refused(&mut link, task(&url));
    let expected = format!("Failed to fetch '{url}'");
    assert!(message.contains(&expected), "{message}");
    assert!(message.to_lowercase().contains("certificate"), "{message}");
}

fn check_runs_program_with_arguments() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "exec sleep 1000");
    let mut check = health("");
    check.command = Some(pb::CommandInfo {
        shell: Some(false),
        arguments: ["test", "a b", "=", "a b"].map(str::to_owned).to_vec(),
        ..command("test")
    });
    task.health_check = Some(check.into());
    world.run(&link, task);
    let status = health_told(&world, &mut link);
    assert_eq!(status.healthy, Some(true));
    world.end(&mut link, "t");
}

fn group_tasks_have_separate_checks() {
    let (world, mut link) = World::registered(&[]);
    // Each check runs in its task's sandbox: both files have the same name.
    let task = |id: &str, text: &str| {
        let mut task = shell(id, &format!("echo {text} > marker; exec sleep 1000"));
        let look = "until test -s marker; do sleep 0.05; done; test \"$(cat marker)\" = yes";
        task.check = Some(command_check(look, 1000.0).into());
        let healthy = pb::HealthCheck {
            interval_seconds: Some(1000.0),
            ..health("until test -s marker; do sleep 0.05; done")
        };
        task.health_check = Some(healthy.into());
        task
    };
    world.run_group(&link, vec![task("one", "yes"), task("two", "no")]);
    let mut codes = std::collections::BTreeMap::new();
    let mut healthy = std::collections::BTreeSet::new();
    while codes.len() < 2 || healthy.len() < 2 {
        let status = world.update(&mut link);
        assert!(!meseta_agent::core::is_terminal(status.state), "{status:?}");
        let id = status.task_id.value.clone();
        if status.healthy == Some(true) {
            healthy.insert(id.clone());
        }
        let seen = status.check_status.and_then(|status| status.command);
        if let Some(code) = seen.and_then(|command| command.exit_code) {
            codes.insert(id, code);
        }
    }
    let expected = [("one".to_owned(), 0), ("two".to_owned(), 1)];
    assert_eq!(codes, expected.into());
    let state = world.get_json("/state");
    let executor = &state["frameworks"][0]["executors"][0];
    assert_eq!(executor["type"], "DEFAULT", "{state}");
    assert!(executor["tasks"][0]["health_check"].is_object(), "{state}");
    world.kill(&link, "one", None);
    world.until_terminal(&mut link);
}

/// Both write, and neither file exceeds its limit or loses a line to the other.
fn check_output_is_bounded_and_separate() {
    let (world, mut link) = World::registered(&[
        "--max_stderr_size=4KB",
        "--logrotate_stderr_options=rotate 1",
    ]);
    let own =
        "for i in 1 2 3 4 5 6; do echo own $i >&2; until test -e go$i; do sleep 0.02; done; done";
    let mut task = shell("t", own);
    let line = "a line of a check that is long enough to fill a small file soon enough";
    let look = format!("for i in 1 2 3 4 5 6 7 8 9; do echo {line}; echo {line} >&2; done");
    task.health_check = Some(health(&look).into());
    world.run(&link, task);
    let _ = health_told(&world, &mut link);
    let sandbox = world.sandbox_of("t").expect("a sandbox");
    // The files of checks are rotated and removed several times between two lines of the task's output.
    for number in 1..=6 {
        let older = sandbox.join("health-check.log.1");
        let before = std::fs::metadata(&older).map(|found| found.modified().expect("a time"));
        wait_for("another file of the check's output", || {
            let found = std::fs::metadata(&older).ok()?.modified().expect("a time");
            (!before.as_ref().is_ok_and(|before| found == *before)).then_some(())
        });
        std::fs::write(sandbox.join(format!("go{number}")), "").expect("written");
    }
    world.expect_end(&mut link, TaskFinished);
    let read = |name: &str| std::fs::read_to_string(sandbox.join(name)).expect(name);
    assert_eq!(read("stderr"), "own 1\nown 2\nown 3\nown 4\nown 5\nown 6\n");
    for name in ["health-check.log", "health-check.log.1"] {
        assert!(read(name).len() <= 4096, "{name}");
    }
    assert!(read("health-check.log.1").contains(line));
}
