//! Checks whether the work directory is writable, and holds the reserve that is released when its file system is full.
//!
//! The checkpoint thread owns a [`DiskRoom`], polls it once a second and notifies it of failed writes. On a full file
//! system the agent takes no task. Each failed write releases a step of the reserve and is tried again, so that
//! terminal updates, kills and a recovery reach the disk. The release goes in steps, since a task that fills the disk
//! also takes the released room. When there is room for the reserve twice, the agent takes the reserve and tasks again.
//! A reserve that cannot be taken prevents no task. The decisions are functions of [`Space`]; invariant: taking the
//! reserve never makes a file system full.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, StatVfs};
use tracing::{error, info, warn};

use super::durable::StoreError;
use super::layout::Layout;

/// The largest reserve in bytes: enough for thousands of last updates and the records of a start.
const RESERVE_BYTES_MAX: u64 = 16 << 20;
/// The largest reserve in inodes. Replacing a file needs one for a moment; ending a task needs none.
const RESERVE_INODES_MAX: u64 = 64;
/// The divisor for the share of a small file system that the reserve may take.
const RESERVE_SHARE: u64 = 16;
/// The least and the most bytes that one failed write releases: about a batch of records.
const STEP_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=256 << 10;
/// Inodes that one failed write releases.
const STEP_INODES: usize = 4;

/// Whether checkpoints can be written.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash)]
pub enum DiskCondition {
    /// Checkpoints can be written, and there is room for more.
    #[default]
    Writable,
    /// The file system has little or no room; writes use the reserve.
    Full,
    /// A write failed for another reason; the agent tries again each second.
    Failing,
    /// The work directory is missing or replaced: somebody removed it, or unmounted its file system.
    Removed,
    /// The disk has not answered for half a minute.
    Silent,
}

/// The size of a file system and the space left for an ordinary user.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct Space {
    bytes: u64,
    free_bytes: u64,
    /// Zero where the file system makes inodes on demand.
    inodes: u64,
    free_inodes: u64,
}

/// Bytes and inodes in the reserve.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct ReserveSize {
    bytes: u64,
    inodes: u64,
}

impl Space {
    fn at(path: &Path) -> io::Result<Self> {
        let StatVfs {
            f_frsize,
            f_blocks,
            f_bavail,
            f_files,
            f_favail,
            ..
        } = rustix::fs::statvfs(path)?;
        Ok(Self {
            bytes: f_blocks.saturating_mul(f_frsize),
            free_bytes: f_bavail.saturating_mul(f_frsize),
            inodes: f_files,
            free_inodes: f_favail,
        })
    }

    fn reserve(&self) -> ReserveSize {
        ReserveSize {
            bytes: (self.bytes / RESERVE_SHARE).min(RESERVE_BYTES_MAX),
            inodes: (self.inodes / RESERVE_SHARE).min(RESERVE_INODES_MAX),
        }
    }

    /// Whether the remaining space is too small for new tasks.
    fn is_short_of(&self, reserve: ReserveSize) -> bool {
        let has_inodes = self.inodes == 0 || self.free_inodes >= reserve.inodes.div_ceil(4);
        self.free_bytes < reserve.bytes / 4 || !has_inodes
    }

    /// Whether the file system has room for `times` such reserves.
    fn has(&self, reserve: ReserveSize, times: u64) -> bool {
        let inodes = reserve.inodes.saturating_mul(times);
        self.free_bytes >= reserve.bytes.saturating_mul(times)
            && (self.inodes == 0 || self.free_inodes >= inodes)
    }
}

/// The files that reserve room for later.
#[derive(Debug)]
struct Reserve {
    folder: PathBuf,
}

impl Reserve {
    fn bytes_file(&self) -> PathBuf {
        self.folder.join("bytes")
    }

    fn is_held(&self, size: ReserveSize) -> bool {
        let found = fs::symlink_metadata(self.bytes_file());
        found.is_ok_and(|found| found.is_file() && found.len() >= size.bytes)
    }

