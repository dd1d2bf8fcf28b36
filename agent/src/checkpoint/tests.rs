//! Tests the store against crashes and damage: files cut at every byte, every record damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, TaskId};

use super::frame::LOG_HEADER_BYTES;
use super::holdings::tests::holdings_with;
use super::*;

fn run_key(name: &str) -> RunKey {
    RunKey {
        agent: AgentId::new("S0").expect("an id"),
        framework: FrameworkId::new("F").expect("an id"),
        executor: ExecutorId::new(name).expect("an id"),
        container: ContainerId::new(&format!("c-{name}")).expect("an id"),
    }
}

pub(super) fn task_key(name: &str) -> Arc<TaskKey> {
    Arc::new(TaskKey {
        run: run_key(name),
        task: TaskId::new(name).expect("an id"),
    })
}

fn framework_info() -> pb::FrameworkInfo {
    pb::FrameworkInfo {
        user: "u".to_owned(),
        name: "n".to_owned(),
        ..pb::FrameworkInfo::default()
    }
}

pub(super) fn update(uuid: u8) -> LogEntry {
    LogEntry::Update(pb::TaskStatus {
        uuid: Some(vec![uuid; 16]),
        state: pb::TaskState::TaskRunning.into(),
        ..pb::TaskStatus::default()
    })
}

pub(super) fn log(name: &str, entry: LogEntry) -> Write {
    Write::Log {
        key: task_key(name),
        entry: Box::new(entry),
    }
}

pub(super) fn intent(name: &str) -> Write {
    Write::Task {
        key: task_key(name),
        record: Box::new(TaskRecord {
            info: pb::TaskInfo {
                name: name.to_owned(),
                ..pb::TaskInfo::default()
            },
            framework: framework_info(),
            accepted_unix_ns: 7,
            ..TaskRecord::default()
        }),
    }
}

pub(super) fn identity() -> Write {
    Write::Agent {
        agent: AgentId::new("S0").expect("an id"),
        record: Box::new(AgentRecord {
            info: pb::AgentInfo {
                hostname: "host".to_owned(),
                ..pb::AgentInfo::default()
            },
            obeyed: None,
        }),
    }
}

pub(super) fn remembered() -> Write {
    Write::Remember {
        boot_id: "boot".to_owned(),
        instance: "agent-1".to_owned(),
    }
}

/// Reads the checkpoints and repairs the damage, as an agent does at its start.
pub(super) fn read_and_repair(layout: &Layout) -> Image {
    let image = read(layout).expect("readable");
    let repairs = image.repairs.clone();
    Store::open(layout.clone())
        .commit(&[Write::Repair { repairs }])
        .expect("the disk works");
    image
}

pub(super) fn framework() -> Write {
    Write::Framework {
        agent: AgentId::new("S0").expect("an id"),
        framework: FrameworkId::new("F").expect("an id"),
        record: Box::new(FrameworkRecord {
            info: framework_info(),
        }),
    }
}

/// Two tasks with a history each.
pub(super) fn written() -> (tempfile::TempDir, Layout) {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let store = Store::open(layout.clone());
    let writes = [
        identity(),
        framework(),
        intent("a"),
        intent("b"),
        log("a", update(1)),
        log("a", update(2)),
        log("b", update(3)),
        log("a", LogEntry::Acknowledged(vec![1; 16])),
    ];
    store.commit(&writes).expect("the disk works");
    (dir, layout)
}

pub(super) fn tasks(image: &Image) -> Vec<(String, usize)> {
    let runs = image
        .frameworks
        .iter()
        .flat_map(|framework| &framework.runs);
    let tasks = runs.flat_map(|run| &run.tasks);
    tasks
        .map(|task| (task.id.to_string(), task.log.len()))
        .collect()
}

fn a_and_b() -> Vec<(String, usize)> {
    vec![("a".to_owned(), 3), ("b".to_owned(), 1)]
}

