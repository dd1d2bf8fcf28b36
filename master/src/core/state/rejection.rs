//! The reason for refusing an agent, and whether the agent may retry.

/// The refusal sent to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) struct Rejection {
    pub(in crate::core) reason: String,
    /// Whether a retry is useless, because the master would refuse it for the same reason.
    pub(in crate::core) is_permanent: bool,
}

impl Rejection {
    /// A refusal without retry.
    pub(in crate::core) fn permanent(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            is_permanent: true,
        }
    }

    /// A refusal of an agent that the master may accept later.
    pub(in crate::core) fn for_now(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            is_permanent: false,
        }
    }
}
