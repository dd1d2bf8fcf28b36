//! cgroup v1 through cgroups-rs: creating groups and writing their limits.
//!
//! No other module uses the crate. Its typed controllers create the groups and write the limits of CPUs, memory and processes.
//! Our own code reads, attaches and deletes: see `docs/decisions/0004`.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use cgroups_rs::cpu::CpuController;
use cgroups_rs::cpuacct::CpuAcctController;
use cgroups_rs::error::Error as CrateError;
use cgroups_rs::freezer::FreezerController;
use cgroups_rs::memory::MemController;
use cgroups_rs::pid::PidController;
use cgroups_rs::{Controller as _, MaxValue};

use super::knob::{self, control_text, write_file};
use super::{Controller, KnobError, KnobWrite};

/// Makes a group and its missing parents. An existing group is fine.
pub(super) fn create_with_parents(dir: &Path, controller: Controller) -> Result<(), KnobError> {
    let above = dir.ancestors().skip(1);
    let missing: Vec<_> = above.take_while(|above| !above.exists()).collect();
    for above in missing.into_iter().rev() {
        create(above, controller)?;
    }
    create(dir, controller)
}

/// Creates a group whose parent exists. An existing group is not an error.
pub(super) fn create(dir: &Path, controller: Controller) -> Result<(), KnobError> {
    let is_new = !dir.exists();
    // The crate also creates missing parents. Through the open parent it cannot bring back a parent that is being removed.
    if let (Some(parent), Some(name)) = (dir.parent(), dir.file_name())
        && let Ok(parent) = File::open(parent)
    {
        let parent_path = format!("/proc/self/fd/{}", parent.as_raw_fd());
        create_typed(Path::new(&parent_path).join(name), controller);
    }
    // The crate only logs an error: this call creates a group that is still missing, or returns the reason.
    super::create(dir)?;
    if is_new { super::show(dir) } else { Ok(()) }
}

fn create_typed(path: PathBuf, controller: Controller) {
    match controller {
        Controller::Cpu => CpuController::new(path, false).create(),
        Controller::Cpuacct => CpuAcctController::new(path).create(),
        Controller::Memory => MemController::new(path, false).create(),
        Controller::Pids => PidController::new(path, false).create(),
        Controller::Freezer => FreezerController::new(path, false).create(),
        // The crate would also copy the processors of a cpuset, and stop at the first empty parent.
        Controller::Cpuset
        | Controller::Blkio
        | Controller::Devices
        | Controller::Hugetlb
        | Controller::PerfEvent => {}
    }
}

/// Carries out one planned write.
pub(super) fn write(dir: &Path, write: &KnobWrite) -> Result<(), KnobError> {
    let path = dir.join(write.file);
    // The crate would create a missing file where the file system permits that.
    if !path.exists() {
        return knob::write(dir, write);
    }
    match typed_write(dir, write) {
        None => knob::write(dir, write),
        Some(written) => written.map_err(|error| KnobError::Write {
            path,
            value: write.value.clone(),
            source: cause(error),
        }),
    }
}

/// Carries out a write that has a typed call in the crate; `None` without such a call.
fn typed_write(dir: &Path, write: &KnobWrite) -> Option<Result<(), CrateError>> {
    let path = dir.to_owned();
    let signed = || write.value.parse::<i64>().ok();
    let unsigned = || write.value.parse::<u64>().ok();
    let cpu = |path| CpuController::new(path, false);
    let memory = |path| MemController::new(path, false);
    Some(match (write.controller, write.file) {
        (Controller::Cpu, "cpu.shares") => cpu(path).set_shares(unsigned()?),
        (Controller::Cpu, "cpu.cfs_period_us") => cpu(path).set_cfs_period(unsigned()?),
        (Controller::Cpu, "cpu.cfs_quota_us") => cpu(path).set_cfs_quota(signed()?),
        (Controller::Memory, "memory.limit_in_bytes") => memory(path).set_limit(signed()?),
        (Controller::Memory, "memory.soft_limit_in_bytes") => {
            memory(path).set_soft_limit(signed()?)
        }
        (Controller::Memory, "memory.memsw.limit_in_bytes") => {
            memory(path).set_memswap_limit(signed()?)
        }
        (Controller::Pids, "pids.max") => {
            let max = if write.value == "max" {
                MaxValue::Max
            } else {
                MaxValue::Value(signed()?)
            };
            PidController::new(path, false).set_pid_max(max)
        }
        _ => return None,
    })
}

