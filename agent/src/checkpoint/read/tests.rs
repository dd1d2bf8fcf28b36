//! A failing disk and a machine without descriptors: the agent takes no record for damaged.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nix::libc;

use super::*;
use crate::checkpoint::tests::{framework, identity, intent};
use crate::checkpoint::{Store, TaskRecord, Write};

/// The machine's disk, on which the first calls fail.
struct Failing {
    errno: i32,
    left: RefCell<BTreeMap<PathBuf, u32>>,
    each: u32,
    pauses: RefCell<u32>,
}

impl Failing {
    fn new(errno: i32, each: u32) -> Self {
        Self {
            errno,
            left: RefCell::default(),
            each,
            pauses: RefCell::new(0),
        }
    }

    fn fail(&self, path: &Path) -> io::Result<()> {
        let mut all = self.left.borrow_mut();
        let left = all.entry(path.to_owned()).or_insert(self.each);
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(io::Error::from_raw_os_error(self.errno))
    }
}

impl Disk for Failing {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.fail(path)?;
        LocalDisk.read(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.fail(folder)?;
        LocalDisk.list(folder)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.fail(path)?;
        LocalDisk.read_link(path)
    }

    fn pause(&self, _: std::time::Duration) {
        *self.pauses.borrow_mut() += 1;
    }
}

fn written() -> (tempfile::TempDir, Layout) {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let agent = AgentId::new("S0").expect("an id");
    let key = TaskKey {
        run: RunKey {
            agent: agent.clone(),
            framework: FrameworkId::new("F").expect("an id"),
            executor: ExecutorId::new("t").expect("an id"),
            container: ContainerId::new("c").expect("an id"),
        },
        task: TaskId::new("t").expect("an id"),
    };
    let writes = [
        Write::Agent {
            agent,
            record: Box::default(),
        },
        Write::Task {
            key: std::sync::Arc::new(key),
            record: Box::<TaskRecord>::default(),
        },
    ];
    Store::open(layout.clone())
        .commit(&writes)
        .expect("the disk works");
    (dir, layout)
}

#[test]
fn descriptor_shortage_is_waited_out() {
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR] {
        let (_dir, layout) = written();
        let disk = Failing::new(errno, 1_000);
        let image = read_from(&layout, &disk).expect("readable");
        assert_eq!((image.damages, image.repairs), (vec![], vec![]), "{errno}");
        assert!(image.agent.is_some());
        assert_eq!(image.frameworks[0].runs[0].tasks.len(), 1);
        assert!(*disk.pauses.borrow() >= 1_000);
    }
}

#[test]
fn occasional_disk_errors_lose_no_run() {
    let (_dir, layout) = written();
    let image = read_from(&layout, &Failing::new(libc::EIO, 2)).expect("readable");
    assert_eq!((image.damages, image.repairs), (vec![], vec![]));
    assert_eq!(image.frameworks[0].runs[0].tasks.len(), 1);
}

#[test]
fn failing_disk_allows_the_start() {
    let (_dir, layout) = written();
    let disk = Failing::new(libc::EIO, u32::MAX);
    let image = read_from(&layout, &disk).expect("readable");
    assert!(!image.damages.is_empty());
    assert!(*disk.pauses.borrow() < 1_000);
}

/// Regression: without record and log of their executor, one of two live tasks was reported as ended and the other
/// never.
#[test]
fn orphan_tasks_are_not_command_tasks() {
    let (_dir, layout) = written();
    let image = read_from(&layout, &LocalDisk).expect("readable");
    let run = image.frameworks[0].runs[0].key.clone();
    let key = TaskKey {
        run: run.clone(),
        task: TaskId::new("nested").expect("an id"),
    };
    let record = TaskRecord {
        nested_container: Some("c.nested".to_owned()),
        ..TaskRecord::default()
    };
    let write = Write::Task {
        key: std::sync::Arc::new(key),
        record: Box::new(record),
    };
    Store::open(layout.clone())
        .commit(&[write])
        .expect("the disk works");
    let image = read_from(&layout, &LocalDisk).expect("readable");
    assert!(image.frameworks.iter().all(|one| one.runs.is_empty()));
    let damaged: Vec<_> = image.damages.iter().map(|it| &it.path).collect();
    assert_eq!(damaged, [&layout.run(&run).join(EXECUTOR_INFO)]);
}

/// Records of earlier versions contain the framework in each task of a group.
#[test]
fn framework_is_read_once() {
    for with_record in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let store = Store::open(layout.clone());
        let tasks = ["a", "b", "c"].map(intent);
        let writes = [identity()].into_iter().chain(tasks);
        let writes: Vec<_> = writes.chain(with_record.then(framework)).collect();
        store.commit(&writes).expect("the disk works");
        let image = read(&layout).expect("readable");
        assert_eq!(image.frameworks[0].info.name, "n");
        let runs = image.frameworks[0].runs.iter();
        let tasks: Vec<_> = runs.flat_map(|run| &run.tasks).collect();
        assert_eq!(tasks.len(), 3);
        let nothing = FrameworkInfo::default();
        assert!(tasks.iter().all(|task| task.record.framework == nothing));
    }
}
