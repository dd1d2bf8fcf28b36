//! `resources_and_operations.state`: what was reserved and made at run time, and what is still to be
//! told of it.
//!
//! One record, replaced whole, so that an operation and its effect are durable together. It is kept twice, in two
//! folders: what no agent can be told again is not lost with one file. Each is numbered; the newer one that can be
//! read counts, and both are durable before anybody is told. The
//! directories of volumes are made before the record that names them, and removed after the record
//! that does not; [`super::Write::RestoreVolumes`] completes what a crash cut short. Volumes on disks of their own hold
//! no checkpoint up: their directories are made and removed by other threads, and later where that fails
//! ([`super::makings`], [`super::removals`], [`make_again`]).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_isolators::beneath::Folder;
use meseta_proto::Invalid;
use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{DiskSourceKind, Resource, Resources};
use prost::Message as _;

use super::durable::{Batch, StoreError, io_error};
use super::layout::Layout;
use crate::folders::{PASSAGE_MODE, make_missing, make_passage, unless_gone};

/// The mode of a volume, whatever the umask, as in Mesos; it is given to its user when it is first used.
const VOLUME_DIR_MODE: u32 = 0o755;

/// The longest name of a file in Linux.
const NAME_BYTES_MAX: usize = 255;

/// How far below a disk's folder its volumes are: `volumes/roles/<role>/<persistence id>`.
const VOLUME_DEPTH: usize = 4;

/// What the core holds, shared with the writer.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// Dynamic reservations and persistent volumes.
    pub resources: Resources,
    /// Operations whose end is not acknowledged.
    pub operations: Vec<Arc<pb::Operation>>,
}

/// The same on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourcesRecord {
    /// See the description of [`Holdings::resources`].
    #[prost(message, repeated, tag = "1")]
    pub resources: Vec<pb::Resource>,
    /// See the description of [`Holdings::operations`].
    #[prost(message, repeated, tag = "2")]
    pub operations: Vec<pb::Operation>,
    /// Volumes that this very change destroyed: their directories go once the record is durable. On disks of their own
    /// also those of before whose data is not gone yet.
    #[prost(message, repeated, tag = "3")]
    pub destroyed: Vec<pb::Resource>,
    /// Counts the records that were written; of two the higher is the newer. 0 before there were copies.
    #[prost(uint64, tag = "4")]
    pub number: u64,
}

/// What one of the two files gave.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Record(ResourcesRecord),
    Missing,
    /// It is named elsewhere.
    Damaged,
}

/// What the record and its copy say together.
#[derive(Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) record: Option<ResourcesRecord>,
    /// Whether both are to be written again.
    pub(super) is_rewritten: bool,
    /// What is wrong with the record itself, though it is not damaged: it is written before its copy.
    pub(super) loss: Option<&'static str>,
}

/// Chooses the newer of both that could be read.
pub(super) fn choose(record: Found, copy: Found) -> Chosen {
    let number = |found: &Found| match found {
        Found::Record(record) => Some(record.number),
        Found::Missing | Found::Damaged => None,
    };
    let loss = match (&record, number(&copy)) {
        (Found::Missing, Some(_)) => Some("it is gone; its copy is read"),
        (Found::Record(old), Some(newer)) if old.number < newer => {
            Some("it is older than its copy, which is read")
        }
        _ => None,
    };
    let is_rewritten = record != copy;
    let newer = match number(&copy) > number(&record) {
        true => copy,
        false => record,
    };
    let record = match newer {
        Found::Record(record) => Some(record),
        Found::Missing | Found::Damaged => None,
    };
    Chosen {
        is_rewritten: is_rewritten && record.is_some(),
        record,
        loss,
    }
}

impl Holdings {
    pub(super) fn record(&self, destroyed: &[Resource], number: u64) -> ResourcesRecord {
        ResourcesRecord {
            resources: convert::to_resources(&self.resources, Format::PostRefinement)
                .unwrap_or_default(),
            operations: self.operations.iter().map(|one| (**one).clone()).collect(),
            destroyed: messages(destroyed),
            number,
        }
    }
}

/// Writes a record and its copy.
pub(super) fn write(
    layout: &Layout,
    record: &ResourcesRecord,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let body = record.encode_to_vec();
    batch.write_file(&layout.holdings(), &body)?;
    batch.write_file(&layout.holdings_copy(), &body)
}

/// Where a volume's data is. None of what is no volume, or lies on a device of its own.
pub fn volume_path(layout: &Layout, volume: &Resource) -> Option<PathBuf> {
    let disk = volume.disk()?;
    let persistence = disk.persistence.as_ref()?;
    let role = volume.reservation_role()?;
    let Some(source) = &disk.source else {
        return Some(layout.volume(role, &persistence.id));
    };
    // A relative root is below the work directory.
    let root = layout.work_dir().join(source.root.as_deref()?);
    match source.kind {
        DiskSourceKind::Path => Some(Layout::new(&root).volume(role, &persistence.id)),
        DiskSourceKind::Mount => Some(root),
        DiskSourceKind::Block | DiskSourceKind::Raw => None,
    }
}

