//! Instances with volumes: each returns to its own volume, and data is destroyed only by a client's request.

use std::collections::BTreeMap;

use meseta_resources::{Reservation, Resources, Role};

use super::*;
use crate::core::job::KEYED;
use crate::core::launch::ROLE_WORK_MIN;
use crate::core::volumes::LOOKED;
use crate::core::{Refusal, TaskName};
use crate::spec::Volume;

pub(super) fn database(count: u32) -> JobSpec {
    JobSpec {
        volume: Some(Volume {
            size_mb: 10.0,
            path: "data".to_owned(),
        }),
        ..service(count, 1, 0)
    }
}

fn task_of(world: &World, index: u32) -> Option<String> {
    let job = world.state.job("web").expect("a job");
    let tasks = job.tasks.expect("tasks");
    let task = tasks.iter().find(|task| task.index == index)?;
    Some(task.task_id.clone())
}

/// Returns the volume on which the task of an index runs.
fn volume_of(world: &World, index: u32) -> String {
    let task = task_of(world, index).expect("a task");
    world.volumes[&task].clone()
}

fn done(world: &mut World, request: Request) {
    let id = world.request(request);
    world.sync();
    assert!(
        matches!(world.answers.get(&id), Some(Ok(_))),
        "{:?}",
        world.answers.get(&id)
    );
}

fn release(index: u32) -> Request {
    Request::Release {
        name: "web".to_owned(),
        index,
        volume_id: None,
    }
}

fn stop(world: &mut World, purge: bool) {
    let name = "web".to_owned();
    done(world, Request::Stop { name, purge });
}

#[test]
fn instances_return_and_purge_frees_volumes() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 3);
        let spec = database(3);
        submit(&mut world, spec.clone());
        let mut homes: BTreeMap<u32, String> = BTreeMap::new();
        for round in 0..6 {
            chaos(&mut world, 150, true);
            world.return_all();
            world.calm(200, None);
            assert_eq!(
                state_of(&world, "web"),
                "healthy",
                "seed {seed}, round {round}"
            );
            for index in 0..3 {
                let volume = volume_of(&world, index);
                let home = homes.entry(index).or_insert_with(|| volume.clone());
                assert_eq!(*home, volume, "instance {index} of seed {seed}");
            }
            submit(&mut world, changed(&spec, &format!("version {round}")));
        }
        assert_eq!(world.destroyed, [""; 0]);
        // Each task had the volume of its index, and no other volume.
        for (task, volume) in &world.volumes {
            let name: TaskName = task.parse().expect("one of ours");
            if world.existing().contains(volume) {
                assert_eq!(*volume, homes[&name.index], "{task}");
            }
        }
        stop(&mut world, true);
        chaos(&mut world, 50, false);
        world.calm(100, None);
        assert_eq!(world.reserved(), [""; 0], "seed {seed}");
        assert!(world.state.job("web").is_none());
        assert_eq!(world.state.volumes_behind(None, usize::MAX), []);
        assert_eq!(world.destroyed.len(), 3, "{:?}", world.destroyed);
        // The scheduler no longer requests offers.
        assert!(world.is_suppressed("r") || world.state.roles().is_empty());
    }
}

#[test]
fn instance_awaits_agent_of_its_volume() {
    let mut world = World::new(1, 3);
    submit(&mut world, database(1));
    world.calm(20, None);
    let (task, volume) = (task_of(&world, 0).unwrap(), volume_of(&world, 0));
    // A new version replaces the earlier one, which uses the volume.
    let mut larger = changed(&database(1), "another");
    for (cpus, fits) in [(1.0, 1), (4.0, 1), (5.0, 0)] {
        larger.task.requests.insert("cpus".to_owned(), cpus);
        let plan = plan_of(&world, &larger);
        assert_eq!((plan.wants, plan.fits), (1, fits), "{cpus} cpus: {plan:?}");
    }
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    world.return_others(&task);
    // A time much longer than the scheduler waits for the task of a service without a volume.
    world.calm(300, None);
    // A new version finds no room either.
    let plan = plan_of(&world, &changed(&database(1), "another"));
    assert_eq!((plan.wants, plan.fits), (1, 0), "{plan:?}");
    let job = world.state.job("web").unwrap();
    assert!(
        job.why.contains("which has its volume and is away"),
        "{}",
        job.why
    );
    assert_eq!(task_of(&world, 0), Some(task));
    // Neither the scheduler nor a stop forgets the volume.
    world.crash();
    stop(&mut world, false);
    world.calm(100, None);
    assert_eq!(state_of(&world, "web"), "stopped");
    submit(&mut world, database(1));
    world.calm(60, None);
    let why = world.state.job("web").unwrap().why;
    assert!(
        why.contains("which has its volume and has not offered it"),
        "{why}"
    );
    world.return_all();
    world.calm(60, None);
    assert_eq!(
        (state_of(&world, "web"), volume_of(&world, 0)),
        ("healthy", volume)
    );
}

