//! A single redb file, written by one thread, which commits all waiting writes with one fsync, and a marker beside it.
//!
//! Entered through [`open`]; `opening.rs` refuses a file that is damaged or lost. Invariant: a write is reported durable
//! after its commit and all before it. On a full disk, writes wait for room. A store that cannot be written for another
//! reason ends the process, since it could no longer keep its promises.

mod opening;

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use meseta_daemon::database_file;
use meseta_daemon::disk_pulse::{self, DiskPulse, DiskSilence};
use meseta_daemon::error_chain::chain;
use redb::{Database, Durability, TableDefinition};
use tokio::sync::{mpsc, watch};

use super::disk_report::{DiskReport, READING};
use super::{ROOM_POLL, Records, Store, Writer, full_text};
use crate::core::Record;

const RECORDS: TableDefinition<'static, &'static str, &'static [u8]> =
    TableDefinition::new("records");
/// The page cache, in bytes: the file is read once.
const CACHE_BYTES: usize = 1024 * 1024;
/// The pause between two looks at a store that another process uses.
const HELD_POLL: Duration = Duration::from_secs(1);

/// The files of the store in the work directory: the database, and the marker beside it.
pub(crate) const FILES: [&str; 3] = ["jobs.redb", "jobs.marker", "jobs.marker.tmp"];

/// The remedy for an unusable file.
const CURE: &str = "restore a copy, or move the file and its marker (jobs.marker) away to start without jobs: running tasks then continue, and `meseta frameworks` and `meseta teardown` find and end them";

/// The reason why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "another process has the store {path} open: is another scheduler running with this --work_dir?"
    )]
    InUse { path: PathBuf },
    #[error("failed to open, read or write the store {path}: {cure}", cure = database_file::cure(source))]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to read the store {path}: {cure}", cure = CURE)]
    Read {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("the store {path} is damaged: {cure}", cure = CURE)]
    Damaged { path: PathBuf },
    #[error("the store {path} is empty or missing, and {marker} shows that it existed: {cure}", cure = CURE)]
    Lost { path: PathBuf, marker: PathBuf },
    #[error("failed to read or write {marker}, the marker of the store")]
    Marker {
        marker: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to start the thread that writes the store")]
    Spawn(#[source] std::io::Error),
}

impl StoreError {
    /// Whether the disk is full, which may pass.
    fn is_full(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::Marker { source, .. } => super::is_full(source),
            _ => false,
        }
    }
}

/// The queue of the thread that writes.
#[derive(Debug)]
pub(crate) struct Embedded {
    queue: Option<mpsc::UnboundedSender<(u64, Vec<Record>)>>,
    durable: watch::Receiver<u64>,
    writer: Option<JoinHandle<()>>,
}

/// Opens or makes a store, and returns its records. Waits as long as `patience` for another process that uses it and may be
/// ending, and without limit for room on a full disk. `report` shows the reason of the wait, and from then on the state of the
/// disk.
///
/// # Errors
///
/// The store cannot be opened or read, or the other process still uses it.
pub(crate) async fn open(
    path: &Path,
    patience: Duration,
    report: &DiskReport,
) -> Result<(Records, Store), StoreError> {
    let until = tokio::time::Instant::now() + patience;
    let shown = path.display();
    let (database, records) = loop {
        let opened = path.to_owned();
        let opening = report.watch_work(path, "open the store", move || opening::open(&opened));
        match opening.await {
            Ok(opened) => break opened,
            Err(StoreError::InUse { .. }) if tokio::time::Instant::now() < until => {
                if report.set_waiting(format!("another process has the store {shown} open")) {
                    tracing::info!(path = %shown, "another process has the store open; waiting \
                        for its end");
                }
                tokio::time::sleep(HELD_POLL).await;
            }
            Err(error) if error.is_full() => {
                if report.set_waiting(full_text(path)) {
                    tracing::error!(error = %chain(&error), "the disk of the store is full; \
                        waiting for free space");
                }
                tokio::time::sleep(ROOM_POLL).await;
            }
            Err(error) => return Err(error),
        }
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "`Store::is_full` bounds it, in writes and in bytes"
    )]
    let (queue, waiting) = mpsc::unbounded_channel();
    let (told, durable) = watch::channel(0);
    report.set_waiting(READING);
    let path = path.to_owned();
    let pulse = DiskPulse::default();
    tokio::spawn(watch_disk(
        pulse.clone(),
        report.silence().clone(),
        durable.clone(),
        path.clone(),
    ));
    let report = report.clone();
    let writer = std::thread::Builder::new()
        .name("store".to_owned())
        .spawn(move || write_all(database, &path, waiting, &told, (&pulse, &report)))
        .map_err(StoreError::Spawn)?;
    let store = Embedded {
        queue: Some(queue),
        durable,
        writer: Some(writer),
    };
    Ok((records, Store::new(Writer::Embedded(store))))
}

