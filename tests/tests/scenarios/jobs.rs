//! Tests of jobs: a service that becomes healthy and rolls, a rollback from a failing version, and kills of everything.

use std::time::{Duration, Instant};

use meseta_tests::daemon::binary;
use meseta_tests::jobs::{Scheduler, Schedulers, batch, service};
use meseta_tests::masters::FAILOVER_LIMIT;
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Missing, Setup, http, scheduler_kills, unless_installed, unless_root};
use serde_json::json;

meseta_tests::scenarios! {
    unless_root:
        service_rolls_and_reverts_itself,
        refused_role_blocks_own_jobs_only,
        kills_lose_and_repeat_nothing;
    without_root_or_etcd:
        scheduler_continues_after_leader_kill;
}

fn without_root_or_etcd() -> Missing {
    unless_root().or_else(unless_etcd)
}

fn unless_etcd() -> Missing {
    unless_installed("etcd")
}

/// The time from the submission of a small job until its task is healthy: a second for the start and one of
/// `healthy_after`, and slack for a busy machine.
const HEALTHY_LIMIT: Duration = Duration::from_secs(10);
const UPDATE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn service_rolls_and_reverts_itself() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    let began = Instant::now();
    let version = scheduler.submit(&json!({
        "name": "hello",
        "task": { "command": "echo hello; exec sleep 1000" },
        "update": { "healthy_after": "1secs" },
    }));
    scheduler.wait_for("hello", "healthy", version, Duration::from_secs(30));
    let took = began.elapsed();
    assert!(took <= HEALTHY_LIMIT, "{took:?}");

    let count = 4;
    let version = scheduler.submit(&service("web", count, "exec sleep 1000"));
    scheduler.wait_for("web", "healthy", version, UPDATE_LIMIT);
    let version = scheduler.submit(&service("web", count, "exec sleep 2000"));
    until(&scheduler, "healthy", version, count);
    // An unhealthy version is given up after three failures, and the earlier one comes back.
    let mut ill = service("web", count, "sleep 0.1; exit 1");
    // The time is longer than a busy machine takes to report an end.
    ill["update"]["healthy_after"] = json!("5secs");
    scheduler.submit(&ill);
    until(&scheduler, "healthy", version, count);
    let events = history(&scheduler);
    assert!(events.contains("goes back to version"), "{events}");

    let found = http::get(&format!("{}/v1/discovery/http_sd", scheduler.daemon.url));
    assert_eq!(found.json(), json!([]));
    // The framework reports the address of its page, and everybody may read the page.
    let url = format!("{}/", scheduler.daemon.url);
    let frameworks = cluster.master.page("/frameworks").json();
    assert_eq!(frameworks["frameworks"][0]["webui_url"], url);
    assert!(http::get(&url).text().contains("ui/scheduler.js"));
    let subscription = http::get(&format!("{url}v1/subscription")).json();
    let expected = json!({ "subscribed": true, "master": cluster.master.url, "framework_id": frameworks["frameworks"][0]["id"] });
    assert_eq!(subscription, expected);
    let wrong = http::post_json(
        &format!("{}/v1/jobs", scheduler.daemon.url),
        &json!({ "name": "x" }),
    );
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.json()["errors"][0]["cure"].is_string(),
        "{}",
        wrong.text()
    );
    several_in_one_request(&scheduler);
    let metrics = scheduler.daemon.page("/metrics").text();
    assert!(
        metrics.contains("meseta_scheduler_jobs{state=\"healthy\"} 2"),
        "{metrics}"
    );
    assert!(
        metrics.contains("meseta_scheduler_leadership{state=\"leading\"} 1"),
        "{metrics}"
    );
}

/// The whole list is checked before the first job is accepted, and the answer is a list as well.
fn several_in_one_request(scheduler: &Scheduler) {
    let url = format!("{}/v1/jobs", scheduler.daemon.url);
    let once = |name: &str| {
        let task = json!({ "command": "true" });
        json!({ "name": name, "kind": "batch", "task": task })
    };
    let wrong = json!({ "jobs": [once("first"), { "name": "second" }] });
    assert_eq!(http::post_json(&url, &wrong).status, 400);
    assert_eq!(scheduler.job("first"), None);
    let both = http::post_json(&url, &json!({ "jobs": [once("first"), once("second")] }));
    let accepted = |name: &str| json!({ "name": name, "role": "*", "version": 1 });
    let expected = json!({ "jobs": [accepted("first"), accepted("second")] });
    assert_eq!((both.status, both.json()), (200, expected));
    let alone = http::post_json(&url, &json!({ "jobs": [once("third")] }));
    let expected = json!({ "jobs": [accepted("third")] });
    assert_eq!(alone.json(), expected);
    for name in ["first", "second", "third"] {
        scheduler.wait_for(name, "complete", 1, UPDATE_LIMIT);
    }
}

fn history(scheduler: &Scheduler) -> String {
    let url = format!("{}/v1/jobs/web/history", scheduler.daemon.url);
    http::get(&url).text()
}

