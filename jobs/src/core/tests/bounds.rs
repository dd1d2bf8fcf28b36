//! What jobs may take of the scheduler, whoever submits them.

use super::*;
use crate::core::Refusal;

fn answer(world: &mut World, request: Request) -> Result<u64, Refusal> {
    let id = world.request(request);
    world.sync();
    world.answers[&id].clone()
}

fn in_role(role: &str, spec: JobSpec) -> Request {
    Request::Submit(Box::new(JobSpec {
        role: role.to_owned(),
        ..spec
    }))
}

#[test]
fn the_tasks_of_all_jobs_are_bounded_and_each_role_finds_room() {
    let mut world = World::new(1, 0);
    for (role, kind) in [("r", "batch"), ("other", "service")] {
        let sized = |number: u32, count: u32| {
            let spec = match kind {
                "batch" => batch("", count),
                _ => service(count, 1, 1),
            };
            let name = format!("{role}{number}");
            in_role(role, JobSpec { name, ..spec })
        };
        // Of what others have left, half.
        let most = match role {
            "r" => 1_000_000,
            _ => 500_000,
        };
        assert!(answer(&mut world, sized(0, most)).is_ok());
        let refused = answer(&mut world, sized(1, 1)).expect_err("one more");
        let text = refused.to_string();
        assert!(text.contains(&format!("may have {most}")), "{text}");
        // As many as before it may have anew.
        assert!(answer(&mut world, sized(0, most)).is_ok());
        let name = format!("{role}0");
        assert!(answer(&mut world, Request::Restart { name: name.clone() }).is_ok());
        assert!(answer(&mut world, sized(1, 1)).is_err());
        if kind == "service" {
            let (count, purge) = (most + 1, false);
            let refused = answer(&mut world, Request::Scale { name, count, purge });
            assert!(refused.is_err());
        }
    }
}

#[test]
fn a_run_of_a_schedule_for_which_there_is_no_room_is_skipped_and_says_so() {
    let mut world = World::new(1, 0);
    let count = 600_000;
    let spec = cron(Overlap::Allow);
    assert!(answer(&mut world, in_role("r", JobSpec { count, ..spec })).is_ok());
    for _ in 0..2 {
        world.pass(Duration::from_secs(60));
    }
    assert_eq!(world.state.jobs["nightly"].runs.len(), 1);
    let events = world.state.history("nightly").expect("a job").events;
    let is_told = |one: &crate::core::Event| one.text.contains("run was skipped: role \"r\"");
    assert!(events.iter().any(is_told), "{events:?}");
}
