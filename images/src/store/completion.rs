//! The folders and hard links that the layers of an image lack, each layer being unpacked without the others.
//!
//! A folder that a layer implies hides mode and owner of the same folder in a lower layer; and a hard link may lead to a file
//! of a lower layer. [`plan`] compares the layers and lists the steps; [`make`] carries them out in a folder that lies above all
//! layers. Invariant: with that folder, the merged tree is the one that applying the layers one after another gives, except
//! for the times of folders.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::StoreError;
use super::layout::files_in;
use super::record::LayerRecord;
use crate::unpack::{clean, split, unescape};

/// Look-ups of one path in one layer, some microseconds each. Real images have some thousands of implied folders.
const LOOKUPS_MAX: u64 = 5_000_000;
/// Links to links of lower layers that are followed.
const HOPS_MAX: usize = 16;
/// Names of all extended attributes of a folder; the kernel's limit.
const XATTR_LIST_BYTES: usize = 64 << 10;

/// A layer as its own folder shows it.
pub(super) struct LayerView {
    files: OwnedFd,
    implied: BTreeSet<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    links: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The result of a look-up of a path in one layer.
enum Found {
    Absent,
    /// The layer hides the path in lower layers: by a whiteout, an opaque folder, or a file in the place of a folder.
    Hidden,
    File,
    Folder(Box<Stat>),
}

/// A step of a completion.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Makes a folder like that of a layer.
    Folder { path: Vec<u8>, like: usize },
    /// Makes a file that is the one of a layer.
    Link {
        path: Vec<u8>,
        layer: usize,
        target: Vec<u8>,
    },
}

impl LayerView {
    /// Opens a stored or staged layer.
    pub(super) fn open(folder: &Path, record: &LayerRecord) -> Result<Self, StoreError> {
        let path = files_in(folder);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let files = rustix::fs::openat(rustix::fs::CWD, &path, flags, Mode::empty())
            .map_err(|errno| StoreError::new("open", &path, errno.into()))?;
        let invalid = || StoreError::Damaged { path: path.clone() };
        let read = |text: &String| {
            let path = unescape(text)?;
            clean(&path)
                .is_ok_and(|clean| clean == path)
                .then_some(path)
        };
        let paths = |texts: &[String]| texts.iter().map(read).collect::<Option<_>>();
        let links = record.report.links.iter();
        let links = links.map(|(path, target)| Some((read(path)?, read(target)?)));
        Ok(Self {
            files,
            implied: paths(&record.report.implied).ok_or_else(invalid)?,
            opaque: paths(&record.report.opaque).ok_or_else(invalid)?,
            links: links.collect::<Option<_>>().ok_or_else(invalid)?,
        })
    }

    /// Whether the layer hides all lower ones.
    fn hides_all(&self) -> bool {
        self.opaque.contains(&Vec::new())
    }

    fn find(&self, path: &[u8]) -> rustix::io::Result<Found> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open_beneath(self.files.as_fd(), path, flags) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)?;
                Ok(match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => Found::Folder(Box::new(stat)),
                    FileType::CharacterDevice if stat.st_rdev == 0 => Found::Hidden,
                    _ => Found::File,
                })
            }
            Err(Errno::NOENT) => {
                let mut folder = path;
                while !folder.is_empty() {
                    folder = split(folder).0;
                    if self.opaque.contains(folder) {
                        return Ok(Found::Hidden);
                    }
                }
                Ok(Found::Absent)
            }
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(Found::Hidden),
            Err(errno) => Err(errno),
        }
    }
}

/// Lists the steps that complete layers, bottom first, in the order in which [`make`] takes them.
pub(super) fn plan(layers: &[LayerView]) -> Result<Vec<Step>, StoreError> {
    let mut planner = Planner {
        layers,
        lookups: 0,
        folders: BTreeMap::new(),
    };
    let mut links = BTreeMap::new();
    for (at, layer) in layers.iter().enumerate().rev() {
        for (path, target) in &layer.links {
            if !links.contains_key(path) && planner.is_free_above(at, path)? {
                links.insert(path.clone(), planner.find_target(at, path, target)?);
            }
        }
    }
    let implied: BTreeSet<_> = layers.iter().flat_map(|layer| &layer.implied).collect();
    for path in implied {
        planner.plan_folder(path)?;
    }
    for path in links.keys() {
        planner.plan_parents(path)?;
    }
    // A folder of the completion needs all folders above it.
    let paths: Vec<_> = planner.folders.keys().cloned().collect();
    for path in paths {
        planner.plan_parents(&path)?;
    }
    let folders = planner.folders.into_iter();
    let folders = folders.map(|(path, like)| Step::Folder { path, like });
    let links = links.into_iter().map(|(path, (layer, target))| Step::Link {
        path,
        layer,
        target,
    });
    Ok(folders.chain(links).collect())
}

