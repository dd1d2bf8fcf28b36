//! The data of destroyed volumes on disks of their own, removed on threads of their own.
//!
//! Such a disk may be ill, full or hold millions of files: neither a checkpoint nor anybody's task waits for it, nor do
//! other disks, each of which has its thread. A volume stays in the record of what was destroyed until its data is gone,
//! which is tried again and again, by the next start too. Invariant: whoever waits for a place ([`Removals::emptied`])
//! finds nothing there of a volume that was destroyed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_resources::{DiskSourceKind, Resource};
use tokio::sync::Notify;
use tracing::{error, warn};

use super::holdings::{disk_of, remove_from_disk, volume_path};
use super::layout::Layout;

/// What could not be removed is tried again after this.
const AGAIN: Duration = Duration::from_secs(30);
/// Volumes whose data may wait to be removed. Of more, as a tenant can destroy on a disk that is ill, the data of
/// the oldest stays; never that of a whole disk, which another role may be given.
const REMOVALS_MAX: usize = 1_024;

/// The volumes whose data is to be removed; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removals {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The same for those that may not block.
    told: Notify,
    /// After how long what could not be removed is tried again; without it nothing is removed.
    again: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    removals: Vec<Removal>,
    /// The number of the newest.
    last: u64,
    /// Disks that have a thread.
    disks: BTreeSet<PathBuf>,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Removal {
    number: u64,
    volume: Resource,
    path: PathBuf,
    /// The root of its disk.
    disk: PathBuf,
    /// Its data goes at the moment.
    is_begun: bool,
    /// Its data is gone, which is to be written.
    is_done: bool,
}

/// What was there at one moment.
#[derive(Debug)]
pub(super) struct Removing {
    /// Volumes whose data may be there.
    pub(super) waiting: Vec<Resource>,
    /// The numbers of removals that are done.
    pub(super) done: Vec<u64>,
}

impl Removing {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.done.is_empty()
    }
}

/// Has removals carried out until it is dropped: what waits then is for the next start.
#[derive(Debug)]
pub(super) struct RemovalThreads {
    removals: Removals,
}

impl RemovalThreads {
    pub(super) fn start() -> Self {
        Self::start_with(AGAIN)
    }

    fn start_with(again: Duration) -> Self {
        let shared = Shared {
            again: Some(again),
            ..Shared::default()
        };
        let removals = Removals {
            shared: Arc::new(shared),
        };
        Self { removals }
    }

    pub(super) fn removals(&self) -> &Removals {
        &self.removals
    }
}

impl Drop for RemovalThreads {
    /// Waits for no disk.
    fn drop(&mut self) {
        self.removals.state().is_over = true;
        self.removals.tell();
    }
}

