//! The limits of the scheduler's resources that jobs may use.

use std::collections::BTreeSet;

use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::*;
use crate::core::Refusal;
use crate::core::clock::CATCHING_UP;
use crate::core::discovery::GATHERED;
use crate::core::job::{COUNTED, SIZED, Wanted};
use crate::core::kills::KILLS_MAX;
use crate::core::launch::ROLE_WORK_MIN;
use crate::core::offer_pool::PLACED_MAX;
use crate::core::service::{self as planner, LOOKED, WANTED_MAX};
use crate::placement::{ROOMS, TAKEN};
use crate::spec::pattern::Pattern;
use crate::spec::{Constraint, Rule};

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
fn task_limit_leaves_each_role_room() {
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
        // The limit is half of the rest.
        let most = match role {
            "r" => 1_000_000,
            _ => 500_000,
        };
        assert!(answer(&mut world, sized(0, most)).is_ok());
        let refused = answer(&mut world, sized(1, 1)).expect_err("one more");
        let text = refused.to_string();
        assert!(text.contains(&format!("may have {most}")), "{text}");
        // After the removal it may have the same number again.
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
fn scheduled_run_without_room_is_skipped() {
    let mut world = World::new(1, 0);
    let count = 600_000;
    let spec = cron(Overlap::Allow);
    assert!(answer(&mut world, in_role("r", JobSpec { count, ..spec })).is_ok());
    for _ in 0..2 {
        world.pass_durably(Duration::from_secs(60));
    }
    assert_eq!(world.state.jobs["nightly"].runs.len(), 1);
    let events = world.state.history("nightly").expect("a job").events;
    let is_told = |one: &crate::core::Event| one.text.contains("run was skipped: role \"r\"");
    assert!(events.iter().any(is_told), "{events:?}");
}

#[test]
fn due_schedules_count_all_tasks_once() {
    let mut world = World::new(1, 0);
    for number in 0..200 {
        let name = format!("c{number}");
        let spec = JobSpec {
            name,
            count: 10_000,
            ..cron(Overlap::Skip)
        };
        submit(&mut world, spec);
    }
    world.stand_still(Duration::from_secs(60));
    SIZED.set(0);
    world.stand_still(CATCHING_UP);
    assert!(SIZED.get() <= 4 * 200, "{}", SIZED.get());
    // Each started job counts for the later ones.
    let started = world.state.jobs.values().filter(|job| !job.runs.is_empty());
    assert_eq!(started.count(), 100);
}

#[test]
fn unlaunched_tasks_cost_no_writes() {
    let mut world = World::new(1, 1);
    let mut spec = batch("array", 10_000);
    spec.task.requests.insert("cpus".to_owned(), 64.0);
    submit(&mut world, spec.clone());
    for command in ["a", "b"] {
        launch(&mut world);
        submit(&mut world, changed(&spec, command));
    }
    assert_eq!(world.state.jobs["array"].record.next_run, 4);
    assert!(world.written.len() < 20, "{:?}", world.written);
    assert_eq!(world.stored("slot/"), 0);
    // The launched slots are all forgotten.
    submit(&mut world, batch("array", 10_000));
    launch(&mut world);
    assert_eq!(world.stored("slot/"), 4);
    world.crash();
    world.written.clear();
    world.request(Request::Stop {
        name: "array".to_owned(),
        purge: true,
    });
    world.calm(5, None);
    assert!(world.state.job("array").is_none());
    let deleted =
        |(key, bytes): &&(String, Option<usize>)| key.starts_with("slot/") && bytes.is_none();
    assert_eq!(world.written.iter().filter(deleted).count(), 4);
    assert_eq!((world.stored("slot/"), world.stored("task/")), (0, 0));
}

#[test]
fn waiting_run_uses_no_task_memory() {
    let mut world = World::new(1, 0);
    submit(&mut world, batch("array", 1_000_000));
    let mut run = &world.state.jobs["array"].runs[&1];
    assert_eq!((run.slots.len(), run.waiting.len()), (0, 1_000_000));
    world.crash();
    run = &world.state.jobs["array"].runs[&1];
    assert_eq!((run.slots.len(), run.waiting.len()), (0, 1_000_000));
}

/// Returns a world with two thousand tasks of a batch and one instance of a service.
fn many_tasks(kill_grace: u64) -> World {
    let mut world = World::new(1, 0);
    world.is_slow_to_end = true;
    world.add_agent("cpus:2001");
    submit(&mut world, service(1, 1, 1));
    let mut spec = batch("array", 2_000);
    spec.task.kill_grace = Duration::from_secs(kill_grace);
    submit(&mut world, spec);
    launch(&mut world);
    assert_eq!((world.alive("array"), world.alive("web")), (2_000, 1));
    world
}

fn stop(world: &mut World, name: &str) {
    let (name, purge) = (name.to_owned(), false);
    world.request(Request::Stop { name, purge });
}

#[test]
fn kills_of_large_job_leave_interleaved() {
    let mut world = many_tasks(5);
    stop(&mut world, "array");
    world.pass_durably(Duration::from_millis(100));
    assert_eq!(world.kills.len(), 2 * KILLS_MAX);
    stop(&mut world, "web");
    world.pass_durably(Duration::from_millis(100));
    assert_eq!(world.kills.len(), 3 * KILLS_MAX);
    assert!(world.kills.iter().any(|id| id.starts_with("web.")));
    for _ in 0..10 {
        world.pass_durably(Duration::from_millis(100));
    }
    let killed: BTreeSet<_> = world.kills.iter().collect();
    assert_eq!((world.kills.len(), killed.len()), (2_001, 2_001));
}

/// Lets 1,200 tasks run that the scheduler does not know.
fn find_strays(world: &mut World) {
    for index in 0..1_200 {
        let status = TaskStatus {
            task_id: TaskId {
                value: format!("gone.1.1.{index}.1"),
            },
            state: TaskState::TaskRunning.into(),
            ..TaskStatus::default()
        };
        world.step(Input::Update(Box::new(status)));
    }
}

#[test]
fn unknown_and_job_kills_alternate() {
    let mut world = many_tasks(5);
    find_strays(&mut world);
    // Kills may not leave, so that those of the job are due with the others.
    world.kills_waiting = KILLS_MAX;
    world.pass_durably(Duration::from_millis(100));
    stop(&mut world, "array");
    let before = world.kills.len();
    for _ in 0..20 {
        world.kills_waiting = KILLS_MAX - 1;
        world.pass_durably(Duration::from_millis(100));
    }
    let left = &world.kills[before..];
    let of_job = left.iter().filter(|id| id.starts_with("array."));
    assert_eq!((left.len(), of_job.count()), (20, 10), "{left:?}");
}

#[test]
fn kills_of_unknown_tasks_are_interleaved() {
    let mut world = many_tasks(5);
    find_strays(&mut world);
    assert_eq!(world.kills.len(), KILLS_MAX);
    stop(&mut world, "web");
    world.pass_durably(Duration::from_millis(100));
    assert_eq!(world.kills.len(), 2 * KILLS_MAX);
    assert!(world.kills.iter().any(|id| id.starts_with("web.")));
    // A task that has ended meanwhile is not killed, and the waiting kills outlive the stream.
    let ended = TaskStatus {
        task_id: TaskId {
            value: "gone.1.1.999.1".to_owned(),
        },
        state: TaskState::TaskFailed.into(),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(ended)));
    world.disconnect();
    world.pass_durably(Duration::from_millis(100));
    let strays: BTreeSet<_> = world
        .kills
        .iter()
        .filter(|id| id.starts_with("gone."))
        .collect();
    assert_eq!(strays.len(), 1_199);
    assert_eq!(world.state.totals().strays_killed, 1_199);
}

