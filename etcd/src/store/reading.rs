//! Reading records in etcd as of one revision, and taking them over: a new epoch, then all records as of that revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::Message;

use super::plan::{self, Planner, Pointer, Transaction};
use super::{Cluster, Keys, Layout, StoreError, Write};
use crate::api::{KeyValue, RangeRequest, RangeResponse, ResponseOp, TxnRequest, response_op};
use crate::leadership::election::Elected;
use crate::{Client, Error, operation};

/// The number of records in a page.
const PAGE: i64 = 500;

/// The metadata of all records. Stored, so fields are only added.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Meta {
    #[prost(uint32, tag = "1")]
    pub format: u32,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The id of the cluster, for as long as it exists.
    #[prost(string, tag = "3")]
    pub id: String,
    /// The configured name of the cluster.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The id of the daemon's start that made this epoch.
    #[prost(string, tag = "5")]
    pub leader: String,
}

/// The records found by a new leader, and its starting state.
pub(crate) struct TakenOver {
    pub(crate) meta: Meta,
    pub(crate) values: BTreeMap<String, Vec<u8>>,
    pub(crate) planner: Planner,
    /// The transactions that the previous leader left unfinished.
    pub(crate) unfinished: Vec<Transaction>,
}

/// Reads the records and makes this leader's epoch durable, which is one higher than the last.
pub(crate) async fn take_over(
    client: &Client,
    keys: &Keys,
    layout: &Layout,
    cluster: &Cluster,
    elected: &Elected,
) -> Result<TakenOver, StoreError> {
    let (meta, revision, sequence) = begin_epoch(client, keys, layout, cluster, elected).await?;
    let Contents {
        staged,
        mut values,
        chunked,
    } = read_all(client, keys, revision).await?;
    let mut planner = Planner::new(keys.clone(), sequence, chunked);
    let unfinished = match staged {
        Staged::Nothing => Vec::new(),
        Staged::Abandoned => vec![planner.discard_staged()],
        Staged::Pointed(pointer, writes) => {
            apply(&mut values, &writes);
            planner.finish(pointer, writes)
        }
    };
    Ok(TakenOver {
        meta,
        values,
        planner,
        unfinished,
    })
}

/// The contents below a prefix as of one revision.
#[derive(Debug)]
pub struct Contents {
    pub staged: Staged,
    /// The records by name, without staged parts.
    pub values: BTreeMap<String, Vec<u8>>,
    /// The names of the records in chunks.
    pub chunked: BTreeSet<String>,
}

/// The maximum number of complete reads when etcd compacts the revision during the read. Reading takes seconds; etcd compacts
/// by the hour, or when an operator does.
pub(crate) const READS_MAX: usize = 5;

/// Reads all records as of a revision, or of a newer one if etcd has compacted that in the meantime: only the leader writes,
/// and it is busy reading.
async fn read_all(client: &Client, keys: &Keys, mut revision: i64) -> Result<Contents, StoreError> {
    let mut reads = 1;
    loop {
        let at = At {
            client,
            keys,
            revision,
        };
        match at.contents().await {
            Err(StoreError::Etcd(Error::Compacted)) if reads < READS_MAX => reads += 1,
            read => return read,
        }
        tracing::warn!(
            revision,
            "etcd was compacted during the read of the records; reading them again"
        );
        let leader = RangeRequest {
            key: keys.leader().into(),
            ..RangeRequest::default()
        };
        let header = client.range(leader).await?.header;
        revision = header.map_or(0, |header| header.revision);
    }
}

/// Applies writes to the read records.
pub fn apply(values: &mut BTreeMap<String, Vec<u8>>, writes: &[Write]) {
    for write in writes {
        match &write.value {
            Some(value) => values.insert(write.key.clone(), value.clone()),
            None => values.remove(&write.key),
        };
    }
}

