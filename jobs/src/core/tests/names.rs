//! Names of jobs: each role has its own.

use super::*;
use crate::core::Refusal;
use crate::core::names::job_before;

fn service_in(role: &str, after: &[&str]) -> JobSpec {
    let mut spec = service(1, 1, 1);
    spec.role = role.to_owned();
    spec.after = after.iter().map(|name| (*name).to_owned()).collect();
    spec
}

/// Submits a job as a client of the API does, and returns its key.
fn submit_named(
    world: &mut World,
    spec: JobSpec,
    moves_from: Option<&str>,
) -> Result<String, Refusal> {
    let key = world.state.key_for(&spec, moves_from)?;
    let id = world.request(Request::Permitted {
        name: key.clone(),
        seen: world.state.authorities_of(&key),
        principal: None,
        request: Box::new(Request::Submit(Box::new(spec))),
    });
    world.sync();
    world.answers[&id].clone().map(|_| key)
}

/// Offers an agent to each role, and lets time pass.
fn run_in(world: &mut World, roles: &[&str]) {
    for (role, agent) in roles.iter().zip(world.agents()) {
        world.offer_in(role, &agent, 1);
    }
    world.calm(60, None);
}

#[test]
fn two_roles_share_a_job_name() {
    let mut world = World::new(1, 3);
    let of_ads = submit_named(&mut world, service_in("ads", &[]), None).expect("taken");
    let of_ops = submit_named(&mut world, service_in("ops/eu", &[]), None).expect("taken");
    assert_eq!((&*of_ads, &*of_ops), ("web@ads", "web@ops+eu"));
    run_in(&mut world, &["ads", "ops/eu"]);
    for (key, role) in [(&of_ads, "ads"), (&of_ops, "ops/eu")] {
        let view = world.state.job(key).expect("a job");
        assert_eq!((&*view.name, &*view.role, view.healthy), ("web", role, 1));
        let task = &view.tasks.expect("tasks")[0].task_id;
        assert!(task.starts_with(&format!("{key}.1.0.0.")), "{task}");
        let events = world.state.history(key).expect("a history").events;
        assert!(
            events
                .iter()
                .all(|one| one.job == "web" && one.role.as_deref() == Some(role))
        );
    }
    // Each job continues independently, also in the store.
    world.crash();
    world.request(Request::Stop {
        name: of_ads.clone(),
        purge: true,
    });
    world.calm(30, None);
    assert!(world.state.job(&of_ads).is_none());
    assert_eq!(world.state.job(&of_ops).expect("a job").healthy, 1);
    assert_eq!(
        (world.stored("job/web@ads"), world.stored("job/web@ops+eu")),
        (0, 1)
    );
}

#[test]
fn after_prefers_job_of_own_role() {
    let mut world = World::new(1, 3);
    let proxy = |role: &str, after: &str| JobSpec {
        name: "proxy".to_owned(),
        ..service_in(role, &[after])
    };
    submit_named(&mut world, service_in("ops", &[]), None).expect("taken");
    let of_ads = submit_named(&mut world, proxy("ads", "web"), None).expect("taken");
    let of_qa = submit_named(&mut world, proxy("qa", "ops/web"), None).expect("taken");
    run_in(&mut world, &["ops"]);
    run_in(&mut world, &["qa", "ads"]);
    let waiting = world.state.job(&of_ads).expect("a job");
    assert_eq!(waiting.why, "it starts after web, which does not exist yet");
    assert_eq!(waiting.running, 0);
    assert_eq!(world.state.job(&of_qa).expect("a job").running, 1);
    let before = |role: &str, name: &str| {
        let found = job_before(&world.state.jobs, &proxy(role, name), name);
        found.map(|job| job.name.clone())
    };
    assert_eq!(before("ads", "web"), None);
    assert_eq!(before("qa", "ops/web").as_deref(), Some("web@ops"));
    submit_named(&mut world, service_in("ads", &[]), None).expect("taken");
    run_in(&mut world, &["ads"]);
    run_in(&mut world, &["ads"]);
    assert_eq!(world.state.job(&of_ads).expect("a job").running, 1);
}

