//! Schedules: each time runs once, whatever happens to the clock and the scheduler.

use super::*;
use crate::core::clock::CATCHING_UP;
use crate::core::dealt_times::Dealt;
use crate::core::runs::{ANSWERS_WITHIN, TIMES_MAX};

#[test]
fn schedule_fires_once_per_time() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        world.success_in_ten = 10;
        submit(&mut world, cron(Overlap::Skip));
        for _ in 0..10 {
            world.calm(30, None);
            world.crash();
            world.crash();
        }
        world.calm(30, None);
        // 330 s contain five or six full minutes.
        let runs = world.successes.len();
        assert!((5..=6).contains(&runs), "{runs} runs with seed {seed}");
    }
    // After an hour of absence at most one run is made up for, if it is not too late.
    let mut world = World::new(1, 3);
    submit(&mut world, cron(Overlap::Skip));
    world.stand_still(Duration::from_secs(3600));
    world.calm(20, None);
    assert!(world.successes.len() <= 1, "{:?}", world.successes);
}

/// Returns a schedule with a run that has just started; the next full minute is at least 40 s away.
fn started_schedule(overlap: Overlap) -> World {
    let mut world = World::new(1, 2);
    submit(&mut world, cron(overlap));
    // The origin is 20 s after a full minute.
    world.pass(Duration::from_secs(41));
    launch(&mut world);
    assert_eq!(world.alive("nightly"), 1);
    world
}

fn runs_of(world: &World) -> Vec<u64> {
    let tasks = world.state.job("nightly").unwrap().tasks.unwrap();
    tasks.iter().map(|task| task.run).collect()
}

#[test]
fn edited_schedule_keeps_run_without_catchup() {
    let mut world = started_schedule(Overlap::Skip);
    submit(&mut world, changed(&cron(Overlap::Skip), "another"));
    launch(&mut world);
    assert_eq!(runs_of(&world), [1]);
    world.request(Request::Restart {
        name: "nightly".to_owned(),
    });
    launch(&mut world);
    // A run interrupted by a restart of the job runs again.
    assert_eq!(runs_of(&world).last(), Some(&2));
}

/// Returns for each finished run whether it was cancelled.
fn cancelled(world: &World) -> Vec<bool> {
    let over = &world.state.jobs["nightly"].record.over;
    over.iter().map(|run| run.cancelled).collect()
}

fn skipped(world: &World) -> Vec<String> {
    let events = world.state.history("nightly").expect("a job").events;
    let skipped = events
        .into_iter()
        .filter(|one| one.text.contains("skipped"));
    skipped.map(|one| one.text).collect()
}

#[test]
fn run_ended_during_absence_blocks_nothing() {
    let cases = [
        (Overlap::Skip, Duration::from_secs(1)),
        (Overlap::Replace, Duration::from_secs(1)),
        // A suspended process can receive nothing.
        (Overlap::Skip, ANSWERS_WITHIN * 2),
    ];
    for (overlap, pause) in cases {
        let mut world = started_schedule(overlap);
        world.sync();
        world.finish_away(&only_task(&world, "nightly"));
        world.sleep(Duration::from_secs(60));
        world.crash();
        // The time is due before the core reads the end of the run, in the same step.
        world.stand_still(pause);
        assert_eq!((started(&world), cancelled(&world)), (1, vec![]));
        world.deliver_with_time();
        if pause > Duration::from_secs(1) {
            world.stand_still(CATCHING_UP);
        }
        assert_eq!((started(&world), cancelled(&world)), (2, vec![false]));
        assert_eq!(skipped(&world), [] as [String; 0]);
    }
}

/// Regression: the run counted as running because the core had not read its end yet.
#[test]
fn run_ended_during_pause_blocks_nothing() {
    for overlap in [Overlap::Skip, Overlap::Replace] {
        let mut world = started_schedule(overlap);
        world.finish_away(&only_task(&world, "nightly"));
        world.stand_still(Duration::from_secs(60));
        assert_eq!((started(&world), cancelled(&world)), (1, vec![]));
        while world.deliver() {}
        world.stand_still(CATCHING_UP);
        assert_eq!((started(&world), cancelled(&world)), (2, vec![false]));
        assert_eq!(skipped(&world), [] as [String; 0]);
    }
    // A core that needs this long for each step nevertheless starts runs.
    let mut world = World::new(1, 2);
    submit(&mut world, cron(Overlap::Allow));
    for _ in 0..12 {
        world.stand_still(Duration::from_secs(10));
    }
    assert_eq!(started(&world), 2);
}

