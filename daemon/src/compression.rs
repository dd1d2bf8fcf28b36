//! The choice of the answers that are compressed for clients that accept compression.
//!
//! Invariant: only an answer that a handler has marked as [`Compressible`] is compressed. Streams of events never are:
//! their readers take each chunk for an event.

use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;

/// Marks a response as compressible, by its extensions.
#[derive(Clone, Copy, Debug)]
pub struct Compressible;

/// Selects the answers that are marked and large enough.
#[derive(Clone, Copy, Debug)]
pub struct WorthCompressing;

impl Predicate for WorthCompressing {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        /// The limit of Mesos: compressing less is not worth it.
        const BYTES_MIN: u64 = 1_024;
        let length = response.body().size_hint().exact();
        response.extensions().get::<Compressible>().is_some()
            && length.is_none_or(|bytes| bytes >= BYTES_MIN)
    }
}

/// Compresses selected answers at the fastest level.
#[must_use]
pub fn layer() -> CompressionLayer<WorthCompressing> {
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(WorthCompressing)
}