pub(super) fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[test]
fn committed_records_are_read_back() {
    let (_dir, layout) = written();
    let image = read(&layout).expect("readable");
    assert_eq!(image.damages, []);
    let agent = image.agent.as_ref().expect("an agent");
    assert_eq!(agent.id.as_str(), "S0");
    let record = agent.record.as_ref().expect("a record");
    assert_eq!(record.info.hostname, "host");
    assert_eq!(tasks(&image), a_and_b());
    let first = &image.frameworks[0].runs[0].tasks[0];
    assert_eq!(
        first.log,
        [update(1), update(2), LogEntry::Acknowledged(vec![1; 16])]
    );
    assert_eq!(first.record.accepted_unix_ns, 7);
}

#[test]
fn empty_directory_is_a_new_agent() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let image = read(&layout).expect("readable");
    assert!(image.agent.is_none() && image.frameworks.is_empty() && image.damages.is_empty());
    Store::open(layout.clone())
        .commit(&[remembered()])
        .expect("written");
    let image = read(&layout).expect("readable");
    assert!(image.agent.is_none());
    assert_eq!(image.boot_id.as_deref(), Some("boot"));
    assert_eq!(image.instance.as_deref(), Some("agent-1"));
}

/// Returns the number of updates of task `a` that remain of these bytes, without damage.
fn left_of_log(layout: &Layout, bytes: &[u8]) -> usize {
    let path = layout.task(&task_key("a")).join("task.updates");
    std::fs::write(&path, bytes).expect("the cut");
    let image = read_and_repair(layout);
    assert_eq!(image.damages, [], "{bytes:?}");
    let kept = tasks(&image)[0].1;
    // The tail is removed durably, so that later records are found again.
    let store = Store::open(layout.clone());
    store
        .commit(&[log("a", update(9))])
        .expect("the disk works");
    let again = read(layout).expect("readable");
    assert_eq!(tasks(&again)[0].1, kept + 1, "{bytes:?}");
    kept
}

#[test]
fn truncated_log_loses_only_last_records() {
    let (_dir, layout) = written();
    let path = layout.task(&task_key("a")).join("task.updates");
    let whole = std::fs::read(&path).expect("a log");
    let cuts = (LOG_HEADER_BYTES..=whole.len()).map(|cut| left_of_log(&layout, &whole[..cut]));
    let kept: Vec<usize> = cuts.collect();
    assert!(kept.is_sorted(), "{kept:?}");
    assert_eq!(kept.last(), Some(&3));
}

/// Imitates a file system that makes the length of a file durable before its bytes.
#[test]
fn trailing_zeroes_in_log_are_unwritten() {
    let (_dir, layout) = written();
    let path = layout.task(&task_key("a")).join("task.updates");
    let whole = std::fs::read(&path).expect("a log");
    for cut in (LOG_HEADER_BYTES..whole.len()).step_by(8) {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        left_of_log(&layout, &torn);
    }
}

/// Imitates a sector that fails under a running task: the agent must not report its state as if it had not begun.
#[test]
fn headless_log_costs_only_its_run() {
    let (_dir, layout) = written();
    let path = layout.task(&task_key("a")).join("task.updates");
    let whole = std::fs::read(&path).expect("a log");
    for lost in [
        vec![0; whole.len()],
        Vec::new(),
        whole[..LOG_HEADER_BYTES - 1].to_vec(),
    ] {
        std::fs::write(&path, &lost).expect("the damage");
        let image = read(&layout).expect("readable");
        assert_eq!(tasks(&image), [("b".to_owned(), 1)]);
        let damaged: Vec<_> = image.damages.iter().map(|it| &it.path).collect();
        assert_eq!(damaged, [&path]);
    }
}

/// Regression: the agent reported a running task of a custom executor as dropped.
#[test]
fn missing_record_costs_only_its_run() {
    let (_dir, layout) = written();
    let path = layout.task(&task_key("a")).join("task.info");
    std::fs::remove_file(&path).expect("removed");
    let image = read(&layout).expect("readable");
    assert_eq!(tasks(&image), [("b".to_owned(), 1)]);
    let damaged: Vec<_> = image.damages.iter().map(|it| &it.path).collect();
    assert_eq!(damaged, [&path]);
    assert!(matches!(image.repairs[..], [Repair::SetAside { .. }]));
}

