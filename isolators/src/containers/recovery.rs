//! After a restart: which containers are on the machine, and what is left of those that are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CONTAINERS_DIR, Containers, Recovered};
use crate::cgroup::{list_pids, read_text, remove_if_empty};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::status::SUPERVISOR_FILE;

impl Containers {
    /// Everything of this instance that is on the machine: in its groups or its runtime folder, in
    /// order of name. The caller knows which of them are its own; the others are orphans.
    pub fn recover(&self) -> io::Result<Vec<Recovered>> {
        let mut found: BTreeMap<ContainerName, Recovered> = BTreeMap::new();
        let runtime = self.runtime_dir.join(CONTAINERS_DIR);
        for name in names_in(&runtime)? {
            found
                .entry(name.clone())
                .or_insert_with(|| Recovered::new(name))
                .has_runtime_dir = true;
        }
        for dir in self.parents() {
            for name in names_in(&dir)? {
                found
                    .entry(name.clone())
                    .or_insert_with(|| Recovered::new(name))
                    .has_groups = true;
            }
        }
        for (name, container) in &mut found {
            container.supervisor = self.living_supervisor(name);
            container.exit = self.exit_record(name).ok().flatten();
            for isolator in &self.isolators {
                isolator.recover(&self.groups(name));
            }
        }
        Ok(found.into_values().collect())
    }

    /// The folders that containers are in.
    fn parents(&self) -> impl Iterator<Item = PathBuf> {
        let dirs = self.layout.instance_dirs().into_iter();
        dirs.chain(self.layout.revocable_dirs())
    }

    pub(super) fn recorded_supervisor(&self, name: &ContainerName) -> Option<ProcessIdentity> {
        let text = read_text(&self.runtime_dir(name), SUPERVISOR_FILE)?;
        ProcessIdentity::from_text(&text)
    }

    /// The recorded supervisor if it lives: same boot, same start time, and in our group.
    fn living_supervisor(&self, name: &ContainerName) -> Option<ProcessIdentity> {
        let supervisor = self.recorded_supervisor(name)?;
        // Something is wrong with procfs rather than with it: it is not taken for dead.
        let alive = !matches!(supervisor.open(), Ok(None));
        (alive && self.is_among_supervisors(supervisor.pid)).then_some(supervisor)
    }

    fn is_among_supervisors(&self, pid: i32) -> bool {
        let dirs = self.layout.supervisor_dirs();
        dirs.is_empty()
            || dirs
                .iter()
                .any(|dir| list_pids(dir).is_ok_and(|pids| pids.contains(&pid)))
    }

    /// Removes this instance's empty groups that no runtime folder knows; returns how many containers
    /// they were of.
    pub fn sweep(&self) -> usize {
        let mut swept = BTreeSet::new();
        for dir in self.parents() {
            for name in names_in(&dir).unwrap_or_default() {
                let known = self.runtime_dir(&name).exists();
                if !known && remove_if_empty(&dir.join(name.as_str())) {
                    swept.insert(name);
                }
            }
        }
        swept.len()
    }
}

/// Containers are folders; what is not a container's name is not ours to look at.
pub(super) fn names_in(dir: &Path) -> io::Result<Vec<ContainerName>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry
            .file_name()
            .to_str()
            .and_then(|name| ContainerName::new(name).ok());
        if entry.file_type()?.is_dir() {
            names.extend(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_with_a_containers_name_are_containers() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in ["c1", ".supervisors", "bad name"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        fs::write(dir.path().join("cgroup.procs"), "").expect("written");
        let names = names_in(dir.path()).expect("read");
        assert_eq!(names, [ContainerName::new("c1").expect("valid")]);
        assert_eq!(names_in(&dir.path().join("gone")).expect("empty"), []);
    }
}
