//! Detection of a master that is itself cut off, by the number of missing agents.

use std::time::Duration;

use meseta_resources::time::Moment;

/// Below this number the missing agents may share one rack, so the master trusts itself.
const MISSING_MIN: usize = 10;

/// The number of missing agents among all agents.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::core) struct Missing {
    pub missing: usize,
    pub all: usize,
    /// The tolerated percentage of missing agents.
    pub percent_max: u32,
}

impl Missing {
    fn are_most(self) -> bool {
        let limit = self
            .all
            .saturating_mul(usize::try_from(self.percent_max).unwrap_or(100));
        self.missing >= MISSING_MIN && self.missing.saturating_mul(100) > limit
    }
}

/// The suspicion that the master is cut off. It holds while most agents are missing, and afterwards for the time that
/// an agent takes to be heard: after a network failure, agents are heard one after the other, and the last of them
/// has been silent no longer than the first.
#[derive(Debug, Default)]
pub(in crate::core) struct Suspicion {
    last: Missing,
    is_logged: bool,
    /// The time before which no agent becomes unreachable, by the clock that stops while the master does not run.
    trusts_itself_at: Option<Moment>,
}

impl Suspicion {
    /// Records the number of missing agents; an agent takes at most `patience` to be heard.
    pub(in crate::core) fn update(&mut self, missing: Missing, now: Moment, patience: Duration) {
        let were_most = std::mem::replace(&mut self.last, missing).are_most();
        if were_most && !missing.are_most() {
            self.trusts_itself_at = Some(now + patience);
            if std::mem::take(&mut self.is_logged) {
                tracing::info!(
                    silent = missing.missing,
                    all = missing.all,
                    seconds = patience.as_secs(),
                    "fewer agents are silent; the others have this time to be heard before they are marked unreachable"
                );
            }
        }
    }

    /// Whether the suspicion holds, so that no agent becomes unreachable. Logs this at the first agent concerned.
    pub(in crate::core) fn holds_back(&mut self, now: Moment) -> bool {
        let are_most = self.last.are_most();
        if are_most && !std::mem::replace(&mut self.is_logged, true) {
            tracing::error!(
                silent = self.last.missing,
                all = self.last.all,
                "most agents are silent, and none is marked unreachable, for it may be this master that is cut off: \
                 mend the network, mark agents gone that are, or raise --recovery_agent_removal_limit"
            );
        }
        are_most || self.trusts_itself_at.is_some_and(|at| now < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn of_twenty(missing: usize) -> Missing {
        Missing {
            missing,
            all: 20,
            percent_max: 50,
        }
    }

    /// Whether the suspicion holds after each of these counts, a minute apart.
    fn held(counts: &[usize]) -> Vec<bool> {
        let mut suspicion = Suspicion::default();
        let mut now = Moment::from_nanos(0);
        let look = |missing: &usize| {
            now += PATIENCE;
            suspicion.update(of_twenty(*missing), now, PATIENCE);
            suspicion.holds_back(now)
        };
        counts.iter().map(look).collect()
    }

    #[test]
    fn holds_removals_until_second_good_reading() {
        assert_eq!(held(&[0, 10, 10]), [false, false, false]);
        assert_eq!(held(&[11, 20, 10, 10, 9]), [true, true, true, false, false]);
        assert_eq!(
            held(&[11, 0, 11, 11, 0, 0]),
            [true, true, true, true, true, false]
        );
    }

    #[test]
    fn few_agents_are_no_reason() {
        let missing = Missing {
            missing: 9,
            all: 9,
            percent_max: 50,
        };
        assert!(!missing.are_most());
        let all_may_be = Missing {
            missing: 20,
            all: 20,
            percent_max: 100,
        };
        assert!(!all_may_be.are_most());
    }
}