#[test]
fn truncated_record_costs_only_its_run() {
    let (dir, layout) = written();
    let path = layout.task(&task_key("a")).join("task.info");
    let whole = std::fs::read(&path).expect("a record");
    let run = layout.run(&run_key("a"));
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).expect("the cut");
        let image = read_and_repair(&layout);
        assert_eq!(tasks(&image), [("b".to_owned(), 1)], "cut at {cut}");
        assert_eq!(image.damages.len(), 1, "cut at {cut}");
        // The damaged run is kept as evidence, where the next start does not read it.
        let aside = layout.quarantine().join("c-a");
        assert!(aside.exists() && !run.exists());
        assert_eq!(read(&layout).expect("readable").damages, []);
        std::fs::rename(&aside, &run).expect("put back");
    }
    drop(dir);
}

#[test]
fn flipped_byte_never_stops_start() {
    let (dir, layout) = written();
    let store = Store::open(layout.clone());
    store.commit(&[remembered()]).expect("written");
    let mut files = Vec::new();
    files_below(&layout.meta(), &mut files);
    assert!(files.len() >= 8, "{files:?}");
    for path in files {
        let whole = std::fs::read(&path).expect("a file");
        for at in 0..whole.len() {
            let copy = tempfile::tempdir().expect("a directory");
            copy_tree(dir.path(), copy.path());
            let mut rotten = whole.clone();
            rotten[at] ^= 0x08;
            let inside = path.strip_prefix(dir.path()).expect("below");
            std::fs::write(copy.path().join(inside), &rotten).expect("the rot");
            match read(&Layout::new(copy.path())) {
                Ok(image) => check_other_runs(inside, &image),
                Err(error) => panic!("{}, byte {at}: {error}", inside.display()),
            }
        }
    }
}

fn check_other_runs(damaged: &Path, image: &Image) {
    let whole = a_and_b();
    for (task, entries) in &whole {
        if !damaged
            .to_string_lossy()
            .contains(&format!("executors/{task}/"))
        {
            let found = tasks(image);
            assert!(
                found.contains(&(task.clone(), *entries)),
                "{damaged:?} cost {task}"
            );
        }
    }
}

