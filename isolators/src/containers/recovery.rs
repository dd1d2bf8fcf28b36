//! Recovery after a restart: the containers on the machine, and the leftovers of ended ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CONTAINERS_DIR, Containers, Recovered};
use crate::cgroup::{list_pids, remove_if_empty};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::process_tree::parent_of_process;
use crate::shortage::{again, is_shortage};
use crate::status::{SUPERVISOR_FILE, StatusError};

impl Containers {
    /// All containers of this instance on the machine, from its groups and its runtime folder, in order of name. The caller knows
    /// which of them are its own; the others are orphans.
    pub fn recover(&self) -> io::Result<Vec<Recovered>> {
        let mut found: BTreeMap<ContainerName, Recovered> = BTreeMap::new();
        let runtime = self.runtime_dir.join(CONTAINERS_DIR);
        for name in again(|| names_in(&runtime))? {
            found
                .entry(name.clone())
                .or_insert_with(|| Recovered::new(name))
                .has_runtime_dir = true;
        }
        for dir in self.parents() {
            for name in again(|| names_in(&dir))? {
                found
                    .entry(name.clone())
                    .or_insert_with(|| Recovered::new(name))
                    .has_groups = true;
            }
        }
        // Read once for all containers: no earlier launcher is left that could add to the list.
        let supervisors = self.supervisors()?;
        for (name, container) in &mut found {
            container.supervisor = self.living_supervisor(name, supervisors.as_ref())?;
        }
        self.find_unnoted(&mut found, supervisors.unwrap_or_default())?;
        for (name, container) in &mut found {
            container.exit = match self.exit_record(name) {
                Err(StatusError::Read { source, .. }) if is_shortage(&source) => {
                    return Err(source);
                }
                exit => exit.ok().flatten(),
            };
            let groups = self.groups(name);
            for isolator in &self.isolators {
                isolator.recover(&groups);
            }
            self.protection.note(name, &groups);
        }
        Ok(found.into_values().collect())
    }

    /// Finds the supervisors of containers whose folder lost them: the processes of such a container are children of its
    /// supervisor, which is in our group of supervisors and in the notes of no other container.
    fn find_unnoted(
        &self,
        found: &mut BTreeMap<ContainerName, Recovered>,
        mut supervisors: BTreeSet<i32>,
    ) -> io::Result<()> {
        for container in found.values() {
            if let Some(noted) = &container.supervisor {
                supervisors.remove(&noted.pid);
            }
        }
        for (name, container) in found {
            if supervisors.is_empty() {
                break;
            }
            if container.supervisor.is_some() || self.recorded_supervisor(name)?.is_some() {
                continue;
            }
            container.supervisor = self.parent_of_tasks(name, &supervisors)?;
        }
        Ok(())
    }

    /// The supervisor among these that is the parent of a process of the container.
    fn parent_of_tasks(
        &self,
        name: &ContainerName,
        supervisors: &BTreeSet<i32>,
    ) -> io::Result<Option<ProcessIdentity>> {
        for dir in self.groups(name).process_dirs() {
            let pids = match again(|| list_pids(&dir)) {
                Err(error) if is_shortage(&error) => return Err(error),
                pids => pids.unwrap_or_default(),
            };
            for pid in pids {
                let parent = parent_of_process(&self.host.proc, pid);
                if let Some(parent) = parent.filter(|parent| supervisors.contains(parent)) {
                    return ProcessIdentity::of_running(parent);
                }
            }
        }
        Ok(None)
    }

    /// Whether a container's folder names this supervisor.
    pub fn is_noted(&self, name: &ContainerName, supervisor: &ProcessIdentity) -> io::Result<bool> {
        Ok(self.recorded_supervisor(name)?.as_ref() == Some(supervisor))
    }

