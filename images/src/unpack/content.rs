//! The content of a layer: the stream of its blob, decompressed and hashed in the same pass.
//!
//! [`Content::fill`] and [`Content::consume`] give the bytes without a copy. Invariant: no more than
//! [`super::Limits::content_bytes`] come out, and every byte that comes out is part of the digest.

use std::io::{self, BufReader, Chain, Cursor, Read};

use super::Refusal;
use crate::descriptor::{Algorithm, Digest, Hasher};

/// Bytes that are read from the source at once: more than a pipe gives.
const INPUT_BYTES: usize = 128 << 10;
/// Bytes of content that are hashed and written at once. They stay in the cache of a core.
const BUFFER_BYTES: usize = 256 << 10;
/// The largest zstd window, as a power of two: 128 MiB, which `zstd --ultra` needs. A frame may request gigabytes.
const WINDOW_LOG_MAX: u32 = 27;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

type Input<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// The content of a layer, with the digest of the part that was read.
pub(super) struct Content<R: Read> {
    source: Source<R>,
    buffer: Box<[u8]>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    hasher: Hasher,
    bytes: u64,
    bytes_max: u64,
}

enum Source<R: Read> {
    Plain(Input<R>),
    /// All members, one after another.
    Gzip(Box<flate2::bufread::MultiGzDecoder<Input<R>>>),
    /// All frames, also skippable ones.
    Zstd(Box<zstd::stream::read::Decoder<'static, Input<R>>>),
}

impl<R: Read> Content<R> {
    /// Begins to read a blob. Its first bytes decide on the compression: registries hold blobs with a wrong media type.
    pub(super) fn new(source: R, algorithm: Algorithm, bytes_max: u64) -> Result<Self, Refusal> {
        Ok(Self {
            source: open(source).map_err(undecodable)?,
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            hasher: Hasher::new(algorithm),
            bytes: 0,
            bytes_max,
        })
    }

    /// Returns unread bytes. Only the end of the content has none.
    pub(super) fn fill(&mut self) -> Result<&[u8], Refusal> {
        if self.start == self.end {
            let read = match &mut self.source {
                Source::Plain(source) => source.read(&mut self.buffer),
                Source::Gzip(source) => source.read(&mut self.buffer),
                Source::Zstd(source) => source.read(&mut self.buffer),
            };
            (self.start, self.end) = (0, read.map_err(undecodable)?);
            self.bytes = self.bytes.saturating_add(self.end as u64);
            if self.bytes > self.bytes_max {
                return Err(Refusal::ContentTooLarge {
                    bytes_max: self.bytes_max,
                });
            }
            self.hasher
                .update(self.buffer.get(..self.end).unwrap_or_default());
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    /// Marks bytes of the last [`Content::fill`] as read.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start = self.end.min(self.start.saturating_add(bytes));
    }

    /// Fills a buffer, and returns the number of bytes, which is smaller at the end of the content only.
    pub(super) fn read_up_to(&mut self, to: &mut [u8]) -> Result<usize, Refusal> {
        let mut read = 0;
        while let Some(rest) = to.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let from = self.fill()?;
            if from.is_empty() {
                break;
            }
            let count = from.len().min(rest.len());
            rest[..count].copy_from_slice(&from[..count]);
            self.consume(count);
            read += count;
        }
        Ok(read)
    }

    /// Reads the rest, and returns the digest and the number of bytes of the whole content.
    pub(super) fn finish(mut self) -> Result<(Digest, u64), Refusal> {
        loop {
            let count = self.fill()?.len();
            if count == 0 {
                return Ok((self.hasher.finish(), self.bytes));
            }
            self.consume(count);
        }
    }
}

fn open<R: Read>(mut source: R) -> io::Result<Source<R>> {
    let mut head = Vec::with_capacity(ZSTD_MAGIC.len());
    let count = ZSTD_MAGIC.len() as u64;
    (&mut source).take(count).read_to_end(&mut head)?;
    let is_gzip = head.starts_with(&GZIP_MAGIC);
    // The magic of a skippable frame is 0x184d2a50 to 0x184d2a5f, in little-endian order.
    let is_skippable = matches!(head.as_slice(), [0x50..=0x5f, 0x2a, 0x4d, 0x18]);
    let is_zstd = head.starts_with(&ZSTD_MAGIC) || is_skippable;
    let input = BufReader::with_capacity(INPUT_BYTES, Cursor::new(head).chain(source));
    Ok(if is_gzip {
        Source::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(input)))
    } else if is_zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Source::Zstd(Box::new(decoder))
    } else {
        Source::Plain(input)
    })
}

fn undecodable(error: io::Error) -> Refusal {
    Refusal::Undecodable {
        cause: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_all(blob: &[u8], bytes_max: u64) -> Result<(Vec<u8>, Digest, u64), Refusal> {
        let mut content = Content::new(blob, Algorithm::Sha256, bytes_max)?;
        let mut read = vec![0; 1 << 20];
        let count = content.read_up_to(&mut read)?;
        read.truncate(count);
        let (digest, bytes) = content.finish()?;
        Ok((read, digest, bytes))
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("compressed");
        encoder.finish().expect("compressed")
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 3).expect("compressed")
    }

    #[test]
    fn all_members_and_frames_are_content() {
        let (one, two) = (vec![b'a'; 70_000], b"the second part".as_slice());
        let whole = [one.as_slice(), two].concat();
        // A skippable frame of three bytes.
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0], b"xyz".as_slice()].concat();
        for blob in [
            whole.clone(),
            gzip(&whole),
            [gzip(&one), gzip(two)].concat(),
            [gzip(&one), gzip(b""), gzip(two)].concat(),
            [zstd(&one), zstd(two)].concat(),
            [zstd(&one), skippable.clone(), zstd(two)].concat(),
            [skippable, zstd(&whole)].concat(),
        ] {
            let (read, digest, bytes) = read_all(&blob, 1 << 20).expect("decoded");
            assert_eq!(read, whole);
            assert_eq!(digest, Digest::from_content(&whole));
            assert_eq!(bytes, whole.len() as u64);
        }
    }

    #[test]
    fn empty_blob_has_empty_content() {
        for blob in [Vec::new(), gzip(b""), zstd(b"")] {
            let (read, digest, _) = read_all(&blob, 0).expect("decoded");
            assert!(read.is_empty());
            assert_eq!(digest, Digest::from_content(b""));
        }
    }

    #[test]
    fn damaged_blobs_are_refused() {
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        for blob in [gzip(&bytes), zstd(&bytes)] {
            let cut = &blob[..blob.len() - 5];
            assert!(matches!(
                read_all(cut, 1 << 20),
                Err(Refusal::Undecodable { .. })
            ));
            let more = [&blob, b"garbage".as_slice()].concat();
            assert!(matches!(
                read_all(&more, 1 << 20),
                Err(Refusal::Undecodable { .. })
            ));
        }
    }

    #[test]
    fn bomb_ends_at_content_limit() {
        let blob = gzip(&vec![0; 1 << 20]);
        assert!(blob.len() < 100_000);
        let refused = read_all(&blob, 300_000).expect_err("too large");
        assert_eq!(refused, Refusal::ContentTooLarge { bytes_max: 300_000 });
    }

    #[test]
    fn huge_zstd_window_is_refused() {
        // A frame header with a window of 2^41 bytes, and an empty last block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 1, 0, 0];
        assert!(matches!(
            read_all(&frame, 100),
            Err(Refusal::Undecodable { .. })
        ));
    }
}
