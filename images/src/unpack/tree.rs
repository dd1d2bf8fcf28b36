//! The entries of an archive as files below a layer's folder, in the form of overlayfs.
//!
//! [`Tree::add`] makes an entry, and [`Tree::finish`] whatever depends on all entries: whiteouts, late links and the times of
//! folders. Invariants: each call is relative to an open folder and follows no link; the last entry of a path wins; a
//! whiteout hides files of lower layers alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::path::{self, is_at_or_below, join, split};
use super::report::{Device, Report, escape};
use super::tar_reader::{Entry, Kind, TarReader};
use super::{Limits, Refusal, UnpackError};

/// Beginning of the names that hide a file of lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// The name that hides all files of lower layers in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Beginning of the names that AUFS keeps for itself. Docker skips them.
const AUFS_OWN: &[u8] = b".wh..wh.";

/// Links of the layer itself that a path may lead through. The kernel follows as many.
const EXPANSIONS_MAX: usize = 40;
/// Memory of a record beside its path: the nodes of the maps.
const RECORD_BYTES: u64 = 96;
/// A file takes whole blocks, and about half of one for its inode and name.
const BLOCK_BYTES: u64 = 4096;

/// A folder of the layer.
#[derive(Clone, Copy, Debug)]
struct Folder {
    modified: (i64, u32),
    /// Whether no entry of the archive describes the folder.
    is_implied: bool,
}

/// A folder of the layer that is open for the entries in it.
struct OpenFolder {
    /// The path that the archive gave, and the path without links.
    asked: Vec<u8>,
    path: Vec<u8>,
    fd: OwnedFd,
}

/// A layer's folder while its entries are made.
pub(super) struct Tree {
    root: OwnedFd,
    /// The folder of the last entry: entries of one folder stand side by side in most archives.
    open: Option<OpenFolder>,
    folders: BTreeMap<Vec<u8>, Folder>,
    whiteouts: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    /// Hard links whose target was missing when they came.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    devices: BTreeMap<Vec<u8>, Device>,
    entries: u64,
    file_bytes: u64,
    disk_bytes: u64,
    path_bytes: u64,
    skipped_xattrs: u64,
    limits: Limits,
}

impl Tree {
    pub(super) fn new(root: OwnedFd, limits: &Limits) -> Self {
        let implied = Folder {
            modified: (0, 0),
            is_implied: true,
        };
        Self {
            root,
            open: None,
            folders: BTreeMap::from([(Vec::new(), implied)]),
            whiteouts: BTreeSet::new(),
            opaque: BTreeSet::new(),
            links: BTreeMap::new(),
            devices: BTreeMap::new(),
            entries: 0,
            file_bytes: 0,
            disk_bytes: 0,
            path_bytes: 0,
            skipped_xattrs: 0,
            limits: *limits,
        }
    }

    /// Makes an entry; a file takes its data from the archive.
    pub(super) fn add<R: Read>(
        &mut self,
        entry: &Entry,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let (folder, name) = split(&entry.path);
        if folder
            .split(|byte| *byte == b'/')
            .any(|part| part.starts_with(AUFS_OWN))
        {
            return Ok(());
        }
        if name.is_empty() {
            return self.describe_root(entry);
        }
        if folder
            .split(|byte| *byte == b'/')
            .any(|part| part.starts_with(WHITEOUT))
        {
            return Err(Refusal::for_path("lies below a whiteout", &entry.path).into());
        }
        if name.starts_with(WHITEOUT) {
            return self.add_whiteout(entry, folder, name);
        }
        let parent = self.enter(folder)?;
        let path = join(&parent.path, name);
        path::check(&path)?;
        self.links.remove(&path);
        self.devices.remove(&path);
        let made = match entry.kind {
            Kind::File => self.make_file(&parent, name, &path, entry, archive),
            Kind::Folder => self.make_folder(&parent, name, &path, entry),
            Kind::Symlink => self.make_symlink(&parent, name, &path, entry),
            Kind::HardLink => self.make_link(&parent, name, &path, entry),
            Kind::Fifo => self.make_fifo(&parent, name, &path, entry),
            Kind::Character | Kind::Block => self.note_device(&parent, name, &path, entry),
        };
        // The folder stays open for the next entry, unless this entry replaced it.
        if !is_at_or_below(&parent.path, &path) && self.open.is_none() {
            self.open = Some(parent);
        }
        made
    }

