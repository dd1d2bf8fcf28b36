//! Digests, and the description of the blobs that they name.
//!
//! [`Digest::parse`] is the only way from text to a digest, so a digest is safe as part of a path. [`Verified`] checks a
//! stream against a size and a digest. Pure, but for reading the stream that the caller passes in.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use sha2::{Digest as _, Sha256, Sha512};

/// The hash function of a digest.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    /// The name in the text form of a digest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_length(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// A digest in its text form, `sha256:` and 64 lower-case hexadecimal digits, or `sha512:` and 128.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest {
    algorithm: Algorithm,
    /// Lower-case hexadecimal digits only, of the algorithm's length.
    hex: Arc<str>,
}

/// The rejection of a text that is not a digest.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "invalid digest {text:?}: expected sha256: and 64, or sha512: and 128, lower-case hexadecimal digits"
)]
pub struct InvalidDigest {
    /// The beginning of the rejected text.
    text: String,
}

impl Digest {
    pub fn parse(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest {
            text: text.chars().take(140).collect(),
        };
        let (name, hex) = text.split_once(':').ok_or_else(invalid)?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(invalid()),
        };
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() != algorithm.hex_length() || !hex.bytes().all(is_hex) {
            return Err(invalid());
        }
        Ok(Self {
            algorithm,
            hex: hex.into(),
        })
    }

    /// Returns the SHA-256 digest of bytes in memory.
    pub fn from_content(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(bytes);
        hasher.finish()
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The hexadecimal digits, which are safe as a file name.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl std::str::FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        Self::parse(text)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A digest in the making.
#[derive(Clone, Debug)]
pub struct Hasher(HashState);

#[derive(Clone, Debug)]
enum HashState {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => HashState::Sha256(Sha256::new()),
            Algorithm::Sha512 => HashState::Sha512(Box::new(Sha512::new())),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HashState::Sha256(state) => state.update(bytes),
            HashState::Sha512(state) => state.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self.0 {
            HashState::Sha256(state) => in_hex(Algorithm::Sha256, &state.finalize()),
            HashState::Sha512(state) => in_hex(Algorithm::Sha512, &state.finalize()),
        }
    }
}

fn in_hex(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = nibbles.filter_map(|nibble| DIGITS.get(usize::from(nibble)));
    Digest {
        algorithm,
        hex: digits.collect::<String>().into(),
    }
}

/// The compression of a layer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Compression {
    Plain,
    Gzip,
    Zstd,
}

/// A blob of a registry: a manifest, a configuration or a layer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlobDescriptor {
    pub digest: Digest,
    /// Bytes of the blob as transferred.
    pub size: u64,
    /// Addresses beside the registry, of layers that the registry may not distribute.
    pub urls: Vec<String>,
}

/// A layer of an image: a tar archive, perhaps compressed, and the digest of its content.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LayerDescriptor {
    pub compression: Compression,
    /// The transferred (compressed) bytes.
    pub blob: BlobDescriptor,
    /// The digest of the uncompressed archive, by which the store names the layer.
    pub diff_id: Digest,
}

/// A stream that ends with an error unless it has exactly the size and the digest of its descriptor.
///
/// The last bytes of a wrong stream have been read when the error comes, so a consumer discards its work after an error.
#[derive(Debug)]
pub struct Verified<R> {
    inner: R,
    expected: Digest,
    size: u64,
    read: u64,
    /// Absent after the end.
    hasher: Option<Hasher>,
}

/// The difference between a stream and its descriptor. Wrapped into an [`io::Error`] by [`Verified`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Mismatch {
    #[error("the bytes of {expected} have digest {actual}: the source is damaged or hostile")]
    Digest { expected: Digest, actual: Digest },
    #[error("{digest} ends after {read} bytes of {size}")]
    TooShort {
        digest: Digest,
        read: u64,
        size: u64,
    },
    #[error("{digest} has more bytes than the {size} of its descriptor")]
    TooLong { digest: Digest, size: u64 },
}

