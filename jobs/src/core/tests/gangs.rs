//! Gangs that lost a member: the others end, and all start together again.

use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::world::SLOTS;
use super::*;
use crate::spec::{GANG_MAX, Gang};

fn tasks_of(world: &World, name: &str) -> Vec<String> {
    let tasks = world.state.job(name).expect("a job").tasks;
    let tasks = tasks.expect("tasks").into_iter();
    tasks.map(|task| task.task_id).collect()
}

/// Lets a task fail and reports it to the scheduler.
pub(super) fn fail(world: &mut World, id: &str) {
    world.mark_lost(id);
    let status = TaskStatus {
        task_id: TaskId {
            value: id.to_owned(),
        },
        state: TaskState::TaskFailed.into(),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(status)));
    world.sync();
}

fn service_gang() -> JobSpec {
    JobSpec {
        gang: gang("web", 3).gang,
        ..service(3, 1, 1)
    }
}

#[test]
fn service_gang_waits_for_failure_pause() {
    let mut world = World::new(1, 3);
    submit(&mut world, service_gang());
    world.calm(20, None);
    for _ in 0..4 {
        let tasks = tasks_of(&world, "web");
        fail(&mut world, &tasks[0]);
        world.calm(30, None);
        assert_eq!(state_of(&world, "web"), "healthy");
    }
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [3; 5]);
}

/// The rule includes a member that exits with 0, is lost, or is killed for a reason of its own.
#[test]
fn service_gang_restarts_whole_after_exit() {
    for state in [
        TaskState::TaskFinished,
        TaskState::TaskFailed,
        TaskState::TaskLost,
        TaskState::TaskKilled,
        TaskState::TaskGoneByOperator,
    ] {
        let mut world = World::new(1, 3);
        submit(&mut world, service_gang());
        world.calm(20, None);
        let tasks = tasks_of(&world, "web");
        super::lost_agents::report(&mut world, &tasks[0], state);
        world.calm(30, None);
        let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
        assert_eq!(sizes, [3, 3], "{state:?}");
    }
}

/// Regression: an update ended some tasks of a gang between the decision to start it and the write of that decision. The others
/// started alone.
#[test]
fn gang_changed_before_launch_starts_whole() {
    for changes in 1..4 {
        let mut world = World::new(1, 3);
        submit(&mut world, service_gang());
        world.make_offers();
        while world.deliver() {}
        assert_eq!(tasks_of(&world, "web").len(), 3);
        for _ in 0..changes {
            let name = "web".to_owned();
            world.request(Request::Restart { name });
        }
        world.calm(60, None);
        let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
        assert!(sizes.iter().all(|size| *size == 3), "{sizes:?}");
        assert_eq!(state_of(&world, "web"), "healthy");
    }
}

/// Regression: the other tasks would wait forever for the one that timed out.
#[test]
fn timed_out_gang_restarts_whole() {
    let mut world = World::new(1, 3);
    let mut spec = gang("train", 3);
    let Kind::Batch(kind) = &mut spec.kind else {
        panic!("a batch");
    };
    kind.timeout = Some(Duration::from_secs(60));
    submit(&mut world, spec);
    world.success_in_ten = 10;
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
    }
    // One task runs much sooner than the others.
    world.advance(None);
    while world.deliver() {}
    world.sync();
    for _ in 0..61 {
        world.pass(Duration::from_secs(1));
    }
    // The scheduler learns of its end, and of the end of the others.
    for _ in 0..2 {
        while world.deliver() {}
        world.sync();
    }
    assert_eq!(world.alive("train"), 0, "{:?}", world.kills);
    world.calm(30, None);
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!((sizes, state_of(&world, "train")), (vec![3, 3], "complete"));
}

#[test]
fn service_gang_waits_for_old_members() {
    for is_restarted in [false, true] {
        let mut world = World::new(1, 3);
        submit(&mut world, service_gang());
        world.calm(20, None);
        world.is_slow_to_end = true;
        let tasks = tasks_of(&world, "web");
        fail(&mut world, &tasks[0]);
        if is_restarted {
            world.crash();
        }
        // The wait is longer than the pause of the failed task.
        world.calm(20, None);
        assert_eq!(tasks_of(&world, "web"), tasks[1..], "{is_restarted}");
        let why = world.state.job("web").expect("a job").why;
        assert!(why.contains("the others end"), "{why}");
        world.is_slow_to_end = false;
        if is_restarted {
            world.crash();
        }
        world.calm(120, None);
        let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
        assert_eq!((sizes, state_of(&world, "web")), (vec![3; 2], "healthy"));
        // A later scaling is no new start.
        let (name, count, purge) = ("web".to_owned(), 4, false);
        world.request(Request::Scale { name, count, purge });
        world.sync();
        world.crash();
        world.calm(20, None);
        assert_eq!(world.launches.len(), 3);
        assert_eq!(
            (state_of(&world, "web"), world.alive("web")),
            ("healthy", 4)
        );
    }
}

