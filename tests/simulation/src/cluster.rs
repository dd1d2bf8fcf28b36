//! The cluster: a master, agents and a framework, with a network and disks between them.
//!
//! Entered through [`Cluster::run`]. Whatever happens next is drawn from one seeded generator.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use meseta_agent::core::{Exit, Input as AgentInput, LinkId};
use meseta_daemon::authentication::Caller;
use meseta_master::core::{
    Config, ConnectionId, Effect, Identity, Input, Lsn, MasterCore, Mutation, Output, Recovered,
    ReplyId, Request, SubscribeRequest,
};
use meseta_proto::meseta::v1::{MasterFrame, agent_frame, master_frame};
use meseta_proto::mesos::v1::scheduler::Event;
use meseta_resources::ContainerId;
use meseta_resources::time::{Moment, Now};

use crate::agent::{Agent, Wanted};
use crate::framework::Framework;

const AGENTS: usize = 3;
/// Steps that a violation is told with.
const LAST_STEPS: usize = 30;

/// A connection of an agent; `None` in a direction is its end, behind what was sent before.
#[derive(Debug)]
struct Connection {
    agent: usize,
    link: LinkId,
    to_master: VecDeque<Option<Box<agent_frame::Message>>>,
    to_agent: VecDeque<Option<Box<MasterFrame>>>,
    /// One of its ends is gone: nothing more can be sent on it.
    broken: bool,
    /// Nothing arrives at the master, or at the agent, until it breaks or goes on.
    stalled: [bool; 2],
}

/// A whole cluster in virtual time.
#[derive(Debug)]
pub struct Cluster {
    seed: u64,
    rng: fastrand::Rng,
    now: Now,
    master: MasterCore,
    registry: Recovered,
    unwritten: VecDeque<(Lsn, Mutation)>,
    agents: Vec<Agent>,
    connections: BTreeMap<u64, Connection>,
    framework: Framework,
    events: VecDeque<(u64, Box<Event>)>,
    next_number: u64,
    faults: bool,
    steps: u64,
    trace: u64,
    last: VecDeque<String>,
}

