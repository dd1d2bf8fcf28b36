//! Containers requested through the agent's API: sessions in a task's container, and others.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use meseta_daemon::client::{Call, Client, RecordStream};
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1::agent as api;
use meseta_proto::recordio;
use serde_json::{Value, json};

use crate::Test;
use crate::harness::{Link, World, container_of, shell, wait_for};

pub(crate) const TESTS: &[Test] = tests![
    root(session_runs_with_task_and_input),
    root(a_session_ends_with_its_connection),
    root(terminal_session_echoes_and_has_size),
    root(nested_container_is_launched_and_removed),
    root(refused_nested_launch_frees_its_id),
    attach_without_terminal_is_refused,
];

/// A running task that has made its file. Returns its container's id.
fn with_task(world: &World, link: &mut Link) -> Value {
    let task = shell("t", "echo made > marker; exec sleep 1000");
    let status = world.running(link, task);
    // The RUNNING update precedes the start of its shell.
    wait_for("its marker", || {
        let marker = world.sandbox_of("t")?.join("marker");
        let text = std::fs::read_to_string(marker).ok()?;
        (text == "made\n").then_some(())
    });
    json!({"value": container_of(&status)})
}

/// A call whose answer is a stream of records in this encoding.
fn open_stream(world: &World, body: &Value, media: &'static str) -> RecordStream {
    let header = HeaderValue::from_static;
    let call = Call::post(&world.url("/api/v1"))
        .header(CONTENT_TYPE, header("application/json"))
        .header(ACCEPT, header("application/recordio"))
        .header(HeaderName::from_static("message-accept"), header(media))
        .body(body.to_string());
    let opened = world.runtime.block_on(Client::default().stream(call));
    opened.expect("a stream")
}

/// A record of a container's input.
fn input(more: &Value) -> Vec<u8> {
    let call = json!({"type": "ATTACH_CONTAINER_INPUT", "attach_container_input": more});
    recordio::encode(call.to_string().as_bytes()).to_vec()
}

fn io(io: &Value) -> Vec<u8> {
    input(&json!({"type": "PROCESS_IO", "process_io": io}))
}

/// A record of terminal input, in base64.
fn typed(data: &str) -> Vec<u8> {
    io(&json!({"type": "DATA", "data": {"type": "STDIN", "data": data}}))
}

/// Attaches to a container's input, sends these records and ends.
fn attach_input(world: &World, id: &Value, records: &[Vec<u8>]) {
    let mut body = input(&json!({"type": "CONTAINER_ID", "container_id": id}));
    body.extend(records.concat());
    let headers = [
        ("content-type", "application/recordio"),
        ("message-content-type", "application/json"),
    ];
    let attached = meseta_tests::http::post(&world.url("/api/v1"), &headers, &body);
    assert_eq!(attached.status, 200, "{}", attached.text());
}

fn open_session(world: &World, id: &Value, text: &str) -> RecordStream {
    let body = json!({
        "type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {
            "container_id": id,
            "command": {"value": text},
        },
    });
    open_stream(world, &body, "application/json")
}

/// Reads the whole output on one of the two streams.
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
    // Small enough to arrive in one piece, whose base64 is compared directly.
    all.concat()
}

fn call(world: &World, kind: &str, id: &Value) -> (u16, Value) {
    let body = json!({"type": kind, kind.to_lowercase(): {"container_id": id}});
    let reply = world.call(&body);
    let text = serde_json::from_slice(&reply.body);
    (reply.status, text.unwrap_or(Value::Null))
}

