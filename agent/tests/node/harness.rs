//! An agent process and the master that it registers with.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser as _;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::agent_registry_server::{AgentRegistry, AgentRegistryServer};
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_tests::http::{self, Answer};
use meseta_tests::{daemon, kernel, wait};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The longest wait of a test: 30 s, more than anything here takes on a healthy machine, or the value of
/// `MESETA_TEST_PATIENCE` for slow machines, such as emulated ones.
pub(crate) fn patience() -> Duration {
    let given = std::env::var("MESETA_TEST_PATIENCE");
    let given = given.ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(30))
}

/// The time for attempts to remove groups that are busy for a moment.
const SWEEP_MAX: Duration = Duration::from_secs(2);

const AGENT_ID: &str = "agent-S0";
pub(crate) const FRAMEWORK: &str = "framework-1";

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    flags: meseta_agent::Flags,
}

/// The agent's own `main`.
pub(crate) fn agent_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let args = std::iter::once(OsString::from("agent")).chain(args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = runtime.block_on(async {
        use tokio::signal::unix::SignalKind;
        let shutdown = cancelled_by(SignalKind::terminate());
        let unregister = cancelled_by(SignalKind::user_defined1());
        let env = meseta_agent::RunEnv {
            build: Default::default(),
            flags_view: std::collections::BTreeMap::new(),
            verbosity: Default::default(),
            ready: None,
            started: None,
            shutdown,
            unregister,
        };
        meseta_agent::run(cli.flags, env).await
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(source) = cause {
                text = format!("{text}: {source}");
                cause = source.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn cancelled_by(kind: tokio::signal::unix::SignalKind) -> meseta_agent::CancellationToken {
    let token = meseta_agent::CancellationToken::new();
    let cancelled = token.clone();
    let mut signal = tokio::signal::unix::signal(kind).expect("a signal handler");
    tokio::spawn(async move {
        signal.recv().await;
        cancelled.cancel();
    });
    token
}

type Frames =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::MasterFrame, tonic::Status>> + Send>>;

/// A connection of an agent.
pub(crate) struct Link {
    from_agent: tonic::Streaming<wire::AgentFrame>,
    to_agent: mpsc::Sender<Result<wire::MasterFrame, tonic::Status>>,
}

struct Registry {
    links: mpsc::Sender<Link>,
}

#[tonic::async_trait]
impl AgentRegistry for Registry {
    type ConnectStream = Frames;

    async fn connect(
        &self,
        request: tonic::Request<tonic::Streaming<wire::AgentFrame>>,
    ) -> Result<tonic::Response<Frames>, tonic::Status> {
        let (to_agent, frames) = mpsc::channel(64);
        let link = Link {
            from_agent: request.into_inner(),
            to_agent,
        };
        self.links
            .send(link)
            .await
            .map_err(|_| tonic::Status::unavailable("over"))?;
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(frames))))
    }
}

/// A master that admits every agent, and the machine around one agent.
pub(crate) struct World {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) dir: tempfile::TempDir,
    master: SocketAddr,
    /// The root of this world only: agents remove an unused root, possibly while another begins to use it.
    cgroups_root: String,
    links: mpsc::Receiver<Link>,
    agent: Option<Child>,
    pub(crate) flags: Vec<String>,
    /// Certificates that the agent trusts instead of the machine's.
    pub(crate) trusted: Option<PathBuf>,
    seen: std::cell::RefCell<std::collections::BTreeSet<Vec<u8>>>,
}

/// The tasks in a reregistration.
pub(crate) fn tasks_of(told: &wire::Reregister) -> Vec<pb::Task> {
    let tasks = told.tasks.iter();
    tasks
        .map(|task| prost::Message::decode(task.as_slice()).expect("a task"))
        .collect()
}

