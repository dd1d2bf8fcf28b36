//! The store with layers that are unpacked in this process.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::descriptor::{BlobDescriptor, Compression};
use crate::unpack::testing::{Layer, is_root};

/// A store in a temporary folder.
struct World {
    folder: TempDir,
    store: Option<Store>,
}

impl World {
    /// Absent, with the reason printed, if this process may not unpack layers.
    fn new() -> Option<Self> {
        is_root().then(|| {
            let folder = tempfile::tempdir().expect("a folder");
            let mut world = Self {
                folder,
                store: None,
            };
            world.reopen();
            world
        })
    }

    /// Ends the process that has the store, and begins another one.
    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(Store::open(&self.options()).expect("opened"));
    }

    fn options(&self) -> StoreOptions {
        StoreOptions {
            root: self.folder.path().join("store"),
            unpacker: Unpacker::InProcess,
        }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("store").join(path)
    }

    fn pull(&self, name: &str, layers: &[Layer], now: SystemTime) -> ImageRecord {
        self.try_pull(name, layers, now)
            .unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn try_pull(
        &self,
        name: &str,
        layers: &[Layer],
        now: SystemTime,
    ) -> Result<ImageRecord, StoreError> {
        let staging = self.store().begin_image();
        let blobs: Vec<_> = layers.iter().map(|layer| layer.clone().build()).collect();
        let descriptors: Vec<_> = blobs.iter().map(|blob| describe(blob)).collect();
        for (descriptor, blob) in descriptors.iter().zip(&blobs) {
            staging.unpack_layer(descriptor, &mut blob.as_slice())?;
        }
        staging.commit(image(name, descriptors), now)
    }

    /// The mode of a path in the merged tree: that of the first folder that has it.
    fn merged(&self, image: &ImageRecord, path: &str) -> fs::Metadata {
        let folders = self.store().lower_folders(image).expect("complete");
        let found = folders
            .iter()
            .find_map(|folder| fs::symlink_metadata(folder.join(path)).ok());
        found.unwrap_or_else(|| panic!("{path} is nowhere"))
    }
}

fn describe(blob: &[u8]) -> LayerDescriptor {
    LayerDescriptor {
        compression: Compression::Plain,
        blob: BlobDescriptor {
            digest: Digest::from_content(blob),
            size: blob.len() as u64,
            urls: Vec::new(),
        },
        diff_id: Digest::from_content(blob),
    }
}

fn image(name: &str, layers: Vec<LayerDescriptor>) -> NewImage {
    NewImage {
        name: name.to_owned(),
        manifest_digest: Digest::from_content(name.as_bytes()),
        config: b"{}".to_vec(),
        layers,
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn base() -> Layer {
    Layer::new()
        .folder("bin")
        .file("bin/tool", "tool")
        .mode(0o1777)
        .owner(3, 4)
        .folder("tmp")
}

#[test]
fn committed_image_survives_reopening() {
    let Some(mut world) = World::new() else {
        return;
    };
    let layers = [base(), Layer::new().folder("etc").file("etc/x", "x")];
    let pulled = world.pull("host/name:tag", &layers, at(0));
    world.reopen();
    let found = world.store().find("host/name:tag").expect("read");
    assert_eq!(found.as_ref(), Some(&pulled));
    assert_eq!(world.store().find("host/name:other").expect("read"), None);
    let folders = world.store().lower_folders(&pulled).expect("complete");
    assert_eq!(folders.len(), 2);
    assert_eq!(
        fs::read_to_string(folders[0].join("etc/x")).expect("read"),
        "x"
    );
    assert_eq!(
        fs::read_to_string(folders[1].join("bin/tool")).expect("read"),
        "tool"
    );
    let mode = fs::metadata(world.path("")).expect("there").mode();
    assert_eq!(mode & 0o777, 0o700, "no user of the host may enter");
    assert_eq!(names_in(&world.path("staging")).expect("listed").len(), 0);
}

#[test]
fn second_process_is_refused() {
    let Some(world) = World::new() else {
        return;
    };
    let refused = Store::open(&world.options()).expect_err("locked");
    let pid = std::process::id().to_string();
    assert!(refused.to_string().contains(&pid), "{refused}");
    // Readers need no lock.
    world.pull("a", &[base()], at(0));
    assert_eq!(read_images(&world.path("")).expect("read").len(), 1);
    let usage = read_store_usage(&world.path("")).expect("read");
    assert_eq!(
        (usage.images, usage.layers, usage.unneeded_bytes),
        (1, 1, 0)
    );
    assert!(usage.layer_bytes > 0);
}

/// A blob that breaks off.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("connection cut"))
    }
}

