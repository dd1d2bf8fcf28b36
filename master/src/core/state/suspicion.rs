//! Whether so many agents are missing that it may well be this master that is cut off.

use std::time::Duration;

use meseta_resources::time::Moment;

/// Fewer may be one rack.
const MISSING_MIN: usize = 10;

/// Held while most agents are missing, and for as long again as an agent has to answer: when a network mends, agents are
/// heard one after the other, and the last of them has been silent no longer than the first.
#[derive(Debug, Default)]
pub(in crate::core) struct Suspicion {
    most_are_missing: bool,
    trusts_itself_at: Option<Moment>,
}

impl Suspicion {
    /// Takes in how many of all agents are missing, and how many in a hundred may be; an agent has the time of
    /// `patience` to answer.
    pub(in crate::core) fn update(
        &mut self,
        missing: usize,
        all: usize,
        percent: u32,
        now: Moment,
        patience: Duration,
    ) {
        let limit = all.saturating_mul(usize::try_from(percent).unwrap_or(100));
        let most_are_missing = missing >= MISSING_MIN && missing.saturating_mul(100) > limit;
        if most_are_missing && !self.most_are_missing {
            tracing::error!(
                silent = missing,
                all,
                "most agents are silent, and none is marked unreachable, for it may be this master that is cut off: \
                 mend the network, mark agents gone that are, or raise --recovery_agent_removal_limit"
            );
        }
        if self.most_are_missing && !most_are_missing {
            self.trusts_itself_at = Some(now + patience);
        }
        self.most_are_missing = most_are_missing;
    }

    /// Whether no agent can be said to be unreachable.
    pub(in crate::core) fn is_held(&self, now: Moment) -> bool {
        self.most_are_missing || self.trusts_itself_at.is_some_and(|at| now < at)
    }
}
