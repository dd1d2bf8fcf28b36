//! A framework that launches command tasks, acknowledges what it is told, and comes back when its stream breaks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_master::core::call::{Action, Subscribe};
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self as pb, TaskState};

/// Tasks that are not over at one time, at most.
const TASKS_MAX: usize = 12;

/// A task as the framework knows it.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) agent: String,
    /// The newest state that it was told; none before the first.
    pub(crate) state: Option<TaskState>,
    /// The uuid of the first terminal update.
    terminal: Option<Vec<u8>>,
    seen: BTreeSet<Vec<u8>>,
    /// The uuids of its updates as they came first.
    pub(crate) order: Vec<Vec<u8>>,
}

impl Task {
    pub(crate) fn is_over(&self) -> bool {
        self.state.is_some_and(is_terminal)
    }
}

/// The scheduler of one framework.
#[derive(Debug, Default)]
pub(crate) struct Framework {
    pub(crate) id: Option<String>,
    /// The stream that it subscribed on, until it breaks.
    pub(crate) connection: Option<u64>,
    pub(crate) tasks: BTreeMap<String, Task>,
    /// Calls that are on their way.
    pub(crate) calls: VecDeque<Action>,
    /// Whether it declines all that it is offered.
    pub(crate) idle: bool,
    /// Reads nothing of its stream meanwhile.
    pub(crate) is_busy: bool,
    pub(crate) violations: Vec<String>,
    /// Answers to reconciliation that it has read and of which the master was not told.
    pub(crate) answers: usize,
    subscribed: bool,
}

impl Framework {
    pub(crate) fn is_subscribed(&self) -> bool {
        self.connection.is_some() && self.subscribed
    }

    /// What it subscribes with.
    pub(crate) fn subscription(&self) -> Subscribe {
        use pb::framework_info::capability::Type;
        let id = self.id.clone().map(|value| pb::FrameworkId { value });
        let info = pb::FrameworkInfo {
            user: "somebody".to_owned(),
            name: "simulated".to_owned(),
            id,
            failover_timeout: Some(1e6),
            checkpoint: Some(true),
            capabilities: vec![pb::framework_info::Capability {
                r#type: Some(Type::PartitionAware.into()),
            }],
            ..pb::FrameworkInfo::default()
        };
        Subscribe {
            info,
            suppressed_roles: Vec::new(),
            offer_constraints: None,
        }
    }

    /// Its stream breaks: calls that have not arrived are lost.
    pub(crate) fn disconnected(&mut self) {
        self.connection = None;
        self.subscribed = false;
        self.calls.clear();
        self.answers = 0;
    }

    /// Asks for the state of every task that is not over, and of whatever else there is.
    pub(crate) fn reconcile(&mut self) {
        let open = self.tasks.iter().filter(|(_, task)| !task.is_over());
        let tasks = open.map(|(id, task)| call::reconcile::Task {
            task_id: pb::TaskId { value: id.clone() },
            agent_id: Some(pb::AgentId {
                value: task.agent.clone(),
            }),
        });
        let tasks: Vec<_> = tasks.collect();
        if !tasks.is_empty() {
            self.calls
                .push_back(Action::Reconcile(call::Reconcile { tasks }));
        }
    }

    /// Asks for the end of a task.
    pub(crate) fn kill(&mut self, id: &str) {
        self.calls.push_back(Action::Kill(call::Kill {
            task_id: pb::TaskId {
                value: id.to_owned(),
            },
            agent_id: None,
            kill_policy: None,
        }));
    }

    /// One event that has arrived.
    pub(crate) fn hear(&mut self, event: Event) {
        match event.r#type() {
            event::Type::Subscribed => {
                self.subscribed = true;
                self.id = event.subscribed.map(|body| body.framework_id.value);
                self.reconcile();
            }
            event::Type::Offers => {
                let offers = event.offers.into_iter().flat_map(|body| body.offers);
                offers.for_each(|offer| self.answer(offer));
            }
            event::Type::Update => {
                if let Some(update) = event.update {
                    self.update(update.status);
                }
            }
            event::Type::Error => self.violations.push(format!("ERROR: {:?}", event.error)),
            _ => {}
        }
    }

    fn answer(&mut self, offer: pb::Offer) {
        let open = self.tasks.values().filter(|task| !task.is_over()).count();
        let fits = offer
            .resources
            .iter()
            .any(|one| one.name == "cpus" && one.scalar.is_some_and(|cpus| cpus.value >= 1.0))
            && offer
                .resources
                .iter()
                .any(|one| one.name == "mem" && one.scalar.is_some_and(|mem| mem.value >= 64.0));
        let filters = Some(pb::Filters {
            refuse_seconds: Some(1.0),
        });
        if self.idle || open >= TASKS_MAX || !fits {
            return self.calls.push_back(Action::Decline(call::Decline {
                offer_ids: vec![offer.id],
                filters,
            }));
        }
        let id = format!("t{}", self.tasks.len());
        let task = Task {
            agent: offer.agent_id.value.clone(),
            ..Task::default()
        };
        self.tasks.insert(id.clone(), task);
        let launch = pb::offer::operation::Launch {
            task_infos: vec![task_info(id, offer.agent_id)],
        };
        self.calls.push_back(Action::Accept(call::Accept {
            offer_ids: vec![offer.id],
            operations: vec![pb::offer::Operation {
                r#type: Some(pb::offer::operation::Type::Launch.into()),
                launch: Some(launch),
                ..pb::offer::Operation::default()
            }],
            filters,
        }));
    }

    fn update(&mut self, status: pb::TaskStatus) {
        let (id, state) = (status.task_id.value.clone(), status.state());
        let Some(task) = self.tasks.get_mut(&id) else {
            return self
                .violations
                .push(format!("update of task {id}, which nobody launched"));
        };
        let Some(uuid) = status.uuid else {
            self.answers += 1;
            if !task.is_over() {
                task.state = Some(state);
            }
            return;
        };
        if task.seen.insert(uuid.clone()) {
            task.order.push(uuid.clone());
            match &task.terminal {
                Some(_) => self
                    .violations
                    .push(format!("task {id} is {state:?} after its end")),
                None if is_terminal(state) => task.terminal = Some(uuid.clone()),
                None => {}
            }
            task.state = Some(state);
        }
        if let (Some(agent), Ok(uuid)) = (status.agent_id, <[u8; 16]>::try_from(uuid)) {
            self.calls.push_back(Action::Acknowledge {
                agent_id: agent.value,
                task_id: id,
                uuid,
            });
        }
    }
}

fn is_terminal(state: TaskState) -> bool {
    meseta_master::core::is_terminal(state)
}

fn task_info(id: String, agent_id: pb::AgentId) -> pb::TaskInfo {
    let scalar = |name: &str, value| pb::Resource {
        name: name.to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        ..pb::Resource::default()
    };
    pb::TaskInfo {
        name: id.clone(),
        task_id: pb::TaskId { value: id },
        agent_id,
        resources: vec![scalar("cpus", 1.0), scalar("mem", 64.0)],
        command: Some(pb::CommandInfo {
            value: Some("true".to_owned()),
            ..pb::CommandInfo::default()
        }),
        ..pb::TaskInfo::default()
    }
}
