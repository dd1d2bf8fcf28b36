//! Damages each kind of checkpoint in many ways with a seeded generator. The start is never refused, the agent names
//! the damage, and no other executor loses anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::tests::{
    copy_tree, files_below, identity, intent, log, read_and_repair, remembered, task_key, tasks,
    update,
};
use super::*;

const SEED: u64 = 18;
/// Damages of each kind of file, in ordinary runs and in the long run.
const ROUNDS: usize = 160;
const ROUNDS_MORE: usize = 1000;
/// The interval, in rounds, at which the test also repairs the damage, which takes a disk longer.
const REPAIRED_EACH: usize = 25;
/// Executors, each with its own task and history.
const EXECUTORS: [&str; 4] = ["a", "b", "c", "d"];

/// The kind of damage to a file.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
enum Harm {
    Flip,
    Cut,
    Zeroes,
    OtherVersion,
    Longer,
    Empty,
    Garbage,
    AnotherFile,
}

const HARMS: [Harm; 8] = [
    Harm::Flip,
    Harm::Cut,
    Harm::Zeroes,
    Harm::OtherVersion,
    Harm::Longer,
    Harm::Empty,
    Harm::Garbage,
    Harm::AnotherFile,
];

impl Harm {
    fn apply(self, rng: &mut fastrand::Rng, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = rng.usize(..bytes.len().max(1));
        match self {
            Self::Flip => {
                for _ in 0..rng.usize(1..4) {
                    let at = rng.usize(..bytes.len());
                    bytes[at] ^= 1 << rng.u8(..8);
                }
            }
            Self::Cut => bytes.truncate(at),
            Self::Zeroes => {
                let end = (at + rng.usize(1..64)).min(bytes.len());
                bytes[at..end].fill(0);
            }
            // Version 0 was never written, and the higher numbers are no versions of this program.
            Self::OtherVersion => {
                let version = [0, 2, 3, u32::MAX][rng.usize(..4)];
                bytes[4..8].copy_from_slice(&version.to_le_bytes());
            }
            Self::Longer => bytes.extend((0..rng.usize(1..64)).map(|_| rng.u8(..))),
            Self::Empty => bytes.clear(),
            Self::Garbage => bytes.iter_mut().for_each(|byte| *byte = rng.u8(..)),
            Self::AnotherFile => *bytes = other.to_vec(),
        }
    }
}

/// A work directory with every kind of record.
fn written() -> (tempfile::TempDir, Layout) {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let store = Store::open(layout.clone());
    let mut writes = vec![
        remembered(),
        identity(),
        super::tests::framework(),
        super::holdings::tests::holdings_with("eng"),
        Write::Drain {
            agent: meseta_resources::AgentId::new("S0").expect("an id"),
            config: Some(meseta_proto::mesos::v1::DrainConfig::default()),
        },
    ];
    for name in EXECUTORS {
        writes.push(intent(name));
        writes.extend((1..6).map(|uuid| log(name, update(uuid))));
        writes.push(log(name, LogEntry::Acknowledged(vec![1; 16])));
    }
    store.commit(&writes).expect("the disk works");
    (dir, layout)
}

/// The logs of all tasks, by task name.
fn logs(image: &Image) -> BTreeMap<String, Vec<LogEntry>> {
    let frameworks = image.frameworks.iter();
    let runs = frameworks.flat_map(|framework| &framework.runs);
    let tasks = runs.flat_map(|run| &run.tasks);
    tasks
        .map(|task| (task.id.to_string(), task.log.clone()))
        .collect()
}

/// The executor that owns the file, if any.
fn owner(path: &Path) -> Option<&'static str> {
    let of = |name: &&&str| {
        path.to_string_lossy()
            .contains(&format!("executors/{name}/"))
    };
    EXECUTORS.iter().find(of).copied()
}

