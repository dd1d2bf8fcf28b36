//! The paths of one instance's groups: `<hierarchy>/<root>/<instance>/<container>`.
//!
//! Pure but for `create_instance`, `create` and `write`, which carry out. On v2 a container's processes are in its `leaf`,
//! since a group with enabled controllers may not hold any; supervisors are in the instance's `.supervisors`, outside every
//! container, in each tree. Containers with revocable CPUs share one parent, `<instance>/.revocable`, which throttles them
//! together.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::host::Host;
use super::{Controller, KnobError, KnobWrite, Version, knob, v1, v2};
use crate::identity::ContainerName;

/// Folder of the launcher and the supervisors. No container's name can begin with a dot.
pub(crate) const SUPERVISORS: &str = ".supervisors";

/// Parent of the containers with revocable CPUs.
const REVOCABLE: &str = ".revocable";

/// The prefix of the folder of a nested container inside its outer container: no knob of the kernel begins this way.
const NESTED: char = '+';

/// The maximum number of nested containers to read in another: a task may be able to make folders with such names too.
const NESTED_MAX: usize = 4096;

/// Folder of a container's processes on v2.
const LEAF: &str = "leaf";

/// Errors of a layout that is impossible on this host.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("cgroups root {0:?} must be a relative path without '..'")]
    Root(PathBuf),
    #[error("cgroup controller {} is not available on this machine", .0.name())]
    Missing(Controller),
}

/// A cgroup tree in use.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Tree {
    version: Version,
    mount: PathBuf,
    /// The controllers of the tree that are in use.
    controllers: Arc<[Controller]>,
}

/// The places of one instance's groups.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    trees: Vec<Tree>,
    root: PathBuf,
    relative: PathBuf,
}

/// A container's folder in one tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupDir {
    pub version: Version,
    pub dir: Arc<Path>,
    /// The controllers of this folder.
    pub controllers: Arc<[Controller]>,
}

/// A container's folders, one per tree.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Groups {
    /// The folders in all trees, v1 first.
    pub dirs: Vec<GroupDir>,
}

