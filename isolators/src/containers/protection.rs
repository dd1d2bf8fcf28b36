//! The protection of all containers together from reclaim: `memory.low` of the groups around them, on version 2.
//!
//! The kernel protects a group no further than the groups around it, so each level must repeat the protection of its
//! containers. Invariant: our folders around containers hold the sum of the protection in them, and so does the slice around
//! a scope of tasks, unless the operator has given it a protection. Nothing else above the shared root is written: it belongs
//! to the operator or to systemd.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cgroup::{Controller, Groups, Layout, Version, number};
use crate::identity::ContainerName;

const FILE: &str = "memory.low";

/// The folders around containers, and the protected memory in them.
#[derive(Debug)]
pub(super) struct Protection {
    /// `None` without a version 2 tree.
    folders: Option<Folders>,
    protected: Mutex<BTreeMap<ContainerName, Protected>>,
}

#[derive(Debug)]
struct Folders {
    /// The root of all agents of this machine.
    root: PathBuf,
    instance: PathBuf,
    revocable: PathBuf,
    /// The slice around the shared root, if the root is a scope of systemd.
    slice: Option<PathBuf>,
}

#[derive(Copy, Clone, Debug)]
struct Protected {
    bytes: u64,
    is_revocable: bool,
}

impl Protection {
    pub(super) fn from_layout(layout: &Layout) -> Self {
        let folders = layout.unified_mount().and_then(|mount| {
            let below = |dirs: Vec<PathBuf>| dirs.into_iter().find(|dir| dir.starts_with(mount));
            let root = layout.unified_root()?;
            Some(Folders {
                slice: slice_around(&root),
                root,
                instance: below(layout.instance_dirs())?,
                revocable: below(layout.revocable_dirs())?,
            })
        });
        Self {
            folders,
            protected: Mutex::default(),
        }
    }

    /// Records a new or changed container.
    pub(super) fn note(&self, name: &ContainerName, groups: &Groups) {
        let group = groups.get(Controller::Memory);
        let group = group.filter(|group| group.version == Version::V2);
        let (Some(folders), Some(group), None) = (&self.folders, group, name.nesting()) else {
            return;
        };
        let now = Protected {
            bytes: number(&group.dir, FILE).unwrap_or(0),
            is_revocable: group.dir.starts_with(&folders.revocable),
        };
        let mut protected = self.protected();
        protected.insert(name.clone(), now);
        folders.write(&protected);
    }

    /// Removes a container that is gone.
    pub(super) fn forget(&self, name: &ContainerName) {
        let mut protected = self.protected();
        if let (Some(folders), Some(_)) = (&self.folders, protected.remove(name)) {
            folders.write(&protected);
        }
    }

    fn protected(&self) -> MutexGuard<'_, BTreeMap<ContainerName, Protected>> {
        self.protected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folders {
    /// Writes the sums. A failed write reduces the protection, and has no other effect.
    fn write(&self, protected: &BTreeMap<ContainerName, Protected>) {
        let sum = |revocable_alone: bool| {
            let counted = protected
                .values()
                .filter(|one| one.is_revocable || !revocable_alone);
            counted.fold(0, |sum: u64, one| sum.saturating_add(one.bytes))
        };
        let set = |dir: &Path, bytes: u64| {
            if number(dir, FILE) != Some(bytes) {
                let _ = fs::write(dir.join(FILE), bytes.to_string());
            }
        };
        set(&self.revocable, sum(true));
        set(&self.instance, sum(false));
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let instances = entries.filter_map(|entry| number(&entry.path(), FILE));
        let all = instances.fold(0, u64::saturating_add);
        let before = number(&self.root, FILE).unwrap_or(0);
        set(&self.root, all);
        // systemd writes its own value, zero, whenever it updates the slice.
        let slice = self.slice.as_ref();
        let is_ours = |slice: &&PathBuf| matches!(number(slice, FILE), Some(low) if low == 0 || low == before);
        if let Some(slice) = slice.filter(is_ours) {
            set(slice, all);
        }
    }
}

/// The slice around a scope of tasks; `None` for a root that the operator has named, which has no slice of ours.
fn slice_around(root: &Path) -> Option<PathBuf> {
    let ends = |path: &Path, extension: &str| path.extension().is_some_and(|end| end == extension);
    let slice = root.parent()?;
    (ends(root, "scope") && ends(slice, "slice")).then(|| slice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::GroupDir;

    fn low(dir: &Path) -> Option<u64> {
        number(dir, FILE)
    }

    #[test]
    fn every_level_protects_its_descendants() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path().join("meseta");
        let instance = root.join("i1");
        let revocable = instance.join(".revocable");
        let other = root.join("i2");
        for made in [&revocable, &other] {
            fs::create_dir_all(made).expect("made");
        }
        fs::write(other.join(FILE), "50\n").expect("written");
        let protection = Protection {
            folders: Some(Folders {
                root: root.clone(),
                instance: instance.clone(),
                revocable: revocable.clone(),
                slice: None,
            }),
            protected: Mutex::default(),
        };
        let name = |name: &str| ContainerName::new(name).expect("valid");
        let group = |dir: PathBuf, bytes: u64| {
            fs::create_dir_all(&dir).expect("made");
            fs::write(dir.join(FILE), format!("{bytes}\n")).expect("written");
            let controllers = vec![Controller::Memory];
            let group = GroupDir {
                version: Version::V2,
                dir: dir.into(),
                controllers: controllers.into(),
            };
            Groups { dirs: vec![group] }
        };
        protection.note(&name("a"), &group(instance.join("a"), 100));
        protection.note(&name("b"), &group(revocable.join("b"), 200));
        // A nested container is within its outer container.
        protection.note(&name("a+n"), &group(instance.join("a/+n"), 70));
        assert_eq!(low(&revocable), Some(200));
        assert_eq!(low(&instance), Some(300));
        assert_eq!(low(&root), Some(350));
        protection.note(&name("a"), &group(instance.join("a"), 150));
        assert_eq!((low(&instance), low(&root)), (Some(350), Some(400)));
        for gone in ["a", "b", "b"] {
            protection.forget(&name(gone));
        }
        assert_eq!(low(&revocable), Some(0));
        assert_eq!((low(&instance), low(&root)), (Some(0), Some(50)));
    }

    #[test]
    fn slice_protection_follows_scope_unless_configured() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let slice = dir.path().join("meseta.slice");
        let root = slice.join("meseta-tasks.scope");
        let instance = root.join("i1");
        fs::create_dir_all(&instance).expect("made");
        let folders = Folders {
            slice: slice_around(&root),
            root,
            revocable: instance.join(".revocable"),
            instance,
        };
        let protects = |bytes: u64| {
            let one = Protected {
                bytes,
                is_revocable: false,
            };
            let name = ContainerName::new("a").expect("valid");
            folders.write(&BTreeMap::from([(name, one)]));
            low(&slice)
        };
        let systemd_sets = |bytes: &str| fs::write(slice.join(FILE), bytes).expect("written");
        systemd_sets("0\n");
        assert_eq!(protects(100), Some(100));
        assert_eq!(protects(150), Some(150));
        systemd_sets("0\n");
        assert_eq!(protects(150), Some(150));
        assert_eq!(protects(0), Some(0));
        systemd_sets("4096\n");
        assert_eq!(protects(200), Some(4096));
        assert_eq!(slice_around(Path::new("/sys/fs/cgroup/a.slice/b")), None);
    }
}
