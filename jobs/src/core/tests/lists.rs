//! The lists of all jobs, page by page: together the pages contain everything.

use std::collections::BTreeSet;

use super::*;
use crate::core::view::VolumeView;
use crate::core::{Event, Tally, VolumeParts};
use crate::spec;

/// Returns jobs of each kind; some have tasks with ports and volumes, and one volume is to be released.
fn world() -> World {
    let mut world = World::new(1, 6);
    for number in 0..3 {
        let mut spec = service(3, 1, 1);
        spec.name = format!("web{number}");
        spec.task.ports = vec!["http".to_owned(), "admin".to_owned()];
        for agent in world.agents() {
            let ports = meseta_resources::Resources::parse(
                &format!("ports:[{0}-{0}]", 31_000 + 10 * number),
                &meseta_resources::Role::star(),
            );
            world.add_resources(&agent, &ports.expect("ports"));
        }
        submit(&mut world, spec);
        let mut spec = service(2, 1, 0);
        spec.name = format!("db{number}");
        spec.volume = Some(spec::Volume {
            size_mb: 10.0,
            path: "data".to_owned(),
        });
        submit(&mut world, spec);
        submit(&mut world, batch(&format!("array{number}"), 2));
    }
    world.calm(30, None);
    let (name, purge) = ("db1".to_owned(), true);
    world.request(Request::Stop { name, purge });
    world.sync();
    while world.deliver() {}
    world.sync();
    world
}

/// Regression: events waiting in readers' streams were judged by the role of the job that has the name at reading.
#[test]
fn events_keep_the_role_of_job() {
    let mut world = World::new(1, 2);
    let spec = service(1, 1, 0);
    let name = spec.name.clone();
    submit(&mut world, spec.clone());
    world.calm(30, None);
    let request = Request::Stop {
        name: name.clone(),
        purge: true,
    };
    world.request(request);
    world.calm(30, None);
    assert_eq!(world.state.role_of(&name), None, "it is purged");
    let of_first = world.events.len();
    let role = "another".to_owned();
    submit(&mut world, JobSpec { role, ..spec });
    world.calm(30, None);
    let roles = |events: &[Event]| -> BTreeSet<Option<String>> {
        events.iter().map(|event| event.role.clone()).collect()
    };
    let (first, second) = world.events.split_at(of_first);
    assert!(first.iter().any(|event| event.text == "purged"));
    assert!(!second.is_empty());
    assert_eq!(roles(first), BTreeSet::from([Some("r".to_owned())]));
    assert_eq!(roles(second), BTreeSet::from([Some("another".to_owned())]));
}

#[test]
fn volume_pages_cover_all_volumes() {
    let world = world();
    let all = world.state.volumes_behind(None, usize::MAX);
    assert_eq!(all.len(), 6);
    assert_eq!(
        world.state.volume_counts(),
        BTreeMap::from([("r".to_owned(), 6)])
    );
    let releasing = all.iter().filter(|volume| volume.state == "releasing");
    assert_eq!(releasing.count(), 2);
    for most in 1..7 {
        let (mut parts, mut list) = (Vec::new(), VolumeParts::default());
        while !list.is_over {
            let part = world.state.volumes_behind(list.behind.as_ref(), most);
            assert!(part.len() <= most);
            parts.extend(list.take(part, most, |_| true));
        }
        assert_eq!(parts, all, "{most} at a time");
    }
}

#[test]
fn released_volume_is_listed_only_once() {
    let mut world = world();
    let mut list = VolumeParts::default();
    let mut listed = Vec::new();
    let read = |world: &World, list: &VolumeParts, most| {
        world.state.volumes_behind(list.behind.as_ref(), most)
    };
    listed.extend(list.take(read(&world, &list, 3), 3, |_| true));
    let (name, purge) = (listed[0].key.clone(), true);
    world.request(Request::Stop { name, purge });
    world.sync();
    while world.deliver() {}
    world.sync();
    let all = world.state.volumes_behind(None, usize::MAX);
    let released = all.iter().find(|one| one.volume_id == listed[0].volume_id);
    assert_eq!(released.map(|one| one.state), Some("releasing"));
    while !list.is_over {
        listed.extend(list.take(read(&world, &list, 3), 3, |_| true));
    }
    let ids = |volumes: &[VolumeView]| {
        let mut ids: Vec<_> = volumes.iter().map(|one| one.volume_id.clone()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&listed), ids(&all));
}

#[test]
fn resubmitted_job_stays_within_page_role() {
    let mut world = world();
    let seen = |world: &World, role| {
        let (tasks, _) = world.state.task_views(("web0", Some(role)), None, 10);
        tasks.len()
    };
    assert_eq!((seen(&world, "r"), seen(&world, "s")), (3, 0));
    let (name, purge) = ("web0".to_owned(), true);
    world.request(Request::Stop { name, purge });
    world.calm(10, None);
    assert_eq!(seen(&world, "r"), 0);
    let mut spec = service(2, 1, 1);
    (spec.name, spec.role) = ("web0".to_owned(), "s".to_owned());
    submit(&mut world, spec);
    while world.deliver() {}
    world.offer_in("s", "a0", 2);
    while world.deliver() {}
    world.sync();
    assert_eq!((seen(&world, "r"), seen(&world, "s")), (0, 2));
}

#[test]
fn target_pages_cover_all_targets() {
    let world = world();
    let (all, next) = world.state.discovered_behind(None, usize::MAX);
    assert_eq!((all.is_empty(), next), (false, None));
    assert_eq!(
        world.state.port_counts(),
        BTreeMap::from([("r".to_owned(), all.len())])
    );
    for most in 1..9 {
        let (mut parts, mut last) = (Vec::new(), None);
        loop {
            let (part, next) = world.state.discovered_behind(last.as_ref(), most);
            parts.extend(part);
            last = next;
            if last.is_none() {
                break;
            }
        }
        assert_eq!(parts, all, "{most} at a time");
    }
}

#[test]
fn job_pages_are_bounded_as_shown() {
    let mut world = world();
    for number in 0..500 {
        submit(&mut world, batch(&format!("more{number}"), 1));
    }
    let (mut jobs, mut last, mut parts) = (Vec::new(), None::<String>, 0);
    loop {
        let part = world.state.jobs_behind(last.as_deref());
        assert!(part.len() <= 201, "{} jobs", part.len());
        let Some(job) = part.last() else {
            break;
        };
        last = Some(job.name.clone());
        jobs.extend(part);
        parts += 1;
    }
    assert_eq!((jobs.len(), world.state.job_count()), (508, 508));
    assert!(parts >= 3, "{parts}");
    let (mut tally, mut last) = (Tally::default(), None::<String>);
    loop {
        let (part, next) = world.state.tally_behind(last.as_deref());
        tally.add(&part);
        last = next;
        if last.is_none() {
            break;
        }
    }
    let mut expected = Tally::default();
    for job in &jobs {
        *expected.jobs.entry(job.state).or_default() += 1;
        expected.running += job.running;
        expected.healthy += job.healthy;
        expected.pending += job.pending;
    }
    for volume in world.state.volumes_behind(None, usize::MAX) {
        *expected.volumes.entry(volume.state).or_default() += 1;
    }
    assert_eq!(tally, expected);
}
