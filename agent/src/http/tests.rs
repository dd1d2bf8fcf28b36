//! Tests the endpoints without sockets: the handlers' context over a simulated core.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser as _;
use http::header;
use meseta_access::{Acls, Authorizer, SecretHash};
use meseta_daemon::authentication::Authentication;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::owner::SocketOwner;
use meseta_daemon::server::CancellationToken;
use meseta_daemon::verbosity::Verbosity;
use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent as api;
use meseta_proto::mesos::v1::agent::call::{AttachContainerInput, Type, attach_container_input};
use meseta_proto::mesos::v1::agent::{ProcessIo, process_io};
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, Resources};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_stream::StreamExt as _;

use super::container_rights::{authorize, look_up};
use super::*;
use crate::budgets::Budgets;
use crate::checkpoint::{DiskCondition, Layout, RunKey};
use crate::configuration::flags::Flags;
use crate::core::{
    Container, Counters, Executor, ExecutorKind, ExecutorLink, Framework, Oversubscription,
    Snapshot, State as CoreState,
};
use crate::handle;
use crate::run::serving;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

/// The handlers' context and a single executor: a framework's own, with the user `nobody`.
struct TestAgent {
    context: Arc<Context>,
    executor: Arc<RunKey>,
    _dir: TempDir,
}

impl TestAgent {
    /// An agent on a network, with authentication and TLS.
    fn exposed() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pair = rcgen::generate_simple_self_signed(["agent".to_owned()]).expect("a pair");
        let hash = SecretHash::from_secret(b"secret", [1; 16]).expect("a hash");
        let files = [
            ("http_credentials", format!("admin {hash}")),
            ("ssl_cert_file", pair.cert.pem()),
            ("ssl_key_file", pair.signing_key.serialize_pem()),
        ];
        let mut args = vec!["--ip=10.0.0.1".to_owned()];
        for (flag, text) in files {
            let path = dir.path().join(flag);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
            args.push(format!("--{flag}={}", path.display()));
        }
        Self::with(dir, &args)
    }

    /// An agent for this machine only, where everybody may read.
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let args = ["--ip=127.0.0.1", "--authenticate_http_readonly=false"];
        Self::with(dir, &args.map(str::to_owned))
    }

    fn with(dir: TempDir, args: &[String]) -> Self {
        let flags = flags(dir.path(), args);
        let settings = flags.access.settings(flags.ip, flags.insecure, None);
        let (authentication, _) = settings.build().expect("sound");
        Self::from_dir(dir, &flags, authentication)
    }

    fn from_dir(dir: TempDir, flags: &Flags, authentication: Authentication) -> Self {
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.meta()).expect("made");
        let executor = Arc::new(RunKey {
            agent: AgentId::new("a").expect("an id"),
            framework: FrameworkId::new("f").expect("an id"),
            executor: ExecutorId::new("e").expect("an id"),
            container: ContainerId::new("outer").expect("an id"),
        });
        let (handle, mut mailbox) = handle::mailbox();
        let snapshot = Arc::new(snapshot(&executor));
        tokio::spawn(async move {
            while let Some(asked) = mailbox.queries.recv().await {
                let _ = asked.send(snapshot.clone());
            }
        });
        let context = serving::context(
            (flags, Budgets::read(flags.memory_budget).expect("enough")),
            &layout,
            handle,
            (BTreeMap::new(), Verbosity::default(), BuildInfo::default()),
            (SocketAddr::from(([10, 0, 0, 1], 5051)), Instant::now()),
            &CancellationToken::new(),
            (
                authentication,
                serving::executor_tokens(flags, &layout).expect("tokens"),
            ),
        );
        context.recovered.store(true, Ordering::Release);
        Self {
            context,
            executor,
            _dir: dir,
        }
    }

    /// The routed answer to a request.
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        use tower::ServiceExt as _;
        let answered = router(self.context.clone()).oneshot(request);
        answered.await.expect("an answer")
    }

    /// The status of a call of the operator API with the executor's token, from an address, over TLS.
    async fn call_with_token(&self, from: &str) -> StatusCode {
        let tokens = self.context.tokens.as_ref().expect("tokens");
        let mut peer = Peer::at(from.parse().expect("an address"));
        peer.encrypted = true;
        let request = Request::post("/api/v1")
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::AUTHORIZATION,
                format!("Bearer {}", tokens.for_run(&self.executor)),
            )
            .extension(peer)
            .body(Body::from(r#"{"type":"GET_HEALTH"}"#));
        let request = request.expect("a request");
        self.answer(request).await.status()
    }
}

