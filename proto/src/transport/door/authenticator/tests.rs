//! Who is known, who guesses, and who waits for whom.

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
async fn all(door: &Authenticator, claims: Vec<Claim>, source: &Option<Source>) -> Vec<Verdict> {
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

/// Claims from as many sources as there are turns to wait for, and more.
#[tokio::test]
async fn a_right_secret_does_not_wait_for_guesses_from_many_sources() {
    for have_guessed in [false, true] {
        let door = authenticator();
        let (told, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
        let mut guessing = Vec::new();
        for number in 0..320_u16 {
            let [high, low] = number.to_be_bytes();
            let source = network(&format!("10.1.{high}.{low}"));
            if let Some(source) = source.as_ref().filter(|_| have_guessed) {
                let mut guesses = lock(&door.0.guesses);
                let now = Instant::now();
                assert_eq!(guesses.take(source, 0, now), Leave::Granted);
                guesses.settle(source, 0, false);
                guesses.note(source, 0, now);
            }
            let (door, told) = (door.clone(), told.clone());
            guessing.push(tokio::spawn(async move {
                let guess = claim("ada", &format!("{number}"));
                let _ = told.send(door.check(&guess, source).await);
            }));
        }
        // All have come, and some were sent away.
        for _ in 0..320 - WAITING_MAX - HASHES_AT_ONCE {
            outcomes.recv().await.unwrap();
        }
        let ada = claim("ada", "wonder");
        let verdict = door.check(&ada, network("10.0.0.1")).await;
        assert_eq!(verdict, Verdict::Known, "it was not sent away for theirs");
        let mut hashed = 0;
        while let Ok(outcome) = outcomes.try_recv() {
            hashed += usize::from(outcome == Verdict::Unknown);
        }
        assert!(hashed <= 8, "{hashed} of theirs were looked at before it");
        for guess in guessing {
            guess.abort();
        }
    }
}

#[tokio::test]
async fn the_order_of_claims_is_that_of_what_is_known_of_their_sources() {
    let door = authenticator();
    let attempt = |principal, address, fingerprint| Attempt {
        claim: claim("ada", "wonder"),
        fingerprint: [fingerprint; 32],
        principal,
        source: network(address),
    };
    let first = attempt(1, "10.0.0.1", 1);
    assert_eq!(first.take(&door.0), Leave::Granted);
    assert_eq!(door.0.rank_of(&first), 1);
    first.settle(&door.0, true);
    door.0.note_right(&first);
    // Whose secret was shown from there before, and another's.
    for (principal, rank) in [(1, 0), (2, 1)] {
        let again = attempt(principal, "10.0.0.1", 2);
        again.take(&door.0);
        assert_eq!(door.0.rank_of(&again), rank);
    }
    for guess in 3..6 {
        let guess = attempt(1, "10.0.0.1", guess);
        guess.take(&door.0);
        assert!(door.0.rank_of(&guess) > 1);
    }
    let nobody = Attempt {
        source: None,
        ..attempt(1, "10.0.0.1", 9)
    };
    assert_eq!(door.0.rank_of(&nobody), 0);
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
