//! Tasks and users of the machine that call the agent: as another's executor, and as its operator.
//!
//! A task makes a call by running this binary as `node call`, which prints the answer.

#![expect(
    clippy::print_stdout,
    reason = "what a caller was answered is what the test reads"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use http::{HeaderValue, Method, header};
use meseta_daemon::client::{self, Call, Client};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished, TaskKilled};
use serde_json::{Value, json};

use crate::Test;
use crate::executors::custom;
use crate::harness::{FRAMEWORK, Link, World, by, command_of, shell, wait_for, with_uri};

pub(crate) const TESTS: &[Test] = tests![
    root(task_cannot_act_for_foreign_executor),
    root(executor_is_identified_by_secret_token),
    root(executor_authentication_can_be_disabled),
    root(a_task_is_not_the_operator),
    root(agent_requests_use_tasks_identity),
    root(executor_nests_containers_as_its_user),
];

const NOBODY: u32 = 65_534;
const EXECUTOR: &str = "executor-1";

/// `node call METHOD URL TOKEN-FILE BODY...`: one call for each body. Prints the statuses in order.
pub(crate) fn call_main(mut args: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let mut next = || args.next().and_then(|arg| arg.into_string().ok());
    let (method, url, token) = (next(), next(), next());
    let method: Method = method.expect("a method").parse().expect("a method");
    let url = url.expect("a URL");
    // From a file, so that no visible command line contains the token.
    let token = token.filter(|path| !path.is_empty());
    let token = token.map(|path| std::fs::read_to_string(path).expect("a token"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    while let Some(body) = next() {
        let json = HeaderValue::from_static("application/json");
        let mut call = Call::new(method.clone(), &url)
            .header(header::CONTENT_TYPE, json.clone())
            .header(header::ACCEPT, json)
            .body(body);
        if let Some(token) = &token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
            call = call.header(header::AUTHORIZATION, value);
        }
        // A stream also has a status; its events are not awaited.
        match runtime.block_on(Client::default().stream(call)) {
            Ok(_) => println!("200"),
            Err(client::Error::Refused { status, .. }) => println!("{}", status.as_u16()),
            Err(error) => println!("{error}"),
        }
    }
    ExitCode::SUCCESS
}

/// This binary at a path where every user can run it.
fn program_in(world: &World) -> PathBuf {
    let path = world.dir.path().join("caller");
    if !path.exists() {
        std::fs::copy(std::env::current_exe().expect("our path"), &path).expect("copied");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    path
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

struct Caller<'a> {
    world: &'a World,
    program: PathBuf,
    tasks: u32,
    /// Updates of other tasks that arrived meanwhile.
    others: Vec<pb::TaskStatus>,
}

impl<'a> Caller<'a> {
    fn new(world: &'a World) -> Self {
        Self {
            world,
            program: program_in(world),
            tasks: 0,
            others: Vec::new(),
        }
    }

    /// The answer to a call from a user's task, in its own container.
    fn task(
        &mut self,
        link: &mut Link,
        user: &str,
        (method, path, token): (&str, &str, &str),
        bodies: &[Value],
    ) -> Vec<String> {
        self.tasks += 1;
        let id = format!("caller-{}", self.tasks);
        let mut command = format!(
            "exec {} call {method} {} {}",
            self.program.display(),
            self.world.url(path),
            quoted(token)
        );
        for body in bodies {
            command = format!("{command} {}", quoted(&body.to_string()));
        }
        self.world.run(link, by(user, shell(&id, &command)));
        loop {
            let status = self.world.update(link);
            if status.task_id.value != id {
                self.others.push(status);
            } else if meseta_agent::core::is_terminal(status.state) {
                assert_eq!(status.state(), TaskFinished, "{status:?}");
                break;
            }
        }
        let sandbox = self.world.sandbox_of(&id).expect("a sandbox");
        let text = std::fs::read_to_string(sandbox.join("stdout")).expect("its output");
        text.lines().map(str::to_owned).collect()
    }

    /// The answer to a call from a user outside of containers.
    fn user(&self, uid: u32, (method, path): (&str, &str), body: &Value) -> String {
        let mut command = Command::new(&self.program);
        let output = command
            .args(["call", method, &self.world.url(path), "", &body.to_string()])
            .uid(uid)
            .gid(uid)
            .current_dir("/")
            .stderr(Stdio::inherit())
            .output();
        let output = output.expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().to_owned()
    }
}

fn executor_call(kind: &str, executor: &str, more: Value) -> Value {
    let mut call = json!({
        "type": kind,
        "framework_id": {"value": FRAMEWORK},
        "executor_id": {"value": executor},
    });
    for (key, value) in more.as_object().expect("an object") {
        call[key] = value.clone();
    }
    call
}

fn subscribe(executor: &str) -> Value {
    let nothing = json!({"unacknowledged_tasks": [], "unacknowledged_updates": []});
    executor_call("SUBSCRIBE", executor, json!({"subscribe": nothing}))
}

fn message() -> Value {
    executor_call("MESSAGE", EXECUTOR, json!({"message": {"data": "AAAA"}}))
}

fn finished() -> Value {
    let status = json!({
        "task_id": {"value": "a"}, "state": "TASK_FINISHED", "source": "SOURCE_EXECUTOR",
        "uuid": "AAECAwQFBgcICQoLDA0ODw==",
    });
    executor_call("UPDATE", EXECUTOR, json!({"update": {"status": status}}))
}

const API: (&str, &str, &str) = ("POST", "/api/v1/executor", "");

/// A world whose executor runs as `nobody`, like the callers.
fn world(flags: &[&str]) -> (World, Link) {
    let (world, mut link) = World::registered(flags);
    world.running_in_executor(&mut link, by_nobody(&world), true);
    (world, link)
}

fn by_nobody(world: &World) -> pb::TaskInfo {
    let mut task = by("nobody", custom("a", "json"));
    let program = program_in(world);
    command_of(&mut task).value = Some(format!("exec {} executor", program.display()));
    task
}

/// The token in the environment of the running executor.
fn token_of(world: &World) -> Option<String> {
    let containers = world.get_json("/containers");
    let container = containers.as_array().expect("a list").iter();
    let mut container = container.filter(|one| one["executor_id"] == EXECUTOR);
    let pid = container.next().expect("it runs")["status"]["executor_pid"].clone();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("an environment");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let mut variables = environment.split('\0');
    variables.find_map(|one| {
        let value = one.strip_prefix("MESOS_EXECUTOR_AUTHENTICATION_TOKEN=")?;
        Some(value.to_owned())
    })
}

fn task_cannot_act_for_foreign_executor() {
    let (world, mut link) = world(&[]);
    let mut caller = Caller::new(&world);
    for user in ["nobody", "root"] {
        let bodies = [
            subscribe(EXECUTOR),
            finished(),
            message(),
            // The answer does not show whether the executor exists.
            subscribe("no-such-executor"),
        ];
        let answers = caller.task(&mut link, user, API, &bodies);
        assert_eq!(answers, ["401"; 4], "a task of {user}");
        let (method, path, _) = API;
        let made_up = world.dir.path().join("made-up");
        std::fs::write(&made_up, "a.b.c").expect("a token");
        let made_up = made_up.to_str().expect("text");
        let made_up = caller.task(&mut link, user, (method, path, made_up), &[message()]);
        assert_eq!(made_up, ["401"]);
    }
    let outside = caller.user(NOBODY, ("POST", "/api/v1/executor"), &subscribe(EXECUTOR));
    assert_eq!(outside, "401", "its user, but not its container");
    // The executor itself sends no token, and is still accepted; nobody has replaced its stream.
    world.kill(&link, "a", None);
    world.expect_of(&mut link, "a", TaskKilled);
}

fn executor_is_identified_by_secret_token() {
    let (world, mut link) = world(&[]);
    let token = token_of(&world).expect("a token");
    let mut caller = Caller::new(&world);
    let file = world.dir.path().join("token");
    std::fs::write(&file, &token).expect("written");
    let (method, path, _) = API;
    let api = (method, path, file.to_str().expect("text"));
    let bodies = [subscribe("another"), finished()];
    let answers = caller.task(&mut link, "nobody", api, &bodies);
    assert_eq!(
        answers,
        ["403", "202"],
        "for whom it was made, from anywhere"
    );
    let told = caller
        .others
        .pop()
        .unwrap_or_else(|| world.update(&mut link));
    let told = (told.task_id.value.as_str(), told.state());
    assert_eq!(told, ("a", TaskFinished));
    let pages = [
        "/state",
        "/flags",
        "/metrics",
        "/containers",
        "/monitor/statistics",
    ];
    for page in pages {
        assert!(!world.get(page).text().contains(&token), "{page}");
    }
    for kind in ["GET_STATE", "GET_EXECUTORS", "GET_CONTAINERS", "GET_FLAGS"] {
        let answer = world.call(&json!({"type": kind}));
        assert!(!answer.text().contains(&token), "{kind}");
    }
    assert!(!world.log().contains(&token), "the log");
    let key = world.work_dir().join("meta/executor_key");
    let mode = std::fs::metadata(&key).expect("a key").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let seen = caller.user(NOBODY, ("GET", "/health"), &json!({}));
    assert_eq!(seen, "200");
    assert!(!can_read(NOBODY, &key));
}

fn can_read(uid: u32, path: &Path) -> bool {
    let mut command = Command::new("cat");
    let status = command
        .arg(path)
        .uid(uid)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.expect("it runs").success()
}

fn executor_authentication_can_be_disabled() {
    let (world, mut link) = world(&["--authenticate_http_executors=false"]);
    assert_eq!(token_of(&world), None);
    let mut caller = Caller::new(&world);
    let answers = caller.task(&mut link, "nobody", API, &[finished(), subscribe("none")]);
    assert_eq!(answers, ["202", "400"], "as Mesos does by default");
}

fn a_task_is_not_the_operator() {
    let (world, mut link) = World::registered(&[]);
    let mut caller = Caller::new(&world);
    let container = json!({"value": "inner", "parent": {"value": "outer"}});
    let session = json!({
        "type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {
            "container_id": container, "command": {"value": "id", "user": "root"},
        },
    });
    let state = json!({"type": "GET_STATE"});
    for user in ["nobody", "root"] {
        let calls = ("POST", "/api/v1", "");
        let answers = caller.task(&mut link, user, calls, &[session.clone(), state.clone()]);
        assert_eq!(answers, ["403", "403"], "a task of {user}");
        let looks = caller.task(&mut link, user, ("GET", "/state", ""), &[json!({})]);
        assert_eq!(looks, ["403"], "a task of {user}");
        let open = caller.task(&mut link, user, ("GET", "/health", ""), &[json!({})]);
        assert_eq!(open, ["200"], "a task of {user}");
    }
    assert_eq!(caller.user(NOBODY, ("POST", "/api/v1"), &state), "403");
    assert_eq!(caller.user(0, ("POST", "/api/v1"), &state), "200");
    assert_eq!(world.get("/state").status, 200, "the operator");
    drop(world);

    let (world, _link) = World::registered(&["--authenticate_http_readonly=false"]);
    let caller = Caller::new(&world);
    let looks = caller.user(NOBODY, ("GET", "/state"), &json!({}));
    assert_eq!(looks, "200", "the operator has said so");
    assert_eq!(caller.user(NOBODY, ("POST", "/api/v1"), &state), "403");
}

/// The agent itself makes HTTP checks and fetches, whose requests its own API would trust.
fn agent_requests_use_tasks_identity() {
    let (world, mut link) = World::registered(&[]);
    let url = world.url("/state");
    let port = url.trim_end_matches("/state").rsplit(':').next();
    let port: u32 = port.expect("a port").parse().expect("a number");
    for user in ["nobody", "root"] {
        let id = format!("looks-{user}");
        let mut task = by(user, shell(&id, "sleep 1000"));
        task.check = Some(Box::new(pb::CheckInfo {
            r#type: Some(pb::check_info::Type::Http.into()),
            http: Some(pb::check_info::Http {
                port,
                path: Some("/state".to_owned()),
            }),
            delay_seconds: Some(0.0),
            interval_seconds: Some(0.1),
            timeout_seconds: Some(20.0),
            ..pb::CheckInfo::default()
        }));
        world.run(&link, task);
        let seen = loop {
            let status = world.update(&mut link);
            assert!(!meseta_agent::core::is_terminal(status.state), "{status:?}");
            let seen = status.check_status.and_then(|check| check.http);
            if let Some(code) = seen.and_then(|http| http.status_code) {
                break code;
            }
        };
        assert_eq!(seen, 403, "a check of {user}");
        world.end(&mut link, &id);
        let task = by(user, shell(&format!("fetches-{user}"), "true"));
        let task = with_uri(task, url.clone(), false);
        let last = world.run_to(&mut link, task, TaskFailed);
        assert!(last.message().contains("403"), "{last:?}");
    }
}

/// An executor that only waits, with the call to make from its container.
fn nesting_executor(world: &World, body: &Value) -> pb::TaskInfo {
    let mut task = by_nobody(world);
    // The name of its sandbox identifies its container.
    let call = format!(
        "{} call POST {} ''",
        program_in(world).display(),
        world.url("/api/v1")
    );
    command_of(&mut task).value = Some(format!(
        "c=$(basename $(readlink -f .)); b=$(printf %s {} | sed s/OUTER/$c/); \
         {call} \"$b\" > answer; \
         {call} \"$(printf %s \"$b\" | sed s/nobody/root/)\" >> answer; sleep 600",
        quoted(&body.to_string()),
    ));
    task
}

fn executor_nests_containers_as_its_user() {
    let (world, link) = World::registered(&[]);
    let launch = json!({
        "type": "LAUNCH_NESTED_CONTAINER",
        "launch_nested_container": {
            "container_id": {"value": "inner", "parent": {"value": "OUTER"}},
            "command": {"value": "sleep 600", "user": "nobody"},
        },
    });
    world.run_in_executor(&link, nesting_executor(&world, &launch), true);
    let answer = wait_for("both answers", || {
        let path = world.sandbox_of(EXECUTOR)?.join("answer");
        let text = std::fs::read_to_string(path).ok()?;
        (text.lines().count() == 2).then_some(text)
    });
    assert_eq!(answer, "200\n403\n", "as itself, and as root");
}
