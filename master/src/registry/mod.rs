//! The registry: the state that a restarted master needs.
//!
//! Entered through [`open`]. A [`Registry`] accepts mutations in order and reports, in order, up to which mutation
//! everything is durable. Invariant: a failed write never goes unnoticed; it ends the process, because no later
//! promise could be kept.
//!
//! `tools` and `etcd` know each other: the tools also read and fill a registry in etcd, with the same result types
//! and errors as for a file.

mod content;
mod embedded;
pub(crate) mod etcd;
mod export;
mod image;
mod memory;
#[cfg(test)]
mod recorded;
mod records;
mod tools;

use std::path::{Path, PathBuf};

use meseta_daemon::database_file;
use meseta_daemon::disk_pulse::DiskPulse;

use crate::core::{Lsn, Mutation, Recovered};

pub use embedded::Embedded;
pub use image::{DamagedRecord, Image, ImageError};
pub use memory::InMemory;
#[cfg(test)]
pub(crate) use records::read_back;
pub use tools::{Inspected, Store, ToolError};

/// The number of mutations that may wait for the writer before further commands wait. Above the core's limit of
/// pending mutations per command; a command about very many agents or frameworks may exceed it.
pub const QUEUE_MAX: usize = 16_384;

/// The writer's callback with the last durable mutation.
pub type OnPersisted = Box<dyn Fn(Lsn) + Send>;

/// The store of the registry's mutations.
pub trait Registry: Send + std::fmt::Debug {
    /// Queues a mutation without waiting. [`OnPersisted`] reports its durability later.
    fn persist(&mut self, lsn: Lsn, mutation: Mutation);

    /// Writes all queued mutations and returns when they are durable.
    fn close(self: Box<Self>);
}

/// The registry to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Embedded { work_dir: PathBuf },
    InMemory,
}

/// The reason why a registry cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the registry {path} is in use by another process: give this master another --work_dir"
    )]
    InUse { path: PathBuf },
    #[error("failed to open, read or write the registry {path}: {cure}", cure = database_file::cure(source))]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to open the registry {path}: {cure}", cure = CURE)]
    Open {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("failed to read the registry {path}: {cure}", cure = CURE)]
    Read {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("the registry {path} is damaged and cannot be read: {cure}", cure = CURE)]
    Unreadable { path: PathBuf },
    #[error("the registry {path} has a damaged record {key:?}: {cure}", cure = CURE)]
    Damaged {
        path: PathBuf,
        key: String,
        #[source]
        source: prost::DecodeError,
    },
    #[error(
        "the registry {path} was written in format {found}; this master knows formats up to \
         {known}: start the newer version that wrote it"
    )]
    Newer {
        path: PathBuf,
        found: u32,
        known: u32,
    },
    #[error(
        "the registry {path} is damaged: it has {found} records instead of the {kept} that were \
         written last; restore a copy of the file, or move it and {marker} away to start with an \
         empty registry: agents then register again, and you must set quota, weights and \
         maintenance again"
    )]
    Incomplete {
        path: PathBuf,
        marker: PathBuf,
        found: u64,
        kept: u64,
    },
    #[error(
        "the registry {path} is empty or missing, and {marker} shows that it existed; restore a \
         copy of the file, or move the marker away to start with an empty registry: agents then \
         register again, and you must set quota, weights and maintenance again"
    )]
    Lost { path: PathBuf, marker: PathBuf },
    #[error(
        "the registry {path} does not match its marker {marker}: restore the right file, or move \
         the marker away if this file is right"
    )]
    Another { path: PathBuf, marker: PathBuf },
    #[error("failed to read or write {marker}, the marker of the registry")]
    Marker {
        marker: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "a registry exists already at {path}, and the import would replace it: give another \
         --work_dir, or \
         move registry.redb and registry.id away"
    )]
    NotEmpty { path: PathBuf },
    #[error("failed to start the registry's writer")]
    Spawn(#[source] std::io::Error),
}

/// The files that a master without etcd stores in its work directory.
pub(crate) const FILES: [&str; 4] = [
    "registry.redb",
    "registry.id",
    "registry.id.tmp",
    "registry.probe",
];

/// The remedy for an unusable file.
const CURE: &str = "restore a copy of the file, or move it and its marker (registry.id) away to \
    start with an empty registry: agents then register again, and you must set quota, weights \
    and maintenance again";

/// Opens a registry as a new start of the master: the epoch rises by one. `pulse` reports whether the disk responds,
/// if the registry is on a disk.
pub fn open(
    kind: &Kind,
    pulse: DiskPulse,
    on_persisted: OnPersisted,
) -> Result<(Recovered, Box<dyn Registry>), OpenError> {
    match kind {
        Kind::InMemory => {
            let (recovered, registry) = InMemory::open(on_persisted);
            Ok((recovered, Box::new(registry)))
        }
        Kind::Embedded { work_dir } => {
            let (recovered, registry) =
                Embedded::open(&registry_path(work_dir), pulse, on_persisted)?;
            Ok((recovered, Box::new(registry)))
        }
    }
}

/// The path of the embedded registry in a work directory.
#[must_use]
pub fn registry_path(work_dir: &Path) -> PathBuf {
    work_dir.join("registry.redb")
}
