//! Reading and filling registries without a master.

use super::*;
use crate::registry::tools::ToolError;
use crate::registry::{Image, Inspected};

/// Reads through a member that answers.
async fn inspect(etcd: &FakeEtcd) -> Result<Inspected, ToolError> {
    inspect_as(etcd, None).await
}

async fn inspect_as(etcd: &FakeEtcd, cluster: Option<&str>) -> Result<Inspected, ToolError> {
    let client = etcd.client(CALL_TIMEOUT);
    crate::registry::etcd::copying::inspect(&client, &keys(), cluster).await
}

async fn fill(etcd: &FakeEtcd, image: &Image) -> Result<(), ToolError> {
    let ttl = 4 * CALL_TIMEOUT;
    let times = LeaseTimes { ttl };
    crate::registry::etcd::copying::fill(&etcd.client(CALL_TIMEOUT), &keys(), times, image.clone())
        .await
}

/// The records of a leader, one of them in chunks.
async fn written() -> (FakeEtcd, Recovered) {
    let etcd = FakeEtcd::start();
    let mut master = lead(&etcd, "1").await.unwrap();
    for mutation in [agent("a", ""), many_quotas(250), long_weights(2.0)] {
        master.write(mutation).await;
    }
    master.depose(&etcd).await;
    let second = lead(&etcd, "2").await.unwrap();
    let recovered = second.recovered.clone();
    second.depose(&etcd).await;
    (etcd, recovered)
}

#[tokio::test(start_paused = true)]
async fn exported_registry_imports_and_exports_again() {
    let (from, mut recovered) = written().await;
    let found = inspect(&from).await.unwrap();
    assert!(found.image.recovered().0 == recovered);
    assert_eq!(found.image.id.as_deref(), Some("id"));
    assert_eq!(found.image.cluster.as_deref(), Some("c"));
    assert!(found.damaged.is_empty() && found.leader.is_none() && found.unfinished.is_none());
    let json = found.image.to_json().to_string();
    let image = Image::parse(json.as_bytes()).unwrap();
    let to = FakeEtcd::start();
    fill(&to, &image).await.unwrap();
    assert!(inspect(&to).await.unwrap().image == found.image);
    assert_eq!(to.get(&keys().leader()), None, "nobody is kept waiting");
    let next = lead(&to, "3").await.unwrap();
    recovered.epoch += 1;
    assert!(next.recovered == recovered);
}

/// The registry of a job scheduler used to pass as a valid registry without agents.
#[tokio::test(start_paused = true)]
async fn foreign_records_are_not_a_registry() {
    let of_scheduler = |text: &str| (text.to_owned(), vec![1]);
    let image = Image {
        records: ["job/web", "task/web.1"].map(of_scheduler).into(),
        ..Image::default()
    };
    let etcd = FakeEtcd::start();
    fill(&etcd, &image).await.unwrap();
    let damage = inspect(&etcd).await.unwrap().damage.unwrap().to_string();
    assert!(damage.contains("none of the 2 records"), "{damage}");
    let (etcd, _) = written().await;
    assert!(inspect(&etcd).await.unwrap().damage.is_none());
}

/// Every backup used to fail while the first of several members was unreachable.
#[tokio::test(start_paused = true)]
async fn silent_member_does_not_prevent_reading() {
    let (etcd, _) = written().await;
    etcd.inject(Call::Txn, Fault::LostBefore, 0, 1);
    inspect(&etcd).await.unwrap();
    // Once for each member, and once more.
    etcd.inject(Call::Txn, Fault::LostBefore, 0, 2);
    inspect(&etcd).await.unwrap_err();
}

