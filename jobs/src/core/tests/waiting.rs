//! The reasons why jobs wait: agents without room, and roles that the master refuses.

use meseta_resources::{ResourceName, Resources, Role, Scalar};

use super::volumes::database;
use super::*;
use crate::core::RoleQuota;
use crate::core::job::EVENTS_MAX;
use crate::core::plan::AFTER_LOOKED_MAX;
use crate::placement::Offer;

/// Returns a quota with a limit of the role's CPUs and their use.
fn quota(limit: u64, consumed: u64) -> Quotas {
    let cpus = |amount| [(ResourceName::cpus(), Scalar::from_units(amount))];
    let quota = RoleQuota {
        limits: cpus(limit).into_iter().collect(),
        consumed: cpus(consumed).into_iter().collect(),
    };
    Quotas::from_iter([("r".to_owned(), quota)])
}

#[test]
fn waiting_reason_counts_planned_tasks() {
    let mut world = World::new(1, 1);
    let spec = service(5, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(100, None);
    let job = world.state.job("web").expect("a job");
    assert_eq!((job.running, job.pending), (4, 1));
    assert_eq!(job.obstacles.len(), 1, "{:?}", job.obstacles);
    assert!(job.obstacles[0].contains("short of cpus"), "{job:?}");
    let plan = plan_of(&world, &JobSpec { count: 6, ..spec });
    assert_eq!((plan.fits, plan.wants), (0, 2), "{plan:?}");
    assert_eq!(plan.obstacles, job.obstacles);
}

/// Regression: with the quota of the role used up, every agent was shown as too small.
#[test]
fn blocking_quota_precedes_small_agents() {
    let mut world = World::new(1, 1);
    let spec = service(5, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(100, None);
    assert_eq!(world.state.role_of_waiting("web"), Some("r"));
    let text = "role 'r' has 4 cpus of its limit of 4, and a task needs 1";
    let job = world.state.job_alone("web", &quota(4, 4)).expect("a job");
    assert_eq!(job.why, format!("a task waits: {text}"));
    // The reason appears only once.
    assert_eq!(job.obstacles, [] as [String; 0]);
    let larger = JobSpec {
        count: 6,
        ..spec.clone()
    };
    assert_eq!(
        world
            .state
            .plan(&larger.name, &larger, &quota(4, 4))
            .obstacles,
        [text]
    );
    // A new version may use the resources of the earlier one, if its instances may end first.
    let mut spec_of_other = changed(&spec, "another");
    let other = world
        .state
        .plan(&spec_of_other.name, &spec_of_other, &quota(4, 4));
    assert_eq!((other.fits, &*other.obstacles[0]), (0, text));
    let Kind::Service(service) = &mut spec_of_other.kind else {
        panic!("a service");
    };
    service.update.max_unavailable = 1;
    let other = world
        .state
        .plan(&spec_of_other.name, &spec_of_other, &quota(4, 4));
    assert_eq!((other.fits, &*other.obstacles), (4, &[text.to_owned()][..]));
    // A limit that blocks no task is no reason.
    let job = world.state.job_alone("web", &quota(5, 4)).expect("a job");
    assert!(job.obstacles[0].contains("short of cpus"), "{job:?}");
    assert_eq!(job.why, "a task waits for an offer that it fits");
}

/// Regression: a plan counted these CPUs as free, and named no limit.
#[test]
fn replaced_revocable_cpus_free_no_quota() {
    let mut world = World::new(1, 1);
    let mut spec = batch("array", 1);
    spec.best_effort = true;
    submit(&mut world, spec.clone());
    let cpus = Resources::parse("cpus:1", &Role::star()).expect("cpus");
    let offer = Offer {
        id: "o".to_owned(),
        role: spec.role.clone(),
        ..Offer::default()
    };
    let offer = offer.with_resources(cpus.with_revocable(true));
    let now = world.now();
    world.state.step(now, Input::Offers(vec![offer]));
    assert_eq!(world.state.task_count("array"), 1);
    spec.best_effort = false;
    let plan = world.state.plan(&spec.name, &spec, &quota(4, 4));
    let text = "role 'r' has 4 cpus of its limit of 4, and a task needs 1";
    assert_eq!((plan.fits, &*plan.obstacles), (0, &[text.to_owned()][..]));
}

/// Regression: a plan named the limit, although it has room for the task that is placed again.
#[test]
fn volume_return_uses_no_new_quota() {
    let mut world = World::new(1, 1);
    submit(&mut world, database(1));
    world.calm(30, None);
    let mut larger = changed(&database(2), "another");
    larger.task.requests.insert("cpus".to_owned(), 4.0);
    let plan = world.state.plan(&larger.name, &larger, &quota(8, 1));
    assert_eq!((plan.fits, plan.wants), (1, 2), "{plan:?}");
    assert!(!plan.obstacles[0].contains("limit"), "{plan:?}");
}

#[test]
fn plan_counts_replacements_and_names_places() {
    let mut world = World::new(1, 2);
    let spec = service(8, 1, 0);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    let same = plan_of(&world, &spec);
    assert_eq!((same.runs, same.wants, same.fits), (8, 0, 0), "{same:?}");
    // Both agents are full of replaced tasks.
    let plan = plan_of(&world, &changed(&spec, "another"));
    assert_eq!((plan.runs, plan.wants, plan.fits), (0, 8, 8), "{plan:?}");
    let places: Vec<_> = plan
        .places
        .iter()
        .map(|place| (&*place.hostname, place.tasks))
        .collect();
    assert_eq!(places, [("a0", 4), ("a1", 4)]);
    let other = job("other", 3, service(3, 1, 1).kind);
    let plan = plan_of(&world, &other);
    assert_eq!((plan.wants, plan.fits), (3, 0), "{plan:?}");
    // The resources of the ended task count as free, although no offer shows them yet.
    let name = "web".to_owned();
    world.request(Request::Stop { name, purge: false });
    world.sync();
    for _ in 0..20 {
        while world.deliver() {}
        world.sync();
    }
    assert!(world.is_suppressed("r"));
    let plan = plan_of(&world, &other);
    assert_eq!((plan.wants, plan.fits), (3, 3), "{plan:?}");
}

/// Regression: a plan was fine, and the job waited for ever.
#[test]
fn plan_and_job_show_impossible_dependencies() {
    let mut world = World::new(1, 1);
    let after = |name: &str, other: &str| JobSpec {
        after: vec![other.to_owned()],
        ..batch(name, 1)
    };
    let plan = plan_of(&world, &after("a", "nope"));
    let unknown = "it starts after nope, which does not exist yet";
    assert_eq!(plan.obstacles.last().map(String::as_str), Some(unknown));
    submit(&mut world, after("a", "b"));
    submit(&mut world, after("b", "c"));
    submit(&mut world, after("c", "a"));
    for (name, other) in [("a", "b"), ("b", "c"), ("c", "a")] {
        let why = format!("it starts after {other}, which itself starts after {name}");
        assert_eq!(world.state.job(name).expect("a job").why, why);
    }
    submit(&mut world, after("d", "a"));
    let job = world.state.job("d").expect("a job");
    assert_eq!(job.why, "it starts after a");
}

/// Regression: a chain of 10,000 waiting jobs took minutes, without any other decision.
#[test]
fn only_some_waiting_jobs_are_examined() {
    let mut world = World::new(1, 1);
    for (count, is_told) in [(AFTER_LOOKED_MAX, true), (AFTER_LOOKED_MAX + 2, false)] {
        for number in 0..count {
            let after = format!("j{}", (number + 1) % count);
            submit(
                &mut world,
                JobSpec {
                    after: vec![after],
                    ..batch(&format!("j{number}"), 1)
                },
            );
        }
        let why = world.state.job("j0").expect("a job").why;
        assert_eq!(why.contains("which itself starts after j0"), is_told);
    }
}

/// Regression: a plan counted on tasks that could not be submitted.
#[test]
fn refused_plan_names_its_reason() {
    let mut world = World::new(1, 1);
    submit(&mut world, batch("a", 1));
    let plan = plan_of(&world, &job("a", 1, service(1, 1, 1).kind));
    assert_eq!((plan.wants, plan.fits), (1, 0));
    assert!(!plan.may_be_limited);
    let obstacle = "it is refused: \"a\" is of another kind";
    assert!(plan.obstacles[0].starts_with(obstacle), "{plan:?}");
}

/// Regression: the history of a job of many instances had lost the reason of a rollback.
#[test]
fn job_events_survive_beside_task_events() {
    let mut world = World::new(1, 4);
    submit(&mut world, service(2, 1, 0));
    world.calm(20, None);
    for number in 0..300 {
        world
            .state
            .event("web", Some("t"), format!("task {number}"));
        if number % 100 == 0 {
            world.state.event("web", None, format!("job {number}"));
        }
    }
    let history = world.state.history("web").expect("a history");
    let texts: Vec<&str> = history.events.iter().map(|one| &*one.text).collect();
    assert_eq!(texts.len(), EVENTS_MAX);
    assert!(texts.contains(&"version 1 submitted"), "{texts:?}");
    for text in ["job 0", "job 100", "job 200", "task 299"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    for number in 0..300 {
        world.state.event("web", None, format!("job {number}"));
    }
    let history = world.state.history("web").expect("a history");
    let of_tasks = history.events.iter().filter(|one| one.task_id.is_some());
    assert!(of_tasks.count() >= EVENTS_MAX / 2 - 1);
    assert_eq!(history.events.len(), EVENTS_MAX);
}

#[test]
fn refused_role_delays_only_its_jobs() {
    let mut world = World::new(1, 2);
    world.refused.insert("forbidden".to_owned());
    submit(&mut world, service(2, 1, 1));
    let mut other = job("other", 1, service(1, 1, 1).kind);
    other.role = "forbidden".to_owned();
    submit(&mut world, other);
    for _ in 0..2 {
        world.calm(30, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        let why = world.state.job("other").expect("a job").why;
        assert_eq!(
            why,
            "the master refuses role \"forbidden\": no role forbidden"
        );
        // The same holds after a restart.
        world.crash();
    }
    // The master refuses an accepted role when the stream is opened again.
    world.refused.insert("r".to_owned());
    world.disconnect();
    world.calm(5, None);
    assert_eq!(world.alive("web"), 2, "its tasks go on");
    world.refused.clear();
    world.calm(1200, None);
    assert_eq!(world.state.roles().len(), 2);
    assert_eq!(state_of(&world, "web"), "healthy");
}

#[test]
fn corrected_unplaceable_batch_starts_soon() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let mut spec = batch("array", 1);
    spec.task.requests.insert("cpus".to_owned(), 8.0);
    submit(&mut world, spec.clone());
    world.calm(20, None);
    assert_eq!(state_of(&world, "array"), "pending");
    spec.task.requests.insert("cpus".to_owned(), 2.0);
    submit(&mut world, spec);
    world.calm(10, None);
    assert_eq!(state_of(&world, "array"), "complete");
}

#[test]
fn gang_restarts_once_room_is_free() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    submit(&mut world, service(4, 1, 1));
    world.calm(10, None);
    submit(&mut world, gang("wide", 12));
    // The gang has held two of three agents in vain, and pauses.
    world.calm(60, None);
    assert_eq!(state_of(&world, "wide"), "pending");
    let name = "web".to_owned();
    world.request(Request::Stop { name, purge: false });
    world.calm(60, None);
    assert_eq!(state_of(&world, "wide"), "complete");
}

#[test]
fn role_ends_after_jobs_and_tasks() {
    let mut world = World::new(1, 2);
    submit(&mut world, service(2, 1, 1));
    world.calm(30, None);
    // Until the update has ended, instances are in the job's previous role.
    world.refused.insert("other".to_owned());
    let mut moved = service(2, 1, 1);
    moved.role = "other".to_owned();
    submit(&mut world, moved);
    for name in ["a", "b"] {
        let mut spec = batch(name, 1);
        spec.role = name.to_owned();
        submit(&mut world, spec);
        world.calm(5, None);
        let (name, purge) = (name.to_owned(), true);
        world.request(Request::Stop { name, purge });
    }
    let roles = |world: &World| world.state.roles().into_iter().collect::<Vec<_>>();
    assert!(roles(&world).contains(&"b".to_owned()));
    world.calm(70, None);
    assert_eq!(roles(&world), ["r"]);
    assert!(world.alive("web") > 0);
    // The next job with this role requests the role again.
    let mut spec = batch("a", 1);
    spec.role = "a".to_owned();
    submit(&mut world, spec);
    world.calm(5, None);
    assert_eq!(roles(&world), ["a", "r"]);
}
