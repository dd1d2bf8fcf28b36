//! Whether somebody knows the secret of the one he says he is.
//!
//! An answer is remembered by a keyed fingerprint, so that only the first call of a client costs a hash, and so
//! does a wrong secret that is given again and again. What is not remembered is hashed if [`Guesses`] grants it;
//! the same claim is hashed once, however many wait for it. Invariant: memory and the number of hashes in flight
//! are bounded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_access::basic::Claim;
use meseta_access::credentials::{Credentials, fingerprint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::guesses::{Guesses, Leave, Source};

/// Right answers that are remembered; above it all are forgotten and checked anew.
const REMEMBERED_MAX: usize = 65_536;
/// The same for wrong ones.
const WRONG_MAX: usize = 4_096;
/// Hashes at once: each takes some 20 MiB and a core.
const HASHES_AT_ONCE: usize = 2;
/// The same for those who have shown a certificate, who have a lane of their own.
const CERTIFIED_AT_ONCE: usize = 1;
/// Claims of each lane that wait for their turn.
const WAITING_MAX: usize = 256;
/// For how long one waits for others of its source to be settled.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    Unknown,
    TooMany,
    Busy,
}

type Fingerprint = [u8; 32];

/// Who there is, and what was found of claims by it.
struct Book {
    credentials: Arc<Credentials>,
    /// Right ones, with the principal of each.
    remembered: HashMap<Fingerprint, String>,
    wrong: HashSet<Fingerprint>,
}

impl Book {
    fn new(credentials: Credentials) -> Self {
        Self {
            credentials: Arc::new(credentials),
            remembered: HashMap::new(),
            wrong: HashSet::new(),
        }
    }

    fn verdict(&self, fingerprint: &Fingerprint) -> Option<Verdict> {
        if self.remembered.contains_key(fingerprint) {
            return Some(Verdict::Known);
        }
        let is_wrong = self.wrong.contains(fingerprint);
        is_wrong.then_some(Verdict::Unknown)
    }
}

/// Claims that are hashed side by side.
#[derive(Debug)]
struct Lane {
    turns: Arc<Semaphore>,
    hashes: Semaphore,
}

impl Lane {
    fn new(hashes: usize) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(WAITING_MAX)),
            hashes: Semaphore::new(hashes),
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Authenticator(Arc<Inner>);

struct Inner {
    book: Mutex<Book>,
    key: [u8; 32],
    guesses: Mutex<Guesses>,
    /// Told whenever a claim is settled.
    settled: Notify,
    /// Claims that are looked at, for those who make the same.
    pending: Mutex<HashMap<Fingerprint, watch::Receiver<Option<Verdict>>>>,
    lane: Lane,
    certified: Lane,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("principals", &lock(&self.0.book).credentials.len())
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    pub(super) fn new(credentials: Credentials, key: [u8; 32]) -> Self {
        Self(Arc::new(Inner {
            book: Mutex::new(Book::new(credentials)),
            key,
            guesses: Mutex::default(),
            settled: Notify::new(),
            pending: Mutex::default(),
            lane: Lane::new(HASHES_AT_ONCE),
            certified: Lane::new(CERTIFIED_AT_ONCE),
        }))
    }

    /// Goes by others from now on. Who has the same secret as before stays known: a change for some must not
    /// send all others through the limits again.
    pub(super) fn exchange(&self, credentials: Credentials) {
        let mut book = lock(&self.0.book);
        let before = std::mem::replace(&mut *book, Book::new(credentials));
        let mut remembered = before.remembered;
        let now = &book.credentials;
        remembered.retain(|_, principal| {
            let (old, new) = (before.credentials.find(principal), now.find(principal));
            old.is_some() && old == new
        });
        book.remembered = remembered;
    }

    /// Whether there is a secret of this principal.
    pub(super) fn has(&self, principal: &str) -> bool {
        lock(&self.0.book).credentials.find(principal).is_some()
    }

    /// Checks a claim that comes from there.
    pub(super) async fn check(&self, claim: &Claim, source: Option<Source>) -> Verdict {
        let fingerprint = fingerprint(&self.0.key, claim);
        if let Some(verdict) = lock(&self.0.book).verdict(&fingerprint) {
            return verdict;
        }
        match self.begin(claim, fingerprint, source) {
            // Its sender tells before it goes.
            Ok(mut pending) => match pending.wait_for(Option::is_some).await {
                Ok(verdict) => verdict.unwrap_or(Verdict::Busy),
                Err(_) => Verdict::Busy,
            },
            Err(verdict) => verdict,
        }
    }

