//! The masters: processes with a core each; one leads, and another may not know yet that it no longer leads.
//!
//! Outputs wait for the registry in the production outbox. A process ends when the registry refuses its write. `outputs`
//! has the effects of outputs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use meseta_daemon::outbox::Outbox;
use meseta_master::core::{
    AllocatorConfig, Config, ConnectionId, Effect, Identity, Input, Lsn, MasterCore, Mutation,
    Output,
};
use meseta_proto::meseta::v1::agent_frame;

use crate::checks::Broken;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::names;
use crate::plan::Feature;

/// The destination of an output, as in the daemon: each keeps its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    Scheduler(u64),
    Agent(u64),
    Reply(u64),
    Others,
}

impl Destination {
    fn from_output(output: &Output) -> Self {
        match output {
            Output::Event { to, .. } | Output::CloseScheduler { connection: to, .. } => {
                Self::Scheduler(to.0)
            }
            Output::Frame { to, .. } | Output::CloseAgent { connection: to, .. } => {
                Self::Agent(to.0)
            }
            Output::Reply { reply, .. } => Self::Reply(reply.0),
            Output::OperationTaken { .. }
            | Output::OperationFinished { .. }
            | Output::OperatorEvent(_) => Self::Others,
        }
    }
}

/// A process that is or was the leader.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) number: u64,
    pub(crate) core: MasterCore,
    pub(crate) clock: Clock,
    pub(crate) unwritten: VecDeque<(Lsn, Mutation)>,
    outbox: Outbox<Destination, Output>,
    /// The begin and end of the process's pause.
    pub(crate) paused: Option<(u64, u64)>,
    /// The true time in which the master did not run.
    pub(crate) lost: u64,
    /// The arrival of each agent's last sign of life, without the time in which the process did not run.
    pub(crate) heard: BTreeMap<String, u64>,
    /// Agents whose last pong said that their disk does not answer.
    pub(crate) silent_disks: BTreeSet<String>,
    /// The master has made a step since its last check.
    pub(crate) has_stepped: bool,
    /// The last time that it declared an agent unreachable, in true time.
    last_removal: Option<u64>,
}

impl Master {
    /// Starts a process that takes the lead.
    pub(crate) fn start(cluster: &mut Cluster) -> Self {
        let number = cluster.number();
        let recovered = cluster.registry.lead(number);
        let drift = cluster.drift(number);
        let clock = Clock::new(cluster.time, drift);
        let mut config = config(number, recovered.epoch, cluster.plan.seed);
        if cluster.has(Feature::Pruning) {
            config.registry_max_agent_count = 1;
            config.registry_gc_interval = Duration::from_secs(120);
        }
        Self {
            number,
            core: MasterCore::new(config, recovered, clock.now(cluster.time)),
            clock,
            unwritten: VecDeque::new(),
            outbox: Outbox::default(),
            paused: None,
            lost: 0,
            heard: BTreeMap::new(),
            silent_disks: BTreeSet::new(),
            has_stepped: true,
            last_removal: None,
        }
    }

    /// Returns the true time in which the master ran, up to a true time.
    fn ran(&self, time: u64) -> u64 {
        time.saturating_sub(self.lost)
    }
}

impl Cluster {
    /// Returns the leading process; there is always one.
    pub(crate) fn leader(&self) -> u64 {
        self.masters.last().map_or(0, |master| master.number)
    }

    pub(crate) fn master(&mut self, number: u64) -> Option<&mut Master> {
        let mut masters = self.masters.iter_mut();
        masters.find(|master| master.number == number)
    }

    /// Whether a process runs.
    pub(crate) fn is_running(&self, number: u64) -> bool {
        let mut masters = self.masters.iter();
        masters.any(|master| master.number == number && master.paused.is_none())
    }

