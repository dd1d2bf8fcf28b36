//! The core's answers to calls.

use meseta_proto::Invalid;

use super::ids::OperationUuid;

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accepted; the effects come later.
    Accepted,
    /// An operation was accepted: it has this uuid, and ends later.
    Applied(OperationUuid),
    Done,
    /// The call succeeded, with a warning for the operator.
    Warned(String),
    /// The call is invalid; nothing has changed.
    BadRequest(String),
    /// The framework may not make this call now.
    Forbidden(String),
    /// The object of the call is unknown here.
    NotFound(String),
    /// The call conflicts with the current state.
    Conflict(String),
    /// Temporarily unavailable; the caller may retry.
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
    /// The outcome for the audit log.
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
