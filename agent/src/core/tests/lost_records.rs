//! A damaged disk loses records of a start, while the started process continues, or has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::ProcessIdentity;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskLost, TaskRunning, TaskStarting};
use meseta_proto::mesos::v1::executor::call;
use meseta_proto::mesos::v1::task_status::Reason;

use super::custom::status;
use super::simulation::{Simulation, duration, identity, states, task};
use crate::checkpoint::{Layout, LogEntry, RunImage, Store, TaskKey, Write};
use crate::core::Exit;

/// All files of this name below a folder.
fn files_of(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_of(&entry.path(), name),
        Ok(kind) if kind.is_file() && entry.file_name() == name => vec![entry.path()],
        _ => Vec::new(),
    });
    found.collect()
}

impl Simulation {
    /// Removes logs of this name from the disk.
    fn lose(&self, name: &str) {
        let logs = files_of(self.work_dir(), name);
        assert!(!logs.is_empty(), "no {name}");
        for log in logs {
            std::fs::remove_file(log).expect("removed");
        }
    }

    fn only_run(&self) -> RunImage {
        let mut image = self.image();
        let mut framework = image.frameworks.pop().expect("a framework");
        framework.runs.pop().expect("a run")
    }
}

fn is_start(entry: &LogEntry) -> bool {
    matches!(entry, LogEntry::Started(_))
}

/// The supervisor and the uptime of each start in the log.
fn started(log: &[LogEntry]) -> Vec<(Option<ProcessIdentity>, Option<u64>)> {
    let started = log.iter().filter_map(|entry| match entry {
        LogEntry::Started(started) => Some(started),
        _ => None,
    });
    let told = started.map(|one| (ProcessIdentity::from_text(&one.supervisor), one.uptime_ns));
    told.collect()
}

/// Found by damaging one file after the other: first the log of an executor was lost, then its supervisor's note.
#[test]
fn lost_start_record_is_rewritten() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.lose("executor.log");
    simulation.crash(false);
    let executor = simulation.only_run().executor.expect("an executor");
    let [(who, Some(_))] = &started(&executor.log)[..] else {
        panic!("{:?}", executor.log);
    };
    assert_eq!(who.as_ref(), Some(&identity(0)));
    // Writing the start once is enough.
    let before = executor.log.len();
    simulation.crash(false);
    let executor = simulation.only_run().executor.expect("an executor");
    assert_eq!(executor.log.len(), before);
}

#[test]
fn rewritten_start_keeps_the_start_time() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.max_completion_time = Some(duration(Duration::from_secs(60)));
    simulation.running(info);
    // The updates of the task are there, but its start is not.
    let run = simulation.only_run();
    let task = &run.tasks[0];
    simulation.lose("task.updates");
    let key = Arc::new(TaskKey {
        run: run.key.clone(),
        task: task.id.clone(),
    });
    let kept = task.log.iter().filter(|entry| !is_start(entry));
    let kept: Vec<_> = kept
        .map(|entry| Write::Log {
            key: key.clone(),
            entry: Box::new(entry.clone()),
        })
        .collect();
    let store = Store::open(Layout::new(simulation.work_dir()));
    store.commit(&kept).expect("the disk works");
    simulation.advance(Duration::from_secs(50));
    simulation.crash(false);
    assert_eq!(started(&simulation.only_run().tasks[0].log).len(), 1);
    simulation.crash(false);
    simulation.advance(Duration::from_secs(9));
    assert!(simulation.kills().is_empty());
    simulation.advance(Duration::from_secs(2));
    assert_eq!(simulation.kills(), [Duration::ZERO]);
}

/// The executor had reported its task as running, so the task counts as begun, whatever records remain.
#[test]
fn executor_with_updates_counts_as_begun() {
    for is_on_machine in [true, false] {
        let (mut simulation, container) = Simulation::with_executor();
        simulation.tells(status("a", TaskRunning, 1));
        simulation.acknowledge_all();
        simulation.lose("executor.log");
        simulation.machine.remove(&container);
        if is_on_machine {
            simulation.unheard.push(container.clone());
        }
        simulation.crash(false);
        if is_on_machine {
            assert_eq!(simulation.link, None, "it might come back");
            simulation.end(&container, Exit::NeverBegun);
        }
        simulation.register();
        let told = simulation.acknowledge_all();
        assert_eq!(states(&told), [TaskFailed]);
        let message = told[0].message.clone().unwrap_or_default();
        assert!(message.contains("unknown"), "{message}");
    }
}