#[test]
fn slow_master_gets_no_more_kills() {
    let mut world = many_tasks(5);
    world.kills_waiting = KILLS_MAX + 7;
    world.pass_durably(Duration::from_millis(100));
    stop(&mut world, "array");
    assert_eq!(world.kills.len(), 0);
    world.kills_waiting = KILLS_MAX - 7;
    world.pass_durably(Duration::from_millis(100));
    assert_eq!(world.kills.len(), 7);
    // A new stream has no kills before these.
    world.disconnect();
    world.sync();
    assert_eq!(world.kills.len(), 7 + KILLS_MAX);
}

#[test]
fn kill_is_not_repeated_during_grace() {
    let mut world = many_tasks(30);
    stop(&mut world, "array");
    world.sync();
    world.pass_durably(Duration::from_secs(30));
    assert_eq!(world.kills.len(), 2_000);
    world.pass_durably(Duration::from_secs(20));
    assert_eq!(world.kills.len(), 4_000);
}

/// Returns a service that fits nowhere with its number of cpus.
fn too_large(name: &str) -> JobSpec {
    let mut spec = service(1, 1, 1);
    spec.name = name.to_owned();
    spec.task.requests.insert("cpus".to_owned(), 64.0);
    spec
}

#[test]
fn step_counts_only_changed_jobs() {
    let mut world = World::new(1, 1);
    for number in 0..200 {
        let waits = in_role("other", too_large(&format!("w{number}")));
        assert!(answer(&mut world, waits).is_ok());
    }
    submit(&mut world, gang("gang", 8));
    launch(&mut world);
    assert!(world.state.gangs.collecting().is_some());
    COUNTED.set(0);
    submit(&mut world, service(1, 1, 1));
    assert!((1..50).contains(&COUNTED.get()), "{}", COUNTED.get());
}