/// The new meta, the revision that it was written at, and the number of the last transaction.
async fn begin_epoch(
    client: &Client,
    keys: &Keys,
    layout: &Layout,
    cluster: &Cluster,
    elected: &Elected,
) -> Result<(Meta, i64, u64), StoreError> {
    let raised = layout.raised_epoch.map(|(name, _)| keys.record(name));
    let names = [Some(keys.meta()), Some(keys.sequence()), raised];
    let read = TxnRequest {
        success: names.into_iter().flatten().map(operation::get).collect(),
        ..TxnRequest::default()
    };
    let found = client.txn(read).await?;
    let mut found = found.responses.into_iter().map(first);
    let (meta, sequence) = (found.next().flatten(), found.next().flatten());
    let raised_epoch = match (layout.raised_epoch, found.next().flatten()) {
        (Some((name, read)), Some(found)) => {
            read(&found.value).map_err(|source| StoreError::Damaged {
                key: keys.record(name),
                source,
            })?
        }
        _ => 0,
    };
    let known = meta
        .as_ref()
        .map(|found| decode_meta(keys, found))
        .transpose()?;
    if let Some(known) = &known {
        check(keys, layout, cluster, known)?;
        if known.leader == elected.leader_id {
            // An earlier attempt, whose answer was lost, succeeded.
            let revision = meta.map_or(0, |found| found.mod_revision);
            return Ok((known.clone(), revision, number(keys, sequence.as_ref())?));
        }
    }
    let next = Meta {
        format: layout.format,
        epoch: raised_epoch.max(known.as_ref().map_or(0, |known| known.epoch)) + 1,
        id: known.map_or_else(|| cluster.new_id.clone(), |known| known.id),
        name: cluster.name.clone(),
        leader: elected.leader_id.clone(),
    };
    let last = number(keys, sequence.as_ref())?;
    let mut write = TxnRequest {
        compare: vec![
            operation::created_at(keys.leader(), elected.created),
            operation::modified_at(keys.meta(), meta.map_or(0, |found| found.mod_revision)),
        ],
        success: vec![operation::put(keys.meta(), next.encode_to_vec())],
        ..TxnRequest::default()
    };
    if sequence.is_none() {
        write
            .success
            .push(operation::put(keys.sequence(), last.to_string()));
    }
    let written = client.txn(write).await?;
    if !written.succeeded {
        return Err(StoreError::LeadershipLost);
    }
    let revision = written.header.map_or(0, |header| header.revision);
    Ok((next, revision, last))
}

pub(crate) fn first(response: ResponseOp) -> Option<KeyValue> {
    match response.response? {
        response_op::Response::ResponseRange(range) => range.kvs.into_iter().next(),
        _ => None,
    }
}

pub(crate) fn decode_meta(keys: &Keys, found: &KeyValue) -> Result<Meta, StoreError> {
    Meta::decode(&*found.value).map_err(|source| StoreError::Damaged {
        key: keys.meta(),
        source,
    })
}

/// Refuses records of a newer version.
pub(crate) fn check_format(keys: &Keys, layout: &Layout, found: &Meta) -> Result<(), StoreError> {
    if found.format > layout.format {
        return Err(StoreError::Newer {
            prefix: keys.prefix().to_owned(),
            found: found.format,
            known: layout.format,
        });
    }
    Ok(())
}

fn check(keys: &Keys, layout: &Layout, cluster: &Cluster, found: &Meta) -> Result<(), StoreError> {
    check_format(keys, layout, found)?;
    check_name(keys, &cluster.name, &found.name)
}

/// Refuses the records of another cluster. The name of a nameless cluster is empty.
///
/// # Errors
/// [`StoreError::AnotherCluster`].
pub fn check_name(keys: &Keys, given: &str, found: &str) -> Result<(), StoreError> {
    if found == given {
        return Ok(());
    }
    Err(StoreError::AnotherCluster {
        prefix: keys.prefix().to_owned(),
        found: found.to_owned(),
        given: given.to_owned(),
    })
}

/// The interval of reads of a prefix without a first leader, or of an unreadable prefix.
const NAME_CHECK: Duration = Duration::from_secs(10);

/// Whether the records are of this cluster; false if no daemon has led below the prefix yet.
///
/// # Errors
/// [`StoreError::AnotherCluster`], or an error of the read.
pub async fn is_of_cluster(
    client: &Client,
    keys: &Keys,
    cluster: &Cluster,
) -> Result<bool, StoreError> {
    match read_meta(client, keys).await? {
        Some(found) => check_name(keys, &cluster.name, &found.name).map(|()| true),
        None => Ok(false),
    }
}

