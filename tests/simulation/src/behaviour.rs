//! The behaviour of frameworks: their use of offers, and their own actions.

use meseta_allocator::InverseAnswer;
use meseta_master::core::call::Action;
use meseta_proto::convert;
use meseta_proto::mesos::v1::offer::{Operation, operation};
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::{self as pb, executor_info};
use meseta_resources::{
    Disk, Operation as Change, Persistence, Reservation, Resource, ResourceParts, Resources, Role,
    Volume, VolumeMode,
};

use crate::framework::{Framework, Kind, Task};
use crate::health_checks::{check, health_check};
use crate::plan::Feature;

/// Unfinished tasks of one framework at one time.
const TASKS_MAX: usize = 10;
/// Offers that are kept back at one time.
const OFFERS_KEPT_MAX: usize = 2;
const USED_OFFERS_MAX: usize = 4;
/// Executors that a framework remembers, at most.
const EXECUTORS_MAX: usize = 12;

/// The permitted actions of frameworks in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    pub(crate) groups: bool,
    pub(crate) executors: bool,
    pub(crate) reservations: bool,
    pub(crate) volumes: bool,
    pub(crate) large_tasks: bool,
    pub(crate) checks: bool,
    pub(crate) messages: bool,
    pub(crate) shutdowns: bool,
    pub(crate) shared_executors: bool,
    pub(crate) crowd: bool,
}

impl Allowed {
    pub(crate) fn from_features(has: impl Fn(Feature) -> bool) -> Self {
        Self {
            groups: has(Feature::Groups),
            executors: has(Feature::Executors),
            reservations: has(Feature::Reservations),
            volumes: has(Feature::Volumes),
            large_tasks: has(Feature::LargeTasks),
            checks: has(Feature::Checks),
            messages: has(Feature::Messages),
            shutdowns: has(Feature::Shutdowns),
            shared_executors: has(Feature::SharedExecutors),
            crowd: has(Feature::Crowd),
        }
    }
}

impl Framework {
    /// Responds to an offer, or keeps it.
    pub(crate) fn answer_offer(&mut self, rng: &mut fastrand::Rng, allowed: Allowed) {
        let keeps = self.kind == Kind::Greedy && self.offers.len() <= OFFERS_KEPT_MAX;
        if keeps && !self.is_idle && rng.u32(..8) > 0 {
            return;
        }
        let Some(offer) = self.offers.pop_front() else {
            return;
        };
        let open = self.tasks.values().filter(|task| !task.is_over()).count();
        if self.is_idle || open >= TASKS_MAX || rng.u32(..6) == 0 {
            return self.decline(offer, rng);
        }
        let mut left = offer.resources.clone();
        let mut operations = Vec::new();
        if self.kind != Kind::Old && self.kind != Kind::Greedy {
            operations.extend(self.change(&offer, &mut left, rng, allowed));
        }
        let launches = match self.kind {
            Kind::Greedy => 4,
            _ => rng.usize(..3),
        };
        for _ in 0..launches {
            operations.extend(self.launch(&offer, &mut left, rng, allowed));
        }
        if allowed.crowd && self.kind == Kind::Good && rng.u32(..12) == 0 {
            operations.extend(self.crowd(&offer, &mut left, rng));
        }
        if operations.is_empty() {
            return self.decline(offer, rng);
        }
        self.used_offers.push_back(offer.id.clone());
        if self.used_offers.len() > USED_OFFERS_MAX {
            self.used_offers.pop_front();
        }
        self.calls.push_back(Action::Accept(call::Accept {
            offer_ids: vec![offer.id],
            operations,
            filters: filters(rng),
        }));
    }

    fn decline(&mut self, offer: pb::Offer, rng: &mut fastrand::Rng) {
        self.calls.push_back(Action::Decline(call::Decline {
            offer_ids: vec![offer.id],
            filters: filters(rng),
        }));
    }

    fn launch(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        allowed: Allowed,
    ) -> Option<Operation> {
        match rng.u32(..8) {
            0 | 1 if allowed.groups && self.kind != Kind::Old => {
                self.group(offer, left, rng, allowed)
            }
            2 | 3 if allowed.executors && self.kind != Kind::Old => {
                let info = self.some_executor(offer, left, rng, true, allowed)?;
                let mut task = self.task(offer, left, rng, allowed)?;
                task.command = None;
                (task.health_check, task.check) = (None, None);
                task.executor = Some(Box::new(info));
                Some(launch(vec![task]))
            }
            _ => Some(launch(vec![self.task(offer, left, rng, allowed)?])),
        }
    }

