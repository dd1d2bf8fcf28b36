//! Rate limits of secrets tried, at a time and per second, by source.
//!
//! A claim needs a grant before the check of its secret ([`AttemptLimiter::take`]), and only right claims return the grant
//! ([`AttemptLimiter::settle`]). Claims are counted by source and by claimed principal, so that guesses at one principal
//! leave room for the other principals of an address. Invariants: wrong secrets never exceed the grants, however many come
//! at once; memory is bounded.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::server::Network;

/// The rate of wrong secrets of one source, and the burst.
const OF_SOURCE: Rate = Rate {
    per_second: 10.0,
    burst: 20.0,
    waiting_max: 64,
};
/// The rate for one principal of a source.
const OF_PRINCIPAL: Rate = Rate {
    per_second: 0.5,
    burst: 3.0,
    waiting_max: 4,
};
/// Sources that are counted; above it, sources without claims in progress are forgotten.
const SOURCES_MAX: usize = 16_384;
/// The time for which the limiter remembers the claims of a source.
const TRIED_KEPT: Duration = Duration::from_secs(600);
/// Remembered claims of a source: more make no difference.
const TRIED_MAX: usize = 64;
/// Principals of one source that are counted: more than can lack attempts at that rate.
const PRINCIPALS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
    /// The number of claims that may wait for the decision on others.
    waiting_max: usize,
}

/// The source of a claim. A client with a verified certificate is not limited by others of its address, and on this machine
/// one user is not limited by another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Certificate(String),
    /// The local user who opened the connection.
    User(u32),
    Network(Network),
}

/// Whether a secret may be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptDecision {
    Granted,
    /// The claim may be checked once a pending claim turns out right: the caller repeats it with
    /// [`AttemptLimiter::take_waiting`] or abandons it with [`AttemptLimiter::stop_waiting`].
    Wait,
    Denied,
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    left: f64,
    since: Instant,
    /// Claims that are granted and not yet decided.
    open: usize,
    waiting: usize,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            left: rate.burst,
            since: now,
            open: 0,
            waiting: 0,
        }
    }

    fn refresh(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * self.rate.per_second).min(self.rate.burst);
        self.since = now;
    }

    fn decide(&mut self, now: Instant) -> AttemptDecision {
        self.refresh(now);
        match (self.left >= 1.0, self.open) {
            (true, _) => AttemptDecision::Granted,
            (false, 0) => AttemptDecision::Denied,
            (false, _) if self.waiting >= self.rate.waiting_max => AttemptDecision::Denied,
            (false, _) => AttemptDecision::Wait,
        }
    }

    fn grant(&mut self) {
        self.left -= 1.0;
        self.open += 1;
    }

    fn settle(&mut self, was_right: bool) {
        self.open = self.open.saturating_sub(1);
        if was_right {
            self.left = (self.left + 1.0).min(self.rate.burst);
        }
    }

    /// Whether the bucket can be forgotten without granting more attempts.
    fn is_full(&mut self, now: Instant) -> bool {
        self.refresh(now);
        self.open == 0 && self.waiting == 0 && self.left >= self.rate.burst
    }
}

#[derive(Debug)]
struct Counted {
    all: Bucket,
    principals: HashMap<u64, Bucket>,
    /// Claims that were not found to be right, granted or not, and the time of the last of them.
    tried: usize,
    last: Option<(u64, Instant)>,
}

/// The recent attempts of all sources.
#[derive(Debug, Default)]
pub(super) struct AttemptLimiter {
    sources: HashMap<Source, Counted>,
}

