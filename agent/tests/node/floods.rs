//! Floods from executors and frameworks: nothing fills the agent's memory, and nothing guaranteed is lost.
//!
//! The test acts as the executor, which root may do.

use meseta_daemon::client::{Call, Client};
use meseta_proto::media::MediaType;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskKilled, TaskRunning};
use meseta_proto::mesos::v1::executor::{self, Event, call, event};
use meseta_tests::kernel::memory_kib;

use crate::Test;
use crate::executors::{custom, executor_id};
use crate::harness::{Link, World, command_of, framework_id, task_id, tasks_of, wait_for};

pub(crate) const TESTS: &[Test] = tests![
    root(large_updates_wait_without_loss),
    root(unread_messages_to_master_are_dropped),
    root(unread_messages_to_executor_are_dropped),
    root(all_backlogs_stay_within_small_budget),
];

const MIB: usize = 1 << 20;
/// The most memory by which the agent may grow, in KiB, under any flood: its limits are 24, 24, 16, 16 and 48 MiB, and
/// a debug build makes more copies than an optimized one.
const GROWTH_KIB_MAX: u64 = 140 << 10;

fn call(kind: call::Type) -> executor::Call {
    executor::Call {
        framework_id: framework_id(),
        executor_id: executor_id(),
        r#type: Some(kind.into()),
        ..executor::Call::default()
    }
}

fn post(world: &World, call: &executor::Call) -> Call {
    Call::message(&world.url("/api/v1/executor"), MediaType::Protobuf, call)
}

/// Peak memory of the agent, in KiB.
fn peak_kib(world: &World) -> u64 {
    memory_kib(world.agent_pid(), "VmHWM").expect("it runs")
}

fn check_growth(world: &World, before: u64) {
    let growth = peak_kib(world).saturating_sub(before);
    assert!(growth < GROWTH_KIB_MAX, "the agent grew by {growth} KiB");
}

/// The number of dropped messages to a receiver, as the agent reports it.
fn dropped(world: &World, to: &str) -> u64 {
    let name = format!("meseta_agent_framework_messages_dropped_total{{to=\"{to}\"}} ");
    let text = world.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.expect("a series").parse().expect("a number")
}

fn world(flags: &[&str]) -> (World, Link) {
    let (world, mut link) = World::registered(flags);
    world.running_in_executor(&mut link, custom("a", "json"), true);
    (world, link)
}

/// Runs this number of further tasks in the executor.
fn run_more(world: &World, link: &mut Link, tasks: usize) {
    for number in 0..tasks {
        world.running_in_executor(link, custom(&format!("t{number}"), "json"), false);
    }
}

/// An update of a task with this number of bytes, which the executor itself would not send.
fn update_of(number: usize, bytes: usize) -> executor::Call {
    let status = pb::TaskStatus {
        task_id: task_id(&format!("t{number}")),
        state: TaskRunning.into(),
        source: Some(pb::task_status::Source::Executor.into()),
        uuid: Some(vec![0xc0 + u8::try_from(number).expect("a few"); 16]),
        data: Some(vec![0; bytes]),
        ..pb::TaskStatus::default()
    };
    executor::Call {
        update: Some(call::Update { status }),
        ..call(call::Type::Update)
    }
}

/// Sends this number of messages to the master, which the agent accepts.
fn send_to_master(world: &World, count: usize, bytes: usize) {
    let data = vec![0; bytes];
    let body = executor::Call {
        message: Some(call::Message { data }),
        ..call(call::Type::Message)
    };
    for _ in 0..count {
        let client = Client::default();
        let reply = world.runtime.block_on(client.request(post(world, &body)));
        let reply = reply.expect("an answer");
        assert_eq!(reply.status.as_u16(), 202);
    }
}

fn send_to_executor(world: &World, link: &Link, count: usize, bytes: usize) {
    for _ in 0..count {
        let message = wire::ExecutorMessage {
            framework_id: framework_id(),
            executor_id: executor_id(),
            data: vec![0; bytes],
        };
        world.send(link, ToAgent::ExecutorMessage(message));
    }
}

fn large_updates_wait_without_loss() {
    const TASKS: usize = 11;
    let (mut world, mut link) = world(&[]);
    run_more(&world, &mut link, TASKS);
    let before = peak_kib(&world);
    let calls: Vec<_> = (0..TASKS)
        .map(|number| {
            let call = post(&world, &update_of(number, 5 * MIB));
            world.runtime.spawn(async move {
                let reply = Client::default().request(call).await;
                reply.expect("an answer").status.as_u16()
            })
        })
        .collect();
    let mut told = std::collections::BTreeSet::new();
    while told.len() < TASKS {
        let status = world.update(&mut link);
        assert_eq!(status.data.map(|data| data.len()), Some(5 * MIB));
        told.insert(status.task_id.value);
    }
    for call in calls {
        assert_eq!(world.runtime.block_on(call).expect("it ends"), 202);
    }
    check_growth(&world, before);
    // The shown state of these tasks does not prevent the agent from coming back.
    drop(link);
    let (_link, report) = world.admit_again();
    assert_eq!(report.tasks.len(), TASKS + 1);
    let tasks = tasks_of(&report);
    let statuses = tasks.iter().flat_map(|task| &task.statuses);
    assert!(statuses.clone().count() > TASKS);
    assert!(statuses.into_iter().all(|status| status.data.is_none()));
}