fn flags(work_dir: &Path, more: &[String]) -> Flags {
    let work_dir = format!("--work_dir={}", work_dir.display());
    let args = ["agent", "--master=127.0.0.1:5050", &work_dir];
    let more = more.iter().map(String::as_str);
    let parsed = Command::try_parse_from(args.into_iter().chain(more));
    parsed.expect("flags").flags
}

/// A core that runs only this executor.
fn snapshot(run: &Arc<RunKey>) -> Snapshot {
    let executor = Executor {
        key: run.clone(),
        kind: ExecutorKind::Custom,
        info: None,
        user: "nobody".to_owned(),
        resources: Resources::default(),
        role: None,
        container: Container::new(run.container.clone(), Demand::default()),
        tasks: BTreeMap::new(),
        completed: VecDeque::new(),
        completed_bytes: 0,
        orphaned: false,
        link: ExecutorLink::default(),
    };
    let info = Arc::new(pb::FrameworkInfo::default());
    let mut framework = Framework::new(run.framework.clone(), info);
    let executors = &mut framework.executors;
    executors.insert(run.executor.clone(), Arc::new(executor));
    Snapshot {
        sequence: 1,
        state: CoreState::Running,
        agent_id: Some(run.agent.clone()),
        info: pb::AgentInfo::default(),
        capabilities: Vec::new(),
        resources: Resources::default(),
        operations: Vec::new(),
        master: None,
        master_epoch: None,
        frameworks: BTreeMap::from([(run.framework.clone(), Arc::new(framework))]),
        completed_frameworks: Vec::new(),
        counters: Counters::default(),
        draining: None,
        disk: DiskCondition::default(),
        oversubscription: Oversubscription::default(),
        frozen: BTreeSet::new(),
    }
}

#[tokio::test]
async fn executor_token_works_only_locally() {
    let agent = TestAgent::exposed();
    let here = agent.call_with_token("127.0.0.1:9").await;
    assert_eq!(here, StatusCode::OK);
    let elsewhere = agent.call_with_token("10.9.9.9:9").await;
    assert_eq!(elsewhere, StatusCode::UNAUTHORIZED);
}

/// A container inside the executor's.
fn nested_id(name: &str) -> pb::ContainerId {
    let outer = pb::ContainerId {
        value: "outer".to_owned(),
        parent: None,
    };
    pb::ContainerId {
        value: name.to_owned(),
        parent: Some(Box::new(outer)),
    }
}

/// A caller with an ACL of this name for objects of this user.
fn caller_with(acl: &str, user: &str) -> Caller {
    let acls = format!(
        r#"{{"{acl}": [{{"principals": {{"type": "ANY"}}, "users": {{"values": ["{user}"]}}}}]}}"#
    );
    let authorizer = Authorizer::new(Acls::parse(&acls).expect("ACLs"), false);
    Caller {
        approver: authorizer.approver(Some("somebody".to_owned())),
        ..Caller::default()
    }
}

#[tokio::test]
async fn attach_input_needs_executor_or_user() {
    let agent = TestAgent::exposed();
    let mut running = Vec::new();
    for (name, user) in [("own", "nobody"), ("operators", "root")] {
        let (input, _) = pipe::pipe().expect("a pipe");
        let id = ContainerId::try_from(&nested_id(name)).expect("an id");
        let nested = &agent.context.nested;
        running.push(nested.insert_running((&id, &agent.executor), user, input));
    }
    let executor = Caller::of_executor("outer".to_owned(), None);
    let stranger = Caller::of_executor("another".to_owned(), None);
    let typist = |user| caller_with("attach_containers_input", user);
    // The caller, and whether it may attach input to the executor's own container, and to the operator's.
    for (caller, own, operators) in [
        (executor, true, false),
        (stranger, false, false),
        (typist("nobody"), true, false),
        (typist("root"), false, true),
    ] {
        for (name, expected) in [("own", own), ("operators", operators)] {
            let id = nested_id(name);
            let kind = Type::AttachContainerInput;
            let found = look_up(&agent.context, &id).expect("it runs");
            let allowed = authorize(&agent.context, &caller, kind, Some(&id), Some(&found)).await;
            assert_eq!(allowed.is_ok(), expected, "{caller:?}: {name}");
        }
    }
}

