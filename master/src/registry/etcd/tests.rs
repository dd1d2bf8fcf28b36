//! A leader's registry on a simulated etcd, with lost answers, deposed leaders and interrupted changes, by the
//! runtime's clock.

mod copying;

use std::time::Duration;

use meseta_allocator::Quota;
use meseta_etcd::leadership::election::{Candidate, LeaseTimes};
use meseta_etcd::leadership::fence::BootTime;
use meseta_etcd::leadership::{Leader, Role};
use meseta_etcd::testing::{Call, FakeEtcd, Fault};
use meseta_resources::{ResourceName, Role as ResourceRole, Scalar};

use super::*;
use crate::core::AgentRecord;

const SECOND: Duration = Duration::from_secs(1);

/// The timeout of calls; below, the life of a lease, which tests end themselves.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(3_600);

fn keys() -> Keys {
    Keys::new("/m")
}

/// A current or former leader.
struct Master {
    fence: Fence,
    registry: Etcd,
    recovered: Recovered,
    writing: watch::Receiver<Writing>,
    persisted: watch::Receiver<Lsn>,
    next: u64,
}

/// Wins the election once nobody leads, and takes over the registry.
async fn lead(etcd: &FakeEtcd, id: &str) -> Result<Master, StoreError> {
    let candidate = Candidate {
        client: etcd.client(CALL_TIMEOUT),
        key: keys().leader(),
        me: Leader {
            id: id.to_owned(),
            ..Leader::default()
        },
        times: LeaseTimes { ttl: LEASE },
        clock: BootTime::of_runtime,
    };
    let role = watch::Sender::new(Role::Following(None));
    let elected = candidate.campaign(&role).await;
    let fence = Fence::closed_by(BootTime::of_runtime);
    // The test ends the lease itself.
    fence.extend(BootTime::of_runtime().after(LEASE));
    let cluster = Cluster {
        name: "c".to_owned(),
        new_id: "id".to_owned(),
    };
    let (told, persisted) = watch::channel(Lsn::default());
    let on_persisted = Box::new(move |lsn| {
        told.send_replace(lsn);
    });
    let client = &candidate.client;
    let keys = keys();
    let opened = open(client, &keys, &cluster, &elected, &fence, on_persisted);
    let (recovered, registry, writing) = opened.await?;
    Ok(Master {
        fence,
        registry,
        recovered,
        writing,
        persisted,
        next: 0,
    })
}

impl Master {
    fn persist(&mut self, mutation: Mutation) -> Lsn {
        self.next += 1;
        self.registry.persist(Lsn(self.next), mutation);
        Lsn(self.next)
    }

    async fn until_durable(&mut self, lsn: Lsn) {
        let durable = self.persisted.wait_for(|durable| *durable >= lsn);
        let durable = tokio::time::timeout(60 * SECOND, durable).await;
        durable.expect("it becomes durable").expect("a writer");
    }

    async fn write(&mut self, mutation: Mutation) {
        let lsn = self.persist(mutation);
        self.until_durable(lsn).await;
    }

    async fn until_writing(&mut self, is: impl Fn(&Writing) -> bool) -> Writing {
        let found = self.writing.wait_for(|writing| is(writing));
        let found = tokio::time::timeout(60 * SECOND, found).await;
        let found = found.expect("writing changes").expect("a writer");
        found.clone()
    }

    /// Ends the leader's lease and its writes.
    async fn depose(self, etcd: &FakeEtcd) -> Lsn {
        self.fence.close();
        tokio::time::sleep(10 * SECOND).await;
        etcd.heal();
        etcd.expire_leases();
        *self.persisted.borrow()
    }
}

fn agent(id: &str, info: &'static str) -> Mutation {
    Mutation::PutAgent(AgentRecord {
        agent_id: id.to_owned(),
        info: info.as_bytes().into(),
    })
}

/// The info of an agent's record among those that a starting master reads.
fn info_of<'a>(recovered: &'a Recovered, id: &str) -> Option<&'a [u8]> {
    let found = recovered.agents.iter().find(|agent| agent.agent_id == id);
    found.map(|agent| &*agent.info)
}

