//! Files and folders beneath one folder that other users may change at the same time.
//!
//! Access begins with [`Folder::open`], whose own path only the agent's user can change. Everything below may belong to a
//! task, which can swap any name for a link, a pipe or another user's file at any moment. So the kernel resolves each path
//! beneath the folder and through no link of any kind (`openat2`), and the checks look at the open descriptor. Invariants:
//! existing entries keep their owner and mode, and nothing outside the folder is opened, made or removed.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, fchown, unlinkat};

/// Attempts of an open: a rename elsewhere at the same moment makes the kernel fail with EAGAIN.
const TRIES: usize = 16;

/// The depth down to which folders are emptied in place, with a descriptor for each level.
const DEPTH_MAX: usize = 32;

/// The maximum number of repeated reads of folders of one tree that were not empty in the end. Some filesystems skip names
/// while others are removed, and the removal does not wait for a process that goes on making new names.
const FURTHER_PASSES_MAX: usize = 64;
/// Limit on entries that came or changed since the removal began and are removed all the same; a process that makes more
/// would otherwise never let it end.
const LATE_MAX: usize = 4_096;
/// Limit on names of older files that changed since the removal began, as a file does when another of its names is removed.
/// New names of an old file look the same, and a process that makes them would otherwise never let the removal end.
const CHANGED_MAX: usize = 1 << 18;
/// Limit on further late entries that the removal skips in search of older ones.
const PASSED_OVER_MAX: usize = 16_384;

/// The mode of a file of output, as in Mesos.
pub(crate) const OUTPUT_MODE: u32 = 0o644;

/// Opens a folder only as a reference.
const NAMED: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

/// Opens a folder to list and change it.
const LISTED: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NONBLOCK);

/// Serializes the making of folders. Containers of one group start side by side, and a container that finds the shared folder
/// puts its own into it, before the other has checked that its new folder is empty.
static FOLDER_CREATION: Mutex<()> = Mutex::new(());

/// The owner of a new file: user and group.
pub type Owner = Option<(u32, u32)>;

/// A folder that no operation below it leaves.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The progress of a removal that the caller may stop.
#[derive(Debug)]
pub enum RemovalProgress {
    /// The tree is gone.
    Done,
    /// The removal was stopped before its end. Holds the error of the first entry that could not be removed, if any.
    Stopped(Option<io::Error>),
}

/// An open output file.
#[derive(Debug)]
pub struct OutputFile {
    /// The file, open for writing.
    pub file: OwnedFd,
    /// The size of the file when it was opened.
    pub bytes: u64,
}

impl Folder {
    /// Opens a folder at a path that only we can change; a link at its end is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = NAMED | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let fd = nix::fcntl::open(path, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// A folder beneath this one, at a relative path; an empty path means this folder.
    pub fn folder(&self, path: &Path) -> io::Result<Self> {
        let fd = self.open_at(path, NAMED)?;
        Ok(Self { fd })
    }

