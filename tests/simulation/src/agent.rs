//! One agent: its core, its disk and its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_agent::checkpoint::{Layout, Lsn, Store, Write, read};
use meseta_agent::core::{
    AgentCore, BootClock, ContainerAction, Destination, Effect, Ending, Enforceable, Exit, Found,
    Input, LinkAction, LinkId, Options, Output, Recovery,
};
use meseta_daemon::outbox::Outbox;
use meseta_isolators::{BootId, ProcessIdentity};
use meseta_proto::convert::{Format, to_resources};
use meseta_proto::meseta::v1::agent_frame;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::time::Now;
use meseta_resources::{ContainerId, Resources, Role};

/// What each agent has.
pub(crate) const RESOURCES: &str = "cpus:4;mem:1024;disk:100";

/// What an agent wants of the network.
#[derive(Debug)]
pub(crate) enum Wanted {
    Connect(LinkId),
    Disconnect(LinkId),
    Send(LinkId, Box<agent_frame::Message>),
}

/// An agent with what outlives its process.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) core: AgentCore,
    number: usize,
    starts: u64,
    dir: tempfile::TempDir,
    store: Store,
    /// Written and not yet durable.
    unwritten: Vec<(Lsn, Write)>,
    outbox: Outbox<Destination, Output>,
    /// Launches that the machine has not begun.
    pub(crate) launching: BTreeSet<ContainerId>,
    /// Containers that run; they outlive the core.
    pub(crate) running: BTreeMap<ContainerId, ProcessIdentity>,
    /// Containers whose end the core has not been told, and how they ended.
    pub(crate) ended: BTreeMap<ContainerId, Exit>,
    /// Every container that was ever launched here.
    launched: BTreeSet<ContainerId>,
    pub(crate) wanted: Vec<Wanted>,
    /// The uuids of the updates of each task that it has sent, in order, each once.
    pub(crate) sent: BTreeMap<String, Vec<Vec<u8>>>,
    pub(crate) violations: Vec<String>,
    pids: i32,
}