/// Returns when the records turn out to be another cluster's, which may be before a following daemon is elected; never
/// returns if they are of this cluster. The elected leader handles other faults of the records, and the election those of
/// etcd.
pub async fn until_another_cluster(client: &Client, keys: &Keys, cluster: &Cluster) -> StoreError {
    loop {
        match is_of_cluster(client, keys, cluster).await {
            Ok(true) => std::future::pending().await,
            Err(error @ StoreError::AnotherCluster { .. }) => return error,
            Ok(false) | Err(_) => tokio::time::sleep(NAME_CHECK).await,
        }
    }
}

/// Reads one record that fits into one key, also beside a leader.
///
/// # Errors
/// When etcd does not answer.
pub async fn read_record(
    client: &Client,
    keys: &Keys,
    name: &str,
) -> Result<Option<Vec<u8>>, StoreError> {
    let range = RangeRequest {
        key: keys.record(name).into(),
        ..RangeRequest::default()
    };
    let found = client.range(range).await?.kvs.into_iter().next();
    Ok(found.map(|found| found.value.to_vec()))
}

async fn read_meta(client: &Client, keys: &Keys) -> Result<Option<Meta>, StoreError> {
    let range = RangeRequest {
        key: keys.meta().into(),
        ..RangeRequest::default()
    };
    let found = client.range(range).await?.kvs.into_iter().next();
    found.map(|found| decode_meta(keys, &found)).transpose()
}

pub(crate) fn number(keys: &Keys, found: Option<&KeyValue>) -> Result<u64, StoreError> {
    let Some(found) = found else { return Ok(0) };
    let text = String::from_utf8_lossy(&found.value);
    text.parse().map_err(|_| StoreError::Unreadable {
        key: keys.sequence(),
        found: text.into_owned(),
    })
}

/// The contents below the staged parts.
#[derive(Debug)]
pub enum Staged {
    Nothing,
    /// Parts without a pointer, which were never promised.
    Abandoned,
    Pointed(Pointer, Vec<Write>),
}

/// A reader as of one revision.
pub(crate) struct At<'a> {
    pub(crate) client: &'a Client,
    pub(crate) keys: &'a Keys,
    pub(crate) revision: i64,
}

