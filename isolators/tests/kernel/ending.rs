//! Ends on the real kernel: kills, stragglers, restarts, and processes that must survive.

use std::fs;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use meseta_isolators::{
    ContainerSpec, ExitCause, KillOutcome, KillRequest, Launched, ProcessIdentity,
};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use procfs::process::Stat;

use crate::Test;
use crate::test_node::{TestNode, name, same, wait_pidfd};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    a_polite_task_ends_by_its_signal,
    a_task_that_ignores_sigterm_is_gone_by_grace,
    a_stopped_task_is_gone_by_grace,
    the_grace_is_kept_while_the_agent_is_down,
    signals_that_are_none_are_refused,
    a_stopped_launcher_does_not_hold_the_agent,
    a_later_kill_shortens_the_grace,
    a_kill_for_another_process_reaches_nobody,
    a_double_forked_daemon_ends_with_its_task,
    a_killed_supervisor_takes_its_task_along,
    children_that_nobody_waited_for_end_with_their_task,
    a_frozen_container_is_destroyed,
    a_restarted_agent_finds_and_ends_its_containers,
    a_supervisor_whose_note_is_gone_is_told_by_its_tasks,
    sweep_leaves_neighbours_alone,
    signals_to_supervisors_reach_no_task,
    a_full_signal_queue_delays_no_kill,
];

const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 1; done";

fn kill(test_node: &TestNode, launched: &Launched, grace: Duration) -> Result<(), Failed> {
    let request = KillRequest { signal: 15, grace };
    let outcome = test_node.with(|containers| containers.kill(&launched.supervisor, request))?;
    same(outcome, KillOutcome::Delivered)
}

fn reaches_nobody(test_node: &TestNode, whom: &ProcessIdentity) -> Result<(), Failed> {
    let request = KillRequest {
        signal: 15,
        grace: Duration::ZERO,
    };
    let outcome = test_node.with(|containers| containers.kill(whom, request))?;
    same(outcome, KillOutcome::AlreadyGone)
}

fn ended_as_asked(
    test_node: &TestNode,
    spec: &ContainerSpec,
    launched: &Launched,
    cause: ExitCause,
) -> Result<(), Failed> {
    let record = test_node.wait_end(spec, launched)?;
    same((record.cause, record.kill_requested), (cause, true))
}

fn a_polite_task_ends_by_its_signal(test_node: &TestNode) -> Result<(), Failed> {
    let polite = "trap 'exit 7' TERM; echo ready; while :; do sleep 1; done";
    let (spec, launched) = test_node.launch_until(polite, "ready")?;
    kill(test_node, &launched, Duration::from_secs(20))?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Exited(7))?;
    reaches_nobody(test_node, &launched.supervisor)
}

/// Launches, waits for "ready", kills, and checks that the task died by SIGKILL between grace and +2 s.
fn expect_killed(test_node: &TestNode, command: &str, grace: Duration) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until(command, "ready")?;
    let began = Instant::now();
    kill(test_node, &launched, grace)?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Signaled(9))?;
    let took = began.elapsed();
    let in_time = took >= grace && took <= grace + Duration::from_secs(2);
    check!(in_time, "took {took:?} with a grace of {grace:?}");
    test_node.destroy(&spec, &launched)
}

fn a_task_that_ignores_sigterm_is_gone_by_grace(test_node: &TestNode) -> Result<(), Failed> {
    expect_killed(test_node, STUBBORN, Duration::from_millis(500))
}

fn a_stopped_task_is_gone_by_grace(test_node: &TestNode) -> Result<(), Failed> {
    let command = "trap '' TERM; echo ready; while :; do kill -STOP $$; done";
    expect_killed(test_node, command, Duration::from_millis(300))
}

fn the_grace_is_kept_while_the_agent_is_down(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until(STUBBORN, "ready")?;
    let pidfd = test_node.with(|containers| containers.watch(&launched.supervisor))?;
    kill(test_node, &launched, Duration::from_millis(500))?;
    test_node.close();
    wait_pidfd(&pidfd.ok_or("ended at once")?)?;
    test_node.open(|_| ())?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Signaled(9))
}

