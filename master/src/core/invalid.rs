//! Why something that was asked for breaks a rule.
//!
//! Whoever asked is shown the text: an operator in the answer, a scheduler in an ERROR event or in the status of a task or
//! an operation, an agent as its connection ends. Invariant: nothing branches on which rule it was.

use std::fmt::Display;

use super::answer::Answer;

/// What is wrong with a request, a task, a resource, in words for whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    pub(in crate::core) fn of(error: impl Display) -> Self {
        Self(error.to_string())
    }

    /// Says of an error where it was found.
    pub(in crate::core) fn within<E: Display>(place: impl Display) -> impl Fn(E) -> Self {
        move |error| Self(format!("{place}: {error}"))
    }

    pub(in crate::core) fn as_str(&self) -> &str {
        &self.0
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

impl From<Invalid> for Answer {
    fn from(invalid: Invalid) -> Self {
        Self::BadRequest(invalid.0)
    }
}

/// An [`Invalid`] with a text that is formatted.
macro_rules! invalid {
    ($($text:tt)+) => {
        $crate::core::invalid::Invalid::of(format_args!($($text)+))
    };
}

pub(in crate::core) use invalid;
