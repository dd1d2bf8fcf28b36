//! Failing disks: with a file in the place of a disk's folder every call fails, also for root.

use std::fs;

use super::super::holdings::tests::{Disk, holdings_of, volume_on};
use super::super::{Image, Store, Write, read};
use super::*;

/// An upper bound for any removal.
const LIMIT: Duration = Duration::from_secs(60);

/// A work directory, and a disk beside it.
struct Fixture {
    _dir: tempfile::TempDir,
    layout: Layout,
    disk: PathBuf,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).expect("made");
        Self {
            store: Store::open(layout.clone()),
            layout,
            disk,
            _dir: dir,
        }
    }

    fn volume(&self, disk: Disk, role: &str) -> Resource {
        volume_on(disk, &self.disk, role)
    }

    fn commit(&self, holds: &[&Resource], created: &[&Resource], destroyed: &[&Resource]) {
        let written = self.store.commit(&[holdings_of(holds, created, destroyed)]);
        written.expect("the work directory is well");
    }

    fn create(&self, volume: &Resource) {
        self.commit(&[volume], &[volume], &[]);
        self.store.volume_places().makings.wait_until_made();
    }

    fn destroy(&self, volume: &Resource) {
        self.commit(&[], &[], &[volume]);
    }

    fn path(&self, volume: &Resource) -> PathBuf {
        volume_path(&self.layout, volume).expect("a path")
    }

    /// Makes every call to the disk fail from now on.
    fn falls_ill(&self) {
        fs::rename(&self.disk, self.disk.with_extension("well")).expect("moved");
        fs::write(&self.disk, "no folder").expect("written");
    }

    /// Repairs the disk atomically: a disk that is missing for a moment would have nothing to remove.
    fn recovers(&self) {
        let well = self.disk.with_extension("well");
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        let exchanged = rustix::fs::renameat_with(
            rustix::fs::CWD,
            &well,
            rustix::fs::CWD,
            &self.disk,
            exchange,
        );
        exchanged.expect("exchanged");
        fs::remove_file(well).expect("removed");
    }

    /// Names of destroyed volumes on the disk.
    fn recorded(&self) -> usize {
        let image = read(&self.layout).expect("readable");
        image.holdings.map_or(0, |record| record.destroyed.len())
    }

    /// Waits until the thread has removed all data.
    fn removed(&self) {
        let removals = self.store.removals();
        let waits = |state: &mut State| state.removals.iter().any(|one| !one.is_done);
        let changed = &removals.shared.changed;
        let waited = changed.wait_timeout_while(removals.state(), LIMIT, waits);
        assert!(!waited.expect("no panic").1.timed_out(), "{removals:?}");
    }

    /// Starts another agent, after the end of this one.
    fn restart(&mut self) -> Image {
        let image = read(&self.layout).expect("readable");
        let before = self.store.removals().clone();
        self.store = Store::open(self.layout.clone()).after(&image);
        let runs = |state: &mut State| !state.disks.is_empty();
        let changed = &before.shared.changed;
        let waited = changed.wait_timeout_while(before.state(), LIMIT, runs);
        assert!(!waited.expect("no panic").1.timed_out(), "{before:?}");
        let record = Box::new(image.holdings.clone().expect("a record"));
        let restored = self.store.commit(&[Write::RestoreVolumes { record }]);
        restored.expect("the work directory is well");
        self.store.volume_places().makings.wait_until_made();
        image
    }
}

/// Writes data into a volume. The data exists when this returns.
fn write_data(path: &Path) -> PathBuf {
    let file = path.join("folder/file");
    fs::create_dir_all(path.join("folder")).expect("made");
    fs::write(&file, "data").expect("written");
    file
}

#[test]
fn volume_removal_runs_beside_checkpoints() {
    for disk in [Disk::Path, Disk::Mount] {
        let fixture = Fixture::new();
        let volume = fixture.volume(disk, "a");
        let path = fixture.path(&volume);
        fixture.create(&volume);
        let data = write_data(&path);
        fixture.destroy(&volume);
        assert_eq!(
            fixture.recorded(),
            1,
            "a crash may come before it is removed"
        );
        fixture.removed();
        assert!(!data.exists());
        assert_eq!(path.exists(), disk == Disk::Mount, "a whole disk stays");
        // The volume is not released before the next start could no longer remove its data.
        let removals = fixture.store.removals();
        assert!(removals.is_left(&path));
        fixture
            .store
            .commit(&[Write::ForgetRemoved])
            .expect("written");
        assert!(!removals.is_left(&path));
        assert_eq!(fixture.recorded(), 0);
        fixture.create(&volume);
        assert!(path.is_dir());
    }
}

