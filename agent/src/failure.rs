//! Why something could not be done, with its causes, in words for whoever asked for it.

use std::fmt;

use meseta_daemon::error_chain::chain;

/// What failed, and each cause of it; frameworks are shown it in the status of a task. It is no error itself, so that
/// every error becomes one by `?`.
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
