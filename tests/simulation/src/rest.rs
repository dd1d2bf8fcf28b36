//! The way of the cluster to rest after all faults, and the checks at rest.

use meseta_master::core::call::Action;
use meseta_master::core::is_terminal;
use meseta_proto::mesos::v1::TaskState;
use meseta_resources::AgentId;

use crate::agent::total;
use crate::checks::{Broken, Violation};
use crate::cluster::{Cluster, SECOND};
use crate::framework::{Framework, Kind, kill};
use crate::machine::task_of;
use crate::models::reconciliation::is_true;
use crate::models::reservation;
use crate::network::Connection;
use crate::plan::Feature;

/// Steps without an effect after which only the passage of time has effects.
const IDLE_STEPS: u64 = 120;
/// Idle steps in runs of the job scheduler: fewer, because few processes run.
const IDLE_STEPS_OF_JOBS: u64 = 40;
/// The largest number of steps between two advances of time.
const STEPS_MAX: u64 = 40_000;
/// The time between two rests; less than the agents' patience with their master.
pub(crate) const SPAN: u64 = 25 * SECOND;
/// The spans without requests, since a kill would bring the end of a task that no retry brings. Longer than the longest
/// pause between two tries, and than masters wait for expected agents.
const QUIET_SPANS: usize = 30;
const LAST_SPANS: usize = 12;
/// Quiet spans in runs of the job scheduler: as long as the pause before a scheduler requests a refused role again.
const QUIET_SPANS_OF_JOBS: usize = 8;
const LAST_SPANS_OF_JOBS: usize = 5;
/// The spans in which agents come back and graces pass.
pub(crate) const KILL_SPANS: usize = 4;

