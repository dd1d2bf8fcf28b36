//! Reads sandboxes on behalf of clients, without following paths out of them.
//!
//! A path is the real path of a sandbox or a virtual one (`/frameworks/F/executors/E/runs/latest/...`). Its ids are
//! validated, the sandbox's folder is opened, and the rest is resolved beneath it by `openat2`: no `..`, symbolic link,
//! magic link or device leads out. Blocking. Invariants: a read file is a regular file beneath the sandbox's own inode,
//! and belongs to the owner of the sandbox or of the file's folder. The owner on disk decides who may read a file, not
//! the user of the current run.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use meseta_access::{Action, Approver, Forbidden};
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};

use crate::checkpoint::{Layout, RunKey};
use crate::file_user::path_of;
use crate::permission;

/// The most bytes of one read: 16 pages.
pub(crate) const READ_BYTES_MAX: u64 = 16 * 4096;
/// The most entries of a folder to list.
const ENTRIES_MAX: usize = 10_000;
/// The most bytes of all their paths: each begins with the requested path, which may be as long as a call.
const LISTED_BYTES_MAX: usize = 16 << 20;
/// The kernel's limit for a name in a folder.
const NAME_BYTES_MAX: usize = 255;

/// The reason why a path cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    /// The path does not exist, or leads out of the sandbox.
    #[error("no such file")]
    NotFound,
    /// The path is a folder, not a file.
    #[error("it is a directory")]
    IsDirectory,
    /// The path is not a folder.
    #[error("it is not a directory")]
    NotDirectory,
    /// The path is a pipe, a device or another special file.
    #[error("it is not a regular file")]
    NotAFile,
    /// The path belongs to a user whose sandboxes the reader may not read.
    #[error("{0}")]
    Forbidden(Forbidden),
    /// The file cannot be read.
    #[error("reading failed")]
    Io(#[source] io::Error),
}

impl From<rustix::io::Errno> for FilesError {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            // With XDEV and LOOP the kernel reports that the path would have left the sandbox.
            Errno::NOENT | Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => {
                Self::NotFound
            }
            Errno::NOTDIR => Self::NotDirectory,
            other => Self::Io(other.into()),
        }
    }
}

/// An entry of a folder.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The path as requested, with the entry's name.
    pub(crate) path: String,
    /// The name of the owner, or the number of an owner without a name.
    pub(crate) user: String,
    /// The name of the file's group, or its number.
    pub(crate) group: String,
    /// The file's type and permissions.
    pub(crate) mode: u32,
    /// The number of hard links.
    pub(crate) links: u64,
    /// The size, in bytes.
    pub(crate) size: u64,
    /// The time of the last change, in seconds since the epoch.
    pub(crate) mtime_secs: f64,
    /// The nanoseconds of the last change's time.
    pub(crate) mtime_nanos: i64,
}

impl Entry {
    /// The mode in the form of `ls -l`.
    pub(crate) fn mode_text(&self) -> String {
        let kind = match FileType::from_raw_mode(self.mode) {
            FileType::Directory => 'd',
            FileType::Symlink => 'l',
            FileType::BlockDevice => 'b',
            FileType::CharacterDevice => 'c',
            FileType::Fifo => 'p',
            FileType::Socket => 's',
            _ => '-',
        };
        let bit = |mask: u32, letter: char| if self.mode & mask == 0 { '-' } else { letter };
        let mut text = String::from(kind);
        for shift in [6, 3, 0] {
            text.push(bit(0o4 << shift, 'r'));
            text.push(bit(0o2 << shift, 'w'));
            text.push(bit(0o1 << shift, 'x'));
        }
        text
    }
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileChunk {
    /// The size of the whole file.
    pub(crate) size: u64,
    /// The requested bytes, as far as the file has them.
    pub(crate) data: Vec<u8>,
    /// The id of the file. It survives renames, and a later file with the same inode number has another id.
    pub(crate) file_id: u64,
}

fn file_id(found: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let since = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).ok();
    // Without a time of birth the inode number alone must suffice.
    let born = found.created().ok().and_then(since).unwrap_or_default();
    let born = born.as_secs().wrapping_mul(1_000_000_000) ^ u64::from(born.subsec_nanos());
    found.ino().rotate_left(32) ^ born
}

