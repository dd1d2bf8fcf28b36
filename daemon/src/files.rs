//! Reads of files for clients: on few threads, with little memory each, for readers that keep reading.
//!
//! Entered through [`FileReads::run`] and [`FileReads::run_at`] for one read and [`FileReads::body`] for a download.
//! Invariants: reads have [`READS_AT_ONCE`] threads, and [`STUCK_MAX`] more that wait for file systems without an answer,
//! so that other blocking work always finds threads. A read ends within [`READ_MAX`] for its caller, and no thread waits
//! for a reader. A download has two pieces in memory, and ends when its reader takes nothing for [`STALL_MAX`], or sooner
//! if there are too many and a new download is requested. The caller with the most downloads then also yields one to a
//! caller with far fewer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::server::Connection;
use crate::authentication::Caller;
use crate::background;

/// Threads that read at a time. More would not make a disk faster.
const READS_AT_ONCE: usize = 8;
/// The longest wait of a read for its turn.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(30);
/// The time limit of a read: longer than a busy disk takes, and shorter than the wait for a turn.
pub const READ_MAX: Duration = Duration::from_secs(20);
/// Threads that may wait for an unresponsive file system, in addition to those that read.
const STUCK_MAX: usize = 64;
/// Threads that may wait for one place. Beyond this number, reads there fail at once.
const STUCK_AT_PLACE_MAX: usize = 4;
/// Bytes of a download that are read at a time, and the limit of its bytes in memory.
const CHUNK_BYTES: usize = 32 * 1024;
const CHUNKS_AHEAD: usize = 2;
/// Concurrent downloads, unless fewer are configured: their pieces take 16 MiB.
const DOWNLOADS_MAX: usize = 256;
/// The longest time for which a reader may take nothing.
pub const STALL_MAX: Duration = Duration::from_secs(60);
/// The longest such time while there are too many downloads and another is requested.
const STALL_MAX_CROWDED: Duration = Duration::from_secs(1);

/// The reason why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadsError {
    #[error("Too many files are being read; try again")]
    TooMany,
    #[error("The file system of this path does not answer")]
    NoAnswer,
}

/// The file reads of a daemon, see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileReads(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    permits: Arc<Semaphore>,
    downloads_max: usize,
    downloads: Mutex<Downloads>,
    stuck: Mutex<Stuck>,
}

/// Abandoned reads, whose threads still wait.
#[derive(Debug, Default)]
struct Stuck {
    total: usize,
    places: BTreeMap<String, usize>,
}

/// The state of one read, which its thread and its waiter share.
#[derive(Debug)]
enum Reading {
    UnderWay(#[expect(dead_code, reason = "held until the read is over")] OwnedSemaphorePermit),
    GivenUp(#[expect(dead_code, reason = "held until the read is over")] StuckRead),
    Over,
}

/// Counts one stuck read until it is dropped.
#[derive(Debug)]
struct StuckRead {
    reads: FileReads,
    place: String,
}

impl Drop for StuckRead {
    fn drop(&mut self) {
        let mut stuck = self.reads.stuck();
        stuck.total -= 1;
        if let Some(count) = stuck.places.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                stuck.places.remove(&self.place);
            }
        }
    }
}

/// Ends a read once its thread has finished or panicked.
struct ReadThread(Arc<Mutex<Reading>>);

impl Drop for ReadThread {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Reading::Over;
    }
}

impl Default for FileReads {
    fn default() -> Self {
        Self::new(DOWNLOADS_MAX)
    }
}

impl FileReads {
    /// Returns reads with this maximum of simultaneous downloads.
    #[must_use]
    pub fn new(downloads_max: usize) -> Self {
        Self(Arc::new(Inner {
            permits: Arc::new(Semaphore::new(READS_AT_ONCE)),
            downloads_max,
            downloads: Mutex::default(),
            stuck: Mutex::default(),
        }))
    }

