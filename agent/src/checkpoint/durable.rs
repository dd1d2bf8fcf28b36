//! The operations that write bytes durably.
//!
//! A [`Batch`] writes and renames immediately and records the changed folders; [`Batch::finish`] makes the changes
//! durable. Only after `finish` may the agent notify anybody. Invariants: at any moment a file has its old contents or
//! its new contents, and a log has a prefix of its records. An entry that a damaged disk changed to another file type
//! is set aside and prevents no write.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_daemon::disk_pulse::DiskPulse;
use meseta_isolators::{is_device_failure, is_disk_full, is_shortage};
use rustix::fs::OFlags;

use super::compaction;
use super::frame::{self, FrameError};

/// Owner only: checkpoints hold data that frameworks gave their tasks, including secrets.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A failure to bring bytes to the disk.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed; earlier durable data is safe.
    #[error("failed to {doing} {path}")]
    Io {
        /// The failed call, as a verb.
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel could not make written bytes durable; the content of the disk is unknown.
    #[error("failed to make {path} durable")]
    Sync {
        /// The file or folder.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A record cannot be framed.
    #[error("failed to encode the record for {path}")]
    Frame {
        /// The target file of the record.
        path: PathBuf,
        #[source]
        source: FrameError,
    },
}

impl StoreError {
    /// Whether the same write fails for ever, in any state of the disk: its names cannot be names of a file, or it is
    /// longer than any record.
    pub fn is_hopeless(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename
            ),
            Self::Frame { .. } => true,
            Self::Sync { .. } => false,
        }
    }

    /// Whether the device failed during a call that may succeed the next time.
    pub(super) fn is_device_failure(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_device_failure(source))
    }

    /// Whether the file system, or a quota on it, has no room.
    pub(super) fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_full(source))
    }

    /// Whether the failure may be temporary: the disk is full, or the agent lacks descriptors or memory.
    pub(super) fn is_out_of_resources(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_full(source) || is_shortage(source))
    }
}

pub(super) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io {
        doing,
        path,
        source,
    }
}

fn sync_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Sync { path, source }
}

fn frame_error(path: &Path) -> impl FnOnce(FrameError) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Frame { path, source }
}

/// Files that are written before the first of them is synced. The journal commits them all with the first sync, and the
/// later syncs find little to do. Also bounds the open descriptors.
const UNSETTLED_MAX: usize = 64;

/// Changes that become durable together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    dirs: BTreeSet<PathBuf>,
    logs: BTreeSet<PathBuf>,
    /// Files that are written, but neither synced nor in place.
    unsettled: VecDeque<Unsettled>,
    /// The counter of answers from the disk.
    pulse: DiskPulse,
}

#[derive(Debug)]
struct Unsettled {
    file: File,
    tmp: PathBuf,
    path: PathBuf,
}

impl Batch {
    /// Creates an empty batch that reports each answer of the disk to this pulse.
    pub(super) fn with_pulse(pulse: DiskPulse) -> Self {
        Self {
            pulse,
            ..Self::default()
        }
    }