/// The sandboxes of one agent, as visible to a reader.
#[derive(Clone, Debug)]
pub(crate) struct Sandboxes {
    layout: Layout,
    agent: Option<AgentId>,
    /// The reader whose rights are checked for each owner on disk; `None` if they were checked before, or everything is
    /// allowed.
    reader: Option<Approver>,
    /// The future owner of the requested sandbox, which may not exist yet; `None` if unknown.
    launched_as: Option<String>,
}

/// The run that a path names, which may have no sandbox yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NamedRun {
    pub(crate) framework: FrameworkId,
    pub(crate) executor: ExecutorId,
    /// The container of the run; `None` for the newest run.
    pub(crate) container: Option<ContainerId>,
}

/// A path, split into the sandbox and the path beneath it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Located {
    sandbox: PathBuf,
    beneath: PathBuf,
}

impl Sandboxes {
    pub(crate) fn new(layout: Layout, agent: Option<AgentId>) -> Self {
        Self {
            layout,
            agent,
            reader: None,
            launched_as: None,
        }
    }

    /// Restricts the sandboxes to a reader with rights for certain users: the owner of each opened file and of each
    /// folder on the path counts. For a missing sandbox, the user of its run's launch counts, if that is known.
    pub(crate) fn read_by(self, reader: Approver, launched_as: Option<String>) -> Self {
        Self {
            reader: Some(reader),
            launched_as,
            ..self
        }
    }

    /// The run of a path's sandbox.
    pub(crate) fn run(&self, path: &str) -> Option<NamedRun> {
        let (_, run, _) = self.resolve(path).ok()?;
        Some(run)
    }

    /// Resolves a path, if the reader may read its sandbox.
    fn enter(&self, path: &str) -> Result<Located, FilesError> {
        let located = self.locate(path);
        if self.reader.is_some() {
            let folder = located.as_ref().ok().map(open_sandbox);
            let owner = folder.and_then(|folder| rustix::fs::fstat(folder.ok()?).ok());
            match owner {
                Some(owner) => self.allow_owner(owner.st_uid)?,
                None => self.allow(self.launched_as.as_deref())?,
            }
        }
        located
    }

    /// Checks that the reader may read the sandboxes of this user.
    fn allow(&self, user: Option<&str>) -> Result<(), FilesError> {
        let Some(reader) = &self.reader else {
            return Ok(());
        };
        let allowed = reader.check(Action::AccessSandbox, user);
        let conceal = |forbidden| permission::conceal(forbidden, reader, user);
        allowed.map_err(conceal).map_err(FilesError::Forbidden)
    }

    fn allow_owner(&self, owner: u32) -> Result<(), FilesError> {
        self.allow(Some(&user_name(owner)))
    }

