//! The decision to repeat a request, and when.
//!
//! [`Retry::after_failure`] returns the wait before the next attempt. Pure: time and randomness come in. Invariant: attempts
//! without progress and waits are both limited, so a registry that always fails ends a pull.

use std::time::{Duration, SystemTime};

/// Attempts of a request, or of a download without progress in between.
const ATTEMPTS_MAX: u32 = 6;
/// The wait before the second attempt. It doubles up to [`WAIT_MAX`].
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest `Retry-After` that is worth waiting for; a task whose image comes later should fail with the reason.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// All waits together that `Retry-After` may cause between two advances: registries count attempts.
const RETRY_AFTER_TOTAL_MAX: Duration = Duration::from_secs(1800);

/// The failed attempts of one request since its last progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retry {
    attempts: u32,
    asked: Duration,
}

impl Retry {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A request to a source that has an alternative: a second attempt there costs more than the alternative.
    pub(crate) fn with_one_attempt() -> Self {
        Self {
            attempts: ATTEMPTS_MAX - 1,
            asked: RETRY_AFTER_TOTAL_MAX,
        }
    }

    /// Returns the wait before the next attempt, or `None` to give up. `chance` is between 0 and 1.
    pub(crate) fn after_failure(
        &mut self,
        retry_after: Option<Duration>,
        chance: f64,
    ) -> Option<Duration> {
        self.attempts += 1;
        if let Some(asked) = retry_after {
            // The registry's own number counts no attempts: it tells when the next one can succeed.
            let total = self.asked.saturating_add(asked);
            if asked > RETRY_AFTER_MAX || total > RETRY_AFTER_TOTAL_MAX {
                return None;
            }
            self.asked = total.max(self.asked + WAIT_FIRST);
            // Agents that were refused together do not return together.
            return Some(asked + Duration::from_secs(1).mul_f64(chance));
        }
        if self.attempts >= ATTEMPTS_MAX {
            return None;
        }
        let doubled = WAIT_FIRST.saturating_mul(1 << (self.attempts - 1).min(16));
        let wait = doubled.min(WAIT_MAX);
        Some(wait.mul_f64(0.5 + chance / 2.0))
    }
}

/// Reads `Retry-After`: seconds or a date.
pub(crate) fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_a_limit() {
        let mut retry = Retry::new();
        let waits = std::iter::from_fn(|| retry.after_failure(None, 1.0));
        let seconds = waits.map(|wait| wait.as_secs()).collect::<Vec<_>>();
        assert_eq!(seconds, [1, 2, 4, 8, 16]);
        let mut early = Retry::new();
        assert_eq!(early.after_failure(None, 0.0), Some(SECOND / 2));
    }

    #[test]
    fn retry_after_is_honoured_within_limits() {
        let mut retry = Retry::new();
        assert_eq!(
            retry.after_failure(Some(SECOND * 60), 0.0),
            Some(SECOND * 60)
        );
        assert_eq!(retry.after_failure(Some(SECOND * 601), 0.0), None);
        let mut retry = Retry::new();
        let endless = std::iter::from_fn(|| retry.after_failure(Some(SECOND * 600), 0.0));
        assert_eq!(endless.count(), 3);
        let mut retry = Retry::new();
        let without_wait = std::iter::from_fn(|| retry.after_failure(Some(Duration::ZERO), 0.0));
        assert!(without_wait.take(5000).count() <= 1801);
    }

    #[test]
    fn alternative_source_gets_one_attempt() {
        assert_eq!(Retry::with_one_attempt().after_failure(None, 0.0), None);
        assert_eq!(
            Retry::with_one_attempt().after_failure(Some(SECOND), 0.0),
            None
        );
    }

    #[test]
    fn retry_after_is_seconds_or_date() {
        let now = SystemTime::UNIX_EPOCH + SECOND * 1_800_000_000;
        assert_eq!(parse_retry_after(" 7 ", now), Some(SECOND * 7));
        let date = httpdate::fmt_http_date(now + SECOND * 90);
        assert_eq!(parse_retry_after(&date, now), Some(SECOND * 90));
        let past = httpdate::fmt_http_date(now - SECOND * 90);
        assert_eq!(parse_retry_after(&past, now), Some(Duration::ZERO));
        for odd in ["", "soon", "-1", "1.5"] {
            assert_eq!(parse_retry_after(odd, now), None, "{odd}");
        }
    }
}
