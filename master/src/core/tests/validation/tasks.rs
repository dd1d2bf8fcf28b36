//! The rules for launching a task, and the reasons for refusals.

use meseta_proto::mesos::v1::check_info;

use super::*;
use crate::core::tests::tasks::launching::begin;

#[test]
fn invalid_task_gets_reason() {
    let (mut world, node, scheduler, offer) = begin();
    let good = || task(&node, "t", "cpus:1;mem:64");
    let with = |change: &dyn Fn(&mut v1::TaskInfo)| {
        let mut task = good();
        change(&mut task);
        task
    };
    let named = |id: &str| with(&|task| task.task_id.value = id.to_owned());
    let scalar = |value: f64| {
        with(&|task| {
            for resource in &mut task.resources {
                if resource.name == "cpus" {
                    resource.scalar = Some(v1::value::Scalar { value });
                }
            }
        })
    };
    let long = "x".repeat(300);
    let command_health = v1::HealthCheck {
        r#type: Some(v1::health_check::Type::Command.into()),
        ..v1::HealthCheck::default()
    };
    let check = |kind: check_info::Type| v1::CheckInfo {
        r#type: Some(kind.into()),
        ..v1::CheckInfo::default()
    };
    let tasks = [
        (named(""), "ID must not be empty"),
        (named("."), "'.' is disallowed"),
        (named(".."), "'..' is disallowed"),
        (named("a/b"), "'a/b' contains invalid characters"),
        (named("a\nb"), "contains invalid characters"),
        (named("a\u{0}b"), "contains invalid characters"),
        (named("back\\slash"), "contains invalid characters"),
        (named(&long), "ID must not be greater than 255 characters"),
        (
            with(&|task| task.agent_id.value = "other".to_owned()),
            "Task uses invalid agent other while agent",
        ),
        (
            with(&|task| task.resources.clear()),
            "Task uses no resources",
        ),
        (
            with(&|task| task.command = None),
            "Task should have at least one (but not both)",
        ),
        (
            with(&|task| {
                task.kill_policy = Some(v1::KillPolicy {
                    grace_period: Some(v1::DurationInfo { nanoseconds: -1 }),
                })
            }),
            "'kill_policy.grace_period' must be non-negative",
        ),
        (
            with(&|task| {
                task.limits
                    .insert("cpus".to_owned(), v1::value::Scalar { value: 2.0 });
            }),
            "Agent is not capable of handling task resource limits",
        ),
        (scalar(-1.0), "Task uses invalid resources"),
        (scalar(f64::NAN), "Task uses invalid resources"),
        (scalar(f64::INFINITY), "Task uses invalid resources"),
        (scalar(1e300), "Task uses invalid resources"),
        (scalar(0.0001), "Task uses invalid resources"),
        (
            with(&|task| task.health_check = Some(Box::new(command_health.clone()))),
            "Expecting 'command' to be set for COMMAND health check",
        ),
        (
            with(&|task| task.check = Some(Box::new(check(check_info::Type::Command)))),
            "Expecting 'command' to be set for COMMAND check",
        ),
        (
            with(&|task| task.check = Some(Box::new(check(check_info::Type::Http)))),
            "Expecting 'http' to be set for HTTP check",
        ),
        (
            task(&node, "t", "cpus:1000"),
            "Total resources cpus(allocated: dev):1000 required by task and its executor is more than available",
        ),
        (
            task(&node, "t", "cpus:1;mem:64;tape:1"),
            "is more than available",
        ),
    ];
    let texts: Vec<&str> = tasks.iter().map(|(_, text)| *text).collect();
    let call = accept(
        &[&offer],
        tasks.iter().map(|(task, _)| task.clone()).collect(),
    );
    world.call_accepted(&scheduler, call);
    let updates = world.updates(&scheduler);
    assert_eq!(updates.len(), texts.len());
    for (status, text) in updates.iter().zip(texts) {
        assert_eq!(status.state(), TaskState::TaskError, "{text}");
        assert_eq!(status.reason(), v1::task_status::Reason::TaskInvalid);
        assert!(status.uuid.is_none());
        let message = status.message();
        assert!(message.contains(text), "{message:?} should say {text:?}");
    }
    assert!(taken!(world, node.connection, RunTask).is_empty());
    assert!(world.core.snapshot().agents[0].tasks.is_empty());
}