#[test]
fn gang_ending_during_update_restarts_uniformly() {
    let mut world = World::new(1, 3);
    let spec = service_gang();
    submit(&mut world, spec.clone());
    world.calm(20, None);
    submit(&mut world, changed(&spec, "another"));
    let tasks = tasks_of(&world, "web");
    fail(&mut world, &tasks[0]);
    while world.deliver() {}
    assert_eq!(world.alive("web"), 0);
    world.calm(30, None);
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!((sizes, state_of(&world, "web")), (vec![3; 2], "healthy"));
}

#[test]
fn gang_restarted_by_earlier_version_continues() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    submit(&mut world, service_gang());
    world.calm(20, None);
    let tasks = tasks_of(&world, "web");
    // A release that does not know the mark leaves it in the record.
    let job = world.state.jobs.get_mut("web").expect("a job");
    job.record.broken = true;
    for record in job.records() {
        world
            .disk
            .extend(record.value.map(|value| (record.key, value)));
    }
    for _ in 0..2 {
        world.crash();
        assert!(!world.state.jobs["web"].record.broken);
        world.calm(60, None);
        assert_eq!(tasks_of(&world, "web"), tasks);
        assert_eq!(state_of(&world, "web"), "healthy");
    }
    // After the end of one member the others end too.
    fail(&mut world, &tasks[0]);
    world.calm(60, None);
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!((sizes, state_of(&world, "web")), (vec![3; 2], "healthy"));
}

#[test]
fn broken_gang_restarts_after_scheduler_restart() {
    let mut world = World::new(1, 3);
    let mut spec = gang("array", 2);
    // Each agent gets one task.
    spec.task.requests.insert("cpus".to_owned(), 3.0);
    submit(&mut world, spec);
    launch(&mut world);
    let [failing, away] = &tasks_of(&world, "array")[..] else {
        panic!("two tasks");
    };
    while world.alive("array") > 0 {
        world.toggle_agent();
    }
    world.return_others(away);
    while world.deliver() {}
    fail(&mut world, failing);
    assert_eq!(tasks_of(&world, "array"), std::slice::from_ref(away));
    world.crash();
    while world.deliver() {}
    world.return_all();
    for _ in 0..4 {
        launch(&mut world);
    }
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [2, 2], "{:?}", tasks_of(&world, "array"));
    // The kill is no failure of the task.
    let run = &world.state.jobs["array"].runs[&1];
    let failures: Vec<_> = run.slots.iter().map(|slot| slot.failures).collect();
    assert_eq!(failures, [1, 0]);
}

#[test]
fn oversized_gang_requests_no_offers() {
    let count = GANG_MAX + 1;
    let service = JobSpec {
        count,
        ..service_gang()
    };
    // An earlier release of the scheduler has accepted jobs of this size.
    for spec in [gang("array", count), service] {
        let mut world = World::new(1, 3);
        let name = spec.name.clone();
        submit(&mut world, spec);
        launch(&mut world);
        let job = &world.state.jobs[&name];
        assert_eq!(job.demand(world.state.clock.at()), 0);
        let why = world.state.job(&name).expect("a job").why;
        assert!(why.contains("a gang has 20000 tasks at most"), "{why}");
    }
}

#[test]
fn unplaceable_gangs_block_no_other_role() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let in_role = |role: &str, spec: JobSpec| JobSpec {
        role: role.to_owned(),
        ..spec
    };
    for number in 0..8 {
        let never = gang(&format!("a{number}"), 20);
        submit(&mut world, in_role("a", never));
    }
    // It needs both agents, but gets offers of one at a time.
    submit(&mut world, in_role("z", gang("z", 2 * SLOTS)));
    while world.deliver() {}
    let mut seconds = 0;
    while world.alive("z") == 0 {
        let agents = ["a0", "a1"];
        let (first, second) = (agents[seconds % 2], agents[(seconds + 1) % 2]);
        world.offer_in("a", first, SLOTS);
        world.offer_in("z", second, SLOTS);
        while world.deliver() {}
        world.sync();
        world.pass(Duration::from_secs(1));
        seconds += 1;
        // Twice the time for which each gang holds offers.
        assert!(seconds < 45, "{:?}", world.state.gangs);
    }
    assert_eq!(world.alive("z"), 2 * SLOTS as usize);
}

