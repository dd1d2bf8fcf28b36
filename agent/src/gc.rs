//! Removes old sandboxes: after `--gc_delay`, or sooner as the disk fills.
//!
//! A sandbox waits from the end of its run, and is removed once it is older than `gc_delay * max(0, 1 -
//! gc_disk_headroom - used)`. Here `used` is the used share of the disk's bytes or inodes. Ages survive a restart
//! ([`SandboxAges`]); a sandbox without a run and without a recorded age waits from its discovery. The contents decide
//! how long a removal takes. Frameworks therefore take turns of some seconds, so that a slow removal delays only its
//! own framework, and no look at the disk. Invariant: the sandbox of an active run is never touched, mounts in a
//! sandbox are never followed, and no change of the wall clock makes a sandbox go sooner.

mod former_agents;
mod removal_queue;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::BootId;
use meseta_isolators::beneath::{Folder, RemovalProgress};
use meseta_isolators::mount_table::MountTable;
use meseta_resources::AgentId;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::checkpoint::{Image, Layout, SandboxAges};
use crate::clock::uptime;
use crate::folders::unless_gone;
use removal_queue::RemovalQueue;
use turn::Turn;

/// The first and the longest pause before another attempt at a failed removal; it doubles between. A single disk error,
/// or a shortage of descriptors, is over soon.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);
const PAUSE_AFTER_FAILURE_MAX: Duration = Duration::from_secs(600);

/// Ages are recorded when sandboxes come or go, and at least at this interval: a reboot loses no more.
const AGES_INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// The time for which a thread removes sandboxes of one framework while others may wait.
const TURN: Duration = Duration::from_secs(10);

/// The folder of an executor's sandboxes, and the link in it to the newest.
const RUNS: &str = "runs";
const LATEST: &str = "latest";
/// The name of the link while it is removed.
const LATEST_ASIDE: &str = "latest.old";
/// The prefix of the name of a new link, until it replaces an earlier one.
pub(crate) const LATEST_FRESH: &str = ".latest.";

/// The settings of the garbage collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The value of `--gc_delay`.
    pub(crate) delay: Duration,
    /// `--gc_disk_headroom`, from 0 to 1.
    pub(crate) headroom: f64,
    /// The value of `--disk_watch_interval`.
    pub(crate) interval: Duration,
}

/// The queue of sandboxes to remove.
#[derive(Clone, Debug)]
pub(crate) struct Gc {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    layout: Layout,
    turn: Duration,
    sandboxes: Mutex<Known>,
    removed: AtomicU64,
    failed: AtomicU64,
    /// Notified when the disk is full, and when a thread has finished all removals that were due.
    woken: Notify,
}

/// The known sandboxes of the agent.
#[derive(Debug, Default)]
struct Known {
    /// The sandboxes of ended runs.
    waiting: BTreeMap<PathBuf, Waiting>,
    /// The next attempts at failed removals.
    again: BTreeMap<PathBuf, Again>,
    /// The sandboxes of active runs, existing or not yet made.
    live: BTreeSet<PathBuf>,
    /// Whether the waiting sandboxes differ from the record.
    is_changed: bool,
    /// The time of the last record of their ages.
    recorded: Duration,
    removals: RemovalQueue,
    /// Former agents with checkpoints in the work directory.
    former_agents: Vec<AgentId>,
}

/// The waiting time of a sandbox.
#[derive(Copy, Clone, Debug)]
struct Waiting {
    /// The sandbox's age at `since`.
    before: Duration,
    /// The time at which `before` was its age, by [`uptime`].
    since: Duration,
}

/// The next attempt at a failed removal.
#[derive(Copy, Clone, Debug)]
struct Again {
    /// The time of the attempt, by [`uptime`].
    at: Duration,
    /// The length of the pause before the attempt.
    pause: Duration,
}

impl Waiting {
    fn age(self, now: Duration) -> Duration {
        self.before.saturating_add(now.saturating_sub(self.since))
    }
}

impl Known {
    fn forget(&mut self, sandbox: &Path) {
        self.is_changed |= self.waiting.remove(sandbox).is_some();
        self.again.remove(sandbox);
    }

    /// Whether an active run has its sandbox in this folder, or will have.
    fn has_live_in(&self, folder: &Path) -> bool {
        let from = (Bound::Included(folder), Bound::Unbounded);
        let mut live = self.live.range::<Path, _>(from);
        live.next().is_some_and(|live| live.starts_with(folder))
    }

