//! Transactions are applied to a map, in part and as a whole, and the map is read as a new leader reads etcd.

use proptest::prelude::*;

use super::*;

/// The keys and values of etcd.
type Store = BTreeMap<String, Vec<u8>>;

fn keys() -> Keys {
    Keys::new("/m")
}

fn play(store: &mut Store, transaction: &Transaction) {
    for operation in &transaction.operations {
        match operation {
            Operation::Put { key, value } => {
                store.insert(key.clone(), value.clone());
            }
            Operation::Delete { key } => {
                store.remove(key);
            }
            Operation::DeletePrefix { prefix } => store.retain(|key, _| !key.starts_with(prefix)),
        }
    }
}

/// The records that a leader would find, staged ones included.
fn read(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let keys = keys();
    let mut records: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (key, value) in store {
        if let Some(name) = key.strip_prefix(&keys.records()) {
            assert!(value.len() <= CHUNK_BYTES, "{name}");
            records.insert(name.to_owned(), value.clone());
        } else if let Some(name) = keys.chunk_name(key) {
            records.entry(name.to_owned()).or_default().extend(value);
        }
    }
    if let Some(pointer) = store.get(&keys.pointer()) {
        let pointer = Pointer::decode(pointer.as_slice()).unwrap();
        let part = |part| store[&keys.staged_part(pointer.generation, part)].clone();
        let parts: Vec<u8> = (0..pointer.parts).flat_map(part).collect();
        for write in decode(&parts).unwrap() {
            match write.value {
                Some(value) => records.insert(write.key, value),
                None => records.remove(&write.key),
            };
        }
    }
    records
}

fn apply(records: &mut BTreeMap<String, Vec<u8>>, writes: &[Write]) {
    for write in writes {
        match &write.value {
            Some(value) => records.insert(write.key.clone(), value.clone()),
            None => records.remove(&write.key),
        };
    }
}

fn put(key: &str, length: usize) -> Write {
    Write {
        key: key.to_owned(),
        value: Some(vec![u8::try_from(length % 251).unwrap(); length]),
    }
}

fn assert_within_limits(transaction: &Transaction) {
    let operations = &transaction.operations;
    assert!(operations.len() <= 127, "{} operations", operations.len());
    let bytes: usize = operations.iter().map(operation_bytes).sum();
    assert!(bytes <= BYTES_MAX + (64 << 10), "{bytes} bytes");
    let mut names: Vec<_> = operations
        .iter()
        .map(|operation| match operation {
            Operation::Put { key, .. } | Operation::Delete { key } => key,
            Operation::DeletePrefix { prefix } => prefix,
        })
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(
        names.len(),
        operations.len(),
        "a key twice: etcd refuses that"
    );
    for operation in operations {
        let Operation::DeletePrefix { prefix } = operation else {
            continue;
        };
        let within = names.iter().filter(|name| name.starts_with(prefix));
        assert_eq!(
            within.count(),
            1,
            "a key in a deleted range: etcd refuses that"
        );
    }
}

/// Plays all transactions one by one. After each, the records equal those after some whole number of mutations, at least
/// after those reported as durable.
fn check(mutations: Vec<Vec<Write>>) -> usize {
    let mut states = vec![BTreeMap::new()];
    for writes in &mutations {
        let mut next = states.last().unwrap().clone();
        apply(&mut next, writes);
        states.push(next);
    }
    let batch = (1..).zip(mutations).collect();
    let mut planner = Planner::new(keys(), 41, BTreeSet::new());
    let transactions = planner.plan(batch);
    let mut store = Store::new();
    let mut durable = 0;
    for (transaction, sequence) in transactions.iter().zip(42..) {
        assert_eq!(transaction.sequence, sequence);
        assert_within_limits(transaction);
        play(&mut store, transaction);
        if let Some(number) = transaction.durable {
            durable = usize::try_from(number).unwrap();
        }
        assert_eq!(read(&store), states[durable], "after {sequence}");
    }
    assert_eq!(durable, states.len() - 1);
    assert!(!store.contains_key(&keys().pointer()));
    assert!(
        !store
            .keys()
            .any(|key| key.starts_with(&keys().all_staged()))
    );
    transactions.len()
}

#[test]
fn small_mutations_share_a_transaction() {
    let one = |number: usize| vec![put(&format!("agent/{number}"), 100)];
    assert_eq!(check((0..OPERATIONS_MAX).map(one).collect()), 1);
    assert_eq!(check((0..=OPERATIONS_MAX).map(one).collect()), 2);
    // Repeated writes of the same key become one.
    assert_eq!(check(vec![one(1), one(1), one(1)]), 1);
}

#[test]
fn oversized_mutation_is_staged() {
    let many = (0..1_000).map(|number| put(&format!("quota/{number}"), 50));
    let staged = check(vec![vec![put("a", 1)], many.collect(), vec![put("b", 1)]]);
    assert!(staged > 10, "{staged}");
    let long = vec![put("maintenance", 3 * CHUNK_BYTES + 1)];
    let short = vec![put("maintenance", 10)];
    let none = vec![Write {
        key: "maintenance".to_owned(),
        value: None,
    }];
    check(vec![long.clone(), short.clone(), long.clone(), none, short]);
    check(vec![long.clone(), long]);
}

#[test]
fn new_master_completes_staged_pointer() {
    let many: Vec<_> = (0..300)
        .map(|number| put(&format!("quota/{number}"), 50))
        .collect();
    let transactions = Planner::new(keys(), 0, BTreeSet::new()).plan(vec![(1, many.clone())]);
    let pointed = transactions
        .iter()
        .position(|one| one.durable.is_some())
        .unwrap();
    for stopped in pointed..transactions.len() - 1 {
        let mut store = Store::new();
        transactions[..=stopped]
            .iter()
            .for_each(|one| play(&mut store, one));
        let found = Pointer::decode(store[&keys().pointer()].as_slice()).unwrap();
        let mut planner = Planner::new(keys(), transactions[stopped].sequence, BTreeSet::new());
        let rest = planner.finish(found, many.clone());
        rest.iter().for_each(|one| play(&mut store, one));
        assert_eq!(read(&store).len(), 300);
        assert_eq!(store.len(), 300, "stopped after {stopped}");
    }
    // Stopped before the pointer: nothing was promised, and nothing stays.
    let mut store = Store::new();
    transactions[..pointed]
        .iter()
        .for_each(|one| play(&mut store, one));
    assert!(read(&store).is_empty());
    let mut planner = Planner::new(keys(), transactions[pointed].sequence, BTreeSet::new());
    play(&mut store, &planner.discard_staged());
    assert!(store.is_empty());
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let length = prop_oneof![
        40 => 0_usize..200,
        1 => Just(CHUNK_BYTES),
        1 => Just(CHUNK_BYTES + 1),
    ];
    let value = prop::option::weighted(0.7, length.prop_map(|length| vec![7; length]));
    let write = (0_u8..12, value).prop_map(|(key, value)| Write {
        key: format!("k/{key}"),
        value,
    });
    // A mutation has each key once.
    prop::collection::vec(write, 1..8).prop_map(|writes| {
        let by_key: BTreeMap<_, _> = writes.into_iter().map(|one| (one.key, one.value)).collect();
        let write = |(key, value)| Write { key, value };
        by_key.into_iter().map(write).collect()
    })
}

proptest! {
    #[test]
    fn mutation_is_applied_atomically(
        mutations in prop::collection::vec(writes(), 1..6)
    ) {
        check(mutations);
    }
}
