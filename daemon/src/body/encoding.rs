//! What a request's body is encoded in: gzip, which is inflated here, or nothing.
//!
//! Entered through [`Encoding::of`] and [`inflate`]. Invariant: of what a body inflates to no more is in memory than its
//! limit allows and was charged before, whatever it says of itself.

use std::io::Read as _;

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::{HeaderMap, header};

use meseta_proto::budget::Exhausted;

use super::BodyError;

/// How a body was encoded by who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    /// As the header says: one that names none says that there is none.
    ///
    /// # Errors
    /// When it is another one, or more than one.
    pub fn of(headers: &HeaderMap) -> Result<Self, BodyError> {
        let mut encoding = Self::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            let value = value.to_str().map_err(|_| BodyError::Encoding)?;
            for name in value.split(',').map(str::trim) {
                let is = |other: &str| name.eq_ignore_ascii_case(other);
                if name.is_empty() || is("identity") {
                    continue;
                }
                if encoding == Self::Gzip || !(is("gzip") || is("x-gzip")) {
                    return Err(BodyError::Encoding);
                }
                encoding = Self::Gzip;
            }
        }
        Ok(encoding)
    }
}

/// What is inflated, and charged, at a time.
const PART_BYTES: usize = 16 * 1024;

/// What a whole body of gzip was before, of which each part is charged as soon as it is there. It is of one member, as
/// libprocess takes it: many empty ones would be work without end.
///
/// # Errors
/// When it is more than `max` bytes or more than there is room for, and when it is not gzip from its beginning to its end.
pub(super) async fn inflate(
    body: &[u8],
    max: usize,
    mut charge: impl FnMut(usize) -> Result<(), Exhausted>,
) -> Result<Bytes, BodyError> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    let mut decoder = GzDecoder::new(body);
    let mut whole = Vec::new();
    let mut part = vec![0; PART_BYTES];
    loop {
        let count = decoder
            .read(&mut part)
            .map_err(|_| BodyError::Undecodable)?;
        let part = part.get(..count).unwrap_or_default();
        if part.is_empty() {
            break;
        }
        if whole.len().saturating_add(count) > max {
            return Err(BodyError::InflatesTooLarge { max });
        }
        charge(count).map_err(BodyError::Exhausted)?;
        whole.extend_from_slice(part);
        // Between parts others have their turn.
        tokio::task::consume_budget().await;
    }
    let rest = decoder.into_inner();
    if !rest.is_empty() {
        return Err(BodyError::Undecodable);
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use axum::body::Body;
    use flate2::Compression;
    use flate2::write::GzEncoder;
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
    async fn a_body_of_gzip_is_read_as_what_it_was() {
        let plain: Vec<u8> = (0_u32..40_000).flat_map(u32::to_le_bytes).collect();
        for name in ["gzip", "x-gzip", "GZip", " gzip ,identity"] {
            let headers = encoded_in(&[name]);
            let body = gzip(&plain);
            let whole = read(&headers, body.into(), plain.len()).await.unwrap();
            assert!(whole == plain, "{name}");
        }
        for names in [&[][..], &["identity"], &[""]] {
            let headers = encoded_in(names);
            let whole = read(&headers, Body::from("as it is"), 8).await.unwrap();
            assert_eq!(whole, "as it is", "{names:?}");
        }
        let none = read(&encoded_in(&["gzip"]), Body::empty(), 8).await;
        assert_eq!(none.unwrap(), "");
    }

    #[tokio::test]
    async fn another_encoding_is_told_which_one_is_taken() {
        for names in [
            &["br"][..],
            &["deflate"],
            &["gzip, gzip"],
            &["gzip", "zstd"],
            &["gzi"],
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
    async fn what_is_not_gzip_to_its_end_is_refused() {
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

    #[tokio::test]
    async fn a_body_that_inflates_without_end_costs_no_more_than_its_limit() {
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
        // Where there is less room than that, no more than there is.
        let others = budget.share(16 * MIB, 0).charge(15 * MIB).unwrap();
        let own = budget.share(16 * MIB, 0);
        let refused = read_charged(&headers, bomb.clone().into(), 32 * MIB, &own).await;
        assert!(matches!(refused, Err(BodyError::Exhausted(_))));
        let tiny = budget.share(MIB / 2, 0);
        let refused = read_charged(&headers, bomb.into(), 32 * MIB, &tiny).await;
        assert!(matches!(refused, Err(BodyError::NeverFits(_))));
        drop(others);
        assert_eq!(budget.used(), 0);
        // What is read whole is charged for what it is now.
        let body = gzip(&vec![0; 3 * MIB]);
        let read = read_charged(&headers, body.into(), 3 * MIB, &own).await;
        let (whole, charge) = read.unwrap();
        assert_eq!((whole.len(), charge.bytes()), (3 * MIB, 3 * MIB));
    }
}