pub(super) fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a type");
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            std::fs::create_dir(&target).expect("a folder");
            copy_tree(&entry.path(), &target);
        } else if kind.is_symlink() {
            let link = std::fs::read_link(entry.path()).expect("a link");
            std::os::unix::fs::symlink(link, &target).expect("a link");
        } else {
            std::fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

#[test]
fn retired_task_leaves_its_executor() {
    let (_dir, layout) = written();
    let store = Store::open(layout.clone());
    let key = task_key("a");
    store
        .commit(&[log("a", update(4)), Write::RetireTask { key: key.clone() }])
        .expect("the disk works");
    assert!(!layout.task(&key).exists());
    assert!(layout.run(&run_key("a")).exists());
    store
        .commit(&[Write::RetireTask { key }])
        .expect("retiring twice is harmless");
    assert_eq!(
        tasks(&read(&layout).expect("readable")),
        [("b".to_owned(), 1)]
    );
}

#[test]
fn long_log_is_bounded_with_pending() {
    let (_dir, layout) = written();
    let store = Store::open(layout.clone());
    let path = layout.task(&task_key("a")).join("task.updates");
    let numbered = |number: u32| {
        LogEntry::Update(pb::TaskStatus {
            uuid: Some(number.to_le_bytes().to_vec()),
            state: pb::TaskState::TaskRunning.into(),
            message: Some("m".repeat(200)),
            ..pb::TaskStatus::default()
        })
    };
    let mut longest = 0;
    for round in 0..100_u32 {
        let updates = (0..50).flat_map(|one| {
            let number = round * 50 + one;
            let uuid = number.to_le_bytes().to_vec();
            [numbered(number), LogEntry::Acknowledged(uuid)]
        });
        let mut writes: Vec<_> = updates.map(|entry| log("a", entry)).collect();
        if round == 99 {
            // The last one is still unacknowledged.
            writes.pop();
        }
        store.commit(&writes).expect("the disk works");
        longest = longest.max(std::fs::metadata(&path).expect("a log").len());
    }
    assert!(longest < 160 << 10, "{longest}");
    let image = read(&layout).expect("readable");
    assert!(image.damages.is_empty() && image.repairs.is_empty());
    let mut all = image
        .frameworks
        .iter()
        .flat_map(|framework| &framework.runs);
    let task = all.find_map(|run| run.tasks.iter().find(|task| task.id.as_str() == "a"));
    let last = task.expect("the task").log.last();
    assert_eq!(last, Some(&numbered(99 * 50 + 49)));
}

#[test]
fn retired_run_leaves_other_runs() {
    let (_dir, layout) = written();
    let store = Store::open(layout.clone());
    let late = log("a", update(4));
    let retire = Write::Retire { key: run_key("a") };
    store
        .commit(&[late, retire.clone()])
        .expect("the disk works");
    assert_eq!(
        tasks(&read(&layout).expect("readable")),
        [("b".to_owned(), 1)]
    );
    store.commit(&[retire]).expect("retiring twice is harmless");
    let executor = layout.run(&run_key("a"));
    let executor = executor.parent().and_then(Path::parent).expect("a folder");
    assert!(!executor.exists(), "nothing of it is left");
    drop(store);
    assert_eq!(retired(&layout), 0, "the janitor ends with its work done");
}

#[test]
fn executor_with_other_run_is_kept() {
    let (_dir, layout) = written();
    let store = Store::open(layout.clone());
    let mut second = (*task_key("a")).clone();
    second.run.container = ContainerId::new("c-a2").expect("an id");
    let entry = Box::new(update(8));
    let Write::Task { record, .. } = intent("a") else {
        panic!("not that");
    };
    let key = Arc::new(second);
    let again = [
        Write::Task {
            key: key.clone(),
            record,
        },
        Write::Log { key, entry },
        Write::Retire { key: run_key("a") },
    ];
    store.commit(&again).expect("the disk works");
    let found = tasks(&read(&layout).expect("readable"));
    assert_eq!(found, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
}

fn retired(layout: &Layout) -> usize {
    std::fs::read_dir(layout.retired()).map_or(0, Iterator::count)
}

/// A full disk fails the last write of a batch. With free space again, the batch continues there, and does not write
/// the retired records again.
#[test]
fn failed_batch_resumes_at_failed_write() {
    let (_dir, layout) = written();
    let store = Store::open(layout.clone());
    let batch = [
        log("a", update(4)),
        Write::Retire { key: run_key("a") },
        intent("c"),
        log("c", update(5)),
    ];
    let folder = layout.run(&run_key("c"));
    let executor = folder.parent().and_then(Path::parent).expect("a folder");
    // Nothing can be created in this folder.
    std::os::unix::fs::symlink("/proc/self", executor).expect("linked");
    let mut commit = store.begin(&batch);
    for _ in 0..3 {
        commit.resume().expect_err("something is in the way");
    }
    std::fs::remove_file(executor).expect("removed");
    commit.resume().expect("nothing is in the way");
    let found = tasks(&read(&layout).expect("readable"));
    assert_eq!(found, [("b".to_owned(), 1), ("c".to_owned(), 1)]);
    assert!(!layout.run(&run_key("a")).exists());
    drop(store);
    assert_eq!(retired(&layout), 0);
}

#[test]
fn tasks_replace_lost_framework_record() {
    let (_dir, layout) = written();
    let id = FrameworkId::new("F").expect("an id");
    let agent = AgentId::new("S0").expect("an id");
    std::fs::remove_file(layout.framework_info(&agent, &id)).expect("removed");
    let image = read(&layout).expect("readable");
    assert_eq!(image.frameworks[0].info.name, "n");
    assert_eq!(tasks(&image), a_and_b());
}

#[test]
fn interrupted_writes_are_not_records() {
    let (_dir, layout) = written();
    let folder = layout.task(&task_key("a"));
    std::fs::write(folder.join(".task.info.tmp"), b"half").expect("written");
    let store = Store::open(layout.clone());
    assert_eq!(tasks(&read(&layout).expect("readable")), a_and_b());
    store
        .commit(&[intent("a")])
        .expect("the leftover is no obstacle");
    assert!(!folder.join(".task.info.tmp").exists());
}

#[test]
fn undurable_run_is_gone_after_start() {
    let (_dir, layout) = written();
    let unborn = layout.run(&run_key("unborn"));
    let task = unborn.join("tasks/unborn");
    std::fs::create_dir_all(&task).expect("made");
    std::fs::write(task.join(".task.info.tmp"), b"half").expect("written");
    // A record that shows a begun task is not a leftover.
    let logged = layout.run(&run_key("logged"));
    std::fs::create_dir_all(logged.join("tasks/logged")).expect("made");
    std::fs::write(logged.join("tasks/logged/task.updates"), b"").expect("written");
    assert_eq!(tasks(&read_and_repair(&layout)), a_and_b());
    let executor = unborn.parent().and_then(Path::parent).expect("a folder");
    assert!(!executor.exists(), "nothing of it is left");
    assert_eq!(retired(&layout), 0, "and the janitor has removed it");
    assert!(layout.quarantine().join("c-logged").exists());
    assert_eq!(tasks(&read_and_repair(&layout)), a_and_b());
}

#[test]
fn checkpoints_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_dir, layout) = written();
    let mut files = Vec::new();
    files_below(&layout.meta(), &mut files);
    for path in files {
        let mode = std::fs::metadata(&path)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{path:?}");
    }
}

