//! The core in a small simulated world: the invariants during chaos, and the outcome once the world is calm.

mod beside;
mod bounds;
mod gangs;
mod lists;
mod lost_agents;
mod names;
mod offers;
mod overlaps;
mod reason_file;
mod reasons;
mod restarts;
mod schedules;
mod setbacks;
mod spreads;
mod stored;
mod under_way;
mod updates;
mod versions;
mod volumes;
mod waiting;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Authorities, Authority, Input, PlanView, Quotas, Request};
use crate::spec::{
    Backoff, Batch, Command, Cron, Gang, JobSpec, Kind, Overlap, Service, TaskTemplate, Update,
};
use world::World;

/// Worlds in which each property is tested.
const SEEDS: u64 = 20;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(8),
    reset_after: Duration::from_secs(60),
};

fn job(name: &str, count: u32, kind: Kind) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        kind,
        role: "r".to_owned(),
        count,
        priority: 50,
        task: TaskTemplate {
            command: Command::Shell("true".to_owned()),
            user: None,
            env: BTreeMap::new(),
            uris: Vec::new(),
            requests: BTreeMap::from([("cpus".to_owned(), 1.0)]),
            limits: BTreeMap::from([("mem".to_owned(), f64::INFINITY)]),
            ports: Vec::new(),
            check: None,
            kill_grace: Duration::from_secs(5),
        },
        constraints: Vec::new(),
        after: Vec::new(),
        gang: None,
        best_effort: false,
        volume: None,
        labels: BTreeMap::new(),
    }
}

fn service(count: u32, max_unavailable: u32, max_surge: u32) -> JobSpec {
    let update = Update {
        max_unavailable,
        max_surge,
        canary: 0,
        healthy_after: Duration::from_secs(1),
        pause: Duration::ZERO,
        progress_deadline: Duration::from_secs(120),
        auto_revert: true,
    };
    let restart = BACKOFF;
    job("web", count, Kind::Service(Service { restart, update }))
}

fn batch(name: &str, count: u32) -> JobSpec {
    job(name, count, Kind::Batch(a_batch()))
}

fn a_batch() -> Batch {
    Batch {
        retries: 1000,
        backoff: BACKOFF,
        timeout: None,
    }
}

fn cron(overlap: Overlap) -> JobSpec {
    let cron = Cron {
        batch: a_batch(),
        schedule: "* * * * *".to_owned(),
        time_zone: "UTC".to_owned(),
        overlap,
        start_within: Duration::from_secs(30),
    };
    job("nightly", 1, Kind::Cron(cron))
}

fn gang(name: &str, count: u32) -> JobSpec {
    JobSpec {
        gang: Some(Gang {
            hold_at_most: Duration::from_secs(20),
        }),
        ..batch(name, count)
    }
}

/// Returns the specification with another command, which makes another version.
fn changed(spec: &JobSpec, command: &str) -> JobSpec {
    let mut spec = spec.clone();
    spec.task.command = Command::Shell(command.to_owned());
    spec
}

fn submit(world: &mut World, spec: JobSpec) {
    let id = world.request(Request::Submit(Box::new(spec)));
    world.sync();
    assert!(
        matches!(world.answers.get(&id), Some(Ok(_))),
        "{:?}",
        world.answers.get(&id)
    );
}

fn state_of(world: &World, name: &str) -> &'static str {
    world.state.job(name).expect("a job").state
}

/// Returns the id of the only task of a job.
fn only_task(world: &World, name: &str) -> String {
    let tasks = world.state.job(name).expect("a job").tasks;
    let tasks = tasks.expect("its tasks");
    let [task] = &tasks[..] else {
        panic!("one task: {tasks:?}");
    };
    task.task_id.clone()
}

/// Returns a plan without known quotas.
fn plan_of(world: &World, spec: &JobSpec) -> PlanView {
    world.state.plan(&spec.name, spec, &Quotas::default())
}

/// Plays random steps of any kind. Agents go away only if `with_agents` is set.
fn chaos(world: &mut World, steps: u32, with_agents: bool) {
    for _ in 0..steps {
        match world.dice.below(if with_agents { 21 } else { 20 }) {
            0..4 => world.make_offers(),
            4..9 => {
                world.deliver();
            }
            9..12 => world.sync(),
            12..16 => world.advance(None),
            16 => world.pass(Duration::from_millis(700)),
            17 => world.rescind(),
            18 => world.disconnect(),
            19 => world.crash(),
            _ => world.toggle_agent(),
        }
        world.check();
    }
}