#[test]
fn moved_job_frees_its_name() {
    let mut world = World::new(1, 6);
    let moved = submit_named(&mut world, service_in("ads", &[]), None).expect("taken");
    world.calm(60, None);
    let key = submit_named(&mut world, service_in("ops", &[]), Some("ads")).expect("taken");
    assert_eq!(key, moved);
    world.calm(60, None);
    // The same file again submits the same job.
    let key = submit_named(&mut world, service_in("ops", &[]), Some("ads")).expect("taken");
    assert_eq!(key, moved);
    let other = submit_named(&mut world, service_in("ads", &[]), None).expect("taken");
    assert_eq!(other, "web@ads~2");
    world.calm(60, None);
    assert_eq!(world.state.key_in("ads", "web"), Some(&*other));
    assert_eq!(world.state.key_in("ops", "web"), Some(&*moved));
    let revert = Request::Revert {
        name: moved.clone(),
        version: Some(1),
    };
    let id = world.request(revert);
    world.sync();
    let refused = world.answers[&id].clone().expect_err("the name is taken");
    assert!(
        refused.to_string().contains("another job \"web\""),
        "{refused}"
    );
    // A failing version is accepted for the same job.
    let mut ill = service_in("ads", &[]);
    ill.task.command = Command::Shell("false".to_owned());
    assert_eq!(submit_named(&mut world, ill, Some("ads")), Ok(other));
}

#[test]
fn old_store_is_migrated_to_roles() {
    let mut world = World::new(1, 4);
    submit(&mut world, service_in("ops", &[]));
    let mut proxy = service_in("ads", &["web"]);
    proxy.name = "proxy".to_owned();
    submit(&mut world, proxy);
    run_in(&mut world, &["ops"]);
    run_in(&mut world, &["ads"]);
    // The record has the form of an older scheduler.
    for (key, value) in &mut world.disk {
        if key.starts_with("job/") {
            let text = String::from_utf8(value.clone()).expect("text");
            *value = text.replace("\"is_named_in_role\":true,", "").into_bytes();
        }
    }
    world.crash();
    world.calm(60, None);
    run_in(&mut world, &["ads"]);
    let after = world.state.version("proxy", None).expect("a version").1;
    assert_eq!(after.after, ["ops/web"]);
    assert_eq!(world.state.job("proxy").expect("a job").running, 1);
    assert_eq!(world.state.key_in("ops", "web"), Some("web"));
    // Another role may take the name nevertheless, and reads it so once.
    let of_qa = submit_named(&mut world, service_in("*", &[]), None).expect("taken");
    assert_eq!(of_qa, "web~2");
    world.crash();
    world.calm(60, None);
    assert!(world.state.job(&of_qa).is_some());
    assert_eq!(world.state.job("web").expect("a job").running, 1);
}

#[test]
fn bounds_of_role_include_nested_roles() {
    let mut world = World::new(1, 0);
    let sized = |role: &str, count: u32| JobSpec {
        role: role.to_owned(),
        ..batch("array", count)
    };
    assert!(submit_named(&mut world, sized("a/x", 600_000), None).is_ok());
    let refused = submit_named(&mut world, sized("a/y", 600_000), None).expect_err("too many");
    assert!(
        refused
            .to_string()
            .contains("role \"a\" and the roles below it"),
        "{refused}"
    );
    assert!(submit_named(&mut world, sized("b", 600_000), None).is_ok());
    // The limit also applies to the number of jobs: ten here.
    let mut world = World::new(1, 0);
    world.state.limits.jobs = 10;
    for number in 0..5 {
        let role = format!("a/{number}");
        assert!(
            submit_named(&mut world, sized(&role, 1), None).is_ok(),
            "{role}"
        );
    }
    assert!(submit_named(&mut world, sized("a/5", 1), None).is_err());
    assert!(submit_named(&mut world, sized("b", 1), None).is_ok());
}
