//! A whole master over real sockets: its gRPC services, and the reasons that keep it from starting.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use meseta_master::{Flags, RunEnv, RunError, run};
use meseta_proto::convert::{self, Format};
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::meseta::v1::{AgentFrame, Register, agent_frame, master_frame};
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::scheduler::{self, Event, call};
use meseta_resources::Role;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// A timeout long enough for a loaded machine; nothing waits for it to expire.
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

/// Waits for a future with a long timeout.
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
            build: Default::default(),
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

/// Registers an agent that sends nothing more; it stays connected until the returned value is dropped.
async fn register(address: SocketAddr) -> impl Sized {
    let resources = convert::parse_resources("cpus:2;mem:1024", &Role::star()).unwrap();
    let register = Register {
        agent_info: v1::AgentInfo {
            hostname: "node.example".to_owned(),
            resources: convert::to_resources(&resources, Format::PostRefinement).unwrap(),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..Register::default()
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = AgentRegistryClient::new(endpoint.connect().await.unwrap());
    let (out, said) = mpsc::channel(1);
    let message = Some(agent_frame::Message::Register(register));
    out.send(AgentFrame { message }).await.unwrap();
    let connected = client.connect(ReceiverStream::new(said)).await;
    let connected = connected.unwrap();
    // The agent gets the master's epoch before anything else.
    let led = LedEpoch::read(connected.metadata()).unwrap();
    let mut frames = connected.into_inner();
    loop {
        let frame = soon(frames.message()).await.unwrap().unwrap();
        if let Some(master_frame::Message::Registered(_)) = frame.message {
            assert_eq!((led.epoch, led.cluster_id), (frame.epoch, frame.cluster_id));
            return (out, frames);
        }
    }
}

/// The services that reflection lists.
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
async fn grpc_scheduler_api_matches_http() {
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
    let _agent = register(master.address).await;
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

#[tokio::test]
async fn startup_failures_are_explained() {
    async fn fails(flags: Flags) -> String {
        let env = RunEnv {
            build: Default::default(),
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
        ("--registry=etcd", "--registry=etcd needs it"),
        ("--registry=paper", "use embedded, in_memory or etcd"),
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