    /// Where the outcome of a claim will be told, or what is known of it already.
    fn begin(
        &self,
        claim: &Claim,
        fingerprint: Fingerprint,
        source: Option<Source>,
    ) -> Result<watch::Receiver<Option<Verdict>>, Verdict> {
        let mut pending = lock(&self.0.pending);
        if let Some(found) = pending.get(&fingerprint) {
            return Ok(found.clone());
        }
        // One that was pending a moment ago is remembered by now.
        if let Some(verdict) = lock(&self.0.book).verdict(&fingerprint) {
            return Err(verdict);
        }
        let inner = &self.0;
        let attempt = Attempt {
            principal: inner.hash_of(&claim.principal),
            claim: claim.clone(),
            fingerprint,
            source,
        };
        let leave = attempt.take(inner);
        if leave == Leave::Denied {
            return Err(Verdict::TooMany);
        }
        let turn = inner.lane_of(&attempt).turns.clone().try_acquire_owned();
        let Ok(turn) = turn else {
            match leave {
                Leave::Granted => attempt.settle(inner, true),
                Leave::Wait | Leave::Denied => attempt.leave(inner),
            }
            return Err(Verdict::Busy);
        };
        let (sender, receiver) = watch::channel(None);
        pending.insert(fingerprint, receiver.clone());
        drop(pending);
        let inner = inner.clone();
        let looked_at = LookedAt {
            inner: inner.clone(),
            fingerprint,
        };
        // Goes on when the one who asked has left: others may wait for it too.
        tokio::spawn(async move {
            let verdict = inner.decide(&attempt, leave, turn).await;
            drop(looked_at);
            sender.send_replace(Some(verdict));
        });
        Ok(receiver)
    }
}

/// A claim that is being looked at: those who make the same wait for it, until this is dropped.
struct LookedAt {
    inner: Arc<Inner>,
    fingerprint: Fingerprint,
}

impl Drop for LookedAt {
    fn drop(&mut self) {
        lock(&self.inner.pending).remove(&self.fingerprint);
    }
}

/// A claim that is to be looked at.
struct Attempt {
    claim: Claim,
    fingerprint: Fingerprint,
    /// The claimed principal, for counting.
    principal: u64,
    source: Option<Source>,
}

impl Attempt {
    fn take(&self, inner: &Inner) -> Leave {
        let Some(source) = &self.source else {
            return Leave::Granted;
        };
        lock(&inner.guesses).take(source, self.principal, Instant::now())
    }

    fn take_waiting(&self, inner: &Inner) -> Leave {
        let Some(source) = &self.source else {
            return Leave::Granted;
        };
        lock(&inner.guesses).take_waiting(source, self.principal, Instant::now())
    }

    fn leave(&self, inner: &Inner) {
        if let Some(source) = &self.source {
            lock(&inner.guesses).leave(source, self.principal);
        }
    }

    fn settle(&self, inner: &Inner, was_right: bool) {
        if let Some(source) = &self.source {
            lock(&inner.guesses).settle(source, self.principal, was_right);
        }
        inner.settled.notify_waiters();
    }
}

impl Inner {
    fn lane_of(&self, attempt: &Attempt) -> &Lane {
        match &attempt.source {
            Some(Source::Certificate(_)) => &self.certified,
            Some(Source::User(_) | Source::Network(_)) | None => &self.lane,
        }
    }

