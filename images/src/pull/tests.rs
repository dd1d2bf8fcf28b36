//! Pulls from a registry on loopback into a store in memory.

use std::collections::HashSet;
use std::sync::mpsc;

use super::*;
use crate::registry::RegistryOptions;
use crate::registry::testing::{TestAnswer, TestImage, TestRegistry};
use crate::wait::testing::VirtualClock;

/// A store in memory.
#[derive(Debug, Default)]
struct MemoryStore {
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Debug, Default)]
struct MemoryState {
    images: HashMap<String, NewImage>,
    layers: HashSet<Digest>,
    /// Layers in the order of their arrival.
    unpacked: Vec<Digest>,
}

struct MemoryStaging(Arc<Mutex<MemoryState>>);

impl ImageStore for MemoryStore {
    fn find(&self, name: &str) -> Option<Digest> {
        let state = self.state.lock().expect("no panic");
        state.images.get(name).map(|image| image.digest.clone())
    }

    fn begin(&self) -> Result<Arc<dyn ImageStaging>, StoreFailure> {
        Ok(Arc::new(MemoryStaging(self.state.clone())))
    }

    fn missing_layers(&self, layers: &[LayerDescriptor]) -> Vec<LayerDescriptor> {
        let state = self.state.lock().expect("no panic");
        let missing = layers
            .iter()
            .filter(|layer| !state.layers.contains(&layer.diff_id));
        missing.cloned().collect()
    }
}

impl ImageStaging for MemoryStaging {
    fn unpack_layer(
        &self,
        layer: &LayerDescriptor,
        from: &mut dyn Read,
    ) -> Result<(), StoreFailure> {
        if self
            .0
            .lock()
            .expect("no panic")
            .layers
            .contains(&layer.diff_id)
        {
            return Ok(());
        }
        std::io::copy(from, &mut std::io::sink())?;
        let mut state = self.0.lock().expect("no panic");
        state.unpacked.push(layer.diff_id.clone());
        state.layers.insert(layer.diff_id.clone());
        Ok(())
    }

    fn commit(&self, image: NewImage, _: SystemTime) -> Result<(), StoreFailure> {
        self.0
            .lock()
            .expect("no panic")
            .images
            .insert(image.name.clone(), image);
        Ok(())
    }
}

struct World {
    puller: Puller,
    store: Arc<Mutex<MemoryState>>,
    registry: TestRegistry,
}

impl World {
    fn new(registry: TestRegistry, downloads: usize) -> Self {
        let clock = VirtualClock::new();
        let client = RegistryClient::new(RegistryOptions::default(), clock.clone());
        let store = MemoryStore::default();
        let state = store.state.clone();
        let options = PullOptions {
            source: Source::Registries,
            platform: Platform::for_this_machine(),
            downloads,
        };
        let client = Arc::new(client.expect("no proxies"));
        Self {
            puller: Puller::new(client, Arc::new(store), options, clock),
            store: state,
            registry,
        }
    }

    fn request(&self, image: &str, is_forced: bool) -> PullHandle {
        let request = PullRequest {
            reference: Reference::parse(image, &self.registry.host()).expect("valid"),
            credentials: Credentials::default(),
            framework: "f".to_owned(),
            is_forced,
        };
        self.puller.pull(request).expect("room")
    }

    fn count(&self, method: &str, part: &str) -> usize {
        let requests = self.registry.requests();
        let matching = requests
            .iter()
            .filter(|one| one.method == method && one.target.contains(part));
        matching.count()
    }
}

/// A server that answers no request before the gate opens.
fn gated(image: TestImage) -> (TestRegistry, mpsc::Sender<()>) {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let registry = TestRegistry::start(move |request, _| {
        // A closed channel is an open gate.
        let _ = gate.lock().expect("no panic").recv();
        image.answer(request)
    });
    (registry, open)
}

