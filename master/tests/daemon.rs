//! A whole master over real sockets: an agent over gRPC, schedulers over HTTP and gRPC.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use meseta_master::{Flags, RunEnv, RunError, run};
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::meseta::v1::{
    AgentFrame, MasterFrame, Pong, Register, Registered, Reregister, StatusUpdate, agent_frame,
    master_frame,
};
use meseta_proto::mesos::v1::scheduler::{self, Event, call};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_proto::{convert, json};
use meseta_resources::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Long enough for a loaded machine; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

fn flags(work_dir: &Path, more: &[&str]) -> Flags {
    let work_dir = format!("--work_dir={}", work_dir.display());
    let all = ["master", "--port=0", work_dir.as_str()]
        .into_iter()
        .chain(more.iter().copied());
    Command::try_parse_from(all).unwrap().flags
}

/// What is waited for with patience.
async fn soon<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waiting).await.unwrap()
}

struct Master {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), RunError>>,
}

impl Master {
    async fn start(work_dir: &Path, more: &[&str]) -> Self {
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let env = RunEnv {
            flags_view: BTreeMap::new(),
            verbosity: Default::default(),
            ready: Some(ready),
            started: None,
            shutdown: Box::pin(async move {
                stopped.await.unwrap_or_default();
            }),
        };
        let running = tokio::spawn(run(flags(work_dir, more), env));
        let address = is_ready.await.unwrap();
        Self {
            address,
            stop,
            running,
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        soon(self.running).await.unwrap().unwrap();
    }
}

/// An agent made of nothing but its frames.
struct Agent {
    out: mpsc::Sender<AgentFrame>,
    frames: tonic::Streaming<MasterFrame>,
    id: String,
}

fn resources(text: &str) -> Vec<v1::Resource> {
    let resources = convert::parse_resources(text, &Role::star()).unwrap();
    convert::to_resources(&resources, convert::Format::PostRefinement).unwrap()
}

fn task_id(id: &str) -> v1::TaskId {
    let value = id.to_owned();
    v1::TaskId { value }
}

fn framework_id(id: &str) -> v1::FrameworkId {
    let value = id.to_owned();
    v1::FrameworkId { value }
}

fn agent_id(id: &str) -> v1::AgentId {
    let value = id.to_owned();
    v1::AgentId { value }
}

fn registration() -> Register {
    Register {
        agent_info: v1::AgentInfo {
            hostname: "node.example".to_owned(),
            port: Some(5051),
            resources: resources("cpus:2;mem:1024"),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..Register::default()
    }
}

impl Agent {
    async fn connect(address: SocketAddr, first: agent_frame::Message) -> (Self, Registered) {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = AgentRegistryClient::new(endpoint.connect().await.unwrap());
        let (out, frames) = mpsc::channel(16);
        let message = Some(first);
        out.send(AgentFrame { message }).await.unwrap();
        let frames = client
            .connect(ReceiverStream::new(frames))
            .await
            .unwrap()
            .into_inner();
        let mut agent = Self {
            out,
            frames,
            id: String::new(),
        };
        let registered = agent
            .until(|message| match message {
                master_frame::Message::Registered(registered) => Some(registered),
                _ => None,
            })
            .await;
        agent.id.clone_from(&registered.agent_id.value);
        (agent, registered)
    }

    async fn say(&self, message: agent_frame::Message) {
        let message = Some(message);
        self.out.send(AgentFrame { message }).await.unwrap();
    }

    /// The next frame that is wanted; pings are answered.
    async fn until<T>(&mut self, want: impl Fn(master_frame::Message) -> Option<T>) -> T {
        loop {
            let frame = soon(self.frames.message()).await;
            let message = frame.unwrap().unwrap().message.unwrap();
            if let master_frame::Message::Ping(ping) = &message {
                let sequence = ping.sequence;
                self.say(agent_frame::Message::Pong(Pong { sequence }))
                    .await;
            }
            if let Some(wanted) = want(message) {
                return wanted;
            }
        }
    }

    async fn update(&self, framework: &str, task: &str, state: TaskState, uuid: u8) {
        self.say(agent_frame::Message::StatusUpdate(StatusUpdate {
            framework_id: framework_id(framework),
            status: TaskStatus {
                task_id: task_id(task),
                state: state.into(),
                uuid: Some(vec![uuid; 16]),
                ..TaskStatus::default()
            },
            latest_state: Some(state.into()),
        }))
        .await;
    }
}

/// A scheduler that reads HTTP by hand, to see the chunks.
struct Stream {
    socket: BufReader<TcpStream>,
    stream_id: String,
}

impl Stream {
    async fn subscribe(address: SocketAddr, call: &Value) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let body = call.to_string();
        // In chunks, and asking for the connection to be closed, as some clients do.
        let request = format!(
            "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
             application/json\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Self {
            socket: BufReader::new(socket),
            stream_id: String::new(),
        };
        assert_eq!(stream.line().await, "HTTP/1.1 200 OK");
        loop {
            let line = stream.line().await;
            if line.is_empty() {
                return stream;
            }
            if let Some(id) = line.strip_prefix("Mesos-Stream-Id: ") {
                stream.stream_id = id.to_owned();
            }
        }
    }

    /// Makes a call that is accepted.
    async fn call(&self, address: SocketAddr, path: &str, call: &Value) {
        let answer = post(address, path, &self.stream_id, call.to_string()).await;
        assert_eq!(answer, (202, String::new()));
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        soon(self.socket.read_line(&mut line)).await.unwrap();
        line.trim_end().to_owned()
    }

    /// The next record, which is a chunk of its own; `None` at the end.
    async fn event(&mut self) -> Option<Value> {
        let size = usize::from_str_radix(&self.line().await, 16).unwrap_or_default();
        if size == 0 {
            return None;
        }
        let mut chunk = vec![0; size + 2];
        self.socket.read_exact(&mut chunk).await.unwrap();
        let text = std::str::from_utf8(&chunk).unwrap().trim_end();
        let (length, json) = text.split_once('\n').unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), json.len());
        Some(serde_json::from_str(json).unwrap())
    }