/// A change of more roles than a transaction has operations.
fn many_quotas(count: usize) -> Mutation {
    let quota = |number| {
        let role = ResourceRole::new(&format!("role-{number}")).unwrap();
        let limit = (
            ResourceName::new("cpus").unwrap(),
            Scalar::from_millis(1_000),
        );
        let quota = Quota {
            limits: [limit].into_iter().collect(),
            ..Quota::default()
        };
        (role, quota)
    };
    Mutation::UpdateQuota((0..count).map(quota).collect())
}

fn long_weights(weight: f64) -> Mutation {
    let role = |number| (format!("{number:0>1000}"), weight);
    Mutation::PutWeights((0..600).map(role).collect())
}

fn sequence(etcd: &FakeEtcd) -> u64 {
    let found = etcd.get(&keys().sequence()).unwrap();
    String::from_utf8_lossy(&found.value).parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn next_leader_reads_durable_records() {
    let etcd = FakeEtcd::start();
    let mut first = lead(&etcd, "1").await.unwrap();
    assert_eq!(first.recovered.epoch, 1);
    first.write(agent("a", "one")).await;
    first.write(agent("b", "two")).await;
    let agent_id = "a".to_owned();
    first.write(Mutation::RemoveAgent { agent_id }).await;
    first.depose(&etcd).await;
    let second = lead(&etcd, "2").await.unwrap();
    assert_eq!(second.recovered.epoch, 2);
    assert_eq!(info_of(&second.recovered, "b"), Some(&b"two"[..]));
    assert_eq!(second.recovered.agents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn closed_fence_stops_writes() {
    let etcd = FakeEtcd::start();
    let mut master = lead(&etcd, "1").await.unwrap();
    master.fence.close();
    let before = etcd.transactions().len();
    let lsn = master.persist(agent("a", "one"));
    tokio::time::sleep(SECOND).await;
    assert_eq!(
        etcd.transactions().len(),
        before,
        "a transaction was sent behind a closed fence"
    );
    let stalled = master.until_writing(|writing| *writing != Writing::Works);
    let Writing::Stalled(reason) = stalled.await else {
        panic!("it has ended")
    };
    assert!(reason.contains("its lease is not renewed"), "{reason}");
    master.fence.extend(BootTime::of_runtime().after(LEASE));
    master.until_durable(lsn).await;
    master
        .until_writing(|writing| *writing == Writing::Works)
        .await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_transaction_takes_effect_once() {
    for fault in [Fault::LostAfter, Fault::LostBefore] {
        let etcd = FakeEtcd::start();
        let mut master = lead(&etcd, "1").await.unwrap();
        let before = sequence(&etcd);
        etcd.inject(Call::Txn, fault, 0, 3);
        master.write(agent("a", "one")).await;
        let record = etcd.get(&keys().record("agent/a")).unwrap();
        assert_eq!(record.version, 1, "{fault:?}: it was written again");
        assert_eq!(sequence(&etcd), before + 1);
        master.write(agent("a", "two")).await;
        let record = etcd.get(&keys().record("agent/a")).unwrap();
        assert_eq!((record.version, sequence(&etcd)), (2, before + 2));
    }
}

#[tokio::test(start_paused = true)]
async fn late_duplicate_transaction_has_no_effect() {
    let etcd = FakeEtcd::start();
    let mut master = lead(&etcd, "1").await.unwrap();
    etcd.inject(Call::Txn, Fault::Late, 0, 1);
    master.write(agent("a", "one")).await;
    master.write(agent("a", "two")).await;
    let before = etcd.all("/m");
    etcd.release().await;
    assert_eq!(etcd.all("/m"), before, "the late transaction was done");
}

#[tokio::test(start_paused = true)]
async fn deposed_leaders_transaction_has_no_effect() {
    let etcd = FakeEtcd::start();
    let mut first = lead(&etcd, "1").await.unwrap();
    first.write(agent("a", "one")).await;
    etcd.inject(Call::Txn, Fault::Late, 0, 1);
    first.persist(agent("a", "of the deposed"));
    tokio::time::sleep(SECOND).await;
    let durable = first.depose(&etcd).await;
    assert_eq!(durable, Lsn(1));
    // The new leader has written nothing yet, so the number of the last transaction is still the deposed leader's.
    let mut second = lead(&etcd, "2").await.unwrap();
    assert_eq!(info_of(&second.recovered, "a"), Some(&b"one"[..]));
    let before = etcd.all("/m");
    etcd.release().await;
    assert_eq!(etcd.all("/m"), before, "the late transaction was done");
    second.write(agent("b", "two")).await;
}

#[tokio::test(start_paused = true)]
async fn writer_ends_after_foreign_change() {
    type Change = fn(&FakeEtcd);
    let changes: [(Change, &str); 3] = [
        (
            |etcd| etcd.delete_prefix(&keys().leader()),
            "another daemon leads now",
        ),
        (FakeEtcd::expire_leases, "another daemon leads now"),
        (
            |etcd| {
                etcd.put(&keys().sequence(), "77");
            },
            "other program that writes there",
        ),
    ];
    for (change, expected) in changes {
        let etcd = FakeEtcd::start();
        let mut master = lead(&etcd, "1").await.unwrap();
        master.write(agent("a", "one")).await;
        change(&etcd);
        let before = etcd.all("/m");
        master.persist(agent("a", "two"));
        let ended = master.until_writing(|writing| *writing != Writing::Works);
        let Writing::Ended(reason) = ended.await else {
            panic!("it goes on")
        };
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(etcd.all("/m"), before);
        assert_eq!(*master.persisted.borrow(), Lsn(1));
    }
}

#[tokio::test(start_paused = true)]
async fn full_etcd_is_reported_and_retried() {
    let etcd = FakeEtcd::start();
    let mut master = lead(&etcd, "1").await.unwrap();
    etcd.inject(Call::Txn, Fault::OutOfSpace, 0, 20);
    let lsn = master.persist(agent("a", "one"));
    let begun = tokio::time::Instant::now();
    let stalled = master.until_writing(|writing| *writing != Writing::Works);
    let Writing::Stalled(reason) = stalled.await else {
        panic!("it has ended")
    };
    assert!(reason.contains("out of space"), "{reason}");
    assert!(begun.elapsed() < SECOND);
    assert_eq!(*master.persisted.borrow(), Lsn(0));
    master.until_durable(lsn).await;
    assert_eq!(*master.writing.borrow(), Writing::Works);
}

/// Lets a leader write, stops it after `skip` transactions, and lets another continue. Returns the state that the
/// next leader reads, the last durable number, and whether all mutations were durable.
async fn interrupted(
    mutations: &[Mutation],
    skip: usize,
    is_last_done: bool,
) -> (Recovered, Lsn, bool) {
    let etcd = FakeEtcd::start();
    let mut first = lead(&etcd, "1").await.unwrap();
    if is_last_done {
        etcd.inject(Call::Txn, Fault::LostAfter, skip, 1);
        etcd.inject(Call::Txn, Fault::LostBefore, 0, usize::MAX);
    } else {
        etcd.inject(Call::Txn, Fault::LostBefore, skip, usize::MAX);
    }
    let begun = etcd.transactions().len();
    for mutation in mutations {
        first.persist(mutation.clone());
    }
    // A call ends after two seconds.
    tokio::time::sleep(SECOND).await;
    let sent = etcd.transactions().len() - begun;
    let durable = first.depose(&etcd).await;
    let mut second = lead(&etcd, "2").await.unwrap();
    let recovered = second.recovered.clone();
    // The new leader completes the staged change before its own writes.
    second.write(agent("last", "two")).await;
    let keys = keys();
    assert_eq!(etcd.get(&keys.pointer()), None, "after {skip}");
    assert_eq!(etcd.all(&keys.all_staged()).len(), 0, "after {skip}");
    second.depose(&etcd).await;
    let third = lead(&etcd, "3").await.unwrap();
    let mut found = third.recovered;
    assert_eq!(info_of(&found, "last"), Some(&b"two"[..]));
    found.agents.retain(|agent| agent.agent_id != "last");
    found.epoch = recovered.epoch;
    assert!(
        found == recovered,
        "stopped after {skip} transactions: two leaders read different records"
    );
    (recovered, durable, sent <= skip)
}

#[tokio::test(start_paused = true)]
async fn interrupted_staged_change_is_atomic() {
    let mutations = [
        agent("a", "one"),
        many_quotas(250),
        long_weights(2.0),
        agent("b", "two"),
        long_weights(3.0),
    ];
    for is_last_done in [false, true] {
        let mut skip = 0;
        loop {
            let (recovered, durable, is_all) = interrupted(&mutations, skip, is_last_done).await;
            let expected = |lsn: u64, is_there: bool| {
                assert!(
                    is_there || durable < Lsn(lsn),
                    "stopped after {skip} transactions: mutation {lsn} was told to be durable, and is lost"
                );
            };
            let quotas = recovered.quotas.len();
            assert!(
                quotas == 0 || quotas == 250,
                "stopped after {skip} transactions: {quotas} of 250 quotas"
            );
            let weights = recovered.weights.as_deref().unwrap_or_default();
            assert!(
                weights.is_empty()
                    || weights.len() == 600
                        && weights.iter().all(|(_, weight)| *weight == weights[0].1),
                "stopped after {skip} transactions: weights of two changes"
            );
            let weight = weights.first().map_or(0.0, |(_, weight)| *weight);
            expected(1, info_of(&recovered, "a").is_some());
            expected(2, quotas == 250);
            expected(3, weight >= 2.0);
            expected(4, info_of(&recovered, "b").is_some());
            expected(5, weight >= 3.0);
            if is_all {
                assert_eq!(durable, Lsn(5));
                break;
            }
            skip += 1;
        }
        assert!(skip > 15, "only {skip} transactions");
    }
}

#[tokio::test(start_paused = true)]
async fn compaction_during_read_restarts_reading() {
    let etcd = FakeEtcd::start();
    let mut first = lead(&etcd, "1").await.unwrap();
    for number in 0..1_200 {
        first.persist(agent(&format!("a{number}"), "one"));
    }
    first.until_durable(Lsn(1_200)).await;
    first.depose(&etcd).await;
    // A compaction in the middle of the pages, more than once.
    for skip in [0, 2, 3, 5] {
        etcd.inject(Call::Range, Fault::Compacted, skip, 2);
        let next = lead(&etcd, &format!("after {skip}")).await.unwrap();
        assert_eq!(next.recovered.agents.len(), 1_200, "{skip}");
        next.depose(&etcd).await;
    }
    // If etcd always compacts the revision before a page is read, reading fails.
    etcd.inject(Call::Range, Fault::Compacted, 2, usize::MAX);
    let error = lead(&etcd, "never").await.map(|_| ()).unwrap_err();
    let is_compacted = matches!(error, StoreError::Etcd(meseta_etcd::Error::Compacted));
    assert!(is_compacted, "{error}");
}

#[tokio::test(start_paused = true)]
async fn foreign_or_newer_registry_is_unchanged() {
    use prost::Message as _;

    let meta = |format, name: &str| store::Meta {
        format,
        epoch: 7,
        id: "id".to_owned(),
        name: name.to_owned(),
        leader: "former".to_owned(),
    };
    for (meta, expected) in [
        (meta(99, "c"), "has format 99"),
        (meta(1, "other"), "belongs to the cluster \"other\""),
    ] {
        let etcd = FakeEtcd::start();
        etcd.put(&keys().meta(), meta.encode_to_vec());
        etcd.put(&keys().record("agent/a"), "what nobody here can read");
        let before = etcd.all("/m/records/");
        let error = lead(&etcd, "1").await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(etcd.all("/m/records/"), before);
        let found = etcd.get(&keys().meta()).unwrap();
        assert_eq!((found.version, &*found.value), (1, &*meta.encode_to_vec()));
    }
}
