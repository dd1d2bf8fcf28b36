//! namespaces/cgroup: its own groups are all that it sees of the cgroup trees. With a mount namespace the trees are
//! mounted anew, so that on v1 programs which look for their limits find them; on v2 a task is in a leaf of its
//! container's group, which has none.

use crate::cgroup::CgroupTree;
use crate::isolator::ContainerSpec;
use crate::isolator::Isolator;
use crate::launcher::{LaunchIsolation, MountAction, MountStep};

#[derive(Debug)]
pub(crate) struct Cgroup {
    steps: Vec<MountStep>,
}

impl Cgroup {
    /// `trees` are where they are mounted, with their controllers if they are of v1.
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
