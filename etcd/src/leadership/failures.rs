//! Decides which failures of a repeated call deserve a line of the log.

use std::time::Duration;

use tokio::time::Instant;

/// The interval at which the same failure is logged again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The failures of a call, one after the other.
#[derive(Debug, Default)]
pub struct Failures {
    /// Text and time of the last logged failure.
    logged: Option<(String, Instant)>,
}

impl Failures {
    /// Whether to log a failure: the first one, one that differs from the previous one, and the same one every ten seconds.
    pub fn is_worth_a_line(&mut self, failure: &impl ToString, now: Instant) -> bool {
        let text = failure.to_string();
        let is_repeated = self.logged.as_ref().is_some_and(|(last, when)| {
            *last == text && now.saturating_duration_since(*when) < AGAIN_AFTER
        });
        if !is_repeated {
            self.logged = Some((text, now));
        }
        !is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failure_is_logged_periodically() {
        let mut failures = Failures::default();
        let begun = Instant::now();
        let mut at = |seconds, failure: &str| {
            let now = begun + Duration::from_secs(seconds);
            failures.is_worth_a_line(&failure, now)
        };
        assert!(at(0, "no answer"));
        assert!(!at(1, "no answer"));
        assert!(!at(9, "no answer"));
        assert!(at(10, "no answer"));
        assert!(at(11, "no space"));
        assert!(!at(12, "no space"));
        assert!(at(13, "no answer"));
    }
}
