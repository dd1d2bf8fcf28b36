//! The parts of transactions.

use prost::bytes::Bytes;

use crate::api::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::api::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, request_op};

/// Writes a value without a lease.
pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> RequestOp {
    put_leased(key, value, 0)
}

/// Writes a value that is deleted at the end of the lease.
pub fn put_leased(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> RequestOp {
    let put = PutRequest {
        key: key.into(),
        value: value.into(),
        lease,
    };
    request(request_op::Request::RequestPut(put))
}

/// Deletes a key, which need not exist.
pub fn delete(key: impl Into<Bytes>) -> RequestOp {
    delete_range(key, Bytes::new())
}

/// Deletes all keys that begin with the prefix.
pub fn delete_prefix(prefix: &str) -> RequestOp {
    delete_range(prefix.to_owned(), prefix_end(prefix.as_bytes()))
}

fn delete_range(key: impl Into<Bytes>, range_end: impl Into<Bytes>) -> RequestOp {
    let delete = DeleteRangeRequest {
        key: key.into(),
        range_end: range_end.into(),
    };
    request(request_op::Request::RequestDeleteRange(delete))
}

/// Reads a key and its value.
pub fn get(key: impl Into<Bytes>) -> RequestOp {
    let range = RangeRequest {
        key: key.into(),
        ..RangeRequest::default()
    };
    request(request_op::Request::RequestRange(range))
}

fn request(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// Compares a key's revision of creation; 0 means that the key must not exist.
pub fn created_at(key: impl Into<Bytes>, revision: i64) -> Compare {
    let target = TargetUnion::CreateRevision(revision);
    equal(key.into(), CompareTarget::Create, target)
}

/// Returns the condition that the last write of a key has this revision; with 0, that the key does not exist.
pub fn modified_at(key: impl Into<Bytes>, revision: i64) -> Compare {
    let target = TargetUnion::ModRevision(revision);
    equal(key.into(), CompareTarget::Mod, target)
}

/// Compares the value of a key.
pub fn has_value(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Compare {
    let target = TargetUnion::Value(value.into());
    equal(key.into(), CompareTarget::Value, target)
}

fn equal(key: Bytes, target: CompareTarget, target_union: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key,
        target_union: Some(target_union),
    }
}

/// The first key after all those that begin with the prefix; `\0` if there is no such key.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next() {
        assert_eq!(prefix_end(b"/meseta/"), b"/meseta0");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
        assert_eq!(prefix_end(b""), b"\0");
    }
}
