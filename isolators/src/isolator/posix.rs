//! posix/cpu and posix/mem: figures from the process tree, and no enforcement.
//!
//! For users other than root, and hosts without cgroups. The tree is the supervisor's descendants without the supervisor. The
//! time of ended processes counts through their parents, as far as those waited for them; figures from procfs can only be
//! approximate.

use procfs::process::Process;

use super::{Isolator, UsageSource};
use crate::process_tree::{descendants_of, has_hidden_child};
use crate::usage::ContainerUsage;

/// Ticks per second in `/proc/<pid>/stat`, a constant of the kernel's interface.
const USER_HZ: f64 = 100.0;

#[derive(Debug)]
pub(super) struct PosixCpu;

#[derive(Debug)]
pub(super) struct PosixMem;

impl Isolator for PosixCpu {
    fn name(&self) -> &'static str {
        "posix/cpu"
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(processes) = processes(source) else {
            (usage.cpu, usage.pids) = Default::default();
            return;
        };
        let mut user = 0;
        let mut system = 0;
        let mut threads = 0;
        let mut count = 0;
        for stat in processes.iter().filter_map(|process| process.stat().ok()) {
            user += stat.utime + u64::try_from(stat.cutime).unwrap_or(0);
            system += stat.stime + u64::try_from(stat.cstime).unwrap_or(0);
            threads += u64::try_from(stat.num_threads).unwrap_or(0);
            count += 1;
        }
        usage.cpu.user_secs = Some(seconds(user));
        usage.cpu.system_secs = Some(seconds(system));
        usage.pids.processes = Some(count);
        usage.pids.threads = Some(threads);
    }
}

impl Isolator for PosixMem {
    fn name(&self) -> &'static str {
        "posix/mem"
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(processes) = processes(source) else {
            usage.memory = Default::default();
            return;
        };
        let statuses = processes.iter().filter_map(|process| process.status().ok());
        let resident = statuses.filter_map(|status| status.vmrss).sum::<u64>();
        usage.memory.rss_bytes = Some(resident * 1024);
        usage.memory.total_bytes = Some(resident * 1024);
    }
}

/// The container's processes; `None` without a living supervisor, also where procfs hides it or one of them (`hidepid`),
/// since the sum is then unknown.
fn processes(source: &UsageSource<'_>) -> Option<Vec<Process>> {
    let supervisor = source.supervisor?;
    let own = source.proc.join(supervisor.pid.to_string()).join("stat");
    std::fs::read(own).ok()?;
    let mut pids = descendants_of(source.proc, supervisor.pid);
    pids.push(supervisor.pid);
    if has_hidden_child(source.proc, &pids) {
        return None;
    }
    pids.pop();
    let open = |pid: &i32| Process::new_with_root(source.proc.join(pid.to_string())).ok();
    Some(pids.iter().filter_map(open).collect())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exact for longer than machines live"
)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / USER_HZ
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Files, Groups};
    use crate::identity::{BootId, ProcessIdentity};

    /// Writes a process of a made-up procfs, with its usage and the kernel's list of its children.
    fn put(proc: &std::path::Path, pid: i32, parent: i32, children: &str) {
        let dir = proc.join(pid.to_string());
        let thread = dir.join("task").join(pid.to_string());
        std::fs::create_dir_all(&thread).expect("made");
        std::fs::write(thread.join("children"), children).expect("written");
        let rest = "0 0 0 0 0 0 0 0 0 100 50 0 0 20 0 1 0 1 0 0";
        let zeros = " 0".repeat(28);
        let stat = format!("{pid} (x) S {parent} {rest}{zeros}\n");
        std::fs::write(dir.join("stat"), stat).expect("written");
    }

    fn usage_of(proc: &std::path::Path) -> ContainerUsage {
        let supervisor = ProcessIdentity {
            pid: 10,
            start_ticks: 1,
            boot_id: BootId::from_text("b"),
        };
        let source = UsageSource {
            groups: &Groups::default(),
            supervisor: Some(&supervisor),
            proc,
            files: &Files::passing(),
            all: true,
        };
        let mut usage = ContainerUsage::default();
        usage.cpu.user_secs = Some(7.0);
        usage.memory.rss_bytes = Some(1);
        PosixCpu.usage(&source, &mut usage);
        PosixMem.usage(&source, &mut usage);
        usage
    }

    #[test]
    fn hidden_procfs_gives_no_figures() {
        let proc = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(usage_of(proc.path()), ContainerUsage::default());
        // The supervisor is visible, and its task of another user is not: the figures are absent, not zero.
        put(proc.path(), 10, 1, "11 ");
        assert_eq!(usage_of(proc.path()), ContainerUsage::default());
        put(proc.path(), 11, 10, "12 13 ");
        put(proc.path(), 12, 11, "");
        assert_eq!(usage_of(proc.path()), ContainerUsage::default());
        put(proc.path(), 13, 11, "");
        let usage = usage_of(proc.path());
        assert_eq!(usage.cpu.user_secs, Some(3.0));
        assert_eq!(usage.pids.processes, Some(3));
    }
}