/// Places one instance on each agent, and lets the agent of one instance go away.
fn instances_apart(world: &mut World, count: u32, away: u32) -> JobSpec {
    let mut spec = database(count);
    spec.task.requests.insert("cpus".to_owned(), 3.0);
    submit(world, spec.clone());
    world.calm(30, None);
    let task = task_of(world, away).unwrap();
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    world.return_others(&task);
    spec
}

#[test]
fn released_volume_lets_instance_restart_elsewhere() {
    let mut world = World::new(1, 3);
    instances_apart(&mut world, 2, 1);
    let old = volume_of(&world, 1);
    // A time much longer than the scheduler waits for the task of a service without a volume.
    world.calm(100, None);
    assert_eq!(volume_of(&world, 1), old);
    done(&mut world, release(1));
    world.calm(100, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    assert_ne!(volume_of(&world, 1), old);
    world.return_all();
    world.calm(100, None);
    assert_eq!(world.destroyed, [old]);
    assert_eq!(
        (state_of(&world, "web"), world.alive("web")),
        ("healthy", 2)
    );
}

#[test]
fn surplus_absent_instance_displaces_no_other() {
    let mut world = World::new(1, 3);
    let spec = instances_apart(&mut world, 2, 1);
    let kept = volume_of(&world, 1);
    submit(&mut world, JobSpec { count: 1, ..spec });
    world.calm(100, None);
    assert_eq!(task_of(&world, 1), None);
    let first = task_of(&world, 0).unwrap();
    world.advance(Some(1));
    world.calm(60, None);
    assert_ne!(task_of(&world, 0).unwrap(), first);
    assert_eq!(state_of(&world, "web"), "healthy");
    // The instance's volume is kept for it.
    world.return_all();
    let name = "web".to_owned();
    let (count, purge) = (2, false);
    done(&mut world, Request::Scale { name, count, purge });
    world.calm(60, None);
    assert_eq!(volume_of(&world, 1), kept);
}

#[test]
fn release_waits_for_agent_return() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(1));
    world.calm(20, None);
    let task = task_of(&world, 0).unwrap();
    let old = volume_of(&world, 0);
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    world.return_others(&task);
    stop(&mut world, true);
    world.calm(100, None);
    assert!(world.state.job("web").is_none());
    assert_eq!(
        world.state.volumes_behind(None, usize::MAX)[0].state,
        "releasing"
    );
    world.crash();
    // The job exists again meanwhile, with its own volume.
    submit(&mut world, database(1));
    world.calm(60, None);
    let new = volume_of(&world, 0);
    assert_ne!(old, new);
    world.return_all();
    world.calm(100, None);
    assert_eq!(world.destroyed, [old]);
    assert_eq!(world.existing(), std::slice::from_ref(&new));
    assert_eq!(
        (state_of(&world, "web"), volume_of(&world, 0)),
        ("healthy", new)
    );
}

#[test]
fn scaling_down_keeps_volumes_unless_purged() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(3));
    world.calm(30, None);
    let third = volume_of(&world, 2);
    let scale = |world: &mut World, count, purge| {
        let name = "web".to_owned();
        done(world, Request::Scale { name, count, purge });
        world.calm(60, None);
    };
    scale(&mut world, 2, false);
    assert_eq!(world.existing().len(), 3);
    scale(&mut world, 3, false);
    assert_eq!(volume_of(&world, 2), third);
    scale(&mut world, 2, true);
    assert_eq!(world.destroyed, [third]);
    assert_eq!(world.existing().len(), 2);
    // A task that was given up starts again.
    let (first, second) = (volume_of(&world, 0), volume_of(&world, 1));
    done(&mut world, release(1));
    world.crash();
    world.calm(60, None);
    assert_eq!(volume_of(&world, 0), first);
    assert_ne!(volume_of(&world, 1), second);
    assert!(world.destroyed.contains(&second));
    let id = world.request(release(7));
    world.sync();
    assert!(matches!(world.answers.get(&id), Some(Err(_))));
}