    async fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await.unwrap();
            if event["type"] == kind {
                return event;
            }
        }
    }
}

async fn post(address: SocketAddr, path: &str, stream: &str, body: String) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Mesos-Stream-Id: {stream}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    read_response(socket).await
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    read_response(socket).await
}

async fn read_response(mut socket: TcpStream) -> (u16, String) {
    let mut response = String::new();
    let reading = socket.read_to_string(&mut response);
    soon(reading).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    let body = response.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

fn subscribe_call(id: Option<&str>) -> Value {
    let mut info = json!({
        "user": "root", "name": "test", "roles": ["dev"], "failover_timeout": 600,
        "capabilities": [{"type": "MULTI_ROLE"}, {"type": "RESERVATION_REFINEMENT"}],
    });
    let mut call = json!({"type": "SUBSCRIBE"});
    if let Some(id) = id {
        info["id"] = json!({"value": id});
        call["framework_id"] = json!({"value": id});
    }
    call["subscribe"] = json!({"framework_info": info});
    call
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_end_to_end_and_again_after_a_restart_of_the_master() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(dir.path(), &[]).await;
    let address = master.address;
    let endpoint = std::fs::read_to_string(dir.path().join("endpoint")).unwrap();
    assert_eq!(endpoint, format!("http://{address}\n"));

    let (mut agent, _) =
        Agent::connect(address, agent_frame::Message::Register(registration())).await;
    let mut stream = Stream::subscribe(address, &subscribe_call(None)).await;
    let subscribed = stream.event().await.unwrap();
    assert_eq!(subscribed["subscribed"]["heartbeat_interval_seconds"], 15.0);
    let framework = subscribed["subscribed"]["framework_id"]["value"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(stream.event().await.unwrap(), json!({"type": "HEARTBEAT"}));
    let offers = stream.until("OFFERS").await;
    let offer = &offers["offers"]["offers"][0];
    let task = |id: &str| {
        json!({"name": id, "task_id": {"value": id}, "agent_id": offer["agent_id"],
            "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5}}],
            "command": {"value": "sleep 100"}})
    };
    let accept = json!({
        "type": "ACCEPT", "framework_id": {"value": framework},
        "accept": {
            "offer_ids": [offer["id"]],
            "operations": [{"type": "LAUNCH", "launch": {"task_infos": [task("a"), task("b")]}}],
        },
    });
    stream
        .call(address, "/master/api/v1/scheduler", &accept)
        .await;
    let run = agent
        .until(|message| match message {
            master_frame::Message::RunTask(run) => Some(run),
            _ => None,
        })
        .await;
    assert_eq!(run.task.task_id.value, "a");
    agent
        .update(&framework, "a", TaskState::TaskRunning, 1)
        .await;
    let update = stream.until("UPDATE").await;
    assert_eq!(update["update"]["status"]["state"], "TASK_RUNNING");
    assert_eq!(
        update["update"]["status"]["uuid"],
        "AQEBAQEBAQEBAQEBAQEBAQ=="
    );
    let acknowledge = json!({
        "type": "ACKNOWLEDGE", "framework_id": {"value": framework},
        "acknowledge": {"agent_id": {"value": agent.id}, "task_id": {"value": "a"},
            "uuid": "AQEBAQEBAQEBAQEBAQEBAQ=="},
    });
    stream
        .call(address, "/api/v1/scheduler", &acknowledge)
        .await;
    agent
        .until(|message| matches!(message, master_frame::Message::Acknowledge(_)).then_some(()))
        .await;

    let (status, state) = get(address, "/state").await;
    assert_eq!(status, 200);
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["slaves"][0]["used_resources"]["cpus"], 1.0);
    let shown = &state["frameworks"][0]["tasks"][0];
    assert_eq!(shown["executor_id"], "");
    assert_eq!(shown["statuses"][0]["state"], "TASK_RUNNING");

    // The master goes; its streams end with it.
    let registered_as = agent.id.clone();
    master.stop().await;
    while stream.event().await.is_some() {}

    let master = Master::start(dir.path(), &[]).await;
    let address = master.address;
    let mut register = registration();
    register.agent_info.id = Some(agent_id(&registered_as));
    let info: v1::FrameworkInfo = json::from_slice(
        subscribe_call(Some(&framework))["subscribe"]["framework_info"]
            .to_string()
            .as_bytes(),
    )
    .unwrap();
    let mut reported = v1::Task {
        name: "a".to_owned(),
        task_id: task_id("a"),
        framework_id: framework_id(&framework),
        agent_id: agent_id(&registered_as),
        state: TaskState::TaskRunning.into(),
        resources: resources("cpus:0.5"),
        ..v1::Task::default()
    };
    reported.resources[0].allocation_info = Some(v1::resource::AllocationInfo {
        role: Some("dev".to_owned()),
    });
    let report = Reregister {
        register,
        tasks: vec![reported],
        frameworks: vec![info],
        ..Reregister::default()
    };
    let (mut agent, registered) =
        Agent::connect(address, agent_frame::Message::Reregister(report)).await;
    assert_eq!(registered.agent_id.value, registered_as);
    let mut stream = Stream::subscribe(address, &subscribe_call(Some(&framework))).await;
    let offers = stream.until("OFFERS").await;
    let cpus = &offers["offers"]["offers"][0]["resources"][0];
    assert_eq!(
        (&cpus["name"], &cpus["scalar"]["value"]),
        (&json!("cpus"), &json!(1.5))
    );
    agent
        .update(&framework, "a", TaskState::TaskFinished, 2)
        .await;
    assert_eq!(
        stream.until("UPDATE").await["update"]["status"]["state"],
        "TASK_FINISHED"
    );

    // An agent whose stream ends loses its offers.
    drop(agent.out);
    stream.until("RESCIND").await;
    while agent
        .frames
        .message()
        .await
        .is_ok_and(|frame| frame.is_some())
    {}
    master.stop().await;
}

/// The services that reflection tells of.
async fn services(channel: tonic::transport::Channel) -> Vec<String> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list of services");
    };
    list.service.into_iter().map(|one| one.name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scheduler_api_over_grpc_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(dir.path(), &["--registry=in_memory"]).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", master.address)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    for service in ["", "meseta.v1.Scheduler", "meseta.v1.AgentRegistry"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let described = services(endpoint.connect().await.unwrap()).await;
    for service in ["meseta.v1.Scheduler", "meseta.v1.AgentRegistry"] {
        assert!(described.contains(&service.to_owned()), "{described:?}");
    }
    let mut client = SchedulerClient::new(endpoint.connect().await.unwrap());
    let (_agent, _) = Agent::connect(
        master.address,
        agent_frame::Message::Register(registration()),
    )
    .await;
    let subscribe = call::Subscribe {
        framework_info: v1::FrameworkInfo {
            user: "root".to_owned(),
            name: "grpc".to_owned(),
            ..v1::FrameworkInfo::default()
        },
        ..call::Subscribe::default()
    };
    let response = client.subscribe(subscribe).await.unwrap();
    let stream_id = response.metadata().get("mesos-stream-id").unwrap().clone();
    let mut events = response.into_inner();
    let mut next = async || -> Event { soon(events.message()).await.unwrap().unwrap() };
    let framework = next().await.subscribed.unwrap().framework_id;
    assert_eq!(next().await.r#type(), scheduler::event::Type::Heartbeat);
    let offer = next().await.offers.unwrap().offers.remove(0);
    let decline = |stream: bool| {
        let mut request = tonic::Request::new(scheduler::Call {
            framework_id: Some(framework.clone()),
            r#type: Some(call::Type::Decline.into()),
            decline: Some(call::Decline {
                offer_ids: vec![offer.id.clone()],
                filters: None,
            }),
            ..scheduler::Call::default()
        });
        if stream {
            request
                .metadata_mut()
                .insert("mesos-stream-id", stream_id.clone());
        }
        request
    };
    let refused = client.call(decline(false)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("Mesos-Stream-Id"));
    client.call(decline(true)).await.unwrap();
    let unknown = client.call(scheduler::Call::default()).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::InvalidArgument);
    master.stop().await;
}

