//! Jobs that fail or wait, as readers get them: written to a file that drives the tests of `meseta run`, `meseta job status`
//! and the page.

use std::path::Path;

use meseta_proto::mesos::v1::TaskState;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ResourceName, Scalar};
use serde_json::json;

use super::reasons::{Case, end, endings, launched, seen, waits};
use super::volumes::database;
use super::*;
use crate::core::RoleQuota;
use crate::spec::pattern::Pattern;
use crate::spec::{Constraint, Rule};

/// The smallest number of ways to fail or to wait in the file.
const CASES_MIN: usize = 60;

/// Returns cases of obstacles that keep a task from an offered agent.
fn obstacles() -> Vec<Case> {
    let mut cases = Vec::new();
    let constraint = |rule: Rule| {
        let mut spec = batch("one", 1);
        let attribute = "rack".to_owned();
        spec.constraints = vec![Constraint { attribute, rule }];
        spec
    };
    let request = |name: &str, amount: f64| {
        let mut spec = batch("one", 1);
        spec.task.requests.insert(name.to_owned(), amount);
        spec
    };
    let mut ports = batch("one", 1);
    ports.task.ports = vec!["http".to_owned()];
    let pattern = Pattern::parse("r1|r2").expect("a pattern");
    for (spec, text) in [
        (request("cpus", 64.0), "short of cpus"),
        (request("mem", 64.0), "short of mem"),
        (request("disk", 4096.0), "short of disk"),
        (request("gpus", 1.0), "short of gpus"),
        (request("licences", 1.0), "short of licences"),
        (ports, "ports"),
        (constraint(Rule::Equals("r9".to_owned())), "rack"),
        (constraint(Rule::In(vec!["r9".to_owned()])), "rack"),
        (constraint(Rule::Matches(pattern)), "rack"),
        (constraint(Rule::Exists), "rack"),
    ] {
        let mut world = World::new(1, 1);
        submit(&mut world, spec);
        world.calm(5, None);
        let job = seen(&world, "one");
        let told = job.obstacles.iter().find(|one| one.contains(text));
        let told = told.unwrap_or_else(|| panic!("{text}: {job:?}"));
        assert!(!told.contains('\n'), "{told}");
        cases.push((told.clone(), job));
    }
    cases
}

/// Returns cases of the role's quota, agents that are too small, a volume that is away, and updates that were undone.
fn limits() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut world = World::new(1, 1);
    submit(&mut world, service(5, 0, 1));
    world.calm(100, None);
    let cpus = |amount: u64| [(ResourceName::cpus(), Scalar::from_units(amount))];
    let quota = RoleQuota {
        limits: cpus(4).into_iter().collect(),
        consumed: cpus(4).into_iter().collect(),
    };
    let full = Quotas::from_iter([("r".to_owned(), quota)]);
    let text = "role 'r' has 4 cpus of its limit of 4, and a task needs 1";
    let job = world.state.job_alone("web", &full).expect("a job");
    cases.push((text.to_owned(), job));
    let mut wide = batch("wide", 1);
    wide.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, wide);
    let small = Quotas::default().with_largest(Some(cpus(4).into_iter().collect()));
    let text = "it needs 64 cpus, and the largest agent has 4";
    let job = world.state.job_alone("wide", &small).expect("a job");
    cases.push((text.to_owned(), job));
    let mut world = World::new(1, 2);
    submit(&mut world, database(1));
    world.calm(30, None);
    let id = only_task(&world, "web");
    world.lose_agent_of(&id);
    world.calm(5, None);
    let text = "which has its volume and is away";
    cases.push((text.to_owned(), seen(&world, "web")));
    cases.extend(taken_back());
    cases
}

/// Returns an update whose instances die, and one whose instances never become healthy.
fn taken_back() -> Vec<Case> {
    let mut world = World::new(3, 4);
    let spec = service(4, 1, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let mut wide = changed(&spec, "wide");
    wide.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, wide);
    world.calm(400, None);
    let text = "version 2 was taken back: no instance has become healthy for 120s";
    vec![(text.to_owned(), seen(&world, "web"))]
}

/// Returns cases of ends without a fault of the task, which the view names while the job waits.
fn losses() -> Vec<Case> {
    let mut cases = Vec::new();
    for (state, reason, message, text) in [
        (
            TaskState::TaskFailed,
            Reason::ContainerLaunchFailed,
            "Failed to launch container: failed to apply the seccomp profile: Permission denied",
            "seccomp",
        ),
        (
            TaskState::TaskFailed,
            Reason::ContainerLaunchFailed,
            "Failed to launch container: failed to enter the working directory /nowhere: No such file or directory",
            "working directory /nowhere",
        ),
        (
            TaskState::TaskFailed,
            Reason::ContainerLaunchFailed,
            "Failed to launch container: failed to unpack a.tar.gz: unexpected end of file",
            "failed to unpack a.tar.gz",
        ),
    ] {
        let mut world = World::new(1, 1);
        let id = launched(&mut world, "one");
        end(&mut world, &id, (state, Some(reason), message));
        cases.push((text.to_owned(), seen(&world, "one")));
    }
    cases
}

#[test]
fn reasons_match_the_file() {
    let cases = [endings(), waits(), obstacles(), limits(), losses()].concat();
    assert!(cases.len() >= CASES_MIN, "{} cases", cases.len());
    let line = |(text, job): &Case| format!("{}\n", json!({ "text": text, "job": job }));
    let lines: String = cases.iter().map(line).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/reasons.jsonl");
    if std::env::var_os("MESETA_BLESS").is_some() {
        std::fs::write(&path, &lines).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = lines
        .lines()
        .zip(written.lines())
        .find(|(is, was)| is != was);
    assert!(
        lines == written,
        "{} is stale: run `MESETA_BLESS=1 cargo test -p meseta-jobs --lib reason_file`; {differs:?}",
        path.display()
    );
}
