//! Jobs beside an absent agent: the work that waits for it, and the work that continues.

use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::gangs::fail;
use super::volumes::database;
use super::*;
use crate::spec::{Constraint, Rule};

/// Longer than the patience with agents of services, and much shorter than that with agents of batches.
const HALF_AN_HOUR: u64 = 1_800;

/// Takes the agent of a task away; all other agents stay.
fn lose_agent_of(world: &mut World, id: &str) {
    world.lose_agent_of(id);
    while world.deliver() {}
    world.sync();
}

/// Starts a batch and returns its only task once it runs.
fn start_only_task(world: &mut World, name: &str) -> String {
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
    }
    world.advance(None);
    while world.deliver() {}
    world.sync();
    only_task(world, name)
}

pub(super) fn report(world: &mut World, id: &str, state: TaskState) {
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

#[test]
fn lost_run_does_not_block_schedule() {
    for overlap in [Overlap::Replace, Overlap::Allow] {
        let mut world = World::new(1, 3);
        world.success_in_ten = 10;
        submit(&mut world, cron(overlap));
        world.pass(Duration::from_secs(41));
        let id = start_only_task(&mut world, "nightly");
        lose_agent_of(&mut world, &id);
        world.calm(HALF_AN_HOUR, None);
        let successes = world.successes.len();
        assert!(successes >= 25, "{overlap:?}: {successes}");
    }
}

#[test]
fn changed_batch_ignores_lost_agent() {
    for what in ["restart", "change", "stop and run"] {
        let mut world = World::new(1, 3);
        world.success_in_ten = 10;
        submit(&mut world, batch("some", 1));
        let id = start_only_task(&mut world, "some");
        lose_agent_of(&mut world, &id);
        let name = "some".to_owned();
        match what {
            "restart" => {
                world.request(Request::Restart { name });
            }
            "change" => submit(&mut world, changed(&batch("some", 1), "another")),
            _ => {
                world.request(Request::Stop { name, purge: false });
                world.sync();
                submit(&mut world, batch("some", 1));
            }
        }
        world.sync();
        world.calm(HALF_AN_HOUR, None);
        assert_eq!(state_of(&world, "some"), "complete", "{what}");
    }
}

#[test]
fn timed_out_lost_task_restarts() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    let mut spec = batch("some", 1);
    let Kind::Batch(kind) = &mut spec.kind else {
        panic!("a batch");
    };
    kind.timeout = Some(Duration::from_secs(60));
    submit(&mut world, spec);
    let id = start_only_task(&mut world, "some");
    lose_agent_of(&mut world, &id);
    world.calm(HALF_AN_HOUR, None);
    assert_eq!(state_of(&world, "some"), "complete");
}

#[test]
fn broken_gang_ignores_lost_agent() {
    for is_restarted in [false, true] {
        let mut world = World::new(1, 4);
        world.success_in_ten = 10;
        submit(&mut world, gang("train", 8));
        for _ in 0..4 {
            world.make_offers();
            while world.deliver() {}
            world.sync();
        }
        let tasks = |world: &World| world.state.job("train").unwrap().tasks.unwrap();
        let all = tasks(&world);
        assert_eq!(all.len(), 8);
        lose_agent_of(&mut world, &all[0].task_id);
        let here = tasks(&world)
            .into_iter()
            .find(|task| task.state != "TASK_UNREACHABLE");
        fail(&mut world, &here.expect("a task that is there").task_id);
        if is_restarted {
            world.crash();
        }
        world.calm(5, None);
        let why = world.state.job("train").unwrap().why;
        assert!(why.contains("the others end"), "{why}");
        world.calm(HALF_AN_HOUR, None);
        assert_eq!(state_of(&world, "train"), "complete", "{is_restarted}");
    }
}

fn spread_out(count: u32, max_unavailable: u32) -> JobSpec {
    let mut spec = database(count);
    spec.constraints = vec![Constraint {
        attribute: "@hostname".to_owned(),
        rule: Rule::Distinct(1),
    }];
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.update.max_unavailable = max_unavailable;
    spec
}

/// Returns the versions of the instances, by index.
fn versions_of(world: &World) -> Vec<u64> {
    let mut tasks = world.state.job("web").unwrap().tasks.unwrap();
    tasks.sort_by_key(|task| task.index);
    tasks.iter().map(|task| task.version).collect()
}

/// An update waits as max_unavailable requires, and continues as far as max_unavailable permits; neither it nor its
/// rollback fails.
#[test]
fn volume_update_survives_lost_agent() {
    let limits = [(1, false), (2, false), (2, true)];
    let cases = limits
        .into_iter()
        .flat_map(|limit| [(limit, false), (limit, true)]);
    for ((max_unavailable, goes_back), has_ended) in cases {
        let mut world = World::new(1, 5);
        let spec = spread_out(4, max_unavailable);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        let tasks = world.state.job("web").unwrap().tasks.unwrap();
        let last = tasks.into_iter().find(|task| task.index == 3).unwrap();
        lose_agent_of(&mut world, &last.task_id);
        if has_ended {
            // Its volume is still there.
            report(&mut world, &last.task_id, TaskState::TaskFailed);
        }
        world.calm(60, None);
        submit(&mut world, changed(&spec, "another"));
        // A time much longer than the deadline of the update.
        let mut ill = goes_back.then_some(2);
        for _ in 0..400 {
            world.calm(1, ill);
            let healthy = world.state.job("web").unwrap().healthy;
            let least = 4 - max_unavailable as usize;
            assert!(healthy >= least, "{healthy} healthy");
            if world.state.job("web").unwrap().version == 1 {
                ill = None;
            }
        }
        let view = world.state.job("web").unwrap();
        let (version, present) = match (max_unavailable, goes_back) {
            (1, _) => (2, 1),
            (_, true) => (1, 1),
            (_, false) => (2, 2),
        };
        assert_eq!(view.version, version, "{max_unavailable} {:?}", view.why);
        assert_eq!(versions_of(&world)[..3], [present; 3]);
        assert_ne!(view.state, "failed");
        assert!(view.why.contains("is away"), "{}", view.why);
        world.return_all();
        world.calm(120, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        assert_eq!(versions_of(&world), [version; 4]);
    }
}