fn unread_messages_to_master_are_dropped() {
    let (world, mut link) = world(&[]);
    let before = peak_kib(&world);
    send_to_master(&world, 60, 4 * MIB);
    check_growth(&world, before);
    // The master reads again, and gets the rest.
    let mut read = 0;
    world.kill(&link, "a", None);
    loop {
        match world.next(&mut link) {
            FromAgent::ExecutorMessage(_) => read += 1,
            FromAgent::StatusUpdate(update) => {
                assert_eq!(update.status.state(), TaskKilled);
                break;
            }
            _ => {}
        }
    }
    // The last answered message may have been counted since.
    let dropped = dropped(&world, "master");
    assert!(dropped >= 40, "{dropped} dropped");
    assert_eq!(read + dropped, 60);
}

fn unread_messages_to_executor_are_dropped() {
    let (world, link) = World::registered(&[]);
    // This executor never calls; the test calls in its place.
    let mut task = custom("a", "json");
    command_of(&mut task).value = Some("exec sleep 600".to_owned());
    world.run_in_executor(&link, task, true);
    wait_for("the executor to run", || {
        let containers = world.get_json("/containers");
        (!containers.as_array()?.is_empty()).then_some(())
    });
    let subscribe = executor::Call {
        subscribe: Some(call::Subscribe::default()),
        ..call(call::Type::Subscribe)
    };
    let subscribe = post(&world, &subscribe);
    let client = Client::default();
    let opened = world.runtime.block_on(client.stream(subscribe));
    let mut events = opened.expect("a stream");
    let before = peak_kib(&world);
    send_to_executor(&world, &link, 60, 3 * MIB);
    wait_for("most to be dropped", || {
        (dropped(&world, "executor") > 40).then_some(())
    });
    check_growth(&world, before);
    // Guaranteed events still arrive.
    world.kill(&link, "a", None);
    let mut messages = 0;
    loop {
        let next = events.next_message::<Event>(MediaType::Protobuf);
        let event = world.runtime.block_on(next);
        let event = event.expect("a record").expect("an event");
        match event.r#type() {
            event::Type::Message => messages += 1,
            event::Type::Kill => break,
            _ => {}
        }
    }
    assert!(messages < 20, "{messages} came");
}

/// Unread messages to an executor and to the master, unacknowledged updates, incomplete calls of operators, and
/// incomplete headers: each up to its limit.
fn all_backlogs_stay_within_small_budget() {
    const BUDGET_KIB: u64 = 128 << 10;
    const TASKS: usize = 24;
    let (world, mut link) = world(&["--memory_budget=128MB"]);
    run_more(&world, &mut link, TASKS);
    let idle = peak_kib(&world);
    send_to_master(&world, TASKS, 500 << 10);
    for number in 0..TASKS {
        let call = post(&world, &update_of(number, 500 << 10));
        // A call without room gets no answer.
        world.runtime.spawn(async move {
            let _ = Client::default().request(call).await;
        });
    }
    send_to_executor(&world, &link, TASKS, MIB);
    let unfinished = unfinished_requests(&world);
    wait_for("messages to be dropped", || {
        let both = ["master", "executor"].map(|to| dropped(&world, to));
        both.iter().all(|dropped| *dropped > 2).then_some(())
    });
    // The agent answers meanwhile.
    assert_eq!(world.get("/health").status, 200);
    let peak = peak_kib(&world);
    assert!(peak < BUDGET_KIB, "{peak} KiB, and {idle} before");
    drop(unfinished);
}

/// Calls with an incomplete body, and requests with an incomplete header.
fn unfinished_requests(world: &World) -> Vec<std::net::TcpStream> {
    use std::io::Write as _;
    let url = world.url("");
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let call = "POST /api/v1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
        Content-Length: 600000\r\n\r\n";
    let mut body = call.as_bytes().to_vec();
    body.resize(body.len() + 590_000, b' ');
    let mut header = b"GET /health HTTP/1.1\r\nX: ".to_vec();
    header.resize(30 << 10, b'x');
    let requests = (0..24).map(|_| &body).chain((0..600).map(|_| &header));
    let open = requests.map(|bytes| {
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        stream.set_nonblocking(true).expect("set");
        // As much as the agent accepts at once; it may close the connection in favour of others.
        let _ = stream.write(bytes);
        stream
    });
    open.collect()
}