#[test]
fn failed_disk_removal_resumes_after_restart() {
    for disk in [Disk::Path, Disk::Mount] {
        let mut fixture = Fixture::new();
        let volume = fixture.volume(disk, "a");
        let path = fixture.path(&volume);
        fixture.create(&volume);
        let data = write_data(&path);
        fixture.falls_ill();
        fixture.destroy(&volume);
        // Another role gets the disk, and the agent starts again.
        let next = fixture.volume(disk, "b");
        fixture.create(&next);
        assert_eq!(fixture.recorded(), 1);
        assert!(fixture.store.removals().is_left(&path));
        fixture.restart();
        assert!(fixture.store.removals().is_left(&path));
        fixture.recovers();
        fixture.restart();
        fixture.removed();
        fixture
            .store
            .commit(&[Write::ForgetRemoved])
            .expect("written");
        assert!(!data.exists(), "{disk:?}");
        assert_eq!(fixture.recorded(), 0);
        assert!(!fixture.store.removals().is_left(&path));
        // Data written from now on must never be removed.
        let next = fixture.path(&next);
        let data = write_data(&next);
        fixture.restart();
        fixture.removed();
        assert!(data.exists(), "{disk:?}");
    }
}

#[test]
fn failed_removal_is_retried() {
    let fixture = Fixture::new();
    let volume = fixture.volume(Disk::Mount, "a");
    let data = write_data(&fixture.path(&volume));
    fixture.falls_ill();
    let thread = RemovalThreads::start_with(Duration::from_millis(1));
    thread.removals().add(&fixture.layout, [&volume]);
    assert!(!thread.removals().has_done());
    fixture.recovers();
    let removals = thread.removals();
    let waits = |state: &mut State| state.removals.iter().any(|one| !one.is_done);
    let waited = removals
        .shared
        .changed
        .wait_timeout_while(removals.state(), LIMIT, waits);
    drop(waited);
    assert!(!data.exists());
}

#[test]
fn failed_directory_is_made_for_task() {
    let fixture = Fixture::new();
    let volume = fixture.volume(Disk::Path, "a");
    let again = || super::super::make_again(&fixture.layout, &volume);
    fixture.falls_ill();
    fixture.create(&volume);
    assert!(
        again().is_ok(),
        "without a disk there is nothing to be made"
    );
    fixture.recovers();
    again().expect("made");
    let data = write_data(&fixture.path(&volume));
    again().expect("it is there");
    assert!(data.exists());
}

#[test]
fn whole_disk_removals_survive_the_bound() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let removals = Removals::default();
    let mount = volume_on(Disk::Mount, &dir.path().join("mount"), "a");
    let numbers = 0..REMOVALS_MAX + 2;
    let paths = numbers.map(|number| volume_on(Disk::Path, dir.path(), &format!("r{number}")));
    let paths: Vec<_> = paths.collect();
    removals.add(&layout, std::iter::once(&mount).chain(&paths));
    let waiting = removals.now().waiting;
    assert_eq!(waiting.len(), REMOVALS_MAX);
    assert_eq!((&waiting[0], &waiting[1]), (&mount, &paths[3]));
    // A removal in progress is not abandoned either, and an abandoned removal removes nothing.
    let begun = removals.todo(dir.path()).expect("some").0.remove(0);
    assert!(removals.begin(&begun));
    removals.add(&layout, [&volume_on(Disk::Path, dir.path(), "later")]);
    assert_eq!(removals.now().waiting[1], begun.volume);
    let given_up = Removal {
        number: begun.number + 1,
        ..begun.clone()
    };
    let data = write_data(&given_up.path);
    assert!(removals.remove(&given_up));
    assert!(data.exists());
    // Adding the same place again adds no removal.
    removals.add(&layout, [&mount]);
    assert_eq!(removals.now().waiting.len(), REMOVALS_MAX);
}

/// A hung or very full disk does not prevent removals on another disk.
#[test]
fn each_disk_has_its_own_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(&dir.path().join("w"));
    let threads = RemovalThreads::start_with(LIMIT);
    let removals = threads.removals();
    let [ill, well] = ["ill", "well"].map(|name| dir.path().join(name));
    let [on_ill, on_well] = [&ill, &well].map(|disk| volume_on(Disk::Mount, disk, "a"));
    fs::write(&ill, "no folder").expect("written");
    let data = write_data(&well);
    removals.add(&layout, [&on_ill]);
    removals.add(&layout, [&on_well]);
    let waits = |state: &mut State| state.disks.contains(&well);
    let changed = &removals.shared.changed;
    let waited = changed.wait_timeout_while(removals.state(), LIMIT, waits);
    assert!(!waited.expect("no panic").1.timed_out(), "{removals:?}");
    assert!(!data.exists());
    assert!(removals.is_left(&ill));
}

#[tokio::test]
async fn wait_ends_after_durable_removal() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let removals = Removals::default();
    let volume = volume_on(Disk::Path, dir.path(), "a");
    let path = volume_path(&layout, &volume).expect("a path");
    removals.add(&layout, [&volume]);
    assert!(!removals.emptied(&path, Duration::ZERO).await);
    let removal = removals.todo(dir.path()).expect("one").0.remove(0);
    let waiting = tokio::spawn({
        let removals = removals.clone();
        async move { removals.emptied(&path, LIMIT).await }
    });
    assert!(removals.remove(&removal));
    let done = removals.now().done;
    removals.forget(&done);
    assert!(waiting.await.expect("no panic"));
}
