//! Limits in force of running containers: drift, lowering memory limits, inspection.
//!
//! [`Containers::verify`] compares the kernel's values with the demand and changes nothing. [`Containers::shrink_memory`]
//! lowers a hard limit, which an update never does, and only where the limit kills no process.

use std::fs;
use std::io;
use std::sync::{PoisonError, RwLock};

use super::{ContainerError, Containers};
use crate::cgroup::{
    Controller, Drift, GroupDir, Groups, KnobError, KnobWrite, Version, control_text, drifts,
    flat_value, limit_files, limit_in_force, number, restore_scope,
};
use crate::demand::{Demand, Limit};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::{DiskArea, Inspected, Inspection, Observed, PortInspection};
use crate::shortage::{again, is_device_failure, is_shortage};

/// v1's limit on memory and swap together.
const SWAP_FILE: &str = "memory.memsw.limit_in_bytes";

/// The lock on the folders around containers. Launches that make their groups share it. The launch that restores the outer
/// folders holds it exclusively, so that no other launch finds half of them. Agents of one process share their scope.
static MAKING: RwLock<()> = RwLock::new(());

/// Result of lowering a memory limit.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Shrink {
    /// The new limit is in force, and no process was killed for it.
    Done {
        /// The limit, rounded by the kernel to whole pages.
        limit_bytes: u64,
    },
    /// The container uses more than that, even after the kernel reclaimed memory; the old limit stays.
    InUse { usage_bytes: u64 },
    /// The limit in force is no higher than the requested one.
    NotLower,
}

impl Containers {
    /// Makes the groups, and the instance's too if another user has removed them. Missing outer groups of a nested container mean
    /// that the outer container has ended.
    pub(super) fn make(&self, name: &ContainerName, groups: &Groups) -> Result<(), KnobError> {
        if name.nesting().is_some() {
            return groups.create();
        }
        let restore = || {
            self.restore_scope()?;
            self.layout.create_instance()?;
            // The next launcher opens the new group of supervisors.
            self.launcher.stop();
            Ok(())
        };
        create(&MAKING, || groups.create(), restore)
    }

    /// Restores the scope through systemd, which would not know a folder made here.
    fn restore_scope(&self) -> Result<(), KnobError> {
        let (mount, dir) = (self.layout.unified_mount(), self.layout.unified_root());
        let Some((mount, path)) = mount.zip(dir) else {
            return Ok(());
        };
        let root = path.strip_prefix(mount).unwrap_or(&path);
        restore_scope(mount, root).map_err(|error| KnobError::Create {
            path: path.clone(),
            source: io::Error::other(error),
        })
    }

    /// Runs the isolators' own measurements: folders (`disk/du`), ports (`network/ports`). Slow, for a period of 15 s and more.
    /// The name is the container's.
    pub fn inspect(
        &self,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        disk: &[DiskArea],
        ports: Option<PortInspection<'_>>,
    ) -> io::Result<Inspected> {
        let groups = self.groups(name);
        let inspection = Inspection {
            name,
            groups: &groups,
            supervisor,
            proc: &self.host.proc,
            disk,
            ports,
        };
        let mut found = Inspected::default();
        for isolator in &self.isolators {
            isolator.inspect(&inspection, &mut found)?;
        }
        Ok(found)
    }

    /// Returns the limits in force that differ from this demand; empty if all agree. Used after a recovery and from time to time.
    /// [`Containers::update`] with the same demand repairs most differences.
    pub fn verify(
        &self,
        name: &ContainerName,
        demand: &Demand,
    ) -> Result<Vec<Drift>, ContainerError> {
        let groups = self.groups(name);
        if groups.dirs.is_empty() {
            return Ok(Vec::new());
        }
        // The plan has all writes of a new group, and those that remove unwanted values: a quota, or idleness, whose group shows
        // another weight than the written one.
        let mut observed = Observed {
            cpu_ceiling_us: super::revocable::ceiling(&groups),
            ..Observed::default()
        };
        for isolator in self.limiting(name) {
            isolator.observe(&groups, &mut observed);
        }
        observed.fresh = true;
        let plans = self
            .limiting(name)
            .map(|one| one.plan(demand, &groups, &observed));
        let requested: Vec<KnobWrite> = plans.flatten().collect();
        let name = name.clone();
        compared(&groups, &requested).map_err(|source| ContainerError::Limits { name, source })
    }

