//! The daemons: a master and three nodes in a network of their own, with credentials and rules.
//!
//! The network namespace has addresses that are not loopback, so that the limits by address count, and no other machine can
//! reach it. The resources of one node are reserved, role by role, so that floods and the measured framework share daemons
//! but not resources.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use meseta_access::basic;
use meseta_tests::daemon::{Daemon, binary};
use meseta_tests::{kernel, network, secure, wait};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::bench::lock;
use crate::options::{Budget, Options};
use crate::sockets::Client;

/// The address of the daemons and of all well-behaved clients.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address from which this program queries the daemons.
pub(crate) const OPERATOR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const MASTER_PORT: u16 = 5050;
const AGENT_PORT: u16 = 5051;
const SCHEDULER_PORT: u16 = 5070;
/// The time that an agent has to end its tasks.
const END_LIMIT: Duration = Duration::from_secs(20);
/// The time within which a restarted agent has to be back.
pub(crate) const REGISTER_LIMIT: Duration = Duration::from_secs(60);

/// The node that only the measured framework uses.
pub(crate) const OWN: usize = 0;
/// The node that floods target and of which the measured framework has a share.
pub(crate) const SHARED: usize = 1;
/// The node that is stopped, killed and restarted.
pub(crate) const VICTIM: usize = 2;
pub(crate) const NODES: [&str; 3] = ["own", "shared", "victim"];

/// The measured framework's roles: on its own node, and on the shared one.
pub(crate) const MEASURED: &str = "measured";
pub(crate) const GUEST: &str = "guest";
/// The role of jobs that are measured, on the own node.
pub(crate) const JOBS: &str = "jobs";
const SHARED_ROLES: [&str; 6] = [
    GUEST,
    "unread-executors",
    "executor-messages",
    "downloads",
    "silent-fetches",
    "hung-checks",
];
const VICTIM_ROLES: [&str; 2] = ["large-launches", "large-statuses"];
/// Principals that are each used for the first time in the midst of guesses.
pub(crate) const NEWCOMERS: usize = 20;

/// Rules, of any content, by which the views are filtered.
const ACLS: &str = r#"{"permissive": true,
    "view_frameworks": [{"principals": {"values": ["measured"]}, "users": {"type": "ANY"}}]}"#;

#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) dir: TempDir,
    cgroups_root: String,
    options: Options,
    master: Option<Mutex<Daemon>>,
    nodes: Vec<Mutex<Daemon>>,
    scheduler: Option<Mutex<Daemon>>,
    /// Held by the flood that stops or kills the victim.
    pub(crate) victim: Mutex<()>,
}

/// Moves this process and all its children to a separate network; must be called before threads exist.
pub(crate) fn leave_network() -> anyhow::Result<()> {
    network::leave()?;
    let address = format!("{ADDRESS}/32");
    network::ip(&["address", "add", &address, "dev", "lo"])?;
    // Every address of this range is local, for clients from many addresses.
    network::ip(&["route", "add", "local", "198.18.0.0/16", "dev", "lo"])
}

/// Returns an address of a hostile client: each flood has its own group.
pub(crate) fn client_address(group: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, group, number)
}

/// Returns the `Authorization` header of a principal.
pub(crate) fn authorization(principal: &str) -> String {
    basic::header(principal, secret(principal).as_bytes())
}

fn secret(principal: &str) -> String {
    format!("{principal}-secret")
}

pub(crate) fn newcomer(number: usize) -> String {
    format!("newcomer-{number}")
}

impl Fleet {
    pub(crate) fn start(options: &Options) -> anyhow::Result<Self> {
        let dir = TempDir::with_prefix("meseta-floods-")?;
        write_credentials(&dir)?;
        let mut fleet = Self {
            cgroups_root: format!("meseta-floods-{}", std::process::id()),
            options: options.clone(),
            master: None,
            nodes: Vec::new(),
            scheduler: None,
            victim: Mutex::new(()),
            dir,
        };
        fleet.master = Some(Mutex::new(fleet.start_master()));
        for index in 0..NODES.len() {
            let daemon = fleet.start_node(index);
            fleet.nodes.push(Mutex::new(daemon));
        }
        let is_there = |index| fleet.is_registered(index);
        let all = || (0..NODES.len()).all(is_there).then_some(());
        wait::eventually("the nodes are registered", REGISTER_LIMIT, all);
        fleet.scheduler = Some(Mutex::new(fleet.start_scheduler()));
        Ok(fleet)
    }