    fn group(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        allowed: Allowed,
    ) -> Option<Operation> {
        let executor = self.some_executor(offer, left, rng, false, allowed)?;
        let mut tasks = Vec::new();
        for _ in 0..rng.usize(1..3) {
            let resources = take_all(left, &[("cpus", 0.5), ("mem", 32.0)], rng);
            let task = resources.map(|resources| self.task_of(offer, resources, rng, allowed));
            tasks.extend(task);
        }
        Some(Operation {
            r#type: Some(operation::Type::LaunchGroup.into()),
            launch_group: Some(operation::LaunchGroup {
                executor,
                task_group: pb::TaskGroupInfo { tasks },
            }),
            ..Operation::default()
        })
    }

    /// Returns an executor for the launch: an earlier one of this agent, or a new one.
    fn some_executor(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        custom: bool,
        allowed: Allowed,
    ) -> Option<pb::ExecutorInfo> {
        let kind = if custom { 'x' } else { 'g' };
        let known = self.executors.iter().filter(|(agent, info)| {
            *agent == offer.agent_id.value && info.executor_id.value.starts_with(kind)
        });
        let known: Vec<_> = known.map(|(_, info)| info).collect();
        if allowed.shared_executors && !known.is_empty() && rng.bool() {
            return Some(known[rng.usize(..known.len())].clone());
        }
        let amounts = [("cpus", 0.1), ("mem", 32.0), ("disk", 1.0)];
        let resources = take_all(left, if custom { &amounts[..2] } else { &amounts }, rng)?;
        let info = self.executor(format!("{kind}{}", self.launched), resources, custom);
        self.executors
            .push_back((offer.agent_id.value.clone(), info.clone()));
        if self.executors.len() > EXECUTORS_MAX {
            self.executors.pop_front();
        }
        Some(info)
    }

