//! The version that instances run, where a version replaces one that was stopped or never ran.

use super::gangs::fail;
use super::*;

/// Returns the versions of the existing tasks.
fn versions_of(world: &World) -> Vec<u64> {
    let tasks = world.state.job("web").expect("a job").tasks;
    let tasks = tasks.expect("tasks").into_iter();
    tasks.map(|task| task.version).collect()
}

fn stop(world: &mut World) {
    let name = "web".to_owned();
    world.request(Request::Stop { name, purge: false });
    world.sync();
}

#[test]
fn stopped_service_starts_only_new_version() {
    let spec = service(8, 0, 1);
    let name = || "web".to_owned();
    for request in [
        Request::Submit(Box::new(changed(&spec, "third"))),
        Request::Restart { name: name() },
        Request::Revert {
            name: name(),
            version: Some(1),
        },
    ] {
        let mut world = World::new(7, 4);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        submit(&mut world, changed(&spec, "second"));
        world.calm(120, None);
        assert_eq!(versions_of(&world), [2; 8]);
        stop(&mut world);
        world.calm(10, None);
        world.request(request);
        for _ in 0..60 {
            world.calm(1, None);
            assert!(
                !versions_of(&world).contains(&2),
                "{:?}",
                versions_of(&world)
            );
        }
        assert_eq!(
            (state_of(&world, "web"), world.alive("web")),
            ("healthy", 8)
        );
    }
}

#[test]
fn only_corrected_file_runs_after_wait() {
    let mut world = World::new(7, 4);
    let spec = JobSpec {
        after: vec!["sooner".to_owned()],
        ..service(4, 0, 1)
    };
    submit(&mut world, spec.clone());
    world.calm(5, None);
    submit(&mut world, changed(&spec, "corrected"));
    // A time much longer than the deadline of an update.
    world.calm(300, None);
    assert_eq!(state_of(&world, "web"), "pending");
    submit(&mut world, batch("sooner", 1));
    for _ in 0..60 {
        world.calm(1, None);
        assert!(
            !versions_of(&world).contains(&1),
            "{:?}",
            versions_of(&world)
        );
    }
    assert_eq!(state_of(&world, "web"), "healthy");
}

#[test]
fn remains_of_forgotten_stop_end() {
    let mut world = World::new(7, 4);
    let spec = service(4, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    world.is_slow_to_end = true;
    stop(&mut world);
    submit(&mut world, changed(&spec, "second"));
    world.calm(5, None);
    assert_eq!(versions_of(&world), [1; 4]);
    world.crash();
    world.is_slow_to_end = false;
    world.calm(60, None);
    assert_eq!(versions_of(&world), [2; 4]);
    assert_eq!(state_of(&world, "web"), "healthy");
}

#[test]
fn earlier_version_stays_without_room() {
    let mut world = World::new(7, 4);
    let mut spec = service(4, 0, 1);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.update.auto_revert = false;
    submit(&mut world, spec.clone());
    world.calm(60, None);
    spec.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, spec);
    // While the update waits for room, the new version takes the place of one instance.
    world.calm(2, Some(1));
    assert!(world.alive("web") < 3);
    world.calm(60, None);
    assert_eq!(versions_of(&world), [1; 3]);
    // The update has failed, and none of its instances remains.
    world.calm(120, None);
    assert_eq!(
        (state_of(&world, "web"), versions_of(&world)),
        ("failed", vec![1; 4])
    );
    world.calm(2, Some(1));
    assert!(world.alive("web") < 3);
    world.calm(60, None);
    assert_eq!(versions_of(&world), [1; 4]);
}

#[test]
fn scaled_stopped_service_stays_stopped() {
    let mut world = World::new(7, 2);
    submit(&mut world, service(3, 0, 1));
    world.calm(30, None);
    stop(&mut world);
    world.calm(10, None);
    let (name, count, purge) = ("web".to_owned(), 2, false);
    world.request(Request::Scale { name, count, purge });
    world.calm(30, None);
    assert_eq!(
        (state_of(&world, "web"), world.alive("web")),
        ("stopped", 0)
    );
    let name = "web".to_owned();
    world.request(Request::Restart { name });
    world.calm(30, None);
    assert_eq!(
        (state_of(&world, "web"), world.alive("web")),
        ("healthy", 2)
    );
}