    fn start_master(&self) -> Daemon {
        let mut flags = vec![
            format!("--ip={ADDRESS}"),
            format!("--port={MASTER_PORT}"),
            "--insecure".to_owned(),
            "--authenticate_http_frameworks".to_owned(),
            "--authenticate_agents".to_owned(),
            format!("--credentials={}", self.path("credentials").display()),
            format!("--acls={ACLS}"),
        ];
        flags.extend(budget_flag("master", self.options.master_budget.as_ref()));
        Daemon::start_logging("master", &self.path("master"), &flags, LOG)
    }

    /// The scheduler of jobs, by credentials of its own, for all principals of the cluster.
    fn start_scheduler(&self) -> Daemon {
        let flags = [
            format!("--ip={ADDRESS}"),
            format!("--port={SCHEDULER_PORT}"),
            "--insecure".to_owned(),
            format!("--master={ADDRESS}:{MASTER_PORT}"),
            format!("--credential={}", self.path("node.credential").display()),
            format!("--http_credentials={}", self.path("credentials").display()),
            "--authenticate_http_readonly".to_owned(),
            "--authenticate_http_readwrite".to_owned(),
            format!("--acls={ACLS}"),
        ];
        Daemon::start_logging("scheduler", &self.path("scheduler"), &flags, LOG)
    }

    fn start_node(&self, index: usize) -> Daemon {
        let dir = self.path(NODES[index]);
        let mut flags = vec![
            format!("--ip={ADDRESS}"),
            format!("--port={}", self.node_address(index).port()),
            "--insecure".to_owned(),
            format!("--master={ADDRESS}:{MASTER_PORT}"),
            format!("--credential={}", self.path("node.credential").display()),
            format!("--runtime_dir={}", dir.join("run").display()),
            format!("--cgroups_root={}", self.cgroups_root),
            format!("--resources={}", resources(index)),
            // Half an hour of sandboxes would fill a small disk.
            "--gc_delay=20secs".to_owned(),
            "--executor_reregistration_timeout=5secs".to_owned(),
            "--shutdown_tasks_on_exit".to_owned(),
        ];
        flags.extend(budget_flag("agent", self.options.agent_budget.as_ref()));
        Daemon::start_logging("agent", &dir, &flags, LOG)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn master_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(ADDRESS, MASTER_PORT)
    }

    pub(crate) fn scheduler_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(ADDRESS, SCHEDULER_PORT)
    }

    pub(crate) fn node_address(&self, index: usize) -> SocketAddrV4 {
        let port = AGENT_PORT + u16::try_from(index).unwrap_or_default();
        SocketAddrV4::new(ADDRESS, port)
    }

    fn master(&self) -> Option<MutexGuard<'_, Daemon>> {
        self.master.as_ref().map(lock)
    }

    fn scheduler(&self) -> Option<MutexGuard<'_, Daemon>> {
        self.scheduler.as_ref().map(lock)
    }

    /// Returns the daemons' names and process ids; a daemon in a restart has its earlier id.
    pub(crate) fn processes(&self) -> Vec<(&'static str, i32)> {
        let master = self.master().map(|daemon| ("master", daemon.pid()));
        let nodes = NODES.iter().zip(&self.nodes);
        let nodes = nodes.map(|(name, node)| (*name, lock(node).pid()));
        let scheduler = self.scheduler().map(|daemon| ("scheduler", daemon.pid()));
        master.into_iter().chain(scheduler).chain(nodes).collect()
    }

    /// Returns the daemons that have ended, with the end of their logs.
    pub(crate) fn ended(&self) -> Vec<String> {
        let mut ended = Vec::new();
        let nodes = NODES.iter().copied().zip(self.nodes.iter().map(lock));
        let master = self.master().map(|daemon| ("master", daemon));
        let scheduler = self.scheduler().map(|daemon| ("scheduler", daemon));
        for (name, mut daemon) in master.into_iter().chain(scheduler).chain(nodes) {
            if daemon.has_ended() {
                let log = daemon.log_text();
                let last: Vec<_> = log.lines().rev().take(5).collect();
                ended.push(format!("{name} has ended: {last:#?}"));
            }
        }
        ended
    }

    pub(crate) fn signal_master(&self, signal: Signal) {
        if let Some(master) = self.master() {
            kernel::kill(master.pid(), signal);
        }
    }

    pub(crate) fn signal_victim(&self, signal: Signal) {
        kernel::kill(lock(&self.nodes[VICTIM]).pid(), signal);
    }

    /// Kills the victim with SIGKILL, and starts it with the same files.
    pub(crate) fn restart_victim(&self) {
        let mut victim = lock(&self.nodes[VICTIM]);
        victim.kill();
        *victim = self.start_node(VICTIM);
    }

    /// Whether the master has this node as active.
    pub(crate) fn is_registered(&self, index: usize) -> bool {
        let mut client = Client::new(self.master_address(), Some(OPERATOR));
        let Ok(reply) = client.send("GET /slaves", &[], b"") else {
            return false;
        };
        let page: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let port = self.node_address(index).port();
        let slaves = page["slaves"].as_array();
        let mut slaves = slaves.into_iter().flatten();
        slaves.any(|slave| slave["active"] == true && slave["port"] == port)
    }
}

