//! The thread that makes the core's writes durable.
//!
//! It takes all queued writes, commits them at once, and reports its progress and the condition of the disk. On a full
//! disk it releases the reserve and tries again; without a reserve it waits for space. A disk that cannot tell whether
//! it holds the written data ends the process, because the agent could no longer guarantee anything. When idle the
//! thread writes a byte from time to time, in order to notice a disk that does not answer.

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

/// Writes committed at once, so that a long queue does not delay its first write.
const BATCH_MAX: usize = 512;
/// The pause before a write on a full disk is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The interval between looks at the free space.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After this time without a write the thread probes the disk with a write.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Writer {
    /// Bounded by the sender, which must not wait here: [`super::pending_writes::PendingWrites`].
    queue: mpsc::Sender<(Lsn, Write)>,
    progress: watch::Receiver<Progress>,
    watch: SilenceWatch,
    report: DiskReport,
}

/// The progress of the thread.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Progress {
    /// All writes up to this one are durable.
    pub(crate) durable: Lsn,
    /// Whether further writes can succeed.
    pub(crate) disk: DiskCondition,
}

/// Starts the thread, which first makes the writes durable that the start requires. It reports the condition of the
/// disk to `report`.
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
    /// Hands a write over without waiting. Ends the process if the thread is gone.
    pub(crate) fn write(&self, lsn: Lsn, write: Write) {
        if self.queue.send((lsn, write)).is_err() {
            abort_without_thread();
        }
    }

    /// The latest progress and the condition of the disk.
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

    /// Waits until one of both may have changed, for at most a second, because a silent disk sends no notice. Ends the
    /// process if the thread is gone.
    pub(crate) async fn progress(&mut self) {
        let changed = tokio::time::timeout(LOOK_INTERVAL, self.progress.changed());
        if let Ok(Err(_)) = changed.await {
            abort_without_thread();
        }
    }
}

/// Ends the process: without the thread no write is ever durable again. The agent's supervisor restarts it.
fn abort_without_thread() -> ! {
    error!("the checkpoint thread has ended; exiting at once, tasks continue");
    std::process::abort();
}

/// The state of the checkpoint thread.
struct Worker {
    store: Store,
    room: DiskRoom,
    looked_at: Instant,
    /// The time of the last write or attempt.
    wrote_at: Instant,
    probe: PathBuf,
    done: watch::Sender<Progress>,
}

impl Worker {
    fn new(store: Store, done: watch::Sender<Progress>) -> Self {
        let mut room = DiskRoom::new(store.layout());
        let probe = store.layout().probe();
        // The first writes, such as the agent's own id, do not wait for the reserve: the thread takes it a second
        // later.
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

    /// Writes a byte and waits until the disk has it. An error also counts as an answer; the next checkpoint reports
    /// the problem.
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

    /// Reports the progress if it has changed.
    fn tell(&self, durable: Option<Lsn>) {
        let disk = self.room.condition();
        self.done.send_if_modified(|progress| {
            let before = *progress;
            progress.disk = disk;
            progress.durable = durable.unwrap_or(before.durable);
            *progress != before
        });
    }

    /// Commits the batch without a time limit. After a failure it continues at the failed write.
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
                error!(%source, "failed to make checkpoints durable; exiting at once, tasks \
                    continue");
                std::process::abort();
            }
            let is_released = self.room.failed(&error);
            let disk = self.room.condition();
            self.done.send_if_modified(|progress| {
                let before = std::mem::replace(&mut progress.disk, disk);
                before != disk
            });
            if !is_released {
                error!(%source, "failed to write checkpoints; the agent starts nothing new until \
                    writes succeed");
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
