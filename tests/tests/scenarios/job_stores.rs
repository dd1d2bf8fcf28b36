//! The store of the scheduler: its disk is full or does not answer, or its jobs are of another cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::daemon::{Daemon, free_port, refused};
use meseta_tests::dead_mount::{DeadMount, unless_fuse};
use meseta_tests::jobs::{Scheduler, Schedulers, events, service};
use meseta_tests::small_disk::{Filler, Frozen, SmallDisk, unless_freezing};
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Missing, http, unless_installed, unless_root};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_ext4: scheduler_outlives_full_disk;
    unless_freezing: scheduler_starts_beside_frozen_disk;
    unless_dead_mount: start_on_dead_mount_obeys_sigterm;
    unless_root: scheduler_changes_no_other_cluster;
    unless_root_and_etcd: follower_of_other_cluster_ends;
}

const PATIENCE: Duration = Duration::from_secs(60);
/// From the moment there is room, or an answer, until the scheduler acts.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// A disk is reported after half a minute.
const REPORT_MAX: Duration = Duration::from_secs(90);
/// The end of a scheduler waits ten seconds for its store.
const END_MAX: Duration = Duration::from_secs(20);

fn unless_ext4() -> Missing {
    unless_root().or_else(|| unless_installed("mkfs.ext4"))
}

fn unless_dead_mount() -> Missing {
    unless_root().or_else(unless_fuse)
}

fn unless_root_and_etcd() -> Missing {
    unless_root().or_else(|| unless_installed("etcd"))
}

/// A scheduler at an address of its own on a disk of its own, which may not start. The fields end in this order.
struct OnDisk {
    daemon: Daemon,
    flags: Vec<String>,
    dir: PathBuf,
    _disk: Mounted,
}

/// Unmounted when it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

impl OnDisk {
    /// `prepare` finds the empty disk.
    fn start(cluster: &Cluster, prepare: impl FnOnce(&Path)) -> Self {
        let disk = SmallDisk::Ext4 {
            mib: 16,
            inodes: 512,
        };
        let dir = cluster.dir.path().join("scheduler");
        disk.mount_at(&dir);
        prepare(&dir);
        let port = free_port();
        let flags = vec![
            format!("--port={port}"),
            "--ip=127.0.0.1".to_owned(),
            format!("--master={}", cluster.master.address()),
        ];
        let url = format!("http://127.0.0.1:{port}");
        Self {
            daemon: Daemon::spawn_at(&url, &[], "scheduler", &dir, &flags),
            flags,
            _disk: Mounted(dir.clone()),
            dir,
        }
    }

    fn start_again(&mut self) {
        let url = self.daemon.url.clone();
        self.daemon = Daemon::spawn_at(&url, &[], "scheduler", &self.dir, &self.flags);
    }

    fn health(&self) -> Option<(u16, String)> {
        let answer = http::try_get(&format!("{}/health", self.daemon.url)).ok()?;
        Some((answer.status, answer.text()))
    }

    /// Waits for 503 with this text.
    fn until_unwell(&self, text: &str, limit: Duration) {
        eventually("the scheduler tells of its disk", limit, || {
            let (status, found) = self.health()?;
            (status == 503 && found.contains(text)).then_some(())
        });
    }

    fn until_well(&self) {
        eventually("the scheduler goes on", RECOVERY_MAX, || {
            (self.health()?.0 == 200).then_some(())
        });
    }

    fn jobs_status(&self) -> u16 {
        http::get(&format!("{}/v1/jobs", self.daemon.url)).status
    }

    fn submit(&self, job: &Value) -> (u16, String) {
        let answer = http::post_json(&format!("{}/v1/jobs", self.daemon.url), job);
        (answer.status, answer.text())
    }

    fn until_healthy(&self, name: &str) -> Value {
        eventually("the job is healthy", PATIENCE, || {
            let answer = http::try_get(&format!("{}/v1/jobs/{name}", self.daemon.url)).ok()?;
            let job = (answer.status == 200).then(|| answer.json())?;
            (job["state"] == "healthy").then_some(job)
        })
    }

