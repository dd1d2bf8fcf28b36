//! The job scheduler as a framework: the production core, with its store and the calls of its link.
//!
//! It crashes with its unconfirmed writes, and starts again on another machine whose clock differs, or on an older copy of
//! its store. `specs` has the jobs of its users, `promises` the checks of each step, `copies` its faults, and `rest` the
//! checks once all faults have ended.

mod copies;
mod promises;
mod rest;
mod specs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use meseta_jobs::core::{
    Accept, Effect, Input, Options, Record, Request, RestoreError, RoleSet, State, TaskName,
};
use meseta_jobs::placement::Offer;
use meseta_jobs::spec::Cron;
use meseta_jobs::task_info::{Instance, task_info};
use meseta_master::core::call::Action;
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self as pb};
use meseta_proto::reconciler;

use crate::behaviour::launch;
use crate::checks::Broken;
use crate::clock::Clock;
use crate::cluster::SECOND;

pub(crate) use copies::Copy;
pub(crate) use promises::too_many;

use promises::Promises;
use specs::{Clients, FRONT};

/// Longer than any run: nothing is given up for its silence.
const NEVER: Duration = Duration::from_secs(1_000_000_000);
/// The time that the agent of a service's task may be away in runs about jobs.
const SERVICE_UNREACHABLE: Duration = Duration::from_secs(30);
/// The time between two ticks of the scheduler in runs about jobs.
const TICK: u64 = SECOND;
/// Copies of the store that an operator keeps, at most.
const BACKUPS_MAX: usize = 3;

/// The durable state of a scheduler.
type Store = BTreeMap<String, Vec<u8>>;

/// The scheduler's process and its store.
#[derive(Debug)]
pub(crate) struct Jobs {
    state: State,
    pub(crate) clock: Clock,
    store: Store,
    /// Copies of the store, the oldest first.
    backups: VecDeque<Store>,
    /// Writes that are not durable yet.
    writes: VecDeque<(u64, Vec<Record>)>,
    calls: Vec<Action>,
    /// The true time at the last step.
    time: u64,
    /// The roles with which the scheduler's stream was opened.
    stream_roles: RoleSet,
    clients: Clients,
    /// The names of the submitted jobs.
    names: BTreeSet<String>,
    /// The results by request: true if the scheduler refused the request.
    answers: BTreeMap<u64, bool>,
    promises: Promises,
    /// The version of [`FRONT`] whose tasks fail at once.
    ill_version: Option<u64>,
    /// Roles that are withdrawn from the framework at present.
    pub(crate) withdrawn: BTreeSet<&'static str>,
    /// Whether there are many jobs in many roles, with time as in the daemon.
    is_wide: bool,
}

impl Jobs {
    pub(crate) fn new(clock: Clock, is_wide: bool) -> Result<Self, RestoreError> {
        Ok(Self {
            state: State::restore(options(is_wide, 1), clock.now(0), [])?,
            clock,
            store: BTreeMap::new(),
            backups: VecDeque::new(),
            writes: VecDeque::new(),
            calls: Vec::new(),
            time: 0,
            stream_roles: RoleSet::default(),
            clients: Clients::new(is_wide),
            names: BTreeSet::new(),
            answers: BTreeMap::new(),
            promises: Promises::default(),
            ill_version: None,
            withdrawn: BTreeSet::new(),
            is_wide,
        })
    }

    pub(crate) fn roles(&self) -> Vec<String> {
        self.state.roles().into_iter().collect()
    }

    /// Returns the suppressed roles of the scheduler.
    pub(crate) fn idle_roles(&self) -> Vec<String> {
        self.state.idle_roles().into_iter().collect()
    }

