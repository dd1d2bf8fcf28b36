//! The store of images on a node: layers by the digest of their content, and images by name.
//!
//! [`Store::open`] locks a folder for this process and finishes or discards the work of an earlier one. A pull begins with
//! [`Store::begin_image`], unpacks layers with [`ImageStaging::unpack_layer`] on as many threads as it likes, and ends with
//! [`ImageStaging::commit`]. [`Store::lower_folders`] gives the folders that overlayfs stacks, and [`Store::mark_used`] keeps
//! them until the container ends. All calls block.
//!
//! - `layout`: folders and files.
//! - `record`: the records of layers, images and uses.
//! - `completion`: folders and links that the layers of one image lack.
//! - `recovery`: the work of an earlier process.
//! - `garbage`: the choice of what to remove.
//! - `trash`: slow deletion.
//!
//! Invariants: a layer or image is visible under its name only if its files are on disk: they are written to a staging
//! folder and synced before the rename, and the record of an image comes last. A layer never changes. Nothing that a
//! container uses is removed.

mod completion;
mod garbage;
mod layout;
mod record;
mod recovery;
mod trash;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::fs::FlockOperation;

use crate::descriptor::{Digest, LayerDescriptor};
use crate::unpack::{self, ChildError, Limits, Report};
use completion::LayerView;
use layout::{Layout, files_in, names_in, parse_layer_name, record_in, sync_folder, write_durably};
use record::{CompletionRecord, LayerRecord, UseRecord};

pub use garbage::{Contents, ImageState, LayerState, Policy, Removal, plan as plan_removal};
pub use record::{ImageLayer, ImageRecord};

/// Layers of an image, with its completion: overlayfs stacks 500 lower folders.
pub const LAYERS_MAX: usize = 499;
/// Space that a pull leaves free on the disk: the agent's own checkpoints are there, too.
const SPARE_BYTES: u64 = 64 << 20;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The folder of the store. It needs a file system with extended attributes and device files, such as ext4 or XFS.
    pub root: PathBuf,
    /// The process that unpacks layers. Default: a child without access to anything else.
    pub unpacker: Unpacker,
}

/// The process that unpacks layers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Unpacker {
    /// A child of this executable, whose `main` calls [`unpack::run_if_requested`].
    #[default]
    Child,
    /// This process: for unit tests, whose `main` is not ours.
    #[cfg(test)]
    InProcess,
}

/// Errors of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to {operation} {path}")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the image store {root} is in use by process {pid}: an agent has it while it runs; stop the agent, or use another \
         --docker_store_dir"
    )]
    Locked { root: PathBuf, pid: String },
    #[error("failed to unpack layer {diff_id}")]
    Unpack {
        diff_id: Digest,
        #[source]
        source: ChildError,
    },
    #[error(
        "layer {expected} has the content {actual}: the image's configuration does not fit its layers; build the image again"
    )]
    WrongContent { expected: Digest, actual: Digest },
    #[error("layer {diff_id} is missing in the store; pull the image again")]
    MissingLayer { diff_id: Digest },
    #[error("{path:?} is a hard link to {target:?}, which no lower layer has")]
    MissingTarget { path: String, target: String },
    #[error("the image has too many folders and layers to complete; build it with fewer layers")]
    TooComplex,
    #[error(
        "the image has {count} layers, more than the {LAYERS_MAX} that overlayfs stacks; build it with fewer layers"
    )]
    TooManyLayers { count: usize },
    #[error(
        "the configuration of the image has {bytes} bytes, more than {}",
        record::CONFIG_BYTES_MAX
    )]
    ConfigTooLarge { bytes: usize },
    #[error("the configuration of the image is no UTF-8")]
    ConfigEncoding,
    #[error("the record beside {path} is damaged; remove the image and pull it again")]
    Damaged { path: PathBuf },
    #[error("invalid name of an image's user {user:?}: expected letters, digits and ._:@=+- only")]
    InvalidUser { user: String },
    #[error("image {name} is not in the store; pull it first")]
    UnknownImage { name: String },
    #[error("{pulls} pulls are running; remove images when they have ended")]
    Busy { pulls: usize },
}

