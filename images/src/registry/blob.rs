//! The download of one blob as a stream that survives cut connections.
//!
//! [`BlobReader`] is made by [`Repository::blob`]. After a cut it asks for the rest of the bytes by a range, from the registry
//! again, because the addresses of redirects expire. The consumer's hash therefore covers all parts. Invariant: the reader
//! delivers each byte of the blob once, in order, and never more than the descriptor's size and one byte.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use ureq::http::{Response, StatusCode};
use ureq::{Body, BodyReader};

use super::client::{Ask, Repository, broken};
use super::error::{Cause, Prospect};
use super::retry::Retry;
use crate::activity::Activity;
use crate::descriptor::BlobDescriptor;

/// Bytes after which a connection counts as working, so that its next failure is a first one.
const PROGRESS_BYTES: u64 = 256 << 10;
/// The slowest acceptable download. A server that drips bytes would otherwise hold its slot for ever.
const BYTES_A_SECOND_MIN: u64 = 1024;
/// The time over which the speed is measured.
const SPEED_WINDOW: Duration = Duration::from_secs(60);

/// A blob as a stream. See the module.
pub struct BlobReader {
    repository: Arc<Repository>,
    blob: BlobDescriptor,
    activity: Arc<Activity>,
    ask: Ask,
    /// Absent before the first read and after a failure.
    body: Option<BodyReader<'static>>,
    /// The index of the source: servers first, then the blob's own addresses.
    source: usize,
    /// Bytes delivered.
    offset: u64,
    /// The offset at the last failure.
    failed_at: u64,
    retry: Retry,
    speed: Speed,
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "BlobReader({} at {})", self.blob.digest, self.offset)
    }
}

impl BlobReader {
    pub(super) fn new(
        repository: Arc<Repository>,
        blob: BlobDescriptor,
        activity: Arc<Activity>,
    ) -> Self {
        let ask = Ask::for_blob(&blob, format!("download layer {}", blob.digest));
        let mut reader = Self {
            repository,
            blob,
            activity,
            ask,
            body: None,
            source: 0,
            offset: 0,
            failed_at: 0,
            retry: Retry::new(),
            speed: Speed::default(),
        };
        reader.retry = reader.retry_of_source();
        reader
    }

    fn source_count(&self) -> usize {
        self.repository.server_count() + self.blob.urls.len()
    }

    /// A mirror gets one attempt, since the registry is behind it.
    fn retry_of_source(&self) -> Retry {
        match self.source + 1 >= self.repository.server_count() {
            true => Retry::new(),
            false => Retry::with_one_attempt(),
        }
    }

