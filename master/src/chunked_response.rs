//! Large answers in chunks, each rendered separately and sent in order.
//!
//! Entered through [`Renderer::answer`] with a [`Document`]: rows of items, divided into chunks of about
//! [`CHUNK_BYTES`]. A few chunks are rendered ahead of the reader, on threads that may block; no thread waits for the
//! reader. Invariants: rendering sends nothing to the core; a reader holds a few chunks, however slow it is, and none
//! once it has disconnected or has read nothing for [`STALL_MAX`]; few answers are searched at a time, whether or not
//! their callers have left, and not many are read; callers of one group leave half of the places to others.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::fair_semaphore::{FairSemaphore, Group, Permit, QueueFull, Rules};
use meseta_daemon::server::Connection;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::events::STALL_MAX;

/// The approximate size of a chunk: large enough to be efficient.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;
/// The size of the first chunk: small enough for a fast first byte.
const FIRST_CHUNK_BYTES: usize = 8 * 1024;
/// The number of chunks of one answer rendered ahead while another is sent.
const CHUNKS_AHEAD: usize = 2;
/// The number of readers above which no chunks are rendered ahead.
const READERS_BUFFERED_MAX: usize = 16;
/// The number of answers read at a time: each holds a snapshot and a list of its objects.
const READERS_MAX: usize = 256;
/// The time for which a reader may read nothing while others wait for its place.
pub(crate) const READER_STALL_MAX: Duration = Duration::from_secs(1);
/// The number of answers of one group that wait for a place; below, those of all groups.
const WAITING_OF_GROUP_MAX: usize = 256;
const WAITING_MAX: usize = 4_096;
/// The longest time that an answer may hold its snapshot; enough for a slow connection.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(600);

/// A row of items written one after another.
pub(crate) trait Items: Send + Sync + 'static {
    fn len(&self) -> usize;

    /// The approximate size of one item.
    fn bytes_each(&self) -> usize;

    /// Writes some items, with the separator from the items before.
    fn render(&self, range: Range<usize>, out: &mut Vec<u8>);
}

pub(crate) type Row = Arc<dyn Items>;

pub(crate) struct Document {
    /// The rows that are available at once.
    pub(crate) first: Vec<Row>,
    /// The rows that need a longer search.
    pub(crate) rest: Option<FindRows>,
}

pub(crate) type FindRows = Box<dyn FnOnce() -> Vec<Row> + Send>;

impl Document {
    /// A document that is available at once.
    pub(crate) fn from_first(first: Vec<Row>) -> Self {
        Self { first, rest: None }
    }

    /// Wraps the document in a call of a script's function.
    pub(crate) fn with_callback(mut self, callback: Option<&str>) -> Self {
        let Some(callback) = callback else {
            return self;
        };
        self.first.insert(0, text(format!("{callback}(")));
        // Mesos ends a callback without a semicolon.
        let end = text(")");
        match self.rest.take() {
            Some(rest) => {
                self.rest = Some(Box::new(|| {
                    let mut rows = rest();
                    rows.push(end);
                    rows
                }));
            }
            None => self.first.push(end),
        }
        self
    }
}

/// A row with a fixed text.
pub(crate) fn text(text: impl Into<Vec<u8>>) -> Row {
    let text = text.into();
    Arc::new(ItemsFn {
        len: 1,
        bytes_each: text.len(),
        write: move |_, out: &mut Vec<u8>| out.extend_from_slice(&text),
    })
}

/// A row that is written at once.
pub(crate) fn once(bytes: usize, write: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Row {
    Arc::new(ItemsFn {
        len: 1,
        bytes_each: bytes,
        write: move |_, out: &mut Vec<u8>| write(out),
    })
}

/// The elements of a list, with commas between.
pub(crate) fn list(
    len: usize,
    bytes_each: usize,
    write: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> Row {
    Arc::new(ItemsFn {
        len,
        bytes_each,
        write: move |index, out: &mut Vec<u8>| {
            if index > 0 {
                out.push(b',');
            }
            write(index, out);
        },
    })
}

struct ItemsFn<F> {
    len: usize,
    bytes_each: usize,
    write: F,
}

impl<F: Fn(usize, &mut Vec<u8>) + Send + Sync + 'static> Items for ItemsFn<F> {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes_each(&self) -> usize {
        self.bytes_each
    }

    fn render(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for index in range {
            (self.write)(index, out);
        }
    }
}