    /// Takes the missing part of the reserve, or leaves the reserve unchanged.
    fn take(&self, size: ReserveSize) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let file = open(&self.bytes_file(), false)?;
        let before = file.metadata()?.len();
        let mut created = Vec::new();
        allocate(&file, size.bytes)
            .and_then(|()| self.take_inodes(size.inodes, &mut created))
            .inspect_err(|_| {
                // Room that is not returned counts as a part of the reserve next time.
                let _ = file.set_len(before);
                created.iter().for_each(|path| drop(fs::remove_file(path)));
            })
    }

    fn take_inodes(&self, count: u64, created: &mut Vec<PathBuf>) -> io::Result<()> {
        for number in 0..count {
            let path = self.folder.join(format!("inode-{number}"));
            match open(&path, true) {
                Ok(_) => created.push(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Releases a step of the reserve. Returns whether there was any.
    fn release_step(&self) -> bool {
        let inodes = self.files().filter(|path| *path != self.bytes_file());
        let released = inodes.take(STEP_INODES).filter(|path| remove(path)).count();
        self.shorten().unwrap_or_default() || released > 0
    }

    fn shorten(&self) -> io::Result<bool> {
        let file = OpenOptions::new().write(true).open(self.bytes_file())?;
        let held = file.metadata()?.len();
        let step = (held / 16).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        file.set_len(held.saturating_sub(step))?;
        Ok(held > 0)
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        files.map(|entry| entry.path())
    }
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    // A file cannot reserve an empty range. A file system without a size has no reserve.
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // A file system without preallocation has no reserve; the agent still watches its free space.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        taken => Ok(taken?),
    }
}

fn remove(path: &Path) -> bool {
    let removed = fs::remove_file(path);
    if let Err(error) = &removed {
        warn!(path = %path.display(), %error, "failed to release a part of the disk reserve");
    }
    removed.is_ok()
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Opens a file of the reserve, and creates a missing file.
fn open(path: &Path, only_new: bool) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.write(true).create(true).create_new(only_new);
    options.mode(0o600).custom_flags(flags).open(path)
}

/// Releases a step of the reserve, so that a start finds room on a full file system. Returns whether there was any.
pub(crate) fn release_reserve(layout: &Layout) -> bool {
    let folder = layout.reserve();
    Reserve { folder }.release_step()
}

/// The state of the disk's free space, and the reserve.
#[derive(Debug)]
pub(super) struct DiskRoom {
    work_dir: PathBuf,
    reserve: Reserve,
    /// The logged reason why the last attempt to take the reserve failed.
    reserve_error: Option<String>,
    /// The lock file of the agent, which identifies its work directory; `None` until it was seen.
    lock: (PathBuf, Option<(u64, u64)>),
    condition: DiskCondition,
}

impl DiskRoom {
    /// Creates the state for a work directory whose reserve an earlier agent may have released.
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            work_dir: layout.work_dir().to_owned(),
            reserve: Reserve {
                folder: layout.reserve(),
            },
            reserve_error: None,
            lock: (layout.lock(), identity_of(&layout.lock()).ok()),
            condition: DiskCondition::Writable,
        }
    }

    pub(super) fn condition(&self) -> DiskCondition {
        self.condition
    }

    /// Checks the free space of the file system. With `may_take`, which takes some milliseconds, also takes the reserve
    /// if there is room.
    pub(super) fn look(&mut self, may_take: bool) {
        if self.note_removal() {
            return;
        }
        if self.condition == DiskCondition::Removed {
            info!(path = %self.work_dir.display(), "the work directory is back; accepting tasks");
            self.condition = DiskCondition::Writable;
        }
        let space = match Space::at(&self.work_dir) {
            Ok(space) => space,
            Err(error) => {
                warn!(path = %self.work_dir.display(), %error, "failed to read the free space of \
                    the disk");
                return;
            }
        };
        let size = space.reserve();
        if space.is_short_of(size) {
            self.is_full();
        } else if self.reserve.is_held(size) {
            if space.has(size, 1) {
                self.is_over();
            }
        } else if may_take && space.has(size, 2) {
            let taken = self.reserve.take(size);
            self.note_reserve(size, taken.err());
            self.is_over();
        }
    }

    /// Whether the work directory is gone. Logs this once.
    fn note_removal(&mut self) -> bool {
        let is_removed = self.is_removed();
        if is_removed && self.condition != DiskCondition::Removed {
            self.condition = DiskCondition::Removed;
            error!(
                path = %self.work_dir.display(),
                "the work directory was removed: the agent accepts no tasks and reports no ended \
                 tasks; restore or mount the directory before a restart of the agent"
            );
        }
        is_removed
    }

    /// Whether the agent's locked file is gone. A file that cannot be inspected counts as present.
    fn is_removed(&self) -> bool {
        let (path, Some(known)) = &self.lock else {
            return false;
        };
        match identity_of(path) {
            Ok(found) => found != *known,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Logs once, and not each second, that the reserve cannot be taken.
    fn note_reserve(&mut self, size: ReserveSize, error: Option<io::Error>) {
        let error = error.map(|error| error.to_string());
        if let Some(error) = &error
            && self.reserve_error.as_ref() != Some(error)
        {
            warn!(
                folder = %self.reserve.folder.display(), bytes = size.bytes, error,
                "failed to allocate the disk reserve; on a full disk the agent can write less \
                 than intended"
            );
        }
        self.reserve_error = error;
    }

    /// Handles a failed write. Returns whether another attempt at once is worthwhile.
    pub(super) fn failed(&mut self, error: &StoreError) -> bool {
        if self.note_removal() {
            return false;
        }
        if !error.is_disk_full() {
            if self.condition == DiskCondition::Writable {
                self.condition = DiskCondition::Failing;
            }
            return false;
        }
        self.is_full();
        self.reserve.release_step()
    }

    /// Handles a successful write, which ends a failure for reasons other than lack of room.
    pub(super) fn written(&mut self) {
        if self.condition == DiskCondition::Failing {
            info!("checkpoints can be written again");
            self.condition = DiskCondition::Writable;
        }
    }

    fn is_full(&mut self) {
        if self.condition != DiskCondition::Full {
            error!(
                path = %self.work_dir.display(),
                "the disk is full: the agent accepts no tasks until space is free, and records \
                 ended tasks in the reserve"
            );
        }
        self.condition = DiskCondition::Full;
    }

    fn is_over(&mut self) {
        if self.condition == DiskCondition::Full {
            info!(path = %self.work_dir.display(), "the disk has free space again; accepting \
                tasks");
            self.condition = DiskCondition::Writable;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(bytes: u64, free_bytes: u64, inodes: u64, free_inodes: u64) -> Space {
        Space {
            bytes,
            free_bytes,
            inodes,
            free_inodes,
        }
    }

    #[test]
    fn reserve_scales_with_disk_and_cap() {
        let reserve = |bytes, inodes| space(bytes, 0, inodes, 0).reserve();
        let size = |bytes, inodes| ReserveSize { bytes, inodes };
        assert_eq!(reserve(32 * MIB, 160), size(2 * MIB, 10));
        assert_eq!(reserve(1 << 50, 1 << 30), size(16 * MIB, 64));
        assert_eq!(reserve(0, 0), size(0, 0));
    }

    #[test]
    fn shortage_of_bytes_or_inodes_counts() {
        let reserve = space(256 * MIB, 0, 4096, 0).reserve();
        let of = |free_bytes, free_inodes| space(256 * MIB, free_bytes, 4096, free_inodes);
        assert!(of(4 * MIB - 1, 4096).is_short_of(reserve));
        assert!(of(256 * MIB, 15).is_short_of(reserve));
        assert!(!of(4 * MIB, 16).is_short_of(reserve));
        assert!(!of(16 * MIB - 1, 4096).has(reserve, 1));
        assert!(!of(256 * MIB, 63).has(reserve, 1));
        assert!(of(16 * MIB, 64).has(reserve, 1) && !of(16 * MIB, 64).has(reserve, 2));
        // Inodes made on demand do not run out.
        let reserve = space(256 * MIB, 0, 0, 0).reserve();
        let endless = space(256 * MIB, 64 * MIB, 0, 0);
        assert!(!endless.is_short_of(reserve) && endless.has(reserve, 2));
    }

    #[test]
    fn reserve_is_retaken_after_partial_release() {
        let dir = tempfile::tempdir().expect("a folder");
        let size = ReserveSize {
            bytes: 1 << 20,
            inodes: 6,
        };
        let reserve = Reserve {
            folder: dir.path().join("reserve"),
        };
        let files = || fs::read_dir(&reserve.folder).expect("a folder").count();
        assert!(!reserve.release_step() && !reserve.is_held(size));
        reserve.take(size).expect("taken");
        assert!(reserve.is_held(size));
        assert_eq!(files(), 7);
        // Each step releases bytes and inodes, until nothing is left.
        assert!(reserve.release_step());
        assert!(!reserve.is_held(size));
        assert_eq!(files(), 3);
        let steps = std::iter::repeat_with(|| reserve.release_step()).take(100);
        assert_eq!(steps.filter(|released| *released).count(), 15);
        fs::create_dir(reserve.folder.join("stray")).expect("made");
        fs::write(reserve.folder.join("inode-0"), "").expect("written");
        reserve.take(size).expect("taken again");
        assert!(reserve.is_held(size));
        assert_eq!(files(), 8);
        while reserve.release_step() {}
        assert_eq!(files(), 2, "the stray folder and an empty file");
        // A file system without a size has nothing to hold.
        let nothing = ReserveSize {
            bytes: 0,
            inodes: 0,
        };
        reserve.take(nothing).expect("nothing to take");
        assert!(reserve.is_held(nothing));
    }

    #[test]
    fn failed_reserve_keeps_old_and_tasks() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let reserve = Reserve {
            folder: layout.reserve(),
        };
        let size = |bytes| ReserveSize { bytes, inodes: 4 };
        reserve.take(size(1 << 20)).expect("taken");
        // More than any file may have.
        reserve.take(size(u64::MAX / 2)).expect_err("too much");
        assert!(reserve.is_held(size(1 << 20)) && !reserve.is_held(size((1 << 20) + 1)));
        fs::remove_file(reserve.bytes_file()).expect("removed");
        fs::create_dir(reserve.bytes_file()).expect("made");
        let mut room = DiskRoom::new(&layout);
        room.is_full();
        room.look(true);
        assert_eq!(room.condition(), DiskCondition::Writable);
        assert!(room.reserve_error.is_some());
        fs::remove_dir(reserve.bytes_file()).expect("removed");
        room.look(true);
        assert_eq!(room.reserve_error, None);
    }

    #[test]
    fn failed_write_marks_disk_until_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(dir.path());
        let mut room = DiskRoom::new(&layout);
        room.look(true);
        assert_eq!(room.condition(), DiskCondition::Writable);
        let error = |errno: rustix::io::Errno| StoreError::Io {
            doing: "write",
            path: PathBuf::new(),
            source: errno.into(),
        };
        assert!(!room.failed(&error(rustix::io::Errno::IO)));
        assert_eq!(room.condition(), DiskCondition::Failing);
        room.written();
        assert_eq!(room.condition(), DiskCondition::Writable);
        // The second attempt finds the room of the reserve.
        let full = error(rustix::io::Errno::NOSPC);
        assert!(room.failed(&full));
        room.written();
        assert_eq!(room.condition(), DiskCondition::Full);
        while room.failed(&full) {}
        assert!(!release_reserve(&layout));
        room.look(true);
        assert_eq!(room.condition(), DiskCondition::Writable);
        assert!(release_reserve(&layout));
    }

    /// Regression: the agent went on, and its next start ended every task.
    #[test]
    fn removed_work_directory_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(&dir.path().join("work"));
        let aside = dir.path().join("aside");
        fs::create_dir_all(layout.meta()).expect("made");
        fs::write(layout.lock(), "").expect("written");
        let mut room = DiskRoom::new(&layout);
        room.look(false);
        assert_eq!(room.condition(), DiskCondition::Writable);
        fs::rename(layout.work_dir(), &aside).expect("moved");
        room.look(true);
        assert_eq!(room.condition(), DiskCondition::Removed);
        assert!(!layout.work_dir().exists(), "nothing is made there");
        // Another directory of the same name, such as the folder below a mount.
        fs::create_dir_all(layout.meta()).expect("made");
        fs::write(layout.lock(), "").expect("written");
        room.look(true);
        room.written();
        assert_eq!(room.condition(), DiskCondition::Removed);
        fs::remove_dir_all(layout.work_dir()).expect("removed");
        fs::rename(&aside, layout.work_dir()).expect("moved back");
        room.look(false);
        assert_eq!(room.condition(), DiskCondition::Writable);
    }
}