impl World {
    pub(crate) fn new(flags: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (links_in, links) = mpsc::channel(8);
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let master = listener.local_addr().expect("an address");
        runtime.spawn(async move {
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let service = AgentRegistryServer::new(Registry { links: links_in })
                .max_decoding_message_size(meseta_proto::grpc::MESSAGE_MAX_BYTES);
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await
        });
        let dir = tempfile::Builder::new()
            .prefix("meseta-node-")
            .tempdir()
            .expect("a directory");
        // Tasks of other users traverse it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("permissions");
        Self {
            runtime,
            dir,
            master,
            cgroups_root: format!("meseta-test-node-{}-{number}", std::process::id()),
            links,
            agent: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            trusted: None,
            seen: std::cell::RefCell::default(),
        }
    }

    /// Starts an agent and registers it.
    pub(crate) fn registered(flags: &[&str]) -> (Self, Link) {
        let mut world = Self::new(flags);
        world.start_agent();
        let link = world.admit();
        (world, link)
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The newest sandbox of an executor, once it is there.
    pub(crate) fn sandbox_of(&self, executor: &str) -> Option<PathBuf> {
        let latest =
            format!("slaves/{AGENT_ID}/frameworks/{FRAMEWORK}/executors/{executor}/runs/latest");
        std::fs::canonicalize(self.work_dir().join(latest)).ok()
    }

    pub(crate) fn command(&self) -> Command {
        let exe = std::env::current_exe().expect("our path");
        let runtime_dir = self.dir.path().join("run");
        let mut command = daemon::under_original_umask(&exe);
        command
            .arg("agent")
            .arg(format!("--master={}", self.master))
            .arg(format!("--work_dir={}", self.work_dir().display()))
            .arg(format!("--runtime_dir={}", runtime_dir.display()))
            .arg(format!("--cgroups_root={}", self.cgroups_root))
            .arg("--registration_backoff_factor=100ms")
            .args(&self.flags);
        if let Some(trusted) = &self.trusted {
            command
                .env("SSL_CERT_FILE", trusted)
                .env_remove("SSL_CERT_DIR");
        }
        if !self.flags.iter().any(|flag| flag.starts_with("--port=")) {
            command.arg("--port=0");
        }
        command
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("agent.log")
    }

    pub(crate) fn start_agent(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file());
        let child = self.command().stderr(log.expect("a log")).spawn();
        self.agent = Some(child.expect("the agent starts"));
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub(crate) fn agent_pid(&self) -> i32 {
        let id = self.agent.as_ref().expect("an agent").id();
        i32::try_from(id).expect("a pid")
    }

    pub(crate) fn send_signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.agent_pid()).expect("a pid");
        kill_process(pid, signal).expect("the signal is sent");
    }

    pub(crate) fn signal_agent(&mut self, signal: Signal) -> std::process::ExitStatus {
        self.send_signal(signal);
        self.wait_for_agent()
    }

    /// Waits until the agent has ended by itself.
    pub(crate) fn wait_for_agent(&mut self) -> std::process::ExitStatus {
        let mut child = self.agent.take().expect("an agent");
        child.wait().expect("it ends")
    }

    /// Starts another agent process. Returns its reregistration.
    pub(crate) fn start_again(&mut self) -> (Link, wire::Reregister) {
        self.start_agent();
        self.admit_again()
    }

    /// Admits an agent that must reregister. Returns its reregistration.
    pub(crate) fn admit_again(&mut self) -> (Link, wire::Reregister) {
        match self.admit_told() {
            (link, FromAgent::Reregister(told)) => (link, told),
            (_, told) => panic!("not a re-registration: {told:?}"),
        }
    }

    /// The next connection of the agent, before it is admitted.
    pub(crate) fn connection(&mut self) -> Link {
        let next = async { tokio::time::timeout(patience(), self.links.recv()).await };
        match self.runtime.block_on(next) {
            Ok(Some(link)) => link,
            _ => panic!("the agent did not connect"),
        }
    }

    /// Admits the agent on its next connection.
    pub(crate) fn admit(&mut self) -> Link {
        self.admit_told().0
    }

    /// Admits the agent. Returns its first frame.
    fn admit_told(&mut self) -> (Link, FromAgent) {
        let mut link = self.connection();
        let told = self.next(&mut link);
        self.send(&link, registered());
        (link, told)
    }

    pub(crate) fn send(&self, link: &Link, message: ToAgent) {
        let frame = wire::MasterFrame {
            epoch: 1,
            message: Some(message),
            cluster_id: None,
        };
        let sent = self.runtime.block_on(link.to_agent.send(Ok(frame)));
        assert!(sent.is_ok(), "the agent is connected");
    }

    pub(crate) fn next(&self, link: &mut Link) -> FromAgent {
        let next = async { tokio::time::timeout(patience(), link.from_agent.message()).await };
        match self.runtime.block_on(next) {
            Ok(Ok(Some(frame))) => frame.message.expect("a message"),
            other => panic!("no frame: {other:?}"),
        }
    }

    /// The next status update, acknowledged. An update whose acknowledgement was lost with an agent arrives again, and
    /// is acknowledged again.
    pub(crate) fn update(&self, link: &mut Link) -> pb::TaskStatus {
        loop {
            let update = self.unacknowledged_update(link);
            self.acknowledge(link, &update.status);
            let uuid = update.status.uuid.clone().unwrap_or_default();
            if self.seen.borrow_mut().insert(uuid) {
                return update.status;
            }
        }
    }

    pub(crate) fn unacknowledged_update(&self, link: &mut Link) -> wire::StatusUpdate {
        loop {
            match self.next(link) {
                FromAgent::StatusUpdate(update) => return update,
                FromAgent::Pong(_) => {}
                other => panic!("not an update: {other:?}"),
            }
        }
    }

    pub(crate) fn acknowledge(&self, link: &Link, status: &pb::TaskStatus) {
        self.acknowledge_of(link, framework_id(), status);
    }

    pub(crate) fn acknowledge_of(
        &self,
        link: &Link,
        framework_id: pb::FrameworkId,
        status: &pb::TaskStatus,
    ) {
        self.send(
            link,
            ToAgent::Acknowledge(wire::Acknowledge {
                framework_id,
                task_id: status.task_id.clone(),
                uuid: status.uuid.clone().expect("an update has a uuid"),
            }),
        );
    }

    /// Acknowledges updates up to the terminal one. Returns their states and the last update.
    pub(crate) fn until_terminal(&self, link: &mut Link) -> (Vec<TaskState>, pb::TaskStatus) {
        let mut states = Vec::new();
        loop {
            let status = self.update(link);
            states.push(status.state());
            if meseta_agent::core::is_terminal(status.state) {
                return (states, status);
            }
        }
    }

    /// The next update, which must be of this state.
    pub(crate) fn expect(&self, link: &mut Link, state: TaskState) -> pb::TaskStatus {
        let status = self.update(link);
        assert_eq!(status.state(), state, "{status:?}");
        status
    }

    /// The next update, which must be of this task and state.
    pub(crate) fn expect_of(&self, link: &mut Link, task: &str, state: TaskState) {
        let status = self.update(link);
        let found = (status.task_id.value.as_str(), status.state());
        assert_eq!(found, (task, state), "{status:?}");
    }

    /// The last update of a task, which must be of this state.
    pub(crate) fn expect_end(&self, link: &mut Link, state: TaskState) -> pb::TaskStatus {
        let (_, last) = self.until_terminal(link);
        assert_eq!(last.state(), state, "{last:?}");
        last
    }

    pub(crate) fn run(&self, link: &Link, task: pb::TaskInfo) {
        self.run_of(link, framework(), task, true);
    }

    /// Runs a task of a framework, in an executor that is launched now or was before.
    pub(crate) fn run_of(
        &self,
        link: &Link,
        framework: pb::FrameworkInfo,
        task: pb::TaskInfo,
        launch_executor: bool,
    ) {
        self.send(
            link,
            ToAgent::RunTask(wire::RunTask {
                framework,
                task,
                launch_executor,
                resource_version_uuid: None,
                accepted_time: None,
            }),
        );
    }

    /// Runs a command up to RUNNING.
    pub(crate) fn running(&self, link: &mut Link, task: pb::TaskInfo) -> pb::TaskStatus {
        self.run(link, task);
        self.expect(link, TaskState::TaskStarting);
        self.expect(link, TaskState::TaskRunning)
    }

    /// Runs a command to its end, in this state.
    pub(crate) fn run_to(
        &self,
        link: &mut Link,
        task: pb::TaskInfo,
        state: TaskState,
    ) -> pb::TaskStatus {
        self.run(link, task);
        self.expect_end(link, state)
    }

    /// Runs a task that must be refused. Returns the reason.
    pub(crate) fn run_refused(&self, link: &mut Link, task: pb::TaskInfo) -> String {
        let last = self.run_to(link, task, TaskState::TaskFailed);
        assert_eq!(last.reason(), Reason::ContainerLaunchFailed, "{last:?}");
        last.message().to_owned()
    }

    /// Kills a task and waits for its KILLED update.
    pub(crate) fn end(&self, link: &mut Link, task: &str) -> pb::TaskStatus {
        self.kill(link, task, None);
        self.expect_end(link, TaskState::TaskKilled)
    }

    pub(crate) fn kill(&self, link: &Link, task: &str, grace: Option<Duration>) {
        let grace_period = grace.map(|grace| pb::DurationInfo {
            nanoseconds: i64::try_from(grace.as_nanos()).expect("a short grace"),
        });
        self.send(
            link,
            ToAgent::KillTask(wire::KillTask {
                framework_id: framework_id(),
                task_id: task_id(task),
                kill_policy: Some(pb::KillPolicy { grace_period }),
            }),
        );
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let endpoint = wait_for("the endpoint file", || {
            std::fs::read_to_string(self.work_dir().join("endpoint")).ok()
        });
        format!("{}{path}", endpoint.trim())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        http::get(&self.url(path))
    }

    pub(crate) fn get_json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub(crate) fn call(&self, body: &serde_json::Value) -> Answer {
        http::post_json(&self.url("/api/v1"), body)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
        // Starts one more agent, to end all tasks and remove the cgroups.
        let mut sweeper = self.command();
        let flag = "--shutdown_tasks_on_exit";
        if !self.flags.iter().any(|given| given == flag) {
            sweeper.arg(flag);
        }
        sweeper.stderr(Stdio::null());
        let endpoint = self.work_dir().join("endpoint");
        let _ = std::fs::remove_file(&endpoint);
        if let Ok(mut sweeper) = sweeper.spawn() {
            wait::holds(patience(), || {
                let url = std::fs::read_to_string(&endpoint).unwrap_or_default();
                let state = http::try_get(&format!("{}/state", url.trim()));
                state.is_ok_and(|answer| answer.status == 200)
            });
            if let Ok(pid) = i32::try_from(sweeper.id())
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _ = kill_process(pid, Signal::TERM);
            }
            let _ = sweeper.wait();
        }
        // Only this world uses the root, so that no other agent removes its remains if the sweeper cannot start.
        wait::holds(SWEEP_MAX, || {
            let groups = kernel::groups_below(&self.cgroups_root);
            for group in &groups {
                let _ = std::fs::remove_dir(group);
            }
            groups.is_empty()
        });
    }
}