impl Layout {
    /// Places an instance's groups. The v2 tree, if mounted, is always used for tracking.
    pub fn new(
        host: &Host,
        root: &Path,
        instance: &ContainerName,
        needed: &[Controller],
    ) -> Result<Self, LayoutError> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if root.as_os_str().is_empty() || !root.components().all(plain) {
            return Err(LayoutError::Root(root.to_owned()));
        }
        if let Some(missing) = needed.iter().find(|controller| !host.offers(**controller)) {
            return Err(LayoutError::Missing(*missing));
        }
        let mut trees = Vec::new();
        for tree in &host.v1 {
            let is_needed = |one: &Controller| needed.contains(one);
            let controllers: Arc<[_]> =
                tree.controllers.iter().copied().filter(is_needed).collect();
            if !controllers.is_empty() {
                trees.push(Tree {
                    version: Version::V1,
                    mount: tree.mount.clone(),
                    controllers,
                });
            }
        }
        if let Some(tree) = &host.unified {
            let is_needed = |one: &Controller| {
                needed.contains(one) && !trees.iter().any(|tree| tree.controllers.contains(one))
            };
            let controllers = tree.controllers.iter().copied().filter(is_needed).collect();
            trees.push(Tree {
                version: Version::V2,
                mount: tree.mount.clone(),
                controllers,
            });
        }
        Ok(Self {
            trees,
            root: root.to_owned(),
            relative: root.join(instance.as_str()),
        })
    }

    /// A layout without any group, for hosts or users without cgroups.
    pub fn none() -> Self {
        Self {
            trees: Vec::new(),
            root: PathBuf::new(),
            relative: PathBuf::new(),
        }
    }

    /// The instance's folder in each tree.
    pub fn instance_dirs(&self) -> Vec<PathBuf> {
        self.trees
            .iter()
            .map(|tree| tree.mount.join(&self.relative))
            .collect()
    }

    /// The shared root in each tree.
    pub fn root_dirs(&self) -> Vec<PathBuf> {
        self.trees
            .iter()
            .map(|tree| tree.mount.join(&self.root))
            .collect()
    }

    /// The mount point of the v2 tree.
    pub fn unified_mount(&self) -> Option<&Path> {
        let mut trees = self.trees.iter();
        let unified = trees.find(|tree| tree.version == Version::V2)?;
        Some(&unified.mount)
    }

    /// The path of a group's folder relative to the mount of its tree.
    pub fn below_mount<'a>(&self, dir: &'a Path) -> &'a Path {
        let mut trees = self.trees.iter();
        let below = trees.find_map(|tree| dir.strip_prefix(&tree.mount).ok());
        below.unwrap_or(dir)
    }

    /// The shared root in the v2 tree.
    pub fn unified_root(&self) -> Option<PathBuf> {
        Some(self.unified_mount()?.join(&self.root))
    }

    /// The supervisors' folder in each tree.
    pub fn supervisor_dirs(&self) -> Vec<PathBuf> {
        self.instance_dirs()
            .into_iter()
            .map(|dir| dir.join(SUPERVISORS))
            .collect()
    }

    /// The parent of containers with revocable CPUs in each tree.
    pub fn revocable_dirs(&self) -> Vec<PathBuf> {
        let dirs = self.instance_dirs().into_iter();
        dirs.map(|dir| dir.join(REVOCABLE)).collect()
    }

    /// The parent of all containers with revocable CPUs, as groups whose knobs can be written.
    pub fn revocable(&self) -> Groups {
        self.groups_at(Path::new(REVOCABLE))
    }

    /// The v1 files into which a launcher, a process with one thread, writes itself, and its supervisors with it.
    pub fn supervisor_tasks(&self) -> Vec<PathBuf> {
        let dirs = self.supervisor_dirs().into_iter().zip(&self.trees);
        dirs.filter(|(_, tree)| tree.version == Version::V1)
            .map(|(dir, _)| dir.join("tasks"))
            .collect()
    }

    /// The v2 folder into which each supervisor is cloned.
    pub fn supervisor_group(&self) -> Option<PathBuf> {
        let dirs = self.supervisor_dirs().into_iter().zip(&self.trees);
        dirs.filter(|(_, tree)| tree.version == Version::V2)
            .map(|(dir, _)| dir)
            .next()
    }

    /// A regular container's folders.
    pub fn container(&self, name: &ContainerName) -> Groups {
        self.groups_at(Path::new(name.as_str()))
    }

    /// The folders of a container with revocable CPUs.
    pub fn revocable_container(&self, name: &ContainerName) -> Groups {
        self.groups_at(&Path::new(REVOCABLE).join(name.as_str()))
    }

    fn groups_at(&self, below: &Path) -> Groups {
        let group = |tree: &Tree| GroupDir {
            version: tree.version,
            dir: tree.mount.join(&self.relative).join(below).into(),
            controllers: tree.controllers.clone(),
        };
        Groups {
            dirs: self.trees.iter().map(group).collect(),
        }
    }

    /// Makes the instance's folders, the supervisors', and that of revocable containers.
    pub fn create_instance(&self) -> Result<(), KnobError> {
        for tree in &self.trees {
            let instance = tree.mount.join(&self.relative);
            let (supervisors, revocable) = (instance.join(SUPERVISORS), instance.join(REVOCABLE));
            match tree.version {
                Version::V1 => {
                    for dir in [&supervisors, &revocable] {
                        if let Some(controller) = tree.controllers.first() {
                            v1::create_with_parents(dir, *controller)?;
                        }
                        v1::fill_cpuset(dir)?;
                    }
                }
                Version::V2 => {
                    let below = self.relative.join(REVOCABLE);
                    v2::create_instance(&tree.mount, &below, &tree.controllers)?;
                    super::create(&supervisors)?;
                }
            }
        }
        Ok(())
    }
}

impl GroupDir {
    /// The folder of the container's own processes: on v2 its leaf, since a group that divides its controllers holds no
    /// processes.
    pub fn tasks(&self) -> Arc<Path> {
        match self.version {
            Version::V1 => self.dir.clone(),
            Version::V2 => self.dir.join(LEAF).into(),
        }
    }
}

impl Groups {
    /// The folder of a controller's knobs, and its version.
    pub fn get(&self, controller: Controller) -> Option<&GroupDir> {
        let controls = |group: &&GroupDir| group.controllers.contains(&controller);
        self.dirs
            .iter()
            .find(controls)
            .or_else(|| self.unified().filter(|_| controller.is_core_on_v2()))
    }

    /// The folder in the v2 tree.
    pub fn unified(&self) -> Option<&GroupDir> {
        self.dirs.iter().find(|group| group.version == Version::V2)
    }

    /// The v1 folders, into which a task writes itself.
    pub fn v1_dirs(&self) -> Vec<PathBuf> {
        let v1 = self
            .dirs
            .iter()
            .filter(|group| group.version == Version::V1);
        v1.map(|group| group.dir.to_path_buf()).collect()
    }

    /// The v2 folder into which a task is cloned.
    pub fn leaf(&self) -> Option<PathBuf> {
        self.unified().map(|group| group.dir.join(LEAF))
    }

    /// The folders of a container nested in this one. They have limits of their own only after [`Groups::divide`].
    pub fn nested(&self, name: &str) -> Self {
        let inside = |group: &GroupDir| GroupDir {
            dir: group.dir.join(format!("{NESTED}{name}")).into(),
            ..group.clone()
        };
        Self {
            dirs: self.dirs.iter().map(inside).collect(),
        }
    }