#[test]
fn silent_run_counts_as_running_later() {
    for (overlap, runs) in [(Overlap::Skip, 1), (Overlap::Replace, 2)] {
        let mut world = started_schedule(overlap);
        world.sync();
        world.sleep(Duration::from_secs(60));
        world.crash();
        world.pass(ANSWERS_WITHIN - Duration::from_secs(1));
        assert_eq!((started(&world), skipped(&world)), (1, vec![]));
        // The wait does not make the run too late.
        world.pass(Duration::from_secs(1));
        assert_eq!(started(&world), runs);
        let told = "a run was skipped: it is not known whether the one before has ended";
        let expected = (overlap == Overlap::Skip).then(|| told.to_owned());
        assert_eq!(skipped(&world), expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn time_without_master_awaits_previous_run() {
    for has_ended in [true, false] {
        let mut world = started_schedule(Overlap::Skip);
        world.sync();
        let task = only_task(&world, "nightly");
        world.outage(65);
        if has_ended {
            world.finish_away(&task);
        }
        while world.deliver() {}
        world.stand_still(Duration::from_millis(100));
        let (runs, told) = match has_ended {
            true => (2, vec![]),
            false => (1, vec!["a run was skipped: the one before has not ended"]),
        };
        assert_eq!(
            (started(&world), skipped(&world)),
            (runs, told.iter().map(|text| (*text).to_owned()).collect())
        );
    }
}

/// Regression: the time was lost without any message.
#[test]
fn postponed_time_uses_the_new_version() {
    let mut world = started_schedule(Overlap::Skip);
    world.sync();
    world.outage(65);
    world.finish_away(&only_task(&world, "nightly"));
    let why = |world: &World| world.state.job("nightly").expect("a job").why;
    let told = "its run of 2023-11-14T22:15:00Z is put off: it is not known yet whether the one before has ended";
    assert_eq!(why(&world), told);
    submit(&mut world, changed(&cron(Overlap::Skip), "another"));
    assert_eq!(why(&world), told);
    while world.deliver() {}
    world.stand_still(Duration::from_millis(100));
    assert_eq!((started(&world), skipped(&world)), (2, vec![]));
    let run = world.state.jobs["nightly"].record.runs.values().next();
    assert_eq!(run.expect("a run").version, 2);
    assert_ne!(why(&world), told);
    // After a restart another run takes its place, and for another schedule the time means nothing.
    let mut other = cron(Overlap::Skip);
    if let Kind::Cron(cron) = &mut other.kind {
        cron.schedule = "*/1 * * * *".to_owned();
    }
    let name = "nightly".to_owned();
    for (request, runs) in [
        (Request::Restart { name }, 2),
        (Request::Submit(Box::new(other)), 1),
    ] {
        let mut world = started_schedule(Overlap::Skip);
        world.sync();
        world.outage(65);
        assert_eq!(why(&world), told);
        world.request(request);
        world.sync();
        assert_ne!(why(&world), told);
        while world.deliver() {}
        world.stand_still(Duration::from_millis(100));
        assert_eq!(started(&world), runs);
    }
}

#[test]
fn schedule_shows_its_next_run() {
    let mut world = World::new(1, 2);
    let next = |world: &World, name: &str| world.state.job(name).expect("a job").next_run;
    submit(&mut world, cron(Overlap::Skip));
    submit(&mut world, batch("array", 1));
    world.pass(Duration::from_secs(1));
    // The origin is 20 s after a full minute.
    let first = 1_700_000_040;
    assert_eq!(next(&world, "nightly"), Some(first));
    assert_eq!(next(&world, "array"), None);
    world.pass(Duration::from_secs(41));
    assert_eq!(next(&world, "nightly"), Some(first + 60));
    let (name, purge) = ("nightly".to_owned(), false);
    world.request(Request::Stop { name, purge });
    assert_eq!(next(&world, "nightly"), None);
}

#[test]
fn stopped_schedule_resumes_at_next_time() {
    let mut world = World::new(1, 2);
    submit(&mut world, cron(Overlap::Skip));
    world.request(Request::Stop {
        name: "nightly".to_owned(),
        purge: false,
    });
    // It is 15 s after a full minute, which is soon enough to start.
    world.pass(Duration::from_secs(55));
    submit(&mut world, cron(Overlap::Skip));
    launch(&mut world);
    assert_eq!((world.alive("nightly"), world.launches.len()), (0, 0));
    world.calm(60, None);
    assert_eq!(world.launches.len(), 1);
}

#[test]
fn schedule_is_read_once_per_time() {
    let mut world = World::new(1, 2);
    submit(&mut world, cron(Overlap::Skip));
    world::ASKED.set(0);
    for _ in 0..390 {
        world.pass(Duration::from_millis(100));
    }
    assert_eq!(world::ASKED.get(), 1);
}

#[test]
fn corrected_fast_clock_stops_no_work() {
    let mut world = World::new(1, 3);
    world.pass(Duration::from_secs(1_000_000));
    world.success_in_ten = 0;
    submit(&mut world, cron(Overlap::Skip));
    submit(&mut world, batch("array", 2));
    world.calm(70, None);
    world.success_in_ten = 10;
    world.set_back(Duration::from_secs(1_000_000));
    world.calm(200, None);
    assert_eq!(state_of(&world, "array"), "complete");
    let runs = world.successes.keys().filter(|(job, ..)| job == "nightly");
    assert!(runs.count() >= 3);
}

#[test]
fn clock_correction_while_running_stops_nothing() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    submit(&mut world, cron(Overlap::Skip));
    world.calm(70, None);
    world.set_ahead(Duration::from_secs(2_000_000));
    world.calm(70, None);
    let before = world.successes.len();
    world.set_ahead(Duration::ZERO);
    world.calm(200, None);
    assert!(world.successes.len() >= before + 3, "{:?}", world.successes);
    let events = world.state.history("nightly").expect("a job").events;
    let is_told = events.iter().any(|one| one.text.contains("set back"));
    assert!(is_told, "{events:?}");
}

#[test]
fn clock_correction_repeats_no_run() {
    for is_of_version_before in [false, true] {
        let mut world = daily_schedule();
        world.set_ahead(Duration::from_secs(DAY_END - 10));
        world.calm(40, None);
        assert_eq!(started(&world), 1);
        if is_of_version_before {
            let job = world.state.jobs.get_mut("nightly").expect("a job");
            job.record.dealt = Dealt::default();
            for record in job.records() {
                let value = record.value.map(|value| (record.key, value));
                world.disk.extend(value);
            }
            set_and_fail_over(&mut world, DAY_END - 130);
        } else {
            world.set_ahead(Duration::from_secs(DAY_END - 130));
        }
        world.calm(10, None);
        world.crash();
        world.calm(170, None);
        assert_eq!(started(&world), 1);
        // The job runs again on the next day.
        world.set_ahead(Duration::from_secs(DAY_END + DAY - 230));
        world.calm(40, None);
        assert_eq!(started(&world), 2);
    }
}

#[test]
fn clock_correction_skips_no_time() {
    for (days, fails_over) in [(1, false), (2, false), (2, true), (365, false), (365, true)] {
        let mut world = daily_schedule();
        world.calm(10, None);
        world.set_ahead(Duration::from_secs(days * DAY));
        world.calm(10, None);
        world.sync();
        assert_eq!(started(&world), 0, "{days} days");
        world.set_ahead(Duration::ZERO);
        if fails_over {
            world.crash();
        }
        world.calm(10, None);
        for day in 0..3 {
            world.set_ahead(Duration::from_secs(DAY_END + day * DAY - 60 - 100 * day));
            world.calm(100, None);
            assert_eq!(started(&world), day + 1, "{days} days");
        }
    }
}

#[test]
fn schedule_names_time_awaiting_corrected_clock() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    submit(&mut world, cron(Overlap::Skip));
    world.calm(70, None);
    world.set_ahead(Duration::from_secs(7_200));
    world.calm(10, None);
    world.set_ahead(Duration::ZERO);
    world.calm(10, None);
    let events = world.state.history("nightly").expect("a job").events;
    let told = events.iter().filter(|one| one.text.contains("set back"));
    let told: Vec<_> = told.map(|one| &*one.text).collect();
    let text = "the clock was set back: the schedule has had its times until 2023-11-15T00:14:00Z, and goes on after that";
    assert_eq!(told, [text]);
    // A different schedule begins with its own times.
    let before = started(&world);
    let mut spec = cron(Overlap::Skip);
    let Kind::Cron(kind) = &mut spec.kind else {
        panic!("a schedule");
    };
    kind.schedule = "*/1 * * * *".to_owned();
    submit(&mut world, spec);
    world.calm(60, None);
    assert_eq!(started(&world), before + 1);
}

const DAY: u64 = 24 * 3600;
/// The seconds from the origin to the end of its day.
const DAY_END: u64 = 6_400;

/// Returns a world with a schedule of the end of each day.
fn daily_schedule() -> World {
    let each_day = |_: &Cron, after: Duration| {
        let next = (after.as_secs() / DAY + 1) * DAY;
        Some(Duration::from_secs(next))
    };
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    world.options.next_time = each_day;
    world.state.options.next_time = each_day;
    submit(&mut world, cron(Overlap::Skip));
    world
}

fn started(world: &World) -> u64 {
    world.state.jobs["nightly"].record.next_run - 1
}

/// Sets the machine's clock ahead of its start by this time, and lets another scheduler take over.
fn set_and_fail_over(world: &mut World, ahead: u64) {
    world.set_ahead(Duration::from_secs(ahead));
    world.sync();
    world.crash();
}

#[test]
fn large_clock_correction_runs_times_once() {
    for fails_over in [false, true] {
        let mut world = World::new(1, 3);
        world.success_in_ten = 10;
        world.set_ahead(Duration::from_secs(3_600));
        submit(&mut world, cron(Overlap::Skip));
        // The origin is 20 s after a full minute.
        world.calm(290, None);
        assert_eq!(started(&world), 5);
        // An edit of the job makes no time come again.
        submit(&mut world, changed(&cron(Overlap::Skip), "another"));
        match fails_over {
            true => set_and_fail_over(&mut world, 3_300),
            false => world.set_ahead(Duration::from_secs(3_300)),
        }
        // The time counts from 10 s before the submission: no earlier time had been run.
        world.calm(290, None);
        assert_eq!(started(&world), 5);
        world.calm(60, None);
        assert_eq!(started(&world), 6);
    }
}

#[test]
fn times_run_far_ahead_never_repeat() {
    const AHEAD: u64 = 6_000_000;
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    set_and_fail_over(&mut world, AHEAD);
    submit(&mut world, cron(Overlap::Skip));
    world.calm(130, None);
    assert_eq!(started(&world), 2);
    // The clock is right again: none of these times was run.
    set_and_fail_over(&mut world, 0);
    world.calm(130, None);
    assert_eq!(started(&world), 4);
    // The last full minute before now was not run, but later ones were.
    set_and_fail_over(&mut world, AHEAD - 260);
    world.calm(130, None);
    assert_eq!(started(&world), 5);
    world.calm(60, None);
    assert_eq!(started(&world), 6);
}

#[test]
fn history_of_schedule_delays_no_other() {
    let by_text = |cron: &Cron, after: Duration| {
        let step = if cron.schedule == "0 * * * *" {
            3_600
        } else {
            60
        };
        Some(Duration::from_secs((after.as_secs() / step + 1) * step))
    };
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    world.options.next_time = by_text;
    world.state.options.next_time = by_text;
    let mut spec = cron(Overlap::Skip);
    let Kind::Cron(kind) = &mut spec.kind else {
        panic!("a schedule");
    };
    kind.schedule = "0 * * * *".to_owned();
    world.set_ahead(Duration::from_secs(10 * 24 * 3_600));
    submit(&mut world, spec);
    for _ in 0..48 {
        world.stand_still(Duration::from_secs(3_600));
        world.calm(3, None);
    }
    submit(&mut world, cron(Overlap::Skip));
    let before = started(&world);
    // The jump is longer than the list of missed times.
    world.set_ahead(Duration::from_secs(9 * 24 * 3_600));
    world.calm(130, None);
    assert!(started(&world) >= before + 2);
}

#[test]
fn recently_missed_time_never_repeats() {
    let mut world = World::new(1, 3);
    world.success_in_ten = 10;
    world.set_ahead(Duration::from_secs(7_200));
    submit(&mut world, cron(Overlap::Skip));
    world.sleep(Duration::from_secs(3_600));
    world.crash();
    world.calm(10, None);
    let before = started(&world);
    set_and_fail_over(&mut world, 7_200 - 1_800);
    world.calm(300, None);
    assert_eq!(started(&world), before);
}

#[test]
fn refused_submission_keeps_schedule_stopped() {
    let mut world = World::new(1, 2);
    world.success_in_ten = 10;
    let large = |letter: &str| changed(&cron(Overlap::Skip), &letter.repeat(100_000));
    for letter in ["a", "b", "c", "d"] {
        submit(&mut world, large(letter));
    }
    world.calm(60, None);
    let (name, purge) = ("nightly".to_owned(), false);
    world.request(Request::Stop { name, purge });
    world.calm(60, None);
    world.state.limits.spec_bytes = 900_000;
    let seen = |world: &World| {
        let job = &world.state.jobs["nightly"];
        let told = job.events.clone();
        (job.record.clone(), told, world.disk.clone())
    };
    let before = seen(&world);
    assert_eq!(before.0.versions.len(), 4);
    world.written.clear();
    for spec in [
        large("e"),
        JobSpec {
            name: "nightly".to_owned(),
            ..batch("array", 1)
        },
    ] {
        let id = world.request(Request::Submit(Box::new(spec)));
        world.sync();
        assert!(world.answers[&id].is_err());
        assert_eq!((seen(&world), world.written.len()), (before.clone(), 0));
    }
    world.calm(130, None);
    assert_eq!(seen(&world), before);
    assert_eq!(state_of(&world, "nightly"), "stopped");
    // The stored specification starts again unchanged.
    world.crash();
    submit(&mut world, large("d"));
    world.calm(60, None);
    assert_eq!(started(&world), before.0.next_run);
}

#[test]
fn missed_schedules_run_once_in_steps() {
    let mut world = World::new(1, 0);
    for number in 0..200 {
        let name = format!("c{number}");
        submit(
            &mut world,
            JobSpec {
                name,
                ..cron(Overlap::Skip)
            },
        );
    }
    world.pass(Duration::from_millis(100));
    let mut steps = 0;
    let pass = |world: &mut World, time: Duration| {
        world::ASKED.set(0);
        world.stand_still(time);
        let asked = usize::try_from(world::ASKED.get()).unwrap();
        // Each schedule is evaluated once when it is first seen, and none starts once the step's work is used up.
        assert!(asked <= TIMES_MAX + 2 * 200, "{asked}");
    };
    pass(&mut world, Duration::from_secs(24 * 3600));
    pass(&mut world, CATCHING_UP);
    let has_run = |world: &World| {
        let jobs = world.state.jobs.values();
        jobs.filter(|job| job.record.next_run == 2).count()
    };
    while has_run(&world) < 200 {
        pass(&mut world, Duration::from_millis(100));
        steps += 1;
        assert!(steps < 5, "{} have run", has_run(&world));
    }
    for (name, job) in &world.state.jobs {
        assert_eq!(job.record.next_run, 2, "{name}");
        assert!(world.state.clock.unix() - job.record.last_due < Duration::from_secs(60));
        let missed = job.events.iter().filter(|one| one.text.contains("missed"));
        let missed: Vec<_> = missed.map(|one| &*one.text).collect();
        let text = "at least 100 runs were missed: the scheduler was away";
        assert_eq!(missed, [text], "{name}");
    }
}

#[test]
fn huge_clock_jump_costs_little() {
    let mut world = World::new(1, 0);
    submit(&mut world, cron(Overlap::Skip));
    world.pass(Duration::from_millis(100));
    world.stand_still(Duration::from_secs(3_600));
    world.stand_still(CATCHING_UP);
    let last = |world: &World| {
        let events = world.state.history("nightly").expect("a job").events;
        let missed = events.iter().filter(|one| one.text.contains("missed"));
        missed.map(|one| one.text.clone()).next_back()
    };
    let told = last(&world).expect("it is told");
    assert!(told.starts_with("59 runs"), "{told}");
    world::ASKED.set(0);
    // From here on the clock is 20 s before a full minute, which is too late to start.
    world.set_ahead(Duration::from_secs(10 * 365 * 24 * 3600 + 20));
    world.stand_still(Duration::from_millis(100));
    assert!(world::ASKED.get() < 150, "{}", world::ASKED.get());
    let told = last(&world).expect("it is told");
    assert!(told.starts_with("at least 100 runs"), "{told}");
    let last_due = world.state.jobs["nightly"].record.last_due;
    let since = world.state.clock.unix() - last_due;
    assert!(since > Duration::from_secs(30) && since < Duration::from_secs(60));
}