    /// Writes the identity of a supervisor to the folder of its container. The supervisor itself writes this file at
    /// its start; if the file is lost, only the checkpoint still names the supervisor. Returns false if the folder is
    /// missing: the supervisor can then write no exit record either.
    pub fn note_supervisor(
        &self,
        name: &ContainerName,
        supervisor: &ProcessIdentity,
    ) -> io::Result<bool> {
        let dir = self.runtime_dir(name);
        let (file, new) = (dir.join(SUPERVISOR_FILE), dir.join("supervisor.new"));
        if !dir.is_dir() {
            return Ok(false);
        }
        fs::write(&new, format!("{}\n", supervisor.to_text()))?;
        match fs::rename(&new, &file) {
            // A damaged disk may have replaced the file by an empty folder.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                fs::remove_dir(&file)?;
                fs::rename(&new, &file)
            }
            renamed => renamed,
        }?;
        Ok(true)
    }

    /// The parent folders of containers.
    fn parents(&self) -> impl Iterator<Item = PathBuf> {
        let dirs = self.layout.instance_dirs().into_iter();
        dirs.chain(self.layout.revocable_dirs())
    }

    /// The supervisor in the notes of a container's folder. An unreadable folder is an error.
    pub(super) fn recorded_supervisor(
        &self,
        name: &ContainerName,
    ) -> io::Result<Option<ProcessIdentity>> {
        supervisor_in(&self.runtime_dir(name))
    }

    /// Whether a container's folder exists without a note of a supervisor, which each writes before it begins anything. Call this
    /// after a restart, when no earlier launch is under way any more.
    pub fn was_never_begun(&self, name: &ContainerName) -> bool {
        has_no_supervisor(&self.runtime_dir(name))
    }

    /// The recorded supervisor if it lives: same boot, same start time, and in our group.
    fn living_supervisor(
        &self,
        name: &ContainerName,
        supervisors: Option<&BTreeSet<i32>>,
    ) -> io::Result<Option<ProcessIdentity>> {
        let Some(supervisor) = self.recorded_supervisor(name)? else {
            return Ok(None);
        };
        // procfs failed rather than the supervisor, which does not count as dead.
        let alive = !matches!(supervisor.open(), Ok(None));
        let is_ours = supervisors.is_none_or(|pids| pids.contains(&supervisor.pid));
        Ok((alive && is_ours).then_some(supervisor))
    }

    /// All supervisors of this instance; `None` without groups to identify them.
    fn supervisors(&self) -> io::Result<Option<BTreeSet<i32>>> {
        let dirs = self.layout.supervisor_dirs();
        let mut pids = BTreeSet::new();
        for dir in &dirs {
            match again(|| list_pids(dir)) {
                Ok(listed) => pids.extend(listed),
                Err(error) if is_shortage(&error) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        Ok((!dirs.is_empty()).then_some(pids))
    }

    /// Removes this instance's empty groups without a runtime folder; returns the number of their containers.
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

/// The number of containers with a living supervisor in a runtime folder, without nested containers.
pub fn living_containers(runtime_dir: &Path) -> usize {
    let folder = runtime_dir.join(CONTAINERS_DIR);
    let names = names_in(&folder).unwrap_or_default();
    let outer = names.iter().filter(|name| name.nesting().is_none());
    let lives = |name: &&ContainerName| {
        let supervisor = supervisor_in(&folder.join(name.as_str())).ok().flatten();
        supervisor.is_some_and(|supervisor| supervisor.is_known_to_live())
    };
    outer.filter(lives).count()
}

/// The supervisor in the notes of a folder.
fn supervisor_in(dir: &Path) -> io::Result<Option<ProcessIdentity>> {
    let file = dir.join(SUPERVISOR_FILE);
    match again(|| fs::read_to_string(&file)) {
        Ok(text) => Ok(ProcessIdentity::from_text(&text)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

fn has_no_supervisor(dir: &Path) -> bool {
    let noted = dir.join(SUPERVISOR_FILE).symlink_metadata();
    let is_missing = noted.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    is_missing && dir.is_dir()
}

/// The names of the containers in a folder: subfolders with a valid container name. Other entries are ignored.
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
    fn only_missing_supervisor_file_means_unstarted() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert!(has_no_supervisor(dir.path()));
        assert!(!has_no_supervisor(&dir.path().join("wiped")));
        fs::write(dir.path().join(SUPERVISOR_FILE), "torn").expect("written");
        assert!(!has_no_supervisor(dir.path()));
    }

    #[test]
    fn recovery_lists_only_container_folders() {
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