#[test]
fn starved_role_delays_no_other() {
    let mut world = World::new(1, 3);
    let roles = ["c", "a", "b"];
    for role in roles {
        let mut spec = gang(role, 30);
        spec.role = role.to_owned();
        submit(&mut world, spec);
    }
    while world.deliver() {}
    // All three gangs could start; after the first gang's turn, the second receives no more offers.
    for (role, agent) in roles.into_iter().zip(["a0", "a1", "a2"]) {
        world.offer_in(role, agent, SLOTS);
        while world.deliver() {}
    }
    let collector = |world: &World| {
        world
            .state
            .gangs
            .collecting()
            .map(|(job, _)| job.to_owned())
    };
    assert_eq!(collector(&world).as_deref(), Some("c"));
    let mut seconds = 0;
    while collector(&world).as_deref() != Some("b") {
        world.pass(Duration::from_secs(1));
        world.offer_in("b", "a2", SLOTS);
        while world.deliver() {}
        seconds += 1;
        // The time for which the first gang holds offers, and then for which the second is waited for.
        assert!(seconds < 40, "{:?}", world.state.gangs);
    }
    assert!(seconds > 30, "{seconds}");
}

#[test]
fn gangs_without_fit_delay_no_role() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let in_role = |role: &str, spec: JobSpec| JobSpec {
        role: role.to_owned(),
        ..spec
    };
    let mut roles: Vec<_> = (0..40).map(|number| format!("a{number:02}")).collect();
    for role in &roles {
        let mut never = gang(role, 2);
        never.task.requests.insert("cpus".to_owned(), 1_000.0);
        submit(&mut world, in_role(role, never));
    }
    submit(&mut world, in_role("z", gang("z", 2 * SLOTS)));
    roles.push("z".to_owned());
    while world.deliver() {}
    let mut seconds = 0;
    while world.alive("z") == 0 {
        for role in &roles {
            world.offer_in(role, ["a0", "a1"][seconds % 2], SLOTS);
            while world.deliver() {}
        }
        world.sync();
        world.pass(Duration::from_secs(1));
        seconds += 1;
        // Twice the time for which the gang holds offers.
        assert!(seconds < 60, "{:?}", world.state.gangs);
    }
}

/// A gang of one tenant kept the memory of all agents back for ten minutes. The job of another tenant, which was guaranteed
/// CPUs, waited that long.
#[test]
fn gang_returns_offer_to_other_tenant() {
    let mut world = World::new(1, 2);
    let mut never = gang("never", 20);
    never.gang = Some(Gang {
        hold_at_most: Duration::from_secs(600),
    });
    submit(&mut world, never);
    while world.deliver() {}
    world.offer("a0", SLOTS);
    world.offer("a1", SLOTS - 1);
    while world.deliver() {}
    assert!(world.state.gangs.collecting().is_some());
    let all = 2 * SLOTS - 1;
    assert_eq!(world.offered(), all);
    let small = |name: &str, role: &str| JobSpec {
        role: role.to_owned(),
        ..batch(name, 1)
    };
    // Jobs of its own tree are of its own tenant.
    submit(&mut world, small("own", "r/below"));
    wait(&mut world, 10);
    assert_eq!(world.offered(), all);
    submit(&mut world, small("other", "other"));
    wait(&mut world, 5);
    // The smaller one; the master offers it to the role that has less.
    assert_eq!(world.offered(), SLOTS);
    world.offer_in("other", "a1", SLOTS - 1);
    while world.deliver() {}
    world.sync();
    assert_eq!(world.alive("other"), 1);
    assert!(world.state.gangs.collecting().is_some());
}

/// The master gives each offer back to the gang, as it does for a role with a guarantee.
#[test]
fn vain_claims_rarely_delay_a_gang() {
    let mut world = World::new(1, 2);
    let mut never = gang("never", 20);
    never.gang = Some(Gang {
        hold_at_most: Duration::from_secs(600),
    });
    submit(&mut world, never);
    let other = JobSpec {
        role: "other".to_owned(),
        ..batch("other", 1)
    };
    submit(&mut world, other);
    while world.deliver() {}
    let mut given_back = 0;
    for _ in 0..1_000 {
        for agent in ["a0", "a1"] {
            if world.may_offer(agent) {
                world.offer_in("r", agent, SLOTS);
            }
        }
        while world.deliver() {}
        let before = world.offered();
        wait(&mut world, 1);
        given_back += (before - world.offered()) / SLOTS;
    }
    // In 100 seconds.
    assert!((3..=4).contains(&given_back), "{given_back}");
}

/// Lets tenths of a second pass.
fn wait(world: &mut World, tenths: usize) {
    for _ in 0..tenths {
        world.pass(Duration::from_millis(100));
        while world.deliver() {}
        world.sync();
    }
}
