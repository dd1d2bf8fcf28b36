//! Updates that lose instances on their way, and rollbacks to a version that fails.

use meseta_proto::mesos::v1::TaskState;

use super::lost_agents::report;
use super::*;
use crate::core::MayRun;

fn update_of(spec: &mut JobSpec) -> &mut Update {
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    &mut kind.update
}

/// Returns the ids of the instances of a version.
fn instances_of(world: &World, version: u64) -> Vec<String> {
    let tasks = world.state.job("web").unwrap().tasks.unwrap();
    let of_version = tasks.into_iter().filter(|task| task.version == version);
    of_version.map(|task| task.task_id).collect()
}

fn healthy_in(world: &World, version: u64) -> usize {
    let tasks = world.state.job("web").unwrap().tasks.unwrap();
    let healthy = tasks.iter().filter(|task| task.healthy);
    healthy.filter(|task| task.version == version).count()
}

#[test]
fn revert_to_failing_keeps_service_up() {
    for reverts_by_itself in [false, true] {
        let mut world = World::new(7, 4);
        let mut spec = service(4, 1, 1);
        update_of(&mut spec).auto_revert = reverts_by_itself;
        update_of(&mut spec).healthy_after = Duration::from_secs(10);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        submit(&mut world, changed(&spec, "second"));
        world.calm(200, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        let (name, version) = ("web".to_owned(), Some(1));
        world.request(Request::Revert { name, version });
        world.sync();
        for _ in 0..6 {
            world.calm(60, Some(1));
            assert!(healthy_in(&world, 2) >= 3, "{}", healthy_in(&world, 2));
            // An agent dies now and then.
            let lost = instances_of(&world, 2).into_iter().next();
            report(&mut world, &lost.expect("an instance"), TaskState::TaskLost);
        }
        world.calm(120, Some(1));
        let view = world.state.job("web").unwrap();
        let expected = match reverts_by_itself {
            true => ("healthy", 2),
            false => ("failed", 1),
        };
        assert_eq!((view.state, view.version), expected);
        assert!(healthy_in(&world, 2) >= 3);
    }
}

/// Progress of an update that regains instances after losses that it did not cause.
#[test]
fn update_recovers_after_losses() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 0, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(50);
    submit(&mut world, spec.clone());
    world.calm(120, None);
    submit(&mut world, changed(&spec, "another"));
    let mut seconds = 0;
    while healthy_in(&world, 2) < 3 {
        world.calm(1, None);
        seconds += 1;
        assert!(seconds < 1_000);
    }
    for id in instances_of(&world, 2) {
        if world.lives(&id) {
            report(&mut world, &id, TaskState::TaskLost);
        }
    }
    world.calm(500, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn update_progresses_despite_flapping_agent() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 0, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(50);
    submit(&mut world, spec.clone());
    world.calm(120, None);
    submit(&mut world, changed(&spec, "another"));
    for _ in 0..6 {
        world.calm(55, None);
        let new = instances_of(&world, 2)
            .into_iter()
            .find(|id| world.lives(id));
        // No rollback happens while an instance is being replaced.
        world.lose_agent_of(&new.expect("an instance"));
        world.calm(20, None);
        world.return_all();
        assert_eq!(world.state.job("web").unwrap().version, 2);
    }
    world.calm(500, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn repeatedly_failing_instance_makes_no_progress() {
    let mut world = World::new(3, 4);
    let mut spec = service(2, 0, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(5);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    submit(&mut world, changed(&spec, "another"));
    let mut failures = 0;
    for _ in 0..300 {
        world.calm(1, None);
        let view = world.state.job("web").unwrap();
        let ill = view.tasks.unwrap().into_iter();
        let mut ill = ill.filter(|task| task.version == 2 && task.healthy);
        if let Some(task) = ill.next().filter(|_| view.version == 2) {
            report(&mut world, &task.task_id, TaskState::TaskFailed);
            failures += 1;
        }
    }
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 1));
    assert!(failures <= 4, "{failures}");
}

#[test]
fn scaling_during_update_restarts_progress() {
    let mut world = World::new(3, 4);
    let mut spec = service(8, 0, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(50);
    submit(&mut world, spec.clone());
    world.calm(120, None);
    submit(&mut world, changed(&spec, "another"));
    while healthy_in(&world, 2) < 6 {
        world.calm(1, None);
    }
    let (name, count, purge) = ("web".to_owned(), 3, false);
    world.request(Request::Scale { name, count, purge });
    world.calm(20, None);
    let (name, count, purge) = ("web".to_owned(), 8, false);
    world.request(Request::Scale { name, count, purge });
    world.calm(400, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn role_change_keeps_old_version_up() {
    for role in ["r", "s"] {
        let mut world = World::new(7, 4);
        let mut spec = service(4, 0, 1);
        update_of(&mut spec).auto_revert = false;
        submit(&mut world, spec.clone());
        world.calm(60, None);
        spec.task.requests.insert("cpus".to_owned(), 64.0);
        role.clone_into(&mut spec.role);
        submit(&mut world, spec);
        world.calm(5, None);
        for id in instances_of(&world, 1).into_iter().take(3) {
            report(&mut world, &id, TaskState::TaskLost);
        }
        world.calm(60, None);
        // The new version waits in place of one instance.
        assert_eq!(world.alive("web"), 3, "role {role}");
        world.calm(300, None);
        assert_eq!(world.alive("web"), 4, "role {role}");
        assert_eq!(instances_of(&world, 1).len(), 4);
    }
}

/// A run continues in the role in which it began.
#[test]
fn role_change_finishes_previous_run() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let mut spec = cron(Overlap::Allow);
    spec.count = 12;
    submit(&mut world, spec.clone());
    world.pass(Duration::from_secs(41));
    world.make_offers();
    while world.deliver() {}
    world.sync();
    spec.role = "s".to_owned();
    submit(&mut world, spec);
    world.calm(10, None);
    let of_first = |world: &World| {
        let successes = world.successes.keys();
        successes.filter(|(_, run, _)| *run == 1).count()
    };
    assert_eq!(of_first(&world), 12);
}

/// Returns the marks of the versions: the current one, and the last good one.
fn marks(world: &World) -> Vec<(u64, bool, bool)> {
    let versions = world.state.history("web").unwrap().versions;
    let marks = versions
        .iter()
        .map(|one| (one.version, one.current, one.stable));
    marks.collect()
}

#[test]
fn default_update_rejects_short_lived_version() {
    let mut world = World::new(5, 4);
    let mut spec = service(4, 0, 1);
    let text = "name = \"web\"\n[task]\ncommand = \"true\"\n";
    let Kind::Service(defaults) = crate::file::from_toml(text).expect("a job").kind else {
        panic!("a service");
    };
    *update_of(&mut spec) = defaults.update;
    submit(&mut world, spec.clone());
    world.calm(60, None);
    submit(&mut world, changed(&spec, "dies"));
    for _ in 0..200 {
        world.calm(1, None);
        let tasks = world.state.job("web").unwrap().tasks.unwrap();
        let now = world.now().unix.as_secs();
        for task in tasks.iter().filter(|task| task.version == 2) {
            if task.state == "TASK_RUNNING" && now >= task.since + 3 {
                report(&mut world, &task.task_id, TaskState::TaskFailed);
            }
        }
        assert_eq!(healthy_in(&world, 2), 0);
        assert!(healthy_in(&world, 1) >= 4);
    }
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 1));
    assert_eq!(marks(&world), [(1, true, true), (2, false, false)]);
}

#[test]
fn pause_separates_instances_before_mark() {
    let mut world = World::new(5, 4);
    let mut spec = service(3, 0, 1);
    update_of(&mut spec).pause = Duration::from_secs(20);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    assert_eq!(marks(&world), [(1, true, true)]);
    submit(&mut world, changed(&spec, "second"));
    let mut seconds = Vec::new();
    for second in 0..120 {
        world.calm(1, None);
        if healthy_in(&world, 2) > seconds.len() {
            seconds.push(second);
            assert_eq!(marks(&world), [(1, false, true), (2, true, false)]);
        }
    }
    assert_eq!(seconds.len(), 3, "{seconds:?}");
    assert!(
        seconds.windows(2).all(|pair| pair[1] - pair[0] >= 20),
        "{seconds:?}"
    );
    assert_eq!(marks(&world), [(1, false, false), (2, true, true)]);
}

/// Submits a version for a principal.
fn submit_for(world: &mut World, principal: &str, spec: JobSpec) {
    let id = world.request(Request::Permitted {
        name: spec.name.clone(),
        seen: world.state.authorities_of(&spec.name),
        principal: Some(principal.to_owned()),
        request: Box::new(Request::Submit(Box::new(spec))),
    });
    world.sync();
    assert!(world.answers[&id].is_ok());
}

#[test]
fn automatic_revert_needs_rights_of_submitter() {
    for may_still_run in [true, false] {
        let mut world = World::new(3, 4);
        let spec = service(2, 1, 1);
        submit_for(&mut world, "ann", spec.clone());
        world.calm(120, None);
        assert_eq!(world.state.job("web").expect("a job").state, "healthy");
        submit_for(&mut world, "bob", changed(&spec, "another"));
        // The rule also applies after a restart of the scheduler.
        world.crash();
        world
            .state
            .ask_rules(MayRun::new(move |principal, authority| {
                assert_eq!((principal, &*authority.role), ("ann", "r"));
                may_still_run
            }));
        world.calm(900, Some(2));
        let view = world.state.job("web").expect("a job");
        let expected = if may_still_run { "healthy" } else { "failed" };
        assert_eq!(view.state, expected);
        let running = view.tasks.expect("tasks").into_iter();
        let is_old = running.filter(|task| task.version == 1).count() > 0;
        assert!(is_old || !may_still_run);
        let events = world.state.history("web").expect("a history").events;
        let told = "\"ann\", who submitted version 1, may no longer run it";
        let is_told = events.iter().any(|event| event.text.contains(told));
        assert_eq!(is_told, !may_still_run);
    }
}

/// Regression: only the history showed the failure, and only while this scheduler led.
#[test]
fn failed_update_stays_until_next_version() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 1, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(5);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let failed = |world: &World| {
        let job = world.state.job("web").unwrap();
        (job.why, job.failed_update.map(|failed| failed.version))
    };
    assert_eq!(failed(&world), (String::new(), None));
    submit(&mut world, changed(&spec, "ill"));
    for _ in 0..3 {
        let mut ids = Vec::new();
        while ids.is_empty() {
            world.calm(1, None);
            ids = instances_of(&world, 2);
            let view = world.state.job("web").unwrap();
            let tasks = view.tasks.unwrap();
            ids.retain(|id| {
                tasks
                    .iter()
                    .any(|task| task.task_id == *id && task.state == "TASK_RUNNING")
            });
        }
        report(&mut world, &ids[0], TaskState::TaskFailed);
    }
    world.calm(1, None);
    let why = "version 2 was taken back: its instances have ended 3 times without one becoming healthy; the last: web.2.";
    for _ in 0..2 {
        world.calm(60, None);
        let (told, version) = failed(&world);
        assert!(told.starts_with(why), "{told}");
        assert_eq!((state_of(&world, "web"), version), ("healthy", Some(2)));
        world.crash();
    }
    // An instance that never becomes healthy has no failed task.
    let mut late = changed(&spec, "late");
    late.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, late);
    assert_eq!(failed(&world).1, None);
    world.calm(700, None);
    let (told, version) = failed(&world);
    assert!(
        told.starts_with("version 3 was taken back: no instance has become healthy for "),
        "{told}"
    );
    assert_eq!(version, Some(3));
    submit(&mut world, changed(&spec, "well"));
    world.calm(200, None);
    assert_eq!(failed(&world), (String::new(), None));
}
