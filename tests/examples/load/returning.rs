//! Simulated agents that outlive their master: each has a connection of its own, and comes back to the next master with its
//! tasks, after the pauses of a real agent.
//!
//! A task whose id begins with [`KEPT`] runs for ever. Others end one after the other once none has been launched for some
//! time, so that updates continue for a while. Invariant: the next update of a task leaves once the one before is
//! acknowledged, and each is repeated until then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use meseta_proto::meseta::v1::{Acknowledge, Pong, Reregister, RunTask, agent_frame, master_frame};
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_tests::dice::Dice;
use meseta_tests::simulated_agents::{
    FINISHED, FRAMES_MAX, KEPT, PLENTY, RUNNING, frame, registration, update,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// The pause between two ending tasks of an agent.
const PACE: Duration = Duration::from_millis(50);
/// The time from the last launch until tasks end.
const SETTLED: Duration = Duration::from_secs(3);
/// The pause before an unacknowledged update is repeated, without limit.
const RETRY: Duration = Duration::from_secs(10);
/// Failures after which pauses no longer grow.
const DOUBLINGS_MAX: u32 = 6;

/// Raises the limit of descriptors to the maximum.
pub(crate) fn raise_descriptors() -> anyhow::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Runs agents from this number on, until the process is killed.
pub(crate) async fn run(master: &str, first: usize, count: usize) -> anyhow::Result<()> {
    raise_descriptors()?;
    let endpoint = Channel::from_shared(format!("http://{master}"))?;
    let agents: Vec<_> = (first..first + count)
        .map(|index| tokio::spawn(agent(endpoint.clone(), index)))
        .collect();
    for agent in agents {
        agent.await??;
    }
    Ok(())
}

async fn agent(endpoint: Endpoint, index: usize) -> anyhow::Result<()> {
    let mut dice = Dice::new(u64::try_from(index)? + 1);
    let mut agent = Agent::new(index);
    let mut failures = 0;
    loop {
        agent.is_registered = false;
        // In every case a lost master is looked for at once, and after a failed search there is a pause.
        let _ = agent.session(&endpoint).await;
        if agent.is_registered {
            failures = 0;
            continue;
        }
        let most_ms = 1_000 << failures.min(DOUBLINGS_MAX);
        failures += 1;
        let pause_ms = most_ms / 2 + dice.roll(most_ms / 2);
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// The state of an agent that moves from one master to the next.
#[derive(Debug)]
struct Agent {
    index: usize,
    is_registered: bool,
    id: Option<v1::AgentId>,
    tasks: BTreeMap<String, Held>,
    frameworks: BTreeMap<String, v1::FrameworkInfo>,
    launched: Instant,
    retried: Instant,
}

#[derive(Debug)]
struct Held {
    task: v1::Task,
    /// The update that is not acknowledged yet.
    unacknowledged: Option<u8>,
}

impl Held {
    fn update(&self) -> Option<agent_frame::Message> {
        let task = &self.task;
        let which = self.unacknowledged?;
        Some(update(
            task.framework_id.clone(),
            task.task_id.clone(),
            which,
        ))
    }
}

impl Agent {
    fn new(index: usize) -> Self {
        Self {
            index,
            is_registered: false,
            id: None,
            tasks: BTreeMap::new(),
            frameworks: BTreeMap::new(),
            launched: Instant::now(),
            retried: Instant::now(),
        }
    }

    /// Runs one connection to a master, until it ends.
    async fn session(&mut self, endpoint: &Endpoint) -> anyhow::Result<()> {
        let mut client = AgentRegistryClient::new(endpoint.connect().await?);
        let (frames, waiting) = mpsc::channel(FRAMES_MAX);
        frames.send(frame(self.first_message()?)).await?;
        let mut orders = client
            .connect(ReceiverStream::new(waiting))
            .await?
            .into_inner();
        loop {
            let said = tokio::select! {
                order = orders.message() => match order? {
                    Some(order) => order.message.map(|order| self.obey(order)),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(PACE), if self.is_busy() => Some(self.go_on()),
            };
            for message in said.into_iter().flatten() {
                frames.send(frame(message)).await?;
            }
        }
    }

    fn first_message(&self) -> anyhow::Result<agent_frame::Message> {
        let mut register = registration(self.index, PLENTY)?;
        let Some(id) = self.id.clone() else {
            return Ok(agent_frame::Message::Register(register));
        };
        register.agent_info.id = Some(id);
        let tasks = self.tasks.values();
        Ok(agent_frame::Message::Reregister(Reregister {
            register,
            tasks: tasks.map(|held| held.task.encode_to_vec()).collect(),
            frameworks: self.frameworks.values().cloned().collect(),
            ..Reregister::default()
        }))
    }

    /// Returns the answers to an order.
    fn obey(&mut self, order: master_frame::Message) -> Vec<agent_frame::Message> {
        match order {
            master_frame::Message::Registered(registered) => {
                self.id = Some(registered.agent_id);
                self.is_registered = true;
                self.tasks.values().filter_map(Held::update).collect()
            }
            master_frame::Message::Ping(ping) => vec![agent_frame::Message::Pong(Pong {
                sequence: ping.sequence,
                ..Pong::default()
            })],
            master_frame::Message::RunTask(run) => self.launch(run),
            master_frame::Message::Acknowledge(acknowledge) => {
                self.acknowledged(&acknowledge);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn launch(&mut self, run: RunTask) -> Vec<agent_frame::Message> {
        let (info, framework) = (run.task, run.framework);
        let Some(framework_id) = framework.id.clone() else {
            return Vec::new();
        };
        let name = info.task_id.value.clone();
        self.frameworks
            .entry(framework_id.value.clone())
            .or_insert(framework);
        let task = v1::Task {
            name: info.name,
            task_id: info.task_id,
            framework_id,
            agent_id: info.agent_id,
            state: TaskState::TaskRunning.into(),
            resources: info.resources,
            status_update_state: Some(TaskState::TaskRunning.into()),
            status_update_uuid: Some(vec![RUNNING; 16]),
            ..v1::Task::default()
        };
        let held = Held {
            task,
            unacknowledged: Some(RUNNING),
        };
        let said = held.update().into_iter().collect();
        self.tasks.insert(name, held);
        self.launched = Instant::now();
        said
    }

    fn acknowledged(&mut self, acknowledge: &Acknowledge) {
        let name = &acknowledge.task_id.value;
        let Some(held) = self.tasks.get_mut(name) else {
            return;
        };
        if held.unacknowledged != acknowledge.uuid.first().copied() {
            return;
        }
        if held.unacknowledged.take() == Some(FINISHED) {
            self.tasks.remove(name);
        }
    }

    /// Whether the agent has tasks to end, or updates to resend.
    fn is_busy(&self) -> bool {
        let ends = |(name, held): (&String, &Held)| {
            held.unacknowledged.is_some() || !name.starts_with(KEPT)
        };
        self.is_registered && self.tasks.iter().any(ends)
    }

    /// Ends a task, and repeats unacknowledged updates.
    fn go_on(&mut self) -> Vec<agent_frame::Message> {
        let mut said = Vec::new();
        if self.retried.elapsed() >= RETRY {
            self.retried = Instant::now();
            said.extend(self.tasks.values().filter_map(Held::update));
        }
        if self.launched.elapsed() < SETTLED {
            return said;
        }
        let runs = |(name, held): &(&String, &mut Held)| {
            held.unacknowledged.is_none() && !name.starts_with(KEPT)
        };
        if let Some((_, held)) = self.tasks.iter_mut().find(runs) {
            held.task.state = TaskState::TaskFinished.into();
            held.task.status_update_state = Some(TaskState::TaskFinished.into());
            held.task.status_update_uuid = Some(vec![FINISHED; 16]);
            held.unacknowledged = Some(FINISHED);
            said.extend(held.update());
        }
        said
    }
}
