//! The records in etcd, below a prefix of their own, which only the leading scheduler writes.
//!
//! Entered through [`open`], once elected. A write of any size becomes durable as a whole: [`meseta_etcd::store`] divides
//! it into transactions and compares each with the leadership.

use meseta_etcd::Client;
use meseta_etcd::leadership::Fence;
use meseta_etcd::leadership::election::Elected;
use meseta_etcd::store::{self, Cluster, Keys, Layout, Opened, Queue, StoreError, Writing};
use tokio::sync::watch;

use super::{Records, Store, Writer};
use crate::core::{self, Record};

const LAYOUT: Layout = Layout {
    format: 1,
    raised_epoch: None,
};

/// The key prefix that separates the records of schedulers from those of masters.
const CLUSTER: &str = "meseta-scheduler";

/// Returns the keys of schedulers beside those of the masters with this prefix: deleting the one prefix does not delete the
/// other.
pub(crate) fn keys(prefix: &str) -> Keys {
    Keys::new(&format!("{}-scheduler", prefix.trim_end_matches('/')))
}

/// The queue of the writer.
#[derive(Debug)]
pub(crate) struct Etcd {
    queue: Queue<Vec<Record>>,
    durable: watch::Receiver<u64>,
}

/// Takes over the records of the previous leader; the receiver shows the progress of writes.
///
/// # Errors
///
/// When the records cannot be read, or another scheduler leads by now.
pub(crate) async fn open(
    client: &Client,
    keys: &Keys,
    elected: &Elected,
    fence: &Fence,
) -> Result<(Records, Store, watch::Receiver<Writing>), StoreError> {
    let (told, durable) = watch::channel(0);
    let on_durable = Box::new(move |number| {
        told.send_replace(number);
    });
    let cluster = Cluster {
        name: CLUSTER.to_owned(),
        new_id: uuid::Uuid::new_v4().to_string(),
    };
    let by = (elected, fence);
    let opening = store::open(
        client,
        keys,
        &LAYOUT,
        &cluster,
        by,
        |records: &Vec<Record>| writes(records),
        on_durable,
    );
    let Opened {
        values,
        queue,
        writing,
        ..
    } = opening.await?;
    let store = Store::new(Writer::Etcd(Etcd { queue, durable }));
    Ok((values.into_iter().collect(), store, writing))
}

/// The id of the cluster that the jobs are of, as far as a leader has written it and etcd answers.
pub(crate) async fn cluster_of(client: &Client, keys: &Keys) -> Option<String> {
    let found = store::read_record(client, keys, core::META_KEY).await;
    core::cluster_in(&found.ok()??)
}

fn writes(records: &[Record]) -> Vec<store::Write> {
    let write = |record: &Record| store::Write {
        key: record.key.clone(),
        value: record.value.clone(),
    };
    records.iter().map(write).collect()
}

impl Etcd {
    pub(super) fn write(&self, id: u64, records: Vec<Record>) {
        self.queue.send(id, records);
    }

    pub(super) fn durable(&self) -> watch::Receiver<u64> {
        self.durable.clone()
    }

    pub(super) async fn close(self) {
        self.queue.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meseta_etcd::leadership::election::{Candidate, LeaseTimes};
    use meseta_etcd::leadership::fence::BootTime;
    use meseta_etcd::leadership::{Leader, Role};
    use meseta_etcd::testing::FakeEtcd;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Leading {
        store: Store,
        records: Records,
        writing: watch::Receiver<Writing>,
    }

    async fn lead(etcd: &FakeEtcd, id: &str) -> Leading {
        let keys = keys("/m/");
        let candidate = Candidate {
            client: etcd.client(2 * SECOND),
            key: keys.leader(),
            me: Leader {
                id: id.to_owned(),
                ..Leader::default()
            },
            times: LeaseTimes {
                ttl: 3_600 * SECOND,
            },
            clock: BootTime::of_runtime,
        };
        let role = watch::Sender::new(Role::Following(None));
        let elected = candidate.campaign(&role).await;
        let fence = Fence::closed_by(BootTime::of_runtime);
        fence.extend(BootTime::of_runtime().after(3_600 * SECOND));
        let opened = open(&candidate.client, &keys, &elected, &fence).await;
        let (records, store, writing) = opened.expect("it opens");
        Leading {
            store,
            records,
            writing,
        }
    }

    fn put(key: impl Into<String>, value: &str) -> Record {
        Record {
            key: key.into(),
            value: Some(value.as_bytes().to_vec()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn next_leader_sees_records_and_fences() {
        let etcd = FakeEtcd::start();
        let mut first = lead(&etcd, "1").await;
        assert_eq!(first.records, []);
        // More records than a transaction allows, and a value longer than etcd accepts.
        let many = (0..250).map(|index| put(format!("task/{index:03}"), "here"));
        first.store.write(1, many.collect());
        let long = "x".repeat(2 << 20);
        first.store.write(2, vec![put("job/web", &long)]);
        let deleted = Record {
            key: "task/007".to_owned(),
            value: None,
        };
        first.store.write(3, vec![deleted]);
        let mut durable = first.store.durable();
        durable.wait_for(|last| *last == 3).await.expect("durable");

        etcd.expire_leases();
        let second = lead(&etcd, "2").await;
        assert_eq!(second.records.len(), 250);
        assert!(
            second
                .records
                .contains(&("job/web".to_owned(), long.into()))
        );
        assert!(!second.records.iter().any(|(key, _)| key == "task/007"));

        first.store.write(4, vec![put("task/late", "late")]);
        let ended = first
            .writing
            .wait_for(|writing| matches!(writing, Writing::Ended(_)));
        ended.await.expect("it is told");
        assert_eq!(etcd.get("/m-scheduler/records/task/late"), None);
        second.store.close().await;
    }
}
