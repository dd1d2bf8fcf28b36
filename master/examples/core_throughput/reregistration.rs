//! All agents of a cluster return to a newly started master with their running tasks.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use meseta_master::core::{AgentRecord, ConnectionId, Input, Recovered};
use meseta_proto::convert::{Format, parse_resources, to_resources};
use meseta_proto::meseta::v1::{self as meseta, AgentFrame, agent_frame};
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_resources::Role;
use prost::Message;

use crate::world::World;

const FRAMEWORKS: usize = 200;
/// The number of frames that a master reads before it handles offers again.
const BURST: usize = 64;

struct Cluster {
    has: Vec<v1::Resource>,
    takes: Vec<v1::Resource>,
    agents: usize,
    tasks: usize,
}

fn agent_id(number: usize) -> v1::AgentId {
    v1::AgentId {
        value: format!("5c5b4a2e-7a0f-4d1c-8f3b-6f1f0a9d2b11-S{number}"),
    }
}

fn framework_id(number: usize) -> v1::FrameworkId {
    v1::FrameworkId {
        value: format!("5c5b4a2e-7a0f-4d1c-8f3b-6f1f0a9d2b11-{number:04}"),
    }
}

impl Cluster {
    fn new(agents: usize, tasks: usize) -> Result<Self, Box<dyn Error>> {
        let resources = |text| -> Result<Vec<v1::Resource>, Box<dyn Error>> {
            let parsed = parse_resources(text, &Role::star())?;
            Ok(to_resources(&parsed, Format::PostRefinement)?)
        };
        Ok(Self {
            has: resources("cpus:64;mem:262144;disk:1048576;ports:[31000-32000]")?,
            takes: resources("cpus:0.1;mem:64")?,
            agents,
            tasks,
        })
    }

    fn info(&self, number: usize) -> v1::AgentInfo {
        v1::AgentInfo {
            hostname: format!("node-{number}.example"),
            port: Some(5051),
            resources: self.has.clone(),
            id: Some(agent_id(number)),
            ..v1::AgentInfo::default()
        }
    }

    /// The registry content that the former master left.
    fn recovered(&self) -> Recovered {
        let record = |number| AgentRecord {
            agent_id: agent_id(number).value,
            info: self.info(number).encode_to_vec().into(),
        };
        Recovered {
            epoch: 2,
            agents: (0..self.agents).map(record).collect(),
            ..Recovered::default()
        }
    }

    fn task(&self, agent: usize, number: usize) -> v1::Task {
        let task_id = v1::TaskId {
            value: format!("service-{number}.3f2c1b9a-instance"),
        };
        let status = v1::TaskStatus {
            task_id: task_id.clone(),
            state: TaskState::TaskRunning.into(),
            agent_id: Some(agent_id(agent)),
            timestamp: Some(1_800_000_000.0),
            uuid: Some(vec![1; 16]),
            ..v1::TaskStatus::default()
        };
        let takes = self.takes.iter().cloned().map(|mut resource| {
            resource.allocation_info = Some(v1::resource::AllocationInfo {
                role: Some("bench".to_owned()),
            });
            resource
        });
        v1::Task {
            name: "service".to_owned(),
            task_id,
            framework_id: framework_id(number % FRAMEWORKS),
            agent_id: agent_id(agent),
            state: TaskState::TaskRunning.into(),
            resources: takes.collect(),
            statuses: vec![status],
            status_update_state: Some(TaskState::TaskRunning.into()),
            status_update_uuid: Some(vec![1; 16]),
            ..v1::Task::default()
        }
    }

    /// The encoded frame of a reregistering agent.
    fn frame(&self, agent: usize) -> Vec<u8> {
        let numbers = (agent..self.tasks).step_by(self.agents);
        let tasks: Vec<_> = numbers.map(|number| self.task(agent, number)).collect();
        let mut frameworks: Vec<_> = tasks.iter().map(|task| &task.framework_id).collect();
        frameworks.sort_by(|a, b| a.value.cmp(&b.value));
        frameworks.dedup();
        let frameworks = frameworks.into_iter().map(|id| v1::FrameworkInfo {
            user: "bench".to_owned(),
            name: format!("framework {}", id.value),
            id: Some(id.clone()),
            roles: vec!["bench".to_owned()],
            failover_timeout: Some(604_800.0),
            checkpoint: Some(true),
            ..v1::FrameworkInfo::default()
        });
        let reregister = meseta::Reregister {
            register: meseta::Register {
                agent_info: self.info(agent),
                version: "0.1.0".to_owned(),
                ..meseta::Register::default()
            },
            frameworks: frameworks.collect(),
            tasks: tasks.iter().map(v1::Task::encode_to_vec).collect(),
            ..meseta::Reregister::default()
        };
        let frame = AgentFrame {
            message: Some(agent_frame::Message::Reregister(reregister)),
        };
        frame.encode_to_vec()
    }
}

/// The resident memory of this process in MB; `None` if /proc does not show it.
fn resident_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes / 1_000)
}

/// Decodes frames on one thread and processes them on another, as a master does.
fn take_in(world: &mut World, agents: &[usize], frames: &[Vec<u8>]) -> Result<(), Box<dyn Error>> {
    std::thread::scope(|scope| {
        let (sender, decoded) = std::sync::mpsc::sync_channel(BURST);
        scope.spawn(move || {
            for bytes in frames {
                let frame = AgentFrame::decode(bytes.as_slice());
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        for (agent, frame) in agents.iter().zip(decoded) {
            let message = frame?.message.ok_or("a frame without a message")?;
            world.step_in_burst(Input::AgentFrame {
                connection: ConnectionId(u64::try_from(*agent)? + 1),
                message: Box::new(message),
            });
        }
        world.step(Input::Tick);
        Ok(())
    })
}

/// Creates the agents outside the measured time, and drops them before measuring memory.
pub(crate) fn run(agents: usize, tasks: usize) -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::new(agents, tasks)?;
    let recovered = cluster.recovered();
    let began = Instant::now();
    let mut world = World::recovered(recovered);
    let start = began.elapsed();
    let mut taken = Duration::ZERO;
    let numbers: Vec<usize> = (0..agents).collect();
    for burst in numbers.chunks(BURST) {
        let frames: Vec<_> = burst.iter().map(|agent| cluster.frame(*agent)).collect();
        let began = Instant::now();
        take_in(&mut world, burst, &frames)?;
        taken += began.elapsed();
    }
    let resident = resident_mb().unwrap_or_default();
    let snapshot = world.core.snapshot();
    let back: usize = snapshot.agents.iter().map(|agent| agent.tasks.len()).sum();
    if (snapshot.agents.len(), back) != (agents, tasks) {
        return Err(format!("{} agents and {back} tasks are back", snapshot.agents.len()).into());
    }
    writeln!(
        std::io::stdout(),
        "{agents} agents with {tasks} tasks: start {start:.2?}, taken in {taken:.2?}, slowest step {:.2?}; {:.2?} in all; \
         {resident} MB resident",
        world.slowest,
        start + taken,
    )?;
    Ok(())
}
