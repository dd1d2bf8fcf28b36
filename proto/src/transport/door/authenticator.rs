//! Whether somebody knows the secret of the one he says he is.
//!
//! A right answer is remembered by a keyed fingerprint, so that only the first call of a client costs a
//! hash; wrong ones are counted by address. Invariant: memory and the number of hashes in flight are bounded.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_access::basic::Claim;
use meseta_access::credentials::{Credentials, fingerprint};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Right answers that are remembered; above it all are forgotten and checked anew.
const REMEMBERED_MAX: usize = 65_536;
/// Hashes at once: each takes some 20 MiB and a core.
const HASHES_AT_ONCE: usize = 2;
/// Claims that wait for their turn.
const WAITING_MAX: usize = 256;
/// Wrong answers of one address per second, and how many may come at once.
const FAILURES_PER_SECOND: f64 = 10.0;
const FAILURES_BURST: f64 = 20.0;
/// Addresses whose failures are counted; above it the oldest counts are dropped.
const ADDRESSES_MAX: usize = 16_384;

/// What is known of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    Unknown,
    TooMany,
    Busy,
}

#[derive(Debug)]
struct Failures {
    left: f64,
    since: Instant,
}

impl Failures {
    fn refresh(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * FAILURES_PER_SECOND).min(FAILURES_BURST);
        self.since = now;
    }
}

/// Who there is, and the claims that were found to be right by it.
struct Book {
    credentials: Arc<Credentials>,
    remembered: HashSet<[u8; 32]>,
}

impl Book {
    fn new(credentials: Credentials) -> Self {
        Self {
            credentials: Arc::new(credentials),
            remembered: HashSet::new(),
        }
    }
}

pub(super) struct Authenticator {
    book: Mutex<Book>,
    key: [u8; 32],
    failures: Mutex<HashMap<IpAddr, Failures>>,
    turns: Semaphore,
    hashes: Semaphore,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("principals", &lock(&self.book).credentials.len())
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    pub(super) fn new(credentials: Credentials, key: [u8; 32]) -> Self {
        Self {
            book: Mutex::new(Book::new(credentials)),
            key,
            failures: Mutex::default(),
            turns: Semaphore::new(WAITING_MAX),
            hashes: Semaphore::new(HASHES_AT_ONCE),
        }
    }

    /// Goes by others from now on; nobody who was known before is known for it.
    pub(super) fn exchange(&self, credentials: Credentials) {
        *lock(&self.book) = Book::new(credentials);
    }

    /// Checks a claim that comes from this address.
    pub(super) async fn check(&self, claim: &Claim, address: Option<IpAddr>) -> Verdict {
        let fingerprint = fingerprint(&self.key, claim);
        if self.remembers(&fingerprint) {
            return Verdict::Known;
        }
        if address.is_some_and(|address| self.has_failed_too_often(address)) {
            return Verdict::TooMany;
        }
        let Ok(_turn) = self.turns.try_acquire() else {
            return Verdict::Busy;
        };
        let Ok(_hash) = self.hashes.acquire().await else {
            return Verdict::Busy;
        };
        // Whoever waited behind the same claim need not ask again.
        if self.remembers(&fingerprint) {
            return Verdict::Known;
        }
        let credentials = lock(&self.book).credentials.clone();
        if verify(credentials.clone(), claim).await {
            self.remember(&credentials, fingerprint);
            return Verdict::Known;
        }
        if let Some(address) = address {
            self.count_failure(address);
        }
        tracing::warn!(
            principal = %claim.principal.escape_debug(),
            address = %address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            "wrong credentials"
        );
        Verdict::Unknown
    }

    fn remembers(&self, fingerprint: &[u8; 32]) -> bool {
        lock(&self.book).remembered.contains(fingerprint)
    }

    /// Unless the credentials that it was checked by are gone meanwhile.
    fn remember(&self, checked_by: &Arc<Credentials>, fingerprint: [u8; 32]) {
        let mut book = lock(&self.book);
        if !Arc::ptr_eq(&book.credentials, checked_by) {
            return;
        }
        if book.remembered.len() >= REMEMBERED_MAX {
            book.remembered.clear();
        }
        book.remembered.insert(fingerprint);
    }

    fn has_failed_too_often(&self, address: IpAddr) -> bool {
        let mut failures = lock(&self.failures);
        failures.get_mut(&address).is_some_and(|failures| {
            failures.refresh(Instant::now());
            failures.left < 1.0
        })
    }

