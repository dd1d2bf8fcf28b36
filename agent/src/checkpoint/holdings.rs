//! `resources_and_operations.state`: the reservations and volumes made at run time, and operations with unacknowledged
//! results.
//!
//! The agent replaces this single record as a whole, so that an operation and its effect become durable together. It
//! keeps the record twice, in two folders, since nobody can tell the agent its contents again. Each copy has a number;
//! the newest readable copy wins, and both are durable before the agent notifies anybody. The directories of volumes
//! are made before the record that names them, and removed after the record without them.
//! [`super::Write::RestoreVolumes`] completes work that a crash interrupted. Volumes on disks of their own delay no
//! checkpoint: other threads make and remove their directories, and try again later after a failure
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

/// The mode of a volume, regardless of the umask, as in Mesos. Its first use gives the volume to its user.
const VOLUME_DIR_MODE: u32 = 0o755;

/// The longest name of a file in Linux.
const NAME_BYTES_MAX: usize = 255;

/// The depth of volumes below a disk's folder: `volumes/roles/<role>/<persistence id>`.
const VOLUME_DEPTH: usize = 4;

/// The state of the core, shared with the writer.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// Dynamic reservations and persistent volumes.
    pub resources: Resources,
    /// Operations with unacknowledged results.
    pub operations: Vec<Arc<pb::Operation>>,
}

/// The holdings as a record on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourcesRecord {
    /// See the description of [`Holdings::resources`].
    #[prost(message, repeated, tag = "1")]
    pub resources: Vec<pb::Resource>,
    /// See the description of [`Holdings::operations`].
    #[prost(message, repeated, tag = "2")]
    pub operations: Vec<pb::Operation>,
    /// Volumes that this change destroyed: their directories are removed once the record is durable. For volumes on
    /// disks of their own, also earlier ones whose data still exists.
    #[prost(message, repeated, tag = "3")]
    pub destroyed: Vec<pb::Resource>,
    /// The number of the record; of two records the higher number is the newer. 0 before copies existed.
    #[prost(uint64, tag = "4")]
    pub number: u64,
}

/// The content of one of the two files.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Record(ResourcesRecord),
    Missing,
    /// The damage itself is reported elsewhere.
    Damaged,
}

/// The combined result of the record and its copy.
#[derive(Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) record: Option<ResourcesRecord>,
    /// Whether both files must be written again.
    pub(super) is_rewritten: bool,
    /// The problem of the record if it is not damaged: it is written before its copy.
    pub(super) loss: Option<&'static str>,
}

/// Chooses the newer of the two readable records.
pub(super) fn choose(record: Found, copy: Found) -> Chosen {
    let number = |found: &Found| match found {
        Found::Record(record) => Some(record.number),
        Found::Missing | Found::Damaged => None,
    };
    let loss = match (&record, number(&copy)) {
        (Found::Missing, Some(_)) => Some("it is missing; reading its copy"),
        (Found::Record(old), Some(newer)) if old.number < newer => {
            Some("it is older than its copy; reading the copy")
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

/// The path of a volume's data. `None` for a resource that is no volume, or lies on a raw device.
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

/// Checks that a directory can hold the volume. The levels of a role form a single name there.
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
                "failed to create a volume for the {what} {}...: it has {} bytes, and the name \
                 of a directory has at most {NAME_BYTES_MAX} bytes",
                name.chars().take(32).collect::<String>().escape_debug(),
                name.len()
            )
            .into());
        }
        if name.contains('\0') {
            return Err(format!(
                "failed to create a volume for the {what} {name:?}: the name of a directory \
                 cannot contain a NUL"
            )
            .into());
        }
    }
    Ok(())
}

/// Whether a volume lies on a disk of its own. Trouble on such a disk concerns only the users of the volume.
pub(super) fn is_on_own_disk(volume: &Resource) -> bool {
    volume.disk().is_some_and(|disk| disk.source.is_some())
}

/// The root of the volume's own disk, if it has one.
pub(super) fn disk_of(layout: &Layout, volume: &Resource) -> Option<PathBuf> {
    let source = volume.disk()?.source.as_ref()?;
    Some(layout.work_dir().join(source.root.as_deref()?))
}

/// Makes the directory of a volume on the work directory's disk. An existing directory and its data stay unchanged.
pub(super) fn make_volume(
    layout: &Layout,
    volume: &Resource,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let changed = make_directory(&path, false)?;
    // Only now: a directory that cannot be made has nothing to sync.
    changed.iter().for_each(|folder| batch.touch_dir(folder));
    Ok(())
}

/// Makes the directory of a volume on a disk of its own. The changes are durable when this returns; on a hung disk it
/// never returns.
pub(super) fn make_on_own_disk(layout: &Layout, volume: &Resource) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let changed = make_directory(&path, volume.is_disk_of(DiskSourceKind::Mount))?;
    changed.iter().try_for_each(|folder| sync_folder(folder))
}

/// Makes the directory of a volume on a disk of type PATH that could not be made together with the volume. An existing
/// directory stays unchanged, and nothing is made where the disk itself is missing.
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

/// Makes a directory and returns the folders changed for it.
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

/// Syncs a folder. On a disk of its own a failed sync is an ordinary error.
fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(io_error("sync", folder))
}

/// Moves the data of a volume on the work directory's disk to a fresh place below that; another thread empties that
/// place.
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

/// Removes the data of a volume on a disk of its own. Where the volume is a whole file system, only its contents go.
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

/// Converts volumes to their recorded form.
pub(super) fn messages(volumes: &[Resource]) -> Vec<pb::Resource> {
    let one = |volume: &Resource| convert::to_resource(volume, Format::PostRefinement);
    volumes
        .iter()
        .filter_map(|volume| one(volume).ok())
        .collect()
}

/// Returns the persistent volumes among messages.
pub(super) fn volumes(messages: &[pb::Resource]) -> Vec<Resource> {
    messages
        .iter()
        .filter_map(|message| convert::resource(message).ok())
        .filter(Resource::is_persistent_volume)
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
