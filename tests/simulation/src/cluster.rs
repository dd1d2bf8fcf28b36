//! The cluster: masters, agents, frameworks and operators, and the next event.
//!
//! Entered through [`Cluster::run`]. Each step draws from a generator of its own, see [`Plan`].

use std::collections::{BTreeMap, BTreeSet};

use meseta_agent::checkpoint::DiskCondition;
use meseta_agent::core::{Exit, Input as AgentInput};
use meseta_master::core::Input;
use meseta_resources::ContainerId;

use crate::agent::{Agent, RESOURCES};
use crate::checks::{Broken, Checks, Violation};
use crate::clock::Clock;
use crate::framework::{Framework, Kind};
use crate::jobs::Jobs;
use crate::machine::Machine;
use crate::master::Master;
use crate::network::Network;
use crate::operators::Operators;
use crate::plan::{Feature, Plan};
use crate::registry::Registry;
use crate::story::{Counts, Story};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The hash of all events.
    pub hash: u64,
    /// The number of steps, including those at the end in which the cluster came to rest.
    pub steps: u64,
    pub tasks: usize,
    pub counts: Counts,
}

/// A whole cluster that runs in virtual time.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) plan: Plan,
    pub(crate) features: BTreeSet<Feature>,
    pub(crate) rng: fastrand::Rng,
    /// The nanoseconds since the start of the cluster, unknown to every process.
    pub(crate) time: u64,
    /// The masters; the last is the leader.
    pub(crate) masters: Vec<Master>,
    pub(crate) registry: Registry,
    pub(crate) agents: Vec<Agent>,
    /// The number of times that each machine got an agent with an empty work directory.
    pub(crate) replaced: Vec<u64>,
    pub(crate) network: Network,
    pub(crate) frameworks: Vec<Framework>,
    pub(crate) operators: Operators,
    pub(crate) checks: Checks,
    pub(crate) story: Story,
    /// The ids of agents, by the connections on which they registered.
    pub(crate) agent_ids: BTreeMap<u64, String>,
    /// The machine, and the life of its agent, for each id.
    pub(crate) id_owners: BTreeMap<String, (usize, u64)>,
    /// Agents that a master or an operator has given up, by their ids, with the last such step.
    pub(crate) given_up: BTreeMap<String, u64>,
    /// Streams on which a client requests the id of another's framework, by master.
    pub(crate) thieves: BTreeSet<(u64, u64)>,
    /// Promises that were broken in this step.
    pub(crate) broken: Vec<Broken>,
    /// Whether faults happen, and frameworks and operators act.
    pub(crate) is_wild: bool,
    /// Whether no container ends by itself.
    pub(crate) is_calm: bool,
    next_number: u64,
    pub(crate) steps: u64,
}

impl Cluster {
    /// Returns a new cluster with empty disks.
    ///
    /// # Errors
    ///
    /// There is no room for the directories of the agents.
    pub fn new(plan: Plan) -> std::io::Result<Self> {
        let features = plan.features();
        let mut cluster = Self {
            rng: plan.chance(0),
            story: Story::new(plan.is_told, &plan.about),
            features,
            time: 0,
            masters: Vec::new(),
            registry: Registry::new(),
            agents: Vec::new(),
            replaced: vec![0; RESOURCES.len()],
            network: Network::default(),
            frameworks: Vec::new(),
            operators: Operators::default(),
            checks: Checks::default(),
            agent_ids: BTreeMap::new(),
            id_owners: BTreeMap::new(),
            given_up: BTreeMap::new(),
            thieves: BTreeSet::new(),
            broken: Vec::new(),
            is_wild: true,
            is_calm: false,
            next_number: 0,
            steps: 0,
            plan,
        };
        let master = Master::start(&mut cluster);
        cluster.masters.push(master);
        for number in 0..RESOURCES.len() {
            let seed = cluster.plan.seed.wrapping_mul(1_000_003) + (number as u64) * 1_000_000;
            let clock = Clock::new(0, cluster.drift(number as u64));
            let mut agent = Agent::new(number, seed, clock)?;
            agent.is_told = cluster.plan.is_told;
            agent.is_older = number == 0 && cluster.has(Feature::OlderAgents);
            agent.executors.talk = cluster.has(Feature::Messages);
            cluster.agents.push(agent);
        }
        let is_of_jobs = cluster.plan.is_of_jobs;
        for kind in Kind::ALL {
            let number = cluster.frameworks.len();
            let is_there = match kind {
                Kind::Malicious => cluster.has(Feature::Malicious),
                Kind::Jobs => cluster.has(Feature::Jobs),
                // Every other run has a framework that takes the scheduler's offers.
                Kind::Good if is_of_jobs => cluster.plan.seed.is_multiple_of(2),
                _ if is_of_jobs => false,
                _ => true,
            };
            if !is_there {
                continue;
            }
            let clock = Clock::new(0, cluster.drift(77));
            let jobs = (kind == Kind::Jobs).then(|| Jobs::new(clock, is_of_jobs).ok());
            let jobs = jobs.flatten().map(Box::new);
            let has_principal = cluster.has(Feature::Principals);
            let framework = Framework::new(number, kind, jobs, has_principal);
            cluster.frameworks.push(framework);
        }
        Ok(cluster)
    }

