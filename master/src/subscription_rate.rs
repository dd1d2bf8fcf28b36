//! A rate limit of subscriptions by principal, user or network: each subscription writes to the registry.
//!
//! Entered through [`SubscriptionRate::take`]. A pure table, with time passed in, behind a lock. Invariant: no group
//! keeps the registry busy for all others; a waiting group has its full burst again after some minutes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use meseta_access::rate_limits::{Bucket, Limit};
use tokio::time::Instant;

/// The burst covers the return of all frameworks of one principal after a failover.
const LIMIT: Limit = Limit {
    calls_per_second: 50.0,
    capacity: 10_000.0,
};
/// The number of stored groups; above it, those with the largest allowance are forgotten.
const GROUPS_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct SubscriptionRate {
    table: Mutex<Table>,
    begin: Instant,
}

impl Default for SubscriptionRate {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            begin: Instant::now(),
        }
    }
}

impl SubscriptionRate {
    /// Takes one subscription of a group, or returns the time until the next.
    pub(crate) fn take(&self, group: String) -> Result<(), Duration> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.take(group, self.begin.elapsed())
    }
}

/// The remaining allowance of each group.
#[derive(Debug, Default)]
struct Table(HashMap<String, Bucket>);

impl Table {
    fn take(&mut self, group: String, now: Duration) -> Result<(), Duration> {
        if self.0.len() >= GROUPS_MAX && !self.0.contains_key(&group) {
            self.forget(now);
        }
        let bucket = self.0.entry(group);
        let bucket = bucket.or_insert_with(|| Bucket::full(LIMIT, now));
        // Sums of fractions are slightly less than the whole.
        let wait = |wait| wait + Duration::from_millis(1);
        bucket.take(now).map_err(wait)
    }

    /// Forgets the half of the groups with the largest allowance.
    fn forget(&mut self, now: Duration) {
        let mut all: Vec<(f64, String)> = self
            .0
            .iter()
            .map(|(group, bucket)| (bucket.available(now), group.clone()))
            .collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0));
        all.truncate(GROUPS_MAX / 2);
        for (_, group) in all {
            self.0.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_subscriber_group_is_limited_alone() {
        let mut table = Table::default();
        let mut taken = 0;
        for call in 0..20_000_u64 {
            let now = Duration::from_micros(call * 500);
            taken += u32::from(table.take("greedy".to_owned(), now).is_ok());
            if call % 1_000 == 0 {
                assert_eq!(table.take("other".to_owned(), now), Ok(()));
            }
        }
        assert!((10_000..=10_000 + 500).contains(&taken), "{taken}");
        let end = Duration::from_secs(10);
        let wait = table.take("greedy".to_owned(), end).unwrap_err();
        assert!(wait <= Duration::from_millis(22), "{wait:?}");
        assert_eq!(table.take("greedy".to_owned(), end + wait), Ok(()));
    }

    #[test]
    fn forgets_full_groups_before_exhausted_group() {
        let mut table = Table::default();
        let now = Duration::from_secs(1);
        while table.take("greedy".to_owned(), now).is_ok() {}
        for number in 0..3 * GROUPS_MAX {
            assert_eq!(table.take(format!("g{number}"), now), Ok(()));
            assert!(table.0.len() <= GROUPS_MAX);
        }
        assert!(table.take("greedy".to_owned(), now).is_err());
    }
}
