//! The job scheduler as a framework: the production core, with its store and the calls of its link.
//!
//! Crashes with what its store has not made durable, and promises what its users read: never more instances of a service
//! than its count and what an update may add, each index of a batch succeeds once, and runs of a schedule do not overlap.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meseta_jobs::core::{
    Accept, Effect, Input, Options, Record, Request, RestoreError, RoleSet, State, TaskName,
};
use meseta_jobs::placement::Offer;
use meseta_jobs::spec::{
    Backoff, Batch, Command, Cron, Gang, JobSpec, Kind, Overlap, Service, TaskTemplate, Update,
};
use meseta_jobs::task_info::{Instance, task_info};
use meseta_master::core::call::Action;
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self as pb};
use meseta_proto::reconciler;

use crate::behaviour::launch;
use crate::clock::Clock;

const SERVICE: &str = "web";
const BATCH: &str = "array";
const CRON: &str = "nightly";
const GANG: &str = "gang";
/// Instances of the service, and what an update may add.
const COUNT: u32 = 2;
const SURGE: u32 = 1;
/// Longer than any run: nothing is given up because it was not heard of.
const NEVER: Duration = Duration::from_secs(1_000_000_000);

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(8),
    reset_after: Duration::from_secs(60),
};

/// The scheduler's process and its store.
#[derive(Debug)]
pub(crate) struct Jobs {
    state: State,
    pub(crate) clock: Clock,
    store: BTreeMap<String, Vec<u8>>,
    /// Writes that are not durable yet.
    writes: VecDeque<(u64, Vec<Record>)>,
    calls: Vec<Action>,
    /// True time at the last step.
    time: u64,
    /// What its stream was opened with.
    stream_roles: RoleSet,
    requests: u64,
    version: u64,
    /// The first update that tells of the success of each index of a batch.
    successes: BTreeMap<(String, u64, u32), pb::TaskStatus>,
}

impl Jobs {
    pub(crate) fn new(clock: Clock) -> Result<Self, RestoreError> {
        Ok(Self {
            state: State::restore(options(), clock.now(0), [])?,
            clock,
            store: BTreeMap::new(),
            writes: VecDeque::new(),
            calls: Vec::new(),
            time: 0,
            stream_roles: RoleSet::default(),
            requests: 0,
            version: 0,
            successes: BTreeMap::new(),
        })
    }

    pub(crate) fn roles(&self) -> Vec<String> {
        self.state.roles().into_iter().collect()
    }

    /// The suppressed roles of the scheduler.
    pub(crate) fn idle_roles(&self) -> Vec<String> {
        self.state.idle_roles().into_iter().collect()
    }