#[test]
fn failed_layers_leave_nothing() {
    let Some(world) = World::new() else {
        return;
    };
    let blob = base().build();
    let staging = world.store().begin_image();
    let failed = staging.unpack_layer(&describe(&blob), &mut Broken);
    assert!(
        matches!(failed, Err(StoreError::Unpack { .. })),
        "{failed:?}"
    );
    let mut wrong = describe(&blob);
    wrong.diff_id = Digest::from_content(b"other");
    let failed = staging
        .unpack_layer(&wrong, &mut blob.as_slice())
        .expect_err("wrong");
    assert!(matches!(failed, StoreError::WrongContent { .. }));
    assert!(failed.is_refusal());
    assert_eq!(names_in(&world.path("staging")).expect("listed").len(), 0);
    let descriptor = describe(&blob);
    let missing = staging.commit(image("a", vec![descriptor]), at(0));
    assert!(matches!(missing, Err(StoreError::MissingLayer { .. })));
    assert!(world.store().list().expect("read").is_empty());
}

#[test]
fn cancelled_pull_keeps_whole_layers() {
    let Some(mut world) = World::new() else {
        return;
    };
    let blob = base().build();
    let layer = describe(&blob);
    let staging = world.store().begin_image();
    staging
        .unpack_layer(&layer, &mut blob.as_slice())
        .expect("unpacked");
    drop(staging);
    assert!(
        world
            .store()
            .missing_layers(std::slice::from_ref(&layer))
            .is_empty()
    );
    // A second attempt reads nothing.
    let staging = world.store().begin_image();
    staging
        .unpack_layer(&layer, &mut Broken)
        .expect("there already");
    drop(staging);
    // A killed process leaves its layer in the staging folder.
    fs::create_dir(world.path("staging/garbage")).expect("created");
    world.reopen();
    assert!(world.store().has_layer(&layer.diff_id));
    assert_eq!(names_in(&world.path("staging")).expect("listed").len(), 0);
    let staging = world.store().begin_image();
    staging
        .commit(image("a", vec![layer]), at(0))
        .expect("committed");
}

#[test]
fn unsynced_layers_end_with_the_boot() {
    let Some(mut world) = World::new() else {
        return;
    };
    let blob = base().build();
    let layer = describe(&blob);
    let staging = world.store().begin_image();
    staging
        .unpack_layer(&layer, &mut blob.as_slice())
        .expect("unpacked");
    drop(staging);
    let path = record_in(&world.store().layout().staged_layer(&layer.diff_id));
    let mut record: LayerRecord = record::read(&path).expect("read").expect("there");
    record.boot = "an earlier one".to_owned();
    fs::write(&path, serde_json::to_vec(&record).expect("rendered")).expect("written");
    world.reopen();
    assert!(!world.store().has_layer(&layer.diff_id));
}

#[test]
fn damaged_layer_takes_its_images() {
    let Some(mut world) = World::new() else {
        return;
    };
    let top = Layer::new().folder("other");
    world.pull("whole", std::slice::from_ref(&top), at(0));
    let damaged = world.pull("damaged", &[base(), top], at(0));
    let folder = world.store().layout().layer(&damaged.layers[0].diff_id);
    fs::write(record_in(&folder), "{").expect("written");
    world.reopen();
    let names: Vec<_> = world
        .store()
        .list()
        .expect("read")
        .into_iter()
        .map(|i| i.name)
        .collect();
    assert_eq!(names, ["whole"]);
    world.pull("damaged", &[base()], at(0));
}

#[test]
fn implied_folders_take_lower_attributes() {
    let Some(world) = World::new() else {
        return;
    };
    let implying = Layer::new().file("tmp/deep/x", "x").file("bin/y", "y");
    let pulled = world.pull("a", &[base(), implying.clone()], at(0));
    assert!(pulled.completion.is_some());
    let tmp = world.merged(&pulled, "tmp");
    assert_eq!((tmp.mode() & 0o7777, tmp.uid(), tmp.gid()), (0o1777, 3, 4));
    assert_eq!(tmp.mtime(), 1_000_000_000);
    assert_eq!(world.merged(&pulled, "bin").mode() & 0o7777, 0o755);
    // A later entry or whiteout decides itself.
    let described = Layer::new().mode(0o700).folder("tmp");
    let pulled = world.pull("b", &[base(), implying.clone(), described], at(0));
    assert_eq!(pulled.completion, None);
    let hidden = Layer::new().file(".wh.tmp", "");
    let pulled = world.pull("c", &[base(), hidden, implying], at(0));
    assert_eq!(pulled.completion, None);
    assert_eq!(world.merged(&pulled, "tmp").mode() & 0o7777, 0o755);
}

