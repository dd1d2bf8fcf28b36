//! Elections on an etcd in memory, by the runtime's clock, which stands still while nothing waits for it.

use crate::testing::{Call, FakeEtcd, Fault};
use tokio::time::Instant;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(8);
const KEY: &str = "/m/leader";

/// A candidate whose calls wait for a quarter of the lease.
fn candidate(etcd: &FakeEtcd, id: &str) -> Candidate {
    Candidate {
        client: etcd.client(TTL / 4),
        key: KEY.to_owned(),
        me: Leader {
            id: id.to_owned(),
            address: format!("{id}:5050"),
            ..Leader::default()
        },
        times: LeaseTimes { ttl: TTL },
        clock: BootTime::of_runtime,
    }
}

fn fence() -> Fence {
    Fence::closed_by(BootTime::of_runtime)
}

/// Holds the leadership beside the test, with a fence that is open during that time.
fn held(leader: &Candidate, elected: &Elected) -> (Fence, tokio::task::JoinHandle<Lost>) {
    let fence = fence();
    let holding = tokio::spawn({
        let (leader, elected, fence) = (leader.clone(), elected.clone(), fence.clone());
        async move { leader.hold(&elected, &fence).await }
    });
    (fence, holding)
}

fn following() -> watch::Sender<Role> {
    watch::Sender::new(Role::Following(None))
}

/// Whether the key exists and belongs to this leader.
fn leads(etcd: &FakeEtcd, elected: &Elected) -> bool {
    etcd.get(KEY)
        .is_some_and(|found| found.create_revision == elected.created)
}

#[tokio::test(start_paused = true)]
async fn second_candidate_follows_until_leader_resigns() {
    let etcd = FakeEtcd::start();
    let (first, second) = (candidate(&etcd, "1"), candidate(&etcd, "2"));
    let elected = first.campaign(&following()).await;
    assert!(leads(&etcd, &elected));
    let role = following();
    let mut told = role.subscribe();
    let other = tokio::spawn(async move { second.campaign(&role).await });
    let followed = told.wait_for(|role| matches!(role, Role::Following(Some(_))));
    let Role::Following(leader) = followed.await.unwrap().clone() else {
        panic!("it does not follow")
    };
    assert_eq!(leader.unwrap().id, "1");
    assert!(!other.is_finished());
    let begun = Instant::now();
    let fence = fence();
    fence.extend(elected.safe_until);
    first.resign(&elected, &fence).await;
    assert!(!fence.is_open());
    let next = other.await.unwrap();
    assert!(leads(&etcd, &next) && next.created > elected.created);
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
}

/// Both candidates have read the key, and found no leader.
#[tokio::test(start_paused = true)]
async fn simultaneous_campaigns_elect_only_one() {
    let etcd = FakeEtcd::start();
    let (first, second) = (candidate(&etcd, "1"), candidate(&etcd, "2"));
    let won = first.try_to_win(&mut None).await.expect("answered");
    let late = second.try_to_win(&mut None).await.expect("answered");
    assert!(late.is_none());
    assert!(leads(&etcd, &won.expect("the key was free")));
}