    /// Takes what it is to tell the master.
    pub(crate) fn take_calls(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.calls)
    }

    pub(crate) fn step(&mut self, time: u64, input: Input) {
        self.time = time;
        for effect in self.state.step(self.clock.now(time), input) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let action = match effect {
            Effect::Store { id, records } => return self.writes.push_back((id, records)),
            Effect::Accept(accept) => accepted(&accept),
            Effect::Decline { offers, refuse } => Action::Decline(call::Decline {
                offer_ids: offers
                    .into_iter()
                    .map(|value| pb::OfferId { value })
                    .collect(),
                filters: Some(pb::Filters {
                    refuse_seconds: Some(refuse.as_secs_f64()),
                }),
            }),
            Effect::Kill { task_id, agent_id } => Action::Kill(call::Kill {
                task_id: pb::TaskId { value: task_id },
                agent_id: agent_id.map(|value| pb::AgentId { value }),
                kill_policy: None,
            }),
            Effect::Acknowledge(status) => {
                let uuid = status.uuid.and_then(|uuid| uuid.try_into().ok());
                let Some((uuid, agent)) = uuid.zip(status.agent_id) else {
                    return;
                };
                Action::Acknowledge {
                    agent_id: agent.value,
                    task_id: status.task_id.value,
                    uuid,
                }
            }
            Effect::Reconcile(reconciler::Request::Explicit(tasks)) => {
                Action::Reconcile(call::Reconcile { tasks })
            }
            Effect::Reconcile(reconciler::Request::Implicit) => {
                Action::Reconcile(call::Reconcile { tasks: Vec::new() })
            }
            Effect::Suppress(roles) => Action::Suppress {
                roles: roles.into_iter().collect(),
            },
            Effect::Revive(roles) => Action::Revive {
                roles: roles.into_iter().collect(),
            },
            Effect::Roles(roles) => return self.ask_for_roles(roles),
            // No job here has a volume.
            Effect::AcknowledgeOperation(_) | Effect::ReconcileOperations(_) => return,
            Effect::Answer { .. } | Effect::Event(_) => return,
        };
        self.calls.push(action);
    }

    /// The call is made of its whole subscription by the framework around it.
    fn ask_for_roles(&mut self, asked: RoleSet) {
        let info = pb::FrameworkInfo {
            roles: asked.roles.into_iter().collect(),
            ..pb::FrameworkInfo::default()
        };
        self.calls.push(Action::UpdateFramework(Box::new(
            meseta_master::core::call::Subscribe {
                info,
                suppressed_roles: asked.suppressed.into_iter().collect(),
                offer_constraints: None,
            },
        )));
    }

    /// A stream is opened with the roles that it has now.
    pub(crate) fn subscribing(&mut self) {
        self.stream_roles = RoleSet {
            roles: self.state.roles(),
            suppressed: self.state.idle_roles(),
        };
    }

    /// All jobs are to end.
    pub(crate) fn stop_all(&mut self, time: u64) {
        for name in [SERVICE, BATCH, CRON, GANG] {
            self.requests += 1;
            let id = self.requests;
            let request = Request::Stop {
                name: name.to_owned(),
                purge: false,
            };
            self.step(time, Input::Request { id, request });
        }
    }

    /// What an event means to it, as its link reads events.
    pub(crate) fn hear(&mut self, time: u64, event: Event) {
        let roles = self.stream_roles.clone();
        let input = match event.r#type() {
            event::Type::Subscribed => event.subscribed.map(|subscribed| Input::Subscribed {
                framework_id: subscribed.framework_id.value,
                roles,
            }),
            event::Type::Offers => {
                let offers = event.offers.unwrap_or_default().offers;
                let read = offers
                    .iter()
                    .filter_map(|one| Offer::from_message(one).ok());
                Some(Input::Offers(read.collect()))
            }
            event::Type::Rescind => event
                .rescind
                .map(|rescind| Input::Rescinded(rescind.offer_id.value)),
            event::Type::Update => event
                .update
                .map(|update| Input::Update(Box::new(update.status))),
            _ => None,
        };
        if let Some(input) = input {
            self.step(time, input);
        }
    }

    /// The master has answered a change of roles.
    pub(crate) fn roles_answered(&mut self, time: u64, refused: Option<String>) {
        self.step(time, Input::RolesAnswered { refused });
    }

    /// Its stream has ended, at the time of the last step.
    pub(crate) fn disconnected(&mut self) {
        self.step(self.time, Input::Disconnected);
        self.calls.clear();
    }

    /// Whether its store has something to make durable.
    pub(crate) fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// The store makes the first of its writes durable.
    pub(crate) fn flush(&mut self, time: u64) {
        if let Some(id) = self.write_one() {
            self.step(time, Input::Stored(id));
        }
    }

    fn write_one(&mut self) -> Option<u64> {
        let (id, records) = self.writes.pop_front()?;
        for record in records {
            match record.value {
                Some(value) => self.store.insert(record.key, value),
                None => self.store.remove(&record.key),
            };
        }
        Some(id)
    }

    /// The process dies, and another one reads the store, which has the first few of what was not told to be durable.
    pub(crate) fn crash(&mut self, time: u64, kept: usize) -> Result<(), RestoreError> {
        for _ in 0..kept.min(self.writes.len()) {
            self.write_one();
        }
        self.writes.clear();
        self.calls.clear();
        self.time = time;
        self.clock = self.clock.restarted(time);
        self.state = State::restore(options(), self.clock.now(time), self.store.clone())?;
        Ok(())
    }

    /// Time passes; the master has taken all kills.
    pub(crate) fn pass(&mut self, time: u64) {
        self.step(time, Input::Tick { kills_waiting: 0 });
    }

    /// A client asks for something, and time passes for it.
    pub(crate) fn act(&mut self, time: u64, rng: &mut fastrand::Rng) {
        let request = match (self.requests, rng.u32(..60)) {
            (0, _) => Some(Request::Submit(Box::new(service(0)))),
            (1, _) => Some(Request::Submit(Box::new(batch(BATCH, 4)))),
            (2, _) => Some(Request::Submit(Box::new(cron()))),
            (3, _) => Some(Request::Submit(Box::new(gang()))),
            (_, 0) => {
                self.version += 1;
                Some(Request::Submit(Box::new(service(self.version))))
            }
            (_, 1) => Some(Request::Restart {
                name: SERVICE.to_owned(),
            }),
            _ => None,
        };
        self.pass(time);
        if let Some(request) = request {
            self.requests += 1;
            let id = self.requests;
            self.step(time, Input::Request { id, request });
        }
    }

    /// A task of its own succeeded, as its agent tells: once for each index of a batch. What became of one that was given
    /// up with its agent does not count.
    pub(crate) fn succeeded(
        &mut self,
        status: &pb::TaskStatus,
        is_given_up: impl Fn(&pb::TaskStatus) -> bool,
    ) -> Option<String> {
        let name: TaskName = status.task_id.value.parse().ok()?;
        if name.job != BATCH && name.job != GANG {
            return None;
        }
        let first = self.successes.entry((name.job, name.run, name.index));
        let first = first.or_insert_with(|| status.clone());
        if is_given_up(first) {
            *first = status.clone();
            return None;
        }
        let is_again = first.uuid != status.uuid && !is_given_up(status);
        let task = &status.task_id.value;
        is_again.then(|| format!("task {task} of a batch succeeds, and its index had before"))
    }
}

