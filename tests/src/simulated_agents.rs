//! Simulated agents that only talk: each launched task is running, and finished as soon as its updates are acknowledged,
//! unless its id marks it as kept. A killed task has been killed.
//!
//! They share connections and end with the master; the example `load` has agents that do not.

use meseta_proto::convert::{Format, parse_resources, to_resources};
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::{
    AgentFrame, Pong, Register, StatusUpdate, agent_frame, master_frame,
};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::Role;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// The prefix of the ids of tasks that do not end by themselves.
pub const KEPT: &str = "keep";

/// The default resources of each agent: more than any number of tasks takes.
pub const PLENTY: &str = "cpus:1000000;mem:100000000";

/// Frames of one agent that wait for its socket.
pub const FRAMES_MAX: usize = 4_096;

/// The number of agents that share a socket; each has a stream of its own.
const AGENTS_PER_CONNECTION: usize = 10;

pub const RUNNING: u8 = 1;
pub const FINISHED: u8 = 2;
const KILLED: u8 = 3;

/// Runs agents with these resources each, until the master ends.
pub async fn run(master: &str, count: usize, resources: &str) -> anyhow::Result<()> {
    let mut agents = Vec::with_capacity(count);
    let mut channel = None;
    for index in 0..count {
        if index % AGENTS_PER_CONNECTION == 0 {
            let endpoint = Channel::from_shared(format!("http://{master}"))?;
            channel = Some(endpoint.connect().await?);
        }
        if let Some(channel) = channel.clone() {
            agents.push(tokio::spawn(agent(channel, index, resources.to_owned())));
        }
    }
    for agent in agents {
        agent.await??;
    }
    Ok(())
}

async fn agent(channel: Channel, index: usize, resources: String) -> anyhow::Result<()> {
    let mut client = AgentRegistryClient::new(channel);
    let (frames, waiting) = mpsc::channel(FRAMES_MAX);
    let register = registration(index, &resources)?;
    frames
        .send(frame(agent_frame::Message::Register(register)))
        .await?;
    let mut orders = client
        .connect(ReceiverStream::new(waiting))
        .await?
        .into_inner();
    while let Some(order) = orders.message().await? {
        if let Some(answer) = order.message.and_then(answer) {
            frames.send(frame(answer)).await?;
        }
    }
    Ok(())
}

/// Returns an agent's immediate answer to an order, if any.
fn answer(order: master_frame::Message) -> Option<agent_frame::Message> {
    match order {
        master_frame::Message::Ping(ping) => Some(agent_frame::Message::Pong(Pong {
            sequence: ping.sequence,
            ..Pong::default()
        })),
        master_frame::Message::RunTask(run) => {
            Some(update(run.framework.id?, run.task.task_id, RUNNING))
        }
        master_frame::Message::Acknowledge(acknowledge)
            if acknowledge.uuid.first() == Some(&RUNNING)
                && !acknowledge.task_id.value.starts_with(KEPT) =>
        {
            Some(update(
                acknowledge.framework_id,
                acknowledge.task_id,
                FINISHED,
            ))
        }
        master_frame::Message::KillTask(kill) => {
            Some(update(kill.framework_id, kill.task_id, KILLED))
        }
        _ => None,
    }
}

/// Encodes a message for the wire.
pub fn frame(message: agent_frame::Message) -> AgentFrame {
    AgentFrame {
        message: Some(message),
    }
}

/// Returns the registration of the agent with this number.
pub fn registration(index: usize, resources: &str) -> anyhow::Result<Register> {
    let resources = parse_resources(resources, &Role::star())?;
    let port = i32::try_from(10_000 + index)?;
    Ok(Register {
        agent_info: v1::AgentInfo {
            hostname: format!("node-{index}"),
            port: Some(port),
            resources: to_resources(&resources, Format::PostRefinement)?,
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..Register::default()
    })
}

/// Returns an update that a task is running, or has ended.
pub fn update(
    framework_id: v1::FrameworkId,
    task_id: v1::TaskId,
    which: u8,
) -> agent_frame::Message {
    let state = match which {
        RUNNING => TaskState::TaskRunning,
        KILLED => TaskState::TaskKilled,
        _ => TaskState::TaskFinished,
    };
    agent_frame::Message::StatusUpdate(StatusUpdate {
        framework_id,
        status: TaskStatus {
            task_id,
            state: state.into(),
            uuid: Some(vec![which; 16]),
            ..TaskStatus::default()
        },
        latest_state: Some(state.into()),
    })
}