impl Agent {
    /// An agent that has just been started on an empty disk.
    pub(crate) fn new(number: usize, seed: u64, now: Now) -> std::io::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("meseta-simulation-")
            .tempdir()?;
        let store = Store::open(Layout::new(dir.path()));
        let mut agent = Self {
            core: AgentCore::new(options(number), seed),
            number,
            starts: seed,
            dir,
            store,
            unwritten: Vec::new(),
            outbox: Outbox::default(),
            launching: BTreeSet::new(),
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            launched: BTreeSet::new(),
            wanted: Vec::new(),
            sent: BTreeMap::new(),
            violations: Vec::new(),
            pids: 100,
        };
        agent.step(now, Input::Recovered(Box::default()));
        Ok(agent)
    }

    /// One input to the core; what may be seen at once is carried out.
    pub(crate) fn step(&mut self, now: Now, input: Input) {
        for effect in self.core.step(now, input) {
            match effect {
                Effect::Persist { lsn, write } => self.unwritten.push((lsn, write)),
                Effect::Output { after, to, output } => {
                    if self.outbox.push(to, after.0, output).is_err() {
                        self.violations.push("the outbox is full".to_owned());
                    }
                }
            }
        }
        let durable = self.outbox.durable_lsn();
        self.release(durable);
    }

    /// How many writes wait for the disk.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// The disk takes so many writes.
    pub(crate) fn flush(&mut self, count: usize) {
        let count = count.min(self.unwritten.len());
        let batch: Vec<_> = self.unwritten.drain(..count).collect();
        if let Err(error) = self.store.commit(batch.iter().map(|(_, write)| write)) {
            self.violations
                .push(format!("failed to write checkpoints: {error}"));
        }
        if let Some((lsn, _)) = batch.last() {
            self.release(lsn.0);
        }
    }

    fn release(&mut self, lsn: u64) {
        self.core.durable(Lsn(lsn));
        for (_, output) in self.outbox.durable(lsn) {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Link(LinkAction::Connect { link }) => self.wanted.push(Wanted::Connect(link)),
            Output::Link(LinkAction::Disconnect { link }) => {
                self.wanted.push(Wanted::Disconnect(link));
            }
            Output::Link(LinkAction::Send { link, message }) => {
                self.remember(&message);
                self.wanted.push(Wanted::Send(link, message));
            }
            Output::Container(action) => self.carry_out_on_container(action),
            Output::Exit(reason) => self
                .violations
                .push(format!("agent {} ends: {reason:?}", self.number)),
            Output::Executor(_) | Output::DiscardSandbox { .. } => {}
        }
    }

    fn remember(&mut self, message: &agent_frame::Message) {
        if let agent_frame::Message::StatusUpdate(update) = message
            && let Some(uuid) = &update.status.uuid
        {
            let task = update.status.task_id.value.clone();
            let sent = self.sent.entry(task).or_default();
            if !sent.contains(uuid) {
                sent.push(uuid.clone());
            }
        }
    }

    fn carry_out_on_container(&mut self, action: ContainerAction) {
        match action {
            ContainerAction::Launch(plan) => {
                if !self.launched.insert(plan.container.clone()) {
                    let container = &plan.container;
                    self.violations
                        .push(format!("container {container} is launched twice"));
                }
                self.launching.insert(plan.container);
            }
            ContainerAction::Kill { container, .. } | ContainerAction::Destroy { container } => {
                if self.running.remove(&container).is_some() || self.launching.remove(&container) {
                    self.ended.insert(container, Exit::Signal(15));
                }
            }
            ContainerAction::Forget { container } => {
                self.ended.remove(&container);
            }
            ContainerAction::Resize { .. }
            | ContainerAction::Probe(_)
            | ContainerAction::Freeze { .. }
            | ContainerAction::ThrottleRevocable { .. } => {}
        }
    }

    /// The machine begins to run a container.
    pub(crate) fn start(&mut self, now: Now, container: &ContainerId) {
        if !self.launching.remove(container) {
            return;
        }
        self.pids += 1;
        let supervisor = ProcessIdentity {
            pid: self.pids,
            start_ticks: 5,
            boot_id: BootId::from_text("boot"),
        };
        self.running.insert(container.clone(), supervisor.clone());
        let container = container.clone();
        let task_pid = self.pids;
        self.step(
            now,
            Input::ContainerStarted {
                container,
                supervisor,
                task_pid,
            },
        );
    }

    /// The core hears of the end of a container.
    pub(crate) fn tell_end(&mut self, now: Now, container: &ContainerId) {
        if let Some(exit) = self.ended.remove(container) {
            let ending = Ending {
                exit,
                limitation: None,
                kill_requested: None,
            };
            let container = container.clone();
            self.step(now, Input::ContainerEnded { container, ending });
        }
    }

    /// The process dies with all that was not durable, and another one reads the disk.
    pub(crate) fn crash(&mut self, now: Now) {
        self.starts += 1;
        self.unwritten.clear();
        self.wanted.clear();
        self.outbox = Outbox::default();
        for container in std::mem::take(&mut self.launching) {
            self.ended.insert(container, Exit::NeverBegun);
        }
        self.core = AgentCore::new(options(self.number), self.starts);
        let mut image = match read(&Layout::new(self.dir.path())) {
            Ok(image) => image,
            Err(error) => {
                let text = format!("the checkpoints cannot be read: {error}");
                return self.violations.push(text);
            }
        };
        let repairs = std::mem::take(&mut image.repairs);
        if let Err(error) = self.store.commit(&[Write::Repair { repairs }]) {
            self.violations
                .push(format!("failed to write checkpoints: {error}"));
        }
        let runs = image.frameworks.iter().flat_map(|one| &one.runs);
        let containers = runs.filter_map(|run| {
            let container = run.key.container.clone();
            let found = match self.running.get(&container) {
                Some(identity) => Found::Alive(identity.clone()),
                None => self.ended.get(&container).map(|_| Found::Ending)?,
            };
            Some((container, found))
        });
        let containers = containers.collect();
        let recovery = Recovery {
            image,
            rebooted: false,
            containers,
        };
        self.step(now, Input::Recovered(Box::new(recovery)));
    }
}

/// All agents are of one boot of their machines: the cluster has no reboots.
fn options(number: usize) -> Options {
    let resources = Resources::parse(RESOURCES, &Role::star()).unwrap_or_default();
    Options {
        boot_clock: BootClock::new(BootId::from_text("boot"), Duration::from_secs(1_000)),
        info: pb::AgentInfo {
            hostname: format!("host{number}"),
            resources: to_resources(&resources, Format::PostRefinement).unwrap_or_default(),
            ..pb::AgentInfo::default()
        },
        resources,
        address: pb::Address::default(),
        version: "1.12.0".to_owned(),
        capabilities: Vec::new(),
        registration_backoff_factor: Duration::from_secs(1),
        oversubscribed_resources_interval: Duration::from_secs(15),
        enforceable: Enforceable {
            cpus: true,
            mem: true,
        },
        max_completed_executors_per_framework: 3,
        history_bytes_max: 1 << 20,
        operations_bytes_max: 16 << 20,
        frame_bytes_max: 64 << 20,
        check_updates_bytes_max: 1 << 20,
        container_ip: "127.0.0.1".to_owned(),
        executor_registration_timeout: Duration::from_secs(60),
        executor_reregistration_timeout: Duration::from_secs(2),
        executor_shutdown_grace: Duration::from_secs(5),
    }
}
