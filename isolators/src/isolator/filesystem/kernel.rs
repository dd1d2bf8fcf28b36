//! filesystem/kernel: makes the kernel's own filesystems read-only, and hides the parts that reveal too much.
//!
//! `/sys` with every cgroup tree in it, cgroup trees mounted elsewhere, and the parts of `/proc` that change the machine are
//! read-only. Otherwise a task of root without any capability could write them, because files there are root's. Needs
//! `namespaces/mnt`, and `linux/capabilities` to make it last: with CAP_SYS_ADMIN a task could mount them again.

use std::path::Path;

use crate::cgroup::CgroupTree;
use crate::isolator::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::{LaunchIsolation, MountAction, MountStep};

const SYS: &str = "/sys";

/// Paths that root can write without any capability.
const READ_ONLY: [&str; 5] = [
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
];

/// The contents of these files concern the machine, not the container.
const HIDDEN_FILES: [&str; 5] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
];
const HIDDEN_FOLDERS: [&str; 3] = ["/proc/acpi", "/proc/scsi", "/sys/firmware"];

#[derive(Debug)]
pub(crate) struct Kernel {
    steps: Vec<MountStep>,
}

impl Kernel {
    /// The isolator for these trees, which may lie outside `/sys`.
    pub(crate) fn new(trees: &[CgroupTree]) -> Self {
        let step = |path: &Path, action| MountStep {
            path: path.to_owned(),
            action,
        };
        let hidden_files = HIDDEN_FILES.map(|path| step(Path::new(path), MountAction::MaskFile));
        let folders = HIDDEN_FOLDERS.map(|path| step(Path::new(path), MountAction::MaskFolder));
        let mut steps = vec![step(Path::new(SYS), MountAction::ReadOnlyTree)];
        let mounts = trees.iter().map(|tree| &tree.mount);
        let elsewhere = mounts.filter(|path| !path.starts_with(SYS));
        steps.extend(elsewhere.map(|path| step(path, MountAction::ReadOnlyTree)));
        steps.extend(READ_ONLY.map(|path| step(Path::new(path), MountAction::ReadOnlyPath)));
        steps.extend(hidden_files);
        steps.extend(folders);
        Self { steps }
    }
}

impl Isolator for Kernel {
    fn name(&self) -> &'static str {
        "filesystem/kernel"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        launch.mounts.extend_from_slice(&self.steps);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cgroup_tree_is_covered_once() {
        let tree = |mount: &str| CgroupTree {
            mount: mount.into(),
            controllers: None,
        };
        let steps = Kernel::new(&["/sys/fs/cgroup/cpu", "/mnt/unified"].map(tree)).steps;
        let trees = steps
            .iter()
            .filter(|step| step.action == MountAction::ReadOnlyTree);
        let trees: Vec<_> = trees.map(|step| step.path.as_path()).collect();
        assert_eq!(trees, [Path::new("/sys"), Path::new("/mnt/unified")]);
    }
}