    /// Runs blocking work on one of the readers' threads.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadsError> {
        self.run_at("", work).await
    }

    /// Runs blocking work on one of the readers' threads. Fails at once if too many reads at this place are stuck, so that
    /// a file system without an answer takes no threads from readers of others.
    pub async fn run_at<T: Send + 'static>(
        &self,
        place: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadsError> {
        let at_place = self.stuck().places.get(place).copied();
        if !place.is_empty() && at_place.is_some_and(|count| count >= STUCK_AT_PLACE_MAX) {
            return Err(ReadsError::NoAnswer);
        }
        let permit = self.0.permits.clone().acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(PERMIT_WAIT_MAX, permit).await else {
            return Err(ReadsError::TooMany);
        };
        let reading = Arc::new(Mutex::new(Reading::UnderWay(permit)));
        let thread = ReadThread(reading.clone());
        let working = background::spawn(move || {
            let _thread = thread;
            work()
        });
        let (reads, place) = (self.clone(), place.to_owned());
        // A separate task, so that a read is given up in time even if its caller has left.
        let waiting = tokio::spawn(async move {
            match tokio::time::timeout(READ_MAX, working).await {
                // The thread panicked, and the panic was logged.
                Ok(done) => done.map_err(|_| ReadsError::TooMany),
                Err(_) => {
                    reads.give_up(place, &reading);
                    Err(ReadsError::NoAnswer)
                }
            }
        });
        waiting.await.unwrap_or(Err(ReadsError::TooMany))
    }

    /// Gives the turn of a stuck read to another reader, if one more stuck thread is allowed.
    fn give_up(&self, place: String, reading: &Mutex<Reading>) {
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*reading, Reading::UnderWay(_)) {
            return;
        }
        let mut stuck = self.stuck();
        if stuck.total >= STUCK_MAX {
            return;
        }
        stuck.total += 1;
        *stuck.places.entry(place.clone()).or_default() += 1;
        drop(stuck);
        tracing::warn!(place, "abandoned a read: its file system does not answer");
        *reading = Reading::GivenUp(StuckRead {
            reads: self.clone(),
            place,
        });
    }

    fn stuck(&self) -> MutexGuard<'_, Stuck> {
        self.0.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first `length` bytes of a file as the body of an answer. If the caller takes nothing of it, its
    /// connection is closed.
    pub fn body(&self, file: File, length: u64, caller: &Caller) -> Result<Body, ReadsError> {
        let revoked = CancellationToken::new();
        let connection = caller.connection.clone();
        let download = Download {
            group: caller.group(),
            last: Instant::now(),
            revoked: revoked.clone(),
            connection: connection.clone(),
        };
        let id = self.downloads().begin(download, self.0.downloads_max);
        let id = id.ok_or(ReadsError::TooMany)?;
        let (sender, chunks) = mpsc::channel(1);
        let file_sender = FileSender {
            reads: self.clone(),
            id,
            file: Arc::new(file),
            length,
            chunks: sender,
        };
        tokio::spawn(async move {
            tokio::select! {
                outcome = file_sender.run() => if outcome == Outcome::Stalled {
                    tracing::debug!("closed a stalled download: the reader read nothing for too \
                        long");
                    if let Some(connection) = &connection {
                        connection.close();
                    }
                },
                () = revoked.cancelled() => {
                    tracing::debug!("closed a stalled download: another reader needed its place");
                }
            }
        });
        Ok(Body::new(FileBody {
            chunks,
            left: length,
        }))
    }

    fn downloads(&self) -> MutexGuard<'_, Downloads> {
        let downloads = self.0.downloads.lock();
        downloads.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A download that is in progress.
#[derive(Debug)]
struct Download {
    /// The group of the download's caller.
    group: String,
    /// The last time that its reader took something.
    last: Instant,
    revoked: CancellationToken,
    connection: Option<Connection>,
}

#[derive(Debug, Default)]
struct Downloads {
    next: u64,
    under_way: BTreeMap<u64, Download>,
}

impl Downloads {
    /// Returns the download that has been stalled for long enough, or else the oldest of the callers that have more than
    /// the newcomer will have.
    fn revocable(&self, newcomer: &Download) -> Option<u64> {
        let (id, longest) = self.under_way.iter().min_by_key(|(_, one)| one.last)?;
        let still = newcomer.last.saturating_duration_since(longest.last);
        if still >= STALL_MAX_CROWDED {
            return Some(*id);
        }
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for download in self.under_way.values() {
            *groups.entry(&download.group).or_default() += 1;
        }
        let own = groups.get(newcomer.group.as_str()).copied();
        let (largest, most) = groups.into_iter().max_by_key(|(_, count)| *count)?;
        let mut of_largest = self.under_way.iter();
        let oldest = of_largest.find(|(_, one)| one.group == largest);
        let oldest = oldest.filter(|_| most > own.unwrap_or_default() + 1);
        oldest.map(|(id, _)| *id)
    }

