//! The kernel's own view: processes, cgroups, mounts; and the removal of a test's leftovers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::eventually;

/// Returns the paths of groups under `root`, in the cgroup-v1 hierarchies or the unified one.
pub fn groups_below(root: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let mut fields = mount.split(' ').skip(1);
        let (Some(path), Some(kind)) = (fields.next(), fields.next()) else {
            continue;
        };
        if kind == "cgroup" || kind == "cgroup2" {
            walk(&Path::new(path).join(root), &mut found);
        }
    }
    found
}

/// Returns the number of groups in the hierarchy of a controller, including the root; 0 if the controller has no hierarchy
/// of its own.
pub fn groups_of(controller: &str) -> u64 {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    let is_its = |options: &str| options.split(',').any(|option| option == controller);
    let paths = mounts.lines().filter_map(|mount| {
        let fields: Vec<&str> = mount.split(' ').collect();
        (fields.get(2) == Some(&"cgroup") && is_its(fields.get(3)?)).then(|| fields[1])
    });
    let mut found = Vec::new();
    for path in paths {
        walk(Path::new(path), &mut found);
    }
    u64::try_from(found.len()).unwrap_or(u64::MAX)
}

/// Walks depth first, children before their parents.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten().filter(|e| e.path().is_dir()) {
        walk(&entry.path(), found);
    }
    found.push(dir.to_owned());
}

/// Returns the processes in any group under `root`.
pub fn processes_below(root: &str) -> Vec<i32> {
    processes_of(groups_below(root).iter())
}

fn processes_of<'a>(groups: impl Iterator<Item = &'a PathBuf>) -> Vec<i32> {
    let mut pids: Vec<i32> = groups
        .filter_map(|group| std::fs::read_to_string(group.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|l| l.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Returns the processes of containers under `root`: all except launcher and supervisors, which have a separate group.
pub fn tasks_below(root: &str) -> Vec<i32> {
    let groups = groups_below(root);
    let of_containers = groups
        .iter()
        .filter(|group| !group.ends_with(".supervisors"));
    processes_of(of_containers)
}

/// Kills and removes everything under a test's own cgroup root.
pub fn remove_groups(root: &str) {
    let limit = Duration::from_secs(10);
    eventually("the test's processes are gone", limit, || {
        let pids = processes_below(root);
        for pid in &pids {
            kill(*pid, nix::sys::signal::Signal::SIGKILL);
        }
        pids.is_empty().then_some(())
    });
    eventually("the test's cgroups are gone", limit, || {
        let groups = groups_below(root);
        for group in &groups {
            // A group is busy for a moment after its last process ended; the next round tries again.
            let _ = std::fs::remove_dir(group);
        }
        groups.is_empty().then_some(())
    });
}

/// Sends a signal; a missing process is no error.
pub fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Returns the start time of a process in clock ticks since boot: with the pid, its identity.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// Returns a line of a process's status in KiB, such as `RssAnon` or `VmHWM`.
pub fn memory_kib(pid: i32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().split(' ').next()?.parse().ok()
}

/// Returns processes whose command line contains `needle`.
pub fn processes_like(needle: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|bytes| {
            String::from_utf8_lossy(&bytes)
                .replace('\0', " ")
                .contains(needle)
        })
    })
    .collect()
}

/// Returns mounts whose line contains `needle`.
pub fn mounts_like(needle: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    mounts
        .lines()
        .filter(|l| l.contains(needle))
        .map(str::to_owned)
        .collect()
}