#[test]
fn links_reach_lower_layers() {
    let Some(world) = World::new() else {
        return;
    };
    let linking = Layer::new()
        .hard_link("usr/one", "bin/tool")
        .hard_link("two", "usr/one")
        .hard_link("gone", "bin/tool");
    let hiding = Layer::new().file(".wh.gone", "").file(".wh.bin", "");
    let layers = [
        base(),
        linking,
        Layer::new().hard_link("three", "two"),
        hiding,
    ];
    let pulled = world.pull("a", &layers, at(0));
    let folders = world.store().lower_folders(&pulled).expect("complete");
    assert_eq!(folders.len(), 5);
    let inode = fs::metadata(folders[4].join("bin/tool"))
        .expect("there")
        .ino();
    for path in ["usr/one", "two", "three"] {
        assert_eq!(world.merged(&pulled, path).ino(), inode, "{path}");
    }
    assert!(!folders[0].join("gone").exists());
    let dangling = Layer::new().hard_link("x", "nowhere");
    let refused = world
        .try_pull("b", &[base(), dangling], at(0))
        .expect_err("missing");
    assert!(matches!(refused, StoreError::MissingTarget { .. }) && refused.is_refusal());
    let hidden = [
        base(),
        Layer::new().file(".wh.bin", ""),
        Layer::new().hard_link("x", "bin/tool"),
    ];
    assert!(world.try_pull("c", &hidden, at(0)).is_err());
}

#[test]
fn repeated_and_hidden_layers_are_skipped() {
    let Some(world) = World::new() else {
        return;
    };
    let empty = Layer::new();
    let clear = Layer::new().file(".wh..wh..opq", "");
    let layers = [empty.clone(), base(), empty.clone(), clear, empty];
    let pulled = world.pull("a", &layers, at(0));
    let folders = world.store().lower_folders(&pulled).expect("complete");
    // The empty layer above, and the one that hides all others.
    assert_eq!(folders.len(), 2);
    assert_eq!(pulled.layers.len(), 5);
}

#[test]
fn used_layers_stay_until_released() {
    let Some(mut world) = World::new() else {
        return;
    };
    let old = world.pull("a", &[base()], at(0));
    world
        .store()
        .mark_used("container-1", &old, at(5))
        .expect("marked");
    // The name moves on, and the container keeps its layers.
    world.pull("a", &[Layer::new().folder("other")], at(10));
    world.reopen();
    let all = Policy::remove_all_unused(BTreeSet::new());
    let removed = world.store().remove(&all, at(20)).expect("removed");
    assert_eq!(removed, Removal::default());
    let diff_id = &old.layers[0].diff_id;
    assert!(world.store().has_layer(diff_id));
    world
        .store()
        .retain_users(&BTreeSet::new())
        .expect("released");
    let removed = world
        .store()
        .remove(&all, at(4_000_000_000))
        .expect("removed");
    assert_eq!((removed.images.len(), removed.layers.len()), (1, 2));
    assert!(!world.store().has_layer(diff_id));
    assert!(
        world
            .store()
            .mark_used("container-2", &old, at(30))
            .is_err()
    );
    assert!(world.store().mark_used("../x", &old, at(30)).is_err());
}

#[test]
fn trash_is_emptied_step_by_step() {
    let Some(world) = World::new() else {
        return;
    };
    world.pull("a", &[base()], at(0));
    let all = Policy::remove_all_unused(BTreeSet::new());
    let staging = world.store().begin_image();
    let busy = world.store().remove(&all, at(4_000_000_000));
    assert!(matches!(busy, Err(StoreError::Busy { pulls: 1 })));
    drop(staging);
    world
        .store()
        .remove(&all, at(4_000_000_000))
        .expect("removed");
    assert!(world.store().usage().expect("read").trash > 0);
    let mut steps = 0;
    while !world.store().sweep_trash(2).expect("swept") {
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps > 1);
    assert_eq!(world.store().usage().expect("read").trash, 0);
}

#[test]
fn concurrent_pulls_unpack_a_layer_once() {
    let Some(world) = World::new() else {
        return;
    };
    let blob = base().build();
    let layer = describe(&blob);
    let reads = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let staging = world.store().begin_image();
                let mut blob = Counted {
                    blob: blob.as_slice(),
                    is_new: true,
                    reads: &reads,
                };
                staging.unpack_layer(&layer, &mut blob).expect("unpacked");
                staging
                    .commit(image("a", vec![layer.clone()]), at(0))
                    .expect("committed");
            });
        }
    });
    assert_eq!(reads.into_inner(), 1);
}

/// A blob that counts its readers.
struct Counted<'a> {
    blob: &'a [u8],
    is_new: bool,
    reads: &'a std::sync::atomic::AtomicUsize,
}

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.is_new {
            self.is_new = false;
            self.reads
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.blob.read(to)
    }
}
