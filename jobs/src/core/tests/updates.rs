//! Updates, their canaries and sizes.

use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::super::Refusal;
use super::*;

/// A task that ran has ended so.
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
    // It may be asked for twice.
    promote(&mut world).expect("done already");
    world.calm(400, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    submit(&mut world, service(4, 1, 2));
    world.calm(1, None);
    let refused = promote(&mut world).expect_err("it has none");
    assert!(refused.to_string().contains("no canaries"), "{refused}");
}

#[test]
fn scaled_down_service_leaves_its_size_to_others() {
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
    // No id is used twice, as the world checks, also after a start.
    scale(&mut world, 16);
    assert_eq!((world.alive("web"), size(&world)), (16, 16));
    scale(&mut world, 2);
    world.crash();
    scale(&mut world, 16);
    assert_eq!((world.alive("web"), size(&world)), (16, 16));
    // Neither does one that is stopped.
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
