//! The rate limits of frameworks' calls: Mesos's `--rate_limits`, and their token buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// The limit on calls of a framework's principal: calls per second, and the burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub calls_per_second: f64,
    /// The number of calls that may be saved up.
    pub capacity: f64,
}

/// The contents of a file of rate limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimits {
    /// The limits by principal; `None` means unlimited.
    principals: BTreeMap<String, Option<Limit>>,
    /// The limit that all other principals share.
    aggregate: Option<Limit>,
}

/// Errors in rate limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateLimitError {
    #[error(
        "the limits are not JSON of the form {{\"limits\": [{{\"principal\": ..., \"qps\": \
         ...}}]}}: {0}"
    )]
    Syntax(String),
    #[error("the principal '{0}' has two limits")]
    Twice(String),
    #[error("the qps of {0} must be a number above 0")]
    Qps(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    limits: Vec<Entry>,
    aggregate_default_qps: Option<f64>,
    aggregate_default_capacity: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    principal: String,
    qps: Option<f64>,
    capacity: Option<u64>,
}

impl RateLimits {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, RateLimitError> {
        let file: File = serde_json::from_str(text)
            .map_err(|error| RateLimitError::Syntax(error.to_string()))?;
        let mut principals = BTreeMap::new();
        for entry in file.limits {
            let limit = limit(&entry.principal, entry.qps, entry.capacity)?;
            if principals.insert(entry.principal.clone(), limit).is_some() {
                return Err(RateLimitError::Twice(entry.principal));
            }
        }
        let aggregate = limit(
            "aggregate_default_qps",
            file.aggregate_default_qps,
            file.aggregate_default_capacity,
        )?;
        Ok(Self {
            principals,
            aggregate,
        })
    }
}

/// Builds a limit; without a capacity, a second's worth may be saved up.
fn limit(
    of: &str,
    qps: Option<f64>,
    capacity: Option<u64>,
) -> Result<Option<Limit>, RateLimitError> {
    let Some(qps) = qps else { return Ok(None) };
    if !qps.is_finite() || qps <= 0.0 {
        return Err(RateLimitError::Qps(of.to_owned()));
    }
    let capacity = capacity.map_or(qps.ceil(), |capacity| {
        f64::from(u32::try_from(capacity).unwrap_or(u32::MAX))
    });
    Ok(Some(Limit {
        calls_per_second: qps,
        capacity: capacity.max(1.0),
    }))
}

/// A bucket that fills at a limit's pace.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    limit: Limit,
    tokens: f64,
    /// The time of the last fill on the caller's clock.
    filled: Duration,
}

impl Bucket {
    /// A full bucket with all its tokens.
    #[must_use]
    pub fn full(limit: Limit, now: Duration) -> Self {
        Self {
            limit,
            tokens: limit.capacity,
            filled: now,
        }
    }

    /// The number of calls that may come at once by now, including fractions.
    #[must_use]
    pub fn available(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        (self.tokens + passed * self.limit.calls_per_second).min(self.limit.capacity)
    }

    /// Takes one call, or returns the time that it has to wait.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.tokens = self.available(now);
        self.filled = self.filled.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.tokens) / self.limit.calls_per_second;
        Err(Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX))
    }
}

/// The buckets of all principals: one for each entry of the file, and the shared one.
#[derive(Debug, Default)]
pub struct Limiter {
    principals: BTreeMap<String, Option<Bucket>>,
    aggregate: Option<Bucket>,
}

impl Limiter {
    #[must_use]
    pub fn new(limits: &RateLimits) -> Self {
        let full = |limit: &Limit| Bucket::full(*limit, Duration::ZERO);
        Self {
            principals: limits
                .principals
                .iter()
                .map(|(principal, limit)| (principal.clone(), limit.as_ref().map(full)))
                .collect(),
            aggregate: limits.aggregate.as_ref().map(full),
        }
    }

    /// Takes one call of this principal, or returns the time that it has to wait.
    pub fn take(&mut self, principal: Option<&str>, now: Duration) -> Result<(), Duration> {
        let own = principal.and_then(|principal| self.principals.get_mut(principal));
        match own {
            Some(Some(bucket)) => bucket.take(now),
            Some(None) => Ok(()),
            None => match &mut self.aggregate {
                Some(bucket) => bucket.take(now),
                None => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesos_files_parse_nonsense_fails() {
        let limits = r#"{"limits":[{"principal":"foo","qps":55.5,"capacity":100000},
            {"principal":"bar"}],"aggregate_default_qps":33.3,"aggregate_default_capacity":1000000}"#;
        assert!(RateLimits::parse(limits).is_ok());
        for (text, part) in [
            ("[", "not JSON"),
            (r#"{"limits":[{"principal":"a","qps":0}]}"#, "above 0"),
            (r#"{"limits":[{"principal":"a","qps":-1}]}"#, "above 0"),
            (
                r#"{"limits":[{"principal":"a"},{"principal":"a"}]}"#,
                "two limits",
            ),
            (r#"{"limit":[]}"#, "unknown field"),
        ] {
            let error = RateLimits::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn buckets_fill_at_their_pace() {
        let text = r#"{"limits":[{"principal":"slow","qps":2,"capacity":2},{"principal":"free"}],
            "aggregate_default_qps":1}"#;
        let mut limiter = Limiter::new(&RateLimits::parse(text).unwrap());
        let at = Duration::from_millis;
        assert_eq!(limiter.take(Some("slow"), at(0)), Ok(()));
        assert_eq!(limiter.take(Some("slow"), at(0)), Ok(()));
        assert_eq!(limiter.take(Some("slow"), at(0)), Err(at(500)));
        assert_eq!(limiter.take(Some("slow"), at(500)), Ok(()));
        assert_eq!(
            limiter.take(Some("slow"), at(400)),
            Err(at(500)),
            "clocks stand"
        );
        for _ in 0..1_000 {
            assert_eq!(limiter.take(Some("free"), at(0)), Ok(()));
        }
        assert_eq!(limiter.take(Some("other"), at(0)), Ok(()));
        assert!(limiter.take(None, at(0)).is_err(), "the others share one");
        assert_eq!(limiter.take(Some("other"), at(1_000)), Ok(()));
    }
}
