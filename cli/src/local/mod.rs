//! The `meseta local` verb: masters, agents and a scheduler on loopback, as children that end with this process. On a
//! machine without 127.0.0.1 loopback is ::1.
//!
//! Each daemon is this same binary, run again in a process group of its own, so that Ctrl-C reaches this process alone and
//! agents can be ended, with all their tasks, before their master.
//! - [`daemon`]: one such process;
//! - [`demo`]: teams, a service and a batch job, on request;
//! - [`etcd`]: the store that several masters share;
//! - [`ports`]: taken and free ports;
//! - [`task_ports`]: the ports that each agent offers;
//! - [`state_dir`]: the directory for all of them.

mod daemon;
mod demo;
pub(crate) mod etcd;
mod ports;
mod state_dir;
mod task_ports;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_daemon::advertised::usual_master;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use daemon::{AtItsEnd, Daemon, Found};
use ports::Ports;
use state_dir::StateDir;

use crate::terminal;

/// More agents on one machine are probably a typing mistake.
const AGENTS_MAX: u16 = 64;
/// More masters have no use.
const MASTERS_MAX: u16 = 7;
/// The default port of the master; the scheduler's is beside it.
const USUAL_PORT: u16 = 5050;
const SCHEDULER_PORT: u16 = 5070;
/// The time limit for the election of one of several masters.
const ELECTION_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two looks for ended daemons or for the leader.
const LOOK: Duration = Duration::from_millis(200);

/// Flags of `meseta local`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Port of the first master; the others take the ports below it. 0 selects free ports.
    #[arg(long, default_value_t = USUAL_PORT)]
    port: u16,
    /// Port of the first agent; the others take the ports above it. 0 selects free ports.
    #[arg(long = "agent_port", alias = "agent-port", default_value_t = 5051)]
    agent_port: u16,
    /// Port of the job scheduler; 0 selects a free port. Default: 5070 if the master has its usual port and 5070 is
    /// free, else a free port.
    #[arg(long = "scheduler_port", alias = "scheduler-port")]
    scheduler_port: Option<u16>,
    /// Run no job scheduler.
    #[arg(long = "no-scheduler", conflicts_with = "scheduler_port")]
    no_scheduler: bool,
    /// Directory for all state; survives the end of the command. Default: a new temporary directory, removed at the
    /// end.
    #[arg(long = "work_dir", alias = "work-dir", value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Number of masters, 1 to 7. Several masters share an etcd, which must be installed. If you kill a master,
    /// another takes over, and the killed master comes back as a follower.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MASTERS_MAX)))]
    masters: u16,
    /// Number of agents, 1 to 64. Several agents have the attributes `rack:r1`, `rack:r2` and so on, and start
    /// again if you kill them. Default: 1, or 3 with --demo.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(AGENTS_MAX)))]
    agents: Option<u16>,
    /// Resources of each agent, e.g. `cpus:4;mem:2048`. Default: those of the machine, or a set for --demo. Several
    /// agents divide the machine's ports, unless this flag names ports.
    #[arg(long)]
    resources: Option<String>,
    /// Attributes of each agent, e.g. `zone:a;ssd:true`.
    #[arg(long)]
    attributes: Option<String>,
    /// Limit the tasks of the agents to their requested CPUs.
    #[arg(long = "cgroups_enable_cfs")]
    cgroups_enable_cfs: bool,
    /// Show the features of a cluster: two teams with weights and quota, a service, and a batch job on CPUs that
    /// are promised to the service but unused.
    #[arg(long)]
    demo: bool,
}

impl Options {
    fn scheduler_port(&self) -> anyhow::Result<u16> {
        match self.scheduler_port {
            None if self.port == USUAL_PORT => self.ports().of_scheduler(SCHEDULER_PORT),
            given => Ok(given.unwrap_or(0)),
        }
    }

    fn ports(&self) -> Ports {
        let usual = if self.demo { demo::AGENTS } else { 1 };
        Ports {
            master: self.port,
            masters: self.masters,
            agent: self.agent_port,
            agents: self.agents.unwrap_or(usual),
            scheduler: self.scheduler_port.unwrap_or(0),
        }
    }
}

/// Runs until Ctrl-C, SIGTERM, or the end of a daemon that is not restarted.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    // The children end with the thread that started them: this one, the main thread.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?
        .block_on(async {
            ports::refuse_taken(options.ports())?;
            let state = StateDir::open(options.work_dir.as_deref())?;
            let mut cluster = Cluster {
                state,
                etcd: None,
                masters: Vec::new(),
                agents: Vec::new(),
                scheduler: None,
                batch_job: None,
            };
            let outcome = cluster.run(options).await;
            cluster.stop().await;
            outcome
        })
}