/// What a framework that subscribes for a principal is told first; its stream ends with that.
async fn first_event(address: SocketAddr, principal: &str, id: Option<&str>) -> Event {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = SchedulerClient::new(endpoint.connect().await.unwrap());
    let subscribe = call::Subscribe {
        framework_info: v1::FrameworkInfo {
            user: "alice".to_owned(),
            name: "owned".to_owned(),
            id: id.map(framework_id),
            principal: Some(principal.to_owned()),
            failover_timeout: Some(3_600.0),
            ..v1::FrameworkInfo::default()
        },
        ..call::Subscribe::default()
    };
    let mut events = client.subscribe(subscribe).await.unwrap().into_inner();
    soon(events.message()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_framework_id_is_its_principals_after_a_restart_of_the_master() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(dir.path(), &[]).await;
    let subscribed = first_event(master.address, "ada", None).await.subscribed;
    let id = subscribed.unwrap().framework_id.value;
    master.stop().await;
    let master = Master::start(dir.path(), &[]).await;
    let refused = first_event(master.address, "mallory", Some(&id)).await;
    assert_eq!(
        refused.error.unwrap().message,
        "Changing framework's principal is not allowed."
    );
    let subscribed = first_event(master.address, "ada", Some(&id)).await;
    assert_eq!(subscribed.subscribed.unwrap().framework_id.value, id);
    master.stop().await;
}

#[tokio::test]
async fn what_keeps_a_master_from_starting_is_said_clearly() {
    async fn fails(flags: Flags) -> String {
        let env = RunEnv {
            flags_view: BTreeMap::new(),
            verbosity: Default::default(),
            ready: None,
            started: None,
            shutdown: Box::pin(std::future::pending()),
        };
        soon(run(flags, env)).await.unwrap_err().to_string()
    }
    let dir = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut occupied = flags(dir.path(), &[]);
    occupied.port = taken.local_addr().unwrap().port();
    let text = fails(occupied).await;
    assert!(text.contains("in use") && text.contains("--port"), "{text}");

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = fails(flags(&file.join("below"), &[])).await;
    assert!(text.contains("--work_dir"), "{text}");

    for (flag, part) in [
        ("--registry=etcd", "not available yet"),
        ("--registry=paper", "use embedded, in_memory or etcd"),
        ("--allocation_interval=soon", "--allocation_interval=soon"),
        ("--ip=0.0.0.0", "--insecure"),
    ] {
        let text = fails(flags(dir.path(), &[flag])).await;
        assert!(text.contains(part), "{text}");
    }

    let master = Master::start(dir.path(), &[]).await;
    let text = fails(flags(dir.path(), &[])).await;
    assert!(text.contains("in use by another process"), "{text}");
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_are_refused_before_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(dir.path(), &["--registry=in_memory"]).await;
    let socket = TcpStream::connect(master.address).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let head = "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 104857600\r\n\r\n";
    writer.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    soon(reader.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    // Whoever goes on sending is cut off.
    let chunk = vec![b' '; 65_536];
    let sending = async {
        loop {
            if let Err(error) = writer.write_all(&chunk).await {
                return error.kind();
            }
        }
    };
    let error = soon(sending).await;
    assert!(matches!(
        error,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    ));
    assert_eq!(get(master.address, "/health").await.0, 200);
    master.stop().await;
}