    /// Returns the ages to record, if that is due. Later changes make it due again.
    fn unrecorded_ages(&mut self, now: Duration) -> Option<SandboxAges> {
        let is_old = now.saturating_sub(self.recorded) >= AGES_INTERVAL_MAX;
        let was_changed = std::mem::take(&mut self.is_changed);
        let is_due = was_changed || (is_old && !self.waiting.is_empty());
        let ages = self.waiting.iter();
        let ages = ages.map(|(path, waiting)| (path.clone(), waiting.age(now)));
        is_due.then(|| SandboxAges(ages.collect()))
    }
}

/// The numbers of waiting, removed and failed sandboxes.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counts {
    pub(crate) pending: usize,
    pub(crate) removed: u64,
    pub(crate) failed: u64,
}

impl Gc {
    pub(crate) fn new(options: Options, layout: Layout) -> Self {
        Self {
            inner: Arc::new(Inner {
                options,
                layout,
                turn: TURN,
                sandboxes: Mutex::default(),
                removed: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                woken: Notify::new(),
            }),
        }
    }

    /// Keeps the sandbox of a run that is about to begin.
    pub(crate) fn keep(&self, sandbox: PathBuf) {
        let mut known = self.known();
        known.forget(&sandbox);
        known.live.insert(sandbox);
    }

    /// Queues the sandbox of a run that is over.
    pub(crate) fn discard(&self, sandbox: PathBuf) {
        let mut known = self.known();
        known.live.remove(&sandbox);
        let waiting = Waiting {
            before: Duration::ZERO,
            since: uptime(),
        };
        known.waiting.insert(sandbox, waiting);
        known.is_changed = true;
    }