fn registered() -> ToAgent {
    ToAgent::Registered(wire::Registered {
        agent_id: agent_id(),
        total_ping_timeout_seconds: 75.0,
        unknown_tasks: Vec::new(),
        unknown_operations: Vec::new(),
        master_info: None,
    })
}

pub(crate) fn agent_id() -> pb::AgentId {
    pb::AgentId {
        value: AGENT_ID.to_owned(),
    }
}

pub(crate) fn framework_id() -> pb::FrameworkId {
    pb::FrameworkId {
        value: FRAMEWORK.to_owned(),
    }
}

pub(crate) fn task_id(id: &str) -> pb::TaskId {
    pb::TaskId {
        value: id.to_owned(),
    }
}

pub(crate) fn framework() -> pb::FrameworkInfo {
    pb::FrameworkInfo {
        id: Some(framework_id()),
        name: "tests".to_owned(),
        user: if meseta_tests::unless_root().is_none() {
            "root"
        } else {
            "nobody"
        }
        .to_owned(),
        checkpoint: Some(true),
        roles: vec!["dev".to_owned()],
        ..pb::FrameworkInfo::default()
    }
}

pub(crate) fn scalar(name: &str, value: f64) -> pb::Resource {
    pb::Resource {
        name: name.to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        allocation_info: Some(pb::resource::AllocationInfo {
            role: Some("dev".to_owned()),
        }),
        ..pb::Resource::default()
    }
}

