//! An agent that leaves for good, and its scheduler's events, compared with the recording.
//!
//! The agent only talks: the test plays it over gRPC.

use meseta_proto::convert::{Format, parse_resources, to_resources};
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::{
    AgentFrame, Register, StatusUpdate, Unregister, agent_frame, master_frame,
};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::Role;
use meseta_tests::Cluster;
use meseta_tests::recording::{self, Events};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        agent_departure_matches_recording;
}

/// The number of frames that this agent sends.
const FRAMES_MAX: usize = 8;

/// A stream to the master, with its thread.
struct Agent {
    runtime: Runtime,
    frames: mpsc::Sender<AgentFrame>,
    orders: tonic::Streaming<meseta_proto::meseta::v1::MasterFrame>,
}

impl Agent {
    fn register(master: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (frames, waiting) = mpsc::channel(FRAMES_MAX);
        let url = format!("http://{master}");
        let orders = runtime.block_on(async {
            let endpoint = Channel::from_shared(url).expect("an address");
            let channel = endpoint.connect().await.expect("connected");
            let mut client = AgentRegistryClient::new(channel);
            frames
                .send(frame(register()))
                .await
                .expect("the stream is open");
            let stream = client.connect(ReceiverStream::new(waiting)).await;
            stream.expect("a stream").into_inner()
        });
        Self {
            runtime,
            frames,
            orders,
        }
    }

    fn say(&self, message: agent_frame::Message) {
        self.runtime
            .block_on(self.frames.send(frame(message)))
            .expect("the stream is open");
    }

    /// Runs the next order, whose task runs from then on.
    fn run(&mut self) {
        let run = self.runtime.block_on(async {
            loop {
                let order = self.orders.message().await.expect("an open stream");
                let order = order.expect("an order").message;
                if let Some(master_frame::Message::RunTask(run)) = order {
                    return run;
                }
            }
        });
        let state = TaskState::TaskRunning.into();
        self.say(agent_frame::Message::StatusUpdate(StatusUpdate {
            framework_id: run.framework.id.expect("an id"),
            status: TaskStatus {
                task_id: run.task.task_id,
                state,
                uuid: Some(vec![1; 16]),
                ..TaskStatus::default()
            },
            latest_state: Some(state),
        }));
    }
}

fn frame(message: agent_frame::Message) -> AgentFrame {
    AgentFrame {
        message: Some(message),
    }
}

fn register() -> agent_frame::Message {
    let resources = parse_resources("cpus:8;mem:8192;ports:[31000-32000]", &Role::star());
    let resources = resources.expect("resources");
    agent_frame::Message::Register(Register {
        agent_info: v1::AgentInfo {
            hostname: "127.0.0.1".to_owned(),
            port: Some(5051),
            resources: to_resources(&resources, Format::PostRefinement).expect("resources"),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..Register::default()
    })
}

fn agent_departure_matches_recording() {
    let cluster = Cluster::with_agents(0);
    let mut agent = Agent::register(cluster.master.address());
    let info = recording::framework_info();
    let mut framework = cluster.subscribe(&info);
    let offer = framework.offer();
    let small = [("cpus", 0.5), ("mem", 64.0)];
    framework.launch_task(&offer, "task-8", "sleep 600", &small);
    agent.run();
    framework.until_state("task-8", "TASK_RUNNING");
    let left = framework.offer();
    agent.say(agent_frame::Message::Unregister(Unregister {
        reason: "it is switched off".to_owned(),
    }));

    let recorded = Events::read("scheduler-events.jsonl");
    let lost = framework.wait_for("UPDATE");
    recorded.compare(
        "task lost",
        &lost,
        &[
            "/update/status/task_id",
            "/update/status/state",
            "/update/status/message",
            "/update/status/reason",
            "/update/status/source",
        ],
    );
    let rescinded = framework.wait_for("RESCIND");
    recorded.compare("rescind", &rescinded, &[]);
    assert_eq!(rescinded["rescind"]["offer_id"], left["id"]);
    recorded.compare("agent failure", &framework.wait_for("FAILURE"), &[]);
    let agents = cluster.master.page("/slaves").json();
    assert_eq!(agents["slaves"], serde_json::json!([]));
}