impl StoreError {
    fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the blob is at fault, so that another attempt with the same blob fails again.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Unpack {
                source: ChildError::Refused { .. },
                ..
            } | Self::WrongContent { .. }
                | Self::MissingTarget { .. }
                | Self::TooComplex
                | Self::TooManyLayers { .. }
                | Self::ConfigTooLarge { .. }
                | Self::ConfigEncoding
        )
    }
}

/// A pulled image, to be recorded.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// The canonical reference.
    pub name: String,
    pub manifest_digest: Digest,
    /// The configuration, as the registry sent it.
    pub config: Vec<u8>,
    /// Bottom first.
    pub layers: Vec<LayerDescriptor>,
}

/// The figures of a store.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    pub images: usize,
    pub layers: usize,
    /// Bytes that the layers take on disk, in whole blocks.
    pub layer_bytes: u64,
    /// The part of it that no image needs.
    pub unneeded_bytes: u64,
    /// Files and folders that are being deleted.
    pub trash: usize,
    /// Bytes of the store's file system.
    pub disk_bytes: u64,
    pub free_bytes: u64,
}

/// The store of this process.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    layout: Layout,
    unpacker: Unpacker,
    boot: String,
    /// Held until the last handle is gone.
    _lock: File,
    work: Mutex<Work>,
    /// Held while an image is committed, which takes as long as the disk. Other work goes on meanwhile.
    commit: Mutex<()>,
    /// Signals the end of an unpacking.
    unpacked: Condvar,
}

/// The work in progress.
#[derive(Debug, Default)]
struct Work {
    pulls: usize,
    unpacking: HashSet<Digest>,
}