fn session_runs_with_task_and_input() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "session-1", "parent": parent});
    let text = "read line; test \"$line\" = typed && cat marker && cat /proc/1/comm >&2; exit 3";
    let mut stream = open_session(&world, &id, text);
    let heartbeat = json!({"type": "CONTROL", "control": {"type": "HEARTBEAT"}});
    // "typed\n", and the end.
    let records = [io(&heartbeat), typed("dHlwZWQK"), typed("")];
    attach_input(&world, &id, &records);
    // "made\n" in base64.
    assert_eq!(read_all(&world, &mut stream, "STDOUT"), "bWFkZQo=");
    let (code, waited) = call(&world, "WAIT_CONTAINER", &id);
    assert_eq!(code, 200);
    assert_eq!(waited["wait_container"]["exit_status"], 3 << 8);
    // A program with its arguments; its errors arrive separately.
    let body = json!({"type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {
            "container_id": {"value": "session-2", "parent": parent},
            "command": {"value": "sh", "shell": false,
                "arguments": ["sh", "-c", "echo right; echo wrong >&2"]}}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/recordio"),
    ];
    let url = world.url("/api/v1");
    let answer = meseta_tests::http::post(&url, &headers, body.to_string().as_bytes());
    assert_eq!(answer.header("content-type"), Some("application/recordio"));
    let inner = answer.header("message-content-type");
    assert_eq!(inner, Some("application/json"));
    for (kind, data) in [("STDOUT", "cmlnaHQK"), ("STDERR", "d3JvbmcK")] {
        let record = format!(r#""data":{{"type":"{kind}","data":"{data}"}}"#);
        assert!(answer.text().contains(&record), "{}", answer.text());
    }
    world.end(&mut link, "t");
}

/// Imitates the Mesos command line's `task exec -it`: a probe of the input, the window's size, input; and a second
/// reader.
fn terminal_session_echoes_and_has_size() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "session-1", "parent": parent});
    let text = "tty; stty size; read line; stty size; echo \"got $line\"; cat marker; echo wrong >&2; exit 4";
    let stream = |body: &Value| open_stream(&world, body, "application/x-protobuf");
    let session = json!({
        "type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {
            "container_id": id,
            "command": {"value": text},
            "container": {"type": "MESOS",
                "tty_info": {"window_size": {"rows": 24, "columns": 80}}},
        },
    });
    let mut shown = stream(&session);
    let until = |shown: &mut RecordStream, all: &mut String, wanted: &str| {
        while !all.contains(wanted) {
            let next = shown.next_message::<api::ProcessIo>(MediaType::Protobuf);
            let io = world.runtime.block_on(next).expect("a record");
            let io = io.unwrap_or_else(|| panic!("no {wanted:?} in {all:?}"));
            let data = io.data.expect("data");
            assert_eq!(data.r#type(), api::process_io::data::Type::Stdout);
            all.push_str(&String::from_utf8_lossy(&data.data.unwrap_or_default()));
        }
    };
    let mut all = String::new();
    until(&mut shown, &mut all, "24 80\r\n");
    assert!(all.starts_with("/dev/pts/"), "{all:?}");
    let watch = json!({"type": "ATTACH_CONTAINER_OUTPUT",
        "attach_container_output": {"container_id": id}});
    let mut watched = stream(&watch);
    // An attempt without records, as the probe.
    attach_input(&world, &id, &[]);
    let size = io(&json!({"type": "CONTROL", "control": {"type": "TTY_INFO",
        "tty_info": {"window_size": {"rows": 30, "columns": 100}}}}));
    // "hello\n"; empty input is no end here, where a key ends the input.
    let records = [size, typed(""), typed("aGVsbG8K")];
    attach_input(&world, &id, &records);
    // A terminal is one stream, which includes the errors.
    let end = "hello\r\n30 100\r\ngot hello\r\nmade\r\nwrong\r\n";
    until(&mut shown, &mut all, end);
    let mut seen = String::new();
    until(&mut watched, &mut seen, end);
    let next = shown.next_message::<api::ProcessIo>(MediaType::Protobuf);
    assert!(world.runtime.block_on(next).expect("an end").is_none());
    let (_, waited) = call(&world, "WAIT_CONTAINER", &id);
    assert_eq!(waited["wait_container"]["exit_status"], 4 << 8);
    world.end(&mut link, "t");
}

fn a_session_ends_with_its_connection() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "session-1", "parent": parent});
    let mut stream = open_session(&world, &id, "echo up; exec sleep 1000");
    let first = world.runtime.block_on(stream.next_record());
    assert!(first.expect("a record").is_some());
    drop(stream);
    let (code, waited) = call(&world, "WAIT_NESTED_CONTAINER", &id);
    assert_eq!(code, 200);
    assert_eq!(waited["wait_nested_container"]["exit_status"], 9);
    world.end(&mut link, "t");
}