pub(crate) fn command(text: &str) -> pb::CommandInfo {
    pb::CommandInfo {
        value: Some(text.to_owned()),
        ..pb::CommandInfo::default()
    }
}

/// A shell command with half a CPU and 64 MB.
pub(crate) fn shell(id: &str, text: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        name: id.to_owned(),
        task_id: task_id(id),
        agent_id: agent_id(),
        resources: vec![scalar("cpus", 0.5), scalar("mem", 64.0)],
        command: Some(command(text)),
        ..pb::TaskInfo::default()
    }
}

/// Changes a task's user.
pub(crate) fn by(user: &str, mut task: pb::TaskInfo) -> pb::TaskInfo {
    command_of(&mut task).user = Some(user.to_owned());
    task
}

/// The command of a task, or of its executor.
pub(crate) fn command_of(task: &mut pb::TaskInfo) -> &mut pb::CommandInfo {
    let of_executor = task.executor.as_mut().and_then(|one| one.command.as_mut());
    of_executor.or(task.command.as_mut()).expect("a command")
}

/// An environment of one variable.
pub(crate) fn variable(name: &str, value: &str) -> pb::Environment {
    pb::Environment {
        variables: vec![pb::environment::Variable {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            ..pb::environment::Variable::default()
        }],
    }
}

