//! The agent's directories: created, locked and named.
//!
//! Invariant: the modes are those of this file, for any umask of the agent. Tasks can traverse the folders above their
//! sandbox, but list none of them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_daemon::work_dir::local_address;
use meseta_isolators::is_disk_full;
use meseta_resources::HostPort;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use crate::checkpoint::Layout;
use crate::checkpoint::disk_room::release_reserve;
use crate::configuration::flags::Flags;
use crate::folders::{PASSAGE_MODE, make_missing, make_passage};

/// The root of all runtime folders, emptied by a boot.
const RUNTIME_ROOT: &str = "/run/meseta";

/// The mode of folders for the agent alone.
const PRIVATE_DIR_MODE: u32 = 0o700;
const PRIVATE_FILE_MODE: u32 = 0o600;
/// The prefix of the names of such folders.
pub(crate) const INSTANCE_PREFIX: &str = "agent-";
/// The file that an agent locks in the folder of its containers.
pub(crate) const INSTANCE_LOCK: &str = "agent.lock";
/// The file with the agent's port in that folder. It identifies the containers that an agent leaves behind, also after
/// its end.
pub(crate) const INSTANCE_PORT: &str = "agent.port";
/// The mode of the file with the agent's address.
const ENDPOINT_MODE: u32 = 0o644;
/// The pause between two attempts at a full disk.
pub(crate) const DISK_FULL_RETRY: Duration = Duration::from_secs(1);

/// The longest wait for the lock of a killed agent, and the pause between two attempts.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The reason why a directory of the agent is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be created or written.
    #[error("failed to {doing} {path}: give a directory that this user can write (--{flag})")]
    Unusable {
        doing: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The flag that names the directory.
        flag: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Two agents use one work directory, or a copy of it.
    #[error("{path} is in use by another agent: give each agent its own --work_dir, not a copy")]
    InUse { path: PathBuf },
}

/// Prepares a work directory and locks it for this agent, which holds the directory as long as the returned file.
/// Nothing is written to another agent's directory; above all, its disk reserve is not released.
pub(crate) fn take_work_dir(work_dir: &Path) -> Result<(Layout, File), DirectoryError> {
    let layout = prepare_work_dir(work_dir)?;
    let lock = lock(&layout)?;
    check_writable(&layout)?;
    Ok((layout, lock))
}

/// Builds the error for a failed operation on a file or folder of the work directory.
fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError + use<> {
    let path = path.to_owned();
    move |source| DirectoryError::Unusable {
        doing,
        path,
        flag: "work_dir",
        source,
    }
}

fn prepare_work_dir(work_dir: &Path) -> Result<Layout, DirectoryError> {
    make_missing(work_dir, PASSAGE_MODE).map_err(failed("create", work_dir))?;
    let work_dir = std::fs::canonicalize(work_dir).map_err(failed("find", work_dir))?;
    let layout = Layout::new(&work_dir);
    for top in [layout.sandboxes(), layout.volumes()] {
        // A folder that an earlier agent left listable becomes private.
        make_passage(&work_dir, &top).map_err(failed("create", &top))?;
    }
    let meta = layout.meta();
    // Owner only: checkpoints hold data that frameworks gave their tasks.
    make_missing(&meta, PRIVATE_DIR_MODE).map_err(failed("create", &meta))?;
    Ok(layout)
}

fn check_writable(layout: &Layout) -> Result<(), DirectoryError> {
    let meta = layout.meta();
    let probe = meta.join(".writable");
    // Writes a byte, which needs a block: an empty file needs none.
    match std::fs::write(&probe, b"w") {
        // The start writes from the reserve, or waits for space.
        Err(error) if is_disk_full(&error) => {
            warn!(path = %meta.display(), %error, "the disk is full");
            release_reserve(layout);
        }
        written => written.map_err(failed("write", &probe))?,
    }
    let _ = std::fs::remove_file(&probe);
    Ok(())
}

/// Locks the work directory for the life of the agent; the kernel always releases the lock. A process that a killed
/// agent had just begun to execute may hold it a moment longer.
fn lock(layout: &Layout) -> Result<File, DirectoryError> {
    lock_file(layout.lock(), "work_dir")
}

