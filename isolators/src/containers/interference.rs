//! Interference by others with the processes of a running container: a stopped supervisor, or a task outside its groups.
//!
//! Reads a few files of procfs for each container, so that occasional calls are cheap. Invariant: processes that are ending,
//! are no longer children of the supervisor or cannot be read are not reported.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use super::Containers;
use crate::cgroup::{Groups, Version};
use crate::identity::{ContainerName, ProcessIdentity, fields_of_stat};

/// The number of a supervisor's children to check; the first is the task.
const CHILDREN_MAX: usize = 16;
/// The number of bytes read of the list of children, which is as long as the number of processes that the task left behind.
const CHILDREN_BYTES_MAX: u64 = 1_024;

/// The kernel's flag of an ending process: version 1 shows such a process at the root already.
const PF_EXITING: u64 = 0x4;

/// The interference found for a container.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Interference {
    /// The supervisor of the container is stopped (`SIGSTOP`): nobody reports the end of the task until the supervisor continues.
    pub supervisor_stopped: bool,
    /// A process of the container outside its groups, which escapes their limits and accounting.
    pub outside: Option<Outside>,
}

/// A process outside the groups of its launch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outside {
    pub pid: i32,
    /// The present group of the process, as the kernel writes it: `memory:/user.slice`.
    pub group: String,
}

impl Containers {
    /// Detects interference with the processes of a container; empty if that cannot be read.
    pub fn interference(&self, name: &ContainerName, supervisor: &ProcessIdentity) -> Interference {
        let mut groups = self.groups(name);
        // No process can be in a removed group; the comparison of limits reports the removal.
        groups.dirs.retain(|group| group.dir.exists());
        let below_mount = |dir: &Path| self.layout.below_mount(dir).display().to_string();
        let expected: Vec<_> = groups
            .dirs
            .iter()
            .map(|group| below_mount(&group.dir))
            .collect();
        find(&self.host.proc, supervisor, &groups, &expected)
    }
}

/// Detects interference; `expected` has the folder of each group below its mount.
fn find(
    proc: &Path,
    supervisor: &ProcessIdentity,
    groups: &Groups,
    expected: &[String],
) -> Interference {
    let is_supervisor = |stat: &Stat| stat.start_ticks == supervisor.start_ticks;
    let Some(stat) = Stat::read(proc, supervisor.pid).filter(is_supervisor) else {
        return Interference::default();
    };
    let pid = supervisor.pid.to_string();
    let children = first_children(&proc.join(&pid).join("task").join(&pid).join("children"));
    let pids = children.split_ascii_whitespace().take(CHILDREN_MAX);
    let mut pids = pids.filter_map(|pid| pid.parse::<i32>().ok());
    let outside = pids.find_map(|pid| {
        let text = fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
        let group = outside(&text, groups, expected)?;
        // Read afterwards: a process that is ending now may have been ending at the first read.
        let stat = Stat::read(proc, pid)?;
        let is_task = stat.parent == supervisor.pid && !stat.is_ending();
        is_task.then_some(Outside { pid, group })
    });
    Interference {
        supervisor_stopped: stat.state == b'T',
        outside,
    }
}

/// The beginning of a list of children, which may end within the last number; empty if the kernel has no such file.
fn first_children(list: &Path) -> String {
    let mut first = String::new();
    let read =
        File::open(list).and_then(|list| list.take(CHILDREN_BYTES_MAX).read_to_string(&mut first));
    read.map_or_else(|_| String::new(), |_| first)
}

/// The first group in `/proc/<pid>/cgroup` that is neither the container's nor inside it.
fn outside(text: &str, groups: &Groups, expected: &[String]) -> Option<String> {
    let lines = || text.lines().filter_map(|line| line.split_once(':'));
    groups.dirs.iter().zip(expected).find_map(|(group, below)| {
        let (controllers, path) = lines().find_map(|(_, rest)| {
            let (controllers, path) = rest.split_once(':')?;
            let is_tree = match group.version {
                Version::V2 => controllers.is_empty(),
                Version::V1 => {
                    let is_used = |name| group.controllers.iter().any(|one| one.name() == name);
                    controllers.split(',').any(is_used)
                }
            };
            is_tree.then_some((controllers, path))
        })?;
        // The path may begin above the mount, or at the root of a cgroup namespace.
        let is_inside = format!("{path}/").contains(&format!("/{below}/"));
        (!is_inside).then(|| format!("{controllers}:{path}"))
    })
}

/// The needed fields of `/proc/<pid>/stat`.
struct Stat {
    state: u8,
    parent: i32,
    flags: u64,
    start_ticks: u64,
}

impl Stat {
    fn read(proc: &Path, pid: i32) -> Option<Self> {
        let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
        let mut fields = fields_of_stat(&stat)?;
        Some(Self {
            state: *fields.next()?.as_bytes().first()?,
            parent: fields.next()?.parse().ok()?,
            flags: fields.nth(4)?.parse().ok()?,
            start_ticks: fields.nth(12)?.parse().ok()?,
        })
    }

