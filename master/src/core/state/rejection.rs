//! Why an agent is sent away, and whether it may come again.

/// What an agent is told that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) struct Rejection {
    pub(in crate::core) reason: String,
    /// The agent need not try again: it would be told the same.
    pub(in crate::core) is_permanent: bool,
}

impl Rejection {
    /// Of an agent that would be told the same again.
    pub(in crate::core) fn permanent(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            is_permanent: true,
        }
    }

    /// Of an agent that may be taken later.
    pub(in crate::core) fn for_now(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            is_permanent: false,
        }
    }
}