/// The kernel's error inside an error of the crate.
fn cause(error: CrateError) -> io::Error {
    let inner = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    match inner.and_then(io::Error::raw_os_error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error),
    }
}

/// Gives a new group of a cpuset hierarchy, and the new groups above it, the processors and memory nodes of the nearest group
/// that has any: the kernel leaves them empty, and refuses tasks in such a group. Does nothing for other hierarchies; an
/// unreadable file does not count as another hierarchy.
pub(super) fn fill_cpuset(dir: &Path) -> Result<(), KnobError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let mut empty = Vec::new();
        let mut found = None;
        for dir in dir.ancestors() {
            let read = control_text(dir, file).map_err(|source| KnobError::Read {
                path: dir.join(file),
                source,
            });
            match read? {
                None => break,
                Some(text) if text.trim().is_empty() => empty.push(dir),
                Some(text) => {
                    found = Some(text.trim().to_owned());
                    break;
                }
            }
        }
        let Some(value) = found else { continue };
        for dir in empty.into_iter().rev() {
            write_file(&dir.join(file), &value, Controller::Cpuset)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn typed_writes_write_planned_values() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (controller, file, value) in [
            (Controller::Cpu, "cpu.shares", "512"),
            (Controller::Cpu, "cpu.cfs_period_us", "100000"),
            (Controller::Cpu, "cpu.cfs_quota_us", "-1"),
            (Controller::Memory, "memory.limit_in_bytes", "67108864"),
            (Controller::Memory, "memory.soft_limit_in_bytes", "33554432"),
            (
                Controller::Memory,
                "memory.memsw.limit_in_bytes",
                "67108864",
            ),
            (Controller::Pids, "pids.max", "64"),
            (Controller::Pids, "pids.max", "max"),
        ] {
            let planned = KnobWrite::new(controller, file, value);
            fs::write(dir.path().join(file), "").expect("created");
            assert!(typed_write(dir.path(), &planned).is_some(), "{file}");
            write(dir.path(), &planned).expect(file);
            let written = fs::read_to_string(dir.path().join(file)).expect(file);
            assert_eq!(written, value);
        }
    }

    #[test]
    fn typed_writes_keep_path_and_errno() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let planned = KnobWrite::new(Controller::Cpu, "cpu.shares", 2);
        let missing = write(dir.path(), &planned);
        assert!(
            matches!(missing, Err(KnobError::NotEnabled { .. })),
            "{missing:?}"
        );
        fs::create_dir(dir.path().join("cpu.shares")).expect("created");
        let Err(KnobError::Write { source, .. }) = write(dir.path(), &planned) else {
            panic!("a folder was written")
        };
        assert_eq!(source.raw_os_error(), Some(libc::EISDIR));
    }

    #[test]
    fn failed_group_creation_reports_path_errno() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::write(dir.path().join("file"), "").expect("written");
        let error = create_with_parents(&dir.path().join("file/below"), Controller::Memory);
        let Err(KnobError::Create { source, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOTDIR));
    }

    /// Regression: an EIO of this read left the group of a check without processors, and the agent reported its task as
    /// unhealthy.
    #[test]
    fn unreadable_cpuset_is_not_treated_empty() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("outer/inner");
        fs::create_dir_all(&group).expect("made");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            fs::write(group.join(file), "\n").expect("written");
        }
        let outer = dir.path().join("outer");
        fs::write(outer.join("cpuset.mems"), "0\n").expect("written");
        // Reading a process's memory at 0 fails with EIO.
        let pid = std::process::id();
        std::os::unix::fs::symlink(format!("/proc/{pid}/mem"), outer.join("cpuset.cpus"))
            .expect("linked");
        let filled = fill_cpuset(&group);
        assert!(
            matches!(&filled, Err(KnobError::Read { path, .. }) if *path == outer.join("cpuset.cpus")),
            "{filled:?}"
        );
        fs::remove_file(outer.join("cpuset.cpus")).expect("removed");
        fs::write(outer.join("cpuset.cpus"), "0-1\n").expect("written");
        fill_cpuset(&group).expect("filled");
        let filled = |file| fs::read_to_string(group.join(file)).expect("there");
        assert_eq!(filled("cpuset.cpus").trim(), "0-1");
        assert_eq!(filled("cpuset.mems").trim(), "0");
    }
}
