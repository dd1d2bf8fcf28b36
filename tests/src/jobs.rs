//! Schedulers of jobs beside a cluster: one with a file, or several on etcd; started, queried, killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, free_port};
use crate::masters::Etcd;
use crate::wait::eventually;
use crate::{Cluster, http, leadership};

/// A scheduler with its state in the cluster's directory.
#[derive(Debug)]
pub struct Scheduler {
    pub daemon: Daemon,
    flags: Vec<String>,
}

impl Scheduler {
    /// Starts a scheduler for the cluster's master.
    pub fn start(cluster: &Cluster) -> Self {
        let flags = vec![
            "--port=0".to_owned(),
            format!("--master={}", cluster.master.address()),
        ];
        Self {
            daemon: Daemon::start("scheduler", &work_dir(cluster), &flags),
            flags,
        }
    }

    /// Kills the scheduler with SIGKILL, and starts it with the same work directory.
    pub fn restart(&mut self, cluster: &Cluster) {
        self.daemon.kill();
        self.daemon = Daemon::start("scheduler", &work_dir(cluster), &self.flags);
    }

    /// Submits a job in the JSON form of its file, and returns its version.
    pub fn submit(&self, job: &Value) -> u64 {
        submit(&self.daemon.url, job)
    }

    /// Returns the view of a job; `None` while the scheduler does not answer or has no such job.
    pub fn job(&self, name: &str) -> Option<Value> {
        job(&self.daemon.url, name)
    }

    /// Waits until a job has this state and version.
    pub fn wait_for(&self, name: &str, state: &str, version: u64, limit: Duration) -> Value {
        wait_for(|| self.job(name), name, state, version, limit)
    }
}

/// Several schedulers that share their jobs in an etcd. The fields are dropped in this order.
#[derive(Debug)]
pub struct Schedulers {
    pub all: Vec<Daemon>,
    pub etcd: Etcd,
    dir: TempDir,
    flags: Vec<String>,
}

impl Schedulers {
    /// Starts schedulers for the cluster's master, and waits until one leads and all know it.
    pub fn start(cluster: &Cluster, count: usize) -> Self {
        let dir = TempDir::with_prefix("meseta-test-").expect("a temporary directory");
        let etcd = Etcd::start(dir.path());
        let flags = vec![
            "--store=etcd".to_owned(),
            format!("--etcd_endpoints={}", etcd.url),
            // A leader survives a pause of some seconds.
            "--etcd_lease_ttl=8secs".to_owned(),
            format!("--master={}", cluster.master.address()),
        ];
        let mut schedulers = Self {
            all: Vec::new(),
            etcd,
            dir,
            flags,
        };
        for index in 0..count {
            let started = schedulers.start_one(index, free_port());
            schedulers.all.push(started);
        }
        leadership::until_all_know(&schedulers.all);
        schedulers
    }

    fn start_one(&self, index: usize, port: u16) -> Daemon {
        let mut flags = self.flags.clone();
        flags.push(format!("--port={port}"));
        let dir = self.dir.path().join(format!("scheduler-{index}"));
        Daemon::start("scheduler", &dir, &flags)
    }

    /// Kills a scheduler with SIGKILL, and starts it at the same address.
    pub fn restart(&mut self, index: usize) {
        self.all[index].kill();
        let port = self.all[index].address().rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok()).expect("a port");
        self.all[index] = self.start_one(index, port);
    }

    /// Returns the index of the leader, once there is one.
    pub fn leader(&self) -> usize {
        leadership::leading(&self.all, |_index| true)
    }

    /// Returns the role of a scheduler; empty if it does not answer.
    pub fn role(&self, index: usize) -> String {
        leadership::role(&self.all[index])
    }

    /// Returns all addresses, in the form of the command line.
    pub fn addresses(&self) -> String {
        let all: Vec<_> = self.all.iter().map(Daemon::address).collect();
        all.join(",")
    }

    /// Returns the leader's view of a job; `None` while no scheduler leads.
    pub fn job(&self, name: &str) -> Option<Value> {
        let leader = (0..self.all.len()).find(|index| self.role(*index) == "leading")?;
        job(&self.all[leader].url, name)
    }

    /// Submits a job to the leader; returns its version.
    pub fn submit(&self, job: &Value) -> u64 {
        submit(&self.all[self.leader()].url, job)
    }

    /// Waits until a job has this state and version.
    pub fn wait_for(&self, name: &str, state: &str, version: u64, limit: Duration) -> Value {
        wait_for(|| self.job(name), name, state, version, limit)
    }
}

fn submit(url: &str, job: &Value) -> u64 {
    let answer = http::post_json(&format!("{url}/v1/jobs"), job);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["version"].as_u64().expect("a version")
}

fn job(url: &str, name: &str) -> Option<Value> {
    let answer = http::try_get(&format!("{url}/v1/jobs/{name}")).ok()?;
    (answer.status == 200).then(|| answer.json())
}

/// Returns the events of a job from its history.
pub fn events(url: &str, name: &str) -> Vec<Value> {
    let answer = http::get(&format!("{url}/v1/jobs/{name}/history"));
    let events = answer.json()["events"].as_array().cloned();
    events.unwrap_or_default()
}

fn wait_for(
    job: impl Fn() -> Option<Value>,
    name: &str,
    state: &str,
    version: u64,
    limit: Duration,
) -> Value {
    let what = format!("{name} is {state} in version {version}");
    let last = std::cell::RefCell::new(Value::Null);
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(&what, limit, || {
            let job = job()?;
            let is_it = job["state"] == state && job["version"] == version;
            last.replace(job.clone());
            is_it.then_some(job)
        })
    }));
    waited.unwrap_or_else(|_| panic!("{what}, but: {}", last.borrow()))
}

fn work_dir(cluster: &Cluster) -> PathBuf {
    let first = cluster.agent_dir(0);
    first.parent().unwrap_or(Path::new("/")).join("scheduler")
}

/// Returns a service of small instances that rolls one by one.
pub fn service(name: &str, count: usize, command: &str) -> Value {
    json!({
        "name": name,
        "kind": "service",
        "count": count,
        "task": { "command": command },
        "resources": { "cpus": 0.01, "mem": "32MB" },
        "restart": { "first": "500ms", "longest": "2secs" },
        "update": {
            "max_unavailable": 1,
            "max_surge": 1,
            "healthy_after": "300ms",
            "progress_deadline": "60secs",
        },
    })
}

/// Returns a batch of small tasks.
pub fn batch(name: &str, count: usize, command: &str) -> Value {
    json!({
        "name": name,
        "kind": "batch",
        "count": count,
        "task": { "command": command, "env": { "INDEX": "${index}" } },
        "resources": { "cpus": 0.01, "mem": "32MB" },
        "restart": { "first": "500ms", "longest": "1secs" },
        "batch": { "retries": 1000 },
    })
}