    /// Launches small tasks with long labels, which no agent can report in one frame.
    fn crowd(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
    ) -> Option<Operation> {
        const TASKS: usize = 60;
        const LABEL_BYTES: usize = 80 << 10;
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let resources = take_all(left, &[("cpus", 0.01), ("mem", 1.0)], rng);
            let mut task = self.plain_task(offer, resources?);
            task.labels = Some(pb::Labels {
                labels: vec![pb::Label {
                    key: "long".to_owned(),
                    value: Some("x".repeat(LABEL_BYTES)),
                }],
            });
            tasks.push(task);
        }
        Some(launch(tasks))
    }

    fn executor(&self, id: String, resources: Vec<pb::Resource>, custom: bool) -> pb::ExecutorInfo {
        let kind = match custom {
            true => executor_info::Type::Custom,
            false => executor_info::Type::Default,
        };
        pb::ExecutorInfo {
            r#type: Some(kind.into()),
            executor_id: pb::ExecutorId { value: id },
            framework_id: self.id.clone().map(|value| pb::FrameworkId { value }),
            command: custom.then(|| shell("./executor")),
            resources,
            ..pb::ExecutorInfo::default()
        }
    }

    fn task(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        allowed: Allowed,
    ) -> Option<pb::TaskInfo> {
        let cpus = [0.5, 1.0, 1.0, 2.0][rng.usize(..4)];
        let mut resources = take_all(left, &[("cpus", cpus), ("mem", 64.0)], rng)?;
        let volumes = left.iter().position(is_volume);
        if let Some(at) = volumes.filter(|_| rng.bool()) {
            resources.push(left.swap_remove(at));
        }
        let mut task = self.task_of(offer, resources, rng, allowed);
        if allowed.large_tasks && rng.u32(..4) == 0 {
            task.data = Some(vec![0; rng.usize(..24 << 10)]);
        }
        if rng.u32(..12) == 0 {
            let nanoseconds = 20_000_000_000;
            task.max_completion_time = Some(pb::DurationInfo { nanoseconds });
        }
        Some(task)
    }

    fn task_of(
        &mut self,
        offer: &pb::Offer,
        resources: Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        allowed: Allowed,
    ) -> pb::TaskInfo {
        let mut task = self.plain_task(offer, resources);
        if allowed.checks {
            task.health_check = (rng.u32(..3) == 0).then(|| Box::new(health_check(rng)));
            task.check = (rng.u32(..6) == 0).then(|| Box::new(check(rng)));
        }
        task
    }

    fn plain_task(&mut self, offer: &pb::Offer, resources: Vec<pb::Resource>) -> pb::TaskInfo {
        let id = format!("f{}.{}", self.number, self.launched);
        self.launched += 1;
        let task = Task::on(&offer.agent_id, 0);
        self.tasks.insert(id.clone(), task);
        pb::TaskInfo {
            name: id.clone(),
            task_id: pb::TaskId { value: id },
            agent_id: offer.agent_id.clone(),
            resources,
            command: Some(shell("true")),
            ..pb::TaskInfo::default()
        }
    }

    /// Reserves, unreserves, creates or destroys a part of an offer.
    fn change(
        &mut self,
        offer: &pb::Offer,
        left: &mut Vec<pb::Resource>,
        rng: &mut fastrand::Rng,
        allowed: Allowed,
    ) -> Option<Operation> {
        if !allowed.reservations || rng.u32(..4) > 0 {
            return None;
        }
        let role = offer.allocation_info.as_ref()?.role.as_deref()?;
        let role = Role::new(role).ok()?;
        self.operations += 1;
        let mut operation = match rng.u32(..6) {
            0 | 1 => {
                let what = [("cpus", 0.5), ("mem", 64.0), ("disk", 10.0)][rng.usize(..3)];
                let free =
                    |one: &pb::Resource| one.reservations.is_empty() && one.revocable.is_none();
                let taken = take(left, what.0, what.1, rng, free)?;
                reserve(&taken, &role, self.principal().as_deref())?
            }
            2 => {
                let at = left
                    .iter()
                    .position(|one| is_dynamic(one) && !is_volume(one))?;
                let resources = inner(&left.swap_remove(at))?;
                convert::to_operation(&Change::Unreserve(resources.iter().cloned().collect()))
            }
            3 | 4 if allowed.volumes => {
                let at = left.iter();
                let mut at = at
                    .enumerate()
                    .filter(|(_, one)| one.name == "disk" && is_dynamic(one) && !is_volume(one));
                let at = at.next()?.0;
                let id = format!("v{}-{}", self.number, self.operations);
                volume(&left.swap_remove(at), &id, self.principal().as_deref())?
            }
            _ if allowed.volumes => {
                let at = left.iter().position(is_volume)?;
                let resources = inner(&left.swap_remove(at))?;
                convert::to_operation(&Change::Destroy(resources.iter().cloned().collect()))
            }
            _ => return None,
        };
        if rng.bool() {
            let value = format!("op{}-{}", self.number, self.operations);
            operation.id = Some(pb::OperationId { value });
        }
        Some(operation)
    }

    /// Does something by itself.
    pub(crate) fn act(&mut self, rng: &mut fastrand::Rng, allowed: Allowed) {
        let some = |rng: &mut fastrand::Rng, tasks: usize| rng.usize(..tasks.max(1));
        match rng.u32(..40) {
            0 => self.reconcile(false),
            1 => self
                .calls
                .push_back(Action::Reconcile(call::Reconcile { tasks: Vec::new() })),
            2 | 3 => {
                // Mostly choose a live task.
                let with_all = rng.u32(..4) == 0;
                let tasks = self.tasks.iter();
                let tasks = tasks.filter(|(_, task)| with_all || !task.is_over());
                let tasks: Vec<_> = tasks.map(|(id, _)| id.clone()).collect();
                if let Some(id) = tasks.get(some(rng, tasks.len())) {
                    self.kill(id);
                }
            }
            4 => self.calls.push_back(Action::Revive { roles: Vec::new() }),
            5 => {
                let roles = self.kind.roles();
                let role = roles[rng.usize(..roles.len())].to_owned();
                self.calls.push_back(Action::Suppress { roles: vec![role] });
                self.calls.push_back(Action::Revive { roles: Vec::new() });
            }
            6 => self
                .calls
                .push_back(Action::UpdateFramework(Box::new(self.subscription()))),
            7 => self.calls.push_back(Action::Request),
            8 => self.calls.push_back(Action::ReconcileOperations(
                call::ReconcileOperations::default(),
            )),
            9..13 => self.answer_inverse_offer(rng),
            13 if allowed.shutdowns => {
                if let Some((agent_id, executor_id)) = self.some_known_executor(rng) {
                    self.calls.push_back(Action::Shutdown(call::Shutdown {
                        executor_id,
                        agent_id,
                    }));
                }
            }
            14..17 if allowed.messages => self.send_message(rng),
            _ => {}
        }
    }

    fn answer_inverse_offer(&mut self, rng: &mut fastrand::Rng) {
        let Some(id) = self.inverse_offers.pop_front() else {
            return;
        };
        let answer = match rng.bool() {
            true => InverseAnswer::Accept,
            false => InverseAnswer::Decline,
        };
        self.calls.push_back(Action::AnswerInverseOffers {
            answer,
            ids: vec![id],
            filters: filters(rng),
        });
    }

    fn some_known_executor(
        &self,
        rng: &mut fastrand::Rng,
    ) -> Option<(pb::AgentId, pb::ExecutorId)> {
        let at = rng.usize(..self.executors.len().max(1));
        let (agent, info) = self.executors.get(at)?;
        let agent = pb::AgentId {
            value: agent.clone(),
        };
        Some((agent, info.executor_id.clone()))
    }

    /// Sends a message to one of its executors, which names the executor, so that the receiver can check it.
    fn send_message(&mut self, rng: &mut fastrand::Rng) {
        let Some((agent_id, executor_id)) = self.some_known_executor(rng) else {
            return;
        };
        let Some(own) = &self.id else { return };
        self.messages += 1;
        let data = format!("{own}/{}#{}", executor_id.value, self.messages);
        self.calls.push_back(Action::Message(call::Message {
            agent_id,
            executor_id,
            data: data.into_bytes(),
        }));
    }
}