impl Cluster {
    /// A cluster that has just been started, with empty disks.
    ///
    /// # Errors
    /// If there is no room for the directories of the agents.
    pub fn new(seed: u64) -> std::io::Result<Self> {
        let now = Now {
            moment: Moment::from_nanos(1_000),
            unix: Duration::from_secs(1_800_000_000),
        };
        let registry = Recovered {
            epoch: 1,
            cluster_id: "cluster".to_owned(),
            ..Recovered::default()
        };
        let agent_seed = |number: usize| seed.wrapping_mul(1_000_003) + (number as u64) * 1_000_000;
        let agents = (0..AGENTS).map(|number| Agent::new(number, agent_seed(number), now));
        Ok(Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            now,
            master: MasterCore::new(config(1), registry.clone(), now),
            registry,
            unwritten: VecDeque::new(),
            agents: agents.collect::<Result<_, _>>()?,
            connections: BTreeMap::new(),
            framework: Framework::default(),
            events: VecDeque::new(),
            next_number: 0,
            faults: true,
            steps: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            last: VecDeque::new(),
        })
    }

    /// Takes so many steps with faults, and then lets the cluster come to rest; the hash of all that happened.
    ///
    /// # Errors
    /// The first broken promise, with the seed and the steps before it.
    pub fn run(&mut self, steps: u64) -> Result<u64, String> {
        for _ in 0..steps {
            self.step()?;
        }
        self.settle()?;
        Ok(self.trace)
    }

    /// The number of tasks that were launched.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.framework.tasks.len()
    }

    fn settle(&mut self) -> Result<(), String> {
        const ROUNDS: usize = 60;
        const UNREAD_STEPS: usize = 400;
        // At first nobody asks for anything: a kill would bring the end of a task that no retry brings.
        const QUIET_ROUNDS: usize = 20;
        self.faults = false;
        self.framework.idle = true;
        // The framework reads nothing for a while, and then its stream breaks: what was on its way is lost, and no agent has
        // a reason to connect again. Only a retry brings it.
        self.framework.is_busy = true;
        for _ in 0..UNREAD_STEPS {
            self.step()?;
        }
        self.framework.is_busy = false;
        self.cut_framework();
        for connection in self.connections.values_mut() {
            connection.stalled = [false; 2];
        }
        for round in 0..ROUNDS {
            if round >= QUIET_ROUNDS {
                self.end_tasks();
            }
            for _ in 0..400 {
                self.step()?;
            }
            self.advance();
        }
        self.check_rest()
    }

    /// The framework asks for the end of what it takes to live, and for what became of it.
    fn end_tasks(&mut self) {
        let tasks = &self.framework.tasks;
        let open = tasks.iter().filter(|(_, task)| !task.is_over());
        let open: Vec<_> = open.map(|(id, _)| id.clone()).collect();
        open.iter().for_each(|id| self.framework.kill(id));
        if self.framework.is_subscribed() {
            self.framework.reconcile();
        }
    }

    fn check_rest(&mut self) -> Result<(), String> {
        for (id, task) in &self.framework.tasks {
            if !task.is_over() {
                let (state, agent) = (task.state, &task.agent);
                return Err(self.failure(&format!("task {id} of {agent} stays {state:?}")));
            }
        }
        self.check_updates()?;
        let snapshot = self.master.snapshot();
        for agent in snapshot.agents.iter() {
            if agent.used.values().any(|used| !used.is_empty()) {
                return Err(self.failure(&format!("the master holds {:?} at rest", agent.used)));
            }
        }
        for (number, agent) in self.agents.iter().enumerate() {
            if !agent.running.is_empty() {
                let what = format!("agent {number} runs {:?} at rest", agent.running);
                return Err(self.failure(&what));
            }
        }
        Ok(())
    }

    /// Every update that an agent has sent has come to the framework, in the order in which the agent sent them.
    fn check_updates(&self) -> Result<(), String> {
        for (number, agent) in self.agents.iter().enumerate() {
            for (id, sent) in &agent.sent {
                let task = self.framework.tasks.get(id);
                let came = task.into_iter().flat_map(|task| &task.order);
                let came: Vec<_> = came.filter(|uuid| sent.contains(uuid)).collect();
                if came != sent.iter().collect::<Vec<_>>() {
                    let what = format!(
                        "agent {number} sent {} updates of {id}, of which {} came, or in another order",
                        sent.len(),
                        came.len()
                    );
                    return Err(self.failure(&what));
                }
            }
        }
        Ok(())
    }

    fn failure(&self, what: &str) -> String {
        let last: Vec<_> = self.last.iter().map(String::as_str).collect();
        let (seed, steps) = (self.seed, self.steps);
        format!(
            "{what}\nseed {seed}, step {steps}; the last steps:\n{}",
            last.join("\n")
        )
    }

    fn note(&mut self, what: String) {
        for byte in what.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.last.len() == LAST_STEPS {
            self.last.pop_front();
        }
        self.last.push_back(format!("{}: {what}", self.steps));
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// One thing happens, and all that must hold is checked.
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        match self.rng.u32(..1_000) {
            0..450 => self.deliver(),
            450..550 => self.call(),
            550..650 => self.hear(),
            650..750 => self.flush_agent(),
            750..850 => self.flush_master(),
            850..930 => self.machine(),
            930..980 => self.advance(),
            980..995 => self.subscribe(),
            _ if self.faults => self.fault(),
            _ => {}
        }
        self.carry();
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        let agents = self.agents.iter_mut();
        let violations = agents.flat_map(|agent| agent.violations.drain(..));
        let mut violations: Vec<_> = violations.collect();
        violations.append(&mut self.framework.violations);
        let snapshot = self.master.snapshot();
        if snapshot.counters.invariant_violations > 0 {
            violations.push("the master's core and its allocator disagree".to_owned());
        }
        for agent in snapshot.agents.iter() {
            let mut held = agent.offered.unallocate();
            for used in agent.used.values() {
                held += used.unallocate();
            }
            if !agent.profile.total.contains(&held) {
                violations.push(format!("agent {} is given out twice: {held}", agent.id()));
            }
        }
        match violations.first() {
            Some(first) => Err(self.failure(first)),
            None => Ok(()),
        }
    }

    fn deliver(&mut self) {
        let mut ready = Vec::new();
        for (id, connection) in &self.connections {
            if !connection.stalled[0] && !connection.to_master.is_empty() {
                ready.push((*id, true));
            }
            if !connection.stalled[1] && !connection.to_agent.is_empty() {
                ready.push((*id, false));
            }
        }
        self.connections
            .retain(|_, one| !one.broken || !one.to_master.is_empty() || !one.to_agent.is_empty());
        if ready.is_empty() {
            return;
        }
        let (id, to_master) = ready[self.rng.usize(..ready.len())];
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if to_master {
            let Some(message) = connection.to_master.pop_front() else {
                return;
            };
            self.note(format!("to the master on {id}: {message:?}"));
            let connection = ConnectionId(id);
            self.step_master(match message {
                Some(message) => Input::AgentFrame {
                    connection,
                    message,
                },
                None => Input::AgentGone { connection },
            });
        } else if let Some(frame) = connection.to_agent.pop_front() {
            let (agent, link) = (connection.agent, connection.link);
            self.note(format!("to agent {agent} on {id}: {frame:?}"));
            let input = match frame {
                Some(frame) => AgentInput::Frame {
                    link,
                    frame,
                    charge: None,
                },
                None => AgentInput::LinkDown {
                    link,
                    reason: "cut".to_owned(),
                },
            };
            self.agents[agent].step(self.now, input);
        }
    }

    /// A call of the framework arrives.
    fn call(&mut self) {
        let Some(framework_id) = self.framework.id.clone() else {
            return;
        };
        if !self.framework.is_subscribed() {
            return;
        }
        let (connection, answers) = (self.framework.connection, self.framework.answers);
        if let Some(connection) = connection.filter(|_| answers > 0) {
            self.framework.answers = 0;
            let connection = ConnectionId(connection);
            return self.step_master(Input::AnswersRead {
                connection,
                answers,
            });
        }
        let Some(action) = self.framework.calls.pop_front() else {
            return self.act();
        };
        self.note(format!("call {action:?}"));
        let reply = ReplyId(self.number());
        let stream_id = connection.map(|id| id.to_string());
        self.step_master(Input::Request {
            reply,
            request: Request::Call {
                framework_id,
                stream_id,
                action: Box::new(action),
                caller: Caller::default(),
            },
        });
    }

    /// The framework does something of its own accord.
    fn act(&mut self) {
        match self.rng.u32(..40) {
            0 => self.framework.reconcile(),
            1 if !self.framework.tasks.is_empty() => {
                let id = self.rng.usize(..self.framework.tasks.len());
                self.framework.kill(&format!("t{id}"));
            }
            _ => {}
        }
    }

    /// An event arrives at the framework, unless its stream broke.
    fn hear(&mut self) {
        if self.framework.is_busy {
            return;
        }
        let Some((connection, event)) = self.events.pop_front() else {
            return;
        };
        if self.framework.connection == Some(connection) {
            self.note(format!("event {event:?}"));
            self.framework.hear(*event);
        }
    }

    fn subscribe(&mut self) {
        if self.framework.connection.is_some() {
            return;
        }
        let id = self.number();
        self.framework.connection = Some(id);
        self.note(format!("the framework subscribes on {id}"));
        self.step_master(Input::Subscribe(SubscribeRequest {
            connection: ConnectionId(id),
            stream_id: id.to_string(),
            call: Box::new(self.framework.subscription()),
            caller: Caller::default(),
        }));
    }

    fn flush_agent(&mut self) {
        let agent = self.rng.usize(..AGENTS);
        if self.agents[agent].unwritten() > 0 {
            let count = self.rng.usize(1..=self.agents[agent].unwritten());
            self.note(format!("{count} writes of agent {agent} are durable"));
            self.agents[agent].flush(count);
        }
    }

    fn flush_master(&mut self) {
        if self.unwritten.is_empty() {
            return;
        }
        let count = self.rng.usize(1..=self.unwritten.len());
        let mut last = Lsn::default();
        for (lsn, mutation) in self.unwritten.drain(..count) {
            self.registry.apply(mutation);
            last = lsn;
        }
        self.note(format!("mutations up to {last} are durable"));
        self.step_master(Input::Persisted { lsn: last });
    }

    /// A container begins, ends, or is found to have ended.
    fn machine(&mut self) {
        let number = self.rng.usize(..AGENTS);
        let agent = &mut self.agents[number];
        let first = |ids: Vec<ContainerId>, rng: &mut fastrand::Rng| {
            let at = rng.usize(..ids.len().max(1));
            ids.into_iter().nth(at)
        };
        let what = self.rng.u32(..20);
        let (verb, container) = if what < 9 {
            let starting = agent.launching.iter().cloned().collect();
            ("starts", first(starting, &mut self.rng))
        } else if what < 18 {
            let ended = agent.ended.keys().cloned().collect();
            ("is told to have ended", first(ended, &mut self.rng))
        } else {
            let running = agent.running.keys().cloned().collect();
            ("ends", first(running, &mut self.rng))
        };
        let Some(container) = container else {
            return;
        };
        self.note(format!("container {container} of agent {number} {verb}"));
        let agent = &mut self.agents[number];
        match verb {
            "starts" => agent.start(self.now, &container),
            "ends" => {
                agent.running.remove(&container);
                agent.ended.insert(container, Exit::Code(0));
            }
            _ => agent.tell_end(self.now, &container),
        }
    }

    /// Time passes up to the next deadline of anybody.
    fn advance(&mut self) {
        let deadlines = self
            .agents
            .iter()
            .filter_map(|agent| agent.core.next_deadline());
        let next = deadlines.fold(self.master.next_deadline(), Ord::min);
        let next = next.max(self.now.moment);
        self.now.unix += next.saturating_since(self.now.moment);
        self.now.moment = next;
        self.note(format!("time is {next:?}"));
        if self.master.next_deadline() <= next {
            self.step_master(Input::Tick);
        }
        for agent in &mut self.agents {
            if agent.core.next_deadline().is_some_and(|at| at <= next) {
                agent.step(self.now, AgentInput::Tick);
            }
        }
    }

    fn fault(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        let at = self.rng.usize(..ids.len().max(1));
        let connection = ids.get(at).copied();
        match (self.rng.u32(..16), connection) {
            (0..4, Some(id)) => self.cut(id),
            (4..8, Some(id)) => {
                let direction = self.rng.usize(..2);
                let is_stalled = self.rng.bool();
                self.note(format!(
                    "direction {direction} of {id} stalls: {is_stalled}"
                ));
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.stalled[direction] = is_stalled;
                }
            }
            (8..11, _) => self.crash_agent(),
            (11..13, _) => self.crash_master(),
            (13, _) => self.cut_framework(),
            _ => {}
        }
    }

    /// A connection breaks; some of what was on its way is lost.
    fn cut(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let kept = self.rng.usize(..=connection.to_master.len());
        connection.to_master.truncate(kept);
        connection.to_master.push_back(None);
        let kept = self.rng.usize(..=connection.to_agent.len());
        connection.to_agent.truncate(kept);
        connection.to_agent.push_back(None);
        connection.stalled = [false; 2];
        connection.broken = true;
        self.note(format!("connection {id} is cut"));
    }

    fn crash_agent(&mut self) {
        let number = self.rng.usize(..AGENTS);
        self.note(format!("agent {number} crashes"));
        let of_agent = self.connections.iter();
        let of_agent = of_agent.filter(|(_, connection)| connection.agent == number);
        let ids: Vec<u64> = of_agent.map(|(id, _)| *id).collect();
        for id in ids {
            self.cut(id);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.to_agent.clear();
            }
        }
        self.agents[number].crash(self.now);
    }

    fn crash_master(&mut self) {
        self.note("the master crashes".to_owned());
        self.unwritten.clear();
        self.events.clear();
        self.framework.disconnected();
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.cut(id);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.to_master.clear();
            }
        }
        self.registry.epoch += 1;
        let config = config(self.registry.epoch);
        self.master = MasterCore::new(config, self.registry.clone(), self.now);
    }

    fn cut_framework(&mut self) {
        if let Some(connection) = self.framework.connection {
            self.note("the framework's stream breaks".to_owned());
            self.framework.disconnected();
            let connection = ConnectionId(connection);
            self.step_master(Input::SchedulerGone { connection });
        }
    }

    fn step_master(&mut self, input: Input) {
        for effect in self.master.step(self.now, input) {
            match effect {
                Effect::Persist { lsn, mutation } => self.unwritten.push_back((lsn, mutation)),
                Effect::Output { output, .. } => self.send(output),
            }
        }
    }

    fn send(&mut self, output: Output) {
        match output {
            Output::Event { to, event } => self.events.push_back((to.0, event)),
            Output::CloseScheduler { connection, .. } => {
                if self.framework.connection == Some(connection.0) {
                    self.cut_framework();
                }
            }
            Output::Frame { to, frame } => {
                self.check_admitted(&frame);
                if let Some(connection) = self.connections.get_mut(&to.0)
                    && !connection.broken
                {
                    connection.to_agent.push_back(Some(frame));
                }
            }
            Output::CloseAgent { connection, .. } => {
                if let Some(connection) = self.connections.get_mut(&connection.0) {
                    connection.to_agent.push_back(None);
                    connection.broken = true;
                    connection.to_master.clear();
                    connection.to_master.push_back(None);
                }
            }
            Output::Reply { .. } | Output::OperationFinished { .. } | Output::OperatorEvent(_) => {}
        }
    }

    /// An agent is told that it is registered once that is durable, so that the next master knows it too.
    fn check_admitted(&mut self, frame: &MasterFrame) {
        let Some(master_frame::Message::Registered(registered)) = &frame.message else {
            return;
        };
        let id = &registered.agent_id.value;
        let is_known = self
            .registry
            .agents
            .iter()
            .any(|agent| agent.agent_id == *id);
        if !is_known {
            let text = format!("agent {id} is registered before that is durable");
            self.framework.violations.push(text);
        }
    }

    /// Takes up what agents want of the network.
    fn carry(&mut self) {
        for number in 0..AGENTS {
            while !self.agents[number].wanted.is_empty() {
                let wanted = self.agents[number].wanted.remove(0);
                self.carry_one(number, wanted);
            }
        }
    }

    fn carry_one(&mut self, agent: usize, wanted: Wanted) {
        let of_link = |link: LinkId| {
            move |connection: &&mut Connection| connection.agent == agent && connection.link == link
        };
        match wanted {
            Wanted::Connect(link) => {
                let id = self.number();
                self.note(format!("agent {agent} connects on {id}"));
                let connection = Connection {
                    agent,
                    link,
                    to_master: VecDeque::new(),
                    to_agent: VecDeque::new(),
                    broken: false,
                    stalled: [false; 2],
                };
                self.connections.insert(id, connection);
                self.agents[agent].step(self.now, AgentInput::LinkUp { link });
            }
            Wanted::Disconnect(link) => {
                let mut connections = self.connections.values_mut().rev();
                if let Some(connection) = connections.find(of_link(link)) {
                    connection.to_agent.clear();
                    connection.to_master.push_back(None);
                    connection.stalled = [false; 2];
                    connection.broken = true;
                }
            }
            Wanted::Send(link, message) => {
                let mut connections = self.connections.values_mut().rev();
                if let Some(connection) = connections.find(of_link(link))
                    && !connection.broken
                {
                    connection.to_master.push_back(Some(message));
                }
            }
        }
    }
}

fn config(epoch: u64) -> Config {
    Config::new(Identity {
        id: format!("m{epoch}"),
        hostname: "localhost".to_owned(),
        ip: Ipv4Addr::LOCALHOST,
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
        build: Default::default(),
        domain: None,
    })
}
