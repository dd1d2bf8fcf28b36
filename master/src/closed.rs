//! The error of calls to a master that is shutting down.

/// The master is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the master is shutting down")]
pub(crate) struct Closed;

impl From<Closed> for tonic::Status {
    fn from(closed: Closed) -> Self {
        Self::unavailable(closed.to_string())
    }
}
