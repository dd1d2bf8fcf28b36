//! Deleted files that a container's processes hold open: they still take disk space.
//!
//! The link of a descriptor shows that its file was deleted, and the mount shows the former folder. Neither accesses the file
//! system, and the size is the one that the kernel has in memory, so that a file system which does not answer blocks nothing.
//! Invariant: only deleted files are listed, each file once for each folder.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::disk::BLOCK_BYTES;
use crate::cgroup::{SUPERVISORS, list_pids, subgroups};
use crate::is_shortage;
use crate::isolator::Inspection;
use crate::mount_table::{Location, MountTable};
use crate::process_tree::descendants_of;

/// The suffix that the kernel gives to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// A deleted file that is still open.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Unlinked {
    /// The place of its former name.
    pub(super) location: Location,
    pub(super) bytes: u64,
}

/// The deleted files that the processes of a container hold open.
pub(super) fn held_by(inspection: &Inspection<'_>) -> io::Result<Vec<Unlinked>> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for pid in processes(inspection) {
        add_held_by(
            &inspection.proc.join(pid.to_string()),
            &mut seen,
            &mut found,
        )?;
    }
    Ok(found)
}

/// Returns the processes of a container and of its nested containers, which write to the same sandbox.
fn processes(inspection: &Inspection<'_>) -> HashSet<i32> {
    let mut pids = HashSet::new();
    for dir in inspection.groups.process_dirs() {
        add_processes(&dir, &mut pids);
    }
    if let (true, Some(supervisor)) = (pids.is_empty(), inspection.supervisor) {
        pids.extend(descendants_of(inspection.proc, supervisor.pid));
    }
    pids
}

fn add_processes(group: &Path, pids: &mut HashSet<i32>) {
    pids.extend(list_pids(group).unwrap_or_default());
    for below in subgroups(group).filter(|entry| entry.file_name() != SUPERVISORS) {
        add_processes(&below.path(), pids);
    }
}

/// Adds the files of a process. A process that ends, or a file that is closed, in the meantime holds nothing. A shortage of
/// the agent is an error.
fn add_held_by(
    process: &Path,
    seen: &mut HashSet<(u64, u64)>,
    found: &mut Vec<Unlinked>,
) -> io::Result<()> {
    let mut mounts = None;
    for entry in unless_gone(fs::read_dir(process.join("fd")))?
        .into_iter()
        .flatten()
    {
        let Some(path) = unless_gone(entry)?.map(|entry| entry.path()) else {
            return Ok(());
        };
        let target = unless_gone(fs::read_link(&path))?.map(PathBuf::into_os_string);
        let Some(target) = target.map(OsStringExt::into_vec) else {
            continue;
        };
        let Some(name) = target.strip_suffix(DELETED) else {
            continue;
        };
        let flags = AtFlags::from_bits_retain(AtFlags::STATX_DONT_SYNC.bits());
        let Ok(stat) = rustix::fs::statx(CWD, &path, flags, StatxFlags::BASIC_STATS) else {
            continue;
        };
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        if !is_file || stat.stx_nlink != 0 {
            continue;
        }
        if mounts.is_none() {
            mounts = unless_gone(MountTable::read(process))?;
        }
        let location = mount_of(process, &path).and_then(|id| {
            let mount = mounts.as_ref()?.by_id(id)?;
            mount.locate(Path::new(std::ffi::OsStr::from_bytes(name)))
        });
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        if let Some(location) = location
            && seen.insert((device, stat.stx_ino))
        {
            let bytes = stat.stx_blocks.saturating_mul(BLOCK_BYTES);
            found.push(Unlinked { location, bytes });
        }
    }
    Ok(())
}

/// The number of the mount through which a descriptor was opened.
fn mount_of(process: &Path, descriptor: &Path) -> Option<i32> {
    let info = process.join("fdinfo").join(descriptor.file_name()?);
    let text = fs::read_to_string(info).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line?.trim().parse().ok()
}

/// The result of a read, or `None` where the object is gone. A shortage of the agent remains an error, because it leaves the
/// existence open.
pub(super) fn unless_gone<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn agent_shortage_is_not_absence() {
        let of = |errno| unless_gone::<()>(Err(io::Error::from_raw_os_error(errno)));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(of(errno).is_err(), "{errno}");
        }
        for errno in [
            libc::ENOENT,
            libc::ELOOP,
            libc::EIO,
            libc::ESTALE,
            libc::EACCES,
        ] {
            assert!(matches!(of(errno), Ok(None)), "{errno}");
        }
    }

    #[test]
    fn deleted_open_file_is_located() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = fs::canonicalize(dir.path()).expect("a path");
        let held = |name: &str, bytes: usize| {
            let mut file = fs::File::create(dir.join(name)).expect("made");
            file.write_all(&vec![1; bytes]).expect("written");
            file.sync_all().expect("on the disk");
            file
        };
        let unlinked = held("a file", 1 << 20);
        let _again = unlinked.try_clone().expect("another descriptor");
        let _linked = held("kept (deleted)", 1 << 20);
        fs::remove_file(dir.join("a file")).expect("removed");
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        add_held_by(Path::new("/proc/self"), &mut seen, &mut found).expect("looked");
        let table = MountTable::read(Path::new("/proc/self")).expect("mounts");
        let folder = table.locate(&dir).expect("somewhere");
        let ours = found.iter().filter(|file| file.location.is_within(&folder));
        let ours: Vec<_> = ours.collect();
        assert_eq!(ours.len(), 1, "{ours:?}");
        assert_eq!(ours[0].location.path, folder.path.join("a file"));
        assert!(ours[0].bytes >= 1 << 20);
        drop(unlinked);
    }
}
