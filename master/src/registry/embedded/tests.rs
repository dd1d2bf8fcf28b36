//! The embedded registry across closes, crashes and damage.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use redb::ReadableDatabase;
use tempfile::TempDir;

use super::super::records::FORMAT;
use super::*;
use crate::core::{AgentRecord, DeadlineRecord, FrameworkRecord, RemovedRecord, UnreachableRecord};

/// A path for a registry, valid until the folder is dropped.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    (dir, path)
}

/// Changes the records without updating the checksum.
fn tamper(path: &Path, change: impl FnOnce(&mut redb::Table<'_, &str, &[u8]>)) {
    let database = Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&mut transaction.open_table(RECORDS).unwrap());
    transaction.commit().unwrap();
}

/// The error of opening the registry.
fn refusal(path: &Path) -> OpenError {
    Embedded::open(path, DiskPulse::default(), Box::new(|_| ())).unwrap_err()
}

fn open(path: &Path) -> (Recovered, Box<Embedded>, Receiver<Lsn>) {
    let (sender, receiver) = channel();
    let (recovered, registry) = Embedded::open(
        path,
        DiskPulse::default(),
        Box::new(move |lsn| sender.send(lsn).unwrap_or_default()),
    )
    .unwrap();
    (recovered, Box::new(registry), receiver)
}

/// The id in the marker beside the registry.
fn id_of(path: &Path) -> String {
    let marker = std::fs::read_to_string(path.with_extension("id"));
    marker.unwrap().trim().to_owned()
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
        principal: Some(format!("owner of {id}")),
        user: None,
        absent: absent.map(Duration::from_secs),
    })
}

/// A framework of a local user without a principal.
fn nameless(id: &str) -> Mutation {
    Mutation::PutFramework(FrameworkRecord {
        framework_id: id.to_owned(),
        principal: None,
        user: Some(1_000),
        absent: None,
    })
}

fn removed(id: &str) -> RemovedRecord {
    RemovedRecord {
        framework_id: id.to_owned(),
        since: Duration::from_secs(9),
        principal: Some(format!("owner of {id}")),
        user: None,
        by_operator: true,
    }
}