    /// Feeds an input to a master, and executes its effects.
    pub(crate) fn step_master(&mut self, number: u64, input: Input) {
        let time = self.time;
        let Some(at) = self.masters.iter().position(|one| one.number == number) else {
            return;
        };
        let master = &mut self.masters[at];
        match &input {
            Input::SchedulerGone { connection } => {
                let gone = Destination::Scheduler(connection.0);
                master.outbox.drop_destination(&gone);
            }
            Input::AgentGone { connection } => {
                let gone = Destination::Agent(connection.0);
                master.outbox.drop_destination(&gone);
            }
            _ => {}
        }
        master.has_stepped = true;
        let effects = master.core.step(master.clock.now(time), input);
        let mut overflows = false;
        for effect in effects {
            match effect {
                Effect::Persist { lsn, mutation } => {
                    self.story
                        .count(("mutation", names::of_mutation(&mutation)));
                    self.note_given_up(&mutation);
                    if let Mutation::MarkUnreachable(record) = &mutation {
                        let broken = check_removal(&mut self.masters[at], time, &record.agent_id);
                        self.broken.extend(broken);
                    }
                    self.masters[at].unwritten.push_back((lsn, mutation));
                }
                Effect::Output { after, output } => {
                    let to = Destination::from_output(&output);
                    let outbox = &mut self.masters[at].outbox;
                    overflows |= outbox.push(to, after.0, output).is_err();
                }
            }
        }
        if overflows {
            self.broken
                .push(Broken::new("I49", "the master's outbox is full"));
        }
        let durable = self.masters[at].outbox.durable_lsn();
        self.release(number, durable);
    }

    fn release(&mut self, number: u64, durable: u64) {
        let Some(master) = self.master(number) else {
            return;
        };
        let released = master.outbox.durable(durable);
        for (_, output) in released {
            // The process may have ended meanwhile.
            if self.is_running(number) {
                self.carry_out(number, output);
            }
        }
    }

    /// Lets the registry accept some writes of a master, or end it.
    pub(crate) fn flush_master(&mut self) {
        let at = self.rng.usize(..self.masters.len());
        let master = &mut self.masters[at];
        if master.paused.is_some() || master.unwritten.is_empty() {
            return;
        }
        let number = master.number;
        let count = self.rng.usize(1..=master.unwritten.len());
        let batch: Vec<_> = master.unwritten.drain(..count).collect();
        let last = batch.last().map_or(Lsn::default(), |(lsn, _)| *lsn);
        let mutations = batch.into_iter().map(|(_, mutation)| mutation).collect();
        if !self.registry.commit(number, mutations) {
            self.story.note(("fault", "fenced"), [number, 0], || {
                format!("the registry refuses a write of master {number}, which ends")
            });
            return self.end_master(number);
        }
        self.story.note(("disk", "registry"), [number, last.0], || {
            format!("mutations of master {number} up to {last} are durable")
        });
        self.step_master(number, Input::Persisted { lsn: last });
        self.release(number, last.0);
    }

    /// Ends a process, with its unread input and its writes that are not durable.
    pub(crate) fn end_master(&mut self, number: u64) {
        self.masters.retain(|master| master.number != number);
        let mut rng = self.rng.fork();
        for connection in self.network.connections.values_mut() {
            if connection.master == number {
                connection.lose_master(&mut rng);
            }
        }
        for framework in &mut self.frameworks {
            if framework
                .stream
                .is_some_and(|stream| stream.master == number)
            {
                framework.disconnected();
            }
        }
        self.operators.forget_replies(number);
    }

    /// Crashes the leader, and starts another process. Some waiting writes may have reached the registry.
    pub(crate) fn crash_master(&mut self, with_late_writes: bool) {
        let leader = self.leader();
        if with_late_writes && let Some(at) = self.masters.iter().position(|m| m.number == leader) {
            let waiting = self.masters[at].unwritten.len();
            let kept = self.rng.usize(..=waiting);
            let unwritten = self.masters[at].unwritten.drain(..kept);
            let mutations = unwritten.map(|(_, mutation)| mutation).collect();
            self.registry.commit(leader, mutations);
        }
        self.end_master(leader);
        self.take_over();
    }