impl Fleet {
    /// Whether an agent itself reports that it is registered: the master's report may concern its earlier life.
    pub(crate) fn says_registered(&self, index: usize) -> bool {
        let mut client = Client::new(self.node_address(index), Some(OPERATOR));
        let Ok(reply) = client.send("GET /metrics/snapshot", &[], b"") else {
            return false;
        };
        let page: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        page["slave/registered"].as_f64() == Some(1.0)
    }
}

/// Returns the flag for a budget, if the daemon has one; otherwise the budget is only compared with its resident memory.
fn budget_flag(verb: &str, budget: Option<&Budget>) -> Option<String> {
    let budget = budget?;
    let help = Command::new(binary()).args([verb, "--help"]).output();
    let help = help.map(|output| output.stdout).unwrap_or_default();
    let knows = String::from_utf8_lossy(&help).contains("--memory_budget");
    knows.then(|| format!("--memory_budget={}", budget.text))
}

/// The daemons log events of interest to an operator, not every step.
const LOG: &str = "info";

fn resources(index: usize) -> String {
    let roles: &[&str] = match index {
        OWN => &[MEASURED, JOBS],
        SHARED => &SHARED_ROLES,
        _ => &VICTIM_ROLES,
    };
    let one = |role| format!("cpus({role}):200;mem({role}):200000;disk({role}):1000");
    let all: Vec<_> = roles.iter().map(one).collect();
    // Ports are specified, so that they are not detected and offered to all frameworks.
    format!("{};ports({}):[31000-31009]", all.join(";"), roles[0])
}

fn write_credentials(dir: &TempDir) -> anyhow::Result<()> {
    let mut names = vec![MEASURED.to_owned(), "node".to_owned(), "flood".to_owned()];
    names.extend((0..NEWCOMERS).map(newcomer));
    let principals: Vec<_> = names
        .iter()
        .map(|name| (name.clone(), secret(name)))
        .collect();
    let principals: Vec<_> = principals
        .iter()
        .map(|(n, s)| (n.as_str(), s.as_str()))
        .collect();
    secure::credentials(&dir.path().join("credentials"), &principals);
    let own = format!("node {}\n", secret("node"));
    secure::write_private(&dir.path().join("node.credential"), &own);
    Ok(())
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Stopped processes must continue to end.
        for (_, pid) in self.processes() {
            kernel::kill(pid, Signal::SIGCONT);
        }
        if let Some(mut scheduler) = self.scheduler() {
            scheduler.end(END_LIMIT);
        }
        for node in &self.nodes {
            lock(node).end(END_LIMIT);
        }
        if let Some(mut master) = self.master() {
            master.end(END_LIMIT);
        }
        kernel::remove_groups(&self.cgroups_root);
    }
}