fn removal(id: &str, forgotten: &[&str]) -> Mutation {
    Mutation::EndFrameworks {
        removed: vec![removed(id)],
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
fn durable_records_survive_reopening() {
    let (_dir, path) = place();
    let (recovered, mut registry, persisted) = open(&path);
    assert_eq!(
        recovered,
        Recovered {
            epoch: 1,
            cluster_id: id_of(&path),
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
        nameless("k"),
        nameless("l"),
        nameless("m"),
        Mutation::RemoveFrameworks {
            framework_ids: vec!["h".to_owned(), "l".to_owned()],
        },
        removal("m", &["m"]),
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
    assert_eq!(recovered.cluster_id, id_of(&path));
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
    assert_eq!(known, [nameless("k"), framework("g", Some(3))]);
    assert_eq!(recovered.removed_frameworks, [removed("f")]);
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
fn copy_holds_everything_reported_durable() {
    let (dir, path) = place();
    let (_, mut registry, persisted) = open(&path);
    for lsn in 1..=40_u64 {
        registry.persist(Lsn(lsn), agent(&format!("agent-{lsn:02}")));
        let mut durable = Lsn(0);
        while durable < Lsn(lsn) {
            durable = persisted.recv().unwrap();
        }
        if lsn % 8 == 0 {
            // The state after a power cut: the current file, never closed.
            let cut = dir.path().join(format!("cut-{lsn}.redb"));
            std::fs::copy(&path, &cut).unwrap();
            let id = dir.path().join(format!("cut-{lsn}.id"));
            std::fs::copy(path.with_extension("id"), id).unwrap();
            let (recovered, registry, _persisted) = open(&cut);
            assert_eq!(recovered.agents.len() as u64, lsn);
            registry.close();
        }
    }
    registry.close();
}

#[test]
fn second_process_learns_file_owner() {
    let (_dir, path) = place();
    let (_, registry, _persisted) = open(&path);
    let error = refusal(&path);
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    registry.close();
}

#[test]
fn newer_format_is_refused_unchanged() {
    let (_dir, path) = place();
    let meta = Meta {
        format: FORMAT + 1,
        epoch: 7,
        ..Meta::default()
    }
    .encode_to_vec();
    tamper(&path, |table| {
        drop(table.insert(META_KEY, meta.as_slice()).unwrap())
    });
    let error = refusal(&path);
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
fn invalid_file_is_error_not_panic() {
    let (_dir, path) = place();
    std::fs::write(&path, vec![0x5a; 8_192]).unwrap();
    assert!(Embedded::open(&path, DiskPulse::default(), Box::new(|_| ())).is_err());
}

#[test]
fn persist_never_blocks_on_disk() {
    let (_dir, path) = place();
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let (sender, persisted) = std::sync::mpsc::channel();
    // The test holds the first report back, and the writer with it.
    let report = Box::new(move |lsn| {
        let _closed = held.recv();
        let _unheard = sender.send(lsn);
    });
    let (_, mut registry) = Embedded::open(&path, DiskPulse::default(), report).unwrap();
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

/// The file of a registry with two hundred agents, closed or still open in a master.
fn filled(path: &Path, is_closed: bool) -> Vec<u8> {
    let (_, mut registry, persisted) = open(path);
    for lsn in 1..=200_u64 {
        registry.persist(Lsn(lsn), agent(&format!("agent-{lsn:03}")));
    }
    registry.persist(
        Lsn(201),
        Mutation::PutWeights(vec![("dev".to_owned(), 2.5)]),
    );
    while persisted.recv().unwrap() < Lsn(201) {}
    let open = std::fs::read(path).unwrap();
    registry.close();
    if is_closed {
        std::fs::read(path).unwrap()
    } else {
        open
    }
}

/// Forty-eight kinds of damage to a file.
fn damages(whole: &[u8]) -> Vec<(String, Vec<u8>)> {
    let length = whole.len();
    let mut damages = vec![("empty".to_owned(), Vec::new())];
    for part in 1..8 {
        let cut = length * part / 8;
        damages.push((format!("cut at {cut}"), whole[..cut].to_vec()));
        let mut zeroed = whole.to_vec();
        let end = (cut + 4_096).min(length);
        zeroed[cut..end].fill(0);
        damages.push((format!("zeroes from {cut}"), zeroed));
    }
    let header = [0, 9, 12, 64, 70, 100, 192, 200, 300];
    let pages = (0..24).map(|number| 512 + number * (length - 512) / 24);
    for at in header.into_iter().chain(pages) {
        let mut flipped = whole.to_vec();
        flipped[at] ^= 0x10;
        damages.push((format!("a flip at {at}"), flipped));
    }
    assert_eq!(damages.len(), 48);
    damages
}

/// The full text of an error with its sources.
fn told(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        told = format!("{told}: {error}");
        next = error.source();
    }
    told
}

/// With any damaged file, a master either starts with all records, or refuses to start and names the remedy.
#[test]
fn damaged_registry_is_whole_or_refused() {
    for is_closed in [true, false] {
        let (_dir, path) = place();
        let whole = filled(&path, is_closed);
        let (mut refused, mut harmless) = (0, 0);
        for (what, bytes) in damages(&whole) {
            std::fs::write(&path, &bytes).unwrap();
            match Embedded::open(&path, DiskPulse::default(), Box::new(|_| ())) {
                Err(error) => {
                    refused += 1;
                    let told = told(&error);
                    assert!(
                        told.contains("restore a copy of the file"),
                        "{what}: {told}"
                    );
                    assert!(told.contains("registry.redb"), "{what}: {told}");
                    assert_eq!(
                        std::fs::read(&path).unwrap(),
                        bytes,
                        "{what}: left as it is"
                    );
                }
                Ok((recovered, registry)) => {
                    harmless += 1;
                    assert_eq!(recovered.agents.len(), 200, "{what}");
                    let weights = Some(vec![("dev".to_owned(), 2.5)]);
                    assert_eq!(recovered.weights, weights, "{what}");
                    Box::new(registry).close();
                }
            }
        }
        assert!(
            refused >= 8 && harmless > 0,
            "{refused} refused, {harmless} harmless"
        );
    }
}

#[test]
fn missing_registry_is_not_recreated() {
    let (dir, path) = place();
    filled(&path, true);
    let away = dir.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    let error = refusal(&path);
    assert!(matches!(error, OpenError::Lost { .. }), "{error}");
    assert!(
        error.to_string().contains("move the marker away"),
        "{error}"
    );
    assert!(!path.exists(), "nothing is made in its place");
    // The file of another cluster is refused as well.
    let other = dir.path().join("other/registry.redb");
    std::fs::create_dir(dir.path().join("other")).unwrap();
    filled(&other, true);
    std::fs::copy(&other, &path).unwrap();
    let error = refusal(&path);
    assert!(matches!(error, OpenError::Another { .. }), "{error}");
    // The remedies.
    std::fs::rename(&away, &path).unwrap();
    let (recovered, registry, _persisted) = open(&path);
    assert_eq!(recovered.agents.len(), 200);
    registry.close();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("id")).unwrap();
    let (recovered, registry, _persisted) = open(&path);
    assert_eq!((recovered.epoch, recovered.agents.len()), (1, 0));
    registry.close();
}

/// Found by starting a master on a full disk: the file held zeros, had no marker beside it, and no later start
/// succeeded.
#[test]
fn incomplete_new_registry_is_recreated() {
    let (_dir, path) = place();
    let zeros = vec![0; 1 << 20];
    std::fs::write(&path, &zeros).unwrap();
    assert!(is_absent(&path).unwrap(), "there is nothing to be checked");
    for epoch in [1, 2] {
        let (recovered, registry, _persisted) = open(&path);
        assert_eq!(recovered.epoch, epoch);
        registry.close();
        assert!(!is_absent(&path).unwrap());
    }
    // Killed before it wrote the marker.
    let id = id_of(&path);
    std::fs::remove_file(path.with_extension("id")).unwrap();
    let (recovered, registry, _persisted) = open(&path);
    assert_eq!((recovered.epoch, recovered.cluster_id), (3, id));
    registry.close();
    std::fs::write(&path, &zeros).unwrap();
    for error in [refusal(&path), is_absent(&path).unwrap_err()] {
        assert!(matches!(error, OpenError::Lost { .. }), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), zeros, "left as it is");
}

/// Found on a full disk: the error advised moving an intact registry away.
#[test]
fn disk_errors_are_not_registry_damage() {
    let (_dir, path) = place();
    for (number, expected) in [(28, "free space"), (30, "writable"), (5, "dmesg")] {
        let error = std::io::Error::from_raw_os_error(number);
        let told = told(&opening::read_error(&path, redb::Error::Io(error)));
        assert!(told.contains(expected), "{told}");
        assert!(told.contains(&format!("os error {number}")), "{told}");
        assert!(
            !told.contains("away") && !told.contains("restore a copy"),
            "{told}"
        );
    }
}

/// Records without their checksum are incomplete.
#[test]
fn missing_record_is_detected() {
    let (_dir, path) = place();
    filled(&path, true);
    tamper(&path, |table| {
        drop(table.remove("agent/agent-007").unwrap())
    });
    let error = refusal(&path);
    let OpenError::Incomplete { found, kept, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*found, *kept), (200, 201));
    assert!(
        error.to_string().contains("restore a copy of the file"),
        "{error}"
    );
}

#[test]
fn next_epoch_exceeds_raised_epoch() {
    let (_dir, path) = place();
    let (_, mut registry, persisted) = open(&path);
    for (lsn, epoch) in [(1, 8), (2, 9)] {
        registry.persist(Lsn(lsn), Mutation::RaiseEpoch { epoch });
        while persisted.recv().unwrap() < Lsn(lsn) {}
    }
    registry.close();
    let (mut image, _) = inspect(&path).unwrap();
    assert_eq!(image.epoch, 9);
    // After a move with `migrate`, the next master's epoch exceeds that of one started here by mistake.
    image.epoch += 1;
    let (_other_dir, other) = place();
    fill(&other, &image).unwrap();
    let (recovered, registry, _persisted) = open(&other);
    assert_eq!(recovered.epoch, 11);
    registry.close();
    for epoch in [10, 11] {
        let (recovered, registry, _persisted) = open(&path);
        assert_eq!(recovered.epoch, epoch);
        registry.close();
    }
}

/// A registry of an older master without ids and checksums is taken over.
#[test]
fn an_older_registry_is_taken_over() {
    let (_dir, path) = place();
    filled(&path, true);
    let meta = Meta {
        format: FORMAT,
        epoch: 7,
        ..Meta::default()
    };
    let bytes = meta.encode_to_vec();
    tamper(&path, |table| {
        drop(table.insert(META_KEY, bytes.as_slice()).unwrap())
    });
    let marker = path.with_extension("id");
    let id = std::fs::read_to_string(&marker).unwrap();
    for keeps_marker in [true, false] {
        if !keeps_marker {
            std::fs::remove_file(&marker).unwrap();
        }
        let (recovered, registry, _persisted) = open(&path);
        assert_eq!(recovered.agents.len(), 200);
        registry.close();
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), id);
    }
}

#[test]
fn inspection_leaves_registry_unchanged() {
    let (_dir, path) = place();
    for is_closed in [true, false] {
        let whole = filled(&path, is_closed);
        std::fs::write(&path, &whole).unwrap();
        let (image, damage) = inspect(&path).unwrap();
        let (recovered, damaged) = image.recovered();
        assert_eq!((image.records.len(), recovered.agents.len()), (201, 200));
        assert_eq!(image.epoch, if is_closed { 1 } else { 2 });
        let id = std::fs::read_to_string(path.with_extension("id")).unwrap();
        assert_eq!(image.id.as_deref(), Some(id.trim()));
        assert!(damage.is_none() && damaged.is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
    // A running master has exclusive access.
    let (_, registry, _persisted) = open(&path);
    let error = inspect(&path).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    registry.close();
    // The inspection shows a registry that a master would refuse, with the reason.
    std::fs::write(path.with_extension("id"), "another\n").unwrap();
    let (image, damage) = inspect(&path).unwrap();
    assert!(matches!(damage, Some(OpenError::Another { .. })));
    assert_eq!(image.records.len(), 201);
    std::fs::remove_file(&path).unwrap();
    assert!(inspect(&path).is_err());
    assert!(!path.exists());
}

#[test]
fn fills_only_an_absent_registry() {
    let (_dir, path) = place();
    filled(&path, true);
    let (image, _) = inspect(&path).unwrap();
    let (_other_dir, other) = place();
    fill(&other, &image).unwrap();
    assert_eq!(inspect(&other).unwrap().0, image);
    // The next master distinguishes itself from all earlier ones, and continues as usual.
    let (recovered, mut registry, persisted) = open(&other);
    assert_eq!(
        (recovered.epoch, recovered.agents.len()),
        (image.epoch + 1, 200)
    );
    registry.persist(Lsn(1), agent("another"));
    assert_eq!(persisted.recv().unwrap(), Lsn(1));
    registry.close();
    let whole = std::fs::read(&other).unwrap();
    let error = fill(&other, &image).unwrap_err();
    assert!(matches!(error, OpenError::NotEmpty { .. }), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), whole);
    // If a registry was lost, the marker prevents filling.
    std::fs::remove_file(&other).unwrap();
    let error = fill(&other, &image).unwrap_err();
    assert!(matches!(error, OpenError::NotEmpty { .. }), "{error}");
    let names = std::fs::read_dir(other.parent().unwrap()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["registry.id"], "nothing is left over");
}

/// The remains of a first start on a full disk used to prevent every import.
#[test]
fn leftover_of_first_start_allows_import() {
    let (_dir, path) = place();
    filled(&path, true);
    let (image, _) = inspect(&path).unwrap();
    let (_other_dir, other) = place();
    for begun in [false, true] {
        std::fs::write(&other, vec![0; 1 << 20]).unwrap();
        if begun {
            drop(opening::open_file(&other).unwrap());
        }
        fill(&other, &image).unwrap();
        assert_eq!(inspect(&other).unwrap().0, image);
        for name in ["registry.redb", "registry.id"] {
            std::fs::remove_file(other.with_file_name(name)).unwrap();
        }
        let names = std::fs::read_dir(other.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 0, "nothing is left over");
    }
}
