//! Checks, health checks and fetched files on the real kernel.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished, TaskKilled};
use meseta_proto::mesos::v1::task_status::Reason;

use crate::harness::{FRAMEWORK, Link, World, shell};

pub(crate) const TESTS: &[(&str, bool, fn())] = &[
    ("a_command_check_sees_what_its_task_sees", true, sees),
    (
        "an_unhealthy_task_is_killed_and_told_unhealthy",
        true,
        unhealthy,
    ),
    (
        "a_check_that_takes_too_long_is_ended_and_told_empty",
        true,
        too_long,
    ),
    (
        "http_and_tcp_are_checked_where_the_task_listens",
        false,
        network,
    ),
    ("files_are_fetched_over_http_and_run", false, fetched),
    (
        "nothing_is_fetched_that_the_tasks_user_may_not_read",
        true,
        forbidden,
    ),
];

fn command(text: &str) -> pb::CommandInfo {
    pb::CommandInfo {
        value: Some(text.to_owned()),
        ..pb::CommandInfo::default()
    }
}

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

/// The next update that a check made.
fn checked(world: &World, link: &mut Link, reason: Reason) -> pb::TaskStatus {
    loop {
        let status = world.update(link);
        assert!(!meseta_agent::core::is_terminal(status.state), "{status:?}");
        if status.reason.is_some() && status.reason() == reason {
            return status;
        }
    }
}

fn sees() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "echo made > marker; sleep 1000");
    let variable = pb::environment::Variable {
        name: "OF_TASK".to_owned(),
        value: Some("yes".to_owned()),
        ..pb::environment::Variable::default()
    };
    if let Some(command) = &mut task.command {
        command.environment = Some(pb::Environment {
            variables: vec![variable],
        });
    }
    // Its folder, its variables, its processes (the first of which is the container's init).
    let look = "test \"$(cat marker)\" = made && test \"$OF_TASK\" = yes \
                && test \"$(cat /proc/1/comm)\" = meseta-init";
    task.health_check = Some(
        pb::HealthCheck {
            consecutive_failures: Some(1000),
            ..health(look)
        }
        .into(),
    );
    world.run(&link, task);
    let mut status = checked(&world, &mut link, Reason::TaskHealthCheckStatusUpdated);
    while status.healthy == Some(false) {
        // The file may not have been there yet.
        status = checked(&world, &mut link, Reason::TaskHealthCheckStatusUpdated);
    }
    assert_eq!(status.healthy, Some(true));
    world.kill(&link, "t", None);
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskKilled);
    assert_eq!(last.healthy, Some(true));
}

fn unhealthy() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "exec sleep 1000");
    task.health_check = Some(health("exit 3").into());
    world.run(&link, task);
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskKilled, "{states:?}");
    assert_eq!(last.healthy, Some(false));
}

fn too_long() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("t", "exec sleep 1000");
    // The first look is quick, the others are not.
    let look = "if test -e seen; then exec sleep 1000; fi; touch seen; exit 7";
    task.check = Some(
        pb::CheckInfo {
            r#type: Some(pb::check_info::Type::Command.into()),
            command: Some(pb::check_info::Command {
                command: command(look),
            }),
            delay_seconds: Some(0.0),
            interval_seconds: Some(0.1),
            timeout_seconds: Some(1.0),
            ..pb::CheckInfo::default()
        }
        .into(),
    );
    world.run(&link, task);
    let code = |status: pb::TaskStatus| {
        let status = status.check_status.expect("a check status");
        status.command.expect("of a command").exit_code
    };
    let first = checked(&world, &mut link, Reason::TaskCheckStatusUpdated);
    assert_eq!(code(first), Some(7));
    let second = checked(&world, &mut link, Reason::TaskCheckStatusUpdated);
    assert_eq!(code(second), None);
    world.kill(&link, "t", None);
    assert_eq!(world.until_terminal(&mut link).1.state(), TaskKilled);
}

/// Answers every connection with this, for as long as the test runs.
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

fn network() {
    let (world, mut link) = World::registered(&[]);
    let port = serve("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let mut task = shell("http", "exec sleep 1000");
    task.health_check = Some(
        pb::HealthCheck {
            r#type: Some(pb::health_check::Type::Http.into()),
            command: None,
            http: Some(pb::health_check::HttpCheckInfo {
                port: port.into(),
                path: Some("/health".to_owned()),
                ..Default::default()
            }),
            ..health("")
        }
        .into(),
    );
    task.check = Some(
        pb::CheckInfo {
            r#type: Some(pb::check_info::Type::Tcp.into()),
            tcp: Some(pb::check_info::Tcp { port: port.into() }),
            delay_seconds: Some(0.0),
            interval_seconds: Some(1000.0),
            ..pb::CheckInfo::default()
        }
        .into(),
    );
    world.run(&link, task);
    let (mut healthy, mut connected) = (None, None);
    while healthy.is_none() || connected.is_none() {
        let status = world.update(&mut link);
        healthy = healthy.or(status.healthy);
        let tcp = status.check_status.and_then(|status| status.tcp);
        connected = connected.or(tcp.and_then(|tcp| tcp.succeeded));
    }
    assert_eq!((healthy, connected), (Some(true), Some(true)));
    world.kill(&link, "http", None);
    assert_eq!(world.until_terminal(&mut link).1.state(), TaskKilled);
}

fn with_uri(id: &str, text: &str, value: String, executable: bool) -> pb::TaskInfo {
    let mut task = shell(id, text);
    if let Some(command) = &mut task.command {
        command.uris.push(pb::command_info::Uri {
            value,
            executable: Some(executable),
            ..pb::command_info::Uri::default()
        });
    }
    task
}

fn fetched() {
    let (world, mut link) = World::registered(&[]);
    let port = serve(
        "HTTP/1.1 200 OK\r\nContent-Length: 26\r\nConnection: close\r\n\r\n#!/bin/sh\necho was fetched",
    );
    let url = format!("http://127.0.0.1:{port}/bin/run.sh");
    world.run(&link, with_uri("t", "./run.sh", url, true));
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFinished, "{last:?}");
    let path = format!("/frameworks/{FRAMEWORK}/executors/t/runs/latest/stdout");
    let read = world.get_json(&format!("/files/read?path={path}&offset=0"));
    assert_eq!(read["data"], "was fetched\n");
}

fn forbidden() {
    let (world, mut link) = World::registered(&[]);
    let secret = world.dir.path().join("secret");
    std::fs::write(&secret, "secret").expect("written");
    let only_root = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, only_root).expect("permissions");
    let url = format!("file://{}", secret.display());
    let mut task = with_uri("t", "cat secret", url.clone(), false);
    if let Some(command) = &mut task.command {
        command.user = Some("nobody".to_owned());
    }
    world.run(&link, task);
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFailed);
    assert_eq!(last.reason(), Reason::ContainerLaunchFailed);
    let message = last.message.expect("a message");
    assert!(
        message.contains(&format!("Failed to fetch '{url}'")),
        "{message}"
    );
    assert!(message.contains("ermission denied"), "{message}");
    // What root may read, root's task gets.
    let url = format!("file://{}", secret.display());
    world.run(&link, with_uri("root", "cat secret", url, false));
    assert_eq!(world.until_terminal(&mut link).1.state(), TaskFinished);
}
