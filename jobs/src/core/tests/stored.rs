//! The stored data of jobs: only changes are written.

use std::collections::BTreeSet;

use meseta_proto::mesos::v1::TaskState;

use super::*;
use crate::core::Refusal;
use crate::core::records::{Key, META_KEY, Meta, cluster_in};

/// Returns a service whose versions have this number of bytes.
fn large(bytes: usize, letter: &str) -> JobSpec {
    changed(&service(1, 1, 1), &letter.repeat(bytes))
}

/// Returns a world with a job that has had ten versions.
fn with_ten_versions(bytes: usize) -> World {
    let mut world = World::new(1, 2);
    for letter in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        submit(&mut world, large(bytes, letter));
    }
    world.written.clear();
    world
}

fn scale(world: &mut World, count: u32) {
    let (name, purge) = ("web".to_owned(), false);
    world.request(Request::Scale { name, count, purge });
    world.sync();
}

fn bytes_written(world: &mut World) -> usize {
    let written = std::mem::take(&mut world.written);
    written.into_iter().filter_map(|(_, bytes)| bytes).sum()
}

#[test]
fn cluster_of_jobs_survives_restart() {
    let mut world = World::new(1, 1);
    assert_eq!(world.state.cluster_id(), None);
    world.step(Input::Cluster("c".to_owned()));
    world.sync();
    world.crash();
    assert_eq!(world.state.cluster_id(), Some("c"));
    // A scheduler that follows reads it as well.
    let meta = world.disk.get(META_KEY).expect("a record");
    assert_eq!(cluster_in(meta).as_deref(), Some("c"));
    assert_eq!(cluster_in(b"nonsense"), None);
}

#[test]
fn change_rewrites_no_unchanged_specification() {
    let mut world = with_ten_versions(50_000);
    assert_eq!(world.stored("version/web/"), 10);
    scale(&mut world, 3);
    assert!(bytes_written(&mut world) < 4_000);
    world.crash();
    let versions = |world: &World| world.state.jobs["web"].record.versions.clone();
    let present = versions(&world);
    assert_eq!(present.len(), 10);
    assert_eq!(
        *present[&10].spec,
        JobSpec {
            count: 3,
            ..large(50_000, "j")
        }
    );
    assert_eq!(*present[&1].spec, large(50_000, "a"));
    bytes_written(&mut world);
    scale(&mut world, 2);
    assert!(bytes_written(&mut world) < 4_000);
    // A new version is written once, and the oldest goes.
    submit(&mut world, large(50_000, "k"));
    let written = bytes_written(&mut world);
    assert!((50_000..60_000).contains(&written), "{written}");
    submit(&mut world, large(50_000, "l"));
    world.calm(30, None);
    submit(&mut world, large(50_000, "m"));
    world.crash();
    assert_eq!(world.stored("version/web/"), versions(&world).len());
    assert!(!versions(&world).contains_key(&1));
    world.request(Request::Stop {
        name: "web".to_owned(),
        purge: true,
    });
    world.calm(5, None);
    assert_eq!((world.stored("version/"), world.stored("job/")), (0, 0));
}

#[test]
fn small_versions_keep_the_earlier_format() {
    let mut world = with_ten_versions(100);
    scale(&mut world, 3);
    assert_eq!(world.stored("version/"), 0);
    let record = Key::Job("web".to_owned()).put(&world.state.jobs["web"].record);
    assert_eq!(world.disk.get("job/web"), record.value.as_ref());
}

#[test]
fn large_inline_versions_are_moved() {
    let mut world = with_ten_versions(50_000);
    // The earlier format has all versions in one record.
    let record = world.state.jobs["web"].record.clone();
    let whole = Key::Job("web".to_owned()).put(&record);
    world.disk.retain(|key, _| !key.starts_with("version/"));
    world.disk.insert(whole.key, whole.value.expect("a value"));
    world.crash();
    assert_eq!(world.state.jobs["web"].record, record);
    scale(&mut world, 3);
    assert_eq!(world.stored("version/web/"), 10);
    assert!(world.disk["job/web"].len() < 4_000);
    world.crash();
    let versions = &world.state.jobs["web"].record.versions;
    assert_eq!((versions.len(), versions[&10].spec.count), (10, 3));
    assert_eq!(versions[&9], record.versions[&9]);
}

