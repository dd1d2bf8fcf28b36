//! `meseta local`: a master and agents on loopback, as children that end with this process.
//!
//! Each daemon is this same binary, run again in a process group of its own, so that Ctrl-C reaches
//! this process alone and agents can be ended, with all their tasks, before their master.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::daemon::PARENT_VARIABLE;

/// How long a daemon may take from its start until its port answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long an agent may take to end its tasks and remove their groups; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Pause between two looks for a daemon's endpoint file.
const ENDPOINT_POLL: Duration = Duration::from_millis(10);
/// Pause before an agent that was told to end is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
/// More agents than this on one machine is a slip of the finger.
const AGENTS_MAX: u16 = 64;

/// Flags of `meseta local`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Port of the master; 0 picks a free one.
    #[arg(long, default_value_t = 5050)]
    port: u16,
    /// Port of the first agent, the next ones follow it; 0 picks free ones.
    #[arg(long = "agent_port", alias = "agent-port", default_value_t = 5051)]
    agent_port: u16,
    /// Directory for all state; kept. Unset: a fresh one in the temporary directory, removed at the
    /// end.
    #[arg(long = "work_dir", alias = "work-dir", value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Number of agents, 1 to 64.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(AGENTS_MAX)))]
    agents: u16,
    /// Resources of each agent, e.g. `cpus:4;mem:2048`; unset: what the machine has.
    #[arg(long)]
    resources: Option<String>,
    /// Attributes of each agent, e.g. `rack:r1;ssd:true`.
    #[arg(long)]
    attributes: Option<String>,
    /// Give the agents' tasks a hard CPU cap equal to what they asked for.
    #[arg(long = "cgroups_enable_cfs")]
    cgroups_enable_cfs: bool,
}

/// Runs until Ctrl-C, SIGTERM, or the end of one of the daemons.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    // The children's end is tied to the thread that started them: this one, the main thread.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?
        .block_on(async {
            let state = StateDir::open(options.work_dir.as_deref())?;
            let mut cluster = Cluster {
                state,
                master: None,
                agents: Vec::new(),
            };
            let outcome = cluster.run(options).await;
            cluster.stop().await;
            outcome
        })
}

/// Where the state is, and whether it goes away at the end.
#[derive(Debug)]
struct StateDir {
    path: PathBuf,
    temporary: bool,
}

impl StateDir {
    fn open(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(path).with_context(|| {
                format!(
                    "failed to create {}; give a writable --work_dir",
                    path.display()
                )
            })?;
            let path = path
                .canonicalize()
                .with_context(|| format!("failed to resolve {}", path.display()))?;
            return Ok(Self {
                path,
                temporary: false,
            });
        }
        let path = std::env::temp_dir().join(format!("meseta-local-{}", std::process::id()));
        std::fs::create_dir(&path)
            .with_context(|| format!("failed to create {}; give a --work_dir", path.display()))?;
        Ok(Self {
            path,
            temporary: true,
        })
    }
}

/// One running daemon.
#[derive(Debug)]
struct Daemon {
    name: String,
    verb: &'static str,
    dir: PathBuf,
    flags: Vec<String>,
    child: Child,
    url: String,
    /// When an agent that ended because its master said so is tried again.
    again_at: Option<Instant>,
}

#[derive(Debug)]
struct Cluster {
    state: StateDir,
    master: Option<Daemon>,
    agents: Vec<Daemon>,
}