    /// Makes a folder and its missing parents.
    pub(super) fn make_dir(&mut self, path: &Path) -> Result<(), StoreError> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_dir(parent)?;
            self.dirs.insert(parent.to_owned());
        }
        let create = || fs::DirBuilder::new().mode(DIR_MODE).create(path);
        let created = match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match is_something_else(path).map_err(io_error("look at", path))? {
                    true => {
                        put_aside(path)?;
                        create()
                    }
                    false => Ok(()),
                }
            }
            created => created,
        };
        created.map_err(io_error("create the folder", path))
    }

    /// Replaces a file's contents.
    pub(super) fn write_file(&mut self, path: &Path, body: &[u8]) -> Result<(), StoreError> {
        let bytes = frame::encode_file(body).map_err(frame_error(path))?;
        self.begin_file(path, &bytes)
    }

    /// Writes a file that gets its name when it is synced, after the files written before it. A log therefore never
    /// exists without the record it belongs to, nor without its own beginning.
    fn begin_file(&mut self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        self.make_dir(dir)?;
        let tmp = tmp_beside(path);
        let repeated = |unsettled: &Unsettled| unsettled.path == path;
        if self.unsettled.len() >= UNSETTLED_MAX || self.unsettled.iter().any(repeated) {
            self.settle()?;
        }
        remove_if_there(&tmp)?;
        let mut file = match create_new(&tmp) {
            // The unsettled files of this batch may cause the shortage.
            Err(error) if is_shortage(&error) && !self.unsettled.is_empty() => {
                self.settle()?;
                create_new(&tmp)
            }
            created => created,
        }
        .map_err(io_error("create", &tmp))?;
        file.write_all(bytes).map_err(io_error("write", &tmp))?;
        self.pulse.beat();
        self.dirs.insert(dir.to_owned());
        self.unsettled.push_back(Unsettled {
            file,
            tmp,
            path: path.to_owned(),
        });
        Ok(())
    }

    /// Syncs the written files, then puts them in place. May be called again after an error.
    fn settle(&mut self) -> Result<(), StoreError> {
        sync_all(&self.unsettled, |unsettled| {
            let synced = unsettled.file.sync_all();
            self.pulse.beat();
            synced.map_err(sync_error(&unsettled.tmp))
        })?;
        while let Some(Unsettled { tmp, path, .. }) = self.unsettled.front() {
            rename_into_place(tmp, path)?;
            self.pulse.beat();
            self.unsettled.pop_front();
        }
        Ok(())
    }

    /// Appends records to a log, and creates a missing log. A failed write leaves no part of the records.
    pub(super) fn append(&mut self, path: &Path, bodies: &[Vec<u8>]) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        for body in bodies {
            frame::encode_record(body, &mut bytes).map_err(frame_error(path))?;
        }
        let mut begun = self.unsettled.iter();
        if let Some(begun) = begun.find(|unsettled| unsettled.path == path) {
            return append_to(&begun.file, &begun.tmp, &bytes).map(drop);
        }
        self.make_dir(path.parent().unwrap_or(Path::new("/")))?;
        let Some(file) = open_log(path)? else {
            let bytes = [&frame::log_header()[..], &bytes[..]].concat();
            return self.begin_file(path, &bytes);
        };
        let before = append_to(&file, path, &bytes)?;
        self.logs.insert(path.to_owned());
        let after = before.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if compaction::is_due(before, after) {
            self.shorten(path);
        }
        Ok(())
    }

    /// Compacts a log. A log that cannot be compacted now stays unchanged.
    fn shorten(&mut self, path: &Path) {
        let short = match fs::read(path).map(|log| compaction::shortened(&log)) {
            Ok(Some(Ok(short))) => short,
            Ok(None) => return,
            Ok(Some(Err(error))) => {
                return tracing::warn!(path = %path.display(), %error, "failed to shorten a log");
            }
            Err(error) => {
                return tracing::warn!(path = %path.display(), %error, "failed to shorten a log");
            }
        };
        let tmp = tmp_beside(path);
        let written = remove_if_there(&tmp).and_then(|()| {
            let mut file = create_new(&tmp).map_err(io_error("create", &tmp))?;
            file.write_all(&short).map_err(io_error("write", &tmp))?;
            file.sync_all().map_err(io_error("sync", &tmp))?;
            // Later appends go to the shorter log.
            rename_into_place(&tmp, path)
        });
        match written {
            Ok(()) => self.dirs.extend(path.parent().map(Path::to_owned)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "failed to shorten a log");
                let _ = fs::remove_file(&tmp);
            }
        }
    }

    /// Creates a symbolic link, or replaces an older link.
    pub(super) fn link(&mut self, path: &Path, target: &Path) -> Result<(), StoreError> {
        self.settle()?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        self.make_dir(dir)?;
        let tmp = tmp_beside(path);
        remove_if_there(&tmp)?;
        std::os::unix::fs::symlink(target, &tmp).map_err(io_error("link", &tmp))?;
        rename_into_place(&tmp, path)?;
        self.dirs.insert(dir.to_owned());
        Ok(())
    }

    /// Removes a file; a missing file is no error.
    pub(super) fn remove_file(&mut self, path: &Path) -> Result<(), StoreError> {
        self.settle()?;
        remove_if_there(path)?;
        if let Some(dir) = path.parent() {
            self.dirs.insert(dir.to_owned());
        }
        Ok(())
    }

    /// Moves a tree elsewhere; a missing tree is no error.
    pub(super) fn move_away(&mut self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.settle()?;
        if let Some(parent) = to.parent() {
            self.make_dir(parent)?;
        }
        match fs::rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if is_of_another_kind(&error) => {
                // An entry left over from an earlier move is retired too.
                remove_anything(to)?;
                fs::rename(from, to).map_err(io_error("move away", from))
            }
            Err(error) => Err(io_error("move away", from)(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Notes a log that other code has written to.
    pub(super) fn touch_log(&mut self, log: &Path) {
        self.logs.insert(log.to_owned());
    }

    /// Notes a folder whose entries other code has changed.
    pub(super) fn touch_dir(&mut self, dir: &Path) {
        self.dirs.insert(dir.to_owned());
    }

    /// Makes everything durable. May be called again after any error except [`StoreError::Sync`].
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        self.settle()?;
        sync_all(&self.logs, |log| {
            let synced = sync_log(log);
            self.pulse.beat();
            synced
        })?;
        self.logs.clear();
        sync_all(&self.dirs, |dir| {
            let synced = sync_dir(dir);
            self.pulse.beat();
            synced
        })?;
        self.dirs.clear();
        Ok(())
    }
}

/// Concurrent syncs: a journal commits simultaneous requests together.
const SYNCS_AT_ONCE: usize = 16;
/// Up to this number of syncs, separate threads are not worthwhile.
const SYNCS_ALONE_MAX: usize = 2;

fn sync_all<'a, T: Sync + 'a>(
    items: impl IntoIterator<Item = &'a T>,
    sync: impl Fn(&T) -> Result<(), StoreError> + Sync,
) -> Result<(), StoreError> {
    let items: Vec<&T> = items.into_iter().collect();
    if items.len() <= SYNCS_ALONE_MAX {
        return items.into_iter().try_for_each(&sync);
    }
    let share = items.len().div_ceil(SYNCS_AT_ONCE);
    let sync = &sync;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .chunks(share)
            .map(|share| {
                let work = move || share.iter().copied().try_for_each(sync);
                // Without memory for a thread this thread does the work itself.
                let thread = std::thread::Builder::new().spawn_scoped(scope, work);
                thread.map_err(|_| work())
            })
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let thread = match thread {
                Ok(thread) => thread,
                Err(synced) => {
                    outcome = outcome.and(synced);
                    continue;
                }
            };
            // A thread that panicked has certainly synced nothing.
            let synced = thread.join().unwrap_or_else(|_| {
                let source = io::Error::other("a thread panicked");
                Err(StoreError::Sync {
                    path: PathBuf::new(),
                    source,
                })
            });
            outcome = outcome.and(synced);
        }
        outcome
    })
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .custom_flags(libc_nofollow())
        .open(path)
}