    /// Opens an existing entry beneath this folder, without following a link; an empty path is this folder.
    pub fn open_at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let path = or_itself(path);
        let mut flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        // Together with `O_PATH` the call accepts almost no other flag.
        if !flags.contains(OFlag::O_PATH) {
            flags |= OFlag::O_NOCTTY;
        }
        let how = OpenHow::new().flags(flags).resolve(confined());
        for _ in 1..TRIES {
            match openat2(&self.fd, path, how) {
                Err(Errno::EAGAIN) => {}
                opened => return Ok(opened?),
            }
        }
        Ok(openat2(&self.fd, path, how)?)
    }

    /// Enters the subfolder of this name, and makes it with this mode and owner if it is missing. An existing folder stays
    /// unchanged.
    pub fn enter(&self, name: &OsStr, mode: u32, owner: Owner) -> io::Result<Self> {
        match self.make_folder(name, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.folder(Path::new(name))
            }
            made => made,
        }
    }

    /// Enters the folder at a relative path, with those above it, as [`Self::enter`] does.
    pub fn enter_all(&self, path: &Path, mode: u32, owner: Owner) -> io::Result<Self> {
        let mut at = self.folder(Path::new(""))?;
        for part in path.components() {
            match part {
                Component::Normal(name) => at = at.enter(name, mode, owner)?,
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
            }
        }
        Ok(at)
    }

    /// Makes a new subfolder of this folder.
    pub fn make_folder(&self, name: &OsStr, mode: u32, owner: Owner) -> io::Result<Self> {
        let _one_at_a_time = FOLDER_CREATION
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        mkdirat(&self.fd, name, Mode::from_bits_truncate(mode & 0o700))?;
        let made = self.open_at(Path::new(name), LISTED)?;
        // Between the two calls another folder may have been put in its place: an empty one of ours is
        // what we made, or as good, since whoever can swap it could have removed it as well.
        let stat = fstat(&made)?;
        if stat.st_uid != nix::unistd::geteuid().as_raw() || !is_empty(&made)? {
            return Err(Errno::EBUSY.into());
        }
        nix::sys::stat::fchmod(&made, Mode::from_bits_truncate(mode))?;
        give(&made, owner)?;
        Ok(Self { fd: made })
    }

    /// Enters a subfolder of the owner's: a new folder, or an existing one if it belongs to the owner already.
    pub fn own_folder(&self, name: &OsStr, mode: u32, owner: Owner) -> io::Result<Self> {
        match self.make_folder(name, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        let there = self.folder(Path::new(name))?;
        if fstat(&there)?.st_uid == user_of(owner) {
            Ok(there)
        } else {
            Err(Errno::EPERM.into())
        }
    }

    /// Makes a new file in this folder, open for writing.
    pub fn create(
        &self,
        name: &OsStr,
        mode: u32,
        owner: Owner,
        more: OFlag,
    ) -> io::Result<OwnedFd> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | more;
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let private = Mode::from_bits_truncate(mode & 0o700);
        let file = nix::fcntl::openat(&self.fd, name, flags, private)?;
        // Restores the bits that the umask removed.
        nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(mode))?;
        give(&file, owner)?;
        Ok(file)
    }

    /// Opens the output file of this name for the owner's processes: a new file, or an existing regular file with one name that
    /// belongs to the owner.
    pub fn output_file(&self, name: &OsStr, owner: Owner, more: OFlag) -> io::Result<OutputFile> {
        match self.create(name, OUTPUT_MODE, owner, more) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| OutputFile { file, bytes: 0 }),
        }
        let uid = user_of(owner);
        // Checked before it is opened for writing, which would have an effect on a pipe or a device.
        check_owner(&fstat(self.open_at(Path::new(name), OFlag::O_PATH)?)?, uid)?;
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | more;
        let file = self.open_at(Path::new(name), flags)?;
        let stat = fstat(&file)?;
        check_owner(&stat, uid)?;
        Ok(OutputFile {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            file,
        })
    }

    /// Removes the entry at a relative path, with everything in it; a missing entry is fine. No depth of folders costs more than
    /// a few descriptors. Entries that cannot be removed, are mount points or reappear all the time stay, and cause an error once
    /// all else is gone.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.remove_while(path, &|| true).map(drop)
    }

    /// Removes the entry like [`Folder::remove`] for as long as `goes_on` returns true. The removal asks `goes_on` after each
    /// entry, so that it always tries at least one.
    pub fn remove_while(
        &self,
        path: &Path,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<RemovalProgress> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = match self.folder(path.parent().unwrap_or(Path::new(""))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(RemovalProgress::Done);
            }
            parent => parent?,
        };
        match unlinkat(&parent.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(RemovalProgress::Done),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        let top = match parent.step_into(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(RemovalProgress::Done);
            }
            top => top?,
        };
        let mut removal = Removal::new(&top, now, goes_on);
        loop {
            removal.empty_top()?;
            match unlinkat(&parent.fd, name, UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if removal.is_stopped => {
                    return Ok(removal.stopped());
                }
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if removal.goes_on(0) => {}
                removed => {
                    let removed = removal.into_result(gone(removed));
                    return removed.map(|()| RemovalProgress::Done);
                }
            }
        }
    }

    /// Removes everything in this folder, as [`Self::remove`] does.
    pub fn empty(&self) -> io::Result<()> {
        let top = Self {
            fd: self.open_at(Path::new("."), LISTED)?,
        };
        let mut removal = Removal::new(&top, now, &|| true);
        loop {
            removal.empty_top()?;
            if is_empty(&top.fd)? || !removal.goes_on(0) {
                return removal.into_result(Ok(()));
            }
        }
    }

    /// Opens a subfolder to remove its contents; refuses a mount point.
    fn step_into(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        let how = OpenHow::new()
            .flags(LISTED | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
            .resolve(confined() | ResolveFlag::RESOLVE_NO_XDEV);
        let fd = openat2(&self.fd, name.as_ref(), how)?;
        Ok(Self { fd })
    }
}

