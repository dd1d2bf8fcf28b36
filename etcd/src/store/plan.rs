//! The transactions of changes, within the limits of etcd.
//!
//! Changes that fit share a transaction. A larger change is staged: its writes are stored in parts, then a pointer to them
//! makes the whole change durable at once, and only then they are written to their own keys and the parts are deleted. A
//! leader that finds a pointer finishes the change; parts without a pointer were never promised. Invariant: after any prefix
//! of the transactions, a change is there as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use super::Write;
use super::keys::Keys;

/// The maximum number of operations in a transaction, besides the sequence number that each transaction writes; etcd accepts
/// 128 (`--max-txn-ops`).
pub(crate) const OPERATIONS_MAX: usize = 100;

/// The maximum size of keys and values in a transaction, in bytes; etcd accepts requests of 1.5 MiB (`--max-request-bytes`).
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// The length of chunks of longer values, in bytes.
const CHUNK_BYTES: usize = 512 << 10;

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Put { key: String, value: Vec<u8> },
    Delete { key: String },
    DeletePrefix { prefix: String },
}

/// Operations that take effect at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// The number after that of the previous transaction.
    pub(crate) sequence: u64,
    pub(crate) operations: Vec<Operation>,
    /// The number up to which all changes are durable when this is done.
    pub(crate) durable: Option<u64>,
}

/// The staged form of a change's writes. Stored, so fields are only added.
#[derive(Clone, PartialEq, Message)]
struct Staged {
    #[prost(message, repeated, tag = "1")]
    writes: Vec<StagedWrite>,
}

#[derive(Clone, PartialEq, Message)]
struct StagedWrite {
    #[prost(string, tag = "1")]
    key: String,
    /// The new value; absent for a deletion.
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

/// The location of staged parts. Stored, so fields are only added.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pointer {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(uint32, tag = "2")]
    pub parts: u32,
}

/// Turns changes into transactions, one after the other.
#[derive(Debug)]
pub(crate) struct Planner {
    keys: Keys,
    /// The number of the last transaction.
    sequence: u64,
    /// The names of records in chunks.
    chunked: BTreeSet<String>,
}

/// The writes of a transaction that is still open; a later one to the same key replaces the earlier.
#[derive(Debug, Default)]
struct Open {
    writes: BTreeMap<String, Option<Vec<u8>>>,
    bytes: usize,
    durable: Option<u64>,
}

impl Open {
    fn has_room_for(&self, writes: &[Write]) -> bool {
        self.writes.len() + writes.len() <= OPERATIONS_MAX
            && self.bytes + bytes(writes) <= BYTES_MAX
    }

    fn add(&mut self, number: u64, writes: Vec<Write>) {
        self.bytes += bytes(&writes);
        let entries = writes.into_iter().map(|write| (write.key, write.value));
        self.writes.extend(entries);
        self.durable = Some(number);
    }
}

/// The last write to each key: a transaction may name it once.
fn merged(writes: Vec<Write>) -> Vec<Write> {
    let by_key = writes.into_iter().map(|write| (write.key, write.value));
    let by_key: BTreeMap<_, _> = by_key.collect();
    let write = |(key, value)| Write { key, value };
    by_key.into_iter().map(write).collect()
}

fn bytes(writes: &[Write]) -> usize {
    writes.iter().map(write_bytes).sum()
}

fn write_bytes(write: &Write) -> usize {
    /// The approximate size of a key's prefix and the surrounding request.
    const AROUND: usize = 128;
    write.key.len() + write.value.as_ref().map_or(0, Vec::len) + AROUND
}

impl Planner {
    /// Continues after the transaction of this number; `chunked` are the records with values in chunks.
    pub(crate) fn new(keys: Keys, sequence: u64, chunked: BTreeSet<String>) -> Self {
        Self {
            keys,
            sequence,
            chunked,
        }
    }

    /// The transactions of changes, in their order.
    pub(crate) fn plan(&mut self, batch: Vec<(u64, Vec<Write>)>) -> Vec<Transaction> {
        let mut all = Vec::new();
        let mut open = Open::default();
        for (number, writes) in batch {
            let writes = merged(writes);
            if self.must_stage(&writes) {
                self.close(std::mem::take(&mut open), &mut all);
                self.stage(number, writes, &mut all);
                continue;
            }
            if !open.has_room_for(&writes) {
                self.close(std::mem::take(&mut open), &mut all);
            }
            open.add(number, writes);
        }
        self.close(open, &mut all);
        all
    }

    /// The transactions that fill an empty prefix with these records. The metadata appears only when all records are there.
    pub(crate) fn fill(&mut self, meta: Vec<u8>, writes: Vec<Write>) -> Vec<Transaction> {
        let mut all = Vec::new();
        self.stage(1, writes, &mut all);
        let put = Operation::Put {
            key: self.keys.meta(),
            value: meta,
        };
        if let Some(pointing) = all.iter_mut().find(|one| one.durable.is_some()) {
            pointing.operations.push(put);
        }
        all
    }

    /// The remaining transactions of a change that was staged and has a pointer.
    pub(crate) fn finish(&mut self, pointer: Pointer, writes: Vec<Write>) -> Vec<Transaction> {
        let mut all = Vec::new();
        self.apply(pointer, writes, &mut all);
        all
    }