    /// Takes the steps of the plan, and then lets the cluster come to rest.
    ///
    /// # Errors
    /// The first broken promise, with the seed and the steps before it.
    pub fn run(&mut self) -> Result<Outcome, Violation> {
        for _ in 0..self.plan.steps {
            self.step()?;
        }
        self.settle()?;
        Ok(Outcome {
            hash: self.story.hash(),
            steps: self.steps,
            tasks: self.frameworks.iter().map(|one| one.tasks.len()).sum(),
            counts: self.story.counts().clone(),
        })
    }

    /// Returns the counts so far, also of a run that ended with a broken promise.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.story.counts()
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Whether an optional event happens, with this probability in percent.
    pub(crate) fn happens(&mut self, feature: Feature, percent: u32) -> bool {
        self.is_wild && self.has(feature) && self.rng.u32(..100) < percent
    }

    /// Returns the excess speed of a machine's clocks, in millionths.
    pub(crate) fn drift(&self, machine: u64) -> i32 {
        if !self.has(Feature::Drift) {
            return 0;
        }
        // Ten times the drift of crystals.
        let mut rng = fastrand::Rng::with_seed(self.plan.seed ^ machine.wrapping_mul(31));
        rng.i32(-1_000..1_000)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Plays one step, and checks all invariants.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        self.steps += 1;
        self.story.begin(self.steps);
        self.rng = self.plan.chance(self.steps);
        if self.plan.is_skipped(self.steps) {
            return Ok(());
        }
        match self.rng.u32(..1_000) {
            0..380 => self.deliver(),
            380..500 => self.call(),
            500..600 => self.hear(),
            600..690 => self.flush_agent(),
            690..760 => self.flush_master(),
            760..890 => self.machine(),
            890..930 if self.is_wild => self.advance_some(),
            930..965 => self.subscribe(),
            965..985 if self.is_wild => self.operate(),
            985.. if self.is_wild => self.fault(),
            _ => {}
        }
        self.carry();
        self.check()
    }

    fn flush_agent(&mut self) {
        let writes = |agent: &Agent| {
            let is_writable = agent.disk.condition == DiskCondition::Writable;
            agent.disk.waiting() > 0 && agent.is_up() && is_writable
        };
        let agents = self.agents.iter().filter(|agent| writes(agent));
        let agents: Vec<usize> = agents.map(|agent| agent.number).collect();
        if agents.is_empty() {
            return;
        }
        let at = agents[self.rng.usize(..agents.len())];
        let agent = &mut self.agents[at];
        let waiting = agent.disk.waiting();
        let count = self.rng.usize(1..=waiting);
        self.story
            .note(("disk", "agent"), [at as u64, count as u64], || {
                format!("{count} writes of agent {at} are durable")
            });
        agent.is_stuck = false;
        agent.flush(count);
    }

    /// Makes a machine act: a container starts, ends or is found ended, an executor acts, limits change, or a task is
    /// probed.
    fn machine(&mut self) {
        let (verb, has): (_, fn(&Agent) -> bool) = match self.rng.u32(..100) {
            0..32 => ("starts", |one| !one.machine.launching.is_empty()),
            32..60 => ("is reported", |one| !one.machine.news.is_empty()),
            60..67 => ("ends", |one| !one.machine.running.is_empty()),
            67..76 => ("heeds a signal", |one| !one.machine.running.is_empty()),
            76..81 => ("is resized", |one| !one.machine.resizes.is_empty()),
            81..88 => ("is probed", |one| !one.machine.probes.is_empty()),
            _ => ("acts", |one| !one.executors.all.is_empty()),
        };
        // Events of the agent's process itself wait for the process.
        let needs_agent = !matches!(verb, "ends" | "heeds a signal");
        let busy = self.agents.iter();
        let busy = busy.filter(|one| has(one) && (one.is_up() || !needs_agent));
        let busy: Vec<usize> = busy.map(|one| one.number).collect();
        if busy.is_empty() || (verb == "ends" && self.is_calm) {
            return;
        }
        let at = busy[self.rng.usize(..busy.len())];
        let stuck = self.happens(Feature::StuckContainer, 20);
        let fails = self.happens(Feature::LaunchFailure, 10);
        let rng = &mut self.rng;
        let agent = &mut self.agents[at];
        agent.is_stuck = stuck;
        let machine = &agent.machine;
        let container = match verb {
            "starts" => Machine::any(&machine.launching, rng),
            "is reported" => Machine::any(&machine.news, rng),
            "ends" | "heeds a signal" => Machine::any(&machine.running, rng),
            "is resized" => machine.resizes.front().cloned(),
            "is probed" => machine.probes.front().map(|(one, _)| one.container.clone()),
            _ => Machine::any(&agent.executors.all, rng),
        };
        let Some(container) = container else {
            return;
        };
        let id = container.as_str().len() as u64;
        self.story.note(("machine", verb), [at as u64, id], || {
            format!("container {container} of agent {at}")
        });
        let verb = if verb == "starts" && fails {
            "fails"
        } else {
            verb
        };
        self.act_on(at, verb, container);
    }

