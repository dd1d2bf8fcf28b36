//! Ends all processes in a container's groups and removes the groups: a state machine with deadlines.
//!
//! [`Destroy::step`] takes the time from outside, does one round of writes and reads, and returns the time of the next call.
//! The stages are freeze, kill, thaw, wait for empty, wait for the supervisor, remove. Where the unified tree has
//! `cgroup.kill`, that single write replaces the first three. Kills are repeated until the groups are empty. Invariant: the
//! machine ends either as done with nothing left, or as stuck with a list of the remaining processes or groups; a stuck
//! destroy may begin again.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::knob::{list_pids, read_text};
use super::{Controller, Groups, Version};
use crate::identity::ProcessIdentity;
use crate::sys::{KillPayload, send_kill_request, send_signal};

/// First and longest pause between two reads.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The interval after which an unfinished kill begins again, to catch forks that slipped through unfrozen.
const KILL_AGAIN: Duration = Duration::from_millis(500);

/// The longest wait for a supervisor to write the exit record once its task is gone: the write waits for a disk.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(10);

/// The maximum number of named processes when they do not die.
const NAMED_MAX: usize = 8;

/// The result of a step.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Progress {
    /// The caller steps again after this time.
    Wait(Duration),
    /// Nothing runs in the groups any more, and their removal is next; the caller steps again once the removal may begin. The
    /// step repeats this result if a process enters a group in the meantime.
    Emptied,
    /// All groups of the container are gone.
    Done,
    /// A deadline passed; describes the remaining processes or groups.
    Stuck(String),
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Stage {
    Inspect,
    Freeze,
    Kill,
    Empty,
    Supervisor,
    Emptied,
    Remove,
}

/// Deadlines of a destroy, each for its own step.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DestroyOptions {
    /// The time for all tasks to stop (freeze). After this time the kill goes on unfrozen. Default: 1 s.
    pub freeze: Duration,
    /// The time for all processes to end after the kill. Default: 10 s.
    pub empty: Duration,
    /// The time to remove the groups once they are empty. Default: 10 s.
    pub remove: Duration,
}