fn nested_container_is_launched_and_removed() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let id = json!({"value": "child", "parent": parent});
    let launch = json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
        "container_id": id, "command": {"value": "echo own > file; exec sleep 1000"}}});
    assert_eq!(world.call(&launch).status, 200);
    // An equal launch does not start another.
    assert_eq!(world.call(&launch).status, 202);
    let sandbox = world.sandbox_of("t").expect("a sandbox");
    let sandbox = sandbox.join("containers/child");
    wait_for("its file", || sandbox.join("file").exists().then_some(()));
    let shown = |nested: bool| {
        let body = json!({"type": "GET_CONTAINERS", "get_containers": {"show_nested": nested}});
        let told = world.call(&body).json();
        let all = told["get_containers"]["containers"].clone();
        all.as_array().expect("containers").clone()
    };
    let all = shown(true);
    assert!(all.iter().any(|one| one["container_id"] == id), "{all:?}");
    assert_eq!(shown(false).len() + 1, all.len());
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
    world.end(&mut link, "t");
}

fn refused_nested_launch_frees_its_id() {
    let (world, mut link) = World::registered(&[]);
    let parent = with_task(&world, &mut link);
    let launch = |name: &str, command: Value, container: Value| {
        let id = json!({"value": name, "parent": parent});
        let body = json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
            "container_id": id, "command": command, "container": container}});
        world.call(&body)
    };
    let outer = world.sandbox_of("t").expect("a sandbox");
    let plain = json!({"type": "MESOS"});
    let secret = json!({"name": "S", "type": "SECRET", "secret": {"type": "VALUE"}});
    let shares = json!({"type": "MESOS", "linux_info": {"share_pid_namespace": true}});
    let unlimited =
        json!({"type": "MESOS", "rlimit_info": {"rlimits": [{"type": "RLMT_NOFILE", "soft": 9}]}});
    let missing = json!({"value": "/no/such/program", "shell": false});
    let sound = json!({"value": "true"});
    let secretive = json!({"value": "true", "environment": {"variables": [secret]}});
    let fetching = json!({"value": "true", "uris": [{"value": "/etc/hosts"}]});
    for (why, command, container, status) in [
        ("a secret", secretive, &plain, 500),
        ("half a limit", sound.clone(), &unlimited, 500),
        ("no such program", missing, &plain, 500),
        ("the agent's processes", sound.clone(), &shares, 500),
        ("a file to fetch", fetching, &plain, 400),
    ] {
        let reply = launch("child", command, container.clone());
        assert_eq!(reply.status, status, "{why}: {}", reply.text());
        for left in ["containers/child", "tasks/child"] {
            let left = std::fs::symlink_metadata(outer.join(left));
            assert!(left.is_err(), "{why}: {left:?}");
        }
    }
    for name in ["a b", "\u{e9}", &"x".repeat(240)] {
        let reply = launch(name, sound.clone(), plain.clone());
        assert_eq!(reply.status, 400, "{name:?}: {}", reply.text());
    }
    // Repeatedly with the same id.
    for _ in 0..2 {
        assert_eq!(launch("child", sound.clone(), plain.clone()).status, 200);
        let id = json!({"value": "child", "parent": parent});
        assert_eq!(call(&world, "WAIT_NESTED_CONTAINER", &id).0, 200);
        assert_eq!(call(&world, "REMOVE_NESTED_CONTAINER", &id).0, 200);
    }
    world.end(&mut link, "t");
}

fn attach_without_terminal_is_refused() {
    let (world, mut link) = World::registered(&[]);
    let id = with_task(&world, &mut link);
    let body = json!({"type": "ATTACH_CONTAINER_OUTPUT",
        "attach_container_output": {"container_id": id}});
    let reply = world.call(&body);
    assert_eq!(reply.status, 500);
    let expected = "I/O switchboard server was disabled for this container";
    assert_eq!(reply.text(), expected);
    let nobody = json!({"type": "ATTACH_CONTAINER_OUTPUT",
        "attach_container_output": {"container_id": {"value": "nobody"}}});
    assert_eq!(world.call(&nobody).status, 404);
    world.end(&mut link, "t");
}