/// The executor never reported, and nothing is left: its task was not begun.
#[test]
fn silent_gone_executor_counts_as_unbegun() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.lose("executor.log");
    simulation.machine.remove(&container);
    simulation.restart();
    simulation.assert_only_told(TaskFailed, Reason::AgentRestarted);
}

/// The update may be written and not synced: a power cut after a kill of the agent would lose it after it was sent.
#[test]
fn recovered_updates_are_durable_before_resend() {
    let mut simulation = Simulation::with_started_task();
    assert_eq!(simulation.take_updates().len(), 1);
    simulation.quick_disk = false;
    simulation.crash(false);
    simulation.register();
    assert!(simulation.take_updates().is_empty());
    simulation.flush(usize::MAX);
    assert_eq!(simulation.take_updates().len(), 1);
}

/// The recovering step itself requests a resize: the containerizer must know the containers by then.
#[test]
fn resize_works_right_after_recovery() {
    let (mut simulation, _) = Simulation::with_executor();
    assert!(simulation.resize(None).is_empty());
    simulation.crash(false);
    assert_eq!(simulation.resize(None), [96]);
    simulation.subscribe(1, call::Subscribe::default());
    assert_eq!(simulation.resize(None), [32]);
    simulation.register();
    assert_eq!(simulation.told_states(), [TaskLost]);
}

fn uuids(log: &[LogEntry]) -> Vec<Option<Vec<u8>>> {
    let updates = log.iter().filter_map(|entry| match entry {
        LogEntry::Update(status) => Some(status.uuid.clone()),
        _ => None,
    });
    updates.collect()
}

/// Found by cutting a log in half: the agent sent TASK_STARTING to a framework that knew the task as running.
#[test]
fn torn_record_keeps_task_running() {
    let whole = {
        let (simulation, _) = Simulation::with_task();
        let log = &files_of(simulation.work_dir(), "task.updates")[0];
        std::fs::metadata(log).expect("a log").len()
    };
    let mut torn = 0;
    for kept in 0..whole {
        let (mut simulation, _) = Simulation::with_task();
        let known = uuids(&simulation.only_run().tasks[0].log);
        let log = files_of(simulation.work_dir(), "task.updates").remove(0);
        let file = std::fs::OpenOptions::new().write(true).open(log);
        file.and_then(|file| file.set_len(kept)).expect("cut");
        let mut frameworks = simulation.image().frameworks.into_iter();
        let run = frameworks.find_map(|mut framework| framework.runs.pop());
        let is_torn = run.is_some_and(|run| run.tasks[0].is_log_short);
        simulation.restart();
        let told = simulation.acknowledge_all();
        if is_torn {
            torn += 1;
            // The agent sends an update again, under the same id, if its acknowledgement was lost.
            let mut new = told.iter().filter(|status| !known.contains(&status.uuid));
            assert!(
                new.all(|status| status.state() == TaskRunning),
                "{kept}: {told:?}"
            );
        }
        // Writing the start once is enough.
        simulation.restart();
        let again = simulation.acknowledge_all();
        assert!(again.is_empty(), "{kept}: {again:?}");
    }
    assert!(torn > whole / 2, "{torn} of {whole}");
}

#[test]
fn lost_first_update_repeats_no_start() {
    let (mut simulation, _) = Simulation::with_task();
    let run = simulation.only_run();
    let task = &run.tasks[0];
    simulation.lose("task.updates");
    let key = Arc::new(TaskKey {
        run: run.key.clone(),
        task: task.id.clone(),
    });
    let is_starting = |entry: &&LogEntry| match entry {
        LogEntry::Update(status) => status.state() == TaskStarting,
        _ => false,
    };
    assert_eq!(task.log.iter().filter(is_starting).count(), 1);
    let kept = task.log.iter().filter(|entry| !is_starting(entry));
    let kept: Vec<_> = kept
        .map(|entry| Write::Log {
            key: key.clone(),
            entry: Box::new(entry.clone()),
        })
        .collect();
    let store = Store::open(Layout::new(simulation.work_dir()));
    store.commit(&kept).expect("the disk works");
    simulation.restart();
    assert!(simulation.acknowledge_all().is_empty());
}
