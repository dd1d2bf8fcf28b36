//! Fifty ways to fail, and the line that names each.

use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::*;
use crate::core::JobView;
use crate::core::discovery::addresses_after;

/// A text that names a failure, and a job that shows the failure.
pub(super) type Case = (String, JobView);

/// The end of a job's task, and the expected line.
type Ending = (TaskState, Option<Reason>, &'static str, &'static str);

const FAILED: TaskState = TaskState::TaskFailed;

/// The messages of agents, and of other frameworks' executors, for the ends of tasks.
const ENDINGS: [Ending; 34] = [
    (
        FAILED,
        None,
        "Command exited with status 1",
        "Command exited with status 1",
    ),
    (
        FAILED,
        None,
        "Command exited with status 2",
        "Command exited with status 2",
    ),
    (
        FAILED,
        None,
        "Command exited with status 126",
        "Command exited with status 126",
    ),
    (
        FAILED,
        None,
        "Command exited with status 127",
        "Command exited with status 127",
    ),
    (
        FAILED,
        None,
        "Command exited with status 255",
        "Command exited with status 255",
    ),
    (
        FAILED,
        None,
        "Command terminated with signal Killed",
        "Command terminated with signal Killed",
    ),
    (
        FAILED,
        None,
        "Command terminated with signal Segmentation fault",
        "Command terminated with signal Segmentation fault",
    ),
    (
        FAILED,
        None,
        "Command terminated with signal Aborted",
        "Command terminated with signal Aborted",
    ),
    (
        FAILED,
        None,
        "Command terminated with signal Terminated",
        "Command terminated with signal Terminated",
    ),
    (
        FAILED,
        None,
        "Command terminated with signal Broken pipe",
        "Command terminated with signal Broken pipe",
    ),
    (FAILED, None, "", "failed, without a reason"),
    (
        FAILED,
        Some(Reason::CommandExecutorFailed),
        "Command exited with status 3",
        "Command exited with status 3",
    ),
    (
        FAILED,
        Some(Reason::CommandExecutorFailed),
        "\n\n  late words  \nmore",
        "late words",
    ),
    (
        FAILED,
        Some(Reason::ContainerLimitationMemory),
        "Memory limit exceeded: Requested: 32MB Maximum Used: 32MB\n\nMEMORY STATISTICS: \ncache 0\nrss 1",
        "out of memory: Memory limit exceeded: Requested: 32MB Maximum Used: 32MB",
    ),
    (
        FAILED,
        Some(Reason::ContainerLimitationMemory),
        "",
        "out of memory",
    ),
    (
        FAILED,
        Some(Reason::ContainerLimitationDisk),
        "Disk usage (2MB) exceeds quota (1MB)",
        "over its disk limit: Disk usage (2MB) exceeds quota (1MB)",
    ),
    (
        FAILED,
        Some(Reason::ContainerLimitation),
        "too many processes",
        "over a limit: too many processes",
    ),
    (
        FAILED,
        Some(Reason::ContainerLaunchFailed),
        "Failed to launch container: user 'nobody2' does not exist",
        "Failed to launch container: user 'nobody2' does not exist",
    ),
    (
        FAILED,
        Some(Reason::ContainerLaunchFailed),
        "Failed to launch container: Failed to fetch http://x/y: 404\nbody",
        "Failed to launch container: Failed to fetch http://x/y: 404",
    ),
    (
        FAILED,
        Some(Reason::ContainerLaunchFailed),
        "Failed to launch container: image busybox:none was not found",
        "Failed to launch container: image busybox:none was not found",
    ),
    (
        FAILED,
        Some(Reason::ContainerLaunchFailed),
        "Failed to launch container: no such file or directory",
        "Failed to launch container: no such file or directory",
    ),
    (
        FAILED,
        Some(Reason::MaxCompletionTimeReached),
        "Command terminated with signal Killed: it had reached its maximum completion time",
        "Command terminated with signal Killed: it had reached its maximum completion time",
    ),
    (
        FAILED,
        Some(Reason::ExecutorTerminated),
        "Command ended with unknown status: the agent was away",
        "its executor has ended: Command ended with unknown status: the agent was away",
    ),
    (
        FAILED,
        Some(Reason::ExecutorTerminated),
        "",
        "its executor has ended",
    ),
    (
        FAILED,
        Some(Reason::ContainerUpdateFailed),
        "no such cgroup",
        "container update failed: no such cgroup",
    ),
    (
        FAILED,
        Some(Reason::IoSwitchboardExited),
        "",
        "io switchboard exited",
    ),
    (
        FAILED,
        Some(Reason::TaskCheckStatusUpdated),
        "x",
        "task check status updated: x",
    ),
    (
        FAILED,
        Some(Reason::TaskInvalid),
        "Task uses more resources cpus:2 than available cpus:1",
        "task invalid: Task uses more resources cpus:2 than available cpus:1",
    ),
    (
        TaskState::TaskError,
        Some(Reason::TaskInvalid),
        "Task has an invalid user",
        "task invalid: Task has an invalid user",
    ),
    (
        TaskState::TaskError,
        Some(Reason::TaskUnauthorized),
        "Not authorized to launch as user 'root'",
        "task unauthorized: Not authorized to launch as user 'root'",
    ),
    (TaskState::TaskError, None, "nonsense", "nonsense"),
    (
        TaskState::TaskKilled,
        None,
        "Command terminated with signal Killed",
        "Command terminated with signal Killed",
    ),
    (
        TaskState::TaskKilled,
        Some(Reason::TaskKilledDuringLaunch),
        "Task killed during launch",
        "task killed during launch: Task killed during launch",
    ),
    (
        FAILED,
        None,
        "bell\u{7} and \u{1b}[31mred",
        "bell and [31mred",
    ),
];