/// Rows that are rendered into one chunk.
#[derive(Default)]
struct UnrenderedChunk {
    parts: Vec<(Row, Range<usize>)>,
    bytes: usize,
}

impl UnrenderedChunk {
    fn render(&self, pool: &Arc<BufferPool>) -> Bytes {
        let mut out = pool.take();
        // The expected size with a reserve.
        out.reserve(self.bytes + self.bytes / 8);
        for (row, range) in &self.parts {
            row.render(range.clone(), &mut out);
        }
        Bytes::from_owner(PooledBuffer {
            bytes: out,
            pool: Arc::downgrade(pool),
        })
    }
}

/// Sent buffers of one response, reused for its next chunks: a new buffer costs page faults.
#[derive(Debug, Default)]
struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    fn take(&self) -> Vec<u8> {
        let taken = self.0.lock().ok().and_then(|mut buffers| buffers.pop());
        taken.unwrap_or_default()
    }

    fn put(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Ok(mut buffers) = self.0.lock()
            && buffers.len() <= CHUNKS_AHEAD
            && buffer.capacity() <= 2 * CHUNK_BYTES
        {
            buffers.push(buffer);
        }
    }
}

/// A rendered chunk, whose buffer returns to the pool once it is sent.
struct PooledBuffer {
    bytes: Vec<u8>,
    pool: Weak<BufferPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// Splits rows into chunks.
struct Chunker {
    unrendered: UnrenderedChunk,
    full_bytes: usize,
    /// Complete chunks that are not yet being rendered.
    ready: VecDeque<UnrenderedChunk>,
}

impl Chunker {
    fn new() -> Self {
        Self {
            unrendered: UnrenderedChunk::default(),
            full_bytes: FIRST_CHUNK_BYTES,
            ready: VecDeque::new(),
        }
    }

    fn add(&mut self, row: &Row) {
        let each = row.bytes_each().max(1);
        let len = row.len();
        let mut from = 0;
        while from < len {
            let bytes_left = self.full_bytes.saturating_sub(self.unrendered.bytes);
            let to = len.min(from + bytes_left.div_ceil(each).max(1));
            self.unrendered.parts.push((row.clone(), from..to));
            self.unrendered.bytes += (to - from) * each;
            from = to;
            if self.unrendered.bytes >= self.full_bytes {
                self.finish();
            }
        }
    }

    /// Finishes the current chunk, full or not.
    fn finish(&mut self) {
        if !self.unrendered.parts.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.unrendered));
            self.full_bytes = CHUNK_BYTES;
        }
    }
}

/// A rendered chunk, and whether more follow.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Bytes,
    pub(crate) is_last: bool,
}

/// The answer cannot be made because of a defect, which was logged.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("Failed to render the answer")]
pub(crate) struct RenderError;

/// Renders answers: as many chunks at a time as there are cores, in the order of arrival.
#[derive(Clone, Debug)]
pub(crate) struct Renderer {
    slots: Arc<Semaphore>,
    /// Places for searching rows before they are rendered.
    finding: FairSemaphore,
    readers: FairSemaphore,
}

/// Places for answers during the search or construction, which is short.
pub(crate) fn making(answers_max: usize) -> FairSemaphore {
    FairSemaphore::new(rules(answers_max, None))
}

/// Places for answers until their readers have them. A stalled answer loses its place when others wait.
pub(crate) fn reading(answers_max: usize) -> FairSemaphore {
    FairSemaphore::new(rules(answers_max, Some(READER_STALL_MAX)))
}

fn rules(units_max: usize, stall_timeout: Option<Duration>) -> Rules {
    Rules {
        units_max,
        leaves_half: stall_timeout.is_some(),
        stall_timeout,
        newest_first: false,
        waiting_of_group_max: WAITING_OF_GROUP_MAX,
        waiting_max: WAITING_MAX,
    }
}

impl Default for Renderer {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            slots: Arc::new(Semaphore::new(cores)),
            finding: making(cores),
            readers: reading(READERS_MAX),
        }
    }
}

/// The place of a reader, until its answer has ended.
#[derive(Debug)]
pub(crate) struct ReaderPermit {
    group: Group,
    permit: Permit,
    /// The connection of the answer, closed when another answer gets its place.
    connection: Option<Connection>,
}