/// A tree that is being removed.
struct Removal<'a> {
    top: &'a Folder,
    /// The question after each entry, and whether its answer was no.
    may_go_on: &'a dyn Fn() -> bool,
    is_stopped: bool,
    /// The numbers of folders that were moved to the top because they were too deep.
    first: u64,
    next: u64,
    /// The remaining number of repeated reads of folders that are not empty.
    further_passes: usize,
    /// The clock of change times, and the start of the removal by that clock.
    clock: fn() -> (i64, i64),
    began: (i64, i64),
    late: usize,
    changed: usize,
    /// The number of entries that could not be removed, and the error of the first of them.
    left: usize,
    failure: Option<io::Error>,
}

impl<'a> Removal<'a> {
    fn new(top: &'a Folder, clock: fn() -> (i64, i64), may_go_on: &'a dyn Fn() -> bool) -> Self {
        // Unpredictable, so that no process can occupy the name in advance.
        let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
        let start = monotonic.map_or(0, |time| time.tv_nsec().unsigned_abs() << 24);
        Self {
            top,
            may_go_on,
            is_stopped: false,
            first: start,
            next: start,
            further_passes: FURTHER_PASSES_MAX,
            began: clock(),
            clock,
            late: 0,
            changed: 0,
            left: 0,
            failure: None,
        }
    }

    /// Whether to read again a folder that is not empty although the last pass (from `left` on) removed every entry: entries that
    /// could not be removed just now are not tried again.
    fn goes_on(&mut self, left: usize) -> bool {
        let goes_on = self.left == left && self.further_passes > 0;
        self.further_passes -= usize::from(goes_on);
        goes_on
    }

    /// The result of the whole removal, whose last step had the result `last`.
    fn into_result(self, last: io::Result<()>) -> io::Result<()> {
        let Some(failure) = self.failure.or(last.err()) else {
            return Ok(());
        };
        if self.left == 0 {
            return Err(failure);
        }
        let text = format!("{} entries are left: {failure}", self.left);
        Err(io::Error::new(failure.kind(), text))
    }

    /// Converts a stopped removal into its progress.
    fn stopped(self) -> RemovalProgress {
        RemovalProgress::Stopped(self.into_result(Ok(())).err())
    }

    fn empty_top(&mut self) -> io::Result<()> {
        let top = self.top;
        self.pass(top, 0)?;
        // Folders that were too deep lie at the top now. They are emptied one after the other, so that no depth takes more stack.
        while self.first < self.next && !self.is_stopped {
            let name = moved_name(self.first);
            self.first += 1;
            self.try_remove(top, &name, 0);
        }
        Ok(())
    }