impl Cluster {
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        self.is_wild = false;
        self.heal();
        self.heal_jobs();
        if self.has(Feature::LongAbsence) {
            self.check_beside_absence()?;
        }
        let is_of_jobs = self.plan.is_of_jobs;
        if self.has(Feature::DiskSilent) {
            self.check_silent_disk()?;
        }
        if !is_of_jobs && self.rng.bool() {
            self.check_lost_kills()?;
        }
        // Frameworks read nothing for a while, and then their streams break: messages on the way are lost, and no agent has
        // a reason to connect again. Only a retry brings them.
        for framework in &mut self.frameworks {
            framework.is_idle = true;
            framework.busy_until = u64::MAX;
        }
        self.drain_queues()?;
        for at in 0..self.frameworks.len() {
            self.frameworks[at].busy_until = 0;
            self.cut_stream(at);
        }
        self.undo();
        let (quiet, last) = match is_of_jobs {
            true => (QUIET_SPANS_OF_JOBS, LAST_SPANS_OF_JOBS),
            false => (QUIET_SPANS, LAST_SPANS),
        };
        for _ in 0..quiet {
            self.pass()?;
        }
        if is_of_jobs {
            self.check_jobs_at_rest()?;
        }
        self.check_truth()?;
        for _ in 0..last {
            self.end_tasks();
            self.pass()?;
        }
        self.check_rest()?;
        // The job scheduler gives its offers back, and there may be no other framework.
        match is_of_jobs {
            true => Ok(()),
            false => self.check_all_offered(),
        }
    }

    /// Checks lost kills: frameworks kill some of their tasks, and the connections to their agents break. The tasks end
    /// nevertheless, though no task ends by itself meanwhile.
    fn check_lost_kills(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        self.lose_kills();
        for _ in 0..KILL_SPANS {
            self.pass()?;
        }
        self.drain_queues()?;
        self.is_calm = false;
        match self.unheard_kill() {
            Some((rule, what)) => Err(self.violation(Broken::new(rule, what))),
            None => Ok(()),
        }
    }

    fn lose_kills(&mut self) {
        for at in 0..self.frameworks.len() {
            if !self.is_served(at) {
                continue;
            }
            let framework = &self.frameworks[at];
            let Some(stream) = framework.stream.filter(|_| framework.is_subscribed()) else {
                continue;
            };
            let open = framework.tasks.iter().filter(|(_, task)| !task.is_over());
            let open: Vec<_> = open.map(|(id, _)| id.clone()).collect();
            for id in open {
                if self.rng.bool() {
                    self.make_call(at, stream, kill(&id));
                }
            }
        }
        for connection in self.network.connections.values_mut() {
            connection.cut(&mut self.rng);
        }
    }

    /// Checks that all free resources are offered: none was lost on the way.
    fn check_all_offered(&mut self) -> Result<(), Violation> {
        for framework in &mut self.frameworks {
            framework.is_holding = true;
            framework.offers.clear();
            let roles = Vec::new();
            framework.calls.push_back(Action::Revive { roles });
        }
        for _ in 0..2 {
            self.drain_queues()?;
            self.advance(SPAN);
        }
        self.drain_queues()?;
        let leader = self.leader();
        let Some(master) = self.master(leader) else {
            return Ok(());
        };
        let snapshot = master.core.snapshot();
        for agent in snapshot.agents.iter().filter(|agent| agent.is_active()) {
            let mut held = agent.offered.unallocate();
            for used in agent.used.values() {
                held += used.unallocate();
            }
            let all = agent.profile.total.unrevocable().unreserved();
            let held = held.unrevocable().unreserved();
            if all != held && snapshot.frameworks.iter().any(|one| one.connected) {
                let what = format!("of {all} of agent {} only {held} is offered", agent.id());
                return Err(self.violation(Broken::new("I1", what)));
            }
        }
        Ok(())
    }

    pub(crate) fn pass(&mut self) -> Result<(), Violation> {
        self.drain_queues()?;
        self.advance(SPAN);
        self.revive_agents();
        self.check()
    }

    /// Ends all faults: repairs everything, and leaves one leading master.
    fn heal(&mut self) {
        while self.masters.len() > 1 {
            let oldest = self.masters[0].number;
            self.end_master(oldest);
        }
        let time = self.time;
        for master in &mut self.masters {
            if let Some((since, _)) = master.paused.take() {
                master.lost += time - since;
            }
        }
        for agent in &mut self.agents {
            agent.disk.condition = Default::default();
            if let Some((since, _)) = agent.paused.take() {
                let lasted = std::time::Duration::from_nanos(time - since);
                agent.step(time, meseta_agent::core::Input::Paused { lasted });
            }
            if agent.is_up() {
                let writable = meseta_agent::core::Input::Disk(agent.disk.condition);
                agent.step(time, writable);
            }
        }
        for connection in self.network.connections.values_mut() {
            connection.is_stalled = [false; 2];
        }
        self.carry();
    }

    /// Makes every step that needs no passage of time.
    pub(crate) fn drain_queues(&mut self) -> Result<(), Violation> {
        let idle_max = match self.plan.is_of_jobs {
            true => IDLE_STEPS_OF_JOBS,
            false => IDLE_STEPS,
        };
        let (mut idle, until) = (0, self.steps + STEPS_MAX);
        while self.steps < until {
            self.step()?;
            idle = match self.story.is_idle() {
                true => idle + 1,
                false => 0,
            };
            if idle == idle_max {
                if !self.tick_at_once() && !self.has_mail() {
                    break;
                }
                idle = 0;
            }
        }
        Ok(())
    }

    /// Whether data waits to be read or written: by chance, no step may have handled it for long.
    fn has_mail(&self) -> bool {
        let waits = |one: &Framework| {
            let reads = one.busy_until <= self.steps && one.has_news();
            let reads = reads || one.copy.is_some();
            reads || (one.is_subscribed() && (!one.calls.is_empty() || one.answers > 0))
        };
        let arrives = |one: &Connection| {
            (one.brings(true) && self.is_running(one.master))
                || (one.brings(false) && self.agents[one.agent].is_up())
        };
        self.frameworks.iter().any(waits)
            || self.network.connections.values().any(arrives)
            || self.masters.iter().any(|one| !one.unwritten.is_empty())
    }

    /// Lets processes with more work than one step may do, such as a master with many questions, make further steps.
    fn tick_at_once(&mut self) -> bool {
        /// The rounding of clock times, in nanoseconds.
        const NANOSECONDS: u64 = 10;
        const TICKS_MAX: usize = 10_000;
        let is_due = |cluster: &Self| cluster.next_deadline() <= cluster.time + NANOSECONDS;
        let was_due = is_due(self);
        for _ in 0..TICKS_MAX {
            if !is_due(self) {
                break;
            }
            self.time = self.time.max(self.next_deadline());
            self.tick();
        }
        was_due
    }

    /// Whether promises to a framework hold until the end.
    pub(crate) fn is_served(&self, at: usize) -> bool {
        let framework = &self.frameworks[at];
        !framework.is_over && framework.kind != Kind::Malicious && framework.kind != Kind::Old
    }

    /// Frameworks kill the tasks that they believe to live, and ask for the result.
    fn end_tasks(&mut self) {
        for at in 0..self.frameworks.len() {
            let framework = &mut self.frameworks[at];
            if !framework.is_subscribed() {
                continue;
            }
            let open = framework.tasks.iter();
            let open = open.filter(|(_, task)| !task.is_over());
            let open: Vec<_> = open.map(|(id, _)| id.clone()).collect();
            open.iter().for_each(|id| framework.kill(id));
            framework.reconcile(false);
            if let Some(jobs) = &mut framework.jobs {
                jobs.stop_all(self.time);
            }
            self.take_jobs_calls(at);
        }
    }

    /// Checks that the answers to frameworks about their tasks are true while nothing changes.
    fn check_truth(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        self.drain_queues()?;
        for framework in &mut self.frameworks {
            framework.questions.open.clear();
            framework.questions.answers.clear();
            if framework.is_subscribed() {
                framework.reconcile(true);
            }
        }
        self.drain_queues()?;
        self.is_calm = false;
        let mut wrong = None;
        for at in (0..self.frameworks.len()).filter(|at| self.is_served(*at)) {
            let framework = &self.frameworks[at];
            let mut open = framework.questions.open.keys();
            if let Some(task) = open.next() {
                wrong = Some(("I28", format!("nobody answers for task {task}")));
            }
            let Some(id) = &framework.id else { continue };
            for (task, answer) in &framework.questions.answers {
                let Some(runs) = self.runs(id, task) else {
                    continue;
                };
                if !is_true(*answer, runs) {
                    let what = format!("task {task} is answered {answer:?}, and runs: {runs}");
                    wrong = Some(("I24", what));
                }
            }
        }
        match wrong {
            Some((rule, what)) => Err(self.violation(Broken::new(rule, what))),
            None => Ok(()),
        }
    }

    /// Returns a task that runs although the leading master has accepted its KILL: one request must be enough.
    pub(crate) fn unheard_kill(&mut self) -> Option<(&'static str, String)> {
        let leader = self.leader();
        for at in (0..self.frameworks.len()).filter(|at| self.is_served(*at)) {
            let framework = &self.frameworks[at];
            let Some(id) = &framework.id else { continue };
            let killed = framework.killed.iter();
            let mut killed = killed.filter(|(_, master)| **master == leader);
            let unheard = killed.find(|(task, _)| self.runs(id, task) == Some(true));
            if let Some((task, _)) = unheard {
                let what = format!("task {task} runs though its KILL was accepted");
                return Some(("I26", what));
            }
        }
        None
    }

    /// Whether the process of a task runs; `None` for a task inside its executor's process.
    fn runs(&self, framework: &str, task: &str) -> Option<bool> {
        let mut of_executors = self
            .agents
            .iter()
            .flat_map(|agent| agent.executors.all.values());
        if of_executors.any(|executor| executor.has(task)) {
            return None;
        }
        let mut plans = self.agents.iter().flat_map(|agent| {
            let running = agent.machine.running.values().map(|process| &process.plan);
            running.chain(agent.machine.launching.values())
        });
        Some(plans.any(|plan| task_of(plan) == Some((framework, task))))
    }

    fn check_rest(&mut self) -> Result<(), Violation> {
        let broken = self
            .open_task()
            .or_else(|| self.missing_update())
            .or_else(|| self.unequal_books())
            .or_else(|| self.living_container());
        match broken {
            Some(broken) => Err(self.violation(broken)),
            None => Ok(()),
        }
    }

    fn open_task(&self) -> Option<Broken> {
        for at in (0..self.frameworks.len()).filter(|at| self.is_served(*at)) {
            for (id, task) in &self.frameworks[at].tasks {
                // An agent with a new id never reports these: the operator has to mark the old one gone.
                let is_there = self.agents.iter().any(|agent| {
                    let id = agent.core.snapshot().agent_id;
                    id.is_some_and(|id| id.as_str() == task.agent)
                });
                let is_over = task.state.is_some_and(|state| {
                    is_terminal(state)
                        || state == TaskState::TaskUnknown
                        || (state == TaskState::TaskUnreachable && !is_there)
                });
                // A restored registry may not know that an agent was ever lost.
                if !is_over && self.registry.rollbacks == 0 {
                    let (state, agent) = (task.state, &task.agent);
                    let what = format!("task {id} on {agent} stays {state:?}");
                    return Some(Broken::new("I23", what));
                }
            }
        }
        None
    }

    /// Returns an error if an update of an agent has not reached the framework, or not in the order of sending.
    fn missing_update(&self) -> Option<Broken> {
        for (number, agent) in self.agents.iter().enumerate() {
            for ((framework, id), sent) in &agent.sent {
                let of = |one: &usize| self.frameworks[*one].id.as_ref() == Some(framework);
                let mut served = (0..self.frameworks.len()).filter(|at| self.is_served(*at));
                let Some(at) = served.find(of) else { continue };
                let task = self.frameworks[at].tasks.get(id);
                let came = task.into_iter().flat_map(|task| &task.order);
                let came: Vec<_> = came.filter(|uuid| sent.contains(uuid)).collect();
                if came != sent.iter().collect::<Vec<_>>() {
                    let what = format!(
                        "agent {number} sent {} updates of {id}, of which {} came, or in another order",
                        sent.len(),
                        came.len()
                    );
                    return Some(Broken::new("I23", what));
                }
            }
        }
        None
    }

    /// Returns an error if agent and master have different resources, or if the master holds any.
    fn unequal_books(&mut self) -> Option<Broken> {
        let leader = self.leader();
        let snapshot = self.master(leader)?.core.snapshot();
        for agent in &self.agents {
            let own = agent.core.snapshot();
            let id: Option<AgentId> = own.agent_id;
            let mut known = snapshot.agents.iter();
            let Some(view) = known.find(|view| Some(view.id()) == id.as_ref()) else {
                let what = format!("agent {} is not registered at rest", agent.number);
                return Some(Broken::new("I23", what));
            };
            let master = view.profile.total.unrevocable();
            let own = own.resources.unrevocable();
            let equal = master == own
                && reservation::amount(&own) == reservation::amount(&total(agent.number))
                && reservation::volumes(&own) == reservation::volumes(&master);
            if !equal {
                let what = format!("the master has {master} of an agent that has {own}");
                return Some(Broken::new("I9", what));
            }
            let served = view.used.iter().find(|(framework, used)| {
                let of =
                    |at: &usize| self.frameworks[*at].id.as_deref() == Some(framework.as_str());
                let is_served = (0..self.frameworks.len()).any(|at| of(&at) && self.is_served(at));
                is_served && !used.is_empty()
            });
            if let Some((framework, used)) = served {
                let executors = view.executors.keys().map(|(_, executor)| executor.as_str());
                let executors: Vec<_> = executors.collect();
                let what = format!(
                    "the master holds {used} for {framework} on {} at rest, with executors {executors:?}",
                    view.id()
                );
                return Some(Broken::new("I27", what));
            }
        }
        None
    }

    fn living_container(&self) -> Option<Broken> {
        for agent in &self.agents {
            for (id, process) in &agent.machine.running {
                let framework = process.plan.run.framework.as_str();
                let of = |at: &usize| self.frameworks[*at].id.as_deref() == Some(framework);
                if (0..self.frameworks.len()).any(|at| of(&at) && self.is_served(at)) {
                    let what = format!("container {id} runs on agent {} at rest", agent.number);
                    return Some(Broken::new("I23", what));
                }
            }
        }
        None
    }
}