/// Launches the tasks of a batch that gives up at the first failure.
pub(super) fn launched(world: &mut World, name: &str) -> String {
    let mut spec = batch(name, 1);
    let Kind::Batch(kind) = &mut spec.kind else {
        panic!("a batch");
    };
    kind.retries = 0;
    submit(world, spec);
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
    }
    only_task(world, name)
}

pub(super) fn end(
    world: &mut World,
    id: &str,
    (state, reason, message): (TaskState, Option<Reason>, &str),
) {
    world.mark_lost(id);
    let status = TaskStatus {
        task_id: TaskId {
            value: id.to_owned(),
        },
        state: state.into(),
        reason: reason.map(Into::into),
        message: Some(message.to_owned()),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(status)));
    world.sync();
}

#[test]
fn failed_task_has_one_line_reason() {
    assert_eq!(endings().len(), ENDINGS.len());
}

pub(super) fn endings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, (state, reason, message, line)) in ENDINGS.into_iter().enumerate() {
        let mut world = World::new(1, 1);
        let id = launched(&mut world, "one");
        end(&mut world, &id, (state, reason, message));
        let job = world.state.job("one").expect("a job");
        let failure = job.last_failure.expect("a failure");
        assert_eq!(
            (&*failure.text, &*failure.task_id, failure.failures),
            (line, &*id, 1),
            "ending {number}"
        );
        let why = format!("1 task has failed for good; the last: {id} {line}");
        assert_eq!((job.state, job.why), ("failed", why), "ending {number}");
        let events = world.state.history("one").expect("a job").events;
        assert!(events.iter().all(|event| !event.text.contains('\n')));
        cases.push((line.to_owned(), seen(&world, "one")));
    }
    cases
}

/// Returns the view of a single job.
pub(super) fn seen(world: &World, name: &str) -> JobView {
    let quotas = Quotas::default();
    world.state.job_alone(name, &quotas).expect("a job")
}

/// Returns the only line of the reason why a job waits.
fn why(world: &World, name: &str) -> String {
    let why = world.state.job(name).expect("a job").why;
    assert!(!why.contains('\n'), "{why}");
    why
}

#[test]
fn waiting_job_has_one_line_reason() {
    assert!(waits().len() >= 14);
}