/// Whether `found` holds only entries of `whole`, in their order.
fn is_part(found: &[LogEntry], whole: &[LogEntry]) -> bool {
    let mut whole = whole.iter();
    found.iter().all(|entry| whole.any(|one| one == entry))
}

/// The kind of a file, by its name.
fn kind(path: &Path) -> String {
    let name = path.file_name().expect("a name");
    name.to_string_lossy().into_owned()
}

#[test]
fn damage_costs_at_most_one_executor() {
    damage(ROUNDS);
}

/// Run with `cargo test -p meseta-agent --lib a_thousand_damages -- --ignored`.
#[test]
#[ignore = "takes about a minute"]
fn repeated_damage_costs_one_executor() {
    damage(ROUNDS_MORE);
}

fn damage(rounds_of_a_kind: usize) {
    let (dir, layout) = written();
    let whole = read(&layout).expect("whole");
    assert!(whole.damages.is_empty());
    let logs_before = logs(&whole);
    let mut files = Vec::new();
    files_below(&layout.meta(), &mut files);
    files.sort();
    let mut kinds: BTreeMap<String, Vec<&PathBuf>> = BTreeMap::new();
    for path in &files {
        kinds.entry(kind(path)).or_default().push(path);
    }
    let kinds: Vec<_> = kinds.into_values().collect();
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut tried: BTreeMap<(String, Harm), usize> = BTreeMap::new();
    for round in 0..rounds_of_a_kind * kinds.len() {
        let (turn, of_kind) = (round / kinds.len(), &kinds[round % kinds.len()]);
        let path = of_kind[turn / HARMS.len() % of_kind.len()];
        let harm = HARMS[turn % HARMS.len()];
        let other = std::fs::read(&files[rng.usize(..files.len())]).expect("a file");
        let before = std::fs::read(path).expect("a file");
        let mut after = before.clone();
        harm.apply(&mut rng, &mut after, &other);
        if after == before {
            continue;
        }
        let inside = path.strip_prefix(dir.path()).expect("below");
        *tried.entry((kind(inside), harm)).or_default() += 1;
        let what = format!("round {round}: {harm:?} of {}", inside.display());
        std::fs::write(path, &after).expect("the damage");
        let found = check(&layout, inside, &logs_before, &what);
        if round % REPAIRED_EACH == 0 {
            let copy = tempfile::tempdir().expect("a directory");
            copy_tree(dir.path(), copy.path());
            check_repair(&Layout::new(copy.path()), found, &what);
        }
        std::fs::write(path, &before).expect("as it was");
    }
    for one in &kinds {
        let name = kind(one[0]);
        for harm in HARMS {
            let done = tried.get(&(name.clone(), harm)).copied();
            // Some damages change nothing, such as a file replaced by itself.
            let least = rounds_of_a_kind / HARMS.len() / 2;
            assert!(
                done.unwrap_or_default() >= least,
                "{harm:?} of {name}: {done:?}"
            );
        }
    }
}

fn check(
    layout: &Layout,
    damaged: &Path,
    logs_before: &BTreeMap<String, Vec<LogEntry>>,
    what: &str,
) -> BTreeMap<String, Vec<LogEntry>> {
    let image = read(layout).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = logs(&image);
    for (task, entries) in logs_before {
        if owner(damaged) != Some(task) {
            assert_eq!(found.get(task), Some(entries), "{what} cost {task}");
        } else if let Some(left) = found.get(task) {
            assert!(is_part(left, entries), "{what}: {left:?}");
            let is_noticed = !image.damages.is_empty() || !image.repairs.is_empty();
            // A log whose last records are cut off at a boundary looks like a log that was never longer.
            let is_shorter_log = damaged.ends_with("task.updates") && entries.starts_with(left);
            assert!(left == entries || is_noticed || is_shorter_log, "{what}");
        }
    }
    found
}