    /// Deletes parts without a pointer.
    pub(crate) fn discard_staged(&mut self) -> Transaction {
        let prefix = self.keys.all_staged();
        self.transaction(vec![Operation::DeletePrefix { prefix }], None)
    }

    fn must_stage(&self, writes: &[Write]) -> bool {
        writes.len() > OPERATIONS_MAX
            || bytes(writes) > BYTES_MAX
            || writes.iter().any(|write| self.is_chunked(write))
    }

    /// Whether a record is in chunks, or its new value needs them.
    fn is_chunked(&self, write: &Write) -> bool {
        let is_long = write
            .value
            .as_ref()
            .is_some_and(|value| value.len() > CHUNK_BYTES);
        is_long || self.chunked.contains(&write.key)
    }

    fn close(&mut self, open: Open, all: &mut Vec<Transaction>) {
        if open.durable.is_none() {
            return;
        }
        let operations = open.writes.into_iter();
        let operations = operations.map(|(name, value)| {
            let key = self.keys.record(&name);
            match value {
                Some(value) => Operation::Put { key, value },
                None => Operation::Delete { key },
            }
        });
        let operations = operations.collect();
        all.push(self.transaction(operations, open.durable));
    }

    /// Stores the parts, writes the pointer, and then carries the parts out.
    fn stage(&mut self, number: u64, writes: Vec<Write>, all: &mut Vec<Transaction>) {
        let generation = self.sequence + 1;
        let encoded = encode(&writes);
        let mut parts = 0;
        for part in encoded.chunks(CHUNK_BYTES) {
            let key = self.keys.staged_part(generation, parts);
            let value = part.to_vec();
            all.push(self.transaction(vec![Operation::Put { key, value }], None));
            parts += 1;
        }
        let pointer = Pointer { generation, parts };
        let put = Operation::Put {
            key: self.keys.pointer(),
            value: pointer.encode_to_vec(),
        };
        all.push(self.transaction(vec![put], Some(number)));
        self.apply(pointer, writes, all);
    }

    fn apply(&mut self, pointer: Pointer, writes: Vec<Write>, all: &mut Vec<Transaction>) {
        let mut operations = Vec::new();
        let mut bytes = 0;
        let chunks = writes.into_iter().flat_map(|write| self.chunks(write));
        let chunks: Vec<_> = chunks.collect();
        for operation in chunks {
            let more = operation_bytes(&operation);
            // A transaction must not write into a range that it deletes.
            let is_range = matches!(operation, Operation::DeletePrefix { .. });
            if operations.len() == OPERATIONS_MAX || bytes + more > BYTES_MAX || is_range {
                self.flush(&mut operations, all);
                bytes = 0;
            }
            operations.push(operation);
            bytes += more;
            if is_range {
                self.flush(&mut operations, all);
                bytes = 0;
            }
        }
        self.flush(&mut operations, all);
        let key = self.keys.pointer();
        let prefix = self.keys.staged(pointer.generation);
        let last = vec![
            Operation::Delete { key },
            Operation::DeletePrefix { prefix },
        ];
        all.push(self.transaction(last, None));
    }

    /// Turns the collected operations, if any, into a transaction.
    fn flush(&mut self, operations: &mut Vec<Operation>, all: &mut Vec<Transaction>) {
        if !operations.is_empty() {
            all.push(self.transaction(std::mem::take(operations), None));
        }
    }

    /// The operations of one write, which replaces the present value.
    fn chunks(&mut self, write: Write) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.chunked.remove(&write.key) {
            let prefix = self.keys.chunks(&write.key);
            operations.push(Operation::DeletePrefix { prefix });
        }
        let key = self.keys.record(&write.key);
        match write.value {
            Some(value) if value.len() > CHUNK_BYTES => {
                operations.push(Operation::Delete { key });
                for (number, chunk) in (0..).zip(value.chunks(CHUNK_BYTES)) {
                    operations.push(Operation::Put {
                        key: self.keys.chunk(&write.key, number),
                        value: chunk.to_vec(),
                    });
                }
                self.chunked.insert(write.key);
            }
            Some(value) => operations.push(Operation::Put { key, value }),
            None => operations.push(Operation::Delete { key }),
        }
        operations
    }

    fn transaction(&mut self, operations: Vec<Operation>, durable: Option<u64>) -> Transaction {
        self.sequence += 1;
        Transaction {
            sequence: self.sequence,
            operations,
            durable,
        }
    }
}

fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Put { key, value } => key.len() + value.len(),
        Operation::Delete { key } => key.len(),
        Operation::DeletePrefix { prefix } => prefix.len(),
    }
}

fn encode(writes: &[Write]) -> Vec<u8> {
    let staged = |write: &Write| StagedWrite {
        key: write.key.clone(),
        value: write.value.clone(),
    };
    let writes = writes.iter().map(staged).collect();
    Staged { writes }.encode_to_vec()
}

/// Decodes the writes in the joined parts of a change.
pub(crate) fn decode(parts: &[u8]) -> Result<Vec<Write>, prost::DecodeError> {
    let staged = Staged::decode(parts)?;
    let write = |write: StagedWrite| Write {
        key: write.key,
        value: write.value,
    };
    Ok(staged.writes.into_iter().map(write).collect())
}

#[cfg(test)]
mod tests;