    fn is_ending(&self) -> bool {
        matches!(self.state, b'Z' | b'X') || self.flags & PF_EXITING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Controller, GroupDir};
    use crate::identity::BootId;

    const SUPERVISOR: i32 = 10;
    const TASK: i32 = 11;

    fn supervisor() -> ProcessIdentity {
        ProcessIdentity {
            pid: SUPERVISOR,
            start_ticks: 42,
            boot_id: BootId::from_text("b"),
        }
    }

    fn groups() -> (Groups, Vec<String>) {
        let group = |version, controllers: &[Controller]| GroupDir {
            version,
            dir: Path::new("/x").into(),
            controllers: controllers.into(),
        };
        let dirs = vec![
            group(Version::V1, &[Controller::Cpu]),
            group(Version::V1, &[Controller::Memory]),
            group(Version::V2, &[]),
        ];
        let expected = vec!["meseta/agent-1/c".to_owned(); dirs.len()];
        (Groups { dirs }, expected)
    }

    /// Writes a supervisor in this state and its one child.
    fn written(proc: &Path, state: &str, (task, cgroup): (&str, &str)) {
        let folder = |pid: i32| {
            let folder = proc.join(pid.to_string());
            fs::create_dir_all(folder.join("task").join(pid.to_string())).expect("made");
            folder
        };
        let (above, below) = (folder(SUPERVISOR), folder(TASK));
        let stat = |pid: i32, fields: &str| {
            format!("{pid} (a) b) {fields} 1 2 3 4 5 6 7 8 20 0 1 0 42 100 1\n")
        };
        let stopped = stat(SUPERVISOR, &format!("{state} 1 7 7 0 -1 4194560"));
        fs::write(above.join("stat"), stopped).expect("written");
        fs::write(above.join("task/10/children"), "11 \n").expect("written");
        fs::write(below.join("stat"), stat(TASK, task)).expect("written");
        fs::write(below.join("cgroup"), cgroup).expect("written");
    }

    #[test]
    fn detects_stopped_supervisor_and_moved_task() {
        const INSIDE: &str = "9:pids:/\n4:cpu,cpuacct:/meseta/agent-1/c\n\
            3:memory:/docker/7/meseta/agent-1/c/own\n0::/meseta/agent-1/c/leaf\n";
        let moved = INSIDE.replace("/docker/7/meseta/agent-1/c/own", "/");
        let another = INSIDE.replace("agent-1/c/leaf", "agent-1/c2/leaf");
        let dir = tempfile::tempdir().expect("a folder");
        let (groups, expected) = groups();
        let lives = "S 10 7 7 0 -1 4194560";
        for (state, task, cgroup, stopped, outside) in [
            ("S", lives, INSIDE, false, None),
            ("T", lives, INSIDE, true, None),
            // A debugger has stopped the task.
            ("t", lives, INSIDE, false, None),
            ("S", lives, &*moved, false, Some("memory:/")),
            (
                "S",
                lives,
                &*another,
                false,
                Some(":/meseta/agent-1/c2/leaf"),
            ),
            ("S", "Z 10 7 7 0 -1 4194560", &*moved, false, None),
            ("S", "R 10 7 7 0 -1 4194564", &*moved, false, None),
            // Another process has the pid by now.
            ("S", "S 1 7 7 0 -1 4194560", &*moved, false, None),
        ] {
            written(dir.path(), state, (task, cgroup));
            let found = find(dir.path(), &supervisor(), &groups, &expected);
            let told = found.outside.as_ref().map(|outside| &*outside.group);
            assert_eq!((found.supervisor_stopped, told), (stopped, outside));
        }
        // A task that has left very many processes behind costs no more, and processes beyond the cut are not read.
        let left: String = (0..100_000).map(|pid| format!("{pid} ")).collect();
        fs::write(dir.path().join("10/task/10/children"), left).expect("written");
        let list = first_children(&dir.path().join("10/task/10/children"));
        assert!(list.split_ascii_whitespace().count() > CHILDREN_MAX);
        assert_eq!(u64::try_from(list.len()), Ok(CHILDREN_BYTES_MAX));
        written(dir.path(), "T", (lives, &moved));
        let later = ProcessIdentity {
            start_ticks: 43,
            ..supervisor()
        };
        for gone in [
            later,
            ProcessIdentity {
                pid: 9,
                ..supervisor()
            },
        ] {
            let found = find(dir.path(), &gone, &groups, &expected);
            assert_eq!(found, Interference::default());
        }
        let none = find(dir.path(), &supervisor(), &Groups::default(), &[]);
        assert_eq!((none.supervisor_stopped, none.outside), (true, None));
    }
}
