//! Control files with contents that no kernel should give: unreadable figures are absent, and nothing else changes.
//!
//! Tests only. For each file of a made-up group, v1 and v2, the tests apply each kind of damage. Every figure is then
//! unchanged or absent, never another number, and the damage shows in at least one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{Isolator, IsolatorOptions, UsageSource, blkio, cpu, mem, pids};
use crate::cgroup::{Controller, Files, Groups, Version};
use crate::usage::ContainerUsage;

const V2: &[(&str, &str)] = &[
    (
        "cpu.stat",
        "usage_usec 30\nuser_usec 2000000\nsystem_usec 1000000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 500000\n",
    ),
    ("cpu.max", "50000 100000\n"),
    (
        "cpu.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    ),
    (
        "memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=600000\n",
    ),
    (
        "io.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=700000\n",
    ),
    ("memory.current", "4096\n"),
    ("memory.events", "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\n"),
    ("memory.swap.current", "8192\n"),
    ("memory.max", "67108864\n"),
    ("memory.low", "33554432\n"),
    ("memory.peak", "50000000\n"),
    (
        "memory.stat",
        "anon 111\nfile 222\nkernel 333\nsock 444\nfile_mapped 555\nunevictable 666\n",
    ),
    ("pids.current", "9\n"),
    ("pids.max", "64\n"),
    ("pids.events", "max 3\n"),
    ("leaf/cgroup.procs", "10\n11\n"),
    (
        "io.stat",
        "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n",
    ),
];

const V1: &[(&str, &str)] = &[
    ("cpuacct.stat", "user 200\nsystem 100\n"),
    (
        "cpu.stat",
        "nr_periods 7\nnr_throttled 3\nthrottled_time 500000000\n",
    ),
    ("cpu.cfs_quota_us", "50000\n"),
    ("cpu.cfs_period_us", "100000\n"),
    ("memory.usage_in_bytes", "4096\n"),
    (
        "memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    ),
    ("memory.memsw.usage_in_bytes", "8192\n"),
    ("memory.limit_in_bytes", "67108864\n"),
    ("memory.soft_limit_in_bytes", "33554432\n"),
    ("memory.kmem.usage_in_bytes", "333\n"),
    ("memory.kmem.tcp.usage_in_bytes", "444\n"),
    ("memory.max_usage_in_bytes", "50000000\n"),
    (
        "memory.stat",
        "total_cache 222\ntotal_rss 111\ntotal_mapped_file 555\ntotal_swap 777\ntotal_unevictable 666\n",
    ),
    ("pids.current", "9\n"),
    ("pids.max", "64\n"),
    ("pids.events", "max 3\n"),
    ("cgroup.procs", "10\n11\n"),
    (
        "blkio.throttle.io_service_bytes",
        "254:0 Read 1\n254:0 Write 2\nTotal 3\n",
    ),
    (
        "blkio.throttle.io_serviced",
        "254:0 Read 3\n254:0 Write 4\nTotal 7\n",
    ),
];

/// The damaged contents of a file; `None` removes the file.
const DAMAGE: &[Option<&[u8]>] = &[
    None,
    Some(b"\xff\xfe\x00garbage"),
    Some(b"potatoes\n"),
    Some(b"-1 -1\n-5\n"),
    Some(b"99999999999999999999999999\n"),
];

fn group(version: Version, dir: &Path) -> Groups {
    super::testing::group_at(version, dir, &Controller::ALL)
}

fn read(groups: &Groups, files: &Files) -> ContainerUsage {
    let options = IsolatorOptions::default();
    let isolators: [Box<dyn Isolator>; 4] = [
        Box::new(cpu::Cpu::new(options)),
        Box::new(mem::Memory::new(options)),
        Box::new(pids::Pids::new(options)),
        Box::new(blkio::Blkio),
    ];
    let source = UsageSource {
        groups,
        supervisor: None,
        proc: Path::new("/nowhere"),
        files,
        all: true,
    };
    let mut usage = ContainerUsage::default();
    isolators
        .iter()
        .for_each(|isolator| isolator.usage(&source, &mut usage));
    usage
}

/// The figures as words of `name: value`.
fn figures(usage: &ContainerUsage) -> Vec<String> {
    let text = format!("{usage:?}").replace([' ', '}'], "");
    text.split(',').map(str::to_owned).collect()
}

fn put(dir: &Path, file: &str, bytes: &[u8]) {
    let path = dir.join(file);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

/// The number of absent figures; panics if another figure changed its value.
fn absent(before: &ContainerUsage, now: &ContainerUsage, what: &str) -> usize {
    let (before, now) = (figures(before), figures(now));
    assert_eq!(before.len(), now.len(), "{what}");
    let changed = before.iter().zip(&now).filter(|(was, is)| was != is);
    changed
        .inspect(|(was, is)| assert!(is.ends_with(":None"), "{what}: {was} is {is}"))
        .count()
}

fn try_all(version: Version, table: &[(&str, &str)], figures_known: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in table {
        put(dir.path(), file, text.as_bytes());
    }
    let groups = group(version, dir.path());
    let whole = read(&groups, &Files::passing());
    let known = figures(&whole)
        .iter()
        .filter(|word| word.contains(":Some("))
        .count();
    assert_eq!(known, figures_known, "{whole:?}");
    for (file, text) in table {
        for damage in DAMAGE {
            let what = format!("{file} is {:?}", damage.map(String::from_utf8_lossy));
            // One reader has the file open already, and the other does not.
            let kept = Files::keeping(crate::cgroup::Budget::new(100), Arc::default());
            read(&groups, &kept);
            match damage {
                Some(bytes) => put(dir.path(), file, bytes),
                None => fs::remove_file(dir.path().join(file)).expect("removed"),
            }
            let lost = absent(&whole, &read(&groups, &Files::passing()), &what);
            assert!(lost > 0, "{what} and nobody noticed");
            // An ordinary file that was removed stays readable through an open descriptor.
            let by_holder = absent(&whole, &read(&groups, &kept), &what);
            assert_eq!(by_holder, if damage.is_some() { lost } else { 0 }, "{what}");
            put(dir.path(), file, text.as_bytes());
            let again = read(&groups, &Files::passing());
            assert_eq!(again, whole, "after {what}");
        }
    }
}

#[test]
fn damaged_v2_file_reads_as_absent() {
    try_all(Version::V2, V2, 33);
}

#[test]
fn damaged_v1_file_reads_as_absent() {
    try_all(Version::V1, V1, 27);
}

#[test]
fn kernel_without_psi_reports_no_pressure() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in V2 {
        if !file.ends_with(".pressure") {
            put(dir.path(), file, text.as_bytes());
        }
    }
    let usage = read(&group(Version::V2, dir.path()), &Files::passing());
    assert_eq!(usage.pressure, crate::usage::PressureUsage::default());
    assert_eq!(usage.cpu.user_secs, Some(2.0));
    assert_eq!(usage.memory.rss_bytes, Some(111));
    // The read fails with an error, as on a kernel that was booted with psi=0.
    fs::create_dir(dir.path().join("cpu.pressure")).expect("made");
    let again = read(&group(Version::V2, dir.path()), &Files::passing());
    assert_eq!(again, usage);
}
