//! The daemons, each on a host of its own, and the restart of masters that have ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meseta_tests::daemon::Daemon;
use meseta_tests::kernel;
use meseta_tests::network::{self, Host};
use tempfile::TempDir;

use crate::board::Board;
use crate::etcd::Etcd;
use crate::offers::AGENT_CPUS;
use crate::options::Options;

pub(crate) const MASTERS: u8 = 3;
/// The first host numbers of each kind.
const MASTER_HOSTS: u8 = 11;
const ETCD_HOSTS: u8 = 21;
const AGENT_HOSTS: u8 = 31;
const MASTER_PORT: u16 = 5050;
const AGENT_PORT: u16 = 5051;
const LOG: &str = "info,h2=warn,hyper=warn,tower=warn";
/// The pause before a master that has ended is started again, as by a service manager.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
/// The time that an agent has to end its tasks.
const END_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) host: Host,
    pub(crate) daemon: Daemon,
    /// The time since when it is known to have ended.
    ended: Option<Instant>,
}

/// All processes of the cluster. The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) masters: Vec<Master>,
    pub(crate) agents: Vec<Daemon>,
    pub(crate) etcd: Etcd,
    pub(crate) cgroups_root: String,
    _agent_hosts: Vec<Host>,
    dir: Option<TempDir>,
    path: PathBuf,
}

/// Returns the URLs of the masters.
pub(crate) fn master_urls() -> Vec<String> {
    let url = |number| {
        format!(
            "http://{}:{MASTER_PORT}",
            network::address(MASTER_HOSTS + number)
        )
    };
    (0..MASTERS).map(url).collect()
}

fn hosts(first: u8, count: u8) -> anyhow::Result<Vec<Host>> {
    (first..first + count).map(Host::new).collect()
}

impl Cluster {
    pub(crate) fn start(options: &Options) -> anyhow::Result<Self> {
        let dir = TempDir::with_prefix("meseta-failovers-")?;
        let path = dir.path().to_owned();
        std::fs::create_dir(path.join("marks"))?;
        let etcd = Etcd::start(hosts(ETCD_HOSTS, options.members)?, path.clone())?;
        let mut masters = Vec::new();
        for (number, host) in hosts(MASTER_HOSTS, MASTERS)?.into_iter().enumerate() {
            let daemon = start_master(&path, number, &host, &etcd);
            masters.push(Master {
                host,
                daemon,
                ended: None,
            });
        }
        let cgroups_root = format!("meseta-failovers-{}", std::process::id());
        let agent_hosts = hosts(AGENT_HOSTS, options.agents)?;
        let mut cluster = Self {
            masters,
            agents: Vec::new(),
            etcd,
            cgroups_root,
            _agent_hosts: Vec::new(),
            dir: Some(dir),
            path,
        };
        for (number, host) in agent_hosts.iter().enumerate() {
            let agent = cluster.start_agent(number, host);
            cluster.agents.push(agent);
        }
        cluster._agent_hosts = agent_hosts;
        Ok(cluster)
    }

    fn start_agent(&self, number: usize, host: &Host) -> Daemon {
        let masters = master_urls().join(",").replace("http://", "");
        let dir = self.path.join(format!("agent{number}"));
        let flags = [
            format!("--ip={}", host.address),
            format!("--port={AGENT_PORT}"),
            format!("--hostname={}", host.address),
            "--insecure".to_owned(),
            format!("--master={masters}"),
            format!("--runtime_dir={}", dir.join("run").display()),
            format!("--cgroups_root={}", self.cgroups_root),
            format!("--resources=cpus:{AGENT_CPUS};mem:8192;disk:1024"),
            // Sandboxes of short tasks would fill a small disk.
            "--gc_delay=20secs".to_owned(),
            "--shutdown_tasks_on_exit".to_owned(),
        ];
        Daemon::start_under_logging(&host.prefix(), "agent", &dir, &flags, LOG)
    }

    pub(crate) fn marks(&self) -> PathBuf {
        self.path.join("marks")
    }

    /// Restarts masters that ended some time ago; must be called continually.
    pub(crate) fn tend(&mut self, board: &Board) {
        for (number, master) in self.masters.iter_mut().enumerate() {
            if !master.daemon.has_ended() {
                continue;
            }
            let ended = *master.ended.get_or_insert_with(Instant::now);
            if ended.elapsed() >= RESTART_PAUSE {
                master.ended = None;
                board.restarts(number);
                master.daemon = start_master(&self.path, number, &master.host, &self.etcd);
            }
        }
    }

    /// Returns the processes of the long tasks by number: the pid, and the start time.
    pub(crate) fn long_processes(&self) -> std::collections::BTreeMap<usize, (i32, u64)> {
        let pids = kernel::tasks_below(&self.cgroups_root).into_iter();
        let identity = |pid: i32| {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let number: usize = command
                .strip_prefix("sleep\0")?
                .trim_matches('\0')
                .parse()
                .ok()?;
            let number = number.checked_sub(crate::scheduler::long_sleep(0))?;
            Some((number, (pid, kernel::start_time(pid)?)))
        };
        pids.filter_map(identity).collect()
    }

    /// Keeps the directory with all logs.
    pub(crate) fn keep(&mut self) -> &Path {
        if let Some(dir) = self.dir.take() {
            let _path = dir.keep();
        }
        &self.path
    }
}

fn start_master(path: &Path, number: usize, host: &Host, etcd: &Etcd) -> Daemon {
    let flags = [
        format!("--ip={}", host.address),
        format!("--port={MASTER_PORT}"),
        format!("--hostname={}", host.address),
        "--insecure".to_owned(),
        "--registry=etcd".to_owned(),
        format!("--etcd_endpoints={}", etcd.endpoints()),
    ];
    let dir = path.join(format!("master{number}"));
    Daemon::start_under_logging(&host.prefix(), "master", &dir, &flags, LOG)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            agent.end(END_LIMIT);
        }
        kernel::remove_groups(&self.cgroups_root);
    }
}