pub(super) fn waits() -> Vec<Case> {
    let mut told = Vec::new();
    let mut world = World::new(1, 1);
    let mut expect = |world: &World, name: &str, expected: &str| {
        let why = why(world, name);
        assert!(why.contains(expected), "{name}: {why}");
        told.push((expected.to_owned(), seen(world, name)));
    };
    // A job that starts after others.
    let id = launched(&mut world, "first");
    let after = |name: &str, other: &str| JobSpec {
        after: vec![other.to_owned()],
        ..batch(name, 1)
    };
    submit(&mut world, after("second", "first"));
    submit(&mut world, after("third", "nothing"));
    submit(&mut world, after("a", "b"));
    submit(&mut world, after("b", "a"));
    expect(&world, "second", "it starts after first");
    expect(&world, "third", "which does not exist yet");
    expect(&world, "a", "which itself starts after a");
    end(
        &mut world,
        &id,
        (FAILED, None, "Command exited with status 1"),
    );
    world.calm(1, None);
    expect(&world, "second", "it starts after first, which has failed");
    let stop = |world: &mut World, name: &str| {
        let name = name.to_owned();
        world.request(Request::Stop { name, purge: false });
        world.sync();
    };
    submit(&mut world, after("fourth", "stopped"));
    submit(&mut world, batch("stopped", 1));
    stop(&mut world, "stopped");
    world.calm(1, None);
    expect(
        &world,
        "fourth",
        "it starts after stopped, which is stopped",
    );
    // Cases of a lack of room.
    let mut wide = batch("wide", 1);
    wide.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, wide.clone());
    world.calm(1, None);
    expect(&world, "wide", "a task waits for an offer that it fits");
    submit(
        &mut world,
        JobSpec {
            count: 3,
            ..wide.clone()
        },
    );
    world.calm(1, None);
    expect(&world, "wide", "3 tasks wait for offers that they fit");
    // Cases of refused roles and lost masters.
    world.refused.insert("s".to_owned());
    submit(
        &mut world,
        JobSpec {
            role: "s".to_owned(),
            ..batch("alien", 1)
        },
    );
    world.calm(1, None);
    expect(&world, "alien", "the master refuses role \"s\": no role s");
    world.step(Input::Disconnected);
    expect(&world, "wide", "no master answers");
    world.disconnect();
    // A service that pauses, a service that was never healthy, and an update that was given up.
    let mut world = World::new(1, 1);
    let mut spec = service(1, 1, 0);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.restart.first = Duration::from_secs(8);
    kind.update.auto_revert = false;
    kind.update.healthy_after = Duration::from_secs(5);
    submit(&mut world, spec.clone());
    for failures in 1..=3 {
        world.calm(8, None);
        world.calm(2, None);
        let id = only_task(&world, "web");
        end(
            &mut world,
            &id,
            (FAILED, None, "Command exited with status 7"),
        );
        let job = world.state.job("web").expect("a job");
        if job.healthy == 0 && failures == 1 {
            expect(
                &world,
                "web",
                "waits to start again; the last: web.1.0.0.1 Command exited with status 7",
            );
        }
        let failure = job.last_failure.expect("a failure");
        assert_eq!(
            (failure.failures, failure.next_attempt.is_some()),
            (failures, true)
        );
    }
    world.calm(40, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    submit(&mut world, changed(&spec, "ill"));
    for _ in 0..3 {
        let mut id = None;
        while id.is_none() {
            world.calm(1, None);
            let tasks = world.state.job("web").expect("a job").tasks.expect("tasks");
            id = tasks
                .into_iter()
                .find(|task| task.version == 2 && task.state == "TASK_RUNNING");
        }
        let id = id.expect("one runs").task_id;
        end(
            &mut world,
            &id,
            (
                FAILED,
                Some(Reason::ContainerLimitationMemory),
                "32MB\nmore",
            ),
        );
    }
    world.calm(1, None);
    expect(
        &world,
        "web",
        "the update was given up: its instances have ended 3 times",
    );
    expect(&world, "web", "out of memory: 32MB");
    // A first version that fits nowhere.
    let mut world = World::new(1, 1);
    let mut never = service(1, 0, 1);
    never.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, never);
    world.calm(130, None);
    expect(
        &world,
        "web",
        "version 1 has failed: no instance has become healthy for 120s; a task waits",
    );
    // A gang that lost a member, and a run that took too long.
    submit(&mut world, gang("train", 2));
    let mut timed = batch("timed", 1);
    let Kind::Batch(kind) = &mut timed.kind else {
        panic!("a batch");
    };
    (kind.timeout, kind.retries) = (Some(Duration::from_secs(3)), 0);
    submit(&mut world, timed);
    for _ in 0..4 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
    }
    while world.state.job("timed").expect("a job").running == 0 {
        world.advance(None);
        while world.deliver() {}
        world.sync();
    }
    world.pass(Duration::from_secs(5));
    // The kill is sent once its reason is durable.
    for _ in 0..3 {
        world.sync();
        while world.deliver() {}
        world.pass(Duration::from_secs(1));
    }
    expect(&world, "timed", "killed: its run took too long");
    told
}

#[test]
fn next_schedule_time_is_shown_immediately() {
    let mut world = World::new(1, 1);
    submit(&mut world, cron(Overlap::Skip));
    assert!(
        world
            .state
            .job("nightly")
            .expect("a job")
            .next_run
            .is_some()
    );
}

#[test]
fn exit_code_zero_is_no_failure() {
    let mut world = World::new(1, 1);
    submit(&mut world, service(1, 1, 0));
    world.calm(10, None);
    let id = only_task(&world, "web");
    end(&mut world, &id, (TaskState::TaskFinished, None, ""));
    let job = world.state.job("web").expect("a job");
    assert_eq!((job.failed, job.last_failure), (0, None));
    // It pauses nevertheless.
    assert!(job.why.contains("waits to start again"), "{}", job.why);
    world.calm(10, None);
    let id = only_task(&world, "web");
    end(&mut world, &id, (FAILED, None, ""));
    assert_eq!(world.state.job("web").expect("a job").failed, 1);
}