/// An entry that a power cut may leave in the place of a record.
fn put(path: &Path, kind: &str) {
    let found = std::fs::symlink_metadata(path).expect("there");
    if found.is_dir() {
        std::fs::remove_dir_all(path).expect("removed");
    } else {
        std::fs::remove_file(path).expect("removed");
    }
    match kind {
        "an empty file" => std::fs::write(path, "").expect("written"),
        "a folder" => std::fs::create_dir_all(path.join("inner")).expect("made"),
        "a link to nothing" => {
            std::os::unix::fs::symlink("nothing", path).expect("linked");
        }
        "a link to itself" => std::os::unix::fs::symlink(path, path).expect("linked"),
        "a pipe" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made"),
        other => panic!("{other}"),
    }
}

fn all_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        found.push(entry.path());
        if entry.file_type().expect("a type").is_dir() {
            all_below(&entry.path(), found);
        }
    }
}

/// With an entry of any kind in any place the agent starts, other runs outside of it are untouched, and later writes
/// can be read again.
#[test]
fn changed_file_types_allow_the_start() {
    let (dir, layout) = written();
    let store = Store::open(layout.clone());
    let drain = Write::Drain {
        agent: AgentId::new("S0").expect("an id"),
        config: Some(pb::DrainConfig::default()),
    };
    store.commit(&[remembered(), drain]).expect("written");
    let mut all = Vec::new();
    all_below(&layout.meta(), &mut all);
    assert!(all.len() >= 20, "{all:?}");
    let kinds = [
        "an empty file",
        "a folder",
        "a link to nothing",
        "a link to itself",
        "a pipe",
    ];
    for path in all {
        for kind in kinds {
            let inside = path.strip_prefix(dir.path()).expect("below");
            let copy = tempfile::tempdir().expect("a directory");
            copy_tree(dir.path(), copy.path());
            put(&copy.path().join(inside), kind);
            let layout = Layout::new(copy.path());
            let what = format!("{} became {kind}", inside.display());
            let image = read(&layout).unwrap_or_else(|error| panic!("{what}: {error}"));
            let repairs = image.repairs.clone();
            let store = Store::open(layout.clone());
            let Write::Task { record, .. } = intent("n") else {
                panic!("not that");
            };
            let task = |key| Write::Task {
                key,
                record: record.clone(),
            };
            let again = [
                Write::Repair { repairs },
                remembered(),
                identity(),
                framework(),
                task(task_key("new")),
                log("new", update(9)),
                task(task_key("a")),
                log("a", update(8)),
            ];
            let written = store.commit(&again);
            written.unwrap_or_else(|error| panic!("{what}: {error}"));
            let image = read(&layout).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(image.damages, [], "{what}");
            let found = tasks(&image);
            assert!(found.contains(&("new".to_owned(), 1)), "{what}: {found:?}");
            let of_a = found.iter().find(|(task, _)| task == "a");
            assert!(of_a.is_some_and(|(_, entries)| *entries >= 1), "{what}");
            assert_eq!(image.boot_id.as_deref(), Some("boot"), "{what}");
        }
    }
}