#[test]
fn stopped_service_restarts_after_dependencies() {
    for is_changed in [false, true] {
        let mut world = World::new(7, 4);
        let mut sooner = service(1, 0, 1);
        sooner.name = "sooner".to_owned();
        let mut spec = JobSpec {
            after: vec!["sooner".to_owned()],
            ..service(2, 0, 1)
        };
        for spec in [&sooner, &spec] {
            submit(&mut world, spec.clone());
        }
        world.calm(60, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        stop(&mut world);
        let (name, purge) = ("sooner".to_owned(), false);
        world.request(Request::Stop { name, purge });
        world.calm(10, None);
        if is_changed {
            spec = changed(&spec, "another");
        }
        submit(&mut world, spec.clone());
        // A time much longer than the deadline of an update, with starts of the scheduler in it.
        for _ in 0..20 {
            world.calm(10, None);
            world.crash();
            assert_eq!(world.alive("web"), 0);
        }
        let why = world.state.job("web").expect("a job").why;
        assert_eq!(why, "it starts after sooner, which is stopped");
        // A correction before the start keeps no instance of the earlier version up.
        submit(&mut world, changed(&spec, "corrected"));
        submit(&mut world, sooner);
        world.calm(60, None);
        let versions = versions_of(&world);
        assert_eq!(versions, [if is_changed { 3 } else { 2 }; 2]);
        assert_eq!(state_of(&world, "web"), "healthy");
    }
}

/// Returns a service whose instances count as healthy only after a minute.
fn slow_to_be_healthy(count: u32) -> JobSpec {
    let mut spec = service(count, 0, 1);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.update.healthy_after = Duration::from_secs(60);
    spec
}

#[test]
fn third_version_keeps_last_healthy_one() {
    let mut world = World::new(7, 4);
    let spec = slow_to_be_healthy(4);
    submit(&mut world, spec.clone());
    world.calm(120, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    submit(&mut world, changed(&spec, "ill"));
    world.calm(5, None);
    assert!(versions_of(&world).contains(&2));
    submit(&mut world, changed(&spec, "mended"));
    world.calm(5, None);
    assert_eq!(versions_of(&world), [1, 3, 1, 1, 1]);
    // An instance is lost while the first of the third version is being watched.
    let tasks = world.state.job("web").expect("a job").tasks;
    let lost = tasks.expect("tasks").pop().expect("a task").task_id;
    fail(&mut world, &lost);
    world.calm(20, None);
    assert_eq!(versions_of(&world), [1, 3, 1, 1, 1]);
    world.calm(600, None);
    assert_eq!(
        (state_of(&world, "web"), versions_of(&world)),
        ("healthy", vec![3; 4])
    );
}

#[test]
fn automatic_revert_keeps_current_count() {
    for is_file in [false, true] {
        let mut world = World::new(7, 6);
        let spec = service(3, 0, 1);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        // The new version fits nowhere.
        let mut ill = changed(&spec, "ill");
        ill.task.requests.insert("cpus".to_owned(), 64.0);
        submit(&mut world, ill.clone());
        world.calm(10, None);
        match is_file {
            true => submit(&mut world, JobSpec { count: 10, ..ill }),
            false => {
                let (name, count, purge) = ("web".to_owned(), 10, false);
                world.request(Request::Scale { name, count, purge });
                world.sync();
            }
        }
        world.calm(60, None);
        // One instance waits for room in the version that fits nowhere.
        assert_eq!(versions_of(&world), [1; 9]);
        for _ in 0..120 {
            world.calm(1, None);
            assert!(world.alive("web") >= 9, "{}", world.alive("web"));
        }
        let job = world.state.job("web").expect("a job");
        assert_eq!((job.state, job.version, job.count), ("healthy", 1, 10));
        assert_eq!(world.alive("web"), 10);
    }
}

#[test]
fn manual_revert_keeps_current_count() {
    for version in [Some(1), None] {
        let mut world = World::new(7, 6);
        let spec = service(3, 0, 1);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        submit(&mut world, changed(&spec, "second"));
        world.calm(120, None);
        let name = || "web".to_owned();
        let (count, purge) = (10, false);
        world.request(Request::Scale {
            name: name(),
            count,
            purge,
        });
        world.calm(60, None);
        assert_eq!(versions_of(&world), [2; 10]);
        world.request(Request::Revert {
            name: name(),
            version,
        });
        for _ in 0..300 {
            world.calm(1, None);
            assert!(world.alive("web") >= 9, "{}", world.alive("web"));
        }
        world.crash();
        world.calm(60, None);
        let job = world.state.job("web").expect("a job");
        assert_eq!((job.state, job.version, job.count), ("healthy", 1, 10));
        assert_eq!(versions_of(&world), [1; 10]);
    }
}

/// Regression: versions continued above those of the purged job.
#[test]
fn purged_name_restarts_at_version_1() {
    let mut world = World::new(1, 2);
    for round in 0..3 {
        submit(&mut world, service(2, 1, 1));
        world.calm(20, None);
        // The world checks that no id is used twice.
        let job = world.state.job("web").expect("a job");
        assert_eq!((job.state, job.version), ("healthy", 1), "round {round}");
        if round == 1 {
            world.crash();
        }
        let name = "web".to_owned();
        world.request(Request::Stop { name, purge: true });
        world.calm(20, None);
        assert!(world.state.job("web").is_none());
    }
}
