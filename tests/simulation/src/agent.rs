//! An agent: its core, and the disk and machine that outlive its process.
//!
//! Effects of the core are executed here once the writes before them are durable, by the production outbox; the simulation
//! checks them against the promises as they happen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_agent::checkpoint::{LogEntry, Lsn, Write};
use meseta_agent::core::{
    AgentCore, BootClock, ContainerAction, Destination, Effect, Enforceable, ExecutorAction, Exit,
    ExitReason, Input, LinkAction, LinkId, Options, Output, Recovery, Subject,
};
use meseta_daemon::outbox::Outbox;
use meseta_proto::convert::{Format, to_resources};
use meseta_proto::meseta::v1::agent_frame;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_resources::{ContainerId, Resources, Role};

use crate::checks::Broken;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::executors::Executors;
use crate::machine::{Machine, News};
use crate::names;
use crate::story::Happening;

/// The resources of the agents, one entry each.
pub(crate) const RESOURCES: [&str; 4] = [
    "cpus:4;mem:1024;disk:100",
    "cpus:4;mem:1024;disk:200;ports:[31000-31009];cpus(c):2;mem(c):256;disk(c):50",
    "cpus:4;mem:1024;disk:100",
    "cpus:2;mem:512;disk:100",
];

/// The longest frame accepted for each kind, in bytes.
pub(crate) const FRAME_BYTES_MAX: [u64; 4] = [64 << 20, 64 << 20, 1 << 20, 16 << 10];

/// A request of an agent to the network.
#[derive(Debug)]
pub(crate) enum Wanted {
    Connect(LinkId),
    Disconnect(LinkId),
    Send(LinkId, Box<agent_frame::Message>),
}

/// The process of an agent, and its lasting parts.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) core: AgentCore,
    pub(crate) number: usize,
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    pub(crate) machine: Machine,
    pub(crate) executors: Executors,
    outbox: Outbox<Destination, Output>,
    pub(crate) wanted: Vec<Wanted>,
    /// The reason why the process has ended by itself, if it has.
    pub(crate) exit: Option<ExitReason>,
    /// The begin and end of the process's pause.
    pub(crate) paused: Option<(u64, u64)>,
    starts: u64,
    booted: u64,
    /// The uuids of the updates that the agent has sent for each task of each framework, in order, without repetitions.
    pub(crate) sent: BTreeMap<(String, String), Vec<Vec<u8>>>,
    /// The highest epoch of a received frame since its work directory was made.
    pub(crate) highest_epoch: u64,
    pub(crate) broken: Vec<Broken>,
    /// The events since the last count.
    pub(crate) counted: Vec<Happening>,
    /// The requests to its machine, if the run is described.
    pub(crate) words: Vec<String>,
    pub(crate) is_told: bool,
    /// Registers at once, as earlier releases did.
    pub(crate) is_older: bool,
    /// Whether a container may ignore SIGTERM in this step.
    pub(crate) is_stuck: bool,
}

impl Agent {
    /// Creates an agent that has just started on an empty disk.
    pub(crate) fn new(number: usize, seed: u64, clock: Clock) -> std::io::Result<Self> {
        let machine = Machine::default();
        let boot_clock = BootClock::new(machine.boot(), Duration::ZERO);
        let mut agent = Self {
            core: AgentCore::new(options(number, boot_clock), seed),
            number,
            clock,
            disk: Disk::new()?,
            machine,
            executors: Executors::default(),
            outbox: Outbox::default(),
            wanted: Vec::new(),
            exit: None,
            paused: None,
            starts: seed,
            booted: 0,
            sent: BTreeMap::new(),
            highest_epoch: 0,
            broken: Vec::new(),
            counted: Vec::new(),
            words: Vec::new(),
            is_told: false,
            is_older: false,
            is_stuck: false,
        };
        agent.step(0, Input::Recovered(Box::default()));
        Ok(agent)
    }

    /// Whether the process runs.
    pub(crate) fn is_up(&self) -> bool {
        self.exit.is_none() && self.paused.is_none()
    }

