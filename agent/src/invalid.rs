//! Why something that was given or asked for breaks a rule: a flag, a task, a call.
//!
//! Operators are shown the text at the start, frameworks in the status of a task, executors in the answer to a call.
//! Invariant: nothing branches on which rule it was.

use std::fmt::Display;

/// What is wrong with a value, in words for whoever gave it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(String);

impl Invalid {
    pub(crate) fn of(error: impl Display) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Invalid {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Invalid {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<Invalid> for String {
    fn from(invalid: Invalid) -> Self {
        invalid.0
    }
}
