//! The embedded registry across closes, crashes and damage.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use redb::ReadableDatabase;

use super::*;
use crate::core::{AgentRecord, DeadlineRecord, FrameworkRecord, UnreachableRecord};

fn open(path: &Path) -> (Recovered, Box<Embedded>, Receiver<Lsn>) {
    let (sender, receiver) = channel();
    let (recovered, registry) = Embedded::open(
        path,
        Box::new(move |lsn| sender.send(lsn).unwrap_or_default()),
    )
    .unwrap();
    (recovered, Box::new(registry), receiver)
}

fn deadline(id: &str) -> Mutation {
    Mutation::PutDeadline(DeadlineRecord {
        framework_id: id.to_owned(),
        deadline: Duration::from_secs(7),
    })
}

fn framework(id: &str, absent: Option<u64>) -> Mutation {
    Mutation::PutFramework(FrameworkRecord {
        framework_id: id.to_owned(),
        principal: format!("owner of {id}"),
        absent: absent.map(Duration::from_secs),
    })
}

fn removal(id: &str, forgotten: &[&str]) -> Mutation {
    Mutation::EndFrameworks {
        removed: vec![(id.to_owned(), Duration::from_secs(9))],
        forgotten: forgotten.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn agent(id: &str) -> Mutation {
    Mutation::PutAgent(AgentRecord {
        agent_id: id.to_owned(),
        info: Bytes::from(format!("info of {id}")),
    })
}

#[test]
fn everything_reported_durable_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    let (recovered, mut registry, persisted) = open(&path);
    assert_eq!(
        recovered,
        Recovered {
            epoch: 1,
            ..Recovered::default()
        }
    );
    let mutations = [
        agent("a"),
        agent("b"),
        agent("c"),
        Mutation::MarkUnreachable(UnreachableRecord {
            agent_id: "b".to_owned(),
            since: Duration::from_millis(1_500),
            hostname: "b.example".to_owned(),
        }),
        framework("f", None),
        framework("g", Some(3)),
        framework("h", None),
        Mutation::RemoveFrameworks {
            framework_ids: vec!["h".to_owned()],
        },
        removal("e", &[]),
        removal("f", &["e"]),
        Mutation::RemoveAgent {
            agent_id: "c".to_owned(),
        },
        Mutation::PutWeights(vec![("dev".to_owned(), 2.5)]),
        deadline("f"),
        deadline("g"),
        Mutation::RemoveDeadlines {
            framework_ids: vec!["f".to_owned()],
        },
    ];
    let count = u64::try_from(mutations.len()).unwrap();
    for (lsn, mutation) in (1..).zip(mutations) {
        registry.persist(Lsn(lsn), mutation);
    }
    while persisted.recv().unwrap() < Lsn(count) {}
    registry.close();

    let (recovered, registry, _persisted) = open(&path);
    assert_eq!(recovered.epoch, 2);
    let ids: Vec<_> = recovered
        .agents
        .iter()
        .map(|agent| agent.agent_id.as_str())
        .collect();
    assert_eq!(ids, ["a"]);
    assert_eq!(recovered.agents[0].info, Bytes::from_static(b"info of a"));
    assert_eq!(recovered.unreachable[0].since, Duration::from_millis(1_500));
    assert_eq!(recovered.unreachable[0].hostname, "b.example");
    let known: Vec<_> = recovered
        .frameworks
        .into_iter()
        .map(Mutation::PutFramework)
        .collect();
    assert_eq!(known, [framework("g", Some(3))]);
    let removed = vec![("f".to_owned(), Duration::from_secs(9))];
    assert_eq!(recovered.removed_frameworks, removed);
    assert_eq!(recovered.weights, Some(vec![("dev".to_owned(), 2.5)]));
    assert_eq!(recovered.deadlines.len(), 1);
    assert_eq!(recovered.deadlines[0].framework_id, "g");
    assert_eq!(recovered.deadlines[0].deadline, Duration::from_secs(7));
    registry.close();

    let (recovered, mut registry, persisted) = open(&path);
    assert_eq!(recovered.epoch, 3);
    registry.persist(Lsn(1), agent("b"));
    assert_eq!(persisted.recv().unwrap(), Lsn(1));
    registry.close();
    let (recovered, registry, _persisted) = open(&path);
    assert_eq!(recovered.agents.len(), 2);
    assert!(
        recovered.unreachable.is_empty(),
        "an admitted agent is no longer unreachable"
    );
    registry.close();
}

#[test]
fn a_copy_taken_at_any_report_holds_at_least_what_was_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    let (_, mut registry, persisted) = open(&path);
    for lsn in 1..=40_u64 {
        registry.persist(Lsn(lsn), agent(&format!("agent-{lsn:02}")));
        let mut durable = Lsn(0);
        while durable < Lsn(lsn) {
            durable = persisted.recv().unwrap();
        }
        if lsn % 8 == 0 {
            // What a power cut would leave: the file as it is now, never closed.
            let cut = dir.path().join(format!("cut-{lsn}.redb"));
            std::fs::copy(&path, &cut).unwrap();
            let (recovered, registry, _persisted) = open(&cut);
            assert_eq!(recovered.agents.len() as u64, lsn);
            registry.close();
        }
    }
    registry.close();
}

#[test]
fn a_second_process_is_told_whose_file_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    let (_, registry, _persisted) = open(&path);
    let error = Embedded::open(&path, Box::new(|_| ())).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    registry.close();
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    let meta = Meta {
        format: FORMAT + 1,
        epoch: 7,
    }
    .encode_to_vec();
    {
        let database = Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction
            .open_table(RECORDS)
            .unwrap()
            .insert(META_KEY, meta.as_slice())
            .unwrap();
        transaction.commit().unwrap();
    }
    let error = Embedded::open(&path, Box::new(|_| ())).unwrap_err();
    assert!(matches!(error, OpenError::Newer { .. }), "{error}");
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_read().unwrap();
    let table = transaction.open_table(RECORDS).unwrap();
    assert_eq!(
        table.get(META_KEY).unwrap().unwrap().value(),
        meta.as_slice()
    );
}

#[test]
fn a_file_that_is_no_registry_is_an_error_not_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    std::fs::write(&path, vec![0x5a; 8_192]).unwrap();
    assert!(Embedded::open(&path, Box::new(|_| ())).is_err());
}

#[test]
fn whoever_persists_never_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let (sender, persisted) = std::sync::mpsc::channel();
    // The first report is held back, and the writer with it.
    let report = Box::new(move |lsn| {
        let _closed = held.recv();
        let _unheard = sender.send(lsn);
    });
    let (_, mut registry) = Embedded::open(&path, report).unwrap();
    let many = super::super::QUEUE_MAX as u64 + 3_000;
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for lsn in 1..=many {
            let framework_ids = vec![format!("f-{lsn}")];
            registry.persist(Lsn(lsn), Mutation::RemoveDeadlines { framework_ids });
        }
        done.send(registry).unwrap();
    });
    let queued = finished.recv_timeout(std::time::Duration::from_secs(60));
    drop(go_on);
    let registry = queued.expect("persisting waits for the writer");
    thread.join().unwrap();
    Box::new(registry).close();
    assert_eq!(persisted.iter().last(), Some(Lsn(many)));
}