    fn act_on(&mut self, at: usize, verb: &str, container: ContainerId) {
        let time = self.time;
        let agent = &mut self.agents[at];
        match verb {
            "fails" => agent.machine.fail_launch(&container),
            "starts" => {
                agent.start(time, &container);
                self.check_jobs();
                self.end_ill(at, &container);
            }
            "is reported" => agent.tell(time, &container),
            // Executors live longer than their tasks.
            "ends" if agent.executors.all.contains_key(&container) && self.rng.u32(..4) > 0 => {}
            "ends" => self.end_container(at, &container),
            "heeds a signal" => agent.heed(&container),
            "is resized" => {
                agent.machine.resizes.pop_front();
                let failed = None;
                agent.step(time, AgentInput::Resized { container, failed });
            }
            "is probed" => {
                if let Some(input) = agent.machine.answer_probe(&mut self.rng) {
                    agent.step(time, input);
                }
            }
            _ => self.act_executor(at, &container),
        }
    }

    /// Lets time pass, mostly until the next deadline of any process.
    fn advance_some(&mut self) {
        let span = match self.rng.u32(..10) {
            0..5 => 0,
            5..9 => self.rng.u64(..5 * SECOND),
            _ => self.rng.u64(..20 * SECOND),
        };
        self.advance(span);
    }

    /// Advances time by this span, and at least to the next deadline; all processes with a due deadline make a step.
    pub(crate) fn advance(&mut self, span: u64) {
        let until = self.time + span;
        self.story.note(("time", "passes"), [self.time, span], || {
            format!("for {} ms", span / 1_000_000)
        });
        loop {
            let next = self.next_deadline().max(self.time);
            if next > until && self.time >= until && span > 0 {
                return;
            }
            self.time = if span > 0 { next.min(until) } else { next };
            self.resume();
            self.tick();
            if span == 0 {
                return;
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> u64 {
        let masters = self.masters.iter().map(|master| match master.paused {
            Some((_, until)) => until,
            None => master.clock.true_time(master.core.next_deadline()),
        });
        let agents = self.agents.iter().filter_map(|agent| match agent.paused {
            Some((_, until)) => Some(until),
            None if agent.exit.is_some() => None,
            None => Some(agent.clock.true_time(agent.core.next_deadline()?)),
        });
        let jobs = self.frameworks.iter().filter(|one| !one.is_over);
        let jobs = jobs.filter_map(|one| one.jobs.as_ref()?.next_tick());
        let deadlines = masters.chain(agents).chain(self.next_giving_up());
        let deadlines = deadlines.chain(jobs);
        deadlines.min().unwrap_or(u64::MAX)
    }

    /// Resumes the processes whose pause is over.
    fn resume(&mut self) {
        let time = self.time;
        for master in &mut self.masters {
            if let Some((since, _)) = master.paused.take_if(|(_, until)| *until <= time) {
                master.lost += time - since;
            }
        }
        for agent in &mut self.agents {
            if let Some((since, _)) = agent.paused.take_if(|(_, until)| *until <= time) {
                let lasted = std::time::Duration::from_nanos(time - since);
                agent.step(time, AgentInput::Paused { lasted });
            }
        }
    }

    /// Lets every process with a due deadline make a step.
    pub(crate) fn tick(&mut self) {
        let time = self.time;
        let due: Vec<u64> = self
            .masters
            .iter()
            .filter(|master| master.paused.is_none())
            .filter(|master| master.clock.true_time(master.core.next_deadline()) <= time)
            .map(|master| master.number)
            .collect();
        for number in due {
            self.step_master(number, Input::Tick);
        }
        self.give_connections_up();
        for agent in self.agents.iter_mut().filter(|agent| agent.is_up()) {
            let deadline = agent.core.next_deadline();
            if deadline.is_some_and(|at| agent.clock.true_time(at) <= time) {
                agent.step(time, AgentInput::Tick);
            }
        }
        self.tick_jobs();
        self.carry();
    }

    /// Lets time pass for the job scheduler.
    fn tick_jobs(&mut self) {
        let time = self.time;
        for at in 0..self.frameworks.len() {
            let framework = &mut self.frameworks[at];
            let jobs = framework.jobs.as_mut().filter(|_| !framework.is_over);
            let Some(jobs) = jobs.filter(|jobs| jobs.next_tick().is_some_and(|next| next <= time))
            else {
                continue;
            };
            jobs.pass(time);
            self.take_jobs_calls(at);
        }
    }

    /// Fails a task of a version that cannot run, as soon as the task begins.
    fn end_ill(&mut self, at: usize, container: &ContainerId) {
        let process = self.agents[at].machine.running.get(container);
        let task = process.and_then(|process| process.task());
        let mut jobs = self.frameworks.iter().filter_map(|one| one.jobs.as_ref());
        let is_ill = task.is_some_and(|(_, task)| jobs.any(|jobs| jobs.is_ill(task)));
        if is_ill {
            self.agents[at].end(container, Exit::Code(1));
        }
    }
}