#[test]
fn waiters_share_one_pull() {
    let image = TestImage::new(&[b"small", &[1; 10_000], &[2; 1000]]);
    let (registry, open) = gated(image.clone());
    let world = World::new(registry, 1);
    let handles = (0..100)
        .map(|_| world.request("app", false))
        .collect::<Vec<_>>();
    let (send, receive) = mpsc::channel();
    handles[0].when_done(move |outcome| send.send(outcome.is_ok()).expect("received"));
    drop(open);
    for handle in &handles {
        let pulled = handle.wait().expect("pulled");
        assert!(!pulled.was_stored);
        assert_eq!(pulled.digest, Digest::from_content(&image.manifest));
    }
    assert_eq!(receive.recv(), Ok(true));
    assert_eq!(world.count("GET", "/manifests/"), 1);
    // One download at a time, the largest first.
    let order = [&image.layers[1], &image.layers[2], &image.layers[0]];
    let order = order.map(|layer| Digest::from_content(layer));
    assert_eq!(world.store.lock().expect("no panic").unpacked, order);
    let progress = handles[0].progress();
    assert_eq!((progress.phase, progress.finished_layers), (Phase::Done, 3));
    assert_eq!(
        (progress.received_bytes, progress.total_bytes),
        (11_005, 11_005)
    );
    let counts = world.puller.counts();
    assert_eq!((counts.succeeded, counts.downloaded_bytes), (1, 11_005));
}

#[test]
fn stored_image_needs_no_registry() {
    let image = TestImage::new(&[b"layer"]);
    let world = World::new(
        TestRegistry::start(move |request, _| image.answer(request)),
        2,
    );
    world.request("app", false).wait().expect("pulled");
    let requests = world.registry.requests().len();
    let again = world.request("app", false);
    assert!(
        again
            .outcome()
            .expect("finished")
            .expect("stored")
            .was_stored
    );
    assert_eq!(world.registry.requests().len(), requests);
    assert_eq!(world.puller.counts().stored, 1);
}

#[test]
fn forced_pull_asks_by_head_alone() {
    let image = TestImage::new(&[b"layer"]);
    let world = World::new(
        TestRegistry::start(move |request, _| image.answer(request)),
        2,
    );
    world.request("app", false).wait().expect("pulled");
    let pulled = world.request("app", true).wait().expect("unchanged");
    assert!(pulled.was_stored);
    assert_eq!(
        (world.count("HEAD", ""), world.count("GET", "/manifests/")),
        (1, 1)
    );
}

#[test]
fn moved_tag_downloads_only_new_layers() {
    let old = TestImage::new(&[b"base", b"old"]);
    let new = TestImage::new(&[b"base", b"new"]);
    let digest = Digest::from_content(&new.manifest);
    let manifests = std::sync::atomic::AtomicUsize::new(0);
    let registry = TestRegistry::start(move |request, _| {
        let is_manifest = request.target.contains("/manifests/");
        if is_manifest && request.method == "GET" {
            manifests.fetch_add(1, Ordering::Relaxed);
        }
        let is_moved = manifests.load(Ordering::Relaxed) > 1 || request.method == "HEAD";
        match is_moved {
            true => new.answer(request),
            false => old.answer(request),
        }
    });
    let world = World::new(registry, 2);
    world.request("app", false).wait().expect("pulled");
    let pulled = world.request("app", true).wait().expect("pulled");
    assert_eq!(pulled.digest, digest);
    let base = Digest::from_content(b"base");
    assert_eq!(world.count("GET", base.hex()), 1);
}

#[test]
fn failure_reaches_every_waiter() {
    let world = World::new(TestRegistry::start(|_, _| TestAnswer::status(404)), 2);
    let handles = [world.request("app", false), world.request("app", false)];
    for handle in &handles {
        let error = handle.wait().expect_err("missing").to_string();
        assert!(error.starts_with("failed to pull "), "{error}");
    }
    // The failure is not remembered.
    world.request("app", false).wait().expect_err("missing");
    assert_eq!(world.puller.counts().current, 0);
}

#[test]
fn wrong_layer_stores_no_image() {
    let image = TestImage::new(&[b"right", b"other"]);
    let wrong = Digest::from_content(b"right");
    let registry =
        TestRegistry::start(
            move |request, _| match request.target.ends_with(wrong.hex()) {
                true => TestAnswer::ok(b"wrong"),
                false => image.answer(request),
            },
        );
    let world = World::new(registry, 2);
    let error = world.request("app", false).wait().expect_err("wrong");
    assert!(matches!(&*error, PullError::Store { .. }), "{error}");
    assert!(world.store.lock().expect("no panic").images.is_empty());
}