    /// Lowers the hard memory limit to the demanded limit, if the container fits in it.
    ///
    /// v1 refuses a limit that it cannot reclaim down to. v2 would rather kill, so the kernel first gets a request to reclaim
    /// (`memory.reclaim`, since 5.19), and the limit is written only if there is room under it. A container that grows in that
    /// moment may still be killed, as by any limit.
    pub fn shrink_memory(
        &self,
        name: &ContainerName,
        demand: &Demand,
    ) -> Result<Shrink, ContainerError> {
        let groups = self.groups(name);
        let Some(group) = groups.get(Controller::Memory) else {
            return Ok(Shrink::NotLower);
        };
        if !group.dir.exists() {
            return Err(ContainerError::Unknown(name.clone()));
        }
        let mut observed = Observed::default();
        for isolator in &self.isolators {
            isolator.observe(&groups, &mut observed);
        }
        let (limit_file, usage_file) = limit_files(group.version);
        let Some(requested) = self.hard_memory_limit(demand, &groups, limit_file) else {
            return Ok(Shrink::NotLower);
        };
        if matches!(observed.memory_limit, Some(Limit::At(limit)) if limit <= requested) {
            return Ok(Shrink::NotLower);
        }
        let usage = || number(&group.dir, usage_file).unwrap_or(0);
        let failed = |source| ContainerError::Knob {
            name: name.clone(),
            source,
        };
        if group.version == Version::V2 {
            let excess = usage().saturating_sub(requested);
            if excess > 0 {
                // The write fails with EAGAIN if the kernel reclaims less; only the remaining charge matters.
                let reclaim = KnobWrite::optional(Controller::Memory, "memory.reclaim", excess);
                let _ = groups.write(&reclaim);
            }
            if usage() > requested {
                return Ok(Shrink::InUse {
                    usage_bytes: usage(),
                });
            }
        }
        let write = KnobWrite::new(Controller::Memory, limit_file, requested);
        match groups.write(&write) {
            Ok(()) => {}
            Err(KnobError::Write { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                return Ok(Shrink::InUse {
                    usage_bytes: usage(),
                });
            }
            Err(source) => return Err(failed(source)),
        }
        // The limit comes from the kernel, not from our records.
        let limit_bytes = number(&group.dir, limit_file).unwrap_or(u64::MAX);
        if limit_bytes > requested {
            let refused = KnobError::Write {
                path: group.dir.join(limit_file),
                value: requested.to_string(),
                source: io::Error::other(format!("{limit_bytes} is in force")),
            };
            return Err(failed(refused));
        }
        if group.version == Version::V1
            && self.hard_memory_limit(demand, &groups, SWAP_FILE).is_some()
        {
            // Memory and swap together. Pages in swap may prevent this write, and stay there.
            let swap = KnobWrite::optional(Controller::Memory, SWAP_FILE, requested);
            let _ = groups.write(&swap);
        }
        Ok(Shrink::Done { limit_bytes })
    }

    /// The hard limit that a new container would get.
    fn hard_memory_limit(&self, demand: &Demand, groups: &Groups, file: &str) -> Option<u64> {
        let fresh = Observed {
            fresh: true,
            ..Observed::default()
        };
        let plans = self
            .isolators
            .iter()
            .map(|one| one.plan(demand, groups, &fresh));
        plans
            .flatten()
            .find(|write| write.file == file)
            .and_then(|write| write.value.parse().ok())
    }

    /// Whether the kernel sends the events of [`Containers::watch_limits`] after it has counted, so that one call of
    /// [`Containers::limitation`] is complete. Version 1 sends an event when memory has run out, and counts a kill later.
    pub fn counts_oom_kills_first(&self, name: &ContainerName) -> bool {
        let groups = self.groups(name);
        let memory = groups.get(Controller::Memory);
        memory.is_some_and(|group| group.version == Version::V2)
    }

    /// The number of out-of-memory kills in the container; `None` if the kernel does not count them.
    pub fn oom_kills(&self, name: &ContainerName) -> io::Result<Option<u64>> {
        let groups = self.groups(name);
        let group = groups.get(Controller::Memory);
        group.map_or(Ok(None), oom_kills_within)
    }

    /// The kills that count for a nested container that shares the limit of its outer container.
    pub(super) fn oom_kills_of_nested(
        &self,
        name: &ContainerName,
        limited: &ContainerName,
    ) -> io::Result<Option<u64>> {
        let (nested, around) = (self.groups(name), self.groups(limited));
        let memory = nested.get(Controller::Memory);
        let Some((nested, around)) = memory.zip(around.get(Controller::Memory)) else {
            return Ok(None);
        };
        oom_kills_of_nested(nested, around)
    }
}

/// The kills in the nested group or below, or else those that the outer group counts in one read. Kills in sibling groups
/// belong to the watch of the outer group: reading all siblings at the end of each would take one read for each pair.
fn oom_kills_of_nested(nested: &GroupDir, around: &GroupDir) -> io::Result<Option<u64>> {
    match oom_kills_within(nested)? {
        Some(kills) if kills > 0 => Ok(Some(kills)),
        _ => oom_kills_in(around),
    }
}

fn oom_kills_within(group: &GroupDir) -> io::Result<Option<u64>> {
    match group.version {
        Version::V1 => oom_kills_v1(group),
        Version::V2 => oom_kills_in(group),
    }
}

/// The kills in one file; on version 2 the count includes the groups below.
fn oom_kills_in(group: &GroupDir) -> io::Result<Option<u64>> {
    let file = match group.version {
        Version::V1 => "memory.oom_control",
        Version::V2 => "memory.events",
    };
    let text = control_text(&group.dir, file)?;
    Ok(text.and_then(|text| flat_value(&text, "oom_kill")))
}

/// The kills in a group and in the groups within, as version 2 counts them: version 1 counts a kill in the group of the
/// killed process alone. Groups with a limit of their own are left out, since the kill may concern that limit.
fn oom_kills_v1(group: &GroupDir) -> io::Result<Option<u64>> {
    let mut kills = oom_kills_in(group)?;
    let (mut folders, mut within) = (vec![group.clone()], 0);
    while let Some(folder) = folders.pop() {
        for child in subgroups_of(&folder)? {
            if matches!(limit_in_force(&child)?, Some(Limit::At(_))) {
                continue;
            }
            within += oom_kills_in(&child)?.unwrap_or(0);
            folders.push(child);
        }
    }
    if let Some(kills) = &mut kills {
        *kills += within;
    }
    Ok(kills)
}

fn subgroups_of(group: &GroupDir) -> io::Result<Vec<GroupDir>> {
    let entries = match again(|| fs::read_dir(&group.dir)) {
        Ok(entries) => entries,
        Err(error) if is_shortage(&error) || is_device_failure(&error) => return Err(error),
        // The group is being removed.
        Err(_) => return Ok(Vec::new()),
    };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let subgroup = |folder: fs::DirEntry| GroupDir {
        dir: folder.path().into(),
        ..group.clone()
    };
    Ok(folders.map(subgroup).collect())
}

/// Bytes in the largest unit that divides them, as Mesos prints them: `64MB`.
pub(super) fn bytes_text(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return "unknown".to_owned();
    };
    for (shift, unit) in [(40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

/// Makes groups, and missing outer groups before them. If several launches find them missing, only one makes them.
fn create(
    making: &RwLock<()>,
    groups: impl Fn() -> Result<(), KnobError>,
    restore: impl FnOnce() -> Result<(), KnobError>,
) -> Result<(), KnobError> {
    let lacks_parent = |made: &Result<(), KnobError>| matches!(made, Err(KnobError::Create { source, .. }) if source.kind() == io::ErrorKind::NotFound);
    let shared = making.read().unwrap_or_else(PoisonError::into_inner);
    let made = groups();
    drop(shared);
    if !lacks_parent(&made) {
        return made;
    }
    let _alone = making.write().unwrap_or_else(PoisonError::into_inner);
    // Another launch may have made the group in the meantime.
    let made = groups();
    if !lacks_parent(&made) {
        return made;
    }
    restore()?;
    groups()
}

/// Compares writes with the groups' values. An error means that the groups could not be read; their values are unknown.
fn compared(groups: &Groups, requested: &[KnobWrite]) -> Result<Vec<Drift>, KnobError> {
    let mut unread = None;
    let found = drifts(requested, |write| {
        let group = groups.get(write.controller)?;
        let text = control_text(&group.dir, write.file);
        text.unwrap_or_else(|source| {
            let path = group.dir.join(write.file);
            unread = Some(KnobError::Read { path, source });
            None
        })
    });
    unread.map_or(Ok(found), Err)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn group(root: &Path, path: &str) -> GroupDir {
        GroupDir {
            version: Version::V1,
            dir: root.join(path).into(),
            controllers: [Controller::Memory].into(),
        }
    }

    fn make(root: &Path, path: &str, limit: &str, kills: u64) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("memory.limit_in_bytes"), limit).expect("written");
        let text = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
        fs::write(folder.join("memory.oom_control"), text).expect("written");
    }

    const UNLIMITED: &str = "9223372036854771712\n";

    /// Regression: while the agent had no descriptors left, all limits counted as removed with their groups.
    #[test]
    fn unreadable_limit_is_not_treated_missing() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let groups = Groups {
            dirs: vec![group(dir.path(), "")],
        };
        let file = "memory.limit_in_bytes";
        let requested = [KnobWrite::new(Controller::Memory, file, 1)];
        let missing = compared(&groups, &requested).expect("compared");
        assert_eq!(missing.first().map(|drift| drift.file), Some(file));
        // Reading the first byte fails.
        std::os::unix::fs::symlink("/proc/self/mem", dir.path().join(file)).expect("made");
        let unread = compared(&groups, &requested);
        assert!(matches!(unread, Err(KnobError::Read { .. })), "{unread:?}");
    }