    /// Checks that the reader may read the sandboxes of the owners of an opened file and of all folders on its path: a
    /// group's tasks may run as different users.
    fn allow_opened(&self, located: &Located, opened: &OwnedFd) -> Result<(), FilesError> {
        if self.reader.is_none() {
            return Ok(());
        }
        let root = open_sandbox(located)?;
        let path = path_of(opened).map_err(FilesError::Io)?;
        let root_path = path_of(&root).map_err(FilesError::Io)?;
        // A file that was moved or removed meanwhile has no such path.
        let beneath = path.strip_prefix(&root_path);
        let beneath = beneath.map_err(|_| FilesError::NotFound)?;
        let mut owners = std::collections::BTreeSet::new();
        for folder in beneath.ancestors().skip(1) {
            if folder.as_os_str().is_empty() {
                break;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let folder = rustix::fs::openat2(&root, folder, flags, Mode::empty(), resolve)?;
            owners.extend(owner_of(&folder)?);
        }
        owners.extend(owner_of(opened)?);
        owners.into_iter().try_for_each(|uid| self.allow_owner(uid))
    }

    /// Lists the entries of a folder.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Entry>, FilesError> {
        let located = self.enter(path)?;
        let folder = open_beneath(&located, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.allow_opened(&located, &folder)?;
        let prefix = path.trim_end_matches('/');
        let entries_max = LISTED_BYTES_MAX / (prefix.len() + NAME_BYTES_MAX);
        let entries_max = entries_max.clamp(1, ENTRIES_MAX);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            names.push(entry.file_name().to_owned());
            if names.len() >= entries_max {
                break;
            }
        }
        names.sort_unstable();
        let mut users = Names::default();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            // Entries that vanished meanwhile are not listed.
            if let Ok(stat) = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                let path = format!("{prefix}/{}", name.to_string_lossy());
                entries.push(users.entry(path, &stat));
            }
        }
        Ok(entries)
    }

    /// Reads up to [`READ_BYTES_MAX`] of a file's bytes.
    pub(crate) fn read(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileChunk, FilesError> {
        let (file, size) = self.open(path)?;
        let file_id = file_id(&file.metadata().map_err(FilesError::Io)?);
        let requested_bytes = length.unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
        let left = size.saturating_sub(offset);
        let mut data = vec![0; usize::try_from(requested_bytes.min(left)).unwrap_or(0)];
        let mut filled = 0;
        while let Some(rest) = data.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
            match file.read_at(rest, at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FilesError::Io(error)),
            }
        }
        data.truncate(filled);
        Ok(FileChunk {
            size,
            data,
            file_id,
        })
    }

    /// Opens a regular file and returns its size.
    pub(crate) fn open(&self, path: &str) -> Result<(File, u64), FilesError> {
        let located = self.enter(path)?;
        // Checked before it is opened for reading: opening a device may have effects.
        check_regular(&open_beneath(&located, OFlags::PATH)?)?;
        let file = open_beneath(&located, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let size = check_regular(&file)?;
        check_owner(&located, &file)?;
        self.allow_opened(&located, &file)?;
        Ok((File::from(file), size))
    }

    fn locate(&self, path: &str) -> Result<Located, FilesError> {
        let (agent, named, beneath) = self.resolve(path)?;
        let run = RunKey {
            agent,
            framework: named.framework,
            executor: named.executor,
            container: named.container.ok_or(FilesError::NotFound)?,
        };
        Ok(Located {
            sandbox: self.layout.sandbox(&run),
            beneath,
        })
    }

    /// The agent and the run that a path names, with the id of the newest run if there is one, and the path beneath it.
    fn resolve(&self, path: &str) -> Result<(AgentId, NamedRun, PathBuf), FilesError> {
        let (agent, rest) = self.split_agent(path)?;
        let (mut named, beneath) = split_run(&rest).ok_or(FilesError::NotFound)?;
        if named.container.is_none() {
            named.container = self.latest(&agent, &named);
        }
        Ok((agent, named, beneath))
    }

    /// The agent of a path, and the path after its id.
    fn split_agent(&self, path: &str) -> Result<(AgentId, String), FilesError> {
        let real = self.layout.work_dir().join("slaves");
        match Path::new(path).strip_prefix(&real) {
            Ok(rest) => {
                let mut parts = rest.to_str().ok_or(FilesError::NotFound)?.splitn(2, '/');
                let agent = parts.next().unwrap_or_default();
                let agent = AgentId::new(agent).map_err(|_| FilesError::NotFound)?;
                Ok((agent, parts.next().unwrap_or_default().to_owned()))
            }
            Err(_) => {
                let agent = self.agent.clone().ok_or(FilesError::NotFound)?;
                Ok((agent, path.trim_start_matches('/').to_owned()))
            }
        }
    }

    /// The newest run of an executor, by the link to it.
    fn latest(&self, agent: &AgentId, named: &NamedRun) -> Option<ContainerId> {
        let key = RunKey {
            agent: agent.clone(),
            framework: named.framework.clone(),
            executor: named.executor.clone(),
            // Any id suffices to find the folder of all runs.
            container: ContainerId::new("x").ok()?,
        };
        let link = self.layout.sandbox_runs(&key).join("latest");
        let target = std::fs::read_link(link).ok()?;
        ContainerId::new(target.to_str()?).ok()
    }
}

