//! A master and agents with their own work directories and cgroup root.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, binary};
use crate::framework::{Encoding, Framework, framework_info};
use crate::small_disk::SmallDisk;
use crate::wait::eventually;
use crate::{http, kernel};

/// The time for an agent to end its tasks, including stubborn ones.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The time for an agent to answer whether it is registered.
const ASK_LIMIT: Duration = Duration::from_secs(2);

static COUNT: AtomicU32 = AtomicU32::new(0);

/// The differences from a plain cluster of one agent with `cpus:4;mem:4096`.
#[derive(Debug, Clone)]
pub struct Setup {
    pub agents: usize,
    pub master_flags: Vec<String>,
    pub agent_flags: Vec<String>,
    /// Flags of single agents by index, in addition to the flags of all.
    pub flags_of_each: Vec<Vec<String>>,
    /// The port of the first agent, kept after a restart; a free port if unset.
    pub agent_port: Option<u16>,
    /// The separate file system for the master's work directory; needs root.
    pub master_disk: Option<SmallDisk>,
    /// The separate file system for the first agent's work directory; needs root.
    pub agent_disk: Option<SmallDisk>,
    /// Whether the runtime directories of agents are outside their work directories.
    pub runtime_dir_apart: bool,
    /// The runtime directory of the first agent, on a file system of its own; needs root.
    pub runtime_disk: Option<SmallDisk>,
    /// The limit of an agent's descriptors; needs `prlimit`.
    pub agent_descriptors: Option<u32>,
    /// The prefix of the agents' command line: a program that executes the rest of its own.
    pub agent_prefix: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            agents: 1,
            master_flags: Vec::new(),
            agent_flags: vec!["--resources=cpus:4;mem:4096;disk:4096;ports:[31000-31999]".into()],
            flags_of_each: Vec::new(),
            agent_port: None,
            master_disk: None,
            agent_disk: None,
            runtime_dir_apart: false,
            runtime_disk: None,
            agent_descriptors: None,
            agent_prefix: Vec::new(),
        }
    }
}

/// All processes of one test.
#[derive(Debug)]
pub struct Cluster {
    pub master: Daemon,
    pub agents: Vec<Daemon>,
    pub dir: TempDir,
    pub cgroups_root: String,
    setup: Setup,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::start(Setup::default())
    }
}

impl Cluster {
    /// Starts the daemons and waits until every agent is registered.
    pub fn start(setup: Setup) -> Self {
        let dir = TempDir::with_prefix("meseta-test-").expect("a temporary directory");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroups_root = format!("meseta-test-{}-{number}", std::process::id());
        let mut flags = vec!["--port=0".to_owned()];
        flags.extend(setup.master_flags.iter().cloned());
        let master_dir = dir.path().join("master");
        if let Some(disk) = setup.master_disk {
            disk.mount_at(&master_dir);
        }
        let master = Daemon::start("master", &master_dir, &flags);
        let mut cluster = Self {
            master,
            agents: Vec::new(),
            dir,
            cgroups_root,
            setup,
        };
        for (dir, disk) in cluster.small_disks() {
            disk.mount_at(&dir);
        }
        for index in 0..cluster.setup.agents {
            let agent = cluster.start_agent(index);
            cluster.agents.push(agent);
        }
        cluster.wait_for_agents(cluster.setup.agents);
        cluster
    }

    pub fn agent(&self) -> &Daemon {
        &self.agents[0]
    }

