//! namespaces/cgroup: hides all of the cgroup trees except the container's own groups. With a mount namespace the trees are
//! mounted again, so that programs on v1 find their limits; on v2 a task is in a leaf of its container's group, which has no
//! limits.

use crate::cgroup::CgroupTree;
use crate::isolator::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::{LaunchIsolation, MountAction, MountStep};

#[derive(Debug)]
pub(crate) struct Cgroup {
    steps: Vec<MountStep>,
}

impl Cgroup {
    /// The isolator for these mounted trees, with their controllers if they are of v1.
    pub(crate) fn new(trees: &[CgroupTree]) -> Self {
        let step = |tree: &CgroupTree| MountStep {
            path: tree.mount.clone(),
            action: MountAction::CgroupTree {
                controllers: tree.controllers.clone(),
            },
        };
        Self {
            steps: trees.iter().map(step).collect(),
        }
    }
}

impl Isolator for Cgroup {
    fn name(&self) -> &'static str {
        "namespaces/cgroup"
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        launch.cgroup_namespace = true;
        launch.mounts.extend_from_slice(&self.steps);
        Ok(())
    }
}