impl Renderer {
    /// The used places of readers, and of searches.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.readers.used(), self.finding.used())
    }

    /// Waits for a reader's place. Called before the snapshot is taken, so that a waiting reader holds no memory.
    pub(crate) async fn admit(&self, caller: &Caller) -> Result<ReaderPermit, QueueFull> {
        let group: Group = caller.group().into();
        let permit = self.readers.take(group.clone(), 1).await?;
        // There is nothing to read yet.
        permit.pause_stall_check();
        Ok(ReaderPermit {
            group,
            permit,
            connection: caller.connection.clone(),
        })
    }

    /// The body of an answer. An answer of one chunk has a length; longer ones are streamed.
    pub(crate) async fn answer(
        &self,
        document: Document,
        reader: ReaderPermit,
    ) -> Result<Body, RenderError> {
        let (sender, mut chunks) = mpsc::channel(1);
        let this = self.clone();
        tokio::spawn(async move {
            let revoked = reader.permit.revoked().clone();
            let rendering = this.render_in_order(document, sender, &reader);
            tokio::select! {
                rendered = tokio::time::timeout(ANSWER_MAX, rendering) => if rendered.is_err() {
                    tracing::warn!("slow reader: response aborted");
                },
                () = revoked.cancelled() => {
                    tracing::debug!("closed a stalled reader: another reader needed its place");
                    if let Some(connection) = &reader.connection {
                        connection.close();
                    }
                }
            }
        });
        let first = chunks.recv().await.ok_or(RenderError)?;
        if first.is_last {
            return Ok(Body::from(first.bytes));
        }
        Ok(Body::new(StreamedBody {
            first: Some(first.bytes),
            chunks,
            left: None,
            is_over: false,
        }))
    }

    /// Begins the search for an answer's rows at its group's turn. Once begun, the search runs to its end and counts
    /// until then.
    fn find(&self, rest: FindRows, group: &Group) -> AbortOnDropHandle<Option<Vec<Row>>> {
        let (finding, group) = (self.finding.clone(), group.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let turn = finding.take(group, 1).await.ok()?;
            let finding = background::spawn(move || {
                let rows = rest();
                drop(turn);
                rows
            });
            finding.await.ok()
        }))
    }

    /// The body of a small answer with all rows available.
    pub(crate) async fn render_small(&self, rows: Vec<Row>) -> Result<Body, RenderError> {
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.map_err(|_| RenderError)?;
        let rendering = background::spawn(move || {
            let mut out = Vec::new();
            rows.iter()
                .for_each(|row| row.render(0..row.len(), &mut out));
            drop(slot);
            out
        });
        rendering.await.map(Body::from).map_err(|_| RenderError)
    }

    /// Renders the chunks and sends them in order.
    async fn render_in_order(
        &self,
        document: Document,
        chunks: mpsc::Sender<Chunk>,
        reader: &ReaderPermit,
    ) {
        let mut rest = document.rest.map(|rest| self.find(rest, &reader.group));
        let mut chunker = Chunker::new();
        document.first.iter().for_each(|row| chunker.add(row));
        if rest.is_none() {
            chunker.finish();
        }
        let mut under_way = VecDeque::new();
        let pool = Arc::default();
        loop {
            let is_crowded = self.readers.used() > READERS_BUFFERED_MAX;
            let chunks_max = if is_crowded { 1 } else { 1 + CHUNKS_AHEAD };
            while under_way.len() < chunks_max {
                if chunker.ready.is_empty()
                    && let Some(rest) = rest.take()
                {
                    // The reader is not the one that stalls now.
                    reader.permit.pause_stall_check();
                    let found = tokio::select! {
                        () = chunks.closed() => return,
                        found = rest => found,
                    };
                    reader.permit.record_progress();
                    let Ok(Some(rows)) = found else { return };
                    rows.iter().for_each(|row| chunker.add(row));
                    chunker.finish();
                }
                let Some(unrendered) = chunker.ready.pop_front() else {
                    break;
                };
                under_way.push_back(self.begin(unrendered, &pool));
            }
            let Some(rendering) = under_way.pop_front() else {
                return;
            };
            let rendered = tokio::select! {
                () = chunks.closed() => return,
                rendered = rendering => rendered,
            };
            let Ok(Some(bytes)) = rendered else { return };
            let is_last = under_way.is_empty() && chunker.ready.is_empty() && rest.is_none();
            let sending = chunks.send(Chunk { bytes, is_last });
            match tokio::time::timeout(STALL_MAX, sending).await {
                Ok(Ok(())) => reader.permit.record_progress(),
                Ok(Err(_)) => return tracing::debug!("reader left before the end"),
                Err(_) => return tracing::warn!("slow reader: response aborted"),
            }
        }
    }

    /// Begins to render a chunk, unless its reader has left.
    fn begin(
        &self,
        unrendered: UnrenderedChunk,
        pool: &Arc<BufferPool>,
    ) -> AbortOnDropHandle<Option<Bytes>> {
        let (slots, pool) = (self.slots.clone(), pool.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let slot = slots.acquire_owned().await.ok()?;
            let rendering = background::spawn(move || {
                let bytes = unrendered.render(&pool);
                drop(slot);
                bytes
            });
            rendering.await.ok()
        }))
    }
}