#[tokio::test]
async fn large_answers_are_compressed_on_request() {
    use http_body_util::BodyExt as _;
    let agent = TestAgent::open();
    let ask = async |path: &str, encoding: &str| {
        let request = Request::get(path)
            .header(header::ACCEPT_ENCODING, encoding)
            .extension(Peer::at("127.0.0.1:1234".parse().expect("an address")))
            .body(Body::empty());
        let answered = agent.answer(request.expect("a request")).await;
        let (parts, body) = answered.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        assert_eq!(parts.status, StatusCode::OK, "{path}: {body:?}");
        (parts.headers.contains_key(header::CONTENT_ENCODING), body)
    };
    for path in ["/metrics", "/metrics/snapshot"] {
        let (is_compressed, body) = ask(path, "gzip").await;
        assert!(is_compressed && body.starts_with(&[0x1f, 0x8b]), "{path}");
        assert!(!ask(path, "identity").await.0, "{path}");
    }
    assert!(!ask("/health", "gzip").await.0);
}

#[tokio::test]
async fn gzip_bodies_respect_body_limits() {
    use std::io::Write as _;
    let agent = TestAgent::open();
    let gzip = |plain: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(plain).expect("room");
        encoder.finish().expect("room")
    };
    let owner = SocketOwner {
        uid: rustix::process::geteuid().as_raw(),
        inode: 1,
        cgroup: None,
    };
    let address = "127.0.0.1:1234".parse().expect("an address");
    let peer = Peer::owned(address, Some(owner));
    let json = "application/json";
    let ask = async |path: &str, content_type: &str, encoding: &str, body: &[u8]| {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::CONTENT_ENCODING, encoding)
            .extension(peer.clone());
        let request = match content_type {
            "application/recordio" => request.header(media::MESSAGE_CONTENT_TYPE, json),
            _ => request,
        };
        let request = request.body(Body::from(body.to_vec()));
        let answered = agent.answer(request.expect("a request")).await;
        answered.status().as_u16()
    };
    let bomb = vec![b' '; agent.context.budgets.call_bytes_max() + 1];
    let heartbeat: &[u8] =
        br#"{"type":"HEARTBEAT","framework_id":{"value":"f"},"executor_id":{"value":"e"}}"#;
    for (path, call, answer) in [
        ("/api/v1", &br#"{"type":"GET_HEALTH"}"#[..], 200),
        ("/api/v1/executor", heartbeat, 202),
    ] {
        assert_eq!(ask(path, json, "gzip", &gzip(call)).await, answer, "{path}");
        assert_eq!(ask(path, json, "gzip", call).await, 400, "{path}");
        assert_eq!(ask(path, json, "gzip", &gzip(&bomb)).await, 413, "{path}");
        assert_eq!(ask(path, json, "br", call).await, 415, "{path}");
    }
    // Streams of records are not compressed.
    let records = "application/recordio";
    assert_eq!(ask("/api/v1", records, "gzip", heartbeat).await, 415);
}

/// The executor of the run is known, but nothing is on disk.
#[tokio::test]
async fn unmade_sandbox_is_not_found() {
    let agent = TestAgent::exposed();
    for (user, run, expected) in [
        ("nobody", "latest", StatusCode::NOT_FOUND),
        ("nobody", "outer", StatusCode::NOT_FOUND),
        ("other", "latest", StatusCode::FORBIDDEN),
        ("nobody", "another", StatusCode::FORBIDDEN),
    ] {
        let read = api::call::ReadFile {
            path: format!("/frameworks/f/executors/e/runs/{run}/stdout"),
            ..api::call::ReadFile::default()
        };
        let caller = caller_with("access_sandboxes", user);
        let answer = files::read_for_api(&agent.context, &caller, read).await;
        let refused = answer.expect_err("there is no file");
        let answered = refused.into_response().status();
        assert_eq!(answered, expected, "{user}: {run}");
    }
}

/// A record of terminal input, as the body of its call.
fn typed(data: Vec<u8>) -> Bytes {
    attach_record(AttachContainerInput {
        r#type: Some(attach_container_input::Type::ProcessIo.into()),
        process_io: Some(ProcessIo {
            r#type: Some(process_io::Type::Data.into()),
            data: Some(process_io::Data {
                r#type: Some(process_io::data::Type::Stdin.into()),
                data: Some(data),
            }),
            ..ProcessIo::default()
        }),
        ..AttachContainerInput::default()
    })
}

