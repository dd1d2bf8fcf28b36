//! Jobs: a service that is healthy at once and rolls, an ill version that goes back, and kill -9 of everything.

use std::time::{Duration, Instant};

use meseta_tests::jobs::{Scheduler, service};
use meseta_tests::wait::eventually;
use meseta_tests::{Cluster, Setup, http, scheduler_kills, unless_root};
use serde_json::json;

meseta_tests::scenarios! {
    unless_root:
        a_service_is_healthy_soon_rolls_and_goes_back_by_itself,
        a_role_that_the_master_refuses_keeps_its_own_jobs_waiting_alone,
        kills_of_scheduler_master_and_agents_lose_and_repeat_nothing;
}

/// From the submission of a small job until its task is healthy: two seconds, and slack for a busy machine.
const HEALTHY_LIMIT: Duration = Duration::from_secs(10);
const UPDATE_LIMIT: Duration = Duration::from_secs(60);

fn a_service_is_healthy_soon_rolls_and_goes_back_by_itself() {
    let cluster = Cluster::default();
    let scheduler = Scheduler::start(&cluster);
    let began = Instant::now();
    let version = scheduler.submit(&json!({
        "name": "hello",
        "task": { "command": "echo hello; exec sleep 1000" },
    }));
    scheduler.wait_for("hello", "healthy", version, Duration::from_secs(30));
    let took = began.elapsed();
    assert!(took <= HEALTHY_LIMIT, "{took:?}");

    let count = 4;
    let version = scheduler.submit(&service("web", count, "exec sleep 1000"));
    scheduler.wait_for("web", "healthy", version, UPDATE_LIMIT);
    let version = scheduler.submit(&service("web", count, "exec sleep 2000"));
    until(&scheduler, "healthy", version, count);
    // An ill one is given up after three failures, and the one before comes back.
    scheduler.submit(&service("web", count, "sleep 0.1; exit 1"));
    until(&scheduler, "healthy", version, count);
    let events = history(&scheduler);
    assert!(events.contains("goes back to version"), "{events}");

    let found = http::get(&format!("{}/v1/discovery/http_sd", scheduler.daemon.url));
    assert_eq!(found.json(), json!([]));
    // The framework tells the address of its page, and the page is there for everybody.
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
    let metrics = scheduler.daemon.page("/metrics").text();
    assert!(
        metrics.contains("meseta_scheduler_jobs{state=\"healthy\"} 2"),
        "{metrics}"
    );
}

fn history(scheduler: &Scheduler) -> String {
    let url = format!("{}/v1/jobs/web/history", scheduler.daemon.url);
    http::get(&url).text()
}

/// Waits for a version while the service has its minimum of healthy instances, and no more than it may.
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

fn kills_of_scheduler_master_and_agents_lose_and_repeat_nothing() {
    let report = scheduler_kills::run(20, 8, 5).unwrap_or_else(|why| panic!("{why}"));
    assert!(report.looks > 0);
}

/// The list of roles of the master has one of the two; the other one's job says so, also after a start anew.
fn a_role_that_the_master_refuses_keeps_its_own_jobs_waiting_alone() {
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
