//! Whether a plug-in answers its calls. Pure.
//!
//! Invariant: a plug-in without a call owes no answer, however old its last answer is.

use std::time::{Duration, Instant};

/// The time for which the last answer stays valid while a call is unanswered.
pub(super) const ANSWER_STANDS: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Health {
    /// The oldest call since its last answer.
    unanswered_since: Option<Instant>,
    is_failing: bool,
    is_expired: bool,
}

impl Health {
    pub(super) fn asked(&mut self, now: Instant) {
        self.unanswered_since.get_or_insert(now);
    }

    /// Notes an answer. Returns whether the plug-in had failed before.
    pub(super) fn answered(&mut self) -> bool {
        std::mem::take(self).is_failing
    }

    /// Notes a failure. Returns whether it is the first since the last answer.
    pub(super) fn failed(&mut self) -> bool {
        !std::mem::replace(&mut self.is_failing, true)
    }

    /// Whether the last answer has just expired; true only once, until the next answer.
    pub(super) fn expires(&mut self, now: Instant) -> bool {
        let is_silent = self
            .unanswered_since
            .is_some_and(|since| now.saturating_duration_since(since) > ANSWER_STANDS);
        is_silent && !std::mem::replace(&mut self.is_expired, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_stays_valid_ten_seconds() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut health = Health::default();
        health.asked(at(0));
        assert!(health.failed());
        for second in 1..=10 {
            health.asked(at(second));
            assert!(!health.failed(), "complained of already");
            assert!(!health.expires(at(second)));
        }
        assert!(health.expires(at(11)));
        assert!(!health.expires(at(12)), "told already");
        assert!(health.answered(), "it had failed");
        health.asked(at(13));
        assert!(!health.expires(at(23)));
        assert!(health.expires(at(24)), "it fell silent again");
    }

    /// Regression: with corrections every 30 s each answer was valid only for the first 10 seconds.
    #[test]
    fn rarely_asked_plugin_is_not_silent() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut health = Health::default();
        for asked in [0, 30, 60] {
            health.asked(at(asked));
            assert!(!health.expires(at(asked)));
            assert!(!health.answered());
            assert!(!health.expires(at(asked + 29)), "{asked}");
        }
    }
}