fn signals_that_are_none_are_refused(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    for signal in [0, -1, 32, 64, 300] {
        let request = KillRequest {
            signal,
            grace: Duration::ZERO,
        };
        let refused = test_node.with(|containers| containers.kill(&launched.supervisor, request));
        check!(refused.is_err(), "signal {signal} was taken");
    }
    // An excessive grace is fine, and a shorter one still counts.
    kill(test_node, &launched, Duration::MAX)?;
    test_node.wait_cause(&spec, &launched, ExitCause::Signaled(15))
}

fn a_stopped_launcher_does_not_hold_the_agent(test_node: &TestNode) -> Result<(), Failed> {
    nix::sys::signal::kill(test_node.launcher()?, nix::sys::signal::Signal::SIGSTOP)?;
    let began = Instant::now();
    test_node.close();
    check!(
        began.elapsed() < Duration::from_secs(10),
        "closing took {:?}",
        began.elapsed()
    );
    Ok(())
}

fn a_later_kill_shortens_the_grace(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until(STUBBORN, "ready")?;
    let began = Instant::now();
    kill(test_node, &launched, Duration::from_secs(600))?;
    kill(test_node, &launched, Duration::from_millis(100))?;
    kill(test_node, &launched, Duration::from_secs(600))?;
    test_node.wait_cause(&spec, &launched, ExitCause::Signaled(9))?;
    check!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    Ok(())
}

fn a_kill_for_another_process_reaches_nobody(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let right = launched.supervisor.clone();
    let later = ProcessIdentity {
        start_ticks: right.start_ticks + 1,
        ..right.clone()
    };
    let boot_id = meseta_isolators::BootId::from_text("another-boot");
    let rebooted = ProcessIdentity {
        boot_id,
        ..right.clone()
    };
    for wrong in [later, rebooted] {
        reaches_nobody(test_node, &wrong)?;
    }
    check!(test_node.lives(&launched)?, "killed");
    test_node.destroy(&spec, &launched)
}

fn a_double_forked_daemon_ends_with_its_task(test_node: &TestNode) -> Result<(), Failed> {
    let gate = test_node.gate()?;
    let command =
        "(setsid sh -c '(setsid sh -c \"echo forked; exec sleep 1000\" &)' &); read line < gate";
    let spec = test_node.spec("c", command);
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "forked")?;
    let groups = test_node.groups(&spec.name);
    let mut pidfds = Vec::new();
    for dir in groups.process_dirs() {
        for line in fs::read_to_string(dir.join("cgroup.procs"))?.lines() {
            // SAFETY-free way to hold a process: identify it, then open it.
            pidfds.extend(open_process(line.parse()?)?);
        }
    }
    check!(pidfds.len() >= 2, "{} processes", pidfds.len());
    fs::write(&gate, "\n")?;
    test_node.wait_end(&spec, &launched)?;
    for pidfd in &pidfds {
        wait_pidfd(pidfd)?;
    }
    test_node.destroy(&spec, &launched)
}

/// Opens a pidfd of a process through its identity.
fn open_process(pid: i32) -> Result<Option<std::os::fd::OwnedFd>, Failed> {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Ok(None);
    };
    let after = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    let start = after
        .split_ascii_whitespace()
        .nth(19)
        .ok_or("no start time")?;
    let boot_id = meseta_isolators::BootId::current()?;
    Ok(ProcessIdentity {
        pid,
        start_ticks: start.parse()?,
        boot_id,
    }
    .open()?)
}

