//! The encoding of a request's body: gzip, which is inflated here, or none.
//!
//! Entered through [`Encoding::from_headers`] and [`inflate`]. Invariant: the inflated bytes in memory never exceed the limit and
//! were charged before, whatever the body claims.

use std::io::{self, BufRead, ErrorKind, Read};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::{HeaderMap, header};

use meseta_proto::budget::Exhausted;

use super::BodyError;

/// The encoding that the sender used for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
}

/// The encodings that are registered for HTTP, without gzip.
const OTHERS: [&str; 10] = [
    "aes128gcm",
    "br",
    "compress",
    "dcb",
    "dcz",
    "deflate",
    "exi",
    "pack200-gzip",
    "x-compress",
    "zstd",
];

impl Encoding {
    /// Returns the encoding of the header. A value that names no encoding, such as `utf-8`, is a mistake of clients that
    /// changes nothing of their bodies, and that Mesos ignores too.
    ///
    /// # Errors
    ///
    /// When there is an unsupported encoding, or more than one.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, BodyError> {
        let mut encoding = Self::Identity;
        let values = headers.get_all(header::CONTENT_ENCODING).into_iter();
        let values = values.filter_map(|value| value.to_str().ok());
        for name in values.flat_map(|value| value.split(',')).map(str::trim) {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let is_gzip = is("gzip") || is("x-gzip");
            if is_gzip && encoding == Self::Identity {
                encoding = Self::Gzip;
            } else if is_gzip || OTHERS.into_iter().any(is) {
                return Err(BodyError::Encoding);
            }
        }
        Ok(encoding)
    }
}

/// Bytes that are inflated, and charged, at a time.
const PART_BYTES: usize = 16 * 1024;
/// Bytes of a compressed body that are read at a time: whole megabytes may inflate to nothing, at 200 ns a byte.
const COMPRESSED_PART_BYTES: usize = 1024;

/// A compressed body in parts: after each part its reader has to wait.
struct Parts<'a> {
    rest: &'a [u8],
    /// The remaining bytes of the current part.
    left: usize,
}

impl<'a> Parts<'a> {
    fn from_body(body: &'a [u8]) -> Self {
        Self {
            rest: body,
            left: COMPRESSED_PART_BYTES,
        }
    }

    fn begin_next(&mut self) {
        self.left = COMPRESSED_PART_BYTES;
    }
}

impl Read for Parts<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Parts<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 && !self.rest.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let part = self.rest.get(..self.left).unwrap_or(self.rest);
        Ok(part)
    }

    fn consume(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
        self.left = self.left.saturating_sub(count);
    }
}