impl Store {
    /// Opens the store in a folder, which is made if it is missing. Only one process can have a store open.
    pub fn open(options: &StoreOptions) -> Result<Self, StoreError> {
        let layout = Layout::at(&options.root);
        layout.create()?;
        let lock = lock(&layout)?;
        let boot = read_boot()?;
        recovery::recover(&layout, &boot)?;
        let shared = Shared {
            layout,
            unpacker: options.unpacker,
            boot,
            _lock: lock,
            work: Mutex::default(),
            commit: Mutex::default(),
            unpacked: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    // Images.

    /// Returns the image with this canonical name.
    pub fn find(&self, name: &str) -> Result<Option<ImageRecord>, StoreError> {
        let image: Option<ImageRecord> = record::read(&self.layout().image(name))?;
        Ok(image.filter(|image| image.name == name))
    }

    /// Returns all images, sorted by name.
    pub fn list(&self) -> Result<Vec<ImageRecord>, StoreError> {
        list(self.layout())
    }

    /// Returns the layers that the store lacks, each of them once.
    pub fn missing_layers(&self, layers: &[LayerDescriptor]) -> Vec<LayerDescriptor> {
        let mut seen = HashSet::new();
        let missing = layers
            .iter()
            .filter(|layer| seen.insert(&layer.diff_id) && !self.has_layer(&layer.diff_id));
        missing.cloned().collect()
    }

    /// Whether the store has a layer, perhaps not yet synced.
    pub fn has_layer(&self, diff_id: &Digest) -> bool {
        self.place_of(diff_id).is_some()
    }

    /// The folders of an image for overlayfs, the uppermost first.
    pub fn lower_folders(&self, image: &ImageRecord) -> Result<Vec<PathBuf>, StoreError> {
        let completion = image.completion.iter();
        let mut folders: Vec<_> = completion
            .map(|key| files_in(&self.layout().completion(key)))
            .collect();
        for diff_id in image.distinct_layers().into_iter().rev() {
            let folder = self.layout().layer(diff_id);
            let record: Option<LayerRecord> = record::read(&record_in(&folder))?;
            let Some(record) = record else {
                return Err(StoreError::MissingLayer {
                    diff_id: diff_id.clone(),
                });
            };
            folders.push(files_in(&folder));
            if hides_all(&record.report) {
                break;
            }
        }
        Ok(folders)
    }

    // Pulls.

    /// Begins a pull. Until its end, nothing is removed from the store.
    pub fn begin_image(&self) -> ImageStaging {
        self.work().pulls += 1;
        ImageStaging {
            store: self.clone(),
        }
    }

    // Uses.

    /// Records that a container uses an image, until [`Store::release`]. The record survives this process, and the image's
    /// layers stay also when its name gets others.
    pub fn mark_used(
        &self,
        user: &str,
        image: &ImageRecord,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let path = self.user_path(user)?;
        let record = UseRecord {
            image: image.name.clone(),
            layers: image.distinct_layers().into_iter().cloned().collect(),
            completion: image.completion.clone(),
        };
        // Under the lock, so that no removal has just chosen the image.
        let _work = self.work();
        if self.find(&image.name)?.is_none() {
            return Err(StoreError::UnknownImage {
                name: image.name.clone(),
            });
        }
        let text = record::render(&path, &record)?;
        // A power cut ends the container, too, so the record need not be synced.
        let beside = self.layout().staging().join(user);
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(|source| StoreError::new("write", &path, source))?;
        set_time(&self.layout().image(&image.name), now)
    }

    /// Ends the use by a container. An unknown user is fine.
    pub fn release(&self, user: &str) -> Result<(), StoreError> {
        let path = self.user_path(user)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::new("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Ends the uses by all other containers than these: an agent calls it when it has recovered its containers.
    pub fn retain_users(&self, users: &BTreeSet<String>) -> Result<(), StoreError> {
        for name in names_in(&self.layout().users())? {
            if !users.contains(&name) {
                self.release(&name)?;
            }
        }
        Ok(())
    }

    fn user_path(&self, user: &str) -> Result<PathBuf, StoreError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@=+-".contains(&byte);
        let is_valid = !user.is_empty()
            && user.len() <= 255
            && !user.starts_with('.')
            && user.bytes().all(allowed);
        if !is_valid {
            return Err(StoreError::InvalidUser {
                user: user.to_owned(),
            });
        }
        Ok(self.layout().users().join(user))
    }

    // Removal.

    /// Reads the state of the store, for [`plan_removal`].
    pub fn read_contents(&self) -> Result<Contents, StoreError> {
        read_contents(self.layout())
    }

    /// Removes images and layers by a policy. They are in the trash afterwards; [`Store::sweep_trash`] frees their space. Fails while
    /// a pull runs.
    pub fn remove(&self, policy: &Policy, now: SystemTime) -> Result<Removal, StoreError> {
        let work = self.work();
        if work.pulls > 0 {
            return Err(StoreError::Busy { pulls: work.pulls });
        }
        let removal = plan_removal(&self.read_contents()?, policy, now);
        let layout = self.layout();
        for name in &removal.images {
            layout.discard(&layout.image(name))?;
        }
        // No image may name a layer that is gone, also after a power cut.
        sync_folder(&layout.images())?;
        for key in &removal.completions {
            layout.discard(&layout.completion(key))?;
        }
        for diff_id in &removal.layers {
            layout.discard(&layout.layer(diff_id))?;
        }
        Ok(removal)
    }

    /// Deletes at most so many files of the trash, and returns whether the trash is empty. Does nothing while a pull runs: deletions
    /// slow it down. The caller pauses between calls.
    pub fn sweep_trash(&self, files_max: u64) -> Result<bool, StoreError> {
        if self.work().pulls > 0 {
            return Ok(false);
        }
        trash::sweep(self.layout(), files_max)
    }

    /// The figures of the store.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        read_usage(self.layout())
    }

    // Helpers.

    fn work(&self) -> MutexGuard<'_, Work> {
        let work = self.shared.work.lock();
        work.unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a stored or staged layer.
    fn place_of(&self, diff_id: &Digest) -> Option<PathBuf> {
        let layout = self.layout();
        let places = [layout.layer(diff_id), layout.staged_layer(diff_id)];
        places.into_iter().find(|place| record_in(place).exists())
    }
}

/// A pull in progress. Layers that it has unpacked stay when it is dropped, for the next attempt.
#[derive(Debug)]
pub struct ImageStaging {
    store: Store,
}

impl Drop for ImageStaging {
    fn drop(&mut self) {
        let mut work = self.store.work();
        work.pulls = work.pulls.saturating_sub(1);
    }
}

/// The unpacking of a layer, which no other thread begins meanwhile.
struct Claim<'a> {
    store: &'a Store,
    diff_id: &'a Digest,
}

impl<'a> Claim<'a> {
    /// Waits until no other thread unpacks the layer. Absent if the store has it then.
    fn new(store: &'a Store, diff_id: &'a Digest) -> Option<Self> {
        let mut work = store.work();
        while work.unpacking.contains(diff_id) {
            let waited = store.shared.unpacked.wait(work);
            work = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if store.has_layer(diff_id) {
            return None;
        }
        work.unpacking.insert(diff_id.clone());
        Some(Self { store, diff_id })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.store.work().unpacking.remove(self.diff_id);
        self.store.shared.unpacked.notify_all();
    }
}

impl ImageStaging {
    /// Unpacks a layer, from a reader that ends with an error unless the blob has the right size and digest. If another pull is
    /// unpacking the layer, waits for it, and reads nothing.
    pub fn unpack_layer(
        &self,
        layer: &LayerDescriptor,
        blob: &mut dyn Read,
    ) -> Result<(), StoreError> {
        let Some(claim) = Claim::new(&self.store, &layer.diff_id) else {
            return Ok(());
        };
        let layout = self.store.layout();
        let folder = layout.staged_layer(&layer.diff_id);
        layout.discard(&folder)?;
        let unpacked = self.fill_folder(layer, blob, &folder);
        if unpacked.is_err() {
            layout.discard(&folder)?;
        }
        drop(claim);
        unpacked
    }

