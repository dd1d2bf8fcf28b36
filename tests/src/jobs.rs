//! A scheduler of jobs beside a cluster: started, asked, killed.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::wait::eventually;
use crate::{Cluster, http};

#[derive(Debug)]
pub struct Scheduler {
    pub daemon: Daemon,
    flags: Vec<String>,
}

impl Scheduler {
    /// One of the cluster's master, with its state in the cluster's directory.
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

    /// kill -9, and a start with the same work directory.
    pub fn restart(&mut self, cluster: &Cluster) {
        self.daemon.kill();
        self.daemon = Daemon::start("scheduler", &work_dir(cluster), &self.flags);
    }

    /// Submits a job in the JSON form of its file; gives its version.
    pub fn submit(&self, job: &Value) -> u64 {
        let answer = http::post_json(&format!("{}/v1/jobs", self.daemon.url), job);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["version"].as_u64().expect("a version")
    }

    /// What it says of a job; nothing while it does not answer or has no such job.
    pub fn job(&self, name: &str) -> Option<Value> {
        let url = format!("{}/v1/jobs/{name}", self.daemon.url);
        let answer = http::try_get(&url).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Waits until a job is in this state and version.
    pub fn wait_for(&self, name: &str, state: &str, version: u64, limit: Duration) -> Value {
        let what = format!("{name} is {state} in version {version}");
        let last = std::cell::RefCell::new(Value::Null);
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, limit, || {
                let job = self.job(name)?;
                let is_it = job["state"] == state && job["version"] == version;
                last.replace(job.clone());
                is_it.then_some(job)
            })
        }));
        waited.unwrap_or_else(|_| panic!("{what}, but: {}", last.borrow()))
    }
}

fn work_dir(cluster: &Cluster) -> std::path::PathBuf {
    let first = cluster.agent_dir(0);
    first.parent().unwrap_or(Path::new("/")).join("scheduler")
}

/// A service of small instances that rolls one by one.
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

/// A batch of small tasks.
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