impl Embedded {
    pub(super) fn write(&self, id: u64, records: Vec<Record>) {
        if let Some(queue) = &self.queue {
            // The writer ends with the process or with this handle.
            let _ = queue.send((id, records));
        }
    }

    pub(super) fn durable(&self) -> watch::Receiver<u64> {
        self.durable.clone()
    }

    /// Waits until all queued writes are durable.
    pub(super) fn close(mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the thread that writes the store panicked");
        }
    }
}

/// Updates the time for which the disk has not answered, until the writer has ended. Logs when the disk stops answering,
/// and when it answers again.
async fn watch_disk(
    pulse: DiskPulse,
    silence: DiskSilence,
    mut durable: watch::Receiver<u64>,
    path: PathBuf,
) {
    let report = |is_silent| {
        let path = path.display();
        match is_silent {
            true => tracing::error!(
                %path,
                "the disk of the store does not answer: the scheduler launches no task and makes \
                 no change until it answers"
            ),
            false => tracing::info!(%path, "the disk of the store answers again"),
        }
    };
    let until_closed = async { while durable.changed().await.is_ok() {} };
    tokio::select! {
        never = disk_pulse::watch(pulse, silence, report) => match never {},
        () = until_closed => {}
    }
}

fn write_all(
    database: Database,
    path: &Path,
    mut waiting: mpsc::UnboundedReceiver<(u64, Vec<Record>)>,
    told: &watch::Sender<u64>,
    (pulse, report): (&DiskPulse, &DiskReport),
) {
    let mut database = Some(database);
    while let Some(first) = waiting.blocking_recv() {
        let mut batch = vec![first];
        while let Ok(next) = waiting.try_recv() {
            batch.push(next);
        }
        let mut is_told = false;
        loop {
            pulse.begin();
            let written = write_batch(&mut database, path, &batch);
            pulse.end();
            let Err(error) = written else {
                break;
            };
            if !error.is_full() {
                tracing::error!(error = %chain(&error), "failed to write the store; exiting");
                std::process::abort();
            }
            report.set_waiting(full_text(path));
            if !std::mem::replace(&mut is_told, true) {
                tracing::error!(error = %chain(&error), "the disk of the store is full; the \
                    scheduler decides nothing until space is free");
            }
            if waiting.is_closed() {
                // The scheduler ends. Writes that were not reported durable were promised to nobody.
                return;
            }
            std::thread::sleep(ROOM_POLL);
        }
        if is_told {
            report.set_ready();
            tracing::info!(path = %path.display(), "the store has free space again");
        }
        if let Some((last, _)) = batch.last() {
            told.send_replace(*last);
        }
    }
}

/// Commits a batch. After a failure the database is opened again, as it then accepts nothing more.
fn write_batch(
    database: &mut Option<Database>,
    path: &Path,
    batch: &[(u64, Vec<Record>)],
) -> Result<(), StoreError> {
    let open = match database.take() {
        Some(open) => open,
        None => opening::reopen(path)?,
    };
    commit(&open, batch).map_err(|error| opening::read_error(path, error))?;
    *database = Some(open);
    Ok(())
}