    /// Wakes the collection before its next interval.
    pub(crate) fn wake(&self) {
        self.inner.woken.notify_one();
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            pending: self.known().waiting.len(),
            removed: self.inner.removed.load(Ordering::Relaxed),
            failed: self.inner.failed.load(Ordering::Relaxed),
        }
    }

    /// The age that a sandbox may reach now.
    pub(crate) fn age_allowed(&self) -> Duration {
        let used = disk_used(self.inner.layout.work_dir()).unwrap_or_default();
        age_allowed(&self.inner.options, used)
    }

    /// Finds the sandboxes of earlier agent processes, then collects at each interval.
    pub(crate) async fn run(self, boot: BootId) {
        let mut is_found = false;
        let mut ticks = tokio::time::interval(self.inner.options.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.inner.woken.notified() => {}
            }
            let (this, boot) = (self.clone(), boot.clone());
            let pass = move || {
                let now = uptime();
                let is_found = is_found || this.find(&boot, now);
                this.remove_former_agents();
                // The collection does not wait for them; an ending agent leaves the rest to the next agent.
                drop(this.prune(now));
                if is_found {
                    this.record_ages(&boot, now);
                }
                is_found
            };
            let found = tokio::task::spawn_blocking(pass).await;
            is_found = found.unwrap_or(is_found);
        }
    }

    fn remove_former_agents(&self) {
        let former = std::mem::take(&mut self.known().former_agents);
        if !former.is_empty() {
            let left = former_agents::without_sandboxes(&self.inner.layout, former);
            self.known().former_agents = left;
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        let known = self.inner.sandboxes.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the sandboxes on the disk. Returns whether all folders could be listed.
    fn find(&self, boot: &BootId, now: Duration) -> bool {
        let ages = SandboxAges::read(&self.inner.layout, boot, now).unwrap_or_else(|error| {
            let error = chain(&error);
            warn!(
                error,
                "failed to read the ages of old sandboxes; each waits for --gc_delay again"
            );
            SandboxAges::default()
        });
        // slaves/<agent>/frameworks/<framework>/executors/<executor>/runs/<container>
        let levels = [None, Some("frameworks"), Some("executors"), Some(RUNS)];
        let (mut folders, mut emptied) = (vec![self.inner.layout.sandboxes()], Vec::new());
        let mut is_whole = true;
        for level in levels {
            let mut found = Vec::new();
            for folder in folders {
                let folder = level.map_or_else(|| folder.clone(), |name| folder.join(name));
                match folders_in(&folder) {
                    Ok(inside) if inside.is_empty() => emptied.push(folder),
                    Ok(inside) => found.extend(inside),
                    Err(error) => {
                        let path = folder.display();
                        warn!(%path, %error, "failed to list old sandboxes; retrying");
                        is_whole = false;
                    }
                }
            }
            folders = found;
        }
        // An agent that crashed during a removal may have left these.
        for folder in emptied {
            if self.known().removals.includes(&folder) {
                is_whole = false;
                continue;
            }
            if let Err(error) = self.remove_emptied(&folder) {
                warn!(path = %folder.display(), %error, "failed to remove an empty folder of old \
                    sandboxes; retrying");
                is_whole = false;
            }
        }
        let mut known = self.known();
        for sandbox in folders {
            if !known.live.contains(&sandbox) {
                let before = ages.0.get(&sandbox).copied().unwrap_or_default();
                let waiting = Waiting { before, since: now };
                known.waiting.entry(sandbox).or_insert(waiting);
            }
        }
        known.is_changed = true;
        is_whole
    }

    fn record_ages(&self, boot: &BootId, now: Duration) {
        let Some(ages) = self.known().unrecorded_ages(now) else {
            return;
        };
        if let Err(error) = ages.write(&self.inner.layout, boot, now) {
            warn!(
                error = chain(&error),
                "failed to record the ages of old sandboxes"
            );
            self.known().is_changed = true;
            return;
        }
        self.known().recorded = now;
    }

    /// Begins to remove old sandboxes, of some frameworks at the same time, on threads that continue by themselves.
    fn prune(&self, now: Duration) -> Vec<JoinHandle<()>> {
        let due = self.due(now);
        let mut known = self.known();
        for sandbox in due {
            // frameworks/<framework>/executors/<executor>/runs/<container>
            let framework = sandbox.ancestors().nth(4).unwrap_or(&sandbox);
            known.removals.add(framework, now);
        }
        drop(known);
        let mut begun = Vec::new();
        while let Some(turn) = self.next_turn() {
            let thread = std::thread::Builder::new().name("sandbox-removal".to_owned());
            match thread.spawn(move || turn.and_those_after()) {
                Ok(thread) => begun.push(thread),
                Err(error) => {
                    warn!(%error, "failed to remove old sandboxes; retrying");
                    break;
                }
            }
        }
        begun
    }

    /// The framework that has waited longest, if another thread may start.
    fn next_turn(&self) -> Option<Turn> {
        let (framework, now) = self.known().removals.begin()?;
        Some(Turn {
            gc: self.clone(),
            framework,
            now,
        })
    }

    fn due(&self, now: Duration) -> Vec<PathBuf> {
        self.due_in(Path::new(""), now)
    }

    /// The sandboxes in a folder that are due for removal.
    fn due_in(&self, folder: &Path, now: Duration) -> Vec<PathBuf> {
        let allowed = self.age_allowed();
        let known = self.known();
        let from = (Bound::Included(folder), Bound::Unbounded);
        let waiting = known.waiting.range::<Path, _>(from);
        let waiting = waiting.take_while(|(path, _)| path.starts_with(folder));
        let is_due = |path: &Path, waiting: Waiting| {
            let pauses = known.again.get(path).is_some_and(|again| now < again.at);
            waiting.age(now) >= allowed && !pauses
        };
        let due = waiting.filter(|(path, waiting)| is_due(path, **waiting));
        due.map(|(path, _)| path.clone()).collect()
    }

    /// Removes a sandbox while `goes_on` returns true.
    fn prune_one(&self, path: &Path, now: Duration, goes_on: &dyn Fn() -> bool) {
        if !self.known().waiting.contains_key(path) {
            // A new run has taken the sandbox meanwhile.
            return;
        }
        let removed = self.remove(path, goes_on);
        self.note_removal(path, now, removed);
    }

    /// Records the progress of a removal.
    fn note_removal(&self, path: &Path, now: Duration, removed: io::Result<RemovalProgress>) {
        match removed {
            Ok(RemovalProgress::Done) => {
                info!(path = %path.display(), "removed an old sandbox");
                self.inner.removed.fetch_add(1, Ordering::Relaxed);
                self.known().forget(path);
            }
            Ok(RemovalProgress::Stopped(None)) => {}
            // Other sandboxes of the framework have their turn during the pause. The pause stays short, since a further
            // part may be removable.
            Ok(RemovalProgress::Stopped(Some(error))) => self.try_later(path, now, &error, 1),
            Err(error) => self.try_later(path, now, &error, 2),
        }
    }

    /// Schedules another attempt after a pause, which is the last pause times `factor`.
    fn try_later(&self, path: &Path, now: Duration, error: &io::Error, factor: u32) {
        warn!(path = %path.display(), %error, "failed to remove an old sandbox");
        self.inner.failed.fetch_add(1, Ordering::Relaxed);
        let mut known = self.known();
        if known.waiting.contains_key(path) {
            let before = known.again.get(path).map(|again| again.pause * factor);
            let pause = before.unwrap_or(PAUSE_AFTER_FAILURE);
            let pause = pause.min(PAUSE_AFTER_FAILURE_MAX);
            // The removal may have taken longer than the pause.
            let at = now.max(uptime()) + pause;
            known.again.insert(path.to_owned(), Again { at, pause });
        }
    }

    fn remove(&self, sandbox: &Path, goes_on: &dyn Fn() -> bool) -> io::Result<RemovalProgress> {
        detach_mounts(sandbox)?;
        match (sandbox.parent().map(Folder::open), sandbox.file_name()) {
            (Some(Ok(runs)), Some(name)) => match runs.remove_while(Path::new(name), goes_on) {
                Ok(RemovalProgress::Stopped(failure)) => {
                    return Ok(RemovalProgress::Stopped(failure));
                }
                removed => unless_gone(removed.map(drop))?,
            },
            (Some(Err(error)), _) if error.kind() != ErrorKind::NotFound => {
                return Err(error);
            }
            _ => {}
        }
        let runs = sandbox.parent();
        runs.map_or(Ok(()), |runs| self.remove_emptied(runs))?;
        Ok(RemovalProgress::Done)
    }

    /// Removes a folder that held sandboxes, and its empty parents, except folders that an active run needs.
    fn remove_emptied(&self, folder: &Path) -> io::Result<()> {
        let top = self.inner.layout.sandboxes();
        let is_ours = |folder: &&Path| *folder != top && folder.starts_with(&top);
        for folder in folder.ancestors().take_while(is_ours) {
            if self.known().has_live_in(folder) {
                return Ok(());
            }
            if folder.ends_with(RUNS) {
                remove_dangling(&folder.join(LATEST))?;
                remove_half_made_links(folder)?;
            }
            match std::fs::remove_dir(folder) {
                Err(error) if holds_something(&error) => return Ok(()),
                removed => unless_gone(removed)?,
            }
        }
        Ok(())
    }
}

/// Removes a link to a missing sandbox. A new run may change the link meanwhile: the link is renamed to where nothing
/// changes it, checked, and put back if valid.
fn remove_dangling(latest: &Path) -> io::Result<()> {
    match std::fs::read_link(latest) {
        // The link is gone, or the entry is not a link.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            return Ok(());
        }
        target => drop(target?),
    }
    if latest.try_exists()? {
        return Ok(());
    }
    let aside = latest.with_file_name(LATEST_ASIDE);
    unless_gone(std::fs::rename(latest, &aside))?;
    let is_put_back = aside.exists()
        && rustix::fs::renameat_with(
            rustix::fs::CWD,
            &aside,
            rustix::fs::CWD,
            latest,
            rustix::fs::RenameFlags::NOREPLACE,
        )
        .is_ok();
    match is_put_back {
        true => Ok(()),
        false => unless_gone(std::fs::remove_file(aside)),
    }
}