#[test]
fn waiting_purge_cannot_be_revoked() {
    let mut world = World::new(1, 2);
    let spec = database(1);
    submit(&mut world, spec.clone());
    world.calm(30, None);
    let volume = volume_of(&world, 0);
    world.is_slow_to_end = true;
    stop(&mut world, true);
    let name = || "web".to_owned();
    for request in [
        Request::Submit(Box::new(spec.clone())),
        Request::Submit(Box::new(changed(&spec, "another"))),
        Request::Restart { name: name() },
        Request::Revert {
            name: name(),
            version: Some(1),
        },
        Request::Scale {
            name: name(),
            count: 2,
            purge: false,
        },
    ] {
        let id = world.request(request);
        world.sync();
        let refused = matches!(&world.answers[&id], Err(Refusal::Conflict(why)) if why.contains("is being purged"));
        assert!(refused, "{:?}", world.answers[&id]);
    }
    let refused = plan_of(&world, &spec).obstacles;
    assert!(refused[0].contains("is being purged"), "{refused:?}");
    stop(&mut world, false);
    world.is_slow_to_end = false;
    world.calm(60, None);
    assert_eq!(world.destroyed, [volume]);
    assert!(world.state.job("web").is_none());
    submit(&mut world, spec);
}

#[test]
fn failed_volume_is_retried_elsewhere() {
    let mut world = World::new(1, 2);
    world.fails_to_create = true;
    submit(&mut world, database(1));
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "pending");
    assert_eq!(world.existing(), [""; 0]);
    let history = world.state.history("web").unwrap();
    let told = history
        .events
        .iter()
        .any(|event| event.text.contains("failed to create volume"));
    assert!(told, "{:?}", history.events);
    world.fails_to_create = false;
    world.calm(100, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    // Only the used volume is left after the failures.
    assert_eq!(world.state.volumes_behind(None, usize::MAX).len(), 1);
    stop(&mut world, true);
    world.calm(30, None);
    assert_eq!(world.reserved(), [""; 0]);
}

#[test]
fn lost_launch_leaves_exactly_one_volume() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(1));
    world.loses_accepts = true;
    world.calm(4, None);
    assert_eq!(
        world.state.volumes_behind(None, usize::MAX)[0].state,
        "creating"
    );
    world.loses_accepts = false;
    world.disconnect();
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    assert_eq!(world.state.volumes_behind(None, usize::MAX).len(), 1);
    // The master forgets the framework together with its operations: the scheduler finds the volume in an offer.
    let volume = volume_of(&world, 0);
    let task = task_of(&world, 0).unwrap();
    world.mark_lost(&task);
    world.step(Input::FrameworkRemoved);
    world.disconnect();
    world.calm(60, None);
    assert_eq!(
        (state_of(&world, "web"), volume_of(&world, 0)),
        ("healthy", volume)
    );
}

#[test]
fn gone_agent_loses_its_volume() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(1));
    world.calm(20, None);
    let (task, volume) = (task_of(&world, 0).unwrap(), volume_of(&world, 0));
    world.mark_gone(&task);
    world.calm(200, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    assert_ne!(volume_of(&world, 0), volume);
}

#[test]
fn version_without_volumes_awaits_no_agent() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(1));
    world.calm(20, None);
    let task = task_of(&world, 0).unwrap();
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    world.return_others(&task);
    stop(&mut world, false);
    world.calm(60, None);
    let mut spec = service(1, 1, 0);
    spec.task.requests.insert("cpus".to_owned(), 8.0);
    submit(&mut world, spec.clone());
    world.calm(20, None);
    assert_eq!(world.alive("web"), 0);
    // The agent without a volume of the job is offered again.
    spec.task.requests.insert("cpus".to_owned(), 1.0);
    submit(&mut world, spec);
    world.calm(10, None);
    assert_eq!(world.alive("web"), 1);
}

#[test]
fn resized_instance_keeps_its_volume() {
    let mut world = World::new(1, 1);
    let mut spec = database(1);
    submit(&mut world, spec.clone());
    world.calm(20, None);
    let volume = volume_of(&world, 0);
    for cpus in [3.0, 1.0, 2.0] {
        spec.task.requests.insert("cpus".to_owned(), cpus);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        assert_eq!(
            (state_of(&world, "web"), volume_of(&world, 0)),
            ("healthy", volume.clone())
        );
        assert_eq!(world.reserved_of("cpus"), cpus);
    }
    // The request exceeds the room beside the volume.
    spec.task.requests.insert("cpus".to_owned(), 5.0);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let why = world.state.job("web").unwrap().why;
    assert!(
        why.contains("does not fit beside its volume") && why.contains("short of cpus:1"),
        "{why}"
    );
    // A volume cannot be changed.
    spec.volume = Some(Volume {
        size_mb: 20.0,
        path: "data".to_owned(),
    });
    let id = world.request(Request::Submit(Box::new(spec)));
    world.sync();
    let refused = format!("{:?}", world.answers.get(&id));
    assert!(refused.contains("which stays as it is"), "{refused}");
}

