//! The data of destroyed volumes on disks of their own, removed on a thread of its own.
//!
//! Such a disk may be ill, full or hold millions of files: neither a checkpoint nor anybody's task waits for it. A
//! volume stays in the record of what was destroyed until its data is gone, which is tried again and again, by the next
//! start too. Invariant: whoever waits for a place ([`Removals::wait`]) finds nothing there of a volume that was destroyed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use meseta_resources::{DiskSourceKind, Resource};
use tracing::{error, warn};

use super::holdings::{remove_from_disk, volume_path};
use super::layout::Layout;

/// What could not be removed is tried again after this.
const AGAIN: Duration = Duration::from_secs(30);
/// Volumes whose data may wait to be removed. Of more, as a tenant can destroy on a disk that is ill, the data of
/// the oldest stays; never that of a whole disk, which another role may be given.
const REMOVALS_MAX: usize = 1_024;

/// The volumes whose data is to be removed; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    removals: Vec<Removal>,
    /// The number of the newest.
    last: u64,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Removal {
    number: u64,
    volume: Resource,
    path: PathBuf,
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

/// The thread, which ends when this is dropped, after what waits was tried once more.
#[derive(Debug)]
pub(super) struct RemovalThread {
    removals: Removals,
    thread: Option<JoinHandle<()>>,
}

impl RemovalThread {
    pub(super) fn start() -> Self {
        Self::start_with(AGAIN)
    }

    fn start_with(again: Duration) -> Self {
        let removals = Removals::default();
        let of_thread = removals.clone();
        let thread = std::thread::Builder::new()
            .name("volumes".to_owned())
            .spawn(move || of_thread.remove_all(again));
        Self {
            removals,
            thread: thread.ok(),
        }
    }

    pub(super) fn removals(&self) -> &Removals {
        &self.removals
    }
}

impl Drop for RemovalThread {
    fn drop(&mut self) {
        self.removals.state().is_over = true;
        self.removals.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Removals {
    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes volumes on disks of their own, which nothing durable names any more but as destroyed.
    pub(super) fn add<'a>(&self, layout: &Layout, volumes: impl IntoIterator<Item = &'a Resource>) {
        let mut state = self.state();
        for volume in volumes {
            let Some(path) = volume_path(layout, volume) else {
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
                is_done: false,
            });
        }
        drop(state);
        self.shared.changed.notify_all();
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
        self.shared.changed.notify_all();
    }

    /// Waits until nothing is left at a place of a volume that was destroyed, and that is durable; for `limit` at most.
    /// Whether it is so.
    pub(crate) fn wait(&self, path: &Path, limit: Duration) -> bool {
        let is_left = |state: &mut State| state.removals.iter().any(|one| one.path == path);
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.state(), limit, is_left);
        let (_state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }

    /// The thread's work: returns when it is over.
    fn remove_all(&self, again: Duration) {
        loop {
            let (todo, newest, is_over) = self.todo();
            let mut is_clean = true;
            for removal in todo {
                is_clean &= self.remove(&removal);
            }
            if is_over {
                return;
            }
            self.rest(newest, (!is_clean).then_some(again));
        }
    }

    fn todo(&self) -> (Vec<Removal>, u64, bool) {
        let state = self.state();
        let todo = state.removals.iter().filter(|one| !one.is_done);
        (todo.cloned().collect(), state.last, state.is_over)
    }

    /// Waits for a newer removal than this, or the end; for so long at most.
    fn rest(&self, newest: u64, limit: Option<Duration>) {
        let is_idle = |state: &mut State| state.last == newest && !state.is_over;
        let changed = &self.shared.changed;
        match limit {
            Some(limit) => drop(changed.wait_timeout_while(self.state(), limit, is_idle)),
            None => drop(changed.wait_while(self.state(), is_idle)),
        }
    }

    fn remove(&self, removal: &Removal) -> bool {
        let is_whole_disk = removal.volume.is_disk_of(DiskSourceKind::Mount);
        if let Err(error) = remove_from_disk(&removal.path, is_whole_disk) {
            warn!(
                path = %removal.path.display(), %error,
                "the data of a volume that was destroyed is left over; trying again"
            );
            return false;
        }
        let mut state = self.state();
        let mut removals = state.removals.iter_mut();
        if let Some(removal) = removals.find(|one| one.number == removal.number) {
            removal.is_done = true;
        }
        drop(state);
        self.shared.changed.notify_all();
        true
    }
}

impl State {
    fn make_room(&mut self) {
        if self.removals.len() < REMOVALS_MAX {
            return;
        }
        let mut removals = self.removals.iter();
        let oldest = removals.position(|one| !one.volume.is_disk_of(DiskSourceKind::Mount));
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