/// Splits `frameworks/F/executors/E/runs/R/...`, or the older `framework/F/executor/E/latest/...`.
fn split_run(path: &str) -> Option<(NamedRun, PathBuf)> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let plural = match parts.next()? {
        "frameworks" => true,
        "framework" => false,
        _ => return None,
    };
    let framework = FrameworkId::new(parts.next()?).ok()?;
    if parts.next()? != if plural { "executors" } else { "executor" } {
        return None;
    }
    let executor = ExecutorId::new(parts.next()?).ok()?;
    if plural && parts.next()? != "runs" {
        return None;
    }
    let container = match parts.next()? {
        "latest" => None,
        run => Some(ContainerId::new(run).ok()?),
    };
    let named = NamedRun {
        framework,
        executor,
        container,
    };
    Some((named, parts.collect()))
}

fn open_sandbox(located: &Located) -> Result<OwnedFd, FilesError> {
    Ok(rustix::fs::open(
        &located.sandbox,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The owner of an entry; `None` for a folder of the agent that only contains those of tasks, such as `containers` and
/// `tasks`.
fn owner_of(opened: &OwnedFd) -> Result<Option<u32>, FilesError> {
    let stat = rustix::fs::fstat(opened)?;
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let is_open = stat.st_mode & 0o777 == PASSAGE_MODE;
    let is_agents = stat.st_uid == rustix::process::geteuid().as_raw();
    Ok((!(is_folder && is_open && is_agents)).then_some(stat.st_uid))
}

/// The mode of folders in a sandbox that contain those of nested containers.
const PASSAGE_MODE: u32 = 0o755;

fn open_beneath(located: &Located, flags: OFlags) -> Result<OwnedFd, FilesError> {
    let root = open_sandbox(located)?;
    let beneath = if located.beneath.as_os_str().is_empty() {
        Path::new(".")
    } else {
        &located.beneath
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // During a rename the kernel requests another attempt.
    const TRIES: usize = 16;
    for _ in 0..TRIES {
        let flags = flags | OFlags::CLOEXEC;
        match rustix::fs::openat2(root.as_fd(), beneath, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN) => {}
            opened => return opened.map_err(FilesError::from),
        }
    }
    Err(FilesError::NotFound)
}

fn check_regular(file: &OwnedFd) -> Result<u64, FilesError> {
    let stat = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => Err(FilesError::IsDirectory),
        _ => Err(FilesError::NotAFile),
    }
}

/// Refuses a file that belongs neither to the owner of the sandbox nor to that of its folder. Where the kernel lets
/// users link to others' files (`protected_hardlinks`), a task may have linked a file there that it cannot read itself.
fn check_owner(located: &Located, file: &OwnedFd) -> Result<(), FilesError> {
    let owner = rustix::fs::fstat(file)?.st_uid;
    let folders = [
        Path::new(""),
        located.beneath.parent().unwrap_or(Path::new("")),
    ];
    for folder in folders {
        let folder = Located {
            beneath: folder.to_owned(),
            ..located.clone()
        };
        let folder = open_beneath(&folder, OFlags::PATH | OFlags::DIRECTORY)?;
        if rustix::fs::fstat(&folder)?.st_uid == owner {
            return Ok(());
        }
    }
    Err(FilesError::NotFound)
}

/// The name of a user, or the number of a user without a name.
fn user_name(uid: u32) -> String {
    let known = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Names of users and groups, each looked up once.
#[derive(Debug, Default)]
struct Names {
    users: std::collections::BTreeMap<u32, String>,
    groups: std::collections::BTreeMap<u32, String>,
}

impl Names {
    fn entry(&mut self, path: String, stat: &Stat) -> Entry {
        let group = |gid: u32| {
            let known = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
            known.map_or_else(|| gid.to_string(), |group| group.name)
        };
        let users = &mut self.users;
        let groups = &mut self.groups;
        let seconds = stat.st_mtime;
        Entry {
            path,
            user: users
                .entry(stat.st_uid)
                .or_insert_with_key(|uid| user_name(*uid))
                .clone(),
            group: groups
                .entry(stat.st_gid)
                .or_insert_with_key(|gid| group(*gid))
                .clone(),
            mode: stat.st_mode,
            links: stat.st_nlink,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact")]
            mtime_secs: seconds as f64,
            mtime_nanos: seconds.saturating_mul(1_000_000_000),
        }
    }
}

#[cfg(test)]
mod tests;
