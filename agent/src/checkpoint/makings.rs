//! The directories of volumes on disks of their own, made by one thread per disk.
//!
//! A call to a hung disk never returns. Therefore neither a checkpoint nor another disk waits for it: each disk has its
//! own thread. A directory that could not be made, or found no place in the queue, is made for the first task with that
//! volume ([`super::make_again`]). Before that, [`Makings::look`] finds out whether the disk answers at all. Invariant:
//! a disk's thread makes one directory at a time, in the order in which the volumes were created.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_resources::Resource;
use tokio::sync::{Notify, oneshot};
use tracing::{error, warn};

use super::durable::StoreError;
use super::holdings::{disk_of, make_again, make_on_own_disk, volume_path};
use super::layout::Layout;

/// Directories of one disk that may wait. Further directories are made for the tasks with their volumes.
const MAKINGS_MAX: usize = 1_024;

/// The function that makes a directory; tests replace it.
type Make = fn(&Making) -> Result<(), StoreError>;

/// The directories to be made; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Makings {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    make: Make,
    /// The disks by their roots; each has a thread.
    disks: Mutex<BTreeMap<PathBuf, Disk>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Disk {
    waiting: VecDeque<Making>,
    /// The path of the directory that the thread is making, and the waiters for it.
    begun: Option<(PathBuf, Vec<Waiter>)>,
    /// The number of directories begun.
    turns: u64,
    /// Notified when the thread begins the next directory.
    goes_on: Arc<Notify>,
    /// Whether the agent has logged that too many directories wait.
    is_crowded: bool,
}

/// Dropped when the directory was made, or the attempt failed.
type Waiter = oneshot::Sender<()>;

#[derive(Debug)]
struct Making {
    layout: Layout,
    volume: Resource,
    path: PathBuf,
    /// Whether the volume existed before: nothing is made where the disk itself is missing.
    is_again: bool,
    waiters: Vec<Waiter>,
}

impl Making {
    fn make(&self) -> Result<(), StoreError> {
        match self.is_again {
            true => make_again(&self.layout, &self.volume),
            false => make_on_own_disk(&self.layout, &self.volume),
        }
    }
}

/// The result of queueing a directory.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Queued {
    Yes,
    /// The disk is busy or hangs, and its queue is full.
    Full,
    /// There is no directory to make, or no thread to make it.
    No,
}

