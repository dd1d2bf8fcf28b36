//! Failures with their causes, as text for the client that requested the operation.

use std::fmt;

use meseta_daemon::error_chain::chain;

/// A failure and its causes; frameworks see it in the status of a task. The type is not an error itself, so that `?`
/// converts every error to it.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(chain(&error))
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
