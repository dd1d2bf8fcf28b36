//! The cgroup hierarchies of a machine, and our rights on them.
//!
//! Read once, from the mount table and the unified tree's `cgroup.controllers`. Knows paths only, so that a fixture with its
//! own mount table stands in for a machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Controller;
use super::knob::read_text;
use crate::mount_table::MountTable;

/// The file systems `cgroup` and `cgroup2`, by their numbers in linux/magic.h.
const CGROUP_MAGICS: [rustix::fs::FsWord; 2] = [0x0027_e0eb, 0x6367_7270];

/// The mount mode of the host's cgroups.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Mode {
    /// There are no usable cgroups: not mounted, or not ours to write.
    None,
    /// Version 1 hierarchies only.
    Legacy,
    /// Version 1 for limits, the unified tree for tracking, killing and pressure.
    Hybrid,
    /// Only cgroup version 2 is mounted.
    Unified,
}

/// A mounted v1 hierarchy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct V1Hierarchy {
    pub mount: PathBuf,
    /// The controllers of the hierarchy; several when co-mounted.
    pub controllers: Vec<Controller>,
}

/// The mounted v2 tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unified {
    pub mount: PathBuf,
    /// The controllers that are available here.
    pub controllers: Vec<Controller>,
}

/// A mounted tree of either version.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CgroupTree {
    pub mount: PathBuf,
    /// The controllers of a v1 hierarchy, separated by commas; `None` for the v2 tree.
    pub controllers: Option<String>,
}

/// A mounted tree in which no group can be made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnusableTree {
    pub mount: PathBuf,
    pub cause: UnusableCause,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum UnusableCause {
    /// Another mount covers it, as `ip netns exec` does with /sys.
    Hidden,
    ReadOnly,
}

/// The cgroup hierarchies and the rights found on this machine (or in a fixture).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Host {
    pub proc: PathBuf,
    pub mode: Mode,
    /// The v1 hierarchies with a known controller.
    pub v1: Vec<V1Hierarchy>,
    /// The cgroup v2 tree, if there is one.
    pub unified: Option<Unified>,
    /// Trees that are mounted and left out above.
    pub unusable: Vec<UnusableTree>,
    /// Whether we may make namespaces, groups and change users: root with CAP_SYS_ADMIN.
    pub privileged: bool,
}

/// Errors of detecting a host's cgroups.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("failed to read the mount table {path}")]
    MountTable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to parse the mount table {path}: {reason}")]
    Parse { path: PathBuf, reason: String },
}

impl Host {
    /// Detects the running machine.
    pub fn detect() -> Result<Self, DetectError> {
        let admin = caps::has_cap(
            None,
            caps::CapSet::Effective,
            caps::Capability::CAP_SYS_ADMIN,
        );
        let privileged = nix::unistd::geteuid().is_root() && admin.unwrap_or(false);
        Self::with_usable(Path::new("/proc"), privileged, unusable_cause)
    }

    /// Detects the machine behind a given procfs. All its trees count as usable.
    pub fn at(proc: &Path, privileged: bool) -> Result<Self, DetectError> {
        Self::with_usable(proc, privileged, |_| None)
    }