/// Why no directory can be this volume's: a role's levels are one name there.
pub(crate) fn check_place(volume: &Resource) -> Result<(), Invalid> {
    let (Some(role), Some(disk)) = (volume.reservation_role(), volume.disk()) else {
        return Ok(());
    };
    let id = disk
        .persistence
        .as_ref()
        .map(|persistence| &*persistence.id);
    for (what, name) in [("role", Some(role.as_str())), ("persistence id", id)] {
        let Some(name) = name else { continue };
        if name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "no volume can be made for the {what} {}...: it has {} bytes, and the name of a directory at \
                 most {NAME_BYTES_MAX}",
                name.chars().take(32).collect::<String>().escape_debug(),
                name.len()
            ).into());
        }
        if name.contains('\0') {
            return Err(format!(
                "no volume can be made for the {what} {name:?}: the name of a directory has no NUL"
            )
            .into());
        }
    }
    Ok(())
}

/// Whether a volume lies on a disk that is not the agent's: what becomes of that concerns nobody but who has it.
pub(super) fn is_on_own_disk(volume: &Resource) -> bool {
    volume.disk().is_some_and(|disk| disk.source.is_some())
}

/// The root of the disk that a volume has of its own.
pub(super) fn disk_of(layout: &Layout, volume: &Resource) -> Option<PathBuf> {
    let source = volume.disk()?.source.as_ref()?;
    Some(layout.work_dir().join(source.root.as_deref()?))
}

/// Makes the directory of a volume on the work directory's own disk; an older one with its data is left as it is.
pub(super) fn make_volume(
    layout: &Layout,
    volume: &Resource,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let changed = make_directory(&path, false)?;
    // Not before: what cannot be made has nothing to be synced.
    changed.iter().for_each(|folder| batch.touch_dir(folder));
    Ok(())
}

/// The same of one on a disk of its own. Its changes are durable when this returns, which may be never.
pub(super) fn make_on_own_disk(layout: &Layout, volume: &Resource) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let changed = make_directory(&path, volume.is_disk_of(DiskSourceKind::Mount))?;
    changed.iter().try_for_each(|folder| sync_folder(folder))
}

/// Makes the directory of a volume on a disk of type PATH that could not be made when the volume was. One that is
/// there stays as it is, and nothing is made where the disk itself is missing.
pub(crate) fn make_again(layout: &Layout, volume: &Resource) -> Result<(), StoreError> {
    let path = volume_path(layout, volume).filter(|path| !path.is_dir());
    let path = path.filter(|_| volume.is_disk_of(DiskSourceKind::Path));
    let disk = path
        .as_deref()
        .and_then(|path| path.ancestors().nth(VOLUME_DEPTH));
    match disk.is_some_and(Path::is_dir) {
        true => make_on_own_disk(layout, volume),
        false => Ok(()),
    }
}

/// The folders that were changed for it.
fn make_directory(path: &Path, is_whole_disk: bool) -> Result<Vec<PathBuf>, StoreError> {
    let missing = path.ancestors().take_while(|folder| !folder.is_dir());
    let changed = missing.filter_map(Path::parent).map(Path::to_owned);
    let changed = changed.collect();
    if let (Some(base), Some(parent), false) = (
        path.ancestors().nth(VOLUME_DEPTH),
        path.parent(),
        is_whole_disk,
    ) {
        make_missing(base, PASSAGE_MODE)
            .and_then(|()| make_passage(base, parent))
            .map_err(io_error("create the folder", parent))?;
    }
    make_missing(path, VOLUME_DIR_MODE).map_err(io_error("create the folder", path))?;
    Ok(changed)
}

/// On a disk that is not the agent's a failed sync is an error like any other.
fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(io_error("sync", folder))
}

/// Moves the data of a volume on the work directory's own disk to a fresh place below that, emptied by others.
pub(super) fn move_volume_away(
    layout: &Layout,
    volume: &Resource,
    aside: &Path,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    batch.move_away(&path, aside)?;
    if let Some(parent) = path.parent() {
        batch.touch_dir(parent);
    }
    Ok(())
}

/// Removes the data of a volume on a disk of its own. A file system that is one as a whole stays, its contents go.
pub(super) fn remove_from_disk(path: &Path, is_whole_disk: bool) -> io::Result<()> {
    if is_whole_disk {
        return unless_gone(Folder::open(path).and_then(|folder| folder.empty()));
    }
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let removed = Folder::open(above).and_then(|above| above.remove(Path::new(name)));
    unless_gone(removed)
}

/// Volumes as they are recorded.
pub(super) fn messages(volumes: &[Resource]) -> Vec<pb::Resource> {
    let one = |volume: &Resource| convert::to_resource(volume, Format::PostRefinement);
    volumes
        .iter()
        .filter_map(|volume| one(volume).ok())
        .collect()
}

/// The persistent volumes among messages.
pub(super) fn volumes(messages: &[pb::Resource]) -> Vec<Resource> {
    messages
        .iter()
        .filter_map(|message| convert::resource(message).ok())
        .filter(Resource::is_persistent_volume)
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