#[test]
fn specification_bytes_leave_each_role_room() {
    let mut world = World::new(1, 2);
    world.state.limits.spec_bytes = 1_000_000;
    let answer = |world: &mut World, request| -> Result<u64, Refusal> {
        let id = world.request(request);
        world.sync();
        world.answers[&id].clone()
    };
    let named = |role: &str, number: u32, letter: &str| {
        Request::Submit(Box::new(JobSpec {
            name: format!("{role}{number}"),
            role: role.to_owned(),
            ..large(100_000, letter)
        }))
    };
    for number in 0..4 {
        assert!(answer(&mut world, named("r", number, "a")).is_ok());
    }
    for request in [
        named("r", 4, "a"),
        named("r", 0, "b"),
        Request::Restart {
            name: "r0".to_owned(),
        },
    ] {
        let refused = answer(&mut world, request).expect_err("too much");
        assert!(refused.to_string().contains("may have 500000"), "{refused}");
    }
    // A stored job may be submitted again, and scaled.
    assert!(answer(&mut world, named("r", 0, "a")).is_ok());
    let (name, purge) = ("r0".to_owned(), false);
    let scale = Request::Scale {
        name,
        count: 2,
        purge,
    };
    assert!(answer(&mut world, scale).is_ok());
    assert!(answer(&mut world, named("other", 0, "a")).is_ok());
    world.crash();
    world.state.limits.spec_bytes = 1_000_000;
    assert!(answer(&mut world, named("r", 4, "a")).is_err());
    world.request(Request::Stop {
        name: "r3".to_owned(),
        purge: true,
    });
    world.calm(3, None);
    assert!(answer(&mut world, named("r", 4, "a")).is_ok());
}

#[test]
fn old_complete_job_frees_its_bytes() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    world.state.limits.spec_bytes = 1_000_000;
    let array = |number: u32, bytes: usize| JobSpec {
        name: format!("array{number}"),
        ..changed(&batch("array", 1), &"a".repeat(bytes))
    };
    for number in 0..4 {
        submit(&mut world, array(number, 100_000));
        world.calm(10, None);
    }
    assert_eq!(state_of(&world, "array3"), "complete");
    let answer = |world: &mut World, spec| {
        let id = world.request(Request::Submit(Box::new(spec)));
        world.sync();
        world.answers[&id].clone()
    };
    assert!(answer(&mut world, array(4, 100_000)).is_err());
    let two_days = 2 * 24 * 3_600;
    for _ in 0..two_days / 3_600 {
        world.stand_still(Duration::from_secs(3_600));
    }
    // No job is forgotten if that would not make enough room.
    assert!(answer(&mut world, array(4, 600_000)).is_err());
    assert_eq!(world.state.job_count(), 4);
    assert!(answer(&mut world, array(4, 100_000)).is_ok());
    let names: Vec<_> = world.state.jobs.keys().cloned().collect();
    assert_eq!(names, ["array1", "array2", "array3", "array4"]);
    // The job submitted again is not forgotten either.
    assert!(answer(&mut world, array(1, 99_000)).is_ok());
    let names: Vec<_> = world.state.jobs.keys().cloned().collect();
    assert_eq!(names, ["array1", "array3", "array4"]);
}

/// A copy of the store that was put back made ids anew.
#[test]
fn restored_store_never_reuses_ids() {
    for volumes in [false, true] {
        let mut world = World::new(1, 3);
        let spec = match volumes {
            false => service(2, 1, 1),
            true => volumes::database(2),
        };
        submit(&mut world, spec);
        world.calm(20, None);
        let mut copies = vec![world.disk.clone()];
        for _ in 0..3 {
            // The world holds that no id of a task comes twice.
            for _ in 0..2 {
                let task = world
                    .state
                    .job("web")
                    .expect("a job")
                    .tasks
                    .expect("tasks")
                    .pop();
                updates::ended(
                    &mut world,
                    &task.expect("a task").task_id,
                    TaskState::TaskLost,
                );
                world.calm(20, None);
            }
            world.crash();
            world.calm(20, None);
            copies.push(world.disk.clone());
        }
        for copy in copies {
            world.disk = copy;
            world.crash();
            world.calm(60, None);
            assert_eq!(state_of(&world, "web"), "healthy", "volumes {volumes}");
        }
    }
}

/// Schedulers on two copies of a store that started in the same second made the same ids.
#[test]
fn simultaneous_copies_share_no_id() {
    let ids_of = |drawn| {
        let mut world = World::new(1, 3);
        submit(&mut world, service(2, 1, 1));
        world.calm(20, None);
        world.draw(drawn);
        world.crash();
        let before = ids(&world);
        for id in &before {
            updates::ended(&mut world, id, TaskState::TaskLost);
        }
        world.calm(20, None);
        let after = ids(&world);
        assert!(after.len() == 2 && after.is_disjoint(&before), "{after:?}");
        after
    };
    let (first, second) = (ids_of(1), ids_of(2));
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    // A clock that was set back begins no generation anew.
    let mut meta = Meta::default();
    let mut generations = BTreeSet::new();
    for seconds in [1_000, 1_000, 10, 1_001] {
        for drawn in [7, 8] {
            let mut copy = meta.clone();
            copy.begin_generation(Duration::from_secs(seconds), drawn);
            assert!(copy.generation > meta.generation);
            assert!(generations.insert(copy.generation), "{generations:?}");
            if drawn == 8 {
                meta = copy;
            }
        }
    }
}

fn ids(world: &World) -> BTreeSet<String> {
    let tasks = world.state.job("web").expect("a job").tasks;
    let tasks = tasks.expect("tasks").into_iter();
    tasks.map(|task| task.task_id).collect()
}