/// Attempts to open a file or folder for its sync during a shortage of descriptors. Between the attempts is a pause, in
/// which the concurrent syncs return their descriptors.
const OPEN_ATTEMPTS: u32 = 50;
const OPEN_AGAIN: Duration = Duration::from_millis(20);

fn open_to_sync(path: &Path) -> io::Result<File> {
    for _ in 1..OPEN_ATTEMPTS {
        match File::open(path) {
            Err(error) if is_shortage(&error) => std::thread::sleep(OPEN_AGAIN),
            opened => return opened,
        }
    }
    File::open(path)
}

fn sync_log(log: &Path) -> Result<(), StoreError> {
    match open_to_sync(log) {
        Ok(file) => file.sync_data().map_err(sync_error(log)),
        // The log may have been removed with its run, in the same batch.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The open failed, for example for lack of a descriptor: the written bytes are still unsynced.
        Err(error) => Err(io_error("open", log)(error)),
    }
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    match open_to_sync(dir) {
        Ok(file) => {
            // After its shutdown XFS syncs a folder without an error, having nothing to sync. A query of the folder's
            // metadata returns the error.
            let synced = file.sync_all().and_then(|()| file.metadata());
            synced.map(drop).map_err(sync_error(dir))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("open", dir)(error)),
    }
}

/// Cuts off the torn tail of a log. Keeps the removed bytes in a file beside it as evidence, if there is room.
pub(super) fn cut_tail(path: &Path, valid_bytes: usize, tail: &[u8]) -> Result<(), StoreError> {
    let evidence = path.with_extension("torn");
    if let Err(error) = fs::write(&evidence, tail) {
        tracing::warn!(path = %evidence.display(), %error, "failed to keep the torn tail of a log");
    }
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(io_error("open", path))?;
    let length = u64::try_from(valid_bytes).unwrap_or(u64::MAX);
    file.set_len(length).map_err(io_error("truncate", path))?;
    file.sync_all().map_err(sync_error(path))
}

fn tmp_beside(path: &Path) -> PathBuf {
    hidden_beside(path, ".tmp")
}

fn hidden_beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(ending);
    path.with_file_name(name)
}

fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if is_of_another_kind(&error) => remove_anything(path),
        removed => removed.map_err(io_error("remove", path)),
    }
}

/// Whether a file is in the place of a folder, or the other way round.
fn is_of_another_kind(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
    matches!(
        error.kind(),
        AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory
    )
}