#[tokio::test(start_paused = true)]
async fn unanswered_campaign_wins_or_is_retried() {
    for fault in [Fault::LostAfter, Fault::LostBefore] {
        let etcd = FakeEtcd::start();
        etcd.inject(Call::Txn, fault, 0, 1);
        let elected = candidate(&etcd, "1").campaign(&following()).await;
        let found = etcd.get(KEY).unwrap();
        assert_eq!(found.create_revision, elected.created, "{fault:?}");
        assert_eq!((found.lease, found.version), (elected.lease, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn leader_is_fenced_before_lease_ends() {
    let etcd = FakeEtcd::start();
    let first = candidate(&etcd, "1");
    let elected = first.campaign(&following()).await;
    let begun = Instant::now();
    etcd.inject(Call::KeepAlive, Fault::LostBefore, 0, usize::MAX);
    let (fence, holding) = held(&first, &elected);
    fence.opened().await;
    fence.ended().await;
    let open_for = begun.elapsed();
    assert!(open_for <= TTL * 4 / 5 + SECOND / 100, "{open_for:?}");
    assert!(leads(&etcd, &elected), "etcd waits for longer");
    let lost = holding.await.unwrap();
    assert_eq!(lost, Lost::Replaced);
    assert!(!leads(&etcd, &elected) && !fence.is_open());
}

/// etcd counts from its renewal of the lease, which may be long before the answer arrives.
#[tokio::test(start_paused = true)]
async fn renewal_counts_from_its_sending_time() {
    let etcd = FakeEtcd::start();
    let first = candidate(&etcd, "1");
    let elected = first.campaign(&following()).await;
    let late = TTL / 4 - SECOND / 10;
    etcd.inject(Call::KeepAlive, Fault::AnsweredAfter(late), 0, 1);
    etcd.inject(Call::KeepAlive, Fault::LostBefore, 0, usize::MAX);
    let begun = Instant::now();
    let (fence, holding) = held(&first, &elected);
    fence.opened().await;
    fence.ended().await;
    let open_for = begun.elapsed();
    assert!(open_for <= TTL * 4 / 5 + SECOND / 100, "{open_for:?}");
    assert!(leads(&etcd, &elected), "etcd waits for longer");
    assert_eq!(holding.await.unwrap(), Lost::Replaced);
}

/// All requests of the leader arrive, and no answer does: others must not wait for such a leader.
#[tokio::test(start_paused = true)]
async fn leader_without_answers_keeps_no_lease() {
    let etcd = FakeEtcd::start();
    let first = candidate(&etcd, "1");
    let elected = first.campaign(&following()).await;
    for call in [Call::KeepAlive, Call::Range] {
        etcd.inject(call, Fault::LostAfter, 0, usize::MAX);
    }
    let fence = fence();
    let holding = first.hold(&elected, &fence);
    let lost = tokio::time::timeout(2 * TTL, holding).await;
    assert_eq!(lost, Ok(Lost::Replaced));
    assert!(!leads(&etcd, &elected));
}

#[tokio::test(start_paused = true)]
async fn leader_with_answered_renewals_keeps_leading() {
    let etcd = FakeEtcd::start();
    let first = candidate(&etcd, "1");
    let elected = first.campaign(&following()).await;
    let (fence, holding) = held(&first, &elected);
    fence.opened().await;
    let ended = tokio::time::timeout(10 * TTL, fence.ended()).await;
    assert!(ended.is_err() && leads(&etcd, &elected));
    assert!(!holding.is_finished());
    // A leader whose next answer comes just before the lease ends was fenced for a while, and continues.
    etcd.inject(Call::KeepAlive, Fault::LostBefore, 0, 2);
    tokio::time::timeout(TTL, fence.ended()).await.unwrap();
    tokio::time::timeout(TTL, fence.opened()).await.unwrap();
    assert!(leads(&etcd, &elected) && !holding.is_finished());
}

#[tokio::test(start_paused = true)]
async fn leader_learns_of_lost_key_immediately() {
    type Loss = fn(&FakeEtcd);
    let losses: [Loss; 3] = [
        |etcd| etcd.delete_prefix(KEY),
        |etcd| {
            etcd.put(KEY, "of another program");
        },
        FakeEtcd::expire_leases,
    ];
    for (index, lose) in losses.into_iter().enumerate() {
        let etcd = FakeEtcd::start();
        let first = candidate(&etcd, "1");
        let elected = first.campaign(&following()).await;
        let (fence, holding) = held(&first, &elected);
        tokio::time::sleep(SECOND).await;
        assert!(fence.is_open());
        let begun = Instant::now();
        lose(&etcd);
        // A value that another program wrote does not change the owner of the key.
        if index == 1 {
            assert!(tokio::time::timeout(TTL, holding).await.is_err());
            assert!(fence.is_open());
            continue;
        }
        let lost = tokio::time::timeout(2 * TTL, holding).await;
        assert_eq!(lost.expect("it is told").unwrap(), Lost::Replaced);
        assert!(!fence.is_open());
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    }
}
