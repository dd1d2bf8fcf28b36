//! Updates, their canaries and sizes.

use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::super::Refusal;
use super::*;

/// Reports the end of a task that ran, with this state.
pub(super) fn ended(world: &mut World, id: &str, state: TaskState) {
    world.mark_lost(id);
    let status = TaskStatus {
        task_id: TaskId {
            value: id.to_owned(),
        },
        state: state.into(),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(status)));
    world.sync();
}

fn update_of(spec: &mut JobSpec) -> &mut Update {
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    &mut kind.update
}

fn promote(world: &mut World) -> Result<u64, Refusal> {
    let id = world.request(Request::Promote {
        name: "web".to_owned(),
    });
    world.sync();
    world.answers.get(&id).expect("an answer").clone()
}

#[test]
fn promote_needs_healthy_canaries() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 1, 1);
    update_of(&mut spec).canary = 1;
    update_of(&mut spec).healthy_after = Duration::from_secs(30);
    submit(&mut world, spec.clone());
    world.calm(100, None);
    submit(&mut world, changed(&spec, "another"));
    world.calm(2, None);
    let refused = promote(&mut world).expect_err("none is healthy yet");
    let told = "0 of 1 canaries of \"web\" are healthy: promote it once all are";
    assert_eq!(refused.to_string(), told);
    world.calm(60, None);
    promote(&mut world).expect("healthy by now");
    // A promotion may be requested twice.
    promote(&mut world).expect("done already");
    world.calm(400, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    submit(&mut world, service(4, 1, 2));
    world.calm(1, None);
    let refused = promote(&mut world).expect_err("it has none");
    assert!(refused.to_string().contains("no canaries"), "{refused}");
}

#[test]
fn scaled_down_service_shrinks_its_size() {
    let mut world = World::new(1, 4);
    submit(&mut world, service(16, 1, 1));
    world.calm(60, None);
    let size = |world: &World| world.state.jobs["web"].size();
    assert_eq!((world.alive("web"), size(&world)), (16, 16));
    let scale = |world: &mut World, count: u32| {
        let name = "web".to_owned();
        world.request(Request::Scale {
            name,
            count,
            purge: false,
        });
        world.calm(60, None);
    };
    scale(&mut world, 1);
    assert_eq!((world.alive("web"), size(&world)), (1, 1));
    assert_eq!(world.stored("slot/web/"), 1);
    // The world checks that no id is used twice, even after a start.
    scale(&mut world, 16);
    assert_eq!((world.alive("web"), size(&world)), (16, 16));
    scale(&mut world, 2);
    world.crash();
    scale(&mut world, 16);
    assert_eq!((world.alive("web"), size(&world)), (16, 16));
    // A stopped service does not either.
    world.request(Request::Stop {
        name: "web".to_owned(),
        purge: false,
    });
    world.calm(60, None);
    assert_eq!((world.alive("web"), size(&world)), (0, 0));
    submit(&mut world, service(16, 1, 1));
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
}

/// Returns the versions of all tasks of the service, in order.
fn versions(world: &World) -> Vec<u64> {
    let tasks = world.state.job("web").expect("a job").tasks;
    let tasks = tasks.expect("tasks").into_iter();
    let mut versions: Vec<u64> = tasks.map(|task| task.version).collect();
    versions.sort_unstable();
    versions
}

/// Regression: without room for another instance, an update ended in two versions.
#[test]
fn update_without_room_ends_permitted_instances() {
    for (canary, surge) in [(0, 1), (0, 4), (1, 1)] {
        let mut world = World::new(3, 1);
        let mut spec = service(4, 1, surge);
        update_of(&mut spec).canary = canary;
        submit(&mut world, spec.clone());
        world.calm(60, None);
        submit(&mut world, changed(&spec, "another"));
        for second in 0..120 {
            world.calm(1, None);
            let healthy = world.state.job("web").expect("a job").healthy;
            assert!(healthy >= 3, "{healthy} healthy, canary {canary}");
            if canary > 0 && second == 60 {
                promote(&mut world).expect("it is healthy");
            }
        }
        let told = format!("canary {canary}, surge {surge}");
        assert_eq!(state_of(&world, "web"), "healthy", "{told}");
        assert_eq!(versions(&world), [2; 4], "{told}");
    }
}