/// Whether the entry is not a folder: a file, or a link without a target. An error of the disk is returned as such.
fn is_something_else(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(!found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Removes an entry of any kind.
fn remove_anything(path: &Path) -> Result<(), StoreError> {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let removed = match is_dir {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(io_error("remove", path)),
    }
}

/// Sets aside the entry in the way of a record, in the same folder. Replaces an entry that was set aside earlier.
fn put_aside(path: &Path) -> Result<(), StoreError> {
    let aside = hidden_beside(path, ".damaged");
    tracing::error!(
        path = %path.display(), aside = %aside.display(),
        "a checkpoint path has the wrong file type; moving it aside"
    );
    remove_anything(&aside)?;
    fs::rename(path, &aside).map_err(io_error("put aside", path))
}

fn rename_into_place(new: &Path, path: &Path) -> Result<(), StoreError> {
    let renamed = match fs::rename(new, path) {
        Err(error) if is_of_another_kind(&error) => {
            put_aside(path)?;
            fs::rename(new, path)
        }
        renamed => renamed,
    };
    renamed.map_err(io_error("rename into place", path))
}

/// Appends bytes to a log and returns its former length. A failed append leaves no part.
fn append_to(file: &File, path: &Path, bytes: &[u8]) -> Result<u64, StoreError> {
    let before = file.metadata().map_err(io_error("stat", path))?.len();
    if let Err(source) = file.write_all_at(bytes, before) {
        file.set_len(before).map_err(sync_error(path))?;
        return Err(io_error("append to", path)(source));
    }
    Ok(before)
}

/// Opens a log for appending. Returns `None` if the log must be begun, as a missing or empty one. Sets aside an entry
/// of another kind.
fn open_log(path: &Path) -> Result<Option<File>, StoreError> {
    // With these flags opening a pipe does not block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let open = || {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags).open(path)
    };
    let is_something_else = || {
        let found = fs::symlink_metadata(path);
        found.is_ok_and(|found| !found.is_file())
    };
    let opened = match open() {
        Err(_) if is_something_else() => {
            put_aside(path)?;
            open()
        }
        opened => opened,
    };
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io_error("open", path))?,
    };
    let found = file.metadata().map_err(io_error("stat", path))?;
    Ok((found.len() > 0).then_some(file))
}

pub(super) fn libc_nofollow() -> i32 {
    i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_lookup_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").expect("written");
        std::os::unix::fs::symlink("nowhere", at("dangling")).expect("made");
        std::os::unix::fs::symlink("loop", at("loop")).expect("made");
        assert!(!is_something_else(dir.path()).expect("a folder"));
        for name in ["file", "dangling", "loop"] {
            assert!(is_something_else(&at(name)).expect("it is there"), "{name}");
        }
        // Imitates a failing disk: the name is longer than any file system allows.
        assert!(is_something_else(&at(&"n".repeat(4096))).is_err());
    }

    /// A power cut may leave a file in the place of a folder, or the other way round.
    #[test]
    fn move_and_write_replace_existing_entries() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |name: &str, is_folder: bool| {
            let path = dir.path().join(name);
            if is_folder {
                fs::create_dir(&path).expect("made");
            }
            let file = if is_folder {
                path.join("f")
            } else {
                path.clone()
            };
            fs::write(file, name).expect("written");
            path
        };
        let kinds = [(true, true), (true, false), (false, true), (false, false)];
        for (at, (is_folder, was_folder)) in kinds.into_iter().enumerate() {
            let from = make(&format!("from-{at}"), is_folder);
            let to = make(&format!("to-{at}"), was_folder);
            let moved = Batch::default().move_away(&from, &to);
            moved.expect("moved");
            assert!(!from.exists() && to.is_dir() == is_folder, "{at}");
        }
        for was_folder in [true, false] {
            let path = make(&format!("record-{was_folder}"), was_folder);
            let mut batch = Batch::default();
            batch.write_file(&path, b"record").expect("written");
            batch.finish().expect("durable");
            assert!(path.is_file());
            let path = make(&format!("gone-{was_folder}"), was_folder);
            remove_if_there(&path).expect("removed");
            assert!(!path.exists());
        }
    }

    /// Regression: after a kill of the agent between both writes, the folder of the run stayed for ever.
    #[test]
    fn log_never_appears_before_its_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let [record, log, other] =
            ["t/task.info", "t/task.updates", "u/task.info"].map(|name| dir.path().join(name));
        let mut batch = Batch::default();
        batch.write_file(&other, b"other").expect("written");
        batch.write_file(&record, b"record").expect("written");
        assert!(!record.exists(), "in place with the rest of the batch");
        batch.append(&log, &[b"entry".to_vec()]).expect("appended");
        assert!(!log.exists(), "nor is the log");
        batch.append(&log, &[b"more".to_vec()]).expect("appended");
        batch.write_file(&other, b"again").expect("written");
        assert!(record.exists() && log.exists());
        batch.append(&log, &[b"last".to_vec()]).expect("appended");
        assert_eq!(batch.unsettled.len(), 1, "what is there is appended to");
        batch.finish().expect("durable");
        let bytes = fs::read(&log).expect("there");
        let contents = frame::decode_log(&bytes).expect("a log");
        assert_eq!(contents.bodies, [&b"entry"[..], b"more", b"last"]);
    }
}