    /// Removes the present entries of a folder as far as possible.
    fn pass(&mut self, folder: &Folder, depth: usize) -> io::Result<()> {
        let how = OpenHow::new().flags(LISTED | OFlag::O_CLOEXEC);
        let listed = openat2(&folder.fd, ".", how)?;
        for entry in Dir::from_fd(listed)?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || (depth == 0 && self.is_moved(name)) {
                continue;
            }
            if !self.is_too_late(folder, name) {
                self.try_remove(folder, name, depth);
                if self.is_stopped {
                    break;
                }
            } else if self.late > LATE_MAX + PASSED_OVER_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Whether this removal moved the folder to the top: each of those has its turn once.
    fn is_moved(&self, name: &CStr) -> bool {
        let number = name.to_str().ok().and_then(|name| name.strip_prefix(MOVED));
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        number.is_some_and(|number| (self.first..self.next).contains(&number))
    }

    /// Whether the entry came or changed since the removal began, and too many others did.
    fn is_too_late(&mut self, folder: &Folder, name: &CStr) -> bool {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = nix::sys::stat::fstatat(&folder.fd, name, flags);
        let has_changed = |stat: &FileStat| self.is_since((stat.st_ctime, stat.st_ctime_nsec));
        let Some(stat) = stat.ok().filter(has_changed) else {
            return false;
        };
        if self.changed < CHANGED_MAX && self.is_older_file(folder, name, &stat) {
            self.changed += 1;
            return false;
        }
        self.late += 1;
        if self.late <= LATE_MAX {
            return false;
        }
        self.left += 1;
        self.failure.get_or_insert_with(|| Errno::ENOTEMPTY.into());
        true
    }

    /// Whether the moment lies between the start of the removal and now. A moment ahead of the clock is from before the clock was
    /// set back; no other user can set a change time.
    fn is_since(&self, moment: (i64, i64)) -> bool {
        moment > self.began && moment <= (self.clock)()
    }

    /// Whether the entry is a file from before the removal began; where its filesystem records no such time, a file with several
    /// names.
    fn is_older_file(&self, folder: &Folder, name: &CStr, stat: &FileStat) -> bool {
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        kind != SFlag::S_IFDIR
            && made_at(folder, name).map_or(stat.st_nlink > 1, |made| !self.is_since(made))
    }

    /// Removes an entry, or records that it remains.
    fn try_remove(&mut self, folder: &Folder, name: &CStr, depth: usize) {
        if let Err(error) = self.remove(folder, name, depth) {
            self.left += 1;
            self.failure.get_or_insert(error);
        }
        self.is_stopped = self.is_stopped || !(self.may_go_on)();
    }

    fn remove(&mut self, folder: &Folder, name: &CStr, depth: usize) -> io::Result<()> {
        match unlinkat(&folder.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&folder.fd, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        if depth >= DEPTH_MAX {
            return self.move_up(folder, name);
        }
        let inner = match folder.step_into(OsStr::from_bytes(name.to_bytes())) {
            // The entry was replaced in the meantime; the next pass handles it.
            Err(error) if is_swapped(&error) => return Ok(()),
            inner => inner?,
        };
        loop {
            let left = self.left;
            self.pass(&inner, depth + 1)?;
            match unlinkat(&folder.fd, name, UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.left > left || self.is_stopped => {
                    return Ok(());
                }
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.goes_on(left) => {}
                removed => return gone(removed),
            }
        }
    }

    fn move_up(&mut self, folder: &Folder, name: &CStr) -> io::Result<()> {
        for _ in 0..TRIES {
            let fresh = moved_name(self.next);
            self.next += 1;
            let flags = RenameFlags::RENAME_NOREPLACE;
            match nix::fcntl::renameat2(&folder.fd, name, &self.top.fd, &*fresh, flags) {
                Err(Errno::EEXIST) => {}
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EEXIST.into())
    }
}

/// Prefix of the names of folders that were moved to the top.
const MOVED: &str = ".removed-";

fn moved_name(number: u64) -> CString {
    CString::new(format!("{MOVED}{number:x}")).unwrap_or_default()
}

fn now() -> (i64, i64) {
    let clock = nix::time::ClockId::CLOCK_REALTIME;
    let time = nix::time::clock_gettime(clock);
    time.map_or((i64::MAX, 0), |time| (time.tv_sec(), time.tv_nsec()))
}

/// The time when an entry was made, if its filesystem records that.
fn made_at(folder: &Folder, name: &CStr) -> Option<(i64, i64)> {
    let folder = format!("/proc/self/fd/{}", folder.fd.as_raw_fd());
    let path = Path::new(&folder).join(OsStr::from_bytes(name.to_bytes()));
    let made = std::fs::symlink_metadata(path).ok()?.created().ok()?;
    let made = made.duration_since(UNIX_EPOCH).ok()?;
    let seconds = i64::try_from(made.as_secs()).ok()?;
    Some((seconds, made.subsec_nanos().into()))
}

fn is_swapped(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)
    )
}

fn gone(removed: nix::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn confined() -> ResolveFlag {
    ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
}

fn or_itself(path: &Path) -> &Path {
    if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    }
}

fn user_of(owner: Owner) -> u32 {
    owner.map_or_else(|| nix::unistd::geteuid().as_raw(), |(uid, _)| uid)
}

fn give(fd: &OwnedFd, owner: Owner) -> io::Result<()> {
    match owner {
        Some((uid, gid)) => Ok(fchown(fd, Some(uid.into()), Some(gid.into()))?),
        None => Ok(()),
    }
}

/// Refuses everything but a plain file that belongs to that user and has one name. The owner is the decisive check: a second
/// name of another user's file can be gone again by the time that the names are counted.
fn check_owner(stat: &FileStat, uid: u32) -> io::Result<()> {
    let refused = |errno: Errno| Err(errno.into());
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG if stat.st_nlink != 1 => refused(Errno::EMLINK),
        SFlag::S_IFREG if stat.st_uid != uid => refused(Errno::EPERM),
        SFlag::S_IFREG => Ok(()),
        SFlag::S_IFLNK => refused(Errno::ELOOP),
        SFlag::S_IFDIR => refused(Errno::EISDIR),
        _ => refused(Errno::EINVAL),
    }
}

fn is_empty(folder: &OwnedFd) -> io::Result<bool> {
    let listed = openat2(folder, ".", OpenHow::new().flags(LISTED | OFlag::O_CLOEXEC))?;
    for entry in Dir::from_fd(listed)?.iter() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