fn commit(database: &Database, batch: &[(u64, Vec<Record>)]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(RECORDS)?;
        for record in batch.iter().flat_map(|(_, records)| records) {
            match &record.value {
                Some(value) => table.insert(record.key.as_str(), value.as_slice())?,
                None => table.remove(record.key.as_str())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn nobody_else_reads_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap()
            .1
            .close()
            .await;
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap()
            .1
            .close()
            .await;
        assert_eq!(mode(), 0o600);
    }

    #[tokio::test]
    async fn durable_records_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let (records, mut store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records, []);
        store.write(1, vec![put("a", Some("1")), put("b", Some("2"))]);
        store.write(2, vec![put("a", None), put("b", Some("3"))]);
        let mut durable = store.durable();
        durable.wait_for(|last| *last == 2).await.unwrap();
        let error = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("--work_dir"), "{error}");
        store.close().await;
        let (records, store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records, [("b".to_owned(), b"3".to_vec())]);
        store.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_locked_store_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let (_, first) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        let (report, later) = (DiskReport::default(), path.clone());
        let reported = report.clone();
        let opening =
            tokio::spawn(async move { open(&later, Duration::from_secs(3600), &reported).await });
        let is_waiting = |text: String| text.contains("another process has the store");
        while !report.problem().is_some_and(is_waiting) {
            tokio::task::yield_now().await;
        }
        first.close().await;
        opening.await.unwrap().unwrap().1.close().await;
        assert_eq!(report.problem().as_deref(), Some(READING));
    }

    fn put(key: &str, value: Option<&str>) -> Record {
        Record {
            key: key.to_owned(),
            value: value.map(|value| value.as_bytes().to_vec()),
        }
    }

    /// Fills a store with many records, each too long to share a page of the file.
    async fn filled(path: &Path) -> Records {
        let (_, mut store) = open(path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        let text = "a job, or a task of one ".repeat(20);
        let records = (0..60).map(|at| put(&format!("job/{at}"), Some(&text)));
        store.write(1, records.collect());
        store.write(2, vec![put("job/7", None)]);
        store.close().await;
        let (records, store) = open(path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records.len(), 59);
        store.close().await;
        records
    }

    /// Found by damaging files: the store read some of them without an error, and some ended the scheduler with a panic.
    #[tokio::test]
    async fn damaged_store_is_refused_or_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let whole = filled(&path).await;
        let bytes = std::fs::read(&path).unwrap();
        let page = 4096;
        let used = |at: &usize| bytes[*at..].iter().take(page).any(|byte| *byte != 0);
        let mut damages = Vec::new();
        for at in (0..bytes.len()).step_by(page).filter(used) {
            let mut zeroed = bytes.clone();
            zeroed[at..at + page].fill(0);
            damages.push((format!("zeroes at {at}"), zeroed));
            for within in [9, 300, 2_900] {
                let mut flipped = bytes.clone();
                flipped[at + within] ^= 0x10;
                damages.push((format!("a flip at {}", at + within), flipped));
            }
        }
        for length in [1, 100, page, bytes.len() / 2, bytes.len() - 1] {
            damages.push((format!("{length} bytes"), bytes[..length].to_vec()));
        }
        let mut refused = 0;
        for (damage, bytes) in damages {
            std::fs::write(&path, &bytes).unwrap();
            match open(&path, Duration::ZERO, &DiskReport::default()).await {
                Ok((records, store)) => {
                    assert!(records == whole, "{damage}: {} records", records.len());
                    store.close().await;
                }
                Err(error) => {
                    refused += 1;
                    let told = error.to_string();
                    assert!(told.contains("restore a copy"), "{damage}: {told}");
                    assert!(
                        std::fs::read(&path).unwrap() == bytes,
                        "{damage}: it was changed"
                    );
                }
            }
        }
        assert!(refused > 30, "{refused}");
    }

    /// Found by emptying the file: a scheduler began without jobs, and nothing managed its running tasks.
    #[tokio::test]
    async fn emptied_store_is_refused_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        // A file that was made but not written, by a scheduler that crashed at once.
        std::fs::write(&path, "").unwrap();
        filled(&path).await;
        std::fs::write(&path, "").unwrap();
        let error = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("jobs.marker shows that it existed"),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        let error = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Lost { .. }), "{error}");
        std::fs::remove_file(path.with_extension("marker")).unwrap();
        let (records, store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records, []);
        store.close().await;
    }

    /// Found by starting a scheduler on a full disk: the file contained zeros, the marker was missing, and no scheduler
    /// started again.
    #[tokio::test]
    async fn half_made_store_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let zeros = vec![0; 1 << 20];
        std::fs::write(&path, &zeros).unwrap();
        filled(&path).await;
        // The process was killed before it wrote the marker.
        std::fs::remove_file(path.with_extension("marker")).unwrap();
        let (records, store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records.len(), 59);
        store.close().await;
        std::fs::write(&path, &zeros).unwrap();
        let error = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Lost { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), zeros, "left as it is");
    }

    /// Found on a full disk: the message asked the operator to move a sound store away.
    #[test]
    fn failing_disk_is_no_store_damage() {
        for (number, expected) in [(28, "free space"), (5, "dmesg")] {
            let error = redb::Error::Io(std::io::Error::from_raw_os_error(number));
            let error = opening::read_error(Path::new("jobs.redb"), error);
            // A full disk is the only error that may pass.
            assert_eq!(error.is_full(), number == 28);
            let told = error.to_string();
            assert!(told.contains(expected), "{told}");
            assert!(
                !told.contains("away") && !told.contains("restore a copy"),
                "{told}"
            );
        }
    }

    /// A failed write closes the file, and the next write opens it again.
    #[tokio::test]
    async fn reopened_store_accepts_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let whole = filled(&path).await;
        let mut database = None;
        write_batch(&mut database, &path, &[(1, vec![put("job/8", None)])]).unwrap();
        assert!(database.is_some());
        write_batch(&mut database, &path, &[(2, vec![put("job/9", None)])]).unwrap();
        drop(database);
        let (records, store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records.len(), whole.len() - 2);
        store.close().await;
    }

    /// Simulates a kill: the file is marked as open, and the database repairs it.
    #[tokio::test]
    async fn unclosed_store_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        filled(&path).await;
        let (_, mut store) = open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        store.write(1, vec![put("job/8", None)]);
        let mut durable = store.durable();
        durable.wait_for(|last| *last == 1).await.unwrap();
        let copy = dir.path().join("copy.redb");
        std::fs::copy(&path, &copy).unwrap();
        store.close().await;
        let (records, store) = open(&copy, Duration::ZERO, &DiskReport::default())
            .await
            .unwrap();
        assert_eq!(records.len(), 58);
        store.close().await;
    }
}
