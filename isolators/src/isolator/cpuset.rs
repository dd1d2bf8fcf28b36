//! cgroups/cpuset: a group of its own, on the operator's processors and memory nodes.
//!
//! Without settings the container may use the same as the group above it; on v1 this needs a write, which happens when the
//! group is made.

use super::{Isolator, NodeOptions, Observed};
use crate::cgroup::{Controller, Groups, KnobWrite};
use crate::demand::Demand;

#[derive(Debug)]
pub(super) struct Cpuset {
    cpus: Option<String>,
    mems: Option<String>,
}

impl Cpuset {
    pub(super) fn new(node: &NodeOptions) -> Self {
        Self {
            cpus: node.cpuset_cpus.clone(),
            mems: node.cpuset_mems.clone(),
        }
    }
}

impl Isolator for Cpuset {
    fn name(&self) -> &'static str {
        "cgroups/cpuset"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Cpuset, Controller::Freezer]
    }

    /// The names are the same on both versions.
    fn plan(&self, _demand: &Demand, groups: &Groups, _observed: &Observed) -> Vec<KnobWrite> {
        if groups.get(Controller::Cpuset).is_none() {
            return Vec::new();
        }
        // Memory nodes first: v1 refuses processors without them.
        [("cpuset.mems", &self.mems), ("cpuset.cpus", &self.cpus)]
            .into_iter()
            .filter_map(|(file, value)| {
                let value = value.as_ref()?;
                Some(KnobWrite::new(Controller::Cpuset, file, value))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FRESH, group_of, plan_text};
    use super::*;
    use crate::cgroup::Version;

    #[test]
    fn only_configured_cpusets_are_written() {
        let node = NodeOptions {
            cpuset_cpus: Some("0-1".to_owned()),
            cpuset_mems: Some("0".to_owned()),
            ..NodeOptions::default()
        };
        for version in [Version::V1, Version::V2] {
            let groups = group_of(version, Controller::Cpuset);
            let plan = |node| plan_text(&Cpuset::new(node), &Demand::default(), &groups, &FRESH);
            assert_eq!(plan(&node), "cpuset.mems=0 cpuset.cpus=0-1");
            assert_eq!(plan(&NodeOptions::default()), "");
        }
        let none = Groups::default();
        assert_eq!(
            plan_text(&Cpuset::new(&node), &Demand::default(), &none, &FRESH),
            ""
        );
    }
}