struct Planner<'a> {
    layers: &'a [LayerView],
    lookups: u64,
    /// The folders of the completion, each with the layer that it is like.
    folders: BTreeMap<Vec<u8>, usize>,
}

impl<'a> Planner<'a> {
    fn find(&mut self, layer: usize, path: &[u8]) -> Result<Found, StoreError> {
        self.lookups += 1;
        if self.lookups > LOOKUPS_MAX {
            return Err(StoreError::TooComplex);
        }
        self.layers[layer]
            .find(path)
            .map_err(|errno| StoreError::new("read", as_path(path), errno.into()))
    }

    /// Whether no layer above this one has the path or hides it.
    fn is_free_above(&mut self, layer: usize, path: &[u8]) -> Result<bool, StoreError> {
        for above in layer + 1..self.layers.len() {
            if self.layers[above].hides_all() || !matches!(self.find(above, path)?, Found::Absent) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Finds the file of a link in the layers below.
    fn find_target(
        &mut self,
        layer: usize,
        path: &[u8],
        target: &'a [u8],
    ) -> Result<(usize, Vec<u8>), StoreError> {
        let missing = || StoreError::MissingTarget {
            path: String::from_utf8_lossy(path).into_owned(),
            target: String::from_utf8_lossy(target).into_owned(),
        };
        let (mut wanted, mut at) = (target, layer);
        for _ in 0..HOPS_MAX {
            // A link of the same layer leads to the file as well.
            let layers: &'a [LayerView] = self.layers;
            if let Some(target) = layers[at].links.get(wanted) {
                wanted = target;
                continue;
            }
            loop {
                if at == 0 || self.layers[at].hides_all() {
                    return Err(missing());
                }
                at -= 1;
                match self.find(at, wanted)? {
                    Found::File => return Ok((at, wanted.to_vec())),
                    Found::Folder(_) | Found::Hidden => return Err(missing()),
                    Found::Absent if self.layers[at].links.contains_key(wanted) => break,
                    Found::Absent => {}
                }
            }
        }
        Err(missing())
    }

    /// The uppermost visible folder with this path, and the layer that decides on its mode and owner.
    fn find_folder(&mut self, path: &[u8]) -> Result<Option<Visible>, StoreError> {
        let mut top = None;
        for layer in (0..self.layers.len()).rev() {
            match self.find(layer, path)? {
                Found::Absent => {}
                Found::Folder(stat) => {
                    let top = top.get_or_insert_with(|| (layer, stat.clone()));
                    if !self.layers[layer].implied.contains(path) {
                        return Ok(Some(Visible {
                            top: top.0,
                            decides: layer,
                            is_equal: is_equal(&top.1, &stat),
                        }));
                    }
                }
                Found::Hidden | Found::File => break,
            }
            if self.layers[layer].hides_all() {
                break;
            }
        }
        Ok(top.map(|(top, _)| Visible {
            top,
            decides: top,
            is_equal: true,
        }))
    }

    fn plan_folder(&mut self, path: &[u8]) -> Result<(), StoreError> {
        if let Some(found) = self.find_folder(path)?
            && found.top != found.decides
            && !(found.is_equal && self.has_no_xattrs(found.decides, path)?)
        {
            self.folders.insert(path.to_vec(), found.decides);
        }
        Ok(())
    }

    fn has_no_xattrs(&self, layer: usize, path: &[u8]) -> Result<bool, StoreError> {
        let names = open_folder(self.layers[layer].files.as_fd(), path).and_then(|fd| xattrs(&fd));
        names
            .map(|names| names.is_empty())
            .map_err(|errno| StoreError::new("read", as_path(path), errno.into()))
    }

    fn plan_parents(&mut self, path: &[u8]) -> Result<(), StoreError> {
        let mut folder = path;
        while !folder.is_empty() {
            folder = split(folder).0;
            if !self.folders.contains_key(folder)
                && let Some(found) = self.find_folder(folder)?
            {
                self.folders.insert(folder.to_vec(), found.decides);
            }
        }
        Ok(())
    }
}

struct Visible {
    /// The uppermost layer that has the folder.
    top: usize,
    /// The layer whose archive describes it; the uppermost one if no archive does.
    decides: usize,
    /// Whether mode and owner are the same in both.
    is_equal: bool,
}

fn is_equal(one: &Stat, other: &Stat) -> bool {
    (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid)
}

/// Makes a completion in an empty folder.
pub(super) fn make(folder: &Path, layers: &[LayerView], steps: &[Step]) -> Result<(), StoreError> {
    let path = files_in(folder);
    let failed = |source: std::io::Error| StoreError::new("complete an image in", &path, source);
    std::fs::create_dir(&path).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let files = rustix::fs::openat(rustix::fs::CWD, &path, flags, Mode::empty())
        .map_err(|errno| failed(errno.into()))?;
    for step in steps {
        carry_out(&files, layers, step).map_err(|errno| failed(errno.into()))?;
    }
    // Times last: each new file changes the time of its folder.
    for step in steps.iter().rev() {
        if let Step::Folder { path, like } = step {
            copy_time(&files, layers[*like].files.as_fd(), path)
                .map_err(|errno| failed(errno.into()))?;
        }
    }
    Ok(())
}

fn carry_out(files: &OwnedFd, layers: &[LayerView], step: &Step) -> rustix::io::Result<()> {
    match step {
        Step::Folder { path, like } => {
            let (parent, name) = split(path);
            if !name.is_empty() {
                let parent = open_beneath(files.as_fd(), parent, OFlags::PATH | OFlags::CLOEXEC)?;
                rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
            }
            let made = open_folder(files.as_fd(), path)?;
            let like = open_folder(layers[*like].files.as_fd(), path)?;
            let stat = rustix::fs::fstat(&like)?;
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            rustix::fs::fchown(&made, Some(uid), Some(gid))?;
            rustix::fs::fchmod(&made, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
            for name in xattrs(&like)? {
                let mut value = vec![0; XATTR_LIST_BYTES];
                let length = rustix::fs::fgetxattr(&like, name.as_slice(), value.as_mut_slice())?;
                value.truncate(length);
                let flags = XattrFlags::empty();
                rustix::fs::fsetxattr(&made, name.as_slice(), &value, flags)?;
            }
            Ok(())
        }
        Step::Link {
            path,
            layer,
            target,
        } => {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let (from, from_name) = split(target);
            let (to, to_name) = split(path);
            let from = open_beneath(layers[*layer].files.as_fd(), from, flags)?;
            let to = open_beneath(files.as_fd(), to, flags)?;
            rustix::fs::linkat(&from, from_name, &to, to_name, AtFlags::empty())
        }
    }
}

fn copy_time(files: &OwnedFd, like: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<()> {
    let like = rustix::fs::fstat(open_beneath(like, path, OFlags::PATH | OFlags::CLOEXEC)?)?;
    let made = open_beneath(files.as_fd(), path, OFlags::PATH | OFlags::CLOEXEC)?;
    let time = Timespec {
        tv_sec: like.st_mtime,
        tv_nsec: i64::try_from(like.st_mtime_nsec).unwrap_or_default(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(&made, ".", &times, AtFlags::empty())
}

/// The names of the extended attributes that a layer brought; overlayfs' own ones belong to one layer.
fn xattrs(fd: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut list = vec![0; XATTR_LIST_BYTES];
    let length = match rustix::fs::flistxattr(fd, list.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    list.truncate(length);
    let names = list.split(|byte| *byte == 0).filter(|name| {
        name.starts_with(b"user.")
            || name.starts_with(b"system.posix_acl_")
            || *name == b"security.capability"
    });
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn open_folder(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open_beneath(
        root,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
    )
}

fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

fn as_path(path: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path))
}