/// Resources as a framework sends them.
fn given(json: &str) -> Vec<v1::Resource> {
    meseta_proto::json::many_from_slice(json.as_bytes()).unwrap()
}

fn volume(id: &str, more: &str) -> String {
    format!(
        r#"{{"name":"disk","type":"SCALAR","scalar":{{"value":8}},
            "reservations":[{{"type":"DYNAMIC","role":"dev"}}],
            "disk":{{"persistence":{{"id":"{id}"}},
            "volume":{{"container_path":"data","mode":"RW"}}}}{more}}}"#
    )
}

#[test]
fn contradictory_resources_get_mesos_errors() {
    let (mut world, node, scheduler, offer) = begin();
    let of = |json: &str| {
        let mut task = task(&node, "t", "cpus:1");
        task.resources = given(json);
        task
    };
    let with_executor = |json: &str, executor: &str| {
        let mut task = of(json);
        task.command = None;
        task.executor = Some(Box::new(v1::ExecutorInfo {
            executor_id: executor_id("e"),
            command: Some(v1::CommandInfo::default()),
            resources: given(executor),
            ..v1::ExecutorInfo::default()
        }));
        task
    };
    let cpu = r#"{"name":"cpus","type":"SCALAR","scalar":{"value":1}}"#;
    let in_role = |role: &str| {
        format!(
            r#"{{"name":"mem","type":"SCALAR","scalar":{{"value":32}},
                "allocation_info":{{"role":"{role}"}}}}"#
        )
    };
    let ports = |begin: u32, end: u32| {
        format!(
            r#"{{"name":"ports","type":"RANGES",
                "ranges":{{"range":[{{"begin":{begin},"end":{end}}}]}}}}"#
        )
    };
    let revocable = r#"{"name":"cpus","type":"SCALAR","scalar":{"value":1},"revocable":{}}"#;
    let v = volume("v", "");
    let list = |items: &[&str]| format!("[{}]", items.join(","));
    let cases = [
        (
            of(&list(&[&v, &v])),
            "Task uses duplicate persistence ID: Persistence ID 'v' is not unique",
        ),
        (
            of(&list(&[cpu, &in_role("other")])),
            "Invalid task resources: The resources have multiple allocation roles",
        ),
        (
            of(&list(&[cpu, revocable])),
            "Task mixes revocable and non-revocable resources: Cannot use both revocable and \
             non-revocable 'cpus' at the same time",
        ),
        (
            with_executor(&list(&[cpu]), &list(&[&v, &v])),
            "Executor uses duplicate persistence ID: Persistence ID 'v' is not unique",
        ),
        (
            with_executor(&list(&[cpu]), &list(&[cpu, &in_role("other")])),
            "Invalid executor resources: The resources have multiple allocation roles",
        ),
        (
            with_executor(&list(&[cpu, &v]), &list(&[&v])),
            "Task and its executor use duplicate persistence ID: Persistence ID 'v' is not unique",
        ),
        (
            with_executor(
                &list(&[cpu, &ports(31000, 31004)]),
                &list(&[&ports(31004, 31005)]),
            ),
            "There are overlapping resources in the task resources",
        ),
        (
            with_executor(&list(&[revocable]), &list(&[cpu])),
            "Task and its executor mix revocable and non-revocable resources",
        ),
        (
            of(&list(&[&ports(31004, 31001)])),
            "Task uses invalid resources",
        ),
    ];
    let tasks = cases.iter().map(|(task, _)| task.clone()).collect();
    world.call(&scheduler, accept(&[&offer], tasks));
    let updates = world.updates(&scheduler);
    assert_eq!(updates.len(), cases.len());
    for (status, (_, text)) in updates.iter().zip(&cases) {
        assert_eq!(status.state(), TaskState::TaskError, "{text}");
        let message = status.message();
        assert!(message.contains(text), "{message:?} should say {text:?}");
    }
    // Adjacent ports are allowed.
    world.live(Duration::from_secs(10), &[&node]);
    let offer = world.offers(&scheduler).pop().unwrap();
    let good = with_executor(
        &list(&[cpu, &ports(31000, 31003)]),
        &list(&[&ports(31004, 31005)]),
    );
    world.call(&scheduler, accept(&[&offer], vec![good]));
    assert!(world.updates(&scheduler).is_empty());
    assert_eq!(taken!(world, node.connection, RunTask).len(), 1);
}