#[derive(Debug)]
struct Cluster {
    state: StateDir,
    /// The etcd of several masters.
    etcd: Option<Daemon>,
    masters: Vec<Daemon>,
    agents: Vec<Daemon>,
    scheduler: Option<Daemon>,
    /// The last command of the demonstration, which ends with the cluster.
    batch_job: Option<Child>,
}

impl Cluster {
    async fn run(&mut self, options: &Options) -> anyhow::Result<ExitCode> {
        let mut interrupt = signal(SignalKind::interrupt()).context("failed to watch SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("failed to watch SIGTERM")?;
        // The terminal is gone: the daemons would continue without a process that ends them in order.
        let mut hangup = signal(SignalKind::hangup()).context("failed to watch SIGHUP")?;
        tokio::select! {
            started = self.start(options) => started?,
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = hangup.recv() => return Ok(ExitCode::SUCCESS),
        }
        self.print_welcome().await;
        if options.demo {
            tokio::select! {
                shown = self.show_demo() => shown?,
                _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
                _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
                _ = hangup.recv() => return Ok(ExitCode::SUCCESS),
            }
        }
        tokio::select! {
            ended = self.any_ends() => bail!(ended),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        terminal::note!("\nstopping: tasks first, then agents and master");
        Ok(ExitCode::SUCCESS)
    }

    async fn start(&mut self, options: &Options) -> anyhow::Result<()> {
        if options.masters == 1 {
            self.start_the_master(options).await?;
        } else {
            self.start_masters(options).await?;
        }
        let masters = self.addresses();
        for index in 0..options.ports().agents {
            let name = format!("agent {}", index + 1);
            let dir = self.state.path.join(format!("agent-{}", index + 1));
            let flags = agent_flags(options, index, &dir, &masters)?;
            let at_its_end = match options.ports().agents {
                1 => AtItsEnd::AgainAfterSuccess,
                _ => AtItsEnd::Again,
            };
            let mut agent = Daemon::start(&name, "agent", &dir, flags, at_its_end).await?;
            agent.keep_port();
            self.agents.push(agent);
        }
        if !options.no_scheduler {
            self.scheduler = Some(self.start_scheduler(options, &masters).await?);
        }
        Ok(())
    }

    async fn start_scheduler(&self, options: &Options, masters: &str) -> anyhow::Result<Daemon> {
        let dir = self.state.path.join("scheduler");
        let flags = vec![
            format!("--port={}", options.scheduler_port()?),
            format!("--master={masters}"),
        ];
        let started = Daemon::start("scheduler", "scheduler", &dir, flags, AtItsEnd::Again);
        let mut scheduler = started.await?;
        scheduler.keep_port();
        Ok(scheduler)
    }

    async fn start_the_master(&mut self, options: &Options) -> anyhow::Result<()> {
        let dir = self.state.path.join("master");
        let flags = vec![
            format!("--port={}", options.port),
            "--registry=embedded".to_owned(),
        ];
        let master = Daemon::start("master", "master", &dir, flags, AtItsEnd::Fail);
        self.masters.push(master.await?);
        Ok(())
    }

    async fn start_masters(&mut self, options: &Options) -> anyhow::Result<()> {
        let etcd = etcd::start(&self.state.path.join("etcd")).await?;
        let endpoint = etcd.url.clone();
        self.etcd = Some(etcd);
        for index in 0..options.masters {
            let port = options.ports().of_master(index)?;
            let flags = vec![
                format!("--port={port}"),
                "--registry=etcd".to_owned(),
                format!("--etcd_endpoints={endpoint}"),
            ];
            let name = format!("master {}", index + 1);
            let dir = self.state.path.join(format!("master-{}", index + 1));
            let mut master = Daemon::start(&name, "master", &dir, flags, AtItsEnd::Again).await?;
            master.keep_port();
            self.masters.push(master);
        }
        self.until_one_leads().await
    }

    async fn until_one_leads(&self) -> anyhow::Result<()> {
        let end = tokio::time::Instant::now() + ELECTION_LIMIT;
        loop {
            match self.leader().await {
                Ok(_) => return Ok(()),
                Err(error) if tokio::time::Instant::now() >= end => return Err(error.into()),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn leader(&self) -> Result<String, meseta_daemon::leader::NoLeader> {
        let addresses: Vec<_> = self.masters.iter().map(Daemon::address).collect();
        let addresses: Vec<_> = addresses.into_iter().map(str::to_owned).collect();
        meseta_daemon::leader::find(&addresses, None).await
    }

    /// Prints the addresses and the next steps.
    async fn print_welcome(&self) {
        let leader = match self.masters.as_slice() {
            [] => return,
            [only] => only.address().to_owned(),
            _ => self.leader().await.unwrap_or_default(),
        };
        let kept = if self.state.temporary {
            "removed at the end; --work_dir=DIR keeps it"
        } else {
            "kept"
        };
        let flag = self.master_flag();
        let targets = self
            .masters
            .iter()
            .chain(&self.agents)
            .chain(&self.scheduler);
        let targets: Vec<_> = targets.map(|one| format!("{}/metrics", one.url)).collect();
        let me = invoked_as();
        terminal::note!(
            "meseta is up on loopback.\n\n{}  state    {} ({kept})\n  tasks    {}\n\n\
             Page:       http://{leader}/\n\
             State:      curl {}\n\
             Prometheus: {}\n\
             Next, in another terminal:\n\n  \
             {me} execute{flag} --command='echo hello; cat /proc/self/cgroup' --resources='cpus:0.5;mem:64'\n{}{}\n\
             Ctrl-C ends the tasks, the agents and the master.",
            self.where_all_is(&leader),
            self.state.path.display(),
            isolation(),
            shell_word(format!("http://{leader}/state")),
            targets.join(" "),
            self.job_hint(&me),
            self.failover_hint(),
        );
    }

    /// Returns the addresses of the masters, in the form of `--master`.
    fn addresses(&self) -> String {
        let masters: Vec<_> = self.masters.iter().map(Daemon::address).collect();
        masters.join(",")
    }

    /// Returns the flag with which verbs find the masters; empty if they are at the usual address.
    fn master_flag(&self) -> String {
        match self.addresses() {
            only if only == usual_master() => String::new(),
            others => format!(" {}", shell_word(format!("--master={others}"))),
        }
    }

    /// Runs the commands of the demonstration, and explains their effects.
    async fn show_demo(&mut self) -> anyhow::Result<()> {
        let flag = self.master_flag();
        terminal::note!(
            "\ndemonstration: two teams, `shop` and `science`; `meseta local` now runs these \
            commands:\n"
        );
        let me = invoked_as();
        self.batch_job = demo::run(&self.addresses(), (&me, &flag)).await?;
        terminal::note!(
            "\nThe batch job runs on CPUs that the website reserves but does not use. It starts \
            in about 20 seconds, unless this machine is busy.\nLook:\n\n  {me} tasks{flag}\n  \
            {me} top{flag}\n  \
             {me} roles{flag}\n  {me} quota{flag}"
        );
        Ok(())
    }

    /// Returns a line for each daemon.
    fn where_all_is(&self, leader: &str) -> String {
        let several = self.masters.len() > 1;
        let mut lines = String::new();
        for master in &self.masters {
            let role = match (several, master.address() == leader) {
                (true, true) => "   leads",
                _ => "",
            };
            let gap = if several { "" } else { "  " };
            lines += &format!("  {} {gap}{}{role}\n", master.name, master.url);
        }
        for agent in &self.agents {
            lines += &format!("  {}  {}\n", agent.name, agent.url);
        }
        if let Some(scheduler) = &self.scheduler {
            lines += &format!("  jobs     {}\n", scheduler.url);
        }
        if let Some(etcd) = &self.etcd {
            lines += &format!("  etcd     {}\n", etcd.url);
        }
        lines
    }

    /// Returns the hint for a first job.
    fn job_hint(&self, me: &str) -> String {
        let Some(scheduler) = &self.scheduler else {
            return String::new();
        };
        let flag = match scheduler.address().rsplit_once(':') {
            Some((_, port)) if port == SCHEDULER_PORT.to_string() => String::new(),
            _ => {
                let flag = format!("--scheduler={}", scheduler.address());
                format!(" {}", shell_word(flag))
            }
        };
        format!(
            "  printf 'name = \"hello\"\\n[task]\\ncommand = \"echo hello; sleep 600\"\\n' >hello.toml && {me} run{flag} hello.toml\n"
        )
    }

    /// Returns the hint for several masters.
    fn failover_hint(&self) -> &'static str {
        if self.masters.len() > 1 {
            "\nKill the master that leads with `kill -9`: another master leads within ten seconds, and tasks continue. `curl ADDRESS/leader` shows the role of each master.\n"
        } else {
            ""
        }
    }

    /// Waits until a daemon ends that is not started again, and returns its name.
    async fn any_ends(&mut self) -> String {
        let mut told = false;
        loop {
            let all = self.etcd.iter_mut().chain(&mut self.masters);
            for daemon in all.chain(&mut self.agents).chain(&mut self.scheduler) {
                match daemon.look() {
                    Ok(Found::Running) => {}
                    Ok(Found::ToldToEnd) => {
                        if !std::mem::replace(&mut told, true) {
                            terminal::note!(
                                "meseta: the {} ended on request of its master; it restarts once \
                                the master permits this, for example after `meseta maintenance up`",
                                daemon.name
                            );
                        }
                    }
                    Ok(Found::Ended(status)) => {
                        terminal::note!("meseta: {} ended ({status}); restarting it", daemon.name);
                    }
                    Ok(Found::Failed(status)) => {
                        return format!(
                            "the {} ended by itself ({status}); its log is above",
                            daemon.name
                        );
                    }
                    Err(error) => return format!("{error:#}"),
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops the daemons: agents first, since they end the tasks and report to the master; then the masters, their etcd,
    /// and the files.
    async fn stop(&mut self) {
        end(self.scheduler.as_mut_slice()).await;
        end(&mut self.agents).await;
        end(&mut self.masters).await;
        end(self.etcd.as_mut_slice()).await;
        self.state.close();
    }
}

/// Returns the isolation of tasks on this machine.
fn isolation() -> String {
    match meseta_agent::weak_isolation() {
        None => "isolated by cgroups, namespaces, capabilities and a system call filter".to_owned(),
        Some(weakness) => format!("WEAK isolation: {weakness}"),
    }
}

async fn end(daemons: &mut [Daemon]) {
    for daemon in daemons.iter() {
        daemon.terminate();
    }
    for daemon in daemons {
        daemon.wait().await;
    }
}

/// Returns a word to paste into a shell, in which the brackets of an IPv6 address are a pattern.
fn shell_word(word: String) -> String {
    match word.contains('[') {
        true => format!("'{word}'"),
        false => word,
    }
}

fn agent_flags(
    options: &Options,
    index: u16,
    dir: &Path,
    masters: &str,
) -> anyhow::Result<Vec<String>> {
    let port = options.ports().of_agent(index)?;
    let mut flags = vec![
        format!("--port={port}"),
        format!("--master={masters}"),
        format!("--runtime_dir={}", dir.join("run").display()),
        // The output warns the user, who needs no flag.
        "--allow_weak_isolation".to_owned(),
        "--shutdown_tasks_on_exit".to_owned(),
    ];
    let for_demo = options.demo.then_some(demo::RESOURCES);
    let given = options.resources.as_deref().or(for_demo);
    let inherited = crate::flags::environment("MESETA_RESOURCES");
    let inherited = inherited.and_then(|text| text.into_string().ok());
    let which = (index, options.ports().agents);
    let resources = task_ports::resources_of_agent(which, given, inherited.as_deref(), dir)?;
    flags.extend(resources.map(|text| format!("--resources={text}")));
    let attributes = attributes(options, index);
    flags.extend(attributes.map(|text| format!("--attributes={text}")));
    if options.demo {
        flags.extend(demo::oversubscription());
    }
    let cfs = options.cgroups_enable_cfs;
    flags.extend(cfs.then(|| "--cgroups_enable_cfs".to_owned()));
    Ok(flags)
}

/// Returns the given attributes, and a rack if there are several agents and none is given.
fn attributes(options: &Options, index: u16) -> Option<String> {
    let given = options.attributes.as_deref();
    let names_rack = given.is_some_and(|text| text.split(';').any(|one| one.starts_with("rack:")));
    if options.ports().agents < 2 || names_rack {
        return given.map(str::to_owned);
    }
    let rack = format!("rack:r{}", index + 1);
    Some(given.map_or(rack.clone(), |given| format!("{given};{rack}")))
}

/// Returns the user's name for this program, shortened to a form that can be pasted here.
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    /// Regression: the port was ignored.
    #[test]
    fn port_requires_a_running_scheduler() {
        let parse = |line: &str| {
            let line = line.split(' ').map(OsString::from).collect();
            crate::flags::parse(line).map_err(|refusal| refusal.to_string())
        };
        parse("meseta local --no-scheduler").expect("understood");
        parse("meseta local --scheduler_port=5071").expect("understood");
        let error =
            parse("meseta local --no-scheduler --scheduler-port=5071").expect_err("refused");
        assert!(error.contains("--scheduler_port"), "{error}");
    }
}
