//! Known claims, guesses, and the order of those that wait.

use std::net::IpAddr;

use meseta_access::SecretHash;

use super::*;
use crate::server::Network;

fn people(all: &[(&str, &str, u8)]) -> Credentials {
    let lines = all.iter().map(|(name, secret, salt)| {
        let hash = SecretHash::from_secret(secret.as_bytes(), [*salt; 16]).unwrap();
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
    Some(Source::Network(Network::from_address(address)))
}

async fn outcome(authenticator: &Authenticator, principal: &str, secret: &str) -> CheckOutcome {
    authenticator.check(&claim(principal, secret), None).await
}

fn remembered(authenticator: &Authenticator) -> usize {
    lock(&authenticator.0.cache).remembered.len()
}

#[tokio::test]
async fn only_right_secret_is_remembered() {
    let authenticator = authenticator();
    for (principal, secret, outcome, known) in [
        ("ada", "wonder", CheckOutcome::Known, 1),
        ("ada", "wonder", CheckOutcome::Known, 1),
        ("ada", "Wonder", CheckOutcome::Unknown, 1),
        ("ada", "", CheckOutcome::Unknown, 1),
        ("bob", "wonder", CheckOutcome::Unknown, 1),
        ("adaw", "onder", CheckOutcome::Unknown, 1),
    ] {
        let got = self::outcome(&authenticator, principal, secret).await;
        assert_eq!(got, outcome, "{principal}:{secret}");
        assert_eq!(remembered(&authenticator), known);
    }
}

#[tokio::test]
async fn removed_credentials_are_not_remembered() {
    let authenticator = Authenticator::new(
        people(&[("ada", "wonder", 1), ("eve", "apple", 3), ("kim", "key", 4)]),
        [9; 32],
    );
    let [ada, eve, kim] = [("ada", "wonder"), ("eve", "apple"), ("kim", "key")];
    let bob = ("bob", "secret");
    let known = async |people: [(&str, &str); 4]| {
        let mut known = Vec::new();
        for (principal, secret) in people {
            known.push(outcome(&authenticator, principal, secret).await == CheckOutcome::Known);
        }
        known
    };
    assert_eq!(known([ada, eve, kim, bob]).await, [true, true, true, false]);
    let before = lock(&authenticator.0.cache).credentials.clone();
    let fresh = people(&[("bob", "secret", 2), ("eve", "pear", 3), ("kim", "key", 4)]);
    authenticator.exchange(fresh);
    // A check that was in progress during the exchange.
    let ada_claim = claim("ada", "wonder");
    let late = Attempt {
        fingerprint: fingerprint(&authenticator.0.key, &ada_claim),
        principal: 0,
        claim: ada_claim,
        source: None,
    };
    authenticator.0.remember(&before, &late, true);
    assert_eq!(remembered(&authenticator), 1, "whose secret is the same");
    assert_eq!(
        known([ada, eve, kim, bob]).await,
        [false, false, true, true]
    );
}

/// Checks all claims at once, as they come over many connections.
async fn all(
    authenticator: &Authenticator,
    claims: Vec<Claim>,
    source: &Option<Source>,
) -> Vec<CheckOutcome> {
    let checks: Vec<_> = claims
        .into_iter()
        .map(|claim| {
            let (authenticator, source) = (authenticator.clone(), source.clone());
            tokio::spawn(async move { authenticator.check(&claim, source).await })
        })
        .collect();
    let mut results = Vec::new();
    for check in checks {
        results.push(check.await.unwrap());
    }
    results
}

/// Simulates a panic of the thread that checks the claim.
#[tokio::test]
async fn abandoned_claim_is_checked_again() {
    let authenticator = authenticator();
    let ada = claim("ada", "wonder");
    let fingerprint = fingerprint(&authenticator.0.key, &ada);
    let (sender, receiver) = watch::channel(None);
    lock(&authenticator.0.pending).insert(fingerprint, receiver);
    let pending_check = PendingCheck {
        inner: authenticator.0.clone(),
        fingerprint,
    };
    let waiting = tokio::spawn({
        let (authenticator, ada) = (authenticator.clone(), ada.clone());
        async move { authenticator.check(&ada, None).await }
    });
    tokio::task::yield_now().await;
    drop(sender);
    drop(pending_check);
    assert_eq!(waiting.await.unwrap(), CheckOutcome::Busy);
    assert_eq!(authenticator.check(&ada, None).await, CheckOutcome::Known);
}

// The clock stands still during hashing, however long it takes.
#[tokio::test(start_paused = true)]
async fn guesses_are_counted_before_hashing() {
    let authenticator = Authenticator::new(
        people(&[
            ("ada", "wonder", 1),
            ("bob", "builder", 2),
            ("eve", "apple", 3),
        ]),
        [9; 32],
    );
    let here = network("10.0.0.1");
    let ada = claim("ada", "wonder");
    let first = authenticator.check(&ada, here.clone()).await;
    assert_eq!(first, CheckOutcome::Known);
    let wrong_claims = (0..250).map(|number| claim("ada", &format!("guess-{number}")));
    let mut claims: Vec<_> = wrong_claims.collect();
    claims.push(claim("bob", "builder"));
    let mut results = all(&authenticator, claims, &here).await;
    let other = results.pop();
    assert_eq!(
        other,
        Some(CheckOutcome::Known),
        "another one's right secret"
    );
    let hashed = results.iter().filter(|one| **one == CheckOutcome::Unknown);
    assert!(hashed.count() <= 5, "at once");
    let limited = results.iter().filter(|one| **one == CheckOutcome::TooMany);
    assert!(limited.count() >= 245);
    for right in [&ada, &claim("bob", "builder"), &claim("eve", "apple")] {
        let outcome = authenticator.check(right, here.clone()).await;
        assert_eq!(outcome, CheckOutcome::Known);
    }
    // Guesses disturb neither a client with a certificate nor another address.
    let eve = claim("ada", "guess");
    let certified = Some(Source::Certificate("node1".to_owned()));
    let outcome = authenticator.check(&eve, certified).await;
    assert_eq!(outcome, CheckOutcome::Unknown);
}

/// Guesses from more sources than there are turns to wait for.
#[tokio::test]
async fn right_secret_overtakes_guesses_from_many() {
    for have_guessed in [false, true] {
        let authenticator = authenticator();
        let (told, mut outcomes) = tokio::sync::mpsc::channel(320);
        let mut guessing = Vec::new();
        for number in 0..320_u16 {
            let [high, low] = number.to_be_bytes();
            let source = network(&format!("10.1.{high}.{low}"));
            if let Some(source) = source.as_ref().filter(|_| have_guessed) {
                let mut attempt_limiter = lock(&authenticator.0.attempt_limiter);
                let now = Instant::now();
                assert_eq!(
                    attempt_limiter.take(source, 0, now),
                    AttemptDecision::Granted
                );
                attempt_limiter.settle(source, 0, false);
                attempt_limiter.note(source, 0, now);
            }
            let (authenticator, told) = (authenticator.clone(), told.clone());
            guessing.push(tokio::spawn(async move {
                let guess = claim("ada", &format!("{number}"));
                let _ = told.try_send(authenticator.check(&guess, source).await);
            }));
        }
        // All guesses have arrived, and some were rejected.
        for _ in 0..320 - WAITING_MAX - HASHES_AT_ONCE {
            outcomes.recv().await.unwrap();
        }
        let ada = claim("ada", "wonder");
        let outcome = authenticator.check(&ada, network("10.0.0.1")).await;
        assert_eq!(
            outcome,
            CheckOutcome::Known,
            "it was not sent away for theirs"
        );
        let mut hashed = 0;
        while let Ok(outcome) = outcomes.try_recv() {
            hashed += usize::from(outcome == CheckOutcome::Unknown);
        }
        assert!(hashed <= 8, "{hashed} of theirs were looked at before it");
        for guess in guessing {
            guess.abort();
        }
    }
}

#[tokio::test]
async fn claims_are_ranked_by_their_source() {
    let authenticator = authenticator();
    let attempt = |principal, address, fingerprint| Attempt {
        claim: claim("ada", "wonder"),
        fingerprint: [fingerprint; 32],
        principal,
        source: network(address),
    };
    let first = attempt(1, "10.0.0.1", 1);
    assert_eq!(first.take(&authenticator.0), AttemptDecision::Granted);
    assert_eq!(authenticator.0.rank_of(&first), 1);
    first.settle(&authenticator.0, true);
    authenticator.0.note_right(&first);
    // The source has shown the secret of the first principal before, but not of the second.
    for (principal, rank) in [(1, 0), (2, 1)] {
        let again = attempt(principal, "10.0.0.1", 2);
        again.take(&authenticator.0);
        assert_eq!(authenticator.0.rank_of(&again), rank);
    }
    for guess in 3..6 {
        let guess = attempt(1, "10.0.0.1", guess);
        guess.take(&authenticator.0);
        assert!(authenticator.0.rank_of(&guess) > 1);
    }
    let nobody = Attempt {
        source: None,
        ..attempt(1, "10.0.0.1", 9)
    };
    assert_eq!(authenticator.0.rank_of(&nobody), 0);
}

#[tokio::test(start_paused = true)]
async fn many_right_secrets_come_at_once() {
    let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
    let all_people: Vec<_> = names.iter().map(|name| (name.as_str(), "s", 1)).collect();
    let authenticator = Authenticator::new(people(&all_people), [9; 32]);
    let here = network("10.0.0.1");
    let once = names.iter().map(|name| claim(name, "s"));
    let claims: Vec<_> = once.clone().chain(once.clone()).chain(once).collect();
    let results = all(&authenticator, claims, &here).await;
    assert_eq!(results, [CheckOutcome::Known; 90]);
}

#[tokio::test]
async fn repeated_wrong_secret_costs_nothing() {
    let authenticator = authenticator();
    let here = network("10.0.0.1");
    let wrong = claim("ada", "old");
    for _ in 0..100 {
        let outcome = authenticator.check(&wrong, here.clone()).await;
        assert_eq!(outcome, CheckOutcome::Unknown);
    }
    let right = claim("ada", "wonder");
    assert_eq!(authenticator.check(&right, here).await, CheckOutcome::Known);
}

/// Compares the shortest of several tries, with more tries where other work on the machine has slowed all of them.
#[tokio::test]
async fn unknown_name_takes_equally_long() {
    const TRIES: u32 = 16;
    const TRIES_MAX: u32 = 20 * TRIES;
    let authenticator = authenticator();
    let mut least = [f64::MAX; 2];
    let ratio = |[wrong, unknown]: [f64; 2]| unknown / wrong;
    let is_same = |least| (0.7..1.4).contains(&ratio(least));
    for number in 0..TRIES_MAX {
        if number >= TRIES && is_same(least) {
            break;
        }
        for (who, least) in ["ada", "nobody"].into_iter().zip(&mut least) {
            let began = std::time::Instant::now();
            let got = outcome(&authenticator, who, &format!("guess-{number}")).await;
            assert_eq!(got, CheckOutcome::Unknown, "{who}");
            *least = least.min(began.elapsed().as_secs_f64());
        }
    }
    assert!(is_same(least), "{least:?}: {}", ratio(least));
}