#[test]
fn environment_secret_must_match_type() {
    let (mut world, node, scheduler, offer) = begin();
    let with_secret = |secret: &str| {
        let mut task = task(&node, "t", "cpus:1");
        let json = format!(
            r#"{{"value":"true","environment":{{"variables":[
                {{"name":"S","type":"SECRET","secret":{secret}}}]}}}}"#
        );
        task.command = Some(meseta_proto::json::from_slice(json.as_bytes()).unwrap());
        task
    };
    let cases = [
        (
            r#"{"type":"REFERENCE"}"#,
            "Secret of type REFERENCE must have the 'reference' field set",
        ),
        (
            r#"{"type":"REFERENCE","reference":{"name":"n"},"value":{"data":"YQ=="}}"#,
            "Secret 'n' of type REFERENCE must not have the 'value' field set",
        ),
        (
            r#"{"type":"VALUE"}"#,
            "Secret of type VALUE must have the 'value' field set",
        ),
        (
            r#"{"type":"VALUE","reference":{"name":"n"},"value":{"data":"YQ=="}}"#,
            "Secret of type VALUE must not have the 'reference' field set",
        ),
        (
            r#"{"type":"VALUE","value":{"data":"YQBi"}}"#,
            "specifies a secret containing null bytes, which is not allowed",
        ),
    ];
    let tasks = cases
        .iter()
        .map(|(secret, _)| with_secret(secret))
        .collect();
    world.call(&scheduler, accept(&[&offer], tasks));
    let updates = world.updates(&scheduler);
    for (status, (_, text)) in updates.iter().zip(cases) {
        let message = status.message();
        assert!(message.contains(text), "{message:?} should say {text:?}");
        assert!(message.starts_with("Task's `CommandInfo` is invalid: Environment variable 'S'"));
    }
    assert_eq!(updates.len(), 5);
}

#[test]
fn untyped_health_check_infers_type() {
    let (mut world, node, scheduler, offer) = begin();
    world.take_frames(node.connection);
    let with = |id: &str, check: v1::HealthCheck| {
        let mut task = task(&node, id, "cpus:0.1;mem:16");
        task.health_check = Some(Box::new(check));
        task
    };
    let http = v1::HealthCheck {
        http: Some(v1::health_check::HttpCheckInfo::default()),
        ..v1::HealthCheck::default()
    };
    let command = v1::HealthCheck {
        command: Some(v1::CommandInfo {
            value: Some("true".to_owned()),
            ..v1::CommandInfo::default()
        }),
        ..v1::HealthCheck::default()
    };
    let tasks = vec![
        with("http", http),
        with("command", command),
        with("nothing", v1::HealthCheck::default()),
    ];
    world.call(&scheduler, accept(&[&offer], tasks));
    let kinds: Vec<_> = taken!(world, node.connection, RunTask)
        .into_iter()
        .map(|run| run.task.health_check.unwrap().r#type())
        .collect();
    use v1::health_check::Type;
    assert_eq!(kinds, [Type::Http, Type::Command]);
    let refused = world.updates(&scheduler).pop().unwrap();
    assert_eq!(
        refused.message(),
        "Task uses invalid health check: HealthCheck must specify 'type'"
    );
}
