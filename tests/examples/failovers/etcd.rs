//! The members of etcd, each on its own host, and the actions on them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use meseta_tests::network::Host;
use meseta_tests::{http, wait};
use serde_json::Value;

/// The size in bytes above which etcd accepts no more writes.
const QUOTA_BYTES: usize = 64 << 20;
/// The size of a large value that etcd still accepts.
const FILLER_BYTES: usize = 1 << 20;
const FILLER: &str = "/filler/";
const ANSWERS_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Member {
    host: Host,
    flags: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

#[derive(Debug)]
pub(crate) struct Etcd {
    members: Vec<Member>,
    dir: PathBuf,
    /// The number of times that etcd was reset to an earlier state.
    restored: usize,
}

impl Etcd {
    /// Starts etcd on these hosts, and waits until it responds.
    pub(crate) fn start(hosts: Vec<Host>, dir: PathBuf) -> anyhow::Result<Self> {
        let peers: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(number, host)| format!("etcd{number}=http://{}:2380", host.address))
            .collect();
        let peers = peers.join(",");
        let member = |(number, host): (usize, Host)| Member {
            flags: flags(&format!("etcd{number}"), &host, &peers),
            log: dir.join(format!("etcd{number}.log")),
            host,
            child: None,
        };
        let members = hosts.into_iter().enumerate().map(member).collect();
        let mut etcd = Self {
            members,
            dir,
            restored: 0,
        };
        etcd.start_all()?;
        Ok(etcd)
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.members.iter().map(|member| &member.host)
    }

    /// Returns all endpoints, in the form that masters and etcdctl accept.
    pub(crate) fn endpoints(&self) -> String {
        let urls: Vec<_> = self.members.iter().map(Member::url).collect();
        urls.join(",")
    }

    pub(crate) fn start_all(&mut self) -> anyhow::Result<()> {
        for number in 0..self.members.len() {
            self.start_member(number)?;
        }
        self.wait()
    }

    /// Starts a member that does not run.
    pub(crate) fn start_member(&mut self, number: usize) -> anyhow::Result<()> {
        let data = self.data_dir(number);
        let member = &mut self.members[number];
        if member.child.is_some() {
            return Ok(());
        }
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&member.log)?;
        let prefix = member.host.prefix();
        let child = Command::new(&prefix[0])
            .args(&prefix[1..])
            .arg("etcd")
            .args(&member.flags)
            .arg(format!("--data-dir={}", data.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("failed to run etcd")?;
        member.child = Some(child);
        Ok(())
    }

    fn data_dir(&self, number: usize) -> PathBuf {
        self.dir.join(format!("etcd{number}-{}", self.restored))
    }

    /// Waits until all running members respond.
    pub(crate) fn wait(&self) -> anyhow::Result<()> {
        let is_healthy = |member: &Member| {
            let url = format!("{}/health", member.url());
            let answer = http::get_within(Duration::from_secs(1), &url);
            answer.is_ok_and(|answer| answer.status == 200 && answer.text().contains("\"true\""))
        };
        let mut running = self.members.iter().filter(|member| member.child.is_some());
        let answers = || {
            self.members
                .iter()
                .filter(|one| one.child.is_some())
                .all(is_healthy)
        };
        ensure!(running.next().is_some(), "no member of etcd runs");
        ensure!(wait::holds(ANSWERS_LIMIT, answers), "etcd does not answer");
        Ok(())
    }

    /// Sends SIGKILL to one member.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn kill_all(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
        }
    }

    /// Returns the leader among the members.
    pub(crate) fn leading_member(&self) -> anyhow::Result<usize> {
        let told = self.ctl(&["endpoint", "status", "--write-out=json"])?;
        let told: Value = serde_json::from_slice(&told.stdout)?;
        let all = told.as_array().context("no list of members")?;
        let leads = |one: &&Value| {
            let status = &one["Status"];
            status["leader"] == status["header"]["member_id"]
        };
        let leader = all.iter().find(leads).context("no member leads")?;
        let url = leader["Endpoint"].as_str().unwrap_or_default();
        let number = self.members.iter().position(|one| one.url() == url);
        number.context("the leading member is none of ours")
    }

    /// Runs etcdctl, which must succeed.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.ctl_with(arguments, &[])
    }

    fn ctl_with(&self, arguments: &[&str], input: &[u8]) -> anyhow::Result<Output> {
        let mut child = Command::new("etcdctl")
            .arg(format!("--endpoints={}", self.endpoints()))
            // A busy machine needs more than the default five seconds.
            .arg("--command-timeout=30s")
            .args(arguments)
            .env("ETCDCTL_API", "3")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to run etcdctl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // The child may have ended without reading its input.
            let _ = stdin.write_all(input);
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("etcdctl {}: {}", arguments.join(" "), said.trim());
        }
        Ok(output)
    }

    /// Returns the lease of the leader's key.
    pub(crate) fn leaders_lease(&self) -> anyhow::Result<String> {
        let told = self.ctl(&["get", "/meseta/leader", "--write-out=json"])?;
        let told: Value = serde_json::from_slice(&told.stdout)?;
        let lease = told["kvs"][0]["lease"].as_i64();
        Ok(format!(
            "{:x}",
            lease.context("the leader's key has no lease")?
        ))
    }

    /// Writes until etcd reports that its space is exhausted.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let value = vec![b'x'; FILLER_BYTES];
        for number in 0..2 * QUOTA_BYTES / FILLER_BYTES {
            let put = self.ctl_with(&["put", &format!("{FILLER}{number}")], &value);
            match put {
                Ok(_) => {}
                Err(error) if error.to_string().contains("space exceeded") => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        bail!("etcd takes more than its quota")
    }

    /// Frees room in a full etcd, as an operator does.
    pub(crate) fn make_room(&self) -> anyhow::Result<()> {
        self.ctl(&["del", "--prefix", FILLER])?;
        self.compact()?;
        self.ctl(&["defrag"])?;
        self.ctl(&["alarm", "disarm"])?;
        Ok(())
    }

    /// Removes all history from etcd.
    pub(crate) fn compact(&self) -> anyhow::Result<()> {
        let told = self.ctl(&["get", "/meseta/leader", "--write-out=json"])?;
        let told: Value = serde_json::from_slice(&told.stdout)?;
        let revision = told["header"]["revision"].as_i64();
        let revision = revision.context("no revision")?.to_string();
        self.ctl(&["compaction", &revision]).map(drop)
    }

    /// Saves the state of etcd to a file.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let file = self.dir.join("snapshot.db");
        let _ = std::fs::remove_file(&file);
        let file = file.display().to_string();
        let url = self.members[0].url();
        // One endpoint makes the snapshot.
        let one = format!("--endpoints={url}");
        let output = Command::new("etcdctl")
            .args([&one, "snapshot", "save", &file])
            .env("ETCDCTL_API", "3")
            .output()?;
        ensure!(output.status.success(), "etcdctl snapshot save failed");
        Ok(())
    }

    /// Restores the saved state, as etcd's documentation describes: new directories for all members.
    pub(crate) fn restore(&mut self) -> anyhow::Result<()> {
        self.kill_all();
        self.restored += 1;
        let snapshot = self.dir.join("snapshot.db").display().to_string();
        for number in 0..self.members.len() {
            let data = format!("--data-dir={}", self.data_dir(number).display());
            let kept = |flag: &&String| {
                [
                    "--name=",
                    "--initial-cluster=",
                    "--initial-advertise-peer-urls=",
                ]
                .iter()
                .any(|name| flag.starts_with(name))
            };
            let output = Command::new("etcdctl")
                .args(["snapshot", "restore", &snapshot, &data])
                .args(self.members[number].flags.iter().filter(kept))
                .env("ETCDCTL_API", "3")
                .output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "etcdctl snapshot restore: {said}");
        }
        self.start_all()
    }
}

impl Member {
    fn url(&self) -> String {
        format!("http://{}:2379", self.host.address)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn flags(name: &str, host: &Host, peers: &str) -> Vec<String> {
    let client = format!("http://{}:2379", host.address);
    let peer = format!("http://{}:2380", host.address);
    vec![
        format!("--name={name}"),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={peers}"),
        format!("--quota-backend-bytes={QUOTA_BYTES}"),
        "--auto-compaction-mode=periodic".to_owned(),
        "--auto-compaction-retention=1m".to_owned(),
        // Faults here kill processes and not machines: written data stays.
        "--unsafe-no-fsync".to_owned(),
    ]
}