fn a_killed_supervisor_takes_its_task_along(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let task = open_process(launched.task_pid)?.ok_or("the task is gone")?;
    let pid = nix::unistd::Pid::from_raw(launched.supervisor.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
    wait_pidfd(&task)?;
    test_node.eventually("the supervisor is gone", || {
        test_node.lives(&launched).is_ok_and(|lives| !lives)
    })?;
    let record = test_node.with(|containers| containers.exit_record(&spec.name))?;
    check!(record.is_none(), "nobody can know, yet: {record:?}");
    test_node.destroy(&spec, &launched)
}

/// A task that never reaps has ended children, and orphans.
fn children_that_nobody_waited_for_end_with_their_task(test_node: &TestNode) -> Result<(), Failed> {
    const CHILDREN: usize = 100;
    let command = format!(
        "i=0; while [ $i -lt {CHILDREN} ]; do sleep 1000 & (sleep 1 &); i=$((i+1)); done; exec sleep 1000"
    );
    let spec = test_node.spec("c", &command);
    let launched = test_node.launch(&spec)?;
    // The shell waits for its children, even if it takes long to start them all.
    let task = launched.task_pid;
    test_node.eventually("the shell has become a program that waits for none", || {
        let process = procfs::process::Process::new(task);
        process.is_ok_and(|process| process.stat().is_ok_and(|stat| stat.comm == "sleep"))
    })?;
    for child in children_of(task) {
        nix::sys::signal::kill(Pid::from_raw(child.pid), Signal::SIGKILL)?;
    }
    test_node.eventually("nobody waits for the children", || {
        zombies_of(task) >= CHILDREN
    })?;
    let began = Instant::now();
    test_node.destroy(&spec, &launched)?;
    check!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    same(zombies_of(task), 0)
}

fn children_of(parent: i32) -> Vec<Stat> {
    let processes = procfs::process::all_processes();
    let stats = processes.into_iter().flatten().flatten();
    let stats = stats.filter_map(|process| process.stat().ok());
    stats.filter(|stat| stat.ppid == parent).collect()
}

/// The ended children of a process that it has not reaped.
fn zombies_of(parent: i32) -> usize {
    let children = children_of(parent);
    children.iter().filter(|child| child.state == 'Z').count()
}

fn a_frozen_container_is_destroyed(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let groups = test_node.groups(&spec.name);
    for group in &groups.dirs {
        for (file, value) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
            let knob = group.dir.join(file);
            if knob.exists() {
                fs::write(knob, value)?;
            }
        }
    }
    let began = Instant::now();
    test_node.destroy(&spec, &launched)?;
    check!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    Ok(())
}

fn a_restarted_agent_finds_and_ends_its_containers(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until("echo ready; exec sleep 1000", "ready")?;
    test_node.close();
    test_node.open(|_| ())?;
    let found = test_node.with(|containers| containers.recover())?;
    same(found.len(), 1)?;
    let container = &found[0];
    same(&container.name, &spec.name)?;
    same(container.supervisor.as_ref(), Some(&launched.supervisor))?;
    same(
        (
            container.exit,
            container.has_groups,
            container.has_runtime_dir,
        ),
        (None, true, true),
    )?;
    let usage = test_node.with(|containers| {
        containers.usage(&spec.name, container.supervisor.as_ref(), Duration::ZERO)
    })?;
    same(usage.pids.processes, Some(1))?;
    kill(test_node, &launched, Duration::from_secs(20))?;
    test_node.wait_cause(&spec, &launched, ExitCause::Signaled(15))?;
    test_node.destroy(&spec, &launched)
}

