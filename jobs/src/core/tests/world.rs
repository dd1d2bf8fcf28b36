//! A master, agents and a disk, as small as the core needs them, driven by a seed.

mod accepts;
mod away;
mod offers;
mod operations;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use meseta_proto::mesos::v1::{
    AgentId, OperationStatus, TaskId, TaskState, TaskStatus, task_status::Reason,
};
use meseta_proto::reconciler;
use meseta_resources::{Moment, Now, Resources, Role};

use super::super::{
    Effect, Event, Input, Options, Record, Refusal, Request, RoleSet, State, TaskName,
};
use crate::spec::Cron;

/// The resources of an agent: room for four tasks of one CPU.
const RESOURCES: &str = "cpus:4;disk:100";
/// Tasks of one CPU for which an agent has room.
pub(super) const SLOTS: u32 = 4;
const ORIGIN: Duration = Duration::from_secs(1_700_000_000);

/// A small generator, so that a failure names the seed that repeats it.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Staging,
    Running,
}

struct Agent {
    tasks: BTreeMap<String, Life>,
    /// The resources of each task at its launch.
    used: BTreeMap<String, Resources>,
    /// The resources of the agent, including the reservations and volumes made.
    total: Resources,
    is_away: bool,
}

impl Agent {
    fn new(resources: &str) -> Self {
        Self {
            tasks: BTreeMap::new(),
            used: BTreeMap::new(),
            total: Resources::parse(resources, &Role::star()).expect("resources"),
            is_away: false,
        }
    }

    fn free(&self) -> Resources {
        let mut free = self.total.clone();
        for (_, used) in self
            .used
            .iter()
            .filter(|(id, _)| self.tasks.contains_key(*id))
        {
            free -= used;
        }
        free
    }
}

fn slots_of(resources: &Resources) -> u32 {
    let cpus = resources.scalar("cpus").unwrap_or_default();
    u32::try_from(cpus.whole_units()).expect("a few")
}

pub(super) struct World {
    pub(super) state: State,
    pub(super) options: Options,
    pub(super) dice: Dice,
    since: Duration,
    ahead: Duration,
    pub(super) disk: BTreeMap<String, Vec<u8>>,
    /// The keys of all written or deleted records, with the bytes of their values.
    pub(super) written: Vec<(String, Option<usize>)>,
    /// Writes that are not durable yet.
    writes: VecDeque<(u64, Vec<Record>)>,
    agents: BTreeMap<String, Agent>,
    /// Open offers, with their agent and resources.
    offers: BTreeMap<String, (String, Resources)>,
    /// Declined agents, with the time until which each is filtered.
    filters: BTreeMap<String, Duration>,
    next_offer: u64,
    /// The racks of agents that have a rack.
    pub(super) racks: BTreeMap<String, String>,
    inbox: VecDeque<Input>,
    unacknowledged: BTreeMap<String, TaskStatus>,
    unacknowledged_operations: BTreeMap<String, OperationStatus>,
    /// The volumes that were destroyed.
    pub(super) destroyed: Vec<String>,
    /// The volume of each task that had a volume.
    pub(super) volumes: BTreeMap<String, String>,
    /// Whether agents fail to create volumes.
    pub(super) fails_to_create: bool,
    /// The maximum number of tasks of an ACCEPT; the master refuses a larger one.
    pub(super) accept_tasks_max: usize,
    /// The number of resources named by the operations of each ACCEPT.
    pub(super) named: Vec<usize>,
    /// ACCEPT calls are lost on the way.
    pub(super) loses_accepts: bool,
    /// Agents that an operator marked gone.
    pub(super) gone_agents: BTreeSet<String>,
    launched: BTreeSet<String>,
    /// Kills that the master has not accepted when time passes next.
    pub(super) kills_waiting: usize,
    /// The tasks of all kills, in their order.
    pub(super) kills: Vec<String>,
    /// The number of successes of each index of each run.
    pub(super) successes: BTreeMap<(String, u64, u32), u32>,
    pub(super) answers: BTreeMap<u64, Result<u64, Refusal>>,
    /// The sizes of launches, for gangs, by job.
    pub(super) launches: Vec<(String, usize)>,
    /// The roles in which the master makes no offers.
    pub(super) suppressed: BTreeSet<String>,
    /// The number of batches in ten that succeed.
    pub(super) success_in_ten: u64,
    next_request: u64,
    /// The events of jobs, in order.
    pub(super) events: Vec<Event>,
    /// The roles that the master refuses.
    pub(super) refused: BTreeSet<String>,
    roles: BTreeSet<String>,
    /// Whether killed tasks take time to end.
    pub(super) is_slow_to_end: bool,
}