#[test]
fn reserved_resources_serve_only_their_instance() {
    let mut world = World::new(1, 1);
    submit(&mut world, database(2));
    world.calm(20, None);
    stop(&mut world, false);
    world.calm(10, None);
    // Two of four CPUs are held for the instances.
    submit(&mut world, service_named("other", 4));
    world.calm(30, None);
    assert_eq!(world.alive("other"), 2);
    submit(&mut world, database(2));
    world.calm(30, None);
    assert_eq!(state_of(&world, "web"), "healthy");
}

fn service_named(name: &str, count: u32) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        ..service(count, 1, 1)
    }
}

#[test]
fn accept_names_at_most_permitted_resources() {
    // The largest number of resources that a master accepts.
    const MOST: usize = 1_024;
    let mut world = World::new(1, 0);
    world.add_agent("cpus:400;disk:10000");
    let mut spec = database(300);
    let volume = spec.volume.as_mut().expect("a volume");
    volume.size_mb = 1.0;
    spec.task.requests = BTreeMap::from(["cpus", "disk"].map(|name| (name.to_owned(), 1.0)));
    submit(&mut world, spec);
    for _ in 0..4 {
        launch(&mut world);
    }
    assert_eq!(world.existing().len(), 300);
    assert!(
        world.named.iter().all(|named| *named <= MOST),
        "{:?}",
        world.named
    );
    stop(&mut world, true);
    for _ in 0..8 {
        launch(&mut world);
    }
    assert_eq!((world.destroyed.len(), world.reserved()), (300, Vec::new()));
    assert!(
        world.named.iter().all(|named| *named <= MOST),
        "{:?}",
        world.named
    );
}

#[test]
fn refused_accept_is_split_and_resent() {
    let mut world = World::new(1, 1);
    // The master accepts one task at a time.
    world.accept_tasks_max = 1;
    submit(&mut world, database(2));
    submit(&mut world, service_named("other", 2));
    world.calm(200, None);
    for name in ["web", "other"] {
        assert_eq!((state_of(&world, name), world.alive(name)), ("healthy", 2));
    }
    assert_eq!(world.existing().len(), 2);
    let events = world.state.history("web").expect("a job").events;
    let is_told = |text: &str| events.iter().any(|event| event.text.contains(text));
    assert!(
        is_told("the master refuses its ACCEPT: too many"),
        "{events:?}"
    );
}

#[test]
fn job_with_volumes_keeps_its_role() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(2));
    world.calm(30, None);
    let mut other = database(2);
    other.role = "other".to_owned();
    let refused = |world: &mut World, request: Request| {
        let id = world.request(request);
        world.sync();
        let answer = world.answers[&id].clone();
        answer.expect_err("refused").to_string()
    };
    let told = refused(&mut world, Request::Submit(Box::new(other.clone())));
    assert!(told.contains("reserved for role \"r\""), "{told}");
    // The job does not go back to a version of another role either.
    let without = JobSpec {
        volume: None,
        ..database(2)
    };
    stop(&mut world, true);
    world.calm(30, None);
    submit(&mut world, other.clone());
    submit(&mut world, without);
    stop(&mut world, false);
    submit(&mut world, database(2));
    world.calm(30, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    let versions = world.state.history("web").expect("a job").versions;
    let first = versions.first().expect("a version").version;
    let (name, version) = ("web".to_owned(), Some(first));
    let told = refused(&mut world, Request::Revert { name, version });
    assert!(told.contains("`role` as they were"), "{told}");
    // Once its volumes are gone, the job may go anywhere.
    stop(&mut world, true);
    world.calm(30, None);
    submit(&mut world, other);
}

