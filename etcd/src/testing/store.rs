//! Keys, values, revisions and leases, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use crate::api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::api::event::EventType;
use crate::api::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, Event, KeyValue, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    request_op, response_op,
};
use crate::operation::prefix_end;

/// etcd's defaults, `--max-txn-ops` and `--max-request-bytes`.
const OPERATIONS_MAX: usize = 128;
const REQUEST_BYTES_MAX: usize = 3 << 19;

type Keys = BTreeMap<Bytes, KeyValue>;

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    expires: Instant,
}

/// The complete state of a member.
#[derive(Debug)]
pub(super) struct Store {
    revision: i64,
    compacted: i64,
    keys: Keys,
    /// The keys at each revision.
    former: BTreeMap<i64, Keys>,
    events: Vec<Event>,
    leases: BTreeMap<i64, Lease>,
    next_lease: i64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            revision: 1,
            compacted: 0,
            keys: Keys::new(),
            former: BTreeMap::new(),
            events: Vec::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
        }
    }
}

fn is_in_range(key: &Bytes, start: &Bytes, end: &Bytes) -> bool {
    match &**end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

impl Store {
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            revision: self.revision,
            ..ResponseHeader::default()
        })
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<KeyValue> {
        self.keys.get(key).cloned()
    }

    pub(super) fn all(&self) -> Vec<KeyValue> {
        self.keys.values().cloned().collect()
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
        self.revision += 1;
        self.remember();
    }

    /// The events of a key from a revision on; `None` if that revision was compacted.
    pub(super) fn events(&self, key: &Bytes, from: i64) -> Option<Vec<Event>> {
        if from <= self.compacted {
            return None;
        }
        let of_key = |event: &&Event| {
            let kv = event.kv.as_ref();
            kv.is_some_and(|kv| kv.key == *key && kv.mod_revision >= from)
        };
        Some(self.events.iter().filter(of_key).cloned().collect())
    }

    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let keys = match request.revision {
            0 => &self.keys,
            revision if revision > self.revision => {
                let reason = "etcdserver: mvcc: required revision is a future revision";
                return Err(Status::out_of_range(reason));
            }
            revision if revision <= self.compacted => {
                let reason = "etcdserver: mvcc: required revision has been compacted";
                return Err(Status::out_of_range(reason));
            }
            revision => {
                let as_of = self.former.range(..=revision).next_back();
                as_of.map_or(&self.keys, |(_, keys)| keys)
            }
        };
        let found = keys.values();
        let found = found.filter(|kv| is_in_range(&kv.key, &request.key, &request.range_end));
        let found: Vec<_> = found.cloned().collect();
        let limit = match usize::try_from(request.limit).unwrap_or_default() {
            0 => usize::MAX,
            limit => limit,
        };
        Ok(RangeResponse {
            header: self.header(),
            more: found.len() > limit,
            count: i64::try_from(found.len()).unwrap_or(i64::MAX),
            kvs: found.into_iter().take(limit).collect(),
        })
    }

    pub(super) fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Status> {
        check(&request)?;
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let operations = if succeeded {
            request.success
        } else {
            request.failure
        };
        let revision = self.revision + 1;
        let mut responses = Vec::new();
        let events = self.events.len();
        for operation in operations {
            let response = self.operate(operation, revision)?;
            responses.push(ResponseOp {
                response: Some(response),
            });
        }
        if self.events.len() > events {
            self.revision = revision;
            self.remember();
        }
        Ok(TxnResponse {
            header: self.header(),
            succeeded,
            responses,
        })
    }

    pub(super) fn put(&mut self, key: Bytes, value: Bytes) -> i64 {
        let revision = self.revision + 1;
        let put = PutRequest {
            key,
            value,
            lease: 0,
        };
        self.put_at(put, revision);
        self.revision = revision;
        self.remember();
        revision
    }

    pub(super) fn delete_prefix(&mut self, prefix: &str) {
        let revision = self.revision + 1;
        let end = prefix_end(prefix.as_bytes()).into();
        if self.delete_at(&prefix.to_owned().into(), &end, revision) > 0 {
            self.revision = revision;
            self.remember();
        }
    }

    pub(super) fn grant(&mut self, ttl: Duration) -> i64 {
        let id = self.next_lease;
        self.next_lease += 1;
        let expires = Instant::now() + ttl;
        self.leases.insert(id, Lease { ttl, expires });
        id
    }

    /// The remaining time of a renewed lease; `None` if the lease does not exist.
    pub(super) fn keep_alive(&mut self, id: i64) -> Option<Duration> {
        let lease = self.leases.get_mut(&id)?;
        lease.expires = Instant::now() + lease.ttl;
        Some(lease.ttl)
    }

    pub(super) fn revoke(&mut self, id: i64) -> bool {
        if self.leases.remove(&id).is_none() {
            return false;
        }
        let revision = self.revision + 1;
        let leased = self.keys.values().filter(|kv| kv.lease == id);
        let leased: Vec<_> = leased.map(|kv| kv.key.clone()).collect();
        for key in &leased {
            self.delete_at(key, &Bytes::new(), revision);
        }
        if !leased.is_empty() {
            self.revision = revision;
            self.remember();
        }
        true
    }

    pub(super) fn expire_all(&mut self) {
        let all: Vec<_> = self.leases.keys().copied().collect();
        for id in all {
            self.revoke(id);
        }
    }

    /// Ends a lease if its time is over; otherwise returns the time of its end.
    pub(super) fn expire(&mut self, id: i64) -> Option<Instant> {
        let expires = self.leases.get(&id)?.expires;
        if expires > Instant::now() {
            return Some(expires);
        }
        self.revoke(id);
        None
    }

    fn operate(
        &mut self,
        operation: RequestOp,
        revision: i64,
    ) -> Result<response_op::Response, Status> {
        use request_op::Request;
        use response_op::Response;

        let request = operation.request;
        let request = request.ok_or_else(|| Status::invalid_argument("an empty operation"))?;
        Ok(match request {
            Request::RequestRange(range) => Response::ResponseRange(self.range(&range)?),
            Request::RequestPut(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Err(Status::not_found("etcdserver: requested lease not found"));
                }
                self.put_at(put, revision);
                Response::ResponsePut(PutResponse::default())
            }
            Request::RequestDeleteRange(DeleteRangeRequest { key, range_end }) => {
                Response::ResponseDeleteRange(DeleteRangeResponse {
                    header: None,
                    deleted: self.delete_at(&key, &range_end, revision),
                })
            }
        })
    }

    fn put_at(&mut self, put: PutRequest, revision: i64) {
        let before = self.keys.get(&put.key);
        let kv = KeyValue {
            create_revision: before.map_or(revision, |kv| kv.create_revision),
            version: before.map_or(0, |kv| kv.version) + 1,
            mod_revision: revision,
            key: put.key,
            value: put.value,
            lease: put.lease,
        };
        self.event(EventType::Put, kv.clone());
        self.keys.insert(kv.key.clone(), kv);
    }

    fn delete_at(&mut self, start: &Bytes, end: &Bytes, revision: i64) -> i64 {
        let keys = self.keys.keys();
        let keys: Vec<_> = keys
            .filter(|key| is_in_range(key, start, end))
            .cloned()
            .collect();
        for key in &keys {
            self.keys.remove(key);
            let kv = KeyValue {
                key: key.clone(),
                mod_revision: revision,
                ..KeyValue::default()
            };
            self.event(EventType::Delete, kv);
        }
        i64::try_from(keys.len()).unwrap_or(i64::MAX)
    }

    fn event(&mut self, kind: EventType, kv: KeyValue) {
        self.events.push(Event {
            r#type: kind.into(),
            kv: Some(kv),
        });
    }

    fn remember(&mut self) {
        self.former.insert(self.revision, self.keys.clone());
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.keys.get(&compare.key);
        let is_equal = match &compare.target_union {
            Some(TargetUnion::Value(value)) => found.map(|kv| &kv.value) == Some(value),
            Some(TargetUnion::CreateRevision(revision)) => {
                found.map_or(0, |kv| kv.create_revision) == *revision
            }
            Some(TargetUnion::ModRevision(revision)) => {
                found.map_or(0, |kv| kv.mod_revision) == *revision
            }
            Some(TargetUnion::Version(version)) => found.map_or(0, |kv| kv.version) == *version,
            Some(TargetUnion::Lease(lease)) => found.map_or(0, |kv| kv.lease) == *lease,
            None => compare.target() == CompareTarget::Value && found.is_none(),
        };
        match compare.result() {
            CompareResult::Equal => is_equal,
            CompareResult::NotEqual => !is_equal,
            CompareResult::Greater | CompareResult::Less => false,
        }
    }
}

/// Refuses requests that etcd refuses before it reads a key.
fn check(request: &TxnRequest) -> Result<(), Status> {
    use prost::Message as _;

    if request.encoded_len() > REQUEST_BYTES_MAX {
        return Err(Status::invalid_argument("etcdserver: request is too large"));
    }
    for operations in [&request.success, &request.failure] {
        if operations.len() > OPERATIONS_MAX {
            let reason = "etcdserver: too many operations in txn request";
            return Err(Status::invalid_argument(reason));
        }
        let mut put = BTreeSet::new();
        let mut deleted = Vec::new();
        for operation in operations {
            match &operation.request {
                Some(request_op::Request::RequestPut(one)) if !put.insert(&one.key) => {
                    return Err(duplicate());
                }
                Some(request_op::Request::RequestDeleteRange(range)) => deleted.push(range),
                _ => {}
            }
        }
        for range in deleted {
            if put
                .iter()
                .any(|key| is_in_range(key, &range.key, &range.range_end))
            {
                return Err(duplicate());
            }
        }
    }
    Ok(())
}

fn duplicate() -> Status {
    Status::invalid_argument("etcdserver: duplicate key given in txn request")
}
