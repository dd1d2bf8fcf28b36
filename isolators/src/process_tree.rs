//! The descendants of processes, read from procfs.
//!
//! For containers without cgroups or pid namespace, and for the posix isolators. A tree read from procfs is a snapshot that
//! may already be wrong: callers loop until it is empty, or only measure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::identity::fields_of_stat;
use crate::sys;

/// The number of file tables with which each thread of a process is compared: a hostile process gives each of its threads a
/// table.
const TABLES_COMPARED_MAX: usize = 16;

/// Direct children of a process; empty if the process is gone.
pub(crate) fn children_of(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    match fs::read_to_string(path) {
        Ok(text) => text
            .split_ascii_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect(),
        // The kernel does not have that file: check all processes.
        Err(_) => all_children(Path::new("/proc"))
            .remove(&pid)
            .unwrap_or_default(),
    }
}

/// All descendants of a process, without the process.
pub(crate) fn descendants_of(proc: &Path, pid: i32) -> Vec<i32> {
    let mut children = all_children(proc);
    let mut found = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        let direct = children.remove(&parent).unwrap_or_default();
        found.extend(&direct);
        next.extend(direct);
    }
    found.sort_unstable();
    found
}

/// Whether one of these processes has a child that this procfs hides (`hidepid`, and a user that is not its own). Checked
/// twice: a child may end in between. The kernel lists children by thread; only first threads are read.
pub(crate) fn has_hidden_child(proc: &Path, pids: &[i32]) -> bool {
    let listed = |pid: &i32| {
        let pid = pid.to_string();
        let path = proc.join(&pid).join("task").join(&pid).join("children");
        fs::read_to_string(path).unwrap_or_default()
    };
    let hidden = |pid: &i32| {
        let text = listed(pid);
        let unseen = |child: &&str| fs::read(proc.join(child).join("stat")).is_err();
        text.split_ascii_whitespace()
            .find(unseen)
            .map(str::to_owned)
    };
    pids.iter().any(|pid| {
        hidden(pid).is_some_and(|child| {
            listed(pid)
                .split_ascii_whitespace()
                .any(|still| still == child)
        })
    })
}

/// Folders of the threads of a process, as procfs shows them; empty if the process is gone. The first thread may have ended
/// long before the others, and each may have files and namespaces of its own.
pub(crate) fn threads_of(process: &Path) -> Vec<PathBuf> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    let folders = threads.flatten().map(|entry| entry.path());
    folders.collect()
}

/// Returns the procfs folder of one thread for each descriptor table of a process. Most processes have a single table,
/// which all threads share. If the kernel cannot compare tables, returns the folder of every thread.
pub(crate) fn file_tables_of(process: &Path) -> Vec<PathBuf> {
    let number = |folder: &Path| folder.file_name()?.to_str()?.parse::<i32>().ok();
    let mut tables: Vec<PathBuf> = Vec::new();
    for thread in threads_of(process) {
        let shares = |known: &PathBuf| match (number(known), number(&thread)) {
            (Some(one), Some(other)) => sys::share_files(one, other),
            _ => false,
        };
        if !tables.iter().take(TABLES_COMPARED_MAX).any(shares) {
            tables.push(thread);
        }
    }
    tables
}

fn all_children(proc: &Path) -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    for entry in entries {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = pid else { continue };
        if let Some(parent) = fs::read(entry.path().join("stat"))
            .ok()
            .and_then(|s| parent_of(&s))
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// The parent of a process; `None` if the process is gone.
pub(crate) fn parent_of_process(proc: &Path, pid: i32) -> Option<i32> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    parent_of(&stat)
}

/// The parent's pid in a `stat` line.
fn parent_of(stat: &[u8]) -> Option<i32> {
    fields_of_stat(stat)?.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_tree_is_read_from_fixture() {
        let proc = tempfile::tempdir().expect("a temporary folder");
        for (pid, parent) in [(10, 1), (11, 10), (12, 11), (13, 1), (14, 10)] {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).expect("made");
            fs::write(dir.join("stat"), format!("{pid} (a) b) S {parent} 1 1")).expect("written");
        }
        fs::create_dir(proc.path().join("self")).expect("made");
        assert_eq!(descendants_of(proc.path(), 10), [11, 12, 14]);
        assert_eq!(descendants_of(proc.path(), 13), [0; 0]);
        let parents = [12, 99].map(|pid| parent_of_process(proc.path(), pid));
        assert_eq!(parents, [Some(11), None]);
    }
}
