//! How many tasks per second the core alone takes from launch to acknowledged end.
//!
//! `cargo run --release -p meseta-master --example core_throughput -- [AGENTS] [TASKS]`

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use meseta_master::core::call::{Action, Subscribe};
use meseta_master::core::{
    AllocatorConfig, Config, ConnectionId, Effect, Identity, Input, MasterCore, Memory,
    QuotaSemantics, Recovered, ReplyId, Visible,
};
use meseta_proto::convert::{Format, parse_resources, resources as resources_of, to_resources};
use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_proto::transport::door::Caller;
use meseta_resources::Role;
use meseta_resources::time::{Moment, Now};

const SCHEDULER: ConnectionId = ConnectionId(0);
const STREAM: &str = "stream";

struct World {
    core: MasterCore,
    began: Instant,
    offers: Vec<v1::Offer>,
    runs: Vec<meseta::RunTask>,
    framework: String,
    agents: BTreeMap<String, ConnectionId>,
    replies: u64,
    steps: u64,
    slowest: Duration,
}

impl World {
    fn step(&mut self, input: Input) {
        let elapsed = self.began.elapsed();
        let now = Now {
            moment: Moment::ORIGIN + elapsed,
            unix: Duration::from_secs(1_800_000_000) + elapsed,
        };
        let before = Instant::now();
        let effects = self.core.step(now, input);
        self.slowest = self.slowest.max(before.elapsed());
        self.steps += 1;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => self.step(Input::Persisted { lsn }),
                Effect::Visible { visible, .. } => self.see(visible),
            }
        }
    }

    fn see(&mut self, visible: Visible) {
        match visible {
            Visible::Event { event, .. } => {
                if let Some(subscribed) = event.subscribed {
                    self.framework = subscribed.framework_id.value;
                }
                self.offers
                    .extend(event.offers.into_iter().flat_map(|offers| offers.offers));
            }
            Visible::Frame { to, frame } => match frame.message {
                Some(master_frame::Message::Registered(registered)) => {
                    self.agents.insert(registered.agent_id.value, to);
                }
                Some(master_frame::Message::RunTask(run)) => self.runs.push(run),
                _ => {}
            },
            Visible::CloseScheduler { .. }
            | Visible::CloseAgent { .. }
            | Visible::Reply { .. }
            | Visible::OperationOver { .. }
            | Visible::Note(_) => {}
        }
    }

    fn call(&mut self, action: Action) {
        self.replies += 1;
        self.step(Input::Call {
            reply: ReplyId(self.replies),
            framework_id: self.framework.clone(),
            stream_id: Some(STREAM.to_owned()),
            action: Box::new(action),
            caller: Caller::default(),
        });
    }

    /// One state of one task: told, and acknowledged.
    fn advance(&mut self, run: &meseta::RunTask, state: TaskState, uuid: u8) {
        let agent = run.task.agent_id.value.clone();
        let Some(connection) = self.agents.get(&agent).copied() else {
            return;
        };
        let update = meseta::StatusUpdate {
            framework_id: v1::FrameworkId {
                value: self.framework.clone(),
            },
            status: v1::TaskStatus {
                task_id: run.task.task_id.clone(),
                state: state.into(),
                uuid: Some(vec![uuid; 16]),
                ..v1::TaskStatus::default()
            },
            latest_state: Some(state.into()),
        };
        self.step(Input::AgentFrame {
            connection,
            message: Box::new(agent_frame::Message::StatusUpdate(update)),
        });
        self.call(Action::Acknowledge {
            agent_id: agent,
            task_id: run.task.task_id.value.clone(),
            uuid: [uuid; 16],
        });
    }
}

fn config() -> Config {
    Config {
        identity: Identity {
            id: "bench".to_owned(),
            hostname: "localhost".to_owned(),
            ip: std::net::Ipv4Addr::LOCALHOST,
            port: 5050,
            cluster: None,
            version: "1.12.0".to_owned(),
            domain: None,
        },
        allocation_interval: Duration::from_secs(1),
        agent_ping_timeout: Duration::from_secs(3_600),
        max_agent_ping_timeouts: 5,
        agent_reregister_timeout: Duration::from_secs(600),
        agent_removal_interval: Duration::ZERO,
        agent_removal_percent: 50,
        offer_timeout: None,
        max_completed_frameworks: 50,
        max_completed_tasks_per_framework: 1_000,
        max_unreachable_tasks_per_framework: 1_000,
        registry_max_agent_age: Duration::from_secs(86_400),
        registry_max_agent_count: 1_000,
        registry_gc_interval: Duration::from_secs(900),
        memory: Memory::of(4 << 30),
        require_agent_domain: false,
        whitelist: None,
        root_submissions: true,
        roles: None,
        weights: BTreeMap::new(),
        quota_semantics: QuotaSemantics::Seed,
        allocator: AllocatorConfig::default(),
    }
}