#[test]
fn drain_is_remembered_until_over() {
    let (_dir, layout) = written();
    let agent = AgentId::new("S0").expect("an id");
    let store = Store::open(layout.clone());
    let config = Some(pb::DrainConfig {
        mark_gone: Some(true),
        ..pb::DrainConfig::default()
    });
    let drained = || read(&layout).expect("readable").agent.expect("known").drain;
    assert_eq!(drained(), None);
    for config in [config, None, None] {
        let agent = agent.clone();
        store
            .commit(&[Write::Drain { agent, config }])
            .expect("written");
        assert_eq!(drained(), config);
    }
}

#[test]
#[ignore = "prints how long a thousand launches take to become durable"]
fn thousand_intents() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let store = Store::open(Layout::new(dir.path()));
    let names: Vec<_> = (0..1000).map(|number| format!("t{number}")).collect();
    let begun = std::time::Instant::now();
    for chunk in names.chunks(200) {
        let writes: Vec<_> = chunk.iter().map(|name| intent(name)).collect();
        store.commit(&writes).expect("the disk works");
    }
    eprintln!("intents: {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    for chunk in names.chunks(200) {
        let writes: Vec<_> = chunk.iter().map(|name| log(name, update(1))).collect();
        store.commit(&writes).expect("the disk works");
    }
    eprintln!("first updates: {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    for chunk in names.chunks(200) {
        let writes: Vec<_> = chunk.iter().map(|name| log(name, update(2))).collect();
        store.commit(&writes).expect("the disk works");
    }
    eprintln!("updates: {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    for chunk in names.chunks(200) {
        let retire = |name: &String| Write::Retire { key: run_key(name) };
        let writes: Vec<_> = chunk.iter().map(retire).collect();
        store.commit(&writes).expect("the disk works");
    }
    eprintln!("retirements: {:?}", begun.elapsed());
}

#[test]
fn oversized_writes_are_skipped_alone() {
    let (dir, layout) = written();
    let store = Store::open(layout.clone());
    let impossible = holdings_with(&format!("dev/{}/{}", "x".repeat(200), "x".repeat(99)));
    let long = LogEntry::Update(pb::TaskStatus {
        data: Some(vec![0; frame::BODY_BYTES_MAX]),
        ..pb::TaskStatus::default()
    });
    let writes = [
        impossible,
        intent("c"),
        log("a", long),
        log("b", update(4)),
        log("b", update(5)),
    ];
    store.commit(&writes).expect("the log goes on");
    let image = read(&layout).expect("readable");
    let found = tasks(&image);
    assert!(found.contains(&("b".to_owned(), 3)), "{found:?}");
    assert!(found.contains(&("c".to_owned(), 0)), "{found:?}");
    assert_eq!(found.len(), 3);
    assert!(image.holdings.is_some(), "the record itself is sound");
    drop(dir);
}
