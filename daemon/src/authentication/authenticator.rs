//! The check of a claimed principal's secret.
//!
//! An outcome is remembered by a keyed fingerprint, so that only the first call of a client costs a hash, and so does a
//! wrong secret that is repeated. Other claims are hashed if [`AttemptLimiter`] grants them; the same claim is hashed once,
//! however many callers wait for it. Invariants: memory and the number of hashes in flight are bounded; claims from sources
//! with recent wrong claims wait behind claims from other sources.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_access::basic::Claim;
use meseta_access::credentials::{Credentials, fingerprint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::attempt_limiter::{AttemptDecision, AttemptLimiter, Source};
use crate::background;
use crate::fair_semaphore::{FairSemaphore, Group, Rules};

/// Right answers that are remembered; above this number all are forgotten and checked again.
const REMEMBERED_MAX: usize = 65_536;
/// Wrong answers that are remembered, with the same rule.
const WRONG_MAX: usize = 4_096;
/// Concurrent hashes, if there are enough cores: each takes about 20 MiB and a core.
const HASHES_AT_ONCE: usize = 2;
/// Hashes at once for clients with a certificate, which have a lane of their own.
const CERTIFIED_AT_ONCE: usize = 1;
/// Claims of each lane that wait for their turn, of one source and of all together.
const WAITING_OF_SOURCE_MAX: usize = 64;
const WAITING_MAX: usize = 256;
/// Claims that wait for the decision on others of their source.
const UNDECIDED_MAX: usize = 1_024;
/// Remembered pairs of a source and a principal; above this number, all are forgotten.
const PAIRS_MAX: usize = 65_536;
/// The longest wait for pending claims of the same source.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckOutcome {
    Known,
    Unknown,
    TooMany,
    Busy,
}

type Fingerprint = [u8; 32];

/// The credentials, and the remembered results of claims.
struct CredentialCache {
    credentials: Arc<Credentials>,
    /// Right claims, with the principal of each.
    remembered: HashMap<Fingerprint, String>,
    wrong: HashSet<Fingerprint>,
}

impl CredentialCache {
    fn new(credentials: Credentials) -> Self {
        Self {
            credentials: Arc::new(credentials),
            remembered: HashMap::new(),
            wrong: HashSet::new(),
        }
    }

    fn cached_outcome(&self, fingerprint: &Fingerprint) -> Option<CheckOutcome> {
        if self.remembered.contains_key(fingerprint) {
            return Some(CheckOutcome::Known);
        }
        let is_wrong = self.wrong.contains(fingerprint);
        is_wrong.then_some(CheckOutcome::Unknown)
    }
}

/// Returns a queue that hashes this number of claims side by side, in an order that is fair to sources.
fn hash_queue(hashes: usize) -> FairSemaphore {
    FairSemaphore::new(Rules {
        units_max: hashes,
        leaves_half: false,
        stall_timeout: None,
        newest_first: true,
        waiting_of_group_max: WAITING_OF_SOURCE_MAX,
        waiting_max: WAITING_MAX,
    })
}

/// Returns half of the cores, within a limit: the other half serves the known clients.
fn hashes_at_once() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / 2).clamp(1, HASHES_AT_ONCE)
}

/// A shared authenticator, cheap to clone.
#[derive(Clone)]
pub(super) struct Authenticator(Arc<Inner>);

struct Inner {
    cache: Mutex<CredentialCache>,
    key: [u8; 32],
    attempt_limiter: Mutex<AttemptLimiter>,
    /// Notifies waiters whenever a claim is settled.
    settled: Notify,
    /// The claims being checked, for callers with the same claim.
    pending: Mutex<HashMap<Fingerprint, watch::Receiver<Option<CheckOutcome>>>>,
    /// The sources from which principals have shown the right secret.
    pairs: Mutex<HashSet<(Source, u64)>>,
    /// The permits of claims that wait for others to be settled.
    undecided: Arc<Semaphore>,
    hash_queue: FairSemaphore,
    certified: FairSemaphore,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("principals", &lock(&self.0.cache).credentials.len())
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    pub(super) fn new(credentials: Credentials, key: [u8; 32]) -> Self {
        Self(Arc::new(Inner {
            cache: Mutex::new(CredentialCache::new(credentials)),
            key,
            attempt_limiter: Mutex::default(),
            settled: Notify::new(),
            pending: Mutex::default(),
            pairs: Mutex::default(),
            undecided: Arc::new(Semaphore::new(UNDECIDED_MAX)),
            hash_queue: hash_queue(hashes_at_once()),
            certified: hash_queue(CERTIFIED_AT_ONCE),
        }))
    }

