//! What the core answers to a call.

use meseta_proto::Invalid;

use super::ids::OperationUuid;

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Taken; the effects come later.
    Accepted,
    /// An operation was taken: it has this name, and ends later.
    Applied(OperationUuid),
    Done,
    /// Done, with what the operator should know of it.
    Warned(String),
    /// Understood and refused; nothing has changed.
    BadRequest(String),
    /// The framework may not make this call now.
    Forbidden(String),
    /// What it is about is not known here.
    NotFound(String),
    /// Understood, and at odds with how things are now.
    Conflict(String),
    /// Not now; the same may be asked again.
    Unavailable(String),
    /// A call that this master does not serve.
    NotImplemented(String),
}

impl From<Invalid> for Answer {
    fn from(invalid: Invalid) -> Self {
        Self::BadRequest(invalid.into())
    }
}

impl Answer {
    /// What came of it, for the audit log.
    #[must_use]
    pub fn outcome(&self) -> &str {
        match self {
            Self::Accepted | Self::Applied(_) => "accepted",
            Self::Done => "done",
            Self::Warned(reason)
            | Self::BadRequest(reason)
            | Self::Forbidden(reason)
            | Self::NotFound(reason)
            | Self::Conflict(reason)
            | Self::Unavailable(reason)
            | Self::NotImplemented(reason) => reason,
        }
    }
}
