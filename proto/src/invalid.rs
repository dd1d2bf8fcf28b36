//! The error of a value that breaks a rule: a flag, a call, a task, a resource.
//!
//! The author of the value sees the text: an operator at the start or in an answer, a framework in an ERROR event or in the
//! status of a task or an operation, an executor in an answer, an agent as its connection ends. Invariant: no code branches
//! on the broken rule.

use std::fmt::Display;

/// The error in a value, in words for the author of the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    #[must_use]
    pub fn from_error(error: impl Display) -> Self {
        Self(error.to_string())
    }

    /// Prefixes an error with its place.
    pub fn within<E: Display>(place: impl Display) -> impl Fn(E) -> Self {
        move |error| Self(format!("{place}: {error}"))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
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

/// Makes an [`Invalid`] with a formatted text.
#[macro_export]
macro_rules! invalid {
    ($($text:tt)+) => {
        $crate::Invalid::from_error(format_args!($($text)+))
    };
}