    /// Replaces the credentials. A principal with an unchanged secret stays known: a change for some must not send all
    /// others through the limits again.
    pub(super) fn exchange(&self, credentials: Credentials) {
        let mut cache = lock(&self.0.cache);
        let before = std::mem::replace(&mut *cache, CredentialCache::new(credentials));
        let mut remembered = before.remembered;
        let now = &cache.credentials;
        remembered.retain(|_, principal| {
            let (old, new) = (before.credentials.find(principal), now.find(principal));
            old.is_some() && old == new
        });
        cache.remembered = remembered;
    }

    /// Whether the credentials contain a secret of this principal.
    pub(super) fn has(&self, principal: &str) -> bool {
        lock(&self.0.cache).credentials.find(principal).is_some()
    }

    /// Checks a claim from a source.
    pub(super) async fn check(&self, claim: &Claim, source: Option<Source>) -> CheckOutcome {
        let fingerprint = fingerprint(&self.0.key, claim);
        if let Some(outcome) = lock(&self.0.cache).cached_outcome(&fingerprint) {
            return outcome;
        }
        match self.begin(claim, fingerprint, source) {
            // The sender sends the outcome before it goes.
            Ok(mut pending) => match pending.wait_for(Option::is_some).await {
                Ok(outcome) => outcome.unwrap_or(CheckOutcome::Busy),
                Err(_) => CheckOutcome::Busy,
            },
            Err(outcome) => outcome,
        }
    }

    /// Returns the receiver of a claim's outcome, or the outcome if it is known already.
    fn begin(
        &self,
        claim: &Claim,
        fingerprint: Fingerprint,
        source: Option<Source>,
    ) -> Result<watch::Receiver<Option<CheckOutcome>>, CheckOutcome> {
        let mut pending = lock(&self.0.pending);
        if let Some(found) = pending.get(&fingerprint) {
            return Ok(found.clone());
        }
        // A claim that was pending a moment ago is remembered now.
        if let Some(outcome) = lock(&self.0.cache).cached_outcome(&fingerprint) {
            return Err(outcome);
        }
        let inner = &self.0;
        let attempt = Attempt {
            principal: inner.hash_of(&claim.principal),
            claim: claim.clone(),
            fingerprint,
            source,
        };
        let undecided = match attempt.take(inner) {
            AttemptDecision::Denied => return Err(CheckOutcome::TooMany),
            AttemptDecision::Granted => None,
            AttemptDecision::Wait => match inner.undecided.clone().try_acquire_owned() {
                Ok(undecided) => Some(undecided),
                Err(_) => {
                    attempt.stop_waiting(inner);
                    return Err(CheckOutcome::Busy);
                }
            },
        };
        let (sender, receiver) = watch::channel(None);
        pending.insert(fingerprint, receiver.clone());
        drop(pending);
        let inner = inner.clone();
        let pending_check = PendingCheck {
            inner: inner.clone(),
            fingerprint,
        };
        // The check continues when its caller has left: others may wait for it too.
        tokio::spawn(async move {
            let outcome = inner.decide(&attempt, undecided).await;
            drop(pending_check);
            sender.send_replace(Some(outcome));
        });
        Ok(receiver)
    }
}

/// A claim being checked: callers with the same claim wait for it, until this is dropped.
struct PendingCheck {
    inner: Arc<Inner>,
    fingerprint: Fingerprint,
}

impl Drop for PendingCheck {
    fn drop(&mut self) {
        lock(&self.inner.pending).remove(&self.fingerprint);
    }
}

/// A claim that waits for its check.
struct Attempt {
    claim: Claim,
    fingerprint: Fingerprint,
    /// The claimed principal, for counting.
    principal: u64,
    source: Option<Source>,
}

impl Attempt {
    fn take(&self, inner: &Inner) -> AttemptDecision {
        let Some(source) = &self.source else {
            return AttemptDecision::Granted;
        };
        let [a, b, c, d, e, f, g, h, ..] = self.fingerprint;
        let name = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let (mut attempt_limiter, now) = (lock(&inner.attempt_limiter), Instant::now());
        let decision = attempt_limiter.take(source, self.principal, now);
        attempt_limiter.note(source, name, now);
        decision
    }

    fn take_waiting(&self, inner: &Inner) -> AttemptDecision {
        let Some(source) = &self.source else {
            return AttemptDecision::Granted;
        };
        lock(&inner.attempt_limiter).take_waiting(source, self.principal, Instant::now())
    }

    /// Returns the group of claims that share turns with this claim.
    fn group(&self) -> Group {
        let source = self.source.as_ref();
        source.map_or_else(Group::default, |source| format!("{source:?}").into())
    }

