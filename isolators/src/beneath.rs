//! Files and folders beneath one folder, whoever else may be at work there.
//!
//! Entered through [`Folder::open`], whose own path only the agent's user can change; everything below it
//! may belong to a task, which can swap any name for a link, a pipe or somebody else's file at any moment.
//! So the kernel resolves each path beneath the folder and through no link of any kind (`openat2`), and
//! what is opened is judged by its descriptor. Invariants: nothing that was there before changes its owner
//! or mode, and nothing outside the folder is opened, made or removed.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::{Mutex, PoisonError};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, fchown, unlinkat};

/// A rename elsewhere at the same moment makes the kernel ask for another try.
const TRIES: usize = 16;

/// Folders are taken apart where they are down to this depth, with a descriptor for each level.
const DEPTH_MAX: usize = 32;

/// How often a folder is read until it is empty.
const PASSES_MAX: usize = 4;

/// The mode of a file of output, as in Mesos.
pub(crate) const OUTPUT_MODE: u32 = 0o644;

/// Opens a folder for nothing but to name it.
const NAMED: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

/// Opens a folder to list and change it.
const LISTED: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NONBLOCK);

/// Held while a folder is made: containers of one group are launched side by side, and one that finds the
/// folder they share puts its own into it before the other has seen that what it made is empty.
static MAKING: Mutex<()> = Mutex::new(());

/// Whom something new is given to: user and group.
pub type Owner = Option<(u32, u32)>;

/// A folder that everything stays in.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file that output goes to.
#[derive(Debug)]
pub struct OutputFile {
    /// Open for writing.
    pub file: OwnedFd,
    /// What it holds already.
    pub bytes: u64,
}

impl Folder {
    /// Opens a folder at a path that only we can change; a link at its end is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = NAMED | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let fd = nix::fcntl::open(path, flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// A folder beneath this one, at a relative path; an empty path is this one.
    pub fn folder(&self, path: &Path) -> io::Result<Self> {
        let fd = self.open_at(path, NAMED)?;
        Ok(Self { fd })
    }

    /// Something beneath this folder that is there, found without following a link; an empty path is this
    /// folder.
    pub fn open_at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let path = or_itself(path);
        let mut flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        // Beside `O_PATH` the call takes hardly anything.
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

    /// A folder in this one, by its name, made with this mode and owner if nothing is there. One that is
    /// there stays as it is.
    pub fn enter(&self, name: &OsStr, mode: u32, owner: Owner) -> io::Result<Self> {
        match self.make_folder(name, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.folder(Path::new(name))
            }
            made => made,
        }
    }

    /// The folder at a relative path, with those above it, as [`Self::enter`] does it.
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

    /// A new folder in this one.
    pub fn make_folder(&self, name: &OsStr, mode: u32, owner: Owner) -> io::Result<Self> {
        let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// A folder in this one that is the owner's: a new one, or one that was there if it is theirs already.
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

    /// A new file in this folder, open for writing.
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
        // Whatever the umask took away.
        nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(mode))?;
        give(&file, owner)?;
        Ok(file)
    }

    /// The file of this name in this folder for the output of the owner's processes: a new one, or one
    /// that was there if it is a regular file with one name and the owner's own.
    pub fn output_file(&self, name: &OsStr, owner: Owner, more: OFlag) -> io::Result<OutputFile> {
        match self.create(name, OUTPUT_MODE, owner, more) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| OutputFile { file, bytes: 0 }),
        }
        let uid = user_of(owner);
        // Looked at before it is opened for writing, which a pipe or a device would notice.
        judge(&fstat(self.open_at(Path::new(name), OFlag::O_PATH)?)?, uid)?;
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | more;
        let file = self.open_at(Path::new(name), flags)?;
        let stat = fstat(&file)?;
        judge(&stat, uid)?;
        Ok(OutputFile {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            file,
        })
    }

    /// Removes what is at a relative path, with everything in it; nothing there is fine. No depth of
    /// folders costs more than a few descriptors. What is mounted in there stays, and is an error.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = match self.folder(path.parent().unwrap_or(Path::new(""))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            parent => parent?,
        };
        match unlinkat(&parent.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        match parent.step_into(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            top => top?.empty()?,
        }
        gone(unlinkat(&parent.fd, name, UnlinkatFlags::RemoveDir))
    }

    /// Removes everything in this folder, as [`Self::remove`] does it.
    pub fn empty(&self) -> io::Result<()> {
        let top = Self {
            fd: self.open_at(Path::new("."), LISTED)?,
        };
        let mut removal = Removal::new(&top);
        removal.empty(&top, 0)?;
        // What was too deep lies at the top now; one after the other, so that no depth takes more stack.
        while removal.first < removal.next {
            let name = moved_name(removal.first);
            removal.first += 1;
            removal.remove(&top, &name, 0)?;
        }
        Ok(())
    }

    /// Opens a folder in this one to take it apart; one where something is mounted is refused.
    fn step_into(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        let how = OpenHow::new()
            .flags(LISTED | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
            .resolve(confined() | ResolveFlag::RESOLVE_NO_XDEV);
        let fd = openat2(&self.fd, name.as_ref(), how)?;
        Ok(Self { fd })
    }
}

/// A tree that is being removed.
#[derive(Debug)]
struct Removal<'a> {
    top: &'a Folder,
    /// Folders too deep are moved up to the top, under numbers from here on.
    first: u64,
    next: u64,
}

impl<'a> Removal<'a> {
    fn new(top: &'a Folder) -> Self {
        // Not to be guessed by somebody who wants to be in the way.
        let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
        let start = clock.map_or(0, |time| time.tv_nsec().unsigned_abs() << 24);
        Self {
            top,
            first: start,
            next: start,
        }
    }

    fn empty(&mut self, folder: &Folder, depth: usize) -> io::Result<()> {
        // Some filesystems skip names while others are removed; somebody may also go on making new ones,
        // whom we do not wait for.
        for _ in 0..PASSES_MAX {
            let mut is_empty = true;
            let listed = openat2(
                &folder.fd,
                ".",
                OpenHow::new().flags(LISTED | OFlag::O_CLOEXEC),
            )?;
            for entry in Dir::from_fd(listed)?.iter() {
                let entry = entry?;
                let name = entry.file_name();
                if !matches!(name.to_bytes(), b"." | b"..") {
                    is_empty = false;
                    self.remove(folder, name, depth)?;
                }
            }
            if is_empty {
                return Ok(());
            }
        }
        Ok(())
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
        match folder.step_into(OsStr::from_bytes(name.to_bytes())) {
            // It is something else by now, for the next pass.
            Err(error) if is_swapped(&error) => return Ok(()),
            inner => self.empty(&inner?, depth + 1)?,
        }
        gone(unlinkat(&folder.fd, name, UnlinkatFlags::RemoveDir))
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

fn moved_name(number: u64) -> CString {
    CString::new(format!(".removed-{number:x}")).unwrap_or_default()
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

/// Refuses what is no plain file of that user's alone. Its owner settles it: a second name of somebody
/// else's file can be gone again by the time that names are counted.
fn judge(stat: &FileStat, uid: u32) -> io::Result<()> {
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
