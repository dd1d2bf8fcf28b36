//! The directories of volumes on disks of their own, made on threads of their own.
//!
//! No call to a disk that hangs ends: neither a checkpoint waits for one, nor do other disks, each of which has its thread. What
//! could not be made, or found no room here, is made for the first task that has the volume ([`super::make_again`]); whether the
//! disk answers at all is found out here before that ([`Makings::look`]).
//! Invariant: of one disk one directory is made at a time, in the order in which their volumes were.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_resources::Resource;
use tokio::sync::Notify;
use tracing::{error, warn};

use super::durable::StoreError;
use super::holdings::{disk_of, make_again, make_on_own_disk, volume_path};
use super::layout::Layout;

/// Directories of one disk that may wait: more are made for the tasks that have their volumes.
const MAKINGS_MAX: usize = 1_024;

/// How a directory is made; another way in tests.
type Make = fn(&Making) -> Result<(), StoreError>;

/// The directories that are to be made; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Makings {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    make: Make,
    /// By the root of the disk; each has a thread.
    disks: Mutex<BTreeMap<PathBuf, Disk>>,
    changed: Condvar,
    /// The same for those that may not block.
    told: Notify,
}

#[derive(Debug, Default)]
struct Disk {
    waiting: VecDeque<Making>,
    /// The place of the directory that is being made.
    begun: Option<PathBuf>,
    /// Whether it was said that too many wait.
    is_crowded: bool,
}

#[derive(Debug)]
struct Making {
    layout: Layout,
    volume: Resource,
    path: PathBuf,
    /// Its volume is there for long: nothing is made where the disk itself is missing.
    is_again: bool,
}

impl Making {
    fn make(&self) -> Result<(), StoreError> {
        match self.is_again {
            true => make_again(&self.layout, &self.volume),
            false => make_on_own_disk(&self.layout, &self.volume),
        }
    }
}

/// Whether there was room.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Queued {
    Yes,
    /// The disk has too much to do, or hangs.
    Full,
    /// There is nothing to be made, or nobody to do it.
    No,
}

impl Disk {
    fn has(&self, path: &Path) -> bool {
        self.begun.as_deref() == Some(path) || self.waiting.iter().any(|one| one.path == path)
    }
}

impl Default for Makings {
    fn default() -> Self {
        Self::made_by(Making::make)
    }
}