    /// Lets another process take the lead; the earlier one, if it runs, learns that with its next write.
    pub(crate) fn take_over(&mut self) {
        /// The largest number of concurrent processes.
        const MASTERS_MAX: usize = 2;
        let master = Master::start(self);
        let number = master.number;
        self.masters.push(master);
        while self.masters.len() > MASTERS_MAX {
            let oldest = self.masters[0].number;
            self.end_master(oldest);
        }
        self.settings_after_start(number);
    }

    /// Notes agents that are removed or marked gone as given up, with all their tasks: their results do not count.
    fn note_given_up(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::MarkGone { agent_id, .. } | Mutation::RemoveAgent { agent_id } => {
                self.given_up.insert(agent_id.clone(), self.steps);
            }
            Mutation::RemoveAgents { agent_ids } | Mutation::PruneUnreachable { agent_ids } => {
                let ids = agent_ids.iter().cloned();
                self.given_up.extend(ids.map(|id| (id, self.steps)));
            }
            // The job scheduler's users wait for no absent agent there.
            Mutation::MarkUnreachable(record) if self.plan.is_of_jobs => {
                self.given_up.insert(record.agent_id.clone(), self.steps);
            }
            _ => {}
        }
    }

    /// Notes the arrival of an agent's sign of life.
    pub(crate) fn note_heard(
        &mut self,
        number: u64,
        connection: u64,
        message: &agent_frame::Message,
    ) {
        let agent_frame::Message::Pong(pong) = message else {
            return;
        };
        let time = self.time;
        let Some(agent) = self.agent_ids.get(&connection).cloned() else {
            return;
        };
        if let Some(master) = self.master(number) {
            let ran = master.ran(time);
            match pong.disk_silent {
                Some(true) => drop(master.silent_disks.insert(agent.clone())),
                Some(false) | None => drop(master.silent_disks.remove(&agent)),
            }
            master.heard.insert(agent, ran);
        }
    }

    /// Returns the id of the connection for messages to an agent.
    pub(crate) fn connection(id: u64) -> ConnectionId {
        ConnectionId(id)
    }
}

/// Checks that an unreachable agent has been silent long enough, and that such agents come no faster than the brake
/// permits.
fn check_removal(master: &mut Master, time: u64, agent: &str) -> Option<Broken> {
    const SECOND: u64 = 1_000_000_000;
    // An agent misses five pings of 15 s; the last answered ping may be 15 s older than its answer. Clocks drift.
    const SILENCE_MIN: u64 = 58 * SECOND;
    const BETWEEN_MIN: u64 = 19 * SECOND;
    // The brake serves the observers of the cluster: their time continues even while the master's stands still.
    let before = master.last_removal.replace(time);
    if before.is_some_and(|before| time.saturating_sub(before) < BETWEEN_MIN) {
        let what = format!("agent {agent} is unreachable right after another");
        return Some(Broken::new("I43", what));
    }
    let ran = master.ran(time);
    let heard = master.heard.get(agent).copied()?;
    (ran.saturating_sub(heard) < SILENCE_MIN).then(|| {
        let what = format!("agent {agent} is unreachable and was heard of just before");
        Broken::new("I43", what)
    })
}

fn config(number: u64, epoch: u64, seed: u64) -> Config {
    let identity = Identity {
        id: format!("m{epoch}-{number}"),
        hostname: "localhost".to_owned(),
        ip: Ipv4Addr::LOCALHOST.into(),
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
        build: Default::default(),
        domain: None,
    };
    Config {
        allocator: AllocatorConfig {
            seed: seed ^ number,
            ..AllocatorConfig::default()
        },
        ..Config::new(identity)
    }
}