/// Inflates a whole gzip body, and charges each part as soon as it is there. The body has one member, as libprocess accepts
/// it: many empty ones would be work without end.
///
/// # Errors
///
/// When it exceeds `max` bytes or the available room, and when it is not gzip from its beginning to its end.
pub(super) async fn inflate(
    body: &[u8],
    max: usize,
    mut charge: impl FnMut(usize) -> Result<(), Exhausted>,
) -> Result<Bytes, BodyError> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    let mut decoder = GzDecoder::new(Parts::from_body(body));
    let mut whole = Vec::new();
    let mut part = vec![0; PART_BYTES];
    loop {
        match decoder.read(&mut part) {
            Ok(0) => break,
            Ok(count) => {
                if whole.len().saturating_add(count) > max {
                    return Err(BodyError::InflatesTooLarge { max });
                }
                charge(count).map_err(BodyError::Exhausted)?;
                whole.extend_from_slice(part.get(..count).unwrap_or_default());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => decoder.get_mut().begin_next(),
            Err(_) => return Err(BodyError::Undecodable),
        }
        // Other tasks have their turn between parts.
        tokio::task::consume_budget().await;
    }
    if !decoder.into_inner().rest.is_empty() {
        return Err(BodyError::Undecodable);
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use axum::body::Body;
    use flate2::write::GzEncoder;
    use flate2::{Compression, GzBuilder};
    use http::{HeaderValue, StatusCode};

    use meseta_proto::budget::Budget;

    use super::super::{read, read_charged};
    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn encoded_in(values: &[&'static str]) -> HeaderMap {
        let values = values.iter().map(|value| {
            let value = HeaderValue::from_static(value);
            (header::CONTENT_ENCODING, value)
        });
        values.collect()
    }

    #[tokio::test]
    async fn gzip_body_is_inflated() {
        let plain: Vec<u8> = (0_u32..40_000).flat_map(u32::to_le_bytes).collect();
        for name in ["gzip", "x-gzip", "GZip", " gzip ,identity"] {
            let headers = encoded_in(&[name]);
            let body = gzip(&plain);
            let whole = read(&headers, body.into(), plain.len()).await.unwrap();
            assert!(whole == plain, "{name}");
        }
        for names in [
            &[][..],
            &["identity"],
            &[""],
            &["utf-8"],
            &["UTF-8, identity", "json"],
        ] {
            let headers = encoded_in(names);
            let whole = read(&headers, Body::from("as it is"), 8).await.unwrap();
            assert_eq!(whole, "as it is", "{names:?}");
        }
        // The header comes in more than one part.
        let header = GzBuilder::new().extra(vec![1; 3_000]);
        let header = header
            .filename(vec![b'x'; 5_000])
            .comment(vec![b'y'; 5_000]);
        let mut encoder = header.write(Vec::new(), Compression::fast());
        encoder.write_all(&plain).unwrap();
        let body = encoder.finish().unwrap();
        let whole = read(&encoded_in(&["gzip"]), body.into(), plain.len()).await;
        assert!(whole.unwrap() == plain);
        let none = read(&encoded_in(&["gzip"]), Body::empty(), 8).await;
        assert_eq!(none.unwrap(), "");
    }

    #[tokio::test]
    async fn unsupported_encoding_names_the_supported_one() {
        for names in [
            &["br"][..],
            &["deflate"],
            &["gzip, gzip"],
            &["gzip", "zstd"],
            &["utf-8, Deflate"],
        ] {
            let refused = read(&encoded_in(names), Body::from("{}"), 8).await;
            assert_eq!(refused, Err(BodyError::Encoding), "{names:?}");
        }
        let response = BodyError::Encoding.response();
        assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(response.headers()[header::ACCEPT_ENCODING], "gzip");
        let text = "Expecting 'Content-Encoding' of gzip, or none";
        assert_eq!(BodyError::Encoding.to_string(), text);
    }

    #[tokio::test]
    async fn truncated_gzip_is_refused() {
        let whole = gzip(b"{}");
        let mut wrong_sum = whole.clone();
        wrong_sum[whole.len() - 8] ^= 1;
        let cut = whole[..whole.len() - 1].to_vec();
        let more_behind = [whole.clone(), gzip(b"")].concat();
        for body in [b"{}".to_vec(), cut, wrong_sum, more_behind] {
            let refused = read(&encoded_in(&["gzip"]), body.into(), 1_000).await;
            assert_eq!(refused, Err(BodyError::Undecodable));
        }
        assert_eq!(BodyError::Undecodable.status(), StatusCode::BAD_REQUEST);
    }

    /// Regression: 32 MiB of such blocks occupied a thread of the runtime for 6 seconds.
    #[tokio::test]
    async fn empty_inflation_yields_to_other_tasks() {
        const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];
        let mut body = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
        body.extend(EMPTY_BLOCK.repeat(200_000));
        body.extend([1, 0, 0, 0xff, 0xff]);
        body.extend([0; 8]);
        let inflating = inflate(&body, 0, |_| Ok(()));
        tokio::pin!(inflating);
        let mut turns = 0;
        let whole = std::future::poll_fn(|context| {
            turns += 1;
            inflating.as_mut().poll(context)
        });
        assert_eq!(whole.await, Ok(Bytes::new()));
        assert!(turns > 4, "{turns}");
    }

    #[tokio::test]
    async fn endless_inflation_stops_at_limit() {
        const MIB: usize = 1 << 20;
        let bomb = gzip(&vec![0; 64 * MIB]);
        assert!(bomb.len() < 128 * 1024);
        let headers = encoded_in(&["gzip"]);
        let budget = Budget::new(16 * MIB);
        let mut most = 0;
        let refused = inflate(&bomb, MIB, |bytes| {
            most += bytes;
            Ok(())
        });
        let too_large = BodyError::InflatesTooLarge { max: MIB };
        assert_eq!(refused.await, Err(too_large));
        assert!(most <= MIB, "{most}");
        assert_eq!(too_large.status(), StatusCode::PAYLOAD_TOO_LARGE);
        // A smaller budget is never exceeded.
        let others = budget.share(16 * MIB, 0).charge(15 * MIB).unwrap();
        let own = budget.share(16 * MIB, 0);
        let refused = read_charged(&headers, bomb.clone().into(), 32 * MIB, &own).await;
        assert!(matches!(refused, Err(BodyError::Exhausted(_))));
        let tiny = budget.share(MIB / 2, 0);
        let refused = read_charged(&headers, bomb.into(), 32 * MIB, &tiny).await;
        assert!(matches!(refused, Err(BodyError::NeverFits(_))));
        drop(others);
        assert_eq!(budget.used(), 0);
        // A complete body is charged for its present size.
        let body = gzip(&vec![0; 3 * MIB]);
        let read = read_charged(&headers, body.into(), 3 * MIB, &own).await;
        let (whole, charge) = read.unwrap();
        assert_eq!((whole.len(), charge.bytes()), (3 * MIB, 3 * MIB));
    }
}