fn attach_record(input: AttachContainerInput) -> Bytes {
    let call = api::Call {
        r#type: Some(Type::AttachContainerInput.into()),
        attach_container_input: Some(input),
        ..api::Call::default()
    };
    media::encode_record(MediaType::Protobuf, &call)
}

fn attach_record_to_session() -> Bytes {
    attach_record(AttachContainerInput {
        r#type: Some(attach_container_input::Type::ContainerId.into()),
        container_id: Some(nested_id("session")),
        ..AttachContainerInput::default()
    })
}

fn control(control: process_io::Control) -> Bytes {
    attach_record(AttachContainerInput {
        r#type: Some(attach_container_input::Type::ProcessIo.into()),
        process_io: Some(ProcessIo {
            r#type: Some(process_io::Type::Control.into()),
            control: Some(control),
            ..ProcessIo::default()
        }),
        ..AttachContainerInput::default()
    })
}

/// The size of a terminal, as a client tells it when somebody resizes the window.
fn resized(rows: u32, columns: u32) -> Bytes {
    control(process_io::Control {
        r#type: Some(process_io::control::Type::TtyInfo.into()),
        tty_info: Some(pb::TtyInfo {
            window_size: Some(pb::tty_info::WindowSize { rows, columns }),
        }),
        ..process_io::Control::default()
    })
}

/// A client at the input of a session, that sends a record whenever the test does.
struct InputClient {
    records: tokio::sync::mpsc::Sender<std::io::Result<Bytes>>,
    call: tokio::task::JoinHandle<Result<Reply, Reply>>,
}

impl InputClient {
    /// More records than any test sends.
    const RECORDS_MAX: usize = 32 * 1024;

    fn from_agent(agent: &TestAgent) -> Self {
        let (records, sent) = tokio::sync::mpsc::channel(Self::RECORDS_MAX);
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        let request = Request::post("/api/v1")
            .header(media::MESSAGE_CONTENT_TYPE, MediaType::Protobuf.as_str())
            .body(Body::from_stream(sent));
        let request = request.expect("a request");
        let context = agent.context.clone();
        let call = tokio::spawn(async move {
            let caller = Caller::of_executor("outer".to_owned(), None);
            attach_input::attach_input(&context, &caller, request).await
        });
        let client = Self { records, call };
        client.send(attach_record_to_session());
        client
    }

    fn send(&self, record: Bytes) {
        let sent = self.records.try_send(Ok(record));
        sent.expect("room for the record");
    }

    async fn status(self) -> StatusCode {
        drop(self.records);
        let reply = self.call.await.expect("no panic");
        let reply = reply.unwrap_or_else(|refused| refused);
        reply.into_response().status()
    }
}