    /// Regression: launches during the restoration of the scope found its folder or the instance's half made, and failed.
    #[test]
    fn groups_wait_for_restored_scope() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let scope = dir.path().join("scope");
        let making = RwLock::new(());
        let groups = |name: &str| {
            let path = scope.join(name);
            match fs::create_dir(&path) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    Err(KnobError::Create { path, source })
                }
                _ => Ok(()),
            }
        };
        let restore = || {
            fs::create_dir(&scope).expect("made");
            assert!(
                making.try_read().is_err(),
                "another can make its groups now"
            );
            Ok(())
        };
        create(&making, || groups("a"), restore).expect("made");
        create(&making, || groups("b"), || panic!("it is there")).expect("made");
        // A launch that waited for the first one finds all groups when its turn comes.
        let turns = std::cell::Cell::new(0);
        let late = || {
            turns.set(turns.get() + 1);
            if turns.get() > 1 {
                return groups("c");
            }
            let (path, source) = (scope.clone(), io::ErrorKind::NotFound.into());
            Err(KnobError::Create { path, source })
        };
        create(&making, late, || panic!("made twice")).expect("made");
        assert!(scope.join("c").is_dir());
    }

    /// Regression: the kernel killed a worker of a task group, and nobody heard of the kill before the task ended well, hours
    /// later.
    #[test]
    fn v1_counts_nested_kills_at_limit() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path();
        make(root, "", "67108864\n", 1);
        make(root, "+task", UNLIMITED, 10);
        make(root, "+task/+session", UNLIMITED, 100);
        make(root, "+own", "33554432\n", 1_000);
        make(root, "+own/+within", UNLIMITED, 10_000);
        // It is about to go.
        fs::create_dir(root.join("+empty")).expect("made");
        for (path, kills) in [
            ("", Some(111)),
            ("+task", Some(110)),
            ("+own", Some(11_000)),
        ] {
            let read = oom_kills_v1(&group(root, path)).expect("read");
            assert_eq!(read, kills, "{path}");
        }
        assert_eq!(oom_kills_v1(&group(root, "gone")).expect("read"), None);
    }

    /// Regression: the end of each task of a group read the groups of all others.
    #[test]
    fn task_end_reads_no_sibling_groups() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path();
        make(root, "", "67108864\n", 0);
        make(root, "+task", UNLIMITED, 0);
        make(root, "+killed", UNLIMITED, 5);
        make(root, "+killed/+session", UNLIMITED, 7);
        let told = |path: &str| {
            let told = oom_kills_of_nested(&group(root, path), &group(root, ""));
            told.expect("read").filter(|kills| *kills > 0)
        };
        assert_eq!(told("+task"), None);
        assert_eq!(told("+killed"), Some(12));
        // A process of the group itself was killed.
        make(root, "", "67108864\n", 1);
        assert_eq!(told("+task"), Some(1));
    }
}
