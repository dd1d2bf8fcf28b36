//! The kernel's view of revocable containers: throttled, frozen, or gone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use meseta_tests::kernel::groups_below;

/// The control files of revocable groups, found once.
#[derive(Debug)]
pub(crate) struct Revocable {
    parents: Vec<PathBuf>,
    containers: Vec<PathBuf>,
}

impl Revocable {
    pub(crate) fn below(root: &str) -> Self {
        let groups = groups_below(root);
        let is_parent = |group: &&PathBuf| group.ends_with(".revocable");
        let is_container = |group: &&PathBuf| {
            let parent = group.parent();
            parent.is_some_and(|parent| parent.ends_with(".revocable"))
        };
        Self {
            parents: groups.iter().filter(is_parent).cloned().collect(),
            containers: groups.iter().filter(is_container).cloned().collect(),
        }
    }

    /// Whether a quota limits all of them together.
    pub(crate) fn is_throttled(&self) -> bool {
        self.parents.iter().any(|parent| {
            let v1 = text(parent, "cpu.cfs_quota_us").is_some_and(|quota| quota != "-1");
            v1 || text(parent, "cpu.max").is_some_and(|quota| !quota.starts_with("max"))
        })
    }

    /// Returns how many are frozen by their own freezer.
    pub(crate) fn frozen(&self) -> usize {
        let is_frozen = |group: &&PathBuf| {
            let v1 = text(group, "freezer.self_freezing").is_some_and(|state| state == "1");
            v1 || text(group, "cgroup.freeze").is_some_and(|state| state == "1")
        };
        self.containers.iter().filter(is_frozen).count()
    }

    /// Returns the number of processes in all the groups.
    pub(crate) fn processes(&self) -> usize {
        let procs = |group: &PathBuf| text(group, "cgroup.procs");
        let mut pids: Vec<String> = self
            .containers
            .iter()
            .filter_map(procs)
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids.len()
    }

    /// Returns the processor time of all the groups together, in seconds.
    pub(crate) fn cpu_secs(&self) -> Option<f64> {
        let parents = self.parents.iter();
        parents
            .filter_map(|parent| {
                let v1 = text(parent, "cpuacct.usage").and_then(|text| text.parse::<f64>().ok());
                let v2 = || {
                    let stat = text(parent, "cpu.stat")?;
                    let line = stat
                        .lines()
                        .find_map(|line| line.strip_prefix("usage_usec "));
                    Some(line?.parse::<f64>().ok()? * 1e3)
                };
                v1.or_else(v2)
            })
            .reduce(f64::max)
            .map(|nanos| nanos / 1e9)
    }

    /// Freezes all groups from outside, which simulates a neighbour that does not exist.
    pub(crate) fn freeze_all(&self, frozen: bool) -> anyhow::Result<()> {
        for parent in &self.parents {
            let (v1, v2) = (parent.join("freezer.state"), parent.join("cgroup.freeze"));
            let (file, value) = match (v1.exists(), v2.exists(), frozen) {
                (true, _, true) => (v1, "FROZEN"),
                (true, _, false) => (v1, "THAWED"),
                (_, true, true) => (v2, "1"),
                (_, true, false) => (v2, "0"),
                (false, false, _) => continue,
            };
            fs::write(&file, value)
                .with_context(|| format!("failed to write {}", file.display()))?;
        }
        Ok(())
    }
}

fn text(group: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(group.join(file)).ok()?;
    Some(text.trim().to_owned())
}
