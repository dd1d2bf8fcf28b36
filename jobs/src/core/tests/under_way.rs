//! What is under way: kills that take long, and launches of which nobody has heard yet.

use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::world::World;
use super::{batch, changed, service, submit};
use crate::core::Input;
use crate::core::updates::LAUNCH_GRACE;
use crate::spec::JobSpec;

#[test]
fn instances_that_take_long_to_end_count_until_they_have() {
    let mut world = World::new(7, 12);
    let spec = service(6, 2, 2);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    world.is_slow_to_end = true;
    submit(&mut world, changed(&spec, "another"));
    for _ in 0..60 {
        world.calm(1, None);
        let view = world.state.job("web").unwrap();
        let tasks = view.tasks.unwrap();
        assert!(tasks.len() <= 6 + 2, "{} tasks", tasks.len());
    }
    world.is_slow_to_end = false;
    world.calm(120, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn instances_that_are_scaled_away_count_until_they_have_ended() {
    let mut world = World::new(7, 12);
    let spec = service(6, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    world.is_slow_to_end = true;
    let fewer = JobSpec {
        count: 3,
        ..changed(&spec, "another")
    };
    submit(&mut world, fewer);
    for _ in 0..30 {
        world.calm(1, None);
        let tasks = world.state.job("web").unwrap().tasks.unwrap();
        assert!(tasks.len() <= 6, "{} tasks", tasks.len());
    }
    world.is_slow_to_end = false;
    world.calm(120, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
    assert_eq!(view.tasks.unwrap().len(), 3);
}

#[test]
fn that_a_task_is_unknown_is_not_believed_while_its_launch_is_under_way() {
    let mut world = World::new(1, 1);
    submit(&mut world, batch("array", 1));
    world.make_offers();
    while world.deliver() {}
    world.sync();
    let ids = |world: &World| -> Vec<String> {
        let tasks = world.state.job("array").unwrap().tasks.unwrap();
        tasks.into_iter().map(|task| task.task_id).collect()
    };
    let [id] = &ids(&world)[..] else {
        panic!("a task that is launched");
    };
    let unknown = TaskStatus {
        task_id: TaskId { value: id.clone() },
        state: TaskState::TaskUnknown.into(),
        reason: Some(Reason::Reconciliation.into()),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(unknown.clone())));
    assert_eq!(ids(&world), std::slice::from_ref(id));
    world.pass(LAUNCH_GRACE);
    world.step(Input::Update(Box::new(unknown)));
    assert_eq!(ids(&world), [] as [String; 0]);
}