/// Removes links that a crashed agent left while it replaced or removed the link to the newest sandbox. A sandbox is
/// made before its link, so that a dangling link is never needed.
fn remove_half_made_links(runs: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(runs) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = name == LATEST_ASIDE || name.to_string_lossy().starts_with(LATEST_FRESH);
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_ours && is_link && !entry.path().try_exists()? {
            unless_gone(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

fn holds_something(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory
    )
}

/// Lists the folders in a folder, without links. Empty if it is not a folder, or missing.
fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    use ErrorKind::{NotADirectory, NotFound};
    let entries = match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// The age by the formula of Mesos.
fn age_allowed(options: &Options, used: f64) -> Duration {
    let share = (1.0 - options.headroom - used).clamp(0.0, 1.0);
    options.delay.mul_f64(share)
}

/// The used share of the file system that holds a path, of its bytes or of its inodes.
fn disk_used(path: &Path) -> Option<f64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    if stat.f_blocks == 0 {
        return None;
    }
    let bytes = used_share(stat.f_blocks, stat.f_bfree, stat.f_bavail);
    Some(bytes.max(used_share(stat.f_files, stat.f_ffree, stat.f_favail)))
}

/// The used share as in df: space free for root alone does not count as free, since other users find the disk full.
/// Zero if the total is zero: some file systems make inodes on demand.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share of a disk, for a rule of thumb"
)]
fn used_share(all: u64, free: u64, available: u64) -> f64 {
    let used = all.saturating_sub(free);
    match used.saturating_add(available) {
        0 if all == 0 => 0.0,
        0 => 1.0,
        usable => used as f64 / usable as f64,
    }
}

