//! A simulated agent: the core with a disk, a kernel and a master that a test controls.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_daemon::outbox::Outbox;
use meseta_isolators::{BootId, Demand, ProcessIdentity};
use meseta_proto::convert::{Format, to_resources};
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Moment, Now, Resources, Role};

pub(super) use super::messages::{
    BOOT, FRAMEWORK, PING_TIMEOUT, duration, framework_id, identity, registered, scalar, states,
    task, task_id,
};
use crate::checkpoint::{Layout, Limitation, LogEntry, Store, Write, read};
use crate::core::{
    AgentCore, BootClock, ConnectionId, ContainerAction, Destination, Effect, Ending, Enforceable,
    ExecutorAction, Exit, ExitReason, Found, Input, LinkAction, LinkId, Options, Output, Probe,
    Recovery, State, is_terminal,
};

const MOMENT_AT_START: Moment = Moment::from_nanos(1);
const UPTIME_AT_START: Duration = Duration::from_secs(9000);
const UNIX_AT_START: Duration = Duration::from_secs(1_800_000_000);

/// The observable effects of the core.
#[expect(
    clippy::large_enum_variant,
    reason = "a few in a test, matched by pattern"
)]
#[derive(Debug)]
pub(super) enum Seen {
    Connect,
    Disconnect,
    Launch(ContainerId),
    Kill(Duration),
    Destroy(ContainerId),
    Freeze(ContainerId, bool),
    ThrottleRevocable(Option<u64>),
    Exit(ExitReason),
    Told(ConnectionId, executor::Event),
    HungUp(ConnectionId),
    Probe(Box<Probe>),
    Resize(ContainerId, Demand, Resources),
}

/// The environment of one agent.
pub(super) struct Simulation {
    pub(super) core: AgentCore,
    pub(super) now: Now,
    boot: BootId,
    /// The machine's uptime at the agent's start, which is the origin of its moments.
    uptime_at_start: Duration,
    dir: tempfile::TempDir,
    store: Store,
    /// Pending writes that are not durable, with their positions in the order.
    pending: Vec<(u64, Write)>,
    outbox: Outbox<Destination, Output>,
    /// Whether writes become durable at once.
    pub(super) quick_disk: bool,
    pub(super) link: Option<LinkId>,
    /// The epoch of the master, unless a test sets another one.
    pub(super) epoch: u64,
    pub(super) frames: Vec<FromAgent>,
    pub(super) seen: Vec<Seen>,
    /// The containers that were killed or destroyed, in that order.
    pub(super) killed: Vec<ContainerId>,
    /// Containers on the machine; they outlive the core.
    pub(super) machine: BTreeMap<ContainerId, ProcessIdentity>,
    /// Ended containers whose end the core has not learned.
    pub(super) unheard: Vec<ContainerId>,
    /// Uuids of updates that are durable.
    durable_updates: Vec<Vec<u8>>,
    pub(super) capabilities: Vec<FrameworkCapability>,
    pub(super) framework_name: String,
    seed: u64,
    written_before: u64,
    /// The value of `--resources` from the next start on.
    pub(super) configured: &'static str,
}

const CONFIGURED: &str = "cpus:4;mem:1024;disk:100";

fn options(configured: &str, boot_clock: BootClock) -> Options {
    let resources = Resources::parse(configured, &Role::star()).expect("resources");
    Options {
        info: pb::AgentInfo {
            hostname: "host".to_owned(),
            resources: to_resources(&resources, Format::PostRefinement).expect("written"),
            ..pb::AgentInfo::default()
        },
        resources,
        address: pb::Address::default(),
        version: "1.0.0".to_owned(),
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
        executor_event_bytes_max: 1 << 20,
        boot_clock,
        container_ip: "127.0.0.1".to_owned(),
        executor_registration_timeout: Duration::from_secs(60),
        executor_reregistration_timeout: Duration::from_secs(2),
        executor_shutdown_grace: Duration::from_secs(5),
        disk_timeout: Some(Duration::from_secs(600)),
    }
}