    /// A number that nobody outside can choose a principal for.
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
        leave: Leave,
        _turn: OwnedSemaphorePermit,
    ) -> Verdict {
        if leave == Leave::Wait {
            let granted = tokio::time::timeout(PATIENCE, self.wait(attempt)).await;
            match granted {
                Ok(true) => {}
                Ok(false) => return Verdict::TooMany,
                Err(_) => {
                    attempt.leave(self);
                    return Verdict::TooMany;
                }
            }
        }
        let Ok(_hash) = self.lane_of(attempt).hashes.acquire().await else {
            return Verdict::Busy;
        };
        let credentials = lock(&self.book).credentials.clone();
        let is_right = verify(credentials.clone(), &attempt.claim).await;
        self.remember(&credentials, attempt, is_right);
        attempt.settle(self, is_right);
        if is_right {
            return Verdict::Known;
        }
        tracing::warn!(
            principal = %attempt.claim.principal.escape_debug(),
            source = ?attempt.source,
            "wrong credentials"
        );
        Verdict::Unknown
    }

    /// Until a claim is granted, or denied.
    async fn wait(&self, attempt: &Attempt) -> bool {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            match attempt.take_waiting(self) {
                Leave::Granted => return true,
                Leave::Denied => return false,
                Leave::Wait => settled.await,
            }
        }
    }

    /// Unless the credentials that it was checked by are gone meanwhile.
    fn remember(&self, checked_by: &Arc<Credentials>, attempt: &Attempt, is_right: bool) {
        let mut book = lock(&self.book);
        if !Arc::ptr_eq(&book.credentials, checked_by) {
            return;
        }
        if is_right {
            if book.remembered.len() >= REMEMBERED_MAX {
                book.remembered.clear();
            }
            let principal = attempt.claim.principal.clone();
            book.remembered.insert(attempt.fingerprint, principal);
        } else {
            if book.wrong.len() >= WRONG_MAX {
                book.wrong.clear();
            }
            book.wrong.insert(attempt.fingerprint);
        }
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
    use std::net::IpAddr;

    use meseta_access::SecretHash;

    use super::*;
    use crate::transport::server::Network;

    fn people(all: &[(&str, &str, u8)]) -> Credentials {
        let lines = all.iter().map(|(name, secret, salt)| {
            let hash = SecretHash::of(secret.as_bytes(), [*salt; 16]).unwrap();
            format!("{name} {hash}\n")
        });
        Credentials::parse(&lines.collect::<String>()).unwrap()
    }

    fn authenticator() -> Authenticator {
        Authenticator::new(people(&[("ada", "wonder", 1)]), [9; 32])
    }

    fn claim(principal: &str, secret: &str) -> Claim {
        Claim {
            principal: principal.to_owned(),
            secret: secret.as_bytes().to_vec(),
        }
    }

    fn network(address: &str) -> Option<Source> {
        let address: IpAddr = address.parse().unwrap();
        Some(Source::Network(Network::of(address)))
    }

    fn remembered(door: &Authenticator) -> usize {
        lock(&door.0.book).remembered.len()
    }

    #[tokio::test]
    async fn the_right_secret_is_remembered_and_a_wrong_one_is_not() {
        let door = authenticator();
        for (principal, secret, verdict, known) in [
            ("ada", "wonder", Verdict::Known, 1),
            ("ada", "wonder", Verdict::Known, 1),
            ("ada", "Wonder", Verdict::Unknown, 1),
            ("ada", "", Verdict::Unknown, 1),
            ("bob", "wonder", Verdict::Unknown, 1),
            ("adaw", "onder", Verdict::Unknown, 1),
        ] {
            let got = door.check(&claim(principal, secret), None).await;
            assert_eq!(got, verdict, "{principal}:{secret}");
            assert_eq!(remembered(&door), known);
        }
    }

    #[tokio::test]
    async fn who_is_no_more_in_the_file_is_not_remembered_either() {
        let door = Authenticator::new(
            people(&[("ada", "wonder", 1), ("eve", "apple", 3), ("kim", "key", 4)]),
            [9; 32],
        );
        let [ada, eve, kim] = [("ada", "wonder"), ("eve", "apple"), ("kim", "key")]
            .map(|(principal, secret)| claim(principal, secret));
        for known in [&ada, &eve, &kim] {
            assert_eq!(door.check(known, None).await, Verdict::Known);
        }
        let bob = claim("bob", "secret");
        assert_eq!(door.check(&bob, None).await, Verdict::Unknown);
        let before = lock(&door.0.book).credentials.clone();
        let fresh = people(&[("bob", "secret", 2), ("eve", "pear", 3), ("kim", "key", 4)]);
        door.exchange(fresh);
        // A check that was under way meanwhile.
        let late = Attempt {
            fingerprint: fingerprint(&door.0.key, &ada),
            principal: 0,
            claim: ada.clone(),
            source: None,
        };
        door.0.remember(&before, &late, true);
        assert_eq!(remembered(&door), 1, "whose secret is the same");
        assert_eq!(door.check(&ada, None).await, Verdict::Unknown);
        assert_eq!(door.check(&eve, None).await, Verdict::Unknown);
        assert_eq!(door.check(&kim, None).await, Verdict::Known);
        assert_eq!(door.check(&bob, None).await, Verdict::Known);
    }

    /// All at once, as they come over many connections.
    async fn all(
        door: &Authenticator,
        claims: Vec<Claim>,
        source: &Option<Source>,
    ) -> Vec<Verdict> {
        let checks: Vec<_> = claims
            .into_iter()
            .map(|claim| {
                let (door, source) = (door.clone(), source.clone());
                tokio::spawn(async move { door.check(&claim, source).await })
            })
            .collect();
        let mut verdicts = Vec::new();
        for check in checks {
            verdicts.push(check.await.unwrap());
        }
        verdicts
    }

    /// As when the thread that looks at it panics.
    #[tokio::test]
    async fn a_claim_that_was_given_up_is_looked_at_anew() {
        let door = authenticator();
        let ada = claim("ada", "wonder");
        let fingerprint = fingerprint(&door.0.key, &ada);
        let (sender, receiver) = watch::channel(None);
        lock(&door.0.pending).insert(fingerprint, receiver);
        let looked_at = LookedAt {
            inner: door.0.clone(),
            fingerprint,
        };
        let waiting = tokio::spawn({
            let (door, ada) = (door.clone(), ada.clone());
            async move { door.check(&ada, None).await }
        });
        tokio::task::yield_now().await;
        drop(sender);
        drop(looked_at);
        assert_eq!(waiting.await.unwrap(), Verdict::Busy);
        assert_eq!(door.check(&ada, None).await, Verdict::Known);
    }

    // The clock stands still while secrets are hashed, however long that takes.
    #[tokio::test(start_paused = true)]
    async fn guesses_are_counted_before_they_are_hashed() {
        let door = Authenticator::new(
            people(&[
                ("ada", "wonder", 1),
                ("bob", "builder", 2),
                ("eve", "apple", 3),
            ]),
            [9; 32],
        );
        let here = network("10.0.0.1");
        let ada = claim("ada", "wonder");
        assert_eq!(door.check(&ada, here.clone()).await, Verdict::Known);
        let guesses = (0..250).map(|number| claim("ada", &format!("guess-{number}")));
        let mut claims: Vec<_> = guesses.collect();
        claims.push(claim("bob", "builder"));
        let mut verdicts = all(&door, claims, &here).await;
        assert_eq!(
            verdicts.pop(),
            Some(Verdict::Known),
            "another one's right secret"
        );
        let hashed = verdicts.iter().filter(|one| **one == Verdict::Unknown);
        assert!(hashed.count() <= 5, "at once");
        let limited = verdicts.iter().filter(|one| **one == Verdict::TooMany);
        assert!(limited.count() >= 245);
        for right in [&ada, &claim("bob", "builder"), &claim("eve", "apple")] {
            assert_eq!(door.check(right, here.clone()).await, Verdict::Known);
        }
        // Who shows a certificate is disturbed by nobody, nor is another address.
        let eve = claim("ada", "guess");
        let certified = Some(Source::Certificate("node1".to_owned()));
        assert_eq!(door.check(&eve, certified).await, Verdict::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn many_right_secrets_come_at_once() {
        let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
        let all_people: Vec<_> = names.iter().map(|name| (name.as_str(), "s", 1)).collect();
        let door = Authenticator::new(people(&all_people), [9; 32]);
        let here = network("10.0.0.1");
        let once = names.iter().map(|name| claim(name, "s"));
        let claims: Vec<_> = once.clone().chain(once.clone()).chain(once).collect();
        let verdicts = all(&door, claims, &here).await;
        assert_eq!(verdicts, [Verdict::Known; 90]);
    }

    #[tokio::test]
    async fn a_wrong_secret_that_is_given_again_costs_nothing_and_limits_nobody() {
        let door = authenticator();
        let here = network("10.0.0.1");
        let wrong = claim("ada", "old");
        for _ in 0..100 {
            let verdict = door.check(&wrong, here.clone()).await;
            assert_eq!(verdict, Verdict::Unknown);
        }
        let right = claim("ada", "wonder");
        assert_eq!(door.check(&right, here).await, Verdict::Known);
    }
}