#[test]
fn service_respects_surge_and_recovers() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 4);
        let spec = service(5, 1, 1);
        submit(&mut world, spec.clone());
        for round in 0..4 {
            for _ in 0..60 {
                chaos(&mut world, 5, false);
                let alive = world.alive("web");
                assert!(alive <= 6, "{alive} tasks with seed {seed}");
            }
            submit(&mut world, changed(&spec, &format!("version {round}")));
        }
        world.calm(200, None);
        assert_eq!(state_of(&world, "web"), "healthy", "seed {seed}");
        assert_eq!(world.alive("web"), 5, "seed {seed}");
    }
}

#[test]
fn returning_agents_keep_the_task_count() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 5);
        submit(&mut world, service(5, 1, 1));
        submit(&mut world, batch("array", 12));
        chaos(&mut world, 600, true);
        world.return_all();
        world.calm(400, None);
        assert_eq!(state_of(&world, "web"), "healthy", "seed {seed}");
        assert_eq!(world.alive("web"), 5, "seed {seed}");
        assert_eq!(state_of(&world, "array"), "complete", "seed {seed}");
        assert_eq!(world.successes.len(), 12, "seed {seed}");
    }
}

#[test]
fn batch_tasks_succeed_once_despite_kills() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 3);
        submit(&mut world, batch("array", 30));
        chaos(&mut world, 1_500, false);
        world.calm(300, None);
        assert_eq!(state_of(&world, "array"), "complete", "seed {seed}");
        assert_eq!(world.successes.len(), 30, "seed {seed}");
    }
}

#[test]
fn update_keeps_minimum_of_healthy_instances() {
    for (max_unavailable, max_surge) in [(0, 1), (1, 0), (2, 2), (1, 1)] {
        let mut world = World::new(7, 4);
        let spec = service(6, max_unavailable, max_surge);
        submit(&mut world, spec.clone());
        world.calm(60, None);
        assert_eq!(state_of(&world, "web"), "healthy");
        submit(&mut world, changed(&spec, "another"));
        for _ in 0..200 {
            world.calm(1, None);
            let healthy = world.state.job("web").unwrap().healthy;
            assert!(
                healthy >= (6 - max_unavailable) as usize,
                "{healthy} healthy"
            );
            assert!(world.alive("web") <= (6 + max_surge) as usize);
        }
        let view = world.state.job("web").unwrap();
        assert_eq!((view.state, view.version), ("healthy", 2));
        assert!(view.tasks.unwrap().iter().all(|task| task.version == 2));
    }
}

#[test]
fn failing_version_reverts_automatically() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 1, 1);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    // An unhealthy instance fails sooner.
    kind.update.healthy_after = Duration::from_secs(10);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    submit(&mut world, changed(&spec, "ill"));
    for _ in 0..200 {
        world.calm(1, Some(2));
        assert!(world.state.job("web").unwrap().healthy >= 3);
    }
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 1));
    // Only a request tries it again; the next version starts at once.
    submit(&mut world, changed(&spec, "well"));
    world.calm(100, Some(2));
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 3));
}

#[test]
fn canaries_wait_until_they_are_promoted() {
    let mut world = World::new(3, 4);
    let mut spec = service(4, 1, 1);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.update.canary = 1;
    submit(&mut world, spec.clone());
    world.calm(60, None);
    submit(&mut world, changed(&spec, "another"));
    world.calm(300, None);
    let versions = |world: &World| {
        let tasks = world.state.job("web").unwrap().tasks.unwrap();
        tasks.iter().filter(|task| task.version == 2).count()
    };
    assert_eq!((state_of(&world, "web"), versions(&world)), ("updating", 1));
    world.request(Request::Promote {
        name: "web".to_owned(),
    });
    world.calm(100, None);
    assert_eq!((state_of(&world, "web"), versions(&world)), ("healthy", 4));
}