    fn end(&mut self) {
        let status = self.daemon.terminate(END_MAX);
        assert!(status.success(), "{status}:\n{}", self.daemon.log_text());
    }
}

fn task_ids(job: &Value) -> Vec<String> {
    let tasks = job["tasks"].as_array().expect("tasks");
    let ids = tasks.iter().map(|task| task["task_id"].as_str());
    ids.map(|id| id.expect("an id").to_owned()).collect()
}

fn scheduler_outlives_full_disk() {
    let cluster = Cluster::default();
    let mut filler = None;
    let mut scheduler = OnDisk::start(&cluster, |disk| {
        let mut full = Filler::new(disk);
        full.fill_bytes();
        filler = Some(full);
    });
    scheduler.until_unwell("full", PATIENCE);
    let (status, text) = scheduler.submit(&service("early", 1, "exec sleep 1000"));
    assert!(status == 503 && text.contains("full"), "{status} {text}");
    scheduler.end();
    scheduler.start_again();
    scheduler.until_unwell("full", PATIENCE);
    filler.take().expect("a filler").remove();
    scheduler.until_well();
    assert_eq!(
        scheduler.submit(&service("steady", 1, "exec sleep 1000")).0,
        200
    );
    let before = task_ids(&scheduler.until_healthy("steady"));

    let mut full = Filler::new(&scheduler.dir);
    full.fill_bytes();
    // The file of the store may have room of its own.
    let long = "x".repeat(100_000);
    let refused = (0..200).find_map(|number| {
        let job = service(&format!("job-{number}"), 1, &format!("true {long}"));
        let (status, text) = scheduler.submit(&job);
        assert!(status == 200 || status == 503, "{status} {text}");
        (status == 503).then_some(text)
    });
    let refused = refused.expect("a full disk takes no more jobs");
    assert!(refused.contains("full"), "{refused}");
    scheduler.until_unwell("full", PATIENCE);
    assert_eq!(scheduler.jobs_status(), 200, "jobs are read meanwhile");
    assert!(!scheduler.daemon.has_ended());

    // As after a crash, beside a disk that is still full.
    scheduler.daemon.kill();
    full.fill_bytes();
    scheduler.start_again();
    eventually("the scheduler answers", PATIENCE, || scheduler.health());
    scheduler.end();
    scheduler.start_again();
    full.remove();
    scheduler.until_well();
    let after = task_ids(&scheduler.until_healthy("steady"));
    assert_eq!(before, after, "its instance went on");
    scheduler.end();
}

fn scheduler_starts_beside_frozen_disk() {
    let cluster = Cluster::default();
    let mut scheduler = OnDisk::start(&cluster, |_| ());
    scheduler.until_well();
    assert_eq!(
        scheduler.submit(&service("steady", 1, "exec sleep 1000")).0,
        200
    );
    let before = task_ids(&scheduler.until_healthy("steady"));

    let frozen = Frozen::freeze(&scheduler.dir);
    let wanted = json!({ "count": 2 });
    let url = format!("{}/v1/jobs/steady/scale", scheduler.daemon.url);
    let headers = [("content-type", "application/json")];
    let body = wanted.to_string();
    let answer = http::post_within(REPORT_MAX, &url, &headers, body.as_bytes());
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("has not answered"));
    scheduler.until_unwell("has not answered", REPORT_MAX);
    assert_eq!(scheduler.jobs_status(), 200, "jobs are read meanwhile");
    drop(frozen);
    scheduler.until_well();
    let scaled = eventually("what was asked for is done", PATIENCE, || {
        let job = scheduler.until_healthy("steady");
        (job["tasks"].as_array()?.len() == 2).then_some(job)
    });
    assert!(task_ids(&scaled).contains(&before[0]), "{scaled}");
    scheduler.end();

    let frozen = Frozen::freeze(&scheduler.dir);
    scheduler.start_again();
    scheduler.until_unwell("has not answered", REPORT_MAX);
    assert_eq!(scheduler.jobs_status(), 503);
    drop(frozen);
    scheduler.until_well();
    let after = scheduler.until_healthy("steady");
    assert!(task_ids(&after).contains(&before[0]), "{after}");
    scheduler.end();
}

