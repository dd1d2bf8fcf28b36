//! Helpers of the isolators' own tests: an isolator, its plan and its readings, without a kernel.

use std::path::Path;

use super::{Isolator, Observed, UsageSource};
use crate::cgroup::{Controller, Files, GroupDir, Groups, Version};
use crate::demand::Demand;
use crate::usage::ContainerUsage;

/// The usage after one reading of all files.
pub(super) fn usage_of(isolator: &dyn Isolator, groups: &Groups) -> ContainerUsage {
    read_all(groups, |source, usage| isolator.usage(source, usage))
}

/// The figures that these isolators, in this order, add from a nested container to its outer container.
pub(super) fn local_usage_of(isolators: &[&dyn Isolator], groups: &Groups) -> ContainerUsage {
    read_all(groups, |source, usage| {
        for isolator in isolators {
            isolator.local_usage(source, usage);
        }
    })
}

fn read_all(
    groups: &Groups,
    read: impl FnOnce(&UsageSource<'_>, &mut ContainerUsage),
) -> ContainerUsage {
    let mut usage = ContainerUsage::default();
    let source = UsageSource {
        groups,
        supervisor: None,
        proc: Path::new("/proc"),
        files: &Files::passing(),
        all: true,
    };
    read(&source, &mut usage);
    usage
}

/// A group of one controller at a path that does not exist.
pub(super) fn group_of(version: Version, controller: Controller) -> Groups {
    group_at(version, Path::new("/nowhere"), &[controller])
}

/// A group with these controllers.
pub(super) fn group_at(version: Version, dir: &Path, controllers: &[Controller]) -> Groups {
    Groups {
        dirs: vec![GroupDir {
            version,
            dir: dir.into(),
            controllers: controllers.into(),
        }],
    }
}

pub(super) const FRESH: Observed = Observed {
    fresh: true,
    memory_limit: None,
    cpu_quota: false,
    cpu_idle: false,
    cpu_ceiling_us: None,
};

/// Makes a folder with these files.
pub(super) fn folder_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in files {
        std::fs::write(dir.path().join(file), text).expect("written");
    }
    dir
}

/// Formats a plan as words of `file=value`.
pub(super) fn plan_text(
    isolator: &dyn Isolator,
    demand: &Demand,
    groups: &Groups,
    observed: &Observed,
) -> String {
    let plan = isolator.plan(demand, groups, observed);
    let words = plan
        .iter()
        .map(|write| format!("{}={}", write.file, write.value));
    words.collect::<Vec<_>>().join(" ")
}