    /// Connects at the current offset, with as many attempts as the sources deserve.
    fn open(&mut self) -> Result<BodyReader<'static>, Cause> {
        loop {
            match self.open_once() {
                Ok(body) => return Ok(body),
                Err(cause) => self.recover(cause)?,
            }
        }
    }

    fn open_once(&mut self) -> Result<BodyReader<'static>, Cause> {
        self.ask.start = self.offset;
        let servers = self.repository.server_count();
        let response = match self.source.checked_sub(servers) {
            None => self.repository.attempt(self.source, &self.ask)?,
            Some(index) => {
                let address = self.blob.urls.get(index).map_or("", String::as_str);
                self.repository.attempt_elsewhere(address, &self.ask)?
            }
        };
        let skipped = check_range(&response, self.offset, self.blob.size)?;
        let mut body = response.into_body().into_reader();
        // The server ignored the range: the delivered part is read again and dropped.
        let dropped = io::copy(&mut (&mut body).take(skipped), &mut io::sink()).map_err(broken)?;
        match dropped == skipped {
            true => Ok(body),
            false => Err(Cause::Broken("the server closed the connection".to_owned())),
        }
    }

    /// Decides what follows a failure: a wait, the next source, or the end.
    fn recover(&mut self, cause: Cause) -> Result<(), Cause> {
        self.body = None;
        self.speed = Speed::default();
        self.repository.cancel().check()?;
        if self.offset.saturating_sub(self.failed_at) >= PROGRESS_BYTES {
            self.retry = self.retry_of_source();
        }
        self.failed_at = self.offset;
        if self
            .repository
            .wait_to_retry(&cause, &mut self.retry, &self.activity)?
        {
            return Ok(());
        }
        let has_next = self.source + 1 < self.source_count();
        if cause.prospect() == Prospect::Never || !has_next {
            return Err(cause);
        }
        self.source += 1;
        self.retry = self.retry_of_source();
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, Cause> {
        loop {
            self.repository.cancel().check()?;
            let mut body = match self.body.take() {
                Some(body) => body,
                None => self.open()?,
            };
            let clock = self.repository.client().clock();
            let before = clock.now();
            let read = body.read(buffer);
            let waited = clock.now().saturating_duration_since(before);
            let failure = match read {
                Ok(0) if self.offset < self.blob.size => {
                    Cause::Broken("the server closed the connection".to_owned())
                }
                Ok(count) => {
                    self.offset = self.offset.saturating_add(count as u64);
                    self.activity.record_bytes(count as u64);
                    match self.speed.observe(waited, count as u64) {
                        true => {
                            self.body = Some(body);
                            return Ok(count);
                        }
                        // These bytes count: the next connection continues behind them.
                        false => {
                            drop(body);
                            self.recover(Cause::TooSlow {
                                floor: BYTES_A_SECOND_MIN,
                            })?;
                            return Ok(count);
                        }
                    }
                }
                // All promised bytes are here, and their digest tells whether they are right.
                Err(_) if self.offset >= self.blob.size => return Ok(0),
                Err(error) => broken(error),
            };
            self.recover(failure)?;
        }
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let source = self.source;
        self.read_some(buffer).map_err(|cause| {
            let server = Some(source).filter(|index| *index < self.repository.server_count());
            io::Error::other(self.repository.fail(&self.ask, server, cause))
        })
    }
}

/// Returns the number of bytes to skip so that the body continues at `offset`.
fn check_range(response: &Response<Body>, offset: u64, size: u64) -> Result<u64, Cause> {
    let header = |name| {
        let value = response.headers().get(name);
        value.and_then(|value: &ureq::http::HeaderValue| value.to_str().ok())
    };
    let is_partial = response.status() == StatusCode::PARTIAL_CONTENT;
    let length = header(CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    let expected = if is_partial {
        size.saturating_sub(offset)
    } else {
        size
    };
    if let Some(length) = length.filter(|length| *length != expected) {
        return Err(Cause::Invalid(format!(
            "the server offers {length} bytes, but the manifest promises {expected}"
        )));
    }
    if !is_partial {
        return Ok(offset);
    }
    let start = header(CONTENT_RANGE)
        .and_then(|text| text.trim().strip_prefix("bytes "))
        .and_then(|text| text.split('-').next())
        .and_then(|text| text.trim().parse::<u64>().ok());
    match start == Some(offset) {
        true => Ok(0),
        false => Err(Cause::Invalid(format!(
            "the server sent another range than the one from byte {offset}"
        ))),
    }
}

/// The speed of a connection, over windows of time spent waiting for bytes.
#[derive(Debug, Default)]
struct Speed {
    waited: Duration,
    bytes: u64,
}

impl Speed {
    /// Returns false if the last window was too slow.
    fn observe(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited = self.waited.saturating_add(waited);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < SPEED_WINDOW {
            return true;
        }
        let floor = self.waited.as_secs().saturating_mul(BYTES_A_SECOND_MIN);
        let is_enough = self.bytes >= floor;
        *self = Self::default();
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dripping_connection_is_too_slow() {
        let mut speed = Speed::default();
        let second = Duration::from_secs(1);
        assert!((0..59).all(|_| speed.observe(second, 1)));
        assert!(!speed.observe(second, 1));
        assert!((0..600).all(|_| speed.observe(second, 1024)));
    }
}
