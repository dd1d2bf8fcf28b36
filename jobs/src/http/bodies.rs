//! The bodies of requests, read within the share of their caller.
//!
//! Entered through [`Bodies::read`], after the caller is authenticated and has the required permission. Invariant: the
//! bodies of all callers together are bounded in bytes, from reading to execution; a caller leaves the others as much as it
//! has, and a stalled body makes room for others.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use http::HeaderMap;
use meseta_daemon::authentication::Caller;
use meseta_daemon::body::{self, BodyError};
use meseta_proto::budget::{Budget, Charge, Shares};

use super::Reply;

/// Bytes of the bodies of all callers. A job file has at most one megabyte.
const BODIES_BYTES_MAX: usize = 32 << 20;
/// Bytes that each caller may have in any case: small changes always go through.
const CALLER_FLOOR_BYTES: usize = 64 << 10;

/// The shares of all callers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Bodies(Arc<Shares<String>>);

impl Bodies {
    pub(crate) fn new() -> Self {
        let all = Budget::new(BODIES_BYTES_MAX);
        Self(Arc::new(Shares::new(all, CALLER_FLOOR_BYTES)))
    }

    /// Reads a body of `max` bytes at most. Its bytes count until the charge is dropped.
    pub(super) async fn read(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        body: Body,
        max: usize,
    ) -> Result<(Bytes, Charge), Reply> {
        let share = self.0.for_peer(caller.group());
        let read = body::read_charged(headers, body, max, &share).await;
        read.map_err(|error| match error {
            BodyError::Exhausted(_) => Reply::later(&error.to_string()),
            _ => Reply::error(error.status(), &error.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::super::file_reader::tests::caller;
    use super::*;
    use crate::file::FILE_BYTES_MAX;

    #[tokio::test]
    async fn one_caller_leaves_memory_to_others() {
        let bodies = Bodies::new();
        let read = async |principal: &str| {
            let body = Body::from(vec![b'x'; FILE_BYTES_MAX]);
            let headers = HeaderMap::new();
            let caller = caller(principal);
            let read = bodies.read(&caller, &headers, body, FILE_BYTES_MAX);
            read.await.map(|(_, charge)| charge)
        };
        let mut held = Vec::new();
        let refused = loop {
            match read("ann").await {
                Ok(charge) => held.push(charge),
                Err(reply) => break reply.response(),
            }
        };
        assert!(
            held.len() <= BODIES_BYTES_MAX / FILE_BYTES_MAX / 2 + 1,
            "{}",
            held.len()
        );
        assert!(!refused.status().is_success(), "{}", refused.status());
        assert!(read("bob").await.is_ok());
        held.clear();
        assert!(read("ann").await.is_ok());
    }
}