    fn stop_waiting(&self, inner: &Inner) {
        if let Some(source) = &self.source {
            lock(&inner.attempt_limiter).stop_waiting(source, self.principal);
        }
    }

    fn settle(&self, inner: &Inner, was_right: bool) {
        if let Some(source) = &self.source {
            lock(&inner.attempt_limiter).settle(source, self.principal, was_right);
        }
        inner.settled.notify_waiters();
    }
}

impl Inner {
    fn hash_queue_of(&self, attempt: &Attempt) -> &FairSemaphore {
        match &attempt.source {
            Some(Source::Certificate(_)) => &self.certified,
            Some(Source::User(_) | Source::Network(_)) | None => &self.hash_queue,
        }
    }

    /// Returns the rank of a claim in the queue: lowest is a source that has shown the principal's secret before and tried
    /// nothing else since.
    fn rank_of(&self, attempt: &Attempt) -> usize {
        let Some(source) = &attempt.source else {
            return 0;
        };
        let tried = lock(&self.attempt_limiter).tried(source, Instant::now());
        let is_known = lock(&self.pairs).contains(&(source.clone(), attempt.principal));
        if is_known && tried <= 1 { 0 } else { tried }
    }

    /// Returns a hash for which no outsider can choose a colliding principal.
    fn hash_of(&self, principal: &str) -> u64 {
        let claim = Claim {
            principal: principal.to_owned(),
            secret: Vec::new(),
        };
        let [a, b, c, d, e, f, g, h, ..] = fingerprint(&self.key, &claim);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    async fn decide(
        &self,
        attempt: &Attempt,
        undecided: Option<OwnedSemaphorePermit>,
    ) -> CheckOutcome {
        if undecided.is_some() {
            let granted = tokio::time::timeout(SETTLE_WAIT_MAX, self.wait(attempt)).await;
            match granted {
                Ok(true) => {}
                Ok(false) => return CheckOutcome::TooMany,
                Err(_) => {
                    attempt.stop_waiting(self);
                    return CheckOutcome::TooMany;
                }
            }
        }
        drop(undecided);
        let rank = self.rank_of(attempt);
        let hashing = self
            .hash_queue_of(attempt)
            .take_after(attempt.group(), 1, rank);
        let Ok(_hashing) = hashing.await else {
            // The claim was not checked.
            attempt.settle(self, true);
            return CheckOutcome::Busy;
        };
        let credentials = lock(&self.cache).credentials.clone();
        let is_right = verify(credentials.clone(), &attempt.claim).await;
        self.remember(&credentials, attempt, is_right);
        attempt.settle(self, is_right);
        if is_right {
            self.note_right(attempt);
            return CheckOutcome::Known;
        }
        tracing::warn!(
            principal = attempt.claim.principal,
            source = ?attempt.source,
            "wrong credentials"
        );
        CheckOutcome::Unknown
    }

    /// Notes that a source knows a secret.
    fn note_right(&self, attempt: &Attempt) {
        let Some(source) = &attempt.source else {
            return;
        };
        lock(&self.attempt_limiter).note_right(source);
        let mut pairs = lock(&self.pairs);
        if pairs.len() >= PAIRS_MAX {
            pairs.clear();
        }
        pairs.insert((source.clone(), attempt.principal));
    }

    /// Waits until a claim is granted, or denied.
    async fn wait(&self, attempt: &Attempt) -> bool {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            match attempt.take_waiting(self) {
                AttemptDecision::Granted => return true,
                AttemptDecision::Denied => return false,
                AttemptDecision::Wait => settled.await,
            }
        }
    }

    /// Remembers an outcome, unless the credentials of its check have been replaced meanwhile.
    fn remember(&self, checked_by: &Arc<Credentials>, attempt: &Attempt, is_right: bool) {
        let mut cache = lock(&self.cache);
        if !Arc::ptr_eq(&cache.credentials, checked_by) {
            return;
        }
        if is_right {
            if cache.remembered.len() >= REMEMBERED_MAX {
                cache.remembered.clear();
            }
            let principal = attempt.claim.principal.clone();
            cache.remembered.insert(attempt.fingerprint, principal);
        } else {
            if cache.wrong.len() >= WRONG_MAX {
                cache.wrong.clear();
            }
            cache.wrong.insert(attempt.fingerprint);
        }
    }
}

/// Verifies the hash. An unknown principal takes as long as a known principal.
async fn verify(credentials: Arc<Credentials>, claim: &Claim) -> bool {
    let claim = claim.clone();
    let work = background::spawn(move || {
        let found = credentials.find(&claim.principal);
        let Some(hash) = found.or_else(|| credentials.any_hash()) else {
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
mod tests;