    /// The containers nested in this one with existing folders, each with its own name. More than [`NESTED_MAX`] are an error: a
    /// partial sum would go up and down.
    pub fn within(&self) -> io::Result<Vec<(String, Self)>> {
        // The first existing folder: another user may have removed some.
        for group in self.unified().into_iter().chain(&self.dirs) {
            match nested_in(group) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                names => {
                    let groups = |name: String| (name.clone(), self.nested(&name));
                    return Ok(names?.into_iter().map(groups).collect());
                }
            }
        }
        Ok(Vec::new())
    }

    /// Allows nested groups in this container to have limits of their own. A no-op on v1.
    pub fn divide(&self) -> Result<(), KnobError> {
        for group in &self.dirs {
            if group.version == Version::V2 {
                v2::enable(&group.dir, &group.controllers)?;
            }
        }
        Ok(())
    }

    /// Every folder that may hold processes of the container.
    pub fn process_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = self.v1_dirs();
        dirs.extend(self.leaf());
        dirs
    }

    /// Whether any of the folders exists.
    pub fn exist(&self) -> bool {
        self.dirs.iter().any(|group| group.dir.exists())
    }

    /// Makes all folders; their parents must exist. After a failure the folders made so far stay until a destroy.
    pub fn create(&self) -> Result<(), KnobError> {
        for group in &self.dirs {
            match group.version {
                Version::V1 => {
                    if let Some(controller) = group.controllers.first() {
                        v1::create(&group.dir, *controller)?;
                    }
                    v1::fill_cpuset(&group.dir)?;
                }
                Version::V2 => {
                    super::create(&group.dir)?;
                    super::create(&group.dir.join(LEAF))?;
                }
            }
        }
        Ok(())
    }

    /// Carries out a planned write.
    pub fn write(&self, write: &KnobWrite) -> Result<(), KnobError> {
        let KnobWrite {
            controller, file, ..
        } = *write;
        let group = self
            .get(controller)
            .ok_or(KnobError::NoGroup { controller, file })?;
        let written = match group.version {
            Version::V1 => v1::write(&group.dir, write),
            Version::V2 => knob::write(&group.dir, write),
        };
        match written {
            Err(KnobError::NotEnabled { .. }) if write.optional => Ok(()),
            other => other,
        }
    }
}