/// Waits for a version while the service has the required number of healthy instances, and no more than allowed.
fn until(scheduler: &Scheduler, state: &str, version: u64, count: usize) {
    let end = Instant::now() + UPDATE_LIMIT;
    loop {
        let job = scheduler.job("web").expect("the job");
        let healthy = job["healthy"].as_u64().expect("a count");
        let tasks = job["tasks"].as_array().expect("tasks").len();
        assert!(
            healthy + 1 >= count as u64,
            "{healthy} of {count} are healthy"
        );
        assert!(tasks <= count + 1, "{tasks} tasks of {count} and one more");
        if job["state"] == state && job["version"] == version {
            return;
        }
        assert!(Instant::now() < end, "not {state} in {version}: {job}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kills_lose_and_repeat_nothing() {
    let report = scheduler_kills::run(20, 8, 5, false).unwrap_or_else(|why| panic!("{why}"));
    assert!(report.looks > 0);
}

/// Three schedulers share their jobs: followers redirect clients, and the leader is killed during an update.
pub(super) fn scheduler_continues_after_leader_kill() {
    let cluster = Cluster::default();
    let mut schedulers = Schedulers::start(&cluster, 3);
    let first = schedulers.leader();
    let follower = &schedulers.all[(first + 1) % 3];
    let health = http::get(&format!("{}/health", follower.url)).json();
    assert_eq!(health, json!({ "role": "following", "subscribed": false }));
    let leader = http::get(&format!("{}/leader", follower.url)).json();
    assert_eq!(leader["leader"], schedulers.all[first].address());
    let sent_on = http::get(&format!("{}/v1/jobs?x=1", follower.url));
    let there = format!("//{}/v1/jobs?x=1", schedulers.all[first].address());
    assert_eq!(
        (sent_on.status, sent_on.header("location")),
        (307, Some(&*there))
    );

    let count = 4;
    let version = schedulers.submit(&service("web", count, "exec sleep 1000"));
    schedulers.wait_for("web", "healthy", version, UPDATE_LIMIT);
    let done = tempfile::tempdir().expect("a directory");
    let command = format!("sleep 2; echo done >> {}/$INDEX", done.path().display());
    schedulers.submit(&batch("array", count, &command));
    // The update must not end before it is seen in progress, however long that takes.
    let gate = done.path().join("gate");
    let mut next = service("web", count, "exec sleep 2000");
    next["check"] = json!({
        "command": format!("test -e {}", gate.display()),
        "interval": "200ms",
        "grace": "10mins",
    });
    next["update"]["progress_deadline"] = json!("10mins");
    let updated = schedulers.submit(&next);
    eventually("the update is under way", UPDATE_LIMIT, || {
        let job = schedulers.job("web")?;
        (job["state"] == "updating" && job["tasks"].as_array()?.len() > count).then_some(())
    });
    schedulers.all[first].kill();
    let began = Instant::now();
    let second = schedulers.leader();
    let took = began.elapsed();
    assert_ne!(first, second);
    assert!(took <= FAILOVER_LIMIT, "{took:?}");
    std::fs::write(&gate, "").expect("written");
    let web = schedulers.wait_for("web", "healthy", updated, UPDATE_LIMIT);
    assert_eq!(web["tasks"].as_array().map(Vec::len), Some(count));
    eventually("the batch has ended", UPDATE_LIMIT, || {
        (schedulers.job("array")?["state"] == "complete").then_some(())
    });
    for index in 0..count {
        let lines = std::fs::read_to_string(done.path().join(index.to_string()));
        assert_eq!(lines.expect("it ran"), "done\n", "task {index}");
    }
    // The command line finds the leader among the given schedulers.
    let listed = std::process::Command::new(binary())
        .args(["jobs", "--json", "--scheduler", &schedulers.addresses()])
        .output()
        .expect("meseta runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.status.success() && text.contains("\"web\""),
        "{listed:?}"
    );
}

/// The master's list of roles has one of the two; the other role's job shows that, also after a restart.
fn refused_role_blocks_own_jobs_only() {
    let cluster = Cluster::start(Setup {
        master_flags: vec!["--roles=listed".to_owned()],
        ..Setup::default()
    });
    let mut scheduler = Scheduler::start(&cluster);
    let submit = |name: &str, role: &str| {
        let task = json!({ "command": "exec sleep 1000" });
        scheduler.submit(&json!({ "name": name, "role": role, "task": task }))
    };
    submit("other", "unlisted");
    let version = submit("web", "listed");
    for _ in 0..2 {
        scheduler.wait_for("web", "healthy", version, UPDATE_LIMIT);
        eventually("the refusal is told", UPDATE_LIMIT, || {
            let why = scheduler.job("other")?["why"].to_string();
            why.contains("the master refuses role").then_some(())
        });
        scheduler.restart(&cluster);
    }
    let more =
        json!({ "name": "more", "role": "listed", "task": { "command": "exec sleep 1000" } });
    let version = scheduler.submit(&more);
    scheduler.wait_for("more", "healthy", version, UPDATE_LIMIT);
}
