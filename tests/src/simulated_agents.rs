//! Agents that only talk: each task they are told to run is running, and finished as soon as its
//! updates are acknowledged, unless it is one that is to stay.
//!
//! They share connections and end with the master; `returning.rs` has those that do not.

use meseta_proto::convert::{Format, parse_resources, to_resources};
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::{
    AgentFrame, Pong, Register, StatusUpdate, agent_frame, master_frame,
};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::Role;

use crate::framework::KEPT;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// Frames of one agent that wait for the socket.
pub(crate) const FRAMES_MAX: usize = 4_096;

/// Each has a stream of its own; so many share a socket.
const AGENTS_PER_CONNECTION: usize = 10;

pub(crate) const RUNNING: u8 = 1;
pub(crate) const FINISHED: u8 = 2;

pub(crate) async fn run(master: &str, count: usize) -> anyhow::Result<()> {
    let mut agents = Vec::with_capacity(count);
    let mut channel = None;
    for index in 0..count {
        if index % AGENTS_PER_CONNECTION == 0 {
            let endpoint = Channel::from_shared(format!("http://{master}"))?;
            channel = Some(endpoint.connect().await?);
        }
        if let Some(channel) = channel.clone() {
            agents.push(tokio::spawn(agent(channel, index)));
        }
    }
    for agent in agents {
        agent.await??;
    }
    Ok(())
}

async fn agent(channel: Channel, index: usize) -> anyhow::Result<()> {
    let mut client = AgentRegistryClient::new(channel);
    let (frames, waiting) = mpsc::channel(FRAMES_MAX);
    frames.send(frame(register(index)?)).await?;
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

/// What an agent says to an order at once, if anything.
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
        _ => None,
    }
}

pub(crate) fn frame(message: agent_frame::Message) -> AgentFrame {
    AgentFrame {
        message: Some(message),
    }
}

fn register(index: usize) -> anyhow::Result<agent_frame::Message> {
    Ok(agent_frame::Message::Register(registration(index)?))
}

pub(crate) fn registration(index: usize) -> anyhow::Result<Register> {
    let resources = parse_resources("cpus:1000000;mem:100000000", &Role::star())?;
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

pub(crate) fn update(
    framework_id: v1::FrameworkId,
    task_id: v1::TaskId,
    which: u8,
) -> agent_frame::Message {
    let state = if which == RUNNING {
        TaskState::TaskRunning
    } else {
        TaskState::TaskFinished
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