    /// Takes the calls for the master.
    pub(crate) fn take_calls(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.calls)
    }

    pub(crate) fn step(&mut self, time: u64, input: Input) {
        self.time = time;
        let told = promises::told(&input);
        self.promises.shown(self.clock.now(time).unix);
        self.promises.before(time, &self.state, &input);
        let effects = self.state.step(self.clock.now(time), input);
        self.promises.after(time, &self.state, &told, &effects);
        for effect in effects {
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
            // No job in the simulation has a volume.
            Effect::AcknowledgeOperation(_) | Effect::ReconcileOperations(_) => return,
            Effect::Answer { id, answer } => {
                self.answers.insert(id, answer.is_err());
                return;
            }
            Effect::Event(_) => return,
        };
        self.calls.push(action);
    }

    /// Changes the scheduler's roles; the framework around it sends the call with the whole subscription.
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

    /// Notes that a stream is opened with the present roles.
    pub(crate) fn subscribing(&mut self) {
        self.stream_roles = RoleSet {
            roles: self.state.roles(),
            suppressed: self.state.idle_roles(),
        };
    }

    /// Requests the end of all jobs.
    pub(crate) fn stop_all(&mut self, time: u64) {
        self.promises.is_stopping = true;
        for name in self.names.clone() {
            let request = Request::Stop { name, purge: false };
            self.request(time, request);
        }
    }

    /// Sends a client's request, and returns its number.
    fn request(&mut self, time: u64, request: Request) -> u64 {
        if let Request::Submit(spec) = &request {
            self.names.insert(spec.name.clone());
        }
        self.clients.requests += 1;
        let id = self.clients.requests;
        self.step(time, Input::Request { id, request });
        id
    }

    /// Returns the broken promises, and forgets them.
    pub(crate) fn take_broken(&mut self) -> Vec<Broken> {
        std::mem::take(&mut self.promises.broken)
    }

    /// Whether the master refuses a subscription because of a withdrawn role.
    pub(crate) fn is_refused_subscription(&self) -> bool {
        let roles = self.state.roles();
        self.withdrawn.iter().any(|role| roles.contains(*role))
    }

    /// Returns the time of the scheduler's next tick.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.is_wide.then_some(self.time + TICK)
    }

    /// Whether all tasks of this task's version fail.
    pub(crate) fn is_ill(&self, task: &str) -> bool {
        let name = task.parse::<TaskName>().ok();
        name.is_some_and(|name| name.job == FRONT && Some(name.version) == self.ill_version)
    }

    /// Handles an event, as its link reads events.
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
            // Without an executor, the failure is that of the agent.
            event::Type::Failure => event
                .failure
                .filter(|failure| failure.executor_id.is_none())
                .and_then(|failure| Some(Input::AgentLost(failure.agent_id?.value))),
            event::Type::Update => event
                .update
                .map(|update| Input::Update(Box::new(update.status))),
            _ => None,
        };
        if let Some(input) = input {
            self.step(time, input);
        }
    }

    /// Passes the master's response to a change of roles to the scheduler.
    pub(crate) fn roles_answered(&mut self, time: u64, refused: Option<String>) {
        self.step(time, Input::RolesAnswered { refused });
    }

    /// Handles the end of its stream, at the time of the last step.
    pub(crate) fn disconnected(&mut self) {
        self.step(self.time, Input::Disconnected);
        self.calls.clear();
    }

    /// Whether the store has writes that are not durable.
    pub(crate) fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Makes the first write of the store durable.
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

    /// Lets time pass; the master has accepted all kills.
    pub(crate) fn pass(&mut self, time: u64) {
        self.step(time, Input::Tick { kills_waiting: 0 });
    }

    /// Makes a client act, and lets time pass for it.
    pub(crate) fn act(&mut self, time: u64, rng: &mut fastrand::Rng) {
        self.pass(time);
        if self.is_wide && rng.u32(..40) == 0 {
            self.fall_ill(rng);
        }
        if let Some(request) = self.clients.ask(rng) {
            let request = self.with_version(request, rng);
            self.request(time, request);
        }
    }

    /// Makes some version of [`FRONT`] fail from now on, even a healthy one, or none.
    fn fall_ill(&mut self, rng: &mut fastrand::Rng) {
        let newest = self.state.job(FRONT).map_or(0, |job| job.version);
        self.ill_version = match rng.u32(..3) {
            0 => None,
            _ => Some(newest.saturating_sub(rng.u64(..3))),
        };
    }

    /// Fills in a version, if the request reverts to one.
    fn with_version(&self, request: Request, rng: &mut fastrand::Rng) -> Request {
        match request {
            Request::Revert { name, .. } => {
                let versions = self.state.history(&name).map(|history| history.versions);
                let versions = versions.unwrap_or_default();
                let at = rng.usize(..=versions.len());
                let version = versions.get(at).map(|one| one.version);
                Request::Revert { name, version }
            }
            other => other,
        }
    }

    /// Records an agent's success of a task; see [`Promises::succeeded`].
    pub(crate) fn succeeded(
        &mut self,
        status: &pb::TaskStatus,
        is_given_up: impl Fn(&pb::TaskStatus) -> bool,
    ) -> Option<String> {
        self.promises.succeeded(status, is_given_up)
    }
}

fn options(is_wide: bool, drawn: u32) -> Options {
    Options {
        service_unreachable: if is_wide { SERVICE_UNREACHABLE } else { NEVER },
        batch_unreachable: NEVER,
        next_time: |_: &Cron, after: Duration| {
            Some(Duration::from_secs((after.as_secs() / 60 + 1) * 60))
        },
        reconcile: reconciler::ReconcileIntervals::default(),
        principal: None,
        drawn,
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
