//! Readings through kept descriptors against the kernel's own files.

use std::fs;
use std::time::Duration;

use libtest_mimic::Failed;
use meseta_isolators::{ContainerError, Controller, SLOW_EVERY, Sampler};

use crate::Test;
use crate::test_node::{TestNode, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    samples_are_the_kernels_figures,
    pressure_on_memory_is_counted_by_level,
    the_end_of_a_memory_group_is_no_pressure,
    a_container_that_ends_disturbs_no_other,
];

const DESCRIPTORS: usize = 64;

fn samples_are_the_kernels_figures(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "for i in 1 2 3; do sleep 1000 & done; wait");
    let launched = test_node.launch(&spec)?;
    test_node.eventually("all of them run", || {
        let usage =
            test_node.with(|containers| containers.usage(&spec.name, None, Duration::from_secs(1)));
        usage.is_ok_and(|usage| usage.pids.processes == Some(4))
    })?;
    let mut sampler = Sampler::new(DESCRIPTORS);
    for sweep in 0..=SLOW_EVERY {
        sampler.begin_sweep();
        let timestamp = Duration::from_secs(u64::from(sweep));
        let (sampled, read) = test_node.with(|containers| {
            let sampled = sampler.sample(containers, &spec.name, None, timestamp);
            (sampled, containers.usage(&spec.name, None, timestamp))
        });
        let (sampled, read) = (sampled?, read?);
        same(sampled.timestamp, timestamp)?;
        same(sampled.pids.clone(), read.pids.clone())?;
        same(sampled.memory.limit_bytes, read.memory.limit_bytes)?;
        same(sampled.memory.oom_kills, read.memory.oom_kills)?;
        check!(sampled.cpu.user_secs.is_some(), "no time");
        check!(
            sampled.cpu.user_secs <= read.cpu.user_secs,
            "{sampled:?}, then {read:?}"
        );
        check!(sampled.memory.total_bytes > Some(0), "{:?}", sampled.memory);
        // Only a sampler watches memory pressure, where the kernel reports it.
        let told = sampled.memory.low_pressure.is_some();
        let group = test_node.groups(&spec.name);
        let offers = group
            .dirs
            .iter()
            .any(|group| group.dir.join("memory.pressure_level").exists());
        same(told, offers)?;
    }
    test_node.destroy(&spec, &launched)
}

/// A container repeatedly reads more than fits below its limit.
fn pressure_on_memory_is_counted_by_level(test_node: &TestNode) -> Result<(), Failed> {
    let command = "head -c 134217728 /dev/zero > big; while cat big >/dev/null; do :; done";
    let spec = test_node.spec("c", command);
    let launched = test_node.launch(&spec)?;
    for restarted in [false, true] {
        // A restarted agent begins to watch again.
        let mut sampler = Sampler::new(DESCRIPTORS);
        let deadline = std::time::Instant::now() + crate::test_node::PATIENCE;
        loop {
            sampler.begin_sweep();
            let sample = |containers: &meseta_isolators::Containers| {
                sampler.sample(containers, &spec.name, None, Duration::ZERO)
            };
            let memory = test_node.with(sample)?.memory;
            let levels = [
                memory.low_pressure,
                memory.medium_pressure,
                memory.critical_pressure,
            ];
            let groups = test_node.groups(&spec.name);
            let mut dirs = groups.dirs.iter();
            if !dirs.any(|group| group.dir.join("memory.pressure_level").exists()) {
                same(levels, [None; 3])?;
                break;
            }
            check!(
                levels.is_sorted_by(|lower, higher| lower >= higher),
                "{levels:?}"
            );
            if levels[0] > Some(0) {
                break;
            }
            check!(
                std::time::Instant::now() < deadline,
                "no pressure was told, restarted: {restarted}"
            );
            std::thread::yield_now();
        }
        test_node.close();
        test_node.open(|_| ())?;
    }
    test_node.destroy(&spec, &launched)
}

/// Regression: another user moved the processes out and removed the group; version 1 signals this like an event of each
/// level.
fn the_end_of_a_memory_group_is_no_pressure(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let groups = test_node.groups(&spec.name);
    let group = groups.get(Controller::Memory).ok_or("no group")?;
    let mut sampler = Sampler::new(DESCRIPTORS);
    let mut levels = || {
        let mut last = [None; 3];
        for _ in 0..=SLOW_EVERY {
            sampler.begin_sweep();
            let memory = test_node
                .with(|containers| sampler.sample(containers, &spec.name, None, Duration::ZERO))?
                .memory;
            last = [
                memory.low_pressure,
                memory.medium_pressure,
                memory.critical_pressure,
            ];
        }
        Ok::<_, Failed>(last)
    };
    if group.dir.join("memory.pressure_level").exists() {
        same(levels()?, [Some(0); 3])?;
        let around = group.dir.parent().ok_or("nothing around it")?;
        for pid in fs::read_to_string(group.dir.join("cgroup.procs"))?.lines() {
            fs::write(around.join("cgroup.procs"), pid)?;
        }
        fs::remove_dir(&group.dir)?;
        // A second read treats its files as missing.
        for _ in 0..2 {
            same(levels()?, [None; 3])?;
        }
        fs::create_dir(&group.dir)?;
        same(levels()?, [Some(0); 3])?;
    }
    test_node.destroy(&spec, &launched)
}

fn a_container_that_ends_disturbs_no_other(test_node: &TestNode) -> Result<(), Failed> {
    let (one, other) = (
        test_node.spec("one", "exec sleep 1000"),
        test_node.spec("other", "exec sleep 1000"),
    );
    let (first, second) = (test_node.launch(&one)?, test_node.launch(&other)?);
    let mut sampler = Sampler::new(DESCRIPTORS);
    sampler.begin_sweep();
    for spec in [&one, &other] {
        test_node
            .with(|containers| sampler.sample(containers, &spec.name, None, Duration::ZERO))?;
    }
    check!(kept(test_node)? > 2, "nothing is kept");
    test_node.destroy(&one, &first)?;
    for _ in 0..2 {
        sampler.begin_sweep();
        let gone = test_node
            .with(|containers| sampler.sample(containers, &one.name, None, Duration::ZERO));
        check!(matches!(gone, Err(ContainerError::Unknown(_))), "{gone:?}");
        let there = test_node
            .with(|containers| sampler.sample(containers, &other.name, None, Duration::ZERO))?;
        same(there.pids.processes, Some(1))?;
    }
    test_node.destroy(&other, &second)?;
    sampler.begin_sweep();
    sampler.begin_sweep();
    same(kept(test_node)?, 0)
}

/// The number of open control files of this test's containers; other tests have their own.
fn kept(test_node: &TestNode) -> Result<usize, Failed> {
    let root = format!("/{}/", test_node.root().display());
    let is_ours = |entry: std::io::Result<fs::DirEntry>| {
        // The folders above them stay open for as long as the sampler.
        let path = entry.map(|entry| entry.path());
        let path = path.ok().filter(|path| path.is_file());
        let target = path.and_then(|path| fs::read_link(path).ok());
        target.is_some_and(|target| target.to_string_lossy().contains(&root))
    };
    Ok(fs::read_dir("/proc/self/fd")?
        .map(is_ours)
        .filter(|ours| *ours)
        .count())
}