impl Cluster {
    async fn run(&mut self, options: &Options) -> anyhow::Result<ExitCode> {
        let mut interrupt = signal(SignalKind::interrupt()).context("failed to watch SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("failed to watch SIGTERM")?;
        tokio::select! {
            started = self.start(options) => started?,
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        }
        self.print_welcome();
        tokio::select! {
            ended = self.any_ends() => bail!(ended),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        eprintln!("\nstopping: tasks first, then agents and master");
        Ok(ExitCode::SUCCESS)
    }

    async fn start(&mut self, options: &Options) -> anyhow::Result<()> {
        let dir = self.state.path.join("master");
        let mut flags = vec![format!("--port={}", options.port)];
        flags.push("--registry=embedded".to_owned());
        self.master = Some(Daemon::start("master", "master", &dir, flags).await?);
        let master = self
            .master
            .as_ref()
            .map(|m| m.url.clone())
            .unwrap_or_default();
        for index in 0..options.agents {
            let name = format!("agent {}", index + 1);
            let dir = self.state.path.join(format!("agent-{}", index + 1));
            let port = match options.agent_port {
                0 => 0,
                first => first
                    .checked_add(index)
                    .context("--agent_port leaves no room above it")?,
            };
            let mut flags = vec![
                format!("--port={port}"),
                format!("--master={}", master.trim_start_matches("http://")),
                format!("--runtime_dir={}", dir.join("run").display()),
                "--shutdown_tasks_on_exit".to_owned(),
            ];
            flags.extend(
                options
                    .resources
                    .iter()
                    .map(|text| format!("--resources={text}")),
            );
            flags.extend(
                options
                    .attributes
                    .iter()
                    .map(|text| format!("--attributes={text}")),
            );
            flags.extend(
                options
                    .cgroups_enable_cfs
                    .then(|| "--cgroups_enable_cfs".to_owned()),
            );
            self.agents
                .push(Daemon::start(&name, "agent", &dir, flags).await?);
        }
        Ok(())
    }

    /// Says where everything is and what to do next.
    fn print_welcome(&self) {
        let Some(master) = &self.master else { return };
        let agents: Vec<_> = self
            .agents
            .iter()
            .map(|a| format!("  {}  {}", a.name, a.url))
            .collect();
        let kept = if self.state.temporary {
            "removed at the end; --work_dir=DIR keeps it"
        } else {
            "kept"
        };
        let address = master.url.trim_start_matches("http://");
        let flag = match address {
            "127.0.0.1:5050" => String::new(),
            other => format!(" --master={other}"),
        };
        let me = invoked_as();
        eprintln!(
            "meseta is up on loopback.\n\n  master   {}\n{}\n  state    {} ({kept})\n\n\
             Look:      curl {}/state    curl {}/metrics\n\
             Next, in another terminal:\n\n  \
             {me} execute{flag} --command='echo hello; cat /proc/self/cgroup' --resources='cpus:0.5;mem:64'\n\n\
             Ctrl-C ends the tasks, the agents and the master.",
            master.url,
            agents.join("\n"),
            self.state.path.display(),
            master.url,
            self.agents
                .first()
                .map_or(master.url.as_str(), |a| a.url.as_str()),
        );
    }

    /// Waits until a daemon ends by itself and says which. An agent that its master has told to end, for
    /// maintenance, is started again until it may stay.
    async fn any_ends(&mut self) -> String {
        let mut told = false;
        loop {
            for daemon in self.master.iter_mut().chain(&mut self.agents) {
                if daemon.again_at.is_some_and(|again| Instant::now() < again) {
                    continue;
                }
                if daemon.again_at.take().is_some()
                    && let Err(error) = daemon.start_again()
                {
                    return format!("{error:#}");
                }
                let Ok(Some(status)) = daemon.child.try_wait() else {
                    continue;
                };
                if !status.success() || daemon.verb != "agent" {
                    return format!(
                        "the {} ended by itself ({status}); its log is above",
                        daemon.name
                    );
                }
                if !std::mem::replace(&mut told, true) {
                    eprintln!(
                        "meseta: the {} ended because its master said so; it comes back when it may, for \
                         example after `meseta maintenance up`",
                        daemon.name
                    );
                }
                daemon.again_at = Some(Instant::now() + RESTART_PAUSE);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Agents first, since they end the tasks and tell the master; then the master, then the files.
    async fn stop(&mut self) {
        for agent in &self.agents {
            agent.terminate();
        }
        for agent in &mut self.agents {
            agent.wait().await;
        }
        if let Some(master) = &mut self.master {
            master.terminate();
            master.wait().await;
        }
        if self.state.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.state.path)
        {
            eprintln!(
                "meseta: failed to remove {}: {error}",
                self.state.path.display()
            );
        }
    }
}

impl Daemon {
    async fn start(
        name: &str,
        verb: &'static str,
        dir: &Path,
        flags: Vec<String>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("failed to create {}", dir.display()))?;
        let endpoint = dir.join("endpoint");
        match std::fs::remove_file(&endpoint) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("failed to remove {}", endpoint.display()));
            }
            _ => {}
        }
        let mut daemon = Self {
            name: name.to_owned(),
            verb,
            dir: dir.to_owned(),
            child: spawn(name, verb, dir, &flags)?,
            flags,
            url: String::new(),
            again_at: None,
        };
        daemon.url = daemon.wait_for_endpoint(&endpoint).await?;
        Ok(daemon)
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.name, self.verb, &self.dir, &self.flags)?;
        Ok(())
    }

    /// The daemon writes its URL once its port listens.
    async fn wait_for_endpoint(&mut self, path: &Path) -> anyhow::Result<String> {
        let polls = START_LIMIT.as_millis() / ENDPOINT_POLL.as_millis();
        for _ in 0..polls {
            if let Ok(text) = std::fs::read_to_string(path) {
                return Ok(text.trim().to_owned());
            }
            if let Some(status) = self.child.try_wait().context("failed to watch a daemon")? {
                bail!(
                    "the {} did not start ({status}); what it said is above",
                    self.name
                );
            }
            tokio::time::sleep(ENDPOINT_POLL).await;
        }
        self.terminate();
        bail!(
            "the {} did not listen within {} s",
            self.name,
            START_LIMIT.as_secs()
        )
    }

    fn terminate(&self) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // Already gone is what we want.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    async fn wait(&mut self) {
        if tokio::time::timeout(STOP_LIMIT, self.child.wait())
            .await
            .is_err()
        {
            eprintln!(
                "meseta: the {} did not end within {} s: killed",
                self.name,
                STOP_LIMIT.as_secs()
            );
            if let Err(error) = self.child.kill().await {
                eprintln!("meseta: failed to kill the {}: {error}", self.name);
            }
        }
    }
}

fn spawn(name: &str, verb: &str, dir: &Path, flags: &[String]) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("failed to find this program's own file")?;
    let mut command = Command::new(program);
    command
        .arg(verb)
        .arg(format!("--work_dir={}", dir.display()))
        .args(flags)
        .env(PARENT_VARIABLE, std::process::id().to_string())
        .stdin(Stdio::null())
        .process_group(0);
    if std::env::var_os("MESETA_LOG").is_none() {
        command.env("MESETA_LOG", "warn");
    }
    command
        .spawn()
        .with_context(|| format!("failed to start the {name}"))
}

/// How the user named this program, shortened to what can be pasted from here.
fn invoked_as() -> String {
    let Ok(exe) = std::env::current_exe() else {
        return "meseta".to_owned();
    };
    let on_path = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| Some(dir.as_path()) == exe.parent())
    });
    if on_path {
        return "meseta".to_owned();
    }
    match std::env::current_dir()
        .ok()
        .and_then(|dir| exe.strip_prefix(dir).ok().map(Path::to_owned))
    {
        Some(relative) => format!("./{}", relative.display()),
        None => exe.display().to_string(),
    }
}