impl Default for DestroyOptions {
    fn default() -> Self {
        Self {
            freeze: Duration::from_secs(1),
            empty: Duration::from_secs(10),
            remove: Duration::from_secs(10),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Destroy {
    groups: Groups,
    supervisor: Option<ProcessIdentity>,
    options: DestroyOptions,
    stage: Stage,
    /// The time when the current stage began.
    since: Duration,
    /// The time of the first kill, from which the deadline to be empty counts.
    killing_since: Option<Duration>,
    killed_at: Duration,
    pause: Duration,
}

impl Destroy {
    pub(crate) fn new(
        groups: Groups,
        supervisor: Option<ProcessIdentity>,
        options: DestroyOptions,
    ) -> Self {
        Self {
            groups,
            supervisor,
            options,
            stage: Stage::Inspect,
            since: Duration::ZERO,
            killing_since: None,
            killed_at: Duration::ZERO,
            pause: PAUSE_MIN,
        }
    }

    /// Goes as far as it can at this moment. The time may come from any clock that does not go back.
    pub(crate) fn step(&mut self, now: Duration) -> Progress {
        loop {
            let entered = self.stage;
            let progress = match self.stage {
                Stage::Inspect => self.inspect(now),
                Stage::Freeze => self.freeze(now),
                Stage::Kill => self.kill(now),
                Stage::Empty => self.empty(now),
                Stage::Supervisor => self.await_supervisor(now),
                Stage::Emptied => {
                    self.enter(Stage::Remove, now);
                    Some(Progress::Emptied)
                }
                Stage::Remove => self.remove(now),
            };
            match progress {
                Some(progress) => return progress,
                None => debug_assert_ne!(entered, self.stage, "a stage must lead on or answer"),
            }
        }
    }

    fn enter(&mut self, stage: Stage, now: Duration) -> Option<Progress> {
        self.stage = stage;
        self.since = now;
        self.pause = PAUSE_MIN;
        None
    }

    fn again(&mut self) -> Option<Progress> {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        Some(Progress::Wait(pause))
    }

    fn supervisor_lives(&self) -> bool {
        // An unreadable supervisor counts as alive: better stuck than forgotten.
        self.supervisor
            .as_ref()
            .is_some_and(|who| !matches!(who.open(), Ok(None)))
    }

    fn open_supervisor(&self) -> Option<OwnedFd> {
        self.supervisor.as_ref()?.open().ok().flatten()
    }

    fn inspect(&mut self, now: Duration) -> Option<Progress> {
        if self.pids().is_empty() && !self.supervisor_lives() {
            return self.enter(Stage::Emptied, now);
        }
        self.killing_since = Some(now);
        let can_freeze = self.freezer().is_some() && self.kill_file().is_none();
        self.enter(
            if can_freeze {
                Stage::Freeze
            } else {
                Stage::Kill
            },
            now,
        )
    }

    fn freeze(&mut self, now: Duration) -> Option<Progress> {
        let Some(freezer) = self.freezer() else {
            return self.enter(Stage::Kill, now);
        };
        // Written at every step: a freeze that met a fork can stay FREEZING until the next write.
        let _ = fs::write(freezer.join("freezer.state"), "FROZEN");
        let state = read_text(&freezer, "freezer.state").unwrap_or_default();
        if state.trim() != "FREEZING" || now >= self.since.saturating_add(self.options.freeze) {
            return self.enter(Stage::Kill, now);
        }
        self.again()
    }

    fn kill(&mut self, now: Duration) -> Option<Progress> {
        if let Some(file) = self.kill_file() {
            let _ = fs::write(file, "1");
        }
        if let Some(pidfd) = self.open_supervisor() {
            // Without groups this is the kill; with them it keeps the record honest.
            let payload = KillPayload {
                signal: 9,
                grace: Duration::ZERO,
            };
            let _ = send_kill_request(pidfd.as_fd(), payload);
        }
        for pid in self.pids() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // Some kernels end a frozen task only when it is thawed.
        if let Some(freezer) = self.freezer() {
            let _ = fs::write(freezer.join("freezer.state"), "THAWED");
        }
        self.killed_at = now;
        self.enter(Stage::Empty, now)
    }

    fn empty(&mut self, now: Duration) -> Option<Progress> {
        let pids = self.pids();
        if pids.is_empty() {
            return self.enter(Stage::Supervisor, now);
        }
        let since = self.killing_since.unwrap_or(now);
        if now >= since.saturating_add(self.options.empty) {
            return Some(Progress::Stuck(describe(&pids)));
        }
        if now >= self.killed_at + KILL_AGAIN {
            return self.enter(Stage::Kill, now);
        }
        self.again()
    }

    fn await_supervisor(&mut self, now: Duration) -> Option<Progress> {
        if !self.supervisor_lives() {
            return self.enter(Stage::Emptied, now);
        }
        let overdue = now >= self.since + SUPERVISOR_GRACE;
        if overdue && let Some(pidfd) = self.open_supervisor() {
            let _ = send_signal(pidfd.as_fd(), libc::SIGKILL);
        }
        if now >= (self.since + SUPERVISOR_GRACE).saturating_add(self.options.empty) {
            let pid = self.supervisor.as_ref().map_or(0, |who| who.pid);
            return Some(Progress::Stuck(format!("supervisor {}", describe(&[pid]))));
        }
        self.again()
    }

    fn remove(&mut self, now: Duration) -> Option<Progress> {
        let mut left = String::new();
        for group in &self.groups.dirs {
            if let Err((path, error)) = remove_tree(&group.dir) {
                let _ = write!(left, "{} ({error}) ", path.display());
            }
        }
        if left.is_empty() {
            return Some(Progress::Done);
        }
        if now >= self.since.saturating_add(self.options.remove) {
            return Some(Progress::Stuck(left.trim_end().to_owned()));
        }
        // A process may have been cloned into a group between the last read and now.
        if !self.pids().is_empty() && now >= self.since + KILL_AGAIN {
            return self.enter(Stage::Inspect, now);
        }
        self.again()
    }

    /// Every process in any of the container's folders, or below them.
    fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for group in &self.groups.dirs {
            collect_pids(&group.dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn freezer(&self) -> Option<PathBuf> {
        let group = self.groups.get(Controller::Freezer)?;
        (group.version == Version::V1 && group.dir.exists()).then(|| group.dir.to_path_buf())
    }

    fn kill_file(&self) -> Option<PathBuf> {
        self.groups
            .unified()
            .map(|group| group.dir.join("cgroup.kill"))
            .filter(|file| file.exists())
    }
}

fn collect_pids(dir: &Path, pids: &mut Vec<i32>) {
    pids.extend(list_pids(dir).unwrap_or_default());
    for child in subgroups(dir) {
        collect_pids(&child.path(), pids);
    }
}

/// The subfolders of a group's folder.
pub(crate) fn subgroups(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// Removes a group with everything below it; a missing group counts as removed.
pub(super) fn remove_tree(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let first = remove_one(dir);
    if first.is_ok() {
        return Ok(());
    }
    for child in subgroups(dir) {
        remove_tree(&child.path())?;
    }
    remove_one(dir).map_err(|error| (dir.to_owned(), error))
}

fn remove_one(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A read-only tree fails before it checks whether there is anything to remove.
        Err(_) if !dir.exists() => Ok(()),
        other => other,
    }
}

/// Removes a group that holds no process and no group with one; returns whether it is gone.
pub(crate) fn remove_if_empty(dir: &Path) -> bool {
    let mut pids = Vec::new();
    collect_pids(dir, &mut pids);
    pids.is_empty() && remove_tree(dir).is_ok()
}

/// Processes with their states, for a message: `12 (D dd), 13 (S sh)`.
fn describe(pids: &[i32]) -> String {
    let mut text = format!("{} process(es) left:", pids.len());
    for pid in pids.iter().take(NAMED_MAX) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let name = stat
            .split_once('(')
            .and_then(|(_, rest)| rest.rsplit_once(')'));
        let (name, rest) = name.unwrap_or(("?", " ?"));
        let state = rest.trim_start().chars().next().unwrap_or('?');
        let _ = write!(text, " {pid} ({state} {name})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::GroupDir;
    use super::*;

    fn options() -> DestroyOptions {
        DestroyOptions {
            freeze: Duration::from_secs(1),
            empty: Duration::from_secs(5),
            remove: Duration::from_secs(3),
        }
    }

    fn destroy(dir: &Path, version: Version) -> Destroy {
        let controllers = vec![Controller::Freezer];
        let group = GroupDir {
            version,
            dir: dir.into(),
            controllers: controllers.into(),
        };
        Destroy::new(Groups { dirs: vec![group] }, None, options())
    }

    /// Steps until a final result, on a clock of its own; returns the time by that clock.
    fn run(destroy: &mut Destroy) -> (Progress, Duration) {
        let mut now = Duration::from_secs(100);
        loop {
            match destroy.step(now) {
                Progress::Wait(pause) => {
                    assert!(!pause.is_zero());
                    now += pause;
                }
                Progress::Emptied => assert!(destroy.pids().is_empty()),
                answer => return (answer, now - Duration::from_secs(100)),
            }
        }
    }

    #[test]
    fn destroy_removes_empty_nested_groups() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("c");
        fs::create_dir_all(group.join("leaf/deeper")).expect("made");
        assert_eq!(
            run(&mut destroy(&group, Version::V2)),
            (Progress::Done, Duration::ZERO)
        );
        assert!(!group.exists());
    }

    #[test]
    fn destroying_missing_container_is_done() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut destroy = destroy(&dir.path().join("never"), Version::V1);
        assert_eq!(destroy.step(Duration::ZERO), Progress::Emptied);
        assert_eq!(destroy.step(Duration::ZERO), Progress::Done);
    }

    #[test]
    fn stuck_destroy_names_undeletable_groups() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("c");
        fs::create_dir(&group).expect("made");
        fs::write(group.join("foreign"), "x").expect("written");
        let (answer, after) = run(&mut destroy(&group, Version::V2));
        let Progress::Stuck(left) = answer else {
            panic!("{answer:?}")
        };
        assert!(left.contains("/c ("), "{left}");
        assert!(
            after >= options().remove && after < options().remove * 2,
            "{after:?}"
        );
    }

    /// A pid that no process can have, so that a fixture kills nobody.
    const NOBODY: i32 = i32::MAX;

    #[test]
    fn destroy_names_survivors_and_thaws_v1() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("c");
        fs::create_dir(&group).expect("made");
        fs::write(group.join("cgroup.procs"), format!("{NOBODY}\n")).expect("written");
        let mut destroy = destroy(&group, Version::V1);
        let state = || fs::read_to_string(group.join("freezer.state")).expect("read");
        let mut now = Duration::ZERO;
        assert!(matches!(destroy.step(now), Progress::Wait(_)));
        assert_eq!(state(), "THAWED");
        // A freezer that never finishes delays the kill no longer than its deadline.
        destroy.stage = Stage::Freeze;
        destroy.since = now;
        let (answer, after) = run(&mut destroy);
        let Progress::Stuck(left) = answer else {
            panic!("{answer:?}")
        };
        assert!(left.starts_with("1 process(es) left: 2147483647"), "{left}");
        now += after;
        assert!(now >= Duration::ZERO);
    }

    #[test]
    fn v2_is_killed_by_one_write() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("c");
        fs::create_dir_all(group.join("leaf")).expect("made");
        fs::write(group.join("cgroup.kill"), "").expect("written");
        fs::write(group.join("leaf/cgroup.procs"), format!("{NOBODY}\n")).expect("written");
        let mut destroy = destroy(&group, Version::V2);
        assert!(matches!(destroy.step(Duration::ZERO), Progress::Wait(_)));
        assert_eq!(
            fs::read_to_string(group.join("cgroup.kill")).expect("read"),
            "1"
        );
        // The process ends; unlike the kernel's, the fixture's files stay.
        fs::write(group.join("leaf/cgroup.procs"), "").expect("written");
        let (answer, _) = run(&mut destroy);
        assert!(matches!(answer, Progress::Stuck(left) if left.contains("leaf")));
    }
}
