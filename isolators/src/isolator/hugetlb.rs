//! cgroups/hugetlb: a group of its own, with the operator's ceiling per page size.

use super::{Isolator, Observed};
use crate::cgroup::{Controller, Groups, KnobWrite, Version};
use crate::demand::Demand;

/// The knobs of every page size of Linux on our machines, v1 and v2; missing ones are skipped.
const KNOBS: [(&str, &str); 6] = [
    ("hugetlb.64KB.limit_in_bytes", "hugetlb.64KB.max"),
    ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"),
    ("hugetlb.32MB.limit_in_bytes", "hugetlb.32MB.max"),
    ("hugetlb.512MB.limit_in_bytes", "hugetlb.512MB.max"),
    ("hugetlb.1GB.limit_in_bytes", "hugetlb.1GB.max"),
    ("hugetlb.16GB.limit_in_bytes", "hugetlb.16GB.max"),
];

#[derive(Debug)]
pub(super) struct Hugetlb {
    limit_bytes: Option<u64>,
}

impl Hugetlb {
    pub(super) fn new(limit_bytes: Option<u64>) -> Self {
        Self { limit_bytes }
    }
}

impl Isolator for Hugetlb {
    fn name(&self) -> &'static str {
        "cgroups/hugetlb"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Hugetlb, Controller::Freezer]
    }

    fn plan(&self, _demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        let (Some(group), Some(limit), true) = (
            groups.get(Controller::Hugetlb),
            self.limit_bytes,
            observed.fresh,
        ) else {
            return Vec::new();
        };
        KNOBS
            .iter()
            .map(|(v1, v2)| {
                let file = match group.version {
                    Version::V1 => v1,
                    Version::V2 => v2,
                };
                KnobWrite::optional(Controller::Hugetlb, file, limit)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FRESH, group_of, plan_text};
    use super::*;

    #[test]
    fn hugetlb_ceiling_is_written_per_size() {
        for (version, knob) in [
            (Version::V1, "hugetlb.2MB.limit_in_bytes=4096"),
            (Version::V2, "hugetlb.2MB.max=4096"),
        ] {
            let groups = group_of(version, Controller::Hugetlb);
            let isolator = Hugetlb::new(Some(4096));
            let plan = plan_text(&isolator, &Demand::default(), &groups, &FRESH);
            assert!(plan.split(' ').any(|one| one == knob), "{plan}");
            assert_eq!(plan.split(' ').count(), KNOBS.len());
            assert_eq!(
                plan_text(&isolator, &Demand::default(), &groups, &Observed::default()),
                ""
            );
            let endless = Hugetlb::new(None);
            assert_eq!(plan_text(&endless, &Demand::default(), &groups, &FRESH), "");
        }
    }
}