/// Locks the folder of the containers: an agent on a copy of a work directory would otherwise adopt the containers of
/// the other. `None` if there is no space for the file.
fn lock_instance(runtime_dir: &Path) -> Result<Option<File>, DirectoryError> {
    match lock_file(runtime_dir.join(INSTANCE_LOCK), "runtime_dir") {
        Err(DirectoryError::Unusable { path, source, .. }) if is_disk_full(&source) => {
            warn!(path = %path.display(), error = %source, "the disk has no space for a lock; \
                continuing without the lock");
            Ok(None)
        }
        locked => locked.map(Some),
    }
}

/// The folder of this agent's containers, and the lock of its owner.
#[derive(Debug)]
pub(crate) struct RuntimeFolder {
    path: PathBuf,
    /// The work directory, written into the lock to identify containers without an agent.
    work_dir: PathBuf,
    port: Option<u16>,
    lock: Option<File>,
}

impl RuntimeFolder {
    /// Creates the folder, and locks it for this agent.
    pub(crate) fn take(path: PathBuf, work_dir: &Path) -> Result<Self, DirectoryError> {
        use std::os::unix::ffi::OsStrExt as _;
        create_runtime_dir(&path)?;
        let lock = lock_instance(&path)?;
        if let Some(lock) = &lock {
            let name = work_dir.as_os_str().as_bytes();
            // The text only informs people, so a full disk does not matter.
            let _ = rewrite(lock, name);
        }
        Ok(Self {
            path,
            work_dir: work_dir.to_owned(),
            port: None,
            lock,
        })
    }

