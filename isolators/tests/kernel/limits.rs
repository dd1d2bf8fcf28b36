//! Limits on the real kernel: enforced, counted, reported with numbers, also after a restart.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Failed;
use meseta_isolators::{Controller, CpuUsage, Demand, Interference, Limit, Limitation};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Test;
use crate::test_node::{TestNode, same, wait_event};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    memory_over_the_limit_is_killed_and_told,
    memory_of_many_small_processes_is_counted_together,
    an_oom_is_told_after_a_restart_too,
    an_oom_is_seen_while_the_task_goes_on,
    a_fork_bomb_stays_in_its_container,
    cfs_quota_throttles,
    limits_of_a_living_container_change,
    what_others_do_to_its_processes_is_found,
    usage_is_counted,
];

const MB: u64 = 1 << 20;

/// Buffers 200 MB in one process, in a container of 64.
const GREEDY: &str = "head -c 209715200 /dev/zero | tail >/dev/null; exit $?";

fn memory_over_the_limit_is_killed_and_told(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", GREEDY);
    let (record, _) = test_node.run(&spec)?;
    check!(!record.success(), "the greedy task succeeded");
    expect_oom(test_node.limitation(&spec))
}

/// Twenty processes of 8 MB each, none of which ends without a signal.
fn memory_of_many_small_processes_is_counted_together(test_node: &TestNode) -> Result<(), Failed> {
    let small = "(head -c 8388608 /dev/zero; exec sleep 1000) | tail >/dev/null &";
    let command = format!("i=0; while [ $i -lt 20 ]; do {small} i=$((i+1)); done; wait");
    let spec = test_node.spec("c", &command);
    let launched = test_node.launch(&spec)?;
    test_node.eventually("a counted kill", || test_node.limitation(&spec).is_some())?;
    expect_oom(test_node.limitation(&spec))?;
    test_node.destroy(&spec, &launched)
}

fn expect_oom(limitation: Option<Limitation>) -> Result<(), Failed> {
    let Some(Limitation::Memory {
        oom_kills,
        limit_bytes,
        max_usage_bytes,
        message,
    }) = limitation
    else {
        return Err("no limitation was found".into());
    };
    check!(oom_kills >= 1, "{oom_kills} kills");
    same(limit_bytes, Some(64 * MB))?;
    let used = max_usage_bytes.unwrap_or(0);
    check!((60 * MB..=64 * MB).contains(&used), "{used} bytes at most");
    let begin = "Memory limit exceeded: Requested: 64MB Maximum Used: ";
    check!(message.starts_with(begin), "{message}");
    Ok(())
}

fn an_oom_is_told_after_a_restart_too(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", GREEDY);
    let launched = test_node.launch(&spec)?;
    // The agent is down during the event.
    test_node.close();
    test_node.open(|_| ())?;
    test_node.wait_end(&spec, &launched)?;
    let found = test_node.with(|containers| containers.recover())?;
    same(found.len(), 1)?;
    check!(
        found[0].exit.is_some_and(|exit| !exit.success()),
        "{found:?}"
    );
    expect_oom(test_node.with(|containers| {
        containers
            .limitation(&spec.name, &Demand::default())
            .ok()
            .flatten()
    }))
}

fn an_oom_is_seen_while_the_task_goes_on(test_node: &TestNode) -> Result<(), Failed> {
    let gate = test_node.gate()?;
    let greedy = GREEDY.trim_end_matches("; exit $?");
    let spec = test_node.spec("c", &format!("read line < gate; {greedy}; exec sleep 1000"));
    let launched = test_node.launch(&spec)?;
    let watched = test_node.with(|containers| containers.watch_limits(&spec.name))?;
    same(watched.len(), 1)?;
    same(test_node.limitation(&spec), None)?;
    std::fs::write(&gate, "\n")?;
    wait_event(&watched[0])?;
    test_node.eventually("a counted kill", || test_node.limitation(&spec).is_some())?;
    test_node.destroy(&spec, &launched)
}

fn a_fork_bomb_stays_in_its_container(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "b() { b | b & }; b; b; exec sleep 1000");
    spec.demand.pids_limit = Some(Limit::At(32));
    let launched = test_node.launch(&spec)?;
    let usage = || {
        let usage = test_node.usage(&spec);
        usage.map(|usage| usage.pids).unwrap_or_default()
    };
    test_node.eventually("a refused fork", || {
        usage().refused.is_some_and(|refused| refused > 0)
    })?;
    let now = usage();
    same(now.limit, Some(32))?;
    check!(now.threads.is_some_and(|threads| threads <= 32), "{now:?}");
    // The machine can still fork.
    check!(
        std::process::Command::new("true").status()?.success(),
        "no fork"
    );
    test_node.destroy(&spec, &launched)
}