#[test]
fn purge_keeps_reservation_of_operator() {
    let mut world = World::new(1, 0);
    let disk = Resources::parse("disk:100", &Role::star()).expect("a disk");
    let role = Role::new("r").expect("a role");
    let reservation = Reservation::dynamic(role, Some("operator"));
    let reserved = disk
        .iter()
        .map(|one| one.push_reservation(reservation.clone()));
    let reserved: Vec<_> = reserved.map(|one| one.expect("reserved")).collect();
    let reserved: Resources = reserved.into_iter().collect();
    world.add_agent("cpus:4");
    world.add_resources("a0", &reserved);
    submit(&mut world, database(2));
    world.calm(30, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    assert_eq!(world.reserved_of("cpus"), 2.0);
    stop(&mut world, true);
    world.calm(60, None);
    assert_eq!(world.destroyed.len(), 2);
    assert_eq!(world.reserved(), [reserved.to_string()]);
    assert_eq!(world.state.volumes_behind(None, usize::MAX), []);
}

#[test]
fn oversized_volume_instances_delay_no_others() {
    let mut world = World::new(1, 40);
    let sized = |cpus: f64| {
        let mut spec = database(40);
        spec.task.requests.insert("cpus".to_owned(), cpus);
        spec
    };
    submit(&mut world, sized(3.0));
    world.calm(10, None);
    assert_eq!(world.alive("web"), 40);
    stop(&mut world, false);
    world.calm(2, None);
    // Ten further agents have room for more.
    let more = Resources::parse("cpus:4", &Role::star()).expect("resources");
    for index in 30..40 {
        let volume = &world.state.jobs["web"].volumes[&index];
        let agent = volume.record.agent_id.clone();
        world.add_resources(&agent, &more);
    }
    world.state.limits.step_work = ROLE_WORK_MIN;
    submit(&mut world, sized(5.0));
    world.calm(10, None);
    assert_eq!(world.alive("web"), 10);
}

#[test]
fn slow_store_delays_volume_query() {
    for answers_come_first in [false, true] {
        let mut world = World::new(1, 3);
        submit(&mut world, database(1));
        world.make_offers();
        while world.deliver() {}
        let first = task_of(&world, 0).expect("a task");
        // The store takes longer than the grace for launches that the master does not know.
        world.sleep(Duration::from_secs(6));
        world.step(Input::Tick { kills_waiting: 0 });
        while answers_come_first && world.deliver() {}
        world.sync();
        // The question would be in the queue of calls before the ACCEPT, and the response to it behind the ACCEPT.
        while world.deliver() {}
        world.step(Input::Tick { kills_waiting: 0 });
        while world.deliver() {}
        world.calm(20, None);
        assert_eq!(task_of(&world, 0), Some(first));
        assert_eq!(state_of(&world, "web"), "healthy");
        let volume = volume_of(&world, 0);
        assert_eq!(world.existing(), std::slice::from_ref(&volume));
        // The volume's record is durable.
        world.sync();
        world.crash();
        assert_eq!(
            world.state.volumes_behind(None, usize::MAX)[0].volume_id,
            volume
        );
    }
}

#[test]
fn joint_return_examines_each_instance_rarely() {
    let mut world = World::new(1, 40);
    let count = 4 * 40;
    submit(&mut world, database(count));
    world.calm(10, None);
    assert_eq!(world.alive("web"), count as usize);
    stop(&mut world, false);
    world.calm(2, None);
    submit(&mut world, database(count));
    KEYED.set(0);
    launch(&mut world);
    assert_eq!(world.alive("web"), count as usize);
    // The keys are computed once for placed and once for wanted instances, not for each pair.
    assert!(KEYED.get() <= 4 * count as usize, "{}", KEYED.get());
}

#[test]
fn jobs_without_volumes_skip_volume_search() {
    let mut world = World::new(1, 1);
    submit(&mut world, service_named("other", 1_000));
    submit(&mut world, database(1));
    world.calm(5, None);
    let waited_for = world.state.agents_waited_for("r").len();
    stop(&mut world, false);
    submit(&mut world, database(2));
    LOOKED.set(0);
    assert_eq!(world.state.agents_waited_for("elsewhere").len(), 0);
    assert_eq!((LOOKED.get(), waited_for), (0, 0));
    world.state.agents_waited_for("r");
    assert!(LOOKED.get() <= 2, "{}", LOOKED.get());
}

#[test]
fn replaced_volume_is_not_released() {
    let mut world = World::new(1, 2);
    submit(&mut world, database(2));
    world.calm(30, None);
    let seen = volume_of(&world, 1);
    let named = |id: &String| Request::Release {
        name: "web".to_owned(),
        index: 1,
        volume_id: Some(id.clone()),
    };
    done(&mut world, named(&seen));
    world.calm(60, None);
    let new = volume_of(&world, 1);
    assert_ne!(seen, new);
    // A client that saw the first volume means the first volume.
    let id = world.request(named(&seen));
    world.sync();
    let refused = world.answers[&id].clone().expect_err("another one");
    assert!(matches!(refused, Refusal::Conflict(_)), "{refused:?}");
    assert!(refused.to_string().contains(&new), "{refused}");
    world.calm(60, None);
    assert_eq!((volume_of(&world, 1), &world.destroyed), (new, &vec![seen]));
}