/// Repairs the damage, and checks that the start after this one finds the same tasks.
fn check_repair(layout: &Layout, found: BTreeMap<String, Vec<LogEntry>>, what: &str) {
    let repairs = read(layout).expect("read before").repairs;
    Store::open(layout.clone())
        .commit(&[Write::Repair { repairs }, log("a", update(9))])
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = read(layout).unwrap_or_else(|error| panic!("{what}, repaired: {error}"));
    let mut expected = found;
    if let Some(log) = expected.get_mut("a") {
        log.push(update(9));
    }
    assert_eq!(logs(&again), expected, "{what}, repaired");
}

/// Regression: a damaged name, or the presence of a former agent, ended every task of the node.
#[test]
fn damaged_agent_link_costs_no_task() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("points to nothing", |link| {
            std::os::unix::fs::symlink("nothing", link).expect("linked");
        }),
        ("points to no id", |link| {
            std::os::unix::fs::symlink("../..", link).expect("linked");
        }),
        ("is an empty file", |link| {
            std::fs::write(link, "").expect("written")
        }),
        ("is a folder", |link| {
            std::fs::create_dir(link).expect("made")
        }),
    ];
    for (what, damage) in damages {
        for of_before in [false, true] {
            let (_dir, layout) = super::tests::written();
            let link = layout.latest_agent();
            std::fs::remove_file(&link).expect("removed");
            damage(&link);
            if of_before {
                let before = layout.agent(&meseta_resources::AgentId::new("S9").expect("an id"));
                std::fs::create_dir(&before).expect("made");
                std::fs::write(before.join("slave.info"), "x").expect("written");
            }
            let image = read(&layout).expect("readable");
            let agent = image.agent.as_ref().expect("found by its records");
            assert_eq!(agent.id.as_str(), "S0", "{what}");
            assert_eq!(tasks(&image).len(), 2, "{what}");
            assert_eq!(image.damages.len(), 1, "{what}");
        }
    }
}

#[test]
fn ambiguous_agent_with_tasks_stops_start() {
    let (_dir, layout) = super::tests::written();
    let link = layout.latest_agent();
    std::fs::remove_file(&link).expect("removed");
    std::os::unix::fs::symlink("nothing", &link).expect("linked");
    let other = layout.agents().join("S1");
    std::fs::create_dir(&other).expect("made");
    copy_tree(&layout.agents().join("S0"), &other);
    let error = read(&layout).expect_err("either may have run last");
    let text = error.to_string();
    assert!(
        text.contains("S0, S1") && text.contains("ln -sfn"),
        "{text}"
    );
    // The operator's own way to a new agent.
    std::fs::remove_file(&link).expect("removed");
    assert!(read(&layout).expect("readable").agent.is_none());
}

/// Each start reported and counted the same damage, for as long as the task lived.
#[test]
fn log_hole_is_reported_once() {
    let (_dir, layout) = super::tests::written();
    let path = layout.task(&task_key("a")).join("task.updates");
    let whole = std::fs::read(&path).expect("a log");
    let is_short = |image: &Image| {
        let runs = image.frameworks.iter().flat_map(|one| &one.runs);
        let mut of_task = runs.flat_map(|run| &run.tasks);
        of_task.any(|task| task.id.as_str() == "a" && task.is_log_short)
    };
    let mut holes = Vec::new();
    for at in 0..whole.len() {
        let mut harmed = whole.clone();
        harmed[at] ^= 0xff;
        std::fs::write(&path, &harmed).expect("written");
        let first = read_and_repair(&layout);
        let again = read(&layout).expect("readable");
        if is_short(&first) && first.damages.len() == 1 {
            assert!(
                is_short(&again),
                "byte {at}: the bytes behind it are believed"
            );
            holes.push(first.damages);
        }
        assert_eq!(
            (again.damages, again.repairs),
            (vec![], vec![]),
            "byte {at}"
        );
    }
    // Another hole of the same log is reported.
    holes.dedup();
    assert!(holes.len() > 1, "{holes:?}");
}