fn cfs_quota_throttles(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open(|options| options.enable_cfs = true)?;
    let mut spec = test_node.spec("c", "while :; do :; done");
    // So little that a busy machine can provide it in every period.
    spec.demand.cpus_millis = 50;
    let launched = test_node.launch(&spec)?;
    let usage = || {
        let usage = test_node.usage(&spec);
        usage.map(|usage| usage.cpu).unwrap_or_default()
    };
    // Neighbours, or a machine that stands still, may take the processor away for any number of periods.
    let counted = |cpu: &CpuUsage| Some((cpu.nr_periods?, cpu.nr_throttled?));
    let since = Cell::new((0, 0));
    test_node.eventually("thirty periods, most of them throttled", || {
        let Some((periods, throttled)) = counted(&usage()) else {
            return false;
        };
        let (periods, throttled) = (periods - since.get().0, throttled - since.get().1);
        if periods < 30 {
            return false;
        }
        since.set((since.get().0 + periods, since.get().1 + throttled));
        throttled * 10 >= periods * 7
    })?;
    test_node.eventually("it was throttled for half a second", || {
        usage().throttled_secs.is_some_and(|secs| secs > 0.5)
    })?;
    same(usage().limit_cpus, Some(0.05))?;
    test_node.destroy(&spec, &launched)
}

fn limits_of_a_living_container_change(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let update = |demand: Demand| {
        test_node.with(|containers| containers.update(&spec.name, &demand))?;
        test_node.usage(&spec)
    };
    let demand = |mem: u64, cpus: Option<Limit>| Demand {
        cpus_millis: 500,
        cpus_limit: cpus,
        mem_bytes: Some(mem * MB),
        ..Demand::default()
    };
    let larger = update(demand(128, Some(Limit::At(1500))))?;
    same(larger.memory.limit_bytes, Some(128 * MB))?;
    same(larger.cpu.limit_cpus, Some(1.5))?;
    // The hard limit is never lowered under a running task; the soft one is.
    let smaller = update(demand(96, None))?;
    same(smaller.memory.limit_bytes, Some(128 * MB))?;
    same(smaller.memory.soft_limit_bytes, Some(96 * MB))?;
    same(smaller.cpu.limit_cpus, None)?;
    test_node.destroy(&spec, &launched)?;
    let gone = test_node.with(|containers| containers.update(&spec.name, &spec.demand));
    check!(gone.is_err(), "a container that is gone was resized");
    Ok(())
}

fn usage_is_counted(test_node: &TestNode) -> Result<(), Failed> {
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo worked; exec sleep 1000";
    let spec = test_node.spec("c", work);
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "worked")?;
    let at = Duration::from_secs(1_790_000_000);
    let usage = test_node
        .with(|containers| containers.usage(&spec.name, Some(&launched.supervisor), at))?;
    same(usage.timestamp, at)?;
    let used = usage.cpu.user_secs.unwrap_or(0.0) + usage.cpu.system_secs.unwrap_or(0.0);
    check!(used > 0.0, "{used} s used");
    same(usage.memory.limit_bytes, Some(64 * MB))?;
    same(usage.memory.oom_kills, Some(0))?;
    check!(
        usage.memory.total_bytes.is_some_and(|bytes| bytes > 0),
        "{usage:?}"
    );
    same(usage.pids.processes, Some(1))?;
    same(usage.pids.threads, Some(1))?;
    let has_pressure = test_node.host().unified.is_some();
    same(usage.pressure.cpu_some_secs.is_some(), has_pressure)?;
    check!(
        test_node.host().offers(Controller::Cpu),
        "cpu is not offered"
    );
    test_node.destroy(&spec, &launched)
}

/// Regression: the limits of such a container no longer held, or the agent waited for its end for ever, without any report.
fn what_others_do_to_its_processes_is_found(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let look = || test_node.with(|all| all.interference(&spec.name, &launched.supervisor));
    same(look(), Interference::default())?;
    let (inner, nested) = test_node.sleeper("c+in")?;
    let of_nested = test_node.with(|all| all.interference(&inner.name, &nested.supervisor));
    same(of_nested, Interference::default())?;
    test_node.destroy(&inner, &nested)?;
    let supervisor = Pid::from_raw(launched.supervisor.pid);
    kill(supervisor, Signal::SIGSTOP)?;
    test_node.eventually("a stopped supervisor", || look().supervisor_stopped)?;
    kill(supervisor, Signal::SIGCONT)?;
    test_node.eventually("one that goes on", || !look().supervisor_stopped)?;
    let groups = test_node.groups(&spec.name);
    let memory = groups.get(Controller::Memory).ok_or("no group")?;
    let instance = memory.dir.parent().ok_or("no instance")?;
    let move_to =
        |folder: &Path| std::fs::write(folder.join("cgroup.procs"), launched.task_pid.to_string());
    move_to(&instance.join(".supervisors"))?;
    let outside = look().outside.ok_or("not found")?;
    same(outside.pid, launched.task_pid)?;
    check!(outside.group.ends_with("/.supervisors"), "{outside:?}");
    move_to(&memory.tasks())?;
    same(look(), Interference::default())?;
    test_node.destroy(&spec, &launched)
}