fn start_on_dead_mount_obeys_sigterm() {
    let dir = tempfile::tempdir().expect("a directory");
    let work_dir = dir.path().join("scheduler");
    let _dead = DeadMount::fuse(&work_dir);
    let port = free_port();
    let flags = [
        format!("--port={port}"),
        "--ip=127.0.0.1".to_owned(),
        "--master=127.0.0.1:1".to_owned(),
    ];
    let url = format!("http://127.0.0.1:{port}");
    let mut scheduler = Daemon::spawn_at(&url, &[], "scheduler", &work_dir, &flags);
    eventually("the scheduler says that it is not well", PATIENCE, || {
        let answer = http::try_get(&format!("{url}/health")).ok()?;
        (answer.status == 503).then_some(())
    });
    let status = scheduler.terminate(END_MAX);
    assert!(status.success(), "{status}:\n{}", scheduler.log_text());
}

fn framework_count(cluster: &Cluster) -> usize {
    let page = cluster.master.page("/frameworks").json();
    let of = |list: &str| page[list].as_array().map_or(0, Vec::len);
    of("frameworks") + of("completed_frameworks")
}

fn scheduler_changes_no_other_cluster() {
    let (own, other) = (Cluster::default(), Cluster::default());
    let mut scheduler = Scheduler::start(&own);
    let version = scheduler.submit(&service("web", 1, "exec sleep 1000"));
    scheduler.wait_for("web", "healthy", version, PATIENCE);
    scheduler.daemon.terminate(END_MAX);
    let dir = own.dir.path().join("scheduler");
    let master = format!("--master={}", other.master.address());
    let told = refused("scheduler", &dir, &["--port=0", &master]);
    for part in ["belongs to cluster", "correct --master", "--adopt_cluster"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(framework_count(&other), 0, "nothing was registered there");
    // The right master takes it again, and the other one where that is meant.
    scheduler.restart(&own);
    scheduler.wait_for("web", "healthy", version, PATIENCE);
    scheduler.daemon.terminate(END_MAX);
    let flags = ["--port=0".to_owned(), master, "--adopt_cluster".to_owned()];
    let adopting = Daemon::start("scheduler", &dir, &flags);
    eventually("the job runs in the other cluster", PATIENCE, || {
        let answer = http::try_get(&format!("{}/v1/jobs/web", adopting.url)).ok()?;
        let is_there = framework_count(&other) == 1;
        (is_there && answer.json()["state"] == "healthy").then_some(())
    });
    assert!(!events(&adopting.url, "web").is_empty());
}

fn follower_of_other_cluster_ends() {
    let (own, other) = (Cluster::default(), Cluster::default());
    let schedulers = Schedulers::start(&own, 1);
    let version = schedulers.submit(&service("web", 1, "exec sleep 1000"));
    schedulers.wait_for("web", "healthy", version, PATIENCE);
    let dir = other.dir.path().join("scheduler");
    let flags = [
        "--port=0".to_owned(),
        "--store=etcd".to_owned(),
        format!("--etcd_endpoints={}", schedulers.etcd.url),
        format!("--master={}", other.master.address()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // It follows at most: while the other one leads, and after that one's end.
    for _ in 0..2 {
        let told = refused("scheduler", &dir, &flags);
        for part in ["belongs to cluster", "--etcd_prefix", "--adopt_cluster"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(framework_count(&other), 0, "nothing was registered there");
        schedulers.wait_for("web", "healthy", version, PATIENCE);
    }
}