impl Simulation {
    /// An agent that has just started on an empty disk.
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(Layout::new(dir.path()));
        let boot = BootId::from_text(BOOT);
        let boot_clock = BootClock::new(boot.clone(), UPTIME_AT_START);
        let mut simulation = Self {
            core: AgentCore::new(options(CONFIGURED, boot_clock), 1),
            now: Now {
                moment: MOMENT_AT_START,
                unix: UNIX_AT_START,
            },
            boot,
            uptime_at_start: UPTIME_AT_START,
            dir,
            store,
            pending: Vec::new(),
            outbox: Outbox::default(),
            quick_disk: true,
            link: None,
            epoch: 1,
            frames: Vec::new(),
            seen: Vec::new(),
            killed: Vec::new(),
            machine: BTreeMap::new(),
            unheard: Vec::new(),
            durable_updates: Vec::new(),
            capabilities: Vec::new(),
            framework_name: "simulated".to_owned(),
            seed: 1,
            written_before: 0,
            configured: CONFIGURED,
        };
        simulation.step(Input::Recovered(Box::default()));
        simulation
    }

    /// An agent that is registered.
    pub(super) fn registered() -> Self {
        let mut simulation = Self::new();
        simulation.register();
        simulation
    }

    /// Brings the link up and admits the agent.
    pub(super) fn register(&mut self) {
        self.link_up();
        self.tell(registered());
        assert_eq!(self.core.state(), State::Running);
    }

    pub(super) fn link_up(&mut self) {
        let link = self.link.expect("the core wants a link");
        self.step(Input::LinkUp { link, led: None });
    }

    /// Brings the link up, with the epoch of the leading master.
    pub(super) fn link_up_with(&mut self, cluster_id: &str, epoch: u64) {
        let link = self.link.expect("the core wants a link");
        let cluster_id = Some(cluster_id.to_owned());
        let led = Some(LedEpoch { cluster_id, epoch });
        self.step(Input::LinkUp { link, led });
    }

    pub(super) fn link_down(&mut self) {
        let link = self.link.expect("there is a link");
        let reason = "cut".to_owned();
        self.step(Input::LinkDown { link, reason });
    }

    pub(super) fn tell(&mut self, message: ToAgent) {
        self.tell_with_epoch(self.epoch, message);
    }

    pub(super) fn tell_with_epoch(&mut self, epoch: u64, message: ToAgent) {
        self.tell_of(None, epoch, message);
    }

    /// Delivers a frame from a master that may name its cluster.
    pub(super) fn tell_of(&mut self, cluster: Option<&str>, epoch: u64, message: ToAgent) {
        let link = self.link.expect("there is a link");
        let frame = Box::new(wire::MasterFrame {
            epoch,
            message: Some(message),
            cluster_id: cluster.map(str::to_owned),
        });
        let charge = None;
        self.step(Input::Frame {
            link,
            frame,
            charge,
        });
    }

    pub(super) fn step(&mut self, input: Input) {
        for effect in self.core.step(self.now, input) {
            match effect {
                Effect::Persist { lsn, write } => {
                    self.pending.push((self.written_before + lsn.0, write));
                }
                Effect::Output { after, to, output } => {
                    let after = if after.0 == 0 {
                        0
                    } else {
                        self.written_before + after.0
                    };
                    self.outbox.push(to, after, output).expect("room");
                }
            }
        }
        if self.quick_disk {
            self.flush(usize::MAX);
        } else {
            self.release(0);
        }
    }

    /// Makes up to this number of writes durable.
    pub(super) fn flush(&mut self, count: usize) {
        let count = count.min(self.pending.len());
        let batch: Vec<_> = self.pending.drain(..count).collect();
        self.store
            .commit(batch.iter().map(|(_, write)| write))
            .expect("the disk works");
        for (_, write) in &batch {
            if let Write::Log { entry, .. } = write
                && let LogEntry::Update(status) = &**entry
            {
                self.durable_updates.extend(status.uuid.clone());
            }
        }
        let lsn = batch.last().map_or(0, |(lsn, _)| *lsn);
        self.release(lsn);
    }

    /// Writes a record without the core.
    pub(super) fn write(&self, write: Write) {
        self.store.commit([&write]).expect("the disk works");
    }

    /// The size of the pending writes, in bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.iter().map(|(_, write)| write.bytes()).sum()
    }

    /// The epochs in the pending writes, one for each write of the agent's identity.
    pub(super) fn unwritten_epochs(&self) -> Vec<u64> {
        let epoch = |(_, write): &(u64, Write)| match write {
            Write::Agent { record, .. } => Some(record.obeyed.as_ref()?.epoch),
            _ => None,
        };
        self.pending.iter().filter_map(epoch).collect()
    }

    fn release(&mut self, lsn: u64) {
        let own = lsn.saturating_sub(self.written_before);
        self.core.durable(crate::checkpoint::Lsn(own));
        for (_, output) in self.outbox.durable(lsn) {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Link(action) => self.carry_out_link(action),
            Output::Executor(ExecutorAction::Send { connection, event }) => {
                self.seen.push(Seen::Told(connection, *event));
            }
            Output::Executor(ExecutorAction::Finish { connection }) => {
                self.seen.push(Seen::HungUp(connection));
            }
            Output::Container(action) => self.carry_out_container(action),
            Output::DiscardSandbox { .. } => {}
            Output::Exit(reason) => self.seen.push(Seen::Exit(reason)),
        }
    }

    fn carry_out_link(&mut self, action: LinkAction) {
        match action {
            LinkAction::Connect { link } => {
                self.link = Some(link);
                self.seen.push(Seen::Connect);
            }
            LinkAction::Disconnect { .. } => self.seen.push(Seen::Disconnect),
            LinkAction::Send { link, message } => {
                if self.link == Some(link) {
                    self.check_durable(&message);
                    self.frames.push(*message);
                }
            }
        }
    }

    fn carry_out_container(&mut self, action: ContainerAction) {
        match action {
            ContainerAction::Launch(plan) => {
                self.seen.push(Seen::Launch(plan.container.clone()));
            }
            ContainerAction::Kill { container, grace } => {
                self.killed.push(container);
                self.seen.push(Seen::Kill(grace));
            }
            ContainerAction::Destroy { container } => {
                self.killed.push(container.clone());
                self.seen.push(Seen::Destroy(container));
            }
            ContainerAction::Freeze { container, frozen } => {
                self.seen.push(Seen::Freeze(container, frozen));
            }
            ContainerAction::ThrottleRevocable { cpus_millis, .. } => {
                self.seen.push(Seen::ThrottleRevocable(cpus_millis));
            }
            ContainerAction::Forget { container } => {
                self.machine.remove(&container);
            }
            ContainerAction::Probe(probe) => self.seen.push(Seen::Probe(probe)),
            ContainerAction::Resize {
                container,
                demand,
                resources,
                ..
            } => {
                self.seen.push(Seen::Resize(container, demand, resources));
            }
        }
    }

    /// Checks that an update of a task is durable before it is sent, except for updates after the end of the task that
    /// are not terminal.
    fn check_durable(&self, message: &FromAgent) {
        if let FromAgent::StatusUpdate(update) = message
            && update.status.container_status.is_some()
            && (is_terminal(update.status.state) || !self.is_over(&update.status.task_id))
        {
            let uuid = update.status.uuid.clone().expect("a uuid");
            assert!(
                self.durable_updates.contains(&uuid),
                "told before it was durable"
            );
        }
    }

    fn is_over(&self, task: &pb::TaskId) -> bool {
        let snapshot = self.core.snapshot();
        let mut executors = snapshot.executors();
        executors.any(|executor| {
            let mut over = executor.completed.iter();
            !executor.tasks.contains_key(task.value.as_str())
                && over.any(|over| over.info.task_id == *task)
        })
    }

    /// Advances the time, waking the core at each deadline.
    pub(super) fn advance(&mut self, duration: Duration) {
        let until = self.now.moment + duration;
        while let Some(deadline) = self.core.next_deadline().filter(|at| *at <= until) {
            let step = deadline.saturating_since(self.now.moment);
            self.now.moment += step;
            self.now.unix += step;
            self.step(Input::Tick);
        }
        self.now.unix += until.saturating_since(self.now.moment);
        self.now.moment = until;
    }

    /// Pauses the process for this time, without any inputs.
    pub(super) fn stand_still(&mut self, lasted: Duration) {
        self.now.moment += lasted;
        self.now.unix += lasted;
        self.step(Input::Paused { lasted });
    }

    /// Ends the process; pending writes are lost. A new process reads the disk.
    pub(super) fn crash(&mut self, rebooted: bool) {
        self.pending.clear();
        self.seed += 1;
        self.written_before = self.outbox.durable_lsn();
        self.outbox = Outbox::default();
        self.outbox.durable(self.written_before);
        self.link = None;
        self.uptime_at_start += self.now.moment.saturating_since(MOMENT_AT_START);
        self.now.moment = MOMENT_AT_START;
        if rebooted {
            self.machine.clear();
            self.boot = BootId::from_text(&format!("boot-{}", self.seed));
            self.uptime_at_start = UPTIME_AT_START;
        }
        let boot_clock = BootClock::new(self.boot.clone(), self.uptime_at_start);
        self.core = AgentCore::new(options(self.configured, boot_clock), self.seed);
        let mut image = self.image();
        let repairs = std::mem::take(&mut image.repairs);
        self.store
            .commit(&[Write::Repair { repairs }])
            .expect("the disk works");
        let mut containers = BTreeMap::new();
        for run in image
            .frameworks
            .iter()
            .flat_map(|framework| &framework.runs)
        {
            let nested = run.tasks.iter();
            let nested = nested.filter_map(|task| task.record.nested_container.as_deref());
            let nested = nested.map(|id| ContainerId::new(id).expect("an id"));
            for container in nested.chain([run.key.container.clone()]) {
                if let Some(identity) = self.machine.get(&container) {
                    containers.insert(container, Found::Alive(identity.clone()));
                } else if self.unheard.contains(&container) {
                    containers.insert(container, Found::Ending);
                }
            }
        }
        let recovery = Recovery {
            image,
            rebooted,
            containers,
        };
        self.step(Input::Recovered(Box::new(recovery)));
    }

    /// Ends the process, and registers a new one.
    pub(super) fn restart(&mut self) {
        self.crash(false);
        self.register();
    }

    /// A registered agent that launches task `t`.
    pub(super) fn launching() -> (Self, ContainerId) {
        let mut simulation = Self::registered();
        simulation.run(task("t"));
        let container = simulation.launched();
        (simulation, container)
    }

    /// An agent with the started task `t`, without acknowledgements.
    pub(super) fn with_started_task() -> Self {
        let (mut simulation, container) = Self::launching();
        simulation.start(&container);
        simulation
    }

    /// An agent with the running task `t`.
    pub(super) fn with_task() -> (Self, ContainerId) {
        let mut simulation = Self::registered();
        let container = simulation.running(task("t"));
        (simulation, container)
    }

    pub(super) fn run(&mut self, task: pb::TaskInfo) {
        self.run_in_executor(task, true);
    }

    /// Runs a task in an executor that is launched now or was before.
    pub(super) fn run_in_executor(&mut self, task: pb::TaskInfo, launch_executor: bool) {
        let framework = self.framework();
        self.tell(ToAgent::RunTask(wire::RunTask {
            framework,
            task,
            launch_executor,
            resource_version_uuid: None,
            accepted_time: None,
        }));
    }

    pub(super) fn framework(&self) -> pb::FrameworkInfo {
        let capability = |kind: &FrameworkCapability| pb::framework_info::Capability {
            r#type: Some((*kind).into()),
        };
        pb::FrameworkInfo {
            id: Some(framework_id()),
            user: "somebody".to_owned(),
            name: self.framework_name.clone(),
            capabilities: self.capabilities.iter().map(capability).collect(),
            ..pb::FrameworkInfo::default()
        }
    }

    /// The container that was launched last.
    pub(super) fn launched(&self) -> ContainerId {
        let launch = self.seen.iter().rev().find_map(|seen| match seen {
            Seen::Launch(container) => Some(container.clone()),
            _ => None,
        });
        launch.expect("a launch")
    }

    pub(super) fn start(&mut self, container: &ContainerId) {
        let supervisor = identity(self.machine.len());
        self.machine.insert(container.clone(), supervisor.clone());
        self.step(Input::ContainerStarted {
            container: container.clone(),
            supervisor,
            task_pid: 77,
        });
    }

    /// Runs a task up to RUNNING, and acknowledges its updates.
    pub(super) fn running(&mut self, task: pb::TaskInfo) -> ContainerId {
        self.run(task);
        let container = self.launched();
        self.start(&container);
        self.acknowledge_all();
        container
    }

    pub(super) fn end(&mut self, container: &ContainerId, exit: Exit) {
        self.end_recorded(container, exit, None);
    }

    /// Ends a container whose supervisor recorded whether a kill was requested.
    pub(super) fn end_recorded(
        &mut self,
        container: &ContainerId,
        exit: Exit,
        kill_requested: Option<bool>,
    ) {
        self.machine.remove(container);
        self.step(Input::ContainerEnded {
            container: container.clone(),
            ending: Ending {
                exit,
                limitation: None,
                kill_requested,
            },
        });
    }

    /// Ends a container at a memory limit of this many MB.
    pub(super) fn out_of_memory(&mut self, container: ContainerId, mem: f64) {
        self.step(Input::ContainerEnded {
            container,
            ending: Ending {
                exit: Exit::Signal(9),
                limitation: Some(Limitation {
                    reason: Reason::ContainerLimitationMemory,
                    message: "Memory limit exceeded".to_owned(),
                    resources: vec![scalar("mem", mem)],
                }),
                kill_requested: None,
            },
        });
    }

    pub(super) fn launch_fails(&mut self, container: ContainerId, cause: &str) {
        let cause = cause.to_owned();
        self.step(Input::LaunchFailed { container, cause });
    }

    /// The master pings an agent that it believes to be connected.
    pub(super) fn ping(&mut self, sequence: u64) {
        let connected = true;
        self.tell(ToAgent::Ping(wire::Ping {
            sequence,
            connected,
        }));
    }

    pub(super) fn kill(&mut self, task: &str, grace: Option<Duration>) {
        let policy = grace.map(|grace| pb::KillPolicy {
            grace_period: Some(duration(grace)),
        });
        self.tell(ToAgent::KillTask(wire::KillTask {
            framework_id: framework_id(),
            task_id: task_id(task),
            kill_policy: policy,
        }));
    }

    pub(super) fn acknowledge(&mut self, status: &pb::TaskStatus) {
        self.acknowledge_uuid(&status.task_id.value, status.uuid.clone().expect("a uuid"));
    }

    pub(super) fn acknowledge_uuid(&mut self, task: &str, uuid: Vec<u8>) {
        self.tell(ToAgent::Acknowledge(wire::Acknowledge {
            framework_id: framework_id(),
            task_id: task_id(task),
            uuid,
        }));
    }

    /// Takes the frames and returns the status updates among them.
    pub(super) fn take_updates(&mut self) -> Vec<wire::StatusUpdate> {
        let frames = std::mem::take(&mut self.frames);
        let update = |frame| match frame {
            FromAgent::StatusUpdate(update) => Some(update),
            _ => None,
        };
        frames.into_iter().filter_map(update).collect()
    }

    /// Acknowledges until no more updates are sent. Returns the updates.
    pub(super) fn acknowledge_all(&mut self) -> Vec<pb::TaskStatus> {
        let mut all = Vec::new();
        loop {
            let updates = self.take_updates();
            if updates.is_empty() {
                return all;
            }
            for update in updates {
                self.acknowledge(&update.status);
                all.push(update.status);
            }
        }
    }

    /// Acknowledges until no more updates are sent. Returns their states.
    pub(super) fn told_states(&mut self) -> Vec<pb::TaskState> {
        states(&self.acknowledge_all())
    }

    /// Acknowledges the only update, and checks its state and reason.
    #[track_caller]
    pub(super) fn assert_only_told(&mut self, state: pb::TaskState, reason: Reason) {
        let told = self.acknowledge_all();
        let told: Vec<_> = told.iter().map(|one| (one.state(), one.reason())).collect();
        assert_eq!(told, [(state, reason)]);
    }

    /// Whether the core had an effect of this kind.
    pub(super) fn saw(&self, kind: impl Fn(&Seen) -> bool) -> bool {
        self.seen.iter().any(kind)
    }

    /// The grace periods of the requested kills.
    pub(super) fn kills(&self) -> Vec<Duration> {
        let kill = |seen: &Seen| match seen {
            Seen::Kill(grace) => Some(*grace),
            _ => None,
        };
        self.seen.iter().filter_map(kill).collect()
    }

    pub(super) fn connects(&self) -> usize {
        let connects = self.seen.iter();
        connects
            .filter(|seen| matches!(seen, Seen::Connect))
            .count()
    }

    pub(super) fn work_dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(super) fn image(&self) -> crate::checkpoint::Image {
        read(&Layout::new(self.dir.path())).expect("the checkpoints can be read")
    }
}