/// Detaches mounts left in a sandbox, so that the removal does not delete their contents.
fn detach_mounts(sandbox: &Path) -> io::Result<()> {
    let mounts = MountTable::read(Path::new("/proc/thread-self"))?;
    let mut inside: Vec<_> = mounts
        .iter()
        .map(|mount| mount.point.clone())
        .filter(|point| point.starts_with(sandbox))
        .collect();
    // Deepest mount points first.
    inside.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in inside {
        warn!(path = %point.display(), "detaching mounts in an old sandbox");
        // Other tasks of the same user may put links on the path.
        let inner = point.strip_prefix(sandbox).unwrap_or(Path::new(""));
        let mount_point = Folder::open(sandbox)?.open_at(inner, nix::fcntl::OFlag::O_PATH)?;
        let mount_point = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&mount_point)
        );
        rustix::mount::unmount(mount_point, rustix::mount::UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Keeps the sandboxes of active runs, and notes the former agents.
pub(crate) fn keep_those_of(gc: &Gc, image: &Image, layout: &Layout) {
    let frameworks = image.frameworks.iter();
    for run in frameworks.flat_map(|framework| &framework.runs) {
        gc.keep(layout.sandbox(&run.key));
    }
    let present = image.agent.as_ref().map(|agent| &agent.id);
    gc.known().former_agents = former_agents::former_agents(layout, present);
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

    fn options() -> Options {
        Options {
            delay: WEEK,
            headroom: 0.1,
            interval: Duration::from_secs(60),
        }
    }

    /// The options that allow the whole delay on a disk of any fullness.
    fn on_any_disk() -> Options {
        Options {
            headroom: -1.0,
            ..options()
        }
    }

    #[test]
    fn age_falls_as_disk_fills() {
        for (used, days) in [(0.0, 6.3), (0.5, 2.8), (0.9, 0.0), (1.0, 0.0)] {
            let allowed = age_allowed(&options(), used).as_secs_f64() / 86_400.0;
            assert!((allowed - days).abs() < 1e-6, "{used}: {allowed}");
        }
    }

    #[test]
    fn scarcest_kind_decides_disk_fullness() {
        let is = |used: f64, expected: f64| (used - expected).abs() < 1e-9;
        assert!(is(used_share(0, 0, 0).max(used_share(100, 75, 75)), 0.25));
        assert!(is(used_share(100, 90, 90).max(used_share(1000, 0, 0)), 1.0));
    }

    /// Regression: ended sandboxes stayed for hours while the agent refused tasks for lack of space.
    #[test]
    fn fullness_ignores_room_for_root() {
        let is = |used: f64, expected: f64| (used - expected).abs() < 1e-9;
        assert!(is(used_share(100, 20, 0), 1.0));
        assert!(is(used_share(100, 60, 40), 0.5));
        assert!(is(used_share(100, 100, 0), 1.0));
    }

    fn site() -> (tempfile::TempDir, Gc, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = std::fs::canonicalize(dir.path()).expect("a path");
        let gc = Gc::new(on_any_disk(), Layout::new(&path));
        let runs = path.join("slaves/S0/frameworks/F/executors/e/runs");
        for run in ["old", "new"] {
            std::fs::create_dir_all(runs.join(run)).expect("made");
            std::fs::write(runs.join(run).join("stdout"), "text").expect("written");
        }
        std::os::unix::fs::symlink("new", runs.join("latest")).expect("linked");
        (dir, gc, runs)
    }

    /// Removes the old sandboxes and waits for the end.
    fn prune(gc: &Gc, now: Duration) {
        for thread in gc.prune(now) {
            thread.join().expect("no panic");
        }
    }

    fn boot() -> BootId {
        BootId::from_text("boot")
    }

    /// The files were changed an hour ahead, or as long ago as possible, by the wall clock.
    #[test]
    fn age_ignores_clock_and_restarts() {
        use std::time::SystemTime;
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        for changed in [SystemTime::UNIX_EPOCH, ahead] {
            let (dir, gc, runs) = site();
            let old = std::fs::File::open(runs.join("old")).expect("opened");
            old.set_modified(changed).expect("changed");
            let begin = uptime();
            let later = |sevenths| begin + sevenths * (gc.age_allowed() / 7);
            // Three sevenths of the time in one boot, and four in another.
            let start = |boot: &str, now| {
                let path = std::fs::canonicalize(dir.path()).expect("a path");
                let gc = Gc::new(on_any_disk(), Layout::new(&path));
                let boot = BootId::from_text(boot);
                gc.keep(runs.join("new"));
                gc.find(&boot, now);
                prune(&gc, now);
                gc.record_ages(&boot, now);
            };
            start("first", begin);
            start("first", later(3));
            start("second", later(1));
            start("second", later(3));
            assert!(runs.join("old").exists(), "after five parts");
            start("second", later(6));
            assert!(!runs.join("old").exists(), "after eight parts");
        }
    }

    #[test]
    fn only_ended_sandboxes_are_removed() {
        let (_dir, gc, runs) = site();
        gc.keep(runs.join("new"));
        gc.find(&boot(), uptime());
        assert_eq!(gc.counts().pending, 1);
        prune(&gc, uptime());
        assert!(runs.join("old").exists());
        prune(&gc, uptime() + WEEK + WEEK);
        assert!(!runs.join("old").exists());
        assert!(runs.join("new/stdout").exists());
        let done = Counts {
            pending: 0,
            removed: 1,
            failed: 0,
        };
        assert_eq!(gc.counts(), done);
    }

    /// Regression: four frameworks with a slow sandbox each blocked the removals of all others.
    #[test]
    fn removal_turns_have_bounded_length() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = std::fs::canonicalize(dir.path()).expect("a path");
        let mut gc = Gc::new(options(), Layout::new(&path));
        // A turn ends after one entry.
        Arc::get_mut(&mut gc.inner).expect("alone").turn = Duration::ZERO;
        let sandbox = |framework: &str| {
            path.join(format!(
                "slaves/S0/frameworks/{framework}/executors/e/runs/r"
            ))
        };
        for (framework, files) in [("large", 5), ("small", 2)] {
            let folder = sandbox(framework).join("folder");
            std::fs::create_dir_all(&folder).expect("made");
            for file in 0..files {
                std::fs::write(folder.join(file.to_string()), "text").expect("written");
            }
            gc.discard(sandbox(framework));
        }
        let late = uptime() + WEEK + WEEK;
        for framework in ["large", "small"] {
            let framework = sandbox(framework)
                .ancestors()
                .nth(4)
                .expect("above")
                .to_owned();
            gc.known().removals.add(&framework, late);
        }
        let mut turns = Vec::new();
        while let Some(turn) = gc.next_turn() {
            let name = turn.framework.file_name().expect("a name").to_owned();
            turns.push(name.into_string().expect("text"));
            turn.take();
        }
        assert_eq!(turns[..4], ["large", "small", "large", "small"]);
        assert!(
            turns.ends_with(&["large".to_owned(), "large".to_owned()]),
            "{turns:?}"
        );
        assert!(!path.join("slaves/S0/frameworks").exists());
        assert_eq!((gc.counts().removed, gc.counts().failed), (2, 0));
    }

    /// Regression: a sandbox that could not be removed was tried in every turn, silently, and the other sandboxes of
    /// its framework never were.
    #[test]
    fn failed_sandbox_starves_no_other() {
        let (_dir, mut gc, runs) = site();
        Arc::get_mut(&mut gc.inner).expect("alone").turn = Duration::ZERO;
        // The names give the turn first to the sandbox that cannot be removed.
        std::fs::rename(runs.join("old"), runs.join("a")).expect("renamed");
        gc.discard(runs.join("a"));
        gc.discard(runs.join("new"));
        let framework = runs.ancestors().nth(3).expect("above").to_owned();
        let late = uptime() + WEEK + WEEK;
        let left = || RemovalProgress::Stopped(Some(ErrorKind::PermissionDenied.into()));
        gc.note_removal(&runs.join("a"), late, Ok(left()));
        assert_eq!(gc.counts().failed, 1);
        gc.known().removals.add(&framework, late);
        let mut turns = 0;
        while let Some(turn) = gc.next_turn() {
            turn.take();
            turns += 1;
            assert!(turns < 10, "it ends");
        }
        assert!(!runs.join("new").exists());
        assert!(runs.join("a").exists());
        // The pause does not grow.
        gc.note_removal(&runs.join("a"), late, Ok(left()));
        let again = gc.known().again[&runs.join("a")];
        assert_eq!(again.pause, PAUSE_AFTER_FAILURE);
    }

    /// The walk may find a sandbox made after its beginning, or before the report of the run.
    #[test]
    fn run_begun_during_walk_is_kept() {
        let (_dir, gc, runs) = site();
        gc.keep(runs.join("new"));
        gc.find(&boot(), uptime());
        assert_eq!(gc.counts().pending, 1);
        // The sandbox is found, and kept before its removal.
        gc.keep(runs.join("old"));
        gc.find(&boot(), uptime());
        assert_eq!(gc.counts().pending, 0);
        prune(&gc, uptime() + WEEK + WEEK);
        assert!(runs.join("old/stdout").exists() && runs.join("new/stdout").exists());
        gc.discard(runs.join("old"));
        prune(&gc, uptime() + WEEK + WEEK);
        assert!(!runs.join("old").exists());
    }

    #[test]
    fn empty_parents_go_with_last_run() {
        let (dir, gc, runs) = site();
        gc.discard(runs.join("old"));
        gc.discard(runs.join("new"));
        prune(&gc, uptime() + WEEK + WEEK);
        assert!(!dir.path().join("slaves/S0").exists());
        assert!(dir.path().join("slaves").exists());
    }

    #[test]
    fn interrupted_removal_is_finished_at_start() {
        let (dir, gc, runs) = site();
        for run in ["old", "new"] {
            std::fs::remove_dir_all(runs.join(run)).expect("removed");
        }
        for (link, to) in [(".latest.old", "old"), ("latest.old", "new")] {
            std::os::unix::fs::symlink(to, runs.join(link)).expect("linked");
        }
        let emptied = dir.path().join("slaves/S1/frameworks/F/executors");
        std::fs::create_dir_all(emptied).expect("made");
        gc.find(&boot(), uptime());
        let left = std::fs::read_dir(dir.path().join("slaves")).expect("a folder");
        assert_eq!(left.count(), 0);
    }

    /// Found by ENOMEM at the listing: the sandboxes of an earlier agent stayed until the next start.
    #[test]
    fn unlistable_folder_is_retried() {
        let (dir, gc, _) = site();
        let executor = dir.path().join("slaves/S0/frameworks/F2/executors/E");
        std::fs::create_dir_all(&executor).expect("made");
        // Imitates a failing disk: a link to itself.
        let circle = executor.join("runs");
        std::os::unix::fs::symlink("runs", &circle).expect("linked");
        assert!(!gc.find(&boot(), uptime()));
        assert!(gc.counts().pending > 0, "the others are found");
        std::fs::remove_file(&circle).expect("removed");
        std::fs::create_dir_all(circle.join("c")).expect("made");
        let before = gc.counts().pending;
        assert!(gc.find(&boot(), uptime()));
        assert_eq!(gc.counts().pending, before + 1);
    }

    /// The sandbox of a beginning run is not made yet, but its future parent folders and its link must stay.
    #[test]
    fn beginning_run_keeps_executor_folders() {
        let (_dir, gc, runs) = site();
        gc.keep(runs.join("third"));
        gc.discard(runs.join("old"));
        gc.discard(runs.join("new"));
        prune(&gc, uptime() + WEEK + WEEK);
        assert_eq!(gc.counts().removed, 2);
        assert!(std::fs::read_link(runs.join("latest")).is_ok());
        let later = runs.with_file_name("third");
        std::os::unix::fs::symlink(".", &later).expect("linked");
        remove_dangling(&later).expect("looked at");
        assert!(later.exists(), "a link that leads somewhere");
    }

    #[test]
    fn failed_removal_is_retried_after_pause() {
        let (_dir, gc, runs) = site();
        gc.discard(runs.join("old"));
        // A path below a file cannot be a sandbox.
        let hidden = runs.with_file_name("hidden");
        std::fs::rename(&runs, &hidden).expect("moved");
        std::fs::write(&runs, "in the way").expect("written");
        let mut later = uptime() + WEEK + WEEK;
        prune(&gc, later);
        assert_eq!((gc.counts().pending, gc.counts().failed), (1, 1));
        later += PAUSE_AFTER_FAILURE;
        prune(&gc, later);
        assert_eq!(gc.counts().failed, 2);
        std::fs::remove_file(&runs).expect("removed");
        std::fs::rename(&hidden, &runs).expect("moved back");
        prune(&gc, later + PAUSE_AFTER_FAILURE);
        assert!(runs.join("old").exists(), "later than the first time");
        prune(&gc, later + 2 * PAUSE_AFTER_FAILURE);
        assert!(!runs.join("old").exists());
        assert_eq!((gc.counts().pending, gc.counts().removed), (0, 1));
    }

    /// Found by an EIO at the renaming of the link: the link stayed until the next start, with its parent folders.
    #[test]
    fn failed_link_removal_is_retried() {
        let (dir, gc, runs) = site();
        let in_the_way = runs.join(LATEST_ASIDE);
        std::fs::create_dir(&in_the_way).expect("made");
        gc.discard(runs.join("old"));
        gc.discard(runs.join("new"));
        let later = uptime() + WEEK + WEEK;
        prune(&gc, later);
        assert_eq!((gc.counts().pending, gc.counts().removed), (2, 0));
        assert!(!runs.join("old").exists() && !runs.join("new").exists());
        std::fs::remove_dir(&in_the_way).expect("removed");
        prune(&gc, later + PAUSE_AFTER_FAILURE);
        assert_eq!((gc.counts().pending, gc.counts().removed), (0, 2));
        assert!(!dir.path().join("slaves/S0").exists());
    }

    #[test]
    fn sandboxes_of_all_frameworks_are_removed() {
        let (dir, gc, _) = site();
        let runs = |framework: usize| {
            let path = format!("slaves/S0/frameworks/{framework}/executors/e/runs");
            std::fs::canonicalize(dir.path())
                .expect("a path")
                .join(path)
        };
        for framework in 0..10 {
            for run in ["a", "b"] {
                std::fs::create_dir_all(runs(framework).join(run).join("deep")).expect("made");
                gc.discard(runs(framework).join(run));
            }
        }
        prune(&gc, uptime() + WEEK + WEEK);
        assert_eq!(gc.counts().removed, 20);
        assert!((0..10).all(|framework| !runs(framework).exists()));
    }

    /// Regression: tens of millions of small files of one tenant blocked the removal of other tasks' sandboxes, on a
    /// full disk.
    #[tokio::test]
    async fn slow_removal_delays_only_its_framework() {
        let (dir, _, runs) = site();
        let options = Options {
            delay: Duration::ZERO,
            ..options()
        };
        let work_dir = std::fs::canonicalize(dir.path()).expect("a path");
        let gc = Gc::new(options, Layout::new(&work_dir));
        gc.keep(runs.join("new"));
        gc.discard(runs.join("old"));
        let framework = work_dir.join("slaves/S0/frameworks/F");
        gc.known().removals.add(&framework, uptime());
        let slow = gc.next_turn().expect("the first");
        let collecting = tokio::spawn(gc.clone().run(boot()));
        let removed = async |count| {
            while gc.counts().removed < count {
                tokio::task::yield_now().await;
            }
        };
        for (framework, count) in [("F2", 1), ("F3", 2)] {
            let other = work_dir.join(format!(
                "slaves/S0/frameworks/{framework}/executors/e/runs/c"
            ));
            std::fs::create_dir_all(&other).expect("made");
            gc.discard(other.clone());
            gc.wake();
            removed(count).await;
            assert!(!other.exists());
        }
        assert!(runs.join("old").exists());
        drop(slow);
        gc.wake();
        removed(3).await;
        assert!(!runs.join("old").exists());
        collecting.abort();
    }

    #[test]
    fn sandbox_links_are_not_followed() {
        let (dir, gc, runs) = site();
        let precious = dir.path().join("precious");
        std::fs::create_dir(&precious).expect("made");
        std::fs::write(precious.join("file"), "text").expect("written");
        std::os::unix::fs::symlink(&precious, runs.join("old/link")).expect("linked");
        gc.discard(runs.join("old"));
        prune(&gc, uptime() + WEEK + WEEK);
        assert!(!runs.join("old").exists());
        assert!(precious.join("file").exists());
    }

    /// Regression: the kernel lists a blank as `\\040`. The mount was not found, and the sandbox was never removed.
    #[test]
    fn mounts_in_old_sandbox_are_detached() {
        use nix::mount::{MsFlags, mount};
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        let sandbox = std::fs::canonicalize(dir.path())
            .expect("a path")
            .join("old run");
        let names = [
            &b"a b"[..],
            b"tab\there",
            b"line\nbreak",
            b"back\\040slash",
            b"no\xfftext",
            b"#",
        ];
        let names = names.map(std::ffi::OsStr::from_bytes);
        let outcome = std::thread::spawn(move || {
            // The mounts are visible to this thread only.
            if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_err() {
                return eprintln!("not run: needs root");
            }
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
            for name in names {
                let point = sandbox.join(name);
                std::fs::create_dir_all(&point).expect("made");
                mount(Some("none"), &point, Some("tmpfs"), MsFlags::empty(), none)
                    .expect("mounted");
                std::fs::write(point.join("kept"), "").expect("written");
            }
            detach_mounts(&sandbox).expect("detached");
            for name in names {
                let left = std::fs::read_dir(sandbox.join(name))
                    .expect("a folder")
                    .count();
                assert_eq!(left, 0, "{name:?}");
            }
        });
        outcome.join().expect("no panic");
    }
}