/// Of what a job's tasks that live are too many, if they are.
pub(crate) fn too_many(living: &[String]) -> Option<String> {
    let count = |job: &str| {
        let names = living
            .iter()
            .filter_map(|task| task.parse::<TaskName>().ok());
        names.filter(|name| name.job == job).count()
    };
    let services = count(SERVICE);
    if services > (COUNT + SURGE) as usize {
        return Some(format!(
            "{services} instances of {SERVICE} live: {living:?}"
        ));
    }
    let runs = count(CRON);
    (runs > 1).then(|| format!("{runs} runs of {CRON} overlap: {living:?}"))
}

fn options() -> Options {
    Options {
        service_unreachable: NEVER,
        batch_unreachable: NEVER,
        next_time: |_: &Cron, after: Duration| {
            Some(Duration::from_secs((after.as_secs() / 60 + 1) * 60))
        },
        reconcile: reconciler::ReconcileIntervals::default(),
        principal: None,
        owner: 1,
    }
}

fn accepted(accept: &Accept) -> Action {
    let infos = accept.tasks.iter().map(|task| {
        let instance = Instance {
            task_id: task.task_id.clone(),
            version: task.version,
            index: task.index,
            attempt: task.attempt,
        };
        task_info(&task.spec, &instance, &accept.offer, &task.placement)
    });
    Action::Accept(call::Accept {
        offer_ids: vec![pb::OfferId {
            value: accept.offer.id.clone(),
        }],
        operations: vec![launch(infos.collect())],
        filters: Some(pb::Filters {
            refuse_seconds: Some(1.0),
        }),
    })
}

fn job(name: &str, count: u32, kind: Kind) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        kind,
        role: "jobs".to_owned(),
        count,
        priority: 50,
        task: TaskTemplate {
            command: Command::Shell("true".to_owned()),
            user: None,
            env: BTreeMap::new(),
            uris: Vec::new(),
            requests: BTreeMap::from([("cpus".to_owned(), 0.5), ("mem".to_owned(), 32.0)]),
            limits: BTreeMap::new(),
            ports: Vec::new(),
            check: None,
            kill_grace: Duration::from_secs(5),
        },
        constraints: Vec::new(),
        after: Vec::new(),
        gang: None,
        best_effort: false,
        volume: None,
        labels: BTreeMap::new(),
    }
}

fn service(version: u64) -> JobSpec {
    let update = Update {
        max_unavailable: 1,
        max_surge: SURGE,
        canary: 0,
        pause: Duration::ZERO,
        healthy_after: Duration::from_secs(1),
        progress_deadline: Duration::from_secs(600),
        auto_revert: false,
    };
    let restart = BACKOFF;
    let mut spec = job(SERVICE, COUNT, Kind::Service(Service { restart, update }));
    spec.task.command = Command::Shell(format!("true {version}"));
    spec
}

fn batch_kind() -> Batch {
    Batch {
        retries: 100_000,
        backoff: BACKOFF,
        timeout: None,
    }
}

fn batch(name: &str, count: u32) -> JobSpec {
    job(name, count, Kind::Batch(batch_kind()))
}

fn cron() -> JobSpec {
    let cron = Cron {
        batch: batch_kind(),
        schedule: "* * * * *".to_owned(),
        time_zone: "UTC".to_owned(),
        overlap: Overlap::Skip,
        start_within: Duration::from_secs(30),
    };
    job(CRON, 1, Kind::Cron(cron))
}

fn gang() -> JobSpec {
    JobSpec {
        gang: Some(Gang {
            hold_at_most: Duration::from_secs(20),
        }),
        ..batch(GANG, 2)
    }
}