#[test]
fn unplaceable_service_costs_a_bounded_tick() {
    let mut world = World::new(1, 1);
    let count = 1_000_000;
    submit(
        &mut world,
        JobSpec {
            count,
            ..too_large("web")
        },
    );
    launch(&mut world);
    let look = |world: &mut World| {
        LOOKED.set(0);
        world.pass_durably(Duration::from_millis(100));
        let job = &world.state.jobs["web"];
        (
            LOOKED.get(),
            job.wanted.len(),
            job.demand(world.state.clock.at()),
        )
    };
    assert_eq!(look(&mut world), (WANTED_MAX, WANTED_MAX, 1_000_000));
    let why = world.state.job("web").expect("a job").why;
    assert_eq!(why, "1000000 tasks wait for offers that they fit");
    // The cost is the same if some tasks have found room.
    let spec = service(count, 1, 1);
    submit(&mut world, spec);
    launch(&mut world);
    assert_eq!(world.alive("web"), 4);
    assert_eq!(look(&mut world), (WANTED_MAX, WANTED_MAX, 999_996));
}

/// Checks that a plan which lists few wanted instances decides like a plan that lists all.
fn check_plans(world: &World, name: &str) {
    let (job, at) = (&world.state.jobs[name], world.state.clock.at());
    let all = planner::plan_within(job, at, usize::MAX);
    let some = planner::plan_within(job, at, 2);
    let decided = |plan: &planner::Plan| {
        let awaits = (plan.is_done, plan.awaits_promotion);
        (plan.kills.clone(), plan.new_healthy, awaits)
    };
    assert_eq!(decided(&all), decided(&some));
    assert_eq!(all.wanted_beyond, 0);
    let total = some.wanted.len() + some.wanted_beyond;
    assert!(total >= all.wanted.len(), "{some:?} of {all:?}");
    let run = job.runs.get(&0);
    let pauses = |index| run.is_some_and(|run| run.slot(index).not_before > at);
    if !(0..8).any(pauses) {
        assert_eq!(total, all.wanted.len(), "{some:?} of {all:?}");
        let is_first = |(one, other): (&Wanted, &Wanted)| one == other;
        assert!(some.wanted.iter().zip(&all.wanted).take(2).all(is_first));
    }
}

#[test]
fn short_plan_decides_like_full_plan() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 2);
        let mut spec = service(8, 1, 1);
        submit(&mut world, spec.clone());
        for round in 0..4 {
            for _ in 0..60 {
                chaos(&mut world, 5, false);
                check_plans(&world, "web");
            }
            spec = changed(&spec, &format!("version {round}"));
            submit(&mut world, spec.clone());
        }
    }
}