/// Regression: each of these changes restarted all instances.
#[test]
fn change_without_task_effect_replaces_nothing() {
    let mut world = World::new(1, 4);
    let spec = service(3, 1, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let tasks = |world: &World| {
        let tasks = world.state.job("web").expect("a job").tasks;
        let ids = tasks.expect("tasks").into_iter().map(|task| task.task_id);
        ids.collect::<Vec<_>>()
    };
    let before = tasks(&world);
    let mut next = spec.clone();
    let Kind::Service(kind) = &mut next.kind else {
        panic!("a service");
    };
    kind.update.max_surge = 2;
    kind.restart.first = Duration::from_secs(9);
    next.priority = 7;
    let of_host = |rule: crate::spec::Rule| crate::spec::Constraint {
        attribute: "@hostname".to_owned(),
        rule,
    };
    next.constraints = vec![
        of_host(crate::spec::Rule::Exists),
        of_host(crate::spec::Rule::Distinct(3)),
    ];
    assert_eq!(plan_of(&world, &next).runs, 3);
    submit(&mut world, next.clone());
    world.calm(30, None);
    assert_eq!(
        (tasks(&world), state_of(&world, "web")),
        (before.clone(), "healthy")
    );
    assert_eq!(world.state.job("web").expect("a job").version, 1);
    // The tasks also stay after a start; an unmet constraint replaces them.
    world.crash();
    world.calm(10, None);
    assert_eq!(tasks(&world), before);
    next.constraints = vec![of_host(crate::spec::Rule::NotEquals(
        world.state.job("web").expect("a job").tasks.expect("tasks")[0]
            .hostname
            .clone(),
    ))];
    submit(&mut world, next);
    world.calm(60, None);
    assert_eq!(world.state.job("web").expect("a job").version, 2);
    assert_ne!(tasks(&world), before);
}

#[test]
fn similar_names_have_distinct_variables() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let ports =
        meseta_resources::Resources::parse("ports:[31000-31009]", &meseta_resources::Role::star());
    let ports = ports.expect("ports");
    world.add_resources("a0", &ports);
    world.add_resources("a1", &ports);
    for name in ["a-b", "a.b"] {
        let mut spec = JobSpec {
            name: name.to_owned(),
            ..service(1, 1, 0)
        };
        spec.task.ports = vec!["http".to_owned()];
        submit(&mut world, spec);
    }
    world.calm(20, None);
    let of = |after: [&str; 2]| {
        let spec = JobSpec {
            after: after.map(str::to_owned).to_vec(),
            ..batch("c", 1)
        };
        addresses_after(&world.state.jobs, world.state.clock.at(), &spec)
    };
    let (one, other) = (of(["a-b", "a.b"]), of(["a.b", "a-b"]));
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        ["ADDRESSES_A_B_HTTP", "ADDRESSES_A_B_HTTP_2"]
    );
    assert_eq!(one["ADDRESSES_A_B_HTTP"], other["ADDRESSES_A_B_HTTP_2"]);
    assert_ne!(one["ADDRESSES_A_B_HTTP"], one["ADDRESSES_A_B_HTTP_2"]);
}

#[test]
fn last_failure_survives_restart_of_scheduler() {
    let mut world = World::new(1, 1);
    submit(&mut world, service(1, 1, 0));
    for _ in 0..2 {
        world.calm(60, None);
        let id = only_task(&world, "web");
        end(
            &mut world,
            &id,
            (FAILED, None, "Command exited with status 3"),
        );
    }
    let before = world.state.job("web").expect("a job").last_failure;
    let shown = before.as_ref().expect("a failure");
    assert_eq!(
        (&*shown.text, shown.failures),
        ("Command exited with status 3", 2)
    );
    assert!(shown.next_attempt.is_some());
    world.crash();
    assert_eq!(world.state.job("web").expect("a job").last_failure, before);
    // A store of a scheduler without recorded failures can be read.
    let record = world.disk.get_mut("job/web").expect("its record");
    let mut json: serde_json::Value = serde_json::from_slice(record).expect("JSON");
    let fields = json["value"].as_object_mut().expect("fields");
    assert!(fields.remove("failure").is_some());
    *record = json.to_string().into_bytes();
    world.crash();
    assert_eq!(world.state.job("web").expect("a job").last_failure, None);
    // Another version begins without failures.
    world.calm(60, None);
    let id = only_task(&world, "web");
    end(&mut world, &id, (FAILED, None, "x"));
    assert!(
        world
            .state
            .job("web")
            .expect("a job")
            .last_failure
            .is_some()
    );
    world.request(Request::Restart {
        name: "web".to_owned(),
    });
    world.sync();
    world.crash();
    assert_eq!(world.state.job("web").expect("a job").last_failure, None);
}