    fn fill_folder(
        &self,
        layer: &LayerDescriptor,
        blob: &mut dyn Read,
        folder: &Path,
    ) -> Result<(), StoreError> {
        let files = files_in(folder);
        fs::create_dir(folder)
            .and_then(|()| fs::create_dir(&files))
            .map_err(|source| StoreError::new("create", &files, source))?;
        let free_bytes = read_space(self.store.layout().root())?.1;
        let limits = Limits::for_layer(layer.blob.size, free_bytes.saturating_sub(SPARE_BYTES));
        let failed = |source| StoreError::Unpack {
            diff_id: layer.diff_id.clone(),
            source,
        };
        let report = self
            .run_unpacker(layer, blob, &files, &limits)
            .map_err(failed)?;
        match &report.diff_id {
            Some(actual) if *actual != layer.diff_id => {
                return Err(StoreError::WrongContent {
                    expected: layer.diff_id.clone(),
                    actual: actual.clone(),
                });
            }
            Some(_) => {}
            None => return Err(StoreError::Damaged { path: files }),
        }
        let root = File::open(&files).map_err(|source| StoreError::new("open", &files, source))?;
        unpack::apply_deferred(&root.into(), &report)
            .map_err(|error| failed(ChildError::from(error)))?;
        let record = LayerRecord {
            diff_id: layer.diff_id.clone(),
            boot: self.store.shared.boot.clone(),
            report,
        };
        write_record(folder, &record)
    }

    fn run_unpacker(
        &self,
        layer: &LayerDescriptor,
        blob: &mut dyn Read,
        files: &Path,
        limits: &Limits,
    ) -> Result<Report, ChildError> {
        let algorithm = layer.diff_id.algorithm();
        match self.store.shared.unpacker {
            Unpacker::Child => {
                let (report, confinement) =
                    unpack::unpack_in_child(blob, files, algorithm, limits)?;
                tracing::debug!(diff_id = %layer.diff_id, ?confinement, "unpacked a layer");
                Ok(report)
            }
            #[cfg(test)]
            Unpacker::InProcess => {
                let folder = File::open(files).map_err(ChildError::Blob)?;
                Ok(unpack::unpack(blob, folder.into(), algorithm, limits)?)
            }
        }
    }