thread_local! {
    /// Counts how often a schedule computed its next time.
    pub(super) static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// A schedule of every full minute.
pub(super) fn each_minute(_: &Cron, after: Duration) -> Option<Duration> {
    ASKED.set(ASKED.get() + 1);
    Some(Duration::from_secs((after.as_secs() / 60 + 1) * 60))
}

impl World {
    pub(super) fn new(seed: u64, agents: usize) -> Self {
        let options = Options {
            service_unreachable: Duration::from_secs(30),
            batch_unreachable: Duration::from_secs(100_000),
            next_time: each_minute,
            reconcile: reconciler::ReconcileIntervals::default(),
            principal: Some("ann".to_owned()),
            drawn: 0x0a1b_2c3d,
        };
        let now = now_at(Duration::ZERO);
        let state = State::restore(options.clone(), now, []).expect("nothing stored");
        let agents = (0..agents).map(|index| (format!("a{index}"), Agent::new(RESOURCES)));
        let mut world = Self {
            state,
            options,
            dice: Dice::new(seed),
            since: Duration::ZERO,
            ahead: Duration::ZERO,
            disk: BTreeMap::new(),
            written: Vec::new(),
            writes: VecDeque::new(),
            agents: agents.collect(),
            offers: BTreeMap::new(),
            filters: BTreeMap::new(),
            next_offer: 0,
            racks: BTreeMap::new(),
            inbox: VecDeque::new(),
            unacknowledged: BTreeMap::new(),
            unacknowledged_operations: BTreeMap::new(),
            destroyed: Vec::new(),
            volumes: BTreeMap::new(),
            fails_to_create: false,
            accept_tasks_max: usize::MAX,
            named: Vec::new(),
            loses_accepts: false,
            gone_agents: BTreeSet::new(),
            launched: BTreeSet::new(),
            kills_waiting: 0,
            kills: Vec::new(),
            successes: BTreeMap::new(),
            answers: BTreeMap::new(),
            launches: Vec::new(),
            suppressed: BTreeSet::new(),
            success_in_ten: 7,
            next_request: 0,
            events: Vec::new(),
            refused: BTreeSet::new(),
            roles: BTreeSet::new(),
            is_slow_to_end: false,
        };
        world.subscribe();
        world
    }

    /// Adds an agent with these resources.
    pub(super) fn add_agent(&mut self, resources: &str) {
        let name = format!("a{}", self.agents.len());
        self.agents.insert(name, Agent::new(resources));
    }

    /// Adds further resources to an agent.
    pub(super) fn add_resources(&mut self, agent: &str, resources: &Resources) {
        let agent = self.agents.get_mut(agent).expect("an agent");
        agent.total += resources;
    }

    pub(super) fn step(&mut self, input: Input) {
        let effects = self.state.step(self.now(), input);
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for effect in effects {
            if let Effect::Accept(accept) = &effect {
                for task in &accept.tasks {
                    *sizes.entry(task.spec.name.clone()).or_default() += 1;
                }
            }
            self.carry_out(effect);
        }
        self.launches.extend(sizes);
    }

    pub(super) fn request(&mut self, request: Request) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        self.step(Input::Request { id, request });
        id
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Store { id, records } => {
                let bytes = |record: &Record| record.value.as_ref().map(Vec::len);
                let written = records.iter().map(|one| (one.key.clone(), bytes(one)));
                self.written.extend(written);
                self.writes.push_back((id, records));
            }
            Effect::Accept(accept) => self.accept(&accept),
            Effect::Decline { offers, refuse } => {
                for offer in offers {
                    if let Some((agent, _)) = self.offers.remove(&offer) {
                        self.filters.insert(agent, self.since + refuse);
                    }
                }
            }
            Effect::Kill { task_id, .. } => {
                let stored = self.disk.get(&format!("task/{task_id}"));
                let stored = stored.map(|record| String::from_utf8_lossy(record));
                assert!(
                    stored.is_none_or(|record| record.contains("\"killing\"")),
                    "{task_id} is killed before the reason is durable"
                );
                self.kill(&task_id);
                self.kills.push(task_id);
            }
            Effect::Acknowledge(status) => self.acknowledged(&status),
            Effect::Reconcile(request) => self.reconcile(request),
            Effect::AcknowledgeOperation(status) => {
                let id = &status.operation_id.as_ref().expect("an id").value;
                self.unacknowledged_operations.remove(id);
            }
            Effect::ReconcileOperations(operations) => {
                for (id, agent) in operations {
                    self.reconcile_operation(&id, &agent);
                }
            }
            Effect::Suppress(roles) => self.suppressed.extend(roles),
            Effect::Revive(roles) => {
                self.suppressed.retain(|role| !roles.contains(role));
                self.filters.clear();
            }
            Effect::Answer { id, answer } => {
                self.answers
                    .insert(id, answer.map(|accepted| accepted.version));
            }
            Effect::Roles(RoleSet { roles, suppressed }) => {
                let refused = roles.iter().find(|role| self.refused.contains(*role));
                let refused = refused.map(|role| format!("no role {role}"));
                if refused.is_none() {
                    self.roles = roles;
                    self.suppressed = suppressed;
                }
                self.inbox.push_back(Input::RolesAnswered { refused });
            }
            Effect::Event(event) => self.events.push(event),
        }
    }

    fn kill(&mut self, id: &str) {
        if self.is_slow_to_end {
            return;
        }
        let agent = self.agent_of(id);
        match agent {
            Some(agent) if !self.agents[&agent].is_away => {
                let of_agent = &mut self.agents.get_mut(&agent).expect("an agent").tasks;
                of_agent.remove(id);
                self.tell(id, &agent, TaskState::TaskKilled, None);
            }
            Some(_) => {}
            None => self.tell_answer(id, "", TaskState::TaskUnknown),
        }
    }

    fn agent_of(&self, id: &str) -> Option<String> {
        let mut agents = self.agents.iter();
        let found = agents.find(|(_, agent)| agent.tasks.contains_key(id));
        found.map(|(name, _)| name.clone())
    }

    /// Sends an agent's update, which is repeated until it is acknowledged.
    fn tell(&mut self, id: &str, agent: &str, state: TaskState, healthy: Option<bool>) {
        let status = TaskStatus {
            task_id: TaskId {
                value: id.to_owned(),
            },
            agent_id: Some(AgentId {
                value: agent.to_owned(),
            }),
            state: state.into(),
            healthy,
            uuid: Some(vec![1]),
            ..TaskStatus::default()
        };
        self.unacknowledged.insert(id.to_owned(), status.clone());
        self.inbox.push_back(Input::Update(Box::new(status)));
    }

    fn tell_answer(&mut self, id: &str, agent: &str, state: TaskState) {
        let status = TaskStatus {
            task_id: TaskId {
                value: id.to_owned(),
            },
            agent_id: Some(AgentId {
                value: agent.to_owned(),
            }),
            state: state.into(),
            reason: Some(Reason::Reconciliation.into()),
            ..TaskStatus::default()
        };
        self.inbox.push_back(Input::Update(Box::new(status)));
    }

    fn acknowledged(&mut self, status: &TaskStatus) {
        let id = &status.task_id.value;
        if status.state == i32::from(TaskState::TaskFinished) {
            assert!(
                !self.disk.contains_key(&format!("task/{id}")),
                "{id} was acknowledged before its end was durable"
            );
        }
        let is_last = self
            .unacknowledged
            .get(id)
            .is_some_and(|last| last == status);
        if is_last {
            self.unacknowledged.remove(id);
        }
    }

    fn reconcile(&mut self, request: reconciler::Request) {
        let ids: Vec<String> = match request {
            reconciler::Request::Explicit(tasks) => {
                tasks.into_iter().map(|task| task.task_id.value).collect()
            }
            reconciler::Request::Implicit => {
                let tasks = self.agents.values().flat_map(|agent| agent.tasks.keys());
                tasks.cloned().collect()
            }
        };
        for id in ids {
            let Some(agent) = self.agent_of(&id) else {
                if !self.unacknowledged.contains_key(&id) {
                    self.tell_answer(&id, "", TaskState::TaskGone);
                }
                continue;
            };
            let of_agent = &self.agents[&agent];
            let state = match (of_agent.is_away, of_agent.tasks[&id]) {
                (true, _) => TaskState::TaskUnreachable,
                (false, Life::Staging) => TaskState::TaskStaging,
                (false, Life::Running) => TaskState::TaskRunning,
            };
            self.tell_answer(&id, &agent, state);
        }
    }

    fn subscribe(&mut self) {
        self.offers.clear();
        self.filters.clear();
        self.inbox.clear();
        let framework_id = "f".to_owned();
        let (roles, suppressed) = (self.state.roles(), self.state.idle_roles());
        if roles.iter().any(|role| self.refused.contains(role)) {
            self.step(Input::SubscriptionRefused);
            return self.subscribe();
        }
        self.roles.clone_from(&roles);
        self.suppressed.clone_from(&suppressed);
        self.step(Input::Subscribed {
            framework_id,
            roles: RoleSet { roles, suppressed },
        });
        // Unacknowledged updates come again.
        let operations: Vec<_> = self.unacknowledged_operations.values().cloned().collect();
        let operations = operations.into_iter().map(Box::new);
        self.inbox.extend(operations.map(Input::OperationUpdate));
        let again: Vec<_> = self.unacknowledged.values().cloned().collect();
        self.inbox.extend(
            again
                .into_iter()
                .map(|status| Input::Update(Box::new(status))),
        );
    }

    /// Ends the process. Only some of the first pending writes become durable.
    pub(super) fn crash(&mut self) {
        let kept = self.dice.below(self.writes.len() as u64 + 1);
        for _ in 0..kept {
            self.write_one();
        }
        self.writes.clear();
        let records = self.disk.clone();
        let restored = State::restore(self.options.clone(), self.now(), records);
        self.state = restored.expect("what was stored");
        self.subscribe();
    }

    /// The number that the next process draws.
    pub(super) fn draw(&mut self, drawn: u32) {
        self.options.drawn = drawn;
    }

    /// Returns the number of records whose keys begin with this prefix.
    pub(super) fn stored(&self, prefix: &str) -> usize {
        let keys = self.disk.keys();
        keys.filter(|key| key.starts_with(prefix)).count()
    }

    fn write_one(&mut self) -> Option<u64> {
        let (id, records) = self.writes.pop_front()?;
        for record in records {
            match record.value {
                Some(value) => self.disk.insert(record.key, value),
                None => self.disk.remove(&record.key),
            };
        }
        Some(id)
    }

    /// Sets the clock, which was ahead by this time, back while the process is away.
    pub(super) fn set_back(&mut self, time: Duration) {
        self.sync();
        self.since -= time;
        self.crash();
    }

    pub(super) fn sync(&mut self) {
        while let Some(id) = self.write_one() {
            self.step(Input::Stored(id));
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(5));
            self.stand_still(step);
            left -= step;
        }
    }

    /// Lets time pass while every write is durable at once.
    pub(super) fn pass_durably(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(5));
            self.stand_still(step);
            self.sync();
            left -= step;
        }
    }

    /// Suspends the process for a while; its inbox waits. The first input afterwards is the time.
    pub(super) fn stand_still(&mut self, time: Duration) {
        self.since += time;
        let kills_waiting = std::mem::take(&mut self.kills_waiting);
        self.step(Input::Tick { kills_waiting });
    }

    /// Sets the machine's clock ahead of its start by this time.
    pub(super) fn set_ahead(&mut self, ahead: Duration) {
        self.ahead = ahead;
    }

    pub(super) fn now(&self) -> Now {
        let now = now_at(self.since);
        Now {
            unix: now.unix + self.ahead,
            ..now
        }
    }

    pub(super) fn agents(&self) -> Vec<String> {
        self.agents.keys().cloned().collect()
    }

    /// Returns the free slots of an agent of which other frameworks have taken some.
    pub(super) fn free(&self, agent: &str, taken: u32) -> u32 {
        let own = self.agents.get(agent).map_or(0, |agent| agent.tasks.len());
        let of_agent = self.offers.values().filter(|(at, _)| at == agent);
        let offered: u32 = of_agent.map(|(_, offered)| slots_of(offered)).sum();
        SLOTS - taken - offered - u32::try_from(own).unwrap()
    }

    /// Returns the number of slots that the scheduler's tasks have.
    pub(super) fn used(&self) -> u32 {
        let tasks = self.agents.values().map(|agent| agent.tasks.len());
        u32::try_from(tasks.sum::<usize>()).unwrap()
    }

    pub(super) fn deliver(&mut self) -> bool {
        let Some(input) = self.inbox.pop_front() else {
            return false;
        };
        self.step(input);
        true
    }

    /// Delivers all waiting input in one step with the tick.
    pub(super) fn deliver_with_time(&mut self) {
        let tick = Input::Tick { kills_waiting: 0 };
        let inputs: Vec<_> = [tick].into_iter().chain(self.inbox.drain(..)).collect();
        for effect in self.state.step_all(self.now(), inputs) {
            self.carry_out(effect);
        }
    }

    /// Advances a task: to running, or, for a batch (whose run is not 0), to its end.
    pub(super) fn advance(&mut self, ill_version: Option<u64>) {
        let tasks: Vec<_> = self
            .agents
            .iter()
            .filter(|(_, agent)| !agent.is_away)
            .flat_map(|(name, agent)| agent.tasks.iter().map(move |(id, life)| (name, id, life)))
            .map(|(name, id, life)| (name.clone(), id.clone(), *life))
            .collect();
        if tasks.is_empty() {
            return;
        }
        let chosen = usize::try_from(self.dice.below(tasks.len() as u64)).unwrap();
        let (agent, id, life) = tasks[chosen].clone();
        let name: TaskName = id.parse().expect("one of ours");
        let of_agent = &mut self.agents.get_mut(&agent).expect("an agent").tasks;
        match life {
            Life::Staging => {
                of_agent.insert(id.clone(), Life::Running);
                self.tell(&id, &agent, TaskState::TaskRunning, None);
            }
            Life::Running if name.run == 0 && Some(name.version) == ill_version => {
                of_agent.remove(&id);
                self.tell(&id, &agent, TaskState::TaskFailed, None);
            }
            Life::Running if name.run == 0 => {}
            Life::Running => {
                of_agent.remove(&id);
                if self.dice.below(10) < self.success_in_ten {
                    let key = (name.job.clone(), name.run, name.index);
                    *self.successes.entry(key).or_default() += 1;
                    self.tell(&id, &agent, TaskState::TaskFinished, None);
                } else {
                    self.tell(&id, &agent, TaskState::TaskFailed, None);
                }
            }
        }
    }

    /// Lets a task succeed unnoticed; its agent reports the success after its return.
    pub(super) fn finish_away(&mut self, id: &str) {
        let name: TaskName = id.parse().expect("one of ours");
        let agent = self.agent_of(id).expect("a task that lives");
        let of_agent = &mut self.agents.get_mut(&agent).expect("an agent").tasks;
        of_agent.remove(id);
        let key = (name.job, name.run, name.index);
        *self.successes.entry(key).or_default() += 1;
        self.tell(id, &agent, TaskState::TaskFinished, None);
    }

    /// Lets time pass without faults, in which every task runs and ends by itself.
    pub(super) fn calm(&mut self, seconds: u64, ill_version: Option<u64>) {
        for _ in 0..seconds {
            for _ in 0..8 {
                self.make_offers();
                while self.deliver() {}
                self.sync();
                self.advance(ill_version);
            }
            self.pass(Duration::from_secs(1));
            self.check();
        }
    }

    /// Returns the number of tasks that live on agents that are not away.
    pub(super) fn alive(&self, job: &str) -> usize {
        let tasks = self.agents.values().filter(|agent| !agent.is_away);
        let tasks = tasks.flat_map(|agent| agent.tasks.keys());
        tasks.filter(|id| is_of(id, job)).count()
    }

    /// Checks the invariants that hold after every step.
    pub(super) fn check(&self) {
        self.state.jobs.check_demand(self.state.clock.at());
        assert!(
            self.state.offers.free().count() == 0 || self.state.gangs.collecting().is_some(),
            "offers are kept for nobody"
        );
        for role in self.state.roles().intersection(&self.roles) {
            assert_eq!(
                self.state.roles.is_suppressed(role),
                self.is_suppressed(role),
                "the scheduler and the master differ in role {role}"
            );
        }
        for ((job, run, index), count) in &self.successes {
            assert_eq!(
                *count, 1,
                "index {index} of run {run} of {job} succeeded again"
            );
        }
    }
}

fn is_of(id: &str, job: &str) -> bool {
    id.parse::<TaskName>().is_ok_and(|name| name.job == job)
}

fn now_at(since: Duration) -> Now {
    Now {
        moment: Moment::ORIGIN + since,
        unix: ORIGIN + since,
    }
}