    fn count_failure(&self, address: IpAddr) {
        let now = Instant::now();
        let mut failures = lock(&self.failures);
        if failures.len() >= ADDRESSES_MAX {
            // These have been quiet long enough to be forgiven.
            let quiet = Duration::from_secs_f64(FAILURES_BURST / FAILURES_PER_SECOND);
            failures.retain(|_, one| now.saturating_duration_since(one.since) < quiet);
            if failures.len() >= ADDRESSES_MAX {
                failures.clear();
            }
        }
        let entry = failures.entry(address).or_insert(Failures {
            left: FAILURES_BURST,
            since: now,
        });
        entry.refresh(now);
        entry.left = (entry.left - 1.0).max(0.0);
    }
}

/// The long part. Somebody who is not there takes as long as somebody who is.
async fn verify(credentials: Arc<Credentials>, claim: &Claim) -> bool {
    let claim = claim.clone();
    let work = tokio::task::spawn_blocking(move || {
        let found = credentials.find(&claim.principal);
        let Some(hash) = found.or_else(|| credentials.anybody()) else {
            return false;
        };
        hash.is_of(&claim.secret) && found.is_some()
    });
    work.await.unwrap_or(false)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use meseta_access::SecretHash;

    use super::*;

    fn authenticator() -> Authenticator {
        let hash = SecretHash::of(b"wonder", [1; 16]).unwrap();
        let credentials = Credentials::parse(&format!("ada {hash}")).unwrap();
        Authenticator::new(credentials, [9; 32])
    }

    fn claim(principal: &str, secret: &str) -> Claim {
        Claim {
            principal: principal.to_owned(),
            secret: secret.as_bytes().to_vec(),
        }
    }

    #[tokio::test]
    async fn the_right_secret_is_remembered_and_a_wrong_one_is_not() {
        let door = authenticator();
        for (principal, secret, verdict, remembered) in [
            ("ada", "wonder", Verdict::Known, 1),
            ("ada", "wonder", Verdict::Known, 1),
            ("ada", "Wonder", Verdict::Unknown, 1),
            ("ada", "", Verdict::Unknown, 1),
            ("bob", "wonder", Verdict::Unknown, 1),
            ("adaw", "onder", Verdict::Unknown, 1),
        ] {
            let got = door.check(&claim(principal, secret), None).await;
            assert_eq!(got, verdict, "{principal}:{secret}");
            assert_eq!(lock(&door.book).remembered.len(), remembered);
        }
    }

    #[tokio::test]
    async fn who_is_no_more_in_the_file_is_not_remembered_either() {
        let door = authenticator();
        let ada = claim("ada", "wonder");
        assert_eq!(door.check(&ada, None).await, Verdict::Known);
        let before = lock(&door.book).credentials.clone();
        let hash = SecretHash::of(b"secret", [2; 16]).unwrap();
        door.exchange(Credentials::parse(&format!("bob {hash}")).unwrap());
        // A check that was under way meanwhile.
        door.remember(&before, fingerprint(&door.key, &ada));
        assert_eq!(door.check(&ada, None).await, Verdict::Unknown);
        assert_eq!(
            door.check(&claim("bob", "secret"), None).await,
            Verdict::Known
        );
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_are_limited_by_address_and_forgiven() {
        let door = authenticator();
        let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for _ in 0..20 {
            door.count_failure(here);
        }
        let guess = claim("ada", "guess");
        assert_eq!(door.check(&guess, Some(here)).await, Verdict::TooMany);
        assert_eq!(door.check(&guess, Some(there)).await, Verdict::Unknown);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(door.check(&guess, Some(here)).await, Verdict::Unknown);
        let right = claim("ada", "wonder");
        assert_eq!(door.check(&right, Some(there)).await, Verdict::Known);
        for _ in 0..20 {
            door.count_failure(here);
        }
        let known = door.check(&right, Some(here)).await;
        assert_eq!(known, Verdict::Known, "who is known is not locked out");
    }

    #[tokio::test]
    async fn the_number_of_addresses_is_bounded() {
        let door = authenticator();
        for number in 0..u32::try_from(ADDRESSES_MAX + 10).unwrap() {
            door.count_failure(IpAddr::from(number.to_be_bytes()));
        }
        assert!(lock(&door.failures).len() <= ADDRESSES_MAX);
    }
}