#[test]
fn step_is_bounded_and_next_continues() {
    let mut world = World::new(1, 10);
    world.state.limits.step_work = ROLE_WORK_MIN;
    for number in 0..200 {
        submit(&mut world, too_large(&format!("a{number:03}")));
    }
    // The last job is behind all others and has to wait for its turn.
    let mut last = service(1, 1, 1);
    last.priority = 0;
    submit(&mut world, last);
    let mut turns = 0;
    while world.alive("web") == 0 {
        world.pass_durably(Duration::from_secs(6));
        world.make_offers();
        ROOMS.set(0);
        while world.deliver() {}
        // The room of each offer is computed once, and once more for the layout.
        assert!(ROOMS.get() <= 2 * ROLE_WORK_MIN, "{}", ROOMS.get());
        world.sync();
        turns += 1;
        assert!(turns < 20);
    }
    assert!(turns > 1);
}

#[test]
fn higher_priority_precedes_an_interrupted_backlog() {
    let mut world = World::new(1, 10);
    world.state.limits.step_work = ROLE_WORK_MIN;
    for number in 0..200 {
        submit(&mut world, too_large(&format!("a{number:03}")));
    }
    launch(&mut world);
    assert!(world.state.turns.get("r").is_some());
    // The fitting jobs of the backlog are behind it, in the order of names and by priority.
    let mut backlog = service(40, 1, 1);
    backlog.name = "b".to_owned();
    backlog.priority = 40;
    submit(&mut world, backlog);
    let mut urgent = service(1, 1, 1);
    urgent.priority = 100;
    submit(&mut world, urgent);
    launch(&mut world);
    assert_eq!((world.alive("web"), world.alive("b")), (1, 0));
    let next = world.state.turns.get("r").cloned().expect("a job");
    launch(&mut world);
    assert_ne!(world.state.turns.get("r"), Some(&next));
}

#[test]
fn gang_keeps_offers_across_short_steps() {
    let mut world = World::new(1, 10);
    world.state.limits.step_work = ROLE_WORK_MIN;
    let mut large = gang("gang", 30);
    large.task.requests.insert("cpus".to_owned(), 2.0);
    submit(&mut world, large);
    for number in 0..150 {
        submit(&mut world, too_large(&format!("h{number:03}")));
    }
    submit(&mut world, batch("small", 1));
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.pass_durably(Duration::from_millis(100));
    }
    assert!(world.state.gangs.collecting().is_some());
    let kept: Vec<_> = world
        .state
        .offers
        .free()
        .map(|offer| offer.id.clone())
        .collect();
    assert_eq!(kept.len(), 10);
    // Offers that the gang cannot use end the work of a step.
    for _ in 0..10 {
        world.add_agent("cpus:1");
    }
    world.make_offers();
    while world.deliver() {}
    assert!(world.state.turns.get("r").is_some());
    for _ in 0..20 {
        world.pass_durably(Duration::from_millis(100));
        world.sync();
        for id in &kept {
            assert!(world.state.offers.contains(id), "{id} is still kept");
        }
    }
    assert!(world.state.gangs.collecting().is_some());
}

#[test]
fn compiled_patterns_are_charged_to_role() {
    let mut world = World::new(1, 2);
    world.state.limits.spec_bytes = 64 << 20;
    let with_patterns = |name: &str, role: &str, count: usize| {
        let pattern =
            |at: usize| Pattern::parse(&format!(r"\w{{10}}{name}{at}")).expect("a pattern");
        let constraints = (0..count).map(|at| Constraint {
            attribute: "rack".to_owned(),
            rule: Rule::Matches(pattern(at)),
        });
        let spec = JobSpec {
            name: name.to_owned(),
            constraints: constraints.collect(),
            ..service(1, 1, 1)
        };
        in_role(role, spec)
    };
    assert!(answer(&mut world, with_patterns("a", "r", 7)).is_ok());
    for again in ["before", "after a restart"] {
        let refused = answer(&mut world, with_patterns("b", "r", 7)).expect_err("too much");
        assert!(
            refused.to_string().contains("may have "),
            "{again}: {refused}"
        );
        assert!(answer(&mut world, with_patterns("c", "other", 2)).is_ok());
        world.crash();
        world.state.limits.spec_bytes = 64 << 20;
    }
}

