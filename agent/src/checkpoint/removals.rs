//! Removes the data of destroyed volumes on disks of their own, with one thread per disk.
//!
//! Such a disk may fail, be full or hold millions of files. Neither a checkpoint nor a task without the volume waits
//! for it, and each disk has its own thread. A volume stays in the record of destroyed volumes until its data is
//! removed. The thread retries the removal again and again, and so does the next start. Invariant: after waiting for a
//! place ([`Removals::emptied`]) a caller finds no data of a destroyed volume there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_resources::{DiskSourceKind, Resource};
use tokio::sync::Notify;
use tracing::{error, warn};

use super::holdings::{disk_of, remove_from_disk, volume_path};
use super::layout::Layout;

/// The pause before another attempt at a failed removal.
const AGAIN: Duration = Duration::from_secs(30);
/// Volumes whose data may wait for removal. A tenant could destroy more volumes on a failing disk. Then the data of the
/// oldest volume stays, but never that of a whole disk, since another role may get that disk.
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
    /// Notifies asynchronous waiters of the same changes.
    told: Notify,
    /// The pause before another attempt; without it nothing is removed.
    again: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    removals: Vec<Removal>,
    /// The number of the newest removal.
    last: u64,
    /// The disks with a thread.
    disks: BTreeSet<PathBuf>,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Removal {
    number: u64,
    volume: Resource,
    path: PathBuf,
    /// The root of the volume's disk.
    disk: PathBuf,
    /// Whether the thread is removing the data now.
    is_begun: bool,
    /// Whether the data is gone. The record must then be rewritten.
    is_done: bool,
}

/// The removals at one moment.
#[derive(Debug)]
pub(super) struct Removing {
    /// Volumes whose data may still exist.
    pub(super) waiting: Vec<Resource>,
    /// The numbers of the finished removals.
    pub(super) done: Vec<u64>,
}

impl Removing {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.done.is_empty()
    }
}

/// Runs the removals until it is dropped. Then the remaining removals are left to the next start.
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
    /// Ends the threads without waiting for a disk.
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

    /// Adds volumes on disks of their own. Durable records name them only as destroyed.
    pub(super) fn add<'a>(&self, layout: &Layout, volumes: impl IntoIterator<Item = &'a Resource>) {
        let mut state = self.state();
        for volume in volumes {
            let (Some(path), Some(disk)) = (volume_path(layout, volume), disk_of(layout, volume))
            else {
                continue;
            };
            // Data created at the same place since then has had no user.
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

    /// Starts the thread of a disk. After a failure the next volume of that disk and the next start of the agent try
    /// again.
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
                warn!(disk = %disk.display(), %error, "failed to start a thread that removes the \
                    data of destroyed volumes");
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

    /// Whether a finished removal is not yet recorded.
    pub(super) fn has_done(&self) -> bool {
        self.state().removals.iter().any(|one| one.is_done)
    }

    /// Forgets removals whose end is durable.
    pub(super) fn forget(&self, done: &[u64]) {
        let mut state = self.state();
        state.removals.retain(|one| !done.contains(&one.number));
        drop(state);
        self.tell();
    }

    /// Whether a destroyed volume's data may still be at this path, or its removal is not durable yet.
    pub(crate) fn is_left(&self, path: &Path) -> bool {
        self.state().removals.iter().any(|one| one.path == path)
    }

    /// Waits until the data of a destroyed volume at this path is removed durably, for at most `limit`. Returns whether
    /// that is the case.
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

    /// The work of a disk's thread. Returns when the disk has no removals left, or at the end.
    fn remove_all(&self, disk: &Path, again: Duration) {
        while let Some((todo, newest)) = self.todo(disk) {
            let removed = todo.iter().filter(|removal| self.remove(removal)).count();
            if removed < todo.len() {
                self.rest(newest, again);
            }
        }
        self.tell();
    }

    /// The removals of a disk. Without any the thread ends.
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

    /// Waits for a newer removal than `newest` or the end, for at most `limit`.
    fn rest(&self, newest: u64, limit: Duration) {
        let is_idle = |state: &mut State| state.last == newest && !state.is_over;
        let changed = &self.shared.changed;
        drop(changed.wait_timeout_while(self.state(), limit, is_idle));
    }

    /// Removes the data. Returns whether no retry is needed.
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
                    "failed to remove the data of a destroyed volume; retrying"
                );
                false
            }
        }
    }

    /// Marks a removal as begun. Returns false for an abandoned removal: another volume may have its place by now.
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
                "too many destroyed volumes have data that cannot be removed; keeping the data \
                 of this volume"
            );
        }
    }
}

#[cfg(test)]
mod tests;