impl At<'_> {
    pub(crate) async fn contents(&self) -> Result<Contents, StoreError> {
        let staged = self.staged().await?;
        let (values, chunked) = self.values().await?;
        Ok(Contents {
            staged,
            values,
            chunked,
        })
    }

    async fn staged(&self) -> Result<Staged, StoreError> {
        let key = self.keys.pointer();
        let range = RangeRequest {
            key: key.clone().into(),
            revision: self.revision,
            ..RangeRequest::default()
        };
        let pointer = self.client.range(range).await?.kvs.into_iter().next();
        let mut parts = Vec::new();
        let all = self.keys.all_staged();
        let Some(pointer) = pointer else {
            let mut found = false;
            self.each(&all, |_| found = true).await?;
            return Ok(if found {
                Staged::Abandoned
            } else {
                Staged::Nothing
            });
        };
        let damaged = |key| move |source| StoreError::Damaged { key, source };
        let pointer = Pointer::decode(&*pointer.value).map_err(damaged(key))?;
        let generation = self.keys.staged(pointer.generation);
        let mut count = 0;
        self.each(&generation, |found| {
            parts.extend_from_slice(&found.value);
            count += 1;
        })
        .await?;
        if count != pointer.parts {
            return Err(StoreError::Incomplete {
                key: generation,
                found: count,
                expected: pointer.parts,
            });
        }
        let writes = plan::decode(&parts).map_err(damaged(generation))?;
        Ok(Staged::Pointed(pointer, writes))
    }

    /// All records by name, and the names of the records in chunks.
    async fn values(&self) -> Result<(BTreeMap<String, Vec<u8>>, BTreeSet<String>), StoreError> {
        let mut values: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let records = self.keys.records();
        self.each(&records, |found| {
            let key = String::from_utf8_lossy(&found.key);
            if let Some(name) = key.strip_prefix(&records) {
                values.insert(name.to_owned(), found.value.to_vec());
            }
        })
        .await?;
        let mut chunked = BTreeSet::new();
        self.each(&self.keys.all_chunks(), |found| {
            let key = String::from_utf8_lossy(&found.key);
            if let Some(name) = self.keys.chunk_name(&key) {
                if chunked.insert(name.to_owned()) {
                    values.remove(name);
                }
                values
                    .entry(name.to_owned())
                    .or_default()
                    .extend_from_slice(&found.value);
            }
        })
        .await?;
        Ok((values, chunked))
    }

    /// Everything below a prefix, in the order of the keys, page by page.
    async fn each(&self, prefix: &str, mut each: impl FnMut(&KeyValue)) -> Result<(), StoreError> {
        let mut from = prefix.as_bytes().to_vec();
        loop {
            let RangeResponse { kvs, more, .. } = self
                .client
                .range(RangeRequest {
                    key: from.into(),
                    range_end: operation::prefix_end(prefix.as_bytes()).into(),
                    limit: PAGE,
                    revision: self.revision,
                    keys_only: false,
                })
                .await?;
            kvs.iter().for_each(&mut each);
            let Some(last) = kvs.last().filter(|_| more) else {
                return Ok(());
            };
            from = last.key.to_vec();
            from.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use meseta_tests::recorded_bytes::{recorded, with_unknown_fields};

    use super::*;
    use crate::testing::{Call, FakeEtcd, Fault};

    /// Regression: with another `--cluster` one of three masters followed without a warning, and ended when it was elected.
    #[tokio::test(start_paused = true)]
    async fn follower_detects_records_of_another_cluster() {
        let named = |name: &str| Meta {
            format: 99,
            name: name.to_owned(),
            ..Meta::default()
        };
        let keys = Keys::new("/m");
        for (found, given, is_another) in [
            ("berlin", "berlin", false),
            ("berlin", "paris", true),
            ("berlin", "", true),
            ("", "", false),
            ("", "berlin", true),
        ] {
            let etcd = FakeEtcd::start();
            let client = etcd.client(Duration::from_secs(2));
            let cluster = Cluster {
                name: given.to_owned(),
                new_id: String::new(),
            };
            let noticed = until_another_cluster(&client, &keys, &cluster);
            tokio::pin!(noticed);
            let early = tokio::time::timeout(10 * NAME_CHECK, &mut noticed).await;
            assert!(early.is_err(), "nobody has led below the prefix yet");
            etcd.inject(Call::Range, Fault::LostBefore, 0, 1);
            etcd.put(&keys.meta(), named(found).encode_to_vec());
            let noticed = tokio::time::timeout(10 * NAME_CHECK, noticed).await;
            assert_eq!(noticed.is_ok(), is_another, "{found:?}, {given:?}");
            let told = noticed.map_or_else(|_| String::new(), |error| error.to_string());
            assert!(!is_another || told.contains(given), "{told}");
        }
    }

    /// Data of earlier versions (`tests/recorded/registry-etcd.txt`), or with additions of later ones.
    #[test]
    fn meta_and_pointer_survive_version_changes() {
        let meta = Meta {
            format: 1,
            epoch: 7,
            id: "3f0e".to_owned(),
            name: "berlin".to_owned(),
            leader: "m7".to_owned(),
        };
        let pointer = Pointer {
            generation: 9,
            parts: 2,
        };
        let written = [
            ("meta".to_owned(), meta.encode_to_vec()),
            ("pointer".to_owned(), pointer.encode_to_vec()),
        ];
        let recorded = recorded("registry-etcd.txt", &written);
        let both = |name: &str| [recorded[name].clone(), with_unknown_fields(&recorded[name])];
        for bytes in both("meta") {
            assert_eq!(Meta::decode(&*bytes).unwrap(), meta);
        }
        for bytes in both("pointer") {
            assert_eq!(Pointer::decode(&*bytes).unwrap(), pointer);
        }
    }
}