#[test]
fn addresses_are_gathered_once_per_job() {
    let mut world = World::new(1, 5);
    let mut sooner = service(4, 1, 1);
    sooner.name = "sooner".to_owned();
    submit(&mut world, sooner);
    world.calm(20, None);
    let mut later = batch("later", 12);
    later.after = vec!["sooner".to_owned()];
    submit(&mut world, later);
    GATHERED.set(0);
    launch(&mut world);
    assert_eq!((world.alive("later"), GATHERED.get()), (12, 1));
}

#[test]
fn plan_places_at_most_one_step() {
    let mut world = World::new(1, 0);
    world.add_agent("cpus:100000");
    submit(&mut world, too_large("a"));
    world.make_offers();
    while world.deliver() {}
    let mut spec = batch("array", 400_000);
    spec.task.requests.insert("cpus".to_owned(), 0.001);
    let plan = plan_of(&world, &spec);
    assert_eq!((plan.fits, plan.wants), (PLACED_MAX, 400_000));
    assert_eq!(
        plan.obstacles,
        ["a plan places 20000 tasks at most: more may fit"]
    );
}

#[test]
fn holding_gang_waits_for_new_offers() {
    let mut world = World::new(1, 3);
    submit(&mut world, gang("huge", 13));
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.pass_durably(Duration::from_millis(100));
    }
    assert!(world.state.gangs.collecting().is_some());
    let held = world.state.offers.free().count();
    TAKEN.set(0);
    world.pass_durably(Duration::from_secs(10));
    assert_eq!((TAKEN.get(), world.state.offers.free().count()), (0, held));
}

#[test]
fn new_job_leaves_room_to_dependency() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    world.state.limits.jobs = 4;
    for name in ["b0", "b1"] {
        submit(&mut world, batch(name, 1));
        world.calm(10, None);
    }
    world.stand_still(Duration::from_secs(25 * 3600));
    let mut later = batch("later", 1);
    later.after = vec!["b0".to_owned()];
    submit(&mut world, later);
    assert!(world.state.job("b0").is_some());
    assert!(world.state.job("b1").is_none());
    world.calm(10, None);
    assert_eq!(state_of(&world, "later"), "complete");
}

#[test]
fn old_batches_make_room_for_new() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    world.state.limits.jobs = 20;
    let complete = |world: &mut World, number: u32| {
        submit(world, batch(&format!("b{number}"), 1));
        world.calm(10, None);
    };
    for number in 0..9 {
        complete(&mut world, number);
    }
    let mut later = batch("later", 1);
    later.after = vec!["b0".to_owned()];
    submit(&mut world, later);
    world.calm(10, None);
    // The role has as many jobs as it leaves for others; none of them is old.
    let another = || in_role("r", batch("another", 1));
    let refused = answer(&mut world, another()).expect_err("no room");
    assert!(refused.to_string().contains("may have 10"), "{refused}");
    world.stand_still(Duration::from_secs(25 * 3600));
    // No job is forgotten if all old jobs would not make enough room.
    world.state.limits.jobs = 2;
    assert!(answer(&mut world, another()).is_err());
    assert_eq!(world.state.jobs.len(), 10);
    world.state.limits.jobs = 20;
    assert!(answer(&mut world, another()).is_ok());
    // The oldest job that no other job starts after is gone.
    assert!(world.state.job("b1").is_none());
    assert!(
        ["b0", "b2"]
            .iter()
            .all(|name| world.state.job(name).is_some())
    );
    // Running jobs are never forgotten, and exclude no other role.
    for number in 0..5 {
        let spec = too_large(&format!("s{number}"));
        assert!(answer(&mut world, in_role("other", spec)).is_ok());
    }
    let one_more = in_role("other", too_large("s5"));
    assert!(answer(&mut world, one_more).is_err());
    assert!(answer(&mut world, in_role("third", too_large("t"))).is_ok());
}