#[test]
fn last_waiter_cancels_the_pull() {
    let image = TestImage::new(&[b"layer"]);
    let (registry, open) = gated(image);
    let world = World::new(registry, 2);
    let (first, second) = (world.request("app", false), world.request("app", false));
    drop(first);
    assert!(second.outcome().is_none());
    let pull = second.pull.clone();
    drop(second);
    let outcome = pull.lock().outcome.clone().expect("ended");
    assert!(matches!(
        &*outcome.expect_err("cancelled"),
        PullError::Cancelled { .. }
    ));
    drop(open);
    // A new request starts anew.
    world.request("app", false).wait().expect("pulled");
}

#[test]
fn images_with_common_layer_share_it() {
    let (first, second) = (
        TestImage::new(&[b"base", b"1"]),
        TestImage::new(&[b"base", b"2"]),
    );
    let registry = TestRegistry::start(move |request, _| {
        let one = first.answer(request);
        match request.target.contains("/second/") || one.status == 404 {
            true => second.answer(request),
            false => one,
        }
    });
    let world = World::new(registry, 4);
    let handles = [
        world.request("first", false),
        world.request("second", false),
    ];
    for handle in &handles {
        handle.wait().expect("pulled");
    }
    let base = Digest::from_content(b"base");
    assert_eq!(world.count("GET", base.hex()), 1);
}

#[test]
fn folder_stands_in_for_a_registry() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let client = RegistryClient::new(RegistryOptions::default(), clock.clone());
    let options = PullOptions {
        source: Source::Archives(ArchiveFolder::new(folder.path().to_owned())),
        platform: Platform::for_this_machine(),
        downloads: 2,
    };
    let client = Arc::new(client.expect("no proxies"));
    let puller = Puller::new(client, Arc::new(MemoryStore::default()), options, clock);
    let request = PullRequest {
        reference: Reference::parse("app:1", "docker.io").expect("valid"),
        credentials: Credentials::default(),
        framework: "f".to_owned(),
        is_forced: false,
    };
    let error = puller
        .pull(request)
        .expect("room")
        .wait()
        .expect_err("missing");
    assert!(matches!(
        &*error,
        PullError::Origin { source, .. } if matches!(**source, OriginError::Archive(_))
    ));
}

#[test]
fn pulled_layers_reach_the_store() {
    if !crate::unpack::testing::is_root() {
        return;
    }
    let layer = |files: &[(&str, &[u8])]| {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder
                .append_data(&mut header, name, *bytes)
                .expect("added");
        }
        builder.into_inner().expect("finished")
    };
    let (bottom, top) = (layer(&[("etc/a", b"below")]), layer(&[("etc/b", b"above")]));
    let image = TestImage::new(&[&bottom, &top]);
    let cut = image.clone();
    let registry = TestRegistry::start(move |request, earlier| match earlier {
        0 if request.target.contains("/blobs/") => cut.answer(request).cut_after(700),
        _ => cut.answer(request),
    });
    let folder = tempfile::tempdir().expect("a folder");
    let options = crate::store::StoreOptions {
        root: folder.path().join("store"),
        unpacker: crate::store::Unpacker::InProcess,
    };
    let store = crate::store::Store::open(&options).expect("opened");
    let clock = VirtualClock::new();
    let client = RegistryClient::new(RegistryOptions::default(), clock.clone());
    let pull_options = PullOptions {
        source: Source::Registries,
        platform: Platform::for_this_machine(),
        downloads: 2,
    };
    let client = Arc::new(client.expect("no proxies"));
    let puller = Puller::new(client, Arc::new(store.clone()), pull_options, clock);
    let reference = Reference::parse("app", &registry.host()).expect("valid");
    let name = reference.to_string();
    let request = PullRequest {
        reference,
        credentials: Credentials::default(),
        framework: "f".to_owned(),
        is_forced: false,
    };
    let pulled = puller.pull(request).expect("room").wait();
    assert!(!pulled.expect("pulled").was_stored);
    let record = store
        .find(&name)
        .expect("readable")
        .expect("the image is stored");
    assert_eq!(record.config.as_bytes(), image.config);
    let folders = store.lower_folders(&record).expect("complete");
    let find = |path: &str| {
        let mut texts = folders
            .iter()
            .filter_map(|folder| std::fs::read_to_string(folder.join(path)).ok());
        texts.next()
    };
    assert_eq!(find("etc/a").as_deref(), Some("below"));
    assert_eq!(find("etc/b").as_deref(), Some("above"));
}
