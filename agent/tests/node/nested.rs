//! Containers that are asked for over the agent's API: sessions in a task's container, and others.

use meseta_proto::recordio;
use meseta_proto::transport::client::{Call, Client, RecordStream};
use serde_json::{Value, json};

use crate::harness::{Link, World, shell, wait_for};

pub(crate) const TESTS: &[(&str, bool, fn())] = &[
    (
        "a_session_runs_where_its_task_runs_and_takes_input",
        true,
        session,
    ),
    ("a_session_ends_with_its_connection", true, hang_up),
    (
        "a_nested_container_is_launched_waited_for_and_removed",
        true,
        nested,
    ),
    (
        "attaching_to_a_task_without_a_terminal_is_refused_as_mesos_does",
        false,
        attach,
    ),
];

/// A task that goes on, and its container's id.
fn with_task(world: &World, link: &mut Link) -> Value {
    world.run(link, shell("t", "echo made > marker; exec sleep 1000"));
    world.update(link);
    let status = world.update(link).container_status.expect("a container");
    json!({"value": status.container_id.expect("an id").value})
}

fn open_session(world: &World, id: &Value, text: &str) -> RecordStream {
    let body = json!({
        "type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {
            "container_id": id,
            "command": {"value": text},
        },
    });
    let header = http::HeaderValue::from_static;
    let call = Call::post(&world.url("/api/v1"))
        .header(http::header::CONTENT_TYPE, header("application/json"))
        .header(http::header::ACCEPT, header("application/recordio"))
        .header(
            http::HeaderName::from_static("message-accept"),
            header("application/json"),
        )
        .body(body.to_string());
    let opened = world.runtime.block_on(Client::default().stream(call));
    opened.unwrap_or_else(|error| panic!("{error:?}\n{}", world.log()))
}

/// All that it prints to one of its streams.
fn read_all(world: &World, stream: &mut RecordStream, kind: &str) -> String {
    let mut all = Vec::new();
    while let Some(record) = world
        .runtime
        .block_on(stream.next_record())
        .expect("a record")
    {
        let record: Value = serde_json::from_slice(&record).expect("JSON");
        assert_eq!(record["type"], "DATA");
        if record["data"]["type"] == kind {
            let text = record["data"]["data"].as_str().expect("text").to_owned();
            all.push(text);
        }
    }
    // Small enough to come in one piece, whose base64 is compared as it is.
    all.concat()
}

fn call(world: &World, kind: &str, id: &Value) -> (u16, Value) {
    let body = json!({"type": kind, kind.to_lowercase(): {"container_id": id}});
    let reply = world.call(&body);
    let text = serde_json::from_slice(&reply.body);
    (reply.status.as_u16(), text.unwrap_or(Value::Null))
}

fn session() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "session-1", "parent": parent});
    let text = "read line; test \"$line\" = typed && cat marker && cat /proc/1/comm >&2; exit 3";
    let mut stream = open_session(&world, &id, text);
    let record = |call: Value| recordio::encode(call.to_string().as_bytes());
    let input = |more: Value| {
        let mut call = json!({"type": "ATTACH_CONTAINER_INPUT", "attach_container_input": more});
        record(call.take())
    };
    let typed = |data: &str| {
        input(json!({"type": "PROCESS_IO", "process_io": {
            "type": "DATA", "data": {"type": "STDIN", "data": data}}}))
    };
    let body = [
        input(json!({"type": "CONTAINER_ID", "container_id": id})),
        input(json!({"type": "PROCESS_IO", "process_io": {
            "type": "CONTROL", "control": {"type": "HEARTBEAT"}}})),
        // "typed\n", and the end.
        typed("dHlwZWQK"),
        typed(""),
    ]
    .concat();
    let header = http::HeaderValue::from_static;
    let attach = Call::post(&world.url("/api/v1"))
        .header(http::header::CONTENT_TYPE, header("application/recordio"))
        .header(
            http::HeaderName::from_static("message-content-type"),
            header("application/json"),
        )
        .body(body);
    let attached = world.runtime.block_on(Client::default().request(attach));
    let attached = attached.expect("an answer");
    assert_eq!(attached.status, 200, "{}", attached.text());
    // "made\n"
    assert_eq!(
        read_all(&world, &mut stream, "STDOUT"),
        "bWFkZQo=",
        "{}",
        world.log()
    );
    let (code, waited) = call(&world, "WAIT_CONTAINER", &id);
    assert_eq!(code, 200);
    assert_eq!(waited["wait_container"]["exit_status"], 3 << 8);
    world.kill(&link, "t", None);
    world.until_terminal(&mut link);
}

fn hang_up() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "session-1", "parent": parent});
    let mut stream = open_session(&world, &id, "echo up; exec sleep 1000");
    let first = world
        .runtime
        .block_on(stream.next_record())
        .expect("a record");
    assert!(first.is_some());
    drop(stream);
    let (code, waited) = call(&world, "WAIT_NESTED_CONTAINER", &id);
    assert_eq!(code, 200);
    assert_eq!(waited["wait_nested_container"]["exit_status"], 9);
    world.kill(&link, "t", None);
    world.until_terminal(&mut link);
}

fn nested() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "child", "parent": parent});
    let launch = json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
        "container_id": id, "command": {"value": "echo own > file; exec sleep 1000"}}});
    assert_eq!(world.call(&launch).status, 200);
    // The same again is no other.
    assert_eq!(world.call(&launch).status, 202);
    let parent = id["parent"]["value"].as_str().expect("an id");
    let runs = world
        .work_dir()
        .join("slaves/agent-S0/frameworks/framework-1/executors/t/runs");
    let sandbox = runs.join(parent).join("containers/child");
    wait_for("its file", || sandbox.join("file").exists().then_some(()));
    let (code, _) = call(&world, "REMOVE_NESTED_CONTAINER", &id);
    assert_eq!(code, 500, "it runs");
    assert_eq!(call(&world, "KILL_NESTED_CONTAINER", &id).0, 200);
    let (_, waited) = call(&world, "WAIT_CONTAINER", &id);
    assert_eq!(waited["wait_container"]["exit_status"], 9);
    assert_eq!(call(&world, "REMOVE_NESTED_CONTAINER", &id).0, 200);
    assert!(!sandbox.exists());
    for kind in ["WAIT_CONTAINER", "KILL_CONTAINER", "REMOVE_CONTAINER"] {
        assert_eq!(call(&world, kind, &id).0, 404, "{kind}");
    }
    for bad in ["a.b", "a+b", "", "a/b"] {
        let id = json!({"value": bad, "parent": id["parent"]});
        assert_eq!(call(&world, "WAIT_CONTAINER", &id).0, 400, "{bad:?}");
    }
    let orphan = json!({"value": "x", "parent": {"value": "nobody"}});
    let launch = json!({"type": "LAUNCH_CONTAINER", "launch_container": {
        "container_id": orphan, "command": {"value": "true"}}});
    assert_eq!(world.call(&launch).status, 404);
    world.kill(&link, "t", None);
    world.until_terminal(&mut link);
}

fn attach() {
    let (world, mut link) = World::registered(&[]);
    let id = with_task(&world, &mut link);
    let body = json!({"type": "ATTACH_CONTAINER_OUTPUT",
        "attach_container_output": {"container_id": id}});
    let reply = world.call(&body);
    assert_eq!(reply.status, 500);
    assert_eq!(
        reply.text(),
        "I/O switchboard server was disabled for this container"
    );
    world.kill(&link, "t", None);
    world.until_terminal(&mut link);
}
