//! The disk of an agent: the production store in a directory of its own, with faults at its boundary.
//!
//! Writes wait until the disk accepts them. At a crash, a first part of the waiting writes may have reached the disk
//! without a confirmation, and the record after it in part. Invariant: confirmed writes stay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use meseta_agent::checkpoint::{
    DiskCondition, Image, Layout, LogEntry, Lsn, ReadError, Store, StoreError, Write, read,
};

/// A file system in memory, where syncing is free: the simulation fails no machine there.
const IN_MEMORY: &str = "/dev/shm";

#[derive(Debug)]
pub(crate) struct Disk {
    dir: tempfile::TempDir,
    store: Store,
    /// Writes that are not yet durable.
    unwritten: VecDeque<(Lsn, Write)>,
    /// Whether the disk accepts writes.
    pub(crate) condition: DiskCondition,
    /// The uuids of updates that are durable.
    pub(crate) updates: BTreeSet<Vec<u8>>,
    /// Uuids with a durable acknowledgement.
    pub(crate) acknowledged: BTreeSet<Vec<u8>>,
}

impl Disk {
    /// Creates an empty disk in its own directory.
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("meseta-simulation-");
        let dir = match Path::new(IN_MEMORY).is_dir() {
            true => builder.tempdir_in(IN_MEMORY)?,
            false => builder.tempdir()?,
        };
        let store = Store::open(Layout::new(dir.path()));
        Ok(Self {
            dir,
            store,
            unwritten: VecDeque::new(),
            condition: DiskCondition::default(),
            updates: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
        })
    }

    pub(crate) fn write(&mut self, lsn: Lsn, write: Write) {
        self.unwritten.push_back((lsn, write));
    }

    /// The disk answers again, before the process on it can end: it waited in the kernel for the disk.
    pub(crate) fn end_silence(&mut self) {
        if self.condition == DiskCondition::Silent {
            self.condition = DiskCondition::Writable;
        }
    }

    /// Returns the number of waiting writes.
    pub(crate) fn waiting(&self) -> usize {
        self.unwritten.len()
    }

    /// Accepts this many writes; returns the last of them, if any.
    pub(crate) fn flush(&mut self, count: usize) -> Result<Option<Lsn>, StoreError> {
        let count = count.min(self.unwritten.len());
        let batch: Vec<_> = self.unwritten.drain(..count).collect();
        self.store.commit(batch.iter().map(|(_, write)| write))?;
        for (_, write) in &batch {
            self.remember(write);
        }
        Ok(batch.last().map(|(lsn, _)| *lsn))
    }

    fn remember(&mut self, write: &Write) {
        if let Write::Log { entry, .. } = write {
            match &**entry {
                LogEntry::Update(status) => self.updates.extend(status.uuid.clone()),
                LogEntry::Acknowledged(uuid) => drop(self.acknowledged.insert(uuid.clone())),
                LogEntry::Started(_) | LogEntry::KillRequested(_) | LogEntry::Delivered(_) => {}
            }
        }
    }

    /// Ends the process. The first `kept` waiting writes had reached the disk, and with `tears` a part of the next; returns
    /// the last complete one.
    pub(crate) fn crash(
        &mut self,
        kept: usize,
        tears: Option<&mut fastrand::Rng>,
    ) -> Result<Option<Lsn>, StoreError> {
        let last = self.flush(kept)?;
        let next = self.unwritten.front().map(|(_, write)| write);
        let is_record = matches!(next, Some(Write::Log { .. } | Write::ExecutorLog { .. }));
        if let Some(rng) = tears.filter(|_| is_record) {
            let before = self.logs();
            self.store
                .commit(self.unwritten.iter().take(1).map(|(_, write)| write))?;
            self.tear(&before, rng);
        }
        self.unwritten.clear();
        Ok(last)
    }

    /// Cuts off a part of the last append; a new log exists as a whole or not at all.
    fn tear(&self, before: &BTreeMap<PathBuf, u64>, rng: &mut fastrand::Rng) {
        for (path, length) in self.logs() {
            let Some(whole) = before.get(&path).copied() else {
                if rng.bool() {
                    let _ = fs::remove_file(&path);
                }
                continue;
            };
            if length > whole
                && let Ok(file) = fs::OpenOptions::new().write(true).open(&path)
            {
                // Without an effect the record is complete, which a crash may also leave.
                let _ = file.set_len(rng.u64(whole..length));
            }
        }
    }

    /// Returns all logs with their lengths.
    fn logs(&self) -> BTreeMap<PathBuf, u64> {
        let mut logs = BTreeMap::new();
        let mut folders = vec![Layout::new(self.dir.path()).meta()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name();
                let name = name.to_string_lossy();
                match entry.metadata() {
                    Ok(found) if found.is_dir() && name != "retired" => folders.push(path),
                    Ok(found) if name.ends_with(".updates") || name.ends_with(".log") => {
                        logs.insert(path, found.len());
                    }
                    _ => {}
                }
            }
        }
        logs
    }

    /// Returns the image that the next process finds. Repairs damage, as a start does.
    pub(crate) fn read(&self) -> Result<Image, ReadError> {
        read(&Layout::new(self.dir.path()))
    }

    /// Makes the writes that a start found necessary durable.
    pub(crate) fn write_at_start(&self, first: &[Write]) -> Result<(), StoreError> {
        self.store.commit(first)
    }
}