impl AttemptLimiter {
    /// Grants a claim for a principal, which is given by a hash, or refuses it.
    pub(super) fn take(
        &mut self,
        source: &Source,
        principal: u64,
        now: Instant,
    ) -> AttemptDecision {
        if !self.sources.contains_key(source) {
            self.evict_sources(now);
        }
        let counted = self
            .sources
            .entry(source.clone())
            .or_insert_with(|| Counted {
                all: Bucket::new(OF_SOURCE, now),
                principals: HashMap::new(),
                tried: 0,
                last: None,
            });
        if counted.principals.len() >= PRINCIPALS_MAX {
            counted.principals.retain(|_, one| !one.is_full(now));
        }
        let fresh = || Bucket::new(OF_PRINCIPAL, now);
        let of_principal = counted.principals.entry(principal).or_insert_with(fresh);
        let decision = match of_principal.decide(now) {
            AttemptDecision::Denied => AttemptDecision::Denied,
            AttemptDecision::Granted => counted.all.decide(now),
            AttemptDecision::Wait if counted.all.waiting >= OF_SOURCE.waiting_max => {
                AttemptDecision::Denied
            }
            AttemptDecision::Wait => AttemptDecision::Wait,
        };
        for bucket in [of_principal, &mut counted.all] {
            match decision {
                AttemptDecision::Granted => bucket.grant(),
                AttemptDecision::Wait => bucket.waiting += 1,
                AttemptDecision::Denied => {}
            }
        }
        decision
    }

    /// Repeats the request of a waiting claim, which may have to wait again.
    pub(super) fn take_waiting(
        &mut self,
        source: &Source,
        principal: u64,
        now: Instant,
    ) -> AttemptDecision {
        self.stop_waiting(source, principal);
        self.take(source, principal, now)
    }

    /// Ends the wait of a claim.
    pub(super) fn stop_waiting(&mut self, source: &Source, principal: u64) {
        let Some(counted) = self.sources.get_mut(source) else {
            return;
        };
        counted.all.waiting = counted.all.waiting.saturating_sub(1);
        if let Some(of_principal) = counted.principals.get_mut(&principal) {
            of_principal.waiting = of_principal.waiting.saturating_sub(1);
        }
    }

    /// Records the outcome of a granted claim.
    pub(super) fn settle(&mut self, source: &Source, principal: u64, was_right: bool) {
        let Some(counted) = self.sources.get_mut(source) else {
            return;
        };
        counted.all.settle(was_right);
        if let Some(of_principal) = counted.principals.get_mut(&principal) {
            of_principal.settle(was_right);
        }
    }

    /// Records a claim of the source by its hash; repetitions of the same claim count once.
    pub(super) fn note(&mut self, source: &Source, claim: u64, now: Instant) {
        let tried = self.tried(source, now);
        if let Some(counted) = self.sources.get_mut(source) {
            let is_same = tried > 0 && counted.last.is_some_and(|(last, _)| last == claim);
            counted.tried = TRIED_MAX.min(tried + usize::from(!is_same));
            counted.last = Some((claim, now));
        }
    }

    /// Records that one of the source's claims was right.
    pub(super) fn note_right(&mut self, source: &Source) {
        if let Some(counted) = self.sources.get_mut(source) {
            counted.tried = counted.tried.saturating_sub(1);
        }
    }

    /// Returns the number of recent claims of the source that were not found right.
    pub(super) fn tried(&self, source: &Source, now: Instant) -> usize {
        let counted = self.sources.get(source);
        let lately = counted.filter(|one| {
            let since = one.last.map(|(_, at)| now.saturating_duration_since(at));
            since.is_some_and(|since| since < TRIED_KEPT)
        });
        lately.map_or(0, |one| one.tried)
    }