/// Every import used to fail as long as the first of several members was unreachable.
#[tokio::test(start_paused = true)]
async fn silent_member_does_not_prevent_filling() {
    let (from, _) = written().await;
    let image = inspect(&from).await.unwrap().image;
    let to = FakeEtcd::start();
    to.inject(Call::Range, Fault::LostBefore, 0, 1);
    fill(&to, &image).await.unwrap();
    assert_eq!(inspect(&to).await.unwrap().image, image);
    let silent = FakeEtcd::start();
    silent.inject(Call::Range, Fault::LostBefore, 0, 2);
    fill(&silent, &image).await.unwrap_err();
    assert_eq!(silent.all("/m").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn registry_of_other_cluster_is_unsound() {
    let (etcd, _) = written().await;
    for (given, is_sound) in [
        (None, true),
        (Some("c"), true),
        (Some("paris"), false),
        (Some(""), false),
    ] {
        let found = inspect_as(&etcd, given).await.unwrap();
        assert_eq!(found.damage.is_none(), is_sound, "{given:?}");
        assert_eq!(found.image.cluster.as_deref(), Some("c"));
    }
}

#[tokio::test(start_paused = true)]
async fn fills_only_absent_registry_without_leader() {
    let (from, _) = written().await;
    let image = inspect(&from).await.unwrap().image;
    let before = from.all("/m");
    let error = fill(&from, &image).await.unwrap_err();
    assert!(matches!(error, ToolError::NotEmpty { .. }), "{error}");
    assert_eq!(from.all("/m"), before);
    let error = inspect(&FakeEtcd::start()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, ToolError::Absent { .. }), "{error}");
    // A leading master on an otherwise empty etcd.
    let led = FakeEtcd::start();
    led.put(
        &keys().leader(),
        r#"{"id":"1","hostname":"h","address":"h:5050","version":"1"}"#,
    );
    let before = led.all("/m");
    let error = fill(&led, &image).await.unwrap_err().to_string();
    assert!(error.contains("the master h (h:5050) leads"), "{error}");
    assert_eq!(led.all("/m"), before);
    // A registry of a newer format is neither read nor replaced.
    let newer = FakeEtcd::start();
    let meta = store::Meta {
        format: 99,
        ..store::Meta::default()
    };
    newer.put(&keys().meta(), prost::Message::encode_to_vec(&meta));
    for error in [
        inspect(&newer).await.map(|_| ()).unwrap_err(),
        fill(&newer, &image).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("format 99"), "{error}");
    }
    assert_eq!(newer.all("/m").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn interrupted_filling_is_atomic() {
    let (from, mut recovered) = written().await;
    let image = inspect(&from).await.unwrap().image;
    recovered.epoch += 1;
    let mut skip = 0;
    let mut wholes = 0;
    loop {
        let etcd = FakeEtcd::start();
        etcd.inject(Call::Txn, Fault::LostBefore, skip, usize::MAX);
        let filled = fill(&etcd, &image).await;
        etcd.heal();
        etcd.expire_leases();
        if filled.is_ok() {
            break;
        }
        match inspect(&etcd).await {
            Ok(found) => {
                wholes += 1;
                assert!(found.image == image, "stopped after {skip}");
            }
            Err(error) => {
                assert!(matches!(error, ToolError::Absent { .. }), "{error}");
                fill(&etcd, &image).await.unwrap();
            }
        }
        let next = lead(&etcd, "3").await.unwrap();
        assert!(next.recovered == recovered, "stopped after {skip}");
        skip += 1;
    }
    assert!(skip >= 10 && wholes >= 4, "{wholes} of {skip}");
}

#[tokio::test(start_paused = true)]
async fn damaged_and_unfinished_records_are_told() {
    let etcd = FakeEtcd::start();
    let mut master = lead(&etcd, "1").await.unwrap();
    master.write(agent("a", "")).await;
    etcd.inject(Call::Txn, Fault::LostBefore, 3, usize::MAX);
    master.persist(many_quotas(250));
    tokio::time::sleep(SECOND).await;
    master.depose(&etcd).await;
    etcd.put(&keys().record("agent/b"), vec![0xff; 4]);
    let found = inspect(&etcd).await.unwrap();
    assert_eq!(found.damaged.len(), 1);
    assert_eq!(found.damaged[0].key, "agent/b");
    let unfinished = found.unfinished.unwrap();
    assert!(
        unfinished.contains("the next leader finishes"),
        "{unfinished}"
    );
    assert_eq!(found.image.recovered().0.quotas.len(), 250);
}