/// The size waited behind the typed text, for as long as the command did not read that.
#[tokio::test]
async fn unread_input_delays_no_resize() {
    let agent = TestAgent::exposed();
    let own = ContainerId::try_from(&nested_id("session")).expect("an id");
    let nested = &agent.context.nested;
    let (running, other_end) = nested.insert_at_terminal((&own, &agent.executor));
    let client = InputClient::from_agent(&agent);
    // More than a terminal holds, in one record and in several.
    client.send(typed(b"line\n".repeat(60_000)));
    for _ in 0..100 {
        client.send(typed(b"line\n".repeat(10)));
    }
    client.send(control(process_io::Control {
        r#type: Some(process_io::control::Type::Heartbeat.into()),
        ..process_io::Control::default()
    }));
    client.send(resized(31, 97));
    loop {
        let size = rustix::termios::tcgetwinsize(&other_end).expect("a size");
        if (size.ws_row, size.ws_col) == (31, 97) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(!client.call.is_finished(), "the input is still unread");
    running.send(Some(Some(0))).expect("it is watched");
    assert_eq!(client.status().await, StatusCode::OK);
}

/// A client that went away kept the input that nobody read, as its loss was not seen.
#[tokio::test]
async fn lost_client_frees_unread_input() {
    let agent = TestAgent::exposed();
    let (input, read) = pipe::pipe().expect("a pipe");
    let own = ContainerId::try_from(&nested_id("session")).expect("an id");
    let nested = &agent.context.nested;
    let _running = nested.insert_running((&own, &agent.executor), "nobody", input);
    let client = InputClient::from_agent(&agent);
    client.send(typed(vec![b'x'; 300_000]));
    read.readable().await.expect("a pipe");
    let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    client
        .records
        .try_send(Err(lost))
        .expect("the call goes on");
    assert_eq!(client.status().await, StatusCode::BAD_REQUEST);
    let next = InputClient::from_agent(&agent);
    assert_eq!(next.status().await, StatusCode::OK);
}

/// Data that is sent while the container reads nothing comes in order, with the end of the input behind it.
#[tokio::test]
async fn unread_input_keeps_its_order() {
    let agent = TestAgent::exposed();
    let (input, mut read) = pipe::pipe().expect("a pipe");
    let own = ContainerId::try_from(&nested_id("session")).expect("an id");
    let nested = &agent.context.nested;
    let _running = nested.insert_running((&own, &agent.executor), "nobody", input);
    let client = InputClient::from_agent(&agent);
    let mut expected = Vec::new();
    for index in 0_u32..20_000 {
        let data = index.to_be_bytes().repeat(8);
        expected.extend_from_slice(&data);
        client.send(typed(data));
    }
    client.send(typed(Vec::new()));
    let status = tokio::spawn(client.status());
    let mut all = Vec::new();
    read.read_to_end(&mut all).await.expect("an end");
    assert!(all == expected, "{} of {} bytes", all.len(), expected.len());
    assert_eq!(status.await.expect("no panic"), StatusCode::OK);
}

/// Attaches to the input of a session with a body of these frames, each after a pause. Returns the number of bytes that
/// the session reads.
async fn attach_input(agent: &TestAgent, frames: Vec<Bytes>, pause: Duration) -> usize {
    let (input, mut read) = pipe::pipe().expect("a pipe");
    let own = ContainerId::try_from(&nested_id("session")).expect("an id");
    let nested = &agent.context.nested;
    let _running = nested.insert_running((&own, &agent.executor), "nobody", input);
    let reading = tokio::spawn(async move {
        let mut all = Vec::new();
        read.read_to_end(&mut all).await.expect("an end");
        all.len()
    });
    let frames = tokio_stream::iter(frames).then(move |frame| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, std::io::Error>(frame)
    });
    let request = Request::post("/api/v1")
        .header(media::MESSAGE_CONTENT_TYPE, MediaType::Protobuf.as_str())
        .body(Body::from_stream(frames));
    let request = request.expect("a request");
    let caller = Caller::of_executor("outer".to_owned(), None);
    let answer = attach_input::attach_input(&agent.context, &caller, request).await;
    answer.unwrap_or_else(|refused| panic!("{refused:?}"));
    let budget = agent.context.bodies.for_peer(memory_owner(&caller));
    assert_eq!(budget.used(), 0);
    reading.await.expect("no panic")
}

/// A body of this number of records, each with this many bytes of input, and the end of the input.
fn input_body(records: usize, bytes_each: usize) -> Vec<u8> {
    let mut body = attach_record_to_session().to_vec();
    for _ in 0..records {
        body.extend_from_slice(&typed(vec![b'x'; bytes_each]));
    }
    body.extend_from_slice(&typed(Vec::new()));
    body
}

fn frames(body: &[u8], bytes_each: usize) -> Vec<Bytes> {
    let frames = body.chunks(bytes_each);
    frames.map(Bytes::copy_from_slice).collect()
}

/// Clients without record support, such as `curl --data-binary`, and proxies send such frames.
#[tokio::test]
async fn input_may_split_within_records() {
    const RECORD_BYTES: usize = 200_000;
    let agent = TestAgent::exposed();
    let owner = memory_owner(&Caller::of_executor("outer".to_owned(), None));
    let records = 2 * agent.context.bodies.for_peer(owner).limit() / RECORD_BYTES + 1;
    let frames = frames(&input_body(records, RECORD_BYTES), RECORD_BYTES - 1);
    let read = attach_input(&agent, frames, Duration::ZERO).await;
    assert_eq!(read, records * RECORD_BYTES);
}

#[tokio::test(start_paused = true)]
async fn slow_split_input_stays_open() {
    let agent = TestAgent::exposed();
    let body = input_body(10, 100);
    let frames = frames(&body, body.len() / 9);
    let read = attach_input(&agent, frames, Duration::from_secs(20)).await;
    assert_eq!(read, 10 * 100);
}
