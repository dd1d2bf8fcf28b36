//! cgroup v1 through cgroups-rs: making groups and writing their knobs.
//!
//! The only module that knows the crate. It is used for what it does well on v1, creation and typed
//! writes; attaching (it writes pids where a lone task should write itself), reading (it turns errors
//! into zeros) and deleting (it sleeps) are ours. See `docs/decisions/`.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::cpuacct::CpuAcctController;
use cgroups_rs::fs::error::Error as CrateError;
use cgroups_rs::fs::freezer::FreezerController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use cgroups_rs::fs::{Controller as _, MaxValue};

use super::knob::read_text;
use super::{Controller, KnobError, KnobWrite, v2};

/// Makes a group and its missing parents. A group that exists already is no error.
pub(super) fn create(dir: &Path, controller: Controller) -> Result<(), KnobError> {
    let path = dir.to_owned();
    let root = PathBuf::new();
    let missing = || dir.ancestors().skip(1).take_while(|above| !above.exists());
    let missing: Vec<_> = missing().collect();
    let created = match controller {
        Controller::Cpuset
        | Controller::Blkio
        | Controller::Devices
        | Controller::Hugetlb
        | Controller::PerfEvent => {
            create_plainly(dir)?;
            return missing.into_iter().chain([dir]).try_for_each(super::show);
        }
        Controller::Cpu => CpuController::new(path, root, false).create(),
        Controller::Cpuacct => CpuAcctController::new(path, root).create(),
        Controller::Memory => MemController::new(path, root, false).create(),
        Controller::Pids => PidController::new(path, root, false).create(),
        Controller::Freezer => FreezerController::new(path, root, false).create(),
    };
    created.map_err(|error| KnobError::Create {
        path: dir.to_owned(),
        source: cause(&error),
    })?;
    missing.into_iter().chain([dir]).try_for_each(super::show)
}

/// The crate does more than make the folder for some controllers, and adds nothing for the others.
fn create_plainly(dir: &Path) -> Result<(), KnobError> {
    fs::create_dir_all(dir).map_err(|source| KnobError::Create {
        path: dir.to_owned(),
        source,
    })
}

/// Gives a new group of a cpuset hierarchy, and those above it that we have just made, the processors
/// and memory nodes of the nearest group that has any: the kernel leaves them empty, and refuses tasks
/// in such a group. Nothing to do for other hierarchies.
pub(super) fn fill_cpuset(dir: &Path) -> Result<(), KnobError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let mut empty = Vec::new();
        let mut found = None;
        for dir in dir.ancestors() {
            match read_text(dir, file) {
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
            v2::write_file(&dir.join(file), &value, Controller::Cpuset)?;
        }
    }
    Ok(())
}

/// Carries one planned write out.
pub(super) fn write(dir: &Path, write: &KnobWrite) -> Result<(), KnobError> {
    let path = dir.join(write.file);
    if is_plain(write) {
        return v2::write_file(&path, &write.value, write.controller);
    }
    let written = dispatch(dir, write)?;
    match written.map_err(|error| cause(&error)) {
        Ok(()) => Ok(()),
        // The crate opens with O_CREAT, which cgroupfs refuses with EACCES or EPERM, not ENOENT.
        Err(_) if !path.exists() => Err(KnobError::NotEnabled {
            path,
            controller: write.controller,
        }),
        Err(source) => Err(KnobError::Write {
            path,
            value: write.value.clone(),
            source,
        }),
    }
}

/// What the crate has no typed write for.
fn is_plain(write: &KnobWrite) -> bool {
    matches!(
        (write.controller, write.file),
        (Controller::Cpu, "cpu.idle")
            | (Controller::Freezer, "freezer.state")
            | (Controller::Cpuset, "cpuset.cpus" | "cpuset.mems")
            | (Controller::Devices, "devices.allow" | "devices.deny")
    ) || (write.controller == Controller::Hugetlb && write.file.ends_with(".limit_in_bytes"))
}

fn dispatch(dir: &Path, write: &KnobWrite) -> Result<Result<(), CrateError>, KnobError> {
    let KnobWrite {
        controller, file, ..
    } = *write;
    let path = dir.to_owned();
    let root = PathBuf::new();
    let unknown = || KnobError::Unknown { controller, file };
    let signed = || write.value.parse::<i64>().map_err(|_| unknown());
    let unsigned = || write.value.parse::<u64>().map_err(|_| unknown());
    Ok(match controller {
        Controller::Cpu => {
            let cpu = CpuController::new(path, root, false);
            match file {
                "cpu.shares" => cpu.set_shares(unsigned()?),
                "cpu.cfs_period_us" => cpu.set_cfs_period(unsigned()?),
                "cpu.cfs_quota_us" => cpu.set_cfs_quota(signed()?),
                _ => return Err(unknown()),
            }
        }
        Controller::Memory => {
            let memory = MemController::new(path, root, false);
            match file {
                "memory.limit_in_bytes" => memory.set_limit(signed()?),
                "memory.soft_limit_in_bytes" => memory.set_soft_limit(signed()?),
                "memory.memsw.limit_in_bytes" => memory.set_memswap_limit(signed()?),
                _ => return Err(unknown()),
            }
        }
        Controller::Pids if file == "pids.max" => {
            let max = match write.value.as_str() {
                "max" => MaxValue::Max,
                _ => MaxValue::Value(signed()?),
            };
            PidController::new(path, root, false).set_pid_max(max)
        }
        Controller::Pids
        | Controller::Cpuacct
        | Controller::Freezer
        | Controller::Cpuset
        | Controller::Blkio
        | Controller::Devices
        | Controller::Hugetlb
        | Controller::PerfEvent => return Err(unknown()),
    })
}

/// The kernel's own error behind the crate's.
fn cause(error: &CrateError) -> io::Error {
    let inner = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    match inner.and_then(io::Error::raw_os_error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_written_as_planned() {
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
            write(dir.path(), &KnobWrite::new(controller, file, value)).expect(file);
            assert_eq!(
                fs::read_to_string(dir.path().join(file)).expect(file),
                value
            );
        }
    }

    #[test]
    fn failures_keep_path_and_errno() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let gone = dir.path().join("gone");
        let error = write(&gone, &KnobWrite::new(Controller::Cpu, "cpu.shares", 2));
        assert!(
            matches!(error, Err(KnobError::NotEnabled { path, .. }) if path.starts_with(&gone))
        );
        fs::create_dir(dir.path().join("cpu.shares")).expect("made");
        let error = write(
            dir.path(),
            &KnobWrite::new(Controller::Cpu, "cpu.shares", 2),
        );
        let Err(KnobError::Write { source, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::EISDIR));
        fs::write(dir.path().join("file"), "").expect("written");
        let error = create(&dir.path().join("file/below"), Controller::Memory);
        let Err(KnobError::Create { source, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOTDIR));
        let error = write(
            dir.path(),
            &KnobWrite::new(Controller::Cpu, "cpu.unheard", 2),
        );
        assert!(matches!(error, Err(KnobError::Unknown { .. })));
    }
}