    /// Writes the agent's port into the folder, for an agent that would replace it with another work directory.
    pub(crate) fn note_port(&mut self, port: u16) {
        self.port = Some(port);
        let file = create_file(&self.path.join(INSTANCE_PORT), PRIVATE_FILE_MODE);
        // Without space for the port, the other agent warns instead of refusing.
        let _ = file.and_then(|file| rewrite(&file, port.to_string().as_bytes()));
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates and locks the folder again if others have removed the folder or its lock while the agent was running.
    /// Returns whether they had.
    pub(crate) fn restore(&mut self) -> Result<bool, DirectoryError> {
        if self.is_held() {
            return Ok(false);
        }
        let port = self.port;
        *self = Self::take(self.path.clone(), &self.work_dir)?;
        if let Some(port) = port {
            self.note_port(port);
        }
        Ok(true)
    }

    /// Whether the lock file in the folder is the locked file. A failed look counts as yes.
    fn is_held(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let Some(held) = &self.lock else {
            // There was no space for a lock file.
            return self.path.is_dir();
        };
        let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
        match std::fs::symlink_metadata(self.path.join(INSTANCE_LOCK)) {
            Ok(found) => held
                .metadata()
                .is_ok_and(|held| identity(held) == identity(found)),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

fn lock_file(path: PathBuf, flag: &'static str) -> Result<File, DirectoryError> {
    let failed = |source: std::io::Error| DirectoryError::Unusable {
        doing: "lock",
        path: path.clone(),
        flag,
        source,
    };
    let file = match create_file(&path, PRIVATE_FILE_MODE) {
        // A damaged disk may turn the file into a folder, which can be locked as well.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => File::open(&path),
        created => created,
    };
    let file = file.map_err(failed)?;
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if waited < LOCK_WAIT => {
                waited += LOCK_PAUSE;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(DirectoryError::InUse { path }),
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Opens a file and gives it exactly this mode. Keeps the content of an existing file: a lock contains its holder's
/// text.
fn create_file(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Replaces the content of a file that was just opened.
fn rewrite(mut file: &File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text)
}

pub(crate) fn endpoint_path(work_dir: &Path) -> PathBuf {
    work_dir.join("endpoint")
}

/// Publishes the port in a file. On a full disk the returned task does that as soon as there is space.
pub(crate) async fn publish_endpoint(
    work_dir: PathBuf,
    scheme: &'static str,
    address: SocketAddr,
) -> Result<Option<JoinHandle<()>>, DirectoryError> {
    let path = endpoint_path(&work_dir);
    let address = HostPort::from(local_address(address));
    let text = format!("{}\n", address.url(scheme, ""));
    match write_endpoint(&path, &text) {
        Err(error) if is_disk_full(&error) => {
            warn!(path = %path.display(), %error, "the disk is full; writing this file once \
                space is free");
        }
        written => {
            let failed = |source| DirectoryError::Unusable {
                doing: "write",
                path,
                flag: "work_dir",
                source,
            };
            return written.map(|()| None).map_err(failed);
        }
    }
    // An outdated address must not remain there.
    let _ = std::fs::remove_file(&path);
    Ok(Some(tokio::spawn(async move {
        while let Err(error) = write_endpoint(&path, &text) {
            debug!(path = %path.display(), %error, "failed to write a file; retrying");
            tokio::time::sleep(DISK_FULL_RETRY).await;
        }
    })))
}

/// Replaces the file atomically. An equal file stays, which needs no space.
fn write_endpoint(path: &Path, text: &str) -> io::Result<()> {
    let is_there = std::fs::read(path).is_ok_and(|found| found == text.as_bytes());
    if is_there {
        return std::fs::set_permissions(path, Permissions::from_mode(ENDPOINT_MODE));
    }
    let fresh = path.with_extension("new");
    create_file(&fresh, ENDPOINT_MODE)
        .and_then(|file| rewrite(&file, text.as_bytes()))
        .and_then(|()| std::fs::rename(&fresh, path))
        .inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}

/// Removes the agent's folder and the parents made for such folders, if they are empty.
pub(crate) fn remove_empty(runtime_dir: &Path) {
    for file in [INSTANCE_LOCK, INSTANCE_PORT] {
        let _ = std::fs::remove_file(runtime_dir.join(file));
    }
    let ours = |folder: &&Path| *folder == runtime_dir || folder.starts_with(RUNTIME_ROOT);
    for folder in runtime_dir.ancestors().take_while(ours) {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// The runtime directory, as an absolute path: a launcher and supervisors have other working directories.
pub(crate) fn runtime_dir(flags: &Flags, layout: &Layout, privileged: bool) -> PathBuf {
    match &flags.runtime_dir {
        Some(given) => std::path::absolute(given).unwrap_or_else(|_| given.clone()),
        None if privileged => Path::new(RUNTIME_ROOT).join("agent"),
        None => layout.work_dir().join("run"),
    }
}

/// Creates the runtime directory.
fn create_runtime_dir(runtime_dir: &Path) -> Result<(), DirectoryError> {
    make_missing(runtime_dir, PASSAGE_MODE).map_err(|source| DirectoryError::Unusable {
        doing: "create",
        path: runtime_dir.to_owned(),
        flag: "runtime_dir",
        source,
    })
}

/// The name of the agent's cgroup folder, which depends only on the work directory.
pub(crate) fn instance_of(work_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let sum = crc32fast::hash(work_dir.as_os_str().as_bytes());
    format!("{INSTANCE_PREFIX}{sum:08x}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).expect("there").mode() & 0o7777
    }

    /// Regression: no agent started with a relative directory.
    #[test]
    fn a_runtime_directory_is_absolute() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            flags: Flags,
        }
        let layout = Layout::new(Path::new("/w"));
        let of = |given: &str| {
            let arguments = ["agent", "--master=127.0.0.1:5050", given];
            let command = <Command as clap::Parser>::try_parse_from(arguments).expect("flags");
            runtime_dir(&command.flags, &layout, true)
        };
        assert_eq!(of("--runtime_dir=/run/a"), Path::new("/run/a"));
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(of("--runtime_dir=run/a"), here.join("run/a"));
    }

    #[test]
    fn modes_are_exact_and_repaired() {
        let dir = tempfile::tempdir().expect("a folder");
        let base = std::fs::canonicalize(dir.path()).expect("a path");
        let work = base.join("var/work");
        // Listable by everybody, and closed to everybody: both cases have occurred.
        std::fs::create_dir_all(work.join("slaves/S0")).expect("made");
        for (path, was) in [("slaves", 0o755), ("slaves/S0", 0o700)] {
            let was = Permissions::from_mode(was);
            std::fs::set_permissions(work.join(path), was).expect("set");
        }
        let layout = prepare_work_dir(&work).expect("usable");
        let runs = work.join("slaves/S0/frameworks/F/executors/E/runs");
        make_passage(&work, &runs).expect("made");
        let lock = lock(&layout).expect("locked");
        write_endpoint(&endpoint_path(&work), "http://127.0.0.1:1\n").expect("written");
        for path in runs.ancestors().take_while(|path| *path != work) {
            assert_eq!(mode(path), PASSAGE_MODE, "{}", path.display());
        }
        for (path, expected) in [
            ("volumes", 0o711),
            ("meta", 0o700),
            ("meta/lock", 0o600),
            ("endpoint", 0o644),
        ] {
            assert_eq!(mode(&work.join(path)), expected, "{path}");
        }
        drop(lock);
    }

    #[test]
    fn folder_as_lock_is_locked() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = prepare_work_dir(dir.path()).expect("usable");
        std::fs::create_dir(layout.meta().join("lock")).expect("made");
        let held = lock(&layout).expect("locked");
        assert!(matches!(lock(&layout), Err(DirectoryError::InUse { .. })));
        drop(held);
        lock(&layout).expect("free");
    }

    #[test]
    fn second_agent_leaves_directory_unchanged() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = take_work_dir(dir.path()).expect("ours");
        // The agent would fail if it wrote here.
        let probe = dir.path().join("meta/.writable");
        std::fs::create_dir(&probe).expect("made");
        let refused = take_work_dir(dir.path());
        assert!(
            matches!(refused, Err(DirectoryError::InUse { .. })),
            "{refused:?}"
        );
        drop(held);
        let refused = take_work_dir(dir.path());
        assert!(
            matches!(refused, Err(DirectoryError::Unusable { .. })),
            "{refused:?}"
        );
    }

    /// The second agent would destroy the containers as orphans, or both would adopt them.
    #[test]
    fn copied_work_directory_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let held = lock_instance(dir.path()).expect("locked");
        assert!(held.is_some());
        let refused = lock_instance(dir.path()).expect_err("in use");
        assert!(
            refused.to_string().contains("agent.lock is in use"),
            "{refused}"
        );
        drop(held);
        remove_empty(dir.path());
        assert!(!dir.path().exists());
        std::fs::create_dir(dir.path()).expect("made");
    }

    /// Regression: after a cleaner of `/run` or `/tmp` every launch failed until the agent was restarted.
    #[test]
    fn removed_runtime_folder_is_remade() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run/agent");
        let take = || RuntimeFolder::take(path.clone(), Path::new("/work"));
        let mut folder = take().expect("taken");
        assert!(!folder.restore().expect("held"), "nothing was removed");
        type Removed = fn(&Path);
        let removed: [Removed; 3] = [
            |path| std::fs::remove_dir_all(path.parent().expect("above")).expect("removed"),
            |path| std::fs::remove_file(path.join(INSTANCE_LOCK)).expect("removed"),
            |path| {
                std::fs::remove_file(path.join(INSTANCE_LOCK)).expect("removed");
                std::fs::write(path.join(INSTANCE_LOCK), "").expect("another");
            },
        ];
        for remove in removed {
            remove(&path);
            assert!(folder.restore().expect("made"));
            assert!(!folder.restore().expect("held"));
            let other = take();
            assert!(
                matches!(other, Err(DirectoryError::InUse { .. })),
                "{other:?}"
            );
        }
        // Another agent that has locked it by then keeps it.
        std::fs::remove_file(path.join(INSTANCE_LOCK)).expect("removed");
        let _theirs = take().expect("taken");
        let refused = folder.restore();
        assert!(
            matches!(refused, Err(DirectoryError::InUse { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn existing_folder_keeps_mode_link_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let base = std::fs::canonicalize(dir.path()).expect("a path");
        std::fs::set_permissions(&base, Permissions::from_mode(0o751)).expect("set");
        prepare_work_dir(&base).expect("usable");
        assert_eq!(mode(&base), 0o751);
        std::os::unix::fs::symlink("/", base.join("slaves/link")).expect("linked");
        let refused = make_passage(&base, &base.join("slaves/link/x"));
        assert!(refused.is_err(), "{refused:?}");
        assert!(prepare_work_dir(Path::new("/proc/x/y")).is_err());
    }
}