impl Removals {
    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.shared.changed.notify_all();
        self.shared.told.notify_waiters();
    }

    /// Takes volumes on disks of their own, which nothing durable names any more but as destroyed.
    pub(super) fn add<'a>(&self, layout: &Layout, volumes: impl IntoIterator<Item = &'a Resource>) {
        let mut state = self.state();
        for volume in volumes {
            let (Some(path), Some(disk)) = (volume_path(layout, volume), disk_of(layout, volume))
            else {
                continue;
            };
            // What is there by now has had no user.
            state.removals.retain(|earlier| earlier.path != path);
            state.make_room();
            state.last += 1;
            let number = state.last;
            state.removals.push(Removal {
                number,
                volume: volume.clone(),
                path,
                disk: disk.clone(),
                is_begun: false,
                is_done: false,
            });
            self.start_thread(&mut state, disk);
        }
        drop(state);
        self.tell();
    }

    /// One that cannot be started is tried again with the next volume of that disk, and by the next start of the agent.
    fn start_thread(&self, state: &mut State, disk: PathBuf) {
        let Some(again) = self.shared.again else {
            return;
        };
        if state.disks.contains(&disk) {
            return;
        }
        let (this, of_thread) = (self.clone(), disk.clone());
        let thread = std::thread::Builder::new().name("volumes".to_owned());
        match thread.spawn(move || this.remove_all(&of_thread, again)) {
            Ok(_) => drop(state.disks.insert(disk)),
            Err(error) => {
                warn!(disk = %disk.display(), %error, "no thread to remove the data of destroyed volumes");
            }
        }
    }

    pub(super) fn now(&self) -> Removing {
        let state = self.state();
        let (done, waiting) = state
            .removals
            .iter()
            .partition::<Vec<_>, _>(|one| one.is_done);
        Removing {
            waiting: waiting.into_iter().map(|one| one.volume.clone()).collect(),
            done: done.into_iter().map(|one| one.number).collect(),
        }
    }

    /// Whether a removal is done that is not written.
    pub(super) fn has_done(&self) -> bool {
        self.state().removals.iter().any(|one| one.is_done)
    }

    /// That these are done is durable.
    pub(super) fn forget(&self, done: &[u64]) {
        let mut state = self.state();
        state.removals.retain(|one| !done.contains(&one.number));
        drop(state);
        self.tell();
    }

    /// Whether data of a volume that was destroyed may be at this place, or that it is gone is not durable.
    pub(crate) fn is_left(&self, path: &Path) -> bool {
        self.state().removals.iter().any(|one| one.path == path)
    }

    /// Waits until nothing is left at a place of a volume that was destroyed, and that is durable; for `limit` at most.
    /// Whether it is so.
    pub(crate) async fn emptied(&self, path: &Path, limit: Duration) -> bool {
        let emptied = async {
            loop {
                let told = self.shared.told.notified();
                if !self.is_left(path) {
                    return;
                }
                told.await;
            }
        };
        tokio::time::timeout(limit, emptied).await.is_ok()
    }

    /// The work of a disk's thread: returns when nothing of that disk is left to be removed, or it is over.
    fn remove_all(&self, disk: &Path, again: Duration) {
        while let Some((todo, newest)) = self.todo(disk) {
            let removed = todo.iter().filter(|removal| self.remove(removal)).count();
            if removed < todo.len() {
                self.rest(newest, again);
            }
        }
        self.tell();
    }

    /// What is to be removed of a disk; without any the disk has no thread any more.
    fn todo(&self, disk: &Path) -> Option<(Vec<Removal>, u64)> {
        let mut state = self.state();
        let todo = state.removals.iter();
        let todo = todo.filter(|one| !one.is_done && one.disk == disk);
        let todo: Vec<_> = todo.cloned().collect();
        if todo.is_empty() || state.is_over {
            state.disks.remove(disk);
            return None;
        }
        Some((todo, state.last))
    }

    /// Waits for a newer removal than this, or the end; for so long at most.
    fn rest(&self, newest: u64, limit: Duration) {
        let is_idle = |state: &mut State| state.last == newest && !state.is_over;
        let changed = &self.shared.changed;
        drop(changed.wait_timeout_while(self.state(), limit, is_idle));
    }

    /// Whether nothing is left to be tried again.
    fn remove(&self, removal: &Removal) -> bool {
        if !self.begin(removal) {
            return true;
        }
        let is_whole_disk = removal.volume.is_disk_of(DiskSourceKind::Mount);
        let removed = remove_from_disk(&removal.path, is_whole_disk);
        let mut state = self.state();
        if let Some(removal) = state.find(removal.number) {
            (removal.is_begun, removal.is_done) = (false, removed.is_ok());
        }
        drop(state);
        match removed {
            Ok(()) => {
                self.tell();
                true
            }
            Err(error) => {
                warn!(
                    path = %removal.path.display(), %error,
                    "the data of a volume that was destroyed is left over; trying again"
                );
                false
            }
        }
    }

    /// False for one that was given up since, whose place may be another volume's by now.
    fn begin(&self, removal: &Removal) -> bool {
        let mut state = self.state();
        let found = state.find(removal.number);
        found.map(|removal| removal.is_begun = true).is_some()
    }
}

impl State {
    fn find(&mut self, number: u64) -> Option<&mut Removal> {
        self.removals.iter_mut().find(|one| one.number == number)
    }

    fn make_room(&mut self) {
        if self.removals.len() < REMOVALS_MAX {
            return;
        }
        let mut removals = self.removals.iter();
        let may_stay =
            |one: &Removal| !one.is_begun && !one.volume.is_disk_of(DiskSourceKind::Mount);
        let oldest = removals.position(may_stay);
        if let Some(at) = oldest {
            let given_up = self.removals.remove(at);
            error!(
                path = %given_up.path.display(), max = REMOVALS_MAX,
                "too many destroyed volumes have data that cannot be removed; that of this one stays"
            );
        }
    }
}

#[cfg(test)]
mod tests;
