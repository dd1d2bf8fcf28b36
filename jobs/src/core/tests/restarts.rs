//! Restarts: work in progress continues, whatever the clock shows.

use meseta_proto::mesos::v1::TaskState;

use super::lost_agents::report;
use super::*;

fn ids_of(world: &World, name: &str) -> Vec<String> {
    let tasks = world.state.job(name).expect("a job").tasks;
    let tasks = tasks.expect("tasks").into_iter();
    tasks.map(|task| task.task_id).collect()
}

/// Ends the tasks whose kills have left, and reports their ends.
fn end_killed(world: &mut World) {
    world.is_slow_to_end = false;
    let killed: Vec<String> = world.kills.drain(..).collect();
    for id in killed {
        if world.lives(&id) {
            report(world, &id, TaskState::TaskKilled);
        }
    }
}

#[test]
fn update_kill_after_restart_is_expected() {
    let mut world = World::new(3, 4);
    let spec = service(4, 1, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    world.is_slow_to_end = true;
    submit(&mut world, changed(&spec, "second"));
    world.calm(8, None);
    assert!(!world.kills.is_empty());
    world.crash();
    let before = world.state.totals().failed;
    end_killed(&mut world);
    assert_eq!(world.state.totals().failed, before);
    let view = world.state.job("web").unwrap();
    assert_eq!(view.failed, 0);
    let events = world.state.history("web").unwrap().events;
    let killed = events
        .iter()
        .filter(|event| event.text.starts_with("killed"));
    assert!(killed.count() > 0, "{events:?}");
}

#[test]
fn gang_update_survives_scheduler_restart() {
    let mut world = World::new(1, 4);
    let spec = JobSpec {
        gang: gang("web", 3).gang,
        ..service(3, 1, 1)
    };
    submit(&mut world, spec.clone());
    world.calm(30, None);
    world.is_slow_to_end = true;
    submit(&mut world, changed(&spec, "second"));
    world.calm(10, None);
    assert!(!world.kills.is_empty());
    world.crash();
    world.calm(1, None);
    end_killed(&mut world);
    for _ in 0..30 {
        world.calm(1, None);
        assert!(world.alive("web") >= 2, "{:?}", ids_of(&world, "web"));
    }
    assert_eq!(state_of(&world, "web"), "healthy");
}

/// The reason also survives if the job has been started again meanwhile.
#[test]
fn kill_reason_survives_restart() {
    for what in ["stop", "scale", "time"] {
        let mut world = World::new(2, 4);
        let name = || "web".to_owned();
        let job = match what {
            "time" => "some",
            _ => "web",
        };
        let mut some = batch("some", 1);
        let Kind::Batch(kind) = &mut some.kind else {
            panic!("a batch");
        };
        kind.timeout = Some(Duration::from_secs(20));
        submit(
            &mut world,
            if what == "time" {
                some
            } else {
                service(3, 1, 1)
            },
        );
        for _ in 0..6 {
            world.make_offers();
            while world.deliver() {}
            world.sync();
        }
        let count = ids_of(&world, job).len();
        while world.state.job(job).unwrap().running < count {
            world.advance(None);
            while world.deliver() {}
            world.sync();
        }
        world.is_slow_to_end = true;
        let expected = match what {
            "stop" => {
                world.request(Request::Stop {
                    name: name(),
                    purge: false,
                });
                world.sync();
                submit(&mut world, service(3, 1, 1));
                "the job is stopped"
            }
            "scale" => {
                world.request(Request::Scale {
                    name: name(),
                    count: 1,
                    purge: false,
                });
                world.sync();
                "fewer instances are wanted"
            }
            _ => {
                world.pass(Duration::from_secs(30));
                "took too long"
            }
        };
        world.sync();
        assert!(!world.kills.is_empty(), "{what}");
        world.crash();
        end_killed(&mut world);
        let events = world.state.history(job).unwrap().events;
        let killed = events.iter().find(|event| event.text.starts_with("killed"));
        let text = killed.map(|event| event.text.clone()).unwrap_or_default();
        assert!(text.contains(expected), "{what}: {events:?}");
    }
}

fn long(timeout: u64) -> JobSpec {
    let mut spec = batch("long", 1);
    let Kind::Batch(kind) = &mut spec.kind else {
        panic!("a batch");
    };
    kind.timeout = Some(Duration::from_secs(timeout));
    kind.retries = 0;
    spec
}

/// Starts a batch and returns its running task.
fn start_long(world: &mut World, timeout: u64) -> String {
    submit(world, long(timeout));
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
    }
    world.advance(None);
    while world.deliver() {}
    world.sync();
    only_task(world, "long")
}

fn go_on(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.pass(Duration::from_secs(1));
        while world.deliver() {}
        world.sync();
    }
}

#[test]
fn slow_clock_times_out_no_task() {
    let mut world = World::new(1, 2);
    let id = start_long(&mut world, 1_800);
    go_on(&mut world, 10);
    // The clock was an hour behind and is set right; later another scheduler starts.
    world.set_ahead(Duration::from_secs(3_600));
    go_on(&mut world, 10);
    for _ in 0..3 {
        world.crash();
        go_on(&mut world, 3);
        assert!(world.lives(&id), "{:?}", world.kills);
    }
    assert_eq!(world.state.job("long").unwrap().failed, 0);
    // The watched time counts across all starts.
    go_on(&mut world, 1_750);
    assert!(world.lives(&id));
    world.crash();
    go_on(&mut world, 60);
    assert!(!world.lives(&id));
}

/// Another machine leads, and its clock differs by an hour in either direction.
#[test]
fn failover_clock_times_out_no_task() {
    let mut world = World::new(1, 3);
    let id = start_long(&mut world, 1_800);
    world.lose_agent_of(&id);
    while world.deliver() {}
    for hours in [1, 0, 30, 0] {
        go_on(&mut world, 12);
        world.set_ahead(Duration::from_secs(hours * 3_600));
        world.crash();
    }
    go_on(&mut world, 60);
    // The task has not exceeded its time, and its agent was not away for too long.
    assert_eq!(ids_of(&world, "long"), std::slice::from_ref(&id));
    let since = world.state.job("long").unwrap().tasks.unwrap()[0].since;
    let unix = world.now().unix.as_secs();
    assert!((70..140).contains(&(unix - since)), "{since} {unix}");
}

/// Regression: an index that paused after a failure paused for longer or shorter by another clock.
#[test]
fn failure_pause_survives_clock_change() {
    let mut world = World::new(1, 2);
    submit(&mut world, service(1, 1, 1));
    world.calm(20, None);
    world.set_ahead(Duration::from_secs(3_600));
    let id = only_task(&world, "web");
    report(&mut world, &id, TaskState::TaskFailed);
    world.set_ahead(Duration::ZERO);
    world.crash();
    world.calm(15, None);
    assert_eq!(state_of(&world, "web"), "healthy");
}