    fn with_usable(
        proc: &Path,
        privileged: bool,
        unusable_cause: impl Fn(&Path) -> Option<UnusableCause>,
    ) -> Result<Self, DetectError> {
        let path = proc.join("self/mountinfo");
        let text = fs::read(&path).map_err(|source| DetectError::MountTable {
            path: path.clone(),
            source,
        })?;
        let mounts = MountTable::parse(&text);
        if mounts.is_empty() {
            let reason = "it lists no mount".to_owned();
            return Err(DetectError::Parse { path, reason });
        }
        let mut v1: Vec<V1Hierarchy> = Vec::new();
        let mut unified = None;
        let mut unusable = Vec::new();
        for mount in mounts.iter() {
            let has = |controller: &Controller| {
                let mut options = mount.super_options.iter();
                options.any(|option| option == controller.name())
            };
            let controllers: Vec<_> = match mount.kind.as_str() {
                "cgroup" => Controller::ALL.into_iter().filter(has).collect(),
                "cgroup2" => Vec::new(),
                _ => continue,
            };
            let is_v1 = mount.kind == "cgroup";
            if is_v1 && controllers.is_empty() {
                continue;
            }
            if let Some(cause) = unusable_cause(&mount.point) {
                let mount = mount.point.clone();
                unusable.push((controllers, UnusableTree { mount, cause }));
            } else if is_v1 {
                // The same hierarchy may be mounted twice; the first is as good.
                let known = v1.iter().any(|other| other.controllers == controllers);
                if !known {
                    v1.push(V1Hierarchy {
                        mount: mount.point.clone(),
                        controllers,
                    });
                }
            } else if unified.is_none() {
                let point = mount.point.clone();
                let controllers = available_controllers(&point);
                unified = Some(Unified {
                    mount: point,
                    controllers,
                });
            }
        }
        // A tree may be mounted at another place as well.
        unusable.retain(|(controllers, _)| match controllers.is_empty() {
            true => unified.is_none(),
            false => v1.iter().all(|tree| tree.controllers != *controllers),
        });
        let unusable = unusable.into_iter().map(|(_, tree)| tree).collect();
        let mode = match (v1.is_empty(), unified.is_some()) {
            (true, false) => Mode::None,
            (false, false) => Mode::Legacy,
            (false, true) => Mode::Hybrid,
            (true, true) => Mode::Unified,
        };
        Ok(Self {
            proc: proc.to_owned(),
            mode,
            v1,
            unified,
            unusable,
            privileged,
        })
    }

    /// All trees in which groups can be made.
    pub fn trees(&self) -> Vec<CgroupTree> {
        let v1 = self.v1.iter().map(|tree| {
            let names: Vec<_> = tree.controllers.iter().map(|one| one.name()).collect();
            CgroupTree {
                mount: tree.mount.clone(),
                controllers: Some(names.join(",")),
            }
        });
        let v2 = self.unified.iter().map(|tree| CgroupTree {
            mount: tree.mount.clone(),
            controllers: None,
        });
        v1.chain(v2).collect()
    }

    /// Whether a controller is usable here, in any tree.
    pub fn offers(&self, controller: Controller) -> bool {
        self.v1
            .iter()
            .any(|tree| tree.controllers.contains(&controller))
            || self.unified.as_ref().is_some_and(|tree| {
                controller.is_core_on_v2() || tree.controllers.contains(&controller)
            })
    }
}

/// Returns the reason why the agent can make no group in a mounted cgroup tree.
fn unusable_cause(mount: &Path) -> Option<UnusableCause> {
    let is_tree = |stat: rustix::fs::StatFs| CGROUP_MAGICS.contains(&(stat.f_type & 0xffff_ffff));
    if !rustix::fs::statfs(mount).is_ok_and(is_tree) {
        return Some(UnusableCause::Hidden);
    }
    let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
    let stat = rustix::fs::statvfs(mount);
    stat.is_ok_and(|stat| stat.f_flag.contains(read_only))
        .then_some(UnusableCause::ReadOnly)
}