    /// Makes what depends on all entries, and reports.
    pub(super) fn finish(mut self) -> Result<Report, UnpackError> {
        for (path, target) in std::mem::take(&mut self.links) {
            if let Some(target) = self.try_late_link(&path, &target)? {
                self.links.insert(path, target);
            }
        }
        for path in std::mem::take(&mut self.whiteouts) {
            self.make_whiteout(&path)?;
        }
        self.open = None;
        self.set_folder_times()?;
        let implied = self.folders.iter().filter(|(_, folder)| folder.is_implied);
        let implied = implied.map(|(path, _)| escape(path)).collect();
        let is_folder = |path: &&Vec<u8>| self.folders.contains_key(*path);
        let escape_both = |(path, target): (&Vec<u8>, &Vec<u8>)| (escape(path), escape(target));
        Ok(Report {
            diff_id: None,
            content_bytes: 0,
            disk_bytes: self.disk_bytes,
            entries: self.entries,
            implied,
            opaque: self
                .opaque
                .iter()
                .filter(is_folder)
                .map(|path| escape(path))
                .collect(),
            links: self.links.iter().map(escape_both).collect(),
            devices: self.devices.into_values().collect(),
            skipped_xattrs: self.skipped_xattrs,
        })
    }

    // Kinds of entries.

    fn describe_root(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        if entry.kind != Kind::Folder {
            return Err(Refusal::for_path("is the root, but no folder", b"/").into());
        }
        let fd = open_folder(self.root.as_fd(), b".")
            .map_err(|errno| UnpackError::system("open the folder", b"/", errno))?;
        self.describe_folder(&fd, Vec::new(), entry)
    }

