//! Work in progress: slow kills, launches without a report yet, and agents that are away for a while.

use std::time::Duration;

use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};

use super::volumes::database;
use super::world::World;
use super::{batch, changed, launch, only_task, service, state_of, submit};
use crate::core::updates::LAUNCH_GRACE;
use crate::core::{Input, Request};
use crate::spec::{HealthCheck, JobSpec, Probe};

#[test]
fn ending_instances_count_until_ended() {
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
fn scaled_away_instances_count_until_ended() {
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

/// Returns a batch of one task, whose launch is in progress.
fn launching() -> (World, String) {
    let mut world = World::new(1, 1);
    submit(&mut world, batch("array", 1));
    world.make_offers();
    while world.deliver() {}
    world.sync();
    let id = only_task(&world, "array");
    (world, id)
}

#[test]
fn unknown_is_ignored_during_launch() {
    let (mut world, id) = launching();
    let ids = |world: &World| -> Vec<String> {
        let tasks = world.state.job("array").unwrap().tasks.unwrap();
        tasks.into_iter().map(|task| task.task_id).collect()
    };
    let unknown = TaskStatus {
        task_id: TaskId { value: id.clone() },
        state: TaskState::TaskUnknown.into(),
        reason: Some(Reason::Reconciliation.into()),
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(unknown.clone())));
    assert_eq!(ids(&world), [id]);
    world.pass(LAUNCH_GRACE);
    world.step(Input::Update(Box::new(unknown)));
    assert_eq!(ids(&world), [] as [String; 0]);
}

/// Regression: tasks whose launch never reached a restarted agent stayed staging for a quarter of an hour, until the next
/// query.
#[test]
fn agent_report_of_lost_launch_counts() {
    let (mut world, id) = launching();
    world.step(Input::Update(Box::new(TaskStatus {
        task_id: TaskId { value: id },
        state: TaskState::TaskDropped.into(),
        reason: Some(Reason::Reconciliation.into()),
        uuid: Some(vec![1; 16]),
        ..TaskStatus::default()
    })));
    let view = world.state.job("array").unwrap();
    assert_eq!(view.tasks.unwrap().len(), 0);
}

/// Reports a state of the service's only task, and returns its id.
fn tell(world: &mut World, state: TaskState, healthy: Option<bool>) -> String {
    let id = only_task(world, "web");
    let status = TaskStatus {
        task_id: TaskId { value: id.clone() },
        state: state.into(),
        healthy,
        ..TaskStatus::default()
    };
    world.step(Input::Update(Box::new(status)));
    world.sync();
    id
}

#[test]
fn checks_keep_results_after_agent_return() {
    let mut spec = service(1, 0, 1);
    spec.task.check = Some(HealthCheck {
        probe: Probe::Command("true".to_owned()),
        delay: Duration::ZERO,
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(5),
        failures: 3,
        grace: Duration::ZERO,
    });
    for (checked, state) in [
        (Some(true), "healthy"),
        (Some(false), "running"),
        (None, "running"),
    ] {
        let mut world = World::new(1, 1);
        submit(&mut world, spec.clone());
        launch(&mut world);
        tell(&mut world, TaskState::TaskRunning, checked);
        tell(&mut world, TaskState::TaskUnreachable, None);
        world.pass(Duration::from_secs(5));
        assert_eq!(state_of(&world, "web"), "running");
        tell(&mut world, TaskState::TaskRunning, None);
        world.pass(Duration::from_secs(5));
        assert_eq!(state_of(&world, "web"), state, "{checked:?}");
    }
}

#[test]
fn task_killed_by_checks_has_failed() {
    let text = "failed (its health checks failed)";
    for (running, killed, expected) in [
        (None, Some(false), text),
        // The report came earlier, and not with the end.
        (Some(false), None, text),
        (Some(true), None, "failed"),
    ] {
        let mut world = World::new(1, 1);
        submit(&mut world, service(1, 0, 1));
        launch(&mut world);
        tell(&mut world, TaskState::TaskRunning, running);
        tell(&mut world, TaskState::TaskKilled, killed);
        let events = world.state.history("web").expect("a job").events;
        let told = events.last().map(|event| &*event.text);
        assert_eq!(told, Some(expected), "{events:?}");
    }
    // An unhealthy task may also end by itself, or because the job is stopped.
    for (is_stopped, state, expected) in [
        (false, TaskState::TaskFailed, "failed"),
        (true, TaskState::TaskKilled, "killed: the job is stopped"),
    ] {
        let mut world = World::new(1, 1);
        world.is_slow_to_end = true;
        submit(&mut world, service(1, 0, 1));
        launch(&mut world);
        tell(&mut world, TaskState::TaskRunning, Some(false));
        if is_stopped {
            let (name, purge) = ("web".to_owned(), false);
            world.request(Request::Stop { name, purge });
        }
        tell(&mut world, state, Some(false));
        let events = world.state.history("web").expect("a job").events;
        let told = events.last().map(|event| &*event.text);
        assert_eq!(told, Some(expected), "{events:?}");
    }
}

#[test]
fn task_back_before_running_is_kept() {
    for state in [TaskState::TaskStaging, TaskState::TaskStarting] {
        let mut world = World::new(1, 2);
        submit(&mut world, service(1, 0, 1));
        launch(&mut world);
        let id = tell(&mut world, TaskState::TaskUnreachable, None);
        world.pass(Duration::from_secs(20));
        tell(&mut world, state, None);
        for _ in 0..10 {
            world.pass(Duration::from_secs(10));
        }
        assert_eq!(tell(&mut world, state, None), id);
    }
}

/// Returns a service whose agent is away, with the scheduler informed.
fn away() -> (World, String) {
    let mut world = World::new(1, 2);
    submit(&mut world, service(1, 0, 1));
    world.calm(20, None);
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    while world.deliver() {}
    world.sync();
    let id = only_task(&world, "web");
    (world, id)
}

#[test]
fn task_of_returned_agent_is_kept() {
    // While the agent comes back, the scheduler restarts, has no master, or stands still.
    for case in 0..3 {
        let (mut world, id) = away();
        world.return_unnoticed();
        match case {
            0 => {
                world.sleep(Duration::from_secs(120));
                world.crash();
                world.pass(Duration::from_secs(1));
            }
            1 => world.outage(120),
            _ => world.stand_still(Duration::from_secs(120)),
        }
        world.calm(1, None);
        world.tell_all();
        world.calm(20, None);
        assert_eq!(only_task(&world, "web"), id, "case {case}");
        assert_eq!(world.launches.len(), 1);
    }
    // An agent that stays away is given up as soon as the master has reported that.
    let (mut world, id) = away();
    world.return_others(&id);
    world.sleep(Duration::from_secs(120));
    world.crash();
    world.calm(20, None);
    assert_ne!(only_task(&world, "web"), id);
}

#[test]
fn healthy_update_survives_scheduler_pause() {
    let mut world = World::new(7, 4);
    let spec = service(1, 0, 1);
    submit(&mut world, spec.clone());
    world.calm(60, None);
    submit(&mut world, changed(&spec, "another"));
    launch(&mut world);
    world.advance(None);
    // The report of the new instance has not been read yet.
    world.stand_still(Duration::from_secs(121));
    world.calm(60, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn purge_ignores_absent_agent() {
    for spec in [service(1, 0, 1), database(1)] {
        let mut world = World::new(1, 2);
        submit(&mut world, spec.clone());
        world.calm(30, None);
        while world.alive("web") > 0 {
            world.toggle_agent();
        }
        while world.deliver() {}
        let (name, purge) = ("web".to_owned(), true);
        world.request(Request::Stop { name, purge });
        world.sync();
        // The rule also holds if the scheduler restarts meanwhile.
        world.crash();
        while world.deliver() {}
        world.pass(Duration::from_secs(40));
        assert!(world.state.job("web").is_none());
        submit(&mut world, spec);
    }
}

#[test]
fn forgotten_tasks_end_at_scheduler_start() {
    let (mut world, id) = away();
    world.pass(Duration::from_secs(60));
    // The task is given up; its agent comes back while the scheduler is away.
    world.sync();
    world.return_unnoticed();
    world.crash();
    while world.deliver() {}
    assert!(!world.lives(&id));
}

/// The master leads since a moment too, and hears of the task when its agent is back.
#[test]
fn forgotten_tasks_end_after_agent_return() {
    let (mut world, id) = away();
    world.pass(Duration::from_secs(60));
    world.sync();
    world.crash();
    while world.deliver() {}
    world.return_unnoticed();
    assert!(world.lives(&id));
    for _ in 0..40 {
        world.pass(Duration::from_secs(1));
        while world.deliver() {}
    }
    assert!(!world.lives(&id));
}

#[test]
fn instances_surviving_stop_are_updated() {
    let mut world = World::new(1, 1);
    let spec = service(3, 1, 0);
    submit(&mut world, spec.clone());
    world.calm(20, None);
    // The task's agent is away while the job is stopped and started again, and the scheduler forgets the kills.
    world.toggle_agent();
    while world.deliver() {}
    world.request(Request::Stop {
        name: "web".to_owned(),
        purge: false,
    });
    world.sync();
    submit(&mut world, spec.clone());
    world.crash();
    world.toggle_agent();
    world.calm(10, None);
    assert_eq!(
        (state_of(&world, "web"), world.alive("web")),
        ("healthy", 3)
    );
    submit(&mut world, changed(&spec, "another"));
    for _ in 0..30 {
        assert!(world.alive("web") >= 2, "{} instances", world.alive("web"));
        world.calm(1, None);
    }
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
}

#[test]
fn instances_surviving_stop_respect_dependencies() {
    let mut world = World::new(1, 3);
    let mut sooner = service(1, 1, 0);
    sooner.name = "sooner".to_owned();
    let mut spec = JobSpec {
        after: vec!["sooner".to_owned()],
        ..service(3, 1, 0)
    };
    // Each agent gets one task.
    spec.task.requests.insert("cpus".to_owned(), 3.0);
    for spec in [&sooner, &spec] {
        submit(&mut world, spec.clone());
    }
    world.calm(60, None);
    assert_eq!(state_of(&world, "web"), "healthy");
    let tasks = world.state.job("web").unwrap().tasks.unwrap();
    let outlives = tasks[0].task_id.clone();
    while world.alive("web") > 0 {
        world.toggle_agent();
    }
    world.return_others(&outlives);
    while world.deliver() {}
    for name in ["web", "sooner"] {
        let (name, purge) = (name.to_owned(), false);
        world.request(Request::Stop { name, purge });
    }
    world.sync();
    while world.deliver() {}
    submit(&mut world, spec.clone());
    world.crash();
    world.return_all();
    // A time much longer than the deadline of an update.
    for command in ["true", "another"] {
        submit(&mut world, changed(&spec, command));
        world.calm(150, None);
        let view = world.state.job("web").unwrap();
        assert_eq!(view.why, "it starts after sooner, which is stopped");
        assert!(world.lives(&outlives) && world.alive("web") == 1);
    }
    submit(&mut world, sooner);
    world.calm(100, None);
    let view = world.state.job("web").unwrap();
    assert_eq!((view.state, view.version), ("healthy", 2));
    assert_eq!(world.alive("web"), 3);
}