impl Disk {
    /// The waiters for a directory that is already queued or begun.
    fn waiters(&mut self, path: &Path) -> Option<&mut Vec<Waiter>> {
        if let Some((begun, waiters)) = &mut self.begun
            && begun == path
        {
            return Some(waiters);
        }
        let waiting = self.waiting.iter_mut().find(|one| one.path == path);
        waiting.map(|one| &mut one.waiters)
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
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Disk>> {
        let disks = self.shared.disks.lock();
        disks.unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the directory of a volume on a disk of its own. Does not wait for the disk.
    pub(super) fn add(&self, layout: &Layout, volume: &Resource) {
        self.queue(layout, volume, None);
    }

    /// Queues a directory. A waiter means that the volume existed before.
    fn queue(&self, layout: &Layout, volume: &Resource, waiter: Option<Waiter>) -> Queued {
        let (Some(path), Some(root)) = (volume_path(layout, volume), disk_of(layout, volume))
        else {
            return Queued::No;
        };
        let mut disks = self.disks();
        let has_thread = disks.contains_key(&root);
        let disk = disks.entry(root.clone()).or_default();
        if let Some(waiters) = disk.waiters(&path) {
            waiters.retain(|waiter| !waiter.is_closed());
            waiters.extend(waiter);
            return Queued::Yes;
        }
        if disk.waiting.len() >= MAKINGS_MAX {
            if !std::mem::replace(&mut disk.is_crowded, true) {
                warn!(
                    disk = %root.display(), max = MAKINGS_MAX,
                    "a disk does not answer or is busy: creating directories of further volumes \
                     for their first tasks"
                );
            }
            return Queued::Full;
        }
        disk.waiting.push_back(Making {
            layout: layout.clone(),
            volume: volume.clone(),
            path,
            is_again: waiter.is_some(),
            waiters: waiter.into_iter().collect(),
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
                "failed to start a thread for the directory of a volume; creating the directory \
                 for the first task"
            );
            return Queued::No;
        }
        Queued::Yes
    }

    /// Removes the directory of a destroyed volume from the queue, unless the thread has begun it.
    pub(super) fn cancel(&self, layout: &Layout, volume: &Resource) {
        let (Some(path), Some(root)) = (volume_path(layout, volume), disk_of(layout, volume))
        else {
            return;
        };
        if let Some(disk) = self.disks().get_mut(&root) {
            disk.waiting.retain(|one| one.path != path);
        }
    }

    /// Lets the disk's thread inspect the place of a volume and make a missing directory. Returns whether the disk
    /// answered: it did not if it was silent for `silence`; a busy disk that makes progress counts as answering.
    pub(crate) async fn look(&self, layout: &Layout, volume: &Resource, silence: Duration) -> bool {
        let (waiter, mut made) = oneshot::channel();
        let queued = self.queue(layout, volume, Some(waiter));
        loop {
            let Some((turns, goes_on)) = self.turns_of(layout, volume) else {
                return true;
            };
            let answered = async {
                match queued {
                    // The end of the work on the directory drops the sender.
                    Queued::Yes => drop((&mut made).await),
                    // The queue is full, so the caller makes the directory itself.
                    Queued::Full => goes_on.notified().await,
                    Queued::No => {}
                }
            };
            if tokio::time::timeout(silence, answered).await.is_ok() {
                return true;
            }
            let now = self.turns_of(layout, volume);
            if now.is_some_and(|(now, _)| now == turns) {
                return false;
            }
        }
    }

    /// The progress of the disk's thread, or `None` without a thread.
    fn turns_of(&self, layout: &Layout, volume: &Resource) -> Option<(u64, Arc<Notify>)> {
        let root = disk_of(layout, volume)?;
        let disks = self.disks();
        let disk = disks.get(&root)?;
        Some((disk.turns, disk.goes_on.clone()))
    }

    /// The work of a disk's thread. Returns when no directory is left to make.
    fn make_all(&self, root: &Path) {
        while let Some(making) = self.next(root) {
            if let Err(error) = (self.shared.make)(&making) {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                error!(%error, source, "failed to create the directory of a volume; retrying for \
                    each task with the volume");
            }
        }
    }

    /// The next directory of a disk, after the last one is made. Without a next directory the thread ends.
    fn next(&self, root: &Path) -> Option<Making> {
        let mut disks = self.disks();
        let disk = disks.get_mut(root)?;
        disk.turns += 1;
        disk.goes_on.notify_waiters();
        let next = disk.waiting.pop_front().map(|mut making| {
            let waiters = std::mem::take(&mut making.waiters);
            (making.path.clone(), waiters, making)
        });
        let Some((path, waiters, making)) = next else {
            disks.remove(root);
            drop(disks);
            self.shared.changed.notify_all();
            return None;
        };
        disk.begun = Some((path, waiters));
        Some(making)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use meseta_proto::convert;
    use meseta_proto::mesos::v1 as pb;

    use super::super::holdings::tests::{Disk as Kind, holdings_of, volume_on};
    use super::super::{NotReady, Store, VolumePlaces, Write, read};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// The channel that each call to the disk named `hangs` waits for.
    static HANGS: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

    /// Imitates a disk. The disk named `hangs` reports each call, and answers when the test releases it.
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
        /// Waits until no directory is left to make.
        pub(in crate::checkpoint) fn wait_until_made(&self) {
            let is_busy = |disks: &mut BTreeMap<PathBuf, Disk>| !disks.is_empty();
            let changed = &self.shared.changed;
            let waited = changed.wait_timeout_while(self.disks(), LIMIT, is_busy);
            assert!(!waited.expect("no panic").1.timed_out(), "{self:?}");
        }
    }

    /// A disk whose thread hangs, with volumes of these roles on it.
    pub(crate) fn silent_disk<const N: usize>(
        root: &Path,
        roles: [&str; N],
    ) -> (VolumePlaces, [pb::Resource; N]) {
        let places = VolumePlaces::default();
        let mut disks = places.makings.disks();
        disks.insert(root.to_owned(), Disk::default());
        drop(disks);
        let volume = |role| {
            let volume = volume_on(Kind::Path, root, role);
            convert::to_resource(&volume, convert::Format::PostRefinement).expect("a message")
        };
        (places, roles.map(volume))
    }

    /// Makes a silent disk finish one piece of work.
    pub(crate) fn go_on(places: &VolumePlaces, root: &Path) {
        if let Some(disk) = places.makings.disks().get_mut(root) {
            disk.turns += 1;
        }
    }

    #[tokio::test]
    async fn hung_disk_blocks_no_other_disk() {
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
        // The directory of a volume destroyed before its turn is not made.
        makings.cancel(&layout, &later);
        go.send(()).expect("it waits");
        makings.wait_until_made();
        assert!(hanging_path.is_dir());
        assert!(!volume_path(&layout, &later).expect("a path").exists());
    }

    /// Regression: a hung disk delayed all updates of the machine, and its start.
    #[tokio::test(start_paused = true)]
    async fn checkpoints_never_wait_for_hung_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let root = dir.path().join("disk");
        std::fs::create_dir(&root).expect("made");
        let volume = volume_on(Kind::Path, &root, "a");
        let path = volume_path(&layout, &volume).expect("a path");
        let write = holdings_of(&[&volume], &[&volume], &[]);
        let start = || {
            let store = Store::open(layout.clone());
            // Imitates a thread that hangs.
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
            let waited = places.wait(&layout, &volume, LIMIT).await;
            assert_eq!(waited, Err(NotReady::Silent));
        }
        assert!(!path.exists());
    }

    /// Work for other volumes on the disk does not count as its silence.
    #[tokio::test(start_paused = true)]
    async fn progressing_disk_extends_the_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let root = dir.path().join("disk");
        let makings = Makings::default();
        makings.disks().insert(root.clone(), Disk::default());
        let volume = volume_on(Kind::Path, &root, "a");
        let other = volume_on(Kind::Path, &root, "b");
        makings.add(&layout, &other);
        let mut looking = Box::pin(makings.look(&layout, &volume, Duration::from_millis(20)));
        for _ in 0..3 {
            // The disk's thread does the same.
            let waited = tokio::time::timeout(Duration::from_millis(15), &mut looking).await;
            assert!(waited.is_err(), "it goes on");
            if let Some(disk) = makings.disks().get_mut(&root) {
                disk.turns += 1;
            }
        }
        assert!(makings.next(&root).is_some(), "the other's");
        assert!(makings.next(&root).is_some(), "its own");
        assert!(makings.next(&root).is_none());
        assert!(looking.await);
        // A waiter that stopped waiting is forgotten.
        makings.disks().insert(root.clone(), Disk::default());
        for _ in 0..3 {
            assert!(!makings.look(&layout, &volume, Duration::ZERO).await);
        }
        assert_eq!(makings.disks()[&root].waiting[0].waiters.len(), 1);
    }

    /// Regression: a disk that began to hang after its volumes were made blocked the permits of launches.
    #[tokio::test]
    async fn disk_is_probed_before_launch() {
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
        // From here on the disk's thread hangs.
        let short = Duration::from_millis(1);
        places
            .makings
            .disks()
            .insert(there.clone(), Disk::default());
        let volume = volume_on(Kind::Path, &there, "a");
        let waited = places.wait(&layout, &volume, short).await;
        assert_eq!(waited, Err(NotReady::Silent));
        // The same holds when the queue is full.
        for number in 0..MAKINGS_MAX {
            places.makings.add(
                &layout,
                &volume_on(Kind::Path, &there, &format!("r{number}")),
            );
        }
        let other = volume_on(Kind::Path, &there, "b");
        let waited = places.wait(&layout, &other, short).await;
        assert_eq!(waited, Err(NotReady::Silent));
    }

    #[test]
    fn directories_waiting_for_disk_are_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let makings = Makings::default();
        // Imitates a thread that hangs.
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