fn filters(rng: &mut fastrand::Rng) -> Option<pb::Filters> {
    let seconds = [None, Some(0.0), Some(1.0), Some(30.0)][rng.usize(..4)];
    seconds.map(|seconds| pb::Filters {
        refuse_seconds: Some(seconds),
    })
}

pub(crate) fn shell(command: &str) -> pb::CommandInfo {
    pb::CommandInfo {
        value: Some(command.to_owned()),
        ..pb::CommandInfo::default()
    }
}

pub(crate) fn launch(task_infos: Vec<pb::TaskInfo>) -> Operation {
    Operation {
        r#type: Some(operation::Type::Launch.into()),
        launch: Some(operation::Launch { task_infos }),
        ..Operation::default()
    }
}

fn is_volume(resource: &pb::Resource) -> bool {
    let disk = resource.disk.as_ref();
    disk.is_some_and(|disk| disk.persistence.is_some())
}

fn is_dynamic(resource: &pb::Resource) -> bool {
    let dynamic = Some(pb::resource::reservation_info::Type::Dynamic.into());
    let last = resource.reservations.last();
    last.is_some_and(|reservation| reservation.r#type == dynamic)
}

/// Takes these amounts of each resource, or nothing.
fn take_all(
    left: &mut Vec<pb::Resource>,
    of: &[(&str, f64)],
    rng: &mut fastrand::Rng,
) -> Option<Vec<pb::Resource>> {
    let mut rest = left.clone();
    let mut taken = Vec::new();
    for (name, amount) in of {
        taken.push(take(&mut rest, name, *amount, rng, |_| true)?);
    }
    *left = rest;
    Some(taken)
}

/// Takes this amount of a resource of this name.
fn take(
    left: &mut [pb::Resource],
    name: &str,
    amount: f64,
    rng: &mut fastrand::Rng,
    fits: impl Fn(&pb::Resource) -> bool,
) -> Option<pb::Resource> {
    let has = |one: &pb::Resource| {
        let scalar = one.scalar.as_ref().map_or(0.0, |scalar| scalar.value);
        one.name == name && scalar >= amount && !is_volume(one) && fits(one)
    };
    let mut fitting: Vec<_> = left.iter_mut().filter(|one| has(one)).collect();
    let at = rng.usize(..fitting.len().max(1));
    let from = fitting.get_mut(at)?;
    let mut taken = from.clone();
    taken.scalar = Some(pb::value::Scalar { value: amount });
    if let Some(scalar) = &mut from.scalar {
        scalar.value = ((scalar.value - amount) * 1_000.0).round() / 1_000.0;
    }
    Some(taken)
}

/// Converts an offer's resource, without its allocation.
fn inner(resource: &pb::Resource) -> Option<Resources> {
    let resources = convert::resources(std::slice::from_ref(resource)).ok()?;
    Some(resources.unallocate())
}

/// Returns an operation that reserves a resource to a role.
pub(crate) fn reserve(
    resource: &pb::Resource,
    role: &Role,
    principal: Option<&str>,
) -> Option<Operation> {
    let reservation = Reservation::dynamic(role.clone(), principal);
    let reserved = inner(resource)?.push_reservation(&reservation).ok()?;
    Some(convert::to_operation(&Change::Reserve {
        source: Vec::new(),
        resources: reserved.iter().cloned().collect(),
    }))
}

/// Returns an operation that creates a volume of a reserved disk.
fn volume(disk: &pb::Resource, id: &str, principal: Option<&str>) -> Option<Operation> {
    let disk = inner(disk)?;
    volume_on(disk.iter().next()?, id, principal)
}

pub(crate) fn volume_on(disk: &Resource, id: &str, principal: Option<&str>) -> Option<Operation> {
    let volume = Resource::new(ResourceParts {
        name: disk.name().clone(),
        value: disk.value().clone(),
        allocation_role: None,
        reservations: disk.reservations().to_vec(),
        disk: Some(Disk {
            persistence: Some(Persistence {
                id: id.into(),
                principal: principal.map(Into::into),
            }),
            volume: Some(Volume {
                container_path: "data".to_owned(),
                host_path: None,
                mode: VolumeMode::ReadWrite,
            }),
            source: disk.disk().and_then(|disk| disk.source.clone()),
        }),
        revocable: false,
        shared: false,
        provider_id: None,
    });
    Some(convert::to_operation(&Change::Create(vec![volume.ok()?])))
}
