//! Small pieces of output: sequences without vectors, bodies in chunks, query strings.

use std::collections::BTreeMap;
use std::io::{self, Write};

use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::header;
use serde::ser::{Serialize, Serializer};
use tokio::sync::mpsc;

/// The size of a chunk: large enough to be cheap.
const CHUNK_BYTES: usize = 64 * 1024;

/// The size of the first chunk: small enough for a first byte at once.
const FIRST_CHUNK_BYTES: usize = 8 * 1024;

/// Parameters taken from one query; more are ignored.
const PARAMETERS_MAX: usize = 64;

/// A list that is made while it is written.
pub(super) struct List<F>(pub(super) F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: IntoIterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A piece of a body.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) bytes: Bytes,
    pub(super) is_last: bool,
}

/// Hands what is written to a reader, chunk by chunk; waits for it, so it must not run where others
/// wait.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    chunks: mpsc::Sender<Chunk>,
    buffer: BytesMut,
    /// Sent when there is so much.
    full_bytes: usize,
}

impl ChunkWriter {
    pub(super) fn new(chunks: mpsc::Sender<Chunk>) -> Self {
        Self {
            chunks,
            buffer: BytesMut::with_capacity(4 * 1024),
            full_bytes: FIRST_CHUNK_BYTES,
        }
    }

    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        self.write_all(text.as_bytes())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.send(true)
    }

    fn send(&mut self, is_last: bool) -> io::Result<()> {
        let bytes = self.buffer.split().freeze();
        self.chunks
            .blocking_send(Chunk { bytes, is_last })
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader has left"))
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= self.full_bytes {
            self.send(false)?;
            self.full_bytes = CHUNK_BYTES;
            // One write may go beyond, and should not move what is there.
            self.buffer.reserve(CHUNK_BYTES + 4 * 1024);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A small answer, as a call of the query's `jsonp` if it has one.
pub(super) fn value(query: &BTreeMap<String, String>, value: &serde_json::Value) -> Response {
    let (kind, body) = match query.get("jsonp") {
        Some(callback) => ("text/javascript", format!("{callback}({value})")),
        None => ("application/json", value.to_string()),
    };
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// The parameters of a query or form; of a repeated one the first.
pub(super) fn collect_query(text: &str) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    for pair in text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(PARAMETERS_MAX)
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters
            .entry(decode(name))
            .or_insert_with(|| decode(value));
    }
    parameters
}

/// A parameter that a form gives more than once.
pub(super) fn repeated_parameter(text: &str) -> Option<String> {
    let mut seen = std::collections::BTreeSet::new();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .take(PARAMETERS_MAX)
        .map(|pair| decode(pair.split_once('=').map_or(pair, |(name, _)| name)))
        .find(|name| !seen.insert(name.clone()))
}

/// Undoes percent-encoding; what is not encoded properly stays as it is.
pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
                match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(decoded) => {
                        bytes.push(decoded);
                        rest = tail.get(2..).unwrap_or_default();
                    }
                    None => bytes.push(byte),
                }
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = collect_query("a=1&b=x%20y+z&c&a=2&bad=%zz&e=%e2%82%ac&cut=%2");
        let get = |name: &str| query.get(name).map(String::as_str);
        assert_eq!(get("a"), Some("1"));
        assert_eq!(get("b"), Some("x y z"));
        assert_eq!(get("c"), Some(""));
        assert_eq!(get("bad"), Some("%zz"));
        assert_eq!(get("e"), Some("€"));
        assert_eq!(get("cut"), Some("%2"));
        assert!(collect_query("").is_empty());
    }

    #[test]
    fn large_output_comes_in_chunks_and_small_in_one() {
        let (sender, mut chunks) = mpsc::channel(100);
        let mut writer = ChunkWriter::new(sender);
        for _ in 0..FIRST_CHUNK_BYTES + CHUNK_BYTES {
            writer.text("x").unwrap();
        }
        writer.text("tail").unwrap();
        writer.finish().unwrap();
        let mut next = || {
            let chunk = chunks.blocking_recv()?;
            Some((chunk.bytes.len(), chunk.is_last))
        };
        assert_eq!(next(), Some((FIRST_CHUNK_BYTES, false)));
        assert_eq!(next(), Some((CHUNK_BYTES, false)));
        assert_eq!(next(), Some((4, true)));
        assert_eq!(next(), None);
    }
}