    fn make_file<R: Read>(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
        archive: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.place("create", parent, name, path, |folder| {
            rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)
        })?;
        let size = match &entry.sparse {
            Some(map) => {
                self.charge_bytes(map.size())?;
                let write = |offset, bytes: &[u8]| rustix::io::pwrite(&file, bytes, offset);
                for (offset, length) in map.parts() {
                    copy_part(path, archive, *offset, *length, write)?;
                }
                rustix::fs::ftruncate(&file, map.size())
                    .map_err(|errno| UnpackError::system("extend", path, errno))?;
                map.parts().iter().map(|(_, length)| length).sum()
            }
            None => self.copy_data(path, archive, &file)?,
        };
        self.charge_entry(size)?;
        self.describe(&file, path, entry)?;
        rustix::fs::futimens(&file, &timestamps(entry.modified))
            .map_err(|errno| UnpackError::system("set the time of", path, errno))
    }

    fn copy_data<R: Read>(
        &mut self,
        path: &[u8],
        archive: &mut TarReader<R>,
        file: &OwnedFd,
    ) -> Result<u64, UnpackError> {
        let mut size = 0;
        loop {
            let data = archive.read_data()?;
            if data.is_empty() {
                self.charge_bytes(size)?;
                return Ok(size);
            }
            let count = rustix::io::retry_on_intr(|| rustix::io::write(file, data))
                .map_err(|errno| UnpackError::system("write", path, errno))?;
            archive.consume(count);
            size += count as u64;
        }
    }

    fn make_folder(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let fd = match open_folder(parent.fd.as_fd(), name) {
            Ok(fd) => fd,
            Err(_) => {
                self.place("create the folder", parent, name, path, |folder| {
                    rustix::fs::mkdirat(folder, name, Mode::RWXU)
                })?;
                self.charge_entry(0)?;
                open_folder(parent.fd.as_fd(), name)
                    .map_err(|errno| UnpackError::system("open the folder", path, errno))?
            }
        };
        self.describe_folder(&fd, path.to_vec(), entry)
    }

    /// Sets mode, owner and attributes of a folder; its time is set last.
    fn describe_folder(
        &mut self,
        fd: &OwnedFd,
        path: Vec<u8>,
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        self.describe(fd, &path, entry)?;
        let folder = Folder {
            modified: entry.modified,
            is_implied: false,
        };
        self.note_folder(path, folder)
    }

    fn make_symlink(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let link = entry.link.as_slice();
        self.place("create the link", parent, name, path, |folder| {
            rustix::fs::symlinkat(link, folder, name)
        })?;
        self.charge_entry(0)?;
        self.describe_by_name(parent, name, path, entry)
    }

    fn make_fifo(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let mode = Mode::from_raw_mode(entry.mode);
        self.place("create the pipe", parent, name, path, |folder| {
            rustix::fs::mknodat(folder, name, FileType::Fifo, mode, 0)
        })?;
        self.charge_entry(0)?;
        self.describe_by_name(parent, name, path, entry)?;
        // The mode that mknod takes is without the bits of the umask.
        rustix::fs::chmodat(&parent.fd, name, mode, AtFlags::empty())
            .map_err(|errno| UnpackError::system("set the mode of", path, errno))
    }

    /// Makes a hard link, or notes it if its target is missing: the target may be in a lower layer.
    fn make_link(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        let target = path::clean(&entry.link)?;
        if let Some(device) = self.devices.get(&target) {
            let device = Device {
                path: escape(path),
                ..device.clone()
            };
            self.charge_paths(path.len())?;
            self.remove_existing(parent, name, path)?;
            self.devices.insert(path.to_vec(), device);
            return Ok(());
        }
        let Some((folder, target)) = self.find(&target)? else {
            self.charge_paths(path.len() + target.len())?;
            // A file of an earlier entry with this path is replaced in any case.
            self.remove_existing(parent, name, path)?;
            self.links.insert(path.to_vec(), target);
            return Ok(());
        };
        if target == path {
            return Ok(());
        }
        self.link(&folder, &target, parent, name, path)
    }

    fn link(
        &mut self,
        target_folder: &OwnedFd,
        target: &[u8],
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), UnpackError> {
        let (_, target_name) = split(target);
        if self.folders.contains_key(target) {
            return Err(Refusal::for_path("is a hard link to a folder", path).into());
        }
        if is_at_or_below(target, path) {
            return Err(Refusal::for_path("is a hard link to a file below itself", path).into());
        }
        self.charge_entry(0)?;
        let flags = AtFlags::empty();
        self.place("create the hard link", parent, name, path, |folder| {
            rustix::fs::linkat(target_folder, target_name, folder, name, flags)
        })
    }

    /// Returns the target of a link whose target is still missing.
    fn try_late_link(
        &mut self,
        path: &[u8],
        target: &[u8],
    ) -> Result<Option<Vec<u8>>, UnpackError> {
        let (folder, name) = split(path);
        let parent = self.enter(folder)?;
        if rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            // A later entry replaced the link.
            return Ok(None);
        }
        match self.find(target)? {
            None => Ok(Some(target.to_vec())),
            Some((target_folder, target)) => self
                .link(&target_folder, &target, &parent, name, path)
                .map(|()| None),
        }
    }

    /// Notes a device file for the parent process, which alone has the right to make it.
    fn note_device(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        if entry.kind == Kind::Character && entry.device == (0, 0) {
            let problem = "is the device 0:0, which hides files of other layers";
            return Err(Refusal::for_path(problem, path).into());
        }
        self.remove_existing(parent, name, path)?;
        self.charge_entry(0)?;
        self.charge_paths(path.len())?;
        let device = Device {
            path: escape(path),
            is_block: entry.kind == Kind::Block,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            major: entry.device.0,
            minor: entry.device.1,
            modified: entry.modified,
        };
        self.devices.insert(path.to_vec(), device);
        Ok(())
    }

    // Whiteouts.

    fn add_whiteout(
        &mut self,
        entry: &Entry,
        folder: &[u8],
        name: &[u8],
    ) -> Result<(), UnpackError> {
        if name == OPAQUE {
            let parent = self.enter(folder)?;
            self.charge_paths(parent.path.len())?;
            self.opaque.insert(parent.path.clone());
            self.open = Some(parent);
            return Ok(());
        }
        if name.starts_with(AUFS_OWN) {
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Refusal::for_path("is a whiteout without a name", &entry.path).into());
        }
        self.charge_paths(entry.path.len())?;
        self.whiteouts.insert(join(folder, hidden));
        Ok(())
    }

    /// Hides a file of lower layers. A file of this layer hides it already, and a folder of this layer becomes opaque.
    fn make_whiteout(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let (folder, name) = split(path);
        let parent = match self.enter(folder) {
            // The folder was replaced by a file, which hides everything below.
            Err(UnpackError::Refused(Refusal::Entry { .. })) => return Ok(()),
            parent => parent?,
        };
        let path = join(&parent.path, name);
        if let Some(folder) = self.folders.get_mut(&path) {
            // The lower folder does not count, so its mode does not, either.
            folder.is_implied = false;
            self.opaque.insert(path);
        } else if !self.devices.contains_key(&path) && !self.links.contains_key(&path) {
            let kind = FileType::CharacterDevice;
            match rustix::fs::mknodat(&parent.fd, name, kind, Mode::empty(), 0) {
                Ok(()) => self.charge_entry(0)?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(UnpackError::system("hide", &path, errno)),
            }
        }
        self.open = Some(parent);
        Ok(())
    }

    // Folders.

    /// Opens the folder of an entry, with the folders that the archive implies. Links of the layer itself lead to folders of the
    /// layer, as if the layer's folder were the root.
    fn enter(&mut self, asked: &[u8]) -> Result<OpenFolder, UnpackError> {
        if let Some(open) = self.open.take_if(|open| open.asked == asked) {
            return Ok(open);
        }
        self.open = None;
        let opened = match open_beneath(self.root.as_fd(), asked) {
            Ok(fd) => OpenFolder {
                asked: asked.to_vec(),
                path: asked.to_vec(),
                fd,
            },
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let path = self.walk(asked, true)?.unwrap_or_default();
                let fd = open_beneath(self.root.as_fd(), &path)
                    .map_err(|errno| UnpackError::system("open the folder", &path, errno))?;
                OpenFolder {
                    asked: asked.to_vec(),
                    path,
                    fd,
                }
            }
            Err(errno) => return Err(UnpackError::system("open the folder", asked, errno)),
        };
        Ok(opened)
    }

    /// Returns the folder of a file, and the file's path without links in its folders. Absent for a missing file.
    fn find(&mut self, path: &[u8]) -> Result<Option<(OwnedFd, Vec<u8>)>, UnpackError> {
        let (folder, name) = split(path);
        if name.is_empty() {
            return Err(Refusal::for_path("is a hard link to a folder", path).into());
        }
        let Some(folder) = self.walk_quickly(folder)? else {
            return Ok(None);
        };
        let fd = open_beneath(self.root.as_fd(), &folder)
            .map_err(|errno| UnpackError::system("open the folder", &folder, errno))?;
        let path = join(&folder, name);
        match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(Some((fd, path))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(UnpackError::system("read", &path, errno)),
        }
    }

    fn walk_quickly(&mut self, folder: &[u8]) -> Result<Option<Vec<u8>>, UnpackError> {
        if self.folders.contains_key(folder) {
            return Ok(Some(folder.to_vec()));
        }
        self.walk(folder, false)
    }

    /// Follows a path component by component, with the links of the layer. Makes missing folders, or returns nothing for them.
    fn walk(&mut self, asked: &[u8], makes: bool) -> Result<Option<Vec<u8>>, UnpackError> {
        let mut todo: VecDeque<Vec<u8>> = components(asked).collect();
        let mut path = Vec::new();
        let mut expansions = 0;
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                path.truncate(split(&path).0.len());
                continue;
            }
            let next = join(&path, &name);
            path::check(&next)?;
            if self.folders.contains_key(&next) {
                path = next;
                continue;
            }
            let folder = open_beneath(self.root.as_fd(), &path)
                .map_err(|errno| UnpackError::system("open the folder", &path, errno))?;
            match rustix::fs::readlinkat(&folder, name.as_slice(), Vec::new()) {
                Ok(target) => {
                    expansions += 1;
                    if expansions > EXPANSIONS_MAX {
                        return Err(Refusal::for_path("lies below a loop of links", asked).into());
                    }
                    let target = target.into_bytes();
                    if target.starts_with(b"/") {
                        path.clear();
                    }
                    for component in components(&target).rev() {
                        todo.push_front(component);
                    }
                    if todo.len() > path::DEPTH_MAX * 2 {
                        return Err(Refusal::for_path("is nested too deeply", asked).into());
                    }
                }
                Err(Errno::NOENT) if !makes => return Ok(None),
                Err(Errno::NOENT) => {
                    self.make_implied(&folder, &name, next.clone())?;
                    path = next;
                }
                Err(Errno::INVAL) if !makes => return Ok(None),
                Err(Errno::INVAL) => {
                    return Err(Refusal::for_path("lies below a file of the layer", asked).into());
                }
                Err(errno) => return Err(UnpackError::system("read", &next, errno)),
            }
        }
        Ok(Some(path))
    }

    fn make_implied(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
    ) -> Result<(), UnpackError> {
        let failed = |errno| UnpackError::system("create the folder", &path, errno);
        rustix::fs::mkdirat(folder, name, Mode::RWXU).map_err(failed)?;
        // mkdir's mode is without the bits of the umask.
        let fd = open_folder(folder.as_fd(), name).map_err(failed)?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(failed)?;
        rustix::fs::fchown(&fd, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(failed)?;
        self.charge_entry(0)?;
        self.links.remove(&path);
        self.devices.remove(&path);
        let implied = Folder {
            modified: (0, 0),
            is_implied: true,
        };
        self.note_folder(path, implied)
    }

    fn note_folder(&mut self, path: Vec<u8>, folder: Folder) -> Result<(), UnpackError> {
        let bytes = path.len();
        if self.folders.insert(path, folder).is_none() {
            self.charge_paths(bytes)?;
        }
        Ok(())
    }

    fn set_folder_times(&mut self) -> Result<(), UnpackError> {
        for (path, folder) in &self.folders {
            let failed = |errno| UnpackError::system("set the time of", path, errno);
            let fd = open_beneath(self.root.as_fd(), path).map_err(failed)?;
            let times = timestamps(folder.modified);
            rustix::fs::utimensat(&fd, ".", &times, AtFlags::empty()).map_err(failed)?;
        }
        Ok(())
    }

    // Helpers of all kinds.

    /// Makes a file. If the path exists, removes it first.
    fn place<T>(
        &mut self,
        operation: &'static str,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Result<T, UnpackError> {
        let made = match make(parent.fd.as_fd()) {
            Err(Errno::EXIST) => {
                self.remove_existing(parent, name, path)?;
                make(parent.fd.as_fd())
            }
            made => made,
        };
        made.map_err(|errno| UnpackError::system(operation, path, errno))
    }

    /// Removes a file or a tree of an earlier entry, if there is one.
    fn remove_existing(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), UnpackError> {
        match rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(UnpackError::system("replace", path, errno)),
        }
        remove_tree(parent.fd.as_fd(), name)
            .map_err(|errno| UnpackError::system("replace", path, errno))?;
        forget_below(&mut self.folders, path);
        forget_below(&mut self.links, path);
        forget_below(&mut self.devices, path);
        let opaque = below(path);
        self.opaque.retain(|path| !opaque(path));
        Ok(())
    }

    /// Sets owner, then mode, then extended attributes: a change of owner clears setuid bits and capabilities.
    fn describe(&mut self, fd: &OwnedFd, path: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::fchown(fd, Some(uid), Some(gid))
            .map_err(|errno| UnpackError::system("set the owner of", path, errno))?;
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))
            .map_err(|errno| UnpackError::system("set the mode of", path, errno))?;
        for (name, value) in &entry.xattrs {
            if !is_xattr_kept(name, path)? {
                continue;
            }
            match rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => self.skipped_xattrs += 1,
                Err(errno) => {
                    return Err(UnpackError::system("set an attribute of", path, errno));
                }
            }
        }
        Ok(())
    }

    /// Sets owner and time of a symbolic link or pipe. Neither can have an attribute that we keep.
    fn describe_by_name(
        &mut self,
        parent: &OpenFolder,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<(), UnpackError> {
        for (xattr, _) in &entry.xattrs {
            is_xattr_kept(xattr, path)?;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(&parent.fd, name, Some(uid), Some(gid), flags)
            .map_err(|errno| UnpackError::system("set the owner of", path, errno))?;
        rustix::fs::utimensat(&parent.fd, name, &timestamps(entry.modified), flags)
            .map_err(|errno| UnpackError::system("set the time of", path, errno))
    }

    fn charge_entry(&mut self, file_bytes: u64) -> Result<(), Refusal> {
        self.entries += 1;
        let blocks = file_bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        self.disk_bytes = self.disk_bytes.saturating_add(blocks + BLOCK_BYTES / 2);
        if self.entries > self.limits.entries {
            return Err(Refusal::TooManyEntries {
                entries_max: self.limits.entries,
            });
        }
        Ok(())
    }

    fn charge_bytes(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.file_bytes = self.file_bytes.saturating_add(bytes);
        if self.file_bytes > self.limits.content_bytes {
            return Err(Refusal::ContentTooLarge {
                bytes_max: self.limits.content_bytes,
            });
        }
        Ok(())
    }

    fn charge_paths(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.path_bytes = self.path_bytes.saturating_add(bytes as u64 + RECORD_BYTES);
        if self.path_bytes > self.limits.path_bytes {
            return Err(Refusal::TooManyPaths {
                bytes_max: self.limits.path_bytes,
            });
        }
        Ok(())
    }
}

/// Whether a layer may set an extended attribute. Attributes of overlayfs would let a layer show files that it does not contain.
fn is_xattr_kept(name: &[u8], path: &[u8]) -> Result<bool, Refusal> {
    if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") {
        return Err(Refusal::for_path("has an attribute of overlayfs", path));
    }
    Ok(name == b"security.capability"
        || name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_"))
}

/// Copies a part of a sparse file to its place.
fn copy_part<R: Read>(
    path: &[u8],
    archive: &mut TarReader<R>,
    mut offset: u64,
    mut length: u64,
    write: impl Fn(u64, &[u8]) -> rustix::io::Result<usize>,
) -> Result<(), UnpackError> {
    while length > 0 {
        let data = archive.read_data()?;
        let most = data
            .len()
            .min(usize::try_from(length).unwrap_or(usize::MAX));
        if most == 0 {
            return Err(Refusal::malformed("ends in the middle of a file").into());
        }
        let count = rustix::io::retry_on_intr(|| write(offset, &data[..most]))
            .map_err(|errno| UnpackError::system("write", path, errno))?;
        archive.consume(count);
        offset += count as u64;
        length -= count as u64;
    }
    Ok(())
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .map(<[u8]>::to_vec)
}

fn timestamps((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Opens a folder below the root for calls relative to it. No component may be a link.
pub(super) fn open_beneath(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Opens a folder for changes to it.
fn open_folder(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn below(folder: &[u8]) -> impl Fn(&[u8]) -> bool {
    move |path| is_at_or_below(path, folder)
}

/// Removes the records at and below a path. The names between `path` and `path/` sort between them and stay.
fn forget_below<T>(records: &mut BTreeMap<Vec<u8>, T>, path: &[u8]) {
    records.remove(path);
    let first = join(path, b"");
    // The byte behind the slash ends the range.
    let last = [path, b"0"].concat();
    let gone: Vec<_> = records
        .range(first..last)
        .map(|(path, _)| path.clone())
        .collect();
    for path in gone {
        records.remove(&path);
    }
}

/// Removes a folder with its content. It is at most [`path::DEPTH_MAX`] deep.
fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    let folder = open_folder(parent, name)?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => remove_tree(folder.as_fd(), name)?,
            removed => removed?,
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