/// The names of the nested containers, from one folder of the outer container.
fn nested_in(group: &GroupDir) -> io::Result<Vec<String>> {
    // Most containers have no nested ones, and a listing would cost many times as much as this check.
    let links_of_none = match group.version {
        Version::V1 => 2,
        Version::V2 => 3,
    };
    if fs::metadata(&group.dir)?.nlink() == links_of_none {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&group.dir)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        let name = entry.file_name().into_string().unwrap_or_default();
        if let Some(name) = name.strip_prefix(NESTED).filter(|_| is_folder) {
            names.push(name.to_owned());
        }
        if names.len() > NESTED_MAX {
            let reason = format!(
                "more than {NESTED_MAX} containers are nested in {}",
                group.dir.display()
            );
            return Err(io::Error::other(reason));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::host::tests::fixture;
    use super::*;

    const NEEDED: [Controller; 5] = [
        Controller::Cpu,
        Controller::Cpuacct,
        Controller::Memory,
        Controller::Pids,
        Controller::Freezer,
    ];

    fn name(text: &str) -> ContainerName {
        ContainerName::new(text).expect("valid")
    }

    fn layout(host: &Host) -> Layout {
        Layout::new(host, Path::new("meseta"), &name("i1"), &NEEDED).expect("placed")
    }

    #[test]
    fn legacy_uses_each_hierarchy_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(
            dir.path(),
            &["cpu,cpuacct", "memory", "pids", "freezer", "blkio"],
            None,
        );
        let groups = layout(&host).container(&name("c"));
        let at = |tree: &str| dir.path().join(tree).join("meseta/i1/c");
        let expected = ["cpu_cpuacct", "memory", "pids", "freezer"].map(at);
        assert_eq!(groups.v1_dirs(), expected);
        assert_eq!(groups.leaf(), None);
        assert_eq!(
            *groups.get(Controller::Cpuacct).expect("there").dir,
            *at("cpu_cpuacct")
        );
    }

    #[test]
    fn hybrid_uses_v1_limits_v2_tracking() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let v1 = ["cpu", "cpuacct", "memory", "pids", "freezer"];
        let host = fixture(dir.path(), &v1, Some("hugetlb"));
        let groups = layout(&host).container(&name("c"));
        assert_eq!(groups.dirs.len(), 6);
        assert_eq!(
            groups.get(Controller::Memory).expect("there").version,
            Version::V1
        );
        assert_eq!(
            groups.leaf(),
            Some(dir.path().join("unified/meseta/i1/c/leaf"))
        );
    }

    #[test]
    fn v2_provides_controllers_missing_in_v1() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(
            dir.path(),
            &["cpu", "cpuacct", "freezer"],
            Some("memory pids"),
        );
        let groups = layout(&host).container(&name("c"));
        assert_eq!(
            groups.get(Controller::Cpu).expect("there").version,
            Version::V1
        );
        assert_eq!(
            groups.get(Controller::Memory).expect("there").version,
            Version::V2
        );
    }

    #[test]
    fn unified_has_one_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(dir.path(), &[], Some("cpu memory pids"));
        let layout = layout(&host);
        let groups = layout.container(&name("c"));
        assert_eq!(groups.dirs.len(), 1);
        for controller in NEEDED {
            assert!(groups.get(controller).is_some(), "{controller:?}");
        }
        assert!(layout.supervisor_tasks().is_empty());
        let group = dir.path().join("unified/meseta/i1/.supervisors");
        assert_eq!(layout.supervisor_group(), Some(group));
    }

    #[test]
    fn nested_containers_are_found_by_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (trees, unified) in [(&["freezer"][..], None), (&[][..], Some(""))] {
            let kind = dir.path().join(format!("{}", trees.len()));
            std::fs::create_dir(&kind).expect("made");
            let host = fixture(&kind, trees, unified);
            let needed = [Controller::Freezer];
            let layout = Layout::new(&host, Path::new("meseta"), &name("i1"), &needed);
            let layout = layout.expect("placed");
            layout.create_instance().expect("made");
            let outer = layout.container(&name("c"));
            assert_eq!(outer.within().expect("nothing"), []);
            outer.create().expect("made");
            assert_eq!(outer.within().expect("listed"), []);
            let (one, two) = (outer.nested("one"), outer.nested("two"));
            for groups in [&one, &two] {
                groups.create().expect("made");
            }
            let mut within = outer.within().expect("listed");
            within.sort_by(|a, b| a.0.cmp(&b.0));
            assert_eq!(within, [("one".to_owned(), one), ("two".to_owned(), two)]);
            let around = &outer.dirs[0].dir;
            for more in 0..NESTED_MAX {
                std::fs::create_dir(around.join(format!("+{more}"))).expect("made");
            }
            let error = outer.within().expect_err("not some of them");
            assert_ne!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn escaping_root_or_missing_controller_fails() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(dir.path(), &["cpu", "cpuacct", "freezer"], None);
        for root in ["", "/abs", "../up", "a/../b", "."] {
            let layout = Layout::new(&host, Path::new(root), &name("i"), &[]);
            assert!(matches!(layout, Err(LayoutError::Root(_))), "{root:?}");
        }
        let layout = Layout::new(&host, Path::new("m"), &name("i"), &[Controller::Memory]);
        assert!(matches!(
            layout,
            Err(LayoutError::Missing(Controller::Memory))
        ));
    }

    #[test]
    fn groups_are_created_in_every_tree() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(
            dir.path(),
            &["cpu,cpuacct", "memory", "pids", "freezer"],
            Some(""),
        );
        let layout = layout(&host);
        layout.create_instance().expect("made");
        let groups = layout.container(&name("c"));
        groups.create().expect("made");
        for made in layout
            .supervisor_dirs()
            .iter()
            .chain(&groups.process_dirs())
        {
            assert!(made.is_dir(), "{made:?}");
        }
        let write = KnobWrite::new(Controller::Pids, "pids.max", 9);
        let knob = dir.path().join("pids/meseta/i1/c/pids.max");
        // A write does not make a file that the kernel has not made.
        let missing = groups.write(&write);
        assert!(matches!(missing, Err(KnobError::NotEnabled { path, .. }) if path == knob));
        std::fs::write(&knob, "").expect("written");
        groups.write(&write).expect("written");
        assert_eq!(std::fs::read_to_string(knob).expect("read"), "9");
    }

    /// Regression: checks of containers in removal left their groups and the groups around them behind.
    #[test]
    fn nested_container_keeps_its_parent_group() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(
            dir.path(),
            &["cpu,cpuacct", "memory", "pids", "freezer"],
            Some(""),
        );
        let layout = layout(&host);
        layout.create_instance().expect("made");
        let outer = layout.container(&name("c"));
        outer.create().expect("made");
        for group in &outer.dirs {
            std::fs::remove_dir_all(&group.dir).expect("removed");
        }
        let made = outer.nested("check").create();
        assert!(
            matches!(&made, Err(KnobError::Create { source, .. }) if source.kind() == std::io::ErrorKind::NotFound),
            "{made:?}"
        );
        assert!(!outer.exist());
    }
}