fn whole_cpus(resources: &[v1::Resource]) -> Result<usize, Box<dyn Error>> {
    let cpus = resources_of(resources)?.cpus().unwrap_or_default();
    Ok(usize::try_from(cpus.whole_units())?)
}

fn task(number: usize, offer: &v1::Offer, resources: &[v1::Resource]) -> v1::TaskInfo {
    v1::TaskInfo {
        name: "bench".to_owned(),
        task_id: v1::TaskId {
            value: format!("task-{number}"),
        },
        agent_id: offer.agent_id.clone(),
        resources: resources.to_vec(),
        command: Some(v1::CommandInfo::default()),
        ..v1::TaskInfo::default()
    }
}

fn accept(offer: v1::Offer, tasks: Vec<v1::TaskInfo>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: vec![offer.id],
        operations: vec![v1::offer::Operation {
            r#type: Some(v1::offer::operation::Type::Launch.into()),
            launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
            ..v1::offer::Operation::default()
        }],
        filters: Some(v1::Filters {
            refuse_seconds: Some(0.0),
        }),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<usize>());
    let agents = arguments.next().transpose()?.unwrap_or(1_000);
    let tasks = arguments.next().transpose()?.unwrap_or(100_000);
    let recovered = Recovered {
        epoch: 1,
        ..Recovered::default()
    };
    let mut world = World {
        core: MasterCore::new(config(), recovered, Now::default()),
        began: Instant::now(),
        offers: Vec::new(),
        runs: Vec::new(),
        framework: String::new(),
        agents: BTreeMap::new(),
        replies: 0,
        steps: 0,
        slowest: Duration::ZERO,
    };
    let has = to_resources(
        &parse_resources(
            "cpus:32;mem:65536;disk:65536;ports:[31000-32000]",
            &Role::star(),
        )?,
        Format::PostRefinement,
    )?;
    let takes = to_resources(
        &parse_resources("cpus:1;mem:64", &Role::star())?,
        Format::PostRefinement,
    )?;
    for number in 1..=agents {
        let register = meseta::Register {
            agent_info: v1::AgentInfo {
                hostname: format!("node-{number}"),
                resources: has.clone(),
                ..v1::AgentInfo::default()
            },
            version: "0.1.0".to_owned(),
            ..meseta::Register::default()
        };
        world.step(Input::AgentFrame {
            connection: ConnectionId(u64::try_from(number)?),
            message: Box::new(agent_frame::Message::Register(register)),
        });
    }
    world.step(Input::Subscribe {
        connection: SCHEDULER,
        stream_id: STREAM.to_owned(),
        call: Box::new(Subscribe {
            info: v1::FrameworkInfo {
                user: "bench".to_owned(),
                name: "bench".to_owned(),
                ..v1::FrameworkInfo::default()
            },
            suppressed_roles: Vec::new(),
            offer_constraints: None,
        }),
        caller: Caller::default(),
    });
    world.slowest = Duration::ZERO;
    let (began, steps) = (Instant::now(), world.steps);
    let mut launched = 0;
    let mut finished = 0;
    while finished < tasks {
        for offer in std::mem::take(&mut world.offers) {
            let cpus = whole_cpus(&offer.resources)?;
            let batch: Vec<v1::TaskInfo> = (launched..tasks)
                .take(cpus.min(8))
                .map(|number| task(number, &offer, &takes))
                .collect();
            launched += batch.len();
            world.call(accept(offer, batch));
        }
        let runs = std::mem::take(&mut world.runs);
        if runs.is_empty() && finished < launched {
            return Err("tasks were refused".into());
        }
        finished += runs.len();
        for run in runs {
            world.advance(&run, TaskState::TaskRunning, 1);
            world.advance(&run, TaskState::TaskFinished, 2);
        }
        world.step(Input::Tick);
    }
    let took = began.elapsed();
    let rate = f64::from(u32::try_from(tasks)?) / took.as_secs_f64();
    writeln!(
        std::io::stdout(),
        "{agents} agents, {tasks} tasks in {took:.2?}: {rate:.0} tasks/s, {} steps, slowest {:.2?}",
        world.steps - steps,
        world.slowest
    )?;
    Ok(())
}
