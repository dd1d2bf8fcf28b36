//! The one thread that makes the core's writes durable.
//!
//! It takes all that has gathered, commits it at once and says how far it is, and in which condition the disk is.
//! On a full disk the reserve is released and the write tried again; beyond that it is waited for. A disk that
//! cannot say whether it holds what was written ends the process, because nothing could be promised any more. While
//! nothing is to be written, the thread writes a byte now and then, so that a disk that does not answer is noticed.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use meseta_daemon::disk_pulse::{DiskPulse, SILENT_AFTER, SilenceWatch};
use meseta_daemon::error_chain::chain;
use tokio::sync::watch;
use tracing::error;

use super::disk_room::DiskRoom;
use super::{DiskCondition, Lsn, Store, StoreError, Write};
use crate::disk_report::DiskReport;

/// Writes committed at once, so that a long queue does not hold the first one up.
const BATCH_MAX: usize = 512;
/// Pause before a write that failed for want of space is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked how full the disk is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After this time without a write the thread tries whether the disk still takes one.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Writer {
    /// Bounded by whoever writes, who must not wait here: [`super::pending_writes::PendingWrites`].
    queue: mpsc::Sender<(Lsn, Write)>,
    progress: watch::Receiver<Progress>,
    watch: SilenceWatch,
    report: DiskReport,
}

/// How far the thread is.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Progress {
    /// All writes up to this one are durable.
    pub(crate) durable: Lsn,
    /// Whether more can be written.
    pub(crate) disk: DiskCondition,
}

/// Starts the thread, which makes what the start found necessary durable before anything else.
/// Tells `report` how the disk is.
pub(crate) fn start(store: Store, first: Vec<Write>, report: DiskReport) -> io::Result<Writer> {
    let (queue, writes) = mpsc::channel();
    let watch = SilenceWatch::new(store.pulse().clone(), Instant::now());
    let (done, progress) = watch::channel(Progress::default());
    let first: Vec<_> = first
        .into_iter()
        .map(|write| (Lsn::default(), write))
        .collect();
    std::thread::Builder::new()
        .name("checkpoints".to_owned())
        .spawn(move || {
            let mut worker = Worker::new(store, done);
            worker.commit(&first);
            drop(first);
            worker.run(&writes);
        })?;
    Ok(Writer {
        queue,
        progress,
        watch,
        report,
    })
}

impl Writer {
    /// Hands a write over, waiting for nothing. Ends the process if the thread is gone.
    pub(crate) fn write(&self, lsn: Lsn, write: Write) {
        if self.queue.send((lsn, write)).is_err() {
            abort_without_thread();
        }
    }

    /// How far everything is durable, and what the disk takes.
    pub(crate) fn now(&mut self) -> Progress {
        let progress = *self.progress.borrow_and_update();
        let silence = self.watch.look(Instant::now());
        self.report.set_silence(silence);
        self.report
            .set_removed(progress.disk == DiskCondition::Removed);
        let disk = match silence >= SILENT_AFTER {
            true => DiskCondition::Silent,
            false => progress.disk,
        };
        Progress { disk, ..progress }
    }

    /// Waits until one of both may have changed: a second at most, because a disk that does not answer tells nothing.
    /// Ends the process if the thread is gone.
    pub(crate) async fn progress(&mut self) {
        let changed = tokio::time::timeout(LOOK_INTERVAL, self.progress.changed());
        if let Ok(Err(_)) = changed.await {
            abort_without_thread();
        }
    }
}

/// Without the thread nothing is ever durable again: who supervises the agent starts it anew.
fn abort_without_thread() -> ! {
    error!("the checkpoint thread is gone; ending at once, tasks go on");
    std::process::abort();
}

/// What the checkpoint thread owns.
struct Worker {
    store: Store,
    room: DiskRoom,
    looked_at: Instant,
    /// When something was last written, or tried.
    wrote_at: Instant,
    probe: PathBuf,
    done: watch::Sender<Progress>,
}

impl Worker {
    fn new(store: Store, done: watch::Sender<Progress>) -> Self {
        let mut room = DiskRoom::new(store.layout());
        let probe = store.layout().probe();
        // The reserve is taken a second later: the first writes, such as the agent's own id, do not wait for it.
        room.look(false);
        let worker = Self {
            store,
            room,
            looked_at: Instant::now(),
            wrote_at: Instant::now(),
            probe,
            done,
        };
        worker.tell(None);
        worker
    }

    fn run(&mut self, writes: &mpsc::Receiver<(Lsn, Write)>) {
        let mut batch = Vec::new();
        loop {
            match writes.recv_timeout(LOOK_INTERVAL) {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while !batch.is_empty()
                && batch.len() < BATCH_MAX
                && let Ok(next) = writes.try_recv()
            {
                batch.push(next);
            }
            self.commit(&batch);
            self.tell(batch.last().map(|(lsn, _)| *lsn));
            if self.store.removals().has_done() {
                self.commit(&[(Lsn::default(), Write::ForgetRemoved)]);
            }
            if self.looked_at.elapsed() >= LOOK_INTERVAL {
                self.look();
            }
            if self.wrote_at.elapsed() >= PROBE_INTERVAL {
                self.try_disk();
            }
            batch.clear();
        }
    }

    fn look(&mut self) {
        self.looked_at = Instant::now();
        let _using = Using::begin(self.store.pulse());
        self.room.look(true);
        self.tell(None);
    }

    /// Writes a byte and waits until the disk has it. An error is an answer too, and no more than that: the next write
    /// of a checkpoint tells what is wrong.
    fn try_disk(&mut self) {
        let _using = Using::begin(self.store.pulse());
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let opened = options
            .custom_flags(super::durable::libc_nofollow())
            .open(&self.probe);
        let _ = opened.and_then(|mut file| {
            file.write_all(b"w")?;
            file.sync_data()
        });
        self.wrote_at = Instant::now();
    }

    /// Says how far it is, if anything is new.
    fn tell(&self, durable: Option<Lsn>) {
        let disk = self.room.condition();
        self.done.send_if_modified(|progress| {
            let before = *progress;
            progress.disk = disk;
            progress.durable = durable.unwrap_or(before.durable);
            *progress != before
        });
    }

    /// Commits, however long it takes; after a failure it goes on where it stopped.
    fn commit(&mut self, batch: &[(Lsn, Write)]) {
        if batch.is_empty() {
            return;
        }
        let using = Using::begin(self.store.pulse());
        let mut commit = self.store.begin(batch.iter().map(|(_, write)| write));
        loop {
            let error = match commit.resume() {
                Ok(()) => {
                    self.room.written();
                    self.wrote_at = Instant::now();
                    return;
                }
                Err(error) => error,
            };
            using.pulse.beat();
            let source = chain(&error);
            if matches!(error, StoreError::Sync { .. }) {
                error!(%source, "checkpoints cannot be made durable; ending at once, tasks go on");
                std::process::abort();
            }
            let is_released = self.room.failed(&error);
            let disk = self.room.condition();
            self.done.send_if_modified(|progress| {
                let before = std::mem::replace(&mut progress.disk, disk);
                before != disk
            });
            if !is_released {
                error!(%source, "checkpoints cannot be written; nothing new is done until they can");
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }
}

/// The time in which the thread uses the disk.
struct Using {
    pulse: DiskPulse,
}

impl Using {
    fn begin(pulse: &DiskPulse) -> Self {
        pulse.begin();
        Self {
            pulse: pulse.clone(),
        }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.pulse.end();
    }
}