    /// Returns the work directory of an agent.
    pub fn agent_dir(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("agent-{index}"))
    }

    /// Returns the runtime directory of an agent, if it is outside the work directory.
    pub fn runtime_dir_apart(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("run-{index}"))
    }

    /// Returns the work directory of the master.
    pub fn master_dir(&self) -> PathBuf {
        self.dir.path().join("master")
    }

    /// Returns the first agent's separate file systems, with their paths.
    pub(crate) fn small_disks(&self) -> Vec<(PathBuf, SmallDisk)> {
        let (work, runtime) = (self.setup.agent_disk, self.setup.runtime_disk);
        let work = work.map(|disk| (self.agent_dir(0), disk));
        let runtime = runtime.map(|disk| (self.runtime_dir_apart(0), disk));
        [work, runtime].into_iter().flatten().collect()
    }

    fn start_agent(&self, index: usize) -> Daemon {
        let limit = self.setup.agent_descriptors;
        let mut prefix = self.setup.agent_prefix.clone();
        prefix.extend(
            limit
                .into_iter()
                .flat_map(|count| ["prlimit".to_owned(), format!("--nofile={count}:{count}")]),
        );
        let flags = self.agent_flags(index);
        Daemon::start_under(&prefix, "agent", &self.agent_dir(index), &flags)
    }

    fn agent_flags(&self, index: usize) -> Vec<String> {
        let dir = self.agent_dir(index);
        let is_apart = self.setup.runtime_dir_apart || self.setup.runtime_disk.is_some();
        let runtime_dir = match is_apart {
            true => self.runtime_dir_apart(index),
            false => dir.join("run"),
        };
        let mut flags = vec![
            format!("--port={}", self.setup.agent_port.unwrap_or_default()),
            format!("--master={}", self.master.address()),
            format!("--runtime_dir={}", runtime_dir.display()),
            format!("--cgroups_root={}", self.cgroups_root),
            "--shutdown_tasks_on_exit".to_owned(),
        ];
        flags.extend(self.setup.agent_flags.iter().cloned());
        let own = self.setup.flags_of_each.get(index);
        flags.extend(own.into_iter().flatten().cloned());
        flags
    }

    /// Starts a killed agent, and finds it by its port: its disk may have no room for the file with its address.
    pub fn start_agent_unannounced(&mut self, index: usize) {
        let url = self.agents[index].url.clone();
        let flags = self.agent_flags(index);
        self.agents[index] = Daemon::start_at(&url, "agent", &self.agent_dir(index), &flags);
    }

    /// Kills an agent with SIGKILL, ended or not, and starts it at the same address without waiting.
    pub fn respawn_agent(&mut self, index: usize) {
        self.agents[index].kill();
        let url = self.agents[index].url.clone();
        let flags = self.agent_flags(index);
        let prefix = &self.setup.agent_prefix;
        let dir = self.agent_dir(index);
        self.agents[index] = Daemon::spawn_at(&url, prefix, "agent", &dir, &flags);
    }

    /// Kills an agent with SIGKILL, and starts it with the same work directory.
    pub fn restart_agent(&mut self, index: usize) {
        self.agents[index].kill();
        self.agents[index] = self.start_agent(index);
    }

    /// Restarts an agent, from now on with these flags instead of earlier ones of the same names.
    pub fn restart_agent_with(&mut self, index: usize, flags: &[&str]) {
        self.set_agent_flags(flags);
        self.restart_agent(index);
    }

    /// Replaces flags of the agents, from their next start on.
    pub fn set_agent_flags(&mut self, flags: &[&str]) {
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let new: Vec<_> = flags.iter().map(|flag| name(flag)).collect();
        let known = &mut self.setup.agent_flags;
        known.retain(|flag| !new.contains(&name(flag)));
        known.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// Kills the master with SIGKILL, and starts it on the same port with the same work directory.
    pub fn restart_master(&mut self) {
        let port = self
            .master
            .address()
            .rsplit(':')
            .next()
            .expect("a port")
            .to_owned();
        self.master.kill();
        let mut flags = vec![format!("--port={port}")];
        flags.extend(self.setup.master_flags.iter().cloned());
        self.master = Daemon::start("master", &self.dir.path().join("master"), &flags);
    }

    /// Waits until this many agents are registered and active. A killed agent stays active at the master for a while, so
    /// the agents started after it are queried too.
    pub fn wait_for_agents(&self, count: usize) {
        eventually("the agents are registered", Duration::from_secs(30), || {
            (!self.agents.iter().any(is_unregistered)).then_some(())?;
            let answer = http::try_get(&format!("{}/slaves", self.master.url)).ok()?;
            (answer.status == 200).then_some(())?;
            let body = answer.json();
            let agents = body["slaves"].as_array()?;
            let active = agents
                .iter()
                .filter(|a| a["active"] == Value::Bool(true))
                .count();
            (active == count).then_some(())
        });
    }

    /// Runs a verb of the product with this master.
    pub fn meseta(&self, verb: &str, args: &[&str]) -> Output {
        Command::new(binary())
            .arg(verb)
            .arg(format!("--master={}", self.master.address()))
            .args(args)
            .output()
            .expect("meseta runs")
    }

    /// Starts a cluster of one agent with these resources.
    pub fn with_resources(resources: &str) -> Self {
        Self::start(Setup {
            agent_flags: vec![format!("--resources={resources}")],
            ..Setup::default()
        })
    }

    /// Starts a cluster of plain agents.
    pub fn with_agents(agents: usize) -> Self {
        Self::start(Setup {
            agents,
            ..Setup::default()
        })
    }

    /// Starts a default cluster and a framework in role `dev`, and returns them with the framework's offer.
    pub fn with_offer() -> (Self, Framework, Value) {
        let cluster = Self::default();
        let mut framework = cluster.framework();
        let offer = framework.offer();
        (cluster, framework, offer)
    }

    /// Returns the id of the first agent from the master.
    pub fn agent_id(&self) -> String {
        let slaves = self.master.page("/slaves").json();
        let id = slaves["slaves"][0]["id"].as_str();
        id.expect("an agent").to_owned()
    }

    /// Makes a call of the master's operator API with this part.
    pub fn operate(&self, kind: &str, part: &Value) -> http::Answer {
        let call = json!({"type": kind, kind.to_lowercase(): part});
        http::post_json(&format!("{}/api/v1", self.master.url), &call)
    }

    /// Subscribes a framework in role `dev` with JSON.
    pub fn framework(&self) -> Framework {
        self.subscribe(&framework_info("dev"))
    }

    /// Subscribes a framework with JSON.
    pub fn subscribe(&self, info: &Value) -> Framework {
        Framework::subscribe(&self.scheduler_url(), Encoding::Json, info)
    }

    /// Returns the URL of the scheduler API.
    pub fn scheduler_url(&self) -> String {
        format!("{}/api/v1/scheduler", self.master.url)
    }
}

/// Whether an agent answers that it is not registered: a recovering agent has no such metric. An agent that does not
/// answer, or requires credentials, does not count.
fn is_unregistered(agent: &Daemon) -> bool {
    let url = format!("{}/metrics/snapshot", agent.url);
    http::get_within(ASK_LIMIT, &url).is_ok_and(|page| match page.status {
        200 => page.json()["slave/registered"] != 1.0,
        status => status == 503,
    })
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Tasks of an ordinary user are in no group: only their agent knows all of them.
        for agent in &mut self.agents {
            agent.end(END_LIMIT);
        }
        kernel::remove_groups(&self.cgroups_root);
        let agents = self.small_disks().into_iter().map(|(dir, _)| dir);
        let master = self.setup.master_disk.map(|_| self.master_dir());
        for dir in agents.chain(master) {
            let _ = nix::mount::umount2(&dir, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