/// Regression, found by damaging one file after the other: the container's record in a log and the note in its folder were
/// gone, so a running container was destroyed and reported as never begun.
fn a_supervisor_whose_note_is_gone_is_told_by_its_tasks(
    test_node: &TestNode,
) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let (other, other_launched) = test_node.sleeper("d")?;
    let note = test_node.with(|containers| containers.runtime_dir(&spec.name).join("supervisor"));
    let supervisors = || -> Result<_, Failed> {
        let found = test_node.with(|containers| containers.recover())?;
        Ok(found
            .into_iter()
            .map(|one| one.supervisor)
            .collect::<Vec<_>>())
    };
    let both = [&launched, &other_launched].map(|one| Some(one.supervisor.clone()));
    let damages: [&dyn Fn() -> std::io::Result<()>; 3] = [
        &|| fs::remove_file(&note),
        &|| fs::write(&note, "torn"),
        &|| fs::remove_file(&note).and_then(|()| fs::create_dir(&note)),
    ];
    for damage in damages {
        damage()?;
        same(supervisors()?, both.clone())?;
        test_node
            .with(|containers| containers.note_supervisor(&spec.name, &launched.supervisor))?;
        let text = fs::read_to_string(&note)?;
        same(
            ProcessIdentity::from_text(&text).as_ref(),
            Some(&launched.supervisor),
        )?;
    }
    // A note with another process's identity is trusted: that process has ended.
    fs::write(
        &note,
        ProcessIdentity {
            start_ticks: 1,
            ..launched.supervisor.clone()
        }
        .to_text(),
    )?;
    same(supervisors()?, vec![None, both[1].clone()])?;
    test_node.destroy(&other, &other_launched)?;
    test_node.destroy(&spec, &launched)
}

fn sweep_leaves_neighbours_alone(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let stale = test_node.groups(&name("stale"));
    let neighbour = test_node.groups(&name("x"));
    let neighbours: Vec<_> = neighbour
        .dirs
        .iter()
        .filter_map(|group| Some(group.dir.parent()?.parent()?.join("neighbour/idle")))
        .collect();
    stale.create()?;
    for dir in &neighbours {
        fs::create_dir_all(dir)?;
    }
    let swept = test_node.with(|containers| containers.sweep());
    let untouched = neighbours.iter().all(|dir| dir.exists());
    for dir in &neighbours {
        fs::remove_dir(dir)?;
        fs::remove_dir(dir.parent().ok_or("no parent")?)?;
    }
    same(swept, 1)?;
    check!(!stale.exist(), "the stale groups are left");
    check!(untouched, "a neighbour's group was removed");
    check!(
        test_node.groups(&spec.name).exist(),
        "a living container's groups were removed"
    );
    test_node.destroy(&spec, &launched)
}

/// Supervisors pass on only kill requests: `pkill meseta` ends no task.
fn signals_to_supervisors_reach_no_task(test_node: &TestNode) -> Result<(), Failed> {
    let signals = [1, 2, 3, 10, 12, 15, 18];
    let traps = signals.map(|signal| format!("trap 'echo {signal}' {signal}; "));
    let command = format!(
        "{}trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done",
        traps.concat().replace("trap 'echo 15' 15; ", "")
    );
    let (spec, launched) = test_node.launch_until(&command, "ready")?;
    let supervisor = Pid::from_raw(launched.supervisor.pid);
    for signal in signals {
        nix::sys::signal::kill(supervisor, Signal::try_from(signal)?)?;
    }
    kill(test_node, &launched, Duration::from_secs(60))?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Exited(5))?;
    // The kill request comes with a SIGCONT, so that a stopped task receives it.
    same(
        test_node.output(&spec).replace("18\n", ""),
        "ready\nasked\n",
    )
}

/// A user's signal queue may be full of signals that some task of that user sent to itself.
fn a_full_signal_queue_delays_no_kill(test_node: &TestNode) -> Result<(), Failed> {
    let full = |launched: &Launched| {
        crate::probe::set_limit_of(launched.supervisor.pid, libc::RLIMIT_SIGPENDING, 0, 0)
    };
    let polite = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let spec = test_node.spec("polite", polite);
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "ready")?;
    full(&launched)?;
    kill(test_node, &launched, Duration::from_secs(60))?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Exited(5))?;
    let spec = test_node.spec("stubborn", STUBBORN);
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "ready")?;
    full(&launched)?;
    let (grace, began) = (Duration::from_millis(700), Instant::now());
    kill(test_node, &launched, grace)?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Signaled(9))?;
    check!(began.elapsed() >= grace, "{:?}", began.elapsed());
    let (spec, launched) = test_node.sleeper("sleeper")?;
    full(&launched)?;
    kill(test_node, &launched, Duration::ZERO)?;
    ended_as_asked(test_node, &spec, &launched, ExitCause::Signaled(9))
}