#[test]
fn gangs_start_together_without_deadlock() {
    for seed in 0..20 {
        // There are twelve slots, and a service uses four of them at times.
        let mut world = World::new(seed, 3);
        world.success_in_ten = 10;
        submit(&mut world, gang("one", 8));
        submit(&mut world, gang("two", 8));
        submit(&mut world, batch("filler", 20));
        chaos(&mut world, 400, false);
        world.calm(600, None);
        for name in ["one", "two", "filler"] {
            assert_eq!(state_of(&world, name), "complete", "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_gang_is_launched_whole() {
    let mut world = World::new(5, 3);
    world.success_in_ten = 10;
    submit(&mut world, gang("one", 8));
    submit(&mut world, gang("two", 8));
    world.calm(200, None);
    let sizes: Vec<_> = world.launches.iter().map(|(_, size)| *size).collect();
    assert_eq!(sizes, [8, 8]);
    // A gang that never fits keeps offers only for a while.
    submit(&mut world, gang("huge", 13));
    submit(&mut world, batch("small", 4));
    world.calm(100, None);
    assert_eq!(state_of(&world, "small"), "complete");
    assert_eq!(state_of(&world, "huge"), "pending");
}

#[test]
fn job_starts_after_its_dependencies() {
    let mut world = World::new(1, 3);
    let mut later = batch("later", 1);
    later.after = vec!["sooner".to_owned()];
    submit(&mut world, later);
    world.calm(20, None);
    assert_eq!(state_of(&world, "later"), "pending");
    assert_eq!(
        world.state.job("later").unwrap().why,
        "it starts after sooner, which does not exist yet"
    );
    submit(&mut world, batch("sooner", 2));
    world.calm(60, None);
    assert_eq!(state_of(&world, "later"), "complete");
}

#[test]
fn idle_scheduler_suppresses_and_stopped_ends() {
    let mut world = World::new(1, 3);
    submit(&mut world, service(3, 1, 1));
    world.calm(30, None);
    assert!(world.is_suppressed("r"));
    let name = || "web".to_owned();
    world.request(Request::Scale {
        name: name(),
        count: 6,
        purge: false,
    });
    world.calm(30, None);
    assert_eq!(world.alive("web"), 6);
    world.request(Request::Stop {
        name: name(),
        purge: false,
    });
    world.calm(30, None);
    assert_eq!(
        (world.alive("web"), state_of(&world, "web")),
        (0, "stopped")
    );
    world.crash();
    world.calm(5, None);
    assert_eq!(world.alive("web"), 0);
    world.request(Request::Stop {
        name: name(),
        purge: true,
    });
    world.sync();
    assert_eq!(world.state.job("web"), None);
    // The world checks that no id is used again.
    submit(&mut world, service(1, 1, 1));
    world.calm(20, None);
    assert_eq!(world.state.job("web").unwrap().version, 1);
}

#[test]
fn rescinded_launch_is_retried_as_attempt() {
    let mut world = World::new(1, 1);
    submit(&mut world, service(1, 1, 1));
    world.make_offers();
    while world.deliver() {}
    world.rescind();
    while world.deliver() {}
    world.sync();
    assert_eq!((world.alive("web"), world.launches.len()), (0, 0));
    world.calm(10, None);
    let tasks = world.state.job("web").unwrap().tasks.unwrap();
    assert_eq!(tasks[0].task_id, "web.1.0.0.2");
}

#[test]
fn impossible_requests_name_their_reason() {
    let mut world = World::new(1, 1);
    submit(&mut world, batch("array", 3));
    let name = || "array".to_owned();
    for (request, text) in [
        (
            Request::Scale {
                name: name(),
                count: 2,
                purge: false,
            },
            "is not a service",
        ),
        (Request::Promote { name: name() }, "not being updated"),
        (
            Request::Revert {
                name: name(),
                version: None,
            },
            "no version before",
        ),
        (
            Request::Revert {
                name: name(),
                version: Some(9),
            },
            "known are 1",
        ),
        (
            Request::Stop {
                name: "none".to_owned(),
                purge: false,
            },
            "there is no job",
        ),
    ] {
        let id = world.request(request);
        world.sync();
        let answer = world.answers[&id].clone().unwrap_err().to_string();
        assert!(answer.contains(text), "{answer}");
    }
    world.step(Input::FrameworkRemoved);
    assert_eq!(world.state.framework_id(), None);
}

#[test]
fn permission_is_bound_to_seen_job() {
    let mut world = World::new(1, 1);
    let mine = Authorities {
        present: Authority::from_spec(&batch("array", 3)),
        rollback: None,
    };
    let mut other = batch("array", 3);
    other.role = "other".to_owned();
    let submission = || Box::new(Request::Submit(Box::new(batch("array", 3))));
    submit(&mut world, other);
    let before = world.state.job("array");
    // The client has seen no such job, or a job in another role.
    for (seen, is_done) in [
        (None, false),
        (Some(mine), false),
        (world.state.authorities_of("array"), true),
    ] {
        let id = world.request(Request::Permitted {
            name: "array".to_owned(),
            seen,
            principal: None,
            request: submission(),
        });
        world.sync();
        let answer = &world.answers[&id];
        assert_eq!(answer.is_ok(), is_done, "{answer:?}");
        assert_eq!(world.state.job("array") != before, is_done);
    }
}

/// Returns a healthy service in its second version, with the first still known.
fn updated(max_unavailable: u32, max_surge: u32) -> (World, JobSpec) {
    let mut world = World::new(7, 4);
    let mut spec = service(6, max_unavailable, max_surge);
    let Kind::Service(kind) = &mut spec.kind else {
        panic!("a service");
    };
    kind.update.healthy_after = Duration::from_secs(5);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    let spec = changed(&spec, "second");
    submit(&mut world, spec.clone());
    world.calm(120, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
    (world, spec)
}

fn revert(world: &mut World, version: u64) {
    world.request(Request::Revert {
        name: "web".to_owned(),
        version: Some(version),
    });
    world.sync();
}

#[test]
fn crash_during_revert_kills_no_unknown() {
    for (max_unavailable, max_surge) in [(1, 0), (1, 1), (0, 1)] {
        let (mut world, _) = updated(max_unavailable, max_surge);
        revert(&mut world, 1);
        for _ in 0..20 {
            world.crash();
            let minimum = (6 - max_unavailable) as usize;
            assert!(world.alive("web") >= minimum, "{}", world.alive("web"));
            world.calm(2, None);
            assert!(world.alive("web") >= minimum, "{}", world.alive("web"));
        }
        world.calm(120, None);
        let view = world.state.job("web").unwrap();
        assert_eq!((view.state, view.version), ("healthy", 1));
    }
}

#[test]
fn revert_to_update_target_completes_update() {
    let (mut world, spec) = updated(0, 1);
    submit(&mut world, changed(&spec, "third"));
    world.calm(8, None);
    revert(&mut world, 3);
    world.calm(200, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 3));
    assert!(view.tasks.unwrap().iter().all(|task| task.version == 3));
}

#[test]
fn update_deadline_excludes_time_without_master() {
    let (mut world, spec) = updated(0, 1);
    submit(&mut world, changed(&spec, "third"));
    world.outage(600);
    world.calm(1, None);
    world.outage(119);
    world.calm(200, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 3));
}

/// Offers and launches all that fits; running tasks do not advance.
fn launch(world: &mut World) {
    for _ in 0..3 {
        world.make_offers();
        while world.deliver() {}
        world.sync();
        world.pass(Duration::from_secs(7));
    }
}

#[test]
fn run_starts_after_cancelled_tasks_end() {
    let mut world = World::new(1, 2);
    let spec = batch("array", 2);
    submit(&mut world, spec.clone());
    launch(&mut world);
    world.is_slow_to_end = true;
    submit(&mut world, changed(&spec, "another"));
    launch(&mut world);
    assert_eq!((world.alive("array"), world.launches.len()), (2, 1));
    let why = world.state.job("array").unwrap().why;
    assert!(why.contains("cancelled"), "{why}");
    world.is_slow_to_end = false;
    launch(&mut world);
    world.calm(60, None);
    assert_eq!(state_of(&world, "array"), "complete");
    assert!(world.successes.keys().all(|(_, run, _)| *run == 2));
}

#[test]
fn late_success_counts_and_ends_replacement() {
    for is_restarted in [false, true] {
        let mut world = World::new(1, 2);
        submit(&mut world, batch("array", 1));
        launch(&mut world);
        let task = |world: &World| world.state.job("array").unwrap().tasks.unwrap();
        let first = task(&world)[0].task_id.clone();
        while world.alive("array") > 0 {
            world.toggle_agent();
        }
        while world.deliver() {}
        world.pass(Duration::from_secs(100_001));
        // If both agents went away, the other one serves the replacement.
        world.return_others(&first);
        launch(&mut world);
        let second = task(&world)[0].task_id.clone();
        assert_ne!(first, second);
        world.is_slow_to_end = true;
        world.finish_away(&first);
        while world.deliver() {}
        world.sync();
        if is_restarted {
            world.crash();
        }
        assert_eq!(task(&world)[0].state, "TASK_KILLING");
        world.is_slow_to_end = false;
        launch(&mut world);
        launch(&mut world);
        assert_eq!(state_of(&world, "array"), "complete");
        assert_eq!(world.launches.len(), 2);
    }
}

#[test]
fn unplaceable_gang_holds_more_rarely() {
    let mut world = World::new(5, 3);
    submit(&mut world, gang("huge", 13));
    let mut held = 0;
    for _ in 0..2_000 {
        world.calm(1, None);
        held += u32::from(world.state.gangs.collecting().is_some());
    }
    // The gang holds offers for 20 s at a time, with pauses of 20 s, 40 s, 80 s and so on.
    assert!((100..300).contains(&held), "{held} s of 2000 s");
}

#[test]
fn gang_holds_offers_ten_minutes_maximum() {
    let mut world = World::new(5, 3);
    let mut spec = gang("huge", 13);
    spec.gang = Some(Gang {
        hold_at_most: Duration::from_secs(100_000),
    });
    submit(&mut world, spec);
    world.calm(590, None);
    assert!(world.state.gangs.collecting().is_some());
    world.calm(20, None);
    assert!(world.state.gangs.collecting().is_none());
}
