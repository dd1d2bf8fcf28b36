//! A master's core without its shell: every registry write is durable at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meseta_daemon::authentication::Caller;
use meseta_master::core::call::{Action, Subscribe};
use meseta_master::core::{
    AllocatorConfig, Config, ConnectionId, Effect, Identity, Input, MasterCore, Memory, Output,
    QuotaSemantics, Recovered, ReplyId, Request, SubscribeRequest,
};
use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_resources::time::{Moment, Now};

const SCHEDULER: ConnectionId = ConnectionId(0);
const STREAM: &str = "stream";

pub(crate) struct World {
    pub(crate) core: MasterCore,
    pub(crate) began: Instant,
    pub(crate) offers: Vec<v1::Offer>,
    pub(crate) runs: Vec<meseta::RunTask>,
    pub(crate) framework: String,
    pub(crate) agents: BTreeMap<String, ConnectionId>,
    pub(crate) replies: u64,
    pub(crate) steps: u64,
    pub(crate) slowest: Duration,
    /// The number of operations sent to agents.
    pub(crate) applied: usize,
}

impl World {
    /// A master with an empty registry.
    pub(crate) fn new() -> Self {
        Self::recovered(Recovered {
            epoch: 1,
            ..Recovered::default()
        })
    }

    /// A master that starts with the former master's registry.
    pub(crate) fn recovered(recovered: Recovered) -> Self {
        Self {
            core: MasterCore::new(config(), recovered, Now::default()),
            began: Instant::now(),
            offers: Vec::new(),
            runs: Vec::new(),
            framework: String::new(),
            agents: BTreeMap::new(),
            replies: 0,
            steps: 0,
            slowest: Duration::ZERO,
            applied: 0,
        }
    }

    pub(crate) fn register(
        &mut self,
        number: usize,
        resources: &[v1::Resource],
        capabilities: &[Capability],
    ) {
        let capability = |kind: &Capability| v1::agent_info::Capability {
            r#type: Some((*kind).into()),
        };
        let register = meseta::Register {
            agent_info: v1::AgentInfo {
                hostname: format!("node-{number}"),
                resources: resources.to_vec(),
                ..v1::AgentInfo::default()
            },
            version: "0.1.0".to_owned(),
            capabilities: capabilities.iter().map(capability).collect(),
            ..meseta::Register::default()
        };
        self.step(Input::AgentFrame {
            connection: ConnectionId(u64::try_from(number).unwrap_or(u64::MAX)),
            message: Box::new(agent_frame::Message::Register(register)),
        });
    }

    pub(crate) fn subscribe(&mut self, info: v1::FrameworkInfo) {
        self.step(Input::Subscribe(SubscribeRequest {
            connection: SCHEDULER,
            stream_id: STREAM.to_owned(),
            call: Box::new(Subscribe {
                info,
                suppressed_roles: Vec::new(),
                offer_constraints: None,
            }),
            caller: Caller::default(),
        }));
    }

    /// A single input of a burst; the last input of the burst is a normal step.
    pub(crate) fn step_in_burst(&mut self, input: Input) {
        self.stepped(input, MasterCore::step_in_burst);
    }

    pub(crate) fn step(&mut self, input: Input) {
        self.stepped(input, MasterCore::step);
    }

    fn stepped(&mut self, input: Input, step: fn(&mut MasterCore, Now, Input) -> Vec<Effect>) {
        let elapsed = self.began.elapsed();
        let now = Now {
            moment: Moment::ORIGIN + elapsed,
            unix: Duration::from_secs(1_800_000_000) + elapsed,
        };
        let before = Instant::now();
        let effects = step(&mut self.core, now, input);
        self.slowest = self.slowest.max(before.elapsed());
        self.steps += 1;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, .. } => self.stepped(Input::Persisted { lsn }, step),
                Effect::Output { output, .. } => self.deliver(output),
            }
        }
    }

    fn deliver(&mut self, output: Output) {
        match output {
            Output::Event { event, .. } => {
                if let Some(subscribed) = event.subscribed {
                    self.framework = subscribed.framework_id.value;
                }
                self.offers
                    .extend(event.offers.into_iter().flat_map(|offers| offers.offers));
            }
            Output::Frame { to, frame } => match frame.message {
                Some(master_frame::Message::Registered(registered)) => {
                    self.agents.insert(registered.agent_id.value, to);
                }
                Some(master_frame::Message::RunTask(run)) => self.runs.push(run),
                Some(master_frame::Message::ApplyOperation(_)) => self.applied += 1,
                _ => {}
            },
            Output::CloseScheduler { .. }
            | Output::CloseAgent { .. }
            | Output::Reply { .. }
            | Output::OperationTaken { .. }
            | Output::OperationFinished { .. }
            | Output::OperatorEvent(_) => {}
        }
    }

    pub(crate) fn call(&mut self, action: Action) {
        self.replies += 1;
        self.step(Input::Request {
            reply: ReplyId(self.replies),
            request: Request::Call {
                framework_id: self.framework.clone(),
                stream_id: Some(STREAM.to_owned()),
                action: Box::new(action),
                caller: Caller::default(),
            },
        });
    }

    /// The next offer, after a new cycle if necessary.
    pub(crate) fn next_offer(&mut self) -> Result<v1::Offer, String> {
        if self.offers.is_empty() {
            self.step(Input::Tick);
        }
        let offer = self.offers.pop();
        offer.ok_or_else(|| "nothing is offered".to_owned())
    }

    /// Reports one state of a task, and acknowledges it.
    pub(crate) fn advance(&mut self, run: &meseta::RunTask, state: TaskState, uuid: u8) {
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
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 5050,
            cluster: None,
            version: "1.12.0".to_owned(),
            build: Default::default(),
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
        registry_epoch_rise_max: 1_000_000,
        memory: Memory::from_total_bytes(4 << 30),
        require_agent_domain: false,
        whitelist: None,
        root_submissions: true,
        roles: None,
        weights: BTreeMap::new(),
        quota_semantics: QuotaSemantics::Seed,
        allocator: AllocatorConfig::default(),
    }
}