/// The controllers that a v2 group may hand to the groups inside it.
pub(super) fn available_controllers(group: &Path) -> Vec<Controller> {
    let text = read_text(group, "cgroup.controllers").unwrap_or_default();
    let has = |controller: &Controller| {
        text.split_ascii_whitespace()
            .any(|name| name == controller.v2_name())
    };
    Controller::ALL.into_iter().filter(has).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fmt::Write;

    /// A machine made of folders: v1 mounts by their options, and maybe a v2 tree.
    pub(crate) fn fixture(root: &Path, v1: &[&str], v2: Option<&str>) -> Host {
        let proc = root.join("proc");
        fs::create_dir_all(proc.join("self")).expect("made");
        let mut table = String::from("27 1 254:0 / / rw - ext4 /dev/vda rw\n");
        for options in v1 {
            let mount = root.join(options.replace(['=', ','], "_"));
            fs::create_dir_all(&mount).expect("made");
            let mount = mount.display().to_string().replace(' ', "\\040");
            writeln!(
                table,
                "32 31 0:29 / {mount} rw,relatime - cgroup cgroup rw,{options}"
            )
            .expect("written");
        }
        if let Some(controllers) = v2 {
            let mount = root.join("unified");
            fs::create_dir_all(&mount).expect("made");
            fs::write(mount.join("cgroup.controllers"), controllers).expect("written");
            fs::write(mount.join("cgroup.subtree_control"), "").expect("written");
            let mount = mount.display().to_string().replace(' ', "\\040");
            writeln!(
                table,
                "41 31 0:38 / {mount} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
            )
            .expect("written");
        }
        fs::write(proc.join("self/mountinfo"), table).expect("written");
        Host::at(&proc, true).expect("detected")
    }

    #[test]
    fn modes_are_told_apart() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let split = [
            "cpu",
            "cpuacct",
            "memory",
            "pids",
            "freezer",
            "name=systemd",
            "blkio",
        ];
        let joined = ["cpu,cpuacct", "memory", "pids", "freezer"];
        let v2 = "cpuset cpu io memory hugetlb pids\n";
        for (name, v1, unified, mode) in [
            ("none", &[][..], None, Mode::None),
            ("named", &["name=systemd"][..], None, Mode::None),
            ("legacy", &split[..], None, Mode::Legacy),
            ("comounted", &joined[..], None, Mode::Legacy),
            ("hybrid", &split[..], Some("hugetlb\n"), Mode::Hybrid),
            ("unified", &[][..], Some(v2), Mode::Unified),
            (
                "systemd hybrid",
                &["name=systemd"][..],
                Some(v2),
                Mode::Unified,
            ),
        ] {
            let host = fixture(&dir.path().join(name), v1, unified);
            assert_eq!(host.mode, mode, "{name}");
            assert_eq!(
                host.offers(Controller::Memory),
                mode != Mode::None,
                "{name}"
            );
        }
    }

    /// Groups were to be made where `ip netns exec` had put another /sys, or in a tree that a container has read-only.
    #[test]
    fn hidden_or_readonly_trees_are_skipped() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let v1 = ["memory", "pids", "name=systemd"];
        let proc = fixture(dir.path(), &v1, Some("memory\n")).proc;
        let found = |unusable: &[&str]| {
            let cause = |mount: &Path| {
                let is_unusable = unusable.iter().any(|name| mount.ends_with(name));
                is_unusable.then_some(UnusableCause::Hidden)
            };
            Host::with_usable(&proc, true, cause).expect("detected")
        };
        let host = found(&["memory"]);
        assert_eq!(host.mode, Mode::Hybrid);
        assert!(host.offers(Controller::Pids) && host.unusable.len() == 1);
        assert_eq!(host.unusable[0].mount, dir.path().join("memory"));
        assert_eq!(found(&["unified"]).mode, Mode::Legacy);
        assert_eq!(found(&["memory", "pids", "unified"]).mode, Mode::None);
        assert_eq!(found(&[]).unusable, []);
        let twice = ["memory", "memory"];
        let proc = fixture(&dir.path().join("twice"), &twice, None).proc;
        let looks = std::cell::Cell::new(0);
        let first = |_: &Path| {
            looks.set(looks.get() + 1);
            (looks.get() == 1).then_some(UnusableCause::ReadOnly)
        };
        let host = Host::with_usable(&proc, true, first).expect("detected");
        assert!(host.offers(Controller::Memory) && host.unusable.is_empty());
        // Nobody needs that one.
        assert_eq!(found(&["name_systemd"]).unusable, []);
        // The fixture's own folders are no cgroup trees.
        let hidden = unusable_cause(&dir.path().join("memory"));
        assert_eq!(hidden, Some(UnusableCause::Hidden));
    }

    #[test]
    fn co_mounted_controllers_are_one_hierarchy() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = fixture(dir.path(), &["cpu,cpuacct", "cpu,cpuacct", "memory"], None);
        let found: Vec<_> = host
            .v1
            .iter()
            .map(|tree| tree.controllers.clone())
            .collect();
        let cpu = vec![Controller::Cpu, Controller::Cpuacct];
        assert_eq!(found, [cpu, vec![Controller::Memory]]);
        assert!(!host.offers(Controller::Pids));
    }

    #[test]
    fn missing_mount_table_error_names_path() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = Host::at(dir.path(), false).expect_err("there is none");
        assert!(error.to_string().contains("self/mountinfo"), "{error}");
    }
}