/// Adds a file to fetch to a task.
pub(crate) fn with_uri(mut task: pb::TaskInfo, value: String, executable: bool) -> pb::TaskInfo {
    command_of(&mut task).uris.push(pb::command_info::Uri {
        value,
        executable: Some(executable),
        ..pb::command_info::Uri::default()
    });
    task
}

/// The process of a task's container.
pub(crate) fn pid_of(status: &pb::TaskStatus) -> i32 {
    let pid = status
        .container_status
        .as_ref()
        .and_then(|one| one.executor_pid);
    i32::try_from(pid.expect("a pid")).expect("a pid")
}

/// The container of a task.
pub(crate) fn container_of(status: &pb::TaskStatus) -> String {
    let container = status
        .container_status
        .as_ref()
        .and_then(|one| one.container_id.as_ref());
    container.expect("a container").value.clone()
}

/// A flag for a fixed port, so that executors find their agent again. The port stays bound, without a listener, for as
/// long as the tests run: no other process gets it before the agent listens there, or between two agent processes.
pub(crate) fn fixed_port() -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("shared with the agent");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any_port).expect("a port");
    let port = socket.local_addr().expect("an address").port();
    std::mem::forget(socket);
    format!("--port={port}")
}

/// Polls for changes without a notification: files and the kernel's own state.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait::eventually(what, patience(), look)
}

/// Cgroups with this name anywhere below a cgroup mount.
pub(crate) fn groups_named(name: &str) -> Vec<PathBuf> {
    let is_named = |path: &PathBuf| {
        let last = path.file_name().unwrap_or_default();
        last.to_string_lossy().contains(name)
    };
    kernel::groups_below("")
        .into_iter()
        .filter(is_named)
        .collect()
}
