//! An agent process and the master that it registers with.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use clap::Parser as _;
use meseta_daemon::client::{Call, Client, Reply};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::agent_registry_server::{AgentRegistry, AgentRegistryServer};
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// How long a test waits for what must come: 30 s, which nothing here takes on a healthy machine, or as many as
/// `MESETA_TEST_PATIENCE` says, as in an emulated one.
pub(crate) fn patience() -> Duration {
    let given = std::env::var("MESETA_TEST_PATIENCE");
    let given = given.ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(30))
}

/// Where the agent under test finds the mask for modes (umask) that the suite was started with, in octal.
const MASK: &str = "MESETA_TEST_UMASK";
static MASK_OF_THE_SUITE: OnceLock<Mode> = OnceLock::new();

/// Keeps the suite's own umask for the agents alone: what tests lay out for tasks of other users is readable.
pub(crate) fn keep_the_mask_for_the_agent() {
    let given = umask(Mode::from_raw_mode(0o022));
    MASK_OF_THE_SUITE.get_or_init(|| given);
}

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
    let mask = std::env::var(MASK).ok();
    if let Some(mask) = mask.and_then(|text| u32::from_str_radix(&text, 8).ok()) {
        umask(Mode::from_raw_mode(mask));
    }
    let args = std::iter::once(OsString::from("agent")).chain(args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = runtime.block_on(async {
        let shutdown = meseta_agent::CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            let kind = tokio::signal::unix::SignalKind::terminate();
            let mut signal = tokio::signal::unix::signal(kind).expect("a signal handler");
            signal.recv().await;
            stop.cancel();
        });
        let env = meseta_agent::RunEnv {
            flags_view: std::collections::BTreeMap::new(),
            verbosity: Default::default(),
            ready: None,
            started: None,
            shutdown,
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

type Frames =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::MasterFrame, tonic::Status>> + Send>>;

/// One connection of an agent.
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
    master: std::net::SocketAddr,
    links: mpsc::Receiver<Link>,
    agent: Option<Child>,
    flags: Vec<String>,
    /// Certificates that the agent believes instead of the machine's.
    pub(crate) trusted: Option<PathBuf>,
    log: Arc<Mutex<String>>,
    seen: std::cell::RefCell<std::collections::BTreeSet<Vec<u8>>>,
}

impl World {
    pub(crate) fn new(flags: &[&str]) -> Self {
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
        // Tasks of other users walk through it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("permissions");
        Self {
            runtime,
            dir,
            master,
            links,
            agent: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            trusted: None,
            log: Arc::default(),
            seen: std::cell::RefCell::default(),
        }
    }

    /// With an agent that is registered.
    pub(crate) fn registered(flags: &[&str]) -> (Self, Link) {
        let mut world = Self::new(flags);
        world.start_agent();
        let link = world.admit();
        (world, link)
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub(crate) fn command(&self) -> Command {
        let exe = std::env::current_exe().expect("our path");
        let mut command = Command::new(exe);
        command
            .arg("agent")
            .arg(format!("--master={}", self.master))
            .arg(format!("--work_dir={}", self.work_dir().display()))
            .arg(format!(
                "--runtime_dir={}",
                self.dir.path().join("run").display()
            ))
            .arg("--cgroups_root=meseta-test")
            .arg("--registration_backoff_factor=100ms")
            .args(&self.flags);
        if let Some(mask) = MASK_OF_THE_SUITE.get() {
            command.env(MASK, format!("{:o}", mask.as_raw_mode()));
        }
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

    pub(crate) fn start_agent(&mut self) {
        let mut child = self
            .command()
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let stderr = child.stderr.take().expect("its log");
        let log = self.log.clone();
        std::thread::spawn(move || {
            use std::io::BufRead as _;
            for line in std::io::BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
            {
                let mut log = log.lock().expect("the log");
                log.push_str(&line);
                log.push('\n');
            }
        });
        self.agent = Some(child);
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    pub(crate) fn agent_pid(&self) -> i32 {
        let id = self.agent.as_ref().expect("an agent").id();
        i32::try_from(id).expect("a pid")
    }

    /// Stops the agent's process where it is.
    pub(crate) fn stop_agent(&self) {
        self.send_signal(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn continue_agent(&self) {
        self.send_signal(rustix::process::Signal::CONT);
    }

    fn send_signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.agent_pid()).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("the signal is sent");
    }

    pub(crate) fn signal_agent(
        &mut self,
        signal: rustix::process::Signal,
    ) -> std::process::ExitStatus {
        self.send_signal(signal);
        let mut child = self.agent.take().expect("an agent");
        child.wait().expect("it ends")
    }

    /// The next connection of the agent, before it is admitted.
    pub(crate) fn connection(&mut self) -> Link {
        let next = async { tokio::time::timeout(patience(), self.links.recv()).await };
        match self.runtime.block_on(next) {
            Ok(Some(link)) => link,
            _ => panic!("the agent did not connect; its log:\n{}", self.log()),
        }
    }

    /// Admits the agent on its next connection.
    pub(crate) fn admit(&mut self) -> Link {
        self.admit_told().0
    }

    /// The same, with what the agent told.
    pub(crate) fn admit_told(&mut self) -> (Link, FromAgent) {
        let mut link = self.connection();
        let told = self.next(&mut link);
        self.send(&link, registered());
        (link, told)
    }

    pub(crate) fn send(&self, link: &Link, message: ToAgent) {
        let frame = wire::MasterFrame {
            epoch: 1,
            message: Some(message),
        };
        let sent = self.runtime.block_on(link.to_agent.send(Ok(frame)));
        assert!(sent.is_ok(), "the agent is connected");
    }

    pub(crate) fn next(&self, link: &mut Link) -> FromAgent {
        let next = async { tokio::time::timeout(patience(), link.from_agent.message()).await };
        match self.runtime.block_on(next) {
            Ok(Ok(Some(frame))) => frame.message.expect("a message"),
            other => panic!("no frame: {other:?}; the agent's log:\n{}", self.log()),
        }
    }

    /// The next status update, acknowledged. One whose acknowledgement got lost with an agent comes
    /// again, as it must, and is acknowledged again.
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
        self.send(
            link,
            ToAgent::Acknowledge(wire::Acknowledge {
                framework_id: framework_id(),
                task_id: status.task_id.clone(),
                uuid: status.uuid.clone().expect("an update has a uuid"),
            }),
        );
    }

    /// Updates up to the terminal one, all acknowledged; their states.
    pub(crate) fn until_terminal(&self, link: &mut Link) -> (Vec<pb::TaskState>, pb::TaskStatus) {
        let mut states = Vec::new();
        loop {
            let status = self.update(link);
            states.push(status.state());
            if meseta_agent::core::is_terminal(status.state) {
                return (states, status);
            }
        }
    }

    pub(crate) fn run(&self, link: &Link, task: pb::TaskInfo) {
        self.send(
            link,
            ToAgent::RunTask(wire::RunTask {
                framework: framework(),
                task,
                launch_executor: true,
                resource_version_uuid: None,
                accepted_time: None,
            }),
        );
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

    pub(crate) fn get(&self, path: &str) -> Reply {
        let client = Client::default();
        self.runtime
            .block_on(client.get(&self.url(path)))
            .unwrap_or_else(|error| panic!("{path}: {error:?}\n{}", self.log()))
    }

    pub(crate) fn get_json(&self, path: &str) -> serde_json::Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    pub(crate) fn call(&self, body: &serde_json::Value) -> Reply {
        let json = http::HeaderValue::from_static("application/json");
        let call = Call::post(&self.url("/api/v1"))
            .header(http::header::CONTENT_TYPE, json)
            .body(body.to_string());
        self.runtime
            .block_on(Client::default().request(call))
            .expect("an answer")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        // One more agent, told to take everything down with it.
        let mut sweeper = self.command();
        let flag = "--shutdown_tasks_on_exit";
        if !self.flags.iter().any(|given| given == flag) {
            sweeper.arg(flag);
        }
        sweeper.stderr(Stdio::null());
        let endpoint = self.work_dir().join("endpoint");
        let _ = std::fs::remove_file(&endpoint);
        if let Ok(mut sweeper) = sweeper.spawn() {
            let deadline = Instant::now() + patience();
            while !endpoint.exists() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let recovered = async {
                while Instant::now() < deadline {
                    let url = std::fs::read_to_string(&endpoint).unwrap_or_default();
                    let state = Client::default()
                        .get(&format!("{}/state", url.trim()))
                        .await;
                    if state.is_ok_and(|reply| reply.status == 200) {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            self.runtime.block_on(recovered);
            if let Ok(pid) = i32::try_from(sweeper.id())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = sweeper.wait();
        }
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
        user: whoami(),
        checkpoint: Some(true),
        roles: vec!["dev".to_owned()],
        ..pb::FrameworkInfo::default()
    }
}

fn whoami() -> String {
    if rustix::process::geteuid().is_root() {
        "root".to_owned()
    } else {
        "nobody".to_owned()
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

/// A shell command with half a CPU and 64 MB.
pub(crate) fn shell(id: &str, command: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        name: id.to_owned(),
        task_id: task_id(id),
        agent_id: agent_id(),
        resources: vec![scalar("cpus", 0.5), scalar("mem", 64.0)],
        command: Some(pb::CommandInfo {
            value: Some(command.to_owned()),
            ..pb::CommandInfo::default()
        }),
        ..pb::TaskInfo::default()
    }
}

/// Polls for what nobody announces: files and the kernel's own state.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Groups of ours anywhere below a cgroup mount.
pub(crate) fn groups_named(name: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, depth: usize, name: &str, found: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(dir) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path());
                }
                if depth > 0 {
                    walk(&entry.path(), depth - 1, name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), 4, name, &mut found);
    found
}