    /// Feeds an input to the core, and executes the effects that may be visible at once.
    pub(crate) fn step(&mut self, time: u64, input: Input) {
        let correction = corrected(&input);
        for effect in self.core.step(self.clock.now(time), input) {
            match effect {
                Effect::Persist { lsn, write } => {
                    self.counted.push(("write", names::of_write(&write)));
                    self.disk.write(lsn, write);
                }
                Effect::Output { after, to, output } => {
                    if correction && is_end(&output) {
                        self.check_correction(&output);
                    }
                    if self.outbox.push(to, after.0, output).is_err() {
                        self.broken.push(Broken::new("I49", "the outbox is full"));
                    }
                }
            }
        }
        let durable = self.outbox.durable_lsn();
        self.release(durable);
    }

    /// Lets the disk accept this many writes.
    pub(crate) fn flush(&mut self, count: usize) {
        match self.disk.flush(count) {
            Ok(Some(lsn)) => self.release(lsn.0),
            Ok(None) => {}
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &impl std::error::Error) {
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        let what = format!("agent {} failed on its disk: {error}: {cause}", self.number);
        self.broken.push(Broken::new("I34", what));
    }

    fn release(&mut self, lsn: u64) {
        self.core.durable(Lsn(lsn));
        for (_, output) in self.outbox.durable(lsn) {
            if self.exit.is_none() {
                self.carry_out(output);
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Link(LinkAction::Connect { link }) => self.wanted.push(Wanted::Connect(link)),
            Output::Link(LinkAction::Disconnect { link }) => {
                self.wanted.push(Wanted::Disconnect(link));
            }
            Output::Link(LinkAction::Send { link, message }) => {
                if let agent_frame::Message::StatusUpdate(update) = &*message {
                    self.check_update(update);
                }
                self.wanted.push(Wanted::Send(link, message));
            }
            Output::Container(action) => {
                self.counted
                    .push(("container", names::of_container(&action)));
                if self.is_told {
                    self.words.push(format!("{action:?}"));
                }
                let is_launch = matches!(action, ContainerAction::Launch(_));
                let wrong = self.machine.carry_out(action, self.is_stuck);
                let wrong = wrong.map(|what| Broken::new("I25", what));
                self.broken.extend(wrong);
                if is_launch {
                    self.check_held();
                }
            }
            Output::Executor(ExecutorAction::Send { connection, event }) => {
                self.executors.hear(connection, *event);
            }
            Output::Executor(ExecutorAction::Finish { connection }) => {
                self.executors.hang_up(connection);
            }
            Output::Exit(reason) => self.exit = Some(reason),
            Output::DiscardSandbox { .. } => {}
        }
    }

    /// Checks an update that leaves: it is durable, the update before it is durably acknowledged, and a task reported as
    /// ended has ended.
    fn check_update(&mut self, update: &meseta_proto::meseta::v1::StatusUpdate) {
        let status = &update.status;
        let (Some(uuid), task) = (&status.uuid, status.task_id.value.clone()) else {
            return;
        };
        let framework = update.framework_id.value.clone();
        let name = format!("{:?} of {task} by agent {}", status.state(), self.number);
        if status.container_status.is_some() && !self.disk.updates.contains(uuid) {
            let what = format!("{name} is told before it is durable");
            self.broken.push(Broken::new("I21", what));
        }
        if meseta_master::core::is_terminal(status.state()) {
            let mut running = self.machine.running.values();
            if running.any(|process| process.task() == Some((&framework, &task))) {
                let what = format!("{name} is told while its container runs");
                self.broken.push(Broken::new("I26", what));
            }
        }
        let key = (framework, task);
        if let Some(healthy) = status.healthy {
            let found = self.machine.probed.get(&key).copied();
            if !found.unwrap_or_default()[usize::from(healthy)] {
                let what = format!("{name} says healthy: {healthy}, which no probe has found");
                self.broken.push(Broken::new("I22", what));
            }
        }
        let is_good = self.machine.exits.get(&key).copied();
        if status.state() == pb::TaskState::TaskFinished && is_good == Some(false) {
            let what = format!("{name} is told of one that did not end well");
            self.broken.push(Broken::new("I22", what));
        }
        let sent = self.sent.entry(key).or_default();
        if sent.contains(uuid) {
            return;
        }
        // A response for a task that the agent no longer has follows no update that its framework has left.
        if let Some(before) = sent.last()
            && self.disk.updates.contains(uuid)
            && self.disk.updates.contains(before)
            && !self.disk.acknowledged.contains(before)
        {
            let what = format!("{name} is told before the acknowledgement of the one before it");
            self.broken.push(Broken::new("I20", what));
        }
        // The other statuses are responses to the master's questions.
        if self.disk.updates.contains(uuid) {
            sent.push(uuid.clone());
        }
    }

    /// Checks that containers without a kill use no more than the agent's resources.
    fn check_held(&mut self) {
        let held = self.machine.held().unrevocable().scalar_quantities();
        if !total(self.number).scalar_quantities().contains(&held) {
            let what = format!("agent {} runs containers with {held}", self.number);
            self.broken.push(Broken::new("I2", what));
        }
    }

    /// Checks that a correction ends only containers with revocable resources.
    fn check_correction(&mut self, output: &Output) {
        if let Output::Container(
            ContainerAction::Kill { container, .. } | ContainerAction::Destroy { container },
        ) = output
            && let Some(process) = self.machine.running.get(container)
            && process.plan.resources.revocable().is_empty()
            && !matches!(process.plan.subject, Subject::Nested(_))
        {
            let what = format!("a correction ends {container}, which is not revocable");
            self.broken.push(Broken::new("I31", what));
        }
    }

    /// Starts to run a container on the machine.
    pub(crate) fn start(&mut self, time: u64, container: &ContainerId) {
        let Some(supervisor) = self.machine.start(container) else {
            return;
        };
        let plan = &self.machine.running[container].plan;
        if let Subject::Executor(_) = &plan.subject {
            let run = plan.run.clone();
            self.executors
                .begin(container, run.framework.clone(), run.executor.clone());
        }
        let task_pid = supervisor.pid;
        let container = container.clone();
        self.step(
            time,
            Input::ContainerStarted {
                container,
                supervisor,
                task_pid,
            },
        );
    }

    /// Ends a container by itself.
    pub(crate) fn end(&mut self, container: &ContainerId, exit: Exit) {
        self.machine.end(container, exit);
        self.forget_ended_executors();
    }

    /// Ends a container that has received a signal.
    pub(crate) fn heed(&mut self, container: &ContainerId) {
        self.machine.heed(container);
        self.forget_ended_executors();
    }

    fn forget_ended_executors(&mut self) {
        let running = &self.machine.running;
        self.executors
            .all
            .retain(|container, _| running.contains_key(container));
    }

    /// Reports the result of a container to the core.
    pub(crate) fn tell(&mut self, time: u64, container: &ContainerId) {
        let container = container.clone();
        let input = match self.machine.news.remove(&container) {
            Some(News::LaunchFailed(cause)) => Input::LaunchFailed { container, cause },
            Some(News::Ended(ending)) => {
                // It is kept until the core permits its removal.
                let kept = News::Ended(ending.clone());
                self.machine.news.insert(container.clone(), kept);
                Input::ContainerEnded { container, ending }
            }
            None => return,
        };
        self.step(time, input);
    }

    /// Kills the process. The first `kept` waiting writes had reached the disk, and perhaps a part of the next.
    pub(crate) fn crash(&mut self, time: u64, kept: usize, tears: Option<&mut fastrand::Rng>) {
        match self.disk.crash(kept, tears) {
            Ok(Some(lsn)) => self.core.durable(lsn),
            Ok(None) => {}
            Err(error) => self.failed(&error),
        }
        self.machine.agent_died();
        self.restart(time, false);
    }

    /// Reboots the machine of the agent.
    pub(crate) fn reboot(&mut self, time: u64) {
        match self.disk.crash(0, None) {
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
        self.machine.agent_died();
        self.machine.reboot();
        self.booted = time;
        self.restart(time, true);
    }

    /// Clears the work directory, as an operator does, and starts the agent as a new one.
    pub(crate) fn replace(&mut self, time: u64) -> std::io::Result<()> {
        self.disk = Disk::new()?;
        self.sent.clear();
        self.highest_epoch = 0;
        self.machine.agent_died();
        self.restart(time, false);
        Ok(())
    }

    /// Starts another process, which reads the disk.
    fn restart(&mut self, time: u64, rebooted: bool) {
        let before = self.core.snapshot().resources;
        self.starts += 1;
        (self.exit, self.paused) = (None, None);
        self.wanted.clear();
        self.outbox = Outbox::default();
        self.executors.disconnect();
        self.clock = self.clock.restarted(time);
        let uptime = self.clock.uptime_at_origin(self.booted);
        let boot_clock = BootClock::new(self.machine.boot(), uptime);
        self.core = AgentCore::new(options(self.number, boot_clock), self.starts);
        let mut image = match self.disk.read() {
            Ok(image) => image,
            Err(error) => return self.failed(&error),
        };
        let mut first = vec![Write::Repair {
            repairs: std::mem::take(&mut image.repairs),
        }];
        if let Some(holdings) = &image.holdings {
            let record = Box::new(holdings.clone());
            first.push(Write::RestoreVolumes { record });
        }
        if let Err(error) = self.disk.write_at_start(&first) {
            return self.failed(&error);
        }
        self.remember_image(&image);
        // An epoch that is not durable was not obeyed either.
        let record = image.agent.as_ref().and_then(|agent| agent.record.as_ref());
        let obeyed = record.and_then(|record| record.obeyed.as_ref());
        self.highest_epoch = obeyed.map_or(0, |obeyed| obeyed.epoch);
        let recorded = containers_of(&image);
        self.check_intents(&recorded);
        let containers = self.machine.find(recorded.iter());
        self.forget_ended_executors();
        let drains = image
            .agent
            .as_ref()
            .is_some_and(|agent| agent.drain.is_some());
        let asked = asked_to_end(&image);
        let untouched: Vec<_> = containers
            .keys()
            .filter(|id| !drains && !self.machine.killed.contains(*id) && !asked.contains(*id))
            .cloned()
            .collect();
        let wiped = image.agent.is_none();
        let recovery = Recovery {
            image,
            rebooted,
            containers,
        };
        self.step(time, Input::Recovered(Box::new(recovery)));
        self.check_untouched(&untouched);
        let after = self.core.snapshot().resources;
        if after != before && !wiped {
            let what = format!("agent {} had {before} durably and has {after}", self.number);
            self.broken.push(Broken::new("I9", what));
        }
    }

    /// Counts updates as durable that reached the disk without a confirmation.
    fn remember_image(&mut self, image: &meseta_agent::checkpoint::Image) {
        let runs = image.frameworks.iter().flat_map(|one| &one.runs);
        for entry in runs.flat_map(|run| &run.tasks).flat_map(|task| &task.log) {
            match entry {
                LogEntry::Update(status) => self.disk.updates.extend(status.uuid.clone()),
                LogEntry::Acknowledged(uuid) => {
                    self.disk.acknowledged.insert(uuid.clone());
                }
                _ => {}
            }
        }
    }

    /// Checks that every running container was recorded before.
    fn check_intents(&mut self, recorded: &[ContainerId]) {
        let mut running = self.machine.running.keys();
        if let Some(unknown) = running.find(|id| !recorded.contains(id)) {
            let what = format!(
                "container {unknown} runs on agent {} and is on no record",
                self.number
            );
            self.broken.push(Broken::new("I37", what));
        }
    }

    /// Checks that a start ends no live container without a request, except the rest of a group that had not arrived
    /// completely.
    fn check_untouched(&mut self, untouched: &[ContainerId]) {
        for id in untouched {
            let process = self.machine.running.get(id);
            let is_command =
                process.is_some_and(|one| matches!(one.plan.subject, Subject::Task(_)));
            if is_command && self.machine.killed.contains(id) {
                let what = format!("the start of agent {} ends {id}", self.number);
                self.broken.push(Broken::new("I36", what));
            }
        }
    }
}

/// Returns containers of command tasks with a recorded kill.
fn asked_to_end(image: &meseta_agent::checkpoint::Image) -> BTreeSet<ContainerId> {
    let is_kill = |entry: &LogEntry| matches!(entry, LogEntry::KillRequested(_));
    let runs = image.frameworks.iter().flat_map(|one| &one.runs);
    let asked = runs.filter(|run| run.tasks.iter().any(|task| task.log.iter().any(is_kill)));
    asked.map(|run| run.key.container.clone()).collect()
}

/// Returns all recorded containers, including nested ones.
fn containers_of(image: &meseta_agent::checkpoint::Image) -> Vec<ContainerId> {
    let runs = image.frameworks.iter().flat_map(|one| &one.runs);
    let of_run = |run: &meseta_agent::checkpoint::RunImage| {
        let nested = run.tasks.iter();
        let nested = nested.filter_map(|task| task.record.nested_container.as_deref());
        let nested = nested.filter_map(|id| ContainerId::new(id).ok());
        let mut all: Vec<_> = nested.collect();
        all.push(run.key.container.clone());
        all
    };
    runs.flat_map(of_run).collect()
}

/// Whether an input corrects excessive usage.
fn corrected(input: &Input) -> bool {
    let Input::Oversubscription(report) = input else {
        return false;
    };
    report.assessment.is_some()
}

fn is_end(output: &Output) -> bool {
    matches!(
        output,
        Output::Container(ContainerAction::Kill { .. } | ContainerAction::Destroy { .. })
    )
}

/// Returns the configured resources of an agent.
pub(crate) fn total(number: usize) -> Resources {
    Resources::parse(RESOURCES[number], &Role::star()).unwrap_or_default()
}

fn options(number: usize, boot_clock: BootClock) -> Options {
    let resources = total(number);
    Options {
        boot_clock,
        info: pb::AgentInfo {
            hostname: hostname(number),
            port: Some(5051),
            resources: to_resources(&resources, Format::PostRefinement).unwrap_or_default(),
            ..pb::AgentInfo::default()
        },
        resources,
        address: pb::Address {
            hostname: Some(hostname(number)),
            ip: Some(format!("10.0.0.{}", number + 1)),
            port: 5051,
        },
        version: "1.12.0".to_owned(),
        capabilities: vec![
            Capability::MultiRole,
            Capability::HierarchicalRole,
            Capability::ReservationRefinement,
            Capability::ResizeVolume,
            Capability::AgentOperationFeedback,
            Capability::AgentDraining,
            Capability::TaskResourceLimits,
            // Without this capability no operation may request updates.
            Capability::ResourceProvider,
        ],
        registration_backoff_factor: Duration::from_secs(1),
        oversubscribed_resources_interval: Duration::from_secs(15),
        enforceable: Enforceable {
            cpus: true,
            mem: true,
        },
        max_completed_executors_per_framework: 3,
        history_bytes_max: 1 << 20,
        operations_bytes_max: 16 << 20,
        frame_bytes_max: FRAME_BYTES_MAX[number],
        check_updates_bytes_max: 1 << 20,
        executor_event_bytes_max: 48 << 20,
        container_ip: "127.0.0.1".to_owned(),
        executor_registration_timeout: Duration::from_secs(60),
        executor_reregistration_timeout: Duration::from_secs(2),
        executor_shutdown_grace: Duration::from_secs(5),
        disk_timeout: Some(Duration::from_secs(600)),
    }
}

pub(crate) fn hostname(number: usize) -> String {
    format!("host{number}")
}
