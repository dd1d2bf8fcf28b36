//! `resources_and_operations.state`: what was reserved and made at run time, and what is still to be
//! told of it.
//!
//! One record, replaced whole, so that an operation and its effect are durable together. The
//! directories of volumes are made before the record that names them, and removed after the record
//! that does not; [`restore`] completes what a crash cut short.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{DiskSourceKind, Resource, Resources};
use prost::Message as _;

use super::durable::{Batch, StoreError, io_error};
use super::layout::Layout;

/// Tasks' users walk through the folders above a volume; the volume itself is given to its user when
/// it is first used.
const VOLUME_DIR_MODE: u32 = 0o755;

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
    /// See [`Holdings::resources`].
    #[prost(message, repeated, tag = "1")]
    pub resources: Vec<pb::Resource>,
    /// See [`Holdings::operations`].
    #[prost(message, repeated, tag = "2")]
    pub operations: Vec<pb::Operation>,
    /// Volumes that this very change destroyed: their directories go once the record is durable.
    #[prost(message, repeated, tag = "3")]
    pub destroyed: Vec<pb::Resource>,
}

impl Holdings {
    pub(super) fn encode(&self, destroyed: &[Resource]) -> Vec<u8> {
        let one = |resource: &Resource| convert::to_resource(resource, Format::PostRefinement);
        let record = ResourcesRecord {
            resources: convert::to_resources(&self.resources, Format::PostRefinement)
                .unwrap_or_default(),
            operations: self.operations.iter().map(|one| (**one).clone()).collect(),
            destroyed: destroyed
                .iter()
                .filter_map(|volume| one(volume).ok())
                .collect(),
        };
        record.encode_to_vec()
    }
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

/// Makes a volume's directory; an older one with its data is left as it is.
pub(super) fn make_volume(
    layout: &Layout,
    volume: &Resource,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let missing = path.ancestors().take_while(|folder| !folder.is_dir());
    for folder in missing.collect::<Vec<_>>().into_iter().rev() {
        let made = fs::DirBuilder::new().mode(VOLUME_DIR_MODE).create(folder);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error("create the folder", folder)(error));
            }
            _ => {}
        }
        if let Some(parent) = folder.parent() {
            batch.touch_dir(parent);
        }
    }
    Ok(())
}

/// Removes a volume's data. `aside` is a fresh place below the work directory, emptied by others.
pub(super) fn remove_volume(
    layout: &Layout,
    volume: &Resource,
    aside: &Path,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    let Some(path) = volume_path(layout, volume) else {
        return Ok(());
    };
    let source = volume.disk().and_then(|disk| disk.source.as_ref());
    match source.map(|source| source.kind) {
        None => {
            batch.move_away(&path, aside)?;
            if let Some(parent) = path.parent() {
                batch.touch_dir(parent);
            }
            Ok(())
        }
        // A file system of its own stays, its contents go.
        Some(DiskSourceKind::Mount) => empty(&path),
        Some(_) => match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove the volume", &path)(error))
            }
            _ => Ok(()),
        },
    }
}

fn empty(folder: &Path) -> Result<(), StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("list", folder)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(io_error("list", folder))?;
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(io_error("remove", &path))?;
    }
    Ok(())
}

/// The persistent volumes among messages.
pub(super) fn volumes(messages: &[pb::Resource]) -> Vec<Resource> {
    messages
        .iter()
        .filter_map(|message| convert::resource(message).ok())
        .filter(Resource::is_persistent_volume)
        .collect()
}