impl<R: Read> Verified<R> {
    pub fn new(inner: R, descriptor: &BlobDescriptor) -> Self {
        Self {
            inner,
            hasher: Some(Hasher::new(descriptor.digest.algorithm())),
            expected: descriptor.digest.clone(),
            size: descriptor.size,
            read: 0,
        }
    }

    fn check_end(&mut self) -> Result<(), Mismatch> {
        let Some(hasher) = self.hasher.take() else {
            return Ok(());
        };
        if self.read < self.size {
            return Err(Mismatch::TooShort {
                digest: self.expected.clone(),
                read: self.read,
                size: self.size,
            });
        }
        let actual = hasher.finish();
        if actual != self.expected {
            return Err(Mismatch::Digest {
                expected: self.expected.clone(),
                actual,
            });
        }
        Ok(())
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.inner.read(buffer)?;
        if count == 0 {
            self.check_end().map_err(io::Error::other)?;
            return Ok(0);
        }
        self.read = self.read.saturating_add(count as u64);
        if self.read > self.size {
            return Err(io::Error::other(Mismatch::TooLong {
                digest: self.expected.clone(),
                size: self.size,
            }));
        }
        if let (Some(hasher), Some(bytes)) = (&mut self.hasher, buffer.get(..count)) {
            hasher.update(bytes);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(bytes: &[u8]) -> BlobDescriptor {
        BlobDescriptor {
            digest: Digest::from_content(bytes),
            size: bytes.len() as u64,
            urls: Vec::new(),
        }
    }

    fn read_verified(bytes: &[u8], descriptor: &BlobDescriptor) -> Result<Vec<u8>, Mismatch> {
        let mut read = Vec::new();
        let outcome = Verified::new(bytes, descriptor).read_to_end(&mut read);
        outcome.map(|_| read).map_err(|error| {
            let inner = error.into_inner().expect("ours");
            *inner.downcast::<Mismatch>().expect("a mismatch")
        })
    }

    #[test]
    fn digest_text_survives_a_round_trip() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::from_content(b"").to_string(), text);
        let parsed = Digest::parse(text).expect("valid");
        assert_eq!(parsed, Digest::from_content(b""));
        let long = format!("sha512:{}", "0f".repeat(64));
        assert_eq!(Digest::parse(&long).expect("valid").to_string(), long);
    }

    #[test]
    fn unsafe_digests_are_refused() {
        for text in [
            "",
            "sha256",
            "sha256:",
            "sha256:../../../../etc/passwd",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            &format!("sha256:{}", "A".repeat(64)),
            &format!("sha256:{}", "a".repeat(63)),
            &format!("sha256:{}", "a".repeat(128)),
            &format!("sha512:{}", "a".repeat(64)),
            &format!("sha256:{}/", "a".repeat(63)),
        ] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn correct_stream_passes_unchanged() {
        for bytes in [&b""[..], b"x", &[7; 100_000]] {
            assert_eq!(read_verified(bytes, &describe(bytes)).as_deref(), Ok(bytes));
        }
    }

    #[test]
    fn wrong_streams_end_with_an_error() {
        let descriptor = describe(b"content");
        let digest = || descriptor.digest.clone();
        assert_eq!(
            read_verified(b"cont", &descriptor),
            Err(Mismatch::TooShort {
                digest: digest(),
                read: 4,
                size: 7
            })
        );
        assert_eq!(
            read_verified(b"content and more", &descriptor),
            Err(Mismatch::TooLong {
                digest: digest(),
                size: 7
            })
        );
        assert_eq!(
            read_verified(b"CONTENT", &descriptor),
            Err(Mismatch::Digest {
                expected: digest(),
                actual: Digest::from_content(b"CONTENT")
            })
        );
    }

    #[test]
    fn long_digest_verifies_a_stream() {
        let mut hasher = Hasher::new(Algorithm::Sha512);
        hasher.update(b"content");
        let descriptor = BlobDescriptor {
            digest: hasher.finish(),
            ..describe(b"content")
        };
        assert_eq!(
            read_verified(b"content", &descriptor).as_deref(),
            Ok(&b"content"[..])
        );
    }
}