    fn evict_sources(&mut self, now: Instant) {
        if self.sources.len() < SOURCES_MAX {
            return;
        }
        self.sources.retain(|_, one| !one.all.is_full(now));
        if self.sources.len() >= SOURCES_MAX {
            self.sources
                .retain(|_, one| one.all.open > 0 || one.all.waiting > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn network(number: u32) -> Source {
        Source::Network(Network::from_address(IpAddr::from(number.to_be_bytes())))
    }

    /// Makes wrong claims, one after another; returns the number of grants.
    fn wrong(
        attempt_limiter: &mut AttemptLimiter,
        source: &Source,
        names: &[u64],
        now: Instant,
    ) -> usize {
        let mut granted = 0;
        for name in names {
            if attempt_limiter.take(source, *name, now) == AttemptDecision::Granted {
                attempt_limiter.settle(source, *name, false);
                granted += 1;
            }
        }
        granted
    }

    #[test]
    fn only_wrong_secrets_are_rate_limited() {
        let mut attempt_limiter = AttemptLimiter::default();
        let (start, here) = (Instant::now(), network(1));
        assert_eq!(wrong(&mut attempt_limiter, &here, &[7; 250], start), 3);
        assert_eq!(wrong(&mut attempt_limiter, &here, &[7; 250], start), 0);
        let later = start + Duration::from_secs(4);
        assert_eq!(wrong(&mut attempt_limiter, &here, &[7; 250], later), 2);
        let names: Vec<u64> = (100..400).collect();
        // Two of the twenty attempts were used a moment ago.
        assert_eq!(wrong(&mut attempt_limiter, &here, &names, later), 18);
        assert_eq!(wrong(&mut attempt_limiter, &network(2), &names, later), 20);
        let certified = Source::Certificate("node1".to_owned());
        for _ in 0..1000 {
            assert_eq!(
                attempt_limiter.take(&certified, 7, later),
                AttemptDecision::Granted
            );
            attempt_limiter.settle(&certified, 7, true);
        }
    }

    #[test]
    fn other_principals_granted_undecided_attempts_awaited() {
        let mut attempt_limiter = AttemptLimiter::default();
        let (now, here) = (Instant::now(), network(1));
        assert_eq!(wrong(&mut attempt_limiter, &here, &[7; 50], now), 3);
        assert_eq!(attempt_limiter.take(&here, 7, now), AttemptDecision::Denied);
        let decision = attempt_limiter.take(&here, 8, now);
        assert_eq!(decision, AttemptDecision::Granted);
        // Many right claims come at once: each waits for the claims before it.
        let mut open = 1;
        for name in 100..200 {
            match attempt_limiter.take(&here, name, now) {
                AttemptDecision::Granted => open += 1,
                AttemptDecision::Wait => break,
                AttemptDecision::Denied => panic!("{name}"),
            }
        }
        assert_eq!(open, 17);
        attempt_limiter.settle(&here, 100, true);
        let decision = attempt_limiter.take(&here, 900, now);
        assert_eq!(decision, AttemptDecision::Granted);
        for name in (101..116).chain([8, 900]) {
            attempt_limiter.settle(&here, name, false);
        }
        let decision = attempt_limiter.take(&here, 901, now);
        assert_eq!(decision, AttemptDecision::Denied);
    }

    #[test]
    fn attempts_of_source_are_remembered_briefly() {
        let mut attempt_limiter = AttemptLimiter::default();
        let (start, here) = (Instant::now(), network(1));
        assert_eq!(attempt_limiter.tried(&here, start), 0);
        for claim in [1, 2, 2, 2, 3, 4] {
            attempt_limiter.take(&here, 7, start);
            attempt_limiter.note(&here, claim, start);
        }
        attempt_limiter.note_right(&here);
        let later = start + TRIED_KEPT / 2;
        assert_eq!(attempt_limiter.tried(&here, later), 3);
        assert_eq!(attempt_limiter.tried(&network(2), later), 0);
        attempt_limiter.note(&here, 5, later);
        assert_eq!(attempt_limiter.tried(&here, start + TRIED_KEPT), 4);
        assert_eq!(attempt_limiter.tried(&here, later + TRIED_KEPT), 0);
        attempt_limiter.note(&here, 5, later + TRIED_KEPT);
        assert_eq!(attempt_limiter.tried(&here, later + TRIED_KEPT), 1);
    }

    #[test]
    fn counted_attempts_are_bounded() {
        let mut attempt_limiter = AttemptLimiter::default();
        let mut now = Instant::now();
        for number in 0..u32::try_from(SOURCES_MAX + 10).unwrap() {
            wrong(&mut attempt_limiter, &network(number), &[1], now);
        }
        assert!(attempt_limiter.sources.len() <= SOURCES_MAX);
        let here = network(1);
        for name in 0..10_000 {
            now += Duration::from_millis(10);
            wrong(&mut attempt_limiter, &here, &[name], now);
        }
        assert!(attempt_limiter.sources[&here].principals.len() <= 2 * PRINCIPALS_MAX);
    }
}