#[test]
fn update_replaces_ill_instances_without_room() {
    let mut world = World::new(3, 1);
    let mut spec = service(4, 0, 1);
    update_of(&mut spec).auto_revert = false;
    update_of(&mut spec).healthy_after = Duration::from_secs(100_000);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    assert_eq!(versions(&world), [1; 4]);
    submit(&mut world, changed(&service(4, 0, 1), "another"));
    world.calm(200, None);
    assert_eq!(versions(&world), [2; 4]);
    assert_eq!(state_of(&world, "web"), "healthy");
}

#[test]
fn impossible_update_is_reported_at_once() {
    let mut world = World::new(3, 1);
    let spec = service(4, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let next = changed(&spec, "another");
    let plan = plan_of(&world, &next);
    assert_eq!((plan.fits, plan.wants), (0, 4));
    assert!(
        plan.obstacles[0].contains("max_unavailable"),
        "{:?}",
        plan.obstacles
    );
    submit(&mut world, next.clone());
    world.calm(1, None);
    let why = world.state.job("web").expect("a job").why;
    assert!(why.contains("set it to 1"), "{why}");
    // The update reverts at once, and permitted ends are possible.
    assert_eq!(versions(&world), [1; 4]);
    let mut permitted = next;
    update_of(&mut permitted).max_unavailable = 1;
    assert_eq!(plan_of(&world, &permitted).fits, 4);
    submit(&mut world, permitted);
    world.calm(120, None);
    assert_eq!(versions(&world), [2; 4]);
    // A restart counts as an update.
    world.request(Request::Restart {
        name: "web".to_owned(),
    });
    world.calm(120, None);
    assert_eq!(versions(&world), [3; 4]);
}

#[test]
fn rollback_without_room_reaches_one_version() {
    for by_itself in [false, true] {
        let mut world = World::new(3, 2);
        let mut spec = service(4, 0, 1);
        update_of(&mut spec).auto_revert = by_itself;
        submit(&mut world, spec.clone());
        world.calm(60, None);
        submit(&mut world, changed(&spec, "another"));
        let mut seconds = 0;
        while versions(&world)
            .iter()
            .filter(|version| **version == 2)
            .count()
            < 2
        {
            world.calm(1, None);
            seconds += 1;
            assert!(seconds < 100, "{:?}", versions(&world));
        }
        // Another job takes the remaining room.
        submit(&mut world, batch("others", 8));
        for _ in 0..4 {
            world.make_offers();
            while world.deliver() {}
            world.sync();
        }
        let mut filler = batch("filler", 8);
        filler.priority = 90;
        submit(&mut world, filler);
        if !by_itself {
            world.request(Request::Revert {
                name: "web".to_owned(),
                version: Some(1),
            });
        }
        world.calm(600, by_itself.then_some(2));
        let all = versions(&world);
        assert_eq!((all.len(), all.first()), (4, all.last()), "{all:?}");
        assert_eq!(state_of(&world, "web"), "healthy", "by itself {by_itself}");
    }
}

/// Regression: a first version that could not start was followed forever.
#[test]
fn first_version_fails_after_its_deadline() {
    let mut world = World::new(3, 1);
    let mut spec = service(2, 0, 1);
    spec.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, spec.clone());
    world.calm(100, None);
    assert_eq!(state_of(&world, "web"), "pending");
    world.calm(40, None);
    assert_eq!(state_of(&world, "web"), "failed");
    let why = world.state.job("web").expect("a job").why;
    assert!(
        why.starts_with(
            "version 1 has failed: no instance has become healthy for 120s; 2 tasks wait"
        ),
        "{why}"
    );
    world.crash();
    world.calm(1, None);
    assert_eq!(state_of(&world, "web"), "failed", "after a start");
    // The scheduler keeps trying, and the next version starts fresh.
    world.add_agent("cpus:200");
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    let mut world = World::new(3, 1);
    submit(&mut world, spec.clone());
    world.calm(140, None);
    submit(&mut world, service(2, 0, 1));
    world.calm(1, None);
    assert_ne!(state_of(&world, "web"), "failed");
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
}

#[test]
fn first_version_fails_after_three_failures() {
    let mut world = World::new(3, 1);
    let mut spec = service(2, 0, 1);
    update_of(&mut spec).healthy_after = Duration::from_secs(30);
    submit(&mut world, spec);
    world.calm(20, Some(1));
    assert_eq!(state_of(&world, "web"), "failed");
    world.calm(100, None);
    assert_eq!(state_of(&world, "web"), "healthy");
}