/// A body that fails if it ends before its last chunk, so that a client never takes a part for the whole.
pub(crate) struct StreamedBody {
    first: Option<Bytes>,
    chunks: mpsc::Receiver<Chunk>,
    /// The number of remaining bytes, if known.
    left: Option<u64>,
    is_over: bool,
}

impl StreamedBody {
    /// A body of this length.
    pub(crate) fn of_length(chunks: mpsc::Receiver<Chunk>, bytes: usize) -> Body {
        Body::new(Self {
            first: None,
            chunks,
            left: u64::try_from(bytes).ok(),
            is_over: false,
        })
    }
}

impl http_body::Body for StreamedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.chunks.poll_recv(context));
        self.is_over = chunk.as_ref().is_none_or(|chunk| chunk.is_last);
        Poll::Ready(Some(match chunk {
            Some(chunk) => {
                let length = u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
                self.left = self.left.map(|left| left.saturating_sub(length));
                Ok(Frame::data(chunk.bytes))
            }
            None => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the answer was abandoned",
            )),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// Renders a whole document at once.
#[cfg(test)]
pub(crate) fn rendered_bytes(document: Document) -> Vec<u8> {
    let mut out = Vec::new();
    let rest = document.rest.map(|rest| rest()).unwrap_or_default();
    for row in document.first.into_iter().chain(rest) {
        row.render(0..row.len(), &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    use super::*;

    /// Numbers of a given width, and a count of the written ones.
    fn numbers(len: usize, bytes_each: usize, written: &Arc<AtomicUsize>) -> Row {
        let written = written.clone();
        list(len, bytes_each, move |index, out| {
            written.fetch_add(1, Ordering::Relaxed);
            out.extend_from_slice(format!("{index:bytes_each$}").as_bytes());
        })
    }

    async fn read(body: Body) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }

    /// A list of 1 MiB after a head, most of which needs a search.
    fn large(written: &Arc<AtomicUsize>) -> Document {
        let (first, rest) = (numbers(10, 100, written), numbers(10_000, 100, written));
        Document {
            first: vec![text("["), first, text(",")],
            rest: Some(Box::new(|| vec![rest, text("]")])),
        }
    }

    /// The body of an answer to some caller.
    async fn answer(renderer: &Renderer, document: Document) -> Result<Body, RenderError> {
        let reader = renderer.admit(&Caller::default()).await.unwrap();
        renderer.answer(document, reader).await
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_whole(rows in prop::collection::vec((0_usize..2_000, 1_usize..20_000), 0..6)) {
            let written = Arc::new(AtomicUsize::new(0));
            let rows: Vec<Row> = rows.into_iter().map(|(len, each)| {
                list(len.min(2_000_000 / each), each, move |index, out| {
                    out.extend_from_slice(index.to_string().as_bytes());
                })
            }).chain([numbers(3, 1, &written)]).collect();
            let mut chunker = Chunker::new();
            rows.iter().for_each(|row| chunker.add(row));
            chunker.finish();
            let pool = Arc::default();
            let rendered: Vec<u8> = chunker.ready.iter().flat_map(|unrendered| unrendered.render(&pool)).collect();
            for (index, unrendered) in chunker.ready.iter().enumerate() {
                let each = unrendered.parts.iter().map(|(row, _)| row.bytes_each()).max().unwrap();
                let full = if index == 0 { FIRST_CHUNK_BYTES } else { CHUNK_BYTES };
                prop_assert!(unrendered.bytes < full + each);
            }
            prop_assert_eq!(rendered, rendered_bytes(Document::from_first(rows)));
        }
    }

    #[tokio::test]
    async fn parallel_rendering_keeps_order() {
        let written = Arc::default();
        let expected = rendered_bytes(large(&written));
        assert_eq!(written.swap(0, Ordering::Relaxed), 10_010);
        let mut body = answer(&Renderer::default(), large(&written)).await.unwrap();
        assert_eq!(body.size_hint().exact(), None);
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.len() <= 2 * FIRST_CHUNK_BYTES, "{}", first.len());
        let mut all = first.to_vec();
        all.extend_from_slice(&read(body).await);
        assert!(all == expected);
        assert_eq!(written.load(Ordering::Relaxed), 10_010, "each once");
    }

    #[tokio::test]
    async fn single_chunk_answer_has_exact_length() {
        let document = Document::from_first(vec![text("{"), list(0, 1, |_, _| ()), text("}")]);
        let document = document.with_callback(Some("f"));
        let body = answer(&Renderer::default(), document).await;
        let body = body.unwrap();
        assert_eq!(body.size_hint().exact(), Some(5));
        assert_eq!(read(body).await, "f({})");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_buffers_little_then_expires() {
        let written = Arc::default();
        let renderer = Renderer::default();
        let mut body = answer(&renderer, large(&written)).await.unwrap();
        // The paused clock advances when nothing else runs.
        tokio::time::sleep(STALL_MAX / 2).await;
        let buffered = written.load(Ordering::Relaxed) * 100;
        assert!(
            buffered <= (CHUNKS_AHEAD + 3) * CHUNK_BYTES,
            "{buffered} bytes for nobody"
        );
        tokio::time::sleep(STALL_MAX).await;
        assert_eq!(Arc::strong_count(&written), 1, "it is still held");
        assert_eq!(renderer.readers.used(), 0);
        let mut last = body.frame().await;
        while let Some(Ok(_)) = last {
            last = body.frame().await;
        }
        assert!(last.unwrap().is_err(), "a part was taken for the whole");
    }

    #[tokio::test(start_paused = true)]
    async fn many_slow_readers_delay_nobody() {
        let written = Arc::default();
        let renderer = Renderer::default();
        let mut slow = Vec::new();
        for _ in 0..100 {
            slow.push(answer(&renderer, large(&written)).await.unwrap());
        }
        tokio::time::sleep(STALL_MAX / 2).await;
        let buffered = written.load(Ordering::Relaxed) * 100;
        assert!(
            buffered <= 100 * 3 * CHUNK_BYTES,
            "{buffered} bytes for nobody"
        );
        let other = Arc::default();
        let body = answer(&renderer, large(&other)).await.unwrap();
        assert_eq!(
            read(body).await.len(),
            rendered_bytes(large(&Arc::default())).len()
        );
        assert_eq!(
            renderer.slots.available_permits(),
            Renderer::default().slots.available_permits()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_reader_makes_room_for_others() {
        let (written, renderer) = (Arc::default(), Renderer::default());
        let mut slow = Vec::new();
        while renderer.readers.used() < READERS_MAX / 2 {
            slow.push(answer(&renderer, large(&written)).await.unwrap());
        }
        let body = answer(&renderer, large(&written)).await.unwrap();
        let expected = rendered_bytes(large(&Arc::default()));
        assert!(read(body).await == expected);
        assert!(renderer.readers.used() < READERS_MAX / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn departed_reader_releases_its_document() {
        let written = Arc::default();
        let renderer = Renderer::default();
        let mut body = answer(&renderer, large(&written)).await.unwrap();
        body.frame().await.unwrap().unwrap();
        drop(body);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&written), 1, "it is still held");
        assert!(written.load(Ordering::Relaxed) < 10_010);
    }

    #[tokio::test]
    async fn failed_rendering_fails_the_answer() {
        let broken = || once(1, |_| panic!("expected by this test"));
        let alone = answer(&Renderer::default(), Document::from_first(vec![broken()])).await;
        assert!(alone.is_err());
        let written = Arc::default();
        let mut document = large(&written);
        document.rest = Some(Box::new(move || vec![broken()]));
        document.first.push(numbers(200, 100, &written));
        let body = answer(&Renderer::default(), document).await.unwrap();
        assert!(
            body.collect().await.is_err(),
            "a part was taken for the whole"
        );
    }
}