    /// Records the image. Its layers must be unpacked. Afterwards the image is on disk and found by its name.
    pub fn commit(&self, image: NewImage, now: SystemTime) -> Result<ImageRecord, StoreError> {
        if image.config.len() > record::CONFIG_BYTES_MAX {
            return Err(StoreError::ConfigTooLarge {
                bytes: image.config.len(),
            });
        }
        let mut record = ImageRecord {
            name: image.name,
            manifest_digest: image.manifest_digest,
            config: String::from_utf8(image.config).map_err(|_| StoreError::ConfigEncoding)?,
            layers: image.layers.iter().map(ImageLayer::from).collect(),
            completion: None,
            pulled_at: now,
        };
        let layers = record.distinct_layers();
        if layers.len() > LAYERS_MAX {
            return Err(StoreError::TooManyLayers {
                count: layers.len(),
            });
        }
        // Two pulls could otherwise rename the same layers.
        let commit = self.store.shared.commit.lock();
        let _commit = commit.unwrap_or_else(PoisonError::into_inner);
        let layout = self.store.layout();
        let completion = self.complete(&layers)?;
        let staged: Vec<_> = layers
            .iter()
            .map(|diff_id| (layout.staged_layer(diff_id), layout.layer(diff_id)))
            .filter(|(staged, stored)| staged.exists() && !stored.exists())
            .collect();
        let is_new = completion.as_ref().is_some_and(|(_, is_new)| *is_new);
        if is_new || !staged.is_empty() {
            sync_files(layout.root())?;
        }
        for (staged, stored) in &staged {
            rename(staged, stored)?;
        }
        if let Some((key, true)) = &completion {
            rename(&layout.staged_completion(key), &layout.completion(key))?;
            sync_folder(&layout.completions())?;
        }
        sync_folder(&layout.layers())?;
        record.completion = completion.map(|(key, _)| key);
        let path = layout.image(&record.name);
        write_durably(&layout.staging(), &path, &record::render(&path, &record)?)?;
        set_time(&path, now)?;
        Ok(record)
    }

    /// Makes the completion of layers, if they need one. Returns its key, and whether it is new and still staged.
    fn complete(&self, layers: &[&Digest]) -> Result<Option<(String, bool)>, StoreError> {
        let layout = self.store.layout();
        let mut views = Vec::new();
        for diff_id in layers {
            let missing = || StoreError::MissingLayer {
                diff_id: (*diff_id).clone(),
            };
            let place = self.store.place_of(diff_id).ok_or_else(missing)?;
            let record = record::read(&record_in(&place))?.ok_or_else(missing)?;
            views.push(LayerView::open(&place, &record)?);
        }
        let steps = completion::plan(&views)?;
        if steps.is_empty() {
            return Ok(None);
        }
        let names: Vec<_> = layers.iter().map(ToString::to_string).collect();
        let key = Digest::from_content(names.join("\n").as_bytes())
            .hex()
            .to_owned();
        if record_in(&layout.completion(&key)).exists() {
            return Ok(Some((key, false)));
        }
        let folder = layout.staged_completion(&key);
        layout.discard(&folder)?;
        fs::create_dir(&folder).map_err(|source| StoreError::new("create", &folder, source))?;
        completion::make(&folder, &views, &steps)?;
        let record = CompletionRecord {
            boot: self.store.shared.boot.clone(),
            entries: steps.len() as u64,
        };
        write_record(&folder, &record)?;
        Ok(Some((key, true)))
    }
}

/// Reads the images of a store that another process may have open.
pub fn read_images(root: &Path) -> Result<Vec<ImageRecord>, StoreError> {
    list(&Layout::at(root))
}

/// Reads the figures of a store that another process may have open.
pub fn read_store_usage(root: &Path) -> Result<Usage, StoreError> {
    read_usage(&Layout::at(root))
}

fn list(layout: &Layout) -> Result<Vec<ImageRecord>, StoreError> {
    let mut images: Vec<ImageRecord> = Vec::new();
    for name in names_in(&layout.images())? {
        images.extend(record::read(&layout.images().join(name))?);
    }
    images.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(images)
}

fn read_contents(layout: &Layout) -> Result<Contents, StoreError> {
    let mut used_images = HashSet::new();
    let mut used_layers = HashSet::new();
    let mut used_completions = HashSet::new();
    for name in names_in(&layout.users())? {
        let record: Option<UseRecord> = record::read(&layout.users().join(name))?;
        if let Some(record) = record {
            used_images.insert(record.image);
            used_layers.extend(record.layers);
            used_completions.extend(record.completion);
        }
    }
    let mut contents = Contents {
        free_bytes: read_space(layout.root())?.1,
        ..Contents::default()
    };
    for image in list(layout)? {
        contents.images.push(ImageState {
            layers: image
                .layers
                .iter()
                .map(|layer| layer.diff_id.clone())
                .collect(),
            is_in_use: used_images.contains(&image.name),
            last_used: modified(&layout.image(&image.name))?.unwrap_or(image.pulled_at),
            completion: image.completion,
            name: image.name,
        });
    }
    for name in names_in(&layout.layers())? {
        let folder = layout.layers().join(&name);
        let record: Option<LayerRecord> = record::read(&record_in(&folder))?;
        let (Some(diff_id), Some(record)) = (parse_layer_name(&name), record) else {
            continue;
        };
        let state = LayerState {
            disk_bytes: record.report.disk_bytes,
            stored_at: modified(&record_in(&folder))?.unwrap_or(SystemTime::UNIX_EPOCH),
            is_in_use: used_layers.contains(&diff_id),
        };
        contents.layers.insert(diff_id, state);
    }
    let completions = names_in(&layout.completions())?.into_iter();
    contents.completions = completions
        .map(|key| {
            let is_in_use = used_completions.contains(&key);
            (key, is_in_use)
        })
        .collect();
    Ok(contents)
}

fn read_usage(layout: &Layout) -> Result<Usage, StoreError> {
    let contents = read_contents(layout)?;
    let needed: HashSet<_> = contents
        .images
        .iter()
        .flat_map(|image| &image.layers)
        .collect();
    let sum = |layers: &mut dyn Iterator<Item = &LayerState>| -> u64 {
        layers.map(|state| state.disk_bytes).sum()
    };
    let unneeded = contents.layers.iter();
    let unneeded = unneeded.filter(|(diff_id, _)| !needed.contains(diff_id));
    let (disk_bytes, free_bytes) = read_space(layout.root())?;
    Ok(Usage {
        images: contents.images.len(),
        layers: contents.layers.len(),
        layer_bytes: sum(&mut contents.layers.values()),
        unneeded_bytes: sum(&mut unneeded.map(|(_, state)| state)),
        trash: names_in(&layout.trash())?.len(),
        disk_bytes,
        free_bytes,
    })
}

fn hides_all(report: &Report) -> bool {
    report.opaque.iter().any(String::is_empty)
}

fn write_record<T: serde::Serialize>(folder: &Path, record: &T) -> Result<(), StoreError> {
    let path = record_in(folder);
    let beside = folder.join("record.new");
    let text = record::render(&path, record)?;
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, &path))
        .map_err(|source| StoreError::new("write", &path, source))
}

fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(|source| StoreError::new("store", to, source))
}

/// Writes all files of the store's file system to disk.
fn sync_files(root: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::new("sync", root, source);
    let folder = File::open(root).map_err(failed)?;
    rustix::fs::syncfs(folder.as_fd()).map_err(|errno| failed(errno.into()))
}

fn lock(layout: &Layout) -> Result<File, StoreError> {
    let path = layout.lock();
    let failed = |source| StoreError::new("lock", &path, source);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            return Err(StoreError::Locked {
                root: layout.root().to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    file.set_len(0).map_err(failed)?;
    std::os::unix::fs::FileExt::write_all_at(&file, std::process::id().to_string().as_bytes(), 0)
        .map_err(failed)?;
    Ok(file)
}

fn read_boot() -> Result<String, StoreError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|source| StoreError::new("read", path, source))?;
    Ok(text.trim().to_owned())
}

/// The size of the file system, and its free part.
fn read_space(root: &Path) -> Result<(u64, u64), StoreError> {
    let space = rustix::fs::statvfs(root)
        .map_err(|errno| StoreError::new("read the free space of", root, errno.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok((bytes(space.f_blocks), bytes(space.f_bavail)))
}

fn modified(path: &Path) -> Result<Option<SystemTime>, StoreError> {
    match fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        modified => modified
            .map(Some)
            .map_err(|source| StoreError::new("read", path, source)),
    }
}

fn set_time(path: &Path, time: SystemTime) -> Result<(), StoreError> {
    let times = fs::FileTimes::new().set_modified(time);
    File::open(path)
        .and_then(|file| file.set_times(times))
        .map_err(|source| StoreError::new("set the time of", path, source))
}

impl From<unpack::UnpackError> for ChildError {
    fn from(error: unpack::UnpackError) -> Self {
        match error {
            unpack::UnpackError::Refused(refusal) => Self::Refused {
                reason: refusal.to_string(),
            },
            unpack::UnpackError::System {
                operation,
                path,
                source,
            } => Self::Failed {
                reason: format!("failed to {operation} {path:?} of a layer"),
                source: Some(source),
            },
        }
    }
}