impl Makings {
    fn made_by(make: Make) -> Self {
        let shared = Shared {
            make,
            disks: Mutex::default(),
            changed: Condvar::new(),
            told: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Disk>> {
        let disks = self.shared.disks.lock();
        disks.unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the directory of a volume on a disk of its own made. Waits for no disk.
    pub(super) fn add(&self, layout: &Layout, volume: &Resource) {
        self.queue(layout, volume, false);
    }

    fn queue(&self, layout: &Layout, volume: &Resource, is_again: bool) -> Queued {
        let (Some(path), Some(root)) = (volume_path(layout, volume), disk_of(layout, volume))
        else {
            return Queued::No;
        };
        let mut disks = self.disks();
        let has_thread = disks.contains_key(&root);
        let disk = disks.entry(root.clone()).or_default();
        if disk.has(&path) {
            return Queued::Yes;
        }
        if disk.waiting.len() >= MAKINGS_MAX {
            if !std::mem::replace(&mut disk.is_crowded, true) {
                warn!(
                    disk = %root.display(), max = MAKINGS_MAX,
                    "a disk does not answer, or has much to do: directories of further volumes are made for their first tasks"
                );
            }
            return Queued::Full;
        }
        disk.waiting.push_back(Making {
            layout: layout.clone(),
            volume: volume.clone(),
            path,
            is_again,
        });
        if has_thread {
            return Queued::Yes;
        }
        let (this, of_thread) = (self.clone(), root.clone());
        let thread = std::thread::Builder::new().name("volume-making".to_owned());
        if let Err(error) = thread.spawn(move || this.make_all(&of_thread)) {
            disks.remove(&root);
            warn!(
                disk = %root.display(), %error,
                "no thread to make the directory of a volume: it is made for its first task"
            );
            return Queued::No;
        }
        Queued::Yes
    }

    /// A volume was destroyed: its directory is not made any more, unless that has begun.
    pub(super) fn cancel(&self, layout: &Layout, volume: &Resource) {
        let (Some(path), Some(root)) = (volume_path(layout, volume), disk_of(layout, volume))
        else {
            return;
        };
        if let Some(disk) = self.disks().get_mut(&root) {
            disk.waiting.retain(|one| one.path != path);
        }
    }

    /// Whether the directory at this place is still to be made.
    pub(crate) fn is_waiting(&self, path: &Path) -> bool {
        self.disks().values().any(|disk| disk.has(path))
    }

    /// Has the place of a volume on a disk of its own looked at, and its directory made if that is missing; waits for `limit` at
    /// most. Whether the disk has answered.
    pub(crate) async fn look(&self, layout: &Layout, volume: &Resource, limit: Duration) -> bool {
        let answered = async {
            self.until(|| self.queue(layout, volume, true) != Queued::Full)
                .await;
            if let Some(path) = volume_path(layout, volume) {
                self.until(|| !self.is_waiting(&path)).await;
            }
        };
        tokio::time::timeout(limit, answered).await.is_ok()
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let told = self.shared.told.notified();
            if is_so() {
                return;
            }
            told.await;
        }
    }

    /// The work of a disk's thread: returns when nothing is left to be made there.
    fn make_all(&self, root: &Path) {
        while let Some(making) = self.next(root) {
            if let Err(error) = (self.shared.make)(&making) {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                error!(%error, source, "the directory of a volume could not be made; it is tried again for each task that has it");
            }
        }
    }

    /// The next one of a disk, once the one before is made; without any the disk has no thread any more.
    fn next(&self, root: &Path) -> Option<Making> {
        let mut disks = self.disks();
        let disk = disks.get_mut(root)?;
        let next = disk.waiting.pop_front();
        disk.begun = next.as_ref().map(|making| making.path.clone());
        if next.is_none() {
            disks.remove(root);
        }
        drop(disks);
        self.shared.changed.notify_all();
        self.shared.told.notify_waiters();
        next
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::holdings::tests::{Disk as Kind, holdings_of, volume_on};
    use super::super::{NotReady, Store, VolumePlaces, Write, read};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What a disk of this name waits for at each call.
    static HANGS: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

    /// As a disk of the name `hangs` does it: it tells that it was asked, and answers when it is let go.
    fn make(making: &Making) -> Result<(), StoreError> {
        let root = disk_of(&making.layout, &making.volume).expect("a disk");
        if root.ends_with("hangs")
            && let Some((asked, let_go)) = &*HANGS.lock().expect("no panic")
        {
            asked.send(()).expect("somebody waits");
            let_go.recv_timeout(LIMIT).expect("let go");
        }
        making.make()
    }

    impl Makings {
        /// Waits until nothing is left to be made.
        pub(in crate::checkpoint) fn wait_until_made(&self) {
            let is_busy = |disks: &mut BTreeMap<PathBuf, Disk>| !disks.is_empty();
            let changed = &self.shared.changed;
            let waited = changed.wait_timeout_while(self.disks(), LIMIT, is_busy);
            assert!(!waited.expect("no panic").1.timed_out(), "{self:?}");
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_keeps_no_directory_from_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let [hangs, well] = ["hangs", "well"].map(|name| dir.path().join(name));
        let [on_hanging, on_well] = [&hangs, &well].map(|root| {
            std::fs::create_dir(root).expect("made");
            volume_on(Kind::Path, root, "a")
        });
        let [hanging_path, well_path] =
            [&on_hanging, &on_well].map(|volume| volume_path(&layout, volume).expect("a path"));
        let (asked, is_asked) = channel();
        let (go, let_go) = channel();
        *HANGS.lock().expect("no panic") = Some((asked, let_go));
        let makings = Makings::made_by(make);
        makings.add(&layout, &on_hanging);
        is_asked.recv_timeout(LIMIT).expect("asked");
        let later = volume_on(Kind::Path, &hangs, "b");
        makings.add(&layout, &later);
        makings.add(&layout, &on_well);
        assert!(makings.look(&layout, &on_well, LIMIT).await);
        assert!(well_path.is_dir());
        assert!(!makings.look(&layout, &on_hanging, Duration::ZERO).await);
        // What was destroyed before its turn is not made any more.
        makings.cancel(&layout, &later);
        go.send(()).expect("it waits");
        makings.wait_until_made();
        assert!(hanging_path.is_dir());
        assert!(!volume_path(&layout, &later).expect("a path").exists());
    }

    /// It held up all that was told on the machine, and its start.
    #[tokio::test(start_paused = true)]
    async fn no_checkpoint_waits_for_a_disk_that_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let root = dir.path().join("disk");
        std::fs::create_dir(&root).expect("made");
        let volume = volume_on(Kind::Path, &root, "a");
        let path = volume_path(&layout, &volume).expect("a path");
        let write = holdings_of(&[&volume], &[&volume], &[]);
        let start = || {
            let store = Store::open(layout.clone());
            // As beside a thread that hangs.
            let disks = &store.volume_places().makings;
            disks.disks().insert(root.clone(), Disk::default());
            store
        };
        let created = start();
        created.commit([&write]).expect("written");
        let restored = start();
        let image = read(&layout).expect("readable");
        let record = Box::new(image.holdings.expect("a record"));
        let restore = Write::RestoreVolumes { record };
        restored.commit([&restore]).expect("written");
        for store in [created, restored] {
            let places = store.volume_places();
            assert_eq!(places.check(&path), Err(NotReady::BeingMade));
            let waited = places.wait(&layout, &volume, LIMIT).await;
            assert_eq!(waited, Err(NotReady::BeingMade));
        }
        assert!(!path.exists());
    }

    /// A disk that began to hang after its volumes were made held the turns of launches.
    #[tokio::test]
    async fn a_disk_is_looked_at_before_a_launch_and_made_nowhere_but_on_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let [there, missing] = ["there", "missing"].map(|name| dir.path().join(name));
        std::fs::create_dir(&there).expect("made");
        let places = VolumePlaces::default();
        for (kind, root) in [
            (Kind::Path, &there),
            (Kind::Path, &missing),
            (Kind::Mount, &missing),
        ] {
            let volume = volume_on(kind, root, "a");
            let waited = places.wait(&layout, &volume, LIMIT).await;
            assert_eq!(waited, Ok(()));
            let path = volume_path(&layout, &volume).expect("a path");
            assert_eq!(path.is_dir(), *root == there);
        }
        // From here on as beside a thread that hangs.
        let short = Duration::from_millis(1);
        places
            .makings
            .disks()
            .insert(there.clone(), Disk::default());
        let volume = volume_on(Kind::Path, &there, "a");
        let waited = places.wait(&layout, &volume, short).await;
        assert_eq!(waited, Err(NotReady::BeingMade));
        // Also where there is no room for one more.
        for number in 0..MAKINGS_MAX {
            places.makings.add(
                &layout,
                &volume_on(Kind::Path, &there, &format!("r{number}")),
            );
        }
        let other = volume_on(Kind::Path, &there, "b");
        let waited = places.wait(&layout, &other, short).await;
        assert_eq!(waited, Err(NotReady::BeingMade));
    }

    #[test]
    fn of_a_disk_that_hangs_so_many_directories_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let makings = Makings::default();
        // As beside a thread that hangs.
        let root = dir.path().join("disk");
        makings.disks().insert(root.clone(), Disk::default());
        for number in 0..MAKINGS_MAX + 2 {
            let volume = volume_on(Kind::Path, &root, &format!("r{number}"));
            makings.add(&layout, &volume);
            makings.add(&layout, &volume);
        }
        assert_eq!(makings.disks()[&root].waiting.len(), MAKINGS_MAX);
    }
}
