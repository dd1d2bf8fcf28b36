//! Tests of the verbs with a small scheduler of fixed responses.

use serde_json::{Value, json};

use super::super::canned::server_with as scheduler_with;
use super::api::{self, Scheduler};
use super::follow::{Ending, Progress, last_failure};
use super::{release, show, task};

#[test]
fn request_matches_the_api() {
    let (address, asked) = scheduler_with(&[
        ("GET /v1/jobs/web", 200, json!({"name": "web"})),
        ("POST /v1/jobs/web/scale", 200, json!({})),
    ]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let job = scheduler
        .get(&api::path("web").expect("a name"))
        .expect("a job");
    assert_eq!(job, json!({"name": "web"}));
    scheduler
        .post("/v1/jobs/web/scale", &json!({"count": 3}))
        .expect("an answer");
    let all: Vec<_> = asked.iter().take(2).collect();
    assert_eq!(
        all[1],
        (
            "POST /v1/jobs/web/scale".to_owned(),
            "{\"count\":3}".to_owned()
        )
    );
}

#[test]
fn follower_is_left_for_the_leader() {
    let (leader, _asked) = scheduler_with(&[("GET /v1/jobs", 200, json!({"jobs": []}))]);
    let to_leader = json!({"location": format!("http://{leader}/v1/jobs")});
    let (follower, _also) = scheduler_with(&[("GET /v1/jobs", 307, to_leader)]);
    let jobs = Scheduler::at(&follower).and_then(|scheduler| scheduler.get("/v1/jobs"));
    assert_eq!(jobs.expect("the leader's jobs"), json!({"jobs": []}));
    let (circle, _more) =
        scheduler_with(&[("GET /a", 307, json!({"location": "http://127.0.0.1:1/a"}))]);
    let error = Scheduler::at(&circle)
        .and_then(|scheduler| scheduler.get("/a"))
        .expect_err("nobody");
    assert!(
        error.to_string().contains("nothing answers at"),
        "{error:#}"
    );
}

#[test]
fn refusal_names_its_remedy() {
    let errors = json!({"errors": [{"line": 1, "column": 2, "message": "role a is not yours", "cure": "ask its owner"}]});
    let (address, _asked) = scheduler_with(&[("POST /v1/jobs", 400, errors)]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let error = scheduler.post("/v1/jobs", &json!({})).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "the scheduler refused: role a is not yours; ask its owner"
    );
    let error = scheduler.get("/v1/jobs/none").expect_err("no such job");
    assert!(error.to_string().contains("404"), "{error:#}");
}

fn service(state: &str, version: u64, running: u64) -> Value {
    json!({"name": "web", "kind": "service", "state": state, "version": version, "count": 3,
           "running": running, "healthy": running, "failed": 0})
}

#[test]
fn job_is_followed_until_healthy() {
    let mut progress = Progress::new(2);
    let mut waiting = service("pending", 2, 0);
    waiting["why"] = json!("short of cpus:1");
    let (lines, ending) = progress.observe(&waiting);
    assert_eq!(
        lines,
        ["web: pending, 0 of 3 running, 0 healthy: short of cpus:1"]
    );
    assert_eq!(ending, None);
    // Each obstacle is printed once per state: it changes with each offer.
    waiting["obstacles"] = json!([
        "a0: rack is r12, which has to match r1",
        "a1: short of cpus:1"
    ]);
    assert_eq!(
        progress.observe(&waiting).0,
        [
            "web: pending, 0 of 3 running, 0 healthy: short of cpus:1; a0: rack is r12, which has to match r1, and 1 more"
        ]
    );
    waiting["obstacles"] = json!(["a1: short of cpus:2"]);
    // The same message is printed once; the earlier version does not count as healthy.
    assert_eq!(progress.observe(&waiting), (Vec::new(), None));
    assert_eq!(progress.observe(&service("healthy", 1, 3)).1, None);
    assert_eq!(
        progress.observe(&service("healthy", 2, 3)).1,
        Some(Ending::Good)
    );
}

#[test]
fn reverted_version_ends_badly() {
    let mut progress = Progress::new(2);
    assert_eq!(progress.observe(&service("updating", 2, 3)).1, None);
    assert_eq!(progress.observe(&service("reverting", 2, 3)).1, None);
    let (lines, ending) = progress.observe(&service("healthy", 3, 3));
    assert_eq!(ending, Some(Ending::Bad));
    assert_eq!(
        lines,
        [
            "web: healthy, 3 of 3 running, 3 healthy",
            "version 2 does not run: the job is at version 3; `meseta job history web` shows why"
        ]
    );
}

/// Regression: the reason was only in the history, and after a literal `
/// `.
#[test]
fn run_prints_reason_of_rollback() {
    let mut progress = Progress::new(2);
    assert_eq!(progress.observe(&service("updating", 2, 3)).1, None);
    let mut back = service("reverting", 1, 3);
    let why = "its instances have ended 3 times without one becoming healthy; the last: web.2.0.0.2 Command exited with status 1";
    back["failed_update"] = json!({ "version": 2, "why": why });
    assert_eq!(progress.observe(&back).1, None);
    back["state"] = json!("healthy");
    let (lines, ending) = progress.observe(&back);
    assert_eq!(ending, Some(Ending::Bad));
    assert_eq!(
        lines.last().map(String::as_str),
        Some(&*format!(
            "version 2 does not run: {why}; the job is at version 1"
        ))
    );
    assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
    // The failure of an earlier update is not its reason.
    let mut progress = Progress::new(3);
    back["version"] = json!(4);
    let (lines, _) = progress.observe(&back);
    assert!(lines.iter().all(|line| !line.contains(why)), "{lines:?}");
}

#[test]
fn batch_ends_with_last_task() {
    let batch = |state: &str, succeeded: u64| {
        json!({"name": "sum", "kind": "batch", "state": state, "version": 1, "count": 9,
               "succeeded": succeeded, "running": 1, "pending": 2, "failed": 1})
    };
    let mut progress = Progress::new(1);
    let (lines, _) = progress.observe(&batch("running", 5));
    assert_eq!(
        lines,
        ["sum: running, 5 of 9 succeeded, 1 running, 2 pending, 1 failed"]
    );
    assert_eq!(
        progress.observe(&batch("complete", 9)).1,
        Some(Ending::Good)
    );
    assert_eq!(
        Progress::new(1).observe(&batch("failed", 5)).1,
        Some(Ending::Bad)
    );
}

/// Regression: only the history had the reason, and a batch did not show it.
#[test]
fn failure_names_its_reason() {
    let event = |task: Value, text: &str| json!({"task_id": task, "text": text});
    let events = [
        event("sum.1.0.0.1".into(), "failed (exit 1)"),
        event("sum.1.0.1.1".into(), "failed (exit 2)"),
        event("sum.1.0.2.1".into(), "finished"),
        event("sum.2.0.0.1".into(), "failed (of another version)"),
        json!({"text": "failed as a whole"}),
    ];
    let told = last_failure(&json!({ "events": events }), 1);
    assert_eq!(told.as_deref(), Some("task sum.1.0.1.1 failed (exit 2)"));
    assert_eq!(last_failure(&json!({"events": []}), 1), None);
}

/// Regression: the command repeated its request for half a minute.
#[test]
fn repeated_missing_answers_mean_job_gone() {
    let mut progress = Progress::new(1);
    let gone = |progress: &mut Progress| (0..20).position(|_| progress.gone("sum").is_some());
    assert_eq!(gone(&mut progress), Some(10));
    progress.observe(&json!({"name": "sum", "state": "running"}));
    assert_eq!(gone(&mut progress), Some(10), "it was seen again");
    // The scheduler gives the same answer for a job in a role that is no longer visible.
    assert_eq!(
        progress.gone("sum").as_deref(),
        Some("job sum no longer exists: it was purged, or you may no longer view its role")
    );
}

#[test]
fn requested_task_is_found() {
    let job = json!({"name": "web", "why": "nothing", "tasks": [
        {"task_id": "old", "index": 0, "state": "TASK_FAILED", "since": 1.0},
        {"task_id": "b", "index": 1, "state": "TASK_RUNNING", "since": 2.0},
        {"task_id": "a", "index": 0, "state": "TASK_RUNNING", "since": 3.0},
        {"task_id": "c", "index": 2, "state": "TASK_FINISHED", "since": 4.0},
        {"task_id": "d", "index": 2, "state": "TASK_FAILED", "since": 5.0},
    ]});
    let newest = |index| {
        let history = || panic!("a task is known");
        task::newest(&job, index, history).expect("a task")
    };
    assert_eq!(
        [newest(None), newest(Some(1)), newest(Some(2))],
        ["a", "b", "d"]
    );
    assert_eq!(task::running(&job, Some(1)).expect("one"), "b");
    let error = task::running(&job, Some(2))
        .expect_err("none runs")
        .to_string();
    assert_eq!(
        error,
        "no task of job web runs; `meseta job status web` shows its tasks"
    );
}

/// Regression: the alert for failed jobs names `meseta job logs`, which knew no ended task.
#[test]
fn ended_task_output_uses_history() {
    let job = json!({"name": "nightly.x", "why": "", "tasks": []});
    let event = |task: &str| json!({"text": "failed", "task_id": task});
    let events = json!({"events": [
        event("nightly.x.1.3.0.1"), event("nightly.x.1.3.1.1"), event("nightly.x.1.3.0.2"),
        {"text": "run 3 failed"},
    ]});
    let newest = |index, events: &Value| task::newest(&job, index, || Ok(events.clone()));
    for (index, task) in [
        (None, "nightly.x.1.3.0.2"),
        (Some(0), "nightly.x.1.3.0.2"),
        (Some(1), "nightly.x.1.3.1.1"),
    ] {
        assert_eq!(newest(index, &events).expect("a task"), task);
    }
    for (index, events) in [(Some(7), events), (None, json!({"events": []}))] {
        let told = newest(index, &events).expect_err("none").to_string();
        assert!(told.contains("`meseta tasks` lists"), "{told}");
    }
}

#[test]
fn a_plan_is_told_in_lines() {
    let plan = json!({
        "changes": [{"field": "count", "from": 2, "to": 3}, "the command"],
        "fits": 1, "wants": 3, "obstacles": ["short of cpus:1 on 4 agents"],
    });
    let expected = [
        "job web would change:",
        "  count: 2 -> 3",
        "  the command",
        "1 of 3 tasks would fit now",
        "  in the way: short of cpus:1 on 4 agents",
    ];
    assert_eq!(show::plan("web", &plan), expected);
    let none = json!({"changes": [], "fits": 0, "wants": 0, "obstacles": []});
    assert_eq!(show::plan("web", &none)[0], "job web: nothing would change");
}

#[test]
fn healthy_task_message_is_no_trouble() {
    let task = |state: &str, is_healthy: bool, message: &str| json!({"state": state, "healthy": is_healthy, "message": message});
    let known = "Reconciliation: Latest task state";
    assert!(!show::is_trouble(&task("TASK_RUNNING", true, known)));
    assert!(!show::is_trouble(&task("TASK_STAGING", false, "")));
    assert!(show::is_trouble(&task(
        "TASK_RUNNING",
        false,
        "the check failed"
    )));
    assert!(show::is_trouble(&task(
        "TASK_UNREACHABLE",
        false,
        "Agent a is unreachable"
    )));
}

/// Regression: the earlier instances still ran when the update was given up, and the command waited for ever for version 2.
#[test]
fn missed_revert_is_still_noticed() {
    let job = |version: u64, state: &str| json!({"name": "web", "kind": "service", "version": version, "state": state});
    let mut progress = Progress::new(2);
    assert_eq!(progress.observe(&job(2, "updating")).1, None);
    // A scheduler that has lost the lead without knowing it may show this state, but not for long.
    assert_eq!(progress.observe(&job(1, "healthy")).1, None);
    let looks = (0..20).map(|_| progress.observe(&job(1, "healthy")));
    let (told, ending) = looks
        .into_iter()
        .find(|(_, ending)| ending.is_some())
        .expect("an ending");
    assert_eq!(ending, Some(Ending::Bad));
    assert!(
        told.iter()
            .any(|told| told.contains("version 2 does not run"))
    );
    let mut progress = Progress::new(2);
    assert_eq!(progress.observe(&job(1, "healthy")).1, None);
    assert_eq!(progress.observe(&job(2, "healthy")).1, Some(Ending::Good));
}

/// Regression: the command waited without any output.
#[test]
fn update_awaiting_promotion_is_reported() {
    let job = json!({"name": "web", "kind": "service", "version": 2, "state": "updating", "update": {"state": "canary"}});
    let (told, ending) = Progress::new(2).observe(&job);
    assert_eq!(ending, None);
    assert!(told[0].contains("waits for `meseta job promote web`"));
}

#[test]
fn released_volume_is_named_or_shown() {
    let volumes = json!([
        {"index": 0, "volume_id": "v0", "hostname": "h"},
        {"index": 1, "volume_id": "v1", "hostname": "h"},
    ]);
    let (address, _asked) = scheduler_with(&[
        (
            "GET /v1/jobs/db?tasks=false",
            200,
            json!({"volumes": volumes}),
        ),
        ("GET /v1/jobs/web?tasks=false", 200, json!({"volumes": []})),
    ]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let request = |name, index, named| {
        let asked = release::request(&scheduler, (name, index), named, true);
        asked.expect("a request")
    };
    assert_eq!(
        request("db", 1, None),
        json!({"index": 1, "volume_id": "v1"})
    );
    assert_eq!(
        request("db", 1, Some("v7")),
        json!({"index": 1, "volume_id": "v7"})
    );
    // The scheduler returns the reason.
    assert_eq!(request("web", 1, None), json!({"index": 1}));
}

/// Regression: the first job stayed when the second was refused, without any message.
#[test]
fn run_submits_all_jobs_together() {
    let specs = meseta_jobs::file::all_from_text(
        "[[jobs]]\nname = \"a\"\n[jobs.task]\ncommand = \"true\"\n[[jobs]]\nname = \"b\"\n[jobs.task]\ncommand = \"true\"\n",
    )
    .expect("two jobs");
    let taken = json!({"jobs": [{"name": "a", "version": 1}, {"name": "b", "version": 4}]});
    let (address, asked) = scheduler_with(&[("POST /v1/jobs", 200, taken.clone())]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let submitted = super::submit(&scheduler, &specs).expect("taken");
    assert_eq!(json!(submitted), taken["jobs"]);
    let (request, body) = asked.iter().next().expect("a request");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(request, "POST /v1/jobs");
    assert_eq!(body["jobs"][1]["name"], "b");
    // A single job is no list.
    let (address, asked) = scheduler_with(&[("POST /v1/jobs", 200, taken["jobs"][0].clone())]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let submitted = super::submit(&scheduler, &specs[..1]).expect("taken");
    assert_eq!(json!(submitted), json!([{"name": "a", "version": 1}]));
    assert!(
        asked
            .iter()
            .next()
            .expect("a request")
            .1
            .contains("\"name\":\"a\"")
    );
}

/// The exit codes are those of Nomad's `plan`.
#[test]
fn plan_exit_code_shows_its_findings() {
    let plan = |fits: u64, wants: u64, changes: &[&str]| {
        super::plan_code(&json!({ "fits": fits, "wants": wants, "changes": changes }))
    };
    assert_eq!(plan(0, 0, &[]), 0);
    assert_eq!(plan(2, 2, &[]), 0);
    assert_eq!(plan(2, 2, &["a"]), 1);
    assert_eq!(plan(0, 0, &["count: 2 becomes 1"]), 1);
    assert_eq!(plan(1, 2, &["a"]), 255);
}

#[test]
fn run_timeout_names_the_last_reason() {
    let job = json!({
        "name": "web", "kind": "service", "version": 1, "state": "pending", "count": 1, "why": "a task waits",
        "last_failure": { "task_id": "web.1.0.0.1", "text": "Command exited with status 3", "failures": 2, "time": 1 },
    });
    let (address, asked) = scheduler_with(&[("GET /v1/jobs/web?tasks=false", 200, job.clone())]);
    let scheduler = Scheduler::at(&address).expect("a scheduler");
    let since = (std::time::Instant::now(), std::time::Duration::ZERO);
    let ended = super::follow::follow(&scheduler, ("web", 1), Some(since), false);
    assert_eq!(
        format!("{:?}", ended.expect("given up")),
        format!("{:?}", std::process::ExitCode::FAILURE)
    );
    assert!(asked.iter().next().is_some());
    assert_eq!(
        Progress::new(1).observe(&job).0,
        [
            "web: pending, 0 of 1 running, 0 healthy: a task waits; 2 failed so far, the last: web.1.0.0.1 Command exited with status 3"
        ]
    );
}

/// Failures and waiting states in the scheduler's responses: `jobs/src/core/tests/reason_file.rs` writes the file.
const REASONS: &str = include_str!("../../../../jobs/testdata/reasons.jsonl");

#[test]
fn run_and_status_name_each_failure() {
    let mut count = 0;
    for case in REASONS.lines() {
        let case: Value = serde_json::from_str(case).expect("JSON");
        let (text, job) = (case["text"].as_str().expect("a text"), &case["job"]);
        let version = job["version"].as_u64().expect("a version");
        let (run, _) = Progress::new(version).observe(job);
        let status = show::summary(job);
        for lines in [run, status] {
            let named = lines.iter().filter(|line| line.contains(text));
            assert!(named.count() > 0, "{text:?} is not in {lines:#?}");
            assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:#?}");
        }
        count += 1;
    }
    assert!(count >= 60, "{count}");
}

/// Returns the result of `meseta job rebalance web` with this scheduler.
fn rebalance(address: &str) -> anyhow::Result<std::process::ExitCode> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: super::JobOptions,
    }
    let scheduler = format!("--scheduler={address}");
    let line = ["job", &scheduler, "rebalance", "web"];
    super::one(&<Line as clap::Parser>::parse_from(line).options)
}

#[test]
fn rebalance_posts_change_and_prints_refusal() {
    let path = "POST /v1/jobs/web/rebalance";
    let (address, asked) = scheduler_with(&[(path, 200, json!({}))]);
    let code = rebalance(&address).expect("taken");
    assert_eq!(
        format!("{code:?}"),
        format!("{:?}", std::process::ExitCode::SUCCESS)
    );
    assert_eq!(
        asked.iter().next(),
        Some((path.to_owned(), "{}".to_owned()))
    );
    let errors = json!({"errors": [{"message": "\"web\" has volumes, which stay on their agents: its instances cannot be rebalanced"}]});
    let (address, _asked) = scheduler_with(&[(path, 409, errors)]);
    let error = rebalance(&address).expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("has volumes, which stay on their agents"),
        "{error:#}"
    );
}
