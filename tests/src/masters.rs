//! Several masters and their shared etcd, on loopback.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::daemon::{Daemon, free_port};
use crate::network::loopback_url;
use crate::wait::eventually;
use crate::{http, leadership};

/// The longest time from the end of a leader until another leads: the lease, and slack for a busy machine.
pub const FAILOVER_LIMIT: Duration = Duration::from_secs(30);

/// A member of etcd, with its own directory.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    flags: Vec<String>,
    pub url: String,
}

impl Etcd {
    /// Starts etcd below a directory, and waits until it responds.
    pub fn start(dir: &Path) -> Self {
        let (client, peer) = (free_port(), free_port());
        let (url, peer) = (loopback_url(client), loopback_url(peer));
        let flags = vec![
            format!("--data-dir={}", dir.join("etcd").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // Safe for tests, which write little and wait for their writes.
            "--unsafe-no-fsync".to_owned(),
        ];
        let mut etcd = Self {
            child: run(&flags),
            flags,
            url,
        };
        etcd.wait();
        etcd
    }

    fn wait(&mut self) {
        eventually("etcd answers", Duration::from_secs(20), || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("etcd ended ({status})");
            }
            let answer = http::try_get(&format!("{}/health", self.url)).ok()?;
            (answer.status == 200).then_some(())
        });
    }

    /// Ends etcd at once, as a crash does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again with its stored data.
    pub fn restart(&mut self) {
        self.child = run(&self.flags);
        self.wait();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(flags: &[String]) -> Child {
    Command::new("etcd")
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd runs")
}

/// The masters that share one etcd. The fields are dropped in this order.
#[derive(Debug)]
pub struct Masters {
    pub all: Vec<Daemon>,
    pub etcd: Etcd,
    pub dir: TempDir,
    flags: Vec<String>,
}

impl Masters {
    /// Starts masters, and waits until one leads and all know it.
    pub fn start(count: usize, flags: &[&str]) -> Self {
        let dir = TempDir::with_prefix("meseta-test-").expect("a temporary directory");
        let etcd = Etcd::start(dir.path());
        let mut all_flags = vec![
            "--registry=etcd".to_owned(),
            format!("--etcd_endpoints={}", etcd.url),
        ];
        if !flags
            .iter()
            .any(|flag| flag.starts_with("--etcd_lease_ttl="))
        {
            all_flags.push("--etcd_lease_ttl=4secs".to_owned());
        }
        all_flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut masters = Self {
            all: Vec::new(),
            etcd,
            dir,
            flags: all_flags,
        };
        for index in 0..count {
            let started = masters.start_one(index, free_port());
            masters.all.push(started);
        }
        leadership::until_all_know(&masters.all);
        masters
    }

    fn start_one(&self, index: usize, port: u16) -> Daemon {
        let mut flags = self.flags.clone();
        flags.push(format!("--port={port}"));
        let dir = self.dir.path().join(format!("master-{index}"));
        Daemon::start("master", &dir, &flags)
    }

    /// Restarts a master that has ended, at its address.
    pub fn restart(&mut self, index: usize) {
        self.all[index].kill();
        let port = self.all[index].address().rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok()).expect("a port");
        self.all[index] = self.start_one(index, port);
    }

    /// Returns all addresses, in the form that agents accept.
    pub fn addresses(&self) -> String {
        let all: Vec<_> = self.all.iter().map(Daemon::address).collect();
        all.join(",")
    }

    /// Returns the index of the leader, once there is one.
    pub fn leader(&self) -> usize {
        self.leader_but(None)
    }

    /// Returns the index of a leader other than this one, once there is one.
    pub fn leader_but(&self, not: Option<usize>) -> usize {
        leadership::leading(&self.all, |index| Some(index) != not)
    }

    /// Returns the role of a master; empty if it does not answer.
    pub fn role(&self, index: usize) -> String {
        leadership::role(&self.all[index])
    }
}