    /// Counts a download, if necessary in place of another.
    fn begin(&mut self, download: Download, downloads_max: usize) -> Option<u64> {
        if self.under_way.len() >= downloads_max {
            let id = self.revocable(&download)?;
            let revoked = self.under_way.remove(&id)?;
            revoked.revoked.cancel();
            if let Some(connection) = revoked.connection {
                connection.close();
            }
        }
        self.next += 1;
        self.under_way.insert(self.next, download);
        Some(self.next)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Stalled,
}

/// Sends a file piece by piece, as its reader takes it.
struct FileSender {
    reads: FileReads,
    id: u64,
    file: Arc<File>,
    length: u64,
    chunks: mpsc::Sender<io::Result<Bytes>>,
}

impl FileSender {
    async fn run(&self) -> Outcome {
        let permit = Arc::new(Semaphore::new(CHUNKS_AHEAD));
        let mut at = 0;
        while at < self.length {
            // The permit returns when a piece has left this process.
            let permit = permit.clone().acquire_owned();
            let Ok(Ok(permit)) = tokio::time::timeout(STALL_MAX, permit).await else {
                return Outcome::Stalled;
            };
            if let Some(download) = self.reads.downloads().under_way.get_mut(&self.id) {
                download.last = Instant::now();
            }
            let left = usize::try_from(self.length - at).unwrap_or(usize::MAX);
            let (file, length) = (self.file.clone(), left.min(CHUNK_BYTES));
            let read = self.reads.run(move || read_at(&file, at, length)).await;
            let chunk = match read {
                Ok(Ok(bytes)) if bytes.is_empty() => Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter",
                )),
                Ok(read) => read,
                Err(error) => Err(io::Error::new(io::ErrorKind::TimedOut, error)),
            };
            let is_over = chunk.is_err();
            let chunk = chunk.map(|bytes| {
                at += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                Bytes::from_owner(FileChunk {
                    bytes,
                    _permit: permit,
                })
            });
            if self.chunks.send(chunk).await.is_err() || is_over {
                return Outcome::Done;
            }
        }
        Outcome::Done
    }
}

impl Drop for FileSender {
    fn drop(&mut self) {
        self.reads.downloads().under_way.remove(&self.id);
    }
}

fn read_at(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; length];
    loop {
        match file.read_at(&mut chunk, at) {
            Ok(count) => {
                chunk.truncate(count);
                return Ok(chunk);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A piece that is read and not yet sent.
struct FileChunk {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for FileChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that fails if it ends before its length, so that no client takes a part for the whole.
struct FileBody {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.chunks.poll_recv(context));
        Poll::Ready(Some(match chunk {
            Some(Ok(bytes)) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                self.left = self.left.saturating_sub(length);
                Ok(Frame::data(bytes))
            }
            Some(Err(error)) => Err(error),
            None => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the download was abandoned",
            )),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Returns a whole body, read as a connection does: no piece is kept.
    async fn taken(mut body: Body) -> Result<Vec<u8>, axum::Error> {
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            whole.extend_from_slice(&frame?.into_data().unwrap_or_default());
        }
        Ok(whole)
    }

    #[tokio::test]
    async fn file_is_complete_or_visibly_cut() {
        let reads = FileReads::default();
        let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let length = u64::try_from(bytes.len()).unwrap();
        let body = reads
            .body(file(&bytes), length, &Caller::default())
            .unwrap();
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(length));
        assert!(taken(body).await.unwrap() == bytes);
        let part = reads.body(file(&bytes), 10, &Caller::default()).unwrap();
        assert!(taken(part).await.unwrap() == bytes[..10]);
        let empty = reads.body(file(b""), 0, &Caller::default()).unwrap();
        assert!(taken(empty).await.unwrap().is_empty());
        let short = reads.body(file(b"x"), 2, &Caller::default()).unwrap();
        assert!(taken(short).await.is_err(), "it became shorter");
        assert!(reads.downloads().under_way.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_download_ends_with_small_buffer() {
        let reads = FileReads::default();
        let large = vec![b'x'; 100 * CHUNK_BYTES];
        let length = u64::try_from(large.len()).unwrap();
        let mut stalled = reads
            .body(file(&large), length, &Caller::default())
            .unwrap();
        let first = stalled.frame().await.unwrap().unwrap();
        // The download reads only what fits, however long the reader waits.
        tokio::time::sleep(STALL_MAX / 2).await;
        let second = stalled.frame().await.unwrap().unwrap();
        let third = tokio::time::timeout(STALL_MAX / 4, stalled.frame()).await;
        assert!(third.is_err(), "two pieces are held");
        drop((first, second));
        let third = stalled.frame().await.unwrap().unwrap();
        let fourth = stalled.frame().await.unwrap().unwrap();
        let begun = Instant::now();
        let end = stalled.frame().await.unwrap();
        assert!(end.is_err(), "a part was taken for the whole");
        assert_eq!(begun.elapsed().as_secs(), STALL_MAX.as_secs());
        drop((third, fourth));
        assert!(reads.downloads().under_way.is_empty());
        assert_eq!(reads.0.permits.available_permits(), READS_AT_ONCE);
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_downloads_evict_most_stalled() {
        let reads = FileReads::default();
        let large = vec![b'x'; 4 * CHUNK_BYTES];
        let length = u64::try_from(large.len()).unwrap();
        let begin = || reads.body(file(&large), length, &Caller::default());
        let mut bodies: Vec<_> = (0..DOWNLOADS_MAX).map(|_| begin().unwrap()).collect();
        assert_eq!(
            begin().unwrap_err(),
            ReadsError::TooMany,
            "nobody stands still yet"
        );
        tokio::time::sleep(STALL_MAX_CROWDED).await;
        // A download that makes progress stays.
        drop(bodies[0].frame().await.unwrap().unwrap());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let one_more = begin().unwrap();
        assert!(taken(one_more).await.unwrap() == large);
        assert!(taken(bodies.remove(0)).await.is_ok());
        let mut cut = 0;
        for body in bodies {
            cut += usize::from(taken(body).await.is_err());
        }
        assert_eq!(cut, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn caller_with_all_downloads_yields_one() {
        let reads = FileReads::new(4);
        let large = vec![b'x'; 4 * CHUNK_BYTES];
        let length = u64::try_from(large.len()).unwrap();
        let begin = |address: &str| {
            let caller = Caller {
                address: Some(address.parse().unwrap()),
                ..Caller::default()
            };
            reads.body(file(&large), length, &caller)
        };
        let (greedy, other) = ("10.0.0.1:1", "10.0.0.2:1");
        let mut bodies: Vec<_> = (0..4).map(|_| begin(greedy).unwrap()).collect();
        let two = [begin(other).unwrap(), begin(other).unwrap()];
        assert_eq!(
            begin(other).unwrap_err(),
            ReadsError::TooMany,
            "both have two"
        );
        assert_eq!(begin(greedy).unwrap_err(), ReadsError::TooMany);
        for body in two {
            assert!(taken(body).await.unwrap() == large);
        }
        assert!(taken(bodies.remove(0)).await.is_err(), "the oldest went");
        assert!(taken(bodies.pop().unwrap()).await.is_ok());
    }

    #[tokio::test]
    async fn reader_threads_are_bounded() {
        let reads = FileReads::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (told, mut at_work) = mpsc::channel(3 * READS_AT_ONCE);
        let working: Vec<_> = (0..3 * READS_AT_ONCE)
            .map(|_| {
                let (reads, released, told) = (reads.clone(), released.clone(), told.clone());
                tokio::spawn(async move {
                    let work = move || {
                        told.try_send(()).unwrap();
                        let _ = released.lock().unwrap().recv();
                    };
                    reads.run(work).await
                })
            })
            .collect();
        for _ in 0..READS_AT_ONCE {
            at_work.recv().await.unwrap();
        }
        // Other blocking work continues meanwhile.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(at_work.try_recv().is_err());
        drop(release);
        for one in working {
            one.await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hung_file_system_blocks_own_readers() {
        let reads = FileReads::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let hang = |place: &'static str| {
            let (reads, released) = (reads.clone(), released.clone());
            tokio::spawn(async move {
                let work = move || {
                    let _ = released.lock().unwrap().recv();
                };
                reads.run_at(place, work).await
            })
        };
        // A caller who leaves also gives up its turn.
        let left = hang("left");
        tokio::task::yield_now().await;
        left.abort();
        let hung: Vec<_> = (0..READS_AT_ONCE - 1).map(|_| hang("hung")).collect();
        while reads.0.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(READ_MAX).await;
        for read in hung {
            assert_eq!(read.await.unwrap(), Err(ReadsError::NoAnswer));
        }
        while reads.0.permits.available_permits() < READS_AT_ONCE {
            tokio::task::yield_now().await;
        }
        assert_eq!(reads.run_at("hung", || ()).await, Err(ReadsError::NoAnswer));
        assert_eq!(reads.run_at("left", || 1).await, Ok(1));
        assert_eq!(reads.run_at("elsewhere", || 2).await, Ok(2));
        drop(release);
        while reads.stuck().total > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(reads.run_at("hung", || 3).await, Ok(3));
    }
}
